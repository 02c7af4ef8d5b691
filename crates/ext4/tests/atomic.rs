//! Atomic writes: what they change, what they refuse, and who else is in the file.

use crate::common;

use common::{Image, aligned, assert_clean, open_rw, patterned, read_all, read_only, read_write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4::device::{Device, Op, WriteDurability};
use uext4::{
    Counter, Error, Fallocate, File, InodeFlags, OpenOptions, QueueOptions, Volume, VolumeOptions, WriteFlags,
};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, needs};

const ATOMIC: WriteFlags = WriteFlags::ATOMIC;

fn image(options: &[&str]) -> Image {
    Image::load(VolumeBuilder::new(64 << 20).args(options.iter().copied()).build().path())
}

fn make(volume: &Volume, path: &str) -> File {
    volume.open_file(path, read_write().create_new(true)).unwrap()
}

/// Closes the volume, which then is clean and holds these bytes.
fn ends_with(volume: Volume, device: &dyn Device, path: &str, expected: &[u8]) {
    volume.close().unwrap();
    assert_clean(device);
    let volume = open_rw(Image::of(device).device());
    assert!(read_all(&volume.open_file(path, read_only()).unwrap()) == expected);
    volume.close().unwrap();
}

/// Random atomic writes over data, holes, preallocated blocks and the end, between other changes.
#[test]
fn atomic_writes_read_back() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let layouts: [&[&str]; 5] = [
        &["-b", "4096"],
        &["-b", "1024"],
        &["-b", "1024", "-O", "^metadata_csum,^64bit"],
        &["-b", "4096", "-O", "quota"],
        &["-b", "4096", "-O", "inline_data"],
    ];
    for (seed, options) in (1..).zip(layouts) {
        let device = image(options).device();
        let volume = open_rw(device.clone());
        let block = u64::from(volume.statfs().unwrap().block_size);
        let file = make(&volume, "/file");
        let (mut model, mut rng) = (Vec::new(), Rng::new(seed));
        for number in 0..400 {
            let length = block << rng.below(7);
            let length = length.min(64 << 10);
            let pos = rng.below(24) * (16 << 10) / length * length;
            let bytes = patterned(number, pos, length as usize);
            let end = (pos + length) as usize;
            match rng.below(8) {
                0 => {
                    let size = rng.below(400_000);
                    file.set_len(size).unwrap();
                    model.resize(size as usize, 0);
                }
                1 => {
                    file.fallocate(Fallocate::KeepSize, pos, length).unwrap();
                }
                2 => {
                    file.fallocate(Fallocate::Punch, pos, length).unwrap();
                    let size = model.len();
                    model[(pos as usize).min(size)..end.min(size)].fill(0);
                }
                3 => {
                    file.write_any_at(&bytes[7..], pos + 7, WriteFlags::empty()).unwrap();
                    model.resize(model.len().max(end), 0);
                    model[pos as usize + 7..end].copy_from_slice(&bytes[7..]);
                }
                kind => {
                    let flags = if kind == 4 { ATOMIC | WriteFlags::DSYNC } else { ATOMIC };
                    // Any memory.
                    let shift = usize::from(kind == 5);
                    let mut memory = vec![0; bytes.len() + shift];
                    memory[shift..].copy_from_slice(&bytes);
                    let put = file.write_at_with(&memory[shift..], pos, flags).unwrap();
                    assert_eq!(put as u64, length);
                    model.resize(model.len().max(end), 0);
                    model[pos as usize..end].copy_from_slice(&bytes);
                }
            }
            if number % 16 == 0 {
                assert!(read_all(&file) == model, "{options:?}: operation {number}");
            }
        }
        assert!(read_all(&file) == model, "{options:?}");
        assert!(volume.stats().get(Counter::AtomicWrites) > 100);
        drop(file);
        ends_with(volume, &*device, "/file", &model);
    }
}

#[test]
fn shapes_that_cannot_be_atomic_are_refused() {
    needs!(Need::Tool("mke2fs"));
    let volume = open_rw(image(&["-b", "4096"]).device());
    let file = make(&volume, "/file");
    file.write_at(&aligned(1 << 20), 0).unwrap();
    let bytes = aligned(128 << 10);
    for (length, pos) in [(512, 0), (12288, 0), (128 << 10, 0), (8192, 4096), (4096, 512), (4096, 1)] {
        let refused = file.write_at_with(&bytes[..length], pos, ATOMIC).unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL, "{length} at {pos}: {refused}");
    }
    let waits = file.write_at_with(&bytes[..4096], 0, ATOMIC | WriteFlags::NOWAIT).unwrap_err();
    assert!(matches!(waits, Error::WouldBlock(_)), "{waits}");
    let tail = volume.open_file("/file", OpenOptions::new().append(true)).unwrap();
    assert!(matches!(tail.append(&bytes[..4096], ATOMIC), Err(Error::NotSupported(_))));
    let reader = volume.open_file("/file", read_only()).unwrap();
    assert!(matches!(reader.write_at_with(&bytes[..4096], 0, ATOMIC), Err(Error::BadMode(_))));
    assert_eq!(volume.stats().get(Counter::AtomicWrites), 0);
}

#[test]
fn files_and_volumes_that_cannot_are_refused_by_name() {
    needs!(Need::Tool("mke2fs"));
    for (options, why) in [
        (&["-O", "^has_journal"][..], "journal"),
        (&["-O", "bigalloc", "-C", "16384"], "bigalloc"),
        (&["-O", "^extent,^64bit"], "extents"),
        (&["-b", "4096"], "journaled data"),
    ] {
        let volume = open_rw(image(options).device());
        make(&volume, "/file");
        if why == "journaled data" {
            let flags = volume.metadata("/file").unwrap().flags | InodeFlags::JOURNAL_DATA;
            volume.set_flags("/file", flags, true).unwrap();
        }
        let file = volume.open_file("/file", read_write()).unwrap();
        let refused = file.write_at_with(&aligned(4096), 0, ATOMIC).unwrap_err();
        assert_eq!(refused.errno(), libc::EOPNOTSUPP, "{options:?}: {refused}");
        assert!(refused.to_string().contains(why), "{options:?}: {refused}");
        assert_eq!(file.size(), 0);
    }
}

/// The rest of the volume is full: each write frees what the next one needs, after a commit.
#[test]
fn a_full_volume_takes_atomic_overwrites_as_long_as_one_fits() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&["-b", "1024", "-m", "0"]).device();
    let volume = open_rw(device.clone());
    let (file, filler) = (make(&volume, "/file"), make(&volume, "/filler"));
    let mut model = patterned(1, 0, 1 << 20).to_vec();
    file.write_at(&patterned(1, 0, 1 << 20), 0).unwrap();
    let (mut full, mut unit) = (0, 1 << 20);
    while unit >= 1024 {
        match filler.write_at(&aligned(unit), full) {
            Ok(_) => full += unit as u64,
            Err(error) => {
                assert!(matches!(error, Error::NoSpace), "{error}");
                unit /= 2;
            }
        }
    }
    let none = file.write_at_with(&aligned(16 << 10), 0, ATOMIC).unwrap_err();
    assert!(matches!(none, Error::NoSpace), "{none}");
    assert!(read_all(&file) == model);
    filler.set_len(full - (256 << 10)).unwrap();
    for number in 2..80 {
        let pos = number * 16384 % (1 << 20);
        let bytes = patterned(number, pos, 16 << 10);
        file.write_at_with(&bytes, pos, ATOMIC).unwrap();
        model[pos as usize..][..16 << 10].copy_from_slice(&bytes);
    }
    assert!(read_all(&file) == model);
    drop((file, filler));
    ends_with(volume, &*device, "/file", &model);
}

/// A device that fails while the data is written: nothing of it is in the file.
#[test]
fn a_failed_write_leaves_the_old_bytes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let memory = image(&["-b", "4096"]).device();
    let faulty = Arc::new(FaultDevice::new(memory.clone()));
    let (handle, volume) = (faulty.handle(), open_rw(faulty));
    let file = make(&volume, "/file");
    let old = patterned(1, 0, 64 << 10);
    file.write_at(&old, 0).unwrap();
    file.sync_all().unwrap();
    let free = volume.statfs().unwrap().free;
    handle.arm(Fault::nth(FaultOn::Op(Op::Write), 1));
    let failed = file.write_at_with(&patterned(2, 0, 64 << 10), 0, ATOMIC).unwrap_err();
    assert_eq!(failed.errno(), libc::EIO);
    assert!(read_all(&file) == *old);
    assert_eq!(volume.statfs().unwrap().free, free);
    file.write_at_with(&patterned(3, 0, 64 << 10), 0, ATOMIC | WriteFlags::DSYNC).unwrap();
    drop(file);
    ends_with(volume, &*memory, "/file", &patterned(3, 0, 64 << 10));
}

/// Readers, plain writers and atomic writers in one file: a read of an atomic unit shows one write.
#[test]
fn readers_see_whole_writes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    const UNIT: usize = 16 << 10;
    const UNITS: u64 = 16;
    let device = image(&["-b", "4096"]).device();
    let volume = open_rw(device.clone());
    let file = make(&volume, "/file");
    let fill = |byte: u8| {
        let mut bytes = aligned(UNIT);
        bytes.fill(byte);
        bytes
    };
    for unit in 0..=UNITS {
        file.write_at(&fill(1), unit * UNIT as u64).unwrap();
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (2..4)
            .map(|seed| {
                let (file, fill) = (file.clone(), &fill);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    for _ in 0..400 {
                        let pos = rng.below(UNITS) * UNIT as u64;
                        let flags = if rng.below(4) == 0 { ATOMIC | WriteFlags::DSYNC } else { ATOMIC };
                        file.write_at_with(&fill(rng.below(250) as u8 + 2), pos, flags).unwrap();
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            // Not atomic, in a unit of its own.
            while !ended.load(Ordering::Relaxed) {
                file.write_at(&fill(9), UNITS * UNIT as u64).unwrap();
            }
        });
        scope.spawn(|| {
            let (mut bytes, mut rng) = (aligned(UNIT), Rng::new(9));
            while !ended.load(Ordering::Relaxed) {
                let pos = rng.below(UNITS) * UNIT as u64;
                assert_eq!(file.read_at(&mut bytes, pos).unwrap(), UNIT);
                assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn at {pos}");
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        ended.store(true, Ordering::Relaxed);
    });
    let expected = read_all(&file);
    drop(file);
    ends_with(volume, &*device, "/file", &expected);
}

#[test]
fn queues_take_atomic_writes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&["-b", "4096"]).device();
    let volume = open_rw(device.clone());
    let file = make(&volume, "/file");
    file.write_at(&patterned(1, 0, 256 << 10), 0).unwrap();
    let mut model = patterned(1, 0, 256 << 10).to_vec();
    let mut queue = volume.queue(QueueOptions::depth(8)).unwrap();
    let slot = queue.attach(&file).unwrap();
    let mut waiting = 0;
    for tag in 2..40 {
        let pos = tag * 16384 % (256 << 10);
        let mut buffer = queue.buffer(16 << 10).unwrap();
        buffer.copy_from_slice(&patterned(tag, pos, 16 << 10));
        model[pos as usize..][..16 << 10].copy_from_slice(&buffer);
        let flags = match tag % 3 {
            0 => ATOMIC | WriteFlags::DSYNC,
            1 => ATOMIC,
            // Its place may be any by now.
            _ => WriteFlags::empty(),
        };
        queue.write(slot, pos, buffer, flags, tag).unwrap();
        waiting += 1;
        if waiting == 4 {
            waiting -= queue.wait(1).unwrap().inspect(|done| assert!(done.result.is_ok())).count();
        }
    }
    while waiting > 0 {
        waiting -= queue.wait(1).unwrap().inspect(|done| assert!(done.result.is_ok())).count();
    }
    let buffer = queue.buffer(12 << 10).unwrap();
    let refused = queue.write(slot, 0, buffer, ATOMIC, 1).unwrap_err();
    assert_eq!(refused.errno(), libc::EINVAL, "{refused}");
    drop(queue);
    assert!(read_all(&file) == model);
    drop(file);
    ends_with(volume, &*device, "/file", &model);
}

/// Set-user-id goes with the first write.
#[test]
fn an_atomic_write_takes_privileges_away() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    let image = image(&["-b", "4096"]);
    let device = image.device();
    let volume = open_rw(device.clone());
    make(&volume, "/file").write_at(&aligned(8192), 0).unwrap();
    volume.close().unwrap();
    Image::of(&*device).save(&path);
    uext4_testkit::oracle::debugfs_write(&path, "sif /file mode 0104755");
    let device = Image::load(&path).device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/file", read_write()).unwrap();
    assert_eq!(file.metadata().mode & 0o7000, 0o4000);
    file.write_at_with(&aligned(4096), 0, ATOMIC).unwrap();
    assert_eq!(file.metadata().mode & 0o7000, 0);
    drop(file);
    volume.close().unwrap();
    assert_clean(&*device);
}

/// The kernel's mmap may leave bytes past the end of a file. They must not appear when it grows.
#[test]
fn what_lies_past_the_end_does_not_appear() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&["-b", "4096"]).device();
    let volume = open_rw(device.clone());
    let file = make(&volume, "/file");
    file.write_any_at(&[1; 100], 0, WriteFlags::empty()).unwrap();
    file.sync_all().unwrap();
    let at = file.map().next().unwrap().unwrap().physical;
    let mut block = aligned(4096);
    device.read_at(&mut block, at).unwrap();
    block[100..].fill(0xee);
    device.write_at(&block, at, WriteDurability::Cached).unwrap();
    file.write_at_with(&patterned(2, 8192, 4096), 8192, ATOMIC).unwrap();
    let expected = [&[1; 100][..], &[0; 8092], &patterned(2, 8192, 4096)].concat();
    assert!(read_all(&file) == expected);
    drop(file);
    ends_with(volume, &*device, "/file", &expected);
}

/// Every second block of the free space is used, so an atomic write of 64 KiB takes 64 runs, and the next one replaces
/// them by 64 others.
#[test]
fn a_volume_in_pieces_takes_atomic_writes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&["-b", "1024", "-m", "0"]).device();
    // The filler takes the reserved blocks as well: they lie side by side.
    let options = VolumeOptions::read_write().reserved(true);
    let volume = Volume::open_device(device.clone(), options).unwrap();
    let filler = make(&volume, "/filler");
    let (mut full, mut unit) = (0, 1 << 20);
    while unit >= 1024 {
        match filler.write_at(&aligned(unit), full) {
            Ok(_) => full += unit as u64,
            Err(_) => unit /= 2,
        }
    }
    for block in 0..2000 {
        filler.fallocate(Fallocate::Punch, (20 << 20) + block * 2048, 1024).unwrap();
    }
    filler.sync_all().unwrap();
    let file = make(&volume, "/file");
    for number in 1..6 {
        let bytes = patterned(number, 0, 64 << 10);
        file.write_at_with(&bytes, 0, ATOMIC | WriteFlags::DSYNC).unwrap();
        assert!(read_all(&file) == *bytes);
    }
    assert!(file.map().count() >= 32, "{}", file.map().count());
    drop((file, filler));
    ends_with(volume, &*device, "/file", &patterned(5, 0, 64 << 10));
}

/// What is refused changes nothing, also of contents inside the inode.
#[test]
fn a_refused_write_leaves_inline_contents() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&["-b", "4096", "-O", "inline_data,^has_journal"]).device();
    let volume = open_rw(device.clone());
    let file = make(&volume, "/file");
    file.write_any_at(b"short", 0, WriteFlags::empty()).unwrap();
    assert!(file.is_inline());
    let refused = file.write_at_with(&aligned(4096), 0, ATOMIC).unwrap_err();
    assert_eq!(refused.errno(), libc::EOPNOTSUPP, "{refused}");
    assert!(file.is_inline() && read_all(&file) == b"short");
    drop(file);
    ends_with(volume, &*device, "/file", b"short");
}
