//! A queue's requests do not wait for each other: what tells is how many are in flight below.

use super::create::{Qcow2Options, create};
use super::device::Qcow2Device;
use super::image::{Image, open};
use crate::bytes::Bytes;
use crate::disk::{Disk, RawDisk};
use crate::named::Chain;
use std::sync::Arc;
use std::time::Duration;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::spec::{Format, Named};
use uext4_blockdev::{
    Buffer, BufferPool, Device, Done, ImageOptions, Op, QueueOptions, Store, Wait, WriteDurability,
};
use uext4_testkit::Flight;
use uext4_testkit::device::{DeviceFile, LateDevice, LateHandle};

const DISK: u64 = 8 << 20;
const DEPTH: u32 = 32;

pub(super) fn memory(size: u64) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(MemoryOptions::new(size)).unwrap())
}

fn late(inner: Arc<dyn Device>) -> (Arc<dyn Device>, LateHandle) {
    let device = LateDevice::new(inner);
    let handle = device.handle();
    (Arc::new(device), handle)
}

/// An empty image in this file, over a disk.
pub(super) fn image(file: Arc<dyn Store>, below: Option<Arc<dyn Disk>>, write: bool) -> Arc<Image> {
    create(&file, Qcow2Options { size: DISK, cluster_size: 65536 }).unwrap();
    let place = tempfile::NamedTempFile::new().unwrap();
    let (format, named) = (None, Named::No);
    let path = place.path();
    let options = ImageOptions { path, write, force: false, sync: true, format, named };
    let chain = Chain::begin(&options, Format::Qcow2).unwrap();
    let mut image =
        open(path, Bytes::new(file), &chain, write, &|_, _, _, _| unreachable!("it names no other")).unwrap();
    image.below = below;
    Arc::new(image)
}

/// A raw disk whose every block holds its number, and `late` if its queue is.
fn base(size: u64) -> (Arc<dyn Disk>, LateHandle) {
    let device = memory(size);
    let mut block = buffer(512);
    for number in 0..size / 512 {
        block.fill(number as u8);
        device.write_at(&block, number * 512, WriteDurability::Cached).unwrap();
    }
    let (device, handle) = late(device);
    let file = DeviceFile::new(device);
    (Arc::new(RawDisk::open("base".into(), Bytes::new(file)).unwrap()), handle)
}

pub(super) fn buffer(length: usize) -> Buffer {
    BufferPool::new(length.max(4096)).unwrap().take(length).unwrap()
}

fn flight(device: &dyn Device) -> Flight {
    Flight::new(device.queue(&QueueOptions::depth(DEPTH)).unwrap())
}

/// Through none, one and two empty images above it.
#[test]
fn reads_of_the_backing_file_are_in_flight_together() {
    for chain in 1..=3 {
        let (mut below, handle) = base(DISK);
        for _ in 1..chain {
            below = image(DeviceFile::growing(memory(4 << 20), 0), Some(below), false);
        }
        let device = Qcow2Device::new(image(DeviceFile::growing(memory(4 << 20), 0), Some(below), true));
        let mut queue = flight(&device);
        let held = handle.held();
        for tag in 0..u64::from(DEPTH) {
            queue.push(Op::Read, tag * 200 * 1024, buffer(4096), tag);
        }
        assert_eq!(queue.submit(), DEPTH as usize);
        assert_eq!((handle.waiting(), queue.in_flight()), (DEPTH as usize, DEPTH));
        assert!(queue.reap(Wait::No).unwrap().is_empty());
        // The last one first.
        for left in (0..DEPTH as usize).rev() {
            handle.land_one(left);
        }
        drop(held);
        for (tag, (done, buffer)) in (0..).zip(queue.reap_all()) {
            assert_eq!(done, Done { tag, result: 4096 }, "{chain}");
            let wanted = (tag * 400) as u8;
            assert_eq!((buffer[0], buffer[4095]), (wanted, wanted + 7), "{chain}: {tag}");
        }
    }
}

/// Reads of both files and answers of the image itself, in one queue.
#[test]
fn reads_of_both_files_are_in_flight_together() {
    let (below, under) = base(DISK - 65536);
    let (file, over) = late(memory(4 << 20));
    let device = Qcow2Device::new(image(DeviceFile::growing(file, 0), Some(below), true));
    let mut block = buffer(65536);
    block.fill(0xaa);
    for cluster in 0..8 {
        device.write_at(&block, cluster * 65536, WriteDurability::Cached).unwrap();
    }
    let mut queue = flight(&device);
    let (first, second) = (over.held(), under.held());
    for tag in 0..24 {
        // Eight of the image, eight of the backing file, eight behind its end.
        let pos = match tag / 8 {
            0 => tag * 65536,
            1 => (1 << 20) + tag * 4096,
            _ => DISK - 65536 + (tag - 16) * 4096,
        };
        queue.push(Op::Read, pos, buffer(4096), tag);
    }
    queue.submit();
    assert_eq!((over.waiting(), under.waiting(), queue.in_flight()), (8, 8, 24));
    let tags = |reaped: &[(Done, Buffer)], group: u64| {
        reaped.len() == 8 && reaped.iter().all(|(done, _)| done.tag / 8 == group && done.result == 4096)
    };
    let behind = queue.reap(Wait::AtLeast(8)).unwrap();
    assert!(tags(&behind, 2), "{behind:?}");
    assert!(behind.iter().all(|(_, buffer)| buffer.iter().all(|byte| *byte == 0)));
    assert!(queue.reap(Wait::Timeout(Duration::from_millis(1))).unwrap().is_empty());
    assert_eq!(under.land(), 8);
    drop(second);
    let below = queue.reap(Wait::AtLeast(8)).unwrap();
    assert!(tags(&below, 1), "{below:?}");
    assert!(below.iter().all(|(done, buffer)| buffer[0] == (2048 + done.tag * 8) as u8));
    drop(first);
    let here = queue.reap_all();
    assert!(tags(&here, 0), "{here:?}");
    assert!(here.iter().all(|(_, buffer)| buffer.iter().all(|byte| *byte == 0xaa)));
    // What no file has in one piece is read all the same.
    queue.push(Op::Read, DISK - 65536 - 4096, buffer(8192), 1);
    let (done, both) = queue.reap_all().remove(0);
    assert_eq!((done.result, both[0], both[4095], both[4096]), (8192, 120, 127, 0));
}

/// Writes into new clusters go to the file's queue at once, and neighbours in one cluster do not wait for each other.
#[test]
fn writes_into_new_clusters_are_in_flight_together() {
    let (file, handle) = late(memory(16 << 20));
    let device = Qcow2Device::new(image(DeviceFile::growing(file, 0), None, true));
    let mut queue = flight(&device);
    let held = handle.held();
    let place = |tag: u64| (tag / 2) * 3 * 65536 + (tag % 2) * 8192;
    for tag in 0..u64::from(DEPTH) {
        let mut buffer = buffer(4096);
        buffer.fill(tag as u8 + 1);
        queue.push(Op::Write, place(tag), buffer, tag);
    }
    queue.submit();
    assert_eq!(handle.waiting(), DEPTH as usize);
    // Nothing has landed: the disk is as it was.
    let mut all = buffer(65536);
    device.read_at(&mut all, place(2)).unwrap();
    assert!(all.iter().all(|byte| *byte == 0));
    assert_eq!(handle.land(), DEPTH as usize);
    drop(held);
    assert!(queue.reap_all().iter().all(|(done, _)| done.result == 4096));
    device.flush().unwrap();
    for tag in 0..u64::from(DEPTH) {
        device.read_at(&mut all, place(tag) & !65535).unwrap();
        let inside = (place(tag) & 65535) as usize;
        assert!(all[inside..inside + 4096].iter().all(|byte| *byte == tag as u8 + 1), "{tag}");
        assert!(all[4096..8192].iter().chain(&all[12288..]).all(|byte| *byte == 0), "{tag}");
    }
}
