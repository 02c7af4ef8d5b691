//! `file:` and `sync:` on image files, in memory (tmpfs) and on the disk under the temporary directory.

use crate::common;

use common::{conformance, dirty_pages, pattern, pool, reap_all, request, requiring};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{
    Ask, BufferPool, Device, DeviceQueue, Error, Memory, Op, OpenOptions, Queue, QueueOptions, Request,
    Sharing, Vector, Wait, WriteDurability, open,
};

/// A directory on tmpfs, and one wherever temporary files live.
fn places() -> Vec<tempfile::TempDir> {
    vec![tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap()]
}

fn image(directory: &Path, size: u64) -> PathBuf {
    let path = directory.join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

/// A ring, on tmpfs too, where queues have none unless something of one is required.
fn ring(depth: u32) -> QueueOptions {
    requiring(depth, |_registered_file| {})
}

fn open_text(text: &str, write: bool) -> Result<Arc<dyn Device>, Error> {
    open_with(text, OpenOptions { write, force: false })
}

fn open_with(text: &str, options: OpenOptions) -> Result<Arc<dyn Device>, Error> {
    open(&DeviceSpec::parse(text)?, options).map(|opened| opened.device)
}

#[test]
fn both_engines_conform_on_every_place() {
    for place in places() {
        let path = image(place.path(), common::SIZE);
        for scheme in ["file", "sync"] {
            let device = open_text(&format!("{scheme}:{}", path.display()), true).unwrap();
            assert_eq!(device.describe().engine, scheme);
            conformance(&*device);
            drop(device);
            assert!(becomes_free(&path), "{scheme}");
        }
    }
}

#[test]
fn slices_conform_and_leave_the_rest_alone() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), common::SIZE + (2 << 20));
    std::fs::write(&path, vec![0xee; (common::SIZE + (2 << 20)) as usize]).unwrap();
    for scheme in ["file", "sync"] {
        let device = open_text(&format!("{scheme}:{}?offset=2M", path.display()), true).unwrap();
        assert_eq!(device.geometry().size, common::SIZE);
        assert_eq!(device.describe().layers.len(), 1);
        conformance(&*device);
        drop(device);
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes[..2 << 20].iter().all(|&b| b == 0xee));
        assert_eq!(bytes.len() as u64, common::SIZE + (2 << 20));
    }
}

#[test]
fn a_write_outside_a_queue_never_grows_the_image() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 1 << 20);
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    let mut buf = pool().take(4096).unwrap();
    for pos in [1 << 20, (1 << 20) - 2048, u64::MAX - 4095] {
        // SAFETY: the buffer is not touched before the completion is reaped.
        unsafe { queue.push(request(Op::Write, pos, 4096, buf.memory(0), 1)) }.unwrap();
        assert_eq!(reap_all(&mut queue)[0].result, -libc::EINVAL);
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 1 << 20);
}

#[test]
fn the_tail_that_is_no_whole_block_is_not_used_and_noted() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), (1 << 20) + 100);
    let device = open_text(path.to_str().unwrap(), false).unwrap();
    assert_eq!(device.geometry().size, 1 << 20);
    assert!(device.describe().notes.iter().any(|note| note.contains("100 bytes")));
}

#[test]
fn tmpfs_has_no_volatile_cache_and_a_disk_file_has() {
    let [memory, disk] = &places()[..] else { panic!("two places") };
    let memory = open_text(image(memory.path(), 1 << 20).to_str().unwrap(), true).unwrap();
    assert!(!memory.capabilities().volatile_cache && memory.capabilities().fua);
    assert_eq!((memory.geometry().logical_block, memory.geometry().memory_align), (512, 1));
    let path = image(disk.path(), 1 << 20);
    let on_tmpfs = rustix::fs::statfs(&path).unwrap().f_type == 0x0102_1994;
    let disk = open_text(path.to_str().unwrap(), true).unwrap();
    assert_eq!(disk.capabilities().volatile_cache, !on_tmpfs);
    assert!(disk.capabilities().fua);
}

#[test]
fn an_image_that_shrinks_under_us_fails_with_eio() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 1 << 20);
    let device = open_text(path.to_str().unwrap(), false).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let mut buf = pool().take(8192).unwrap();
    let error = device.read_at(&mut buf, 0).unwrap_err();
    assert_eq!(error, Error::Io { op: "read", pos: 0, length: 8192, errno: libc::EIO });
    // A queue reports the short transfer as it is.
    let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
    // SAFETY: the buffer is not touched before the completion is reaped.
    unsafe { queue.push(request(Op::Read, 0, 8192, buf.memory(0), 1)) }.unwrap();
    assert_eq!(reap_all(&mut queue)[0].result, 4096);
}

#[test]
fn one_writer_or_many_readers() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 1 << 20);
    let text = path.to_str().unwrap();
    let in_use = |result: Result<Arc<dyn Device>, Error>| matches!(result, Err(Error::InUse(_)));

    let writer = open_text(text, true).unwrap();
    assert_eq!(writer.describe().sharing, Sharing::Exclusive);
    assert!(in_use(open_text(text, true)) && in_use(open_text(text, false)));
    assert!(in_use(open_with(text, OpenOptions { write: true, force: true })), "force is no way to write");
    let forced = open_with(text, OpenOptions { write: false, force: true }).unwrap();
    assert_eq!(forced.describe().sharing, Sharing::Forced);
    drop((writer, forced));

    let first = open_text(text, false).unwrap();
    let second = open_text(&format!("sync:{text}?ro"), true).unwrap();
    assert_eq!(first.describe().sharing, Sharing::SharedRead);
    assert_eq!(second.describe().sharing, Sharing::SharedRead);
    assert!(in_use(open_text(text, true)));
    drop((first, second));
    open_text(text, true).unwrap();
}

/// Whether the lock on the image is released, within ten seconds: a child that another test has forked holds the
/// descriptor, and so the lock, until it ends.
fn becomes_free(path: &Path) -> bool {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        // A POSIX lock is refused while a lock of an open file description is held.
        if rustix::fs::fcntl_lock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok() {
            return true;
        }
        if Instant::now() > limit {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_lock_lives_as_long_as_a_queue() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 1 << 20);
    let text = path.to_str().unwrap();
    for scheme in ["file", "sync"] {
        let device = open_text(&format!("{scheme}:{text}"), true).unwrap();
        let queue = device.queue(&QueueOptions::depth(1)).unwrap();
        drop(device);
        // Another descriptor of the same file, closed: record locks of a process would be lost by this.
        drop(std::fs::File::open(&path).unwrap());
        assert!(matches!(open_text(text, false), Err(Error::InUse(_))), "{scheme}");
        drop(queue);
        assert!(becomes_free(&path), "{scheme}");
    }
}

#[test]
fn read_only_wins() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 1 << 20);
    for scheme in ["file", "sync"] {
        let device = open_text(&format!("{scheme}:{}?ro", path.display()), true).unwrap();
        assert!(device.capabilities().read_only);
        let mut buf = pool().take(4096).unwrap();
        assert_eq!(device.write_at(&buf, 0, WriteDurability::Cached), Err(Error::ReadOnly));
        assert_eq!(device.discard(0, 4096), Err(Error::ReadOnly));
        device.read_at(&mut buf, 0).unwrap();
        device.flush().unwrap();
        let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
        // SAFETY: the buffer is not touched before the completion is reaped.
        unsafe { queue.push(request(Op::Write, 0, 4096, buf.memory(0), 1)) }.unwrap();
        assert!(reap_all(&mut queue)[0].result < 0);
    }
}

#[test]
fn registered_buffers_are_used_and_reported() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 1 << 20);
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    let pool = BufferPool::new(1 << 20).unwrap();
    let options = requiring(8, |o| (o.register_buffers, o.pool) = (Ask::Require, Some(pool.clone())));
    let mut queue = device.queue(&options).unwrap();
    assert!(queue.facts().registered_buffers && queue.facts().registered_file);
    assert!(matches!(queue, Queue::Uring(_)));
    let mut buf = pool.take(4096).unwrap();
    assert!(buf.memory(0).registered.is_some());
    pattern(3, &mut buf);
    // SAFETY: the buffer is not touched before the completion is reaped.
    unsafe { queue.push(request(Op::Write, 0, 4096, buf.memory(0), 1)) }.unwrap();
    assert_eq!(reap_all(&mut queue)[0].result, 4096);
    assert_eq!(std::fs::read(&path).unwrap()[..4096], buf[..]);
    // Memory outside the region that it names proves that the kernel is really given fixed buffers.
    let other = BufferPool::new(4096).unwrap();
    let mut foreign = other.take(4096).unwrap();
    let lie = Memory { registered: buf.memory(0).registered, ..foreign.memory(0) };
    // SAFETY: as above.
    unsafe { queue.push(request(Op::Write, 0, 4096, lie, 2)) }.unwrap();
    assert_eq!(reap_all(&mut queue)[0].result, -libc::EFAULT);
}

/// One request moves several pieces of memory, one after another on the device.
#[test]
fn vectors_are_one_request() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 1 << 20);
    for (scheme, options) in
        [("file", ring(4)), ("file", QueueOptions::depth(4)), ("sync", QueueOptions::depth(4))]
    {
        let device = open_text(&format!("{scheme}:{}", path.display()), true).unwrap();
        let mut queue = device.queue(&options).unwrap();
        assert!(queue.facts().vectors >= 3, "{:?}", queue.facts());
        let pool = pool();
        let mut buffers: Vec<_> = [4096, 512, 8192].map(|length| pool.take(length).unwrap()).into();
        let mut whole = pool.take(12_800).unwrap();
        pattern(5, &mut whole);
        let mut run = |buffers: &mut Vec<uext4_blockdev::Buffer>, op| {
            let part = |buffer: &mut uext4_blockdev::Buffer| Vector {
                address: buffer.memory(0).address,
                length: buffer.len(),
            };
            let mut vectors: Vec<Vector> = buffers.iter_mut().map(part).collect();
            // SAFETY: they live until the completion is reaped, and have as many bytes as the request.
            let memory = unsafe { Memory::vectors(std::ptr::NonNull::from(&mut vectors[0])) };
            // SAFETY: neither the buffers nor their vectors are touched before the completion is reaped.
            unsafe { queue.push(request(op, 4096, 12_800, memory, 1)) }.unwrap();
            assert_eq!(reap_all(&mut queue)[0].result, 12_800, "{scheme}");
        };
        let mut at = 0;
        for buffer in &mut buffers {
            let length = buffer.len();
            buffer.copy_from_slice(&whole[at..at + length]);
            at += length;
        }
        run(&mut buffers, Op::Write);
        assert_eq!(std::fs::read(&path).unwrap()[4096..16_896], whole[..]);
        buffers.reverse();
        run(&mut buffers, Op::Read);
        let back: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.to_vec()).collect();
        assert_eq!(back, whole[..]);
    }
}

/// More than the queue's memory had room for at the start: the pool grows, and the ring takes what it grows by.
#[test]
fn every_buffer_of_a_queue_that_requires_it_is_registered() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 4 << 20);
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    for owner_driven in [false, true] {
        let pool = BufferPool::new(32 * 4096).unwrap();
        let options = requiring(33, |o| {
            (o.register_buffers, o.pool) = (Ask::Require, Some(pool.clone()));
            o.owner_driven = owner_driven;
        });
        let mut queue = device.queue(&options).unwrap();
        let mut buffers: Vec<_> = (0..32).map(|_| pool.take(64 << 10).unwrap()).collect();
        for (tag, buf) in (0..).zip(&mut buffers) {
            assert!(buf.memory(0).registered.is_some(), "buffer {tag}");
            pattern(tag, buf);
            let write = request(Op::Write, tag * (64 << 10), 64 << 10, buf.memory(0), tag);
            // SAFETY: the buffer is not touched before the completion is reaped.
            unsafe { queue.push(write) }.unwrap();
        }
        assert!(reap_all(&mut queue).iter().all(|done| done.result == 64 << 10));
        let written = std::fs::read(&path).unwrap();
        assert!(written[..2 << 20].chunks(64 << 10).zip(&buffers).all(|(part, buf)| *part == **buf));
        // Memory outside the region that it names proves that the kernel has the region.
        let mut foreign = BufferPool::new(4096).unwrap().take(4096).unwrap();
        let lie = Memory { registered: buffers[31].memory(0).registered, ..foreign.memory(0) };
        // SAFETY: as above.
        unsafe { queue.push(request(Op::Write, 0, 4096, lie, 2)) }.unwrap();
        assert_eq!(reap_all(&mut queue)[0].result, -libc::EFAULT);
        assert_eq!(pool.refused(), None);
    }
}

/// A region's number means another region to another queue: what its pool did not register goes as plain memory.
#[test]
fn registered_memory_of_another_pool_is_sent_as_plain_memory() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 1 << 20);
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    let pools = [BufferPool::new(1 << 20).unwrap(), BufferPool::new(1 << 20).unwrap()];
    let mut queues = pools.each_ref().map(|pool| {
        device
            .queue(&requiring(8, |o| (o.register_buffers, o.pool) = (Ask::Require, Some(pool.clone()))))
            .unwrap()
    });
    let mut buffers = pools.each_ref().map(|pool| pool.take(4096).unwrap());
    for (own, queue) in queues.iter_mut().enumerate() {
        for (of, buf) in buffers.iter_mut().enumerate() {
            pattern((own * 2 + of) as u64, buf);
            for (op, fua) in [(Op::Write, true), (Op::Read, false)] {
                let request = Request { fua, ..request(op, 4096, 4096, buf.memory(0), 1) };
                // SAFETY: the buffer is not touched before the completion is reaped.
                unsafe { queue.push(request) }.unwrap();
                assert_eq!(reap_all(queue)[0].result, 4096, "{op:?} of pool {of} on queue {own}");
            }
            assert_eq!(std::fs::read(&path).unwrap()[4096..8192], buf[..]);
        }
    }
}

#[test]
fn required_and_impossible_is_an_error() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 1 << 20);
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    let unsupported = |options: &QueueOptions| matches!(device.queue(options), Err(Error::Unsupported(_)));
    assert!(unsupported(&requiring(8, |o| o.register_buffers = Ask::Require)), "no pool");
    assert!(unsupported(&requiring(8, |o| o.iopoll = Ask::Require)), "tmpfs is not polled");
    let tried = device.queue(&requiring(8, |o| o.iopoll = Ask::Try)).unwrap();
    let facts = tried.facts();
    assert!(!facts.polled && facts.owner_driven);
    assert_eq!(facts.fallbacks.len(), 1, "{:?}", facts.fallbacks);

    let sync = open_text(&format!("sync:{}?ro", path.display()), false);
    assert!(matches!(sync, Err(Error::InUse(_))));
    drop((tried, device));
    let sync = open_text(&format!("sync:{}", path.display()), true).unwrap();
    let queue = sync.queue(&requiring(8, |o| o.iopoll = Ask::Require));
    assert!(matches!(queue, Err(Error::Unsupported(_))));
    let queue = sync.queue(&QueueOptions { sqpoll: Ask::Try, ..QueueOptions::depth(8) }).unwrap();
    assert_eq!(queue.facts().fallbacks.len(), 1);
}

#[test]
fn a_submission_thread_works() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), common::SIZE);
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    for owner_driven in [false, true] {
        let options = QueueOptions { sqpoll: Ask::Require, owner_driven, ..QueueOptions::depth(8) };
        let mut queue = device.queue(&options).unwrap();
        assert!(queue.facts().sqpoll);
        let mut buf = pool().take(4096).unwrap();
        for round in 0..20u64 {
            // SAFETY: the buffer is not touched before the completion is reaped.
            unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), round)) }.unwrap();
            queue.submit().unwrap();
            if round % 7 == 0 {
                // Longer than the thread's idle time: it sleeps and must be woken up.
                std::thread::sleep(Duration::from_millis(80));
            }
            assert_eq!(reap_all(&mut queue)[0].result, 4096);
        }
        // SAFETY: the buffer outlives the queue, and dropping the queue waits.
        unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), 99)) }.unwrap();
        drop(queue);
    }
}

#[test]
fn the_event_descriptor_wakes_a_poller() {
    use std::os::fd::AsFd;
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 1 << 20);
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    let readable = |queue: &mut Queue, milliseconds: i64| {
        let event = queue.event_fd().unwrap().expect("a ring has one");
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(event.as_fd(), rustix::event::PollFlags::IN)];
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
        rustix::event::poll(&mut fds, Some(&time)).unwrap() == 1
    };
    for owner_driven in [false, true] {
        let mut queue = device.queue(&QueueOptions { owner_driven, ..ring(4) }).unwrap();
        assert!(!readable(&mut queue, 1));
        let mut buf = pool().take(4096).unwrap();
        // SAFETY: the buffer is not touched before the completion is reaped.
        unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), 1)) }.unwrap();
        queue.submit().unwrap();
        assert!(readable(&mut queue, 900));
        assert_eq!(reap_all(&mut queue).len(), 1);
    }
    // A request answered without the kernel wakes as well.
    let mut queue = device.queue(&ring(4)).unwrap();
    assert!(!readable(&mut queue, 1));
    let mut buf = pool().take(4096).unwrap();
    // SAFETY: as above.
    unsafe { queue.push(request(Op::Read, 1 << 40, 4096, buf.memory(0), 1)) }.unwrap();
    assert!(readable(&mut queue, 900));
    assert_eq!(reap_all(&mut queue).len(), 1);
}

#[test]
fn an_owner_driven_queue_belongs_to_its_first_driver() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), 1 << 20);
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    let mut queue = device.queue(&QueueOptions { owner_driven: true, ..ring(4) }).unwrap();
    assert!(queue.facts().owner_driven);
    let pool = pool();
    let mut buf = pool.take(4096).unwrap();
    // Created here, driven there: the other thread becomes the owner.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the buffer is not touched before the completion is reaped.
            unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), 1)) }.unwrap();
            assert_eq!(reap_all(&mut queue)[0].result, 4096);
        });
    });
    // SAFETY: the buffer outlives the queue, and dropping the queue waits.
    unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), 2)) }.unwrap();
    let refused = queue.reap(&mut Vec::with_capacity(1), Wait::AtLeast(1));
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
}

fn registered_ring(depth: u32) -> QueueOptions {
    QueueOptions { owner_driven: true, register_ring: Ask::Require, ..QueueOptions::depth(depth) }
}

/// One read that must arrive whole.
fn read_once(queue: &mut Queue, buf: &mut uext4_blockdev::Buffer, tag: u64) {
    // SAFETY: the buffer is not touched before the completion is reaped.
    unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), tag)) }.unwrap();
    assert_eq!(reap_all(queue), [uext4_blockdev::Done { tag, result: 4096 }]);
}

#[test]
fn a_registered_ring_works_and_is_given_back() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), common::SIZE);
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    let mut buf = pool().take(4096).unwrap();
    // A thread's table has 16 places: more queues than that, one after another and beside each other.
    for round in 0..20u64 {
        let mut queues: Vec<_> = (0..3).map(|_| device.queue(&registered_ring(4)).unwrap()).collect();
        for (number, queue) in queues.iter_mut().enumerate() {
            let facts = queue.facts();
            assert!(facts.registered_ring && facts.owner_driven && facts.fallbacks.is_empty(), "{facts:?}");
            read_once(queue, &mut buf, round * 10 + number as u64);
            assert_eq!(queue.reap(&mut Vec::with_capacity(1), Wait::No).unwrap(), 0);
        }
    }
    let mut queue = device.queue(&registered_ring(4)).unwrap();
    read_once(&mut queue, &mut buf, 1);
    // SAFETY: the buffer outlives the queue, and dropping the queue waits.
    unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), 2)) }.unwrap();
    queue.submit().unwrap();
    drop((queue, device));
    open_text(path.to_str().unwrap(), true).unwrap();
}

#[test]
fn a_registered_ring_is_not_mistaken_for_that_of_another_thread() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), common::SIZE);
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    let mut buf = pool().take(4096).unwrap();
    let mut ours = device.queue(&registered_ring(4)).unwrap();
    read_once(&mut ours, &mut buf, 1);
    let (told, heard) = std::sync::mpsc::channel();
    // That thread's ring has the same index in its own table.
    let other = std::thread::spawn(move || {
        let (mut buf, mut foreign) = (pool().take(4096).unwrap(), pool().take(4096).unwrap());
        let mut theirs = device.queue(&registered_ring(4)).unwrap();
        read_once(&mut theirs, &mut buf, 2);
        // SAFETY: the buffers outlive their queues, and dropping a queue waits.
        unsafe { theirs.push(request(Op::Read, 0, 4096, buf.memory(0), 3)) }.unwrap();
        // SAFETY: as above.
        unsafe { ours.push(request(Op::Read, 0, 4096, foreign.memory(0), 4)) }.unwrap();
        let sent = ours.submit();
        assert!(matches!(sent, Err(Error::Unsupported(_))), "{sent:?}");
        assert_eq!(reap_all(&mut theirs), [uext4_blockdev::Done { tag: 3, result: 4096 }]);
        // What was never sent is not waited for, although the owner lives.
        drop(ours);
        told.send(()).unwrap();
    });
    // The owner lives as long as this waits; a hang is a failure.
    heard.recv_timeout(Duration::from_secs(30)).expect("the other thread ends in time");
    other.join().unwrap();
}

#[test]
fn a_registered_ring_is_for_queues_that_their_owner_drives() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = image(place.path(), common::SIZE);
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    let options = QueueOptions { owner_driven: false, ..registered_ring(4) };
    assert!(matches!(device.queue(&options), Err(Error::Unsupported(_))));
    // A file in memory has a ring only if something of one is required.
    let options = QueueOptions { register_ring: Ask::Try, register_file: Ask::Require, ..options };
    let tried = device.queue(&options).unwrap().facts();
    assert!(
        !tried.registered_ring && tried.fallbacks[0].starts_with("without a registered ring"),
        "{tried:?}"
    );
    let memory = open_text("mem:1M", true).unwrap();
    assert!(matches!(memory.queue(&registered_ring(4)), Err(Error::Unsupported(_))));
}

#[test]
fn a_foreign_thread_that_drops_an_owner_driven_queue_waits_too() {
    let place = tempfile::tempdir().unwrap();
    let path = image(place.path(), 32 << 20);
    std::fs::write(&path, vec![1u8; 32 << 20]).unwrap();
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    common::foreign_thread_drops(&*device);
}

#[test]
fn a_queue_moves_between_threads_and_its_submitter_may_end() {
    let place = tempfile::tempdir().unwrap();
    let path = image(place.path(), 4 << 20);
    std::fs::write(&path, vec![7u8; 4 << 20]).unwrap();
    let device = open_text(path.to_str().unwrap(), true).unwrap();
    let pool = pool();
    let mut buffers: Vec<_> = (0..8).map(|_| pool.take(64 << 10).unwrap()).collect();
    let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (index, buf) in buffers.iter_mut().enumerate() {
                let pos = (index as u64) << 16;
                // SAFETY: the buffers are not touched before the completions are reaped.
                unsafe { queue.push(request(Op::Read, pos, 64 << 10, buf.memory(0), index as u64)) }.unwrap();
            }
            queue.submit().unwrap();
        });
    });
    // Requests that were under way when the submitter ended may be cancelled by the kernel, but none may be
    // lost.
    let done = reap_all(&mut queue);
    assert_eq!(done.len(), 8);
    assert!(done.iter().all(|d| d.result == 64 << 10 || d.result == -libc::ECANCELED), "{done:?}");
}

/// An image that was written and not synced: a device settles it whatever cache it claims to have, through every layer.
#[test]
fn settling_reaches_what_others_left_in_the_page_cache() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("disk.img");
    for text in
        ["file:{}", "sync:{}", "dax:{}", "{}?cache=volatile", "{}?fua=off", "{}?offset=1M", "{}?latency=1us"]
    {
        std::fs::write(&path, vec![7; 4 << 20]).unwrap();
        let Some(dirty) = dirty_pages(&path) else {
            return println!("SKIP settling_reaches_what_others_left_in_the_page_cache: needs cachestat(2)");
        };
        let text = text.replace("{}", path.to_str().unwrap());
        let device = open_text(&text, true).unwrap();
        device.settle().unwrap();
        assert_eq!(dirty_pages(&path), Some(0), "{text}: of {dirty} dirty pages");
    }
}
