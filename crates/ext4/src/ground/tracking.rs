//! What the steps of a transaction declare for fast commits, until one is made or the transaction is committed in full.
//!
//! A step that declares nothing needs a full commit (`Handle::declare`). So a change that nobody thought of is safe.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use uext4_jbd2::Tid;
use uext4_ondisk::Ino;

/// Most files of one fast commit.
const FILES: usize = 256;

/// The declarations of a volume with an area for fast commits.
#[derive(Debug, Default)]
pub(crate) struct Tracking(Mutex<Declared>);

/// What was declared.
#[derive(Debug)]
pub(crate) struct Declared {
    tid: Tid,
    /// Changed files, each with the blocks whose mapping may have changed.
    pub(crate) files: BTreeMap<Ino, Range<u32>>,
    /// Whether there was more than is kept.
    pub(crate) overflowed: bool,
}

impl Default for Declared {
    fn default() -> Declared {
        Declared { tid: Tid(0), files: BTreeMap::new(), overflowed: false }
    }
}

impl Declared {
    /// Declarations of an older transaction count for nothing: it was committed in full.
    fn of(&mut self, tid: Tid) -> &mut Declared {
        if self.tid != tid {
            *self = Declared { tid, ..Declared::default() };
        }
        self
    }
}

impl Tracking {
    /// A step of transaction `tid` changes the record of a file, and its map in `blocks`.
    pub(crate) fn file(&self, tid: Tid, ino: Ino, blocks: Range<u32>) {
        let mut declared = self.0.lock();
        let declared = declared.of(tid);
        let known = declared.files.len();
        match declared.files.get_mut(&ino) {
            Some(all) if all.start >= all.end => *all = blocks,
            Some(_) if blocks.start >= blocks.end => {}
            Some(all) => *all = all.start.min(blocks.start)..all.end.max(blocks.end),
            None if known == FILES => declared.overflowed = true,
            None => drop(declared.files.insert(ino, blocks)),
        }
    }

    /// Takes what was declared for transaction `tid`.
    pub(crate) fn take(&self, tid: Tid) -> Declared {
        std::mem::take(self.0.lock().of(tid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_belong_to_their_transaction() {
        let tracking = Tracking::default();
        tracking.file(Tid(3), Ino(12), 0..0);
        tracking.file(Tid(3), Ino(12), 5..7);
        tracking.file(Tid(3), Ino(12), 0..0);
        tracking.file(Tid(3), Ino(12), 2..3);
        assert_eq!(tracking.take(Tid(3)).files, BTreeMap::from([(Ino(12), 2..7)]));
        assert!(tracking.take(Tid(3)).files.is_empty());
        tracking.file(Tid(3), Ino(12), 5..7);
        tracking.file(Tid(4), Ino(13), 1..2);
        assert_eq!(tracking.take(Tid(4)).files, BTreeMap::from([(Ino(13), 1..2)]));
        (0..=FILES as u32).for_each(|ino| tracking.file(Tid(5), Ino(ino), 0..1));
        assert!(tracking.take(Tid(5)).overflowed && !tracking.take(Tid(5)).overflowed);
    }
}
