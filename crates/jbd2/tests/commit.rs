//! Commits: what one costs, who shares it, what keeps it waiting, and what ends it.

use crate::common;

use common::recorder::{Caching, Crashes, Event, Recorder};
use common::{BLOCK, DATA, LOG, LOG_AT, Superblock, map};
use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use uext4_blockdev::Device;
use uext4_blockdev::layer::LatencyDevice;
use uext4_buffer::{BufferCache, CacheOptions};
use uext4_jbd2::{
    AbortCause, CommitHooks, Error, ExtendRefusal, FreedRun, Handle, Journal, JournalInfo, JournalOptions,
    LogRun, Recovery, RunMap, SyncOutcome, Tid,
};
use uext4_ondisk::jbd2::SuperblockVersion;
use uext4_testkit::Rng;

fn volume() -> Vec<u8> {
    let mut bytes = vec![0; ((DATA + 512) * u64::from(BLOCK)) as usize];
    let at = (LOG_AT * u64::from(BLOCK)) as usize;
    bytes[at..at + 1024].copy_from_slice(&Superblock::empty().0);
    bytes
}

fn open_on(device: &Arc<Recorder>) -> Journal {
    let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
    Journal::open(cache, map(), Arc::default()).unwrap()
}

fn setup(caching: Caching) -> (Arc<Recorder>, Journal) {
    let device = Recorder::new(volume(), caching);
    let journal = open_on(&device);
    (device, journal)
}

fn info(device: &Arc<Recorder>) -> JournalInfo {
    let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
    JournalInfo::read(&cache, &*map()).unwrap()
}

fn put(handle: &mut Handle<'_>, journal: &Journal, block: u64, byte: u8) {
    let pin = journal.cache().pin(DATA + block).unwrap();
    handle.get_write_access(&pin).unwrap();
    handle.overwrite(&pin, |bytes| bytes.fill(byte)).unwrap();
}

fn change(journal: &Journal, blocks: std::ops::Range<u64>, byte: u8) -> Tid {
    let mut handle = journal.start((blocks.end - blocks.start) as u32).unwrap();
    blocks.for_each(|block| put(&mut handle, journal, block, byte));
    let tid = handle.tid();
    handle.stop().unwrap();
    tid
}

/// The byte that a block of the device is full of.
fn home(device: &Recorder, block: u64) -> u8 {
    device.bytes()[((DATA + block) * u64::from(BLOCK)) as usize]
}

fn await_until(mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "it did not happen in 20 seconds");
        thread::yield_now();
    }
}

/// Commits stop in the middle while the gate is closed.
#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
    arrived: AtomicU64,
    begins: AtomicU64,
    committed: Mutex<Vec<(Tid, Vec<FreedRun>)>>,
    refuse: Mutex<Option<AbortCause>>,
}

impl Gate {
    fn set_closed(&self, closed: bool) {
        *self.closed.lock() = closed;
        self.opened.notify_all();
    }
}

impl CommitHooks for Gate {
    fn log_begins(&self) -> Result<(), AbortCause> {
        self.begins.fetch_add(1, SeqCst);
        Ok(())
    }

    fn send_ordered(&self, _: Tid, inodes: &[u64]) -> Result<(), AbortCause> {
        assert_eq!(inodes, [5, 9], "in order, each once");
        self.arrived.fetch_add(1, SeqCst);
        self.opened.wait_while(&mut self.closed.lock(), |closed| *closed);
        self.refuse.lock().clone().map_or(Ok(()), Err)
    }

    fn committed(&self, tid: Tid, freed: &[FreedRun]) {
        self.committed.lock().push((tid, freed.to_vec()));
    }
}

fn gated() -> (Arc<Recorder>, Journal, Arc<Gate>) {
    let (device, journal) = setup(Caching::Fua);
    let gate = Arc::new(Gate::default());
    journal.set_hooks(gate.clone());
    (device, journal, gate)
}

/// A change whose commit passes the gate.
fn ordered(journal: &Journal, block: u64, byte: u8) -> Tid {
    let mut handle = journal.start(2).unwrap();
    [9, 5, 9].into_iter().for_each(|inode| handle.order(inode).unwrap());
    put(&mut handle, journal, block, byte);
    let tid = handle.tid();
    handle.stop().unwrap();
    tid
}

#[test]
fn a_commit_is_one_request_a_flush_and_a_durable_block() {
    let (device, journal) = setup(Caching::Fua);
    journal.datasync(change(&journal, 0..3, 1)).unwrap();
    let before = device.events().len();
    journal.datasync(change(&journal, 10..40, 2)).unwrap();
    let events = device.events();
    let [
        Event::Write { bytes, fua: false, .. },
        Event::Flush { .. },
        Event::Write { fua: true, bytes: end, .. },
    ] = &events[before..]
    else {
        panic!("{:?}", &events[before..].len())
    };
    // A descriptor, thirty copies and the place of the commit block.
    assert_eq!((bytes.len(), end.len()), (32 * BLOCK as usize, BLOCK as usize));
    assert_eq!((journal.stats().commits, journal.stats().blocks_logged), (2, 5 + 32));
}

#[test]
fn what_is_committed_goes_home_only_when_it_must_and_the_log_can_be_emptied() {
    let (device, journal) = setup(Caching::Flush);
    assert!(!info(&device).needs_recovery());
    journal.datasync(change(&journal, 0..3, 7)).unwrap();
    assert!(info(&device).needs_recovery() && home(&device, 0) == 0);
    let tail = journal.tail();
    journal.checkpoint().unwrap();
    assert_eq!((home(&device, 0), home(&device, 2), home(&device, 3)), (7, 7, 0));
    assert!(journal.tail() != tail && info(&device).needs_recovery());
    assert_eq!((journal.tail().sequence, journal.stats().free_blocks), (Tid(43), LOG - 1));
    change(&journal, 3..4, 9);
    journal.empty_log().unwrap();
    assert_eq!(home(&device, 3), 9);
    let info = info(&device);
    assert!(!info.needs_recovery() && info.sequence() > journal.last_committed());
    let again = open_on(&device);
    assert!(again.sequence() > journal.sequence(), "no number is used twice");
    journal.empty_log().unwrap();
    journal.datasync(change(&journal, 3..4, 10)).unwrap();
    assert_eq!(journal.tail().log_block, 1);
}

#[test]
fn nothing_is_written_before_the_first_commit() {
    let (device, journal, gate) = gated();
    let handle = journal.start(3).unwrap();
    handle.stop().unwrap();
    journal.empty_log().unwrap();
    assert_eq!(journal.commit_all().unwrap(), SyncOutcome::NothingToCommit);
    assert_eq!((device.events().len(), gate.begins.load(SeqCst)), (0, 0));
    journal.datasync(ordered(&journal, 0, 1)).unwrap();
    journal.datasync(ordered(&journal, 0, 2)).unwrap();
    assert_eq!(gate.begins.load(SeqCst), 1);
    journal.empty_log().unwrap();
    journal.datasync(ordered(&journal, 0, 3)).unwrap();
    assert_eq!(gate.begins.load(SeqCst), 2, "the log begins anew");
}

/// An inode is marked with the running transaction before anything of that is changed. Its older change may be in the
/// transaction that is committing.
#[test]
fn a_transaction_that_changed_nothing_yet_does_not_hide_the_one_before_it() {
    let (_, journal, gate) = gated();
    gate.set_closed(true);
    let first = ordered(&journal, 0, 1);
    thread::scope(|scope| {
        let leader = scope.spawn(|| journal.datasync(first).unwrap());
        await_until(|| gate.arrived.load(SeqCst) == 1);
        let (journal, handle) = (&journal, journal.start(1).unwrap());
        let next = handle.tid();
        let needed = journal.commit_needed(next);
        let waiter = scope.spawn(move || (journal.datasync(next).unwrap(), journal.last_committed()));
        thread::sleep(Duration::from_millis(50));
        let early = waiter.is_finished();
        gate.set_closed(false);
        leader.join().unwrap();
        assert_eq!(waiter.join().unwrap(), (SyncOutcome::Committed { flushed: true }, first));
        assert!(next > first && needed && !early && !journal.commit_needed(next));
        handle.stop().unwrap();
    });
}

/// Data that is complete only when the flush of a commit has begun needs another one, whoever waits for that commit.
#[test]
fn who_comes_after_the_flush_of_a_commit_is_told_so() {
    let slow = || {
        let device = LatencyDevice::new(Recorder::new(volume(), Caching::Fua), None, None);
        let device = device.with_fua_latency(Some(Duration::from_millis(300)));
        let cache = BufferCache::new(Arc::new(device), &CacheOptions::new(BLOCK)).unwrap();
        Journal::open(cache, map(), Arc::default()).unwrap()
    };
    let late = || {
        let journal = slow();
        let tid = change(&journal, 0..1, 1);
        thread::scope(|scope| {
            let leader = scope.spawn(|| journal.datasync(tid).unwrap());
            await_until(|| journal.stats().flushes == 1);
            let outcome = journal.datasync(tid).unwrap();
            assert_eq!(leader.join().unwrap(), SyncOutcome::Committed { flushed: true });
            outcome
        })
    };
    // On a machine under load it may come when all is over.
    let outcome = (0..10).map(|_| late()).find(|outcome| *outcome != SyncOutcome::NothingToCommit);
    assert_eq!(outcome, Some(SyncOutcome::Committed { flushed: false }));
}

#[test]
fn many_that_wait_share_one_commit_while_the_next_transaction_runs() {
    let (_, journal, gate) = gated();
    gate.set_closed(true);
    let first = ordered(&journal, 0, 1);
    thread::scope(|scope| {
        let leader = scope.spawn(|| journal.datasync(first).unwrap());
        await_until(|| gate.arrived.load(SeqCst) == 1);
        assert_eq!(journal.newest_uncommitted(), Some(first));
        let waiters: Vec<_> = (1..9)
            .map(|block| {
                let journal = &journal;
                scope.spawn(move || {
                    let tid = ordered(journal, block, 2);
                    (tid, journal.datasync(tid).unwrap())
                })
            })
            .collect();
        await_until(|| journal.stats().modified_blocks == 8);
        let running = Some(first.next());
        assert_eq!((journal.running_tid(), journal.newest_uncommitted()), (running, running));
        assert!(journal.last_committed() < first && journal.commit_needed(first));
        gate.set_closed(false);
        leader.join().unwrap();
        for waiter in waiters {
            let (tid, outcome) = waiter.join().unwrap();
            assert_eq!((tid, outcome), (first.next(), SyncOutcome::Committed { flushed: true }));
        }
    });
    assert_eq!((journal.stats().commits, journal.last_committed()), (2, first.next()));
}

#[test]
fn nothing_counts_as_committed_while_its_commit_still_writes() {
    for caching in [Caching::Fua, Caching::Flush, Caching::Durable] {
        let (device, journal) = setup(caching);
        let journal = Arc::new(journal);
        let watched = Arc::downgrade(&journal);
        let writes = Arc::new(AtomicU64::new(0));
        let seen = writes.clone();
        let watch = move || {
            let journal = watched.upgrade().unwrap();
            assert_eq!(journal.last_committed(), Tid(41));
            seen.fetch_add(1, SeqCst);
        };
        device.watch.0.set(Box::new(watch)).ok().unwrap();
        journal.datasync(change(&journal, 0..3, 1)).unwrap();
        assert_eq!(journal.last_committed(), Tid(42));
        assert!(writes.load(SeqCst) >= 4, "the superblock, the log, a flush, the commit block");
    }
}

/// The end of a quiesce leaves the lock of a commit alone.
#[test]
fn releasing_the_journal_does_not_unlock_a_transaction_that_commits() {
    let (_, journal) = setup(Caching::Fua);
    let mut active = journal.start(2).unwrap();
    put(&mut active, &journal, 0, 1);
    let tid = active.tid();
    thread::scope(|scope| {
        let committer = scope.spawn(|| journal.datasync(tid).unwrap());
        let locked = Error::ExtendRefused { tid, wanted: 0, refusal: ExtendRefusal::Locked };
        await_until(|| active.extend(0) == Err(locked.clone()));
        let quiescer = scope.spawn(|| drop(journal.lock_updates().unwrap()));
        await_until(|| journal.stats().quiesces == 1);
        let second = scope.spawn(|| {
            await_until(|| journal.stats().quiesces == 2);
            journal.start(1).unwrap().tid()
        });
        // A holder that comes and goes while the commit waits for us.
        let other = scope.spawn(|| journal.lock_updates().map(drop));
        await_until(|| journal.stats().quiesces == 2);
        assert_eq!(active.extend(0), Err(locked));
        assert!(!second.is_finished() && journal.last_committed() < tid);
        active.stop().unwrap();
        committer.join().unwrap();
        quiescer.join().unwrap();
        other.join().unwrap().unwrap();
        assert_eq!(second.join().unwrap(), tid.next());
    });
}

#[test]
fn a_restarted_handle_lets_the_commit_pass() {
    let (_, journal) = setup(Caching::Fua);
    let mut handle = journal.start(2).unwrap();
    put(&mut handle, &journal, 0, 1);
    let tid = handle.tid();
    handle = handle.restart(4).unwrap();
    assert_eq!((handle.tid(), handle.credits()), (tid, 4), "nobody is waiting");
    thread::scope(|scope| {
        let committer = scope.spawn(|| journal.datasync(tid).unwrap());
        await_until(|| handle.extend(0).is_err());
        let mut handle = handle.restart(3).unwrap();
        assert_eq!((handle.tid(), handle.credits()), (tid.next(), 3));
        put(&mut handle, &journal, 0, 2);
        committer.join().unwrap();
        handle.stop().unwrap();
    });
    assert_eq!(journal.last_committed(), tid);
}

#[test]
fn a_full_log_is_a_wait_in_start() {
    let (device, journal) = setup(Caching::Fua);
    for round in 0..60u8 {
        journal.datasync(change(&journal, 0..200, round)).unwrap();
    }
    let stats = journal.stats();
    assert!(stats.checkpoints > 5 && stats.commits == 60, "{stats:?}");
    assert!(stats.home_writes < 200 * stats.checkpoints + 1, "a block that is committed again stays");
    journal.checkpoint().unwrap();
    assert_eq!((home(&device, 0), home(&device, 199)), (59, 59));
}

/// A long log and a small cache: no more of the log is used at once than the cache shall hold, but all of it in turn.
#[test]
fn the_budget_of_the_cache_bounds_what_waits_for_its_home() {
    let blocks = 8192;
    let mut bytes = vec![0; (blocks * u64::from(BLOCK)) as usize];
    let mut superblock = Superblock::empty();
    superblock.set(16, 6000);
    bytes[..1024].copy_from_slice(&superblock.0);
    let device = Recorder::new(bytes, Caching::Fua);
    let options = CacheOptions { budget_bytes: 2 << 20, ..CacheOptions::new(BLOCK) };
    let cache = BufferCache::new(device.clone(), &options).unwrap();
    let log = Arc::new(RunMap::new(vec![LogRun { log_block: 0, physical: 0, length: 6000 }]).unwrap());
    let journal = Journal::open(cache, log, Arc::default()).unwrap();
    assert_eq!((journal.max_transaction_credits(), journal.stats().free_blocks), (256, 1024));
    let mut furthest = 0;
    for round in 0..60u64 {
        let mut handle = journal.start(200).unwrap();
        for n in 0..200 {
            let pin = journal.cache().pin(6000 + (round * 200 + n) % 2000).unwrap();
            handle.get_write_access(&pin).unwrap();
            handle.overwrite(&pin, |bytes| bytes.fill(round as u8)).unwrap();
        }
        handle.stop().unwrap();
        journal.commit_all().unwrap();
        assert!(journal.cache().stats().dirty_bytes <= 1 << 20);
        furthest = furthest.max(journal.tail().log_block);
    }
    assert!(furthest > 5000, "{furthest}");
}

#[test]
fn a_reserved_handle_does_not_wait_for_room() {
    let (_, journal) = setup(Caching::Fua);
    let reservation = journal.reserve(10).unwrap();
    let reserved = journal.stats().reserved_blocks;
    assert!(reserved > 10, "{reserved}: the blocks around its copies count too");
    let mut byte = 0;
    // Until a start has to free log space first.
    while journal.stats().free_blocks >= journal.max_transaction_credits() + 32 + reserved {
        journal.datasync(change(&journal, 0..100, byte)).unwrap();
        byte += 1;
    }
    let before = journal.stats();
    let mut handle = journal.start_reserved(reservation).unwrap();
    assert_eq!((handle.credits(), journal.stats().reserved_blocks), (10, 0));
    (0..10).for_each(|block| put(&mut handle, &journal, block, 200));
    let tid = handle.tid();
    handle.stop().unwrap();
    journal.datasync(tid).unwrap();
    let after = journal.stats();
    assert_eq!((after.checkpoints, after.start_waits), (before.checkpoints, before.start_waits));
    change(&journal, 0..1, 1);
    assert_eq!(journal.stats().checkpoints, before.checkpoints + 1, "an ordinary one frees space");
}

#[test]
fn ordinary_handles_leave_alone_what_is_reserved() {
    let (_, journal) = setup(Caching::Fua);
    let reservation = journal.reserve(200).unwrap();
    let (reserved, most) = (journal.stats().reserved_blocks, journal.max_transaction_credits() + 32);
    while journal.stats().free_blocks >= most + reserved {
        journal.datasync(change(&journal, 0..50, 1)).unwrap();
    }
    let before = journal.stats();
    assert!(before.free_blocks >= most && before.checkpoints == 0, "{before:?}");
    change(&journal, 0..1, 2);
    assert_eq!(journal.stats().checkpoints, 1);
    drop(reservation);
}

#[test]
fn reservations_are_bounded_and_given_back() {
    let (_, journal) = setup(Caching::Fua);
    let mut held = Vec::new();
    let full = loop {
        match journal.reserve(50) {
            Ok(reservation) => held.push(reservation),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::ReservesFull { wanted: 52, .. }), "{full}");
    assert_eq!(full.errno(), libc::ENOSPC);
    assert!(held.len() > 4, "{}", held.len());
    // An ordinary handle of any size still starts.
    journal.start(journal.max_handle_credits()).unwrap().stop().unwrap();
    held.pop();
    drop(journal.reserve(50).unwrap());
    held.clear();
    assert_eq!(journal.stats().reserved_blocks, 0);
    let maximum = journal.max_handle_credits();
    let wanted = maximum + 1;
    assert_eq!(journal.reserve(wanted).unwrap_err(), Error::TooManyCredits { wanted, maximum });
}

#[test]
fn what_a_transaction_freed_is_told_with_its_commit() {
    let (_, journal, gate) = gated();
    let run = FreedRun { first: 77, blocks: 3 };
    let mut handle = journal.start(2).unwrap();
    handle.free_at_commit(run).unwrap();
    let tid = handle.tid();
    handle.stop().unwrap();
    assert!(journal.commit_needed(tid), "there is nothing else in it, but somebody waits");
    assert!(gate.committed.lock().is_empty() && journal.running_for().is_some());
    assert_eq!(journal.commit_all().unwrap(), SyncOutcome::Committed { flushed: true });
    assert_eq!(*gate.committed.lock(), [(tid, vec![run])]);
}

/// What recovery finds after everything that was written is durable.
fn recovered(device: &Arc<Recorder>) -> Recovery {
    let device: Arc<dyn Device> = device.clone();
    let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
    let info = JournalInfo::read(&cache, &*map()).unwrap();
    Recovery::read(&device, &*map(), &info, DATA + 512).unwrap()
}

#[test]
fn a_panic_in_a_handle_aborts_and_nothing_of_the_transaction_is_committed() {
    let (device, journal) = setup(Caching::Fua);
    journal.datasync(change(&journal, 0..2, 1)).unwrap();
    let tid = change(&journal, 0..1, 2);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let mut handle = journal.start(2).unwrap();
        let pin = journal.cache().pin(DATA + 1).unwrap();
        handle.get_write_access(&pin).unwrap();
        let _ = handle.dirty(&pin, |_| panic!("in the middle of a change"));
    }));
    assert!(panicked.is_err());
    let cause = journal.aborted().unwrap();
    assert!(cause.what.contains("panic"), "{cause}");
    assert!(matches!(journal.datasync(tid), Err(Error::Aborted(_))));
    let recovery = recovered(&device);
    assert_eq!((recovery.report().transactions, recovery.report().end), (1, tid));
    assert_eq!(recovery.info().superblock.errno, -libc::EIO, "recorded for whoever comes next");
}

#[test]
fn a_handle_that_is_given_up_half_way_aborts_and_one_before_its_first_change_does_not() {
    let (_, journal) = setup(Caching::Fua);
    let mut handle = journal.start(2).unwrap();
    handle.get_write_access(&journal.cache().pin(DATA).unwrap()).unwrap();
    drop(handle);
    assert!(journal.aborted().is_none());
    let mut handle = journal.start(2).unwrap();
    handle.revoke(DATA + 5).unwrap();
    drop(handle);
    assert!(journal.aborted().unwrap().what.contains("dropped without a stop"));
}

#[test]
fn a_commit_that_fails_fails_for_all_who_wait() {
    let (device, journal, gate) = gated();
    gate.set_closed(true);
    let first = ordered(&journal, 0, 1);
    let cause = AbortCause { what: "no data".into(), errno: libc::ENOSPC };
    thread::scope(|scope| {
        let leader = scope.spawn(|| journal.datasync(first));
        await_until(|| gate.arrived.load(SeqCst) == 1);
        let second = ordered(&journal, 1, 1);
        let waiter = scope.spawn({
            let journal = &journal;
            move || journal.datasync(second)
        });
        *gate.refuse.lock() = Some(cause.clone());
        gate.set_closed(false);
        for result in [leader.join().unwrap(), waiter.join().unwrap()] {
            assert_eq!(result, Err(Error::Aborted(cause.clone())));
        }
    });
    assert!(journal.last_committed() < first);
    assert_eq!(recovered(&device).report().transactions, 0);
}

/// Whichever write or flush of a commit, a checkpoint or the emptying of the log fails: it is told, and ends the
/// journal.
#[test]
fn no_failure_of_a_step_is_passed_over() {
    type Step = fn(&Journal) -> Result<(), Error>;
    let commit: Step = |journal| journal.commit_all().map(drop);
    let steps: [(Step, bool, bool, u32); 3] = [
        (commit, false, true, 5),
        (Journal::checkpoint, true, false, 4),
        (Journal::empty_log, true, true, 10),
    ];
    for (step, committed, running, least) in steps {
        let mut failures = 0;
        for operation in 0.. {
            let (device, journal) = setup(Caching::Flush);
            if committed {
                journal.datasync(change(&journal, 0..3, 1)).unwrap();
            }
            if running {
                change(&journal, 5..6, 2);
            }
            device.fail_once.store(true, SeqCst);
            device.fail_in.store(operation, SeqCst);
            let result = step(&journal);
            if !device.failed.load(SeqCst) {
                result.unwrap();
                break;
            }
            failures += 1;
            let aborted = journal.aborted().cloned().unwrap();
            assert_eq!((aborted.errno, result), (libc::EIO, Err(Error::Aborted(aborted))));
        }
        assert!(failures >= least, "{failures}");
    }
}

#[test]
fn a_panic_in_a_hook_leaves_nobody_waiting() {
    struct Panics;
    impl CommitHooks for Panics {
        fn log_begins(&self) -> Result<(), AbortCause> {
            panic!("a bug of the file system");
        }
    }
    let (_, journal) = setup(Caching::Fua);
    journal.set_hooks(Arc::new(Panics));
    let tid = change(&journal, 0..1, 1);
    assert!(catch_unwind(AssertUnwindSafe(|| journal.datasync(tid))).is_err());
    assert!(matches!(journal.datasync(tid), Err(Error::Aborted(_))));
    assert!(matches!(journal.start(1).map(drop), Err(Error::Aborted(_))));
}

#[test]
fn the_first_commit_brings_the_superblock_up_to_date() {
    let mut bytes = volume();
    let at = (LOG_AT * u64::from(BLOCK)) as usize;
    // Version 1, with rubbish where version 2 has its features.
    bytes[at + 7] = 3;
    bytes[at + 36..at + 1024].fill(0xEE);
    let device = Recorder::new(bytes, Caching::Fua);
    let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
    let options = JournalOptions { wide: true, checksums: true, ..JournalOptions::default() };
    let journal = Journal::open_with(cache, map(), Arc::default(), &options).unwrap();
    assert_eq!(info(&device).superblock.version, SuperblockVersion::V1);
    journal.datasync(change(&journal, 0..1, 1)).unwrap();
    let superblock = info(&device).superblock;
    assert_eq!((superblock.version, superblock.users), (SuperblockVersion::V2, 1));
    let names = superblock.features.names();
    assert_eq!(names, ["journal_incompat_revoke", "journal_64bit", "journal_checksum_v3"]);
    assert_eq!(recovered(&device).report().blocks, 1);
}

/// Threads that sync their own changes, and a crash at any point: each finds what it was promised, and what was changed
/// together together.
#[test]
fn threads_find_what_they_were_promised() {
    const THREADS: u64 = 6;
    let (device, journal) = setup(Caching::Fua);
    let running = AtomicU64::new(THREADS);
    thread::scope(|scope| {
        // The end of a quiesce may come at any moment of a commit.
        scope.spawn(|| {
            while running.load(SeqCst) > 0 {
                drop(journal.lock_updates().unwrap());
            }
        });
        for thread in 0..THREADS {
            let (device, journal, running) = (&device, &journal, &running);
            scope.spawn(move || {
                for count in 1..=200u8 {
                    let tid = change(journal, thread * 40..thread * 40 + 2 + u64::from(count) % 37, count);
                    if count % 3 != 0 {
                        journal.datasync(tid).unwrap();
                        device.promise(thread << 8 | u64::from(count));
                    }
                }
                running.fetch_sub(1, SeqCst);
            });
        }
    });
    let stats = journal.stats();
    assert!(stats.commits < THREADS * 133 && stats.checkpoints > 0, "{stats:?}");
    let (events, mut random) = (device.events(), Rng::new(5));
    let mut cuts: Vec<usize> = (0..60).map(|_| random.below(events.len() as u64) as usize).collect();
    cuts.sort_unstable();
    let mut crashes = Crashes::new(volume(), &events);
    for cut in cuts {
        crashes.advance(cut);
        let crashed = Recorder::new(crashes.image(&mut random), Caching::Durable);
        recovered(&crashed).write_home(&*crashed, &*map(), &mut |_, _| ()).unwrap();
        for thread in 0..THREADS {
            let promised = crashes.promises.iter().rev().find(|promise| *promise >> 8 == thread);
            let found = home(&crashed, thread * 40);
            assert!(u64::from(found) >= promised.map_or(0, |promise| promise & 255));
            assert_eq!(home(&crashed, thread * 40 + 1), found, "thread {thread}");
        }
    }
}
