//! Blocking calls, one after another.

use super::{SAMPLE, Work};
use crate::error::{BenchError, Cause, Result};
use crate::ops::Op;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use uext4::device::{Device, WriteDurability};
use uext4::{File, WriteFlags};

/// The calls of the loop. Both return the bytes transferred.
pub trait SyncTarget {
    /// Its error.
    type Error: Cause;
    /// Reads into `buf`.
    fn read(&self, op: &Op, buf: &mut [u8]) -> std::result::Result<usize, Self::Error>;
    /// Writes `buf`.
    fn write(&self, op: &Op, buf: &[u8]) -> std::result::Result<usize, Self::Error>;
}

/// Files of the library.
pub struct FileTarget<'a> {
    /// By number.
    pub files: &'a [File],
    /// Of writes.
    pub flags: WriteFlags,
    /// Each write is followed by a sync.
    pub fsync: bool,
}

impl SyncTarget for FileTarget<'_> {
    type Error = uext4::Error;

    #[inline]
    fn read(&self, op: &Op, buf: &mut [u8]) -> uext4::Result<usize> {
        self.files[op.file as usize].read_at(buf, op.pos)
    }

    #[inline]
    fn write(&self, op: &Op, buf: &[u8]) -> uext4::Result<usize> {
        let file = &self.files[op.file as usize];
        let written = file.write_at_with(buf, op.pos, self.flags)?;
        if self.fsync {
            file.sync_all()?;
        }
        Ok(written)
    }
}

/// The device itself.
pub struct DeviceTarget<'a> {
    /// The one the volume was opened on.
    pub device: &'a Arc<dyn Device>,
    /// Of writes.
    pub durability: WriteDurability,
}

impl SyncTarget for DeviceTarget<'_> {
    type Error = uext4::device::Error;

    #[inline]
    fn read(&self, op: &Op, buf: &mut [u8]) -> uext4::device::Result<usize> {
        self.device.read_at(buf, op.pos).map(|()| buf.len())
    }

    #[inline]
    fn write(&self, op: &Op, buf: &[u8]) -> uext4::device::Result<usize> {
        self.device.write_at(buf, op.pos, self.durability).map(|()| buf.len())
    }
}

/// Files on the kernel's mount, opened with `O_DIRECT`, and `O_DSYNC` if the scenario requires it.
pub struct KernelTarget {
    /// By number; this thread's own descriptors.
    pub files: Vec<OwnedFd>,
    /// Each write is followed by a sync.
    pub fsync: bool,
}

impl SyncTarget for KernelTarget {
    type Error = Errno;

    #[inline]
    fn read(&self, op: &Op, buf: &mut [u8]) -> std::result::Result<usize, Errno> {
        rustix::io::pread(&self.files[op.file as usize], buf, op.pos)
    }

    #[inline]
    fn write(&self, op: &Op, buf: &[u8]) -> std::result::Result<usize, Errno> {
        let file = &self.files[op.file as usize];
        let written = rustix::io::pwrite(file, buf, op.pos)?;
        if self.fsync {
            rustix::fs::fsync(file)?;
        }
        Ok(written)
    }
}

/// The loop.
pub fn drive<T: SyncTarget>(target: &T, buffer: &mut [u8], work: Work<'_>) -> Result<()> {
    let Work { ops, once, stop, tally, latencies } = work;
    let rounds = if once { 1 } else { usize::MAX };
    for chunk in std::iter::repeat_n(ops, rounds).flat_map(|ops| ops.chunks(SAMPLE as usize)) {
        let start = Instant::now();
        for (number, op) in chunk.iter().enumerate() {
            let done = if op.write { target.write(op, buffer) } else { target.read(op, buffer) };
            match done {
                Ok(bytes) if bytes == buffer.len() => tally.count(op),
                other => return Err(fell_short(op, buffer.len(), other)),
            }
            if number == 0 {
                latencies.record(start.elapsed());
            }
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
    }
    Ok(())
}

#[cold]
fn fell_short<E: Cause>(op: &Op, length: usize, done: std::result::Result<usize, E>) -> BenchError {
    let verb = if op.write { "write" } else { "read" };
    match done {
        Ok(bytes) => BenchError::failed(format!("{verb} at {}: {bytes} of {length} bytes", op.pos)),
        Err(error) => error.while_doing(format!("{verb} {length} bytes at {}", op.pos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{Latencies, Tally};
    use std::cell::RefCell;
    use std::sync::atomic::AtomicBool;

    /// Stops the loop after the sixth call.
    struct Script<'a> {
        seen: RefCell<Vec<Op>>,
        stop: &'a AtomicBool,
        short_at: u64,
    }

    impl SyncTarget for Script<'_> {
        type Error = Errno;

        fn read(&self, op: &Op, buf: &mut [u8]) -> std::result::Result<usize, Errno> {
            self.write(op, buf)
        }

        fn write(&self, op: &Op, buf: &[u8]) -> std::result::Result<usize, Errno> {
            self.seen.borrow_mut().push(*op);
            self.stop.store(self.seen.borrow().len() == 6, Ordering::Relaxed);
            Ok(if op.pos == self.short_at { 1 } else { buf.len() })
        }
    }

    #[test]
    fn goes_round_counts_and_stops_where_told() {
        let stop = AtomicBool::new(false);
        let ops: Vec<Op> = (0..4).map(|pos| Op { pos, file: 0, write: pos == 3 }).collect();
        let script = Script { seen: RefCell::default(), stop: &stop, short_at: 99 };
        let (mut tally, mut latencies) = (Tally::default(), Latencies::new().unwrap());
        let work = Work { ops: &ops, once: false, stop: &stop, tally: &mut tally, latencies: &mut latencies };
        drive(&script, &mut [0; 8], work).unwrap();
        assert_eq!(tally, Tally { reads: 5, writes: 1, beside: 0 });
        let seen: Vec<u64> = script.seen.borrow().iter().map(|op| op.pos).collect();
        assert_eq!(seen, [0, 1, 2, 3, 0, 1]);
        assert!(latencies.quantile_us(0.5).is_some());
    }

    #[test]
    fn a_short_transfer_is_an_error() {
        let stop = AtomicBool::new(false);
        let ops = [Op { pos: 5, file: 0, write: false }];
        let script = Script { seen: RefCell::default(), stop: &stop, short_at: 5 };
        let (mut tally, mut latencies) = (Tally::default(), Latencies::new().unwrap());
        let work = Work { ops: &ops, once: false, stop: &stop, tally: &mut tally, latencies: &mut latencies };
        let error = drive(&script, &mut [0; 8], work).unwrap_err();
        assert!(error.to_string().contains("1 of 8"), "{error}");
        assert_eq!(tally.ops(), 0);
    }
}
