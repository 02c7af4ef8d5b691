//! States of small logs, counted by hand.

use crate::script;

use script::{BLOCK, Script};
use std::collections::BTreeSet;
use std::sync::Arc;
use uext4_blockdev::Op;
use uext4_testkit::crash::{Options, for_each_state};
use uext4_testkit::device::{CrashEvent, CrashOutcome};

#[test]
fn completed_writes_are_any_subset_until_a_flush() {
    let mut log = Script::new();
    log.assert(&[""]);
    log.write(0, b"A");
    log.assert(&["", "A"]);
    log.write(1, b"B");
    log.write(2, b"C");
    log.assert(&["", "A", ".B", "AB", "..C", "A.C", ".BC", "ABC"]);
    let mut log = Script::new();
    log.write(0, b"A");
    log.write(1, b"B");
    log.flush();
    log.write(2, b"C");
    // Four before the flush has completed, then with and without the third.
    log.assert(&["", "A", ".B", "AB", "ABC"]);
}

#[test]
fn writes_tear_at_blocks_and_newer_blocks_win() {
    let mut log = Script::new();
    log.write(0, b"AA");
    log.assert(&["", "A", ".A", "AA"]);
    // 2 for the first block, 3 for the one both wrote, 2 for the last.
    log.write(1, b"BB");
    log.assert(&["", "..B", ".A", ".AB", ".B", ".BB", "A", "A.B", "AA", "AAB", "AB", "ABB"]);
    log.flush();
    log.write(4, b"C");
    let (states, _) = log.states_with(|_| {});
    assert!(states.contains("ABB.C") && states.len() == 13, "{states:?}");
}

#[test]
fn what_is_durable_hides_what_is_older() {
    let mut log = Script::new();
    log.write(0, b"A");
    log.fua(0, b"B");
    // In flight the FUA write is loose as any; afterwards nothing else is possible.
    log.assert(&["", "A", "B"]);
    log.write(0, b"C");
    log.assert(&["", "A", "B", "C"]);
    // FUA hardens its own range only.
    let mut log = Script::new();
    log.write(0, b"A");
    log.fua(1, b"B");
    let (states, _) = log.states_with(|options| options.only = Some("count:4:x0".into()));
    assert_eq!(states, [".B".to_owned()].into());
    log.assert(&["", "A", ".B", "AB"]);
}

#[test]
fn a_flush_covers_what_had_completed_when_it_was_submitted() {
    let mut log = Script::new();
    let write = log.start(0, b"A");
    log.flush();
    log.done(write);
    let end = log.0.events.len();
    for (name, expected) in [("x0", ""), ("x1", "A")] {
        let only = Some(format!("count:{end}:{name}"));
        assert_eq!(log.states_with(|options| options.only = only).0, [expected.to_owned()].into());
    }
    // Completed while the flush ran: not covered either.
    let mut log = Script::new();
    let write = log.start(0, b"A");
    let flush = log.submit(Op::Flush, 0, &[], false);
    log.done(write);
    log.done(flush);
    log.0.events.push(CrashEvent::Marked(Arc::new(())));
    let (states, _) = log.states_with(|options| options.only = Some("count:5:x0".into()));
    assert_eq!(states, [String::new()].into());
    // A flush that failed covers nothing; the next does.
    let mut log = Script::new();
    log.write(0, b"A");
    let failed = log.submit(Op::Flush, 0, &[], false);
    log.end(failed, CrashOutcome::Failed);
    let last = |log: &Script| {
        let only = Some(format!("count:{}:x0", log.0.events.len()));
        log.states_with(|options| options.only = only).0.pop_first().unwrap()
    };
    assert_eq!(last(&log), "");
    log.flush();
    assert_eq!(last(&log), "A");
}

#[test]
fn writes_in_flight_together_have_no_order() {
    let mut log = Script::new();
    let first = log.start(0, b"A");
    let second = log.start(0, b"B");
    log.assert(&["", "A", "B"]);
    // The second is done and durable, the first may still arrive.
    log.done(second);
    log.flush();
    log.assert(&["", "A", "B"]);
    let durable = |log: &Script| {
        let mut states = BTreeSet::new();
        for name in ["x0", "x1"] {
            let only = Some(format!("count:{}:{name}", log.0.events.len()));
            states.append(&mut log.states_with(|options| options.only = only).0);
        }
        states
    };
    assert_eq!(durable(&log), ["A".to_owned(), "B".to_owned()].into());
    // It completed last, so the next flush makes it durable.
    log.done(first);
    log.flush();
    assert_eq!(durable(&log), ["A".to_owned()].into());
}

#[test]
fn failed_writes_and_discards_stay_uncertain() {
    let mut log = Script::new();
    let failed = log.start(0, b"A");
    log.end(failed, CrashOutcome::Failed);
    log.flush();
    log.assert(&["", "A"]);
    log.write(0, b"B");
    log.flush();
    log.assert(&["", "A", "B"]);
    let mut log = Script::new();
    log.fua(0, b"A");
    let discard = log.submit(Op::Discard, 0, b"-", false);
    log.done(discard);
    log.flush();
    // Old bytes, zeros (as before the write), junk.
    log.assert(&["", "A", "#"]);
}

#[test]
fn without_a_cache_completed_is_durable_and_without_tears_writes_are_whole() {
    let mut log = Script::new();
    log.0.volatile_cache = false;
    log.write(0, b"A");
    log.write(1, b"B");
    log.assert(&["", "A", "AB"]);
    let mut log = Script::new();
    log.write(0, b"AA");
    log.write(1, b"BB");
    let (states, report) = log.states_with(|options| options.torn = false);
    let expected = ["", "AA", ".BB", "ABB"].map(str::to_owned);
    assert!(states == expected.into() && report.complete, "{states:?}");
    // In flight, the other order as well.
    let mut log = Script::new();
    log.start(0, b"AA");
    log.start(1, b"BB");
    let (states, _) = log.states_with(|options| options.torn = false);
    assert_eq!(states, ["", "AA", ".BB", "ABB", "AAB"].map(str::to_owned).into());
}

#[test]
fn dax_tears_at_eight_bytes() {
    let mut log = Script::new();
    let mut data = [0; BLOCK];
    data[..24].copy_from_slice(b"AAAAAAAABBBBBBBBCCCCCCCC");
    log.write(0, b"A");
    log.0.operations[0].data = Some(Arc::from(data));
    let mut options = Options::new("dax", 1);
    options.unit = Some(8);
    let mut states = BTreeSet::new();
    let report = for_each_state(&log.0, &options, |state| {
        let mut head = [0; 24];
        state.read(0, &mut head);
        states.insert([head[0], head[8], head[16]]);
        assert!(head.chunks(8).all(|word| word.iter().all(|byte| *byte == word[0])));
        Ok(())
    });
    assert!(report.unwrap().complete && states.len() == 8, "{states:?}");
}

#[test]
fn marks_make_one_image_two_states_and_draws_keep_to_the_law() {
    let mut log = Script::new();
    log.write(0, b"A");
    log.0.events.push(CrashEvent::Marked(Arc::new(7_u32)));
    log.0.events.push(CrashEvent::Marked(Arc::new("other")));
    let mut seen = Vec::new();
    let report = for_each_state(&log.0, &Options::new("marks", 1), |state| {
        seen.push((state.marks::<u32>().copied().collect::<Vec<_>>(), state.marks::<&str>().count()));
        Ok(())
    });
    let report = report.unwrap();
    assert_eq!((report.states, report.images, report.cuts), (6, 2, 3));
    assert_eq!((&seen[0], &seen[2], &seen[4]), (&(vec![], 0), &(vec![7], 0), &(vec![7], 1)));

    // What is drawn is a subset of what is legal, and with time all of it.
    let mut log = Script::new();
    for (block, fill) in [(0, b"AA"), (1, b"BB"), (2, b"CC"), (1, b"DD")] {
        log.write(block, fill);
    }
    log.start(2, b"EE");
    let (legal, report) = log.states_with(|options| options.exhaustive = u64::MAX);
    // Blocks of 2, 4, 5 and 3 contents.
    assert!(report.complete && legal.len() == 2 * 4 * 5 * 3, "{report}");
    for seed in 0..4 {
        let (drawn, report) = log.states_with(|options| (options.exhaustive, options.seed) = (1, seed));
        assert!(!report.complete && drawn.is_subset(&legal), "{:?}", drawn.difference(&legal));
        assert!(drawn.len() > 60, "seed {seed}: {} of {}", drawn.len(), legal.len());
    }
}

#[test]
fn counts_and_time_are_bounds() {
    let mut log = Script::new();
    for block in 0..8 {
        log.write(block, b"A");
        log.0.events.push(CrashEvent::Marked(Arc::new(block)));
    }
    for states in [1, 3, 20, 100] {
        let (_, report) = log.states_with(|options| options.states = states);
        assert!((1..=states).contains(&report.states), "{states}: {report}");
        assert!(states < 20 || report.states == states, "{states}: {report}");
    }
    let (_, report) = log.states_with(|options| options.time = std::time::Duration::ZERO);
    assert_eq!(report.states, 0);
}
