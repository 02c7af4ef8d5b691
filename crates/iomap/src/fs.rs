//! The seam to a file system: the engine asks, the file system answers with plain values.

use crate::counters::{Counter, CounterLine, Counters};
use crate::error::Error;
use crate::inode::InodeState;
use crate::snapshot::MapSnapshot;
use crate::switches::{Routing, Switches};
use std::sync::Arc;

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

    /// Loads the mapping around byte `pos` of the file, publishes it, and returns a snapshot that knows `pos`, so
    /// that whoever asked gets on even if another thread makes the published one forget it at once.
    fn load_map(&self, inode: &Self::Inode, pos: u64) -> Result<Arc<MapSnapshot>, Self::Error>;

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

    /// Makes extent and size changes of these inodes durable (`all`: every change of theirs), committing if
    /// needed. Returns whether it flushed the device's cache after their data was complete.
    fn commit(&self, inodes: &[&Self::Inode], all: bool) -> Result<bool, Self::Error>;
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
        OpenFile { inode, readable, writable, switches, all_on: switches == Switches::ON }
    }

    /// Whether every switch is on.
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
