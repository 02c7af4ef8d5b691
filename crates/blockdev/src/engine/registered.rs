//! Transfer memory that a ring knows beforehand.

use crate::{Ask, Error, QueueFacts, QueueOptions, Result};
use io_uring::IoUring;
use std::num::NonZeroU64;

/// Registers the pool's memory with the ring, all its regions or none. Returns the pool's number if it did,
/// so that [`crate::Memory::registered`] of that pool is usable, otherwise 0.
pub(super) fn register_memory(ring: &IoUring, options: &QueueOptions, facts: &mut QueueFacts) -> Result<u64> {
    let pool = match (&options.pool, options.register_buffers) {
        (_, Ask::No) | (None, Ask::Try) => return Ok(0),
        (None, Ask::Require) => return Err(Error::Unsupported("registering buffers without a pool".into())),
        (Some(pool), _) => pool,
    };
    let regions = pool.regions();
    let vectors: Vec<libc::iovec> = regions
        .iter()
        .map(|&(address, length)| libc::iovec { iov_base: address.as_ptr().cast(), iov_len: length })
        .collect();
    // SAFETY: the regions are live mappings of the pool, and the queue keeps a handle of the pool for as long
    // as the ring exists (`UringQueue::_pool`).
    let registered = unsafe { ring.submitter().register_buffers(&vectors) };
    match registered {
        Ok(()) => Ok(pool.serial().map_or(0, NonZeroU64::get)),
        Err(error) if options.register_buffers == Ask::Try => {
            facts
                .fallbacks
                .push(format!("buffers are not registered: {error} (RLIMIT_MEMLOCK may be too low)"));
            Ok(0)
        }
        Err(error) => Err(Error::Unsupported(format!("registering buffers: {error}"))),
    }
}
