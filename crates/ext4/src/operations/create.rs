//! Creates an inode with its name.

use super::contents::Contents;
use super::directories::Directories;
use super::entry::{self, EntryScope};
use super::path;
use crate::alloc::inode::NewInode;
use crate::alloc::spread::Near;
use crate::change::Files;
use crate::dir;
use crate::ground::caller::Caller;
use crate::ground::error::{Error, Result};
use crate::ground::features;
use crate::ground::journaled::Journaled;
use crate::ground::options::OpenOptions;
use crate::ground::quota::Ids;
use crate::ground::state::ROOT;
use crate::ground::unlogged::Unlogged;
use crate::inode::draft::Draft;
use crate::inode::metadata::FileKind;
use crate::inode::{Ext4State, Inode};
use crate::seam::Ext4;
use crate::xattr::{InheritedAcl, acl};
use std::sync::Arc;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{DefaultMountOptions, InodeFlags, RoCompat};

const SET_GROUP: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o010;
/// The permissions of a directory that its creator chooses, as in Linux.
const DIRECTORY_MODE: u16 = 0o1777;
const LINK_MODE: u16 = 0o777;

/// Flags that a regular file inherits from its directory, as in Linux (`EXT4_FL_INHERITED`, `EXT4_REG_FLMASK`).
pub(crate) const INHERITED: InodeFlags = InodeFlags::from_bits_retain(
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
/// What only a directory inherits besides.
const INHERITED_BY_DIRECTORIES: InodeFlags = InodeFlags::from_bits_retain(
    InodeFlags::DIRSYNC.bits() | InodeFlags::PROJECT_INHERIT.bits() | InodeFlags::CASEFOLD.bits(),
);

/// The caller's choices for a new inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewFile<'c> {
    pub(crate) contents: Contents<'c>,
    /// Permissions, before the caller's mask.
    pub(crate) mode: u16,
    pub(crate) caller: &'c Caller,
    /// Whether the caller may give a file set-group-id for a group that it is not in.
    pub(crate) privileged: bool,
    /// Whether limits of quota hold for the caller.
    pub(crate) limited: bool,
}

impl<'c> NewFile<'c> {
    /// What `caller` creates.
    pub(crate) fn of(caller: &'c Caller, contents: Contents<'c>, mode: u32) -> NewFile<'c> {
        let (privileged, limited) = (caller.is_root(), !caller.is_root());
        NewFile { contents, mode: (mode & 0o7777) as u16, caller, privileged, limited }
    }

    /// What an open creates: for `owner`, but by a caller with root's privileges, unless limits of quota hold for it.
    pub(crate) fn of_open(owner: &'c Caller, options: &OpenOptions) -> NewFile<'c> {
        let new = NewFile::of(owner, Contents::File, options.new_mode());
        NewFile { privileged: true, limited: options.limited, ..new }
    }
}

/// Finds the file at `path`, or creates it. A dangling symbolic link is followed: its target is created. If
/// `exclusive`, an existing name is an error, even if it is a symbolic link.
///
/// # Errors
/// [`Error::Exists`] if it exists and must not; [`Error::NoSpace`] and [`Error::Limit`], with nothing changed;
/// [`Error::NotPermitted`] and [`Error::Incompatible`] for directories that may not be changed; those of resolving the
/// path.
pub(crate) fn open_or_create(
    fs: &Ext4,
    path: &[u8],
    new: &NewFile<'_>,
    exclusive: bool,
) -> Result<Arc<Inode>> {
    // A failure to free another inode must not fail this call: it is retried later.
    let _waits = fs.files().free_left();
    path::at_last(&fs.state, path, !exclusive, |parent, names, name, found| match found {
        None => create(fs, parent, names, name, new),
        Some(_) if exclusive => Err(Error::Exists),
        Some((inode, _)) => Ok(inode),
    })
}

/// Creates an inode with the name `path`, which must not exist, not even as a symbolic link. For a directory the path
/// may end in a slash.
///
/// # Errors
/// As of [`open_or_create`].
pub(crate) fn make_at(fs: &Ext4, path: &[u8], new: &NewFile<'_>) -> Result<Arc<Inode>> {
    let _waits = fs.files().free_left();
    let is_directory = new.contents.kind() == FileKind::Directory;
    at_new(&fs.state, path, is_directory, |parent, names, name| create(fs, parent, names, name, new))
}

/// Calls `act` with a directory, its names locked, and a name that does not exist in it, not even as a symbolic link.
/// `slashes`: the path may end in slashes.
///
/// # Errors
/// [`Error::Exists`]; those of resolving the path; those of `act`.
pub(super) fn at_new<T>(
    state: &Ext4State,
    path: &[u8],
    slashes: bool,
    act: impl Fn(&Arc<Inode>, &Directories<'_>, &[u8]) -> Result<T>,
) -> Result<T> {
    let end = path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count();
    let done = path::at_last(state, &path[..end], false, |parent, names, name, found| match found {
        Some(_) => Err(Error::Exists),
        None if end < path.len() && !slashes => Err(Error::NotFound),
        None => act(parent, names, name),
    });
    // A path without a last name leads to a directory.
    done.map_err(|error| if matches!(error, Error::IsDirectory) { Error::Exists } else { error })
}

/// Creates an inode with a name in the directory `parent`.
///
/// # Errors
/// As of [`open_or_create`]; [`Error::NotFound`] if the directory was removed.
pub(crate) fn make_in(fs: &Ext4, parent: &Arc<Inode>, name: &[u8], new: &NewFile<'_>) -> Result<Arc<Inode>> {
    let _waits = fs.files().free_left();
    let names = Directories::one(parent);
    check_free(&fs.state, parent, name)?;
    create(fs, parent, &names, name, new)
}

/// Checks that a name can be added to a directory, whose names are locked.
///
/// # Errors
/// [`Error::Exists`]; as of [`check_directory`] and [`dir::name::check`].
pub(super) fn check_free(state: &Ext4State, parent: &Inode, name: &[u8]) -> Result<()> {
    check_directory(state, parent)?;
    if matches!(name, b"." | b"..") {
        return Err(Error::Exists);
    }
    dir::name::check(name)?;
    if dir::look_up(state, parent, name)?.is_some() { Err(Error::Exists) } else { Ok(()) }
}

/// Checks that names may be added to a directory.
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

/// Creates an inode with a name that does not exist.
fn create(
    fs: &Ext4,
    parent: &Arc<Inode>,
    names: &Directories<'_>,
    name: &[u8],
    new: &NewFile<'_>,
) -> Result<Arc<Inode>> {
    let state = &fs.state;
    check_directory(state, parent)?;
    dir::name::check(name)?;
    let files = fs.files();
    let _told = state.operation(call_of(new.contents.kind()), parent.ino(), name);
    let made = loop {
        if let Some(made) = files.with_room(|| add(&files, parent, names, name, new))? {
            break made;
        }
        state.commit_all()?;
    };
    if let Some(trace) = &state.trace {
        trace.learn(parent.ino(), name, made);
    }
    state.inode(made)
}

/// The system call that makes an inode of this kind, for a trace.
fn call_of(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "create",
        FileKind::Directory => "mkdir",
        FileKind::Symlink => "symlink",
        _ => "mknod",
    }
}

/// The fields of a new inode's record, and the access control lists that it inherits; then no umask applies. A symbolic
/// link inherits none.
///
/// # Errors
/// [`Error::Corrupt`] of the directory's attributes.
pub(super) fn describe(
    state: &Ext4State,
    parent: &Inode,
    new: &NewFile<'_>,
) -> Result<(NewInode, Option<InheritedAcl>)> {
    let directory = parent.disk();
    let kind = new.contents.kind();
    let by_mount = state.superblock.default_mount_options.contains(DefaultMountOptions::BSD_GROUPS);
    let sets_group = directory.mode & SET_GROUP != 0;
    let gid = if by_mount || sets_group { directory.gid } else { new.caller.gid };
    let default = match kind {
        FileKind::Symlink => None,
        _ => acl::default_of(state, parent)?,
    };
    let mask = if default.is_some() { !0 } else { !(new.caller.umask & 0o777) as u16 };
    let mode = match kind {
        FileKind::Symlink => LINK_MODE,
        FileKind::Directory => {
            new.mode & mask & DIRECTORY_MODE | if sets_group && !by_mount { SET_GROUP } else { 0 }
        }
        // As in Linux, judged before the mask is applied.
        _ if sets_group
            && new.mode & (SET_GROUP | GROUP_EXECUTE) == SET_GROUP | GROUP_EXECUTE
            && !new.privileged
            && !new.caller.is_in(directory.gid) =>
        {
            new.mode & mask & !SET_GROUP
        }
        _ => new.mode & mask,
    };
    let inherited = match kind {
        FileKind::Regular => INHERITED,
        FileKind::Directory => INHERITED | INHERITED_BY_DIRECTORIES,
        _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
    };
    let acl = default.map(|default| InheritedAcl::new(default, mode, kind == FileKind::Directory));
    let fields = NewInode {
        mode: kind.mode_bits() | acl.as_ref().map_or(mode, |acl| acl.mode),
        uid: new.caller.uid,
        gid,
        flags: directory.flags & inherited,
        generation: state.generation(),
        links: if kind == FileKind::Directory { 2 } else { 1 },
        now: state.clock.now(),
        limited: new.limited,
    };
    Ok((fields, acl))
}

/// Whether an edit of names fails with this error only while nothing is changed.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NoSpace
            | Error::Limit(_)
            | Error::QuotaExceeded { .. }
            | Error::Exists
            | Error::Corrupt(_)
            | Error::CorruptInode { .. }
            | Error::Incompatible { .. }
    )
}

/// Whether a new inode has to wait for a commit: without a journal, a name on the device may still lead to the number
/// of a removed file.
pub(super) fn awaits_commit(state: &Ext4State) -> bool {
    state.unlogged.as_ref().is_some_and(Unlogged::has_freed_inode)
}

/// Creates an inode in `parent`, with the project it inherits. `name`: the one that it will get, if any.
pub(super) fn make(
    blocks: &mut Journaled<'_>,
    files: &Files<'_>,
    parent: &Inode,
    name: Option<&[u8]>,
    new: &NewInode,
) -> Result<Draft> {
    let disk = parent.disk();
    let inherits = files.state.superblock.features.ro_compat.contains(RoCompat::PROJECT)
        && disk.flags.contains(InodeFlags::PROJECT_INHERIT);
    let project = disk.project.filter(|_| inherits).unwrap_or(0);
    files.want_entries(blocks, Ids { uid: new.uid, gid: new.gid, project: 0 })?;
    let ids = Ids { uid: new.uid, gid: new.gid, project };
    files.want_entries(blocks, ids)?;
    if new.limited {
        files.check_new_inode(blocks, ids)?;
    }
    let spread = name.filter(|_| new.is_directory() && is_top(parent));
    let spread = spread.map(|name| dir::spread_hash(files.state, parent, name));
    let near = Near { parent: parent.ino(), last: parent.last_group(), spread };
    let mut made = files.space.make_inode(blocks, &near, new, |ino| files.state.knows_inode(ino))?;
    if let Some((group, _)) = files.state.superblock.geometry.group_of_inode(made.ino) {
        parent.made_in(group);
    }
    if inherits && made.disk.project.is_some() {
        made.disk.project = disk.project;
        made.store(blocks)?;
    }
    if new.limited {
        made.obey_limits(blocks)?;
    }
    Ok(made)
}

/// Whether directories made here have nothing to do with each other, and are spread over the volume.
fn is_top(directory: &Inode) -> bool {
    directory.ino() == ROOT || directory.disk().flags.contains(InodeFlags::TOPDIR)
}

/// Adds inode and name in one handle. `None`: nothing was done, and a commit has to come first.
fn add(
    files: &Files<'_>,
    parent: &Arc<Inode>,
    names: &Directories<'_>,
    name: &[u8],
    new: &NewFile<'_>,
) -> Result<Option<Ino>> {
    let state = files.state;
    let ((fields, acl), contents) = (describe(state, parent, new)?, new.contents);
    let plan = EntryScope { names: &[parent], inodes: &[], makes: 1 };
    let mut unused = None;
    let outcome = entry::change(files, names, &plan, |step| {
        if awaits_commit(state) {
            return Ok(Ok(None));
        }
        if contents.kind() == FileKind::Directory
            && let Err(limit) = step.count_subdirectory(parent, true)
        {
            return Ok(Err(limit));
        }
        let mut made = match make(step.blocks, files, parent, Some(name), &fields) {
            Ok(made) => made,
            Err(full) if full.is_full() => return Ok(Err(full)),
            Err(error) => return Err(error),
        };
        // The lists come first, as in Linux, where inline contents take what room is left.
        let filled = files
            .inherit_acl(step.blocks, &mut made, acl.as_ref())
            .and_then(|()| contents.fill(step.blocks, files, &mut made, parent.ino()));
        // What the inode uses by now counts for its directory too.
        let limited = filled.and_then(|()| match fields.limited {
            true => step.obey_limits(parent),
            false => Ok(()),
        });
        match limited.and_then(|()| step.insert(parent, name, made.ino, contents.kind())) {
            Ok(()) => {
                step.tell_new();
                Ok(Ok(Some(made.ino)))
            }
            // The inode is as it was made, or filled. Freeing it undoes everything: at once if it has no blocks. Any
            // other error may leave a partial change.
            Err(error) if is_refusal(&error) => {
                made.disk.links = 0;
                if made.disk.blocks_raw == 0 {
                    files.space.free_inode(step.blocks, &mut made, fields.now)?;
                } else {
                    made.store(step.blocks)?;
                    files.add_orphan(step.blocks, made.ino)?;
                    unused = Some(made);
                }
                Ok(Err(error))
            }
            Err(error) => Err(error),
        }
    });
    if let Some(made) = unused {
        // If freeing it fails, it is retried later: the refusal is what the caller must know.
        let _waits = entry::end_use(files, state.nameless(state.inode_made(made)?));
    }
    outcome
}
