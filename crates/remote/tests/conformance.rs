//! What an RBD image must do as a device, given one of at least 4 MiB that may be written, and requests for tests.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;
use uext4_blockdev::{
    Ask, Buffer, BufferPool, Device, DeviceQueue, Done, Full, Memory, Op, Priority, Queue, QueueOptions,
    Request, Wait,
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

/// The set of all engines, what this one refuses, and its descriptor.
pub(crate) fn conforms(device: &dyn Device) {
    uext4_testkit::conformance::conformance(device);
    extras(device);
    event_descriptor(device);
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
