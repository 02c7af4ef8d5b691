//! Overwrites that were decided before, over a file system whose blocks move, that gets dirty and is aborted: what was
//! decided holds no longer than what it was decided from.
use crate::common;

use common::{BLOCK, OneFile, Watched};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::{BufferPool, Device};
use uext4_iomap::{Counter, Engine, Error, FileSlot, FileSystem, IoQueue, Run, State, Switches, WriteFlags};

const BLOCKS: u64 = 16;

/// The file's blocks are from now on those from `physical` on, in this state.
fn place(inode: &Watched, physical: u64, state: State) {
    *inode.runs.lock() = vec![Run { first: 0, length: BLOCKS, state, physical }];
    inode.publish(state);
}

/// One file of sixteen blocks, and a queue.
struct Bed {
    device: Arc<MemoryDevice>,
    engine: Arc<Engine<OneFile>>,
    inode: Arc<Watched>,
    queue: IoQueue<OneFile>,
    slot: FileSlot,
}

impl Bed {
    fn new(change: impl FnOnce(&mut MemoryOptions)) -> Bed {
        let mut options = MemoryOptions::new(1 << 20);
        change(&mut options);
        let device = Arc::new(MemoryDevice::new(options).unwrap());
        let bed = common::Bed::new(device.clone() as Arc<dyn Device>, BLOCKS, BLOCKS, State::Written);
        place(&bed.inode, 32, State::Written);
        let (queue, slot) = bed.queue(4, Switches::ON);
        Bed { device, engine: bed.engine, inode: bed.inode, queue, slot }
    }

    /// Writes one block of `byte` at `pos` and waits for it. What was counted as written by FUA meanwhile.
    fn write(&mut self, pos: u64, byte: u8, flags: WriteFlags) -> Result<u64, Error> {
        let before = self.engine.stats().get(Counter::FuaWrites);
        let mut buffer = self.queue.buffer(BLOCK as usize).unwrap();
        buffer.fill(byte);
        self.queue.write(self.slot, pos, buffer, flags, 1)?;
        let done = self.queue.wait(1).unwrap().next().expect("a completion");
        assert_eq!(done.result.map_err(|error| *error)?, BLOCK as usize);
        Ok(self.engine.stats().get(Counter::FuaWrites) - before)
    }

    fn at(&self, block: u64) -> u8 {
        let pool = BufferPool::new(4096).unwrap();
        let mut buffer = pool.take(4096).unwrap();
        self.device.read_at(&mut buffer, block * BLOCK).unwrap();
        assert!(buffer.iter().all(|&byte| byte == buffer[0]));
        buffer[0]
    }
}

fn cached(options: &mut MemoryOptions) {
    (options.volatile_cache, options.fua) = (true, true);
}

#[test]
fn blocks_that_moved_are_written_where_they_are() {
    let mut bed = Bed::new(cached);
    for (pos, byte) in [(0, 1), (BLOCK, 2)] {
        assert_eq!(bed.write(pos, byte, WriteFlags::DSYNC).unwrap(), 1);
    }
    assert_eq!((bed.at(32), bed.at(33)), (1, 2));
    place(&bed.inode, 100, State::Written);
    assert_eq!(bed.write(0, 3, WriteFlags::DSYNC).unwrap(), 1);
    assert_eq!((bed.at(32), bed.at(100)), (1, 3));
    // Blocks that hold no data any more need more than an overwrite.
    place(&bed.inode, 100, State::Unwritten);
    let refused = bed.write(0, 4, WriteFlags::DSYNC).unwrap_err();
    assert!(matches!(refused, Error::NeedsAllocation { unwritten: 4096, .. }), "{refused}");
    assert_eq!((bed.at(32), bed.at(100)), (1, 3));
}

/// A slot names a file of the queue that it came from and of no other: its number alone would name another file.
#[test]
fn a_slot_of_another_queue_is_refused() {
    let (mut bed, mut other) = (Bed::new(cached), Bed::new(cached));
    assert_eq!(bed.write(0, 1, WriteFlags::empty()).unwrap(), 0);
    let own = std::mem::replace(&mut bed.slot, other.slot);
    for flags in [WriteFlags::empty(), WriteFlags::DSYNC] {
        assert!(matches!(bed.write(0, 2, flags), Err(Error::BadSlot)));
    }
    let buffers = || bed.queue.buffer(4096).unwrap();
    let (one, two) = (buffers(), buffers());
    assert!(matches!(bed.queue.read(other.slot, 0, one, 1), Err(Error::BadSlot)));
    assert!(matches!(
        bed.queue.writev(other.slot, 0, vec![two], WriteFlags::empty(), 1),
        Err(Error::BadSlot)
    ));
    assert!(matches!(bed.queue.sync_data(other.slot, 1), Err(Error::BadSlot)));
    assert!(matches!(bed.queue.detach(other.slot), Err(Error::BadSlot)));
    bed.slot = own;
    assert_eq!((bed.at(32), bed.queue.pending()), (1, 0));
    assert_eq!(other.write(0, 3, WriteFlags::DSYNC).unwrap(), 1);
}

#[test]
fn a_dirty_inode_takes_fua_no_longer_for_enough() {
    let mut bed = Bed::new(cached);
    for pos in [0, BLOCK] {
        assert_eq!(bed.write(pos, 1, WriteFlags::DSYNC).unwrap(), 1);
    }
    bed.inode.state.set_datasync_tid(5);
    let flushes = bed.engine.stats().get(Counter::Flushes);
    assert_eq!(bed.write(0, 2, WriteFlags::DSYNC).unwrap(), 0, "its metadata must be durable too");
    assert_eq!(bed.engine.stats().get(Counter::Flushes) - flushes, 1);
    assert_eq!(bed.at(32), 2);
}

/// One conversion must not end FUA for good, nor may what was decided since the commit outlive the next conversion.
#[test]
fn a_committed_inode_takes_fua_for_enough_again() {
    let mut bed = Bed::new(cached);
    let mut last = 0;
    for tid in [5, 6, u64::from(u32::MAX), 1 << 32] {
        bed.inode.state.set_datasync_tid(tid);
        for last in [last, tid - 1] {
            bed.inode.committed.store(last, Ordering::Release);
            assert_eq!(bed.write(0, 1, WriteFlags::DSYNC).unwrap(), 0, "{tid} is not committed");
        }
        bed.inode.committed.store(tid, Ordering::Release);
        last = tid;
        // Decided, then from the window.
        for pos in [0, BLOCK, 0] {
            assert_eq!(bed.write(pos, 2, WriteFlags::DSYNC).unwrap(), 1, "{tid} is committed");
        }
    }
}

#[test]
fn an_aborted_file_system_is_not_written() {
    let mut bed = Bed::new(cached);
    for pos in [0, BLOCK] {
        bed.write(pos, 1, WriteFlags::empty()).unwrap();
    }
    bed.engine.fs().abort(Error::WouldBlock);
    assert!(matches!(bed.write(0, 2, WriteFlags::empty()), Err(Error::BadMode(_))));
    assert_eq!((bed.at(32), bed.queue.pending()), (1, 0));
    // Aborted is read-only.
    let buffer = bed.queue.buffer(BLOCK as usize).unwrap();
    bed.queue.read(bed.slot, 0, buffer, 2).unwrap();
    let done = bed.queue.wait(1).unwrap().next().expect("a completion");
    assert_eq!(done.result.unwrap(), BLOCK as usize);
}

/// (volatile cache, FUA): what an `O_DSYNC` overwrite counts as FUA and as flushes, the first time and later.
#[test]
fn every_device_gets_the_durability_it_needs_each_time() {
    for (volatile_cache, fua, writes, flushes) in
        [(true, true, 1, 0), (true, false, 0, 1), (false, true, 1, 0), (false, false, 0, 0)]
    {
        let mut bed = Bed::new(|options| (options.volatile_cache, options.fua) = (volatile_cache, fua));
        for round in 0..3 {
            let before = bed.engine.stats().get(Counter::Flushes);
            let counted = bed.write(round * BLOCK, 7, WriteFlags::DSYNC).unwrap();
            let flushed = bed.engine.stats().get(Counter::Flushes) - before;
            assert_eq!(
                (counted, flushed),
                (writes, flushes),
                "cache {volatile_cache}, fua {fua}, round {round}"
            );
        }
        assert_eq!(bed.write(0, 8, WriteFlags::empty()).unwrap(), 0);
    }
}

/// Buffers are aligned to pages, this device wants more: each write is looked at.
#[test]
fn a_device_that_wants_more_than_pages_gets_it_each_time() {
    let mut bed = Bed::new(|options| options.memory_align = 8192);
    let (mut sent, mut refused) = (0, 0);
    let buffers: Vec<_> = (0..8).map(|_| bed.queue.buffer(BLOCK as usize).unwrap()).collect();
    for buffer in buffers {
        let aligned = buffer.address().addr().get().is_multiple_of(8192);
        match bed.queue.write(bed.slot, 0, buffer, WriteFlags::empty(), 1) {
            Ok(()) => {
                assert!(aligned);
                let done = bed.queue.wait(1).unwrap().next().expect("a completion");
                assert_eq!(done.result.unwrap(), BLOCK as usize);
                sent += 1;
            }
            Err(error) => {
                assert!(
                    !aligned && matches!(error, Error::Device(uext4_blockdev::Error::Misaligned { .. })),
                    "{error:?}"
                );
                refused += 1;
            }
        }
    }
    assert!(sent > 0 && refused > 0, "{sent} {refused}");
}
