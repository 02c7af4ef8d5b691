//! The clock of an open volume. On one that is changed deterministically it stands still, so that what is stored does
//! not depend on when it is stored.

use uext4_iomap::coarse_now_ns;
use uext4_ondisk::ext4::Timestamp;

/// The system's clock, or one that stands still.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    fixed: Option<Timestamp>,
}

impl Clock {
    /// A clock that stands at `fixed`, if that is given.
    pub(crate) fn new(fixed: Option<Timestamp>) -> Clock {
        Clock { fixed }
    }

    /// Where it stands.
    pub(crate) fn fixed(self) -> Option<Timestamp> {
        self.fixed
    }

    /// The current time. The clock is the one that overwrites use, so that a file that is written right after a change
    /// is not older than that change. It advances every few milliseconds.
    pub(crate) fn now(self) -> Timestamp {
        self.fixed.unwrap_or_else(|| timestamp(coarse_now_ns()))
    }

    /// The same in seconds since 1970.
    ///
    /// The system's clock is that of the kernel's ticks, as in Linux: time(2), which e2fsck asks, may be a tick behind
    /// the exact clock, and e2fsck complains about a time in the future.
    pub(crate) fn seconds(self) -> u64 {
        u64::try_from(self.now().seconds).unwrap_or(0)
    }

    /// The time in commit blocks: seconds and nanoseconds. `None`: the system's.
    pub(crate) fn of_commits(self) -> Option<(u64, u32)> {
        self.fixed.map(|fixed| (u64::try_from(fixed.seconds).unwrap_or(0), fixed.nanoseconds))
    }

    /// The time of an event that the system's clock noted at `ns`.
    pub(crate) fn at(self, ns: u64) -> Timestamp {
        self.fixed.unwrap_or_else(|| timestamp(ns))
    }

    /// When an event was noted, to compare with others; 0 if it never was. All moments of a clock that stands are one.
    pub(crate) fn moment(self, ns: u64) -> u64 {
        if self.fixed.is_some() { ns.min(1) } else { ns }
    }
}

fn timestamp(ns: u64) -> Timestamp {
    Timestamp { seconds: (ns / 1_000_000_000) as i64, nanoseconds: (ns % 1_000_000_000) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stands_knows_one_moment() {
        let stands = Timestamp { seconds: 7, nanoseconds: 5 };
        let clock = Clock::new(Some(stands));
        assert_eq!((clock.now(), clock.at(3), clock.seconds()), (stands, stands, 7));
        assert_eq!([0, 1, 99].map(|ns| clock.moment(ns)), [0, 1, 1]);
        let system = Clock::default();
        assert_eq!(system.at(2_000_000_003), Timestamp { seconds: 2, nanoseconds: 3 });
        assert_eq!([0, 1, 99].map(|ns| system.moment(ns)), [0, 1, 99]);
        assert!(system.now().seconds > 1_600_000_000);
    }
}
