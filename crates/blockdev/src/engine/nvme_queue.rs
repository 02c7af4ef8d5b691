//! The queue of `nvme:`: commands through io_uring (`IORING_OP_URING_CMD`), bypassing the block layer.
//!
//! **A command succeeds or fails as a whole.** Its result is zero, a status of the device (positive, never bytes), or
//! an errno. So the queue keeps each request until its last command has ended, and takes the length of the result from
//! the request.
//!
//! **Requests become commands when they are sent.** Pushed requests wait in `waiting`, one word per command; a request
//! longer than the largest command takes several. The queue encodes and sends as many as the [`super::budget`] of the
//! device admits; the rest goes with later calls, as in [`super::uring`].
//!
//! **Retries.** The block layer retries a failed command up to five times unless the device forbids it. Commands from
//! here bypass the block layer, so this queue does the same.
//!
//! **Dropping waits**, as in [`super::uring`], with the same tombstone.

use super::budget::Share;
use super::enter;
use super::nvme_command::{self, Command, Data, ENTRY_BYTES, RANGE_BYTES, URING_CMD_IO};
use super::nvme_memory::{RegisteredMemory, Ring};
use super::nvme_node::Node;
use super::nvme_slot::{Part, Slot};
use super::nvme_target::NvmeTarget;
use super::reap::{self, Entered, Reaps, Shell};
use super::ring::{self, RingParams, Tombstone};
use crate::pool::Follower;
use crate::{
    Ask, BufferPool, DeviceQueue, Done, Full, Op, Priority, Process, QueueFacts, QueueOptions, Request,
    Result, Wait,
};
use io_uring::squeue::{Entry128, Flags};
use io_uring::{cqueue::Entry32, opcode, types};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most bytes of one transfer, the same as for the kernel's own calls: the result is an `i32`.
const TRANSFER_MAX: u32 = 0x7fff_f000;

/// See the module.
pub(super) struct NvmeQueue {
    shell: Shell,
    /// Dropped before the ring, which it names.
    _follower: Option<Follower>,
    // Declared before `tombstone`: the ring must be closed before it waits.
    ring: Ring,
    tombstone: Tombstone,
    // Declared after `tombstone`: the memory of commands is freed after the ring is gone.
    /// A range to deallocate for each slot.
    ranges: Box<[[u8; RANGE_BYTES as usize]]>,
    _pool: Option<BufferPool>,
    target: NvmeTarget,
    /// Keeps the nodes open.
    _node: Arc<Node>,
    descriptor: i32,
    descriptor_flags: Flags,
    /// The memory registered with the ring.
    registered: RegisteredMemory,
    slots: Box<[Slot]>,
    free: Vec<u32>,
    /// Commands to be sent.
    waiting: VecDeque<Part>,
    /// Of `waiting`, the first ones: submitted by the caller, and held back until the device has room.
    due: usize,
    /// Requests pushed since the last submission, including those answered at once.
    fresh: usize,
    /// Commands in the submission ring that the kernel has not taken: it was short of memory.
    unsent: u32,
    /// Commands in the kernel, or ended there without being seen.
    sent: u32,
    share: Option<Share>,
    /// An owner-driven ring that no thread has driven yet.
    disabled: bool,
}

impl NvmeQueue {
    /// Creates the queue.
    ///
    /// # Errors
    /// [`crate::Error::Unsupported`] for a refused feature that was required.
    pub(super) fn new(target: NvmeTarget, node: Arc<Node>, options: &QueueOptions) -> Result<Self> {
        options.check_depth()?;
        let process = Process::current()?;
        let mut facts = QueueFacts::default();
        let polled =
            options.iopoll.granted("polled completions (IOPOLL)", || target.polling(), &mut facts)?;
        let without = || Err("not with NVMe commands".into());
        options.sqpoll.granted("a kernel submission thread (SQPOLL)", without, &mut facts)?;
        options.register_ring.granted("a registered ring", without, &mut facts)?;
        if !options.priority.is_of_thread() {
            facts.fallbacks.push("NVMe commands have no I/O priority".into());
        }
        let owner = options.owner_driven || options.iopoll != Ask::No;
        let plan = RingParams { depth: options.depth, polled, owner, sqpoll: Ask::No };
        let (ring, kind) = ring::build::<Entry128, Entry32>(plan, &mut facts)?;
        let mut tombstone = Tombstone::new()?;
        // The claim stays while commands are in flight: no other process may claim the device before they have ended.
        let held = Some(node.claim());
        let file_slot =
            ring::register_files(&ring, None, node.generic(), held, &tombstone, options, &mut facts)?;
        let (registered, follower) = RegisteredMemory::new(&ring, &target, &node, options, &mut facts)?;
        tombstone.seal();
        facts.polled = kind.polled;
        facts.owner_driven = kind.owner;
        facts.registered_file = file_slot;
        facts.registered_buffers = !registered.is_empty();
        let depth = options.depth as usize;
        let nothing = Request {
            op: Op::Flush,
            fua: false,
            nowait: false,
            priority: Priority::OF_THREAD,
            pos: 0,
            length: 0,
            memory: crate::Memory::NONE,
            tag: 0,
        };
        Ok(NvmeQueue {
            shell: Shell::new(process, options.depth, facts),
            _follower: follower,
            descriptor: if file_slot { 0 } else { node.generic().as_raw_fd() },
            descriptor_flags: if file_slot { Flags::FIXED_FILE } else { Flags::empty() },
            registered,
            ranges: vec![[0; RANGE_BYTES as usize]; depth].into_boxed_slice(),
            slots: vec![Slot::new(nothing, 0); depth].into_boxed_slice(),
            free: (0..options.depth).rev().collect(),
            waiting: VecDeque::with_capacity(depth),
            due: 0,
            fresh: 0,
            unsent: 0,
            sent: 0,
            share: target.budget.as_ref().map(|budget| budget.join(options.depth)),
            disabled: kind.owner,
            _pool: options.pool.clone(),
            ring,
            tombstone,
            target,
            _node: node,
        })
    }

    /// How many commands a request takes; `None` if no command can execute it.
    #[inline]
    fn parts(&self, request: &Request) -> Option<u32> {
        let most = match request.op {
            Op::Flush => return Some(1),
            Op::Discard => self.target.discard_max,
            Op::Read | Op::Write => self.target.transfer_max,
        };
        let length = u64::from(request.length);
        let odd = (request.pos | length) & (u64::from(self.target.logical_block) - 1) != 0;
        if odd || length == 0 || length > self.target.size || request.pos > self.target.size - length {
            return None;
        }
        // Fits: a length has 32 bits.
        if length <= most { Some(1) } else { Some(length.div_ceil(most) as u32) }
    }

    /// The ring entry of a command.
    #[inline]
    fn encode(&mut self, part: Part) -> Entry128 {
        let request = &self.slots[part.slot as usize].request;
        let target = &self.target;
        let namespace = target.namespace;
        let mut region = None;
        let command = match request.op {
            Op::Flush => Command::flush(namespace),
            Op::Discard => {
                let (blocks, _) = target.piece(request, part.number, target.discard_max);
                let range = &mut self.ranges[part.slot as usize];
                *range = nvme_command::range(blocks.first, blocks.count);
                let address = range.as_ptr().expose_provenance() as u64;
                Command::deallocate(namespace, Data { address, length: RANGE_BYTES })
            }
            Op::Read | Op::Write => {
                let (blocks, data) = target.piece(request, part.number, target.transfer_max);
                region = self.registered.entry(&request.memory, request.length);
                match request.op {
                    Op::Read => Command::read(namespace, blocks, data),
                    _ => Command::write(namespace, blocks, data, request.fua && target.volatile_cache),
                }
            }
        };
        opcode::UringCmd80::new(types::Fd(self.descriptor), URING_CMD_IO)
            .cmd(command.encode::<ENTRY_BYTES>())
            .buf_index(region)
            .build()
            .flags(self.descriptor_flags)
            .user_data(part.pack())
    }

    /// Puts due commands into the submission ring, as far as the device admits them.
    fn fill(&mut self) {
        let in_device = self.sent + self.unsent;
        let wanted = u32::try_from(self.due).unwrap_or(u32::MAX);
        let admitted = self.share.as_mut().map_or(wanted, |share| share.admit(in_device, wanted));
        // The completion ring has twice the entries of the submission ring.
        let room =
            (self.ring.params().cq_entries() - in_device).min(self.ring.params().sq_entries() - self.unsent);
        for _ in 0..admitted.min(room) {
            let Some(part) = self.waiting.pop_front() else { return };
            let entry = self.encode(part);
            // SAFETY: the caller of `push` promised that the request's memory stays valid and unshared until the
            // completion is delivered or the queue is dropped. It is delivered after its last command has ended, and
            // dropping waits until the kernel no longer uses any memory. A range to deallocate belongs to the slot,
            // which is reused only after that, and lives as long. `self._node` (and the ring's table) keeps the node
            // open.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                self.waiting.push_front(part);
                return;
            }
            self.due -= 1;
            self.unsent += 1;
        }
    }

    /// Enables an owner-driven ring; the calling thread becomes the owner.
    #[cold]
    fn enable(&mut self) -> Result<()> {
        self.ring.submitter().register_enable_rings().map_err(|error| ring::enter_error("submit", &error))?;
        self.disabled = false;
        Ok(())
    }

    fn send_due(&mut self) -> Result<()> {
        loop {
            self.fill();
            if self.unsent == 0 {
                return Ok(());
            }
            match self.ring.submit() {
                Ok(0) => return Err(ring::submit_stuck()),
                Ok(count) => self.took(count),
                Err(error) => self.make_room(&error)?,
            }
        }
    }

    /// The kernel took `count` entries.
    fn took(&mut self, count: usize) {
        let count = (count as u32).min(self.unsent);
        self.unsent -= count;
        self.sent += count;
    }

    /// Waits until the kernel no longer uses any memory of requests. Requests pushed but never submitted are never
    /// executed.
    fn quiesce(&mut self) -> Result<()> {
        if self.disabled {
            return Ok(());
        }
        let mut unheard = Vec::with_capacity(self.slots.len());
        let mut outcome = Ok(());
        while self.sent > 0 || (outcome.is_ok() && (self.due > 0 || self.unsent > 0)) {
            // If this thread may not send for the owner, it stops trying: unsent requests need no waiting.
            if outcome.is_ok() {
                outcome = self.send_due();
            }
            if self.ring.completion().is_empty() && self.sent > 0 {
                self.enter_only(1)?;
            }
            unheard.clear();
            self.drain(&mut unheard, self.slots.len());
        }
        Ok(())
    }
}

impl Reaps for NvmeQueue {
    type Entry = Entry128;
    type Completion = Entry32;

    fn shell(&mut self) -> &mut Shell {
        &mut self.shell
    }

    fn ring(&mut self) -> &mut Ring {
        &mut self.ring
    }

    fn pending(&self) -> u32 {
        self.in_flight()
    }

    fn in_ring(&self) -> u32 {
        self.sent
    }

    fn drain(&mut self, out: &mut Vec<Done>, room: usize) -> usize {
        let mut count = room.min(self.shell.ready.len());
        out.extend(self.shell.ready.drain(..count));
        let mut completions = self.ring.completion();
        while count < room
            && let Some(entry) = completions.next()
        {
            self.sent -= 1;
            let part = Part::unpack(entry.user_data());
            let slot = &mut self.slots[part.slot as usize];
            let next =
                if entry.result() == 0 { slot.succeeds(part) } else { slot.fails(part, entry.result()) };
            if let Some(next) = next {
                self.waiting.push_front(next);
                self.due += 1;
            } else if slot.left == 0 {
                out.push(slot.done());
                self.free.push(part.slot);
                count += 1;
            }
        }
        count
    }

    fn enter(&mut self, want: u32, deadline: Option<Instant>) -> Result<Entered> {
        if self.disabled {
            self.enable()?;
        }
        self.due = self.waiting.len();
        self.fill();
        let in_device = self.sent + self.unsent;
        // While others are held back, wait for half of the requests in the device before sending more.
        let want = want.min(if self.due > 0 { (in_device / 2).max(1) } else { in_device });
        let rest = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if rest == Some(Duration::ZERO) {
            self.send()?;
            return Ok(Entered::TimedOut);
        }
        if rest.is_some() && self.shell.facts.polled {
            // The kernel ignores time limits while it polls: the caller checks repeatedly.
            self.send_due()?;
            return self.enter_only(0).map(|()| Entered::Progress);
        }
        match enter::send_and_wait(&self.ring, want, rest) {
            Ok(count) => self.took(count),
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
        self.due = self.waiting.len();
        self.send_due()?;
        Ok(std::mem::take(&mut self.fresh))
    }

    fn send_into_room(&mut self, late: usize) -> Result<()> {
        if late > 0 || self.due > 0 { self.send_due() } else { Ok(()) }
    }
}

impl DeviceQueue for NvmeQueue {
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        if !self.shell.process.is_here() || self.in_flight() >= self.capacity() {
            return Err(Full);
        }
        let mut request = request;
        if matches!(request.op, Op::Read | Op::Write) {
            request.length = request.length.min(TRANSFER_MAX);
        }
        let answer = match self.parts(&request) {
            None => -libc::EINVAL,
            Some(_) if request.op == Op::Flush && !self.target.volatile_cache => 0,
            Some(_) if request.op != Op::Read && request.op != Op::Flush && self.target.read_only => {
                -libc::EROFS
            }
            Some(_) if request.op == Op::Discard && self.target.discard_max == 0 => -libc::EOPNOTSUPP,
            Some(parts) => {
                let Some(slot) = self.free.pop() else { return Err(Full) };
                self.slots[slot as usize] = Slot::new(request, parts);
                let at_once = if request.op == Op::Discard { 1 } else { parts };
                self.waiting.extend((0..at_once).map(|number| Part { slot, number }));
                self.fresh += 1;
                return Ok(());
            }
        };
        self.fresh += 1;
        self.shell.complete(request.tag, answer);
        Ok(())
    }

    fn submit(&mut self) -> Result<usize> {
        self.shell.process.check()?;
        self.send()
    }

    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        reap::reap(self, out, wait)
    }

    fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len() + self.shell.ready.len()) as u32
    }

    fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    fn facts(&self) -> QueueFacts {
        self.shell.facts.clone()
    }

    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        reap::event_fd(self)
    }
}

impl Drop for NvmeQueue {
    fn drop(&mut self) {
        if !self.shell.process.is_here() {
            return;
        }
        // The kernel frees a closed ring some time later, and until then its table would keep the node open.
        let released = self.quiesce().is_ok() && self.ring.submitter().unregister_files().is_ok();
        if !released {
            self.tombstone.arm();
        }
    }
}
