//! Reads the entries of a directory for a walk.

use super::names::Names;
use crate::dir::{self, Directory};
use crate::face::held::Held;
use crate::face::read_dir::ReadDir;
use crate::face::volume::Volume;
use crate::ground::error::Result;
use crate::inode::{Ext4State, Inode};
use crate::map;
use std::sync::Arc;
use uext4_buffer::{BufferPin, READ_AHEAD_BYTES};
use uext4_ondisk::ext4::InodeFlags;

/// A directory being read. If names may change meanwhile, it is read in an order that names keep; if not, block by
/// block, with read-ahead.
pub(super) enum Reader {
    Listing(ReadDir),
    Blocks(Blocks),
}

/// The blocks of a directory that cannot change.
pub(super) struct Blocks {
    volume: Volume,
    inode: Held,
    /// The block to read next.
    next: u32,
    /// Those up to this one were read ahead …
    ahead: u32,
    /// … and are kept in memory.
    pins: Vec<BufferPin>,
}

impl Reader {
    pub(super) fn new(volume: &Volume, inode: Arc<Inode>) -> Result<Reader> {
        if volume.shared.options.write || inode.disk().flags.contains(InodeFlags::INLINE_DATA) {
            return ReadDir::new(volume.clone(), inode).map(Reader::Listing);
        }
        dir::check(volume.state(), &inode)?;
        let inode = Held::new(inode, volume.shared.clone());
        Ok(Reader::Blocks(Blocks { volume: volume.clone(), inode, next: 0, ahead: 0, pins: Vec::new() }))
    }

    /// Reads an entry or a block of entries, without `.` and `..`. Returns whether there may be more.
    pub(super) fn read(&mut self, names: &mut Names) -> Result<bool> {
        match self {
            Reader::Blocks(blocks) => blocks.read(names),
            Reader::Listing(listing) => match listing.next().transpose()? {
                None => Ok(false),
                Some(entry) => {
                    if !matches!(entry.name.as_slice(), b"." | b"..") {
                        names.push(&entry.name, entry.ino, entry.kind);
                    }
                    Ok(true)
                }
            },
        }
    }

    /// Releases memory while the walk is elsewhere.
    pub(super) fn rest(&mut self) {
        if let Reader::Blocks(blocks) = self {
            blocks.pins.clear();
        }
    }
}

impl Blocks {
    fn read(&mut self, names: &mut Names) -> Result<bool> {
        let state = self.volume.state();
        let directory = Directory::open(state, &self.inode)?;
        if self.next >= directory.blocks() {
            return Ok(false);
        }
        if self.next >= self.ahead {
            (self.ahead, self.pins) = directory_ahead(state, &self.inode, self.next);
        }
        directory.scan(self.next, |entry| {
            if !entry.is_dot() && !entry.is_dot_dot() {
                names.push(entry.name, entry.inode, entry.file_type);
            }
            None::<()>
        })?;
        self.next += 1;
        Ok(true)
    }
}

/// Reads the next blocks of a directory in one request, while they are contiguous on the device. Returns the first
/// block not covered, and the pins that keep the others in memory.
fn directory_ahead(state: &Ext4State, inode: &Inode, first: u32) -> (u32, Vec<BufferPin>) {
    let block_size = u64::from(state.superblock.geometry.block_size());
    let end = u32::try_from(inode.disk().size / block_size).unwrap_or(u32::MAX);
    let most = READ_AHEAD_BYTES / state.superblock.geometry.block_size();
    if end.saturating_sub(first) < 2 {
        return (u32::MAX, Vec::new());
    }
    // The reads themselves report errors.
    let Ok(Some(start)) = map::metadata_block(state, inode, first) else { return (first + 1, Vec::new()) };
    let mut count = 1;
    while count < most && first + count < end {
        let expected = start.saturating_add(u64::from(count));
        if !matches!(map::metadata_block(state, inode, first + count), Ok(Some(block)) if block == expected) {
            break;
        }
        count += 1;
    }
    (first + count, state.cache.read_ahead(start, count))
}
