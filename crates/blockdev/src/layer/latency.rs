//! Slows a device down: each request completes no earlier than a given time after it was submitted.
//!
//! Any number of requests wait in parallel and no thread sleeps for them: a queue keeps what the device
//! completed until it is due. Requests that take the device longer are not delayed further.

use super::slots::Slots;
use super::wake::Wake;
use crate::engine::goal;
use crate::timer::{duration_ns, now_ns, sleepable, wait_until};
use crate::{
    Capabilities, Description, Device, DeviceQueue, Done, Full, Geometry, Op, Queue, QueueFacts,
    QueueOptions, Request, Result, Wait, WriteDurability,
};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// A device with modelled latency.
#[derive(Debug)]
pub struct LatencyDevice {
    inner: Arc<dyn Device>,
    latency: Option<Duration>,
    flush_latency: Option<Duration>,
    fua_latency: Option<Duration>,
    delays: Delays,
}

/// Delays in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Delays {
    data: u64,
    fua: u64,
    flush: u64,
}

impl Delays {
    fn of(&self, op: Op, fua: bool) -> u64 {
        match op {
            Op::Flush => self.flush,
            Op::Write if fua => self.data.max(self.fua),
            Op::Read | Op::Write | Op::Discard => self.data,
        }
    }
}

impl LatencyDevice {
    /// Delays reads, writes and discards of `inner` by `latency`, flushes by `flush_latency`. Without a
    /// volatile cache flushes have nothing to do and are not delayed; a mask that adds such a cache belongs
    /// inside.
    pub fn new(inner: Arc<dyn Device>, latency: Option<Duration>, flush_latency: Option<Duration>) -> Self {
        let flush = flush_latency.filter(|_| inner.capabilities().volatile_cache);
        let (data, flush) = (latency.map_or(0, duration_ns), flush.map_or(0, duration_ns));
        LatencyDevice {
            inner,
            latency,
            flush_latency,
            fua_latency: None,
            delays: Delays { data, fua: 0, flush },
        }
    }

    /// Delays writes that carry FUA by `latency` too: they complete no earlier than that and no earlier than
    /// other writes.
    #[must_use]
    pub fn with_fua_latency(self, latency: Option<Duration>) -> Self {
        let delays = Delays { fua: latency.map_or(0, duration_ns), ..self.delays };
        LatencyDevice { fua_latency: latency, delays, ..self }
    }

    fn run(&self, op: Op, fua: bool, call: impl FnOnce(&dyn Device) -> Result<()>) -> Result<()> {
        let delay = self.delays.of(op, fua);
        if delay == 0 {
            return call(&*self.inner);
        }
        let due = now_ns().saturating_add(delay);
        call(&*self.inner)?;
        wait_until(due);
        Ok(())
    }
}

impl Device for LatencyDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    /// A call that waits blocks, so `nowait` is what the inner device says about its queues, which do not.
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn describe(&self) -> Description {
        let mut description = self.inner.describe();
        if let Some(latency) = self.latency {
            description.layers.push(format!("latency {latency:?}"));
        }
        if let Some(latency) = self.flush_latency {
            description.layers.push(format!("flush latency {latency:?}"));
        }
        if let Some(latency) = self.fua_latency {
            description.layers.push(format!("FUA latency {latency:?}"));
        }
        description
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.run(Op::Read, false, |inner| inner.read_at(buf, pos))
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        let fua = durability == WriteDurability::Fua;
        self.run(Op::Write, fua, |inner| inner.write_at(buf, pos, durability))
    }

    fn flush(&self) -> Result<()> {
        self.run(Op::Flush, false, |inner| inner.flush())
    }

    fn merges_flushes(&self) -> bool {
        self.delays.of(Op::Flush, false) == 0 && self.inner.merges_flushes()
    }

    fn settle(&self) -> Result<()> {
        self.run(Op::Flush, false, |inner| inner.settle())
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.run(Op::Discard, false, |inner| inner.discard(pos, length))
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        let inner = self.inner.queue(options)?;
        let capacity = inner.capacity();
        Ok(Queue::Other(Box::new(LatencyQueue {
            delays: self.delays,
            slots: Slots::new(capacity),
            unsent: Vec::with_capacity(capacity as usize),
            waiting: BinaryHeap::with_capacity(capacity as usize),
            scratch: Vec::with_capacity(capacity as usize),
            order: 0,
            wake: Wake::default(),
            inner,
        })))
    }
}

/// A request inside the wrapped queue.
#[derive(Debug, Clone, Copy)]
struct Pending {
    tag: u64,
    delay: u64,
    due: u64,
}

/// A completion that waits for its time: earliest first, then in the order the device completed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due: u64,
    order: u64,
    tag: u64,
    result: i32,
}

struct LatencyQueue {
    inner: Queue,
    delays: Delays,
    slots: Slots<Pending>,
    /// Inner tags of requests that were pushed but not submitted: their time has not begun.
    unsent: Vec<u64>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    scratch: Vec<Done>,
    order: u64,
    wake: Wake,
}

impl LatencyQueue {
    /// Starts the clock of everything pushed.
    fn stamp(&mut self) {
        if self.unsent.is_empty() {
            return;
        }
        let now = now_ns();
        for tag in self.unsent.drain(..) {
            if let Some(pending) = self.slots.get_mut(tag) {
                pending.due = now.saturating_add(pending.delay);
            }
        }
    }

    /// Takes what the wrapped queue completed, waiting there as long as told.
    fn collect(&mut self, wait: Wait) -> Result<()> {
        let outcome = self.inner.reap(&mut self.scratch, wait);
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

    /// Waits for the next thing that can happen: a completion inside, one of ours falling due, or the
    /// deadline.
    fn pause(&mut self, deadline: u64) -> Result<()> {
        let due = self.waiting.peek().map_or(u64::MAX, |Reverse(next)| next.due).min(deadline);
        if self.inner.in_flight() == 0 {
            wait_until(due);
            return Ok(());
        }
        if due == u64::MAX {
            return self.collect(Wait::AtLeast(1));
        }
        match sleepable(due) {
            Some(time) => self.collect(Wait::Timeout(time)),
            None => self.collect(Wait::No),
        }
    }

    fn signal(&self) -> Result<()> {
        self.wake.set(self.waiting.peek().map(|Reverse(next)| next.due))
    }
}

impl DeviceQueue for LatencyQueue {
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        let pending =
            Pending { tag: request.tag, delay: self.delays.of(request.op, request.fua), due: u64::MAX };
        // Requests that wait for their time have left the slots and still count.
        if self.in_flight() >= self.capacity() {
            return Err(Full);
        }
        let tag = self.slots.insert(pending).ok_or(Full)?;
        // SAFETY: the caller's promise; only the tag differs.
        let outcome = unsafe { self.inner.push(Request { tag, ..request }) };
        match outcome {
            Ok(()) => self.unsent.push(tag),
            Err(Full) => {
                self.slots.remove(tag);
            }
        }
        outcome
    }

    fn submit(&mut self) -> Result<usize> {
        self.stamp();
        self.inner.submit()
    }

    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        self.stamp();
        let before = out.len();
        let goal = goal(wait, self.in_flight(), out);
        let deadline = match wait {
            Wait::Timeout(limit) => now_ns().saturating_add(duration_ns(limit)),
            _ => u64::MAX,
        };
        self.collect(Wait::No)?;
        loop {
            self.deliver(out);
            let late = deadline != u64::MAX && now_ns() >= deadline;
            if out.len() - before >= goal || late {
                break;
            }
            self.pause(deadline)?;
        }
        self.signal()?;
        Ok(out.len() - before)
    }

    fn in_flight(&self) -> u32 {
        self.inner.in_flight() + self.waiting.len() as u32
    }

    fn capacity(&self) -> u32 {
        self.inner.capacity()
    }

    fn facts(&self) -> QueueFacts {
        self.inner.facts()
    }

    /// Readable when a completion fell due, or when the wrapped queue has one that may not be due yet.
    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        self.wake.get(&mut self.inner)?;
        self.signal()?;
        self.wake.get(&mut self.inner)
    }
}
