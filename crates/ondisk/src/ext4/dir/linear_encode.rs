//! Writing entries and tails of directory blocks.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

use super::{
    DIR_BLOCK, DirFormat, ENTRY_HEADER_SIZE, MIN_ENTRY_LENGTH, RawEntry, TAIL_CHECKSUM_OFFSET,
    TAIL_FILE_TYPE, TAIL_SIZE, encode_rec_len, entry_length,
};
use crate::bytes::{index, le32_at, length32, put, record_mut};
use crate::checksum::{csum, csum_of_flips};
use crate::error::EncodeError;
use crate::ext4::inode::FileType;
use crate::numbers::Ino;

/// Writes a record at byte `offset` of a block: an entry, or with `inode` = `None` a free record.
///
/// `record_length` reaches to the next record; it must be a multiple of 4, hold the name and end inside the
/// block. The checksum is not touched: see [`update_dir_checksum`].
pub fn encode_dir_entry(
    block: &mut [u8],
    offset: u32,
    record_length: u32,
    inode: Option<Ino>,
    name: &[u8],
    file_type: Option<FileType>,
    format: &DirFormat,
) -> Result<(), EncodeError> {
    let bad_length = EncodeError::new(DIR_BLOCK, "record length");
    let bad_name = EncodeError::new(DIR_BLOCK, "name");
    let name_len = u8::try_from(name.len()).map_err(|_| bad_name)?;
    if inode.is_some() == name.is_empty() {
        return Err(bad_name);
    }
    let end = offset.checked_add(record_length).ok_or(bad_length)?;
    if record_length < MIN_ENTRY_LENGTH.max(entry_length(name_len)) || end > length32(block) {
        return Err(bad_length);
    }
    let rec_len = encode_rec_len(record_length, format.block_size).ok_or(bad_length)?;
    let file_type = file_type.filter(|_| format.file_types).map_or(0, FileType::dir_entry_value);
    let raw = RawEntry {
        inode: U32::new(inode.map_or(0, Ino::get)),
        rec_len: U16::new(rec_len),
        name_len,
        file_type,
    };
    put(block, index(offset), raw.as_bytes(), DIR_BLOCK)?;
    put(block, index(offset).saturating_add(ENTRY_HEADER_SIZE), name, DIR_BLOCK)
}

/// Makes the record at byte `offset` reach so far, and leaves everything else of it as it is. `record_length` is a
/// multiple of 4; that it holds the record's name is for the caller to know.
pub fn set_record_length(
    block: &mut [u8],
    offset: u32,
    record_length: u32,
    format: &DirFormat,
) -> Result<(), EncodeError> {
    let bad_length = EncodeError::new(DIR_BLOCK, "record length");
    let end = offset.checked_add(record_length).filter(|end| *end <= length32(block)).ok_or(bad_length)?;
    let bytes = block.get_mut(index(offset)..index(end)).ok_or(bad_length)?;
    let raw = record_mut::<RawEntry>(bytes, DIR_BLOCK)?;
    raw.rec_len = U16::new(encode_rec_len(record_length, format.block_size).ok_or(bad_length)?);
    Ok(())
}

/// Makes the entry at byte `offset` lead to another inode. Its name stays.
pub fn set_entry_inode(
    block: &mut [u8],
    offset: u32,
    inode: Ino,
    file_type: Option<FileType>,
    format: &DirFormat,
) -> Result<(), EncodeError> {
    let too_short = EncodeError::too_short(DIR_BLOCK);
    let raw = record_mut::<RawEntry>(block.get_mut(index(offset)..).ok_or(too_short)?, DIR_BLOCK)?;
    raw.inode = U32::new(inode.get());
    raw.file_type = file_type.filter(|_| format.file_types).map_or(0, FileType::dir_entry_value);
    Ok(())
}

/// Writes the record that carries a block's checksum, and the checksum. `seed` is the directory's checksum
/// seed.
pub fn encode_dir_tail(block: &mut [u8], seed: u32) -> Result<(), EncodeError> {
    let start = length32(block).checked_sub(TAIL_SIZE).ok_or(EncodeError::too_short(DIR_BLOCK))?;
    let raw = RawEntry { inode: U32::ZERO, rec_len: U16::new(12), name_len: 0, file_type: TAIL_FILE_TYPE };
    put(block, index(start), raw.as_bytes(), DIR_BLOCK)?;
    update_dir_checksum(block, seed)
}

/// Brings the checksum in a block's tail up to date. The tail must be there already.
pub fn update_dir_checksum(block: &mut [u8], seed: u32) -> Result<(), EncodeError> {
    let too_short = EncodeError::too_short(DIR_BLOCK);
    let start = length32(block).checked_sub(TAIL_SIZE).ok_or(too_short)?;
    let sum = csum(seed, block.get(..index(start)).ok_or(too_short)?);
    let offset = start.saturating_add(TAIL_CHECKSUM_OFFSET);
    put(block, index(offset), &sum.to_le_bytes(), DIR_BLOCK)
}

/// The same if only these bytes have changed: offsets and what was there `before`. The checksum was right then.
pub fn flip_dir_checksum(block: &mut [u8], before: &[(usize, Vec<u8>)]) -> Result<(), EncodeError> {
    let too_short = EncodeError::too_short(DIR_BLOCK);
    let start = index(length32(block).checked_sub(TAIL_SIZE).ok_or(too_short)?);
    let mut change = 0;
    for (offset, old) in before {
        let end = offset.saturating_add(old.len());
        let new = block.get(*offset..end).ok_or(too_short)?;
        let flips: Vec<u8> = old.iter().zip(new).map(|(old, new)| old ^ new).collect();
        change ^= csum_of_flips(&flips, start.checked_sub(end).ok_or(too_short)?);
    }
    let offset = index(TAIL_CHECKSUM_OFFSET).saturating_add(start);
    let sum = le32_at(block, offset).ok_or(too_short)? ^ change;
    put(block, offset, &sum.to_le_bytes(), DIR_BLOCK)
}
