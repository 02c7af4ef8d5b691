//! Files that are written through the log: by their flag (`chattr +j`) or because the volume says so (`data=journal`).

use crate::common;
use crate::crash_named::layouts::{JOURNALED, LARGE, SMALL};

use common::play::Play;
use common::{Image, aligned, open_ro, open_rw, patterned, read_all, read_only, read_write};
use std::sync::{Arc, Barrier};
use uext4::device::Device;
use uext4::explain::Query;
use uext4::plan::{Route, Sync};
use uext4::{Counter, Error, Fallocate, InodeFlags, QueueOptions, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::crash::Options;
use uext4_testkit::device::{CrashDevice, CrashOptions};
use uext4_testkit::{KernelMount, LoopOptions, Need, Rng, Scratch, needs, oracle};

const MODES: [Fallocate; 7] = [
    Fallocate::Allocate,
    Fallocate::KeepSize,
    Fallocate::Punch,
    Fallocate::Zero,
    Fallocate::ZeroKeepSize,
    Fallocate::Collapse,
    Fallocate::Insert,
];

/// The volume with these files, which are journaled or not.
fn with_files(image: &Image, paths: &[&str], journaled: bool) -> Image {
    let device = image.device();
    let volume = open_rw(device.clone());
    for path in paths {
        drop(volume.open_file(path, read_write().create_new(true)).unwrap());
        set(&volume, path, journaled);
    }
    volume.close().unwrap();
    Image::of(&*device)
}

fn set(volume: &Volume, path: &str, journaled: bool) {
    let mut flags = volume.metadata(path).unwrap().flags;
    flags.set(InodeFlags::JOURNAL_DATA, journaled);
    volume.set_flags(path, flags, true).unwrap();
}

fn saved(device: &dyn Device) -> (Scratch, std::path::PathBuf) {
    let scratch = Scratch::new(2 * device.geometry().size);
    let path = scratch.file("volume.img");
    Image::of(device).save(&path);
    (scratch, path)
}

/// Random changes of journaled files beside others, which change sides now and then.
#[test]
fn changes_of_journaled_files_match_the_model() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    const PATHS: [&str; 3] = ["/a", "/b", "/c"];
    for (layout, seed) in [(SMALL, 1), (LARGE, 2), (JOURNALED, 3)] {
        let image = with_files(&layout.image(), &PATHS[..2], layout != JOURNALED);
        let image = with_files(&image, &PATHS[2..], false);
        let mut play = Play::new(&image, &PATHS, 900_000, seed);
        let mut sides = [true, true, false];
        for round in 0..220 {
            let at = play.any_file();
            match play.rng.below(12) {
                0..5 => play.write(at),
                5 | 6 => play.queued(at),
                7 => {
                    let size = play.rng.below(700_000);
                    play.set_len(at, size);
                }
                8..11 => play.fallocate(at, &MODES),
                _ => {
                    sides[at] = !sides[at];
                    set(&play.volume, PATHS[at], sides[at]);
                }
            }
            if round % 20 == 19 {
                play.check();
                play.sync_all();
            }
        }
        play.end(&format!("seed {seed}"), true);
    }
}

/// Whoever sets the flag last decides, and writes go the way that the flag says.
#[test]
fn the_way_of_writes_is_that_of_the_flag_after_a_race() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = SMALL.image().device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/a", read_write().create_new(true)).unwrap();
    let bytes = patterned(3, 0, 4096);
    file.write_at_with(&bytes, 0, WriteFlags::empty()).unwrap();
    for round in 0..400 {
        set(&volume, "/a", round % 2 == 0);
        let flags = volume.metadata("/a").unwrap().flags;
        let begin = Barrier::new(2);
        std::thread::scope(|scope| {
            for journaled in [true, false] {
                let (volume, begin) = (&volume, &begin);
                scope.spawn(move || {
                    let mut flags = flags;
                    flags.set(InodeFlags::JOURNAL_DATA, journaled);
                    begin.wait();
                    volume.set_flags("/a", flags, true).unwrap();
                });
            }
        });
        let journaled = volume.metadata("/a").unwrap().flags.contains(InodeFlags::JOURNAL_DATA);
        let before = volume.stats();
        file.write_at_with(&bytes, 0, WriteFlags::empty()).unwrap();
        let logged = volume.stats().since(&before).get(Counter::InlineWrites) == 1;
        assert_eq!(logged, journaled, "round {round}");
    }
    drop(file);
    volume.close().unwrap();
    let (_scratch, path) = saved(&*device);
    oracle::e2fsck_clean(&path);
}

/// The data of a block that begins with the log's magic number.
#[test]
fn a_block_that_looks_like_the_logs_is_replayed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = with_files(&SMALL.image(), &["/a"], true);
    let device = image.device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/a", read_write()).unwrap();
    let mut bytes = patterned(9, 0, 8192);
    for block in bytes.chunks_mut(1024) {
        block[..8].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 1]);
    }
    file.write_at_with(&bytes, 0, WriteFlags::DSYNC).unwrap();
    assert_eq!(read_all(&file), &*bytes);
    let dirty = Image::of(&*device);
    let (scratch, path) = saved(&*device);
    let repaired = oracle::e2fsck(&path, &["-fy"]);
    assert!(repaired.status < 2, "{repaired:?}");
    for image in [dirty, Image::load(&path)] {
        let device = image.device();
        let volume = open_rw(device.clone());
        assert_eq!(read_all(&volume.open_file("/a", read_only()).unwrap()), &*bytes);
        volume.close().unwrap();
        Image::of(&*device).save(&scratch.file("again.img"));
        oracle::e2fsck_clean(&scratch.file("again.img"));
    }
    drop(file);
    volume.close().unwrap();
}

/// A write through the log sends nothing to its place before the commit, and a long one takes several handles.
#[test]
fn the_route_is_told_and_taken() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = with_files(&LARGE.image(), &["/a"], true);
    let device = image.device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/a", read_write()).unwrap();
    let long = patterned(4, 0, 2 << 20);
    file.write_at_with(&long, 0, WriteFlags::DSYNC).unwrap();
    assert!(volume.stats().get(uext4::Counter::HandlesStarted) > 512 / 64);
    assert_eq!(read_all(&file), &*long);
    let query = Query { write: true, pos: 0, length: 4096, sync: Sync::Data, queued: false };
    let told = file.explain(&query).unwrap();
    assert_eq!(told.plan.route, Route::InlineWrite);
    assert!(told.reasons.iter().any(|reason| reason.contains("through the log")), "{:?}", told.reasons);
    assert_eq!((told.refused, told.request_count), (None, 0));
    let told = file.explain(&Query { write: false, ..query }).unwrap();
    assert_eq!(told.plan.route, Route::InlineRead);
    // The extents are those on the device.
    assert!(file.map().all(|piece| piece.unwrap().physical != 0));
    // Nothing is at its place before the commit.
    let physical = file.map().next().unwrap().unwrap().physical;
    let mut before = aligned(4096);
    volume.sync_all().unwrap();
    device.read_at(&mut before, physical).unwrap();
    file.write_at(&patterned(5, 0, 4096), 0).unwrap();
    let mut after = aligned(4096);
    device.read_at(&mut after, physical).unwrap();
    assert!(before[..] == after[..]);
    assert_eq!(&read_all(&file)[..4096], &*patterned(5, 0, 4096));
    // Queues.
    let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
    let slot = queue.attach(&file).unwrap();
    for number in 0..4u64 {
        let mut buffer = queue.buffer(4096).unwrap();
        buffer.copy_from_slice(&patterned(10 + number, number * 8192, 4096));
        queue.write(slot, number * 8192, buffer, WriteFlags::DSYNC, number).unwrap();
    }
    let mut left = 4;
    while left > 0 {
        left -=
            queue.wait(1).unwrap().inspect(|done| assert_eq!(done.result.as_ref().unwrap(), &4096)).count();
    }
    drop(queue);
    let bytes = read_all(&file);
    for number in 0..4u64 {
        let at = number as usize * 8192;
        assert_eq!(&bytes[at..at + 4096], &*patterned(10 + number, number * 8192, 4096));
    }
    let error = file.prepare(4096).unwrap_err();
    assert!(matches!(error, Error::Incompatible { .. }), "{error}");
    drop(file);
    volume.close().unwrap();
    let (_scratch, path) = saved(&*device);
    oracle::e2fsck_clean(&path);
    let volume = open_ro(Image::load(&path).device());
    assert_eq!(read_all(&volume.open_file("/a", read_only()).unwrap()), bytes);
}

/// A write that is made directly after the file left the log is not lost to an older copy in it.
#[test]
fn power_cut_after_a_file_left_the_log() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = with_files(&SMALL.image(), &["/a"], true);
    let options = Options::new("left_the_log", 1).at_most(400);
    let crash = CrashDevice::new(image.device(), CrashOptions::default()).unwrap();
    let handle = crash.handle();
    let volume = open_rw(Arc::new(crash));
    let file = volume.open_file("/a", read_write()).unwrap();
    let mut rng = Rng::new(options.seed);
    let mut model = patterned(1, 0, 8192).to_vec();
    file.write_at_with(&model_aligned(&model), 0, WriteFlags::DSYNC).unwrap();
    handle.mark((model.clone(), model.clone()));
    for round in 0..24u64 {
        if round % 3 == 2 {
            set(&volume, "/a", round % 2 == 0);
        }
        let at = rng.below(8) as usize * 1024;
        let before = model.clone();
        model[at..at + 1024].copy_from_slice(&patterned(100 + round, at as u64, 1024));
        handle.mark((before, model.clone()));
        file.write_at_with(&model_aligned(&model[at..at + 1024]), at as u64, WriteFlags::DSYNC).unwrap();
        handle.mark((model.clone(), model.clone()));
    }
    let report = common::crash::enumerate(&handle, &options, 16, |state, volume| {
        let Some((one, other)) = state.marks::<(Vec<u8>, Vec<u8>)>().last() else { return Ok(()) };
        let found = read_all(&volume.open_file("/a", read_only()).map_err(|error| error.to_string())?);
        let same = found.len() == one.len()
            && found
                .chunks(512)
                .zip(one.chunks(512).zip(other.chunks(512)))
                .all(|(found, (one, other))| found == one || found == other);
        if same { Ok(()) } else { Err("an older copy came back".into()) }
    });
    assert!(options.only.is_some() || report.images > 20, "{report}");
    drop(file);
    volume.close().unwrap();
}

fn model_aligned(bytes: &[u8]) -> uext4::Buffer {
    let mut buffer = aligned(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer
}

#[test]
fn maps_of_pointers_and_missing_journals() {
    needs!(Need::Tool("mke2fs"));
    let old = uext4_testkit::VolumeBuilder::new(16 << 20).args(["-O", "^extent,^64bit"]).build();
    let volume = open_rw(Image::load(old.path()).device());
    drop(volume.open_file("/a", read_write().create_new(true)).unwrap());
    let error = volume.set_flags("/a", InodeFlags::JOURNAL_DATA, true).unwrap_err();
    assert!(error.to_string().contains("block pointers"), "{error}");
    volume.close().unwrap();
    // Without a journal the flag means nothing, as in Linux.
    let plain = uext4_testkit::VolumeBuilder::new(16 << 20).args(["-O", "^has_journal"]).build();
    let device = Image::load(plain.path()).device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/a", read_write().create_new(true)).unwrap();
    file.write_any_at(b"plain", 0, WriteFlags::SYNC).unwrap();
    set(&volume, "/a", true);
    file.write_any_at(b"still", 0, WriteFlags::SYNC).unwrap();
    assert_eq!(read_all(&file), b"still");
    drop(file);
    volume.close().unwrap();
    let (_scratch, path) = saved(&*device);
    oracle::e2fsck_clean(&path);
}

/// The kernel and uext4 write a volume with `data=journal` in turns, each after a crash of the other.
#[test]
fn root_the_kernel_and_uext4_journal_data_in_turns() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("tune2fs"));
    let volume = uext4_testkit::VolumeBuilder::new(32 << 20).args(["-b", "4096"]).build();
    let path = volume.path();
    let tuned = oracle::command("tune2fs").args(["-o", "journal_data"]).arg(path).status().unwrap();
    assert!(tuned.success());
    let write = |file: &std::path::Path, number: u64, pos: u64| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).create(true).truncate(false).open(file).unwrap();
        file.write_all_at(&patterned(number, pos, 20_000), pos).unwrap();
        file.sync_all().unwrap();
    };
    let mut model = vec![0; 0];
    for round in 0..4u64 {
        let mounted = KernelMount::image(path, LoopOptions::default(), "");
        write(&mounted.path().join("file"), 10 + round, round * 7000);
        common::play::put(&mut model, round * 7000, &patterned(10 + round, round * 7000, 20_000));
        let crashed = Image::load(path);
        mounted.unmount();
        let device = crashed.device();
        let ours = open_rw(device.clone());
        let file = ours.open_file("/file", read_write()).unwrap();
        assert_eq!(read_all(&file), model, "round {round}");
        file.write_any_at(&patterned(50 + round, 500, 9000), 500, WriteFlags::DSYNC).unwrap();
        common::play::put(&mut model, 500, &patterned(50 + round, 500, 9000));
        file.set_len(model.len() as u64 - 300).unwrap();
        model.truncate(model.len() - 300);
        file.sync_all().unwrap();
        Image::of(&*device).save(path);
        drop(file);
        ours.close().unwrap();
        let mounted = KernelMount::image(path, LoopOptions::default(), "");
        assert_eq!(std::fs::read(mounted.path().join("file")).unwrap(), model, "round {round}");
        mounted.unmount();
        oracle::e2fsck_clean(path);
    }
    let reading = Volume::open(path, VolumeOptions::read_only()).unwrap();
    assert_eq!(read_all(&reading.open_file("/file", read_only()).unwrap()), model);
}

/// Blocks that a journaled file gave back carry direct data of another file: no older copy is replayed over it.
#[test]
fn power_cut_while_blocks_leave_a_journaled_file() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    const LENGTH: usize = 64 << 10;
    let image = with_files(&with_files(&SMALL.image(), &["/a"], true), &["/b", "/fill"], false);
    let device = image.device();
    let volume = open_rw(device.clone());
    let fill = volume.open_file("/fill", read_write()).unwrap();
    for length in [1 << 20, 1 << 17, 1 << 14] {
        while fill.fallocate(Fallocate::Allocate, fill.size(), length).is_ok() {}
    }
    // Little room, so that each file gets what the other gave back.
    fill.set_len(fill.size() - 2 * LENGTH as u64).unwrap();
    drop(fill);
    volume.close().unwrap();
    let options = Options::new("left_a_journaled_file", 1).at_most(300);
    let crash = CrashDevice::new(Image::of(&*device).device(), CrashOptions::default()).unwrap();
    let handle = crash.handle();
    let volume = open_rw(Arc::new(crash));
    let (a, b) =
        (volume.open_file("/a", read_write()).unwrap(), volume.open_file("/b", read_write()).unwrap());
    for round in 0..8u64 {
        a.write_at_with(&patterned(200 + round, 0, LENGTH), 0, WriteFlags::DSYNC).unwrap();
        a.set_len(0).unwrap();
        a.sync_all().unwrap();
        handle.mark(None::<u64>);
        b.set_len(0).unwrap();
        b.sync_all().unwrap();
        b.write_at_with(&patterned(300 + round, 0, LENGTH), 0, WriteFlags::DSYNC).unwrap();
        handle.mark(Some(round));
    }
    let report = common::crash::enumerate(&handle, &options, 16, |state, volume| {
        let Some(Some(round)) = state.marks::<Option<u64>>().last() else { return Ok(()) };
        let found = read_all(&volume.open_file("/b", read_only()).map_err(|error| error.to_string())?);
        let same = found[..] == patterned(300 + round, 0, LENGTH)[..];
        if same { Ok(()) } else { Err(format!("durable data of round {round} is gone")) }
    });
    assert!(options.only.is_some() || report.images > 20, "{report}");
    drop((a, b));
    volume.close().unwrap();
}
