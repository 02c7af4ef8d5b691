//! Follows an archive's path through the tree.
//!
//! A path is taken apart once, and every component is looked up in the tree that is gathered. A link is never followed
//! outside: `..` and absolute targets stay below the root of the tree, as in a root file system that is mounted there.

use super::draft::{Body, Draft, Link, NodeId, ROOT, Spot};
use super::error::GatherCause;

/// Bytes of a path, at most. Linux has 4096 in one call, but archives may have been made in pieces.
pub const PATH_MAX: usize = 1 << 16;
/// Components of a path, at most: one entry makes so many directories.
pub const DEPTH_MAX: usize = 4096;
/// Bytes of a name, at most.
const NAME_MAX: usize = 255;
/// Components of a path and of all links on it, at most.
const STEPS_MAX: usize = 4 * DEPTH_MAX;
/// Symbolic links followed on one path (the kernel's `MAXSYMLINKS`).
const LINKS_MAX: usize = 40;

/// What is done about symbolic links on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Through {
    /// A path through one is refused.
    Nothing,
    /// They are followed within the tree.
    Links,
}

/// The components of an archive's path, without leading `/` and without `.`; none: the root.
pub fn components(path: &[u8]) -> Result<Vec<&[u8]>, GatherCause> {
    if path.len() > PATH_MAX {
        let (size, max) = (path.len() as u64, PATH_MAX as u64);
        return Err(GatherCause::TooLarge { what: "path", size, max });
    }
    let mut components = Vec::new();
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(GatherCause::Outside),
            name if name.len() > NAME_MAX || name.contains(&0) => {
                return Err(GatherCause::Name("a name has 1 to 255 bytes and no NUL"));
            }
            name => components.push(name),
        }
    }
    if components.len() > DEPTH_MAX {
        return Err(GatherCause::Name("the path has more than 4096 components"));
    }
    Ok(components)
}

/// A way through the tree.
struct Way {
    /// The directories below the root to where it is.
    directories: Vec<NodeId>,
    /// What is still to come, the next one last.
    pending: Vec<Vec<u8>>,
    links: usize,
    steps: usize,
    through: Through,
}

impl Way {
    fn new(components: &[&[u8]], through: Through) -> Way {
        let pending = components.iter().rev().map(|name| name.to_vec()).collect();
        Way { directories: Vec::new(), pending, links: 0, steps: 0, through }
    }

    /// The next name. What a link's target has of `.` and `..` is done: above the root is the root.
    fn next(&mut self) -> Result<Option<Vec<u8>>, GatherCause> {
        while let Some(name) = self.pending.pop() {
            self.steps += 1;
            if self.steps > STEPS_MAX {
                return Err(GatherCause::Name("the path and its links have more than 16384 components"));
            }
            match &name[..] {
                b"." => {}
                b".." => drop(self.directories.pop()),
                _ => return Ok(Some(name)),
            }
        }
        Ok(None)
    }

    fn here(&self) -> NodeId {
        self.directories.last().copied().unwrap_or(ROOT)
    }

    /// Continues at a symbolic link's target.
    fn follow(&mut self, name: &[u8], target: &[u8]) -> Result<(), GatherCause> {
        if self.through == Through::Nothing {
            return Err(GatherCause::ThroughLink(name.to_vec()));
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(GatherCause::TooManyLinks(LINKS_MAX));
        }
        if target.first() == Some(&b'/') {
            self.directories.clear();
        }
        let steps = target.split(|&byte| byte == b'/').rev().filter(|name| !name.is_empty());
        self.pending.extend(steps.map(<[u8]>::to_vec));
        Ok(())
    }
}

/// What a step leads to.
enum Step {
    Directory(NodeId),
    Target(Box<[u8]>),
    Other,
    Nothing,
}

fn step(draft: &Draft, link: Option<Link>) -> Step {
    match link.map(|link| (link.node, &draft.node(link.node).body)) {
        Some((node, Body::Directory(_))) => Step::Directory(node),
        Some((_, Body::Symlink(target))) => Step::Target(target.clone()),
        Some(_) => Step::Other,
        None => Step::Nothing,
    }
}

/// The directory at the end of these components. Those that are missing are made, and all are marked as used by the
/// current layer.
pub fn enter(draft: &mut Draft, components: &[&[u8]], through: Through) -> Result<NodeId, GatherCause> {
    let mut way = Way::new(components, through);
    while let Some(name) = way.next()? {
        let here = way.here();
        let link = draft.find(here, &name);
        let directory = match step(draft, link) {
            Step::Directory(directory) => directory,
            Step::Target(target) => {
                way.follow(&name, &target)?;
                continue;
            }
            // What a lower layer has is replaced: the directory itself may come later.
            Step::Other
                if through == Through::Links && link.is_some_and(|link| link.layer < draft.layer()) =>
            {
                draft.remove(here, &name);
                draft.make(here, &name)?
            }
            Step::Other => return Err(GatherCause::NotDirectory(name)),
            Step::Nothing => draft.make(here, check(&name)?)?,
        };
        draft.mark(here, &name);
        way.directories.push(directory);
    }
    Ok(way.here())
}

/// The directory at the end of these components, if there is one. Changes nothing.
pub fn find(draft: &Draft, components: &[&[u8]], through: Through) -> Result<Option<NodeId>, GatherCause> {
    let mut way = Way::new(components, through);
    while let Some(name) = way.next()? {
        match step(draft, draft.find(way.here(), &name)) {
            Step::Directory(directory) => way.directories.push(directory),
            Step::Target(target) => way.follow(&name, &target)?,
            Step::Other | Step::Nothing => return Ok(None),
        }
    }
    Ok(Some(way.here()))
}

/// Where an entry goes: in a directory that exists or is made. `None`: it is the root.
pub fn locate(
    draft: &mut Draft,
    components: &[&[u8]],
    through: Through,
) -> Result<Option<Spot>, GatherCause> {
    let Some((name, parents)) = components.split_last() else { return Ok(None) };
    let directory = enter(draft, parents, through)?;
    Ok(Some(Spot { directory, name: (*name).into() }))
}

/// A name from a link's target, which may be one that no file can have.
fn check(name: &[u8]) -> Result<&[u8], GatherCause> {
    if name.len() > NAME_MAX {
        return Err(GatherCause::Name("a name has 1 to 255 bytes and no NUL"));
    }
    Ok(name)
}
