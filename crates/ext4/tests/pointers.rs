//! Files with block pointers (ext2, ext3) get and lose blocks, against a model: bytes, sizes, e2fsck, the kernel, and
//! the state after a crash. (Power cuts: `crash_allocate.rs`.)

use crate::common;

use common::play::{Play, put};
use common::sample::{is_journaled, with_pointers};
use common::{Image, assert_same_bytes, open_rw, patterned, read_all, read_write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use uext4::device::Op;
use uext4::{Error, Fallocate, State, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};
use uext4_testkit::{Need, Scratch, needs, oracle, with_kernel};

/// Block sizes, and other arguments of mke2fs.
const VOLUMES: [(u32, &[&str]); 5] = [
    (1024, &["-O", "^extent,^64bit"]),
    (4096, &["-O", "^extent,^64bit,^metadata_csum"]),
    (2048, &["-O", "^extent,^64bit,^flex_bg,^uninit_bg,^metadata_csum,^orphan_file"]),
    (1024, &["-O", "^extent,^64bit", "-I", "128"]),
    (1024, &["-O", "^extent,^64bit,^has_journal"]),
];
const PATHS: [&str; 3] = ["/data", "/tail", "/sparse"];
/// Largest size: with blocks of 1 KiB the map has three levels from 65 MiB on, two from 268 KiB on.
const MOST: u64 = 3 << 20;

fn play(image: &Image, seed: u64) -> Play {
    Play::new(image, &PATHS, MOST, seed)
}

fn step(play: &mut Play) {
    let at = play.any_file();
    match play.rng.below(10) {
        0..5 => play.write(at),
        5 => play.queued(at),
        6 => {
            let size = play.rng.below(MOST);
            play.set_len(at, size);
        }
        7 => {
            let size = play.rng.below(MOST / 2);
            play.prepare(at, size);
        }
        _ => play.fallocate(at, &[Fallocate::Punch]),
    }
}

fn clean(image: &Image) {
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    image.save(&path);
    oracle::e2fsck_clean(&path);
}

#[test]
fn changes_of_every_kind_are_read_back() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    for (round, (block, args)) in (0..).zip(VOLUMES) {
        let mut play = play(&with_pointers(block, args), round);
        for number in 0..200 {
            step(&mut play);
            if number % 20 == 0 {
                play.check();
                // The state after a crash, wherever the last commit was.
                Image::of(&*play.device).save(&path);
                assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
                oracle::e2fsck_clean(&path);
            }
        }
        play.end(&format!("{block} {args:?}"), is_journaled(args));
    }
}

/// The old contents of a file's new blocks are never exposed.
#[test]
fn new_blocks_hold_zeros_around_what_is_written() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, args) in VOLUMES {
        let device = with_pointers(block, args).device();
        let volume = open_rw(device.clone());
        // Blocks with old contents are free again.
        let other = volume.open_file("/tail", read_write()).unwrap();
        let garbage = vec![0xEE; 4 << 20];
        other.write_any_at(&garbage, 0, WriteFlags::SYNC).unwrap();
        other.set_len(0).unwrap();
        other.sync_all().unwrap();
        let file = volume.open_file("/sparse", read_write()).unwrap();
        file.set_len(0).unwrap();
        file.set_len(3 << 20).unwrap();
        let mut model = vec![0; 3 << 20];
        for pos in (512..3 << 20).step_by(24_576) {
            let bytes = patterned(pos, pos, 512);
            file.write_at(&bytes, pos).unwrap();
            put(&mut model, pos, &bytes);
        }
        file.prepare(1 << 20).unwrap();
        assert_same_bytes(&model, &read_all(&file));
        let prepared = file.map().map(|piece| piece.unwrap()).take_while(|piece| piece.logical < 1 << 20);
        assert!(prepared.into_iter().all(|piece| piece.state == State::Written));
        drop((file, other));
        volume.close().unwrap();
        clean(&Image::of(&*device));
    }
}

/// The device refuses the zeros, or the data: the allocated blocks are freed again, and the file is unchanged.
#[test]
fn a_failed_write_gives_its_blocks_back() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, args) in VOLUMES {
        let memory = with_pointers(block, args).device();
        let faulty = Arc::new(FaultDevice::new(memory.clone()));
        let handle = faulty.handle();
        let volume = open_rw(faulty);
        let file = volume.open_file("/data", read_write()).unwrap();
        let (size, blocks, before) = (file.size(), file.metadata().blocks, read_all(&file));
        for (pos, nth) in [(size, 1), (size, 2), (size + 30_001, 2), (size + (200 << 10), 1)] {
            handle.arm(Fault::nth(FaultOn::Op(Op::Write), nth));
            let failed = file.write_any_at(&patterned(9, pos, 256 << 10), pos, WriteFlags::empty());
            handle.clear();
            assert!(matches!(failed, Err(Error::Io(_))), "{block} {args:?}: {failed:?}");
            assert_eq!((file.size(), file.metadata().blocks), (size, blocks), "{block} {args:?}: {pos}");
            assert_same_bytes(&before, &read_all(&file));
        }
        for nth in [1, 2] {
            handle.arm(Fault::nth(FaultOn::Op(Op::Write), nth));
            assert!(matches!(file.prepare(size + (2 << 20)), Err(Error::Io(_))), "{block} {args:?}: {nth}");
            handle.clear();
        }
        assert_eq!((file.size(), file.metadata().blocks), (size, blocks), "{block} {args:?}");
        let data = patterned(10, size, 256 << 10);
        assert_eq!(file.write_at(&data, size).unwrap(), data.len());
        assert_same_bytes(&data, &read_all(&file)[size as usize..]);
        drop(file);
        volume.close().unwrap();
        clean(&Image::of(&*memory));
    }
}

#[test]
fn a_full_volume_refuses_and_loses_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, args) in VOLUMES {
        let device = with_pointers(block, args).device();
        let volume = open_rw(device.clone());
        let file = volume.open_file("/tail", read_write()).unwrap();
        let (mut pos, mut step) = (1 << 20, 1 << 20);
        while step >= 1024 {
            match file.write_any_at(&patterned(9, pos, step), pos, WriteFlags::empty()) {
                Ok(written) => pos += written as u64,
                Err(Error::NoSpace) => step /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(file.size(), pos);
        let blocks = file.metadata().blocks;
        assert!(matches!(file.prepare(pos + (1 << 20)), Err(Error::NoSpace)));
        assert_eq!((file.size(), file.metadata().blocks), (pos, blocks));
        let tail = read_all(&file);
        assert_same_bytes(&patterned(9, pos - step as u64, step), &tail[pos as usize - step..]);
        // There is room again as soon as something is removed.
        file.set_len(1 << 20).unwrap();
        let data = patterned(11, 2 << 20, 1 << 20);
        assert_eq!(file.write_at(&data, 2 << 20).unwrap(), data.len());
        drop(file);
        volume.close().unwrap();
        clean(&Image::of(&*device));
    }
}

/// An unlinked open file can grow, and is freed when it is closed.
#[test]
fn a_file_without_a_name_grows_and_is_freed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    let device = with_pointers(1024, VOLUMES[0].1).device();
    let volume = open_rw(device.clone());
    let free = volume.statfs().unwrap().free;
    let file = volume.open_file("/data", read_write()).unwrap();
    volume.remove_file("/data").unwrap();
    let data = patterned(5, 2 << 20, 1 << 20);
    file.write_at(&data, 2 << 20).unwrap();
    assert_same_bytes(&data, &read_all(&file)[2 << 20..]);
    file.sync_all().unwrap();
    // A crash now: recovery frees it.
    let crashed = Image::of(&*device);
    crashed.save(&path);
    assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
    oracle::e2fsck_clean(&path);
    let recovered = crashed.device();
    let again = open_rw(recovered.clone());
    assert!(!again.exists("/data").unwrap() && again.statfs().unwrap().free > free);
    again.close().unwrap();
    clean(&Image::of(&*recovered));
    drop(file);
    volume.close().unwrap();
    clean(&Image::of(&*device));
}

#[test]
fn what_such_a_map_cannot_say_is_refused() {
    needs!(Need::Tool("mke2fs"));
    let volume = open_rw(with_pointers(1024, VOLUMES[0].1).device());
    let file = volume.open_file("/data", read_write()).unwrap();
    use Fallocate::{Allocate, Collapse, Insert, KeepSize, Zero, ZeroKeepSize};
    for mode in [Allocate, KeepSize, Zero, ZeroKeepSize, Collapse, Insert] {
        let refused = file.fallocate(mode, 0, 4096);
        assert!(matches!(&refused, Err(Error::Incompatible { .. })), "{mode:?}: {refused:?}");
        assert_eq!(refused.unwrap_err().errno(), libc::EOPNOTSUPP, "{mode:?}");
    }
    // 12 + 256 + 256² + 256³ blocks.
    let most = (12 + 256 + (1 << 16) + (1 << 24)) * 1024;
    assert!(matches!(file.set_len(most + 1), Err(Error::Limit(_))));
    assert!(matches!(file.write_at(&patterned(1, 0, 1024), most), Err(Error::Limit(_))));
    file.write_at(&patterned(1, 0, 1024), most - 1024).unwrap();
    assert_eq!(file.size(), most);
}

/// The kernel reads what we wrote and continues; then we read that, and continue.
#[test]
fn root_the_kernel_takes_turns_with_us() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    for (round, (block, args)) in (50..).zip(VOLUMES) {
        let mut play = play(&with_pointers(block, args), round);
        (0..120).for_each(|_| step(&mut play));
        let blocks: Vec<u64> = play.files.iter().map(|(file, _)| file.metadata().blocks).collect();
        play.sync_all();
        let (models, dirty) = (play.models(), Image::of(&*play.device));
        let device = play.close();
        for image in [dirty, Image::of(&*device)] {
            image.save(&path);
            if !is_journaled(args) {
                assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
            }
            let mut after = models.clone();
            with_kernel(&path, "rw", |root| {
                for ((name, model), blocks) in PATHS.iter().zip(&mut after).zip(&blocks) {
                    let name = root.join(&name[1..]);
                    assert_same_bytes(model, &std::fs::read(&name).unwrap());
                    assert_eq!(std::fs::metadata(&name).unwrap().blocks(), *blocks, "{}", name.display());
                    let file = std::fs::File::options().write(true).open(&name).unwrap();
                    let size = model.len() as u64 / 2 + 777;
                    file.set_len(size).unwrap();
                    model.resize(size as usize, 0);
                    let bytes = patterned(77, size, 30_000);
                    file.write_all_at(&bytes, size + 100_000).unwrap();
                    put(model, size + 100_000, &bytes);
                }
            });
            oracle::e2fsck_clean(&path);
            let volume = Volume::open(&path, VolumeOptions::read_write()).unwrap();
            for (name, model) in PATHS.iter().zip(&mut after) {
                let file = volume.open_file(name, read_write()).unwrap();
                assert_same_bytes(model, &read_all(&file));
                let pos = model.len() as u64 / 2 + 3;
                let bytes = patterned(78, pos, 50_000);
                file.write_any_at(&bytes, pos, WriteFlags::empty()).unwrap();
                put(model, pos, &bytes);
            }
            volume.close().unwrap();
            oracle::e2fsck_clean(&path);
            with_kernel(&path, "ro", |root| {
                for (name, model) in PATHS.iter().zip(&after) {
                    assert_same_bytes(model, &std::fs::read(root.join(&name[1..])).unwrap());
                }
            });
        }
    }
}
