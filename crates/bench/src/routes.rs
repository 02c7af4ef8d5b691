//! Checks that the counters show the route that an arm is meant to take. A measurement of another route is void.

use super::arm::Arm;
use super::error::{BenchError, Result};
use super::session::Requests;
use super::work::Tally;
use uext4::device::Capabilities;
use uext4::{Counter, Stats, Switches};

/// What the expectation depends on.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// The requests.
    pub requests: Requests,
    /// What the device can do.
    pub device: Capabilities,
    /// File-system block size, bytes.
    pub block_size: u32,
    /// The volume has a journal, so that there are handles to start.
    pub journal: bool,
}

/// Checks what was counted while `tally` was done with these switches; `None`: past the library.
pub fn check(
    arm: Arm,
    switches: Option<Switches>,
    facts: &Facts,
    tally: Tally,
    counted: &Stats,
) -> Result<()> {
    if facts.requests.renewed.is_some() {
        return changing(arm, facts, tally, counted);
    }
    let wrong = match switches {
        None => beside(counted),
        Some(switches) => expectations(arm, switches, facts, tally)
            .into_iter()
            .find(|(counter, expected)| !expected.holds(counted.get(*counter)))
            .map(|(counter, expected)| {
                format!("{} is {}, not {expected}", counter.name(), counted.get(counter))
            }),
    };
    match wrong {
        None => Ok(()),
        Some(wrong) => Err(BenchError::failed(format!(
            "arm {} took another route, its measurement is void: of {} reads and {} writes {wrong}",
            arm.name(),
            tally.reads,
            tally.writes
        ))),
    }
}

/// Writes that change a volume have no fixed counts: how often they commit and load is what is measured. None of them
/// is refused, and no overwrite is among them.
fn changing(arm: Arm, facts: &Facts, tally: Tally, counted: &Stats) -> Result<()> {
    let overwrites = counted.get(Counter::OverwritesWithoutHandle);
    let refused = counted.get(Counter::AllocationsRefused);
    if overwrites + refused == 0 {
        return Ok(());
    }
    let (arm, writes, block) = (arm.name(), tally.writes, facts.requests.block);
    Err(BenchError::failed(format!(
        "arm {arm} took another route, its measurement is void: of {writes} writes of {block} bytes \
         {overwrites} were overwrites and {refused} refused"
    )))
}

/// The raw arm must not touch the library at all.
fn beside(counted: &Stats) -> Option<String> {
    let (name, value) = counted.iter().find(|(_, value)| *value != 0)?;
    Some(format!("{name} is {value}, not 0"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Exactly(u64),
    AtLeast(u64),
}

impl Expected {
    fn holds(self, value: u64) -> bool {
        match self {
            Expected::Exactly(expected) => value == expected,
            Expected::AtLeast(least) => value >= least,
        }
    }
}

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Expected::Exactly(value) => write!(f, "{value}"),
            Expected::AtLeast(value) => write!(f, "at least {value}"),
        }
    }
}

fn expectations(arm: Arm, switches: Switches, facts: &Facts, tally: Tally) -> Vec<(Counter, Expected)> {
    use Counter as C;
    use Expected::{AtLeast, Exactly};
    let (reads, measured, writes) = (tally.reads, tally.writes, tally.writes + tally.beside);
    let dax = facts.device.dax.is_some();
    let subblock = !facts.requests.block.is_multiple_of(facts.block_size as usize);
    // A write that runs alone is mapped again after it waited for the gate: at least one handle for each.
    let alone = subblock && !switches.shared_subblock_overwrite && writes > 0;
    let mapped = if alone { AtLeast(writes) } else { Exactly(writes) };
    let none = Exactly(0);
    let simple = if dax { 0 } else { reads };
    let handles = !switches.overwrite_no_transaction && facts.journal;
    // A request that holds the gate exclusively to its end is not counted.
    let uncounted = if alone && !dax { writes } else { 0 };
    let counted = if dax && switches.dax_no_dio_count { 0 } else { reads + writes - uncounted };
    let mut list = vec![
        (C::Bounces, none),
        (C::AllocationsRefused, none),
        (C::PrivilegesDropped, none),
        (C::WouldBlock, none),
        (C::MapLoads, none),
        (C::Commits, none),
        (C::DrainStalls, none),
        (C::SimpleReads, Exactly(if switches.simple_read { simple } else { 0 })),
        (C::GeneralReads, Exactly(if switches.simple_read { 0 } else { simple })),
        (C::DaxCopies, Exactly(if dax { reads + writes } else { 0 })),
        (C::DioCounted, Exactly(counted)),
        (C::ExclusiveWrites, Exactly(if alone { writes } else { 0 })),
        (C::SharedSubblockWrites, Exactly(if subblock && !alone { writes } else { 0 })),
        (C::OverwritesWithoutHandle, Exactly(if handles { 0 } else { writes })),
        (C::HandlesStarted, if handles { mapped } else { none }),
    ];
    let durable = facts.requests.dsync && arm != Arm::NoDsync && measured > 0;
    let fua = durable && switches.fua_dsync_overwrite && facts.device.fua;
    let flushes = durable && !(switches.fua_dsync_overwrite && facts.device.durable_without_flush());
    list.push((C::FuaWrites, Exactly(if fua { measured } else { 0 })));
    list.push((C::Flushes, if flushes && facts.device.volatile_cache { AtLeast(1) } else { none }));
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Mode;

    const FACTS: Facts = Facts {
        requests: Requests {
            block: 4096,
            depth: 1,
            mode: Mode::Synchronous,
            dsync: false,
            fsync: false,
            renewed: None,
            file_bytes: 1 << 20,
            register: true,
        },
        device: Capabilities {
            volatile_cache: true,
            fua: true,
            nowait: true,
            discard: true,
            read_only: false,
            dax: None,
        },
        block_size: 4096,
        journal: true,
    };

    fn expected(switches: Switches, facts: &Facts, tally: Tally, counter: Counter) -> Expected {
        expectations(Arm::On, switches, facts, tally)
            .into_iter()
            .find(|(other, _)| *other == counter)
            .unwrap()
            .1
    }

    #[test]
    fn every_switch_moves_its_counters() {
        let tally = Tally { reads: 10, writes: 7, beside: 0 };
        let (on, off) = (Switches::ON, Switches::OFF);
        let all = |switches, counter| expected(switches, &FACTS, tally, counter);
        assert_eq!(all(on, Counter::SimpleReads), Expected::Exactly(10));
        assert_eq!(all(off, Counter::GeneralReads), Expected::Exactly(10));
        assert_eq!(all(on, Counter::OverwritesWithoutHandle), Expected::Exactly(7));
        assert_eq!(all(off, Counter::HandlesStarted), Expected::Exactly(7));
        assert_eq!(all(on, Counter::HandlesStarted), Expected::Exactly(0));
        let dsync = Facts { requests: Requests { dsync: true, ..FACTS.requests }, ..FACTS };
        assert_eq!(expected(on, &dsync, tally, Counter::FuaWrites), Expected::Exactly(7));
        assert_eq!(expected(on, &dsync, tally, Counter::Flushes), Expected::Exactly(0));
        assert_eq!(expected(off, &dsync, tally, Counter::Flushes), Expected::AtLeast(1));
        let mixed = Tally { beside: 100, ..tally };
        assert_eq!(expected(on, &dsync, mixed, Counter::FuaWrites), Expected::Exactly(7));
        assert_eq!(expected(on, &dsync, mixed, Counter::OverwritesWithoutHandle), Expected::Exactly(107));
        let plain = expectations(Arm::NoDsync, on, &dsync, tally);
        assert!(plain.contains(&(Counter::FuaWrites, Expected::Exactly(0))));
        let small = Facts { requests: Requests { block: 2048, ..FACTS.requests }, ..FACTS };
        assert_eq!(expected(on, &small, tally, Counter::SharedSubblockWrites), Expected::Exactly(7));
        assert_eq!(expected(off, &small, tally, Counter::ExclusiveWrites), Expected::Exactly(7));
        assert_eq!(expected(on, &small, tally, Counter::DioCounted), Expected::Exactly(17));
        assert_eq!(expected(off, &small, tally, Counter::DioCounted), Expected::Exactly(10));
        let bare = Facts { journal: false, ..FACTS };
        assert_eq!(expected(off, &bare, tally, Counter::OverwritesWithoutHandle), Expected::Exactly(7));
        let dax = Some(uext4::device::DaxKind::Msync);
        let dax = Facts { device: Capabilities { dax, ..FACTS.device }, ..FACTS };
        assert_eq!(expected(on, &dax, tally, Counter::DioCounted), Expected::Exactly(0));
        assert_eq!(expected(off, &dax, tally, Counter::DioCounted), Expected::Exactly(17));
        assert_eq!(expected(on, &dax, tally, Counter::DaxCopies), Expected::Exactly(17));
    }

    #[test]
    fn a_wrong_route_voids_the_measurement() {
        let tally = Tally { reads: 1, writes: 0, beside: 0 };
        let error = check(Arm::On, Some(Switches::ON), &FACTS, tally, &Stats::default()).unwrap_err();
        assert!(error.to_string().contains("simple_reads is 0, not 1"), "{error}");
        check(Arm::Raw, None, &FACTS, tally, &Stats::default()).unwrap();
    }
}
