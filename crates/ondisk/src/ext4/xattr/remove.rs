//! Taking one attribute out of an area: the entries behind it and the values in front of its own close up, as the
//! kernel leaves them.

use super::area::ends_at;
use super::block::{XATTR_BLOCK_HEADER_SIZE, set_xattr_block_hash};
use super::{ENTRY_SIZE, INODE_HEADER_SIZE, PAD, XattrIndex};
use crate::bytes::{index, le32_at};
use std::ops::Range;

/// What an area has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrsLeft {
    /// Other attributes.
    Some,
    /// None.
    Nothing,
}

/// Bytes of an entry and of its value.
struct Place {
    entry: Range<usize>,
    /// With its padding. Empty if it has none here.
    value: Range<usize>,
    named: bool,
}

/// Takes an attribute out of an inode: `bytes` is what follows the extra fields, checked
/// ([`XattrArea::in_inode`](super::XattrArea::in_inode)). `None` if it has none of this name: nothing was changed then.
pub fn remove_inode_xattr(bytes: &mut [u8], space: XattrIndex, name: &[u8]) -> Option<XattrsLeft> {
    let left = remove(bytes.get_mut(INODE_HEADER_SIZE..)?, 0, space, name)?;
    if left == XattrsLeft::Nothing {
        // Without the magic number there are no attributes.
        bytes.get_mut(..INODE_HEADER_SIZE)?.fill(0);
    }
    Some(left)
}

/// Takes an attribute out of a checked block, and brings the hash of the block up to date. The checksum is the caller's
/// ([`super::update_xattr_block_checksum`]). `None` if it has none of this name.
pub fn remove_block_xattr(bytes: &mut [u8], space: XattrIndex, name: &[u8]) -> Option<XattrsLeft> {
    let left = remove(bytes, XATTR_BLOCK_HEADER_SIZE, space, name)?;
    let mut hash = 0_u32;
    for place in places(bytes, XATTR_BLOCK_HEADER_SIZE, space, name)? {
        let of_entry = le32_at(bytes, place.entry.start.checked_add(ENTRY_SIZE - PAD)?)?;
        if of_entry == 0 {
            // Such a block is not shared.
            hash = 0;
            break;
        }
        hash = hash.rotate_left(16) ^ of_entry;
    }
    set_xattr_block_hash(bytes, hash);
    Some(left)
}

fn remove(bytes: &mut [u8], first: usize, space: XattrIndex, name: &[u8]) -> Option<XattrsLeft> {
    let places = places(bytes, first, space, name)?;
    let gone = places.iter().find(|place| place.named)?;
    let values = places.iter().filter(|place| !place.value.is_empty());
    let moved = values.clone().filter(|place| place.value.start < gone.value.start);
    if let Some(start) = values.map(|place| place.value.start).min().filter(|_| !gone.value.is_empty()) {
        let length = gone.value.len();
        // The offsets first: the entries that say them move below.
        for place in moved {
            let offset = u16::try_from(place.value.start.checked_add(length)?).ok()?;
            let field = place.entry.start.checked_add(2)?;
            bytes.get_mut(field..)?.get_mut(..2)?.copy_from_slice(&offset.to_le_bytes());
        }
        bytes.copy_within(start..gone.value.start, start.checked_add(length)?);
        bytes.get_mut(start..)?.get_mut(..length)?.fill(0);
    }
    let end = places.last()?.entry.end;
    bytes.copy_within(gone.entry.end..end, gone.entry.start);
    let length = gone.entry.len();
    bytes.get_mut(end.checked_sub(length)?..end)?.fill(0);
    Some(if places.len() == 1 { XattrsLeft::Nothing } else { XattrsLeft::Some })
}

/// All entries in their order; the first of this name is marked.
fn places(bytes: &[u8], first: usize, space: XattrIndex, name: &[u8]) -> Option<Vec<Place>> {
    let (mut places, mut offset, mut found) = (Vec::new(), first, false);
    while !ends_at(bytes, offset) {
        let head = bytes.get(offset..)?.get(..ENTRY_SIZE)?;
        let &[length, index_of_name, low, high, ..] = head else { return None };
        let name_start = offset.checked_add(ENTRY_SIZE)?;
        let name_end = name_start.checked_add(usize::from(length))?;
        let end = name_end.checked_next_multiple_of(PAD)?;
        let start = usize::from(u16::from_le_bytes([low, high]));
        let size = if le32_at(head, 4)? == 0 { index(le32_at(head, 8)?) } else { 0 };
        let value = start..start.checked_add(size.checked_next_multiple_of(PAD)?)?;
        let same = index_of_name == space.to_disk() && bytes.get(name_start..name_end)? == name;
        places.push(Place { entry: offset..end, value, named: same && !found });
        (offset, found) = (end, found || same);
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::super::{MAGIC, XattrArea, XattrEntry, XattrFormat, XattrValue};
    use super::*;

    const FORMAT: XattrFormat = XattrFormat { inodes_count: 100, value_inodes: true };

    /// An area of an inode with these attributes of `user.`.
    fn area(attributes: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 256];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        let (mut at, mut end) = (4, 252);
        for (name, value) in attributes {
            end -= value.len().next_multiple_of(4);
            bytes[at] = name.len() as u8;
            bytes[at + 1] = XattrIndex::User.to_disk();
            bytes[at + 2..at + 4].copy_from_slice(&(end as u16).to_le_bytes());
            bytes[at + 8..at + 12].copy_from_slice(&(value.len() as u32).to_le_bytes());
            bytes[at + 12..at + 16].copy_from_slice(&(at as u32).to_le_bytes());
            bytes[at + 16..at + 16 + name.len()].copy_from_slice(name.as_bytes());
            bytes[4 + end..4 + end + value.len()].copy_from_slice(value);
            at += 16 + name.len().next_multiple_of(4);
        }
        bytes
    }

    fn listed(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
        let Some(area) = XattrArea::in_inode(bytes, &FORMAT).unwrap() else { return Vec::new() };
        let value = |entry: &XattrEntry<'_>| match entry.value {
            XattrValue::Here(bytes) => bytes.to_vec(),
            XattrValue::Inode { .. } => panic!("elsewhere"),
        };
        area.entries().map(|e| (String::from_utf8(e.name.to_vec()).unwrap(), value(&e))).collect()
    }

    #[test]
    fn every_one_can_be_taken_out_and_the_others_stay() {
        let all: [(&str, &[u8]); 5] = [
            ("a", b"first"),
            ("bcd", b""),
            ("caps", b"twenty bytes of value"),
            ("e", b"1234"),
            ("long", b"z"),
        ];
        for gone in 0..all.len() {
            let mut bytes = area(&all);
            let left = remove_inode_xattr(&mut bytes, XattrIndex::User, all[gone].0.as_bytes());
            assert_eq!(left, Some(XattrsLeft::Some));
            let want: Vec<_> = all.iter().filter(|(name, _)| *name != all[gone].0).collect();
            let found = listed(&bytes);
            assert_eq!(found.len(), want.len());
            for ((name, value), (wanted, bytes)) in found.iter().zip(want) {
                assert_eq!((name.as_str(), &value[..]), (*wanted, *bytes));
            }
            // What closes up leaves nothing of what was there.
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert!(!text.contains("twenty") || gone != 2, "{gone}");
        }
    }

    #[test]
    fn the_last_one_takes_the_magic_number_with_it() {
        let mut bytes = area(&[("only", b"value")]);
        assert_eq!(remove_inode_xattr(&mut bytes, XattrIndex::User, b"other"), None);
        assert_eq!(remove_inode_xattr(&mut bytes, XattrIndex::Security, b"only"), None, "another space");
        assert_eq!(remove_inode_xattr(&mut bytes, XattrIndex::User, b"only"), Some(XattrsLeft::Nothing));
        assert_eq!(bytes, [0; 256]);
    }
}
