//! A child process drops an inherited volume, and the parent is not affected.

use crate::common;

use common::sample::sample;
use common::{assert_same_bytes, read_write};
use std::time::{Duration, Instant};
use uext4::device::Ask;
use uext4::device::Error as DeviceError;
use uext4::{Error, OpenOptions, QueueOptions, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::{Scratch, oracle};

fn is_refused<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| error.errno() == DeviceError::Forked.errno())
}

/// With a ring, and driven by the submitting call, like a file in memory.
#[test]
fn a_child_drops_queue_and_volume_and_the_parent_goes_on() {
    uext4_testkit::own_process!();
    parent_and_child(QueueOptions::depth(16).register_file(Ask::Require));
    parent_and_child(QueueOptions::depth(16));
}

fn parent_and_child(options: QueueOptions) {
    let scratch = Scratch::new(48 << 20);
    let image = scratch.file("volume.img");
    sample().save(&image);
    let volume = Volume::open(image.to_str().unwrap(), VolumeOptions::read_write()).unwrap();
    let file = volume.open_file("/data", read_write()).unwrap();
    let mut expected = vec![0; 4096];
    file.read_any_at(&mut expected, 0).unwrap();
    // An uncommitted change.
    let end = file.size();
    file.write_any_at(&[1; 16], end, WriteFlags::empty()).unwrap();
    let new = volume.replace_file("/replaced", OpenOptions::new()).unwrap();
    let mut queue = volume.queue(options).unwrap();
    let slot = queue.attach(&file).unwrap();
    for tag in 0..8 {
        queue.read(slot, 0, queue.buffer(4096).unwrap(), tag).unwrap();
    }
    queue.submit().unwrap();
    // Their completions are in the ring, unread.
    std::thread::sleep(Duration::from_millis(50));
    // SAFETY: no other thread of this binary uses the volume, and the child leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: plain system calls.
        unsafe { libc::alarm(20) };
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (one, other) = (queue.buffer(4096).unwrap(), queue.buffer(4096).unwrap());
            assert!(is_refused(queue.read(slot, 0, one, 9)));
            assert!(is_refused(queue.write(slot, 0, other, WriteFlags::DSYNC, 9)));
            assert!(is_refused(queue.sync_data(slot, 9)) && is_refused(queue.submit()));
            assert!(is_refused(queue.poll().map(|_| ())) && is_refused(queue.wait(1).map(|_| ())));
            assert!(is_refused(file.read_any_at(&mut [0; 16], 0)));
            assert!(is_refused(file.write_any_at(&[1; 16], 0, WriteFlags::DSYNC)));
            assert!(is_refused(new.finish().map(drop)) && is_refused(volume.remove_file("/data")));
            assert!(is_refused(volume.open_file("/made", read_write().create(true)).map(drop)));
            assert!(is_refused(volume.replace_file("/data", OpenOptions::new()).map(drop)));
            assert!(is_refused(volume.clone().close()), "the log is the parent's");
            drop((queue, file, volume));
        }));
        // SAFETY: the child ends here, without the parent's destructors.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    let mut status = 0;
    // SAFETY: the status is ours, and nobody else waits for this child.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    let (mut seen, begin) = (0, Instant::now());
    while seen < 8 && begin.elapsed() < Duration::from_secs(3) {
        for done in queue.wait_timeout(Duration::from_millis(100)).unwrap() {
            assert_same_bytes(&expected, &done.into_buffer().unwrap());
            seen += 1;
        }
    }
    if seen < 8 {
        // Dropping it would wait for the rest forever.
        std::mem::forget(queue);
        panic!("{seen} completions of 8");
    }
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child ended with {status:#x}");
    file.write_any_at(&[7; 16], 0, WriteFlags::DSYNC).unwrap();
    new.finish().unwrap();
    drop((queue, file, volume));
    oracle::e2fsck_clean(&image);
}

/// A thread of the parent holds a file's gate at the fork, and does not exist in the child: nobody will release it.
#[test]
fn a_child_does_not_wait_for_a_gate() {
    uext4_testkit::own_process!();
    let scratch = Scratch::new(48 << 20);
    let image = scratch.file("volume.img");
    sample().save(&image);
    let device = format!("{}?latency=500ms", image.to_str().unwrap());
    let volume = Volume::open(device.as_str(), VolumeOptions::read_write()).unwrap();
    let file = volume.open_file("/data", read_write()).unwrap();
    let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
    let mut page = common::aligned(4096);
    std::thread::scope(|scope| {
        // It reads, modifies and writes back a block, and holds the gate all the while.
        scope.spawn(|| file.write_any_at(&[7; 16], 5, WriteFlags::empty()).unwrap());
        std::thread::sleep(Duration::from_millis(250));
        // SAFETY: the child calls what refuses before it waits for anything, and leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: plain system calls.
            unsafe { libc::alarm(5) };
            let refused = is_refused(file.read_at(&mut page, 0))
                && is_refused(file.write_at_with(&page, 0, WriteFlags::empty()))
                && is_refused(queue.attach(&file));
            // SAFETY: the child ends here.
            unsafe { libc::_exit(i32::from(!refused)) };
        }
        let mut status = 0;
        // SAFETY: the status is ours, and nobody else waits for this child.
        assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "the child ended with {status:#x}"
        );
    });
}
