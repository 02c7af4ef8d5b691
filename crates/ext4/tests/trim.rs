//! The device is told about all free blocks, and nothing else; and reserved blocks stay free.

use crate::common;

use common::sample::sample;
use common::{Image, open_rw, patterned, read_all, read_only, read_write};
use std::path::Path;
use std::sync::Arc;
use uext4::device::{CountingDevice, Mask, MaskDevice};
use uext4::device::{Device, Op};
use uext4::{Error, Fallocate, File, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultOn};
use uext4_testkit::{Need, Scratch, VolumeBuilder, dumpe2fs, e2fsck_clean, needs, with_kernel};

const ALL: std::ops::Range<u64> = 0..u64::MAX;

/// Free runs as printed by dumpe2fs: first and last block.
fn free_runs(path: &Path) -> Vec<(u64, u64)> {
    let text = dumpe2fs(path, &[]);
    let lists = text.lines().filter_map(|line| line.strip_prefix("  Free blocks: "));
    let runs = lists.flat_map(|list| list.split(", ")).filter(|run| !run.trim().is_empty());
    runs.map(|run| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        (first.trim().parse().unwrap(), last.trim().parse().unwrap())
    })
    .collect()
}

/// Whether these bytes of an image file are a hole.
fn is_hole(image: &std::fs::File, start: u64, end: u64) -> bool {
    match rustix::fs::seek(image, rustix::fs::SeekFrom::Data(start)) {
        Ok(data) => data >= end,
        Err(error) => error == rustix::io::Errno::NXIO,
    }
}

/// A fully allocated image, so that every hole is a new one.
fn full_image(args: &[&str]) -> (Scratch, std::path::PathBuf) {
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    std::fs::write(&path, vec![0xee; 32 << 20]).unwrap();
    VolumeBuilder::new(32 << 20).args(args.iter().copied()).format(&path);
    (scratch, path)
}

fn fill(volume: &Volume, path: &str, pattern: u64, length: usize) -> File {
    let file = volume.open_file(path, read_write().create(true)).unwrap();
    file.write_any_at(&patterned(pattern, 0, length), 0, WriteFlags::empty()).unwrap();
    file
}

fn assert_holds(volume: &Volume, path: &str, pattern: u64, length: usize) {
    let file = volume.open_file(path, read_only()).unwrap();
    common::assert_same_bytes(&patterned(pattern, 0, length), &read_all(&file));
}

#[test]
fn free_blocks_of_an_image_become_holes_and_files_stay() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    for args in [&["-b", "4096"][..], &["-b", "1024"], &["-b", "4096", "-O", "bigalloc", "-C", "16384"]] {
        let (_scratch, path) = full_image(args);
        let volume = Volume::open(&path, VolumeOptions::read_write()).unwrap();
        for n in 0..20 {
            fill(&volume, &format!("/{n}"), n, 100_000);
        }
        for n in (0..20).step_by(2) {
            volume.remove_file(format!("/{n}")).unwrap();
        }
        let unwritten = fill(&volume, "/unwritten", 50, 4096);
        unwritten.fallocate(Fallocate::KeepSize, 0, 1 << 20).unwrap();
        drop(unwritten);
        volume.close().unwrap();
        let volume = Volume::open(&path, VolumeOptions::read_write()).unwrap();
        let free = volume.statfs().unwrap().free * u64::from(volume.block_size());
        assert_eq!(volume.trim(ALL, 0).unwrap(), free, "all that is free, once");
        for n in (1..20).step_by(2) {
            assert_holds(&volume, &format!("/{n}"), n, 100_000);
        }
        let block = u64::from(volume.block_size());
        volume.close().unwrap();
        e2fsck_clean(&path);
        let image = std::fs::File::open(&path).unwrap();
        let runs = free_runs(&path);
        let pages = runs
            .iter()
            .map(|(first, last)| ((first * block).next_multiple_of(4096), (last + 1) * block / 4096 * 4096));
        let mut holes = 0;
        for (start, end) in pages.filter(|(start, end)| start < end) {
            assert!(is_hole(&image, start, end), "{args:?}: bytes {start} to {end} are free");
            holes += 1;
        }
        assert!(holes > 3, "{args:?}: {holes}");
        // New files hold their data, and zeros elsewhere, whatever the device returns for discarded blocks.
        let volume = Volume::open(&path, VolumeOptions::read_write()).unwrap();
        fill(&volume, "/new", 99, 3_000_000);
        assert_holds(&volume, "/new", 99, 3_000_000);
        assert_holds(&volume, "/3", 3, 100_000);
        volume.close().unwrap();
        e2fsck_clean(&path);
    }
}

#[test]
fn ranges_and_minima_are_kept_to() {
    needs!(Need::Tool("mke2fs"), Need::Tool("dumpe2fs"));
    let (_scratch, path) = full_image(&["-b", "1024"]);
    let volume = Volume::open(&path, VolumeOptions::read_write()).unwrap();
    let runs = free_runs(&path);
    let free = |from: u64, to: u64, least: u64| -> u64 {
        // A run across groups counts once per group.
        let parts = runs.iter().flat_map(|(first, last)| {
            let groups = (first - 1) / 8192..=(last - 1) / 8192;
            groups.map(move |n| ((n * 8192 + 1).max(*first), ((n + 1) * 8192).min(*last) + 1))
        });
        let clipped = parts.map(|(first, end)| end.min(to).saturating_sub(first.max(from)));
        clipped.filter(|blocks| *blocks > 0 && *blocks >= least).sum::<u64>() * 1024
    };
    assert_eq!(volume.trim(0..0, 0).unwrap(), 0);
    assert_eq!(volume.trim(ALL, 1 << 40).unwrap(), 0);
    let most = runs.iter().map(|(first, last)| last + 1 - first).max().unwrap();
    for least in [1, 100, 4000, most] {
        assert_eq!(volume.trim(ALL, least * 1024).unwrap(), free(0, u64::MAX, least), "{least}");
    }
    // Only whole blocks of the range.
    let (first, last) = (5000, 20_000);
    assert_eq!(volume.trim(first * 1024 - 5..last * 1024 + 900, 0).unwrap(), free(first, last, 1));
    assert_eq!(volume.trim(first * 1024 + 1..last * 1024, 0).unwrap(), free(first + 1, last, 1));
}

/// Blocks freed by a transaction must not be discarded before it is durable: a crash brings the file back.
#[test]
fn what_waits_for_a_commit_is_not_discarded() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let device = sample().device();
    let volume = open_rw(device.clone());
    let before = read_all(&volume.open_file("/data", read_only()).unwrap());
    volume.remove_file("/data").unwrap();
    let freed = before.len() as u64;
    let first = volume.trim(ALL, 0).unwrap();
    // The device has no volatile cache: this is what a crash leaves.
    let crashed = Image::of(&*device).device();
    let found = open_rw(crashed.clone());
    common::assert_same_bytes(&before, &read_all(&found.open_file("/data", read_only()).unwrap()));
    found.close().unwrap();
    let scratch = Scratch::new(64 << 20);
    Image::of(&*crashed).save(&scratch.file("crashed.img"));
    e2fsck_clean(&scratch.file("crashed.img"));
    // Once it is durable they are free.
    volume.sync_files(&[&fill(&volume, "/other", 1, 100)]).unwrap();
    let second = volume.trim(ALL, 0).unwrap();
    assert!(second + (64 << 10) > first + freed && second <= first + freed, "{first} {second} {freed}");
}

#[test]
fn what_takes_no_discards_says_so() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let masked = Arc::new(MaskDevice::new(sample().device(), Mask { no_discard: true, ..Mask::default() }));
    let refused = open_rw(masked).trim(ALL, 0).unwrap_err();
    assert!(matches!(refused, Error::Io(_)) && refused.errno() == 95, "{refused}");
    assert!(matches!(common::open_ro(sample().device()).trim(ALL, 0), Err(Error::ReadOnly(_))));
    let faults = Arc::new(FaultDevice::new(sample().device()));
    let volume = open_rw(faults.clone());
    let action = FaultAction::Errno(5);
    faults.handle().arm(Fault { action, ..Fault::nth(FaultOn::Op(Op::Discard), 1) });
    let failed = volume.trim(ALL, 0).unwrap_err();
    assert_eq!((failed.errno(), faults.handle().fired()), (5, 1), "{failed}");
    // That is not an abort.
    fill(&volume, "/after", 1, 5000);
    assert!(volume.trim(ALL, 0).unwrap() > 0);
    volume.close().unwrap();
}

/// The option: blocks freed by a commit are discarded after it and before they can be reused.
#[test]
fn freed_blocks_are_discarded_with_their_commit() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    for discard in [false, true] {
        let memory = sample().device();
        let counting = Arc::new(CountingDevice::new(memory.clone()));
        let options = VolumeOptions::read_write().discard(discard).reserved(true);
        let volume = Volume::open_device(counting.clone(), options).unwrap();
        let data = volume.open_file("/data", read_only()).unwrap();
        let pieces: Vec<_> = data.map().map(|piece| piece.unwrap()).collect();
        let bytes = |piece: &uext4::Piece| {
            let mut buffer = common::aligned(piece.length as usize);
            memory.read_at(&mut buffer, piece.physical).unwrap();
            buffer.to_vec()
        };
        let before: Vec<_> = pieces.iter().map(bytes).collect();
        drop(data);
        volume.remove_file("/data").unwrap();
        assert_eq!(counting.counts().discards, 0, "the transaction runs");
        let other = fill(&volume, "/other", 7, 200_000);
        other.sync_all().unwrap();
        assert_eq!(counting.counts().discards > 0, discard);
        let after: Vec<_> = pieces.iter().map(bytes).collect();
        let zeros = after.iter().all(|bytes| bytes.iter().all(|byte| *byte == 0));
        assert_eq!((zeros, after == before), (discard, !discard));
        // Fill the volume: discarded blocks are allocated, and hold what is written.
        let mut files = 0;
        while let Ok(file) = volume.open_file(format!("/{files}"), read_write().create(true)) {
            match file.write_any_at(&patterned(files, 0, 500_000), 0, WriteFlags::empty()) {
                Ok(_) => files += 1,
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(files > 5);
        (0..files).for_each(|n| assert_holds(&volume, &format!("/{n}"), n, 500_000));
        assert_holds(&volume, "/other", 7, 200_000);
        drop(other);
        volume.close().unwrap();
        let scratch = Scratch::new(64 << 20);
        Image::of(&*memory).save(&scratch.file("after.img"));
        e2fsck_clean(&scratch.file("after.img"));
    }
}

/// Fills a file until no block is available. Returns the volume's free counts.
fn fill_up(volume: &Volume, path: &str) -> (u64, u64) {
    let file = volume.open_file(path, read_write().create(true)).unwrap();
    let mut at = 0;
    for length in [1 << 20, 1 << 16, u64::from(volume.block_size())] {
        while file.fallocate(Fallocate::Allocate, at, length).is_ok() {
            at += length;
        }
    }
    let refused = file.fallocate(Fallocate::Allocate, at, 4096);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    left(volume)
}

/// The same by appends.
fn append_up(volume: &Volume, path: &str) -> (u64, u64) {
    let file = volume.open_file(path, read_write().create(true)).unwrap();
    let mut at = 0;
    for length in [1 << 20, 1 << 16, volume.block_size() as usize] {
        loop {
            match file.write_any_at(&patterned(5, at, length), at, WriteFlags::empty()) {
                Ok(written) => at += written as u64,
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    left(volume)
}

fn left(volume: &Volume) -> (u64, u64) {
    let space = volume.statfs().unwrap();
    (space.free, space.available)
}

#[test]
fn what_is_set_aside_stays_free_unless_it_is_asked_for() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (args, share) in [(&["-b", "4096"][..], 5), (&["-b", "1024", "-m", "20"], 20), (&["-m", "0"], 0)] {
        let made = VolumeBuilder::new(32 << 20).args(args.iter().copied()).build();
        let volume = Volume::open(made.path(), VolumeOptions::read_write()).unwrap();
        let blocks = volume.superblock().geometry.blocks_count();
        let (appended, _) = append_up(&volume, "/appended");
        assert!(appended >= blocks * share / 100, "{args:?}: {appended} of {blocks} are free");
        volume.remove_file("/appended").unwrap();
        let (free, available) = fill_up(&volume, "/ordinary");
        assert!(free.abs_diff(appended) <= 8, "{args:?}: {free} and {appended} are left");
        // A block or two may be reserved for the map.
        assert!(available <= 8, "{args:?}: {available} blocks are said to be available");
        assert!(free >= blocks * share / 100, "{args:?}: {free} of {blocks} are free");
        // Names and maps still work: unwritten blocks can be written, a file can be cut.
        let file = volume.open_file("/ordinary", read_write()).unwrap();
        file.write_any_at(&patterned(3, 0, 50_000), 1 << 20, WriteFlags::DSYNC).unwrap();
        volume.open_file("/empty", read_write().create(true)).unwrap();
        drop(file);
        volume.close().unwrap();
        made.assert_clean();
        let volume = Volume::open(made.path(), VolumeOptions::read_write().reserved(true)).unwrap();
        let (free, _) = fill_up(&volume, "/reserved");
        assert!(free <= 8, "{args:?}: {free} are left");
        volume.remove_file("/reserved").unwrap();
        volume.close().unwrap();
        made.assert_clean();
    }
}

/// The kernel fills the volume as an unprivileged user, and so do we: the same number of blocks is left.
#[test]
fn root_the_kernel_sets_aside_as_much() {
    use std::os::unix::process::CommandExt;
    needs!(Need::Loop, Need::Tool("dd"));
    let left = |fill: &dyn Fn(&Path)| {
        let made = VolumeBuilder::new(32 << 20).args(["-b", "4096", "-m", "10"]).build();
        fill(made.path());
        e2fsck_clean(made.path());
        let space = common::open_ro(Image::load(made.path()).device()).statfs().unwrap();
        (space.free, space.available)
    };
    let by_kernel = left(&|path| {
        with_kernel(path, "", |root| {
            let file = std::fs::File::create(root.join("file")).unwrap();
            let mut dd = std::process::Command::new("dd");
            dd.args(["if=/dev/zero", "bs=4096", "conv=fsync"]).stdout(file).uid(65534).gid(65534);
            // It ends when no block is left.
            assert!(!dd.output().unwrap().status.success());
        });
    });
    let here = left(&|path| {
        let volume = Volume::open(path, VolumeOptions::read_write()).unwrap();
        fill_up(&volume, "/file");
        volume.close().unwrap();
    });
    assert!(by_kernel.0.abs_diff(here.0) <= 8 && by_kernel.1 <= 8 && here.1 <= 8, "{by_kernel:?} {here:?}");
}
