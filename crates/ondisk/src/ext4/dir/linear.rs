//! Directory blocks as chains of entries.

use super::{
    DIR_BLOCK, DirFormat, ENTRY_HEADER_SIZE, MIN_ENTRY_LENGTH, RawEntry, TAIL_CHECKSUM_OFFSET,
    TAIL_FILE_TYPE, TAIL_SIZE, decode_rec_len,
};
use crate::bytes::{index, le32_at, length32, record};
use crate::checksum::csum;
use crate::error::{Corrupt, CorruptKind};
use crate::ext4::inode::FileType;
use crate::numbers::{Ino, Lblk};

/// What a block of a directory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirBlockKind {
    /// Entries and, on volumes with checksums, a tail with the checksum.
    Linear,
    /// `.` and `..`, and behind them the root of the hash tree.
    HtreeRoot,
    /// One empty entry, and behind it a node of the hash tree.
    HtreeNode,
}

impl DirBlockKind {
    /// What the block at `lblk` holds, the way the kernel tells: block 0 of an indexed directory is the
    /// root, and a block whose first record fills it is a node. `indexed` = the inode has
    /// [`super::super::InodeFlags::INDEX`].
    pub fn of(bytes: &[u8], indexed: bool, lblk: Lblk, format: &DirFormat) -> DirBlockKind {
        if !indexed {
            return DirBlockKind::Linear;
        }
        if lblk.0 == 0 {
            return DirBlockKind::HtreeRoot;
        }
        match record::<RawEntry>(bytes, DIR_BLOCK) {
            Ok(first)
                if first.inode.get() == 0
                    && decode_rec_len(first.rec_len.get(), format.block_size) == format.block_size =>
            {
                DirBlockKind::HtreeNode
            }
            _ => DirBlockKind::Linear,
        }
    }
}

/// Bytes that an entry with a name of this length needs: header and name, rounded up to a multiple of 4.
pub fn entry_length(name_length: u8) -> u32 {
    u32::from(name_length).saturating_add(8).next_multiple_of(4)
}

/// A directory entry in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Byte offset of the entry in its block.
    pub offset: u32,
    /// The inode it names; inside the volume's range.
    pub inode: Ino,
    /// Bytes from this entry to the next.
    pub record_length: u32,
    /// The name: 1 to 255 bytes, otherwise as found; see [`DirEntry::has_valid_name`].
    pub name: &'a [u8],
    /// Type of the file, if the volume stores it and the value has a meaning.
    pub file_type: Option<FileType>,
}

impl DirEntry<'_> {
    /// Whether this is `.`.
    pub fn is_dot(&self) -> bool {
        self.name == b"."
    }

    /// Whether this is `..`.
    pub fn is_dot_dot(&self) -> bool {
        self.name == b".."
    }

    /// Whether the name has neither `/` nor NUL. Names of an encrypted directory may have both as stored.
    #[inline]
    pub fn has_valid_name(&self) -> bool {
        is_valid(self.name)
    }
}

#[inline]
fn is_valid(name: &[u8]) -> bool {
    // The last word may overlap the one before it.
    match (name.first_chunk::<8>(), name.last_chunk::<8>()) {
        (Some(first), Some(last)) if name.len() <= 16 => {
            !has_forbidden(u64::from_le_bytes(*first)) && !has_forbidden(u64::from_le_bytes(*last))
        }
        (_, Some(last)) => {
            let words = name.as_chunks::<8>().0;
            !has_forbidden(u64::from_le_bytes(*last))
                && !words.iter().any(|word| has_forbidden(u64::from_le_bytes(*word)))
        }
        (_, None) => !name.iter().any(|byte| matches!(*byte, b'/' | 0)),
    }
}

/// Whether one of eight bytes is `/` or NUL.
fn has_forbidden(word: u64) -> bool {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = u64::from_le_bytes([0x80; 8]);
    // The high bit of a byte is set in `(word - 1) & !word` if the byte is 0 (or a borrow reached it, from a lower one
    // that is 0).
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & HIGH;
    zeros(word) | zeros(word ^ u64::from_le_bytes([b'/'; 8])) != 0
}

/// A record of a directory block, in use or free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirSlot<'a> {
    /// Byte offset of the record in its block.
    pub offset: u32,
    /// Bytes from this record to the next.
    pub record_length: u32,
    /// Bytes that the entry in it needs; 0 if the record is free.
    pub used_length: u32,
    /// The entry, or `None` if the record is free.
    pub entry: Option<DirEntry<'a>>,
}

/// The fixed fields of a record.
#[derive(Clone, Copy)]
struct RecordHeader {
    offset: u32,
    inode: u32,
    length: u32,
    name_length: u8,
}

/// Where an entry was found ([`DirBlock::find`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundEntry {
    /// Byte offset of its record in the block.
    pub offset: u32,
    /// Bytes from this record to the next.
    pub record_length: u32,
    /// The inode it names; inside the volume's range.
    pub inode: Ino,
    /// Offset and length of the record before it.
    pub before: Option<(u32, u32)>,
}

/// A block of a directory, or the entries inside an inode, as a chain of records.
#[derive(Clone, Copy, Debug)]
pub struct DirBlock<'a> {
    area: &'a [u8],
    format: DirFormat,
}

impl<'a> DirBlock<'a> {
    /// Opens a whole block. Its checksum is checked separately, by [`verify_dir_checksum`] or
    /// [`super::verify_htree_checksum`].
    ///
    /// In the blocks of a hash tree the index itself is covered by a record and stays invisible.
    pub fn new(bytes: &'a [u8], kind: DirBlockKind, format: &DirFormat) -> Result<DirBlock<'a>, Corrupt> {
        let truncated = CorruptKind::Truncated(DIR_BLOCK);
        let length = format.row_length(kind);
        if bytes.len() != index(format.block_size) {
            return Err(truncated.into());
        }
        Ok(DirBlock { area: bytes.get(..index(length)).ok_or(truncated)?, format: *format })
    }

    /// Opens a chain of entries outside a block: inline data. There is no tail.
    pub fn inline(bytes: &'a [u8], format: &DirFormat) -> DirBlock<'a> {
        DirBlock { area: bytes, format: *format }
    }

    /// All entries in use, `.` and `..` included. After an error the iterator ends.
    pub fn entries(&self) -> DirEntries<'a> {
        DirEntries { slots: self.slots() }
    }

    /// Finds an entry by its exact name: the record of it, and offset and length of the record before. The lengths and
    /// inode numbers of all records up to it are checked, as by [`DirBlock::slots`], and that names are valid.
    pub fn find(&self, name: &[u8]) -> Result<Option<FoundEntry>, Corrupt> {
        let inodes = self.format.inodes_count;
        let mut before = None;
        self.records(|record, names| {
            let (offset, record_length) = (record.offset, record.length);
            if record.inode > inodes {
                return Err(CorruptKind::DirEntryInode);
            }
            if let Some(inode) = Ino::nonzero(record.inode) {
                let found = names.get(..usize::from(record.name_length)).unwrap_or_default();
                if found.is_empty() || !is_valid(found) {
                    return Err(CorruptKind::DirEntryName);
                }
                // Names that are made one after another have the same length and differ in their last byte.
                if found.len() == name.len() && found.last() == name.last() && found == name {
                    return Ok(Some(FoundEntry { offset, record_length, inode, before }));
                }
            }
            before = Some((offset, record_length));
            Ok(None)
        })
    }

    /// Finds the first record with `needed` free bytes after its entry: its offset, its length, and the bytes of its
    /// entry. Only lengths are checked.
    pub fn gap(&self, needed: u32) -> Result<Option<(u32, u32, u32)>, Corrupt> {
        self.records(|record, _| {
            let used = if record.inode == 0 { 0 } else { entry_length(record.name_length) };
            let fits = record.length.saturating_sub(used) >= needed;
            Ok(fits.then_some((record.offset, record.length, used)))
        })
    }

    /// Calls `each` for the records, with the bytes after their headers, until it returns `Some`.
    #[inline(always)]
    fn records<T>(
        &self,
        mut each: impl FnMut(RecordHeader, &[u8]) -> Result<Option<T>, CorruptKind>,
    ) -> Result<Option<T>, Corrupt> {
        let (mut rest, mut offset) = (self.area, 0_u32);
        while !rest.is_empty() {
            let (header, names) =
                rest.split_first_chunk::<ENTRY_HEADER_SIZE>().ok_or(CorruptKind::DirEntryLength)?;
            let [i0, i1, i2, i3, r0, r1, name_length, _] = *header;
            let inode = u32::from_le_bytes([i0, i1, i2, i3]);
            let length = decode_rec_len(u16::from_le_bytes([r0, r1]), self.format.block_size);
            let next = rest.get(index(length)..).ok_or(CorruptKind::DirEntryLength)?;
            let sound = length >= MIN_ENTRY_LENGTH.max(entry_length(name_length))
                && length.is_multiple_of(4)
                && (next.is_empty() || length32(next) >= MIN_ENTRY_LENGTH);
            if !sound {
                return Err(CorruptKind::DirEntryLength.into());
            }
            if let Some(found) = each(RecordHeader { offset, inode, length, name_length }, names)? {
                return Ok(Some(found));
            }
            (rest, offset) = (next, offset.saturating_add(length));
        }
        Ok(None)
    }

    /// All records, free ones included. After an error the iterator ends.
    pub fn slots(&self) -> DirSlots<'a> {
        DirSlots { area: self.area, format: self.format, offset: 0 }
    }
}

/// Iterator over the records of a directory block. Each step moves by at least 12 bytes.
#[derive(Clone, Debug)]
pub struct DirSlots<'a> {
    area: &'a [u8],
    format: DirFormat,
    offset: u32,
}

impl<'a> DirSlots<'a> {
    #[inline]
    fn read(&self) -> Result<DirSlot<'a>, CorruptKind> {
        let offset = self.offset;
        let rest = self.area.get(index(offset)..).unwrap_or_default();
        let (header, names) =
            rest.split_first_chunk::<ENTRY_HEADER_SIZE>().ok_or(CorruptKind::DirEntryLength)?;
        let [i0, i1, i2, i3, r0, r1, name_length, file_type] = *header;
        let record_length = decode_rec_len(u16::from_le_bytes([r0, r1]), self.format.block_size);
        let needed = entry_length(name_length);
        let left = length32(rest).wrapping_sub(record_length);
        // What is left after this record must be nothing or room for another one.
        let left_is_usable = record_length <= length32(rest) && (left == 0 || left >= MIN_ENTRY_LENGTH);
        let long_enough = record_length >= MIN_ENTRY_LENGTH.max(needed) && record_length.is_multiple_of(4);
        if !long_enough || !left_is_usable {
            return Err(CorruptKind::DirEntryLength);
        }
        let inode = match Ino::nonzero(u32::from_le_bytes([i0, i1, i2, i3])) {
            None => return Ok(DirSlot { offset, record_length, used_length: 0, entry: None }),
            Some(inode) if inode.0 > self.format.inodes_count => return Err(CorruptKind::DirEntryInode),
            Some(inode) => inode,
        };
        let name = names.get(..usize::from(name_length));
        let name = name.filter(|name| !name.is_empty()).ok_or(CorruptKind::DirEntryName)?;
        let file_type = if self.format.file_types { FileType::from_dir_entry(file_type) } else { None };
        let entry = DirEntry { offset, inode, record_length, name, file_type };
        Ok(DirSlot { offset, record_length, used_length: needed, entry: Some(entry) })
    }
}

impl<'a> Iterator for DirSlots<'a> {
    type Item = Result<DirSlot<'a>, Corrupt>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let end = length32(self.area);
        if self.offset >= end {
            return None;
        }
        match self.read() {
            Ok(slot) => {
                self.offset = self.offset.saturating_add(slot.record_length);
                Some(Ok(slot))
            }
            Err(kind) => {
                self.offset = end;
                Some(Err(kind.into()))
            }
        }
    }
}

impl std::iter::FusedIterator for DirSlots<'_> {}

/// Iterator over the entries of a directory block that are in use.
#[derive(Clone, Debug)]
pub struct DirEntries<'a> {
    slots: DirSlots<'a>,
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = Result<DirEntry<'a>, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        self.slots.find_map(|slot| match slot {
            Ok(slot) => slot.entry.map(Ok),
            Err(fault) => Some(Err(fault)),
        })
    }
}

impl std::iter::FusedIterator for DirEntries<'_> {}

/// Checks the checksum of a block of entries. `seed` is the directory's checksum seed.
///
/// Call it on volumes with metadata checksums only, for blocks of [`DirBlockKind::Linear`].
pub fn verify_dir_checksum(bytes: &[u8], seed: u32) -> Result<(), Corrupt> {
    let truncated = CorruptKind::Truncated(DIR_BLOCK);
    let start = length32(bytes).checked_sub(TAIL_SIZE).ok_or(truncated)?;
    let tail = bytes.get(index(start)..).ok_or(truncated)?;
    let raw: &RawEntry = record(tail, DIR_BLOCK)?;
    let is_tail = raw.inode.get() == 0
        && u32::from(raw.rec_len.get()) == TAIL_SIZE
        && raw.name_len == 0
        && raw.file_type == TAIL_FILE_TYPE;
    if !is_tail {
        return Err(CorruptKind::DirTail.into());
    }
    let stored = le32_at(tail, index(TAIL_CHECKSUM_OFFSET)).ok_or(truncated)?;
    let covered = bytes.get(..index(start)).ok_or(truncated)?;
    if csum(seed, covered) == stored { Ok(()) } else { Err(CorruptKind::DirChecksum.into()) }
}
