//! Attributes of an inode.

use uext4_ondisk::Ino;
pub use uext4_ondisk::ext4::{FileType as FileKind, InodeFlags, Timestamp};

/// Attributes, as `statx` names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Inode number.
    pub ino: Ino,
    /// File type.
    pub kind: FileKind,
    /// Permission bits including set-uid, set-gid and sticky (`0o7777`).
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Space used, in units of 512 bytes. Inline contents count, as in the kernel's `stat`.
    pub blocks: u64,
    /// Hard links.
    pub links: u32,
    /// Major and minor number of a device node, else (0, 0).
    pub rdev: (u32, u32),
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of the contents. After an overwrite it may be in memory only ([`Volume::tick`](crate::Volume::tick)
    /// says for how long).
    pub modified: Timestamp,
    /// Last change of the attributes, likewise.
    pub changed: Timestamp,
    /// Creation, if the inode is large enough to record it.
    pub created: Option<Timestamp>,
    /// Inode flags.
    pub flags: InodeFlags,
    /// Generation number.
    pub generation: u32,
    /// Project, 0 if none.
    pub project: u32,
    /// File-system block size in bytes.
    pub block_size: u32,
}
