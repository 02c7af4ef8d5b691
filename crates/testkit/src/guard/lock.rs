//! The machine-wide lock behind every guard.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::FlockOperation;

/// Held while any guard of this process lives; released with the last of them (or by the kernel when the
/// process dies).
#[derive(Debug)]
pub struct MachineLock {
    _file: File,
}

static HELD: Mutex<Weak<MachineLock>> = Mutex::new(Weak::new());

/// Every mount point of ours has this in its name, so that one left behind by a killed process can be told
/// apart.
pub(super) const MOUNT_PREFIX: &str = "uext4-testmnt-";

fn lock_path() -> PathBuf {
    let dir =
        ["/run/lock", "/tmp"].into_iter().find(|dir| Path::new(dir).is_dir()).expect("a lock directory");
    Path::new(dir).join("uext4-test.lock")
}

/// Takes the lock, waiting for other processes; re-entrant within this one.
pub fn machine_lock() -> Arc<MachineLock> {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(lock) = held.upgrade() {
        return lock;
    }
    let path = lock_path();
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    while let Err(e) = rustix::fs::flock(&file, FlockOperation::LockExclusive) {
        assert_eq!(e, rustix::io::Errno::INTR, "flock {}: {e}", path.display());
    }
    let lock = Arc::new(MachineLock { _file: file });
    sweep_stale_mounts();
    *held = Arc::downgrade(&lock);
    lock
}

/// Unmounts what a killed test process left behind. Sound because the lock is ours and this process has no
/// guard yet: no live guard anywhere owns a mount with our prefix.
fn sweep_stale_mounts() {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let ours = std::env::temp_dir();
    for target in table.lines().filter_map(|line| line.split(' ').nth(1)) {
        // Elsewhere, in somebody's chroot for instance, another lock counts.
        if target.contains(MOUNT_PREFIX) && Path::new(target).parent() == Some(&ours) {
            eprintln!("testkit: unmounting {target}, left by a killed test");
            let _ = crate::oracle::command("umount").args(["--lazy", target]).status();
            let _ = std::fs::remove_dir(target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_shared_within_the_process_and_excludes_others() {
        crate::needs!(crate::Need::Root, crate::Need::Tool("flock"));
        let first = machine_lock();
        let second = std::thread::spawn(machine_lock).join().unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        drop(second);
        let try_lock = || {
            let status = crate::oracle::command("flock").arg("-n").arg(lock_path()).arg("true").status();
            status.unwrap().success()
        };
        assert!(!try_lock(), "another process took the lock while a guard lived");
    }
}
