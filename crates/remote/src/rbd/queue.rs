//! The queue. Each request in flight has a slot, and is sent to librbd when it is pushed.

use super::api::{Errno, Transfer};
use super::device::Shared;
use super::inbox::{Inbox, Ticket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;
use uext4_blockdev::{
    Ask, DeviceQueue, Done, Error, Full, Op, QueueFacts, QueueOptions, Request, Result, Wait,
};

/// What is remembered of a request under way.
#[derive(Debug, Clone, Copy)]
struct Slot {
    op: Op,
    length: u32,
    tag: u64,
}

/// See the module.
pub(super) struct RbdQueue {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
    /// librbd has the addresses of those under way: they go when the queue has waited for all.
    tickets: Box<[Ticket]>,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Pushed since the last `submit`.
    pushed: usize,
    event: Option<OwnedFd>,
    facts: QueueFacts,
}

impl RbdQueue {
    pub(super) fn new(shared: Arc<Shared>, options: &QueueOptions) -> Result<Self> {
        options.check_depth()?;
        options.priority.check()?;
        let facts = grant(options)?;
        let inbox = Inbox::new(options.depth);
        Ok(RbdQueue {
            tickets: Ticket::all(&inbox, options.depth),
            slots: (0..options.depth).map(|_| Slot { op: Op::Flush, length: 0, tag: 0 }).collect(),
            free: (0..options.depth).rev().collect(),
            pushed: 0,
            event: None,
            shared,
            inbox,
            facts,
        })
    }

    /// What librbd is told. The error is the result of the request.
    fn transfer(&self, request: &Request) -> std::result::Result<Option<Transfer>, Errno> {
        let (pos, length) = (request.pos, u64::from(request.length));
        let wrong = |error: Error| Errno(error.errno());
        if request.op != Op::Flush {
            self.shared.geometry().check(pos, length).map_err(wrong)?;
        }
        if matches!(request.op, Op::Write | Op::Discard) && !self.shared.is_writable() {
            return Err(wrong(Error::ReadOnly));
        }
        let cached = self.shared.facts.cached;
        // A completion carries at most `i32::MAX` bytes.
        let bytes = usize::try_from(i32::try_from(length).unwrap_or(0)).unwrap_or(0);
        let memory = request.memory.address;
        Ok(match request.op {
            Op::Read | Op::Write if bytes == 0 => return Err(Errno(libc::EINVAL)),
            Op::Read => Some(Transfer::Read { pos, length: bytes, memory }),
            Op::Write if request.fua && cached => return Err(Errno(libc::EOPNOTSUPP)),
            Op::Write => Some(Transfer::Write { pos, length: bytes, memory }),
            Op::Discard => Some(Transfer::Discard { pos, length }),
            Op::Flush if cached => Some(Transfer::Flush),
            Op::Flush => None,
        })
    }

    /// Takes up to `most` results.
    fn take(&mut self, wanted: usize, deadline: Option<Instant>, most: usize, mut done: impl FnMut(Done)) {
        let RbdQueue { shared, inbox, slots, free, .. } = self;
        inbox.take(wanted, deadline, most, |index, result| {
            let Slot { op, length, tag } = slots[index as usize];
            free.push(index);
            let result = match (op, i32::try_from(result).unwrap_or(-libc::EIO)) {
                (op, errno) if errno < 0 => -shared.errno(op, -errno),
                // librbd says 0 for a whole write.
                (Op::Write, _) => length as i32,
                (Op::Read, bytes) => bytes,
                (Op::Flush | Op::Discard, _) => 0,
            };
            done(Done { tag, result });
        });
    }
}

/// What a queue of this engine can have of the options.
fn grant(options: &QueueOptions) -> Result<QueueFacts> {
    let mut facts = QueueFacts::default();
    for (ask, what) in [
        (options.iopoll, "IOPOLL"),
        (options.sqpoll, "SQPOLL"),
        (options.register_file, "a registered file"),
        (options.register_buffers, "registered buffers"),
        (options.register_ring, "a registered ring"),
    ] {
        match ask {
            Ask::No => {}
            Ask::Try => facts.fallbacks.push(format!("without {what}: `rbd:` has no ring")),
            Ask::Require => return Err(Error::Unsupported(format!("{what}: `rbd:` has no ring"))),
        }
    }
    if !options.priority.is_of_thread() {
        facts.fallbacks.push("without I/O priority: `rbd:` has none".to_owned());
    }
    Ok(facts)
}

impl DeviceQueue for RbdQueue {
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        if !self.shared.process.is_here() {
            return Err(Full);
        }
        let index = self.free.pop().ok_or(Full)?;
        let Request { op, length, tag, .. } = request;
        self.slots[index as usize] = Slot { op, length, tag };
        self.pushed += 1;
        let ticket = &self.tickets[index as usize];
        let started = self.shared.image().and_then(|image| match self.transfer(&request)? {
            // SAFETY: the caller promises the memory until the completion was delivered or the queue was dropped, which
            // waits for all. Image and tickets belong to the queue, which does not move them.
            Some(transfer) => unsafe { image.start(transfer, ticket) },
            None => {
                ticket.done(0);
                Ok(())
            }
        });
        if let Err(Errno(errno)) = started {
            ticket.done(-i64::from(errno));
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<usize> {
        self.shared.process.check()?;
        Ok(std::mem::take(&mut self.pushed))
    }

    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        self.shared.process.check()?;
        self.pushed = 0;
        let room = out.capacity() - out.len();
        let (wanted, deadline) = match wait {
            Wait::No => (0, None),
            Wait::AtLeast(count) => (count as usize, None),
            Wait::Timeout(time) => (1, Instant::now().checked_add(time)),
        };
        let wanted = wanted.min(room).min(self.in_flight() as usize);
        let before = out.len();
        self.take(wanted, deadline, room, |done| out.push(done));
        Ok(out.len() - before)
    }

    fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    fn facts(&self) -> QueueFacts {
        self.facts.clone()
    }

    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        self.shared.process.check()?;
        if self.event.is_none() {
            let event = self.inbox.watch().map_err(|errno| Error::Open {
                path: "eventfd".into(),
                action: "create",
                errno: errno.raw_os_error(),
            })?;
            self.event = Some(event);
        }
        Ok(self.event.as_ref().map(AsFd::as_fd))
    }
}

impl Drop for RbdQueue {
    fn drop(&mut self) {
        // A child of the process has copies that no thread of librbd writes to.
        while self.shared.process.is_here() && self.in_flight() > 0 {
            let all = self.in_flight() as usize;
            self.take(all, None, all, |_| ());
        }
    }
}
