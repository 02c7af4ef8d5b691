//! The engines that need no kernel I/O (`mem`, `dax`, `null`) and the layers over them, by one set of rules.

use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4_blockdev::engine::{DaxDevice, MemoryDevice, MemoryOptions, NullDevice};
use uext4_blockdev::layer::{CountingDevice, LatencyDevice, Mask, MaskDevice, SliceDevice};
use uext4_blockdev::{
    Ask, Buffer, BufferPool, DaxKind, Device, DeviceQueue, Done, Full, Memory, Misaligned, Op, Priority,
    Queue, QueueOptions, Request, Sharing, Wait, WriteDurability,
};
use uext4_testkit::device::FaultDevice;

const SIZE: u64 = 4 << 20;

fn memory(options: MemoryOptions) -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(options).unwrap())
}

fn plain_memory() -> Arc<dyn Device> {
    memory(MemoryOptions { volatile_cache: true, ..MemoryOptions::new(SIZE) })
}

/// A fully allocated file on tmpfs.
fn tmpfs_file(size: u64) -> File {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size).unwrap();
    file
}

fn dax(file: File, write: bool) -> Arc<dyn Device> {
    Arc::new(DaxDevice::new(file, "test".into(), write, Sharing::Private).unwrap())
}

fn every_device() -> Vec<(&'static str, Arc<dyn Device>)> {
    let ms = Some(Duration::from_millis(1));
    let cached = MemoryOptions { volatile_cache: true, ..MemoryOptions::new(SIZE) };
    let mask = Mask { volatile_cache: true, no_dax: true, ..Mask::default() };
    vec![
        ("mem", plain_memory()),
        ("mem with a cache and latency", Arc::new(LatencyDevice::new(memory(cached), ms, ms))),
        ("dax", dax(tmpfs_file(SIZE), true)),
        ("dax on disk", dax(disk_file(SIZE), true)),
        ("counting", Arc::new(CountingDevice::new(plain_memory()))),
        ("traced", Arc::new(CountingDevice::with_trace(plain_memory(), Arc::new(|_| {})))),
        ("latency", Arc::new(LatencyDevice::new(plain_memory(), ms, ms))),
        ("mask", Arc::new(MaskDevice::new(plain_memory(), mask))),
        ("fault", Arc::new(FaultDevice::new(plain_memory()))),
    ]
}

fn disk_file(size: u64) -> File {
    let file = tempfile::tempfile().unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, size).unwrap();
    file
}

fn buffer(pool: &BufferPool, length: usize, seed: u8) -> Buffer {
    let mut buffer = pool.take(length).unwrap();
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = seed.wrapping_add((index / 3) as u8);
    }
    buffer
}

fn request(op: Op, pos: u64, buffer: &mut Buffer, tag: u64) -> Request {
    let length = buffer.len() as u32;
    Request {
        op,
        fua: false,
        nowait: false,
        priority: Priority::OF_THREAD,
        pos,
        length,
        memory: buffer.memory(0),
        tag,
    }
}

fn without_data(op: Op, pos: u64, length: u32, tag: u64) -> Request {
    Request {
        op,
        fua: false,
        nowait: false,
        priority: Priority::OF_THREAD,
        pos,
        length,
        memory: Memory::NONE,
        tag,
    }
}

fn push(queue: &mut Queue, request: Request) -> Result<(), Full> {
    // SAFETY: every test keeps its buffers alive and untouched until the queue has delivered the request.
    unsafe { queue.push(request) }
}

fn reap_all(queue: &mut Queue) -> Vec<Done> {
    let mut out = Vec::with_capacity(queue.capacity() as usize);
    let expected = queue.in_flight();
    queue.reap(&mut out, Wait::AtLeast(expected)).unwrap();
    assert_eq!((out.len() as u32, queue.in_flight()), (expected, 0));
    out.sort_by_key(|done| done.tag);
    out
}

#[test]
fn synchronous_calls_store_and_return_bytes() {
    let pool = BufferPool::new(1 << 20).unwrap();
    for (name, device) in every_device() {
        for (pos, length) in [(0, 512), (4096, 4096), (SIZE - 12288, 12288), (512, 65536)] {
            let written = buffer(&pool, length, pos as u8 + 1);
            let mut read = pool.take(length).unwrap();
            for durability in [WriteDurability::Cached, WriteDurability::Fua] {
                read.fill(0);
                device.write_at(&written, pos, durability).unwrap();
                device.read_at(&mut read, pos).unwrap();
                assert_eq!(written[..], read[..], "{name} at {pos}");
            }
        }
        device.flush().unwrap();
    }
}

#[test]
fn wrong_requests_are_refused_before_anything_happens() {
    let pool = BufferPool::new(1 << 20).unwrap();
    for (name, device) in every_device() {
        let mut data = buffer(&pool, 8192, 9);
        for (pos, length) in [(SIZE, 512), (SIZE - 512, 1024), (!511, 512), (1, 512), (0, 513), (0, 0)] {
            let error = device.write_at(&data[..length], pos, WriteDurability::Cached).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{name}: {error}");
            assert_eq!(device.read_at(&mut data[..length], pos).unwrap_err().errno(), libc::EINVAL, "{name}");
            let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
            push(&mut queue, Request { length: length as u32, ..request(Op::Write, pos, &mut data, 1) })
                .unwrap();
            assert_eq!(
                reap_all(&mut queue),
                [Done { tag: 1, result: -libc::EINVAL }],
                "{name} {pos} {length}"
            );
        }
        let align = device.geometry().memory_align as usize;
        if align > 1 {
            let error = device.read_at(&mut data[align / 2..][..512], 0).unwrap_err();
            let what = Misaligned::Memory;
            assert!(
                matches!(error, uext4_blockdev::Error::Misaligned { what: w, .. } if w == what),
                "{name}"
            );
        }
        assert_eq!(data[..], buffer(&pool, 8192, 9)[..], "{name}: a refused read changed memory");
    }
}

#[test]
fn queues_carry_out_every_kind_and_stop_at_their_capacity() {
    let pool = BufferPool::new(1 << 20).unwrap();
    for (name, device) in every_device() {
        let mut queue = device.queue(&QueueOptions::depth(5)).unwrap();
        let capacity = queue.capacity();
        assert!(capacity >= 5, "{name}");
        let mut buffers: Vec<_> = (0..capacity).map(|index| buffer(&pool, 4096, index as u8 + 1)).collect();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            let fua = index % 2 == 1;
            let pos = index as u64 * 4096;
            push(&mut queue, Request { fua, ..request(Op::Write, pos, buffer, 100 + index as u64) }).unwrap();
        }
        assert_eq!(push(&mut queue, without_data(Op::Flush, 0, 0, 0)), Err(Full), "{name}");
        assert_eq!(queue.submit().unwrap(), capacity as usize, "{name}");
        assert_eq!(queue.submit().unwrap(), 0, "{name}");
        let expected: Vec<_> =
            (0..u64::from(capacity)).map(|i| Done { tag: 100 + i, result: 4096 }).collect();
        assert_eq!(reap_all(&mut queue), expected, "{name}");

        push(&mut queue, without_data(Op::Flush, 0, 0, 7)).unwrap();
        assert_eq!(reap_all(&mut queue), [Done { tag: 7, result: 0 }], "{name}");
        for (index, buffer) in buffers.iter_mut().enumerate() {
            buffer.fill(0);
            push(&mut queue, request(Op::Read, index as u64 * 4096, buffer, index as u64)).unwrap();
        }
        assert_eq!(reap_all(&mut queue).len(), capacity as usize);
        for (index, read) in buffers.iter().enumerate() {
            assert_eq!(read[..], buffer(&pool, 4096, index as u8 + 1)[..], "{name} block {index}");
        }
    }
}

#[test]
fn reap_respects_room_limits_and_what_is_in_flight() {
    for (name, device) in every_device() {
        let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
        let mut none: Vec<Done> = Vec::new();
        let mut two = Vec::with_capacity(2);
        assert_eq!(queue.reap(&mut two, Wait::AtLeast(1)).unwrap(), 0, "{name}: nothing is in flight");
        assert_eq!(queue.reap(&mut two, Wait::Timeout(Duration::from_secs(60))).unwrap(), 0, "{name}");
        for tag in 0..3 {
            push(&mut queue, without_data(Op::Flush, 0, 0, tag)).unwrap();
        }
        assert_eq!(queue.reap(&mut none, Wait::AtLeast(3)).unwrap(), 0, "{name}: no room");
        let room = two.capacity();
        let mut delivered = queue.reap(&mut two, Wait::AtLeast(3)).unwrap();
        assert_eq!((delivered, two.capacity()), (room.min(3), room), "{name}");
        while delivered < 3 {
            two.clear();
            delivered += queue.reap(&mut two, Wait::Timeout(Duration::from_secs(60))).unwrap();
        }
        assert_eq!((delivered, queue.in_flight()), (3, 0), "{name}");
    }
}

#[test]
fn discarded_ranges_stay_usable() {
    let pool = BufferPool::new(1 << 20).unwrap();
    for (name, device) in every_device() {
        if !device.capabilities().discard {
            assert_eq!(device.discard(0, 4096).unwrap_err().errno(), libc::EOPNOTSUPP, "{name}");
            continue;
        }
        let data = buffer(&pool, 12288, 5);
        device.write_at(&data, 0, WriteDurability::Cached).unwrap();
        device.discard(4096, 4096).unwrap();
        let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
        push(&mut queue, without_data(Op::Discard, 4096, 4096, 3)).unwrap();
        assert!(reap_all(&mut queue)[0].result >= 0, "{name}");
        let mut read = pool.take(12288).unwrap();
        device.read_at(&mut read, 0).unwrap();
        assert_eq!((&read[..4096], &read[8192..]), (&data[..4096], &data[8192..]), "{name}");
        device.write_at(&data, 0, WriteDurability::Cached).unwrap();
        device.read_at(&mut read, 0).unwrap();
        assert_eq!(read[..], data[..], "{name}");
    }
}

#[test]
fn required_extras_are_refused() {
    for (name, device) in every_device() {
        for option in 0..3 {
            let mut options = QueueOptions::depth(4);
            *[&mut options.iopoll, &mut options.sqpoll, &mut options.register_file][option] = Ask::Require;
            let error = device.queue(&options).err().expect(name);
            assert_eq!(error.errno(), libc::EOPNOTSUPP, "{name}");
        }
        let facts = device.queue(&QueueOptions::depth(4)).unwrap().facts();
        assert!(!facts.polled && !facts.registered_file && !facts.fallbacks.is_empty(), "{name}");
        assert_eq!(
            device.queue(&QueueOptions::depth(0)).err().map(|e| e.errno()),
            Some(libc::EOPNOTSUPP),
            "{name}"
        );
    }
}

fn readable(fd: &OwnedFd, limit: Duration) -> bool {
    let limit = rustix::time::Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
    let mut polled = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&limit)).unwrap() == 1
}

#[test]
fn the_event_descriptor_tells_of_completions() {
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut data = pool.take(4096).unwrap();
    let mut devices = every_device();
    let refuse = Mask { no_fua: true, ..Mask::default() };
    devices.push(("refusing mask", Arc::new(MaskDevice::new(plain_memory(), refuse))));
    devices.push(("null", Arc::new(NullDevice::load(plain_memory()).unwrap())));
    for (name, device) in devices {
        let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
        let fd = queue.event_fd().unwrap().expect(name).as_fd().try_clone_to_owned().unwrap();
        assert!(!readable(&fd, Duration::ZERO), "{name}: nothing is in flight");
        for fua in [false, true] {
            push(&mut queue, Request { fua, ..request(Op::Write, 0, &mut data, 1) }).unwrap();
            queue.submit().unwrap();
            let mut out = Vec::with_capacity(4);
            while out.is_empty() {
                assert!(readable(&fd, Duration::from_secs(20)), "{name}: no wake-up");
                queue.reap(&mut out, Wait::No).unwrap();
            }
            assert!(!readable(&fd, Duration::ZERO), "{name}: everything was delivered");
        }
    }
}

#[test]
fn a_slice_tells_of_answers_of_its_own() {
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut data = pool.take(4096).unwrap();
    let device = SliceDevice::new(plain_memory(), 4096, 4096, "part".into()).unwrap();
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let fd = queue.event_fd().unwrap().unwrap().try_clone_to_owned().unwrap();
    push(&mut queue, request(Op::Read, 4096, &mut data, 1)).unwrap();
    queue.submit().unwrap();
    assert!(readable(&fd, Duration::from_secs(20)), "outside the slice");
    let mut out = Vec::with_capacity(4);
    queue.reap(&mut out, Wait::No).unwrap();
    assert_eq!(out, [Done { tag: 1, result: -libc::EINVAL }]);
    assert!(!readable(&fd, Duration::ZERO), "everything was delivered");
}

#[test]
fn many_threads_may_use_one_device() {
    for (name, device) in every_device() {
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    let pool = BufferPool::new(64 << 10).unwrap();
                    let mut read = pool.take(4096).unwrap();
                    for round in 0..20u64 {
                        let pos = (thread * 20 + round) * 4096;
                        let data = buffer(&pool, 4096, (thread * 31 + round) as u8);
                        device.write_at(&data, pos, WriteDurability::Cached).unwrap();
                        device.read_at(&mut read, pos).unwrap();
                        assert_eq!(data[..], read[..], "{name}");
                    }
                });
            }
        });
    }
}

#[test]
fn impossible_memory_devices_are_refused() {
    let base = MemoryOptions::new(1 << 20);
    for options in [
        MemoryOptions { size: 0, ..base.clone() },
        MemoryOptions { size: 1000, ..base.clone() },
        MemoryOptions { logical_block: 256, ..base.clone() },
        MemoryOptions { logical_block: 1536, size: 3 << 20, ..base.clone() },
        MemoryOptions { logical_block: 4096, size: 512, ..base.clone() },
        MemoryOptions { memory_align: 0, ..base.clone() },
        MemoryOptions { size: 1 << 62, ..base.clone() },
    ] {
        assert!(MemoryDevice::new(options.clone()).is_err(), "{options:?}");
    }
}

#[test]
fn requests_take_their_latency_in_parallel_and_never_less() {
    let latency = Duration::from_millis(20);
    let dax = LatencyDevice::new(dax(tmpfs_file(SIZE), true), Some(latency), None);
    let memory = LatencyDevice::new(plain_memory(), Some(latency), None);
    for (name, device) in [("mem", Arc::new(memory) as Arc<dyn Device>), ("dax", Arc::new(dax))] {
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut data = pool.take(4096).unwrap();
        let start = Instant::now();
        device.read_at(&mut data, 0).unwrap();
        assert!(start.elapsed() >= latency, "{name}: synchronous");

        let mut queue = device.queue(&QueueOptions::depth(64)).unwrap();
        let mut buffers: Vec<_> = (0..64).map(|_| pool.take(512).unwrap()).collect();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            push(&mut queue, request(Op::Read, 0, buffer, index as u64)).unwrap();
        }
        // Time begins at submission, not at push.
        std::thread::sleep(Duration::from_millis(5));
        let start = Instant::now();
        queue.submit().unwrap();
        let mut out = Vec::with_capacity(64);
        queue.reap(&mut out, Wait::No).unwrap();
        let early = out.len();
        assert!(early == 0 || start.elapsed() >= latency, "{name}: {early} came early");
        queue.reap(&mut out, Wait::AtLeast(64 - early as u32)).unwrap();
        assert_eq!(out.len(), 64);
        assert!(start.elapsed() >= latency, "{name}: queued");
        // One after the other they would take 64 × 20 ms; this leaves a loaded machine half of that.
        assert!(start.elapsed() < latency * 32, "{name}: not in parallel");
    }
}

#[test]
fn a_timeout_ends_the_wait_before_the_completion() {
    let slow = Some(Duration::from_secs(3600));
    let tmpfs = LatencyDevice::new(dax(tmpfs_file(SIZE), true), slow, None);
    for device in
        [Arc::new(LatencyDevice::new(plain_memory(), slow, None)) as Arc<dyn Device>, Arc::new(tmpfs)]
    {
        let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
        push(&mut queue, without_data(Op::Discard, 0, 4096, 1)).unwrap();
        let start = Instant::now();
        let mut out = Vec::with_capacity(2);
        assert_eq!(queue.reap(&mut out, Wait::Timeout(Duration::from_millis(2))).unwrap(), 0);
        assert!(start.elapsed() >= Duration::from_millis(2));
        assert_eq!(queue.in_flight(), 1);
    }
}

#[test]
fn flushes_cost_only_with_a_volatile_cache_and_fua_costs_no_flush() {
    let flush = Duration::from_millis(30);
    let cached = memory(MemoryOptions { volatile_cache: true, ..MemoryOptions::new(SIZE) });
    let volatile = LatencyDevice::new(cached, None, Some(flush));
    let start = Instant::now();
    volatile.flush().unwrap();
    assert!(start.elapsed() >= flush);

    // A flush and FUA writes together: the writes are due at once, the flush is not.
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut data = pool.take(4096).unwrap();
    let mut queue = volatile.queue(&QueueOptions::depth(4)).unwrap();
    push(&mut queue, without_data(Op::Flush, 0, 0, 1)).unwrap();
    push(&mut queue, Request { fua: true, ..request(Op::Write, 0, &mut data, 2) }).unwrap();
    let start = Instant::now();
    let mut out = Vec::with_capacity(4);
    queue.reap(&mut out, Wait::AtLeast(1)).unwrap();
    assert!(out[0].tag == 2 || start.elapsed() >= flush, "the flush came first and early");
    let rest = 2 - out.len() as u32;
    queue.reap(&mut out, Wait::AtLeast(rest)).unwrap();
    assert!(out.len() == 2 && start.elapsed() >= flush);

    // Without a cache a flush has nothing to wait for; an hour would end this test.
    let hour = Some(Duration::from_secs(3600));
    LatencyDevice::new(memory(MemoryOptions::new(SIZE)), None, hour).flush().unwrap();
}

#[test]
fn fua_off_is_refused_by_the_memory_device() {
    let device = memory(MemoryOptions { fua: false, ..MemoryOptions::new(SIZE) });
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut data = buffer(&pool, 4096, 1);
    assert!(!device.capabilities().fua);
    assert_eq!(device.write_at(&data, 0, WriteDurability::Fua).unwrap_err().errno(), libc::EOPNOTSUPP);
    let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
    push(&mut queue, Request { fua: true, ..request(Op::Write, 0, &mut data, 1) }).unwrap();
    assert_eq!(reap_all(&mut queue)[0].result, -libc::EOPNOTSUPP);
    device.read_at(&mut data, 0).unwrap();
    assert!(data.iter().all(|&byte| byte == 0), "a refused write reached the device");
}

#[test]
fn null_moves_nothing_through_queues_and_everything_synchronously() {
    let base = plain_memory();
    let pool = BufferPool::new(1 << 20).unwrap();
    let image = buffer(&pool, 4096, 77);
    base.write_at(&image, 8192, WriteDurability::Cached).unwrap();
    base.write_at(&image, SIZE - 4096, WriteDurability::Cached).unwrap();
    let null = NullDevice::load(Arc::clone(&base)).unwrap();
    assert_eq!(null.geometry(), base.geometry());

    let mut data = buffer(&pool, 4096, 1);
    for pos in [8192, SIZE - 4096] {
        null.read_at(&mut data, pos).unwrap();
        assert_eq!(data[..], image[..]);
    }
    let mut queue = null.queue(&QueueOptions::depth(3)).unwrap();
    let mut untouched = buffer(&pool, 4096, 200);
    push(&mut queue, request(Op::Read, 8192, &mut untouched, 1)).unwrap();
    push(&mut queue, request(Op::Write, 8192, &mut untouched, 2)).unwrap();
    push(&mut queue, without_data(Op::Flush, 0, 0, 3)).unwrap();
    assert_eq!(push(&mut queue, without_data(Op::Flush, 0, 0, 4)), Err(Full));
    assert_eq!((queue.submit().unwrap(), queue.in_flight()), (3, 3));
    let results: Vec<_> = reap_all(&mut queue).iter().map(|done| (done.tag, done.result)).collect();
    assert_eq!(results, [(1, 4096), (2, 4096), (3, 0)]);
    assert_eq!(untouched[..], buffer(&pool, 4096, 200)[..], "a queued read moved data");
    null.read_at(&mut data, 8192).unwrap();
    assert_eq!(data[..], image[..], "a queued write moved data");

    null.write_at(&untouched, 8192, WriteDurability::Fua).unwrap();
    null.read_at(&mut data, 8192).unwrap();
    assert_eq!(data[..], untouched[..]);
    base.read_at(&mut data, 8192).unwrap();
    assert_eq!(data[..], image[..], "the image was written");
}

#[test]
fn a_mapped_file_is_the_file_and_says_that_it_needs_msync() {
    for file in [tmpfs_file(SIZE), disk_file(SIZE)] {
        let device = dax(file.try_clone().unwrap(), true);
        let capabilities = device.capabilities();
        assert!(capabilities.volatile_cache && capabilities.fua && !capabilities.read_only);
        if capabilities.dax == Some(DaxKind::Msync) {
            assert!(device.describe().notes.iter().any(|note| note.contains("msync")));
        }
        let pool = BufferPool::new(1 << 20).unwrap();
        let data = buffer(&pool, 8192, 3);
        // Odd addresses are fine for copies.
        device.write_at(&data[1..513], 512, WriteDurability::Cached).unwrap();
        device.write_at(&data, 4096, WriteDurability::Fua).unwrap();
        device.flush().unwrap();
        let mut seen = vec![0; 12288];
        file.read_exact_at(&mut seen, 0).unwrap();
        assert_eq!((&seen[512..1024], &seen[4096..]), (&data[1..513], &data[..]));
    }
}

#[test]
fn a_file_that_shrinks_answers_eio_and_the_process_lives() {
    let file = tmpfs_file(SIZE);
    let device = dax(file.try_clone().unwrap(), true);
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut data = buffer(&pool, 4096, 3);
    device.write_at(&data, SIZE - 4096, WriteDurability::Cached).unwrap();
    device.flush().unwrap();
    file.set_len(SIZE / 2).unwrap();

    assert_eq!(device.read_at(&mut data, SIZE - 4096).unwrap_err().errno(), libc::EIO);
    assert_eq!(device.write_at(&data, SIZE / 2, WriteDurability::Cached).unwrap_err().errno(), libc::EIO);
    let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
    push(&mut queue, request(Op::Read, SIZE / 2, &mut data, 1)).unwrap();
    assert_eq!(reap_all(&mut queue), [Done { tag: 1, result: -libc::EIO }]);
    // What is left still works, but durability is no longer claimed.
    device.read_at(&mut data, 0).unwrap();
    assert_eq!(device.flush().unwrap_err().errno(), libc::EIO);
    assert_eq!(device.write_at(&data, 0, WriteDurability::Fua).unwrap_err().errno(), libc::EIO);
    // From many threads at once, each fault is its own.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut data = [0u8; 8192];
                for _ in 0..200 {
                    // The first half is there, the second is not.
                    let outcome = device.read_at(&mut data, SIZE / 2 - 4096);
                    assert_eq!(outcome.unwrap_err().errno(), libc::EIO);
                }
            });
        }
    });
}

#[test]
fn dax_writes_need_a_file_without_holes_that_is_not_empty() {
    let sparse = tempfile::tempfile_in("/dev/shm").unwrap();
    sparse.set_len(SIZE).unwrap();
    let error = DaxDevice::new(sparse.try_clone().unwrap(), "x".into(), true, Sharing::Private).unwrap_err();
    assert_eq!(error.errno(), libc::EOPNOTSUPP, "{error}");
    let reader = dax(sparse, false);
    let mut data = vec![1; 4096];
    reader.read_at(&mut data, 0).unwrap();
    assert!(data.iter().all(|&byte| byte == 0) && reader.capabilities().read_only);
    assert_eq!(reader.write_at(&data, 0, WriteDurability::Cached).unwrap_err().errno(), libc::EROFS);
    let mut queue = reader.queue(&QueueOptions::depth(1)).unwrap();
    let mut buffer = BufferPool::new(4096).unwrap().take(4096).unwrap();
    push(&mut queue, request(Op::Write, 0, &mut buffer, 1)).unwrap();
    assert_eq!(reap_all(&mut queue)[0].result, -libc::EROFS);
    reader.flush().unwrap();

    let empty = tempfile::tempfile_in("/dev/shm").unwrap();
    assert!(DaxDevice::new(empty, "x".into(), false, Sharing::Private).is_err());
    let null = File::open("/dev/null").unwrap();
    assert!(DaxDevice::new(null, "x".into(), false, Sharing::Private).is_err());
}

#[test]
fn a_memfd_is_sealed_against_shrinking() {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::CLOEXEC;
    let file = File::from(rustix::fs::memfd_create("uext4", flags).unwrap());
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, SIZE).unwrap();
    let device = dax(file.try_clone().unwrap(), true);
    assert!(file.set_len(SIZE / 2).is_err(), "the file could shrink");
    assert!(!device.describe().notes.iter().any(|note| note.contains("shrinking")));
    let on_tmpfs = dax(tmpfs_file(SIZE), true).describe().notes;
    assert!(on_tmpfs.iter().any(|note| note.contains("shrinking")), "{on_tmpfs:?}");
}

#[test]
fn fua_writes_take_their_own_time_alone_and_beside_others() {
    let (plain, fua) = (Duration::from_millis(2), Duration::from_millis(150));
    let cached = memory(MemoryOptions { volatile_cache: true, ..MemoryOptions::new(SIZE) });
    let layered = |inner| LatencyDevice::new(inner, Some(plain), None).with_fua_latency(Some(fua));
    assert_eq!(layered(plain_memory()).describe().layers, ["latency 2ms", "FUA latency 150ms"]);
    for device in [layered(cached), layered(plain_memory())] {
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut data = buffer(&pool, 4096, 1);
        let timed = |durability| {
            let start = Instant::now();
            device.write_at(&data, 0, durability).unwrap();
            start.elapsed()
        };
        assert!(timed(WriteDurability::Fua) >= fua);
        let cached = timed(WriteDurability::Cached);
        assert!((plain..fua).contains(&cached), "a plain write took {cached:?}");

        // A FUA write is pushed first and does not hold the others back; a read with the flag is no FUA write.
        let mut others = [buffer(&pool, 4096, 2), buffer(&pool, 4096, 3)];
        let mut queue = device.queue(&QueueOptions::depth(3)).unwrap();
        let start = Instant::now();
        push(&mut queue, Request { fua: true, ..request(Op::Write, 0, &mut data, 1) }).unwrap();
        push(&mut queue, request(Op::Write, 4096, &mut others[0], 2)).unwrap();
        push(&mut queue, Request { fua: true, ..request(Op::Read, 8192, &mut others[1], 3) }).unwrap();
        assert_eq!(push(&mut queue, without_data(Op::Flush, 0, 0, 4)), Err(Full));
        let mut out = Vec::with_capacity(3);
        queue.reap(&mut out, Wait::AtLeast(2)).unwrap();
        assert!(start.elapsed() >= plain);
        assert!(out[..2].iter().all(|done| done.tag != 1) || start.elapsed() >= fua);
        let rest = 3 - out.len() as u32;
        queue.reap(&mut out, Wait::AtLeast(rest)).unwrap();
        assert!(start.elapsed() >= fua);
        let mut tags: Vec<_> = out.iter().map(|done| (done.tag, done.result)).collect();
        tags.sort_unstable();
        assert_eq!((tags, queue.in_flight()), (vec![(1, 4096), (2, 4096), (3, 4096)], 0));
    }

    // Less than what any write takes is no time less.
    let short = LatencyDevice::new(plain_memory(), Some(fua), None).with_fua_latency(Some(plain));
    let data = buffer(&BufferPool::new(1 << 20).unwrap(), 4096, 1);
    let start = Instant::now();
    short.write_at(&data, 0, WriteDurability::Fua).unwrap();
    assert!(start.elapsed() >= fua);
}

#[test]
fn a_flush_takes_the_time_of_what_was_cached_since_the_last_one() {
    // 64 KiB take 250 ms.
    let rated = |volatile_cache| {
        let inner = memory(MemoryOptions { volatile_cache, ..MemoryOptions::new(SIZE) });
        LatencyDevice::new(inner, None, None).with_flush_rate(NonZeroU64::new(256 << 10))
    };
    let full = Duration::from_millis(250);
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut data = buffer(&pool, 64 << 10, 1);
    for queued in [false, true] {
        let device = rated(true);
        let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
        let mut write = |fua: bool| {
            if queued {
                push(&mut queue, Request { fua, ..request(Op::Write, 0, &mut data, 1) }).unwrap();
                assert_eq!(reap_all(&mut queue)[0].result, 64 << 10);
            } else {
                let durability = if fua { WriteDurability::Fua } else { WriteDurability::Cached };
                device.write_at(&data, 0, durability).unwrap();
            }
        };
        write(true);
        write(false);
        let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
        let mut flush = |queued: bool| {
            let start = Instant::now();
            if queued {
                push(&mut queue, without_data(Op::Flush, 0, 0, 1)).unwrap();
                reap_all(&mut queue);
            } else {
                device.flush().unwrap();
            }
            start.elapsed()
        };
        let (first, second) = (flush(queued), flush(!queued));
        assert!(first >= full, "a flush of 64 KiB took {first:?}");
        assert!(second < full, "FUA writes leave nothing for a flush, and neither does a flush: {second:?}");
        // A flush that finds nothing because another one took it may not end before that one.
        write(false);
        std::thread::scope(|scope| {
            let start = Instant::now();
            let both = [scope.spawn(|| device.flush()), scope.spawn(|| device.flush())];
            both.into_iter().for_each(|one| {
                one.join().unwrap().unwrap();
                assert!(start.elapsed() >= full);
            });
        });
    }
    let without = rated(false);
    without.write_at(&data, 0, WriteDurability::Cached).unwrap();
    let start = Instant::now();
    without.flush().unwrap();
    assert!(start.elapsed() < full);
}
