//! Reading, verification, budget and errors of the cache.

use crate::common;

use common::{BLOCK, Disk};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use uext4_buffer::{BufferCache, BufferState, CacheOptions, Error, Owner, Tid};

fn cache_of(disk: &Arc<Disk>, budget_blocks: u64) -> BufferCache {
    let options = CacheOptions { budget_bytes: budget_blocks * u64::from(BLOCK), ..CacheOptions::new(BLOCK) };
    BufferCache::new(disk.clone(), &options).unwrap()
}

#[derive(Debug, PartialEq, Clone)]
enum Fault {
    Cache(Error),
    Refused(u8),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Cache(error)
    }
}

#[test]
fn reads_once_and_hits_afterwards() {
    let disk = Arc::new(Disk::new(8));
    let cache = cache_of(&disk, 8);
    let first = cache.read(5).unwrap();
    assert_eq!(first[..], [5; BLOCK as usize]);
    assert!(!first.is_verified());
    assert_eq!(cache.read(5).unwrap().block(), 5);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, disk.reads.load(SeqCst)), (1, 1, 1));
    assert_eq!((stats.resident_bytes, stats.pinned_blocks), (1024, 1));
    assert_eq!(cache.state(5), Some(BufferState::Clean));
    assert_eq!(cache.state(6), None);
}

#[test]
fn last_block_reads_and_the_one_after_is_out_of_range() {
    let cache = cache_of(&Arc::new(Disk::new(8)), 8);
    assert_eq!(cache.read(7).unwrap()[0], 7);
    for block in [8, u64::MAX / 1024, u64::MAX] {
        let error = Error::OutOfRange { block, blocks: 8 };
        assert_eq!(cache.read(block).unwrap_err(), error);
        assert_eq!(cache.pin(block).unwrap_err(), error);
        assert_eq!(cache.forget(block).unwrap_err(), error);
    }
}

#[test]
fn options_are_checked() {
    let disk = Arc::new(Disk::new(8));
    let option = |options: CacheOptions| match BufferCache::new(disk.clone(), &options) {
        Err(Error::BadOption { option, .. }) => option,
        other => panic!("accepted: {other:?}"),
    };
    assert_eq!(option(CacheOptions::new(512)), "block_size");
    assert_eq!(option(CacheOptions::new(3072)), "block_size");
    assert_eq!(option(CacheOptions::new(131_072)), "block_size");
    assert_eq!(option(CacheOptions { blocks: 9, ..CacheOptions::new(1024) }), "blocks");
    assert_eq!(option(CacheOptions { budget_bytes: 1023, ..CacheOptions::new(1024) }), "budget_bytes");
    let cache =
        BufferCache::new(disk.clone(), &CacheOptions { blocks: 3, ..CacheOptions::new(1024) }).unwrap();
    assert_eq!(cache.read(3).unwrap_err(), Error::OutOfRange { block: 3, blocks: 3 });
}

#[test]
fn blocks_larger_than_sectors_and_device_blocks_larger_than_blocks() {
    let large = BufferCache::new(Arc::new(Disk::new(64)), &CacheOptions::new(65536)).unwrap();
    assert_eq!(large.blocks(), 1);
    let bytes = large.read(0).unwrap();
    assert!((0..64).all(|kib| bytes[kib * 1024] == kib as u8));

    let disk = Arc::new(Disk::with_geometry(8, 4096, 4096));
    let cache = cache_of(&disk, 8);
    for block in (0..8).rev() {
        assert_eq!(cache.read(block).unwrap()[..], [block as u8; BLOCK as usize]);
    }
    let pin = cache.pin(1).unwrap();
    let refused = Error::SubBlockWrite { block_size: 1024, logical_block: 4096 };
    assert_eq!(cache.modify(&pin, Owner::Direct, |_| ()).unwrap_err(), refused);
    assert_eq!(cache.overwrite(&pin, Owner::Direct, |_| ()).unwrap_err(), refused);
    assert_eq!(cache.join(&pin, Tid(1)).unwrap_err(), refused);
}

#[test]
fn verifier_runs_once_per_load() {
    let disk = Arc::new(Disk::new(8));
    let cache = cache_of(&disk, 8);
    let runs = AtomicU64::new(0);
    let verify = |bytes: &[u8]| {
        runs.fetch_add(1, SeqCst);
        if bytes[0] == 3 { Ok(()) } else { Err(Fault::Refused(bytes[0])) }
    };
    cache.read(3).unwrap();
    for _ in 0..3 {
        assert!(cache.get_or_verify(3, verify).unwrap().is_verified());
    }
    assert!(cache.read(3).unwrap().is_verified());
    assert_eq!((runs.load(SeqCst), cache.stats().verifications), (1, 1));
    cache.forget(3).unwrap();
    cache.get_or_verify(3, verify).unwrap();
    assert_eq!(runs.load(SeqCst), 2, "a reload is verified again");
    assert_eq!(disk.reads.load(SeqCst), 2);
}

#[test]
fn refused_contents_are_dropped_and_read_again() {
    let disk = Arc::new(Disk::new(8));
    let cache = cache_of(&disk, 8);
    let verify = |bytes: &[u8]| {
        if bytes[0] == 99 { Ok(()) } else { Err(Fault::Refused(bytes[0])) }
    };
    let held = cache.read(4).unwrap();
    assert_eq!(cache.get_or_verify(4, verify).unwrap_err(), Fault::Refused(4));
    disk.set_block(4, 99);
    assert_eq!(cache.get_or_verify(4, verify).unwrap()[0], 99);
    assert_eq!(held[0], 4, "a snapshot outlives the drop");
    assert_eq!(cache.get_or_verify(5, verify).unwrap_err(), Fault::Refused(5));
    assert_eq!(cache.state(5), None, "an unpinned refused block leaves the cache");
}

#[test]
fn panicking_verifier_settles_the_block() {
    let cache = cache_of(&Arc::new(Disk::new(8)), 8);
    let other = cache.clone();
    let panicked =
        thread::spawn(move || other.get_or_verify::<Fault>(1, |_| panic!("a verifier that panics"))).join();
    assert!(panicked.is_err());
    assert!(cache.get_or_verify::<Fault>(1, |_| Ok(())).unwrap().is_verified());
}

#[test]
fn concurrent_readers_share_one_load() {
    let disk = Arc::new(Disk::new(8));
    let cache = cache_of(&disk, 8);
    let runs = AtomicU64::new(0);
    disk.close_gate();
    thread::scope(|scope| {
        let readers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    cache.get_or_verify::<Fault>(2, |_| {
                        runs.fetch_add(1, SeqCst);
                        Ok(())
                    })
                })
            })
            .collect();
        disk.await_at_gate(1);
        while cache.stats().waits < 7 {
            thread::yield_now();
        }
        disk.open_gate();
        for reader in readers {
            assert_eq!(reader.join().unwrap().unwrap()[0], 2);
        }
    });
    assert_eq!((disk.reads.load(SeqCst), runs.load(SeqCst)), (1, 1));
    assert_eq!(cache.stats().misses, 1);
}

#[test]
fn failed_load_reaches_every_waiter_and_is_not_cached() {
    let disk = Arc::new(Disk::new(8));
    let cache = cache_of(&disk, 8);
    disk.bad_reads.lock().insert(2048);
    disk.close_gate();
    let errors: Vec<Error> = thread::scope(|scope| {
        let readers: Vec<_> = (0..4).map(|_| scope.spawn(|| cache.read(2).unwrap_err())).collect();
        disk.await_at_gate(1);
        while cache.stats().waits < 3 {
            thread::yield_now();
        }
        disk.open_gate();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect()
    });
    assert_eq!(disk.reads.load(SeqCst), 1, "one failed read served all four");
    assert!(
        errors
            .iter()
            .all(|error| matches!(error, Error::Device { block: 2, .. }) && error.errno() == libc::EIO)
    );
    assert_eq!((cache.state(2), cache.stats().resident_bytes), (None, 0));
    assert_eq!(cache.stats().load_errors, 1);
    disk.bad_reads.lock().clear();
    assert_eq!(cache.read(2).unwrap()[0], 2);
}

#[test]
fn panicking_load_fails_its_waiters() {
    let disk = Arc::new(Disk::new(8));
    let cache = cache_of(&disk, 8);
    disk.panic_reads.store(true, SeqCst);
    disk.close_gate();
    let outcomes: Vec<_> = thread::scope(|scope| {
        let readers: Vec<_> = (0..2).map(|_| scope.spawn(|| cache.read(6).map(|_| ()))).collect();
        disk.await_at_gate(1);
        while cache.stats().waits < 1 {
            thread::yield_now();
        }
        disk.open_gate();
        readers.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_err()).count(), 1, "only the loader panicked");
    let waiter = outcomes.into_iter().find_map(Result::ok).unwrap();
    assert_eq!(waiter.unwrap_err(), Error::LoadInterrupted { block: 6 });
    disk.panic_reads.store(false, SeqCst);
    assert_eq!(cache.read(6).unwrap()[0], 6);
}

#[test]
fn budget_holds_and_pins_are_spared() {
    let disk = Arc::new(Disk::new(256));
    let cache = cache_of(&disk, 16);
    let pinned: Vec<_> = (0..4).map(|block| cache.read(block).unwrap()).collect();
    for block in 4..256 {
        cache.read(block).unwrap();
        assert!(cache.stats().resident_bytes <= 16 * 1024);
    }
    let stats = cache.stats();
    assert_eq!((stats.resident_bytes, stats.evictions), (16 * 1024, 240));
    let reads = disk.reads.load(SeqCst);
    for (block, held) in pinned.iter().enumerate() {
        assert_eq!(held[0], block as u8);
        cache.read(block as u64).unwrap();
    }
    assert_eq!(disk.reads.load(SeqCst), reads, "pinned blocks were never evicted");
}

#[test]
fn many_shards_stay_within_the_budget() {
    let disk = Arc::new(Disk::new(4096));
    let cache = cache_of(&disk, 1024);
    for block in 0..4096 {
        cache.read(block).unwrap();
    }
    let resident = cache.stats().resident_bytes / 1024;
    assert!((768..=1024).contains(&resident), "{resident} of 1024 blocks used: budget kept and not wasted");
}

#[test]
fn budget_shrinks_on_demand_and_overflow_recedes() {
    let disk = Arc::new(Disk::new(64));
    let cache = cache_of(&disk, 4);
    let pinned: Vec<_> = (0..10).map(|block| cache.read(block).unwrap()).collect();
    assert_eq!(cache.stats().resident_bytes, 10 * 1024, "pins may exceed the budget");
    drop(pinned);
    cache.read(20).unwrap();
    assert_eq!(cache.stats().resident_bytes, 4 * 1024);
    cache.set_budget(2048).unwrap();
    assert_eq!(cache.stats().resident_bytes, 2 * 1024);
    assert!(matches!(cache.set_budget(100), Err(Error::BadOption { option: "budget_bytes", .. })));
}

#[test]
fn storm_of_readers_and_writers_sees_whole_blocks() {
    let disk = Arc::new(Disk::new(64));
    let cache = cache_of(&disk, 16);
    thread::scope(|scope| {
        for seed in 0..8u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut random = seed.wrapping_mul(0x2545_F491_4F6C_DD1D) | 1;
                for _ in 0..4000 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let block = random >> 32 & 63;
                    match random & 15 {
                        0 | 1 => {
                            let pin = cache.pin(block).unwrap();
                            let byte = (random >> 16) as u8;
                            cache.modify(&pin, Owner::Direct, |bytes| bytes.fill(byte)).unwrap();
                        }
                        2 => drop(cache.write_back().unwrap()),
                        3 => {
                            let bytes = cache
                                .get_or_verify::<Fault>(block, |bytes| whole(bytes).map_err(Fault::Refused))
                                .unwrap();
                            whole(&bytes).unwrap();
                        }
                        _ => whole(&cache.read(block).unwrap()).unwrap(),
                    }
                }
            });
        }
    });
    cache.sync().unwrap();
    assert_eq!(cache.stats().dirty_bytes, 0);
    for block in 0..64 {
        assert_eq!(disk.block(block), cache.read(block).unwrap()[..]);
    }
    let stats = cache.stats();
    assert!(stats.evictions > 0 && stats.pinned_blocks == 0, "{stats:?}");
}

fn whole(bytes: &[u8]) -> Result<(), u8> {
    if bytes.iter().all(|byte| *byte == bytes[0]) { Ok(()) } else { Err(bytes[0]) }
}

/// A block whose soundness depends on who asks.
#[test]
fn contents_are_sound_for_whom_they_were_verified() {
    let cache = cache_of(&Arc::new(Disk::new(8)), 8);
    let asked = std::cell::Cell::new(0);
    let get = |whom, verdict: Result<(), Fault>| {
        asked.set(0);
        let got = cache.get_or_verify_for(3, whom, |bytes| {
            assert_eq!(bytes.len(), BLOCK as usize);
            asked.set(1);
            verdict
        });
        (got.map(|seen| seen[0]), asked.get())
    };
    let refused = || Err(Fault::Refused(9));
    assert_eq!(get(7, refused()), (Err(Fault::Refused(9)), 1));
    assert_eq!(get(7, Ok(())), (Ok(3), 1));
    assert_eq!(get(7, refused()), (Ok(3), 0), "verified before");
    assert_eq!(get(8, Ok(())), (Ok(3), 1), "for another one");
    assert_eq!(get(7, Ok(())), (Ok(3), 1), "one at a time");
    let pin = cache.pin(3).unwrap();
    cache.modify_for(&pin, Owner::Direct, 7, |bytes| bytes[0] = 4).unwrap();
    assert_eq!(get(7, refused()), (Ok(4), 0), "still sound");
    assert_eq!(get(8, Ok(())), (Ok(4), 1));
    cache.modify(&pin, Owner::Direct, |bytes| bytes[0] = 5).unwrap();
    assert_eq!(get(8, Ok(())), (Ok(5), 1), "changed by somebody else");
    cache.overwrite(&pin, Owner::Direct, |bytes| bytes[0] = 6).unwrap();
    assert_eq!(get(8, refused()), (Err(Fault::Refused(9)), 1), "other contents");
    assert_eq!(get(8, Ok(())), (Ok(6), 1));
    cache.write_back().unwrap();
    cache.forget(3).unwrap();
    assert_eq!(get(8, Ok(())), (Ok(6), 1), "read again");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        cache.modify_for(&cache.pin(3).unwrap(), Owner::Direct, 8, |_| panic!("halfway"))
    }));
    assert!(panicked.is_err());
    assert_eq!(get(8, Ok(())), (Ok(6), 1), "a change that did not end");
}
