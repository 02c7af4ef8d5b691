//! Pages on their way home: several at once, beside writers, with failures, and what they leave alone.

use crate::common;
use crate::crash_named::layouts;

use common::{
    Image, aligned, assert_same_bytes, buffered, open_rw, patterned, read_all, read_only, read_write, within,
};
use layouts::{CLUSTERS, LARGE, POINTERS, QUOTA, SMALL};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};
use uext4::device::wrap::{DeviceLayer, What};
use uext4::device::{
    Capabilities, Description, Device, Geometry, MemoryDevice, Op, Queue, QueueOptions as DeviceQueueOptions,
    Result as DeviceResult, WriteDurability,
};
use uext4::{Counter, Error, File, QueueOptions, QuotaKind, QuotaLimits, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultOn, LateDevice};
use uext4_testkit::{Scratch, oracle};

const PLAIN: WriteFlags = WriteFlags::empty();
const PAGE: usize = 4096;

fn count(volume: &Volume, counter: Counter) -> u64 {
    volume.stats().get(counter)
}

/// A file of `pages` written pages, and its bytes.
fn written(volume: &Volume, name: &str, pages: usize) -> (File, Vec<u8>) {
    let file = volume.open_file(name, buffered().create(true)).unwrap();
    let bytes = patterned(1, 0, pages * PAGE);
    file.write_any_at(&bytes, 0, PLAIN).unwrap();
    file.sync_all().unwrap();
    (file, bytes.to_vec())
}

fn appending(volume: &Volume, name: &str) -> File {
    volume.open_file(name, buffered().write(false).append(true).create(true)).unwrap()
}

fn change(file: &File, model: &mut [u8], number: u64, page: usize) {
    let bytes = patterned(number, (page * PAGE) as u64, PAGE);
    file.write_any_at(&bytes, (page * PAGE) as u64, PLAIN).unwrap();
    model[page * PAGE..][..PAGE].copy_from_slice(&bytes);
}

fn after_a_crash(device: &dyn Device, name: &str) -> Vec<u8> {
    let volume = open_rw(Image::of(device).device());
    read_all(&volume.open_file(name, read_only()).unwrap())
}

fn ends_clean(volume: Volume, device: &MemoryDevice) {
    volume.close().unwrap();
    let scratch = Scratch::new(256 << 20);
    let path = scratch.file("clean.img");
    Image::of(device).save(&path);
    oracle::e2fsck_clean(&path);
}

#[test]
fn scattered_pages_go_home_together_and_beside_writers() {
    let memory = LARGE.image().device();
    let device = LateDevice::new(memory.clone());
    let late = device.handle();
    let volume = open_rw(Arc::new(device));
    let (file, mut model) = written(&volume, "/file", 60);
    (0..20).for_each(|number| change(&file, &mut model, 2, number * 3));
    let sent = model.clone();
    late.hold();
    let before = count(&volume, Counter::PageWrites);
    within(Duration::from_secs(60), move || {
        let direct_is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let syncs = scope.spawn(|| file.sync_data().unwrap());
            while late.waiting() < 20 {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Writers and readers go on: a page that is on its way, and another one.
            change(&file, &mut model, 3, 6);
            change(&file, &mut model, 4, 7);
            assert_same_bytes(&model, &read_all(&file));
            let direct = scope.spawn(|| {
                let mut block = aligned(PAGE);
                block.fill(9);
                file.write_at(&block, 9 * PAGE as u64).unwrap();
                direct_is_done.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(20));
            assert!(!direct_is_done.load(Ordering::SeqCst), "a direct write waits for the pages under it");
            assert_eq!((late.waiting(), count(&volume, Counter::PageWrites)), (20, before));
            late.release();
            direct.join().unwrap();
            syncs.join().unwrap();
        });
        model[9 * PAGE..10 * PAGE].fill(9);
        assert_same_bytes(&model, &read_all(&file));
        let crashed = after_a_crash(&*memory, "/file");
        assert_same_bytes(&sent[..6 * PAGE], &crashed[..6 * PAGE]);
        file.sync_data().unwrap();
        assert_same_bytes(&model, &after_a_crash(&*memory, "/file"));
        drop(file);
        ends_clean(volume, &memory);
    });
}

#[test]
fn a_failure_leaves_only_its_own_page_dirty() {
    let memory = LARGE.image().device();
    let device = FaultDevice::new(memory.clone());
    let faults = device.handle();
    let volume = open_rw(Arc::new(device));
    let (file, mut model) = written(&volume, "/file", 20);
    for action in [FaultAction::Errno(libc::EIO), FaultAction::Errno(libc::EAGAIN), FaultAction::Short(512)] {
        (0..10).for_each(|number| change(&file, &mut model, 5, number * 2));
        let before = count(&volume, Counter::PageWrites);
        faults.arm(Fault { action, ..Fault::nth(FaultOn::Op(Op::Write), 4) });
        let synced = file.sync_data();
        let left = u64::from(action == FaultAction::Errno(libc::EIO));
        assert_eq!(synced.is_err(), left == 1, "{action:?}: what is only put off is done");
        assert_eq!(count(&volume, Counter::PageWrites) - before, 10 - left, "{action:?}");
        assert_eq!(volume.page_bytes().1, left * PAGE as u64, "{action:?}");
        file.sync_data().unwrap();
        assert_eq!(count(&volume, Counter::PageWrites) - before, 10, "{action:?}");
        assert_same_bytes(&model, &after_a_crash(&*memory, "/file"));
    }
    drop(file);
    ends_clean(volume, &memory);
}

/// Set between the write and its way home, as `cp -p` does.
#[test]
fn privileges_set_after_the_write_stay() {
    let device = LARGE.image().device();
    let volume = open_rw(device.clone());
    let (overwritten, bytes) = written(&volume, "/overwritten", 3);
    overwritten.write_any_at(b"new", 5000, PLAIN).unwrap();
    let extended = volume.open_file("/extended", buffered().create(true)).unwrap();
    extended.write_any_at(&bytes, 0, PLAIN).unwrap();
    for name in ["/overwritten", "/extended"] {
        volume.set_permissions(name, 0o6755, true).unwrap();
    }
    volume.sync_all().unwrap();
    for name in ["/overwritten", "/extended"] {
        assert_eq!(volume.metadata(name).unwrap().mode & 0o7777, 0o6755, "{name}");
    }
    // The next write takes them.
    for file in [&overwritten, &extended] {
        file.write_any_at(b"newer", 5000, PLAIN).unwrap();
    }
    for name in ["/overwritten", "/extended"] {
        assert_eq!(volume.metadata(name).unwrap().mode & 0o6000, 0, "{name}");
    }
    drop((overwritten, extended));
    ends_clean(volume, &device);
}

/// Appends of a few bytes: the block with the end is in memory.
#[test]
fn a_log_reads_nothing() {
    let memory = LARGE.image().device();
    let device = FaultDevice::new(memory.clone());
    let faults = device.handle();
    let volume = open_rw(Arc::new(device));
    let (file, mut model) = written(&volume, "/log", 1);
    let file = (appending(&volume, "/log"), drop(file)).0;
    file.append(b"first", PLAIN).unwrap();
    model.extend(b"first");
    file.sync_data().unwrap();
    let action = FaultAction::Errno(libc::EIO);
    let id = faults.arm(Fault { action, times: u64::MAX, ..Fault::nth(FaultOn::Op(Op::Read), 1) });
    for number in 0..60 {
        let line = patterned(number, model.len() as u64, 100 + number as usize);
        file.append(&line, PLAIN).unwrap();
        model.extend_from_slice(&line);
        file.sync_data().unwrap();
    }
    assert_eq!(faults.disarm(id), Some(0), "no read");
    assert_eq!(file.metadata().size, model.len() as u64);
    assert_same_bytes(&model, &after_a_crash(&*memory, "/log"));
    drop(file);
    ends_clean(volume, &memory);
}

/// Pages go home by age too, after five seconds: if they took so long, nothing is known, and it is tried again.
#[test]
fn a_thread_sends_pages_home_beside_the_writers() {
    let memory = LARGE.image().device();
    let device = LateDevice::new(memory.clone());
    let late = device.handle();
    let options = VolumeOptions::read_write().page_budget(1 << 20).background(true);
    let volume = Volume::open_device(Arc::new(device), options).unwrap();
    let (file, mut model) = written(&volume, "/file", 150);
    within(Duration::from_secs(120), move || {
        let called = (0..5).any(|attempt| {
            late.hold();
            let start = Instant::now();
            // More than a quarter of the budget, less than half.
            (0..75).for_each(|number| change(&file, &mut model, 6 + attempt, number * 2));
            while late.waiting() == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(late.waiting() <= 64, "one batch");
            let called = start.elapsed() < Duration::from_secs(4);
            late.release();
            assert_same_bytes(&model, &read_all(&file));
            file.sync_data().unwrap();
            called
        });
        assert!(called, "only age sends pages home");
        assert_same_bytes(&model, &after_a_crash(&*memory, "/file"));
        drop(file);
        ends_clean(volume, &memory);
    });
}

#[test]
fn much_is_written_in_little_memory_with_and_without_a_thread() {
    for background in [false, true] {
        let device = LARGE.image().device();
        let options = VolumeOptions::read_write().page_budget(256 << 10).background(background);
        let volume = Volume::open_device(device.clone(), options).unwrap();
        let file = appending(&volume, "/file");
        let model = patterned(7, 0, 3_000_001);
        for part in model.chunks(5001) {
            file.append(part, PLAIN).unwrap();
            assert!(volume.page_bytes().0 <= 256 << 10);
        }
        assert_same_bytes(&model, &read_all(&file));
        file.sync_all().unwrap();
        assert_same_bytes(&model, &after_a_crash(&*device, "/file"));
        let free = volume.statfs().unwrap().free;
        drop(file);
        volume.close().unwrap();
        assert_eq!(open_rw(device.clone()).statfs().unwrap().free, free, "no promise is left");
        ends_clean(open_rw(device.clone()), &device);
    }
}

/// A device whose reads can be held back, one by one, and whose writes take their time.
#[derive(Debug)]
struct Held {
    inner: Arc<dyn Device>,
    write_time: Duration,
    state: Arc<(Mutex<HeldState>, Condvar)>,
}

#[derive(Debug, Default)]
struct HeldState {
    holds: bool,
    arrived: usize,
    allowed: usize,
}

impl Device for Held {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn describe(&self) -> Description {
        self.inner.describe()
    }
    fn read_at(&self, buf: &mut [u8], pos: u64) -> DeviceResult<()> {
        // The bytes of now; delivered later.
        self.inner.read_at(buf, pos)?;
        let (state, changed) = &*self.state;
        let mut state = state.lock().unwrap();
        if state.holds {
            state.arrived += 1;
            let number = state.arrived;
            changed.notify_all();
            drop(changed.wait_while(state, |state| state.holds && state.allowed < number).unwrap());
        }
        Ok(())
    }
    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> DeviceResult<()> {
        std::thread::sleep(self.write_time);
        self.inner.write_at(buf, pos, durability)
    }
    fn flush(&self) -> DeviceResult<()> {
        self.inner.flush()
    }
    fn discard(&self, pos: u64, length: u64) -> DeviceResult<()> {
        self.inner.discard(pos, length)
    }
    fn queue(&self, options: &DeviceQueueOptions) -> DeviceResult<Queue> {
        self.inner.queue(options)
    }
}

/// Two reads load a page, and a direct write waits for them. The first one keeps what it has read after the write, or
/// before: which of them gets the pages first is chance, so this is done many times.
#[test]
fn an_overtaken_read_keeps_nothing() {
    let state = Arc::new((Mutex::new(HeldState::default()), Condvar::new()));
    let (inner, write_time) = (LARGE.image().device(), Duration::ZERO);
    let device = Arc::new(Held { inner, write_time, state: state.clone() });
    let volume = open_rw(device);
    let (file, _) = written(&volume, "/file", 1);
    let mut block = aligned(PAGE);
    for number in 0..30u32 {
        // The page goes.
        block[..4].copy_from_slice(&number.to_le_bytes());
        file.write_at(&block, 0).unwrap();
        let (held, changed) = &*state;
        *held.lock().unwrap() = HeldState { holds: true, ..HeldState::default() };
        let read = || {
            let mut part = [0; 4];
            file.read_any_at(&mut part, 0).unwrap();
        };
        let allow = |allowed| {
            held.lock().unwrap().allowed = allowed;
            changed.notify_all();
            std::thread::sleep(Duration::from_millis(3));
        };
        std::thread::scope(|scope| {
            scope.spawn(read);
            scope.spawn(read);
            drop(changed.wait_while(held.lock().unwrap(), |held| held.arrived < 2).unwrap());
            block[..4].copy_from_slice(&(1000 + number).to_le_bytes());
            scope.spawn(|| file.write_at(&block, 0).unwrap());
            std::thread::sleep(Duration::from_millis(3));
            allow(1);
            allow(2);
        });
        held.lock().unwrap().holds = false;
        let mut seen = [0; 4];
        file.read_any_at(&mut seen, 0).unwrap();
        assert_eq!(u32::from_le_bytes(seen), 1000 + number);
    }
}

/// A batch goes into holes, one write after another, and `meanwhile` comes when the first ones are on their way.
fn while_pages_go_home(meanwhile: impl Fn(&File, &mut Vec<u8>) + Send) {
    let memory = LARGE.image().device();
    let (inner, write_time) = (memory.clone(), Duration::from_millis(2));
    let volume = open_rw(Arc::new(Held { inner, write_time, state: Arc::default() }));
    let file = volume.open_file("/file", buffered().create(true)).unwrap();
    let mut model = vec![0; 61 * PAGE];
    file.set_len(model.len() as u64).unwrap();
    (0..20).for_each(|number| change(&file, &mut model, 9, number * 3));
    std::thread::scope(|scope| {
        let before = count(&volume, Counter::Allocations);
        scope.spawn(|| file.sync_data().unwrap());
        while count(&volume, Counter::Allocations) < before + 2 {
            std::thread::yield_now();
        }
        meanwhile(&file, &mut model);
    });
    assert_same_bytes(&model, &read_all(&file));
    file.sync_data().unwrap();
    assert_same_bytes(&model, &after_a_crash(&*memory, "/file"));
    drop(file);
    ends_clean(volume, &memory);
}

#[test]
fn a_direct_write_is_newer_than_pages_on_their_way() {
    while_pages_go_home(|file, model| {
        let mut block = aligned(PAGE);
        block.fill(7);
        file.write_at(&block, 57 * PAGE as u64).unwrap();
        model[57 * PAGE..58 * PAGE].fill(7);
    });
}

#[test]
fn a_shorter_file_does_not_grow_over_pages_on_their_way() {
    while_pages_go_home(|file, model| {
        file.set_len(30 * PAGE as u64 + 5).unwrap();
        model.truncate(30 * PAGE + 5);
    });
}

/// A file that is never without a dirty page, so that its promises are not taken back at once.
#[test]
fn blocks_that_went_home_are_promised_no_more() {
    let device = LARGE.image().device();
    let options = VolumeOptions::read_write().page_budget(1 << 20);
    let volume = Volume::open_device(device.clone(), options).unwrap();
    let file = volume.open_file("/file", buffered().create(true)).unwrap();
    let mut model = vec![0; 1201 * PAGE];
    file.set_len(model.len() as u64).unwrap();
    let statfs = volume.statfs().unwrap();
    let page = PAGE as u64 / u64::from(statfs.block_size);
    (0..600).for_each(|number| change(&file, &mut model, 10, number * 2));
    assert!(count(&volume, Counter::PageWrites) > 400 * page && volume.page_bytes().1 > 0);
    let taken = statfs.free - volume.statfs().unwrap().free;
    assert!(taken < 800 * page, "{taken} of {} blocks", 600 * page);
    file.sync_all().unwrap();
    assert_same_bytes(&model, &after_a_crash(&*device, "/file"));
    drop(file);
    ends_clean(volume, &device);
}

/// The device dies while pages are on their way.
#[test]
fn a_dead_device_is_told_by_the_sync_and_by_every_later_one() {
    let memory = LARGE.image().device();
    let device = FaultDevice::new(memory.clone());
    let faults = device.handle();
    let volume = open_rw(Arc::new(device));
    let (file, mut model) = written(&volume, "/file", 20);
    (0..10).for_each(|number| change(&file, &mut model, 8, number * 2));
    let end = appending(&volume, "/file");
    end.append(b"the end", PLAIN).unwrap();
    let action = FaultAction::Errno(libc::EIO);
    faults.arm(Fault { action, times: u64::MAX, ..Fault::nth(FaultOn::Changes, 1) });
    for _ in 0..3 {
        assert!(matches!(file.sync_data(), Err(Error::Io { .. } | Error::Aborted(_))));
    }
    drop((file, end));
    assert!(volume.close().is_err());
}

/// A direct write is in flight when the first page is read: the page must not hold the bytes of before.
#[test]
fn pages_begin_when_direct_writes_are_done() {
    let memory = LARGE.image().device();
    let volume = open_rw(Arc::new(LateDevice::new(memory)));
    let (file, _) = written(&volume, "/file", 2);
    file.set_len(2 * PAGE as u64).unwrap();
    assert_eq!(volume.page_bytes(), (0, 0));
    let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
    let slot = queue.attach(&file).unwrap();
    let mut buffer = queue.buffer(PAGE).unwrap();
    buffer.fill(9);
    // It lands when it is reaped.
    queue.write(slot, 0, buffer, PLAIN, 1).unwrap();
    queue.submit().unwrap();
    let mut seen = [0; 3];
    file.read_any_at(&mut seen, 100).unwrap();
    queue.wait(1).unwrap().for_each(|done| assert_eq!(done.result.unwrap(), PAGE));
    file.read_any_at(&mut seen, 100).unwrap();
    assert_eq!(seen, [9; 3]);
}

/// What is done before a write.
type Work = Box<dyn FnOnce() + Send>;

/// A device that does something before the next write.
struct Meddling {
    inner: Arc<dyn Device>,
    work: Arc<Mutex<Option<Work>>>,
}

impl std::fmt::Debug for Meddling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meddling").finish_non_exhaustive()
    }
}

impl DeviceLayer for Meddling {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn names(&self) -> Vec<String> {
        vec!["meddling".into()]
    }

    fn run(&self, what: What, call: impl FnOnce(&dyn Device) -> DeviceResult<()>) -> DeviceResult<()> {
        let work = if what.op == Op::Write { self.work.lock().unwrap().take() } else { None };
        if let Some(work) = work {
            work();
        }
        call(&*self.inner)
    }
}

/// A page is changed while the data of an atomic write of that block is on its way to other blocks. It holds the old
/// bytes around the change, which must not come after the atomic write.
#[test]
fn an_atomic_write_is_not_undone_by_a_page_that_came_meanwhile() {
    let memory = LARGE.image().device();
    let work = Arc::<Mutex<Option<Work>>>::default();
    let volume = open_rw(Arc::new(Meddling { inner: memory.clone(), work: work.clone() }));
    let (file, _) = written(&volume, "/file", 4);
    file.set_len(4 * PAGE as u64).unwrap();
    assert_eq!(volume.page_bytes(), (0, 0));
    let other = volume.open_file("/file", buffered()).unwrap();
    let meddle = move || assert_eq!(other.write_any_at(b"other", 5000, PLAIN).unwrap(), 5);
    *work.lock().unwrap() = Some(Box::new(meddle));
    let bytes = patterned(7, 0, 4 * PAGE);
    file.write_any_at(&bytes, 0, WriteFlags::ATOMIC | WriteFlags::DSYNC).unwrap();
    assert!(work.lock().unwrap().is_none());
    assert_same_bytes(&bytes, &read_all(&file));
    file.sync_all().unwrap();
    assert_same_bytes(&bytes, &after_a_crash(&*memory, "/file"));
    drop(file);
    ends_clean(volume, &memory);
}

/// Fills a volume but for so many bytes.
fn filled_but(volume: &Volume, bytes: u64) -> File {
    let other = volume.open_file("/other", read_write().create(true)).unwrap();
    fill(&other);
    volume.sync_all().unwrap();
    fill(&other);
    other.set_len(other.size() - bytes).unwrap();
    volume.sync_all().unwrap();
    other
}

fn fill(file: &File) {
    for length in [64 << 10, 1024] {
        let append = || file.write_any_at(&patterned(1, 0, length), file.size(), PLAIN);
        while append().is_ok() {}
        assert!(matches!(append(), Err(Error::NoSpace)));
    }
}

#[test]
fn blocks_stay_promised_to_pages_after_a_failure() {
    for layout in [SMALL, LARGE] {
        let memory = layout.image().device();
        let device = FaultDevice::new(memory.clone());
        let faults = device.handle();
        let volume = open_rw(Arc::new(device));
        let other = filled_but(&volume, 600_000);
        let file = volume.open_file("/file", buffered().create(true)).unwrap();
        let bytes = patterned(2, 0, 300_000);
        file.write_any_at(&bytes, 0, PLAIN).unwrap();
        let promised = volume.reserved_space().pages;
        let action = FaultAction::Errno(libc::EIO);
        for _ in 0..3 {
            faults.arm(Fault { action, ..Fault::nth(FaultOn::Op(Op::Write), 1) });
            let failed = file.sync_all();
            assert!(matches!(failed, Err(Error::Io { .. })), "{layout:?}: {failed:?}");
            assert_eq!(volume.reserved_space().pages, promised, "{layout:?}");
        }
        fill(&other);
        file.sync_all().unwrap();
        assert_same_bytes(&bytes, &after_a_crash(&*memory, "/file"));
        drop((file, other));
        ends_clean(volume, &memory);
    }
}

/// Where blocks cannot be claimed they are allocated, and freed when the write fails.
#[test]
fn blocks_that_a_failed_write_frees_are_promised_again() {
    for layout in [CLUSTERS, POINTERS] {
        let memory = layout.image().device();
        let device = FaultDevice::new(memory.clone());
        let faults = device.handle();
        let volume = open_rw(Arc::new(device));
        let file = volume.open_file("/file", buffered().create(true)).unwrap();
        let bytes = patterned(2, 0, 300_000);
        file.write_any_at(&bytes, 0, PLAIN).unwrap();
        let promised = volume.reserved_space().pages;
        assert!(promised >= 293, "{promised}");
        for _ in 0..3 {
            let action = FaultAction::Errno(libc::EIO);
            faults.arm(Fault { action, ..Fault::nth(FaultOn::Op(Op::Write), 1) });
            let failed = file.sync_all();
            assert!(matches!(failed, Err(Error::Io { .. })), "{layout:?}: {failed:?}");
            assert_eq!(volume.reserved_space().pages, promised, "{layout:?}");
        }
        file.sync_all().unwrap();
        assert_eq!(volume.reserved_space().pages, 0);
        assert_same_bytes(&bytes, &after_a_crash(&*memory, "/file"));
        drop(file);
        ends_clean(volume, &memory);
    }
}

#[test]
fn an_atomic_write_gets_no_blocks_that_are_promised_to_pages() {
    let memory = SMALL.image().device();
    let work = Arc::<Mutex<Option<Work>>>::default();
    let volume = open_rw(Arc::new(Meddling { inner: memory.clone(), work: work.clone() }));
    let other = filled_but(&volume, 400_000);
    let file = volume.open_file("/file", buffered().create(true)).unwrap();
    file.set_len(256 << 10).unwrap();
    volume.sync_all().unwrap();
    for number in 0..40 {
        file.write_any_at(b"page", number << 11, PLAIN).unwrap();
    }
    fill(&other);
    let (answers, answer) = mpsc::channel();
    let atomic = volume.open_file("/file", read_write()).unwrap();
    let meddle = move || {
        // It would wait for the pages, if it got blocks.
        let write = move || atomic.write_any_at(&[7; 64 << 10], 128 << 10, WriteFlags::ATOMIC);
        std::thread::spawn(move || answers.send(write()).unwrap());
        let answer = answer.recv_timeout(Duration::from_secs(5));
        assert!(matches!(answer, Ok(Err(Error::NoSpace))), "{answer:?}");
    };
    *work.lock().unwrap() = Some(Box::new(meddle));
    file.sync_all().unwrap();
    assert!(work.lock().unwrap().is_none());
    assert_eq!(count(&volume, Counter::LateFailures), 0);
    drop((file, other));
    ends_clean(volume, &memory);
}

/// No limit held for the bytes when they were written.
#[test]
fn a_limit_of_quota_that_comes_later_does_not_stop_pages() {
    let memory = QUOTA.image().device();
    let volume = open_rw(memory.clone());
    let limits = QuotaLimits { blocks_hard: 100, ..QuotaLimits::default() };
    volume.set_quota(QuotaKind::User, 0, &limits).unwrap();
    let file = volume.open_file("/file", buffered().create(true)).unwrap();
    let bytes = patterned(2, 0, 300_000);
    file.write_any_at(&bytes, 0, PLAIN).unwrap();
    let limited = volume.open_file("/file", buffered().limited(true)).unwrap();
    file.sync_all().unwrap();
    assert_same_bytes(&bytes, &after_a_crash(&*memory, "/file"));
    let refused = limited.write_any_at(&bytes, 300_000, PLAIN);
    assert!(matches!(refused, Err(Error::QuotaExceeded { .. })), "{refused:?}");
    drop((file, limited));
    ends_clean(volume, &memory);
}
