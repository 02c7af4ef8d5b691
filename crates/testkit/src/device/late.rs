//! Moves the bytes of queued requests late: when they are reaped, or when a test says so.
//!
//! The memory engine moves bytes when a request is pushed, so whoever forgets to wait for requests in flight
//! finds them done all the same. Here a queued write takes the caller's bytes, and a queued read the device's,
//! at the moment it *lands*: at the latest moment that its queue allows, which is a reap, or at the moment that a
//! [`LateHandle`] chooses. Nothing depends on time or threads, so a test that fails here fails always.
//!
//! Synchronous calls are the inner device's and come at once, before everything that has not landed.

use parking_lot::{Condvar, Mutex};
use slab::Slab;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;
use uext4_blockdev::engine::{goal, grant};
use uext4_blockdev::layer::wrap::{DeviceLayer, What};
use uext4_blockdev::{
    Capabilities, Device, DeviceQueue, Done, Full, Op, Queue, QueueFacts, QueueOptions, Request, Result,
    Wait, WriteDurability,
};

/// A device whose queued requests land late.
#[derive(Debug)]
pub struct LateDevice {
    inner: Arc<dyn Device>,
    handle: LateHandle,
}

/// Chooses when the queued requests of a [`LateDevice`] land, from any thread.
#[derive(Debug, Clone, Default)]
pub struct LateHandle {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Something landed, or may land now.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    held: bool,
    /// Synchronous calls of this kind let everything land before them.
    land_before: Option<Op>,
    /// One of each queue that is open.
    lanes: Slab<Lane>,
}

/// What a queue has submitted and not delivered, in order.
#[derive(Debug)]
struct Lane {
    inner: Arc<dyn Device>,
    waiting: VecDeque<Request>,
    landed: VecDeque<Done>,
}

impl LateHandle {
    /// From now on nothing lands when it is reaped: whoever waits for a request waits until [`LateHandle::release`]
    /// or [`LateHandle::land`]. A dropped queue waits for nobody: what it has submitted lands then.
    pub fn hold(&self) {
        self.shared.state.lock().held = true;
    }

    /// The same until the result is dropped. Drop it before a queue, which waits for its requests, also in a test that
    /// fails: declare it after the queue.
    pub fn held(&self) -> Held {
        self.hold();
        Held(self.clone())
    }

    /// Ends [`LateHandle::hold`].
    pub fn release(&self) {
        self.shared.state.lock().held = false;
        self.shared.changed.notify_all();
    }

    /// Lands everything submitted, of all queues, each in its order, held or not. The completions can be reaped
    /// from now on. Returns how many requests landed.
    pub fn land(&self) -> usize {
        let mut state = self.shared.state.lock();
        let landed = state.lanes.iter_mut().map(|(_, lane)| lane.land(usize::MAX)).sum();
        drop(state);
        self.shared.changed.notify_all();
        landed
    }

    /// Lands one request of those that wait: the `number`-th, queue by queue in the order of submission. So a device
    /// that completes in any order.
    pub fn land_one(&self, mut number: usize) {
        let mut state = self.shared.state.lock();
        for (_, lane) in &mut state.lanes {
            if number < lane.waiting.len() {
                lane.land_at(number);
                break;
            }
            number -= lane.waiting.len();
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Requests submitted that have not landed, of all queues.
    pub fn waiting(&self) -> usize {
        self.shared.state.lock().lanes.iter().map(|(_, lane)| lane.waiting.len()).sum()
    }

    /// Every synchronous call of this kind (reads, writes, flushes or discards) first lets everything land that was
    /// submitted: the moment that hurts most when it should have been waited for, for instance between the read and
    /// the write of a read-modify-write. `None` ends it.
    pub fn land_before(&self, op: Option<Op>) {
        self.shared.state.lock().land_before = op;
    }

    /// A synchronous call begins.
    fn meet(&self, op: Op) {
        let wanted = self.shared.state.lock().land_before == Some(op);
        if wanted {
            self.land();
        }
    }
}

impl Lane {
    /// Lands the oldest requests until `most` completions are there to be reaped. Returns how many landed.
    fn land(&mut self, most: usize) -> usize {
        let before = self.landed.len();
        while self.landed.len() < most && self.land_at(0) {}
        self.landed.len() - before
    }

    /// Lands one request. `false` if there is none at this place.
    fn land_at(&mut self, number: usize) -> bool {
        let request = self.waiting.remove(number);
        if let Some(request) = &request {
            // SAFETY: `request` came from a `push`, whose caller promises the memory until its completion was
            // delivered or the queue was dropped; the first happens later, with what is stored here, and the second
            // takes the lane away first.
            let result = unsafe { carry_out(&*self.inner, request) };
            self.landed.push_back(Done { tag: request.tag, result });
        }
        request.is_some()
    }
}

/// While it exists, requests land when a test says so.
#[derive(Debug)]
#[must_use]
pub struct Held(LateHandle);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Runs a request on the inner device; bytes or a negative errno.
///
/// # Safety
/// As [`DeviceQueue::push`].
unsafe fn carry_out(inner: &dyn Device, request: &Request) -> i32 {
    let (pos, length) = (request.pos, request.length as usize);
    let Ok(bytes) = i32::try_from(length) else { return -libc::EINVAL };
    let address = request.memory.address.as_ptr();
    let (outcome, bytes) = match request.op {
        Op::Read => {
            // SAFETY: the caller promises `length` writable bytes that nobody else touches.
            let memory = unsafe { std::slice::from_raw_parts_mut(address, length) };
            (inner.read_at(memory, pos), bytes)
        }
        Op::Write => {
            let durability = if request.fua { WriteDurability::Fua } else { WriteDurability::Cached };
            // SAFETY: the caller promises `length` readable bytes that nobody changes.
            let memory = unsafe { std::slice::from_raw_parts(address, length) };
            (inner.write_at(memory, pos, durability), bytes)
        }
        Op::Flush => (inner.flush(), 0),
        Op::Discard => (inner.discard(pos, length as u64), 0),
    };
    outcome.map_or_else(|error| -error.errno(), |()| bytes)
}

impl LateDevice {
    /// Wraps `inner`. Nothing is held: requests land when they are reaped.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        LateDevice { inner, handle: LateHandle::default() }
    }

    /// Chooses when requests land.
    pub fn handle(&self) -> LateHandle {
        self.handle.clone()
    }
}

impl DeviceLayer for LateDevice {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn names(&self) -> Vec<String> {
        vec!["late".into()]
    }

    fn run(&self, what: What, call: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        self.handle.meet(what.op);
        call(&*self.inner)
    }

    /// Never mapped memory: that would go around the queues.
    fn capabilities(&self) -> Capabilities {
        Capabilities { dax: None, ..self.inner.capabilities() }
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let facts = grant("late", options)?;
        let depth = options.depth as usize;
        let (waiting, landed) = (VecDeque::with_capacity(depth), VecDeque::with_capacity(depth));
        let lane = Lane { inner: Arc::clone(&self.inner), waiting, landed };
        let shared = Arc::clone(&self.handle.shared);
        let lane = shared.state.lock().lanes.insert(lane);
        let unsent = VecDeque::with_capacity(depth);
        Ok(Queue::Other(Box::new(LateQueue {
            shared,
            lane,
            unsent,
            depth: options.depth,
            in_flight: 0,
            facts,
        })))
    }
}

/// Queue of a [`LateDevice`].
#[derive(Debug)]
struct LateQueue {
    shared: Arc<Shared>,
    /// Of this queue among the lanes.
    lane: usize,
    /// Pushed and not submitted: not even [`LateHandle::land`] reaches them.
    unsent: VecDeque<Request>,
    depth: u32,
    in_flight: u32,
    facts: QueueFacts,
}

impl DeviceQueue for LateQueue {
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        if self.in_flight == self.depth {
            return Err(Full);
        }
        self.unsent.push_back(request);
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self) -> Result<usize> {
        let sent = self.unsent.len();
        self.shared.state.lock().lanes[self.lane].waiting.extend(self.unsent.drain(..));
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
            let (held, lane) = (state.held, &mut state.lanes[self.lane]);
            let room = out.capacity() - out.len();
            if !held {
                lane.land(room);
            }
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

impl Drop for LateQueue {
    /// What was submitted happens, as on every device.
    fn drop(&mut self) {
        // Under the lock to the end: afterwards the memory may be gone.
        let mut state = self.shared.state.lock();
        state.lanes[self.lane].land(usize::MAX);
        state.lanes.remove(self.lane);
    }
}
