//! What the steps of a transaction declare for fast commits, until one is made or the transaction is committed in full.
//!
//! A step that declares nothing needs a full commit (`Handle::declare`). So a change that nobody thought of is safe.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use uext4_jbd2::Tid;
use uext4_ondisk::Ino;

/// Most files, and most changes of names, of one fast commit.
const MOST: usize = 256;

/// How a name changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameChange {
    /// The first name of a new file.
    Create,
    /// Another name of a file.
    Link,
    /// The name is gone; the file has others.
    Unlink,
}

/// A changed name of a regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChangedName {
    pub(crate) change: NameChange,
    pub(crate) parent: Ino,
    pub(crate) ino: Ino,
    pub(crate) name: Box<[u8]>,
}

/// The declarations of a volume with an area for fast commits.
#[derive(Debug, Default)]
pub(crate) struct Tracking(Mutex<Declared>);

/// What was declared.
#[derive(Debug)]
pub(crate) struct Declared {
    tid: Tid,
    /// Changed files, each with the blocks whose mapping may have changed.
    pub(crate) files: BTreeMap<Ino, Range<u32>>,
    /// Changed names, in order.
    pub(crate) names: Vec<ChangedName>,
    /// Whether there was more than is kept.
    pub(crate) overflowed: bool,
}

impl Default for Declared {
    fn default() -> Declared {
        Declared { tid: Tid(0), files: BTreeMap::new(), names: Vec::new(), overflowed: false }
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
            None if known == MOST => declared.overflowed = true,
            None => drop(declared.files.insert(ino, blocks)),
        }
    }

    /// A step of transaction `tid` changes these names.
    pub(crate) fn names(&self, tid: Tid, names: Vec<ChangedName>) {
        let mut declared = self.0.lock();
        let declared = declared.of(tid);
        declared.overflowed |= declared.names.len() + names.len() > MOST;
        if !declared.overflowed {
            declared.names.extend(names);
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
        (0..=MOST as u32).for_each(|ino| tracking.file(Tid(5), Ino(ino), 0..1));
        assert!(tracking.take(Tid(5)).overflowed && !tracking.take(Tid(5)).overflowed);
    }
}
