//! Discards: clusters that are discarded as a whole lose their place in the file, of the others the bytes.
//!
//! As QEMU's `discard=unmap`: the entry says that the cluster reads as zeros, the use is counted once less when that is
//! durable (`settle.rs`), and the host gets the bytes back at once. What a discarded cluster reads as is undefined
//! until it is written, so it does no harm that the bytes may go before the entry.

use super::entry::Kind;
use super::image::Image;
use super::table::Table;
use super::write::{State, Writing};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use uext4_blockdev::{Error, Result};

/// Most entries of a table that are changed while other writes wait.
const ENTRIES_MAX: u64 = 4096;

impl Image {
    /// Discards a checked range.
    pub(super) fn discard(&self, pos: u64, length: u64) -> Result<()> {
        let Some(writing) = &self.writing else { return Err(Error::ReadOnly) };
        let (end, mask) = (pos + length, self.shape.cluster() - 1);
        let mut whole = (pos + mask) & !mask..end & !mask;
        // The last cluster may reach behind the disk. Bytes between the last block and the end of the disk, which only
        // others see, keep it.
        if end >= self.header.size {
            whole.end = end;
        }
        if !self.frees() || whole.is_empty() {
            return self.punch_disk(pos..end);
        }
        self.punch_disk(pos..whole.start)?;
        let step = ENTRIES_MAX << self.shape.cluster_bits;
        let mut at = whole.start;
        while at < whole.end {
            let table_end = ((at >> self.shape.table_bits()) + 1) << self.shape.table_bits();
            let next = whole.end.min(table_end).min(at.saturating_add(step));
            self.drop_clusters(writing, at..next)?;
            at = next;
        }
        self.punch_disk(whole.end..end)
    }

    /// Whether an entry can say that a cluster has no place any more. In version 2 the backing file would show, and in
    /// a data file all places are taken.
    pub(super) fn frees(&self) -> bool {
        !self.shape.external && (self.shape.zeros || self.below.is_none())
    }

    /// Whether a cluster has bytes in the file.
    pub(super) fn is_placed(&self, table: &Table, entry: usize) -> bool {
        let (word, _) = table.entry(&self.shape, entry);
        word & super::entry::COMPRESSED != 0 || self.shape.place(word).is_some()
    }

    /// Takes the clusters of a range, inside one table, out of it.
    fn drop_clusters(&self, writing: &Writing, range: Range<u64>) -> Result<()> {
        let (index, first) = self.shape.split(range.start);
        let count = (range.end - range.start).div_ceil(self.shape.cluster()) as usize;
        match self.table(index)? {
            Some(table) if (first..first + count).any(|entry| self.is_placed(&table, entry)) => {}
            _ => return Ok(()),
        }
        // What loses its place here is given to nobody else before it is a hole.
        let _in_use = writing.uses.call();
        let mut state = writing.state.lock();
        self.prepare_change(writing, &mut state)?;
        let table = self.table_to_change(&mut state, index)?;
        let mut holes: Vec<Range<u64>> = Vec::new();
        for entry in (first..first + count).filter(|entry| self.is_placed(&table, *entry)) {
            let ours = self.drop_cluster(&mut state, index, &table, entry)?;
            match (ours, holes.last_mut()) {
                (None, _) => {}
                (Some(host), Some(last)) if last.end == host => last.end += self.shape.cluster(),
                (Some(host), _) => holes.push(host..host + self.shape.cluster()),
            }
        }
        drop(state);
        holes.into_iter().try_for_each(|hole| self.punch(hole))
    }

    /// Takes one out. Returns where it was, if nobody else uses it.
    fn drop_cluster(
        &self,
        state: &mut State,
        index: u64,
        table: &Arc<Table>,
        entry: usize,
    ) -> Result<Option<u64>> {
        let (word, _) = table.entry(&self.shape, entry);
        let ours = match self.shape.place(word) {
            Some(host) if self.is_ours(state, word, host)? => Some(host),
            _ => None,
        };
        let (empty, bitmap) = self.shape.empty();
        table.set(&self.shape, entry, empty, bitmap);
        self.note(state, index, table, entry);
        self.free(state, word);
        Ok(ours)
    }

    /// Gives the host back what these bytes of the disk occupy. The tables stay as they are.
    fn punch_disk(&self, range: Range<u64>) -> Result<()> {
        let _in_use = self.in_use();
        let mut at = range.start;
        while at < range.end {
            let piece = self.piece(at, range.end)?;
            if let Kind::Data { host, copied: true } = piece.kind
                && self.has_begun()
            {
                self.punch(host..host + (piece.end - at))?;
            }
            at = piece.end;
        }
        Ok(())
    }

    fn punch(&self, hole: Range<u64>) -> Result<()> {
        let length = self.length.load(Ordering::Acquire);
        let end = hole.end.min(length - length % self.data.block());
        if end <= hole.start {
            return Ok(());
        }
        self.data_store().discard(hole.start, end - hole.start)
    }
}
