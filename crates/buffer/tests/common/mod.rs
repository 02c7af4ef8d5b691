//! A device in memory for the tests of the cache: counts, fails and stalls on demand, and is strict about
//! alignment.
#![allow(dead_code, reason = "every test file uses its own part")]

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uext4_blockdev::{
    Capabilities, Description, Device, Driving, Error, Geometry, Queue, QueueOptions, Result, Sharing,
    WriteDurability,
};

/// Bytes per block in most tests.
pub const BLOCK: u32 = 1024;

#[derive(Debug)]
pub struct Disk {
    geometry: Geometry,
    bytes: Mutex<Vec<u8>>,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    pub flushes: AtomicU64,
    /// Byte positions whose reads fail.
    pub bad_reads: Mutex<BTreeSet<u64>>,
    /// Byte positions whose writes fail.
    pub bad_writes: Mutex<BTreeSet<u64>>,
    pub fail_flush: AtomicBool,
    /// Reads panic instead.
    pub panic_reads: AtomicBool,
    gate: Mutex<bool>,
    gate_opened: Condvar,
    /// Transfers that have arrived at the closed gate.
    pub at_gate: AtomicU64,
    pub read_only: AtomicBool,
}

impl Disk {
    /// `blocks` × 1 KiB, block `n` filled with the byte `n`; 512-byte sectors, 512-byte memory alignment.
    pub fn new(blocks: u64) -> Self {
        Self::with_geometry(blocks, 512, 512)
    }

    pub fn with_geometry(blocks: u64, logical_block: u32, memory_align: u32) -> Self {
        let bytes = (0..blocks).flat_map(|block| [block as u8; BLOCK as usize]).collect();
        Disk {
            geometry: Geometry { size: blocks * u64::from(BLOCK), logical_block, memory_align },
            bytes: Mutex::new(bytes),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            bad_reads: Mutex::default(),
            bad_writes: Mutex::default(),
            fail_flush: AtomicBool::new(false),
            panic_reads: AtomicBool::new(false),
            gate: Mutex::new(true),
            gate_opened: Condvar::new(),
            at_gate: AtomicU64::new(0),
            read_only: AtomicBool::new(false),
        }
    }

    /// Bytes of one 1 KiB block as the device holds them.
    pub fn block(&self, block: u64) -> Vec<u8> {
        let start = (block * u64::from(BLOCK)) as usize;
        self.bytes.lock()[start..start + BLOCK as usize].to_vec()
    }

    /// Changes the device behind the cache.
    pub fn set_block(&self, block: u64, byte: u8) {
        let start = (block * u64::from(BLOCK)) as usize;
        self.bytes.lock()[start..start + BLOCK as usize].fill(byte);
    }

    /// Transfers stop here until the gate opens.
    pub fn close_gate(&self) {
        *self.gate.lock() = false;
    }

    pub fn open_gate(&self) {
        *self.gate.lock() = true;
        self.gate_opened.notify_all();
    }

    /// Waits until `transfers` have arrived at the gate since the start.
    pub fn await_at_gate(&self, transfers: u64) {
        while self.at_gate.load(Ordering::SeqCst) < transfers {
            std::thread::yield_now();
        }
    }

    fn pass_gate(&self) {
        let mut open = self.gate.lock();
        if !*open {
            self.at_gate.fetch_add(1, Ordering::SeqCst);
        }
        while !*open {
            self.gate_opened.wait(&mut open);
        }
    }

    fn check(&self, buf: &[u8], pos: u64) -> Result<std::ops::Range<usize>> {
        self.geometry.check(pos, buf.len() as u64)?;
        self.geometry.check_memory(buf.as_ptr().addr())?;
        Ok(pos as usize..pos as usize + buf.len())
    }

    fn fail(op: &'static str, pos: u64, length: usize) -> Error {
        Error::Io { op, pos, length: length as u64, errno: libc::EIO }
    }
}

impl Device for Disk {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: true,
            fua: false,
            nowait: false,
            discard: false,
            read_only: self.read_only.load(Ordering::SeqCst),
            dax: None,
        }
    }

    fn describe(&self) -> Description {
        Description {
            engine: "test",
            locator: String::new(),
            layers: Vec::new(),
            sharing: Sharing::Private,
            driving: Driving::Engine,
            tags: None,
            notes: Vec::new(),
        }
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        let range = self.check(buf, pos)?;
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.pass_gate();
        assert!(!self.panic_reads.load(Ordering::SeqCst), "a read that panics");
        if self.bad_reads.lock().contains(&pos) {
            return Err(Self::fail("read", pos, buf.len()));
        }
        buf.copy_from_slice(&self.bytes.lock()[range]);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], pos: u64, _: WriteDurability) -> Result<()> {
        let range = self.check(buf, pos)?;
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.pass_gate();
        if self.bad_writes.lock().contains(&pos) {
            return Err(Self::fail("write", pos, buf.len()));
        }
        self.bytes.lock()[range].copy_from_slice(buf);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        if self.fail_flush.load(Ordering::SeqCst) { Err(Self::fail("flush", 0, 0)) } else { Ok(()) }
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::Unsupported("discard".into()))
    }

    fn queue(&self, _: &QueueOptions) -> Result<Queue> {
        Err(Error::Unsupported("queue".into()))
    }
}
