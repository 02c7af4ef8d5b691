//! Home writes of committed blocks: which transaction they are due for, and neighbours in one request.

use crate::common;

use common::{BLOCK, Disk};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use uext4_buffer::{BufferCache, BufferPin, BufferState, CacheOptions, Error, Owner, Tid};

fn setup() -> (Arc<Disk>, BufferCache) {
    let disk = Arc::new(Disk::new(600));
    let cache = BufferCache::new(disk.clone(), &CacheOptions::new(BLOCK)).unwrap();
    (disk, cache)
}

fn change(cache: &BufferCache, block: u64, tid: Tid, byte: u8) -> BufferPin {
    let pin = cache.pin(block).unwrap();
    cache.join(&pin, tid).unwrap();
    cache.overwrite(&pin, Owner::Transaction(tid), |bytes| bytes.fill(byte)).unwrap();
    pin
}

fn commit(cache: &BufferCache, blocks: impl IntoIterator<Item = u64>, tid: Tid, byte: u8) -> Vec<BufferPin> {
    let committed = |block| {
        let pin = change(cache, block, tid, byte);
        cache.freeze(&pin, tid).unwrap();
        cache.committed(&pin, tid).unwrap();
        pin
    };
    blocks.into_iter().map(committed).collect()
}

#[test]
fn neighbours_go_home_in_one_request() {
    let (disk, cache) = setup();
    let pins = commit(&cache, [3, 4, 5, 9, 10], Tid(1), 7);
    assert_eq!(cache.write_committed(&pins, Tid(1)).unwrap(), 5);
    assert_eq!(disk.writes.load(SeqCst), 2);
    assert!([3, 4, 5, 9, 10].iter().all(|block| disk.block(*block) == [7; BLOCK as usize]));
    assert_eq!(cache.stats().writes, 5);
    let pins = commit(&cache, 0..600, Tid(2), 8);
    assert_eq!(cache.write_committed(&pins, Tid(2)).unwrap(), 600);
    assert_eq!(disk.writes.load(SeqCst), 2 + 3, "256 blocks fit one request");
    assert!((0..600).all(|block| disk.block(block) == [8; BLOCK as usize]));
}

/// Blocks of the large disk that are written: none beside another.
fn scattered() -> impl Iterator<Item = u64> {
    (0..1200).map(|number| 2 * number)
}

fn large() -> (Arc<Disk>, BufferCache) {
    let disk = Arc::new(Disk::new(2400));
    let cache = BufferCache::new(disk.clone(), &CacheOptions::new(BLOCK)).unwrap();
    (disk, cache)
}

#[test]
fn many_blocks_go_home_beside_each_other() {
    let (disk, cache) = large();
    let pins = commit(&cache, scattered(), Tid(1), 7);
    disk.close_gate();
    thread::scope(|scope| {
        let writer = scope.spawn(|| cache.write_committed(&pins, Tid(1)).unwrap());
        // Of 512, 512 and 176 blocks; each thread waits for the device before it goes on.
        disk.await_at_gate(3);
        disk.open_gate();
        assert_eq!(writer.join().unwrap(), 1200);
    });
    assert_eq!(disk.writes.load(SeqCst), 1200);
    assert!(scattered().all(|block| disk.block(block) == [7; BLOCK as usize]));
    assert_eq!(cache.write_committed(&pins, Tid(1)).unwrap(), 0);
}

#[test]
fn a_write_that_fails_beside_others_is_due_again() {
    let (disk, cache) = large();
    let pins = commit(&cache, scattered(), Tid(1), 7);
    disk.bad_writes.lock().insert(2398 * u64::from(BLOCK));
    let error = cache.write_committed(&pins, Tid(1)).unwrap_err();
    assert!(matches!(error, Error::Device { block: 2398, .. }), "{error}");
    disk.bad_writes.lock().clear();
    assert_eq!(cache.write_committed(&pins, Tid(1)).unwrap(), 1, "the last block of the last part");
    assert_eq!(disk.block(2398)[0], 7);
}

#[test]
fn a_block_is_left_to_the_youngest_transaction_that_committed_it() {
    let (disk, cache) = setup();
    let old = commit(&cache, [3, 4], Tid(1), 10);
    commit(&cache, [4], Tid(2), 20);
    // A change that is not committed takes nothing off the list.
    change(&cache, 3, Tid(3), 30);
    assert_eq!(cache.write_committed(&old, Tid(1)).unwrap(), 1);
    assert_eq!((disk.block(3)[0], disk.block(4)[0]), (10, 4));
    assert_eq!(cache.write_committed(&old, Tid(2)).unwrap(), 1);
    assert_eq!((disk.block(4)[0], cache.state(4)), (20, Some(BufferState::Clean)));
    assert_eq!(cache.write_committed(&old, Tid(9)).unwrap(), 0, "nothing uncommitted goes home");
}

#[test]
fn a_direct_change_takes_the_place_of_the_copy_in_the_log() {
    let (disk, cache) = setup();
    let pins = commit(&cache, [3], Tid(1), 10);
    cache.modify(&pins[0], Owner::Direct, |bytes| bytes.fill(11)).unwrap();
    assert_eq!(cache.write_committed(&pins, Tid(1)).unwrap(), 1);
    assert_eq!(disk.block(3)[0], 11);
}

#[test]
fn a_failed_home_write_is_due_for_the_same_transaction() {
    let (disk, cache) = setup();
    let pins = commit(&cache, [3, 4], Tid(5), 10);
    disk.bad_writes.lock().insert(3 * u64::from(BLOCK));
    assert!(matches!(cache.write_committed(&pins, Tid(5)), Err(Error::Device { block: 3, .. })));
    disk.bad_writes.lock().clear();
    assert_eq!(cache.write_committed(&pins, Tid(4)).unwrap(), 0);
    assert_eq!(cache.write_committed(&pins, Tid(5)).unwrap(), 2, "all of the request is due again");
    assert_eq!((disk.block(3)[0], disk.block(4)[0]), (10, 10));
}

#[test]
fn home_writes_of_others_are_waited_for() {
    let (disk, cache) = setup();
    let pins = commit(&cache, [3, 4], Tid(1), 10);
    disk.close_gate();
    thread::scope(|scope| {
        let first = scope.spawn(|| cache.write_back().unwrap());
        disk.await_at_gate(1);
        let second = scope.spawn(|| cache.write_committed(&pins, Tid(1)).unwrap());
        for _ in 0..1000 {
            thread::yield_now();
        }
        let early = second.is_finished();
        disk.open_gate();
        assert!(!early);
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (2, 0));
    });
}

#[test]
fn a_freed_block_loses_its_home_write_when_the_freeing_transaction_is_committed() {
    let (disk, cache) = setup();
    let pins = commit(&cache, [3, 4, 5], Tid(1), 10);
    // One was changed before it was freed, one was not.
    change(&cache, 3, Tid(2), 20);
    cache.join(&pins[1], Tid(2)).unwrap();
    cache.abandon(&pins[0], Tid(2)).unwrap();
    cache.abandon(&pins[1], Tid(2)).unwrap();
    assert!(matches!(cache.abandon(&pins[2], Tid(2)), Err(Error::NotOwner { block: 5, .. })));
    assert_eq!(cache.state(3), Some(BufferState::Dirty), "the older copy is needed until the commit");
    for block in [3, 4] {
        cache.forget_freed(block).unwrap();
    }
    assert_eq!(cache.write_committed(&pins, Tid(1)).unwrap(), 1);
    assert_eq!((disk.block(3)[0], disk.block(4)[0], disk.block(5)[0]), (3, 4, 10));
    assert_eq!(cache.read(3).unwrap()[0], 3);
}

#[test]
fn what_a_younger_transaction_made_of_a_freed_block_stays() {
    let (disk, cache) = setup();
    let pins = commit(&cache, [3], Tid(1), 10);
    let pin = change(&cache, 3, Tid(3), 30);
    cache.forget_freed(3).unwrap();
    assert_eq!(cache.write_committed(&pins, Tid(1)).unwrap(), 0);
    assert_eq!((disk.block(3)[0], cache.read(3).unwrap()[0]), (3, 30));
    assert_eq!(cache.freeze(&pin, Tid(3)).unwrap().unwrap()[0], 30);
    cache.forget_freed(599).unwrap();
    assert!(matches!(cache.forget_freed(600), Err(Error::OutOfRange { .. })));
}
