//! Size and space of a file: truncate, allocate, punch, shift, prepare, and finding data and holes.

use crate::change::Files;
use crate::face::file::File;
use crate::ground::error::{Error, Limit, Result};
use crate::inode::{self, Inode};
use crate::seam::Ext4;
use uext4_iomap::{Engine, MapKind, OpenFile, Pieces, Range, Sole, State};
use uext4_ondisk::ext4::InodeFlags;

/// What [`File::fallocate`] does; the modes of Linux's `fallocate(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fallocate {
    /// Holes get blocks that read as zeros. The file grows to the end of the range.
    Allocate,
    /// The same, but the size stays (`FALLOC_FL_KEEP_SIZE`).
    KeepSize,
    /// The range reads as zeros, and its whole blocks are freed. The size stays (`FALLOC_FL_PUNCH_HOLE`).
    Punch,
    /// The range reads as zeros and has blocks. The file grows to its end (`FALLOC_FL_ZERO_RANGE`).
    Zero,
    /// The same, but the size stays.
    ZeroKeepSize,
    /// The range is removed: the bytes after it move down to its start (`FALLOC_FL_COLLAPSE_RANGE`).
    Collapse,
    /// A hole is inserted: the bytes from its start on move up by its length (`FALLOC_FL_INSERT_RANGE`).
    Insert,
}

impl Fallocate {
    /// Whether it needs a map that can mark blocks unwritten.
    fn needs_extents(self) -> bool {
        self != Fallocate::Punch
    }
}

/// A file with its gate held exclusively.
struct Alone<'f> {
    engine: &'f Engine<Ext4>,
    open: &'f OpenFile<Ext4>,
    held: Sole<'f>,
    files: Files<'f>,
    inode: &'f Inode,
    /// Bytes of a block.
    block: u64,
}

impl File {
    /// Makes the file `size` bytes long, as `ftruncate(2)`. Shrinking frees everything past the new end, including
    /// blocks past the old size; growing adds a hole that reads as zeros. Durable after the next sync.
    ///
    /// # Errors
    /// [`Error::Limit`] for a size that the file cannot have, [`Error::NotPermitted`], [`Error::Incompatible`] naming
    /// what cannot be changed (no journal), [`Error::BadMode`]: nothing was changed then. [`Error::NoSpace`] if inline
    /// contents that no longer fit the inode find no block; the file is as it was. If a long truncation fails or
    /// crashes in the middle, the file is longer than asked for and shorter than it was.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.resize(size)?;
        settle(self.engine(), self.open_file())
    }

    fn resize(&self, size: u64) -> Result<()> {
        self.check_shape(false)?;
        let mut drain = size <= self.size();
        let mut alone = self.alone(drain)?;
        if size <= self.size() && !drain {
            drop(alone);
            drain = true;
            alone = self.alone(drain)?;
        }
        alone.files.check_size(alone.inode, size)?;
        if alone.resize_inline(size)? {
            return Ok(());
        }
        alone.begin()?;
        let before = self.size();
        if size > before {
            return alone.grow(size);
        }
        if size < before {
            alone.zero(size, size.next_multiple_of(alone.block))?;
        }
        alone.files.truncate(alone.inode, &alone.held, size)
    }

    /// Allocates, frees or moves the `length` bytes from `pos` on, as `fallocate(2)` does on ext4. Durable after the
    /// next sync.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a length of 0; a range of [`Fallocate::Collapse`] or [`Fallocate::Insert`] that is not
    /// aligned to the cluster (to the block on volumes without clusters), or reaches past the last byte.
    /// [`Error::Limit`] for an end that the file cannot have. [`Error::NoSpace`]: blocks allocated so far stay; a punch
    /// has changed nothing; zeroing may be partly done. [`Error::Incompatible`] for files with block pointers, which
    /// can only be punched, as in Linux. Others as of [`File::set_len`].
    pub fn fallocate(&self, mode: Fallocate, pos: u64, length: u64) -> Result<()> {
        check_mode(self.engine(), self.open_file(), mode, pos, length)?;
        self.alone(true)?.fallocate(mode, pos, length)?;
        settle(self.engine(), self.open_file())
    }

    /// Makes every later write to the first `size` bytes a pure overwrite: allocates the missing blocks in as few runs
    /// as possible, zeroes all unwritten ones on the device and marks them written. Written data stays. The file grows
    /// to `size` if it is shorter. Durable after the next sync.
    ///
    /// # Errors
    /// As of [`Fallocate::Allocate`], except that files with block pointers can be prepared.
    pub fn prepare(&self, size: u64) -> Result<()> {
        self.check_shape(false)?;
        let alone = self.alone(true)?;
        alone.files.check_allocates(alone.inode)?;
        if alone.inode.state.kind() == MapKind::Journaled {
            let feature = "journaled data, which no write only overwrites".into();
            return Err(Error::Incompatible { action: "prepare", feature });
        }
        match alone.files.maps_extents(alone.inode) {
            true => alone.prepare(size),
            false => alone.prepare_pointers(size),
        }?;
        drop(alone);
        settle(self.engine(), self.open_file())
    }

    /// The first written byte at or after `pos`; `None` if there is none. Unwritten blocks count as
    /// holes.
    ///
    /// # Errors
    /// Those of loading the map.
    pub fn seek_data(&self, pos: u64) -> Result<Option<u64>> {
        self.seek(pos, |state| matches!(state, State::Written | State::Inline))
    }

    /// The first byte at or after `pos` that is in a hole; the end of the file counts as one. `None` if `pos` is
    /// not inside the file.
    ///
    /// # Errors
    /// Those of loading the map.
    pub fn seek_hole(&self, pos: u64) -> Result<Option<u64>> {
        let size = self.size();
        let hole = self.seek(pos, |state| matches!(state, State::Unwritten | State::Hole))?;
        Ok(hole.or((pos < size).then_some(size)))
    }

    fn seek(&self, mut pos: u64, wanted: impl Fn(State) -> bool) -> Result<Option<u64>> {
        let (size, mut pieces) = (self.size(), Pieces::new());
        while pos < size {
            self.pieces(Range { pos, length: size - pos }, &mut pieces)?;
            if let Some(piece) = pieces.iter().find(|piece| wanted(piece.state)) {
                return Ok(Some(piece.logical.max(pos)));
            }
            pos = pieces.last().map_or(size, uext4_iomap::Piece::end);
        }
        Ok(None)
    }

    fn check_shape(&self, needs_extents: bool) -> Result<()> {
        check_shape(self.engine(), self.open_file(), needs_extents)
    }

    fn alone(&self, drain: bool) -> Result<Alone<'_>> {
        let held = self.engine().lock_exclusive(self.open_file(), drain)?;
        Ok(Alone::new(self.engine(), self.open_file(), held))
    }
}

/// Checks that size and map of a file may be changed.
fn check_shape(engine: &Engine<Ext4>, open: &OpenFile<Ext4>, needs_extents: bool) -> Result<()> {
    let (inode, fs) = (&open.inode, engine.fs());
    inode::check_overwrite(&fs.state.superblock, inode)?;
    match needs_extents {
        true => fs.files().check_unwritten(inode),
        false => fs.files().check_changes(),
    }
}

/// Checks that this file supports the mode.
fn check_mode(
    engine: &Engine<Ext4>,
    open: &OpenFile<Ext4>,
    mode: Fallocate,
    pos: u64,
    length: u64,
) -> Result<()> {
    if pos.checked_add(length).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Error::Limit(Limit::Map));
    }
    if length == 0 {
        return Err(Error::Invalid("a length of 0 bytes".into()));
    }
    check_shape(engine, open, mode.needs_extents())
}

/// [`File::fallocate`] for a caller that holds the gate exclusively, drained.
pub(super) fn fallocate(
    engine: &Engine<Ext4>,
    open: &OpenFile<Ext4>,
    held: Sole<'_>,
    mode: Fallocate,
    pos: u64,
    length: u64,
) -> Result<()> {
    check_mode(engine, open, mode, pos, length)?;
    Alone::new(engine, open, held).fallocate(mode, pos, length)?;
    settle(engine, open)
}

/// Makes a change of a synchronous file durable. The gate is open again.
fn settle(engine: &Engine<Ext4>, open: &OpenFile<Ext4>) -> Result<()> {
    match open.inode.disk().flags.contains(InodeFlags::SYNC) {
        true => engine.sync(open, true),
        false => Ok(()),
    }
}

impl<'f> Alone<'f> {
    fn new(engine: &'f Engine<Ext4>, open: &'f OpenFile<Ext4>, held: Sole<'f>) -> Self {
        let fs = engine.fs();
        Alone { engine, open, held, files: fs.files(), inode: &open.inode, block: fs.block_size() }
    }

    fn size(&self) -> u64 {
        self.open.state().size()
    }

    fn fallocate(&self, mode: Fallocate, pos: u64, length: u64) -> Result<()> {
        let end = pos + length;
        match mode {
            Fallocate::Allocate => self.allocate(pos, end, true),
            Fallocate::KeepSize => self.allocate(pos, end, false),
            Fallocate::Punch => self.punch(pos, end),
            Fallocate::Zero => self.zero_range(pos, end, true),
            Fallocate::ZeroKeepSize => self.zero_range(pos, end, false),
            Fallocate::Collapse => self.collapse(pos, end),
            Fallocate::Insert => self.insert(pos, end),
        }
    }

    /// Called after all checks, right before the first change. Strips set-id bits and capabilities first, and moves
    /// inline contents to a block.
    fn begin(&self) -> Result<()> {
        self.begin_inside()?;
        self.files.leave_inode(self.inode, &self.held)
    }

    /// The same before a change that leaves the contents where they are.
    fn begin_inside(&self) -> Result<()> {
        if self.inode.state.is_privileged() {
            self.files.drop_privileges(self.inode)?;
        }
        self.held.mark_written();
        Ok(())
    }

    /// Sets the size of inline contents, if they stay in the inode.
    fn resize_inline(&self, size: u64) -> Result<bool> {
        if self.inode.state.kind() != MapKind::Inline {
            return Ok(false);
        }
        self.begin_inside()?;
        self.files.resize_inline(self.inode, &self.held, size)
    }

    /// Zeroes the written blocks of a range on the device.
    fn zero(&self, pos: u64, end: u64) -> Result<()> {
        self.zero_where(pos, end, State::Written)
    }

    fn zero_where(&self, pos: u64, end: u64, state: State) -> Result<()> {
        if self.inode.state.kind() == MapKind::Journaled {
            return self.files.zero_journaled(self.inode, &self.held, pos..end.max(pos));
        }
        let range = Range { pos, length: end.saturating_sub(pos) };
        self.engine.zero(self.open, &self.held, range, state)
    }

    /// Grows the file. A program that mapped the file may have left bytes past the old end, so zero them first.
    fn grow(&self, size: u64) -> Result<()> {
        let before = self.size();
        self.zero(before, before.next_multiple_of(self.block))?;
        self.files.extend(self.inode, &[], size)
    }

    /// All blocks that a range touches.
    fn touched(&self, pos: u64, end: u64) -> std::ops::Range<u64> {
        pos / self.block..end.div_ceil(self.block)
    }

    fn allocate(&self, pos: u64, end: u64, grows: bool) -> Result<()> {
        self.files.check_size(self.inode, end)?;
        self.begin()?;
        self.files.allocate(self.inode, self.touched(pos, end))?;
        if grows && end > self.size() { self.grow(end) } else { Ok(()) }
    }

    fn punch(&self, pos: u64, end: u64) -> Result<()> {
        let size = self.size();
        if pos >= size {
            return Ok(());
        }
        // Preallocated blocks past the end stay, as in Linux.
        let end = end.min(size.next_multiple_of(self.block));
        let whole = pos.div_ceil(self.block)..end / self.block;
        self.begin()?;
        if whole.is_empty() {
            return self.zero(pos, end);
        }
        let promise = self.files.promise_removal(self.inode, whole.clone())?;
        self.zero_edges(pos, end)?;
        self.files.remove(self.inode, &self.held, whole, promise.as_ref())
    }

    /// Zeroes the partial blocks at both ends of a range.
    fn zero_edges(&self, pos: u64, end: u64) -> Result<()> {
        self.zero(pos, pos.next_multiple_of(self.block))?;
        self.zero(end / self.block * self.block, end)
    }

    fn zero_range(&self, pos: u64, end: u64, grows: bool) -> Result<()> {
        self.files.check_size(self.inode, end)?;
        self.begin()?;
        self.files.allocate(self.inode, self.touched(pos, end))?;
        let whole = pos.div_ceil(self.block)..end / self.block;
        if whole.is_empty() {
            self.zero(pos, end)?;
        } else {
            let promise = self.files.promise_clear(self.inode)?;
            self.zero_edges(pos, end)?;
            self.files.clear(self.inode, &self.held, whole, promise)?;
        }
        if grows && end > self.size() { self.grow(end) } else { Ok(()) }
    }

    /// The blocks of a range to collapse or insert.
    fn gap(&self, pos: u64, end: u64) -> Result<std::ops::Range<u64>> {
        let clusters = u64::from(self.engine.fs().state.superblock.geometry.cluster_blocks());
        let unit = self.block * clusters;
        match (pos | end) & (unit - 1) {
            0 => Ok(pos / self.block..end / self.block),
            _ => Err(Error::Invalid(format!("both ends of the range must be multiples of {unit} bytes"))),
        }
    }

    fn collapse(&self, pos: u64, end: u64) -> Result<()> {
        let (gap, size) = (self.gap(pos, end)?, self.size());
        if end >= size {
            return Err(Error::Invalid("a range to collapse must end before the end of the file".into()));
        }
        self.begin()?;
        self.files.collapse(self.inode, &self.held, gap, size - (end - pos))
    }

    fn insert(&self, pos: u64, end: u64) -> Result<()> {
        let (gap, size) = (self.gap(pos, end)?, self.size());
        if pos >= size {
            return Err(Error::Invalid("a hole must be inserted before the end of the file".into()));
        }
        let size = size.saturating_add(end - pos);
        self.files.check_size(self.inode, size)?;
        self.begin()?;
        self.files.insert(self.inode, &self.held, gap, size)
    }

    fn prepare(&self, size: u64) -> Result<()> {
        self.files.check_size(self.inode, size)?;
        self.begin()?;
        let blocks = self.touched(0, size);
        if blocks.is_empty() {
            return Ok(());
        }
        self.files.allocate(self.inode, blocks.clone())?;
        let _promise = self.files.promise(self.inode, blocks.clone())?;
        // Zero the rest of the last block, then the unwritten blocks, before a larger size or a written state exposes
        // them.
        let before = self.size();
        if size > before {
            self.zero(before, before.next_multiple_of(self.block))?;
        }
        self.zero_where(0, blocks.end * self.block, State::Unwritten)?;
        match size > before {
            true => self.files.extend(self.inode, &[blocks], size),
            false => self.files.convert(self.inode, &[blocks]),
        }
    }

    /// The same for block pointers, which have no unwritten state: new blocks are zeroed before they are mapped.
    fn prepare_pointers(&self, size: u64) -> Result<()> {
        self.files.check_size(self.inode, size)?;
        self.begin()?;
        let (before, blocks) = (self.size(), self.touched(0, size));
        if size <= before {
            return self.files.allocate(self.inode, blocks);
        }
        self.files.begin_growth(self.inode)?;
        let allocated = self
            .files
            .allocate(self.inode, blocks)
            .and_then(|()| self.zero(before, before.next_multiple_of(self.block)));
        if allocated.is_err() {
            self.files.truncate(self.inode, &self.held, before)?;
        }
        self.files.end_growth(self.inode, allocated.is_ok().then_some(size))?;
        allocated
    }
}
