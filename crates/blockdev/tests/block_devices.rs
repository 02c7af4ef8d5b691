//! `file:` and `sync:` on real block devices: loop devices over tmpfs, zram.

use crate::common;

use common::{conformance, dirty_pages, pattern, pool, reap_all, request};
use rustix::fs::{Mode, OFlags};
use std::path::Path;
use std::sync::Arc;
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{
    Ask, Device, DeviceQueue, Error, Op, OpenOptions, QueueOptions, Request, Sharing, WriteDurability, open,
};
use uext4_testkit::{LoopDevice, LoopOptions, Mount, Need, Scratch, Zram, needs};

fn open_with(text: &str, options: OpenOptions) -> Result<Arc<dyn Device>, Error> {
    open(&DeviceSpec::parse(text).unwrap(), options).map(|opened| opened.device)
}

fn writable(text: &str) -> Result<Arc<dyn Device>, Error> {
    open_with(text, OpenOptions { write: true, force: false })
}

fn readable(text: &str) -> Result<Arc<dyn Device>, Error> {
    open_with(text, OpenOptions { write: false, force: false })
}

fn forced(text: &str) -> Result<Arc<dyn Device>, Error> {
    open_with(text, OpenOptions { write: false, force: true })
}

fn user(result: Result<Arc<dyn Device>, Error>) -> String {
    match result {
        Err(Error::InUse(user)) => user,
        other => panic!("{other:?}"),
    }
}

fn attach(scratch: &Scratch, options: LoopOptions) -> LoopDevice {
    LoopDevice::attach(&scratch.sparse_file("image", common::SIZE + (1 << 20)), options)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn root_loop_devices_conform() {
    needs!(Need::Loop);
    for sector_size in [512, 4096] {
        for direct_io in [false, true] {
            let scratch = Scratch::new(8 << 20);
            let device = attach(&scratch, LoopOptions { direct_io, sector_size, ..LoopOptions::default() });
            for scheme in ["file", "sync"] {
                let opened = writable(&format!("{scheme}:{}", text(device.path()))).unwrap();
                assert_eq!(opened.geometry().logical_block, sector_size);
                assert_eq!(opened.geometry().size, common::SIZE + (1 << 20));
                assert_eq!(opened.describe().sharing, Sharing::Exclusive);
                conformance(&*opened);
            }
            let slice = writable(&format!("{}?offset=1M", text(device.path()))).unwrap();
            conformance(&*slice);
        }
    }
}

#[test]
fn root_loop_capabilities_come_from_sysfs() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let device = attach(&scratch, LoopOptions { direct_io: true, ..LoopOptions::default() });
    let opened = writable(text(device.path())).unwrap();
    let capabilities = opened.capabilities();
    assert_eq!(capabilities.volatile_cache, device.attribute("queue/write_cache") == "write back");
    assert_eq!(capabilities.fua, device.attribute("queue/fua") == "1");
    assert_eq!(capabilities.discard, device.attribute("queue/discard_max_bytes") != "0");
    let mask: u32 = device.attribute("queue/dma_alignment").parse().unwrap();
    assert_eq!(opened.geometry().memory_align, mask + 1);
    assert!(capabilities.nowait, "{:?}", opened.describe().notes);
    // The device has a cache and no FUA: the durable write is refused rather than done by other means.
    assert!(capabilities.volatile_cache && !capabilities.fua);
    let buf = pool().take(4096).unwrap();
    assert!(matches!(opened.write_at(&buf, 0, WriteDurability::Fua), Err(Error::Unsupported(_))));
}

#[test]
fn root_queued_fua_write_on_loop() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let device = attach(&scratch, LoopOptions { direct_io: true, ..LoopOptions::default() });
    let opened = writable(text(device.path())).unwrap();
    for owner_driven in [false, true] {
        let mut queue = opened.queue(&QueueOptions { owner_driven, ..QueueOptions::depth(8) }).unwrap();
        let pool = pool();
        let mut buf = pool.take(4096).unwrap();
        pattern(u64::from(owner_driven), &mut buf);
        let write = Request { fua: true, ..request(Op::Write, 8192, 4096, buf.memory(0), 1) };
        // SAFETY: the buffer is not touched before the completion is reaped.
        unsafe { queue.push(write) }.unwrap();
        assert_eq!(reap_all(&mut queue)[0].result, 4096);
        let mut back = pool.take(4096).unwrap();
        opened.read_at(&mut back, 8192).unwrap();
        assert_eq!(&buf[..], &back[..]);
    }
}

/// A device with a cache has rings for durable writes, whose tables hold it too.
#[test]
fn root_the_claim_ends_with_the_device() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let node = attach(&scratch, LoopOptions { direct_io: true, ..LoopOptions::default() });
    let buf = pool().take(4096).unwrap();
    for round in 0..50 {
        let device = writable(text(node.path())).unwrap();
        device.write_durable(&buf, 0).unwrap();
        drop(device);
        let claimed = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
        let free = rustix::fs::open(node.path(), claimed, Mode::empty());
        assert!(free.is_ok(), "round {round}: {free:?}");
    }
}

#[test]
fn root_writers_and_readers_of_a_block_device() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let device = attach(&scratch, LoopOptions::default());
    let path = text(device.path());
    let writer = writable(path).unwrap();
    user(writable(path));
    user(readable(path));
    assert_eq!(forced(path).unwrap().describe().sharing, Sharing::Forced);
    let queue = writer.queue(&QueueOptions::depth(4)).unwrap();
    drop(writer);
    user(writable(path));
    drop(queue);
    let first = readable(path).unwrap();
    let second = readable(path).unwrap();
    assert_eq!(second.describe().sharing, Sharing::SharedRead);
    user(writable(path));
    drop((first, second));
    writable(path).unwrap();
}

#[test]
fn root_readers_that_open_at_once_do_not_disturb_each_other() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let device = attach(&scratch, LoopOptions::default());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    readable(text(device.path())).unwrap();
                }
            });
        }
    });
}

#[test]
fn root_an_image_behind_a_loop_device_is_in_use() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let image = scratch.sparse_file("image", 1 << 20);
    let link = scratch.file("link");
    std::fs::hard_link(&image, &link).unwrap();
    let device = LoopDevice::attach(&image, LoopOptions::default());
    // The name that is opened does not matter: the file is the same.
    for name in [&image, &link] {
        for scheme in ["file", "sync"] {
            let spec = format!("{scheme}:{}", text(name));
            for result in [writable(&spec), readable(&spec)] {
                assert_eq!(user(result), format!("loop device {}", device.path().display()));
            }
            assert_eq!(forced(&spec).unwrap().describe().sharing, Sharing::Forced);
        }
    }
    // A renamed image is still the same file.
    let renamed = scratch.file("renamed");
    std::fs::rename(&image, &renamed).unwrap();
    user(writable(text(&renamed)));
    drop(device);
    writable(text(&renamed)).unwrap();
}

#[test]
fn root_a_read_only_loop_device_is_in_the_way_of_writers_only() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let image = scratch.sparse_file("image", 1 << 20);
    let device = LoopDevice::attach(&image, LoopOptions { read_only: true, ..LoopOptions::default() });
    user(writable(text(&image)));
    assert_eq!(readable(text(&image)).unwrap().describe().sharing, Sharing::SharedRead);
    // The read-only device itself cannot be opened for writing.
    assert_eq!(writable(text(device.path())).unwrap_err().errno(), libc::EROFS);
    assert!(readable(text(device.path())).unwrap().capabilities().read_only);
}

#[test]
fn root_a_mounted_device_is_in_use_by_its_mount() {
    needs!(Need::Loop, Need::Tool("mkfs.ext4"));
    let scratch = Scratch::new(32 << 20);
    let image = scratch.sparse_file("image", 16 << 20);
    let status = std::process::Command::new(uext4_testkit::requirement::tool("mkfs.ext4").unwrap())
        .args(["-q", "-F"])
        .arg(&image)
        .status()
        .unwrap();
    assert!(status.success());
    let device = LoopDevice::attach(&image, LoopOptions::default());
    let mount = Mount::attach(device.path(), "ext4", "");
    let wanted = format!("a mount at {}", mount.path().display());
    assert_eq!(user(writable(text(device.path()))), wanted);
    assert_eq!(user(readable(text(device.path()))), wanted);
    assert_eq!(user(readable(&format!("{}?ro", text(device.path())))), wanted);
    assert_eq!(forced(text(device.path())).unwrap().describe().sharing, Sharing::Forced);
    mount.unmount();
    writable(text(device.path())).unwrap();
}

#[test]
fn root_iopoll_is_refused_or_reported_on_loop() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let device = attach(&scratch, LoopOptions { direct_io: true, ..LoopOptions::default() });
    let opened = writable(text(device.path())).unwrap();
    let polled = device.attribute("queue/io_poll") == "1";
    let required = opened.queue(&QueueOptions { iopoll: Ask::Require, ..QueueOptions::depth(8) });
    assert_eq!(required.is_ok(), polled);
    let tried = opened.queue(&QueueOptions { iopoll: Ask::Try, ..QueueOptions::depth(8) }).unwrap();
    assert_eq!((tried.facts().polled, tried.facts().fallbacks.is_empty()), (polled, polled));
}

#[test]
fn root_zram_conforms_and_its_missing_nowait_is_told() {
    needs!(Need::Zram);
    let zram = Zram::new(8 << 20);
    for scheme in ["file", "sync"] {
        let device = writable(&format!("{scheme}:{}", text(zram.path()))).unwrap();
        assert_eq!(device.geometry().logical_block, 4096);
        // Its dma_alignment of 511 is not true: a read into memory that began inside a page corrupted the heap.
        assert_eq!(device.geometry().memory_align, 4096);
        assert!(!device.capabilities().nowait);
        assert!(device.describe().notes.iter().any(|note| note.contains("NOWAIT")));
        assert!(!device.capabilities().volatile_cache && device.capabilities().discard);
        conformance(&*device);
        // A request that asks not to block is carried out all the same where the device cannot tell.
        let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
        let mut buf = pool().take(4096).unwrap();
        let read = Request { nowait: true, ..request(Op::Read, 0, 4096, buf.memory(0), 1) };
        // SAFETY: the buffer is not touched before the completion is reaped.
        unsafe { queue.push(read) }.unwrap();
        assert_eq!(reap_all(&mut queue)[0].result, 4096);
    }
}

/// A device without a volatile cache needs no flush for writes of ours, but what somebody wrote through its page cache
/// is not on it yet.
#[test]
fn root_settling_a_device_without_a_cache_writes_its_page_cache_back() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let mut node = attach(&scratch, LoopOptions::default());
    node.set_attribute("queue/write_cache", "write through");
    // Closing it would write it back: the writer has to keep it open.
    let mut writer = std::fs::File::options().write(true).open(node.path()).unwrap();
    std::io::Write::write_all(&mut writer, &[7; 1 << 20]).unwrap();
    let device = writable(text(node.path())).unwrap();
    assert!(!device.capabilities().volatile_cache);
    device.flush().unwrap();
    let Some(dirty) = dirty_pages(node.path()) else {
        return println!(
            "SKIP root_settling_a_device_without_a_cache_writes_its_page_cache_back: needs cachestat(2)"
        );
    };
    device.settle().unwrap();
    assert_eq!(dirty_pages(node.path()), Some(0), "of {dirty} dirty pages");
}

/// A block device's flushes are merged below; those of files, and of whatever adds a cost of its own, are not.
#[test]
fn root_only_block_devices_merge_flushes() {
    needs!(Need::Loop);
    let scratch = Scratch::new(8 << 20);
    let node = attach(&scratch, LoopOptions::default());
    let merges = |spec: &str| {
        let device = readable(&spec.replace("{}", text(node.path()))).unwrap();
        device.merges_flushes()
    };
    for spec in ["{}", "sync:{}", "{}?fua=off", "{}?latency=1us", "{}?offset=1M"] {
        assert!(merges(spec), "{spec}");
    }
    for spec in ["{}?flush_latency=1us", "dax:{}", "mem:1M"] {
        assert!(!merges(spec), "{spec}");
    }
    let image = scratch.sparse_file("file", 1 << 20);
    assert!(!readable(text(&image)).unwrap().merges_flushes());
}
