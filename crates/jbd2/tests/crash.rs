//! Random transactions, then a crash at any point: what recovery makes of the volume is the state of the last promised
//! commit or of a later one, block by block, and blocks that were freed and carry data keep it.
//!
//! `UEXT4_CRASH_SEEDS=n` runs n seeds instead of the few of every day; `UEXT4_CRASH_SEED=s` runs one.

use crate::common;

use common::recorder::{Caching, Event};
use common::world::{BLOCKS, Run, Start, check, crash, run, run_with};
use common::{BLOCK, DATA, LOG_AT, Superblock, map};
use std::collections::HashSet;
use std::sync::atomic::Ordering::SeqCst;
use uext4_jbd2::JournalOptions;
use uext4_testkit::Rng;

fn fresh(seed: u64) -> Start {
    let mut superblock = Superblock::empty();
    match seed % 5 {
        1 => drop(superblock.set(40, 8).seal()),
        2 => drop(superblock.set(40, 16 + 2).seal()),
        3 => drop(superblock.set(36, 1)),
        4 => drop(superblock.set(40, 32).set(84, 8)),
        _ => {}
    }
    if seed.is_multiple_of(3) {
        // The sequence wraps soon.
        superblock.set(24, u32::MAX - 40);
        if seed % 5 == 1 || seed % 5 == 2 {
            superblock.seal();
        }
    }
    let mut bytes = vec![0; ((DATA + BLOCKS) * u64::from(BLOCK)) as usize];
    let at = (LOG_AT * u64::from(BLOCK)) as usize;
    bytes[at..at + superblock.0.len()].copy_from_slice(&superblock.0);
    Start::new(bytes, map(), DATA)
}

fn seed(seed: u64, rounds: u32, cuts: u64, seen: &mut HashSet<u64>) {
    println!("UEXT4_CRASH_SEED={seed}");
    let mut random = Rng::new(seed);
    let mut start = fresh(seed);
    let caching = [Caching::Fua, Caching::Flush, Caching::Fua, Caching::Durable][seed as usize % 4];
    for _ in 0..3 {
        let options = JournalOptions {
            wide: random.chance(30),
            checksums: random.chance(30),
            ..JournalOptions::default()
        };
        let run = run(start, caching, &options, rounds, &mut random);
        start = crash(&run, cuts, &mut random, seen, &mut |_, _| ());
    }
}

/// The device fails at operation `n`, once or ever after, for every `n`: what was promised before is there, and nothing
/// that was not whole.
#[test]
fn every_failure_keeps_what_was_promised() {
    let mut failures = 0;
    for (seed, caching, once) in [
        (1, Caching::Fua, true),
        (1, Caching::Fua, false),
        (2, Caching::Flush, true),
        (3, Caching::Durable, false),
        (6, Caching::Fua, true),
    ] {
        for operation in (seed..4000).step_by(7) {
            let mut random = Rng::new(seed);
            let options = JournalOptions { wide: false, checksums: true, ..JournalOptions::default() };
            let (run, result) = run_with(fresh(seed), caching, &options, 60, &mut random, operation, once);
            let failed = run.hooks.device.failed.load(SeqCst);
            if caching == Caching::Durable {
                check(&run, run.hooks.device.bytes(), &promises(&run));
            }
            crash(&run, 4, &mut random, &mut HashSet::new(), &mut |_, _| ());
            if !failed {
                assert!(result.is_ok());
                break;
            }
            failures += 1;
        }
    }
    println!("{failures} failures");
    assert!(failures > 100, "{failures}");
}

fn promises(run: &Run) -> Vec<u64> {
    let events = run.hooks.device.events();
    let promise = |event: &Event| if let Event::Promise(tid) = event { Some(*tid) } else { None };
    events.iter().filter_map(promise).collect()
}

#[test]
fn every_crash_recovers_to_a_promised_state() {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse::<u64>().ok());
    let mut seen = HashSet::new();
    match (number("UEXT4_CRASH_SEED"), number("UEXT4_CRASH_SEEDS")) {
        (Some(one), _) => seed(one, 400, 400, &mut seen),
        (_, count) => (0..count.unwrap_or(15)).for_each(|n| seed(n, 300, 60, &mut seen)),
    }
    println!("{} distinct states", seen.len());
    assert!(seen.len() > 1000);
}
