//! The queue: requests go to the server when they are pushed, and completions are taken in the calls of its user.

use super::lane::Lane;
use super::pool::{Pool, Seat};
use rustix::event::{PollFlags, epoll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;
use uext4_blockdev::engine::{goal, grant};
use uext4_blockdev::{
    Capabilities, DeviceQueue, Done, Error, Full, Geometry, Op, Process, QueueFacts, QueueOptions, Request,
    Result, Wait,
};

/// See the module.
pub(super) struct NbdQueue {
    // Dropped in this order: the lane ends its requests before its connection gets free for others.
    lane: Lane,
    _seat: Seat,
    process: Process,
    geometry: Geometry,
    capabilities: Capabilities,
    transfer_max: u32,
    facts: QueueFacts,
    /// Pushed since the last [`DeviceQueue::submit`].
    pushed: usize,
    event: Option<Event>,
}

/// The descriptor for users that wait: the socket, and the bell.
struct Event {
    epoll: OwnedFd,
    /// What the socket is watched for. Empty: it is not watched any more, because the connection is over.
    watched: PollFlags,
}

impl NbdQueue {
    pub(super) fn new(pool: &Arc<Pool>, capabilities: Capabilities, options: &QueueOptions) -> Result<Self> {
        let process = pool.process;
        process.check()?;
        let mut facts = grant("nbd", options)?;
        options.priority.check()?;
        let seat = pool.sit();
        facts.fallbacks.extend(pool.shortage());
        let lane = Lane::new(seat.connection().clone(), options.depth, pool.limits)?;
        Ok(NbdQueue {
            lane,
            _seat: seat,
            process,
            geometry: pool.geometry,
            capabilities,
            transfer_max: pool.limits.transfer,
            facts,
            pushed: 0,
            event: None,
        })
    }

    /// The answer to a request that is not sent.
    #[inline]
    fn refusal(&self, request: &Request) -> Option<i32> {
        if request.op == Op::Flush {
            return (!self.capabilities.volatile_cache).then(|| self.idle_flush());
        }
        if self.geometry.check(request.pos, u64::from(request.length)).is_err() {
            return Some(-libc::EINVAL);
        }
        match request.op {
            Op::Write | Op::Discard if self.capabilities.read_only => Some(-libc::EROFS),
            Op::Discard if !self.capabilities.discard => Some(-libc::EOPNOTSUPP),
            Op::Read | Op::Write if request.nowait && request.length > self.transfer_max => {
                Some(-libc::EAGAIN)
            }
            _ => None,
        }
    }

    #[cold]
    fn idle_flush(&self) -> i32 {
        if self.lane.connection().lost().why().is_some() { -libc::EIO } else { 0 }
    }

    fn deliver(&mut self, out: &mut Vec<Done>, room: usize) -> usize {
        self.lane.collect();
        let mut count = 0;
        while count < room
            && let Some(done) = self.lane.take()
        {
            out.push(done);
            count += 1;
        }
        count
    }

    /// After a call: keeps the descriptor readable for what was not delivered.
    fn tell(&mut self) -> Result<()> {
        let Some(event) = &mut self.event else { return Ok(()) };
        self.lane.listen(true);
        if self.lane.waiting() > 0 || self.lane.has_mail() {
            self.lane.ring();
        }
        let wanted = match self.lane.connection().lost().why() {
            None => self.lane.interest(),
            Some(_) => PollFlags::empty(),
        };
        event.watch(self.lane.connection().as_fd(), wanted)
    }
}

impl Event {
    fn new(lane: &Lane) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&epoll, lane.bell(), epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(failed)?;
        let socket = lane.connection().as_fd();
        epoll::add(&epoll, socket, epoll::EventData::new_u64(1), epoll::EventFlags::IN).map_err(failed)?;
        Ok(Event { epoll, watched: PollFlags::IN })
    }

    fn watch(&mut self, socket: BorrowedFd<'_>, wanted: PollFlags) -> Result<()> {
        if self.watched == wanted {
            return Ok(());
        }
        if wanted.is_empty() {
            epoll::delete(&self.epoll, socket).map_err(failed)?;
        } else {
            let writable = wanted.contains(PollFlags::OUT);
            let flags = epoll::EventFlags::IN
                | if writable { epoll::EventFlags::OUT } else { epoll::EventFlags::empty() };
            epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(1), flags).map_err(failed)?;
        }
        self.watched = wanted;
        Ok(())
    }
}

fn failed(errno: rustix::io::Errno) -> Error {
    Error::Open { path: "epoll".into(), action: "watch the connection", errno: errno.raw_os_error() }
}

impl DeviceQueue for NbdQueue {
    #[inline]
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        if self.lane.in_flight() >= self.lane.depth() || !self.process.is_here() {
            return Err(Full);
        }
        self.pushed += 1;
        match self.refusal(&request) {
            Some(result) => self.lane.answer(request.tag, result),
            // SAFETY: the caller's promise is passed on. A request with vectors does not come here: this queue takes
            // none.
            None => unsafe { self.lane.start(request) },
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<usize> {
        self.process.check()?;
        self.tell()?;
        Ok(std::mem::take(&mut self.pushed))
    }

    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        self.process.check()?;
        self.pushed = 0;
        if self.event.is_some() {
            self.lane.listen(false);
            self.lane.silence();
        }
        let room = out.capacity() - out.len();
        let goal = goal(wait, self.in_flight(), out);
        let deadline = match wait {
            Wait::Timeout(time) => Instant::now().checked_add(time),
            _ => None,
        };
        let mut count = self.deliver(out, room);
        if count < room && self.lane.is_flying() && goal <= count {
            self.lane.poll();
            count += self.deliver(out, room - count);
        }
        while count < goal {
            let in_time = self.lane.wait(deadline);
            count += self.deliver(out, room - count);
            if !in_time {
                break;
            }
        }
        self.tell()?;
        Ok(count)
    }

    fn in_flight(&self) -> u32 {
        self.lane.in_flight()
    }

    fn capacity(&self) -> u32 {
        self.lane.depth()
    }

    fn facts(&self) -> QueueFacts {
        self.facts.clone()
    }

    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        self.process.check()?;
        if self.event.is_none() {
            self.event = Some(Event::new(&self.lane)?);
        }
        self.tell()?;
        Ok(self.event.as_ref().map(|event| event.epoll.as_fd()))
    }
}
