//! The journal: an empty log in the middle of the volume.

use super::error::{Error, Result};
use super::files::regular;
use super::layout::Layout;
use super::map;
use super::options::Options;
use super::sizes::JournalSize;
use super::tables::first_block;
use uext4_ondisk::ext4::Incompat;
use uext4_ondisk::jbd2::{JournalFeatures, JournalIncompat, JournalSuperblock, SuperblockVersion};
use uext4_ondisk::{Group, Ino};

/// Type of the superblock's backup of the journal inode: map and size.
const BACKUP_BLOCKS: u8 = 1;

/// Places the journal and writes the superblock of an empty log.
pub(super) fn place(layout: &mut Layout, options: &Options, size: JournalSize) -> Result<()> {
    let blocks = size.blocks;
    let geometry = layout.superblock.geometry;
    let free = geometry.blocks_count() - layout.space.taken();
    let asked = options.extended.journal_size.or(options.extended.fast_commit_size).is_some();
    if u64::from(blocks) > if asked { free / 2 } else { free } {
        let most = if asked { "more than half" } else { "more" };
        let reason = format!("a journal of {blocks} blocks would take {most}");
        return Err(Error::TooSmall { have: format!("{free} free blocks"), reason });
    }
    let (count, block) = (u64::from(blocks), geometry.block_size());
    let start = first_block(&geometry, Group(0));
    let mapped = if layout.superblock.features.incompat.contains(Incompat::EXTENTS) {
        let goal = if options.extended.packed_meta_blocks { 0 } else { middle(layout) };
        let seed = layout.seed(Ino::JOURNAL);
        map::extents(&mut layout.space, goal, count, block, seed)?
    } else {
        map::pointers(&mut layout.space, start, count, block)?
    };
    let inode = regular(layout, &mapped, count);
    layout.add(Ino::JOURNAL, &inode)?;
    let place = &mut layout.superblock.journal;
    (place.inode, place.backup_type) = (Ino::JOURNAL.get(), BACKUP_BLOCKS);
    for (word, bytes) in place.backup.iter_mut().zip(mapped.i_block.chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    place.backup[15] = (inode.size >> 32) as u32;
    place.backup[16] = inode.size as u32;
    let mut bytes = vec![0; block as usize];
    empty_log(layout, size).encode(&mut bytes)?;
    let first = mapped.blocks().next().ok_or_else(map::full)?;
    if !options.extended.lazy_journal_init {
        // An old block that looks like a block of this log could be replayed after a crash.
        layout.zeros.extend(&mapped.runs);
    }
    layout.blocks.insert(first, bytes);
    layout.blocks.extend(mapped.nodes);
    Ok(())
}

fn empty_log(layout: &Layout, size: JournalSize) -> JournalSuperblock {
    JournalSuperblock {
        version: SuperblockVersion::V2,
        block_size: layout.superblock.geometry.block_size(),
        blocks: size.blocks,
        first: 1,
        sequence: 1,
        start: 0,
        errno: 0,
        features: JournalFeatures::default(),
        ignored: JournalIncompat::empty(),
        uuid: layout.superblock.uuid,
        users: 1,
        user: [0; 16],
        max_transaction: 0,
        max_transaction_data: 0,
        checksum_type: 0,
        fast_commit_blocks_raw: size.fast_commit,
        head: 0,
    }
}

/// The best place for the journal: near the middle, in the group with the most free blocks.
fn middle(layout: &Layout) -> u64 {
    let geometry = layout.superblock.geometry;
    let log = u32::from(layout.superblock.log_groups_per_flex);
    let half = (geometry.blocks_count() - u64::from(geometry.first_data_block())) / 2;
    let first = u64::from(geometry.first_data_block());
    let group = (half.saturating_sub(first) / u64::from(geometry.blocks_per_group().max(1))) as u32;
    let groups = geometry.group_count();
    let free = |group: u32| layout.space.free_in(Group(group));
    let (start, middle) = if log > 0 && group > 1 << log {
        let whole = group & !((1 << log) - 1);
        let open = (whole..groups).find(|&group| free(group) > 0).unwrap_or(0);
        (open, open)
    } else {
        (group.saturating_sub(1), group)
    };
    let end = (middle + 1).min(groups - 1);
    let mut best = start;
    for group in start + 1..=end {
        if free(group) > free(best) {
            best = group;
        }
    }
    first_block(&geometry, Group(best))
}
