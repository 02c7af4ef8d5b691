//! ext4 volumes in user space, at device speed.
//!
//! [`Volume::open`] takes a device specification ([`DeviceSpec`]) as text, or a path ([`ToDevice`] says which types
//! mean which). A [`File`] reads and overwrites directly: position, length and memory must obey the device's alignment
//! ([`Device::geometry`](device::Device::geometry); 4096 is enough for nearly every device), or the call fails. Each
//! direct call has a counterpart for any byte range in any memory, and a [`Cursor`] serves `std::io`. An [`IoQueue`]
//! makes the direct calls asynchronously.
//!
//! ```
//! use std::io::{Read, Seek, SeekFrom, Write};
//! use uext4::{BufferPool, Error, OpenOptions, QueueOptions, Volume, VolumeOptions, WriteFlags};
//! # use uext4_testkit::{Need, Scratch, VolumeBuilder, e2fsck_clean, requirement};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #   let needs = [Need::Tool("mke2fs"), Need::Tool("e2fsck")];
//! #   if !requirement::require("uext4::the_example_of_the_crate", &needs) { return Ok(()); }
//! #   let source = Scratch::new(1 << 20);
//! #   std::fs::write(source.file("data"), [b'.'; 64 << 10])?;
//! #   let made = VolumeBuilder::new(16 << 20).from_dir(source.path()).build();
//! #   let image = made.path();
//!     // `image` is the path of a volume that has a file `/data`: 64 KiB of dots.
//!     let volume = Volume::open(image, VolumeOptions::read_write())?;
//!     let file = volume.open_file("/data", OpenOptions::new().read(true).write(true))?;
//!
//!     // Direct: whole blocks of the device, in memory aligned for it. One request, no copy.
//!     let pool = BufferPool::new(64 << 10)?;
//!     let mut block = pool.take(4096)?;
//!     assert_eq!(file.read_at(&mut block, 4096)?, 4096);
//!     block[..5].copy_from_slice(b"hello");
//!     file.write_at_with(&block, 4096, WriteFlags::DSYNC)?; // durable when it returns
//!     assert!(matches!(file.write_at(b"hello", 4099), Err(Error::Misaligned { .. })));
//!
//!     // Any bytes, any memory. What is not aligned goes through a bounce buffer. Such a write reads what lies
//!     // around it first, and is alone in the file meanwhile.
//!     let mut some = [0; 7];
//!     assert_eq!(file.read_any_at(&mut some, 4095)?, 7);
//!     assert_eq!(&some, b".hello.");
//!     file.write_any_at(b"any", 4093, WriteFlags::empty())?;
//!
//!     // The same with a position, for code that knows only `std::io`.
//!     let mut cursor = file.cursor();
//!     cursor.seek(SeekFrom::Start(4092))?;
//!     cursor.read_exact(&mut some)?;
//!     assert_eq!(&some, b".anyhel");
//!     cursor.write_all(b" again")?;
//!
//!     // Direct and asynchronous: one queue per thread, many requests in flight.
//!     let mut queue = volume.queue(QueueOptions::depth(16))?;
//!     let slot = queue.attach(&file)?;
//!     queue.read(slot, 4096, queue.buffer(4096)?, 7)?;
//!     for done in queue.wait(1)? {
//!         assert_eq!((done.tag, done.into_buffer().unwrap()[..9].to_vec()), (7, b"hel again".to_vec()));
//!     }
//!
//!     file.sync_data()?; // what was written without a flag survives a crash from here on
//!     assert_eq!(volume.read("/data")?[4093..4105], *b"anyhel again");
//! #   drop((volume, file, cursor, queue));
//! #   e2fsck_clean(image);
//!     Ok(())
//! }
//! ```
//!
//! A write may fill holes and unwritten blocks and extend its file, through the journal if there is one. Volumes
//! without a journal that were not cleanly unmounted refuse such writes with [`Error::NeedsAllocation`] (run e2fsck
//! first). Usage in the files of the `quota` feature is kept with each change. The time stamps of overwrites stay in
//! memory until the inode is next changed, `sync_all`, or the file or the volume is closed. [`Volume::close`], or
//! dropping the last clone, writes everything home.
//!
//! Every type that a call here takes or returns has a name in this crate: the types of devices in [`device`], of the
//! journal in [`journal`], of the on-disk format in [`format`](mod@format). No other crate of this project is needed.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod alloc;
mod change;
mod dir;
mod face;
mod ground;
mod inline;
mod inode;
#[cfg(test)]
#[path = "../tests/inside/mod.rs"]
mod inside;
mod map;
pub mod mkfs;
mod opening;
mod operations;
mod quota;
mod seam;
mod verity;
mod xattr;

pub use dir::{DirCookie, DirEntry};
pub use face::caches::{CacheUse, Caches, Commits};
pub use face::cursor::Cursor;
pub use face::explain;
pub use face::file::{File, MapIter};
pub use face::info::Info;
pub use face::make::NodeKind;
pub use face::node::Node;
pub use face::permits::Access;
pub use face::queue::{Completion, Completions, IoQueue};
pub use face::read_dir::ReadDir;
pub use face::replace::Replacement;
pub use face::shape::Fallocate;
pub use face::statfs::{ReservedSpace, StatFs};
pub use face::target::Target;
pub use face::to_device::ToDevice;
pub use face::verity::Verity;
pub use face::volume::{LastStats, Volume};
pub use face::walk::{Visit, Walk, WalkEntry, WalkError, WalkOptions};
pub use face::{device, format, journal, plan};
pub use ground::caller::Caller;
pub use ground::damage::DescriptorDamage;
pub use ground::error::{Allocation, AttributeError, Error, Limit, QuotaLimit, Result};
pub use ground::foreign::{Contents, Foreign};
pub use ground::options::{Atime, DEPTH_MAX, OpenOptions, QueueOptions, VolumeOptions};
pub use ground::recovered::{RecoveryInfo, RecoveryState};
pub use ground::trace;
pub use inode::metadata::{FileKind, InodeFlags, Metadata, Timestamp};
pub use inode::set_attributes::{SetAttributes, Time};
pub use operations::rename::RenameFlags;
pub use quota::report::{QuotaGrace, QuotaLimits};
pub use uext4_blockdev::spec::DeviceSpec;
pub use uext4_blockdev::{Ask, Buffer, BufferPool, Priority, PriorityClass, QueueFacts};
pub use uext4_iomap::{
    ATOMIC_MAX, BadSwitch, Completion as CompletionOf, Counter, Error as RawError, Fence, FileSlot, Payload,
    Piece, Range, RawCompletion, RawQueue, ReadFlags, SWITCH_NAMES, State, Stats, Switches, WriteFlags,
};
pub use uext4_jbd2::{FastCommits, JournalInfo, LogEnd, RecoveryReport};
pub use uext4_ondisk::ext4::{
    Acl, AclEntry, AclTag, HashAlgorithm, MmpBlock, MmpOwner, QuotaEntry, QuotaKind, Superblock,
};
pub use uext4_ondisk::{Corrupt, CorruptKind, Ino, Place};
pub use xattr::{AclKind, XATTR_SIZE_MAX, Xattr, XattrFlags, XattrName, XattrNames, Xattrs};
