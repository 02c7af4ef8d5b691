//! Snapshots that queues and threads keep: they may answer *Written* as long as nothing was taken away, and everything
//! else is looked up in the map as it is now.
#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges may have one")]

use crate::common;

use common::{BLOCK, Bed, OneFile, memory, outcome};
use std::sync::Arc;
use uext4_blockdev::Device;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_iomap::{Counter, Error, FileSlot, IoQueue, MapCell, Run, State, Switches, WriteFlags};

const BLOCKS: u64 = 64;

fn device() -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(MemoryOptions::new(4 << 20)).unwrap())
}

/// A file of unwritten blocks, a run each, a queue that has looked at it, and data under the blocks.
fn bed(state: State) -> (Bed, IoQueue<OneFile>, FileSlot) {
    let bed = Bed::new(device(), BLOCKS, 1, state);
    for run in &*bed.inode.runs.lock() {
        let data = memory(BLOCK as usize, run.first as u8 + 1);
        bed.device.write_at(&data, run.physical * BLOCK, uext4_blockdev::WriteDurability::Cached).unwrap();
    }
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    if state == State::Unwritten {
        assert_eq!(read(&bed, &mut queue, slot, 0, BLOCKS), vec![0; BLOCKS as usize]);
    }
    (bed, queue, slot)
}

/// What a read of some blocks finds in each of them, by the queue and by this thread.
fn read(bed: &Bed, queue: &mut IoQueue<OneFile>, slot: FileSlot, first: u64, blocks: u64) -> Vec<u8> {
    let length = (blocks * BLOCK) as usize;
    queue.read(slot, first * BLOCK, memory(length, 99), 1).unwrap();
    let queued = queue.wait(1).unwrap().next().unwrap().into_buffer().unwrap();
    let mut own = memory(length, 98);
    bed.engine.read_at(&bed.file(Switches::ON), &mut own, first * BLOCK).unwrap();
    let bytes = |buffer: &[u8]| -> Vec<u8> {
        buffer
            .chunks(BLOCK as usize)
            .map(|block| {
                assert!(block.iter().all(|&byte| byte == block[0]));
                block[0]
            })
            .collect()
    };
    assert_eq!(bytes(&queued), bytes(&own));
    bytes(&own)
}

fn convert(bed: &Bed, blocks: &[std::ops::Range<u64>]) {
    let mut map = bed.inode.state.map.lock();
    bed.inode.state.converted(&mut map, 7, blocks).unwrap();
}

/// The snapshot of the queue says unwritten. Zeros would be another file's view of what was acknowledged.
#[test]
fn a_converted_block_is_read_at_once() {
    let (bed, mut queue, slot) = bed(State::Unwritten);
    let mut expected = vec![0; BLOCKS as usize];
    let generation = bed.inode.state.map.generation();
    for block in (0..BLOCKS).map(|n| n * 27 % BLOCKS) {
        convert(&bed, &[block..block + 1]);
        expected[block as usize] = block as u8 + 1;
        // A block alone, by the short path; among others, by the general one.
        assert_eq!(read(&bed, &mut queue, slot, block, 1), [block as u8 + 1]);
        assert_eq!(read(&bed, &mut queue, slot, 0, BLOCKS), expected);
    }
    assert_eq!(bed.inode.state.map.generation(), generation, "nothing ended");
    assert!(bed.count(Counter::SimpleReads) >= 2 * BLOCKS, "what is written is read the short way");
}

/// The same for the route of a write.
#[test]
fn a_converted_block_is_overwritten_at_once() {
    let (bed, mut queue, slot) = bed(State::Unwritten);
    let file = bed.file(Switches::ON);
    for block in (0..BLOCKS).map(|n| n * 27 % BLOCKS) {
        let pos = block * BLOCK;
        let refused = bed.engine.write_at(&file, &memory(4096, 1), pos, WriteFlags::empty()).unwrap_err();
        assert!(matches!(refused, Error::NeedsAllocation { unwritten: BLOCK, .. }));
        queue.write(slot, pos, memory(4096, 1), WriteFlags::empty(), 1).unwrap_err();
        convert(&bed, &[block..block + 1]);
        queue.write(slot, pos, memory(4096, 200), WriteFlags::empty(), 1).unwrap();
        assert_eq!(outcome(&mut queue), Ok(4096));
        assert_eq!(read(&bed, &mut queue, slot, block, 1), [200]);
        bed.engine.write_at(&file, &memory(4096, 201), pos, WriteFlags::empty()).unwrap();
        assert_eq!(read(&bed, &mut queue, slot, block, 1), [201]);
    }
}

/// A hole that was given blocks, and an unknown one that somebody else loaded.
#[test]
fn holes_and_unknown_blocks_are_looked_up_again() {
    let (bed, mut queue, slot) = bed(State::Hole);
    assert_eq!(read(&bed, &mut queue, slot, 0, 8), [0; 8]);
    let refused =
        |queue: &mut IoQueue<OneFile>| queue.write(slot, 0, memory(4096, 1), WriteFlags::empty(), 1);
    assert!(matches!(refused(&mut queue), Err(Error::NeedsAllocation { hole: BLOCK, .. })));
    bed.inode.allocate();
    assert!(matches!(refused(&mut queue), Err(Error::NeedsAllocation { unwritten: BLOCK, .. })));
    bed.inode.convert();
    assert_eq!(read(&bed, &mut queue, slot, 0, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    // Forgotten, and loaded by another thread: the queue knows.
    bed.inode.forget();
    let loads = bed.count(Counter::MapLoads);
    bed.inode.state.map.lock().add(0, BLOCKS, &bed.inode.runs.lock()).unwrap();
    assert_eq!(read(&bed, &mut queue, slot, 0, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bed.count(Counter::MapLoads), loads, "it was there");
}

/// Loading a map may read the device, which is waiting.
#[test]
fn nowait_loads_no_map() {
    let (bed, ..) = bed(State::Written);
    let file = bed.file(Switches::ON);
    bed.inode.forget();
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    for length in [BLOCK, 2 * BLOCK] {
        let data = || memory(length as usize, 7);
        let refused = bed.engine.write_at(&file, &data(), 0, WriteFlags::NOWAIT);
        assert_eq!(refused, Err(Error::WouldBlock));
        assert_eq!(queue.write(slot, 0, data(), WriteFlags::NOWAIT, 1), Err(Error::WouldBlock));
    }
    assert_eq!(bed.count(Counter::MapLoads), 0);
    assert_eq!(read(&bed, &mut queue, slot, 0, 2), [1, 2], "nothing was sent");
    // Now it is known.
    for blocks in [1, 2] {
        let data = || memory((blocks * BLOCK) as usize, 7 + blocks as u8);
        assert_eq!(bed.engine.write_at(&file, &data(), 0, WriteFlags::NOWAIT), Ok(data().len()));
        queue.write(slot, 0, data(), WriteFlags::NOWAIT, 1).unwrap();
        assert_eq!(outcome(&mut queue), Ok(data().len()));
    }
}

/// What is kept of written blocks counts until they go, and not a request longer.
#[test]
fn only_an_end_ends_what_is_kept() {
    let (bed, mut queue, slot) = bed(State::Unwritten);
    bed.inode.convert();
    assert_eq!(read(&bed, &mut queue, slot, 4, 2), [5, 6]);
    let state = &bed.inode.state;
    let punched: Vec<Run> = bed.inode.runs.lock().iter().filter(|run| run.first != 4).copied().collect();
    let generation = state.map.generation();
    bed.inode.forget();
    assert_eq!(state.map.generation(), generation, "memory only");
    // By somebody who shares the gate, or holds another one: refused, and nothing is published.
    let other = uext4_iomap::InodeState::new(0, 12, Default::default());
    {
        let shared = state.gate.lock_shared(true, &mut || ());
        let refused = state.end(&shared, &mut state.map.lock(), 0, BLOCKS, Some(&punched));
        assert_eq!(refused, Err(Error::NotExclusive));
        let alone = other.gate.lock_exclusive(true, &mut || ());
        let refused = state.end(&alone, &mut state.map.lock(), 0, BLOCKS, Some(&punched));
        assert_eq!(refused, Err(Error::NotExclusive));
    }
    assert_eq!((state.map.generation(), read(&bed, &mut queue, slot, 4, 1)), (generation, vec![5]));
    let alone = state.gate.lock_exclusive(true, &mut || ());
    state.end(&alone, &mut state.map.lock(), 0, BLOCKS, Some(&punched)).unwrap();
    drop(alone);
    *bed.inode.runs.lock() = punched;
    assert_ne!(state.map.generation(), generation);
    assert_eq!(read(&bed, &mut queue, slot, 4, 2), [0, 6]);
    // Without a look at the map in between.
    let (bed, mut queue, slot) = self::bed(State::Written);
    assert_eq!(read(&bed, &mut queue, slot, 9, 1), [10]);
    bed.inode.publish(State::Unwritten);
    assert_eq!(read(&bed, &mut queue, slot, 9, 1), [0]);
}

/// A queue that comes while the owner of the gate takes written blocks away waits for it, and must not keep what it saw
/// of the map before.
#[test]
fn who_attaches_during_an_end_keeps_nothing_of_before() {
    let bed = Bed::new(device(), BLOCKS, 1, State::Written);
    let state = &bed.inode.state;
    bed.device.write_at(&memory(4096, 77), 16 * BLOCK, uext4_blockdev::WriteDurability::Cached).unwrap();
    std::thread::scope(|scope| {
        let alone = state.gate.lock_exclusive(true, &mut || ());
        let reader = scope.spawn(|| {
            let (mut queue, slot) = bed.queue(8, Switches::ON);
            queue.read(slot, 0, memory(4096, 99), 1).unwrap();
            queue.wait(1).unwrap().next().unwrap().into_buffer().unwrap()[0]
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!reader.is_finished());
        bed.inode.runs.lock().clear();
        state.end(&alone, &mut state.map.lock(), 0, BLOCKS, Some(&[])).unwrap();
        drop(alone);
        assert_eq!(reader.join().unwrap(), 0, "read a block that was freed");
    });
}

/// The ways that add refuse to take away, whatever a file system asks.
#[test]
fn adding_ends_no_answer() {
    let cell = MapCell::new();
    let run = |first, length, state, physical| Run { first, length, state, physical };
    cell.lock().add(0, 10, &[run(0, 4, State::Written, 100), run(4, 4, State::Unwritten, 104)]).unwrap();
    let before = (cell.runs(), cell.generation());
    let mut map = cell.lock();
    for (runs, block) in [
        (vec![run(0, 4, State::Unwritten, 100)], 0),
        (vec![run(0, 4, State::Written, 101)], 0),
        (vec![run(0, 2, State::Written, 100), run(2, 2, State::Written, 200)], 0),
        (vec![], 0),
    ] {
        assert_eq!(map.add(0, 10, &runs), Err(Error::MapConflict(block)), "{runs:?}");
    }
    assert_eq!(map.converted_unchecked(&[4..5, 7..9]), Err(Error::MapConflict(8)), "a hole holds no data");
    drop(map);
    assert_eq!((cell.runs(), cell.generation()), before);
    // What is already known of written blocks, and more beside.
    let more = [run(0, 9, State::Written, 100)];
    cell.lock().add(0, 10, &more).unwrap();
    assert_eq!(cell.runs(), [more[0], run(9, 1, State::Hole, 0)]);
    assert_eq!(cell.generation(), before.1);
}

/// Conversions that nobody makes any more do not keep later reads beside the snapshot for ever, and changes that come
/// one by one do not pile up.
#[test]
fn what_is_recent_goes_into_the_snapshot() {
    let bed = Bed::new(device(), BLOCKS, 1, State::Unwritten);
    let map = &bed.inode.state.map;
    let bytes = || map.lock().resident_bytes();
    let (before, many) = (bytes(), 100_000);
    convert(&bed, &[0..1]);
    assert!(bytes() > before, "beside the snapshot");
    let noted = bytes();
    for _ in 0..16 {
        map.find(0);
    }
    assert!(bytes() < noted, "in the snapshot after some looks");
    for n in 0..many {
        map.lock().end_unchecked(
            1,
            2,
            Some(&[Run { first: 1, length: 1, state: State::Unwritten, physical: n }]),
        );
        convert(&bed, &[1..2]);
    }
    assert!(bytes() < 2 * noted, "{} bytes", bytes());
}
