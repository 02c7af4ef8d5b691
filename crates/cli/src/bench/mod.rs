//! `uext4 bench`: what each optimisation is worth, and what the file system costs over the bare device.
//!
//! Reading path: [`scenario`] (what is requested) → [`volume`] (on what) → [`measure`] (sessions, rounds,
//! ratios) → [`runner`] (threads and slices) → [`work`] (the measured loops). Around them: [`ops`] makes the
//! requests, [`routes`] voids a measurement that took another route, [`statistics`] says how sure a ratio is,
//! [`report`] tells, [`floors`] checks the promises.

mod args;
mod arm;
mod error;
mod floors;
mod load;
mod machine;
mod measure;
mod ops;
mod report;
mod routes;
mod runner;
mod scenario;
mod session;
mod statistics;
mod volume;
mod work;

pub use args::BenchArgs;

use crate::args::Globals;
use crate::error::CliError;
use crate::out::Out;
use args::Timing;
use error::{BenchError, Doing, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use machine::Machine;
use measure::Case;
use report::model::{Measured, Report};
use scenario::{LOOKUP_SCALING, Mode, SCENARIOS, Scenario};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use volume::Layout;
use volume::given::{Given, Source};

/// Seconds measured of each arm unless asked otherwise.
const SECONDS: f64 = 2.0;
/// Slices of each arm unless asked otherwise.
const ROUNDS: u32 = 40;
/// Most bytes that a working set grows to because the caches are large.
const BEYOND_CACHE_MAX: u64 = 1 << 30;

/// Runs the command.
pub fn run(args: BenchArgs, globals: &Globals) -> std::result::Result<ExitCode, CliError> {
    if globals.trace.is_some() {
        return Err(CliError::usage("a traced measurement would measure the tracing: run bench by itself"));
    }
    if let Some(image) = &args.open_probe {
        floors::probe(image)?;
        return Ok(ExitCode::SUCCESS);
    }
    check_outputs(&args)?;
    if args.floors {
        return Ok(floors::run(&args)?);
    }
    bench(&args)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether results can be written at all, before anybody waits for them. What is in the files stays until then.
fn check_outputs(args: &BenchArgs) -> Result<()> {
    let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
    for path in json.into_iter().chain(args.html.as_deref()) {
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
        opened.doing(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn bench(args: &BenchArgs) -> Result<()> {
    if args.kernel && !rustix::process::geteuid().is_root() {
        return Err(BenchError::Usage("--kernel mounts the device, which needs root".into()));
    }
    // Read before anything is measured: a wrong file should not cost two minutes.
    let old = args.compare.as_deref().map(Report::read).transpose()?;
    let (jobs, left_out) = jobs(args)?;
    let load_before = look_at_load();
    let mut scenarios = Vec::new();
    for job in &jobs {
        scenarios.extend(job.run()?);
    }
    let report = Report { version: 1, machine: Machine::this(), load_before, scenarios };
    tell(args, &report, old.as_ref(), &left_out)
}

/// What others take of the processors, told at once if it is much: whoever measures can still stop.
fn look_at_load() -> Option<load::Load> {
    let load = load::now();
    if let Some(warning) = load.and_then(|load| load.warning()) {
        eprintln!("uext4 bench: {warning}: figures will be worse and less sure");
    }
    load
}

/// A scenario on one volume: all its depths.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    scenario: &'static Scenario,
    source: Source,
    layout: Layout,
    cases: Vec<Case>,
}

impl Job {
    /// Makes the volume, measures, has it checked.
    fn run(&self) -> Result<Vec<Measured>> {
        let what = |error: BenchError| match error {
            BenchError::Usage(message) => BenchError::Usage(message),
            other => BenchError::failed(format!("{}: {other}", self.scenario.title())),
        };
        self.measure().map_err(what)
    }

    fn measure(&self) -> Result<Vec<Measured>> {
        let bed = self.source.bed(self.layout)?;
        let bar = bar(self.scenario.title(), self.cases.iter().map(|case| case.turns(&bed)).sum());
        let mut measured = Vec::new();
        for case in &self.cases {
            let outcome = measure::measure(case, &bed, &mut || bar.inc(1))?;
            measured.push(Measured::of(&outcome));
        }
        bar.finish_and_clear();
        bed.check()?;
        Ok(measured)
    }
}

/// A bar on standard error; nothing where nobody looks.
fn bar(name: String, turns: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(turns), ProgressDrawTarget::stderr_with_hz(5));
    let style = ProgressStyle::with_template("{msg:30} [{bar:30}] {elapsed} of about {duration}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style.progress_chars("=> ")).with_message(name)
}

/// What the arguments ask for, and what the given device rules out of "everything".
fn jobs(args: &BenchArgs) -> Result<(Vec<Job>, Vec<String>)> {
    let given = args.device.as_deref().map(|device| Given::parse(device, args.mkfs)).transpose()?;
    let given = given.map(Arc::new);
    let mut jobs = Vec::new();
    let mut left_out = Vec::new();
    for scenario in SCENARIOS {
        let named = args.scenarios.iter().any(|name| name == scenario.name);
        if !named && !args.scenarios.is_empty() {
            continue;
        }
        match unsuited(scenario, given.as_deref(), args) {
            Some(why) if named => return Err(BenchError::Usage(format!("{}: {why}", scenario.name))),
            Some(why) => left_out.push(format!("{} was left out: {why}", scenario.title())),
            None => jobs.extend(scenario_jobs(scenario, given.as_ref(), args)),
        }
    }
    if jobs.is_empty() {
        return Err(BenchError::Usage(left_out.join("; ")));
    }
    Ok((jobs, left_out))
}

fn unsuited(scenario: &Scenario, given: Option<&Given>, args: &BenchArgs) -> Option<String> {
    if let Some(given) = given {
        if scenario.name == LOOKUP_SCALING {
            return Some("it makes a volume of its own, with a file that no program would make".into());
        }
        if scenario.is_dax() != given.is_dax() {
            return Some(format!(
                "it needs a device {} `dax:`",
                if scenario.is_dax() { "with" } else { "without" }
            ));
        }
    }
    if scenario.name == LOOKUP_SCALING && args.size.is_some() {
        return Some("its files have a fixed number of extents, --size cannot change them".into());
    }
    let smallest = smallest_size(scenario);
    match args.size {
        Some(size) if size < smallest => Some(format!("--size must be at least {smallest} for it")),
        _ => None,
    }
}

/// At least one request, and one block, in each file.
fn smallest_size(scenario: &Scenario) -> u64 {
    scenario.files as u64 * u64::from(scenario.block).max(4096)
}

fn scenario_jobs(scenario: &'static Scenario, given: Option<&Arc<Given>>, args: &BenchArgs) -> Vec<Job> {
    let mut bytes = args.size.unwrap_or(scenario.bytes);
    if scenario.beyond_cache && args.size.is_none() {
        let beyond = machine::l3_bytes().unwrap_or(0).saturating_mul(2).min(BEYOND_CACHE_MAX);
        bytes = bytes.max(beyond);
    }
    // Whole blocks, and whole requests.
    let unit = u64::from(scenario.block).max(4096);
    let layout = Layout { files: scenario.files, file_bytes: bytes / scenario.files as u64 / unit * unit };
    let sources: Vec<Source> = match given {
        Some(given) => vec![Source::Given(Arc::clone(given))],
        None => scenario.places.iter().map(|&place| Source::Standard(place)).collect(),
    };
    let job = |source| Job { scenario, source, layout, cases: cases(scenario, layout.file_bytes, args) };
    sources.into_iter().map(job).collect()
}

fn cases(scenario: &'static Scenario, span: u64, args: &BenchArgs) -> Vec<Case> {
    let asked = args.qd.filter(|_| scenario.mode != Mode::Synchronous);
    let depths: Vec<u32> = asked.map_or_else(|| scenario.depths.to_vec(), |depth| vec![depth]);
    let span = if scenario.name == LOOKUP_SCALING { u64::MAX } else { span };
    let case = |depth| Case {
        scenario,
        threads: args.threads.map_or(scenario.threads, usize::from),
        depth,
        span,
        arms: args.arms.clone(),
        kernel: args.kernel,
        switches: args.switches.switches,
        timing: Timing::new(args.seconds.unwrap_or(SECONDS), args.rounds.unwrap_or(ROUNDS)),
    };
    depths.into_iter().map(case).collect()
}

fn tell(args: &BenchArgs, report: &Report, old: Option<&Report>, left_out: &[String]) -> Result<()> {
    if let Some(path) = &args.html {
        write(path, &report::html::render(report)?)?;
    }
    let mut text = String::new();
    match args.json.as_deref() {
        Some(path) if path == Path::new("-") => text = report.to_json()?,
        Some(path) => write(path, &report.to_json()?)?,
        None => {}
    }
    if text.is_empty() {
        text = report::table::render(report);
        left_out.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        if let Some(old) = old {
            text.push_str(&report::compare::render(old, report));
        }
    }
    print(&text)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).doing(|| format!("write {}", path.display()))
}

/// To standard output.
fn print(text: &str) -> Result<()> {
    let mut out = Out::new();
    out.bytes(text.as_bytes()).and_then(|()| out.finish()).map_err(BenchError::Output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn jobs_of(line: &str) -> Result<(Vec<Job>, Vec<String>)> {
        jobs(&Line::try_parse_from(line.split(' ')).unwrap().bench)
    }

    #[test]
    fn no_argument_means_everything_where_it_belongs() {
        let (jobs, left_out) = jobs_of("bench").unwrap();
        assert_eq!(jobs.len(), 18, "both shapes of subblock-overwrite have two devices");
        assert!(left_out.is_empty());
        let randread = jobs.iter().find(|job| job.scenario.name == "randread-poll").unwrap();
        assert_eq!(randread.cases.iter().map(|case| case.depth).collect::<Vec<_>>(), [1, 128, 256, 512]);
    }

    #[test]
    fn options_reach_the_cases() {
        let line = "bench subblock-overwrite overwrite-randrw --size 1m --threads 3 --qd 5 --seconds 40";
        let (jobs, _) = jobs_of(&format!("{line} --arms on,raw")).unwrap();
        assert_eq!(jobs.len(), 5);
        for job in &jobs {
            assert_eq!(job.layout.files as u64 * job.layout.file_bytes, 1 << 20);
            let case = &job.cases[0];
            let depth = if case.scenario.mode == Mode::Synchronous { 1 } else { 5 };
            assert_eq!((case.threads, case.depth, case.timing.rounds), (3, depth, 160));
            assert_eq!(case.arms, [arm::Arm::On, arm::Arm::Raw]);
        }
    }

    #[test]
    fn what_does_not_fit_the_device_is_refused_when_named_and_left_out_when_not() {
        let (jobs, left_out) = jobs_of("bench --device dax:disk.img").unwrap();
        assert!(jobs.iter().all(|job| job.scenario.is_dax()));
        assert_eq!(jobs.len() + left_out.len(), SCENARIOS.len());
        for line in [
            "bench dax-shared-read --device disk.img",
            "bench dsync-overwrite --device dax:disk.img",
            "bench lookup-scaling --device disk.img",
            "bench lookup-scaling --size 1g",
            "bench seq-read --size 1k",
            "bench --device mem:64M",
        ] {
            assert!(matches!(jobs_of(line), Err(BenchError::Usage(_))), "{line}");
        }
    }

    #[test]
    fn scenarios_of_later_versions_are_unknown() {
        for line in [
            "bench seq-write",
            "bench append",
            "bench --rounds 39",
            "bench --mkfs",
            "bench --floors seq-read",
        ] {
            assert!(Line::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
