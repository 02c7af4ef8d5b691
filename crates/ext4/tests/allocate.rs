//! Direct writes that allocate, convert and extend, against a model: bytes, sizes, e2fsck, and the state after a crash,
//! recovered by us and by e2fsck.

use crate::common;

use common::play::{Play, contents, put};
use common::sample::{is_journaled, sample_with};
use common::{Image, aligned, open_rw, open_to_the_last, patterned, read_all, read_write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use uext4::{Error, Fallocate, File, QueueOptions, Volume, WriteFlags};
use uext4_testkit::device::LateDevice;
use uext4_testkit::{Need, Rng, Scratch, needs, oracle, with_kernel};

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

const PATHS: [&str; 4] = ["/data", "/tail", "/mixed", "/sparse"];
/// Largest size of a file.
const MOST: u64 = 2 << 20;

fn play(image: &Image, seed: u64) -> Play {
    Play::new(image, &PATHS, MOST, seed)
}

#[test]
fn writes_of_every_kind_are_read_back() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (round, (block, args)) in (0..).zip(VOLUMES) {
        let mut play = play(&sample_with(block, args), round);
        for step in 0..120 {
            let at = play.any_file();
            match step % 6 {
                5 => play.queued(at),
                _ => play.write(at),
            }
            if step % 20 == 0 {
                play.check();
            }
        }
        play.end(&format!("{block} {args:?}"), is_journaled(args));
    }
}

#[test]
fn a_full_volume_refuses_and_loses_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    for (block, args) in VOLUMES {
        let device = sample_with(block, args).device();
        let volume = open_rw(device.clone());
        let file = volume.open_file("/tail", read_write()).unwrap();
        let mut pos = 1 << 20;
        let full = loop {
            match file.write_at(&patterned(9, pos, 1 << 20), pos) {
                Ok(written) => pos += written as u64,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, Error::NoSpace), "{full:?}");
        let mut step = aligned(1 << 20);
        step.fill(0);
        assert_eq!(file.size(), pos);
        assert_eq!(file.read_at(&mut step, pos - (1 << 20)).unwrap(), 1 << 20);
        common::assert_same_bytes(&patterned(9, pos - (1 << 20), 1 << 20), &step);
        drop(file);
        volume.close().unwrap();
        let path = scratch.file("full.img");
        Image::of(&*device).save(&path);
        oracle::e2fsck_clean(&path);
    }
}

#[test]
fn a_volume_that_was_only_looked_at_is_left_as_it_was() {
    needs!(Need::Tool("mke2fs"));
    let image = sample_with(4096, &[]);
    let device = image.device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/data", read_write()).unwrap();
    file.sync_all().unwrap();
    drop(file);
    volume.close().unwrap();
    common::assert_unchanged(&image, &*device);
}

/// The kernel reads what we wrote, from a clean volume and from a dirty log, and adds to it; then we read that.
#[test]
fn root_the_kernel_takes_turns_with_us() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(128 << 20);
    for (round, (block, args)) in (0..).zip(VOLUMES) {
        let mut play = play(&sample_with(block, args), 100 + round);
        for _ in 0..40 {
            let at = play.any_file();
            play.write(at);
        }
        play.sync_all();
        let path = scratch.file("turns.img");
        let (models, dirty) = (play.models(), Image::of(&*play.device));
        let device = play.close();
        for (image, how) in [(dirty, "dirty"), (Image::of(&*device), "closed")] {
            image.save(&path);
            if how == "dirty" && !is_journaled(args) {
                assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
            }
            let mut after = models.clone();
            with_kernel(&path, "", |mount| {
                for (name, model) in PATHS.iter().zip(&mut after) {
                    let name = mount.join(&name[1..]);
                    common::assert_same_bytes(model, &std::fs::read(&name).unwrap());
                    let file = std::fs::File::options().write(true).open(&name).unwrap();
                    let end = model.len() as u64 + 5000;
                    file.write_all_at(&[0x55; 3000], end).unwrap();
                    put(model, end, &[0x55; 3000]);
                    file.set_len(model.len() as u64 - 100).unwrap();
                    model.truncate(model.len() - 100);
                }
            });
            let image = Image::load(&path);
            assert_eq!(contents(&PATHS, image.device()), after, "{block} {args:?}, {how}: after the kernel");
            // We go on after the kernel's changes, and it checks again.
            let volume = Volume::open(&path, uext4::VolumeOptions::read_write()).unwrap();
            for (name, model) in PATHS.iter().zip(&mut after) {
                let file = volume.open_file(name, read_write()).unwrap();
                let end = model.len() as u64 + 777;
                file.write_any_at(&[0x66; 9000], end, WriteFlags::empty()).unwrap();
                put(model, end, &[0x66; 9000]);
            }
            volume.close().unwrap();
            with_kernel(&path, "ro", |mount| {
                for (name, model) in PATHS.iter().zip(&after) {
                    common::assert_same_bytes(model, &std::fs::read(mount.join(&name[1..])).unwrap());
                }
            });
        }
    }
}

/// A write in the middle of an unwritten extent splits it, which takes map blocks. On a volume with only a few free
/// blocks such a write either fails before any data is sent, or succeeds; none aborts the volume.
#[test]
fn conversions_on_a_full_volume_fail_early_or_succeed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    for spare in [0, 3, 12, 40] {
        let device = sample_with(1024, &[]).device();
        let volume = open_to_the_last(device.clone());
        let target = volume.open_file("/data", read_write()).unwrap();
        let blocks = 3000;
        target.set_len(0).unwrap();
        target.fallocate(uext4::Fallocate::Allocate, 0, blocks * 1024).unwrap();
        let filler = volume.open_file("/tail", read_write()).unwrap();
        let mut pos = 1 << 20;
        let mut step = 1 << 20;
        while step >= 1024 {
            match filler.write_at(&patterned(9, pos, step), pos) {
                Ok(written) => pos += written as u64,
                Err(Error::NoSpace) => step /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        filler.set_len(pos - spare * 1024).unwrap();
        let mut model = vec![0; blocks as usize * 1024];
        let (mut rng, mut refused) = (Rng::new(spare), 0);
        for number in 0..600 {
            let pos = rng.below(blocks) * 1024;
            let bytes = patterned(1000 + number, pos, 1024);
            match target.write_at(&bytes, pos) {
                Ok(1024) => put(&mut model, pos, &bytes),
                Err(Error::NoSpace) => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(refused > 0 || spare == 40, "{spare} blocks were enough");
        common::assert_same_bytes(&model, &read_all(&target));
        drop((target, filler));
        volume.close().unwrap();
        let path = scratch.file("full.img");
        Image::of(&*device).save(&path);
        oracle::e2fsck_clean(&path);
    }
}

/// While a write is in flight whose conversion splits an extent under a full root, others allocate every block they can
/// get.
#[test]
fn a_conversion_gets_what_was_promised_to_its_write() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    for args in [&[][..], &["-O", "^has_journal"]] {
        let memory = sample_with(1024, args).device();
        let late = LateDevice::new(memory.clone());
        let handle = late.handle();
        let volume = open_to_the_last(Arc::new(late));
        let target = volume.open_file("/data", read_write()).unwrap();
        target.set_len(0).unwrap();
        target.fallocate(Fallocate::Allocate, 0, 100 << 10).unwrap();
        let mut model = vec![0; 100 << 10];
        for pos in [120 << 10, 140 << 10, 160 << 10] {
            let bytes = patterned(pos, pos, 1024);
            target.write_at(&bytes, pos).unwrap();
            put(&mut model, pos, &bytes);
        }
        target.sync_all().unwrap();

        let mut queue = volume.queue(QueueOptions::depth(1)).unwrap();
        let slot = queue.attach(&target).unwrap();
        let mut buffer = queue.buffer(1024).unwrap();
        buffer.copy_from_slice(&patterned(5, 50 << 10, 1024));
        put(&mut model, 50 << 10, &buffer);
        handle.hold();
        queue.write(slot, 50 << 10, buffer, WriteFlags::empty(), 5).unwrap();
        queue.submit().unwrap();
        // Several files: the map of one may need a block itself where another's root has room.
        let fillers: Vec<File> = (0..6)
            .map(|number| volume.open_file(format!("/{number}"), read_write().create_new(true)).unwrap())
            .collect();
        for filler in &fillers {
            let (mut end, mut step) = (0, 1 << 20);
            while step >= 1024 {
                match filler.fallocate(Fallocate::KeepSize, end, step) {
                    Ok(()) => end += step,
                    Err(Error::NoSpace) => step /= 2,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        handle.release();
        let done = queue.wait(1).unwrap().next().unwrap().result;
        assert!(matches!(done, Ok(1024)), "{args:?}: {done:?}");
        common::assert_same_bytes(&model, &read_all(&target));
        drop((queue, target, fillers));
        volume.close().unwrap();
        let path = scratch.file("promised.img");
        Image::of(&*memory).save(&path);
        oracle::e2fsck_clean(&path);
    }
}
