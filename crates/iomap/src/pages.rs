//! Pages: bytes of a file in memory, for buffered requests.
//!
//! A page is one file-system block. [`PageMap`] holds those of a file, sorted, in chunks of [`CHUNK`] pages; each page
//! is clean (as on the device), dirty (newer) or sent (a copy of it is on its way home; it may get dirty again
//! meanwhile). Nothing here reads, writes or waits: `buffered.rs` serves requests from the pages, `homeward.rs` sends
//! dirty ones home, `write_back.rs` says when and keeps direct requests coherent.

use parking_lot::{Mutex, RwLock};
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Pages of a chunk: one bit each in its masks.
const CHUNK: u64 = 64;
/// Longest read-ahead in bytes.
const AHEAD_MAX: u64 = 1 << 20;

/// Memory of all pages of a volume, in bytes.
#[derive(Debug)]
pub(crate) struct Totals {
    /// Most bytes; 0: no pages at all.
    pub(crate) budget: u64,
    used: AtomicU64,
    dirty: AtomicU64,
}

impl Totals {
    /// Nothing used yet.
    pub(crate) fn new(budget: u64) -> Totals {
        Totals { budget, used: AtomicU64::new(0), dirty: AtomicU64::new(0) }
    }

    /// Bytes in pages.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes in pages that are dirty or sent.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Whether `more` bytes exceed the budget.
    pub(crate) fn is_full_for(&self, more: u64) -> bool {
        self.used().saturating_add(more) > self.budget
    }
}

struct Chunk {
    pages: [Option<Box<[u8]>>; CHUNK as usize],
    dirty: u64,
    sent: u64,
    /// Pages used since the eviction last came by.
    used: AtomicU64,
}

impl Chunk {
    fn new() -> Box<Chunk> {
        Box::new(Chunk {
            pages: [const { None }; CHUNK as usize],
            dirty: 0,
            sent: 0,
            used: AtomicU64::new(0),
        })
    }

    fn note_use(&self, bit: u64) {
        // Most pages are marked already: a load, so that readers do not share a line that is written.
        if self.used.load(Ordering::Relaxed) & bit == 0 {
            self.used.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn is_empty(&self) -> bool {
        self.pages.iter().all(Option::is_none)
    }
}

/// The pages of one file.
pub(crate) struct PageMap {
    unit: usize,
    chunks: BTreeMap<u64, Box<Chunk>>,
    pages: u64,
    dirty: u64,
    /// The chunk where the next eviction begins.
    hand: u64,
    /// Grows with every change of a byte of the file: what was read before may be old.
    pub(crate) version: u64,
    /// Blocks that were promised for pages and are not needed by a dirty one yet.
    pub(crate) spare: u64,
    totals: Arc<Totals>,
}

fn place(index: u64) -> (u64, usize, u64) {
    let inside = index % CHUNK;
    (index / CHUNK, inside as usize, 1 << inside)
}

impl PageMap {
    fn new(unit: usize, totals: Arc<Totals>) -> PageMap {
        PageMap { unit, chunks: BTreeMap::new(), pages: 0, dirty: 0, hand: 0, version: 0, spare: 0, totals }
    }

    /// Bytes of a page.
    pub(crate) fn unit(&self) -> u64 {
        self.unit as u64
    }

    /// The pages that bytes `pos..end` touch.
    pub(crate) fn touched(&self, pos: u64, end: u64) -> Range<u64> {
        pos / self.unit()..end.div_ceil(self.unit())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages == 0
    }

    pub(crate) fn has_dirty(&self) -> bool {
        self.dirty > 0
    }

    /// A page.
    pub(crate) fn get(&self, index: u64) -> Option<&[u8]> {
        let (chunk, inside, bit) = place(index);
        let chunk = self.chunks.get(&chunk)?;
        let page = chunk.pages[inside].as_deref()?;
        chunk.note_use(bit);
        Some(page)
    }

    pub(crate) fn has(&self, index: u64) -> bool {
        let (chunk, inside, _) = place(index);
        self.chunks.get(&chunk).is_some_and(|chunk| chunk.pages[inside].is_some())
    }

    fn is_dirty(&self, index: u64) -> bool {
        let (chunk, _, bit) = place(index);
        self.chunks.get(&chunk).is_some_and(|chunk| chunk.dirty & bit != 0)
    }

    /// Whether a page is dirty or sent: newer than the device may be, and its blocks are promised or allocated.
    pub(crate) fn is_newer(&self, index: u64) -> bool {
        let (chunk, _, bit) = place(index);
        self.chunks.get(&chunk).is_some_and(|chunk| (chunk.dirty | chunk.sent) & bit != 0)
    }

    /// Adds a clean page, unless there is one.
    pub(crate) fn keep(&mut self, index: u64, bytes: &[u8]) {
        let (number, inside, bit) = place(index);
        let chunk = self.chunks.entry(number).or_insert_with(Chunk::new);
        if chunk.pages[inside].is_none() {
            chunk.pages[inside] = Some(bytes.into());
            // Used once: it stays until the hand has come by.
            chunk.used.fetch_or(bit, Ordering::Relaxed);
            self.pages += 1;
            self.totals.used.fetch_add(self.unit as u64, Ordering::Relaxed);
        }
    }

    /// A page to write to: dirty from now on, of zeros if there was none.
    pub(crate) fn change(&mut self, index: u64) -> &mut [u8] {
        let (number, inside, bit) = place(index);
        let chunk = self.chunks.entry(number).or_insert_with(Chunk::new);
        chunk.note_use(bit);
        if chunk.dirty & bit == 0 {
            chunk.dirty |= bit;
            self.dirty += 1;
            if chunk.sent & bit == 0 {
                self.totals.dirty.fetch_add(self.unit as u64, Ordering::Relaxed);
            }
        }
        let unit = self.unit;
        let (pages, totals) = (&mut self.pages, &self.totals);
        chunk.pages[inside].get_or_insert_with(|| {
            *pages += 1;
            totals.used.fetch_add(unit as u64, Ordering::Relaxed);
            vec![0; unit].into()
        })
    }

    /// The first run of dirty pages in a range, at most `most` long.
    pub(crate) fn dirty_run(&self, range: Range<u64>, most: u64) -> Option<Range<u64>> {
        let first = self.first_dirty(range.clone())?;
        let mut end = first + 1;
        while end < range.end && end - first < most && self.is_dirty(end) {
            end += 1;
        }
        Some(first..end)
    }

    fn first_dirty(&self, range: Range<u64>) -> Option<u64> {
        if self.dirty == 0 || range.is_empty() {
            return None;
        }
        for (&number, chunk) in self.chunks.range(range.start / CHUNK..=(range.end - 1) / CHUNK) {
            let from = range.start.saturating_sub(number * CHUNK);
            let left = if from == 0 { chunk.dirty } else { chunk.dirty & (u64::MAX << from) };
            if left != 0 {
                let index = number * CHUNK + u64::from(left.trailing_zeros());
                return (index < range.end).then_some(index);
            }
        }
        None
    }

    /// Records that copies of these dirty pages are on their way home.
    pub(crate) fn send(&mut self, range: Range<u64>) {
        for index in range {
            let (number, _, bit) = place(index);
            if let Some(chunk) = self.chunks.get_mut(&number)
                && chunk.dirty & bit != 0
            {
                debug_assert!(chunk.sent & bit == 0, "one copy of a page at a time");
                chunk.dirty &= !bit;
                chunk.sent |= bit;
                self.dirty -= 1;
            }
        }
    }

    /// Records that pages sent have arrived, or have not: then they are dirty as before.
    pub(crate) fn arrive(&mut self, range: Range<u64>, home: bool) {
        for index in range {
            let (number, _, bit) = place(index);
            let Some(chunk) = self.chunks.get_mut(&number) else { continue };
            if chunk.sent & bit == 0 {
                continue;
            }
            chunk.sent &= !bit;
            if chunk.dirty & bit == 0 {
                if home {
                    self.totals.dirty.fetch_sub(self.unit as u64, Ordering::Relaxed);
                } else {
                    chunk.dirty |= bit;
                    self.dirty += 1;
                }
            }
        }
    }

    /// Drops pages, dirty or not. None is sent.
    pub(crate) fn drop_range(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let numbers = range.start / CHUNK..=(range.end - 1) / CHUNK;
        let touched: Vec<u64> = self.chunks.range(numbers).map(|(&number, _)| number).collect();
        for number in touched {
            let first = number * CHUNK;
            let (from, to) = (range.start.max(first), range.end.min(first + CHUNK));
            self.send(from..to);
            self.arrive(from..to, true);
            let Some(chunk) = self.chunks.get_mut(&number) else { continue };
            let dropped =
                (from..to).filter(|index| chunk.pages[(index - first) as usize].take().is_some()).count();
            self.pages -= dropped as u64;
            self.totals.used.fetch_sub((dropped * self.unit) as u64, Ordering::Relaxed);
            if chunk.is_empty() {
                self.chunks.remove(&number);
            }
        }
    }

    /// Drops all pages. None is sent.
    pub(crate) fn drop_all(&mut self) {
        debug_assert!(self.chunks.values().all(|chunk| chunk.sent == 0), "pages are on their way home");
        self.totals.used.fetch_sub(self.pages * self.unit as u64, Ordering::Relaxed);
        self.totals.dirty.fetch_sub(self.dirty * self.unit as u64, Ordering::Relaxed);
        (self.pages, self.dirty) = (0, 0);
        self.chunks.clear();
    }

    /// Drops clean pages, those first that were not used since the last time, until `bytes` are free or none is left.
    /// Returns the number of pages dropped.
    pub(crate) fn evict(&mut self, bytes: u64) -> u64 {
        let wanted = bytes.div_ceil(self.unit());
        let mut dropped = 0;
        // The first round takes the marks away, so the second one finds every clean page.
        for _ in 0..2 {
            if dropped < wanted {
                dropped += self.sweep(wanted - dropped);
            }
        }
        dropped
    }

    /// One round of the hand.
    fn sweep(&mut self, wanted: u64) -> u64 {
        let behind = self.chunks.range(self.hand..).map(|(&number, _)| number);
        let round: Vec<u64> =
            behind.chain(self.chunks.range(..self.hand).map(|(&number, _)| number)).collect();
        let mut dropped = 0;
        for number in round {
            if dropped >= wanted {
                self.hand = number;
                break;
            }
            let Some(chunk) = self.chunks.get_mut(&number) else { continue };
            let kept = chunk.dirty | chunk.sent | std::mem::take(chunk.used.get_mut());
            for (inside, page) in chunk.pages.iter_mut().enumerate() {
                if kept & 1 << inside == 0 && page.take().is_some() {
                    dropped += 1;
                }
            }
            if chunk.is_empty() {
                self.chunks.remove(&number);
            }
        }
        self.pages -= dropped;
        self.totals.used.fetch_sub(dropped * self.unit as u64, Ordering::Relaxed);
        dropped
    }
}

impl Drop for PageMap {
    fn drop(&mut self) {
        self.drop_all();
    }
}

impl std::fmt::Debug for PageMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageMap")
            .field("pages", &self.pages)
            .field("dirty", &self.dirty)
            .finish_non_exhaustive()
    }
}

/// A failure to write pages home, and how many there were before it.
#[derive(Debug, Default)]
struct Late {
    count: u64,
    error: Option<Box<dyn Any + Send>>,
}

/// The pages of a file and what belongs to them.
#[derive(Debug)]
pub(crate) struct PageCache {
    /// Taken before the gate. Changed by buffered writes, and by everything that needs the pages out of the way.
    pub(crate) map: RwLock<PageMap>,
    /// Where the buffered bytes end, if that is past the size that the device knows.
    end: AtomicU64,
    /// The page after those read last, and how many the next read ahead takes.
    next: AtomicU64,
    ahead: AtomicU64,
    /// Whether the volume knows of it, to take its clean pages for others.
    is_known: AtomicBool,
    /// Direct requests since the last buffered one.
    direct: AtomicU32,
    /// The turn to send pages home, held until they have arrived: one copy of a page at a time. Taken before the lock
    /// of the pages.
    pub(crate) home: Mutex<()>,
    /// When the oldest dirty page became one, in coarse nanoseconds; 0 if none is dirty.
    pub(crate) dirty_since: AtomicU64,
    late: Mutex<Late>,
    /// Held by an append from its first byte to its last. Taken before the lock of the pages.
    pub(crate) append: Mutex<()>,
}

impl PageCache {
    pub(crate) fn new(unit: usize, totals: Arc<Totals>) -> PageCache {
        PageCache {
            map: RwLock::new(PageMap::new(unit, totals)),
            end: AtomicU64::new(0),
            next: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            is_known: AtomicBool::new(false),
            direct: AtomicU32::new(0),
            home: Mutex::new(()),
            dirty_since: AtomicU64::new(0),
            late: Mutex::default(),
            append: Mutex::new(()),
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Hold the lock of the pages for changes.
    pub(crate) fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Release);
    }

    /// How many pages from `index` on a read takes that misses it and needs `needed`: more if the pages before it were
    /// read last.
    pub(crate) fn read_ahead(&self, index: u64, needed: u64, unit: u64) -> u64 {
        let most = (AHEAD_MAX / unit).max(1);
        let follows = self.next.load(Ordering::Relaxed) == index;
        let ahead = if follows { self.ahead.load(Ordering::Relaxed) * 2 } else { 0 };
        let taken = ahead.max(needed).min(most);
        let first = if follows { taken.max((16 << 10) / unit).min(most) } else { taken };
        self.ahead.store(first, Ordering::Relaxed);
        self.next.store(index + first, Ordering::Relaxed);
        first
    }

    /// Whether this is the first call.
    pub(crate) fn is_new(&self) -> bool {
        !self.is_known.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn note_buffered(&self) {
        if self.direct.load(Ordering::Relaxed) != 0 {
            self.direct.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a direct request. Returns how many there were since the last buffered one.
    pub(crate) fn note_direct(&self) -> u32 {
        self.direct.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records a failure for the next sync of every open file.
    pub(crate) fn note_late<E: Clone + Send + 'static>(&self, error: &E) {
        let mut late = self.late.lock();
        late.count += 1;
        late.error = Some(Box::new(error.clone()));
    }

    /// How many failures there were.
    pub(crate) fn late_count(&self) -> u64 {
        self.late.lock().count
    }

    /// The last failure after the first `seen` ones, and how many there are now.
    pub(crate) fn late_since<E: Clone + Send + 'static>(&self, seen: u64) -> Option<(u64, E)> {
        let late = self.late.lock();
        let error = late.error.as_ref().filter(|_| late.count > seen)?;
        error.downcast_ref::<E>().map(|error| (late.count, error.clone()))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn map(budget: u64) -> (PageMap, Arc<Totals>) {
        let totals = Arc::new(Totals::new(budget));
        (PageMap::new(1024, totals.clone()), totals)
    }

    #[test]
    fn dirty_runs_are_found_in_order_and_cut() {
        let (mut map, totals) = map(1 << 20);
        for index in [3, 62, 63, 64, 65, 200] {
            map.change(index)[0] = index as u8;
        }
        map.keep(4, &[9; 1024]);
        assert_eq!(map.dirty_run(0..1000, 10), Some(3..4), "a clean page ends a run");
        assert_eq!(map.dirty_run(4..1000, 10), Some(62..66), "over the border of chunks");
        assert_eq!(map.dirty_run(4..1000, 3), Some(62..65));
        assert_eq!(map.dirty_run(63..65, 10), Some(63..65));
        assert_eq!(map.dirty_run(66..200, 10), None);
        assert_eq!((totals.used(), totals.dirty()), (7 * 1024, 6 * 1024));
        map.send(0..64);
        assert_eq!(totals.dirty(), 6 * 1024, "sent pages are not home yet");
        map.arrive(0..64, true);
        assert_eq!(map.dirty_run(0..1000, 10), Some(64..66));
        map.drop_range(64..300);
        assert!(!map.has_dirty() && map.has(63) && !map.has(64));
        assert_eq!((totals.used(), totals.dirty()), (4 * 1024, 0));
        drop(map);
        assert_eq!(totals.used(), 0);
    }

    #[test]
    fn a_page_gets_dirty_again_while_its_copy_is_on_its_way() {
        let (mut map, totals) = map(1 << 20);
        (0..3).for_each(|index| map.change(index)[0] = 1);
        map.send(0..3);
        assert!(!map.has_dirty() && (0..3).all(|index| map.is_newer(index)));
        map.change(1)[0] = 2;
        assert_eq!(map.dirty_run(0..10, 10), Some(1..2));
        assert_eq!(map.evict(1 << 20), 0, "their bytes are not on the device");
        map.arrive(0..2, true);
        assert!(!map.is_newer(0) && map.is_newer(1), "its new bytes have to go home too");
        map.arrive(2..3, false);
        assert_eq!((map.dirty_run(0..10, 10), totals.dirty()), (Some(1..3), 2 * 1024));
        map.send(1..3);
        map.arrive(1..3, true);
        assert_eq!((totals.dirty(), map.dirty), (0, 0));
    }

    #[test]
    fn eviction_spares_dirty_pages_and_takes_unused_ones_first() {
        let (mut map, totals) = map(1 << 20);
        (0..200).for_each(|index| map.keep(index, &[1; 1024]));
        map.change(7);
        assert_eq!(map.evict(50 * 1024), 63, "the marks of all are taken away first, then a chunk goes");
        assert!(map.get(100).is_some());
        let before = totals.used();
        map.evict(1 << 30);
        assert!(totals.used() < before && map.has(7) && map.get(7).is_some());
        assert_eq!((map.pages, map.dirty), (1, 1));
    }

    #[test]
    fn sequential_reads_are_read_ahead_and_others_are_not() {
        let (_, totals) = map(1 << 20);
        let cache = PageCache::new(4096, totals);
        assert_eq!(cache.read_ahead(100, 1, 4096), 1);
        assert_eq!(cache.read_ahead(101, 1, 4096), 4, "the second in a row");
        assert_eq!(cache.read_ahead(105, 1, 4096), 8);
        assert_eq!(cache.read_ahead(7, 2, 4096), 2);
        let mut at = 9;
        for _ in 0..20 {
            at += cache.read_ahead(at, 1, 4096);
        }
        assert_eq!(cache.read_ahead(at, 1, 4096), 256, "at most 1 MiB");
    }

    #[test]
    fn a_late_failure_is_told_to_each_that_has_not_seen_it() {
        let (_, totals) = map(1 << 20);
        let cache = PageCache::new(4096, totals);
        assert_eq!(cache.late_since::<u32>(0), None);
        cache.note_late(&5u32);
        assert_eq!(cache.late_since::<u32>(0), Some((1, 5)));
        assert_eq!(cache.late_since::<u32>(1), None);
    }
}
