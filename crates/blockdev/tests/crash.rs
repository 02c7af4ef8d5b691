//! The layer that records what a power cut could leave behind.

use crate::common;

use common::{reap_all, request};
use std::sync::Arc;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::{
    Buffer, BufferPool, Device, DeviceQueue, Op, Queue, QueueOptions, Wait, WriteDurability,
};
use uext4_testkit::device::{
    CrashDevice, CrashEvent, CrashHandle, CrashLog, CrashOptions, CrashOutcome, Fault, FaultDevice, FaultOn,
};

fn crash(options: CrashOptions) -> (CrashDevice, CrashHandle) {
    let inner = Arc::new(MemoryDevice::new(MemoryOptions::new(common::SIZE)).unwrap());
    let device = CrashDevice::new(inner, options).unwrap();
    let handle = device.handle();
    (device, handle)
}

fn take(fill: u8) -> Buffer {
    let mut buffer = BufferPool::new(4096).unwrap().take(512).unwrap();
    buffer.fill(fill);
    buffer
}

fn live(device: &dyn Device, pos: u64) -> u8 {
    let mut back = take(0);
    device.read_at(&mut back, pos).unwrap();
    back[0]
}

fn push(queue: &mut Queue, op: Op, pos: u64, buffer: &mut Buffer) {
    // SAFETY: the tests keep their buffers until the queue has delivered everything or was dropped.
    unsafe { queue.push(request(op, pos, 512, buffer.memory(0), 0)) }.unwrap();
}

/// The events in short: what was submitted and completed, and of writes the first byte.
fn story(log: &CrashLog) -> String {
    let word = |event: &CrashEvent| {
        let (sign, number) = match event {
            CrashEvent::Submitted(number) => ('+', *number),
            CrashEvent::Completed(number) => ('-', *number),
            CrashEvent::Marked(mark) => return format!("mark {}", mark.downcast_ref::<&str>().unwrap()),
        };
        let operation = &log.operations[number];
        let first = operation.data.as_ref().map_or(String::new(), |data| data[0].to_string());
        let failed = if operation.outcome == CrashOutcome::Failed { "!" } else { "" };
        let fua = if operation.fua { "u" } else { "" };
        format!("{sign}{}{first}{fua}{failed}", &operation.op.name()[..1])
    };
    log.events.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn it_is_a_device_like_any_other() {
    for volatile_cache in [true, false] {
        for fua in [true, false] {
            let (device, handle) = crash(CrashOptions { volatile_cache, fua, ..CrashOptions::default() });
            let capabilities = device.capabilities();
            assert_eq!((capabilities.volatile_cache, capabilities.fua), (volatile_cache, fua));
            common::conformance(&device);
            assert_eq!(device.describe().layers, ["crash"]);
            let log = handle.log().unwrap();
            assert!(log.operations.iter().all(|operation| operation.outcome != CrashOutcome::InFlight));
            assert!(log.base.len() as u64 == common::SIZE && log.base.iter().all(|&byte| byte == 0));
            // Applied in the order of their completion, the operations make the live bytes.
            handle.shuffle(Some(9));
            handle.reset().unwrap();
            common::conformance(&device);
            let log = handle.log().unwrap();
            let mut image = log.base.to_vec();
            for event in &log.events {
                let CrashEvent::Completed(number) = event else { continue };
                let operation = &log.operations[*number];
                let range = operation.pos as usize..(operation.pos + operation.length) as usize;
                match (operation.op, &operation.data) {
                    (Op::Write, Some(data)) => image[range].copy_from_slice(data),
                    // The memory engine makes zeros of it.
                    (Op::Discard, _) => image[range].fill(0),
                    _ => {}
                }
            }
            handle.reset().unwrap();
            assert!(*handle.log().unwrap().base == image[..]);
        }
    }
}

#[test]
fn the_log_tells_what_happened_in_order() {
    let (device, handle) = crash(CrashOptions::default());
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    device.write_at(&take(1), 0, WriteDurability::Cached).unwrap();
    handle.mark("one");
    let (mut two, mut three) = (take(2), take(3));
    push(&mut queue, Op::Write, 512, &mut two);
    push(&mut queue, Op::Flush, 0, &mut three);
    device.flush().unwrap();
    // What it takes is what is there when it completes.
    two.fill(22);
    reap_all(&mut queue);
    device.write_at(&three, 1024, WriteDurability::Fua).unwrap();
    device.discard(0, 512).unwrap();
    let log = handle.log().unwrap();
    assert_eq!(story(&log), "+w1 -w1 mark one +w22 +f +f -f -w22 -f +w3u -w3u +d -d");
    assert_eq!(live(&device, 512), 22);
    // A reset keeps what is in flight.
    push(&mut queue, Op::Write, 0, &mut two);
    handle.reset().unwrap();
    assert_eq!(handle.log().unwrap().base[512], 22);
    device.flush().unwrap();
    assert_eq!(story(&handle.log().unwrap()), "+w22 +f -f");
    reap_all(&mut queue);
    assert_eq!(story(&handle.log().unwrap()), "+w22 +f -f -w22");
}

#[test]
fn held_requests_complete_when_they_are_let_go() {
    let (device, handle) = crash(CrashOptions::default());
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let mut data = take(5);
    handle.hold();
    push(&mut queue, Op::Write, 0, &mut data);
    assert_eq!((handle.waiting(), handle.land()), (0, 0), "nobody has submitted it");
    queue.submit().unwrap();
    let mut out = Vec::with_capacity(4);
    assert_eq!((queue.reap(&mut out, Wait::No).unwrap(), live(&device, 0), handle.waiting()), (0, 0, 1));
    assert_eq!((handle.land(), live(&device, 0)), (1, 5));
    assert_eq!(queue.reap(&mut out, Wait::AtLeast(1)).unwrap(), 1);
    push(&mut queue, Op::Write, 512, &mut data);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| reap_all(&mut queue).len());
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(!waiter.is_finished());
        handle.release();
        assert_eq!(waiter.join().unwrap(), 1);
    });
    // Dropping a queue carries out what was submitted, and only that.
    push(&mut queue, Op::Write, 1024, &mut data);
    queue.submit().unwrap();
    push(&mut queue, Op::Write, 1536, &mut data);
    drop(queue);
    assert_eq!((live(&device, 1024), live(&device, 1536)), (5, 0));
    assert_eq!(story(&handle.log().unwrap()), "+w5 -w5 +w5 -w5 +w5 +w! -w5 -w!");
}

#[test]
fn shuffled_requests_complete_in_another_order_that_the_seed_decides() {
    let order = |seed| {
        let (device, handle) = crash(CrashOptions::default());
        handle.shuffle(seed);
        let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
        let mut buffers: Vec<_> = (0..8).map(take).collect();
        (0..).zip(&mut buffers).for_each(|(block, buffer)| push(&mut queue, Op::Write, block * 512, buffer));
        reap_all(&mut queue);
        let events = handle.log().unwrap().events;
        let completed = |event: &CrashEvent| match event {
            CrashEvent::Completed(number) => Some(*number),
            _ => None,
        };
        events.iter().filter_map(completed).collect::<Vec<_>>()
    };
    assert_eq!(order(None), (0..8).collect::<Vec<_>>());
    assert_eq!(order(Some(1)), order(Some(1)));
    assert!(order(Some(1)) != order(None) && order(Some(1)) != order(Some(2)));
}

#[test]
fn a_log_that_is_full_is_an_error_until_the_reset() {
    let (device, handle) = crash(CrashOptions { limit: 4096, ..CrashOptions::default() });
    let write = || device.write_at(&take(1), 0, WriteDurability::Cached).map_err(|error| error.errno());
    let written = (0..100).take_while(|_| write().is_ok()).count();
    assert!((2..8).contains(&written), "{written}");
    assert_eq!(write(), Err(libc::ENOBUFS));
    assert_eq!(device.flush().unwrap_err().errno(), libc::ENOBUFS);
    let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
    let mut data = take(9);
    push(&mut queue, Op::Write, 0, &mut data);
    assert_eq!(reap_all(&mut queue)[0].result, -libc::ENOBUFS);
    assert_eq!(handle.log().unwrap_err().errno(), libc::ENOBUFS);
    assert_eq!(live(&device, 0), 1);
    handle.reset().unwrap();
    write().unwrap();
    assert_eq!(story(&handle.log().unwrap()), "+w1 -w1");
    (0..100).for_each(|_| handle.mark("mark"));
    assert!(handle.log().is_err(), "marks count as well");
}

#[test]
fn what_fails_inside_is_recorded_and_what_is_refused_is_not() {
    let inner = Arc::new(MemoryDevice::new(MemoryOptions::new(common::SIZE)).unwrap());
    let fault = FaultDevice::new(inner);
    let faults = fault.handle();
    let device =
        CrashDevice::new(Arc::new(fault), CrashOptions { fua: false, ..CrashOptions::default() }).unwrap();
    let handle = device.handle();
    faults.arm(Fault::nth(FaultOn::Op(Op::Write), 1));
    assert!(device.write_at(&take(1), 0, WriteDurability::Cached).is_err());
    faults.arm(Fault::nth(FaultOn::Op(Op::Flush), 1));
    assert!(device.flush().is_err());
    assert!(device.write_at(&take(1), 0, WriteDurability::Fua).is_err());
    assert!(device.write_at(&take(1), common::SIZE, WriteDurability::Cached).is_err());
    assert!(device.discard(0, 1).is_err());
    let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
    let mut data = take(2);
    push(&mut queue, Op::Write, common::SIZE, &mut data);
    assert!(reap_all(&mut queue)[0].result < 0);
    assert_eq!(story(&handle.log().unwrap()), "+w1! -w1! +f! -f!");
}
