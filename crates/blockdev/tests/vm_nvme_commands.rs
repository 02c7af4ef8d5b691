//! `nvme:`, commands below the block layer, on NVMe namespaces, which only the virtual machine has.
//!
//! The devices are named by `UEXT4_VM_NVME` (blocks of 512 bytes) and `UEXT4_VM_NVME_4K` (4096; reads and writes of the
//! bytes at 48 MiB fail) and **overwritten**; without them these tests are skipped.

use crate::common;

use common::{conformance, pattern, pool, reap_all, request};
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{
    Ask, BufferPool, Device, DeviceQueue, Done, Driving, Error, Memory, Op, OpenOptions, QueueOptions,
    Request, WriteDurability, open,
};

/// Where the emulated device fails, bytes.
const BAD: u64 = 48 << 20;

/// The device's path; `None` skips the test and says so.
fn node(variable: &str, test: &str) -> Option<String> {
    let path = std::env::var(variable).ok();
    if path.is_none() {
        println!("SKIP {test}: needs the virtual machine ({variable})");
    }
    path
}

fn try_open(text: &str) -> Result<Arc<dyn Device>, Error> {
    let options = OpenOptions { write: true, force: false };
    open(&DeviceSpec::parse(text).unwrap(), options).map(|opened| opened.device)
}

fn commands(path: &str) -> Arc<dyn Device> {
    try_open(&format!("nvme:{path}")).unwrap()
}

/// Commands that the driver got while `work` ran, as it tells them.
fn traced(work: impl FnOnce()) -> Vec<String> {
    let tracing = "/sys/kernel/tracing";
    let set = |file: &str, value: &str| fs::write(format!("{tracing}/{file}"), value).unwrap();
    set("trace", "");
    set("events/nvme/nvme_setup_cmd/enable", "1");
    // Other tests leave it off.
    set("tracing_on", "1");
    work();
    set("events/nvme/nvme_setup_cmd/enable", "0");
    let text = fs::read_to_string(format!("{tracing}/trace")).unwrap();
    // `… nvme_setup_cmd: nvme0: disk=…, qid=1, cmdid=…, nsid=1, flags=…, meta=…, cmd=(nvme_cmd_write slba=80, …)`
    let told = |line: &str| Some(line.split_once("nvme_setup_cmd: ")?.1.to_owned());
    text.lines().filter_map(told).filter(|line| !line.contains("qid=0")).collect()
}

/// The command of a line, and its namespace.
fn is(line: &str, namespace: u32, command: &str) -> bool {
    line.contains(&format!("nsid={namespace},")) && line.contains(command)
}

fn on_both(test: &str, check: impl Fn(&str, u32, u32)) {
    if let Some(path) = node("UEXT4_VM_NVME", test) {
        check(&path, 1, 512);
    }
    if let Some(path) = node("UEXT4_VM_NVME_4K", test) {
        check(&path, 2, 4096);
    }
}

#[test]
fn vm_nvme_commands_conform() {
    on_both("vm_nvme_commands_conform", |path, _, block| {
        let device = commands(path);
        let capabilities = device.capabilities();
        assert!(capabilities.volatile_cache && capabilities.fua && capabilities.discard, "{capabilities:?}");
        let description = device.describe();
        assert_eq!((description.engine, description.driving), ("nvme", Driving::Ring));
        assert_eq!(device.geometry().logical_block, block);
        conformance(&*device);
        common::foreign_thread_drops(&*device);
    });
}

/// A ring holds the claim of the block device, so that after the death of a process nobody opens it before its commands
/// are over: they go to another node.
#[test]
fn vm_nvme_rings_hold_the_claim() {
    let Some(path) = node("UEXT4_VM_NVME", "vm_nvme_rings_hold_the_claim") else { return };
    let device = commands(&path);
    let _queue = device.queue(&QueueOptions::depth(1)).unwrap();
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let rings = descriptors.filter(|entry| {
        fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == "anon_inode:[io_uring]")
    });
    let infos = rings.filter_map(|ring| {
        fs::read_to_string(format!("/proc/self/fdinfo/{}", ring.file_name().to_str()?)).ok()
    });
    let infos: Vec<_> = infos.collect();
    let name = path.rsplit('/').next().unwrap();
    let held = |info: &String| info.lines().any(|line| line.trim_end().ends_with(name));
    assert!(infos.iter().any(held), "{name} is in no ring's table: {infos:#?}");
}

/// Lengths around the blocks, pages and commands, synchronous and queued, in one piece and in several.
#[test]
fn vm_nvme_commands_of_every_length() {
    on_both("vm_nvme_commands_of_every_length", |path, _, block| {
        let device = commands(path);
        let block = block as usize;
        let pool = BufferPool::new(8 << 20).unwrap();
        let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
        for (round, blocks) in [1, 2, 7, 8, 9, 31, 64, 127, 128, 129, 1000].into_iter().enumerate() {
            let length = blocks * block;
            let pos = ((round + 1) * 7 * block) as u64;
            let (mut buf, mut back) =
                (pool.take(length + block).unwrap(), pool.take(length + block).unwrap());
            for inside in [0, block] {
                pattern(round as u64 * 3 + inside as u64, &mut buf);
                let write = request(Op::Write, pos, length as u32, buf.memory(inside), 1);
                // SAFETY: the buffer is not touched until `reap_all` has seen the completion.
                unsafe { queue.push(write) }.unwrap();
                assert_eq!(reap_all(&mut queue), [Done { tag: 1, result: length as i32 }]);
                back.fill(0);
                device.read_at(&mut back[inside..][..length], pos).unwrap();
                assert!(buf[inside..][..length] == back[inside..][..length], "{blocks} blocks, queued write");
                pattern(round as u64 * 5 + 1, &mut buf);
                device.write_at(&buf[inside..][..length], pos, WriteDurability::Cached).unwrap();
                back.fill(0);
                let read = request(Op::Read, pos, length as u32, back.memory(inside), 2);
                // SAFETY: as above.
                unsafe { queue.push(read) }.unwrap();
                assert_eq!(reap_all(&mut queue), [Done { tag: 2, result: length as i32 }]);
                assert!(buf[inside..][..length] == back[inside..][..length], "{blocks} blocks, queued read");
            }
        }
    });
}

#[test]
fn vm_nvme_commands_are_the_ones_meant() {
    on_both("vm_nvme_commands_are_the_ones_meant", |path, namespace, block| {
        let device = commands(path);
        let mut buf = pool().take(8192).unwrap();
        let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
        let (slba, len) = (40_960 / block, 8192 / block - 1);
        let lines = traced(|| {
            device.write_at(&buf, 40_960, WriteDurability::Fua).unwrap();
            device.write_at(&buf, 40_960, WriteDurability::Cached).unwrap();
            device.flush().unwrap();
            device.discard(1 << 20, 8192).unwrap();
            device.read_at(&mut buf, 40_960).unwrap();
            let write = Request { fua: true, ..request(Op::Write, 40_960, 8192, buf.memory(0), 1) };
            let others = [
                request(Op::Write, 40_960, 8192, buf.memory(0), 2),
                request(Op::Flush, 0, 0, Memory::NONE, 3),
                request(Op::Discard, 1 << 20, 8192, Memory::NONE, 4),
                request(Op::Read, 40_960, 8192, buf.memory(0), 5),
            ];
            for request in [write].into_iter().chain(others) {
                // SAFETY: the buffer is not touched until `reap_all` has seen the completion.
                unsafe { queue.push(request) }.unwrap();
                assert!(reap_all(&mut queue)[0].result >= 0);
            }
        });
        let at = format!("slba={slba}, len={len}, ");
        let wanted = [
            format!("nvme_cmd_write {at}ctrl=0x4000"),
            format!("nvme_cmd_write {at}ctrl=0x0"),
            "nvme_cmd_flush".into(),
            "nvme_cmd_dsm nr=0, attributes=4".into(),
            format!("nvme_cmd_read {at}ctrl=0x0"),
        ];
        assert_eq!(lines.len(), 2 * wanted.len(), "{lines:#?}");
        for (line, command) in lines.iter().zip(wanted.iter().chain(&wanted)) {
            assert!(is(line, namespace, command), "{command}: {line}");
        }
    });
}

/// Contents show that the right blocks were deallocated: the emulated device reads zeros there.
#[test]
fn vm_nvme_commands_discard_the_blocks_meant() {
    on_both("vm_nvme_commands_discard_the_blocks_meant", |path, _, _| {
        let device = commands(path);
        let mut buf = pool().take(1 << 20).unwrap();
        for queued in [false, true] {
            buf.fill(0xd1);
            device.write_at(&buf, 2 << 20, WriteDurability::Fua).unwrap();
            let (pos, length) = ((2 << 20) + (128 << 10), 256 << 10);
            if queued {
                let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
                // SAFETY: a discard has no memory.
                unsafe { queue.push(request(Op::Discard, pos, length, Memory::NONE, 1)) }.unwrap();
                assert_eq!(reap_all(&mut queue), [Done { tag: 1, result: 0 }]);
            } else {
                device.discard(pos, u64::from(length)).unwrap();
            }
            device.read_at(&mut buf, 2 << 20).unwrap();
            let (from, to) = (128 << 10, (128 << 10) + length as usize);
            assert!(buf[from..to].iter().all(|&byte| byte == 0), "discarded");
            assert!(buf[..from].iter().chain(&buf[to..]).all(|&byte| byte == 0xd1), "around it");
        }
    });
}

#[test]
fn vm_nvme_commands_deep_queues_side_by_side() {
    on_both("vm_nvme_commands_deep_queues_side_by_side", |path, _, _| {
        const DEPTH: usize = 128;
        let device = commands(path);
        std::thread::scope(|scope| {
            for thread in 0..2usize {
                let device = &device;
                scope.spawn(move || {
                    let pool = BufferPool::new(2 << 20).unwrap();
                    let options =
                        QueueOptions { pool: Some(pool.clone()), ..QueueOptions::depth(DEPTH as u32) };
                    let mut queue = device.queue(&options).unwrap();
                    let mut buffers: Vec<_> = (0..DEPTH).map(|_| pool.take(4096).unwrap()).collect();
                    let mut wanted = vec![0; 4096];
                    for (op, round) in [(Op::Write, 0), (Op::Read, 0), (Op::Write, 1), (Op::Read, 1)] {
                        for (index, buf) in buffers.iter_mut().enumerate() {
                            let number = thread * DEPTH + index;
                            pattern((number + round) as u64, buf);
                            if op == Op::Read {
                                buf.fill(0);
                            }
                            let memory = buf.memory(0);
                            let request = request(op, number as u64 * 4096, 4096, memory, index as u64);
                            // SAFETY: the buffers are not touched until `reap_all` has seen the completions.
                            unsafe { queue.push(request) }.unwrap();
                        }
                        let done = reap_all(&mut queue);
                        assert!(done.len() == DEPTH && done.iter().all(|done| done.result == 4096));
                        for (index, buf) in buffers.iter().enumerate() {
                            pattern((thread * DEPTH + index + round) as u64, &mut wanted);
                            assert!(wanted[..] == buf[..], "thread {thread}, request {index}");
                        }
                    }
                });
            }
        });
    });
}

/// Registered memory where the kernel takes parts of it, told either way.
#[test]
fn vm_nvme_commands_registered_buffers_or_the_reason() {
    let Some(path) = node("UEXT4_VM_NVME", "vm_nvme_commands_registered_buffers_or_the_reason") else {
        return;
    };
    let device = commands(&path);
    let pool = BufferPool::new(1 << 20).unwrap();
    let with = |ask| QueueOptions {
        register_buffers: ask,
        register_file: Ask::Require,
        pool: Some(pool.clone()),
        ..QueueOptions::depth(8)
    };
    let facts = device.queue(&with(Ask::Try)).unwrap().facts();
    println!("{facts:?}");
    assert!(facts.registered_file);
    match device.queue(&with(Ask::Require)) {
        Ok(mut queue) => {
            assert!(
                queue.facts().registered_buffers && facts.registered_buffers && facts.fallbacks.is_empty()
            );
            let mut buffers: Vec<_> = (0..8).map(|_| pool.take(64 << 10).unwrap()).collect();
            for op in [Op::Write, Op::Read] {
                for (index, buf) in buffers.iter_mut().enumerate() {
                    buf.fill(if op == Op::Write { index as u8 + 1 } else { 0 });
                    let memory = buf.memory(0);
                    assert!(memory.registered.is_some());
                    let request = request(op, (index as u64) << 16, 64 << 10, memory, index as u64);
                    // SAFETY: the buffers are not touched until `reap_all` has seen the completions.
                    unsafe { queue.push(request) }.unwrap();
                }
                assert!(reap_all(&mut queue).iter().all(|done| done.result == 64 << 10));
            }
            for (index, buf) in buffers.iter().enumerate() {
                assert!(buf.iter().all(|&byte| byte == index as u8 + 1));
            }
        }
        Err(error) => {
            // Linux 6.1: whole pages, and nothing that is not all of its entry.
            assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
            assert!(facts.registered_buffers && facts.fallbacks.len() == 1, "{facts:?}");
            whole_pages_among_others(&mut device.queue(&with(Ask::Try)).unwrap(), &pool);
        }
    }
}

/// Pages, parts of pages, and more than pages in one queue: none is refused, whichever goes as plain memory.
fn whole_pages_among_others(queue: &mut uext4_blockdev::Queue, pool: &BufferPool) {
    const SHAPES: [(usize, usize); 8] = [
        (0, 4096),
        (512, 4096),
        (0, 512),
        (4096, 4096),
        (0, 8192),
        (3584, 512),
        (4096, 64 << 10),
        (2048, 2048),
    ];
    let mut buffers: Vec<_> = SHAPES.iter().map(|_| pool.take(128 << 10).unwrap()).collect();
    for op in [Op::Write, Op::Read] {
        for (index, (buf, &(from, length))) in buffers.iter_mut().zip(&SHAPES).enumerate() {
            buf.fill(if op == Op::Write { index as u8 + 1 } else { 0 });
            let memory = buf.memory(from);
            assert!(memory.registered.is_some());
            let request = request(op, (index as u64) << 17, length as u32, memory, index as u64);
            // SAFETY: the buffers are not touched until `reap_all` has seen the completions.
            unsafe { queue.push(request) }.unwrap();
        }
        for done in reap_all(queue) {
            assert_eq!(done.result, SHAPES[done.tag as usize].1 as i32, "{:?}", SHAPES[done.tag as usize]);
        }
    }
    for (index, (buf, &(from, length))) in buffers.iter().zip(&SHAPES).enumerate() {
        let inside = from..from + length;
        let right = |(at, &byte)| byte == if inside.contains(&at) { index as u8 + 1 } else { 0 };
        assert!(buf.iter().enumerate().all(right), "{from}, {length}");
    }
}

#[test]
fn vm_nvme_commands_polled_or_the_reason() {
    let Some(path) = node("UEXT4_VM_NVME", "vm_nvme_commands_polled_or_the_reason") else { return };
    let device = commands(&path);
    let pool = BufferPool::new(1 << 20).unwrap();
    let with = |iopoll| QueueOptions { iopoll, pool: Some(pool.clone()), ..QueueOptions::depth(32) };
    let facts = device.queue(&with(Ask::Try)).unwrap().facts();
    println!("{facts:?}");
    match device.queue(&with(Ask::Require)) {
        Ok(mut queue) => {
            assert!(queue.facts().polled && facts.polled && queue.event_fd().unwrap().is_none());
            let mut buffers: Vec<_> = (0..31).map(|_| pool.take(4096).unwrap()).collect();
            for op in [Op::Write, Op::Read] {
                for (index, buf) in buffers.iter_mut().enumerate() {
                    buf.fill(if op == Op::Write { index as u8 + 1 } else { 0 });
                    let request = request(op, index as u64 * 4096, 4096, buf.memory(0), index as u64);
                    // SAFETY: the buffers are not touched until `reap_all` has seen the completions.
                    unsafe { queue.push(request) }.unwrap();
                }
                // SAFETY: a flush has no memory.
                unsafe { queue.push(request(Op::Flush, 0, 0, Memory::NONE, 100)) }.unwrap();
                let done = reap_all(&mut queue);
                assert!(
                    done[..31].iter().all(|done| done.result == 4096) && done[31].result == 0,
                    "{done:?}"
                );
            }
            for (index, buf) in buffers.iter().enumerate() {
                assert!(buf.iter().all(|&byte| byte == index as u8 + 1));
            }
        }
        Err(Error::Unsupported(why)) => {
            assert!(why.contains("6.12"), "{why}");
            assert!(!facts.polled && facts.fallbacks.iter().any(|text| text.contains("6.12")), "{facts:?}");
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn vm_nvme_commands_own_the_block_device() {
    let Some(path) = node("UEXT4_VM_NVME", "vm_nvme_commands_own_the_block_device") else { return };
    let device = commands(&path);
    let queue = device.queue(&QueueOptions::depth(1)).unwrap();
    for spec in [format!("nvme:{path}"), path.clone(), format!("nvme:{path}?ro")] {
        assert_eq!(try_open(&spec).unwrap_err().errno(), libc::EBUSY, "{spec}");
    }
    let exclusively = || fs::File::options().read(true).custom_flags(libc::O_EXCL).open(&path);
    assert_eq!(exclusively().unwrap_err().raw_os_error(), Some(libc::EBUSY));
    drop(device);
    assert_eq!(exclusively().unwrap_err().raw_os_error(), Some(libc::EBUSY), "the queue holds it");
    drop(queue);
    exclusively().unwrap();
    let character = path.replace("/nvme", "/ng");
    assert!(matches!(try_open(&format!("nvme:{character}")), Err(Error::Unsupported(_))));
    let reader = open(&DeviceSpec::parse(&format!("nvme:{path}")).unwrap(), OpenOptions::default()).unwrap();
    let buf = pool().take(4096).unwrap();
    assert!(matches!(reader.device.write_at(&buf, 0, WriteDurability::Cached), Err(Error::ReadOnly)));
    let other = try_open("nvme:/dev/nullb0").unwrap_err();
    assert!(other.to_string().contains("not an NVMe device but `nullb0`"), "{other}");
}

/// What lies in the page cache of the block device is written out before, and not found after.
#[test]
fn vm_nvme_commands_leave_no_stale_pages() {
    let Some(path) = node("UEXT4_VM_NVME", "vm_nvme_commands_leave_no_stale_pages") else { return };
    // Keeps the pages: the last one to close the device drops them.
    let other = fs::File::options().read(true).write(true).open(&path).unwrap();
    other.write_all_at(&[0x11; 4096], 8192).unwrap();
    let device = commands(&path);
    let mut buf = pool().take(4096).unwrap();
    device.read_at(&mut buf, 8192).unwrap();
    assert!(buf.iter().all(|&byte| byte == 0x11), "what was written before");
    buf.fill(0x22);
    let mut page = [0; 4096];
    other.read_exact_at(&mut page, 8192).unwrap();
    device.write_at(&buf, 8192, WriteDurability::Cached).unwrap();
    drop(device);
    other.read_exact_at(&mut page, 8192).unwrap();
    assert!(page.iter().all(|&byte| byte == 0x22), "what was written meanwhile");
}

/// The emulated device answers transfers of one place with a status. No byte of it may pass for done.
#[test]
fn vm_nvme_commands_statuses_are_errors() {
    let Some(path) = node("UEXT4_VM_NVME_4K", "vm_nvme_commands_statuses_are_errors") else { return };
    let device = commands(&path);
    let mut buf = pool().take(1 << 20).unwrap();
    for (length, pos) in [(4096, BAD), (1 << 20, BAD - (512 << 10))] {
        let read = device.read_at(&mut buf[..length], pos).unwrap_err();
        let write = device.write_at(&buf[..length], pos, WriteDurability::Fua).unwrap_err();
        for (error, op, code) in [(read, "read", 0x281), (write, "write", 0x280)] {
            println!("{error}");
            let Error::Nvme { op: told, status, errno, pos: at, .. } = error.clone() else {
                panic!("{error:?}")
            };
            assert_eq!((told, status & 0x7ff, errno, at), (op, code, libc::ENODATA, pos), "{error}");
            assert!(error.to_string().contains("NVMe status 0x"), "{error}");
        }
        let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
        for op in [Op::Read, Op::Write] {
            // SAFETY: the buffer is not touched until `reap_all` has seen the completions.
            unsafe { queue.push(request(op, pos, length as u32, buf.memory(0), 1)) }.unwrap();
            assert_eq!(reap_all(&mut queue), [Done { tag: 1, result: -libc::ENODATA }]);
        }
        // The queue goes on.
        // SAFETY: as above.
        unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), 2)) }.unwrap();
        assert_eq!(reap_all(&mut queue), [Done { tag: 2, result: 4096 }]);
    }
    let beyond = device.read_at(&mut buf[..4096], device.geometry().size).unwrap_err();
    assert!(matches!(beyond, Error::OutOfRange { .. }), "{beyond:?}");
}

/// A partition is a part of the namespace, by option and by its own node.
#[test]
fn vm_nvme_commands_stay_inside_a_part() {
    let Some(path) = node("UEXT4_VM_NVME", "vm_nvme_commands_stay_inside_a_part") else { return };
    let mut buf = pool().take(4096).unwrap();
    buf.fill(0x33);
    let part = commands(&format!("{path}?offset=4M"));
    part.write_at(&buf, 8192, WriteDurability::Cached).unwrap();
    let mut queue = part.queue(&QueueOptions::depth(1)).unwrap();
    // SAFETY: the buffer is not touched until `reap_all` has seen the completion.
    unsafe { queue.push(request(Op::Write, 4096, 4096, buf.memory(0), 1)) }.unwrap();
    assert_eq!(reap_all(&mut queue), [Done { tag: 1, result: 4096 }]);
    drop((part, queue));
    let whole = commands(&path);
    for pos in [4096, 8192] {
        buf.fill(0);
        whole.read_at(&mut buf, (4 << 20) + pos).unwrap();
        assert!(buf.iter().all(|&byte| byte == 0x33), "{pos}");
    }
}

/// The node of a partition is owned by itself, and its commands begin where it begins.
#[test]
fn vm_nvme_commands_to_a_partition_node() {
    let Some(path) = node("UEXT4_VM_NVME", "vm_nvme_commands_to_a_partition_node") else { return };
    let reread = || {
        let status = std::process::Command::new("blockdev").args(["--rereadpt", &path]).status().unwrap();
        assert!(status.success());
    };
    let mut buf = pool().take(4096).unwrap();
    let mut sector = [0; 512];
    // One partition of type Linux: 2048 sectors from sector 4096.
    sector[446 + 4] = 0x83;
    sector[446 + 8..][..4].copy_from_slice(&4096u32.to_le_bytes());
    sector[446 + 12..][..4].copy_from_slice(&2048u32.to_le_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    buf[..512].copy_from_slice(&sector);
    commands(&path).write_at(&buf[..512], 0, WriteDurability::Fua).unwrap();
    reread();
    let part = commands(&format!("{path}p1"));
    assert_eq!(part.geometry().size, 1 << 20);
    assert_eq!(try_open(&format!("nvme:{path}")).unwrap_err().errno(), libc::EBUSY);
    buf.fill(0x44);
    part.write_at(&buf, 0, WriteDurability::Cached).unwrap();
    let mut queue = part.queue(&QueueOptions::depth(1)).unwrap();
    // SAFETY: the buffer is not touched until `reap_all` has seen the completion.
    unsafe { queue.push(request(Op::Write, (1 << 20) - 4096, 4096, buf.memory(0), 1)) }.unwrap();
    assert_eq!(reap_all(&mut queue), [Done { tag: 1, result: 4096 }]);
    drop((part, queue));
    let whole = commands(&path);
    for pos in [2 << 20, (3 << 20) - 4096] {
        buf.fill(0);
        whole.read_at(&mut buf, pos).unwrap();
        assert!(buf.iter().all(|&byte| byte == 0x44), "{pos}");
    }
    buf.fill(0);
    whole.write_at(&buf[..512], 0, WriteDurability::Fua).unwrap();
    drop(whole);
    reread();
}
