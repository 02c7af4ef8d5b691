//! Checks the consistency of volumes. It repairs nothing.
//!
//! [`check`] checks an open volume, [`check_device`] also one too damaged to be opened. Damage is not an error but a
//! [`Finding`] with a place, a text and a [`Kind`], whose code never changes ([`KINDS`] lists them). The [`Report`]
//! also lists what was not examined. Nothing is printed; the caller receives [`Progress`].
//!
//! Reading path: `run` (what is done in which order), then the passes:
//!
//! ```text
//! 0  journal.rs     what the log holds and could not be replayed
//!    groups.rs      superblock, descriptors, backups, system zones; orphans.rs: who waits for deletion
//!    badblocks.rs   blocks of inode tables that cannot be read
//! 1  inode.rs       inode tables in large reads; map.rs: every map; claims.rs: who uses which block
//! 1B duplicates.rs  owners of blocks claimed twice (damaged volumes only)
//! 2  dir.rs         directory blocks in the order of the device; htree.rs: hash trees as a whole
//!    xattr.rs       attributes and contents inside inodes, attribute blocks, values in other inodes
//!    sealed.rs      what fs-verity stores behind contents, on request the contents too
//!    encryption.rs  encryption contexts, and whether directories and what they name agree in them
//! 3  tree.rs        every directory hangs on the root
//! 4  tree.rs        link counts
//! 5  bitmaps.rs     bitmaps, free counts
//! ```
//!
//! The rules are those of `e2fsck -fn`: a volume that it calls clean has no finding of [`Severity::Error`] here, except
//! in parts that it does not check: the contents of the log, which is replayed here, a journal that cannot be written
//! to, reserved inodes that other programs cannot read, what fs-verity stores behind the contents of files, and before
//! version 1.47.1 names of value inodes. Quota usage,
//! which e2fsck does check, is not examined. Passes 1, 2 and 5 run on the caller's thread and, on request, on a few
//! more that end with the call.
//!
//! Memory: one bit for every cluster in use, in pieces allocated on demand; eight bytes for every inode of groups in
//! use; 16 bytes for every directory block, for every encrypted inode, and for every inode with an attribute block
//! (another 16 for every such block if values may be in inodes), and 64 for every inode with such values. On damaged
//! volumes every walk has a budget that an honest volume cannot exceed, and only the first few findings of each kind
//! are kept.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod areas;
mod badblocks;
mod bitmaps;
mod bits;
mod claims;
mod compare;
mod dir;
mod duplicates;
mod encryption;
mod groups;
mod htree;
mod inode;
mod journal;
mod kinds;
mod map;
mod options;
mod orphans;
mod progress;
mod read;
mod report;
mod run;
mod scan;
mod sealed;
mod shared;
mod special;
mod tree;
mod workers;
mod xattr;

pub use areas::Areas;
pub use compare::{Changes, Compare, Difference, Fate, NextChange, Unknown};
pub use kinds::KINDS;
pub use options::{CheckOptions, THREADS_MAX};
pub use progress::{Pass, Progress};
pub use report::{Counts, Finding, Kind, NotExamined, Report, Severity};
pub use run::{check, check_device};
