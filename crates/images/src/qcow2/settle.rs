//! The order in which the tables reach the file.
//!
//! | step | is written | then |
//! |---|---|---|
//! | 1 | data (before), new second-level tables, blocks of refcounts | flush |
//! | 2 | which blocks of refcounts there are, if there are new ones | flush |
//! | 3 | changed entries of second-level tables, and of the first-level table | flush |
//! | 4 | in memory only: what nothing points to any more is free | |
//!
//! A crash between them leaves clusters that are counted and not used: `qemu-img check` calls them leaked, which is no
//! damage. A cluster is used again only after step 4, so nothing durable points to it, and when nobody uses it any more
//! (`uses.rs`).

use super::image::Image;
use super::write::{Changed, State, Writing};
use crate::fault::fault;
use crate::order::bytes64;
use std::sync::atomic::Ordering;
use uext4_blockdev::{ImageFault, Result};

impl Image {
    /// Whether the file has all tables as they are in memory.
    pub(super) fn is_settled(&self) -> bool {
        self.writing.as_ref().is_none_or(|writing| !writing.unsettled.load(Ordering::Acquire))
    }

    /// Makes all completed writes durable. Whoever waits for a flush of the tables shares the next one.
    pub(super) fn flush(&self) -> Result<()> {
        let Some(writing) = &self.writing else { return Ok(()) };
        if self.is_settled() {
            self.check_flushes(writing)?;
            return self.data_store().flush();
        }
        let seen = writing.flushes.load(Ordering::Acquire);
        let mut state = writing.state.lock();
        self.check_flushes(writing)?;
        if writing.flushes.load(Ordering::Acquire) != seen {
            // It began after this call, has ended, and has not failed. Writes into known places need no tables, but
            // were perhaps completed after it began to flush.
            drop(state);
            return self.data_store().flush();
        }
        self.settle_tables(writing, &mut state)
    }

    pub(super) fn check_flushes(&self, writing: &Writing) -> Result<()> {
        match writing.failed.load(Ordering::Acquire) {
            true => Err(fault(&self.path, ImageFault::Failed)),
            false => Ok(()),
        }
    }

    /// All steps. After a failure nothing more is written.
    pub(super) fn settle_tables(&self, writing: &Writing, state: &mut State) -> Result<()> {
        writing.flushes.fetch_add(1, Ordering::AcqRel);
        let settled = self.write_tables(state);
        if settled.is_err() {
            writing.failed.store(true, Ordering::Release);
            return settled;
        }
        writing.unsettled.store(false, Ordering::Release);
        self.reclaim(writing, state)
    }

    fn write_tables(&self, state: &mut State) -> Result<()> {
        let file = &self.file;
        for Changed { table, .. } in state.tables.values().filter(|changed| changed.whole) {
            file.write(&table.bytes(0..table.length()), table.host)?;
        }
        self.grow_file(state.refcounts.end())?;
        state.refcounts.write_blocks(file)?;
        self.flush_files()?;
        if state.refcounts.has_new_blocks() {
            let freed = state.refcounts.write_table(file)?;
            file.store().flush()?;
            state.freed.extend(freed);
        }
        self.write_entries(state)?;
        file.store().flush()?;
        for Changed { table, .. } in std::mem::take(&mut state.tables).into_values() {
            table.unsettled.store(false, Ordering::Release);
        }
        state.limbo.extend(std::mem::take(&mut state.freed));
        Ok(())
    }

    /// Both files: what has been written to them is durable.
    fn flush_files(&self) -> Result<()> {
        if self.shape.external {
            self.data_store().flush()?;
        }
        self.file.store().flush()
    }

    /// Step 3.
    fn write_entries(&self, state: &mut State) -> Result<()> {
        let unit = self.file.block() as usize;
        for Changed { table, units, .. } in state.tables.values().filter(|changed| !changed.whole) {
            for at in units {
                let range = at * unit..(at + 1) * unit;
                self.file.write(&table.bytes(range.clone()), table.host + range.start as u64)?;
            }
        }
        for index in std::mem::take(&mut state.l1) {
            let word = self.l1[index as usize].load(Ordering::Acquire);
            self.file.patch(&bytes64(word), self.header.l1_at + 8 * index)?;
        }
        Ok(())
    }
}

impl Image {
    /// What was not flushed may be lost, but need not be; and what was freed last is not counted any more.
    fn close(&self, writing: &Writing) -> Result<()> {
        if !self.is_settled() {
            self.flush()?;
        }
        let mut state = writing.state.lock();
        self.check_flushes(writing)?;
        // No requests are left. At most two rounds: what a request held up, and what was freed after that.
        while !state.limbo.is_empty() {
            self.reclaim(writing, &mut state)?;
        }
        state.refcounts.write_blocks(&self.file)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        // A child of the process has no business with the file.
        if let Some(writing) = self.writing.as_ref().filter(|_| self.process.is_here()) {
            let _nobody_to_tell = self.close(writing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::overlap::{buffer, image, memory};
    use std::sync::atomic::Ordering;
    use uext4_testkit::device::DeviceFile;

    #[test]
    fn a_table_that_a_failed_write_was_to_change_is_settled_again() {
        // Six clusters: four of structures, one for a second-level table, one for data.
        let image = image(DeviceFile::growing(memory(6 << 16), 0), None, true);
        image.write(&buffer(4096), 0, false).unwrap();
        image.flush().unwrap();
        let failed = image.write(&buffer(4096), 1 << 20, false);
        assert_eq!(failed.unwrap_err().errno(), libc::ENOSPC);
        image.flush().unwrap();
        // Otherwise it stays in memory for ever, and durable writes take the long way.
        assert!(!image.tables.get(0).unwrap().unsettled.load(Ordering::Acquire));
        assert!(image.place_to_write(0, 4096, true).unwrap().is_some());
    }
}
