//! Opening: what the superblock of the log may say.

use crate::common;

use common::{BLOCK, LOG, LOG_AT, Superblock, cache, map};
use std::sync::Arc;
use uext4_jbd2::{Error, Journal, JournalInfo, LogRun, RunMap, Tail, Tid};
use uext4_ondisk::CorruptKind;
use uext4_ondisk::jbd2::SuperblockVersion;

const COMPAT: usize = 36;
const INCOMPAT: usize = 40;
const RO_COMPAT: usize = 44;

fn open(superblock: &Superblock) -> Result<Journal, Error> {
    Journal::open(cache(superblock), map(), Arc::default())
}

fn open_with(change: impl FnOnce(&mut Superblock)) -> Result<Journal, Error> {
    let mut superblock = Superblock::empty();
    change(&mut superblock);
    open(&superblock)
}

/// The field that does not fit the volume.
fn mismatch(change: impl FnOnce(&mut Superblock)) -> &'static str {
    match open_with(change).unwrap_err() {
        Error::Mismatch { block: LOG_AT, field, .. } => field,
        other => panic!("{other}"),
    }
}

/// What is damaged in the superblock itself.
fn damage(change: impl FnOnce(&mut Superblock)) -> CorruptKind {
    match open_with(change).unwrap_err() {
        Error::Corrupt(corrupt) => {
            assert_eq!(corrupt.place.block.map(|block| block.0), Some(LOG_AT));
            corrupt.kind
        }
        other => panic!("{other}"),
    }
}

#[test]
fn empty_log_opens() {
    let journal = open(&Superblock::empty()).unwrap();
    let info = journal.info();
    assert_eq!((info.block, info.sequence(), info.needs_recovery()), (LOG_AT, Tid(41), false));
    assert_eq!((info.superblock.block_size, info.superblock.log_end()), (BLOCK, LOG));
    assert_eq!((journal.sequence(), journal.running_tid()), (Tid(42), None));
    assert_eq!(journal.tail(), Tail { log_block: 1, sequence: Tid(42) });
    assert_eq!(journal.max_transaction_credits(), LOG / 4);
    // 1024 - 12 - 16 - 16 bytes of 8-byte tags: 122 tags per descriptor, 3 descriptors for 258 blocks, 1
    // commit block.
    assert_eq!(journal.max_handle_credits(), LOG / 4 - 4);
}

#[test]
fn sequence_numbers_wrap() {
    let journal = open_with(|superblock| superblock.put(24, u32::MAX)).unwrap();
    let tid = journal.start(1).unwrap().tid();
    assert_eq!((tid, tid.sequence(), journal.sequence()), (Tid(1 << 32), 0, Tid((1 << 32) + 1)));
    assert!(tid > journal.last_committed(), "a number that wrapped would be an old one");
    journal.committed(tid).unwrap();
    assert_eq!(journal.last_committed(), tid);
}

#[test]
fn log_in_use_needs_recovery() {
    let mut superblock = Superblock::empty();
    superblock.set(28, 17);
    assert_eq!(open(&superblock).unwrap_err(), Error::NeedsRecovery { start: 17, sequence: Tid(41) });
    let info = JournalInfo::read(&cache(&superblock), &*map()).unwrap();
    assert!(info.needs_recovery(), "a log in use can still be described");
}

#[test]
fn damage_is_typed_and_placed() {
    assert_eq!(damage(|s| s.put(0, 0xC03B_3999)), CorruptKind::JournalMagic);
    assert_eq!(damage(|s| s.put(4, 1)), CorruptKind::JournalBlockType);
    for (offset, value) in [(12, 0), (12, 3000), (16, 0), (20, 0), (20, LOG), (20, u32::MAX), (28, LOG)] {
        let kind = damage(|s| s.put(offset, value));
        assert!(matches!(kind, CorruptKind::JournalField(_)), "{value} at {offset}: {kind}");
    }
}

#[test]
fn superblock_must_fit_the_volume() {
    assert_eq!(mismatch(|s| s.put(12, 4096)), "s_blocksize");
    assert_eq!(mismatch(|s| s.put(16, LOG + 1)), "s_maxlen");
    assert_eq!(mismatch(|s| s.put(16, 1023)), "s_maxlen");
}

#[test]
fn shortest_log_is_1024_blocks() {
    assert!(open_with(|s| s.put(16, 1024)).is_ok());
    assert!(open_with(|s| s.put(20, 9)).is_ok());
    assert_eq!(mismatch(|s| s.put(20, 10)), "s_maxlen");
}

#[test]
fn known_features_open_and_unknown_ones_are_refused_by_name() {
    // revoke, 64bit, async commit
    assert!(open_with(|s| s.put(INCOMPAT, 7)).is_ok());
    // compatible bits never matter
    assert!(open_with(|s| s.put(COMPAT, 0xF0)).is_ok());
    for offset in [INCOMPAT, RO_COMPAT] {
        let error = open_with(|s| s.put(offset, 0x4000)).unwrap_err();
        let Error::Unsupported { feature } = &error else { panic!("{error}") };
        assert!(feature.contains("14"), "{feature} names the bit");
    }
    let error = open_with(|s| s.put(64, 2)).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[test]
fn version_1_has_no_features() {
    let journal = open_with(|s| {
        s.set(4, 3).set(INCOMPAT, 0x4000);
    })
    .unwrap();
    assert_eq!(journal.info().superblock.version, SuperblockVersion::V1);
}

#[test]
fn checksums_are_verified() {
    for bit in [8, 16] {
        let open = |change: fn(&mut Superblock)| {
            open_with(|s| {
                s.set(INCOMPAT, bit).seal();
                change(s);
            })
        };
        let journal = open(|_| ()).unwrap();
        // 1024 - 12 - 16 - 4 - 16 bytes of 10- or 16-byte tags: 97 or 61 tags; 3 or 5 descriptors, 1 commit
        // block.
        let overhead = if bit == 8 { 4 } else { 6 };
        assert_eq!(journal.max_transaction_credits() - journal.max_handle_credits(), overhead);
        let kind = |change| match open(change).unwrap_err() {
            Error::Corrupt(corrupt) => corrupt.kind,
            other => panic!("{other}"),
        };
        assert_eq!(kind(|s| s.put(252, 0)), CorruptKind::JournalChecksum);
        assert_eq!(kind(|s| s.0[1023] ^= 1), CorruptKind::JournalChecksum);
        assert!(matches!(kind(|s| s.0[80] = 1), CorruptKind::JournalField(_)));
    }
    let both = damage(|s| {
        s.set(INCOMPAT, 24).seal();
    });
    assert!(matches!(both, CorruptKind::JournalField(_)), "{both}");
    let old_and_new = damage(|s| {
        s.set(INCOMPAT, 16).set(COMPAT, 1).seal();
    });
    assert!(matches!(old_and_new, CorruptKind::JournalField(_)), "{old_and_new}");
}

#[test]
fn fast_commit_area_is_not_ordinary_log() {
    let fast = |blocks| {
        open_with(|s| {
            s.set(INCOMPAT, 32).set(84, blocks);
        })
    };
    let journal = fast(8).unwrap();
    assert_eq!(journal.info().superblock.log_end(), LOG - 8);
    assert_eq!(journal.max_transaction_credits(), (LOG - 8) / 4);
    assert!(matches!(fast(10), Err(Error::Mismatch { field: "s_maxlen", .. })), "the rest is too short");
    assert!(matches!(fast(0), Err(Error::Mismatch { field: "s_maxlen", .. })), "0 means 256");
    for blocks in [LOG, LOG + 1, u32::MAX] {
        assert!(matches!(fast(blocks), Err(Error::Corrupt(_))), "{blocks}");
    }
}

#[test]
fn log_map_must_hold_the_log() {
    let volume = cache(&Superblock::empty());
    let open = |runs| Journal::open(volume.clone(), Arc::new(RunMap::new(runs).unwrap()), Arc::default());
    assert_eq!(open(Vec::new()).unwrap_err(), Error::HoleInLog { log_block: 0 });
    let short = LogRun { log_block: 0, physical: LOG_AT, length: LOG - 1 };
    assert!(matches!(open(vec![short]), Err(Error::Mismatch { field: "s_maxlen", .. })));
    let outside = LogRun { log_block: 0, physical: 1 << 40, length: LOG };
    let error = open(vec![outside]).unwrap_err();
    assert!(matches!(error, Error::Buffer(uext4_buffer::Error::OutOfRange { .. })), "{error}");
}
