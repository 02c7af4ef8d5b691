//! A file system of one file for tests of the engine. Something can happen to its file between any two steps of a
//! request: the engine asks for the inode's state at each, and one of these looks can be given a consequence.
#![allow(dead_code, reason = "every test uses a part of it")]

pub mod converting;
pub mod model;

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uext4_blockdev::{Buffer, BufferPool, Device, QueueOptions};
use uext4_iomap::switches::Routing;
use uext4_iomap::{
    Count, Counter, Engine, Error, FileSlot, FileSystem, InodeState, IoQueue, MapSnapshot, OpenFile, Run,
    State, Switches, Synced,
};

/// Bytes of a block.
pub const BLOCK: u64 = 4096;

/// What happens at a look.
type Consequence = Box<dyn Fn(&Watched) + Send + Sync>;

/// The inode, and what is going to happen to it.
pub struct Watched {
    pub state: InodeState,
    /// What the file system says of the file. The published map is what the engine was told of it.
    pub runs: Mutex<Vec<Run>>,
    /// The last committed transaction.
    pub committed: Arc<AtomicU64>,
    looks: AtomicU64,
    at: AtomicU64,
    consequence: Mutex<Option<Consequence>>,
}

impl Watched {
    /// Blocks of the file.
    pub fn blocks(&self) -> u64 {
        self.state.size() / BLOCK
    }

    /// Makes `consequence` happen at the look `at` from now, counted from 0.
    pub fn arm(&self, at: u64, consequence: impl Fn(&Watched) + Send + Sync + 'static) {
        *self.consequence.lock() = Some(Box::new(consequence));
        self.looks.store(0, Ordering::SeqCst);
        self.at.store(at, Ordering::SeqCst);
    }

    /// Looks since it was armed, or `None` if its consequence did not happen.
    pub fn disarm(&self) -> Option<u64> {
        let happened = self.consequence.lock().take().is_none();
        happened.then(|| self.looks.load(Ordering::SeqCst))
    }

    /// Publishes all of `runs` in this state, whatever the rules say: at any moment of a request, and of written blocks
    /// too.
    pub fn publish(&self, state: State) {
        let mut runs = self.runs.lock();
        runs.iter_mut().for_each(|run| run.state = state);
        self.state.map.lock().end_unchecked(0, self.blocks(), Some(&runs));
    }

    /// As a file system does at the end of a write into unwritten blocks: the conversion waits for transaction 7.
    pub fn convert(&self) {
        let mut runs = self.runs.lock();
        runs.iter_mut().for_each(|run| run.state = State::Written);
        let mut map = self.state.map.lock();
        let all = 0..self.blocks();
        self.state.converted(&mut map, 7, &[all]).unwrap();
    }

    /// As a file system does that has given blocks to holes: they are unwritten from now on.
    pub fn allocate(&self) {
        let mut runs = self.runs.lock();
        runs.iter_mut().for_each(|run| run.state = State::Unwritten);
        self.state.map.lock().add(0, self.blocks(), &runs).unwrap();
    }

    /// The engine has to ask again for all of the map.
    pub fn forget(&self) {
        self.state.map.lock().forget();
    }
}

/// See the module.
pub struct OneFile {
    aborted: AtomicBool,
    /// Runs that one load makes known; everything else is forgotten. 0: all, and nothing is.
    pub window: AtomicU64,
    pub commits: AtomicU64,
    /// Of them, those of all metadata.
    pub full_commits: AtomicU64,
    /// The next commit panics.
    pub panics: AtomicBool,
    /// Time of the last write that the last commit of all metadata covers.
    pub committed_write_ns: AtomicU64,
}

impl OneFile {
    /// Commits asked for.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    /// Commits of all metadata asked for.
    pub fn full_commits(&self) -> u64 {
        self.full_commits.load(Ordering::SeqCst)
    }
}

impl FileSystem for OneFile {
    type Inode = Watched;
    type Error = Error;
    type Handle<'a> = ();
    type Reserve = ();
    type Swap = ();
    type Extension = ();
    type Append = ();

    fn state(inode: &Watched) -> &InodeState {
        if inode.looks.fetch_add(1, Ordering::SeqCst) == inode.at.load(Ordering::SeqCst)
            && let Some(consequence) = inode.consequence.lock().take()
        {
            consequence(inode);
        }
        &inode.state
    }

    fn check_alive(&self) -> Result<(), Error> {
        if self.aborted.load(Ordering::Relaxed) {
            Err(Error::BadMode("an aborted file system"))
        } else {
            Ok(())
        }
    }

    fn abort(&self, _cause: Error) {
        self.aborted.store(true, Ordering::Relaxed);
    }

    fn map(&self, inode: &Watched, pos: u64) -> Result<Arc<MapSnapshot>, Error> {
        let runs = inode.runs.lock();
        let mut writer = inode.state.map.lock();
        let window = self.window.load(Ordering::SeqCst) as usize;
        let (known, first, end) = if window == 0 {
            (&runs[..], 0, inode.blocks())
        } else {
            writer.forget();
            let first = runs.iter().position(|run| (u64::from(run.first) + run.length) * BLOCK > pos);
            let mut first = first.expect("a position in the file");
            first -= first % window;
            let known = &runs[first..(first + window).min(runs.len())];
            let last = known[known.len() - 1];
            (known, u64::from(known[0].first), u64::from(last.first) + last.length)
        };
        writer.add(first, end, known)?;
        Ok(Arc::new(MapSnapshot::of(first, end, known)))
    }

    fn start_mapping<R: Routing>(&self, routing: R, counters: &impl Count) -> Result<Option<()>, Error> {
        if routing.switches().overwrite_no_transaction {
            return Ok(None);
        }
        counters.bump(Counter::HandlesStarted);
        Ok(Some(()))
    }

    fn stop_mapping(&self, (): ()) -> Result<(), Error> {
        Ok(())
    }

    fn datasync(&self, batch: &[Synced<'_, Self>]) -> Result<bool, Error> {
        self.commits.fetch_add(1, Ordering::SeqCst);
        assert!(!self.panics.swap(false, Ordering::SeqCst), "on purpose");
        self.full_commits.fetch_add(u64::from(batch.iter().any(|one| one.all)), Ordering::SeqCst);
        for one in batch.iter().filter(|one| one.all) {
            self.committed_write_ns.store(one.inode.state.gate.last_write_ns(), Ordering::SeqCst);
        }
        Ok(false)
    }
}

/// An engine over a device, with the one file.
pub struct Bed {
    pub engine: Arc<Engine<OneFile>>,
    pub inode: Arc<Watched>,
    pub device: Arc<dyn Device>,
}

impl Bed {
    /// A file of `blocks` blocks in runs of `run` blocks, each run a block away from the one before, in this state.
    pub fn new(device: Arc<dyn Device>, blocks: u64, run: u64, state: State) -> Bed {
        let fs = OneFile {
            aborted: AtomicBool::new(false),
            window: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            full_commits: AtomicU64::new(0),
            panics: AtomicBool::new(false),
            committed_write_ns: AtomicU64::new(0),
        };
        let engine = Arc::new(Engine::new(Arc::new(fs), device.clone()).unwrap());
        let runs = (0..blocks).step_by(run as usize).map(|first| {
            let physical = 16 + first + first / run;
            Run { first: first as u32, length: run.min(blocks - first), state, physical }
        });
        let committed = Arc::new(AtomicU64::new(0));
        let inode = Arc::new(Watched {
            state: InodeState::new(blocks * BLOCK, BLOCK.trailing_zeros(), committed.clone()),
            committed,
            runs: Mutex::new(runs.collect()),
            looks: AtomicU64::new(0),
            at: AtomicU64::new(u64::MAX),
            consequence: Mutex::new(None),
        });
        inode.publish(state);
        Bed { engine, inode, device }
    }

    /// The file, open for both.
    pub fn file(&self, switches: Switches) -> OpenFile<OneFile> {
        OpenFile::new(self.inode.clone(), true, true, switches)
    }

    /// A queue with the file attached.
    pub fn queue(&self, depth: u32, switches: Switches) -> (IoQueue<OneFile>, FileSlot) {
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut queue = IoQueue::new(&self.engine, QueueOptions::depth(depth), pool).unwrap();
        let slot = queue.attach(&self.file(switches)).unwrap();
        (queue, slot)
    }

    /// How often something was counted.
    pub fn count(&self, counter: Counter) -> u64 {
        self.engine.stats().get(counter)
    }

    /// The bytes of the file as they lie on the device.
    pub fn on_device(&self) -> Vec<u8> {
        let mut bytes = vec![0; (self.inode.blocks() * BLOCK) as usize];
        for run in &*self.inode.runs.lock() {
            let mut part = memory((run.length * BLOCK) as usize, 0);
            self.device.read_at(&mut part, run.physical * BLOCK).unwrap();
            let start = (u64::from(run.first) * BLOCK) as usize;
            bytes[start..start + part.len()].copy_from_slice(&part);
        }
        bytes
    }
}

/// Aligned memory full of `byte`.
pub fn memory(length: usize, byte: u8) -> Buffer {
    let mut buffer = BufferPool::new(length).unwrap().take(length).unwrap();
    buffer.fill(byte);
    buffer
}

/// The result of the only request of a queue.
pub fn outcome(queue: &mut IoQueue<OneFile>) -> Result<usize, Error> {
    let done = queue.wait(1).unwrap().next().expect("a completion");
    done.result.map_err(|error| *error)
}
