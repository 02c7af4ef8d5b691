//! The time of the last access, which reads keep in memory.

use super::Inode;
use crate::ground::options::Atime;
use crate::ground::state::Ground;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4_iomap::coarse_now_ns;
use uext4_ondisk::ext4::InodeFlags;

/// With `Relatime`, an older time of access is always replaced.
const DAY: i64 = 24 * 60 * 60;

/// When an inode was last read, in nanoseconds since 1970; 0 if it was not read since it was loaded, or since it was
/// given another time.
#[derive(Default)]
pub(super) struct LastAccess(AtomicU64);

impl LastAccess {
    pub(super) fn ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The inode is given another time of access.
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Inode {
    /// Notes that the contents are being read.
    pub(crate) fn note_access(&self, ground: &Ground) {
        if ground.atime != Atime::Off {
            self.note_access_now(ground);
        }
    }

    #[cold]
    fn note_access_now(&self, ground: &Ground) {
        let now = coarse_now_ns();
        let found = self.metadata(ground);
        let due = match ground.atime {
            Atime::Off => false,
            Atime::Strict => true,
            Atime::Relatime => {
                let changed = found.modified.max(found.changed);
                changed >= found.accessed || self.clock.at(now).seconds - found.accessed.seconds >= DAY
            }
        };
        if due && !found.flags.contains(InodeFlags::NOATIME) {
            self.last_access.0.fetch_max(now, Ordering::Relaxed);
        }
    }
}
