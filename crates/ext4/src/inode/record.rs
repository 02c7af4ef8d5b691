//! Reading an inode's record from its table.

use super::access::LastAccess;
use super::claims::Claims;
use super::core::{InodeValue, Told};
use super::draft::Draft;
use super::fields::journals_data;
use super::metadata::{FileKind, Metadata};
use super::places::PointerPlaces;
use super::{Inode, refuse_value};
use crate::ground::error::{Error, Result};
use crate::ground::known::DirectoryId;
use crate::ground::state::Ground;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use uext4_iomap::{InodeState, MapKind};
use uext4_ondisk::ext4::{
    ExtentNode, I_BLOCK_SIZE, Incompat, Inode as DiskInode, InodeFlags, NodeLimits, Superblock,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Pblk};

fn map_kind(superblock: &Superblock, ino: Ino, disk: &DiskInode) -> MapKind {
    if disk.has_inline_data() || may_become_inline(superblock, ino, disk) {
        MapKind::Inline
    } else if disk.flags.contains(InodeFlags::EXTENTS) {
        MapKind::Extents
    } else {
        MapKind::Indirect
    }
}

/// Whether the first write of a file may put its contents into the inode: it is new, or as empty as a new one. (Linux
/// asks only whether it was created since the mount.)
fn may_become_inline(superblock: &Superblock, ino: Ino, disk: &DiskInode) -> bool {
    const OTHERS: InodeFlags = InodeFlags::ENCRYPT
        .union(InodeFlags::VERITY)
        .union(InodeFlags::DAX)
        .union(InodeFlags::JOURNAL_DATA)
        .union(InodeFlags::EA_INODE);
    let maps_nothing = match disk.uses_extents() {
        true => ExtentNode::root(&disk.i_block, NodeLimits::root(superblock))
            .is_ok_and(|root| root.depth() == 0 && root.is_empty()),
        false => disk.i_block == [0; I_BLOCK_SIZE],
    };
    superblock.features.incompat.contains(Incompat::INLINE_DATA)
        && disk.file_type() == Some(FileKind::Regular)
        && ino >= superblock.geometry.first_inode()
        && disk.extra_isize > 0
        && disk.size == 0
        && !disk.flags.intersects(OTHERS)
        && maps_nothing
}

impl Ground {
    /// Reads an inode from its table. For files and directories use the cache instead, which shares one object.
    pub(crate) fn load_inode(&self, ino: Ino) -> Result<Inode> {
        let (place, offset) = self.record_place(ino)?;
        let buffer = self.cache.read(place.get())?;
        let (disk, kind) = self.decode_inode(&buffer, offset, ino, place)?;
        let record = buffer.get(offset..).unwrap_or_default();
        let block_size = self.superblock.geometry.block_size();
        let position = place.byte_offset(block_size).unwrap_or(0).saturating_add(offset as u64);
        Ok(self.inode_in_memory(ino, disk, kind, record, position))
    }

    /// Attributes as the record has them, of an inode that is not in memory.
    ///
    /// # Errors
    /// Those of [`Ground::load_inode`]; of an inode that holds an attribute's value.
    pub(crate) fn record_metadata(&self, ino: Ino) -> Result<Metadata> {
        let (place, offset) = self.record_place(ino)?;
        let (disk, kind) = self.decode_inode(&self.cache.read(place.get())?, offset, ino, place)?;
        refuse_value(ino, &disk)?;
        Ok(self.metadata_of(ino, &disk, kind))
    }

    /// Where an inode's record is: the block of the inode table, and the byte in that block.
    fn record_place(&self, ino: Ino) -> Result<(Pblk, usize)> {
        let geometry = &self.superblock.geometry;
        let bad_number = || Error::from(Corrupt::from(CorruptKind::InodeNumber).in_inode(ino));
        let (group, index) = geometry.group_of_inode(ino).ok_or_else(bad_number)?;
        let table = self.inode_table(group)?;
        let (block, offset) = geometry.inode_table_position(index);
        let place = table.checked_add(u64::from(block)).ok_or_else(bad_number)?;
        Ok((place, offset as usize))
    }

    /// The inode of a record that was just created.
    ///
    /// # Errors
    /// [`Error::CorruptInode`] if its mode names no file type.
    pub(crate) fn inode_made(&self, draft: Draft) -> Result<Inode> {
        let Draft { ino, disk, raw, place: (block, offset), .. } = draft;
        let kind = disk.file_type().ok_or_else(|| self.corrupt_inode(ino, "its mode names no file type"))?;
        let start = block.byte_offset(self.superblock.geometry.block_size()).unwrap_or(0);
        Ok(self.inode_in_memory(ino, disk, kind, &raw, start.saturating_add(offset as u64)))
    }

    /// The kind of an inode's map. Readers of a volume need not ask the cache for contents that a log had.
    pub(crate) fn map_kind(&self, ino: Ino, disk: &DiskInode) -> MapKind {
        match map_kind(&self.superblock, ino, disk) {
            MapKind::Inline => MapKind::Inline,
            _ if self.journal.is_some() && journals_data(&self.superblock, disk) => MapKind::Journaled,
            kind => kind,
        }
    }

    fn inode_in_memory(
        &self,
        ino: Ino,
        disk: DiskInode,
        kind: FileKind,
        record: &[u8],
        position: u64,
    ) -> Inode {
        let bits = self.superblock.geometry.block_size_log();
        let kind_of_map = self.map_kind(ino, &disk);
        let state = InodeState::new(disk.size, bits, self.committed.clone()).with_kind(kind_of_map);
        state.set_syncs(disk.flags.contains(InodeFlags::SYNC));
        // The record may include changes that are not durable. Asked after reading: an inode changes in memory first,
        // so changes of a later transaction are not in this record.
        if let Some(tid) = self.newest_uncommitted() {
            state.set_datasync_tid(tid.0);
        }
        let holds_value = disk.flags.contains(InodeFlags::EA_INODE);
        let core = Mutex::new(Arc::new(InodeValue::new(self, ino, disk, record, Told::default())));
        let pointer_places = PointerPlaces::default();
        let (editing, names, attributes) = (Mutex::new(()), RwLock::new(()), RwLock::new(()));
        let directory_id = match kind {
            FileKind::Directory => self.names.directory(),
            _ => DirectoryId::NONE,
        };
        let (times_looked_at, leave) = (Mutex::new(None), Mutex::new(None));
        let awaits_name = AtomicBool::new(false);
        Inode {
            ino,
            kind,
            clock: self.clock,
            holds_value,
            core,
            editing,
            names,
            directory_id,
            attributes,
            pointer_places,
            claims: Claims::default(),
            position,
            last_access: LastAccess::default(),
            times_looked_at,
            awaits_name,
            last_group: AtomicU32::new(0),
            limited: AtomicU32::new(0),
            holders: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            leave,
            state,
        }
    }

    /// Decodes and checks the record at byte `start` of an inode table block. Ignores an inode in memory.
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
        // A deleted inode may still point to blocks that belong to another file now.
        if disk.links == 0 {
            return Err(Corrupt::from(CorruptKind::InodeFree).in_inode(ino).at_block(place).into());
        }
        let kind = disk
            .file_type()
            .ok_or_else(|| self.corrupt_inode(ino, format!("mode {:#o} names no file type", disk.mode)))?;
        Ok((disk, kind))
    }

    pub(crate) fn metadata_of(&self, ino: Ino, disk: &DiskInode, kind: FileKind) -> Metadata {
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let rdev = disk.device().filter(|_| device).map_or((0, 0), |number| (number.major, number.minor));
        // Count it as the kernel does, so that a file with inline contents is not taken for a hole.
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
