//! The file system as seen by the direct-I/O engine.

mod hooks;

use crate::alloc::shared::{FreeSpace, Promise, Reserved};
use crate::change::Files;
use crate::change::append::Appending;
use crate::change::orphans::Orphans;
use crate::change::queued::Queued;
use crate::change::swap::Swap;
use crate::ground::error::{Error, Result};
use crate::inline;
use crate::inode::Ext4State;
use crate::inode::Inode;
use crate::map;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4_iomap::gate::InodeGuard;
use uext4_iomap::snapshot::MapWriter;
use uext4_iomap::switches::Routing;
use uext4_iomap::{
    Appended, Blocks, Count, Extended, FileSystem, InodeState, MapKind, MapSnapshot, Piece, Range, Synced,
};
use uext4_ondisk::{Group, Pblk};

/// The file-system side of an open volume.
pub struct Ext4 {
    pub(crate) state: Ext4State,
    space: Arc<FreeSpace>,
    pub(crate) orphans: Orphans,
    aborted: AtomicBool,
    cause: OnceLock<Arc<str>>,
}

impl Ext4 {
    pub(crate) fn new(state: Ext4State) -> Arc<Self> {
        let space = FreeSpace::new(&state);
        let (orphans, aborted) = (Orphans::default(), AtomicBool::new(false));
        let fs = Arc::new(Ext4 { state, space, orphans, aborted, cause: OnceLock::new() });
        hooks::connect(&fs);
        fs
    }

    /// Changes of its files.
    pub(crate) fn files(&self) -> Files<'_> {
        Files { state: &self.state, space: &self.space, orphans: &self.orphans }
    }

    /// Releases the blocks that files have claimed for their next appends.
    pub(crate) fn close_windows(&self) {
        self.space.close_windows();
    }

    /// Clusters promised to pages that are not home yet.
    pub(crate) fn late_clusters(&self) -> u64 {
        self.space.late_clusters()
    }

    /// What is reserved in memory.
    pub(crate) fn reserved(&self) -> Reserved {
        self.space.reserved()
    }

    /// Discards the free blocks of a group: see [`FreeSpace::trim_group`].
    pub(crate) fn trim_group(&self, group: Group, range: &Blocks, minimum: u64) -> Result<u64> {
        self.space.trim_group(&self.state, group, range, minimum)
    }

    /// From now on nothing is written, and nothing becomes durable. Keeps the first cause, which explains later ones.
    fn note_abort(&self, cause: &str) {
        let _first_wins = self.cause.set(cause.into());
        self.aborted.store(true, Ordering::SeqCst);
    }

    /// The device belongs to somebody else from now on: an abort that writes nothing, not even its cause.
    pub(crate) fn abandon(&self, cause: &str) {
        self.note_abort(cause);
        self.state.abandon(uext4_jbd2::AbortCause { what: cause.to_owned().into(), errno: libc::EBUSY });
    }

    /// File-system block size in bytes.
    pub(crate) fn block_size(&self) -> u64 {
        u64::from(self.state.cache.block_size())
    }

    #[cold]
    fn abort_error(&self) -> Error {
        Error::Aborted(self.cause.get().cloned().unwrap_or_else(|| "an earlier failure".into()))
    }
}

/// How an extending write gets its missing blocks.
pub enum Extension {
    /// They are claimed: mapped when their data is complete.
    Claimed(Appending),
    /// They are allocated before the data is sent.
    Holes {
        /// The holes past the size that the write may fill. A failed write frees their blocks again.
        holes: Vec<Blocks>,
        /// Whether the file is an orphan meanwhile. New blocks of an extent tree are unwritten, so nothing must be cut
        /// after a crash; those of a map of pointers are data.
        orphaned: bool,
    },
}

impl FileSystem for Ext4 {
    type Inode = Inode;
    type Error = Error;

    #[inline]
    fn state(inode: &Inode) -> &InodeState {
        &inode.state
    }

    #[inline(always)]
    fn check_alive(&self) -> Result<()> {
        if self.aborted.load(Ordering::Relaxed) { Err(self.abort_error()) } else { Ok(()) }
    }

    fn abort(&self, cause: uext4_iomap::Error) {
        let what = cause.to_string();
        self.note_abort(&what);
        self.state.abort(uext4_jbd2::AbortCause { what: what.into(), errno: cause.errno() });
    }

    fn accessed(&self, inode: &Inode) {
        inode.note_access(&self.state);
    }

    fn map(&self, inode: &Inode, pos: u64) -> Result<Arc<MapSnapshot>> {
        map::load(&self.state, inode, pos)
    }

    fn inline_piece(&self, inode: &Inode) -> Result<Piece> {
        inline::piece(&self.state, inode)
    }

    fn read_inline(&self, inode: &Inode, buf: &mut [u8], pos: u64) -> Result<()> {
        if inode.state.kind() == MapKind::Journaled {
            return self.files().read_journaled(inode, buf, pos);
        }
        inline::read(&self.state, inode, buf, pos)
    }

    fn write_inline(&self, inode: &Inode, held: &InodeGuard<'_>, pos: u64, data: &[&[u8]]) -> Result<bool> {
        if inode.state.kind() == MapKind::Journaled {
            return self.files().write_journaled(inode, held, pos, data).map(|()| true);
        }
        self.files().write_inline(inode, held, pos, data)
    }

    fn check_allocates(&self, inode: &Inode, needs: uext4_iomap::Error) -> Result<()> {
        // If the volume or the map cannot change, refuse with what the write would have needed, and the reason.
        if let Err(refused) = self.files().check_allocates(inode) {
            return Err(Error::needs_allocation(needs, &refused));
        }
        match needs {
            uext4_iomap::Error::NeedsAllocation { pos, length, extends: true, .. } => {
                self.files().check_size(inode, pos.saturating_add(length))
            }
            _ => Ok(()),
        }
    }

    fn has_journal(&self) -> bool {
        self.state.superblock.has_journal()
    }

    type Handle<'a> = uext4_jbd2::Handle<'a>;

    #[inline(always)]
    fn start_mapping<R: Routing>(
        &self,
        routing: R,
        counters: &impl Count,
    ) -> Result<Option<Self::Handle<'_>>> {
        map::overwrite::start(self.state.journal.as_ref(), routing, counters)
    }

    fn stop_mapping(&self, handle: Self::Handle<'_>) -> Result<()> {
        let (tid, credits) = (handle.tid(), handle.credits());
        let stopped = handle.stop();
        if let Some(trace) = &self.state.trace {
            trace.watch("map", credits).end(tid, Some(credits));
        }
        Ok(stopped?)
    }

    fn check_privileges(&self, inode: &Inode) -> Result<()> {
        self.files().check_privileges(inode)
    }

    fn drop_privileges(&self, inode: &Inode, _held: &InodeGuard<'_>) -> Result<()> {
        self.files().drop_privileges(inode)
    }

    fn promise(&self, inode: &Inode, blocks: u64) -> Result<()> {
        self.files().promise_late(inode, blocks)
    }

    fn go_home(&self, inode: &Inode, begins: bool) {
        self.space.go_home(inode.ino(), begins);
    }

    fn end_promise(&self, inode: &Inode) {
        self.space.end_late(inode.ino());
    }

    fn is_gone(&self, inode: &Inode) -> bool {
        inode.is_gone()
    }

    type Reserve = Promise;
    type Extension = Extension;
    type Append = Queued;

    fn allocate(&self, inode: &Inode, blocks: Blocks) -> Result<()> {
        self.files().allocate(inode, blocks)
    }

    fn claim(&self, inode: &Inode, blocks: &Blocks) -> Result<bool> {
        self.files().claim_holes(inode, blocks)
    }

    #[inline]
    fn unclaim(inode: &Inode, map: &mut MapWriter<'_>, blocks: &Blocks) {
        inode.claims.release(map, blocks);
    }

    fn reserve(&self, inode: &Inode, blocks: Blocks) -> Result<Promise> {
        self.files().promise(inode, blocks)
    }

    fn try_reserve(&self, inode: &Inode, blocks: Blocks) -> Result<Option<Promise>> {
        Ok(self.files().try_promise(inode, blocks))
    }

    fn convert(&self, inode: &Inode, blocks: &[Blocks], _promises: Vec<Promise>) -> Result<()> {
        self.files().convert(inode, blocks)
    }

    type Swap = Swap;

    fn swap_begin(&self, inode: &Inode, blocks: Blocks) -> Result<Swap> {
        self.files().swap_begin(inode, blocks)
    }

    fn swap_places(&self, swap: &Swap) -> Vec<Range> {
        let block = self.block_size();
        let bytes = |(first, count): (Pblk, u64)| Range { pos: first.get() * block, length: count * block };
        swap.places().map(bytes).collect()
    }

    fn swap_end(&self, inode: &Inode, held: &InodeGuard<'_>, swap: Swap, size: Option<u64>) -> Result<()> {
        self.files().swap_end(inode, held, swap, size)
    }

    fn extend_begin(&self, inode: &Inode, range: Range) -> Result<Extension> {
        let block = self.block_size();
        let behind = inode.state.size().div_ceil(block).max(range.pos / block);
        let blocks = behind..range.end().div_ceil(block);
        if let Some(claimed) = self.files().claim(inode, range.pos / block, blocks.clone())? {
            return Ok(Extension::Claimed(claimed));
        }
        let holes = self.files().holes(inode, blocks)?;
        let orphaned = !inode.disk().uses_extents() && !holes.is_empty();
        if orphaned {
            self.files().begin_growth(inode)?;
        }
        Ok(Extension::Holes { holes, orphaned })
    }

    fn extend_end(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        extension: Extension,
        outcome: Extended<'_, Promise>,
    ) -> Result<()> {
        let (holes, orphaned) = match extension {
            Extension::Claimed(claimed) => {
                return match outcome {
                    Extended::Complete { size, blocks, reserves: _promises } => {
                        self.files().append(inode, held, claimed, blocks, size)
                    }
                    Extended::Failed => self.files().drop_claim(inode, held, claimed),
                };
            }
            Extension::Holes { holes, orphaned } => (holes, orphaned),
        };
        match outcome {
            Extended::Complete { size, .. } if orphaned => self.files().end_growth(inode, Some(size)),
            Extended::Complete { size, blocks, reserves: _promises } => {
                self.files().extend(inode, blocks, size)
            }
            Extended::Failed => {
                let mut given_back = holes.into_iter().rev();
                given_back.try_for_each(|hole| self.files().remove(inode, held, hole, None))?;
                if orphaned { self.files().end_growth(inode, None) } else { Ok(()) }
            }
        }
    }

    fn queues_appends(&self, inode: &Inode, blocks: Blocks) -> bool {
        self.files().can_claim(inode, &blocks)
    }

    fn append_begin(&self, inode: &Inode, blocks: Blocks, after: Option<u64>) -> Result<Option<Queued>> {
        self.files().queue_append(inode, blocks, after.map(|byte| Pblk(byte / self.block_size())))
    }

    fn append_places(&self, append: &Queued) -> Vec<Range> {
        let block = self.block_size();
        append.runs().map(|run| Range { pos: run.first.get() * block, length: run.count * block }).collect()
    }

    fn append_end(
        &self,
        inode: &Inode,
        appends: Vec<Appended<Self>>,
        blocks: &[Blocks],
        _promises: Vec<Promise>,
    ) -> Result<()> {
        let appends = appends.into_iter().map(|append| (append.claim, append.end)).collect();
        self.files().end_appends(inode, appends, blocks)
    }

    fn datasync(&self, batch: &[Synced<'_, Self>]) -> Result<bool> {
        let inodes = batch.iter().filter(|synced| synced.all).map(|synced| synced.inode);
        inodes.into_iter().try_for_each(|inode| self.files().write_times(inode))?;
        let tid = |synced: &Synced<'_, Self>| {
            let inode = &synced.inode.state;
            if synced.all { inode.sync_tid() } else { inode.datasync_tid() }
        };
        // A commit of the newest transaction covers the older ones.
        match batch.iter().filter_map(tid).max() {
            Some(tid) => self.state.datasync(uext4_jbd2::Tid(tid)),
            None => Ok(false),
        }
    }
}
