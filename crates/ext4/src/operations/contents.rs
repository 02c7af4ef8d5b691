//! What a new inode contains, by its type.

use crate::change::Files;
use crate::dir::edit::{DirMap, Edit as NameEdit};
use crate::dir::map::BlockMap;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::trace::Role;
use crate::inline;
use crate::inode::draft::Draft;
use crate::inode::metadata::FileKind;
use uext4_ondisk::ext4::{I_BLOCK_SIZE, Incompat, InodeFlags, Superblock};
use uext4_ondisk::{Ino, Lblk};

/// Longest target of a symbolic link: the longest path in Linux (`PATH_MAX`, which counts a zero at the end).
const TARGET_MAX: usize = 4095;

/// The type of a new inode, and what it contains.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Contents<'t> {
    /// An empty regular file.
    File,
    /// A directory with `.` and `..`.
    Directory,
    /// A FIFO or socket.
    Special(FileKind),
    /// A device node of this type, with its number as the inode stores it.
    Device(FileKind, [u8; I_BLOCK_SIZE]),
    /// A symbolic link to this target, which [`Contents::link`] has checked.
    Symlink(&'t [u8]),
}

impl<'t> Contents<'t> {
    /// A symbolic link.
    ///
    /// # Errors
    /// [`Error::NameTooLong`] for a target that does not fit into a block with a zero after it, or is longer than a
    /// path can be; [`Error::NotFound`] for an empty one, as in Linux; [`Error::Invalid`] if it contains a zero.
    pub(crate) fn link(superblock: &Superblock, target: &'t [u8]) -> Result<Contents<'t>> {
        let most = TARGET_MAX.min(superblock.geometry.block_size() as usize - 1);
        match target {
            [] => Err(Error::NotFound),
            _ if target.len() > most => Err(Error::NameTooLong),
            _ if target.contains(&0) => Err(Error::Invalid("the target of a link contains a zero".into())),
            _ => Ok(Contents::Symlink(target)),
        }
    }

    /// The type.
    pub(crate) fn kind(self) -> FileKind {
        match self {
            Contents::File => FileKind::Regular,
            Contents::Directory => FileKind::Directory,
            Contents::Special(kind) | Contents::Device(kind, _) => kind,
            Contents::Symlink(_) => FileKind::Symlink,
        }
    }

    /// Fills an inode that was just created in the directory `parent`, and stores it.
    ///
    /// # Errors
    /// [`Error::NoSpace`], after which the inode still is as it was created; those of the body.
    pub(super) fn fill(
        self,
        blocks: &mut Journaled<'_>,
        files: &Files<'_>,
        made: &mut Draft,
        parent: Ino,
    ) -> Result<()> {
        match self {
            Contents::File | Contents::Special(_) => return Ok(()),
            Contents::Device(_, number) => made.disk.i_block = number,
            Contents::Symlink(target) => start_link(blocks, files, made, target)?,
            Contents::Directory => start_directory(blocks, files, made, parent)?,
        }
        made.store(blocks)
    }
}

/// Inside the inode on volumes with inline data, as in Linux; otherwise in a block.
fn start_directory(
    blocks: &mut Journaled<'_>,
    files: &Files<'_>,
    made: &mut Draft,
    parent: Ino,
) -> Result<()> {
    let superblock = &files.state.superblock;
    if superblock.features.incompat.contains(Incompat::INLINE_DATA) && inline::edit::add(superblock, made) {
        made.disk.flags &= !InodeFlags::EXTENTS;
        made.disk.flags |= InodeFlags::INLINE_DATA;
        made.disk.size = I_BLOCK_SIZE as u64;
    }
    let mut space = files.space.open();
    NameEdit::start(blocks, &mut BlockMap::new(&mut space), made, parent).map(drop)
}

/// Inside the inode if it is short, with a zero after it; otherwise in a block. Linux makes no inline data of it.
fn start_link(blocks: &mut Journaled<'_>, files: &Files<'_>, made: &mut Draft, target: &[u8]) -> Result<()> {
    made.disk.size = target.len() as u64;
    if let Some(short) = made.disk.i_block.get_mut(..target.len()).filter(|part| part.len() < I_BLOCK_SIZE) {
        short.copy_from_slice(target);
        return Ok(());
    }
    let mut space = files.space.open();
    let mut map = BlockMap::new(&mut space);
    map.start(blocks, made)?;
    for place in map.append(blocks, made, Lblk(0), 1)? {
        blocks.describe(place, Role::LinkTarget(made.ino));
        blocks.fresh(place, |bytes| {
            bytes.fill(0);
            bytes[..target.len()].copy_from_slice(target);
        })?;
    }
    Ok(())
}
