//! Logs written down by hand.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::sync::Arc;
use uext4_blockdev::Op;
use uext4_testkit::crash::{Options, Report, for_each_state};
use uext4_testkit::device::{CrashEvent, CrashLog, CrashOperation, CrashOutcome};

pub const BLOCK: usize = 512;
/// Blocks of the device.
pub const BLOCKS: usize = 8;

/// A log written down by hand. Positions and lengths are blocks.
pub struct Script(pub CrashLog);

impl Script {
    pub fn new() -> Self {
        Script(CrashLog {
            block: BLOCK as u32,
            volatile_cache: true,
            base: vec![0; BLOCKS * BLOCK].into(),
            operations: Vec::new(),
            events: Vec::new(),
        })
    }

    pub fn submit(&mut self, op: Op, block: u64, fill: &[u8], fua: bool) -> usize {
        let data: Vec<u8> = fill.iter().flat_map(|&byte| [byte; BLOCK]).collect();
        self.0.operations.push(CrashOperation {
            op,
            pos: block * BLOCK as u64,
            length: data.len() as u64,
            fua,
            queued: true,
            data: (op == Op::Write).then(|| Arc::from(data)),
            outcome: CrashOutcome::InFlight,
        });
        let number = self.0.operations.len() - 1;
        self.0.events.push(CrashEvent::Submitted(number));
        number
    }

    pub fn start(&mut self, block: u64, fill: &[u8]) -> usize {
        self.submit(Op::Write, block, fill, false)
    }

    pub fn end(&mut self, number: usize, outcome: CrashOutcome) {
        self.0.operations[number].outcome = outcome;
        self.0.events.push(CrashEvent::Completed(number));
    }

    pub fn done(&mut self, number: usize) {
        self.end(number, CrashOutcome::Done);
    }

    pub fn write(&mut self, block: u64, fill: &[u8]) {
        let number = self.start(block, fill);
        self.done(number);
    }

    pub fn fua(&mut self, block: u64, fill: &[u8]) {
        let number = self.submit(Op::Write, block, fill, true);
        self.done(number);
    }

    pub fn flush(&mut self) {
        let number = self.submit(Op::Flush, 0, &[], false);
        self.done(number);
    }

    /// The first byte of each block, for every state.
    pub fn states_with(&self, change: impl FnOnce(&mut Options)) -> (BTreeSet<String>, Report) {
        let mut options = Options::new("count", 1);
        change(&mut options);
        let mut states = BTreeSet::new();
        let report = for_each_state(&self.0, &options, |state| {
            let bytes = state.image().bytes();
            let name = |block: &[u8]| match block[0] {
                _ if block.iter().any(|&byte| byte != block[0]) => '?',
                0 => '.',
                b'A'..=b'Z' => block[0] as char,
                _ => '#',
            };
            states.insert(bytes.chunks(BLOCK).map(name).collect::<String>().trim_end_matches('.').into());
            Ok(())
        });
        (states, report.unwrap())
    }

    #[track_caller]
    pub fn assert(&self, expected: &[&str]) {
        let (states, report) = self.states_with(|_| {});
        assert_eq!(states, expected.iter().map(|&state| state.into()).collect());
        assert!(report.complete && report.images == expected.len(), "{report} {report:?}");
    }
}
