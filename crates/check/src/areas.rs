//! To which parts of a volume changed bytes of its device belong.

use crate::compare::NextChange;
use crate::map::{MapWalk, Sink};
use crate::orphans;
use crate::read::Reader;
use crate::report::Findings;
use crate::shared::Shared;
use std::ops::Range;
use uext4::{Result, Volume};
use uext4_ondisk::ext4::{Extent, GroupDescriptor};
use uext4_ondisk::{Group, Pblk};

/// Bytes of group descriptors that are read at once.
const DESCRIPTORS: usize = 64 << 10;

/// Changed bytes of each part of a volume. Blocks of files, directories, maps and extended attributes, and free blocks,
/// are what is left of all changed bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Areas {
    /// Superblocks and group descriptors, and their copies.
    pub superblocks: u64,
    /// Block bitmaps.
    pub block_bitmaps: u64,
    /// Inode bitmaps.
    pub inode_bitmaps: u64,
    /// Inode tables.
    pub inode_tables: u64,
    /// The journal inside the volume.
    pub journal: u64,
}

impl Areas {
    /// Of a volume, whose device may have other bytes in the ranges of `next_change`.
    ///
    /// # Errors
    /// Those of reading group descriptors and the map of the journal.
    pub fn of(volume: &Volume, next_change: &NextChange<'_>) -> Result<Areas> {
        let (sb, geometry) = (volume.superblock(), &volume.superblock().geometry);
        let block = u64::from(geometry.block_size());
        let changed = |start: Pblk, blocks: u64| {
            let start = start.get().saturating_mul(block);
            changed_in(start..start.saturating_add(blocks.saturating_mul(block)), next_change)
        };
        let mut areas = Areas::default();
        let mut reader =
            Reader::new(&**volume.device(), geometry.block_size(), geometry.blocks_count(), DESCRIPTORS)?;
        for group in (0..geometry.group_count()).map(Group) {
            if let Some(first) = geometry.group_first_block(group) {
                let mut base = u64::from(geometry.base_metadata_blocks(group));
                // With blocks of 1 KiB in clusters the volume starts at block 0, and its superblock at block 1.
                base += u64::from(group == Group(0) && geometry.superblock_position().0 > first);
                areas.superblocks += changed(first, base);
            }
            let Some((at, offset)) = geometry.descriptor_position(group) else { continue };
            let bytes = reader.block(at.get(), u64::MAX / 2)?;
            let end = offset as usize + usize::from(geometry.desc_size());
            let Some(bytes) = bytes.get(offset as usize..end) else { continue };
            // A damaged one leads nowhere: what it should lead to is counted as the rest.
            let Ok(descriptor) = GroupDescriptor::decode(bytes, group, sb) else { continue };
            areas.block_bitmaps += changed(descriptor.block_bitmap, 1);
            areas.inode_bitmaps += changed(descriptor.inode_bitmap, 1);
            areas.inode_tables += changed(descriptor.inode_table, geometry.inode_table_blocks().into());
            if group == Group(0) {
                areas.journal = journal(volume, descriptor, &mut reader, next_change)?;
            }
        }
        Ok(areas)
    }

    /// All of them.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.superblocks + self.block_bitmaps + self.inode_bitmaps + self.inode_tables + self.journal
    }
}

/// Changed bytes of the journal. Its map is walked as a check does, since no file may have its blocks.
fn journal(
    volume: &Volume,
    descriptor: GroupDescriptor,
    reader: &mut Reader<'_>,
    next_change: &NextChange<'_>,
) -> Result<u64> {
    let sb = volume.superblock();
    let Some(ino) = sb.journal_inode() else { return Ok(0) };
    let mut shared = Shared::new(&**volume.device(), sb, 0, 1);
    shared.groups = vec![Some(descriptor)];
    let Some(inode) = orphans::load(&shared, reader, ino)? else { return Ok(0) };
    let mut sum = Sum { block: sb.geometry.block_size().into(), bytes: 0, next_change };
    let (mut findings, mut nodes) = (Findings::new(0), shared.reader()?);
    MapWalk::new(&shared, &mut nodes, &mut findings, ino).all(&inode, &mut sum)?;
    Ok(sum.bytes)
}

/// Adds up changed bytes of the blocks of a map.
struct Sum<'c> {
    block: u64,
    bytes: u64,
    next_change: &'c NextChange<'c>,
}

impl Sum<'_> {
    fn blocks(&mut self, first: u64, count: u64) {
        let start = first.saturating_mul(self.block);
        let end = start.saturating_add(count.saturating_mul(self.block));
        self.bytes += changed_in(start..end, self.next_change);
    }
}

impl Sink for Sum<'_> {
    fn node(&mut self, block: u64) {
        self.blocks(block, 1);
    }

    fn extent(&mut self, extent: Extent) {
        self.blocks(extent.physical.get(), extent.length.into());
    }
}

/// Changed bytes in a range of the device.
fn changed_in(range: Range<u64>, next_change: &NextChange<'_>) -> u64 {
    let (mut bytes, mut pos) = (0, range.start);
    while let Some(change) = next_change(pos).filter(|change| change.start < range.end) {
        bytes += change.end.min(range.end) - change.start.max(pos);
        pos = change.end;
    }
    bytes
}
