//! Inodes in memory, one for all who use a file at a time.

use crate::error::{Error, Result};
use crate::map::indirect::PointerPlaces;
use crate::stat::{FileKind, Metadata, Timestamp};
use crate::volume::Ext4State;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use uext4_iomap::InodeState;
use uext4_ondisk::ext4::{Inode as DiskInode, InodeFlags};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Pblk};

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

/// The inodes that somebody uses.
pub(crate) type InodeTable = parking_lot::Mutex<HashMap<Ino, Weak<Inode>>>;

/// Entries of the table after which the dead ones are swept out.
const SWEEP_AT: usize = 1024;

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

impl Ext4State {
    /// The inode, loaded once for all users. One that holds an attribute's value is no file, whoever names it.
    pub(crate) fn inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.any_inode(ino)?;
        refuse_value(ino, inode.disk())?;
        Ok(inode)
    }

    /// The same, whatever it is for.
    pub(crate) fn any_inode(&self, ino: Ino) -> Result<Arc<Inode>> {
        if let Some(inode) = self.live_inode(ino) {
            return Ok(inode);
        }
        let loaded = Arc::new(self.load_inode(ino)?);
        let mut inodes = self.inodes.lock();
        if let Some(inode) = inodes.get(&ino).and_then(Weak::upgrade) {
            // Somebody else was faster; all must share one gate and one mapping.
            return Ok(inode);
        }
        if inodes.len() >= SWEEP_AT && inodes.len().is_power_of_two() {
            inodes.retain(|_, inode| inode.strong_count() > 0);
        }
        inodes.insert(ino, Arc::downgrade(&loaded));
        Ok(loaded)
    }

    fn load_inode(&self, ino: Ino) -> Result<Inode> {
        let geometry = &self.superblock.geometry;
        let bad_number = || Error::from(Corrupt::from(CorruptKind::InodeNumber).in_inode(ino));
        let (group, index) = geometry.group_of_inode(ino).ok_or_else(bad_number)?;
        let table = self.inode_table(group)?;
        let (block, offset) = geometry.inode_table_position(index);
        let place = table.checked_add(u64::from(block)).ok_or_else(bad_number)?;
        let buffer = self.cache.read(place.get())?;
        let (disk, kind) = self.decode_inode(&buffer, offset as usize, ino, place)?;
        let metadata = self.metadata_of(ino, &disk, kind);
        let state = InodeState::new(disk.size, geometry.block_size_log());
        let has_extra = disk.extra_isize > 0;
        let record = buffer.get(offset as usize..).unwrap_or_default();
        let rest = record.get(disk.xattr_range(&self.superblock)).filter(|_| has_extra).unwrap_or_default();
        // Most inodes have none: a magic number comes first.
        let empty = rest.first_chunk::<4>().is_none_or(|magic| *magic == [0; 4]);
        let record_xattrs = if empty { Box::default() } else { rest.into() };
        let position =
            place.byte_offset(geometry.block_size()).unwrap_or(0).saturating_add(u64::from(offset));
        let pointer_places = PointerPlaces::default();
        Ok(Inode { ino, disk, kind, metadata, pointer_places, position, record_xattrs, state })
    }

    /// The record at byte `start` of a block of the inode table, checked: what the block says, whatever is in
    /// memory.
    pub(crate) fn decode_inode(
        &self,
        table: &[u8],
        start: usize,
        ino: Ino,
        place: Pblk,
    ) -> Result<(DiskInode, FileKind)> {
        let superblock = &self.superblock;
        let bytes = table
            .get(start..start + usize::from(superblock.geometry.inode_size()))
            .ok_or_else(|| Error::from(Corrupt::from(CorruptKind::Truncated("inode table")).in_inode(ino)))?;
        let disk = DiskInode::decode(bytes, ino, superblock).map_err(|corrupt| corrupt.at_block(place))?;
        // A deleted inode may still name blocks that belong to somebody else now.
        if disk.links == 0 {
            return Err(Corrupt::from(CorruptKind::InodeFree).in_inode(ino).at_block(place).into());
        }
        let kind = disk
            .file_type()
            .ok_or_else(|| self.corrupt_inode(ino, format!("mode {:#o} names no file type", disk.mode)))?;
        Ok((disk, kind))
    }

    /// The inode if somebody uses it: then it, not the table, has the latest attributes.
    pub(crate) fn live_inode(&self, ino: Ino) -> Option<Arc<Inode>> {
        self.inodes.lock().get(&ino).and_then(Weak::upgrade)
    }

    pub(crate) fn metadata_of(&self, ino: Ino, disk: &DiskInode, kind: FileKind) -> Metadata {
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let rdev = disk.device().filter(|_| device).map_or((0, 0), |number| (number.major, number.minor));
        // As the kernel tells it, so that nobody takes a file whose contents lie inside its inode for a hole.
        let inline = kind == FileKind::Regular && disk.has_inline_data();
        let inside = if inline { disk.size.div_ceil(512) } else { 0 };
        Metadata {
            ino,
            kind,
            mode: u32::from(disk.permissions()),
            uid: disk.uid,
            gid: disk.gid,
            size: disk.size,
            blocks: disk.sectors(&self.superblock).saturating_add(inside),
            links: u32::from(disk.links),
            rdev,
            accessed: disk.accessed,
            modified: disk.modified,
            changed: disk.changed,
            created: disk.created,
            flags: disk.flags,
            generation: disk.generation,
            project: disk.project.unwrap_or(0),
            block_size: self.superblock.geometry.block_size(),
        }
    }

    pub(crate) fn corrupt_inode(&self, ino: Ino, what: impl Into<String>) -> Error {
        Error::CorruptInode { ino, what: what.into() }
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
