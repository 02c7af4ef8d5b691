//! What a volume that is open for writing needs now and then: commits, times, whether somebody asks or not.

use crate::ground::error::{Error, Result};
use crate::seam::Ext4;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use uext4_iomap::{Engine, FileSystem};

/// Most time that the times of an overwritten file are in memory only, if somebody ticks.
const TIMES_AGE: Duration = Duration::from_secs(30);
/// Longest time between two looks of the thread.
const LOOK: Duration = Duration::from_secs(1);

/// Commits a transaction that is older than the interval, and writes old times.
pub(super) fn tick(fs: &Ext4, commit_interval: Duration) -> Result<()> {
    if !fs.state.can_change() {
        return Ok(());
    }
    fs.check_alive()?;
    let times = fs.files().write_old_times(TIMES_AGE);
    if fs.state.running_for().is_some_and(|age| age >= commit_interval) {
        fs.state.commit_all()?;
    }
    times
}

/// Makes everything durable that was done before: changes of all kinds, times, and data that is complete.
pub(super) fn sync_all(fs: &Ext4, engine: &Engine<Ext4>) -> Result<()> {
    // Times are a change as well: they go with the commit.
    let times = if fs.state.can_change() { fs.files().write_old_times(Duration::ZERO) } else { Ok(()) };
    fs.state.commit_all()?;
    // A commit may have had nothing to do, or have begun before the last data was complete.
    engine.sync_many(&[], true)?;
    times
}

/// A thread that ticks. It has a part in the file system but none in the volume, which can go at any time: whoever ends
/// that stops the thread first.
pub(super) struct Background {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    told: Condvar,
}

impl Stop {
    /// Waits for so long. Whether to go on.
    fn pause(&self, length: Duration) -> bool {
        let until = Instant::now() + length;
        let mut asked = self.asked.lock();
        while !*asked {
            if self.told.wait_until(&mut asked, until).timed_out() {
                break;
            }
        }
        !*asked
    }
}

impl Background {
    /// Starts it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the system gives no thread.
    pub(super) fn start(fs: Arc<Ext4>, commit_interval: Duration) -> Result<Background> {
        let stop = Arc::new(Stop::default());
        let (own, look) = (stop.clone(), (commit_interval / 4).clamp(Duration::from_millis(10), LOOK));
        let work = move || {
            while own.pause(look) {
                // An aborted volume says so to everybody who asks something of it. Nothing is due any more.
                if matches!(tick(&fs, commit_interval), Err(Error::Aborted(_) | Error::Journal(_))) {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("uext4-tick".into()).spawn(work);
        let thread = thread.map_err(|error| Error::Invalid(format!("no thread for the volume: {error}")))?;
        Ok(Background { stop, thread: Some(thread) })
    }
}

impl Drop for Background {
    /// Waits for what it is at.
    fn drop(&mut self) {
        *self.stop.asked.lock() = true;
        self.stop.told.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was its own, and has aborted the volume if it was in the middle of something.
            let _ended = thread.join();
        }
    }
}
