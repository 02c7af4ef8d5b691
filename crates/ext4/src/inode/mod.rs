//! Inodes: what a record says, what is kept of it in memory, and what may be done with the file.

mod cache;
#[allow(dead_code)] // The editors that use it come next.
pub(crate) mod draft;
#[allow(dead_code)] // The operations that use it come next.
pub(crate) mod edit;
pub(crate) mod metadata;
mod places;
mod record;

pub(crate) use cache::Ext4State;

use crate::ground::error::{Error, Result};
use crate::ground::state::is_system_file;
use metadata::{FileKind, Metadata, Timestamp};
use places::PointerPlaces;
use uext4_iomap::InodeState;
use uext4_ondisk::ext4::{Inode as DiskInode, InodeFlags, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind, Ino};

/// A loaded inode.
pub struct Inode {
    ino: Ino,
    disk: DiskInode,
    kind: FileKind,
    metadata: Metadata,
    /// Where the blocks of an indirect map were met.
    pub(crate) pointer_places: PointerPlaces,
    /// First byte of the record on the volume.
    position: u64,
    /// What follows the extra fields of the record: extended attributes, inline data among them.
    record_xattrs: Box<[u8]>,
    /// The engine's half.
    pub(crate) state: InodeState,
}

impl Inode {
    /// Number.
    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// What is on disk.
    pub(crate) fn disk(&self) -> &DiskInode {
        &self.disk
    }

    /// File type.
    pub(crate) fn kind(&self) -> FileKind {
        self.kind
    }

    /// First byte of the record on the volume.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The bytes of the record behind its extra fields, where extended attributes may be. Empty if the record
    /// says nothing about extra fields: nothing of it is believed then, as in the kernel.
    pub(crate) fn record_xattrs(&self) -> &[u8] {
        &self.record_xattrs
    }

    /// Attributes, with the time of the latest write noted in memory.
    pub(crate) fn metadata(&self) -> Metadata {
        let mut metadata = self.metadata.clone();
        let written = self.state.gate.last_write_ns();
        if written != 0 {
            let seconds = (written / 1_000_000_000) as i64;
            let now = Timestamp { seconds, nanoseconds: (written % 1_000_000_000) as u32 };
            (metadata.modified, metadata.changed) = (now, now);
        }
        metadata
    }
}

/// Refuses inodes that hold values of attributes, as the kernel does: those are reached through attributes only.
pub(crate) fn refuse_value(ino: Ino, disk: &DiskInode) -> Result<()> {
    match disk.flags.contains(InodeFlags::EA_INODE) {
        true => Err(Corrupt::from(CorruptKind::InodeOfValue).in_inode(ino).into()),
        false => Ok(()),
    }
}

impl Inode {
    /// Whether the contents lie inside the record.
    pub(crate) fn is_inline(&self) -> bool {
        self.disk.has_inline_data()
    }

    /// Refuses reading contents that are not plain blocks.
    pub(crate) fn check_contents(&self) -> Result<()> {
        let refuse = |feature: &str| {
            Err(Error::Incompatible { action: "read", feature: format!("{feature} (inode {})", self.ino) })
        };
        let flags = self.disk.flags;
        if flags.contains(InodeFlags::ENCRYPT) {
            return refuse(match self.kind {
                FileKind::Directory => "an encrypted directory",
                FileKind::Symlink => "an encrypted symbolic link",
                _ => "an encrypted file",
            });
        }
        if flags.contains(InodeFlags::INLINE_DATA) {
            return refuse("inline data");
        }
        Ok(())
    }

    /// Refuses overwriting files whose contents must not change behind somebody's back.
    pub(crate) fn check_overwrite(&self) -> Result<()> {
        let flags = self.disk.flags;
        if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(Error::NotPermitted("the file is immutable or append-only"));
        }
        if flags.contains(InodeFlags::VERITY) {
            return Err(Error::NotPermitted("the file is sealed by fs-verity"));
        }
        if flags.contains(InodeFlags::JOURNAL_DATA) {
            let feature = format!("journaled data (chattr +j, inode {})", self.ino);
            return Err(Error::Incompatible { action: "write directly", feature });
        }
        Ok(())
    }
}

/// Refuses overwriting what is not for users of the volume, or protected.
pub(crate) fn check_overwrite(superblock: &Superblock, inode: &Inode) -> Result<()> {
    // Reserved inodes (journal, resize, quota …) are the volume's own, even if a directory names one.
    if inode.ino() < superblock.geometry.first_inode() {
        return Err(Error::NotPermitted("a reserved inode"));
    }
    if is_system_file(superblock, inode.ino()) {
        return Err(Error::NotPermitted("the superblock names it as a file of the volume's own"));
    }
    inode.check_overwrite()
}
