//! NBD: connections that end.

use crate::nbd::{is_readable, open, writable};
use std::time::{Duration, Instant};
use uext4_blockdev::{
    BufferPool, Device, DeviceQueue, Error, Memory, Op, QueueOptions, Wait, WriteDurability,
};
use uext4_testkit::conformance::{reap_all, request};
use uext4_testkit::{CuttingRelay, NbdServer, Need, Scratch, needs};

/// Nothing works any more, and says why.
fn is_lost(device: &dyn Device) {
    let results = [
        device.read_at(&mut [0; 512], 0),
        device.write_at(&[0; 512], 0, WriteDurability::Cached),
        device.flush(),
        device.settle(),
        device.discard(0, 512),
    ];
    for result in results {
        let error = result.unwrap_err();
        assert_eq!(error.errno(), libc::EIO, "{error}");
        assert!(matches!(error, Error::Remote { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("the connection is lost: ") && !text.contains("invalid state"), "{text}");
    }
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let mut buffer = BufferPool::new(1 << 20).unwrap().take(4096).unwrap();
    for (tag, op) in [Op::Read, Op::Write, Op::Flush, Op::Discard].into_iter().enumerate() {
        // SAFETY: the buffer outlives the completions.
        unsafe { queue.push(request(op, 0, 4096, buffer.memory(0), tag as u64)) }.unwrap();
    }
    assert!(reap_all(&mut queue).iter().all(|done| done.result == -libc::EIO));
}

#[test]
fn a_server_that_dies_fails_what_is_in_flight_and_all_after() {
    needs!(Need::Tool("nbdkit"));
    for mode in ["disable", "emulate"] {
        let connections = format!("multi-conn-mode={mode}");
        let mut server = NbdServer::nbdkit(&[
            "--filter=multi-conn",
            "--filter=delay",
            "memory",
            "1M",
            "rdelay=60",
            &connections,
        ]);
        let device = writable(&server);
        device.write_at(&[1; 4096], 0, WriteDurability::Cached).unwrap();
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut buffers: Vec<_> = (0..8).map(|_| pool.take(4096).unwrap()).collect();
        // A second connection is made only after the first has answered, which this server does in a minute: the queue
        // shares the first one, which nobody else uses now.
        let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
        for (tag, buffer) in buffers.iter_mut().enumerate() {
            // SAFETY: the buffers outlive the completions.
            unsafe { queue.push(request(Op::Read, 0, 4096, buffer.memory(0), tag as u64)) }.unwrap();
        }
        let mut out = Vec::with_capacity(8);
        assert_eq!(queue.reap(&mut out, Wait::Timeout(Duration::from_millis(100))).unwrap(), 0);
        let fd = queue.event_fd().unwrap().unwrap().try_clone_to_owned().unwrap();
        let begin = Instant::now();
        server.kill();
        assert!(is_readable(&fd, Duration::from_secs(20)));
        let done = reap_all(&mut queue);
        assert!(!is_readable(&fd, Duration::ZERO), "a user that waits would find nothing, again and again");
        assert_eq!(done.len(), 8);
        assert!(done.iter().all(|done| done.result == -libc::EIO), "{done:?}");
        assert!(begin.elapsed() < Duration::from_secs(20));
        is_lost(&*device);
        // Another server in its place is not this one.
        server.restart();
        is_lost(&*device);
        drop(queue);
        is_lost(&*device);
        writable(&server).write_at(&[1; 4096], 0, WriteDurability::Cached).unwrap();
    }
}

/// The first connection is idle when the server is replaced: a further one would find the new server, which has lost
/// what the old one had not written yet.
#[test]
fn a_server_that_was_replaced_is_not_taken_for_the_old_one() {
    needs!(Need::Tool("nbdkit"));
    let mut server = NbdServer::nbdkit(&["memory", "1M"]);
    let device = writable(&server);
    let mut held = device.queue(&QueueOptions::depth(1)).unwrap();
    let mut buffer = BufferPool::new(1 << 20).unwrap().take(4096).unwrap();
    buffer.fill(9);
    // SAFETY: the buffer outlives the completion.
    unsafe { held.push(request(Op::Write, 0, 4096, buffer.memory(0), 1)) }.unwrap();
    assert_eq!(reap_all(&mut held)[0].result, 4096);
    server.restart();
    // The queue keeps its connection for itself, so each of these would be the first use of another one.
    let flushed = device.flush();
    assert_eq!(flushed.unwrap_err().errno(), libc::EIO);
    is_lost(&*device);
    // SAFETY: a flush has no memory.
    unsafe { held.push(request(Op::Flush, 0, 0, Memory::NONE, 2)) }.unwrap();
    assert_eq!(reap_all(&mut held)[0].result, -libc::EIO);
}

/// One of several connections ends, and the server has not: what is lost is lost for all of them.
#[test]
fn the_end_of_one_connection_is_the_end_of_all() {
    needs!(Need::Tool("nbdkit"));
    let server = NbdServer::nbdkit(&["memory", "1M"]);
    let relay = CuttingRelay::new(server.socket(), 50_000);
    let device = open(&format!("{}&connections=3", relay.device()), true).unwrap();
    let mut first = device.queue(&QueueOptions::depth(1)).unwrap();
    let mut second = device.queue(&QueueOptions::depth(1)).unwrap();
    let mut buffer = BufferPool::new(1 << 20).unwrap().take(4096).unwrap();
    let mut read = |queue: &mut uext4_blockdev::Queue| {
        // SAFETY: the buffer outlives the completion.
        unsafe { queue.push(request(Op::Read, 0, 4096, buffer.memory(0), 1)) }.unwrap();
        reap_all(queue)[0].result
    };
    assert_eq!(read(&mut second), 4096);
    let until = (0..20).find(|_| read(&mut first) != 4096);
    assert!(until.is_some_and(|round| round > 5), "{until:?}");
    assert_eq!(read(&mut second), -libc::EIO);
    is_lost(&*device);
}

/// A server that another client has resized, or that was given another disk.
#[test]
fn a_further_connection_must_find_the_same_export() {
    needs!(Need::Tool("nbdkit"));
    let scratch = Scratch::new(1 << 20);
    let size = scratch.file("size");
    std::fs::write(&size, "1M").unwrap();
    let get_size = format!("get_size=cat {}", size.display());
    let several = "can_multi_conn=exit 0";
    let server = NbdServer::nbdkit(&["eval", &get_size, "pread=head -c $3 /dev/zero", several]);
    let device = open(&server.device(""), false).unwrap();
    let _first = device.queue(&QueueOptions::depth(1)).unwrap();
    std::fs::write(&size, "2M").unwrap();
    let second = device.queue(&QueueOptions::depth(1)).unwrap();
    let fallbacks = second.facts().fallbacks;
    assert!(fallbacks.iter().any(|fallback| fallback.contains("differently than before")), "{fallbacks:?}");
    device.read_at(&mut [0; 512], 0).unwrap();
}

/// Where a flush has nothing to send, it still does not promise what is lost.
#[test]
fn a_flush_that_sends_nothing_fails_too() {
    needs!(Need::Tool("nbdkit"));
    let write = "pwrite=cat > /dev/null";
    let mut server = NbdServer::nbdkit(&["eval", "get_size=echo 1M", "pread=head -c $3 /dev/zero", write]);
    let device = writable(&server);
    let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
    device.flush().unwrap();
    server.end();
    assert_eq!(device.write_at(&[0; 512], 0, WriteDurability::Cached).unwrap_err().errno(), libc::EIO);
    assert_eq!(device.flush().unwrap_err().errno(), libc::EIO);
    // SAFETY: a flush has no memory.
    unsafe { queue.push(request(Op::Flush, 0, 0, Memory::NONE, 1)) }.unwrap();
    assert_eq!(reap_all(&mut queue)[0].result, -libc::EIO);
}

/// Cuts at many places: in the greeting, between replies, and in their middle.
#[test]
fn a_connection_that_is_cut_anywhere_ends_in_errors() {
    needs!(Need::Tool("nbdkit"));
    let mut server = NbdServer::nbdkit(&["memory", "1M"]);
    let (mut refused, mut cut) = (0, 0);
    for bytes in (0..400).step_by(37).chain((1000..40_000).step_by(1777)) {
        // nbdkit 1.32 may end when a client goes in the middle of a reply.
        server.restart();
        let relay = CuttingRelay::new(server.socket(), bytes);
        let device = match open(&format!("{}&connections=1", relay.device()), true) {
            Ok(device) => device,
            Err(error) => {
                assert!(matches!(error, Error::Remote { action: "connect", .. }), "{error}");
                assert!(bytes < 400, "the server greets in less than {bytes} bytes");
                refused += 1;
                continue;
            }
        };
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut buffers: Vec<_> = (0..16).map(|_| pool.take(4096).unwrap()).collect();
        let mut queue = device.queue(&QueueOptions::depth(16)).unwrap();
        for (tag, buffer) in buffers.iter_mut().enumerate() {
            // SAFETY: the buffers outlive the completions.
            unsafe { queue.push(request(Op::Read, 0, 4096, buffer.memory(0), tag as u64)) }.unwrap();
        }
        let done = reap_all(&mut queue);
        assert_eq!(done.len(), 16);
        let failed = done.iter().filter(|done| done.result == -libc::EIO).count();
        let whole = done.iter().filter(|done| done.result == 4096).count();
        assert_eq!(failed + whole, 16, "{done:?}");
        assert!(failed > 0, "16 replies have more than {bytes} bytes");
        cut += 1;
        drop(queue);
        is_lost(&*device);
    }
    assert!(refused > 0 && cut >= 20, "{refused} {cut}");
}

/// Neither libnbd nor we look at a request that has ended: libnbd 1.14 would, if it forgot one by itself whose sending
/// ends the connection.
#[test]
fn memory_of_ended_requests_is_not_touched() {
    needs!(Need::Tool("nbdkit"), Need::Tool("valgrind"));
    let test = "nbd_lost::a_connection_that_is_cut_anywhere_ends_in_errors";
    let output = std::process::Command::new("valgrind")
        .args(["--quiet", "--error-exitcode=9"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("test result: ok. 1 passed"), "{said}");
}

/// After the drop nothing writes to the memory, and nobody waits for a server that is gone.
#[test]
fn a_queue_is_dropped_although_the_server_died() {
    needs!(Need::Tool("nbdkit"));
    let mut server = NbdServer::nbdkit(&["--filter=delay", "memory", "1M", "rdelay=60"]);
    let device = writable(&server);
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let mut buffer = BufferPool::new(1 << 20).unwrap().take(4096).unwrap();
    // SAFETY: the buffer outlives the queue.
    unsafe { queue.push(request(Op::Read, 0, 4096, buffer.memory(0), 1)) }.unwrap();
    queue.submit().unwrap();
    server.kill();
    drop(queue);
    buffer.fill(1);
    is_lost(&*device);
}
