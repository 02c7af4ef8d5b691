//! A bounded pool of values for any number of threads: each value is used by one thread at a time, created on demand,
//! and kept.

use parking_lot::{Condvar, Mutex};
use std::io;

/// See the module.
pub(super) struct LazyPool<T> {
    most: usize,
    state: Mutex<State<T>>,
    /// A value is idle again, or a new one may be created.
    back: Condvar,
}

struct State<T> {
    idle: Vec<T>,
    /// Idle values and those in use.
    made: usize,
}

impl<T> LazyPool<T> {
    /// Holds `first` and creates others on demand, at most `most` at a time.
    pub(super) fn new(first: T, most: usize) -> Self {
        LazyPool { most, state: Mutex::new(State { idle: vec![first], made: 1 }), back: Condvar::new() }
    }

    /// Runs `work` with exclusive use of a value: an idle one, else a new one, else the next one returned. If `work`
    /// fails, the value is dropped, because its state is unknown.
    ///
    /// # Errors
    /// Those of `work`, and of `make` if there is no value to wait for.
    pub(super) fn with<R>(
        &self,
        make: impl Fn() -> io::Result<T>,
        work: impl FnOnce(&mut T) -> io::Result<R>,
    ) -> io::Result<R> {
        let mut taken = Taken { pool: self, one: Some(self.take(make)?) };
        let Some(one) = &mut taken.one else { unreachable!("taken above") };
        let result = work(one);
        if result.is_ok()
            && let Some(one) = taken.one.take()
        {
            self.state.lock().idle.push(one);
            self.back.notify_one();
            std::mem::forget(taken);
        }
        result
    }

    fn take(&self, make: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(one) = state.idle.pop() {
                return Ok(one);
            }
            if state.made < self.most {
                state.made += 1;
                drop(state);
                match make() {
                    Ok(one) => return Ok(one),
                    Err(error) => {
                        state = self.state.lock();
                        state.made -= 1;
                        if state.made == 0 {
                            // Threads waiting because this one was being created have nothing left to wait for.
                            self.back.notify_all();
                            return Err(error);
                        }
                        // The system refuses another one: wait for an existing one.
                    }
                }
            }
            if state.idle.is_empty() {
                self.back.wait(&mut state);
            }
        }
    }
}

/// A value in use. If dropped with it, after a failure or a panic, makes room for another.
struct Taken<'a, T> {
    pool: &'a LazyPool<T>,
    one: Option<T>,
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        drop(self.one.take());
        self.pool.state.lock().made -= 1;
        self.pool.back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn refused() -> io::Result<u32> {
        Err(io::Error::from_raw_os_error(libc::ENOMEM))
    }

    #[test]
    fn threads_do_not_wait_for_each_other_up_to_the_bound() {
        let (pool, made) = (LazyPool::new(0, 4), AtomicUsize::new(1));
        // All four must be inside at once, or this waits forever.
        let together = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let make = || Ok(made.fetch_add(1, Ordering::SeqCst) as u32);
                    pool.with(make, |_| {
                        together.wait();
                        Ok(())
                    })
                });
            }
        });
        assert_eq!(made.load(Ordering::SeqCst), 4);
        for _ in 0..8 {
            pool.with(refused, |_| Ok(())).expect("they are kept");
        }
    }

    #[test]
    fn no_more_are_made_than_the_bound_and_none_is_shared() {
        let (pool, made) = (LazyPool::new(AtomicUsize::new(0), 3), AtomicUsize::new(1));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let make = || {
                            made.fetch_add(1, Ordering::SeqCst);
                            Ok(AtomicUsize::new(0))
                        };
                        pool.with(make, |users| {
                            assert_eq!(users.fetch_add(1, Ordering::SeqCst), 0);
                            std::thread::yield_now();
                            users.fetch_sub(1, Ordering::SeqCst);
                            Ok(())
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert!(made.load(Ordering::SeqCst) <= 3);
    }

    #[test]
    fn one_that_failed_is_replaced() {
        let pool = LazyPool::new(1, 1);
        let failed = pool.with(refused, |_| Err::<(), _>(io::Error::from_raw_os_error(libc::EIO)));
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(pool.with(refused, |_| Ok(())).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(pool.with(|| Ok(2), |two| Ok(*two)).unwrap(), 2);
        let work = std::panic::AssertUnwindSafe(|| {
            pool.with(refused, |_| -> io::Result<()> { panic!("on purpose") })
        });
        assert!(std::panic::catch_unwind(work).is_err());
        assert_eq!(pool.with(|| Ok(3), |three| Ok(*three)).unwrap(), 3);
    }

    /// The system refuses a second one: threads wait for the first.
    #[test]
    fn those_that_there_are_have_to_do() {
        let pool = LazyPool::new(7, 8);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        assert_eq!(pool.with(refused, |seven| Ok(*seven)).unwrap(), 7);
                    }
                });
            }
        });
    }

    /// Two threads fail to create one while there is none: the one that waits for the other is woken with an error.
    #[test]
    fn none_waits_for_one_that_nobody_has() {
        let pool = &LazyPool::new(1, 8);
        pool.with(refused, |_| Err::<(), _>(io::Error::from_raw_os_error(libc::EIO))).unwrap_err();
        let (both, first_waits) = (&Barrier::new(2), &AtomicUsize::new(0));
        let (told, outcome) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let told = told.clone();
                scope.spawn(move || {
                    let make = || {
                        if first_waits.load(Ordering::SeqCst) == 0 {
                            both.wait();
                            if thread == 0 {
                                first_waits.store(1, Ordering::SeqCst);
                            } else {
                                std::thread::sleep(std::time::Duration::from_millis(100));
                            }
                        }
                        refused()
                    };
                    let _gone = told.send(pool.with(make, |_| Ok(())).is_err());
                });
            }
            for _ in 0..2 {
                let failed = outcome.recv_timeout(std::time::Duration::from_secs(5));
                if failed != Ok(true) {
                    // The scope would wait for it forever.
                    eprintln!("one waits forever");
                    std::process::abort();
                }
            }
        });
    }
}
