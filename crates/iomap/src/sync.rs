//! The synchronisation primitives of the engine, swapped for loom's under `--cfg loom` so that the protocols of
//! [`crate::gate`] and [`crate::snapshot`] can be model-checked as they are.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use model::{Mutex, MutexGuard};

use std::time::Duration;

/// Publishes `value` and orders it before every later load of this thread (the store half of a store-load pair).
///
/// On x86-64 a sequentially consistent swap is the cheapest such store. loom treats SeqCst accesses as
/// acquire/release, but models SeqCst fences, so the model uses store + fence: the same guarantee.
#[inline]
pub(crate) fn store_then_fence(cell: &AtomicU64, value: u64) {
    #[cfg(not(loom))]
    cell.swap(value, Ordering::SeqCst);
    #[cfg(loom)]
    {
        cell.store(value, Ordering::Release);
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// Adds to a cell that several threads write, and orders it before every later load of this thread.
#[inline]
pub(crate) fn add_then_fence(cell: &AtomicU64, value: u64) {
    cell.fetch_add(value, Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Orders earlier stores of this thread before later loads.
#[inline]
pub(crate) fn full_fence() {
    #[cfg(not(loom))]
    std::sync::atomic::fence(Ordering::SeqCst);
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Threads waiting for a condition that others announce. A lost announcement costs at most the time-out, never a hang,
/// so announcing may be a relaxed look at a counter on hot paths.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    waiting: AtomicU32,
    lock: parking_lot::Mutex<()>,
    changed: parking_lot::Condvar,
}

#[cfg(not(loom))]
impl Waiters {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Sleeps until announced or `timeout`, unless `blocked` is already false.
    pub(crate) fn park(&self, blocked: impl Fn() -> bool, timeout: Duration) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock();
        if blocked() {
            self.changed.wait_for(&mut guard, timeout);
        }
        drop(guard);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes one waiter.
    pub(crate) fn announce_one(&self) {
        full_fence();
        if self.waiting.load(Ordering::Relaxed) != 0 {
            let _guard = self.lock.lock();
            self.changed.notify_one();
        }
    }

    /// Wakes all waiters.
    pub(crate) fn announce_all(&self) {
        full_fence();
        if self.waiting.load(Ordering::Relaxed) != 0 {
            let _guard = self.lock.lock();
            self.changed.notify_all();
        }
    }
}

/// Under loom waiting is yielding: the model checks the protocol, not the parking.
#[cfg(loom)]
#[derive(Debug, Default)]
pub(crate) struct Waiters;

#[cfg(loom)]
impl Waiters {
    pub(crate) fn new() -> Self {
        Waiters
    }
    pub(crate) fn park(&self, _blocked: impl Fn() -> bool, _timeout: Duration) {
        loom::thread::yield_now();
    }
    pub(crate) fn announce_one(&self) {}
    pub(crate) fn announce_all(&self) {}
}

/// A pointer that is read far more often than replaced.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct Published<T>(arc_swap::ArcSwap<T>);

#[cfg(not(loom))]
impl<T> Published<T> {
    pub(crate) fn new(value: std::sync::Arc<T>) -> Self {
        Published(arc_swap::ArcSwap::new(value))
    }
    pub(crate) fn load_full(&self) -> std::sync::Arc<T> {
        self.0.load_full()
    }
    /// A borrow for one look-up: no shared counter is touched.
    pub(crate) fn load(&self) -> impl std::ops::Deref<Target = std::sync::Arc<T>> {
        self.0.load()
    }
    pub(crate) fn store(&self, value: std::sync::Arc<T>) {
        self.0.store(value);
    }
}

#[cfg(loom)]
pub(crate) use model::Published;

#[cfg(loom)]
mod model {
    use std::ops::{Deref, DerefMut};

    /// loom's mutex with parking_lot's face.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    pub(crate) struct MutexGuard<'a, T>(loom::sync::MutexGuard<'a, T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(self.0.lock().expect("loom mutexes are not poisoned"))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.0
        }
    }
    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.0
        }
    }

    /// The pointer behind a modelled lock: arc-swap itself is trusted, the protocol around it is not.
    #[derive(Debug)]
    pub(crate) struct Published<T>(Mutex<std::sync::Arc<T>>);

    impl<T> Published<T> {
        pub(crate) fn new(value: std::sync::Arc<T>) -> Self {
            Published(Mutex::new(value))
        }
        pub(crate) fn load_full(&self) -> std::sync::Arc<T> {
            self.0.lock().clone()
        }
        pub(crate) fn load(&self) -> impl Deref<Target = std::sync::Arc<T>> {
            Box::new(self.load_full())
        }
        pub(crate) fn store(&self, value: std::sync::Arc<T>) {
            *self.0.lock() = value;
        }
    }
}
