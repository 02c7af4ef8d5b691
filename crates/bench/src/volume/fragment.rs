//! A file of 10⁶ extents without writing gigabytes: its extent tree is written by hand over preallocated
//! blocks.
//!
//! mke2fs makes an empty volume on a sparse file, with its metadata packed at the front so that the rest is
//! one run of free blocks. debugfs allocates blocks to two empty files. Their trees are then written anew
//! with the encoders of `uext4-ondisk`: of its own blocks each file uses some as tree nodes and all others as
//! data, so that bitmaps, free counts and the inode's block count stay right. The data blocks are never
//! written; they read as the zeros of the sparse file, from every position at the same cost.
//!
//! - `scattered`: one block per extent, the first logical block last on the device, so that no two extents
//!   merge;
//! - `straight`: the same number of blocks in order, in as few extents as the format can (32768 blocks each
//!   at most), which adjoin, so that in memory they are one.

use super::{Backing, Bed, Scratch, tool};
use crate::error::{BenchError, Doing, Result};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use uext4::DeviceSpec;
use uext4_ondisk::ext4::{
    self, Extent, ExtentIndex, ExtentNode, GroupDescriptor, Inode, MAX_EXTENT_LENGTH, NodeLimits,
    ROOT_CAPACITY, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock,
};
use uext4_ondisk::{Ino, Lblk, Pblk};

/// Data blocks of each file, which is the number of extents of the scattered one.
pub const BLOCKS: u32 = 1_000_000;
/// Bytes of a block.
const BLOCK: u32 = 4096;
/// The file with an extent for each block.
pub const SCATTERED: &str = "scattered";
/// The file in one piece.
pub const STRAIGHT: &str = "straight";

/// How the blocks of a file follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Reversed,
    Contiguous,
}

/// The volume of `lookup-scaling`.
pub fn bed() -> Result<Bed> {
    let scratch = Scratch::new(64 << 20)?;
    let image = scratch.path().join("image");
    build(&image, BLOCKS, &Room::default())?;
    let files = vec![PathBuf::from("/").join(SCATTERED), PathBuf::from("/").join(STRAIGHT)];
    let backing = Backing::Spec(DeviceSpec::file(&image));
    Ok(Bed::of(backing, "tmpfs file, sparse".into(), files).keeping(scratch))
}

/// What a volume has beside its two files.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Free blocks, at least.
    pub blocks: u32,
    /// Of the journal.
    pub journal_mib: u32,
}

impl Default for Room {
    fn default() -> Self {
        Room { blocks: 0, journal_mib: 4 }
    }
}

/// Makes the volume with two files of `blocks` blocks at `image`, and has it checked.
pub fn build(image: &Path, blocks: u32, room: &Room) -> Result<()> {
    let beside = u64::from(room.blocks) + u64::from(room.journal_mib) * 256;
    let size = (u64::from(blocks) * 2 + u64::from(blocks) / 50 + 15360 + beside) * u64::from(BLOCK);
    let file = fs::File::create_new(image).doing(|| format!("create {}", image.display()))?;
    file.set_len(size.next_multiple_of(1 << 27)).doing(|| format!("extend {}", image.display()))?;
    drop(file);
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0", "-N", "64", "-G", "1024"]);
    mke2fs.args(["-J", &format!("size={}", room.journal_mib)]);
    mke2fs.args(["-O", "^resize_inode,sparse_super2", "-E", "packed_meta_blocks=1,num_backup_sb=0"]);
    tool(mke2fs.arg(image))?;
    let orders = [(SCATTERED, Order::Reversed), (STRAIGHT, Order::Contiguous)];
    for (name, order) in orders {
        let wanted = blocks + tree_nodes(extents_of(blocks, order));
        debugfs(image, &format!("write /dev/null {name}"))?;
        debugfs(image, &format!("fallocate {name} 0 {}", wanted - 1))?;
    }
    for (name, order) in orders {
        let number = inode_number(image, name)?;
        Rewriter::open(image, number)?.rewrite(blocks, order)?;
    }
    tool(Command::new("e2fsck").arg("-fn").arg(image)).map(drop)
}

fn debugfs(image: &Path, request: &str) -> Result<String> {
    let text = tool(Command::new("debugfs").args(["-w", "-R", request]).arg(image))?;
    // debugfs succeeds whatever happens; these requests print nothing, or the inode, when they worked.
    match text.lines().find(|line| !line.is_empty() && !line.starts_with("Allocated inode")) {
        None => Ok(text),
        Some(line) => Err(BenchError::failed(format!("debugfs {request}: {line}"))),
    }
}

fn inode_number(image: &Path, name: &str) -> Result<Ino> {
    let text = tool(Command::new("debugfs").args(["-R", &format!("stat {name}")]).arg(image))?;
    let number = text.split_whitespace().skip_while(|word| *word != "Inode:").nth(1);
    number
        .and_then(|number| Ino::nonzero(number.parse().ok()?))
        .ok_or_else(|| BenchError::failed(format!("debugfs made no file {name}")))
}

fn extents_of(blocks: u32, order: Order) -> u32 {
    match order {
        Order::Reversed => blocks,
        Order::Contiguous => blocks.div_ceil(MAX_EXTENT_LENGTH),
    }
}

/// Blocks of the smallest tree over `leaves` leaf nodes, with them, under a root in the inode.
fn nodes_above(leaves: u32) -> u32 {
    let capacity = u32::from(ext4::block_capacity(BLOCK));
    let (mut level, mut total) = (leaves, leaves);
    while level > u32::from(ROOT_CAPACITY) {
        level = level.div_ceil(capacity);
        total += level;
    }
    total
}

fn tree_nodes(extents: u32) -> u32 {
    nodes_above(extents.div_ceil(u32::from(ext4::block_capacity(BLOCK))))
}

/// Splits `count` things over `parts`, each as large as the others or one larger: the bounds of each part.
fn shares(count: usize, parts: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..parts).map(move |part| part * count / parts..(part + 1) * count / parts)
}

/// One inode of an image and what is needed to change it.
struct Rewriter {
    file: fs::File,
    superblock: Superblock,
    number: Ino,
    position: u64,
    record: Vec<u8>,
    inode: Inode,
}

fn bad(what: impl std::fmt::Display) -> BenchError {
    BenchError::failed(format!("making the file of many extents: {what}"))
}

impl Rewriter {
    fn open(image: &Path, number: Ino) -> Result<Self> {
        let file = fs::File::options().read(true).write(true).open(image);
        let file = file.doing(|| format!("open {}", image.display()))?;
        let read = |pos: u64, length: u32| -> Result<Vec<u8>> {
            let mut bytes = vec![0; length as usize];
            file.read_exact_at(&mut bytes, pos).doing(|| "read the image".into())?;
            Ok(bytes)
        };
        let superblock = Superblock::decode(&read(SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE)?).map_err(bad)?;
        let geometry = &superblock.geometry;
        let (group, index) = geometry.group_of_inode(number).ok_or_else(|| bad("no such inode"))?;
        let (block, offset) = geometry.descriptor_position(group).ok_or_else(|| bad("no such group"))?;
        let position = u64::from(offset) + byte(block)?;
        let bytes = read(position, u32::from(geometry.desc_size()))?;
        let descriptor = GroupDescriptor::decode(&bytes, group, &superblock).map_err(bad)?;
        let (block, offset) = geometry.inode_table_position(index);
        let position =
            byte(descriptor.inode_table)? + u64::from(block) * u64::from(BLOCK) + u64::from(offset);
        let record = read(position, u32::from(geometry.inode_size()))?;
        let inode = Inode::decode(&record, number, &superblock).map_err(bad)?;
        Ok(Rewriter { file, superblock, number, position, record, inode })
    }

    /// Every block that the file owns, tree nodes too, in ascending order.
    fn blocks(&self) -> Result<Vec<u64>> {
        let mut blocks = Vec::new();
        let limits = NodeLimits::root(&self.superblock);
        let root = ExtentNode::root(&self.inode.i_block, limits).map_err(bad)?;
        self.collect(&root, &mut blocks)?;
        blocks.sort_unstable();
        Ok(blocks)
    }

    fn collect(&self, node: &ExtentNode<'_>, blocks: &mut Vec<u64>) -> Result<()> {
        for extent in node.extents() {
            blocks.extend((0..u64::from(extent.length)).map(|offset| extent.physical.0 + offset));
        }
        let seed = self.inode.checksum_seed(self.number, &self.superblock);
        for index in node.indexes() {
            blocks.push(index.child.0);
            let mut bytes = vec![0; BLOCK as usize];
            self.file.read_exact_at(&mut bytes, byte(index.child)?).doing(|| "read the image".into())?;
            let limits = NodeLimits { depth: Some(node.depth() - 1), ..node.limits() };
            let child = ExtentNode::block(&bytes, limits, Some(seed)).map_err(bad)?;
            self.collect(&child, blocks)?;
        }
        Ok(())
    }

    /// Maps `count` logical blocks onto the file's own blocks in this order, with all others as nodes of the
    /// tree.
    fn rewrite(mut self, count: u32, order: Order) -> Result<()> {
        let mut owned = self.blocks()?;
        let spare = owned.split_off(count as usize);
        let extents: Vec<Extent> = match order {
            Order::Reversed => owned
                .iter()
                .rev()
                .zip(0..)
                .map(|(&block, lblk)| Extent {
                    logical: Lblk(lblk),
                    length: 1,
                    physical: Pblk(block),
                    unwritten: false,
                })
                .collect(),
            Order::Contiguous => contiguous(&owned)?,
        };
        self.write_tree(&extents, spare)?;
        self.inode.size = u64::from(count) * u64::from(BLOCK);
        self.inode.encode(&mut self.record, self.number, &self.superblock).map_err(bad)?;
        self.file.write_all_at(&self.record, self.position).doing(|| "write the inode".into())
    }

    /// Writes the tree bottom up. Every block of `spare` becomes a node, or it would have no owner.
    fn write_tree(&mut self, extents: &[Extent], mut spare: Vec<u64>) -> Result<()> {
        let total = spare.len() as u32;
        let leaves = (1..=total).find(|&leaves| nodes_above(leaves) == total);
        let leaves = leaves.filter(|&leaves| total >= tree_nodes(extents.len() as u32) && leaves > 0);
        let leaves = leaves.ok_or_else(|| bad(format!("no tree has {total} nodes")))? as usize;
        let mut level = Vec::with_capacity(leaves);
        for range in shares(extents.len(), leaves) {
            let mut bytes = vec![0; BLOCK as usize];
            ext4::encode_extent_leaf(&mut bytes, 0, &extents[range.clone()]).map_err(bad)?;
            level.push(self.place(bytes, extents[range.start].logical, &mut spare)?);
        }
        let mut depth = 1;
        while level.len() > usize::from(ROOT_CAPACITY) {
            let parents = level.len().div_ceil(usize::from(ext4::block_capacity(BLOCK)));
            let mut above = Vec::with_capacity(parents);
            for range in shares(level.len(), parents) {
                let mut bytes = vec![0; BLOCK as usize];
                ext4::encode_extent_index(&mut bytes, depth, 0, &level[range.clone()]).map_err(bad)?;
                above.push(self.place(bytes, level[range.start].logical, &mut spare)?);
            }
            level = above;
            depth += 1;
        }
        ext4::encode_extent_index(&mut self.inode.i_block, depth, 0, &level).map_err(bad)
    }

    /// Writes one node into a spare block.
    fn place(&self, mut bytes: Vec<u8>, logical: Lblk, spare: &mut Vec<u64>) -> Result<ExtentIndex> {
        let child = Pblk(spare.pop().ok_or_else(|| bad("too few blocks for the tree"))?);
        let seed = self.inode.checksum_seed(self.number, &self.superblock);
        ext4::update_extent_checksum(&mut bytes, seed).map_err(bad)?;
        self.file.write_all_at(&bytes, byte(child)?).doing(|| "write a node".into())?;
        Ok(ExtentIndex { logical, child })
    }
}

fn byte(block: Pblk) -> Result<u64> {
    block.byte_offset(BLOCK).ok_or_else(|| bad("a block number overflows"))
}

fn contiguous(blocks: &[u64]) -> Result<Vec<Extent>> {
    if blocks.windows(2).any(|pair| pair[1] != pair[0] + 1) {
        return Err(bad("debugfs found no run of free blocks that is long enough"));
    }
    let extents = blocks.chunks(MAX_EXTENT_LENGTH as usize).zip(0..).map(|(run, number)| Extent {
        logical: Lblk(number * MAX_EXTENT_LENGTH),
        length: run.len() as u32,
        physical: Pblk(run[0]),
        unwritten: false,
    });
    Ok(extents.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uext4::{OpenOptions, Piece, State, Volume, VolumeOptions};

    #[test]
    fn trees_have_the_counted_nodes() {
        assert_eq!(tree_nodes(1), 1);
        assert_eq!(tree_nodes(340 * 4), 4);
        assert_eq!(tree_nodes(340 * 4 + 1), 5 + 1);
        assert_eq!(tree_nodes(1_000_000), 2942 + 9 + 1);
        let parts: Vec<_> = shares(10, 3).map(|part| part.len()).collect();
        assert_eq!((parts.iter().sum::<usize>(), parts.len()), (10, 3));
    }

    #[test]
    fn a_small_one_is_clean_and_maps_as_meant() {
        let dir = Scratch::new(16 << 20).unwrap();
        let image = dir.path().join("image");
        build(&image, 5000, &Room::default()).unwrap();
        let volume = Volume::open(image.to_str().unwrap(), VolumeOptions::read_only()).unwrap();
        let pieces = |name: &str| -> Vec<Piece> {
            let file = volume.open_file(name, OpenOptions::new().read(true)).unwrap();
            assert_eq!(file.size(), 5000 * 4096);
            file.map().collect::<uext4::Result<_>>().unwrap()
        };
        let scattered = pieces("/scattered");
        assert_eq!(scattered.len(), 5000);
        assert!(scattered.windows(2).all(|pair| pair[0].physical > pair[1].physical));
        let straight = pieces("/straight");
        assert!(straight.windows(2).all(|pair| pair[0].physical + pair[0].length == pair[1].physical));
        assert!(scattered.iter().chain(&straight).all(|piece| piece.state == State::Written));
    }
}
