//! The editor in place against the general one: the same edits of the same map leave the same bytes.

use super::sheet::{Pool, Sheet, make, store};
use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::inode::Ext4State;
use crate::inode::draft::Draft;
use crate::map::edit::{self, Part, in_place::off::OFF};
use std::collections::BTreeMap;
use std::ops::Range;
use uext4_ondisk::ext4::Extent;
use uext4_ondisk::{CorruptKind, Ino, Lblk, Pblk};
use uext4_testkit::{Need, Rng, needs};

/// Logical blocks that edits touch.
const REACH: u32 = 9000;

/// A map, its free blocks and its inode.
struct Twin<'v> {
    sheet: Sheet<'v>,
    pool: Pool,
    draft: Draft,
}

/// What an edit said: its kind of error, or what it unmapped.
type Told = std::result::Result<Vec<Extent>, String>;

#[derive(Clone, Debug)]
enum Step {
    Map(Extent),
    Unmap(Range<u32>),
    State(Range<u32>, bool),
    Several(Vec<Range<u32>>, u32),
}

impl<'v> Twin<'v> {
    fn new(state: &'v Ext4State, ino: Ino) -> Twin<'v> {
        let sheet = Sheet::new(state);
        let mut draft = Draft::load(&sheet, ino).unwrap();
        edit::start(&mut draft).unwrap();
        Twin { sheet, pool: Pool::new(state), draft }
    }

    fn edit(&mut self, step: &Step) -> Told {
        let Twin { sheet, pool, draft } = self;
        sheet.touched.borrow_mut().clear();
        let done: Result<Vec<Extent>> = match step {
            Step::Map(extent) => {
                let hole = extent.logical.get()..extent.logical_end().get();
                edit::nodes(sheet, draft, &[hole]).and_then(|nodes| {
                    let before = pool.free.len();
                    edit::insert(sheet, pool, draft, *extent)?;
                    assert!(before - pool.free.len() <= nodes, "{step:?} takes more nodes than it said");
                    Ok(Vec::new())
                })
            }
            Step::Unmap(range) => edit::remove(sheet, pool, draft, range.clone()),
            Step::State(range, unwritten) => {
                edit::convert(sheet, pool, draft, range.clone(), *unwritten).map(|()| Vec::new())
            }
            Step::Several(ranges, most) => several(sheet, pool, draft, ranges, *most).map(|()| Vec::new()),
        };
        done.map_err(|error| format!("{error:?}"))
    }

    /// Each block, by the general editor, which checks all nodes.
    fn mapped(&self) -> BTreeMap<u32, (u64, bool)> {
        let mut mapped = BTreeMap::new();
        let note = &mut |part| {
            if let Part::Data(extent) = part {
                let blocks = (0..extent.length)
                    .map(|at| (extent.logical.get() + at, extent.physical.get() + u64::from(at)));
                mapped.extend(blocks.map(|(logical, physical)| (logical, (physical, extent.unwritten))));
            }
            Ok(())
        };
        edit::walk(&self.sheet, &self.draft, note).unwrap();
        mapped
    }

    /// The first hole of a range, by the leaf that the general editor reads.
    fn hole(&self, range: &Range<u32>) -> Option<Range<u32>> {
        let mut at = range.start;
        while at < range.end {
            let leaf = edit::leaf(&self.sheet, &self.draft, Lblk(at)).unwrap();
            while let Some(extent) = leaf.find(Lblk(at)) {
                at = extent.logical_end().get();
            }
            if at < leaf.window.end.min(range.end) {
                let next = leaf.extents.iter().find(|extent| extent.logical.get() > at);
                let end = next.map_or(leaf.window.end, |next| next.logical.get());
                return Some(at..end.min(range.end));
            }
            at = at.max(leaf.window.end);
        }
        None
    }
}

/// Converts all of these, as a handle after the other does.
fn several(
    sheet: &mut Sheet<'_>,
    pool: &mut Pool,
    draft: &mut Draft,
    ranges: &[Range<u32>],
    most: u32,
) -> Result<()> {
    let mut left = ranges.to_vec();
    while !left.is_empty() {
        sheet.touched.borrow_mut().clear();
        let done = edit::convert_some(sheet, pool, draft, &left, most)?;
        assert!(done.changed <= most && !done.done.is_empty(), "an edit of at most {most} parts");
        let end = done.done.last().unwrap().end;
        left.retain(|range| range.end > end);
        if let Some(first) = left.first_mut() {
            first.start = first.start.max(end);
        }
    }
    Ok(())
}

/// A step, mostly of a few blocks. New extents often go on where one ends, on the device too.
fn step(rng: &mut Rng, ends: &[(u32, u64)], free: u64) -> Step {
    let first = rng.below(u64::from(REACH)) as u32;
    let most = if rng.chance(10) { 400 } else { 4 };
    let length = 1 + rng.below(most) as u32;
    let range = first..first + length;
    match rng.below(10) {
        0..5 => {
            let goes_on =
                Some(ends).filter(|ends| !ends.is_empty() && rng.chance(40)).map(|ends| *rng.pick(ends));
            let (logical, physical) = goes_on.unwrap_or((first, free));
            let extent = Extent {
                logical: Lblk(logical),
                length,
                physical: Pblk(physical),
                unwritten: rng.chance(70),
            };
            Step::Map(extent)
        }
        5 => Step::Unmap(range),
        6 => Step::State(range, rng.chance(40)),
        7 => Step::State(ends.first().map_or(range, |end| end.0 - 1..end.0), rng.chance(30)),
        _ => {
            let parts = ends.iter().filter(|_| rng.chance(30)).map(|end| end.0 - 1..end.0);
            let mut parts: Vec<Range<u32>> = parts.collect();
            parts.sort_unstable_by_key(|part| part.start);
            parts.dedup();
            Step::Several(parts, 1 + rng.below(8) as u32)
        }
    }
}

/// `exact`: conversions are made one at a time. Several at once may split a leaf elsewhere: then only the mapped blocks
/// are the same.
fn try_twins(args: &[&str], seed: u64, exact: bool) {
    let made = make("ext4", 64 << 20, args);
    let state = made.open();
    let (mut quick, mut general) = (Twin::new(&state, made.ino), Twin::new(&state, made.ino));
    let base = Pool::new(&state).run(0, 1).unwrap().0;
    let (mut rng, mut ends, mut refused, mut splices) = (Rng::new(seed), Vec::new(), 0, 0);
    for round in 0..4000_u64 {
        // Data lies where no node is put, as a rule.
        let mut step = step(&mut rng, &ends, base + 20_000 + round * 7);
        if let Step::Several(parts, most) = &mut step {
            parts.retain(|part| quick.hole(part).is_none());
            *most = if exact { 1 } else { *most };
        }
        let before = quick.sheet.changes;
        let told = quick.edit(&step);
        splices += usize::from(quick.sheet.changes == before + 1);
        OFF.set(true);
        let expected = general.edit(&step);
        OFF.set(false);
        assert_eq!(told, expected, "round {round}: {step:?}");
        refused += usize::from(told.is_err());
        let maps = [&quick, &general].map(|twin| (&twin.sheet.changed, &twin.draft.disk, &twin.pool.free));
        assert!(!exact || maps[0] == maps[1], "round {round}: {step:?} leaves different maps");
        assert!(exact || quick.mapped() == general.mapped(), "round {round}: {step:?} maps other blocks");
        let probe = rng.below(u64::from(REACH)) as u32;
        let gap =
            std::iter::successors(Some(Err(probe)), |at: &std::result::Result<edit::Gap, u32>| match at {
                Err(at) if *at < REACH => Some(edit::gap(&quick.sheet, &quick.draft, &(*at..REACH)).unwrap()),
                _ => None,
            });
        let gap = gap.last().and_then(|gap| gap.ok());
        assert_eq!(
            gap.map(|gap| gap.blocks),
            quick.hole(&(probe..REACH)),
            "round {round}: the hole at {probe}"
        );
        if let (Step::Map(extent), Ok(_)) = (&step, told) {
            ends.push((extent.logical_end().get(), extent.physical.get() + u64::from(extent.length)));
            if ends.len() > 12 {
                ends.remove(0);
            }
        }
    }
    assert!((100..3000).contains(&refused) && splices > 500, "{refused} refused, {splices} of one block");
}

#[test]
fn both_editors_leave_the_same_bytes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    try_twins(&["-b", "1024", "-O", "metadata_csum,^has_journal"], 1, true);
    try_twins(&["-b", "1024", "-O", "^metadata_csum,^has_journal"], 2, true);
    try_twins(&["-b", "2048", "-O", "metadata_csum,^has_journal"], 3, true);
}

#[test]
fn both_editors_map_the_same_blocks() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    try_twins(&["-b", "1024", "-O", "metadata_csum,^has_journal"], 4, false);
}

/// Ranges before a hole are converted; the hole is refused by the next edit, which changes nothing.
#[test]
fn what_is_converted_before_a_hole_stays() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let made = make("ext4", 16 << 20, &["-b", "1024", "-O", "metadata_csum,^has_journal"]);
    let state = made.open();
    let mut twin = Twin::new(&state, made.ino);
    let base = twin.pool.run(0, 1).unwrap().0;
    for at in 0..20 {
        let physical = Pblk(base + 4000 + 2 * u64::from(at));
        let extent = Extent { logical: Lblk(3 * at), length: 2, physical, unwritten: true };
        twin.edit(&Step::Map(extent)).unwrap();
    }
    let Twin { sheet, pool, draft } = &mut twin;
    let ranges = [3..4, 6..8, 9..12, 15..16];
    let done = edit::convert_some(sheet, pool, draft, &ranges, 8).unwrap();
    assert_eq!((done.done, done.changed), (vec![3..4, 6..8], 2));
    let before = (sheet.changes, sheet.changed.clone());
    assert!(matches!(edit::convert_some(sheet, pool, draft, &ranges[2..], 8), Err(Error::Invalid(_))));
    assert!(before == (sheet.changes, sheet.changed.clone()));
    let done = edit::convert_some(sheet, pool, draft, &[15..16, 18..19], 1).unwrap();
    assert_eq!((&done.done[..], done.changed), (std::slice::from_ref(&(15..16)), 1), "as many as it may");
}

/// A leaf that was found sound for one inode, or for one place in its tree, is checked again for another.
#[test]
fn a_sound_leaf_of_one_inode_is_not_sound_for_another() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let made = make("ext4", 16 << 20, &["-b", "1024", "-O", "metadata_csum,^has_journal"]);
    let state = made.open();
    let mut twin = Twin::new(&state, made.ino);
    for at in 0..20 {
        let physical = twin.pool.run(0, 1).unwrap().0;
        let extent = Extent { logical: Lblk(3 * at), length: 1, physical: Pblk(physical), unwritten: true };
        edit::insert(&mut twin.sheet, &mut twin.pool, &mut twin.draft, extent).unwrap();
        twin.draft.count(&state, 1).unwrap();
    }
    twin.draft.disk.size = 60 * 1024;
    store(&made, &mut twin.sheet, &twin.pool, &mut twin.draft);
    let state = made.open();
    let mut body = Direct(&state);
    let mut draft = Draft::load(&body, made.ino).unwrap();
    let gap = |body: &Direct<'_>, draft: &Draft| edit::gap(body, draft, &(0..60));
    let verified = || state.cache.stats().verifications;
    assert!(gap(&body, &draft).unwrap().is_ok());
    let once = verified();
    assert!(gap(&body, &draft).unwrap().is_ok());
    assert_eq!(verified(), once, "a leaf that is known");
    edit::convert(&mut body, &mut twin.pool, &mut draft, 3..4, false).unwrap();
    assert!(gap(&body, &draft).unwrap().is_ok());
    assert_eq!(verified(), once, "a leaf that was changed in place");
    let kind = |told: Result<_>| match told {
        Err(Error::Corrupt(corrupt)) => corrupt.kind,
        _ => panic!("accepted"),
    };
    draft.ino = Ino(made.ino.get() + 1);
    assert_eq!(kind(gap(&body, &draft)), CorruptKind::ExtentChecksum);
    draft.ino = made.ino;
    let leaf = Pblk(u64::from(u32::from_le_bytes(draft.disk.i_block[16..20].try_into().unwrap())));
    body.change(leaf, |bytes| bytes[30] ^= 1).unwrap();
    assert_eq!(kind(gap(&body, &draft)), CorruptKind::ExtentChecksum, "a change that nobody vouches for");
}
