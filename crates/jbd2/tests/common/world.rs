//! Random transactions on a few blocks, a model of them, and the check of what a crash has left.

use super::recorder::{Caching, Crashes, Recorder};
use super::{BLOCK, LOG};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock, Weak};
use uext4_blockdev::{BufferPool, Device, WriteDurability};
use uext4_buffer::{BufferCache, CacheOptions};
use uext4_jbd2::{
    AbortCause, CommitHooks, Error, FreedRun, Handle, Journal, JournalInfo, JournalOptions, LogEnd, Recovery,
    RunMap, Tid, mark_empty,
};
use uext4_testkit::Rng;

/// Blocks that transactions change.
pub const BLOCKS: u64 = 120;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Metadata, with a version.
    Meta(u64),
    /// Freed by this transaction.
    Free(Tid),
    /// Data, written past the journal.
    Data(u64),
}

/// Contents that say what they are, in every sector.
fn contents(block: u64, kind: Kind) -> Vec<u8> {
    let (tag, version) = match kind {
        Kind::Meta(version) => (1, version),
        Kind::Data(version) => (2, version),
        Kind::Free(_) => return Vec::new(),
    };
    if version == 0 {
        return vec![0; BLOCK as usize];
    }
    let mut random = Rng::new(block << 32 ^ version << 2 ^ tag);
    let mut bytes = vec![0; BLOCK as usize];
    random.fill(&mut bytes);
    if version.is_multiple_of(5) {
        // Looks like a block of the log itself.
        bytes[..8].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 1 + (version % 4) as u8]);
    }
    bytes
}

#[derive(Debug)]
struct Model {
    kinds: Vec<Kind>,
    /// Kinds as they were when a transaction committed.
    states: Vec<(Tid, Vec<Kind>)>,
    versions: u64,
    committed: Tid,
    /// Data that the next commit has to send.
    unsent: Vec<(u64, u64)>,
    random: Rng,
}

/// The file system of the test: keeps the model, sends ordered data, and changes blocks while others commit.
pub struct Hooks {
    /// The first of the blocks.
    data: u64,
    model: Mutex<Model>,
    pub device: Arc<Recorder>,
    journal: OnceLock<Weak<Journal>>,
    /// The journal is quiesced.
    quiet: AtomicBool,
}

impl Hooks {
    fn write_data(&self, block: u64, version: u64) -> Result<(), AbortCause> {
        let mut buffer = BufferPool::new(4096).unwrap().take(BLOCK as usize).unwrap();
        buffer.copy_from_slice(&contents(block, Kind::Data(version)));
        let pos = (self.data + block) * u64::from(BLOCK);
        let failed = |error: uext4_blockdev::Error| AbortCause { what: "data".into(), errno: error.errno() };
        self.device.write_at(&buffer, pos, WriteDurability::Cached).map_err(failed)
    }

    /// One handle with a few changes.
    fn transact(&self, journal: &Journal) -> Result<Tid, Error> {
        let mut handle = journal.start(40)?;
        let (ordered, changes) = {
            let random = &mut self.model.lock().random;
            (random.chance(40), 1 + random.below(20))
        };
        if ordered {
            handle.order(1)?;
        }
        for _ in 0..changes {
            self.change(&mut handle, journal, ordered)?;
        }
        let tid = handle.tid();
        handle.stop()?;
        Ok(tid)
    }

    fn change(&self, handle: &mut Handle<'_>, journal: &Journal, ordered: bool) -> Result<(), Error> {
        let mut model = self.model.lock();
        let block = model.random.below(BLOCKS);
        let draw = model.random.below(100);
        model.versions += 1;
        let version = model.versions;
        let committed = model.committed;
        let kind = &mut model.kinds[block as usize];
        match *kind {
            Kind::Meta(_) if draw < 75 => {
                *kind = Kind::Meta(version);
                self.put(handle, journal, block, version, draw < 40)?;
            }
            Kind::Meta(_) => {
                handle.revoke(self.data + block)?;
                handle.free_at_commit(FreedRun { first: block, blocks: 1 })?;
                *kind = Kind::Free(handle.tid());
                if draw > 94 {
                    *kind = Kind::Meta(version);
                    self.put(handle, journal, block, version, true)?;
                }
            }
            Kind::Free(tid) if tid == handle.tid() || tid <= committed => {
                let data = tid <= committed && draw < 50;
                *kind = if data { Kind::Data(version) } else { Kind::Meta(version) };
                if !data {
                    self.put(handle, journal, block, version, true)?;
                } else if draw < 25 || !ordered {
                    self.write_data(block, version).map_err(Error::Aborted)?;
                } else {
                    model.unsent.push((block, version));
                }
            }
            Kind::Data(_) if draw < 30 => {
                handle.free_at_commit(FreedRun { first: block, blocks: 1 })?;
                *kind = Kind::Free(handle.tid());
            }
            Kind::Free(_) | Kind::Data(_) => {}
        }
        Ok(())
    }

    fn put(
        &self,
        handle: &mut Handle<'_>,
        journal: &Journal,
        block: u64,
        version: u64,
        whole: bool,
    ) -> Result<(), Error> {
        let pin = journal.cache().pin(self.data + block)?;
        let new = contents(block, Kind::Meta(version));
        handle.get_write_access(&pin)?;
        let change = |bytes: &mut [u8]| bytes.copy_from_slice(&new);
        if whole { handle.overwrite(&pin, change) } else { handle.dirty(&pin, change) }
    }
}

impl Model {
    /// What transaction `tid` makes of the volume, if that was not noted before the next one began.
    fn note(&mut self, tid: Tid) {
        if self.states.iter().all(|(known, _)| *known != tid) {
            self.states.push((tid, self.kinds.clone()));
        }
    }
}

impl CommitHooks for Hooks {
    fn send_ordered(&self, tid: Tid, inodes: &[u64]) -> Result<(), AbortCause> {
        assert_eq!(inodes, [1]);
        let (unsent, busy) = {
            let mut model = self.model.lock();
            model.note(tid);
            (std::mem::take(&mut model.unsent), model.random.chance(60))
        };
        unsent.into_iter().try_for_each(|(block, version)| self.write_data(block, version))?;
        let journal = self.journal.get().and_then(Weak::upgrade).unwrap();
        if self.model.lock().random.chance(15) {
            // The tail must not pass what the transaction that commits has freed.
            let _checkpointed = journal.checkpoint();
        }
        // A hook must not wait for room or for the end of a quiesce.
        if busy && !self.quiet.load(SeqCst) && journal.stats().free_blocks > LOG / 2 {
            match self.transact(&journal) {
                Err(Error::Aborted(cause)) => return Err(cause),
                other => drop(other.unwrap()),
            }
        }
        Ok(())
    }

    fn committed(&self, tid: Tid, freed: &[FreedRun]) {
        assert!(freed.iter().all(|run| run.blocks == 1 && run.first < BLOCKS));
        let mut model = self.model.lock();
        // Without data to be sent nothing begins before this.
        model.note(tid);
        model.committed = tid;
        drop(model);
        self.device.promise(tid.0);
    }

    fn aborted(&self, _: &AbortCause) {
        // Of the commit that failed all may be there.
        let mut model = self.model.lock();
        let failed = model.committed.next();
        model.note(failed);
    }
}

/// A volume to begin with: its bytes and what the model says of them.
pub struct Start {
    pub bytes: Vec<u8>,
    pub log: Arc<RunMap>,
    /// The first of the blocks.
    pub data: u64,
    pub kinds: Vec<Kind>,
    pub versions: u64,
}

impl Start {
    /// A volume whose blocks are all zeroes.
    pub fn new(bytes: Vec<u8>, log: Arc<RunMap>, data: u64) -> Start {
        Start { bytes, log, data, kinds: vec![Kind::Meta(0); BLOCKS as usize], versions: 0 }
    }
}

pub struct Run {
    pub start: Start,
    pub hooks: Arc<Hooks>,
    /// Last committed when the run began.
    base: Tid,
}

pub fn run(start: Start, caching: Caching, options: &JournalOptions, rounds: u32, random: &mut Rng) -> Run {
    let (run, result) = run_with(start, caching, options, rounds, random, u64::MAX, false);
    result.unwrap();
    run
}

/// As [`run`], on a device that fails after so many writes and flushes, once or for good; the run ends with that,
/// unless it was somebody else's.
pub fn run_with(
    start: Start,
    caching: Caching,
    options: &JournalOptions,
    rounds: u32,
    random: &mut Rng,
    fail_in: u64,
    once: bool,
) -> (Run, Result<(), Error>) {
    let device = Recorder::new(start.bytes.clone(), caching);
    let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
    let journal = Arc::new(Journal::open_with(cache, start.log.clone(), Arc::default(), options).unwrap());
    let base = journal.last_committed();
    let model = Model {
        kinds: start.kinds.clone(),
        states: vec![(base, start.kinds.clone())],
        versions: start.versions,
        committed: base,
        unsent: Vec::new(),
        random: random.fork(1),
    };
    device.fail_in.store(fail_in, SeqCst);
    device.fail_once.store(once, SeqCst);
    let hooks = Arc::new(Hooks {
        data: start.data,
        model: Mutex::new(model),
        device,
        journal: OnceLock::new(),
        quiet: AtomicBool::new(false),
    });
    hooks.journal.set(Arc::downgrade(&journal)).unwrap();
    journal.set_hooks(hooks.clone());
    let result = (0..rounds).try_for_each(|_| round(&journal, &hooks, random));
    assert!(result.is_err() || journal.aborted().is_none());
    if let Err(Error::Aborted(cause)) = &result {
        // The file system's own failure to write data counts too.
        journal.abort(cause.clone());
        // Nothing gets over it.
        hooks.device.fail_in.store(u64::MAX, SeqCst);
        assert!(matches!(journal.start(1).map(drop), Err(Error::Aborted(_))));
        assert!(matches!(journal.commit_all(), Err(Error::Aborted(_))));
        assert!(matches!(journal.checkpoint(), Err(Error::Aborted(_))));
        assert!(matches!(journal.empty_log(), Err(Error::Aborted(_))));
    }
    (Run { start, hooks, base }, result)
}

fn round(journal: &Journal, hooks: &Hooks, random: &mut Rng) -> Result<(), Error> {
    let tid = hooks.transact(journal)?;
    match random.below(100) {
        0..60 => drop(journal.datasync(tid)?),
        60..64 => journal.checkpoint()?,
        64..66 => {
            hooks.quiet.store(true, SeqCst);
            journal.empty_log()?;
            hooks.quiet.store(false, SeqCst);
        }
        // Somebody else's failure: it takes nothing from the journal.
        66..69 => drop(journal.cache().write_back()),
        _ => {}
    }
    Ok(())
}

/// Recovers and checks an image; gives the volume back as the next use of it begins.
pub fn check(run: &Run, image: Vec<u8>, promises: &[u64]) -> (Tid, Start) {
    let recorder = Recorder::new(image, Caching::Durable);
    let device: Arc<dyn Device> = recorder.clone();
    let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
    let log = &run.start.log;
    let info = JournalInfo::read(&cache, &**log).unwrap();
    let recovery = Recovery::read(&device, &**log, &info, cache.blocks()).unwrap();
    let ended = recovery.report().ended;
    assert!(matches!(ended, LogEnd::Complete | LogEnd::Full | LogEnd::Stale), "{ended}");
    recovery.write_home(&*device, &**log, &mut |_, _| ()).unwrap();
    mark_empty(&*device, &info, recovery.settled_sequence(), 0).unwrap();

    let promised = promises.last().map_or(run.base, |tid| Tid(*tid));
    let found = if info.needs_recovery() {
        Tid::near(recovery.report().end.previous().sequence(), promised)
    } else {
        promised
    };
    assert!(found >= promised, "transaction {promised} was promised, {found} is the last one there");
    let bytes = recorder.bytes();
    let kinds = compare(run, &bytes, found);
    let versions = run.hooks.model.lock().versions;
    let (log, data) = (run.start.log.clone(), run.start.data);
    (found, Start { bytes, log, data, kinds, versions })
}

/// The blocks of a volume are as a transaction left them.
pub fn compare(run: &Run, volume: &[u8], found: Tid) -> Vec<Kind> {
    let model = run.hooks.model.lock();
    let state = model.states.iter().rev().find(|(tid, _)| *tid == found);
    let (_, kinds) = state.unwrap_or_else(|| panic!("{found} is no state of the volume"));
    let blocks = volume[(run.start.data * u64::from(BLOCK)) as usize..].chunks(BLOCK as usize);
    for (block, (kind, got)) in (0..).zip(kinds.iter().zip(blocks)) {
        let is_free = matches!(kind, Kind::Free(_));
        assert!(is_free || *got == contents(block, *kind), "block {block} is not {kind:?} of {found}");
    }
    let settle = |kind: &Kind| if let Kind::Free(_) = kind { Kind::Free(Tid(0)) } else { *kind };
    kinds.iter().map(settle).collect()
}

/// Runs a volume, crashes it at `cuts` points, and gives one of the outcomes back. `also` sees every image, after it
/// was checked, with the transaction that was found in it.
pub fn crash(
    run: &Run,
    cuts: u64,
    random: &mut Rng,
    seen: &mut HashSet<u64>,
    also: &mut dyn FnMut(&[u8], Tid),
) -> Start {
    let events = run.hooks.device.events();
    let mut points: Vec<usize> = (0..cuts).map(|_| random.below(events.len() as u64 + 1) as usize).collect();
    points.sort_unstable();
    let chosen = random.below(cuts);
    let mut crashes = Crashes::new(run.start.bytes.clone(), &events);
    let mut next = None;
    for (number, cut) in (0..).zip(points) {
        crashes.advance(cut);
        let image = crashes.image(random);
        let mut hash = DefaultHasher::new();
        image.hash(&mut hash);
        if seen.insert(hash.finish()) || number == chosen {
            let (found, recovered) = check(run, image.clone(), &crashes.promises);
            also(&image, found);
            next = if number == chosen { Some(recovered) } else { next };
        }
    }
    next.unwrap()
}
