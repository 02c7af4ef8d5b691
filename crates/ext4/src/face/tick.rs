//! Periodic work of a volume open for writing: commits, writing of times, and pages that go home beside the writers.

use crate::ground::error::{Error, Result};
use crate::seam::Ext4;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uext4_iomap::{Engine, FileSystem, Ring};

/// How long the times of an overwritten file may stay in memory only, given regular ticks.
const TIMES_AGE: Duration = Duration::from_secs(30);
/// How long bytes of a buffered write may stay in memory only.
const PAGES_AGE: Duration = Duration::from_secs(5);
/// Longest pause of the thread between two ticks.
const LOOK: Duration = Duration::from_secs(1);

/// Commits a transaction that is older than the interval, and writes pages and times that have waited long enough.
pub(super) fn tick(engine: &Engine<Ext4>, commit_interval: Duration) -> Result<()> {
    let fs = engine.fs();
    fs.check_alive()?;
    // A failure is told by the next sync of the file. Overwrites need no change of anything else.
    let _told_later = engine.write_old_pages(PAGES_AGE);
    if !fs.state.can_change() {
        return Ok(());
    }
    let times = fs.files().write_old_times(TIMES_AGE);
    if fs.state.running_for().is_some_and(|age| age >= commit_interval) {
        fs.state.commit_all()?;
    }
    times
}

/// Makes everything before this call durable: metadata changes, times, and completed data.
pub(super) fn sync_all(engine: &Engine<Ext4>) -> Result<()> {
    let fs = engine.fs();
    let pages = engine.write_all_pages();
    // Times are metadata too: the commit includes them.
    let times = if fs.state.can_change() { fs.files().write_old_times(Duration::ZERO) } else { Ok(()) };
    fs.state.commit_all()?;
    // Flush in any case: the commit may have had nothing to do, or have begun before the last data completed.
    engine.sync_many(&[], true)?;
    pages.and(times)
}

/// A thread that calls `tick`, and sends pages home when writers call it. It holds the engine but not the volume, which
/// may be dropped at any time: the drop stops the thread first.
pub(super) struct Background {
    engine: Arc<Engine<Ext4>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the system cannot start a thread.
    pub(super) fn start(engine: Arc<Engine<Ext4>>, commit_interval: Duration) -> Result<Background> {
        let (own, look) = (engine.clone(), (commit_interval / 4).clamp(Duration::from_millis(10), LOOK));
        let work = move || {
            let mut next = Instant::now() + look;
            loop {
                match own.page_bell().wait(next) {
                    Ring::Stop => break,
                    Ring::Pages => own.send_pages_home(),
                    Ring::Time => {}
                }
                if Instant::now() < next {
                    continue;
                }
                // An aborted volume reports that to every caller. The thread has nothing left to do.
                if matches!(tick(&own, commit_interval), Err(Error::Aborted(_) | Error::Journal(_))) {
                    break;
                }
                next = Instant::now() + look;
            }
            own.page_bell().stop();
        };
        engine.page_bell().attend();
        let thread = std::thread::Builder::new().name("uext4-tick".into()).spawn(work).map_err(|error| {
            engine.page_bell().stop();
            Error::Invalid(format!("cannot start the volume's background thread: {error}"))
        })?;
        Ok(Background { engine, thread: Some(thread) })
    }
}

impl Drop for Background {
    /// Waits for the tick under way.
    fn drop(&mut self) {
        self.engine.page_bell().stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is not ours to pass on; inside a change it has aborted the volume.
            let _ended = thread.join();
        }
    }
}
