//! Size and space of a file: truncate, allocate, punch, shift, prepare, and where data and holes are.

use crate::change::Files;
use crate::face::file::File;
use crate::ground::error::{Error, Limit, Result};
use crate::inline;
use crate::inode::{self, Inode};
use crate::seam::Ext4;
use uext4_iomap::gate::InodeGuard;
use uext4_iomap::{Engine, OpenFile, Pieces, Range, State};

/// What [`File::fallocate`] does, as the modes of Linux's `fallocate(2)`.
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
    /// The range is taken out: what is behind it follows on what is in front (`FALLOC_FL_COLLAPSE_RANGE`).
    Collapse,
    /// A hole is put in at its place: what is from there on moves behind it (`FALLOC_FL_INSERT_RANGE`).
    Insert,
}

impl Fallocate {
    /// Whether it needs a map with an unwritten state.
    fn needs_extents(self) -> bool {
        self != Fallocate::Punch
    }
}

/// A file whose gate is held alone.
struct Alone<'f> {
    engine: &'f Engine<Ext4>,
    open: &'f OpenFile<Ext4>,
    held: InodeGuard<'f>,
    files: Files<'f>,
    inode: &'f Inode,
    /// Bytes of a block.
    block: u64,
}

impl File {
    /// Makes the file `size` bytes long, as `ftruncate(2)`. What is cut off is gone, blocks behind the old size too;
    /// what is added reads as zeros and has no blocks. Durable after the next sync.
    ///
    /// # Errors
    /// [`Error::Limit`] for a size that the file cannot have, [`Error::NotPermitted`], [`Error::Incompatible`] naming
    /// what cannot be changed (contents inside the inode, no journal, quota), [`Error::BadMode`]: nothing was changed
    /// then. If a long truncation fails in the middle, or a crash ends it, the file is longer than asked for and
    /// shorter than it was.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.check_shape(false)?;
        let mut drain = size <= self.size();
        let mut alone = self.alone(drain)?;
        if size <= self.size() && !drain {
            drop(alone);
            drain = true;
            alone = self.alone(drain)?;
        }
        alone.files.check_size(alone.inode, size)?;
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

    /// Allocates, frees or moves what lies at the `length` bytes from `pos` on, as `fallocate(2)` does on ext4.
    /// Durable after the next sync.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a length of 0; ends of [`Fallocate::Collapse`] and [`Fallocate::Insert`] that are not
    /// multiples of the cluster (of the block on volumes without clusters), or behind the last byte. [`Error::Limit`]
    /// for an end that the file cannot have. [`Error::NoSpace`]: what was allocated up to then stays; a punch has
    /// changed nothing; zeros may be partly there. [`Error::Incompatible`] for files with block pointers, which can
    /// only be punched, as in Linux. Others as of [`File::set_len`].
    pub fn fallocate(&self, mode: Fallocate, pos: u64, length: u64) -> Result<()> {
        check_mode(self.engine(), self.open_file(), mode, pos, length)?;
        self.alone(true)?.fallocate(mode, pos, length)
    }

    /// Makes every later write to the first `size` bytes a pure overwrite: they get blocks, as few runs as there is
    /// room for; those that are not written yet are zeroed on the device and become written. What is written stays.
    /// The file grows to `size` if it is shorter. Durable after the next sync.
    ///
    /// # Errors
    /// As of [`Fallocate::Allocate`], but files with block pointers can be prepared.
    pub fn prepare(&self, size: u64) -> Result<()> {
        self.check_shape(false)?;
        let alone = self.alone(true)?;
        alone.files.check_allocates(alone.inode)?;
        match alone.inode.disk().uses_extents() {
            true => alone.prepare(size),
            false => alone.prepare_pointers(size),
        }
    }

    /// The first byte from `pos` on that is written; `None` if none is, or `pos` is not inside the file. Unwritten
    /// blocks count as holes.
    ///
    /// # Errors
    /// Those of loading the map.
    pub fn seek_data(&self, pos: u64) -> Result<Option<u64>> {
        self.seek(pos, |state| matches!(state, State::Written | State::Inline))
    }

    /// The first byte from `pos` on that is not written: the size at the latest. `None` if `pos` is not inside the
    /// file.
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
        let held = self.engine().lock_alone(self.open_file(), drain)?;
        Ok(Alone::new(self.engine(), self.open_file(), held))
    }
}

/// Whether size and map of a file may be changed.
fn check_shape(engine: &Engine<Ext4>, open: &OpenFile<Ext4>, needs_extents: bool) -> Result<()> {
    let (inode, fs) = (&open.inode, engine.fs());
    if inode.is_inline() {
        return Err(inline::refuse_write(inode));
    }
    inode::check_overwrite(&fs.state.superblock, inode)?;
    match needs_extents {
        true => fs.files().check_unwritten(inode),
        false => fs.files().check_changes(),
    }
}

/// Whether this can be done to this file at all.
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

/// [`File::fallocate`] for somebody who holds the gate, drained.
pub(super) fn fallocate(
    engine: &Engine<Ext4>,
    open: &OpenFile<Ext4>,
    held: InodeGuard<'_>,
    mode: Fallocate,
    pos: u64,
    length: u64,
) -> Result<()> {
    check_mode(engine, open, mode, pos, length)?;
    Alone::new(engine, open, held).fallocate(mode, pos, length)
}

impl<'f> Alone<'f> {
    fn new(engine: &'f Engine<Ext4>, open: &'f OpenFile<Ext4>, held: InodeGuard<'f>) -> Self {
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

    /// The change begins: nothing refuses it any more. What the file may do when it is run goes first.
    fn begin(&self) -> Result<()> {
        if self.inode.state.is_privileged() {
            self.files.drop_privileges(self.inode)?;
        }
        self.held.mark_written();
        Ok(())
    }

    /// Zeroes bytes on the device where they are written.
    fn zero(&self, pos: u64, end: u64) -> Result<()> {
        self.zero_where(pos, end, State::Written)
    }

    fn zero_where(&self, pos: u64, end: u64, state: State) -> Result<()> {
        let range = Range { pos, length: end.saturating_sub(pos) };
        self.engine.zero(self.open, &self.held, range, state)
    }

    /// Another size behind the one it has. Whoever mapped the file may have left bytes behind the old one.
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
        // What is allocated behind the last block stays, as in Linux.
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

    /// What lies in front of the first whole block of a range, and behind the last one.
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

    /// The blocks of a range that is taken out or put in.
    fn gap(&self, pos: u64, end: u64) -> Result<std::ops::Range<u64>> {
        let clusters = u64::from(self.engine.fs().state.superblock.geometry.cluster_blocks());
        let unit = self.block * clusters;
        match (pos | end) & (unit - 1) {
            0 => Ok(pos / self.block..end / self.block),
            _ => Err(Error::Invalid(format!("ends of the range that are not multiples of {unit} bytes"))),
        }
    }

    fn collapse(&self, pos: u64, end: u64) -> Result<()> {
        let (gap, size) = (self.gap(pos, end)?, self.size());
        if end >= size {
            return Err(Error::Invalid(
                "a range to be taken out that is not in front of the last byte".into(),
            ));
        }
        self.begin()?;
        self.files.collapse(self.inode, &self.held, gap, size - (end - pos))
    }

    fn insert(&self, pos: u64, end: u64) -> Result<()> {
        let (gap, size) = (self.gap(pos, end)?, self.size());
        if pos >= size {
            return Err(Error::Invalid("a hole that is to be put in behind the last byte".into()));
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
        // Before anything that follows can be seen: the rest of the last block, then what is not written.
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

    /// The same for a map of block pointers: what it gets is zeroed, and data at once.
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
