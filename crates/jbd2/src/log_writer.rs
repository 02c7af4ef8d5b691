//! Writing one transaction into the log.
//!
//! Revoke blocks come first, then each descriptor block with the copies that it describes, then a block of zeroes,
//! which the commit block replaces once everything else is durable. Neighbouring blocks on the volume are written in
//! one request, so a log in one run needs one request for everything but the commit block.

use crate::io::{escaped_head, transfer_buffer, write_and_flush, write_blocks, write_durable};
use crate::space::{Limits, Ring};
use crate::{Error, LogMap, Result};
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use uext4_blockdev::{Buffer, Device};
use uext4_ondisk::jbd2::{
    CommitBlock, LogChecksums, LogFormat, Tag, TagChecksum, TagFlags, TransactionChecksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, EncodeError};

/// Bytes sent at once.
const PIECE: usize = 1 << 20;

/// Maximum log blocks of one request.
pub(crate) fn blocks_at_once(block_size: usize, limits: &Limits) -> usize {
    (PIECE / block_size).min(limits.transaction as usize).max(1)
}

/// The log to write to.
pub(crate) struct Target<'a> {
    pub device: &'a dyn Device,
    pub log: &'a dyn LogMap,
    pub format: LogFormat,
    pub limits: &'a Limits,
    pub ring: Ring,
    pub uuid: [u8; 16],
}

/// The contents of a transaction.
pub(crate) struct Contents<'a, P> {
    pub sequence: u32,
    /// Blocks whose older copies must not be replayed, in order.
    pub revoked: &'a [u64],
    /// New contents of blocks.
    pub copies: &'a [(P, Arc<[u8]>)],
    /// The block of a copy.
    pub home: fn(&P) -> u64,
}

/// Position and contents of the commit block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ending {
    log_block: u32,
    sequence: u32,
    checksum: TransactionChecksum,
}

/// The buffer in which log blocks are gathered, kept between commits.
#[derive(Default)]
pub(crate) struct LogWriter {
    piece: Option<Buffer>,
    /// Blocks gathered, and the position of the first.
    filled: usize,
    at: u64,
    /// Time of the last commit: recovery takes an older one for a left-over.
    last: (u64, u32),
    /// The time of all commits, if it is not the system's.
    fixed: Option<(u64, u32)>,
}

/// Block numbers are inside the volume and the contents of a block were sized before, so this is a bug, reported
/// without a panic.
pub(crate) fn bug() -> Error {
    Corrupt::from(CorruptKind::JournalField("layout")).into()
}

fn unencodable(_: EncodeError) -> Error {
    bug()
}

impl LogWriter {
    /// Writes commits with this time, or the system's.
    pub(crate) fn new(time: Option<(u64, u32)>) -> LogWriter {
        LogWriter { fixed: time, ..LogWriter::default() }
    }

    /// Writes everything but the commit block from log block `start` on; complete but not durable on return. With
    /// `flush`, a flush follows, so that it and all earlier writes are durable.
    pub(crate) fn write<P>(
        &mut self,
        target: &Target<'_>,
        start: u32,
        contents: &Contents<'_, P>,
        flush: bool,
    ) -> Result<Ending> {
        self.filled = 0;
        let mut next = start;
        let mut take = || {
            let block = next;
            next = target.ring.after(next, 1);
            block
        };
        for revoked in contents.revoked.chunks(target.limits.records_per_revoke) {
            let block = self.block(target, take())?;
            let format = &target.format;
            let written = format.encode_revokes(block, contents.sequence, revoked).map_err(unencodable)?;
            if written != revoked.len() {
                return Err(bug());
            }
        }
        let mut checksum = TransactionChecksum::default();
        let summed = target.format.checksums == LogChecksums::Transaction;
        for copies in contents.copies.chunks(target.limits.copies_per_descriptor) {
            let block = self.block(target, take())?;
            descriptor(target, contents, copies, block)?;
            if summed {
                checksum.update(block);
            }
            for (_, image) in copies {
                let block = self.block(target, take())?;
                copy(image, block);
                if summed {
                    checksum.update(block);
                }
            }
        }
        // The commit block differs from zeroes only in its first bytes. So a power cut that tears its write between
        // sectors leaves all of it or none. Over left-overs it could leave a commit block with a wrong checksum, and an
        // intact log would look damaged.
        let log_block = take();
        self.block(target, log_block)?.fill(0);
        self.send_by(target, if flush { write_and_flush } else { write_blocks })?;
        Ok(Ending { log_block, sequence: contents.sequence, checksum })
    }

    /// Writes the commit block, durable on return. The rest of the transaction must be durable already.
    pub(crate) fn commit(&mut self, target: &Target<'_>, ending: Ending) -> Result<()> {
        self.last = self.fixed.unwrap_or_else(|| self.last.max(system_time()));
        let (seconds, nanoseconds) = self.last;
        let commit =
            CommitBlock { sequence: ending.sequence, seconds, nanoseconds, ..CommitBlock::default() };
        let summed = target.format.checksums == LogChecksums::Transaction;
        let commit = if summed { commit.with_checksum(ending.checksum) } else { commit };
        let block = self.block(target, ending.log_block)?;
        commit.encode(block).map_err(unencodable)?;
        target.format.seal_commit(block).map_err(unencodable)?;
        self.filled = 0;
        let size = target.format.block_size as usize;
        let piece = self.piece.as_ref().map_or(&[][..], |piece| &piece[..size]);
        write_durable(target.device, self.at, piece)
    }

    /// Memory for a log block. Writes the gathered blocks first if this block is not adjacent to them.
    fn block(&mut self, target: &Target<'_>, log_block: u32) -> Result<&mut [u8]> {
        let size = target.format.block_size as usize;
        let place = target.log.physical(log_block).ok_or(Error::HoleInLog { log_block })?;
        let most = blocks_at_once(size, target.limits);
        if self.filled > 0 && (self.filled == most || self.at.checked_add(self.filled as u64) != Some(place))
        {
            self.send(target)?;
        }
        if self.filled == 0 {
            self.at = place;
        }
        let piece = match &mut self.piece {
            Some(piece) => piece,
            none => none.insert(transfer_buffer(most * size)?),
        };
        let start = self.filled * size;
        self.filled += 1;
        Ok(&mut piece[start..start + size])
    }

    fn send(&mut self, target: &Target<'_>) -> Result<()> {
        self.send_by(target, write_blocks)
    }

    fn send_by(
        &mut self,
        target: &Target<'_>,
        write: fn(&dyn Device, u64, &[u8], usize) -> Result<()>,
    ) -> Result<()> {
        let size = target.format.block_size as usize;
        let filled = std::mem::take(&mut self.filled);
        match &self.piece {
            Some(piece) if filled > 0 => write(target.device, self.at, &piece[..filled * size], size),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogWriter").field("last", &self.last).finish_non_exhaustive()
    }
}

/// The current time in seconds and nanoseconds since 1970.
pub(crate) fn system_time() -> (u64, u32) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (now.as_secs(), now.subsec_nanos())
}

fn is_escaped(image: &[u8]) -> bool {
    image.starts_with(&escaped_head())
}

/// Copies a block as it is stored in the log: if it starts with the journal's magic number, that is replaced by zeroes.
fn copy(image: &[u8], block: &mut [u8]) {
    block.copy_from_slice(image);
    if is_escaped(image) {
        block[..escaped_head().len()].fill(0);
    }
}

fn descriptor<P>(
    target: &Target<'_>,
    contents: &Contents<'_, P>,
    copies: &[(P, Arc<[u8]>)],
    block: &mut [u8],
) -> Result<()> {
    let format = &target.format;
    let mut offset = format.start_descriptor(block, contents.sequence).map_err(unencodable)?;
    for (index, (owner, image)) in copies.iter().enumerate() {
        let mut flags = if index == 0 { TagFlags::empty() } else { TagFlags::SAME_UUID };
        flags.set(TagFlags::LAST, index + 1 == copies.len());
        flags.set(TagFlags::ESCAPE, is_escaped(image));
        let checksum = tag_checksum(format, contents.sequence, image);
        let tag = Tag { block: (contents.home)(owner), flags, checksum };
        let next = format.put_tag(block, offset, &tag, &target.uuid).map_err(unencodable)?;
        offset = next.ok_or_else(bug)?;
    }
    format.seal_tail(block).map_err(unencodable)
}

/// The checksum of a copy as stored in the log.
fn tag_checksum(format: &LogFormat, sequence: u32, image: &Arc<[u8]>) -> TagChecksum {
    if !is_escaped(image) {
        return format.tag_checksum(sequence, image);
    }
    let mut block = vec![0; image.len()];
    copy(image, &mut block);
    format.tag_checksum(sequence, &block)
}
