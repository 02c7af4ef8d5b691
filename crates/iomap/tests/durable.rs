//! Queues and threads that wait for flushes: they share them, and `poll` does not wait.
use crate::common;

use common::{BLOCK, Bed, memory, outcome};
use rustix::event::{PollFd, PollFlags, poll};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::layer::{CountingDevice, LatencyDevice};
use uext4_blockdev::{Device, Op};
use uext4_iomap::{Counter, Error, State, Switches, WriteFlags};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultOn, LateDevice};

/// A device with a cache, without FUA, whose flushes take this long.
fn slow(flush: Duration) -> Arc<dyn Device> {
    let mut options = MemoryOptions::new(4 << 20);
    (options.volatile_cache, options.fua) = (true, false);
    Arc::new(LatencyDevice::new(Arc::new(MemoryDevice::new(options).unwrap()), None, Some(flush)))
}

fn bed(flush: Duration) -> Bed {
    Bed::new(slow(flush), 64, 64, State::Written)
}

#[test]
fn concurrent_syncs_share_flushes() {
    const THREADS: u64 = 16;
    let bed = bed(Duration::from_millis(100));
    let together = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (bed, together) = (&bed, &together);
            scope.spawn(move || {
                let file = bed.file(Switches::ON);
                together.wait();
                bed.engine.write_at(&file, &memory(4096, 1), thread * BLOCK, WriteFlags::DSYNC).unwrap();
            });
        }
    });
    // The first one's own, one for all who came during it, and one for who was late.
    let flushes = bed.count(Counter::Flushes);
    assert!((2..=4).contains(&flushes), "{flushes} flushes of {THREADS} threads");
}

/// The longest call of `poll` until `count` requests are done, while they need a flush of this length.
fn longest_poll(bed: &Bed, count: usize) -> Duration {
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    for n in 0..count as u64 {
        queue.write(slot, n * BLOCK, memory(4096, 2), WriteFlags::DSYNC, n).unwrap();
    }
    let (mut longest, mut done) = (Duration::ZERO, 0);
    while done < count {
        let started = Instant::now();
        done += queue.poll().unwrap().inspect(|done| assert!(done.result.is_ok())).count();
        longest = longest.max(started.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    longest
}

#[test]
fn poll_does_not_wait_for_a_flush() {
    let bed = bed(Duration::from_millis(700));
    let longest = longest_poll(&bed, 3);
    assert!(longest < Duration::from_millis(350), "{longest:?}");
    assert_eq!(bed.count(Counter::Flushes), 1);
}

#[test]
fn poll_does_not_wait_for_somebody_elses_flush() {
    let bed = bed(Duration::from_millis(700));
    std::thread::scope(|scope| {
        scope.spawn(|| bed.engine.sync(&bed.file(Switches::ON), false).unwrap());
        while bed.count(Counter::Flushes) == 0 {
            std::thread::yield_now();
        }
        let longest = longest_poll(&bed, 1);
        assert!(longest < Duration::from_millis(350), "{longest:?}");
    });
}

/// A drainer finishes what an idle queue has in flight, flush included, and its owner can poll all the while.
#[test]
fn a_harvester_does_not_keep_the_owner_out() {
    let bed = bed(Duration::from_millis(700));
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    queue.write(slot, 0, memory(4096, 2), WriteFlags::DSYNC, 1).unwrap();
    queue.submit().unwrap();
    let drained = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let data = [9; 100];
            bed.engine.write_any(&bed.file(Switches::ON), &data, 5, WriteFlags::empty()).unwrap();
            drained.store(true, Ordering::SeqCst);
        });
        // Until the drainer has it.
        while bed.count(Counter::Flushes) == 0 {
            std::thread::yield_now();
        }
        let started = Instant::now();
        assert_eq!(queue.poll().unwrap().count(), 0, "it is not durable yet");
        let took = started.elapsed();
        assert!(took < Duration::from_millis(350), "{took:?}");
        assert!(!drained.load(Ordering::SeqCst));
    });
    assert_eq!(outcome(&mut queue), Ok(4096));
    assert_eq!(bed.count(Counter::Flushes), 1);
}

/// While a drainer makes one batch of an idle queue durable, the next one lands: it waits for a flush of its own.
#[test]
fn a_batch_that_lands_while_a_drainer_flushes_is_not_lost() {
    let late = LateDevice::new(slow(Duration::ZERO));
    let handle = late.handle();
    let bed = Bed::new(Arc::new(late), 64, 64, State::Written);
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    handle.hold();
    queue.write(slot, BLOCK, memory(4096, 2), WriteFlags::DSYNC, 1).unwrap();
    queue.submit().unwrap();
    assert_eq!(handle.land(), 1);
    for n in 2..5 {
        queue.write(slot, n * BLOCK, memory(4096, 3), WriteFlags::DSYNC, n).unwrap();
    }
    queue.submit().unwrap();
    // The flush of the first one is when the others land.
    handle.land_before(Some(Op::Flush));
    bed.engine.write_any(&bed.file(Switches::ON), &[9; 100], 5, WriteFlags::empty()).unwrap();
    assert_eq!(bed.inode.state.gate.in_flight(), 0, "the write had to wait for all of them");
    let results: Vec<_> =
        queue.wait(4).unwrap().map(|done| (done.tag, done.result.map_err(|error| *error))).collect();
    assert_eq!(results, [1, 2, 3, 4].map(|tag| (tag, Ok(4096))));
    assert_eq!(bed.count(Counter::Flushes), 2);
}

#[test]
fn what_becomes_durable_wakes_an_event_loop() {
    let bed = bed(Duration::from_millis(50));
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    let event = queue.eventfd().unwrap().expect("this device has a descriptor");
    for round in 0..3 {
        queue.write(slot, 0, memory(4096, 2), WriteFlags::DSYNC, round).unwrap();
        queue.sync_data(slot, round).unwrap();
        queue.submit().unwrap();
        let (mut done, mut calls) = (0, 0);
        while done < 2 {
            done += queue.poll().unwrap().inspect(|done| assert!(done.result.is_ok())).count();
            calls += 1;
            if done < 2 {
                let mut fds = [PollFd::new(&event, PollFlags::IN)];
                let limit = Duration::from_secs(20).try_into().unwrap();
                assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "nobody woke the loop");
            }
        }
        assert!(calls < 20, "{calls} calls: the descriptor stays readable");
    }
}

#[test]
fn a_time_out_holds_beside_a_flush() {
    let bed = bed(Duration::from_millis(600));
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    queue.write(slot, 0, memory(4096, 2), WriteFlags::DSYNC, 1).unwrap();
    let started = Instant::now();
    assert_eq!(queue.wait_timeout(Duration::from_millis(50)).unwrap().count(), 0);
    assert!(started.elapsed() < Duration::from_millis(400), "{:?}", started.elapsed());
    assert_eq!(queue.wait_timeout(Duration::from_secs(60)).unwrap().count(), 1);
    assert!(started.elapsed() < Duration::from_secs(30), "it returned when it was done");
    assert_eq!(queue.pending(), 0);
}

#[test]
fn a_time_out_may_be_as_long_as_one_likes() {
    let bed = bed(Duration::from_millis(5));
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    for flags in [WriteFlags::empty(), WriteFlags::DSYNC] {
        queue.write(slot, 0, memory(4096, 2), flags, 1).unwrap();
        assert_eq!(queue.wait_timeout(Duration::MAX).unwrap().count(), 1);
    }
}

/// Dropped, with a flush under way that another thread runs: nothing is lost and nothing hangs.
#[test]
fn a_queue_is_dropped_while_its_requests_become_durable() {
    let bed = bed(Duration::from_millis(100));
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    queue.write(slot, 0, memory(4096, 2), WriteFlags::DSYNC, 1).unwrap();
    assert_eq!(queue.poll().unwrap().count(), 0);
    queue.write(slot, BLOCK, memory(4096, 3), WriteFlags::DSYNC, 2).unwrap();
    drop(queue);
    assert_eq!(bed.inode.state.gate.in_flight(), 0);
    assert_eq!(bed.count(Counter::Flushes), 2);
}

/// Bounced writes read, change and write back: they wait for what is in flight, and the device moves nothing before it
/// has to.
#[test]
fn a_bounced_write_waits_for_what_is_in_flight() {
    let mut options = MemoryOptions::new(4 << 20);
    (options.volatile_cache, options.fua) = (true, true);
    let late = LateDevice::new(Arc::new(MemoryDevice::new(options).unwrap()));
    let bed = Bed::new(Arc::new(late), 64, 64, State::Written);
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    queue.write(slot, 0, memory(4096, 7), WriteFlags::empty(), 1).unwrap();
    queue.submit().unwrap();
    bed.engine.write_any(&bed.file(Switches::ON), &[9; 100], 5, WriteFlags::empty()).unwrap();
    assert_eq!(outcome(&mut queue), Ok(4096));
    let mut expected = vec![7; 4096];
    expected[5..105].fill(9);
    assert!(bed.on_device()[..4096] == expected[..], "one of the two writes is lost");
}

/// A FUA write that is put off is sent again as one, in one piece or in several.
#[test]
fn what_is_sent_again_stays_a_fua_write() {
    for run in [64, 1] {
        let mut options = MemoryOptions::new(4 << 20);
        (options.volatile_cache, options.fua) = (true, true);
        let counting = Arc::new(CountingDevice::new(Arc::new(MemoryDevice::new(options).unwrap())));
        let counters = counting.counters();
        let faulty = FaultDevice::new(counting);
        let again = Fault { times: 3, action: FaultAction::Errno(11), ..Fault::nth(FaultOn::FuaWrite, 1) };
        faulty.handle().arm(again);
        let handle = faulty.handle();
        let bed = Bed::new(Arc::new(faulty), 64, run, State::Written);
        let (mut queue, slot) = bed.queue(8, Switches::ON);
        queue.write(slot, 0, memory(3 * 4096, 7), WriteFlags::DSYNC, 1).unwrap();
        assert_eq!(outcome(&mut queue), Ok(3 * 4096));
        let counted = counters.take();
        assert_eq!(handle.fired(), 3);
        assert_eq!((counted.fua_writes, counted.flushes), (counted.writes, 0), "runs of {run}: {counted:?}");
        assert!(bed.on_device()[..3 * 4096].iter().all(|&byte| byte == 7));
    }
}

/// Of requests that share a commit, one that wants all metadata gets it.
#[test]
fn a_full_sync_in_a_batch_is_one() {
    let bed = bed(Duration::ZERO);
    let (mut queue, slot) = bed.queue(8, Switches::ON);
    for (flags, full) in [(WriteFlags::DSYNC, 0), (WriteFlags::SYNC, 1), (WriteFlags::DSYNC, 1)] {
        queue.write(slot, 0, memory(4096, 1), flags, 1).unwrap();
        queue.write(slot, BLOCK, memory(4096, 2), WriteFlags::DSYNC, 2).unwrap();
        assert_eq!(queue.wait(2).unwrap().count(), 2);
        assert_eq!(bed.engine.fs().full_commits(), full, "{flags:?}");
    }
}

/// Whoever makes a batch durable and panics: its requests fail by an error of their own, and the queue goes on.
#[test]
fn a_batch_that_a_panic_cuts_off_fails() {
    for way in 0..3 {
        let bed = bed(Duration::ZERO);
        let (mut queue, slot) = bed.queue(8, Switches::ON);
        queue.write(slot, 0, memory(4096, 1), WriteFlags::DSYNC, 1).unwrap();
        bed.engine.fs().panics.store(true, Ordering::SeqCst);
        match way {
            0 => assert!(catch_unwind(AssertUnwindSafe(|| queue.wait(1).map(drop))).is_err()),
            // A thread of its own does it.
            1 => assert_eq!(queue.poll().unwrap().count(), 0),
            _ => {
                let drain =
                    || bed.engine.write_any(&bed.file(Switches::ON), &[9; 100], 5, WriteFlags::empty());
                assert!(catch_unwind(AssertUnwindSafe(drain)).is_err());
            }
        }
        assert_eq!(outcome(&mut queue), Err(Error::CutOff), "way {way}");
        assert_eq!((queue.pending(), bed.inode.state.gate.in_flight()), (0, 0));
        queue.write(slot, 0, memory(4096, 2), WriteFlags::DSYNC, 2).unwrap();
        assert_eq!(outcome(&mut queue), Ok(4096));
        bed.engine.write_any(&bed.file(Switches::ON), &[9; 100], 5, WriteFlags::empty()).unwrap();
    }
}

/// `O_SYNC` covers the times of the file: they are noted when the data is there, so the commit behind it has them, and
/// nothing notes them again when the write is told to be done.
#[test]
fn the_time_of_a_queued_write_is_noted_before_its_commit() {
    for (length, vector) in [(1, false), (3, false), (2, true)] {
        let bed = Bed::new(slow(Duration::ZERO), 64, if length == 3 { 1 } else { 64 }, State::Written);
        let (mut queue, slot) = bed.queue(8, Switches::ON);
        if vector {
            let buffers = vec![memory(4096, 1), memory(4096, 2)];
            queue.writev(slot, 0, buffers, WriteFlags::SYNC, 1).unwrap();
        } else {
            queue.write(slot, 0, memory(length * 4096, 1), WriteFlags::SYNC, 1).unwrap();
        }
        assert_eq!(outcome(&mut queue), Ok(length * 4096));
        let committed = bed.engine.fs().committed_write_ns.load(Ordering::SeqCst);
        assert_ne!(committed, 0, "{length} blocks, vector {vector}");
        assert_eq!(bed.inode.state.gate.last_write_ns(), committed, "{length} blocks, vector {vector}");
    }
}
