//! What the engine keeps of one inode: gate, size, mapping, durability state.

use crate::error::Error;
use crate::gate::{InodeGate, InodeGuard};
use crate::mapping::{MapKind, Range, Run};
use crate::pages::{PageCache, Totals};
use crate::plan::{DiskSize, View};
use crate::snapshot::{MapCell, MapWriter};
use crate::sync::{AtomicU64, Ordering};
use std::ops::Range as Blocks;
use std::sync::atomic::{AtomicU8, AtomicUsize};
use std::sync::{Arc, OnceLock};

/// The engine's half of an in-memory inode. The file system embeds it in its inode and fills it at load time.
///
/// Fields that every request reads share the first cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct InodeState {
    size: AtomicU64,
    /// The size for requests that look at nothing else: 0 while the file has pages.
    reach: AtomicU64,
    /// [`DiskSize`].
    disk_size: AtomicU64,
    datasync_tid: AtomicU64,
    /// Counts changes of the three above.
    changes: AtomicU64,
    block_bits: u32,
    /// [`MapKind`].
    kind: AtomicU8,
    /// Shared for direct I/O, exclusive for structural changes.
    pub gate: InodeGate,
    /// The published mapping.
    pub map: MapCell,
    sync_tid: AtomicU64,
    /// The last committed transaction of the volume.
    committed: Arc<AtomicU64>,
    /// Bytes of the file in memory, from its first buffered request on.
    pages: OnceLock<Arc<PageCache>>,
    /// Whose appends are in flight: the address of the cell of an attached file, 0 if there are none.
    appender: AtomicUsize,
}

impl InodeState {
    /// A freshly loaded inode of `size` bytes with file-system blocks of `1 << block_bits` bytes. `committed` is the
    /// number of the volume's last committed transaction: it only grows, and is stored with release ordering once all
    /// changes of that transaction are durable.
    pub fn new(size: u64, block_bits: u32, committed: Arc<AtomicU64>) -> Self {
        InodeState {
            gate: InodeGate::new(),
            map: MapCell::new(),
            size: AtomicU64::new(size),
            reach: AtomicU64::new(size),
            disk_size: AtomicU64::new(DiskSize::new(size, false).to_bits()),
            datasync_tid: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            block_bits,
            sync_tid: AtomicU64::new(0),
            committed,
            kind: AtomicU8::new(MapKind::Extents as u8),
            pages: OnceLock::new(),
            appender: AtomicUsize::new(0),
        }
    }

    /// The same inode with a map of this kind.
    #[must_use]
    pub fn with_kind(self, kind: MapKind) -> Self {
        InodeState { kind: AtomicU8::new(kind as u8), ..self }
    }

    /// The kind of the inode's map. It only changes from [`MapKind::Inline`] to another one, and to and from
    /// [`MapKind::Journaled`], inside the exclusive gate.
    #[inline]
    pub fn kind(&self) -> MapKind {
        MapKind::of(self.kind.load(Ordering::Acquire))
    }

    /// The contents have left the inode: sets the kind of the map that they have now. Hold the gate exclusively, and
    /// publish the map first.
    pub fn set_kind(&self, kind: MapKind) {
        self.kind.store(kind as u8, Ordering::Release);
        self.changed();
    }

    /// Sets the size that users see and that of the on-disk inode, both in bytes. Hold the gate exclusively, or end an
    /// append in flight ([`FileSystem::append_end`](crate::FileSystem::append_end)), which only grows it. Set the
    /// datasync tid first ([`InodeState::set_datasync_tid`]), and grow only over bytes that are safe to read.
    pub fn set_size(&self, size: u64, disk_size: u64) {
        self.size.store(size, Ordering::Release);
        self.reach.store(if self.is_cached() { 0 } else { size }, Ordering::Release);
        self.change_disk_size(|before| before.with_bytes(disk_size));
    }

    /// Sets whether the next write must clear privileges: set-user-id, set-group-id, capabilities. Any change that adds
    /// privileges, or finds some, sets the flag at any time. Only the change that clears the privileges clears this
    /// flag, with all other changes of them locked out.
    pub fn set_privileged(&self, privileged: bool) {
        self.change_disk_size(|before| before.with_privileged(privileged));
    }

    /// Sets whether every write is durable when it completes, as with `DSYNC`: from now on, however the file was
    /// opened.
    pub fn set_syncs(&self, syncs: bool) {
        if self.syncs() != syncs {
            self.change_disk_size(|before| before.with_syncs(syncs));
        }
    }

    /// Whether every write is durable when it completes.
    pub fn syncs(&self) -> bool {
        DiskSize::from_bits(self.disk_size.load(Ordering::Acquire)).syncs()
    }

    /// Whether the next write must clear privileges.
    pub fn is_privileged(&self) -> bool {
        DiskSize::from_bits(self.disk_size.load(Ordering::Acquire)).is_privileged()
    }

    fn change_disk_size(&self, change: impl Fn(DiskSize) -> DiskSize) {
        let update = |bits| Some(change(DiskSize::from_bits(bits)).to_bits());
        let _always = self.disk_size.fetch_update(Ordering::AcqRel, Ordering::Acquire, update);
        self.changed();
    }

    /// Size in bytes of what direct requests see: the user's, unless buffered writes have gone past it
    /// ([`InodeState::visible_size`]).
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Size in bytes that users see: with the bytes of buffered writes that are in memory only.
    pub fn visible_size(&self) -> u64 {
        // The end of the pages is loaded first: it is lowered only after the size has grown over it.
        let end = self.pages.get().map_or(0, |pages| pages.end());
        end.max(self.size())
    }

    /// The size for requests that take a short path: 0 while the file has pages, so that none of them does.
    #[inline(always)]
    pub(crate) fn reach(&self) -> u64 {
        self.reach.load(Ordering::Acquire)
    }

    /// Whether the file has pages, or may have: direct requests have to look at them.
    #[inline]
    pub fn is_cached(&self) -> bool {
        DiskSize::from_bits(self.disk_size.load(Ordering::Acquire)).is_cached()
    }

    /// Sets whether the file has pages. The caller holds the lock of the pages for changes, and the gate exclusively:
    /// drained, if it sets the mark, so that no direct request that did not see it is left.
    pub(crate) fn set_cached(&self, cached: bool) {
        self.change_disk_size(|before| before.with_cached(cached));
        self.reach.store(if cached { 0 } else { self.size() }, Ordering::Release);
    }

    /// Whose appends are in flight, 0 if there are none. They move the size without the gate: who holds the gate
    /// exclusively and depends on the size drains them first.
    #[inline]
    pub(crate) fn appender(&self) -> usize {
        self.appender.load(Ordering::Acquire)
    }

    /// Says whose appends are in flight. The caller holds the gate exclusively, and nobody else has some.
    pub(crate) fn set_appender(&self, appender: usize) {
        self.appender.store(appender, Ordering::Release);
    }

    /// The last append of this one has ended, and is in flight for a moment yet.
    pub(crate) fn clear_appender(&self, appender: usize) {
        let _another = self.appender.compare_exchange(appender, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The pages, if there was a buffered request.
    pub(crate) fn pages(&self) -> Option<&Arc<PageCache>> {
        self.pages.get()
    }

    /// The pages, made at the first call. Their memory counts in `totals`.
    pub(crate) fn make_pages(&self, totals: &Arc<Totals>) -> &Arc<PageCache> {
        let unit = 1usize << self.block_bits;
        self.pages.get_or_init(|| Arc::new(PageCache::new(unit, totals.clone())))
    }

    /// log2 of the file-system block size.
    #[inline]
    pub fn block_bits(&self) -> u32 {
        self.block_bits
    }

    /// The transaction that must be committed before the inode's extents and size are durable; `None` if they are. Time
    /// stamps never count. An inode with such a transaction is *datasync-dirty*.
    ///
    /// Load the mapping first. A conversion stores the number before it publishes the block (release), and loading the
    /// mapping acquires it, so this covers every written block of that mapping that is not durable yet. The last
    /// committed transaction is loaded last and only grows: an old value makes a clean inode look dirty, never a dirty
    /// one clean. A decision for a dirty inode is not kept (`queue/window.rs`), so the next one sees that it is clean
    /// again.
    #[inline]
    pub fn datasync_tid(&self) -> Option<u64> {
        self.uncommitted(&self.datasync_tid)
    }

    /// The same for every change of the inode: what `fsync` waits for.
    pub fn sync_tid(&self) -> Option<u64> {
        self.uncommitted(&self.sync_tid)
    }

    #[inline]
    fn uncommitted(&self, tid: &AtomicU64) -> Option<u64> {
        let tid = tid.load(Ordering::Acquire);
        // Most were never changed: one load.
        (tid != 0 && tid > self.committed.load(Ordering::Acquire)).then_some(tid)
    }

    /// Marks the inode datasync-dirty in transaction `tid` (never 0). Call it in the step that changes extents or size,
    /// inside the transaction's handle, and **before** the changed map is published: a reader that sees a converted
    /// extent must also see that its conversion is not durable yet, or an `O_DSYNC` write over it would rely on FUA
    /// alone.
    pub fn set_datasync_tid(&self, tid: u64) {
        self.set_sync_tid(tid);
        self.datasync_tid.fetch_max(tid, Ordering::AcqRel);
        self.changed();
    }

    /// Marks the inode as changed in transaction `tid` (never 0) in fields that are not needed to read its data back:
    /// owner, mode, links, attributes. Call inside the transaction's handle.
    pub fn set_sync_tid(&self, tid: u64) {
        self.sync_tid.fetch_max(tid, Ordering::AcqRel);
    }

    /// Call right after changing anything that [`InodeState::view`] reads.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// A counter that changes with everything that [`InodeState::view`] reads. A decision based on a view loaded after
    /// the counter holds while the counter stays the same.
    #[doc(hidden)]
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The device position of `range`, if it lies in one written run: first the runs that this thread kept, then the
    /// snapshot. No shared cache line is written while the snapshot has the answer.
    #[inline(always)]
    pub(crate) fn find_written(&self, guard: &InodeGuard<'_>, range: Range) -> Option<u64> {
        let generation = self.map.generation();
        match guard.last_run(generation, range) {
            Some(physical) => Some(physical),
            None => self.search_written(guard, generation, range),
        }
    }

    #[inline(never)]
    fn search_written(&self, guard: &InodeGuard<'_>, generation: u64, range: Range) -> Option<u64> {
        // A written run stays valid for the whole generation, whatever else is loaded in between.
        self.map.find_written(range, self.block_bits, |run| guard.keep_run(generation, range.pos, run))
    }

    /// Publishes that `blocks`, in ascending order, each range converted by the file system, are no longer unwritten.
    /// Call it in the step that converts them in transaction `tid`, before their requests complete and leave flight.
    /// `map` is this inode's map lock, held since before the file system looked at what it converts.
    ///
    /// One change for all of them, about 0.3 µs each whatever the file's size. The inode is marked datasync-dirty first
    /// ([`InodeState::set_datasync_tid`]). Refuses holes, with nothing published.
    pub fn converted(&self, map: &mut MapWriter<'_>, tid: u64, blocks: &[Blocks<u64>]) -> Result<(), Error> {
        debug_assert!(map.is_of(&self.map));
        self.set_datasync_tid(tid);
        map.converted_unchecked(blocks)
    }

    /// Publishes that the blocks `[first, end)` are as `runs` say (`None`: unknown), whatever they were: for every
    /// change that removes or moves written blocks. Call it with the gate held exclusively and drained (`held`), after
    /// [`InodeState::set_datasync_tid`] and before any block is freed. Otherwise it fails and publishes nothing.
    ///
    /// Costs a pass over the map if many runs end: milliseconds for 10⁶ extents. Else look-ups cause it, once there are
    /// some.
    pub fn end(
        &self,
        held: &InodeGuard<'_>,
        map: &mut MapWriter<'_>,
        first: u64,
        end: u64,
        runs: Option<&[Run]>,
    ) -> Result<(), Error> {
        debug_assert!(map.is_of(&self.map));
        if !held.is_exclusive() || !held.is_of(&self.gate) {
            return Err(Error::NotExclusive);
        }
        map.end_unchecked(first, end, runs);
        Ok(())
    }

    /// Bytes of heap memory: mapping, gate, and what pages need beside their bytes, which are counted apart
    /// ([`Engine::page_bytes`](crate::Engine::page_bytes)).
    pub fn heap_bytes(&self) -> usize {
        let pages = self.pages.get().map_or(0, |_| size_of::<PageCache>());
        self.map.resident_bytes() + self.gate.allocated_bytes() + pages
    }

    /// What a plan needs to know.
    #[inline]
    pub fn view(&self) -> View {
        View {
            size: self.size(),
            disk_size: DiskSize::from_bits(self.disk_size.load(Ordering::Acquire)),
            block_bits: self.block_bits,
            datasync_dirty: self.datasync_tid().is_some(),
            kind: self.kind(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mapping::State;

    #[test]
    fn an_inode_is_dirty_until_its_transaction_is_committed() {
        let committed = Arc::new(AtomicU64::new(6));
        let file = InodeState::new(1 << 20, 12, committed.clone());
        assert_eq!((file.datasync_tid(), file.sync_tid()), (None, None));
        file.set_sync_tid(7);
        assert_eq!((file.datasync_tid(), file.sync_tid()), (None, Some(7)), "an attribute is no data");
        file.set_datasync_tid(8);
        file.set_datasync_tid(7);
        assert_eq!((file.datasync_tid(), file.sync_tid()), (Some(8), Some(8)));
        for (last, dirty) in [(7, true), (8, false), (9, false)] {
            committed.store(last, Ordering::Release);
            assert_eq!(file.view().datasync_dirty, dirty, "committed up to {last}");
            assert_eq!(file.sync_tid().is_some(), dirty, "committed up to {last}");
        }
        // Sequence numbers wrap, transactions do not.
        committed.store(u64::from(u32::MAX), Ordering::Release);
        file.set_datasync_tid(1 << 32);
        assert!(file.view().datasync_dirty);
    }

    #[test]
    fn what_a_view_shows_is_told_when_it_changes() {
        let file = InodeState::new(1 << 20, 12, Arc::default());
        let (changes, view) = (file.changes(), file.view());
        assert!(!view.datasync_dirty && file.changes() == changes);
        file.set_datasync_tid(7);
        assert!(file.view().datasync_dirty && file.changes() != changes);
        let changes = file.changes();
        file.set_size(5000, 4096);
        assert!(
            (file.view().size, file.view().disk_size.bytes()) == (5000, 4096) && file.changes() != changes
        );
        let changes = file.changes();
        file.set_privileged(true);
        assert!(file.is_privileged() && file.changes() != changes);
        file.set_size(6000, 5000);
        let disk_size = file.view().disk_size;
        assert_eq!((disk_size.bytes(), disk_size.is_privileged(), disk_size.plain()), (5000, true, 0));
        let changes = file.changes();
        file.set_syncs(true);
        assert!(file.syncs() && file.is_privileged() && file.changes() != changes);
        file.set_size(7000, 6000);
        file.set_privileged(false);
        let disk_size = file.view().disk_size;
        assert_eq!((disk_size.bytes(), disk_size.is_privileged(), disk_size.plain()), (6000, false, 0));
        assert!(file.syncs());
        file.set_syncs(false);
        assert_eq!(file.view().disk_size, DiskSize::new(6000, false));
    }

    /// More files than a thread keeps snapshots of, each asked in turn for its last block: some snapshots are borrowed
    /// each time, and the run is kept all the same.
    #[test]
    fn the_run_of_every_file_is_kept_however_it_was_found() {
        let files: Vec<InodeState> = (0..8).map(|_| InodeState::new(1 << 20, 12, Arc::default())).collect();
        for file in &files {
            let runs = [Run { first: 0, length: 256, state: State::Written, physical: 1000 }];
            file.map.lock().add(0, 256, &runs).unwrap();
        }
        let last = Range { pos: 255 * 4096, length: 4096 };
        for round in 0..3 {
            for file in &files {
                let guard = file.gate.lock_shared(true, &mut || ());
                let kept = guard.last_run(file.map.generation(), last);
                assert_eq!(kept, (round > 0).then_some(1255 * 4096), "round {round}");
                assert_eq!(file.find_written(&guard, last), Some(1255 * 4096));
            }
        }
    }
}
