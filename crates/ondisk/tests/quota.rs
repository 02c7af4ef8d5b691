//! Blocks of quota files: values that come back, and any bytes.

use proptest::prelude::*;
use uext4_ondisk::CorruptKind;
use uext4_ondisk::ext4::{
    QUOTA_BLOCK_SIZE, QUOTA_LEAF_ENTRIES, QUOTA_LEVELS, QuotaEntry, QuotaHeader, QuotaKind, QuotaLeaf,
    find_quota_entry, find_unused_quota_entry, quota_child, quota_entries, set_quota_child,
};

#[test]
fn headers_with_impossible_fields_are_refused() {
    let good =
        QuotaHeader { block_grace: 7, inode_grace: 8, flags: 0, blocks: 6, free_block: 5, free_leaf: 4 };
    let mut bytes = [0; QUOTA_BLOCK_SIZE];
    good.encode(&mut bytes, QuotaKind::Group).unwrap();
    assert_eq!(QuotaHeader::decode(&bytes, QuotaKind::Group), Ok(good));
    let refused = |bytes: &[u8], kind| QuotaHeader::decode(bytes, kind).unwrap_err().kind;
    assert_eq!(refused(&bytes, QuotaKind::User), CorruptKind::Quota("the magic number is wrong"));
    assert_eq!(refused(&bytes[..31], QuotaKind::Group), CorruptKind::Truncated("quota file header"));
    for (at, value, why) in [
        (4, 0, "the version is unknown"),
        (20, 1, "it has no tree"),
        (24, 1, "a block number is out of range"),
        (24, 6, "a block number is out of range"),
        (28, u32::MAX, "a block number is out of range"),
    ] {
        let mut bad = bytes;
        bad[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
        assert_eq!(refused(&bad, QuotaKind::Group), CorruptKind::Quota(why), "{at}");
    }
}

#[test]
fn an_entry_of_zeros_differs_from_an_unused_one() {
    let mut leaf = [0; QUOTA_BLOCK_SIZE];
    assert_eq!((find_quota_entry(&leaf, 0), find_unused_quota_entry(&leaf)), (None, Some(16)));
    QuotaEntry::default().encode(&mut leaf[16..]).unwrap();
    assert_eq!((find_quota_entry(&leaf, 0), find_unused_quota_entry(&leaf)), (Some(16), Some(88)));
    assert_eq!(QuotaEntry::decode(&leaf[16..]), Some(QuotaEntry::default()));
    assert_eq!(QuotaEntry::decode(&leaf[1000..]), None);
    for entry in 1..QUOTA_LEAF_ENTRIES {
        let at = find_unused_quota_entry(&leaf).unwrap();
        QuotaEntry { id: entry.into(), ..QuotaEntry::default() }.encode(&mut leaf[at..]).unwrap();
    }
    assert_eq!(find_unused_quota_entry(&leaf), None);
    assert_eq!(quota_entries(&leaf).map(|entry| entry.id).collect::<Vec<_>>(), Vec::from_iter(0..14));
    leaf[8] = 15;
    let kind = QuotaLeaf::decode(&leaf).unwrap_err().kind;
    assert_eq!(kind, CorruptKind::Quota("a leaf counts too many entries"));
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_or_refused(mut bytes: Vec<u8>, id: u32, level in 0..=QUOTA_LEVELS, magic: bool) {
        if magic && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(&[0x11, 0x1f, 0xc0, 0xd9, 1, 0, 0, 0]);
        }
        if let Ok(header) = QuotaHeader::decode(&bytes, QuotaKind::User) {
            let mut again = bytes.clone();
            header.encode(&mut again, QuotaKind::User).unwrap();
            prop_assert_eq!(&again, &bytes);
        }
        let _ = (QuotaLeaf::decode(&bytes), find_quota_entry(&bytes, id), find_unused_quota_entry(&bytes));
        let _ = (quota_entries(&bytes).count(), quota_child(&bytes, level, id));
        if set_quota_child(&mut bytes, level, id, 77).is_ok() {
            prop_assert_eq!(quota_child(&bytes, level, id), 77);
        }
    }

    #[test]
    fn entries_come_back(words: [u64; 8], id: u32) {
        let [inodes_hard, inodes_soft, inodes, blocks_hard, blocks_soft, bytes, block_time, inode_time] = words;
        let entry = QuotaEntry {
            id, inodes_hard, inodes_soft, inodes, blocks_hard, blocks_soft, bytes, block_time, inode_time,
        };
        let mut stored = [0xff; 72];
        entry.encode(&mut stored).unwrap();
        prop_assert_eq!(QuotaEntry::decode(&stored), Some(entry));
    }
}
