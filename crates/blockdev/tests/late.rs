//! The layer that moves the bytes of queued requests late.

use crate::common;

use common::{reap_all, request};
use std::sync::Arc;
use std::time::Duration;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::{
    Buffer, BufferPool, Device, DeviceQueue, Done, Memory, Op, Queue, QueueOptions, Wait, WriteDurability,
};
use uext4_testkit::device::{LateDevice, LateHandle};

/// A late device, its handle, and the device inside.
fn late() -> (LateDevice, LateHandle, Arc<dyn Device>) {
    let options = MemoryOptions { volatile_cache: true, ..MemoryOptions::new(common::SIZE) };
    let inner: Arc<dyn Device> = Arc::new(MemoryDevice::new(options).unwrap());
    let device = LateDevice::new(Arc::clone(&inner));
    let handle = device.handle();
    (device, handle, inner)
}

fn take(fill: u8) -> Buffer {
    let mut buffer = BufferPool::new(4096).unwrap().take(4096).unwrap();
    buffer.fill(fill);
    buffer
}

/// The byte that a block of the device is full of.
fn byte(device: &dyn Device, pos: u64) -> u8 {
    let mut back = take(0);
    device.read_at(&mut back, pos).unwrap();
    assert!(back.iter().all(|&byte| byte == back[0]));
    back[0]
}

/// Pushes and submits a request of one block.
fn send(queue: &mut Queue, op: Op, pos: u64, memory: Memory, tag: u64) {
    // SAFETY: the tests keep their buffers until the queue has delivered everything or was dropped.
    unsafe { queue.push(request(op, pos, 4096, memory, tag)) }.unwrap();
    assert_eq!(queue.submit().unwrap(), 1);
}

fn poll(queue: &mut Queue) -> Vec<Done> {
    let mut out = Vec::with_capacity(16);
    queue.reap(&mut out, Wait::No).unwrap();
    out
}

#[test]
fn it_is_a_device_like_any_other() {
    let (device, handle, _) = late();
    common::conformance(&device);
    assert_eq!((handle.waiting(), handle.land()), (0, 0));
    assert_eq!(device.describe().layers, ["late"]);
}

#[test]
fn bytes_move_when_a_request_is_reaped() {
    let (device, handle, inner) = late();
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let (mut written, mut read) = (take(1), take(0));
    send(&mut queue, Op::Write, 0, written.memory(0), 1);
    send(&mut queue, Op::Read, 4096, read.memory(0), 2);
    assert_eq!((byte(&*inner, 0), handle.waiting()), (0, 2));
    // Both sides change after submission, and what they are at the reap counts. (A caller must not do the first.)
    written.fill(3);
    inner.write_at(&take(4), 4096, WriteDurability::Cached).unwrap();
    assert_eq!(poll(&mut queue), [Done { tag: 1, result: 4096 }, Done { tag: 2, result: 4096 }]);
    assert_eq!((byte(&*inner, 0), read[0], handle.waiting()), (3, 4, 0));
}

#[test]
fn only_what_is_delivered_has_landed() {
    let (device, handle, inner) = late();
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let mut data = take(7);
    for block in 0..4 {
        send(&mut queue, Op::Write, block * 4096, data.memory(0), block);
    }
    let mut out = Vec::with_capacity(1);
    let room = out.capacity();
    assert_eq!(queue.reap(&mut out, Wait::AtLeast(4)).unwrap(), room.min(4));
    assert_eq!((room, handle.waiting()), (1, 3));
    assert_eq!((byte(&*inner, 0), byte(&*inner, 4096)), (7, 0));
    reap_all(&mut queue);
}

#[test]
fn held_requests_complete_when_they_are_let_go_and_not_before() {
    let (device, handle, inner) = late();
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let mut data = take(5);
    handle.hold();
    send(&mut queue, Op::Write, 0, data.memory(0), 1);
    assert!(poll(&mut queue).is_empty());
    let mut out = Vec::with_capacity(4);
    assert_eq!(queue.reap(&mut out, Wait::Timeout(Duration::from_millis(5))).unwrap(), 0);
    assert_eq!((byte(&*inner, 0), queue.in_flight()), (0, 1));

    // One that lands while others are held can be reaped; later ones are held.
    assert_eq!(handle.land(), 1);
    assert_eq!(byte(&*inner, 0), 5);
    send(&mut queue, Op::Write, 4096, data.memory(0), 2);
    assert_eq!(poll(&mut queue), [Done { tag: 1, result: 4096 }]);
    assert_eq!((handle.waiting(), byte(&*inner, 4096)), (1, 0));

    // A waiter wakes up.
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut out = Vec::with_capacity(4);
            queue.reap(&mut out, Wait::AtLeast(1)).map(|_| out)
        });
        std::thread::sleep(Duration::from_millis(5));
        assert!(!waiter.is_finished());
        handle.release();
        assert_eq!(waiter.join().unwrap().unwrap(), [Done { tag: 2, result: 4096 }]);
    });
    assert_eq!(byte(&*inner, 4096), 5);
}

#[test]
fn requests_land_before_the_synchronous_call_that_was_chosen() {
    let (device, handle, inner) = late();
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let mut data = take(6);
    handle.land_before(Some(Op::Write));
    send(&mut queue, Op::Write, 0, data.memory(0), 1);
    // The read-modify-write that did not wait: it puts back what it read.
    let mut block = take(9);
    device.read_at(&mut block, 0).unwrap();
    assert_eq!((block[0], handle.waiting()), (0, 1));
    device.flush().unwrap();
    assert_eq!(handle.waiting(), 1);
    device.write_at(&take(8), 4096, WriteDurability::Cached).unwrap();
    assert_eq!((handle.waiting(), byte(&*inner, 0)), (0, 6));
    device.write_at(&block, 0, WriteDurability::Cached).unwrap();
    assert_eq!(byte(&*inner, 0), 0, "the queued write is lost");
    assert_eq!(poll(&mut queue), [Done { tag: 1, result: 4096 }]);

    handle.land_before(None);
    send(&mut queue, Op::Write, 0, data.memory(0), 2);
    device.write_at(&block, 4096, WriteDurability::Cached).unwrap();
    assert_eq!(handle.waiting(), 1);
    reap_all(&mut queue);
}

#[test]
fn a_dropped_queue_lands_what_was_submitted_and_nothing_else() {
    let (device, handle, inner) = late();
    let mut data = take(2);
    handle.hold();
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let mut other = device.queue(&QueueOptions::depth(4)).unwrap();
    send(&mut queue, Op::Write, 0, data.memory(0), 1);
    send(&mut other, Op::Write, 4096, data.memory(0), 1);
    // SAFETY: the buffer outlives the queue.
    unsafe { queue.push(request(Op::Write, 8192, 4096, data.memory(0), 2)) }.unwrap();
    drop(queue);
    assert_eq!((byte(&*inner, 0), byte(&*inner, 4096), byte(&*inner, 8192)), (2, 0, 0));
    assert_eq!((handle.waiting(), handle.land()), (1, 1));
    drop(other);
    assert_eq!(byte(&*inner, 4096), 2);
}

#[test]
fn failures_of_the_device_become_completions() {
    let (device, _, _) = late();
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let mut data = take(1);
    send(&mut queue, Op::Write, common::SIZE, data.memory(0), 1);
    // SAFETY: the buffer outlives the completions.
    unsafe {
        queue.push(request(Op::Read, 0, 512, data.memory(1), 2)).unwrap();
        queue.push(request(Op::Flush, 0, 0, Memory::NONE, 3)).unwrap();
        queue.push(request(Op::Discard, 4096, 4096, Memory::NONE, 4)).unwrap();
    }
    let results: Vec<_> = reap_all(&mut queue).iter().map(|done| done.result).collect();
    assert_eq!(results, [-libc::EINVAL, -libc::EINVAL, 0, 0]);
}
