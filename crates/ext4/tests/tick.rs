//! The periodic work of a volume: by `Volume::tick`, and by a thread that calls it.

use crate::common;

use common::{Image, aligned, assert_clean, open_ro, open_rw, read_write, within};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4::device::{Device, Op};
use uext4::{Counter, Error, File, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultOn};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};

/// 2020.
const LONG_AGO: i64 = 1_577_836_800;
const LIMIT: Duration = Duration::from_secs(60);

/// A volume with `/a` and `/b` of 16 KiB, last changed long ago.
fn image(args: &[&str]) -> Image {
    let source = Scratch::new(64 << 20);
    let tree = source.file("tree");
    std::fs::create_dir(&tree).unwrap();
    for name in ["a", "b"] {
        std::fs::write(tree.join(name), [b'o'; 16384]).unwrap();
    }
    let made = VolumeBuilder::new(32 << 20).args(args.iter().copied()).from_dir(&tree).build();
    let fields = ["a", "b"].map(|name| format!("set_inode_field /{name} mtime @{LONG_AGO}\n"));
    oracle::debugfs_script(made.path(), &fields.concat());
    made.assert_clean();
    Image::load(made.path())
}

fn overwrite(file: &File) {
    assert_eq!(file.write_at_with(&aligned(4096), 0, WriteFlags::empty()).unwrap(), 4096);
}

/// A file's state if a crash came now: its size, and whether it has its old time.
fn after_crash(device: &dyn Device, path: &str) -> (u64, bool) {
    let metadata = open_ro(Image::of(device).device()).metadata(path).unwrap();
    (metadata.size, metadata.modified.seconds == LONG_AGO)
}

fn options(interval: Duration) -> VolumeOptions {
    VolumeOptions::read_write().commit_interval(interval)
}

#[test]
fn an_old_transaction_is_committed_and_a_young_one_is_not() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for args in [&[][..], &["-O", "^has_journal"]] {
        commits_by_age(&image(args));
    }
}

fn commits_by_age(image: &Image) {
    let device = image.device();
    for (interval, durable) in [(Duration::from_secs(3600), false), (Duration::from_millis(50), true)] {
        let volume = Volume::open_device(device.clone(), options(interval)).unwrap();
        let file = volume.open_file("/a", read_write()).unwrap();
        file.set_len(20_000).unwrap();
        volume.tick().unwrap();
        assert_eq!(after_crash(&*device, "/a").0, 16384, "it is younger than {interval:?}");
        std::thread::sleep(Duration::from_millis(60));
        volume.tick().unwrap();
        assert_eq!(after_crash(&*device, "/a").0 == 20_000, durable);
        // Nothing is left to do.
        volume.tick().unwrap();
        file.set_len(16384).unwrap();
        drop(file);
        volume.close().unwrap();
    }
    assert_clean(&*device);
}

/// The state that a crash right after a sync of the volume must leave: a size, a time, a removed name.
#[test]
fn a_sync_of_the_volume_leaves_nothing_for_a_crash() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for args in [&[][..], &["-O", "^has_journal"]] {
        let device = image(args).device_with(|options| options.volatile_cache = true);
        let volume = Volume::open_device(device.clone(), options(Duration::from_secs(3600))).unwrap();
        volume.open_file("/a", read_write()).unwrap().set_len(20_000).unwrap();
        volume.remove_file("/b").unwrap();
        assert_eq!(after_crash(&*device, "/a").0, 16384, "{args:?}");
        volume.sync_all().unwrap();
        let crashed = open_ro(Image::of(&*device).device());
        assert_eq!(crashed.metadata("/a").unwrap().size, 20_000, "{args:?}");
        assert!(matches!(crashed.metadata("/b"), Err(Error::NotFound)), "{args:?}");
        overwrite(&volume.open_file("/a", read_write()).unwrap());
        let before = volume.stats();
        volume.sync_all().unwrap();
        assert!(!after_crash(&*device, "/a").1, "{args:?}: the time of an overwrite");
        volume.sync_all().unwrap();
        let after = volume.stats();
        assert!(after.get(Counter::Flushes) >= before.get(Counter::Flushes) + 2, "each flushes");
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

#[test]
fn a_sync_of_the_volume_says_when_the_flush_failed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let memory = image(&[]).device_with(|options| options.volatile_cache = true);
    let device = Arc::new(FaultDevice::new(memory));
    let faults = device.handle();
    let volume = Volume::open_device(device, options(Duration::from_secs(3600))).unwrap();
    overwrite(&volume.open_file("/a", read_write()).unwrap());
    volume.sync_all().unwrap();
    faults.arm(Fault { action: FaultAction::Errno(5), ..Fault::nth(FaultOn::Op(Op::Flush), 0) });
    assert!(volume.sync_all().is_err());
    assert!(volume.sync_all().is_err(), "it is not forgotten");
    open_ro(image(&[]).device()).sync_all().unwrap();
}

#[test]
fn times_are_written_at_once_and_then_now_and_then() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let device = image(&[]).device();
    let volume = Volume::open_device(device.clone(), options(Duration::ZERO)).unwrap();
    let file = volume.open_file("/a", read_write()).unwrap();
    overwrite(&file);
    volume.tick().unwrap();
    assert_eq!(after_crash(&*device, "/a"), (16384, false));
    assert!(after_crash(&*device, "/b").1, "nobody wrote it");
    // Half a minute has not passed.
    let told = file.metadata().modified;
    std::thread::sleep(Duration::from_millis(20));
    overwrite(&file);
    volume.tick().unwrap();
    assert_eq!(open_ro(Image::of(&*device).device()).metadata("/a").unwrap().modified, told);
}

#[test]
fn nothing_is_due_where_nothing_is_journaled() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    open_ro(image(&[]).device()).tick().unwrap();
    let volume = open_rw(image(&["-O", "^has_journal"]).device());
    overwrite(&volume.open_file("/a", read_write()).unwrap());
    volume.tick().unwrap();
}

#[test]
fn the_thread_commits_and_goes_with_the_volume() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    within(LIMIT, || {
        let device = image(&[]).device();
        let background = options(Duration::from_millis(50)).background(true);
        let volume = Volume::open_device(device.clone(), background).unwrap();
        let [a, b] = ["/a", "/b"].map(|path| volume.open_file(path, read_write()).unwrap());
        a.set_len(20_000).unwrap();
        overwrite(&b);
        while after_crash(&*device, "/a").0 != 20_000 || after_crash(&*device, "/b").1 {
            std::thread::sleep(Duration::from_millis(10));
        }
        // Closing one clone does not affect the others.
        volume.clone().close().unwrap();
        a.set_len(30_000).unwrap();
        while after_crash(&*device, "/a").0 != 30_000 {
            std::thread::sleep(Duration::from_millis(10));
        }
        b.set_len(100).unwrap();
        drop((a, volume));
        assert!(Arc::strong_count(&device) > 1, "a file is open");
        // The last one, while the thread may be active: when the drop returns, the thread has ended and all blocks are
        // home.
        drop(b);
        assert_eq!(Arc::strong_count(&device), 1, "the thread keeps the volume open");
        assert_clean(&*device);
        assert_eq!(open_ro(device).metadata("/b").unwrap().size, 100);
    });
}

/// Opened and dropped at once, again and again: no stop is missed.
#[test]
fn a_thread_that_has_just_begun_is_stopped() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let device = image(&[]).device();
    let begun = Instant::now();
    for _ in 0..50 {
        let volume =
            Volume::open_device(device.clone(), VolumeOptions::read_write().background(true)).unwrap();
        match Arc::strong_count(&device) % 2 {
            0 => volume.close().unwrap(),
            _ => drop(volume),
        }
        assert_eq!(Arc::strong_count(&device), 1);
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "a stop waits for nothing");
}

/// A failed commit aborts the volume, and a tick reports that.
#[test]
fn a_failed_commit_is_told() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for background in [false, true] {
        let device = Arc::new(FaultDevice::new(image(&[]).device()));
        let faults = device.handle();
        let options = options(Duration::ZERO).background(background);
        let volume = Volume::open_device(device, options).unwrap();
        let file = volume.open_file("/a", read_write()).unwrap();
        let action = FaultAction::Errno(5);
        faults.arm(Fault { on: FaultOn::Changes, range: None, after: 0, times: u64::MAX, action });
        // The thread may notice first.
        let changed = file.set_len(20_000);
        let told = volume.tick();
        assert!(changed.is_err() || told.is_err(), "{changed:?} {told:?}");
        assert!(matches!(volume.tick(), Err(Error::Aborted(_))));
        assert!(file.sync_all().is_err() && volume.clone().close().is_err());
    }
}
