//! An open regular file.

use super::quota::Limited;
use crate::face::explain::Explanation;
use crate::face::explain_inline::{explain_inline, explain_journaled};
use crate::face::held::Held;
use crate::face::volume::{Shared, Volume};
use crate::ground::error::{Error, Result};
use crate::inode::fields::journals_data;
use crate::inode::metadata::Metadata;
use crate::seam::Ext4;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use uext4_iomap::{Engine, MapKind, NotedWrite, OpenFile, Piece, Pieces, Range, ReadFlags, WriteFlags};
use uext4_ondisk::Ino;

/// An open file. Cloning shares the inode; all calls may come from any thread.
///
/// `read_at` and `write_at` are direct: position, length and memory must obey the device's alignment, or the call fails
/// and transfers nothing. [`File::read_any_at`] and [`File::write_any_at`] take any bytes and are buffered;
/// [`File::cursor`] does so with a position.
#[derive(Clone)]
pub struct File {
    open: OpenFile<Ext4>,
    // A second handle on the volume's engine, so that a request does not go through `shared`.
    engine: Arc<Engine<Ext4>>,
    /// Set if the file was opened for appending.
    tail: Option<Arc<Tail>>,
    /// Set if limits of quota hold for what is written.
    limited: Option<Arc<Limited>>,
    // Must be the last field: its drop checks whether this was the inode's last user.
    held: Held,
}

/// Serializes appends at the end of a file.
struct Tail {
    open: OpenFile<Ext4>,
    turn: Mutex<()>,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("ino", &self.ino())
            .field("readable", &self.open.readable)
            .field("writable", &self.open.writable)
            .finish()
    }
}

impl File {
    pub(crate) fn new(
        open: OpenFile<Ext4>,
        tail: Option<OpenFile<Ext4>>,
        limited: bool,
        shared: Arc<Shared>,
    ) -> Self {
        let tail = tail.map(|open| Arc::new(Tail { open, turn: Mutex::new(()) }));
        let (engine, inode) = (shared.engine.clone(), open.inode.clone());
        let writes = open.writable || tail.is_some();
        let held = if writes { Held::for_writing(inode, shared) } else { Held::new(inode, shared) };
        let limited = limited.then(|| Limited::new(&open.inode));
        File { open, engine, tail, limited, held }
    }

    /// What keeps limits of quota in force for it.
    pub(super) fn limited(&self) -> Option<&Arc<Limited>> {
        self.limited.as_ref()
    }

    pub(crate) fn open_file(&self) -> &OpenFile<Ext4> {
        &self.open
    }

    pub(super) fn engine(&self) -> &Engine<Ext4> {
        &self.engine
    }

    /// Whether the contents are inline, inside the inode: reads need no device request, and a write changes the inode.
    /// A file that outgrows its inode is an ordinary one from then on, however it was opened.
    pub fn is_inline(&self) -> bool {
        self.open.inode.is_inline()
    }

    /// Whether this is a file of the volume that `engine` serves.
    pub(crate) fn is_of(&self, engine: &Arc<Engine<Ext4>>) -> bool {
        Arc::ptr_eq(&self.engine, engine)
    }

    /// The inode number.
    pub fn ino(&self) -> Ino {
        self.open.inode.ino()
    }

    /// Size in bytes, with what buffered writes have added.
    pub fn size(&self) -> u64 {
        self.open.state().visible_size()
    }

    /// Attributes, including times of overwrites that are not on disk yet.
    pub fn metadata(&self) -> Metadata {
        self.open.inode.metadata(&self.engine.fs().state)
    }

    /// The volume.
    pub fn volume(&self) -> Volume {
        Volume::from_shared(self.held.shared().clone())
    }

    /// Reads into `buf` from byte `pos`, directly. Returns the bytes read: fewer at the end of the file, 0 past it.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<usize> {
        self.engine.read_at(&self.open, buf, pos)
    }

    /// As [`File::read_at`]. `NOWAIT` fails rather than waits ([`ReadFlags::NOWAIT`]).
    pub fn read_at_with(&self, buf: &mut [u8], pos: u64, flags: ReadFlags) -> Result<usize> {
        self.prioritized(|| self.engine.read_at_with(&self.open, buf, pos, flags))
    }

    /// Overwrites `buf.len()` bytes at byte `pos`, directly. Durable after the next sync.
    #[inline]
    pub fn write_at(&self, buf: &[u8], pos: u64) -> Result<usize> {
        self.engine.write_at(&self.open, buf, pos, WriteFlags::empty())
    }

    /// As [`File::write_at`]. When it returns, the data is as durable as `flags` ask for.
    ///
    /// # Errors
    /// With [`WriteFlags::ATOMIC`] also [`Error::Incompatible`]: such writes need extents and a journal, and no
    /// clusters (`bigalloc`).
    #[inline]
    pub fn write_at_with(&self, buf: &[u8], pos: u64, flags: WriteFlags) -> Result<usize> {
        if flags.contains(WriteFlags::ATOMIC) {
            return self.write_any_at(buf, pos, flags);
        }
        self.engine.write_at(&self.open, buf, pos, flags)
    }

    /// Runs a call of this thread with the file's I/O priority.
    fn prioritized<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.open.priority.around(call)?
    }

    /// Reads any bytes into any memory, over pages unless the file was opened with
    /// [`OpenOptions::direct`](crate::OpenOptions::direct). Returns the bytes read: fewer at the end of the file.
    pub fn read_any_at(&self, buf: &mut [u8], pos: u64) -> Result<usize> {
        self.prioritized(|| self.engine.read_buffered(&self.open, buf, pos))
    }

    /// Writes any bytes from any memory. Without flags it is done when the bytes are in pages: the device gets them at
    /// a sync, later, or when the last writer closes the file. With flags, or if the file was opened with
    /// [`OpenOptions::direct`](crate::OpenOptions::direct), it goes to the device at once, and its edges are read,
    /// modified and written back with the gate held exclusively.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Limit`]: a part of the bytes may have been written. A failure to write pages home
    /// is told by the next sync of every open file.
    pub fn write_any_at(&self, buf: &[u8], pos: u64, flags: WriteFlags) -> Result<usize> {
        if flags.contains(WriteFlags::ATOMIC) {
            return self.prioritized(|| self.engine.write_atomic(&self.open, buf, pos, flags));
        }
        self.prioritized(|| self.engine.write_buffered(&self.open, buf, pos, flags))
    }

    /// Notes a write at this moment in the times of the file, for bytes that [`File::write_noted_at`] writes later. For
    /// a program that acknowledges writes before it does them.
    pub fn note_write(&self) {
        self.engine.note_write(&self.open);
    }

    /// As [`File::write_any_at`] without flags, but leaves the times of the file: the write was noted before, and times
    /// that were set since stay.
    ///
    /// # Errors
    /// Those of [`File::write_any_at`].
    pub fn write_noted_at(&self, buf: &[u8], pos: u64) -> Result<usize> {
        self.prioritized(|| self.engine.write_noted(&self.open, buf, pos))
    }

    /// Writes any bytes from any memory at the end of a file that was opened for appending, and returns the position of
    /// the first byte. Appends through this file and its clones are serialized, and none is interleaved with another.
    /// Other open files of the same inode may still write there at the same time. When it returns, the data is as
    /// durable as `flags` ask for.
    ///
    /// # Errors
    /// [`Error::NotPermitted`] if the file was not opened for appending; those of [`File::write_any_at`].
    pub fn append(&self, buf: &[u8], flags: WriteFlags) -> Result<u64> {
        let Some(tail) = &self.tail else {
            return Err(Error::NotPermitted("the file was not opened for appending"));
        };
        if flags.contains(WriteFlags::ATOMIC) {
            return Err(Error::NotSupported("atomic appends"));
        }
        if flags.contains(WriteFlags::NOWAIT) {
            return Err(Error::WouldBlock("an append changes the size, which needs the gate exclusively"));
        }
        let _one_at_a_time = tail.turn.lock();
        self.prioritized(|| self.engine.append_buffered(&tail.open, buf, flags))
    }

    /// As `fdatasync`: completed writes, and the metadata needed to read them back, survive a crash.
    pub fn sync_data(&self) -> Result<()> {
        self.engine.sync(&self.open, false)
    }

    /// As `fsync`.
    pub fn sync_all(&self) -> Result<()> {
        self.engine.sync(&self.open, true)
    }

    /// What the engine would do with a request right now, and why. Changes nothing.
    pub fn explain(&self, request: &crate::face::explain::Query) -> Result<Explanation> {
        if self.open.state().kind() == MapKind::Inline {
            return explain_inline(self.held.shared(), &self.open, request);
        }
        let superblock = &self.held.shared().fs.state.superblock;
        if request.write && journals_data(superblock, &self.open.inode.disk())
            || self.open.state().kind() == MapKind::Journaled
        {
            return explain_journaled(self.held.shared(), &self.open, request);
        }
        crate::face::explain::explain(self.held.shared(), &self.open, request)
    }

    /// The mapping of the whole file up to its size, in order: written and unwritten extents and holes, in bytes.
    /// Inline contents are one piece that ends with the last byte.
    pub fn map(&self) -> MapIter<'_> {
        self.map_from(0)
    }

    /// The same from byte `pos` on. The first piece may begin before it; there is none if `pos` is not inside the file.
    pub fn map_from(&self, pos: u64) -> MapIter<'_> {
        MapIter { file: self, pos, pending: Pieces::new(), next: 0, failed: false }
    }

    /// The first pieces of `range`, which begins inside the file.
    pub(crate) fn pieces(&self, range: Range, pieces: &mut Pieces) -> Result<()> {
        self.engine.write_pages_of(&self.open)?;
        self.engine.map(&self.open, range, pieces)
    }
}

/// The pieces of a file, from [`File::map`].
pub struct MapIter<'f> {
    file: &'f File,
    pos: u64,
    pending: Pieces,
    next: usize,
    failed: bool,
}

impl Iterator for MapIter<'_> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Result<Piece>> {
        if self.next == self.pending.len() {
            let size = self.file.size();
            if self.failed || self.pos >= size {
                return None;
            }
            let block = self.file.engine.fs().block_size();
            let whole = size.checked_next_multiple_of(block).unwrap_or(size);
            let end = if self.file.is_inline() { size } else { whole };
            let range = Range { pos: self.pos, length: end - self.pos };
            self.pending.clear();
            self.next = 0;
            if let Err(error) = self.file.pieces(range, &mut self.pending) {
                self.failed = true;
                return Some(Err(error));
            }
        }
        let piece = *self.pending.get(self.next)?;
        self.next += 1;
        self.pos = piece.end();
        Some(Ok(piece))
    }
}

impl Volume {
    /// One commit and one flush for all of `files`: their completed writes survive a crash.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a file belongs to another volume, since this call would not make it durable.
    pub fn sync_files(&self, files: &[&File]) -> Result<()> {
        if !files.iter().all(|file| file.is_of(self.engine())) {
            return Err(Error::Invalid("a file belongs to another volume".into()));
        }
        let open: Vec<_> = files.iter().map(|file| file.open_file()).collect();
        self.shared.engine.sync_many(&open, true)
    }

    /// As [`File::write_noted_at`] for each of these (file, bytes, position), with fewer requests of the device: the
    /// ends of files that lie side by side are written at once. Returns the result of each, in order.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a file of another volume; those of [`File::write_noted_at`].
    pub fn write_noted_together(&self, writes: &[(&File, &[u8], u64)]) -> Vec<Result<()>> {
        if !writes.iter().all(|(file, ..)| file.is_of(self.engine())) {
            let refused = || Err(Error::Invalid("a file belongs to another volume".into()));
            return writes.iter().map(|_| refused()).collect();
        }
        let noted: Vec<_> =
            writes.iter().map(|&(file, buf, pos)| NotedWrite { file: file.open_file(), buf, pos }).collect();
        self.shared.engine.write_noted_together(&noted)
    }
}
