//! Atomic writes on a device that promises not to tear them.

use crate::common;

use common::{Image, aligned, assert_clean, buffered, open_rw, patterned, read_all, read_only, read_write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4::device::{
    Capabilities, Description, Device, Error as DeviceError, Geometry, MemoryDevice, Queue,
    QueueOptions as DeviceQueueOptions, Result as DeviceResult, WriteDurability,
};
use uext4::{Counter, Error, Fallocate, File, QueueOptions, Volume, WriteFlags};
use uext4_testkit::{Need, Rng, VolumeBuilder, needs};

const ATOMIC: WriteFlags = WriteFlags::ATOMIC;
const DURABLE: WriteFlags = WriteFlags::ATOMIC.union(WriteFlags::DSYNC);
/// What the device promises, in bytes.
const MOST: u64 = 16 << 10;

/// Memory that promises: counts such writes, refuses them after a while if told so, or fails them.
#[derive(Debug)]
struct Promising {
    inner: Arc<MemoryDevice>,
    fua: bool,
    atomic: AtomicU64,
    plain: AtomicU64,
    flushes: AtomicU64,
    refuses: AtomicU64,
    fails: AtomicU64,
}

impl Promising {
    fn over(inner: Arc<MemoryDevice>, fua: bool) -> Arc<Promising> {
        let [atomic, plain, flushes, refuses, fails] = Default::default();
        Arc::new(Promising { inner, fua, atomic, plain, flushes, refuses, fails })
    }

    /// Atomic writes, other ones and flushes since the last call.
    fn take(&self) -> (u64, u64, u64) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::SeqCst);
        (take(&self.atomic), take(&self.plain), take(&self.flushes))
    }
}

impl Device for Promising {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { volatile_cache: true, fua: self.fua, ..self.inner.capabilities() }
    }
    fn describe(&self) -> Description {
        self.inner.describe()
    }
    fn read_at(&self, buf: &mut [u8], pos: u64) -> DeviceResult<()> {
        self.inner.read_at(buf, pos)
    }
    fn write_at(&self, buf: &[u8], pos: u64, _: WriteDurability) -> DeviceResult<()> {
        self.plain.fetch_add(1, Ordering::SeqCst);
        self.inner.write_at(buf, pos, WriteDurability::Cached)
    }
    fn atomic_max(&self) -> u64 {
        MOST
    }
    fn write_atomic(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> DeviceResult<()> {
        assert!(buf.len() as u64 <= MOST && pos.is_multiple_of(buf.len() as u64));
        assert!(self.fua || durability == WriteDurability::Cached);
        if self.refuses.load(Ordering::SeqCst) > 0 {
            return Err(DeviceError::Unsupported("not here".into()));
        }
        if self.fails.load(Ordering::SeqCst) > 0 {
            return Err(DeviceError::Io { op: "write", pos, length: buf.len() as u64, errno: libc::EIO });
        }
        self.atomic.fetch_add(1, Ordering::SeqCst);
        self.inner.write_at(buf, pos, WriteDurability::Cached)
    }
    fn flush(&self) -> DeviceResult<()> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.inner.flush()
    }
    fn discard(&self, pos: u64, length: u64) -> DeviceResult<()> {
        self.inner.discard(pos, length)
    }
    fn queue(&self, options: &DeviceQueueOptions) -> DeviceResult<Queue> {
        self.inner.queue(options)
    }
}

fn image() -> Image {
    Image::load(VolumeBuilder::new(64 << 20).args(["-b", "4096"]).build().path())
}

/// A file of 256 KiB in one piece at a multiple of 64 KiB.
fn prepared(volume: &Volume) -> File {
    for number in 0..100u64 {
        let file = volume.open_file(format!("/{number}"), read_write().create_new(true)).unwrap();
        file.prepare(256 << 10).unwrap();
        let first = file.map().next().unwrap().unwrap();
        if first.length >= 256 << 10 && first.physical.is_multiple_of(64 << 10) {
            return file;
        }
        // The next one begins elsewhere.
        let other = volume.open_file(format!("/pad-{number}"), read_write().create_new(true)).unwrap();
        other.prepare(4096 * (1 + number % 5)).unwrap();
    }
    panic!("no file begins at a multiple of 64 KiB")
}

#[test]
fn an_overwrite_is_one_write_of_the_device() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for fua in [false, true] {
        let memory = image().device();
        let device = Promising::over(memory.clone(), fua);
        let volume = open_rw(device.clone());
        let file = prepared(&volume);
        volume.sync_all().unwrap();
        let mut model = read_all(&file);
        let extents = file.map().count();
        device.take();
        for (number, flags) in [(1, ATOMIC), (2, DURABLE)] {
            let bytes = patterned(number, 0, MOST as usize);
            let pos = number * MOST;
            file.write_any_at(&bytes, pos, flags).unwrap();
            model[pos as usize..][..bytes.len()].copy_from_slice(&bytes);
            let flushes = u64::from(!fua && flags == DURABLE);
            assert_eq!(device.take(), (1, 0, flushes), "{flags:?}");
        }
        // Through a queue, from memory in pieces.
        let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
        let slot = queue.attach(&file).unwrap();
        let halves = [queue.buffer(8192).unwrap(), queue.buffer(8192).unwrap()];
        queue.writev(slot, 0, halves.into(), DURABLE, 1).unwrap();
        queue.wait(1).unwrap().for_each(|done| assert_eq!(done.result.unwrap(), MOST as usize));
        drop(queue);
        model[..MOST as usize].fill(0);
        assert_eq!(device.take(), (1, 0, u64::from(!fua)));
        assert_eq!(volume.stats().get(Counter::AtomicWrites), 3);
        assert_eq!(file.map().count(), extents, "nothing moved");
        assert!(read_all(&file) == model);
        // Larger than what is promised: the other way.
        file.write_any_at(&patterned(9, 0, 32 << 10), 64 << 10, DURABLE).unwrap();
        let (atomic, plain, _) = device.take();
        assert!(atomic == 0 && plain > 2, "{atomic} {plain}");
        assert!(file.map().count() > extents);
        // Over the last block, which gets longer.
        file.set_len((20 << 10) + 100).unwrap();
        file.write_any_at(&patterned(10, 0, 4096), 20 << 10, DURABLE).unwrap();
        assert_eq!(file.size(), 24 << 10);
        drop(file);
        volume.close().unwrap();
        assert_clean(&*memory);
    }
}

/// Any mix of requests: over data in pieces, holes, unwritten blocks, past the end, over pages; and a device that
/// refuses what it has promised.
#[test]
fn whatever_the_file_is_the_bytes_are_those_of_the_model() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for seed in 1..=4 {
        let memory = image().device();
        let device = Promising::over(memory.clone(), seed % 2 == 0);
        let volume = open_rw(device.clone());
        let file = volume.open_file("/file", buffered().create(true)).unwrap();
        let (mut model, mut rng) = (Vec::new(), Rng::new(seed));
        for number in 0..600 {
            device.refuses.store(u64::from(number > 500), Ordering::SeqCst);
            let length = 4096u64 << rng.below(5);
            let pos = rng.below(24) * (16 << 10) / length * length;
            let bytes = patterned(number, pos, length as usize);
            let end = (pos + length) as usize;
            let mut put = |from: usize, bytes: &[u8]| {
                model.resize(model.len().max(from + bytes.len()), 0);
                model[from..from + bytes.len()].copy_from_slice(bytes);
            };
            match rng.below(8) {
                0 => {
                    let size = rng.below(400_000);
                    file.set_len(size).unwrap();
                    model.resize(size as usize, 0);
                }
                1 => file.fallocate(Fallocate::KeepSize, pos, length).unwrap(),
                2 => {
                    file.fallocate(Fallocate::Punch, pos, length).unwrap();
                    let size = model.len();
                    model[(pos as usize).min(size)..end.min(size)].fill(0);
                }
                3 => {
                    file.write_any_at(&bytes[7..], pos + 7, WriteFlags::empty()).unwrap();
                    put(pos as usize + 7, &bytes[7..]);
                }
                kind => {
                    file.write_any_at(&bytes, pos, if kind == 4 { DURABLE } else { ATOMIC }).unwrap();
                    put(pos as usize, &bytes);
                }
            }
            if rng.below(4) == 0 {
                assert!(read_all(&file) == model, "seed {seed}, step {number}");
            }
        }
        let (atomic, plain, _) = device.take();
        assert!(atomic > 20 && plain > 20, "{atomic} {plain}");
        drop(file);
        volume.close().unwrap();
        assert_clean(&*memory);
        let volume = open_rw(memory);
        assert!(read_all(&volume.open_file("/file", read_only()).unwrap()) == model);
    }
}

/// A map of block pointers takes atomic writes only where the device does them in place.
#[test]
fn a_refused_write_keeps_the_privileges_and_the_times() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let made = VolumeBuilder::new(64 << 20).args(["-b", "4096", "-O", "^extent,^64bit"]).build();
    let memory = Image::load(made.path()).device();
    let device = Promising::over(memory.clone(), true);
    let volume = open_rw(device.clone());
    let file = volume.open_file("/file", read_write().create_new(true)).unwrap();
    file.write_any_at(&patterned(1, 0, 64 << 10), 0, WriteFlags::empty()).unwrap();
    file.set_len(1 << 20).unwrap();
    volume.set_permissions("/file", 0o6755, true).unwrap();
    volume.sync_all().unwrap();
    let before = volume.metadata("/file").unwrap();
    assert_eq!(before.mode & 0o7777, 0o6755);
    // A hole, past the end, and more than the device promises.
    for (pos, length) in [(128 << 10, 4096), (1 << 20, 4096), (0, 64 << 10)] {
        let refused = file.write_any_at(&patterned(2, pos, length), pos, ATOMIC);
        assert!(matches!(refused, Err(Error::Incompatible { .. })), "{pos}: {refused:?}");
        assert_eq!(volume.metadata("/file").unwrap(), before, "{pos}");
    }
    file.write_any_at(&patterned(3, 0, 4096), 4096, ATOMIC).unwrap();
    assert_eq!(volume.metadata("/file").unwrap().mode & 0o7777, 0o755);
    assert_eq!(device.take().0, 1);
    drop(file);
    volume.close().unwrap();
    assert_clean(&*memory);
}

#[test]
fn a_failure_is_told_and_aborts_after_fua() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for fua in [false, true] {
        let device = Promising::over(image().device(), fua);
        let volume = open_rw(device.clone());
        let file = prepared(&volume);
        volume.sync_all().unwrap();
        device.fails.store(1, Ordering::SeqCst);
        let mut block = aligned(4096);
        block.fill(1);
        let failed = file.write_at_with(&block, 0, DURABLE);
        assert!(matches!(failed, Err(Error::Io { .. })), "{failed:?}");
        device.fails.store(0, Ordering::SeqCst);
        // No flush follows that could tell.
        let next = file.write_at_with(&block, 0, ATOMIC);
        assert_eq!(matches!(next, Err(Error::Aborted(_))), fua, "{next:?}");
    }
}
