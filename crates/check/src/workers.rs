//! Threads for the duration of one call: the caller's own and a few more.

use crate::progress::{Pass, Progress, ProgressFn};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uext4::Result;

/// Distributes units `0..units` over `threads` threads. Each has a worker created by `make`; `work` does one unit.
/// Returns the workers. The caller's thread works too and reports progress.
pub(crate) fn run<W: Send>(
    threads: u32,
    units: u64,
    pass: Pass,
    progress: &mut ProgressFn<'_>,
    make: impl Fn() -> Result<W> + Sync,
    work: impl Fn(&mut W, u64) -> Result<()> + Sync,
) -> Result<Vec<W>> {
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let labour = |told: &mut dyn FnMut(u64)| -> Result<W> {
        let mut worker = make()?;
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit >= units || failed.load(Ordering::Relaxed) {
                return Ok(worker);
            }
            told(unit);
            work(&mut worker, unit).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
        }
    };
    let helpers = u64::from(threads.max(1)).min(units.max(1)) - 1;
    let workers = std::thread::scope(|scope| {
        let labour = &labour;
        let spawned: Vec<_> = (0..helpers)
            .map(|_| {
                std::thread::Builder::new()
                    .name("uext4-check".into())
                    .spawn_scoped(scope, || labour(&mut |_| {}))
            })
            .collect();
        let mut workers = vec![labour(&mut |unit| progress(Progress { pass, done: unit, total: units }))];
        for thread in spawned {
            // If a thread cannot be started, the others do its work.
            let Ok(thread) = thread else { continue };
            workers.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        workers
    });
    progress(Progress { pass, done: units, total: units });
    workers.into_iter().collect()
}
