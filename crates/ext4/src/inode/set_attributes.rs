//! What a caller wants changed of an inode's attributes.

use super::metadata::{InodeFlags, Timestamp};
use crate::ground::error::{Error, Result};
use crate::ground::quota::Ids;
use uext4_ondisk::ext4::Inode as DiskInode;

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Time {
    /// The time of the call.
    Now,
    /// This time, which is clamped to what the inode can store: to the nanosecond until 2446, or to the second until
    /// 2038 in inodes without extra fields.
    At(Timestamp),
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Time {
        Time::At(time)
    }
}

impl From<std::time::SystemTime> for Time {
    fn from(time: std::time::SystemTime) -> Time {
        let (seconds, nanoseconds) = match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
            Err(error) => {
                let before = error.duration();
                let whole = i64::try_from(before.as_secs()).unwrap_or(i64::MAX).saturating_neg();
                match before.subsec_nanos() {
                    0 => (whole, 0),
                    nanoseconds => (whole.saturating_sub(1), 1_000_000_000 - nanoseconds),
                }
            }
        };
        Time::At(Timestamp { seconds, nanoseconds })
    }
}

/// Attributes to set with [`Node::set_attributes`](crate::Node::set_attributes); those not named stay. Rights are not
/// checked: that is the caller's business, as it is the VFS's in Linux.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct SetAttributes {
    pub(crate) mode: Option<u32>,
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
    pub(crate) size: Option<u64>,
    pub(crate) accessed: Option<Time>,
    pub(crate) modified: Option<Time>,
    pub(crate) created: Option<Timestamp>,
    pub(crate) flags: Option<InodeFlags>,
    pub(crate) project: Option<u32>,
    pub(crate) generation: Option<u32>,
    pub(crate) keep_privileges: bool,
    pub(crate) strip: bool,
    pub(crate) limited: bool,
}

/// Setters that keep one value.
macro_rules! setters {
    ($($(#[$doc:meta])+ $name:ident: $kind:ty;)+) => {$(
        $(#[$doc])+
        pub fn $name(mut self, $name: $kind) -> Self {
            self.$name = Some($name.into());
            self
        }
    )+};
}

impl SetAttributes {
    /// Nothing yet.
    pub fn new() -> SetAttributes {
        SetAttributes::default()
    }

    setters! {
        /// Permission bits including set-user-id, set-group-id and sticky (`0o7777`). An owner set by the same call
        /// does not strip them.
        mode: u32;
        /// Owner. As in Linux, a new owner or group strips set-user-id, set-group-id of a group-executable file, and
        /// `security.capability`, except of directories ([`SetAttributes::keep_privileges`]). `u32::MAX` is no user:
        /// [`Error::Invalid`].
        uid: u32;
        /// Group. `u32::MAX` is no group: [`Error::Invalid`].
        gid: u32;
        /// Size in bytes of a regular file, as [`File::set_len`](crate::File::set_len). It is set before the other
        /// attributes, in transactions of its own.
        size: u64;
        /// Last access.
        accessed: impl Into<Time>;
        /// Last change of the contents.
        modified: impl Into<Time>;
        /// Time of creation. No system call can set it, but a copy of a whole volume has to.
        /// [`Error::NotSupported`] if the inode has no room for it.
        created: Timestamp;
        /// Flags to have, as `chattr` sets them: take [`Metadata::flags`](crate::Metadata::flags) and change some.
        /// Differences in flags that users cannot set are ignored, as in Linux. [`Error::NotSupported`] or
        /// [`Error::Incompatible`] names what this file or volume cannot have. Of an immutable file only this can be
        /// set, with [`InodeFlags::IMMUTABLE`] cleared.
        flags: InodeFlags;
        /// Project. [`Error::NotSupported`] if the volume has no projects, or the inode no room for one.
        project: u32;
        /// Generation number, which file servers check ([`Volume::node`](crate::Volume::node)).
        /// [`Error::NotSupported`] on volumes with metadata checksums, which depend on it.
        generation: u32;
    }

    /// Whether a new owner keeps set-user-id, set-group-id and `security.capability`.
    pub fn keep_privileges(mut self, keep: bool) -> Self {
        self.keep_privileges = keep;
        self
    }

    /// Whether limits of quota hold for a new owner, group or project, as for a caller other than root.
    pub fn limited(mut self, limited: bool) -> Self {
        self.limited = limited;
        self
    }

    /// As the system call `chown`, which strips privileges even if it sets neither owner nor group.
    pub(crate) fn chown(uid: Option<u32>, gid: Option<u32>) -> SetAttributes {
        SetAttributes { uid, gid, strip: true, ..SetAttributes::new() }
    }

    /// Whether an owner or a group is set.
    pub(crate) fn owner(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    /// Owner, group and project afterwards. `project` is the new one, if any.
    pub(crate) fn ids(&self, disk: &DiskInode, project: Option<u32>) -> Ids {
        let (uid, gid) = (self.uid.unwrap_or(disk.uid), self.gid.unwrap_or(disk.gid));
        Ids { uid, gid, project: project.or(disk.project).unwrap_or(0) }
    }

    /// Whether privileges of a file are stripped.
    pub(crate) fn strips(&self) -> bool {
        self.strip || self.owner() && !self.keep_privileges
    }

    /// Whether this is what `touch` does: both times to now.
    fn touches(&self) -> bool {
        (self.accessed, self.modified) == (Some(Time::Now), Some(Time::Now))
    }

    /// Whether it sets what an append-only file keeps.
    pub(crate) fn more_than_appending(&self) -> bool {
        let times = self.accessed.is_some() || self.modified.is_some();
        let size = self.size.is_some();
        self.mode.is_some()
            || self.owner()
            || self.strip
            || size
            || self.created.is_some()
            || times && !self.touches()
    }

    /// Whether nothing but flags and project are set.
    pub(crate) fn only_flags(&self) -> bool {
        *self == SetAttributes { flags: self.flags, project: self.project, ..Self::new() }
    }

    /// Whether nothing but the size is set.
    pub(crate) fn only_size(&self) -> bool {
        let nothing = SetAttributes { size: self.size, keep_privileges: self.keep_privileges, ..Self::new() };
        *self == nothing
    }

    /// Refuses times that no clock shows, modes with more than permissions, and the number that stands for no user.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub(crate) fn check(&self) -> Result<()> {
        let at = |time: Option<Time>| match time {
            Some(Time::At(time)) => Some(time),
            _ => None,
        };
        let times = [at(self.accessed), at(self.modified), self.created];
        if times.into_iter().flatten().any(|time| time.nanoseconds > 999_999_999) {
            return Err(Error::Invalid("nanoseconds must be below 1 000 000 000".into()));
        }
        if [self.uid, self.gid, self.project].contains(&Some(u32::MAX)) {
            return Err(Error::Invalid(format!(
                "{} is not the number of a user, group or project",
                u32::MAX
            )));
        }
        match self.mode {
            Some(mode) if mode & !0o7777 != 0 => {
                Err(Error::Invalid(format!("mode {mode:#o} has more than permissions (0o7777)")))
            }
            _ => Ok(()),
        }
    }
}
