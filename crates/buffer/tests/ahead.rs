//! Reading ahead: one request for many blocks, and never around what is in memory.

use crate::common;

use common::{BLOCK, Disk};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use uext4_buffer::{BufferCache, BufferPin, BufferState, CacheOptions, Owner, READ_AHEAD_BYTES};

fn cache_of(disk: &Arc<Disk>, budget_blocks: u64) -> BufferCache {
    let options = CacheOptions { budget_bytes: budget_blocks * u64::from(BLOCK), ..CacheOptions::new(BLOCK) };
    BufferCache::new(disk.clone(), &options).unwrap()
}

fn blocks(pins: &[BufferPin]) -> Vec<u64> {
    pins.iter().map(BufferPin::block).collect()
}

#[test]
fn a_run_is_one_request_and_later_reads_are_hits() {
    let disk = Arc::new(Disk::new(64));
    let cache = cache_of(&disk, 64);
    let pins = cache.read_ahead(10, 20);
    assert_eq!(blocks(&pins), (10..30).collect::<Vec<_>>());
    assert_eq!(disk.reads.load(SeqCst), 1);
    for block in 10..30 {
        let buffer = cache.read(block).unwrap();
        assert_eq!(buffer[..], [block as u8; BLOCK as usize]);
        assert!(!buffer.is_verified(), "whoever reads it verifies it");
    }
    assert_eq!(disk.reads.load(SeqCst), 1);
}

#[test]
fn what_is_in_memory_stays_as_it_is() {
    let disk = Arc::new(Disk::new(64));
    let cache = cache_of(&disk, 64);
    let buffer = cache.read(12).unwrap();
    cache.modify(buffer.pin(), Owner::Direct, |bytes| bytes.fill(0xee)).unwrap();
    disk.set_block(13, 0x77);
    let pins = cache.read_ahead(10, 5);
    assert_eq!(pins.len(), 5);
    assert_eq!(cache.read(12).unwrap()[0], 0xee, "a change is not lost");
    assert_eq!(cache.state(12), Some(BufferState::Dirty));
    assert_eq!(cache.read(13).unwrap()[0], 0x77);
    let reads = disk.reads.load(SeqCst);
    assert_eq!(cache.read_ahead(10, 5).len(), 5);
    assert_eq!(disk.reads.load(SeqCst), reads, "nothing to read, no request");
}

#[test]
fn a_bad_block_costs_only_itself() {
    let disk = Arc::new(Disk::new(64));
    let cache = cache_of(&disk, 64);
    // The run fails as a whole, then block 9 by itself.
    disk.bad_reads.lock().extend([8 * u64::from(BLOCK), 9 * u64::from(BLOCK)]);
    let pins = cache.read_ahead(8, 4);
    assert_eq!(blocks(&pins), [10, 11]);
    assert!(cache.read(9).is_err());
    disk.bad_reads.lock().clear();
    assert_eq!(cache.read(9).unwrap()[0], 9);
    drop(pins);
    assert_eq!(cache.stats().pinned_blocks, 0);
}

#[test]
fn bounds() {
    let disk = Arc::new(Disk::new(600));
    let cache = cache_of(&disk, 8);
    assert!(cache.read_ahead(600, 1).is_empty());
    assert!(cache.read_ahead(u64::MAX, u32::MAX).is_empty());
    assert!(cache.read_ahead(5, 0).is_empty());
    assert_eq!(blocks(&cache.read_ahead(598, 10)), [598, 599]);
    let most = READ_AHEAD_BYTES / BLOCK;
    let pins = cache.read_ahead(0, u32::MAX);
    assert_eq!(pins.len(), most as usize, "one request is bounded");
    drop(pins);
    drop(cache.read(599).unwrap());
    assert!(cache.stats().resident_bytes <= 8 * u64::from(BLOCK), "the budget holds once the pins are gone");
    let coarse = Arc::new(Disk::with_geometry(64, 4096, 512));
    assert!(cache_of(&coarse, 8).read_ahead(0, 8).is_empty(), "device blocks larger than ours");
}

#[test]
fn a_reader_waits_for_the_run_instead_of_asking_again() {
    let disk = Arc::new(Disk::new(64));
    let cache = cache_of(&disk, 64);
    disk.close_gate();
    thread::scope(|scope| {
        let ahead = scope.spawn(|| cache.read_ahead(0, 16).len());
        disk.await_at_gate(1);
        let reader = scope.spawn(|| cache.read(7).unwrap()[0]);
        while cache.stats().waits == 0 {
            thread::yield_now();
        }
        disk.open_gate();
        assert_eq!((ahead.join().unwrap(), reader.join().unwrap()), (16, 7));
    });
    assert_eq!(disk.reads.load(SeqCst), 1);
}

#[test]
fn a_panic_below_leaves_no_block_waiting() {
    let disk = Arc::new(Disk::new(64));
    let cache = cache_of(&disk, 64);
    disk.panic_reads.store(true, SeqCst);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cache.read_ahead(0, 4))).is_err());
    disk.panic_reads.store(false, SeqCst);
    assert_eq!(cache.read(2).unwrap()[0], 2);
}
