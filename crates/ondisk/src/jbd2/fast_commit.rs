//! Fast-commit records: the blocks at the end of the log that hold changes too small for a transaction, as a row
//! of tag, length and value (fs/ext4/fast_commit.h). Unlike the rest of the log they are little-endian, because
//! ext4, not jbd2, defines them.
//!
//! A run of records begins with [`FastCommitRecord::Head`] and ends with [`FastCommitRecord::Tail`], whose crc32c
//! covers every byte from the head (or from the end of the tail before it) up to its own `fc_crc`. A record never
//! crosses the end of its block.

use zerocopy::little_endian::U16;

use crate::bytes::{array_at, index, le32_at, length32};
use crate::checksum::csum;
use crate::error::{Corrupt, CorruptKind};
use crate::numbers::{Ino, Lblk};

/// Bytes of tag and length.
pub(super) const HEAD_SIZE: usize = 4;
/// Bytes of the fixed part of a tail's value up to its checksum.
const TAIL_CHECKED: usize = 4;
pub(super) const NAME_MAX: usize = 255;
/// Bytes of the smallest inode.
const INODE_MIN: usize = 128;

/// A record, borrowed from its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastCommitRecord<'a> {
    /// An extent was added to a file.
    AddRange {
        /// The file.
        ino: Ino,
        /// The extent, as it stands in a leaf of an extent tree (12 bytes).
        extent: &'a [u8; 12],
    },
    /// Blocks were taken from a file.
    DeleteRange {
        /// The file.
        ino: Ino,
        /// First of them.
        first: Lblk,
        /// How many.
        blocks: u32,
    },
    /// A file was created and linked.
    Create(Name<'a>),
    /// A name was added for an existing file.
    Link(Name<'a>),
    /// A name was removed.
    Unlink(Name<'a>),
    /// The contents of an inode.
    Inode {
        /// Its number.
        ino: Ino,
        /// The inode, at least 128 bytes.
        raw: &'a [u8],
    },
    /// Nothing, up to the end of the block.
    Pad,
    /// End of a fast commit.
    Tail {
        /// Transaction that the records follow.
        sequence: u32,
        /// The stored checksum.
        checksum: u32,
    },
    /// Start of the area.
    Head {
        /// Features that a reader must know; none exist.
        features: u32,
        /// Transaction that the records follow.
        sequence: u32,
    },
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// The directory.
    pub parent: Ino,
    /// What it names.
    pub ino: Ino,
    /// The name, 1 to 255 bytes.
    pub name: &'a [u8],
}

/// A record and the bytes that it takes.
#[derive(Clone, Copy, Debug)]
pub struct FastCommitEntry<'a> {
    /// The record.
    pub record: FastCommitRecord<'a>,
    /// Tag, length and value.
    pub bytes: &'a [u8],
}

/// The records of one block. Ends at the first that is malformed, after handing it out as an error.
#[derive(Clone, Debug)]
pub struct FastCommitRecords<'a> {
    rest: &'a [u8],
}

impl<'a> FastCommitRecords<'a> {
    /// The records in the bytes of one block.
    pub fn new(block: &'a [u8]) -> FastCommitRecords<'a> {
        FastCommitRecords { rest: block }
    }

    fn take(&mut self) -> Result<FastCommitEntry<'a>, Corrupt> {
        let truncated = || Corrupt::from(CorruptKind::FastCommitRecord("fc_len"));
        let tag = U16::from_bytes(*array_at(self.rest, 0).ok_or_else(truncated)?).get();
        let length = U16::from_bytes(*array_at(self.rest, 2).ok_or_else(truncated)?).get();
        let end = HEAD_SIZE.saturating_add(usize::from(length));
        let (bytes, rest) = self.rest.split_at_checked(end).ok_or_else(truncated)?;
        let value = bytes.get(HEAD_SIZE..).ok_or_else(truncated)?;
        let record = FastCommitRecord::decode(tag, value)?;
        self.rest = rest;
        Ok(FastCommitEntry { record, bytes })
    }
}

impl<'a> Iterator for FastCommitRecords<'a> {
    type Item = Result<FastCommitEntry<'a>, Corrupt>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.len() < HEAD_SIZE {
            return None;
        }
        let entry = self.take();
        if entry.is_err() {
            self.rest = &[];
        }
        Some(entry)
    }
}

impl<'a> FastCommitRecord<'a> {
    fn decode(tag: u16, value: &'a [u8]) -> Result<FastCommitRecord<'a>, Corrupt> {
        let bad = |what| Corrupt::from(CorruptKind::FastCommitRecord(what));
        let word = |at| le32_at(value, at).ok_or_else(|| bad("fc_len"));
        let exactly = |length: usize| if value.len() == length { Ok(()) } else { Err(bad("fc_len")) };
        Ok(match tag {
            1 => {
                exactly(16)?;
                let extent = array_at(value, 4).ok_or_else(|| bad("fc_len"))?;
                FastCommitRecord::AddRange { ino: Ino(word(0)?), extent }
            }
            2 => {
                exactly(12)?;
                FastCommitRecord::DeleteRange { ino: Ino(word(0)?), first: Lblk(word(4)?), blocks: word(8)? }
            }
            3 => FastCommitRecord::Create(Name::decode(value)?),
            4 => FastCommitRecord::Link(Name::decode(value)?),
            5 => FastCommitRecord::Unlink(Name::decode(value)?),
            6 => {
                let raw = value.get(4..).filter(|raw| raw.len() >= INODE_MIN).ok_or_else(|| bad("fc_len"))?;
                FastCommitRecord::Inode { ino: Ino(word(0)?), raw }
            }
            7 => FastCommitRecord::Pad,
            8 => FastCommitRecord::Tail { sequence: word(0)?, checksum: word(4)? },
            9 => {
                exactly(8)?;
                FastCommitRecord::Head { features: word(0)?, sequence: word(4)? }
            }
            _ => return Err(bad("fc_tag")),
        })
    }
}

impl<'a> Name<'a> {
    fn decode(value: &'a [u8]) -> Result<Name<'a>, Corrupt> {
        let bad = || Corrupt::from(CorruptKind::FastCommitRecord("fc_dname"));
        let word = |at| le32_at(value, at).ok_or_else(bad);
        let name = value.get(8..).filter(|name| (1..=NAME_MAX).contains(&name.len())).ok_or_else(bad)?;
        Ok(Name { parent: Ino(word(0)?), ino: Ino(word(4)?), name })
    }
}

/// The running checksum of a fast commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastCommitChecksum(u32);

impl FastCommitChecksum {
    /// Takes in a record; of a tail only what its checksum covers.
    pub fn update(&mut self, entry: &FastCommitEntry<'_>) {
        let checked = match entry.record {
            FastCommitRecord::Tail { .. } => HEAD_SIZE.saturating_add(TAIL_CHECKED),
            _ => index(length32(entry.bytes)),
        };
        self.0 = csum(self.0, entry.bytes.get(..checked).unwrap_or(entry.bytes));
    }

    /// The value that a tail stores.
    pub fn value(self) -> u32 {
        self.0
    }
}
