//! The attributes of an area as a list that can be changed and written back, packed as the kernel packs them.

use super::area::{XattrArea, XattrEntry, XattrValue};
use super::block::{XATTR_BLOCK_HEADER_SIZE, encode_xattr_block};
use super::hash::xattr_entry_hash;
use super::{ENTRY_SIZE, INODE_HEADER_SIZE, MAGIC, PAD, XattrIndex};
use crate::bytes::{length32, put};
use crate::error::EncodeError;
use crate::ext4::superblock::Superblock;
use crate::numbers::{Ino, Pblk};

const STRUCTURE: &str = "attributes";
const BLOCK_HASH_SHIFT: u32 = 16;

/// The value of a listed attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedValue {
    /// Here, with this many bytes of padding at its end.
    Here {
        /// The value and its padding.
        padded: Vec<u8>,
        /// Bytes of padding: below 4.
        padding: usize,
    },
    /// In an inode of its own.
    Inode {
        /// The inode.
        inode: Ino,
        /// Bytes of the value.
        size: u32,
    },
}

impl ListedValue {
    /// A value that is stored here.
    pub fn here(value: &[u8]) -> ListedValue {
        let mut padded = value.to_vec();
        let padding = value.len().wrapping_neg() % PAD;
        padded.resize(value.len().saturating_add(padding), 0);
        ListedValue::Here { padded, padding }
    }

    /// The bytes, if the value is here.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            ListedValue::Here { padded, padding } => padded.get(..padded.len().checked_sub(*padding)?),
            ListedValue::Inode { .. } => None,
        }
    }

    /// Bytes it takes in the area.
    fn room(&self) -> usize {
        match self {
            ListedValue::Here { padded, .. } => padded.len(),
            ListedValue::Inode { .. } => 0,
        }
    }
}

/// An attribute of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedXattr {
    /// Number of the prefix.
    pub name_index: u8,
    /// The name behind the prefix, at most 255 bytes.
    pub name: Vec<u8>,
    /// Hash of name and value. One that was read is kept: it may be of the kind with signed bytes.
    pub hash: u32,
    /// The value.
    pub value: ListedValue,
}

impl ListedXattr {
    /// An attribute with its value here. In an attribute block it has a hash; inside an inode the hash is 0, as the
    /// kernel writes it.
    pub fn here(space: XattrIndex, name: &[u8], value: &[u8], in_block: bool) -> ListedXattr {
        let value = ListedValue::here(value);
        let hash = match &value {
            ListedValue::Here { padded, .. } if in_block => xattr_entry_hash(name, padded, false),
            _ => 0,
        };
        ListedXattr { name_index: space.to_disk(), name: name.to_vec(), hash, value }
    }

    /// An attribute whose value, of `size` bytes and with this checksum, is in an inode of its own. It has a hash
    /// inside an inode too, as the kernel writes it.
    pub fn elsewhere(space: XattrIndex, name: &[u8], inode: Ino, size: u32, checksum: u32) -> ListedXattr {
        let hash = xattr_entry_hash(name, &checksum.to_le_bytes(), false);
        let value = ListedValue::Inode { inode, size };
        ListedXattr { name_index: space.to_disk(), name: name.to_vec(), hash, value }
    }

    /// Bytes of its entry.
    fn entry_size(&self) -> usize {
        ENTRY_SIZE.saturating_add(self.name.len()).next_multiple_of(PAD)
    }
}

impl From<XattrEntry<'_>> for ListedXattr {
    fn from(entry: XattrEntry<'_>) -> ListedXattr {
        let value = match entry.value {
            XattrValue::Inode { inode, size } => ListedValue::Inode { inode, size },
            XattrValue::Here(bytes) => ListedValue::Here {
                padded: entry.padded.to_vec(),
                padding: entry.padded.len().saturating_sub(bytes.len()),
            },
        };
        ListedXattr { name_index: entry.name_index, name: entry.name.to_vec(), hash: entry.hash, value }
    }
}

/// The attributes of an area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XattrList {
    /// In their order.
    pub entries: Vec<ListedXattr>,
}

impl From<&XattrArea<'_>> for XattrList {
    fn from(area: &XattrArea<'_>) -> XattrList {
        XattrList { entries: area.entries().map(ListedXattr::from).collect() }
    }
}

impl XattrList {
    /// The attribute of this name space and name.
    pub fn find(&self, space: XattrIndex, name: &[u8]) -> Option<&ListedXattr> {
        self.entries.iter().find(|entry| entry.name_index == space.to_disk() && entry.name == name)
    }

    /// Adds an attribute at the end, or in place of that with the same name.
    pub fn set(&mut self, new: ListedXattr) {
        let same = |old: &&mut ListedXattr| old.name_index == new.name_index && old.name == new.name;
        match self.entries.iter_mut().find(same) {
            Some(old) => *old = new,
            None => self.entries.push(new),
        }
    }

    /// Takes an attribute out.
    pub fn remove(&mut self, space: XattrIndex, name: &[u8]) -> Option<ListedXattr> {
        let same = |entry: &ListedXattr| entry.name_index == space.to_disk() && entry.name == name;
        let at = self.entries.iter().position(same)?;
        Some(self.entries.remove(at))
    }

    /// Bytes that entries, values and the word that ends the list take.
    pub fn size(&self) -> usize {
        let sizes = self.entries.iter().map(|entry| entry.entry_size().saturating_add(entry.value.room()));
        sizes.fold(PAD, usize::saturating_add)
    }

    /// Bytes that values take.
    pub fn values_size(&self) -> usize {
        self.entries.iter().map(|entry| entry.value.room()).fold(0, usize::saturating_add)
    }

    /// The hash of a block with these attributes, by which equal blocks are found. 0: not to be shared.
    pub fn block_hash(&self) -> u32 {
        if self.entries.iter().any(|entry| entry.hash == 0) {
            return 0;
        }
        self.entries.iter().fold(0, |hash, entry| hash.rotate_left(BLOCK_HASH_SHIFT) ^ entry.hash)
    }

    /// Sorts the list as blocks have it: the kernel searches them in this order.
    pub fn sort(&mut self) {
        self.entries.sort_by(|one, other| {
            let key = |entry: &ListedXattr| (entry.name_index, entry.name.len());
            key(one).cmp(&key(other)).then_with(|| one.name.cmp(&other.name))
        });
    }

    /// Writes the list into an inode: `bytes` is what follows the extra fields. An empty list leaves zeros.
    ///
    /// # Errors
    /// If it does not fit; nothing was changed then.
    pub fn encode_in_inode(&self, bytes: &mut [u8]) -> Result<(), EncodeError> {
        if self.entries.is_empty() {
            bytes.fill(0);
            return Ok(());
        }
        let mut new = vec![0; bytes.len()];
        put(&mut new, 0, &MAGIC.to_le_bytes(), STRUCTURE)?;
        let area = new.get_mut(INODE_HEADER_SIZE..).ok_or(EncodeError::too_short(STRUCTURE))?;
        self.fill(area, 0)?;
        bytes.copy_from_slice(&new);
        Ok(())
    }

    /// An attribute block with this list, sorted, for `references` inodes.
    ///
    /// # Errors
    /// If the list does not fit.
    pub fn encode_block(
        &mut self,
        references: u32,
        block: Pblk,
        sb: &Superblock,
    ) -> Result<Vec<u8>, EncodeError> {
        self.sort();
        let mut bytes = vec![0; crate::bytes::index(sb.geometry.block_size())];
        self.fill(&mut bytes, XATTR_BLOCK_HEADER_SIZE)?;
        encode_xattr_block(&mut bytes, references, self.block_hash(), block, sb)?;
        Ok(bytes)
    }

    /// Entries from `first` on, values from the end of the zeros `bytes`.
    fn fill(&self, bytes: &mut [u8], first: usize) -> Result<(), EncodeError> {
        let short = EncodeError::too_short(STRUCTURE);
        if first.saturating_add(self.size()) > bytes.len() {
            return Err(short);
        }
        let (mut at, mut end) = (first, bytes.len());
        for entry in &self.entries {
            let length = u8::try_from(entry.name.len());
            let length = length.map_err(|_| EncodeError::new(STRUCTURE, "name_len"))?;
            let (mut offset, mut inode, size) = (0, 0, entry.value_size());
            match &entry.value {
                ListedValue::Inode { inode: holder, .. } => inode = holder.0,
                ListedValue::Here { padded, .. } if padded.is_empty() => {}
                ListedValue::Here { padded, .. } => {
                    end = end.checked_sub(padded.len()).ok_or(short)?;
                    put(bytes, end, padded, STRUCTURE)?;
                    offset = u16::try_from(end).map_err(|_| EncodeError::new(STRUCTURE, "value_offs"))?;
                }
            }
            let mut head = vec![length, entry.name_index];
            head.extend(offset.to_le_bytes());
            [inode, size, entry.hash].iter().for_each(|word| head.extend(word.to_le_bytes()));
            head.extend(&entry.name);
            put(bytes, at, &head, STRUCTURE)?;
            at = at.saturating_add(entry.entry_size());
        }
        Ok(())
    }
}

impl ListedXattr {
    /// Bytes of the value.
    pub fn value_size(&self) -> u32 {
        match &self.value {
            ListedValue::Inode { size, .. } => *size,
            here @ ListedValue::Here { .. } => length32(here.bytes().unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::XattrFormat;
    use super::*;

    const FORMAT: XattrFormat = XattrFormat { inodes_count: 100, value_inodes: true };

    fn list(attributes: &[(&str, &[u8])]) -> XattrList {
        let here =
            |(name, value): &(&str, &[u8])| ListedXattr::here(XattrIndex::User, name.as_bytes(), value, true);
        XattrList { entries: attributes.iter().map(here).collect() }
    }

    #[test]
    fn what_is_written_into_an_inode_reads_the_same() {
        let mut all = list(&[("a", b"first"), ("bcd", b""), ("caps", b"twenty bytes of it"), ("e", b"1234")]);
        let value = ListedValue::Inode { inode: Ino(17), size: 5000 };
        all.set(ListedXattr { name_index: 4, name: b"large".to_vec(), hash: 9, value });
        for gone in ["a", "bcd", "caps", "e", "none"] {
            let mut left = all.clone();
            assert_eq!(left.remove(XattrIndex::User, gone.as_bytes()).is_some(), gone != "none");
            let mut bytes = [0xff; 256];
            left.encode_in_inode(&mut bytes).unwrap();
            let area = XattrArea::in_inode(&bytes, &FORMAT).unwrap().unwrap();
            assert_eq!(XattrList::from(&area), left);
            assert!(area.entries().all(|entry| entry.verify_any_hash().is_ok()));
            // Nothing stays of what was there.
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert_eq!(text.contains("twenty"), gone != "caps");
        }
    }

    #[test]
    fn it_fits_to_the_last_byte_and_no_further() {
        let one = list(&[("name", b"12345678")]);
        assert_eq!(one.size(), 16 + 4 + 8 + 4);
        let mut bytes = [1; 4 + 32];
        one.encode_in_inode(&mut bytes).unwrap();
        assert!(XattrArea::in_inode(&bytes, &FORMAT).unwrap().is_some());
        let mut short = [1; 4 + 31];
        assert!(one.encode_in_inode(&mut short).is_err());
        assert_eq!(short, [1; 35], "unchanged");
    }

    #[test]
    fn an_empty_list_leaves_no_magic_number() {
        let mut bytes = [1; 64];
        XattrList::default().encode_in_inode(&mut bytes).unwrap();
        assert_eq!(bytes, [0; 64]);
    }

    #[test]
    fn a_block_is_sorted_and_its_hash_covers_all_entries() {
        let mut one = list(&[("zz", b"1"), ("b", b"2"), ("a", b"3")]);
        let mut other = list(&[("a", b"3"), ("zz", b"1"), ("b", b"2")]);
        one.sort();
        other.sort();
        let names: Vec<_> = one.entries.iter().map(|entry| entry.name.clone()).collect();
        assert_eq!(names, [&b"a"[..], b"b", b"zz"]);
        assert_eq!(one.block_hash(), other.block_hash());
        assert_ne!(one.block_hash(), 0);
        one.set(ListedXattr { hash: 0, ..one.entries[0].clone() });
        assert_eq!((one.entries.len(), one.block_hash()), (3, 0), "a block with such an entry is not shared");
    }
}
