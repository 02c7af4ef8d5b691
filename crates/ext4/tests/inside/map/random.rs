//! Random edits of maps against a map of single blocks.

use super::sheet::{Made, Pool, Sheet, make, store};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Limit};
use crate::inode::draft::Draft;
use crate::map::edit::{self, Part};
use crate::map::load;
use std::collections::BTreeMap;
use std::ops::Range;
use uext4_iomap::{Found, State};
use uext4_ondisk::ext4::{Extent, IndirectLayout, MAX_UNWRITTEN_LENGTH};
use uext4_ondisk::{Lblk, Pblk};
use uext4_testkit::{Need, Rng, needs};

/// Where a block is, and whether it is unwritten.
type Model = BTreeMap<u32, (u64, bool)>;

struct Trial<'v> {
    sheet: Sheet<'v>,
    pool: Pool,
    draft: Draft,
    model: Model,
    rng: Rng,
    extents: bool,
    /// Logical blocks that are used: of a dense part, and of all.
    dense: u32,
    reach: u32,
}

fn flat(extents: &[Extent]) -> Model {
    let blocks = extents.iter().flat_map(|extent| (0..extent.length).map(move |block| (extent, block)));
    blocks
        .map(|(extent, block)| {
            let physical = extent.physical.get() + u64::from(block);
            (extent.logical.get() + block, (physical, extent.unwritten))
        })
        .collect()
}

impl Trial<'_> {
    fn place(&mut self) -> u32 {
        let reach = if self.rng.chance(80) { self.dense } else { self.reach };
        self.rng.below(u64::from(reach)) as u32
    }

    fn length(&mut self) -> u32 {
        let most = if self.rng.chance(10) { 3000 } else { 6 };
        1 + self.rng.below(most) as u32
    }

    fn inside(&self, range: &Range<u32>) -> Model {
        self.model.range(range.clone()).map(|(block, found)| (*block, *found)).collect()
    }

    /// Up to `length` consecutive blocks for a logical block, and whether they are new.
    fn blocks(&mut self, logical: u32, length: u32) -> Option<(u64, u32, bool)> {
        let size = self.pool.cluster as u32;
        let inside = logical % size;
        let around = logical - inside..(logical - inside).saturating_add(size);
        if let Some((other, (physical, _))) = self.model.range(around.clone()).next() {
            let first = physical - u64::from(other - around.start);
            return Some((first + u64::from(inside), length.min(size - inside), false));
        }
        let clusters = if size == 1 { u64::from(length) } else { 1 };
        let from = self.rng.below(1 << 16);
        let (first, got) = self.pool.run(from, clusters)?;
        let length = if size == 1 { got as u32 } else { length.min(size - inside) };
        Some((first + u64::from(inside), length, true))
    }

    /// Frees unmapped extents. Returns their clusters.
    fn free(&mut self, unmapped: &[Extent]) {
        let idle = edit::idle_clusters(&self.sheet, &self.draft, unmapped).unwrap();
        for (first, count) in idle {
            self.pool.put(first.get(), count);
            let clusters = count.div_ceil(self.pool.cluster) as i64;
            self.draft.count(self.sheet.state, -clusters).unwrap();
        }
    }

    /// Runs an edit, sometimes with too little space: then nothing may have changed.
    fn attempt<T>(
        &mut self,
        run: impl Fn(&mut Sheet<'_>, &mut Pool, &mut Draft) -> crate::Result<T>,
    ) -> crate::Result<T> {
        if self.rng.chance(20) {
            self.pool.allowed = self.rng.below(2) as usize;
        }
        let before = (self.sheet.changes, self.pool.free.len(), self.draft.disk.clone());
        self.sheet.touched.borrow_mut().clear();
        let mut done = run(&mut self.sheet, &mut self.pool, &mut self.draft);
        if done.is_err() {
            assert_eq!(before, (self.sheet.changes, self.pool.free.len(), self.draft.disk.clone()));
        }
        self.pool.allowed = usize::MAX;
        if matches!(done, Err(Error::NoSpace)) {
            done = run(&mut self.sheet, &mut self.pool, &mut self.draft);
        }
        done
    }

    fn map(&mut self, replace: bool) {
        let (logical, wanted) = (self.place(), self.length());
        let wanted = wanted.min(self.reach - logical);
        let Some((physical, mut length, is_new)) = self.blocks(logical, wanted) else { return };
        let got = length;
        let unwritten = self.extents && self.rng.chance(50);
        if !replace {
            let next = self.model.range(logical..).next().map_or(u32::MAX, |found| *found.0);
            length = length.min(next - logical);
        }
        let extent =
            Extent { logical: Lblk(logical), length: length.max(1), physical: Pblk(physical), unwritten };
        let clusters = if self.pool.cluster == 1 { i64::from(extent.length) } else { 1 };
        let range = logical..logical + extent.length;
        let mapped = self.inside(&range);
        let done = self.attempt(|sheet, pool, draft| match replace {
            true => edit::replace(sheet, pool, draft, extent),
            false => edit::insert(sheet, pool, draft, extent).map(|()| Vec::new()),
        });
        let unused = |this: &mut Self, from: u32| {
            if is_new && this.pool.cluster > 1 && from == 0 {
                this.pool.put(physical - u64::from(logical) % this.pool.cluster, this.pool.cluster);
            } else if is_new && this.pool.cluster == 1 {
                this.pool.put(physical + u64::from(from), u64::from(got - from));
            }
        };
        if !replace && !mapped.is_empty() {
            assert!(matches!(done, Err(Error::Exists)), "{done:?}");
            return unused(self, 0);
        }
        let unmapped = done.unwrap();
        unused(self, extent.length);
        let is_same =
            |found: &(u64, bool)| (physical..physical + u64::from(extent.length)).contains(&found.0);
        let gone: Model = mapped.into_iter().filter(|(_, found)| !is_same(found)).collect();
        assert_eq!(flat(&unmapped), gone);
        self.model.extend(flat(&[extent]));
        if is_new {
            self.draft.count(self.sheet.state, clusters).unwrap();
        }
        self.free(&unmapped);
    }

    fn remove(&mut self) {
        let first = self.place();
        let length = if self.rng.chance(1) { self.dense / 3 } else { self.length() };
        let range = first..first.saturating_add(length).min(self.reach);
        let expected = self.inside(&range);
        let unmapped = self.attempt(|sheet, pool, draft| edit::remove(sheet, pool, draft, range.clone()));
        let unmapped = unmapped.unwrap();
        assert_eq!(flat(&unmapped), expected);
        self.model.retain(|block, _| !range.contains(block));
        self.free(&unmapped);
    }

    fn convert(&mut self) {
        let first = self.place();
        // Usually from a mapped block on, as far as it is mapped.
        let first = self.model.range(first..).next().map_or(first, |found| *found.0);
        let mut end = first + 1;
        let length = self.length();
        while end < first.saturating_add(length) && self.model.contains_key(&end) {
            end += 1;
        }
        let end = if self.rng.chance(5) { end + 3 } else { end }.min(self.reach);
        let (range, unwritten) = (first..end, self.rng.chance(50));
        let is_whole = self.inside(&range).len() == range.len();
        let done =
            self.attempt(|sheet, pool, draft| edit::convert(sheet, pool, draft, range.clone(), unwritten));
        if unwritten && !self.extents {
            assert!(matches!(done, Err(Error::Incompatible { .. })), "{done:?}");
        } else if is_whole {
            done.unwrap();
            self.model.range_mut(range).for_each(|(_, found)| found.1 = unwritten);
        } else {
            assert!(matches!(done, Err(Error::Invalid(_))), "{done:?}");
        }
    }

    fn step(&mut self) {
        // It grows to a certain size, then stays about as large.
        let grows = self.model.len() < 6000;
        match self.rng.below(100) {
            0..45 if grows => self.map(false),
            0..25 => self.map(false),
            45..55 => self.map(true),
            55..75 => self.convert(),
            _ => self.remove(),
        }
    }

    /// Compares the editor's own look-ups with the model.
    fn check_own(&mut self) {
        let (mut all, mut nodes) = (Model::new(), 0_i64);
        edit::walk(&self.sheet, &self.draft, &mut |part| {
            match part {
                Part::Node(_) => nodes += 1,
                Part::Data(extent) => all.extend(flat(&[extent])),
            }
            Ok(())
        })
        .unwrap();
        assert!(all == self.model, "a walk tells something else");
        let size = self.pool.cluster as u32;
        let mut clusters: Vec<u32> = self.model.keys().map(|block| block / size).collect();
        clusters.dedup();
        let superblock = &self.sheet.state.superblock;
        let sectors = (nodes as u64 + clusters.len() as u64) * self.pool.cluster;
        let sectors = sectors * u64::from(superblock.geometry.block_size() / 512);
        assert_eq!(
            self.draft.disk.sectors(superblock),
            sectors,
            "{nodes} nodes, {} clusters",
            clusters.len()
        );
        for _ in 0..20 {
            let block = self.place();
            let leaf = edit::leaf(&self.sheet, &self.draft, Lblk(block)).unwrap();
            assert!(leaf.window.contains(&block), "{block} in {:?}", leaf.window);
            let found = leaf
                .find(Lblk(block))
                .map(|extent| (extent.physical_of(Lblk(block)).unwrap().get(), extent.unwritten));
            assert_eq!(found, self.model.get(&block).copied());
            assert!(flat(&leaf.extents) == self.inside(&leaf.window));
        }
    }

    /// Writes everything home and compares a normal read.
    fn check_home(&mut self, made: &Made) {
        let block_size = u64::from(self.sheet.state.cache.block_size());
        let end = self.model.last_key_value().map_or(0, |(block, _)| u64::from(*block) + 1);
        self.draft.disk.size = end * block_size;
        store(made, &mut self.sheet, &self.pool, &mut self.draft);
        let state = made.open();
        let inode = state.inode(made.ino).unwrap();
        let (mut read, mut at) = (Model::new(), 0_u64);
        while at < end {
            let snapshot = load(&state, &inode, at * block_size).unwrap();
            let Found::Known { state, physical, blocks } = snapshot.find(at as u32) else { panic!("{at}") };
            if state != State::Hole {
                let block = |n| (at as u32 + n as u32, (physical + n, state == State::Unwritten));
                read.extend((0..blocks).map(block));
            }
            at += blocks;
        }
        assert!(read == self.model, "the volume's reader says something else");
    }
}

/// Depth of an extent tree.
fn depth(draft: &Draft) -> u8 {
    draft.disk.i_block[6]
}

fn try_volume(kind: &'static str, args: &[&str], seed: u64) {
    let made = make(kind, 64 << 20, args);
    let state = made.open();
    let sheet = Sheet::new(&state);
    let mut draft = Draft::load(&sheet, made.ino).unwrap();
    edit::start(&mut draft).unwrap();
    let extents = draft.disk.uses_extents();
    let layout = IndirectLayout::new(state.cache.block_size());
    let reach = if extents { u32::MAX } else { layout.blocks().min(u64::from(u32::MAX)) as u32 };
    let (pool, rng) = (Pool::new(&state), Rng::new(seed));
    let mut trial = Trial { sheet, pool, draft, model: Model::new(), rng, extents, dense: 20_000, reach };
    for batch in 0..12 {
        (0..500).for_each(|_| trial.step());
        trial.check_own();
        if batch % 3 == 2 {
            trial.check_home(&made);
        }
    }
    made.assert_clean();
    // Remove everything: only an empty root is left.
    let unmapped = edit::remove(&mut trial.sheet, &mut trial.pool, &mut trial.draft, 0..u32::MAX).unwrap();
    assert!(flat(&unmapped) == trial.model);
    trial.model.clear();
    trial.free(&unmapped);
    trial.check_own();
    assert_eq!(trial.draft.disk.blocks_raw, 0);
    let (disk, place) = (trial.draft.disk.clone(), trial.draft.place);
    let mut empty =
        Draft { ino: made.ino, disk, raw: Vec::new(), place, charged: None, allowance: None, values: 0 };
    edit::start(&mut empty).unwrap();
    assert_eq!(empty.disk.i_block, trial.draft.disk.i_block);
    assert_eq!(trial.pool.free.len(), Pool::new(&made.open()).free.len() + used(&made.open(), &trial));
    trial.check_home(&made);
    made.assert_clean();
}

/// Clusters that were not free before the last store.
fn used(state: &crate::inode::Ext4State, trial: &Trial<'_>) -> usize {
    let before = Pool::new(state).free;
    trial.pool.free.difference(&before).count()
}

#[test]
fn extents_of_blocks_of_1_kib_with_checksums() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    try_volume("ext4", &["-b", "1024", "-O", "metadata_csum,^has_journal"], 1);
}

#[test]
fn extents_of_blocks_of_1_kib_without_checksums() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    try_volume("ext4", &["-b", "1024", "-O", "^metadata_csum,^has_journal"], 2);
}

#[test]
fn extents_of_larger_blocks() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    try_volume("ext4", &["-b", "2048", "-O", "metadata_csum,^has_journal"], 3);
    try_volume("ext4", &["-b", "4096", "-O", "metadata_csum,64bit,^has_journal"], 4);
    try_volume("ext4", &["-b", "4096", "-O", "^metadata_csum,^has_journal"], 5);
}

#[test]
fn extents_in_clusters() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    try_volume("ext4", &["-b", "1024", "-O", "bigalloc,metadata_csum,^has_journal", "-C", "8192"], 6);
}

#[test]
fn pointers_of_blocks_of_1_kib() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    try_volume("ext2", &["-b", "1024", "-O", "large_file"], 7);
    try_volume("ext4", &["-b", "1024", "-O", "metadata_csum,^extent,^64bit,^has_journal"], 8);
}

#[test]
fn pointers_of_larger_blocks() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    try_volume("ext2", &["-b", "2048", "-O", "large_file"], 9);
    try_volume("ext2", &["-b", "4096", "-O", "large_file"], 10);
}

/// Alternately written and unwritten blocks of a run, in any order: no two extents merge.
#[test]
fn a_tree_of_four_levels_grows_and_goes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let made = make("ext4", 64 << 20, &["-b", "1024", "-O", "metadata_csum,^has_journal"]);
    let state = made.open();
    let sheet = Sheet::new(&state);
    let mut draft = Draft::load(&sheet, made.ino).unwrap();
    edit::start(&mut draft).unwrap();
    let (pool, rng) = (Pool::new(&state), Rng::new(11));
    let mut trial =
        Trial { sheet, pool, draft, model: Model::new(), rng, extents: true, dense: 40_000, reach: u32::MAX };
    let mut order: Vec<u32> = (0..26_000).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, trial.rng.below(at as u64 + 1) as usize);
    }
    for block in order {
        let physical = trial.pool.run(0, 1).unwrap().0;
        let extent =
            Extent { logical: Lblk(block), length: 1, physical: Pblk(physical), unwritten: block % 2 == 1 };
        edit::insert(&mut trial.sheet, &mut trial.pool, &mut trial.draft, extent).unwrap();
        trial.draft.count(&state, 1).unwrap();
        trial.model.extend(flat(&[extent]));
    }
    assert_eq!(depth(&trial.draft), 3);
    (0..2000).for_each(|_| trial.step());
    assert_eq!(depth(&trial.draft), 3);
    trial.check_own();
    trial.check_home(&made);
    made.assert_clean();
    // From the back, as in a truncation, and then from the front.
    let mut end = 40_000;
    while trial.model.len() > 500 {
        let range = if end % 2_000 == 0 { end - 1_000..u32::MAX } else { 0..40_000 - end };
        end -= 500;
        let unmapped = trial.attempt(|sheet, pool, draft| edit::remove(sheet, pool, draft, range.clone()));
        let unmapped = unmapped.unwrap();
        trial.model.retain(|block, _| !range.contains(block));
        trial.free(&unmapped);
        trial.check_own();
    }
    trial.check_home(&made);
    made.assert_clean();
    let most = [3, 2, 1, 0][..].iter().rposition(|depth| *depth >= self::depth(&trial.draft)).unwrap();
    assert!(most > 0, "the tree never became less deep");
}

#[test]
fn what_a_map_cannot_hold_is_refused() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for (kind, args) in [("ext4", &["-b", "1024", "-O", "^has_journal"][..]), ("ext2", &["-b", "1024"])] {
        let made = make(kind, 16 << 20, args);
        let state = made.open();
        let mut sheet = Sheet::new(&state);
        let mut draft = Draft::load(&sheet, made.ino).unwrap();
        edit::start(&mut draft).unwrap();
        let mut pool = Pool::new(&state);
        let last = if kind == "ext4" { u32::MAX - 1 } else { IndirectLayout::new(1024).blocks() as u32 - 1 };
        let extent = |logical, length, physical, unwritten| Extent {
            logical: Lblk(logical),
            length,
            physical: Pblk(physical),
            unwritten,
        };
        let free = pool.free.first().copied().unwrap() + 100;
        let mut insert = |extent| edit::insert(&mut sheet, &mut pool, &mut draft, extent);
        let limit = |done| assert!(matches!(done, Err(Error::Limit(Limit::Map))), "{done:?}");
        limit(insert(extent(last, 2, free, false)));
        limit(insert(extent(0, 1, 1 << 48, false)));
        limit(insert(extent(0, 1, u64::MAX, false)));
        for (length, unwritten) in [(0, false), (32_769, false), (MAX_UNWRITTEN_LENGTH + 1, true)] {
            let done = insert(extent(0, length, free, unwritten));
            assert!(matches!(done, Err(Error::Invalid(_))), "{done:?}");
        }
        for physical in [0, 1, 1 << 30] {
            let done = insert(extent(0, 1, physical, false));
            assert!(matches!(done, Err(Error::Corrupt(_))), "{done:?}");
        }
        let unwritten = insert(extent(0, 1, free, true));
        assert_eq!(unwritten.is_ok(), kind == "ext4", "{unwritten:?}");
        insert(extent(last, 1, free + 1, false)).unwrap();
        assert_eq!(edit::leaf(&sheet, &draft, Lblk(last)).unwrap().find(Lblk(last)).unwrap().length, 1);
        assert!(sheet.ground().zones.allows(free, 2));
    }
}
