//! Checksums, faults with their places, numbers, and name spaces of attributes.

use uext4_ondisk::checksum::{CRC16_INIT, CSUM_INIT, crc16, crc32_be, csum, csum_le32};
use uext4_ondisk::ext4::XattrIndex;
use uext4_ondisk::{BlockRange, Corrupt, CorruptKind, Group, Ino, Lblk, Pblk, Place};

#[test]
fn check_values() {
    // The catalogue's check values, for the input "123456789".
    assert_eq!(!csum(CSUM_INIT, b"123456789"), 0xE306_9283);
    assert_eq!(crc16(CRC16_INIT, b"123456789"), 0x4B37);
    assert_eq!(crc16(0, b"123456789"), 0xBB3D);
    assert_eq!(crc32_be(u32::MAX, b"123456789"), 0x0376_E6E7);
    assert_eq!(crc32_be(crc32_be(u32::MAX, b"1234"), b"56789"), 0x0376_E6E7);
}

#[test]
fn chains_join() {
    assert_eq!(csum(csum(CSUM_INIT, b"1234"), b"56789"), csum(CSUM_INIT, b"123456789"));
    assert_eq!(crc16(crc16(CRC16_INIT, b"1234"), b"56789"), crc16(CRC16_INIT, b"123456789"));
    assert_eq!(csum_le32(7, 0x0403_0201), csum(7, &[1, 2, 3, 4]));
}

#[test]
fn display_names_fault_and_place() {
    let fault = Corrupt::new(CorruptKind::ExtentMagic).at_block(Pblk(3456)).in_inode(Ino(12));
    assert_eq!(fault.place.to_string(), "inode 12, block 3456");
    assert_eq!(fault.to_string(), "inode 12, block 3456: extent node magic number is wrong");
    assert_eq!(
        Corrupt::new(CorruptKind::SuperblockField("inode_size")).to_string(),
        "superblock field `inode_size` is invalid"
    );
    assert_eq!(Place::default().to_string(), "unknown place");
}

#[test]
fn the_innermost_place_wins() {
    let fault = Corrupt::new(CorruptKind::InodeChecksum).in_inode(Ino(5)).in_inode(Ino(9));
    assert_eq!(fault.place.inode, Some(Ino(5)));
    let fault = fault.in_group(Group(1)).at_lblk(Lblk(2)).in_group(Group(7)).at_lblk(Lblk(8));
    assert_eq!(fault.place.to_string(), "group 1, inode 5, logical block 2");
}

#[test]
fn ranges_do_not_wrap() {
    let range = BlockRange { first: Pblk(1), end: Pblk(100) };
    assert!(range.contains(Pblk(1), 99));
    assert!(!range.contains(Pblk(1), 100));
    assert!(!range.contains(Pblk(0), 1));
    assert!(!range.contains(Pblk(50), u64::MAX));
    assert!(range.overlaps(Pblk(99), u64::MAX));
    assert!(!range.overlaps(Pblk(100), 1));
    assert!(!range.overlaps(Pblk(0), 1));
    assert!(!range.overlaps(Pblk(5), 0));
}

#[test]
fn byte_offsets() {
    assert_eq!(Lblk(u32::MAX).byte_offset(65536), u64::from(u32::MAX) << 16);
    assert_eq!(Pblk(3).byte_offset(4096), Some(12288));
    assert_eq!(Pblk(u64::MAX).byte_offset(2), None);
    assert_eq!(Ino::nonzero(0), None);
    assert_eq!(Lblk(4).distance_from(Lblk(5)), None);
}

#[test]
fn names_split_and_join() {
    for number in 0..=255 {
        let Some(index) = XattrIndex::from_disk(number) else {
            assert!(number == 0 || number > 10);
            continue;
        };
        assert_eq!(index.to_disk(), number);
        if let Some(prefix) = index.prefix() {
            let name = format!("{prefix}x");
            assert_eq!(XattrIndex::split(name.as_bytes()), Some((index, &b"x"[..])));
        }
    }
    assert_eq!(XattrIndex::split(b"system.posix_acl_default"), Some((XattrIndex::AclDefault, &b""[..])));
    assert_eq!(XattrIndex::split(b"system.data"), Some((XattrIndex::System, &b"data"[..])));
    assert_eq!(XattrIndex::split(b"nothing"), None);
    assert!(
        !XattrIndex::System.is_listed()
            && !XattrIndex::Encryption.is_listed()
            && XattrIndex::AclAccess.is_listed()
    );
}
