//! Converts the changes of fast commits into an ordinary transaction.
//!
//! Fast commits are logical records, not block contents, so repeating them after a crash in the middle of writing their
//! result home could give a different result. So the result is first written to the log as a transaction with the
//! number of the fast commits: once its commit block is durable, recovery (ours, the kernel's, e2fsck's) finds that
//! transaction, expects fast commits with the next number, and finds none.
//!
//! The older transactions must be durable at home by then, since the new one takes over the log. The steps, each made
//! durable before the next:
//!
//! 1. Log blocks that carry the new transaction's number, left-overs of one never committed, are zeroed, so that none
//!    can be taken for a part of it.
//! 2. The superblock is set to a log that begins at its first block, with that number. There is no such transaction
//!    yet, so the fast commits count as before.
//! 3. Descriptors and copies.
//! 4. The commit block.
//! 5. The first block of the fast commits is zeroed. They no longer count, but e2fsck 1.47.0 treats a head with an
//!    unexpected number as an error and then replays nothing at all.

use super::reader::LogReader;
use super::{LogEnd, Recovery, Replay};
use crate::io::{escaped_head, transfer, transfer_buffer};
use crate::log_writer::system_time;
use crate::{Error, LogMap, Result};
use std::collections::BTreeMap;
use uext4_blockdev::{Buffer, Device, WriteDurability};
use uext4_ondisk::jbd2::{
    BlockHeader, CommitBlock, JournalSuperblock, LogChecksums, LogFormat, MAGIC, Tag, TagFlags,
    TransactionChecksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, EncodeError, Pblk};

/// Blocks and their contents.
pub type Changes = BTreeMap<u64, Box<[u8]>>;

/// Bytes of a descriptor block before its first tag, and of the UUID after that tag.
const DESCRIPTOR_HEAD: u32 = 12 + 16;

/// Writes a transaction to the log.
struct Writer<'a> {
    device: &'a dyn Device,
    log: &'a dyn LogMap,
    format: LogFormat,
    uuid: [u8; 16],
    sequence: u32,
    next: u32,
    buffer: Buffer,
    checksum: TransactionChecksum,
    /// In the commit block.
    time: (u64, u32),
}

impl Recovery {
    /// Tags that fit a descriptor block.
    fn tags_per_block(&self) -> usize {
        let format = self.info.format();
        let tail = if format.metadata_checksums() { 4 } else { 0 };
        let space = format.block_size.saturating_sub(DESCRIPTOR_HEAD + tail);
        (space / format.tag_size()).max(1) as usize
    }

    /// Checks that a transaction of `blocks` blocks fits in the log.
    ///
    /// # Errors
    /// [`Error::FastCommitRoom`] if not.
    pub fn check_room(&self, blocks: usize) -> Result<()> {
        let superblock = &self.info.superblock;
        let room = superblock.log_end().saturating_sub(superblock.first);
        let needed = blocks as u64 + blocks.div_ceil(self.tags_per_block()) as u64 + 1;
        if needed > u64::from(room) { Err(Error::FastCommitRoom { blocks: needed, room }) } else { Ok(()) }
    }

    /// Makes `changes` the only transaction of the log (on its own device or on `device`), in place of the fast
    /// commits. The earlier contents of the log must be durable at home. Returns the new recovery; none of its blocks
    /// is written home yet. `time` is that of the transaction, as in [`crate::JournalOptions::time`].
    ///
    /// # Errors
    /// [`Error::FastCommitRoom`], and [`Error::Corrupt`] for a block of the log itself, before anything is written;
    /// the device's, after which recovery finds either the fast commits or the transaction.
    pub fn convert(
        &self,
        device: &dyn Device,
        log: &dyn LogMap,
        changes: &Changes,
        time: Option<(u64, u32)>,
    ) -> Result<Recovery> {
        self.check_room(changes.len())?;
        let device = log.device().map_or(device, |own| &**own);
        if let Some(home) = changes.keys().find(|home| log.holds(**home)) {
            return Err(Corrupt::from(CorruptKind::JournalTarget).at_block(Pblk(*home)).into());
        }
        let mut info = self.info.clone();
        let sequence = self.report.end;
        let size = info.superblock.block_size as usize;
        let mut writer = Writer {
            device,
            log,
            format: info.format(),
            uuid: info.superblock.uuid,
            sequence: sequence.sequence(),
            next: info.superblock.first,
            buffer: transfer_buffer(size)?,
            checksum: TransactionChecksum::default(),
            time: time.unwrap_or_else(system_time),
        };
        writer.erase(info.superblock.first..info.superblock.log_end())?;
        (info.superblock.start, info.superblock.sequence) = (info.superblock.first, sequence.sequence());
        writer.superblock(info.block, &info.superblock)?;
        let mut blocks = Vec::with_capacity(changes.len());
        let all: Vec<_> = changes.iter().map(|(home, contents)| (*home, &**contents)).collect();
        for group in all.chunks(self.tags_per_block()) {
            writer.descriptor(group, &mut blocks)?;
        }
        device.flush().map_err(uext4_buffer::Error::Flush)?;
        writer.commit()?;
        device.flush().map_err(uext4_buffer::Error::Flush)?;
        writer.forget(info.superblock.log_end() + 1)?;
        let mut stored = Recovery::empty(&info);
        stored.report.end = sequence.next();
        stored.report.transactions = 1;
        stored.report.copies = blocks.len() as u32;
        stored.report.blocks = blocks.len() as u32;
        stored.report.ended = LogEnd::Complete;
        stored.blocks = blocks;
        Ok(stored)
    }
}

fn unencodable(_: EncodeError) -> Error {
    // All values encoded here were decoded or checked before.
    Corrupt::from(CorruptKind::JournalField("layout")).into()
}

impl Writer<'_> {
    fn place(&self, log_block: u32) -> Result<u64> {
        self.log.physical(log_block).ok_or(Error::HoleInLog { log_block })
    }

    /// Writes the buffer.
    fn write(&mut self, block: u64) -> Result<()> {
        let (device, buffer) = (self.device, &self.buffer);
        transfer(block, |pos| device.write_at(buffer, pos, WriteDurability::Cached), buffer.len())
    }

    fn read(&mut self, block: u64) -> Result<()> {
        let (device, buffer) = (self.device, &mut self.buffer);
        let size = buffer.len();
        transfer(block, |pos| device.read_at(buffer, pos), size)
    }

    /// The next log block. The room was checked, so there is one.
    fn take(&mut self) -> Result<u64> {
        let place = self.place(self.next)?;
        self.next += 1;
        Ok(place)
    }

    fn erase(&mut self, blocks: std::ops::Range<u32>) -> Result<()> {
        let mut reader = LogReader::new(self.device, self.log, self.buffer.len() as u32)?;
        self.buffer.fill(0);
        for log_block in blocks {
            let header = BlockHeader::decode(reader.block(log_block)?);
            if header.is_ok_and(|header| header.sequence == self.sequence) {
                self.write(self.place(log_block)?)?;
            }
        }
        Ok(self.device.flush().map_err(uext4_buffer::Error::Flush)?)
    }

    fn forget(&mut self, log_block: u32) -> Result<()> {
        let place = self.place(log_block)?;
        self.buffer.fill(0);
        self.write(place)?;
        Ok(self.device.flush().map_err(uext4_buffer::Error::Flush)?)
    }

    fn superblock(&mut self, block: u64, superblock: &JournalSuperblock) -> Result<()> {
        self.read(block)?;
        // Change only these fields: others may have been written by an implementation that knows more.
        let mut stored =
            JournalSuperblock::decode(&self.buffer).map_err(|corrupt| corrupt.at_block(Pblk(block)))?;
        (stored.start, stored.sequence, stored.head) = (superblock.start, superblock.sequence, 0);
        stored.encode(&mut self.buffer).map_err(unencodable)?;
        self.write(block)?;
        Ok(self.device.flush().map_err(uext4_buffer::Error::Flush)?)
    }

    /// A descriptor block and the copies that it describes.
    fn descriptor(&mut self, group: &[(u64, &[u8])], stored: &mut Vec<Replay>) -> Result<()> {
        let descriptor = self.take()?;
        let first = stored.len();
        let mut bytes = vec![0; self.buffer.len()];
        let mut offset = self.format.start_descriptor(&mut bytes, self.sequence).map_err(unencodable)?;
        let magic = escaped_head();
        for (index, (home, contents)) in group.iter().enumerate() {
            let mut flags = if index == 0 { TagFlags::empty() } else { TagFlags::SAME_UUID };
            flags.set(TagFlags::LAST, index + 1 == group.len());
            let escaped = contents.starts_with(&magic);
            flags.set(TagFlags::ESCAPE, escaped);
            self.fill(contents, escaped);
            let checksum = self.format.tag_checksum(self.sequence, &self.buffer);
            let tag = Tag { block: *home, flags, checksum };
            let next = self.format.put_tag(&mut bytes, offset, &tag, &self.uuid).map_err(unencodable)?;
            // The group has as many tags as fit.
            offset = next.ok_or(Error::FastCommitRoom { blocks: group.len() as u64, room: 0 })?;
            let copy = self.take()?;
            stored.push(Replay { home: *home, copy, escaped });
        }
        self.format.seal_tail(&mut bytes).map_err(unencodable)?;
        self.buffer.copy_from_slice(&bytes);
        self.checksum.update(&bytes);
        self.write(descriptor)?;
        for (replay, (_, contents)) in stored[first..].iter().zip(group) {
            self.fill(contents, replay.escaped);
            self.checksum.update(&self.buffer);
            self.write(replay.copy)?;
        }
        Ok(())
    }

    fn fill(&mut self, contents: &[u8], escaped: bool) {
        let length = contents.len().min(self.buffer.len());
        self.buffer.fill(0);
        self.buffer[..length].copy_from_slice(&contents[..length]);
        if escaped {
            self.buffer[..size_of_val(&MAGIC)].fill(0);
        }
    }

    fn commit(&mut self) -> Result<()> {
        let place = self.take()?;
        let (seconds, nanoseconds) = self.time;
        let commit = CommitBlock { sequence: self.sequence, seconds, nanoseconds, ..CommitBlock::default() };
        let summed = self.format.checksums == LogChecksums::Transaction;
        let commit = if summed { commit.with_checksum(self.checksum) } else { commit };
        commit.encode(&mut self.buffer).map_err(unencodable)?;
        self.format.seal_commit(&mut self.buffer).map_err(unencodable)?;
        self.write(place)
    }
}
