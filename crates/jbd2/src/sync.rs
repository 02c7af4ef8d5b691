//! The synchronisation primitives of the journal, swapped for loom's under `--cfg loom` so that the waiting
//! protocol of [`crate::wait`] and [`crate::transaction`] can be model-checked as it is.

#[cfg(not(loom))]
pub(crate) use parking_lot::{Condvar, Mutex};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(crate) use model::{Condvar, Mutex};

/// Orders a sequentially consistent read-modify-write of this thread before its later sequentially consistent
/// loads. The language promises that already; loom treats SeqCst accesses as acquire/release but models
/// SeqCst fences.
#[inline]
pub(crate) fn order_store_before_load() {
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// loom's locks with parking_lot's signatures.
#[cfg(loom)]
mod model {
    pub(crate) use loom::sync::MutexGuard;

    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("loom mutexes are not poisoned: a panic ends the model")
        }
    }

    #[derive(Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Condvar(loom::sync::Condvar::new())
        }
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
        pub(crate) fn wait_while<T>(
            &self,
            guard: MutexGuard<'_, T>,
            mut blocked: impl FnMut(&mut T) -> bool,
        ) {
            let mut guard = guard;
            while blocked(&mut guard) {
                guard = self.0.wait(guard).expect("loom mutexes are not poisoned: a panic ends the model");
            }
        }
    }
}
