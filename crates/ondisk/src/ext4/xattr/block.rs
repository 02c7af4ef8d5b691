//! The block of attributes: a header with reference count, hash and checksum, then the entries.

use super::area::{XattrArea, XattrFormat};
use super::{MAGIC, PAD};
use crate::bytes::{le32_at, put};
use crate::checksum::csum;
use crate::error::{Corrupt, CorruptKind, EncodeError};
use crate::ext4::superblock::Superblock;
use crate::numbers::Pblk;

const STRUCTURE: &str = "attribute block";
/// Bytes of `struct ext4_xattr_header`.
pub const XATTR_BLOCK_HEADER_SIZE: usize = 32;
const REFCOUNT: usize = 4;
const BLOCKS: usize = 8;
const HASH: usize = 12;
const CHECKSUM: usize = 16;
const CHECKSUM_END: usize = 20;

/// A checked block of attributes.
#[derive(Clone, Copy, Debug)]
pub struct XattrBlock<'a> {
    /// Inodes that share the block (`h_refcount`).
    pub reference_count: u32,
    /// Hash over all entries (`h_hash`), by which equal blocks are found; 0 = not to be shared.
    pub hash: u32,
    /// The attributes.
    pub area: XattrArea<'a>,
}

impl<'a> XattrBlock<'a> {
    /// Decodes the whole block read from `block`; the checksum is checked if the volume has metadata
    /// checksums.
    ///
    /// # Errors
    /// [`CorruptKind::XattrMagic`], [`CorruptKind::XattrChecksum`], [`CorruptKind::XattrBlockField`], and those
    /// of the entries, each with the block.
    pub fn decode(bytes: &'a [u8], block: Pblk, sb: &Superblock) -> Result<XattrBlock<'a>, Corrupt> {
        Self::decode_block(bytes, block, sb).map_err(|fault| fault.at_block(block))
    }

    fn decode_block(bytes: &'a [u8], block: Pblk, sb: &Superblock) -> Result<XattrBlock<'a>, Corrupt> {
        let word = |offset| le32_at(bytes, offset).ok_or(CorruptKind::Truncated(STRUCTURE));
        if bytes.len() < XATTR_BLOCK_HEADER_SIZE.saturating_add(PAD) {
            return Err(CorruptKind::Truncated(STRUCTURE).into());
        }
        if word(0)? != MAGIC {
            return Err(CorruptKind::XattrMagic.into());
        }
        if sb.features.metadata_csum() && checksum(bytes, block, sb.checksum_seed()) != Some(word(CHECKSUM)?)
        {
            return Err(CorruptKind::XattrChecksum.into());
        }
        // Longer chains were planned and never came.
        if word(BLOCKS)? != 1 {
            return Err(CorruptKind::XattrBlockField("blocks").into());
        }
        let reference_count = word(REFCOUNT)?;
        if reference_count == 0 {
            return Err(CorruptKind::XattrBlockField("refcount").into());
        }
        let area = XattrArea::checked(bytes, XATTR_BLOCK_HEADER_SIZE, &XattrFormat::new(sb))?;
        Ok(XattrBlock { reference_count, hash: word(HASH)?, area })
    }
}

/// crc32c over the block's number (64 bits) and the block, with its checksum field as zeros
/// (`ext4_xattr_block_csum`).
fn checksum(bytes: &[u8], block: Pblk, seed: u32) -> Option<u32> {
    let sum = csum(seed, &block.0.to_le_bytes());
    let sum = csum(sum, bytes.get(..CHECKSUM)?);
    let sum = csum(sum, &[0; 4]);
    Some(csum(sum, bytes.get(CHECKSUM_END..)?))
}

/// Writes the header of a whole attribute block, checksum included.
pub(super) fn encode_xattr_block(
    bytes: &mut [u8],
    references: u32,
    hash: u32,
    block: Pblk,
    sb: &Superblock,
) -> Result<(), EncodeError> {
    put(bytes, 0, &MAGIC.to_le_bytes(), STRUCTURE)?;
    put(bytes, REFCOUNT, &references.to_le_bytes(), STRUCTURE)?;
    put(bytes, BLOCKS, &1_u32.to_le_bytes(), STRUCTURE)?;
    put(bytes, HASH, &hash.to_le_bytes(), STRUCTURE)?;
    update_xattr_block_checksum(bytes, block, sb)
}

/// Sets the number of inodes that share a whole attribute block, and brings its checksum up to date.
///
/// # Errors
/// If `bytes` is shorter than the header.
pub fn set_xattr_block_references(
    bytes: &mut [u8],
    references: u32,
    block: Pblk,
    sb: &Superblock,
) -> Result<(), EncodeError> {
    put(bytes, REFCOUNT, &references.to_le_bytes(), STRUCTURE)?;
    update_xattr_block_checksum(bytes, block, sb)
}

/// Brings the checksum of a whole attribute block up to date. Does nothing on volumes without metadata
/// checksums.
///
/// # Errors
/// If `bytes` is shorter than the header.
pub fn update_xattr_block_checksum(
    bytes: &mut [u8],
    block: Pblk,
    sb: &Superblock,
) -> Result<(), EncodeError> {
    if !sb.features.metadata_csum() {
        return Ok(());
    }
    let sum = checksum(bytes, block, sb.checksum_seed()).ok_or(EncodeError::too_short(STRUCTURE))?;
    put(bytes, CHECKSUM, &sum.to_le_bytes(), STRUCTURE)
}
