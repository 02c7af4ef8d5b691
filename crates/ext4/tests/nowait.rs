//! `NOWAIT`: a request that would have to wait is refused before anything is sent; any other is done.

use crate::common;

use common::sample::{MIXED_ALLOCATED, MIXED_SIZE, sample};
use common::{Image, aligned, read_all, read_only, read_write};
use std::sync::Arc;
use uext4::device::CountingDevice;
use uext4::{
    Counter, Error, File, FileSlot, IoQueue, QueueOptions, ReadFlags, Switches, Volume, VolumeOptions,
    WriteFlags,
};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultOn};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs};

/// A volume on a counting device, with a queue.
struct Bed {
    device: Arc<CountingDevice>,
    volume: Volume,
    queue: IoQueue,
}

impl Bed {
    fn new(options: VolumeOptions) -> Bed {
        let device = sample().device_with(|options| (options.volatile_cache, options.fua) = (true, true));
        let device = Arc::new(CountingDevice::new(device));
        let volume = Volume::open_device(device.clone(), options).unwrap();
        let queue = volume.queue(QueueOptions::depth(8)).unwrap();
        Bed { device, volume, queue }
    }

    fn open(&mut self, path: &str) -> (File, FileSlot) {
        let file = self.volume.open_file(path, read_write()).unwrap();
        let slot = self.queue.attach(&file).unwrap();
        (file, slot)
    }

    /// Runs `request`, which must be refused without a device request, a handle or a loaded map.
    #[track_caller]
    fn refuses<T: std::fmt::Debug>(&mut self, request: impl FnOnce(&mut IoQueue) -> uext4::Result<T>) {
        let before = (self.device.counts(), self.volume.stats());
        let refused = request(&mut self.queue);
        assert!(matches!(refused, Err(Error::WouldBlock(_))), "{refused:?}");
        assert_eq!(self.device.counts(), before.0, "the device was asked");
        let count = |counter| self.volume.stats().get(counter) - before.1.get(counter);
        assert_eq!(count(Counter::WouldBlock), 1);
        for counter in
            [Counter::HandlesStarted, Counter::MapLoads, Counter::ExclusiveWrites, Counter::Flushes]
        {
            assert_eq!(count(counter), 0, "{}", counter.name());
        }
        assert_eq!(self.queue.pending(), 0);
    }

    /// A write of one block that must be refused as a call and in a queue.
    #[track_caller]
    fn refuses_write(&mut self, (file, slot): &(File, FileSlot), pos: u64, length: usize) {
        self.refuses(|_| file.write_at_with(&aligned(length), pos, WriteFlags::NOWAIT));
        self.refuses(|queue| {
            let buffer = queue.buffer(length).unwrap();
            queue.write(*slot, pos, buffer, WriteFlags::NOWAIT, 1)
        });
    }

    fn writes(&mut self, (file, slot): &(File, FileSlot), pos: u64, flags: WriteFlags) {
        let flags = flags | WriteFlags::NOWAIT;
        assert_eq!(file.write_at_with(&aligned(4096), pos, flags).unwrap(), 4096);
        self.writes_queued(*slot, pos, flags);
    }

    fn writes_queued(&mut self, slot: FileSlot, pos: u64, flags: WriteFlags) {
        let buffer = self.queue.buffer(4096).unwrap();
        self.queue.write(slot, pos, buffer, flags, 1).unwrap();
        let done = self.queue.wait(1).unwrap().next().unwrap();
        assert_eq!(done.result.unwrap(), 4096);
    }
}

#[test]
fn a_map_that_is_not_loaded_is_not_waited_for() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let mut bed = Bed::new(VolumeOptions::read_write());
    let frag = bed.open("/frag");
    bed.refuses_write(&frag, 0, 4096);
    let nowait = ReadFlags::NOWAIT;
    bed.refuses(|_| frag.0.read_at_with(&mut aligned(4096), 0, nowait));
    bed.refuses(|queue| {
        let buffer = queue.buffer(4096).unwrap();
        queue.read_with(frag.1, 0, buffer, nowait, 1)
    });
    // Load it with a waiting call; after that no call has to wait.
    let expected = read_all(&frag.0);
    let mut bytes = aligned(512 << 10);
    assert_eq!(frag.0.read_at_with(&mut bytes, 0, nowait).unwrap(), bytes.len());
    assert_eq!(bytes[..], expected);
    let buffer = bed.queue.buffer(64 << 10).unwrap();
    bed.queue.read_with(frag.1, 64 << 10, buffer, nowait, 7).unwrap();
    let done = bed.queue.wait(1).unwrap().next().unwrap();
    assert_eq!(done.into_buffer().unwrap()[..], expected[64 << 10..128 << 10]);
    bed.writes(&frag, 4096, WriteFlags::empty());
    // Past the end no mapping is needed.
    assert_eq!(frag.0.read_at_with(&mut aligned(4096), 1 << 20, nowait).unwrap(), 0);
    let tail = bed.open("/tail");
    read_all(&tail.0);
    assert_eq!(tail.0.read_at_with(&mut aligned(16384), 0, nowait).unwrap(), 10_000, "up to the end");
}

#[test]
fn allocation_and_a_new_size_are_not_waited_for() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let mut bed = Bed::new(VolumeOptions::read_write());
    let mixed = bed.open("/mixed");
    let before = read_all(&mixed.0);
    bed.refuses_write(&mixed, MIXED_ALLOCATED, 4096);
    bed.refuses_write(&mixed, MIXED_ALLOCATED - 4096, 8192);
    bed.refuses_write(&mixed, MIXED_SIZE, 4096);
    bed.refuses_write(&mixed, MIXED_SIZE + (1 << 20), 4096);
    // Partial blocks that are not written need zeroing with the gate held exclusively.
    bed.refuses_write(&mixed, MIXED_ALLOCATED - 512, 512);
    bed.refuses(|_| mixed.0.write_any_at(b"any bytes", 1, WriteFlags::NOWAIT));
    let append = bed.volume.open_file("/mixed", uext4::OpenOptions::new().append(true)).unwrap();
    let refused = append.append(b"more", WriteFlags::NOWAIT);
    assert!(matches!(refused, Err(Error::WouldBlock(_))), "{refused:?}");
    assert_eq!((read_all(&mixed.0), mixed.0.size()), (before, MIXED_SIZE));
    bed.writes(&mixed, 4096, WriteFlags::DSYNC);
}

/// A queue converts when the data is complete, so it waits for nothing if the map blocks can be promised. The calling
/// thread would wait for the handle.
#[test]
fn unwritten_blocks_are_filled_by_a_queue_alone() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let mut bed = Bed::new(VolumeOptions::read_write());
    let mixed = bed.open("/mixed");
    read_all(&mixed.0);
    let pos = MIXED_ALLOCATED - 16384;
    bed.writes_queued(mixed.1, pos, WriteFlags::NOWAIT);
    bed.writes_queued(mixed.1, pos + 4096, WriteFlags::empty());
    bed.writes_queued(mixed.1, pos + 8192, WriteFlags::NOWAIT | WriteFlags::DSYNC);
    bed.refuses(|_| mixed.0.write_at_with(&aligned(4096), pos + 12288, WriteFlags::NOWAIT));
    let read = bed.volume.open_file("/mixed", read_only()).unwrap();
    let unwritten = read.map().filter(|piece| piece.as_ref().unwrap().state == uext4::State::Unwritten);
    let left: Vec<_> = unwritten.map(|piece| piece.unwrap()).collect();
    assert_eq!(left.last().map(|piece| (piece.logical, piece.length)), Some((pos + 12288, 4096)));
}

/// The plain route of `overwrite-no-transaction` starts a handle, which may wait for log space.
#[test]
fn a_handle_is_not_waited_for() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let off = Switches { overwrite_no_transaction: false, ..Switches::ON };
    let mut bed = Bed::new(VolumeOptions::read_write().switches(off));
    let data = bed.open("/data");
    read_all(&data.0);
    bed.refuses_write(&data, 0, 4096);
    // A second time: no decision was cached.
    bed.refuses_write(&data, 0, 4096);
    bed.writes_queued(data.1, 0, WriteFlags::empty());
}

/// A full device answers `EAGAIN` to requests that must not wait. That loses nothing and aborts nothing.
#[test]
fn a_device_without_room_is_not_waited_for() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let inner = sample().device_with(|options| (options.volatile_cache, options.fua) = (true, true));
    let device = FaultDevice::new(inner.clone());
    let faults = device.handle();
    let volume = Volume::open_device(Arc::new(device), VolumeOptions::read_write()).unwrap();
    let file = volume.open_file("/data", read_write()).unwrap();
    let before = read_all(&file);
    let mut queue = volume.queue(QueueOptions::depth(8)).unwrap();
    let slot = queue.attach(&file).unwrap();
    let busy = |on| Fault { on, range: None, after: 0, times: u64::MAX, action: FaultAction::Errno(11) };
    let would_block = |queue: &mut IoQueue| {
        let done = queue.wait(1).unwrap().next().unwrap();
        assert!(
            matches!(done.result.as_ref().map_err(|error| &**error), Err(Error::WouldBlock(_))),
            "{:?}",
            done.result
        );
    };

    // Only `NOWAIT` requests are refused, and the flag is passed to the device.
    faults.arm(busy(FaultOn::Nowait));
    for flags in [WriteFlags::empty(), WriteFlags::DSYNC] {
        queue.write(slot, 4096, queue.buffer(4096).unwrap(), flags | WriteFlags::NOWAIT, 1).unwrap();
        would_block(&mut queue);
    }
    queue.read_with(slot, 0, queue.buffer(64 << 10).unwrap(), ReadFlags::NOWAIT, 2).unwrap();
    would_block(&mut queue);
    assert_eq!(faults.fired(), 3);
    queue.read(slot, 0, queue.buffer(4096).unwrap(), 3).unwrap();
    assert_eq!(queue.wait(1).unwrap().next().unwrap().result.unwrap(), 4096);
    // Longer ones may be split, and would be refused each time.
    queue.read_with(slot, 0, queue.buffer(256 << 10).unwrap(), ReadFlags::NOWAIT, 4).unwrap();
    assert_eq!(queue.wait(1).unwrap().next().unwrap().result.unwrap(), 256 << 10);
    assert_eq!(faults.fired(), 3);

    faults.clear();
    faults.arm(busy(FaultOn::Any));
    let refused = file.read_at_with(&mut aligned(4096), 0, ReadFlags::NOWAIT);
    assert!(matches!(refused, Err(Error::WouldBlock(_))), "{refused:?}");
    for flags in [WriteFlags::empty(), WriteFlags::DSYNC] {
        let refused = file.write_at_with(&aligned(4096), 4096, flags | WriteFlags::NOWAIT);
        assert!(matches!(refused, Err(Error::WouldBlock(_))), "{refused:?}");
    }

    faults.clear();
    assert_eq!(read_all(&file), before);
    file.write_at_with(&aligned(4096), 4096, WriteFlags::DSYNC).unwrap();
    drop((queue, file));
    volume.close().unwrap();
    let scratch = Scratch::new(1 << 20);
    let image = scratch.file("image");
    Image::of(&*inner).save(&image);
    e2fsck_clean(&image);
}
