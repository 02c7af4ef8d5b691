//! Transaction numbers.

use std::fmt;

/// Number of a journal transaction. Numbers wrap around at 2³², so they have an order only among transactions
/// less than 2³¹ apart, which is why this type is not `Ord`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tid(pub u32);

impl Tid {
    /// The number after this one.
    #[must_use]
    pub fn next(self) -> Tid {
        Tid(self.0.wrapping_add(1))
    }

    /// The number before this one.
    #[must_use]
    pub fn previous(self) -> Tid {
        Tid(self.0.wrapping_sub(1))
    }

    /// Whether this transaction came after `other`.
    #[must_use]
    pub fn is_after(self, other: Tid) -> bool {
        let distance = self.0.wrapping_sub(other.0);
        distance != 0 && distance < 1 << 31
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::Tid;

    #[test]
    fn order_survives_the_wrap() {
        assert!(Tid(1).is_after(Tid(0)));
        assert!(!Tid(0).is_after(Tid(1)));
        assert!(!Tid(7).is_after(Tid(7)));
        assert!(Tid(0).is_after(Tid(u32::MAX)));
        assert!(!Tid(u32::MAX).is_after(Tid(3)));
        assert_eq!(Tid(u32::MAX).next(), Tid(0));
        assert_eq!(Tid(0).previous(), Tid(u32::MAX));
    }
}
