//! The engines on real polled and persistent-memory devices.

use std::sync::Arc;

use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{
    Ask, BufferPool, DaxKind, Device, DeviceQueue, Done, Op, OpenOptions, Priority, Queue, QueueOptions,
    Request, Wait, open,
};

use crate::Test;
use crate::trace::traced;

/// Tests of this room.
pub const TESTS: &[Test] = &[
    ("vm_nvme_capabilities", nvme_capabilities),
    ("vm_nvme_polled_round_trip", || polled_round_trip("/dev/nvme0n1")),
    ("vm_null_blk_polled_round_trip", || polled_round_trip("/dev/nullb0")),
    ("vm_queued_fua_is_one_request_without_flush", queued_fua),
    ("vm_polling_is_refused_where_it_does_not_exist", polling_refused),
    ("vm_pmem_is_map_sync_and_tmpfs_is_not", pmem_map_sync),
];

/// Opens a device for writing.
pub fn open_writable(spec: &str) -> Arc<dyn Device> {
    let parsed = DeviceSpec::parse(spec).unwrap_or_else(|e| panic!("{spec}: {e}"));
    let options = OpenOptions { write: true, force: false };
    open(&parsed, options).unwrap_or_else(|e| panic!("{spec}: {e}")).device
}

fn nvme_capabilities() {
    let capabilities = open_writable("/dev/nvme0n1").capabilities();
    assert!(capabilities.fua && capabilities.volatile_cache && capabilities.nowait, "{capabilities:?}");
    // Without a ring a durable write on a block device also flushes, so that engine must not claim FUA.
    assert!(!open_writable("sync:/dev/nvme0n1").capabilities().fua);
}

fn polled_queue(device: &dyn Device, pool: &BufferPool) -> Queue {
    let options = QueueOptions {
        iopoll: Ask::Require,
        register_file: Ask::Require,
        register_buffers: Ask::Require,
        pool: Some(pool.clone()),
        ..QueueOptions::depth(64)
    };
    let queue = device.queue(&options).expect("a polled queue");
    let facts = queue.facts();
    assert!(facts.polled && facts.registered_buffers && facts.fallbacks.is_empty(), "{facts:?}");
    queue
}

/// Sends the requests and waits for all of them.
fn complete(queue: &mut Queue, requests: &[Request]) -> Vec<Done> {
    for request in requests {
        // SAFETY: callers pass memory of pool buffers that they keep and do not touch before this function
        // returns, and it returns (or unwinds into the queue's drop, which waits) only after every completion
        // was reaped.
        unsafe { queue.push(*request) }.expect("room in the queue");
    }
    queue.submit().expect("submit");
    let mut done = Vec::with_capacity(requests.len());
    while done.len() < requests.len() {
        queue.reap(&mut done, Wait::AtLeast(1)).expect("reap");
    }
    done
}

fn request(op: Op, fua: bool, pos: u64, memory: uext4_blockdev::Memory) -> Request {
    Request { op, fua, nowait: false, priority: Priority::OF_THREAD, pos, length: 4096, memory, tag: pos }
}

/// 32 writes, every other one FUA where the device has it, read back through the same polled ring.
fn polled_round_trip(path: &str) {
    const COUNT: usize = 32;
    let device = open_writable(path);
    let has_fua = device.capabilities().fua;
    let pool = BufferPool::new(4 << 20).unwrap();
    let mut queue = polled_queue(&*device, &pool);
    let mut written = pool.take(COUNT * 4096).unwrap();
    for (n, byte) in written.iter_mut().enumerate() {
        *byte = (n / 4096) as u8 ^ n as u8;
    }
    let mut read = pool.take(COUNT * 4096).unwrap();
    let position = |n: usize| (1 << 20) + n as u64 * 8192;
    let writes: Vec<Request> = (0..COUNT)
        .map(|n| request(Op::Write, has_fua && n % 2 == 1, position(n), written.memory(n * 4096)))
        .collect();
    let reads: Vec<Request> =
        (0..COUNT).map(|n| request(Op::Read, false, position(n), read.memory(n * 4096))).collect();
    for done in complete(&mut queue, &writes).into_iter().chain(complete(&mut queue, &reads)) {
        assert_eq!(done.result, 4096, "{done:?}");
    }
    drop(queue);
    assert!(written[..] == read[..], "read back something else");
}

fn queued_fua() {
    let device = open_writable("/dev/nvme0n1");
    let pool = BufferPool::new(1 << 16).unwrap();
    let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
    let mut buf = pool.take(4096).unwrap();
    let write = request(Op::Write, true, 40_960, buf.memory(0));
    let issued = traced(|| {
        assert_eq!(complete(&mut queue, &[write])[0].result, 4096);
    });
    assert_eq!(issued.len(), 1, "{issued:?}");
    assert!(issued[0].is_fua() && !issued[0].is_flush(), "{issued:?}");
}

fn polling_refused() {
    std::fs::write("/sys/block/zram0/disksize", "16M").expect("zram size");
    let device = open_writable("/dev/zram0");
    let options = QueueOptions { iopoll: Ask::Require, ..QueueOptions::depth(8) };
    let mut queue = match device.queue(&options) {
        Err(_) => return,
        Ok(queue) => queue,
    };
    // The kernel may set the ring up and refuse each request.
    let pool = BufferPool::new(1 << 16).unwrap();
    let mut buf = pool.take(4096).unwrap();
    let done = complete(&mut queue, &[request(Op::Read, false, 0, buf.memory(0))]);
    assert!(done[0].result < 0, "a polled read succeeded on a device without poll queues: {done:?}");
}

fn pmem_map_sync() {
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "/dev/pmem0"]);
    run("mount", &["-t", "ext4", "-o", "dax=always", "/dev/pmem0", "/mnt"]);
    let image = vec![7; 8 << 20];
    std::fs::write("/mnt/image", &image).unwrap();
    std::fs::write("/dev/shm/image", &image).unwrap();
    let kind = |path: &str| open_writable(&format!("dax:{path}")).capabilities().dax;
    let (pmem, tmpfs) = (kind("/mnt/image"), kind("/dev/shm/image"));
    run("umount", &["/mnt"]);
    std::fs::remove_file("/dev/shm/image").unwrap();
    assert_eq!((pmem, tmpfs), (Some(DaxKind::MapSync), Some(DaxKind::Msync)));
}

/// Runs a program of the guest: the distribution's if there is one, else busybox's.
fn run(program: &str, arguments: &[&str]) {
    let path = [format!("/sbin/{program}"), format!("/bin/{program}")]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
        .unwrap_or_else(|| panic!("no program {program}"));
    let output = std::process::Command::new(path).args(arguments).output().expect("start");
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}
