//! More requests than a device has tags, and devices that have none: nothing goes to io_uring's worker threads, nothing
//! is lost, nobody waits for ever.

use crate::common;

use common::{pattern, request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{
    Ask, Buffer, BufferPool, Device, DeviceQueue, Done, Driving, Op, OpenOptions, Queue, QueueOptions, Wait,
    open,
};
use uext4_testkit::{LoopDevice, LoopOptions, Need, Scratch, Zram, needs};

const BLOCK: u32 = 512;
const LIMIT: Duration = Duration::from_secs(20);

fn writable(path: &Path) -> Arc<dyn Device> {
    let spec = DeviceSpec::parse(path.to_str().unwrap()).unwrap();
    open(&spec, OpenOptions { write: true, force: false }).unwrap().device
}

/// A loop device whose one hardware queue has this many tags.
fn tagged(scratch: &Scratch, tags: u32) -> LoopDevice {
    let image = scratch.sparse_file(format!("image{tags}"), 4 << 20);
    let mut node = LoopDevice::attach(&image, LoopOptions { direct_io: true, ..LoopOptions::default() });
    node.set_attribute("queue/nr_requests", &tags.to_string());
    node
}

/// Worker threads for requests that the calling thread submitted. They stay for seconds, and go when it ends.
fn workers() -> usize {
    let name = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|of_task| of_task.trim() == name).count()
}

/// A queue with a buffer for each request.
struct Bench {
    queue: Queue,
    buffers: Vec<Buffer>,
}

impl Bench {
    fn new(device: &dyn Device, depth: u32) -> Self {
        let pool = BufferPool::new(depth as usize * 4096).unwrap();
        let queue =
            device.queue(&QueueOptions { pool: Some(pool.clone()), ..QueueOptions::depth(depth) }).unwrap();
        let buffers =
            (0..depth).map(|_| pool.take(device.geometry().logical_block as usize).unwrap()).collect();
        Bench { queue, buffers }
    }

    /// Pushes request `tag` at the block with that number behind `first`. Writes carry a pattern of their place.
    fn push(&mut self, op: Op, first: u64, tag: usize) {
        let buffer = &mut self.buffers[tag];
        let place = first + tag as u64;
        if op == Op::Write {
            pattern(place, buffer);
        }
        let length = buffer.len() as u32;
        let request = request(op, place * u64::from(length), length, buffer.memory(0), tag as u64);
        // SAFETY: the buffers live in `self` and are not touched before the completion or the drop of the queue, which
        // is declared before them.
        unsafe { self.queue.push(request) }.unwrap();
    }

    fn fill(&mut self, op: Op, first: u64) {
        for tag in 0..self.buffers.len() {
            self.push(op, first, tag);
        }
        assert_eq!(self.queue.submit().unwrap(), self.buffers.len(), "all are taken over");
    }

    fn collect(&mut self, wait: Wait) -> Vec<Done> {
        let mut out = Vec::with_capacity(self.buffers.len());
        self.queue.reap(&mut out, wait).unwrap();
        assert!(out.iter().all(|done| done.result == self.buffers[0].len() as i32), "{out:?}");
        out
    }
}

fn assert_written(device: &dyn Device, places: std::ops::Range<u64>) {
    let size = device.geometry().logical_block as usize;
    let pool = BufferPool::new(8192).unwrap();
    let (mut wanted, mut found) = (pool.take(size).unwrap(), pool.take(size).unwrap());
    for place in places {
        pattern(place, &mut wanted);
        device.read_at(&mut found, place * size as u64).unwrap();
        assert!(wanted[..] == found[..], "block {place}");
    }
}

#[test]
fn root_more_requests_than_tags_need_no_worker_threads() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let node = tagged(&scratch, 32);
    let device = writable(node.path());
    let described = device.describe();
    assert_eq!((described.driving, described.tags), (Driving::Ring, Some(32)));
    let (threads, depth) = (4, 256);
    let start = Barrier::new(threads);
    let workers: usize = std::thread::scope(|scope| {
        let work = |thread: u64| {
            let (device, start) = (&device, &start);
            move || {
                let mut bench = Bench::new(&**device, depth);
                let first = thread * u64::from(depth);
                start.wait();
                for op in [Op::Write, Op::Read, Op::Write, Op::Read] {
                    bench.fill(op, first);
                    let mut left = bench.buffers.len();
                    while left > 0 {
                        // Few at once: new ones come while old ones are under way.
                        let done = bench.collect(Wait::AtLeast(8));
                        assert!(done.len() >= left.min(8));
                        left -= done.len();
                    }
                }
                workers()
            }
        };
        let threads: Vec<_> = (0..threads as u64).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(workers, 0, "requests went to worker threads");
    assert_written(&*device, 0..threads as u64 * u64::from(depth));
}

fn readable(queue: &mut Queue) -> bool {
    let event = queue.event_fd().unwrap().expect("these queues have one");
    let mut fds = [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)];
    let time = Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
    let ready = poll(&mut fds, Some(&time)).unwrap() == 1;
    if ready {
        let mut count = [0; 8];
        rustix::io::read(event, &mut count).unwrap();
    }
    ready
}

/// Submits once, then sleeps on the descriptor: each wake-up has to send what was held back.
fn drive_by_events(bench: &mut Bench, first: u64) {
    bench.queue.event_fd().unwrap();
    bench.fill(Op::Write, first);
    let mut left = bench.buffers.len();
    while left > 0 {
        assert!(
            readable(&mut bench.queue),
            "{left} requests are left and nothing will ever wake their owner"
        );
        left -= bench.collect(Wait::No).len();
    }
}

#[test]
fn root_a_sleeper_on_the_descriptor_is_woken_up_for_all_it_submitted() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    for tags in [4, 16] {
        let node = tagged(&scratch, tags);
        let device = writable(node.path());
        drive_by_events(&mut Bench::new(&*device, 200), 0);
        assert_written(&*device, 0..200);
    }
}

#[test]
fn root_a_queue_that_nobody_reaps_does_not_stop_the_others() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let node = tagged(&scratch, 8);
    let device = writable(node.path());
    let mut gone = Bench::new(&*device, 64);
    gone.fill(Op::Write, 0);
    for first in [64, 264, 464] {
        drive_by_events(&mut Bench::new(&*device, 200), first);
    }
    assert_written(&*device, 64..664);
    // Its owner comes back.
    let mut left = 64;
    while left > 0 {
        left -= gone.collect(Wait::AtLeast(1)).len();
    }
    assert_written(&*device, 0..64);
}

#[test]
fn root_dropping_a_queue_carries_out_what_was_submitted_and_nothing_else() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let node = tagged(&scratch, 8);
    let device = writable(node.path());
    let mut bench = Bench::new(&*device, 64);
    for tag in 0..60 {
        bench.push(Op::Write, 0, tag);
    }
    bench.queue.submit().unwrap();
    for tag in 60..64 {
        bench.push(Op::Write, 0, tag);
    }
    drop(bench);
    assert_written(&*device, 0..60);
    let pool = BufferPool::new(4096).unwrap();
    let mut rest = pool.take(4 * BLOCK as usize).unwrap();
    device.read_at(&mut rest, 60 * u64::from(BLOCK)).unwrap();
    assert!(rest.iter().all(|&byte| byte == 0), "never submitted");
    // Its share is free again.
    let mut next = Bench::new(&*device, 64);
    next.fill(Op::Read, 0);
    assert_eq!(next.collect(Wait::AtLeast(64)).len(), 64);
}

#[test]
fn root_waits_with_a_limit_end_although_requests_are_held_back() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let node = tagged(&scratch, 4);
    let device = writable(node.path());
    let mut bench = Bench::new(&*device, 128);
    bench.fill(Op::Write, 0);
    let begin = Instant::now();
    let mut left = 128;
    while left > 0 {
        left -= bench.collect(Wait::Timeout(Duration::from_secs(5))).len();
        assert!(begin.elapsed() < LIMIT);
    }
    bench.collect(Wait::Timeout(Duration::from_millis(1)));
    assert_written(&*device, 0..128);
}

/// What a queue on a device without NOWAIT has to do, whoever carries its requests out.
fn inline_queue(device: &Arc<dyn Device>) {
    let described = device.describe();
    assert_eq!((described.driving, described.tags), (Driving::Inline, None), "{:?}", described.notes);
    let workers = std::thread::scope(|scope| {
        let work = || {
            let mut bench = Bench::new(&**device, 128);
            bench.fill(Op::Write, 0);
            assert_eq!(bench.collect(Wait::AtLeast(128)).len(), 128);
            drive_by_events(&mut bench, 128);
            // In pieces of what fits, pushed without a call to submit.
            bench.push(Op::Read, 0, 5);
            bench.push(Op::Read, 0, 6);
            let mut one = Vec::with_capacity(1);
            for tag in [5, 6] {
                one.clear();
                assert_eq!(bench.queue.reap(&mut one, Wait::AtLeast(2)).unwrap(), 1);
                assert_eq!(one[0].tag, tag);
            }
            workers()
        };
        scope.spawn(work).join().unwrap()
    });
    assert_eq!(workers, 0, "requests went to worker threads");
    assert_written(&**device, 0..256);
    assert!(device.queue(&QueueOptions::depth(4)).unwrap().facts().inline);
    // A ring that is asked for is there all the same.
    let ring = device.queue(&QueueOptions { register_file: Ask::Require, ..QueueOptions::depth(4) }).unwrap();
    assert!(!ring.facts().inline && ring.facts().registered_file);
    let polled = device.queue(&QueueOptions { iopoll: Ask::Try, ..QueueOptions::depth(4) }).unwrap();
    assert_eq!((polled.facts().polled, polled.facts().fallbacks.len()), (false, 1));
}

#[test]
fn a_file_in_memory_is_driven_inline() {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = place.path().join("disk.img");
    std::fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
    inline_queue(&writable(&path));
}

#[test]
fn root_zram_is_driven_inline() {
    needs!(Need::Zram);
    let zram = Zram::new(8 << 20);
    inline_queue(&writable(zram.path()));
}
