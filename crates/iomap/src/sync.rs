//! The synchronisation primitives of the engine, swapped for loom's under `--cfg loom` so that the protocols
//! of [`crate::gate`] and [`crate::snapshot`] can be model-checked as they are.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard, RwLock};

#[cfg(loom)]
pub(crate) use model::{Condvar, Mutex, MutexGuard, RwLock};

/// parking_lot's condition variable, with an interface that loom's can have too.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

#[cfg(not(loom))]
impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }
    /// Waits until notified; may wake spuriously. `_of` is the guard's mutex.
    pub(crate) fn wait<'m, T>(&self, _of: &'m Mutex<T>, mut guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
        self.0.wait(&mut guard);
        guard
    }
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;

use std::time::Duration;

/// A cell whose accesses loom can check: a model fails if two of them are not ordered. Without loom, the same two calls
/// at no cost.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }
    #[inline(always)]
    pub(crate) fn with<R>(&self, look: impl FnOnce(*const T) -> R) -> R {
        look(self.0.get())
    }
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, change: impl FnOnce(*mut T) -> R) -> R {
        change(self.0.get())
    }
}

/// Runs `store`, a store to a line that this thread owns, with the ordering passed to it. It is ordered before every
/// later load with respect to [`heavy_fence`]: of a thread that does this and one that stores elsewhere and then calls
/// `heavy_fence`, at least one sees the other's store.
///
/// With `membarrier(2)` this is a plain store: the rare side makes every running thread of the process execute a
/// barrier, so the frequent side needs none, and does not wait for its earlier stores (a whole copied block, say) to
/// drain. Without it, a store and a fence, which is what the models explore. A sequentially consistent swap would not
/// suffice: it is ordered before later loads only if those are sequentially consistent too, and the owner of a queue
/// only uses acquire loads.
#[inline(always)]
pub(crate) fn store_then_fence(store: impl FnOnce(Ordering)) {
    #[cfg(not(loom))]
    if membarrier::is_registered() {
        store(Ordering::Relaxed);
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        return;
    }
    store(Ordering::Release);
    full_fence();
}

/// Gives another thread a chance to finish something short.
pub(crate) fn pause() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// The rare side of [`store_then_fence`].
pub(crate) fn heavy_fence() {
    full_fence();
    #[cfg(not(loom))]
    {
        HEAVY_FENCES.set(HEAVY_FENCES.get() + 1);
        membarrier::everywhere();
    }
}

#[cfg(not(loom))]
thread_local! {
    static HEAVY_FENCES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Process-wide barriers issued by the calling thread, each a microsecond or more. For tests that count them.
#[cfg(not(loom))]
#[doc(hidden)]
pub fn heavy_fences() -> u64 {
    HEAVY_FENCES.get()
}

/// Call before the first [`store_then_fence`].
pub(crate) fn prepare_fences() {
    #[cfg(not(loom))]
    membarrier::register();
}

/// Which form of asymmetric fence gates and queue locks use in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fence {
    /// Plain stores on the frequent side, `membarrier(2)` on the rare one.
    Membarrier,
    /// The kernel or a sandbox refuses `membarrier(2)`: a fence after each store on the frequent side. Correct, but
    /// every request waits until the processor's earlier stores have drained.
    Swap,
}

impl Fence {
    /// The form in use, chosen once per process, by this call at the latest.
    pub fn active() -> Fence {
        prepare_fences();
        #[cfg(not(loom))]
        if membarrier::is_registered() {
            return Fence::Membarrier;
        }
        Fence::Swap
    }
}

#[cfg(not(loom))]
mod membarrier {
    use rustix::thread::{MembarrierCommand, membarrier};
    use std::sync::Once;
    use std::sync::atomic::{AtomicBool, Ordering};

    static REGISTERED: AtomicBool = AtomicBool::new(false);
    static REGISTRATION: Once = Once::new();

    /// Registers the process once. Where the kernel or a sandbox refuses, fences are used.
    pub(super) fn register() {
        REGISTRATION.call_once(|| {
            let accepted = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
                && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
            REGISTERED.store(accepted, Ordering::SeqCst);
        });
    }

    #[inline(always)]
    pub(super) fn is_registered() -> bool {
        REGISTERED.load(Ordering::Relaxed)
    }

    /// Makes every running thread of the process execute a full barrier, or ends the process.
    pub(super) fn everywhere() {
        if is_registered() && !barrier(membarrier) {
            give_up();
        }
    }

    /// Whether the barrier was executed.
    ///
    /// What can fail once [`register`] has succeeded, according to `kernel/sched/membarrier.c` and membarrier(2):
    ///
    /// - `ENOSYS`, `EINVAL`: "guaranteed to always return the same value until reboot", and `register` has seen the
    ///   same command succeed.
    /// - `EPERM`: the address space is not registered. Registration is a flag of the address space that only `execve`
    ///   clears, which replaces this program too.
    /// - `ENOMEM`: no memory for a CPU mask (kernels built for very many processors). Transient: retried a few times.
    ///   `MEMBARRIER_CMD_GLOBAL` is a stronger barrier (every thread of the system), needs no memory and no
    ///   registration, and is refused only with `nohz_full`.
    /// - Any error: a seccomp filter that the program installed later. It must allow membarrier(2), or be installed
    ///   before the first volume is opened: then `register` sees the refusal and fences are used.
    fn barrier(call: impl Fn(MembarrierCommand) -> rustix::io::Result<()>) -> bool {
        const TRIALS: u32 = 8;
        for trial in 0..TRIALS {
            match call(MembarrierCommand::PrivateExpedited) {
                Ok(()) => return true,
                Err(rustix::io::Errno::NOMEM) if trial + 1 < TRIALS => {
                    if call(MembarrierCommand::Global).is_ok() {
                        return true;
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1 << trial));
                }
                Err(_) => return call(MembarrierCommand::Global).is_ok(),
            }
        }
        false
    }

    /// Without the barrier it is unknown which threads are inside a gate. Fences from now on would not help: plain
    /// stores by other threads may still be in their store buffers. A panic would unwind through guards that rely on
    /// the protocol and could let a thread overwrite blocks in use. So the process aborts, as in a crash, which volumes
    /// survive: what was acknowledged as durable is durable.
    #[cold]
    fn give_up() -> ! {
        // Not `eprintln`, which panics if it cannot write: unwinding from here would leave the gate closed for ever.
        let _told_or_not = std::io::Write::write_all(
            &mut std::io::stderr(),
            b"uext4: membarrier(2) is refused after it was granted (a seccomp filter installed since?); requests in \
              flight can no longer be told apart, so the process ends before it damages a volume\n",
        );
        std::process::abort();
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use rustix::io::Errno;
        use std::cell::RefCell;

        /// Runs `barrier` with these answers and returns its result and the commands it issued.
        fn asked(answers: &[Result<(), Errno>]) -> (bool, Vec<MembarrierCommand>) {
            let calls = RefCell::new(Vec::new());
            let done = barrier(|command| {
                let mut calls = calls.borrow_mut();
                calls.push(command);
                answers.get(calls.len() - 1).copied().unwrap_or(Err(Errno::NOMEM))
            });
            (done, calls.into_inner())
        }

        #[test]
        fn only_an_executed_barrier_counts() {
            use MembarrierCommand::{Global, PrivateExpedited};
            assert_eq!(asked(&[Ok(())]), (true, vec![PrivateExpedited]));
            assert_eq!(asked(&[Err(Errno::PERM), Ok(())]), (true, vec![PrivateExpedited, Global]));
            assert_eq!(asked(&[Err(Errno::PERM), Err(Errno::PERM)]), (false, vec![PrivateExpedited, Global]));
            // No memory: use the other barrier, or retry later.
            assert_eq!(asked(&[Err(Errno::NOMEM), Ok(())]), (true, vec![PrivateExpedited, Global]));
            let later = asked(&[Err(Errno::NOMEM), Err(Errno::INVAL), Ok(())]);
            assert_eq!(later, (true, vec![PrivateExpedited, Global, PrivateExpedited]));
            let (done, calls) = asked(&[]);
            assert!(!done && calls.len() == 16, "{calls:?}");
        }
    }
}

/// Adds to a cell that several threads write, ordered before every later load of this thread.
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
/// so hot paths may check the waiter count with a relaxed load before announcing.
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

    /// Sleeps until an announcement or `timeout`, unless `blocked` is already false.
    pub(crate) fn park(&self, blocked: impl Fn() -> bool, timeout: Duration) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut guard = self.lock.lock();
        if blocked() {
            self.changed.wait_for(&mut guard, timeout);
        }
        drop(guard);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a thread waits; approximate.
    pub(crate) fn any(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) != 0
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

/// Under loom a waiter yields: the model checks the protocol, not the parking.
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
    pub(crate) fn any(&self) -> bool {
        true
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
    /// A borrow for one look-up; touches no shared counter.
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

    /// loom's mutex with parking_lot's interface.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    pub(crate) struct MutexGuard<'a, T>(loom::sync::MutexGuard<'a, T>);

    /// loom's condition variable.
    #[derive(Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Self {
            Condvar(loom::sync::Condvar::new())
        }
        pub(crate) fn wait<'m, T>(&self, _of: &'m Mutex<T>, guard: MutexGuard<'m, T>) -> MutexGuard<'m, T> {
            MutexGuard(self.0.wait(guard.0).expect("loom mutexes are not poisoned"))
        }
        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(self.0.lock().expect("loom mutexes are not poisoned"))
        }
        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(MutexGuard)
        }
    }

    /// A reader-writer lock, modelled by an exclusive one: fewer interleavings, the same orderings.
    #[derive(Debug)]
    pub(crate) struct RwLock<T>(Mutex<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> Self {
            RwLock(Mutex::new(value))
        }
        pub(crate) fn read(&self) -> MutexGuard<'_, T> {
            self.0.lock()
        }
        pub(crate) fn write(&self) -> MutexGuard<'_, T> {
            self.0.lock()
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

    /// The pointer behind a modelled lock: arc-swap itself is trusted, the protocol around it is checked.
    #[derive(Debug)]
    pub(crate) struct Published<T>(Mutex<std::sync::Arc<T>>);

    impl<T> Published<T> {
        pub(crate) fn new(value: std::sync::Arc<T>) -> Self {
            Published(Mutex::new(value))
        }
        pub(crate) fn load_full(&self) -> std::sync::Arc<T> {
            self.0.lock().clone()
        }
        pub(crate) fn load(&self) -> std::sync::Arc<T> {
            self.load_full()
        }
        pub(crate) fn store(&self, value: std::sync::Arc<T>) {
            *self.0.lock() = value;
        }
    }
}
