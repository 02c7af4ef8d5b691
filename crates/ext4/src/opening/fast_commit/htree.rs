//! Adding a name to a directory with a hash tree.

use super::Parts;
use super::chain::{self, Entry};
use super::dentry::{Block, Directory};
use super::inode::Node;
use crate::ground::error::Result;
use crate::inode::fields::unencodable;
use uext4_ondisk::ext4::{
    DirBlockKind, HashVersion, HtreeEntry, HtreeIndex, HtreeRoot, encode_htree_entries, update_htree_checksum,
};
use uext4_ondisk::{Corrupt, Lblk};

/// The way to a leaf.
struct Path {
    version: HashVersion,
    hash: u32,
    /// The node above the leaf, and the leaf's position in it.
    parent: u32,
    position: usize,
    leaf: u32,
}

/// Brings the checksum of a root or node up to date.
pub(super) fn seal(bytes: &mut [u8], seed: u32) -> Result<()> {
    update_htree_checksum(bytes, seed).map_err(unencodable)
}

/// Puts a name into the block of its hash, dividing that if it is full. Returns the block's number, or `None` if there
/// is no room in the node above or the names cannot be hashed.
pub(super) fn insert(
    directory: &mut Directory,
    parts: &mut Parts<'_>,
    node: &mut Node,
    entry: &Entry,
) -> Result<Option<u32>> {
    let Some(path) = descend(directory, parts, node, entry)? else { return Ok(None) };
    if directory.has_room(path.leaf, entry.length()) {
        directory.insert_into(parts, node, path.leaf, entry)?;
        return Ok(Some(path.leaf));
    }
    let Some((border, second)) = divide(directory, parts, node, &path)? else { return Ok(None) };
    let number = if path.hash >= border { second } else { path.leaf };
    if !directory.has_room(number, entry.length()) {
        return Ok(None);
    }
    directory.insert_into(parts, node, number, entry)?;
    Ok(Some(number))
}

/// The children of a root or node.
fn children(directory: &Directory, block: &Block, unsigned: bool) -> Result<Vec<HtreeEntry>> {
    let format = &directory.format;
    let index = match block.kind {
        DirBlockKind::HtreeRoot => HtreeRoot::decode(&block.bytes, unsigned, format)?.index,
        _ => HtreeIndex::decode_node(&block.bytes, format)?,
    };
    Ok(index.entries().collect())
}

fn descend(
    directory: &mut Directory,
    parts: &mut Parts<'_>,
    node: &mut Node,
    entry: &Entry,
) -> Result<Option<Path>> {
    let unsigned = parts.canvas.ground.superblock.hash_unsigned();
    let mut block = directory.block(parts, node, 0)?;
    let in_node = |corrupt: Corrupt| corrupt.in_inode(node.draft.ino);
    let root = HtreeRoot::decode(&block.bytes, unsigned, &directory.format).map_err(in_node)?;
    let (version, levels) = (root.hash_version, root.indirect_levels);
    let Some(hash) = directory.hash_of(&parts.canvas, &entry.name, version) else { return Ok(None) };
    let mut parent = 0;
    for level in 0..=levels {
        let all = children(directory, &block, unsigned)?;
        let position = all.partition_point(|child| child.hash <= hash).saturating_sub(1);
        let child = all.get(position).map_or(0, |child| child.child.get());
        if child == 0 {
            return Err(node.corrupt("the hash tree of the directory leads back to its root"));
        }
        if level == levels {
            return Ok(Some(Path { version, hash, parent, position, leaf: child }));
        }
        block = directory.block(parts, node, child)?;
        parent = child;
    }
    Ok(None)
}

/// Moves the half of a leaf's names with the greater hashes to a new block. Returns the first of these hashes, and the
/// block.
fn divide(
    directory: &mut Directory,
    parts: &mut Parts<'_>,
    node: &mut Node,
    path: &Path,
) -> Result<Option<(u32, u32)>> {
    let unsigned = parts.canvas.ground.superblock.hash_unsigned();
    let mut above = directory.block(parts, node, path.parent)?;
    let mut all = children(directory, &above, unsigned)?;
    let mut leaf = directory.block(parts, node, path.leaf)?;
    if leaf.kind != DirBlockKind::Linear {
        return Err(node.corrupt("the hash tree of the directory leads to one of its nodes"));
    }
    let mut hashed = Vec::new();
    for entry in directory.entries(&leaf, node, path.leaf)? {
        let Some(hash) = directory.hash_of(&parts.canvas, &entry.name, path.version) else { return Ok(None) };
        hashed.push((hash, entry));
    }
    hashed.sort_by_key(|(hash, _)| *hash);
    // Half of the bytes, not of the names: those are of different lengths.
    let total: u32 = hashed.iter().map(|(_, entry)| entry.length()).sum();
    let mut upto = 0;
    let middle = hashed.iter().position(|(_, entry)| {
        upto += entry.length();
        upto > total / 2
    });
    let Some(middle) = middle.filter(|middle| (1..hashed.len()).contains(middle)) else { return Ok(None) };
    let limit = match above.kind {
        DirBlockKind::HtreeRoot => {
            HtreeRoot::decode(&above.bytes, unsigned, &directory.format)?.index.limit()
        }
        _ => HtreeIndex::decode_node(&above.bytes, &directory.format)?.limit(),
    };
    if all.len() >= usize::from(limit) {
        return Ok(None);
    }
    let second = directory.append(parts, node)?;
    let border = hashed[middle].0;
    let continued = u32::from(hashed[middle - 1].0 == border);
    let mut fresh = directory.block(parts, node, second)?;
    fresh.kind = DirBlockKind::Linear;
    for (block, names) in [(&mut leaf, &hashed[..middle]), (&mut fresh, &hashed[middle..])] {
        let length = directory.area_length(block.kind);
        block.bytes.fill(0);
        chain::free(&mut block.bytes, 0, length as u32, &directory.format)?;
        for (_, entry) in names {
            chain::insert(&mut block.bytes[..length], entry, &directory.format)?;
        }
    }
    hashed[middle..].iter().for_each(|(_, entry)| directory.moved(&entry.name, second));
    directory.put_block(parts, node, path.leaf, leaf)?;
    directory.put_block(parts, node, second, fresh)?;
    all.insert(path.position + 1, HtreeEntry { hash: border | continued, child: Lblk(second) });
    encode_htree_entries(&mut above.bytes, above.kind, &all, &directory.format).map_err(unencodable)?;
    directory.put_block(parts, node, path.parent, above)?;
    Ok(Some((border, second)))
}
