//! ext4 volumes in user space, at device speed.
//!
//! ```no_run
//! # fn main() -> uext4::Result<()> {
//! use uext4::{OpenOptions, QueueOptions, Volume, VolumeOptions, WriteFlags};
//!
//! let vol = Volume::open("disk.img", VolumeOptions::read_write())?;
//! let file = vol.open_file("/db/data", OpenOptions::new().read(true).write(true))?;
//! let mut queue = vol.queue(QueueOptions::depth(256))?; // one per thread
//! let slot = queue.attach(&file)?;
//! let buffer = queue.buffer(4096)?;
//! queue.write(slot, 4096, buffer, WriteFlags::DSYNC, 7)?;
//! for done in queue.wait(1)? {
//!     println!("request {}: {} bytes", done.tag, done.result?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A [`Volume`] is opened on a device of the device grammar ([`DeviceSpec`]); a [`File`] reads and overwrites
//! directly (alignment errors are errors); an [`IoQueue`] does the same asynchronously. This version changes
//! no metadata: a write that is not a pure overwrite is refused with [`Error::NeedsAllocation`], and mtime
//! and ctime of overwrites live in memory only, while the file is open.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod check;
mod cursor;
mod dir;
mod error;
pub mod explain;
mod explain_inline;
mod fast_commit;
mod features;
mod file;
mod fs;
mod groups;
mod info;
mod inline;
mod inode;
mod io_error;
mod journal;
mod map;
mod mmp;
mod options;
mod path;
mod queue;
mod recovery;
mod stat;
mod statfs;
mod to_device;
mod volume;
mod walk;
mod whole;
mod xattr;
mod zones;

pub use cursor::Cursor;
pub use dir::{DirEntry, ReadDir};
pub use error::{Allocation, Error, Result};
pub use file::{File, MapIter};
pub use groups::DescriptorDamage;
pub use info::Info;
pub use options::{DEPTH_MAX, OpenOptions, QueueOptions, VolumeOptions};
pub use queue::{Completion, Completions, IoQueue};
pub use recovery::{RecoveryInfo, RecoveryState};
pub use stat::{FileKind, InodeFlags, Metadata, Timestamp};
pub use statfs::StatFs;
pub use to_device::ToDevice;
pub use uext4_blockdev as blockdev;
pub use uext4_blockdev::spec::{DeviceSpec, Target};
pub use uext4_blockdev::{Ask, Buffer, BufferPool, QueueFacts};
pub use uext4_iomap::plan;
pub use uext4_iomap::{
    BadSwitch, Counter, Fence, FileSlot, Payload, Piece, Range, RawCompletion, RawQueue, SWITCH_NAMES, State,
    Stats, Switches, WriteFlags,
};
pub use uext4_jbd2::{FastCommits, JournalInfo, LogEnd, RecoveryReport};
pub use uext4_ondisk::Ino;
pub use uext4_ondisk::ext4::{Acl, AclEntry, AclTag};
pub use volume::Volume;
pub use walk::{Visit, Walk, WalkEntry, WalkError, WalkOptions};
pub use xattr::{AclKind, XATTR_SIZE_MAX, Xattr, XattrName, XattrNames, Xattrs};
