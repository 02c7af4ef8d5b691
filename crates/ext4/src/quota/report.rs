//! Lists of what is used, and changes of limits.

use super::files;
use super::limits::set_timers;
use crate::change::Files;
use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::journaled::Journaled;
use crate::ground::quota::{Quota, QuotaFile};
use crate::ground::state::Ground;
use crate::ground::trace::Role;
use crate::inode::draft::Draft;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::Ordering;
use uext4_ondisk::ext4::{
    QUOTA_LEVELS, QUOTA_ROOT, QuotaEntry, QuotaHeader, QuotaKind, quota_children, quota_entries,
};
use uext4_ondisk::{Corrupt, CorruptKind};

/// Limits of a user, group or project; 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Space in KiB that may be used for the time of grace only.
    pub blocks_soft: u64,
    /// Most space in KiB.
    pub blocks_hard: u64,
    /// Inodes that may be used for the time of grace only.
    pub inodes_soft: u64,
    /// Most inodes.
    pub inodes_hard: u64,
}

/// Seconds for which soft limits may be exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaGrace {
    /// Of space.
    pub blocks: u32,
    /// Of inodes.
    pub inodes: u32,
}

/// Which quotas a volume keeps.
///
/// # Errors
/// [`Error::Corrupt`] of a header; those of the device.
pub(crate) fn kinds(ground: &Ground) -> Result<Vec<QuotaKind>> {
    Ok(files(ground)?.iter().map(|file| file.kind).collect())
}

/// Calls `look` with a quota file, opened anew if the volume is read-only.
fn with_file<T>(
    ground: &Ground,
    kind: QuotaKind,
    look: impl FnOnce(&QuotaFile, &Direct<'_>) -> Result<T>,
) -> Result<T> {
    let none = || Error::NotSupported("quota of this kind on this volume");
    if let Some(quota) = &ground.quota {
        return look(quota.file(kind).ok_or_else(none)?, &Direct(ground));
    }
    let files = files(ground)?;
    look(files.iter().find(|file| file.kind == kind).ok_or_else(none)?, &Direct(ground))
}

/// What a number uses and may use; `None` if it was never counted.
///
/// # Errors
/// [`Error::NotSupported`] if the volume does not keep this quota; [`Error::Corrupt`]; those of the device.
pub(crate) fn entry(ground: &Ground, kind: QuotaKind, id: u32) -> Result<Option<QuotaEntry>> {
    with_file(ground, kind, |file, blocks| file.entry(blocks, id))
}

/// The times of grace.
///
/// # Errors
/// As of [`entry`].
pub(crate) fn grace(ground: &Ground, kind: QuotaKind) -> Result<QuotaGrace> {
    with_file(ground, kind, |file, blocks| {
        let header = file.header(blocks, &file.draft(blocks)?)?;
        Ok(QuotaGrace { blocks: header.block_grace, inodes: header.inode_grace })
    })
}

/// All entries, by number.
///
/// # Errors
/// As of [`entry`].
pub(crate) fn entries(ground: &Ground, kind: QuotaKind) -> Result<Vec<QuotaEntry>> {
    with_file(ground, kind, |file, blocks| {
        let draft = file.draft(blocks)?;
        let header = file.header(blocks, &draft)?;
        let (seen, leaves) = (HashSet::new(), BTreeSet::new());
        let mut found = List { file, draft, header, blocks, seen, leaves, entries: Vec::new() };
        found.collect(QUOTA_ROOT, 0)?;
        for leaf in std::mem::take(&mut found.leaves) {
            let entries = found
                .file
                .read(blocks, &found.draft, leaf, |bytes| quota_entries(bytes).collect::<Vec<_>>())?;
            found.entries.extend(entries);
        }
        found.entries.sort_unstable_by_key(|entry| entry.id);
        Ok(found.entries)
    })
}

struct List<'l, B> {
    file: &'l QuotaFile,
    draft: Draft,
    header: QuotaHeader,
    blocks: &'l B,
    /// Blocks of the tree, without the leaves.
    seen: HashSet<u32>,
    leaves: BTreeSet<u32>,
    entries: Vec<QuotaEntry>,
}

impl<B: Blocks> List<'_, B> {
    /// Collects the leaves below a block of the tree.
    fn collect(&mut self, number: u32, level: u32) -> Result<()> {
        // In a sound tree each block is below one other. A leaf may be below several: it has entries of any numbers.
        if !self.seen.insert(number) {
            let twice = Corrupt::from(CorruptKind::Quota("a block is in its tree twice"));
            return Err(self.file.damage(twice));
        }
        let children = self.file.read(self.blocks, &self.draft, number, |bytes| {
            let mut children: Vec<u32> = quota_children(bytes).filter(|child| *child != 0).collect();
            children.dedup();
            children
        })?;
        for child in children {
            self.header.check_link(child).map_err(|corrupt| self.file.damage(corrupt))?;
            if level + 1 == QUOTA_LEVELS {
                self.leaves.insert(child);
            } else {
                self.collect(child, level + 1)?;
            }
        }
        Ok(())
    }
}

impl Files<'_> {
    fn quota(&self, kind: QuotaKind) -> Result<(&Quota, &QuotaFile)> {
        let none = || Error::NotSupported("quota of this kind on this volume");
        let quota = self.state.quota.as_ref().ok_or_else(none)?;
        Ok((quota, quota.file(kind).ok_or_else(none)?))
    }

    /// Sets the limits of a number, in a handle.
    ///
    /// # Errors
    /// [`Limit::Quota`](crate::Limit::Quota);
    /// [`Error::NotSupported`], [`Error::NoSpace`] for a new entry; [`Error::Corrupt`]; those of the journal.
    pub(crate) fn set_quota(&self, kind: QuotaKind, id: u32, limits: &QuotaLimits) -> Result<()> {
        let (quota, file) = self.quota(kind)?;
        // As Linux: at most 2^63 - 1 bytes and inodes.
        let most = i64::MAX as u64;
        let (blocks, inodes) =
            (limits.blocks_soft.max(limits.blocks_hard), limits.inodes_soft.max(limits.inodes_hard));
        if blocks > most / 1024 || inodes > most {
            return Err(Error::Limit(Limit::Quota));
        }
        self.with_room(|| {
            Journaled::run(self.state, "set quota", 1, |blocks| {
                let Some(place) = file.place(blocks, id)? else {
                    quota.wanted.lock().insert((kind, id));
                    return Ok(Err(Error::NoSpace));
                };
                let (grace, now) = (file.grace(), self.state.clock.seconds());
                file.update(blocks, place, |entry| {
                    (entry.blocks_soft, entry.blocks_hard) = (limits.blocks_soft, limits.blocks_hard);
                    (entry.inodes_soft, entry.inodes_hard) = (limits.inodes_soft, limits.inodes_hard);
                    // As in Linux, the time of grace begins anew.
                    (entry.block_time, entry.inode_time) = (0, 0);
                    set_timers(entry, grace, now);
                })?;
                Ok(Ok(()))
            })?
        })
    }

    /// Sets the times of grace. Timers that run keep their end.
    ///
    /// # Errors
    /// As of [`Files::set_quota`].
    pub(crate) fn set_quota_grace(&self, kind: QuotaKind, grace: QuotaGrace) -> Result<()> {
        let (quota, file) = self.quota(kind)?;
        Journaled::run(self.state, "set quota", 1, |blocks| {
            let _alone = quota.growing.lock();
            let draft = file.draft(blocks)?;
            let header = file.header(blocks, &draft)?;
            let header = QuotaHeader { block_grace: grace.blocks, inode_grace: grace.inodes, ..header };
            let Some((block, at)) = file.find(blocks, &draft, 0)? else {
                return Err(file.damage(CorruptKind::Quota("it has a hole").into()));
            };
            blocks.describe(block, Role::Quota(kind));
            blocks.change(block, |bytes| header.encode(bytes.get_mut(at..).unwrap_or_default(), kind))??;
            file.grace.0.store(grace.blocks, Ordering::Relaxed);
            file.grace.1.store(grace.inodes, Ordering::Relaxed);
            Ok(())
        })
    }
}
