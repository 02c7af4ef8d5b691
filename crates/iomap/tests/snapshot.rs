//! The mapping snapshot against a flat model.

use proptest::prelude::*;
use uext4_iomap::snapshot::CHUNK_MAX;
use uext4_iomap::{Found, MapSnapshot, PIECES_MAX, Pieces, Range, Run, State};

/// One block of the model: state and physical block; `None` is unknown.
type Block = Option<(State, u64)>;

fn state(choice: u8) -> State {
    [State::Written, State::Unwritten, State::Hole][choice as usize % 3]
}

/// Applies a replacement to the model.
fn apply(model: &mut [Block], first: usize, runs: &[(usize, usize, State, u64)], end: usize) {
    model[first..end].fill(Some((State::Hole, 0)));
    for &(start, length, state, physical) in runs {
        for index in 0..length {
            let physical = if state == State::Hole { 0 } else { physical + index as u64 };
            model[start + index] = Some((state, physical));
        }
    }
}

fn check(map: &MapSnapshot, model: &[Block]) {
    for (block, expected) in model.iter().enumerate() {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn replacing_ranges_equals_a_flat_model(
        steps in prop::collection::vec((0usize..3000, 1usize..600, any::<u64>(), any::<bool>()), 1..24)
    ) {
        const SIZE: usize = 4096;
        let mut map = MapSnapshot::unknown();
        let mut model: Vec<Block> = vec![None; SIZE];
        for (first, length, seed, forget) in steps {
            let end = (first + length).min(SIZE);
            if forget && seed % 4 == 0 {
                map = map.replaced(first as u64, end as u64, None);
                model[first..end].fill(None);
            } else {
                let mut runs = Vec::new();
                let mut at = first;
                let mut random = seed;
                while at < end {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let run = (1 + (random >> 33) as usize % 5).min(end - at);
                    let kind = state((random >> 40) as u8);
                    if kind != State::Hole {
                        runs.push((at, run, kind, (random >> 20) % 1_000_000));
                    }
                    at += run;
                }
                let given: Vec<Run> = runs
                    .iter()
                    .map(|&(start, length, state, physical)| Run {
                        first: start as u32, length: length as u64, state, physical,
                    })
                    .collect();
                map = map.replaced(first as u64, end as u64, Some(&given));
                apply(&mut model, first, &runs, end);
            }
            check(&map, &model);
        }
    }
}

#[test]
fn a_million_extents_are_found_through_the_hints() {
    let mut map = MapSnapshot::unknown();
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
        map = map.replaced(extents.start * 2, extents.end * 2, Some(&runs));
    }
    for extent in (0..1_000_000u64).step_by(9973).chain([999_999]) {
        let found = map.find((extent * 2) as u32);
        assert_eq!(found, Found::Known { state: State::Written, physical: physical(extent), blocks: 1 });
        assert!(matches!(map.find((extent * 2 + 1) as u32), Found::Known { state: State::Hole, .. }));
    }
    assert_eq!(map.find(2_000_000), Found::Unknown);
    assert_eq!(map.find(u32::MAX), Found::Unknown);
    assert!(map.resident_bytes() < 64 << 20, "{} bytes", map.resident_bytes());
    assert_eq!(CHUNK_MAX, 128);
}

#[test]
fn pieces_merge_stop_at_the_limit_and_name_the_unknown() {
    let run = |first, length, state, physical| Run { first, length, state, physical };
    let map = MapSnapshot::unknown().replaced(
        0,
        16,
        Some(&[
            run(0, 4, State::Written, 100),
            run(4, 4, State::Written, 104),
            run(8, 2, State::Unwritten, 50),
        ]),
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
    let map = map.replaced(0, 128, Some(&runs));
    pieces.clear();
    map.pieces(Range { pos: 0, length: 128 * 4096 }, 12, &mut pieces).unwrap();
    assert_eq!(pieces.len(), PIECES_MAX);
}

#[test]
fn find_written_needs_one_written_run() {
    let run = |first, length, state, physical| Run { first, length, state, physical };
    let map = MapSnapshot::unknown().replaced(
        0,
        8,
        Some(&[run(0, 2, State::Written, 10), run(2, 2, State::Unwritten, 20)]),
    );
    let find = |pos, length| map.find_written(Range { pos, length }, 12);
    assert_eq!(find(0, 8192), Some(40960));
    assert_eq!(find(512, 7680), Some(40960 + 512));
    assert_eq!(find(512, 8192), None, "reaches into the unwritten run");
    assert_eq!(find(8192, 512), None, "unwritten");
    assert_eq!(find(5 * 4096, 512), None, "a hole");
    assert_eq!(find(9 * 4096, 512), None, "unknown");
    assert_eq!(find(1 << 60, 512), None, "behind every file");
}
