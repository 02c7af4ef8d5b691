//! Files that shrink, grow, lose blocks and get them back, against a model: bytes, sizes, e2fsck, and the state after a
//! crash, recovered by us and by e2fsck.

use crate::common;

use common::play::{Play, contents};
use common::sample::{self, is_journaled, sample_with, with_pointers};
use common::{
    Image, aligned, assert_same_bytes, open_rw, open_to_the_last, patterned, read_all, read_only, read_write,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4::device::MemoryDevice;
use uext4::device::{Device, Op};
use uext4::{Error, Fallocate, File, Limit, State, Volume, WriteFlags};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};
use uext4_testkit::{Need, Rng, Scratch, needs, oracle};

/// Block sizes, and other arguments of mke2fs.
const VOLUMES: [(u32, &[&str]); 9] = [
    (4096, &[]),
    (1024, &[]),
    (2048, &["-O", "^metadata_csum,^64bit"]),
    (1024, &["-O", "^metadata_csum,^uninit_bg,^64bit,^flex_bg"]),
    (4096, &["-O", "bigalloc", "-C", "16384"]),
    (1024, &["-O", "bigalloc", "-C", "16384", "-O", "^metadata_csum"]),
    (4096, &["-O", "^has_journal"]),
    (1024, &["-O", "^has_journal,^metadata_csum"]),
    (1024, &["-O", "^has_journal,bigalloc", "-C", "16384"]),
];
/// Maps of block pointers.
const POINTERS: [(u32, &[&str]); 2] =
    [(1024, &["-O", "^extent,^64bit"]), (4096, &["-O", "^extent,^64bit,^metadata_csum"])];

const PATHS: [&str; 5] = ["/data", "/tail", "/mixed", "/sparse", "/frag"];
/// Largest size of a file.
const MOST: u64 = 2 << 20;

fn play(image: &Image, seed: u64) -> Play {
    Play::new(image, &PATHS, MOST, seed)
}

fn step(play: &mut Play) {
    use Fallocate::{Allocate, Collapse, Insert, KeepSize, Punch, Zero, ZeroKeepSize};
    let at = play.any_file();
    match play.rng.below(10) {
        0..4 => play.write(at),
        4..6 => {
            let size = play.rng.below(MOST) / *play.rng.pick(&[1, 100, 4096]) * *play.rng.pick(&[1, 100]);
            play.set_len(at, size.min(MOST));
        }
        6 => {
            let size = play.files[at].1.len() as u64 + 5000;
            play.prepare(at, size.min(MOST));
        }
        _ => play.fallocate(at, &[Allocate, KeepSize, Punch, Punch, Zero, ZeroKeepSize, Collapse, Insert]),
    }
    if play.files[at].1.len() as u64 > MOST {
        play.set_len(at, MOST / 2);
    }
}

#[test]
fn changes_of_every_kind_are_read_back() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    for (round, (block, args)) in (0..).zip(VOLUMES) {
        let mut play = play(&sample_with(block, args), round);
        for number in 0..300 {
            step(&mut play);
            if number % 10 == 0 {
                play.check();
            }
            if number % 60 == 30 {
                // The state after a crash, wherever the last commit was.
                play.files[0].0.sync_all().unwrap();
                Image::of(&*play.device).save(&path);
                assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
                oracle::e2fsck_clean(&path);
            }
        }
        play.end(&format!("{block} {args:?}"), is_journaled(args));
    }
}

/// Closes the volume, lets e2fsck look at it, and returns the device.
fn close(volume: Volume, device: &MemoryDevice) {
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    // The state that a crash before would have left.
    Image::of(device).save(&path);
    assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
    oracle::e2fsck_clean(&path);
    volume.close().unwrap();
    Image::of(device).save(&path);
    oracle::e2fsck_clean(&path);
}

#[test]
fn files_with_block_pointers_are_truncated_and_punched() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, args) in POINTERS {
        let device = with_pointers(block, args).device();
        let volume = open_rw(device.clone());
        for (path, punched) in [("/data", 300_000..700_001_u64), ("/tail", 1..9000), ("/sparse", 0..600_000)]
        {
            let file = volume.open_file(path, read_write()).unwrap();
            let mut model = read_all(&file);
            let blocks = file.metadata().blocks;
            file.fallocate(Fallocate::Punch, punched.start, punched.end - punched.start).unwrap();
            model[punched.start as usize..punched.end as usize].fill(0);
            assert_same_bytes(&model, &read_all(&file));
            for size in [400_001, 100_000, 5_000_000, 13 * 1024, 1, 0] {
                file.set_len(size).unwrap();
                model.resize(size as usize, 0);
                assert_same_bytes(&model, &read_all(&file));
                if size == 13 * 1024 {
                    assert!(file.metadata().blocks < blocks, "{path}");
                }
            }
            assert_eq!(file.metadata().blocks, 0, "{path}");
            for mode in [Fallocate::Allocate, Fallocate::Zero, Fallocate::Collapse, Fallocate::Insert] {
                let refused = file.fallocate(mode, 0, 4096);
                assert!(matches!(refused, Err(Error::Incompatible { .. })), "{mode:?}: {refused:?}");
            }
        }
        close(volume, &device);
    }
}

#[test]
fn what_cannot_be_is_refused_and_nothing_is_changed() {
    needs!(Need::Tool("mke2fs"));
    let image = sample_with(4096, &[]);
    let device = image.device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/data", read_write()).unwrap();
    let limit = Limit::Map;
    assert!(matches!(file.set_len(1 << 60), Err(Error::Limit(found)) if found == limit));
    assert!(matches!(file.fallocate(Fallocate::Allocate, 1 << 60, 1), Err(Error::Limit(_))));
    assert!(matches!(file.fallocate(Fallocate::KeepSize, u64::MAX, 2), Err(Error::Limit(_))));
    assert!(matches!(file.fallocate(Fallocate::Insert, 0, 16 << 40), Err(Error::Limit(_))));
    assert!(matches!(file.prepare(1 << 60), Err(Error::Limit(_))));
    for (mode, pos, length) in [
        (Fallocate::Allocate, 0, 0),
        (Fallocate::Collapse, 512, 4096),
        (Fallocate::Collapse, 4096, 512),
        (Fallocate::Collapse, 0, sample::DATA_SIZE),
        (Fallocate::Insert, 512, 4096),
        (Fallocate::Insert, sample::DATA_SIZE, 4096),
    ] {
        let refused = file.fallocate(mode, pos, length);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{mode:?} {pos} {length}: {refused:?}");
    }
    let reading = volume.open_file("/data", read_only()).unwrap();
    assert!(matches!(reading.set_len(0), Err(Error::BadMode(_))));
    assert!(matches!(reading.fallocate(Fallocate::Punch, 0, 4096), Err(Error::BadMode(_))));
    // There is nothing past the last byte, so nothing to do.
    file.fallocate(Fallocate::Punch, sample::DATA_SIZE, 4096).unwrap();
    drop((file, reading));
    volume.close().unwrap();
    common::assert_unchanged(&image, &*device);
}

#[test]
fn data_and_holes_are_found() {
    needs!(Need::Tool("mke2fs"));
    let volume = open_rw(sample_with(4096, &[]).device());
    let file = volume.open_file("/mixed", read_write()).unwrap();
    let seek = |pos| (file.seek_data(pos).unwrap(), file.seek_hole(pos).unwrap());
    assert_eq!(seek(0), (Some(0), Some(sample::MIXED_WRITTEN)));
    assert_eq!(seek(100), (Some(100), Some(sample::MIXED_WRITTEN)));
    assert_eq!(seek(sample::MIXED_WRITTEN), (None, Some(sample::MIXED_WRITTEN)));
    assert_eq!(seek(sample::MIXED_SIZE - 1), (None, Some(sample::MIXED_SIZE - 1)));
    assert_eq!(seek(sample::MIXED_SIZE), (None, None));
    let file = volume.open_file("/sparse", read_only()).unwrap();
    assert_eq!(file.seek_data(4096).unwrap(), Some(8192));
    assert_eq!(file.seek_hole(8192).unwrap(), Some(12288));
    let file = volume.open_file("/tail", read_only()).unwrap();
    assert_eq!(file.seek_hole(0).unwrap(), Some(sample::TAIL_SIZE));
}

#[test]
fn a_prepared_file_is_only_overwritten() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, args) in VOLUMES {
        let device = sample_with(block, args).device();
        let volume = open_rw(device.clone());
        for (path, size) in [("/mixed", sample::MIXED_SIZE), ("/sparse", 3_000_001), ("/tail", 1 << 20)] {
            let file = volume.open_file(path, read_write()).unwrap();
            let mut model = read_all(&file);
            file.prepare(size).unwrap();
            model.resize(size as usize, 0);
            assert_same_bytes(&model, &read_all(&file));
            assert!(file.map().all(|piece| piece.unwrap().state == State::Written), "{path}");
        }
        close(volume, &device);
    }
}

/// Fills a volume with one file, up to the last block available to a write.
fn fill(volume: &Volume) -> File {
    let file = volume.open_file("/tail", read_write()).unwrap();
    let mut step = 1 << 20;
    let mut pos = 1 << 20;
    while step >= 1024 {
        match file.write_any_at(&patterned(9, pos, step), pos, WriteFlags::empty()) {
            Ok(written) => pos += written as u64,
            Err(Error::NoSpace) => step /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    // A write leaves room for its conversion.
    let block = u64::from(volume.block_size());
    let mut behind = pos.next_multiple_of(block);
    while file.fallocate(Fallocate::KeepSize, behind, block).is_ok() {
        behind += block;
    }
    // And for its map: another file's needs less.
    let other = volume.open_file("/mixed", read_write()).unwrap();
    let mut behind = 1 << 20;
    while other.fallocate(Fallocate::KeepSize, behind, block).is_ok() {
        behind += block;
    }
    file
}

#[test]
fn a_full_volume_refuses_what_needs_a_block_and_loses_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, args) in VOLUMES {
        let device = sample_with(block, args).device();
        let volume = open_to_the_last(device.clone());
        let file = fill(&volume);
        let model = read_all(&file);
        let mixed = volume.open_file("/mixed", read_write()).unwrap();
        let data = volume.open_file("/data", read_write()).unwrap();
        assert!(matches!(mixed.fallocate(Fallocate::Allocate, 64 << 10, 64 << 20), Err(Error::NoSpace)));
        // Punching splits an extent, which may take a block. Without a journal mke2fs places the file elsewhere, with
        // other extents.
        if is_journaled(args) {
            let refused = data.fallocate(Fallocate::Punch, 16_385, 100_000);
            assert!(matches!(refused, Err(Error::NoSpace)), "{block} {args:?}: {refused:?}");
        }
        let refused = data.fallocate(Fallocate::Zero, 16_385, 100_000);
        assert!(matches!(refused, Err(Error::NoSpace)), "{block} {args:?}: {refused:?}");
        for mode in [Fallocate::Insert, Fallocate::Collapse] {
            let refused = data.fallocate(mode, 16_384, 16_384);
            assert!(matches!(refused, Err(Error::NoSpace)), "{block} {args:?}: {mode:?} {refused:?}");
        }
        assert_same_bytes(&sample::expected("/data"), &read_all(&data));
        assert_same_bytes(&model, &read_all(&file));
        // Shrinking takes no block, and what it frees is available at once: a commit is forced.
        file.set_len(2 << 20).unwrap();
        data.fallocate(Fallocate::Punch, 16_385, 100_000).unwrap();
        data.fallocate(Fallocate::Insert, 16_384, 16_384).unwrap();
        mixed.fallocate(Fallocate::Allocate, 64 << 10, 2 << 20).unwrap();
        drop((file, mixed, data));
        close(volume, &device);
    }
}

/// An append fills a part of its block only, and free blocks hold bytes of files that were there before.
#[test]
fn an_append_hides_what_its_block_held() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, args) in VOLUMES {
        let device = sample_with(block, args).device();
        let volume = open_to_the_last(device.clone());
        let file = fill(&volume);
        file.set_len(0).unwrap();
        volume.sync_all().unwrap();
        let block = u64::from(volume.block_size());
        for (pos, length) in [(700, 100), (512, 512), (3 * block + 512, 512), (9 * block + 1, 100)] {
            file.set_len(0).unwrap();
            let data = patterned(3, pos, length);
            file.write_any_at(&data, pos, WriteFlags::empty()).unwrap();
            let mut expected = vec![0; pos as usize];
            expected.extend_from_slice(&data);
            assert_same_bytes(&expected, &read_all(&file));
            file.set_len(12 * block).unwrap();
            expected.resize(12 * block as usize, 0);
            assert_same_bytes(&expected, &read_all(&file));
        }
        drop(file);
        close(volume, &device);
    }
}

/// Whatever becomes of a punch, the blocks that its map might have needed are not reserved any longer.
#[test]
fn a_punch_leaves_nothing_reserved() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, args) in VOLUMES {
        let memory = sample_with(block, args).device();
        let faulty = Arc::new(FaultDevice::new(memory.clone()));
        let handle = faulty.handle();
        let volume = open_rw(faulty);
        let data = volume.open_file("/data", read_write()).unwrap();
        let punch = |pos| data.fallocate(Fallocate::Punch, pos, 100_000);
        let reserved = || (volume.reserved_space().writes, volume.reserved_space().maps);
        // In the middle of an extent, with edges to zero, and again where nothing is left.
        for pos in [16_385, 16_385, 300_000] {
            punch(pos).unwrap();
            assert_eq!(reserved(), (0, 0), "{block} {args:?}: {pos}");
        }
        // Its edges cannot be zeroed.
        handle.arm(Fault::nth(FaultOn::Op(Op::Write), 1));
        let failed = punch(600_001);
        handle.clear();
        assert!(matches!(failed, Err(Error::Io(_))), "{block} {args:?}: {failed:?}");
        assert_eq!(reserved(), (0, 0), "{block} {args:?}");
        punch(600_001).unwrap();
        assert_eq!(reserved(), (0, 0), "{block} {args:?}");
        drop(data);
        close(volume, &memory);
    }
}

/// The device refuses the data of an extending write: the blocks it allocated past the end are freed again, and earlier
/// preallocated ones stay.
#[test]
fn a_failed_extending_write_gives_its_blocks_back() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, args) in VOLUMES {
        let memory = sample_with(block, args).device();
        let faulty = Arc::new(FaultDevice::new(memory.clone()));
        let handle = faulty.handle();
        let volume = open_rw(faulty);
        let file = volume.open_file("/data", read_write()).unwrap();
        let size = sample::DATA_SIZE;
        file.fallocate(Fallocate::KeepSize, size + (64 << 10), 64 << 10).unwrap();
        let (blocks, before) = (file.metadata().blocks, read_all(&file));
        for (pos, nth) in [(size, 1), (size + 30_001, 2), (size + (200 << 10), 1)] {
            handle.arm(Fault::nth(FaultOn::Op(Op::Write), nth));
            let failed = file.write_any_at(&patterned(9, pos, 256 << 10), pos, WriteFlags::empty());
            handle.clear();
            assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
            assert_eq!((file.size(), file.metadata().blocks), (size, blocks), "{block} {args:?}: {pos}");
            assert_same_bytes(&before, &read_all(&file));
        }
        let data = patterned(10, size, 256 << 10);
        assert_eq!(file.write_at(&data, size).unwrap(), data.len());
        let mut read = aligned(256 << 10);
        assert_eq!(file.read_at(&mut read, size).unwrap(), data.len());
        assert_same_bytes(&data, &read);
        drop(file);
        close(volume, &memory);
    }
}

/// Cut or punched bytes are zeroed on the device too, to the end of their block, so that a later growth of the file
/// need not do it.
#[test]
fn edges_are_zero_on_the_device() {
    needs!(Need::Tool("mke2fs"));
    for (block, args) in VOLUMES {
        let device = sample_with(block, args).device();
        let volume = open_rw(device.clone());
        let file = volume.open_file("/data", read_write()).unwrap();
        // Without a journal mke2fs places the file elsewhere, around other metadata.
        assert!(file.map().count() == 1 || !is_journaled(args), "{block} {args:?}");
        if file.map().count() > 1 {
            continue;
        }
        let place = file.map().next().unwrap().unwrap().physical;
        let mut expected = read_all(&file);
        for (mode, pos, length) in [
            (Fallocate::Punch, 5_001, 70_000),
            (Fallocate::Zero, 100_001, 70_003),
            (Fallocate::Punch, 300_001, 3),
        ] {
            file.fallocate(mode, pos, length).unwrap();
            let (start, end, block) = (pos as usize, (pos + length) as usize, block as usize);
            expected[start..start.next_multiple_of(block).min(end)].fill(0);
            expected[(end / block * block).max(start)..end].fill(0);
        }
        file.set_len(777_777).unwrap();
        expected[777_777..777_777_usize.next_multiple_of(block as usize)].fill(0);
        let mut found = aligned(expected.len());
        device.read_at(&mut found, place).unwrap();
        assert_same_bytes(&expected, &found);
    }
}

/// Many extents, so that the map has several levels and each change takes many handles.
#[test]
fn maps_of_several_levels_change_in_steps() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, args) in [VOLUMES[0], VOLUMES[1], VOLUMES[3]] {
        let device = sample_with(block, args).device();
        let volume = open_rw(device.clone());
        let file = volume.open_file("/data", read_write()).unwrap();
        let unit = u64::from(block);
        let count = 3000.min((9 << 20) / unit);
        file.set_len(0).unwrap();
        file.set_len(2 * count * unit).unwrap();
        let mut model = vec![0; file.size() as usize];
        for number in 0..count {
            let pos = (2 * number + 1) * unit;
            let bytes = patterned(number, pos, block as usize);
            assert_eq!(file.write_at(&bytes, pos).unwrap(), bytes.len());
            model[pos as usize..pos as usize + bytes.len()].copy_from_slice(&bytes);
        }
        let extents = |file: &File| file.map().filter(|piece| piece.as_ref().unwrap().physical > 0).count();
        assert_eq!(extents(&file), count as usize);
        let (start, end) = ((5 * unit) as usize, (48 * unit) as usize);
        file.fallocate(Fallocate::Collapse, 5 * unit, 43 * unit).unwrap();
        model.drain(start..end);
        assert_same_bytes(&model, &read_all(&file));
        file.fallocate(Fallocate::Insert, 9 * unit, 77 * unit).unwrap();
        let at = (9 * unit) as usize;
        model.splice(at..at, std::iter::repeat_n(0, (77 * unit) as usize));
        assert_same_bytes(&model, &read_all(&file));
        let (pos, length) = (100 * unit + 5, count * unit / 2);
        file.fallocate(Fallocate::Punch, pos, length).unwrap();
        model[pos as usize..(pos + length) as usize].fill(0);
        assert_same_bytes(&model, &read_all(&file));
        let (pos, length) = (count * unit, count * unit / 2 + 1);
        file.fallocate(Fallocate::ZeroKeepSize, pos, length).unwrap();
        model[pos as usize..(pos + length) as usize].fill(0);
        assert_same_bytes(&model, &read_all(&file));
        file.prepare(200 * unit).unwrap();
        assert_same_bytes(&model, &read_all(&file));
        file.set_len(150 * unit + 7).unwrap();
        model.truncate((150 * unit + 7) as usize);
        assert_same_bytes(&model, &read_all(&file));
        drop(file);
        close(volume, &device);
    }
}

/// The kernel continues after us, and we after it.
#[test]
fn root_the_kernel_goes_on_with_what_was_changed() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    for (round, (block, args)) in (50..).zip(VOLUMES) {
        let mut play = play(&sample_with(block, args), round);
        (0..120).for_each(|_| step(&mut play));
        let Play { device, volume, mut files, .. } = play;
        let blocks: Vec<u64> = files.iter().map(|(file, _)| file.metadata().blocks).collect();
        let mut models: Vec<Vec<u8>> = files.drain(..).map(|(_, model)| model).collect();
        drop(files);
        volume.close().unwrap();
        Image::of(&*device).save(&path);
        uext4_testkit::with_kernel(&path, "rw", |root| {
            for ((name, model), blocks) in PATHS.iter().zip(&mut models).zip(blocks) {
                let name = root.join(&name[1..]);
                assert_same_bytes(model, &std::fs::read(&name).unwrap());
                assert_eq!(std::fs::metadata(&name).unwrap().blocks(), blocks, "{}", name.display());
                let file = std::fs::OpenOptions::new().write(true).open(&name).unwrap();
                let size = model.len() as u64 / 2 + 777;
                file.set_len(size).unwrap();
                model.resize(size as usize, 0);
                let bytes = patterned(77, size, 30_000);
                file.write_all_at(&bytes, size + 100).unwrap();
                model.resize(size as usize + 100, 0);
                model.extend_from_slice(&bytes);
            }
        });
        oracle::e2fsck_clean(&path);
        let device = Image::load(&path).device();
        assert_eq!(contents(&PATHS, device.clone()), models, "{block} {args:?}");
        let mut play = self::play(&Image::of(&*device), round);
        (0..60).for_each(|_| step(&mut play));
        play.check();
        let Play { device, volume, files, .. } = play;
        drop(files);
        close(volume, &device);
    }
}

/// Signals the end.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Blocks move from one file to another and back while both are read and written: requests in progress must not reach
/// them any more.
#[test]
fn nobody_sees_the_blocks_of_another_file() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = sample_with(1024, &[]).device();
    let volume = open_rw(device.clone());
    let one = volume.open_file("/data", read_write()).unwrap();
    let other = volume.open_file("/tail", read_write()).unwrap();
    let size = sample::DATA_SIZE;
    let (expected, foreign) = (sample::expected("/data"), patterned(99, 0, 8 << 20));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (one, expected, done) = (&one, &expected, &done);
            scope.spawn(move || {
                let (mut rng, mut bytes) = (Rng::new(seed), aligned(65_536));
                while !done.load(Ordering::Relaxed) {
                    let pos = rng.below(size / 1024 - 64) * 1024;
                    let range = pos as usize..pos as usize + 65_536;
                    if rng.below(4) == 0 {
                        bytes.copy_from_slice(&expected[range]);
                        one.write_at(&bytes, pos).unwrap();
                        continue;
                    }
                    let read = one.read_at(&mut bytes, pos).unwrap();
                    let known = bytes[..read].iter().zip(&expected[range]);
                    assert!(
                        known.into_iter().all(|(found, own)| *found == 0 || found == own),
                        "byte {pos} on"
                    );
                }
            });
        }
        // Also if this thread fails: the others would run forever.
        let _end = AtEnd(&done);
        for round in 0..40 {
            match round % 4 {
                0 => one.set_len(0).unwrap(),
                1 => one.fallocate(Fallocate::Punch, 0, size).unwrap(),
                2 => one.set_len(size / 2 + 777).unwrap(),
                _ => one.fallocate(Fallocate::Zero, 4096, size / 2).unwrap(),
            }
            other.write_at(&foreign, 0).unwrap();
            assert_same_bytes(&foreign, &read_all(&other)[..foreign.len()]);
            other.set_len(0).unwrap();
            one.set_len(size).unwrap();
        }
    });
    drop((one, other));
    close(volume, &device);
}

/// A mapping by the kernel may have left bytes past the end in the last block: growing the file hides them.
#[test]
fn what_lies_behind_the_end_is_never_seen() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let ways: [fn(&File) -> uext4::Result<()>; 4] = [
        |file| file.set_len(20_000),
        |file| file.fallocate(Fallocate::Allocate, 16_384, 3616),
        |file| file.fallocate(Fallocate::Zero, 16_384, 3616),
        |file| file.prepare(20_000),
    ];
    for grow in ways {
        let device = sample_with(4096, &[]).device();
        let volume = open_rw(device.clone());
        let file = volume.open_file("/data", read_write()).unwrap();
        file.set_len(5000).unwrap();
        let mut model = read_all(&file);
        let last = file.map().map(|piece| piece.unwrap()).find(|piece| piece.end() > 4096).unwrap();
        drop(file);
        volume.close().unwrap();
        let place = last.physical + (4096 - last.logical);
        let mut block = aligned(4096);
        device.read_at(&mut block, place).unwrap();
        block[5000 - 4096..].fill(0xA7);
        device.write_at(&block, place, uext4::device::WriteDurability::Cached).unwrap();

        let volume = open_rw(device.clone());
        let file = volume.open_file("/data", read_write()).unwrap();
        grow(&file).unwrap();
        model.resize(20_000, 0);
        assert_same_bytes(&model, &read_all(&file));
        drop(file);
        close(volume, &device);
    }
}
