//! A new regular file and its name.

use super::path;
use crate::alloc::inode::NewInode;
use crate::change::Files;
use crate::dir;
use crate::dir::map::BlockMap;
use crate::ground::credits;
use crate::ground::error::{Error, Result};
use crate::ground::features;
use crate::ground::journaled::Journaled;
use crate::ground::state::ROOT;
use crate::ground::unlogged::Unlogged;
use crate::inode::edit::Change;
use crate::inode::fields::now;
use crate::inode::metadata::FileKind;
use crate::inode::{Ext4State, Inode};
use crate::seam::Ext4;
use crate::xattr;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::Arc;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{DefaultMountOptions, FileType, InodeFlags, RoCompat};

/// Type bits of a regular file's mode, and the bit that says that files in a directory take its group.
const REGULAR: u16 = 0o100_000;
const SET_GROUP: u16 = 0o2000;

/// What a new file inherits from its directory, as in Linux (`EXT4_FL_INHERITED`, `EXT4_REG_FLMASK`).
const INHERITED: InodeFlags = InodeFlags::from_bits_retain(
    InodeFlags::SECURE_DELETE.bits()
        | InodeFlags::UNDELETE.bits()
        | InodeFlags::COMPRESS.bits()
        | InodeFlags::SYNC.bits()
        | InodeFlags::NODUMP.bits()
        | InodeFlags::NOATIME.bits()
        | InodeFlags::NO_COMPRESS.bits()
        | InodeFlags::JOURNAL_DATA.bits()
        | InodeFlags::NO_TAIL.bits()
        | InodeFlags::DAX.bits(),
);

/// What the caller says of a new file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewFile {
    /// Permissions.
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether a name that is there already is an error, a symbolic link too.
    pub(crate) exclusive: bool,
}

/// Finds the file that `path` names, or makes it. A symbolic link that leads to nothing yet is followed.
///
/// # Errors
/// [`Error::Exists`] if it is there and must not be; [`Error::NoSpace`] and [`Error::Limit`], with nothing changed;
/// [`Error::NotPermitted`] and [`Error::Incompatible`] for directories that may not be changed; those of finding it.
pub(crate) fn open_or_create(fs: &Ext4, path: &[u8], new: &NewFile) -> Result<Arc<Inode>> {
    // What cannot be freed waits on, and is not this file's concern.
    let _waits = fs.files().free_left();
    let (mut start, mut rest) = (fs.state.inode(ROOT)?, path.to_vec());
    for _ in 0..=path::LINKS_MAX {
        let (parent, name) = path::parent(&fs.state, &start, &rest)?;
        let Some(name) = name else { return Err(Error::IsDirectory) };
        // Held from the look-up to the end: nobody else adds the name in between.
        let guard = parent.names.write();
        match dir::look_up(&fs.state, &parent, &name)? {
            None if rest.ends_with(b"/") => return Err(Error::IsDirectory),
            None => return create(fs, &parent, &name, new),
            Some(_) if new.exclusive => return Err(Error::Exists),
            Some(found) => {
                let inode = fs.state.inode(found.ino)?;
                if inode.kind() != FileKind::Symlink {
                    return Ok(inode);
                }
                rest = path::read_link(&fs.state, &inode)?;
            }
        }
        drop(guard);
        start = parent;
    }
    Err(Error::TooManyLinks)
}

/// Whether names of a directory may be added.
pub(super) fn check_directory(state: &Ext4State, directory: &Inode) -> Result<()> {
    if directory.kind() != FileKind::Directory {
        return Err(Error::NotDirectory);
    }
    let disk = directory.disk();
    if disk.links == 0 {
        return Err(Error::NotFound);
    }
    if disk.flags.contains(InodeFlags::IMMUTABLE) {
        return Err(Error::NotPermitted("the directory is immutable"));
    }
    if disk.flags.contains(InodeFlags::ENCRYPT) {
        let feature = format!("an encrypted directory (inode {})", directory.ino());
        return Err(Error::Incompatible { action: "change names", feature });
    }
    features::check_changes(&state.superblock)
}

/// Makes a file. The caller holds the directory's names.
fn create(fs: &Ext4, parent: &Inode, name: &[u8], new: &NewFile) -> Result<Arc<Inode>> {
    let state = &fs.state;
    check_directory(state, parent)?;
    dir::name::check(name)?;
    if xattr::has_default_acl(state, parent)? {
        let feature = format!("a default access control list (inode {})", parent.ino());
        return Err(Error::Incompatible { action: "create a file", feature });
    }
    let files = fs.files();
    let made = loop {
        if let Some(made) = files.with_room(|| add(&files, parent, name, &describe(state, parent, new)))? {
            break made;
        }
        state.commit_all()?;
    };
    state.inode(made)
}

/// What the record of a new file says.
fn describe(state: &Ext4State, parent: &Inode, new: &NewFile) -> NewInode {
    let directory = parent.disk();
    let groups = state.superblock.default_mount_options.contains(DefaultMountOptions::BSD_GROUPS)
        || directory.mode & SET_GROUP != 0;
    let now = now();
    NewInode {
        mode: REGULAR | (new.mode & 0o7777),
        uid: new.uid,
        gid: if groups { directory.gid } else { new.gid },
        flags: directory.flags & INHERITED,
        generation: RandomState::new().hash_one(now.nanoseconds) as u32,
        links: 1,
        now,
    }
}

/// Whether an edit of names says by this that it has changed nothing.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NoSpace
            | Error::Limit(_)
            | Error::Exists
            | Error::Corrupt(_)
            | Error::CorruptInode { .. }
            | Error::Incompatible { .. }
    )
}

/// One handle: inode, name, and the directory's times. `None`: nothing was done, and a commit has to come first.
fn add(files: &Files<'_>, parent: &Inode, name: &[u8], new: &NewInode) -> Result<Option<Ino>> {
    let state = files.state;
    let credits =
        credits::name(state, files.depth(parent)) + 2 * credits::inode(state) + 1 + credits::groups(state, 1);
    Journaled::run(state, credits, |blocks| {
        // Without a journal the number of a file that was removed may have a name on the device still.
        if state.unlogged.as_ref().is_some_and(Unlogged::has_freed_inode) {
            return Ok(Ok(None));
        }
        let mut directory = parent.edit(blocks)?;
        let mut made = match files.space.make_inode(blocks, parent.ino(), new) {
            Ok(made) => made,
            Err(Error::NoSpace) => return Ok(Err(Error::NoSpace)),
            Err(error) => return Err(error),
        };
        let mut space = files.space.open();
        let mut map = BlockMap::new(&mut space);
        let added = dir::edit::Edit::open(blocks, &mut map, &mut directory)
            .and_then(|mut names| names.insert(name, made.ino, Some(FileType::Regular)));
        if let Err(error) = added {
            // Names change nothing when they are refused: then the inode goes back, and all is as it was. Any other
            // error may come from the middle.
            if !is_refusal(&error) {
                return Err(error);
            }
            made.disk.links = 0;
            files.space.free_inode(blocks, &mut made, new.now)?;
            return Ok(Err(error));
        }
        let inherits = state.superblock.features.ro_compat.contains(RoCompat::PROJECT)
            && directory.disk.flags.contains(InodeFlags::PROJECT_INHERIT);
        if inherits && made.disk.project.is_some() {
            made.disk.project = directory.disk.project;
            made.store(blocks)?;
        }
        directory.stamp(new.now, true);
        directory.disk.version = directory.disk.version.wrapping_add(1);
        // A directory that grew has blocks that its mapping in memory takes for holes.
        let mut known = parent.state.map.lock();
        directory.store(blocks, Change::Data)?;
        known.forget();
        Ok(Ok(Some(made.ino)))
    })?
}
