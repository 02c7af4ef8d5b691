//! What a caller holds: pins and snapshots.

use crate::buffer::Buffer;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Keeps one block resident. Does not keep its contents from changing and does no I/O.
///
/// Cloning adds another pin; dropping removes one.
pub struct BufferPin(Arc<Buffer>);

impl BufferPin {
    /// Pins a buffer that is already pinned or whose shard table is locked: otherwise it could be evicted
    /// meanwhile.
    pub(crate) fn new(buffer: &Arc<Buffer>) -> Self {
        buffer.add_pin();
        BufferPin(Arc::clone(buffer))
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> u64 {
        self.0.block
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.0
    }
}

impl Clone for BufferPin {
    fn clone(&self) -> Self {
        BufferPin::new(&self.0)
    }
}

impl Drop for BufferPin {
    fn drop(&mut self) {
        self.0.remove_pin();
    }
}

impl fmt::Debug for BufferPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BufferPin").field(&self.0.block).finish()
    }
}

/// An immutable snapshot of one block, and a pin that keeps the block resident.
///
/// Dereferences to exactly one block of bytes: the contents at the time of the look-up. Later changes make a
/// copy and are not seen here.
#[derive(Clone)]
pub struct BufferRef {
    pin: BufferPin,
    image: Arc<[u8]>,
    verified: bool,
}

impl BufferRef {
    pub(crate) fn new(pin: BufferPin, image: Arc<[u8]>, verified: bool) -> Self {
        BufferRef { pin, image, verified }
    }

    /// The block.
    #[must_use]
    pub fn block(&self) -> u64 {
        self.pin.block()
    }

    /// The pin, for calls that change the block.
    #[must_use]
    pub fn pin(&self) -> &BufferPin {
        &self.pin
    }

    /// The bytes as a shared image, for holders that outlive the pin.
    #[must_use]
    pub fn snapshot(&self) -> &Arc<[u8]> {
        &self.image
    }

    /// Whether a verifier had accepted the contents (or their owner wrote them) when this snapshot was taken.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        self.verified
    }
}

impl Deref for BufferRef {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.image
    }
}

impl fmt::Debug for BufferRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferRef")
            .field("block", &self.block())
            .field("length", &self.image.len())
            .field("verified", &self.verified)
            .finish()
    }
}
