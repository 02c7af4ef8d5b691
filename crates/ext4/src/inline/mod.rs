//! Inline data: contents stored inside the inode's record, in the 60 bytes of the mapping and then in the value of the
//! attribute `system.data`.
//!
//! The engine's reads of such files are served from here: the record was read and checked when the inode was loaded, so
//! no device request is needed, and simple read and the mapping snapshot never see such files. A write changes the
//! inode itself, through the journal (`change/inline.rs`). Sources: the kernel's
//! `Documentation/filesystems/ext4/inlinedata.rst` and `fs/ext4/inline.c`.

pub(crate) mod edit;

use crate::ground::error::{Error, Result};
use crate::inode::core::InodeValue;
use crate::inode::{Ext4State, Inode};
use crate::xattr;
use uext4_iomap::{Piece, State};
use uext4_ondisk::ext4::{I_BLOCK_SIZE, Inode as DiskInode, InodeFlags, XattrArea, XattrIndex, XattrValue};
use uext4_ondisk::{Corrupt, CorruptKind};

/// Name of the attribute after `system.`.
pub(crate) const ATTRIBUTE: &[u8] = b"data";
/// Byte offset of the 60 bytes in the record.
const I_BLOCK_OFFSET: u64 = 0x28;

/// Inline contents, in two consecutive parts.
#[derive(Clone, Copy)]
pub(crate) struct InlineData<'a> {
    /// The 60 bytes in place of the mapping.
    pub(crate) first: &'a [u8; I_BLOCK_SIZE],
    /// The value of the attribute.
    pub(crate) rest: &'a [u8],
}

impl<'a> InlineData<'a> {
    /// The contents of an inode with the inline flag.
    ///
    /// # Errors
    /// [`CorruptKind::InlineData`] if there are none, and those of the attributes.
    pub(crate) fn of(state: &Ext4State, core: &'a InodeValue) -> Result<Self> {
        if core.flags.contains(InodeFlags::ENCRYPT) {
            let feature = format!("an encrypted file (inode {})", core.ino());
            return Err(Error::Incompatible { action: "read", feature });
        }
        let found = Self::in_area(core, xattr::in_record(state, core)?);
        Ok(found.map_err(|what| Corrupt::from(CorruptKind::InlineData(what)).in_inode(core.ino()))?)
    }

    /// The same for an inode with these attributes in its record; or what is wrong.
    fn in_area(disk: &'a DiskInode, area: Option<XattrArea<'a>>) -> std::result::Result<Self, &'static str> {
        if disk.flags.contains(InodeFlags::EXTENTS) {
            return Err("the inode has extents too");
        }
        // Writes in place do not update its hash, so ignore it.
        match area.and_then(|area| area.find(XattrIndex::System, ATTRIBUTE)).map(|entry| entry.value) {
            Some(XattrValue::Here(rest)) => Ok(InlineData { first: &disk.i_block, rest }),
            Some(XattrValue::Inode { .. }) => Err("the attribute `system.data` lies in another inode"),
            None => Err("the attribute `system.data` is missing"),
        }
    }

    /// Bytes stored. A file may be longer: the rest reads as zeros.
    pub(crate) fn len(&self) -> u64 {
        (I_BLOCK_SIZE + self.rest.len()) as u64
    }

    /// Copies the bytes from `pos` on into `buf`; zeros past the end.
    fn copy_to(&self, buf: &mut [u8], pos: u64) {
        buf.fill(0);
        let mut start = 0;
        for part in [&self.first[..], self.rest] {
            let end = start + part.len();
            if pos < end as u64 {
                // Both are inside, so they fit.
                let from = (pos as usize).max(start);
                let to = from - pos as usize;
                if let Some(target) = buf.get_mut(to..) {
                    let length = target.len().min(end - from);
                    target[..length].copy_from_slice(&part[from - start..][..length]);
                }
            }
            start = end;
        }
    }
}

/// Fills `buf` with a file's contents from byte `pos` on.
pub(crate) fn read(state: &Ext4State, inode: &Inode, buf: &mut [u8], pos: u64) -> Result<()> {
    InlineData::of(state, &inode.disk())?.copy_to(buf, pos);
    Ok(())
}

/// The whole target of a symbolic link.
pub(crate) fn link_target(state: &Ext4State, inode: &Inode) -> Result<Vec<u8>> {
    let core = inode.disk();
    let data = InlineData::of(state, &core)?;
    let size = core.size;
    if size == 0 || size > data.len() {
        return Err(state.corrupt_inode(inode.ino(), format!("a symbolic link of {size} bytes")));
    }
    let mut target = vec![0; size as usize];
    data.copy_to(&mut target, 0);
    Ok(target)
}

/// A file's inline bytes as one piece, up to its end. None while its first write is still to come.
pub(crate) fn piece(state: &Ext4State, inode: &Inode) -> Result<Piece> {
    let length = match inode.is_inline() {
        true => InlineData::of(state, &inode.disk())?.len().min(inode.state.size()),
        false => 0,
    };
    let physical = inode.position().saturating_add(I_BLOCK_OFFSET);
    Ok(Piece { logical: 0, physical, length, state: State::Inline })
}
