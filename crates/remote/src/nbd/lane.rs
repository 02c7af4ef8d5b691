//! Requests of one queue, or of one call, on a connection: their pieces, and the mailbox that completions go to.
//!
//! Only the owner of a lane starts requests and collects completions. Whichever thread calls libnbd on the connection
//! delivers them, so the owner of another lane may.

use super::api::{Piece, Told};
use super::connection::Connection;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFlags, Timespec, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use uext4_blockdev::{Done, Error, Op, Request, Result};

/// Most pieces of one request that the server has at once.
const PIECES: u32 = 4;

/// A piece that has ended.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    slot: u32,
    errno: i32,
}

/// Where completions arrive.
struct Mailbox {
    /// Never grows beyond the capacity that it begins with.
    arrived: Mutex<Vec<Arrival>>,
    /// Whether the bell has to be rung for the next arrival.
    listening: AtomicBool,
    bell: OwnedFd,
}

impl Mailbox {
    fn ring(&self) {
        // Any number but zero rings, so the byte order does not matter; a counter that is full has been rung.
        let _ = rustix::io::write(&self.bell, &1u64.to_le_bytes());
    }
}

/// What a completion is told to.
struct Ticket {
    mailbox: Arc<Mailbox>,
    slot: u32,
}

impl Told for Ticket {
    #[inline]
    fn told(&self, errno: i32) {
        self.mailbox.arrived.lock().push(Arrival { slot: self.slot, errno });
        if self.mailbox.listening.load(Ordering::Acquire)
            && self.mailbox.listening.swap(false, Ordering::AcqRel)
        {
            self.mailbox.ring();
        }
    }
}

/// A request in flight.
#[derive(Debug, Clone, Copy)]
struct Slot {
    request: Request,
    /// A write without memory, of zeros.
    zeros: bool,
    /// Bytes that pieces were made of; 1 for a flush that is sent.
    begun: u32,
    /// Pieces in flight.
    flying: u32,
    /// The first error, 0 if there was none.
    errno: i32,
}

/// Limits of a server, bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) transfer: u32,
    pub(super) discard: u32,
    pub(super) zeros: u32,
    /// Every write carries FUA.
    pub(super) write_through: bool,
}

/// See the module.
pub(super) struct Lane {
    connection: Arc<Connection>,
    mailbox: Arc<Mailbox>,
    /// One for each slot. libnbd has their addresses.
    tickets: Arc<[Ticket]>,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Exchanged with the mailbox's.
    sorting: Vec<Arrival>,
    ready: VecDeque<Done>,
    /// Pieces in flight.
    flying: u32,
    limits: Limits,
}

impl Lane {
    /// A lane for `depth` requests.
    ///
    /// # Errors
    /// [`Error::Open`] if the system has no descriptor for it.
    pub(super) fn new(connection: Arc<Connection>, depth: u32, limits: Limits) -> Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| {
            Error::Open { path: "eventfd".into(), action: "create", errno: errno.raw_os_error() }
        })?;
        let arrivals = || Vec::with_capacity((depth * PIECES) as usize);
        let mailbox =
            Arc::new(Mailbox { arrived: Mutex::new(arrivals()), listening: AtomicBool::new(false), bell });
        let tickets = (0..depth).map(|slot| Ticket { mailbox: mailbox.clone(), slot }).collect();
        Ok(Lane {
            connection,
            mailbox,
            tickets,
            slots: vec![Slot::EMPTY; depth as usize].into_boxed_slice(),
            free: (0..depth).rev().collect(),
            sorting: arrivals(),
            ready: VecDeque::with_capacity(depth as usize),
            flying: 0,
            limits,
        })
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Requests started whose completion was not taken.
    #[inline]
    pub(super) fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len() + self.ready.len()) as u32
    }

    /// Requests that it takes at once.
    #[inline]
    pub(super) fn depth(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Starts a request that has been checked. The lane has room for it.
    ///
    /// # Safety
    /// As of [`DeviceQueue::push`](uext4_blockdev::DeviceQueue::push).
    #[inline]
    pub(super) unsafe fn start(&mut self, request: Request) {
        self.enter(Slot { request, ..Slot::EMPTY });
    }

    /// The same for a write of zeros, whose memory is not used.
    pub(super) fn start_zeros(&mut self, request: Request) {
        self.enter(Slot { request, zeros: true, ..Slot::EMPTY });
    }

    #[inline]
    fn enter(&mut self, slot: Slot) {
        let Some(index) = self.free.pop() else {
            return self.answer(slot.request.tag, -libc::EAGAIN);
        };
        self.slots[index as usize] = slot;
        self.go_on(index);
    }

    /// Answers a request that is not sent.
    pub(super) fn answer(&mut self, tag: u64, result: i32) {
        self.ready.push_back(Done { tag, result });
    }

    /// Sends pieces of a request, and completes it if it has no more and none is in flight.
    fn go_on(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        while slot.errno == 0 && slot.begun < slot.goal() && slot.flying < PIECES {
            if self.connection.lost().why().is_some() {
                slot.errno = libc::EIO;
                break;
            }
            let ticket: *const Ticket = &raw const self.tickets[index as usize];
            let length = slot.next(&self.limits);
            let piece = slot.piece(length);
            let handle = self.connection.handle();
            let fua = slot.request.fua || self.limits.write_through;
            slot.flying += 1;
            self.flying += 1;
            // SAFETY: the piece is part of the memory of a request that has not completed, and not used if that has
            // none. The ticket stays where it is until the lane is dropped, which waits for every piece.
            let sent = unsafe {
                match slot.request.op {
                    Op::Read => handle.read(piece, ticket),
                    Op::Write if slot.zeros => handle.zero(piece.pos, u64::from(length), fua, ticket),
                    Op::Write => handle.write(piece, fua, ticket),
                    Op::Flush => handle.flush(ticket),
                    Op::Discard => handle.trim(piece.pos, u64::from(length), ticket),
                }
            };
            match sent {
                Ok(()) => {
                    slot.begun += length;
                    // A request is accepted although sending it ended the connection: only now the reason is known.
                    if handle.is_over() {
                        self.connection.look(Some(handle.fault()));
                    }
                }
                Err(fault) => {
                    slot.flying -= 1;
                    self.flying -= 1;
                    slot.errno = if handle.is_over() { libc::EIO } else { fault.errno };
                    self.connection.look(Some(fault));
                }
            }
        }
        if slot.flying == 0 {
            let done = Done { tag: slot.request.tag, result: slot.result() };
            self.ready.push_back(done);
            self.free.push(index);
        }
    }

    /// Takes what has arrived, and sends further pieces.
    #[inline]
    pub(super) fn collect(&mut self) {
        {
            let mut arrived = self.mailbox.arrived.lock();
            if arrived.is_empty() {
                return;
            }
            std::mem::swap(&mut *arrived, &mut self.sorting);
        }
        for number in 0..self.sorting.len() {
            let Arrival { slot: index, errno } = self.sorting[number];
            self.flying -= 1;
            let slot = &mut self.slots[index as usize];
            slot.flying -= 1;
            if slot.errno == 0 {
                slot.errno = translated(errno);
            }
            self.go_on(index);
        }
        self.sorting.clear();
    }

    /// The oldest completion that was not taken.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Done> {
        self.ready.pop_front()
    }

    /// Completions to be taken.
    #[inline]
    pub(super) fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// Whether the server has something to do for it.
    #[inline]
    pub(super) fn is_flying(&self) -> bool {
        self.flying > 0
    }

    /// Waits until something may have arrived, or `deadline`. Returns whether it was in time.
    pub(super) fn wait(&mut self, deadline: Option<Instant>) -> bool {
        self.listen(true);
        if !self.mailbox.arrived.lock().is_empty() {
            self.listen(false);
            return true;
        }
        let now = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let limit = now.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let woken = self.connection.wait(self.mailbox.bell.as_fd(), limit);
        self.listen(false);
        match woken {
            Ok(woken) => {
                if woken.bell {
                    self.silence();
                }
                self.turn(woken.socket);
            }
            Err(errno) => self.connection.cut(&format!("cannot wait for the socket: {errno}")),
        }
        now.is_none_or(|left| !left.is_zero())
    }

    /// Takes what the socket has, without waiting.
    pub(super) fn poll(&mut self) {
        self.turn(self.connection.ready());
    }

    /// Takes replies as long as the last one was for this lane, and others of its are missing.
    fn turn(&self, ready: PollFlags) {
        if ready.is_empty() {
            return;
        }
        let mut before = 0;
        self.connection.turn(ready, || {
            let arrived = self.mailbox.arrived.lock().len();
            let more = arrived > before && arrived < self.flying as usize;
            before = arrived;
            more
        });
    }

    /// Turns the bell on or off: if on, a thread that delivers a completion of this lane rings it once.
    #[inline]
    pub(super) fn listen(&self, listening: bool) {
        self.mailbox.listening.store(listening, Ordering::Release);
    }

    /// Whether something has arrived that was not collected.
    pub(super) fn has_mail(&self) -> bool {
        !self.mailbox.arrived.lock().is_empty()
    }

    /// Rings the bell.
    pub(super) fn ring(&self) {
        self.mailbox.ring();
    }

    /// Ends the ringing.
    pub(super) fn silence(&self) {
        // EAGAIN: it does not ring.
        let _ = rustix::io::read(&self.mailbox.bell, &mut [0u8; 8]);
    }

    /// Readable while it rings.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.mailbox.bell.as_fd()
    }

    /// What the socket has to be polled for.
    pub(super) fn interest(&self) -> PollFlags {
        self.connection.interest()
    }
}

/// Errors by which libnbd says that the connection has ended, or is ending, are `EIO`.
fn translated(errno: i32) -> i32 {
    match errno {
        libc::ENOTCONN | libc::ESHUTDOWN => libc::EIO,
        other => other,
    }
}

impl Slot {
    const EMPTY: Slot = Slot {
        request: Request {
            op: Op::Flush,
            fua: false,
            nowait: false,
            priority: uext4_blockdev::Priority::OF_THREAD,
            pos: 0,
            length: 0,
            memory: uext4_blockdev::Memory::NONE,
            tag: 0,
        },
        zeros: false,
        begun: 0,
        flying: 0,
        errno: 0,
    };

    /// What `begun` must reach.
    #[inline]
    fn goal(&self) -> u32 {
        if self.request.op == Op::Flush { 1 } else { self.request.length }
    }

    /// Length of the next piece.
    #[inline]
    fn next(&self, limits: &Limits) -> u32 {
        let most = match self.request.op {
            Op::Discard => limits.discard,
            Op::Write if self.zeros => limits.zeros,
            _ => limits.transfer,
        };
        (self.goal() - self.begun).min(most)
    }

    #[inline]
    fn piece(&self, length: u32) -> Piece {
        let address = self.request.memory.address.as_ptr().wrapping_add(self.begun as usize);
        Piece {
            // Not null: inside the request's memory, or dangling where there is none.
            address: NonNull::new(address).unwrap_or(NonNull::dangling()),
            length: length as usize,
            pos: self.request.pos + u64::from(self.begun),
        }
    }

    /// Bytes, or a negative errno.
    #[inline]
    fn result(&self) -> i32 {
        match self.request.op {
            _ if self.errno != 0 => -self.errno,
            Op::Read | Op::Write => i32::try_from(self.request.length).unwrap_or(i32::MAX),
            Op::Flush | Op::Discard => 0,
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if !self.connection.process().is_here() {
            return;
        }
        loop {
            self.collect();
            if !self.is_flying() {
                break;
            }
            self.wait(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pool::Pool;
    use super::super::target::Target;
    use super::*;
    use std::time::Duration;
    use uext4_blockdev::spec::DeviceSpec;
    use uext4_blockdev::{BufferPool, Memory, Priority};
    use uext4_testkit::{NbdServer, Need, needs};

    /// Between a look into the mailbox and the wait, another thread may have taken the reply from the socket.
    #[test]
    fn a_wait_ends_at_once_for_what_another_lane_has_taken() {
        needs!(Need::Tool("nbdkit"));
        let server = NbdServer::nbdkit(&["memory", "1M"]);
        let pool = Pool::open(Target::new(&DeviceSpec::parse(&server.device("")).unwrap()).unwrap()).unwrap();
        let seat = pool.sit();
        let lane = || Lane::new(seat.connection().clone(), 1, pool.limits).unwrap();
        let (mut waits, mut takes) = (lane(), lane());
        let mut buffer = BufferPool::new(1 << 20).unwrap().take(4096).unwrap();
        let memory: Memory = buffer.memory(0);
        let (priority, fua, nowait) = (Priority::OF_THREAD, false, false);
        let request = Request { op: Op::Read, fua, nowait, priority, pos: 0, length: 4096, memory, tag: 3 };
        // SAFETY: the buffer outlives the lanes' use of it: the completion is taken below.
        unsafe { waits.start(request) };
        let begin = Instant::now();
        while !waits.has_mail() {
            takes.poll();
            assert!(begin.elapsed() < Duration::from_secs(20));
        }
        let begin = Instant::now();
        assert!(waits.wait(Some(begin + Duration::from_secs(20))));
        assert!(begin.elapsed() < Duration::from_secs(10));
        waits.collect();
        assert_eq!(waits.take(), Some(Done { tag: 3, result: 4096 }));
    }
}
