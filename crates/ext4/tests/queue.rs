//! The queue: every call, every shape of request, and no endless waits.

use crate::common;

use common::sample::{DATA, DATA_SIZE, FRAG_SIZE, SPARSE_PAIRS, TAIL_SIZE, expected, sample, sample_with};
use common::{aligned, assert_same_bytes, open_rw, patterned, read_only, read_write, within};
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use uext4::device::LatencyDevice;
use uext4::device::{Ask, Device, WriteDurability};
use uext4::{
    Buffer, Completion, Counter, Error, Fallocate, FileSlot, IoQueue, Payload, QueueOptions, State, Switches,
    Volume, VolumeOptions, WriteFlags,
};
use uext4_testkit::Scratch;

const LIMIT: Duration = Duration::from_secs(20);

fn queue_on(volume: &Volume, name: &str, depth: u32) -> (IoQueue, FileSlot) {
    let mut queue = volume.queue(QueueOptions::depth(depth)).unwrap();
    let slot = queue.attach(&volume.open_file(name, read_write()).unwrap()).unwrap();
    (queue, slot)
}

/// Waits for one completion.
fn one(queue: &mut IoQueue) -> Completion {
    let mut done: Vec<Completion> = queue.wait(1).unwrap().collect();
    assert_eq!(done.len(), 1);
    done.pop().unwrap()
}

fn filled(queue: &IoQueue, length: usize, byte: u8) -> Buffer {
    let mut buffer = queue.buffer(length).unwrap();
    buffer.fill(byte);
    buffer
}

fn bytes_of(payload: Payload) -> Vec<u8> {
    match payload {
        Payload::None => Vec::new(),
        Payload::One(buffer) => buffer.to_vec(),
        Payload::Many(buffers) => buffers.iter().flat_map(|buffer| buffer.to_vec()).collect(),
    }
}

/// The image on a slow device.
fn slow(latency: Duration) -> Arc<dyn Device> {
    Arc::new(LatencyDevice::new(sample().device(), Some(latency), None))
}

/// Fills the rest of `/tail`'s last block past the end, as a kernel mapping of it may leave it.
fn spoil_behind_the_end(device: &dyn Device, volume: &Volume) {
    let file = volume.open_file("/tail", read_only()).unwrap();
    let last = file.map().map(Result::unwrap).last().unwrap();
    let sector = TAIL_SIZE / 512 * 512;
    let mut rest = aligned((last.end() - sector) as usize);
    let kept = file.read_at(&mut rest[..512], sector).unwrap();
    rest[kept..].fill(0xdd);
    device.write_at(&rest, last.physical + sector - last.logical, WriteDurability::Cached).unwrap();
}

#[test]
fn reads_end_at_the_end_of_the_file_and_zero_what_is_behind() {
    let device = sample().device();
    let volume = open_rw(device.clone());
    let (mut queue, slot) = queue_on(&volume, "/tail", 4);
    let contents = expected("/tail");
    spoil_behind_the_end(&*device, &volume);
    for (pos, length) in [
        (0, 16_384),
        (8192, 4096),
        (8192, 512),
        (9728, 512),
        (9216, 8192),
        (TAIL_SIZE / 512 * 512, 512),
        (10_240, 512),
        (1 << 40, 4096),
    ] {
        let buffer = filled(&queue, length, 0xee);
        queue.read(slot, pos, buffer, pos).unwrap();
        let done = one(&mut queue);
        let wanted = TAIL_SIZE.saturating_sub(pos).min(length as u64) as usize;
        assert_eq!((done.tag, done.result.as_ref().copied().unwrap()), (pos, wanted), "{length} at {pos}");
        let bytes = bytes_of(done.payload);
        assert_eq!(bytes.len(), length, "the whole buffer comes back");
        if wanted > 0 {
            assert_same_bytes(&contents[pos as usize..pos as usize + wanted], &bytes[..wanted]);
            let block_end = wanted.next_multiple_of(512);
            assert!(bytes[wanted..block_end].iter().all(|&byte| byte == 0), "the rest of the last sector");
        }
    }
    let mut direct = aligned(12_288);
    assert_eq!(
        volume.open_file("/tail", read_only()).unwrap().read_at(&mut direct, 0).unwrap(),
        contents.len()
    );
    assert_same_bytes(&contents, &direct[..contents.len()]);
    assert!(direct[contents.len()..10_240].iter().all(|&byte| byte == 0));
}

#[test]
fn holes_and_unwritten_blocks_read_as_zeros() {
    for (block, args) in [(4096, &[][..]), (1024, &["-O", "^metadata_csum"])] {
        let volume = open_rw(sample_with(block, args).device());
        for name in ["/mixed", "/sparse"] {
            let contents = expected(name);
            let (mut queue, slot) = queue_on(&volume, name, 2);
            for (pos, length) in [(0, contents.len()), (12_288, 8192), (20_480, 4096), (512, 40_960)] {
                queue.read(slot, pos, filled(&queue, length, 0xee), 1).unwrap();
                let done = one(&mut queue);
                assert_eq!(done.result.as_ref().copied().unwrap(), length);
                assert_same_bytes(&contents[pos as usize..pos as usize + length], &bytes_of(done.payload));
            }
        }
    }
}

#[test]
fn requests_with_more_pieces_than_a_plan_holds_are_split() {
    let volume = open_rw(sample().device());
    assert!(volume.open_file("/frag", read_only()).unwrap().map().count() > 40, "the fixture is fragmented");
    const { assert!(2 * SPARSE_PAIRS > 64) };
    // Depth 4: parts wait for one another.
    let (mut queue, slot) = queue_on(&volume, "/frag", 4);
    queue.read(slot, 0, filled(&queue, FRAG_SIZE as usize, 0xee), 1).unwrap();
    assert_same_bytes(&expected("/frag"), &bytes_of(one(&mut queue).payload));
    for flags in [WriteFlags::empty(), WriteFlags::DSYNC, WriteFlags::SYNC] {
        let mut buffer = queue.buffer(FRAG_SIZE as usize).unwrap();
        let bytes = patterned(u64::from(flags.bits()) + 70, 0, FRAG_SIZE as usize);
        buffer.copy_from_slice(&bytes);
        queue.write(slot, 0, buffer, flags, 2).unwrap();
        assert_eq!(one(&mut queue).result.unwrap() as u64, FRAG_SIZE);
        let file = volume.open_file("/frag", read_only()).unwrap();
        assert_same_bytes(&bytes, &common::read_all(&file));
        let mut direct = aligned(FRAG_SIZE as usize);
        file.read_at(&mut direct, 0).unwrap();
        assert_same_bytes(&bytes, &direct);
    }
    assert_eq!(queue.pending(), 0);
}

#[test]
fn vectors_cross_buffers_and_pieces() {
    let volume = open_rw(sample().device());
    let (mut queue, slot) = queue_on(&volume, "/frag", 8);
    let lengths = [512, 4096, 1024, 12_288, 512, 65_536, 3072];
    let total: usize = lengths.iter().sum();
    let written = patterned(90, 1536, total);
    let mut buffers = Vec::new();
    let mut at = 0;
    for length in lengths {
        let mut buffer = queue.buffer(length).unwrap();
        buffer.copy_from_slice(&written[at..at + length]);
        buffers.push(buffer);
        at += length;
    }
    queue.writev(slot, 1536, buffers, WriteFlags::empty(), 3).unwrap();
    let done = one(&mut queue);
    assert_eq!((done.tag, done.result.unwrap()), (3, total));
    assert_same_bytes(&written, &bytes_of(done.payload));

    let buffers = lengths.iter().rev().map(|&length| filled(&queue, length, 0xee)).collect();
    queue.readv(slot, 1536, buffers, 4).unwrap();
    let done = one(&mut queue);
    assert_eq!(done.result.as_ref().copied().unwrap(), total);
    assert_same_bytes(&written, &bytes_of(done.payload));

    // A vector over the end of the file is short and zeroed.
    let (mut queue, slot) = queue_on(&volume, "/tail", 8);
    let buffers = [4096, 4096, 4096].map(|length| filled(&queue, length, 0xee)).into();
    queue.readv(slot, 4096, buffers, 5).unwrap();
    let done = one(&mut queue);
    assert_eq!(done.result.as_ref().copied().unwrap() as u64, TAIL_SIZE - 4096);
    let bytes = bytes_of(done.payload);
    let visible = (TAIL_SIZE - 4096) as usize;
    assert_same_bytes(&expected("/tail")[4096..], &bytes[..visible]);
    assert!(bytes[visible..6144].iter().all(|&byte| byte == 0));

    // An empty request.
    queue.readv(slot, 0, Vec::new(), 6).unwrap();
    queue.writev(slot, 0, Vec::new(), WriteFlags::DSYNC, 7).unwrap();
    let results: Vec<_> = queue.wait(2).unwrap().map(|done| (done.tag, done.result.unwrap())).collect();
    assert_eq!(results, [(6, 0), (7, 0)]);
    let odd = vec![filled(&queue, 100, 0)];
    assert!(matches!(queue.readv(slot, 0, odd, 8), Err(Error::Misaligned { .. })));
}

#[test]
fn a_full_queue_says_so_and_goes_on_after_reaping() {
    let volume = open_rw(slow(Duration::from_millis(5)));
    let (mut queue, slot) = queue_on(&volume, "/data", 3);
    for round in 0..3 {
        for tag in 0..3 {
            queue.read(slot, tag * 4096, queue.buffer(4096).unwrap(), tag).unwrap();
        }
        let refused = [
            queue.read(slot, 0, queue.buffer(4096).unwrap(), 9),
            queue.write(slot, 0, queue.buffer(4096).unwrap(), WriteFlags::empty(), 9),
            queue.readv(slot, 0, vec![queue.buffer(4096).unwrap()], 9),
            queue.writev(slot, 0, vec![queue.buffer(4096).unwrap()], WriteFlags::empty(), 9),
            queue.sync_data(slot, 9),
        ];
        for result in refused {
            assert!(matches!(result, Err(Error::WouldBlock("the queue is full"))), "{result:?}");
        }
        assert_eq!(queue.pending(), 3);
        let mut tags = Vec::new();
        while tags.len() < 3 {
            tags.extend(queue.wait(1).unwrap().map(|done| done.tag));
        }
        tags.sort_unstable();
        assert_eq!(tags, [0, 1, 2], "round {round}");
        assert_eq!(queue.wait(5).unwrap().count(), 0, "nothing is in flight");
    }
}

#[test]
fn slots_belong_to_their_queue_until_detached() {
    let volume = open_rw(slow(Duration::from_millis(20)));
    let (mut queue, slot) = queue_on(&volume, "/data", 8);
    let (mut other, _) = queue_on(&volume, "/data", 8);
    let foreign = {
        other.attach(&volume.open_file("/tail", read_write()).unwrap()).unwrap();
        other.attach(&volume.open_file("/frag", read_write()).unwrap()).unwrap()
    };
    let bad = |result: Result<(), Error>| {
        let error = result.unwrap_err();
        assert!(error.to_string().contains("slot"), "{error}");
    };
    bad(queue.read(foreign, 0, queue.buffer(4096).unwrap(), 1));
    bad(queue.sync_all(foreign, 1));
    bad(queue.detach(foreign));

    // Detached with requests pending: they finish, new ones are refused, and the place is not reused before that.
    queue.write(slot, 0, filled(&queue, 4096, 1), WriteFlags::empty(), 1).unwrap();
    queue.read(slot, 8192, queue.buffer(4096).unwrap(), 2).unwrap();
    queue.sync_data(slot, 3).unwrap();
    queue.detach(slot).unwrap();
    bad(queue.detach(slot));
    let again = queue.attach(&volume.open_file("/tail", read_write()).unwrap()).unwrap();
    assert_ne!(slot, again);
    for flags in [WriteFlags::empty(), WriteFlags::DSYNC] {
        bad(queue.read(slot, 0, queue.buffer(4096).unwrap(), 4));
        bad(queue.write(slot, 0, queue.buffer(4096).unwrap(), flags, 4));
        bad(queue.readv(slot, 0, vec![queue.buffer(4096).unwrap()], 4));
        bad(queue.writev(slot, 0, vec![queue.buffer(4096).unwrap()], flags, 4));
    }
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.extend(queue.wait(1).unwrap().map(|done| (done.tag, done.result.is_ok())));
    }
    seen.sort_unstable();
    assert_eq!(seen, [(1, true), (2, true), (3, true)]);
    // Its cell has left the gate: a drain finds nothing.
    let file = volume.open_file("/data", read_write()).unwrap();
    within(LIMIT, move || file.write_any_at(&[1], 1, WriteFlags::empty()).unwrap());
    // A released place is reused, and the old slot still refers to no file.
    let next = queue.attach(&volume.open_file("/data", read_write()).unwrap()).unwrap();
    bad(queue.read(slot, 0, queue.buffer(4096).unwrap(), 4));
    queue.read(next, 8192, queue.buffer(4096).unwrap(), 5).unwrap();
    assert_same_bytes(&expected("/data")[8192..12_288], &bytes_of(one(&mut queue).payload));
}

#[test]
fn dropping_a_queue_waits_for_its_requests() {
    within(LIMIT, || {
        let volume = open_rw(slow(Duration::from_millis(60)));
        let started = Instant::now();
        let (mut queue, slot) = queue_on(&volume, "/data", 16);
        for n in 0..8 {
            queue.write(slot, n * 4096, filled(&queue, 4096, 9), WriteFlags::empty(), n).unwrap();
        }
        queue.sync_all(slot, 8).unwrap();
        queue.submit().unwrap();
        drop(queue);
        assert!(started.elapsed() >= Duration::from_millis(60));
        // Nothing is left in flight: a drain goes through at once.
        let file = volume.open_file("/data", read_write()).unwrap();
        file.write_any_at(&[1], 100_000, WriteFlags::empty()).unwrap();
        let mut bytes = vec![0; 32_768];
        file.read_any_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 9), "what was submitted was written");
    });
}

#[test]
fn a_drainer_harvests_the_idle_queue_of_another_thread() {
    within(LIMIT, || {
        let volume = open_rw(slow(Duration::from_millis(20)));
        let (told, heard) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let other = volume.clone();
        let idle = std::thread::spawn(move || {
            let (mut queue, slot) = queue_on(&other, "/data", 16);
            for n in 0..10 {
                queue.write(slot, n * 4096, filled(&queue, 4096, 3), WriteFlags::DSYNC, n).unwrap();
            }
            queue.submit().unwrap();
            told.send(()).unwrap();
            // Reaps nothing until the drainer is done.
            released.recv().unwrap();
            assert_eq!(queue.pending(), 10);
            let mut tags: Vec<u64> = Vec::new();
            while tags.len() < 10 {
                tags.extend(queue.wait(1).unwrap().map(|done| {
                    assert_eq!(done.result.unwrap(), 4096);
                    done.tag
                }));
            }
            tags.sort_unstable();
            assert_eq!(tags, (0..10).collect::<Vec<_>>());
        });
        heard.recv().unwrap();
        let file = volume.open_file("/data", read_write()).unwrap();
        file.write_any_at(&[7; 3], 1, WriteFlags::empty()).unwrap();
        let mut bytes = [0; 5];
        file.read_any_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [3, 7, 7, 7, 3], "the drained requests came first");
        release.send(()).unwrap();
        idle.join().unwrap();
        assert_eq!(volume.stats().get(Counter::DrainStalls), 0);
    });
}

/// The drain waits for requests of the waiting thread itself.
fn bounce_beside_own_requests(volume: &Volume, options: QueueOptions) {
    let file = volume.open_file("/data", read_write()).unwrap();
    let mut queue = volume.queue(options).unwrap();
    let slot = queue.attach(&file).unwrap();
    for n in 0..10 {
        queue.write(slot, n * 4096, filled(&queue, 4096, 3), WriteFlags::empty(), n).unwrap();
    }
    file.write_any_at(&[7; 3], 1, WriteFlags::empty()).unwrap();
    let mut seen = 0;
    while seen < 10 {
        for done in queue.wait(1).unwrap() {
            assert_eq!(done.result.unwrap(), 4096);
            seen += 1;
        }
    }
    let mut bytes = [0; 5];
    file.read_any_at(&mut bytes, 0).unwrap();
    assert_eq!(bytes, [3, 7, 7, 7, 3]);
}

#[test]
fn a_thread_drains_its_own_queues() {
    within(LIMIT, || {
        let volume = open_rw(slow(Duration::from_millis(20)));
        bounce_beside_own_requests(&volume, QueueOptions::depth(16));
    });
    within(LIMIT, || {
        let scratch = Scratch::new(48 << 20);
        let path = scratch.file("volume.img");
        sample().save(&path);
        let volume = Volume::open(path.to_str().unwrap(), VolumeOptions::read_write()).unwrap();
        bounce_beside_own_requests(&volume, QueueOptions::depth(16));
        bounce_beside_own_requests(&volume, QueueOptions::depth(16).owner_driven(true));
    });
}

#[test]
fn exclusive_subblock_writes_drain_many_in_flight() {
    within(LIMIT, || {
        let mut switches = Switches::ON;
        switches.set("shared-subblock-overwrite", false).unwrap();
        let options = VolumeOptions::read_write().switches(switches);
        let volume = Volume::open_device(slow(Duration::from_millis(3)), options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let volume = &volume;
                scope.spawn(move || {
                    let (mut queue, slot) = queue_on(volume, "/data", 16);
                    let base = thread * 65_536;
                    for n in 0..8 {
                        let buffer = filled(&queue, 4096, thread as u8);
                        queue.write(slot, base + n * 4096, buffer, WriteFlags::empty(), n).unwrap();
                    }
                    for n in 8..12 {
                        let buffer = filled(&queue, 512, thread as u8 + 100);
                        queue.write(slot, base + n * 512, buffer, WriteFlags::DSYNC, n).unwrap();
                    }
                    let mut seen = 0;
                    while seen < 12 {
                        for done in queue.wait(1).unwrap() {
                            done.result.unwrap();
                            seen += 1;
                        }
                    }
                });
            }
        });
        assert_eq!(volume.stats().get(Counter::ExclusiveWrites), 16);
        assert_eq!(volume.stats().get(Counter::SharedSubblockWrites), 0);
        let bytes = common::read_all(&volume.open_file("/data", read_only()).unwrap());
        for thread in 0..4 {
            let part = &bytes[thread * 65_536..thread * 65_536 + 32_768];
            for (sector, bytes) in part.chunks(512).enumerate() {
                let byte = thread as u8 + if (8..12).contains(&sector) { 100 } else { 0 };
                assert!(bytes.iter().all(|&found| found == byte), "thread {thread} sector {sector}");
            }
        }
    });
}

#[test]
fn nowait_refuses_while_the_gate_is_held() {
    within(LIMIT, || {
        let volume = open_rw(slow(Duration::from_millis(250)));
        let file = volume.open_file("/data", read_write()).unwrap();
        let (mut queue, slot) = queue_on(&volume, "/data", 4);
        // Both maps are loaded before the clock runs, and the write was decided once.
        file.read_at(&mut aligned(512), 0).unwrap();
        queue.write(slot, 0, queue.buffer(512).unwrap(), WriteFlags::NOWAIT, 1).unwrap();
        assert_eq!(one(&mut queue).result.unwrap(), 512);
        let other = file.clone();
        // A read-modify-write: two transfers, half a second under the exclusive gate.
        let holder = std::thread::spawn(move || other.write_any_at(&[1], 1, WriteFlags::empty()).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        let refused = queue.write(slot, 0, queue.buffer(512).unwrap(), WriteFlags::NOWAIT, 1);
        assert!(
            matches!(
                refused,
                Err(Error::WouldBlock(
                    "it has to wait: for others in the file, room, or metadata that is not in memory"
                ))
            ),
            "{refused:?}"
        );
        let refused = file.write_at_with(&aligned(512), 0, WriteFlags::NOWAIT);
        assert!(
            matches!(
                refused,
                Err(Error::WouldBlock(
                    "it has to wait: for others in the file, room, or metadata that is not in memory"
                ))
            ),
            "{refused:?}"
        );
        assert!(!holder.is_finished(), "the gate was held all the time");
        holder.join().unwrap();
        queue.write(slot, 0, queue.buffer(512).unwrap(), WriteFlags::NOWAIT, 1).unwrap();
        assert_eq!(one(&mut queue).result.unwrap(), 512);
        // A request that needs the gate exclusively fails at once.
        assert!(matches!(
            file.write_any_at(&[1], 1, WriteFlags::NOWAIT),
            Err(Error::WouldBlock(
                "it has to wait: for others in the file, room, or metadata that is not in memory"
            ))
        ));
    });
}

#[test]
fn nowait_refuses_what_needs_the_gate_alone() {
    let options = VolumeOptions::read_write().switches(Switches::OFF);
    let volume = Volume::open_device(sample().device(), options).unwrap();
    let file = volume.open_file("/data", read_write()).unwrap();
    let (mut queue, slot) = queue_on(&volume, "/data", 4);
    let refused = queue.write(slot, 512, queue.buffer(512).unwrap(), WriteFlags::NOWAIT, 1);
    assert!(matches!(refused, Err(Error::WouldBlock(_))));
    assert!(matches!(file.write_at_with(&aligned(512), 512, WriteFlags::NOWAIT), Err(Error::WouldBlock(_))));
    assert_eq!(queue.pending(), 0);
    // Nothing stayed in flight.
    within(LIMIT, move || file.write_any_at(&[1], 1, WriteFlags::empty()).unwrap());
}

#[test]
fn syncs_complete_after_what_completed_before() {
    let device = sample().device_with(|options| options.volatile_cache = true);
    let volume = open_rw(device);
    let (mut queue, slot) = queue_on(&volume, "/data", 8);
    let before = volume.stats();
    queue.write(slot, 0, filled(&queue, 4096, 1), WriteFlags::empty(), 1).unwrap();
    queue.sync_data(slot, 2).unwrap();
    queue.sync_data(slot, 3).unwrap();
    let mut tags: Vec<(u64, usize)> = Vec::new();
    while tags.len() < 3 {
        tags.extend(queue.wait(1).unwrap().map(|done| (done.tag, done.result.unwrap())));
    }
    assert_eq!(tags, [(1, 4096), (2, 0), (3, 0)]);
    let counted = volume.stats().since(&before);
    assert_eq!(counted.get(Counter::Flushes), 1, "one flush for the batch");
    assert_eq!(counted.get(Counter::DioCounted), 1, "a sync is no direct request");
    // Alone, with nothing on the device: by every way of waiting.
    queue.sync_data(slot, 4).unwrap();
    assert_eq!(one(&mut queue).tag, 4);
    queue.sync_data(slot, 5).unwrap();
    let until = Instant::now() + LIMIT;
    while queue.poll().unwrap().count() == 0 {
        assert!(Instant::now() < until, "a sync never ends");
    }
    queue.sync_data(slot, 6).unwrap();
    assert_eq!(queue.wait_timeout(LIMIT).unwrap().count(), 1);
}

#[test]
fn a_queued_sync_does_not_wait_for_unrelated_requests() {
    let memory = sample().device_with(|options| options.volatile_cache = true);
    let device = Arc::new(LatencyDevice::new(memory, Some(Duration::from_millis(400)), None));
    let volume = open_rw(device);
    let (mut queue, slot) = queue_on(&volume, "/data", 8);
    queue.read(slot, 0, queue.buffer(4096).unwrap(), 1).unwrap();
    queue.submit().unwrap();
    queue.sync_data(slot, 2).unwrap();
    let started = Instant::now();
    let first: Vec<u64> = queue.wait_timeout(LIMIT).unwrap().map(|done| done.tag).collect();
    assert_eq!(first, [2]);
    assert!(started.elapsed() < Duration::from_millis(300), "{:?}", started.elapsed());
    assert_eq!(one(&mut queue).tag, 1);
}

fn eventfd_loop(volume: &Volume) {
    let (mut queue, slot) = queue_on(volume, "/data", 8);
    let event = queue.eventfd().unwrap().expect("this device has a descriptor");
    assert_eq!(queue.poll().unwrap().count(), 0);
    for n in 0..6 {
        queue.read(slot, n * 4096, queue.buffer(4096).unwrap(), n).unwrap();
    }
    queue.submit().unwrap();
    let mut tags = Vec::new();
    let deadline = Instant::now() + LIMIT;
    loop {
        tags.extend(queue.poll().unwrap().map(|done| done.tag));
        if tags.len() == 6 {
            break;
        }
        assert!(Instant::now() < deadline, "no event");
        let mut fds = [PollFd::new(&event, PollFlags::IN)];
        poll(&mut fds, Some(&Duration::from_secs(5).try_into().unwrap())).unwrap();
        assert!(fds[0].revents().contains(PollFlags::IN), "it became readable");
    }
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 3, 4, 5]);
    // The last of them may have completed during the check.
    assert_eq!(queue.poll().unwrap().count(), 0);
    let mut fds = [PollFd::new(&event, PollFlags::IN)];
    poll(&mut fds, Some(&Duration::ZERO.try_into().unwrap())).unwrap();
    assert!(fds[0].revents().is_empty(), "a loop with nothing to do spins");
}

#[test]
fn completions_wake_an_event_loop() {
    eventfd_loop(&open_rw(sample().device()));
    eventfd_loop(&open_rw(slow(Duration::from_millis(15))));
    let scratch = Scratch::new(48 << 20);
    let path = scratch.file("volume.img");
    sample().save(&path);
    let open = |device: &str| Volume::open(device, VolumeOptions::read_write()).unwrap();
    eventfd_loop(&open(path.to_str().unwrap()));
    eventfd_loop(&open(&format!("{}?latency=10ms", path.to_str().unwrap())));
}

#[test]
fn poll_and_time_outs_do_not_wait() {
    let volume = open_rw(slow(Duration::from_millis(300)));
    let (mut queue, slot) = queue_on(&volume, "/data", 4);
    queue.read(slot, 0, queue.buffer(4096).unwrap(), 1).unwrap();
    let started = Instant::now();
    assert_eq!(queue.poll().unwrap().count(), 0);
    assert_eq!(queue.wait_timeout(Duration::from_millis(20)).unwrap().count(), 0);
    assert!(started.elapsed() < Duration::from_millis(200));
    assert_eq!(queue.pending(), 1);
    assert_same_bytes(&patterned(DATA, 0, 4096), &bytes_of(one(&mut queue).payload));
    assert_eq!(queue.pending(), 0);
}

#[test]
fn small_budgets_load_maps_again_and_again() {
    // Blocks of 1 KiB: leaves of 84 extents; the file has several.
    let image = sample_with(1024, &[]);
    let options = VolumeOptions::read_write().map_budget(1).metadata_budget(64 << 10);
    let volume = Volume::open_device(image.device(), options).unwrap();
    within(LIMIT, move || {
        for name in ["/sparse", "/frag", "/data"] {
            let (mut queue, slot) = queue_on(&volume, name, 4);
            let contents = expected(name);
            queue.read(slot, 0, queue.buffer(contents.len()).unwrap(), 1).unwrap();
            assert_same_bytes(&contents, &bytes_of(one(&mut queue).payload));
            let file = volume.open_file(name, read_only()).unwrap();
            assert_same_bytes(&contents, &common::read_all(&file));
        }
        assert_eq!(DATA_SIZE, volume.metadata("/data").unwrap().size);
    });
}

/// Buffers may be used in another queue, although each queue registers its own memory.
#[test]
fn a_buffer_of_another_queue_does_no_harm() {
    let scratch = Scratch::new(48 << 20);
    let image = scratch.file("volume.img");
    sample().save(&image);
    let volume = Volume::open(image.to_str().unwrap(), VolumeOptions::read_write()).unwrap();
    let registered = || volume.queue(QueueOptions::depth(4).register_buffers(Ask::Require)).unwrap();
    let (mut queue, other) = (registered(), registered());
    let slot = queue.attach(&volume.open_file("/data", read_write()).unwrap()).unwrap();
    assert!(queue.facts().registered_buffers && other.facts().registered_buffers);
    queue.write(slot, 4096, filled(&other, 4096, 0x5a), WriteFlags::DSYNC, 1).unwrap();
    assert_eq!(one(&mut queue).result.unwrap(), 4096);
    queue.read(slot, 4096, filled(&other, 4096, 0), 2).unwrap();
    assert_eq!(bytes_of(one(&mut queue).payload), [0x5a; 4096]);
    // The volume still works.
    queue.write(slot, 0, filled(&queue, 4096, 1), WriteFlags::DSYNC, 3).unwrap();
    assert_eq!(one(&mut queue).result.unwrap(), 4096);
    drop((queue, other, volume));
    uext4_testkit::oracle::e2fsck_clean(&image);
}

/// Freed blocks have no request in flight: requests of the same queue complete first.
#[test]
fn blocks_come_and_go_through_a_queue() {
    let scratch = Scratch::new(48 << 20);
    let image = scratch.file("volume.img");
    for driven in [false, true] {
        sample().save(&image);
        let path = image.clone();
        within(LIMIT, move || {
            let volume = Volume::open(path.to_str().unwrap(), VolumeOptions::read_write()).unwrap();
            let mut queue = volume.queue(QueueOptions::depth(16).owner_driven(driven)).unwrap();
            let file = volume.open_file("/data", read_write()).unwrap();
            let slot = queue.attach(&file).unwrap();
            for block in 0..8 {
                let buffer = filled(&queue, 4096, 0x77);
                queue.write(slot, block * 4096, buffer, WriteFlags::empty(), block).unwrap();
            }
            queue.discard(slot, 4096, 16_384 + 100, 100).unwrap();
            queue.allocate(slot, DATA_SIZE, 8192, 101).unwrap();
            queue.allocate(slot, 0, 0, 102).unwrap();
            queue.fallocate(slot, Fallocate::Collapse, 1, 4096, 103).unwrap();
            queue.sync_all(slot, 104).unwrap();
            let done: Vec<Completion> = queue.wait(13).unwrap().collect();
            assert_eq!(done.len(), 13);
            for Completion { tag, result, .. } in done {
                match tag {
                    0..8 => assert_eq!(result.unwrap(), 4096),
                    102 | 103 => assert!(matches!(*result.unwrap_err(), Error::Invalid(_)), "{tag}"),
                    _ => assert_eq!(result.unwrap(), 0, "{tag}"),
                }
            }
            assert_eq!(file.size(), DATA_SIZE + 8192);
            let mut contents = [vec![0x77; 4096], vec![0; 16_484], vec![0x77; 12_188]].concat();
            contents.extend_from_slice(&expected("/data")[32_768..]);
            contents.resize(contents.len() + 8192, 0);
            assert_same_bytes(&contents, &common::read_all(&file));
            assert_eq!(file.seek_hole(0).unwrap(), Some(4096));
            assert_eq!(file.map().filter(|piece| piece.as_ref().unwrap().state == State::Hole).count(), 1);
        });
        uext4_testkit::oracle::e2fsck_clean(&image);
    }
}

#[test]
fn who_may_not_write_changes_no_blocks() {
    let volume = open_rw(sample().device());
    let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
    let slot = queue.attach(&volume.open_file("/data", read_only()).unwrap()).unwrap();
    assert_eq!(queue.discard(slot, 0, 4096, 1).unwrap_err().errno(), 9);
    assert_eq!(queue.allocate(slot, 0, 4096, 1).unwrap_err().errno(), 9);
    queue.detach(slot).unwrap();
    assert!(queue.discard(slot, 0, 4096, 1).is_err());
    assert_eq!(queue.pending(), 0);
}
