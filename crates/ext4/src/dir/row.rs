//! A row of directory entries, in a block or inside an inode: scanning it, adding and removing a name.

use super::name::Wanted;
use crate::ground::error::{Error, Result};
use std::ops::Range;
use uext4_ondisk::ext4::{
    DirBlock, DirFormat, FileType, encode_dir_entry, entry_length, set_entry_inode, set_record_length,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino};

/// Offsets of the name's length, and of the name, in an entry.
const NAME_LENGTH: usize = 6;
const NAME: usize = 8;

/// A name and the inode it leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<'n> {
    pub(super) name: &'n [u8],
    pub(super) ino: Ino,
    pub(super) kind: Option<FileType>,
}

impl Entry<'_> {
    /// Bytes that it takes in a row.
    pub(super) fn length(&self) -> u32 {
        entry_length(u8::try_from(self.name.len()).unwrap_or(u8::MAX))
    }

    /// Its bytes.
    pub(super) fn bytes(&self, format: &DirFormat) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.length() as usize];
        self.put(&mut bytes, 0, self.length(), format)?;
        Ok(bytes)
    }

    fn put(&self, row: &mut [u8], offset: u32, length: u32, format: &DirFormat) -> Result<()> {
        encode_dir_entry(row, offset, length, Some(self.ino), self.name, self.kind, format)
            .map_err(Error::from)
    }
}

/// Where an entry is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) ino: Ino,
    offset: u32,
    length: u32,
    /// Offset and length of the record before it.
    before: Option<(u32, u32)>,
}

/// A record with room after its entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    offset: u32,
    length: u32,
    /// Bytes of its entry, 0 if it has none.
    used: u32,
}

impl Held {
    /// The bytes of the row that change when it is removed, or leads elsewhere.
    pub(super) fn touched(&self) -> [Range<u32>; 2] {
        let before = self.before.map_or(0..0, |(offset, _)| offset..offset + NAME as u32);
        [before, self.offset..self.offset + self.length]
    }
}

impl Gap {
    /// The bytes of the row that change when an entry is put there.
    pub(super) fn touched(&self, entry: &Entry<'_>) -> [Range<u32>; 2] {
        let header = self.offset..self.offset + if self.used > 0 { NAME as u32 } else { 0 };
        let start = self.offset + self.used;
        [header, start..start + entry.length()]
    }
}

/// Scans a whole row. Returns the entry of the name, and the first gap of `needed` bytes.
pub(super) fn survey(
    row: DirBlock<'_>,
    wanted: &mut Wanted<'_>,
    needed: u32,
) -> std::result::Result<(Option<Held>, Option<Gap>), Corrupt> {
    let (mut held, mut gap, mut before) = (None, None, None);
    for slot in row.slots() {
        let slot = slot?;
        let (offset, length, used) = (slot.offset, slot.record_length, slot.used_length);
        if let Some(entry) = &slot.entry {
            if !entry.has_valid_name() {
                return Err(CorruptKind::DirEntryName.into());
            }
            if held.is_none() && wanted.is(entry) {
                held = Some(Held { ino: entry.inode, offset, length, before });
            }
        }
        if gap.is_none() && length.saturating_sub(used) >= needed {
            gap = Some(Gap { offset, length, used });
        }
        before = Some((offset, length));
    }
    Ok((held, gap))
}

/// Finds the entry of a name.
pub(super) fn find(row: DirBlock<'_>, wanted: &mut Wanted<'_>) -> std::result::Result<Option<Held>, Corrupt> {
    let Some(name) = wanted.exact() else { return Ok(survey(row, wanted, 0)?.0) };
    let held = row.find(name)?.map(|found| Held {
        ino: found.inode,
        offset: found.offset,
        length: found.record_length,
        before: found.before,
    });
    Ok(held)
}

/// The first gap of `needed` bytes.
pub(super) fn room(row: DirBlock<'_>, needed: u32) -> std::result::Result<Option<Gap>, Corrupt> {
    Ok(row.gap(needed)?.map(|(offset, length, used)| Gap { offset, length, used }))
}

/// Puts an entry into a gap that is long enough.
pub(super) fn put(row: &mut [u8], gap: Gap, entry: &Entry<'_>, format: &DirFormat) -> Result<()> {
    if gap.used > 0 {
        set_record_length(row, gap.offset, gap.used, format)?;
    }
    entry.put(row, gap.offset + gap.used, gap.length - gap.used, format)
}

/// Removes an entry. Its bytes go to the record before it, or become a free record.
pub(super) fn take_out(row: &mut [u8], held: Held, format: &DirFormat) -> Result<()> {
    if let Some(bytes) = row.get_mut(held.offset as usize..(held.offset + held.length) as usize) {
        bytes.fill(0);
    }
    match held.before {
        Some((offset, length)) => {
            set_record_length(row, offset, length + held.length, format).map_err(Error::from)
        }
        None => free(row, held.offset, held.length, format),
    }
}

/// Makes an entry lead to another inode.
pub(super) fn point(
    row: &mut [u8],
    held: Held,
    ino: Ino,
    kind: Option<FileType>,
    format: &DirFormat,
) -> Result<()> {
    set_entry_inode(row, held.offset, ino, kind, format).map_err(Error::from)
}

/// Fills a row with entries; the last one gets the remaining bytes.
pub(super) fn fill<'r>(
    row: &mut [u8],
    records: impl IntoIterator<Item = &'r [u8]>,
    format: &DirFormat,
) -> Result<()> {
    row.fill(0);
    let end = u32::try_from(row.len()).unwrap_or(u32::MAX);
    let (mut offset, mut last) = (0, None);
    for record in records {
        let length = record.len();
        let place = row.get_mut(offset as usize..offset as usize + length);
        place
            .ok_or_else(|| Error::Invalid("the row is too short for its entries".into()))?
            .copy_from_slice(record);
        set_record_length(row, offset, length as u32, format)?;
        last = Some(offset);
        offset += length as u32;
    }
    match last {
        Some(last) => set_record_length(row, last, end - last, format).map_err(Error::from),
        None if end > 0 => free(row, 0, end, format),
        None => Ok(()),
    }
}

/// Writes a free record.
fn free(row: &mut [u8], offset: u32, length: u32, format: &DirFormat) -> Result<()> {
    encode_dir_entry(row, offset, length, None, b"", None, format).map_err(Error::from)
}

/// The bytes of all entries of a row.
pub(super) fn records(row: DirBlock<'_>, bytes: &[u8]) -> std::result::Result<Vec<Vec<u8>>, Corrupt> {
    let mut records = Vec::new();
    for slot in row.slots() {
        let slot = slot?;
        let (start, end) = (slot.offset as usize, (slot.offset + slot.used_length) as usize);
        if slot.entry.is_some() {
            records.push(bytes.get(start..end).unwrap_or_default().to_vec());
        }
    }
    Ok(records)
}

/// The name in the bytes of an entry.
pub(super) fn name(record: &[u8]) -> &[u8] {
    let length = record.get(NAME_LENGTH).copied().unwrap_or(0);
    record.get(NAME..NAME + usize::from(length)).unwrap_or_default()
}
