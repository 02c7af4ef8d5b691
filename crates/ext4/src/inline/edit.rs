//! Inline data of an inode being edited: where it lies in the record, storing it, and removing it when the contents
//! move to blocks.

use super::{ATTRIBUTE, InlineData};
use crate::ground::error::{Error, Result};
use crate::inode::draft::Draft;
use std::ops::Range;
use uext4_ondisk::ext4::{
    I_BLOCK_SIZE, InodeFlags, ListedXattr, Superblock, XattrArea, XattrFormat, XattrIndex, XattrList,
};
use uext4_ondisk::{Corrupt, CorruptKind};

/// The magic number before the attributes, and its size.
const MAGIC: u32 = 0xEA02_0000;
const MAGIC_SIZE: usize = 4;
/// Bytes of an attribute's entry header, and of the zeros after the last entry.
const HEAD_SIZE: usize = 16;
const END_SIZE: usize = 4;
/// As in Linux (`ext4_get_max_inline_size`), a file becomes inline only if the attribute could hold a few bytes.
const NEW_SPARE: usize = 4;

/// The contents, checked as for reading.
pub(crate) fn data<'d>(superblock: &Superblock, draft: &'d Draft) -> Result<InlineData<'d>> {
    let in_inode = |corrupt: Corrupt| Error::from(corrupt.in_inode(draft.ino));
    let area = match draft.disk.extra_isize {
        // Then nothing in the record after the base part is trusted.
        0 => None,
        _ => {
            let bytes = draft.raw.get(draft.disk.xattr_range(superblock)).unwrap_or_default();
            XattrArea::in_inode(bytes, &XattrFormat::new(superblock)).map_err(in_inode)?
        }
    };
    InlineData::in_area(&draft.disk, area).map_err(|what| in_inode(CorruptKind::InlineData(what).into()))
}

/// The contents of a regular file, up to its size; none if it is not inline.
///
/// # Errors
/// As of [`data`].
pub(crate) fn contents(superblock: &Superblock, draft: &Draft) -> Result<Vec<u8>> {
    if !draft.disk.has_inline_data() {
        return Ok(Vec::new());
    }
    let data = data(superblock, draft)?;
    let mut contents = [&data.first[..], data.rest].concat();
    contents.truncate(usize::try_from(draft.disk.size).unwrap_or(usize::MAX));
    Ok(contents)
}

/// The attributes in the record, and the bytes that they may take; `None` if it has no room for any.
fn record(superblock: &Superblock, draft: &Draft) -> Result<Option<(XattrList, usize)>> {
    let bytes = draft.raw.get(draft.disk.xattr_range(superblock)).unwrap_or_default();
    if draft.disk.extra_isize == 0 || bytes.len() < MAGIC_SIZE + END_SIZE {
        return Ok(None);
    }
    let area = XattrArea::in_inode(bytes, &XattrFormat::new(superblock));
    let area = area.map_err(|corrupt| Error::from(corrupt.in_inode(draft.ino)))?;
    let list = area.as_ref().map(XattrList::from).unwrap_or_default();
    Ok(Some((list, bytes.len() - MAGIC_SIZE)))
}

/// How many more bytes the second part of the contents could have.
///
/// # Errors
/// [`Error::Corrupt`] of the attributes.
pub(crate) fn room(superblock: &Superblock, draft: &Draft) -> Result<usize> {
    Ok(record(superblock, draft)?.map_or(0, |(list, most)| most.saturating_sub(list.size()) / 4 * 4))
}

/// Sets the second part of the contents, which has room.
///
/// # Errors
/// [`Error::Corrupt`] of the attributes; [`Error::Invalid`] if it does not fit. Nothing was changed then.
pub(crate) fn set_value(superblock: &Superblock, draft: &mut Draft, value: &[u8]) -> Result<()> {
    let (mut list, _) = record(superblock, draft)?.unwrap_or_default();
    list.set(ListedXattr::here(XattrIndex::System, ATTRIBUTE, value, false));
    let range = draft.disk.xattr_range(superblock);
    Ok(list.encode_in_inode(&mut draft.raw[range])?)
}

/// Makes these the contents of a regular file that is inline, or has an empty map. Returns whether they fit beside its
/// attributes; nothing was changed otherwise.
///
/// # Errors
/// [`Error::Corrupt`] of the attributes.
pub(crate) fn store(superblock: &Superblock, draft: &mut Draft, contents: &[u8]) -> Result<bool> {
    let Some((mut list, most)) = record(superblock, draft)? else { return Ok(false) };
    let is_new = !draft.disk.has_inline_data();
    if is_new && list.find(XattrIndex::System, ATTRIBUTE).is_some() {
        return Ok(false);
    }
    let (first, rest) = contents.split_at(contents.len().min(I_BLOCK_SIZE));
    list.set(ListedXattr::here(XattrIndex::System, ATTRIBUTE, rest, false));
    let spare = if is_new && rest.is_empty() { NEW_SPARE } else { 0 };
    if list.size() + spare > most {
        return Ok(false);
    }
    let range = draft.disk.xattr_range(superblock);
    list.encode_in_inode(&mut draft.raw[range])?;
    draft.disk.i_block = [0; I_BLOCK_SIZE];
    draft.disk.i_block[..first.len()].copy_from_slice(first);
    draft.disk.flags &= !InodeFlags::EXTENTS;
    draft.disk.flags |= InodeFlags::INLINE_DATA;
    Ok(true)
}

/// Where the second part of the contents lies in the record: the value of the attribute.
pub(crate) fn value(superblock: &Superblock, draft: &Draft) -> Result<Range<usize>> {
    let length = data(superblock, draft)?.rest.len();
    let (head, ..) = entry(superblock, draft)?;
    let [.., low, high] = *draft.raw.get(head..).and_then(|head| head.first_chunk::<4>()).unwrap_or(&[0; 4]);
    // The offset of an empty value is arbitrary.
    let offset = if length == 0 { 0 } else { usize::from(u16::from_le_bytes([low, high])) };
    let start = draft.disk.xattr_range(superblock).start + MAGIC_SIZE + offset;
    Ok(start..start + length)
}

/// Removes the attribute, if there is one.
///
/// # Errors
/// [`Error::Corrupt`], with nothing changed.
pub(crate) fn remove(superblock: &Superblock, draft: &mut Draft) -> Result<()> {
    if !draft.disk.has_inline_data() {
        return Ok(());
    }
    let value = value(superblock, draft)?;
    let (head, next, end) = entry(superblock, draft)?;
    draft.raw[value].fill(0);
    draft.raw.copy_within(next..end, head);
    draft.raw[end - (next - head)..end].fill(0);
    Ok(())
}

/// Adds the attribute with an empty value to an inode without attributes in its record. Returns whether there is room.
/// The caller sets the flag.
pub(crate) fn add(superblock: &Superblock, draft: &mut Draft) -> bool {
    let range = draft.disk.xattr_range(superblock);
    let free = draft.raw.get_mut(range).filter(|area| {
        area.len() >= MAGIC_SIZE + HEAD_SIZE + ATTRIBUTE.len() + END_SIZE
            && area.iter().all(|byte| *byte == 0)
    });
    let Some(area) = free.filter(|_| draft.disk.extra_isize > 0) else { return false };
    let (magic, entries) = area.split_at_mut(MAGIC_SIZE);
    magic.copy_from_slice(&MAGIC.to_le_bytes());
    entries[..2].copy_from_slice(&[ATTRIBUTE.len() as u8, XattrIndex::System.to_disk()]);
    entries[HEAD_SIZE..][..ATTRIBUTE.len()].copy_from_slice(ATTRIBUTE);
    true
}

/// The start of the attribute's entry, the start of the next one, and the end of all entries. The attributes were
/// checked: every entry lies inside, and zeros follow the last.
fn entry(superblock: &Superblock, draft: &Draft) -> Result<(usize, usize, usize)> {
    let mut at = draft.disk.xattr_range(superblock).start + MAGIC_SIZE;
    let mut found = None;
    while let Some(head) = draft.raw.get(at..at + HEAD_SIZE).filter(|head| head[..4] != [0; 4]) {
        let name_end = at + HEAD_SIZE + usize::from(head[0]);
        let next = name_end.next_multiple_of(4);
        let is_it = head[1] == XattrIndex::System.to_disk();
        if is_it && draft.raw.get(at + HEAD_SIZE..name_end) == Some(ATTRIBUTE) {
            found = Some((at, next));
        }
        at = next;
    }
    let missing = CorruptKind::InlineData("the attribute `system.data` is missing");
    let (head, next) = found.ok_or_else(|| Error::from(Corrupt::from(missing).in_inode(draft.ino)))?;
    Ok((head, next, at))
}
