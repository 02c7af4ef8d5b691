//! A child process may drop what it inherited of a device, and nothing else; the parent goes on.

use crate::conformance::{buffer, push, reap_all, request};
use crate::rbd::write;
use uext4_blockdev::{BufferPool, DeviceQueue, Done, Error, Full, Op, QueueOptions, Wait, WriteDurability};
use uext4_testkit::{Ceph, Need, needs, own_process};

/// Forks. `work` is the life of the child; a hang ends by SIGALRM. It must leave with success.
#[track_caller]
fn in_a_child(work: impl FnOnce()) {
    // SAFETY: this test has its process for itself. The child takes no lock that another thread may hold: it leaves by
    // `_exit`, which runs no destructors of the parent's objects.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: plain system calls.
        unsafe {
            libc::alarm(20);
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            libc::_exit(i32::from(outcome.is_err()));
        }
    }
    let mut status = 0;
    // SAFETY: the status is ours, and nobody else waits for this child.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child ended with {status:#x}");
}

#[test]
fn a_child_drops_what_it_inherited_and_nothing_else() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    own_process!();
    let image = ceph.image(8, &[]);
    let device = write(&image);
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut data: Vec<_> = (0..8).map(|seed| buffer(&pool, 4096, seed + 1)).collect();
    let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
    for (index, data) in data.iter_mut().enumerate() {
        push(&mut queue, request(Op::Write, index as u64 * 4096, data, index as u64)).unwrap();
    }
    let (child_device, mut child_queue) = (std::sync::Arc::clone(&device), Some(queue));
    in_a_child(|| {
        let mut queue = child_queue.take().unwrap();
        let mut memory = pool.take(4096).unwrap();
        assert_eq!(child_device.read_at(&mut memory, 0), Err(Error::Forked));
        assert_eq!(child_device.write_at(&memory, 0, WriteDurability::Cached), Err(Error::Forked));
        assert_eq!(child_device.flush(), Err(Error::Forked));
        assert_eq!(child_device.discard(0, 4096), Err(Error::Forked));
        assert!(!child_device.reads_zeros(0, 8 << 20));
        assert_eq!(child_device.queue(&QueueOptions::depth(1)).err(), Some(Error::Forked));
        assert_eq!(queue.submit(), Err(Error::Forked));
        assert_eq!(queue.reap(&mut Vec::with_capacity(8), Wait::AtLeast(8)), Err(Error::Forked));
        assert_eq!(push(&mut queue, request(Op::Read, 0, &mut memory, 9)), Err(Full));
        assert_eq!(queue.event_fd().err(), Some(Error::Forked));
        drop(queue);
    });
    let mut queue = child_queue.take().unwrap();
    let expected: Vec<_> = (0..8).map(|tag| Done { tag, result: 4096 }).collect();
    assert_eq!(reap_all(&mut queue), expected);
    drop(queue);
    // The last reference of a device, in a child.
    let mut last = Some(device);
    drop(child_device);
    in_a_child(|| drop(last.take()));
    let device = last.take().unwrap();
    let mut read = pool.take(4096).unwrap();
    for (index, data) in data.iter().enumerate() {
        device.read_at(&mut read, index as u64 * 4096).unwrap();
        assert_eq!(read[..], data[..]);
    }
}
