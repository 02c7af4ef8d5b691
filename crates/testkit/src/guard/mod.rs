//! What a test borrows: loop devices, mounts, zram devices, servers. Each is a value that gives its
//! object back on drop, also while the test unwinds.
//!
//! Kernel objects hold the machine-wide lock, so that parallel test *binaries* take turns at what the machine
//! has little of; within one process the lock is shared, tests in threads run side by side.

mod ceph;
mod lock;
mod loopdev;
mod mount;
mod nbd;
mod zram;

pub use ceph::{Ceph, CephWithKeys, RbdImage};
pub use lock::{MachineLock, machine_lock};
pub use loopdev::{LoopDevice, LoopOptions};
pub use mount::{KernelMount, Mount, Tmpfs};
pub use nbd::{CuttingRelay, NbdServer};
pub use zram::Zram;

use std::time::{Duration, Instant};

/// Polls `done` for up to `limit`; whether it came true. The kernel finishes some releases in a work queue.
fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if done() {
            return true;
        }
        if start.elapsed() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reports a failure to give something back: a panic, unless the test is already unwinding from one.
fn release_failed(what: &str) {
    if std::thread::panicking() {
        eprintln!("testkit: {what}");
    } else {
        panic!("testkit: {what}");
    }
}
