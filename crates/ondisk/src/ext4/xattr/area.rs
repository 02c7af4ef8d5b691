//! The list of entries and their values: one area of attributes, checked as a whole.

use super::hash::verify_xattr_entry_hash;
use super::name::XattrIndex;
use super::{ENTRY_SIZE, INODE_HEADER_SIZE, MAGIC, PAD, VALUE_MAX};
use crate::bytes::{array_at, index, le32_at};
use crate::error::{Corrupt, CorruptKind};
use crate::ext4::features::Incompat;
use crate::ext4::superblock::Superblock;
use crate::numbers::Ino;

/// The part of a volume's parameters that decides what an entry may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrFormat {
    /// The highest valid inode number.
    pub inodes_count: u32,
    /// Whether values may lie in inodes of their own.
    pub value_inodes: bool,
}

impl XattrFormat {
    /// The parameters of this volume.
    pub fn new(sb: &Superblock) -> XattrFormat {
        XattrFormat {
            inodes_count: sb.geometry.inodes_count(),
            value_inodes: sb.features.incompat.contains(Incompat::EA_INODE),
        }
    }
}

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrValue<'a> {
    /// Here.
    Here(&'a [u8]),
    /// In an inode of its own.
    Inode {
        /// The inode (`e_value_inum`): inside the volume's range, not the root directory.
        inode: Ino,
        /// Bytes of the value.
        size: u32,
    },
}

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrEntry<'a> {
    /// Number of the prefix (`e_name_index`); see [`XattrEntry::index`].
    pub name_index: u8,
    /// The name behind the prefix: up to 255 bytes, no zero among them.
    pub name: &'a [u8],
    /// Hash of name and value (`e_hash`); 0 = none.
    pub hash: u32,
    /// The value.
    pub value: XattrValue<'a>,
    /// The value's bytes with its padding, over which the hash goes.
    pub(super) padded: &'a [u8],
}

impl XattrEntry<'_> {
    /// The name space, if its number has a meaning.
    pub fn index(&self) -> Option<XattrIndex> {
        XattrIndex::from_disk(self.name_index)
    }

    /// The name as users know it, or `None` for what has no name.
    pub fn full_name(&self) -> Option<Vec<u8>> {
        let prefix = self.index()?.prefix()?;
        Some([prefix.as_bytes(), self.name].concat())
    }

    /// Whether the stored hash fits name and value. A value inside an inode mostly has none, and that of a
    /// value in another inode goes over its checksum: for it use [`super::verify_xattr_entry_hash`].
    ///
    /// # Errors
    /// [`CorruptKind::XattrHash`].
    pub fn verify_hash(&self) -> Result<(), Corrupt> {
        if self.hash == 0 { Ok(()) } else { self.verify_any_hash() }
    }

    /// The same where 0 is a hash like any other: in attribute blocks.
    ///
    /// # Errors
    /// [`CorruptKind::XattrHash`].
    pub fn verify_any_hash(&self) -> Result<(), Corrupt> {
        match self.value {
            XattrValue::Inode { .. } => Ok(()),
            XattrValue::Here(_) => verify_xattr_entry_hash(self.hash, self.name, self.padded),
        }
    }
}

/// The attributes of one area. Its structure was checked as a whole: names and values lie inside, and no two
/// of them overlap.
#[derive(Clone, Copy, Debug)]
pub struct XattrArea<'a> {
    /// Offsets of values count from the start of this.
    bytes: &'a [u8],
    /// Where the entries start.
    first: usize,
}

impl<'a> XattrArea<'a> {
    /// The attributes inside an inode: `bytes` is what follows the extra fields
    /// ([`super::super::Inode::xattr_range`]). `None` if there are none: no magic number, or too short.
    ///
    /// # Errors
    /// [`CorruptKind::XattrName`], [`CorruptKind::XattrValue`], [`CorruptKind::XattrOverlap`],
    /// [`CorruptKind::XattrInode`].
    pub fn in_inode(bytes: &'a [u8], format: &XattrFormat) -> Result<Option<XattrArea<'a>>, Corrupt> {
        let fits = bytes.len() >= INODE_HEADER_SIZE.saturating_add(PAD);
        if !fits || le32_at(bytes, 0) != Some(MAGIC) {
            return Ok(None);
        }
        let bytes = bytes.get(INODE_HEADER_SIZE..).unwrap_or_default();
        Self::checked(bytes, 0, format).map(Some)
    }

    pub(super) fn checked(bytes: &'a [u8], first: usize, format: &XattrFormat) -> Result<Self, Corrupt> {
        let area = XattrArea { bytes, first };
        let mut offset = first;
        let mut values = Vec::new();
        while !ends_at(bytes, offset) {
            let (raw, next) = RawEntry::read(bytes, offset).ok_or(CorruptKind::XattrName)?;
            if raw.name.contains(&0) {
                return Err(CorruptKind::XattrName.into());
            }
            values.push(raw);
            offset = next;
        }
        // Behind the word that ends the list.
        let names_end = offset.saturating_add(PAD);
        let mut taken = Vec::with_capacity(values.len());
        for raw in &values {
            let range = raw.check_value(bytes, names_end, format)?;
            taken.extend(range.filter(|range| !range.is_empty()));
        }
        taken.sort_unstable_by_key(|range| range.start);
        let overlap = taken.iter().zip(taken.iter().skip(1)).any(|(one, next)| next.start < one.end);
        if overlap { Err(CorruptKind::XattrOverlap.into()) } else { Ok(area) }
    }

    /// The entries, in their order on disk.
    pub fn entries(&self) -> XattrEntries<'a> {
        XattrEntries { bytes: self.bytes, offset: self.first }
    }

    /// The entry of this name space and name.
    pub fn find(&self, space: XattrIndex, name: &[u8]) -> Option<XattrEntry<'a>> {
        self.entries().find(|entry| entry.name_index == space.to_disk() && entry.name == name)
    }
}

/// Whether the list ends at `offset`: a zero word. A list that runs out of bytes goes on, into an error.
fn ends_at(bytes: &[u8], offset: usize) -> bool {
    le32_at(bytes, offset) == Some(0)
}

/// `struct ext4_xattr_entry` with its name, as found.
struct RawEntry<'a> {
    name_index: u8,
    value_offset: u16,
    value_inode: u32,
    value_size: u32,
    hash: u32,
    name: &'a [u8],
}

impl<'a> RawEntry<'a> {
    /// The entry at `offset`, and where the next one starts; the word there lies inside too.
    fn read(bytes: &'a [u8], offset: usize) -> Option<(RawEntry<'a>, usize)> {
        let head = array_at::<ENTRY_SIZE>(bytes, offset)?;
        let [name_length, name_index, offset_low, offset_high, ..] = *head;
        let name_start = offset.checked_add(ENTRY_SIZE)?;
        let name_end = name_start.checked_add(usize::from(name_length))?;
        let next = name_end.checked_next_multiple_of(PAD)?;
        if next.checked_add(PAD)? > bytes.len() {
            return None;
        }
        let raw = RawEntry {
            name_index,
            value_offset: u16::from_le_bytes([offset_low, offset_high]),
            value_inode: le32_at(head, 4)?,
            value_size: le32_at(head, 8)?,
            hash: le32_at(head, 12)?,
            name: bytes.get(name_start..name_end)?,
        };
        Some((raw, next))
    }

    /// The bytes that the value takes with its padding; `None` if it lies elsewhere.
    fn check_value(
        &self,
        bytes: &[u8],
        names_end: usize,
        format: &XattrFormat,
    ) -> Result<Option<std::ops::Range<usize>>, Corrupt> {
        if self.value_size > VALUE_MAX {
            return Err(CorruptKind::XattrValue.into());
        }
        if self.value_inode != 0 {
            let known = self.value_inode <= format.inodes_count && self.value_inode != Ino::ROOT.0;
            return if format.value_inodes && known { Ok(None) } else { Err(CorruptKind::XattrInode.into()) };
        }
        let start = usize::from(self.value_offset);
        if self.value_size == 0 {
            return Ok(Some(start..start));
        }
        let padded = index(self.value_size).next_multiple_of(PAD);
        match start.checked_add(padded) {
            Some(end) if start >= names_end && end <= bytes.len() => Ok(Some(start..end)),
            _ => Err(CorruptKind::XattrValue.into()),
        }
    }

    /// The entry, if its value lies inside.
    fn entry(self, bytes: &'a [u8]) -> Option<XattrEntry<'a>> {
        let RawEntry { name_index, name, hash, .. } = self;
        if let Some(inode) = Ino::nonzero(self.value_inode) {
            let value = XattrValue::Inode { inode, size: self.value_size };
            return Some(XattrEntry { name_index, name, hash, value, padded: &[] });
        }
        if self.value_size == 0 {
            // Its offset may be anything.
            return Some(XattrEntry { name_index, name, hash, value: XattrValue::Here(&[]), padded: &[] });
        }
        let size = index(self.value_size);
        let rest = bytes.get(usize::from(self.value_offset)..)?;
        let padded = rest.get(..size.checked_next_multiple_of(PAD)?)?;
        let value = XattrValue::Here(rest.get(..size)?);
        Some(XattrEntry { name_index, name, hash, value, padded })
    }
}

/// Iterator over the entries of an area. Each step moves by at least 16 bytes.
#[derive(Clone, Debug)]
pub struct XattrEntries<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Iterator for XattrEntries<'a> {
    type Item = XattrEntry<'a>;

    fn next(&mut self) -> Option<XattrEntry<'a>> {
        if ends_at(self.bytes, self.offset) {
            return None;
        }
        let (raw, next) = RawEntry::read(self.bytes, self.offset)?;
        self.offset = next;
        raw.entry(self.bytes)
    }
}

impl std::iter::FusedIterator for XattrEntries<'_> {}
