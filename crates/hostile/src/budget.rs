//! What one image may cost: memory, processor time, device reads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::heap;
use crate::targets::Target;

/// Most bytes: on the heap, and resident in all (mapped memory, which the heap does not see, included).
pub const MEMORY: usize = 64 << 20;
/// Most processor time.
pub const TIME: Duration = Duration::from_secs(10);
/// Wall-clock time after which a case counts as hung, however busy the machine is.
const HUNG: Duration = Duration::from_secs(120);

/// What a case cost and brought.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Most bytes on the heap.
    pub heap: usize,
    /// How much the resident set grew at most, where the kernel tells (0 otherwise).
    pub resident: usize,
    /// Processor time of this thread.
    pub time: Duration,
    /// What the target counted.
    pub found: usize,
}

impl Cost {
    /// The greater of both in each respect; `found` adds up.
    #[must_use]
    pub fn max(self, other: Cost) -> Cost {
        Cost {
            heap: self.heap.max(other.heap),
            resident: self.resident.max(other.resident),
            time: self.time.max(other.time),
            found: self.found + other.found,
        }
    }
}

/// The resident set is the process's: one case at a time.
static ALONE: Mutex<()> = Mutex::new(());
/// Number of the running case, 0 if none runs.
static RUNNING: AtomicU64 = AtomicU64::new(0);

/// Runs a target on an image within its budget.
///
/// # Errors
/// What went wrong: the panic's text, or the broken bound.
pub fn run(target: Target, image: &[u8]) -> Result<Cost, String> {
    within(|| target.run(image))
}

/// Does `work`, which counts what it found, within the budget of an image.
///
/// # Errors
/// As of [`run`].
pub fn within(work: impl FnOnce() -> usize) -> Result<Cost, String> {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let start_resident = reset_peak();
    heap::start();
    let (start_heap, start_time) = (heap::now(), thread_time());
    watch(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    watch(false);
    let found = result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
    })?;
    let cost = Cost {
        heap: usize::try_from(heap::peak() - start_heap).unwrap_or(0),
        resident: peak().saturating_sub(start_resident),
        time: thread_time().saturating_sub(start_time),
        found,
    };
    if cost.heap > MEMORY || cost.resident > MEMORY {
        return Err(format!(
            "{} bytes of heap, {} bytes resident: more than {MEMORY}",
            cost.heap, cost.resident
        ));
    }
    if cost.time > TIME {
        return Err(format!("{:?} of processor time", cost.time));
    }
    Ok(cost)
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Makes the present resident set the peak and returns it in bytes.
fn reset_peak() -> usize {
    // Not there in some containers: the peak then never grows and the heap is the only bound.
    let _not_there = std::fs::write("/proc/self/clear_refs", "5");
    peak()
}

/// The peak of the resident set in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<usize>().ok());
    kib.unwrap_or(0) << 10
}

/// Starts or ends the watch over a case. A case that hangs cannot be stopped, only the process.
///
/// The watcher counts its own seconds: a process that was stopped for a while did not hang.
fn watch(start: bool) {
    static CASES: AtomicU64 = AtomicU64::new(0);
    static WATCHER: Once = Once::new();
    let case = CASES.fetch_add(1, Relaxed) + 1;
    RUNNING.store(if start { case } else { 0 }, Relaxed);
    WATCHER.call_once(|| {
        std::thread::spawn(|| {
            let (mut watched, mut seconds) = (0, 0);
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let running = RUNNING.load(Relaxed);
                seconds = if running == watched { seconds + 1 } else { 0 };
                watched = running;
                if running != 0 && seconds > HUNG.as_secs() {
                    eprintln!("a case runs for more than {HUNG:?}: a hang");
                    std::process::abort();
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_and_allocated_memory_is_seen() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let before = reset_peak();
        drop(std::hint::black_box(vec![1u8; 32 << 20]));
        let grown = peak() - before;
        assert!(grown >= 30 << 20 || before == 0, "{grown}");
    }
}
