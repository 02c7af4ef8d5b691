//! Counts the requests that reach a device, and passes each one to a trace sink.

use super::slots::Slots;
use super::wrap::{DeviceLayer, Fate, Nowait, QueueLayer, What, Wrapped, inner_cost, inner_reads_zeros};
use crate::timer::now_ns;
use crate::{Cost, Device, DeviceQueue, Done, Op, Priority, Queue, QueueOptions, Request, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Wraps a device and counts requests, synchronous and queued alike.
///
/// A synchronous request counts when it is made, whether or not it succeeds; a queued one when its queue
/// accepts it.
pub struct CountingDevice {
    inner: Arc<dyn Device>,
    counters: Arc<Counters>,
    trace: Option<Arc<Tracer>>,
}

/// Live counters of a [`CountingDevice`], shared by all its queues.
#[derive(Debug, Default)]
pub struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    fua_writes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    discarded_bytes: AtomicU64,
    queued: AtomicU64,
    errors: AtomicU64,
}

/// Counter values. All count since creation or the last [`Counters::take`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Read requests.
    pub reads: u64,
    /// Write requests, FUA ones included.
    pub writes: u64,
    /// FUA write requests.
    pub fua_writes: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Discard requests.
    pub discards: u64,
    /// Bytes asked for by reads.
    pub read_bytes: u64,
    /// Bytes offered by writes.
    pub written_bytes: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
    /// How many of all requests came through queues.
    pub queued: u64,
    /// Requests that failed.
    pub errors: u64,
}

impl Counters {
    /// Current values. Each is exact; together they are a snapshot only while no request runs.
    pub fn get(&self) -> Counts {
        self.each(|counter| counter.load(Relaxed))
    }

    /// Current values. Resets them to zero.
    pub fn take(&self) -> Counts {
        self.each(|counter| counter.swap(0, Relaxed))
    }

    fn each(&self, value: impl Fn(&AtomicU64) -> u64) -> Counts {
        Counts {
            reads: value(&self.reads),
            writes: value(&self.writes),
            fua_writes: value(&self.fua_writes),
            flushes: value(&self.flushes),
            discards: value(&self.discards),
            read_bytes: value(&self.read_bytes),
            written_bytes: value(&self.written_bytes),
            discarded_bytes: value(&self.discarded_bytes),
            queued: value(&self.queued),
            errors: value(&self.errors),
        }
    }

    fn add(&self, what: &What, queued: bool) {
        let (requests, bytes) = match what.op {
            Op::Read => (&self.reads, Some(&self.read_bytes)),
            Op::Write => (&self.writes, Some(&self.written_bytes)),
            Op::Flush => (&self.flushes, None),
            Op::Discard => (&self.discards, Some(&self.discarded_bytes)),
        };
        requests.fetch_add(1, Relaxed);
        if let Some(bytes) = bytes {
            bytes.fetch_add(what.length, Relaxed);
        }
        // An atomic addition of zero is not free.
        if what.fua {
            self.fua_writes.fetch_add(1, Relaxed);
        }
        if queued {
            self.queued.fetch_add(1, Relaxed);
        }
    }
}

/// Phase of a traced request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracePhase {
    /// Made (synchronous) or accepted by its queue.
    Submit,
    /// Returned (synchronous) or delivered by `reap`: bytes, or the errno.
    Complete(std::result::Result<u64, i32>),
}

/// One line of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceEvent {
    /// Nanoseconds since the layer was made.
    pub time_ns: u64,
    /// Kernel thread id of the thread that submitted, or reaped.
    pub thread: u32,
    /// Kind of request.
    pub op: Op,
    /// First byte (0 for a flush).
    pub pos: u64,
    /// Bytes (0 for a flush).
    pub length: u64,
    /// A FUA write.
    pub fua: bool,
    /// Fails instead of waiting.
    pub nowait: bool,
    /// Pieces of memory: more than one if the request has vectors.
    pub pieces: u32,
    /// I/O priority of a queued request, if it has its own.
    pub priority: Priority,
    /// Through a queue rather than a synchronous call.
    pub queued: bool,
    /// Submitted or completed.
    pub phase: TracePhase,
    /// Of one that is submitted: what it costs below ([`Device::cost`]).
    pub cost: Option<Cost>,
}

impl fmt::Display for TraceEvent {
    /// As blktrace prints it: `W 2048+8 FUA`, `R 0+8`, `D 4096+128`, `F`, in sectors of 512 bytes. A completion with an
    /// error has ` error 5` appended, a request that does not wait has ` NOWAIT`, one of three buffers ` VEC3`, one
    /// with an I/O priority ` (idle 0)`, one into an image ` (qcow2: mapped, host offset 327680)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.op {
            Op::Read => 'R',
            Op::Write => 'W',
            Op::Flush => 'F',
            Op::Discard => 'D',
        };
        write!(f, "{letter}")?;
        if self.op != Op::Flush {
            write!(f, " {}+{}", self.pos / 512, self.length / 512)?;
        }
        if self.fua {
            f.write_str(" FUA")?;
        }
        if self.nowait {
            f.write_str(" NOWAIT")?;
        }
        if self.pieces > 1 {
            write!(f, " VEC{}", self.pieces)?;
        }
        if !self.priority.is_of_thread() {
            write!(f, " ({})", self.priority)?;
        }
        if let TracePhase::Complete(Err(errno)) = self.phase {
            write!(f, " error {errno}")?;
        }
        self.cost.map_or(Ok(()), |cost| write!(f, " ({cost})"))
    }
}

/// Receives every event, on the thread that caused it. It must not use the traced device.
pub type TraceSink = Arc<dyn Fn(&TraceEvent) + Send + Sync>;

struct Tracer {
    start_ns: u64,
    device: Arc<dyn Device>,
    sink: TraceSink,
}

impl Tracer {
    fn cost(&self, what: &What) -> Option<Cost> {
        self.device.cost(what.op, what.pos, what.length)
    }

    fn event(&self, what: &What, queued: bool, phase: TracePhase, cost: Option<Cost>) {
        (self.sink)(&TraceEvent {
            time_ns: now_ns() - self.start_ns,
            thread: rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(),
            op: what.op,
            pos: what.pos,
            length: what.length,
            fua: what.fua,
            nowait: what.nowait,
            pieces: what.pieces,
            priority: what.priority,
            queued,
            phase,
            cost,
        });
    }
}

impl CountingDevice {
    /// Counts what goes to `inner`.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        CountingDevice { inner, counters: Arc::default(), trace: None }
    }

    /// Also passes every request to `sink`, at submission and at completion.
    pub fn with_trace(inner: Arc<dyn Device>, sink: TraceSink) -> Self {
        let trace = Some(Arc::new(Tracer { start_ns: now_ns(), device: Arc::clone(&inner), sink }));
        CountingDevice { inner, counters: Arc::default(), trace }
    }

    /// The live counters, which may outlive the device.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Current values.
    pub fn counts(&self) -> Counts {
        self.counters.get()
    }
}

impl fmt::Debug for CountingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountingDevice")
            .field("inner", &self.inner)
            .field("counts", &self.counts())
            .field("traced", &self.trace.is_some())
            .finish()
    }
}

impl DeviceLayer for CountingDevice {
    const ATOMIC: bool = true;
    const ZEROS: bool = true;
    const NOWAIT: Nowait = Nowait::Passes;

    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        inner_reads_zeros(self, pos, length)
    }

    fn cost(&self, op: Op, pos: u64, length: u64) -> Option<Cost> {
        inner_cost(self, op, pos, length)
    }

    fn names(&self) -> Vec<String> {
        vec![if self.trace.is_some() { "counting, traced" } else { "counting" }.into()]
    }

    fn run(&self, what: What, call: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        self.counters.add(&what, false);
        if let Some(trace) = &self.trace {
            trace.event(&what, false, TracePhase::Submit, trace.cost(&what));
        }
        let outcome = call(&*self.inner);
        self.counters.errors.fetch_add(u64::from(outcome.is_err()), Relaxed);
        if let Some(trace) = &self.trace {
            let result = outcome.as_ref().map(|()| what.length).map_err(|error| error.errno());
            trace.event(&what, false, TracePhase::Complete(result), None);
        }
        outcome
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let inner = self.inner.queue(options)?;
        let trace = self.trace.as_ref().map(|tracer| (Arc::clone(tracer), Slots::new(inner.capacity())));
        Ok(Wrapped::queue(inner, CountingQueue { counters: Arc::clone(&self.counters), trace }))
    }
}

/// State of a traced request until completion: its own tag, its description, and its cost when it was made.
type Traced = (u64, What, Option<Cost>);

struct CountingQueue {
    counters: Arc<Counters>,
    trace: Option<(Arc<Tracer>, Slots<Traced>)>,
}

impl QueueLayer for CountingQueue {
    const VECTORS: bool = true;

    const ANSWERS: bool = false;

    fn meet(&mut self, request: &Request) -> Fate {
        let Request { pos, length, tag, .. } = *request;
        let Some((tracer, slots)) = &mut self.trace else { return Fate::pass(request) };
        let what = What::of(request);
        slots.insert((tag, what, tracer.cost(&what))).map_or(Fate::Full, |tag| Fate::Pass {
            pos,
            length,
            tag,
        })
    }

    fn met(&mut self, request: &Request, fate: Fate, taken: bool) {
        let what = What::of(request);
        if taken {
            self.counters.add(&what, true);
        }
        let (Some((tracer, slots)), Fate::Pass { tag, .. }) = (&mut self.trace, fate) else { return };
        if taken {
            let cost = slots.get_mut(tag).and_then(|(_, _, cost)| *cost);
            tracer.event(&what, true, TracePhase::Submit, cost);
        } else {
            slots.remove(tag);
        }
    }

    fn done(&mut self, done: &mut Done) {
        if done.result < 0 {
            self.counters.errors.fetch_add(1, Relaxed);
        }
        let Some((tracer, slots)) = &mut self.trace else { return };
        if let Some((tag, what, _)) = slots.remove(done.tag) {
            let result = u64::try_from(done.result).map_err(|_| -done.result);
            tracer.event(&what, true, TracePhase::Complete(result), None);
            done.tag = tag;
        }
    }
}
