//! The limits of maps and counts.

use super::sheet::{Pool, Sheet, make};
use crate::ground::error::{Error, Limit};
use crate::inode::draft::Draft;
use crate::map::edit;
use uext4_ondisk::ext4::{
    Extent, ExtentIndex, InodeFlags, encode_extent_index, encode_extent_leaf, update_extent_checksum,
};
use uext4_ondisk::{CorruptKind, Lblk, Pblk};
use uext4_testkit::{Need, needs};

/// Entries of a node in a block of 1 KiB.
const FULL: u32 = 84;

/// A path of full nodes through a tree of maximal depth. Everything beside the path is never read.
#[test]
fn a_tree_has_five_levels_at_most() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let made = make("ext4", 16 << 20, &["-b", "1024", "-O", "metadata_csum,^has_journal"]);
    let state = made.open();
    let mut sheet = Sheet::new(&state);
    let mut draft = Draft::load(&sheet, made.ino).unwrap();
    let mut pool = Pool::new(&state);
    let data = pool.run(0, 1000).unwrap().0;
    let seed = draft.seed(&state).unwrap();
    let extent = |logical: u32| Extent {
        logical: Lblk(logical),
        length: 1,
        physical: Pblk(data + 2 * u64::from(logical)),
        unwritten: false,
    };
    let mut node = vec![0; 1024];
    let extents: Vec<_> = (0..=FULL).filter(|block| *block != FULL - 1).map(extent).collect();
    encode_extent_leaf(&mut node, 0, &extents).unwrap();
    let (mut child, mut span) = (0, FULL + 2);
    for depth in 1..=5 {
        update_extent_checksum(&mut node, seed).unwrap();
        child = pool.run(0, 1).unwrap().0;
        sheet.changed.insert(child, node.clone());
        let others = if depth < 5 { FULL } else { 4 };
        let index = |at: u32| {
            let logical = if depth < 5 { at * span } else { at.min(1) * span + at };
            ExtentIndex { logical: Lblk(logical), child: Pblk(child) }
        };
        let indexes: Vec<_> = (0..others).map(index).collect();
        match depth {
            5 => encode_extent_index(&mut draft.disk.i_block, 5, 0, &indexes).unwrap(),
            _ => encode_extent_index(&mut node, depth, 0, &indexes).unwrap(),
        }
        span = span.saturating_mul(FULL);
    }
    assert!(child > 0);
    let before = (sheet.changed.clone(), pool.free.clone(), draft.disk.clone());
    let full = edit::insert(&mut sheet, &mut pool, &mut draft, extent(FULL - 1));
    assert!(matches!(full, Err(Error::Limit(Limit::Map))), "{full:?}");
    assert!(before == (sheet.changed.clone(), pool.free.clone(), draft.disk.clone()));
    // Edits that need no more entries still fit.
    draft.disk.blocks_raw = 100;
    edit::convert(&mut sheet, &mut pool, &mut draft, 0..1, true).unwrap();
    assert!(edit::leaf(&sheet, &draft, Lblk(0)).unwrap().find(Lblk(0)).unwrap().unwritten);
}

#[test]
fn clusters_are_counted_as_far_as_numbers_go() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for (features, most) in [("huge_file,^has_journal", 1_u64 << 48), ("^huge_file,^has_journal", 1 << 32)] {
        let made = make("ext4", 16 << 20, &["-b", "4096", "-O", features]);
        let state = made.open();
        let sheet = Sheet::new(&state);
        let mut draft = Draft::load(&sheet, made.ino).unwrap();
        draft.count(&state, 3).unwrap();
        assert_eq!(draft.disk.blocks_raw, 24);
        draft.count(&state, -2).unwrap();
        assert_eq!(draft.disk.blocks_raw, 8);
        match draft.count(&state, -2).unwrap_err() {
            Error::Corrupt(corrupt) => assert_eq!(corrupt.kind, CorruptKind::InodeField("blocks")),
            other => panic!("{other:?}"),
        }
        assert_eq!(draft.disk.blocks_raw, 8);
        draft.disk.blocks_raw = most - 8;
        let more = draft.count(&state, 1);
        if most == 1 << 48 {
            // From here on in units of blocks.
            more.unwrap();
            assert!(draft.disk.flags.contains(InodeFlags::HUGE_FILE));
            assert_eq!((draft.disk.blocks_raw, draft.disk.sectors(&state.superblock)), (most / 8, most));
            draft.disk.blocks_raw = most - 1;
        } else {
            assert!(matches!(more, Err(Error::Limit(Limit::Map))), "{more:?}");
        }
        let before = draft.disk.clone();
        let more = draft.count(&state, 1);
        assert!(matches!(more, Err(Error::Limit(Limit::Map))), "{more:?}");
        assert_eq!(before, draft.disk);
    }
}

/// Blocks that move within the file are not reported as free.
#[test]
fn blocks_that_move_within_a_file_stay_its_own() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for (kind, args) in [("ext4", &["-b", "1024", "-O", "^has_journal"][..]), ("ext2", &["-b", "1024"])] {
        let made = make(kind, 16 << 20, args);
        let state = made.open();
        let mut sheet = Sheet::new(&state);
        let mut draft = Draft::load(&sheet, made.ino).unwrap();
        edit::start(&mut draft).unwrap();
        let mut pool = Pool::new(&state);
        let data = pool.run(0, 100).unwrap().0;
        let extent = |logical, length, block| Extent {
            logical: Lblk(logical),
            length,
            physical: Pblk(data + block),
            unwritten: false,
        };
        edit::insert(&mut sheet, &mut pool, &mut draft, extent(10, 20, 40)).unwrap();
        for (new, gone) in [
            // The same blocks again; moved by one; from the back over the front; elsewhere.
            (extent(10, 20, 40), vec![]),
            (extent(10, 20, 41), vec![extent(10, 1, 40)]),
            (extent(10, 20, 38), vec![extent(27, 3, 58)]),
            (extent(12, 4, 43), vec![extent(12, 3, 40)]),
            (extent(5, 40, 0), vec![extent(10, 2, 38), extent(12, 4, 43), extent(16, 14, 44)]),
        ] {
            let unmapped = edit::replace(&mut sheet, &mut pool, &mut draft, new).unwrap();
            let mut expected: Vec<(u32, u64)> = Vec::new();
            for part in &gone {
                expected
                    .extend((0..part.length).map(|n| (part.logical.0 + n, part.physical.0 + u64::from(n))));
            }
            expected.retain(|(_, physical)| {
                !(new.physical.0..new.physical.0 + u64::from(new.length)).contains(physical)
            });
            let told: Vec<(u32, u64)> = unmapped
                .iter()
                .flat_map(|part| {
                    (0..part.length).map(|n| (part.logical.0 + n, part.physical.0 + u64::from(n)))
                })
                .collect();
            assert_eq!(told, expected, "{kind}: {new:?}");
            let leaf = edit::leaf(&sheet, &draft, Lblk(new.logical.0)).unwrap();
            assert_eq!(leaf.find(new.logical).unwrap().physical_of(new.logical), Some(new.physical));
        }
    }
}

/// An extent is limited by its length field, and an unwritten one is a block shorter.
#[test]
fn extents_grow_together_as_far_as_one_can_be_long() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let made = make("ext4", 300 << 20, &["-b", "4096", "-O", "metadata_csum,^has_journal"]);
    let state = made.open();
    let mut sheet = Sheet::new(&state);
    let mut draft = Draft::load(&sheet, made.ino).unwrap();
    let mut pool = Pool::new(&state);
    for (unwritten, length, most) in [(false, 32_767, 32_768), (true, 32_766, 32_767)] {
        edit::start(&mut draft).unwrap();
        let extent = |logical, length| Extent {
            logical: Lblk(logical),
            length,
            physical: Pblk(33_500 + u64::from(logical)),
            unwritten,
        };
        let lengths = |sheet: &Sheet<'_>, draft: &Draft| -> Vec<u32> {
            let leaf = edit::leaf(sheet, draft, Lblk(0)).unwrap();
            leaf.extents.iter().map(|extent| extent.length).collect()
        };
        edit::insert(&mut sheet, &mut pool, &mut draft, extent(0, length)).unwrap();
        edit::insert(&mut sheet, &mut pool, &mut draft, extent(length, 1)).unwrap();
        assert_eq!(lengths(&sheet, &draft), [most]);
        edit::insert(&mut sheet, &mut pool, &mut draft, extent(most, 1)).unwrap();
        assert_eq!(lengths(&sheet, &draft), [most, 1]);
        // There and back. An extent too long to be unwritten becomes two.
        edit::convert(&mut sheet, &mut pool, &mut draft, 0..most, !unwritten).unwrap();
        let there = if unwritten { [most, 1].to_vec() } else { [32_767, 1, 1].to_vec() };
        assert_eq!(lengths(&sheet, &draft), there);
        edit::convert(&mut sheet, &mut pool, &mut draft, 0..most, unwritten).unwrap();
        assert_eq!(lengths(&sheet, &draft), [most, 1]);
    }
}

/// Former nodes are reported as freed, unless they are reused: an edit that needs nodes first takes those that it
/// frees.
#[test]
fn nodes_that_go_are_told_and_used_again() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for (kind, args) in [("ext4", &["-b", "1024", "-O", "^has_journal"][..]), ("ext2", &["-b", "1024"])] {
        let made = make(kind, 16 << 20, args);
        let state = made.open();
        let mut sheet = Sheet::new(&state);
        let mut draft = Draft::load(&sheet, made.ino).unwrap();
        edit::start(&mut draft).unwrap();
        let mut pool = Pool::new(&state);
        let data = pool.run(0, 4000).unwrap().0;
        let extent = |logical: u32, length| Extent {
            logical: Lblk(logical),
            length,
            physical: Pblk(data + u64::from(logical)),
            unwritten: false,
        };
        for at in (0..3 * FULL).chain(8 * FULL..9 * FULL) {
            edit::insert(&mut sheet, &mut pool, &mut draft, extent(4 * at, 3)).unwrap();
        }
        let nodes = |sheet: &Sheet<'_>, draft: &Draft| {
            let mut nodes = std::collections::BTreeSet::new();
            let mut note = |part| {
                nodes.extend(if let edit::Part::Node(node) = part { Some(node.get()) } else { None });
                Ok(())
            };
            edit::walk(sheet, draft, &mut note).unwrap();
            nodes
        };
        let (before, free) = (nodes(&sheet, &draft), pool.free.len());
        if kind == "ext4" {
            assert_eq!(before.len(), 4);
            // From the middle of the first extent of a full leaf over all of the next leaf: the first extent is split.
            let new = Extent { physical: Pblk(data + 3000), ..extent(4 * FULL - 3, 4 * FULL + 3) };
            pool.allowed = 0;
            edit::insert(&mut sheet, &mut pool, &mut draft, extent(4 * FULL - 1, 1)).unwrap();
            edit::replace(&mut sheet, &mut pool, &mut draft, new).unwrap();
            pool.allowed = usize::MAX;
            let now = nodes(&sheet, &draft);
            assert!(now.is_subset(&before), "{before:?}, {now:?}");
            assert!(sheet.freed.iter().copied().eq(before.difference(&now).copied()), "{:?}", sheet.freed);
            assert_eq!(pool.free.len() - free, before.len() - now.len());
        }
        edit::remove(&mut sheet, &mut pool, &mut draft, 0..u32::MAX).unwrap();
        assert_eq!((sheet.freed.clone(), pool.free.len()), (before.clone(), free + before.len()));
        assert!(nodes(&sheet, &draft).is_empty() && draft.disk.blocks_raw == 0);
    }
}

/// A map that fits into the inode moves back there, and the generation of a tree stays.
#[test]
fn a_tree_goes_back_into_the_inode() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let made = make("ext4", 16 << 20, &["-b", "1024", "-O", "^has_journal"]);
    let state = made.open();
    let mut sheet = Sheet::new(&state);
    let mut draft = Draft::load(&sheet, made.ino).unwrap();
    encode_extent_leaf(&mut draft.disk.i_block, 77, &[]).unwrap();
    let mut pool = Pool::new(&state);
    let data = pool.run(0, 1000).unwrap().0;
    let (depth, levels) = (|draft: &Draft| draft.disk.i_block[6], [(5, 1), (4 * FULL + 1, 2)]);
    for (count, deep) in levels {
        for at in 0..count {
            let physical = Pblk(data + 2 * u64::from(at));
            let extent = Extent { logical: Lblk(2 * at), length: 1, physical, unwritten: false };
            edit::insert(&mut sheet, &mut pool, &mut draft, extent).unwrap();
        }
        assert_eq!((depth(&draft), draft.disk.i_block[8]), (deep, 77));
        edit::remove(&mut sheet, &mut pool, &mut draft, 10..u32::MAX).unwrap();
        assert_eq!(depth(&draft), 1, "five do not fit");
        edit::remove(&mut sheet, &mut pool, &mut draft, 8..9).unwrap();
        assert_eq!((depth(&draft), draft.disk.i_block[8], draft.disk.blocks_raw), (0, 77, 0));
        edit::remove(&mut sheet, &mut pool, &mut draft, 0..8).unwrap();
    }
}
