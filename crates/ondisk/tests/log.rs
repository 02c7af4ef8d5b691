//! The blocks of the log: what is written is read back, the bytes are where jbd2 has them, and any bytes are answered.

use proptest::prelude::*;
use uext4_ondisk::CorruptKind;
use uext4_ondisk::jbd2::{
    CommitBlock, FastCommitChecksum, FastCommitRecord, FastCommitRecords, LogChecksums, LogFormat, Tag,
    TagChecksum, TagFlags, TransactionChecksum,
};

const ALL: [LogChecksums; 4] =
    [LogChecksums::None, LogChecksums::Transaction, LogChecksums::V2, LogChecksums::V3];

fn format(checksums: LogChecksums, wide: bool) -> LogFormat {
    LogFormat { block_size: 1024, wide, checksums, async_commit: false, seed: 0x1234_5678 }
}

fn tag(format: &LogFormat, block: u64, flags: TagFlags) -> Tag {
    Tag { block, flags, checksum: format.tag_checksum(9, &[block as u8; 1024]) }
}

#[test]
fn tags_are_read_back_until_the_block_is_full() {
    for checksums in ALL {
        for wide in [false, true] {
            let format = format(checksums, wide);
            let mut block = vec![0xFF; 1024];
            let mut offset = format.start_descriptor(&mut block, 9).unwrap();
            let mut written = Vec::new();
            loop {
                let number = written.len() as u64 + 1 + if wide { 7 << 32 } else { 0 };
                let same = if written.len() % 3 == 0 { TagFlags::empty() } else { TagFlags::SAME_UUID };
                let tag = tag(&format, number, same | TagFlags::ESCAPE);
                let Some(next) = format.put_tag(&mut block, offset, &tag, &[0xAB; 16]).unwrap() else {
                    break;
                };
                written.push(tag);
                offset = next;
            }
            format.seal_tail(&mut block).unwrap();
            format.verify_tail(&block).unwrap();
            let tail = if format.metadata_checksums() { 4 } else { 0 };
            assert!(offset + format.tag_size() as usize + 16 > 1024 - tail, "{checksums:?} {wide}: full");
            // Behind the last one there may be room for a tag that is all zeros.
            let found: Vec<Tag> = format.tags(&block).take(written.len()).collect();
            assert_eq!(found, written, "{checksums:?} {wide}");
            block[1023 - 4] ^= 1;
            assert_eq!(format.verify_tail(&block).is_err(), format.metadata_checksums());
        }
    }
    let narrow = format(LogChecksums::None, false);
    let far = Tag { block: 1 << 32, flags: TagFlags::empty(), checksum: TagChecksum::None };
    assert!(narrow.put_tag(&mut [0; 1024], 12, &far, &[0; 16]).is_err());
}

#[test]
fn the_fields_of_a_tag_are_where_jbd2_has_them() {
    // struct journal_block_tag_s: number, 16-bit checksum, 16-bit flags, high half.
    let mut block = vec![0; 1024];
    let bytes = [0x11, 0x22, 0x33, 0x44, 0xAA, 0xBB, 0, 0x0A, 0x55, 0x66, 0x77, 0x88];
    block[12..24].copy_from_slice(&bytes);
    let one = |checksums, wide| format(checksums, wide).tags(&block).next().unwrap();
    let flags = TagFlags::SAME_UUID | TagFlags::LAST;
    let (low, high) = (0x1122_3344, 0x5566_7788_1122_3344);
    assert_eq!(one(LogChecksums::None, false), Tag { block: low, flags, checksum: TagChecksum::None });
    assert_eq!(one(LogChecksums::None, true), Tag { block: high, flags, checksum: TagChecksum::None });
    assert_eq!(one(LogChecksums::V2, true), Tag { block: high, flags, checksum: TagChecksum::V2(0xAABB) });
    // struct journal_block_tag3_s: number, 32-bit flags, high half, 32-bit checksum.
    block[24..28].copy_from_slice(&[1, 2, 3, 4]);
    let three = format(LogChecksums::V3, true).tags(&block).next().unwrap();
    assert_eq!(three, Tag { block: high, flags, checksum: TagChecksum::V3(0x0102_0304) });
    let sizes: Vec<u32> =
        ALL.iter().flat_map(|kind| [false, true].map(|wide| format(*kind, wide).tag_size())).collect();
    assert_eq!(sizes, [8, 12, 8, 12, 10, 14, 16, 16]);
}

#[test]
fn revokes_are_read_back_and_counts_are_checked() {
    for checksums in ALL {
        for wide in [false, true] {
            let format = format(checksums, wide);
            let numbers: Vec<u64> = (0..400).map(|n| n * 3 + if wide { 5 << 32 } else { 0 }).collect();
            let mut block = vec![0xFF; 1024];
            let count = format.encode_revokes(&mut block, 9, &numbers).unwrap();
            let tail = if format.metadata_checksums() { 4 } else { 0 };
            assert_eq!(count, (1024 - 16 - tail) / if wide { 8 } else { 4 });
            format.verify_tail(&block).unwrap();
            assert_eq!(format.revokes(&block).unwrap().collect::<Vec<_>>(), numbers[..count]);
            block[12..16].copy_from_slice(&[0, 0, 4, 1]);
            assert_eq!(format.revokes(&block).unwrap_err().kind, CorruptKind::JournalRevokeCount);
            // Less than the header itself is no record.
            block[12..16].copy_from_slice(&[0, 0, 0, 3]);
            assert_eq!(format.revokes(&block).unwrap().count(), 0);
        }
    }
}

#[test]
fn commits_are_read_back_and_checked() {
    let mut sum = TransactionChecksum::default();
    sum.update(b"123456789");
    assert_eq!(sum.value(), 0x0376_E6E7);
    let plain = CommitBlock { sequence: 9, seconds: 1 << 33, nanoseconds: 77, ..CommitBlock::default() };
    assert!(plain.matches(sum), "no checksum is right");
    let commit = plain.with_checksum(sum);
    assert!(commit.matches(sum) && !commit.matches(TransactionChecksum::default()));
    assert!(!CommitBlock { checksum_type: 2, ..commit }.matches(sum));
    for checksums in ALL {
        let format = format(checksums, true);
        let mut block = vec![0xFF; 1024];
        commit.encode(&mut block).unwrap();
        assert_eq!(CommitBlock::decode(&block).unwrap(), commit);
        format.seal_commit(&mut block).unwrap();
        format.verify_commit(&block).unwrap();
        block[500] ^= 1;
        assert_eq!(format.verify_commit(&block).is_err(), format.metadata_checksums());
    }
}

#[test]
fn fast_commit_records_have_their_lengths() {
    let record = |bytes: &[u8]| {
        let block = bytes.to_vec();
        let result = FastCommitRecords::new(&block).next().unwrap();
        result.map(|entry| format!("{:?}", entry.record)).map_err(|corrupt| corrupt.kind)
    };
    let tlv = |tag: u8, length: u16| {
        let mut bytes = vec![tag, 0];
        bytes.extend(length.to_le_bytes());
        bytes.resize(4 + usize::from(length), 7);
        bytes
    };
    let good =
        [(1, 16), (2, 12), (3, 9), (4, 263), (5, 9), (6, 132), (6, 260), (7, 0), (7, 900), (8, 8), (9, 8)];
    for (tag, length) in good {
        assert!(record(&tlv(tag, length)).is_ok(), "{tag} {length}");
    }
    let bad =
        [(1, 15), (2, 13), (3, 8), (4, 264), (5, 7), (6, 131), (8, 7), (9, 9), (0, 0), (10, 4), (255, 4)];
    for (tag, length) in bad {
        let kind = record(&tlv(tag, length)).unwrap_err();
        assert!(matches!(kind, CorruptKind::FastCommitRecord(_)), "{tag} {length}: {kind}");
    }
    // Longer than its block.
    assert!(record(&tlv(7, 40)[..20]).is_err());
    let tail = [8, 0, 8, 0, 5, 0, 0, 0, 9, 9, 9, 9];
    let entry = FastCommitRecords::new(&tail).next().unwrap().unwrap();
    assert_eq!(entry.record, FastCommitRecord::Tail { sequence: 5, checksum: 0x0909_0909 });
    let mut sum = FastCommitChecksum::default();
    sum.update(&entry);
    assert_eq!(sum.value(), uext4_ondisk::checksum::csum(0, &tail[..8]), "its own checksum is not covered");
}

proptest! {
    #[test]
    fn any_bytes_are_answered(
        bytes in proptest::collection::vec(any::<u8>(), 0..1100),
        kind in 0_usize..4,
        wide in any::<bool>(),
    ) {
        let format = format(ALL[kind], wide);
        prop_assert!(format.tags(&bytes).count() <= 128);
        if let Ok(revokes) = format.revokes(&bytes) {
            prop_assert!(revokes.count() <= 256);
        }
        let _answer = (format.verify_tail(&bytes), format.verify_commit(&bytes), CommitBlock::decode(&bytes));
        let mut sum = FastCommitChecksum::default();
        for entry in FastCommitRecords::new(&bytes).flatten() {
            sum.update(&entry);
        }
        let mut block = bytes;
        let _sealed = (format.seal_tail(&mut block), format.seal_commit(&mut block));
    }
}
