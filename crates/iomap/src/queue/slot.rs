//! State of a request between submission and delivery.

use crate::counters::Tally;
use crate::plan::Durability;

/// What kind of request a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Nothing.
    Free,
    /// One device request that transfers the whole buffer, with no work at completion: simple reads and most overwrites
    /// of one piece.
    Plain,
    /// The same with a commit or a flush to follow.
    Single,
    /// Any number of device requests; the rest of its state is in [`QueueState::general`](super::QueueState::general).
    General,
    /// A sync of the file.
    Sync,
}

/// What completion must know about a request, in one word: its file, its kind, the work at completion, whether it
/// writes, and what it counts. Requests with equal labels are completed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label(u64);

const KIND_SHIFT: u32 = 32;
const DURABILITY_SHIFT: u32 = 40;
const WRITE: u64 = 1 << 48;
const TALLIED: u64 = 1 << 49;
const SUBBLOCK: u64 = 1 << 50;

impl Label {
    /// The label of a free slot.
    pub(crate) const FREE: Label = Label::new(0, Kind::Free, Durability::None, false);

    pub(crate) const fn new(file: u32, kind: Kind, durability: Durability, write: bool) -> Label {
        let write = if write { WRITE } else { 0 };
        Label(file as u64 | (kind as u64) << KIND_SHIFT | (durability as u64) << DURABILITY_SHIFT | write)
    }

    /// The label of one device request that reads a whole buffer on the short path.
    #[inline(always)]
    pub(crate) const fn read(file: u32) -> Label {
        Label::new(file, Kind::Plain, Durability::None, false).tallied()
    }

    /// The label of one device request that writes a whole buffer.
    pub(crate) const fn write(file: u32, durability: Durability) -> Label {
        let kind = match durability {
            Durability::Datasync | Durability::Fsync => Kind::Single,
            Durability::None | Durability::Fua | Durability::WriteThrough => Kind::Plain,
        };
        Label::new(file, kind, durability, true)
    }

    /// The same for a plain request whose route is counted on completion, for a whole batch at once: a store per
    /// request would queue in the store buffer behind the block copied for the previous request.
    #[inline(always)]
    pub(crate) const fn tallied(self) -> Label {
        Label(self.0 | TALLIED)
    }

    /// The same for a request that is examined individually when it ends.
    pub(crate) fn single(self) -> Label {
        Label(self.0 & !(0xff << KIND_SHIFT) | (Kind::Single as u64) << KIND_SHIFT)
    }

    /// The same, for a write of only a part of some file-system block if `subblock`.
    #[inline(always)]
    pub(crate) fn with_subblock(self, subblock: bool) -> Label {
        Label(if subblock { self.0 | SUBBLOCK } else { self.0 })
    }

    /// What each request with this label counts on completion.
    #[inline]
    pub(crate) fn tally(self) -> Option<Tally> {
        match (self.0 & TALLIED != 0, self.writes()) {
            (false, _) => None,
            (true, false) => Some(Tally::SIMPLE_READ),
            (true, true) => {
                Some(Tally::overwrite(self.durability() == Durability::Fua, self.0 & SUBBLOCK != 0))
            }
        }
    }

    /// Index of the attached file.
    #[inline(always)]
    pub(crate) fn file(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> Kind {
        const KINDS: [Kind; 5] = [Kind::Free, Kind::Plain, Kind::Single, Kind::General, Kind::Sync];
        KINDS[(self.0 >> KIND_SHIFT) as u8 as usize % KINDS.len()]
    }

    #[inline(always)]
    pub(crate) fn durability(self) -> Durability {
        use Durability::{Datasync, Fsync, Fua, None, WriteThrough};
        const ALL: [Durability; 5] = [None, Fua, WriteThrough, Datasync, Fsync];
        ALL[(self.0 >> DURABILITY_SHIFT) as u8 as usize % ALL.len()]
    }

    #[inline(always)]
    pub(crate) fn writes(self) -> bool {
        self.0 & WRITE != 0
    }
}

/// A request between submission and delivery. Plain values, so that presetting one takes a few stores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub(crate) tag: u64,
    /// Device position of a single request, for errors.
    pub(crate) pos: u64,
    pub(crate) label: Label,
    /// Bytes of a single request.
    pub(crate) length: u32,
}

impl Slot {
    pub(crate) const FREE: Slot = Slot { tag: 0, pos: 0, label: Label::FREE, length: 0 };

    /// A request without device requests of its own yet.
    pub(crate) fn new(file: usize, tag: u64, kind: Kind, durability: Durability, write: bool) -> Self {
        Slot { tag, label: Label::new(file as u32, kind, durability, write), ..Slot::FREE }
    }
}

/// A run of plain requests with one label that ended consecutively.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Landed {
    pub(crate) label: Label,
    /// A queue's depth is at most 32768.
    pub(crate) count: u16,
}

impl Landed {
    /// An empty run: no slot has this label.
    pub(crate) const NONE: Landed = Landed { label: Label(u64::MAX), count: 0 };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_parts() {
        let kinds = [Kind::Free, Kind::Plain, Kind::Single, Kind::General, Kind::Sync];
        use Durability::{Datasync, Fsync, Fua, None, WriteThrough};
        for kind in kinds {
            for durability in [None, Fua, WriteThrough, Datasync, Fsync] {
                for (file, write) in [(0, true), (7, false), (u32::MAX, true)] {
                    let label = Label::new(file, kind, durability, write);
                    assert_eq!((label.file(), label.kind()), (file as usize, kind));
                    assert_eq!((label.durability(), label.writes()), (durability, write));
                }
            }
        }
        for durability in [None, Fua, WriteThrough] {
            assert_eq!(Label::write(1, durability).kind(), Kind::Plain);
        }
        for durability in [Datasync, Fsync] {
            assert_eq!(Label::write(1, durability).kind(), Kind::Single);
        }
    }

    #[test]
    fn tallied_labels_say_what_their_requests_count() {
        let write = Label::write(1, Durability::Fua);
        assert_eq!(write.tally(), None);
        assert_eq!(Label::read(1).tally(), Some(Tally::SIMPLE_READ));
        for subblock in [false, true] {
            let tallied = write.tallied().with_subblock(subblock);
            assert_eq!(tallied.tally(), Some(Tally::overwrite(true, subblock)));
            assert_eq!(
                (tallied.file(), tallied.kind(), tallied.durability()),
                (1, Kind::Plain, Durability::Fua)
            );
        }
    }
}
