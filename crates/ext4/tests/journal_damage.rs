//! Damaged journals: refusals that come before the first write, what a read-only open tolerates, and how an interrupted
//! asynchronous commit may look.

use crate::common;

use common::dirty::{by_e2fsck, comparable, recovers_as_e2fsck_does};
use common::journal::{base, clear_recover, damaged_needed, damaged_unneeded, flip, transaction};
use common::log::{Log, LogKind, places};
use common::{Image, assert_same_bytes, assert_unchanged, explained_refusal, open_ro, read_all, read_only};
use uext4::{Error, LogEnd, RecoveryReport, RecoveryState, Volume, VolumeOptions};
use uext4_ondisk::jbd2::LogChecksums;
use uext4_testkit::{Need, needs};

/// Without `needs_recovery` a log with contents is emptied and its error recorded, but not on a volume that is refused
/// anyway: here because the log has no room for its own largest transaction.
#[test]
fn what_is_refused_for_writing_is_not_written_first() {
    needs!(Need::Tool("mke2fs"));
    for (in_use, errno) in [(true, 0), (false, -5), (true, -5)] {
        let mut image = base(8);
        Log::begin(&mut image, LogKind::new(LogChecksums::V3)).superblock(|superblock| {
            superblock.first = 7168;
            superblock.start = if in_use { 7170 } else { 0 };
            superblock.errno = errno;
        });
        clear_recover(&mut image);
        let device = image.device();
        let error = Volume::open_device(device.clone(), VolumeOptions::read_write()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Journal(_)), "{error:?}");
        assert!(error.to_string().contains("blocks for new transactions"), "{error}");
        assert_unchanged(&image, &*device);
        assert_eq!(explained_refusal(&open_ro(device.clone()), "/hello"), Some(error.to_string()));
        assert_unchanged(&image, &*device);
    }
}

#[test]
fn a_damaged_journal_that_nobody_needs_leaves_reading() {
    needs!(Need::Tool("mke2fs"));
    for (what, changed) in damaged_unneeded() {
        let device = changed.device();
        let volume = open_ro(device.clone());
        let info = volume.info();
        assert!(info.journal.is_none() && info.recovery.state == RecoveryState::Clean, "{what}");
        let damage = info.recovery.journal_damage.unwrap_or_else(|| panic!("{what}: no word of it"));
        assert!(info.notes.iter().any(|note| note.contains("journal is damaged") && note.contains(&damage)));
        assert_eq!(read_all(&volume.open_file("/hello", read_only()).unwrap()).len(), 6000);
        let explained = explained_refusal(&volume, "/hello");
        drop(volume);
        let error = Volume::open_device(device.clone(), VolumeOptions::read_write()).map(drop).unwrap_err();
        assert_eq!(explained, Some(error.to_string()), "{what}");
        let typed = matches!(
            error,
            Error::Corrupt(_) | Error::CorruptInode { .. } | Error::Journal(_) | Error::Incompatible { .. }
        );
        assert!(typed, "{what}: {error:?}");
        assert_unchanged(&changed, &*device);
    }
}

/// If the superblock of the log cannot be read, its contents are lost: the files are not up to date. (The kernel
/// refuses, unless mounted with `noload`; e2fsck discards the journal.) A superblock of the first version whose fields
/// claim checksums would make the log look empty (kernel and e2fsck accept that).
#[test]
fn a_damaged_journal_that_is_needed_refuses_reading_too() {
    needs!(Need::Tool("mke2fs"));
    for image in damaged_needed() {
        assert_neither_read_nor_written(&image);
    }
}

/// Features in a superblock of the first version that do not change the layout of the log's blocks (`e2fsck` clears
/// them) are no obstacle, nor are others if there is nothing to recover.
#[test]
fn features_of_a_first_version_are_ignored() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let mut image = base(1);
    transaction(&mut Log::begin(&mut image, LogKind::new(LogChecksums::None)), 1);
    let start = places(&image)[0] as usize * 1024;
    image.bytes[start + 7] = 3;
    image.bytes[start + 0x28 + 3] = 1 | 4;
    image.bytes[start + 0x24 + 3] = 1;
    let device = image.device();
    assert_eq!(
        explained_refusal(&open_ro(device.clone()), "/hello"),
        None,
        "what is replayed hinders nobody"
    );
    assert_unchanged(&image, &*device);
    let info = Volume::open_device(device.clone(), VolumeOptions::read_write()).unwrap().info();
    let log = info.recovery.log.unwrap();
    assert_eq!((log.transactions, log.blocks, log.ended), (1, 2, LogEnd::Complete));
    let journal = info.journal.unwrap().block;
    let found = comparable(&Image::of(&*device), journal);
    assert_same_bytes(&comparable(&by_e2fsck(&image), journal).bytes, &found.bytes);

    // The checksum bit: the log is refused, unless it is not needed.
    image.bytes[start + 0x28 + 3] = 0x10;
    assert_neither_read_nor_written(&image);
    clear_recover(&mut image);
    let device = image.device();
    assert_eq!(explained_refusal(&open_ro(device.clone()), "/hello"), None, "nor is what is emptied");
    assert_unchanged(&image, &*device);
    let volume = Volume::open_device(device, VolumeOptions::read_write()).unwrap();
    assert_eq!(volume.info().recovery.state, RecoveryState::Emptied);
}

fn assert_neither_read_nor_written(image: &Image) {
    let device = image.device();
    for options in
        [VolumeOptions::read_only(), VolumeOptions::read_only().force(true), VolumeOptions::read_write()]
    {
        let error = Volume::open_device(device.clone(), options).map(drop).unwrap_err();
        assert!(matches!(error, Error::Journal(_)) && error.errno() == 117, "{error:?}");
        assert!(error.to_string().contains("journal"), "{error}");
    }
    assert_unchanged(image, &*device);
}

fn asynchronous(checksums: LogChecksums) -> LogKind {
    LogKind { async_commit: true, ..LogKind::new(checksums) }
}

fn report(image: &Image) -> RecoveryReport {
    open_ro(image.device()).info().recovery.log.unwrap()
}

/// The last transaction of a log with asynchronous commits was incomplete: its commit block was written before the
/// descriptor.
#[test]
fn a_torn_descriptor_of_an_asynchronous_commit_is_an_interruption() {
    needs!(Need::Tool("mke2fs"));
    for checksums in [LogChecksums::V2, LogChecksums::V3] {
        let mut image = base(1);
        let mut log = Log::begin(&mut image, asynchronous(checksums));
        transaction(&mut log, 1);
        let torn = transaction(&mut log, 2);
        flip(&mut log, torn.descriptors[0], 600);
        let found = report(&image);
        assert_eq!((found.transactions, found.ended), (1, LogEnd::Interrupted), "{checksums:?}");
        // A good commit after it: it was not the last one.
        let mut log = Log::begin(&mut image, asynchronous(checksums));
        transaction(&mut log, 1);
        let torn = transaction(&mut log, 2);
        transaction(&mut log, 3);
        flip(&mut log, torn.descriptors[0], 600);
        let found = report(&image);
        assert_eq!((found.transactions, found.ended.damage().map(|damage| damage.tid.0)), (1, Some(8)));
    }
}

/// After the interrupted transaction the log holds stale blocks: one with a bad checksum is no damage unless a good
/// commit proves that its transaction was written.
#[test]
fn suspect_blocks_behind_an_interrupted_commit_prove_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for checksums in [LogChecksums::V2, LogChecksums::V3] {
        for (what, later) in
            [("older than the interrupted one", -2i64), ("a bad commit block", 5), ("good", 5)]
        {
            let mut image = base(1);
            let mut log = Log::begin(&mut image, asynchronous(checksums));
            transaction(&mut log, 1);
            let interrupted = transaction(&mut log, 2);
            log.time = log.time.wrapping_add_signed(later - 5);
            let behind = transaction(&mut log, 3);
            flip(&mut log, interrupted.commit, 900);
            flip(&mut log, behind.descriptors[0], 600);
            if what == "a bad commit block" {
                flip(&mut log, behind.commit, 900);
            }
            let found = report(&image);
            assert_eq!(found.transactions, 1);
            if what == "good" {
                assert_eq!(found.ended.damage().map(|damage| damage.tid.0), Some(8), "{:?}", found.ended);
                continue;
            }
            assert_eq!(found.ended, LogEnd::Interrupted, "{what}, {checksums:?}");
            if later < 0 {
                // The kernel and e2fsck compare the times too.
                recovers_as_e2fsck_does(&image);
            }
        }
    }
}
