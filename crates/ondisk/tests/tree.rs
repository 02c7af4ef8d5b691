//! Inodes, extent trees and directories of populated volumes, against debugfs, and rewritten under e2fsck's
//! eyes.

use crate::common;

use std::collections::BTreeSet;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use common::Image;
use uext4_ondisk::ext4::{
    DeviceNumber, DirBlock, DirBlockKind, DirFormat, Extent, ExtentNode, FileType, HtreeIndex, HtreeRoot,
    InodeFlags, NodeLimits, Superblock, dir_hash, encode_dir_entry, encode_dir_tail, encode_extent_index,
    encode_extent_leaf, encode_htree_entries, encode_htree_root_info, update_extent_checksum,
    update_htree_checksum, verify_dir_checksum, verify_htree_checksum,
};
use uext4_ondisk::{CorruptKind, Ino, Lblk};

/// The inode number that debugfs finds for a path.
fn inode_of(image: &Image, path: &str) -> Ino {
    let stat = image.debugfs(&format!("stat {path}"));
    let number = stat.split_whitespace().nth(1).unwrap_or_else(|| panic!("no {path}: {stat}"));
    Ino(number.parse().unwrap())
}

/// A file whose every second block of 4 KiB is a hole.
fn write_striped(path: &Path, stripes: u64) {
    let file = std::fs::File::create(path).unwrap();
    for stripe in 0..stripes {
        file.write_all_at(&[b'x'; 4096], stripe * 8192).unwrap();
    }
}

fn many_names(directory: &Path, count: u32) -> BTreeSet<Vec<u8>> {
    std::fs::create_dir(directory).unwrap();
    let names =
        (0..count).map(|number| format!("eintrag-größer-{number:05}-{}", "n".repeat(number as usize % 40)));
    let names: Vec<String> = names.collect();
    for name in &names {
        std::fs::File::create(directory.join(name)).unwrap();
    }
    names.into_iter().map(String::into_bytes).collect()
}

/// The leaves that `debugfs dump_extents` lists: logical, physical, length, unwritten.
fn dumped_extents(image: &Image, inode: Ino) -> Vec<(u32, u64, u32, bool)> {
    let listing = image.debugfs(&format!("dump_extents -l <{inode}>"));
    let rows = listing.lines().filter(|line| line.contains('/')).map(|line| {
        let spaced = line.replace(['/', '-'], " ");
        let numbers: Vec<u64> = spaced.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [_, _, _, _, first, _, physical, _, length] = numbers[..] else { panic!("{line}") };
        (u32::try_from(first).unwrap(), physical, u32::try_from(length).unwrap(), line.contains("Uninit"))
    });
    rows.collect()
}

fn as_rows(extents: &[Extent]) -> Vec<(u32, u64, u32, bool)> {
    extents.iter().map(|each| (each.logical.0, each.physical.0, each.length, each.unwritten)).collect()
}

#[test]
fn extent_trees_equal_dump_extents() {
    for arguments in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext4", "-b", "4096"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit"],
    ] {
        let fill = |tree: &Path| {
            write_striped(&tree.join("striped"), 3000);
            std::fs::write(tree.join("plain"), vec![7; 300_000]).unwrap();
        };
        let mut image = Image::populated(64, arguments, fill);
        image.debugfs_write("fallocate plain 400 9999");
        let sb = image.superblock();
        for (path, depth) in [("striped", 2), ("plain", 0)] {
            let inode = inode_of(&image, path);
            let decoded = image.inode(&sb, inode);
            let root = ExtentNode::root(&decoded.i_block, NodeLimits::root(&sb)).unwrap();
            assert_eq!(root.depth(), depth);
            let extents = image.extents(&sb, inode);
            assert_eq!(as_rows(&extents), dumped_extents(&image, inode), "{path} {arguments:?}");
            assert!(path == "striped" || extents.iter().any(|extent| extent.unwritten));
            find_agrees_with_list(&image, &sb, &root, &extents);
        }
    }
}

/// Looking up each block from the root gives the extent of the list that covers it.
fn find_agrees_with_list(image: &Image, sb: &Superblock, root: &ExtentNode<'_>, extents: &[Extent]) {
    let end = extents.last().unwrap().logical_end().0 + 3;
    for lblk in (0..end).step_by(97).map(Lblk) {
        let mut node = *root;
        while let Some(position) = node.find_index(lblk) {
            let limits = node.child_limits(position).unwrap();
            let child = node.index(position).unwrap().child;
            node = ExtentNode::block(image.block(sb, child), limits, None).unwrap();
        }
        let found = node.find_extent(lblk).and_then(|position| node.extent(position)?.physical_of(lblk));
        let expected = extents.iter().find_map(|extent| extent.physical_of(lblk));
        assert_eq!(found, expected, "block {lblk}");
    }
}

#[test]
fn extent_nodes_survive_decode_and_encode() {
    let image = Image::populated(64, &["-t", "ext4", "-b", "1024"], |tree| {
        write_striped(&tree.join("striped"), 3000)
    });
    let sb = image.superblock();
    let inode = inode_of(&image, "striped");
    let decoded = image.inode(&sb, inode);
    let seed = decoded.checksum_seed(inode, &sb);
    let root = ExtentNode::root(&decoded.i_block, NodeLimits::root(&sb)).unwrap();
    let mut i_block = [0; 60];
    let indexes: Vec<_> = root.indexes().collect();
    encode_extent_index(&mut i_block, root.depth(), root.header().generation, &indexes).unwrap();
    assert_eq!(i_block[..12 + 12 * indexes.len()], decoded.i_block[..12 + 12 * indexes.len()]);
    let middle_block = image.block(&sb, indexes[0].child);
    let middle = ExtentNode::block(middle_block, root.child_limits(0).unwrap(), Some(seed)).unwrap();
    for (position, index) in middle.indexes().enumerate() {
        let block = image.block(&sb, index.child);
        let limits = middle.child_limits(position).unwrap();
        let leaf = ExtentNode::block(block, limits, Some(seed)).unwrap();
        let mut again = block.to_vec();
        let extents: Vec<Extent> = leaf.extents().collect();
        encode_extent_leaf(&mut again, leaf.header().generation, &extents).unwrap();
        update_extent_checksum(&mut again, seed).unwrap();
        assert!(again == block);
        let wrong = ExtentNode::block(block, limits, Some(seed ^ 1)).unwrap_err();
        assert_eq!(wrong.kind, CorruptKind::ExtentChecksum);
    }
}

#[test]
fn inodes_equal_debugfs_stat() {
    for arguments in [&["-t", "ext4"][..], &["-t", "ext4", "-I", "128"], &["-t", "ext3", "-I", "1024"]] {
        let fill = |tree: &Path| {
            std::fs::write(tree.join("file"), [1; 5000]).unwrap();
            std::fs::set_permissions(tree.join("file"), std::fs::Permissions::from_mode(0o4711)).unwrap();
            symlink("short target", tree.join("short")).unwrap();
            symlink("t".repeat(59), tree.join("longest short")).unwrap();
            symlink("t".repeat(60), tree.join("long")).unwrap();
        };
        let mut image = Image::populated(16, arguments, fill);
        image.debugfs_write("mknod small c 5 7");
        image.debugfs_write("mknod large b 300 60000");
        image.debugfs_write("mknod pipe p");
        image.debugfs_write("set_inode_field file uid 70001");
        image.debugfs_write("set_inode_field file gid 70002");
        image.debugfs_write("set_inode_field file flags 0x80810");
        let sb = image.superblock();
        let inode = |path: &str| image.inode(&sb, inode_of(&image, path));
        let file = inode("file");
        assert_eq!((file.uid, file.gid, file.size, file.links), (70001, 70002, 5000, 1));
        assert_eq!((file.permissions(), file.file_type()), (0o4711, Some(FileType::Regular)));
        assert_eq!(file.flags.names(), ["immutable", "encrypted", "extents"]);
        let stat = image.debugfs("stat file");
        assert!(stat.contains(&format!("Generation: {}", file.generation)), "{stat}");
        assert!(stat.contains(&format!("Blockcount: {}\n", file.sectors(&sb))), "{stat}");
        assert!(stat.contains(&format!("mtime: 0x{:08x}", file.modified.seconds & 0xFFFF_FFFF)), "{stat}");
        assert_eq!(inode("short").short_link_target(), Some(&b"short target"[..]));
        assert_eq!(inode("\"longest short\"").short_link_target(), Some(&[b't'; 59][..]));
        assert_eq!(inode("long").short_link_target(), None);
        assert_eq!(file.short_link_target(), None);
        assert_eq!(inode("small").device(), Some(DeviceNumber { major: 5, minor: 7 }));
        assert_eq!(inode("large").device(), Some(DeviceNumber { major: 300, minor: 60000 }));
        assert_eq!((inode("pipe").device(), inode("pipe").file_type()), (None, Some(FileType::Fifo)));
        for device in [DeviceNumber { major: 5, minor: 7 }, DeviceNumber { major: 300, minor: 60000 }] {
            let path = if device.major == 5 { "small" } else { "large" };
            assert_eq!(device.encode().unwrap()[..8], inode(path).i_block[..8]);
        }
    }
}

#[test]
fn times_after_2038_equal_debugfs() {
    let mut image =
        Image::populated(16, &["-t", "ext4"], |tree| std::fs::write(tree.join("file"), []).unwrap());
    // 2400-12-31 23:59:59 and 1905-01-01 00:00:00, UTC.
    for (date, seconds) in [("24001231235959", 13_601_087_999_i64), ("19050101000000", -2_051_222_400)] {
        image.debugfs_write(&format!("set_inode_field file mtime {date}"));
        image.debugfs_write("set_inode_field file crtime 20400101000000");
        let sb = image.superblock();
        let inode = inode_of(&image, "file");
        let mut decoded = image.inode(&sb, inode);
        assert_eq!(decoded.modified.seconds, seconds);
        assert_eq!(decoded.created.unwrap().seconds, 2_208_988_800);
        decoded.accessed = decoded.modified;
        decoded.accessed.nanoseconds = 999_999_999;
        let at = image.inode_offset(&sb, inode);
        decoded.encode(&mut image.bytes[at..], inode, &sb).unwrap();
        image.assert_clean();
        assert_eq!(image.inode(&sb, inode), decoded);
        let stat = image.debugfs("stat file");
        let year = if seconds > 0 { "2400" } else { "1905" };
        let access = stat.lines().find(|line| line.trim_start().starts_with("atime")).unwrap();
        assert!(access.ends_with(year), "{access}");
    }
}

/// What a walk over an indexed directory found.
struct Walk {
    names: BTreeSet<Vec<u8>>,
    levels: u8,
}

/// Checks every block of an indexed directory, looks every name up through the tree, and returns all names.
fn walk_indexed(image: &Image, sb: &Superblock, inode: Ino) -> Walk {
    let format = DirFormat::new(sb);
    let decoded = image.inode(sb, inode);
    assert!(decoded.flags.contains(InodeFlags::INDEX));
    let seed = decoded.checksum_seed(inode, sb);
    let blocks = image.file_blocks(sb, inode);
    let bytes = |lblk: Lblk| image.block(sb, blocks[lblk.0 as usize].1);
    let root = HtreeRoot::decode(bytes(Lblk(0)), sb.hash_unsigned(), &format).unwrap();
    let mut names = BTreeSet::new();
    for (lblk, _) in &blocks {
        let block = bytes(*lblk);
        let kind = DirBlockKind::of(block, true, *lblk, &format);
        if format.checksums {
            match kind {
                DirBlockKind::Linear => verify_dir_checksum(block, seed).unwrap(),
                _ => verify_htree_checksum(block, kind, seed).unwrap(),
            }
        }
        for entry in DirBlock::new(block, kind, &format).unwrap().entries() {
            let entry = entry.unwrap();
            assert!(entry.has_valid_name());
            if entry.is_dot() || entry.is_dot_dot() {
                assert_eq!((kind, lblk.0), (DirBlockKind::HtreeRoot, 0));
                continue;
            }
            let hash = dir_hash(entry.name, root.hash_version, &sb.hash.seed).unwrap().major;
            assert!(leads_to(&root.index, root.indirect_levels, hash, *lblk, &bytes, &format));
            assert!(names.insert(entry.name.to_vec()), "twice: {}", entry.name.escape_ascii());
        }
    }
    Walk { names, levels: root.indirect_levels }
}

/// Whether following `hash` down from `index` reaches the block `wanted`.
fn leads_to<'a>(
    index: &HtreeIndex<'a>,
    levels: u8,
    hash: u32,
    wanted: Lblk,
    bytes: &dyn Fn(Lblk) -> &'a [u8],
    format: &DirFormat,
) -> bool {
    let mut position = index.find(hash);
    loop {
        let child = index.entry(position).unwrap().child;
        let reached = if levels == 0 {
            child == wanted
        } else {
            let node = HtreeIndex::decode_node(bytes(child), format).unwrap();
            leads_to(&node, levels - 1, hash, wanted, bytes, format)
        };
        if reached {
            return true;
        }
        if !index.continues(position, hash) {
            return false;
        }
        position += 1;
    }
}

#[test]
fn every_name_is_where_its_hash_says() {
    let cases: &[(&[&str], &[&str], u32)] = &[
        (&["-b", "1024", "-N", "4000"], &[], 2600),
        (&["-b", "4096"], &["set_super_value def_hash_version tea"], 700),
        (&["-b", "4096", "-O", "^metadata_csum"], &["set_super_value def_hash_version legacy"], 700),
        (&["-b", "2048"], &["set_super_value flags 2"], 700),
        (&["-b", "2048"], &["set_super_value flags 2", "set_super_value def_hash_version legacy"], 700),
        (&["-b", "2048"], &["set_super_value flags 2", "set_super_value def_hash_version tea"], 700),
        (&["-b", "65536", "-O", "^has_journal,^resize_inode", "-N", "3000"], &[], 2000),
    ];
    for (arguments, settings, count) in cases {
        let mut names = BTreeSet::new();
        let arguments = [&["-t", "ext4"], *arguments].concat();
        let mut image =
            Image::populated(24, &arguments, |tree| names = many_names(&tree.join("large"), *count));
        for setting in *settings {
            image.debugfs_write(setting);
        }
        image.index_directories();
        let sb = image.superblock();
        let walk = walk_indexed(&image, &sb, inode_of(&image, "large"));
        assert!(walk.names == names, "{arguments:?} {settings:?}");
        assert_eq!(walk.levels, u8::from(*count == 2600), "{arguments:?}");
    }
}

#[test]
fn rewritten_directories_satisfy_e2fsck() {
    let arguments = ["-t", "ext4", "-b", "1024", "-N", "4000"];
    let mut image = Image::populated(24, &arguments, |tree| {
        many_names(&tree.join("large"), 2600);
    });
    image.index_directories();
    let sb = image.superblock();
    let format = DirFormat::new(&sb);
    let inode = inode_of(&image, "large");
    let seed = image.inode(&sb, inode).checksum_seed(inode, &sb);
    let mut kinds = BTreeSet::new();
    for (lblk, block) in image.file_blocks(&sb, inode) {
        let old = image.block(&sb, block).to_vec();
        let mut new = vec![0; old.len()];
        let kind = DirBlockKind::of(&old, true, lblk, &format);
        kinds.insert(format!("{kind:?}"));
        let entries = DirBlock::new(&old, kind, &format).unwrap();
        for slot in entries.slots() {
            let slot = slot.unwrap();
            let (inode, name, file_type) = match slot.entry {
                Some(entry) => (Some(entry.inode), entry.name, entry.file_type),
                None => (None, &b""[..], None),
            };
            encode_dir_entry(&mut new, slot.offset, slot.record_length, inode, name, file_type, &format)
                .unwrap();
        }
        match kind {
            DirBlockKind::Linear => encode_dir_tail(&mut new, seed).unwrap(),
            DirBlockKind::HtreeRoot => {
                let root = HtreeRoot::decode(&old, false, &format).unwrap();
                encode_htree_root_info(&mut new, root.hash_version, root.indirect_levels).unwrap();
                let entries: Vec<_> = root.index.entries().collect();
                encode_htree_entries(&mut new, kind, &entries, &format).unwrap();
                update_htree_checksum(&mut new, seed).unwrap();
            }
            DirBlockKind::HtreeNode => {
                let node = HtreeIndex::decode_node(&old, &format).unwrap();
                let entries: Vec<_> = node.entries().collect();
                encode_htree_entries(&mut new, kind, &entries, &format).unwrap();
                update_htree_checksum(&mut new, seed).unwrap();
            }
        }
        let at = usize::try_from(block.0).unwrap() * old.len();
        image.bytes[at..at + new.len()].copy_from_slice(&new);
    }
    assert_eq!(kinds.len(), 3, "all kinds of blocks were rewritten");
    image.assert_clean();
}

#[test]
fn directory_checksums_are_checked() {
    let image = Image::new(16, &["-t", "ext4", "-b", "1024"]);
    let sb = image.superblock();
    let root = image.inode(&sb, Ino::ROOT);
    let seed = root.checksum_seed(Ino::ROOT, &sb);
    let block = image.block(&sb, image.file_blocks(&sb, Ino::ROOT)[0].1);
    assert_eq!(verify_dir_checksum(block, seed), Ok(()));
    assert_eq!(verify_dir_checksum(block, seed ^ 1).unwrap_err().kind, CorruptKind::DirChecksum);
    let mut damaged = block.to_vec();
    damaged[40] ^= 1;
    assert_eq!(verify_dir_checksum(&damaged, seed).unwrap_err().kind, CorruptKind::DirChecksum);
    damaged[1024 - 5] = 0;
    assert_eq!(verify_dir_checksum(&damaged, seed).unwrap_err().kind, CorruptKind::DirTail);
}
