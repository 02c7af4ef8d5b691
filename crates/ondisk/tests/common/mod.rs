//! Volumes made by mke2fs, and the smallest possible reader over them, for comparison with e2fsprogs.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use uext4_ondisk::ext4::{
    Extent, ExtentNode, GroupDescriptor, Inode, NodeLimits, SUPERBLOCK_OFFSET, Superblock,
};
use uext4_ondisk::{Group, Ino, Lblk, Pblk};

/// A volume in memory, with the file it came from.
pub struct Image {
    pub bytes: Vec<u8>,
    directory: TempDir,
    path: PathBuf,
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    // The tools live where an ordinary user's PATH may not look.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    command
}

fn run(command: &mut Command) -> Output {
    match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?} cannot run, e2fsprogs is needed: {error}"),
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Image {
    /// A volume of `megabytes`, made with these mke2fs arguments.
    pub fn new(megabytes: u64, arguments: &[&str]) -> Image {
        Image::populated(megabytes, arguments, |_| {})
    }

    /// The same, with a tree of files that `fill` makes in a directory of the host.
    pub fn populated(megabytes: u64, arguments: &[&str], fill: impl FnOnce(&Path)) -> Image {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        std::fs::create_dir(&tree).unwrap();
        fill(&tree);
        let path = directory.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(megabytes << 20).unwrap();
        let output = run(tool("mke2fs").args(["-q", "-F"]).args(arguments).arg("-d").arg(&tree).arg(&path));
        assert!(output.status.success(), "mke2fs {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        let bytes = std::fs::read(&path).unwrap();
        Image { bytes, directory, path }
    }

    /// Writes the bytes back to the file, for the tools to see.
    pub fn save(&self) {
        std::fs::write(&self.path, &self.bytes).unwrap();
    }

    pub fn load(&mut self) {
        self.bytes = std::fs::read(&self.path).unwrap();
    }

    /// What dumpe2fs prints.
    pub fn dumpe2fs(&self) -> String {
        text(&run(tool("dumpe2fs").arg(&self.path)))
    }

    /// What debugfs prints for one request.
    pub fn debugfs(&self, request: &str) -> String {
        text(&run(tool("debugfs").args(["-R", request]).arg(&self.path)))
    }

    /// Runs a debugfs request that changes the volume.
    pub fn debugfs_write(&mut self, request: &str) {
        let output = run(tool("debugfs").args(["-w", "-R", request]).arg(&self.path));
        assert!(output.status.success(), "debugfs {request}");
        self.load();
    }

    /// Lets e2fsck rebuild all directories as hash trees.
    pub fn index_directories(&mut self) {
        let output = run(tool("e2fsck").args(["-fyD"]).arg(&self.path));
        assert!(output.status.code().is_some_and(|code| code <= 1), "{}", text(&output));
        self.load();
    }

    /// Fails the test if e2fsck finds anything wrong with the bytes as they are now.
    pub fn assert_clean(&self) {
        self.save();
        let output = run(tool("e2fsck").arg("-fn").arg(&self.path));
        assert!(output.status.success(), "{}{}", text(&output), String::from_utf8_lossy(&output.stderr));
    }

    pub fn superblock_bytes(&self) -> &[u8] {
        let start = usize::try_from(SUPERBLOCK_OFFSET).unwrap();
        &self.bytes[start..start + 1024]
    }

    pub fn superblock(&self) -> Superblock {
        Superblock::decode(self.superblock_bytes()).unwrap()
    }

    pub fn block(&self, sb: &Superblock, block: Pblk) -> &[u8] {
        let size = usize::try_from(sb.geometry.block_size()).unwrap();
        let start = usize::try_from(block.byte_offset(sb.geometry.block_size()).unwrap()).unwrap();
        &self.bytes[start..start + size]
    }

    /// Byte offset on the volume of a group's descriptor.
    pub fn descriptor_offset(&self, sb: &Superblock, group: Group) -> usize {
        let (block, offset) = sb.geometry.descriptor_position(group).unwrap();
        let start = block.byte_offset(sb.geometry.block_size()).unwrap() + u64::from(offset);
        usize::try_from(start).unwrap()
    }

    pub fn descriptor(&self, sb: &Superblock, group: Group) -> GroupDescriptor {
        GroupDescriptor::decode(&self.bytes[self.descriptor_offset(sb, group)..], group, sb).unwrap()
    }

    /// Byte offset on the volume of an inode's record.
    pub fn inode_offset(&self, sb: &Superblock, inode: Ino) -> usize {
        let (group, index) = sb.geometry.group_of_inode(inode).unwrap();
        let table = self.descriptor(sb, group).inode_table;
        let (block, offset) = sb.geometry.inode_table_position(index);
        let start = Pblk(table.0 + u64::from(block)).byte_offset(sb.geometry.block_size()).unwrap();
        usize::try_from(start + u64::from(offset)).unwrap()
    }

    pub fn inode(&self, sb: &Superblock, inode: Ino) -> Inode {
        Inode::decode(&self.bytes[self.inode_offset(sb, inode)..], inode, sb).unwrap()
    }

    /// All inodes marked in use in the bitmaps, which are verified on the way.
    pub fn used_inodes(&self, sb: &Superblock) -> Vec<Ino> {
        let mut used = Vec::new();
        for group in sb.geometry.groups() {
            let descriptor = self.descriptor(sb, group);
            if descriptor.inodes_uninitialised(sb) {
                continue;
            }
            let bitmap = self.block(sb, descriptor.inode_bitmap);
            descriptor.verify_inode_bitmap(bitmap, group, sb).unwrap();
            let per_group = sb.geometry.inodes_per_group();
            for index in 0..per_group {
                let at = usize::try_from(index).unwrap();
                if bitmap[at / 8] & (1 << (at % 8)) != 0 {
                    used.push(Ino(group.0 * per_group + index + 1));
                }
            }
        }
        used
    }

    /// All extents of an inode, through checked nodes.
    pub fn extents(&self, sb: &Superblock, inode: Ino) -> Vec<Extent> {
        let decoded = self.inode(sb, inode);
        let seed = sb.features.metadata_csum().then(|| decoded.checksum_seed(inode, sb));
        let root = ExtentNode::root(&decoded.i_block, NodeLimits::root(sb)).unwrap();
        let mut extents = Vec::new();
        self.walk(sb, root, seed, &mut extents);
        extents
    }

    fn walk(&self, sb: &Superblock, node: ExtentNode<'_>, seed: Option<u32>, extents: &mut Vec<Extent>) {
        extents.extend(node.extents());
        for (position, index) in node.indexes().enumerate() {
            let limits = node.child_limits(position).unwrap();
            let child = ExtentNode::block(self.block(sb, index.child), limits, seed).unwrap();
            self.walk(sb, child, seed, extents);
        }
    }

    /// The blocks of an extent-mapped directory or file, in order.
    pub fn file_blocks(&self, sb: &Superblock, inode: Ino) -> Vec<(Lblk, Pblk)> {
        let extents = self.extents(sb, inode);
        let each = extents.iter().flat_map(|extent| {
            (0..extent.length).map(|offset| {
                let lblk = extent.logical.checked_add(offset).unwrap();
                (lblk, extent.physical_of(lblk).unwrap())
            })
        });
        each.collect()
    }
}

/// The value of a `Name:   value` line of dumpe2fs.
pub fn value_of<'a>(listing: &'a str, name: &str) -> Option<&'a str> {
    let line =
        listing.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// The number in such a line.
pub fn number_of(listing: &str, name: &str) -> u64 {
    let value = value_of(listing, name).unwrap_or_else(|| panic!("dumpe2fs prints no `{name}`"));
    let first = value.split_whitespace().next().unwrap();
    match first.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
        None => first.parse().unwrap(),
    }
}

/// The kinds of volumes that tests go through: name, megabytes, mke2fs arguments.
pub const VARIANTS: &[(&str, u64, &[&str])] = &[
    ("default", 64, &["-t", "ext4", "-b", "4096"]),
    ("1 KiB blocks", 40, &["-t", "ext4", "-b", "1024"]),
    ("64 KiB blocks", 64, &["-t", "ext4", "-b", "65536", "-O", "^has_journal,^resize_inode"]),
    ("crc16", 40, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"]),
    ("32 bits, crc32c", 40, &["-t", "ext4", "-b", "1024", "-O", "^64bit,metadata_csum"]),
    ("32 bits, crc16", 40, &["-t", "ext4", "-b", "1024", "-O", "^64bit,^metadata_csum,uninit_bg"]),
    ("no checksums", 40, &["-t", "ext4", "-O", "^64bit,^metadata_csum,^uninit_bg,^flex_bg"]),
    ("ext2", 16, &["-t", "ext2", "-b", "1024"]),
    ("ext3", 16, &["-t", "ext3", "-b", "2048"]),
    ("revision 0", 16, &["-t", "ext2", "-r", "0", "-b", "1024", "-O", "none"]),
    ("bigalloc", 64, &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"]),
    (
        "bigalloc, 1 KiB blocks",
        64,
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc,^resize_inode", "-C", "16384"],
    ),
    ("meta_bg", 160, &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode,^flex_bg"]),
    ("meta_bg, flex_bg", 160, &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"]),
    ("sparse_super2", 64, &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode"]),
    ("backups everywhere", 64, &["-t", "ext4", "-b", "1024", "-O", "^sparse_super,^resize_inode"]),
    ("seed stored", 32, &["-t", "ext4", "-O", "metadata_csum_seed,orphan_file,project,quota", "-I", "512"]),
    (
        "rare features",
        32,
        &["-t", "ext4", "-O", "large_dir,casefold,mmp,ea_inode,verity,encrypt,inline_data"],
    ),
    ("128-byte inodes", 32, &["-t", "ext4", "-I", "128"]),
    ("no journal", 16, &["-t", "ext4", "-O", "^has_journal"]),
    ("large inodes", 16, &["-t", "ext4", "-b", "4096", "-I", "4096", "-N", "256"]),
    ("wide descriptors", 16, &["-t", "ext4", "-b", "1024", "-E", "desc_size=128"]),
];
