//! Queues: keep them full, submit and reap in batches.

use super::{Latencies, SAMPLE, Work};
use crate::error::{BenchError, Doing, Result};
use crate::ops::Op;
use std::sync::atomic::Ordering;
use std::time::Instant;
use uext4::{Buffer, FileSlot, IoQueue, RawQueue, WriteFlags};

/// The calls of the loop.
pub trait QueueTarget {
    /// Queues one request.
    fn push(&mut self, op: &Op, buffer: Buffer, tag: u64) -> Result<()>;
    /// Submits the queued requests.
    fn submit(&mut self) -> Result<()>;
    /// Waits for at least `count` completions and hands over all available ones.
    fn reap(&mut self, count: usize, done: impl FnMut(u64, usize, Buffer)) -> Result<()>;
}

/// A queue of the library with the files of one arm.
pub struct FileQueue<'a> {
    /// The queue.
    pub queue: &'a mut IoQueue,
    /// Slots by file number.
    pub slots: &'a [FileSlot],
    /// Of writes.
    pub flags: WriteFlags,
}

#[cold]
fn lost(tag: u64) -> BenchError {
    BenchError::failed(format!("request {tag} came back without its buffer"))
}

impl QueueTarget for FileQueue<'_> {
    #[inline]
    fn push(&mut self, op: &Op, buffer: Buffer, tag: u64) -> Result<()> {
        let slot = self.slots[op.file as usize];
        let pushed = if op.write {
            self.queue.write(slot, op.pos, buffer, self.flags, tag)
        } else {
            self.queue.read(slot, op.pos, buffer, tag)
        };
        pushed.doing(|| format!("queue a request at {}", op.pos))
    }

    #[inline]
    fn submit(&mut self) -> Result<()> {
        self.queue.submit().map(drop).doing(|| "submit".into())
    }

    #[inline]
    fn reap(&mut self, count: usize, mut done: impl FnMut(u64, usize, Buffer)) -> Result<()> {
        for completion in self.queue.wait(count).doing(|| "wait for completions".into())? {
            let tag = completion.tag;
            let bytes = match completion.result {
                Ok(bytes) => bytes,
                Err(error) => return Err(*error).doing(|| "a queued request".into()),
            };
            let Some(buffer) = completion.payload.into_buffer() else { return Err(lost(tag)) };
            done(tag, bytes, buffer);
        }
        Ok(())
    }
}

/// A queue of device requests.
pub struct DeviceQueue<'a> {
    /// The queue.
    pub queue: &'a mut RawQueue,
    /// Writes carry FUA.
    pub fua: bool,
}

impl QueueTarget for DeviceQueue<'_> {
    #[inline]
    fn push(&mut self, op: &Op, buffer: Buffer, tag: u64) -> Result<()> {
        let pushed = if op.write {
            self.queue.write(op.pos, buffer, self.fua, tag)
        } else {
            self.queue.read(op.pos, buffer, tag)
        };
        pushed.map_err(uext4::Error::from).doing(|| format!("queue a request at {}", op.pos))
    }

    #[inline]
    fn submit(&mut self) -> Result<()> {
        self.queue.submit().map(drop).map_err(uext4::Error::from).doing(|| "submit".into())
    }

    #[inline]
    fn reap(&mut self, count: usize, mut done: impl FnMut(u64, usize, Buffer)) -> Result<()> {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let completions = self.queue.wait(count).map_err(uext4::Error::from);
        for completion in completions.doing(|| "wait for completions".into())? {
            let tag = completion.tag;
            let bytes = usize::try_from(completion.result).map_err(|_negative| {
                BenchError::failed(format!("a queued request: errno {}", completion.result.unsigned_abs()))
            })?;
            let Some(buffer) = completion.buffer else { return Err(lost(tag)) };
            done(tag, bytes, buffer);
        }
        Ok(())
    }
}

/// Free buffers, each with its tag, and queue times of sampled requests in flight.
pub struct Idle {
    buffers: Vec<(u64, Buffer)>,
    queued: Vec<Option<Instant>>,
    count: u64,
}

impl Idle {
    /// As many requests in flight as there are buffers.
    pub fn new(buffers: Vec<Buffer>) -> Self {
        let queued = vec![None; buffers.len()];
        Idle { buffers: (0..).zip(buffers).collect(), queued, count: 0 }
    }
}

/// The loop.
pub fn drive<T: QueueTarget>(target: &mut T, idle: &mut Idle, batch: usize, work: Work<'_>) -> Result<()> {
    let Work { ops, once, stop, tally, latencies } = work;
    let depth = idle.buffers.len();
    let batch = batch.min(depth);
    let mut next = std::iter::repeat_n(ops, if once { 1 } else { usize::MAX }).flatten();
    // A thread that wakes up after the end of a short slice still does one request: a rate of zero would say
    // nothing.
    let mut first = true;
    loop {
        let mut unsent = 0;
        // A push may take long (a write that runs alone), so that the end of the slice is looked at before
        // each.
        while !idle.buffers.is_empty() && (first || !stop.load(Ordering::Relaxed)) {
            first = false;
            let Some(op) = next.next() else { break };
            let Some((tag, buffer)) = idle.buffers.pop() else { break };
            if idle.count.is_multiple_of(SAMPLE) {
                idle.queued[tag as usize] = Some(Instant::now());
            }
            idle.count += 1;
            target.push(op, buffer, tag)?;
            tally.count(op);
            unsent += 1;
            if unsent == batch {
                target.submit()?;
                unsent = 0;
            }
        }
        if unsent > 0 {
            target.submit()?;
        }
        let in_flight = depth - idle.buffers.len();
        if in_flight == 0 {
            return Ok(());
        }
        let wanted = if stop.load(Ordering::Relaxed) { in_flight } else { batch.min(in_flight) };
        reap(target, idle, wanted, latencies)?;
    }
}

#[inline]
fn reap<T: QueueTarget>(
    target: &mut T,
    idle: &mut Idle,
    wanted: usize,
    latencies: &mut Latencies,
) -> Result<()> {
    let mut short = None;
    target.reap(wanted, |tag, bytes, buffer| {
        if bytes != buffer.len() {
            short = Some((bytes, buffer.len()));
        }
        if let Some(queued) = idle.queued[tag as usize].take() {
            latencies.record(queued.elapsed());
        }
        // As in the queues: made where it stays, not fetched from the stack.
        idle.buffers.extend(std::iter::once_with(|| (tag, buffer)));
    })?;
    match short {
        None => Ok(()),
        Some((bytes, length)) => {
            Err(BenchError::failed(format!("a queued request: {bytes} of {length} bytes")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Tally;
    use std::sync::atomic::AtomicBool;
    use uext4::BufferPool;

    /// Completes the oldest requests, as many as asked, and stops the loop after 50.
    struct Script<'a> {
        unsent: usize,
        sent: Vec<(u64, Buffer)>,
        deepest: usize,
        batches: Vec<usize>,
        pushed: u64,
        stop: &'a AtomicBool,
        short: bool,
    }

    impl QueueTarget for Script<'_> {
        fn push(&mut self, _op: &Op, buffer: Buffer, tag: u64) -> Result<()> {
            self.sent.push((tag, buffer));
            self.unsent += 1;
            self.pushed += 1;
            self.deepest = self.deepest.max(self.sent.len());
            self.stop.store(self.pushed == 50, Ordering::Relaxed);
            Ok(())
        }

        fn submit(&mut self) -> Result<()> {
            self.batches.push(std::mem::take(&mut self.unsent));
            Ok(())
        }

        fn reap(&mut self, count: usize, mut done: impl FnMut(u64, usize, Buffer)) -> Result<()> {
            assert_eq!(self.unsent, 0, "it waits for what it never sent");
            assert!(count <= self.sent.len(), "it waits for more than there is");
            for (tag, buffer) in self.sent.drain(..count) {
                done(tag, if self.short { 0 } else { buffer.len() }, buffer);
            }
            Ok(())
        }
    }

    fn run(short: bool, stop: &AtomicBool) -> (Script<'_>, Result<()>, Tally, usize) {
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut idle = Idle::new((0..16).map(|_| pool.take(4096).unwrap()).collect());
        let ops = [Op { pos: 0, file: 0, write: true }, Op { pos: 4096, file: 0, write: false }];
        let mut script =
            Script { unsent: 0, sent: Vec::new(), deepest: 0, batches: Vec::new(), pushed: 0, stop, short };
        let (mut tally, mut latencies) = (Tally::default(), Latencies::new().unwrap());
        let work = Work { ops: &ops, once: false, stop, tally: &mut tally, latencies: &mut latencies };
        let result = drive(&mut script, &mut idle, 4, work);
        (script, result, tally, idle.buffers.len())
    }

    #[test]
    fn keeps_the_queue_full_in_batches_and_ends_empty() {
        let stop = AtomicBool::new(false);
        let (script, result, tally, idle) = run(false, &stop);
        result.unwrap();
        assert_eq!(script.deepest, 16);
        assert!(script.batches[..script.batches.len() - 1].iter().all(|&batch| batch == 4));
        assert_eq!(tally, Tally { reads: 25, writes: 25, beside: 0 });
        assert_eq!((script.sent.len(), idle), (0, 16));
    }

    #[test]
    fn a_short_transfer_is_an_error() {
        let stop = AtomicBool::new(false);
        let (_script, result, ..) = run(true, &stop);
        assert!(result.unwrap_err().to_string().contains("0 of 4096"));
    }
}
