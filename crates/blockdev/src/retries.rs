//! One retry rule for requests that the device or the kernel defers.

use std::time::{Duration, Instant};

/// A request is sent at least this often before it fails ...
const TRIALS: u32 = 8;
/// ... and for at least this long: a device that is short of tags answers at once.
const PATIENCE: Duration = Duration::from_millis(100);

/// Whether an errno means that a request did not complete but may succeed if it is sent again: `EAGAIN`, `EINTR`,
/// `ECANCELED`.
pub fn is_put_off(errno: i32) -> bool {
    matches!(errno, libc::EAGAIN | libc::EINTR | libc::ECANCELED)
}

/// How often a request was deferred, and since when.
#[derive(Debug, Clone, Copy, Default)]
pub struct Retries {
    trials: u32,
    since: Option<Instant>,
}

impl Retries {
    /// Counts one more deferral. Returns whether to send the request again.
    pub fn count(&mut self) -> bool {
        self.trials += 1;
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        self.trials <= TRIALS || waited < PATIENCE
    }

    /// Times that the request was sent.
    pub fn trials(&self) -> u32 {
        self.trials
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_sent_for_so_long_and_so_often() {
        let started = Instant::now();
        let mut retries = Retries::default();
        while retries.count() {}
        assert!(retries.trials() > TRIALS && started.elapsed() >= PATIENCE);
        let mut slow = Retries { trials: 3, since: Some(started) };
        assert!(slow.count(), "too few trials, however long they took");
    }
}
