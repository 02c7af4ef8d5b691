//! The only way to change names: in one handle, on (inode of the directory, name), never on a path.
//!
//! An operation locks the directories ([`Directories`]), declares what it may change ([`EntryScope`]), and does it in
//! [`change`]: [`Step`] adds, removes and redirects names, and adjusts link counts. The bookkeeping of a changed
//! directory is done here once, at the end: times and version, the record in its table, and cached mappings that the
//! change made stale. A file that lost its last name joins the orphans in the same handle, and one that got its first
//! name leaves them; afterwards the inode cache is told.
//!
//! | operation | directories | steps |
//! |---|---|---|
//! | create | one | `make`, `insert` |
//! | make a directory | one | `count_subdirectory`, `make`, `insert` |
//! | unlink | one | `remove`, `unlink` |
//! | remove a directory | one and it | `count_subdirectory`, `unlink_directory`, `remove` |
//! | replace | one | `lead`, `link` the new, `unlink` the old |
//! | link | one | `link`, `insert` |
//! | rename | two | `insert` or `lead`, `remove`, `unlink` what is replaced; of a directory that moves, `lead_parent` |
//! | exchange | two | `lead` twice; of directories that move, `lead_parent` |
//! | whiteout | two | `make`, rename, but `lead` instead of `remove` |
//!
//! Every check that can refuse comes before the first change: a later error aborts the volume (`Journaled::run`).

use super::directories::Directories;
use crate::alloc::shared::Nodes;
use crate::change::{Files, attribute_blocks, orphans};
use crate::dir::edit::Edit as NameEdit;
use crate::dir::map::BlockMap;
use crate::ground::credits;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::journaled::Journaled;
use crate::ground::tracking::{ChangedName, NameChange};
use crate::inode::Inode;
use crate::inode::draft::Draft;
use crate::inode::edit::{Change, Edit, edit_several};
use crate::inode::fields::{LINKS_MAX, count_subdirectory};
use crate::inode::metadata::FileKind;
use std::sync::Arc;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{Compat, InodeFlags, Timestamp};

/// Changes of names in directories with such a flag are durable when they return.
const SYNCHRONOUS: InodeFlags =
    InodeFlags::from_bits_retain(InodeFlags::SYNC.bits() | InodeFlags::DIRSYNC.bits());

/// Declares what an operation may change.
pub(crate) struct EntryScope<'p> {
    /// Directories whose names change, each listed once per changed name.
    pub(crate) names: &'p [&'p Arc<Inode>],
    /// Other inodes, and directories of which something else changes.
    pub(crate) inodes: &'p [&'p Arc<Inode>],
    /// How many inodes are created.
    pub(crate) makes: u32,
}

impl EntryScope<'_> {
    fn credits(&self, files: &Files<'_>) -> u32 {
        let state = files.state;
        let names: u32 = self.names.iter().map(|inode| credits::name(state, files.depth(inode))).sum();
        let inodes = self.inodes.len() as u32 * (1 + orphans::CREDITS);
        // The inode, a block of contents, a block of attributes, and room to undo it all.
        let made = 2 * credits::inode(state)
            + 1
            + credits::groups(state, 1)
            + attribute_blocks::credits(state)
            + orphans::CREDITS;
        names.saturating_add(inodes).saturating_add(self.makes.saturating_mul(made))
    }
}

/// An inode of the plan, being edited.
struct Part<'p> {
    edit: Edit<'p>,
    /// Its names changed: update times, version and map.
    names: bool,
    /// Something else in it changed.
    touched: bool,
    /// Its blocks changed.
    grown: bool,
    /// Link count at the start of the step.
    links: u16,
}

impl<'p> Part<'p> {
    fn new(edit: Edit<'p>) -> Part<'p> {
        Part { links: edit.disk.links, edit, names: false, touched: false, grown: false }
    }
}

/// The names of a directory being edited.
type NamesOf<'n, 'g> = NameEdit<'n, Journaled<'g>, BlockMap<'n, Nodes<'n>>>;

/// An operation's access to names and records inside the handle.
pub(crate) struct Step<'s, 'g> {
    pub(crate) blocks: &'s mut Journaled<'g>,
    files: &'s Files<'g>,
    directories: &'s Directories<'s>,
    parts: Vec<Part<'s>>,
    now: Timestamp,
    /// For fast commits: the changes of names so far; `None` if one of them is of another kind.
    told: Option<Vec<ChangedName>>,
}

/// Runs `step` in one handle, which is committed if a directory is synchronous. `step` returns an inner error if it
/// changed nothing, or undid its changes.
///
/// # Errors
/// The inner error; [`Error::Corrupt`] of records; those of `step`, which abort the volume if it has changed anything.
pub(crate) fn change<T>(
    files: &Files<'_>,
    directories: &Directories<'_>,
    plan: &EntryScope<'_>,
    step: impl FnOnce(&mut Step<'_, '_>) -> Result<Result<T>>,
) -> Result<T> {
    let mut inodes: Vec<&Arc<Inode>> = Vec::new();
    for inode in plan.names.iter().chain(plan.inodes) {
        if !inodes.iter().any(|known| Arc::ptr_eq(known, inode)) {
            inodes.push(inode);
        }
    }
    let outcome = Journaled::run(files.state, "names", plan.credits(files), |blocks| {
        let taken: Vec<&Inode> = inodes.iter().map(|inode| &***inode).collect();
        let parts = edit_several(blocks, &taken)?.into_iter().map(Part::new).collect();
        let now = files.state.clock.now();
        let mut inside = Step { blocks, files, directories, parts, now, told: Some(Vec::new()) };
        match step(&mut inside)? {
            Ok(done) => Ok(Ok((done, inside.finish()?))),
            Err(refused) => Ok(Err(refused)),
        }
    });
    let (done, moved) = outcome??;
    for (ino, has_name) in moved {
        let Some(inode) = inodes.iter().find(|inode| inode.ino() == ino) else { continue };
        if has_name { files.state.named(inode) } else { files.state.unlinked(inode) }
    }
    if plan.names.iter().any(|directory| directory.disk().flags.intersects(SYNCHRONOUS)) {
        files.state.commit_all()?;
    }
    Ok(done)
}

/// Drops a reference to an inode that may have lost its last name, and frees the inode if it was the last reference.
/// The caller holds no lock and no handle.
///
/// # Errors
/// Those of freeing it: the name is gone, and freeing is retried later.
pub(crate) fn end_use(files: &Files<'_>, inode: Arc<Inode>) -> Result<()> {
    let ino = inode.ino();
    drop(inode);
    files.free_if_left(ino)
}

impl<'s, 'g> Step<'s, 'g> {
    /// The time stamp of this step.
    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    /// The record of an inode of the plan, for changing; it is stored at the end.
    pub(crate) fn draft(&mut self, inode: &Inode) -> Result<&mut Draft> {
        let part = self.part(inode)?;
        part.touched = true;
        Ok(&mut part.edit)
    }

    /// Makes limits of quota hold for what an inode of the plan grows by.
    ///
    /// # Errors
    /// [`Error::Corrupt`] of the quota files.
    pub(crate) fn obey_limits(&mut self, inode: &Inode) -> Result<()> {
        let ino = inode.ino();
        match self.parts.iter_mut().find(|part| part.edit.ino == ino) {
            Some(part) => part.edit.obey_limits(self.blocks),
            None => Ok(()),
        }
    }

    /// The record of an inode of the plan, with the changes so far.
    pub(crate) fn look(&self, inode: &Inode) -> Result<&Draft> {
        let ino = inode.ino();
        let missing = || Error::Invalid(format!("inode {ino} is not in the plan of the operation"));
        self.parts.iter().find(|part| part.edit.ino == ino).map(|part| &*part.edit).ok_or_else(missing)
    }

    fn part(&mut self, inode: &Inode) -> Result<&mut Part<'s>> {
        let ino = inode.ino();
        let missing = || Error::Invalid(format!("inode {ino} is not in the plan of the operation"));
        self.parts.iter_mut().find(|part| part.edit.ino == ino).ok_or_else(missing)
    }

    /// Adds a name.
    ///
    /// # Errors
    /// As of [`NameEdit::insert`], with nothing changed.
    pub(crate) fn insert(&mut self, into: &Inode, name: &[u8], ino: Ino, kind: FileKind) -> Result<()> {
        // The names are locked since somebody looked.
        let absent = self.files.state.names.get(into.directory_id(), name) == Some(None);
        self.tell(NameChange::Link, into, name, ino, kind);
        self.edit_names(into, name, Some(ino), |names| match absent {
            true => names.insert_absent(name, ino, Some(kind)),
            false => names.insert(name, ino, Some(kind)),
        })
    }

    /// Removes a name that leads to `ino`.
    ///
    /// # Errors
    /// As of [`NameEdit::remove`], with nothing changed.
    pub(crate) fn remove(&mut self, from: &Inode, name: &[u8], ino: Ino) -> Result<()> {
        let kind = self.parts.iter().find(|part| part.edit.ino == ino).map(|part| part.edit.inode().kind());
        self.tell(NameChange::Unlink, from, name, ino, kind.unwrap_or(FileKind::Directory));
        self.edit_names(from, name, None, |names| names.remove(name, ino))
    }

    /// Makes a name lead to another inode.
    ///
    /// # Errors
    /// As of [`NameEdit::set`], with nothing changed.
    pub(crate) fn lead(&mut self, of: &Inode, name: &[u8], ino: Ino, kind: FileKind) -> Result<()> {
        self.told = None;
        self.edit_names(of, name, Some(ino), |names| names.set(name, ino, Some(kind)))
    }

    /// Makes `..` of a directory that moves lead to its new parent. That is no change of its contents to its users.
    ///
    /// # Errors
    /// As of [`NameEdit::set`], with nothing changed.
    pub(crate) fn lead_parent(&mut self, of: &Inode, parent: Ino) -> Result<()> {
        self.told = None;
        self.files.state.names.forget(of.directory_id(), b"..");
        self.with_names(of, |names| names.set(b"..", parent, Some(FileKind::Directory)))?;
        self.draft(of).map(drop)
    }

    /// The inode that a name leads to, `..` included. An edit of the same name reads nothing else, so it cannot find
    /// damage that this does not find.
    ///
    /// # Errors
    /// As of [`NameEdit::open`]; [`Error::Corrupt`].
    pub(crate) fn find(&mut self, within: &Inode, name: &[u8]) -> Result<Option<Ino>> {
        Ok(self.with_names(within, |names| names.get(name))?.map(|found| found.ino))
    }

    /// Whether a directory has no names but `.` and `..`.
    ///
    /// # Errors
    /// As of [`NameEdit::open`]; [`Error::Corrupt`].
    pub(crate) fn is_empty(&mut self, directory: &Inode) -> Result<bool> {
        self.with_names(directory, |names| names.is_empty())
    }

    /// The name inserted last is the first one of a new file.
    pub(crate) fn tell_new(&mut self) {
        if let Some(last) = self.told.as_mut().and_then(|told| told.last_mut()) {
            last.change = NameChange::Create;
        }
    }

    /// Keeps a change of a name for the declaration. Only names of regular files can be declared.
    fn tell(&mut self, change: NameChange, parent: &Inode, name: &[u8], ino: Ino, kind: FileKind) {
        if self.files.state.tracking.is_none() {
            return;
        }
        if kind != FileKind::Regular {
            self.told = None;
        }
        if let Some(told) = &mut self.told {
            told.push(ChangedName { change, parent: parent.ino(), ino, name: name.into() });
        }
    }

    fn edit_names(
        &mut self,
        directory: &Inode,
        name: &[u8],
        answer: Option<Ino>,
        edit: impl FnOnce(&mut NamesOf<'_, 'g>) -> Result<()>,
    ) -> Result<()> {
        let known = &self.files.state.names;
        known.forget(directory.directory_id(), name);
        let shape = |part: &Part<'_>| (part.edit.disk.size, part.edit.disk.i_block);
        let before = shape(self.part(directory)?);
        self.with_names(directory, edit)?;
        let part = self.part(directory)?;
        part.names = true;
        part.grown |= before != shape(part);
        if !part.edit.disk.flags.contains(InodeFlags::CASEFOLD) {
            known.put(directory.directory_id(), name, answer);
        }
        Ok(())
    }

    fn with_names<T>(
        &mut self,
        directory: &Inode,
        work: impl FnOnce(&mut NamesOf<'_, 'g>) -> Result<T>,
    ) -> Result<T> {
        debug_assert!(self.directories.are_of(directory), "names of {} are not locked", directory.ino());
        let ino = directory.ino();
        let missing = || Error::Invalid(format!("inode {ino} is not in the plan of the operation"));
        let part = self.parts.iter_mut().find(|part| part.edit.ino == ino).ok_or_else(missing)?;
        let mut space = self.files.space.open();
        let mut map = BlockMap::new(&mut space);
        work(&mut NameEdit::open(&mut *self.blocks, &mut map, &mut part.edit)?)
    }

    /// Increments the link count of an inode of the plan. At the end, an inode that got its first name leaves the
    /// orphans.
    ///
    /// # Errors
    /// [`Limit::Links`], with nothing changed.
    pub(crate) fn link(&mut self, inode: &Inode) -> Result<()> {
        let now = self.now;
        let draft = self.draft(inode)?;
        draft.add_link()?;
        draft.stamp(now, false);
        Ok(())
    }

    /// Decrements the link count. At the end, an inode without a name joins the orphans.
    ///
    /// # Errors
    /// [`Error::CorruptInode`] if it is 0, with nothing changed.
    pub(crate) fn unlink(&mut self, inode: &Inode) -> Result<()> {
        let now = self.now;
        let draft = self.draft(inode)?;
        draft.remove_link()?;
        draft.stamp(now, false);
        Ok(())
    }

    /// Adjusts the link count of a directory that gets a subdirectory (`more`), or loses one. As in Linux, only one
    /// with a hash tree can have more than it can count.
    ///
    /// # Errors
    /// [`Limit::Links`], with nothing changed.
    pub(crate) fn count_subdirectory(&mut self, directory: &Inode, more: bool) -> Result<()> {
        self.told = None;
        let ground = self.files.state;
        let draft = self.draft(directory)?;
        let indexed = ground.superblock.features.compat.contains(Compat::DIR_INDEX)
            && draft.disk.flags.contains(InodeFlags::INDEX);
        if more && draft.disk.links >= LINKS_MAX && !indexed {
            return Err(Error::Limit(Limit::Links));
        }
        draft.disk.links = count_subdirectory(ground, draft.disk.links, more)?;
        Ok(())
    }

    /// Takes a directory's only name and its own `.` from its link count. At the end it joins the orphans.
    ///
    /// # Errors
    /// [`Error::CorruptInode`] if the count is 0, with nothing changed.
    pub(crate) fn unlink_directory(&mut self, directory: &Inode) -> Result<()> {
        self.unlink(directory)?;
        self.draft(directory)?.disk.links = 0;
        Ok(())
    }

    /// Stores the changes. Returns the inodes that got their first name (`true`) or lost their last.
    fn finish(self) -> Result<Vec<(Ino, bool)>> {
        let Step { blocks, files, parts, now, told, .. } = self;
        let mut moved = Vec::new();
        // Replays find room for names, but e2fsck 1.47.0 would take any free block for a directory that grows.
        let stays = |part: &Part<'_>| !part.grown && part.links > 0 && part.edit.disk.links > 0;
        let told = told.filter(|told| !told.is_empty() && parts.iter().all(stays));
        for Part { mut edit, names, touched, grown, links } in parts {
            if touched && !names && links > 0 && edit.disk.links == 0 {
                files.store_orphan(blocks, &mut edit)?;
                moved.push((edit.ino, false));
                continue;
            }
            if names {
                edit.stamp(now, true);
                let mut known = edit.inode().state.map.lock();
                edit.store(blocks, Change::Data)?;
                if grown {
                    // It has blocks that its cached mapping shows as holes.
                    known.forget();
                }
            } else if touched {
                // Of a file with its first name any sync covers the name, as of one that was just created.
                let first = links == 0 && edit.disk.links > 0;
                edit.store(blocks, if first { Change::Data } else { Change::Attributes })?;
            }
            match (links, edit.disk.links) {
                (0, 1..) => files.remove_orphan(blocks, edit.ino)?,
                (1.., 0) => files.add_orphan(blocks, edit.ino)?,
                _ => continue,
            }
            moved.push((edit.ino, edit.disk.links > 0));
        }
        if let Some(told) = told.filter(|_| moved.is_empty()) {
            blocks.declare_names(told);
        }
        Ok(moved)
    }
}
