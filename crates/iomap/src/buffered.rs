//! Buffered requests: any bytes, served from pages.
//!
//! A read copies from pages; what it misses is read from the device, more at a time if the file is read in order, and
//! kept. A write copies into pages and is done; `write_back.rs` writes them home. Blocks for a write into a hole or
//! past the end are promised at once ([`FileSystem::promise`]) and allocated when the pages go home, so a full volume
//! refuses the write itself.
//!
//! The lock of the pages is taken before the gate. Readers share it over their device reads, so that what they read
//! cannot be replaced before they return.

use crate::counters::Counter;
use crate::engine::{Engine, check_range};
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::mapping::{Piece, Range, State};
use crate::pages::{PageCache, PageMap};
use crate::plan::WriteFlags;
use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use std::ops;
use std::sync::atomic::Ordering;
use std::time::Duration;
use uext4_blockdev::Buffer;

/// Bytes that are copied into pages under one hold of their lock.
const STEP: u64 = 1 << 20;
/// How long a waiting thread sleeps before it drives queues that others may be waiting for.
const PAUSE: Duration = Duration::from_micros(200);
/// Blocks that are promised at a time to a file that needs some.
const PROMISED: u64 = 64;

/// Pages that a read loaded.
struct Loaded {
    first: u64,
    count: u64,
    bytes: Buffer,
    /// Of the pages when they were read.
    version: u64,
}

/// What part of a write became of its pages.
enum Step {
    Done,
    /// The pages cannot take it: it has to be written directly.
    Refused,
}

impl<F: FileSystem> Engine<F> {
    /// Whether buffered requests of a file go over pages.
    pub(crate) fn uses_pages(&self, file: &OpenFile<F>) -> bool {
        !file.is_direct()
            && self.pages.totals.budget > 0
            && self.capabilities.dax.is_none()
            && u64::from(self.geometry.logical_block) <= 1 << file.state().block_bits()
            && !file.state().kind().is_held()
    }

    /// Reads any bytes into any memory, from pages unless the file was opened for direct requests only. Returns the
    /// bytes read: fewer at the end of the file.
    ///
    /// # Errors
    /// Those of [`Engine::read_any`].
    pub fn read_buffered(&self, file: &OpenFile<F>, buf: &mut [u8], pos: u64) -> Result<usize, F::Error> {
        if !self.uses_pages(file) {
            return self.read_any(file, buf, pos);
        }
        self.check_process()?;
        file.check_readable()?;
        self.note_access(file);
        check_range(pos, buf.len() as u64)?;
        let cache = file.state().make_pages(&self.pages.totals);
        cache.note_buffered();
        self.counters.bump(Counter::BufferedReads);
        let mut done = 0;
        loop {
            let map = self.share_pages(cache, &mut self.helper());
            if !file.state().is_cached() {
                drop(map);
                let mut map = self.lock_pages(cache, &mut self.helper());
                if !self.begin_pages(file, &mut map)? {
                    drop(map);
                    return Ok(done + self.read_any(file, &mut buf[done..], pos + done as u64)?);
                }
                continue;
            }
            let (read, loaded) =
                self.read_some(file, cache, &map, &mut buf[done..], pos + done as u64, true)?;
            drop(map);
            done += read;
            match loaded {
                Some(loaded) => self.keep(file, cache, &loaded),
                None => return Ok(done),
            }
        }
    }

    /// A direct read of a file that has pages: dirty pages are newer than the device. Loads nothing. `None`: it has
    /// none any more, nothing was read.
    ///
    /// # Errors
    /// Those of the map and the device.
    #[cold]
    #[inline(never)]
    pub(crate) fn read_over_pages(
        &self,
        file: &OpenFile<F>,
        buf: &mut [u8],
        pos: u64,
    ) -> Result<Option<usize>, F::Error> {
        self.check_process()?;
        let Some(cache) = file.state().pages() else { return Ok(None) };
        if self.leave_pages(file, cache, &mut self.helper())? {
            return Ok(None);
        }
        let map = self.share_pages(cache, &mut self.helper());
        if !file.state().is_cached() {
            return Ok(None);
        }
        self.counters.bump(Counter::GeneralReads);
        let mut done = 0;
        while done < buf.len() {
            let at = pos + done as u64;
            let (read, _not_kept) = self.read_some(file, cache, &map, &mut buf[done..], at, false)?;
            if read == 0 {
                break;
            }
            done += read;
        }
        Ok(Some(done))
    }

    /// Reads from the front of a range: pages, then at most one run of missing pages, which is returned. Without one,
    /// the read is complete.
    fn read_some(
        &self,
        file: &OpenFile<F>,
        cache: &PageCache,
        map: &PageMap,
        buf: &mut [u8],
        pos: u64,
        ahead: bool,
    ) -> Result<(usize, Option<Loaded>), F::Error> {
        let unit = map.unit();
        let size = file.state().visible_size();
        let visible = size.saturating_sub(pos).min(buf.len() as u64);
        let mut done = 0;
        while done < visible {
            let at = pos + done;
            let Some(page) = map.get(at / unit) else { break };
            let inside = (at % unit) as usize;
            let part = (page.len() - inside).min((visible - done) as usize);
            buf[done as usize..done as usize + part].copy_from_slice(&page[inside..inside + part]);
            done += part as u64;
        }
        if done == visible {
            return Ok((done as usize, None));
        }
        let at = pos + done;
        let first = at / unit;
        let needed = (pos + visible).div_ceil(unit) - first;
        let count = match ahead {
            true => cache.read_ahead(first, needed.min((STEP / unit).max(1)), unit),
            false => needed.min((STEP / unit).max(1)),
        };
        let count = count.min(size.div_ceil(unit) - first);
        let count = (1..count).find(|next| map.has(first + next)).unwrap_or(count);
        let bytes = self.load(file, unit, first..first + count)?;
        let inside = (at - first * unit) as usize;
        let part = (bytes.len() - inside).min((visible - done) as usize);
        buf[done as usize..done as usize + part].copy_from_slice(&bytes[inside..inside + part]);
        Ok((done as usize + part, Some(Loaded { first, count, bytes, version: map.version })))
    }

    /// Reads pages from the device. Bytes past the end of what it holds are zeros.
    fn load(&self, file: &OpenFile<F>, unit: u64, pages: ops::Range<u64>) -> Result<Buffer, F::Error> {
        let start = pages.start * unit;
        let length = (pages.end - pages.start) * unit;
        let mut bytes = self.bounce_buffer(length as usize)?;
        let on_device = self.visit(file, || {
            let size = file.state().size();
            let held = size.next_multiple_of(unit).saturating_sub(start).min(length);
            if held > 0 {
                self.for_each_piece(file, Range { pos: start, length: held }, |piece| {
                    let at = (piece.logical - start) as usize;
                    self.read_piece(file, piece, &mut bytes[at..at + piece.length as usize])
                })?;
            }
            Ok(size.saturating_sub(start).min(length))
        })?;
        self.counters.add(Counter::PageReads, pages.end - pages.start);
        bytes[on_device as usize..].fill(0);
        Ok(bytes)
    }

    /// Keeps what a read has loaded, if nothing has changed since and there is room.
    fn keep(&self, file: &OpenFile<F>, cache: &PageCache, loaded: &Loaded) {
        if !self.make_room(cache, loaded.bytes.len() as u64) {
            return;
        }
        let mut map = self.lock_pages(cache, &mut self.helper());
        if map.version != loaded.version || !file.state().is_cached() {
            return;
        }
        for (index, page) in
            (loaded.first..loaded.first + loaded.count).zip(loaded.bytes.chunks(map.unit() as usize))
        {
            map.keep(index, page);
        }
    }

    /// Writes any bytes from any memory: into pages, unless the file was opened for direct requests only, `flags` ask
    /// for more, or the pages cannot take them.
    ///
    /// # Errors
    /// Those of [`Engine::write_any`]. Failures to write pages home are told by the next sync.
    pub fn write_buffered(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        pos: u64,
        flags: WriteFlags,
    ) -> Result<usize, F::Error> {
        let range = check_range(pos, buf.len() as u64)?;
        let done = self.write_pages(file, buf, Some(range.pos), flags)?.1;
        self.write_rest(file, &buf[done..], pos + done as u64, flags)?;
        Ok(buf.len())
    }

    /// The same at the end of the file, not interleaved with other appends. Returns the position of the first byte.
    ///
    /// # Errors
    /// Those of [`Engine::write_buffered`].
    pub fn append_buffered(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        flags: WriteFlags,
    ) -> Result<u64, F::Error> {
        let cache = self.uses_pages(file).then(|| file.state().make_pages(&self.pages.totals));
        let _one_at_a_time = cache.map(|cache| {
            let mut help = self.helper();
            loop {
                match cache.append.try_lock_for(PAUSE) {
                    Some(turn) => break turn,
                    None => help(),
                }
            }
        });
        if file.state().appender() != 0 {
            // Behind the appends of queues that are in flight, which the size does not tell of yet.
            drop(file.state().gate.visit_exclusive(true, &mut self.helper()));
        }
        let (pos, done) = self.write_pages(file, buf, None, flags)?;
        self.write_rest(file, &buf[done..], pos + done as u64, flags)?;
        Ok(pos)
    }

    /// Writes directly what the pages did not take.
    fn write_rest(
        &self,
        file: &OpenFile<F>,
        rest: &[u8],
        pos: u64,
        flags: WriteFlags,
    ) -> Result<(), F::Error> {
        if rest.is_empty() {
            return Ok(());
        }
        if self.uses_pages(file) && flags.is_empty() && self.page_bytes().1 > 0 {
            // There may be no room because more was promised than is needed: what is left is taken back now. Failures
            // are told by the next sync of their files.
            let _told_later = self.write_all_pages();
        }
        self.write_any(file, rest, pos, flags).map(drop)
    }

    /// Writes into pages, at the end of the file if `pos` is `None`. Returns where, and how many bytes: the rest has to
    /// be written directly.
    fn write_pages(
        &self,
        file: &OpenFile<F>,
        buf: &[u8],
        pos: Option<u64>,
        flags: WriteFlags,
    ) -> Result<(u64, usize), F::Error> {
        self.check_process()?;
        self.fs.check_alive()?;
        file.check_writable()?;
        let state = file.state();
        let direct = !file.flags_of(flags).is_empty() || buf.is_empty() || state.is_privileged();
        if direct || !self.uses_pages(file) {
            return Ok((pos.unwrap_or_else(|| state.visible_size()), 0));
        }
        let cache = state.make_pages(&self.pages.totals);
        cache.note_buffered();
        let (mut start, mut done) = (pos, 0usize);
        while done < buf.len() {
            let unit = 1u64 << state.block_bits();
            let room = (STEP.max(unit) as usize).min(buf.len() - done);
            let fits = self.make_room_for_dirty(file, cache, room as u64 + 2 * unit)?;
            let mut map = self.lock_pages(cache, &mut self.helper());
            let first = *start.get_or_insert_with(|| state.visible_size());
            let range = check_range(first + done as u64, room as u64)?;
            if !fits || !self.begin_pages(file, &mut map)? || state.is_privileged() {
                return Ok((first, done));
            }
            match self.write_step(file, cache, &mut map, &buf[done..done + room], range)? {
                Step::Done => done += room,
                Step::Refused => return Ok((first, done)),
            }
        }
        self.counters.bump(Counter::BufferedWrites);
        Ok((start.unwrap_or_default(), done))
    }

    /// Copies one part into pages.
    fn write_step(
        &self,
        file: &OpenFile<F>,
        cache: &PageCache,
        map: &mut PageMap,
        buf: &[u8],
        range: Range,
    ) -> Result<Step, F::Error> {
        let (state, unit) = (file.state(), map.unit());
        let pages = map.touched(range.pos, range.end());
        if range.end() > state.size() && self.fs.check_allocates(&file.inode, needs(range)).is_err() {
            // The direct way tells why.
            return Ok(Step::Refused);
        }
        // A page of which only a part is written needs the rest of what the file has there.
        for index in [pages.start, pages.end - 1] {
            let (start, end) = (index * unit, ((index + 1) * unit).min(state.size()));
            let is_covered = range.pos <= start && range.end() >= end;
            if start < end && !is_covered && !map.has(index) {
                let bytes = self.load(file, unit, index..index + 1)?;
                map.keep(index, &bytes);
            }
        }
        if !self.promise(file, map, pages.clone())? {
            return Ok(Step::Refused);
        }
        let was_clean = !map.has_dirty();
        let mut at = range.pos;
        for index in pages {
            let inside = (at - index * unit) as usize;
            let end = range.end().min((index + 1) * unit);
            let from = (at - range.pos) as usize;
            map.change(index)[inside..inside + (end - at) as usize]
                .copy_from_slice(&buf[from..from + (end - at) as usize]);
            at = end;
        }
        map.version += 1;
        if range.end() > state.size().max(cache.end()) {
            cache.set_end(range.end());
        }
        if was_clean {
            cache.dirty_since.store(crate::coarse_now_ns().max(1), Ordering::Relaxed);
            self.pages.note_dirty(&file.inode);
        }
        if file.notes_writes() {
            state.gate.note_write_now();
        }
        Ok(Step::Done)
    }

    /// Promises the blocks that pages need when they go home. Returns whether there are as many.
    fn promise(
        &self,
        file: &OpenFile<F>,
        map: &mut PageMap,
        pages: ops::Range<u64>,
    ) -> Result<bool, F::Error> {
        if pages.clone().all(|index| map.is_newer(index)) {
            return Ok(true);
        }
        let unit = map.unit();
        // Past the end every page counts as a hole: no look, which would wait for pages that go home.
        let past = pages.end.min(file.state().size().div_ceil(unit)).max(pages.start);
        let new = |range: ops::Range<u64>| range.filter(|&index| !map.is_newer(index)).count() as u64;
        let mut needed = new(past..pages.end);
        let range = Range { pos: pages.start * unit, length: (past - pages.start) * unit };
        let mut look = |piece: &Piece| {
            let new = new(piece.logical / unit..piece.end() / unit);
            needed += match piece.state {
                State::Hole => new,
                // Blocks of the map, if the conversion splits an extent.
                State::Unwritten => new.div_ceil(8).min(8),
                State::Written | State::Inline => 0,
            };
            Ok(())
        };
        if range.length > 0 {
            self.visit(file, || self.for_each_piece(file, range, &mut look))?;
        }
        if needed <= map.spare {
            map.spare -= needed;
            return Ok(true);
        }
        let more = needed - map.spare;
        for asked in [more.max(PROMISED), more] {
            if self.fs.promise(&file.inode, asked).is_ok() {
                map.spare = map.spare + asked - needed;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Begins to keep pages of a file. `false`: they cannot be kept, since the file system holds the contents.
    pub(crate) fn begin_pages(&self, file: &OpenFile<F>, _map: &mut PageMap) -> Result<bool, F::Error> {
        let state = file.state();
        if state.is_cached() {
            return Ok(true);
        }
        // Drained: a direct request that did not see the mark must not write under pages that are read meanwhile.
        let held = state.gate.visit_exclusive(true, &mut self.helper());
        if state.kind().is_held() {
            return Ok(false);
        }
        state.set_cached(true);
        drop(held);
        self.pages.note_cache(state.make_pages(&self.pages.totals));
        Ok(true)
    }

    /// The pages of a file, for changes. `help` is called while it waits.
    pub(crate) fn lock_pages<'c>(
        &self,
        cache: &'c PageCache,
        help: &mut dyn FnMut(),
    ) -> RwLockWriteGuard<'c, PageMap> {
        loop {
            match cache.map.try_write_for(PAUSE) {
                Some(map) => return map,
                None => help(),
            }
        }
    }

    /// The turn to send pages of a file home.
    pub(crate) fn lock_home<'c>(&self, cache: &'c PageCache, help: &mut dyn FnMut()) -> MutexGuard<'c, ()> {
        loop {
            match cache.home.try_lock_for(PAUSE) {
                Some(turn) => return turn,
                None => help(),
            }
        }
    }

    fn share_pages<'c>(&self, cache: &'c PageCache, help: &mut dyn FnMut()) -> RwLockReadGuard<'c, PageMap> {
        loop {
            match cache.map.try_read_for(PAUSE) {
                Some(map) => return map,
                None => help(),
            }
        }
    }
}

/// What a write past the end needs.
fn needs(range: Range) -> Error {
    let Range { pos, length } = range;
    Error::NeedsAllocation { pos, length, unwritten: 0, hole: length, extends: true }
}
