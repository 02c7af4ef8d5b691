//! Turns settings into a report: runs jobs on volumes, one after another.

use crate::error::{BenchError, Result};
use crate::load;
use crate::machine::{self, Machine};
use crate::measure::{self, Case};
use crate::metadata::{self, METADATA};
use crate::report::model::{Measured, Report};
use crate::scenario::{LOOKUP_SCALING, Mode, SCENARIOS, Scenario};
use crate::settings::Settings;
use crate::volume::given::{Format, Given, Source};
use crate::volume::{Layout, Standard};
use std::sync::Arc;

/// Most bytes that a working set grows to because the caches are large.
const BEYOND_CACHE_MAX: u64 = 1 << 30;

/// Progress of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Something that spoils the figures, reported before measuring starts, so that the user can stop.
    Warning(String),
    /// The measurement of a scenario starts.
    Begin {
        /// Its name.
        title: String,
        /// Turns that it will take.
        turns: u64,
    },
    /// One turn is over.
    Turn,
}

/// Measures what is asked for, and has every volume checked by e2fsck afterwards. What the given device rules out is
/// an error if it was asked for by name, and [`Report::left_out`] otherwise.
pub fn run(settings: &Settings, tell: &mut dyn FnMut(Event)) -> Result<Report> {
    settings.check()?;
    let (jobs, left_out) = jobs(settings)?;
    let with_metadata = asks_metadata(settings)?;
    if let Some(Source::Given(given)) = jobs.first().map(|job| &job.source) {
        given.spare_contents()?;
    }
    let mut report = begin(tell);
    report.left_out = left_out;
    for job in &jobs {
        report.scenarios.extend(job.run(tell)?);
    }
    if with_metadata {
        report.scenarios.extend(metadata::run(settings, tell)?);
    }
    Ok(report)
}

/// An empty report. Warns at once if other processes use much of the processors.
pub(crate) fn begin(tell: &mut dyn FnMut(Event)) -> Report {
    let load_before = load::now();
    if let Some(warning) = load_before.and_then(|load| load.warning()) {
        tell(Event::Warning(format!("{warning}: figures will be worse and less sure")));
    }
    let (machine, scenarios, left_out) = (Machine::this(), Vec::new(), Vec::new());
    Report { version: 1, machine, load_before, scenarios, left_out }
}

/// A scenario on one volume: all its depths.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub scenario: &'static Scenario,
    pub source: Source,
    pub layout: Layout,
    pub cases: Vec<Case>,
}

impl Job {
    /// Makes the volume, measures, has it checked.
    pub fn run(&self, tell: &mut dyn FnMut(Event)) -> Result<Vec<Measured>> {
        let what = |error: BenchError| match error {
            BenchError::Usage(message) => BenchError::Usage(message),
            other => BenchError::failed(format!("{}: {other}", self.scenario.title())),
        };
        self.measure(tell).map_err(what)
    }

    fn measure(&self, tell: &mut dyn FnMut(Event)) -> Result<Vec<Measured>> {
        let bed = self.source.bed(self.layout)?;
        let turns = self.cases.iter().map(|case| case.turns(&bed)).sum();
        tell(Event::Begin { title: self.scenario.title(), turns });
        let mut measured = Vec::new();
        for case in &self.cases {
            measured.push(measure::measure(case, &bed, &mut || tell(Event::Turn))?);
        }
        bed.finish()?;
        Ok(measured)
    }
}

/// Whether `metadata` is asked for. It takes a minute and more, so that it is no part of "everything".
fn asks_metadata(asked: &Settings) -> Result<bool> {
    let named = asked.scenarios.iter().any(|name| name == METADATA);
    match metadata::unsuited(asked) {
        Some(why) if named => Err(BenchError::Usage(format!("{METADATA}: {why}"))),
        _ => Ok(named),
    }
}

/// The requested jobs, and the scenarios of "everything" that the given device rules out.
fn jobs(asked: &Settings) -> Result<(Vec<Job>, Vec<String>)> {
    let format = match (asked.mkfs, asked.force) {
        (false, _) => Format::Never,
        (true, false) => Format::Empty,
        (true, true) => Format::Always,
    };
    let given = asked.device.as_deref().map(|device| Given::parse(device, format, &asked.program));
    let given = given.transpose()?;
    let given = given.map(Arc::new);
    let mut jobs = Vec::new();
    let mut left_out = Vec::new();
    for scenario in SCENARIOS {
        let named = asked.scenarios.iter().any(|name| name == scenario.name);
        if !named && !asked.scenarios.is_empty() {
            continue;
        }
        match unsuited(scenario, given.as_deref(), asked) {
            // Of a scenario that suits, some shapes may not.
            Some(why) if named && scenario.shape.is_none() => {
                return Err(BenchError::Usage(format!("{}: {why}", scenario.name)));
            }
            Some(why) => left_out.push(format!("{} was left out: {why}", scenario.title())),
            None => jobs.extend(scenario_jobs(scenario, given.as_ref(), asked)),
        }
    }
    if jobs.is_empty() && asked.scenarios.iter().all(|name| name != METADATA) {
        return Err(BenchError::Usage(left_out.join("; ")));
    }
    Ok((jobs, left_out))
}

fn unsuited(scenario: &Scenario, given: Option<&Given>, asked: &Settings) -> Option<String> {
    if let Some(given) = given {
        if scenario.name == LOOKUP_SCALING {
            return Some("it makes a volume of its own, with a file that no program would make".into());
        }
        if scenario.standards == [Standard::Null] {
            return Some("it measures without a device".into());
        }
        if scenario.is_dax() != given.is_dax() {
            return Some(format!(
                "it needs a device {} `dax:`",
                if scenario.is_dax() { "with" } else { "without" }
            ));
        }
    }
    if scenario.name == LOOKUP_SCALING && asked.size.is_some() {
        return Some("its files have a fixed number of extents, --size cannot change them".into());
    }
    let smallest = smallest_size(scenario);
    match asked.size {
        Some(size) if size < smallest => Some(format!("--size must be at least {smallest} for it")),
        _ => None,
    }
}

/// At least one request, and one block, in each file.
fn smallest_size(scenario: &Scenario) -> u64 {
    scenario.files as u64 * u64::from(scenario.block).max(4096)
}

fn scenario_jobs(scenario: &'static Scenario, given: Option<&Arc<Given>>, asked: &Settings) -> Vec<Job> {
    let mut bytes = asked.size.unwrap_or(scenario.bytes);
    if scenario.beyond_cache && asked.size.is_none() {
        let beyond = machine::l3_bytes().unwrap_or(0).saturating_mul(2).min(BEYOND_CACHE_MAX);
        bytes = bytes.max(beyond);
    }
    // Whole blocks, and whole requests.
    let unit = u64::from(scenario.block).max(4096);
    let layout = Layout { files: scenario.files, file_bytes: bytes / scenario.files as u64 / unit * unit };
    let sources: Vec<Source> = match given {
        Some(given) => vec![Source::Given(Arc::clone(given))],
        None => scenario.standards.iter().map(|&standard| Source::Standard(standard)).collect(),
    };
    let job = |source| Job { scenario, source, layout, cases: cases(scenario, layout.file_bytes, asked) };
    sources.into_iter().map(job).collect()
}

fn cases(scenario: &'static Scenario, span: u64, asked: &Settings) -> Vec<Case> {
    let depth = asked.depth.filter(|_| scenario.mode != Mode::Synchronous);
    let depths: Vec<u32> = depth.map_or_else(|| scenario.depths.to_vec(), |depth| vec![depth]);
    let span = if scenario.name == LOOKUP_SCALING { u64::MAX } else { span };
    let case = |depth| Case {
        scenario,
        threads: asked.threads.map_or(scenario.threads, usize::from),
        depth,
        span,
        arms: asked.arms.clone(),
        kernel: asked.kernel,
        switches: asked.switches,
        timing: asked.timing,
    };
    depths.into_iter().map(case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arm::Arm;
    use crate::settings::Timing;

    #[test]
    fn no_argument_means_everything_where_it_belongs() {
        let (jobs, left_out) = jobs(&Settings::default()).unwrap();
        assert_eq!(
            jobs.len(),
            31,
            "subblock-overwrite, append and fsync have two devices, in two shapes each"
        );
        assert!(left_out.is_empty());
        let randread = jobs.iter().find(|job| job.scenario.name == "randread-poll").unwrap();
        assert_eq!(randread.cases.iter().map(|case| case.depth).collect::<Vec<_>>(), [1, 128, 256, 512]);
    }

    #[test]
    fn options_reach_the_cases() {
        let asked = Settings {
            scenarios: ["subblock-overwrite", "overwrite-randrw"].map(str::to_owned).to_vec(),
            size: Some(1 << 20),
            threads: Some(3),
            depth: Some(5),
            timing: Timing::new(40.0, 40),
            arms: vec![Arm::On, Arm::Raw],
            ..Settings::default()
        };
        let (jobs, _) = jobs(&asked).unwrap();
        assert_eq!(jobs.len(), 5);
        for job in &jobs {
            assert_eq!(job.layout.files as u64 * job.layout.file_bytes, 1 << 20);
            let case = &job.cases[0];
            let depth = if case.scenario.mode == Mode::Synchronous { 1 } else { 5 };
            assert_eq!((case.threads, case.depth, case.timing.rounds), (3, depth, 160));
            assert_eq!(case.arms, [Arm::On, Arm::Raw]);
        }
    }

    #[test]
    fn what_does_not_fit_the_device_is_refused_when_named_and_left_out_when_not() {
        let asked = |scenario: &str, device: Option<&str>, size| Settings {
            scenarios: scenario.split_whitespace().map(str::to_owned).collect(),
            device: device.map(Into::into),
            size,
            ..Settings::default()
        };
        let (jobs_there, left_out) = jobs(&asked("", Some("dax:disk.img"), None)).unwrap();
        assert!(jobs_there.iter().all(|job| job.scenario.is_dax()));
        assert_eq!(jobs_there.len() + left_out.len(), SCENARIOS.len());
        for asked in [
            asked("dax-shared-read", Some("disk.img"), None),
            asked("dsync-overwrite", Some("dax:disk.img"), None),
            asked("lookup-scaling", Some("disk.img"), None),
            asked("lookup-scaling", None, Some(1 << 30)),
            asked("seq-read", None, Some(1 << 10)),
            asked("", Some("mem:64M"), None),
        ] {
            assert!(matches!(jobs(&asked), Err(BenchError::Usage(_))), "{asked:?}");
        }
    }
}
