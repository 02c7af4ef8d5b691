//! What a child process may do with the devices and queues it inherited: drop them, and nothing else.

use crate::common;

use common::{pattern, request};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4_blockdev::engine::DaxDevice;
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{
    Ask, Buffer, BufferPool, Device, DeviceQueue, Done, Error, Op, OpenOptions, Queue, QueueOptions, Sharing,
    Wait, WriteDurability, open,
};
use uext4_testkit::{LoopDevice, LoopOptions, Need, Scratch, needs};

/// A process of our own making.
struct Child(libc::pid_t);

impl Child {
    /// Waits for it; it must have left with success.
    #[track_caller]
    fn check(self) {
        let mut status = 0;
        // SAFETY: the status is ours, and nobody else waits for this child.
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "the child ended with {status:#x}"
        );
    }
}

/// `None` in the child.
fn fork() -> Option<Child> {
    // SAFETY: the child calls nothing that could wait for a thread that it does not have: it leaves by `leave`, and
    // no other thread of this binary holds locks of the objects under test.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", std::io::Error::last_os_error()),
        0 => None,
        pid => Some(Child(pid)),
    }
}

/// The child's life. A hang ends by SIGALRM.
fn leave(work: impl FnOnce()) -> ! {
    // SAFETY: plain system calls; `_exit` runs no destructors of the parent's objects.
    unsafe {
        libc::alarm(20);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        libc::_exit(i32::from(outcome.is_err()));
    }
}

fn file_device(scheme: &str) -> (tempfile::TempDir, Arc<dyn Device>) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = place.path().join("disk.img");
    let mut bytes = vec![0; common::SIZE as usize];
    pattern(5, &mut bytes);
    std::fs::write(&path, bytes).unwrap();
    let spec = DeviceSpec::parse(&format!("{scheme}:{}", path.display())).unwrap();
    let device = open(&spec, OpenOptions { write: true, force: false }).unwrap().device;
    (place, device)
}

/// Pushes one read of 4 KiB at the beginning for each buffer, numbered from `first`.
fn push_reads(queue: &mut Queue, buffers: &mut [Buffer], first: u64) {
    for (tag, buffer) in (first..).zip(buffers) {
        // SAFETY: the tests keep their buffers until the queue has delivered everything.
        unsafe { queue.push(request(Op::Read, 0, 4096, buffer.memory(0), tag)) }.unwrap();
    }
}

/// Reaps `count` completions, or what comes within some seconds.
fn reap(queue: &mut Queue, count: usize) -> Vec<Done> {
    let (mut all, begin) = (Vec::with_capacity(64), Instant::now());
    while all.len() < count && begin.elapsed() < Duration::from_secs(3) {
        queue.reap(&mut all, Wait::Timeout(Duration::from_millis(100))).unwrap();
    }
    all.sort_by_key(|done| done.tag);
    all
}

#[test]
fn a_child_that_drops_a_queue_takes_nothing_from_its_parent() {
    uext4_testkit::own_process!();
    let (_place, device) = file_device("file");
    let mut expected = vec![0; 4096];
    device.read_at(&mut expected, 0).unwrap();
    for (owner_driven, sqpoll) in [(false, Ask::No), (true, Ask::No), (false, Ask::Require)] {
        let pool = BufferPool::new(1 << 20).unwrap();
        let options =
            QueueOptions { owner_driven, sqpoll, pool: Some(pool.clone()), ..QueueOptions::depth(16) };
        let mut queue = device.queue(&options).unwrap();
        let mut buffers: Vec<_> = (0..12).map(|_| pool.take(4096).unwrap()).collect();
        push_reads(&mut queue, &mut buffers[..8], 0);
        queue.submit().unwrap();
        // Their completions are in the ring, unread.
        std::thread::sleep(Duration::from_millis(50));
        push_reads(&mut queue, &mut buffers[8..], 8);
        let Some(child) = fork() else { leave(|| drop((queue, device))) };
        child.check();
        let done = reap(&mut queue, 12);
        let wanted: Vec<_> = (0..12).map(|tag| Done { tag, result: 4096 }).collect();
        if done != wanted {
            // Dropping it would wait for the rest for ever.
            std::mem::forget((queue, buffers));
            panic!("{done:?}");
        }
        assert!(buffers.iter().all(|buffer| buffer[..] == expected[..]));
    }
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Forked))
}

#[test]
fn a_child_is_refused_and_the_parent_goes_on() {
    uext4_testkit::own_process!();
    for scheme in ["file", "sync", "dax"] {
        let (_place, device) = file_device(scheme);
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut buffers: Vec<_> = (0..4).map(|_| pool.take(4096).unwrap()).collect();
        let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
        push_reads(&mut queue, &mut buffers[..2], 0);
        queue.submit().unwrap();
        let Some(child) = fork() else {
            leave(|| {
                let mut buf = BufferPool::new(4096).unwrap().take(4096).unwrap();
                assert!(is_refused(device.read_at(&mut buf, 0)));
                assert!(is_refused(device.write_at(&buf, 0, WriteDurability::Cached)));
                assert!(is_refused(device.write_at(&buf, 0, WriteDurability::Fua)));
                assert!(is_refused(device.flush()) && is_refused(device.discard(0, 4096)));
                assert!(is_refused(device.queue(&QueueOptions::depth(1)).map(|_| ())));
                // SAFETY: the buffer lives until the process ends.
                let _full_or_not = unsafe { queue.push(request(Op::Write, 0, 4096, buf.memory(0), 9)) };
                assert!(is_refused(queue.submit()));
                let mut out = Vec::with_capacity(8);
                for wait in [Wait::No, Wait::AtLeast(1), Wait::Timeout(Duration::from_secs(1))] {
                    assert!(is_refused(queue.reap(&mut out, wait)) && out.is_empty());
                }
                assert!(is_refused(queue.event_fd().map(|_| ())));
                drop((queue, device));
                std::mem::forget(buf);
            })
        };
        child.check();
        push_reads(&mut queue, &mut buffers[2..], 2);
        let done = reap(&mut queue, 4);
        if done.len() != 4 {
            // Dropping it would wait for the rest for ever.
            std::mem::forget((queue, buffers));
            panic!("{scheme}: {done:?}");
        }
        assert!(done.iter().all(|done| done.result == 4096), "{scheme}: {done:?}");
        let mut expected = vec![0; 4096];
        pattern(5, &mut expected);
        assert!(buffers.iter().all(|buffer| buffer[..] == expected[..]), "{scheme}: the child wrote");
        device.flush().unwrap();
    }
}

#[test]
fn a_child_opens_devices_of_its_own() {
    uext4_testkit::own_process!();
    let (_place, device) = file_device("file");
    let Some(child) = fork() else {
        leave(|| {
            let (_own_place, own) = file_device("file");
            let mut buf = BufferPool::new(4096).unwrap().take(4096).unwrap();
            own.read_at(&mut buf, 0).unwrap();
            assert!(is_refused(device.read_at(&mut buf, 0)));
            // And so on, one generation later.
            let Some(grandchild) = fork() else {
                leave(|| {
                    let mut buf = BufferPool::new(4096).unwrap().take(4096).unwrap();
                    let (_own_place, newest) = file_device("file");
                    newest.read_at(&mut buf, 0).unwrap();
                    assert!(is_refused(own.read_at(&mut buf, 0)) && is_refused(device.read_at(&mut buf, 0)));
                })
            };
            grandchild.check();
            own.read_at(&mut buf, 0).unwrap();
        })
    };
    child.check();
    device.flush().unwrap();
}

/// Transfer memory stays with the parent: shared pages would be copied at the next touch, perhaps on the side that the
/// device does not write to.
#[test]
fn transfer_memory_is_the_parents_alone() {
    uext4_testkit::own_process!();
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut buffer = pool.take(4096).unwrap();
    buffer.fill(7);
    let Some(child) = fork() else {
        leave(|| {
            assert!(buffer.iter().all(|&byte| byte == 0));
            drop(buffer);
        })
    };
    child.check();
    assert!(buffer.iter().all(|&byte| byte == 7));
}

#[test]
fn a_mapped_device_of_another_opener_is_no_exception() {
    uext4_testkit::own_process!();
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 20).unwrap();
    let view: OwnedFd = file.try_clone().unwrap().into();
    let device = DaxDevice::new(file, "test".into(), true, Sharing::Private).unwrap();
    let Some(child) = fork() else {
        leave(|| assert!(is_refused(device.write_at(&[1; 512], 0, WriteDurability::Cached))))
    };
    child.check();
    let mut byte = [9];
    rustix::io::pread(&view, &mut byte, 0).unwrap();
    assert_eq!(byte, [0]);
}

/// A device with a cache has rings for durable writes: dropped in a child, they stay the parent's.
#[test]
fn root_a_child_that_drops_a_device_takes_no_ring_from_its_parent() {
    uext4_testkit::own_process!();
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let options = LoopOptions { direct_io: true, ..LoopOptions::default() };
    let node = LoopDevice::attach(&scratch.sparse_file("image", 4 << 20), options);
    let spec = DeviceSpec::parse(node.path().to_str().unwrap()).unwrap();
    let device = open(&spec, OpenOptions { write: true, force: false }).unwrap().device;
    let buf = BufferPool::new(4096).unwrap().take(4096).unwrap();
    device.write_durable(&buf, 0).unwrap();
    let Some(child) = fork() else { leave(|| drop(device)) };
    child.check();
    device.write_durable(&buf, 0).unwrap();
}
