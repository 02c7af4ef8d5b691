//! Writes of several files that go to the device together.

use crate::common;

use common::{Image, aligned, assert_clean, assert_same_bytes, patterned, read_all, read_write};
use std::sync::Arc;
use std::time::Duration;
use uext4::device::{CountingDevice, Device, Op, WriteDurability};
use uext4::{Error, File, InodeFlags, OpenOptions, State, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultOn};
use uext4_testkit::{Need, VolumeBuilder, needs};

const FILES: usize = 100;

/// A new volume of 64 MiB on this device.
fn open(device: Arc<dyn Device>) -> Volume {
    Volume::open_device(device, VolumeOptions::read_write()).unwrap()
}

fn image(options: &[&str]) -> Image {
    Image::load(VolumeBuilder::new(64 << 20).args(options.iter().copied()).build().path())
}

/// New files, and what is to be written to each: from one byte to two blocks.
fn files(volume: &Volume) -> Vec<(File, Vec<u8>)> {
    let make = |number: usize| {
        let file = volume.open_file(format!("/file-{number}"), read_write().create_new(true)).unwrap();
        file.note_write();
        (file, patterned(number as u64, 0, 1 + number * 83 % 8192).to_vec())
    };
    (0..FILES).map(make).collect()
}

fn writes(files: &[(File, Vec<u8>)]) -> Vec<(&File, &[u8], u64)> {
    files.iter().map(|(file, bytes)| (file, &bytes[..], 0)).collect()
}

#[test]
fn the_ends_of_short_files_are_few_requests() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for options in [&[][..], &["-b", "4096"], &["-O", "quota"], &["-O", "^has_journal"]] {
        let image = image(options);
        let memory = image.device();
        let device = Arc::new(CountingDevice::new(memory.clone()));
        let counters = device.counters();
        let volume = open(device);
        let files = files(&volume);
        let modified: Vec<_> = files.iter().map(|(file, _)| file.metadata().modified).collect();
        std::thread::sleep(Duration::from_millis(20));
        counters.take();
        let results = volume.write_noted_together(&writes(&files));
        let counts = counters.get();
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        // Each alone would be one.
        assert!(counts.writes <= 10, "{options:?}: {counts:?}");
        let check = |volume: &Volume| {
            for (number, (_, bytes)) in files.iter().enumerate() {
                let file =
                    volume.open_file(format!("/file-{number}"), OpenOptions::new().read(true)).unwrap();
                assert_eq!(file.size(), bytes.len() as u64);
                assert_same_bytes(bytes, &read_all(&file));
            }
        };
        check(&volume);
        for ((file, _), modified) in files.iter().zip(modified) {
            assert_eq!(file.metadata().modified, modified, "times were noted before");
        }
        // Again: from the middle of the last block on.
        let more: Vec<_> =
            files.iter().map(|(file, bytes)| (file, &bytes[..bytes.len() / 2], bytes.len() as u64)).collect();
        assert!(volume.write_noted_together(&more).iter().all(Result::is_ok));
        for (file, bytes) in &files {
            assert_same_bytes(&[bytes, &bytes[..bytes.len() / 2]].concat(), &read_all(file));
            file.set_len(bytes.len() as u64).unwrap();
        }
        volume.sync_all().unwrap();
        check(&volume);
        drop(more);
        drop(files);
        volume.close().unwrap();
        assert_clean(&*memory);
    }
}

#[test]
fn what_cannot_go_together_goes_alone() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let memory = image(&[]).device();
    let volume = open(memory.clone());
    let files = files(&volume);
    let [one, two, three, four, five, rest @ ..] = &files[..] else { panic!() };
    one.0.write_any_at(&[7; 10_000], 0, WriteFlags::empty()).unwrap();
    let read = volume.open_file("/file-3", OpenOptions::new().read(true)).unwrap();
    let long = patterned(77, 0, 3 << 20);
    let mut writes = vec![
        (&one.0, &[1; 5000][..], 100),
        (&two.0, &[2; 3000][..], 70_001),
        (&three.0, &[3; 10][..], 0),
        (&three.0, &[4; 5000][..], 10),
        (&three.0, &[5; 10][..], 5),
        (&read, &[6; 10][..], 0),
        (&four.0, &[][..], 0),
        (&five.0, &long[..], 0),
        // These could go with others, but come after one that is done alone.
        (&five.0, &[8; 4096][..], 8192),
        (&five.0, &[9; 4096][..], 3 << 20),
        (&two.0, &[8; 10][..], u64::MAX - 5),
    ];
    writes.extend(rest.iter().map(|(file, bytes)| (file, &bytes[..], 0)));
    let results = volume.write_noted_together(&writes);
    let failed: Vec<_> = results
        .iter()
        .enumerate()
        .filter_map(|(number, result)| Some((number, result.as_ref().err()?)))
        .collect();
    assert!(
        matches!(failed[..], [(5, Error::BadMode(_) | Error::Invalid(_) | Error::NotPermitted(_)), (10, _)]),
        "{failed:?}"
    );
    let mut expected = vec![7; 10_000];
    expected[100..5100].fill(1);
    assert_same_bytes(&expected, &read_all(&one.0));
    assert_same_bytes(&[&[0; 70_001][..], &[2; 3000]].concat(), &read_all(&two.0));
    let mut expected = [&[3; 10][..], &[4; 5000]].concat();
    expected[5..15].fill(5);
    assert_same_bytes(&expected, &read_all(&three.0));
    assert_eq!(four.0.size(), 0);
    let mut expected = [&long[..], &[9; 4096]].concat();
    expected[8192..12_288].fill(8);
    assert_same_bytes(&expected, &read_all(&five.0));
    rest.iter().for_each(|(file, bytes)| assert_same_bytes(bytes, &read_all(file)));
    let other = open(image(&[]).device());
    let strange = other.write_noted_together(&[(&one.0, &[1][..], 0)]);
    assert!(matches!(strange[..], [Err(Error::Invalid(_))]), "{strange:?}");
    drop((files, read));
    volume.close().unwrap();
    assert_clean(&*memory);
}

/// A block of the device fails. The files beside it are good.
#[test]
fn a_bad_block_fails_one_file() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let memory = image(&["-b", "4096"]).device();
    let faults = FaultDevice::new(memory.clone());
    let handle = faults.handle();
    let volume = open(Arc::new(faults));
    // Where the files will lie.
    let sample = volume.open_file("/sample", read_write().create_new(true)).unwrap();
    sample.write_any_at(&[1; 4096], 0, WriteFlags::empty()).unwrap();
    let first = sample.map().next().unwrap().unwrap().physical;
    let files = files(&volume);
    let bad = first + 40 * 4096;
    let range = Some(bad..bad + 4096);
    handle.arm(Fault {
        on: FaultOn::Op(Op::Write),
        range,
        after: 0,
        times: u64::MAX,
        action: FaultAction::Errno(5),
    });
    let results = volume.write_noted_together(&writes(&files));
    assert!(handle.fired() >= 2, "the long request and the one of a file");
    let failed: Vec<usize> = (0..FILES).filter(|&number| results[number].is_err()).collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    for (number, (file, bytes)) in files.iter().enumerate() {
        if number == failed[0] {
            assert_eq!((file.size(), file.map().count()), (0, 0));
        } else {
            assert_same_bytes(bytes, &read_all(file));
        }
    }
    handle.clear();
    assert!(volume.write_noted_together(&writes(&files)).iter().all(Result::is_ok));
    files.iter().for_each(|(file, bytes)| assert_same_bytes(bytes, &read_all(file)));
    drop((files, sample));
    volume.close().unwrap();
    assert_clean(&*memory);
}

/// What lies around the bytes in their blocks is zero on the device, whatever memory and blocks held before.
#[test]
fn blocks_are_filled_with_zeros() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let memory = image(&["-b", "4096"]).device();
    let volume = open(memory.clone());
    // Memory that was used for others, and blocks with their bytes.
    let used: Vec<_> = files(&volume);
    let old = vec![0xaa; 8192];
    let writes: Vec<_> = used.iter().map(|(file, _)| (file, &old[..], 0)).collect();
    assert!(volume.write_noted_together(&writes).iter().all(Result::is_ok));
    for (number, (file, _)) in used.into_iter().enumerate() {
        drop(file);
        volume.remove_file(format!("/file-{number}")).unwrap();
    }
    volume.sync_all().unwrap();
    let files = files(&volume);
    let places: Vec<u64> = (0..FILES as u64).map(|number| 1 + number * 37 % 5000).collect();
    let writes: Vec<_> =
        files.iter().zip(&places).map(|((file, bytes), &pos)| (file, &bytes[..], pos)).collect();
    assert!(volume.write_noted_together(&writes).iter().all(Result::is_ok));
    for ((file, bytes), pos) in files.iter().zip(places) {
        let mut found = Vec::new();
        for piece in file.map().map(Result::unwrap).filter(|piece| piece.state == State::Written) {
            found.resize(piece.logical as usize, 0);
            let mut block = aligned(piece.length as usize);
            memory.read_at(&mut block, piece.physical).unwrap();
            found.extend_from_slice(&block);
        }
        let mut expected = vec![0; pos as usize];
        expected.extend_from_slice(bytes);
        expected.resize(expected.len().next_multiple_of(4096), 0);
        assert_same_bytes(&expected, &found);
    }
    drop(files);
    volume.close().unwrap();
    assert_clean(&*memory);
}

/// Files that ask for more than bytes at the end of a block.
#[test]
fn marks_of_files_are_obeyed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let memory = image(&["-b", "4096"]).device_with(|options| options.volatile_cache = true);
    let faults = FaultDevice::new(memory.clone());
    let (handle, counting) = (faults.handle(), Arc::new(CountingDevice::new(Arc::new(faults))));
    let counters = counting.counters();
    let volume = open(counting);
    let make = |path: &str| volume.open_file(path, read_write().create_new(true)).unwrap();
    let names = ["/plain", "/strict", "/privileged", "/stale", "/empty"];
    let [plain, strict, privileged, stale, empty] = names.map(make);
    volume.set_flags("/strict", InodeFlags::SYNC | InodeFlags::EXTENTS, true).unwrap();
    volume.set_permissions("/privileged", 0o6755, true).unwrap();
    // A store into a mapping may leave bytes behind the end, in the last block.
    stale.write_any_at(&[1; 100], 0, WriteFlags::empty()).unwrap();
    let place = stale.map().next().unwrap().unwrap().physical;
    let mut block = aligned(4096);
    block.fill(1);
    memory.write_at(&block, place, WriteDurability::Cached).unwrap();
    volume.sync_all().unwrap();
    counters.take();
    assert!(volume.write_noted_together(&[(&plain, &[5; 10][..], 0)])[0].is_ok());
    assert_eq!((counters.get().flushes, counters.get().fua_writes), (0, 0));
    assert!(volume.write_noted_together(&[(&strict, &[5; 10][..], 0), (&plain, &[6; 10], 10)])[0].is_ok());
    assert!(counters.get().flushes > 0, "a write of a synchronous file is durable");
    let results = volume.write_noted_together(&[(&privileged, &[5; 10][..], 0), (&stale, &[5; 10], 8192)]);
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(privileged.metadata().mode & 0o7777, 0o755);
    assert_same_bytes(&[&[1; 100][..], &[0; 8092], &[5; 10]].concat(), &read_all(&stale));
    // One file alone, on a device that fails.
    let action = FaultAction::Errno(5);
    let id = handle.arm(Fault { on: FaultOn::Op(Op::Write), range: None, after: 0, times: u64::MAX, action });
    assert!(volume.write_noted_together(&[(&empty, &[7; 10][..], 0)])[0].is_err());
    handle.disarm(id);
    assert_eq!((empty.size(), empty.map().count()), (0, 0));
    drop([plain, strict, privileged, stale, empty]);
    volume.close().unwrap();
    assert_clean(&*memory);
}
