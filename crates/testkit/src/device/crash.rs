//! Records what a power cut could leave behind: live bytes and durable bytes are two things here.
//!
//! Reads see the live bytes, which the inner device holds. Every write, flush and discard, synchronous or queued, is
//! written into a log: when it was submitted, when it completed, with which bytes. Tests put marks between them ("this
//! write was acknowledged"). [`crate::crash`] turns a [`CrashLog`] into the images that a crash may leave.
//!
//! A queued request is carried out when it completes, which is when it is reaped, or when a [`CrashHandle`] says so. A
//! write's bytes are read at that moment: whoever uses a buffer again too early, or frees an extent under a write in
//! flight, finds the damage in the image.
//!
//! The log is bounded. A request that would not fit fails with `ENOBUFS`, and there is no log until the next reset.

use parking_lot::{Condvar, Mutex};
use slab::Slab;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;
use uext4_blockdev::engine::{goal, grant};
use uext4_blockdev::layer::wrap::{DeviceLayer, What};
use uext4_blockdev::{
    Capabilities, Device, DeviceQueue, Done, Error, Full, Op, Queue, QueueFacts, QueueOptions, Request,
    Result, Wait, WriteDurability,
};

/// What each operation, event or mark counts beside its bytes.
const ENTRY_BYTES: usize = 128;

/// What a [`CrashDevice`] models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashOptions {
    /// Whether completed writes wait for a flush. Without it they are durable when they complete.
    pub volatile_cache: bool,
    /// Whether FUA writes are accepted.
    pub fua: bool,
    /// Most bytes that the log may hold, the image at its start not counted.
    pub limit: usize,
}

impl Default for CrashOptions {
    /// A volatile cache, FUA, 256 MiB.
    fn default() -> Self {
        CrashOptions { volatile_cache: true, fua: true, limit: 256 << 20 }
    }
}

/// How an operation of a log ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrashOutcome {
    /// Submitted and not completed when the log was taken.
    InFlight,
    /// Completed with success.
    Done,
    /// Failed: a write may have happened in part, a flush made nothing durable.
    Failed,
}

/// One write, flush or discard.
#[derive(Debug, Clone)]
pub struct CrashOperation {
    /// Write, flush or discard.
    pub op: Op,
    /// First byte (of a flush, of the [part](super::CrashPart) that it is about).
    pub pos: u64,
    /// Bytes (of a flush, of that part; 0: of the whole device).
    pub length: u64,
    /// A write that is durable when it completes.
    pub fua: bool,
    /// Through a queue rather than a synchronous call.
    pub queued: bool,
    /// What a write wrote. `None`: it is no write.
    pub data: Option<Arc<[u8]>>,
    /// How it ended.
    pub outcome: CrashOutcome,
}

/// What a test has put into the log.
pub type CrashMark = Arc<dyn Any + Send + Sync>;

/// What happened, in order. Numbers are indices of [`CrashLog::operations`].
#[derive(Debug, Clone)]
pub enum CrashEvent {
    /// The device was given an operation. From now on a crash may find a write on the medium.
    Submitted(usize),
    /// An operation completed.
    Completed(usize),
    /// The test said something.
    Marked(CrashMark),
}

/// All that a device was told since the last reset.
#[derive(Debug, Clone)]
pub struct CrashLog {
    /// Logical block size of the device in bytes: what the medium writes whole or not at all.
    pub block: u32,
    /// See [`CrashOptions::volatile_cache`].
    pub volatile_cache: bool,
    /// The whole device at the reset: durable.
    pub base: Arc<[u8]>,
    /// In the order of submission.
    pub operations: Vec<CrashOperation>,
    /// In the order in which they happened.
    pub events: Vec<CrashEvent>,
}

/// A device that records what a power cut could leave behind.
#[derive(Debug)]
pub struct CrashDevice {
    handle: CrashHandle,
}

/// Takes the log of a [`CrashDevice`], marks it, and chooses when queued requests complete, from any thread.
#[derive(Debug, Clone)]
pub struct CrashHandle {
    shared: Arc<Shared>,
}

struct Shared {
    inner: Arc<dyn Device>,
    options: CrashOptions,
    state: Mutex<State>,
    /// Something completed, or may complete now.
    changed: Condvar,
}

struct State {
    record: Record,
    held: bool,
    /// State of the generator that picks what completes next. `None`: the oldest.
    shuffle: Option<u64>,
    /// One of each queue that is open.
    lanes: Slab<Lane>,
}

/// The log in the making.
struct Record {
    base: Arc<[u8]>,
    operations: Vec<CrashOperation>,
    events: Vec<CrashEvent>,
    /// Where the operations in flight are, by their ticket.
    open: BTreeMap<u64, usize>,
    next_ticket: u64,
    used: usize,
    limit: usize,
    overflowed: bool,
}

/// What a queue was given and has not delivered.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<Waiting>,
    /// How many of `waiting`, from the front, were submitted. The others were only pushed: nothing lands them.
    sent: usize,
    landed: VecDeque<Done>,
}

struct Waiting {
    request: Request,
    /// `None`: not recorded, as reads are.
    ticket: Option<u64>,
    /// The log had no room.
    refused: bool,
}

impl Record {
    fn new(base: Arc<[u8]>, limit: usize) -> Self {
        Record {
            base,
            operations: Vec::new(),
            events: Vec::new(),
            open: BTreeMap::new(),
            next_ticket: 0,
            used: 0,
            limit,
            overflowed: false,
        }
    }

    /// Whether there is room for this many bytes more. Once there is none, there is none until the reset: a log with
    /// a gap says nothing.
    fn reserve(&mut self, bytes: usize) -> bool {
        let used = self.used.saturating_add(bytes);
        self.overflowed |= used > self.limit;
        if !self.overflowed {
            self.used = used;
        }
        !self.overflowed
    }

    /// An operation begins. `None` without room.
    fn submit(&mut self, what: &What, queued: bool, data: Option<Arc<[u8]>>) -> Option<u64> {
        let bytes = if what.op == Op::Write { what.length as usize } else { 0 };
        if !self.reserve(bytes.saturating_add(3 * ENTRY_BYTES)) {
            return None;
        }
        let What { op, pos, length, fua, .. } = *what;
        let outcome = CrashOutcome::InFlight;
        let operation = CrashOperation { op, pos, length, fua, queued, data, outcome };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.begin(ticket, operation);
        Some(ticket)
    }

    fn begin(&mut self, ticket: u64, operation: CrashOperation) {
        let index = self.operations.len();
        self.operations.push(operation);
        self.events.push(CrashEvent::Submitted(index));
        self.open.insert(ticket, index);
    }

    /// Sets the bytes that a queued write has taken.
    fn take(&mut self, ticket: u64, data: &[u8]) {
        if let Some(&index) = self.open.get(&ticket) {
            self.operations[index].data = Some(Arc::from(data));
        }
    }

    /// An operation ends.
    fn complete(&mut self, ticket: u64, outcome: CrashOutcome) {
        if let Some(index) = self.open.remove(&ticket) {
            self.operations[index].outcome = outcome;
            self.events.push(CrashEvent::Completed(index));
        }
    }

    /// Starts again from this image. What is in flight is in flight at the start of the new log.
    fn reset(&mut self, base: Arc<[u8]>) {
        let open = std::mem::take(&mut self.open);
        let old = std::mem::take(&mut self.operations);
        *self = Record { next_ticket: self.next_ticket, ..Record::new(base, self.limit) };
        for (ticket, index) in open {
            let operation = old[index].clone();
            // Never refused: these have fitted before.
            self.reserve(operation.length as usize + 3 * ENTRY_BYTES);
            self.begin(ticket, operation);
        }
    }
}

impl State {
    /// Lands requests of a queue until `most` completions are there to be reaped. Returns how many landed.
    fn land(&mut self, shared: &Shared, lane: usize, most: usize) -> usize {
        let before = self.lanes[lane].landed.len();
        while self.lanes[lane].landed.len() < most && self.lanes[lane].sent > 0 {
            let index = self.pick(self.lanes[lane].sent);
            self.lanes[lane].sent -= 1;
            let Some(waiting) = self.lanes[lane].waiting.remove(index) else { break };
            let result = self.carry_out(shared, &waiting);
            self.lanes[lane].landed.push_back(Done { tag: waiting.request.tag, result });
        }
        self.lanes[lane].landed.len() - before
    }

    /// Which of `count` completes next (xorshift64).
    fn pick(&mut self, count: usize) -> usize {
        let Some(state) = &mut self.shuffle else { return 0 };
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state % count as u64) as usize
    }

    /// Runs a queued request on the inner device; bytes or a negative errno.
    fn carry_out(&mut self, shared: &Shared, waiting: &Waiting) -> i32 {
        let Waiting { request, ticket, refused } = *waiting;
        if refused {
            return -libc::ENOBUFS;
        }
        let (pos, length) = (request.pos, request.length as usize);
        let Ok(bytes) = i32::try_from(length) else { return -libc::EINVAL };
        let address = request.memory.address.as_ptr();
        let inner = &*shared.inner;
        let (outcome, bytes) = match request.op {
            Op::Read => {
                // SAFETY: `request` came from a `push`, whose caller promises `length` writable bytes that nobody else
                // touches until the completion was delivered, which happens after this call, or the queue was dropped,
                // which takes the lane away first.
                let memory = unsafe { std::slice::from_raw_parts_mut(address, length) };
                (inner.read_at(memory, pos), bytes)
            }
            Op::Write => {
                // SAFETY: as above, with readable bytes that nobody changes.
                let memory = unsafe { std::slice::from_raw_parts(address, length) };
                if let Some(ticket) = ticket {
                    self.record.take(ticket, memory);
                }
                (shared.write(memory, pos, request.fua), bytes)
            }
            Op::Flush => (inner.flush(), 0),
            Op::Discard => (inner.discard(pos, length as u64), 0),
        };
        if let Some(ticket) = ticket {
            self.record.complete(ticket, CrashOutcome::of(&outcome));
        }
        outcome.map_or_else(|error| -error.errno(), |()| bytes)
    }

    /// What writes in flight would take if they completed now.
    fn peek(&self, operations: &mut [CrashOperation]) {
        for waiting in self.lanes.iter().flat_map(|(_, lane)| &lane.waiting) {
            let index = waiting.ticket.and_then(|ticket| self.record.open.get(&ticket));
            let (Some(&index), Op::Write) = (index, waiting.request.op) else { continue };
            let (address, length) =
                (waiting.request.memory.address.as_ptr(), waiting.request.length as usize);
            // SAFETY: as in `carry_out`: the request is in its lane, so its completion was not delivered and its queue
            // not dropped; the lock on the state keeps it there.
            let memory = unsafe { std::slice::from_raw_parts(address, length) };
            operations[index].data = Some(Arc::from(memory));
        }
    }
}

impl CrashOutcome {
    fn of(outcome: &Result<()>) -> Self {
        if outcome.is_ok() { CrashOutcome::Done } else { CrashOutcome::Failed }
    }
}

impl Shared {
    /// Changes the live bytes.
    fn write(&self, memory: &[u8], pos: u64, fua: bool) -> Result<()> {
        if fua && !self.options.fua {
            return Err(Error::Unsupported("FUA write (fua=off)".into()));
        }
        let fua = fua && self.inner.capabilities().fua;
        let durability = if fua { WriteDurability::Fua } else { WriteDurability::Cached };
        self.inner.write_at(memory, pos, durability)
    }

    /// Whether the device would take it: what it refuses leaves no trace.
    fn is_sound(&self, what: &What, address: Option<usize>) -> bool {
        let geometry = self.inner.geometry();
        let refused = what.fua && !self.options.fua;
        what.op == Op::Flush
            || (!refused
                && geometry.check(what.pos, what.length).is_ok()
                && address.is_none_or(|address| geometry.check_memory(address).is_ok()))
    }

    fn submit(&self, what: &What, data: Option<Arc<[u8]>>) -> Result<u64> {
        self.state.lock().record.submit(what, false, data).ok_or_else(|| no_room(what))
    }

    /// The live bytes, for a record that starts now. Nothing may be written meanwhile.
    fn image(&self) -> Result<Arc<[u8]>> {
        let size = self.inner.geometry().size;
        // Aligned for any device.
        let mut buffer = uext4_blockdev::BufferPool::new(1 << 20)?.take(1 << 20)?;
        let mut image = Vec::with_capacity(size as usize);
        while (image.len() as u64) < size {
            let length = (buffer.len() as u64).min(size - image.len() as u64) as usize;
            self.inner.read_at(&mut buffer[..length], image.len() as u64)?;
            image.extend_from_slice(&buffer[..length]);
        }
        Ok(image.into())
    }
}

fn no_room(what: &What) -> Error {
    Error::Io { op: what.op.name(), pos: what.pos, length: what.length, errno: libc::ENOBUFS }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("inner", &self.inner)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl CrashHandle {
    /// From here on everything written so far is durable: forgets the log, and takes the image anew. Requests in flight
    /// are in flight at the start of the new log.
    pub fn reset(&self) -> Result<()> {
        let mut state = self.shared.state.lock();
        let base = self.shared.image()?;
        state.record.reset(base);
        Ok(())
    }

    /// Puts a mark into the log: anything that tells an enumerator of states what must be there from here on.
    pub fn mark(&self, mark: impl Any + Send + Sync) {
        let record = &mut self.shared.state.lock().record;
        if record.reserve(ENTRY_BYTES) {
            record.events.push(CrashEvent::Marked(Arc::new(mark)));
        }
    }

    /// The log up to now, as if the power went now: queued writes in flight have the bytes that they would take now.
    /// Fails with `ENOBUFS` if something did not fit.
    pub fn log(&self) -> Result<CrashLog> {
        let state = self.shared.state.lock();
        let record = &state.record;
        if record.overflowed {
            return Err(no_room(&What::call(Op::Write, 0, record.limit as u64)));
        }
        let mut operations = record.operations.clone();
        state.peek(&mut operations);
        Ok(CrashLog {
            block: self.shared.inner.geometry().logical_block,
            volatile_cache: self.shared.options.volatile_cache,
            base: Arc::clone(&record.base),
            operations,
            events: record.events.clone(),
        })
    }

    /// From now on no queued request completes when it is reaped: whoever waits for one waits until
    /// [`CrashHandle::release`] or [`CrashHandle::land`]. A dropped queue waits for nobody: what it has submitted
    /// lands.
    pub fn hold(&self) {
        self.shared.state.lock().held = true;
    }

    /// Ends [`CrashHandle::hold`].
    pub fn release(&self) {
        self.shared.state.lock().held = false;
        self.shared.changed.notify_all();
    }

    /// Lands everything submitted, of all queues, held or not. Returns how many requests landed.
    pub fn land(&self) -> usize {
        let mut state = self.shared.state.lock();
        let lanes: Vec<usize> = state.lanes.iter().map(|(lane, _)| lane).collect();
        let landed = lanes.into_iter().map(|lane| state.land(&self.shared, lane, usize::MAX)).sum();
        drop(state);
        self.shared.changed.notify_all();
        landed
    }

    /// Queued requests submitted that have not completed.
    pub fn waiting(&self) -> usize {
        self.shared.state.lock().lanes.iter().map(|(_, lane)| lane.sent).sum()
    }

    /// Queued requests complete in an order that this seed decides; `None`: in the order of submission.
    pub fn shuffle(&self, seed: Option<u64>) {
        // The generator has one bad state, zero.
        self.shared.state.lock().shuffle = seed.map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    }
}

impl CrashDevice {
    /// Wraps `inner`, whose present contents are durable. Nobody else may write to it.
    pub fn new(inner: Arc<dyn Device>, options: CrashOptions) -> Result<Self> {
        let record = Record::new(Arc::from([]), options.limit);
        let state = Mutex::new(State { record, held: false, shuffle: None, lanes: Slab::new() });
        let shared = Arc::new(Shared { inner, options, state, changed: Condvar::new() });
        let handle = CrashHandle { shared };
        handle.reset()?;
        Ok(CrashDevice { handle })
    }

    /// Flushes a part of it.
    pub(super) fn flush_part(&self, pos: u64, length: u64) -> Result<()> {
        self.run(What::call(Op::Flush, pos, length), |inner| inner.flush())
    }

    /// Its log.
    pub fn handle(&self) -> CrashHandle {
        self.handle.clone()
    }
}

impl DeviceLayer for CrashDevice {
    fn inner(&self) -> &dyn Device {
        &*self.handle.shared.inner
    }

    fn names(&self) -> Vec<String> {
        vec!["crash".into()]
    }

    /// Never mapped memory: that would go around the log.
    fn capabilities(&self) -> Capabilities {
        let CrashOptions { volatile_cache, fua, .. } = self.handle.shared.options;
        Capabilities { volatile_cache, fua, dax: None, ..self.inner().capabilities() }
    }

    /// Reads, flushes and discards.
    fn run(&self, what: What, call: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        let shared = &*self.handle.shared;
        if what.op == Op::Read || !shared.is_sound(&what, None) {
            return call(&*shared.inner);
        }
        let ticket = shared.submit(&what, None)?;
        // A flush takes time and changes no bytes; a discard keeps its place among the writes.
        let (state, outcome) = match what.op {
            Op::Flush => (None, call(&*shared.inner)),
            _ => (Some(shared.state.lock()), call(&*shared.inner)),
        };
        let mut state = state.unwrap_or_else(|| shared.state.lock());
        state.record.complete(ticket, CrashOutcome::of(&outcome));
        outcome
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        let shared = &*self.handle.shared;
        let fua = durability == WriteDurability::Fua;
        let what = What { fua, ..What::call(Op::Write, pos, buf.len() as u64) };
        if !shared.is_sound(&what, Some(buf.as_ptr() as usize)) {
            return shared.write(buf, pos, fua);
        }
        let ticket = shared.submit(&what, Some(Arc::from(buf)))?;
        // Bytes and log change together, so that both have one order.
        let mut state = shared.state.lock();
        let outcome = shared.write(buf, pos, fua);
        state.record.complete(ticket, CrashOutcome::of(&outcome));
        outcome
    }

    fn merges_flushes(&self) -> bool {
        false
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let facts = grant("crash", options)?;
        let shared = Arc::clone(&self.handle.shared);
        let lane = shared.state.lock().lanes.insert(Lane::default());
        Ok(Queue::Other(Box::new(CrashQueue { shared, lane, depth: options.depth, in_flight: 0, facts })))
    }
}

/// Queue of a [`CrashDevice`].
struct CrashQueue {
    shared: Arc<Shared>,
    /// Of this queue among the lanes.
    lane: usize,
    depth: u32,
    in_flight: u32,
    facts: QueueFacts,
}

impl DeviceQueue for CrashQueue {
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        if self.in_flight == self.depth {
            return Err(Full);
        }
        let mut what = What::of(&request);
        if what.op == Op::Flush {
            (what.pos, what.length) = (request.pos, u64::from(request.length));
        }
        let address = (what.op == Op::Write).then_some(request.memory.address.as_ptr() as usize);
        let recorded = what.op != Op::Read && self.shared.is_sound(&what, address);
        let state = &mut *self.shared.state.lock();
        // Submitted from here on: a queue may start before it is told to.
        let ticket = if recorded { state.record.submit(&what, true, None) } else { None };
        let refused = recorded && ticket.is_none();
        state.lanes[self.lane].waiting.push_back(Waiting { request, ticket, refused });
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self) -> Result<usize> {
        let lane = &mut self.shared.state.lock().lanes[self.lane];
        let sent = lane.waiting.len() - lane.sent;
        lane.sent = lane.waiting.len();
        Ok(sent)
    }

    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        self.submit()?;
        let before = out.len();
        let goal = goal(wait, self.in_flight, out);
        let deadline = match wait {
            Wait::Timeout(limit) => Instant::now().checked_add(limit),
            _ => None,
        };
        let mut state = self.shared.state.lock();
        loop {
            let room = out.capacity() - out.len();
            if !state.held {
                state.land(&self.shared, self.lane, room);
            }
            let lane = &mut state.lanes[self.lane];
            let count = room.min(lane.landed.len());
            out.extend(lane.landed.drain(..count));
            if out.len() - before >= goal {
                break;
            }
            match deadline {
                None => self.shared.changed.wait(&mut state),
                Some(deadline) if self.shared.changed.wait_until(&mut state, deadline).timed_out() => break,
                Some(_) => {}
            }
        }
        let delivered = out.len() - before;
        self.in_flight -= delivered as u32;
        Ok(delivered)
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn capacity(&self) -> u32 {
        self.depth
    }

    fn facts(&self) -> QueueFacts {
        self.facts.clone()
    }

    /// `None`: nothing lands unless somebody asks.
    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        Ok(None)
    }
}

impl Drop for CrashQueue {
    /// What was submitted happens, as on every device. Under the lock to the end: afterwards the memory may be gone.
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.land(&self.shared, self.lane, usize::MAX);
        let lane = state.lanes.remove(self.lane);
        // What was only pushed never happens. Its bytes are not known, so it may not stay in the log as in flight.
        for ticket in lane.waiting.into_iter().filter_map(|waiting| waiting.ticket) {
            state.record.complete(ticket, CrashOutcome::Failed);
        }
    }
}
