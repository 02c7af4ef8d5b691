//! The journal of a volume: finding its blocks and opening it.

use crate::ground::error::Result;
use crate::ground::unlogged::Unlogged;
use crate::inode::{Ext4State, refuse_value};
use crate::map;
use crate::opening::on_device;
use std::sync::Arc;
use uext4_iomap::{Found, State};
use uext4_jbd2::{Journal, JournalInfo, JournalOptions, LogMap, LogRun, RunMap};
use uext4_ondisk::Pblk;
use uext4_ondisk::ext4::{Compat, Incompat, RoCompat, Superblock};

/// Finds the log. `None` if there is none, or it is on a device that a reader does not need.
pub(crate) fn find(state: &Ext4State) -> Result<Option<Arc<dyn LogMap>>> {
    if let Some(log) = &state.external_log {
        return Ok(Some(Arc::new(log.clone())));
    }
    Ok(internal(state)?.map(|log| Arc::new(log) as Arc<dyn LogMap>))
}

/// Finds the blocks of the journal. `None` if the volume has no internal journal.
fn internal(state: &Ext4State) -> Result<Option<RunMap>> {
    let Some(ino) = state.superblock.journal_inode() else { return Ok(None) };
    // Bypass the cache: the mapping of this inode is checked before the log's blocks are a system zone.
    let inode = state.load_inode(ino)?;
    refuse_value(ino, &inode.disk())?;
    inode.check_contents()?;
    let block_size = u64::from(state.superblock.geometry.block_size());
    let end = inode.disk().size / block_size;
    if end > state.superblock.geometry.blocks_count() {
        return Err(state.corrupt_inode(ino, format!("a journal of {end} blocks, more than the volume has")));
    }
    let mut runs = Vec::new();
    let mut next = 0u64;
    while next < end {
        // A map cannot reach past block 2^32.
        let Ok(block) = u32::try_from(next) else { break };
        match inode.state.map.find(block) {
            Found::Unknown => drop(map::load(state, &inode, next * block_size)?),
            Found::Known { state: State::Written, physical, blocks } => {
                let length = blocks.min(end - next);
                runs.push(LogRun {
                    log_block: block,
                    physical,
                    length: u32::try_from(length).unwrap_or(u32::MAX),
                });
                next += length;
            }
            Found::Known { .. } => {
                return Err(state.corrupt_inode(ino, format!("the journal has no block {next}")));
            }
        }
    }
    Ok(Some(RunMap::new(runs)?))
}

/// Finds the journal and makes its blocks a system zone. By now the log is empty or stale. Only a volume open for
/// writing gets a running journal, or a batch for its changes if it has none.
///
/// A read-only open needs no journal whose log is stale. Damage of the journal is then recorded
/// ([`crate::RecoveryInfo::journal_damage`]), and the files stay readable.
pub(crate) fn open(state: &mut Ext4State, write: bool) -> Result<()> {
    match load(state) {
        Ok(None) => {
            if write {
                state.unlogged = Some(Unlogged::new(state.cache.clone(), state.committed.clone()));
            }
            if state.can_change() {
                state.keep_times();
            }
            Ok(())
        }
        Ok(Some((log, info))) => begin(state, log, info, write),
        Err(error) if !write && !state.superblock.needs_recovery() => {
            state.recovery.journal_damage = Some(error.to_string());
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Whether changes may be committed fast. No record tells of usage in quota files or of parts of clusters.
fn makes_fast_commits(superblock: &Superblock) -> bool {
    superblock.features.compat.contains(Compat::FAST_COMMIT)
        && !superblock.features.ro_compat.contains(RoCompat::QUOTA)
        && superblock.geometry.cluster_blocks() == 1
}

fn load(state: &mut Ext4State) -> Result<Option<(Arc<dyn LogMap>, JournalInfo)>> {
    let log: Arc<dyn LogMap> = if let Some(log) = &state.external_log {
        Arc::new(log.clone())
    } else {
        let Some(log) = internal(state)? else { return Ok(None) };
        for run in log.runs() {
            state.zones.add(Pblk(run.physical), u64::from(run.length));
        }
        state.zones.sort();
        Arc::new(log)
    };
    let info = JournalInfo::read(&state.cache, &*log)?;
    Ok(Some((log, info)))
}

fn begin(state: &mut Ext4State, log: Arc<dyn LogMap>, mut info: JournalInfo, write: bool) -> Result<()> {
    if write {
        // The last check that may refuse the volume. It comes before the first write.
        info.check_room()?;
    }
    if info.needs_recovery() {
        on_device::ignore_log(state, &*log, &info, write)?;
        info = JournalInfo::read(&state.cache, &*log)?;
    }
    on_device::note_journal_error(state, &info, write)?;
    state.journal_info = Some(info);
    if write {
        let features = &state.superblock.features;
        let options = JournalOptions {
            wide: features.incompat.contains(Incompat::BIT64),
            checksums: features.metadata_csum(),
            fast_commits: makes_fast_commits(&state.superblock),
            time: state.clock.of_commits(),
        };
        let (cache, committed) = (state.cache.clone(), state.committed.clone());
        let journal = Journal::open_with(cache, log, committed, &options)?;
        state.tracking = journal.makes_fast_commits().then(Box::default);
        state.journal = Some(journal);
        state.keep_times();
    }
    Ok(())
}
