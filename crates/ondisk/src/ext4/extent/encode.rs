//! Writing an extent tree node.

use std::ops::Range;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::node::{
    Extent, ExtentIndex, MAX_EXTENT_DEPTH, MAX_EXTENT_LENGTH, MAX_UNWRITTEN_LENGTH, ROOT_CAPACITY,
    block_capacity, tail_offset,
};
use super::{ENTRY_SIZE, HEADER_SIZE, MAGIC, RawHeader, RawIndex, RawLeaf, STRUCTURE, WRITTEN_LIMIT};
use crate::bytes::{high32, le32_at, length32, low32, put};
use crate::checksum::{csum, csum_of_flips};
use crate::error::EncodeError;
use crate::ext4::inode::I_BLOCK_SIZE;
use crate::numbers::Pblk;

/// Most bytes of entries whose change is put into a checksum: with more, the sum of all costs no more.
const FLIPS: usize = 2048;

/// Makes `bytes` — an inode's `i_block` or a whole block — a leaf with these extents, which must be in order.
///
/// Bytes after the last entry stay as they are. In a block, call [`update_extent_checksum`] afterwards.
pub fn encode_extent_leaf(bytes: &mut [u8], generation: u32, extents: &[Extent]) -> Result<(), EncodeError> {
    start_node(bytes, extents.len(), 0, generation)?;
    for (slot, extent) in entries_of(bytes).zip(extents) {
        let raw = raw_leaf(extent)?;
        slot.copy_from_slice(raw.as_bytes());
    }
    Ok(())
}

/// Makes `bytes` — an inode's `i_block` or a whole block — an index node with these entries, which must be
/// in order.
///
/// `depth` is the number of levels below, 1 to 5. In a block, call [`update_extent_checksum`] afterwards.
pub fn encode_extent_index(
    bytes: &mut [u8],
    depth: u16,
    generation: u32,
    indexes: &[ExtentIndex],
) -> Result<(), EncodeError> {
    if depth == 0 || depth > MAX_EXTENT_DEPTH {
        return Err(EncodeError::new(STRUCTURE, "depth"));
    }
    start_node(bytes, indexes.len(), depth, generation)?;
    for (slot, index) in entries_of(bytes).zip(indexes) {
        let (child_lo, child_hi) = split_block(index.child)?;
        let raw = RawIndex { logical: U32::new(index.logical.0), child_lo, child_hi, unused: U16::ZERO };
        slot.copy_from_slice(raw.as_bytes());
    }
    Ok(())
}

/// Puts `extents` in place of the entries `at` of a leaf, which lies in an inode's `i_block` or in a whole block. The
/// entries must be in order afterwards.
///
/// Bytes after the last entry stay as they are. In a block, call [`update_extent_checksum`] afterwards.
///
/// # Errors
/// If there are no such entries, they do not fit, or one cannot be stored; nothing was changed then.
pub fn splice_extent_leaf(bytes: &mut [u8], at: Range<usize>, extents: &[Extent]) -> Result<(), EncodeError> {
    let too_short = |_| EncodeError::too_short(STRUCTURE);
    let wrong = EncodeError::new(STRUCTURE, "entries");
    let (header, area) = RawHeader::mut_from_prefix(bytes).map_err(|_| EncodeError::too_short(STRUCTURE))?;
    let (count, capacity) = (usize::from(header.entries.get()), usize::from(header.capacity.get()));
    if header.magic.get() != MAGIC || header.depth.get() != 0 {
        return Err(EncodeError::new(STRUCTURE, "depth"));
    }
    let behind = count.checked_sub(at.end).filter(|_| at.start <= at.end).ok_or(wrong)?;
    let end = at.start.saturating_add(extents.len());
    let after = end.saturating_add(behind);
    let count_after = u16::try_from(after).ok().filter(|_| after <= capacity).ok_or(wrong)?;
    extents.iter().try_for_each(|extent| raw_leaf(extent).map(drop))?;
    let (entries, _) = <[RawLeaf]>::mut_from_prefix_with_elems(area, capacity).map_err(too_short)?;
    entries.copy_within(at.end..count, end);
    for (slot, extent) in entries.iter_mut().skip(at.start).zip(extents) {
        *slot = raw_leaf(extent)?;
    }
    header.entries.set(count_after);
    Ok(())
}

/// The same in a block whose checksum is right, which it stays. `seed` is the inode's checksum seed.
///
/// # Errors
/// As of [`splice_extent_leaf`].
pub fn splice_sealed_leaf(
    bytes: &mut [u8],
    at: Range<usize>,
    extents: &[Extent],
    seed: u32,
) -> Result<(), EncodeError> {
    let byte = |entry: usize| entry.saturating_mul(ENTRY_SIZE).saturating_add(HEADER_SIZE);
    let too_short = EncodeError::too_short(STRUCTURE);
    let (header, _) = RawHeader::ref_from_prefix(&*bytes).map_err(|_| too_short)?;
    let (count, tail) = (usize::from(header.entries.get()), tail_offset(header.capacity.get()));
    // If the entries behind stay where they are, they do not change.
    let end = match extents.len() == at.len() {
        true => at.end,
        false => {
            count.max(at.start.saturating_add(extents.len()).saturating_add(count.saturating_sub(at.end)))
        }
    };
    let mut flips = [0; FLIPS];
    let place = byte(at.start)..byte(end);
    let flips = flips.get_mut(..place.len()).filter(|_| place.end <= tail);
    let (Some(flips), Some(before)) = (flips, bytes.get(place.clone())) else {
        splice_extent_leaf(bytes, at, extents)?;
        return update_extent_checksum(bytes, seed);
    };
    flips.copy_from_slice(before);
    splice_extent_leaf(bytes, at, extents)?;
    // No other byte has changed but those of the count.
    flips.iter_mut().zip(bytes.get(place.clone()).unwrap_or_default()).for_each(|(flip, now)| *flip ^= now);
    let (header, _) = RawHeader::ref_from_prefix(&*bytes).map_err(|_| too_short)?;
    let counts = usize::from(header.entries.get()) ^ count;
    let mut sum = le32_at(bytes, tail).ok_or(too_short)?;
    if counts > 0 {
        let count_end = std::mem::offset_of!(RawHeader, capacity);
        let counts = u16::try_from(counts).unwrap_or_default().to_le_bytes();
        sum ^= csum_of_flips(&counts, tail.checked_sub(count_end).ok_or(too_short)?);
    }
    sum ^= csum_of_flips(flips, tail.checked_sub(place.end).ok_or(too_short)?);
    put(bytes, tail, &sum.to_le_bytes(), STRUCTURE)
}

/// Brings the checksum of a node in a block of its own up to date. `seed` is the inode's checksum seed.
pub fn update_extent_checksum(bytes: &mut [u8], seed: u32) -> Result<(), EncodeError> {
    let too_short = EncodeError::too_short(STRUCTURE);
    let (header, _) = RawHeader::ref_from_prefix(&*bytes).map_err(|_| too_short)?;
    let tail = tail_offset(header.capacity.get());
    let sum = csum(seed, bytes.get(..tail).ok_or(too_short)?);
    put(bytes, tail, &sum.to_le_bytes(), STRUCTURE)
}

fn entries_of(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    bytes.get_mut(HEADER_SIZE..).unwrap_or_default().chunks_exact_mut(ENTRY_SIZE)
}

fn start_node(bytes: &mut [u8], count: usize, depth: u16, generation: u32) -> Result<(), EncodeError> {
    let capacity = if bytes.len() == I_BLOCK_SIZE { ROOT_CAPACITY } else { block_capacity(length32(bytes)) };
    let entries = u16::try_from(count).ok().filter(|entries| *entries <= capacity);
    let header = RawHeader {
        magic: U16::new(MAGIC),
        entries: U16::new(entries.ok_or(EncodeError::new(STRUCTURE, "entries"))?),
        capacity: U16::new(capacity),
        depth: U16::new(depth),
        generation: U32::new(generation),
    };
    put(bytes, 0, header.as_bytes(), STRUCTURE)
}

fn raw_leaf(extent: &Extent) -> Result<RawLeaf, EncodeError> {
    let error = EncodeError::new(STRUCTURE, "length");
    let limit = if extent.unwritten { MAX_UNWRITTEN_LENGTH } else { MAX_EXTENT_LENGTH };
    if extent.length == 0 || extent.length > limit {
        return Err(error);
    }
    let length = u16::try_from(extent.length).map_err(|_| error)?;
    let stored = if extent.unwritten { length.checked_add(WRITTEN_LIMIT).ok_or(error)? } else { length };
    let (start_lo, start_hi) = split_block(extent.physical)?;
    Ok(RawLeaf { logical: U32::new(extent.logical.0), length: U16::new(stored), start_hi, start_lo })
}

/// Block numbers of extent trees have 48 bits.
fn split_block(block: Pblk) -> Result<(U32, U16), EncodeError> {
    let high = u16::try_from(high32(block.0)).map_err(|_| EncodeError::new(STRUCTURE, "block"))?;
    Ok((U32::new(low32(block.0)), U16::new(high)))
}
