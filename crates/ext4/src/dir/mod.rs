//! Directories: look-up by hash tree or by scanning, listing, and adding and removing names.
//!
//! | file | what |
//! |---|---|
//! | `rows.rs` | a directory as blocks of entries, and the search for a name in them |
//! | `htree.rs` | paths through a hash tree |
//! | `name.rs` | how names are compared |
//! | `row.rs` | the entries of one block |
//! | `edit.rs` | adding, removing and redirecting names |
//! | `map.rs` | locates the blocks, and adds more |
//! | `grow.rs` | splits full blocks, grows trees |
//! | `list.rs` | lists a directory in pieces |
//! | `cookie.rs` | positions of a listing, which names keep |
//! | `inline.rs` | inline directories |

mod cookie;
#[allow(dead_code)] // The operations on names use the rest of it next.
pub(crate) mod edit;
mod grow;
mod htree;
pub(crate) mod inline;
pub(crate) mod list;
pub(crate) mod map;
pub(crate) mod name;
mod row;
mod rows;
#[cfg(test)]
#[path = "../../tests/inside/dir_edit/mod.rs"]
mod tests;

pub use cookie::DirCookie;

use crate::ground::error::{Error, Result};
use crate::inode::Ext4State;
use crate::inode::Inode;
use crate::inode::metadata::FileKind;
use crate::map::metadata_block;
use name::Wanted;
use rows::{Rows, Shape};
use uext4_ondisk::ext4::{CaseFolder, HashVersion, InodeFlags, Superblock, dir_hash};
use uext4_ondisk::{Ino, Pblk};

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name: 1 to 255 bytes without `/`, not necessarily UTF-8.
    pub name: Vec<u8>,
    /// The inode it names.
    pub ino: Ino,
    /// Its type, if the directory stores types.
    pub kind: Option<FileKind>,
    /// Continues a listing after this entry ([`ReadDir::seek`](crate::ReadDir::seek)).
    pub cookie: DirCookie,
}

/// The hash of a name by which Linux spreads the directories below the root: always this one, whatever trees use.
pub(crate) fn spread_hash(state: &Ext4State, parent: &Inode, name: &[u8]) -> u32 {
    let mut folder = parent.disk().flags.contains(InodeFlags::CASEFOLD).then(CaseFolder::new);
    let form = folder.as_mut().and_then(|folder| folder.fold(name)).unwrap_or(name);
    let hash = dir_hash(form, HashVersion::HalfMd4, &state.superblock.hash.seed);
    hash.map_or(0, |hash| hash.major)
}

/// A directory being read.
pub(crate) struct Directory<'a> {
    state: &'a Ext4State,
    inode: &'a Inode,
    shape: Shape,
}

impl<'a> Directory<'a> {
    pub(crate) fn open(state: &'a Ext4State, inode: &'a Inode) -> Result<Self> {
        if inode.kind() != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        inode.check_contents()?;
        let shape = Shape::of(&state.superblock, inode.ino(), &inode.disk())?;
        Ok(Directory { state, inode, shape })
    }

    /// How many blocks it has.
    pub(crate) fn blocks(&self) -> u32 {
        self.shape.blocks
    }

    /// Calls `each` for the entries of one block until it returns `Some`.
    pub(crate) fn scan<T>(
        &self,
        number: u32,
        each: impl FnMut(&uext4_ondisk::ext4::DirEntry<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        self.block(number, |block| block.scan(each))
    }
}

impl Rows for Directory<'_> {
    const EDITS: bool = false;

    fn superblock(&self) -> &Superblock {
        &self.state.superblock
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn bytes<T>(
        &self,
        number: u32,
        verify: impl FnOnce(Pblk, &[u8]) -> Result<()>,
        look: impl FnOnce(Pblk, &[u8]) -> Result<T>,
    ) -> Result<T> {
        let physical = metadata_block(self.state, self.inode, number)?;
        let physical = physical.ok_or_else(|| rows::missing(self.inode.ino(), number, "not allocated"))?;
        let place = Pblk(physical);
        look(place, &self.state.cache.get_or_verify(physical, |bytes| verify(place, bytes))?)
    }
}

/// Checks that an inode is a directory that can be read.
///
/// # Errors
/// [`Error::NotDirectory`], [`Error::Incompatible`] if it is encrypted, [`Error::Corrupt`], [`Error::CorruptInode`].
pub(crate) fn check(state: &Ext4State, inode: &Inode) -> Result<()> {
    if inline::is_inline(inode) {
        return inline::list(state, inode, |_, _, _| {});
    }
    Directory::open(state, inode).map(drop)
}

/// Whether a directory has no names except `.` and `..`.
///
/// # Errors
/// As of [`check`].
pub(crate) fn is_empty(state: &Ext4State, inode: &Inode) -> Result<bool> {
    if inline::is_inline(inode) {
        let mut names = 0;
        inline::list(state, inode, |_, _, _| names += 1)?;
        return Ok(names <= 2);
    }
    rows::is_empty(&Directory::open(state, inode)?)
}

/// The result of a look-up.
pub(crate) struct Found {
    pub(crate) ino: Ino,
    /// The directory's spelling of the name, if it differs from the one given.
    pub(crate) spelling: Option<Vec<u8>>,
}

/// Finds a name in a directory, whose names are locked: nothing, not even `.`, in one that was removed.
pub(crate) fn look_up(state: &Ext4State, inode: &Inode, name: &[u8]) -> Result<Option<Found>> {
    // A removed directory has no names. Its `..` may lead to a number that was reused.
    if inode.is_removed() {
        return Ok(None);
    }
    if let Some(answer) = state.names.get(inode.directory_id(), name) {
        if let (Some(trace), Some(ino)) = (&state.trace, answer) {
            trace.learn(inode.ino(), name, ino);
        }
        return Ok(answer.map(|ino| Found { ino, spelling: None }));
    }
    let found = search(state, inode, name)?;
    if let (Some(trace), Some(found)) = (&state.trace, &found) {
        trace.learn(inode.ino(), name, found.ino);
    }
    if !inode.disk().flags.contains(InodeFlags::CASEFOLD) {
        state.names.put(inode.directory_id(), name, found.as_ref().map(|found| found.ino));
    }
    Ok(found)
}

fn search(state: &Ext4State, inode: &Inode, name: &[u8]) -> Result<Option<Found>> {
    if inline::is_inline(inode) {
        return inline::look_up(state, inode, name);
    }
    let directory = Directory::open(state, inode)?;
    let mut wanted = Wanted::new(&state.superblock, directory.shape.folds, name)?;
    let found = rows::search(&directory, &mut wanted, 0, |block, wanted, _| match wanted.exact() {
        Some(name) => {
            let found = block.row()?.find(name).map_err(|corrupt| block.corrupt(corrupt))?;
            Ok(found.map(|found| found.inode))
        }
        None => block.scan(|entry| wanted.is(entry).then_some(entry.inode)),
    })?;
    Ok(found.map(|ino| Found { ino, spelling: wanted.spelling }))
}
