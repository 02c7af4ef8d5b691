//! Polled queues, FUA and NOWAIT on NVMe, which only the virtual machine has.
//!
//! The device is named by `UEXT4_VM_NVME` and **overwritten**; without it these tests are skipped.

use crate::common;

use common::{conformance, pattern, pool, reap_all, request};
use std::sync::Arc;
use std::time::Duration;
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{
    Ask, BufferPool, Device, DeviceQueue, Done, Memory, Op, OpenOptions, QueueOptions, Request, Wait,
    WriteDurability, open,
};

/// The device's path; `None` skips the test and says so.
fn node(test: &str) -> Option<String> {
    let path = std::env::var("UEXT4_VM_NVME").ok();
    if path.is_none() {
        println!("SKIP {test}: needs the virtual machine (UEXT4_VM_NVME)");
    }
    path
}

fn writable(text: &str) -> Arc<dyn Device> {
    let options = OpenOptions { write: true, force: false };
    open(&DeviceSpec::parse(text).unwrap(), options).unwrap().device
}

fn polled_options(pool: &BufferPool) -> QueueOptions {
    QueueOptions {
        iopoll: Ask::Require,
        register_file: Ask::Require,
        register_buffers: Ask::Require,
        pool: Some(pool.clone()),
        ..QueueOptions::depth(16)
    }
}

#[test]
fn vm_nvme_conforms_and_has_fua() {
    let Some(path) = node("vm_nvme_conforms_and_has_fua") else { return };
    let device = writable(&path);
    let capabilities = device.capabilities();
    assert!(capabilities.volatile_cache && capabilities.fua && capabilities.nowait, "{capabilities:?}");
    conformance(&*device);
    common::foreign_thread_drops(&*device);
    drop(device);
    let device = writable(&format!("sync:{path}"));
    assert!(!device.capabilities().fua);
    conformance(&*device);
}

#[test]
fn vm_nvme_polled_requests_of_every_kind() {
    let Some(path) = node("vm_nvme_polled_requests_of_every_kind") else { return };
    let device = writable(&path);
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut queue = device.queue(&polled_options(&pool)).unwrap();
    let facts = queue.facts();
    assert!(facts.polled && facts.owner_driven && facts.registered_buffers, "{facts:?}");
    assert!(queue.event_fd().unwrap().is_none());
    let mut buffers: Vec<_> = (0..12).map(|_| pool.take(4096).unwrap()).collect();
    for (index, buf) in buffers.iter_mut().enumerate() {
        pattern(index as u64, buf);
        let fua = index % 2 == 0;
        let write =
            Request { fua, ..request(Op::Write, index as u64 * 4096, 4096, buf.memory(0), index as u64) };
        // SAFETY: the buffers are not touched before the completions are reaped.
        unsafe { queue.push(write) }.unwrap();
    }
    // Flushes and discards share the queue with polled requests in flight.
    // SAFETY: neither has memory.
    unsafe { queue.push(request(Op::Flush, 0, 0, Memory::NONE, 100)) }.unwrap();
    // SAFETY: as above.
    unsafe { queue.push(request(Op::Discard, 1 << 20, 4096, Memory::NONE, 101)) }.unwrap();
    let done = reap_all(&mut queue);
    assert_eq!(done.len(), 14);
    assert!(done[..12].iter().all(|done| done.result == 4096), "{done:?}");
    assert_eq!(done[12..], [Done { tag: 100, result: 0 }, Done { tag: 101, result: 0 }]);
    for (index, buf) in buffers.iter_mut().enumerate() {
        buf.fill(0);
        let read = request(Op::Read, index as u64 * 4096, 4096, buf.memory(0), index as u64);
        // SAFETY: the buffers are not touched before the completions are reaped.
        unsafe { queue.push(read) }.unwrap();
    }
    assert_eq!(reap_all(&mut queue).len(), 12);
    let mut wanted = vec![0; 4096];
    for (index, buf) in buffers.iter().enumerate() {
        pattern(index as u64, &mut wanted);
        assert!(wanted[..] == buf[..], "{index}");
    }
}

#[test]
fn vm_nvme_polled_waits_end() {
    let Some(path) = node("vm_nvme_polled_waits_end") else { return };
    let device = writable(&path);
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut queue = device.queue(&polled_options(&pool)).unwrap();
    let mut buf = pool.take(4096).unwrap();
    let mut out = Vec::with_capacity(4);
    for wait in [Wait::AtLeast(1), Wait::Timeout(Duration::from_secs(60)), Wait::No] {
        // SAFETY: the buffer is not touched before the completion is reaped.
        unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), 1)) }.unwrap();
        while queue.in_flight() > 0 {
            queue.reap(&mut out, wait).unwrap();
        }
        // SAFETY: a flush has no memory.
        unsafe { queue.push(request(Op::Flush, 0, 0, Memory::NONE, 2)) }.unwrap();
        while queue.in_flight() > 0 {
            queue.reap(&mut out, wait).unwrap();
        }
        assert_eq!(out, [Done { tag: 1, result: 4096 }, Done { tag: 2, result: 0 }], "{wait:?}");
        out.clear();
    }
    // A queue that is dropped in flight waits for both of its rings.
    for _ in 0..8 {
        // SAFETY: the buffer outlives the queue, and dropping the queue waits.
        unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), 3)) }.unwrap();
    }
    // SAFETY: a flush has no memory.
    unsafe { queue.push(request(Op::Flush, 0, 0, Memory::NONE, 4)) }.unwrap();
    queue.submit().unwrap();
    drop(queue);
    buf.fill(0xa5);
    std::thread::sleep(Duration::from_millis(20));
    assert!(buf.iter().all(|&byte| byte == 0xa5));
}

#[test]
fn vm_nvme_polled_partition_and_thread() {
    let Some(path) = node("vm_nvme_polled_partition_and_thread") else { return };
    let device = writable(&format!("{path}?offset=1M"));
    let pool = BufferPool::new(1 << 20).unwrap();
    let options = QueueOptions { sqpoll: Ask::Try, ..polled_options(&pool) };
    let mut queue = device.queue(&options).unwrap();
    assert!(queue.facts().polled && queue.facts().sqpoll, "{:?}", queue.facts());
    let mut buf = pool.take(4096).unwrap();
    pattern(77, &mut buf);
    device.write_at(&buf, 0, WriteDurability::Fua).unwrap();
    buf.fill(0);
    // SAFETY: the buffer is not touched before the completion is reaped.
    unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), 1)) }.unwrap();
    assert_eq!(reap_all(&mut queue), [Done { tag: 1, result: 4096 }]);
    let mut wanted = self::pool().take(4096).unwrap();
    pattern(77, &mut wanted);
    assert_eq!(&buf[..], &wanted[..]);
}
