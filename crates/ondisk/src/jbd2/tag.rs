//! Block tags: a descriptor block is a header and a row of tags, one for each data block that follows it in the
//! log (`journal_block_tag_t`, `journal_block_tag3_t`).

use zerocopy::big_endian::{U16, U32};

use super::format::{LogChecksums, LogFormat};
use super::header::{BlockHeader, BlockType, HEADER_SIZE};
use crate::bytes::{array_at, high32, index, join32, low16, low32, put};
use crate::error::{Corrupt, CorruptKind, EncodeError};

const STRUCTURE: &str = "journal descriptor block";
const UUID_SIZE: usize = 16;

bitflags::bitflags! {
    /// Flags of a tag (`t_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TagFlags: u16 {
        /// The data began with the journal's magic number, which was replaced by zeros.
        const ESCAPE = 1;
        /// No UUID follows the tag.
        const SAME_UUID = 2;
        /// The block was deleted by this transaction. Nobody writes it, and replay takes no notice of it.
        const DELETED = 4;
        /// Last tag of its block.
        const LAST = 8;
        const _ = !0;
    }
}

/// The checksum in a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagChecksum {
    /// The format has none.
    None,
    /// Low half of a crc32c.
    V2(u16),
    /// A crc32c.
    V3(u32),
}

/// Where one data block of the log belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Block of the volume (`t_blocknr`, `t_blocknr_high`).
    pub block: u64,
    /// Flags.
    pub flags: TagFlags,
    /// Checksum of the data block.
    pub checksum: TagChecksum,
}

/// The tags of a descriptor block. Ends at the tag marked as last or where the block has no room for another.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    block: &'a [u8],
    format: LogFormat,
    offset: usize,
    done: bool,
}

impl LogFormat {
    /// The tags of a descriptor block. Its checksum is not looked at: [`LogFormat::verify_tail`].
    pub fn tags<'a>(&self, block: &'a [u8]) -> Tags<'a> {
        Tags { block, format: *self, offset: HEADER_SIZE, done: false }
    }

    fn decode_tag(&self, block: &[u8], offset: usize) -> Option<Tag> {
        let word = |at: usize| Some(U32::from_bytes(*array_at(block, offset.checked_add(at)?)?).get());
        let half = |at: usize| Some(U16::from_bytes(*array_at(block, offset.checked_add(at)?)?).get());
        // The flags of a v3 tag are a 32-bit word at byte 4; its low half is where the other formats have
        // theirs.
        let flags = TagFlags::from_bits_retain(half(6)?);
        let high = if self.wide { word(8)? } else { 0 };
        let checksum = match self.checksums {
            LogChecksums::V2 => TagChecksum::V2(half(4)?),
            LogChecksums::V3 => TagChecksum::V3(word(12)?),
            LogChecksums::None | LogChecksums::Transaction => TagChecksum::None,
        };
        Some(Tag { block: join32(word(0)?, high), flags, checksum })
    }

    /// Starts a descriptor block: zeros `block` and writes its header. Returns where the first tag goes.
    pub fn start_descriptor(&self, block: &mut [u8], sequence: u32) -> Result<usize, EncodeError> {
        block.fill(0);
        BlockHeader { block_type: BlockType::Descriptor, sequence }.encode(block)?;
        Ok(HEADER_SIZE)
    }

    /// Writes a tag at `offset` and, unless the tag says that none follows, `uuid` behind it. Returns where the
    /// next tag goes, `None` if this one does not fit; nothing is written then.
    pub fn put_tag(
        &self,
        block: &mut [u8],
        offset: usize,
        tag: &Tag,
        uuid: &[u8; 16],
    ) -> Result<Option<usize>, EncodeError> {
        if high32(tag.block) != 0 && !self.wide {
            return Err(EncodeError::new(STRUCTURE, "t_blocknr"));
        }
        let end = offset.saturating_add(index(self.tag_size()));
        let follows = !tag.flags.contains(TagFlags::SAME_UUID);
        let next = if follows { end.saturating_add(UUID_SIZE) } else { end };
        if next > self.record_end() {
            return Ok(None);
        }
        let at = |position: usize| offset.saturating_add(position);
        put(block, at(0), &U32::new(low32(tag.block)).to_bytes(), STRUCTURE)?;
        put(block, at(4), &[0; 2], STRUCTURE)?;
        put(block, at(6), &U16::new(tag.flags.bits()).to_bytes(), STRUCTURE)?;
        if self.wide {
            put(block, at(8), &U32::new(high32(tag.block)).to_bytes(), STRUCTURE)?;
        }
        match tag.checksum {
            TagChecksum::None => {}
            TagChecksum::V2(sum) => put(block, at(4), &U16::new(sum).to_bytes(), STRUCTURE)?,
            TagChecksum::V3(sum) => put(block, at(12), &U32::new(sum).to_bytes(), STRUCTURE)?,
        }
        if follows {
            put(block, end, uuid, STRUCTURE)?;
        }
        Ok(Some(next))
    }

    /// The checksum that the tag of a data block must carry.
    pub fn tag_checksum(&self, sequence: u32, data: &[u8]) -> TagChecksum {
        match self.checksums {
            LogChecksums::V2 => TagChecksum::V2(low16(self.data_checksum(sequence, data))),
            LogChecksums::V3 => TagChecksum::V3(self.data_checksum(sequence, data)),
            LogChecksums::None | LogChecksums::Transaction => TagChecksum::None,
        }
    }

    /// Checks a data block of the log against its tag, if tags carry checksums.
    pub fn verify_data(&self, tag: &Tag, sequence: u32, data: &[u8]) -> Result<(), Corrupt> {
        if !self.metadata_checksums() || self.tag_checksum(sequence, data) == tag.checksum {
            return Ok(());
        }
        Err(CorruptKind::JournalDataChecksum.into())
    }
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let end = self.offset.saturating_add(index(self.format.tag_size()));
        if self.done || end > self.format.record_end() {
            return None;
        }
        let tag = self.format.decode_tag(self.block, self.offset)?;
        self.done = tag.flags.contains(TagFlags::LAST);
        let uuid = if tag.flags.contains(TagFlags::SAME_UUID) { 0 } else { UUID_SIZE };
        self.offset = end.saturating_add(uuid);
        Some(tag)
    }
}
