//! How requests come and replies go: a trait, so that another way than `/dev/fuse` can follow.

use crate::wire::BEFORE_DATA;
use std::io::{self, IoSlice};
use uext4::{Buffer, BufferPool};

/// Most bytes of data of one request.
pub(crate) const DATA_MAX: usize = 1 << 20;
/// Alignment of the data of a WRITE in memory, so that it goes to the device without a copy.
const ALIGN: usize = 4096;
/// Bytes of a request buffer.
const BUFFER: usize = ALIGN + DATA_MAX;

/// A connection with the kernel. All calls may come from any thread.
pub(crate) trait Channel: Send + Sync {
    /// Waits for the next request and reads it. Returns its length, or `None` after the end of the mount.
    ///
    /// # Errors
    /// Those of the transport: the connection is of no use then.
    fn receive(&self, buffer: &mut RequestBuffer) -> io::Result<Option<usize>>;

    /// Sends a reply or a notification as a whole.
    ///
    /// # Errors
    /// If the kernel does not take it.
    fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()>;
}

/// Memory for one request. The data of a WRITE begins aligned.
pub(crate) struct RequestBuffer(Buffer);

impl RequestBuffer {
    /// From a pool that can have `BUFFER` bytes.
    pub(crate) fn new(pool: &BufferPool) -> Result<RequestBuffer, uext4::Error> {
        Ok(RequestBuffer(pool.take(BUFFER)?))
    }

    /// Where the next request is read to.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.0[ALIGN - BEFORE_DATA..]
    }

    /// The first `length` bytes of it.
    pub(crate) fn filled(&self, length: usize) -> &[u8] {
        &self.0[ALIGN - BEFORE_DATA..][..length]
    }
}
