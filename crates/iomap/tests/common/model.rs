//! A file system of one file that really allocates, converts and extends, in memory, and looks closely at what it is
//! asked: its blocks are full of [`GARBAGE`] when they are allocated, so whoever makes a block readable whose data is
//! not there, or whose rest was not zeroed, shows it at once.

use super::{BLOCK, memory};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::{
    BufferPool, Capabilities, DaxKind, Description, Device, Geometry, Queue, QueueOptions, WriteDurability,
};
use uext4_iomap::gate::InodeGuard;
use uext4_iomap::switches::Routing;
use uext4_iomap::{
    Blocks, Count, Counter, Engine, Error, Extended, FileSlot, FileSystem, InodeState, IoQueue, MapKind,
    MapSnapshot, OpenFile, Run, State, Switches, Synced,
};
use uext4_testkit::device::{FaultDevice, FaultHandle, LateDevice, LateHandle};

/// What new blocks are full of. Tests never write it.
pub const GARBAGE: u8 = 0xEE;

/// Blocks of the device.
const DEVICE_BLOCKS: u64 = 128;

/// Blocks of the file that its map covers.
const FILE_BLOCKS: u64 = 256;

/// A call of the seam.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Allocate,
    Reserve,
    Convert,
    ExtendBegin,
    ExtendEnd,
    Failed,
    Datasync,
}

/// The file.
pub struct Inode {
    pub state: InodeState,
    truth: Mutex<Truth>,
}

/// What the file system knows of its file.
#[derive(Default)]
struct Truth {
    blocks: BTreeMap<u64, (u64, State)>,
    free: Vec<u64>,
    extending: bool,
    /// Blocks that the extension under way has allocated.
    new: BTreeSet<u64>,
    /// The transaction that changes the file now.
    tid: u64,
    /// The transaction that made each block written.
    made_in: BTreeMap<u64, u64>,
}

/// See the module.
pub struct Model {
    device: Arc<dyn Device>,
    mapped: bool,
    /// The last transaction that is durable.
    committed: Arc<AtomicU64>,
    pub calls: Mutex<Vec<Call>>,
    /// The call with this number from now on fails, counted from 0.
    pub fault: AtomicI64,
    pub reserves: Arc<AtomicU64>,
    /// Blocks behind the size are written at once.
    pub eager: AtomicBool,
    /// Says that it has allocated, and has not.
    pub lies: AtomicBool,
    aborted: AtomicBool,
}

/// One request's share of the reserve.
pub struct Reserve(Arc<AtomicU64>);

impl Drop for Reserve {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Model {
    fn call(&self, call: Call) -> Result<(), Error> {
        self.calls.lock().push(call);
        if self.fault.fetch_sub(1, Ordering::SeqCst) == 0 {
            return Err(Error::BadMode("what fails on purpose"));
        }
        Ok(())
    }

    /// Bytes of a block of the device.
    fn block(&self, physical: u64) -> Vec<u8> {
        let mut bytes = memory(BLOCK as usize, 0);
        self.device.read_at(&mut bytes, physical * BLOCK).unwrap();
        bytes.to_vec()
    }

    /// Makes unwritten blocks written, and looks whether everything in them may be read.
    fn make_written(&self, inode: &Inode, truth: &mut Truth, blocks: &[Blocks], size: u64) {
        for block in blocks.iter().cloned().flatten() {
            let Some(entry) = truth.blocks.get_mut(&block) else { panic!("block {block} has no place") };
            if entry.1 == State::Unwritten {
                let visible = size.saturating_sub(block * BLOCK).min(BLOCK) as usize;
                let bytes = self.block(entry.0);
                assert!(
                    !bytes[..visible].contains(&GARBAGE),
                    "block {block} is converted with what was in it"
                );
                // Mapped memory is converted full of zeros.
                let filled = self.mapped || bytes.iter().any(|&byte| byte != 0);
                assert!(filled, "block {block} is converted before its data is there");
                entry.1 = State::Written;
                truth.made_in.insert(block, truth.tid);
            }
        }
        inode.state.converted(&mut inode.state.map.lock(), truth.tid, blocks).unwrap();
    }
}

impl Inode {
    fn runs(truth: &Truth) -> Vec<Run> {
        let run = |(&first, &(physical, state)): (&u64, &(u64, State))| Run {
            first: first as u32,
            length: 1,
            state,
            physical,
        };
        truth.blocks.iter().map(run).collect()
    }

    /// What was loaded or allocated.
    fn publish(&self, truth: &Truth) -> Arc<MapSnapshot> {
        let runs = Self::runs(truth);
        self.state.map.lock().add(0, FILE_BLOCKS, &runs).unwrap();
        Arc::new(MapSnapshot::of(0, FILE_BLOCKS, &runs))
    }

    /// Whether somebody holds the gate alone.
    fn is_held_alone(&self) -> bool {
        self.state.gate.try_lock_shared(false).is_err()
    }

    /// State of the block of a byte.
    pub fn state_at(&self, pos: u64) -> State {
        self.truth.lock().blocks.get(&(pos / BLOCK)).map_or(State::Hole, |&(_, state)| state)
    }

    /// Whether what made these bytes written is durable.
    pub fn is_durable(&self, range: Range<u64>, committed: u64) -> bool {
        let truth = self.truth.lock();
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        blocks.into_iter().all(|block| truth.made_in.get(&block).is_none_or(|&tid| tid <= committed))
    }

    /// The engine has to ask again for all of the map.
    pub fn forget(&self) {
        self.state.map.lock().forget();
    }
}

impl FileSystem for Model {
    type Inode = Inode;
    type Error = Error;
    type Handle<'a> = ();
    type Reserve = Reserve;
    type Swap = ();
    type Extension = u64;
    type Append = ();

    fn state(inode: &Inode) -> &InodeState {
        &inode.state
    }

    fn check_alive(&self) -> Result<(), Error> {
        if self.aborted.load(Ordering::SeqCst) { Err(Error::BadMode("an aborted volume")) } else { Ok(()) }
    }

    fn abort(&self, _cause: Error) {
        self.aborted.store(true, Ordering::SeqCst);
    }

    fn map(&self, inode: &Inode, _pos: u64) -> Result<Arc<MapSnapshot>, Error> {
        let truth = inode.truth.lock();
        Ok(inode.publish(&truth))
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

    fn check_allocates(&self, _inode: &Inode, _needs: Error) -> Result<(), Error> {
        Ok(())
    }

    fn allocate(&self, inode: &Inode, blocks: Blocks) -> Result<(), Error> {
        self.call(Call::Allocate)?;
        if self.lies.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut truth = inode.truth.lock();
        let behind = inode.state.size().div_ceil(BLOCK);
        let indirect = inode.state.kind() == MapKind::Indirect;
        assert!(!indirect || inode.is_held_alone(), "an indirect map is changed with others about");
        assert!(blocks.end <= behind || truth.extending, "blocks behind the size without an orphan record");
        for block in blocks {
            if truth.blocks.contains_key(&block) {
                continue;
            }
            let Some(physical) = truth.free.pop() else { return Err(Error::QueueFull) };
            let eager = block >= behind && self.eager.load(Ordering::SeqCst);
            if indirect {
                let zeros = memory(BLOCK as usize, 0);
                self.device.write_at(&zeros, physical * BLOCK, WriteDurability::Cached)?;
            }
            let state = if indirect || eager { State::Written } else { State::Unwritten };
            truth.tid += 1;
            let tid = truth.tid;
            inode.state.set_datasync_tid(tid);
            truth.made_in.insert(block, tid);
            truth.blocks.insert(block, (physical, state));
            if block >= behind {
                truth.new.insert(block);
            }
        }
        inode.publish(&truth);
        Ok(())
    }

    fn reserve(&self, _inode: &Inode, _blocks: Blocks) -> Result<Reserve, Error> {
        self.call(Call::Reserve)?;
        self.reserves.fetch_add(1, Ordering::SeqCst);
        Ok(Reserve(self.reserves.clone()))
    }

    fn convert(&self, inode: &Inode, blocks: &[Blocks], reserves: Vec<Reserve>) -> Result<(), Error> {
        self.call(Call::Convert)?;
        assert!(!reserves.is_empty() && !blocks.is_empty());
        assert!(inode.state.gate.in_flight() > 0 || inode.is_held_alone(), "drainers do not wait for this");
        for range in blocks {
            assert!(inode.state.map.lock().pending().meets(range), "others could zero it meanwhile");
        }
        let mut truth = inode.truth.lock();
        truth.tid += 1;
        self.make_written(inode, &mut truth, blocks, inode.state.size());
        Ok(())
    }

    fn extend_begin(&self, inode: &Inode, range: uext4_iomap::Range) -> Result<u64, Error> {
        self.call(Call::ExtendBegin)?;
        assert!(inode.is_held_alone());
        let mut truth = inode.truth.lock();
        assert!(!truth.extending && truth.new.is_empty());
        truth.extending = true;
        Ok(range.end())
    }

    fn extend_end(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        end: u64,
        outcome: Extended<'_, Reserve>,
    ) -> Result<(), Error> {
        let complete = matches!(outcome, Extended::Complete { .. });
        let called = self.call(if complete { Call::ExtendEnd } else { Call::Failed });
        assert!(held.is_exclusive() && inode.is_held_alone());
        let mut truth = inode.truth.lock();
        assert!(std::mem::take(&mut truth.extending), "an end without a begin");
        let new = std::mem::take(&mut truth.new);
        if let (Extended::Complete { size, blocks, reserves: _ }, Ok(())) = (outcome, &called) {
            assert_eq!(size, end.max(inode.state.size()));
            truth.tid += 1;
            self.make_written(inode, &mut truth, blocks, size);
            for (block, (physical, state)) in truth.blocks.range(..size.div_ceil(BLOCK)) {
                let visible = (size - block * BLOCK).min(BLOCK) as usize;
                let garbage = *state == State::Written && self.block(*physical)[..visible].contains(&GARBAGE);
                assert!(!garbage, "block {block} gets readable with what was in it, size {size}");
            }
            inode.state.set_size(size, size);
            self.soil_end(&truth, size);
            return Ok(());
        }
        for block in new {
            let (physical, _) = truth.blocks.remove(&block).unwrap();
            self.soil(physical, 0);
            truth.free.insert(0, physical);
            truth.made_in.remove(&block);
        }
        inode.state.end(held, &mut inode.state.map.lock(), 0, FILE_BLOCKS, Some(&Inode::runs(&truth)))?;
        called
    }

    fn datasync(&self, batch: &[Synced<'_, Self>]) -> Result<bool, Error> {
        self.call(Call::Datasync)?;
        for synced in batch {
            let truth = synced.inode.truth.lock();
            self.committed.fetch_max(truth.tid, Ordering::SeqCst);
        }
        Ok(false)
    }
}

impl Model {
    /// The last transaction that is durable.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::SeqCst)
    }

    /// Fills a block with garbage from this byte on.
    fn soil(&self, physical: u64, from: usize) {
        let mut bytes = memory(BLOCK as usize, 0);
        bytes.copy_from_slice(&self.block(physical));
        bytes[from..].fill(GARBAGE);
        self.device.write_at(&bytes, physical * BLOCK, WriteDurability::Cached).unwrap();
    }

    /// Somebody has mapped the file and left bytes behind its end.
    fn soil_end(&self, truth: &Truth, size: u64) {
        if let Some(&(physical, State::Written)) = truth.blocks.get(&(size / BLOCK)) {
            self.soil(physical, (size % BLOCK) as usize);
        }
    }
}

/// A device as if it were mapped memory.
#[derive(Debug)]
struct Mapped(Arc<dyn Device>);

impl Device for Mapped {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { dax: Some(DaxKind::Msync), ..self.0.capabilities() }
    }

    fn describe(&self) -> Description {
        self.0.describe()
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> uext4_blockdev::Result<()> {
        self.0.read_at(buf, pos)
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> uext4_blockdev::Result<()> {
        self.0.write_at(buf, pos, durability)
    }

    fn flush(&self) -> uext4_blockdev::Result<()> {
        self.0.flush()
    }

    fn discard(&self, pos: u64, length: u64) -> uext4_blockdev::Result<()> {
        self.0.discard(pos, length)
    }

    fn queue(&self, options: &QueueOptions) -> uext4_blockdev::Result<Queue> {
        self.0.queue(options)
    }
}

/// An engine over the model, and what it stands on.
pub struct Ground {
    pub engine: Arc<Engine<Model>>,
    pub inode: Arc<Inode>,
    pub faults: FaultHandle,
    pub late: LateHandle,
}

/// Where a file's blocks are, one letter for each: `w`ritten (full of 1), `u`nwritten, `.` a hole.
pub fn ground(shape: &str, size: u64, kind: MapKind, mapped: bool) -> Ground {
    let mut options = MemoryOptions::new(DEVICE_BLOCKS * BLOCK);
    (options.volatile_cache, options.fua) = (true, true);
    let memory_device: Arc<dyn Device> = Arc::new(MemoryDevice::new(options).unwrap());
    let garbage = memory((DEVICE_BLOCKS * BLOCK) as usize, GARBAGE);
    memory_device.write_at(&garbage, 0, WriteDurability::Cached).unwrap();
    let faulty = Arc::new(FaultDevice::new(memory_device.clone()));
    let late = LateDevice::new(faulty.clone());
    let (faults, handle) = (faulty.handle(), late.handle());
    let device: Arc<dyn Device> = if mapped { Arc::new(Mapped(faulty)) } else { Arc::new(late) };
    // Places that are nowhere near each other, so that no two blocks make one piece by chance.
    let free = (1..DEVICE_BLOCKS).map(|n| n * 51 % DEVICE_BLOCKS).filter(|&place| place != 0).collect();
    let committed = Arc::new(AtomicU64::new(0));
    let mut truth = Truth { free, ..Truth::default() };
    let fs = Model {
        device: memory_device,
        mapped,
        committed: committed.clone(),
        calls: Mutex::default(),
        fault: AtomicI64::new(-1),
        reserves: Arc::default(),
        eager: AtomicBool::new(true),
        lies: AtomicBool::new(false),
        aborted: AtomicBool::new(false),
    };
    for (block, letter) in (0..).zip(shape.bytes()) {
        let state = match letter {
            b'w' => State::Written,
            b'u' => State::Unwritten,
            _ => continue,
        };
        let physical = truth.free.pop().unwrap();
        truth.blocks.insert(block, (physical, state));
        if state == State::Written {
            let ones = memory(BLOCK as usize, 1);
            fs.device.write_at(&ones, physical * BLOCK, WriteDurability::Cached).unwrap();
        }
    }
    fs.soil_end(&truth, size);
    let state = InodeState::new(size, BLOCK.trailing_zeros(), committed).with_kind(kind);
    let inode = Arc::new(Inode { state, truth: Mutex::new(truth) });
    let engine = Arc::new(Engine::new(Arc::new(fs), device).unwrap());
    Ground { engine, inode, faults, late: handle }
}

impl Ground {
    /// The file, open for both.
    pub fn file(&self, switches: Switches) -> OpenFile<Model> {
        OpenFile::new(self.inode.clone(), true, true, switches)
    }

    /// A queue with the file attached.
    pub fn queue(&self, depth: u32, switches: Switches) -> (IoQueue<Model>, FileSlot) {
        let pool = BufferPool::new(4 << 20).unwrap();
        let mut queue = IoQueue::new(&self.engine, QueueOptions::depth(depth), pool).unwrap();
        let slot = queue.attach(&self.file(switches)).unwrap();
        (queue, slot)
    }

    /// All of the file, by a read.
    pub fn contents(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.inode.state.size() as usize];
        let read = self.engine.read_any(&self.file(Switches::ON), &mut bytes, 0).unwrap();
        assert_eq!(read, bytes.len());
        bytes
    }

    /// The state of a block of the file, and what the device has there.
    pub fn block(&self, block: u64) -> Option<(State, Vec<u8>)> {
        let &(place, state) = self.inode.truth.lock().blocks.get(&block)?;
        let mut data = memory(BLOCK as usize, 0);
        self.engine.fs().device.read_at(&mut data, place * BLOCK).unwrap();
        Some((state, data.to_vec()))
    }

    /// Nothing is under way any more: whatever that left behind is told.
    pub fn check_quiet(&self) {
        let state = &self.inode.state;
        assert_eq!(state.gate.in_flight(), 0);
        assert!(!state.map.lock().pending().meets(&(0..u64::MAX)), "something is pending");
        assert_eq!(self.engine.fs().reserves.load(Ordering::SeqCst), 0, "a reserve is not given back");
        let truth = self.inode.truth.lock();
        assert!(!truth.extending && truth.new.is_empty(), "an extension has no end");
        let places: BTreeSet<u64> = truth.blocks.values().map(|&(place, _)| place).collect();
        let all: BTreeSet<u64> = truth.free.iter().copied().chain(places.iter().copied()).collect();
        assert_eq!(places.len(), truth.blocks.len(), "a block is there twice");
        assert_eq!(all.len() as u64, DEVICE_BLOCKS - 1, "a block is lost, or free and in use");
        for run in state.map.runs().into_iter().filter(|run| run.state != State::Hole) {
            for n in 0..run.length {
                let known = (run.physical + n, run.state);
                assert_eq!(truth.blocks.get(&(u64::from(run.first) + n)), Some(&known), "what is published");
            }
        }
    }
}
