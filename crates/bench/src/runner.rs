//! Runs slices: threads wait, start together, run until stopped, and report.

use super::arm::Arm;
use super::error::{BenchError, Result};
use super::ops::{Op, OpSource};
use super::session::Session;
use super::work::{Lane, Latencies, Tally, Work};
use rustix::time::ClockId;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};
use uext4::{QueueFacts, Stats};

/// One arm in one round.
#[derive(Debug, Clone)]
pub struct Slice {
    /// Which arm.
    pub arm: Arm,
    /// Which round: slices of one round had the same requests and are compared with each other.
    pub round: u32,
    /// Requests done by all threads together.
    pub tally: Tally,
    /// From the first thread's start to the last thread's end.
    pub wall: Duration,
    /// Processor time of this process meanwhile.
    pub cpu: Duration,
    /// The library's counters.
    pub counters: Option<Stats>,
}

/// Results of a session.
pub struct Run {
    /// Every slice that counts.
    pub slices: Vec<Slice>,
    /// By arm of the session.
    pub latencies: Vec<Latencies>,
    /// Facts about the first thread's queue.
    pub facts: Option<QueueFacts>,
}

/// A turn of one arm.
#[derive(Debug, Clone, Copy)]
pub struct ArmTurn {
    /// Index into the session's arms.
    pub arm: usize,
    /// The round, which seeds the requests.
    pub round: u32,
    /// Not reported: it fills caches and makes first uses.
    pub warm_up: bool,
}

/// The turns of `rounds`: each arm once a round, in turning order, after a warm-up of each.
pub fn schedule(arms: usize, rounds: std::ops::Range<u32>) -> Vec<ArmTurn> {
    let warm_up = (0..arms).map(|arm| ArmTurn { arm, round: u32::MAX, warm_up: true });
    let turns = rounds.flat_map(|round| {
        let order: Box<dyn Iterator<Item = usize>> =
            if round % 2 == 0 { Box::new(0..arms) } else { Box::new((0..arms).rev()) };
        order.map(move |arm| ArmTurn { arm, round, warm_up: false })
    });
    warm_up.chain(turns).collect()
}

/// A thread's report after a slice.
struct Report {
    tally: Tally,
    start: Instant,
    end: Instant,
}

/// The line to one thread.
struct Thread<'scope> {
    turns: Sender<ArmTurn>,
    reports: Receiver<Result<Report>>,
    handle: thread::ScopedJoinHandle<'scope, Result<Ended>>,
}

struct Ended {
    latencies: Vec<Latencies>,
    facts: Option<QueueFacts>,
}

/// State shared by the threads of a session.
struct Shared<'a> {
    session: &'a dyn Session,
    source: &'a OpSource,
    stop: AtomicBool,
    /// Requests are made before it.
    ready: Barrier,
    /// The slice starts after it.
    go: Barrier,
}

/// Runs `turns` with the threads of `source`. `step` is called after each.
pub fn run(
    session: &dyn Session,
    source: &OpSource,
    turns: &[ArmTurn],
    slice: Duration,
    step: &mut dyn FnMut(),
) -> Result<Run> {
    let shared = Shared {
        session,
        source,
        stop: AtomicBool::new(false),
        ready: Barrier::new(source.shape.all_threads() + 1),
        go: Barrier::new(source.shape.all_threads() + 1),
    };
    thread::scope(|scope| {
        let spawn = |number| {
            let (turns, inbox) = mpsc::channel();
            let (outbox, reports) = mpsc::channel();
            let shared = &shared;
            let handle = scope.spawn(move || work(shared, number, &inbox, &outbox));
            Thread { turns, reports, handle }
        };
        let threads: Vec<Thread<'_>> = (0..source.shape.all_threads()).map(spawn).collect();
        let slices = conduct(&shared, &threads, turns, slice, step);
        let mut latencies: Option<Vec<Latencies>> = None;
        let mut facts = None;
        let mut failure = None;
        for Thread { turns, reports, handle } in threads {
            drop((turns, reports));
            let ended = handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            match (ended, &mut latencies) {
                (Err(error), _) => failure = failure.or(Some(error)),
                (Ok(ended), None) => (latencies, facts) = (Some(ended.latencies), ended.facts),
                (Ok(ended), Some(sums)) => {
                    sums.iter_mut().zip(&ended.latencies).try_for_each(|(sum, one)| sum.add(one))?;
                }
            }
        }
        // A thread that could not start explains more than the conductor that missed it.
        match failure {
            Some(error) => Err(error),
            None => Ok(Run { slices: slices?, latencies: latencies.unwrap_or_default(), facts }),
        }
    })
}

/// One thread: creates its lane, reports that, then runs turn after turn until there are no more.
fn work(
    shared: &Shared<'_>,
    number: usize,
    turns: &Receiver<ArmTurn>,
    reports: &Sender<Result<Report>>,
) -> Result<Ended> {
    let arms = shared.session.arms();
    let beside = number >= shared.source.shape.threads;
    let mut lane = shared.session.lane(beside)?;
    let mut latencies = arms.iter().map(|_| Latencies::new()).collect::<Result<Vec<_>>>()?;
    let mut unused = Latencies::new()?;
    let mut ops: Vec<Op> = Vec::new();
    let now = Instant::now();
    // A receiver that is gone has failed, and reports its own error.
    let _gone = reports.send(Ok(Report { tally: Tally::default(), start: now, end: now }));
    while let Ok(turn) = turns.recv() {
        prepare(shared.source, arms[turn.arm], turn.round, number, &mut ops);
        let latencies = if turn.warm_up || beside { &mut unused } else { &mut latencies[turn.arm] };
        let mut report = slice(shared, lane.as_mut(), turn.arm, &ops, latencies);
        if let (Ok(report), true) = (&mut report, beside) {
            report.tally = report.tally.as_beside();
        }
        let _gone = reports.send(report);
    }
    Ok(Ended { latencies, facts: lane.facts() })
}

fn slice(
    shared: &Shared<'_>,
    lane: &mut dyn Lane,
    arm: usize,
    ops: &[Op],
    latencies: &mut Latencies,
) -> Result<Report> {
    let mut tally = Tally::default();
    shared.ready.wait();
    shared.go.wait();
    let start = Instant::now();
    let once = shared.source.shape.order.is_once();
    lane.run(arm, Work { ops, once, stop: &shared.stop, tally: &mut tally, latencies })?;
    Ok(Report { tally, start, end: Instant::now() })
}

/// The requests of an arm: the same for all, where each finds them.
fn prepare(source: &OpSource, arm: Arm, round: u32, thread: usize, ops: &mut Vec<Op>) {
    source.fill(u64::from(round), thread, ops);
    match arm {
        Arm::Raw => source.translate(ops),
        // The second file of that scenario is the one in one piece.
        Arm::OneExtent => ops.iter_mut().for_each(|op| op.file = 1),
        Arm::On | Arm::Off | Arm::AllOff | Arm::Kernel | Arm::NoDsync | Arm::OneThread => {}
    }
}

fn conduct(
    shared: &Shared<'_>,
    threads: &[Thread<'_>],
    turns: &[ArmTurn],
    slice: Duration,
    step: &mut dyn FnMut(),
) -> Result<Vec<Slice>> {
    for thread in threads {
        receive(thread)?;
    }
    let mut slices = Vec::with_capacity(turns.len());
    for &turn in turns {
        shared.stop.store(false, Ordering::Relaxed);
        shared.session.renew(turn.arm)?;
        if shared.session.is_durable() {
            shared.session.make_durable()?;
        }
        for thread in threads {
            thread.turns.send(turn).map_err(|_gone| gone())?;
        }
        shared.ready.wait();
        let counters = shared.session.counters();
        let cpu = cpu_time();
        shared.go.wait();
        thread::sleep(slice);
        shared.stop.store(true, Ordering::Relaxed);
        // Wait for every thread's report, or one could still run in the next slice.
        let reports: Vec<Result<Report>> = threads.iter().map(receive).collect();
        let cpu = cpu_time().saturating_sub(cpu);
        let counters = shared.session.counters().zip(counters).map(|(after, before)| after.since(&before));
        let slice = sum(reports, shared.session.arms()[turn.arm], turn.round, cpu, counters)?;
        if !turn.warm_up {
            slices.push(slice);
        }
        step();
    }
    Ok(slices)
}

fn sum(
    reports: Vec<Result<Report>>,
    arm: Arm,
    round: u32,
    cpu: Duration,
    counters: Option<Stats>,
) -> Result<Slice> {
    let reports = reports.into_iter().collect::<Result<Vec<Report>>>()?;
    let mut tally = Tally::default();
    for report in &reports {
        tally += report.tally;
    }
    let start = reports.iter().map(|report| report.start).min();
    let end = reports.iter().map(|report| report.end).max();
    let wall = end.zip(start).map_or(Duration::ZERO, |(end, start)| end - start);
    if tally.ops() == 0 || wall.is_zero() {
        return Err(BenchError::failed(format!("arm {} did nothing in a whole slice", arm.name())));
    }
    Ok(Slice { arm, round, tally, wall, cpu, counters })
}

fn gone() -> BenchError {
    BenchError::failed("a thread ended early")
}

fn receive(thread: &Thread<'_>) -> Result<Report> {
    thread.reports.recv().unwrap_or_else(|_closed| Err(gone()))
}

/// Processor time of all threads of this process.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Addresses, Shape};
    use crate::scenario::Order;
    use std::sync::Mutex;

    #[test]
    fn rounds_turn_the_order_round() {
        let turns = schedule(3, 4..6);
        let arms: Vec<usize> = turns.iter().map(|turn| turn.arm).collect();
        assert_eq!(arms, [0, 1, 2, 0, 1, 2, 2, 1, 0]);
        assert_eq!(turns.iter().filter(|turn| turn.warm_up).count(), 3);
    }

    /// Notes which requests each arm got; fails in a chosen place.
    struct Script {
        seen: Mutex<Vec<(Arm, Op)>>,
        fail_lane: bool,
        fail_run: bool,
    }

    struct ScriptLane<'a>(&'a Script);

    impl Session for Script {
        fn arms(&self) -> &[Arm] {
            &[Arm::On, Arm::Raw, Arm::OneExtent]
        }

        fn lane(&self, _beside: bool) -> Result<Box<dyn Lane + '_>> {
            if self.fail_lane { Err(BenchError::failed("no lane")) } else { Ok(Box::new(ScriptLane(self))) }
        }

        fn renew(&self, _arm: usize) -> Result<()> {
            Ok(())
        }

        fn make_durable(&self) -> Result<()> {
            Ok(())
        }

        fn is_durable(&self) -> bool {
            false
        }

        fn counters(&self) -> Option<Stats> {
            None
        }
    }

    impl Lane for ScriptLane<'_> {
        fn run(&mut self, arm: usize, work: Work<'_>) -> Result<()> {
            if self.0.fail_run {
                return Err(BenchError::failed("no luck"));
            }
            self.0.seen.lock().unwrap().push((self.0.arms()[arm], work.ops[0]));
            work.tally.reads = 10;
            while !work.stop.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            Ok(())
        }

        fn facts(&self) -> Option<QueueFacts> {
            None
        }
    }

    fn source() -> OpSource {
        let piece =
            uext4::Piece { logical: 0, physical: 1 << 30, length: 1 << 20, state: uext4::State::Written };
        let addresses = Addresses::of_pieces(vec![vec![piece]; 2], 1 << 20);
        let shape =
            Shape { block: 4096, write_percent: 0, order: Order::Random, threads: 2, beside: 1, files: 1 };
        OpSource::new(addresses, shape).unwrap()
    }

    fn run_script(script: &Script) -> Result<Run> {
        let turns = schedule(3, 0..2);
        run(script, &source(), &turns, Duration::from_millis(2), &mut || {})
    }

    #[test]
    fn all_arms_of_a_round_get_the_same_requests() {
        let script = Script { seen: Mutex::default(), fail_lane: false, fail_run: false };
        let run = run_script(&script).unwrap();
        assert_eq!(run.slices.len(), 6);
        assert!(run.slices.iter().all(|slice| slice.tally.reads == 20 && !slice.wall.is_zero()));
        assert!(run.slices.iter().all(|slice| slice.tally.beside == 10), "a thread beside is no part of it");
        let seen = script.seen.into_inner().unwrap();
        let of = |arm: Arm| {
            let mut ops: Vec<Op> = seen.iter().filter(|(of, _)| *of == arm).map(|(_, op)| *op).collect();
            ops.sort_unstable_by_key(|op| op.pos);
            ops
        };
        let on = of(Arm::On);
        assert_eq!(on.len(), 9, "three threads, a warm-up and two rounds");
        let shifted: Vec<u64> = on.iter().map(|op| op.pos + (1 << 30)).collect();
        assert_eq!(of(Arm::Raw).iter().map(|op| op.pos).collect::<Vec<_>>(), shifted);
        assert!(of(Arm::OneExtent).iter().zip(&on).all(|(one, on)| one.pos == on.pos && one.file == 1));
    }

    #[test]
    fn a_failing_thread_ends_the_run_with_its_own_words() {
        let script = Script { seen: Mutex::default(), fail_lane: true, fail_run: false };
        assert_eq!(run_script(&script).err().unwrap().to_string(), "no lane");
        let script = Script { seen: Mutex::default(), fail_lane: false, fail_run: true };
        assert_eq!(run_script(&script).err().unwrap().to_string(), "no luck");
    }
}
