//! When dirty pages go home, and what direct requests do with pages.
//!
//! | request | what it does with the pages of its file |
//! |---|---|
//! | direct read | copies from pages where there are some |
//! | direct or atomic write | writes home the dirty pages that it touches, and drops them all |
//! | truncation, hole, allocation, shift, change of flags | writes all dirty pages home and drops all |
//! | sync | writes all dirty pages home |
//!
//! Pages also go home by age ([`Engine::write_old_pages`]), when much of the budget is dirty
//! ([`Engine::send_pages_home`]), and when the last writer closes a file ([`Engine::end_pages`]). A failure leaves them
//! dirty, and is told by the next sync of every open file. `homeward.rs` sends them.

use crate::carry::end_appends;
use crate::counters::Counter;
use crate::engine::Engine;
use crate::fs::{FileSystem, OpenFile};
use crate::gate::InodeGuard;
use crate::homeward::{Carriers, PageBell};
use crate::mapping::Range;
use crate::pages::{PageCache, PageMap, Totals};
use parking_lot::{Mutex, RwLockWriteGuard};
use std::collections::HashMap;
use std::ops;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The thread is called when the budget divided by this is dirty, and stops at half of that. Writers write pages home
/// themselves at twice as much.
const CALL: u64 = 4;
/// Other files give up one part in so many of the budget at once.
const PART: u64 = 32;
/// After so many direct requests without a buffered one, a file keeps no pages.
const STREAK: u32 = 8;

/// The files that have or had pages, and the one whose turn it is to give some up.
#[derive(Default)]
struct Caches {
    all: Vec<Weak<PageCache>>,
    hand: usize,
}

/// Pages of all files of a volume.
pub(crate) struct PageMemory<F: FileSystem> {
    pub(crate) totals: Arc<Totals>,
    /// Not their inodes, which the file system could not evict then.
    caches: Mutex<Caches>,
    /// Inodes with dirty pages, by address: the pages must not go with them.
    dirty: Mutex<HashMap<usize, Arc<F::Inode>>>,
    pub(crate) bell: PageBell,
    pub(crate) carriers: Carriers,
}

impl<F: FileSystem> PageMemory<F> {
    pub(crate) fn new(budget: u64) -> Self {
        PageMemory {
            totals: Arc::new(Totals::new(budget)),
            caches: Mutex::default(),
            dirty: Mutex::default(),
            bell: PageBell::default(),
            carriers: Carriers::default(),
        }
    }

    /// A file has begun to keep pages.
    pub(crate) fn note_cache(&self, cache: &Arc<PageCache>) {
        if !cache.is_new() {
            return;
        }
        let all = &mut self.caches.lock().all;
        if all.len().is_power_of_two() {
            all.retain(|cache| cache.strong_count() > 0);
        }
        all.push(Arc::downgrade(cache));
    }

    /// A file has its first dirty page.
    pub(crate) fn note_dirty(&self, inode: &Arc<F::Inode>) {
        self.dirty.lock().insert(Arc::as_ptr(inode) as usize, inode.clone());
    }

    /// A file has no dirty page any more. Returns what kept its inode: to be dropped without a lock.
    fn note_clean(&self, inode: &F::Inode) -> Option<Arc<F::Inode>> {
        self.dirty.lock().remove(&(std::ptr::from_ref(inode) as usize))
    }

    /// The inodes with dirty pages.
    fn dirty(&self) -> Vec<Arc<F::Inode>> {
        self.dirty.lock().values().cloned().collect()
    }

    /// The file whose turn it is, if it is still in memory, and how many there are.
    fn next_cache(&self) -> (Option<Arc<PageCache>>, usize) {
        let mut caches = self.caches.lock();
        caches.hand += 1;
        if caches.hand >= caches.all.len() {
            caches.hand = 0;
        }
        (caches.all.get(caches.hand).and_then(Weak::upgrade), caches.all.len())
    }
}

/// A file's gate, held exclusively, and its pages, if it has some: those that are in the way are gone. See
/// [`Engine::lock_exclusive`].
pub struct Sole<'g> {
    // In the order of their release.
    gate: InodeGuard<'g>,
    _pages: Option<RwLockWriteGuard<'g, PageMap>>,
}

impl<'g> Sole<'g> {
    /// The pages were locked before the gate was taken.
    pub(crate) fn new(gate: InodeGuard<'g>, pages: Option<RwLockWriteGuard<'g, PageMap>>) -> Sole<'g> {
        Sole { gate, _pages: pages }
    }
}

impl<'g> ops::Deref for Sole<'g> {
    type Target = InodeGuard<'g>;

    fn deref(&self) -> &InodeGuard<'g> {
        &self.gate
    }
}

impl<F: FileSystem> Engine<F> {
    /// The gate of a file held exclusively, with its pages written home and dropped.
    pub(crate) fn be_alone<'g>(
        &self,
        file: &'g OpenFile<F>,
        drain: bool,
        help: &mut dyn FnMut(),
    ) -> Result<Sole<'g>, F::Error> {
        let state = file.state();
        loop {
            let mut pages = None;
            if let Some(cache) = state.pages() {
                let _turn = self.lock_home(cache, help);
                let mut map = self.lock_pages(cache, help);
                self.write_home_held(&file.inode, cache, &mut map, 0..u64::MAX, help)?;
                self.drop_pages(file, &mut map, help);
                pages = Some(map);
            }
            let gate = state.gate.visit_exclusive(drain, help);
            end_appends(state, &gate, help);
            // If the pages were not locked, another thread may have begun to keep some.
            if pages.is_some() || !state.is_cached() {
                return Ok(Sole::new(gate, pages));
            }
        }
    }

    /// Holds the pages of a file for a direct write of `bytes`: those that it touches are written home and dropped.
    pub(crate) fn settle<'c>(
        &self,
        file: &OpenFile<F>,
        cache: &'c PageCache,
        bytes: Range,
        help: &mut dyn FnMut(),
    ) -> Result<RwLockWriteGuard<'c, PageMap>, F::Error> {
        // Whoever gets the turn next copies nothing before the pages are free.
        let _turn = self.lock_home(cache, help);
        let mut map = self.lock_pages(cache, help);
        if !file.state().is_cached() {
            return Ok(map);
        }
        if cache.note_direct() >= STREAK {
            self.write_home_held(&file.inode, cache, &mut map, 0..u64::MAX, help)?;
            self.drop_pages(file, &mut map, help);
            return Ok(map);
        }
        let touched = map.touched(bytes.pos, bytes.end());
        let size = file.state().size();
        // A write past the end must not be there after a crash with zeros in place of buffered bytes before it.
        let from = if bytes.end() > size { bytes.pos.min(size) } else { bytes.pos };
        let newer = map.touched(from, bytes.end());
        self.write_home_held(&file.inode, cache, &mut map, newer, help)?;
        map.drop_range(touched);
        // What was read before is older than this write.
        map.version += 1;
        if map.is_empty() {
            self.drop_pages(file, &mut map, help);
        }
        Ok(map)
    }

    /// Counts a direct read. After many, the file keeps no pages: returns whether that is so now.
    pub(crate) fn leave_pages(
        &self,
        file: &OpenFile<F>,
        cache: &PageCache,
        help: &mut dyn FnMut(),
    ) -> Result<bool, F::Error> {
        if cache.note_direct() < STREAK || self.fs.check_alive().is_err() {
            return Ok(false);
        }
        let _turn = self.lock_home(cache, help);
        let mut map = self.lock_pages(cache, help);
        if map.has_dirty() && self.write_home_held(&file.inode, cache, &mut map, 0..u64::MAX, help).is_err() {
            // It is told by the next sync. Reads go on over the pages.
            return Ok(false);
        }
        self.drop_pages(file, &mut map, help);
        Ok(true)
    }

    /// Drops all pages, which are clean, and takes the mark away.
    fn drop_pages(&self, file: &OpenFile<F>, map: &mut PageMap, help: &mut dyn FnMut()) {
        map.drop_all();
        map.version += 1;
        if file.state().is_cached() {
            let _nobody_sets_a_size = file.state().gate.visit_exclusive(false, help);
            file.state().set_cached(false);
        }
    }

    /// No page is dirty any more, and none is on its way.
    pub(crate) fn note_home(&self, inode: &Arc<F::Inode>, cache: &PageCache, map: &mut PageMap) {
        cache.set_end(0);
        cache.dirty_since.store(0, Ordering::Relaxed);
        map.spare = 0;
        self.fs.end_promise(inode);
        // The caller holds the inode too.
        drop(self.pages.note_clean(inode));
    }

    /// Writes all dirty pages of a file home, and lets others use the pages meanwhile.
    pub(crate) fn write_home(&self, inode: &Arc<F::Inode>, help: &mut dyn FnMut()) -> Result<(), F::Error> {
        self.write_home_while(inode, || true, help)
    }

    /// Writes all dirty pages of a file home, for somebody who looks at its map.
    ///
    /// # Errors
    /// Those of the writes.
    pub fn write_pages_of(&self, file: &OpenFile<F>) -> Result<(), F::Error> {
        match file.state().is_cached() {
            true => self.write_home(&file.inode, &mut self.helper()),
            false => Ok(()),
        }
    }

    /// What a sync of a file does first: its pages go home, and a failure that this open file was not told yet is told.
    pub(crate) fn settle_sync(&self, file: &OpenFile<F>, help: &mut dyn FnMut()) -> Result<(), F::Error> {
        let Some(cache) = file.state().pages() else { return Ok(()) };
        let written = self.write_home(&file.inode, help);
        let late = cache.late_since::<F::Error>(file.seen.load(Ordering::Relaxed));
        if let Some((count, _)) = &late {
            file.seen.store(*count, Ordering::Relaxed);
        }
        written?;
        late.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Writes the dirty pages of all files home. The first failure is returned, after all were tried.
    ///
    /// # Errors
    /// Those of the writes.
    pub fn write_all_pages(&self) -> Result<(), F::Error> {
        self.write_old_pages(Duration::ZERO)
    }

    /// The same of files whose oldest dirty page is of this `age` at least.
    ///
    /// # Errors
    /// Those of the writes.
    pub fn write_old_pages(&self, age: Duration) -> Result<(), F::Error> {
        let now = crate::coarse_now_ns();
        let mut outcome = Ok(());
        for inode in self.pages.dirty() {
            let since = F::state(&inode).pages().map_or(0, |cache| cache.dirty_since.load(Ordering::Relaxed));
            if since == 0 || now.saturating_sub(since) < age.as_nanos() as u64 {
                continue;
            }
            if self.fs.is_gone(&inode) {
                self.discard_pages(&inode);
                continue;
            }
            let written = self.write_home(&inode, &mut self.helper());
            outcome = outcome.and(written);
        }
        outcome
    }

    /// The last writer of a file goes: its dirty pages go home, or nowhere if the file is gone. A failure leaves them
    /// for [`Engine::write_old_pages`].
    pub fn end_pages(&self, inode: &Arc<F::Inode>) {
        if F::state(inode).pages().is_none() {
            return;
        }
        if self.fs.is_gone(inode) {
            self.discard_pages(inode);
        } else if self.fs.check_alive().is_ok() {
            let _told_by_the_next_sync = self.write_home(inode, &mut self.helper());
        }
    }

    fn discard_pages(&self, inode: &Arc<F::Inode>) {
        let Some(cache) = F::state(inode).pages() else { return };
        let _turn = self.lock_home(cache, &mut self.helper());
        let mut map = self.lock_pages(cache, &mut self.helper());
        map.drop_all();
        map.version += 1;
        self.note_home(inode, cache, &mut map);
    }

    /// Makes room for clean pages of a file: its own clean pages go first, then those of others. Returns whether there
    /// is room.
    pub(crate) fn make_room(&self, cache: &PageCache, bytes: u64) -> bool {
        let totals = &self.pages.totals;
        if !totals.is_full_for(bytes) {
            return true;
        }
        let dropped = self.lock_pages(cache, &mut self.helper()).evict(bytes);
        self.counters.add(Counter::PageDrops, dropped);
        if !totals.is_full_for(bytes) {
            return true;
        }
        let (mut tried, mut count) = (0, 1);
        // A part of the budget at a time, so that not every request has to look for some.
        let most = bytes.max(totals.budget / PART);
        while tried < count && totals.is_full_for(most) {
            let (other, all) = self.pages.next_cache();
            (tried, count) = (tried + 1, all);
            // Its own is tried once more: that does no harm.
            if let Some(mut map) = other.as_ref().and_then(|other| other.map.try_write()) {
                self.counters.add(Counter::PageDrops, map.evict(most));
            }
        }
        !totals.is_full_for(bytes)
    }

    /// Makes room for dirty pages. If a quarter of the budget is dirty, the volume's thread is called; at half of it
    /// pages go home first.
    ///
    /// # Errors
    /// Those of writing this file's pages home.
    pub(crate) fn make_room_for_dirty(
        &self,
        file: &OpenFile<F>,
        cache: &PageCache,
        bytes: u64,
    ) -> Result<bool, F::Error> {
        let totals = &self.pages.totals;
        let exceeds = |part: u64| totals.dirty().saturating_add(bytes) > totals.budget / part;
        if exceeds(CALL) {
            self.pages.bell.ring();
        }
        if exceeds(CALL / 2) {
            self.write_home_while(&file.inode, || exceeds(CALL / 2), &mut self.helper())?;
            if exceeds(CALL / 2) {
                // The failures of other files are theirs.
                let _told_by_their_syncs = self.write_all_pages();
            }
            if exceeds(CALL / 2) {
                return Ok(false);
            }
        }
        Ok(self.make_room(cache, bytes))
    }

    /// What the volume's thread does when it is called: pages go home until little is dirty. Failures are told by the
    /// next sync of their files.
    pub fn send_pages_home(&self) {
        let totals = &self.pages.totals;
        let goes_on = || totals.dirty() > totals.budget / (2 * CALL) && !self.pages.bell.is_stopped();
        for inode in self.pages.dirty() {
            if goes_on() && !self.fs.is_gone(&inode) && self.fs.check_alive().is_ok() {
                let _told_later = self.write_home_while(&inode, goes_on, &mut self.helper());
            }
        }
    }

    /// How writers call the thread that calls [`Engine::send_pages_home`].
    pub fn page_bell(&self) -> &PageBell {
        &self.pages.bell
    }

    /// Bytes that pages take in memory, and how many of them are newer than the device.
    pub fn page_bytes(&self) -> (u64, u64) {
        (self.pages.totals.used(), self.pages.totals.dirty())
    }
}
