//! Listing a directory.

use super::held::Held;
use super::volume::Volume;
use crate::dir::{DirEntry, Directory, inline};
use crate::ground::error::Result;
use crate::inode::Inode;
use std::collections::VecDeque;
use std::sync::Arc;

/// Iterator over a directory's entries, in their order on disk. Ends after an error.
pub struct ReadDir {
    volume: Volume,
    inode: Held,
    next: u32,
    entries: VecDeque<DirEntry>,
    ended: bool,
}

impl ReadDir {
    pub(crate) fn new(volume: Volume, inode: Arc<Inode>) -> Result<Self> {
        let inode = Held::new(inode, volume.shared.clone());
        if inline::is_inline(&inode) {
            let entries = inline::list(volume.state(), &inode)?;
            // All entries are here: `fill` has nothing to read.
            return Ok(ReadDir { volume, inode, next: u32::MAX, entries, ended: true });
        }
        Directory::open(volume.state(), &inode)?;
        Ok(ReadDir { volume, inode, next: 0, entries: VecDeque::new(), ended: false })
    }

    /// The directory.
    pub(crate) fn inode(&self) -> &Inode {
        &self.inode
    }

    /// The block to read next. Those before it have been read.
    pub(crate) fn next_block(&self) -> u32 {
        self.next
    }

    /// Reads blocks until there are entries or no block is left.
    fn fill(&mut self) -> Result<()> {
        let _names = self.inode.steady_names();
        let directory = Directory::open(self.volume.state(), &self.inode)?;
        while self.entries.is_empty() && self.next < directory.blocks() {
            let entries = &mut self.entries;
            let bad = directory.scan(self.next, |entry| {
                // A name with a slash would be a path, and could lead a copy of the tree out of its folder.
                if !entry.has_valid_name() {
                    return Some(entry.offset);
                }
                let kind = entry.file_type;
                entries.push_back(DirEntry { name: entry.name.to_vec(), ino: entry.inode, kind });
                None
            })?;
            if let Some(offset) = bad {
                let what = format!(
                    "directory block {}: the name at byte {offset} holds a slash or a zero",
                    self.next
                );
                return Err(self.volume.state().corrupt_inode(self.inode.ino(), what));
            }
            self.next += 1;
        }
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        if self.entries.is_empty()
            && !self.ended
            && let Err(error) = self.fill()
        {
            self.ended = true;
            return Some(Err(error));
        }
        self.entries.pop_front().map(Ok)
    }
}
