//! What an enumeration says at its end.

use super::options::{KEEP, Options, SEED, STATE, TOTALS};
use super::{State, event};
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::panic::Location;
use std::path::Path;
use std::time::Duration;

/// Events of the log that a failure prints before the cut.
const CONTEXT: usize = 12;

/// What was enumerated.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// States shown: an image counts once for every set of marks.
    pub states: usize,
    /// Distinct images among them.
    pub images: usize,
    /// Choices that led to a state seen before.
    pub repeated: usize,
    /// Cuts at which something is possible, or promised, that is not elsewhere.
    pub cuts: usize,
    /// How many of them had every legal state shown.
    pub exact: usize,
    /// All of them had: nothing else is possible.
    pub complete: bool,
    /// Time, that of the checks included.
    pub elapsed: Duration,
}

impl Report {
    /// Appends a line to the file of the environment, if it names one: `crash_tree/SCENARIO STATES IMAGES`.
    pub(super) fn note(&self, options: &Options, caller: &Location<'_>) {
        let Some(path) = std::env::var_os(TOTALS) else { return };
        let source = Path::new(caller.file()).file_stem().unwrap_or_default().display();
        let line = format!("{source}/{} {} {}\n", options.name, self.states, self.images);
        let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { states, images, cuts, exact, .. } = self;
        let rate = self.states as f64 / self.elapsed.as_secs_f64().max(1e-9);
        write!(f, "{states} states, {images} images, {exact} of {cuts} cuts completely, {rate:.0} a second")
    }
}

/// A state that the test refused.
#[derive(Debug)]
pub struct Failure {
    /// What the test said.
    pub reason: String,
    /// Of the state; empty if there was none.
    pub id: String,
    /// The seed of the enumeration.
    pub seed: u64,
    details: String,
}

impl Failure {
    /// Without a state.
    pub(super) fn plain(reason: String) -> Self {
        Failure { reason, id: String::new(), seed: 0, details: String::new() }
    }

    pub(super) fn new(state: &State<'_>, options: &Options, reason: String, loose: String) -> Self {
        let log = state.history.log;
        let (id, seed, cut) = (state.id.clone(), options.seed, state.cut);
        let mut details =
            format!("seed {seed}, cut {cut} of {}, image {:016x}\n", log.events.len(), state.hash);
        details += "  the last events:\n";
        for index in cut.saturating_sub(CONTEXT)..cut {
            details += &format!("    {index:5} {}\n", event(log, index));
        }
        details += &format!("    ----- power cut before: {}\n", event(log, cut));
        details += if loose.is_empty() { "  nothing was loose\n" } else { "  what was loose:\n" };
        details += &loose;
        if let Some(path) = std::env::var_os(KEEP) {
            state.save(path.as_ref());
            details += &format!("  the image is in {}\n", path.display());
        }
        details += &format!("  replay: {SEED}={seed} {STATE}={id} {}", command());
        Failure { reason, id, seed, details }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crash state {}: {}\n  {}", self.id, self.reason, self.details)
    }
}

impl std::error::Error for Failure {}

/// What runs this test again: the test's name is that of its thread.
fn command() -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_else(|_| "PACKAGE".into());
    let target = std::env::current_exe().ok().and_then(|path| {
        let stem = path.file_stem()?.to_str()?;
        Some(stem.rsplit_once('-').map_or(stem, |(name, _)| name).to_owned())
    });
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("TEST");
    format!("cargo test -p {package} --test {} -- --exact {test}", target.as_deref().unwrap_or("TARGET"))
}
