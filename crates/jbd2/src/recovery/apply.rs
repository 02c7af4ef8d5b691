//! Writing the copies home and emptying the log.
//!
//! The order that makes a crash at any point harmless: home blocks, flush, superblock of the log, flush. Until the log
//! is empty, everything can be repeated with the same result.

use super::{Recovery, Replay};
use crate::io::{escaped_head, transfer, transfer_buffer};
use crate::{Error, JournalInfo, LogMap, Result, Tid};
use uext4_blockdev::{Buffer, Device, WriteDurability};
use uext4_ondisk::jbd2::JournalSuperblock;
use uext4_ondisk::{EncodeError, Pblk};

/// Maximum bytes per transfer.
const PIECE: usize = 256 << 10;

impl Replay {
    /// The original first four bytes of the block, if the copy is escaped.
    #[must_use]
    pub fn head(&self) -> Option<[u8; 4]> {
        self.escaped.then(escaped_head)
    }
}

impl Recovery {
    /// Writes every copy in `log` to its home on `device`. `adjust` sees each block (its number and contents) before it
    /// is written. A device flush must follow before the log is emptied. Returns how many blocks were written.
    ///
    /// # Errors
    /// The device's; some blocks may have been written.
    pub fn write_home(
        &self,
        device: &dyn Device,
        log: &dyn LogMap,
        adjust: &mut dyn FnMut(u64, &mut [u8]),
    ) -> Result<u32> {
        let copies = log.device().map_or(device, |copies| &**copies);
        let size = self.info.superblock.block_size as usize;
        let most = (PIECE / size).max(1);
        let mut buffer = transfer_buffer(most * size)?;
        // Neighbouring blocks with neighbouring copies are transferred together.
        let together = |one: &Replay, other: &Replay| {
            one.home.checked_add(1) == Some(other.home) && one.copy.checked_add(1) == Some(other.copy)
        };
        let mut written = 0;
        for run in self.blocks.chunk_by(together).flat_map(|run| run.chunks(most)) {
            let bytes = &mut buffer[..run.len() * size];
            transfer(run[0].copy, |pos| copies.read_at(bytes, pos), size)?;
            for (replay, block) in run.iter().zip(bytes.chunks_exact_mut(size)) {
                if let Some(head) = replay.head() {
                    block[..head.len()].copy_from_slice(&head);
                }
                adjust(replay.home, block);
            }
            transfer(run[0].home, |pos| device.write_at(bytes, pos, WriteDurability::Cached), size)?;
            written += run.len() as u32;
        }
        Ok(written)
    }
}

/// Changes the bytes of a log's superblock to those of an empty log. `errno` is the error recorded in it; the
/// checksum is brought up to date.
///
/// # Errors
/// [`Error::Corrupt`] if the bytes are no superblock.
pub fn store_empty_superblock(bytes: &mut [u8], sequence: Tid, errno: i32) -> Result<()> {
    let mut superblock = JournalSuperblock::decode(bytes)?;
    // An empty log needs no head: the next transaction starts at the first block.
    (superblock.start, superblock.sequence, superblock.head, superblock.errno) =
        (0, sequence.sequence(), 0, errno);
    superblock.encode(bytes).map_err(unencodable)
}

fn unencodable(_: EncodeError) -> Error {
    // Decoded values can be encoded; this is a bug, reported without a panic.
    uext4_ondisk::Corrupt::from(uext4_ondisk::CorruptKind::JournalField("layout")).into()
}

/// Writes the superblock of an empty log on `device`, whose next transaction comes after `sequence`, with the recorded
/// error `errno`, and makes it durable. All blocks of the log must be durable at home already.
///
/// # Errors
/// The device's, or [`Error::Corrupt`].
pub fn mark_empty(device: &dyn Device, info: &JournalInfo, sequence: Tid, errno: i32) -> Result<()> {
    let size = info.superblock.block_size as usize;
    let mut buffer: Buffer = transfer_buffer(size)?;
    transfer(info.block, |pos| device.read_at(&mut buffer, pos), size)?;
    store_empty_superblock(&mut buffer, sequence, errno).map_err(|error| match error {
        Error::Corrupt(corrupt) => corrupt.at_block(Pblk(info.block)).into(),
        other => other,
    })?;
    transfer(info.block, |pos| device.write_at(&buffer, pos, WriteDurability::Cached), size)?;
    device.flush().map_err(uext4_buffer::Error::Flush)?;
    Ok(())
}
