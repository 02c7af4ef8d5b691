//! Overwrites: every byte arrives, nothing else changes, all 32 switch settings do the same, and the counters show the
//! route.

use crate::common;

use common::sample::{DATA_SIZE, FRAG_SIZE, expected, sample, sample_with, seeded};
use common::{Image, aligned, assert_same_bytes, open_rw, patterned, read_all, read_write};
use std::sync::Arc;
use uext4::device::Device;
use uext4::device::{CountingDevice, Counts, Mask, MaskDevice};
use uext4::{Counter, File, QueueOptions, SWITCH_NAMES, Stats, Switches, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::Rng;

/// One step of a workload.
#[derive(Debug, Clone, Copy)]
struct Step {
    name: &'static str,
    pos: u64,
    length: usize,
    how: Way,
    flags: WriteFlags,
    pattern: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Direct,
    AnyByte,
    Queue,
    Vector,
}

/// A seeded workload of overwrites of every shape.
fn workload(seed: u64, count: u64) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let step = |number: u64| {
        let (name, size) = *rng.pick(&[("/data", DATA_SIZE), ("/frag", FRAG_SIZE)]);
        let how = *rng.pick(&[Way::Direct, Way::AnyByte, Way::Queue, Way::Vector]);
        let unit = match how {
            Way::AnyByte => 1,
            _ => *rng.pick(&[512, 1024, 4096]),
        };
        let most = if rng.chance(10) { 262_144 } else { 12_288 };
        let length = unit * (1 + rng.below(most / unit));
        let pos = rng.below((size - length) / unit) * unit;
        let flags = *rng.pick(&[WriteFlags::empty(), WriteFlags::DSYNC, WriteFlags::SYNC]);
        Step { name, pos, length: length as usize, how, flags, pattern: 1000 + number }
    };
    (0..count).map(step).collect()
}

/// Carries a step out and checks that it reads back.
fn run(volume: &Volume, step: &Step) {
    let file = volume.open_file(step.name, read_write()).unwrap();
    let bytes = patterned(step.pattern, step.pos, step.length);
    let written = match step.how {
        Way::Direct => file.write_at_with(&bytes, step.pos, step.flags).unwrap(),
        Way::AnyByte => {
            // Memory at an odd address, too.
            let mut odd = vec![0; step.length + 1];
            odd[1..].copy_from_slice(&bytes);
            file.write_any_at(&odd[1..], step.pos, step.flags).unwrap()
        }
        Way::Queue | Way::Vector => queue_write(volume, &file, step, &bytes),
    };
    assert_eq!(written, step.length);
    let mut back = vec![0; step.length];
    assert_eq!(file.read_any_at(&mut back, step.pos).unwrap(), step.length);
    assert_same_bytes(&bytes, &back);
}

fn queue_write(volume: &Volume, file: &File, step: &Step, bytes: &[u8]) -> usize {
    let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
    let slot = queue.attach(file).unwrap();
    let mut buffers = Vec::new();
    let cut = if step.how == Way::Vector { (step.length / 1024 * 512).max(512) } else { step.length };
    for part in bytes.chunks(cut) {
        let mut buffer = queue.buffer(part.len()).unwrap();
        buffer.copy_from_slice(part);
        buffers.push(buffer);
    }
    if step.how == Way::Vector {
        queue.writev(slot, step.pos, buffers, step.flags, 5).unwrap();
    } else {
        queue.write(slot, step.pos, buffers.pop().unwrap(), step.flags, 5).unwrap();
    }
    let done: Vec<_> = queue.wait(1).unwrap().collect();
    assert_eq!((done.len(), done[0].tag), (1, 5));
    done.into_iter().next().unwrap().result.unwrap()
}

/// The expected contents of `/data` and `/frag` after the steps.
fn model(steps: &[Step]) -> [(&'static str, Vec<u8>); 2] {
    let mut files = [("/data", expected("/data")), ("/frag", expected("/frag"))];
    for step in steps {
        let (_, bytes) = files.iter_mut().find(|(name, _)| *name == step.name).unwrap();
        let range = step.pos as usize..step.pos as usize + step.length;
        bytes[range].copy_from_slice(&patterned(step.pattern, step.pos, step.length));
    }
    files
}

fn options(switches: Switches) -> VolumeOptions {
    VolumeOptions::read_write().switches(switches)
}

#[test]
fn all_switch_settings_leave_equal_contents() {
    // A journal contains the times, which differ: then compare files only, and without a journal everything except
    // times.
    for bits in 0..32 {
        let device = sample().device_with(|options| options.volatile_cache = true);
        let volume = Volume::open_device(device.clone(), options(Switches::from_bits(bits))).unwrap();
        let steps = workload(7, 60);
        steps.iter().for_each(|step| run(&volume, step));
        volume.close().unwrap();
        let volume = open_rw(device);
        for (name, bytes) in model(&steps) {
            assert_same_bytes(&bytes, &read_all(&volume.open_file(name, read_write()).unwrap()));
        }
    }
    let image = sample_with(4096, &["-O", "^has_journal"]);
    let steps = workload(7, 60);
    let mut first: Option<Image> = None;
    for bits in 0..32 {
        let switches = Switches::from_bits(bits);
        let device = image.device_with(|options| options.volatile_cache = true);
        let volume = Volume::open_device(device.clone(), options(switches)).unwrap();
        steps.iter().for_each(|step| run(&volume, step));
        for (name, bytes) in model(&steps) {
            assert_same_bytes(&bytes, &read_all(&volume.open_file(name, read_write()).unwrap()));
        }
        drop(volume);
        let after = Image::of(&*device);
        match &first {
            None => first = Some(after),
            Some(first) => {
                let [first, after] = [first.clone(), after].map(Image::without_times);
                assert_eq!(first, after, "the whole volume is the same with {switches}");
            }
        }
    }
    // Only file data and times may have changed: e2fsck and debugfs agree.
    let scratch = uext4_testkit::Scratch::new(image.bytes.len() as u64);
    let path = scratch.file("after.img");
    first.unwrap().save(&path);
    uext4_testkit::e2fsck_clean(&path);
    for (name, bytes) in model(&steps) {
        let out = scratch.file("out");
        uext4_testkit::debugfs(&path, &format!("dump {name} {}", out.display()));
        assert_same_bytes(&bytes, &std::fs::read(out).unwrap());
    }
}

#[test]
fn every_block_size_takes_overwrites_of_every_shape() {
    for (block, args) in [
        (1024, &[][..]),
        (2048, &["-O", "^metadata_csum,^64bit"]),
        (4096, &["-O", "^has_journal"]),
        (1024, &["-I", "128"]),
    ] {
        let image = sample_with(block, args);
        let device = image.device();
        let volume = open_rw(device.clone());
        let steps = workload(u64::from(block), 80);
        steps.iter().for_each(|step| run(&volume, step));
        for (name, bytes) in model(&steps) {
            assert_same_bytes(&bytes, &read_all(&volume.open_file(name, read_write()).unwrap()));
        }
        drop(volume);
        let scratch = uext4_testkit::Scratch::new(image.bytes.len() as u64);
        let path = scratch.file("after.img");
        Image::of(&*device).save(&path);
        uext4_testkit::e2fsck_clean(&path);
    }
}

/// Runs `work` on a fresh sample volume with these switches and returns what was counted.
fn counted(switches: Switches, work: impl Fn(&Volume, &File)) -> Stats {
    let device = sample().device_with(|options| options.volatile_cache = true);
    let volume = Volume::open_device(device, options(switches)).unwrap();
    let file = volume.open_file("/data", read_write()).unwrap();
    // Load the map first: a look-up that misses is repeated and counted twice.
    file.read_at(&mut aligned(4096), 0).unwrap();
    let before = volume.stats();
    work(&volume, &file);
    volume.stats().since(&before)
}

fn without(name: &str) -> Switches {
    let mut switches = Switches::ON;
    switches.set(name, false).unwrap();
    switches
}

/// 10 synchronous and 10 queued requests of `length` bytes each.
fn twenty_writes(length: usize, flags: WriteFlags) -> impl Fn(&Volume, &File) {
    move |volume, file| {
        let bytes = patterned(77, 0, length);
        for n in 0..10 {
            file.write_at_with(&bytes, n * 8192, flags).unwrap();
        }
        let mut queue = volume.queue(QueueOptions::depth(16)).unwrap();
        let slot = queue.attach(file).unwrap();
        for n in 0..10 {
            let buffer = queue.buffer(length).unwrap();
            queue.write(slot, n * 8192, buffer, flags, n).unwrap();
        }
        let mut seen = 0;
        while seen < 10 {
            for done in queue.wait(1).unwrap() {
                assert_eq!(done.result.unwrap(), length);
                seen += 1;
            }
        }
    }
}

fn twenty_reads(volume: &Volume, file: &File) {
    let mut buffer = aligned(4096);
    for n in 0..10 {
        file.read_at(&mut buffer, n * 8192).unwrap();
    }
    let mut queue = volume.queue(QueueOptions::depth(16)).unwrap();
    let slot = queue.attach(file).unwrap();
    for n in 0..10 {
        queue.read(slot, n * 8192, queue.buffer(4096).unwrap(), n).unwrap();
    }
    assert_eq!(queue.wait(10).unwrap().count(), 10);
}

#[test]
fn counters_show_the_route_of_each_switch() {
    let [transaction, _dax, fua, simple, subblock] = SWITCH_NAMES;
    let writes = twenty_writes(4096, WriteFlags::empty());
    let on = counted(Switches::ON, &writes);
    assert_eq!((on.get(Counter::OverwritesWithoutHandle), on.get(Counter::HandlesStarted)), (20, 0));
    assert_eq!((on.get(Counter::DioCounted), on.get(Counter::ExclusiveWrites)), (20, 0));
    let off = counted(without(transaction), &writes);
    assert_eq!((off.get(Counter::OverwritesWithoutHandle), off.get(Counter::HandlesStarted)), (0, 20));

    let on = counted(Switches::ON, twenty_reads);
    assert_eq!((on.get(Counter::SimpleReads), on.get(Counter::GeneralReads)), (20, 0));
    let off = counted(without(simple), twenty_reads);
    assert_eq!((off.get(Counter::SimpleReads), off.get(Counter::GeneralReads)), (0, 20));

    let small = twenty_writes(512, WriteFlags::empty());
    let on = counted(Switches::ON, &small);
    assert_eq!((on.get(Counter::SharedSubblockWrites), on.get(Counter::ExclusiveWrites)), (20, 0));
    let off = counted(without(subblock), &small);
    assert_eq!((off.get(Counter::SharedSubblockWrites), off.get(Counter::ExclusiveWrites)), (0, 20));

    let durable = twenty_writes(4096, WriteFlags::DSYNC);
    let on = counted(Switches::ON, &durable);
    assert_eq!((on.get(Counter::FuaWrites), on.get(Counter::Flushes)), (20, 0));
    let off = counted(without(fua), &durable);
    assert_eq!(off.get(Counter::FuaWrites), 0);
    // Each synchronous call flushes; the queued ones share.
    assert!((11..=20).contains(&off.get(Counter::Flushes)), "{} flushes", off.get(Counter::Flushes));
}

/// What the device sees of 10 synchronous and 10 queued DSYNC writes.
fn device_counts(volatile_cache: bool, fua: bool, mask: Mask, flags: WriteFlags) -> Counts {
    let memory: Arc<dyn Device> = sample().device_with(|options| {
        options.volatile_cache = volatile_cache;
        options.fua = fua;
    });
    let counting = Arc::new(CountingDevice::new(Arc::new(MaskDevice::new(memory, mask))));
    let counters = counting.counters();
    let volume = open_rw(counting);
    let file = volume.open_file("/data", read_write()).unwrap();
    file.read_at(&mut aligned(4096), 0).unwrap();
    counters.take();
    twenty_writes(4096, flags)(&volume, &file);
    counters.get()
}

#[test]
fn durable_overwrites_are_one_device_request_each() {
    let fua = device_counts(true, true, Mask::default(), WriteFlags::DSYNC);
    assert_eq!((fua.writes, fua.fua_writes, fua.flushes), (20, 20, 0));
    // Nothing to do on a device without a volatile cache and FUA.
    let through = device_counts(false, false, Mask::default(), WriteFlags::DSYNC);
    assert_eq!((through.writes, through.fua_writes, through.flushes), (20, 0, 0));
    // Without FUA each synchronous write flushes, and the queued ones share one: all complete in one batch.
    let masked = Mask { no_fua: true, ..Mask::default() };
    let flushed = device_counts(true, true, masked, WriteFlags::DSYNC);
    assert_eq!((flushed.writes, flushed.fua_writes, flushed.flushes), (20, 0, 11));
    // O_SYNC never takes the shortcut: it writes the times, if there is a journal. Its commit blocks carry FUA.
    let all = device_counts(true, true, Mask::default(), WriteFlags::SYNC);
    assert!(all.writes > 20 && all.fua_writes < 20 && all.flushes >= 11, "{all:?}");
    let none = device_counts(true, true, Mask::default(), WriteFlags::empty());
    assert_eq!((none.writes, none.fua_writes, none.flushes), (20, 0, 0));
}

#[test]
fn a_sync_flushes_only_a_volatile_cache() {
    for (volatile, flushes) in [(true, 3), (false, 0)] {
        let memory = sample().device_with(|options| options.volatile_cache = volatile);
        let counting = Arc::new(CountingDevice::new(memory));
        let counters = counting.counters();
        let volume = open_rw(counting);
        let file = volume.open_file("/data", read_write()).unwrap();
        file.write_at(&aligned(4096), 0).unwrap();
        // This one writes the times.
        file.sync_all().unwrap();
        counters.take();
        file.sync_data().unwrap();
        file.sync_all().unwrap();
        volume.sync_files(&[&file, &file]).unwrap();
        assert_eq!(counters.get().flushes, flushes);
    }
}

#[test]
fn bounced_writes_take_the_routes_of_their_switches() {
    let odd = |_: &Volume, file: &File| {
        file.write_any_at(&[1, 2, 3], 5000, WriteFlags::empty()).unwrap();
    };
    let on = counted(Switches::ON, odd);
    assert_eq!((on.get(Counter::Bounces), on.get(Counter::ExclusiveWrites)), (1, 1));
    assert_eq!(on.get(Counter::HandlesStarted), 0);
    let off = counted(without(SWITCH_NAMES[0]), odd);
    assert_eq!(off.get(Counter::HandlesStarted), 1, "the plain route maps every write under a handle");
}

#[test]
fn times_of_overwrites_show_while_the_file_is_open() {
    let volume = open_rw(sample().device());
    let file = volume.open_file("/data", read_write()).unwrap();
    let before = file.metadata().modified.nanoseconds_since_epoch();
    std::thread::sleep(std::time::Duration::from_millis(20));
    file.write_at(&aligned(4096), 0).unwrap();
    assert!(file.metadata().modified.nanoseconds_since_epoch() > before);
    assert_eq!(file.metadata().modified, file.metadata().changed);
}

#[test]
fn an_empty_write_changes_and_asks_nothing() {
    let volume = open_rw(sample().device());
    let file = volume.open_file("/data", read_write()).unwrap();
    let mut rng = seeded(3);
    for _ in 0..20 {
        let pos = rng.below(3 * DATA_SIZE);
        assert_eq!(file.write_any_at(&[], pos, WriteFlags::empty()).unwrap(), 0, "at {pos}");
        assert_eq!(file.write_at(&[], pos / 512 * 512).unwrap(), 0);
        assert_eq!(file.read_any_at(&mut [], pos).unwrap(), 0);
    }
}
