//! Code shared by the layers: a device and a queue that forward everything their layer does not override. Tests build
//! layers of their own with it.

use super::pair::{self, Pair};
pub use super::slots::Slots;
use super::wake::Wake;
use crate::engine::DoneRing;
use crate::{
    Capabilities, Cost, Description, Device, DeviceQueue, Done, Error, Full, Geometry, Op, Priority, Queue,
    QueueFacts, QueueOptions, Request, Result, Wait, WriteDurability, write_zeros,
};
use std::fmt;
use std::os::fd::BorrowedFd;

/// The part of a request that layers look at.
#[derive(Debug, Clone, Copy)]
pub struct What {
    /// Kind.
    pub op: Op,
    /// First byte (0 for a flush).
    pub pos: u64,
    /// Bytes (0 for a flush).
    pub length: u64,
    /// A write that must be durable by itself.
    pub fua: bool,
    /// Fails instead of waiting.
    pub nowait: bool,
    /// Pieces of memory, at least one.
    pub pieces: u32,
    /// I/O priority of a queued request.
    pub priority: Priority,
}

impl What {
    /// Of a queued request.
    pub fn of(request: &Request) -> Self {
        let flush = request.op == Op::Flush;
        let (pos, length) = if flush { (0, 0) } else { (request.pos, u64::from(request.length)) };
        let pieces = match request.memory.is_vectors() {
            // SAFETY: the caller of `Memory::vectors` promised that the vectors have the bytes of the request.
            true => unsafe { request.memory.as_vectors(request.length) }.len() as u32,
            false => 1,
        };
        What {
            fua: request.fua && request.op == Op::Write,
            nowait: request.nowait,
            priority: request.priority,
            pieces,
            ..What::call(request.op, pos, length)
        }
    }

    /// Of a synchronous call.
    pub fn call(op: Op, pos: u64, length: u64) -> Self {
        What { op, pos, length, fua: false, nowait: false, pieces: 1, priority: Priority::OF_THREAD }
    }
}

/// How a layer handles NOWAIT reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nowait {
    /// Like any others, which may wait: the layer has its own reads and writes.
    Waits,
    /// Passes them on through [`DeviceLayer::run`].
    Passes,
}

/// A device around a device. A layer implements what it changes; the rest comes from the inner device.
pub trait DeviceLayer: Send + Sync + fmt::Debug {
    /// How NOWAIT calls are handled.
    const NOWAIT: Nowait = Nowait::Waits;

    /// Whether a write that the inner device does not tear is not torn here either: the layer passes it on in one
    /// piece.
    const ATOMIC: bool = false;

    /// Whether [`Device::write_zeros`] is passed on, which [`DeviceLayer::run`] sees as one write. Otherwise the layer
    /// gets writes of zeros.
    const ZEROS: bool = false;

    /// The device inside.
    fn inner(&self) -> &dyn Device;

    /// Its entries in [`Description::layers`].
    fn names(&self) -> Vec<String>;

    /// Sees every synchronous request, and runs it with `call`.
    fn run(&self, _: What, call: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        call(self.inner())
    }

    /// Maps a position on this device to one on the inner device.
    fn position(&self, pos: u64, _length: u64) -> Result<u64> {
        Ok(pos)
    }

    /// [`Device::geometry`].
    fn geometry(&self) -> Geometry {
        self.inner().geometry()
    }

    /// [`Device::capabilities`].
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// [`Device::read_at`].
    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let length = buf.len() as u64;
        let inner_pos = self.position(pos, length)?;
        self.run(What::call(Op::Read, pos, length), |inner| inner.read_at(buf, inner_pos))
    }

    /// [`Device::write_at`].
    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        let (length, fua) = (buf.len() as u64, durability == WriteDurability::Fua);
        let inner_pos = self.position(pos, length)?;
        let what = What { fua, ..What::call(Op::Write, pos, length) };
        self.run(what, |inner| inner.write_at(buf, inner_pos, durability))
    }

    /// [`Device::flush`].
    fn flush(&self) -> Result<()> {
        self.run(What::call(Op::Flush, 0, 0), |inner| inner.flush())
    }

    /// [`Device::merges_flushes`].
    fn merges_flushes(&self) -> bool {
        self.inner().merges_flushes()
    }

    /// [`Device::discard`].
    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        let inner_pos = self.position(pos, length)?;
        self.run(What::call(Op::Discard, pos, length), |inner| inner.discard(inner_pos, length))
    }

    /// [`Device::reads_zeros`]. Never known by default; a layer that holds no data of its own calls
    /// [`inner_reads_zeros`].
    fn reads_zeros(&self, _pos: u64, _length: u64) -> bool {
        false
    }

    /// [`Device::cost`]. Never known by default; a layer that holds no data of its own calls [`inner_cost`].
    fn cost(&self, _op: Op, _pos: u64, _length: u64) -> Option<Cost> {
        None
    }

    /// [`Device::queue`].
    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        self.inner().queue(options)
    }
}

/// [`DeviceLayer::cost`] of a layer that holds no data of its own.
pub fn inner_cost(layer: &impl DeviceLayer, op: Op, pos: u64, length: u64) -> Option<Cost> {
    let pos = if op == Op::Flush { pos } else { layer.position(pos, length).ok()? };
    layer.inner().cost(op, pos, length)
}

/// [`DeviceLayer::reads_zeros`] of a layer that holds no data of its own.
pub fn inner_reads_zeros(layer: &impl DeviceLayer, pos: u64, length: u64) -> bool {
    layer.position(pos, length).is_ok_and(|inner_pos| layer.inner().reads_zeros(inner_pos, length))
}

impl<L: DeviceLayer> Device for L {
    fn geometry(&self) -> Geometry {
        DeviceLayer::geometry(self)
    }

    fn capabilities(&self) -> Capabilities {
        DeviceLayer::capabilities(self)
    }

    fn describe(&self) -> Description {
        let mut description = self.inner().describe();
        description.layers.extend(self.names());
        description
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        DeviceLayer::read_at(self, buf, pos)
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        DeviceLayer::write_at(self, buf, pos, durability)
    }

    fn read_nowait(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        if L::NOWAIT == Nowait::Waits {
            return DeviceLayer::read_at(self, buf, pos);
        }
        let length = buf.len() as u64;
        let inner_pos = self.position(pos, length)?;
        let what = What { nowait: true, ..What::call(Op::Read, pos, length) };
        self.run(what, |inner| inner.read_nowait(buf, inner_pos))
    }

    fn write_nowait(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        if L::NOWAIT == Nowait::Waits {
            return DeviceLayer::write_at(self, buf, pos, durability);
        }
        let (length, fua) = (buf.len() as u64, durability == WriteDurability::Fua);
        let inner_pos = self.position(pos, length)?;
        let what = What { fua, nowait: true, ..What::call(Op::Write, pos, length) };
        self.run(what, |inner| inner.write_nowait(buf, inner_pos, durability))
    }

    fn atomic_max(&self) -> u64 {
        if L::ATOMIC { self.inner().atomic_max() } else { 0 }
    }

    fn write_atomic(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        if !L::ATOMIC {
            return Err(Error::Unsupported("a write that is never torn".into()));
        }
        let (length, fua) = (buf.len() as u64, durability == WriteDurability::Fua);
        let inner_pos = self.position(pos, length)?;
        let what = What { fua, ..What::call(Op::Write, pos, length) };
        self.run(what, |inner| inner.write_atomic(buf, inner_pos, durability))
    }

    fn flush(&self) -> Result<()> {
        DeviceLayer::flush(self)
    }

    /// Every layer sees it as a flush.
    fn settle(&self) -> Result<()> {
        self.run(What::call(Op::Flush, 0, 0), |inner| inner.settle())
    }

    fn merges_flushes(&self) -> bool {
        DeviceLayer::merges_flushes(self)
    }

    fn write_zeros(&self, pos: u64, length: u64) -> Result<()> {
        if !L::ZEROS {
            return write_zeros(self, pos, length);
        }
        let inner_pos = self.position(pos, length)?;
        self.run(What::call(Op::Write, pos, length), |inner| inner.write_zeros(inner_pos, length))
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        DeviceLayer::discard(self, pos, length)
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        DeviceLayer::reads_zeros(self, pos, length)
    }

    fn cost(&self, op: Op, pos: u64, length: u64) -> Option<Cost> {
        DeviceLayer::cost(self, op, pos, length)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        DeviceLayer::queue(self, options)
    }
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Passed to the inner queue with these values. It may become shorter, not longer.
    Pass {
        /// First byte on the inner device.
        pos: u64,
        /// Bytes.
        length: u32,
        /// Tag of the inner queue's completion.
        tag: u64,
    },
    /// Passed to the queue aside ([`Wrapped::queue_with`]) with these values, likewise. Its completion is not shown to
    /// the layer. Without such a queue the request fails with `EIO`.
    Aside {
        /// First byte on the device of that queue.
        pos: u64,
        /// Bytes.
        length: u32,
    },
    /// The layer answers it: bytes, or a negative errno.
    Answer(i32),
    /// The layer answers a read with data of its own: [`QueueLayer::fill`].
    Fill,
    /// The layer keeps the data of a write to itself: [`QueueLayer::keep`].
    Keep,
    /// The layer has no room for another request.
    Full,
}

impl Fate {
    /// Passes it to the inner queue unchanged.
    pub fn pass(request: &Request) -> Fate {
        Fate::Pass { pos: request.pos, length: request.length, tag: request.tag }
    }
}

/// A queue around a queue. A layer implements what it changes; the rest comes from the inner queue.
pub trait QueueLayer: Send + Sized {
    /// Whether it can have completions that the inner queue does not have.
    const ANSWERS: bool = true;

    /// Whether it passes on requests with several vectors: it neither looks at their data nor shortens them.
    const VECTORS: bool = false;

    /// Decides what happens to a request. The queue has room.
    fn meet(&mut self, request: &Request) -> Fate;

    /// Called after [`QueueLayer::meet`]. `taken`: the request is in flight now; otherwise it was refused.
    fn met(&mut self, _request: &Request, _fate: Fate, _taken: bool) {}

    /// Answers a read whose fate is [`Fate::Fill`]: bytes, or a negative errno.
    fn fill(&mut self, _memory: &mut [u8], _pos: u64) -> i32 {
        -libc::EIO
    }

    /// Answers a write whose fate is [`Fate::Keep`]: bytes, or a negative errno.
    fn keep(&mut self, _memory: &[u8], _pos: u64) -> i32 {
        -libc::EIO
    }

    /// Called before pushed requests are sent.
    fn sent(&mut self) {}

    /// Called for each completion of the inner queue.
    fn done(&mut self, _done: &mut Done) {}

    /// Completions that the layer holds back.
    fn kept(&self) -> u32 {
        0
    }

    /// When the first completion held back is due (in `timer::now_ns` time).
    fn due(&self) -> Option<u64> {
        None
    }

    /// See [`DeviceQueue::reap`].
    fn reap(queue: &mut Wrapped<Self>, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        queue.deliver(out, wait)
    }
}

/// The inner queue, its layer, and the completions that the layer produced itself. When it is dropped, the queues come
/// first: nothing is in flight when the layer is dropped.
pub struct Wrapped<L> {
    pub(super) inner: Queue,
    aside: Option<Queue>,
    pub(super) layer: L,
    /// One of the queues polls.
    polled: bool,
    own: DoneRing,
    wake: Wake,
}

impl<L: QueueLayer + 'static> Wrapped<L> {
    /// Wraps a queue.
    pub fn queue(inner: Queue, layer: L) -> Queue {
        Self::queue_with(inner, None, layer)
    }

    /// The same with a queue aside, of another device, for requests whose fate is [`Fate::Aside`].
    pub fn queue_with(inner: Queue, aside: Option<Queue>, layer: L) -> Queue {
        let own = DoneRing::new(inner.capacity());
        let polled = aside.as_ref().is_some_and(|aside| aside.facts().polled || inner.facts().polled);
        Queue::Other(Box::new(Wrapped { inner, aside, layer, polled, own, wake: Wake::default() }))
    }
}

impl<L: QueueLayer> Wrapped<L> {
    /// The inner queue's completions come first, so that its error loses none of ours.
    fn deliver(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        self.own.send();
        let wait = match wait {
            _ if self.own.len() == 0 => wait,
            Wait::AtLeast(count) if count > self.own.len() => Wait::AtLeast(count - self.own.len()),
            _ => Wait::No,
        };
        let Wrapped { inner, aside, layer, polled, .. } = self;
        let before = out.len();
        let mut seen = |done: &mut [Done]| done.iter_mut().for_each(|done| layer.done(done));
        let passed = match aside {
            Some(aside) => Pair { first: inner, second: aside, polled: *polled }.reap(out, wait, seen),
            None => {
                let passed = inner.reap(out, wait);
                seen(&mut out[before..]);
                passed
            }
        };
        let own = if passed.is_ok() { self.own.deliver(out) } else { 0 };
        self.signal()?;
        Ok(passed? + own)
    }

    pub(super) fn signal(&self) -> Result<()> {
        self.wake.set(if self.own.len() > 0 { Some(0) } else { self.layer.due() })
    }
}

impl<L: QueueLayer> DeviceQueue for Wrapped<L> {
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        if self.in_flight() >= self.capacity() {
            return Err(Full);
        }
        let fate = self.layer.meet(&request);
        let taken = match fate {
            Fate::Pass { pos, length, tag } => {
                let length = length.min(request.length);
                // SAFETY: the caller's promise about the memory is passed on; it also covers a prefix of it.
                unsafe { self.inner.push(Request { pos, length, tag, ..request }) }
            }
            Fate::Aside { pos, length } => match &mut self.aside {
                Some(aside) => {
                    let length = length.min(request.length);
                    // SAFETY: as above.
                    unsafe { aside.push(Request { pos, length, ..request }) }
                }
                None => self.own.push(Done { tag: request.tag, result: -libc::EIO }),
            },
            Fate::Answer(result) => self.own.push(Done { tag: request.tag, result }),
            Fate::Fill => {
                let address = request.memory.address.as_ptr();
                // SAFETY: only reads are answered this way; the caller promises `length` writable bytes that nobody
                // else touches until the completion is delivered, which happens after this call.
                let memory = unsafe { std::slice::from_raw_parts_mut(address, request.length as usize) };
                let result = self.layer.fill(memory, request.pos);
                self.own.push(Done { tag: request.tag, result })
            }
            Fate::Keep => {
                let address = request.memory.address.as_ptr();
                // SAFETY: only writes are answered this way; the caller promises `length` readable bytes that nobody
                // changes until the completion is delivered, which happens after this call.
                let memory = unsafe { std::slice::from_raw_parts(address, request.length as usize) };
                let result = self.layer.keep(memory, request.pos);
                self.own.push(Done { tag: request.tag, result })
            }
            Fate::Full => Err(Full),
        };
        self.layer.met(&request, fate, taken.is_ok());
        taken
    }

    fn submit(&mut self) -> Result<usize> {
        self.layer.sent();
        let own = self.own.send();
        self.signal()?;
        let aside = self.aside.as_mut().map_or(Ok(0), |aside| aside.submit());
        Ok(self.inner.submit()? + aside? + own)
    }

    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        self.layer.sent();
        L::reap(self, out, wait)
    }

    fn in_flight(&self) -> u32 {
        let aside = self.aside.as_ref().map_or(0, |aside| aside.in_flight());
        self.inner.in_flight() + aside + self.own.len() + self.layer.kept()
    }

    fn capacity(&self) -> u32 {
        let inner = self.inner.capacity();
        self.aside.as_ref().map_or(inner, |aside| inner.min(aside.capacity()))
    }

    fn facts(&self) -> QueueFacts {
        let facts = match &self.aside {
            Some(aside) => pair::facts(self.inner.facts(), aside.facts(), "backing file"),
            None => self.inner.facts(),
        };
        QueueFacts { vectors: if L::VECTORS { facts.vectors } else { 0 }, ..facts }
    }

    /// Readable for completions of either kind, or when the inner queue has one that may not be due yet.
    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        if !L::ANSWERS {
            return self.inner.event_fd();
        }
        let Wrapped { inner, aside, wake, .. } = self;
        let mut queues: Vec<&mut Queue> = [inner].into_iter().chain(aside).collect();
        if wake.get(&mut queues)?.is_none() {
            return Ok(None);
        }
        self.signal()?;
        // It is there now, and the queues are not asked again.
        self.wake.get(&mut [])
    }
}
