//! Edits of damaged maps: a typed error that names the inode, and nothing changes.

use super::sheet::{Pool, Sheet, make};
use crate::ground::error::{Error, Result};
use crate::inode::Ext4State;
use crate::inode::draft::Draft;
use crate::map::edit::{self, Part};
use std::collections::BTreeMap;
use uext4_ondisk::ext4::{Extent, ExtentNode, NodeLimits, PointerBlock, update_extent_checksum};
use uext4_ondisk::{CorruptKind, Lblk, Pblk};
use uext4_testkit::{Need, Rng, needs};

const CSUM: &[&str] = &["-b", "1024", "-O", "metadata_csum,^has_journal"];
const PLAIN: &[&str] = &["-b", "1024", "-O", "^metadata_csum,^has_journal"];

/// The logical block of the edits, and the hole after it.
const TARGET: u32 = 4000;

struct Trial<'v> {
    sheet: Sheet<'v>,
    pool: Pool,
    draft: Draft,
    /// A free block of data.
    spare: u64,
}

impl<'v> Trial<'v> {
    fn new(state: &'v Ext4State, ino: uext4_ondisk::Ino, mapped: impl Iterator<Item = u32>) -> Trial<'v> {
        let sheet = Sheet::new(state);
        let mut draft = Draft::load(&sheet, ino).unwrap();
        edit::start(&mut draft).unwrap();
        let mut pool = Pool::new(state);
        let spare = pool.run(0, 1).unwrap().0;
        let mut trial = Trial { sheet, pool, draft, spare };
        for block in mapped {
            let physical = trial.pool.run(0, 1).unwrap().0;
            trial
                .edit(|sheet, pool, draft| edit::insert(sheet, pool, draft, extent(block, physical)))
                .unwrap();
        }
        trial
    }

    fn edit<T>(&mut self, run: impl FnOnce(&mut Sheet<'v>, &mut Pool, &mut Draft) -> Result<T>) -> Result<T> {
        self.sheet.touched.borrow_mut().clear();
        run(&mut self.sheet, &mut self.pool, &mut self.draft)
    }

    /// Runs one of the edits around the target: mapping the hole, remapping, unmapping, converting.
    fn edits(&mut self, which: usize) -> Result<()> {
        let spare = self.spare;
        self.edit(|sheet, pool, draft| match which {
            0 => edit::insert(sheet, pool, draft, extent(TARGET + 1, spare)),
            1 => edit::replace(sheet, pool, draft, extent(TARGET, spare)).map(drop),
            2 => edit::remove(sheet, pool, draft, TARGET..TARGET + 1).map(drop),
            3 if !draft.disk.uses_extents() => edit::convert(sheet, pool, draft, TARGET..TARGET + 1, false),
            3 => edit::convert(sheet, pool, draft, TARGET..TARGET + 1, true),
            _ => edit::remove(sheet, pool, draft, 0..u32::MAX).map(drop),
        })
    }

    /// Everything that an edit could change.
    fn all(&self) -> (BTreeMap<u64, Vec<u8>>, usize, usize, uext4_ondisk::ext4::Inode) {
        (self.sheet.changed.clone(), self.sheet.changes, self.pool.free.len(), self.draft.disk.clone())
    }

    /// Every edit of these fails with one of the kinds and changes nothing.
    #[track_caller]
    fn assert_refused(&mut self, edits: std::ops::Range<usize>, kinds: &[CorruptKind], what: &str) {
        let before = self.all();
        for which in edits {
            match self.edits(which).unwrap_err() {
                Error::Corrupt(corrupt) => {
                    assert!(kinds.contains(&corrupt.kind), "{what}, edit {which}: {corrupt}");
                    assert_eq!(corrupt.place.inode, Some(self.draft.ino), "{what}: {corrupt}");
                }
                other => panic!("{what}, edit {which}: {other:?}"),
            }
            assert!(before == self.all(), "{what}: edit {which} changed something");
        }
    }

    /// Changes a node of the map, or the root if there is no block, and updates its checksum unless that is the fault.
    fn patch(&mut self, block: Option<u64>, at: usize, bytes: &[u8], seal: bool) {
        let seed = self.draft.seed(self.sheet.state);
        let Some(block) = block else {
            self.draft.disk.i_block[at..at + bytes.len()].copy_from_slice(bytes);
            return;
        };
        let node = self.sheet.changed.get_mut(&block).unwrap();
        node[at..at + bytes.len()].copy_from_slice(bytes);
        if let (Some(seed), true) = (seed, seal) {
            // A damaged head may leave no place for a checksum.
            let _no_place = update_extent_checksum(node, seed);
        }
    }

    /// Runs `work` on a damaged map and repairs it afterwards.
    fn damaged(&mut self, damage: impl FnOnce(&mut Self), work: impl FnOnce(&mut Self)) {
        let (changed, disk) = (self.sheet.changed.clone(), self.draft.disk.clone());
        damage(self);
        work(self);
        (self.sheet.changed, self.draft.disk) = (changed, disk);
    }
}

fn extent(logical: u32, physical: u64) -> Extent {
    Extent { logical: Lblk(logical), length: 1, physical: Pblk(physical), unwritten: false }
}

/// The blocks on the path to the target, each with the index of the entry that leads on, and the number of its entries.
fn path(trial: &Trial<'_>) -> Vec<(Option<u64>, usize, usize)> {
    let mut limits = NodeLimits::root(&trial.sheet.state.superblock);
    let (mut at, mut way) = (None, Vec::new());
    loop {
        let bytes = match at {
            None => trial.draft.disk.i_block.to_vec(),
            Some(block) => trial.sheet.read(block),
        };
        let node = match at {
            None => ExtentNode::root(bytes[..].try_into().unwrap(), limits).unwrap(),
            Some(_) => ExtentNode::block(&bytes, limits, trial.draft.seed(trial.sheet.state)).unwrap(),
        };
        let Some(position) = node.find_index(Lblk(TARGET)) else {
            way.push((at, node.find_extent(Lblk(TARGET)).unwrap(), node.len()));
            return way;
        };
        way.push((at, position, node.len()));
        limits = node.child_limits(position).unwrap();
        at = node.index(position).map(|index| index.child.get());
    }
}

#[test]
fn every_field_of_every_node_on_the_path() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for args in [CSUM, PLAIN] {
        let made = make("ext4", 64 << 20, args);
        let state = made.open();
        // Two levels of index nodes, none of which is the first or last child on the path to the target.
        let mut trial = Trial::new(&state, made.ino, (0..9000).map(|block| 2 * block));
        let way = path(&trial);
        assert_eq!(way.len(), 3, "{way:?}");
        for (level, (block, position, count)) in way.into_iter().enumerate() {
            let is_leaf = level == 2;
            check_head(&mut trial, block, is_leaf);
            if block.is_some() {
                assert!(position > 1 && position + 2 < count, "{position} of {count}");
                check_order(&mut trial, block, position, is_leaf);
            }
            if args == CSUM
                && let Some(node) = block
            {
                let tail = 12 + 12 * 84;
                let sum = trial.sheet.read(node)[tail] ^ 1;
                trial.damaged(
                    |trial| trial.patch(block, tail, &[sum], false),
                    |trial| trial.assert_refused(0..5, &[CorruptKind::ExtentChecksum], "checksum"),
                );
            }
        }
        // All of this is undone.
        [0, 1, 3, 2, 4].into_iter().for_each(|which| trial.edits(which).unwrap());
    }
}

/// Damage to the head of a node.
fn check_head(trial: &mut Trial<'_>, block: Option<u64>, is_leaf: bool) {
    use CorruptKind::{ExtentCapacity, ExtentDepth, ExtentEntries, ExtentMagic};
    let fields: [(usize, u16, &[CorruptKind]); 6] = [
        (0, 0xf30b, &[ExtentMagic]),
        (2, 0xffff, &[ExtentEntries]),
        (4, 0, &[ExtentCapacity]),
        (4, 0x7fff, &[ExtentCapacity]),
        (6, 6, &[ExtentDepth]),
        (6, 3, &[ExtentDepth]),
    ];
    for (at, value, kinds) in fields {
        trial.damaged(
            |trial| trial.patch(block, at, &value.to_le_bytes(), true),
            |trial| trial.assert_refused(0..5, kinds, &format!("{value:#x} at {at} of {block:?}")),
        );
    }
    if !is_leaf {
        trial.damaged(
            |trial| trial.patch(block, 2, &[0, 0], true),
            |trial| trial.assert_refused(0..5, &[ExtentEntries], "an index node without entries"),
        );
    }
}

/// Damage to the entry that leads on, or to the target's.
fn check_order(trial: &mut Trial<'_>, block: Option<u64>, position: usize, is_leaf: bool) {
    use CorruptKind::{
        ExtentDepth, ExtentEmpty, ExtentMagic, ExtentOrder, ExtentPhysical, ExtentRange, SystemZone,
    };
    let entry = 12 + 12 * position;
    let mut try_one = |at: usize, bytes: &[u8], edits, kinds: &[CorruptKind], what: &str| {
        trial.damaged(
            |trial| trial.patch(block, at, bytes, true),
            |trial| trial.assert_refused(edits, kinds, what),
        );
    };
    try_one(entry, &0_u32.to_le_bytes(), 0..5, &[ExtentOrder, ExtentRange], "a key before the one before");
    try_one(entry, &17_000_u32.to_le_bytes(), 0..5, &[ExtentOrder, ExtentRange], "a key behind the next");
    try_one(12, &u32::MAX.to_le_bytes(), 0..5, &[ExtentOrder, ExtentRange], "a key that is none");
    if is_leaf {
        try_one(entry + 4, &[0, 0], 0..5, &[ExtentEmpty], "an extent without blocks");
        try_one(entry + 4, &200_u16.to_le_bytes(), 0..5, &[ExtentOrder, ExtentRange], "an overlap");
        try_one(entry + 6, &[1, 0], 0..5, &[ExtentPhysical], "an extent behind the volume");
        try_one(entry + 8, &[2, 0, 0, 0], 1..5, &[SystemZone], "an extent in a system zone");
        return;
    }
    try_one(entry + 8, &[1, 0], 0..5, &[ExtentPhysical], "a child behind the volume");
    try_one(entry + 4, &[2, 0, 0, 0], 0..5, &[SystemZone], "a child in a system zone");
    let own = (block.unwrap() as u32).to_le_bytes();
    let node = trial.sheet.read(block.unwrap());
    let other = node[entry + 12 + 4..][..4].to_vec();
    let data = (trial.spare as u32).to_le_bytes();
    let mut try_child = |child: &[u8], kinds: &[CorruptKind], what: &str| {
        trial.damaged(
            |trial| trial.patch(block, entry + 4, child, true),
            |trial| trial.assert_refused(0..5, kinds, what),
        );
    };
    try_child(&own, &[ExtentDepth], "a child that is its parent");
    try_child(&other, &[ExtentRange], "the child of another entry");
    try_child(&data, &[ExtentMagic], "a child that is no node");
}

/// A key that differs from its child's, which the kernel refuses too.
#[test]
fn an_entry_names_where_its_child_begins() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let made = make("ext4", 16 << 20, PLAIN);
    let state = made.open();
    let mut trial = Trial::new(&state, made.ino, (1500..2500).map(|block| 2 * block));
    let way = path(&trial);
    assert_eq!(way.len(), 3);
    let (block, position, _) = way[1];
    let at = 12 + 12 * position;
    let node = trial.sheet.read(block.unwrap());
    let key = u32::from_le_bytes(node[at..at + 4].try_into().unwrap());
    trial.damaged(
        |trial| trial.patch(block, at, &(key - 1).to_le_bytes(), true),
        |trial| trial.assert_refused(0..5, &[CorruptKind::ExtentRange], "a key before its child's"),
    );
}

#[test]
fn data_that_is_a_node_and_a_count_that_is_too_small() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let made = make("ext4", 64 << 20, PLAIN);
    let state = made.open();
    let mut trial = Trial::new(&state, made.ino, (0..9000).map(|block| 2 * block));
    let way = path(&trial);
    for (node, ..) in &way[1..] {
        let node = node.unwrap() as u32;
        trial.damaged(
            |trial| trial.patch(way[2].0, 12 + 12 * way[2].1 + 8, &node.to_le_bytes(), true),
            |trial| trial.assert_refused(1..5, &[edit::CYCLE], "an extent that is a node of its own path"),
        );
    }
    // An empty leaf fits anywhere.
    let (index, position, _) = way[1];
    let leaf = (way[2].0.unwrap() as u32).to_le_bytes();
    trial.damaged(
        |trial| {
            trial.patch(way[2].0, 2, &[0, 0], true);
            trial.patch(index, 12 + 12 * (position + 3) + 4, &leaf, true);
        },
        |trial| {
            trial.assert_refused(4..5, &[edit::CYCLE], "an empty leaf that is named twice");
            let told = edit::walk(&trial.sheet, &trial.draft, &mut |_| Ok(()));
            assert!(matches!(told, Err(Error::Corrupt(corrupt)) if corrupt.kind == edit::CYCLE));
        },
    );
    trial.damaged(
        |trial| trial.draft.disk.blocks_raw = 2,
        |trial| trial.assert_refused(4..5, &[CorruptKind::InodeField("blocks")], "too small a count"),
    );
    trial.edits(4).unwrap();
}

#[test]
fn pointers_that_lead_nowhere_or_back() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let made = make("ext2", 16 << 20, &["-b", "1024", "-O", "large_file"]);
    let state = made.open();
    // After the 268 blocks of direct and single indirect pointers: two levels; another branch next to them.
    let mut trial =
        Trial::new(&state, made.ino, [0, 100, TARGET - 300, TARGET - 1, TARGET, 70_000].into_iter());
    let pointer = |bytes: &[u8], at: u32| {
        u32::from_le_bytes(bytes[at as usize * 4..at as usize * 4 + 4].try_into().unwrap())
    };
    let [single, top] = [12, 13].map(|at| pointer(&trial.draft.disk.i_block, at));
    let position = (TARGET - 12 - 256) / 256;
    let inside = (TARGET - 12 - 256) % 256;
    let low = pointer(&trial.sheet.read(u64::from(top)), position);
    let outside = CorruptKind::BlockOutsideVolume("a block of the indirect map");
    let data_outside = CorruptKind::BlockOutsideVolume("the indirect map");
    let cycle = edit::CYCLE;
    let cases: [(Option<u32>, u32, u32, usize, CorruptKind); 11] = [
        (None, 13, 2, 0, CorruptKind::SystemZone),
        (None, 13, 1 << 30, 0, outside),
        (Some(top), position, 2, 0, CorruptKind::SystemZone),
        (Some(top), position, u32::MAX, 0, outside),
        (Some(top), position, top, 0, cycle),
        (Some(top), position, single, 0, cycle),
        (Some(low), inside, 2, 1, CorruptKind::SystemZone),
        (Some(low), inside, 1 << 30, 1, data_outside),
        (Some(low), inside, top, 1, cycle),
        (Some(low), inside, low, 1, cycle),
        (Some(top), position + 1, low, 4, cycle),
    ];
    for (block, at, value, first, kind) in cases {
        trial.damaged(
            |trial| trial.patch(block.map(u64::from), at as usize * 4, &value.to_le_bytes(), false),
            |trial| trial.assert_refused(first..5, &[kind], &format!("{value} at {at} of {block:?}")),
        );
    }
    [0, 1, 3, 2, 4].into_iter().for_each(|which| trial.edits(which).unwrap());
    assert!(PointerBlock::root(&trial.draft.disk.i_block).runs((0, 15)).next().is_none());
}

/// With arbitrary bytes in the nodes, an edit ends, and either succeeds or changes nothing.
#[test]
fn any_bytes_in_any_node() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volumes: [(&str, &[&str]); 2] = [("ext4", CSUM), ("ext2", &["-b", "1024", "-O", "large_file"])];
    for (kind, args) in volumes {
        let made = make(kind, 16 << 20, args);
        let state = made.open();
        let mut trial = Trial::new(&state, made.ino, (1500..2500).map(|block| 2 * block));
        let mut nodes = Vec::new();
        let mut note = |part| {
            if let Part::Node(block) = part {
                nodes.push(block.get());
            }
            Ok(())
        };
        edit::walk(&trial.sheet, &trial.draft, &mut note).unwrap();
        let (mut rng, mut failed) = (Rng::new(5), 0);
        for _ in 0..1500 {
            let block = if rng.chance(30) { None } else { Some(*rng.pick(&nodes)) };
            let size = if block.is_none() { 60 } else { 1024 };
            let at = if rng.chance(50) { rng.below(24) } else { rng.below(size - 4) } as usize;
            let value = if rng.chance(50) { *rng.pick(&nodes) as u32 } else { rng.next_u64() as u32 };
            let which = rng.below(5) as usize;
            let (free, disk) = (trial.pool.free.clone(), trial.draft.disk.clone());
            trial.damaged(
                |trial| trial.patch(block, at, &value.to_le_bytes(), true),
                |trial| {
                    let before = trial.all();
                    if trial.edits(which).is_err() {
                        failed += 1;
                        assert!(before == trial.all());
                    }
                },
            );
            (trial.pool.free, trial.draft.disk, trial.sheet.freed) = (free, disk, Default::default());
        }
        assert!((200..1400).contains(&failed), "{failed} of 1500");
    }
}

/// Look-ups fail too: their callers read or free the blocks.
#[test]
fn a_look_at_a_map_says_where_it_cannot_lie() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let made = make("ext4", 16 << 20, PLAIN);
    let state = made.open();
    let mut trial = Trial::new(&state, made.ino, [0, TARGET].into_iter());
    trial.patch(None, 12 + 8, &[2, 0, 0, 0], false);
    let kind = |error| match error {
        Error::Corrupt(corrupt) => corrupt.kind,
        other => panic!("{other:?}"),
    };
    let leaf = edit::leaf(&trial.sheet, &trial.draft, Lblk(TARGET));
    assert_eq!(kind(leaf.unwrap_err()), CorruptKind::SystemZone);
    let walked = edit::walk(&trial.sheet, &trial.draft, &mut |_| Ok(()));
    assert_eq!(kind(walked.unwrap_err()), CorruptKind::SystemZone);

    // A block has the same place in its cluster as in its file.
    let made = make("ext4", 16 << 20, &["-b", "1024", "-O", "bigalloc,^has_journal", "-C", "8192"]);
    let state = made.open();
    let trial = Trial::new(&state, made.ino, std::iter::empty());
    let idle = |physical| edit::idle_clusters(&trial.sheet, &trial.draft, &[extent(9, physical)]);
    assert_eq!(idle(trial.spare + 1).unwrap(), [(Pblk(trial.spare), 8)]);
    assert_eq!(kind(idle(trial.spare).unwrap_err()), CorruptKind::ExtentPhysical);
}
