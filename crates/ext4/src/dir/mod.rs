//! Directories: look-up by hash tree or by scanning, and listing.

mod htree;
pub(crate) mod inline;
mod name;

use crate::ground::error::{Error, Result};
use crate::inode::Ext4State;
use crate::inode::Inode;
use crate::inode::metadata::FileKind;
use crate::map;
use name::Wanted;
use uext4_buffer::BufferRef;
use uext4_ondisk::ext4::{
    Compat, DirBlock, DirBlockKind, DirFormat, InodeFlags, verify_dir_checksum, verify_htree_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: 1 to 255 bytes without `/`, not necessarily UTF-8.
    pub name: Vec<u8>,
    /// The inode it names.
    pub ino: Ino,
    /// Its type, where the volume stores it in the directory.
    pub kind: Option<FileKind>,
}

/// A directory being read: which blocks it has, and how.
pub(crate) struct Directory<'a> {
    state: &'a Ext4State,
    inode: &'a Inode,
    format: DirFormat,
    indexed: bool,
    /// Whether names that differ by case are the same.
    folds: bool,
    pub(crate) blocks: u32,
}

/// A checked directory block.
struct Block {
    buffer: BufferRef,
    kind: DirBlockKind,
}

impl<'a> Directory<'a> {
    pub(crate) fn open(state: &'a Ext4State, inode: &'a Inode) -> Result<Self> {
        if inode.kind() != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        inode.check_contents()?;
        let format = DirFormat::new(&state.superblock);
        let size = inode.disk().size;
        let block_size = u64::from(format.block_size);
        let blocks = u32::try_from(size / block_size).ok().filter(|_| size.is_multiple_of(block_size));
        // An honest directory has no more blocks than the volume; aliased extents could make it endless.
        let most = state.superblock.geometry.blocks_count();
        let Some(blocks) = blocks.filter(|&blocks| blocks > 0 && u64::from(blocks) <= most) else {
            return Err(state.corrupt_inode(inode.ino(), format!("a directory of {size} bytes")));
        };
        let folds = name::folds(state, inode)?;
        let dir_index = state.superblock.features.compat.contains(Compat::DIR_INDEX);
        let indexed = dir_index && inode.disk().flags.contains(InodeFlags::INDEX);
        Ok(Directory { state, inode, format, indexed, folds, blocks })
    }

    /// Reads and checks one block.
    fn block(&self, number: u32) -> Result<Block> {
        let missing = |what: &str| {
            self.state.corrupt_inode(self.inode.ino(), format!("directory block {number}: {what}"))
        };
        if number >= self.blocks {
            return Err(missing("behind the end"));
        }
        let Some(physical) = map::metadata_block(self.state, self.inode, number)? else {
            return Err(missing("not allocated"));
        };
        let buffer = self.state.cache.read(physical)?;
        let kind = DirBlockKind::of(&buffer, self.indexed, Lblk(number), &self.format);
        if self.format.checksums {
            let seed = self.inode.disk().checksum_seed(self.inode.ino(), &self.state.superblock);
            let checked = match kind {
                DirBlockKind::Linear => verify_dir_checksum(&buffer, seed),
                _ => verify_htree_checksum(&buffer, kind, seed),
            };
            checked.map_err(|corrupt| self.place(corrupt, number, physical))?;
        }
        Ok(Block { buffer, kind })
    }

    fn place(&self, corrupt: uext4_ondisk::Corrupt, number: u32, physical: u64) -> Error {
        corrupt.in_inode(self.inode.ino()).at_lblk(Lblk(number)).at_block(Pblk(physical)).into()
    }

    /// Calls `each` for the entries of one block until it answers.
    pub(crate) fn scan<T>(
        &self,
        number: u32,
        each: impl FnMut(&uext4_ondisk::ext4::DirEntry<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        self.scan_block(number, &self.block(number)?, each)
    }

    fn scan_block<T>(
        &self,
        number: u32,
        block: &Block,
        mut each: impl FnMut(&uext4_ondisk::ext4::DirEntry<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let place = |corrupt| self.place(corrupt, number, block.buffer.block());
        for entry in DirBlock::new(&block.buffer, block.kind, &self.format).map_err(place)?.entries() {
            let entry = entry.map_err(place)?;
            if !entry.has_valid_name() {
                return Err(place(Corrupt::from(CorruptKind::DirEntryName)));
            }
            if let Some(answer) = each(&entry) {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    fn scan_for(&self, number: u32, wanted: &mut Wanted<'_>) -> Result<Option<Ino>> {
        self.scan(number, |entry| wanted.is(entry).then_some(entry.inode))
    }

    /// The same in a block that the hash tree says to hold entries.
    fn scan_leaf(&self, number: u32, wanted: &mut Wanted<'_>) -> Result<Option<Ino>> {
        let block = self.block(number)?;
        // Without checksums an empty block of entries looks like a node of the tree; with them it has a tail.
        if block.kind != DirBlockKind::Linear && self.format.checksums {
            return Err(self.place(CorruptKind::HtreeDepth.into(), number, block.buffer.block()));
        }
        self.scan_block(number, &block, |entry| wanted.is(entry).then_some(entry.inode))
    }

    /// Whether a name that its hash tree does not lead to may still be there. The kernels of some months of 2024
    /// folded names another way; since then a case-folded directory is scanned to the end (`ext4_find_entry`)
    /// unless the volume says that it was never theirs.
    fn may_be_misplaced(&self) -> bool {
        self.folds && !self.state.superblock.no_encoding_fallback()
    }
}

/// What a look-up found.
pub(crate) struct Found {
    pub(crate) ino: Ino,
    /// How the directory spells the name, if not as it was asked for.
    pub(crate) spelling: Option<Vec<u8>>,
}

/// Finds a name in a directory.
pub(crate) fn look_up(state: &Ext4State, inode: &Inode, name: &[u8]) -> Result<Option<Found>> {
    if inline::is_inline(inode) {
        return inline::look_up(state, inode, name);
    }
    let directory = Directory::open(state, inode)?;
    let mut wanted = Wanted::new(state, directory.folds, name)?;
    let found = search(&directory, &mut wanted, name)?;
    Ok(found.map(|ino| Found { ino, spelling: wanted.spelling }))
}

fn search(directory: &Directory<'_>, wanted: &mut Wanted<'_>, name: &[u8]) -> Result<Option<Ino>> {
    // `..` is not in the tree: it always stands in the first block.
    if directory.indexed && name != b".." {
        let found = htree::look_up(directory, wanted)?;
        if found.is_some() || !directory.may_be_misplaced() {
            return Ok(found);
        }
    }
    for number in 0..directory.blocks {
        if let Some(found) = directory.scan_for(number, wanted)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
