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
/// - **Changes meanwhile**: a name that is there all the time comes once, whatever names are added and removed, and
///   whatever the directory becomes by that. One that is added or removed may come or not.
/// - **Order**: `.` and `..`, then the order of the names' hashes, as in Linux. Directories of several blocks without a
///   hash tree: the first block so, the others in their order on disk.
/// - **Places**: each entry has a [`DirCookie`], with which this or another listing goes on behind it. If names share
///   all 63 bits of their hash, as only contrived ones do, those before may come again after a [`ReadDir::seek`]
///   elsewhere and back; none is left out.
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
        Ok(ReadDir { volume, inode, listing: Listing::new() })
    }

    /// Where it goes on: behind the entry that came last, or where [`ReadDir::seek`] led.
    pub fn cookie(&self) -> DirCookie {
        self.listing.cookie()
    }

    /// Goes on elsewhere: behind the entry with this cookie, or at [`DirCookie::START`]. Also after the end, and after
    /// an error. A cookie of another directory leads anywhere, a place behind all names to the end.
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
