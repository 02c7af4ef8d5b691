//! Properties of device requests besides their bytes: number of buffers, and priority.

use crate::common;

use common::sample::sample;
use common::{aligned, patterned, read_write};
use std::sync::{Arc, Mutex};
use uext4::device::{self, Device, Op};
use uext4::device::{CountingDevice, TraceEvent, TracePhase};
use uext4::{
    DeviceSpec, OpenOptions, Priority, PriorityClass, QueueOptions, Volume, VolumeOptions, WriteFlags,
};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs};

/// A device that records its requests.
struct Traced {
    events: Arc<Mutex<Vec<TraceEvent>>>,
    volume: Volume,
}

impl Traced {
    fn new(device: Arc<dyn Device>) -> Traced {
        let events: Arc<Mutex<Vec<TraceEvent>>> = Arc::default();
        let sink = events.clone();
        let device = CountingDevice::with_trace(
            device,
            Arc::new(move |event| {
                if event.phase == TracePhase::Submit {
                    sink.lock().unwrap().push(*event);
                }
            }),
        );
        let volume = Volume::open_device(Arc::new(device), VolumeOptions::read_write()).unwrap();
        Traced { events, volume }
    }

    /// The queued requests since the last call: length, pieces, priority.
    fn queued(&self) -> Vec<(Op, u64, u32, Priority)> {
        let events = std::mem::take(&mut *self.events.lock().unwrap());
        let queued = events.iter().filter(|event| event.queued);
        queued.map(|event| (event.op, event.length, event.pieces, event.priority)).collect()
    }
}

const THREAD: Priority = Priority::OF_THREAD;

/// Buffers of various lengths, read and written as one request if the device takes vectors.
#[test]
fn several_buffers_are_one_request_where_the_device_takes_vectors() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for scheme in ["file", "sync", "mem"] {
        let scratch = Scratch::new(64 << 20);
        let image = scratch.file("image");
        let device: Arc<dyn Device> = if scheme == "mem" {
            sample().device()
        } else {
            sample().save(&image);
            let spec = DeviceSpec::parse(&format!("{scheme}:{}", image.display())).unwrap();
            device::open(&spec, device::OpenOptions { write: true, force: false }).unwrap().device
        };
        let traced = Traced::new(device);
        let file = traced.volume.open_file("/data", read_write()).unwrap();
        let mut queue = traced.volume.queue(QueueOptions::depth(8)).unwrap();
        let slot = queue.attach(&file).unwrap();
        traced.queued();
        let lengths = [4096usize, 512, 12_288, 1024, 2560];
        let total: usize = lengths.iter().sum();
        let pattern = patterned(7, 0, total);
        let mut at = 0;
        let filled = lengths.map(|length| {
            let mut buffer = queue.buffer(length).unwrap();
            buffer.copy_from_slice(&pattern[at..at + length]);
            at += length;
            buffer
        });
        queue.writev(slot, 8192, filled.into(), WriteFlags::DSYNC, 1).unwrap();
        assert_eq!(queue.wait(1).unwrap().next().unwrap().result.unwrap(), total);
        let empty: Vec<_> = lengths.iter().rev().map(|&length| queue.buffer(length).unwrap()).collect();
        queue.readv(slot, 8192, empty, 2).unwrap();
        let done = queue.wait(1).unwrap().next().unwrap();
        assert_eq!(done.result.unwrap(), total);
        let uext4::Payload::Many(buffers) = done.payload else { panic!("several buffers") };
        let found: Vec<u8> = buffers.iter().flat_map(|buffer| buffer.to_vec()).collect();
        assert!(found == *pattern, "{scheme}");
        let writes: Vec<_> = traced.queued().into_iter().filter(|event| event.0 != Op::Flush).collect();
        let (total, pieces) = (total as u64, lengths.len() as u32);
        if scheme == "mem" {
            assert!(writes.len() == 10 && writes.iter().all(|event| event.2 == 1), "{writes:?}");
        } else {
            let wanted = [(Op::Write, total, pieces, THREAD), (Op::Read, total, pieces, THREAD)];
            assert_eq!(writes, wanted, "{scheme}");
        }
        drop((queue, file));
        traced.volume.close().unwrap();
        if scheme != "mem" {
            e2fsck_clean(&image);
        }
    }
}

#[test]
fn requests_have_the_priority_of_their_file_or_queue() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("image");
    sample().save(&image);
    let spec = DeviceSpec::parse(&format!("file:{}", image.display())).unwrap();
    let opened = device::open(&spec, device::OpenOptions { write: true, force: false }).unwrap();
    let traced = Traced::new(opened.device);
    let idle = Priority::new(PriorityClass::Idle, 0).unwrap();
    let low = Priority::new(PriorityClass::BestEffort, 7).unwrap();
    let options = OpenOptions::new().read(true).write(true);
    let plain = traced.volume.open_file("/data", options.clone()).unwrap();
    let last = traced.volume.open_file("/data", options.priority(idle)).unwrap();
    for of_queue in [THREAD, low] {
        let mut queue = traced.volume.queue(QueueOptions::depth(8).priority(of_queue)).unwrap();
        let slots = [queue.attach(&plain).unwrap(), queue.attach(&last).unwrap()];
        traced.queued();
        for slot in slots {
            queue.write(slot, 0, queue.buffer(4096).unwrap(), WriteFlags::empty(), 1).unwrap();
            queue.read(slot, 4096, queue.buffer(4096).unwrap(), 2).unwrap();
        }
        assert!(queue.wait(4).unwrap().all(|done| done.result.unwrap() == 4096));
        let wanted = [THREAD, THREAD, idle, idle];
        let found: Vec<_> = traced.queued().iter().map(|event| event.3).collect();
        assert_eq!(found, wanted, "the queue adds its own behind this layer");
    }
    last.write_at(&aligned(4096), 0).unwrap();
    last.read_at(&mut aligned(4096), 0).unwrap();
    last.read_any_at(&mut [0; 7], 1).unwrap();
    // A process without the right to the priority gets an error at open.
    let first = Priority::new(PriorityClass::RealTime, 0).unwrap();
    match traced.volume.open_file("/data", OpenOptions::new().read(true).priority(first)) {
        Ok(file) => assert_eq!(file.read_at(&mut aligned(4096), 0).unwrap(), 4096),
        Err(error) => assert_eq!(error.errno(), 1, "{error:?}"),
    }
}
