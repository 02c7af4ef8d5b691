//! Fast commits: what a sync writes and in which order, when it commits in full, and when fast commits stop counting.

use crate::common;

use common::recorder::{Caching, Crashes, Event, Recorder};
use common::{BLOCK, LOG_AT, Superblock};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Duration;
use uext4_blockdev::Device;
use uext4_buffer::{BufferCache, CacheOptions};
use uext4_jbd2::{
    CommitHooks, Error, FastCommitContents, FastCommitReplay, FastCommitRoom, FullCommit, Handle, Journal,
    JournalInfo, JournalOptions, LogRun, Recovery, Result, RunMap, SyncOutcome, Tid,
};
use uext4_ondisk::Ino;
use uext4_ondisk::jbd2::{FastCommitName, FastCommitRecord, FastCommitWriter};

/// Blocks of the log, the area for fast commits included. An area needs an ordinary log of 1024 blocks beside it.
const LONG: u32 = 1056;
/// Blocks of that area.
const AREA: u32 = 16;
/// Blocks of it that fast commits use.
const USED: u64 = AREA as u64 - 2;
/// Block of the volume that holds the first fast commit.
const FAST_AT: u64 = LOG_AT + (LONG - AREA) as u64 + 1;
/// The first block of the volume after the log.
const AFTER: u64 = LOG_AT + LONG as u64;

fn map() -> Arc<RunMap> {
    Arc::new(RunMap::new(vec![LogRun { log_block: 0, physical: LOG_AT, length: LONG }]).unwrap())
}

/// A volume whose log has an area for fast commits, with these bytes in it.
fn volume(area: &[u8]) -> Vec<u8> {
    let mut superblock = Superblock::empty();
    superblock.set(16, LONG).set(40, 32).set(84, AREA);
    let mut bytes = vec![0; ((AFTER + 64) * u64::from(BLOCK)) as usize];
    bytes[(LOG_AT * u64::from(BLOCK)) as usize..][..1024].copy_from_slice(&superblock.0);
    bytes[(FAST_AT * u64::from(BLOCK)) as usize..][..area.len()].copy_from_slice(area);
    bytes
}

/// A file system whose records are names that the test chooses.
#[derive(Default)]
struct Names {
    /// Declared since the last fast commit.
    declared: Mutex<Vec<Vec<u8>>>,
    refuses: Mutex<Option<FullCommit>>,
    described: AtomicU64,
}

impl Names {
    fn declare(&self, name: &[u8]) {
        self.declared.lock().push(name.to_vec());
    }
}

impl CommitHooks for Names {
    fn describe(&self, room: &FastCommitRoom) -> FastCommitContents {
        self.described.fetch_add(1, SeqCst);
        let declared = std::mem::take(&mut *self.declared.lock());
        if let Some(reason) = self.refuses.lock().take() {
            return FastCommitContents::Full(reason);
        }
        if declared.is_empty() {
            return FastCommitContents::Nothing;
        }
        let mut writer = FastCommitWriter::new(room.block_size, room.tid.sequence(), room.first).unwrap();
        for name in &declared {
            let name = FastCommitName { parent: Ino(2), ino: Ino(12), name };
            writer.push(&FastCommitRecord::Unlink(name)).unwrap();
        }
        let blocks = writer.finish().unwrap();
        match blocks.len() <= room.blocks as usize * room.block_size {
            true => FastCommitContents::Blocks(blocks),
            false => FastCommitContents::Full(FullCommit::AreaFull),
        }
    }
}

struct World {
    device: Arc<Recorder>,
    journal: Journal,
    names: Arc<Names>,
}

fn open(bytes: Vec<u8>, caching: Caching) -> World {
    let device = Recorder::new(bytes, caching);
    let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
    let options = JournalOptions { fast_commits: true, ..JournalOptions::default() };
    let journal = Journal::open_with(cache, map(), Arc::default(), &options).unwrap();
    let names = Arc::new(Names::default());
    journal.set_hooks(names.clone());
    assert!(journal.makes_fast_commits());
    World { device, journal, names }
}

/// An open volume whose log is in use.
fn world() -> World {
    let world = open(volume(&[]), Caching::Fua);
    world.journal.sync(world.change(0, false)).unwrap();
    assert_eq!((world.journal.stats().full_for_unused, world.names.described.load(SeqCst)), (1, 0));
    world
}

fn put(handle: &mut Handle<'_>, block: u64, journal: &Journal) {
    let pin = journal.cache().pin(AFTER + block).unwrap();
    handle.change_for(&pin, 7, |bytes| bytes[0] += 1).unwrap();
}

impl World {
    /// A handle that changes a block.
    fn change(&self, block: u64, declares: bool) -> Tid {
        let mut handle = self.journal.start(1).unwrap();
        put(&mut handle, block, &self.journal);
        if declares {
            handle.declare();
        }
        let tid = handle.tid();
        handle.stop().unwrap();
        tid
    }

    /// The same, declared under a name.
    fn named(&self, name: &[u8]) -> Tid {
        self.names.declare(name);
        self.change(0, true)
    }

    /// What happens on the device meanwhile.
    fn events(&self, during: impl FnOnce()) -> Vec<Event> {
        let before = self.device.events().len();
        during();
        self.device.events()[before..].to_vec()
    }

    /// Full and fast commits so far.
    fn commits(&self) -> (u64, u64) {
        let stats = self.journal.stats();
        (stats.commits, stats.fast_commits)
    }

    /// The first block of the area.
    fn first(&self) -> Vec<u8> {
        block(&self.device.bytes(), FAST_AT)
    }
}

fn block(bytes: &[u8], block: u64) -> Vec<u8> {
    bytes[(block * u64::from(BLOCK)) as usize..][..BLOCK as usize].to_vec()
}

/// The names in the complete fast commits of a volume after a crash.
fn found(bytes: &[u8]) -> Vec<String> {
    struct Found(Vec<String>);

    impl FastCommitReplay for Found {
        type Error = Error;

        fn record(&mut self, _: u32, record: &FastCommitRecord<'_>) -> Result<()> {
            if let FastCommitRecord::Unlink(name) = record {
                self.0.push(String::from_utf8_lossy(name.name).into_owned());
            }
            Ok(())
        }

        fn committed(&mut self, _: u32) -> Result<()> {
            Ok(())
        }
    }

    let device: Arc<dyn Device> = Recorder::new(bytes.to_vec(), Caching::Durable);
    let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
    let info = JournalInfo::read(&cache, &*map()).unwrap();
    if !info.needs_recovery() {
        return Vec::new();
    }
    let recovery = Recovery::read(&device, &*map(), &info, AFTER + 64).unwrap();
    let mut found = Found(Vec::new());
    recovery.replay_fast_commits(&device, &*map(), u32::MAX, &mut found).unwrap();
    found.0
}

/// What a sync with fast commits wrote: each block with whether it was durable. Ends with an error at anything else.
fn writes(events: &[Event]) -> Vec<(u64, Vec<u8>, bool)> {
    let write = |event: &Event| match event {
        Event::Write { pos, bytes, fua } => (pos / u64::from(BLOCK), bytes.to_vec(), *fua),
        other => panic!("{other:?}"),
    };
    events.iter().map(write).collect()
}

#[test]
fn the_first_fast_commit_counts_only_when_all_of_it_is_durable() {
    let world = world();
    // Three blocks.
    (0..9).for_each(|n| world.names.declare(&[b'a' + n; 250]));
    let tid = world.named(b"last");
    let events = world
        .events(|| assert_eq!(world.journal.sync(tid).unwrap(), SyncOutcome::Committed { flushed: true }));
    let [before @ .., Event::Flush { .. }, last] = &events[..] else { panic!("{events:?}") };
    let (before, last) = (writes(before), writes(std::slice::from_ref(last)).remove(0));
    let places: Vec<u64> = before.iter().map(|(place, ..)| *place).collect();
    assert_eq!(places, [FAST_AT, FAST_AT + 1, FAST_AT + 2]);
    assert_eq!((last.0, last.2), (FAST_AT, true));
    assert!(before[0].1[..8] == [0; 8] && last.1[..8] != [0; 8] && before[0].1[8..] == last.1[8..]);
    assert_eq!(found(&world.device.bytes()).len(), 10);
    assert_eq!((world.commits(), world.journal.stats().fast_commit_blocks), ((1, 1), 3));
    assert_eq!(world.journal.running_tid(), Some(tid), "the transaction goes on");
}

#[test]
fn a_later_fast_commit_counts_by_its_last_block() {
    let world = world();
    world.journal.sync(world.named(b"first")).unwrap();
    (0..5).for_each(|n| world.names.declare(&[b'a' + n; 250]));
    let tid = world.named(b"last");
    let events = world.events(|| assert!(world.journal.sync(tid).is_ok()));
    let [before @ .., Event::Flush { .. }, last] = &events[..] else { panic!("{events:?}") };
    let (before, last) = (writes(before), writes(std::slice::from_ref(last)).remove(0));
    assert_eq!((before.len(), before[0].0, last.0, last.2), (1, FAST_AT + 1, FAST_AT + 2, true));
    // Shorter ones afterwards, from memory that held more.
    world.journal.sync(world.named(b"short")).unwrap();
    let found = found(&world.device.bytes());
    assert_eq!((found.len(), &found[0][..], &found[6][..], &found[7][..]), (8, "first", "last", "short"));
    assert_eq!(block(&world.device.bytes(), FAST_AT + 4), [0; BLOCK as usize], "nothing behind it");
}

/// Longer and shorter ones by turns, so that memory is kept, too short and too long.
#[test]
fn fast_commits_of_every_length_are_found() {
    let world = world();
    let mut names = Vec::new();
    for (round, count) in [1, 5, 1, 8, 2, 1, 4].into_iter().enumerate() {
        for n in 0..count {
            let name = format!("{round}-{n}-{}", "x".repeat(200));
            world.names.declare(name.as_bytes());
            names.push(name);
        }
        world.journal.sync(world.change(0, true)).unwrap();
        assert_eq!(found(&world.device.bytes()), names, "{round}");
    }
    assert_eq!(world.commits(), (1, 7));
}

#[test]
fn a_sync_with_nothing_new_writes_nothing() {
    let world = world();
    let tid = world.named(b"one");
    world.journal.sync(tid).unwrap();
    let events = world.events(|| assert!(world.journal.sync(tid).is_ok()));
    assert!(events.is_empty(), "{events:?}");
    assert_eq!(world.journal.sync(Tid(tid.0 - 1)).unwrap(), SyncOutcome::NothingToCommit);
}

#[test]
fn what_is_not_declared_is_committed_in_full() {
    let world = world();
    let undeclared = || world.journal.stats().full_for_undeclared;
    let tid = world.change(0, true);
    world.names.declare(b"one");
    world.journal.sync(tid).unwrap();
    // The block has been changed by this transaction: the short way.
    world.journal.sync(world.change(0, false)).unwrap();
    assert_eq!((world.commits(), undeclared()), ((2, 1), 1));
    // One undeclared handle among others.
    let tid = world.named(b"two");
    world.change(1, false);
    world.named(b"three");
    world.journal.sync(tid).unwrap();
    assert_eq!((world.commits(), undeclared()), ((3, 1), 2));
    // Data to wait for.
    let mut handle = world.journal.start(1).unwrap();
    handle.order(5).unwrap();
    put(&mut handle, 0, &world.journal);
    handle.declare();
    let tid = handle.tid();
    handle.stop().unwrap();
    world.journal.sync(tid).unwrap();
    assert_eq!((world.commits(), undeclared()), ((4, 1), 3));
}

/// A sync waits for active handles. One of them may change something without a declaration until it stops.
#[test]
fn a_sync_looks_at_handles_that_were_active_when_it_began() {
    let world = world();
    let tid = world.named(b"one");
    for declares in [true, false] {
        let mut handle = world.journal.start(1).unwrap();
        let (described, full) =
            (world.names.described.load(SeqCst), world.journal.stats().full_for_undeclared);
        thread::scope(|scope| {
            let sync = scope.spawn(|| world.journal.sync(tid).unwrap());
            thread::sleep(Duration::from_millis(50));
            assert!(!sync.is_finished() && world.names.described.load(SeqCst) == described);
            world.names.declare(b"two");
            put(&mut handle, 1, &world.journal);
            if declares {
                handle.declare();
            }
            handle.stop().unwrap();
        });
        assert_eq!(world.names.described.load(SeqCst) - described, u64::from(declares));
        assert_eq!(world.journal.stats().full_for_undeclared - full, u64::from(!declares));
    }
}

/// A change in one step takes the short way only for a block that the transaction has changed and still has.
#[test]
fn a_change_in_one_step_pays_and_is_logged() {
    let world = world();
    let pin = world.journal.cache().pin(AFTER + 3).unwrap();
    let mut handle = world.journal.start(3).unwrap();
    handle.get_write_access(&pin).unwrap();
    handle.change_for(&pin, 7, |bytes| bytes[1] = 1).unwrap();
    assert_eq!(handle.credits(), 2, "write access alone is no change");
    handle.revoke(AFTER + 3).unwrap();
    assert_eq!(handle.credits(), 1);
    handle.change_for(&pin, 7, |bytes| bytes[2] = 2).unwrap();
    handle.change_for(&pin, 7, |bytes| bytes[3] = 3).unwrap();
    let tid = handle.tid();
    handle.stop().unwrap();
    world.journal.datasync(tid).unwrap();
    assert_eq!(replayed(&world.device.bytes(), AFTER + 3)[1..4], [1, 2, 3]);
    // The next transaction pays anew.
    let mut handle = world.journal.start(1).unwrap();
    handle.change_for(&pin, 7, |bytes| bytes[4] = 4).unwrap();
    assert_eq!(handle.credits(), 0);
    handle.stop().unwrap();
}

/// A block that this transaction has changed before.
#[test]
fn a_handle_dropped_after_a_repeated_change_ends_the_journal() {
    let world = world();
    world.named(b"one");
    let mut handle = world.journal.start(1).unwrap();
    put(&mut handle, 0, &world.journal);
    assert_eq!(handle.credits(), 1, "it was paid before");
    drop(handle);
    assert!(world.journal.aborted().is_some());
}

#[test]
fn a_repeated_change_keeps_for_whom_a_block_is_sound() {
    let world = world();
    let pin = world.journal.cache().pin(AFTER).unwrap();
    let mut handle = world.journal.start(1).unwrap();
    handle.declare();
    let sound = |whom| {
        let mut looked = false;
        let verify = |_: &[u8]| {
            looked = true;
            Ok::<(), uext4_buffer::Error>(())
        };
        world.journal.cache().get_or_verify_for(AFTER, whom, verify).unwrap();
        !looked
    };
    handle.change_for(&pin, 7, |bytes| bytes[0] += 1).unwrap();
    assert!(sound(7));
    handle.change_for(&pin, 8, |bytes| bytes[0] += 1).unwrap();
    assert!(sound(8) && !sound(7));
    handle.stop().unwrap();
}

#[test]
fn a_refused_description_is_committed_in_full() {
    let world = world();
    for (round, reason) in [FullCommit::File, FullCommit::AreaFull].into_iter().enumerate() {
        *world.names.refuses.lock() = Some(reason);
        let tid = world.named(b"one");
        world.journal.sync(tid).unwrap();
        assert_eq!(world.journal.last_committed(), tid);
        assert_eq!(world.commits(), (2 + round as u64, 0));
    }
    let stats = world.journal.stats();
    assert_eq!((stats.full_for_file, stats.full_for_area, stats.full_for_undeclared), (1, 1, 0));
}

#[test]
fn a_full_area_begins_again_after_a_full_commit() {
    let world = world();
    for round in 0..3 * (USED + 1) {
        world.journal.sync(world.named(format!("{round}").as_bytes())).unwrap();
        let left = round % (USED + 1);
        let expected = if left == USED { 0 } else { left + 1 };
        assert_eq!(found(&world.device.bytes()).len() as u64, expected, "{round}");
    }
    assert_eq!((world.commits(), world.journal.stats().full_for_area), ((4, 3 * USED), 3));
}

/// e2fsck 1.47.0 reports an error if the first fast commit has an older number.
#[test]
fn a_full_commit_erases_fast_commits_before_it_returns() {
    for caching in [Caching::Fua, Caching::Flush, Caching::Durable] {
        let world = open(volume(&[]), caching);
        world.journal.sync(world.change(0, false)).unwrap();
        let tid = world.named(b"one");
        world.journal.sync(tid).unwrap();
        assert_ne!(world.first(), [0; BLOCK as usize]);
        world.journal.datasync(tid).unwrap();
        let events = world.device.events();
        let mut crashes = Crashes::new(volume(&[]), &events);
        crashes.advance(events.len());
        let mut random = uext4_testkit::Rng::new(1);
        for _ in 0..50 {
            assert_eq!(block(&crashes.image(&mut random), FAST_AT), [0; BLOCK as usize], "{caching:?}");
        }
        // Not once more.
        let events = world.events(|| assert!(world.journal.datasync(world.change(0, true)).is_ok()));
        let there =
            |event: &Event| matches!(event, Event::Write { pos, .. } if pos / u64::from(BLOCK) == FAST_AT);
        assert!(!events.iter().any(there));
    }
}

/// Whoever used the log before may have left fast commits of any number there.
#[test]
fn the_first_commit_erases_what_the_area_holds() {
    let leftover = |sequence| {
        let mut writer = FastCommitWriter::new(BLOCK as usize, sequence, true).unwrap();
        let name = FastCommitName { parent: Ino(2), ino: Ino(12), name: b"leftover" };
        writer.push(&FastCommitRecord::Unlink(name)).unwrap();
        writer.finish().unwrap()
    };
    for fast_commits in [true, false] {
        // The transaction before the first one and the one after it.
        for sequence in [41, 43] {
            let base = volume(&leftover(sequence));
            let device = Recorder::new(base.clone(), Caching::Fua);
            let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
            let options = JournalOptions { fast_commits, ..JournalOptions::default() };
            let journal = Journal::open_with(cache, map(), Arc::default(), &options).unwrap();
            let mut handle = journal.start(1).unwrap();
            put(&mut handle, 0, &journal);
            let tid = handle.tid();
            handle.stop().unwrap();
            journal.sync(tid).unwrap();
            let events = device.events();
            let mut crashes = Crashes::new(base, &events);
            let mut random = uext4_testkit::Rng::new(u64::from(sequence));
            for cut in 0..=events.len() {
                crashes.advance(cut);
                for _ in 0..50 {
                    let image = crashes.image(&mut random);
                    let committed = cut == events.len();
                    assert_eq!(found(&image), Vec::<String>::new(), "{sequence} at {cut}");
                    assert!(!committed || block(&image, FAST_AT) == [0; BLOCK as usize]);
                }
            }
            assert!(!events.is_empty());
        }
    }
}

/// Every sync that returned is in the log or in the area after a crash at any later point, on every kind of device.
#[test]
fn what_was_acknowledged_is_found_after_every_crash() {
    for caching in [Caching::Fua, Caching::Flush, Caching::Durable] {
        let base = volume(&[]);
        let world = open(base.clone(), caching);
        world.journal.sync(world.change(0, false)).unwrap();
        for round in 1..40_u64 {
            (0..round % 6).for_each(|n| world.names.declare(format!("{round}-{n:0200}").as_bytes()));
            let tid = world.named(format!("{round}").as_bytes());
            if round % 19 == 0 {
                world.change(1, false);
            }
            world.journal.sync(tid).unwrap();
            world.device.promise(round);
        }
        let events = world.device.events();
        let mut crashes = Crashes::new(base, &events);
        let mut random = uext4_testkit::Rng::new(5);
        for cut in 0..=events.len() {
            crashes.advance(cut);
            for _ in 0..6 {
                let image = crashes.image(&mut random);
                let promised = crashes.promises.last().copied().unwrap_or(0);
                assert!(present(&image) >= promised, "{caching:?}: {promised} at {cut}");
            }
        }
        let stats = world.journal.stats();
        assert!(stats.fast_commits > 20 && stats.full_for_area > 0, "{stats:?}");
    }
}

/// The last round that a crash left: full commits have a counter in block 0, fast commits a name.
fn present(bytes: &[u8]) -> u64 {
    let device: Arc<dyn Device> = Recorder::new(bytes.to_vec(), Caching::Durable);
    let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
    let info = JournalInfo::read(&cache, &*map()).unwrap();
    if !info.needs_recovery() {
        return 0;
    }
    let names = found(bytes);
    let named = names.iter().rev().find_map(|name| name.parse::<u64>().ok());
    // The change before the first round, then one a round.
    named.unwrap_or(0).max(u64::from(replayed(bytes, AFTER)[0]).saturating_sub(1))
}

/// A block of the volume after the replay of the log.
fn replayed(bytes: &[u8], block: u64) -> Vec<u8> {
    let device: Arc<dyn Device> = Recorder::new(bytes.to_vec(), Caching::Durable);
    let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
    let info = JournalInfo::read(&cache, &*map()).unwrap();
    let recovery = Recovery::read(&device, &*map(), &info, AFTER + 64).unwrap();
    recovery.write_home(&*device, &*map(), &mut |_, _| ()).unwrap();
    let mut home = uext4_blockdev::BufferPool::new(4096).unwrap().take(BLOCK as usize).unwrap();
    device.read_at(&mut home, block * u64::from(BLOCK)).unwrap();
    home.to_vec()
}
