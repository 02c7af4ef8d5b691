//! What the engine keeps of one inode: gate, size, mapping, durability state.

use crate::gate::{InodeGate, InodeGuard};
use crate::mapping::Range;
use crate::plan::View;
use crate::snapshot::MapCell;
use crate::sync::{AtomicU64, Ordering};

/// The engine's half of an in-memory inode. The file system embeds it and fills it when the inode is loaded.
///
/// What every request reads lies together in the first lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct InodeState {
    size: AtomicU64,
    disk_size: AtomicU64,
    datasync_tid: AtomicU64,
    /// Counts changes of the three above.
    changes: AtomicU64,
    block_bits: u32,
    /// Shared for direct I/O, exclusive for structural changes.
    pub gate: InodeGate,
    /// The published mapping.
    pub map: MapCell,
}

impl InodeState {
    /// A freshly loaded inode of `size` bytes with file-system blocks of `1 << block_bits` bytes.
    pub fn new(size: u64, block_bits: u32) -> Self {
        InodeState {
            gate: InodeGate::new(),
            map: MapCell::new(),
            size: AtomicU64::new(size),
            disk_size: AtomicU64::new(size),
            datasync_tid: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            block_bits,
        }
    }

    /// Size in bytes that users see.
    #[inline]
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// log2 of the file-system block size.
    #[inline]
    pub fn block_bits(&self) -> u32 {
        self.block_bits
    }

    /// The transaction whose commit makes extent and size changes durable; 0 if the inode is not
    /// datasync-dirty. Time stamps never count.
    pub fn datasync_tid(&self) -> u64 {
        self.datasync_tid.load(Ordering::Acquire)
    }

    /// Marks the inode datasync-dirty in transaction `tid` (never 0), in the step that changes extents or
    /// size, and **before** the changed map is published: whoever sees a converted extent must also see that its
    /// conversion is not durable yet, or an `O_DSYNC` write over it would take FUA for enough.
    pub fn set_datasync_tid(&self, tid: u64) {
        self.datasync_tid.fetch_max(tid, Ordering::AcqRel);
        self.changed();
    }

    /// Whoever changes what [`InodeState::view`] shows calls this right after.
    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Changes with everything that [`InodeState::view`] shows. What was derived from a view loaded later than this
    /// holds as long as it stays.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The device position of `range`, if it lies in one written run: first the run that this thread kept
    /// last, then the snapshot. Nothing shared is written ([`MapCell::with`] tells the exceptions).
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
        // A run is a fact of the mapping: if the map was extended meanwhile, the generation says so at the
        // next look.
        let keep = move |run| guard.keep_run(generation, range.pos, run);
        match self.map.with_kept(|map| map.find_written_keeping(range, self.block_bits, keep)) {
            Some(found) => found,
            None => self.search_borrowed(guard, generation, range),
        }
    }

    #[cold]
    #[inline(never)]
    fn search_borrowed(&self, guard: &InodeGuard<'_>, generation: u64, range: Range) -> Option<u64> {
        let keep = |run| guard.keep_run(generation, range.pos, run);
        self.map.with_borrowed(|map| map.find_written_keeping(range, self.block_bits, keep))
    }

    /// What a decision needs to know.
    #[inline]
    pub fn view(&self) -> View {
        View {
            size: self.size(),
            disk_size: self.disk_size.load(Ordering::Acquire),
            block_bits: self.block_bits,
            datasync_dirty: self.datasync_tid.load(Ordering::Acquire) != 0,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::mapping::{Run, State};

    #[test]
    fn what_a_view_shows_is_told_when_it_changes() {
        let file = InodeState::new(1 << 20, 12);
        let (changes, view) = (file.changes(), file.view());
        assert!(!view.datasync_dirty && file.changes() == changes);
        file.set_datasync_tid(7);
        assert!(file.view().datasync_dirty && file.changes() != changes);
    }

    /// More files than a thread keeps snapshots of, asked in turn for their last block: some are borrowed each time,
    /// and the run is kept all the same.
    #[test]
    fn the_run_of_every_file_is_kept_however_it_was_found() {
        let files: Vec<InodeState> = (0..8).map(|_| InodeState::new(1 << 20, 12)).collect();
        for file in &files {
            let runs = [Run { first: 0, length: 256, state: State::Written, physical: 1000 }];
            let mut writer = file.map.lock();
            let next = writer.current().replaced(0, 256, Some(&runs));
            writer.publish(next);
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
