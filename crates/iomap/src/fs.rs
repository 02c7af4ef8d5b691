//! The seam to a file system: the engine asks, the file system answers with plain values.

use crate::counters::{Counter, CounterLine, Counters};
use crate::error::Error;
use crate::gate::InodeGuard;
use crate::inode::InodeState;
use crate::mapping::{Piece, Range};
use crate::snapshot::MapSnapshot;
use crate::switches::{Routing, Switches};
use std::sync::Arc;
use uext4_blockdev::Priority;

/// What a file system gives the engine.
pub trait FileSystem: Send + Sync + Sized + 'static {
    /// The in-memory inode.
    type Inode: Send + Sync + 'static;
    /// The file system's error.
    type Error: From<Error> + Clone + Send + std::fmt::Debug + 'static;

    /// The engine's half of an inode.
    fn state(inode: &Self::Inode) -> &InodeState;

    /// Refuses once the volume was aborted. One relaxed load: every route that writes or promises durability asks.
    /// Reading goes on.
    fn check_alive(&self) -> Result<(), Self::Error>;

    /// Aborts the volume because a flush or a FUA write failed: nothing that was promised durable can be
    /// relied on.
    fn abort(&self, cause: Error);

    /// Loads the mapping around byte `pos` of the file and publishes it. Returns a snapshot that knows `pos`: another
    /// thread may make the published one forget it at once.
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

    /// Room 1: starts what the mapping of an overwrite needs of the journal: nothing, or a real handle.
    fn start_mapping<R: Routing>(
        &self,
        routing: R,
        counters: &impl Count,
    ) -> Result<Option<Self::Handle<'_>>, Self::Error>;

    /// Stops the handle after the look-up.
    fn stop_mapping(&self, handle: Self::Handle<'_>) -> Result<(), Self::Error>;

    /// Makes changes of these inodes durable, committing if needed. Returns whether it flushed the device's cache after
    /// their data was complete.
    fn datasync(&self, batch: &[Synced<'_, Self>]) -> Result<bool, Self::Error>;

    /// What lies inside the inode: one piece from byte 0 on, with its place on the device for reports. Only asked of
    /// inodes without a map ([`MapKind::Inline`](crate::MapKind::Inline)).
    fn inline_piece(&self, _inode: &Self::Inode) -> Result<Piece, Self::Error> {
        Err(Error::MapUnknown(0).into())
    }

    /// Fills `buf` with what lies inside the inode from byte `pos` on.
    fn read_inline(&self, _inode: &Self::Inode, _buf: &mut [u8], pos: u64) -> Result<(), Self::Error> {
        Err(Error::MapUnknown(pos).into())
    }

    /// Refuses a write that `needs` a change of the map or the size of this inode ([`Error::NeedsAllocation`]), before
    /// anything is done for it, unless the file system can do that. If it never can, nothing of the rest of this trait
    /// is called.
    fn check_allocates(&self, _inode: &Self::Inode, needs: Error) -> Result<(), Self::Error> {
        Err(needs.into())
    }

    /// Refuses a write to a file that has privileges to lose ([`InodeState::is_privileged`]), if the file system cannot
    /// take them away.
    fn check_privileges(&self, _inode: &Self::Inode) -> Result<(), Self::Error> {
        Err(Error::BadMode("changes of its attributes").into())
    }

    /// Takes set-user-id, set-group-id and capabilities from a file that is about to be written, in its own handle.
    /// Sets the datasync tid, then [`InodeState::set_privileged`]. The gate is `held` alone. Nothing was sent yet.
    fn drop_privileges(&self, inode: &Self::Inode, _held: &InodeGuard<'_>) -> Result<(), Self::Error> {
        self.check_privileges(inode)
    }

    /// What the conversion of a write draws on. It is taken before the write is sent, so that no device is too full for
    /// the conversion, and given back when it is dropped.
    type Reserve: Send + Sync + 'static;

    /// What an extending write holds from its begin to its end: its orphan record, if it has one.
    type Extension;

    /// Gives all holes among `blocks` (of the file) blocks on the device, in a short handle, and publishes them. What
    /// is allocated stays as it is: others may allocate the same at the same time. Inside the size they are unwritten;
    /// from the size on they may be written at once, whatever they hold. A map without an unwritten state gets zeroed
    /// blocks: its writer holds the gate alone. Called inside the gate.
    ///
    /// # Errors
    /// `NoSpace` of the file system: it has tried a commit before that if freed blocks wait for one. What was allocated
    /// up to then may stay, unwritten.
    fn allocate(&self, _inode: &Self::Inode, _blocks: Blocks) -> Result<(), Self::Error> {
        Err(no_allocation())
    }

    /// Takes what converting `blocks` may need, before their data is sent. Starts no handle.
    fn reserve(&self, _inode: &Self::Inode, _blocks: Blocks) -> Result<Self::Reserve, Self::Error> {
        Err(no_allocation())
    }

    /// The same if that waits for nothing: no lock, no metadata that is not in memory, no commit. `None` if it would.
    fn try_reserve(&self, inode: &Self::Inode, blocks: Blocks) -> Result<Option<Self::Reserve>, Self::Error> {
        self.reserve(inode, blocks).map(Some)
    }

    /// Converts what is unwritten among `blocks` (in order, without overlaps), whose data is complete, in one handle:
    /// sets the datasync tid ([`InodeState::set_datasync_tid`]), then publishes them as written. What is written
    /// stays so. Called without the gate; the writes are in flight until it returns.
    ///
    /// # Errors
    /// None of `blocks` may read as written then.
    fn convert(
        &self,
        _inode: &Self::Inode,
        _blocks: &[Blocks],
        _reserves: Vec<Self::Reserve>,
    ) -> Result<(), Self::Error> {
        Err(no_allocation())
    }

    /// A write of `range` is about to extend the file. Makes sure that a crash before [`FileSystem::extend_end`] leaves
    /// no block behind the size on disk: by an orphan record, or because there is none to be left. Called with the gate
    /// held alone.
    fn extend_begin(&self, _inode: &Self::Inode, _range: Range) -> Result<Self::Extension, Self::Error> {
        Err(no_allocation())
    }

    /// An extending write has ended, complete or failed; the gate is still `held`. In one handle: converts as
    /// [`FileSystem::convert`], then sets the size here ([`InodeState::set_size`]) and on disk, and takes the orphan
    /// record off. After a failure, blocks that were allocated as written behind the size are freed: a later size would
    /// reach them.
    fn extend_end(
        &self,
        _inode: &Self::Inode,
        _held: &InodeGuard<'_>,
        _extension: Self::Extension,
        _outcome: Extended<'_, Self::Reserve>,
    ) -> Result<(), Self::Error> {
        Err(no_allocation())
    }
}

fn no_allocation<E: From<Error>>() -> E {
    Error::BadMode("changes of its map").into()
}

/// Blocks of a file, or of a device: the first, and the first behind.
pub type Blocks = std::ops::Range<u64>;

/// An inode whose changes are to become durable.
#[derive(Debug)]
pub struct Synced<'a, F: FileSystem> {
    /// The inode.
    pub inode: &'a F::Inode,
    /// Every change of it, not only those of extents and size.
    pub all: bool,
}

/// How an extending write ended.
#[derive(Debug)]
pub enum Extended<'a, R> {
    /// Its data is complete.
    Complete {
        /// The new size in bytes, here and on disk.
        size: u64,
        /// To be converted, as for [`FileSystem::convert`].
        blocks: &'a [Blocks],
        /// Taken for it.
        reserves: Vec<R>,
    },
    /// It failed.
    Failed,
}

/// Something that counts: a queue's own line, or the calling thread's.
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
    /// I/O priority of its data requests; that of the queue, or of the calling thread, unless set.
    pub priority: Priority,
    all_on: bool,
}

impl<F: FileSystem> Clone for OpenFile<F> {
    fn clone(&self) -> Self {
        OpenFile { inode: self.inode.clone(), ..*self }
    }
}

impl<F: FileSystem> OpenFile<F> {
    /// Opens `inode` for the engine. What may be read and written is the file system's decision.
    pub fn new(inode: Arc<F::Inode>, readable: bool, writable: bool, switches: Switches) -> Self {
        let priority = Priority::OF_THREAD;
        OpenFile { inode, readable, writable, switches, priority, all_on: switches == Switches::ON }
    }

    /// The same file whose data requests have this priority.
    #[must_use]
    pub fn with_priority(self, priority: Priority) -> Self {
        let all_on = self.switches == Switches::ON && priority.is_of_thread();
        OpenFile { priority, all_on, ..self }
    }

    /// Whether every switch is on, and the file has no priority of its own.
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
