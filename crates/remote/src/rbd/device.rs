//! The device: geometry, synchronous calls, and what the queues share.

use super::api::{Answer, Errno, Held, Image};
use super::queue::RbdQueue;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uext4_blockdev::{
    Capabilities, Description, Device, Driving, Error, Geometry, Op, Process, Queue, QueueOptions, Result,
    Sharing, WriteDurability, write_zeros,
};

/// The shortest range in bytes about which the cluster is asked whether it has data.
const ASKED_FROM: u64 = 32 << 20;

/// Most bytes of a request for zeros.
const ZEROED_MAX: u64 = 64 << 20;

/// How long a writer believes that the image is still its own: shorter than any time after which a cluster forgets a
/// client.
const WATCH_MILLISECONDS: u64 = 3000;

/// What was found when it was opened.
#[derive(Debug)]
pub(super) struct Facts {
    /// The device, as it is spelled.
    pub(super) device: String,
    /// `pool/namespace/image@snapshot`.
    pub(super) locator: String,
    /// Bytes.
    pub(super) size: u64,
    /// A completed write may be in the cache of librbd.
    pub(super) cached: bool,
    pub(super) sharing: Sharing,
    /// For `info`.
    pub(super) notes: Vec<String>,
}

/// The open image, for the device and its queues.
pub(super) struct Shared {
    /// `None` only while it is dropped.
    image: Option<Image>,
    pub(super) process: Process,
    pub(super) facts: Facts,
    /// The cluster has refused this client, or forgotten it: another one may have the image now.
    lost: AtomicBool,
    watch: Option<Watch>,
}

/// What a writer has in the cluster while the image is its own: a watch, and the exclusive lock.
///
/// Whoever finds the watch gone may take the lock, and put the client on the blocklist, which ends after an hour. A
/// client that was stopped meanwhile, as a suspended machine is, would write over what others wrote: librbd may not
/// even notice that it was forgotten. So both are looked at, at most every few seconds, before a request is sent.
struct Watch {
    held: Held,
    /// When they were last found, by [`now`].
    found: AtomicU64,
    looking: Mutex<()>,
}

impl Watch {
    /// Milliseconds since it was found.
    #[inline]
    fn age(&self, now: u64) -> u64 {
        now.saturating_sub(self.found.load(Ordering::Acquire))
    }
}

/// Milliseconds, those while the machine is suspended too.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.cast_unsigned() * 1000 + now.tv_nsec.cast_unsigned() / 1_000_000
}

impl Shared {
    /// `held`: what a writer has.
    pub(super) fn new(image: Image, process: Process, facts: Facts, held: Option<Held>) -> Arc<Self> {
        // Not yet looked at since it was opened.
        let watch = held.map(|held| Watch { held, found: AtomicU64::new(0), looking: Mutex::new(()) });
        Arc::new(Shared { image: Some(image), process, facts, lost: AtomicBool::new(false), watch })
    }

    pub(super) fn geometry(&self) -> Geometry {
        Geometry { size: self.facts.size, logical_block: 512, memory_align: 1 }
    }

    pub(super) fn capabilities(&self) -> Capabilities {
        Capabilities {
            volatile_cache: self.facts.cached,
            fua: !self.facts.cached,
            nowait: false,
            discard: self.is_writable(),
            read_only: !self.is_writable(),
            dax: None,
        }
    }

    pub(super) fn is_writable(&self) -> bool {
        self.facts.sharing == Sharing::Exclusive
    }

    /// The image, unless the cluster has refused this client.
    pub(super) fn image(&self) -> Answer<&Image> {
        match &self.image {
            Some(image) if !self.lost.load(Ordering::Acquire) => self.look(image).map(|()| image),
            _ => Err(Errno(libc::EIO)),
        }
    }

    /// Looks at the watch, if it is time to.
    #[inline]
    fn look(&self, image: &Image) -> Answer<()> {
        match &self.watch {
            Some(watch) if watch.age(now()) >= WATCH_MILLISECONDS => self.look_now(image, watch),
            _ => Ok(()),
        }
    }

    #[cold]
    fn look_now(&self, image: &Image, watch: &Watch) -> Answer<()> {
        let _looks = watch.looking.lock();
        // Before the question: the answer may take long.
        let time = now();
        if watch.age(time) < WATCH_MILLISECONDS {
            return Ok(());
        }
        let found = match image.holds(&watch.held) {
            Err(Errno(libc::ESHUTDOWN)) => false,
            other => other?,
        };
        if !found || self.lost.load(Ordering::Acquire) {
            self.lost.store(true, Ordering::Release);
            return Err(Errno(libc::EIO));
        }
        watch.found.store(time, Ordering::Release);
        Ok(())
    }

    /// The errno of a failed request. Remembers if it says that this client has lost the image.
    ///
    /// `ESHUTDOWN` is Ceph's error for a client on the blocklist. `EROFS` is librbd's for a change without the lock,
    /// on an image that was opened for writing.
    pub(super) fn errno(&self, op: Op, errno: i32) -> i32 {
        let change = matches!(op, Op::Write | Op::Discard) && self.is_writable();
        if errno == libc::ESHUTDOWN || errno == libc::EROFS && change {
            self.lost.store(true, Ordering::Release);
            return libc::EIO;
        }
        errno
    }

    fn run<T>(&self, op: Op, pos: u64, length: usize, call: impl FnOnce(&Image) -> Answer<T>) -> Result<T> {
        let answer = self.image().and_then(call);
        answer.map_err(|Errno(errno)| {
            let errno = self.errno(op, errno);
            if self.lost.load(Ordering::Acquire) {
                let reason = "this client has lost the exclusive lock: the cluster has it on its blocklist, or had \
                              forgotten it for a while";
                let device = self.facts.device.clone();
                return Error::Remote { device, action: op.name(), reason: reason.into(), errno };
            }
            Error::Io { op: op.name(), pos, length: length as u64, errno }
        })
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // The threads of librbd stayed in the parent: closing would wait for them for ever.
            std::mem::forget(self.image.take());
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rbd").field("facts", &self.facts).field("lost", &self.lost).finish_non_exhaustive()
    }
}

/// An image of a cluster.
#[derive(Debug)]
pub(super) struct RbdDevice {
    shared: Arc<Shared>,
}

impl RbdDevice {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        RbdDevice { shared }
    }

    fn check_writable(&self) -> Result<()> {
        if self.shared.is_writable() { Ok(()) } else { Err(Error::ReadOnly) }
    }

    /// A transfer that stopped early is an error: the image has become smaller.
    fn whole(&self, op: Op, pos: u64, length: usize, done: usize) -> Result<()> {
        if done == length {
            return Ok(());
        }
        Err(Error::Io { op: op.name(), pos, length: length as u64, errno: libc::EIO })
    }
}

impl Device for RbdDevice {
    fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.shared.capabilities()
    }

    fn describe(&self) -> Description {
        let Facts { locator, sharing, notes, .. } = &self.shared.facts;
        let mut notes = notes.clone();
        if self.shared.image().is_err() {
            notes.push("the cluster refuses this client: every request fails".to_owned());
        }
        Description {
            engine: "rbd",
            locator: locator.clone(),
            layers: Vec::new(),
            sharing: *sharing,
            driving: Driving::Engine,
            tags: None,
            notes,
        }
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.shared.process.check()?;
        self.geometry().check_transfer(buf, pos)?;
        let length = buf.len();
        let done = self.shared.run(Op::Read, pos, length, |image| image.read(buf, pos))?;
        self.whole(Op::Read, pos, length, done)
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.shared.process.check()?;
        self.check_writable()?;
        self.geometry().check_transfer(buf, pos)?;
        if durability == WriteDurability::Fua && self.shared.facts.cached {
            return Err(Error::Unsupported("a FUA write to a device without FUA".into()));
        }
        let done = self.shared.run(Op::Write, pos, buf.len(), |image| image.write(buf, pos))?;
        self.whole(Op::Write, pos, buf.len(), done)
    }

    fn write_zeros(&self, pos: u64, length: u64) -> Result<()> {
        self.shared.process.check()?;
        self.check_writable()?;
        self.geometry().check(pos, length)?;
        if !self.shared.image().is_ok_and(Image::can_zero) {
            return write_zeros(self, pos, length);
        }
        for start in (pos..pos + length).step_by(ZEROED_MAX as usize) {
            let part = ZEROED_MAX.min(pos + length - start) as usize;
            let done = self.shared.run(Op::Write, start, part, |image| image.write_zeros(start, part))?;
            self.whole(Op::Write, start, part, done)?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.shared.process.check()?;
        self.shared.run(Op::Flush, 0, 0, |image| match self.shared.facts.cached {
            true => image.flush(),
            false => Ok(()),
        })
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.shared.process.check()?;
        self.check_writable()?;
        self.geometry().check(pos, length)?;
        self.shared.run(Op::Discard, pos, length as usize, |image| image.discard(pos, length))
    }

    /// Only for large ranges: the answer takes a round trip for each object, and little is lost without it for small
    /// ones.
    fn reads_zeros(&self, pos: u64, length: u64) -> bool {
        let asked = length >= ASKED_FROM && self.geometry().check(pos, length).is_ok();
        asked
            && self.shared.process.is_here()
            && self.shared.image().and_then(|image| image.is_hole(pos, length)).unwrap_or(false)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        self.shared.process.check()?;
        Ok(Queue::Other(Box::new(RbdQueue::new(Arc::clone(&self.shared), options)?)))
    }
}
