//! Multi-mount protection of a volume that is open for writing, with seconds that last ten milliseconds.

use super::device;
use crate::device::{Device, WriteDurability};
use crate::{
    BufferPool, CorruptKind, Error, MmpBlock, MmpOwner, OpenOptions, Result, Volume, VolumeOptions,
    WriteFlags,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultOn};
use uext4_testkit::{Need, Scratch, VolumeBuilder, e2fsck_clean, needs};

const SECOND: Duration = Duration::from_millis(10);

/// A volume that is refreshed every second, with `/data` of 16 KiB.
fn image(features: &str) -> Vec<u8> {
    let source = Scratch::new(1 << 20);
    std::fs::write(source.file("data"), [b'o'; 16384]).unwrap();
    let made = VolumeBuilder::new(16 << 20).args(["-b", "4096", "-O", features]);
    std::fs::read(made.extended("mmp_update_interval=1").from_dir(source.path()).build().path()).unwrap()
}

fn options() -> VolumeOptions {
    VolumeOptions { mmp_second: SECOND, ..VolumeOptions::read_write() }
}

fn open(device: &Arc<impl Device + 'static>) -> Result<Volume> {
    Volume::open_device(device.clone(), options())
}

fn block(device: &dyn Device) -> MmpBlock {
    let superblock = Volume::read_superblock(device).unwrap();
    Volume::read_mmp(device, &superblock).unwrap().unwrap()
}

/// Another node writes the block.
fn plant(device: &dyn Device, sequence: u32) -> MmpBlock {
    let superblock = Volume::read_superblock(device).unwrap();
    let mut other = MmpBlock { sequence, ..MmpBlock::clean(99) };
    other.node_name[..8].copy_from_slice(b"far-away");
    let mut bytes = BufferPool::new(4096).unwrap().take(4096).unwrap();
    bytes.fill(0);
    other.encode(&mut bytes, &superblock).unwrap();
    device.write_at(&bytes, superblock.mmp.block.get() * 4096, WriteDurability::Cached).unwrap();
    other
}

fn assert_clean(device: &dyn Device) {
    assert_eq!(block(device).owner(), MmpOwner::Nobody);
    let scratch = Scratch::new(32 << 20);
    let path = scratch.file("after.img");
    std::fs::write(&path, bytes(device)).unwrap();
    e2fsck_clean(&path);
}

fn bytes(device: &dyn Device) -> Vec<u8> {
    let size = device.geometry().size as usize;
    let mut buffer = BufferPool::new(size).unwrap().take(size).unwrap();
    device.read_at(&mut buffer, 0).unwrap();
    buffer.to_vec()
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(SECOND);
    }
}

fn write(volume: &Volume) -> Result<()> {
    let file = volume.open_file("/data", OpenOptions::new().read(true).write(true))?;
    file.set_len(file.size() + 100)?;
    file.write_any_at(b"new", 5, WriteFlags::SYNC).map(drop)
}

#[test]
fn a_volume_in_use_says_so_and_one_that_is_closed_does_not() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for features in ["mmp", "mmp,^metadata_csum"] {
        let device = device(&image(features));
        let volume = open(&device).unwrap();
        let first = block(&*device);
        assert!(matches!(first.owner(), MmpOwner::Mounted(_)) && first.check_interval == 5);
        assert!(first.node_name[0] != 0 && !volume.info().notes.iter().any(|note| note.contains("another")));
        for _ in 0..3 {
            let before = block(&*device).sequence;
            until("a refresh", || block(&*device).sequence != before);
        }
        // Nobody else can open it: a reader fails at once, a writer after its wait.
        for options in [VolumeOptions { mmp_second: SECOND, ..VolumeOptions::read_only() }, options()] {
            let refused = Volume::open_device(device.clone(), options).map(drop).unwrap_err();
            assert!(matches!(refused, Error::InUse(_)), "{refused}");
        }
        write(&volume).unwrap();
        let file = volume.open_file("/data", OpenOptions::new().read(true)).unwrap();
        volume.close().unwrap();
        assert!(matches!(block(&*device).owner(), MmpOwner::Mounted(_)), "a file is open");
        drop(file);
        assert_clean(&*device);
        // Dropping it releases it as well.
        let volume = open(&device).unwrap();
        write(&volume).unwrap();
        drop(volume);
        assert_clean(&*device);
        assert_eq!(Arc::strong_count(&device), 1, "the thread is gone");
    }
}

#[test]
fn a_dead_owner_is_waited_for_and_a_checker_is_not() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = device(&image("mmp"));
    let crashed = plant(&*device, 77);
    let begun = Instant::now();
    let volume = open(&device).unwrap();
    // Twice eleven seconds: before and after the claim.
    assert!(begun.elapsed() >= 22 * SECOND, "{:?}", begun.elapsed());
    assert_ne!(block(&*device).node_name, crashed.node_name);
    volume.close().unwrap();
    assert_clean(&*device);
    for sequence in [0xE24D_4D50, 0, u32::MAX] {
        let planted = plant(&*device, sequence);
        let refused = open(&device).map(drop).unwrap_err();
        assert!(matches!(refused, Error::InUse(_)) && refused.to_string().contains("far-away"), "{refused}");
        assert_eq!(block(&*device), planted);
    }
}

/// If an owner claims it while we wait, it keeps it.
#[test]
fn an_owner_that_moves_while_it_is_waited_for_keeps_the_volume() {
    needs!(Need::Tool("mke2fs"));
    for late in [false, true] {
        let device = device(&image("mmp"));
        plant(&*device, 77);
        let other = device.clone();
        // In the first wait, or in the second one.
        let moves = std::thread::spawn(move || {
            until("the other one has it", || !late || block(&*other).node_name[..8] != *b"far-away");
            std::thread::sleep(2 * SECOND);
            plant(&*other, 78)
        });
        let refused = open(&device).map(drop).unwrap_err();
        assert!(matches!(refused, Error::InUse(_)), "{refused}");
        assert_eq!(block(&*device), moves.join().unwrap(), "it is theirs");
    }
}

#[test]
fn a_volume_that_another_node_takes_is_not_written_any_more() {
    needs!(Need::Tool("mke2fs"));
    for features in ["mmp", "mmp,^has_journal"] {
        let device = device(&image(features));
        let volume = open(&device).unwrap();
        let file = volume.open_file("/data", OpenOptions::new().read(true).write(true)).unwrap();
        file.set_len(20_000).unwrap();
        let planted = plant(&*device, 5);
        until("the loss", || matches!(volume.tick(), Err(Error::Aborted(_))));
        let before = bytes(&*device);
        let refused = write(&volume).unwrap_err();
        assert!(matches!(&refused, Error::Aborted(why) if why.contains("far-away")), "{refused}");
        assert!(file.write_any_at(b"x", 0, WriteFlags::empty()).is_err() && file.sync_all().is_err());
        assert_eq!(file.size(), 20_000, "reading goes on");
        drop(file);
        assert!(volume.close().is_err());
        assert!(bytes(&*device) == before, "{features}: not even the reason was written");
        assert_eq!(block(&*device), planted);
    }
}

/// A device that fails refreshes for so long that others may consider us dead.
#[test]
fn a_block_that_cannot_be_refreshed_is_a_loss_in_time() {
    needs!(Need::Tool("mke2fs"));
    let faults = Arc::new(FaultDevice::new(device(&image("mmp"))));
    let volume = open(&faults).unwrap();
    let place = volume.superblock().mmp.block.get() * 4096;
    let range = Some(place..place + 4096);
    let fault = |times| Fault {
        on: FaultOn::Changes,
        range: range.clone(),
        after: 0,
        times,
        action: FaultAction::Errno(5),
    };
    // A single failure is tolerated.
    faults.handle().arm(fault(1));
    let before = block(&*faults).sequence;
    until("a refresh", || block(&*faults).sequence > before + 2);
    write(&volume).unwrap();
    faults.handle().arm(fault(u64::MAX));
    until("the loss", || matches!(volume.tick(), Err(Error::Aborted(_))));
    faults.handle().clear();
    assert!(volume.close().is_err());
}

#[test]
fn an_open_that_fails_gives_it_back() {
    needs!(Need::Tool("mke2fs"));
    let mut image = image("mmp");
    // The journal has no magic number at its superblock.
    let found = |bytes: &[u8]| bytes.windows(12).position(|w| w == b"\xc0\x3b\x39\x98\0\0\0\x04\0\0\0\0");
    let at = found(&image).expect("the superblock of the log");
    image[at] ^= 0xff;
    let device = device(&image);
    let refused = open(&device).map(drop).unwrap_err();
    assert!(!matches!(refused, Error::InUse(_)), "{refused}");
    assert_eq!(block(&*device).owner(), MmpOwner::Nobody);
    // A damaged block cannot be claimed.
    let superblock = Volume::read_superblock(&*device).unwrap();
    image[(superblock.mmp.block.get() * 4096) as usize + 8] ^= 1;
    let refused = open(&super::device(&image)).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Corrupt(corrupt) if corrupt.kind == CorruptKind::MmpChecksum));
}
