//! The list of bad blocks may name blocks of inode tables, and backups of superblock and descriptors: their places are
//! fixed, and the volume does without them. e2fsck treats all inodes in such a block as used, and reads none of them.

use crate::map::{MapWalk, Sink};
use crate::orphans;
use crate::report::Findings;
use crate::shared::{INODE_TABLE, SUPERBLOCK, Shared};
use uext4::Result;
use uext4_ondisk::ext4::{Extent, I_BLOCK_SIZE};
use uext4_ondisk::{Group, Ino};

/// Finds the bad blocks of inode tables. Pass 1 checks the rest of the list.
pub(crate) fn collect(shared: &Shared<'_>) -> Result<()> {
    let mut reader = shared.reader()?;
    let Some(inode) = orphans::load(shared, &mut reader, Ino::BAD_BLOCKS)? else { return Ok(()) };
    if inode.i_block == [0; I_BLOCK_SIZE] || inode.has_inline_data() {
        return Ok(());
    }
    let mut tables = Tables { shared, left: shared.sb.geometry.blocks_count().saturating_mul(2) };
    // Pass 1 checks the map with all others.
    let mut quiet = Findings::new(0);
    MapWalk::new(shared, &mut reader, &mut quiet, Ino::BAD_BLOCKS).all(&inode, &mut tables)?;
    shared.renew_nodes();
    Ok(())
}

struct Tables<'s, 'd> {
    shared: &'s Shared<'d>,
    /// Budget of blocks to check: an honest list names each once.
    left: u64,
}

impl Sink for Tables<'_, '_> {
    fn node(&mut self, _block: u64) {}

    fn extent(&mut self, extent: Extent) {
        let (start, length) = (extent.physical.get(), u64::from(extent.length));
        let Some(left) = self.left.checked_sub(length) else { return };
        self.left = left;
        let (end, table) = (start + length, u64::from(self.shared.sb.geometry.inode_table_blocks()));
        let zones = &self.shared.zones;
        let before = zones[..zones.partition_point(|zone| zone.start < end)].iter().rev();
        for zone in
            before.take_while(|zone| zone.start + table > start).filter(|zone| zone.what == INODE_TABLE)
        {
            let (from, to) = (zone.start.max(start), zone.end.min(end));
            self.shared.bad_tables.set(from, to.saturating_sub(from), None);
        }
    }
}

/// The backup of superblock or descriptors that a block is a part of: whose, and whether it is the superblock.
pub(crate) fn backup_at(shared: &Shared<'_>, block: u64) -> Option<(Group, bool)> {
    let zone = shared.zone_at(block, 1).filter(|zone| zone.what == SUPERBLOCK && zone.group != Group(0))?;
    let geometry = &shared.sb.geometry;
    let first = geometry.group_first_block(zone.group)?.get();
    let descriptors = first + u64::from(geometry.descriptor_blocks());
    (geometry.has_superblock(zone.group) && block <= descriptors).then_some((zone.group, block == first))
}
