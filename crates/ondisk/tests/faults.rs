//! One damaged byte or field at a time: each fault is named, with the place it is at.

use crate::common;

use common::Image;
use uext4_ondisk::checksum::{CSUM_INIT, csum};
use uext4_ondisk::ext4::{
    DirBlock, DirBlockKind, DirFormat, Extent, ExtentIndex, ExtentNode, FileType, GroupDescriptor,
    HtreeEntry, HtreeIndex, HtreeRoot, Inode, NodeLimits, Superblock, encode_dir_entry, encode_extent_index,
    encode_extent_leaf, encode_htree_entries, encode_htree_root_info, root_depth, splice_extent_leaf,
    splice_sealed_leaf, update_extent_checksum, update_inode_checksum, verify_htree_checksum,
};
use uext4_ondisk::jbd2::JournalSuperblock;
use uext4_ondisk::{BlockRange, CorruptKind, Group, Ino, Lblk, Pblk};

const VOLUME: BlockRange = BlockRange { first: Pblk(1), end: Pblk(100_000) };

fn limits(depth: u16, first: u32, end: u32) -> NodeLimits {
    NodeLimits { depth: Some(depth), first: Lblk(first), end: Lblk(end), volume: VOLUME }
}

fn extent(logical: u32, length: u32, physical: u64) -> Extent {
    Extent { logical: Lblk(logical), length, physical: Pblk(physical), unwritten: false }
}

fn leaf(extents: &[Extent]) -> Vec<u8> {
    let mut block = vec![0; 1024];
    encode_extent_leaf(&mut block, 0, extents).unwrap();
    block
}

fn leaf_fault(block: &[u8], limits: NodeLimits) -> CorruptKind {
    ExtentNode::block(block, limits, None).unwrap_err().kind
}

#[test]
fn superblock_fields() {
    let image = Image::new(16, &["-t", "ext4", "-b", "1024"]);
    let damaged = |offset: usize, value: &[u8]| {
        let mut bytes = image.superblock_bytes().to_vec();
        bytes[offset..offset + value.len()].copy_from_slice(value);
        let sum = csum(CSUM_INIT, &bytes[..0x3FC]);
        bytes[0x3FC..].copy_from_slice(&sum.to_le_bytes());
        Superblock::decode(&bytes).map(|_| ()).map_err(|fault| fault.kind)
    };
    let field = |name| Err(CorruptKind::SuperblockField(name));
    assert_eq!(damaged(0x38, &[0, 0]), Err(CorruptKind::SuperblockMagic));
    assert_eq!(damaged(0x175, &[2]), field("checksum_type"));
    assert_eq!(damaged(0x18, &[7]), field("log_block_size"));
    assert_eq!(damaged(0x1C, &[1]), field("log_cluster_size"));
    assert_eq!(damaged(0x20, &[1, 0x20]), field("blocks_per_group"));
    assert_eq!(damaged(0x20, &[0, 0, 0, 0]), field("blocks_per_group"));
    assert_eq!(damaged(0x28, &[0, 0, 0, 0]), field("inodes_per_group"));
    assert_eq!(damaged(0x00, &[1]), field("inodes_count"));
    assert_eq!(damaged(0x58, &[0x81, 0]), field("inode_size"));
    assert_eq!(damaged(0x58, &[0, 8]), field("inode_size"));
    assert_eq!(damaged(0xFE, &[32, 0]), field("desc_size"));
    assert_eq!(damaged(0x14, &[0]), field("first_data_block"));
    assert_eq!(damaged(0x14, &[0xFF; 4]), field("first_data_block"));
    assert_eq!(damaged(0x150, &[0xFF; 4]), field("blocks_count"));
    assert_eq!(damaged(0x54, &[10]), field("first_inode"));
    assert_eq!(damaged(0xCE, &[1, 1]), field("reserved_gdt_blocks"));
    assert_eq!(damaged(0x88, b"/mnt"), Ok(()));
    let mut bytes = image.superblock_bytes().to_vec();
    bytes[0x88] ^= 1;
    assert_eq!(Superblock::decode(&bytes).unwrap_err().kind, CorruptKind::SuperblockChecksum);
    assert_eq!(Superblock::peek_features(&bytes).unwrap_err().kind, CorruptKind::SuperblockChecksum);
    assert_eq!(Superblock::decode(&bytes[..1023]).unwrap_err().kind, CorruptKind::Truncated("superblock"));
}

#[test]
fn descriptors_and_bitmaps() {
    let image = Image::new(40, &["-t", "ext4", "-b", "1024"]);
    let sb = image.superblock();
    let group = Group(3);
    let at = image.descriptor_offset(&sb, group);
    let mut bytes = image.bytes[at..at + 64].to_vec();
    let good = GroupDescriptor::decode(&bytes, group, &sb).unwrap();
    let fault = GroupDescriptor::decode(&bytes, Group(2), &sb).unwrap_err();
    assert_eq!((fault.kind, fault.place.group), (CorruptKind::GroupDescriptorChecksum, Some(Group(2))));
    for (name, descriptor) in [
        ("block_bitmap", GroupDescriptor { block_bitmap: Pblk(1), ..good }),
        ("inode_bitmap", GroupDescriptor { inode_bitmap: Pblk(2), ..good }),
        ("inode_table", GroupDescriptor { inode_table: Pblk(40 << 10), ..good }),
        ("inode_table", GroupDescriptor { inode_table: Pblk((40 << 10) - 1), ..good }),
        ("block_bitmap", GroupDescriptor { block_bitmap: Pblk(u64::MAX), ..good }),
    ] {
        descriptor.encode(&mut bytes, group, &sb).unwrap();
        let fault = GroupDescriptor::decode(&bytes, group, &sb).unwrap_err();
        assert_eq!(fault.kind, CorruptKind::GroupDescriptorField(name), "{descriptor:?}");
    }
    let first = image.descriptor(&sb, Group(0));
    let mut bitmap = image.block(&sb, first.block_bitmap).to_vec();
    first.verify_block_bitmap(&bitmap, Group(0), &sb).unwrap();
    bitmap[100] ^= 4;
    let fault = first.verify_block_bitmap(&bitmap, Group(0), &sb).unwrap_err();
    assert_eq!(fault.kind, CorruptKind::BlockBitmapChecksum);
    assert_eq!(fault.place.block, Some(first.block_bitmap));
    let mut bitmap = image.block(&sb, first.inode_bitmap).to_vec();
    bitmap[0] ^= 4;
    let fault = first.verify_inode_bitmap(&bitmap, Group(0), &sb).unwrap_err();
    assert_eq!(fault.kind, CorruptKind::InodeBitmapChecksum);
    let short = first.verify_inode_bitmap(&bitmap[..10], Group(0), &sb).unwrap_err();
    assert_eq!(short.kind, CorruptKind::Truncated("inode bitmap"));
}

/// An edit flips bits of a bitmap and adjusts its checksum by them. Many bits are summed anew.
#[test]
fn a_bitmap_checksum_adjusted_for_flipped_bits_is_the_right_one() {
    for arguments in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext4", "-b", "4096", "-N", "1000"]] {
        let image = Image::new(40, arguments);
        let sb = image.superblock();
        let geometry = &sb.geometry;
        let counts = [geometry.clusters_per_group(), geometry.inodes_per_group()];
        assert_ne!(counts[0], counts[1]);
        let mut descriptor = image.descriptor(&sb, Group(0));
        let places = [descriptor.block_bitmap, descriptor.inode_bitmap];
        let mut bitmaps = places.map(|place| image.block(&sb, place).to_vec());
        let mut adjusted = 0;
        for round in 0..3000_u32 {
            let which = (round % 2) as usize;
            let count = counts[which];
            // Ends of bytes and of the bitmap, and places anywhere.
            let first = [0, 8, round.wrapping_mul(2_654_435_761) % count][(round / 2 % 3) as usize];
            let longest = if round % 7 == 0 { count } else { 40 };
            let length = 1 + round.wrapping_mul(40_503) % longest;
            let end = if round % 11 == 0 { first.max(count - 9) + 1 } else { (first + length).min(count) };
            for bit in first..end {
                bitmaps[which][bit as usize / 8] ^= 1 << (bit % 8);
            }
            let (bitmap, bits) = (&bitmaps[which], first..end);
            if which == 0 {
                descriptor.flip_block_bitmap_csum(bitmap, bits, &sb).unwrap();
                descriptor.verify_block_bitmap(bitmap, Group(0), &sb).unwrap();
            } else {
                descriptor.flip_inode_bitmap_csum(bitmap, bits, &sb).unwrap();
                descriptor.verify_inode_bitmap(bitmap, Group(0), &sb).unwrap();
            }
            adjusted += u32::from(end - first < 3000);
        }
        assert!(adjusted > 2000, "{adjusted}");
    }
}

#[test]
fn narrow_descriptors_refuse_wide_values() {
    let image = Image::new(16, &["-t", "ext4", "-b", "1024", "-O", "^64bit"]);
    let sb = image.superblock();
    let good = image.descriptor(&sb, Group(0));
    let mut bytes = [0; 32];
    for (field, descriptor) in [
        ("inode_table", GroupDescriptor { inode_table: Pblk(1 << 32), ..good }),
        ("free_inodes", GroupDescriptor { free_inodes: 1 << 16, ..good }),
    ] {
        assert_eq!(descriptor.encode(&mut bytes, Group(0), &sb).unwrap_err().field, field);
    }
    assert_eq!(good.encode(&mut bytes[..31], Group(0), &sb).unwrap_err().field, "length");
    let mut wide = sb.clone();
    wide.free_blocks = 1 << 32;
    assert_eq!(wide.encode(&mut [0; 1024]).unwrap_err().field, "free_blocks");
    wide.free_blocks = 0;
    wide.times.checked = 1 << 40;
    assert_eq!(wide.encode(&mut [0; 1024]).unwrap_err().field, "check_time");
}

#[test]
fn inode_fields() {
    let image = Image::new(16, &["-t", "ext4", "-b", "1024"]);
    let sb = image.superblock();
    let at = image.inode_offset(&sb, Ino::ROOT);
    let record = image.bytes[at..at + 256].to_vec();
    let damaged = |offset: usize, value: &[u8], repair: bool| {
        let mut bytes = record.clone();
        bytes[offset..offset + value.len()].copy_from_slice(value);
        if repair {
            update_inode_checksum(&mut bytes, Ino::ROOT, &sb).unwrap();
        }
        let fault = Inode::decode(&bytes, Ino::ROOT, &sb).unwrap_err();
        assert_eq!(fault.place.inode, Some(Ino::ROOT));
        fault.kind
    };
    assert_eq!(damaged(0, &[0], false), CorruptKind::InodeChecksum);
    assert_eq!(damaged(200, &[9], false), CorruptKind::InodeChecksum);
    // The kernel leaves the checksums of volumes alone that another system made.
    let mut stale = record.clone();
    stale[8] ^= 1;
    let foreign = Superblock { creator_os: 3, ..sb.clone() };
    let inode = Inode::decode(&stale, Ino::ROOT, &foreign).unwrap();
    let mut encoded = stale.clone();
    inode.encode(&mut encoded, Ino::ROOT, &foreign).unwrap();
    assert_eq!(encoded, stale);
    assert_eq!(damaged(0x80, &[132, 0], true), CorruptKind::InodeField("extra_isize"));
    assert_eq!(damaged(0x80, &[30, 0], true), CorruptKind::InodeField("extra_isize"));
    assert_eq!(damaged(0x68, &[0xFF; 4], true), CorruptKind::InodeField("xattr_block"));
    assert_eq!(Inode::decode(&record, Ino(0), &sb).unwrap_err().kind, CorruptKind::InodeNumber);
    assert_eq!(Inode::decode(&record, Ino(u32::MAX), &sb).unwrap_err().kind, CorruptKind::InodeNumber);
    assert_eq!(Inode::decode(&record[..255], Ino(2), &sb).unwrap_err().kind, CorruptKind::Truncated("inode"));
    // A regular file of 2^63 bytes.
    let mut bytes = record.clone();
    bytes[0..2].copy_from_slice(&0o100_644_u16.to_le_bytes());
    bytes[0x6C..0x70].copy_from_slice(&0x8000_0000_u32.to_le_bytes());
    update_inode_checksum(&mut bytes, Ino::ROOT, &sb).unwrap();
    assert_eq!(Inode::decode(&bytes, Ino::ROOT, &sb).unwrap_err().kind, CorruptKind::InodeField("size"));
}

#[test]
fn inode_values_that_do_not_fit() {
    let image = Image::new(16, &["-t", "ext4", "-b", "1024"]);
    let sb = image.superblock();
    let good = image.inode(&sb, Ino::ROOT);
    let fault = |inode: &Inode| inode.encode(&mut [0; 256], Ino::ROOT, &sb).unwrap_err().field;
    assert_eq!(fault(&Inode { size: 1 << 32, ..good.clone() }), "size");
    assert_eq!(fault(&Inode { blocks_raw: 1 << 48, ..good.clone() }), "blocks");
    assert_eq!(fault(&Inode { xattr_block: Pblk(1 << 48), ..good.clone() }), "xattr_block");
    assert_eq!(fault(&Inode { extra_isize: 132, ..good.clone() }), "extra_isize");
    assert_eq!(fault(&Inode { extra_isize: 16, ..good.clone() }), "created");
    let mut late = good.clone();
    late.modified.seconds = (1 << 34) - (1 << 31);
    assert_eq!(fault(&late), "modified");
    late.modified.seconds -= 1;
    let mut bytes = [0; 256];
    late.encode(&mut bytes, Ino::ROOT, &sb).unwrap();
    assert_eq!(Inode::decode(&bytes, Ino::ROOT, &sb).unwrap(), late);
}

#[test]
fn extent_nodes() {
    let good = leaf(&[extent(10, 5, 50), extent(15, 5, 90)]);
    ExtentNode::block(&good, limits(0, 10, 20), None).unwrap();
    let changed = |offset: usize, value: &[u8]| {
        let mut block = good.clone();
        block[offset..offset + value.len()].copy_from_slice(value);
        leaf_fault(&block, limits(0, 10, 20))
    };
    assert_eq!(changed(0, &[0]), CorruptKind::ExtentMagic);
    assert_eq!(changed(2, &[85]), CorruptKind::ExtentEntries);
    assert_eq!(changed(4, &[85]), CorruptKind::ExtentCapacity);
    assert_eq!(changed(4, &[0]), CorruptKind::ExtentCapacity);
    assert_eq!(changed(6, &[1]), CorruptKind::ExtentDepth);
    assert_eq!(changed(16, &[0, 0]), CorruptKind::ExtentEmpty);
    assert_eq!(changed(16, &[6, 0]), CorruptKind::ExtentOrder);
    assert_eq!(changed(18, &[0xFF, 0xFF]), CorruptKind::ExtentPhysical);
    assert_eq!(leaf_fault(&good, limits(1, 10, 20)), CorruptKind::ExtentDepth);
    assert_eq!(leaf_fault(&good, limits(0, 11, 20)), CorruptKind::ExtentRange);
    assert_eq!(leaf_fault(&good, limits(0, 10, 19)), CorruptKind::ExtentRange);
    let whole = limits(0, 0, u32::MAX);
    assert_eq!(leaf_fault(&leaf(&[extent(9, 1, 5), extent(3, 1, 5)]), whole), CorruptKind::ExtentOrder);
    assert_eq!(leaf_fault(&leaf(&[extent(0, 2, 99_999)]), whole), CorruptKind::ExtentPhysical);
    assert_eq!(leaf_fault(&leaf(&[extent(0, 1, 0)]), whole), CorruptKind::ExtentPhysical);
    // The last block number is never mapped, and a length must not pass 2^32.
    ExtentNode::block(&leaf(&[extent(u32::MAX - 1, 1, 5)]), whole, None).unwrap();
    assert_eq!(leaf_fault(&leaf(&[extent(u32::MAX, 1, 5)]), whole), CorruptKind::ExtentRange);
    assert_eq!(leaf_fault(&leaf(&[extent(u32::MAX - 5, 32768, 5)]), whole), CorruptKind::ExtentRange);
    let fault = ExtentNode::block(&leaf(&[extent(7, 1, 0)]), whole, None).unwrap_err();
    assert_eq!(fault.place.lblk, Some(Lblk(7)));
}

#[test]
fn extent_indexes_and_roots() {
    let index = |logical, child| ExtentIndex { logical: Lblk(logical), child: Pblk(child) };
    let node = |depth, indexes: &[ExtentIndex]| {
        let mut block = vec![0; 1024];
        encode_extent_index(&mut block, depth, 0, indexes).unwrap();
        block
    };
    let whole = limits(2, 0, u32::MAX);
    let good = node(2, &[index(0, 7), index(100, 8)]);
    let opened = ExtentNode::block(&good, whole, None).unwrap();
    let first = opened.child_limits(0).unwrap();
    assert_eq!((first.depth, first.first, first.end), (Some(1), Lblk(0), Lblk(100)));
    assert_eq!(opened.child_limits(1).unwrap().end, Lblk(u32::MAX));
    assert_eq!(leaf_fault(&node(2, &[]), whole), CorruptKind::ExtentEntries);
    assert_eq!(leaf_fault(&node(2, &[index(5, 7), index(5, 8)]), whole), CorruptKind::ExtentOrder);
    assert_eq!(leaf_fault(&node(2, &[index(5, 100_000)]), whole), CorruptKind::ExtentPhysical);
    assert_eq!(leaf_fault(&node(2, &[index(5, 7)]), limits(2, 6, 9)), CorruptKind::ExtentRange);
    assert_eq!(leaf_fault(&node(2, &[index(9, 7)]), limits(2, 6, 9)), CorruptKind::ExtentRange);
    let mut root = [0; 60];
    encode_extent_leaf(&mut root, 0, &[]).unwrap();
    let any = NodeLimits { depth: None, ..whole };
    assert!(ExtentNode::root(&root, any).unwrap().is_empty());
    root[6] = 6;
    root[2] = 1;
    assert_eq!(ExtentNode::root(&root, any).unwrap_err().kind, CorruptKind::ExtentDepth);
    assert!(encode_extent_leaf(&mut root, 0, &[extent(0, 1, 5); 5]).is_err());
    assert!(encode_extent_leaf(&mut root, 0, &[extent(0, 32769, 5)]).is_err());
    assert!(encode_extent_leaf(&mut root, 0, &[Extent { unwritten: true, ..extent(0, 32768, 5) }]).is_err());
    assert!(encode_extent_leaf(&mut root, 0, &[extent(0, 1, 1 << 48)]).is_err());
    for (length, unwritten) in [(32768, false), (32767, true), (1, true)] {
        let edge = Extent { length, unwritten, ..extent(0, 1, (1 << 48) - 32768) };
        encode_extent_leaf(&mut root, 0, &[edge]).unwrap();
        let volume = BlockRange { first: Pblk(1), end: Pblk(1 << 48) };
        let node = ExtentNode::root(&root, NodeLimits { volume, ..any }).unwrap();
        assert_eq!(node.extent(0), Some(edge));
    }
}

fn format(checksums: bool) -> DirFormat {
    DirFormat { block_size: 1024, checksums, file_types: true, inodes_count: 100, large_dir: false }
}

#[test]
fn directory_entries() {
    let plain = format(false);
    let mut block = vec![0; 1024];
    encode_dir_entry(&mut block, 0, 12, Some(Ino(2)), b".", Some(FileType::Directory), &plain).unwrap();
    encode_dir_entry(&mut block, 12, 500, None, b"", None, &plain).unwrap();
    encode_dir_entry(&mut block, 512, 512, Some(Ino(100)), b"name", Some(FileType::Fifo), &plain).unwrap();
    let entries = |block: &[u8], format: &DirFormat| -> Result<Vec<(u32, Vec<u8>)>, CorruptKind> {
        let block = DirBlock::new(block, DirBlockKind::Linear, format).map_err(|fault| fault.kind)?;
        let entries = block.entries().map(|entry| entry.map(|entry| (entry.inode.0, entry.name.to_vec())));
        entries.collect::<Result<_, _>>().map_err(|fault| fault.kind)
    };
    assert_eq!(entries(&block, &plain), Ok(vec![(2, b".".to_vec()), (100, b"name".to_vec())]));
    assert_eq!(DirBlock::new(&block, DirBlockKind::Linear, &plain).unwrap().slots().count(), 3);
    let changed = |offset: usize, value: &[u8]| {
        let mut block = block.clone();
        block[offset..offset + value.len()].copy_from_slice(value);
        entries(&block, &plain).unwrap_err()
    };
    for length in [0_u16, 4, 8, 13, 1020, 1028, 1016] {
        assert_eq!(changed(4, &length.to_le_bytes()), CorruptKind::DirEntryLength, "{length}");
    }
    assert_eq!(changed(6, &[5]), CorruptKind::DirEntryLength);
    assert_eq!(changed(6, &[0]), CorruptKind::DirEntryName);
    assert_eq!(changed(512, &[101]), CorruptKind::DirEntryInode);
    // With checksums the last record must leave room for the tail.
    assert_eq!(entries(&block, &format(true)), Err(CorruptKind::DirEntryLength));
    assert_eq!(entries(&block[..1023], &plain), Err(CorruptKind::Truncated("directory block")));
    let refused = |offset, length, name: &[u8]| {
        encode_dir_entry(&mut [0; 1024], offset, length, Some(Ino(1)), name, None, &plain).unwrap_err().field
    };
    assert_eq!(refused(0, 12, b"12345"), "record length");
    assert_eq!(refused(1016, 12, b"1"), "record length");
    assert_eq!(refused(0, 14, b"1"), "record length");
    assert_eq!(refused(u32::MAX, 12, b"1"), "record length");
    assert_eq!(refused(0, 12, b""), "name");
    assert_eq!(refused(0, 300, &[b'x'; 256]), "name");
}

#[test]
fn hash_trees() {
    let format = format(true);
    let entry = |hash, child| HtreeEntry { hash, child: Lblk(child) };
    let list = [entry(0, 1), entry(100, 2), entry(201, 3), entry(300, 4)];
    let mut root = vec![0; 1024];
    encode_dir_entry(&mut root, 0, 12, Some(Ino(2)), b".", Some(FileType::Directory), &format).unwrap();
    encode_dir_entry(&mut root, 12, 1012, Some(Ino(2)), b"..", Some(FileType::Directory), &format).unwrap();
    let version = uext4_ondisk::ext4::HashVersion::HalfMd4;
    encode_htree_root_info(&mut root, version, 1).unwrap();
    encode_htree_entries(&mut root, DirBlockKind::HtreeRoot, &list, &format).unwrap();
    uext4_ondisk::ext4::update_htree_checksum(&mut root, 5).unwrap();
    verify_htree_checksum(&root, DirBlockKind::HtreeRoot, 5).unwrap();
    let decoded = HtreeRoot::decode(&root, false, &format).unwrap();
    assert_eq!((decoded.hash_version, decoded.indirect_levels, decoded.index.limit()), (version, 1, 123));
    assert_eq!(decoded.index.entries().collect::<Vec<_>>(), list);
    for (hash, position) in [(0, 0), (99, 0), (100, 1), (200, 1), (202, 2), (u32::MAX, 3)] {
        assert_eq!(decoded.index.find(hash), position, "{hash}");
    }
    // The third child starts in the middle of the names with hash 200.
    assert!(decoded.index.continues(1, 200) && !decoded.index.continues(1, 198));
    assert!(!decoded.index.continues(3, 300));
    let fault = |offset: usize, value: &[u8]| {
        let mut block = root.clone();
        block[offset..offset + value.len()].copy_from_slice(value);
        HtreeRoot::decode(&block, false, &format).map(|_| ()).unwrap_err().kind
    };
    assert_eq!(fault(28, &[9]), CorruptKind::HtreeRoot("hash_version"));
    assert_eq!(fault(29, &[16]), CorruptKind::HtreeRoot("info_length"));
    assert_eq!(fault(30, &[2]), CorruptKind::HtreeDepth);
    assert_eq!(fault(31, &[1]), CorruptKind::HtreeRoot("flags"));
    assert_eq!(fault(32, &[124]), CorruptKind::HtreeLimits);
    assert_eq!(fault(34, &[0]), CorruptKind::HtreeLimits);
    assert_eq!(fault(34, &[124]), CorruptKind::HtreeLimits);
    let kind = DirBlockKind::HtreeRoot;
    root[45] ^= 1;
    assert_eq!(verify_htree_checksum(&root, kind, 5).unwrap_err().kind, CorruptKind::HtreeChecksum);
    root[12 + 4] = 0;
    assert_eq!(
        verify_htree_checksum(&root, kind, 5).unwrap_err().kind,
        CorruptKind::HtreeRoot("dot entries")
    );
    assert_eq!(HtreeIndex::decode_node(&root, &format).unwrap_err().kind, CorruptKind::HtreeNode);
    let mut node = vec![0; 1024];
    encode_htree_entries(&mut node, DirBlockKind::HtreeNode, &list, &format).unwrap();
    assert_eq!(HtreeIndex::decode_node(&node, &format).unwrap().limit(), 126);
    assert_eq!(DirBlockKind::of(&node, true, Lblk(1), &format), DirBlockKind::HtreeNode);
    assert_eq!(DirBlockKind::of(&node, false, Lblk(1), &format), DirBlockKind::Linear);
    assert!(encode_htree_entries(&mut node, DirBlockKind::HtreeNode, &[list[0]; 127], &format).is_err());
    assert!(encode_htree_entries(&mut node, DirBlockKind::HtreeNode, &[], &format).is_err());
}

#[test]
fn journal_superblocks() {
    let image = Image::new(16, &["-t", "ext4", "-b", "1024"]);
    let sb = image.superblock();
    let mut bytes = image.block(&sb, image.file_blocks(&sb, Ino::JOURNAL)[0].1).to_vec();
    let fault = |bytes: &[u8]| JournalSuperblock::decode(bytes).unwrap_err().kind;
    let changed = |offset: usize, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[offset..offset + value.len()].copy_from_slice(value);
        fault(&bytes)
    };
    assert_eq!(changed(0, &[0]), CorruptKind::JournalMagic);
    assert_eq!(changed(7, &[5]), CorruptKind::JournalBlockType);
    assert_eq!(changed(0xF, &[1]), CorruptKind::JournalField("block_size"));
    assert_eq!(changed(0x14, &[0, 0, 0, 0]), CorruptKind::JournalField("first"));
    assert_eq!(changed(0x10, &[0, 0, 0, 1]), CorruptKind::JournalField("first"));
    assert_eq!(changed(0x1C, &[0, 1, 0, 0]), CorruptKind::JournalField("start"));
    assert_eq!(changed(0x2B, &[0x18]), CorruptKind::JournalField("features"));
    assert_eq!(changed(0x2B, &[0x10]), CorruptKind::JournalField("checksum_type"));
    assert_eq!(fault(&bytes[..1023]), CorruptKind::Truncated("journal superblock"));
    // Block type and lowest byte of the incompatible features: those of another layout do not go with version 1.
    let contradicts = |version: u8, incompat: u8| {
        let mut bytes = bytes.clone();
        (bytes[7], bytes[0x2B]) = (version, incompat);
        JournalSuperblock::decode(&bytes).unwrap().contradicts_version()
    };
    assert_eq!(
        [0, 1, 2, 4, 5, 8, 0x10, 0x20, 0x40].map(|bits| contradicts(3, bits)),
        [false, false, true, false, false, true, true, true, true]
    );
    assert_eq!([0, 2, 0x20, 0x40].map(|bits| contradicts(4, bits)), [false; 4]);
    let mut journal = JournalSuperblock::decode(&bytes).unwrap();
    journal.features.incompat = uext4_ondisk::jbd2::JournalIncompat::from_bits_retain(0x30);
    journal.checksum_type = 4;
    journal.errno = -5;
    journal.encode(&mut bytes).unwrap();
    assert_eq!(JournalSuperblock::decode(&bytes).unwrap(), journal);
    assert_eq!((journal.fast_commit_blocks(), journal.log_end()), (256, journal.blocks - 256));
    assert_eq!(journal.features.names(), ["journal_checksum_v3", "fast_commit"]);
    bytes[0x200] ^= 1;
    assert_eq!(fault(&bytes), CorruptKind::JournalChecksum);
    journal.fast_commit_blocks_raw = journal.blocks;
    assert_eq!(journal.encode(&mut bytes).unwrap_err().field, "layout");
}

/// The depth of a tree is that of its root, whatever its entries are.
#[test]
fn the_head_of_a_root_says_how_deep_its_tree_is() {
    let mut i_block = [0; 60];
    assert!(root_depth(&i_block).is_err(), "no head");
    encode_extent_leaf(&mut i_block, 0, &[extent(0, 1, 5)]).unwrap();
    assert_eq!(root_depth(&i_block), Ok(0));
    for depth in 1..=5 {
        encode_extent_index(&mut i_block, depth, 0, &[]).unwrap();
        i_block[2] = 1;
        i_block[12..].fill(0xff);
        assert_eq!(root_depth(&i_block), Ok(depth));
    }
    i_block[6] = 6;
    assert!(root_depth(&i_block).is_err(), "deeper than any");
}

/// The same in leaves of every length, where more entries move than a checksum is made from.
#[test]
fn spliced_entries_of_long_leaves_are_as_encoded_ones() {
    let all: Vec<Extent> = (0..340).map(|at| extent(10 * at, 3, 1000 + 50 * u64::from(at))).collect();
    let counts = [1, 2, 168, 169, 170, 171, 172, 338, 339, 340];
    for (count, made) in counts.into_iter().flat_map(|count| (0..=3_usize).map(move |made| (count, made))) {
        for start in (0..count).step_by(7) {
            let taken = (start / 7 % 4).min(count - start);
            if count - taken + made > all.len() {
                continue;
            }
            let new: Vec<Extent> = (0..made as u32).map(|at| extent(10 * start as u32 + at, 1, 7)).collect();
            let expected = [&all[..start], &new, &all[start + taken..count]].concat();
            let (mut sealed, mut encoded) = (vec![0; 4096], vec![0; 4096]);
            encode_extent_leaf(&mut sealed, 5, &all[..count]).unwrap();
            encode_extent_leaf(&mut encoded, 5, &all[..count]).unwrap();
            update_extent_checksum(&mut sealed, 77).unwrap();
            splice_sealed_leaf(&mut sealed, start..start + taken, &new, 77).unwrap();
            encode_extent_leaf(&mut encoded, 5, &expected).unwrap();
            update_extent_checksum(&mut encoded, 77).unwrap();
            assert!(sealed == encoded, "{taken} at {start} of {count}, {made}");
        }
    }
}

/// Entries in place of others, anywhere in a leaf: as if the leaf was encoded anew.
#[test]
fn spliced_entries_are_as_encoded_ones() {
    let all: Vec<Extent> = (0..6).map(|at| extent(10 * at, 3, 1000 + 50 * u64::from(at))).collect();
    let new: Vec<Extent> = (0..3).map(|at| Extent { unwritten: true, ..extent(at, 1, 7) }).collect();
    for start in 0..=all.len() {
        for end in start..=all.len() {
            for made in 0..=new.len() {
                let (mut spliced, mut encoded) = (vec![0; 1024], vec![0; 1024]);
                encode_extent_leaf(&mut spliced, 5, &all).unwrap();
                encode_extent_leaf(&mut encoded, 5, &all).unwrap();
                let expected = [&all[..start], &new[..made], &all[end..]].concat();
                encode_extent_leaf(&mut encoded, 5, &expected).unwrap();
                splice_extent_leaf(&mut spliced, start..end, &new[..made]).unwrap();
                assert!(spliced == encoded, "{start}..{end}, {made}");
                let mut sealed = vec![0; 1024];
                encode_extent_leaf(&mut sealed, 5, &all).unwrap();
                update_extent_checksum(&mut sealed, 77).unwrap();
                splice_sealed_leaf(&mut sealed, start..end, &new[..made], 77).unwrap();
                update_extent_checksum(&mut encoded, 77).unwrap();
                assert!(sealed == encoded, "the checksum of {start}..{end}, {made}");
            }
        }
    }
    let mut leaf = vec![0; 1024];
    encode_extent_leaf(&mut leaf, 0, &all).unwrap();
    let before = leaf.clone();
    assert!(splice_extent_leaf(&mut leaf, 0..7, &[]).is_err(), "entries that are not there");
    assert!(splice_extent_leaf(&mut leaf, 7..7, &[]).is_err());
    #[allow(clippy::reversed_empty_ranges, reason = "what must be refused")]
    let turned = splice_extent_leaf(&mut leaf, 3..2, &[]);
    assert!(turned.is_err());
    assert!(splice_extent_leaf(&mut leaf, 6..6, &[extent(90, 1, 5); 79]).is_err(), "more than fit");
    assert!(splice_extent_leaf(&mut leaf, 1..2, &[extent(10, 1, 5), extent(11, 0, 5)]).is_err());
    assert!(splice_extent_leaf(&mut leaf[..20], 0..0, &[]).is_err(), "a block that is too short");
    assert_eq!(leaf, before);
    splice_extent_leaf(&mut leaf, 6..6, &[extent(90, 1, 5); 78]).unwrap();
    encode_extent_index(&mut leaf, 1, 0, &[]).unwrap();
    assert!(splice_extent_leaf(&mut leaf, 0..0, &[]).is_err(), "no leaf");
}
