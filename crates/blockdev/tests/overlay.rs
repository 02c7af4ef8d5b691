//! The overlay layer: what is read through it, synchronously and queued, and that nothing is written.

use std::sync::Arc;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::layer::{CountingDevice, OverlayDevice};
use uext4_blockdev::{
    BufferPool, Device, DeviceQueue, Error, Op, Priority, QueueOptions, Request, Wait, WriteDurability,
};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};

const SIZE: u64 = 256 << 10;
const BLOCK: u32 = 4096;

/// Block `n` holds `n` in every byte.
fn numbered() -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(MemoryOptions::new(SIZE)).unwrap();
    let pool = BufferPool::new(BLOCK as usize).unwrap();
    let mut buffer = pool.take(BLOCK as usize).unwrap();
    for block in 0..SIZE / u64::from(BLOCK) {
        buffer.fill(block as u8);
        device.write_at(&buffer, block * u64::from(BLOCK), WriteDurability::Cached).unwrap();
    }
    Arc::new(device)
}

const HEAD: [u8; 4] = [0xAA, 0xBB, 0xCC, 0xDD];

/// 3 → 40, 4 → 50 with another head, 6 in memory with one byte changed, 9 → 41, changed in memory.
fn overlay(inner: Arc<dyn Device>) -> OverlayDevice {
    let overlay = OverlayDevice::new(inner, BLOCK, 1 << 20).unwrap();
    let at = |block: u64| block * u64::from(BLOCK);
    overlay.redirect(3, at(40), None).unwrap();
    overlay.redirect(4, at(50), Some(HEAD)).unwrap();
    overlay.redirect(9, at(41), None).unwrap();
    overlay.patch(at(6) + 5, &[0xEE]).unwrap();
    overlay.patch(at(9) + 4000, &[0xEF; 96]).unwrap();
    overlay
}

fn expected() -> Vec<u8> {
    let size = BLOCK as usize;
    let mut bytes: Vec<u8> = (0..SIZE as usize).map(|at| (at / size) as u8).collect();
    bytes[3 * size..4 * size].fill(40);
    bytes[4 * size..5 * size].fill(50);
    bytes[4 * size..4 * size + 4].copy_from_slice(&HEAD);
    bytes[6 * size + 5] = 0xEE;
    bytes[9 * size..10 * size].fill(41);
    bytes[9 * size + 4000..10 * size].fill(0xEF);
    bytes
}

fn queued(device: &dyn Device, op: Op, pos: u64, buffer: &mut uext4_blockdev::Buffer, length: u32) -> i32 {
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let memory = buffer.memory(0);
    let request =
        Request { op, fua: false, nowait: false, priority: Priority::OF_THREAD, pos, length, memory, tag: 9 };
    // SAFETY: the request is delivered before this function returns; the caller's buffer outlives it.
    unsafe { queue.push(request) }.unwrap();
    let mut out = Vec::with_capacity(4);
    queue.reap(&mut out, Wait::AtLeast(1)).unwrap();
    assert_eq!((out.len(), out[0].tag, queue.in_flight()), (1, 9, 0));
    out[0].result
}

#[test]
fn every_range_of_logical_blocks_reads_as_overlaid() {
    let overlay = overlay(numbered());
    let expected = expected();
    let pool = BufferPool::new(64 << 10).unwrap();
    let mut buffer = pool.take(64 << 10).unwrap();
    for pos in (0..48 << 10).step_by(512) {
        for length in [512, 1024, 3584, 4096, 4608, 12_288, 24_576] {
            let wanted = &expected[pos..pos + length];
            buffer.fill(0x55);
            overlay.read_at(&mut buffer[..length], pos as u64).unwrap();
            assert!(buffer[..length] == *wanted, "{length} at {pos}");
            buffer.fill(0x55);
            let result = queued(&overlay, Op::Read, pos as u64, &mut buffer, length as u32);
            assert_eq!(result, length as i32);
            assert!(buffer[..length] == *wanted, "queued: {length} at {pos}");
            assert!(buffer[length..].iter().all(|byte| *byte == 0x55), "nothing behind it is touched");
        }
    }
}

#[test]
fn nothing_is_written_and_dax_is_hidden() {
    let counting = Arc::new(CountingDevice::new(numbered()));
    let overlay = overlay(counting.clone());
    let mut buffer = BufferPool::new(4096).unwrap().take(4096).unwrap();
    for block in [0, 3, 6] {
        let pos = block * u64::from(BLOCK);
        assert_eq!(overlay.write_at(&buffer, pos, WriteDurability::Cached), Err(Error::ReadOnly));
        assert_eq!(overlay.discard(pos, 4096), Err(Error::ReadOnly));
        assert_eq!(queued(&overlay, Op::Write, pos, &mut buffer, 4096), -libc::EROFS);
        assert_eq!(queued(&overlay, Op::Discard, pos, &mut buffer, 4096), -libc::EROFS);
    }
    overlay.flush().unwrap();
    assert_eq!(queued(&overlay, Op::Flush, 0, &mut buffer, 0), 0);
    let counts = counting.counts();
    assert_eq!((counts.writes, counts.discards, counts.flushes), (0, 0, 0));
    let capabilities = overlay.capabilities();
    assert!(capabilities.read_only && !capabilities.discard && capabilities.dax.is_none());
    assert!(overlay.describe().layers.contains(&"overlay (4 blocks)".to_owned()));
}

#[test]
fn reads_elsewhere_pass_straight_through() {
    let counting = Arc::new(CountingDevice::new(numbered()));
    let overlay = overlay(counting.clone());
    let mut buffer = BufferPool::new(4096).unwrap().take(4096).unwrap();
    let before = counting.counts();
    assert_eq!(queued(&overlay, Op::Read, 20 * 4096, &mut buffer, 4096), 4096);
    overlay.read_at(&mut buffer, 21 * 4096).unwrap();
    assert_eq!(counting.counts().reads - before.reads, 2);
    // A block in memory is not read from the device at all.
    overlay.read_at(&mut buffer, 6 * 4096).unwrap();
    assert_eq!(counting.counts().reads - before.reads, 2);
    // Requests outside the device are the device's to refuse.
    assert!(queued(&overlay, Op::Read, SIZE, &mut buffer, 4096) < 0);
    assert!(queued(&overlay, Op::Read, u64::MAX - 511, &mut buffer, 512) < 0);
    assert!(matches!(overlay.read_at(&mut buffer, SIZE), Err(Error::OutOfRange { .. })));
}

#[test]
fn a_bad_home_block_does_not_matter_and_a_bad_copy_does() {
    let faulty = Arc::new(FaultDevice::new(numbered()));
    let overlay = overlay(faulty.clone());
    let handle = faulty.handle();
    let fault = |block: u64| {
        let range = Some(block * 4096..(block + 1) * 4096);
        Fault { range, times: u64::MAX, ..Fault::nth(FaultOn::Any, 1) }
    };
    let mut buffer = BufferPool::new(8192).unwrap().take(8192).unwrap();
    let home = handle.arm(fault(3));
    overlay.read_at(&mut buffer, 2 * 4096).unwrap();
    assert_eq!(queued(&overlay, Op::Read, 2 * 4096, &mut buffer, 8192), 8192);
    handle.disarm(home);
    handle.arm(fault(40));
    assert_eq!(overlay.read_at(&mut buffer, 2 * 4096).map_err(|error| error.errno()), Err(libc::EIO));
    assert_eq!(queued(&overlay, Op::Read, 2 * 4096, &mut buffer, 8192), -libc::EIO);
}

#[test]
fn patches_are_bounded_and_survive_one_another() {
    let overlay = OverlayDevice::new(numbered(), BLOCK, 8192).unwrap();
    // Over the border of two blocks.
    overlay.patch(4096 - 2, &[1, 2, 3, 4]).unwrap();
    assert_eq!((overlay.memory_bytes(), overlay.overlaid_blocks()), (8192, 2));
    overlay.patch(4096, &[9]).unwrap();
    let error = overlay.patch(8192, &[5]).unwrap_err();
    assert!(matches!(error, Error::OverlayFull { limit: 8192 }), "{error}");
    let mut buffer = BufferPool::new(8192).unwrap().take(8192).unwrap();
    overlay.read_at(&mut buffer, 0).unwrap();
    assert_eq!(buffer[4093..4101], [0, 1, 2, 9, 4, 1, 1, 1]);
    // What is redirected leaves memory.
    overlay.redirect(1, 4096 * 7, None).unwrap();
    assert_eq!(overlay.memory_bytes(), 4096);
    for (pos, bytes) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 2)] {
        assert!(matches!(overlay.patch(pos, &vec![0; bytes]), Err(Error::OutOfRange { .. })));
    }
    assert!(overlay.redirect(SIZE / 4096, 0, None).is_err());
    assert!(overlay.redirect(0, SIZE, None).is_err());
    assert!(overlay.redirect(u64::MAX, 0, None).is_err());
    assert!(OverlayDevice::new(numbered(), 1000, 0).is_err());
    assert!(OverlayDevice::new(numbered(), 0, 0).is_err());
}

/// A rehearsal: synchronous and queued writes are read back, and nothing reaches the device.
#[test]
fn writes_are_kept() {
    let inner = numbered();
    let (counting, counters) = {
        let device = CountingDevice::new(inner.clone());
        let counters = device.counters();
        (Arc::new(device), counters)
    };
    let overlay = OverlayDevice::keeping_writes(counting, BLOCK, 16_384).unwrap();
    assert!(!overlay.capabilities().read_only && !overlay.capabilities().discard);
    let mut buffer = BufferPool::new(8192).unwrap().take(8192).unwrap();
    buffer.fill(0xA1);
    overlay.write_at(&buffer, 4096, WriteDurability::Fua).unwrap();
    buffer.fill(0xB2);
    // Half of a block, and the next one as a whole.
    assert_eq!(queued(&overlay, Op::Write, 2 * 4096 + 2048, &mut buffer, 6144), 6144);
    overlay.flush().unwrap();
    overlay.settle().unwrap();
    assert_eq!(queued(&overlay, Op::Flush, 0, &mut buffer, 0), 0);
    for read_queued in [false, true] {
        buffer.fill(0);
        match read_queued {
            true => assert_eq!(queued(&overlay, Op::Read, 2 * 4096, &mut buffer, 8192), 8192),
            false => overlay.read_at(&mut buffer, 2 * 4096).unwrap(),
        }
        assert!(buffer[..2048].iter().all(|byte| *byte == 0xA1));
        assert!(buffer[2048..].iter().all(|byte| *byte == 0xB2));
    }
    assert_eq!(overlay.memory_bytes(), 3 * 4096);
    // More than the budget, and outside the device.
    assert_eq!(queued(&overlay, Op::Write, 8 * 4096, &mut buffer, 8192), -libc::ENOMEM);
    let full = overlay.write_at(&buffer, 10 * 4096, WriteDurability::Cached);
    assert!(matches!(full, Err(Error::OverlayFull { limit: 16_384 })), "{full:?}");
    assert!(queued(&overlay, Op::Write, SIZE, &mut buffer, 4096) < 0);
    assert!(queued(&overlay, Op::Discard, 0, &mut buffer, 4096) < 0);
    let counts = counters.get();
    assert_eq!((counts.writes, counts.flushes, counts.discards), (0, 0, 0));
}
