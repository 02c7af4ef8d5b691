//! Listing a directory.

use super::held::Held;
use super::volume::Volume;
use crate::dir::list::Listing;
use crate::dir::{self, DirCookie, DirEntry};
use crate::ground::error::Result;
use crate::inode::Inode;
use std::sync::Arc;

/// Iterator over the entries of a directory, from [`Volume::read_dir`]. Ends after an error.
///
/// - **Concurrent changes**: a name that exists throughout is listed once, whatever names are added and removed and
///   however the directory is restructured by that. A name that is added or removed meanwhile may be listed or not.
/// - **Order**: `.` and `..`, then the order of the names' hashes, as in Linux. In a directory of several blocks
///   without a hash tree, this holds for the first block; the others are in on-disk order.
/// - **Positions**: each entry has a [`DirCookie`], with which this or another listing continues after it. If several
///   names share all 63 bits of their hash, as only crafted names do, earlier ones may be repeated after a
///   [`ReadDir::seek`] elsewhere and back; none is skipped.
/// - **Memory**: a block of entries or two, and at most 8192 entries, whatever the size of the directory.
pub struct ReadDir {
    volume: Volume,
    inode: Held,
    listing: Listing,
}

impl ReadDir {
    pub(crate) fn new(volume: Volume, inode: Arc<Inode>) -> Result<Self> {
        let inode = Held::new(inode, volume.shared.clone());
        dir::check(volume.state(), &inode)?;
        inode.note_access(volume.state());
        Ok(ReadDir { volume, inode, listing: Listing::new() })
    }

    /// Where it continues: after the last entry returned, or where [`ReadDir::seek`] went.
    pub fn cookie(&self) -> DirCookie {
        self.listing.cookie()
    }

    /// Continues at another position: after the entry with this cookie, or at [`DirCookie::START`]. Works after the end
    /// and after an error, too. A cookie of another directory leads to an arbitrary position, or to the end.
    pub fn seek(&mut self, cookie: DirCookie) {
        self.listing.seek(cookie);
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if let Some(entry) = self.listing.take() {
            return Some(Ok(entry));
        }
        let names = self.inode.steady_names();
        let filled = self.listing.fill(self.volume.state(), &self.inode);
        drop(names);
        match filled {
            Ok(()) => self.listing.take().map(Ok),
            Err(error) => {
                self.listing.end();
                Some(Err(error))
            }
        }
    }
}
