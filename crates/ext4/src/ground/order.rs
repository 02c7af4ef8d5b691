//! The order of locks (`docs/internals/locks.md`), checked per thread in debug builds.
//!
//! Every lock in the list is noted before it is taken. Taking one that ranks before a lock the thread holds fails an
//! assertion, so a single test that takes them in that order finds it: no two threads have to race.

#[cfg(debug_assertions)]
use std::cell::RefCell;
use uext4_ondisk::Ino;

/// A lock's rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Moving directories between parents.
    Moves,
    /// Names of a directory.
    Names(Ino),
    /// A journal handle.
    Handle,
    /// The editor of a directory's inode …
    Directory(Ino),
    /// … and of any other inode.
    File(Ino),
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
}

/// A lock that this thread holds, for the check. Empty in release builds.
#[must_use]
pub(crate) struct Taken {
    #[cfg(debug_assertions)]
    rank: Rank,
    // Not `Send`: a lock is released by the thread that took it.
    _of_thread: std::marker::PhantomData<*const ()>,
}

impl Taken {
    /// Checks that a lock may be taken now, and records it.
    #[inline]
    #[track_caller]
    pub(crate) fn note(rank: Rank) -> Taken {
        #[cfg(debug_assertions)]
        HELD.with_borrow_mut(|held| {
            if let Some(behind) = held.iter().find(|other| **other >= rank) {
                panic!("{rank:?} is taken while {behind:?} is held: against the order of locks");
            }
            held.push(rank);
        });
        #[cfg(not(debug_assertions))]
        let _ = rank;
        Taken {
            #[cfg(debug_assertions)]
            rank,
            _of_thread: std::marker::PhantomData,
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Taken {
    fn drop(&mut self) {
        // An exiting thread may have dropped the list already.
        let _ended = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|other| *other == self.rank) {
                held.remove(at);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Rank, Taken};
    use uext4_ondisk::Ino;

    #[test]
    fn editors_come_behind_names_and_handles_directories_first_then_by_number() {
        let _moves = Taken::note(Rank::Moves);
        let _names = [Taken::note(Rank::Names(Ino(7))), Taken::note(Rank::Names(Ino(9)))];
        let _handle = Taken::note(Rank::Handle);
        drop((Taken::note(Rank::Directory(Ino(9))), ()));
        let _directories = [Taken::note(Rank::Directory(Ino(7))), Taken::note(Rank::Directory(Ino(9)))];
        let _file = Taken::note(Rank::File(Ino(3)));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "against the order of locks"))]
    fn an_editor_with_a_lower_number_fails_behind_one_with_a_higher() {
        let _first = Taken::note(Rank::File(Ino(8)));
        let _second = Taken::note(Rank::File(Ino(5)));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "against the order of locks"))]
    fn names_fail_inside_a_handle() {
        let _handle = Taken::note(Rank::Handle);
        let _names = Taken::note(Rank::Names(Ino(2)));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "against the order of locks"))]
    fn names_with_a_lower_number_fail_behind_those_with_a_higher() {
        let _first = Taken::note(Rank::Names(Ino(12)));
        let _second = Taken::note(Rank::Names(Ino(11)));
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "against the order of locks"))]
    fn moves_fail_behind_names() {
        let _names = Taken::note(Rank::Names(Ino(12)));
        let _moves = Taken::note(Rank::Moves);
    }
}
