//! What users, groups and projects use and may use.

use crate::border::put;
use crate::call::{Fault, Result, call_int};
use crate::volume::{VOLUMES, uext4_volume};
use uext4::{QuotaEntry, QuotaGrace, QuotaKind, QuotaLimits};

/// Quota of users.
pub const UEXT4_QUOTA_USER: u32 = 0;
/// Quota of groups.
pub const UEXT4_QUOTA_GROUP: u32 = 1;
/// Quota of projects.
pub const UEXT4_QUOTA_PROJECT: u32 = 2;

/// What a user, group or project uses and may use. Space is in bytes; a limit of 0 is none; times are in seconds since
/// 1970, and 0 if the soft limit is not exceeded.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct uext4_quota {
    /// Number of the user, group or project.
    pub id: u32,
    /// Not used, 0.
    pub reserved: u32,
    /// Space in use.
    pub space: u64,
    /// Space that may be used for the time of grace only. Limits are kept in KiB, rounded up.
    pub space_soft: u64,
    /// Most space.
    pub space_hard: u64,
    /// When the soft limit of space becomes a hard one.
    pub space_until: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that may be used for the time of grace only.
    pub inodes_soft: u64,
    /// Most inodes.
    pub inodes_hard: u64,
    /// When the soft limit of inodes becomes a hard one.
    pub inodes_until: u64,
}

fn kind_of(kind: u32) -> Result<QuotaKind> {
    match kind {
        UEXT4_QUOTA_USER => Ok(QuotaKind::User),
        UEXT4_QUOTA_GROUP => Ok(QuotaKind::Group),
        UEXT4_QUOTA_PROJECT => Ok(QuotaKind::Project),
        _ => Err(Fault::invalid(format!("kind of quota {kind}"))),
    }
}

fn shown(entry: &QuotaEntry) -> uext4_quota {
    uext4_quota {
        id: entry.id,
        reserved: 0,
        space: entry.bytes,
        space_soft: entry.blocks_soft.saturating_mul(1024),
        space_hard: entry.blocks_hard.saturating_mul(1024),
        space_until: entry.block_time,
        inodes: entry.inodes,
        inodes_soft: entry.inodes_soft,
        inodes_hard: entry.inodes_hard,
        inodes_until: entry.inode_time,
    }
}

/// What number `id` uses and may use. `-EOPNOTSUPP`: the volume does not keep this quota.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_quota_get(
    volume: *mut uext4_volume,
    kind: u32,
    id: u32,
    quota: *mut uext4_quota,
) -> i32 {
    call_int(|| {
        let entry = VOLUMES.get(volume)?.quota(kind_of(kind)?, id)?;
        let entry = entry.unwrap_or(QuotaEntry { id, ..QuotaEntry::default() });
        // SAFETY: the caller promises a place for it.
        unsafe { put(quota, shown(&entry)) }?;
        Ok(0)
    })
}

/// The first number from `id` on that ever had anything, as `Q_GETNEXTQUOTA`. `-ENOENT`: there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_quota_next(
    volume: *mut uext4_volume,
    kind: u32,
    id: u32,
    quota: *mut uext4_quota,
) -> i32 {
    call_int(|| {
        let entries = VOLUMES.get(volume)?.quotas(kind_of(kind)?)?;
        let entry = entries.iter().find(|entry| entry.id >= id).ok_or(uext4::Error::NotFound)?;
        // SAFETY: the caller promises a place for it.
        unsafe { put(quota, shown(entry)) }?;
        Ok(0)
    })
}

/// Sets the four limits of number `id` to those of `limits`; its other fields are not looked at. Limits hold for files
/// opened with `UEXT4_LIMITED`, and for callers other than root. Durable after `uext4_sync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uext4_quota_set(
    volume: *mut uext4_volume,
    kind: u32,
    id: u32,
    limits: *const uext4_quota,
) -> i32 {
    call_int(|| {
        let volume = VOLUMES.get(volume)?;
        // SAFETY: the caller promises such a struct, or NULL.
        let limits =
            unsafe { limits.as_ref() }.ok_or_else(|| Fault::new(libc::EFAULT, "the limits are NULL"))?;
        let limits = QuotaLimits {
            blocks_soft: limits.space_soft.div_ceil(1024),
            blocks_hard: limits.space_hard.div_ceil(1024),
            inodes_soft: limits.inodes_soft,
            inodes_hard: limits.inodes_hard,
        };
        volume.set_quota(kind_of(kind)?, id, &limits)?;
        Ok(0)
    })
}

/// Sets for how many seconds soft limits of space and of inodes may be exceeded.
#[unsafe(no_mangle)]
pub extern "C" fn uext4_quota_set_grace(
    volume: *mut uext4_volume,
    kind: u32,
    space: u32,
    inodes: u32,
) -> i32 {
    call_int(|| {
        let grace = QuotaGrace { blocks: space, inodes };
        VOLUMES.get(volume)?.set_quota_grace(kind_of(kind)?, grace)?;
        Ok(0)
    })
}
