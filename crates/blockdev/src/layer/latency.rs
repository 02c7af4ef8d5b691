//! Slows a device down: each request completes no earlier than a given time after it was submitted.
//!
//! Any number of requests wait in parallel and no thread sleeps for them: a queue holds completions back until they are
//! due. Requests that take the device longer are not delayed further. With a modelled cache, flushes take time for the
//! bytes that they write out.

use super::slots::Slots;
use super::wrap::{DeviceLayer, Fate, Nowait, QueueLayer, What, Wrapped, inner_cost, inner_reads_zeros};
use crate::engine::goal;
use crate::timer::{duration_ns, now_ns, sleepable, wait_until};
use crate::{Cost, Device, DeviceQueue, Done, Op, Queue, QueueOptions, Request, Result, Wait};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A device with modelled latency.
#[derive(Debug)]
pub struct LatencyDevice {
    inner: Arc<dyn Device>,
    names: Vec<String>,
    costs: Costs,
}

/// Delays of requests, in nanoseconds.
#[derive(Debug, Clone)]
struct Costs {
    data: u64,
    fua: u64,
    flush: u64,
    /// Only if the time of a flush depends on cached bytes.
    cache: Option<Arc<Cache>>,
}

/// The bytes in the modelled cache that flushes take time for.
#[derive(Debug)]
struct Cache {
    /// Bytes written since the last flush began.
    bytes: AtomicU64,
    /// Bytes per second.
    rate: NonZeroU64,
    /// When the latest flush is due.
    due: Mutex<u64>,
}

impl Costs {
    fn of(&self, op: Op, fua: bool) -> u64 {
        match op {
            Op::Flush => self.flush,
            Op::Write if fua => self.data.max(self.fua),
            Op::Read | Op::Write | Op::Discard => self.data,
        }
    }

    /// Whether requests of this kind are not delayed.
    fn is_free(&self, op: Op, fua: bool) -> bool {
        self.of(op, fua) == 0 && (op != Op::Flush || self.cache.is_none())
    }

    /// Counts the bytes that a later flush has to write out.
    fn note(&self, what: &What) {
        if let Some(cache) = self.cache.as_ref().filter(|_| what.op == Op::Write && !what.fua) {
            cache.bytes.fetch_add(what.length, Ordering::Relaxed);
        }
    }

    /// When a request sent at `now` is due.
    fn due(&self, now: u64, op: Op, fua: bool) -> u64 {
        let due = now.saturating_add(self.of(op, fua));
        let Some(cache) = self.cache.as_ref().filter(|_| op == Op::Flush) else { return due };
        let mut latest = cache.due.lock();
        let bytes = cache.bytes.swap(0, Ordering::Relaxed);
        let time = u128::from(bytes) * 1_000_000_000 / u128::from(cache.rate.get());
        *latest = latest.max(due.saturating_add(u64::try_from(time).unwrap_or(u64::MAX)));
        *latest
    }
}

impl LatencyDevice {
    /// Delays reads, writes and discards of `inner` by `latency`, flushes by `flush_latency`. Without a volatile cache
    /// flushes have nothing to do and are not delayed; a mask that adds such a cache must be inside this layer.
    pub fn new(inner: Arc<dyn Device>, latency: Option<Duration>, flush_latency: Option<Duration>) -> Self {
        let flush = flush_latency.filter(|_| inner.capabilities().volatile_cache);
        let (data, flush) = (latency.map_or(0, duration_ns), flush.map_or(0, duration_ns));
        let named = [("latency", latency), ("flush latency", flush_latency)].into_iter();
        let names = named.filter_map(|(name, delay)| Some(format!("{name} {:?}", delay?))).collect();
        LatencyDevice { inner, names, costs: Costs { data, fua: 0, flush, cache: None } }
    }

    /// Also delays FUA writes by `latency`: they complete no earlier than that and no earlier than other writes.
    #[must_use]
    pub fn with_fua_latency(mut self, latency: Option<Duration>) -> Self {
        self.names.extend(latency.map(|latency| format!("FUA latency {latency:?}")));
        self.costs.fua = latency.map_or(0, duration_ns);
        self
    }

    /// Also makes a flush write out the bytes cached since the last flush, at `rate` bytes per second. It ends no
    /// earlier than a flush already running, which may have taken the bytes. Nothing is written out between flushes,
    /// and bytes written twice count twice. No effect without a volatile cache.
    #[must_use]
    pub fn with_flush_rate(mut self, rate: Option<NonZeroU64>) -> Self {
        self.names.extend(rate.map(|rate| format!("a flush writes out {rate} cached bytes per second")));
        let rate = rate.filter(|_| self.inner.capabilities().volatile_cache);
        self.costs.cache =
            rate.map(|rate| Arc::new(Cache { bytes: AtomicU64::new(0), rate, due: Mutex::new(0) }));
        self
    }
}

impl DeviceLayer for LatencyDevice {
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
        self.names.clone()
    }

    fn run(&self, what: What, call: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        self.costs.note(&what);
        if self.costs.is_free(what.op, what.fua) {
            return call(&*self.inner);
        }
        let due = self.costs.due(now_ns(), what.op, what.fua);
        call(&*self.inner)?;
        wait_until(due);
        Ok(())
    }

    fn merges_flushes(&self) -> bool {
        self.costs.is_free(Op::Flush, false) && self.inner.merges_flushes()
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let inner = self.inner.queue(options)?;
        let capacity = inner.capacity();
        let layer = LatencyQueue {
            costs: self.costs.clone(),
            slots: Slots::new(capacity),
            unsent: Vec::with_capacity(capacity as usize),
            waiting: BinaryHeap::with_capacity(capacity as usize),
            scratch: Vec::with_capacity(capacity as usize),
            order: 0,
        };
        Ok(Wrapped::queue(inner, layer))
    }
}

/// A request inside the wrapped queue.
#[derive(Debug, Clone, Copy)]
struct Pending {
    tag: u64,
    op: Op,
    fua: bool,
    due: u64,
}

/// A completion that is not yet due. Ordered by due time, then by the order in which the device completed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due: u64,
    order: u64,
    tag: u64,
    result: i32,
}

struct LatencyQueue {
    costs: Costs,
    slots: Slots<Pending>,
    /// Inner tags of requests that were pushed but not submitted: their delay has not begun.
    unsent: Vec<u64>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    scratch: Vec<Done>,
    order: u64,
}

impl LatencyQueue {
    /// Collects the completions of the inner queue, waiting for them as `wait` says.
    fn collect(&mut self, inner: &mut Queue, wait: Wait) -> Result<()> {
        let outcome = inner.reap(&mut self.scratch, wait);
        for done in self.scratch.drain(..) {
            let Some(pending) = self.slots.remove(done.tag) else { continue };
            self.order += 1;
            let (due, tag) = (pending.due, pending.tag);
            self.waiting.push(Reverse(Waiting { due, order: self.order, tag, result: done.result }));
        }
        outcome.map(|_| ())
    }

    fn deliver(&mut self, out: &mut Vec<Done>) {
        if self.waiting.is_empty() {
            return;
        }
        let now = now_ns();
        while out.len() < out.capacity()
            && let Some(Reverse(next)) = self.waiting.peek()
            && next.due <= now
        {
            out.push(Done { tag: next.tag, result: next.result });
            self.waiting.pop();
        }
    }

    /// Waits for the next event: a completion of the inner queue, one of ours falling due, or the deadline.
    fn pause(&mut self, inner: &mut Queue, deadline: u64) -> Result<()> {
        let due = self.waiting.peek().map_or(u64::MAX, |Reverse(next)| next.due).min(deadline);
        if inner.in_flight() == 0 {
            wait_until(due);
            return Ok(());
        }
        if due == u64::MAX {
            return self.collect(inner, Wait::AtLeast(1));
        }
        match sleepable(due) {
            Some(time) => self.collect(inner, Wait::Timeout(time)),
            None => self.collect(inner, Wait::No),
        }
    }
}

impl QueueLayer for LatencyQueue {
    const VECTORS: bool = true;

    fn meet(&mut self, request: &Request) -> Fate {
        let Request { pos, length, tag, .. } = *request;
        let pending = Pending { tag, op: request.op, fua: request.fua, due: u64::MAX };
        self.slots.insert(pending).map_or(Fate::Full, |tag| Fate::Pass { pos, length, tag })
    }

    fn met(&mut self, request: &Request, fate: Fate, taken: bool) {
        match fate {
            Fate::Pass { tag, .. } if taken => {
                self.costs.note(&What::of(request));
                self.unsent.push(tag);
            }
            Fate::Pass { tag, .. } => _ = self.slots.remove(tag),
            _ => {}
        }
    }

    /// Starts the delay of all pushed requests.
    fn sent(&mut self) {
        if self.unsent.is_empty() {
            return;
        }
        let now = now_ns();
        for tag in self.unsent.drain(..) {
            if let Some(pending) = self.slots.get_mut(tag) {
                pending.due = self.costs.due(now, pending.op, pending.fua);
            }
        }
    }

    /// Completions that are not yet due have left the inner queue but still count as in flight.
    fn kept(&self) -> u32 {
        self.waiting.len() as u32
    }

    fn due(&self) -> Option<u64> {
        self.waiting.peek().map(|Reverse(next)| next.due)
    }

    fn reap(queue: &mut Wrapped<Self>, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        let before = out.len();
        let goal = goal(wait, queue.in_flight(), out);
        let deadline = match wait {
            Wait::Timeout(limit) => now_ns().saturating_add(duration_ns(limit)),
            _ => u64::MAX,
        };
        let Wrapped { inner, layer, .. } = queue;
        layer.collect(inner, Wait::No)?;
        loop {
            layer.deliver(out);
            let late = deadline != u64::MAX && now_ns() >= deadline;
            if out.len() - before >= goal || late {
                break;
            }
            layer.pause(inner, deadline)?;
        }
        queue.signal()?;
        Ok(out.len() - before)
    }
}
