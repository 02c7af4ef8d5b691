//! Writing the root and the nodes of a directory's hash tree.

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::htree::{
    HtreeEntry, NODE_ENTRIES_OFFSET, ROOT_ENTRIES_OFFSET, ROOT_INFO_LENGTH, ROOT_INFO_OFFSET, RawDxEntry,
    RawRootInfo, capacity, checksum_of,
};
use super::{DIR_BLOCK, DirBlockKind, DirFormat, HashVersion, encode_dir_entry};
use crate::bytes::{index, put};
use crate::error::EncodeError;

const HTREE: &str = "hash tree node";
const MAX_CHILD: u32 = 0x0FFF_FFFF;

/// Writes the root information behind `.` and `..`, which must be there already.
pub fn encode_htree_root_info(
    block: &mut [u8],
    version: HashVersion,
    indirect_levels: u8,
) -> Result<(), EncodeError> {
    let info = RawRootInfo {
        reserved: U32::ZERO,
        hash_version: version.to_disk(),
        info_length: ROOT_INFO_LENGTH,
        indirect_levels,
        unused_flags: 0,
    };
    put(block, index(ROOT_INFO_OFFSET), info.as_bytes(), DIR_BLOCK)
}

/// Changes how many levels of nodes there are below a root, and nothing else of its information.
pub fn set_htree_levels(block: &mut [u8], indirect_levels: u8) -> Result<(), EncodeError> {
    let at = index(ROOT_INFO_OFFSET).saturating_add(std::mem::offset_of!(RawRootInfo, indirect_levels));
    put(block, at, &[indirect_levels], DIR_BLOCK)
}

/// Writes the children of a root or node, in order of their hashes, with limit and count. The first one's
/// hash is not stored. A node gets the empty entry that hides it. Call [`update_htree_checksum`]
/// afterwards.
pub fn encode_htree_entries(
    block: &mut [u8],
    kind: DirBlockKind,
    entries: &[HtreeEntry],
    format: &DirFormat,
) -> Result<(), EncodeError> {
    let mut offset = match kind {
        DirBlockKind::Linear => return Err(EncodeError::new(HTREE, "kind")),
        DirBlockKind::HtreeRoot => ROOT_ENTRIES_OFFSET,
        DirBlockKind::HtreeNode => {
            encode_dir_entry(block, 0, format.block_size, None, b"", None, format)?;
            NODE_ENTRIES_OFFSET
        }
    };
    let bad_count = EncodeError::new(HTREE, "count");
    let limit = u16::try_from(capacity(offset, format)).map_err(|_| bad_count)?;
    let count = u16::try_from(entries.len()).ok().filter(|count| (1..=limit).contains(count));
    let head = crate::bytes::join16(limit, count.ok_or(bad_count)?);
    for (position, entry) in entries.iter().enumerate() {
        if entry.child.0 > MAX_CHILD {
            return Err(EncodeError::new(HTREE, "child"));
        }
        let hash = if position == 0 { head } else { entry.hash };
        let raw = RawDxEntry { hash: U32::new(hash), child: U32::new(entry.child.0) };
        put(block, index(offset), raw.as_bytes(), HTREE)?;
        offset = offset.saturating_add(8);
    }
    Ok(())
}

/// Brings the checksum of a root or node up to date. `seed` is the directory's checksum seed.
pub fn update_htree_checksum(block: &mut [u8], seed: u32) -> Result<(), EncodeError> {
    let (tail, sum) = checksum_of(block, seed).map_err(|_| EncodeError::new(HTREE, "limit"))?;
    put(block, tail.saturating_add(4), &sum.to_le_bytes(), HTREE)
}
