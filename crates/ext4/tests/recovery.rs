//! Journals that are not empty: our recovery, in memory and on the device, equals e2fsck's.

use crate::common;

use common::dirty::{block_size, by_e2fsck, comparable};
use common::log::{Log, LogKind, Written, magic};
use common::{Image, assert_same_bytes, assert_unchanged, open_ro, read_all, read_only, within};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use uext4::device::Device;
use uext4::{Error, LogEnd, RecoveryState, Volume, VolumeOptions};
use uext4_ondisk::CorruptKind;
use uext4_ondisk::jbd2::LogChecksums;
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};

const ALL: [LogChecksums; 4] =
    [LogChecksums::None, LogChecksums::Transaction, LogChecksums::V2, LogChecksums::V3];

/// A volume with a few files and an empty journal of 1024 blocks.
fn base(block: u32) -> Image {
    static BASES: LazyLock<[Image; 2]> = LazyLock::new(|| {
        [1024, 4096].map(|block: u32| {
            let source = Scratch::new(1 << 20);
            std::fs::write(source.file("hello"), "world\n".repeat(1000)).unwrap();
            let journal = format!("size={}", block / 1024);
            let block = block.to_string();
            let volume = VolumeBuilder::new(24 << 20)
                .args(["-b", &block, "-J", &journal, "-O", "metadata_csum,64bit"])
                .from_dir(source.path())
                .build();
            Image::load(volume.path())
        })
    });
    BASES[usize::from(block == 4096)].clone()
}

fn tools() -> [Need; 3] {
    [Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs")]
}

fn fsck_clean(image: &Image) {
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    image.save(&path);
    oracle::e2fsck_clean(&path);
}

fn open(device: Arc<dyn Device>, options: VolumeOptions) -> Result<Volume, Error> {
    Volume::open_device(device, options)
}

/// Opens `image` read-only: nothing is written, and the device that the volume reads from equals the result of e2fsck.
#[track_caller]
fn overlay_equals_e2fsck(image: &Image) -> Volume {
    let device = image.device();
    let volume = open(device.clone(), VolumeOptions::read_only()).unwrap();
    let journal = volume.info().journal.unwrap();
    assert_eq!((volume.info().recovery.state, journal.superblock.start), (RecoveryState::Overlay, 0));
    let seen = Image::of(&**volume.device());
    let expected = by_e2fsck(image);
    assert_same_bytes(&comparable(&expected, journal.block).bytes, &comparable(&seen, journal.block).bytes);
    assert_unchanged(image, &*device);
    volume
}

/// The same for an open for writing, which changes the device. Returns its contents.
#[track_caller]
fn replay_equals_e2fsck(image: &Image) -> Image {
    let device = image.device();
    let volume = open(device.clone(), VolumeOptions::read_write()).unwrap();
    let info = volume.info();
    assert_eq!((info.recovery.state, info.recovery.needed), (RecoveryState::Replayed, false));
    let journal = info.journal.unwrap().block;
    drop(volume);
    let found = Image::of(&*device);
    let expected = by_e2fsck(image);
    assert_same_bytes(&comparable(&expected, journal).bytes, &comparable(&found, journal).bytes);
    assert_eq!(log_state(&expected, journal), log_state(&found, journal), "sequence and start of the log");
    let again = open(device, VolumeOptions::read_write()).unwrap().info().recovery;
    assert_eq!((again.state, again.log), (RecoveryState::Clean, None));
    found
}

/// `s_sequence` and `s_start`.
fn log_state(image: &Image, journal: u64) -> Vec<u8> {
    let start = journal as usize * block_size(image);
    image.bytes[start + 24..start + 32].to_vec()
}

/// Free blocks outside every journal, at the end of the volume.
fn free(image: &Image, n: u64) -> u64 {
    (image.bytes.len() / block_size(image)) as u64 - 40 + n
}

fn filled(byte: u8, image: &Image) -> Vec<u8> {
    vec![byte; block_size(image)]
}

fn escaped(image: &Image) -> Vec<u8> {
    let mut data = filled(0x77, image);
    data[..4].copy_from_slice(&magic());
    data
}

/// Three transactions: overwritten copies, an escaped block, a revoke, a revoke that comes before a new copy.
fn three(log: &mut Log<'_>) -> [Written; 3] {
    let home = |n| free(log.image, n);
    let data = |byte| filled(byte, log.image);
    let first = [(home(0), data(1)), (home(1), data(2)), (home(2), data(3)), (home(5), data(9))];
    let second = [(home(1), escaped(log.image)), (home(3), data(4))];
    let third = [(home(2), data(5)), (home(4), data(6))];
    let revoked = [home(0), home(5), home(30)];
    let late = [home(3)];
    [log.transaction(&first, &[]), log.transaction(&second, &revoked), log.transaction(&third, &late)]
}

#[test]
fn every_format_replays_as_e2fsck_does() {
    needs!(tools()[0], tools()[1], tools()[2]);
    for block in [1024, 4096] {
        for checksums in ALL {
            for wide in [false, true] {
                let mut image = base(block);
                three(&mut Log::begin(&mut image, LogKind { wide, ..LogKind::new(checksums) }));
                let volume = overlay_equals_e2fsck(&image);
                let log = volume.info().recovery.log.unwrap();
                assert_eq!((log.first.0, log.end.0, log.transactions), (7, 10, 3), "{checksums:?} {wide}");
                assert_eq!((log.copies, log.blocks, log.revokes, log.revoked), (8, 3, 4, 3));
                assert_eq!(log.ended, LogEnd::Complete);
                fsck_clean(&replay_equals_e2fsck(&image));
            }
        }
    }
}

#[test]
fn logs_wrap_around_and_so_do_sequence_numbers() {
    needs!(tools()[0], tools()[1], tools()[2]);
    for checksums in ALL {
        for sequence in [u32::MAX, u32::MAX - 1, u32::MAX - 2, 0] {
            let mut image = base(1024);
            // Five blocks before the end of the log, so that every kind of block comes after the wrap.
            let kind = LogKind { start: 0, sequence, ..LogKind::new(checksums) };
            three(&mut Log::begin(&mut image, kind));
            let log = overlay_equals_e2fsck(&image).info().recovery.log.unwrap();
            assert_eq!(
                (log.transactions, log.end.sequence()),
                (3, sequence.wrapping_add(3)),
                "{checksums:?}"
            );
            replay_equals_e2fsck(&image);
        }
    }
}

#[test]
fn what_was_not_committed_does_not_count() {
    needs!(tools()[0], tools()[1], tools()[2]);
    for checksums in ALL {
        let mut image = base(1024);
        let mut log = Log::begin(&mut image, LogKind::new(checksums));
        three(&mut log);
        let torn = [(free(log.image, 1), filled(0xEE, log.image))];
        log.blocks(&torn, &mut Written::default());
        let revoked = [free(log.image, 2)];
        log.revoke(&revoked, &mut Written::default());
        let report = overlay_equals_e2fsck(&image).info().recovery.log.unwrap();
        assert_eq!((report.transactions, report.ended), (3, LogEnd::Complete));
        replay_equals_e2fsck(&image);
    }
}

fn flip(log: &mut Log<'_>, log_block: u32, byte: usize) {
    log.block(log_block)[byte] ^= 0x40;
}

/// A reader's view of a damaged log, and a refusal to write without any write.
#[track_caller]
fn damaged(image: &Image, transactions: u32, kind: CorruptKind) -> Volume {
    let device = image.device();
    let volume = open(device.clone(), VolumeOptions::read_only()).unwrap();
    let log = volume.info().recovery.log.unwrap();
    let damage = log.ended.damage().unwrap_or_else(|| panic!("no damage: {:?}", log.ended));
    assert_eq!((log.transactions, damage.kind), (transactions, kind), "{damage}");
    assert!(volume.info().notes.iter().any(|note| note.contains("damaged")));
    let error = open(device.clone(), VolumeOptions::read_write()).map(drop).unwrap_err();
    assert!(error.to_string().contains(&damage.to_string()), "{error}");
    assert_eq!(error.errno(), 117);
    assert_unchanged(image, &*device);
    volume
}

#[test]
fn a_bad_commit_ends_the_log_before_it() {
    needs!(tools()[0], tools()[1], tools()[2]);
    for checksums in [LogChecksums::Transaction, LogChecksums::V2, LogChecksums::V3] {
        for bad in 0..3 {
            let mut image = base(1024);
            let mut log = Log::begin(&mut image, LogKind::new(checksums));
            let place = three(&mut log)[bad].commit;
            flip(&mut log, place, if checksums == LogChecksums::Transaction { 16 } else { 900 });
            damaged(&image, bad as u32, CorruptKind::JournalCommitChecksum);
            overlay_equals_e2fsck(&image);
        }
    }
}

#[test]
fn a_bad_commit_at_the_end_of_asynchronous_commits_is_an_interruption() {
    needs!(tools()[0], tools()[1], tools()[2]);
    for checksums in [LogChecksums::Transaction, LogChecksums::V2, LogChecksums::V3] {
        let mut image = base(1024);
        let mut log = Log::begin(&mut image, LogKind { async_commit: true, ..LogKind::new(checksums) });
        let place = three(&mut log)[2].commit;
        flip(&mut log, place, 17);
        let report = overlay_equals_e2fsck(&image).info().recovery.log.unwrap();
        assert_eq!((report.transactions, report.ended), (2, LogEnd::Interrupted), "{checksums:?}");
        replay_equals_e2fsck(&image);
        // The same with a commit after it.
        let mut image = base(1024);
        let mut log = Log::begin(&mut image, LogKind { async_commit: true, ..LogKind::new(checksums) });
        let place = three(&mut log)[1].commit;
        flip(&mut log, place, 17);
        damaged(&image, 1, CorruptKind::JournalCommitChecksum);
    }
}

#[test]
fn a_bad_data_block_takes_its_transaction_away() {
    needs!(tools()[0], tools()[1], tools()[2]);
    for checksums in [LogChecksums::V2, LogChecksums::V3] {
        for bad in 0..3 {
            let mut image = base(1024);
            let mut log = Log::begin(&mut image, LogKind::new(checksums));
            // The second copy of the transaction: no later revoke covers the one in the first.
            let place = three(&mut log)[bad].data[1];
            flip(&mut log, place, 100);
            if bad == 1 {
                // Block 3 of the second transaction is revoked by the third, so the copy is never read.
                overlay_equals_e2fsck(&image);
                replay_equals_e2fsck(&image);
                continue;
            }
            damaged(&image, bad as u32, CorruptKind::JournalDataChecksum);
        }
        // Asynchronous commits: the last transaction may be incomplete.
        let mut image = base(1024);
        let mut log = Log::begin(&mut image, LogKind { async_commit: true, ..LogKind::new(checksums) });
        let place = three(&mut log)[2].data[1];
        flip(&mut log, place, 100);
        let device = image.device();
        let info = open(device, VolumeOptions::read_write()).unwrap().info().recovery.log.unwrap();
        assert_eq!((info.transactions, info.ended), (2, LogEnd::Interrupted));
    }
    // With the old kind of checksum the whole transaction is covered by its commit block.
    let mut image = base(1024);
    let mut log = Log::begin(&mut image, LogKind::new(LogChecksums::Transaction));
    let place = three(&mut log)[1].data[0];
    flip(&mut log, place, 100);
    damaged(&image, 1, CorruptKind::JournalCommitChecksum);
    overlay_equals_e2fsck(&image);
}

#[test]
fn a_bad_copy_is_not_excused_by_a_revoke_that_is_lost_too() {
    needs!(tools()[0], tools()[1]);
    let mut image = base(1024);
    let mut log = Log::begin(&mut image, LogKind::new(LogChecksums::V3));
    let written = three(&mut log);
    // Revoked by the second transaction, …
    flip(&mut log, written[0].data[0], 100);
    // … whose own copy is bad.
    flip(&mut log, written[1].data[0], 100);
    damaged(&image, 0, CorruptKind::JournalDataChecksum);
}

#[test]
fn a_later_fault_does_not_undo_a_revoke_that_still_counts() {
    needs!(tools()[0], tools()[1]);
    let mut image = base(1024);
    let mut log = Log::begin(&mut image, LogKind::new(LogChecksums::V3));
    let written = three(&mut log);
    // Revoked by the second transaction, which stays; the third is bad by itself.
    flip(&mut log, written[0].data[0], 100);
    flip(&mut log, written[2].data[0], 100);
    damaged(&image, 2, CorruptKind::JournalDataChecksum);
}

#[test]
fn a_bad_descriptor_or_revoke_block_is_damage_only_if_it_was_committed() {
    needs!(tools()[0], tools()[1], tools()[2]);
    for checksums in [LogChecksums::V2, LogChecksums::V3] {
        for bad in 0..4 {
            // Without a commit block, after the last good transaction: leftovers, or torn.
            let mut image = base(1024);
            let mut log = Log::begin(&mut image, LogKind::new(checksums));
            let written = three(&mut log);
            let place = [&written[0], &written[1], &written[2]].get(bad).map(|w| w.descriptors[0]);
            let place = place.unwrap_or(written[1].revokes[0]);
            flip(&mut log, place, 600);
            let transactions = if bad == 3 { 1 } else { bad as u32 };
            damaged(&image, transactions, CorruptKind::JournalBlockChecksum);
        }
        let mut image = base(1024);
        let mut log = Log::begin(&mut image, LogKind::new(checksums));
        three(&mut log);
        let mut torn = Written::default();
        let blocks = [(free(log.image, 1), filled(0xEE, log.image))];
        log.blocks(&blocks, &mut torn);
        flip(&mut log, torn.descriptors[0], 600);
        let report = overlay_equals_e2fsck(&image).info().recovery.log.unwrap();
        assert_eq!((report.transactions, report.ended), (3, LogEnd::Complete));
        // With a commit block that is older than the last good commit: from an earlier use of the log.
        let mut image = base(1024);
        let mut log = Log::begin(&mut image, LogKind::new(checksums));
        three(&mut log);
        log.time -= 1000;
        let blocks = [(free(log.image, 1), filled(0xEE, log.image))];
        let old = log.transaction(&blocks, &[]);
        flip(&mut log, old.descriptors[0], 600);
        let report = overlay_equals_e2fsck(&image).info().recovery.log.unwrap();
        assert_eq!((report.transactions, report.ended), (3, LogEnd::Stale));
        replay_equals_e2fsck(&image);
    }
}

#[test]
fn tags_cannot_lead_out_of_the_volume_or_into_the_journal() {
    needs!(tools()[0], tools()[1]);
    let journal = common::log::places(&base(1024))[500];
    let end = (24 << 20) / 1024;
    for target in [end, u64::from(u32::MAX), journal] {
        let mut image = base(1024);
        let mut log = Log::begin(&mut image, LogKind::new(LogChecksums::V3));
        let good = [(free(log.image, 1), filled(1, log.image))];
        log.transaction(&good, &[]);
        let bad = [(free(log.image, 1), filled(2, log.image)), (target, filled(3, log.image))];
        log.transaction(&bad, &[]);
        let volume = damaged(&image, 1, CorruptKind::JournalTarget);
        let home = free(&image, 1) as usize * 1024;
        assert_eq!(Image::of(&**volume.device()).bytes[home], 1);
    }
}

#[test]
fn revoke_counts_that_lie_are_damage() {
    needs!(tools()[0], tools()[1]);
    let mut image = base(1024);
    let mut log = Log::begin(&mut image, LogKind::new(LogChecksums::V3));
    let place = three(&mut log)[1].revokes[0];
    let format = log.format;
    let block = log.block(place);
    block[12..16].copy_from_slice(&[0, 0, 4, 0]);
    format.seal_tail(block).unwrap();
    damaged(&image, 1, CorruptKind::JournalRevokeCount);
}

#[test]
fn a_log_that_is_all_one_transaction_ends() {
    needs!(tools()[0]);
    let mut image = base(1024);
    let mut log = Log::begin(&mut image, LogKind::new(LogChecksums::None));
    for _ in 0..1023 {
        log.revoke(&[1], &mut Written::default());
    }
    let device = image.device();
    let read = move || open_ro(device).info().recovery.log.unwrap();
    let recovery = within(Duration::from_secs(20), read);
    assert_eq!((recovery.transactions, recovery.ended), (0, LogEnd::Full));
}

#[test]
fn flag_and_log_may_disagree() {
    needs!(tools()[0], tools()[1]);
    // The flag without a log in use.
    let mut image = base(1024);
    image.set_bits(0x60, 4);
    let device = image.device();
    let volume = open_ro(device.clone());
    assert_eq!(volume.info().recovery.state, RecoveryState::EmptyLog);
    assert_eq!(read_all(&volume.open_file("/hello", read_only()).unwrap()).len(), 6000);
    assert_unchanged(&image, &*device);
    drop(volume);
    let volume = open(device.clone(), VolumeOptions::read_write()).unwrap();
    assert_eq!(volume.info().recovery.state, RecoveryState::EmptyLog);
    drop(volume);
    assert_eq!(open_ro(device.clone()).info().recovery.state, RecoveryState::Clean);
    fsck_clean(&Image::of(&*device));

    // A log in use without the flag: ignored, or emptied with its sequence numbers used up.
    let mut image = base(1024);
    three(&mut Log::begin(&mut image, LogKind::new(LogChecksums::V3)));
    image.patch_superblock(|superblock| superblock[0x60] &= !4);
    let device = image.device();
    let volume = open_ro(device.clone());
    assert_eq!(volume.info().recovery.state, RecoveryState::Ignored);
    assert_unchanged(&image, &**volume.device());
    drop(volume);
    let volume = open(device.clone(), VolumeOptions::read_write()).unwrap();
    let info = volume.info();
    let log = info.journal.unwrap().superblock;
    assert_eq!((info.recovery.state, log.start, log.sequence), (RecoveryState::Emptied, 0, 11));
    drop(volume);
    let found = Image::of(&*device);
    let home = free(&image, 1) as usize * 1024;
    assert_eq!(found.bytes[home..home + 1024], image.bytes[home..home + 1024], "nothing was replayed");
    fsck_clean(&found);
}

#[test]
fn errors_that_the_journal_recorded_are_not_lost() {
    needs!(tools()[0], tools()[1]);
    for (dirty, flag) in [(true, true), (false, true), (false, false)] {
        let mut image = base(1024);
        let mut log = Log::begin(&mut image, LogKind::new(LogChecksums::V3));
        if dirty {
            three(&mut log);
        }
        log.superblock(|superblock| {
            superblock.errno = -5;
            superblock.start = if dirty { superblock.start } else { 0 };
        });
        if !flag {
            image.patch_superblock(|superblock| superblock[0x60] &= !4);
        }
        let device = image.device();
        let errors = |volume: &Volume| volume.superblock().state.names().contains(&"errors".into());
        for options in [VolumeOptions::read_only(), VolumeOptions::read_write()] {
            let volume = open(device.clone(), options).unwrap();
            assert!(errors(&volume), "dirty {dirty}, flag {flag}");
            assert_eq!(volume.info().recovery.journal_errno, -5);
        }
        let after = open_ro(device);
        assert!(errors(&after));
        assert_eq!(after.info().journal.unwrap().superblock.errno, 0, "it stands in the superblock now");
    }
}

/// An old superblock in the log must not undo fields written to the current one past the journal.
#[test]
fn an_older_superblock_in_the_log_keeps_errors_and_flag() {
    needs!(tools()[0], tools()[1]);
    for block in [1024, 4096] {
        let mut image = base(block);
        let size = block as usize;
        let home = if block == 1024 { 1 } else { 0 };
        let mut older = image.clone();
        older.patch_superblock(|superblock| superblock[0x78..0x7c].copy_from_slice(b"OLD\0"));
        let older = older.bytes[home * size..(home + 1) * size].to_vec();
        let mut log = Log::begin(&mut image, LogKind::new(LogChecksums::V3));
        let other = (free(log.image, 0), filled(1, log.image));
        log.transaction(&[(home as u64, older), other], &[]);
        image.patch_superblock(|superblock| {
            superblock[0x3a] |= 2; // errors
            superblock[0x194] = 3; // s_error_count
            superblock[0x198] = 9; // s_first_error_time
        });
        let device = image.device();
        for options in [VolumeOptions::read_only(), VolumeOptions::read_write()] {
            let volume = open(device.clone(), options).unwrap();
            let superblock = volume.superblock();
            assert_eq!(superblock.label(), b"OLD");
            assert_eq!(superblock.errors.count, 3);
            assert!(superblock.state.names().contains(&"errors".into()));
            assert!(!superblock.needs_recovery());
        }
        assert_eq!(open_ro(device).info().recovery.state, RecoveryState::Clean);
    }
}

#[test]
fn refusals_to_write_come_before_the_first_write() {
    needs!(tools()[0], tools()[1]);
    // The superblock that counts is the one in the log: it names an impossible orphan.
    let mut image = base(1024);
    let mut other = image.clone();
    other.patch_superblock(|superblock| superblock[0xe8] = 7);
    let mut log = Log::begin(&mut image, LogKind::new(LogChecksums::V3));
    let other = (1, other.bytes[1024..2048].to_vec());
    let data = (free(log.image, 0), filled(1, log.image));
    log.transaction(&[other, data], &[]);
    let device = image.device();
    let error = open(device.clone(), VolumeOptions::read_write()).map(drop).unwrap_err();
    assert!(error.to_string().contains("inode 7"), "{error}");
    assert_unchanged(&image, &*device);
    assert_eq!(open_ro(device).superblock().last_orphan, 7);

    // Or an unknown feature: then even reading is refused.
    let mut image = base(1024);
    let mut other = image.clone();
    other.patch_superblock(|superblock| superblock[0x63] |= 0x40);
    let mut log = Log::begin(&mut image, LogKind::new(LogChecksums::V3));
    let other = (1, other.bytes[1024..2048].to_vec());
    let data = (free(log.image, 0), filled(1, log.image));
    log.transaction(&[other, data], &[]);
    for options in [VolumeOptions::read_only(), VolumeOptions::read_write()] {
        let device = image.device();
        let error = open(device.clone(), options).map(drop).unwrap_err();
        assert!(matches!(error, Error::Incompatible { .. }), "{error}");
        assert_unchanged(&image, &*device);
    }

    let mut image = base(1024);
    three(&mut Log::begin(&mut image, LogKind::new(LogChecksums::V3)));
    image.set_bits(0x64, 0x10000);
    image.patch_superblock(|superblock| superblock[0x280..0x284].fill(0)); // s_orphan_file_inum
    let device = image.device();
    let error = open(device.clone(), VolumeOptions::read_write()).map(drop).unwrap_err();
    assert!(error.to_string().contains("orphan_file_inum"), "{error}");
    assert_unchanged(&image, &*device);
    open_ro(device);

    let mut image = base(1024);
    image.patch_superblock(|superblock| {
        superblock[0x60] |= 4;
        superblock[0xd0..0xe0].fill(7); // s_journal_uuid
        superblock[0xe0..0xe4].fill(0);
    });
    for options in [VolumeOptions::read_only(), VolumeOptions::read_write()] {
        let error = open(image.device(), options).map(drop).unwrap_err();
        assert!(error.to_string().contains("external journal"), "{error}");
    }
}

/// A head, a range of the root directory's inode (which one does not matter), and a tail.
fn fast_commit(sequence: u32, valid: bool) -> Vec<u8> {
    let mut bytes = vec![9, 0, 8, 0, 0, 0, 0, 0];
    bytes.extend(sequence.to_le_bytes());
    bytes.extend([2, 0, 12, 0, 2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    bytes.extend([8, 0, 8, 0]);
    bytes.extend(sequence.to_le_bytes());
    let sum = uext4_ondisk::checksum::csum(0, &bytes);
    bytes.extend(if valid { sum } else { !sum }.to_le_bytes());
    bytes
}

#[test]
fn fast_commits_count_if_they_are_complete_and_of_this_log() {
    needs!(tools()[0], tools()[1]);
    for (sequence, valid, pending) in [(10, true, true), (10, false, false), (9, true, false)] {
        // 1024 blocks would be too short for an ordinary log and fast commits.
        let volume = VolumeBuilder::new(24 << 20).args(["-b", "1024", "-J", "size=2"]).build();
        let mut image = Image::load(volume.path());
        let kind = LogKind { fast_commit_blocks: 8, ..LogKind::new(LogChecksums::V3) };
        let mut log = Log::begin(&mut image, kind);
        three(&mut log);
        let records = fast_commit(sequence, valid);
        let place = log.fast_commit_start();
        log.block(place)[..records.len()].copy_from_slice(&records);
        let device = image.device();
        let volume = open(device.clone(), VolumeOptions::read_only()).unwrap();
        let recovery = volume.info().recovery;
        let found = recovery.log.clone().unwrap().fast_commits.unwrap();
        assert_eq!(found.records, if pending { 3 } else { 0 }, "{sequence} {valid}");
        // The record cannot be applied: no file has that number.
        assert_eq!(recovery.fast_commits_refused.is_some(), pending, "{recovery:?}");
        drop(volume);
        match open(device.clone(), VolumeOptions::read_write()) {
            Err(error) => {
                assert!(pending && matches!(error, Error::FastCommit { record: 1, .. }), "{error}");
                assert_unchanged(&image, &*device);
            }
            Ok(_) => assert!(!pending),
        }
    }
}

/// Journals that debugfs wrote, with its own encoders. (Blocks and revokes go apart: of both together debugfs 1.47.0
/// makes a transaction whose commit block has the wrong number.)
#[test]
fn journals_that_debugfs_wrote() {
    needs!(tools()[0], tools()[1], tools()[2]);
    for block in [1024, 4096] {
        for open in ["jo", "jo -c", "jo -c -v 2", "jo -c -v 3"] {
            let scratch = Scratch::new(64 << 20);
            let (path, data, script) =
                (scratch.file("volume.img"), scratch.file("data"), scratch.file("script"));
            let image = base(block);
            image.save(&path);
            let mut bytes: Vec<u8> = [0xA1, 0xA2, 0xA3].map(|byte| filled(byte, &image)).concat();
            bytes[..4].copy_from_slice(&magic());
            std::fs::write(&data, &bytes).unwrap();
            let home = |n| free(&image, n);
            let (file, [a, b, c, d]) = (data.display(), [0, 1, 2, 3].map(home));
            let text = format!(
                "{open}\njw -b {a},{b},{c} {file}\njw -r {b}\njw -b {d},{a} {file}\njw -b {b} {file}\njw -r {c}\n\
                 jw -c -b {d} {file}\njc\n"
            );
            std::fs::write(&script, text).unwrap();
            run_script(&script, &path);
            let image = Image::load(&path);
            let log = overlay_equals_e2fsck(&image).info().recovery.log.unwrap();
            assert_eq!((log.transactions, log.blocks), (5, 3), "{block} {open}");
            fsck_clean(&replay_equals_e2fsck(&image));
        }
    }
}

fn run_script(script: &Path, volume: &Path) {
    let mut command = oracle::command("debugfs");
    oracle::run(command.args(["-w", "-f"]).arg(script).arg(volume));
}
