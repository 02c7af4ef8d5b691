//! Queued appends in flight together: blocks are claimed when they are sent, the size moves when they are complete, in
//! the order of the file.

use crate::common;

use common::sample::sample_with;
use common::{Image, assert_same_bytes, open_rw, patterned, read_all, read_only, read_write};
use std::sync::Arc;
use std::time::Duration;
use uext4::device::{Device, LatencyDevice, Op};
use uext4::{
    Completion, Counter, Fallocate, File, FileSlot, IoQueue, OpenOptions, QueueOptions, ReservedSpace,
    Result, Volume, WriteFlags,
};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultHandle, FaultOn, LateDevice, LateHandle};
use uext4_testkit::{Need, Rng, Scratch, needs, oracle};

const BLOCK: u64 = 4096;
const PLAIN: WriteFlags = WriteFlags::empty();

/// A volume with an empty file `/new`, whose queued requests land late and may fail.
struct Bed {
    device: Arc<dyn Device>,
    late: LateHandle,
    faults: FaultHandle,
    volume: Volume,
    file: File,
    scratch: Scratch,
}

impl Bed {
    fn new() -> Bed {
        Bed::with(&[])
    }

    fn with(args: &[&str]) -> Bed {
        let memory = sample_with(4096, args).device_with(|options| options.volatile_cache = true);
        let faulty = FaultDevice::new(memory.clone());
        let faults = faulty.handle();
        let device = LateDevice::new(Arc::new(faulty));
        let late = device.handle();
        let volume = open_rw(Arc::new(device));
        let file = volume.open_file("/new", read_write().create_new(true)).unwrap();
        Bed { device: memory, late, faults, volume, file, scratch: Scratch::new(64 << 20) }
    }

    fn queue(&self) -> (IoQueue, FileSlot) {
        let mut queue = self.volume.queue(QueueOptions::depth(32)).unwrap();
        let slot = queue.attach(&self.file).unwrap();
        (queue, slot)
    }

    /// Closes the volume and checks it. `/new` has these bytes.
    fn end(self, bytes: &[u8]) {
        let Bed { device, volume, file, scratch, .. } = self;
        assert_same_bytes(bytes, &read_all(&file));
        drop(file);
        assert_eq!(volume.reserved_space(), ReservedSpace::default());
        volume.close().unwrap();
        let path = scratch.file("after.img");
        Image::of(&*device).save(&path);
        oracle::e2fsck_clean(&path);
        let volume = open_rw(Image::load(&path).device());
        assert_same_bytes(bytes, &read_all(&volume.open_file("/new", read_only()).unwrap()));
        volume.close().unwrap();
    }
}

/// What an append at `pos` writes.
fn data(pos: u64, length: u64) -> uext4::Buffer {
    patterned(40, pos, length as usize)
}

fn send(queue: &mut IoQueue, slot: FileSlot, pos: u64, length: u64, flags: WriteFlags) {
    let mut buffer = queue.buffer(length as usize).unwrap();
    buffer.copy_from_slice(&data(pos, length));
    queue.write(slot, pos, buffer, flags, pos).unwrap();
}

/// Appends of one block, not yet on the device.
fn send_blocks(queue: &mut IoQueue, slot: FileSlot, from: u64, count: u64, flags: WriteFlags) {
    (from..from + count).for_each(|block| send(queue, slot, block * BLOCK, BLOCK, flags));
    queue.submit().unwrap();
}

fn all(queue: &mut IoQueue, count: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    while done.len() < count {
        done.extend(queue.wait(1).unwrap());
    }
    assert_eq!(queue.pending(), 0);
    done
}

fn all_good(queue: &mut IoQueue, count: usize) {
    all(queue, count).into_iter().for_each(|done| assert!(done.result.is_ok(), "{done:?}"));
}

/// All are at the device before the first completes, and they share a handle, a commit and a flush.
#[test]
fn appends_are_in_flight_together() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (length, flags, commits) in [(BLOCK, PLAIN, 0), (3 * BLOCK, PLAIN, 0), (BLOCK, WriteFlags::DSYNC, 1)]
    {
        let bed = Bed::new();
        let (mut queue, slot) = bed.queue();
        let before = bed.volume.stats();
        (0..16).for_each(|part| send(&mut queue, slot, part * length, length, flags));
        queue.submit().unwrap();
        let held = bed.late.held();
        // An append that no free run is long enough for takes several requests.
        assert!(bed.late.waiting() >= 16, "at the device at once: {}", bed.late.waiting());
        assert_eq!((bed.file.size(), queue.wait(0).unwrap().count()), (0, 0));
        bed.late.land();
        drop(held);
        all_good(&mut queue, 16);
        let stats = bed.volume.stats().since(&before);
        assert_eq!(stats.get(Counter::Extensions), 16);
        assert_eq!(stats.get(Counter::HandlesStarted), 1);
        assert_eq!(stats.get(Counter::Commits), commits);
        assert!(bed.file.map().count() <= 3, "side by side");
        drop(queue);
        let bytes = data(0, 16 * length);
        bed.end(&bytes);
    }
}

/// The same by the clock, on a device of 5 ms.
#[test]
fn appends_wait_for_a_slow_device_once() {
    needs!(Need::Tool("mke2fs"));
    let latency = Duration::from_millis(5);
    let device = LatencyDevice::new(sample_with(4096, &[]).device(), Some(latency), None);
    let volume = open_rw(Arc::new(device));
    let file = volume.open_file("/new", read_write().create_new(true)).unwrap();
    let mut queue = volume.queue(QueueOptions::depth(16)).unwrap();
    let slot = queue.attach(&file).unwrap();
    // What is read once: bitmaps, the inode's block.
    send_blocks(&mut queue, slot, 0, 1, PLAIN);
    all_good(&mut queue, 1);
    let best = (0..5).map(|round| {
        let start = std::time::Instant::now();
        send_blocks(&mut queue, slot, 1 + 16 * round, 16, PLAIN);
        all_good(&mut queue, 16);
        start.elapsed()
    });
    let best = best.min().unwrap();
    println!("16 appends: {best:?}");
    assert!(best < 3 * latency, "{best:?}");
    assert_same_bytes(&data(0, 81 * BLOCK), &read_all(&file));
}

/// The device completes them in any order. At each moment the size covers the appends that are complete from the first
/// one on, and reads find their data.
#[test]
fn the_size_moves_in_the_order_of_the_file() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let durable = WriteFlags::DSYNC;
    let unlogged: &[&str] = &["-O", "^has_journal"];
    for (seed, flags, kept, args) in [
        (0, PLAIN, false, &[][..]),
        (1, PLAIN, true, &[]),
        (2, durable, false, &[]),
        (3, PLAIN, false, unlogged),
        (4, durable, true, unlogged),
    ] {
        let bed = Bed::with(args);
        let (mut queue, slot) = bed.queue();
        if kept {
            // Over blocks that are there already, unwritten.
            bed.file.fallocate(Fallocate::KeepSize, 0, 10 * BLOCK).unwrap();
        }
        let mut rng = Rng::new(seed);
        send_blocks(&mut queue, slot, 0, 16, flags);
        let _held = bed.late.held();
        assert!(bed.late.waiting() >= 16);
        let mut waiting: Vec<u64> = (0..16).collect();
        let mut seen = Vec::new();
        while !waiting.is_empty() {
            // The first seed: the last one first.
            let number = if seed == 0 { waiting.len() - 1 } else { rng.below(waiting.len() as u64) as usize };
            bed.late.land_one(number);
            waiting.remove(number);
            seen.extend(queue.wait(0).unwrap().map(|done| (done.tag, done.result.is_ok())));
            let prefix = waiting.first().map_or(16, |&first| first.min(16));
            assert_eq!(bed.file.size(), prefix * BLOCK, "{waiting:?}");
            let ended: Vec<_> = (0..prefix).map(|block| (block * BLOCK, true)).collect();
            assert_eq!(seen, ended, "in order, and none before its turn");
            assert_same_bytes(&data(0, prefix * BLOCK), &read_all(&bed.file));
            // A queued read at the end finds no more either.
            let buffer = queue.buffer(BLOCK as usize).unwrap();
            queue.read(slot, prefix * BLOCK, buffer, 77).unwrap();
            assert!(queue.wait(1).unwrap().all(|done| done.tag == 77 && done.result.unwrap() == 0));
        }
        drop(queue);
        bed.end(&data(0, 16 * BLOCK));
    }
}

/// Each is a request of its own: one that fails leaves a hole, or nothing if it is the last.
#[test]
fn an_append_that_fails_leaves_zeros() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (failing, kept, backwards) in [
        (0, false, false),
        (3, false, false),
        (3, true, false),
        (3, false, true),
        (7, false, false),
        (7, true, true),
    ] {
        let bed = Bed::new();
        if kept {
            bed.file.fallocate(Fallocate::KeepSize, 0, 8 * BLOCK).unwrap();
        }
        let free = bed.volume.statfs().unwrap().free;
        let (mut queue, slot) = bed.queue();
        send_blocks(&mut queue, slot, 0, 8, PLAIN);
        let held = bed.late.held();
        assert_eq!(bed.late.waiting(), 8);
        let nth = if backwards { 8 - failing } else { failing + 1 };
        bed.faults.arm(Fault::nth(FaultOn::Op(Op::Write), nth));
        (0..8).for_each(|left| bed.late.land_one(if backwards { 7 - left } else { 0 }));
        drop(held);
        for done in all(&mut queue, 8) {
            let errno = done.result.as_ref().err().map(|error| error.errno());
            assert_eq!(errno, (done.tag == failing * BLOCK).then_some(libc::EIO), "{}", done.tag / BLOCK);
        }
        let mut bytes = data(0, 8 * BLOCK).to_vec();
        let (from, to) = ((failing * BLOCK) as usize, ((failing + 1) * BLOCK) as usize);
        match failing {
            7 => bytes.truncate(from),
            _ => bytes[from..to].fill(0),
        }
        assert_same_bytes(&bytes, &read_all(&bed.file));
        bed.file.sync_all().unwrap();
        let used = if kept { 0 } else { 7 };
        assert_eq!(free - bed.volume.statfs().unwrap().free, used, "the claim was released");
        // It is written again, wherever that is.
        send_blocks(&mut queue, slot, failing, 1, PLAIN);
        all_good(&mut queue, 1);
        drop(queue);
        bed.end(&data(0, 8 * BLOCK));
    }
}

/// A device that is lost fails all of them, and the size stays.
#[test]
fn if_all_fail_the_file_is_as_before() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let bed = Bed::new();
    let (mut queue, slot) = bed.queue();
    send_blocks(&mut queue, slot, 0, 2, PLAIN);
    all_good(&mut queue, 2);
    let fault = Fault {
        times: u64::MAX,
        action: FaultAction::Errno(libc::EIO),
        ..Fault::nth(FaultOn::Op(Op::Write), 1)
    };
    bed.faults.arm(fault);
    send_blocks(&mut queue, slot, 2, 8, PLAIN);
    assert!(all(&mut queue, 8).into_iter().all(|done| done.result.is_err()));
    bed.faults.clear();
    assert_eq!(bed.file.size(), 2 * BLOCK);
    // They begin at the end of the file again.
    send_blocks(&mut queue, slot, 2, 4, PLAIN);
    all_good(&mut queue, 4);
    drop(queue);
    bed.end(&data(0, 6 * BLOCK));
}

/// What is done to the file while four appends behind its first four blocks are in flight, and the bytes it has then.
type Change = fn(&Bed, &mut Vec<u8>) -> Result<()>;

const CHANGES: [(&str, Change); 13] = [
    ("shrink", |bed, bytes| {
        bytes.truncate(100);
        bed.file.set_len(100)
    }),
    ("cut in the appends", |bed, bytes| {
        bytes.truncate(5 * BLOCK as usize);
        bed.file.set_len(5 * BLOCK)
    }),
    ("grow", |bed, bytes| {
        bytes.resize(50_000, 0);
        bed.file.set_len(50_000)
    }),
    ("write behind", |bed, bytes| {
        put(bytes, 60_928, 512);
        bed.file.write_at(&patterned(9, 60_928, 512), 60_928).map(drop)
    }),
    ("write into the appends", |bed, bytes| {
        put(bytes, 21_000, 100);
        bed.file.write_any_at(&patterned(9, 21_000, 100), 21_000, PLAIN).map(drop)
    }),
    ("append", |bed, bytes| {
        let file = bed.volume.open_file("/new", OpenOptions::new().append(true)).unwrap();
        put(bytes, 8 * BLOCK, 777);
        assert_eq!(file.append(&patterned(9, 8 * BLOCK, 777), PLAIN)?, 8 * BLOCK);
        Ok(())
    }),
    ("append directly", |bed, bytes| {
        let file = bed.volume.open_file("/new", OpenOptions::new().append(true).direct(true)).unwrap();
        put(bytes, 8 * BLOCK, 777);
        assert_eq!(file.append(&patterned(9, 8 * BLOCK, 777), PLAIN)?, 8 * BLOCK);
        Ok(())
    }),
    ("noted write", |bed, bytes| {
        put(bytes, 8 * BLOCK, 777);
        let data = patterned(9, 8 * BLOCK, 777);
        bed.volume.write_noted_together(&[(&bed.file, &data, 8 * BLOCK)]).pop().unwrap()
    }),
    ("buffered write", |bed, bytes| {
        let file = bed.volume.open_file("/new", common::buffered()).unwrap();
        put(bytes, 20_000, 30_000);
        file.write_any_at(&patterned(9, 20_000, 30_000), 20_000, PLAIN).map(drop)
    }),
    ("punch", |bed, bytes| {
        bytes[10_000..30_000].fill(0);
        bed.file.fallocate(Fallocate::Punch, 10_000, 20_000)
    }),
    ("collapse", |bed, bytes| {
        drop(bytes.drain(BLOCK as usize..6 * BLOCK as usize));
        bed.file.fallocate(Fallocate::Collapse, BLOCK, 5 * BLOCK)
    }),
    ("keep size", |bed, _| bed.file.fallocate(Fallocate::KeepSize, 2 * BLOCK, 20 * BLOCK)),
    ("atomic", |bed, bytes| {
        put(bytes, 4 * BLOCK, 8192);
        bed.file.write_at_with(&patterned(9, 4 * BLOCK, 8192), 4 * BLOCK, WriteFlags::ATOMIC).map(drop)
    }),
];

fn put(bytes: &mut Vec<u8>, pos: u64, length: usize) {
    let end = pos as usize + length;
    bytes.resize(bytes.len().max(end), 0);
    bytes[pos as usize..end].copy_from_slice(&patterned(9, pos, length));
}

#[test]
fn what_depends_on_the_size_comes_after_the_appends() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (name, change) in CHANGES {
        for in_between in [false, true] {
            println!("{name} {in_between}");
            let bed = Bed::new();
            let (mut queue, slot) = bed.queue();
            send_blocks(&mut queue, slot, 0, 4, PLAIN);
            all_good(&mut queue, 4);
            send_blocks(&mut queue, slot, 4, 4, PLAIN);
            if in_between {
                // Those behind the first have landed; their turn has not come.
                let held = bed.late.held();
                (0..3).for_each(|_| bed.late.land_one(1));
                assert_eq!(queue.wait(0).unwrap().count(), 0);
                drop(held);
            }
            let mut bytes = data(0, 8 * BLOCK).to_vec();
            change(&bed, &mut bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
            all_good(&mut queue, 4);
            assert_same_bytes(&bytes, &read_all(&bed.file));
            let end = bed.file.size().next_multiple_of(BLOCK);
            if bed.file.size() == end && bed.file.size() > 0 {
                send(&mut queue, slot, end, BLOCK, PLAIN);
                bytes.extend_from_slice(&data(end, BLOCK));
                all_good(&mut queue, 1);
            }
            drop(queue);
            bed.end(&bytes);
        }
    }
}

/// Requests of the queue itself, behind the appends and among them.
#[test]
fn other_requests_of_the_queue_mix_with_appends() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let bed = Bed::new();
    let (mut queue, slot) = bed.queue();
    send_blocks(&mut queue, slot, 0, 4, PLAIN);
    let mut bytes = data(0, 4 * BLOCK).to_vec();
    let write = |queue: &mut IoQueue, bytes: &mut Vec<u8>, pos: u64, length: usize| {
        let mut buffer = queue.buffer(length).unwrap();
        buffer.copy_from_slice(&patterned(9, pos, length));
        put(bytes, pos, length);
        queue.write(slot, pos, buffer, PLAIN, pos).unwrap();
    };
    // Into an append in flight; a part of a block at the end; behind that; behind a gap.
    write(&mut queue, &mut bytes, 3 * BLOCK, 4096);
    write(&mut queue, &mut bytes, 4 * BLOCK, 512);
    write(&mut queue, &mut bytes, 4 * BLOCK + 512, 4096 - 512);
    write(&mut queue, &mut bytes, 5 * BLOCK, 4096);
    write(&mut queue, &mut bytes, 9 * BLOCK, 4096);
    write(&mut queue, &mut bytes, 10 * BLOCK, 8192);
    write(&mut queue, &mut bytes, 0, 4096);
    queue.sync_data(slot, 1).unwrap();
    all_good(&mut queue, 12);
    assert_same_bytes(&bytes, &read_all(&bed.file));
    // Several buffers, and the same file attached again.
    let other = queue.attach(&bed.file).unwrap();
    for (number, slot) in [slot, other, other, slot, slot].into_iter().enumerate() {
        let pos = (12 + 2 * number as u64) * BLOCK;
        let buffers = [pos, pos + BLOCK].map(|pos| {
            let mut buffer = queue.buffer(4096).unwrap();
            buffer.copy_from_slice(&data(pos, BLOCK));
            buffer
        });
        queue.writev(slot, pos, buffers.into(), PLAIN, pos).unwrap();
        bytes.extend_from_slice(&data(pos, 2 * BLOCK));
    }
    queue.detach(other).unwrap();
    all_good(&mut queue, 5);
    drop(queue);
    bed.end(&bytes);
}

/// A file may be detached, and its queue may go, while appends are in flight.
#[test]
fn a_queue_that_goes_ends_its_appends() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for detached in [false, true] {
        let bed = Bed::new();
        let (mut queue, slot) = bed.queue();
        send_blocks(&mut queue, slot, 0, 8, PLAIN);
        if detached {
            queue.detach(slot).unwrap();
        }
        drop(queue);
        assert_eq!(bed.file.size(), 8 * BLOCK);
        let (mut queue, slot) = bed.queue();
        send_blocks(&mut queue, slot, 8, 4, PLAIN);
        all_good(&mut queue, 4);
        drop(queue);
        bed.end(&data(0, 12 * BLOCK));
    }
}

/// Whatever becomes of an append, what was reserved for it is returned.
#[test]
fn failed_appends_leave_nothing_reserved() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let fault = || Fault {
        times: u64::MAX,
        action: FaultAction::Errno(libc::EIO),
        ..Fault::nth(FaultOn::Op(Op::Write), 1)
    };
    let reserved = |bed: &Bed| {
        let ReservedSpace { writes, maps, .. } = bed.volume.reserved_space();
        (writes, maps > 0)
    };
    let bed = Bed::new();
    let (mut queue, slot) = bed.queue();
    for dropped in [false, true] {
        send_blocks(&mut queue, slot, 0, 8, PLAIN);
        let held = bed.late.held();
        assert_eq!(reserved(&bed), (8, true), "in flight");
        bed.faults.arm(fault());
        bed.late.land();
        drop(held);
        if dropped {
            drop(std::mem::replace(&mut queue, bed.queue().0));
        } else {
            assert!(all(&mut queue, 8).into_iter().all(|done| done.result.is_err()));
        }
        bed.faults.clear();
        assert_eq!((bed.file.size(), reserved(&bed)), (0, (0, false)), "dropped: {dropped}");
    }
    drop(queue);
    // In the calling thread: past the end, and into a hole.
    for pos in [0, 40 * BLOCK] {
        bed.file.set_len(20 * BLOCK).unwrap();
        bed.faults.arm(fault());
        assert!(bed.file.write_any_at(&data(0, 4 * BLOCK), pos, PLAIN).is_err());
        bed.faults.clear();
        assert_eq!(reserved(&bed), (0, false), "{pos}");
    }
    bed.file.set_len(0).unwrap();
    // Until the volume is full.
    let mut size = 0;
    while bed.file.write_any_at(&data(size, 64 * BLOCK), size, PLAIN).is_ok() {
        size += 64 * BLOCK;
        assert_eq!(reserved(&bed), (0, false), "{size}");
    }
    let (mut queue, slot) = bed.queue();
    for _ in 0..4 {
        let mut buffer = queue.buffer((64 * BLOCK) as usize).unwrap();
        buffer.copy_from_slice(&data(size, 64 * BLOCK));
        queue.write(slot, size, buffer, PLAIN, 0).unwrap();
        assert!(all(&mut queue, 1)[0].result.is_err());
        assert_eq!(reserved(&bed), (0, false), "a full volume");
    }
    drop(queue);
    bed.end(&data(0, size));
}

/// Two queues append in turns: each waits for the other.
#[test]
fn two_queues_append_to_one_file() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let bed = Bed::new();
    let (mut one, mut other) = (bed.queue(), bed.queue());
    let mut rng = Rng::new(5);
    let (mut sent, mut at) = ([0, 0], 0);
    for _ in 0..40 {
        let which = rng.below(2) as usize;
        let (queue, slot) = if which == 0 { &mut one } else { &mut other };
        let count = 1 + rng.below(3);
        send_blocks(queue, *slot, at, count, PLAIN);
        at += count;
        sent[which] += count as usize;
        if rng.below(4) == 0 {
            all_good(queue, std::mem::take(&mut sent[which]));
        }
    }
    all_good(&mut one.0, sent[0]);
    all_good(&mut other.0, sent[1]);
    drop((one, other));
    let bytes = data(0, at * BLOCK);
    bed.end(&bytes);
}

/// A second queue writes where the appends of the first are in flight: that comes behind them.
#[test]
fn a_second_queue_writes_over_appends_in_flight() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let bed = Bed::new();
    let ((mut one, slot), (mut other, over)) = (bed.queue(), bed.queue());
    send_blocks(&mut one, slot, 0, 4, PLAIN);
    let mut buffer = other.buffer(8192).unwrap();
    buffer.copy_from_slice(&patterned(9, 0, 8192));
    other.write(over, 0, buffer, PLAIN, 0).unwrap();
    all_good(&mut other, 1);
    all_good(&mut one, 4);
    drop((one, other));
    let mut bytes = data(0, 4 * BLOCK).to_vec();
    put(&mut bytes, 0, 8192);
    bed.end(&bytes);
}

/// Two threads with a queue each take the next places by turns, and wait for nobody.
#[test]
fn two_threads_append_to_one_file() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let bed = Bed::new();
    let next = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for flags in [PLAIN, WriteFlags::DSYNC] {
            let (bed, next) = (&bed, &next);
            scope.spawn(move || {
                let (mut queue, slot) = bed.queue();
                let mut pending = 0;
                for _ in 0..150 {
                    let block = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    send(&mut queue, slot, block * BLOCK, BLOCK, flags);
                    pending += 1;
                    if pending == 8 {
                        pending -=
                            queue.wait(1).unwrap().inspect(|done| assert!(done.result.is_ok())).count();
                    }
                }
                all_good(&mut queue, pending);
            });
        }
    });
    bed.end(&data(0, 300 * BLOCK));
}

/// Where blocks cannot be claimed, appends are carried out one by one.
#[test]
fn volumes_without_claims_append_as_before() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let bed = Bed::with(&["-O", "bigalloc", "-C", "16384"]);
    let (mut queue, slot) = bed.queue();
    send_blocks(&mut queue, slot, 0, 16, PLAIN);
    assert_eq!((bed.late.waiting(), bed.file.size()), (0, 16 * BLOCK));
    all_good(&mut queue, 16);
    drop(queue);
    bed.end(&data(0, 16 * BLOCK));
}

/// A volume with room for some of them: those fail that find none, whole.
#[test]
fn appends_fill_a_volume() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let bed = Bed::new();
    let (mut queue, slot) = bed.queue();
    let length = 256 * BLOCK;
    let (mut full, mut at, mut complete) = (0, 0, 0);
    while full < 3 {
        if queue.pending() == 8 {
            complete += queue.wait(1).unwrap().inspect(|done| assert!(done.result.is_ok())).count() as u64;
        }
        let mut buffer = queue.buffer(length as usize).unwrap();
        buffer.copy_from_slice(&data(at, length));
        match queue.write(slot, at, buffer, PLAIN, at) {
            Ok(()) => at += length,
            Err(_no_slot) => full += 1,
        }
        let pending = queue.pending();
        let done: Vec<_> = queue.wait(pending.min(1)).unwrap().collect();
        for done in done {
            match done.result {
                Ok(_) => complete += 1,
                Err(error) => {
                    assert_eq!(error.errno(), libc::ENOSPC, "{error}");
                    full += 1;
                    at = at.min(done.tag);
                }
            }
        }
    }
    complete += all(&mut queue, 0).len() as u64;
    assert!(complete > 8);
    drop(queue);
    let size = bed.file.size();
    bed.end(&data(0, size));
}
