//! A sparse extent: a directory of tables of grains, which may be compressed.

use super::SECTOR;
use crate::bytes::Bytes;
use crate::cache::Bounded;
use crate::disk::Disk;
use crate::fault::fault;
use flate2::{Decompress, FlushDecompress, Status};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4_blockdev::{Error, ImageFault, Result};

/// The header says so of a directory behind the data, in a footer.
const AT_END: u64 = u64::MAX;
/// Flags of the header: there is a table of zeroed grains; grains are compressed and have markers.
const ZEROED_GRAINS: u32 = 1 << 2;
const COMPRESSED: u32 = 1 << 16;
/// Most bytes of a grain, and of a directory.
const GRAIN_MAX: u64 = 8 << 20;
const DIRECTORY_MAX: u64 = 64 << 20;
/// Bytes of decompressed grains, and tables, that are kept.
const GRAINS_BYTES: u64 = 16 << 20;
const TABLES: usize = 1024;

/// What the extents of an image share: its memory does not grow with how many it says it has.
#[derive(Debug)]
pub(super) struct Share {
    /// How many extents there are.
    extents: usize,
    /// Bytes of directories that may still come.
    directories: u64,
}

impl Share {
    pub(super) fn among(extents: usize) -> Share {
        Share { extents: extents.max(1), directories: DIRECTORY_MAX }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sparse {
    path: PathBuf,
    bytes: Bytes,
    size: u64,
    grain: u64,
    /// Entries of a table.
    entries: u64,
    zeroed: bool,
    compressed: bool,
    /// Sectors of the tables.
    directory: Box<[u32]>,
    tables: Mutex<Bounded<[u32]>>,
    /// Otherwise they are decompressed for each read.
    keeps_grains: bool,
    grains: Mutex<Bounded<[u8]>>,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Numbers of a table, in the order of the host's memory on a PC.
fn numbers(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| u32_at(bytes, 0))
}

impl Sparse {
    /// Opens the extent in `bytes`, which is at `path`. Returns where its text is too, if it has one.
    pub(super) fn open(path: &Path, bytes: Bytes, share: &mut Share) -> Result<(Sparse, Option<(u64, u64)>)> {
        let wrong = |what: String| fault(path, ImageFault::Header(what));
        let mut header = [0; SECTOR as usize];
        bytes.read(&mut header, 0)?;
        let text = (u64_at(&header, 28), u64_at(&header, 36));
        if u64_at(&header, 56) == AT_END {
            // The footer is the last sector but one.
            let length = bytes.store().length()?;
            let at = length.checked_sub(2 * SECTOR).ok_or_else(|| wrong("it is too short".into()))?;
            bytes.read(&mut header, at)?;
        }
        if header[..4] != crate::recognise::VMDK {
            return Err(wrong("a sparse extent without its mark".into()));
        }
        let version = u32_at(&header, 4);
        if !(1..=3).contains(&version) {
            return Err(fault(path, ImageFault::Unsupported(format!("version {version} of sparse extents"))));
        }
        let flags = u32_at(&header, 8);
        let (capacity, grain) = (u64_at(&header, 12), u64_at(&header, 20).saturating_mul(SECTOR));
        let (entries, directory_at) = (u64::from(u32_at(&header, 44)), u64_at(&header, 56));
        let algorithm = u32::from(header[77]) | u32::from(header[78]) << 8;
        let compressed = flags & COMPRESSED != 0;
        if compressed != (algorithm == 1) || algorithm > 1 {
            return Err(fault(path, ImageFault::Unsupported(format!("compression {algorithm}"))));
        }
        let size = capacity.checked_mul(SECTOR).filter(|size| *size <= i64::MAX as u64);
        let size = size.ok_or_else(|| wrong(format!("{capacity} sectors")))?;
        if !grain.is_power_of_two() || !(SECTOR..=GRAIN_MAX).contains(&grain) {
            return Err(wrong(format!("grains of {grain} bytes")));
        }
        if !(1..=4096).contains(&entries) {
            return Err(wrong(format!("tables of {entries} grains")));
        }
        let tables = size.div_ceil(grain * entries);
        let left = share.directories.checked_sub(tables * 4);
        let Some(left) = left else {
            let what = format!("directories of more than {} MiB", DIRECTORY_MAX >> 20);
            return Err(fault(path, ImageFault::Unsupported(what)));
        };
        share.directories = left;
        if directory_at > i64::MAX as u64 / SECTOR - DIRECTORY_MAX {
            return Err(wrong(format!("a directory of {tables} tables at sector {directory_at}")));
        }
        if directory_at * SECTOR + tables * 4 > bytes.store().length()? {
            return Err(wrong("its directory lies behind the end of the file".into()));
        }
        let mut directory = vec![0; (tables * 4) as usize];
        bytes.read(&mut directory, directory_at * SECTOR)?;
        let sparse = Sparse {
            path: path.to_owned(),
            size,
            grain,
            entries,
            zeroed: flags & ZEROED_GRAINS != 0,
            compressed,
            directory: numbers(&directory).collect(),
            tables: Mutex::new(Bounded::new(TABLES / share.extents)),
            keeps_grains: GRAINS_BYTES / grain >= share.extents as u64,
            grains: Mutex::new(Bounded::new((GRAINS_BYTES / grain) as usize / share.extents)),
            bytes,
        };
        let (at, length) = text;
        let limit = i64::MAX as u64 / SECTOR / 2;
        let has_text = at != 0 && length != 0 && at < limit && length < limit;
        Ok((sparse, has_text.then(|| (at * SECTOR, length * SECTOR))))
    }

    fn damaged(&self, what: &'static str, pos: u64, reason: &'static str) -> Error {
        fault(&self.path, ImageFault::Structure { what, pos, reason })
    }

    /// The sector of grain `number`: 0 if it has none, 1 if it reads as zeros and the extent says so.
    fn sector(&self, number: u64) -> Result<u64> {
        let (table, entry) = (number / self.entries, (number % self.entries) as usize);
        let at = u64::from(self.directory[table as usize]) * SECTOR;
        if at == 0 {
            return Ok(0);
        }
        if let Some(table) = self.tables.lock().get(at) {
            return Ok(u64::from(table[entry]));
        }
        let mut bytes = vec![0; (self.entries * 4) as usize];
        self.bytes.read(&mut bytes, at)?;
        let table: Arc<[u32]> = numbers(&bytes).collect();
        self.tables.lock().insert(at, Arc::clone(&table), |_| false);
        Ok(u64::from(table[entry]))
    }

    /// Whether a grain of this sector reads as zeros.
    fn is_zero(&self, sector: u64) -> bool {
        sector == 0 || (sector == 1 && self.zeroed)
    }

    /// Grain `number`, whose compressed bytes are at `sector`, after their number and length.
    fn inflated(&self, number: u64, sector: u64) -> Result<Arc<[u8]>> {
        if let Some(grain) = self.grains.lock().get(sector) {
            return Ok(grain);
        }
        let at = sector * SECTOR;
        let wrong = |reason| self.damaged("compressed grain", at, reason);
        let mut marker = [0; 12];
        self.bytes.read(&mut marker, at)?;
        let (first, length) = (u64_at(&marker, 0), u64::from(u32_at(&marker, 8)));
        if first != number * (self.grain / SECTOR) {
            return Err(wrong("its marker names another grain"));
        }
        if length == 0 || length > 2 * self.grain + SECTOR {
            return Err(wrong("its marker has an impossible length"));
        }
        let mut bytes = vec![0; length as usize];
        self.bytes.read(&mut bytes, at + 12)?;
        let mut grain = vec![0; self.grain as usize];
        let mut stream = Decompress::new(true);
        match stream.decompress(&bytes, &mut grain, FlushDecompress::Finish) {
            // The last grain may be shorter than the others.
            Ok(Status::StreamEnd) => {}
            Ok(_) if stream.total_out() == self.grain => {}
            Ok(_) => return Err(wrong("its compressed data ends too early")),
            Err(_) => return Err(wrong("its compressed data is none")),
        }
        let grain: Arc<[u8]> = grain.into();
        if self.keeps_grains {
            self.grains.lock().insert(sector, Arc::clone(&grain), |_| false);
        }
        Ok(grain)
    }
}

impl Disk for Sparse {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let end = pos + buf.len() as u64;
        let mut at = pos;
        while at < end {
            let (number, inside) = (at / self.grain, at % self.grain);
            let upto = ((number + 1) * self.grain).min(end);
            let part = &mut buf[(at - pos) as usize..(upto - pos) as usize];
            let sector = self.sector(number)?;
            if self.is_zero(sector) {
                part.fill(0);
            } else if self.compressed {
                let grain = self.inflated(number, sector)?;
                part.copy_from_slice(&grain[inside as usize..][..part.len()]);
            } else {
                self.bytes.read(part, sector * SECTOR + inside)?;
            }
            at = upto;
        }
        Ok(())
    }

    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        let mut grains = pos / self.grain..=(pos + length - 1) / self.grain;
        grains.all(|number| self.sector(number).is_ok_and(|sector| self.is_zero(sector)))
    }

    fn settle(&self) -> Result<()> {
        self.bytes.store().settle()
    }

    fn names(&self) -> Vec<String> {
        vec![format!("sparse extent {}", self.path.display())]
    }
}
