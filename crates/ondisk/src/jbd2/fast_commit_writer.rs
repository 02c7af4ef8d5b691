//! Writing fast commits: from records to the blocks that hold them, as `fast_commit.rs` reads them.
//!
//! A block ends with a record that fills it: a tail, or padding (`ext4_fc_reserve_space`, `ext4_fc_write_tail` in
//! fs/ext4/fast_commit.c). So every other record leaves room for the tag and length of one more.

use super::fast_commit::{FastCommitRecord, HEAD_SIZE, NAME_MAX, Name};
use crate::checksum::{csum, csum_le32};
use crate::error::EncodeError;
use crate::numbers::Ino;

const STRUCTURE: &str = "fast commit";
/// Bytes of a tail's value: transaction and checksum.
const TAIL_VALUE: usize = 8;
const TAG_PAD: u16 = 7;
const TAG_TAIL: u16 = 8;

/// A fast commit in the making.
#[derive(Clone, Debug)]
pub struct FastCommitWriter {
    block_size: usize,
    sequence: u32,
    bytes: Vec<u8>,
    checksum: u32,
}

impl FastCommitWriter {
    /// Begins a fast commit of transaction `sequence` in blocks of `block_size` bytes. With `first`, the first one of
    /// that transaction, it begins with a head.
    ///
    /// # Errors
    /// If a block cannot hold a head.
    pub fn new(block_size: usize, sequence: u32, first: bool) -> Result<FastCommitWriter, EncodeError> {
        let mut writer =
            FastCommitWriter { block_size, sequence, bytes: Vec::with_capacity(block_size), checksum: 0 };
        if first {
            writer.push(&FastCommitRecord::Head { features: 0, sequence })?;
        }
        Ok(writer)
    }

    /// Adds a record. It never crosses the end of a block: padding comes before it if the rest of the block is too
    /// small.
    ///
    /// # Errors
    /// If no block can hold it, if a field is too long, or if it is a tail or padding, which this writer makes itself.
    pub fn push(&mut self, record: &FastCommitRecord<'_>) -> Result<(), EncodeError> {
        let value = Value::of(record)?;
        self.make_room(value.length())?;
        self.put_head(value.tag, value.length())?;
        value.words().iter().for_each(|word| self.put_word(*word));
        self.put_bytes(value.rest);
        Ok(())
    }

    /// Ends the fast commit. Returns its blocks; the last one is filled with zeroes.
    ///
    /// # Errors
    /// If a block cannot hold a tail.
    pub fn finish(mut self) -> Result<Vec<u8>, EncodeError> {
        self.make_room(TAIL_VALUE)?;
        // The tail covers the rest of the block, its checksum only what comes before itself.
        let length = self.rest().saturating_sub(HEAD_SIZE);
        self.put_head(TAG_TAIL, length)?;
        self.put_word(self.sequence);
        self.bytes.extend_from_slice(&self.checksum.to_le_bytes());
        let rest = length.saturating_sub(TAIL_VALUE);
        self.bytes.resize(self.bytes.len().saturating_add(rest), 0);
        Ok(self.bytes)
    }

    /// Bytes left in the current block; a whole one if none is begun.
    fn rest(&self) -> usize {
        self.block_size.saturating_sub(self.bytes.len().checked_rem(self.block_size).unwrap_or(0))
    }

    /// Pads the current block unless a value of `length` bytes and the beginning of one more record fit into it.
    fn make_room(&mut self, length: usize) -> Result<(), EncodeError> {
        let needed = length.saturating_add(2 * HEAD_SIZE);
        if needed > self.block_size {
            return Err(EncodeError::new(STRUCTURE, "fc_len"));
        }
        let rest = self.rest();
        if needed > rest {
            let padding = rest.saturating_sub(HEAD_SIZE);
            self.put_head(TAG_PAD, padding)?;
            self.put_bytes(&vec![0; padding]);
        }
        Ok(())
    }

    /// Adds tag and length. The checksum covers them, and what is put behind them.
    fn put_head(&mut self, tag: u16, length: usize) -> Result<(), EncodeError> {
        let length = u16::try_from(length).map_err(|_| EncodeError::new(STRUCTURE, "fc_len"))?;
        self.put_word(u32::from(tag) | u32::from(length) << 16);
        Ok(())
    }

    fn put_word(&mut self, word: u32) {
        self.checksum = csum_le32(self.checksum, word);
        self.bytes.extend_from_slice(&word.to_le_bytes());
    }

    fn put_bytes(&mut self, bytes: &[u8]) {
        self.checksum = csum(self.checksum, bytes);
        self.bytes.extend_from_slice(bytes);
    }
}

/// A record to be written: words, then bytes.
struct Value<'r> {
    tag: u16,
    words: [u32; 3],
    /// How many of them.
    count: usize,
    rest: &'r [u8],
}

impl<'r> Value<'r> {
    fn of(record: &FastCommitRecord<'r>) -> Result<Value<'r>, EncodeError> {
        let one = |tag, ino: Ino, rest| Value { tag, words: [ino.0, 0, 0], count: 1, rest };
        Ok(match record {
            FastCommitRecord::AddRange { ino, extent } => one(1, *ino, &extent[..]),
            FastCommitRecord::DeleteRange { ino, first, blocks } => {
                Value { tag: 2, words: [ino.0, first.0, *blocks], count: 3, rest: &[] }
            }
            FastCommitRecord::Create(name) => Value::of_name(3, name)?,
            FastCommitRecord::Link(name) => Value::of_name(4, name)?,
            FastCommitRecord::Unlink(name) => Value::of_name(5, name)?,
            FastCommitRecord::Inode { ino, raw } => one(6, *ino, raw),
            FastCommitRecord::Head { features, sequence } => {
                Value { tag: 9, words: [*features, *sequence, 0], count: 2, rest: &[] }
            }
            FastCommitRecord::Pad | FastCommitRecord::Tail { .. } => {
                return Err(EncodeError::new(STRUCTURE, "fc_tag"));
            }
        })
    }

    fn of_name(tag: u16, name: &Name<'r>) -> Result<Value<'r>, EncodeError> {
        if name.name.is_empty() || name.name.len() > NAME_MAX {
            return Err(EncodeError::new(STRUCTURE, "fc_dname"));
        }
        Ok(Value { tag, words: [name.parent.0, name.ino.0, 0], count: 2, rest: name.name })
    }

    fn words(&self) -> &[u32] {
        self.words.get(..self.count).unwrap_or_default()
    }

    fn length(&self) -> usize {
        size_of_val(self.words()).saturating_add(self.rest.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FastCommitChecksum, FastCommitRecords};
    use super::*;
    use crate::numbers::Lblk;

    /// Reads the blocks back: the records but padding, each block's records ending with the block.
    fn read(bytes: &[u8], size: usize) -> Vec<String> {
        let mut checksum = FastCommitChecksum::default();
        let mut seen = Vec::new();
        for block in bytes.chunks(size) {
            let mut used = 0;
            for entry in FastCommitRecords::new(block) {
                let entry = entry.unwrap();
                used += entry.bytes.len();
                checksum.update(&entry);
                if let FastCommitRecord::Tail { checksum: stored, .. } = entry.record {
                    assert_eq!(stored, checksum.value());
                    checksum = FastCommitChecksum::default();
                }
                if entry.record != FastCommitRecord::Pad {
                    seen.push(format!("{:?}", entry.record));
                }
            }
            assert_eq!(used, size, "records fill a block");
        }
        seen
    }

    fn records() -> [FastCommitRecord<'static>; 6] {
        let name = Name { parent: Ino(2), ino: Ino(12), name: b"a name" };
        [
            FastCommitRecord::AddRange { ino: Ino(12), extent: b"extent bytes" },
            FastCommitRecord::DeleteRange { ino: Ino(12), first: Lblk(7), blocks: 9 },
            FastCommitRecord::Create(name),
            FastCommitRecord::Link(name),
            FastCommitRecord::Unlink(Name { name: &[b'n'; 255], ..name }),
            FastCommitRecord::Inode { ino: Ino(12), raw: &[5; 160] },
        ]
    }

    /// Any number of records, so that every one comes to lie at the end of a block, and so does the tail.
    #[test]
    fn what_is_written_is_what_is_read() {
        for size in [1024, 4096] {
            for count in 0..200 {
                let mut writer = FastCommitWriter::new(size, 77, count % 2 == 0).unwrap();
                let records: Vec<_> = records().into_iter().cycle().skip(count % 5).take(count).collect();
                records.iter().for_each(|record| writer.push(record).unwrap());
                let bytes = writer.finish().unwrap();
                assert_eq!(bytes.len() % size, 0);
                let seen = read(&bytes, size);
                let mut expected: Vec<_> = records.iter().map(|record| format!("{record:?}")).collect();
                if count % 2 == 0 {
                    let head = FastCommitRecord::Head { features: 0, sequence: 77 };
                    expected.insert(0, format!("{head:?}"));
                }
                let tail = seen.last().unwrap();
                assert!(tail.starts_with("Tail { sequence: 77"), "{tail}");
                assert_eq!(seen[..seen.len() - 1], expected);
            }
        }
    }

    #[test]
    fn what_fits_no_block_is_refused() {
        let mut writer = FastCommitWriter::new(1024, 1, true).unwrap();
        let long = |length| FastCommitRecord::Inode { ino: Ino(12), raw: &[0; 2048][..length] };
        assert!(writer.push(&long(1024)).is_err() && writer.push(&long(1013)).is_err());
        writer.push(&long(1012)).unwrap();
        assert!(writer.push(&FastCommitRecord::Pad).is_err());
        assert!(writer.push(&FastCommitRecord::Tail { sequence: 1, checksum: 0 }).is_err());
        for name in [&[b'n'; 256][..], b""] {
            let name = Name { parent: Ino(2), ino: Ino(12), name };
            assert!(writer.push(&FastCommitRecord::Link(name)).is_err());
        }
        assert_eq!(writer.finish().unwrap().len(), 3 * 1024);
    }
}
