//! A toy write-ahead log on the crash device: right, it passes every state; with each of five mistakes it is caught.
//!
//! Record `n` is two blocks. The pointer, one block, says how many records there are; a record is acknowledged when the
//! pointer that counts it is durable.

use std::sync::Arc;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::{
    Buffer, BufferPool, Device, DeviceQueue, Memory, Op, Priority, Queue, QueueOptions, Request, Wait,
    WriteDurability,
};
use uext4_testkit::Rng;
use uext4_testkit::crash::{Options, State, assert_states, for_each_state};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashLog, CrashOptions};

const SIZE: u64 = 64 << 10;
const RECORD: usize = 1024;
const RECORDS: u64 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    NoFlush,
    PointerWithoutFua,
    FuaOnHalf,
    BufferReused,
    FlushTooEarly,
}

/// How requests are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Calls,
    Queue,
}

/// "This many records are durable."
struct Acknowledged(u64);

fn record(number: u64, buf: &mut [u8]) {
    Rng::new(number).fill(buf);
}

fn place(number: u64) -> u64 {
    4096 + number * RECORD as u64
}

struct Toy {
    device: CrashDevice,
    handle: CrashHandle,
    queue: Queue,
    data: Buffer,
    pointer: Buffer,
    mistake: Mistake,
}

impl Toy {
    fn new(mistake: Mistake) -> Self {
        let inner = MemoryDevice::new(MemoryOptions::new(SIZE)).unwrap();
        let device = CrashDevice::new(Arc::new(inner), CrashOptions::default()).unwrap();
        let (handle, queue) = (device.handle(), device.queue(&QueueOptions::depth(8)).unwrap());
        let pool = BufferPool::new(1 << 16).unwrap();
        let (data, pointer) = (pool.take(RECORD).unwrap(), pool.take(512).unwrap());
        Toy { device, handle, queue, data, pointer, mistake }
    }

    fn push(&mut self, op: Op, pos: u64, length: usize, memory: Memory, fua: bool) {
        let request = Request {
            op,
            fua,
            nowait: false,
            priority: Priority::OF_THREAD,
            pos,
            length: length as u32,
            memory,
            tag: 0,
        };
        // SAFETY: both buffers live as long as the queue. Only a planted mistake changes one meanwhile, on this thread
        // and between calls of the queue, so that no access is concurrent.
        unsafe { self.queue.push(request) }.unwrap();
        self.queue.submit().unwrap();
    }

    /// Waits for everything in flight.
    fn wait(&mut self) {
        let mut out = Vec::with_capacity(8);
        let all = self.queue.in_flight();
        self.queue.reap(&mut out, Wait::AtLeast(all)).unwrap();
        assert!(out.iter().all(|done| done.result >= 0) && out.len() == all as usize, "{out:?}");
    }

    fn append_by_calls(&mut self, number: u64) {
        record(number, &mut self.data);
        let (first, second) = self.data.split_at(512);
        let cached = WriteDurability::Cached;
        match self.mistake {
            Mistake::FuaOnHalf => {
                self.device.write_at(first, place(number), WriteDurability::Fua).unwrap();
                self.device.write_at(second, place(number) + 512, cached).unwrap();
            }
            _ => self.device.write_at(&self.data, place(number), cached).unwrap(),
        }
        if !matches!(self.mistake, Mistake::NoFlush | Mistake::FuaOnHalf) {
            self.device.flush().unwrap();
        }
        self.pointer[..8].copy_from_slice(&(number + 1).to_le_bytes());
        let wrong = self.mistake == Mistake::PointerWithoutFua;
        let durability = if wrong { cached } else { WriteDurability::Fua };
        self.device.write_at(&self.pointer, 0, durability).unwrap();
        self.handle.mark(Acknowledged(number + 1));
    }

    fn append_by_queue(&mut self, number: u64) {
        record(number, &mut self.data);
        let memory = self.data.memory(0);
        let half = self.mistake == Mistake::FuaOnHalf;
        if half {
            let second = self.data.memory(512);
            self.push(Op::Write, place(number), 512, memory, true);
            self.push(Op::Write, place(number) + 512, 512, second, false);
        } else {
            self.push(Op::Write, place(number), RECORD, memory, false);
        }
        match self.mistake {
            Mistake::BufferReused => record(number + 1, &mut self.data),
            Mistake::FlushTooEarly => self.push(Op::Flush, 0, 0, Memory::NONE, false),
            _ => {}
        }
        self.wait();
        if !half && !matches!(self.mistake, Mistake::NoFlush | Mistake::FlushTooEarly) {
            self.push(Op::Flush, 0, 0, Memory::NONE, false);
            self.wait();
        }
        self.pointer[..8].copy_from_slice(&(number + 1).to_le_bytes());
        let memory = self.pointer.memory(0);
        self.push(Op::Write, 0, 512, memory, self.mistake != Mistake::PointerWithoutFua);
        self.wait();
        self.handle.mark(Acknowledged(number + 1));
    }
}

/// What the log's reader would find, and what it must.
fn check(state: &State<'_>) -> Result<(), String> {
    let mut pointer = [0; 512];
    state.read(0, &mut pointer);
    let count = pointer.iter().take(8).rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let acknowledged = state.marks::<Acknowledged>().map(|mark| mark.0).max().unwrap_or(0);
    if count < acknowledged {
        return Err(format!("{acknowledged} records were acknowledged, {count} are there"));
    }
    let (mut found, mut expected) = ([0; RECORD], [0; RECORD]);
    for number in 0..count {
        state.read(place(number), &mut found);
        record(number, &mut expected);
        if found != expected {
            return Err(format!("record {number} of {count} holds something else"));
        }
    }
    Ok(())
}

fn written(way: Way, mistake: Mistake) -> CrashLog {
    let mut toy = Toy::new(mistake);
    for number in 0..RECORDS {
        match way {
            Way::Calls => toy.append_by_calls(number),
            Way::Queue => toy.append_by_queue(number),
        }
    }
    toy.handle.log().unwrap()
}

fn options(way: Way, mistake: Mistake) -> Options {
    Options::new(&format!("toy-{way:?}-{mistake:?}"), 7)
}

#[test]
fn a_sound_log_passes_every_state() {
    for way in [Way::Calls, Way::Queue] {
        let report = assert_states(&written(way, Mistake::None), &options(way, Mistake::None), check);
        // A record has four images before its flush is done, two of them old; then the pointer makes one more.
        assert!(report.complete, "{report}");
        assert_eq!(report.images as u64, RECORDS * 4 + 1, "{report}");
    }
}

#[track_caller]
fn assert_caught(ways: &[Way], mistake: Mistake) {
    for &way in ways {
        let (log, mut options) = (written(way, mistake), options(way, mistake));
        let failure = match for_each_state(&log, &options, check) {
            // Another one is being replayed.
            Ok(report) if options.only.is_some() && report.states == 0 => continue,
            Ok(report) => panic!("{way:?}, {mistake:?} passed: {report}"),
            Err(failure) => failure,
        };
        let text = failure.to_string();
        println!("{text}");
        let replay =
            format!("replay: UEXT4_CRASH_SEED={} UEXT4_CRASH_STATE={} cargo test", failure.seed, failure.id);
        assert!(text.contains("seed") && text.contains(&replay), "{text}");
        // The name alone leads to the same state, and a fresh log is the same.
        options.only = Some(failure.id.clone());
        let again = for_each_state(&written(way, mistake), &options, check).unwrap_err();
        assert_eq!((&again.reason, &again.id), (&failure.reason, &failure.id));
    }
}

#[test]
fn a_missing_flush_is_caught() {
    assert_caught(&[Way::Calls, Way::Queue], Mistake::NoFlush);
}

#[test]
fn a_pointer_without_fua_is_caught() {
    assert_caught(&[Way::Calls, Way::Queue], Mistake::PointerWithoutFua);
}

#[test]
fn fua_on_half_a_record_is_caught() {
    assert_caught(&[Way::Calls, Way::Queue], Mistake::FuaOnHalf);
}

#[test]
fn a_buffer_used_again_before_completion_is_caught() {
    assert_caught(&[Way::Queue], Mistake::BufferReused);
}

#[test]
fn a_flush_submitted_before_the_write_completed_is_caught() {
    assert_caught(&[Way::Queue], Mistake::FlushTooEarly);
}

/// Four writers with a log each, by calls and by queues, and one device.
#[test]
fn several_threads_share_the_device() {
    struct Durable(u64, u8);
    let inner = MemoryDevice::new(MemoryOptions::new(SIZE)).unwrap();
    let device = CrashDevice::new(Arc::new(inner), CrashOptions::default()).unwrap();
    let handle = device.handle();
    handle.shuffle(Some(3));
    let together = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (device, handle, together) = (&device, &handle, &together);
            scope.spawn(move || {
                let mut data = BufferPool::new(4096).unwrap().take(1024).unwrap();
                let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
                for fill in 1..=5 {
                    data.fill(fill);
                    together.wait();
                    let pos = thread * 1024;
                    if thread % 2 == 0 {
                        device.write_at(&data, pos, WriteDurability::Cached).unwrap();
                    } else {
                        let memory = data.memory(0);
                        let (op, length) = (Op::Write, 1024);
                        let request = Request {
                            op,
                            fua: false,
                            nowait: false,
                            priority: Priority::OF_THREAD,
                            pos,
                            length,
                            memory,
                            tag: 0,
                        };
                        // SAFETY: the buffer is left alone until the completion was delivered below.
                        unsafe { queue.push(request) }.unwrap();
                        queue.reap(&mut Vec::with_capacity(1), Wait::AtLeast(1)).unwrap();
                    }
                    device.flush().unwrap();
                    handle.mark(Durable(thread, fill));
                }
            });
        }
    });
    let options = Options::new("threads", 1).at_most(2000);
    let report = assert_states(&handle.log().unwrap(), &options, |state| {
        for Durable(thread, fill) in state.marks() {
            let mut bytes = [0; 1024];
            state.read(thread * 1024, &mut bytes);
            if bytes.iter().any(|byte| byte < fill) {
                return Err(format!("thread {thread} had made {fill} durable"));
            }
        }
        Ok(())
    });
    // Even if none met another.
    assert!(report.states >= 60 && report.images > 4 * 5, "{report}");
}
