//! Any bytes, and valid records with changed bytes and a right checksum, into every decoder: an answer or a
//! typed error, never a panic or an endless loop, and what decodes encodes back to the same bytes.

use crate::common;

use std::sync::OnceLock;

use common::Image;
use proptest::collection::vec;
use proptest::prelude::*;
use uext4_ondisk::checksum::{CSUM_INIT, csum, csum_le32};
use uext4_ondisk::ext4::{
    Compat, DirBlock, DirBlockKind, DirFormat, ExtentNode, Features, Geometry, GeometryFields,
    GroupDescriptor, HashVersion, HtreeIndex, HtreeRoot, Incompat, IndirectLayout, Inode, MmpBlock,
    NodeLimits, PointerBlock, RoCompat, Superblock, dir_hash, encode_dir_tail, encode_extent_index,
    encode_extent_leaf, update_dir_checksum, update_extent_checksum, update_htree_checksum,
    update_inode_checksum, verify_dir_checksum, verify_htree_checksum,
};
use uext4_ondisk::jbd2::{BlockHeader, JournalSuperblock};
use uext4_ondisk::{Group, Ino, Lblk, Pblk};

/// Volumes whose records are mutated: checksums and wide fields, neither, and the largest blocks.
fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let variants: [&[&str]; 3] = [
            &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode", "-g", "1024"],
            &["-t", "ext3", "-b", "1024", "-I", "128", "-O", "^resize_inode"],
            &["-t", "ext4", "-b", "65536", "-O", "^has_journal,^resize_inode,large_dir"],
        ];
        variants.iter().map(|arguments| Image::new(12, arguments)).collect()
    })
}

type Changes = Vec<(u16, u8)>;

/// Bytes to change: mostly a few, near the start as often as anywhere.
fn changes() -> impl Strategy<Value = Changes> {
    vec((prop_oneof![0_u16..64, 0_u16..1024, any::<u16>()], any::<u8>()), 0..12)
}

fn apply(bytes: &mut [u8], changes: &Changes) {
    for (offset, value) in changes {
        let length = bytes.len();
        bytes[usize::from(*offset) % length] = *value;
    }
}

/// Calls everything that a layout answers, at its edges and at a random place.
fn drive_geometry(sb: &Superblock, number: u64) {
    let geometry = &sb.geometry;
    let random = u32::from_le_bytes(number.to_le_bytes()[..4].try_into().unwrap());
    let count = geometry.group_count();
    for group in [0, 1, count - 1, count, random, u32::MAX].map(Group) {
        let exists = group.0 < count;
        assert_eq!(geometry.group_first_block(group).is_some(), exists);
        assert_eq!(geometry.descriptor_position(group).is_some(), exists);
        assert_eq!(geometry.group_blocks(group).is_some_and(|blocks| blocks > 0), exists);
        assert_eq!(geometry.group_clusters(group).is_some(), exists);
        geometry.has_superblock(group);
        geometry.base_metadata_blocks(group);
        geometry.descriptor_block(group.0);
    }
    for inode in [0, 1, geometry.inodes_count(), random, u32::MAX].map(Ino) {
        let place = geometry.group_of_inode(inode);
        assert_eq!(place.is_some(), inode.0 != 0 && inode.0 <= geometry.inodes_count());
        if let Some((group, index)) = place {
            assert!(group.0 < count && index < geometry.inodes_per_group());
            let (block, offset) = geometry.inode_table_position(index);
            assert!(block < geometry.inode_table_blocks());
            assert!(offset + u32::from(geometry.inode_size()) <= geometry.block_size());
        }
    }
    for block in [0, 1, geometry.blocks_count() - 1, geometry.blocks_count(), number, u64::MAX].map(Pblk) {
        if let Some((group, offset)) = geometry.group_of_block(block) {
            assert!(group.0 < count && offset < geometry.blocks_per_group());
        }
    }
    assert!(geometry.usable_blocks().first <= geometry.usable_blocks().end);
    assert!(sb.groups_per_flex().is_power_of_two());
    let _ = (sb.label(), sb.last_mount_point(), sb.on_error(), sb.journal_inode(), sb.features.names());
    let _ = (geometry.cluster_blocks(), geometry.clusters_per_group(), geometry.superblock_position());
}

fn drive_node(node: &ExtentNode<'_>) {
    let mut end = node.limits().first;
    for extent in node.extents() {
        assert!(extent.logical >= end && extent.length > 0);
        assert!(node.limits().volume.contains(extent.physical, u64::from(extent.length)));
        end = extent.logical_end();
    }
    assert!(end <= node.limits().end);
    for (position, index) in node.indexes().enumerate() {
        let limits = node.child_limits(position).unwrap();
        assert!(limits.first < limits.end && limits.depth < Some(node.depth()));
        assert_eq!(limits.first, index.logical);
        assert_eq!(node.find_index(index.logical), Some(position));
    }
    let _ = (
        node.find_extent(Lblk(0)),
        node.find_index(Lblk(u32::MAX)),
        node.extent(9999),
        node.child_limits(9999),
    );
}

fn drive_index(index: &HtreeIndex<'_>, hash: u32) {
    assert!((1..=usize::from(index.limit())).contains(&index.len()));
    let position = index.find(hash);
    assert!(position < index.len());
    let _ = (index.continues(position, hash), index.continues(usize::MAX, hash), index.entry(usize::MAX));
    assert_eq!(index.entries().count(), index.len());
}

fn drive_dir(block: &DirBlock<'_>, length: usize) {
    let mut steps = 0;
    let mut end = 0;
    for slot in block.slots() {
        steps += 1;
        if let Ok(slot) = slot {
            assert_eq!(slot.offset, end);
            end = slot.offset + slot.record_length;
            assert!(slot.used_length <= slot.record_length);
        }
    }
    assert!(steps <= length / 12 + 1 && usize::try_from(end).unwrap() <= length);
    for entry in block.entries().flatten() {
        assert!(!entry.name.is_empty() && entry.inode.0 != 0);
        let _ = (entry.is_dot(), entry.is_dot_dot(), entry.has_valid_name());
    }
}

/// All decoders of blocks, on the same bytes.
/// Every number of a pointer block stands in exactly one run, and a way leads where it was asked to.
fn drive_pointers(bytes: &[u8], sb: &Superblock, block: u32) {
    let layout = IndirectLayout::new(sb.geometry.block_size());
    if let Some(path) = layout.path(Lblk(block)) {
        let windows = (0..=path.depth()).map(|level| path.window(level));
        assert!(windows.clone().all(|(first, end)| first < end && end <= layout.blocks()));
        assert!(windows.skip(1).all(|(first, end)| (first..end).contains(&u64::from(block))));
    }
    let Ok(pointers) = PointerBlock::new(bytes, layout) else { return };
    let window = (u64::from(block), u64::from(block) + u64::from(pointers.count()));
    let inside = |number: &u32| u64::from(block) + u64::from(*number) < 1 << 32;
    let mapped =
        (0..pointers.count()).filter(inside).filter_map(|number| Some((number, pointers.get(number)?)));
    let listed = pointers.runs(window).flat_map(|run| {
        (0..run.length).map(move |n| (run.logical.get() - block + n, Pblk(run.physical.get() + u64::from(n))))
    });
    assert!(mapped.eq(listed));
    let at = block % pointers.count();
    let gap = pointers.gap(at);
    assert!(gap.end <= pointers.count() && gap.contains(&at) == pointers.get(at).is_none());
    assert!(gap.clone().all(|position| pointers.get(position).is_none()));
}

fn drive_block(bytes: &[u8], sb: &Superblock, seed: u32) {
    drive_pointers(bytes, sb, seed);
    let root = NodeLimits::root(sb);
    for depth in [None, Some(0), Some(1), Some(5)] {
        for seed in [None, Some(seed)] {
            if let Ok(node) = ExtentNode::block(bytes, NodeLimits { depth, ..root }, seed) {
                drive_node(&node);
            }
        }
    }
    let real = DirFormat::new(sb);
    for format in [real, DirFormat { block_size: u32::try_from(bytes.len()).unwrap_or(0), ..real }] {
        for kind in [DirBlockKind::Linear, DirBlockKind::HtreeRoot, DirBlockKind::HtreeNode] {
            if let Ok(block) = DirBlock::new(bytes, kind, &format) {
                drive_dir(&block, bytes.len());
            }
            let _ = verify_htree_checksum(bytes, kind, seed);
        }
        drive_dir(&DirBlock::inline(bytes, &format), bytes.len());
        DirBlockKind::of(bytes, true, Lblk(1), &format);
        if let Ok(root) = HtreeRoot::decode(bytes, true, &format) {
            drive_index(&root.index, seed);
        }
        if let Ok(index) = HtreeIndex::decode_node(bytes, &format) {
            drive_index(&index, seed);
        }
    }
    let _ = (verify_dir_checksum(bytes, seed), MmpBlock::decode(bytes, sb));
    let _ = (BlockHeader::find(bytes), BlockHeader::decode(bytes), JournalSuperblock::decode(bytes));
}

fn drive_inode(inode: &Inode, sb: &Superblock) {
    let _ = (
        inode.file_type(),
        inode.sectors(sb),
        inode.short_link_target(),
        inode.device(),
        inode.flags.names(),
    );
    assert!(inode.xattr_range(sb).end == usize::from(sb.geometry.inode_size()));
    if let Ok(node) = ExtentNode::root(&inode.i_block, NodeLimits::root(sb)) {
        drive_node(&node);
    }
}

/// Repairs a superblock's checksum.
fn seal_superblock(bytes: &mut [u8]) {
    let sum = csum(CSUM_INIT, &bytes[..0x3FC]);
    bytes[0x3FC..0x400].copy_from_slice(&sum.to_le_bytes());
}

/// Repairs the checksum of a descriptor.
fn seal_descriptor(bytes: &mut [u8], group: Group, sb: &Superblock) {
    let size = usize::from(sb.geometry.desc_size());
    let mut whole = bytes[..size].to_vec();
    whole[30..32].fill(0);
    let sum = csum(csum_le32(sb.checksum_seed(), group.0), &whole);
    bytes[30..32].copy_from_slice(&sum.to_le_bytes()[..2]);
}

/// Raw choices for a layout: block size, cluster size, group size, groups, inodes, record sizes, features.
type LayoutPlan = (u32, u32, u32, u64, u32, (u32, u32), (u32, u32, u32), u32);

fn layout_plan() -> impl Strategy<Value = LayoutPlan> {
    (
        0..=6_u32,
        0..=4_u32,
        1..=u32::MAX,
        prop_oneof![1..2000_u64, 1..u64::from(u32::MAX)],
        any::<u32>(),
        (0..9_u32, 0..5_u32),
        (any::<u32>(), any::<u32>(), any::<u32>()),
        any::<u32>(),
    )
}

/// A layout that satisfies every rule.
fn plausible_layout(plan: &LayoutPlan) -> (GeometryFields, Features) {
    let (log_block_size, cluster_log, group_size, groups, inodes, (inode_log, desc_log), words, last) = *plan;
    let features = Features {
        compat: Compat::from_bits_retain(words.0),
        incompat: Incompat::from_bits_retain(words.1) | Incompat::BIT64,
        ro_compat: RoCompat::from_bits_retain(words.2),
    };
    let block_size = 1024_u32 << log_block_size;
    let inode_size = (128 << inode_log).min(block_size);
    let cluster_log = if features.ro_compat.contains(RoCompat::BIGALLOC) { cluster_log } else { 0 };
    let clusters_per_group = group_size % (block_size * 8) + 1;
    let blocks_per_group = clusters_per_group << cluster_log;
    let fewest = block_size / inode_size;
    let inodes_per_group = fewest + inodes % (block_size * 8 - fewest + 1);
    // As many groups as inode numbers and byte offsets allow.
    let groups = groups.min(u64::from(u32::MAX / inodes_per_group));
    let groups = groups.min((1 << 62) / (u64::from(blocks_per_group) * u64::from(block_size)));
    let first_data_block = u32::from(log_block_size == 0 && cluster_log == 0);
    let full = groups * u64::from(blocks_per_group);
    let missing = u64::from(last % blocks_per_group);
    let fields = GeometryFields {
        inodes_count: u32::try_from(groups).unwrap() * inodes_per_group,
        blocks_count: full - missing + u64::from(first_data_block),
        first_data_block,
        log_block_size,
        log_cluster_size: log_block_size + cluster_log,
        blocks_per_group,
        clusters_per_group,
        inodes_per_group,
        revision: 1,
        first_inode: 11 + last % 100,
        inode_size: u16::try_from(inode_size).unwrap(),
        desc_size: u16::try_from(64 << desc_log).unwrap(),
        reserved_gdt_blocks: u16::try_from(last % (block_size / 4 + 1)).unwrap(),
        first_meta_bg: last % 2,
        backup_groups: [words.0 % 7, words.1],
    };
    (fields, features)
}

/// Gives one field any value; most numbers stand for none.
fn spoil(fields: &mut GeometryFields, (which, value): (usize, u32)) {
    let short = u16::from_le_bytes(value.to_le_bytes()[..2].try_into().unwrap());
    match which {
        0 => fields.inodes_count = value,
        1 => fields.blocks_count = u64::from(value) << (value % 33),
        2 => fields.first_data_block = value,
        3 => fields.log_block_size = value % 40,
        4 => fields.log_cluster_size = value % 40,
        5 => fields.blocks_per_group = value >> (value % 30),
        6 => fields.clusters_per_group = value >> (value % 30),
        7 => fields.inodes_per_group = value >> (value % 30),
        8 => fields.revision = value % 3,
        9 => fields.first_inode = value,
        10 => fields.inode_size = short,
        11 => fields.desc_size = short,
        12 => fields.reserved_gdt_blocks = short,
        13 => fields.first_meta_bg = value,
        14 => fields.blocks_per_group = 0,
        15 => fields.inodes_per_group = 0,
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..2100), number in any::<u32>()) {
        let _ = Superblock::peek_features(&bytes);
        prop_assert!(Superblock::decode(&bytes).is_err());
        for image in images() {
            let sb = image.superblock();
            let group = Group(number % sb.geometry.group_count());
            let descriptor = image.descriptor(&sb, group);
            let _ = GroupDescriptor::decode(&bytes, Group(number), &sb);
            let _ = descriptor.verify_block_bitmap(&bytes, group, &sb);
            let _ = descriptor.verify_inode_bitmap(&bytes, group, &sb);
            if let Ok(inode) = Inode::decode(&bytes, Ino(number % 4000), &sb) {
                drive_inode(&inode, &sb);
            }
            drive_block(&bytes, &sb, number);
        }
        for version in [HashVersion::Legacy, HashVersion::HalfMd4Unsigned, HashVersion::Tea] {
            let hash = dir_hash(&bytes, version, &[number; 4]).unwrap();
            prop_assert!(hash.major & 1 == 0 && hash.major != 0xFFFF_FFFE);
        }
    }

    #[test]
    fn mutated_superblocks(which in 0..3_usize, changes in changes(), number in any::<u64>()) {
        let mut bytes = images()[which].superblock_bytes().to_vec();
        apply(&mut bytes, &changes);
        seal_superblock(&mut bytes);
        let _ = Superblock::peek_features(&bytes);
        if let Ok(sb) = Superblock::decode(&bytes) {
            drive_geometry(&sb, number);
            let mut again = bytes.clone();
            sb.encode(&mut again).unwrap();
            prop_assert!(again == bytes);
        }
    }

    #[test]
    fn random_layouts(plan in layout_plan(), fault in (0..40_usize, any::<u32>()), number in any::<u64>()) {
        let (mut fields, features) = plausible_layout(&plan);
        let plausible = Geometry::new(fields, &features);
        prop_assert!(plausible.is_ok(), "{:?} {:?}", plausible, fields);
        spoil(&mut fields, fault);
        for geometry in [plausible, Geometry::new(fields, &features)].into_iter().flatten() {
            let sb = Superblock { geometry, features, ..images()[0].superblock() };
            drive_geometry(&sb, number);
        }
    }

    #[test]
    fn mutated_descriptors(which in 0..3_usize, changes in changes(), number in any::<u32>()) {
        let image = &images()[which];
        let sb = image.superblock();
        let group = Group(number % sb.geometry.group_count());
        let at = image.descriptor_offset(&sb, group);
        let mut bytes = image.bytes[at..at + usize::from(sb.geometry.desc_size())].to_vec();
        apply(&mut bytes, &changes);
        if sb.features.metadata_csum() {
            seal_descriptor(&mut bytes, group, &sb);
        }
        if let Ok(descriptor) = GroupDescriptor::decode(&bytes, group, &sb) {
            let mut again = bytes.clone();
            descriptor.encode(&mut again, group, &sb).unwrap();
            prop_assert!(again == bytes);
        }
    }

    #[test]
    fn mutated_inodes(which in 0..3_usize, number in 1..12_u32, changes in changes()) {
        let image = &images()[which];
        let sb = image.superblock();
        let at = image.inode_offset(&sb, Ino(number));
        let mut bytes = image.bytes[at..at + usize::from(sb.geometry.inode_size())].to_vec();
        apply(&mut bytes, &changes);
        update_inode_checksum(&mut bytes, Ino(number), &sb).unwrap();
        if let Ok(inode) = Inode::decode(&bytes, Ino(number), &sb) {
            drive_inode(&inode, &sb);
            let mut again = bytes.clone();
            inode.encode(&mut again, Ino(number), &sb).unwrap();
            prop_assert!(again == bytes);
        }
    }

    #[test]
    fn mutated_extent_nodes(
        starts in vec((1_u32..500, 1_u32..200, any::<bool>()), 0..84),
        depth in 0_u16..6,
        changes in changes(),
        seed in any::<u32>(),
    ) {
        let sb = images()[0].superblock();
        let mut block = vec![0; 1024];
        let mut next = 0;
        let mut extents = Vec::new();
        let mut indexes = Vec::new();
        for (gap, length, unwritten) in starts {
            let logical = Lblk(next + gap);
            let physical = Pblk(u64::from(length) + 5);
            extents.push(uext4_ondisk::ext4::Extent { logical, length, physical, unwritten });
            indexes.push(uext4_ondisk::ext4::ExtentIndex { logical, child: physical });
            next = logical.0 + length;
        }
        let limits = NodeLimits { depth: Some(depth), ..NodeLimits::root(&sb) };
        if depth == 0 {
            encode_extent_leaf(&mut block, 7, &extents).unwrap();
        } else {
            encode_extent_index(&mut block, depth, 7, &indexes).unwrap();
        }
        update_extent_checksum(&mut block, seed).unwrap();
        if depth == 0 || !indexes.is_empty() {
            let node = ExtentNode::block(&block, limits, Some(seed)).unwrap();
            prop_assert_eq!(node.extents().collect::<Vec<_>>(), if depth == 0 { extents } else { vec![] });
            prop_assert_eq!(node.indexes().collect::<Vec<_>>(), if depth == 0 { vec![] } else { indexes });
        }
        apply(&mut block, &changes);
        // Fails when the capacity was changed to reach past the block.
        let _ = update_extent_checksum(&mut block, seed);
        if let Ok(node) = ExtentNode::block(&block, limits, Some(seed)) {
            drive_node(&node);
        }
        drive_block(&block, &sb, seed);
    }

    #[test]
    fn mutated_directories(which in 0..3_usize, changes in changes(), seed in any::<u32>()) {
        let image = &images()[which];
        let sb = image.superblock();
        let root = image.inode(&sb, Ino::ROOT);
        let first = if root.uses_extents() {
            image.file_blocks(&sb, Ino::ROOT)[0].1
        } else {
            Pblk(u64::from(u32::from_le_bytes(root.i_block[..4].try_into().unwrap())))
        };
        let mut block = image.block(&sb, first).to_vec();
        apply(&mut block, &changes);
        update_dir_checksum(&mut block, seed).unwrap();
        drive_block(&block, &sb, seed);
        let _ = update_htree_checksum(&mut block, seed);
        drive_block(&block, &sb, seed);
        encode_dir_tail(&mut block, seed).unwrap();
        prop_assert!(verify_dir_checksum(&block, seed).is_ok());
    }

    #[test]
    fn mutated_journal_superblocks(changes in changes(), v3 in any::<bool>()) {
        let image = &images()[0];
        let sb = image.superblock();
        let mut bytes = image.block(&sb, image.file_blocks(&sb, Ino::JOURNAL)[0].1).to_vec();
        if v3 {
            let mut journal = JournalSuperblock::decode(&bytes).unwrap();
            journal.features.incompat = uext4_ondisk::jbd2::JournalIncompat::CSUM_V3;
            journal.checksum_type = 4;
            journal.encode(&mut bytes).unwrap();
            prop_assert_eq!(&JournalSuperblock::decode(&bytes).unwrap(), &journal);
        }
        apply(&mut bytes, &changes);
        bytes[0xFC..0x100].fill(0);
        let sum = csum(CSUM_INIT, &bytes[..1024]);
        bytes[0xFC..0x100].copy_from_slice(&big_endian(sum));
        if let Ok(journal) = JournalSuperblock::decode(&bytes) {
            prop_assert!(journal.first < journal.log_end() && journal.log_end() <= journal.blocks);
            let _ = journal.features.names();
            let mut again = bytes.clone();
            journal.encode(&mut again).unwrap();
            prop_assert!(again == bytes);
        }
    }
}

/// Big-endian bytes; the journal is the only place that has them.
fn big_endian(value: u32) -> [u8; 4] {
    let [a, b, c, d] = value.to_le_bytes();
    [d, c, b, a]
}
