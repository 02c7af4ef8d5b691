//! Changing blocks: direct, in transactions, frozen copies, home writes.

use crate::common;

use common::{BLOCK, Disk};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use uext4_buffer::{BufferCache, BufferState, CacheOptions, Error, Owner, Tid};

fn setup() -> (Arc<Disk>, BufferCache) {
    let disk = Arc::new(Disk::new(32));
    let options = CacheOptions { budget_bytes: 8 * u64::from(BLOCK), ..CacheOptions::new(BLOCK) };
    let cache = BufferCache::new(disk.clone(), &options).unwrap();
    (disk, cache)
}

fn fill(cache: &BufferCache, block: u64, owner: Owner, byte: u8) {
    let pin = cache.pin(block).unwrap();
    if let Owner::Transaction(tid) = owner {
        cache.join(&pin, tid).unwrap();
    }
    cache.modify(&pin, owner, |bytes| bytes.fill(byte)).unwrap();
}

#[test]
fn direct_change_is_dirty_until_written_back() {
    let (disk, cache) = setup();
    fill(&cache, 3, Owner::Direct, 77);
    assert_eq!((cache.state(3), cache.stats().dirty_bytes), (Some(BufferState::Dirty), 1024));
    assert_eq!(disk.block(3)[0], 3);
    for block in 4..32 {
        cache.read(block).unwrap();
    }
    assert_eq!(cache.read(3).unwrap()[0], 77, "a dirty block is never evicted");
    assert_eq!(cache.sync().unwrap(), 1);
    assert_eq!((disk.block(3)[0], disk.flushes.load(SeqCst)), (77, 1));
    assert_eq!(cache.state(3), Some(BufferState::Clean));
    assert_eq!(cache.sync().unwrap(), 0, "nothing is written twice");
}

#[test]
fn change_reads_first_and_overwrite_does_not() {
    let (disk, cache) = setup();
    let pin = cache.pin(9).unwrap();
    cache.modify(&pin, Owner::Direct, |bytes| bytes[0] = 200).unwrap();
    assert_eq!(cache.read(9).unwrap()[..3], [200, 9, 9]);
    assert_eq!(disk.reads.load(SeqCst), 1);
    let pin = cache.pin(10).unwrap();
    cache
        .overwrite(&pin, Owner::Direct, |bytes| {
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes[1] = 1;
        })
        .unwrap();
    assert_eq!(disk.reads.load(SeqCst), 1);
    let snapshot = cache.read(10).unwrap();
    assert_eq!((snapshot[0], snapshot[1], snapshot.is_verified()), (0, 1, true));
}

#[test]
fn snapshots_do_not_change() {
    let (_, cache) = setup();
    let before = cache.read(1).unwrap();
    cache.modify(before.pin(), Owner::Direct, |bytes| bytes.fill(50)).unwrap();
    let after = cache.read(1).unwrap();
    cache.modify(after.pin(), Owner::Direct, |bytes| bytes.fill(60)).unwrap();
    assert_eq!((before[0], after[0], cache.read(1).unwrap()[0]), (1, 50, 60));
}

#[test]
fn commit_keeps_its_frozen_image_while_the_next_transaction_changes_the_block() {
    let (disk, cache) = setup();
    let (old, new) = (Tid(u64::from(u32::MAX)), Tid(1 << 32));
    fill(&cache, 2, Owner::Transaction(old), 10);
    let pin = cache.pin(2).unwrap();
    let frozen = cache.freeze(&pin, old).unwrap().unwrap();
    assert_eq!(cache.state(2), Some(BufferState::Committing { tid: old }));
    fill(&cache, 2, Owner::Transaction(new), 20);
    let both = BufferState::InTransaction { tid: new, modified: true, frozen: Some(old) };
    assert_eq!(cache.state(2), Some(both));
    assert_eq!((frozen[0], cache.read(2).unwrap()[0]), (10, 20));
    assert_eq!(cache.write_back().unwrap(), 0, "nothing uncommitted goes home");
    assert_eq!(cache.freeze(&pin, new).unwrap_err(), Error::Busy { block: 2, tid: old });
    cache.committed(&pin, old).unwrap();
    assert_eq!(cache.write_back().unwrap(), 1);
    assert_eq!(disk.block(2)[0], 10, "the committed image went home, not the running one");
    assert_eq!(cache.freeze(&pin, new).unwrap().unwrap()[0], 20);
    cache.committed(&pin, new).unwrap();
    cache.write_back().unwrap();
    assert_eq!((disk.block(2)[0], cache.state(2)), (20, Some(BufferState::Clean)));
}

#[test]
fn committed_image_not_yet_home_survives_the_next_change() {
    let (disk, cache) = setup();
    let pin = cache.pin(2).unwrap();
    fill(&cache, 2, Owner::Transaction(Tid(1)), 10);
    cache.freeze(&pin, Tid(1)).unwrap();
    cache.committed(&pin, Tid(1)).unwrap();
    assert_eq!(cache.state(2), Some(BufferState::Dirty));
    fill(&cache, 2, Owner::Transaction(Tid(2)), 20);
    assert_eq!(cache.write_back().unwrap(), 1);
    assert_eq!((disk.block(2)[0], cache.read(2).unwrap()[0]), (10, 20));
    fill(&cache, 3, Owner::Transaction(Tid(2)), 30);
    let pin = cache.pin(3).unwrap();
    cache.freeze(&pin, Tid(2)).unwrap();
    cache.committed(&pin, Tid(2)).unwrap();
    cache.join(&pin, Tid(3)).unwrap();
    cache.overwrite(&pin, Owner::Transaction(Tid(3)), |bytes| bytes.fill(40)).unwrap();
    cache.write_back().unwrap();
    assert_eq!(
        (disk.block(3)[0], cache.read(3).unwrap()[0]),
        (30, 40),
        "overwrite keeps the home image aside too"
    );
}

#[test]
fn freezing_an_unmodified_buffer_lets_go_of_it() {
    let (_, cache) = setup();
    let pin = cache.pin(2).unwrap();
    cache.join(&pin, Tid(1)).unwrap();
    cache.join(&pin, Tid(1)).unwrap();
    let joined = BufferState::InTransaction { tid: Tid(1), modified: false, frozen: None };
    assert_eq!(cache.state(2), Some(joined));
    assert_eq!(cache.freeze(&pin, Tid(1)).unwrap(), None);
    assert_eq!(cache.state(2), Some(BufferState::Empty));
    cache.join(&pin, Tid(2)).unwrap();
    cache.leave(&pin, Tid(2)).unwrap();
    assert_eq!(cache.state(2), Some(BufferState::Empty));
}

#[test]
fn only_the_owner_may_change_a_block() {
    let (_, cache) = setup();
    let pin = cache.pin(2).unwrap();
    let change = |owner| cache.modify(&pin, owner, |bytes| bytes.fill(1));
    let refused = |wanted, owner| Error::NotOwner { block: 2, wanted, owner };
    let (one, two) = (Some(Tid(1)), Some(Tid(2)));
    assert_eq!(change(Owner::Transaction(Tid(1))).unwrap_err(), refused(one, None));
    cache.join(&pin, Tid(1)).unwrap();
    assert_eq!(change(Owner::Direct).unwrap_err(), refused(None, one));
    assert_eq!(change(Owner::Transaction(Tid(2))).unwrap_err(), refused(two, one));
    assert_eq!(cache.join(&pin, Tid(2)).unwrap_err(), refused(two, one));
    assert_eq!(cache.leave(&pin, Tid(2)).unwrap_err(), refused(two, one));
    change(Owner::Transaction(Tid(1))).unwrap();
    assert_eq!(cache.leave(&pin, Tid(1)).unwrap_err(), Error::Busy { block: 2, tid: Tid(1) });
    assert_eq!(cache.forget(2).unwrap_err(), Error::Busy { block: 2, tid: Tid(1) });
    cache.freeze(&pin, Tid(1)).unwrap();
    assert_eq!(change(Owner::Direct).unwrap_err(), refused(None, one));
    assert_eq!(
        cache.join(&pin, Tid(1)).unwrap_err(),
        refused(one, one),
        "a committing transaction takes no joins"
    );
    assert_eq!(cache.committed(&pin, Tid(2)).unwrap_err(), refused(two, one));
    cache.committed(&pin, Tid(1)).unwrap();
    assert_eq!(cache.committed(&pin, Tid(1)).unwrap_err(), refused(one, None));
}

#[test]
fn foreign_pins_and_read_only_devices_are_refused() {
    let (disk, cache) = setup();
    let (_, other) = setup();
    let foreign = other.pin(4).unwrap();
    assert_eq!(cache.modify(&foreign, Owner::Direct, |_| ()).unwrap_err(), Error::ForeignPin { block: 4 });
    assert_eq!(cache.join(&foreign, Tid(1)).unwrap_err(), Error::ForeignPin { block: 4 });
    let pin = cache.pin(4).unwrap();
    disk.read_only.store(true, SeqCst);
    assert_eq!(cache.modify(&pin, Owner::Direct, |_| ()).unwrap_err(), Error::ReadOnly);
    assert_eq!(cache.state(4), Some(BufferState::Empty));
}

#[test]
fn forget_drops_the_pending_home_write() {
    let (disk, cache) = setup();
    fill(&cache, 5, Owner::Direct, 66);
    cache.forget(5).unwrap();
    assert_eq!((cache.write_back().unwrap(), disk.block(5)[0]), (0, 5));
    assert_eq!(cache.read(5).unwrap()[0], 5, "contents come from the device again");
    cache.forget(31).unwrap();
}

#[test]
fn forget_waits_for_a_home_write_on_its_way() {
    let (disk, cache) = setup();
    fill(&cache, 5, Owner::Direct, 66);
    disk.close_gate();
    thread::scope(|scope| {
        let writer = scope.spawn(|| cache.write_back().unwrap());
        disk.await_at_gate(1);
        let forgetter = scope.spawn(|| {
            cache.forget(5).unwrap();
            disk.block(5)[0]
        });
        for _ in 0..1000 {
            thread::yield_now();
        }
        let early = forgetter.is_finished();
        disk.open_gate();
        assert!(!early);
        assert_eq!((writer.join().unwrap(), forgetter.join().unwrap()), (1, 66));
    });
}

#[test]
fn failed_home_write_stays_due() {
    let (disk, cache) = setup();
    fill(&cache, 5, Owner::Direct, 66);
    fill(&cache, 6, Owner::Direct, 67);
    disk.bad_writes.lock().insert(5 * 1024);
    assert!(matches!(cache.write_back().unwrap_err(), Error::Device { block: 5, .. }));
    assert_eq!(cache.state(5), Some(BufferState::Dirty));
    disk.bad_writes.lock().clear();
    assert_eq!(cache.write_back().unwrap(), 2);
    assert_eq!((disk.block(5)[0], disk.block(6)[0]), (66, 67));
    disk.fail_flush.store(true, SeqCst);
    assert!(matches!(cache.sync().unwrap_err(), Error::Flush(_)));
}

#[test]
fn failed_home_write_of_a_committed_image_is_not_mixed_with_the_running_one() {
    let (disk, cache) = setup();
    let pin = cache.pin(5).unwrap();
    fill(&cache, 5, Owner::Transaction(Tid(1)), 10);
    cache.freeze(&pin, Tid(1)).unwrap();
    cache.committed(&pin, Tid(1)).unwrap();
    disk.bad_writes.lock().insert(5 * 1024);
    disk.close_gate();
    thread::scope(|scope| {
        let writer = scope.spawn(|| cache.write_back());
        disk.await_at_gate(1);
        fill(&cache, 5, Owner::Transaction(Tid(2)), 20);
        disk.open_gate();
        writer.join().unwrap().unwrap_err();
    });
    disk.bad_writes.lock().clear();
    assert_eq!(cache.write_back().unwrap(), 1);
    assert_eq!((disk.block(5)[0], cache.read(5).unwrap()[0]), (10, 20));
}

#[test]
fn change_during_a_home_write_is_written_by_the_next() {
    let (disk, cache) = setup();
    fill(&cache, 5, Owner::Direct, 66);
    disk.close_gate();
    thread::scope(|scope| {
        let first = scope.spawn(|| cache.write_back().unwrap());
        disk.await_at_gate(1);
        fill(&cache, 5, Owner::Direct, 67);
        let second = scope.spawn(|| cache.write_back().unwrap());
        disk.open_gate();
        assert_eq!((first.join().unwrap(), second.join().unwrap()), (1, 1));
    });
    assert_eq!((disk.block(5)[0], cache.state(5)), (67, Some(BufferState::Clean)));
}
