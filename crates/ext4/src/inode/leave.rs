//! The last use of an inode without a name.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use uext4_ondisk::Ino;

/// Numbers of inodes without a name that nobody uses any more, to be freed.
///
/// Its lock comes after all others: an inode may be dropped anywhere.
pub(crate) struct Leavers {
    /// A child of the process that opened the volume frees nothing.
    process: u32,
    numbers: Mutex<Numbers>,
    /// How many are ready: most often none, and nobody takes the lock.
    count: AtomicUsize,
    /// The volume has ended: the next open frees what is left.
    ended: AtomicBool,
}

#[derive(Default)]
struct Numbers {
    ready: BTreeSet<Ino>,
    /// Those that could not be freed when somebody tried.
    stuck: BTreeSet<Ino>,
}

impl Default for Leavers {
    fn default() -> Leavers {
        let (numbers, count) = (Mutex::default(), AtomicUsize::new(0));
        Leavers { process: std::process::id(), numbers, count, ended: AtomicBool::new(false) }
    }
}

impl Leavers {
    /// Whether any are ready to be freed. One load if not, however many files are open without a name.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && !self.ended.load(Ordering::Acquire)
            && self.process == std::process::id()
    }

    /// Takes one: for the caller alone, who frees it.
    pub(crate) fn take(&self) -> Option<Ino> {
        if !self.any() {
            return None;
        }
        let mut numbers = self.numbers.lock();
        let taken = numbers.ready.pop_first();
        self.count.store(numbers.ready.len(), Ordering::Release);
        taken
    }

    /// Takes this one if it is ready: for the caller alone, who frees it.
    pub(crate) fn take_one(&self, ino: Ino) -> bool {
        let mut numbers = self.numbers.lock();
        let taken = numbers.ready.remove(&ino);
        self.count.store(numbers.ready.len(), Ordering::Release);
        taken
    }

    /// One that was taken could not be freed.
    pub(crate) fn is_stuck(&self, ino: Ino) {
        self.numbers.lock().stuck.insert(ino);
    }

    /// Those that could not be freed are ready once more.
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

    fn add(&self, ino: Ino) {
        if self.process != std::process::id() {
            return;
        }
        let mut numbers = self.numbers.lock();
        numbers.ready.insert(ino);
        self.count.store(numbers.ready.len(), Ordering::Release);
    }
}

/// What an inode without a name carries: when the inode is dropped, its number is ready to be freed.
pub(super) struct Leave {
    ino: Ino,
    leavers: Arc<Leavers>,
    armed: bool,
}

impl Leave {
    pub(super) fn new(ino: Ino, leavers: &Arc<Leavers>) -> Leave {
        Leave { ino, leavers: leavers.clone(), armed: true }
    }

    /// The inode has a name again.
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
