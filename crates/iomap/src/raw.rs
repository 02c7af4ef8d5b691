//! A queue straight to the device: the `raw` arm of measurements.
//!
//! The same door, slots and buffers as [`crate::IoQueue`], without gate, mapping and accounting: the difference between
//! the two is the cost of the file system.

use crate::door::{Door, slot_of};
use crate::error::Error;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uext4_blockdev::{Buffer, BufferPool, Device, Done, Op, QueueFacts, QueueOptions, Wait};

/// One finished device request.
#[derive(Debug)]
pub struct RawCompletion {
    /// The tag it was submitted with.
    pub tag: u64,
    /// Bytes, or a negative errno.
    pub result: i32,
    /// Its memory.
    pub buffer: Option<Buffer>,
}

/// A queue of device requests.
pub struct RawQueue {
    door: Door,
    pool: BufferPool,
    tags: Box<[u64]>,
    free: Vec<u32>,
    done: Vec<Done>,
    delivered: Vec<RawCompletion>,
}

impl RawQueue {
    /// A queue on `device`.
    pub fn new(device: &Arc<dyn Device>, options: QueueOptions, pool: BufferPool) -> Result<Self, Error> {
        let depth = options.depth;
        let options = QueueOptions { pool: Some(pool.clone()), ..options };
        let queue = device.queue(&options)?;
        Ok(RawQueue {
            door: Door::new(queue, depth),
            pool,
            tags: vec![0; depth as usize].into_boxed_slice(),
            free: (0..depth).rev().collect(),
            done: Vec::with_capacity(depth as usize),
            delivered: Vec::with_capacity(depth as usize),
        })
    }

    /// A buffer of the queue's registered memory.
    pub fn buffer(&self, length: usize) -> Result<Buffer, Error> {
        Ok(self.pool.take(length)?)
    }

    /// Reads `buffer.len()` bytes at device position `pos`.
    #[inline]
    pub fn read(&mut self, pos: u64, buffer: Buffer, tag: u64) -> Result<(), Error> {
        self.push(Op::Read, false, pos, buffer, tag)
    }

    /// Writes `buffer` at device position `pos`, with FUA if asked.
    #[inline]
    pub fn write(&mut self, pos: u64, buffer: Buffer, fua: bool, tag: u64) -> Result<(), Error> {
        self.push(Op::Write, fua, pos, buffer, tag)
    }

    #[inline]
    fn push(&mut self, op: Op, fua: bool, pos: u64, buffer: Buffer, tag: u64) -> Result<(), Error> {
        let &number = self.free.last().ok_or(Error::QueueFull)?;
        self.door.send(number, buffer, op, fua, pos).map_err(|_buffer| Error::QueueFull)?;
        self.tags[number as usize] = tag;
        self.free.pop();
        Ok(())
    }

    /// Sends what was queued.
    pub fn submit(&mut self) -> Result<usize, Error> {
        Ok(self.door.submit()?)
    }

    /// Waits for `count` completions (or all, if fewer are in flight) and delivers those available.
    pub fn wait(&mut self, count: u32) -> Result<std::vec::Drain<'_, RawCompletion>, Error> {
        self.done.clear();
        let wait = if count == 0 { Wait::No } else { Wait::AtLeast(count) };
        self.door.reap(&mut self.done, wait)?;
        for done in &self.done {
            let number = slot_of(done.tag);
            self.free.push(number);
            let (tag, result) = (self.tags[number as usize], done.result);
            let door = &mut self.door;
            let completion = || RawCompletion { tag, result, buffer: door.take_landed(*done).into_buffer() };
            self.delivered.extend(std::iter::once_with(completion));
        }
        Ok(self.delivered.drain(..))
    }

    /// A descriptor that becomes readable when the device may have completed something, as
    /// `IoQueue::eventfd`. Poll it, do not read from it.
    pub fn eventfd(&mut self) -> Result<Option<OwnedFd>, Error> {
        let descriptor = self.door.event_fd()?.map(|event| event.try_clone_to_owned()).transpose();
        descriptor.map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(5); // EIO
            uext4_blockdev::Error::Io { op: "eventfd", pos: 0, length: 0, errno }.into()
        })
    }

    /// What the device granted.
    pub fn facts(&self) -> QueueFacts {
        self.door.facts()
    }
}
