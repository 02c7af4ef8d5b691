//! Dirty pages on their way home.
//!
//! They go in batches of runs. A batch is copied under the lock of the file's pages; whoever need not keep the pages
//! locked releases them then, so that buffered requests go on while the batch is sent. [`PageCache::home`] is held
//! until it has arrived: there is one copy of a page on its way at a time, and direct writes, truncations and syncs
//! wait for it. Runs over written blocks below the end of the file are sent together under the shared gate, the others
//! one after another as writes that allocate.
//!
//! [`PageBell`] calls the thread of a volume that sends pages home beside the writers.

use crate::carry::Flow;
use crate::counters::Counter;
use crate::engine::Engine;
use crate::error::Error;
use crate::fs::{FileSystem, OpenFile};
use crate::mapping::{Pieces, Range, State};
use crate::pages::{PageCache, PageMap};
use crate::pipeline::Mapping;
use crate::plan::{Request, Sync};
use crate::raw::RawQueue;
use parking_lot::{Condvar, Mutex};
use std::ops;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use uext4_blockdev::{Ask, Buffer, Error as DeviceError, QueueOptions, WriteDurability, is_put_off};

/// Most bytes of a batch.
const BATCH_MAX: u64 = 2 << 20;
/// Most runs of a batch, all of which may be in flight together.
const RUNS_MAX: usize = 64;
/// Device queues that are kept for later batches.
const QUEUES_KEPT: usize = 2;

/// Device queues that send runs together, made when they are needed.
#[derive(Default)]
pub(crate) struct Carriers {
    idle: Mutex<Vec<RawQueue>>,
}

/// A copy of consecutive dirty pages.
struct Run<E> {
    pages: ops::Range<u64>,
    /// First byte in the file.
    pos: u64,
    /// Where the bytes of the file end in it; after that there are zeros.
    end: u64,
    /// All bytes of the pages, until they are given to a device queue.
    bytes: Option<Buffer>,
    /// What became of it. `None`: it was not sent.
    result: Option<Result<(), E>>,
}

impl<E> Run<E> {
    /// Whole pages.
    fn range(&self) -> Range {
        Range { pos: self.pos, length: self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64) }
    }
}

impl<F: FileSystem> Engine<F> {
    /// Writes the dirty ones among `pages` home. The pages stay locked; the caller holds [`PageCache::home`] too.
    pub(crate) fn write_home_held(
        &self,
        inode: &Arc<F::Inode>,
        cache: &PageCache,
        map: &mut PageMap,
        pages: ops::Range<u64>,
        help: &mut dyn FnMut(),
    ) -> Result<(), F::Error> {
        let mut rest = pages;
        loop {
            let mut batch = self.copy_batch(inode, map, &mut rest)?;
            if batch.is_empty() {
                return Ok(());
            }
            self.send_batch(inode, &mut batch, help);
            self.note_arrivals(inode, cache, map, batch)?;
        }
    }

    /// Writes the dirty pages of a file home while `goes_on`, and lets others use the pages meanwhile.
    pub(crate) fn write_home_while(
        &self,
        inode: &Arc<F::Inode>,
        goes_on: impl Fn() -> bool,
        help: &mut dyn FnMut(),
    ) -> Result<(), F::Error> {
        let Some(cache) = F::state(inode).pages() else { return Ok(()) };
        let _turn = self.lock_home(cache, help);
        let mut rest = 0..u64::MAX;
        while goes_on() {
            let mut batch = self.copy_batch(inode, &mut self.lock_pages(cache, help), &mut rest)?;
            if batch.is_empty() {
                break;
            }
            self.send_batch(inode, &mut batch, help);
            self.note_arrivals(inode, cache, &mut self.lock_pages(cache, help), batch)?;
        }
        Ok(())
    }

    /// Copies the first dirty runs of `rest`, and takes them off it.
    fn copy_batch(
        &self,
        inode: &Arc<F::Inode>,
        map: &mut PageMap,
        rest: &mut ops::Range<u64>,
    ) -> Result<Vec<Run<F::Error>>, F::Error> {
        let (unit, end) = (map.unit(), F::state(inode).visible_size());
        let (mut batch, mut room) = (Vec::new(), (BATCH_MAX / unit).max(1));
        while room > 0 && batch.len() < RUNS_MAX {
            let Some(pages) = map.dirty_run(rest.clone(), room) else { break };
            let count = pages.end - pages.start;
            let mut bytes = match self.bounce_buffer((count * unit) as usize) {
                Ok(bytes) => bytes,
                Err(_tried_later) if !batch.is_empty() => break,
                Err(error) => return Err(error),
            };
            for (index, part) in pages.clone().zip(bytes.chunks_mut(unit as usize)) {
                if let Some(page) = map.get(index) {
                    part.copy_from_slice(page);
                }
            }
            map.send(pages.clone());
            (rest.start, room) = (pages.end, room - count);
            let pos = pages.start * unit;
            let end = end.min(pages.end * unit);
            batch.push(Run { pages, pos, end, bytes: Some(bytes), result: None });
        }
        Ok(batch)
    }

    /// Sends a batch. After a failure nothing more is begun.
    fn send_batch(&self, inode: &Arc<F::Inode>, batch: &mut [Run<F::Error>], help: &mut dyn FnMut()) {
        let file = OpenFile::for_pages(inode.clone());
        self.fs.go_home(inode, true);
        if let (Err(error), Some(first)) = (self.send_overwrites(&file, batch), batch.first_mut()) {
            first.result = Some(Err(error));
        }
        for run in batch {
            if run.result.is_none() {
                run.result = Some(self.send_run(&file, run, help));
            }
            if matches!(run.result, Some(Err(_))) {
                break;
            }
        }
        self.fs.go_home(inode, false);
    }

    /// Sends one run as a write that may allocate and move the end of the file.
    fn send_run(
        &self,
        file: &OpenFile<F>,
        run: &Run<F::Error>,
        help: &mut dyn FnMut(),
    ) -> Result<(), F::Error> {
        // Given to a device queue that did not tell what became of them: not home.
        let Some(bytes) = &run.bytes else { return Err(Error::CutOff.into()) };
        let request = Request { range: run.range(), sync: Sync::None, bounced: false, queued: false };
        let home = Some(run.end);
        let flow = Flow { exclusive: true, nowait: false, mapping: Mapping::Due, settled: true, home };
        self.carry_out(file, &[bytes], &request, flow, help)?.0
    }

    /// Sends the runs over written blocks below the end of the file, all at once, and waits for them. The others get no
    /// result.
    fn send_overwrites(&self, file: &OpenFile<F>, batch: &mut [Run<F::Error>]) -> Result<(), F::Error> {
        self.fs.check_alive()?;
        let inside = self.enter(file.state(), true)?;
        let sent = self.send_inside(file, batch);
        drop(inside);
        file.state().gate.end_visit();
        sent
    }

    fn send_inside(&self, file: &OpenFile<F>, batch: &mut [Run<F::Error>]) -> Result<(), F::Error> {
        let mut places = Vec::with_capacity(batch.len());
        for (number, run) in batch.iter().enumerate() {
            if let Some(place) = self.find_overwrite(file, run)? {
                places.push((number, place));
            }
        }
        self.counters.add(Counter::OverwritesWithoutHandle, places.len() as u64);
        match places[..] {
            [] => {}
            [(number, place)] => {
                let bytes = batch[number].bytes.as_deref().unwrap_or_default();
                let written = self.write_counted(bytes, place, WriteDurability::Cached);
                batch[number].result = Some(written.map_err(F::Error::from));
            }
            _ => self.send_together(batch, &places),
        }
        Ok(())
    }

    /// Where a run is on the device, if it overwrites one piece of written blocks.
    fn find_overwrite(&self, file: &OpenFile<F>, run: &Run<F::Error>) -> Result<Option<u64>, F::Error> {
        let (view, range) = (file.state().view(), run.range());
        // Bytes past the end, in its block, are zeros.
        if view.is_extended_by(Range { pos: run.pos, length: run.end.saturating_sub(run.pos) }) {
            return Ok(None);
        }
        let mut pieces = Pieces::new();
        self.load_pieces(file, range, &mut pieces)?;
        Ok(match pieces[..] {
            [piece] if piece.state == State::Written && piece.length == range.length => Some(piece.physical),
            _ => None,
        })
    }

    fn send_together(&self, batch: &mut [Run<F::Error>], places: &[(usize, u64)]) {
        // Without a queue the runs have no result, and are sent one after another.
        let Ok(mut queue) = self.carrier() else { return };
        match self.carry_together(&mut queue, batch, places) {
            Ok(()) => {
                let mut idle = self.pages.carriers.idle.lock();
                if idle.len() < QUEUES_KEPT {
                    idle.push(queue);
                }
            }
            Err(error) => {
                // Its requests end before their memory goes.
                drop(queue);
                for &(number, _) in places {
                    batch[number].result.get_or_insert_with(|| Err(error.clone().into()));
                }
            }
        }
    }

    fn carry_together(
        &self,
        queue: &mut RawQueue,
        batch: &mut [Run<F::Error>],
        places: &[(usize, u64)],
    ) -> Result<(), Error> {
        let mut left = 0;
        for (tag, &(number, place)) in places.iter().enumerate() {
            if let Some(bytes) = batch[number].bytes.take() {
                queue.write(place, bytes, false, tag as u64)?;
                left += 1;
            }
        }
        queue.submit()?;
        while left > 0 {
            for done in queue.wait(1)? {
                left -= 1;
                let (Some(bytes), Some(&(number, place))) = (done.buffer, places.get(done.tag as usize))
                else {
                    continue;
                };
                let carried = self.check_carried(&bytes, place, done.result);
                batch[number].result = Some(carried.map_err(F::Error::from));
            }
        }
        Ok(())
    }

    /// The outcome of a device request. What it left undone without a failure is done now.
    fn check_carried(&self, bytes: &[u8], place: u64, result: i32) -> Result<(), Error> {
        let length = bytes.len() as u64;
        if usize::try_from(result) == Ok(bytes.len()) {
            self.counters.add(Counter::BytesWritten, length);
            return Ok(());
        }
        if result >= 0 || is_put_off(-result) {
            return self.write_counted(bytes, place, WriteDurability::Cached);
        }
        Err(DeviceError::Io { op: "write", pos: place, length, errno: -result }.into())
    }

    fn carrier(&self) -> Result<RawQueue, Error> {
        if let Some(queue) = self.pages.carriers.idle.lock().pop() {
            return Ok(queue);
        }
        let options = QueueOptions { register_buffers: Ask::No, ..QueueOptions::depth(RUNS_MAX as u32) };
        RawQueue::new(&self.device, options, self.bounces.clone())
    }

    /// Records which runs have arrived. Returns the first failure.
    fn note_arrivals(
        &self,
        inode: &Arc<F::Inode>,
        cache: &PageCache,
        map: &mut PageMap,
        batch: Vec<Run<F::Error>>,
    ) -> Result<(), F::Error> {
        let mut outcome = Ok(());
        for run in batch {
            let home = matches!(run.result, Some(Ok(())));
            map.arrive(run.pages.clone(), home);
            if home {
                self.counters.add(Counter::PageWrites, run.pages.end - run.pages.start);
            }
            if let Some(Err(error)) = run.result {
                cache.note_late(&error);
                self.counters.bump(Counter::LateFailures);
                outcome = outcome.and(Err(error));
            }
        }
        if !map.has_dirty() {
            self.note_home(inode, cache, map);
        }
        outcome
    }
}

/// Why [`PageBell::wait`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// Much is dirty: call [`Engine::send_pages_home`].
    Pages,
    /// The time has come.
    Time,
    /// The thread is to end.
    Stop,
}

/// How writers call the thread that sends pages home beside them.
#[derive(Debug, Default)]
pub struct PageBell {
    /// A thread listens.
    attended: AtomicBool,
    /// It was called and has not begun.
    called: AtomicBool,
    stops: Mutex<bool>,
    told: Condvar,
}

impl PageBell {
    /// A thread begins to call [`PageBell::wait`].
    pub fn attend(&self) {
        *self.stops.lock() = false;
        self.attended.store(true, Ordering::Release);
    }

    /// Waits until the thread is called or told to stop, or until a time.
    pub fn wait(&self, until: Instant) -> Ring {
        let mut stops = self.stops.lock();
        loop {
            if *stops {
                return Ring::Stop;
            }
            if self.called.swap(false, Ordering::AcqRel) {
                return Ring::Pages;
            }
            if self.told.wait_until(&mut stops, until).timed_out() {
                return Ring::Time;
            }
        }
    }

    /// Tells the thread to end.
    pub fn stop(&self) {
        self.attended.store(false, Ordering::Release);
        *self.stops.lock() = true;
        self.told.notify_all();
    }

    /// Whether the thread was told to end, or there is none.
    pub(crate) fn is_stopped(&self) -> bool {
        !self.attended.load(Ordering::Acquire)
    }

    /// Calls the thread, if there is one.
    pub(crate) fn ring(&self) {
        if !self.is_stopped() && !self.called.swap(true, Ordering::AcqRel) {
            // Under the lock, or a thread about to wait would not hear it.
            let _stops = self.stops.lock();
            self.told.notify_all();
        }
    }
}
