//! The state of an open volume, below its inodes.

use super::clock::Clock;
use super::damage::DescriptorDamage;
use super::last_descriptor::LastDescriptor;
use super::lifetime::Written;
use super::options::Atime;
use super::quota::Quota;
use super::recovered::RecoveryInfo;
use super::totals::Totals;
use super::trace::{Scope, Trace};
use super::tracking::Tracking;
use super::unlogged::Unlogged;
use super::zones::SystemZones;
use crate::ground::known::KnownNames;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use uext4_blockdev::Device;
use uext4_buffer::BufferCache;
use uext4_jbd2::{DeviceMap, Journal, JournalInfo};
use uext4_ondisk::Ino;
use uext4_ondisk::checksum::csum;
use uext4_ondisk::ext4::{MmpBlock, Superblock};

/// An open volume, below its inodes.
pub(crate) struct Ground {
    pub(crate) superblock: Arc<Superblock>,
    pub(crate) clock: Clock,
    /// Generation numbers given so far, if the clock stands.
    pub(crate) generations: AtomicU32,
    pub(crate) cache: BufferCache,
    pub(crate) zones: SystemZones,
    /// Names that were looked up.
    pub(crate) names: KnownNames,
    /// Free clusters by the descriptors when the volume was opened.
    pub(crate) free_clusters: u64,
    /// Counts of the groups, if the volume is open for writing.
    pub(crate) totals: Totals,
    /// The descriptor that was stored last.
    pub(crate) last_descriptor: LastDescriptor,
    pub(crate) map_budget: usize,
    /// How often nodes of maps have left their blocks, which others may get then.
    pub(crate) nodes_left: AtomicU64,
    pub(crate) journal: Option<Journal>,
    /// The log, if it is on a device of its own and was needed.
    pub(crate) external_log: Option<DeviceMap>,
    /// Batches of a volume that is open for writing and has no journal.
    pub(crate) unlogged: Option<Unlogged>,
    /// Number of the last committed transaction, shared with the inodes, which do not know the journal.
    pub(crate) committed: Arc<AtomicU64>,
    pub(crate) journal_info: Option<JournalInfo>,
    pub(crate) mmp: Option<MmpBlock>,
    pub(crate) recovery: RecoveryInfo,
    /// Whether a damaged group descriptor is always an error, as on volumes open for writing.
    pub(crate) trusts_only_sound: bool,
    /// Whether writes keep set-user-id and set-group-id.
    pub(crate) keeps_set_id: bool,
    /// When reads set the time of the last access.
    pub(crate) atime: Atime,
    /// Whether file data may use reserved blocks.
    pub(crate) uses_reserved: bool,
    /// Whether freed blocks are discarded on the device.
    pub(crate) discards: bool,
    pub(crate) descriptor_damage: Option<DescriptorDamage>,
    pub(crate) written: Written,
    /// Quota files, if the volume is open for writing and has the feature.
    pub(crate) quota: Option<Arc<Quota>>,
    /// Whoever hears what operations do.
    pub(crate) trace: Option<Trace>,
    /// What steps declare, if the log has an area for fast commits.
    pub(crate) tracking: Option<Box<Tracking>>,
}

impl Ground {
    /// An operation on a name of the directory `parent` begins, and lasts until the result is dropped. Handles that
    /// this thread starts meanwhile are told as part of it.
    #[inline]
    pub(crate) fn operation(&self, name: &'static str, parent: Ino, last: &[u8]) -> Option<Scope<'_>> {
        self.trace.as_ref().map(|trace| trace.begin(name, (parent, last), None))
    }
}

impl Ground {
    /// The generation number of a new inode: arbitrary, and another one than that of an earlier inode of the same
    /// number. If the clock stands, it follows from the volume and from how many came before.
    pub(crate) fn generation(&self) -> u32 {
        if self.clock.fixed().is_none() {
            return RandomState::new().hash_one(self.clock.now().nanoseconds) as u32;
        }
        let count = self.generations.fetch_add(1, Ordering::Relaxed);
        let seed = csum(csum(!0, &self.superblock.uuid), &self.superblock.kbytes_written.to_le_bytes());
        csum(seed, &count.to_le_bytes())
    }

    /// The device that holds the log, if there is one.
    pub(crate) fn log_device(&self) -> &Arc<dyn Device> {
        self.external_log.as_ref().map_or(self.cache.device(), DeviceMap::own_device)
    }
}

/// The root directory's inode number.
pub(crate) const ROOT: Ino = Ino(2);

/// Whether the superblock names the inode as the journal, a quota file or the orphan file. These may have any number.
/// Overwriting one breaks accounting or recovery. A directory entry that leads to one is an error or an attack, except
/// `/.journal`, which `tune2fs -j` makes on a mounted volume. A field counts even if its feature is off, since the
/// tools clear a field along with its feature.
pub(crate) fn is_system_file(superblock: &Superblock, ino: Ino) -> bool {
    [
        superblock.journal.inode,
        superblock.user_quota_inode,
        superblock.group_quota_inode,
        superblock.project_quota_inode,
        superblock.orphan_file_inode,
    ]
    .contains(&ino.get())
}
