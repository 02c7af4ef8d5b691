//! Event loops that sleep on a queue's descriptor: whoever completes their requests, they are woken up.
use crate::common;

use common::{BLOCK, Bed, memory};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::layer::LatencyDevice;
use uext4_iomap::{OpenFile, State, Switches, WriteFlags};

fn bed(latency: Duration, flush: Duration) -> Bed {
    let mut options = MemoryOptions::new(4 << 20);
    (options.volatile_cache, options.fua) = (true, false);
    let memory = Arc::new(MemoryDevice::new(options).unwrap());
    let device = LatencyDevice::new(memory, Some(latency), Some(flush));
    Bed::new(Arc::new(device), 64, 64, State::Written)
}

fn wakes(event: &OwnedFd, limit: Duration) -> bool {
    let mut fds = [PollFd::new(event, PollFlags::IN)];
    poll(&mut fds, Some(&limit.try_into().unwrap())).unwrap() == 1
}

#[test]
fn a_descriptor_asked_for_during_a_flush_tells_of_its_end() {
    let bed = bed(Duration::ZERO, Duration::from_millis(200));
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    queue.write(slot, 0, memory(4096, 2), WriteFlags::DSYNC, 1).unwrap();
    assert_eq!(queue.poll().unwrap().count(), 0, "its flush began");
    let event = queue.eventfd().unwrap().unwrap();
    assert!(wakes(&event, Duration::from_secs(5)), "nobody woke the loop");
    assert_eq!(queue.poll().unwrap().count(), 1);
    assert!(!wakes(&event, Duration::ZERO), "the descriptor stays readable");
}

#[test]
fn what_a_drainer_reaped_wakes_its_owner() {
    let bed = bed(Duration::from_millis(200), Duration::ZERO);
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    let event = queue.eventfd().unwrap().unwrap();
    for flags in [WriteFlags::empty(), WriteFlags::DSYNC] {
        queue.write(slot, BLOCK, memory(4096, 2), flags, 1).unwrap();
        assert_eq!(queue.poll().unwrap().count(), 0);
        std::thread::scope(|scope| {
            // It waits for the request in flight, and reaps it to get on.
            scope.spawn(|| {
                bed.engine.write_any(&bed.file(Switches::ON), &[9; 9], 5, WriteFlags::empty()).unwrap()
            });
        });
        assert!(wakes(&event, Duration::from_secs(2)), "nobody woke the loop, {flags:?}");
        assert_eq!(queue.poll().unwrap().count(), 1);
        assert!(!wakes(&event, Duration::ZERO), "the descriptor stays readable");
    }
}

/// Somebody holds a file alone and waits for a request of this queue, which is attaching that file.
#[test]
fn a_queue_that_attaches_completes_its_requests() {
    let bed = Arc::new(bed(Duration::from_millis(200), Duration::ZERO));
    let closed = Bed::new(bed.device.clone(), 64, 64, State::Written).inode;
    let file = OpenFile::new(closed.clone(), true, true, Switches::ON);
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    queue.write(slot, BLOCK, memory(4096, 2), WriteFlags::empty(), 1).unwrap();
    queue.submit().unwrap();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let alone = closed.state.gate.lock_exclusive(true, &mut || ());
        let attaching = std::thread::spawn(move || queue.attach(&file).unwrap());
        bed.engine.write_any(&bed.file(Switches::ON), &[9; 9], 5, WriteFlags::empty()).unwrap();
        drop(alone);
        attaching.join().unwrap();
        tell.send(()).unwrap();
    });
    told.recv_timeout(Duration::from_secs(10)).expect("each waits for the other");
}
