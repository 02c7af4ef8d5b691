//! Usage of users, groups and projects, kept in the volume's hidden quota files (feature `quota`).
//!
//! There is one hook: whatever stores an inode's record ([`Draft::store`]) charges the difference to what the record
//! was before, in the same handle: owner, group, project, space (`i_blocks`, as in Linux), and whether the inode
//! exists. So usage is in the journal with every change, and a replay, which writes whole blocks, counts nothing twice.
//! Linux: `fs/quota/dquot.c`. Not counted, as in e2fsck: reserved inodes but the root, the quota files, the orphan
//! file, and inodes of attribute values: each inode that has such a value is charged for its size and for one inode.
//!
//! An entry never moves, and only another system removes one. So its place is remembered (`QuotaFile::places`), and
//! charging changes one block per kind. Creating an entry may allocate blocks, which must not fail halfway through a
//! change: a change that needs one records it ([`Quota::want`]) and fails with [`Error::NoSpace`] before it changes
//! anything; then [`Files::with_room`](crate::change::Files::with_room) creates the entry in a handle of its own, and
//! the change is tried again.

mod file;
mod grow;
mod limits;
pub(crate) mod report;

use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::quota::{Charge, Ids, Quota, QuotaFile};
use crate::ground::state::{Ground, ROOT, is_system_file};
use crate::inode::draft::Draft;
use std::sync::Arc;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{Inode as DiskInode, InodeFlags, QuotaEntry, QuotaKind, Superblock};

impl Charge {
    /// What this record counts for; `None` if the inode is not counted. `values`: as of [`Draft::values`].
    fn of(ino: Ino, disk: &DiskInode, values: i64, superblock: &Superblock) -> Option<Charge> {
        let reserved = ino < superblock.geometry.first_inode() && ino != ROOT;
        if reserved || disk.flags.contains(InodeFlags::EA_INODE) || is_system_file(superblock, ino) {
            return None;
        }
        let ids = Ids { uid: disk.uid, gid: disk.gid, project: disk.project.unwrap_or(0) };
        Some(Charge { ids, bytes: disk.sectors(superblock).saturating_mul(512), values })
    }
}

/// A change of usage.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Delta {
    bytes: i64,
    inodes: i64,
}

impl Delta {
    fn of(charge: Option<Charge>, sign: i64) -> Delta {
        let Some(charge) = charge else { return Delta::default() };
        let bytes = i64::try_from(charge.bytes).unwrap_or(i64::MAX);
        Delta { bytes: sign * bytes, inodes: sign * (1 + charge.values) }
    }

    /// Usage below zero becomes zero, as in Linux.
    fn apply(self, entry: &mut QuotaEntry) {
        entry.bytes = entry.bytes.saturating_add_signed(self.bytes);
        entry.inodes = entry.inodes.saturating_add_signed(self.inodes);
    }
}

/// Opens the quota files of a volume with the feature.
fn files(ground: &Ground) -> Result<Vec<QuotaFile>> {
    ground.superblock.quota_files().map(|(kind, ino)| QuotaFile::open(ground, kind, ino)).collect()
}

impl Quota {
    /// The quota files of a volume that is being opened for writing; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a header is damaged: as Linux, which does not mount it; those of the device.
    pub(crate) fn open(ground: &Ground) -> Result<Option<Arc<Quota>>> {
        let files = files(ground)?;
        let some = !files.is_empty();
        Ok(some.then(|| Arc::new(Quota::new(files))))
    }

    fn file(&self, kind: QuotaKind) -> Option<&QuotaFile> {
        self.files.iter().find(|file| file.kind == kind)
    }

    /// Charges what was changed of an inode since its record was last loaded or stored.
    fn settle(&self, blocks: &mut impl Blocks, before: Option<Charge>, after: Option<Charge>) -> Result<()> {
        if before == after {
            return Ok(());
        }
        for file in &self.files {
            let id = |charge: Option<Charge>| charge.map(|charge| charge.ids.of(file.kind));
            let (less, more) = (Delta::of(before, -1), Delta::of(after, 1));
            if id(before) == id(after) {
                let sum = Delta { bytes: less.bytes + more.bytes, inodes: less.inodes + more.inodes };
                self.charge(blocks, file, id(after), sum)?;
            } else {
                self.charge(blocks, file, id(before), less)?;
                self.charge(blocks, file, id(after), more)?;
            }
        }
        Ok(())
    }

    fn charge(
        &self,
        blocks: &mut impl Blocks,
        file: &QuotaFile,
        id: Option<u32>,
        delta: Delta,
    ) -> Result<()> {
        let (Some(id), true) = (id, delta != Delta::default()) else { return Ok(()) };
        let Some(place) = file.place(blocks, id)? else { return Ok(()) };
        let (grace, now) = (file.grace(), blocks.ground().clock.seconds());
        file.update(blocks, place, |entry| {
            delta.apply(entry);
            limits::set_timers(entry, grace, now);
        })
    }

    /// Looks up the entries that changes of an inode are charged to, so that damage is found before the first change.
    /// One that is missing, as on volumes filled by mke2fs 1.47.0, stays so: the counts are wrong until e2fsck mends
    /// them.
    fn check(&self, blocks: &impl Blocks, ids: Ids) -> Result<()> {
        self.files.iter().try_for_each(|file| file.place(blocks, ids.of(file.kind)).map(drop))
    }

    /// Checks, before anything is changed, that all whom an inode is going to be charged to have entries. If not, they
    /// are created before the next try.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if one is missing; [`Error::Corrupt`].
    pub(crate) fn want(&self, blocks: &impl Blocks, ids: Ids) -> Result<()> {
        let mut missing = false;
        for file in &self.files {
            let id = ids.of(file.kind);
            if file.place(blocks, id)?.is_none() {
                self.wanted.lock().insert((file.kind, id));
                missing = true;
            }
        }
        if missing { Err(Error::NoSpace) } else { Ok(()) }
    }
}

impl Draft {
    /// What quota counts for a record that was just loaded.
    pub(crate) fn charge_of(ground: &Ground, ino: Ino, disk: &DiskInode) -> Option<Charge> {
        ground.quota.as_ref().and_then(|_| Charge::of(ino, disk, 0, &ground.superblock))
    }

    /// Checks that changes of the inode can be charged.
    ///
    /// # Errors
    /// [`Error::Corrupt`] of the quota files.
    pub(crate) fn check_quota(&self, blocks: &impl Blocks) -> Result<()> {
        match (&blocks.ground().quota, self.charged) {
            (Some(quota), Some(charge)) => quota.check(blocks, charge.ids),
            _ => Ok(()),
        }
    }

    /// Charges the changes since the record was last loaded or stored.
    #[inline]
    pub(crate) fn settle_quota(&mut self, blocks: &mut impl Blocks) -> Result<()> {
        if blocks.ground().quota.is_none() { Ok(()) } else { self.settle(blocks) }
    }

    #[cold]
    fn settle(&mut self, blocks: &mut impl Blocks) -> Result<()> {
        let Some(quota) = blocks.ground().quota.clone() else { return Ok(()) };
        let after = Charge::of(self.ino, &self.disk, self.values, &blocks.ground().superblock);
        // What is counted for now is what the next change starts from.
        let counted = after.map(|after| Charge { values: 0, ..after });
        let before = std::mem::replace(&mut self.charged, counted);
        self.values = 0;
        quota.settle(blocks, before, after)
    }

    /// The inode was freed.
    pub(crate) fn leave_quota(&mut self, blocks: &mut impl Blocks) -> Result<()> {
        let Some(quota) = blocks.ground().quota.clone() else { return Ok(()) };
        quota.settle(blocks, self.charged.take(), None)
    }
}
