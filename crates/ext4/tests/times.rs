//! Times of overwrites: when they reach the volume, and that they cost overwrites nothing.

use crate::common;

use common::{Image, aligned, assert_clean, buffered, open_ro, open_rw, patterned, read_only, read_write};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;
use uext4::device::Device;
use uext4::explain::Query;
use uext4::plan::{Durability, Sync};
use uext4::{Counter, Fallocate, File, QueueOptions, Timestamp, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::{Need, Scratch, VolumeBuilder, e2fsck_clean, needs, oracle, with_kernel};

const BLOCK: usize = 4096;
/// 2020.
const LONG_AGO: i64 = 1_577_836_800;

/// A volume with files of 16 KiB, `/0`, `/1` …, last changed long ago.
fn image(files: usize, args: &[&str]) -> Image {
    let source = Scratch::new(64 << 20);
    let tree = source.file("tree");
    std::fs::create_dir(&tree).unwrap();
    for n in 0..files {
        std::fs::write(tree.join(n.to_string()), [b'o'; 4 * BLOCK]).unwrap();
    }
    let made = VolumeBuilder::new(32 << 20).args(args.iter().copied()).from_dir(&tree).build();
    let field = |n, name| format!("set_inode_field /{n} {name} @{LONG_AGO}\n");
    let requests: String = (0..files).flat_map(|n| [field(n, "mtime"), field(n, "ctime")]).collect();
    oracle::debugfs_script(made.path(), &requests);
    made.assert_clean();
    Image::load(made.path())
}

fn overwrite(file: &File, flags: WriteFlags) {
    assert_eq!(file.write_at_with(&aligned(BLOCK), 4096, flags).unwrap(), BLOCK);
}

/// A file's times if a crash came now: the device has no volatile cache.
fn after_crash(device: &dyn Device, path: &str) -> (Timestamp, Timestamp) {
    let metadata = open_ro(Image::of(device).device()).metadata(path).unwrap();
    (metadata.modified, metadata.changed)
}

fn is_old(device: &dyn Device, path: &str) -> bool {
    let (modified, changed) = after_crash(device, path);
    assert_eq!(modified.seconds == LONG_AGO, changed.seconds == LONG_AGO, "both or none");
    modified.seconds == LONG_AGO
}

#[test]
fn they_are_durable_with_fsync_and_o_sync_and_on_close() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for args in [&[][..], &["-O", "^has_journal"]] {
        durable_times(&image(6, args));
    }
}

fn durable_times(image: &Image) {
    let device = image.device();
    let volume = open_rw(device.clone());
    let open = |n: usize| volume.open_file(format!("/{n}"), read_write()).unwrap();
    let files: Vec<File> = (0..6).map(open).collect();
    files.iter().for_each(|file| overwrite(file, WriteFlags::empty()));
    files[0].sync_all().unwrap();
    overwrite(&files[1], WriteFlags::SYNC);
    overwrite(&files[2], WriteFlags::DSYNC);
    files[3].sync_data().unwrap();
    volume.sync_files(&[&files[4]]).unwrap();
    let old: Vec<bool> = (0..6).map(|n| is_old(&*device, &format!("/{n}"))).collect();
    assert_eq!(old, [false, false, true, true, false, true]);
    // The reported times are the written ones.
    let told = files[0].metadata();
    assert_eq!(after_crash(&*device, "/0"), (told.modified, told.changed));
    let told: Vec<_> = files.iter().map(|file| file.metadata().modified).collect();
    drop(files);
    volume.close().unwrap();
    for (n, told) in told.into_iter().enumerate() {
        let (modified, changed) = after_crash(&*device, &format!("/{n}"));
        assert!(modified == changed && modified >= told && !is_old(&*device, &format!("/{n}")), "{n}");
    }
    assert_clean(&*device);
}

/// The change counter of a file on the device (`i_version`).
fn version(device: &dyn Device, path: &str) -> u64 {
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("volume.img");
    let copy = Image::of(device).device();
    open_rw(copy.clone()).close().unwrap();
    Image::of(&*copy).save(&image);
    let told = oracle::debugfs(&image, &format!("stat {path}"));
    let version = told.split("Version: 0x").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    u64::from_str_radix(&version.replace(':', ""), 16).unwrap()
}

/// As on Linux, the version counts what sets the time of a change.
#[test]
fn every_change_of_the_times_is_a_new_version() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let device = image(1, &[]).device();
    let volume = open_rw(device.clone());
    let direct = volume.open_file("/0", read_write()).unwrap();
    let pages = volume.open_file("/0", buffered()).unwrap();
    let write = |file: &File, pos: u64, length: usize| {
        file.write_any_at(&patterned(pos, pos, length), pos, WriteFlags::empty()).unwrap();
    };
    let changes: [(&str, &dyn Fn()); 9] = [
        ("overwrite", &|| overwrite(&direct, WriteFlags::empty())),
        ("overwrite of pages", &|| write(&pages, 100, 100)),
        ("append", &|| write(&direct, 4 * BLOCK as u64, BLOCK)),
        ("append of pages", &|| write(&pages, 5 * BLOCK as u64, 100)),
        ("cut", &|| direct.set_len(5 * BLOCK as u64).unwrap()),
        ("punch", &|| direct.fallocate(Fallocate::Punch, 0, BLOCK as u64).unwrap()),
        ("pages over a hole", &|| write(&pages, 10, 10)),
        ("link", &|| volume.hard_link("/0", "/link").unwrap()),
        ("mode", &|| volume.set_permissions("/0", 0o600, true).unwrap()),
    ];
    let mut known = version(&*device, "/0");
    for (name, change) in changes {
        // Times have the steps of the kernel's coarse clock.
        std::thread::sleep(Duration::from_millis(20));
        change();
        direct.sync_all().unwrap();
        volume.sync_all().unwrap();
        let next = version(&*device, "/0");
        assert!(next > known, "{name}: {next} after {known}");
        direct.sync_all().unwrap();
        assert_eq!(version(&*device, "/0"), next, "{name}: nothing was changed since");
        known = next;
    }
    drop((direct, pages));
    volume.close().unwrap();
    assert_clean(&*device);
}

/// A queue's `fsync` is one too.
#[test]
fn queued_syncs_write_them() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for all in [false, true] {
        let device = image(1, &[]).device();
        let volume = open_rw(device.clone());
        let file = volume.open_file("/0", read_write()).unwrap();
        let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
        let slot = queue.attach(&file).unwrap();
        let buffer = queue.buffer(BLOCK).unwrap();
        queue.write(slot, 0, buffer, WriteFlags::empty(), 1).unwrap();
        assert_eq!(queue.wait(1).unwrap().count(), 1);
        if all { queue.sync_all(slot, 2) } else { queue.sync_data(slot, 2) }.unwrap();
        assert!(queue.wait(1).unwrap().all(|done| done.result.is_ok()));
        assert_eq!(is_old(&*device, "/0"), !all);
    }
}

/// A queued `O_SYNC` write completes only when the time that `stat` shows is durable.
#[test]
fn the_time_of_a_queued_o_sync_write_is_durable_when_it_is_done() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for args in [&[][..], &["-O", "^has_journal"]] {
        let device = image(1, args).device();
        let volume = open_rw(device.clone());
        let file = volume.open_file("/0", read_write()).unwrap();
        let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
        let slot = queue.attach(&file).unwrap();
        for round in 0..3 {
            let buffers = (0..2).map(|_| queue.buffer(BLOCK).unwrap()).collect();
            match round {
                0 => queue.write(slot, 0, queue.buffer(BLOCK).unwrap(), WriteFlags::SYNC, 1).unwrap(),
                1 => queue.writev(slot, 0, buffers, WriteFlags::SYNC, 1).unwrap(),
                // Exclusive: it extends the file.
                _ => {
                    queue.write(slot, file.size(), queue.buffer(BLOCK).unwrap(), WriteFlags::SYNC, 1).unwrap()
                }
            }
            assert!(queue.wait(1).unwrap().all(|done| done.result.is_ok()));
            let told = file.metadata();
            assert_eq!(after_crash(&*device, "/0"), (told.modified, told.changed), "round {round}, {args:?}");
            assert!(!is_old(&*device, "/0"));
            std::thread::sleep(Duration::from_millis(20));
        }
        drop((queue, file));
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

/// Dropping the last handle writes them, without a commit; the next commit makes them durable.
#[test]
fn the_last_handle_that_goes_writes_them() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let device = image(3, &[]).device();
    let volume = open_rw(device.clone());
    let [file, other] = ["/0", "/1"].map(|path| volume.open_file(path, read_write()).unwrap());
    overwrite(&file, WriteFlags::empty());
    overwrite(&other, WriteFlags::empty());
    let also = volume.open_file("/0", read_only()).unwrap();
    let commits = |volume: &Volume| {
        let third = volume.open_file("/2", read_write()).unwrap();
        third.set_len(1 + third.size()).unwrap();
        third.sync_all().unwrap();
    };
    drop(other);
    drop(file);
    commits(&volume);
    assert!(is_old(&*device, "/0") && !is_old(&*device, "/1"), "somebody has /0 open");
    // A reader's handle leaves them to the volume.
    drop(also);
    commits(&volume);
    assert!(is_old(&*device, "/0"));
    drop(volume);
    assert!(!is_old(&*device, "/0"));
    assert_clean(&*device);
}

/// Overwrites keep their cost: no transaction of their own, and FUA for `O_DSYNC`, whatever happens to the times.
#[test]
fn they_never_cost_an_overwrite_anything() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let image = image(1, &[]);
    let device = image.device_with(|options| (options.volatile_cache, options.fua) = (true, true));
    let volume = open_rw(device);
    let query = Query { write: true, pos: 4096, length: 4096, sync: Sync::Data, queued: false };
    let mut written = 0;
    let mut check = |volume: &Volume| {
        // Times use a coarse clock.
        std::thread::sleep(Duration::from_millis(20));
        let file = volume.open_file("/0", read_write()).unwrap();
        assert_eq!(file.explain(&query).unwrap().plan.durability, Durability::Fua);
        let before = volume.stats();
        for _ in 0..3 {
            overwrite(&file, WriteFlags::DSYNC);
            written += 1;
        }
        let count = |counter| volume.stats().get(counter) - before.get(counter);
        assert_eq!((count(Counter::FuaWrites), count(Counter::OverwritesWithoutHandle)), (3, 3));
        assert_eq!((count(Counter::Flushes), count(Counter::HandlesStarted)), (0, 0));
        file
    };
    let file = check(&volume);
    file.sync_all().unwrap();
    drop(check(&volume));
    drop(file);
    // The transaction with the times of the last handle is still running.
    let file = check(&volume);
    file.sync_all().unwrap();
    check(&volume);
    assert_eq!(written, 12);
    volume.close().unwrap();
}

/// An unused inode stays in memory until its times are written, however small the budget.
#[test]
fn memory_that_is_short_loses_none() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for args in [&[][..], &["-O", "^has_journal"]] {
        times_of_unused_inodes(image(200, args).device());
    }
}

fn times_of_unused_inodes(device: Arc<dyn Device>) {
    let volume = Volume::open_device(device.clone(), VolumeOptions::read_write().inode_budget(0)).unwrap();
    let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
    for n in 0..100 {
        let file = volume.open_file(format!("/{n}"), read_write()).unwrap();
        let slot = queue.attach(&file).unwrap();
        // Not its last use: the queue holds another.
        drop(file);
        let buffer = queue.buffer(BLOCK).unwrap();
        queue.write(slot, 0, buffer, WriteFlags::empty(), 1).unwrap();
        assert_eq!(queue.wait(1).unwrap().count(), 1);
        queue.detach(slot).unwrap();
    }
    for _ in 0..3 {
        for n in 100..200 {
            drop(volume.open_file(format!("/{n}"), read_only()).unwrap());
        }
    }
    drop(queue);
    assert!(is_old(&*device, "/7"), "nothing wrote them yet");
    volume.close().unwrap();
    let volume = open_ro(device);
    for n in 0..200 {
        let modified = volume.metadata(format!("/{n}")).unwrap().modified;
        assert_eq!(modified.seconds == LONG_AGO, n >= 100, "{n}");
    }
}

/// On a volume that only takes overwrites, times stay in memory, and do not keep their inodes there.
#[test]
fn on_a_volume_that_was_not_left_cleanly_they_are_not_written() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let mut image = image(1, &["-O", "^has_journal"]);
    image.patch_superblock(|superblock| superblock[0x3a] &= !1);
    let device: Arc<dyn Device> = image.device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/0", read_write()).unwrap();
    overwrite(&file, WriteFlags::SYNC);
    file.sync_all().unwrap();
    assert!(file.metadata().modified.seconds > LONG_AGO);
    drop(file);
    volume.close().unwrap();
    assert!(is_old(&*device, "/0"));
}

#[test]
fn root_the_kernel_sees_them() {
    needs!(Need::Loop, Need::Tool("debugfs"));
    for inode in ["128", "256"] {
        let scratch = Scratch::new(64 << 20);
        let path = scratch.file("volume.img");
        image(2, &["-I", inode]).save(&path);
        let volume = Volume::open(&path, VolumeOptions::read_write()).unwrap();
        let file = volume.open_file("/0", read_write()).unwrap();
        overwrite(&file, WriteFlags::empty());
        file.sync_all().unwrap();
        let told = file.metadata().modified;
        drop(file);
        volume.close().unwrap();
        e2fsck_clean(&path);
        with_kernel(&path, "", |root| {
            let seen = root.join("0").metadata().unwrap();
            assert_eq!((seen.mtime(), seen.mtime_nsec()), (told.seconds, i64::from(told.nanoseconds)));
            assert_eq!((seen.ctime(), seen.ctime_nsec()), (seen.mtime(), seen.mtime_nsec()));
            assert_eq!(root.join("1").metadata().unwrap().mtime(), LONG_AGO);
        });
    }
}
