//! Measures one case: opens and closes sessions, adds up slices, checks routes, forms ratios.
//!
//! The arms of a session alternate slice by slice. Where a queue's or a map's memory comes to lie is worth some
//! percent at a few hundred nanoseconds a request, and stays for a session: so queued cases and look-ups open the
//! volume anew for each group of rounds, and which arm's memory is taken first alternates. A mount cannot be changed
//! every 50 ms: with `--kernel` a group of the library's arms and a group of the kernel's follow each other, and which
//! of them comes first alternates. Slices of one round have the same requests in both.

use super::arm::Arm;
use super::error::{BenchError, Result};
use super::load::{Load, Meter};
use super::machine::pinnable;
use super::ops::{Addresses, Op, OpSource, Shape};
use super::report::model::{self, Measured, MeasuredArm};
use super::routes::{self, Facts};
use super::runner::{self, Run, Slice};
use super::scenario::{LOOKUP_SCALING, Mode, Scenario};
use super::session::{KernelSession, Requests, Session, VolumeSession};
use super::settings::Timing;
use super::statistics::{Ratio, median};
use super::volume::Bed;
use super::work::{Latencies, Tally};
use std::collections::BTreeMap;
use std::time::Duration;
use uext4::device::Description;
use uext4::{Counter, QueueFacts, Switches};

/// Rounds between two changes of mount, or two openings.
const GROUP: u32 = 4;

/// Requests whose bytes are read both ways before anything is measured.
const COMPARED: usize = 256;

/// One case: a scenario on one volume, at one depth.
#[derive(Debug, Clone)]
pub struct Case {
    /// The scenario.
    pub scenario: &'static Scenario,
    /// Threads.
    pub threads: usize,
    /// Requests in flight per thread.
    pub depth: u32,
    /// Maximum bytes used of each file.
    pub span: u64,
    /// The requested arms of the library and `raw`.
    pub arms: Vec<Arm>,
    /// Measure the kernel too, if possible.
    pub kernel: bool,
    /// The setting of arm `on`.
    pub switches: Switches,
    /// Duration and slices.
    pub timing: Timing,
}

impl Case {
    /// Its requests.
    fn requests(&self) -> Requests {
        let scenario = self.scenario;
        let block = scenario.block as usize;
        let Scenario { mode, dsync, fsync, renewed, .. } = *scenario;
        let (depth, file_bytes) = (self.depth, self.span);
        let requests = Requests { block, depth, mode, dsync, fsync, renewed, file_bytes, register: true };
        // The library's queue and the raw one of each thread, or neither: arms with and without are not compared. Three
        // quarters of what may be pinned are left to the rings and to what the kernel has still to free.
        let bytes = 2 * (self.threads * requests.queue_bytes()) as u64;
        Requests { register: pinnable().is_none_or(|most| bytes <= most / 4), ..requests }
    }

    /// Arms of the library's session with their switches.
    fn library_arms(&self, raw: bool) -> Vec<(Arm, Option<Switches>)> {
        let mut arms = self.arms.clone();
        arms.sort_unstable();
        arms.dedup();
        // Without a switch of its own, `off` is `all-off`.
        if self.scenario.switch.is_none() && arms.contains(&Arm::Off) {
            arms.retain(|&arm| arm != Arm::AllOff);
        }
        arms.extend(self.scenario.reference);
        if self.scenario.renewed.is_some() {
            // Blocks not yet allocated have no place on the device, and no switch concerns them.
            arms.retain(|&arm| !matches!(arm, Arm::Raw | Arm::Off | Arm::AllOff));
        }
        arms.retain(|&arm| raw || arm != Arm::Raw);
        arms.into_iter().map(|arm| (arm, arm.switches(self.switches, self.scenario.switch))).collect()
    }

    fn is_reopened(&self) -> bool {
        matches!(self.scenario.mode, Mode::Queued { .. }) || self.scenario.name == LOOKUP_SCALING
    }

    /// Turns of the arms that [`measure`] will take, for a progress bar.
    pub fn turns(&self, bed: &Bed) -> u64 {
        let kernel = self.kernel && bed.block_device.is_some();
        let arms = self.library_arms(true).len() as u64 + u64::from(kernel);
        let sessions = if kernel || self.is_reopened() { self.timing.rounds.div_ceil(GROUP) } else { 1 };
        arms * u64::from(self.timing.rounds + sessions)
    }
}

/// Results accumulated over sessions.
struct Sums {
    slices: Vec<Slice>,
    latencies: BTreeMap<Arm, Latencies>,
    facts: Option<QueueFacts>,
}

impl Sums {
    fn add(&mut self, arms: &[Arm], run: Run) -> Result<()> {
        self.slices.extend(run.slices);
        for (&arm, latencies) in arms.iter().zip(&run.latencies) {
            match self.latencies.get_mut(&arm) {
                Some(sum) => sum.add(latencies)?,
                None => drop(self.latencies.insert(arm, latencies.clone())),
            }
        }
        self.facts = self.facts.take().or(run.facts);
        Ok(())
    }
}

/// Facts gathered before the first slice.
struct Bench<'a> {
    case: &'a Case,
    bed: &'a Bed,
    source: OpSource,
    arms: Vec<(Arm, Option<Switches>)>,
    route: Facts,
    description: Description,
    notes: Vec<String>,
}

/// Measures a case. The volume is closed afterwards, for e2fsck, which must find it in order.
pub fn measure(case: &Case, bed: &Bed, step: &mut dyn FnMut()) -> Result<Measured> {
    let bench = Bench::prepare(case, bed)?;
    let meter = Meter::start();
    let mut sums = Sums { slices: Vec::new(), latencies: BTreeMap::new(), facts: None };
    let rounds = case.timing.rounds;
    match &bed.block_device {
        Some(device) if case.kernel => {
            for (number, first) in (0..rounds).step_by(GROUP as usize).enumerate() {
                let group = first..rounds.min(first + GROUP);
                // Which arm comes first and whose memory is taken first are independent.
                let raw_first = number / 2 % 2 == 1;
                if number % 2 == 0 {
                    bench.run_library(group.clone(), raw_first, &mut sums, step)?;
                    bench.run_kernel(device, group, &mut sums, step)?;
                } else {
                    bench.run_kernel(device, group.clone(), &mut sums, step)?;
                    bench.run_library(group, raw_first, &mut sums, step)?;
                }
            }
        }
        _ if case.is_reopened() => {
            for (number, first) in (0..rounds).step_by(GROUP as usize).enumerate() {
                bench.run_library(first..rounds.min(first + GROUP), number % 2 == 1, &mut sums, step)?;
            }
        }
        _ => bench.run_library(0..rounds, false, &mut sums, step)?,
    }
    bench.conclude(sums, meter.load())
}

impl<'a> Bench<'a> {
    fn prepare(case: &'a Case, bed: &'a Bed) -> Result<Self> {
        let volume = bed.open(case.switches)?;
        let device = volume.device().capabilities();
        let route = Facts {
            requests: case.requests(),
            device,
            block_size: volume.block_size(),
            journal: volume.info().journal.is_some(),
        };
        let mut notes = Vec::new();
        if matches!(case.scenario.mode, Mode::Queued { .. }) && !case.requests().register {
            notes.push(
                "buffers are not registered: RLIMIT_MEMLOCK (ulimit -l) is too low for them all".into(),
            );
        }
        // Without FUA `on` sends a flush after its writes, which no sequence of raw writes is the same as.
        let raw = !(case.scenario.dsync && device.volatile_cache && !device.fua);
        if !raw && case.arms.contains(&Arm::Raw) {
            notes.push("no arm raw: the device has a volatile cache and no FUA".into());
        }
        if case.scenario.beside > 0 {
            notes.push(format!("beside it {} threads of plain writes, in no rate", case.scenario.beside));
        }
        if case.kernel && bed.block_device.is_none() {
            notes.push("no arm kernel: not a block device".into());
        }
        let arms = case.library_arms(raw);
        let session = VolumeSession::new(volume, &bed.files, &arms, case.requests())?;
        let shape = Shape {
            block: u64::from(case.scenario.block),
            write_percent: case.scenario.write_percent,
            order: case.scenario.order,
            threads: case.threads,
            beside: case.scenario.beside,
            files: case.scenario.files,
        };
        let source = match case.scenario.renewed {
            Some(_) => OpSource::new(Addresses::unknown(shape.files, case.span), shape)?,
            None => compared(&session, bed, case.span, shape)?,
        };
        let description = session.volume().device().describe();
        Ok(Bench { case, bed, source, arms, route, description, notes })
    }

    fn slice(&self) -> Duration {
        Duration::from_secs_f64(self.case.timing.slice)
    }

    fn run_library(
        &self,
        rounds: std::ops::Range<u32>,
        raw_first: bool,
        sums: &mut Sums,
        step: &mut dyn FnMut(),
    ) -> Result<()> {
        let volume = self.bed.open(self.case.switches)?;
        let mut session = VolumeSession::new(volume, &self.bed.files, &self.arms, self.case.requests())?;
        session.raw_first = raw_first;
        // Loads the maps of this opening; the places are known already.
        if self.case.scenario.renewed.is_none() {
            session.addresses(&self.bed.files, self.case.span)?;
        }
        session.make_durable()?;
        let turns = runner::schedule(self.arms.len(), rounds);
        let run = runner::run(&session, &self.source, &turns, self.slice(), step)?;
        sums.add(session.arms(), run)
    }

    fn run_kernel(
        &self,
        device: &std::path::Path,
        rounds: std::ops::Range<u32>,
        sums: &mut Sums,
        step: &mut dyn FnMut(),
    ) -> Result<()> {
        let session = KernelSession::mount(device, &self.bed.files, self.case.requests())?;
        let turns = runner::schedule(1, rounds);
        let run = runner::run(&session, &self.source, &turns, self.slice(), step);
        let unmounted = session.unmount();
        sums.add(&[Arm::Kernel], run?)?;
        unmounted
    }

    fn conclude(self, sums: Sums, load: Option<Load>) -> Result<Measured> {
        let (case, scenario) = (self.case, self.case.scenario);
        let mut arms = Vec::new();
        let with_kernel = sums.slices.iter().any(|slice| slice.arm == Arm::Kernel);
        let kernel = with_kernel.then_some((Arm::Kernel, None));
        for &(arm, switches) in self.arms.iter().chain(&kernel) {
            let slices: Vec<&Slice> = sums.slices.iter().filter(|slice| slice.arm == arm).collect();
            let latencies = sums.latencies.get(&arm).cloned().map_or_else(Latencies::new, Ok)?;
            for slice in &slices {
                if let Some(counted) = &slice.counters {
                    routes::check(arm, switches, &self.route, slice.tally, counted)?;
                }
            }
            let lanes = (case.threads, case.depth);
            arms.push(measured_arm(arm, lanes, scenario.block, &slices, &latencies)?);
        }
        let grouped = with_kernel || self.case.is_reopened();
        let mut notes = self.notes;
        if let (Mode::Queued { poll: true, .. }, Some(facts)) = (self.case.scenario.mode, &sums.facts) {
            if !facts.polled {
                notes.push("not polled: the device cannot".into());
            }
            if !facts.registered_ring {
                notes.push("the ring is not registered with its thread".into());
            }
        }
        let opening = |round| if grouped { round / GROUP } else { round };
        notes.extend(load.and_then(|load| load.warning()));
        let (ratios, cpu_ratios) = (ratios(&sums.slices, rate, opening), cpu_ratios(&sums.slices, opening));
        Ok(Measured {
            scenario: scenario.name.into(),
            shape: scenario.shape.map(str::to_owned),
            switch: scenario.switch.map(str::to_owned),
            device: self.bed.label.clone(),
            engine: self.description.engine.into(),
            polled: sums.facts.is_some_and(|facts| facts.polled),
            seconds: f64::from(case.timing.rounds) * case.timing.slice,
            rounds: case.timing.rounds,
            arms,
            ratios: model::medians(&ratios),
            ratio_intervals: model::intervals(&ratios),
            cpu_ratios: model::medians(&cpu_ratios),
            cpu_ratio_intervals: model::intervals(&cpu_ratios),
            load,
            e2fsck: "clean".into(),
            notes,
        })
    }
}

/// Requests of the case, after some were read both through the files and from the device, with equal bytes.
fn compared(session: &VolumeSession, bed: &Bed, span: u64, shape: Shape) -> Result<OpSource> {
    let source = OpSource::new(session.addresses(&bed.files, span)?, shape)?;
    let mut ops: Vec<Op> = Vec::new();
    source.fill(0, 0, &mut ops);
    ops.truncate(COMPARED);
    let mut raw_ops = ops.clone();
    source.translate(&mut raw_ops);
    session.compare_with_raw(&bed.files, &ops, &raw_ops)?;
    Ok(source)
}

fn rate(slice: &Slice) -> f64 {
    slice.tally.ops() as f64 / slice.wall.as_secs_f64()
}

/// Nanoseconds of processor time for each request.
fn cpu(slice: &Slice) -> f64 {
    slice.cpu.as_nanos() as f64 / slice.tally.all() as f64
}

/// One arm's sums. `lanes`: threads, and requests in flight per thread.
pub(crate) fn measured_arm(
    arm: Arm,
    lanes: (usize, u32),
    block_size: u32,
    slices: &[&Slice],
    latencies: &Latencies,
) -> Result<MeasuredArm> {
    let mut rates: Vec<f64> = slices.iter().map(|slice| rate(slice)).collect();
    rates.sort_by(f64::total_cmp);
    let iops =
        median(&rates).ok_or_else(|| BenchError::failed(format!("arm {} has no slices", arm.name())))?;
    let mut tally = Tally::default();
    let mut cpu = Duration::ZERO;
    let mut counters = BTreeMap::new();
    for slice in slices {
        tally += slice.tally;
        cpu += slice.cpu;
        for &counter in slice.counters.iter().flat_map(|_| Counter::ALL) {
            let value = slice.counters.map_or(0, |counted| counted.get(counter));
            *counters.entry(counter.name().to_owned()).or_insert(0) += value;
        }
    }
    Ok(MeasuredArm {
        arm: arm.name().into(),
        threads: lanes.0,
        qd: lanes.1,
        block_size,
        reads: tally.reads,
        writes: tally.writes,
        other_writes: tally.beside,
        iops,
        mb_s: iops * f64::from(block_size) / 1e6,
        ns_per_op: 1e9 / iops,
        cpu_ns_per_op: cpu.as_nanos() as f64 / tally.all() as f64,
        p50_us: latencies.quantile_us(0.5),
        p99_us: latencies.quantile_us(0.99),
        p999_us: latencies.quantile_us(0.999),
        counters,
    })
}

/// Ratios of rates and of processor times, where one opening of the volume served all rounds.
pub(crate) fn ratios_of(slices: &[Slice]) -> (BTreeMap<String, Ratio>, BTreeMap<String, Ratio>) {
    (ratios(slices, rate, |round| round), cpu_ratios(slices, |round| round))
}

fn cpu_ratios(slices: &[Slice], opening: impl Fn(u32) -> u32) -> BTreeMap<String, Ratio> {
    let mut ratios = ratios(slices, cpu, opening);
    ratios.remove(&format!("on/{}", Arm::Kernel.name()));
    ratios
}

/// `value` of `on` against that of every other arm, by rounds, in the openings of the volume that `opening` tells.
fn ratios(
    slices: &[Slice],
    value: impl Fn(&Slice) -> f64,
    opening: impl Fn(u32) -> u32,
) -> BTreeMap<String, Ratio> {
    let of = |arm: Arm| -> BTreeMap<u32, f64> {
        slices.iter().filter(|slice| slice.arm == arm).map(|slice| (slice.round, value(slice))).collect()
    };
    let on = of(Arm::On);
    let others = [Arm::Off, Arm::AllOff, Arm::Raw, Arm::Kernel, Arm::OneExtent, Arm::NoDsync, Arm::OneThread];
    let pair = |other: Arm| {
        let other_rates = of(other);
        let mut openings: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (&round, rate) in &on {
            if let Some(other_rate) = other_rates.get(&round) {
                openings.entry(opening(round)).or_default().push(rate / other_rate);
            }
        }
        Some((format!("on/{}", other.name()), Ratio::of_openings(openings.into_values().collect())?))
    };
    others.into_iter().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(arm: Arm, round: u32, reads: u64) -> Slice {
        let tally = Tally { reads, writes: 0, beside: 0 };
        Slice {
            arm,
            round,
            tally,
            wall: Duration::from_secs(1),
            cpu: Duration::from_millis(1),
            counters: None,
        }
    }

    #[test]
    fn ratios_pair_the_slices_of_a_round() {
        let slices = [
            slice(Arm::On, 0, 100),
            slice(Arm::Raw, 0, 200),
            slice(Arm::Raw, 1, 1000),
            slice(Arm::On, 1, 500),
            slice(Arm::On, 2, 7),
        ];
        let ratios = ratios(&slices, rate, |round| round);
        assert_eq!(ratios.keys().collect::<Vec<_>>(), ["on/raw"]);
        assert_eq!((ratios["on/raw"].median, ratios["on/raw"].pairs), (0.5, 2));
        // All slices took the same time: twice the requests mean half the time for each.
        let cpu = cpu_ratios(&slices, |round| round);
        assert_eq!((cpu["on/raw"].median, cpu.len()), (2.0, 1));
    }

    #[test]
    fn sums_of_an_arm() {
        let slices = [slice(Arm::On, 0, 100), slice(Arm::On, 1, 300), slice(Arm::On, 2, 200)];
        let sums =
            |slices: &[&Slice]| measured_arm(Arm::On, (1, 1), 4096, slices, &Latencies::new().unwrap());
        let result = sums(&slices.each_ref()).unwrap();
        assert_eq!((result.iops, result.reads, result.cpu_ns_per_op), (200.0, 600, 5000.0));
        assert!(sums(&[]).is_err());
    }
}
