//! What a power cut may leave of a device: every legal state of a log, as many as there is time for.
//!
//! A [`CrashDevice`](crate::device::CrashDevice)
//! records; [`for_each_state`] hands out [`State`]s: images, with the marks
//! that the test had made by then. `docs/proof/crash.md` says what is legal and how a failure is replayed.

mod choices;
mod history;
mod image;
mod options;
mod report;

pub use image::Image;
pub use options::Options;
pub use report::{Failure, Report};

use crate::device::{CrashEvent, CrashLog, CrashOutcome};
use choices::{Choices, Pick};
use history::{Cursor, History};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use uext4_blockdev::{Device, Op};

/// What the medium may hold after a crash, and what the test had said by then.
pub struct State<'a> {
    history: &'a History<'a>,
    image: Image,
    cut: usize,
    marks: usize,
    hash: u64,
    id: String,
}

impl State<'_> {
    /// The bytes.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Fills `buf` from byte `pos`.
    #[track_caller]
    pub fn read(&self, pos: u64, buf: &mut [u8]) {
        self.image.read(pos, buf);
    }

    /// A device that starts with the bytes of the state and keeps its changes to itself.
    pub fn device(&self) -> Arc<dyn Device> {
        self.image.device(self.history.log.block)
    }

    /// Writes the bytes into a file, for e2fsck.
    #[track_caller]
    pub fn save(&self, path: &Path) {
        self.image.save(path);
    }

    /// The marks of this type that were made before the cut, in order: what they acknowledge must be there.
    pub fn marks<T: 'static>(&self) -> impl Iterator<Item = &T> {
        self.history.marks(self.marks).filter_map(|mark| mark.downcast_ref())
    }

    /// Events of the log that had happened.
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// Identifies the image.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Names the state to whoever has the log and the seed.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// Shows legal states of `log` to `check`, each image once for every set of marks, until all were shown or the options
/// say that it is enough. The first state that `check` refuses, by an error or a panic, ends it.
pub fn for_each_state(
    log: &CrashLog,
    options: &Options,
    check: impl FnMut(&State<'_>) -> Result<(), String>,
) -> Result<Report, Box<Failure>> {
    let history = History::new(log, options.unit);
    let cuts = history.cuts();
    let seen = HashSet::new();
    let mut run = Enumeration {
        options,
        check,
        seen,
        images: HashSet::new(),
        started: Instant::now(),
        report: Report::default(),
    };
    if let Some(only) = options.only() {
        let only = only.map_err(|wrong| Box::new(Failure::plain(wrong)))?;
        if let Some((cut, pick)) = only {
            let mut cursor = history.start();
            cursor.advance(cut.min(log.events.len()));
            run.show(&cursor, &Choices::new(&cursor), pick)?;
        }
        return Ok(run.report());
    }
    let mut progress: Vec<Progress> = cuts.iter().map(|_| Progress::default()).collect();
    while !run.is_over() && progress.iter().any(|progress| !progress.exhausted) {
        let before = run.seen.len();
        run.pass(&history, &cuts, &mut progress)?;
        if run.seen.len() == before {
            break;
        }
    }
    run.report.cuts = cuts.len();
    run.report.complete = progress.iter().all(|progress| progress.exhausted && progress.exact);
    run.report.exact = progress.iter().filter(|progress| progress.exhausted && progress.exact).count();
    Ok(run.report())
}

/// [`for_each_state`] for tests. Long runs add up what it showed.
///
/// # Panics
/// With the state, the seed and the command that shows this state again, if `check` refuses one.
#[track_caller]
pub fn assert_states(
    log: &CrashLog,
    options: &Options,
    check: impl FnMut(&State<'_>) -> Result<(), String>,
) -> Report {
    let report = for_each_state(log, options, check).unwrap_or_else(|failure| panic!("{failure}"));
    report.note(options, Location::caller());
    report
}

/// How far a cut has been enumerated.
#[derive(Default)]
struct Progress {
    numbered: u64,
    drawn: u64,
    /// Nothing is left.
    exhausted: bool,
    /// Every legal state was shown.
    exact: bool,
}

impl Progress {
    /// What to show next.
    fn next(&mut self, choices: &Choices<'_>, options: &Options) -> Option<Pick> {
        let number = self.numbered;
        let exact = choices.exact(options.exhaustive).filter(|_| options.torn);
        if let Some(all) = exact {
            self.exact = true;
            self.exhausted = number + 1 >= all;
            self.numbered += 1;
            return (number < all).then_some(Pick::Exact(number));
        }
        if let Some(all) = choices.whole(options.exhaustive) {
            if number < all {
                self.numbered += 1;
                return Some(Pick::Whole(number));
            }
            if !options.torn || !choices.can_tear() {
                (self.exhausted, self.exact) = (true, !choices.is_contested());
                return None;
            }
        }
        self.drawn += 1;
        Some(Pick::Drawn(self.drawn - 1))
    }
}

struct Enumeration<'a, F> {
    options: &'a Options,
    check: F,
    /// Image and marks together: an image that was right may be wrong once more is promised.
    seen: HashSet<(u64, usize)>,
    images: HashSet<u64>,
    started: Instant,
    report: Report,
}

impl<F: FnMut(&State<'_>) -> Result<(), String>> Enumeration<'_, F> {
    fn is_over(&self) -> bool {
        self.seen.len() >= self.options.states || self.started.elapsed() >= self.options.time
    }

    /// Goes through the log once. Every cut gets an equal part of the states that are left.
    fn pass(
        &mut self,
        history: &History<'_>,
        cuts: &[usize],
        progress: &mut [Progress],
    ) -> Result<(), Box<Failure>> {
        let mut cursor = history.start();
        let mut open = progress.iter().filter(|progress| !progress.exhausted).count();
        // With fewer states than cuts, some cuts at equal distances.
        let step = open.div_ceil(self.options.states.max(1)).max(1);
        for (index, &cut) in cuts.iter().enumerate() {
            cursor.advance(cut);
            let last = index + 1 == cuts.len();
            if progress[index].exhausted || !(index.is_multiple_of(step) || last) {
                continue;
            }
            let left = self.options.states.saturating_sub(self.seen.len());
            let quota = left.div_ceil(open.div_ceil(step).max(1));
            open = open.saturating_sub(step);
            let choices = Choices::new(&cursor);
            let (mut new, mut tried) = (0, 0);
            while new < quota && tried < 4 * quota + 8 && !self.is_over() && !progress[index].exhausted {
                let Some(pick) = progress[index].next(&choices, self.options) else { break };
                new += usize::from(self.show(&cursor, &choices, pick)?);
                tried += 1;
            }
        }
        Ok(())
    }

    /// Shows one state. False: it was seen before.
    fn show(&mut self, cursor: &Cursor<'_>, choices: &Choices<'_>, pick: Pick) -> Result<bool, Box<Failure>> {
        let chosen = choices.choose(pick, self.options.seed, self.options.torn);
        if !self.seen.insert((chosen.hash, cursor.marks)) {
            self.report.repeated += 1;
            return Ok(false);
        }
        self.images.insert(chosen.hash);
        let state = State {
            history: cursor.history,
            image: choices.image(&chosen),
            cut: cursor.cut,
            marks: cursor.marks,
            hash: chosen.hash,
            id: self.options.id(cursor.cut, pick),
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.check)(&state))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            Err(format!("panic: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text")))
        });
        outcome.map(|()| true).map_err(|reason| {
            let loose = choices.describe(&chosen);
            Box::new(Failure::new(&state, self.options, reason, loose))
        })
    }

    fn report(mut self) -> Report {
        self.report.states = self.seen.len();
        self.report.images = self.images.len();
        self.report.elapsed = self.started.elapsed();
        self.report
    }
}

/// An operation in words: `#12 W 4096+512 FUA`.
fn name(log: &CrashLog, op: usize) -> String {
    let operation = &log.operations[op];
    let letter = match operation.op {
        Op::Flush => return format!("#{op} F"),
        Op::Discard => 'D',
        _ => 'W',
    };
    let fua = if operation.fua { " FUA" } else { "" };
    let failed = if operation.outcome == CrashOutcome::Failed { " failed" } else { "" };
    format!("#{op} {letter} {}+{}{fua}{failed}", operation.pos, operation.length)
}

/// An event in words.
fn event(log: &CrashLog, index: usize) -> String {
    match log.events.get(index) {
        None => "end of the log".into(),
        Some(CrashEvent::Submitted(op)) => format!("submitted {}", name(log, *op)),
        Some(CrashEvent::Completed(op)) => format!("completed {}", name(log, *op)),
        Some(CrashEvent::Marked(_)) => "mark".into(),
    }
}
