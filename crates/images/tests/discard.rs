//! Discards free clusters, and what is freed is used again, but not too early.

use crate::crash::{loaded, loaded_in, open_in, take};
use crate::tools::{assert_same, check, contents, converted, img, io, make, open, path};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};
use uext4_blockdev::engine::MemoryOptions;
use uext4_blockdev::layer::wrap::DeviceLayer;
use uext4_blockdev::{Device, Done, Error, ImageFault, Op, QueueOptions, WriteDurability};
use uext4_testkit::device::{DeviceFile, Fault, FaultDevice, FaultOn, LateDevice};
use uext4_testkit::{Flight, Need, Scratch, needs};

const MIB: u64 = 1 << 20;

/// As QEMU's `discard=unmap`: whole clusters read as zeros and occupy nothing, whatever lies below.
#[test]
fn whole_clusters_are_freed() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    for (options, frees) in [
        ("cluster_size=65536", true),
        ("cluster_size=65536,backing_file=base.raw,backing_fmt=raw", true),
        ("extended_l2=on,cluster_size=65536,backing_file=base.raw,backing_fmt=raw", true),
        ("cluster_size=512", true),
        ("compat=0.10", true),
        // The backing file would show.
        ("compat=0.10,backing_file=base.raw,backing_fmt=raw", false),
    ] {
        let scratch = Scratch::new(256 << 20);
        std::fs::write(scratch.file("base.raw"), vec![0xb5; 9 << 20]).unwrap();
        let image = scratch.file("disk.qcow2");
        make(&image, options, "9M");
        io(&image, &["write -P 1 0 9M"]);
        let (length, used) =
            (std::fs::metadata(&image).unwrap().len(), || std::fs::metadata(&image).unwrap().blocks() * 512);
        let before = used();
        let device = open(&image, true);
        // From the middle of a cluster to the middle of another.
        device.discard(MIB + 4096, 6 * MIB).unwrap();
        let bytes = contents(&*device, 1 << 20);
        let hole = (MIB + (64 << 10)) as usize..7 << 20;
        let edges = [&bytes[..(MIB + 4096) as usize], &bytes[(7 << 20) + 4096..]];
        assert!(bytes[hole.clone()].iter().all(|byte| *byte == 0), "{options}");
        assert!(edges.iter().all(|edge| edge.iter().all(|byte| *byte == 1)), "{options}");
        device.flush().unwrap();
        assert!(used() + 5 * MIB < before, "{options}: the host has it back");
        // What was freed is used again: the file does not grow.
        if frees {
            let mut buffer = take(1 << 20, 3);
            for pos in 2..6 {
                device.write_at(&buffer, pos * MIB, WriteDurability::Cached).unwrap();
            }
            device.flush().unwrap();
            assert!(std::fs::metadata(&image).unwrap().len() <= length + 2 * MIB, "{options}");
            device.read_at(&mut buffer, 4 * MIB).unwrap();
            assert!(buffer.iter().all(|byte| *byte == 3));
            device.discard(2 * MIB, 4 * MIB).unwrap();
        }
        let ours = contents(&*device, 1 << 20);
        drop(device);
        check(&image, false);
        assert_same(&ours, &converted(&image, &[]), options);
        let map = img(&["map", "--output=json", path(&image)]);
        let number = |line: &str, name: &str| -> Option<u64> {
            line.split_once(name)?.1[3..].split(',').next()?.parse().ok()
        };
        let freed = map.lines().any(|line| {
            let (start, length) = (number(line, "start"), number(line, "length"));
            let here = start.is_some_and(|start| (start..start + length.unwrap_or(0)).contains(&(4 * MIB)));
            here && line.contains("\"data\": false")
        });
        assert_eq!(freed, frees, "{options}: {map}");
        // The rest: also a last cluster that ends behind the disk.
        let device = open(&image, true);
        device.discard(0, 9 * MIB).unwrap();
        drop(device);
        check(&image, false);
        assert!(used() < 2 * MIB || !frees, "{options}: {}", used());
    }
}

/// On a device with 4 KiB blocks the disk's size is rounded down to whole blocks. QEMU's is not.
#[test]
fn bytes_behind_the_last_block_are_kept() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("disk.qcow2");
    make(&image, "cluster_size=65536", "1M");
    img(&["resize", path(&image), "+4608"]);
    io(&image, &["write -P 1 0 1M", "write -P 1 1M 4608"]);
    let memory = loaded_in(&image, MemoryOptions { logical_block: 4096, ..MemoryOptions::new(4 << 20) });
    let device = open_in(DeviceFile::new(memory.clone()), &image, true).unwrap();
    assert_eq!(device.geometry().size, MIB + 4096);
    device.discard(0, MIB + 4096).unwrap();
    drop(device);
    let saved = scratch.file("left.qcow2");
    std::fs::write(&saved, contents(&*memory, 4096)).unwrap();
    check(&saved, false);
    let left = converted(&saved, &[]);
    let (ours, behind) = left.split_at((MIB + 4096) as usize);
    assert!(ours.iter().all(|byte| *byte == 0));
    assert_eq!(behind, [1; 512]);
}

/// A snapshot keeps what the disk discards.
#[test]
fn snapshots_keep_what_is_discarded() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("disk.qcow2");
    make(&image, "cluster_size=4096", "1M");
    io(&image, &["write -P 1 0 1M"]);
    img(&["snapshot", "-c", "one", path(&image)]);
    io(&image, &["write -P 2 0 64k"]);
    let device = open(&image, true);
    device.discard(0, MIB).unwrap();
    device.flush().unwrap();
    device.write_at(&take(65536, 3), 300 << 10, WriteDurability::Cached).unwrap();
    drop(device);
    check(&image, false);
    let kept = converted(&image, &["-l", "snapshot.name=one"]);
    assert!(kept.iter().all(|byte| *byte == 1), "the snapshot is as it was");
}

/// A request in flight in the file's queue has found a place: that is not given to others until it has ended.
#[test]
fn a_freed_place_waits_for_requests_in_flight() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("disk.qcow2");
    make(&image, "cluster_size=4096", "1M");
    io(&image, &["write -P 1 0 4k"]);
    let late = LateDevice::new(loaded(&image, 2 << 20));
    let handle = late.handle();
    let device = open_in(DeviceFile::new(Arc::new(late)), &image, true).unwrap();
    let mut queue = Flight::new(device.queue(&QueueOptions::depth(4)).unwrap());
    let held = handle.held();
    queue.push(Op::Write, 0, take(4096, 0xee), 7);
    queue.submit();
    device.discard(0, 4096).unwrap();
    // Twice: what is durable is not enough.
    for _ in 0..2 {
        device.flush().unwrap();
        device.write_at(&take(512, 9), 900 << 10, WriteDurability::Cached).unwrap();
    }
    let places = |device: &dyn Device| {
        for number in 1..40u8 {
            let pos = u64::from(number) * 8192;
            device.write_at(&take(4096, number), pos, WriteDurability::Cached).unwrap();
        }
    };
    places(&*device);
    assert_eq!(handle.land(), 1);
    drop(held);
    let intact = |device: &dyn Device| {
        let mut buffer = take(4096, 0);
        device.read_at(&mut buffer, 900 << 10).unwrap();
        assert_eq!((buffer[0], buffer[511], buffer[512]), (9, 9, 0));
        for number in 1..40u8 {
            device.read_at(&mut buffer, u64::from(number) * 8192).unwrap();
            assert!(buffer.iter().all(|byte| *byte == number), "{number}: {:#x}", buffer[0]);
        }
    };
    intact(&*device);
    assert_eq!(queue.reap_all()[0].0, Done { tag: 7, result: 4096 });
    // Now it may be used; and a queue that goes holds nothing back.
    drop(queue);
    device.flush().unwrap();
    device.discard(8192, 4096).unwrap();
    device.flush().unwrap();
    drop(device);
}

type Call = Box<dyn FnOnce() + Send>;

/// A device that does something before the next discard reaches it.
struct Meanwhile {
    inner: Arc<dyn Device>,
    call: Arc<Mutex<Option<Call>>>,
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl DeviceLayer for Meanwhile {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn discard(&self, pos: u64, length: u64) -> uext4_blockdev::Result<()> {
        let call = self.call.lock().unwrap().take();
        call.into_iter().for_each(|call| call());
        self.inner.discard(pos, length)
    }
}

/// The hole is made when others may write again: they do not get the place before.
#[test]
fn a_place_is_a_hole_before_it_serves_again() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("disk.qcow2");
    make(&image, "cluster_size=4096", "1M");
    io(&image, &["write -P 1 0 64k"]);
    let call = Arc::new(Mutex::new(None::<Call>));
    let file = Meanwhile { inner: loaded(&image, 2 << 20), call: Arc::clone(&call) };
    let device = open_in(DeviceFile::new(Arc::new(file)), &image, true).unwrap();
    let other = Arc::clone(&device);
    *call.lock().unwrap() = Some(Box::new(move || {
        for number in 0..8 {
            other.flush().unwrap();
            other.write_at(&take(16384, 9), (512 << 10) + number * 16384, WriteDurability::Cached).unwrap();
        }
        other.flush().unwrap();
    }));
    device.discard(0, 65536).unwrap();
    assert!(call.lock().unwrap().is_none(), "nothing was discarded");
    let now = contents(&*device, 64 << 10);
    assert!(now[512 << 10..640 << 10].iter().all(|byte| *byte == 9));
    assert!(now[..65536].iter().all(|byte| *byte == 0));
}

/// On a file with room for few clusters, the same ones serve again and again, also while a queue is busy.
#[test]
fn freed_clusters_serve_again() {
    needs!(Need::Tool("qemu-img"));
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("disk.qcow2");
    make(&image, "cluster_size=4096", "8M");
    let room = std::fs::metadata(&image).unwrap().len().next_multiple_of(4096) + 16 * 4096;
    let memory = loaded(&image, room);
    let device = open_in(DeviceFile::new(memory.clone()), &image, true).unwrap();
    let mut queue = Flight::new(device.queue(&QueueOptions::depth(4)).unwrap());
    for round in 0..100u64 {
        let pos = round * 16 * 1024;
        queue.push(Op::Write, pos, take(4 * 4096, round as u8 + 1), 0);
        assert_eq!(queue.reap_all()[0].0.result, 4 * 4096, "round {round}");
        device.discard(pos, 4 * 4096).unwrap();
        device.flush().unwrap();
    }
    drop(queue);
    drop(device);
    let saved = scratch.file("left.qcow2");
    std::fs::write(&saved, contents(&*memory, 4096)).unwrap();
    check(&saved, false);
    assert!(converted(&saved, &[]).iter().all(|byte| *byte == 0));
}

/// A host that refuses the hole is told of; the cluster is freed all the same, and zeros are written when it is used.
#[test]
fn a_hole_that_is_refused_is_told() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("disk.qcow2");
    make(&image, "cluster_size=4096", "1M");
    io(&image, &["write -P 1 0 64k"]);
    let memory = loaded(&image, 2 << 20);
    let faulty = FaultDevice::new(memory.clone());
    let faults = faulty.handle();
    let device = open_in(DeviceFile::new(Arc::new(faulty)), &image, true).unwrap();
    faults.arm(Fault::nth(FaultOn::Op(Op::Discard), 1));
    let failed = device.discard(0, 65536);
    assert_eq!(failed.map_err(|error| error.errno()), Err(libc::EIO));
    device.flush().unwrap();
    let mut buffer = take(4096, 5);
    device.write_at(&buffer[..512], 512 << 10, WriteDurability::Cached).unwrap();
    device.read_at(&mut buffer, 512 << 10).unwrap();
    assert!(buffer[..512].iter().all(|byte| *byte == 5) && buffer[512..].iter().all(|byte| *byte == 0));
    // After a failed flush nothing is discarded.
    faults.arm(Fault::nth(FaultOn::Op(Op::Flush), 1));
    assert_eq!(device.flush().map_err(|error| error.errno()), Err(libc::EIO));
    let refused = device.discard(512 << 10, 4096);
    assert!(matches!(refused, Err(Error::Image { fault: ImageFault::Failed, .. })), "{refused:?}");
}
