//! The interface to a file system: the engine calls, the file system answers with plain values.

use crate::counters::{Counter, CounterLine, Counters};
use crate::error::Error;
use crate::gate::InodeGuard;
use crate::inode::InodeState;
use crate::mapping::{Piece, Range};
use crate::plan::{View, WriteFlags};
use crate::snapshot::{MapSnapshot, MapWriter};
use crate::switches::{Routing, Switches};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4_blockdev::Priority;

/// What a file system implements for the engine.
pub trait FileSystem: Send + Sync + Sized + 'static {
    /// The in-memory inode.
    type Inode: Send + Sync + 'static;
    /// The file system's error.
    type Error: From<Error> + Clone + Send + std::fmt::Debug + 'static;

    /// The engine's half of an inode.
    fn state(inode: &Self::Inode) -> &InodeState;

    /// Fails once the volume is aborted. One relaxed load, made by every route that writes or promises durability.
    /// Reads continue.
    fn check_alive(&self) -> Result<(), Self::Error>;

    /// Aborts the volume because a flush or a FUA write failed: no durability promise holds any more.
    fn abort(&self, cause: Error);

    /// A file that was opened with [`OpenFile::with_access`] is being read.
    fn accessed(&self, _inode: &Self::Inode) {}

    /// Loads the mapping around byte `pos` of the file and publishes it. Returns a snapshot that knows `pos`, since
    /// another thread may make the published map forget it at once.
    fn map(&self, inode: &Self::Inode, pos: u64) -> Result<Arc<MapSnapshot>, Self::Error>;

    /// Whether an open for writing has a journal to start handles in. Without one the plain route of
    /// [`FileSystem::start_mapping`] starts none either.
    fn has_journal(&self) -> bool {
        true
    }

    /// A journal handle around the mapping of a write.
    type Handle<'a>
    where
        Self: 'a;

    /// Room 1: starts the journal handle for mapping an overwrite: none, or a real one.
    fn start_mapping<R: Routing>(
        &self,
        routing: R,
        counters: &impl Count,
    ) -> Result<Option<Self::Handle<'_>>, Self::Error>;

    /// Stops the handle after the look-up.
    fn stop_mapping(&self, handle: Self::Handle<'_>) -> Result<(), Self::Error>;

    /// Makes the changes of these inodes durable, committing if needed. Returns whether it also flushed the device's
    /// cache after their data was complete.
    fn datasync(&self, batch: &[Synced<'_, Self>]) -> Result<bool, Self::Error>;

    /// The inline data of an inode as one piece from byte 0 on, with its device position for reports. Only called for
    /// inodes without a map ([`MapKind::Inline`](crate::MapKind::Inline)).
    fn inline_piece(&self, _inode: &Self::Inode) -> Result<Piece, Self::Error> {
        Err(Error::MapUnknown(0).into())
    }

    /// Fills `buf` with contents that the file system holds ([`MapKind::is_held`](crate::MapKind::is_held)) from byte
    /// `pos` on.
    fn read_inline(&self, _inode: &Self::Inode, _buf: &mut [u8], pos: u64) -> Result<(), Self::Error> {
        Err(Error::MapUnknown(pos).into())
    }

    /// Writes `data`, consecutive buffers, at byte `pos` of an inode whose contents the file system holds, inline in
    /// one handle: sets the datasync tid, then the size. The gate is `held` exclusively. `false`: it does not fit, and
    /// now the inode is of another kind ([`InodeState::set_kind`]) with the same contents, so the write is planned
    /// again.
    ///
    /// # Errors
    /// Nothing was written then.
    fn write_inline(
        &self,
        _inode: &Self::Inode,
        _held: &InodeGuard<'_>,
        _pos: u64,
        _data: &[&[u8]],
    ) -> Result<bool, Self::Error> {
        Err(no_allocation())
    }

    /// Refuses a write that `needs` a change of the map or the size of this inode ([`Error::NeedsAllocation`]), before
    /// any work is done for it, unless the file system can make that change. If it always refuses, the rest of this
    /// trait is never called.
    fn check_allocates(&self, _inode: &Self::Inode, needs: Error) -> Result<(), Self::Error> {
        Err(needs.into())
    }

    /// Refuses a write to a file whose privileges must be cleared ([`InodeState::is_privileged`]), if the file system
    /// cannot clear them.
    fn check_privileges(&self, _inode: &Self::Inode) -> Result<(), Self::Error> {
        Err(Error::BadMode("changes of its attributes").into())
    }

    /// Clears set-user-id, set-group-id and capabilities of a file that is about to be written, in its own handle. Sets
    /// the datasync tid, then [`InodeState::set_privileged`]. The gate is `held` exclusively. No data was sent yet.
    fn drop_privileges(&self, inode: &Self::Inode, _held: &InodeGuard<'_>) -> Result<(), Self::Error> {
        self.check_privileges(inode)
    }

    /// Promises so many more blocks to the pages of a file, which allocate when they go home.
    ///
    /// # Errors
    /// If there are not as many, or a limit holds for the file that cannot be promised.
    fn promise(&self, _inode: &Self::Inode, _blocks: u64) -> Result<(), Self::Error> {
        Err(no_allocation())
    }

    /// Pages of a file begin to go home, or are there. In between, allocations for the file use up the promises.
    fn go_home(&self, _inode: &Self::Inode, _begins: bool) {}

    /// Takes back what is left of a file's promises: it has no dirty pages any more.
    fn end_promise(&self, _inode: &Self::Inode) {}

    /// Whether the file has no name any more, so that it goes with its last user.
    fn is_gone(&self, _inode: &Self::Inode) -> bool {
        false
    }

    /// Space reserved for the conversion of a write. It is taken before the write is sent, so that a full device cannot
    /// make the conversion fail, and returned on drop.
    type Reserve: Send + Sync + 'static;

    /// What an extending write holds from start to end: its orphan record, if it has one.
    type Extension;

    /// Blocks claimed for an append of a queue: free on the volume, and reserved in memory. Dropping it releases them.
    type Append: Send + Sync + 'static;

    /// Blocks that an atomic write has claimed: free on the volume, and reserved in memory. Dropping it releases them.
    type Swap;

    /// Claims blocks for all of `blocks` of a file, whatever is there now. Called outside of the gate.
    ///
    /// # Errors
    /// If the file system, or this file, has no atomic writes; `NoSpace` of the file system.
    fn swap_begin(&self, _inode: &Self::Inode, _blocks: Blocks) -> Result<Self::Swap, Self::Error> {
        Err(no_allocation())
    }

    /// Where the claimed blocks lie on the device, in the order of the file: ranges in bytes.
    fn swap_places(&self, _swap: &Self::Swap) -> Vec<Range> {
        Vec::new()
    }

    /// The data in the claimed blocks is complete: puts them into the file as written, frees those that were there, and
    /// sets the size if that grows, all in one handle. The gate is `held` exclusively, drained.
    ///
    /// # Errors
    /// The file is as before then, or the volume is aborted.
    fn swap_end(
        &self,
        _inode: &Self::Inode,
        _held: &InodeGuard<'_>,
        _swap: Self::Swap,
        _size: Option<u64>,
    ) -> Result<(), Self::Error> {
        Err(no_allocation())
    }

    /// Allocates all holes among `blocks` of the file in a short handle and publishes the new blocks. Allocated blocks
    /// stay as they are: others may allocate the same range concurrently. New blocks inside the size are unwritten;
    /// those from the size on may be marked written at once, whatever they hold. A map without an unwritten state gets
    /// zeroed blocks; its writer holds the gate exclusively. Called inside the gate.
    ///
    /// # Errors
    /// `NoSpace` of the file system: it has first tried a commit if freed blocks wait for one. Blocks allocated before
    /// the failure may stay, unwritten.
    fn allocate(&self, _inode: &Self::Inode, _blocks: Blocks) -> Result<(), Self::Error> {
        Err(no_allocation())
    }

    /// Claims blocks for all holes among `blocks`, which lie inside the size, and publishes them as unwritten: nothing
    /// changes on the volume, and [`FileSystem::convert`] maps them with the same handle. The caller's write is among
    /// the pending ones. Called inside the gate.
    ///
    /// `false`: some of the holes have to be allocated ([`FileSystem::allocate`]).
    ///
    /// # Errors
    /// Those of reading the map and looking for room.
    fn claim(&self, _inode: &Self::Inode, _blocks: &Blocks) -> Result<bool, Self::Error> {
        Ok(false)
    }

    /// A pending write of `blocks` is gone, converted or not. What was claimed there and is not mapped becomes a hole
    /// again, unless another pending write meets it.
    fn unclaim(_inode: &Self::Inode, _map: &mut MapWriter<'_>, _blocks: &Blocks) {}

    /// Reserves what converting `blocks` may need, before their data is sent. Starts no handle.
    fn reserve(&self, _inode: &Self::Inode, _blocks: Blocks) -> Result<Self::Reserve, Self::Error> {
        Err(no_allocation())
    }

    /// The same without waiting for a lock, for metadata that is not in memory, or for a commit. `None` if it would
    /// wait.
    fn try_reserve(&self, inode: &Self::Inode, blocks: Blocks) -> Result<Option<Self::Reserve>, Self::Error> {
        self.reserve(inode, blocks).map(Some)
    }

    /// Converts the unwritten blocks among `blocks` (in order, without overlaps), whose data is complete, in one
    /// handle: sets the datasync tid ([`InodeState::set_datasync_tid`]), then publishes them as written. Written blocks
    /// stay written. Called without the gate; the writes are in flight until it returns.
    ///
    /// # Errors
    /// After an error, none of the unwritten blocks may read as written.
    fn convert(
        &self,
        _inode: &Self::Inode,
        _blocks: &[Blocks],
        _reserves: Vec<Self::Reserve>,
    ) -> Result<(), Self::Error> {
        Err(no_allocation())
    }

    /// A write of `range` is about to extend the file. Ensures that a crash before [`FileSystem::extend_end`] leaves no
    /// allocated block past the size on disk: by an orphan record, or because the write allocates none. Called with the
    /// gate held exclusively.
    fn extend_begin(&self, _inode: &Self::Inode, _range: Range) -> Result<Self::Extension, Self::Error> {
        Err(no_allocation())
    }

    /// Ends an extending write, complete or failed; the gate is still `held`. In one handle: converts as
    /// [`FileSystem::convert`], then sets the size in memory ([`InodeState::set_size`]) and on disk, and removes the
    /// orphan record. After a failure, frees blocks past the size that were allocated as written: a later extension
    /// would expose them.
    fn extend_end(
        &self,
        _inode: &Self::Inode,
        _held: &InodeGuard<'_>,
        _extension: Self::Extension,
        _outcome: Extended<'_, Self::Reserve>,
    ) -> Result<(), Self::Error> {
        Err(no_allocation())
    }

    /// Whether appends of these blocks may be in flight beside others: claimed by [`FileSystem::append_begin`], or
    /// unwritten already. If not, the queue carries them out one by one.
    fn queues_appends(&self, _inode: &Self::Inode, _blocks: Blocks) -> bool {
        false
    }

    /// Claims blocks for a hole at the end of a file, behind the blocks of earlier appends that are in flight; `after`:
    /// the byte of the device where those end. The gate is held exclusively during this call only. `None`: the write
    /// has to extend the file in the other way.
    fn append_begin(
        &self,
        _inode: &Self::Inode,
        _blocks: Blocks,
        _after: Option<u64>,
    ) -> Result<Option<Self::Append>, Self::Error> {
        Ok(None)
    }

    /// Where the claimed blocks lie on the device, in the order of the file: ranges in bytes.
    fn append_places(&self, _append: &Self::Append) -> Vec<Range> {
        Vec::new()
    }

    /// The data of appends is complete, and so is all that was appended before them: maps their blocks as written and
    /// moves the size, so that it never covers what is not complete. `blocks`: unwritten blocks to convert, of these
    /// appends and of other writes. Called without the gate; the appends are in flight until it returns. Sets the
    /// datasync tid, publishes the blocks, then sets the size.
    ///
    /// # Errors
    /// The size covers none of what has failed.
    fn append_end(
        &self,
        _inode: &Self::Inode,
        _appends: Vec<Appended<Self>>,
        _blocks: &[Blocks],
        _reserves: Vec<Self::Reserve>,
    ) -> Result<(), Self::Error> {
        Err(no_allocation())
    }
}

/// An append whose data is complete.
#[allow(missing_debug_implementations)]
pub struct Appended<F: FileSystem> {
    /// The blocks that were claimed for it. `None` if the file had unwritten ones there.
    pub claim: Option<F::Append>,
    /// Its last byte in the file, plus 1.
    pub end: u64,
}

fn no_allocation<E: From<Error>>() -> E {
    Error::BadMode("changes of its map").into()
}

/// A half-open range of blocks, of a file or of a device.
pub type Blocks = std::ops::Range<u64>;

/// An inode whose changes must become durable.
#[derive(Debug)]
pub struct Synced<'a, F: FileSystem> {
    /// The inode.
    pub inode: &'a F::Inode,
    /// Whether every change must be durable (fsync), not only those of extents and size.
    pub all: bool,
}

/// How an extending write ended.
#[derive(Debug)]
pub enum Extended<'a, R> {
    /// Its data is complete.
    Complete {
        /// The new size in bytes, in memory and on disk.
        size: u64,
        /// Blocks to convert, as for [`FileSystem::convert`].
        blocks: &'a [Blocks],
        /// Reserves taken for the conversion.
        reserves: Vec<R>,
    },
    /// It failed.
    Failed,
}

/// A counter sink: a queue's own line, or the calling thread's.
pub trait Count {
    /// Counts one.
    fn bump(&self, counter: Counter);
}

impl Count for CounterLine {
    #[inline]
    fn bump(&self, counter: Counter) {
        CounterLine::bump(self, counter);
    }
}

impl Count for Counters {
    #[inline]
    fn bump(&self, counter: Counter) {
        Counters::bump(self, counter);
    }
}

/// An open file as the engine sees it. Switches are resolved here, once.
#[derive(Debug)]
pub struct OpenFile<F: FileSystem> {
    /// The inode.
    pub inode: Arc<F::Inode>,
    /// Open for reading.
    pub readable: bool,
    /// Open for writing.
    pub writable: bool,
    /// Which optimisations this file uses.
    pub switches: Switches,
    /// I/O priority of its data requests; if unset, that of the queue or of the calling thread.
    pub priority: Priority,
    /// Whether the file system is told of reads.
    accesses: bool,
    /// Whether writes are noted in the times of the file.
    notes_writes: bool,
    all_on: bool,
    /// Whether requests of any bytes go to the device at once.
    direct: bool,
    /// Whether its writes are pages that go home: times and privileges were seen to when the pages were written.
    of_pages: bool,
    /// How many late failures it was told.
    pub(crate) seen: AtomicU64,
}

impl<F: FileSystem> Clone for OpenFile<F> {
    fn clone(&self) -> Self {
        let seen = AtomicU64::new(self.seen.load(Ordering::Relaxed));
        OpenFile { inode: self.inode.clone(), seen, ..*self }
    }
}

impl<F: FileSystem> OpenFile<F> {
    /// Opens `inode` for the engine. The file system decides what may be read and written.
    pub fn new(inode: Arc<F::Inode>, readable: bool, writable: bool, switches: Switches) -> Self {
        let priority = Priority::OF_THREAD;
        let seen = F::state(&inode).pages().map_or(0, |pages| pages.late_count());
        OpenFile {
            inode,
            readable,
            writable,
            switches,
            priority,
            accesses: false,
            notes_writes: true,
            all_on: switches == Switches::ON,
            direct: false,
            of_pages: false,
            seen: AtomicU64::new(seen),
        }
    }

    /// The same file: whether its requests of any bytes go to the device at once, without pages.
    #[must_use]
    pub fn with_direct(self, direct: bool) -> Self {
        OpenFile { direct, ..self }
    }

    /// Whether requests of any bytes go to the device at once.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// The same file with the file system told of its reads, if `accesses`.
    #[must_use]
    pub fn with_access(self, accesses: bool) -> Self {
        OpenFile { accesses, all_on: self.all_on && !accesses, ..self }
    }

    /// The same file, whose writes leave its times: they were noted before.
    pub(crate) fn without_times(&self) -> Self {
        OpenFile { notes_writes: false, all_on: false, ..self.clone() }
    }

    /// A file whose pages go home: nobody's open file.
    pub(crate) fn for_pages(inode: Arc<F::Inode>) -> Self {
        let file = OpenFile::new(inode, true, true, Switches::ON).without_times();
        OpenFile { of_pages: true, ..file }
    }

    /// What its plans need to know about the inode.
    pub(crate) fn view(&self) -> View {
        let view = self.state().view();
        match self.of_pages {
            true => View { disk_size: view.disk_size.with_privileged(false), ..view },
            false => view,
        }
    }

    /// Whether writes are noted in the times of the file.
    pub(crate) fn notes_writes(&self) -> bool {
        self.notes_writes
    }

    /// Whether the file system is told of reads.
    pub(crate) fn notes_access(&self) -> bool {
        self.accesses
    }

    /// The flags of a write of this file. The short paths do not ask: they do not take a file that is marked
    /// ([`InodeState::set_syncs`]).
    pub(crate) fn flags_of(&self, given: WriteFlags) -> WriteFlags {
        if self.state().syncs() { given | WriteFlags::DSYNC } else { given }
    }

    /// The same file with this priority for its data requests.
    #[must_use]
    pub fn with_priority(self, priority: Priority) -> Self {
        let all_on = self.switches == Switches::ON && priority.is_of_thread() && !self.accesses;
        OpenFile { priority, all_on, ..self }
    }

    /// Whether every switch is on, and the file has no priority of its own, and does not keep a time of access.
    #[inline(always)]
    pub(crate) fn is_all_on(&self) -> bool {
        self.all_on
    }

    /// The engine's half of the inode.
    #[inline]
    pub fn state(&self) -> &InodeState {
        F::state(&self.inode)
    }

    pub(crate) fn check_readable(&self) -> Result<(), Error> {
        if self.readable { Ok(()) } else { Err(Error::BadMode("reading")) }
    }

    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if self.writable { Ok(()) } else { Err(Error::BadMode("writing")) }
    }
}
