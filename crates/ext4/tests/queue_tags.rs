//! Queues of a volume with more requests than their device accepts at once: those held back count as in flight for
//! everybody, and whoever waits for them sends them.

use crate::common;

use common::sample::sample;
use common::{aligned, assert_same_bytes, read_write, within};
use std::sync::mpsc;
use std::time::Duration;
use uext4::{Buffer, Counter, DeviceSpec, IoQueue, QueueOptions, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::guard::{LoopDevice, LoopOptions};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs};

const LIMIT: Duration = Duration::from_secs(30);
/// Tags of the device, and of the queue.
const TAGS: u32 = 4;
const DEPTH: u32 = 96;

fn filled(queue: &IoQueue, byte: u8) -> Buffer {
    let mut buffer = queue.buffer(4096).unwrap();
    buffer.fill(byte);
    buffer
}

/// Runs `work` on the sample on a loop device with few tags, then checks the volume.
fn on_few_tags(work: impl FnOnce(&Volume) + Send + 'static) {
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("image");
    sample().save(&path);
    let mut node = LoopDevice::attach(&path, LoopOptions { direct_io: true, ..LoopOptions::default() });
    node.set_attribute("queue/nr_requests", &TAGS.to_string());
    let spec = DeviceSpec::file(node.path());
    within(LIMIT, move || {
        let volume = Volume::open_spec(&spec, VolumeOptions::read_write()).unwrap();
        work(&volume);
    });
    drop(node);
    e2fsck_clean(&path);
}

#[test]
fn root_a_drainer_sends_what_another_threads_queue_holds_back() {
    needs!(Need::Loop, Need::Tool("e2fsck"));
    on_few_tags(|volume| {
        let (told, heard) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let other = volume.clone();
        let idle = std::thread::spawn(move || {
            let mut queue = other.queue(QueueOptions::depth(DEPTH)).unwrap();
            let slot = queue.attach(&other.open_file("/data", read_write()).unwrap()).unwrap();
            for n in 0..u64::from(DEPTH) {
                // All in the same blocks, one after another: the last one wins, whichever it is.
                queue.write(slot, n % 8 * 4096, filled(&queue, 3), WriteFlags::empty(), n).unwrap();
            }
            assert_eq!(queue.submit().unwrap(), DEPTH as usize);
            told.send(()).unwrap();
            // Reaps nothing until the drainer is done.
            released.recv().unwrap();
            let mut done = 0;
            while done < DEPTH {
                done += queue.wait(1).unwrap().inspect(|done| assert!(done.result.is_ok())).count() as u32;
            }
        });
        heard.recv().unwrap();
        let file = volume.open_file("/data", read_write()).unwrap();
        file.write_any_at(&[7; 3], 1, WriteFlags::empty()).unwrap();
        let mut bytes = [0; 5];
        file.read_any_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [3, 7, 7, 7, 3], "the drained requests came first");
        release.send(()).unwrap();
        idle.join().unwrap();
        assert_eq!(volume.stats().get(Counter::DrainStalls), 0);
    });
}

#[test]
fn root_a_dropped_queue_has_written_all_that_was_submitted() {
    needs!(Need::Loop, Need::Tool("e2fsck"));
    on_few_tags(|volume| {
        let file = volume.open_file("/data", read_write()).unwrap();
        let mut queue = volume.queue(QueueOptions::depth(DEPTH)).unwrap();
        let slot = queue.attach(&file).unwrap();
        for n in 0..u64::from(DEPTH) {
            queue.write(slot, n * 4096, filled(&queue, 9), WriteFlags::empty(), n).unwrap();
        }
        queue.submit().unwrap();
        drop(queue);
        let written = DEPTH as usize * 4096;
        let mut found = aligned(written);
        assert_eq!(file.read_at(&mut found, 0).unwrap(), written);
        assert_same_bytes(&vec![9; written], &found);
    });
}
