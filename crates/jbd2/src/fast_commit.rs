//! Fast commits: what the running transaction changed so far, as records of the file system in an area of their own
//! behind the log. The transaction goes on; its full commit makes them out of date.
//!
//! The file system *declares* a handle ([`crate::Handle::declare`]): the records that it will give describe everything
//! that the handle changes. One handle with a change that is not declared, and the transaction can only be committed in
//! full.
//!
//! | step | meanwhile |
//! |---|---|
//! | the turn to commit is taken; so no transaction is committing, and the running one is the next in the log | |
//! | the journal is quiesced; the file system gives the records | no handle starts |
//! | the blocks are written, all before them is flushed, and the one that makes them count is written | handles run |
//!
//! # What makes a fast commit count
//! Later ones of a transaction: their last block, which has the tail. Linux and e2fsck 1.47.0 refuse the volume if the
//! *first* fast commit of the expected transaction is torn or incomplete. So its first block is written without its
//! first eight bytes, which tell it from an unused area, and again with them when all is durable. That holds on devices
//! that tear sectors at eight bytes too.
//!
//! # When they no longer count
//! They count until a full commit of the transaction is durable. Then the first block is erased, because e2fsck 1.47.0
//! reports an error if it has an older number. The last block of the area is never used: Linux fails at the end of the
//! area.

use crate::fast_area::FastArea;
use crate::hooks::{FastCommitContents, FastCommitRoom, FullCommit};
use crate::io::{transfer_buffer, write_blocks, write_durable};
use crate::journal::Journal;
use crate::{Error, Result, SyncOutcome, Tid};
use std::sync::Arc;
use uext4_blockdev::Device;

/// Bytes that tell a fast commit from an unused area: tag, length and features of the head.
const TELLING: usize = 8;

/// How an attempt ended.
enum Attempt {
    /// What the transaction changed is durable.
    Durable,
    /// Only a full commit can do that.
    Full(FullCommit),
}

impl Journal {
    /// As [`Journal::datasync`], by a fast commit if the log has an area for them and the transaction allows it.
    ///
    /// # Errors
    /// As there.
    pub fn sync(&self, tid: Tid) -> Result<SyncOutcome> {
        match &self.fast {
            Some(area) if self.makes_fast_commits() => self.sync_fast(area, tid),
            _ => self.datasync(tid),
        }
    }

    #[cold]
    fn sync_fast(&self, area: &FastArea, tid: Tid) -> Result<SyncOutcome> {
        self.check_alive()?;
        let flushes = self.counters.flushes.get();
        let done = || !self.commit_needed(tid) || self.aborted().is_some();
        if done() {
            return self.datasync(tid);
        }
        if let Some(turn) = self.turn.take_unless(done) {
            // On a panic, abort before the turn is released: no other commit may follow.
            let _unfinished = self.abort_if_panicking();
            let attempt = self.try_fast(area, tid).map_err(|error| self.fail("fast commit", error));
            drop(turn);
            if let Attempt::Full(reason) = attempt? {
                self.counters.fast.full[reason as usize].add(1);
                return self.datasync(tid);
            }
        }
        self.check_alive()?;
        Ok(SyncOutcome::Committed { flushed: self.counters.flushed.get() > flushes })
    }

    /// The caller has the turn.
    fn try_fast(&self, area: &FastArea, tid: Tid) -> Result<Attempt> {
        let running = |tid| {
            let state = self.state.read();
            let running = state.running.as_ref().filter(|running| running.transaction.tid == tid)?;
            Some((Arc::clone(&running.transaction), state.begun))
        };
        let Some((transaction, begun)) = running(tid) else { return Ok(Attempt::Durable) };
        if !begun {
            // Recovery does not look at a log that is not in use.
            return Ok(Attempt::Full(FullCommit::LogUnused));
        }
        if transaction.is_undeclared() {
            return Ok(Attempt::Full(FullCommit::Undeclared));
        }
        let quiet = self.lock_updates()?;
        if transaction.is_undeclared() {
            return Ok(Attempt::Full(FullCommit::Undeclared));
        }
        let room = FastCommitRoom {
            tid,
            first: area.used() == 0,
            blocks: area.free(),
            block_size: self.format.block_size as usize,
        };
        let hooks = self.hooks.get();
        let contents =
            hooks.map_or(FastCommitContents::Full(FullCommit::File), |hooks| hooks.describe(&room));
        if let FastCommitContents::Full(_) = contents {
            // The file system has forgotten what it was told so far.
            transaction.note_undeclared();
        }
        drop(quiet);
        match contents {
            FastCommitContents::Nothing => Ok(Attempt::Durable),
            FastCommitContents::Full(reason) => Ok(Attempt::Full(reason)),
            FastCommitContents::Blocks(blocks) => self.write_fast(area, &blocks).map(|()| Attempt::Durable),
        }
    }

    /// Writes a fast commit behind those of the transaction so far, durable on return.
    fn write_fast(&self, area: &FastArea, contents: &[u8]) -> Result<()> {
        let size = self.format.block_size as usize;
        let used = area.used();
        let count = contents.len().checked_div(size).and_then(|count| u32::try_from(count).ok());
        let count =
            count.filter(|count| (1..=area.free()).contains(count)).ok_or_else(crate::log_writer::bug)?;
        let mut memory = area.take_memory(contents.len())?;
        let buffer = &mut memory[..contents.len()];
        buffer.copy_from_slice(contents);
        // The block that makes it count comes last.
        let last = if used == 0 { 0 } else { count as usize - 1 };
        let mut telling = [0; TELLING];
        let before = if used == 0 {
            telling.copy_from_slice(&buffer[..TELLING]);
            buffer[..TELLING].fill(0);
            0..count as usize
        } else {
            0..last
        };
        for index in before {
            let place = self.fast_place(area, used + index as u32)?;
            write_blocks(&**self.log_device(), place, &buffer[index * size..][..size], size)?;
        }
        self.flush_devices()?;
        self.check_alive()?;
        if used == 0 {
            buffer[..TELLING].copy_from_slice(&telling);
        }
        let place = self.fast_place(area, used + last as u32)?;
        write_durable(&**self.log_device(), place, &buffer[last * size..][..size])?;
        area.keep_memory(memory);
        area.set_used(used + count);
        self.counters.fast.commits.add(1);
        self.counters.fast.blocks.add(u64::from(count));
        Ok(())
    }

    fn fast_place(&self, area: &FastArea, block: u32) -> Result<u64> {
        let log_block = area.log_block(block);
        self.log.physical(log_block).ok_or(Error::HoleInLog { log_block })
    }

    /// A full commit is durable: the fast commits of its transaction do not count any more. The caller has the turn.
    pub(crate) fn end_fast_commits(&self) -> Result<()> {
        match &self.fast {
            Some(area) if area.used() > 0 => {
                self.erase(area, write_durable)?;
                area.set_used(0);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Erases the first block of fast commits that do not count. e2fsck 1.47.0 reports an error if the number of the
    /// first one is not the expected one.
    pub(crate) fn erase_fast_commits(&self) -> Result<()> {
        let write =
            |device: &dyn Device, block, bytes: &[u8]| write_blocks(device, block, bytes, bytes.len());
        self.fast.as_ref().map_or(Ok(()), |area| self.erase(area, write))
    }

    fn erase(&self, area: &FastArea, write: impl Fn(&dyn Device, u64, &[u8]) -> Result<()>) -> Result<()> {
        let zeroes = transfer_buffer(self.format.block_size as usize)?;
        write(&**self.log_device(), self.fast_place(area, 0)?, &zeroes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommitHooks, JournalOptions, LogRun, RunMap};
    use std::sync::atomic::{AtomicBool, Ordering};
    use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
    use uext4_blockdev::{BufferPool, WriteDurability};
    use uext4_buffer::{BufferCache, CacheOptions};

    /// Bytes per block, blocks of the log, and the block behind it.
    const BLOCK: u32 = 1024;
    const LOG: u32 = 1056;
    const DATA: u64 = 8 + LOG as u64;

    /// Refuses once; after that it has forgotten what was declared.
    #[derive(Default)]
    struct Forgetful(AtomicBool);

    impl CommitHooks for Forgetful {
        fn describe(&self, _: &FastCommitRoom) -> FastCommitContents {
            match self.0.swap(true, Ordering::SeqCst) {
                false => FastCommitContents::Full(FullCommit::File),
                true => FastCommitContents::Nothing,
            }
        }
    }

    /// An empty log of version 2 with 16 blocks for fast commits.
    fn journal() -> Journal {
        let device = MemoryDevice::new(MemoryOptions::new((DATA + 8) * u64::from(BLOCK))).unwrap();
        let mut bytes = BufferPool::new(4096).unwrap().take(BLOCK as usize).unwrap();
        bytes.fill(0);
        let fields = [(0, 0xC03B_3998), (4, 4), (12, BLOCK), (16, LOG), (20, 1), (24, 41), (40, 32), (64, 1)];
        for (offset, value) in fields.into_iter().chain([(84, 16)]) {
            bytes[offset..offset + 4].copy_from_slice(&[24, 16, 8, 0].map(|shift| (value >> shift) as u8));
        }
        device.write_at(&bytes, 8 * u64::from(BLOCK), WriteDurability::Cached).unwrap();
        let cache = BufferCache::new(Arc::new(device), &CacheOptions::new(BLOCK)).unwrap();
        let map = RunMap::new(vec![LogRun { log_block: 0, physical: 8, length: LOG }]).unwrap();
        let options = JournalOptions { fast_commits: true, ..JournalOptions::default() };
        let journal = Journal::open_with(cache, Arc::new(map), Arc::default(), &options).unwrap();
        journal.set_hooks(Arc::new(Forgetful::default()));
        journal
    }

    fn change(journal: &Journal) -> Tid {
        let mut handle = journal.start(1).unwrap();
        let pin = journal.cache().pin(DATA).unwrap();
        handle.change_for(&pin, 1, |bytes| bytes[0] += 1).unwrap();
        handle.declare();
        let tid = handle.tid();
        handle.stop().unwrap();
        tid
    }

    /// Between a refusal and the full commit another thread may get the turn. Nothing is declared any more then, and
    /// nothing is durable.
    #[test]
    fn after_a_refusal_only_a_full_commit_will_do() {
        let journal = journal();
        journal.datasync(change(&journal)).unwrap();
        let tid = change(&journal);
        let area = journal.fast.as_deref().unwrap();
        let attempt = || {
            let _turn = journal.turn.take_unless(|| false).unwrap();
            journal.try_fast(area, tid).unwrap()
        };
        assert!(matches!(attempt(), Attempt::Full(FullCommit::File)));
        assert!(matches!(attempt(), Attempt::Full(FullCommit::Undeclared)));
        journal.sync(tid).unwrap();
        assert_eq!(journal.last_committed(), tid);
    }
}
