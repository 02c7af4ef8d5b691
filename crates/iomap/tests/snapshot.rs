//! The mapping snapshot against a flat model.

use proptest::prelude::*;
use uext4_iomap::{Found, MapCell, MapSnapshot, PIECES_MAX, Pieces, Range, Run, State};

/// First block, blocks, state and physical block.
type Given = (usize, usize, State, u64);

/// One block of the model: state and physical block; `None` is unknown.
type Block = Option<(State, u64)>;

fn state(choice: u8) -> State {
    [State::Written, State::Unwritten, State::Hole][choice as usize % 3]
}

/// Applies a replacement to the model.
fn apply(model: &mut [Block], first: usize, runs: &[Given], end: usize) {
    model[first..end].fill(Some((State::Hole, 0)));
    for &(start, length, state, physical) in runs {
        for index in 0..length {
            let physical = if state == State::Hole { 0 } else { physical + index as u64 };
            model[start + index] = Some((state, physical));
        }
    }
}

fn check(map: &MapSnapshot, model: &[Block], first: usize) {
    for (block, expected) in model.iter().enumerate().skip(first) {
        match (map.find(block as u32), expected) {
            (Found::Unknown, None) => {}
            (Found::Known { state, physical, blocks }, Some((want, place))) => {
                assert_eq!((state, physical), (*want, *place), "block {block}");
                let run = model[block..]
                    .iter()
                    .enumerate()
                    .take_while(|(index, other)| {
                        let continued = if *want == State::Hole { 0 } else { place + *index as u64 };
                        **other == Some((*want, continued))
                    })
                    .count() as u64;
                if block as u64 + run < model.len() as u64 {
                    assert_eq!(blocks, run, "length of the run at block {block}");
                }
            }
            (found, expected) => panic!("block {block}: {found:?} instead of {expected:?}"),
        }
    }
}

/// What is done to a range of the map.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// Whatever was there, this is there now, or nothing is known.
    End,
    Forget,
    /// The unwritten blocks of some ranges are written.
    Convert,
    /// Holes and unknown blocks get what is given.
    Add,
}

/// Runs of up to five blocks of every state in `[first, end)`, as the model and as a file system says it.
fn random_runs(first: usize, end: usize, seed: u64, spread: u64) -> (Vec<Given>, Vec<Run>) {
    let (mut runs, mut at, mut random) = (Vec::new(), first, seed);
    while at < end {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let length = (1 + (random >> 33) as usize % 5).min(end - at);
        let kind = state((random >> 40) as u8);
        if kind != State::Hole {
            runs.push((at, length, kind, (random >> 20) % spread));
        }
        at += length;
    }
    let run = |&(start, length, state, physical): &Given| Run {
        first: start as u32,
        length: length as u64,
        state,
        physical,
    };
    let given = runs.iter().map(run).collect();
    (runs, given)
}

/// Runs of the model's blocks, and what is there of `runs` beside them, for [`Step::Add`].
fn beside_written(model: &[Block], first: usize, end: usize, runs: &[Given]) -> Vec<Block> {
    let mut after = model.to_vec();
    apply(&mut after, first, runs, end);
    for (new, old) in after.iter_mut().zip(model) {
        if matches!(old, Some((State::Written, _))) {
            *new = *old;
        }
    }
    after
}

/// The known blocks of `[first, end)`, which are all, one run each.
fn one_by_one(model: &[Block], first: usize, end: usize) -> Vec<Run> {
    let run = |block: usize| {
        let (state, physical) = model[block].filter(|&(state, _)| state != State::Hole)?;
        Some(Run { first: block as u32, length: 1, state, physical })
    };
    (first..end).filter_map(run).collect()
}

fn check_cell(cell: &MapCell, model: &[Block]) {
    for (block, expected) in model.iter().enumerate() {
        let found = match cell.find(block as u32) {
            Found::Unknown => None,
            Found::Known { state, physical, .. } => Some((state, physical)),
        };
        assert_eq!(found, *expected, "block {block}");
    }
    let runs = cell.runs();
    for run in &runs {
        let blocks = &model[run.first as usize..(run.first as usize + run.length as usize).min(model.len())];
        for (index, block) in (0..).zip(blocks) {
            let physical = if run.state == State::Hole { 0 } else { run.physical + index };
            assert_eq!(*block, Some((run.state, physical)), "{run:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_way_to_publish_equals_a_flat_model(
        steps in prop::collection::vec((0usize..3000, 1usize..600, any::<u64>(), 0u8..6), 1..24)
    ) {
        const SIZE: usize = 4096;
        let cell = MapCell::new();
        let mut model: Vec<Block> = vec![None; SIZE];
        let spread = if steps[0].2 % 2 == 0 { 60_000 } else { 1_000_000 };
        for (first, length, seed, step) in steps {
            let end = (first + length).min(SIZE);
            let step = [Step::End, Step::Forget, Step::Convert, Step::Convert, Step::Add, Step::Add][step as usize];
            let (runs, given) = random_runs(first, end, seed, spread);
            let mut writer = cell.lock();
            match step {
                Step::Forget if seed % 4 == 0 => {
                    writer.end_unchecked(first as u64, end as u64, None);
                    model[first..end].fill(None);
                }
                Step::End | Step::Forget => {
                    writer.end_unchecked(first as u64, end as u64, Some(&given));
                    apply(&mut model, first, &runs, end);
                }
                Step::Convert => {
                    drop(writer);
                    let unwritten = |block: &usize| matches!(model[*block], Some((State::Unwritten, _)));
                    let blocks: Vec<usize> =
                        (first..end).filter(unwritten).filter(|block| (seed >> (block % 64)) & 1 == 1).collect();
                    for block in blocks.chunks(32) {
                        let ranges: Vec<_> = block.iter().map(|&block| block as u64..block as u64 + 1).collect();
                        convert(&cell, &ranges).unwrap();
                    }
                    for block in blocks {
                        model[block] = model[block].map(|(_, physical)| (State::Written, physical));
                    }
                    writer = cell.lock();
                }
                Step::Add => {
                    let after = beside_written(&model, first, end, &runs);
                    let refused = model[first..end].iter().zip({
                        let mut plain = model.clone();
                        apply(&mut plain, first, &runs, end);
                        plain[first..end].to_vec()
                    }).any(|(old, new)| matches!(old, Some((State::Written, _))) && *old != new);
                    let generation = cell.generation();
                    prop_assert_eq!(writer.add(first as u64, end as u64, &given).is_err(), refused);
                    writer.add(first as u64, end as u64, &one_by_one(&after, first, end)).unwrap();
                    prop_assert_eq!(cell.generation(), generation);
                    model = after;
                }
            }
            drop(writer);
            check_cell(&cell, &model);
            // As one snapshot the same.
            let whole = MapSnapshot::of(first as u64, end as u64, &one_by_one(&model, first, end));
            if model[first..end].iter().all(Option::is_some) {
                check(&whole, &model[..end], first);
            }
        }
    }
}

/// What only an inode may do: in a transaction, and with the gate held.
fn convert(cell: &MapCell, blocks: &[std::ops::Range<u64>]) -> Result<(), uext4_iomap::Error> {
    cell.lock().converted_unchecked(blocks)
}

#[test]
fn a_million_extents_are_found_through_the_hints() {
    let map = MapCell::new();
    let physical = |extent: u64| 1_000_000 + extent * 7;
    // As a loader does it: a leaf of 340 extents at a time, in file order.
    for leaf in 0..1_000_000u64.div_ceil(340) {
        let extents = leaf * 340..((leaf + 1) * 340).min(1_000_000);
        let runs: Vec<Run> = extents
            .clone()
            .map(|extent| Run {
                first: (extent * 2) as u32,
                length: 1,
                state: State::Written,
                physical: physical(extent),
            })
            .collect();
        map.lock().add(extents.start * 2, extents.end * 2, &runs).unwrap();
    }
    for extent in (0..1_000_000u64).step_by(9973).chain([999_999]) {
        let found = map.find((extent * 2) as u32);
        assert_eq!(found, Found::Known { state: State::Written, physical: physical(extent), blocks: 1 });
        assert!(matches!(map.find((extent * 2 + 1) as u32), Found::Known { state: State::Hole, .. }));
    }
    assert_eq!(map.find(2_000_000), Found::Unknown);
    assert_eq!(map.find(u32::MAX), Found::Unknown);
    // Two entries each, in lines of 64 bytes for eight or sixteen, and the last loads beside them.
    let bytes = map.lock().resident_bytes();
    assert!(bytes < 14_000_000, "{bytes} bytes");
}

/// Loads runs of these lengths, each followed by a hole if `gap`, a few hundred at a time and in an order that a
/// random reader produces; then asks for the first, a middle and the last block of every run and of every hole.
/// Runs lie far from each other on the device, or every so often and within 2¹⁶ blocks meanwhile, or one behind the
/// other from the end.
fn check_lengths(name: &str, start: u64, lengths: &[u64], gap: bool) {
    check_placed(name, start, lengths, gap, |index| 1 + (1 << 33) * (index as u64 % 7) + index as u64 * 11);
    let jumps = |index: usize| (1 << 45) + (1 << 40) * (index as u64 / 100 % 7) + index as u64 % 9 * 8191;
    check_placed(name, start, lengths, gap, jumps);
    check_placed(name, start, lengths, gap, |index| (1 << 47) - 1_000_000 - index as u64 * 2);
    // At the device's beginning, where a run may lie less far from it than from the beginning of its line.
    check_placed(name, start, lengths, gap, |index| 298 - (index as u64 * 2) % 298);
    // Across the number that no physical block of ext4 reaches.
    check_placed(name, start, lengths, gap, |index| (1 << 48) + 20_000 - index as u64 * 2);
}

fn check_placed(name: &str, start: u64, lengths: &[u64], gap: bool, physical: impl Fn(usize) -> u64) {
    let mut first = start;
    let mut runs = Vec::new();
    for (index, &length) in lengths.iter().enumerate() {
        let state = if index % 5 == 4 { State::Unwritten } else { State::Written };
        runs.push(Run { first: first as u32, length, state, physical: physical(index) });
        first += length + u64::from(gap);
    }
    let end = first;
    let parts: Vec<&[Run]> = runs.chunks(340).collect();
    // 7 is coprime to every number of parts that is no multiple of it.
    assert_ne!(parts.len() % 7, 0, "{name}: choose another number");
    let map = MapCell::new();
    for index in 0..parts.len() {
        let part = index * 7 % parts.len();
        let until = parts.get(part + 1).map_or(end, |next| u64::from(next[0].first));
        map.lock().add(u64::from(parts[part][0].first), until, parts[part]).unwrap();
    }
    for run in &runs {
        for offset in [0, run.length / 2, run.length - 1] {
            let found = map.find(run.first + offset as u32);
            let (physical, blocks) = (run.physical + offset, run.length - offset);
            assert_eq!(found, Found::Known { state: run.state, physical, blocks }, "{name}: {run:?}");
        }
        let behind = u64::from(run.first) + run.length;
        if gap {
            let hole = Found::Known { state: State::Hole, physical: 0, blocks: 1 };
            assert_eq!(map.find(behind as u32), hole, "{name}: the hole behind {run:?}");
        }
    }
    let known: Vec<Run> = map.runs().into_iter().filter(|run| run.state != State::Hole).collect();
    assert_eq!(known, runs, "{name}");
    if start > 0 {
        assert_eq!(map.find(start as u32 - 1), Found::Unknown, "{name}");
    }
    if end < 1 << 32 {
        assert_eq!(map.find(end as u32), Found::Unknown, "{name}");
    }
    // Forgotten again, it is as small as at first.
    map.lock().end_unchecked(start, end, None);
    assert_eq!(map.lock().resident_bytes(), MapSnapshot::unknown().resident_bytes(), "{name}");
}

/// Maps in which a guess from the mean length is wrong by far: everything is found all the same.
#[test]
fn every_distribution_of_lengths_is_found() {
    const RUNS: usize = 20_000;
    let mut random = 1u64;
    let mut next = move || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        random >> 33
    };
    let ones = vec![1u64; RUNS];
    let with = |places: &[usize], length: u64| {
        let mut lengths = ones.clone();
        places.iter().for_each(|&place| lengths[place] = length);
        lengths
    };
    let geometric: Vec<u64> =
        (0..RUNS).map(|_| 1 + u64::from((next() as u32 | 1 << 16).trailing_zeros())).collect();
    let doubling: Vec<u64> = (0..RUNS).map(|index| 1 << (index % 17)).collect();
    let mixed: Vec<u64> =
        (0..RUNS).map(|_| if next() % 50 == 0 { 100_000 } else { 1 + next() % 4 }).collect();
    let every_50th: Vec<u64> = (0..RUNS).map(|index| if index % 50 == 25 { 30_000 } else { 1 }).collect();
    let rest = (1u64 << 32) - RUNS as u64 + 1;
    for gap in [false, true] {
        check_lengths("ones", 0, &ones, gap);
        check_lengths("ones far away", 3_000_000_000, &ones, gap);
        check_lengths("geometric", 17, &geometric, gap);
        check_lengths("doubling", 0, &doubling, gap);
        check_lengths("mixed", 5, &mixed, gap);
        check_lengths("every 50th", 0, &every_50th, gap);
        check_lengths("a huge one first", 0, &with(&[0], 4_000_000_000), gap);
        check_lengths("a huge one last", 0, &with(&[RUNS - 1], 4_000_000_000), gap);
        check_lengths("huge ones between", 0, &with(&[50, 9_999, 10_050], 1_000_000_000), gap);
    }
    check_lengths("up to the last block, huge first", 0, &with(&[0], rest), false);
    check_lengths("up to the last block, huge last", 0, &with(&[RUNS - 1], rest), false);
    check_lengths("the last blocks", (1 << 32) - RUNS as u64, &ones, false);
}

/// Small maps around every capacity of the storage, at both ends of the address space.
#[test]
fn maps_of_few_runs_are_found() {
    for count in (1..=40).chain(90..=136) {
        for start in [0, 1, 70_000, (1u64 << 32) - 300_000] {
            check_lengths("few of 1", start, &vec![1; count], true);
            check_lengths("few of 2000", start, &vec![2000; count], false);
        }
        check_lengths("the last blocks", (1 << 32) - count as u64, &vec![1; count], false);
    }
    let whole = [Run { first: 0, length: 1 << 32, state: State::Written, physical: 7 }];
    let map = MapSnapshot::of(0, 1 << 32, &whole);
    let found = Found::Known { state: State::Written, physical: 7 + u64::from(u32::MAX), blocks: 1 };
    assert_eq!(map.find(u32::MAX), found);
    assert_eq!(map.find(0), Found::Known { state: State::Written, physical: 7, blocks: 1 << 32 });
    assert_eq!(map.runs().collect::<Vec<_>>(), whole);
}

#[test]
fn pieces_merge_stop_at_the_limit_and_name_the_unknown() {
    let run = |first, length, state, physical| Run { first, length, state, physical };
    let map = MapSnapshot::of(
        0,
        16,
        &[run(0, 4, State::Written, 100), run(4, 4, State::Written, 104), run(8, 2, State::Unwritten, 50)],
    );
    let mut pieces = Pieces::new();
    map.pieces(Range { pos: 512, length: 15 * 4096 }, 12, &mut pieces).unwrap();
    let got: Vec<_> = pieces.iter().map(|piece| (piece.logical, piece.length, piece.state)).collect();
    assert_eq!(
        got,
        [
            (512, 8 * 4096 - 512, State::Written),
            (8 * 4096, 2 * 4096, State::Unwritten),
            (10 * 4096, 5 * 4096 + 512, State::Hole)
        ]
    );
    assert_eq!(pieces[0].physical, 100 * 4096 + 512);
    pieces.clear();
    let unknown = map.pieces(Range { pos: 15 * 4096, length: 8192 }, 12, &mut pieces);
    assert_eq!(unknown, Err(16 * 4096));
    // Behind the last addressable block there is nothing, whatever the block size.
    pieces.clear();
    map.pieces(Range { pos: 1 << 50, length: 4096 }, 12, &mut pieces).unwrap();
    assert_eq!(pieces[0].state, State::Hole);
    // More pieces than a plan holds: the first ones.
    let runs: Vec<Run> = (0..64).map(|n| run(n * 2, 1, State::Written, 1000 + u64::from(n) * 3)).collect();
    let map = MapSnapshot::of(0, 128, &runs);
    pieces.clear();
    map.pieces(Range { pos: 0, length: 128 * 4096 }, 12, &mut pieces).unwrap();
    assert_eq!(pieces.len(), PIECES_MAX);
}

#[test]
fn find_written_needs_one_written_run() {
    let run = |first, length, state, physical| Run { first, length, state, physical };
    let map = MapSnapshot::of(0, 8, &[run(0, 2, State::Written, 10), run(2, 2, State::Unwritten, 20)]);
    let find = |pos, length| map.find_written(Range { pos, length }, 12);
    assert_eq!(find(0, 8192), Some(40960));
    assert_eq!(find(512, 7680), Some(40960 + 512));
    assert_eq!(find(512, 8192), None, "reaches into the unwritten run");
    assert_eq!(find(8192, 512), None, "unwritten");
    assert_eq!(find(5 * 4096, 512), None, "a hole");
    assert_eq!(find(9 * 4096, 512), None, "unknown");
    assert_eq!(find(1 << 60, 512), None, "behind every file");
}

#[test]
fn a_thread_sees_every_publication_of_every_cell() {
    let place = |cell: &MapCell| match cell.find(3) {
        Found::Known { physical, .. } => Some(physical),
        Found::Unknown => None,
    };
    let publish = |cell: &MapCell, physical: u64| {
        let run = Run { first: 3, length: 1, state: State::Written, physical };
        cell.lock().end_unchecked(3, 4, Some(&[run]));
    };
    // More than a thread keeps, so that some share a place.
    let cells: Vec<MapCell> = (0..9).map(|_| MapCell::new()).collect();
    assert_eq!((place(&cells[0]), place(&cells[1])), (None, None), "equal generations, other cells");
    for round in 0..10 {
        publish(&cells[0], 100 + round);
        // From another thread it is seen as well.
        std::thread::scope(|scope| scope.spawn(|| publish(&cells[1], 200 + round)).join().unwrap());
        for _ in 0..4 {
            assert_eq!((place(&cells[0]), place(&cells[1])), (Some(100 + round), Some(200 + round)));
        }
        for cell in &cells[2..] {
            publish(cell, 300 + round);
            assert_eq!((place(cell), place(cell)), (Some(300 + round), Some(300 + round)));
        }
    }
}

#[test]
fn what_was_taken_away_is_a_gap_among_what_is_known() {
    let cell = MapCell::new();
    let runs: Vec<Run> = (0..100)
        .map(|index| Run {
            first: index * 2,
            length: 1,
            state: State::Written,
            physical: 1000 + 7 * u64::from(index),
        })
        .collect();
    cell.lock().add(0, 200, &runs).unwrap();
    cell.lock().end_unchecked(40, 43, None);
    assert_eq!(cell.lock().unknown_around(41), 40..43);
    assert_eq!(cell.lock().unknown_around(250), 200..1 << 32);
    // Only what lies in the gap is needed.
    let whole = Run { first: 30, length: 60, state: State::Unwritten, physical: 500 };
    let part = whole.within(40..43).unwrap();
    assert_eq!((part.first, part.length, part.physical), (40, 3, 510));
    assert_eq!(whole.within(90..100), None);
    assert_eq!(whole.within(0..30), None);
    cell.lock().add(40, 43, &[part]).unwrap();
    assert_eq!(cell.find(41), Found::Known { state: State::Unwritten, physical: 511, blocks: 2 });
}
