//! Look-up through the hash tree of an indexed directory.

use super::Directory;
use super::name::Wanted;
use crate::ground::error::Result;
use uext4_ondisk::ext4::{HtreeIndex, HtreeRoot, dir_hash};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk};

/// A node on the way down: its block in the directory, and the child taken.
#[derive(Clone, Copy)]
struct Frame {
    block: u32,
    position: usize,
}

/// Finds a name.
pub(super) fn look_up(directory: &Directory<'_>, wanted: &mut Wanted<'_>) -> Result<Option<Ino>> {
    let superblock = &directory.state.superblock;
    let (version, levels) =
        with_root(directory, |root| (root.hash_version, usize::from(root.indirect_levels)))?;
    let hash = dir_hash(wanted.hashed(), version, &superblock.hash.seed).map_err(|_| {
        // The keyed hash belongs to encrypted directories, and this one is not.
        Corrupt::from(CorruptKind::HtreeRoot("hash_version")).in_inode(directory.inode.ino())
    })?;
    let mut frames = Vec::with_capacity(levels + 1);
    let mut block = 0;
    for _ in 0..=levels {
        let (position, child) = with_index(directory, block, |index| {
            let position = index.find(hash.major);
            (position, index.entry(position).map_or(Lblk(0), |entry| entry.child))
        })?;
        frames.push(Frame { block, position });
        block = forward(directory, &frames, child)?;
    }
    // Names of one hash may go on in the next blocks; no honest tree has more of them than the directory has
    // blocks.
    for _ in 0..directory.blocks {
        if let Some(found) = directory.scan_leaf(block, wanted)? {
            return Ok(Some(found));
        }
        match next_block(directory, &mut frames, hash.major)? {
            Some(next) => block = next,
            None => return Ok(None),
        }
    }
    Err(directory
        .state
        .corrupt_inode(directory.inode.ino(), "the hash tree of the directory runs in circles"))
}

/// The child's block, which must not be one that the way led through: as a block of entries it would look
/// empty, and names would be missing without a word.
fn forward(directory: &Directory<'_>, frames: &[Frame], child: Lblk) -> Result<u32> {
    let block = child.get();
    if block == 0 || frames.iter().any(|frame| frame.block == block) {
        let what = format!("the hash tree of the directory leads back to block {block}");
        return Err(directory.state.corrupt_inode(directory.inode.ino(), what));
    }
    Ok(block)
}

/// The next block of entries that may hold names with this hash.
fn next_block(directory: &Directory<'_>, frames: &mut [Frame], hash: u32) -> Result<Option<u32>> {
    let deepest = frames.len();
    let mut level = deepest;
    let mut block = loop {
        if level == 0 {
            return Ok(None);
        }
        level -= 1;
        let Frame { block, position } = frames[level];
        let next = with_index(directory, block, |index| {
            if position + 1 >= index.len() {
                return None;
            }
            Some(index.continues(position, hash).then(|| index.entry(position + 1)).flatten())
        })?;
        match next {
            // The last child of this node: the answer is one level up.
            None => {}
            Some(None) => return Ok(None),
            Some(Some(entry)) => {
                frames[level].position += 1;
                break forward(directory, &frames[..=level], entry.child)?;
            }
        }
    };
    for frame in &mut frames[level + 1..deepest] {
        *frame = Frame { block, position: 0 };
        let child =
            with_index(directory, block, |index| index.entry(0))?.map_or(Lblk(0), |entry| entry.child);
        block = forward(directory, &[*frame], child)?;
    }
    Ok(Some(block))
}

fn with_root<T>(directory: &Directory<'_>, look: impl FnOnce(&HtreeRoot<'_>) -> T) -> Result<T> {
    let block = directory.block(0)?;
    let unsigned = directory.state.superblock.hash_unsigned();
    let root = HtreeRoot::decode(&block.buffer, unsigned, &directory.format)
        .map_err(|corrupt| directory.place(corrupt, 0, block.buffer.block()))?;
    Ok(look(&root))
}

fn with_index<T>(
    directory: &Directory<'_>,
    number: u32,
    look: impl FnOnce(&HtreeIndex<'_>) -> T,
) -> Result<T> {
    if number == 0 {
        return with_root(directory, |root| look(&root.index));
    }
    let block = directory.block(number)?;
    let index = HtreeIndex::decode_node(&block.buffer, &directory.format)
        .map_err(|corrupt| directory.place(corrupt, number, block.buffer.block()))?;
    Ok(look(&index))
}
