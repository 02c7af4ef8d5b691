//! A client after its handshake: one thread that receives requests, sends them to the device together, and answers
//! them together. It sleeps only when neither socket, device nor helper has anything for it.

use crate::aside::{Aside, Finished, Gained, Gone, Job, Work};
use crate::export::{Backing, Export, Zeroing};
use crate::fault::Fault;
use crate::handshake::Agreed;
use crate::inbox::{Inbox, Incoming};
use crate::lane::{DEPTH, Landed, Lane};
use crate::outbox::Outbox;
use crate::protocol::{
    Code, Command, Limits, Request, data_chunk, error_chunk, flag, hole_chunk, simple, status_chunk,
};
use crate::sparse;
use crate::stop::Stopper;
use crate::stream::{Moved, Stream, is_ready, poll_in, wait};
use rustix::event::{PollFd, PollFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4::Buffer;

/// Bytes of memory of requests under way beyond which no other is taken: two of the longest.
const BYTES_MAX: usize = 64 << 20;
/// The same of answers: a client that sends and never receives waits here.
const UNSENT_MAX: usize = 32 << 20;
/// Seconds that a client has to take its last answers when the server ends.
const PATIENCE: u64 = 5;
/// How often a device without a descriptor is looked at.
const AGAIN: Duration = Duration::from_micros(200);

/// A request that is under way.
#[derive(Clone, Copy)]
struct Flight {
    request: Request,
    /// A write of whole blocks to a device, which has its turn.
    turn: bool,
    /// Bytes of memory.
    bytes: usize,
}

/// What woke the thread.
#[derive(Clone, Copy)]
struct Woken {
    socket: bool,
    lane: bool,
    aside: bool,
}

impl Woken {
    const NOTHING: Woken = Woken { socket: false, lane: false, aside: false };
}

pub(crate) struct Connection<'c> {
    stream: Stream,
    export: &'c Arc<Export>,
    stop: &'c Stopper,
    limits: Limits,
    lane: Lane,
    event: Option<OwnedFd>,
    aside: Aside,
    inbox: Inbox,
    incoming: Option<Incoming>,
    /// Bytes of a refused write that are still to come.
    skip: u64,
    outbox: Outbox,
    flights: Box<[Option<Flight>]>,
    free: Vec<u32>,
    /// Bytes of memory of what is under way.
    bytes: usize,
    /// Requests in the lane.
    in_lane: u32,
    /// Requests with the helper.
    with_aside: u32,
    /// Something was added to the lane since it was polled.
    begun: bool,
    /// What the lane has finished: always empty, kept for its memory.
    landed: Vec<Landed>,
    /// Nothing more will come.
    ended: bool,
    /// Nobody takes answers any more.
    closed: bool,
    /// The client has taken its leave: what it sent before is done all the same.
    parted: bool,
    /// When the server ends: until when the client may take answers.
    deadline: Option<Instant>,
}

/// Serves a client until it leaves or the server ends.
pub(crate) fn serve(
    stream: Stream,
    export: &Arc<Export>,
    stop: &Stopper,
    agreed: Agreed,
) -> Result<(), Fault> {
    let mut connection = Connection::new(stream, export, stop, agreed)?;
    let served = connection.run();
    connection.settle();
    served
}

impl<'c> Connection<'c> {
    fn new(
        stream: Stream,
        export: &'c Arc<Export>,
        stop: &'c Stopper,
        agreed: Agreed,
    ) -> Result<Self, Fault> {
        let mut lane = Lane::new(export)?;
        let event = lane.event()?;
        let limits = Limits {
            size: export.size(),
            writable: export.is_writable(),
            structured: agreed.structured,
            status: agreed.status,
        };
        Ok(Connection {
            stream,
            export,
            stop,
            limits,
            lane,
            event,
            aside: Aside::new(export)?,
            inbox: Inbox::new(),
            incoming: None,
            skip: 0,
            outbox: Outbox::default(),
            flights: vec![None; DEPTH as usize].into(),
            free: (0..DEPTH).rev().collect(),
            bytes: 0,
            in_lane: 0,
            with_aside: 0,
            begun: false,
            landed: Vec::new(),
            ended: false,
            closed: false,
            parted: false,
            deadline: None,
        })
    }

    fn run(&mut self) -> Result<(), Fault> {
        let mut woken = Woken { socket: true, lane: true, aside: true };
        loop {
            if woken.socket && self.wants_more() {
                self.receive()?;
            }
            self.parse()?;
            if woken.lane || self.begun {
                self.reap()?;
            }
            if woken.aside {
                self.take_finished()?;
            }
            self.send()?;
            if self.deadline.is_some() {
                // What had come was answered; what was being sent is not done.
                self.ended = true;
            }
            if self.ended && self.in_lane + self.with_aside == 0 && self.outbox.is_empty() {
                return Ok(());
            }
            woken = if self.is_behind() { Woken::NOTHING } else { self.sleep()? };
        }
    }

    /// Whether a request that has come already can be taken now: answers have made room since the last look. The socket
    /// tells nothing about it.
    fn is_behind(&self) -> bool {
        let between = !self.ended && self.skip == 0 && self.incoming.is_none();
        between && self.has_room() && self.inbox.header().is_some()
    }

    /// Waits for what is still under way, which is not answered any more.
    fn settle(self) {
        let Connection { lane, aside, flights, export, parted, .. } = self;
        if !parted {
            aside.abandon();
        }
        drop(lane);
        if let Backing::Device { turns, .. } = export.backing() {
            flights.iter().flatten().filter(|flight| flight.turn).for_each(|_| turns.end());
        }
        drop(aside);
    }

    /// Whether another request may be taken.
    fn has_room(&self) -> bool {
        !self.free.is_empty() && self.bytes < BYTES_MAX && self.outbox.held() < UNSENT_MAX
    }

    /// Whether there is room for what the client sends.
    fn wants_more(&self) -> bool {
        !self.ended && (self.has_room() || self.incoming.is_some() || self.skip > 0)
    }

    fn receive(&mut self) -> Result<(), Fault> {
        match self.inbox.receive(&mut self.stream, self.incoming.as_mut())? {
            Moved::Bytes(_) | Moved::Later => Ok(()),
            Moved::Closed if self.incoming.is_none() && self.inbox.is_empty() && self.skip == 0 => {
                self.ended = true;
                Ok(())
            }
            Moved::Closed => Err(Fault::Torn),
        }
    }

    /// Takes the requests that have come, as far as there is room.
    fn parse(&mut self) -> Result<(), Fault> {
        while !self.ended {
            self.skip -= self.inbox.skip(self.skip);
            if self.skip > 0 {
                return Ok(());
            }
            if let Some(mut incoming) = self.incoming.take() {
                self.inbox.fill(&mut incoming);
                if !incoming.is_complete() {
                    self.incoming = Some(incoming);
                    return Ok(());
                }
                self.begin(incoming.request, Some(incoming.buffer))?;
            }
            if !self.has_room() {
                return Ok(());
            }
            let Some(request) = self.inbox.header() else { return Ok(()) };
            let request = request.ok_or(Fault::Request)?;
            self.inbox.take_header();
            self.admit(request)?;
        }
        Ok(())
    }

    /// Checks a request, and begins it unless its payload is to come.
    fn admit(&mut self, request: Request) -> Result<(), Fault> {
        if request.command == Command::Disconnect {
            (self.ended, self.parted) = (true, true);
            return Ok(());
        }
        let allowed = request.check(&self.limits);
        let allowed = if self.deadline.is_some() { Err(Code::Shutdown) } else { allowed };
        let memory =
            |allowed: Result<(), Code>| allowed.and_then(|()| self.lane.buffer(request.length as usize));
        match (request.command, allowed) {
            (Command::Write, allowed) => match memory(allowed) {
                Ok(buffer) => self.incoming = Some(Incoming::new(request, buffer)),
                Err(code) => {
                    self.skip = request.length.into();
                    self.refuse(&request, code);
                }
            },
            (Command::Read, allowed) => match memory(allowed) {
                Ok(buffer) => self.begin(request, Some(buffer))?,
                Err(code) => self.refuse(&request, code),
            },
            (_, Ok(())) => self.begin(request, None)?,
            (_, Err(code)) => self.refuse(&request, code),
        }
        Ok(())
    }

    /// Sends a request on its way.
    fn begin(&mut self, request: Request, buffer: Option<Buffer>) -> Result<(), Fault> {
        let Some(tag) = self.free.pop() else { return Err(Fault::Thread) };
        let bytes = buffer.as_ref().map_or(0, |buffer| buffer.len().next_power_of_two());
        self.flights[tag as usize] = Some(Flight { request, turn: false, bytes });
        self.bytes += bytes;
        let tag = u64::from(tag);
        let durable = request.has(flag::FUA);
        let (offset, length) = (request.offset, u64::from(request.length));
        let direct = self.export.is_direct(offset, length);
        let work = match (request.command, buffer) {
            (Command::Read, Some(buffer)) if direct => {
                let begun = self.lane.read(offset, buffer, tag);
                return self.entered(tag, begun);
            }
            (Command::Write, Some(buffer)) if direct && self.may_write(tag, durable) => {
                let begun = self.lane.write(offset, buffer, durable, tag);
                return self.entered(tag, begun);
            }
            (Command::Read, Some(into)) => Work::Read { offset, into },
            (Command::Write, Some(bytes)) => Work::Write { offset, bytes, durable },
            (Command::Flush, _) => match self.export.is_writable().then(|| self.lane.flush(tag)) {
                Some(Ok(false)) => Work::Flush,
                Some(begun) => return self.entered(tag, begun.map(|_| ())),
                None => return self.finish(tag, Ok(Gained::Nothing)),
            },
            (Command::Trim, _) => Work::Trim { offset, length, durable },
            (Command::WriteZeroes, _) => {
                let hole = !request.has(flag::NO_HOLE);
                let how = Zeroing { hole, fast: request.has(flag::FAST_ZERO), durable };
                Work::Zero { offset, length, how }
            }
            (Command::BlockStatus, _) => {
                Work::Status { offset, length: request.length, one: request.has(flag::REQ_ONE) }
            }
            (Command::Read | Command::Write | Command::Disconnect | Command::Unknown, _) => {
                return self.finish(tag, Err(Code::Invalid));
            }
        };
        self.with_aside += 1;
        self.aside.take(Job { tag, work }).map_err(|Gone| Fault::Thread)
    }

    /// Whether a write of whole blocks may go through the lane. Notes its turn.
    fn may_write(&mut self, tag: u64, durable: bool) -> bool {
        if durable && !self.lane.takes_durable() {
            return false;
        }
        let Backing::Device { turns, .. } = self.export.backing() else { return true };
        let turn = turns.begin();
        if let Some(flight) = &mut self.flights[tag as usize] {
            flight.turn = turn;
        }
        turn
    }

    /// Counts a request that the lane took, or answers one that it refused.
    fn entered(&mut self, tag: u64, begun: Result<(), Code>) -> Result<(), Fault> {
        match begun {
            Ok(()) => {
                self.in_lane += 1;
                self.begun = true;
                Ok(())
            }
            Err(code) => self.finish(tag, Err(code)),
        }
    }

    /// Submits, and answers what the device has finished.
    fn reap(&mut self) -> Result<(), Fault> {
        self.begun = false;
        let mut landed = std::mem::take(&mut self.landed);
        self.lane.poll(|one| landed.push(one))?;
        for Landed { tag, result, buffer } in landed.drain(..) {
            self.in_lane -= 1;
            let gained = match (self.request(tag)?.command, result, buffer) {
                (_, Err(code), _) => Err(code),
                (Command::Read, Ok(bytes), Some(buffer)) if bytes == buffer.len() as u64 => {
                    Ok(Gained::Read(buffer))
                }
                (Command::Write, Ok(bytes), Some(buffer)) if bytes == buffer.len() as u64 => {
                    Ok(Gained::Nothing)
                }
                (Command::Flush, Ok(_), _) => Ok(Gained::Nothing),
                // A short transfer.
                (_, Ok(_), _) => Err(Code::Io),
            };
            self.finish(tag, gained)?;
        }
        self.landed = landed;
        Ok(())
    }

    /// Answers what the helper has finished.
    fn take_finished(&mut self) -> Result<(), Fault> {
        let mut all = Vec::new();
        self.aside.poll(|one| all.push(one)).map_err(|Gone| Fault::Thread)?;
        for Finished { tag, result } in all {
            self.with_aside -= 1;
            self.finish(tag, result)?;
        }
        Ok(())
    }

    fn request(&self, tag: u64) -> Result<Request, Fault> {
        let flight = self.flights.get(tag as usize).copied().flatten();
        flight.map(|flight| flight.request).ok_or(Fault::Thread)
    }

    /// Answers a request that was begun.
    fn finish(&mut self, tag: u64, result: Result<Gained, Code>) -> Result<(), Fault> {
        let Some(flight) = self.flights.get_mut(tag as usize).and_then(Option::take) else {
            return Err(Fault::Thread);
        };
        self.free.push(tag as u32);
        self.bytes -= flight.bytes;
        if flight.turn
            && let Backing::Device { turns, .. } = self.export.backing()
        {
            turns.end();
        }
        if self.closed {
            return Ok(());
        }
        match result {
            Ok(Gained::Read(buffer)) => self.answer_read(&flight.request, buffer),
            Ok(Gained::Status(extents)) => self.outbox.head(&status_chunk(flight.request.cookie, &extents)),
            Ok(Gained::Nothing) => self.outbox.head(&simple(flight.request.cookie, None)),
            Err(code) => self.refuse(&flight.request, code),
        }
        Ok(())
    }

    fn answer_read(&mut self, request: &Request, buffer: Buffer) {
        let &Request { cookie, offset, length, .. } = request;
        if !self.limits.structured {
            self.outbox.head(&simple(cookie, None));
            return self.outbox.data(buffer);
        }
        let parts = sparse::split(&buffer, request.has(flag::DF));
        if let [(0, false)] = parts[..] {
            self.outbox.head(&data_chunk(cookie, true, offset, length));
            return self.outbox.data(buffer);
        }
        let (buffer, whole) = (Rc::new(buffer), length as usize);
        for (number, &(start, zero)) in parts.iter().enumerate() {
            let next = parts.get(number + 1).map(|(next, _)| *next);
            let (last, end) = (next.is_none(), next.unwrap_or(whole));
            let (at, length) = (offset + start as u64, (end - start) as u32);
            if zero {
                self.outbox.head(&hole_chunk(cookie, last, at, length));
            } else {
                self.outbox.head(&data_chunk(cookie, last, at, length));
                self.outbox.piece(&buffer, start..end);
            }
        }
    }

    /// Answers a request with an error.
    fn refuse(&mut self, request: &Request, code: Code) {
        let chunked = match request.command {
            Command::Read => self.limits.structured,
            Command::BlockStatus => self.limits.status,
            _ => false,
        };
        match chunked {
            true => self.outbox.head(&error_chunk(request.cookie, code)),
            false => self.outbox.head(&simple(request.cookie, Some(code))),
        }
    }

    fn send(&mut self) -> Result<(), Fault> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        if self.outbox.send(&self.stream)? == Moved::Closed {
            self.lose_client();
        }
        Ok(())
    }

    /// Nobody is there any more.
    fn lose_client(&mut self) {
        (self.ended, self.closed) = (true, true);
        self.outbox = Outbox::default();
        if !self.parted {
            self.aside.abandon();
        }
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self) -> Result<Woken, Fault> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.wants_more());
        flags.set(PollFlags::OUT, !self.outbox.is_empty());
        let lane = self.event.as_ref().filter(|_| self.in_lane > 0);
        let blind = self.in_lane > 0 && lane.is_none();
        let again = blind.then(|| Instant::now() + AGAIN);
        // Only answers have a time, not the device.
        let patience = self.deadline.filter(|_| !self.outbox.is_empty());
        let deadline = match (patience, again) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        let mut polled = Vec::with_capacity(4);
        polled.push(poll_in(self.aside.event()));
        if self.deadline.is_none() {
            polled.push(poll_in(self.stop.as_fd()));
        }
        let lane_at = lane.map(|event| {
            polled.push(poll_in(event.as_fd()));
            polled.len() - 1
        });
        // Asked for nothing, the system still tells that the other side has closed its socket.
        let leaving = self.ended && !self.closed;
        let socket_at = (leaving || !flags.is_empty()).then(|| {
            polled.push(PollFd::new(&self.stream, flags));
            polled.len() - 1
        });
        wait(&mut polled, deadline)?;
        let ready = |at: Option<usize>| at.is_some_and(|at| is_ready(&polled[at]));
        let woken =
            Woken { socket: ready(socket_at), lane: ready(lane_at) || blind, aside: is_ready(&polled[0]) };
        let gone = PollFlags::HUP | PollFlags::ERR;
        if leaving && socket_at.is_some_and(|at| polled[at].revents().intersects(gone)) {
            self.lose_client();
        }
        match self.deadline {
            None if self.stop.is_thrown() => {
                self.deadline = Some(Instant::now() + Duration::from_secs(PATIENCE));
                Ok(Woken { socket: true, ..woken })
            }
            Some(deadline) if Instant::now() >= deadline && !self.outbox.is_empty() => {
                Err(Fault::Stuck(PATIENCE))
            }
            _ => Ok(woken),
        }
    }
}
