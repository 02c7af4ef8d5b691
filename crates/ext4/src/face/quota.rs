//! Quota: what users, groups and projects use and may use.

use super::volume::Volume;
use crate::ground::error::Result;
use crate::inode::Inode;
use crate::quota::report::{self, QuotaGrace, QuotaLimits};
use std::fmt;
use std::sync::Arc;
use uext4_ondisk::ext4::{QuotaEntry, QuotaKind};

impl Volume {
    /// Which quotas the volume keeps: of users, groups, projects. Empty without the feature.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) of a quota file; those of the device.
    pub fn quota_kinds(&self) -> Result<Vec<QuotaKind>> {
        report::kinds(self.state())
    }

    /// What a user, group or project uses and may use, changes that are not durable yet included. `None` if it never
    /// had anything.
    ///
    /// # Errors
    /// [`Error::NotSupported`](crate::Error::NotSupported) if the volume does not keep this quota;
    /// [`Error::Corrupt`](crate::Error::Corrupt) of its file; those of the device.
    pub fn quota(&self, kind: QuotaKind, id: u32) -> Result<Option<QuotaEntry>> {
        report::entry(self.state(), kind, id)
    }

    /// The same of all that ever had anything, by number.
    ///
    /// # Errors
    /// As of [`Volume::quota`].
    pub fn quotas(&self, kind: QuotaKind) -> Result<Vec<QuotaEntry>> {
        report::entries(self.state(), kind)
    }

    /// For how long soft limits may be exceeded.
    ///
    /// # Errors
    /// As of [`Volume::quota`].
    pub fn quota_grace(&self, kind: QuotaKind) -> Result<QuotaGrace> {
        report::grace(self.state(), kind)
    }

    /// Sets the limits of a user, group or project. They hold for callers other than root
    /// ([`OpenOptions::limited`](crate::OpenOptions::limited)). Durable after the next sync that commits.
    ///
    /// # Errors
    /// [`Limit::Quota`](crate::Limit::Quota) above 2^63 - 1 bytes or inodes;
    /// [`Error::ReadOnly`](crate::Error::ReadOnly), [`Error::NoSpace`](crate::Error::NoSpace) for a new entry, with
    /// nothing changed; those of [`Volume::quota`].
    pub fn set_quota(&self, kind: QuotaKind, id: u32, limits: &QuotaLimits) -> Result<()> {
        self.check_changes()?;
        self.shared.fs.files().set_quota(kind, id, limits)
    }

    /// Sets for how long soft limits may be exceeded. Who exceeds one already keeps his time.
    ///
    /// # Errors
    /// As of [`Volume::set_quota`].
    pub fn set_quota_grace(&self, kind: QuotaKind, grace: QuotaGrace) -> Result<()> {
        self.check_changes()?;
        self.shared.fs.files().set_quota_grace(kind, grace)
    }
}

/// Makes limits hold for what an inode grows by, as long as it lives.
pub(crate) struct Limited(Arc<Inode>);

impl Limited {
    pub(crate) fn new(inode: &Arc<Inode>) -> Arc<Limited> {
        inode.limit(true);
        Arc::new(Limited(inode.clone()))
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        self.0.limit(false);
    }
}

impl fmt::Debug for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Limited")
    }
}
