//! Making a volume, as `mke2fs` does: [`format()`] with [`Options`].
//!
//! The order makes it safe: everything is decided and checked in memory first (`sizes.rs`, `tables.rs`, `plan.rs`).
//! Then the old signatures are wiped, the new structures are written, and, after a flush, the primary superblock, which
//! makes them a volume (`write.rs`). A crash or an error before that leaves nothing that looks like a volume, old or
//! new.
//!
//! [`format_tree()`] makes a volume with files: a [`Tree`] says which, and a [`Source`] reads their contents. Inodes,
//! directories and maps are laid out in memory (`population`), the contents go to the device in large requests
//! (`pour.rs`), and the rest follows as above. The journal stays empty. Files that the tree seals are hashed on the way
//! (`sealing.rs`); [`DmVerity`] hashes a whole volume that was made.
//!
//! Little is written: unused bitmaps and inode tables are marked as uninitialised if descriptors have checksums, and
//! zeros are written only where the device cannot tell that it reads as zeros already
//! ([`Device::reads_zeros`](crate::device::Device::reads_zeros)). Nothing is discarded unless the options ask for it:
//! the contents after a discard are undefined, so blocks that must read as zeros are then written too.

mod dm_verity;
mod error;
mod external;
mod files;
mod image;
mod journal;
mod kinds;
mod layout;
mod make;
mod map;
mod options;
mod pieces;
mod plan;
mod population;
mod pour;
mod present;
mod quota;
mod seal;
mod sealing;
mod sizes;
mod smallest;
mod space;
mod tables;
mod tree;
mod write;

pub use dm_verity::{DmVerity, HashedDevice};
pub use error::{Error, Result};
pub use external::{MadeJournal, format_journal, format_with_journal};
pub use image::Image;
pub use kinds::{Defaults, Kind};
pub use make::{Made, dry_run, dry_run_tree, format, format_tree};
pub use options::{Options, parse_uuid};
pub use present::refuse_occupied;
pub use seal::Seal;
pub use smallest::{Free, smallest};
pub use tree::{Contents, Item, ItemId, ItemKind, Source, SourceError, Tree};
