//! `--floors`: the promised ratios, measured and judged.
//!
//! A floor is kept if the measured value reaches it. A ratio whose interval contains its floor, or is wide and contains
//! its goal, is measured once more with four times the slices, because a disturbed machine is the usual reason;
//! the second answer counts.
//!
//! Every switch has a floor for what it is worth (on/off), of processor time where rates do not show it, so that
//! none becomes worthless unnoticed.

use super::arm::Arm;
use super::changing;
use super::error::{BenchError, Doing, Result};
use super::measure::Case;
use super::metadata::{self, METADATA};
use super::probes::{self, Found, Probe};
use super::report::model::{Interval, Measured, MeasuredArm, Report};
use super::report::{table, words};
use super::run::{Event, Job, begin};
use super::scenario;
use super::settings::{Settings, Timing};
use super::statistics::Ratio;
use super::volume::given::Source;
use super::volume::{Layout, MEMORY_DIR, Scratch, Standard, tool};
use comfy_table::{ContentArrangement, Table, presets};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use uext4::Switches;

/// Bytes of the large volume.
const LARGE: u64 = 1 << 40;
/// Openings of the large volume; their median counts.
const OPENINGS: usize = 5;

/// Parts that are not scenarios: a conversion among many extents.
const CONVERSION: &str = "conversion";
/// Memory of first writes.
const MEMORY: &str = "memory";
/// Opening a large volume.
const OPEN: &str = "open";
/// Creating one.
const MKFS: &str = "mkfs";

/// One line of the table.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    what: String,
    floor: String,
    goal: String,
    measured: String,
    verdict: Verdict,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The goal is reached.
    Goal,
    /// The floor is reached.
    Floor,
    /// Neither.
    Missed,
    /// It could not be measured here.
    Absent,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Verdict::Goal => "goal",
            Verdict::Floor => "floor",
            Verdict::Missed => "MISSED",
            Verdict::Absent => "not measured",
        }
    }
}

/// A promised ratio.
struct Promise {
    scenario: &'static str,
    shape: Option<&'static str>,
    standard: Standard,
    depths: &'static [u32],
    ratio: &'static str,
    /// Of processor time, of which less is better, instead of rates.
    cpu: bool,
    floor: f64,
    goal: f64,
}

impl Promise {
    /// About the same measurement.
    fn is_beside(&self, other: &Promise) -> bool {
        (self.scenario, self.shape, self.standard) == (other.scenario, other.shape, other.standard)
    }

    /// Its outcome.
    fn found<'m>(&self, measured: &'m Measured) -> Option<(f64, &'m Interval)> {
        if self.cpu { measured.cpu_ratio(self.ratio) } else { measured.ratio(self.ratio) }
    }

    /// Whether the interval leaves the verdict open.
    fn is_unclear(&self, interval: &Interval) -> bool {
        let holds = |bound: f64| (interval.low..=interval.high).contains(&bound);
        holds(self.floor) || !interval.resolved && holds(self.goal)
    }

    const fn of_shape(self, shape: &'static str) -> Promise {
        Promise { shape: Some(shape), ..self }
    }
}

/// A ratio of processor times.
const fn cpu(scenario: &'static str, standard: Standard, floor: f64, goal: f64) -> Promise {
    Promise { cpu: true, ..promise(scenario, standard, "on/off", floor, goal) }
}

const fn promise(
    scenario: &'static str,
    standard: Standard,
    ratio: &'static str,
    floor: f64,
    goal: f64,
) -> Promise {
    Promise { scenario, shape: None, standard, depths: &[], ratio, cpu: false, floor, goal }
}

/// The depths at which `randread-poll` is promised.
const DEEP: &[u32] = &[128, 256, 512];

const PROMISES: &[Promise] = &[
    Promise { depths: DEEP, ..promise("randread-poll", Standard::Loop, "on/raw", 0.95, 0.98) },
    Promise { depths: DEEP, ..cpu("randread-poll", Standard::Loop, 0.99, 0.95) },
    promise("randread-poll", Standard::Null, "on/off", 3.0, 6.0).of_shape(scenario::NO_DEVICE),
    cpu("randread-poll", Standard::Null, 0.33, 0.16).of_shape(scenario::NO_DEVICE),
    promise("overwrite-randrw", Standard::Zram, "on/raw", 0.90, 0.97),
    cpu("overwrite-randrw", Standard::Zram, 0.99, 0.97),
    promise("overwrite-randrw", Standard::Zram, "on/kernel", 1.2, 1.35),
    promise("overwrite-randrw-dax", Standard::Dax, "on/raw", 0.80, 0.92),
    cpu("overwrite-randrw-dax", Standard::Dax, 0.95, 0.85),
    promise("dax-shared-read", Standard::Dax, "on/raw", 0.80, 0.92),
    cpu("dax-shared-read", Standard::Dax, 0.995, 0.97),
    promise("dax-shared-readwrite", Standard::Dax, "on/raw", 0.80, 0.92),
    cpu("dax-shared-readwrite", Standard::Dax, 0.995, 0.97),
    promise("dsync-overwrite", Standard::MemoryFlush, "on/raw", 0.95, 0.98),
    promise("dsync-overwrite", Standard::MemoryFlush, "on/off", 20.0, 100.0),
    promise("dsync-overwrite", Standard::MemoryDisk, "on/raw", 0.95, 0.98).of_shape(scenario::ALONE),
    promise("dsync-overwrite", Standard::MemoryDisk, "on/off", 1.08, 1.12).of_shape(scenario::ALONE),
    promise("dsync-overwrite", Standard::MemoryCache, "on/off", 1.25, 1.45).of_shape(scenario::MIXED),
    promise("dsync-overwrite", Standard::Loop, "on/kernel", 0.9, 1.2).of_shape(scenario::SHARED[0]),
    promise("dsync-overwrite", Standard::Loop, "on/kernel", 0.9, 1.2).of_shape(scenario::SHARED[1]),
    promise("dsync-overwrite", Standard::Loop, "on/kernel", 0.9, 1.2).of_shape(scenario::SHARED[2]),
    promise("subblock-overwrite", Standard::Loop, "on/kernel", 1.0, 1.2),
    promise("subblock-overwrite", Standard::Loop, "on/raw", 0.90, 0.97),
    promise("subblock-overwrite", Standard::Loop, "on/off", 1.5, 5.0),
    promise("subblock-overwrite", Standard::MemoryLatency, "on/raw", 0.90, 0.97),
    promise("subblock-overwrite", Standard::MemoryLatency, "on/off", 200.0, 1000.0),
    promise("subblock-overwrite", Standard::MemoryLatency, "on/raw", 0.90, 0.97)
        .of_shape(scenario::SEQUENTIAL),
    promise("subblock-overwrite", Standard::Loop, "on/off", 1.5, 5.0).of_shape(scenario::SEQUENTIAL),
    promise("append", Standard::Loop, "on/kernel", 0.9, 1.3),
    promise("append", Standard::Loop, "on/kernel", 0.9, 1.3).of_shape(scenario::EIGHT),
    promise("append", Standard::Loop, "on/kernel", 0.9, 1.3).of_shape(scenario::DURABLE),
    promise("seq-write", Standard::Loop, "on/kernel", 0.9, 1.3),
    promise("fsync", Standard::Loop, "on/kernel", 0.9, 1.5),
    promise("fsync", Standard::Loop, "on/kernel", 0.9, 1.5).of_shape(scenario::SHARED[0]),
    promise("first-write", Standard::Loop, "on/kernel", 1.0, 1.5),
    promise("first-write", Standard::Zram, "on/kernel", 1.1, 1.5).of_shape(scenario::SHARED[2]),
];

/// Promises of `metadata`: measurements, ratio, floor and goal.
const NAMES: [(&[&str], &str, f64, f64); 5] = [
    (&[metadata::READ_COLD], "on/kernel", 0.9, 1.1),
    (&["create-1-directory", "stat-1-directory", "unlink-1-directory"], "on/kernel", 0.7, 1.5),
    (&["create-1000-directories", "stat-1000-directories", "unlink-1000-directories"], "on/kernel", 0.7, 1.5),
    (&["durable-create-1-directory", "durable-create-1000-directories"], "on/kernel", 1.0, 2.0),
    (&["create-8-threads", "stat-8-threads", "unlink-8-threads"], "on/one-thread", 1.4, 1.8),
];

/// Outcome of the promises.
#[derive(Debug)]
pub struct Floors {
    /// The measurements for them.
    pub report: Report,
    lines: Vec<Line>,
}

impl Floors {
    /// Whether no floor is missed. A promise that could not be measured here misses none.
    pub fn are_kept(&self) -> bool {
        self.lines.iter().all(|line| line.verdict != Verdict::Missed)
    }

    /// The table of floors, goals and measurements.
    pub fn to_text(&self) -> String {
        render(&self.lines)
    }
}

/// A command that prints what [`Probe::run`] says of an image or a device.
pub type Process<'a> = &'a dyn Fn(Probe, &Path) -> Command;

/// Parts with promises: scenarios, and measurements without a scenario.
pub fn floor_parts() -> Vec<&'static str> {
    let mut parts: Vec<_> = PROMISES.iter().map(|promise| promise.scenario).collect();
    parts.extend([scenario::LOOKUP_SCALING, METADATA, CONVERSION, MEMORY, OPEN, MKFS]);
    let mut seen = BTreeSet::new();
    parts.retain(|part| seen.insert(*part));
    parts
}

/// Measures and judges those of [`floor_parts`] that are in `only`, or all if none is. `process`: how much memory
/// something takes shows in a process that did nothing else.
pub fn floors(
    timing: Timing,
    only: &[String],
    process: Process<'_>,
    tell: &mut dyn FnMut(Event),
) -> Result<Floors> {
    let asked = |part: &str| only.is_empty() || only.iter().any(|one| one == part);
    let mut lines = Vec::new();
    let mut report = begin(tell);
    for (number, promise) in PROMISES.iter().enumerate() {
        if !asked(promise.scenario) || PROMISES[..number].iter().any(|earlier| earlier.is_beside(promise)) {
            continue;
        }
        let measured = measure(promise, timing, tell)?;
        judge(promise, &measured, &mut lines);
        report.scenarios.extend(measured);
    }
    let mut side = |scenario, standard, shape| {
        if !asked(scenario) {
            return Ok(Vec::new());
        }
        measure(&Promise { shape, ..promise(scenario, standard, "", 0.0, 0.0) }, timing, tell)
    };
    let lookup = side(scenario::LOOKUP_SCALING, Standard::Extents, None)?;
    lines.extend(lookup.iter().map(lookup_line));
    let mut modelled = |scenario, shape| side(scenario, Standard::MemoryFsync, shape);
    let (one, eight) = (modelled("append", None)?, modelled("append", Some(scenario::EIGHT))?);
    lines.extend(one.iter().zip(&eight).map(|(one, eight)| scaling_line(one, eight)));
    let (shared, alone) = (modelled("fsync", None)?, modelled("fsync", Some(scenario::SHARED[0]))?);
    lines.extend(shared.iter().map(commits_line));
    lines.extend(alone.iter().map(alone_line));
    report.scenarios.extend([lookup, one, eight, shared, alone].into_iter().flatten());
    if asked(METADATA) {
        let kernel = rustix::process::geteuid().is_root();
        let measured = metadata::run(&Settings { kernel, timing, ..Settings::default() }, tell)?;
        lines.extend(names_lines(&measured));
        lines.push(names_memory_line(process)?);
        report.scenarios.extend(measured);
    }
    if asked(CONVERSION) {
        lines.push(conversion_line(&changing::conversion()?));
    }
    if asked(MEMORY) {
        lines.push(memory_line(process)?);
    }
    if asked(OPEN) {
        lines.extend(open_lines(process)?);
    }
    if asked(MKFS) {
        lines.extend(make_lines()?);
    }
    Ok(Floors { report, lines })
}

/// Measures a promise's scenario at each depth; once more, longer, if it leaves open what is promised.
fn measure(promise: &Promise, timing: Timing, tell: &mut dyn FnMut(Event)) -> Result<Vec<Measured>> {
    let measured = job(promise, timing)?.run(tell)?;
    let unclear = |measured: &Measured| {
        let mut asked = PROMISES.iter().filter(|other| other.is_beside(promise)).chain([promise]);
        asked.any(|other| other.found(measured).is_some_and(|(_, interval)| other.is_unclear(interval)))
    };
    if !measured.iter().any(unclear) {
        return Ok(measured);
    }
    job(promise, Timing { rounds: timing.rounds * 4, ..timing })?.run(tell)
}

fn job(promise: &Promise, timing: Timing) -> Result<Job> {
    let scenario = scenario::find(promise.scenario, promise.shape);
    let scenario = scenario.ok_or_else(|| BenchError::failed(format!("no scenario {}", promise.scenario)))?;
    let layout = Layout { files: scenario.files, file_bytes: scenario.bytes / scenario.files as u64 };
    let root = rustix::process::geteuid().is_root();
    let asks_kernel = |other: &Promise| other.is_beside(promise) && other.ratio == "on/kernel";
    let case = |&depth: &u32| Case {
        scenario,
        threads: scenario.threads,
        depth,
        span: if promise.standard == Standard::Extents { u64::MAX } else { layout.file_bytes },
        arms: vec![Arm::On, Arm::Off, Arm::Raw],
        kernel: root && PROMISES.iter().any(asks_kernel),
        switches: Switches::ON,
        timing,
    };
    let depths = if promise.depths.is_empty() { scenario.depths } else { promise.depths };
    let cases = depths.iter().map(case).collect();
    Ok(Job { scenario, source: Source::Standard(promise.standard), layout, cases })
}

/// The lines of everything that was promised of a scenario on a standard device.
fn judge(first: &Promise, measured: &[Measured], lines: &mut Vec<Line>) {
    for promise in PROMISES.iter().filter(|other| other.is_beside(first)) {
        lines.extend(measured.iter().map(|measured| ratio_line(promise, measured)));
    }
    for one in measured {
        match first.scenario {
            // A loop device has no FUA: there each write is followed by a flush, as it must be.
            "dsync-overwrite" if first.standard != Standard::Loop => lines.push(route_line(one)),
            "subblock-overwrite" if first.standard == Standard::MemoryLatency && first.shape.is_none() => {
                lines.extend(serial_line(one));
            }
            _ => {}
        }
    }
}

fn verdict(value: f64, floor: f64, goal: f64) -> Verdict {
    let reaches = |bound: f64| if goal >= floor { value >= bound } else { value <= bound };
    match (reaches(goal), reaches(floor)) {
        (true, _) => Verdict::Goal,
        (false, true) => Verdict::Floor,
        // NaN reaches no floor.
        (false, false) => Verdict::Missed,
    }
}

fn ratio_line(promise: &Promise, measured: &Measured) -> Line {
    let cpu = if promise.cpu { "cpu " } else { "" };
    let ((_, qd), device) = (measured.lanes(), &measured.device);
    let depth = if promise.scenario == METADATA { String::new() } else { format!(", qd {qd}") };
    let what = format!("{} on {device}{depth}: {cpu}{}", measured.title(), promise.ratio);
    let sign = if promise.goal < promise.floor { '≤' } else { '≥' };
    let (floor, goal) = (format!("{sign} {}", promise.floor), format!("{sign} {}", promise.goal));
    let Some((median, interval)) = promise.found(measured) else {
        return Line { what, floor, goal, measured: "–".into(), verdict: Verdict::Absent };
    };
    let shown = words::ratio(median, interval);
    Line { what, floor, goal, measured: shown, verdict: verdict(median, promise.floor, promise.goal) }
}

/// A line for each of [`NAMES`].
fn names_lines(measured: &[Measured]) -> Vec<Line> {
    let of = |(shapes, ratio, floor, goal): &(&'static [&'static str], &'static str, f64, f64)| {
        let shown = measured.iter().filter(|one| shapes.contains(&one.shape.as_deref().unwrap_or_default()));
        // The place is the measurement's own, whatever the promise names.
        let promise = promise(METADATA, Standard::Loop, ratio, *floor, *goal);
        shown.map(|one| ratio_line(&promise, one)).collect::<Vec<_>>()
    };
    NAMES.iter().flat_map(of).collect()
}

fn counter(arm: &MeasuredArm, name: &str) -> u64 {
    arm.counters.get(name).copied().unwrap_or(u64::MAX)
}

/// Every durable overwrite was one FUA write and nothing else.
fn route_line(measured: &Measured) -> Line {
    let what = format!("{} on {}: FUA writes, flushes, commits", measured.title(), measured.device);
    let floor = String::from("writes, 0, 0");
    let Some(on) = measured.arm(Arm::On) else {
        return Line { what, goal: floor.clone(), floor, measured: "–".into(), verdict: Verdict::Absent };
    };
    let (writes, fua) = (on.writes, counter(on, "fua_writes"));
    let (flushes, commits) = (counter(on, "flushes"), counter(on, "commits"));
    let kept = fua == writes && writes > 0 && flushes == 0 && commits == 0;
    let shown = format!("{fua} of {writes} writes, {flushes}, {commits}");
    let verdict = if kept { Verdict::Goal } else { Verdict::Missed };
    Line { what, goal: floor.clone(), floor, measured: shown, verdict }
}

/// Without the switch, sub-block writes go one after another: one for each 740 µs of the device.
fn serial_line(measured: &Measured) -> Option<Line> {
    const ONE_NS: f64 = 740_000.0;
    let off = measured.arm(Arm::Off)?;
    let kept = (off.ns_per_op / ONE_NS - 1.0).abs() <= 0.1;
    Some(Line {
        what: format!("{} on {}: time per request of arm off", measured.title(), measured.device),
        floor: "740 µs ± 10 %".into(),
        goal: "740 µs ± 10 %".into(),
        measured: format!("{:.1} µs", off.ns_per_op / 1000.0),
        verdict: if kept { Verdict::Goal } else { Verdict::Missed },
    })
}

/// Appends of eight threads to eight files, against those of one thread.
fn scaling_line(one: &Measured, eight: &Measured) -> Line {
    let rate = |measured: &Measured| measured.arm(Arm::On).map(|arm| arm.iops);
    let times = rate(eight).zip(rate(one)).map(|(eight, one)| eight / one);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    Line {
        what: format!("append on {}: 8 threads, 8 files / 1 thread ({processors} processors)", one.device),
        floor: "≥ 1.3".into(),
        goal: "≥ 1.8".into(),
        measured: times.map_or_else(|| "–".into(), |times| format!("{times:.2}")),
        verdict: times.map_or(Verdict::Absent, |times| verdict(times, 1.3, 1.8)),
    }
}

/// Many waiters share a commit.
fn commits_line(measured: &Measured) -> Line {
    let on = measured.arm(Arm::On);
    let share = on.map(|arm| counter(arm, "commits") as f64 / arm.writes as f64);
    Line {
        what: format!("{} on {}: commits for each fsync", measured.title(), measured.device),
        floor: "< 0.5".into(),
        goal: "< 0.2".into(),
        measured: share.map_or_else(|| "–".into(), |share| format!("{share:.3}")),
        verdict: share.map_or(Verdict::Absent, |share| verdict(share, 0.4999, 0.1999)),
    }
}

/// A lone fsync takes little longer than the flush that it needs: its commit block is a FUA write.
fn alone_line(measured: &Measured) -> Line {
    const FLUSH_US: f64 = 500.0;
    let on = measured.arm(Arm::On);
    let median = on.and_then(|arm| arm.p50_us).map(|median| median / FLUSH_US);
    let late = on.and_then(|arm| arm.p99_us).map_or(f64::NAN, |late| late / FLUSH_US);
    Line {
        what: format!("{} on {}: median of append and fsync / its flush", measured.title(), measured.device),
        floor: "≤ 1.3".into(),
        goal: "≤ 1.1".into(),
        measured: median.map_or_else(|| "–".into(), |median| format!("{median:.2} (p99 {late:.2})")),
        verdict: median.map_or(Verdict::Absent, |median| verdict(median, 1.3, 1.1)),
    }
}

/// A request in a file of many extents costs at most this many times one in a file of one extent.
fn lookup_line(measured: &Measured) -> Line {
    let times = measured.ratios.get("on/one-extent").map(|ratio| 1.0 / ratio);
    let interval = measured.ratio_intervals.get("on/one-extent");
    let ends = interval.map(|ends| format!(" [{:.3}, {:.3}]", 1.0 / ends.high, 1.0 / ends.low));
    Line {
        what: format!("{} on {}: request at 10⁶ extents / at one", measured.scenario, measured.device),
        floor: "≤ 1.3".into(),
        goal: "≤ 1.15".into(),
        measured: times.map_or_else(|| "–".into(), |times| format!("{times:.3}{}", ends.unwrap_or_default())),
        verdict: times.map_or(Verdict::Absent, |times| verdict(times, 1.3, 1.15)),
    }
}

/// A value that should be small.
fn cost_line(what: impl Into<String>, unit: &str, value: Option<f64>, (floor, goal): (f64, f64)) -> Line {
    Line {
        what: what.into(),
        floor: format!("≤ {floor} {unit}"),
        goal: format!("≤ {goal} {unit}"),
        measured: value.map_or_else(|| "–".into(), |value| format!("{value:.1} {unit}")),
        verdict: value.map_or(Verdict::Absent, |value| verdict(value, floor, goal)),
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / (1 << 20) as f64
}

/// Opening a volume of 1 TiB.
fn open_lines(process: Process<'_>) -> Result<Vec<Line>> {
    let scratch = Scratch::new(64 << 20)?;
    let image = scratch.path().join("image");
    let file = std::fs::File::create_new(&image).doing(|| format!("create {}", image.display()))?;
    file.set_len(LARGE).doing(|| format!("make a sparse file of 1 TiB in {MEMORY_DIR}"))?;
    tool(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&image))?;
    let open = || probes::ask(process(Probe::Open, &image));
    let mut found = (0..OPENINGS).map(|_| open()).collect::<Result<Vec<Found>>>()?;
    found.sort_unstable_by_key(|found| found.ns);
    let millis = found[OPENINGS / 2].ns as f64 / 1e6;
    let memory = mib(found.iter().map(|found| found.resident_bytes).max().unwrap_or(u64::MAX));
    let what = |what| format!("open a sparse volume of 1 TiB: {what}");
    Ok(vec![
        cost_line(what("time"), "ms", Some(millis), (50.0, 10.0)),
        cost_line(what("resident memory"), "MiB", Some(memory), (32.0, 16.0)),
    ])
}

/// Creating one.
fn make_lines() -> Result<Vec<Line>> {
    let made = changing::making(LARGE)?;
    let what = |what| format!("make a sparse volume of 1 TiB: {what}");
    Ok(vec![
        cost_line(what("time"), "ms", Some(made.millis), (500.0, 50.0)),
        cost_line(what("allocated"), "MiB", Some(mib(made.allocated_bytes)), (64.0, 16.0)),
    ])
}

/// Memory used by first writes. Without root there is no device of that size.
fn memory_line(process: Process<'_>) -> Result<Line> {
    let found = match probes::first_writes_device()? {
        None => None,
        Some(zram) => {
            let found = probes::ask(process(Probe::FirstWrites, zram.path()))?;
            tool(Command::new("e2fsck").arg("-fn").arg(zram.path()))?;
            Some(mib(found.resident_bytes))
        }
    };
    let what = "10 GiB of random first writes on zram, qd 32: resident memory";
    Ok(cost_line(what, "MiB", found, (256.0, 64.0)))
}

/// Memory used while files are made. They have no contents, which would take memory of the image.
fn names_memory_line(process: Process<'_>) -> Result<Line> {
    let image = metadata::image_for_memory()?;
    let found = probes::ask(process(Probe::MakeFiles, image.path()))?;
    image.check()?;
    let what = "10⁶ files made in 1000 directories, tmpfs file: resident memory";
    Ok(cost_line(what, "MiB", Some(mib(found.resident_bytes)), (256.0, 96.0)))
}

/// A conversion in a file of many extents costs at most this many times one in a file of ten.
fn conversion_line(ratio: &Ratio) -> Line {
    Line {
        what: "converting 4 KiB, tmpfs file: in a file of 10⁶ extents / of ten".into(),
        floor: "≤ 3".into(),
        goal: "≤ 1.5".into(),
        measured: format!("{:.3} [{:.3}, {:.3}]", ratio.median, ratio.low, ratio.high),
        verdict: verdict(ratio.median, 3.0, 1.5),
    }
}

fn render(lines: &[Line]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(table::WIDTH as u16);
    table.set_header(["promise", "floor", "goal", "measured", "reached"]);
    for line in lines {
        table.add_row([&line.what, &line.floor, &line.goal, &line.measured, line.verdict.text()]);
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::super::report::model::tests::sample;
    use super::*;

    #[test]
    fn only_what_is_asked_for_is_measured() {
        let process = |_: Probe, _: &Path| -> Command { panic!("no probe was asked for") };
        let only = [String::from(MKFS)];
        let floors = floors(Timing::new(1.0, 40), &only, &process, &mut |_| {}).unwrap();
        assert!(floors.report.scenarios.is_empty());
        let about: Vec<_> = floors.lines.iter().map(|line| line.what.as_str()).collect();
        assert_eq!(about.len(), 2, "{about:?}");
        assert!(about.iter().all(|what| what.starts_with("make a sparse volume")), "{about:?}");
        assert_eq!(floor_parts().iter().collect::<BTreeSet<_>>().len(), floor_parts().len());
    }

    #[test]
    fn verdicts_know_which_way_is_better() {
        assert_eq!(verdict(0.99, 0.9, 0.97), Verdict::Goal);
        assert_eq!(verdict(0.93, 0.9, 0.97), Verdict::Floor);
        assert_eq!(verdict(0.89, 0.9, 0.97), Verdict::Missed);
        assert_eq!(verdict(1.1, 1.3, 1.15), Verdict::Goal);
        assert_eq!(verdict(1.2, 1.3, 1.15), Verdict::Floor);
        assert_eq!(verdict(1.4, 1.3, 1.15), Verdict::Missed);
        assert_eq!(verdict(f64::NAN, 0.9, 0.97), Verdict::Missed);
    }

    #[test]
    fn promises_name_scenarios_on_their_own_devices() {
        for promise in PROMISES {
            let scenario = scenario::find(promise.scenario, promise.shape).unwrap();
            assert!(scenario.standards.contains(&promise.standard), "{}", promise.scenario);
            assert!(promise.depths.iter().all(|depth| scenario.depths.contains(depth)));
            assert_eq!(promise.goal < promise.floor, promise.cpu, "less processor time is better");
        }
    }

    #[test]
    fn every_measurement_of_names_is_promised_once() {
        let mut promised: Vec<&str> = NAMES.iter().flat_map(|(shapes, ..)| shapes.iter().copied()).collect();
        let mut measured = metadata::names();
        promised.sort_unstable();
        measured.sort_unstable();
        assert_eq!(promised, measured);
        let mut report = sample(1000.0, 0.65);
        report.scenarios[0].shape = Some("create-1-directory".into());
        let [line] = &names_lines(&report.scenarios)[..] else { panic!("one was measured") };
        assert_eq!(line.verdict, Verdict::Absent, "without the kernel");
        let (ratio, interval) = (0.65, report.scenarios[0].ratio_intervals["on/raw"]);
        report.scenarios[0].ratios.insert("on/kernel".into(), ratio);
        report.scenarios[0].ratio_intervals.insert("on/kernel".into(), interval);
        let [line] = &names_lines(&report.scenarios)[..] else { panic!("one was measured") };
        assert_eq!((line.verdict, line.floor.as_str()), (Verdict::Missed, "≥ 0.7"));
    }

    #[test]
    fn every_switch_has_a_floor_for_what_it_is_worth() {
        for name in uext4::SWITCH_NAMES {
            let shown = |promise: &&Promise| {
                let scenario = scenario::find(promise.scenario, promise.shape).unwrap();
                let worth = if promise.cpu { promise.floor <= 1.0 } else { promise.floor > 1.0 };
                scenario.switch == Some(name) && promise.ratio == "on/off" && worth
            };
            assert!(PROMISES.iter().any(|promise| shown(&promise)), "{name}");
        }
    }

    #[test]
    fn what_is_open_is_measured_again() {
        let interval = |low, high, resolved| Interval { low, high, pairs: 40, resolved, excludes_one: false };
        let rate = promise("seq-read", Standard::Loop, "on/raw", 0.9, 0.97);
        assert!(rate.is_unclear(&interval(0.89, 0.92, true)), "it holds the floor");
        assert!(rate.is_unclear(&interval(0.92, 1.02, false)), "it is wide and holds the goal");
        assert!(!rate.is_unclear(&interval(0.95, 0.98, true)));
        assert!(!rate.is_unclear(&interval(20.0, 30.0, false)), "wide, and beyond any doubt");
        let less = cpu("seq-read", Standard::Loop, 0.98, 0.9);
        assert!(
            less.is_unclear(&interval(0.97, 0.99, true)) && !less.is_unclear(&interval(0.91, 0.97, false))
        );
    }

    #[test]
    fn a_missing_arm_is_not_a_kept_promise() {
        let report = sample(1000.0, 0.93);
        let floor = |ratio| promise("overwrite-randrw", Standard::Zram, ratio, 0.90, 0.97);
        assert_eq!(ratio_line(&floor("on/raw"), &report.scenarios[0]).verdict, Verdict::Floor);
        assert_eq!(ratio_line(&floor("on/kernel"), &report.scenarios[0]).verdict, Verdict::Absent);
        let less = cpu("overwrite-randrw", Standard::Zram, 0.98, 0.9);
        assert_eq!(ratio_line(&less, &report.scenarios[0]).verdict, Verdict::Absent, "rates are no times");
        assert_eq!(route_line(&report.scenarios[0]).verdict, Verdict::Missed, "counters are missing");
    }
}
