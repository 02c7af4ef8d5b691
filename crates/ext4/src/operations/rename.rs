//! Renames: a name moves, within a directory or to another one, and may replace what has the new name; or two names
//! change places.
//!
//! All of it is one handle. So after a crash the new name leads to what it led to before, or to what was renamed, never
//! to nothing. What was replaced joins the orphans in the same handle, and is freed with its last user.
//!
//! The directories are locked before the names are looked up, so what is found stays. If more locks are needed for what
//! was found, or something has to be checked without locks, all is released and done again with that ([`Known`]).

use super::contents::Contents;
use super::create::{self, NewFile};
use super::directories::{Directories, Moves};
use super::entry::{self, EntryScope, Step};
use super::path::{Last, Reached};
use super::{link, unlink};
use crate::alloc::inode::NewInode;
use crate::change::Files;
use crate::change::free::check_frees;
use crate::dir;
use crate::ground::caller::Caller;
use crate::ground::error::{Error, Result};
use crate::inode::draft::Draft;
use crate::inode::metadata::FileKind;
use crate::inode::{Ext4State, Inode};
use crate::seam::Ext4;
use crate::xattr::{InheritedAcl, Lists};
use std::sync::Arc;

bitflags::bitflags! {
    /// How a rename treats the new name, as `renameat2` of Linux.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
    pub struct RenameFlags: u32 {
        /// An existing new name is an error ([`Error::Exists`]).
        const NOREPLACE = 1;
        /// Both names exist, and what they lead to changes places.
        const EXCHANGE = 2;
        /// The old name stays and leads to a *whiteout*, a character device 0/0: a file system that lies over this one
        /// takes it for a removed name. The device belongs to root and has no permissions.
        const WHITEOUT = 4;
    }
}

impl RenameFlags {
    /// Refuses flags that do not go together.
    pub(crate) fn check(self) -> Result<()> {
        let alone = RenameFlags::NOREPLACE | RenameFlags::WHITEOUT;
        if RenameFlags::all().contains(self)
            && !(self.contains(RenameFlags::EXCHANGE) && self.intersects(alone))
        {
            return Ok(());
        }
        Err(Error::Invalid(format!("flags of a rename that do not go together: {self:?}")))
    }
}

/// One of the two names.
pub(crate) struct Place<'p> {
    pub(crate) directory: &'p Arc<Inode>,
    pub(crate) name: &'p [u8],
    /// A slash follows the name: only a directory is meant.
    pub(crate) slash: bool,
}

/// A name, as its directory spells it, and what it leads to.
struct Named<'n> {
    directory: &'n Arc<Inode>,
    name: &'n [u8],
    inode: &'n Arc<Inode>,
}

impl<'n> Named<'n> {
    fn new(place: &Place<'n>, inode: &'n Arc<Inode>, spelling: Option<&'n [u8]>) -> Named<'n> {
        Named { directory: place.directory, name: spelling.unwrap_or(place.name), inode }
    }

    fn is_directory(&self) -> bool {
        self.inode.kind() == FileKind::Directory
    }
}

/// What earlier attempts found. It need not be so any longer.
#[derive(Default)]
struct Known {
    /// A directory at the old name that moves to another parent.
    old: Option<Arc<Inode>>,
    /// A directory at the new name that is replaced, or moves to another parent.
    new: Option<Arc<Inode>>,
    /// What is replaced, if it is freed then: everything that freeing it reads was checked.
    replaced: Option<Arc<Inode>>,
}

impl Known {
    fn needs_moves(&self) -> bool {
        self.old.is_some() || self.new.is_some()
    }
}

enum Attempt {
    /// Done. Also what was replaced.
    Done(Option<Arc<Inode>>),
    /// Nothing was done, since this was not known.
    Again(Known),
}

struct Rename<'r> {
    files: Files<'r>,
    from: Place<'r>,
    to: Place<'r>,
    flags: RenameFlags,
}

/// Renames.
///
/// # Errors
/// As of [`Node::rename`](crate::Node::rename).
pub(crate) fn rename<'r>(fs: &'r Ext4, from: Place<'r>, to: Place<'r>, flags: RenameFlags) -> Result<()> {
    let files = fs.files();
    flags.check()?;
    if [&from, &to].iter().any(|place| place.directory.kind() != FileKind::Directory) {
        return Err(Error::NotDirectory);
    }
    // A failure to free another inode must not fail this call: it is retried later.
    let _waits = files.free_left();
    let _told = fs.state.trace.as_ref().map(|trace| {
        let place = |place: &Place<'r>| (place.directory.ino(), place.name);
        trace.begin("rename", place(&from), Some(place(&to)))
    });
    let rename = Rename { files, from, to, flags };
    let mut known = Known::default();
    let replaced = loop {
        match rename.attempt(&known)? {
            Attempt::Done(replaced) => break replaced,
            Attempt::Again(found) => known = found,
        }
        // This may take long, so no lock is held. The checks in the handle catch changes made meanwhile.
        if let Some(replaced) = &known.replaced {
            files.check_frees_all(replaced)?;
        }
    };
    drop(known);
    replaced.map_or(Ok(()), |replaced| entry::end_use(&files, replaced))
}

impl Rename<'_> {
    fn state(&self) -> &Ext4State {
        self.files.state
    }

    /// Whether the two directories are different ones.
    fn across(&self) -> bool {
        self.from.directory.ino() != self.to.directory.ino()
    }

    fn exchanges(&self) -> bool {
        self.flags.contains(RenameFlags::EXCHANGE)
    }

    /// Renames if enough is known for what the names lead to. Errors come in the order in which Linux finds them.
    fn attempt(&self, known: &Known) -> Result<Attempt> {
        let (from, to) = (self.from.directory, self.to.directory);
        // Before the names. Of directories that turn out to have no name the answers are worth nothing.
        let moves = (self.across() && known.needs_moves()).then(|| Moves::exclude(self.state()));
        let inside = |inner: &Inode, outer: &Option<Arc<Inode>>| match (&moves, outer) {
            (Some(moves), Some(outer)) => moves.is_inside(inner, outer),
            _ => Ok(false),
        };
        let (into_itself, over_parent) = (inside(to, &known.old), inside(from, &known.new));
        let all = [from, to].into_iter().chain(&known.old).chain(&known.new);
        let names = Directories::several(all.map(|directory| &**directory));
        let (old, new) = self.look_up()?;
        let old = Named::new(&self.from, &old.0, old.1.as_deref());
        let new = new.as_ref().map(|new| Named::new(&self.to, &new.0, new.1.as_deref()));
        self.check_slashes(&old, new.as_ref())?;
        if new.as_ref().is_some_and(|new| new.inode.ino() == old.inode.ino()) {
            return Ok(Attempt::Done(None));
        }
        let needed = self.needed(&old, new.as_ref());
        let is_known = |needed: &Option<Arc<Inode>>, known: &Option<Arc<Inode>>| {
            needed
                .as_ref()
                .is_none_or(|needed| known.as_ref().is_some_and(|known| Arc::ptr_eq(needed, known)))
        };
        if !is_known(&needed.old, &known.old) || !is_known(&needed.new, &known.new) {
            return Ok(Attempt::Again(Known { replaced: None, ..needed }));
        }
        if needed.old.is_some() && into_itself? {
            return Err(Error::Invalid("a directory cannot be moved into itself".into()));
        }
        if needed.new.is_some() && over_parent? {
            let what = "a directory cannot be exchanged with what is inside it";
            return Err(if self.exchanges() { Error::Invalid(what.into()) } else { Error::NotEmpty });
        }
        self.check(&old, new.as_ref())?;
        if !is_known(&needed.replaced, &known.replaced) {
            return Ok(Attempt::Again(needed));
        }
        match (&new, self.exchanges()) {
            (Some(new), true) => self.exchange(&names, &old, new)?,
            (new, _) => self.replace(&names, &old, new.as_ref())?,
        }
        if let Some(trace) = &self.state().trace {
            trace.learn(to.ino(), self.to.name, old.inode.ino());
            if let Some(new) = new.as_ref().filter(|_| self.exchanges()) {
                trace.learn(from.ino(), self.from.name, new.inode.ino());
            }
        }
        Ok(Attempt::Done(new.filter(|_| !self.exchanges()).map(|new| new.inode.clone())))
    }

    /// Looks both names up. The old one exists, and the new one if it must.
    fn look_up(&self) -> Result<(Reached, Last)> {
        let state = self.state();
        let find = |place: &Place<'_>| -> Result<Last> {
            // Its names are of no use any longer.
            if place.directory.is_removed() {
                return Err(Error::NotFound);
            }
            dir::name::check(place.name)?;
            let found = dir::look_up(state, place.directory, place.name)?;
            found.map(|found| Ok((state.inode(found.ino)?, found.spelling))).transpose()
        };
        let old = find(&self.from)?.ok_or(Error::NotFound)?;
        let new = find(&self.to)?;
        match &new {
            Some(_) if self.flags.contains(RenameFlags::NOREPLACE) => Err(Error::Exists),
            None if self.exchanges() => Err(Error::NotFound),
            _ => Ok((old, new)),
        }
    }

    /// Only directories may be named with a slash at the end.
    fn check_slashes(&self, old: &Named<'_>, new: Option<&Named<'_>>) -> Result<()> {
        let wrong = match new {
            Some(new) if self.exchanges() => {
                self.to.slash && !new.is_directory() || self.from.slash && !old.is_directory()
            }
            _ => (self.from.slash || self.to.slash) && !old.is_directory(),
        };
        if wrong { Err(Error::NotDirectory) } else { Ok(()) }
    }

    /// What has to be known to rename these.
    fn needed(&self, old: &Named<'_>, new: Option<&Named<'_>>) -> Known {
        let keep = |named: &Named<'_>, so: bool| so.then(|| named.inode.clone());
        let (across, replaces) = (self.across(), !self.exchanges());
        Known {
            old: keep(old, across && old.is_directory()),
            new: new.and_then(|new| keep(new, (across || replaces) && new.is_directory())),
            replaced: new
                .and_then(|new| keep(new, replaces && (new.is_directory() || new.inode.disk().links == 1))),
        }
    }

    /// Checks flags, types and projects.
    fn check(&self, old: &Named<'_>, new: Option<&Named<'_>>) -> Result<()> {
        let state = self.state();
        create::check_directory(state, self.from.directory)?;
        unlink::check_protection(state, self.from.directory, old.inode)?;
        create::check_directory(state, self.to.directory)?;
        if let Some(new) = new {
            unlink::check_protection(state, self.to.directory, new.inode)?;
            match (old.is_directory(), new.is_directory()) {
                (true, false) if !self.exchanges() => return Err(Error::NotDirectory),
                (false, true) if !self.exchanges() => return Err(Error::IsDirectory),
                _ => {}
            }
        }
        link::check_project(state, self.to.directory, old.inode)?;
        match new {
            Some(new) if self.exchanges() => link::check_project(state, self.from.directory, new.inode),
            _ => Ok(()),
        }
    }

    /// Moves the name, replacing what has the new one.
    fn replace(&self, names: &Directories<'_>, old: &Named<'_>, new: Option<&Named<'_>>) -> Result<()> {
        let state = self.state();
        let whiteout = match self.flags.contains(RenameFlags::WHITEOUT) {
            true => {
                let device = Contents::Special(FileKind::CharDevice);
                Some(create::describe(state, old.directory, &NewFile::of(&Caller::root(), device, 0))?)
            }
            false => None,
        };
        while !self.files.with_room(|| self.replace_once(names, old, new, whiteout.as_ref()))? {
            state.commit_all()?;
        }
        Ok(())
    }

    /// One handle. `false`: nothing was done, and a commit has to come first.
    fn replace_once(
        &self,
        names: &Directories<'_>,
        old: &Named<'_>,
        new: Option<&Named<'_>>,
        whiteout: Option<&(NewInode, Option<InheritedAcl>)>,
    ) -> Result<bool> {
        let (files, from, to) = (&self.files, old.directory, self.to.directory);
        let inodes: Vec<&Arc<Inode>> = [old.inode].into_iter().chain(new.map(|new| new.inode)).collect();
        let makes = u32::from(whiteout.is_some());
        let plan = EntryScope { names: &[from, to], inodes: &inodes, makes };
        entry::change(files, names, &plan, |step| {
            if whiteout.is_some() && create::awaits_commit(files.state) {
                return Ok(Ok(false));
            }
            if let Err(refused) = self.prepare_to_replace(step, old, new) {
                return Ok(Err(refused));
            }
            let made =
                whiteout.map(|(fields, _)| create::make(step.blocks, files, from, None, fields)).transpose();
            let mut made = match made {
                Err(full) if full.is_full() => return Ok(Err(full)),
                made => made?,
            };
            let given = match (&mut made, whiteout) {
                (Some(made), Some((_, acl))) => files.inherit_acl(step.blocks, made, acl.as_ref()),
                _ => Ok(()),
            };
            let (ino, kind) = (old.inode.ino(), old.inode.kind());
            let put = given.and_then(|()| match new {
                None => step.insert(to, self.to.name, ino, kind),
                Some(new) => step.lead(to, new.name, ino, kind),
            });
            match put {
                Err(error) if create::is_refusal(&error) => {
                    made.map_or(Ok(()), |made| self.unmake(step, made))?;
                    return Ok(Err(error));
                }
                put => put?,
            }
            match made {
                Some(made) => step.lead(from, old.name, made.ino, FileKind::CharDevice)?,
                None => step.remove(from, old.name, ino)?,
            }
            self.move_parent(step, old, to)?;
            Ok(Ok(true))
        })
    }

    /// Everything that can refuse a rename. Changes drafts only.
    fn prepare_to_replace(
        &self,
        step: &mut Step<'_, '_>,
        old: &Named<'_>,
        new: Option<&Named<'_>>,
    ) -> Result<()> {
        self.touch(step, old)?;
        if let Some(new) = new {
            self.touch(step, new)?;
            if !new.is_directory() {
                step.unlink(new.inode)?;
            } else if step.is_empty(new.inode)? {
                step.unlink_directory(new.inode)?;
            } else {
                return Err(Error::NotEmpty);
            }
            let draft = step.look(new.inode)?;
            if draft.disk.links == 0 {
                // Another name may have been removed since the check.
                check_frees(step.blocks, draft)?;
            }
        }
        if old.is_directory() && (self.across() || new.is_some()) {
            step.count_subdirectory(old.directory, false)?;
            if new.is_none() {
                step.count_subdirectory(self.to.directory, true)?;
            }
        }
        Ok(())
    }

    /// One handle: both names lead to what the other one led to.
    fn exchange(&self, names: &Directories<'_>, old: &Named<'_>, new: &Named<'_>) -> Result<()> {
        let plan =
            EntryScope { names: &[old.directory, new.directory], inodes: &[old.inode, new.inode], makes: 0 };
        entry::change(&self.files, names, &plan, |step| {
            if let Err(refused) = self.prepare_to_exchange(step, old, new) {
                return Ok(Err(refused));
            }
            match step.lead(old.directory, old.name, new.inode.ino(), new.inode.kind()) {
                Err(error) if create::is_refusal(&error) => return Ok(Err(error)),
                led => led?,
            }
            step.lead(new.directory, new.name, old.inode.ino(), old.inode.kind())?;
            self.move_parent(step, old, new.directory)?;
            self.move_parent(step, new, old.directory)?;
            Ok(Ok(()))
        })
    }

    /// Everything that can refuse an exchange. Changes drafts only.
    fn prepare_to_exchange(&self, step: &mut Step<'_, '_>, old: &Named<'_>, new: &Named<'_>) -> Result<()> {
        self.touch(step, old)?;
        self.touch(step, new)?;
        if self.across() && old.is_directory() != new.is_directory() {
            step.count_subdirectory(old.directory, new.is_directory())?;
            step.count_subdirectory(new.directory, old.is_directory())?;
        }
        Ok(())
    }

    /// Stamps what a name leads to, and makes sure that the edits of the name, and of `..` if it moves, find no damage.
    fn touch(&self, step: &mut Step<'_, '_>, named: &Named<'_>) -> Result<()> {
        let ino = named.inode.ino();
        if step.find(named.directory, named.name)? != Some(ino) {
            return Err(self
                .state()
                .corrupt_inode(named.directory.ino(), "a name is found in one of two ways"));
        }
        if self.across()
            && named.is_directory()
            && step.find(named.inode, b"..")? != Some(named.directory.ino())
        {
            return Err(self.state().corrupt_inode(ino, "its `..` does not lead to the directory it is in"));
        }
        let now = step.now();
        step.draft(named.inode)?.stamp(now, false);
        Ok(())
    }

    /// Of a directory that moves to another parent.
    fn move_parent(&self, step: &mut Step<'_, '_>, named: &Named<'_>, to: &Inode) -> Result<()> {
        match self.across() && named.is_directory() {
            true => step.lead_parent(named.inode, to.ino()),
            false => Ok(()),
        }
    }

    fn unmake(&self, step: &mut Step<'_, '_>, mut made: Draft) -> Result<()> {
        let now = step.now();
        made.disk.links = 0;
        let values = Lists::load(step.blocks, &made)?.values_before();
        if values == 0 && self.files.release_attribute_block(step.blocks, &mut made)? {
            return self.files.space.free_inode(step.blocks, &mut made, now);
        }
        // Values of its attributes must be dropped, in other handles.
        made.store(step.blocks)?;
        self.files.add_orphan(step.blocks, made.ino)?;
        self.state().leavers().add(made.ino);
        Ok(())
    }
}
