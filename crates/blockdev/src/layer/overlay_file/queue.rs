//! A queue over two: requests go to the queue of the base or to that of the overlay file. Neither is waited for, with
//! two exceptions: a read that needs both runs when it is pushed, and so does a flush that has to write the map.

use super::device::Shared;
use crate::engine::DoneRing;
use crate::layer::pair::{self, Pair};
use crate::layer::slots::Slots;
use crate::layer::wake::Wake;
use crate::{DeviceQueue, Done, Error, Full, Op, Queue, QueueFacts, QueueOptions, Request, Result, Wait};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// A request in the queue of the overlay file.
#[derive(Debug, Clone, Copy)]
struct Sent {
    tag: u64,
    /// A write of granules that the map may not have: its first byte, and whether it must be durable.
    write: Option<(u64, bool)>,
}

/// See the module.
pub(super) struct OverlayFileQueue {
    shared: Arc<Shared>,
    base: Queue,
    store: Queue,
    sent: InStore,
    own: DoneRing,
    wake: Wake,
    polled: bool,
}

/// What is in the queue of the overlay file.
struct InStore {
    sent: Slots<Sent>,
    /// Durable writes of a batch of completions: where they are in it, and their granules.
    durable: Vec<usize>,
    written: Vec<Range<u64>>,
}

impl OverlayFileQueue {
    pub(super) fn open(shared: Arc<Shared>, options: &QueueOptions) -> Result<Queue> {
        let (base, store) = (shared.base.queue(options)?, shared.store.device.queue(options)?);
        let capacity = base.capacity().min(store.capacity());
        let polled = base.facts().polled || store.facts().polled;
        let queue = OverlayFileQueue {
            shared,
            base,
            store,
            sent: InStore {
                sent: Slots::new(capacity),
                durable: Vec::with_capacity(capacity as usize),
                written: Vec::with_capacity(capacity as usize),
            },
            own: DoneRing::new(capacity),
            wake: Wake::default(),
            polled,
        };
        Ok(Queue::Other(Box::new(queue)))
    }

    fn answer(&mut self, request: &Request, result: i32) -> std::result::Result<(), Full> {
        self.own.push(Done { tag: request.tag, result })
    }

    fn fail(&mut self, request: &Request, error: &Error) -> std::result::Result<(), Full> {
        self.answer(request, -error.errno())
    }

    /// Passes a request to the queue of the overlay file.
    ///
    /// # Safety
    /// As [`DeviceQueue::push`].
    unsafe fn pass(&mut self, request: Request, write: Option<(u64, bool)>) -> std::result::Result<(), Full> {
        let Some(tag) = self.sent.sent.insert(Sent { tag: request.tag, write }) else { return Err(Full) };
        let pos = if request.op == Op::Flush { 0 } else { self.shared.store.position(request.pos) };
        // SAFETY: the caller's promise is passed on.
        let pushed = unsafe { self.store.push(Request { pos, tag, ..request }) };
        if pushed.is_err() {
            self.sent.sent.remove(tag);
        }
        pushed
    }

    /// # Safety
    /// As [`DeviceQueue::push`].
    unsafe fn read(&mut self, request: Request) -> std::result::Result<(), Full> {
        let (pos, length) = (request.pos, u64::from(request.length));
        let piece = self.shared.piece(pos, pos + length);
        if piece.bytes.end == pos + length {
            // SAFETY: in both cases the caller's promise is passed on.
            return unsafe { if piece.kept { self.pass(request, None) } else { self.base.push(request) } };
        }
        let address = request.memory.address.as_ptr();
        // SAFETY: the caller promises `length` writable bytes that nobody else touches until the completion is
        // delivered, which happens after this call. They are not vectors, which this queue does not take.
        let memory = unsafe { std::slice::from_raw_parts_mut(address, request.length as usize) };
        match self.shared.read(memory, pos) {
            Ok(()) => self.answer(&request, i32::try_from(request.length).unwrap_or(i32::MAX)),
            Err(error) => self.fail(&request, &error),
        }
    }

    /// # Safety
    /// As [`DeviceQueue::push`].
    unsafe fn write(&mut self, request: Request) -> std::result::Result<(), Full> {
        let shared = Arc::clone(&self.shared);
        let granules = shared.store.granules(request.pos, u64::from(request.length));
        // A granule whose data is not durable yet may become so by this write.
        let known = shared.store.map.is_durable(granules);
        let write = (!known).then_some((request.pos, request.fua));
        // Without a cache every write is durable, and the device may have no FUA.
        let fua = request.fua && shared.store.device.capabilities().fua;
        // SAFETY: the caller's promise is passed on.
        unsafe { self.pass(Request { fua, ..request }, write) }
    }

    fn signal(&self) -> Result<()> {
        self.wake.set((self.own.len() > 0).then_some(0))
    }
}

impl InStore {
    /// Completes what came from the queue of the overlay file.
    fn complete(&mut self, shared: &Shared, done: &mut [Done]) {
        let store = &shared.store;
        for (at, done) in done.iter_mut().enumerate() {
            let Some(Sent { tag, write }) = self.sent.remove(done.tag) else { continue };
            done.tag = tag;
            let Some((pos, durable)) = write else { continue };
            let Ok(length) = u64::try_from(done.result) else { continue };
            let granules = store.granules(pos, length);
            if durable {
                self.durable.push(at);
                self.written.push(granules);
            } else {
                store.map.set_present(granules);
            }
        }
        if self.durable.is_empty() {
            return;
        }
        // Together, since they may be in one block of the map.
        if let Err(error) = store.settle(&self.written) {
            self.durable.iter().for_each(|at| done[*at].result = -error.errno());
        }
        self.durable.clear();
        self.written.clear();
    }
}

impl DeviceQueue for OverlayFileQueue {
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        if self.in_flight() >= self.capacity() || !self.shared.process.is_here() {
            return Err(Full);
        }
        let (pos, length) = (request.pos, u64::from(request.length));
        let checked = if request.op == Op::Flush { Ok(()) } else { self.shared.geometry.check(pos, length) };
        let changes = request.op != Op::Read && !(request.op == Op::Flush && self.shared.read_only);
        let checked = checked.and_then(|()| if changes { self.shared.check_writable() } else { Ok(()) });
        if let Err(error) = checked {
            return self.fail(&request, &error);
        }
        match request.op {
            // SAFETY: the caller's promise is passed on.
            Op::Read => unsafe { self.read(request) },
            // SAFETY: the same.
            Op::Write => unsafe { self.write(request) },
            Op::Discard => match self.shared.piece(pos, pos + length) {
                piece if !piece.kept && piece.bytes.end == pos + length => self.answer(&request, 0),
                // SAFETY: the same.
                _ => unsafe { self.pass(request, None) },
            },
            Op::Flush if self.shared.read_only => self.answer(&request, 0),
            // SAFETY: the same.
            Op::Flush if self.shared.store.is_settled() => unsafe { self.pass(request, None) },
            Op::Flush => match self.shared.store.flush() {
                Ok(()) => self.answer(&request, 0),
                Err(error) => self.fail(&request, &error),
            },
        }
    }

    fn submit(&mut self) -> Result<usize> {
        let own = self.own.send();
        self.signal()?;
        Ok(self.base.submit()? + self.store.submit()? + own)
    }

    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        self.own.send();
        let own = self.own.deliver(out);
        let wait = match wait {
            Wait::AtLeast(count) => Wait::AtLeast(count.saturating_sub(own as u32)),
            Wait::Timeout(_) if own > 0 => Wait::No,
            wait => wait,
        };
        let Self { shared, base, store, sent, polled, .. } = self;
        let mut both = Pair { first: store, second: base, polled: *polled };
        let passed = both.reap(out, wait, |done| sent.complete(shared, done));
        self.signal()?;
        Ok(passed? + own)
    }

    fn in_flight(&self) -> u32 {
        self.base.in_flight() + self.store.in_flight() + self.own.len()
    }

    fn capacity(&self) -> u32 {
        self.base.capacity().min(self.store.capacity())
    }

    fn facts(&self) -> QueueFacts {
        pair::facts(self.base.facts(), self.store.facts(), "overlay")
    }

    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        self.wake.get(&mut [&mut self.base, &mut self.store])?;
        self.signal()?;
        self.wake.get(&mut [&mut self.base, &mut self.store])
    }
}
