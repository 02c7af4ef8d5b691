//! Copies the attributes of a file to the new file that replaces it.
//!
//! The result is what an overwrite in place would leave: owner, group, permissions, access control lists and other
//! extended attributes, project, and the flags that files inherit, except what a write strips: set-user-id,
//! set-group-id of a group-executable file, and `security.capability` (`privileges.rs`). Birth time and generation are
//! its own.

use super::Files;
use super::free::check_frees;
use super::privileges::{CAPABILITY, set_id, strip_record};
use crate::alloc::search::Wish;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::inline;
use crate::inode::draft::Draft;
use uext4_ondisk::Pblk;
use uext4_ondisk::ext4::{
    InodeFlags, XattrBlock, XattrIndex, XattrsLeft, remove_block_xattr, set_xattr_block_references,
};

impl Files<'_> {
    /// Copies the attributes of `from` to `to`, which was created in this handle. The caller stores it.
    ///
    /// # Errors
    /// [`Error::Incompatible`] if values lie in inodes of their own, and [`Error::Corrupt`], with nothing changed.
    /// [`Error::NoSpace`] if there is no block for the attributes.
    pub(crate) fn copy_attributes(
        &self,
        blocks: &mut Journaled<'_>,
        from: &Draft,
        to: &mut Draft,
        inherited: InodeFlags,
    ) -> Result<()> {
        check_frees(blocks, from)?;
        let superblock = &self.state.superblock;
        let set_id = set_id(self.state, from.disk.mode);
        (to.disk.mode, to.disk.uid, to.disk.gid) = (from.disk.mode & !set_id, from.disk.uid, from.disk.gid);
        to.disk.project = from.disk.project;
        to.disk.flags = to.disk.flags & !inherited | from.disk.flags & inherited;
        let range = from.disk.xattr_range(superblock);
        if from.disk.extra_isize > 0
            && let Some(record) = from.raw.get(range.clone())
            && record.first_chunk::<4>().is_some_and(|magic| *magic != [0; 4])
        {
            // Attributes start after the extra fields, so these must have the same size.
            to.disk.extra_isize = from.disk.extra_isize;
            if from.disk.created.is_none() {
                to.disk.created = None;
            }
            let (disk, raw) = (from.disk.clone(), from.raw.clone());
            let mut own = Draft { ino: to.ino, disk, raw, place: to.place, charged: None };
            inline::edit::remove(superblock, &mut own)?;
            strip_record(blocks, &mut own)?;
            to.raw[range.clone()].copy_from_slice(&own.raw[range]);
        }
        match self.attribute_block(blocks, from)? {
            Some(bytes) => self.own_attribute_block(blocks, bytes, from.disk.xattr_block, to),
            None => Ok(()),
        }
    }

    /// The attribute block for the copy.
    fn attribute_block(&self, blocks: &Journaled<'_>, from: &Draft) -> Result<Option<Vec<u8>>> {
        let block = from.disk.xattr_block;
        if block.get() == 0 {
            return Ok(None);
        }
        let mut bytes = blocks.look(block, <[u8]>::to_vec)?;
        XattrBlock::decode(&bytes, block, &self.state.superblock)
            .map_err(|corrupt| Error::from(corrupt.in_inode(from.ino)))?;
        let left = remove_block_xattr(&mut bytes, XattrIndex::Security, CAPABILITY);
        Ok(if left == Some(XattrsLeft::Nothing) { None } else { Some(bytes) })
    }

    fn own_attribute_block(
        &self,
        blocks: &mut Journaled<'_>,
        mut bytes: Vec<u8>,
        near: Pblk,
        to: &mut Draft,
    ) -> Result<()> {
        to.count(blocks.ground(), 1)?;
        let wish = Wish { goal: near, least: 1, most: 1, limit: 1 << 48 };
        let own = self.space.allocate(blocks, &wish, 0)?.first;
        set_xattr_block_references(&mut bytes, 1, own, &self.state.superblock)?;
        blocks.fresh(own, |new| new.copy_from_slice(&bytes))?;
        to.disk.xattr_block = own;
        Ok(())
    }
}
