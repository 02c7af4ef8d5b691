//! Request queues on io_uring.
//!
//! **Sizes.** The submission ring has room for the queue's whole depth, and `in_flight` never exceeds the
//! depth: a push always finds a free entry, needs no system call, and the completion ring (twice as large)
//! cannot overflow.
//!
//! **No more than the device takes.** Each call submits as many entries as the device's [`super::budget`] admits. The
//! others stay in the submission ring until a later submit or reap finds them admitted. A queue with entries held back
//! has at least one request in the kernel, so completions, and with them signals of its eventfd, continue. Entries of a
//! ring with a kernel submission thread are not held back: that thread takes every entry that it sees.
//!
//! **Two rings when polled.** An IOPOLL ring runs reads and writes only. Flushes and discards of a polled
//! queue go to a second, ordinary ring (`side`).
//!
//! **Who may drive.** A default ring may be submitted to and reaped by any thread, one at a time (`&mut self`): it uses
//! neither COOP_TASKRUN nor DEFER_TASKRUN, so that completions arrive even while the submitter computes in user space.
//! An owner-driven ring is created disabled, and the first thread that submits or reaps enables it and becomes its
//! owner; the kernel refuses every other thread (EEXIST), which is reported as [`crate::Error::Unsupported`].
//!
//! **Dropping waits.** Memory of requests may be freed as soon as the queue is gone. Usually dropping waits for the
//! completions. If the kernel refuses that (an owner-driven queue dropped by a foreign thread), the ring is closed and
//! [`Tombstone`] waits until the kernel has torn it down, which it does after the last request has ended.
//!
//! **A child process** shares the rings' memory with its parent, so it may use none of them: a push finds the queue
//! full, every other call fails with [`crate::Error::Forked`], and dropping only closes the child's descriptors.

use super::budget::Share;
use super::enter::{self, enter_part};
use super::polling;
use super::reap::{self, Entered, Reaps, Shell};
use super::registered::{Table, register_memory};
use super::ring::{self, RingParams, RingTarget, Tombstone};
use super::ring_index::RingIndex;
use crate::pool::Follower;
use crate::queue::VECTORS_MAX;
use crate::{
    Ask, BufferPool, DeviceQueue, Done, Full, Op, Priority, Process, QueueFacts, QueueOptions, Request,
    Result, Wait, sys,
};
use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, cqueue, opcode, types};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// `IORING_ENTER_GETEVENTS` of `linux/io_uring.h`.
const ENTER_GETEVENTS: u32 = 1;

/// A request queue on io_uring.
pub struct UringQueue {
    shell: Shell,
    /// The ring in the table of the thread that drives it.
    index: Option<RingIndex>,
    /// Dropped before the ring, which it names.
    _follower: Option<Follower>,
    // Declared before `tombstone`: rings must be closed before it waits.
    ring: IoUring,
    /// Flushes and discards of a polled queue.
    side: Option<IoUring>,
    tombstone: Tombstone,
    target: RingTarget,
    /// Added to every position: the start of a partition.
    base: u64,
    /// Positions are below this, counted from `base`.
    limit: u64,
    /// Value of an entry's descriptor field: 0 for the registered file, else the descriptor.
    descriptor: i32,
    descriptor_flags: Flags,
    /// The memory registered with the ring.
    registered: Table,
    fua_flags: i32,
    nowait_flags: i32,
    /// For requests that have no priority of their own.
    priority: Priority,
    depth: u32,
    in_flight: u32,
    /// Of `in_flight`: entries of `ring` that are not yet submitted to the kernel.
    unsent: u32,
    /// Of `unsent`, the first ones: submitted by the caller, and held back until the device has room.
    due: u32,
    /// This queue's share of the tags; `None`: no limit.
    share: Option<Share>,
    /// Of `in_flight`: requests of `side`, sent or not.
    side_in_flight: u32,
    side_unsent: u32,
    /// Of `in_flight`: discards of a block device, which the submitting call executes.
    discards: Vec<Request>,
    /// An owner-driven ring that no thread has driven yet.
    disabled: bool,
    /// Registered memory outlives the ring.
    _pool: Option<BufferPool>,
}

impl UringQueue {
    /// Creates the queue.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] for a refused feature that was required; [`crate::Error::Open`] with action
    /// [`ring::SETUP`] for a kernel without io_uring.
    pub(crate) fn new(target: RingTarget, options: &QueueOptions) -> Result<Self> {
        options.check_depth()?;
        let process = Process::current()?;
        options.priority.check()?;
        let mut facts = QueueFacts { vectors: VECTORS_MAX, ..QueueFacts::default() };
        let poll = || polling::try_polled_read(&target);
        let polled = options.iopoll.granted("polled completions (IOPOLL)", poll, &mut facts)?;
        let owner = options.owner_driven || options.iopoll != Ask::No;
        let plan = RingParams { depth: options.depth, polled, owner, sqpoll: options.sqpoll };
        let (ring, granted) = ring::build(plan, &mut facts)?;
        let side = if granted.polled { Some(ring::build_side(options.depth)?) } else { None };
        let mut tombstone = Tombstone::new()?;
        let file_slot = ring::register_files(
            &ring,
            side.as_ref(),
            target.file.as_fd(),
            None,
            &tombstone,
            options,
            &mut facts,
        )?;
        let (registered, follower) = register_memory(&ring, options, &mut facts)?;
        facts.registered_ring = ring::want_index(&ring, granted, options.register_ring, &mut facts)?;
        tombstone.seal();
        facts.polled = granted.polled;
        facts.sqpoll = granted.sqpoll;
        facts.owner_driven = granted.owner;
        facts.registered_file = file_slot;
        facts.registered_buffers = !registered.is_empty();
        let share =
            target.budget.as_ref().filter(|_| !granted.sqpoll).map(|budget| budget.join(options.depth));
        Ok(UringQueue {
            shell: Shell::new(process, options.depth, facts),
            index: None,
            _follower: follower,
            descriptor: if file_slot { 0 } else { target.file.as_raw_fd() },
            descriptor_flags: if file_slot { Flags::FIXED_FILE } else { Flags::empty() },
            fua_flags: if target.volatile_cache { libc::RWF_DSYNC } else { 0 },
            priority: options.priority,
            nowait_flags: if target.nowait { libc::RWF_NOWAIT } else { 0 },
            base: 0,
            limit: target.size,
            registered,
            depth: options.depth,
            in_flight: 0,
            unsent: 0,
            due: 0,
            share,
            side_in_flight: 0,
            side_unsent: 0,
            discards: Vec::with_capacity(options.depth as usize),
            disabled: granted.owner,
            _pool: options.pool.clone(),
            ring,
            side,
            tombstone,
            target,
        })
    }

    /// Narrows the queue to a part of the device, for [`crate::layer`]'s slice. Call it before the first push.
    pub(crate) fn narrow(&mut self, start: u64, size: u64) {
        debug_assert!(self.in_flight == 0 && start <= self.limit && size <= self.limit - start);
        self.base += start;
        self.limit = size;
    }

    /// Whether the request lies inside the device. Otherwise it would extend an image file or leave a partition.
    #[inline]
    fn in_range(&self, request: &Request) -> bool {
        let length = u64::from(request.length);
        length <= self.limit && request.pos <= self.limit - length
    }

    /// The ring entry of a read or write.
    #[inline(always)]
    fn encode(&self, request: &Request) -> Entry {
        let fd = types::Fd(self.descriptor);
        let (address, length) = (request.memory.address.as_ptr(), request.length);
        let pos = self.base + request.pos;
        let mut flags = if request.nowait { self.nowait_flags } else { 0 };
        if request.fua && request.op == Op::Write {
            flags |= self.fua_flags;
        }
        let priority = request.priority.or(self.priority).ioprio();
        macro_rules! entry {
            ($kind:ident, $($memory:expr),*) => {
                opcode::$kind::new(fd, $($memory),*).offset(pos).rw_flags(flags).ioprio(priority).build()
            };
        }
        let entry = match (request.op, self.registered.entry(&request.memory, length)) {
            (Op::Read, Some(index)) => entry!(ReadFixed, address, length, index),
            (_, Some(index)) => entry!(WriteFixed, address, length, index),
            (op, None) if request.memory.is_vectors() => {
                // SAFETY: the caller of `push` promises the request's memory, which the vectors are part of.
                let vectors = unsafe { request.memory.as_vectors(length) };
                let (first, count) = (vectors.as_ptr().cast(), vectors.len() as u32);
                if op == Op::Read { entry!(Readv, first, count) } else { entry!(Writev, first, count) }
            }
            (Op::Read, None) => entry!(Read, address, length),
            (_, None) => entry!(Write, address, length),
        };
        entry.flags(self.descriptor_flags).user_data(request.tag)
    }

    /// Pushes a flush or discard, or refuses a request that lies outside the device.
    #[cold]
    fn push_control(&mut self, request: &Request) -> std::result::Result<(), Full> {
        let fd = types::Fd(self.descriptor);
        let entry = match request.op {
            Op::Flush if !self.target.volatile_cache => opcode::Nop::new().build(),
            Op::Flush => {
                opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build().flags(self.descriptor_flags)
            }
            _ if !self.in_range(request) => {
                self.in_flight += 1;
                self.shell.complete(request.tag, -libc::EINVAL);
                return Ok(());
            }
            _ if self.target.block => {
                self.in_flight += 1;
                self.discards.push(*request);
                return Ok(());
            }
            _ => opcode::Fallocate::new(fd, u64::from(request.length))
                .offset(self.base + request.pos)
                .mode(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
                .build()
                .flags(self.descriptor_flags),
        };
        let ring = self.side.as_mut().unwrap_or(&mut self.ring);
        // SAFETY: the entry names no memory, and its file is kept open by `self.target` (and by the ring's
        // table).
        unsafe { ring.submission().push(&entry.user_data(request.tag)) }.map_err(|_| Full)?;
        self.in_flight += 1;
        if self.side.is_some() {
            self.side_in_flight += 1;
            self.side_unsent += 1;
        } else {
            self.unsent += 1;
        }
        Ok(())
    }

    /// Executes waiting discards of a block device: io_uring has no such operation before Linux 6.12.
    fn run_discards(&mut self) {
        while let Some(request) = self.discards.pop() {
            let pos = self.base + request.pos;
            let done = sys::discard_blocks(self.target.file.as_fd(), pos, u64::from(request.length));
            let result = match done {
                Ok(()) => 0,
                Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
            };
            self.shell.complete(request.tag, result);
        }
    }

    /// Enables an owner-driven ring; the calling thread becomes the owner.
    #[cold]
    fn enable(&mut self) -> Result<()> {
        self.ring.submitter().register_enable_rings().map_err(|error| ring::enter_error("submit", &error))?;
        self.disabled = false;
        if self.shell.facts.registered_ring {
            let index = RingIndex::new(&self.ring);
            self.index = Some(index.map_err(|error| ring::enter_error("register", &error))?);
        }
        Ok(())
    }

    /// Submits the first `count` unsubmitted entries and waits for `want` completions.
    #[inline]
    fn enter_some(&mut self, count: u32, want: u32) -> std::io::Result<usize> {
        let Some(index) = self.index.as_ref().filter(|index| index.is_here()) else {
            if count == self.unsent {
                return self.ring.submit_and_wait(want as usize);
            }
            return enter_part(&self.ring, count, want, None);
        };
        let asks = want > 0 || self.shell.facts.polled || self.ring.submission().taskrun();
        index.enter(count, want, if asks { ENTER_GETEVENTS } else { 0 })
    }

    /// Submits the entries that are due, as far as the device admits them.
    fn send_due(&mut self) -> Result<()> {
        let mut admitted = self.admit();
        while admitted > 0 {
            let taken = match self.enter_some(admitted, 0) {
                // The kernel's thread takes entries by itself; the call woke it up if it slept.
                Ok(_) if self.shell.facts.sqpoll => admitted,
                Ok(0) => return Err(ring::submit_stuck()),
                Ok(count) => count as u32,
                Err(error) => {
                    self.make_room(&error)?;
                    continue;
                }
            };
            self.took(taken);
            admitted -= taken;
        }
        Ok(())
    }

    /// How many of the entries that are due the device admits now.
    fn admit(&mut self) -> u32 {
        let sent = self.in_ring();
        self.share.as_mut().map_or(self.due, |share| share.admit(sent, self.due))
    }

    /// The kernel took `count` entries.
    fn took(&mut self, count: u32) {
        self.unsent -= count;
        self.due -= count;
    }

    /// Requests in the kernel. With a submission thread this is a lower bound: that takes entries before they are sent,
    /// and may have completed them already.
    fn in_kernel(&self) -> u32 {
        let here = self.shell.ready.len() + self.discards.len();
        self.in_flight.saturating_sub(self.unsent + self.side_unsent + here as u32)
    }

    /// How many completions to wait for with `sent` requests in the kernel. While others are held back, wait for half
    /// of the requests in the device before sending more, so that the device is never idle.
    fn patience(&self, want: u32, sent: u32) -> u32 {
        want.min(if self.due > 0 { (sent / 2).max(1) } else { sent })
    }

    /// [`UringQueue::enter`] for a polled queue, whose completions may come from two rings. The kernel ignores time
    /// limits while it polls, so anything but a plain wait checks repeatedly.
    fn enter_polled(&mut self, want: u32, deadline: Option<Instant>) -> Result<Entered> {
        self.send()?;
        let polled_in_flight = self.in_kernel() - self.side_in_flight;
        if polled_in_flight == 0 && self.side_in_flight > 0 {
            self.wait_for_side(deadline)?;
        } else if self.side_in_flight == 0 && deadline.is_none() {
            self.enter_only(self.patience(want, polled_in_flight))?;
        } else {
            self.enter_only(0)?;
        }
        let late = deadline.is_some_and(|at| Instant::now() >= at);
        Ok(if late { Entered::TimedOut } else { Entered::Progress })
    }

    fn wait_for_side(&mut self, deadline: Option<Instant>) -> Result<()> {
        let Some(side) = &self.side else { return Ok(()) };
        let rest = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        match enter::send_and_wait(side, 1, rest) {
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => Ok(()),
            other => reap::waited(other),
        }
    }

    #[cold]
    fn drain_side(&mut self, out: &mut Vec<Done>, room: usize) -> usize {
        let Some(side) = &mut self.side else { return 0 };
        let before = out.len();
        out.extend(side.completion().take(room).map(|e| Done { tag: e.user_data(), result: e.result() }));
        let count = out.len() - before;
        self.side_in_flight -= count as u32;
        count
    }

    /// Sends all requests that were submitted and held back; their completions are discarded.
    fn finish_due(&mut self) -> Result<()> {
        let mut unheard = Vec::new();
        while self.due > 0 {
            unheard.reserve(self.in_flight as usize);
            self.drain(&mut unheard, self.in_flight as usize);
            unheard.clear();
            self.send_due()?;
            if self.due > 0 {
                self.enter_only(1)?;
            }
        }
        Ok(())
    }

    /// Waits until the kernel no longer uses any memory of requests. Requests pushed but never submitted are never
    /// executed.
    fn quiesce(&mut self) -> Result<()> {
        if self.disabled {
            return Ok(());
        }
        if self.shell.facts.sqpoll && self.unsent > 0 {
            // The kernel's thread may take the entries at any moment: make sure that it does, then wait.
            self.ring.submit().map_err(|error| ring::enter_error("submit", &error))?;
            (self.unsent, self.due) = (0, 0);
        }
        // If this thread may not send for the owner, the error is harmless: unsent requests need no waiting.
        let _not_sent = self.finish_due();
        let mut main = self.in_ring();
        let mut side = self.side_in_flight - self.side_unsent;
        loop {
            main -= self.ring.completion().count() as u32;
            side -= self.side.as_mut().map_or(0, |side| side.completion().count() as u32);
            match (main, side) {
                (0, 0) => return Ok(()),
                (0, _) => self.wait_for_side(None)?,
                (_, 0) => self.enter_only(1)?,
                (_, _) => self.enter_only(0)?,
            }
        }
    }
}

impl Reaps for UringQueue {
    type Entry = Entry;
    type Completion = cqueue::Entry;

    fn shell(&mut self) -> &mut Shell {
        &mut self.shell
    }

    fn ring(&mut self) -> &mut IoUring {
        &mut self.ring
    }

    fn pending(&self) -> u32 {
        self.in_flight
    }

    fn in_ring(&self) -> u32 {
        self.in_kernel() - (self.side_in_flight - self.side_unsent)
    }

    fn enter_only(&mut self, want: u32) -> Result<()> {
        reap::waited(match self.index.as_ref().filter(|index| index.is_here()) {
            Some(index) => index.enter(0, want, ENTER_GETEVENTS),
            None => enter::wait_only(&self.ring, want),
        })
    }

    #[inline]
    fn drain(&mut self, out: &mut Vec<Done>, room: usize) -> usize {
        let mut count = 0;
        if !self.shell.ready.is_empty() {
            count = room.min(self.shell.ready.len());
            out.extend(self.shell.ready.drain(..count));
        }
        let mut completions = self.ring.completion();
        while count < room
            && let Some(entry) = completions.next()
        {
            out.push(Done { tag: entry.user_data(), result: entry.result() });
            count += 1;
        }
        drop(completions);
        if self.side_in_flight > 0 {
            count += self.drain_side(out, room - count);
        }
        self.in_flight -= count as u32;
        count
    }

    fn enter(&mut self, want: u32, deadline: Option<Instant>) -> Result<Entered> {
        if self.disabled {
            self.enable()?;
        }
        if self.side.is_some() {
            return self.enter_polled(want, deadline);
        }
        let rest = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if rest == Some(Duration::ZERO) {
            self.send()?;
            return Ok(Entered::TimedOut);
        }
        self.due = self.unsent;
        let admitted = self.admit();
        let outcome = match rest {
            _ if admitted < self.unsent => {
                let want = self.patience(want, self.in_kernel() + admitted);
                match rest {
                    None => self.enter_some(admitted, want),
                    Some(_) => enter_part(&self.ring, admitted, want, rest),
                }
            }
            None => self.enter_some(admitted, want),
            Some(_) => enter::send_and_wait(&self.ring, want, rest),
        };
        match outcome {
            Ok(_) if self.shell.facts.sqpoll => self.took(self.unsent),
            Ok(count) => self.took((count as u32).min(self.unsent)),
            // An error means that no entry was taken; otherwise the call returns their number.
            Err(error) if error.raw_os_error() == Some(libc::ETIME) => return Ok(Entered::TimedOut),
            Err(error) => self.make_room(&error)?,
        }
        Ok(Entered::Progress)
    }

    fn send(&mut self) -> Result<usize> {
        if self.disabled {
            self.enable()?;
        }
        let mut sent = self.discards.len() + (self.unsent - self.due) as usize;
        self.run_discards();
        self.due = self.unsent;
        self.send_due()?;
        if let Some(side) = &self.side {
            while self.side_unsent > 0 {
                match side.submit() {
                    Ok(0) => return Err(ring::submit_stuck()),
                    Ok(count) => {
                        sent += count;
                        self.side_unsent -= count as u32;
                    }
                    Err(error) if ring::is_transient(&error) => {}
                    Err(error) => return Err(ring::enter_error("submit", &error)),
                }
            }
        }
        Ok(sent)
    }

    fn send_into_room(&mut self, late: usize) -> Result<()> {
        if late > 0 && self.share.is_some() { self.send().map(drop) } else { Ok(()) }
    }
}

impl DeviceQueue for UringQueue {
    #[inline(always)]
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        if self.in_flight >= self.depth || !self.shell.process.is_here() {
            return Err(Full);
        }
        if !matches!(request.op, Op::Read | Op::Write) || !self.in_range(&request) {
            return self.push_control(&request);
        }
        let entry = self.encode(&request);
        // SAFETY: the caller promises that the memory stays valid and unshared until the completion is delivered or the
        // queue is dropped, and dropping waits until the kernel no longer uses it; `self.target` (and the ring's table)
        // keeps the file open.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| Full)?;
        self.in_flight += 1;
        self.unsent += 1;
        Ok(())
    }

    #[inline]
    fn submit(&mut self) -> Result<usize> {
        self.shell.process.check()?;
        self.send()
    }

    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        self.shell.process.check()?;
        self.run_discards();
        reap::reap(self, out, wait)
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn capacity(&self) -> u32 {
        self.depth
    }

    fn facts(&self) -> QueueFacts {
        self.shell.facts.clone()
    }

    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        reap::event_fd(self)
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        if !self.shell.process.is_here() {
            return;
        }
        // The kernel frees a closed ring some time later, and until then its table would keep the file open: its lock
        // or exclusive claim would outlive the device. So unregister the table first.
        let quiet = self.quiesce().is_ok();
        // Another thread's table keeps the ring until that thread ends; without requests there is no need to wait for
        // that.
        let kept = self.index.take().is_some_and(|index| !index.is_here());
        let released = quiet && {
            let mut rings = std::iter::once(&self.ring).chain(&self.side);
            rings.all(|ring| ring.submitter().unregister_files().is_ok())
        };
        if !(released || quiet && kept) {
            self.tombstone.arm();
        }
    }
}
