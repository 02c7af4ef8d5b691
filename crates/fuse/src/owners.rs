//! Owners as users see them, and as the volume has them.

/// How numbers of users, or of groups, on the volume relate to those that users see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Ids {
    /// They are the same.
    #[default]
    Same,
    /// Everything seems to have this one; what is stored cannot be changed.
    All(u32),
    /// The number `stored` on the volume appears as `shown`, and what user `shown` makes is stored as `stored`.
    One {
        /// The number on the volume.
        stored: u32,
        /// What users see.
        shown: u32,
    },
}

impl Ids {
    /// What users see of a number on the volume.
    pub(crate) fn shown(self, id: u32) -> u32 {
        match self {
            Ids::All(shown) => shown,
            Ids::One { stored, shown } if id == stored => shown,
            _ => id,
        }
    }

    /// What is stored for a number that users see.
    pub(crate) fn stored(self, id: u32) -> u32 {
        match self {
            Ids::One { stored, shown } if id == shown => stored,
            _ => id,
        }
    }

    /// What a change of an owner to `id` stores: nothing if all seem to have it.
    ///
    /// # Errors
    /// `None` if all seem to have another one, which cannot be given to one file.
    pub(crate) fn changed_to(self, id: u32) -> Option<Option<u32>> {
        match self {
            Ids::All(shown) => (shown == id).then_some(None),
            _ => Some(Some(self.stored(id))),
        }
    }
}

/// Both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Owners {
    pub(crate) users: Ids,
    pub(crate) groups: Ids,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_mapped_both_ways() {
        let all = Ids::All(7);
        assert_eq!((all.shown(0), all.stored(7), all.stored(9)), (7, 7, 9));
        assert_eq!((all.changed_to(7), all.changed_to(0)), (Some(None), None));
        let one = Ids::One { stored: 0, shown: 1000 };
        assert_eq!((one.shown(0), one.shown(1000), one.shown(5)), (1000, 1000, 5));
        assert_eq!((one.stored(1000), one.stored(0), one.stored(5)), (0, 0, 5));
        assert_eq!((one.changed_to(1000), one.changed_to(3)), (Some(Some(0)), Some(Some(3))));
        assert_eq!((Ids::Same.shown(3), Ids::Same.changed_to(4)), (3, Some(Some(4))));
    }
}
