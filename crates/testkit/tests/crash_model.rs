//! The legal states against a disk that is played: a cache that writes blocks back whenever it likes.

use crate::script;

use script::{BLOCK, BLOCKS, Script};
use std::collections::BTreeSet;
use uext4_blockdev::Op;
use uext4_testkit::Rng;
use uext4_testkit::device::{CrashEvent, CrashOutcome};

/// A log of a few requests in flight together over three blocks.
fn random_log(rng: &mut Rng) -> Script {
    let mut script = Script::new();
    let mut flying = Vec::new();
    let mut fill = b'A';
    for _ in 0..rng.range(4..10) {
        if flying.len() > 1 || (!flying.is_empty() && rng.chance(50)) {
            let number = flying.swap_remove(rng.below(flying.len() as u64) as usize);
            let failed = rng.chance(8);
            script.end(number, if failed { CrashOutcome::Failed } else { CrashOutcome::Done });
        } else if rng.chance(25) {
            flying.push(script.submit(Op::Flush, 0, &[], false));
        } else {
            let block = rng.below(3);
            let count = rng.range(1..4 - block) as usize;
            flying.push(script.submit(Op::Write, block, &vec![fill; count], rng.chance(25)));
            fill += 1;
        }
    }
    script
}

/// A disk with a volatile cache. A block is a byte here.
#[derive(Default)]
struct Disk {
    medium: [u8; BLOCKS],
    cache: [Option<u8>; BLOCKS],
    /// Writes in flight or failed, of which any block may come through at any time: first block, its byte, how many.
    arriving: Vec<(usize, usize, u8, usize)>,
    /// Flushes in flight: the blocks that were dirty when they were submitted.
    flushing: Vec<(usize, Vec<usize>)>,
}

impl Disk {
    fn write_back(&mut self, block: usize) {
        if let Some(byte) = self.cache[block].take() {
            self.medium[block] = byte;
        }
    }

    /// What a disk does by itself.
    fn stir(&mut self, rng: &mut Rng) {
        for _ in 0..rng.below(4) {
            self.write_back(rng.below(BLOCKS as u64) as usize);
            if !self.arriving.is_empty() {
                let (_, start, byte, count) = *rng.pick(&self.arriving);
                self.medium[start + rng.below(count as u64) as usize] = byte;
            }
        }
    }

    fn happen(&mut self, script: &Script, event: &CrashEvent) {
        let (CrashEvent::Submitted(number) | CrashEvent::Completed(number)) = event else { return };
        let operation = &script.0.operations[*number];
        let (start, count) = (operation.pos as usize / BLOCK, operation.length as usize / BLOCK);
        let byte = operation.data.as_ref().map_or(0, |data| data[0]);
        match (event, operation.op) {
            (CrashEvent::Submitted(_), Op::Flush) => {
                let dirty = (0..BLOCKS).filter(|&block| self.cache[block].is_some()).collect();
                self.flushing.push((*number, dirty));
            }
            (CrashEvent::Submitted(_), _) => self.arriving.push((*number, start, byte, count)),
            _ if operation.outcome == CrashOutcome::Failed => {}
            (_, Op::Flush) => {
                let index = self.flushing.iter().position(|flush| flush.0 == *number).unwrap();
                self.flushing.swap_remove(index).1.into_iter().for_each(|block| self.write_back(block));
            }
            _ => {
                self.arriving.retain(|arriving| arriving.0 != *number);
                for block in start..start + count {
                    self.cache[block] = Some(byte);
                    if operation.fua {
                        self.write_back(block);
                    }
                }
            }
        }
    }
}

/// Everything that crashes of many played disks leave.
fn played(script: &Script, rng: &mut Rng) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for _ in 0..4000 {
        let mut disk = Disk::default();
        let cut = rng.below(script.0.events.len() as u64 + 1) as usize;
        for event in &script.0.events[..cut] {
            disk.happen(script, event);
            disk.stir(rng);
        }
        let text: String =
            disk.medium.map(|byte| if byte == 0 { '.' } else { byte as char }).iter().collect();
        found.insert(text.trim_end_matches('.').to_owned());
    }
    found
}

#[test]
fn a_played_disk_reaches_the_legal_states_and_no_other() {
    let (mut legal_states, mut reached) = (0, 0);
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let script = random_log(&mut rng);
        let (legal, report) = script.states_with(|options| options.exhaustive = u64::MAX);
        assert!(report.complete, "seed {seed}: {report}");
        let played = played(&script, &mut rng);
        let beyond: Vec<_> = played.difference(&legal).collect();
        assert!(beyond.is_empty(), "seed {seed}: {beyond:?} of {:#?}", script.0.events);
        (legal_states, reached) = (legal_states + legal.len(), reached + played.len());
    }
    println!("{reached} of {legal_states}");
    // Seldom ones are not reached by chance.
    assert!(legal_states > 1000 && reached * 100 >= legal_states * 97, "{reached} of {legal_states}");
}
