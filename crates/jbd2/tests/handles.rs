//! Handles: credits, waiting, nesting, syncing, aborting.

use crate::common;

use common::{DATA, cache, journal, map, pin};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use uext4_buffer::BufferState;
use uext4_jbd2::{AbortCause, Error, ExtendRefusal, Handle, Journal, SyncOutcome, Tid};

fn outstanding(journal: &Journal) -> u32 {
    journal.stats().outstanding_credits
}

fn overhead(journal: &Journal) -> u32 {
    journal.max_transaction_credits() - journal.max_handle_credits()
}

fn cause() -> AbortCause {
    AbortCause { what: "flush failed".into(), errno: libc::ENODEV }
}

fn change(handle: &mut Handle<'_>, journal: &Journal, block: u64) -> Result<(), Error> {
    let pin = pin(journal, block);
    handle.get_write_access(&pin)?;
    handle.dirty(&pin, |bytes| bytes[0] = bytes[0].wrapping_add(1))
}

/// Waits for something another thread is about to do.
fn await_until(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "it did not happen in 20 seconds");
        thread::yield_now();
    }
}

/// Waits until `count` starts have gone to sleep.
fn await_start_waits(journal: &Journal, count: u64) {
    await_until(|| journal.stats().start_waits >= count);
}

#[test]
fn credits_are_reserved_used_and_returned() {
    let journal = journal();
    let base = overhead(&journal);
    let mut handle = journal.start(10).unwrap();
    assert_eq!((handle.tid(), handle.credits(), outstanding(&journal)), (Tid(42), 10, base + 10));
    change(&mut handle, &journal, 0).unwrap();
    change(&mut handle, &journal, 0).unwrap();
    assert_eq!(handle.credits(), 9, "a block is paid for once");
    assert_eq!(outstanding(&journal), base + 10, "used credits stay charged");
    handle.stop().unwrap();
    assert_eq!((outstanding(&journal), journal.stats().modified_blocks), (base + 1, 1));
    let mut second = journal.start(3).unwrap();
    assert_eq!(second.tid(), Tid(42), "handles join the running transaction");
    change(&mut second, &journal, 0).unwrap();
    assert_eq!(second.credits(), 3, "the transaction has paid for the block already");
    second.stop().unwrap();
    let stats = journal.stats();
    assert_eq!((stats.handles_started, stats.handles_active, stats.transactions_created), (2, 0, 1));
    assert_eq!(stats.outstanding_credits, base + 1);
}

#[test]
fn a_handle_cannot_ask_for_more_than_a_transaction_holds() {
    let journal = journal();
    let maximum = journal.max_handle_credits();
    assert_eq!(journal.start(maximum).unwrap().credits(), maximum);
    for wanted in [maximum + 1, u32::MAX] {
        assert_eq!(journal.start(wanted).unwrap_err(), Error::TooManyCredits { wanted, maximum });
    }
    assert_eq!(journal.start(0).unwrap().credits(), 0);
    assert_eq!(outstanding(&journal), overhead(&journal));
}

#[test]
fn changes_need_access_and_credit() {
    let journal = journal();
    let mut handle = journal.start(1).unwrap();
    let (first, second) = (pin(&journal, 1), pin(&journal, 2));
    let no_access = Error::NoWriteAccess { block: DATA + 1, tid: Tid(42) };
    assert_eq!(handle.dirty(&first, |_| panic!("no access")).unwrap_err(), no_access);
    handle.get_write_access(&first).unwrap();
    handle.get_write_access(&second).unwrap();
    assert_eq!(handle.credits(), 1, "access costs nothing");
    handle.overwrite(&first, |bytes| bytes.fill(7)).unwrap();
    let out = Error::OutOfCredits { block: DATA + 2 };
    assert_eq!(handle.dirty(&second, |_| panic!("no credit")).unwrap_err(), out);
    assert_eq!(handle.overwrite(&second, |_| panic!("no credit")).unwrap_err(), out);
    handle.dirty(&first, |bytes| bytes[0] = 8).unwrap();
    handle.extend(1).unwrap();
    handle.dirty(&second, |bytes| bytes.fill(9)).unwrap();
    let cache = journal.cache();
    assert_eq!(
        (cache.read(DATA + 1).unwrap()[..2].to_vec(), cache.read(DATA + 2).unwrap()[0]),
        (vec![8, 7], 9)
    );
    assert_eq!(cache.write_back().unwrap(), 0, "nothing uncommitted goes home");
}

#[test]
fn a_refused_change_charges_nothing() {
    let journal = journal();
    let elsewhere = cache(&common::Superblock::empty());
    let foreign = elsewhere.pin(DATA).unwrap();
    let mut handle = journal.start(2).unwrap();
    assert!(matches!(handle.get_write_access(&foreign), Err(Error::Buffer(_))));
    handle.get_write_access(&pin(&journal, 0)).unwrap();
    assert!(matches!(handle.dirty(&foreign, |_| ()), Err(Error::Buffer(_))));
    assert_eq!((handle.credits(), journal.stats().modified_blocks), (2, 0));
}

#[test]
fn nested_use_shares_credits_and_does_not_end_the_handle() {
    let journal = journal();
    let mut handle = journal.start(2).unwrap();
    {
        let mut inner = handle.join().unwrap();
        change(&mut inner, &journal, 5).unwrap();
        let mut innermost = inner.join().unwrap();
        change(&mut innermost, &journal, 6).unwrap();
    }
    let stats = journal.stats();
    assert_eq!(
        (handle.credits(), stats.handles_active, stats.handles_joined, stats.handles_started),
        (0, 1, 2, 1)
    );
}

#[test]
fn extension_is_granted_or_refused_at_once() {
    let journal = journal();
    let mut handle = journal.start(10).unwrap();
    let room = journal.max_handle_credits() - 10;
    let full =
        |wanted| Error::ExtendRefused { tid: Tid(42), wanted, refusal: ExtendRefusal::TransactionFull };
    for wanted in [room + 1, u32::MAX] {
        assert_eq!(handle.extend(wanted).unwrap_err(), full(wanted));
    }
    assert_eq!(handle.credits(), 10);
    handle.extend(room).unwrap();
    assert_eq!(outstanding(&journal), journal.max_transaction_credits());
    assert_eq!(handle.extend(1).unwrap_err(), full(1));
}

#[test]
fn start_waits_for_credits_until_a_stop_returns_them() {
    let journal = journal();
    let big = journal.start(journal.max_handle_credits()).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| journal.start(5).unwrap().tid());
        await_start_waits(&journal, 1);
        assert!(!waiter.is_finished());
        assert_eq!(outstanding(&journal), journal.max_transaction_credits(), "a waiter holds no credits");
        big.stop().unwrap();
        assert_eq!(waiter.join().unwrap(), Tid(42));
    });
    assert_eq!(outstanding(&journal), overhead(&journal));
}

#[test]
fn start_commits_a_transaction_that_is_full_of_changes() {
    let journal = journal();
    let most = journal.max_handle_credits();
    let mut handle = journal.start(most).unwrap();
    for block in 0..u64::from(most) {
        change(&mut handle, &journal, block).unwrap();
    }
    thread::scope(|scope| {
        let waiter = scope.spawn(|| journal.start(1).unwrap().tid());
        await_start_waits(&journal, 1);
        assert!(!waiter.is_finished());
        handle.stop().unwrap();
        assert_eq!(waiter.join().unwrap(), Tid(43));
    });
    assert_eq!((journal.last_committed(), journal.stats().commits), (Tid(42), 1));
}

#[test]
fn quiescing_waits_for_handles_and_holds_starts_back() {
    let journal = journal();
    let mut active = journal.start(5).unwrap();
    let held = AtomicU32::new(0);
    thread::scope(|scope| {
        let quiescer = scope.spawn(|| {
            let locked = journal.lock_updates().unwrap();
            assert_eq!(journal.stats().handles_active, 0);
            held.store(1, SeqCst);
            await_start_waits(&journal, 1);
            let second = journal.lock_updates().unwrap();
            drop(locked);
            held.store(2, SeqCst);
            drop(second);
        });
        await_until(|| journal.stats().quiesces > 0);
        let refused = Error::ExtendRefused { tid: Tid(42), wanted: 1, refusal: ExtendRefusal::Locked };
        assert_eq!(active.extend(1).unwrap_err(), refused);
        change(&mut active, &journal, 3).unwrap();
        assert_eq!(held.load(SeqCst), 0, "an active handle holds the quiescer back");
        active.stop().unwrap();
        let starter = scope.spawn(|| {
            let tid = journal.start(1).unwrap().tid();
            (tid, held.load(SeqCst))
        });
        quiescer.join().unwrap();
        let (tid, seen) = starter.join().unwrap();
        assert_eq!(tid, Tid(42));
        assert_eq!(seen, 2, "a start that was held back runs after the last release");
    });
}

#[test]
fn quiescing_without_a_transaction_keeps_any_from_beginning() {
    let journal = journal();
    let locked = journal.lock_updates().unwrap();
    thread::scope(|scope| {
        let starter = scope.spawn(|| journal.start(1).unwrap().tid());
        await_start_waits(&journal, 1);
        assert_eq!(journal.running_tid(), None);
        drop(locked);
        assert_eq!(starter.join().unwrap(), Tid(42));
    });
}

#[test]
fn empty_transactions_need_no_commit_and_changed_ones_are_committed() {
    let journal = journal();
    assert_eq!(journal.datasync(Tid(41)).unwrap(), SyncOutcome::NothingToCommit);
    assert_eq!(journal.datasync(Tid(42)).unwrap_err(), Error::UnknownTransaction { tid: Tid(42) });
    let mut handle = journal.start(2).unwrap();
    handle.get_write_access(&pin(&journal, 0)).unwrap();
    assert!(!journal.commit_needed(Tid(42)));
    assert_eq!(journal.datasync(Tid(42)).unwrap(), SyncOutcome::NothingToCommit);
    change(&mut handle, &journal, 0).unwrap();
    handle.stop().unwrap();
    assert!(journal.commit_needed(Tid(42)) && !journal.commit_needed(Tid(41)));
    assert_eq!(journal.datasync(Tid(42)).unwrap(), SyncOutcome::Committed { flushed: true });
    assert_eq!(journal.datasync(Tid(42)).unwrap(), SyncOutcome::NothingToCommit);
    assert_eq!((journal.last_committed(), journal.running_tid()), (Tid(42), None));
    assert_eq!(journal.datasync(Tid(43)).unwrap_err(), Error::UnknownTransaction { tid: Tid(43) });
}

/// An empty transaction is no reason to doubt what was read; a changed one is until it is committed.
#[test]
fn a_changed_transaction_counts_until_it_is_committed() {
    let journal = journal();
    assert_eq!((journal.last_committed(), journal.newest_uncommitted()), (Tid(41), None));
    let mut handle = journal.start(2).unwrap();
    handle.get_write_access(&pin(&journal, 0)).unwrap();
    assert_eq!(journal.newest_uncommitted(), None);
    change(&mut handle, &journal, 0).unwrap();
    handle.stop().unwrap();
    assert_eq!(journal.newest_uncommitted(), Some(Tid(42)));
    assert_eq!(journal.committed(Tid(43)).unwrap_err(), Error::UnknownTransaction { tid: Tid(43) });
    assert_eq!(journal.newest_uncommitted(), Some(Tid(42)));
    journal.committed(Tid(42)).unwrap();
    assert_eq!((journal.last_committed(), journal.newest_uncommitted()), (Tid(42), None));
    assert!(!journal.commit_needed(Tid(42)));
    assert_eq!(journal.datasync(Tid(42)).unwrap(), SyncOutcome::NothingToCommit);
    journal.committed(Tid(40)).unwrap();
    assert_eq!(journal.last_committed(), Tid(42), "it only grows");
    journal.abort(cause());
    assert_eq!(journal.committed(Tid(42)).unwrap_err(), Error::Aborted(cause()));
}

#[test]
fn abort_is_sticky_and_the_first_cause_stays() {
    let journal = journal();
    let pin = pin(&journal, 0);
    let mut handle = journal.start(2).unwrap();
    handle.get_write_access(&pin).unwrap();
    journal.abort(cause());
    journal.abort(AbortCause { what: "another".into(), errno: libc::ENOMEM });
    let aborted = Error::Aborted(cause());
    assert_eq!((aborted.errno(), journal.aborted()), (libc::EIO, Some(&cause())));
    assert_eq!(handle.extend(1).unwrap_err(), aborted);
    assert_eq!(handle.get_write_access(&pin).unwrap_err(), aborted);
    assert_eq!(handle.dirty(&pin, |_| panic!("aborted")).unwrap_err(), aborted);
    assert_eq!(handle.join().map(drop).unwrap_err(), aborted);
    assert_eq!(handle.stop().unwrap_err(), aborted);
    assert_eq!(journal.start(1).unwrap_err(), aborted);
    assert_eq!(journal.start(0).unwrap_err(), aborted);
    assert_eq!(journal.datasync(Tid(41)).unwrap_err(), aborted);
    assert_eq!(journal.lock_updates().map(drop).unwrap_err(), aborted);
    assert_eq!((journal.stats().handles_active, outstanding(&journal)), (0, overhead(&journal)));
}

#[test]
fn abort_wakes_everybody_who_waits() {
    let journal = journal();
    let big = journal.start(journal.max_handle_credits()).unwrap();
    thread::scope(|scope| {
        let starters: Vec<_> = (0..3).map(|_| scope.spawn(|| journal.start(1).map(drop))).collect();
        await_start_waits(&journal, 3);
        let quiescer = scope.spawn(|| journal.lock_updates().map(drop));
        await_until(|| journal.stats().quiesces > 0);
        journal.abort(cause());
        for starter in starters {
            assert_eq!(starter.join().unwrap().unwrap_err(), Error::Aborted(cause()));
        }
        assert_eq!(quiescer.join().unwrap().unwrap_err(), Error::Aborted(cause()));
    });
    assert_eq!(big.stop().unwrap_err(), Error::Aborted(cause()));
}

#[test]
fn closing_gives_back_what_was_never_changed() {
    let journal = journal();
    let cache = journal.cache().clone();
    let (touched, changed) = (pin(&journal, 0), pin(&journal, 1));
    let mut handle = journal.start(1).unwrap();
    handle.get_write_access(&touched).unwrap();
    change(&mut handle, &journal, 1).unwrap();
    handle.stop().unwrap();
    drop(journal);
    assert_eq!(cache.state(touched.block()), Some(BufferState::Empty));
    let lost = BufferState::InTransaction { tid: Tid(42), modified: true, frozen: None };
    assert_eq!(cache.state(changed.block()), Some(lost));
    assert_eq!(cache.write_back().unwrap(), 0, "uncommitted changes never go home");
}

#[test]
fn storm_of_handles_balances() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 3000;
    let journal = journal();
    let changed: Vec<BTreeSet<u64>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|seed| {
                scope.spawn({
                    let journal = &journal;
                    move || worker(journal, ROUNDS, seed)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let changed: BTreeSet<u64> = changed.into_iter().flatten().collect();
    let stats = journal.stats();
    assert_eq!((stats.handles_started, stats.handles_active), (THREADS * ROUNDS, 0));
    assert!(stats.start_waits > 0, "the storm is meant to fill the transaction: {stats:?}");
    assert!(stats.commits > 0 && stats.transactions_created - stats.commits <= 1, "{stats:?}");
    journal.commit_all().unwrap();
    let stats = journal.stats();
    assert_eq!((stats.modified_blocks, stats.handles_started), (0, THREADS * ROUNDS));
    assert!(!changed.is_empty());
}

/// Starts handles of up to half a transaction, changes at most two of 64 blocks each, sometimes quiesces.
fn worker(journal: &Journal, rounds: u64, seed: u64) -> BTreeSet<u64> {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut changed = BTreeSet::new();
    for _ in 0..rounds {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if random & 255 == 0 {
            let locked = journal.lock_updates().unwrap();
            assert_eq!(journal.stats().handles_active, 0, "quiesced means quiet");
            drop(locked);
        }
        let mut handle =
            journal.start(2 + (random >> 8) as u32 % (journal.max_handle_credits() / 2)).unwrap();
        assert!(outstanding(journal) <= journal.max_transaction_credits());
        for shift in [24, 32] {
            let block = random >> shift & 63;
            change(&mut handle, journal, block).unwrap();
            changed.insert(block);
        }
        if random & 3 == 0 {
            thread::yield_now();
        }
        handle.stop().unwrap();
    }
    changed
}

#[derive(Debug, Clone)]
enum Step {
    Start(u32),
    Stop(usize),
    Extend(usize, u32),
    Change(usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0u32..120).prop_map(Step::Start),
        (0usize..6).prop_map(Step::Stop),
        (0usize..6, 0u32..120).prop_map(|(handle, credits)| Step::Extend(handle, credits)),
        (0usize..6, 0u64..300).prop_map(|(handle, block)| Step::Change(handle, block)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Outstanding credits are the overhead, what active handles have left, and one per changed block,
    /// whatever the order of operations; and no operation succeeds that would exceed the limit, or fails that
    /// would not.
    #[test]
    fn credits_always_add_up(steps in prop::collection::vec(step(), 1..80)) {
        let journal = Journal::open(cache(&common::Superblock::empty()), map(), Arc::default()).unwrap();
        let limit = journal.max_transaction_credits();
        let base = overhead(&journal);
        let mut handles: Vec<Handle<'_>> = Vec::new();
        let mut left: Vec<u32> = Vec::new();
        let mut changed = BTreeSet::new();
        for step in steps {
            let total = base + left.iter().sum::<u32>() + changed.len() as u32;
            match step {
                Step::Start(credits) if total + credits <= limit => {
                    handles.push(journal.start(credits).unwrap());
                    left.push(credits);
                }
                Step::Start(credits) if handles.is_empty() => {
                    // The transaction is full of changes: it is committed, and a new one begins.
                    handles.push(journal.start(credits).unwrap());
                    left.push(credits);
                    changed.clear();
                }
                // It would wait for one of our own handles.
                Step::Start(_) => {}
                Step::Stop(index) if index < handles.len() => {
                    handles.swap_remove(index).stop().unwrap();
                    left.swap_remove(index);
                }
                Step::Extend(index, credits) if index < handles.len() => {
                    let granted = handles[index].extend(credits).is_ok();
                    prop_assert_eq!(granted, total + credits <= limit);
                    left[index] += if granted { credits } else { 0 };
                }
                Step::Change(index, block) if index < handles.len() => {
                    let new = !changed.contains(&block);
                    let result = change(&mut handles[index], &journal, block);
                    prop_assert_eq!(result.is_ok(), !new || left[index] > 0);
                    if result.is_ok() && new {
                        changed.insert(block);
                        left[index] -= 1;
                    }
                }
                Step::Stop(_) | Step::Extend(..) | Step::Change(..) => {}
            }
            let stats = journal.stats();
            let total = base + left.iter().sum::<u32>() + changed.len() as u32;
            if stats.transactions_created > 0 {
                prop_assert_eq!(stats.outstanding_credits, total);
                prop_assert_eq!(stats.handles_active as usize, handles.len());
            }
            prop_assert!(handles.iter().map(Handle::credits).eq(left.iter().copied()));
        }
    }
}

#[test]
fn a_freed_block_is_revoked_until_it_is_metadata_again() {
    let journal = journal();
    let mut handle = journal.start(3).unwrap();
    change(&mut handle, &journal, 5).unwrap();
    handle.revoke(DATA + 5).unwrap();
    handle.revoke(DATA + 3).unwrap();
    handle.revoke(DATA + 3).unwrap();
    assert_eq!(journal.revoked(), [DATA + 3, DATA + 5]);
    assert_eq!(handle.credits(), 1, "one for the changed block, one for the block of revokes");
    let refused = handle.dirty(&pin(&journal, 5), |bytes| bytes.fill(9)).unwrap_err();
    assert_eq!(refused, Error::NoWriteAccess { block: DATA + 5, tid: handle.tid() });
    handle.get_write_access(&pin(&journal, 5)).unwrap();
    assert_eq!(journal.revoked(), [DATA + 3]);
    handle.dirty(&pin(&journal, 5), |bytes| bytes.fill(9)).unwrap();
    assert_eq!(handle.credits(), 1, "it was paid for before");
    let blocks = journal.cache().blocks();
    let outside = uext4_buffer::Error::OutOfRange { block: blocks, blocks };
    assert_eq!(handle.revoke(blocks).unwrap_err(), Error::Buffer(outside));
}

#[test]
fn each_block_of_revokes_costs_a_credit() {
    let journal = journal();
    // (1024 − 16 − 4) / 8 records of eight bytes fit a revoke block.
    let mut handle = journal.start(2).unwrap();
    (0..250).for_each(|n| handle.revoke(DATA + n).unwrap());
    assert_eq!((handle.credits(), journal.revoked().len()), (0, 250));
    assert_eq!(handle.revoke(DATA + 250).unwrap_err(), Error::OutOfCredits { block: DATA + 250 });
    assert_eq!(journal.revoked().len(), 250, "nothing was noted");
    handle.revoke(DATA + 7).unwrap();
    // A record that is not needed any more makes room for another one.
    handle.get_write_access(&pin(&journal, 7)).unwrap();
    handle.revoke(DATA + 250).unwrap();
    handle.stop().unwrap();
    assert_eq!(outstanding(&journal), overhead(&journal) + 2, "they stay charged");
}
