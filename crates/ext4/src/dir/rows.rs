//! A directory as blocks of entries: in the cache for a look-up, or being edited.

use super::htree;
use super::name::{self, Wanted};
use crate::ground::error::{Error, Result};
use uext4_ondisk::ext4::{
    Compat, DirBlock, DirBlockKind, DirEntry, DirFormat, Inode as DiskInode, InodeFlags, Superblock,
    verify_dir_checksum, verify_htree_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// The facts about a directory in its inode.
pub(super) struct Shape {
    pub(super) ino: Ino,
    pub(super) format: DirFormat,
    pub(super) indexed: bool,
    /// Whether names that differ only in case are equal.
    pub(super) folds: bool,
    pub(super) blocks: u32,
    /// The checksum seed of its blocks.
    pub(super) seed: u32,
}

impl Shape {
    /// # Errors
    /// [`Error::CorruptInode`] if the size is impossible, or names are folded without the feature.
    pub(super) fn of(superblock: &Superblock, ino: Ino, disk: &DiskInode) -> Result<Shape> {
        let shape = Shape::empty(superblock, ino, disk)?;
        let block_size = u64::from(shape.format.block_size);
        let whole = disk.size.is_multiple_of(block_size);
        // Aliased extents could make a directory endless, so it may have no more blocks than the volume. An inline one
        // has none.
        let most = superblock.geometry.blocks_count();
        let blocks = match disk.has_inline_data() {
            true => Some(0),
            false => u32::try_from(disk.size / block_size)
                .ok()
                .filter(|blocks| whole && *blocks > 0 && u64::from(*blocks) <= most),
        };
        let Some(blocks) = blocks else {
            return Err(Error::CorruptInode { ino, what: format!("a directory of {} bytes", disk.size) });
        };
        Ok(Shape { blocks, ..shape })
    }

    /// The shape of a directory without blocks.
    pub(super) fn empty(superblock: &Superblock, ino: Ino, disk: &DiskInode) -> Result<Shape> {
        let folds = name::folds(superblock, ino, disk)?;
        let dir_index = superblock.features.compat.contains(Compat::DIR_INDEX);
        Ok(Shape {
            ino,
            format: DirFormat::new(superblock),
            indexed: dir_index && disk.flags.contains(InodeFlags::INDEX),
            folds,
            blocks: 0,
            seed: disk.checksum_seed(ino, superblock),
        })
    }
}

impl Shape {
    fn block<'b>(&'b self, bytes: &'b [u8], number: u32, physical: Pblk) -> Block<'b> {
        let kind = DirBlockKind::of(bytes, self.indexed, Lblk(number), &self.format);
        Block { bytes, kind, number, physical, shape: self }
    }
}

/// A block of a directory, its checksum verified.
#[derive(Clone, Copy)]
pub(super) struct Block<'b> {
    pub(super) bytes: &'b [u8],
    pub(super) kind: DirBlockKind,
    pub(super) number: u32,
    pub(super) physical: Pblk,
    pub(super) shape: &'b Shape,
}

impl<'b> Block<'b> {
    /// Checks its checksum.
    fn verify(&self) -> Result<()> {
        if !self.shape.format.checksums {
            return Ok(());
        }
        let checked = match self.kind {
            DirBlockKind::Linear => verify_dir_checksum(self.bytes, self.shape.seed),
            _ => verify_htree_checksum(self.bytes, self.kind, self.shape.seed),
        };
        checked.map_err(|corrupt| self.corrupt(corrupt))
    }

    /// Adds the place to a fault.
    pub(super) fn corrupt(&self, corrupt: impl Into<Corrupt>) -> Error {
        let corrupt = corrupt.into().in_inode(self.shape.ino);
        corrupt.at_lblk(Lblk(self.number)).at_block(self.physical).into()
    }

    /// Its entries.
    pub(super) fn row(&self) -> Result<DirBlock<'b>> {
        DirBlock::new(self.bytes, self.kind, &self.shape.format).map_err(|corrupt| self.corrupt(corrupt))
    }

    /// Calls `each` for the entries until it returns `Some`.
    pub(super) fn scan<T>(&self, mut each: impl FnMut(&DirEntry<'_>) -> Option<T>) -> Result<Option<T>> {
        for entry in self.row()?.entries() {
            let entry = entry.map_err(|corrupt| self.corrupt(corrupt))?;
            if !entry.has_valid_name() {
                return Err(self.corrupt(CorruptKind::DirEntryName));
            }
            if let Some(answer) = each(&entry) {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }
}

/// A directory of blocks.
pub(super) trait Rows {
    /// Whether an edit follows. Then each node of the hash tree on the path is checked as a whole, not only the child
    /// taken.
    const EDITS: bool;

    fn superblock(&self) -> &Superblock;

    fn shape(&self) -> &Shape;

    /// Calls `look` with a block that `verify` accepts, and its location. The block must be inside the directory.
    /// `verify` may run only once per load of the block.
    fn bytes<T>(
        &self,
        number: u32,
        verify: impl FnOnce(Pblk, &[u8]) -> Result<()>,
        look: impl FnOnce(Pblk, &[u8]) -> Result<T>,
    ) -> Result<T>;

    /// Calls `look` with a block whose checksum is verified.
    fn block<T>(&self, number: u32, look: impl FnOnce(&Block<'_>) -> Result<T>) -> Result<T> {
        let shape = self.shape();
        if number >= shape.blocks {
            return Err(missing(shape.ino, number, "past the end"));
        }
        let verify = |physical, bytes: &[u8]| shape.block(bytes, number, physical).verify();
        self.bytes(number, verify, |physical, bytes| look(&shape.block(bytes, number, physical)))
    }

    /// Whether a name may be in a block to which its hash does not lead. For some months of 2024, kernels folded names
    /// differently. Since then the kernel scans a case-folded directory to the end (`ext4_find_entry`), unless the
    /// volume says that they never wrote it.
    fn may_be_misplaced(&self) -> bool {
        self.shape().folds && !self.superblock().no_encoding_fallback()
    }
}

/// Whether a directory has no names except `.` and `..`.
pub(super) fn is_empty<R: Rows>(rows: &R) -> Result<bool> {
    for number in 0..rows.shape().blocks {
        let name = rows.block(number, |block| {
            let mut skipped = 0;
            if number == 0 {
                htree::dots(block, false)?;
                skipped = 2;
            }
            block.scan(|_| {
                let counts = skipped == 0;
                skipped -= i32::from(!counts);
                counts.then_some(())
            })
        })?;
        if name.is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The error for a missing block.
pub(super) fn missing(ino: Ino, number: u32, what: &str) -> Error {
    Error::CorruptInode { ino, what: format!("directory block {number}: {what}") }
}

/// Calls `each` for the blocks that may hold a name until it returns `Some`: first those where the name belongs, then
/// (with `true`) all, where those kernels may have put it. Without a tree it begins at block `hint`.
pub(super) fn search<T, R: Rows>(
    rows: &R,
    wanted: &mut Wanted<'_>,
    hint: u32,
    mut each: impl FnMut(&Block<'_>, &mut Wanted<'_>, bool) -> Result<Option<T>>,
) -> Result<Option<T>> {
    // `.` and `..` are not in the tree: they are always in the first block.
    let dots = matches!(wanted.name(), b"." | b"..");
    let by_hash = rows.shape().indexed && !dots;
    if by_hash {
        let mut path = htree::descend(rows, wanted.hashed())?;
        let found = htree::chain(rows, &mut path, |block| each(block, wanted, false))?;
        if found.is_some() || !rows.may_be_misplaced() {
            return Ok(found);
        }
    }
    let blocks = rows.shape().blocks;
    let first = if by_hash || dots || hint >= blocks { 0 } else { hint };
    for number in (first..blocks).chain(0..first) {
        if let Some(found) = rows.block(number, |block| each(block, wanted, by_hash))? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
