//! The cost of an edit of a large map.

use super::sheet::{Pool, Sheet, make};
use crate::inode::draft::Draft;
use crate::map::edit;
use uext4_ondisk::ext4::Extent;
use uext4_ondisk::{Lblk, Pblk};
use uext4_testkit::{Need, Rng, needs};

#[test]
fn an_edit_among_a_million_extents_touches_its_path_only() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let made = make("ext4", 64 << 20, &["-b", "1024", "-O", "metadata_csum,^has_journal"]);
    let state = made.open();
    let mut sheet = Sheet::new(&state);
    let mut draft = Draft::load(&sheet, made.ino).unwrap();
    edit::start(&mut draft).unwrap();
    let mut pool = Pool::new(&state);
    // The location of the data does not matter here, as long as no two extents are contiguous.
    let spots: Vec<u64> = pool.free.iter().copied().take(30_000).collect();
    pool.free.retain(|block| *block > spots[29_999]);
    let data = |block: u32| Pblk(spots[block as usize * 7 % spots.len()]);
    let extent = |block| Extent { logical: Lblk(block), length: 1, physical: data(block), unwritten: false };
    for block in 0..1_000_000 {
        sheet.touched.borrow_mut().clear();
        edit::insert(&mut sheet, &mut pool, &mut draft, extent(2 * block)).unwrap();
    }
    assert_eq!(draft.disk.i_block[6], 3, "levels");
    // Appending leaves full nodes of 84 extents each.
    assert!(sheet.changed.len() < 1_000_000 / 84 * 84 / 82, "{} nodes", sheet.changed.len());
    let (mut rng, mut splits) = (Rng::new(1), [0; 5]);
    for round in 0..3000 {
        sheet.touched.borrow_mut().clear();
        sheet.calls.set(0);
        let depth = usize::from(draft.disk.i_block[6]);
        let (block, free) = (2 * rng.below(999_999) as u32, pool.free.len());
        match round % 4 {
            0 => drop(edit::insert(&mut sheet, &mut pool, &mut draft, extent(block + 1))),
            1 => edit::convert(&mut sheet, &mut pool, &mut draft, block..block + 1, round % 8 == 1).unwrap(),
            2 => drop(edit::remove(&mut sheet, &mut pool, &mut draft, block + 1..block + 2).unwrap()),
            _ => drop(edit::replace(&mut sheet, &mut pool, &mut draft, extent(block)).unwrap()),
        }
        let (touched, made) = (sheet.touched.borrow().len(), free.saturating_sub(pool.free.len()));
        assert!(touched <= depth + made, "{touched} blocks, {made} of them new, for block {block}");
        // One that is not done in place walks once more.
        let most = 3 * depth + 2 * made;
        assert!(sheet.calls.get() <= most, "{} calls for block {block}", sheet.calls.get());
        splits[made] += 1;
    }
    // All nodes are full at first: an insert splits a leaf, and the 142 nodes above those once each.
    assert!(splits[1] > 200, "{splits:?}");
    assert!(splits[2..].iter().sum::<usize>() <= 150, "{splits:?}");
}
