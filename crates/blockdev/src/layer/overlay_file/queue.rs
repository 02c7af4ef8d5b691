//! A queue over two: requests go to the queue of the base or to that of the overlay file. Neither is waited for, with
//! two exceptions: a read that needs both runs when it is pushed, and so does a flush that has to write the map.

use super::device::Shared;
use crate::engine::{DoneRing, goal};
use crate::layer::slots::Slots;
use crate::layer::wake::Wake;
use crate::timer::{duration_ns, now_ns};
use crate::{DeviceQueue, Done, Error, Full, Op, Queue, QueueFacts, QueueOptions, Request, Result, Wait};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// How long to wait for one of two queues that have no descriptors.
const GLANCE: Duration = Duration::from_micros(50);

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
    sent: Slots<Sent>,
    own: DoneRing,
    wake: Wake,
    polled: bool,
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
            sent: Slots::new(capacity),
            own: DoneRing::new(capacity),
            wake: Wake::default(),
            polled,
            durable: Vec::with_capacity(capacity as usize),
            written: Vec::with_capacity(capacity as usize),
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
        let Some(tag) = self.sent.insert(Sent { tag: request.tag, write }) else { return Err(Full) };
        let pos = if request.op == Op::Flush { 0 } else { self.shared.store.position(request.pos) };
        // SAFETY: the caller's promise is passed on.
        let pushed = unsafe { self.store.push(Request { pos, tag, ..request }) };
        if pushed.is_err() {
            self.sent.remove(tag);
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

    /// Completes what came from the queue of the overlay file.
    fn complete(&mut self, done: &mut [Done]) {
        let store = &self.shared.store;
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

    /// Delivers what is there, waiting as `wait` says in the queue that has something in flight: one of them at most.
    fn take(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        let before = out.len();
        let in_store = self.store.in_flight() > 0;
        let taken = self.store.reap(out, if in_store { wait } else { Wait::No });
        self.complete(&mut out[before..]);
        taken?;
        self.base.reap(out, if in_store { Wait::No } else { wait })?;
        Ok(out.len() - before)
    }

    /// Waits until either queue may have a completion, or the time is over.
    fn wait_for_either(&mut self, timeout: Option<Duration>) -> Result<()> {
        if self.polled {
            std::hint::spin_loop();
            return Ok(());
        }
        let (Some(base), Some(store)) = (self.base.event_fd()?, self.store.event_fd()?) else {
            std::thread::sleep(timeout.unwrap_or(GLANCE).min(GLANCE));
            return Ok(());
        };
        let mut fds = [PollFd::new(&base, PollFlags::IN), PollFd::new(&store, PollFlags::IN)];
        let timeout = timeout.map(|time| Timespec {
            tv_sec: time.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: time.subsec_nanos().into(),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => {
                Err(Error::Open { path: "poll".into(), action: "wait", errno: errno.raw_os_error() })
            }
        }
    }

    fn signal(&self) -> Result<()> {
        self.wake.set((self.own.len() > 0).then_some(0))
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
        let (room, goal) = (out.len(), goal(wait, self.in_flight(), out));
        let due = match wait {
            Wait::Timeout(time) => Some(now_ns().saturating_add(duration_ns(time))),
            _ => None,
        };
        self.own.deliver(out);
        loop {
            let missing = goal.saturating_sub(out.len() - room);
            let left = due.map(|due| Duration::from_nanos(due.saturating_sub(now_ns())));
            let both = self.base.in_flight() > 0 && self.store.in_flight() > 0;
            let wait = match left {
                _ if missing == 0 || both => Wait::No,
                Some(left) => Wait::Timeout(left),
                None => Wait::AtLeast(missing as u32),
            };
            let taken = self.take(out, wait)?;
            if taken >= missing || left.is_some_and(|left| left.is_zero()) || !both && due.is_some() {
                break;
            }
            if both && taken == 0 {
                self.wait_for_either(left)?;
            }
        }
        self.signal()?;
        Ok(out.len() - room)
    }

    fn in_flight(&self) -> u32 {
        self.base.in_flight() + self.store.in_flight() + self.own.len()
    }

    fn capacity(&self) -> u32 {
        self.base.capacity().min(self.store.capacity())
    }

    fn facts(&self) -> QueueFacts {
        let (base, store) = (self.base.facts(), self.store.facts());
        let above = store.fallbacks.into_iter().map(|why| format!("overlay: {why}"));
        QueueFacts {
            polled: base.polled && store.polled,
            sqpoll: base.sqpoll && store.sqpoll,
            registered_file: base.registered_file && store.registered_file,
            registered_buffers: base.registered_buffers && store.registered_buffers,
            registered_ring: base.registered_ring && store.registered_ring,
            owner_driven: base.owner_driven || store.owner_driven,
            inline: base.inline && store.inline,
            vectors: 0,
            fallbacks: base.fallbacks.into_iter().chain(above).collect(),
        }
    }

    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        self.wake.get(&mut [&mut self.base, &mut self.store])?;
        self.signal()?;
        self.wake.get(&mut [&mut self.base, &mut self.store])
    }
}
