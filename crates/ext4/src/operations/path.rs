//! Path walk: from the root through directories and symbolic links.

use super::directories::Directories;
use crate::dir;
use crate::ground::error::{Error, Result};
use crate::ground::state::ROOT;
use crate::inline;
use crate::inode::Ext4State;
use crate::inode::Inode;
use crate::inode::metadata::{FileKind, Metadata};
use crate::map;
use std::borrow::Cow;
use std::ops::{Deref, Range};
use std::sync::Arc;
use uext4_ondisk::Ino;

/// Symbolic links followed on one walk, as Linux (`MAXSYMLINKS`).
const LINKS_MAX: u32 = 40;

/// The directories and names from the root to the walk's position, with links and `..` resolved.
#[derive(Default)]
struct Trail {
    steps: Vec<(Ino, Vec<u8>)>,
}

impl Trail {
    /// Records a step of the walk from directory `from` to `to`. Symbolic links that are followed are not recorded.
    fn step(&mut self, state: &Ext4State, from: Ino, name: Vec<u8>, to: Ino) -> Result<()> {
        if name != b".." {
            self.steps.push((from, name));
            return Ok(());
        }
        // The root's `..` is the root.
        let expected = self.steps.pop().map_or(ROOT, |(parent, _)| parent);
        if expected == to {
            return Ok(());
        }
        let what = format!("`..` leads to inode {to}, but a name in directory {expected} leads here");
        Err(state.corrupt_inode(from, what))
    }
}

/// The absolute path of `path`, without links, `.` and `..`.
pub(crate) fn canonical(state: &Ext4State, path: &[u8]) -> Result<Vec<u8>> {
    let mut trail = Trail::default();
    walk(state, state.root()?, path, true, Some(&mut trail))?;
    if trail.steps.is_empty() {
        return Ok(b"/".to_vec());
    }
    Ok(trail.steps.iter().flat_map(|(_, name)| [b"/", name.as_slice()]).flatten().copied().collect())
}

/// Resolves `path` to its inode.
pub(crate) fn resolve(state: &Ext4State, path: &[u8], follow_last: bool) -> Result<Arc<Inode>> {
    walk(state, state.root()?, path, follow_last, None)
}

/// Attributes of what `path` leads to. An inode that is not in memory is not loaded for them: they come from its
/// record.
pub(crate) fn attributes(state: &Ext4State, path: &[u8], follow_last: bool) -> Result<Metadata> {
    match walk_to::<true>(state, state.root()?, path, follow_last, None)? {
        End::Inode(inode) => Ok(inode.metadata(state)),
        End::Record(metadata) => Ok(*metadata),
    }
}

/// Where a walk is. What it begins at is lent: many threads begin at the root at the same time, and each count of its
/// references would take the cache line from the others.
enum At<'s> {
    Lent(&'s Arc<Inode>),
    Own(Arc<Inode>),
}

impl At<'_> {
    fn into_inode(self) -> Arc<Inode> {
        match self {
            At::Lent(inode) => inode.clone(),
            At::Own(inode) => inode,
        }
    }
}

impl Deref for At<'_> {
    type Target = Arc<Inode>;

    fn deref(&self) -> &Arc<Inode> {
        match self {
            At::Lent(inode) => inode,
            At::Own(inode) => inode,
        }
    }
}

/// Where a walk ends.
enum End {
    Inode(Arc<Inode>),
    /// At an inode that is not in memory.
    Record(Box<Metadata>),
}

/// The inode that a name leads to, and the directory's spelling of the name if that differs.
pub(super) type Reached = (Arc<Inode>, Option<Vec<u8>>);
/// What a last name leads to.
pub(super) type Last = Option<Reached>;

/// Calls `act` at the end of `path`: with the directory, its names locked since the look-up, the last name, and the
/// inode it leads to. If `follow`, a last name that is a symbolic link is followed to the final target.
///
/// # Errors
/// [`Error::IsDirectory`] for a path without a last name; those of resolving it; those of `act`.
pub(super) fn at_last<T>(
    state: &Ext4State,
    path: &[u8],
    follow: bool,
    mut act: impl FnMut(&Arc<Inode>, &Directories<'_>, &[u8], Last) -> Result<T>,
) -> Result<T> {
    let (mut start, mut rest) = (At::Lent(state.root()?), path.to_vec());
    for _ in 0..=LINKS_MAX {
        let (parent, name) = self::parent(state, &start, &rest)?;
        let Some(name) = name else { return Err(Error::IsDirectory) };
        // Locked until the end, so that nobody adds or removes the name in between.
        let names = Directories::one(&parent);
        match dir::look_up(state, &parent, &name)? {
            None if rest.ends_with(b"/") => return Err(Error::IsDirectory),
            None => return act(&parent, &names, &name, None),
            Some(found) => {
                let inode = state.inode(found.ino)?;
                if inode.kind() != FileKind::Symlink || !follow {
                    return act(&parent, &names, &name, Some((inode, found.spelling)));
                }
                rest = read_link(state, &inode)?;
            }
        }
        drop(names);
        start = At::Own(parent);
    }
    Err(Error::TooManyLinks)
}

/// As [`any_parent`], and the name is not too long.
pub(super) fn parent(
    state: &Ext4State,
    start: &Arc<Inode>,
    path: &[u8],
) -> Result<(Arc<Inode>, Option<Vec<u8>>)> {
    let (directory, last) = any_parent(state, start, path)?;
    match &last {
        Some(name) if name.len() > dir::name::MAX => Err(Error::NameTooLong),
        _ => Ok((directory, last)),
    }
}

/// The parent directory of `path`, and its last name. `None` for a path that ends in `.` or `..`, or is the root. Paths
/// start at the root, or in `start` if they have no leading slash.
pub(crate) fn any_parent(
    state: &Ext4State,
    start: &Arc<Inode>,
    path: &[u8],
) -> Result<(Arc<Inode>, Option<Vec<u8>>)> {
    let start = if path.starts_with(b"/") { state.root()? } else { start };
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let slash = path[..end].iter().rposition(|&byte| byte == b'/');
    let (before, last) = path[..end].split_at(slash.map_or(0, |slash| slash + 1));
    let last = Some(last).filter(|name| !matches!(*name, b"" | b"." | b"..")).map(<[u8]>::to_vec);
    let directory = walk(state, start, before, true, None)?;
    match directory.kind() {
        FileKind::Directory => Ok((directory, last)),
        _ => Err(Error::NotDirectory),
    }
}

/// The inode that a name in a directory leads to. Symbolic links are not followed.
///
/// # Errors
/// [`Error::NotFound`]; those of looking it up.
pub(super) fn step(state: &Ext4State, directory: &Inode, name: &[u8]) -> Result<Arc<Inode>> {
    // While the name exists, its inode number cannot be reused.
    let _names = directory.steady_names();
    let found = dir::look_up(state, directory, name)?.ok_or(Error::NotFound)?;
    state.inode(found.ino)
}

fn walk(
    state: &Ext4State,
    start: &Arc<Inode>,
    path: &[u8],
    follow_last: bool,
    trail: Option<&mut Trail>,
) -> Result<Arc<Inode>> {
    match walk_to::<false>(state, start, path, follow_last, trail)? {
        End::Inode(inode) => Ok(inode),
        End::Record(metadata) => state.inode(metadata.ino),
    }
}

/// `RECORD`: the last inode is not loaded if it is not in memory.
#[inline]
fn walk_to<'s, const RECORD: bool>(
    state: &'s Ext4State,
    start: &'s Arc<Inode>,
    path: &[u8],
    follow_last: bool,
    mut trail: Option<&mut Trail>,
) -> Result<End> {
    // The rest of the walk: of the path, or of a link's target and what came after the link.
    let mut rest = Cow::Borrowed(path);
    let (mut current, mut at, mut links) = (At::Lent(start), 0, 0);
    while let Some(component) = next_component(&rest, at) {
        at = component.end;
        let name = &rest[component];
        if current.kind() != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        if name.len() > dir::name::MAX {
            return Err(Error::NameTooLong);
        }
        if name == b"." {
            continue;
        }
        // While the name exists, its inode number cannot be reused.
        let names = current.steady_names();
        let found = dir::look_up(state, &current, name)?.ok_or(Error::NotFound)?;
        let next = match RECORD && at == rest.len() {
            true => match state.known_inode(found.ino)? {
                Some(next) => next,
                None => {
                    let metadata = state.record_metadata(found.ino)?;
                    if metadata.kind != FileKind::Symlink || !follow_last {
                        return Ok(End::Record(Box::new(metadata)));
                    }
                    state.inode(found.ino)?
                }
            },
            false => state.inode(found.ino)?,
        };
        drop(names);
        if next.kind() != FileKind::Symlink || at == rest.len() && !follow_last {
            if let Some(trail) = &mut trail {
                trail.step(
                    state,
                    current.ino(),
                    found.spelling.unwrap_or_else(|| name.to_vec()),
                    next.ino(),
                )?;
            }
            current = At::Own(next);
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let mut target = read_link(state, &next)?;
        if target.starts_with(b"/") {
            current = At::Lent(state.root()?);
            if let Some(trail) = &mut trail {
                trail.steps.clear();
            }
        }
        target.extend_from_slice(&rest[at..]);
        (rest, at) = (Cow::Owned(target), 0);
    }
    // A slash at the end demands a directory.
    if rest.ends_with(b"/") && current.kind() != FileKind::Directory {
        return Err(Error::NotDirectory);
    }
    Ok(End::Inode(current.into_inode()))
}

/// Where the next component of a path is, from byte `at` on.
fn next_component(path: &[u8], at: usize) -> Option<Range<usize>> {
    let start = at + path.get(at..)?.iter().position(|&byte| byte != b'/')?;
    let length = path[start..].iter().position(|&byte| byte == b'/').unwrap_or(path.len() - start);
    Some(start..start + length)
}

/// The target of a symbolic link: in the inode if it is short, else in its first block.
pub(crate) fn read_link(state: &Ext4State, inode: &Inode) -> Result<Vec<u8>> {
    if inode.kind() != FileKind::Symlink {
        return Err(Error::NotSymlink);
    }
    inode.note_access(state);
    if inode.is_inline() {
        return inline::link_target(state, inode);
    }
    inode.check_contents()?;
    if let Some(target) = inode.disk().short_link_target() {
        return Ok(target.to_vec());
    }
    let size = inode.disk().size;
    let block_size = u64::from(state.superblock.geometry.block_size());
    if size == 0 || size > block_size {
        return Err(state.corrupt_inode(inode.ino(), format!("a symbolic link of {size} bytes")));
    }
    let Some(block) = map::metadata_block(state, inode, 0)? else {
        return Err(state.corrupt_inode(inode.ino(), "a symbolic link without its block"));
    };
    let buffer = state.cache.read(block)?;
    Ok(buffer[..size as usize].to_vec())
}
