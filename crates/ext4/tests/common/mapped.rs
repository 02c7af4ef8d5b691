//! A memory device that claims to be mapped memory, so that crash states of `dax:` can be enumerated.

use std::fmt;
use std::sync::{Arc, Mutex};
use uext4::device::{
    Capabilities, DaxKind, Description, Device, Geometry, Queue, QueueOptions, Result, WriteDurability,
};

/// An action to run once before the next write.
pub type BeforeWrite = Mutex<Option<Box<dyn FnOnce() + Send>>>;

/// Passes everything to the inner device, which is not mapped memory.
pub struct Mapped {
    pub inner: Arc<dyn Device>,
    pub before_write: Arc<BeforeWrite>,
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Device for Mapped {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { dax: Some(DaxKind::Msync), ..self.inner.capabilities() }
    }

    fn describe(&self) -> Description {
        self.inner.describe()
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.inner.read_at(buf, pos)
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        let before = self.before_write.lock().unwrap().take();
        if let Some(before) = before {
            before();
        }
        self.inner.write_at(buf, pos, durability)
    }

    fn flush(&self) -> Result<()> {
        self.inner.flush()
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.inner.discard(pos, length)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        self.inner.queue(options)
    }
}
