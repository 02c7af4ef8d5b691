//! A device as a file that has a length: what images of disks lie in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4_blockdev::layer::wrap::{DeviceLayer, Nowait};
use uext4_blockdev::{Device, Error, Result, Store};

/// See the module. It grows up to the size of the device, whose bytes behind its end have to be zeros.
#[derive(Debug)]
pub struct DeviceFile {
    device: Arc<dyn Device>,
    length: AtomicU64,
}

impl DeviceFile {
    /// A file as long as the device.
    pub fn new(device: Arc<dyn Device>) -> Arc<Self> {
        let length = device.geometry().size;
        DeviceFile::growing(device, length)
    }

    /// A file of the first `length` bytes.
    pub fn growing(device: Arc<dyn Device>, length: u64) -> Arc<Self> {
        Arc::new(DeviceFile { device, length: AtomicU64::new(length) })
    }
}

impl DeviceLayer for DeviceFile {
    const NOWAIT: Nowait = Nowait::Passes;

    fn inner(&self) -> &dyn Device {
        &*self.device
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }
}

impl Store for DeviceFile {
    fn length(&self) -> Result<u64> {
        Ok(self.length.load(Ordering::Acquire))
    }

    fn grow(&self, length: u64) -> Result<()> {
        if length > self.device.geometry().size {
            return Err(Error::Open { path: "the file".into(), action: "grow", errno: libc::ENOSPC });
        }
        self.length.fetch_max(length, Ordering::AcqRel);
        Ok(())
    }

    fn read_upto(&self, buf: &mut [u8], pos: u64) -> Result<usize> {
        let length = self.length.load(Ordering::Acquire);
        let count = length.saturating_sub(pos).min(buf.len() as u64) as usize;
        // Whole blocks.
        let count = count - count % self.device.geometry().logical_block as usize;
        if count > 0 {
            self.device.read_at(&mut buf[..count], pos)?;
        }
        Ok(count)
    }
}
