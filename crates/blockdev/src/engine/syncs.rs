//! Runs sync calls, because the kernel reports a failure to only one of several concurrent calls.
//!
//! A failed page writeback is reported once per open file (the kernel's `errseq_t`): of two threads that call `msync`
//! at the same time, one may get the error of the other's page, and the other gets none. So a success counts only if no
//! concurrent call failed, and after a failure every later call fails.

use parking_lot::{Condvar, Mutex};

/// The sync calls on one open file. Any number run at the same time.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the next call.
    next: u64,
    running: Vec<u64>,
    /// The first failure, an errno.
    failed: Option<i32>,
}

impl Syncs {
    /// Runs `call`, then waits for all calls that began before it ended. Returns the errno of the first failure of any
    /// call.
    pub(super) fn run(
        &self,
        call: impl FnOnce() -> std::result::Result<(), i32>,
    ) -> std::result::Result<(), i32> {
        let mut state = self.state.lock();
        if let Some(errno) = state.failed {
            return Err(errno);
        }
        let number = state.next;
        state.next += 1;
        state.running.push(number);
        drop(state);
        let outcome = call();
        let mut state = self.state.lock();
        state.running.retain(|&running| running != number);
        if let Err(errno) = outcome {
            state.failed.get_or_insert(errno);
        }
        self.ended.notify_all();
        // A call that begins later cannot have taken an error that belongs to this one.
        let begun = state.next;
        while state.failed.is_none() && state.running.iter().any(|&running| running < begun) {
            self.ended.wait(&mut state);
        }
        state.failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_failure_reaches_every_call_that_was_under_way_and_all_later_ones() {
        let syncs = &Syncs::default();
        let (failing_began, failing_runs) = channel();
        let (fail, failing_ends) = channel::<()>();
        let (good_ended, good_has_ended) = channel();
        std::thread::scope(|scope| {
            let failing = scope.spawn(move || {
                syncs.run(|| {
                    failing_began.send(()).unwrap();
                    failing_ends.recv().unwrap();
                    Err(libc::EIO)
                })
            });
            failing_runs.recv().unwrap();
            let good = scope.spawn(move || {
                syncs.run(|| {
                    good_ended.send(()).unwrap();
                    Ok(())
                })
            });
            // Its own call succeeded, before the other one fails.
            good_has_ended.recv().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
            fail.send(()).unwrap();
            assert_eq!((failing.join().unwrap(), good.join().unwrap()), (Err(libc::EIO), Err(libc::EIO)));
        });
        assert_eq!(syncs.run(|| unreachable!("nothing is tried after a failure")), Err(libc::EIO));
    }

    #[test]
    fn calls_overlap_and_wait_for_earlier_ones_only() {
        let syncs = &Syncs::default();
        assert_eq!(syncs.run(|| syncs.state.lock().failed.map_or(Ok(()), Err)), Ok(()));
        let (second_began, second_runs) = channel();
        let (end, second_ends) = channel::<()>();
        std::thread::scope(|scope| {
            let second = scope.spawn(move || {
                syncs.run(|| {
                    second_began.send(()).unwrap();
                    second_ends.recv().unwrap();
                    Ok(())
                })
            });
            second_runs.recv().unwrap();
            let (third_ended, third_has_ended) = channel();
            let third = scope.spawn(move || {
                syncs.run(|| {
                    third_ended.send(()).unwrap();
                    Ok(())
                })
            });
            third_has_ended.recv().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
            let early = third.is_finished();
            end.send(()).unwrap();
            assert!(!early, "the second one may yet fail");
            assert_eq!((second.join().unwrap(), third.join().unwrap()), (Ok(()), Ok(())));
        });
    }
}
