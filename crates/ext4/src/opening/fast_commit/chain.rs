//! A row of directory entries, in a block or inside an inode: putting a name in and taking one out.

use crate::ground::error::Result;
use crate::inode::fields::unencodable;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{DirBlock, DirFormat, DirSlot, FileType, encode_dir_entry, entry_length};

/// A name and what it stands for.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: Box<[u8]>,
    pub(super) ino: Ino,
    pub(super) kind: Option<FileType>,
}

impl Entry {
    /// Bytes that it needs in a directory.
    pub(super) fn length(&self) -> u32 {
        entry_length(u8::try_from(self.name.len()).unwrap_or(u8::MAX))
    }

    /// Writes the entry to `offset`, up to the next one.
    pub(super) fn put(&self, area: &mut [u8], offset: u32, length: u32, format: &DirFormat) -> Result<()> {
        encode_dir_entry(area, offset, length, Some(self.ino), &self.name, self.kind, format)
            .map_err(unencodable)
    }
}

/// A place in a row.
struct Slot {
    offset: u32,
    length: u32,
    used: u32,
    entry: Option<Entry>,
}

impl From<DirSlot<'_>> for Slot {
    fn from(slot: DirSlot<'_>) -> Slot {
        let entry = slot.entry.map(|entry| Entry {
            name: entry.name.into(),
            ino: entry.inode,
            kind: entry.file_type,
        });
        Slot { offset: slot.offset, length: slot.record_length, used: slot.used_length, entry }
    }
}

impl Slot {
    /// Writes it with another length.
    fn put(&self, area: &mut [u8], length: u32, format: &DirFormat) -> Result<()> {
        match &self.entry {
            Some(entry) => entry.put(area, self.offset, length, format),
            None => free(area, self.offset, length, format),
        }
    }
}

/// Writes a free record.
pub(super) fn free(area: &mut [u8], offset: u32, length: u32, format: &DirFormat) -> Result<()> {
    encode_dir_entry(area, offset, length, None, b"", None, format).map_err(unencodable)
}

/// All entries.
pub(super) fn entries(area: &[u8], format: &DirFormat) -> Result<Vec<Entry>> {
    let row = DirBlock::inline(area, format);
    row.slots()
        .filter_map(|slot| slot.map(|slot| Slot::from(slot).entry).transpose())
        .collect::<std::result::Result<_, _>>()
        .map_err(Into::into)
}

/// Bytes of the longest entry that fits.
pub(super) fn room(area: &[u8], format: &DirFormat) -> Result<u32> {
    let mut most = 0;
    for slot in DirBlock::inline(area, format).slots() {
        let slot = slot?;
        most = most.max(slot.record_length.saturating_sub(slot.used_length));
    }
    Ok(most)
}

/// Puts an entry where there is room for it. Returns whether there was.
pub(super) fn insert(area: &mut [u8], entry: &Entry, format: &DirFormat) -> Result<bool> {
    let needed = entry.length();
    let mut found = None;
    for slot in DirBlock::inline(area, format).slots() {
        let slot = slot?;
        if slot.record_length.saturating_sub(slot.used_length) >= needed {
            found = Some(Slot::from(slot));
            break;
        }
    }
    let Some(slot) = found else { return Ok(false) };
    if slot.used > 0 {
        slot.put(area, slot.used, format)?;
    }
    entry.put(area, slot.offset + slot.used, slot.length - slot.used, format)?;
    Ok(true)
}

/// Takes an entry out. Returns whether it was there.
pub(super) fn remove(area: &mut [u8], name: &[u8], ino: Ino, format: &DirFormat) -> Result<bool> {
    let mut before: Option<Slot> = None;
    let mut found = None;
    for slot in DirBlock::inline(area, format).slots() {
        let slot = Slot::from(slot?);
        if slot.entry.as_ref().is_some_and(|entry| *entry.name == *name && entry.ino == ino) {
            found = Some(slot);
            break;
        }
        before = Some(slot);
    }
    let Some(slot) = found else { return Ok(false) };
    let (start, end) = (slot.offset as usize, (slot.offset + slot.length) as usize);
    if let Some(bytes) = area.get_mut(start..end) {
        bytes.fill(0);
    }
    match before {
        Some(before) => before.put(area, before.length + slot.length, format)?,
        None => free(area, slot.offset, slot.length, format)?,
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: DirFormat = DirFormat {
        block_size: 1024,
        checksums: false,
        file_types: true,
        inodes_count: 1000,
        large_dir: false,
    };

    fn entry(number: u32, length: usize) -> Entry {
        let name = format!("{number:0>length$}").into_bytes().into();
        Entry { name, ino: Ino(number), kind: Some(FileType::Regular) }
    }

    #[test]
    fn what_is_put_in_can_be_taken_out_until_the_row_is_as_before() {
        let mut area = [0; 256];
        free(&mut area, 0, 256, &FORMAT).unwrap();
        let empty = area;
        let mut held = Vec::new();
        for number in 1.. {
            let entry = entry(number, 3 + number as usize * 5 % 29);
            assert_eq!(room(&area, &FORMAT).unwrap() >= entry.length(), {
                let fits = insert(&mut area, &entry, &FORMAT).unwrap();
                held.extend(fits.then(|| entry.clone()));
                fits
            });
            if held.len() < number as usize {
                break;
            }
        }
        assert!(held.len() > 5);
        assert_eq!(entries(&area, &FORMAT).unwrap().len(), held.len());
        // Every second one first, so that free places lie between others.
        let (even, odd): (Vec<_>, Vec<_>) = held.iter().partition(|entry| entry.ino.get() % 2 == 0);
        for entry in even.into_iter().chain(odd) {
            assert!(!remove(&mut area, &entry.name, Ino(999), &FORMAT).unwrap());
            assert!(remove(&mut area, &entry.name, entry.ino, &FORMAT).unwrap());
            assert!(!remove(&mut area, &entry.name, entry.ino, &FORMAT).unwrap());
        }
        assert_eq!(area, empty);
    }
}
