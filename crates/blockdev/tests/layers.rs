//! What each layer adds: counts, traces, masks, faults.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::layer::{
    CountingDevice, Counts, LatencyDevice, Mask, MaskDevice, TraceEvent, TracePhase,
};
use uext4_blockdev::{
    Buffer, BufferPool, Capabilities, Description, Device, DeviceQueue, Done, Full, Geometry, Memory, Op,
    Priority, Queue, QueueFacts, QueueOptions, Request, Result, Wait, WriteDurability,
};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultOn, LateDevice};

const SIZE: u64 = 1 << 20;

fn memory() -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(MemoryOptions { volatile_cache: true, ..MemoryOptions::new(SIZE) }).unwrap())
}

fn take(length: usize, fill: u8) -> Buffer {
    let mut buffer = BufferPool::new(length).unwrap().take(length).unwrap();
    buffer.fill(fill);
    buffer
}

fn request(op: Op, fua: bool, pos: u64, buffer: &mut Buffer, tag: u64) -> Request {
    let length = buffer.len() as u32;
    Request {
        op,
        fua,
        nowait: false,
        priority: Priority::OF_THREAD,
        pos,
        length,
        memory: buffer.memory(0),
        tag,
    }
}

/// Runs one request through a queue of its own.
fn queued(device: &dyn Device, request: Request) -> i32 {
    let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
    // SAFETY: the request is delivered before this function returns; the caller's buffer outlives it.
    unsafe { queue.push(request) }.unwrap();
    reap(&mut queue)[0].result
}

fn reap(queue: &mut Queue) -> Vec<Done> {
    let mut out = Vec::with_capacity(queue.capacity() as usize);
    let expected = queue.in_flight();
    queue.reap(&mut out, Wait::AtLeast(expected)).unwrap();
    assert_eq!(out.len() as u32, expected);
    out
}

#[test]
fn counts_are_exact_for_synchronous_and_queued_requests() {
    let device = CountingDevice::new(memory());
    let mut data = take(4096, 1);
    device.write_at(&data, 0, WriteDurability::Cached).unwrap();
    device.write_at(&data, 4096, WriteDurability::Fua).unwrap();
    device.read_at(&mut data, 0).unwrap();
    device.flush().unwrap();
    device.discard(0, 8192).unwrap();
    assert!(device.read_at(&mut data, SIZE).is_err());
    let expected = Counts {
        reads: 2,
        writes: 2,
        fua_writes: 1,
        flushes: 1,
        discards: 1,
        read_bytes: 8192,
        written_bytes: 8192,
        discarded_bytes: 8192,
        queued: 0,
        errors: 1,
    };
    assert_eq!(device.counts(), expected);
    assert_eq!(device.counters().take(), expected);
    assert_eq!(device.counts(), Counts::default());

    assert_eq!(queued(&device, request(Op::Write, true, 0, &mut data, 1)), 4096);
    assert_eq!(queued(&device, request(Op::Read, false, 0, &mut data, 1)), 4096);
    assert_eq!(queued(&device, request(Op::Read, false, SIZE, &mut data, 1)), -libc::EINVAL);
    let flush = Request { length: 0, memory: Memory::NONE, ..request(Op::Flush, false, 0, &mut data, 1) };
    assert_eq!(queued(&device, flush), 0);
    let expected = Counts {
        reads: 2,
        writes: 1,
        fua_writes: 1,
        flushes: 1,
        read_bytes: 8192,
        written_bytes: 4096,
        queued: 4,
        errors: 1,
        ..Counts::default()
    };
    assert_eq!(device.counts(), expected);
}

#[test]
fn a_request_that_did_not_fit_is_not_counted() {
    let device = CountingDevice::with_trace(memory(), Arc::new(|_| {}));
    let mut data = take(512, 1);
    let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
    for round in 0..3 {
        // SAFETY: the buffer lives until the end of the test, after the queue delivered everything.
        unsafe {
            assert!(queue.push(request(Op::Read, false, 0, &mut data, 9)).is_ok());
            assert!(queue.push(request(Op::Read, false, 0, &mut data, 9)).is_err());
        }
        assert_eq!(reap(&mut queue), [Done { tag: 9, result: 512 }]);
        assert_eq!(device.counts().reads, round + 1);
    }
}

#[test]
fn the_trace_shows_each_request_twice_and_prints_like_blktrace() {
    let events: Arc<Mutex<Vec<TraceEvent>>> = Arc::default();
    let sink = Arc::clone(&events);
    let device =
        CountingDevice::with_trace(memory(), Arc::new(move |event| sink.lock().unwrap().push(*event)));
    let mut data = take(4096, 1);
    device.write_at(&data, SIZE - 4096, WriteDurability::Fua).unwrap();
    device.flush().unwrap();
    assert!(device.read_at(&mut data[..512], SIZE).is_err());
    queued(&device, request(Op::Read, false, 8192, &mut data, 1));

    let events = events.lock().unwrap();
    let lines: Vec<_> = events.iter().map(|event| event.to_string()).collect();
    let write = "W 2040+8 FUA";
    let failed = "R 2048+1 error 22";
    assert_eq!(lines, [write, write, "F", "F", "R 2048+1", failed, "R 16+8", "R 16+8"]);
    assert!(events.is_sorted_by_key(|event| event.time_ns));
    let (first, last) = (events[0], events[7]);
    assert_eq!((first.op, first.pos, first.length, first.fua), (Op::Write, SIZE - 4096, 4096, true));
    assert_eq!((first.queued, first.phase), (false, TracePhase::Submit));
    assert_eq!((last.queued, last.phase), (true, TracePhase::Complete(Ok(4096))));
    assert_eq!(events[5].phase, TracePhase::Complete(Err(libc::EINVAL)));
    assert_eq!(first.thread, rustix::thread::gettid().as_raw_nonzero().get() as u32);
}

#[test]
fn masks_hide_refuse_and_never_claim() {
    let bare = MemoryOptions { fua: false, ..MemoryOptions::new(SIZE) };
    let bare: Arc<dyn Device> = Arc::new(MemoryDevice::new(bare).unwrap());
    let unchanged = MaskDevice::new(Arc::clone(&bare), Mask::default());
    assert_eq!(unchanged.capabilities(), bare.capabilities());
    let volatile = MaskDevice::new(bare, Mask { volatile_cache: true, ..Mask::default() });
    assert!(volatile.capabilities().volatile_cache && !volatile.capabilities().fua);

    let mask = Mask { no_fua: true, no_nowait: true, no_discard: true, ..Mask::default() };
    let device = MaskDevice::new(memory(), mask);
    let capabilities = device.capabilities();
    assert!(
        capabilities.volatile_cache && !capabilities.fua && !capabilities.nowait && !capabilities.discard
    );
    assert_eq!(device.describe().layers, ["fua=off", "nowait=off", "discard=off"]);
    let mut data = take(4096, 7);
    assert_eq!(device.write_at(&data, 0, WriteDurability::Fua).unwrap_err().errno(), libc::EOPNOTSUPP);
    assert_eq!(device.discard(0, 4096).unwrap_err().errno(), libc::EOPNOTSUPP);
    assert_eq!(queued(&device, request(Op::Write, true, 0, &mut data, 1)), -libc::EOPNOTSUPP);
    assert_eq!(queued(&device, request(Op::Discard, false, 0, &mut data, 1)), -libc::EOPNOTSUPP);
    device.read_at(&mut data, 0).unwrap();
    assert!(data.iter().all(|&byte| byte == 0), "a refused write reached the device");
    data.fill(7);
    assert_eq!(queued(&device, request(Op::Write, false, 0, &mut data, 1)), 4096);

    let read_only = MaskDevice::new(memory(), Mask { read_only: true, ..Mask::default() });
    assert!(read_only.capabilities().read_only);
    assert_eq!(read_only.write_at(&data, 0, WriteDurability::Cached).unwrap_err().errno(), libc::EROFS);
    assert_eq!(queued(&read_only, request(Op::Write, false, 0, &mut data, 1)), -libc::EROFS);
    assert_eq!(queued(&read_only, request(Op::Read, false, 0, &mut data, 1)), 4096);
}

#[test]
fn the_nth_request_fails_synchronous_and_queued() {
    for through_queue in [false, true] {
        let device = FaultDevice::new(memory());
        let handle = device.handle();
        let mut data = take(4096, 1);
        let mut write = |pos| {
            if through_queue {
                queued(&device, request(Op::Write, false, pos, &mut data, 1))
            } else {
                device
                    .write_at(&data, pos, WriteDurability::Cached)
                    .map_or_else(|error| -error.errno(), |()| 4096)
            }
        };
        let id = handle.arm(Fault::nth(FaultOn::Op(Op::Write), 3));
        let outcomes: Vec<_> = (0..5).map(|n| write(n * 4096)).collect();
        assert_eq!(outcomes, [4096, 4096, -libc::EIO, 4096, 4096]);
        assert_eq!((handle.requests(), handle.fired(), handle.disarm(id)), (5, 1, Some(5)));
        assert_eq!(handle.disarm(id), None);

        let broken = Fault {
            range: Some(8192..8193),
            times: u64::MAX,
            action: FaultAction::Errno(libc::ENOSPC),
            ..Fault::nth(FaultOn::Any, 1)
        };
        handle.arm(broken);
        let outcomes: Vec<_> = [4096, 8192, 12288, 8192].map(&mut write).into();
        assert_eq!(outcomes, [4096, -libc::ENOSPC, 4096, -libc::ENOSPC]);
        handle.clear();
        assert_eq!(write(8192), 4096);
        data.fill(9);
        device.read_at(&mut data, 8192).unwrap();
        assert!(data.iter().all(|&byte| byte == 1));
    }
}

#[test]
fn a_failed_write_leaves_the_device_alone_and_a_short_one_a_prefix() {
    for through_queue in [false, true] {
        let device = FaultDevice::new(memory());
        let handle = device.handle();
        let mut data = take(4096, 1);
        let mut write = || {
            if through_queue {
                queued(&device, request(Op::Write, true, 0, &mut data, 1))
            } else {
                device.write_at(&data, 0, WriteDurability::Fua).map_or_else(|error| -error.errno(), |()| 4096)
            }
        };
        handle.arm(Fault::nth(FaultOn::FuaWrite, 1));
        assert_eq!(write(), -libc::EIO);
        let mut back = take(4096, 9);
        device.read_at(&mut back, 0).unwrap();
        assert!(back.iter().all(|&byte| byte == 0));
        for (kept, expected) in [(1535, 1024), (511, 0), (u64::MAX, 3584)] {
            handle.arm(Fault { action: FaultAction::Short(kept), ..Fault::nth(FaultOn::Changes, 1) });
            let outcome = write();
            assert_eq!(outcome, if through_queue { expected } else { -libc::EIO });
        }
        device.read_at(&mut back, 0).unwrap();
        assert!(back[..3584].iter().all(|&byte| byte == 1) && back[3584..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn flush_and_discard_faults_hit_their_kind_only() {
    let device = FaultDevice::new(memory());
    let handle = device.handle();
    let mut data = take(512, 1);
    handle.arm(Fault { times: u64::MAX, ..Fault::nth(FaultOn::Op(Op::Flush), 1) });
    handle.arm(Fault { action: FaultAction::Short(512), ..Fault::nth(FaultOn::Op(Op::Discard), 1) });
    assert_eq!(device.flush().unwrap_err().errno(), libc::EIO);
    assert_eq!(queued(&device, request(Op::Flush, false, 0, &mut data, 1)), -libc::EIO);
    assert_eq!(device.discard(0, 4096).unwrap_err().errno(), libc::EIO);
    device.discard(0, 4096).unwrap();
    device.read_at(&mut data, 0).unwrap();
    assert_eq!(handle.fired(), 3);
}

#[test]
fn a_full_queue_does_not_use_a_fault_up() {
    let device = FaultDevice::new(memory());
    let handle = device.handle();
    let mut data = take(512, 1);
    let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
    handle.arm(Fault::nth(FaultOn::Any, 2));
    // SAFETY: the buffer lives until the end of the test, after the queue delivered everything.
    unsafe {
        assert!(queue.push(request(Op::Read, false, 0, &mut data, 1)).is_ok());
        assert!(queue.push(request(Op::Read, false, 0, &mut data, 2)).is_err());
        assert_eq!((handle.requests(), reap(&mut queue)[0].result), (1, 512));
        assert!(queue.push(request(Op::Read, false, 0, &mut data, 3)).is_ok());
        assert!(queue.push(request(Op::Read, false, 0, &mut data, 4)).is_err());
    }
    assert_eq!((reap(&mut queue), handle.fired()), (vec![Done { tag: 3, result: -libc::EIO }], 1));
}

/// A device in memory, whose queues refuse every other request although they have room: as a ring does whose kernel
/// thread has not given an entry back yet.
#[derive(Debug)]
struct Moody(Arc<dyn Device>);

struct MoodyQueue(Queue, bool);

impl Device for Moody {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
    fn describe(&self) -> Description {
        self.0.describe()
    }
    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.0.read_at(buf, pos)
    }
    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        self.0.write_at(buf, pos, durability)
    }
    fn flush(&self) -> Result<()> {
        self.0.flush()
    }
    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.0.discard(pos, length)
    }
    fn queue(&self, options: &QueueOptions) -> Result<Queue> {
        Ok(Queue::Other(Box::new(MoodyQueue(self.0.queue(options)?, false))))
    }
}

impl DeviceQueue for MoodyQueue {
    unsafe fn push(&mut self, request: Request) -> std::result::Result<(), Full> {
        self.1 = !self.1;
        // SAFETY: the caller's promise is passed on unchanged.
        if self.1 { Err(Full) } else { unsafe { self.0.push(request) } }
    }
    fn submit(&mut self) -> Result<usize> {
        self.0.submit()
    }
    fn reap(&mut self, out: &mut Vec<Done>, wait: Wait) -> Result<usize> {
        self.0.reap(out, wait)
    }
    fn in_flight(&self) -> u32 {
        self.0.in_flight()
    }
    fn capacity(&self) -> u32 {
        self.0.capacity()
    }
    fn facts(&self) -> QueueFacts {
        self.0.facts()
    }
    fn event_fd(&mut self) -> Result<Option<BorrowedFd<'_>>> {
        self.0.event_fd()
    }
}

#[test]
fn a_request_that_the_inner_queue_refuses_leaves_no_trace() {
    let moody = || Arc::new(Moody(memory()));
    let counting = CountingDevice::with_trace(moody(), Arc::new(|_| {}));
    let latency = LatencyDevice::new(moody(), Some(Duration::from_nanos(1)), None);
    let fault = FaultDevice::new(moody());
    let handle = fault.handle();
    let third = handle.arm(Fault { action: FaultAction::Short(512), ..Fault::nth(FaultOn::Any, 3) });
    let mut data = take(1024, 1);
    for (name, device) in [("counting", &counting as &dyn Device), ("latency", &latency), ("fault", &fault)] {
        let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
        let mut results = Vec::new();
        for tag in 1..5 {
            // SAFETY: the buffer lives until the end of the test, after the queue delivered everything.
            unsafe {
                assert_eq!(queue.push(request(Op::Read, false, 0, &mut data, tag)), Err(Full), "{name}");
                assert_eq!(queue.push(request(Op::Read, false, 0, &mut data, tag)), Ok(()), "{name}");
            }
            let done = reap(&mut queue)[0];
            assert_eq!(done.tag, tag, "{name}");
            results.push(done.result);
        }
        assert_eq!(results, [1024, 1024, if name == "fault" { 512 } else { 1024 }, 1024], "{name}");
    }
    assert_eq!((counting.counts().reads, counting.counts().queued), (4, 4));
    assert_eq!((handle.requests(), handle.fired(), handle.disarm(third)), (4, 1, Some(4)));
}

/// A descriptor that misses the inner queue's completions would be worse than none.
#[test]
fn a_layer_over_a_queue_without_a_descriptor_has_none() {
    let late: Arc<dyn Device> = Arc::new(LateDevice::new(memory()));
    let device = LatencyDevice::new(late, Some(Duration::from_millis(1)), None);
    let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
    assert!(queue.event_fd().unwrap().is_none());
}
