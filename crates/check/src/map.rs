//! Walks the maps of inodes: every block of extent trees and indirect maps.

use crate::kinds;
use crate::read::Reader;
use crate::report::Findings;
use crate::shared::Shared;
use std::sync::atomic::Ordering;
use uext4::Result;
use uext4_ondisk::ext4::{Extent, ExtentNode, I_BLOCK_SIZE, Inode, NodeLimits, block_capacity};
use uext4_ondisk::{CorruptKind, Ino, Lblk, Pblk, Place};

/// Receives the contents of a map.
pub(crate) trait Sink {
    /// A block of the map itself.
    fn node(&mut self, block: u64);
    /// Data.
    fn extent(&mut self, extent: Extent);
}

/// A walk over the map of one inode.
pub(crate) struct MapWalk<'a, 'd> {
    pub shared: &'a Shared<'d>,
    pub reader: &'a mut Reader<'d>,
    pub findings: &'a mut Findings,
    pub ino: Ino,
    /// Seed of the inode's checksums, if the volume has any.
    pub seed: Option<u32>,
    /// Whether something could not be followed.
    pub broken: bool,
}

/// A child still to be read.
struct Child {
    block: Pblk,
    first: Lblk,
    limits: NodeLimits,
}

impl<'a, 'd> MapWalk<'a, 'd> {
    /// A walk over the map of inode `ino` that verifies no checksums.
    pub(crate) fn new(
        shared: &'a Shared<'d>,
        reader: &'a mut Reader<'d>,
        findings: &'a mut Findings,
        ino: Ino,
    ) -> Self {
        MapWalk { shared, reader, findings, ino, seed: None, broken: false }
    }

    /// The map of `inode`, in logical order.
    pub(crate) fn all(&mut self, inode: &Inode, sink: &mut dyn Sink) -> Result<()> {
        match inode.uses_extents() {
            true => self.extents(&inode.i_block, sink),
            false => self.indirect(&inode.i_block, sink),
        }
    }

    fn place(&self) -> Place {
        Place { inode: Some(self.ino), ..Place::default() }
    }

    fn stop(&mut self) {
        self.broken = true;
        self.shared.maps_incomplete.store(true, Ordering::Relaxed);
    }

    fn may_read(&mut self, block: Pblk) -> bool {
        let allowed = self.shared.take_node();
        if !allowed {
            let place = Place { block: Some(block), ..self.place() };
            self.findings.add(&kinds::MAP_EXCESS, place, "this node is not followed");
            self.stop();
        }
        allowed
    }

    /// The extent tree rooted in an inode, in logical order.
    fn extents(&mut self, i_block: &[u8; I_BLOCK_SIZE], sink: &mut dyn Sink) -> Result<()> {
        let root = match ExtentNode::root(i_block, NodeLimits::root(self.shared.sb)) {
            Ok(root) => root,
            Err(fault) => {
                self.findings.corrupt(&kinds::EXTENT_NODE, self.place(), &fault);
                self.stop();
                return Ok(());
            }
        };
        // A node's children are put here last first. Each level is one less deep, so the heap is bounded.
        let mut waiting = Vec::new();
        let place = self.place();
        check_room(&root, I_BLOCK_SIZE as u32, place, self.findings);
        take_node(&root, sink, &mut waiting);
        while let Some(child) = waiting.pop() {
            sink.node(child.block.get());
            if !self.may_read(child.block) {
                continue;
            }
            let bytes = self.reader.block(child.block.get(), 0)?;
            let place = Place { inode: Some(self.ino), block: Some(child.block), ..Place::default() };
            let mut node = ExtentNode::block(bytes, child.limits, self.seed);
            if let Err(fault) = &node
                && fault.kind == CorruptKind::ExtentChecksum
            {
                self.findings.corrupt(&kinds::EXTENT_CHECKSUM, place, fault);
                node = ExtentNode::block(bytes, child.limits, None);
            }
            match node {
                Ok(node) => {
                    let start = node.extent(0).map(|extent| extent.logical);
                    let start = start.or(node.index(0).map(|index| index.logical));
                    if let Some(start) = start
                        && start != child.first
                    {
                        let text = format_args!(
                            "the index says logical block {}, its child starts at {start}",
                            child.first
                        );
                        self.findings.add(&kinds::EXTENT_INDEX, place, text);
                    }
                    check_room(&node, self.shared.sb.geometry.block_size(), place, self.findings);
                    take_node(&node, sink, &mut waiting);
                }
                Err(fault) => {
                    self.findings.corrupt(&kinds::EXTENT_NODE, place, &fault);
                    self.stop();
                }
            }
        }
        Ok(())
    }

    /// The indirect map in an inode: 12 blocks, then one tree each of one, two and three levels.
    fn indirect(&mut self, i_block: &[u8; I_BLOCK_SIZE], sink: &mut dyn Sink) -> Result<()> {
        let mut next = 0u64;
        for (index, pointer) in pointers(i_block).enumerate() {
            let levels = index.saturating_sub(11) as u32;
            self.subtree(pointer, levels, &mut next, sink)?;
        }
        Ok(())
    }

    /// What hangs below one block number; `levels` blocks of numbers lie between it and the data. The depth of
    /// the recursion is at most three.
    fn subtree(&mut self, pointer: u32, levels: u32, next: &mut u64, sink: &mut dyn Sink) -> Result<()> {
        let per_block = u64::from(self.shared.sb.geometry.block_size() / 4);
        let span = per_block.pow(levels);
        if pointer == 0 {
            *next += span;
            return Ok(());
        }
        let block = Pblk(u64::from(pointer));
        let lblk = u32::try_from(*next).ok().filter(|lblk| *lblk < u32::MAX);
        if !self.shared.sb.geometry.usable_blocks().contains(block, 1) || lblk.is_none() {
            let place = Place { block: Some(block), lblk: lblk.map(Lblk), ..self.place() };
            self.findings.add(&kinds::MAP_RANGE, place, "the block number is impossible");
            self.stop();
            *next += span;
            return Ok(());
        }
        if levels == 0 {
            let logical = Lblk(lblk.unwrap_or_default());
            sink.extent(Extent { logical, length: 1, physical: block, unwritten: false });
            *next += 1;
            return Ok(());
        }
        sink.node(block.get());
        if !self.may_read(block) {
            *next += span;
            return Ok(());
        }
        let below: Vec<u32> = pointers(self.reader.block(block.get(), 0)?).collect();
        for pointer in below {
            self.subtree(pointer, levels - 1, next, sink)?;
        }
        Ok(())
    }
}

/// The little-endian block numbers in `bytes`.
pub(crate) fn pointers(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap_or_default()))
}

/// A node says for how many entries it has room. As in e2fsck, that may be two fewer than fit.
fn check_room(node: &ExtentNode<'_>, size: u32, place: Place, findings: &mut Findings) {
    let (said, fit) = (node.header().capacity, block_capacity(size));
    if said < fit.saturating_sub(2) {
        let text = format_args!("says that it has room for {said} entries, but {fit} fit");
        findings.add(&kinds::EXTENT_NODE, place, text);
    }
}

fn take_node(node: &ExtentNode<'_>, sink: &mut dyn Sink, waiting: &mut Vec<Child>) {
    node.extents().for_each(|extent| sink.extent(extent));
    for position in (0..node.indexes().len()).rev() {
        if let (Some(index), Some(limits)) = (node.index(position), node.child_limits(position)) {
            waiting.push(Child { block: index.child, first: index.logical, limits });
        }
    }
}
