//! A volume in memory with a journal in it: log block `n` is block `n` + 8 of the volume.
#![allow(dead_code, reason = "every test file uses its own part")]

pub mod recorder;
pub mod world;

use parking_lot::Mutex;
use std::sync::Arc;
use uext4_blockdev::{
    Capabilities, Description, Device, Driving, Error, Geometry, Queue, QueueOptions, Result, Sharing,
    WriteDurability,
};
use uext4_buffer::{BufferCache, BufferPin, CacheOptions};
use uext4_jbd2::{Journal, LogRun, RunMap};

/// Bytes per block.
pub const BLOCK: u32 = 1024;
/// Blocks of the log.
pub const LOG: u32 = 1032;
/// Block of the volume that holds log block 0.
pub const LOG_AT: u64 = 8;
/// First block of the volume after the log.
pub const DATA: u64 = LOG_AT + LOG as u64;

#[derive(Debug)]
pub struct Disk(Mutex<Vec<u8>>);

impl Disk {
    pub fn new(blocks: u64) -> Self {
        Disk(Mutex::new(vec![0; (blocks * u64::from(BLOCK)) as usize]))
    }

    pub fn put(&self, pos: u64, bytes: &[u8]) {
        self.0.lock()[pos as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

impl Device for Disk {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.0.lock().len() as u64, logical_block: 512, memory_align: 512 }
    }

    fn capabilities(&self) -> Capabilities {
        let no = false;
        Capabilities { volatile_cache: no, fua: no, nowait: no, discard: no, read_only: no, dax: None }
    }

    fn describe(&self) -> Description {
        let nothing = Vec::new;
        Description {
            engine: "test",
            locator: String::new(),
            layers: nothing(),
            sharing: Sharing::Private,
            driving: Driving::Engine,
            tags: None,
            notes: nothing(),
        }
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.geometry().check(pos, buf.len() as u64)?;
        buf.copy_from_slice(&self.0.lock()[pos as usize..][..buf.len()]);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], pos: u64, _: WriteDurability) -> Result<()> {
        self.geometry().check(pos, buf.len() as u64)?;
        self.put(pos, buf);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::Unsupported("discard".into()))
    }

    fn queue(&self, _: &QueueOptions) -> Result<Queue> {
        Err(Error::Unsupported("queue".into()))
    }
}

/// A journal superblock: 1024 bytes whose fields tests change before they are sealed.
pub struct Superblock(pub [u8; 1024]);

impl Superblock {
    /// Version 2, no features, an empty log of [`LOG`] blocks whose last transaction was number 41.
    pub fn empty() -> Self {
        let mut superblock = Superblock([0; 1024]);
        for (offset, value) in [(0, 0xC03B_3998), (4, 4), (12, BLOCK), (16, LOG), (20, 1), (24, 41), (64, 1)]
        {
            superblock.set(offset, value);
        }
        superblock
    }

    /// Sets a big-endian 32-bit field.
    pub fn set(&mut self, offset: usize, value: u32) -> &mut Self {
        let bytes = [24, 16, 8, 0].map(|shift| (value >> shift) as u8);
        self.0[offset..offset + 4].copy_from_slice(&bytes);
        self
    }

    /// [`Superblock::set`], for closures.
    pub fn put(&mut self, offset: usize, value: u32) {
        self.set(offset, value);
    }

    /// Brings the checksum (crc32c of all, its own field as zero) up to date.
    pub fn seal(&mut self) -> &mut Self {
        self.0[80] = 4;
        self.set(252, 0);
        let sum = crc32c(&self.0);
        self.set(252, sum)
    }
}

/// Bit by bit, so that it shares nothing with what it checks.
fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82F6_3B78 & (sum & 1).wrapping_neg()))
    })
}

pub fn map() -> Arc<RunMap> {
    let half = LOG / 2;
    let first = LogRun { log_block: 0, physical: LOG_AT, length: half };
    let second = LogRun { log_block: half, physical: LOG_AT + u64::from(half), length: LOG - half };
    Arc::new(RunMap::new(vec![first, second]).unwrap())
}

/// A cache over a volume with this superblock at the start of its log.
pub fn cache(superblock: &Superblock) -> BufferCache {
    let disk = Disk::new(DATA + 512);
    disk.put(LOG_AT * u64::from(BLOCK), &superblock.0);
    BufferCache::new(Arc::new(disk), &CacheOptions::new(BLOCK)).unwrap()
}

/// An open journal: 258 blocks per transaction, 4 of them overhead.
pub fn journal() -> Journal {
    Journal::open(cache(&Superblock::empty()), map(), Arc::default()).unwrap()
}

/// Block `n` after the log.
pub fn pin(journal: &Journal, n: u64) -> BufferPin {
    journal.cache().pin(DATA + n).unwrap()
}
