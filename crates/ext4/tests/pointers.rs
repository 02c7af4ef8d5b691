//! Files whose maps name blocks one by one (ext2, ext3) get and lose blocks, against a model: bytes, sizes, e2fsck, the
//! kernel, and what is there after a crash. (Power cuts: `crash_allocate.rs`.)

mod common;

use common::sample::{is_journaled, with_pointers};
use common::{Image, assert_same_bytes, open_rw, patterned, read_all, read_only, read_write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use uext4::blockdev::engine::MemoryDevice;
use uext4::blockdev::layer::{Fault, FaultDevice, FaultOn};
use uext4::blockdev::{Device, Op};
use uext4::{Error, Fallocate, File, QueueOptions, State, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::{Need, Rng, Scratch, needs, oracle, with_kernel};

/// Sizes of blocks, and other arguments of mke2fs.
const VOLUMES: [(u32, &[&str]); 5] = [
    (1024, &["-O", "^extent,^64bit"]),
    (4096, &["-O", "^extent,^64bit,^metadata_csum"]),
    (2048, &["-O", "^extent,^64bit,^flex_bg,^uninit_bg,^metadata_csum,^orphan_file"]),
    (1024, &["-O", "^extent,^64bit", "-I", "128"]),
    (1024, &["-O", "^extent,^64bit,^has_journal"]),
];
const PATHS: [&str; 3] = ["/data", "/tail", "/sparse"];
/// Files do not get longer: with blocks of 1 KiB the map has three levels from 65 MiB on, two from 268 KiB on.
const MOST: u64 = 3 << 20;

/// A volume, and what its files must hold.
struct Play {
    device: Arc<MemoryDevice>,
    volume: Volume,
    files: Vec<(File, Vec<u8>)>,
    rng: Rng,
    number: u64,
}

impl Play {
    fn new(image: &Image, seed: u64) -> Play {
        let device = image.device_with(|options| (options.volatile_cache, options.fua) = (true, true));
        let volume = open_rw(device.clone());
        let open = |path| {
            let file = volume.open_file(path, read_write()).unwrap();
            let bytes = read_all(&file);
            (file, bytes)
        };
        let files = PATHS.map(open).into();
        Play { device, volume, files, rng: Rng::new(seed), number: 1 << 32 }
    }

    /// Somewhere in a file, at its end, or behind it.
    fn place(&mut self, at: usize, unit: u64) -> u64 {
        let size = self.files[at].1.len() as u64;
        let pos = match self.rng.below(4) {
            0 => size,
            1 => size + self.rng.below(300_000),
            _ => self.rng.below(size.max(1)),
        };
        pos.min(MOST) / unit * unit
    }

    fn write(&mut self, at: usize) {
        let unit = *self.rng.pick(&[1, 512, 4096, 16384]);
        let pos = self.place(at, unit);
        let length = (1 + self.rng.below(24)) * unit;
        self.number += 1;
        let bytes = patterned(self.number, pos, length as usize);
        let flags = *self.rng.pick(&[WriteFlags::empty(), WriteFlags::empty(), WriteFlags::DSYNC]);
        let (file, model) = &mut self.files[at];
        let written = match unit {
            1 => file.write_any_at(&bytes, pos, flags),
            _ => file.write_at_with(&bytes, pos, flags),
        };
        assert_eq!(written.unwrap(), bytes.len(), "{} bytes at {pos} of {}", bytes.len(), PATHS[at]);
        put(model, pos, &bytes);
    }

    /// Several through a queue, into holes and over data.
    fn queued(&mut self, at: usize) {
        let mut queue = self.volume.queue(QueueOptions::depth(8)).unwrap();
        let start = self.place(at, 4096);
        let (file, model) = &mut self.files[at];
        let slot = queue.attach(file).unwrap();
        for part in 0..8 {
            let pos = start + part * 8192;
            self.number += 1;
            let mut buffer = queue.buffer(4096).unwrap();
            buffer.copy_from_slice(&patterned(self.number, pos, 4096));
            put(model, pos, &buffer);
            queue.write(slot, pos, buffer, WriteFlags::empty(), part).unwrap();
        }
        let mut left = 8;
        while left > 0 {
            for done in queue.wait(1).unwrap() {
                assert_eq!(done.result.unwrap(), 4096);
                left -= 1;
            }
        }
    }

    fn step(&mut self) {
        let at = self.rng.below(self.files.len() as u64) as usize;
        match self.rng.below(10) {
            0..5 => self.write(at),
            5 => self.queued(at),
            6 => {
                let size = self.rng.below(MOST);
                let (file, model) = &mut self.files[at];
                file.set_len(size).unwrap();
                model.resize(size as usize, 0);
            }
            7 => {
                let size = self.rng.below(MOST / 2);
                let (file, model) = &mut self.files[at];
                file.prepare(size).unwrap();
                model.resize(model.len().max(size as usize), 0);
            }
            _ => {
                let (pos, length) = (self.place(at, 1), 1 + self.rng.below(200_000));
                let (file, model) = &mut self.files[at];
                file.fallocate(Fallocate::Punch, pos, length).unwrap();
                let end = ((pos + length) as usize).min(model.len());
                model[(pos as usize).min(end)..end].fill(0);
            }
        }
        let (file, model) = &self.files[at];
        assert_eq!(file.size(), model.len() as u64, "{}", PATHS[at]);
    }

    fn check(&self) {
        for (file, model) in &self.files {
            assert_same_bytes(model, &read_all(file));
        }
    }

    fn models(&self) -> Vec<Vec<u8>> {
        self.files.iter().map(|(_, model)| model.clone()).collect()
    }

    /// Closes the volume and returns its device.
    fn close(self) -> Arc<MemoryDevice> {
        drop(self.files);
        self.volume.close().unwrap();
        self.device
    }
}

fn put(model: &mut Vec<u8>, pos: u64, bytes: &[u8]) {
    let end = pos as usize + bytes.len();
    model.resize(model.len().max(end), 0);
    model[pos as usize..end].copy_from_slice(bytes);
}

fn contents(device: Arc<dyn Device>) -> Vec<Vec<u8>> {
    let volume = open_rw(device);
    let contents = PATHS.map(|path| read_all(&volume.open_file(path, read_only()).unwrap()));
    volume.close().unwrap();
    contents.into()
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
        let mut play = Play::new(&with_pointers(block, args), round);
        for step in 0..200 {
            play.step();
            if step % 20 == 0 {
                play.check();
                // As a crash leaves it, wherever the last commit was.
                Image::of(&*play.device).save(&path);
                assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
                oracle::e2fsck_clean(&path);
            }
        }
        play.check();
        play.files.iter().for_each(|(file, _)| file.sync_all().unwrap());
        let (models, dirty) = (play.models(), Image::of(&*play.device));
        dirty.save(&path);
        assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
        oracle::e2fsck_clean(&path);
        assert_eq!(contents(Image::load(&path).device()), models, "{block} {args:?}: recovered by e2fsck");
        let recovered = dirty.device();
        assert_eq!(contents(recovered.clone()), models, "{block} {args:?}: recovered");
        if is_journaled(args) {
            clean(&Image::of(&*recovered));
        }
        let device = play.close();
        clean(&Image::of(&*device));
        assert_eq!(contents(device), models, "{block} {args:?}: closed");
    }
}

/// What free blocks hold is never seen through one that a file got.
#[test]
fn new_blocks_hold_zeros_around_what_is_written() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, args) in VOLUMES {
        let device = with_pointers(block, args).device();
        let volume = open_rw(device.clone());
        // Blocks full of something are free again.
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

/// A device that takes no zeros, or no data: what was allocated is free again, and the file is as it was.
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
        for (pos, nth) in [(size, 1), (size, 3), (size + 30_001, 2), (size + (200 << 10), 1)] {
            handle.arm(Fault::nth(FaultOn::Op(Op::Write), nth));
            let failed = file.write_any_at(&patterned(9, pos, 256 << 10), pos, WriteFlags::empty());
            handle.clear();
            assert!(matches!(failed, Err(Error::Io(_))), "{block} {args:?}: {failed:?}");
            assert_eq!((file.size(), file.metadata().blocks), (size, blocks), "{block} {args:?}: {pos}");
            assert_same_bytes(&before, &read_all(&file));
        }
        handle.arm(Fault::nth(FaultOn::Op(Op::Write), 4));
        assert!(matches!(file.prepare(size + (1 << 20)), Err(Error::Io(_))));
        handle.clear();
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
        // Room again, as soon as something goes.
        file.set_len(1 << 20).unwrap();
        let data = patterned(11, 2 << 20, 1 << 20);
        assert_eq!(file.write_at(&data, 2 << 20).unwrap(), data.len());
        drop(file);
        volume.close().unwrap();
        clean(&Image::of(&*device));
    }
}

/// A file that lost its name while it is open grows on, and is gone when it is closed.
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

/// What is written here the kernel reads and goes on with; then we read that, and go on.
#[test]
fn root_the_kernel_takes_turns_with_us() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    for (round, (block, args)) in (50..).zip(VOLUMES) {
        let mut play = Play::new(&with_pointers(block, args), round);
        (0..120).for_each(|_| play.step());
        let blocks: Vec<u64> = play.files.iter().map(|(file, _)| file.metadata().blocks).collect();
        play.files.iter().for_each(|(file, _)| file.sync_all().unwrap());
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
