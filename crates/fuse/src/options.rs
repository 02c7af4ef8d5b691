//! How a mounted volume is served.

/// How a mounted volume is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeOptions {
    /// Threads that serve requests; at least one is started.
    pub threads: usize,
    /// Everything seems to belong to this user. Owners on the volume stay, and cannot be changed.
    pub uid: Option<u32>,
    /// The same for the group.
    pub gid: Option<u32>,
    /// The owner and the group of the volume's root directory, as they are now, appear as this user and this group
    /// wherever they are, and what those make or get is stored as owned by the former. Others stay. Numbers in access
    /// control lists stay. Nothing for what `uid` or `gid` covers.
    pub owner: Option<(u32, u32)>,
    /// Every change is durable when it returns.
    pub sync: bool,
    /// Every change of names is durable when it returns.
    pub dirsync: bool,
}

impl Default for ServeOptions {
    /// Four threads, owners as they are, nothing synchronous.
    fn default() -> ServeOptions {
        ServeOptions { threads: 4, uid: None, gid: None, owner: None, sync: false, dirsync: false }
    }
}
