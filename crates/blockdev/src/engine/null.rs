//! `null:`: a device whose queued transfers cost nothing, for counting the instructions of the layers above it.
//!
//! **Queued data requests move nothing.** A queued read leaves its memory unchanged, a queued write is dropped, and
//! both report success. Synchronous calls use a private copy of an image, so that metadata is correct. Nothing ever
//! reaches the image. Never use it for data that matters.

use super::instant::{Nothing, NullQueue};
use super::pages::Pages;
use crate::{
    BufferPool, Capabilities, Description, Device, Driving, Error, Geometry, Op, Queue, QueueOptions, Result,
    Sharing, WriteDurability,
};
use std::sync::Arc;

/// Bytes read from the image at once.
const CHUNK: u64 = 1 << 20;
/// Granularity at which zeros of the image are left out of the copy.
const PAGE: usize = 4096;
/// A page of zeros.
const ZEROS: [u8; PAGE] = [0; PAGE];

/// A copy of a device in memory, with queues that move nothing. See the module's warning.
#[derive(Debug)]
pub struct NullDevice {
    pages: Pages,
    geometry: Geometry,
    locator: String,
}

impl NullDevice {
    /// Copies `base` into memory, without its zeros, and releases it. Sizes and alignment stay those of `base`, so that
    /// the callers' checks cost the same as there.
    pub fn load(base: Arc<dyn Device>) -> Result<Self> {
        let geometry = base.geometry();
        let pages = Pages::new(geometry.size)?;
        let mut buffer = BufferPool::new(CHUNK as usize)?.take(CHUNK as usize)?;
        let mut pos = 0;
        while pos < geometry.size {
            let length = CHUNK.min(geometry.size - pos) as usize;
            let chunk = &mut buffer[..length];
            base.read_at(chunk, pos)?;
            for (index, page) in chunk.chunks(PAGE).enumerate() {
                if *page != ZEROS[..page.len()] {
                    let at = pos + (index * PAGE) as u64;
                    // SAFETY: `page` is readable for its length and not written meanwhile.
                    unsafe { pages.write(at, page.as_ptr(), page.len()) }
                        .map_err(|errno| failed(Op::Write, at, page.len(), errno))?;
                }
            }
            pos += length as u64;
        }
        Ok(NullDevice { pages, geometry, locator: base.describe().locator })
    }
}

fn failed(op: Op, pos: u64, length: usize, errno: i32) -> Error {
    Error::Io { op: op.name(), pos, length: length as u64, errno }
}

impl Device for NullDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Everything is accepted, with a volatile cache, so that every durability path can be counted: nothing survives
    /// the process in any case.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: true,
            fua: true,
            nowait: true,
            discard: true,
            read_only: false,
            dax: None,
        }
    }

    fn describe(&self) -> Description {
        Description {
            engine: "null",
            locator: self.locator.clone(),
            layers: Vec::new(),
            sharing: Sharing::Private,
            driving: Driving::Engine,
            tags: None,
            notes: vec!["queued requests move no data; synchronous ones use a copy in memory".into()],
        }
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.geometry.check_transfer(buf, pos)?;
        // SAFETY: `buf` is exclusively ours and has this length.
        unsafe { self.pages.read(pos, buf.as_mut_ptr(), buf.len()) }
            .map_err(|errno| failed(Op::Read, pos, buf.len(), errno))
    }

    fn write_at(&self, buf: &[u8], pos: u64, _durability: WriteDurability) -> Result<()> {
        self.geometry.check_transfer(buf, pos)?;
        // SAFETY: a shared slice is readable for its length and not written meanwhile.
        unsafe { self.pages.write(pos, buf.as_ptr(), buf.len()) }
            .map_err(|errno| failed(Op::Write, pos, buf.len(), errno))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.geometry.check(pos, length)?;
        self.pages.discard(pos, length).map_err(|errno| Error::Io {
            op: Op::Discard.name(),
            pos,
            length,
            errno,
        })
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        Ok(Queue::Null(NullQueue::new("null", Nothing, options)?))
    }
}
