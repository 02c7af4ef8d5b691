//! What a tree is copied from.

use crate::error::{Error, Result};
use uext4::{File, FileKind, Timestamp};

/// Something to copy, with its attributes.
#[derive(Debug, Clone)]
pub struct Item {
    pub kind: FileKind,
    /// Permissions, with set-user-id, set-group-id and sticky (`0o7777`).
    pub mode: u32,
    pub owner: (u32, u32),
    /// Hard links.
    pub links: u64,
    /// The same for two names of one inode, and for no two inodes of one tree.
    pub identity: (u64, u64),
    /// Major and minor number of a device node.
    pub device: (u32, u32),
    pub accessed: Timestamp,
    pub modified: Timestamp,
}

/// A tree of the host or of a volume. Errors name a path below its root, which is given for that.
pub trait Origin: Sync {
    /// Something in the tree, ready to be read.
    type Thing: Send;

    /// The root of the tree. If its path is a symbolic link: what it leads to if sources are followed, else the link.
    fn root(&self) -> Result<Self::Thing>;
    /// What a name in a directory leads to. Symbolic links are followed only if all are.
    fn child(&self, directory: &Self::Thing, name: &[u8], path: &[u8]) -> Result<Self::Thing>;
    /// Names that are copied at most: links may lead to the same ones again and again.
    fn names_max(&self) -> u64;
    fn item<'t>(&self, thing: &'t Self::Thing) -> &'t Item;
    /// The names in a directory, without `.` and `..`. Names that cannot be read are left out, and told to `trouble`.
    fn names(
        &self,
        directory: &Self::Thing,
        path: &[u8],
        trouble: &mut dyn FnMut(Error),
    ) -> Result<Vec<Vec<u8>>>;
    /// The target of a symbolic link.
    fn target(&self, link: &Self::Thing, path: &[u8]) -> Result<Vec<u8>>;
    /// Names of extended attributes, those of access control lists included.
    fn xattr_names(&self, thing: &Self::Thing, path: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// The value of an extended attribute, as system calls have it. `None` if there is none.
    fn xattr(&self, thing: &Self::Thing, name: &[u8], path: &[u8]) -> Result<Option<Vec<u8>>>;
    /// Writes the contents into an empty file through `buffer`, without the holes. Calls `advance` with the bytes of
    /// each part.
    fn fill(
        &self,
        thing: &Self::Thing,
        path: &[u8],
        file: &File,
        buffer: &mut [u8],
        advance: &mut dyn FnMut(u64),
    ) -> Result<()>;
    /// Whether this is the device that is copied to.
    fn is_destination(&self, thing: &Self::Thing) -> bool;
}
