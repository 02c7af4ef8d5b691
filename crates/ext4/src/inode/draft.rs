//! An inode being edited: its decoded record, and storing it in the table.

use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::quota::{Allowance, Charge};
use crate::ground::state::Ground;
use crate::ground::trace::Role;
use uext4_ondisk::ext4::{
    Inode as DiskInode, InodeFlags, RoCompat, update_inode_checksum, verify_inode_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Pblk};

/// An inode for edits. They change fields of `disk` (the map's root is `disk.i_block`) and bytes of `raw` after the
/// fixed fields; [`Draft::store`] writes both.
pub(crate) struct Draft {
    pub(crate) ino: Ino,
    pub(crate) disk: DiskInode,
    /// The bytes of the record as read, including in-inode attributes.
    pub(crate) raw: Vec<u8>,
    /// The inode table block that holds the record, and its byte offset there.
    pub(crate) place: (Pblk, usize),
    /// What quota counts for the inode so far; `None` for a new one, and without quota.
    pub(crate) charged: Option<Charge>,
    /// How far quota lets it grow; `None` if no limit holds, or none has to be obeyed ([`Draft::obey_limits`]).
    pub(crate) allowance: Option<Allowance>,
    /// Attribute values in inodes of their own that it has got since it was loaded, less those it has lost.
    pub(crate) values: i64,
}

impl Draft {
    /// The record of an inode, checksum verified.
    ///
    /// # Errors
    /// [`Error::Corrupt`] naming the inode, and those of the body.
    pub(crate) fn load(blocks: &impl Blocks, ino: Ino) -> Result<Draft> {
        Draft::load_at(blocks, ino, place_of(blocks.ground(), ino)?)
    }

    /// The same for a record whose place is known.
    ///
    /// # Errors
    /// As of [`Draft::load`].
    pub(crate) fn load_at(blocks: &impl Blocks, ino: Ino, place: (Pblk, usize)) -> Result<Draft> {
        let (block, offset) = place;
        let superblock = &blocks.ground().superblock;
        let size = usize::from(superblock.geometry.inode_size());
        let truncated = || Error::from(Corrupt::from(CorruptKind::Truncated("inode table")).in_inode(ino));
        let record =
            |bytes: &[u8]| bytes.get(offset..offset + size).ok_or_else(truncated).map(<[u8]>::to_vec);
        let at_block = |corrupt: Corrupt| Error::from(corrupt.at_block(block));
        let verify = |bytes: &[u8]| {
            let record = bytes.get(offset..offset + size).ok_or_else(truncated)?;
            // The extra size decides which bytes the checksum covers, so this judges it first.
            DiskInode::decode(record, ino, superblock).map(drop).map_err(at_block)
        };
        let raw = blocks.look_for(block, whom(ino), verify, record)??;
        let disk = DiskInode::decode_known(&raw, ino, superblock).map_err(at_block)?;
        let charged = Draft::charge_of(blocks.ground(), ino, &disk);
        Ok(Draft { ino, disk, raw, place, charged, allowance: None, values: 0 })
    }

    /// The checksum seed of its blocks, on volumes with checksums.
    pub(crate) fn seed(&self, ground: &Ground) -> Option<u32> {
        let superblock = &ground.superblock;
        superblock.features.metadata_csum().then(|| self.disk.checksum_seed(self.ino, superblock))
    }

    /// The raw block count, and the flags that give its unit, after adding (or removing) this many clusters.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it has fewer; [`Limit::Map`] if the count cannot be stored; [`Error::QuotaExceeded`] if
    /// limits are obeyed.
    pub(crate) fn counted(&self, ground: &Ground, clusters: i64) -> Result<(u64, InodeFlags)> {
        let (superblock, mut flags) = (&ground.superblock, self.disk.flags);
        let geometry = &superblock.geometry;
        let block = u64::from(geometry.block_size() / 512);
        let change = clusters.unsigned_abs().saturating_mul(u64::from(geometry.cluster_blocks()) * block);
        let before = self.disk.sectors(superblock);
        let sectors = if clusters < 0 { before.checked_sub(change) } else { before.checked_add(change) };
        let wrong = Corrupt::from(CorruptKind::InodeField("blocks")).in_inode(self.ino);
        let sectors = sectors.ok_or(wrong)?;
        if let Some(allowance) = self.allowance
            && clusters > 0
            && sectors.saturating_mul(512) > allowance.bytes
        {
            return Err(allowance.exceeded());
        }
        let huge = superblock.features.ro_compat.contains(RoCompat::HUGE_FILE);
        let most: u64 = if huge { 1 << 48 } else { 1 << 32 };
        if huge && sectors >= most {
            flags |= InodeFlags::HUGE_FILE;
        }
        let raw = if huge && flags.contains(InodeFlags::HUGE_FILE) { sectors / block } else { sectors };
        if raw < most { Ok((raw, flags)) } else { Err(Error::Limit(Limit::Map)) }
    }

    /// Adds clusters of data to the inode's count, or removes them. The map's editor counts the map's own blocks.
    ///
    /// # Errors
    /// Those of [`Draft::counted`]. Nothing was changed then.
    pub(crate) fn count(&mut self, ground: &Ground, clusters: i64) -> Result<()> {
        (self.disk.blocks_raw, self.disk.flags) = self.counted(ground, clusters)?;
        Ok(())
    }

    /// Writes the record into its table, checksum included.
    ///
    /// # Errors
    /// Those of the body; [`Error::Invalid`] if a field cannot be stored. Nothing was changed then.
    pub(crate) fn store(&mut self, blocks: &mut impl Blocks) -> Result<()> {
        self.write(blocks)?;
        self.settle_quota(blocks)
    }

    /// As [`Draft::store`], with the next inode in the orphan chain, which is locked. The caller settles quota
    /// ([`Draft::settle_quota`]) once it is unlocked, since that takes locks that come before.
    ///
    /// # Errors
    /// As of [`Draft::store`].
    pub(super) fn store_next_orphan(&mut self, blocks: &mut impl Blocks, next: u32) -> Result<()> {
        self.disk.deleted = next;
        self.write(blocks)
    }

    fn write(&mut self, blocks: &mut impl Blocks) -> Result<()> {
        let (block, offset) = self.place;
        // On an error nothing of it is stored any more.
        self.disk.encode(&mut self.raw, self.ino, &blocks.ground().superblock)?;
        let end = offset + self.raw.len();
        blocks.describe(block, Role::Inode(self.ino));
        let raw = &self.raw;
        let store = |bytes: &mut [u8]| bytes.get_mut(offset..end).map(|place| place.copy_from_slice(raw));
        blocks.change_for(block, whom(self.ino), store)?;
        Ok(())
    }

    /// As [`Draft::store`], but keeps the deletion time in the table: for an inode in use that field is a link of the
    /// orphan chain, which other changes update ([`set_next_orphan`]).
    ///
    /// # Errors
    /// As of [`Draft::store`].
    pub(crate) fn store_in_chain(&mut self, blocks: &mut impl Blocks) -> Result<()> {
        let (block, offset) = self.place;
        let size = self.raw.len();
        blocks.describe(block, Role::Inode(self.ino));
        let link = |bytes: &[u8]| bytes.get(offset..).map_or(0, next_orphan);
        // As it was when the draft was loaded: it seldom changes.
        self.disk.deleted = next_orphan(&self.raw);
        loop {
            self.disk.encode(&mut self.raw, self.ino, &blocks.ground().superblock)?;
            let raw = &self.raw;
            let stored = blocks.change_for(block, whom(self.ino), |bytes| {
                let same = link(bytes) == self.disk.deleted;
                if same && let Some(place) = bytes.get_mut(offset..offset + size) {
                    place.copy_from_slice(raw);
                }
                same
            })?;
            if stored {
                return self.settle_quota(blocks);
            }
            self.disk.deleted = blocks.look(block, link)?;
        }
    }
}

/// Names the record of an inode, for which its block was found sound. Blocks of a map have names of their own.
fn whom(ino: Ino) -> u128 {
    u128::from(ino.get())
}

/// Byte offset of the deletion time in a record.
const DELETED: usize = 0x14;

fn next_orphan(record: &[u8]) -> u32 {
    let bytes = record.get(DELETED..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Sets the next inode in the orphan chain, 0 for none. Touches nothing else of the record, which may be edited at the
/// same time.
///
/// # Errors
/// [`Error::Corrupt`] naming the inode, with nothing changed. Those of the body.
pub(crate) fn set_next_orphan(blocks: &mut impl Blocks, ino: Ino, next: u32) -> Result<()> {
    let (block, offset) = place_of(blocks.ground(), ino)?;
    blocks.describe(block, Role::Inode(ino));
    let size = usize::from(blocks.ground().superblock.geometry.inode_size());
    let truncated = || Error::from(Corrupt::from(CorruptKind::Truncated("inode table")).in_inode(ino));
    loop {
        let superblock = &blocks.ground().superblock;
        let before = blocks.look(block, |bytes| bytes.get(offset..offset + size).map(<[u8]>::to_vec))?;
        let before = before.ok_or_else(truncated)?;
        verify_inode_checksum(&before, ino, superblock).map_err(|corrupt| corrupt.at_block(block))?;
        let mut after = before.clone();
        if let Some(field) = after.get_mut(DELETED..DELETED + 4) {
            field.copy_from_slice(&next.to_le_bytes());
        }
        update_inode_checksum(&mut after, ino, superblock)?;
        let stored = blocks.change(block, |bytes| {
            let place = bytes.get_mut(offset..offset + size).unwrap_or_default();
            let same = *place == *before;
            if same {
                place.copy_from_slice(&after);
            }
            same
        })?;
        if stored {
            return Ok(());
        }
    }
}

/// The inode table block that holds the record, and its byte offset there.
pub(crate) fn place_of(ground: &Ground, ino: Ino) -> Result<(Pblk, usize)> {
    let bad = || Error::from(Corrupt::from(CorruptKind::InodeNumber).in_inode(ino));
    let geometry = &ground.superblock.geometry;
    let (group, index) = geometry.group_of_inode(ino).ok_or_else(bad)?;
    let table = ground.descriptor(group)?.inode_table;
    let (block, offset) = geometry.inode_table_position(index);
    Ok((table.checked_add(u64::from(block)).ok_or_else(bad)?, offset as usize))
}
