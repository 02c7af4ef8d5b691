//! Copies the attributes of a file to the new file that replaces it.
//!
//! The result is what an overwrite in place would leave: owner, group, permissions, access control lists and other
//! extended attributes, project, and the flags that files inherit, except what a write strips: set-user-id,
//! set-group-id of a group-executable file, and `security.capability` (`privileges.rs`). Birth time and generation are
//! its own.

use super::Files;
use super::free::check_frees;
use super::privileges::{set_id, strip};
use crate::ground::error::Result;
use crate::ground::journaled::Journaled;
use crate::inline;
use crate::inode::draft::Draft;
use uext4_ondisk::ext4::{InodeFlags, XattrIndex};

impl Files<'_> {
    /// Copies the attributes of `from` to `to`, which was created in this handle. The caller stores it, and keeps
    /// others from changing the attributes of `from`.
    ///
    /// # Errors
    /// [`Error::Incompatible`](crate::Error::Incompatible) for values in the form of Lustre,
    /// [`Error::Corrupt`](crate::Error::Corrupt), [`Error::NoSpace`](crate::Error::NoSpace) if there is no block for
    /// them: nothing was changed then.
    pub(crate) fn copy_attributes(
        &self,
        blocks: &mut Journaled<'_>,
        from: &Draft,
        to: &mut Draft,
        inherited: InodeFlags,
    ) -> Result<()> {
        check_frees(blocks, from)?;
        let set_id = set_id(self.state, from.disk.mode);
        (to.disk.mode, to.disk.uid, to.disk.gid) = (from.disk.mode & !set_id, from.disk.uid, from.disk.gid);
        to.disk.project = from.disk.project;
        to.disk.flags = to.disk.flags & !inherited | from.disk.flags & inherited;
        let mut lists = self.load_attributes(blocks, from)?;
        lists.remove(XattrIndex::System, inline::ATTRIBUTE);
        strip(&mut lists);
        if lists.in_record() {
            // Attributes start after the extra fields, so these must have the same size.
            to.disk.extra_isize = from.disk.extra_isize;
            if from.disk.created.is_none() {
                to.disk.created = None;
            }
        }
        self.store_attributes(blocks, to, lists.of_new_inode())
    }
}
