//! What every device of a server must do, given one of at least 4 MiB that may be written.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use uext4_blockdev::{
    Ask, Buffer, BufferPool, Device, DeviceQueue, Done, Full, Memory, Op, Priority, Queue, QueueOptions,
    Request, Wait, WriteDurability,
};

pub(crate) fn buffer(pool: &BufferPool, length: usize, seed: u8) -> Buffer {
    let mut buffer = pool.take(length).unwrap();
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = seed.wrapping_add((index / 3) as u8);
    }
    buffer
}

pub(crate) fn request(op: Op, pos: u64, buffer: &mut Buffer, tag: u64) -> Request {
    let length = buffer.len() as u32;
    Request { length, memory: buffer.memory(0), ..without_data(op, pos, 0, tag) }
}

pub(crate) fn without_data(op: Op, pos: u64, length: u32, tag: u64) -> Request {
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

pub(crate) fn push(queue: &mut Queue, request: Request) -> Result<(), Full> {
    // SAFETY: every test keeps its buffers alive and untouched until the queue has delivered the request.
    unsafe { queue.push(request) }
}

pub(crate) fn reap_all(queue: &mut Queue) -> Vec<Done> {
    let mut out = Vec::with_capacity(queue.capacity() as usize);
    let expected = queue.in_flight();
    queue.reap(&mut out, Wait::AtLeast(expected)).unwrap();
    assert_eq!((out.len() as u32, queue.in_flight()), (expected, 0));
    out.sort_by_key(|done| done.tag);
    out
}

/// All of it.
pub(crate) fn conforms(device: &dyn Device) {
    synchronous_calls(device);
    wrong_requests(device);
    every_kind(device);
    room_and_waits(device);
    discards(device);
    extras(device);
    event_descriptor(device);
    threads(device);
    dropped_queues(device);
}

fn synchronous_calls(device: &dyn Device) {
    let pool = BufferPool::new(4 << 20).unwrap();
    let size = device.geometry().size;
    let fua = device.capabilities().fua;
    for (pos, length) in [(0, 512), (4096, 4096), (size - 12288, 12288), (512, 65536), (0, 3 << 20)] {
        let written = buffer(&pool, length, pos as u8 + 1);
        let mut read = pool.take(length).unwrap();
        for durability in [WriteDurability::Cached, WriteDurability::Fua] {
            if durability == WriteDurability::Fua && !fua {
                let error = device.write_at(&written, pos, durability).unwrap_err();
                assert_eq!(error.errno(), libc::EOPNOTSUPP);
                continue;
            }
            read.fill(0);
            device.write_at(&written, pos, durability).unwrap();
            device.read_at(&mut read, pos).unwrap();
            assert!(written[..] == read[..], "{length} bytes at {pos}");
        }
    }
    device.flush().unwrap();
}

fn wrong_requests(device: &dyn Device) {
    let pool = BufferPool::new(1 << 20).unwrap();
    let size = device.geometry().size;
    let mut data = buffer(&pool, 8192, 9);
    for (pos, length) in [(size, 512), (size - 512, 1024), (!511, 512), (1, 512), (0, 513), (0, 0)] {
        let error = device.write_at(&data[..length], pos, WriteDurability::Cached).unwrap_err();
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
        assert_eq!(device.read_at(&mut data[..length], pos).unwrap_err().errno(), libc::EINVAL);
        let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
        push(&mut queue, Request { length: length as u32, ..request(Op::Write, pos, &mut data, 1) }).unwrap();
        assert_eq!(reap_all(&mut queue), [Done { tag: 1, result: -libc::EINVAL }], "{pos} {length}");
    }
    assert_eq!(data[..], buffer(&pool, 8192, 9)[..], "a refused read changed memory");
}

fn every_kind(device: &dyn Device) {
    let pool = BufferPool::new(1 << 20).unwrap();
    let fua_too = device.capabilities().fua;
    let mut queue = device.queue(&QueueOptions::depth(5)).unwrap();
    let capacity = queue.capacity();
    assert!(capacity >= 5);
    let mut buffers: Vec<_> = (0..capacity).map(|index| buffer(&pool, 4096, index as u8 + 1)).collect();
    for (index, buffer) in buffers.iter_mut().enumerate() {
        let (fua, pos) = (fua_too && index % 2 == 1, index as u64 * 4096);
        push(&mut queue, Request { fua, ..request(Op::Write, pos, buffer, 100 + index as u64) }).unwrap();
    }
    assert_eq!(push(&mut queue, without_data(Op::Flush, 0, 0, 0)), Err(Full));
    assert_eq!(queue.submit().unwrap(), capacity as usize);
    assert_eq!(queue.submit().unwrap(), 0);
    let expected: Vec<_> = (0..u64::from(capacity)).map(|i| Done { tag: 100 + i, result: 4096 }).collect();
    assert_eq!(reap_all(&mut queue), expected);
    push(&mut queue, without_data(Op::Flush, 0, 0, 7)).unwrap();
    assert_eq!(reap_all(&mut queue), [Done { tag: 7, result: 0 }]);
    for (index, buffer) in buffers.iter_mut().enumerate() {
        buffer.fill(0);
        push(&mut queue, request(Op::Read, index as u64 * 4096, buffer, index as u64)).unwrap();
    }
    assert_eq!(reap_all(&mut queue).len(), capacity as usize);
    for (index, read) in buffers.iter().enumerate() {
        assert_eq!(read[..], buffer(&pool, 4096, index as u8 + 1)[..], "block {index}");
    }
}

fn room_and_waits(device: &dyn Device) {
    let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
    let mut none: Vec<Done> = Vec::new();
    let mut two = Vec::with_capacity(2);
    assert_eq!(queue.reap(&mut two, Wait::AtLeast(1)).unwrap(), 0, "nothing is in flight");
    assert_eq!(queue.reap(&mut two, Wait::Timeout(Duration::from_secs(60))).unwrap(), 0);
    for tag in 0..3 {
        push(&mut queue, without_data(Op::Flush, 0, 0, tag)).unwrap();
    }
    assert_eq!(queue.reap(&mut none, Wait::AtLeast(3)).unwrap(), 0, "no room");
    let room = two.capacity();
    let mut delivered = queue.reap(&mut two, Wait::AtLeast(3)).unwrap();
    assert_eq!((delivered, two.capacity()), (room.min(3), room));
    while delivered < 3 {
        two.clear();
        delivered += queue.reap(&mut two, Wait::Timeout(Duration::from_secs(60))).unwrap();
    }
    assert_eq!((delivered, queue.in_flight()), (3, 0));
}

fn discards(device: &dyn Device) {
    let pool = BufferPool::new(1 << 20).unwrap();
    if !device.capabilities().discard {
        assert_eq!(device.discard(0, 4096).unwrap_err().errno(), libc::EOPNOTSUPP);
        return;
    }
    let data = buffer(&pool, 12288, 5);
    device.write_at(&data, 0, WriteDurability::Cached).unwrap();
    device.discard(4096, 4096).unwrap();
    let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
    push(&mut queue, without_data(Op::Discard, 4096, 4096, 3)).unwrap();
    assert_eq!(reap_all(&mut queue), [Done { tag: 3, result: 0 }]);
    let mut read = pool.take(12288).unwrap();
    device.read_at(&mut read, 0).unwrap();
    assert_eq!((&read[..4096], &read[8192..]), (&data[..4096], &data[8192..]));
    device.write_at(&data, 0, WriteDurability::Cached).unwrap();
    device.read_at(&mut read, 0).unwrap();
    assert_eq!(read[..], data[..]);
}

fn extras(device: &dyn Device) {
    for option in 0..3 {
        let mut options = QueueOptions::depth(4);
        *[&mut options.iopoll, &mut options.sqpoll, &mut options.register_file][option] = Ask::Require;
        assert_eq!(device.queue(&options).err().expect("a refusal").errno(), libc::EOPNOTSUPP);
    }
    let facts = device.queue(&QueueOptions::depth(4)).unwrap().facts();
    assert!(!facts.polled && !facts.registered_file && !facts.fallbacks.is_empty());
    let none = device.queue(&QueueOptions::depth(0)).err();
    assert_eq!(none.map(|error| error.errno()), Some(libc::EOPNOTSUPP));
}

fn readable(fd: &OwnedFd, limit: Duration) -> bool {
    let limit = rustix::time::Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
    let mut polled = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&limit)).unwrap() == 1
}

fn event_descriptor(device: &dyn Device) {
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut data = pool.take(4096).unwrap();
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let fd = queue.event_fd().unwrap().expect("a descriptor").as_fd().try_clone_to_owned().unwrap();
    assert!(!readable(&fd, Duration::ZERO), "nothing is in flight");
    for op in [Op::Write, Op::Read, Op::Flush] {
        push(&mut queue, request(op, 0, &mut data, 1)).unwrap();
        queue.submit().unwrap();
        let mut out = Vec::with_capacity(4);
        while out.is_empty() {
            assert!(readable(&fd, Duration::from_secs(20)), "no wake-up");
            queue.reap(&mut out, Wait::No).unwrap();
        }
        assert!(!readable(&fd, Duration::ZERO), "everything was delivered");
    }
    // One of two is taken: the other still shows.
    push(&mut queue, without_data(Op::Flush, 0, 0, 1)).unwrap();
    push(&mut queue, without_data(Op::Flush, 0, 0, 2)).unwrap();
    queue.submit().unwrap();
    let mut one = Vec::with_capacity(1);
    while one.is_empty() {
        assert!(readable(&fd, Duration::from_secs(20)), "no wake-up");
        queue.reap(&mut one, Wait::No).unwrap();
    }
    assert!(readable(&fd, Duration::from_secs(20)), "the second completion does not show");
    assert_eq!(reap_all(&mut queue).len(), 1);
}

fn threads(device: &dyn Device) {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let pool = BufferPool::new(1 << 20).unwrap();
                let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
                for round in 0..20u64 {
                    let pos = (thread * 20 + round) * 4096;
                    let mut data = buffer(&pool, 4096, (thread * 31 + round) as u8);
                    push(&mut queue, request(Op::Write, pos, &mut data, round)).unwrap();
                    assert_eq!(reap_all(&mut queue), [Done { tag: round, result: 4096 }]);
                    let mut read = pool.take(4096).unwrap();
                    device.read_at(&mut read, pos).unwrap();
                    assert_eq!(data[..], read[..]);
                }
            });
        }
    });
}

/// A queue that is dropped waits for its requests: their memory may go right after.
fn dropped_queues(device: &dyn Device) {
    for round in 1..10 {
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut buffers: Vec<_> = (0..16).map(|index| buffer(&pool, 4096, index + round)).collect();
        let mut queue = device.queue(&QueueOptions::depth(16)).unwrap();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            push(&mut queue, request(Op::Write, index as u64 * 4096, buffer, index as u64)).unwrap();
        }
        queue.submit().unwrap();
        drop(queue);
        let mut read = pool.take(4096).unwrap();
        for (index, written) in buffers.iter().enumerate() {
            device.read_at(&mut read, index as u64 * 4096).unwrap();
            assert_eq!(read[..], written[..], "round {round}, block {index}");
        }
    }
}
