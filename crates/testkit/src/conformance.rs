//! One conformance set for every engine: what any [`Device`] must do, told through `&dyn Device`.
//!
//! The device must be writable, at least [`SIZE`] bytes long, and nobody else may use it. Its contents are
//! destroyed.

use std::time::{Duration, Instant};
use uext4_blockdev::{
    BufferPool, Device, DeviceQueue, Done, Error, Memory, Misaligned, Op, Priority, Queue, QueueOptions,
    Request, Wait, WriteDurability,
};

/// Smallest device that the set runs on, bytes.
pub const SIZE: u64 = 4 << 20;

/// Runs everything.
///
/// # Panics
/// If the device does not do what it must.
pub fn conformance(device: &dyn Device) {
    assert!(device.geometry().size >= SIZE && !device.capabilities().read_only);
    sync_round_trip(device);
    sync_large(device);
    wrong_requests_are_typed(device);
    fua_writes(device);
    discards(device);
    zeros(device);
    for owner_driven in [false, true] {
        let options = |depth| QueueOptions { owner_driven, ..QueueOptions::depth(depth) };
        queue_round_trip(device, &options(16), None);
        let pool = BufferPool::new(1 << 20).unwrap();
        queue_round_trip(device, &QueueOptions { pool: Some(pool.clone()), ..options(16) }, Some(&pool));
        queue_flush_and_fua(device, &options(8));
        queue_is_full_at_depth(device, &options(4));
        queue_answers_outside_requests(device, &options(4));
        waits(device, &options(8));
        delivers_no_more_than_fits(device, &options(8));
        drop_with_requests_in_flight(device, &options(64));
    }
    depth_limits(device);
    many_threads(device);
}

/// Aligned test memory: a pool of its own.
pub fn pool() -> BufferPool {
    BufferPool::new(4 << 20).unwrap()
}

/// Fills `buf` with bytes that depend on `seed` and on their place.
pub fn pattern(seed: u64, buf: &mut [u8]) {
    for (index, byte) in buf.iter_mut().enumerate() {
        *byte = (seed as usize).wrapping_mul(31).wrapping_add(index / 7).wrapping_mul(13) as u8;
    }
}

fn block(device: &dyn Device) -> usize {
    device.geometry().logical_block as usize
}

fn sync_round_trip(device: &dyn Device) {
    let pool = pool();
    let size = block(device);
    let mut buf = pool.take(size).unwrap();
    let last = device.geometry().size - size as u64;
    for (seed, pos) in [(1, 0), (2, size as u64), (3, last)] {
        pattern(seed, &mut buf);
        device.write_at(&buf, pos, WriteDurability::Cached).unwrap();
    }
    device.flush().unwrap();
    let mut back = pool.take(size).unwrap();
    for (seed, pos) in [(1, 0), (2, size as u64), (3, last)] {
        pattern(seed, &mut buf);
        device.read_at(&mut back, pos).unwrap();
        assert_eq!(&buf[..], &back[..], "at {pos}");
    }
}

fn sync_large(device: &dyn Device) {
    let pool = pool();
    let mut buf = pool.take(1 << 20).unwrap();
    pattern(9, &mut buf);
    device.write_at(&buf, 1 << 20, WriteDurability::Cached).unwrap();
    let mut back = pool.take(1 << 20).unwrap();
    device.read_at(&mut back, 1 << 20).unwrap();
    assert!(buf[..] == back[..]);
}

fn wrong_requests_are_typed(device: &dyn Device) {
    let pool = pool();
    let geometry = device.geometry();
    let size = block(device);
    let mut buf = pool.take(4 * size).unwrap();
    let misaligned = |result: Result<(), Error>, wanted| match result {
        Err(Error::Misaligned { what, .. }) => assert_eq!(what, wanted),
        other => panic!("{other:?}"),
    };
    misaligned(device.read_at(&mut buf[..size], 1), Misaligned::Position);
    misaligned(device.write_at(&buf[..size], 7, WriteDurability::Cached), Misaligned::Position);
    misaligned(device.read_at(&mut buf[..size - 1], 0), Misaligned::Length);
    misaligned(device.read_at(&mut buf[..0], 0), Misaligned::Length);
    misaligned(device.discard(0, 1), Misaligned::Length);
    if geometry.memory_align > 1 {
        misaligned(device.read_at(&mut buf[1..1 + size], 0), Misaligned::Memory);
        misaligned(device.write_at(&buf[1..1 + size], 0, WriteDurability::Cached), Misaligned::Memory);
    }
    let far = u64::MAX - (u64::MAX % size as u64);
    for pos in [geometry.size, geometry.size + size as u64, far] {
        assert!(matches!(device.read_at(&mut buf[..size], pos), Err(Error::OutOfRange { .. })), "{pos}");
        assert!(matches!(
            device.write_at(&buf[..size], pos, WriteDurability::Cached),
            Err(Error::OutOfRange { .. })
        ));
        assert!(matches!(device.discard(pos, size as u64), Err(Error::OutOfRange { .. })));
    }
    let last = geometry.size - size as u64;
    assert!(matches!(device.read_at(&mut buf[..2 * size], last), Err(Error::OutOfRange { .. })));
}

fn fua_writes(device: &dyn Device) {
    let pool = pool();
    let mut buf = pool.take(block(device)).unwrap();
    pattern(17, &mut buf);
    let result = device.write_at(&buf, 0, WriteDurability::Fua);
    let capabilities = device.capabilities();
    if !capabilities.fua && (capabilities.volatile_cache || result.is_err()) {
        // Without a cache an engine may take it for the plain write that it amounts to.
        assert!(matches!(result, Err(Error::Unsupported(_))), "{result:?}");
        return;
    }
    result.unwrap();
    let mut back = pool.take(block(device)).unwrap();
    device.read_at(&mut back, 0).unwrap();
    assert_eq!(&buf[..], &back[..]);
}

fn discards(device: &dyn Device) {
    let pool = pool();
    let mut buf = pool.take(4096).unwrap();
    pattern(4, &mut buf);
    for pos in [0, 4096, 8192] {
        device.write_at(&buf, pos, WriteDurability::Cached).unwrap();
    }
    let result = device.discard(4096, 4096);
    if device.capabilities().discard {
        result.unwrap();
    }
    // Contents of the range are undefined; its neighbours must be left alone.
    let mut back = pool.take(4096).unwrap();
    for pos in [0, 8192] {
        device.read_at(&mut back, pos).unwrap();
        assert_eq!(&buf[..], &back[..], "{pos}");
    }
}

/// Zeros in lengths from one block to 2 MiB, the bytes around them unchanged; wrong ranges are refused.
fn zeros(device: &dyn Device) {
    let pool = BufferPool::new(8 << 20).unwrap();
    let size = block(device) as u64;
    let (start, end) = (1 << 20, SIZE);
    let mut before = pool.take((end - start) as usize).unwrap();
    let mut found = pool.take(before.len()).unwrap();
    for (pos, length) in
        [(size, size), (3 * size, 5 * size), (0, 2 << 20), ((2 << 20) - size, (1 << 20) + size)]
    {
        pattern(pos, &mut before);
        device.write_at(&before, start, WriteDurability::Cached).unwrap();
        device.write_zeros(start + pos, length).unwrap();
        device.flush().unwrap();
        device.read_at(&mut found, start).unwrap();
        before[pos as usize..(pos + length) as usize].fill(0);
        assert!(before[..] == found[..], "{length} bytes of zeros at {pos}");
    }
    let last = device.geometry().size - size;
    for (pos, length) in [(last, 2 * size), (device.geometry().size, size), (u64::MAX - size + 1, size)] {
        assert!(matches!(device.write_zeros(pos, length), Err(Error::OutOfRange { .. })), "{pos}");
    }
    for (pos, length) in [(1, size), (start, 1), (start, 0)] {
        assert!(matches!(device.write_zeros(pos, length), Err(Error::Misaligned { .. })), "{pos}");
    }
}

/// A request of one block.
pub fn request(op: Op, pos: u64, length: u32, memory: Memory, tag: u64) -> Request {
    Request { op, fua: false, nowait: false, priority: Priority::OF_THREAD, pos, length, memory, tag }
}

/// Reaps until nothing is in flight.
pub fn reap_all(queue: &mut Queue) -> Vec<Done> {
    let mut all = Vec::new();
    let mut out = Vec::with_capacity(64);
    while queue.in_flight() > 0 {
        queue.reap(&mut out, Wait::AtLeast(1)).unwrap();
        all.append(&mut out);
    }
    all.sort_by_key(|done| done.tag);
    all
}

fn queue_round_trip(device: &dyn Device, options: &QueueOptions, registered: Option<&BufferPool>) {
    let own = pool();
    let memory = registered.unwrap_or(&own);
    let mut queue = device.queue(options).unwrap();
    assert_eq!(queue.capacity(), options.depth);
    let size = block(device).max(4096);
    let count = options.depth as usize;
    let mut buffers: Vec<_> = (0..count).map(|_| memory.take(size).unwrap()).collect();
    for (op, seed) in [(Op::Write, 100), (Op::Read, 0)] {
        for (index, buf) in buffers.iter_mut().enumerate() {
            pattern(seed + index as u64, buf);
            let memory = buf.memory(0);
            let request = request(op, (index * size) as u64, size as u32, memory, index as u64);
            // SAFETY: the buffer is not touched until `reap_all` has seen its completion.
            unsafe { queue.push(request) }.unwrap();
        }
        assert_eq!(queue.in_flight(), count as u32);
        queue.submit().unwrap();
        let done = reap_all(&mut queue);
        let wanted: Vec<Done> =
            (0..count).map(|index| Done { tag: index as u64, result: size as i32 }).collect();
        assert_eq!(done, wanted);
    }
    let mut expected = vec![0; size];
    for (index, buf) in buffers.iter().enumerate() {
        pattern(100 + index as u64, &mut expected);
        assert!(expected[..] == buf[..], "block {index}");
    }
    if registered.is_none() {
        assert!(!queue.facts().registered_buffers);
    }
}

fn queue_flush_and_fua(device: &dyn Device, options: &QueueOptions) {
    let pool = pool();
    let size = block(device);
    let mut queue = device.queue(options).unwrap();
    let mut buf = pool.take(size).unwrap();
    pattern(55, &mut buf);
    let fua = device.capabilities().fua;
    let write = Request { fua, ..request(Op::Write, 0, size as u32, buf.memory(0), 1) };
    // SAFETY: the buffer is not touched until `reap_all` has seen the completion.
    unsafe { queue.push(write) }.unwrap();
    assert_eq!(reap_all(&mut queue), [Done { tag: 1, result: size as i32 }]);
    // SAFETY: a flush has no memory.
    unsafe { queue.push(request(Op::Flush, 0, 0, Memory::NONE, 2)) }.unwrap();
    assert_eq!(reap_all(&mut queue), [Done { tag: 2, result: 0 }]);
    if device.capabilities().discard {
        // SAFETY: a discard has no memory.
        unsafe { queue.push(request(Op::Discard, 8192, 4096, Memory::NONE, 3)) }.unwrap();
        assert_eq!(reap_all(&mut queue), [Done { tag: 3, result: 0 }]);
    }
    let mut back = pool.take(size).unwrap();
    device.read_at(&mut back, 0).unwrap();
    assert_eq!(&buf[..], &back[..]);
}

fn queue_is_full_at_depth(device: &dyn Device, options: &QueueOptions) {
    let pool = pool();
    let size = block(device);
    let mut queue = device.queue(options).unwrap();
    let mut buffers: Vec<_> = (0..=options.depth).map(|_| pool.take(size).unwrap()).collect();
    let mut refused = 0;
    for (index, buf) in buffers.iter_mut().enumerate() {
        let read = request(Op::Read, 0, size as u32, buf.memory(0), index as u64);
        // SAFETY: the buffers outlive the completions reaped below.
        refused += u32::from(unsafe { queue.push(read) }.is_err());
    }
    assert_eq!((refused, queue.in_flight()), (1, options.depth));
    assert_eq!(reap_all(&mut queue).len(), options.depth as usize);
    assert_eq!(queue.in_flight(), 0);
}

fn queue_answers_outside_requests(device: &dyn Device, options: &QueueOptions) {
    let pool = pool();
    let size = block(device) as u32;
    let mut queue = device.queue(options).unwrap();
    let mut buf = pool.take(size as usize).unwrap();
    for (tag, pos) in [(1, device.geometry().size), (2, u64::MAX - u64::from(size) + 1)] {
        for op in [Op::Write, Op::Read, Op::Discard] {
            // SAFETY: the buffer is not touched until `reap_all` has seen the completion.
            unsafe { queue.push(request(op, pos, size, buf.memory(0), tag)) }.unwrap();
            let done = reap_all(&mut queue);
            assert!(done.len() == 1 && done[0].tag == tag && done[0].result < 0, "{op:?} at {pos}: {done:?}");
        }
    }
}

fn waits(device: &dyn Device, options: &QueueOptions) {
    let pool = pool();
    let size = block(device);
    let mut queue = device.queue(options).unwrap();
    let mut out = Vec::with_capacity(16);
    // Nothing in flight: no wait ends in a hang.
    for wait in [Wait::No, Wait::AtLeast(3), Wait::Timeout(Duration::from_secs(3600))] {
        assert_eq!(queue.reap(&mut out, wait).unwrap(), 0);
    }
    let mut buffers: Vec<_> = (0..3).map(|_| pool.take(size).unwrap()).collect();
    for (index, buf) in buffers.iter_mut().enumerate() {
        let read = request(Op::Read, 0, size as u32, buf.memory(0), index as u64);
        // SAFETY: the buffers outlive the completions reaped below.
        unsafe { queue.push(read) }.unwrap();
    }
    // Reaping sends by itself; more than is in flight is not waited for.
    assert_eq!(queue.reap(&mut out, Wait::AtLeast(100)).unwrap(), 3);
    assert_eq!((out.len(), queue.in_flight()), (3, 0));
    out.clear();
    // SAFETY: as above.
    unsafe { queue.push(request(Op::Read, 0, size as u32, buffers[0].memory(0), 9)) }.unwrap();
    assert_eq!(queue.reap(&mut out, Wait::Timeout(Duration::from_secs(60))).unwrap(), 1);
    out.clear();
    // SAFETY: as above.
    unsafe { queue.push(request(Op::Read, 0, size as u32, buffers[0].memory(0), 10)) }.unwrap();
    let begin = Instant::now();
    let mut polled = 0;
    while polled == 0 {
        polled = queue.reap(&mut out, Wait::No).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(60), "Wait::No never delivers");
    }
    assert_eq!(out, [Done { tag: 10, result: size as i32 }]);
}

fn delivers_no_more_than_fits(device: &dyn Device, options: &QueueOptions) {
    let pool = pool();
    let size = block(device);
    let mut queue = device.queue(options).unwrap();
    let mut buffers: Vec<_> = (0..5).map(|_| pool.take(size).unwrap()).collect();
    for (index, buf) in buffers.iter_mut().enumerate() {
        let read = request(Op::Read, 0, size as u32, buf.memory(0), index as u64);
        // SAFETY: the buffers outlive the completions reaped below.
        unsafe { queue.push(read) }.unwrap();
    }
    let mut out: Vec<Done> = Vec::with_capacity(2);
    let room = out.capacity();
    assert_eq!(queue.reap(&mut out, Wait::AtLeast(5)).unwrap(), room.min(5));
    assert_eq!((out.capacity(), queue.in_flight() as usize), (room, 5 - room.min(5)));
    reap_all(&mut queue);
}

/// After the drop the memory is ours: nothing may be written to it any more.
fn drop_with_requests_in_flight(device: &dyn Device, options: &QueueOptions) {
    let pool = BufferPool::new(16 << 20).unwrap();
    let size = 64 << 10;
    for sent in [true, false] {
        let mut queue = device.queue(options).unwrap();
        let mut buffers: Vec<_> = (0..options.depth).map(|_| pool.take(size).unwrap()).collect();
        for (index, buf) in buffers.iter_mut().enumerate() {
            let pos = (index as u64 * size as u64) % SIZE;
            let read = request(Op::Read, pos, size as u32, buf.memory(0), index as u64);
            // SAFETY: the buffers outlive the queue, and dropping the queue waits.
            unsafe { queue.push(read) }.unwrap();
        }
        if sent {
            queue.submit().unwrap();
        }
        drop(queue);
        for buf in &mut buffers {
            buf.fill(0xa5);
        }
        std::thread::sleep(Duration::from_millis(5));
        assert!(buffers.iter().all(|buf| buf.iter().all(|&byte| byte == 0xa5)));
    }
}

/// The kernel lets nobody but the owner wait for an owner-driven queue; dropping it elsewhere must wait all the
/// same. For devices of 32 MiB and more on io_uring.
pub fn foreign_thread_drops(device: &dyn Device) {
    let pool = BufferPool::new(32 << 20).unwrap();
    let mut buffers: Vec<_> = (0..32).map(|_| pool.take(1 << 20).unwrap()).collect();
    for _ in 0..3 {
        let mut queue =
            device.queue(&QueueOptions { owner_driven: true, ..QueueOptions::depth(32) }).unwrap();
        assert!(queue.facts().owner_driven);
        for (index, buf) in buffers.iter_mut().enumerate() {
            let read = request(Op::Read, (index as u64) << 20, 1 << 20, buf.memory(0), index as u64);
            // SAFETY: the buffers outlive the queue, and dropping the queue waits.
            unsafe { queue.push(read) }.unwrap();
        }
        // This thread becomes the owner and stays alive, busy elsewhere, while another one drops the queue.
        queue.submit().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(queue));
        });
        for buf in &mut buffers {
            buf.fill(0xa5);
        }
        std::thread::sleep(Duration::from_millis(30));
        assert!(buffers.iter().all(|buf| buf.iter().all(|&byte| byte == 0xa5)));
    }
}

fn depth_limits(device: &dyn Device) {
    for depth in [0, 32769, u32::MAX] {
        assert!(matches!(device.queue(&QueueOptions::depth(depth)), Err(Error::Unsupported(_))), "{depth}");
    }
    assert_eq!(device.queue(&QueueOptions::depth(1)).unwrap().capacity(), 1);
    assert_eq!(device.queue(&QueueOptions::depth(100)).unwrap().capacity(), 100);
}

fn many_threads(device: &dyn Device) {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let pool = pool();
                let mut buf = pool.take(4096).unwrap();
                let mut back = pool.take(4096).unwrap();
                for round in 0..32 {
                    let pos = (thread * 32 + round) * 4096;
                    pattern(pos, &mut buf);
                    device.write_at(&buf, pos, WriteDurability::Cached).unwrap();
                    device.read_at(&mut back, pos).unwrap();
                    assert_eq!(&buf[..], &back[..]);
                }
            });
        }
    });
}
