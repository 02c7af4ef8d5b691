//! Checks whole hash trees: every block of an indexed directory is in its tree once, and contains only names in its
//! hash range.
//!
//! Without checksums a block of entries whose names were all removed is one free record, and a node begins with one to
//! look empty to readers without hash trees. The depth at which the tree reaches a block tells which of the two it is.

use crate::kinds;
use crate::report::Findings;
use crate::scan::Directory;
use uext4_ondisk::{Corrupt, Ino, Lblk, Place};

/// The hashes of a block of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Leaf {
    pub ino: u32,
    pub lblk: u32,
    /// `u32::MAX` if there is no name.
    pub least: u32,
    pub most: u32,
}

/// A root, or a block that begins like a node.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub ino: u32,
    pub lblk: u32,
    /// Of a root: levels of nodes below it.
    pub levels: u8,
    /// Whether it may as well be a block of entries without any.
    pub may_be_leaf: bool,
    /// Hashes and children, or what is wrong with them.
    pub entries: Result<Vec<(u32, u32)>, Box<Corrupt>>,
}

/// The largest hash of a name.
const HASH_MAX: u32 = 0xffff_fffe;

/// Checks the trees of all indexed directories. `leaves` and `nodes` are those of all of them.
pub(crate) fn check(
    directories: &[Directory],
    leaves: &mut [Leaf],
    nodes: &mut [Node],
    findings: &mut Findings,
) {
    leaves.sort_unstable();
    nodes.sort_unstable_by_key(|node| (node.ino, node.lblk));
    let (mut leaves, mut nodes) = (&*leaves, &*nodes);
    for directory in directories.iter().filter(|directory| directory.indexed) {
        let own_leaves = take(&mut leaves, |leaf| leaf.ino, directory.ino);
        let own_nodes = take(&mut nodes, |node| node.ino, directory.ino);
        // Without a root there is nothing to compare with, and that was told.
        if let [root, ..] = own_nodes
            && root.lblk == 0
        {
            let tree = Tree {
                ino: Ino(directory.ino),
                leaves: own_leaves,
                nodes: own_nodes,
                leaf_seen: vec![false; own_leaves.len()],
                node_seen: vec![false; own_nodes.len()],
            };
            tree.check(root, findings);
        }
    }
}

/// The part of `all` that belongs to `ino`; what belongs to smaller numbers is dropped.
fn take<'a, T>(all: &mut &'a [T], ino_of: impl Fn(&T) -> u32, ino: u32) -> &'a [T] {
    let start = all.partition_point(|item| ino_of(item) < ino);
    let rest = &all[start..];
    let (own, behind) = rest.split_at(rest.partition_point(|item| ino_of(item) == ino));
    *all = behind;
    own
}

struct Tree<'a> {
    ino: Ino,
    leaves: &'a [Leaf],
    nodes: &'a [Node],
    leaf_seen: Vec<bool>,
    node_seen: Vec<bool>,
}

/// A node to look into: its index, the hashes its names may have, levels of nodes below it.
struct Step {
    node: usize,
    least: u32,
    most: u32,
    levels: u8,
}

impl Tree<'_> {
    fn place(&self, lblk: u32) -> Place {
        Place { inode: Some(self.ino), lblk: Some(Lblk(lblk)), ..Place::default() }
    }

    fn check(mut self, root: &Node, findings: &mut Findings) {
        self.node_seen[0] = true;
        // Every node is looked into once: the second way to it is a finding, not a way.
        let mut waiting = vec![Step { node: 0, least: 0, most: HASH_MAX, levels: root.levels }];
        while let Some(step) = waiting.pop() {
            self.node(&step, &mut waiting, findings);
        }
        let lost_leaves = self.leaves.iter().zip(&self.leaf_seen).filter(|(_, seen)| !**seen);
        let lost_nodes = self.nodes.iter().zip(&self.node_seen).filter(|(_, seen)| !**seen);
        let lost = lost_leaves.map(|(leaf, _)| leaf.lblk).chain(lost_nodes.map(|(node, _)| node.lblk));
        for lblk in lost {
            findings.add(&kinds::HTREE_UNREFERENCED, self.place(lblk), "the tree does not lead here");
        }
    }

    fn node(&mut self, step: &Step, waiting: &mut Vec<Step>, findings: &mut Findings) {
        let nodes = self.nodes;
        let node = &nodes[step.node];
        let entries = match &node.entries {
            Ok(entries) => entries,
            Err(fault) => return findings.corrupt(&kinds::HTREE_NODE, self.place(node.lblk), fault),
        };
        let mut previous = 0;
        for (position, &(hash, child)) in entries.iter().enumerate() {
            let least = if position == 0 { step.least } else { hash & !1 };
            let next = entries.get(position + 1).map(|(hash, _)| hash & !1);
            let most = next.unwrap_or(step.most).min(step.most);
            let outside = position > 0 && (least < step.least || least > step.most);
            if hash < previous || outside {
                let text = format_args!("entry {position} has the hash {hash:#010x}");
                findings.add(&kinds::HTREE_ORDER, self.place(node.lblk), text);
            }
            previous = hash;
            match step.levels.checked_sub(1) {
                None => self.leaf(node.lblk, child, least, most, findings),
                Some(levels) => {
                    let found = nodes.binary_search_by_key(&child, |node| node.lblk);
                    match found.ok().filter(|index| *index != 0) {
                        None => self.wrong_child(node.lblk, child, "no node of the tree", findings),
                        Some(index) if self.node_seen[index] => self.twice(child, findings),
                        Some(index) => {
                            self.node_seen[index] = true;
                            waiting.push(Step { node: index, least, most, levels });
                        }
                    }
                }
            }
        }
    }

    fn leaf(&mut self, parent: u32, child: u32, least: u32, most: u32, findings: &mut Findings) {
        let Ok(index) = self.leaves.binary_search_by_key(&child, |leaf| leaf.lblk) else {
            return self.empty_leaf(parent, child, findings);
        };
        if self.leaf_seen[index] {
            return self.twice(child, findings);
        }
        self.leaf_seen[index] = true;
        let leaf = &self.leaves[index];
        if leaf.least <= leaf.most && (leaf.least < least || leaf.most > most) {
            let (from, to) = (leaf.least, leaf.most);
            let text = format_args!(
                "hashes {from:#010x} to {to:#010x}, the tree says {least:#010x} to {most:#010x}"
            );
            findings.add(&kinds::HTREE_HASH, self.place(child), text);
        }
    }

    /// A child of the last level that begins like a node.
    fn empty_leaf(&mut self, parent: u32, child: u32, findings: &mut Findings) {
        let found = self.nodes.binary_search_by_key(&child, |node| node.lblk);
        match found.ok().filter(|index| self.nodes[*index].may_be_leaf) {
            None => self.wrong_child(parent, child, "no block of entries", findings),
            Some(index) if self.node_seen[index] => self.twice(child, findings),
            Some(index) => self.node_seen[index] = true,
        }
    }

    fn wrong_child(&self, parent: u32, child: u32, what: &str, findings: &mut Findings) {
        let text = format_args!("logical block {child} is {what}");
        findings.add(&kinds::HTREE_CHILD, self.place(parent), text);
    }

    fn twice(&self, child: u32, findings: &mut Findings) {
        findings.add(&kinds::HTREE_TWICE, self.place(child), "the tree leads here twice");
    }
}
