//! The last drop of an inode without a name.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use uext4_ondisk::Ino;

/// Numbers of inodes without a name or users, ready to be freed.
///
/// Its lock ranks after all others, since an inode may be dropped anywhere.
pub(crate) struct Leavers {
    /// A forked child of the process that opened the volume frees nothing.
    process: u32,
    numbers: Mutex<Numbers>,
    /// How many are ready. Usually zero, which needs no lock.
    count: AtomicUsize,
    /// Set when the volume has ended: the next open frees the rest.
    ended: AtomicBool,
}

#[derive(Default)]
struct Numbers {
    ready: BTreeSet<Ino>,
    /// Those whose freeing failed.
    stuck: BTreeSet<Ino>,
}

impl Default for Leavers {
    fn default() -> Leavers {
        let (numbers, count) = (Mutex::default(), AtomicUsize::new(0));
        Leavers { process: std::process::id(), numbers, count, ended: AtomicBool::new(false) }
    }
}

impl Leavers {
    /// Whether any are ready to be freed. If not, one load, regardless of how many unlinked files are open.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && !self.ended.load(Ordering::Acquire)
            && self.process == std::process::id()
    }

    /// Takes one, which the caller must free.
    pub(crate) fn take(&self) -> Option<Ino> {
        if !self.any() {
            return None;
        }
        let mut numbers = self.numbers.lock();
        let taken = numbers.ready.pop_first();
        self.count.store(numbers.ready.len(), Ordering::Release);
        taken
    }

    /// Takes this one if it is ready; the caller must free it.
    pub(crate) fn take_one(&self, ino: Ino) -> bool {
        let mut numbers = self.numbers.lock();
        let taken = numbers.ready.remove(&ino);
        self.count.store(numbers.ready.len(), Ordering::Release);
        taken
    }

    /// Freeing one that was taken has failed.
    pub(crate) fn is_stuck(&self, ino: Ino) {
        self.numbers.lock().stuck.insert(ino);
    }

    /// Makes those whose freeing failed ready again.
    pub(crate) fn retry(&self) {
        let mut numbers = self.numbers.lock();
        let mut stuck = std::mem::take(&mut numbers.stuck);
        numbers.ready.append(&mut stuck);
        self.count.store(numbers.ready.len(), Ordering::Release);
    }

    /// From now on nothing is freed.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// One has no name and no user: it can be freed.
    pub(crate) fn add(&self, ino: Ino) {
        if self.process != std::process::id() {
            return;
        }
        let mut numbers = self.numbers.lock();
        numbers.ready.insert(ino);
        self.count.store(numbers.ready.len(), Ordering::Release);
    }
}

/// Attached to an inode without a name: when the inode is dropped, its number becomes ready to be freed.
pub(super) struct Leave {
    ino: Ino,
    leavers: Arc<Leavers>,
    armed: bool,
}

impl Leave {
    pub(super) fn new(ino: Ino, leavers: &Arc<Leavers>) -> Leave {
        Leave { ino, leavers: leavers.clone(), armed: true }
    }

    /// The inode was linked again.
    pub(super) fn disarm(mut self) {
        self.armed = false;
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        if self.armed {
            self.leavers.add(self.ino);
        }
    }
}
