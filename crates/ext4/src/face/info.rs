//! The facts about an open volume that `info` prints.

use crate::face::volume::Volume;
use crate::ground::damage::DescriptorDamage;
use crate::ground::recovered::RecoveryInfo;
use uext4_blockdev::{Capabilities, DaxKind, Description, Geometry};
use uext4_iomap::Fence;
use uext4_jbd2::JournalInfo;
use uext4_ondisk::ext4::{MmpBlock, MmpOwner};

/// Facts about a volume and its device. The superblock itself is [`Volume::superblock`].
#[derive(Debug, Clone)]
pub struct Info {
    /// Opened read-only.
    pub read_only: bool,
    /// Names of all features set, as `dumpe2fs` prints them.
    pub features: Vec<String>,
    /// Block groups.
    pub groups: u32,
    /// Engine, layers, sharing and notes.
    pub device: Description,
    /// Sizes and alignment of the device.
    pub geometry: Geometry,
    /// What the device supports.
    pub capabilities: Capabilities,
    /// The memory fence that gates use to see who is inside; one for the whole process.
    pub fence: Fence,
    /// The journal inside the volume, if there is one.
    pub journal: Option<JournalInfo>,
    /// The multi-mount protection block as it was at open, if the volume has that feature.
    pub mmp: Option<MmpBlock>,
    /// Damaged group descriptors, if any. Only for a volume opened read-only.
    pub descriptors: Option<DescriptorDamage>,
    /// What recovery did at open.
    pub recovery: RecoveryInfo,
    /// Remarks for the user, one sentence each.
    pub notes: Vec<String>,
}

impl Info {
    pub(crate) fn of(volume: &Volume) -> Info {
        let device = volume.device();
        let capabilities = device.capabilities();
        let superblock = volume.superblock();
        let mut notes = vec![
            "mtime and ctime of overwrites live in memory until a sync, or the end of the file".to_owned(),
        ];
        if capabilities.dax == Some(DaxKind::Msync) {
            notes.push("the mapping is not MAP_SYNC: durability needs an msync".into());
        }
        if Fence::active() == Fence::Swap {
            notes.push("membarrier(2) is refused here: every request costs a locked instruction more".into());
        }
        if superblock.last_orphan != 0 {
            notes.push("the volume has orphaned inodes: an open for writing processes them".into());
        }
        if !volume.is_writable() && volume.state().mmp.is_some_and(|mmp| mmp.owner() != MmpOwner::Nobody) {
            notes.push("another node may be using the volume: what is read can change meanwhile".into());
        }
        if superblock.errors.count != 0 {
            notes.push(format!("the kernel recorded {} error(s) on this volume", superblock.errors.count));
        }
        notes.extend(volume.state().descriptor_damage.map(|damage| damage.to_string()));
        notes.extend(volume.state().recovery.notes());
        Info {
            read_only: !volume.is_writable(),
            features: superblock.features.names().into_iter().map(|name| name.into_owned()).collect(),
            groups: superblock.geometry.group_count(),
            device: device.describe(),
            geometry: device.geometry(),
            capabilities,
            fence: Fence::active(),
            journal: volume.state().journal_info.clone(),
            mmp: volume.state().mmp,
            descriptors: volume.state().descriptor_damage,
            recovery: volume.state().recovery.clone(),
            notes,
        }
    }
}

impl Volume {
    /// Facts about the volume and its device.
    pub fn info(&self) -> Info {
        Info::of(self)
    }
}
