//! Sessions, open while arms take turns: the volume with its arms, or the kernel's mount.

mod kernel;
mod mount;
mod volume;

pub use kernel::KernelSession;
pub use mount::Mount;
pub use volume::{VolumeSession, one_buffer};

use super::arm::Arm;
use super::error::{Doing, Result};
use super::scenario::{Mode, Renewed};
use super::work::{self, Lane};
use uext4::{Ask, Buffer, QueueOptions, Stats, device};

/// Arms that can take turns without opening or closing anything.
pub trait Session: Sync {
    /// Them, in the order of a round.
    fn arms(&self) -> &[Arm];
    /// Creates the lane of one thread; called on that thread. `beside`: it is not measured and its writes are plain.
    fn lane(&self, beside: bool) -> Result<Box<dyn Lane + '_>>;
    /// Resets the files of an arm before a slice ([`Requests::renewed`]).
    fn renew(&self, arm: usize) -> Result<()>;
    /// Makes everything durable that was written before. What one arm left in the device's cache must not be part of
    /// the next arm's flushes. The first durable write of an opening waits longer, and must not be part of any slice.
    fn make_durable(&self) -> Result<()>;
    /// Whether slices leave something that [`Session::make_durable`] should take away before the next one.
    fn is_durable(&self) -> bool;
    /// The library's counters, exact while no slice runs.
    fn counters(&self) -> Option<Stats>;
}

/// Properties of every request of a case.
#[derive(Debug, Clone, Copy)]
pub struct Requests {
    /// Bytes.
    pub block: usize,
    /// Requests in flight per thread.
    pub depth: u32,
    /// The kind of calls.
    pub mode: Mode,
    /// Writes are durable when they complete.
    pub dsync: bool,
    /// Each write is followed by an `fsync`.
    pub fsync: bool,
    /// The state of the files before each slice.
    pub renewed: Option<Renewed>,
    /// Bytes of each file.
    pub file_bytes: u64,
    /// Register the buffers of queues if possible.
    pub register: bool,
}

impl Requests {
    fn polled(&self) -> bool {
        matches!(self.mode, Mode::Queued { poll: true, .. })
    }

    /// Whether earlier writes should be durable when a slice begins.
    fn starts_durable(&self) -> bool {
        self.dsync || self.fsync || self.renewed.is_some()
    }

    /// Memory that a queue registers: a page at least for each buffer.
    pub fn queue_bytes(&self) -> usize {
        self.depth as usize * self.block.max(4096)
    }

    /// Options of the library's queues and of the raw queue.
    pub fn queue_options(&self) -> QueueOptions {
        let options = QueueOptions::depth(self.depth).buffer_bytes(self.queue_bytes());
        let options = if self.register { options } else { options.register_buffers(Ask::No) };
        if self.polled() {
            options.owner_driven(true).iopoll(Ask::Try).register_ring(Ask::Try)
        } else {
            options
        }
    }

    /// The same for a queue straight on a device.
    pub fn device_queue_options(&self) -> device::QueueOptions {
        let register_buffers = if self.register { Ask::Try } else { Ask::No };
        let options = device::QueueOptions { register_buffers, ..device::QueueOptions::depth(self.depth) };
        if self.polled() {
            device::QueueOptions { owner_driven: true, iopoll: Ask::Try, register_ring: Ask::Try, ..options }
        } else {
            options
        }
    }

    /// A full set of buffers for a queue.
    pub fn buffers(&self, take: impl Fn(usize) -> uext4::Result<Buffer>) -> Result<Vec<Buffer>> {
        let buffers = (0..self.depth).map(|number| {
            let mut buffer = take(self.block).doing(|| "reserve buffers".into())?;
            work::fill(&mut buffer, u64::from(number));
            Ok(buffer)
        });
        buffers.collect()
    }
}
