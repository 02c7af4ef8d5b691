//! The order of locks (`docs/internals/locks.md`), checked per thread in debug builds.
//!
//! Whoever takes a lock of the list says so first. One that comes before a lock that the thread holds fails an
//! assertion, in any test that takes them in that order once: no two threads have to meet for it.

#[cfg(debug_assertions)]
use std::cell::RefCell;
use uext4_ondisk::Ino;

/// A lock's place in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Directories move between parents: the operations that do come next.
    Moves,
    /// Names of a directory. Which of several comes first is known to `inode/names.rs` only.
    Names,
    /// A journal handle.
    Handle,
    /// Editor of a directory's inode …
    Directory(Ino),
    /// … and of any other.
    File(Ino),
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
}

/// A lock that this thread holds, for the check. Nothing in release builds.
#[must_use]
pub(crate) struct Taken {
    #[cfg(debug_assertions)]
    rank: Rank,
    // Locks are given back by the thread that took them.
    _of_thread: std::marker::PhantomData<*const ()>,
}

impl Taken {
    /// Checks that a lock may be taken now, and notes it.
    #[inline]
    #[track_caller]
    pub(crate) fn note(rank: Rank) -> Taken {
        #[cfg(debug_assertions)]
        HELD.with_borrow_mut(|held| {
            let several = |other: Rank| other == Rank::Names && rank == Rank::Names;
            if let Some(behind) = held.iter().find(|other| **other >= rank && !several(**other)) {
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
        // A thread that ends may have dropped the list first.
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
        let _names = [Taken::note(Rank::Names), Taken::note(Rank::Names)];
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
        let _names = Taken::note(Rank::Names);
    }
}
