//! The engine's only access to device queues, and its only unsafe code besides the queue's lock.
//!
//! A slot owns the memory of its request from [`Door::store`] until [`Door::take`], and `take` panics while the device
//! still works on the slot. So safe code can neither free nor touch memory under transfer.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use uext4_blockdev::{
    Buffer, DeviceQueue, Done, Full, Memory, Op, Priority, Queue, QueueFacts, Request, Result, Vector, Wait,
    probes,
};

/// The memory of one request.
#[derive(Debug, Default)]
pub enum Payload {
    /// No data.
    #[default]
    None,
    /// One buffer.
    One(Buffer),
    /// Several buffers, consecutive in the file.
    #[allow(clippy::box_collection, reason = "one word, so that a payload fits two registers")]
    Many(Box<Vec<Buffer>>),
}

const _: () = assert!(size_of::<Payload>() == 2 * size_of::<usize>());

impl Payload {
    /// All buffers in order.
    pub(crate) fn buffers(&self) -> &[Buffer] {
        match self {
            Payload::None => &[],
            Payload::One(buffer) => std::slice::from_ref(buffer),
            Payload::Many(buffers) => buffers,
        }
    }

    pub(crate) fn buffers_mut(&mut self) -> &mut [Buffer] {
        match self {
            Payload::None => &mut [],
            Payload::One(buffer) => std::slice::from_mut(buffer),
            Payload::Many(buffers) => buffers,
        }
    }

    /// Bytes in all buffers.
    #[inline]
    pub fn len(&self) -> u64 {
        self.buffers().iter().map(|buffer| buffer.len() as u64).sum()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The only buffer, if there is exactly one.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Payload::One(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The bytes, buffer by buffer.
    pub(crate) fn parts(&self) -> Vec<&[u8]> {
        self.buffers().iter().map(|buffer| &**buffer).collect()
    }

    /// The buffer with the byte at `offset`, and the byte's offset in it.
    #[inline]
    fn locate(&self, mut offset: u64) -> Option<(usize, u64)> {
        for (number, buffer) in self.buffers().iter().enumerate() {
            match offset.checked_sub(buffer.len() as u64) {
                None => return Some((number, offset)),
                Some(behind) => offset = behind,
            }
        }
        None
    }

    /// Bytes from `offset` to the end of its buffer.
    #[inline]
    pub(crate) fn contiguous(&self, offset: u64) -> u64 {
        self.locate(offset).map_or(0, |(number, within)| self.buffers()[number].len() as u64 - within)
    }

    /// Bytes from `offset` on in its buffer and those that follow, at most `most` buffers.
    fn reach(&self, offset: u64, most: usize) -> u64 {
        let Some((number, within)) = self.locate(offset) else { return 0 };
        let some = self.buffers()[number..].iter().take(most);
        some.map(|buffer| buffer.len() as u64).sum::<u64>() - within
    }

    /// The memory of `[offset, offset + length)`, buffer by buffer.
    fn vectors(&mut self, offset: u64, length: u64) -> Box<[Vector]> {
        let (mut left, mut vectors) = (length, Vec::new());
        if let Some((number, mut within)) = self.locate(offset) {
            for buffer in &mut self.buffers_mut()[number..] {
                let part = left.min(buffer.len() as u64 - within) as usize;
                if part > 0 {
                    vectors.push(Vector { address: buffer.memory(within as usize).address, length: part });
                }
                (left, within) = (left - part as u64, 0);
            }
        }
        assert!(left == 0, "a request reaches past its buffers");
        vectors.into()
    }

    /// Zeroes `length` bytes from `offset`.
    pub(crate) fn zero(&mut self, offset: u64, length: u64) {
        let mut skip = offset;
        let mut left = length;
        for buffer in self.buffers_mut() {
            let size = buffer.len() as u64;
            if skip >= size {
                skip -= size;
                continue;
            }
            let part = left.min(size - skip);
            buffer[skip as usize..(skip + part) as usize].fill(0);
            left -= part;
            skip = 0;
        }
    }

    /// The memory of `[offset, offset + length)`, which lies in one buffer.
    #[inline]
    fn memory(&mut self, offset: u64, length: u64) -> Memory {
        assert!(length <= self.contiguous(offset), "a request reaches past its buffer");
        match self.locate(offset) {
            Some((number, within)) => self.buffers_mut()[number].memory(within as usize),
            None => Memory::NONE,
        }
    }
}

#[derive(Debug, Default)]
struct Held {
    payload: Payload,
    outstanding: u32,
}

/// One device request of a slot.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub op: Op,
    pub fua: bool,
    pub nowait: bool,
    pub priority: Priority,
    /// First byte on the device.
    pub pos: u64,
    /// First byte in the slot's payload.
    pub offset: u64,
    pub length: u32,
    /// Number of this request within its slot.
    pub index: u32,
}

/// A device queue and the memory of all requests in flight on it.
#[repr(C)]
pub(crate) struct Door {
    // Dropped first: dropping a queue waits for its requests, so the payloads below outlive them.
    queue: Queue,
    held: Box<[Held]>,
    /// For each slot, the vectors of its requests that span several buffers. Empty if the queue does not support
    /// vectors.
    vectors: Box<[Vec<Box<[Vector]>>]>,
    /// Maximum number of buffers in one request.
    buffers_max: usize,
}

impl Door {
    pub(crate) fn new(queue: Queue, slots: u32) -> Self {
        let buffers_max = queue.facts().vectors.max(1);
        let listed = if buffers_max > 1 { slots } else { 0 };
        Door {
            queue,
            held: (0..slots).map(|_| Held::default()).collect(),
            vectors: (0..listed).map(|_| Vec::new()).collect(),
            buffers_max: buffers_max as usize,
        }
    }

    /// Stores the memory of a request in its slot.
    #[inline]
    pub(crate) fn store(&mut self, slot: u32, payload: Payload) {
        let held = &mut self.held[slot as usize];
        assert!(held.outstanding == 0, "a slot in flight is not free");
        held.payload = payload;
        if let Some(unused) = self.vectors.get_mut(slot as usize) {
            unused.clear();
        }
    }

    /// Takes the memory out of a slot.
    #[inline]
    pub(crate) fn take(&mut self, slot: u32) -> Payload {
        let held = &mut self.held[slot as usize];
        assert!(held.outstanding == 0, "the device still works on this memory");
        std::mem::take(&mut held.payload)
    }

    /// The payload of a slot with nothing in flight.
    pub(crate) fn idle_payload(&mut self, slot: u32) -> &mut Payload {
        let held = &mut self.held[slot as usize];
        assert!(held.outstanding == 0, "the device still works on this memory");
        &mut held.payload
    }

    /// Bytes from `offset` on that fit one device request: in one buffer, or in several if the device supports vectors.
    #[inline]
    pub(crate) fn reach(&self, slot: u32, offset: u64) -> u64 {
        self.held[slot as usize].payload.reach(offset, self.buffers_max)
    }

    /// Stores a buffer in a free slot and queues one device request for all of it. Returns the buffer if the queue is
    /// full.
    #[inline(always)]
    pub(crate) fn send(
        &mut self,
        slot: u32,
        mut buffer: Buffer,
        op: Op,
        fua: bool,
        pos: u64,
    ) -> std::result::Result<(), Buffer> {
        let held = &mut self.held[slot as usize];
        assert!(held.outstanding == 0, "a slot in flight is not free");
        // A buffer is never longer than a request: the pool's regions are at most 1 GiB.
        let length = buffer.len() as u32;
        let memory = buffer.memory(0);
        let (nowait, priority) = (false, Priority::OF_THREAD);
        let request = Request { op, fua, nowait, priority, pos, length, memory, tag: u64::from(slot) };
        // All state is stored before the call, so that nothing has to be saved across it. The old payload needs no
        // drop: a free slot has none.
        debug_assert!(matches!(held.payload, Payload::None), "a slot in use is not free");
        std::mem::forget(std::mem::replace(&mut held.payload, Payload::One(buffer)));
        held.outstanding = 1;
        probes::submit(op, pos, length.into(), fua, slot.into());
        // SAFETY: as in `push`: the memory is the whole buffer, which the slot owns from the lines above until nothing
        // of the slot is outstanding. Moving a `Buffer` does not move its bytes, and the queue never looks at a request
        // it refused.
        match unsafe { self.queue.push(request) } {
            Ok(()) => Ok(()),
            Err(Full) => Err(self.refused(slot)),
        }
    }

    /// Takes back the buffer of the only request of a slot, which the queue refused.
    #[cold]
    #[inline(never)]
    fn refused(&mut self, slot: u32) -> Buffer {
        let held = &mut self.held[slot as usize];
        held.outstanding = 0;
        match std::mem::take(&mut held.payload) {
            Payload::One(buffer) => buffer,
            Payload::None | Payload::Many(_) => unreachable!("the one buffer of `send`"),
        }
    }

    /// Adds one device request of a slot.
    #[inline]
    pub(crate) fn push(&mut self, slot: u32, part: Part) -> std::result::Result<(), Full> {
        let held = &mut self.held[slot as usize];
        let length = u64::from(part.length);
        let memory = match part.op {
            Op::Flush | Op::Discard => Memory::NONE,
            Op::Read | Op::Write if length <= held.payload.contiguous(part.offset) => {
                held.payload.memory(part.offset, length)
            }
            Op::Read | Op::Write => {
                let vectors = held.payload.vectors(part.offset, length);
                assert!(vectors.len() <= self.buffers_max, "more buffers than one request may have");
                // SAFETY: the vectors have `length` bytes, as the request below, and stay in `self.vectors` unchanged
                // until `store`, which asserts that nothing of the slot is outstanding.
                let memory = unsafe { Memory::vectors(NonNull::from(&*vectors).cast()) };
                self.vectors[slot as usize].push(vectors);
                memory
            }
        };
        let request = Request {
            op: part.op,
            fua: part.fua,
            nowait: part.nowait,
            priority: part.priority,
            pos: part.pos,
            length: part.length,
            memory,
            tag: u64::from(slot) | u64::from(part.index) << 32,
        };
        probes::submit(part.op, part.pos, part.length.into(), part.fua, request.tag);
        // SAFETY: the memory lies in a buffer of the slot's payload (`Payload::memory` and `Payload::vectors` assert
        // it), which the slot owns. It leaves the slot only by `take` or `store`, which assert that nothing of the slot
        // is outstanding, and its bytes are not accessible before that (`idle_payload` asserts the same). The vectors
        // stay unchanged and in place until `store`. If the door is dropped, the queue is dropped first and waits for
        // all requests.
        unsafe { self.queue.push(request)? };
        held.outstanding += 1;
        Ok(())
    }

    /// Sends what was pushed.
    pub(crate) fn submit(&mut self) -> Result<usize> {
        self.queue.submit()
    }

    /// Delivers completions. Pass each one to [`Door::land`] or [`Door::take_landed`] exactly once: until then its slot
    /// counts it as outstanding.
    #[inline]
    pub(crate) fn reap(&mut self, done: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        self.queue.reap(done, wait)
    }

    /// Notes that one device request of a slot has completed.
    #[inline]
    pub(crate) fn land(&mut self, done: Done) {
        probes::complete(done.tag, done.result.into());
        self.held[slot_of(done.tag) as usize].outstanding -= 1;
    }

    /// The only device request of a slot has completed: returns its memory.
    #[inline(always)]
    pub(crate) fn take_landed(&mut self, done: Done) -> Payload {
        probes::complete(done.tag, done.result.into());
        let held = &mut self.held[slot_of(done.tag) as usize];
        assert!(held.outstanding == 1, "the device still works on this memory");
        held.outstanding = 0;
        std::mem::take(&mut held.payload)
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.queue.in_flight()
    }

    pub(crate) fn facts(&self) -> QueueFacts {
        self.queue.facts()
    }

    pub(crate) fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        self.queue.event_fd()
    }
}

/// Slot number in a completion's tag.
#[inline]
pub(crate) fn slot_of(tag: u64) -> u32 {
    tag as u32
}

/// Part number in a completion's tag.
#[inline]
pub(crate) fn part_of(tag: u64) -> u32 {
    (tag >> 32) as u32
}
