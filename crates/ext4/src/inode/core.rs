//! The fields of an inode as one consistent snapshot. A change publishes the next one.

use crate::ground::state::Ground;
use std::ops::Deref;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::Inode as DiskInode;

/// The decoded record of an inode. Immutable: a reader sees size, blocks and map of one moment.
#[derive(Debug)]
pub(crate) struct InodeValue {
    ino: Ino,
    disk: DiskInode,
    record_xattrs: Box<[u8]>,
    pub(super) told: Told,
}

/// Times of the latest write and access included in a record, in nanoseconds since 1970; 0 if there was none since it
/// was loaded.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    pub(super) written_ns: u64,
    pub(super) accessed_ns: u64,
}

impl InodeValue {
    /// `record`: the bytes that `disk` was decoded from, or encoded into.
    pub(super) fn new(ground: &Ground, ino: Ino, disk: DiskInode, record: &[u8], told: Told) -> InodeValue {
        let range = disk.xattr_range(&ground.superblock);
        let rest = record.get(range).filter(|_| disk.extra_isize > 0).unwrap_or_default();
        // Most inodes have no attributes, which begin with a magic number.
        let empty = rest.first_chunk::<4>().is_none_or(|magic| *magic == [0; 4]);
        let record_xattrs = if empty { Box::default() } else { rest.into() };
        InodeValue { ino, disk, record_xattrs, told }
    }

    /// Number.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// The bytes of the record after its extra fields, where extended attributes may be. Empty if the record has no
    /// size of extra fields: then these bytes are not trusted, as in the kernel.
    pub(crate) fn record_xattrs(&self) -> &[u8] {
        &self.record_xattrs
    }
}

impl Deref for InodeValue {
    type Target = DiskInode;

    fn deref(&self) -> &DiskInode {
        &self.disk
    }
}
