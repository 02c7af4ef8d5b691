//! Limits: what users, groups and projects may use.
//!
//! Linux: `fs/quota/dquot.c` (`dquot_add_space`, `dquot_add_inodes`). A hard limit is never exceeded. A soft limit may
//! be exceeded for the time of grace in the quota file's header; then it is as hard as the other. Limits hold for
//! callers other than root; a timer runs whoever exceeds the soft limit.
//!
//! A change asks before it begins. Two changes for one owner that run at the same time may both be granted what is left
//! of his limit: then it is exceeded by one of them.

use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, QuotaLimit, Result};
use crate::ground::quota::{Allowance, Ids, Quota, QuotaFile};
use crate::inode::draft::Draft;
use uext4_ondisk::ext4::{QUOTA_ENTRY_SIZE, QuotaEntry};

/// Bytes of the unit of limits of space.
const UNIT: u64 = 1024;

/// The limit that holds now; `None` if there is none. `until`: when the soft limit becomes hard, 0 if it is not
/// exceeded.
fn limit(hard: u64, soft: u64, until: u64, now: u64) -> Option<u64> {
    let expired = soft != 0 && until != 0 && now >= until;
    let limits = [(hard != 0).then_some(hard), expired.then_some(soft)];
    limits.into_iter().flatten().min()
}

/// Bytes that may be used in all.
fn most_bytes(entry: &QuotaEntry, now: u64) -> Option<u64> {
    let bytes = |limit: u64| limit.saturating_mul(UNIT);
    limit(bytes(entry.blocks_hard), bytes(entry.blocks_soft), entry.block_time, now)
}

/// Inodes that may be used in all.
fn most_inodes(entry: &QuotaEntry, now: u64) -> Option<u64> {
    limit(entry.inodes_hard, entry.inodes_soft, entry.inode_time, now)
}

/// Starts the timers of soft limits that are exceeded now, and stops those of others. `grace`: seconds for space and
/// inodes.
pub(super) fn set_timers(entry: &mut QuotaEntry, grace: (u32, u32), now: u64) {
    let timer = |used: u64, soft: u64, until: &mut u64, grace: u32| {
        if soft == 0 || used <= soft {
            *until = 0;
        } else if *until == 0 {
            *until = now.saturating_add(grace.into());
        }
    };
    timer(entry.bytes, entry.blocks_soft.saturating_mul(UNIT), &mut entry.block_time, grace.0);
    timer(entry.inodes, entry.inodes_soft, &mut entry.inode_time, grace.1);
}

impl QuotaFile {
    /// The entry of a number; `None` if it has none.
    ///
    /// # Errors
    /// As of [`QuotaFile::place`].
    pub(super) fn entry(&self, blocks: &impl Blocks, id: u32) -> Result<Option<QuotaEntry>> {
        let Some((block, at)) = self.place(blocks, id)? else { return Ok(None) };
        blocks.look(block, |bytes| QuotaEntry::decode(bytes.get(at..at + QUOTA_ENTRY_SIZE)?))
    }

    fn exceeded(&self, id: u32, limit: QuotaLimit) -> Error {
        Error::QuotaExceeded { kind: self.kind, id, limit }
    }
}

impl Quota {
    /// How much those whom an inode is charged to may still use.
    fn allowance(&self, blocks: &impl Blocks, ids: Ids, used: u64) -> Result<Option<Allowance>> {
        let now = blocks.ground().clock.seconds();
        let mut least: Option<Allowance> = None;
        for file in &self.files {
            let id = ids.of(file.kind);
            let Some(entry) = file.entry(blocks, id)? else { continue };
            let Some(most) = most_bytes(&entry, now) else { continue };
            let bytes = used.saturating_add(most.saturating_sub(entry.bytes));
            if least.is_none_or(|least| bytes < least.bytes) {
                least = Some(Allowance { bytes, kind: file.kind, id });
            }
        }
        Ok(least)
    }

    /// Checks that these may have one more inode with so many bytes. `but`: who has it already.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`]; [`Error::Corrupt`] of the quota files.
    pub(crate) fn check_inode(
        &self,
        blocks: &impl Blocks,
        ids: Ids,
        but: Option<Ids>,
        bytes: u64,
    ) -> Result<()> {
        let now = blocks.ground().clock.seconds();
        for file in &self.files {
            let id = ids.of(file.kind);
            if but.is_some_and(|but| but.of(file.kind) == id) {
                continue;
            }
            let Some(entry) = file.entry(blocks, id)? else { continue };
            if most_inodes(&entry, now).is_some_and(|most| entry.inodes >= most) {
                return Err(file.exceeded(id, QuotaLimit::Inodes));
            }
            let after = entry.bytes.saturating_add(bytes);
            if bytes > 0 && most_bytes(&entry, now).is_some_and(|most| after > most) {
                return Err(file.exceeded(id, QuotaLimit::Space));
            }
        }
        Ok(())
    }
}

impl Allowance {
    /// The error of a change that needs more.
    pub(crate) fn exceeded(&self) -> Error {
        Error::QuotaExceeded { kind: self.kind, id: self.id, limit: QuotaLimit::Space }
    }
}

impl Draft {
    /// Makes limits of quota hold for what the inode grows by until it is dropped: [`Draft::counted`] refuses more.
    ///
    /// # Errors
    /// [`Error::Corrupt`] of the quota files.
    pub(crate) fn obey_limits(&mut self, blocks: &impl Blocks) -> Result<()> {
        let Some(quota) = &blocks.ground().quota else { return Ok(()) };
        let ids = Ids { uid: self.disk.uid, gid: self.disk.gid, project: self.disk.project.unwrap_or(0) };
        let used = self.charged.map_or(0, |charge| charge.bytes);
        self.allowance = quota.allowance(blocks, ids, used)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soft_limit_is_hard_after_the_time_of_grace() {
        let mut entry = QuotaEntry { blocks_hard: 100, blocks_soft: 50, ..QuotaEntry::default() };
        entry.bytes = 50 * UNIT;
        set_timers(&mut entry, (60, 5), 1000);
        assert_eq!((entry.block_time, most_bytes(&entry, 9999)), (0, Some(100 * UNIT)));
        entry.bytes += 1;
        set_timers(&mut entry, (60, 5), 1000);
        assert_eq!(entry.block_time, 1060);
        // A timer that runs is not set again.
        set_timers(&mut entry, (60, 5), 1010);
        assert_eq!((entry.block_time, most_bytes(&entry, 1059)), (1060, Some(100 * UNIT)));
        assert_eq!(most_bytes(&entry, 1060), Some(50 * UNIT));
        entry.bytes = 0;
        set_timers(&mut entry, (60, 5), 2000);
        assert_eq!((entry.block_time, most_bytes(&entry, 3000)), (0, Some(100 * UNIT)));
        let soft = QuotaEntry { inodes_soft: 3, inodes: 4, inode_time: 7, ..QuotaEntry::default() };
        assert_eq!(
            (most_inodes(&soft, 6), most_inodes(&soft, 7), most_bytes(&soft, 7)),
            (None, Some(3), None)
        );
    }
}
