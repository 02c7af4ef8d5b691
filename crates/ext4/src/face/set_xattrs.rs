//! Changing extended attributes, and all calls of a [`Node`] and of a [`File`] about them.

use super::file::File;
use super::node::Node;
use super::volume::Volume;
use crate::ground::error::Result;
use crate::xattr::{self, XattrFlags, XattrNames};
use std::path::Path;

impl Volume {
    /// Sets an attribute of `path` (of the link itself unless `follow`), given by its full name, such as
    /// `user.comment`: as [`Node::set_xattr`].
    ///
    /// # Errors
    /// As of [`Node::set_xattr`]; those of the path.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        flags: XattrFlags,
        follow: bool,
    ) -> Result<()> {
        self.node_at(path, follow)?.set_xattr(name, value, flags)
    }

    /// Removes an attribute of `path` (of the link itself unless `follow`): as [`Node::remove_xattr`].
    ///
    /// # Errors
    /// As of [`Node::remove_xattr`]; those of the path.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>, follow: bool) -> Result<()> {
        self.node_at(path, follow)?.remove_xattr(name)
    }
}

impl Node {
    /// The names of all attributes, as from [`Volume::list_xattrs`].
    #[must_use]
    pub fn xattrs(&self) -> XattrNames {
        xattr::names(self.volume().state(), &self.held)
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// As of [`Volume::xattr`].
    pub fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let (space, value) = xattr::stored(self.volume().state(), &self.held, name.as_ref())?;
        xattr::as_called(self.ino(), space, value)
    }

    /// Sets an attribute, given by its full name of at most 255 bytes, to a value of at most
    /// [`XATTR_SIZE_MAX`](crate::XATTR_SIZE_MAX) bytes; `flags` say whether it must exist or must not. Names begin with
    /// `user.` (files and directories only), `trusted.`, `security.` or `gnu.`. Owner and permissions are not checked.
    ///
    /// `system.posix_acl_access` and `system.posix_acl_default` take the bytes that `setxattr` takes: version 2
    /// ([`Acl::encode_xattr`](crate::Acl::encode_xattr)), of which one without entries removes the list. They ignore
    /// `flags`. The access list also sets the permission bits; if those say all of it, no list is stored.
    ///
    /// One transaction: after a crash there is the old value or the new one. Durable after the next sync of the file or
    /// the volume.
    ///
    /// # Errors
    /// [`Error::Attribute`](crate::Error::Attribute), [`Error::Invalid`](crate::Error::Invalid),
    /// [`Error::TooLarge`](crate::Error::TooLarge), [`Error::NotSupported`](crate::Error::NotSupported) of the
    /// arguments; [`Error::Exists`](crate::Error::Exists) and
    /// [`Error::NoAttribute`](crate::Error::NoAttribute) as `flags` say;
    /// [`Limit::Attributes`](crate::Limit::Attributes) if all attributes together do not fit the inode's record and one
    /// block; [`Error::NoSpace`](crate::Error::NoSpace); [`Error::NotPermitted`](crate::Error::NotPermitted) for
    /// immutable and append-only inodes, and for `user.` of others than files and directories;
    /// [`Error::ReadOnly`](crate::Error::ReadOnly); [`Error::Incompatible`](crate::Error::Incompatible) where this
    /// version changes no attributes; [`Error::Corrupt`](crate::Error::Corrupt). Nothing was changed then.
    pub fn set_xattr(
        &self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        flags: XattrFlags,
    ) -> Result<()> {
        self.change_xattr(name.as_ref(), Some(value.as_ref()), flags)
    }

    /// Removes an attribute. Removing an access control list that does not exist is no error, as in Linux. The
    /// permission bits stay.
    ///
    /// # Errors
    /// [`Error::NoAttribute`](crate::Error::NoAttribute), and as of [`Node::set_xattr`].
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.change_xattr(name.as_ref(), None, XattrFlags::empty())
    }

    fn change_xattr(&self, name: &[u8], value: Option<&[u8]>, flags: XattrFlags) -> Result<()> {
        let volume = self.volume();
        volume.check_changes()?;
        volume.shared.fs.files().set_xattr(&self.held, name, value, flags)
    }
}

impl File {
    /// The names of all attributes, as from [`Volume::list_xattrs`].
    #[must_use]
    pub fn xattrs(&self) -> XattrNames {
        xattr::names(self.volume().state(), &self.open_file().inode)
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// As of [`Volume::xattr`].
    pub fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let (space, value) = xattr::stored(self.volume().state(), &self.open_file().inode, name.as_ref())?;
        xattr::as_called(self.ino(), space, value)
    }

    /// Sets an attribute, as [`Node::set_xattr`]. As in Linux, the file may be open for reading only.
    ///
    /// # Errors
    /// As of [`Node::set_xattr`].
    pub fn set_xattr(
        &self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        flags: XattrFlags,
    ) -> Result<()> {
        self.change_xattr(name.as_ref(), Some(value.as_ref()), flags)
    }

    /// Removes an attribute, as [`Node::remove_xattr`].
    ///
    /// # Errors
    /// As of [`Node::remove_xattr`].
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.change_xattr(name.as_ref(), None, XattrFlags::empty())
    }

    fn change_xattr(&self, name: &[u8], value: Option<&[u8]>, flags: XattrFlags) -> Result<()> {
        let volume = self.volume();
        volume.check_changes()?;
        volume.shared.fs.files().set_xattr(&self.open_file().inode, name, value, flags)
    }
}
