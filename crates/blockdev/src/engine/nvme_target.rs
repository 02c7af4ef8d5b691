//! The target of commands: a namespace, or a part of it, and its limits.

use super::budget::Budget;
use super::nvme_command::{Data, NvmeBlocks};
use super::probe;
use crate::Request;
use std::sync::{Arc, OnceLock};

/// First kernel release with safe polled commands.
const POLLED_SINCE: (u32, u32) = (6, 12);

/// Which registered memory the kernel accepts for a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Takes {
    /// Any part of a region.
    Parts,
    /// Only a whole entry: individually registered pages. The text says why.
    Pages(String),
}

/// The target of commands.
#[derive(Debug, Clone)]
pub(super) struct NvmeTarget {
    pub(super) namespace: u32,
    /// First byte of the partition that was opened; positions count from it.
    pub(super) start: u64,
    /// Bytes that may be addressed.
    pub(super) size: u64,
    /// A power of two.
    pub(super) logical_block: u32,
    /// Most bytes of a read or write command, whole blocks.
    pub(super) transfer_max: u64,
    /// Most bytes of a range to deallocate, whole blocks; 0: not supported.
    pub(super) discard_max: u64,
    /// Flushes and FUA mean something.
    pub(super) volatile_cache: bool,
    pub(super) read_only: bool,
    /// The driver has queues for polled completions.
    pub(super) polls: bool,
    /// How much the device takes at once, if that is known.
    pub(super) budget: Option<Arc<Budget>>,
    /// The result of the trial of registered memory, or why none is accepted.
    pub(super) takes: Arc<OnceLock<std::result::Result<Takes, String>>>,
}

impl NvmeTarget {
    /// Whether completions can be polled, or why not.
    pub(super) fn polling(&self) -> std::result::Result<(), String> {
        if probe::kernel_is_before(POLLED_SINCE) {
            let (major, minor) = POLLED_SINCE;
            // Seen on 6.1: when the process exits, the kernel accesses commands that were freed.
            return Err(format!("kernels before {major}.{minor} may crash on polled NVMe commands"));
        }
        if self.polls { Ok(()) } else { Err("the driver has no polled queues (nvme.poll_queues=N)".into()) }
    }

    /// The blocks of a range of bytes, which must be whole blocks.
    #[inline]
    pub(super) fn blocks(&self, pos: u64, length: u64) -> NvmeBlocks {
        let shift = self.logical_block.trailing_zeros();
        NvmeBlocks { first: (self.start + pos) >> shift, count: length >> shift }
    }

    /// Blocks and memory of one part of a transfer or discard; each part has `most` bytes, the last maybe fewer.
    #[inline]
    pub(super) fn piece(&self, request: &Request, number: u32, most: u64) -> (NvmeBlocks, Data) {
        let offset = u64::from(number) * most;
        let length = most.min(u64::from(request.length) - offset);
        let address = request.memory.address.as_ptr().expose_provenance() as u64 + offset;
        (self.blocks(request.pos + offset, length), Data { address, length: length as u32 })
    }
}
