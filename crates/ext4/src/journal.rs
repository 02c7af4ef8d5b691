//! The journal of a volume: finding its blocks and opening it.

use crate::error::Result;
use crate::map;
use crate::volume::Ext4State;
use std::sync::Arc;
use uext4_iomap::State;
use uext4_jbd2::{Journal, JournalInfo, LogRun, RunMap};
use uext4_ondisk::Pblk;

/// Finds the journal, protects its blocks and checks that it needs no recovery. Only a volume open for
/// writing gets a running journal.
pub(crate) fn open(state: &mut Ext4State, write: bool) -> Result<()> {
    let Some(ino) = state.superblock.journal_inode() else { return Ok(()) };
    let inode = state.inode(ino)?;
    inode.check_contents()?;
    let block_size = u64::from(state.superblock.geometry.block_size());
    let end = inode.disk().size / block_size;
    let mut runs = Vec::new();
    let mut next = 0u64;
    while next < end {
        map::load(state, &inode, next * block_size)?;
        let before = next;
        let snapshot = inode.state.map.current().1;
        for run in snapshot.runs().filter(|run| u64::from(run.first) + run.length > before) {
            let (first, last) = (u64::from(run.first), u64::from(run.first) + run.length);
            if first != next || next >= end {
                break;
            }
            let length = last.min(end) - first;
            if run.state != State::Written {
                return Err(state.corrupt_inode(ino, format!("the journal has no block {first}")));
            }
            // A journal has at most 2^32 blocks; a longer run cannot come from a 32-bit map.
            let length32 = u32::try_from(length).unwrap_or(u32::MAX);
            runs.push(LogRun { log_block: run.first, physical: run.physical, length: length32 });
            next = last;
        }
        if next == before {
            return Err(state.corrupt_inode(ino, format!("the journal's map ends at block {next}")));
        }
    }
    for run in &runs {
        state.zones.add(Pblk(run.physical), u64::from(run.length));
    }
    state.zones.settle();
    let log = RunMap::new(runs)?;
    let info = JournalInfo::read(&state.cache, &log)?;
    if info.needs_recovery() {
        let text = format!(
            "the log starts at block {} with transaction {}",
            info.superblock.start,
            info.sequence().0
        );
        return Err(crate::Error::NeedsRecovery(text));
    }
    state.journal_info = Some(info);
    if write {
        state.journal = Some(Journal::open(state.cache.clone(), Arc::new(log))?);
    }
    Ok(())
}
