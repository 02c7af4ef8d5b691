//! How a mounted volume is served.

/// How requests come from the kernel, and answers go to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Through io_uring if the kernel offers it, else through `/dev/fuse`.
    #[default]
    Auto,
    /// Through `/dev/fuse`.
    Dev,
    /// Through io_uring (Linux 6.14 with `fuse.enable_uring`): a queue for each processor.
    Uring,
}

/// How a mounted volume is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeOptions {
    /// Threads that serve requests; at least one is started. With io_uring each processor has its own instead.
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
    /// How requests come.
    pub transport: Transport,
}

impl Default for ServeOptions {
    /// Four threads, owners as they are, nothing synchronous.
    fn default() -> ServeOptions {
        ServeOptions {
            threads: 4,
            uid: None,
            gid: None,
            owner: None,
            sync: false,
            dirsync: false,
            transport: Transport::Auto,
        }
    }
}
