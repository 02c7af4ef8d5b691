//! A device in memory that remembers every write and flush, and what a crash may leave of them.

use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use uext4_blockdev::{
    Capabilities, Description, Device, Driving, Error, Geometry, Queue, QueueOptions, Result, Sharing,
    WriteDurability,
};
use uext4_testkit::Rng;

/// Bytes that are written together or not at all.
const SECTOR: usize = 512;

/// What happened, in the order in which it was complete.
#[derive(Debug, Clone)]
pub enum Event {
    Write {
        pos: u64,
        bytes: Arc<[u8]>,
        fua: bool,
    },
    /// Makes durable what is before event `covers`.
    Flush {
        covers: usize,
    },
    /// A flush failed: what was to become durable before event `covers` never will, whatever is flushed later.
    Lost {
        covers: usize,
    },
    /// Somebody was promised something, by a number of the test's own.
    Promise(u64),
}

/// How the device caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// Volatile, with FUA.
    Fua,
    /// Volatile, without.
    Flush,
    /// None: every complete write is durable.
    Durable,
}

#[derive(Debug)]
pub struct Recorder {
    inner: Mutex<Inner>,
    caching: Caching,
    size: u64,
    /// Writes and flushes left until one fails.
    pub fail_in: AtomicU64,
    /// Only that one.
    pub fail_once: AtomicBool,
    /// One has failed.
    pub failed: AtomicBool,
    /// Called by every write and flush.
    pub watch: Watch,
}

/// A call that others set.
#[derive(Default)]
pub struct Watch(pub OnceLock<Box<dyn Fn() + Send + Sync>>);

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

#[derive(Debug)]
struct Inner {
    bytes: Vec<u8>,
    events: Vec<Event>,
}

impl Recorder {
    pub fn new(bytes: Vec<u8>, caching: Caching) -> Arc<Recorder> {
        let size = bytes.len() as u64;
        let inner = Mutex::new(Inner { bytes, events: Vec::new() });
        Arc::new(Recorder {
            inner,
            caching,
            size,
            fail_in: AtomicU64::new(u64::MAX),
            fail_once: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            watch: Watch::default(),
        })
    }

    pub fn promise(&self, number: u64) {
        self.inner.lock().events.push(Event::Promise(number));
    }

    pub fn events(&self) -> Vec<Event> {
        self.inner.lock().events.clone()
    }

    /// What is on it now, as if all of it were durable.
    pub fn bytes(&self) -> Vec<u8> {
        self.inner.lock().bytes.clone()
    }

    fn pass(&self, op: &'static str, pos: u64, length: usize) -> Result<()> {
        if let Some(watch) = self.watch.0.get() {
            watch();
        }
        let left = self.fail_in.load(SeqCst);
        if left == u64::MAX {
            return Ok(());
        }
        if left == 0 {
            self.failed.store(true, SeqCst);
            if self.fail_once.load(SeqCst) {
                self.fail_in.store(u64::MAX, SeqCst);
            }
            return Err(Error::Io { op, pos, length: length as u64, errno: libc::EIO });
        }
        self.fail_in.store(left - 1, SeqCst);
        Ok(())
    }
}

impl Device for Recorder {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.size, logical_block: 512, memory_align: 512 }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: self.caching != Caching::Durable,
            fua: self.caching == Caching::Fua,
            nowait: false,
            discard: false,
            read_only: false,
            dax: None,
        }
    }

    fn describe(&self) -> Description {
        Description {
            engine: "test",
            locator: String::new(),
            layers: Vec::new(),
            sharing: Sharing::Private,
            driving: Driving::Engine,
            tags: None,
            notes: Vec::new(),
        }
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.geometry().check(pos, buf.len() as u64)?;
        buf.copy_from_slice(&self.inner.lock().bytes[pos as usize..][..buf.len()]);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.geometry().check(pos, buf.len() as u64)?;
        self.geometry().check_memory(buf.as_ptr().addr())?;
        self.pass("write", pos, buf.len())?;
        let fua = durability == WriteDurability::Fua;
        assert!(!fua || self.caching == Caching::Fua, "FUA was not offered");
        let mut inner = self.inner.lock();
        inner.bytes[pos as usize..][..buf.len()].copy_from_slice(buf);
        let fua = fua || self.caching == Caching::Durable;
        inner.events.push(Event::Write { pos, bytes: Arc::from(buf), fua });
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let covers = self.inner.lock().events.len();
        if let Err(error) = self.pass("flush", 0, 0) {
            self.inner.lock().events.push(Event::Lost { covers });
            return Err(error);
        }
        std::thread::yield_now();
        self.inner.lock().events.push(Event::Flush { covers });
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Err(Error::Unsupported("discard".into()))
    }

    fn queue(&self, _: &QueueOptions) -> Result<Queue> {
        Err(Error::Unsupported("queue".into()))
    }
}

/// What is durable, event after event.
pub struct Crashes<'e> {
    events: &'e [Event],
    /// Durable for certain.
    durable: Vec<u8>,
    /// Events looked at.
    next: usize,
    /// Writes that may or may not be durable.
    open: Vec<usize>,
    /// Promises made so far.
    pub promises: Vec<u64>,
}

impl<'e> Crashes<'e> {
    pub fn new(base: Vec<u8>, events: &'e [Event]) -> Self {
        Crashes { events, durable: base, next: 0, open: Vec::new(), promises: Vec::new() }
    }

    /// Goes on until `cut` events are complete.
    pub fn advance(&mut self, cut: usize) {
        while self.next < cut {
            match &self.events[self.next] {
                Event::Promise(number) => self.promises.push(*number),
                Event::Write { fua: true, .. } => {
                    // What it overwrote cannot come back; what it did not may still be under way.
                    self.apply(self.next);
                    self.open.push(self.next);
                }
                Event::Write { .. } => self.open.push(self.next),
                Event::Lost { covers } => self.open.retain(|event| event >= covers),
                Event::Flush { covers } => {
                    let (done, open) = self.open.iter().partition(|&&event| event < *covers);
                    self.open = open;
                    let done: Vec<usize> = done;
                    done.into_iter().for_each(|event| self.apply(event));
                }
            }
            self.next += 1;
        }
    }

    fn apply(&mut self, event: usize) {
        if let Event::Write { pos, bytes, .. } = &self.events[event] {
            self.durable[*pos as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// What the medium may hold if the power fails now: some sectors of what is not durable, or under way.
    pub fn image(&self, random: &mut Rng) -> Vec<u8> {
        let mut image = self.durable.clone();
        // Each write whole, torn or lost; sometimes all of one kind, where mistakes of order show best.
        let (whole, torn) =
            [(100, 0), (0, 0), (50, 0), (40, 40), (0, 100), (85, 5)][random.below(6) as usize];
        let under_way = (self.next < self.events.len()).then_some(self.next);
        for event in self.open.iter().copied().chain(under_way) {
            let Event::Write { pos, bytes, fua } = &self.events[event] else { continue };
            let draw = random.below(100);
            let certain = *fua && Some(event) != under_way;
            for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                if certain || draw < whole || (draw < whole + torn && random.chance(50)) {
                    let at = *pos as usize + index * SECTOR;
                    image[at..at + sector.len()].copy_from_slice(sector);
                }
            }
        }
        image
    }
}
