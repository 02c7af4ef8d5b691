//! Following the transactions of the log to the last good commit.

use super::LogEnd;
use super::reader::LogReader;
use crate::{Damage, JournalInfo, Result, Tid};
use uext4_ondisk::CorruptKind;
use uext4_ondisk::jbd2::{
    BlockHeader, BlockType, CommitBlock, LogChecksums, LogFormat, Tag, TagFlags, TransactionChecksum,
};

/// A copy of a block in the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copy {
    pub(super) home: u64,
    pub(super) log_block: u32,
    /// Transaction, counted from the first of the log.
    pub(super) transaction: u32,
    pub(super) escaped: bool,
    /// The checksum in its tag does not match.
    pub(super) bad: bool,
}

/// A revoke block.
#[derive(Debug, Clone, Copy)]
pub(super) struct RevokeBlock {
    pub(super) log_block: u32,
    pub(super) transaction: u32,
}

/// What the scan found: copies and revoke blocks of transactions before `transactions`, in the order of the log.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) copies: Vec<Copy>,
    pub(super) revoke_blocks: Vec<RevokeBlock>,
    pub(super) transactions: u32,
    pub(super) end: LogEnd,
}

/// A fault whose meaning depends on what follows.
#[derive(Debug, Clone, Copy)]
struct Fault {
    log_block: u32,
    kind: CorruptKind,
}

struct Walk<'r, 'd> {
    reader: &'r mut LogReader<'d>,
    format: LogFormat,
    volume_blocks: u64,
    first: u32,
    log_end: u32,
    /// Next log block.
    next: u32,
    /// Log blocks not walked yet: each is walked once at most, whatever the log says.
    left: u32,
    start_sequence: u32,
    found: Scan,
    /// Where the copies and revoke blocks of the current transaction begin.
    open: (usize, usize),
    checksum: TransactionChecksum,
    /// Time of the last commit that counted, or of the one that failed.
    committed: u64,
    /// A descriptor or revoke block with a bad checksum: left-overs or damage, depending on its commit block.
    suspect: Option<Fault>,
    /// A fault in the current transaction that is damage if the transaction was committed.
    broken: Option<Fault>,
    /// A bad transaction that may be the last one of an interrupted asynchronous commit.
    failed: Option<Damage>,
    skipped: u32,
}

impl Scan {
    /// Walks the log.
    pub(super) fn run(reader: &mut LogReader<'_>, info: &JournalInfo, volume_blocks: u64) -> Result<Scan> {
        let superblock = &info.superblock;
        let found =
            Scan { copies: Vec::new(), revoke_blocks: Vec::new(), transactions: 0, end: LogEnd::Complete };
        let mut walk = Walk {
            reader,
            format: info.format(),
            volume_blocks,
            first: superblock.first,
            log_end: superblock.log_end(),
            next: superblock.start,
            left: info.usable_blocks(),
            start_sequence: superblock.sequence,
            found,
            open: (0, 0),
            checksum: TransactionChecksum::default(),
            committed: 0,
            suspect: None,
            broken: None,
            failed: None,
            skipped: 0,
        };
        let end = loop {
            if let Some(end) = walk.step()? {
                break end;
            }
        };
        Ok(walk.finish(end))
    }
}

impl Walk<'_, '_> {
    /// Sequence number of the transaction that is being walked.
    fn sequence(&self) -> u32 {
        let walked = self.found.transactions.wrapping_add(self.skipped);
        self.start_sequence.wrapping_add(walked)
    }

    /// Takes the next log block, `None` when all were walked.
    fn advance(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let block = self.next;
        self.next = if block + 1 >= self.log_end { self.first } else { block + 1 };
        Some(block)
    }

    fn step(&mut self) -> Result<Option<LogEnd>> {
        let Some(log_block) = self.advance() else { return Ok(Some(LogEnd::Full)) };
        let block = self.reader.block(log_block)?;
        let Some(header) = BlockHeader::find(block) else { return Ok(Some(LogEnd::Complete)) };
        if header.sequence != self.sequence() {
            return Ok(Some(LogEnd::Complete));
        }
        match header.block_type {
            BlockType::Descriptor => self.descriptor(log_block),
            BlockType::Commit => self.commit(log_block),
            BlockType::Revoke => self.revoke(log_block).map(|()| None),
            _ => Ok(Some(LogEnd::Complete)),
        }
    }

    fn descriptor(&mut self, log_block: u32) -> Result<Option<LogEnd>> {
        let format = self.format;
        let block = self.reader.block(log_block)?;
        if let Err(corrupt) = format.verify_tail(block) {
            self.suspect.get_or_insert(Fault { log_block, kind: corrupt.kind });
        }
        // The tags of a suspect descriptor are only used to find the next block.
        let counts = self.suspect.is_none() && self.failed.is_none();
        let summed = counts && format.checksums == LogChecksums::Transaction;
        if summed {
            self.checksum.update(block);
        }
        let tags: Vec<Tag> = format.tags(block).collect();
        for tag in tags {
            let Some(place) = self.advance() else { return Ok(Some(LogEnd::Full)) };
            if counts {
                self.copy(&tag, log_block, place, summed)?;
            }
        }
        Ok(None)
    }

    /// Records one copy; `descriptor` is the log block of its tag.
    fn copy(&mut self, tag: &Tag, descriptor: u32, log_block: u32, summed: bool) -> Result<()> {
        let mut bad = false;
        let sequence = self.sequence();
        if summed || self.format.metadata_checksums() {
            let data = self.reader.block(log_block)?;
            if summed {
                self.checksum.update(data);
            } else {
                bad = self.format.verify_data(tag, sequence, data).is_err();
            }
        }
        if tag.block >= self.volume_blocks || self.reader.holds(tag.block) {
            self.broken.get_or_insert(Fault { log_block: descriptor, kind: CorruptKind::JournalTarget });
            return Ok(());
        }
        self.found.copies.push(Copy {
            home: tag.block,
            log_block,
            transaction: self.found.transactions,
            escaped: tag.flags.contains(TagFlags::ESCAPE),
            bad,
        });
        Ok(())
    }

    fn revoke(&mut self, log_block: u32) -> Result<()> {
        let block = self.reader.block(log_block)?;
        if let Err(corrupt) = self.format.verify_tail(block) {
            self.suspect.get_or_insert(Fault { log_block, kind: corrupt.kind });
        } else if let Err(corrupt) = self.format.revokes(block) {
            self.broken.get_or_insert(Fault { log_block, kind: corrupt.kind });
        }
        if self.suspect.is_none() && self.failed.is_none() && self.broken.is_none() {
            let transaction = self.found.transactions;
            self.found.revoke_blocks.push(RevokeBlock { log_block, transaction });
        }
        Ok(())
    }

    fn commit(&mut self, log_block: u32) -> Result<Option<LogEnd>> {
        let block = self.reader.block(log_block)?;
        let Ok(commit) = CommitBlock::decode(block) else { return Ok(Some(LogEnd::Complete)) };
        let own = self.format.verify_commit(block).err().map(|corrupt| corrupt.kind);
        let older = commit.seconds < self.committed;
        let suspect = self.suspect.take();
        if let Some(damage) = self.failed {
            return Ok(self.behind_failed(damage, own.is_none(), suspect.is_some() && older));
        }
        let summed = self.format.checksums == LogChecksums::Transaction;
        let mismatch =
            (summed && !commit.matches(self.checksum)).then_some(CorruptKind::JournalCommitChecksum);
        if let Some(fault) = suspect.or(own.or(mismatch).map(|kind| Fault { log_block, kind })) {
            if older || !self.format.async_commit {
                return self.verdict(fault, older).map(Some);
            }
            self.failed = Some(self.damage(fault)?);
            (self.skipped, self.committed) = (1, commit.seconds);
            return Ok(None);
        }
        if let Some(fault) = self.broken {
            return Ok(Some(LogEnd::Damaged(self.damage(fault)?)));
        }
        self.committed = commit.seconds;
        self.checksum = TransactionChecksum::default();
        self.found.transactions += 1;
        self.open = (self.found.copies.len(), self.found.revoke_blocks.len());
        Ok(None)
    }

    /// A commit block after a failed transaction. A good one proves that the failed transaction was not the last one,
    /// so it was not interrupted. One that fails itself proves nothing, nor does one that is older than the commit
    /// before it and has a suspect transaction: left-overs.
    fn behind_failed(&mut self, damage: Damage, good: bool, left_over: bool) -> Option<LogEnd> {
        if left_over {
            return Some(LogEnd::Interrupted);
        }
        if good {
            return Some(LogEnd::Damaged(damage));
        }
        self.skipped = self.skipped.wrapping_add(1);
        None
    }

    /// A mismatch in a transaction whose commit block was found. Time does not run backwards within one use of the log:
    /// an older commit is from an earlier use.
    fn verdict(&self, fault: Fault, older: bool) -> Result<LogEnd> {
        if older { Ok(LogEnd::Stale) } else { Ok(LogEnd::Damaged(self.damage(fault)?)) }
    }

    fn damage(&self, fault: Fault) -> Result<Damage> {
        let Fault { log_block, kind } = fault;
        let tid = Tid::near(self.sequence(), Tid::of_sequence(self.start_sequence));
        Ok(Damage { tid, log_block, block: self.reader.physical(log_block)?, kind })
    }

    /// Drops everything that belongs to no good transaction.
    fn finish(mut self, end: LogEnd) -> Scan {
        self.found.copies.truncate(self.open.0);
        self.found.revoke_blocks.truncate(self.open.1);
        self.found.end = match end {
            LogEnd::Damaged(_) => end,
            _ if self.failed.is_some() => LogEnd::Interrupted,
            _ => end,
        };
        self.found
    }
}
