//! Transaction numbers.

use std::fmt;

/// Number of a journal transaction. It only grows, so that two of them always have an order. The log has room for the
/// low 32 bits, the [sequence number](Tid::sequence), which wraps around.
///
/// No transaction that is ever started has number 0: a log begins behind the one that its superblock names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub u64);

impl Tid {
    /// The first transaction with this sequence number.
    #[must_use]
    pub fn of_sequence(sequence: u32) -> Tid {
        Tid(u64::from(sequence))
    }

    /// The transaction with this sequence number that is nearest to `known`: what the log says, read next to a
    /// transaction whose whole number is known. Right as long as the two are less than 2³¹ apart.
    #[must_use]
    pub fn near(sequence: u32, known: Tid) -> Tid {
        let ahead = sequence.wrapping_sub(known.sequence()).cast_signed();
        // Nothing is before the first: then it is the next one with that sequence number.
        Tid(known.0.checked_add_signed(i64::from(ahead)).unwrap_or(u64::from(sequence)))
    }

    /// What the log calls it.
    #[must_use]
    pub fn sequence(self) -> u32 {
        self.0 as u32
    }

    /// The number after this one.
    #[must_use]
    pub fn next(self) -> Tid {
        self.plus(1)
    }

    /// The number so many after this one.
    #[must_use]
    pub fn plus(self, transactions: u32) -> Tid {
        Tid(self.0 + u64::from(transactions))
    }

    /// The number before this one; of the first, itself.
    #[must_use]
    pub fn previous(self) -> Tid {
        Tid(self.0.saturating_sub(1))
    }
}

/// As every tool calls it: the sequence number.
impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.sequence())
    }
}

#[cfg(test)]
mod tests {
    use super::Tid;

    #[test]
    fn sequences_wrap_and_transactions_do_not() {
        let last = Tid::of_sequence(u32::MAX);
        assert_eq!((last.next(), last.next().sequence()), (Tid(1 << 32), 0));
        assert!(last.next() > last && last.next().previous() == last);
        assert_eq!((last.plus(3).sequence(), last.plus(3).to_string()), (2, "2".into()));
        assert_eq!(Tid(0).previous(), Tid(0));
    }

    #[test]
    fn a_sequence_is_read_as_the_transaction_nearest_to_a_known_one() {
        for known in [Tid(5), Tid(u64::from(u32::MAX)), Tid(1 << 32), Tid(7 << 32 | 0x8000_0000)] {
            for (near, ahead) in
                [(known, 0), (known.next(), 1), (known.previous(), -1), (known.plus(1000), 1000)]
            {
                assert_eq!(Tid::near(near.sequence(), known), near, "{known:?} {ahead}");
            }
        }
        let far = Tid(9 << 32);
        assert_eq!(Tid::near(far.plus(i32::MAX as u32).sequence(), far), far.plus(i32::MAX as u32));
        assert_eq!(Tid::near(1 << 31, far), Tid((9 << 32) - (1 << 31)));
        assert_eq!(Tid::near(u32::MAX, Tid(0)), Tid(u64::from(u32::MAX)), "nothing is before the first");
    }
}
