//! What is served: a file inside a volume, or a device, and everything that it can be asked for except the reads and
//! writes of whole blocks, which connections send through queues of their own ([`crate::lane`]).
//!
//! | request | file | device |
//! |---|---|---|
//! | flush | `fdatasync` | flush |
//! | trim | frees the whole blocks inside | discard, if the device has it |
//! | zeroes | unwritten blocks; written zeros with NO_HOLE, or if the map has none of those | by the device, alone |
//! | any bytes | the library's calls for any bytes | read, change, write back, alone ([`crate::turns`]) |

use crate::fault::Error;
use crate::protocol::{Code, Extent, STATE_HOLE, STATE_ZERO, STRING_MAX, can};
use crate::turns::Turns;
use std::fmt;
use std::sync::Arc;
use uext4::device::{BUFFER_ALIGN, BufferPool, Device, WriteDurability};
use uext4::{Fallocate, File, State, Volume, WriteFlags};

/// The size of blocks that is best: a page of clients.
const PREFERRED: u32 = 4096;
/// Zeros that are written in one call.
const ZEROS: usize = 1 << 20;
/// Zeros that a device is told to make in one call. Other writes have their turn in between.
const ZEROED: usize = 16 << 20;
/// Most extents in one answer. A client asks again for the rest.
const EXTENTS_MAX: usize = 1024;

/// Bytes that clients read and write.
pub struct Export {
    backing: Backing,
    size: u64,
    /// Smallest unit of direct requests in bytes, a power of two.
    block: u64,
    writable: bool,
    trims: bool,
    name: Vec<u8>,
    description: String,
    /// Memory of requests that are done aside.
    pool: BufferPool,
}

/// Where they are.
pub(crate) enum Backing {
    File { file: File, volume: Volume },
    Device { device: Arc<dyn Device>, turns: Turns },
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("size", &self.size)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}

impl Export {
    /// A file inside a volume, with the size that it has now. Open it for reading, for writing too unless `read_only`,
    /// and [`direct`](uext4::OpenOptions::direct), or what clients write stays in memory until they flush. It must not
    /// be truncated while it is served.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub fn file(file: File, read_only: bool) -> Result<Export, Error> {
        let volume = file.volume();
        let block = u64::from(volume.device().geometry().logical_block);
        let (size, writable) = (file.size(), !read_only && volume.is_writable());
        Export::new(Backing::File { file, volume }, size, block, writable, true)
    }

    /// A whole device.
    ///
    /// # Errors
    /// If the system gives no memory.
    pub fn device(device: Arc<dyn Device>, read_only: bool) -> Result<Export, Error> {
        let (geometry, can) = (device.geometry(), device.capabilities());
        let writable = !read_only && !can.read_only;
        let backing = Backing::Device { device, turns: Turns::default() };
        Export::new(backing, geometry.size, geometry.logical_block.into(), writable, can.discard)
    }

    fn new(backing: Backing, size: u64, block: u64, writable: bool, trims: bool) -> Result<Export, Error> {
        let pool = BufferPool::new(ZEROS).map_err(uext4::Error::from)?;
        let (name, description) = (Vec::new(), String::new());
        Ok(Export { backing, size, block, writable, trims, name, description, pool })
    }

    /// The name that clients must ask for. Unless set it is empty, which is what clients ask for by default.
    ///
    /// # Errors
    /// [`Error::Name`] above 4096 bytes, or with a zero byte.
    pub fn named(mut self, name: &[u8]) -> Result<Export, Error> {
        if name.len() > STRING_MAX || name.contains(&0) {
            return Err(Error::Name);
        }
        self.name = name.to_vec();
        Ok(self)
    }

    /// What clients show beside the name.
    #[must_use]
    pub fn described(mut self, description: &str) -> Export {
        let mut end = description.len().min(STRING_MAX);
        while !description.is_char_boundary(end) {
            end -= 1;
        }
        self.description = description[..end].replace('\0', "");
        self
    }

    /// Bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether clients may write.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    pub(crate) fn description(&self) -> &str {
        &self.description
    }

    pub(crate) fn backing(&self) -> &Backing {
        &self.backing
    }

    pub(crate) fn preferred_block(&self) -> u32 {
        PREFERRED
    }

    /// The transmission flags. Several connections see one state: a flush of one covers what all have completed.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = can::HAS_FLAGS | can::FLUSH | can::FUA | can::MULTI_CONN;
        if structured {
            flags |= can::DF;
        }
        if !self.writable {
            return flags | can::READ_ONLY;
        }
        if self.trims {
            flags |= can::TRIM;
        }
        flags | can::WRITE_ZEROES | can::FAST_ZERO
    }

    /// Whether a request of these bytes can go to the device as it is.
    pub(crate) fn is_direct(&self, offset: u64, length: u64) -> bool {
        (offset | length) & (self.block - 1) == 0
    }

    /// Makes everything that clients wrote durable.
    ///
    /// # Errors
    /// Those of the device or volume: nothing is promised then.
    pub fn sync(&self) -> Result<(), Error> {
        Ok(self.flush()?)
    }

    pub(crate) fn flush(&self) -> uext4::Result<()> {
        if !self.writable {
            return Ok(());
        }
        match &self.backing {
            Backing::File { file, .. } => file.sync_data(),
            Backing::Device { device, .. } => Ok(device.flush()?),
        }
    }

    /// Reads any bytes inside the export.
    pub(crate) fn read(&self, into: &mut [u8], offset: u64) -> uext4::Result<()> {
        match &self.backing {
            Backing::File { file, .. } => {
                let got = file.read_any_at(into, offset)?;
                if got < into.len() {
                    Err(uext4::Error::Invalid("the file has become shorter".into()))
                } else {
                    Ok(())
                }
            }
            Backing::Device { device, .. } => {
                let (start, end) = self.whole_blocks(offset, into.len() as u64);
                let mut blocks = self.pool.take((end - start) as usize)?;
                device.read_at(&mut blocks, start)?;
                let skipped = (offset - start) as usize;
                into.copy_from_slice(&blocks[skipped..skipped + into.len()]);
                Ok(())
            }
        }
    }

    /// Writes any bytes inside the export.
    pub(crate) fn write(&self, bytes: &[u8], offset: u64, durable: bool) -> uext4::Result<()> {
        match &self.backing {
            Backing::File { file, .. } => {
                let flags = if durable { WriteFlags::DSYNC } else { WriteFlags::empty() };
                let wrote = file.write_any_at(bytes, offset, flags)?;
                if wrote < bytes.len() { Err(uext4::Error::NoSpace) } else { Ok(()) }
            }
            Backing::Device { device, turns } => {
                let _alone = turns.alone();
                let (start, end) = self.whole_blocks(offset, bytes.len() as u64);
                let mut blocks = self.pool.take((end - start) as usize)?;
                if !self.is_direct(offset, bytes.len() as u64) {
                    device.read_at(&mut blocks, start)?;
                }
                let skipped = (offset - start) as usize;
                blocks[skipped..skipped + bytes.len()].copy_from_slice(bytes);
                match durable {
                    true => device.write_durable(&blocks, start)?,
                    false => device.write_at(&blocks, start, WriteDurability::Cached)?,
                }
                Ok(())
            }
        }
    }

    /// The blocks that these bytes touch.
    fn whole_blocks(&self, offset: u64, length: u64) -> (u64, u64) {
        let start = offset & !(self.block - 1);
        (start, (offset + length).next_multiple_of(self.block))
    }

    /// Lets go of the whole blocks in a range. What they hold afterwards is not said.
    pub(crate) fn trim(&self, offset: u64, length: u64, durable: bool) -> uext4::Result<()> {
        let block = match &self.backing {
            Backing::File { volume, .. } => volume.block_size().into(),
            Backing::Device { .. } => self.block,
        };
        let (start, end) = (offset.next_multiple_of(block), (offset + length) & !(block - 1));
        if start < end {
            match &self.backing {
                Backing::File { file, .. } => file.fallocate(Fallocate::Punch, start, end - start)?,
                Backing::Device { device, .. } if self.trims => device.discard(start, end - start)?,
                Backing::Device { .. } => {}
            }
        }
        if durable { self.flush() } else { Ok(()) }
    }

    /// Makes a range zeros. `hole`: without data blocks if that is faster; `fast`: in no other way. It ends with an
    /// error soon after `goes_on` says no.
    pub(crate) fn zero(
        &self,
        offset: u64,
        length: u64,
        how: Zeroing,
        goes_on: impl Fn() -> bool,
    ) -> Result<(), Code> {
        let unwritten = match &self.backing {
            Backing::File { file, .. } if how.hole => file.fallocate(Fallocate::ZeroKeepSize, offset, length),
            _ => Err(uext4::Error::NotSupported("zeros without writing them")),
        };
        match unwritten {
            Ok(()) => {}
            Err(uext4::Error::NotSupported(_) | uext4::Error::Incompatible { .. }) if how.fast => {
                return Err(Code::NotSupported);
            }
            Err(uext4::Error::NotSupported(_) | uext4::Error::Incompatible { .. }) => {
                self.write_zeros(offset, length, goes_on)?;
            }
            Err(error) => return Err(code(error)),
        }
        if how.durable { self.flush().map_err(code) } else { Ok(()) }
    }

    /// Whole blocks of a device by the device, the rest by writes.
    fn write_zeros(&self, offset: u64, length: u64, goes_on: impl Fn() -> bool) -> Result<(), Code> {
        let (start, end) = (offset.next_multiple_of(self.block), (offset + length) & !(self.block - 1));
        let (device, turns) = match &self.backing {
            Backing::Device { device, turns } if start < end => (device, turns),
            _ => return self.copy_zeros(offset, length, &goes_on),
        };
        self.copy_zeros(offset, start - offset, &goes_on)?;
        self.copy_zeros(end, offset + length - end, &goes_on)?;
        for at in (start..end).step_by(ZEROED) {
            if !goes_on() {
                return Err(Code::Shutdown);
            }
            let _alone = turns.alone();
            let part = (end - at).min(ZEROED as u64);
            device.write_zeros(at, part).map_err(|error| code(error.into()))?;
        }
        Ok(())
    }

    fn copy_zeros(&self, offset: u64, length: u64, goes_on: impl Fn() -> bool) -> Result<(), Code> {
        let mut zeros = self.pool.take(ZEROS).map_err(|error| code(error.into()))?;
        zeros.fill(0);
        let (mut pos, end) = (offset, offset + length);
        while pos < end {
            // After the first call, at whole pieces.
            let next = ((pos / ZEROS as u64 + 1) * ZEROS as u64).min(end);
            if !goes_on() {
                return Err(Code::Shutdown);
            }
            self.write(&zeros[..(next - pos) as usize], pos, false).map_err(code)?;
            pos = next;
        }
        Ok(())
    }

    /// What is allocated in a range, from its start on: at least one extent, at most one if `one`.
    pub(crate) fn status(&self, offset: u64, length: u32, one: bool) -> uext4::Result<Vec<Extent>> {
        let end = offset + u64::from(length);
        let most = if one { 1 } else { EXTENTS_MAX };
        let mut extents: Vec<Extent> = Vec::new();
        let Backing::File { file, .. } = &self.backing else {
            // Devices are not asked for holes.
            return Ok(vec![Extent { length, flags: 0 }]);
        };
        let mut pos = offset;
        for piece in file.map_from(offset) {
            let piece = piece?;
            let flags = match piece.state {
                State::Written | State::Inline => 0,
                State::Unwritten => STATE_ZERO,
                State::Hole => STATE_HOLE | STATE_ZERO,
            };
            let upto = piece.end().min(end);
            let Some(length) = upto.checked_sub(pos).filter(|length| *length > 0) else { continue };
            let length = length as u32;
            let full = extents.len() == most;
            match extents.last_mut() {
                Some(last) if last.flags == flags => last.length += length,
                _ if full => break,
                _ => extents.push(Extent { length, flags }),
            }
            pos = upto;
            if pos == end {
                break;
            }
        }
        if extents.is_empty() {
            extents.push(Extent { length, flags: 0 });
        }
        Ok(extents)
    }
}

/// How a range is made zeros.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Zeroing {
    /// It may lose its data blocks.
    pub(crate) hole: bool,
    /// Only if that is faster than writing.
    pub(crate) fast: bool,
    pub(crate) durable: bool,
}

/// The protocol's error for one of the library.
pub(crate) fn code(error: uext4::Error) -> Code {
    Code::of_errno(error.errno())
}

const _: () = assert!(ZEROS.is_multiple_of(BUFFER_ALIGN));
