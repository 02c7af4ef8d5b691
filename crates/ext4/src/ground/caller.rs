//! On whose behalf a name is made.

/// The user for whom an operation on names is done: owner and group of what it creates, and the mask of its
/// permissions. Operations do not check permissions: that is the front end's business, as it is the VFS's in Linux.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Permission bits that new files do not get, unless their directory has a default access control list.
    pub umask: u32,
}

impl Caller {
    /// A user without supplementary groups and with an empty mask.
    #[must_use]
    pub fn new(uid: u32, gid: u32) -> Caller {
        Caller { uid, gid, groups: Vec::new(), umask: 0 }
    }

    /// User 0 and group 0.
    #[must_use]
    pub fn root() -> Caller {
        Caller::new(0, 0)
    }

    /// Sets the supplementary groups.
    #[must_use]
    pub fn groups(mut self, groups: impl Into<Vec<u32>>) -> Caller {
        self.groups = groups.into();
        self
    }

    /// Sets the mask of permissions.
    #[must_use]
    pub fn umask(mut self, umask: u32) -> Caller {
        self.umask = umask & 0o777;
        self
    }

    /// Whether the caller is in this group.
    #[must_use]
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Whether the caller has root's privileges.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
}
