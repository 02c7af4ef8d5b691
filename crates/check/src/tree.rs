//! Passes 3 and 4: every directory is reachable from the root, and every inode has the right link count.

use crate::kinds;
use crate::report::Findings;
use crate::scan::Directory;
use crate::shared::{MARK_BROKEN, MARK_MAGIC, MARK_ORPHAN, MARK_RESERVED, MARK_VALUE, Shared};
use std::collections::HashSet;
use uext4_ondisk::ext4::FileType;
use uext4_ondisk::{Ino, Place};

/// Names of a directory above which its link count says 1: "too many to count".
const LINKS_MAX: u32 = 65_000;

fn at(ino: u32) -> Place {
    Place { inode: Some(Ino(ino)), ..Place::default() }
}

/// Whether a directory is known to reach the root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Unknown,
    /// On the path being walked.
    Walked,
    Connected,
    Lost,
}

/// Checks that all directories are reachable. `parents`: the targets of `..`; `children`: which directory names which.
/// Returns the topmost unreachable directories.
pub(crate) fn check_connections(
    directories: &[Directory],
    parents: &mut [(u32, u32)],
    children: &mut [(u32, u32)],
    findings: &mut Findings,
) -> HashSet<u32> {
    parents.sort_unstable();
    children.sort_unstable();
    let find = |ino: u32| directories.binary_search_by_key(&ino, |dir| dir.ino).ok();
    let said = |ino: u32| {
        let index = parents.partition_point(|(child, _)| *child < ino);
        parents.get(index).filter(|(child, _)| *child == ino).map(|(_, parent)| *parent)
    };
    let mut parent_of: Vec<Option<u32>> = vec![None; directories.len()];
    for names in children.chunk_by(|one, other| one.0 == other.0) {
        let ino = names[0].0;
        let Some(index) = find(ino) else { continue };
        // The name confirmed by `..` is the right one.
        let confirmed = names.iter().map(|(_, parent)| *parent).find(|parent| said(ino) == Some(*parent));
        parent_of[index] = confirmed.or(Some(names[0].1));
        if names.len() > 1 {
            let text = format_args!(
                "{} directories name it, the last is inode {}",
                names.len(),
                names[names.len() - 1].1
            );
            findings.add(&kinds::DIR_LINKED, at(ino), text);
        }
    }
    for (index, directory) in directories.iter().enumerate() {
        let parent = if directory.ino == Ino::ROOT.get() { Some(directory.ino) } else { parent_of[index] };
        if let (Some(said), Some(parent)) = (said(directory.ino), parent)
            && said != parent
        {
            let text = format_args!("`..` is inode {said}, but inode {parent} names this directory");
            findings.add(&kinds::DIR_PARENT, at(directory.ino), text);
        }
    }
    follow(directories, &parent_of, find, findings)
}

fn follow(
    directories: &[Directory],
    parent_of: &[Option<u32>],
    find: impl Fn(u32) -> Option<usize>,
    findings: &mut Findings,
) -> HashSet<u32> {
    let mut ways = vec![Way::Unknown; directories.len()];
    let mut lost = HashSet::new();
    let Some(root) = find(Ino::ROOT.get()) else {
        findings.add(&kinds::DIR_ROOT, at(Ino::ROOT.get()), "there is no root directory");
        return lost;
    };
    ways[root] = Way::Connected;
    let mut path = Vec::new();
    for start in 0..directories.len() {
        let mut index = start;
        let way = loop {
            match ways[index] {
                Way::Unknown => {}
                Way::Walked => {
                    let ino = directories[index].ino;
                    findings.add(&kinds::DIR_UNCONNECTED, at(ino), "its parents form a cycle");
                    lost.insert(ino);
                    break Way::Lost;
                }
                known => break known,
            }
            ways[index] = Way::Walked;
            path.push(index);
            match parent_of[index].and_then(&find) {
                Some(parent) => index = parent,
                None => {
                    let ino = directories[index].ino;
                    findings.add(&kinds::DIR_UNCONNECTED, at(ino), "no directory names it");
                    lost.insert(ino);
                    break Way::Lost;
                }
            }
        };
        path.drain(..).for_each(|index| ways[index] = way);
    }
    lost
}

/// Compares link counts with the entries that were counted. `directories`: sorted by number. Returns notes.
pub(crate) fn check_links(
    shared: &Shared<'_>,
    directories: &[Directory],
    lost: &HashSet<u32>,
    findings: &mut Findings,
) -> Vec<String> {
    let indexed = |ino: u32| {
        let found = directories.binary_search_by_key(&ino, |directory| directory.ino);
        found.is_ok_and(|at| directories[at].indexed)
    };
    let (mut uncounted, mut orphans) = (0u64, 0u64);
    for (ino, slot) in shared.inodes.iter() {
        let marks = slot.marks();
        orphans += u64::from(marks & MARK_ORPHAN != 0);
        if marks & (MARK_RESERVED | MARK_BROKEN | MARK_MAGIC) != 0 || lost.contains(&ino) {
            continue;
        }
        if marks & MARK_VALUE != 0 {
            // Names are attributes here, and the link count is 1 however many there are.
            // One without references waits for deletion, as an orphan.
            if slot.entries() == 0 && (slot.links() > 0 || marks & MARK_ORPHAN == 0) {
                findings.add(&kinds::INODE_UNATTACHED, at(ino), "no attribute has this value");
            }
            continue;
        }
        let (links, found) = (u32::from(slot.links()), slot.entries());
        let directory = slot.file_type() == Some(FileType::Directory);
        if links == 0 {
            // It waits for deletion.
            if found > 0 {
                let text = format_args!("no links, but {found} names: it will be deleted");
                findings.add(&kinds::INODE_LINKS, at(ino), text);
            }
            continue;
        }
        if found == 0 {
            findings.add(&kinds::INODE_UNATTACHED, at(ino), format_args!("{links} links, but no name"));
            continue;
        }
        let expected = if directory && found > LINKS_MAX { 1 } else { found };
        if links == 1 && directory && found > 1 && (found > LINKS_MAX || indexed(ino)) {
            // The count overflowed once: the kernel never counts such a directory again. It stops counting only
            // directories with a hash tree.
            uncounted += u64::from(found <= LINKS_MAX);
        } else if links != expected {
            findings.add(&kinds::INODE_LINKS, at(ino), format_args!("{links} links, but {found} names"));
        }
    }
    let mut notes = Vec::new();
    if uncounted > 0 {
        notes.push(format!("{uncounted} directories do not count their links (link count 1)"));
    }
    if orphans > 0 {
        notes.push(format!("{orphans} orphans wait for deletion or truncation at the next mount"));
    }
    notes
}
