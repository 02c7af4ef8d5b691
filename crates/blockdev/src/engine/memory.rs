//! `mem:`: a device in memory that models caches and costs.
//!
//! Data moves when a request is made (at `push` for queued ones); what is delayed is the completion. Requests
//! in flight at the same time have no order on a real device either, and a completed one has happened in both
//! cases.

use super::pages::Pages;
use super::plain::{goal, grant};
use crate::timer::{TimerFd, duration_ns, now_ns, wait_until};
use crate::{
    Capabilities, Description, Device, DeviceQueue, Done, Driving, Error, Full, Geometry, Op, Queue,
    QueueFacts, QueueOptions, Request, Result, Sharing, Wait, WriteDurability,
};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a [`MemoryDevice`] models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Size in bytes, a positive multiple of `logical_block`. Memory is taken only for what is written.
    pub size: u64,
    /// Logical block size in bytes, a power of two, 512 ..= 65536.
    pub logical_block: u32,
    /// Memory alignment in bytes, a power of two. 512 by default although any address would do: code that
    /// runs here must also run with O_DIRECT on a disk with 512-byte sectors, and should fail here otherwise.
    pub memory_align: u32,
    /// Whether a flush is needed (and costs `flush_latency`). The device does not lose bytes either way.
    pub volatile_cache: bool,
    /// Whether FUA writes are accepted. They cost `latency`, or `fua_latency` if that is more, no flush.
    pub fua: bool,
    /// Each read, write or discard completes no earlier than this after it was submitted, any number in
    /// parallel.
    pub latency: Option<Duration>,
    /// The same for flushes. Without a volatile cache a flush has nothing to do and costs nothing.
    pub flush_latency: Option<Duration>,
    /// A write that carries FUA completes no earlier than this after it was submitted.
    pub fua_latency: Option<Duration>,
    /// Bytes a second at which a flush writes out what was written into the cache since the last one, beside
    /// `flush_latency`; it lasts no shorter than a flush that runs already, which may have taken the bytes.
    /// `None`: no time for bytes. Nothing is written out in between, and bytes written twice count twice.
    /// Without a volatile cache without effect. Not zero.
    pub flush_rate: Option<u64>,
}

impl MemoryOptions {
    /// A device without cost or volatile cache, 512-byte blocks, FUA accepted.
    pub fn new(size: u64) -> Self {
        MemoryOptions {
            size,
            logical_block: 512,
            memory_align: 512,
            volatile_cache: false,
            fua: true,
            latency: None,
            flush_latency: None,
            fua_latency: None,
            flush_rate: None,
        }
    }

    fn check(&self) -> Result<()> {
        let bad = |reason: &str| Error::BadSpec { spec: format!("mem:{}", self.size), reason: reason.into() };
        if !self.logical_block.is_power_of_two() || !(512..=65536).contains(&self.logical_block) {
            return Err(bad("the logical block size must be a power of two from 512 to 65536"));
        }
        if !self.memory_align.is_power_of_two() {
            return Err(bad("the memory alignment must be a power of two"));
        }
        if self.size == 0 || !self.size.is_multiple_of(u64::from(self.logical_block)) {
            return Err(bad("the size must be a positive multiple of the logical block size"));
        }
        if self.flush_rate == Some(0) {
            return Err(bad("a flush that writes nothing out would never end"));
        }
        Ok(())
    }
}

/// A device in private memory. See [`MemoryOptions`].
#[derive(Debug)]
pub struct MemoryDevice {
    pages: Arc<Pages>,
    options: MemoryOptions,
    costs: Costs,
    /// Only if the time of a flush depends on it.
    cache: Option<Arc<Cache>>,
}

/// Time that requests take, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Costs {
    data: u64,
    /// At least `data`.
    fua: u64,
    flush: u64,
}

/// What waits in the modelled cache, as far as flushes take time for it.
#[derive(Debug)]
struct Cache {
    /// Bytes written since the last flush began.
    bytes: AtomicU64,
    /// Bytes a second.
    rate: u64,
    /// When the flush that ends last is due.
    due: Mutex<u64>,
}

impl Cache {
    fn add(&self, length: usize) {
        self.bytes.fetch_add(length as u64, Ordering::Relaxed);
    }

    /// Begins a flush at `now` that takes `fixed` nanoseconds and the time for the bytes; when it is due.
    fn flush(&self, now: u64, fixed: u64) -> u64 {
        let mut latest = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        let time = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        let time = u64::try_from(time).unwrap_or(u64::MAX);
        *latest = latest.max(now.saturating_add(fixed).saturating_add(time));
        *latest
    }
}

impl MemoryDevice {
    /// A zeroed device. Errors: [`Error::BadSpec`] for impossible sizes, [`Error::Open`] without address
    /// space.
    pub fn new(options: MemoryOptions) -> Result<Self> {
        options.check()?;
        let flush = options.flush_latency.filter(|_| options.volatile_cache);
        let data = options.latency.map_or(0, duration_ns);
        let fua = options.fua_latency.map_or(0, duration_ns).max(data);
        let costs = Costs { data, fua, flush: flush.map_or(0, duration_ns) };
        let rate = options.flush_rate.filter(|_| options.volatile_cache);
        let cache = rate.map(|rate| Arc::new(Cache { bytes: AtomicU64::new(0), rate, due: Mutex::new(0) }));
        Ok(MemoryDevice { pages: Arc::new(Pages::new(options.size)?), options, costs, cache })
    }

    /// Runs a synchronous request that takes `cost` nanoseconds.
    #[inline]
    fn timed(
        &self,
        cost: u64,
        op: Op,
        pos: u64,
        length: u64,
        run: impl FnOnce(&Pages) -> std::result::Result<(), i32>,
    ) -> Result<()> {
        let due = if cost == 0 { 0 } else { now_ns().saturating_add(cost) };
        run(&self.pages).map_err(|errno| Error::Io { op: op.name(), pos, length, errno })?;
        if due != 0 {
            wait_until(due);
        }
        Ok(())
    }
}

impl Device for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.options.size,
            logical_block: self.options.logical_block,
            memory_align: self.options.memory_align,
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: self.options.volatile_cache,
            fua: self.options.fua,
            nowait: true,
            discard: true,
            read_only: false,
            dax: None,
        }
    }

    fn describe(&self) -> Description {
        let mut notes = Vec::new();
        if let Some(latency) = self.options.latency {
            notes.push(format!("each request takes {latency:?}"));
        }
        if let Some(latency) = self.options.flush_latency.filter(|_| self.options.volatile_cache) {
            notes.push(format!("each flush takes {latency:?}"));
        }
        if let Some(latency) = self.options.fua_latency.filter(|_| self.options.fua) {
            notes.push(format!("each FUA write takes {latency:?}"));
        }
        if let Some(cache) = &self.cache {
            notes.push(format!("a flush writes {} cached bytes out in a second", cache.rate));
        }
        let locator = self.options.size.to_string();
        Description {
            engine: "mem",
            locator,
            layers: Vec::new(),
            sharing: Sharing::Private,
            driving: Driving::Engine,
            tags: None,
            notes,
        }
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let geometry = self.geometry();
        geometry.check(pos, buf.len() as u64)?;
        geometry.check_memory(buf.as_ptr() as usize)?;
        self.timed(self.costs.data, Op::Read, pos, buf.len() as u64, |pages| {
            // SAFETY: `buf` is exclusively ours and has this length.
            unsafe { pages.read(pos, buf.as_mut_ptr(), buf.len()) }
        })
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        let geometry = self.geometry();
        geometry.check(pos, buf.len() as u64)?;
        geometry.check_memory(buf.as_ptr() as usize)?;
        if durability == WriteDurability::Fua && !self.options.fua {
            return Err(Error::Unsupported("FUA write (fua=off)".into()));
        }
        let cost = if durability == WriteDurability::Fua { self.costs.fua } else { self.costs.data };
        if let Some(cache) = self.cache.as_ref().filter(|_| durability == WriteDurability::Cached) {
            cache.add(buf.len());
        }
        self.timed(cost, Op::Write, pos, buf.len() as u64, |pages| {
            // SAFETY: a shared slice is valid for reads of its length and not written meanwhile.
            unsafe { pages.write(pos, buf.as_ptr(), buf.len()) }
        })
    }

    fn flush(&self) -> Result<()> {
        if let Some(cache) = &self.cache {
            wait_until(cache.flush(now_ns(), self.costs.flush));
            return Ok(());
        }
        self.timed(self.costs.flush, Op::Flush, 0, 0, |_| Ok(()))
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.geometry().check(pos, length)?;
        self.timed(self.costs.data, Op::Discard, pos, length, |pages| pages.discard(pos, length))
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let facts = grant("mem", options)?;
        Ok(Queue::Other(Box::new(MemoryQueue {
            pages: Arc::clone(&self.pages),
            geometry: self.geometry(),
            fua: self.options.fua,
            data: Lane::new(options.depth, self.costs.data, None),
            durable: (self.costs.fua != self.costs.data)
                .then(|| Lane::new(options.depth, self.costs.fua, None)),
            flushes: Lane::new(options.depth, self.costs.flush, self.cache.clone()),
            cache: self.cache.clone(),
            depth: options.depth,
            timer: TimerFd::default(),
            facts,
        })))
    }
}

/// Completions that all take equally long, or flush a cache one after another, and therefore fall due in the
/// order of submission.
#[derive(Debug)]
struct Lane {
    /// Time due and completion, by position modulo the length, a power of two.
    slots: Box<[(u64, Done)]>,
    cost: u64,
    /// Takes its time beside `cost`.
    cache: Option<Arc<Cache>>,
    head: u32,
    /// Positions from here on have no due time yet: they are pushed, not submitted.
    unsent: u32,
    tail: u32,
}

impl Lane {
    fn new(depth: u32, cost: u64, cache: Option<Arc<Cache>>) -> Self {
        let slots = vec![(0, Done { tag: 0, result: 0 }); depth.next_power_of_two() as usize];
        Lane { slots: slots.into_boxed_slice(), cost, cache, head: 0, unsent: 0, tail: 0 }
    }

    #[inline]
    fn slot(&self, position: u32) -> usize {
        position as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn push(&mut self, done: Done) {
        let slot = self.slot(self.tail);
        self.slots[slot] = (0, done);
        self.tail = self.tail.wrapping_add(1);
    }

    #[inline]
    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Starts the clock of everything pushed. Reads the clock only if it matters.
    #[inline]
    fn send(&mut self, now: &mut Option<u64>) -> usize {
        let count = self.tail.wrapping_sub(self.unsent);
        if self.cost == 0 && self.cache.is_none() {
            self.unsent = self.tail;
        } else if count > 0 {
            let now = *now.get_or_insert_with(now_ns);
            let fixed = || now.saturating_add(self.cost);
            let due = self.cache.as_ref().map_or_else(fixed, |cache| cache.flush(now, self.cost));
            while self.unsent != self.tail {
                let slot = self.slot(self.unsent);
                self.slots[slot].0 = due;
                self.unsent = self.unsent.wrapping_add(1);
            }
        }
        count as usize
    }

    /// When the oldest is due.
    #[inline]
    fn next_due(&self) -> Option<u64> {
        (self.len() > 0).then(|| self.slots[self.slot(self.head)].0)
    }

    /// Moves what is due into the spare capacity of `out`.
    #[inline]
    fn deliver(&mut self, out: &mut Vec<Done>, now: &mut Option<u64>) {
        let mut room = out.capacity() - out.len();
        while room > 0 && self.head != self.unsent {
            let (due, done) = self.slots[self.slot(self.head)];
            if due != 0 && *now.get_or_insert_with(now_ns) < due {
                break;
            }
            out.push(done);
            room -= 1;
            self.head = self.head.wrapping_add(1);
        }
    }
}

/// Queue of a [`MemoryDevice`].
#[derive(Debug)]
struct MemoryQueue {
    pages: Arc<Pages>,
    geometry: Geometry,
    fua: bool,
    data: Lane,
    /// FUA writes, if they take longer than others.
    durable: Option<Lane>,
    flushes: Lane,
    cache: Option<Arc<Cache>>,
    depth: u32,
    timer: TimerFd,
    facts: QueueFacts,
}

impl MemoryQueue {
    /// Carries out a request; bytes or a negative errno.
    ///
    /// # Safety
    /// As [`DeviceQueue::push`].
    #[inline]
    unsafe fn run(&self, request: &Request) -> i32 {
        let (pos, length) = (request.pos, request.length as usize);
        let address = request.memory.address.as_ptr();
        // A completion carries at most `i32::MAX` bytes.
        if self.geometry.check(pos, length as u64).is_err() || i32::try_from(length).is_err() {
            return -libc::EINVAL;
        }
        let outcome = match request.op {
            Op::Read | Op::Write if self.geometry.check_memory(address as usize).is_err() => {
                Err(libc::EINVAL)
            }
            // SAFETY: the caller promises `length` writable bytes that nobody else touches.
            Op::Read => unsafe { self.pages.read(pos, address, length) },
            Op::Write if request.fua && !self.fua => Err(libc::EOPNOTSUPP),
            Op::Write => {
                if let Some(cache) = self.cache.as_ref().filter(|_| !request.fua) {
                    cache.add(length);
                }
                // SAFETY: the caller promises `length` readable bytes that nobody changes.
                unsafe { self.pages.write(pos, address, length) }
            }
            Op::Discard => self.pages.discard(pos, length as u64),
            Op::Flush => Ok(()),
        };
        match outcome {
            Ok(()) if request.op == Op::Discard => 0,
            Ok(()) => length as i32,
            Err(errno) => -errno,
        }
    }

    fn next_due(&self) -> Option<u64> {
        let durable = self.durable.as_ref().and_then(Lane::next_due);
        [self.data.next_due(), durable, self.flushes.next_due()].into_iter().flatten().min()
    }

    /// Starts the clock of everything pushed.
    #[inline]
    fn send(&mut self, now: &mut Option<u64>) -> usize {
        let durable = self.durable.as_mut().map_or(0, |lane| lane.send(now));
        self.data.send(now) + durable + self.flushes.send(now)
    }
}

impl DeviceQueue for MemoryQueue {
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        if self.in_flight() == self.depth {
            return Err(Full);
        }
        if request.op == Op::Flush {
            self.flushes.push(Done { tag: request.tag, result: 0 });
            return Ok(());
        }
        // SAFETY: the caller's promise is passed on.
        let result = unsafe { self.run(&request) };
        let lane = match &mut self.durable {
            Some(durable) if request.fua && request.op == Op::Write => durable,
            _ => &mut self.data,
        };
        lane.push(Done { tag: request.tag, result });
        Ok(())
    }

    fn submit(&mut self) -> Result<usize> {
        let mut now = None;
        let sent = self.send(&mut now);
        if self.timer.is_wanted() {
            self.timer.set(self.next_due())?;
        }
        Ok(sent)
    }

    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        let mut now = None;
        self.send(&mut now);
        let before = out.len();
        let goal = goal(wait, self.in_flight(), out);
        let deadline = match wait {
            Wait::Timeout(limit) => now_ns().saturating_add(duration_ns(limit)),
            _ => u64::MAX,
        };
        loop {
            self.data.deliver(out, &mut now);
            if let Some(durable) = &mut self.durable {
                durable.deliver(out, &mut now);
            }
            self.flushes.deliver(out, &mut now);
            let late = deadline != u64::MAX && now_ns() >= deadline;
            match self.next_due() {
                Some(due) if out.len() - before < goal && !late => wait_until(due.min(deadline)),
                _ => break,
            }
            now = None;
        }
        if self.timer.is_wanted() {
            self.timer.set(self.next_due())?;
        }
        Ok(out.len() - before)
    }

    fn in_flight(&self) -> u32 {
        self.data.len() + self.durable.as_ref().map_or(0, Lane::len) + self.flushes.len()
    }

    fn capacity(&self) -> u32 {
        self.depth
    }

    fn facts(&self) -> QueueFacts {
        self.facts.clone()
    }

    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        let due = self.next_due();
        self.timer.get()?;
        self.timer.set(due)?;
        self.timer.get().map(Some)
    }
}
