//! State of the quota files of an open volume. `quota/` reads and changes them.

use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, Ordering};
use uext4_ondisk::ext4::QuotaKind;
use uext4_ondisk::{Ino, Pblk};

/// Most entries of each kind that the changes of one handle charge: of several inodes, or of an old and a new owner.
const ENTRIES_CHANGED: u32 = 6;

/// The quota files of a volume that is open for writing.
pub(crate) struct Quota {
    pub(crate) files: Vec<QuotaFile>,
    /// Entries that changes wait for.
    pub(crate) wanted: Mutex<BTreeSet<(QuotaKind, u32)>>,
    /// Held while entries are created. Ranks between the editors of inodes and the map lock.
    pub(crate) growing: Mutex<()>,
}

impl Quota {
    pub(crate) fn new(files: Vec<QuotaFile>) -> Quota {
        Quota { files, wanted: Mutex::default(), growing: Mutex::default() }
    }

    /// Credits of a handle for charging.
    pub(crate) fn credits(&self) -> u32 {
        self.files.len() as u32 * ENTRIES_CHANGED
    }
}

/// Where an entry is: a block of the volume, and its byte there.
pub(crate) type Place = (Pblk, usize);

/// One of the quota files.
pub(crate) struct QuotaFile {
    pub(crate) kind: QuotaKind,
    pub(crate) ino: Ino,
    /// Where entries were found: they stay there.
    pub(crate) places: Mutex<HashMap<u32, Place>>,
    /// Seconds for which the soft limits of space and of inodes may be exceeded.
    pub(crate) grace: (AtomicU32, AtomicU32),
}

impl QuotaFile {
    /// Seconds of grace for space and for inodes.
    pub(crate) fn grace(&self) -> (u32, u32) {
        (self.grace.0.load(Ordering::Relaxed), self.grace.1.load(Ordering::Relaxed))
    }
}

/// How far an inode may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Most bytes that it may count for.
    pub(crate) bytes: u64,
    /// Whose limit that is.
    pub(crate) kind: QuotaKind,
    pub(crate) id: u32,
}

/// What an inode counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) ids: Ids,
    pub(crate) bytes: u64,
    /// Attribute values in inodes of their own, each of which counts as an inode: more than when the record was loaded.
    pub(crate) values: i64,
}

/// Those whom an inode is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) project: u32,
}

impl Ids {
    pub(crate) fn of(self, kind: QuotaKind) -> u32 {
        match kind {
            QuotaKind::User => self.uid,
            QuotaKind::Group => self.gid,
            QuotaKind::Project => self.project,
        }
    }
}
