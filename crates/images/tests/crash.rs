//! What a power cut of the host leaves: an image without damage, with all that was made durable.

use crate::common::{reap_all, request};
use crate::tools::{check, converted, img, io, make, path};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::spec::Format;
use uext4_blockdev::{
    Buffer, BufferPool, Device, DeviceQueue, Error, Formats, ImageFault, ImageOptions, Memory, Op, Queue,
    QueueOptions, Request, Result, WriteDurability,
};
use uext4_images::KNOWN;
use uext4_testkit::crash::{Options, State, assert_states};
use uext4_testkit::device::{CrashDevice, CrashOptions, DeviceFile, Fault, FaultDevice, FaultOn};
use uext4_testkit::{Need, Rng, Scratch, needs};

/// Opens the image that is on the device, as if it were in the file at `path`.
pub fn open_on(device: Arc<dyn Device>, path: &Path, write: bool) -> Result<Arc<dyn Device>> {
    open_in(DeviceFile::new(device), path, write)
}

/// The same of the image in this file.
pub fn open_in(file: Arc<DeviceFile>, path: &Path, write: bool) -> Result<Arc<dyn Device>> {
    let options =
        ImageOptions { path, write, force: false, sync: true, format: None, named: Default::default() };
    KNOWN.open(Format::Qcow2, file, &options)
}

/// A device with the bytes of a file, and room for more.
pub fn loaded(image: &Path, size: u64) -> Arc<MemoryDevice> {
    loaded_in(image, MemoryOptions::new(size))
}

/// The same in a device of this kind.
pub fn loaded_in(image: &Path, options: MemoryOptions) -> Arc<MemoryDevice> {
    let block = options.logical_block as usize;
    let memory = MemoryDevice::new(options).unwrap();
    let bytes = std::fs::read(image).unwrap();
    let mut buffer = BufferPool::new(1 << 20).unwrap().take(1 << 20).unwrap();
    for (number, part) in bytes.chunks(1 << 20).enumerate() {
        buffer.fill(0);
        buffer[..part.len()].copy_from_slice(part);
        let length = part.len().next_multiple_of(block);
        memory.write_at(&buffer[..length], (number as u64) << 20, WriteDurability::Cached).unwrap();
    }
    Arc::new(memory)
}

pub fn take(length: usize, fill: u8) -> Buffer {
    let mut buffer = BufferPool::new(length.max(4096)).unwrap().take(length).unwrap();
    buffer.fill(fill);
    buffer
}

/// Begun: these blocks, this byte (0: a discard, after which they may be anything). `Durable`: all begun before this
/// number. `DurableOne`: this one.
struct Begun(u64, u64, u8);
struct Durable(usize);
struct DurableOne(usize);

const DISK: u64 = 1 << 20;
const FILE: u64 = 4 << 20;

/// Whether a state has of each block what it may have.
fn is_legal(state: &State<'_>, device: &dyn Device, before: &[u8]) -> std::result::Result<(), String> {
    let begun: Vec<&Begun> = state.marks().collect();
    let flushed = state.marks::<Durable>().last().map_or(0, |durable| durable.0);
    let alone: Vec<usize> = state.marks::<DurableOne>().map(|one| one.0).collect();
    let now = crate::tools::contents(device, 64 << 10);
    for (block, bytes) in now.chunks(512).enumerate() {
        let (mut allowed, mut discarded) = (vec![before[block * 512]], false);
        for (at, Begun(first, length, number)) in begun.iter().enumerate() {
            if !(*first..*first + *length).contains(&(block as u64)) {
                continue;
            }
            if *number == 0 {
                discarded = true;
                continue;
            }
            if at < flushed || alone.contains(&at) {
                (allowed, discarded) = (Vec::new(), false);
            }
            allowed.push(*number);
        }
        if discarded {
            continue;
        }
        if bytes.iter().any(|byte| *byte != bytes[0]) {
            return Err(format!("block {block} is torn"));
        }
        if !allowed.contains(&bytes[0]) {
            return Err(format!("block {block}: {}, not one of {allowed:?}", bytes[0]));
        }
    }
    Ok(())
}

/// Random writes and discards, durable in all ways.
fn write_some(device: &dyn Device, handle: &uext4_testkit::device::CrashHandle, seed: u64, fua: bool) {
    let mut rng = Rng::new(seed);
    // Queued and not reaped. They go after the queue.
    let mut flying: Vec<(Buffer, Range<u64>)> = Vec::new();
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let mut begun = 0;
    for number in 1..=50u8 {
        let block = rng.below(DISK / 512 - 40);
        let block = if rng.below(2) == 0 { block } else { 300 + block % 64 };
        let length = if rng.below(4) == 0 { 1 + rng.below(40) } else { 1 + rng.below(4) };
        // Which of two is later is only known if they are not in flight together.
        let (first, last) = (block / 32 * 32, (block + length).next_multiple_of(32));
        if flying.iter().any(|(_, range)| range.start < last && first < range.end) {
            reap(&mut queue);
            flying.clear();
        }
        if rng.below(5) == 0 {
            // Mostly of whole clusters.
            handle.mark(Begun(first, last - first, 0));
            device.discard(first * 512, (last - first) * 512).unwrap();
            begun += 1;
            continue;
        }
        let mut buffer = take(length as usize * 512, number);
        handle.mark(Begun(block, length, number));
        let write = request(Op::Write, block * 512, buffer.len() as u32, buffer.memory(0), 0);
        let way = rng.below(6);
        if way < 2 && rng.below(2) == 0 {
            // Then the durable write finds a place that only memory knows.
            device.write_at(&buffer, block * 512, WriteDurability::Cached).unwrap();
        }
        match way {
            0 if fua => {
                device.write_at(&buffer, block * 512, WriteDurability::Fua).unwrap();
                handle.mark(DurableOne(begun));
            }
            1 if fua => {
                // SAFETY: reaped before the buffer goes.
                unsafe { queue.push(Request { fua: true, ..write }) }.unwrap();
                reap(&mut queue);
                handle.mark(DurableOne(begun));
            }
            2 | 3 if queue.in_flight() < queue.capacity() => {
                // SAFETY: the buffers go when all is reaped, before the next flush.
                unsafe { queue.push(write) }.unwrap();
                queue.submit().unwrap();
                flying.push((buffer, block..block + length));
            }
            _ => device.write_at(&buffer, block * 512, WriteDurability::Cached).unwrap(),
        }
        begun += 1;
        let way = rng.below(8);
        if way < 2 {
            reap(&mut queue);
            flying.clear();
        }
        match way {
            0 => device.flush().unwrap(),
            1 => {
                // SAFETY: a flush has no memory.
                unsafe { queue.push(request(Op::Flush, 0, 0, Memory::NONE, 0)) }.unwrap();
                assert_eq!(reap_all(&mut queue)[0].result, 0);
            }
            _ => continue,
        }
        handle.mark(Durable(begun));
    }
}

fn reap(queue: &mut Queue) {
    assert!(reap_all(queue).iter().all(|done| done.result > 0));
}

/// Makes an image of the kind, with blocks of one byte each.
pub fn image(scratch: &Scratch, kind: &str) -> std::path::PathBuf {
    let image = scratch.file("disk.qcow2");
    let base = scratch.file("base.raw");
    let fill = ["write -P 101 16k 100k", "write -P 102 150k 30k", "write -P 103 700k 64k"];
    match kind.split_once(' ') {
        Some(("over", options)) => {
            std::fs::write(&base, vec![0xb5; 700 << 10]).unwrap();
            make(&image, &format!("{options},backing_file=base.raw,backing_fmt=raw"), "1M");
            io(&image, &fill);
        }
        Some(("compressed", options)) => {
            let blocks = (0..DISK / 512).flat_map(|block| [(block % 7) as u8 + 200; 512]);
            std::fs::write(&base, blocks.collect::<Vec<u8>>()).unwrap();
            img(&["convert", "-c", "-O", "qcow2", "-o", options, path(&base), path(&image)]);
        }
        Some(("snapshot", options)) => {
            make(&image, options, "1M");
            io(&image, &fill);
            img(&["snapshot", "-c", "one", path(&image)]);
        }
        _ => {
            make(&image, kind, "1M");
            io(&image, &fill);
        }
    }
    image
}

#[test]
fn power_cuts_leave_no_damage_and_all_that_was_durable() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let mut states = 0;
    for (seed, (kind, fua)) in [
        ("cluster_size=65536", true),
        // New blocks of refcounts, and longer tables of them.
        ("cluster_size=512", true),
        ("cluster_size=512,refcount_bits=64", false),
        ("extended_l2=on,cluster_size=16384", true),
        ("over cluster_size=4096", true),
        ("over extended_l2=on,cluster_size=16384", false),
        ("compressed cluster_size=4096", true),
        ("snapshot cluster_size=1024", true),
    ]
    .into_iter()
    .enumerate()
    {
        let scratch = Scratch::new(64 << 20);
        let image = image(&scratch, kind);
        let before = converted(&image, &[]);
        let crash = CrashDevice::new(loaded(&image, FILE), CrashOptions { fua, ..CrashOptions::default() });
        let crash = crash.unwrap();
        let handle = crash.handle();
        handle.shuffle(Some(seed as u64));
        // Those that grow have clusters that were never used.
        let length = std::fs::metadata(&image).unwrap().len().next_multiple_of(512);
        let length = if seed % 2 == 0 { length } else { FILE };
        let device = open_in(DeviceFile::growing(Arc::new(crash), length), &image, true).unwrap();
        write_some(&*device, &handle, seed as u64, fua);
        std::mem::forget(device);
        let options = Options::new("qcow2", seed as u64).at_most(260);
        let saved = scratch.file("state.qcow2");
        let report = assert_states(&handle.log().unwrap(), &options, |state| {
            state.save(&saved);
            check(&saved, true);
            let device = open_on(state.device(), &image, false).map_err(|error| error.to_string())?;
            is_legal(state, &*device, &before).map_err(|error| format!("{kind}: {error}"))
        });
        states += report.states;
    }
    assert!(states > 1500, "{states}");
}

/// A flush that needs new blocks of refcounts, and a longer table of them: few writes, so that most states are seen.
#[test]
fn new_blocks_of_refcounts_come_before_what_they_count() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = image(&scratch, "cluster_size=512,refcount_bits=64");
    let before = converted(&image, &[]);
    let crash = CrashDevice::new(loaded(&image, FILE), CrashOptions::default()).unwrap();
    let handle = crash.handle();
    let device = open_on(Arc::new(crash), &image, true).unwrap();
    // 64 clusters to a block; the table has 64 entries.
    for (number, first) in [(1, 1600), (2, 1700)] {
        handle.mark(Begun(first, 70, number));
        device.write_at(&take(70 * 512, number), first * 512, WriteDurability::Cached).unwrap();
        device.flush().unwrap();
        handle.mark(Durable(number.into()));
    }
    std::mem::forget(device);
    let saved = scratch.file("state.qcow2");
    let options = Options::new("qcow2-refcounts", 1).at_most(1000);
    assert_states(&handle.log().unwrap(), &options, |state| {
        state.save(&saved);
        check(&saved, true);
        let device = open_on(state.device(), &image, false).map_err(|error| error.to_string())?;
        is_legal(state, &*device, &before)
    });
}

/// An image whose table of refcounts has room for 4096 clusters, of which few are left.
pub fn almost_full(scratch: &Scratch) -> std::path::PathBuf {
    let image = scratch.file("disk.qcow2");
    make(&image, "cluster_size=512,refcount_bits=64", "3M");
    io(&image, &["write -P 101 0 1700k"]);
    image
}

/// A flush that needs a longer table of refcounts: the header says where it is when it is there.
#[test]
fn a_longer_table_of_refcounts_comes_before_the_header() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = almost_full(&scratch);
    let before = converted(&image, &[]);
    let table = |file: &Path| std::fs::read(file).unwrap()[48..60].to_vec();
    let (first_table, mut others) = (table(&image), 0);
    let crash = CrashDevice::new(loaded(&image, FILE), CrashOptions::default()).unwrap();
    let handle = crash.handle();
    let device = open_on(Arc::new(crash), &image, true).unwrap();
    for (number, first) in [(1, 4000), (2, 4500), (3, 5000)] {
        handle.mark(Begun(first, 250, number));
        device.write_at(&take(250 * 512, number), first * 512, WriteDurability::Cached).unwrap();
        device.flush().unwrap();
        handle.mark(Durable(number.into()));
    }
    std::mem::forget(device);
    let saved = scratch.file("state.qcow2");
    let options = Options::new("qcow2-refcount-table", 1).at_most(300);
    assert_states(&handle.log().unwrap(), &options, |state| {
        state.save(&saved);
        check(&saved, true);
        others += usize::from(table(&saved) != first_table);
        let device = open_on(state.device(), &image, false).map_err(|error| error.to_string())?;
        is_legal(state, &*device, &before)
    });
    assert!(others > 0, "no state has a longer table");
}

/// After a flush that failed nothing is acknowledged, and what was is still there.
#[test]
fn a_flush_that_fails_is_the_last() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = image(&scratch, "cluster_size=4096");
    for nth in 1..=6 {
        let memory = loaded(&image, FILE);
        let faulty = FaultDevice::new(memory.clone());
        let faults = faulty.handle();
        let device = open_on(Arc::new(faulty), &image, true).unwrap();
        device.write_at(&take(512, 1), 0, WriteDurability::Fua).unwrap();
        device.write_at(&take(512, 2), 512 << 10, WriteDurability::Cached).unwrap();
        let on = if nth > 4 { FaultOn::Op(Op::Flush) } else { FaultOn::Op(Op::Write) };
        faults.arm(Fault::nth(on, if nth > 4 { nth - 4 } else { 1 + nth % 2 }));
        let failed = device.flush();
        assert_eq!(failed.map_err(|error| error.errno()), Err(libc::EIO), "{nth}");
        let refused = |result: Result<()>| {
            assert!(matches!(result, Err(Error::Image { fault: ImageFault::Failed, .. })), "{result:?}");
        };
        refused(device.flush());
        refused(device.write_at(&take(512, 3), 0, WriteDurability::Fua));
        refused(device.write_at(&take(512, 3), 600 << 10, WriteDurability::Cached));
        refused(device.discard(0, 512));
        let mut buffer = take(512, 3);
        for op in [Op::Write, Op::Flush] {
            let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
            // SAFETY: reaped before the buffer goes.
            unsafe { queue.push(request(op, 0, 512, buffer.memory(0), 0)) }.unwrap();
            assert_eq!(reap_all(&mut queue)[0].result, -libc::EIO);
        }
        device.read_at(&mut buffer, 512 << 10).unwrap();
        assert_eq!(buffer[0], 2, "still readable");
        drop(device);
        let reopened = open_on(memory, &image, false).unwrap();
        reopened.read_at(&mut buffer, 0).unwrap();
        assert_eq!(buffer[0], 1);
    }
}

/// A write that fails, or finds no room, leaves the image sound and the rest of the disk as it was.
#[test]
fn a_write_that_fails_leaves_the_image_sound() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = image(&scratch, "over cluster_size=4096");
    let before = converted(&image, &[]);
    let saved = scratch.file("left.qcow2");
    let save = |memory: &MemoryDevice| {
        let bytes = crate::tools::contents(memory, 64 << 10);
        std::fs::write(&saved, bytes).unwrap();
        check(&saved, false);
    };
    for nth in 1..=3 {
        let memory = loaded(&image, FILE);
        let faulty = FaultDevice::new(memory.clone());
        let faults = faulty.handle();
        let device = open_on(Arc::new(faulty), &image, true).unwrap();
        faults.arm(Fault::nth(FaultOn::Op(Op::Write), nth));
        let failed = device.write_at(&take(4096, 1), (300 << 10) + 512, WriteDurability::Cached);
        assert_eq!(failed.map_err(|error| error.errno()), Err(libc::EIO));
        device.write_at(&take(4096, 9), 600 << 10, WriteDurability::Cached).unwrap();
        device.flush().unwrap();
        let now = crate::tools::contents(&*device, 4096);
        assert!(now[..600 << 10] == before[..600 << 10], "{nth}");
        drop(device);
        save(&memory);
    }
    // The file is as long as it is, and no longer.
    let memory = loaded(&image, std::fs::metadata(&image).unwrap().len().next_multiple_of(4096) + 8192);
    let device = open_on(memory.clone(), &image, true).unwrap();
    let full = (0..40).find_map(|number| {
        device.write_at(&take(4096, 7), (300 << 10) + number * 4096, WriteDurability::Cached).err()
    });
    assert_eq!(full.unwrap().errno(), libc::ENOSPC);
    drop(device);
    save(&memory);
}

/// A write that finds no room for a second-level table leaves no cluster counted, also if it is repeated.
#[test]
fn writes_without_room_for_a_table_leave_no_leaks() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = image(&scratch, "cluster_size=512");
    let memory = loaded(&image, std::fs::metadata(&image).unwrap().len().next_multiple_of(512) + 5 * 512);
    let device = open_on(memory.clone(), &image, true).unwrap();
    // A table of 512 bytes is about 32 KiB; from 400 KiB on there are none.
    let write = |number: u64| {
        device.write_at(&take(512, 7), (400 << 10) + number * (32 << 10), WriteDurability::Cached)
    };
    let written = (0..8).take_while(|number| write(*number).is_ok()).count() as u64;
    assert!((1..4).contains(&written), "{written}");
    for number in 0..50 {
        // The first one may get the last cluster for its table.
        assert_eq!(write(written + number % 5).unwrap_err().errno(), libc::ENOSPC);
    }
    device.flush().unwrap();
    drop(device);
    let saved = scratch.file("left.qcow2");
    // With room behind it: QEMU looks at the clusters that the file has.
    std::fs::write(&saved, [crate::tools::contents(&*memory, 64 << 10), vec![0; 64 << 10]].concat()).unwrap();
    check(&saved, false);
    let mut buffer = take(512, 0);
    open_on(memory, &image, false).unwrap().read_at(&mut buffer, 400 << 10).unwrap();
    assert_eq!(buffer[0], 7);
}
