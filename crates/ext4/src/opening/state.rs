//! From a checked superblock to the state of an open volume.

use super::external::Devices;
use super::{journal, mmp};
use crate::change::orphans::survey;
use crate::ground::clock::Clock;
use crate::ground::error::Result;
use crate::ground::features;
use crate::ground::known::KnownNames;
use crate::ground::lifetime::Written;
use crate::ground::options::{Atime, VolumeOptions};
use crate::ground::quota::Quota;
use crate::ground::recovered::RecoveryInfo;
use crate::ground::state::Ground;
use crate::ground::totals::Totals;
use crate::ground::trace::Trace;
use crate::ground::zones::SystemZones;
use crate::inode::Ext4State;
use crate::opening::superblock::check_device;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use uext4_buffer::{BufferCache, CacheOptions};
use uext4_ondisk::ext4::Superblock;

/// Checks everything that decides whether a volume can be opened, and loads what every use of it needs. By now the log
/// is empty or stale.
pub(crate) fn open_state(
    devices: Devices,
    superblock: Superblock,
    options: &VolumeOptions,
    recovery: RecoveryInfo,
) -> Result<Ext4State> {
    if options.write {
        features::check_writable(&superblock)?;
    }
    features::check_encoding(&superblock)?;
    check_device(&superblock, &*devices.volume)?;
    let mut state = bare(devices, superblock, options)?;
    state.recovery = recovery;
    state.load_zones()?;
    if options.write {
        state.quota = Quota::open(&state)?;
        // Orphans that cannot be processed refuse the volume before anything is written.
        survey(&state)?;
    }
    journal::open(&mut state, options.write)?;
    Ok(state)
}

/// The state of a volume before its groups and its journal are read.
pub(super) fn bare(devices: Devices, superblock: Superblock, options: &VolumeOptions) -> Result<Ext4State> {
    let Devices { volume: device, log } = devices;
    let mut cache_options = CacheOptions::new(superblock.geometry.block_size());
    cache_options.blocks = superblock.geometry.blocks_count();
    cache_options.budget_bytes = options.metadata_budget;
    let discards = options.discard && options.write && device.capabilities().discard;
    let ground = Ground {
        clock: Clock::new(options.fixed_time),
        generations: AtomicU32::new(0),
        nodes_left: AtomicU64::new(0),
        zones: SystemZones::new(superblock.geometry.usable_blocks()),
        free_clusters: 0,
        totals: Totals::default(),
        last_descriptor: Default::default(),
        mmp: mmp::read(&*device, &superblock)?,
        superblock: Arc::new(superblock),
        cache: BufferCache::new(device, &cache_options)?,
        names: KnownNames::new(options.name_budget),
        map_budget: options.map_budget,
        journal: None,
        external_log: log,
        unlogged: None,
        committed: Arc::default(),
        journal_info: None,
        recovery: RecoveryInfo::clean(),
        trusts_only_sound: options.write,
        keeps_set_id: options.keeps_set_id,
        atime: if options.write { options.atime } else { Atime::Off },
        uses_reserved: options.reserved,
        discards,
        descriptor_damage: None,
        written: Written::default(),
        quota: None,
        trace: options.trace.clone().filter(|_| options.write).map(Trace::new),
        tracking: None,
    };
    Ok(Ext4State::new(ground, options.inode_budget))
}
