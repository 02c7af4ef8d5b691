//! Reading of extended attributes by path or inode number.

use super::volume::Volume;
use crate::ground::error::{Error, Result};
use crate::xattr::{self, AclKind, XattrNames, Xattrs};
use std::path::Path;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::Acl;

impl Volume {
    /// The names of all attributes of `path` (of the link itself unless `follow`), in on-disk order. Attributes
    /// internal to the file system are left out, as in the kernel.
    ///
    /// # Errors
    /// Those of the path. Damaged attributes are reported within the list: [`XattrNames`].
    pub fn list_xattrs(&self, path: impl AsRef<Path>, follow: bool) -> Result<XattrNames> {
        self.list_xattrs_of(self.resolve(path, follow)?)
    }

    /// The names of all attributes of an inode.
    ///
    /// # Errors
    /// Those of reading the inode. Damaged attributes are reported within the list: [`XattrNames`].
    pub fn list_xattrs_of(&self, ino: Ino) -> Result<XattrNames> {
        Ok(xattr::names(self.state(), &*self.state().inode(ino)?))
    }

    /// All attributes of an inode with their values, in one pass: its record and its block are decoded once. Values in
    /// inodes of their own are read on demand.
    ///
    /// # Errors
    /// Those of reading the inode. Damaged attributes are reported within the list: [`Xattrs`].
    pub fn xattrs_of(&self, ino: Ino) -> Result<Xattrs<'_>> {
        Ok(xattr::all(self.state(), self.state().inode(ino)?))
    }

    /// Whether an inode may have attributes. Looks at its record, but not at its attribute block.
    ///
    /// # Errors
    /// Those of reading the inode.
    pub fn may_have_xattrs(&self, ino: Ino) -> Result<bool> {
        xattr::may_have(self.state(), ino)
    }

    /// The value of an attribute of `path` (of the link itself unless `follow`): the bytes that `getxattr` returns,
    /// access control lists included.
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; [`Error::TooLarge`] beyond [`XATTR_SIZE_MAX`](crate::XATTR_SIZE_MAX); [`Error::Corrupt`]
    /// with the place, if this attribute is damaged, or may be hidden by damage.
    pub fn xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>, follow: bool) -> Result<Vec<u8>> {
        self.xattr_of(self.resolve(path, follow)?, name)
    }

    /// The value of an attribute of an inode.
    pub fn xattr_of(&self, ino: Ino, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let inode = self.state().inode(ino)?;
        let (space, value) = xattr::stored(self.state(), &inode, name.as_ref())?;
        xattr::as_called(ino, space, value)
    }

    /// The value of an attribute of an inode as stored. An access control list is not checked.
    ///
    /// # Errors
    /// As [`Volume::xattr`], except that damage inside an access control list is no error.
    pub fn stored_xattr_of(&self, ino: Ino, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        Ok(xattr::stored(self.state(), &*self.state().inode(ino)?, name.as_ref())?.1)
    }

    /// An access control list of `path`; `None` if there is none.
    ///
    /// # Errors
    /// As [`Volume::xattr`].
    pub fn acl(&self, path: impl AsRef<Path>, kind: AclKind, follow: bool) -> Result<Option<Acl>> {
        self.acl_of(self.resolve(path, follow)?, kind)
    }

    /// An access control list of an inode.
    pub fn acl_of(&self, ino: Ino, kind: AclKind) -> Result<Option<Acl>> {
        match self.xattr_of(ino, kind.name()) {
            Ok(value) => Ok(Some(Acl::decode_xattr(&value).map_err(|corrupt| corrupt.in_inode(ino))?)),
            Err(Error::NoAttribute) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
