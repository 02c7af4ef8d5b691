//! Write time and lifetime writes of the superblock.

use crate::common;

use common::sample::{DATA_SIZE, sample_with};
use common::{Image, aligned, assert_unchanged, open_ro, open_rw, read_write};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use uext4::device::CountingDevice;
use uext4::{Counter, OpenOptions, QueueOptions, Superblock, Volume, WriteFlags};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs, oracle};

const MIB: u64 = 1 << 20;

fn superblock(image: &Image) -> Superblock {
    Superblock::decode(&image.bytes[1024..2048]).unwrap()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The sample volume, last written in 2001.
fn old(args: &[&str]) -> Image {
    let mut image = sample_with(4096, args);
    image.patch_superblock(|superblock| {
        superblock[0x30..0x34].copy_from_slice(&1_000_000_000_u32.to_le_bytes())
    });
    image
}

/// 10 MiB: overwrites by calls and by a queue, of one block and of many, and a new file.
fn write_ten(volume: &Volume) {
    let file = volume.open_file("/data", read_write()).unwrap();
    for _ in 0..2 {
        file.write_at(&aligned(DATA_SIZE as usize), 0).unwrap();
    }
    for block in 0..256 {
        let flags = if block % 2 == 0 { WriteFlags::DSYNC } else { WriteFlags::empty() };
        file.write_at_with(&aligned(4096), block * 4096, flags).unwrap();
    }
    let mut queue = volume.queue(QueueOptions::depth(8)).unwrap();
    let slot = queue.attach(&file).unwrap();
    for request in 0..3 * 256 {
        let mut buffer = queue.buffer(4096).unwrap();
        buffer.fill(7);
        // Most are completed together, and some by themselves.
        let flags = if request % 9 == 0 { WriteFlags::DSYNC } else { WriteFlags::empty() };
        queue.write(slot, request % 256 * 4096, buffer, flags, request).unwrap();
        if request % 8 == 7 {
            assert!(queue.wait(8).unwrap().all(|done| done.result.unwrap() == 4096));
        }
    }
    let new = volume.open_file("/new", read_write().create(true)).unwrap();
    new.write_at(&aligned(4 << 20), 0).unwrap();
}

#[test]
fn a_close_brings_write_time_and_lifetime_writes_up_to_date() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    for args in [&[][..], &["-O", "^has_journal"], &["-O", "^metadata_csum"]] {
        let before = old(args);
        let device = before.device();
        let counting = Arc::new(CountingDevice::new(device.clone()));
        let counters = counting.counters();
        let volume = open_rw(counting);
        let start = now();
        write_ten(&volume);
        assert_eq!(volume.stats().get(Counter::BytesWritten), 10 * MIB, "{args:?}");
        volume.close().unwrap();
        let after = Image::of(&*device);
        let (first, last) = (superblock(&before), superblock(&after));
        assert!((start..=now()).contains(&last.times.written), "{args:?}: {}", last.times.written);
        let (grown, given) = (last.kbytes_written - first.kbytes_written, counters.get().written_bytes >> 10);
        assert!(grown <= given && given - grown <= given / 10, "{args:?}: {grown} KiB of {given}");

        let scratch = Scratch::new(64 << 20);
        let path = scratch.file("after.img");
        after.save(&path);
        e2fsck_clean(&path);
        let told = oracle::dumpe2fs(&path, &["-h"]);
        let line = told.lines().find_map(|line| line.strip_prefix("Lifetime writes:")).unwrap().trim();
        let (number, unit) = line.split_once(' ').unwrap();
        let unit = if unit == "MB" { 1024 } else { 1 };
        let number = number.parse::<u64>().unwrap() * unit;
        assert!(number.abs_diff(last.kbytes_written) <= unit, "{args:?}: {line}, {}", last.kbytes_written);
    }
}

#[test]
fn a_second_use_adds_to_the_first() {
    let device = old(&[]).device();
    let mut last = superblock(&Image::of(&*device)).kbytes_written;
    for _ in 0..2 {
        let volume = open_rw(device.clone());
        let file = volume.open_file("/data", read_write()).unwrap();
        file.write_at(&aligned(DATA_SIZE as usize), 0).unwrap();
        volume.open_file("/new", read_write().create(true)).unwrap();
        // Closed twice: neither counts the writes again.
        volume.clone().close().unwrap();
        volume.close().unwrap();
        let now = superblock(&Image::of(&*device)).kbytes_written;
        assert!((1024..1200).contains(&(now - last)), "{} KiB", now - last);
        last = now;
    }
}

#[test]
fn a_reader_changes_neither() {
    let before = old(&[]);
    let device = before.device();
    let volume = open_ro(device.clone());
    volume.open_file("/data", OpenOptions::new().read(true)).unwrap().read_at(&mut aligned(4096), 0).unwrap();
    volume.close().unwrap();
    assert_unchanged(&before, &*device);
}

#[test]
fn recovery_stamps_the_superblock() {
    let device = old(&[]).device();
    let volume = open_rw(device.clone());
    volume.open_file("/new", read_write().create(true)).unwrap().write_at(&aligned(4096), 0).unwrap();
    volume.sync_all().unwrap();
    let mut crashed = Image::of(&*device);
    crashed.patch_superblock(|superblock| superblock[0x30..0x34].fill(1));
    volume.close().unwrap();
    let before = superblock(&crashed);
    assert!(before.needs_recovery());
    let device = crashed.device();
    let start = now();
    open_rw(device.clone()).close().unwrap();
    let after = superblock(&Image::of(&*device));
    assert!(after.times.written >= start, "{}", after.times.written);
    assert!(after.kbytes_written > before.kbytes_written, "{} KiB", after.kbytes_written);
}
