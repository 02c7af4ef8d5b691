//! The changed nodes of an edit, kept in memory until the whole edit is known to be possible.

use crate::alloc::Space;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::trace::Role;
use crate::inode::draft::Draft;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use uext4_ondisk::ext4::{Extent, I_BLOCK_SIZE};
use uext4_ondisk::{EncodeError, Ino, Pblk};

/// The root, which lies in the inode. Not a real block number.
pub(super) const ROOT: Pblk = Pblk(u64::MAX);
/// Numbers from here on stand for nodes without a block yet.
const NEW: u64 = 1 << 63;

pub(super) type Encoded = std::result::Result<(), EncodeError>;

/// A node of a map.
pub(super) trait Node {
    /// Replaces placeholder numbers of its children by their blocks.
    fn resolve(&mut self, home: impl Fn(Pblk) -> Pblk);

    /// Stores it in its block or the inode's root. `seed` is the inode's checksum seed on volumes with checksums.
    fn encode(&self, bytes: &mut [u8], seed: Option<u32>) -> Encoded;
}

/// An edit of which nothing is stored yet.
pub(super) struct MapEdit<N> {
    nodes: BTreeMap<Pblk, N>,
    /// Nodes above those, which stay as they are but for the places of what is below them.
    above: BTreeMap<Pblk, N>,
    made: u64,
    freed: BTreeSet<Pblk>,
    unmapped: Vec<Extent>,
}

impl<N: Node> MapEdit<N> {
    pub(super) fn new() -> MapEdit<N> {
        MapEdit {
            nodes: BTreeMap::new(),
            above: BTreeMap::new(),
            made: 0,
            freed: BTreeSet::new(),
            unmapped: Vec::new(),
        }
    }

    /// A node, if the edit has changed it.
    pub(super) fn get(&self, block: Pblk) -> Option<&N> {
        self.nodes.get(&block)
    }

    /// Changes a node.
    pub(super) fn put(&mut self, block: Pblk, node: N) {
        self.nodes.insert(block, node);
    }

    /// Notes a node that leads to one that changes and that cannot change in place ([`Blocks::changes_in_place`]).
    pub(super) fn put_above(&mut self, block: Pblk, node: N) {
        self.above.insert(block, node);
    }

    /// Adds a node. Returns a placeholder number for its block.
    pub(super) fn make(&mut self, node: N) -> Pblk {
        let block = Pblk(NEW + self.made);
        self.made += 1;
        self.nodes.insert(block, node);
        block
    }

    /// Drops a node.
    pub(super) fn free(&mut self, block: Pblk) {
        self.nodes.remove(&block);
        if block.get() < NEW {
            self.freed.insert(block);
        }
    }

    /// Whether a node was dropped.
    pub(super) fn is_free(&self, block: Pblk) -> bool {
        self.freed.contains(&block)
    }

    /// Records an extent that is no longer mapped.
    pub(super) fn unmap(&mut self, extent: Extent) {
        super::add(&mut self.unmapped, extent);
    }

    /// Blocks to allocate: those of new nodes, except nodes that reuse a freed one.
    pub(super) fn taken(&self) -> usize {
        self.nodes.range(Pblk(NEW)..ROOT).count().saturating_sub(self.freed.len())
    }

    /// Nodes on the volume whose parent changes too.
    fn below_changed(&mut self) -> Vec<Pblk> {
        let under = RefCell::new(BTreeSet::new());
        for node in self.nodes.values_mut() {
            node.resolve(|block| {
                under.borrow_mut().insert(block);
                block
            });
        }
        let under = under.into_inner();
        self.nodes.range(..Pblk(NEW)).map(|(block, _)| *block).filter(|block| under.contains(block)).collect()
    }

    /// Without a journal: gives nodes beside `moved` another block too, with what leads to them, so that only the inode
    /// changes. Their blocks come behind `homes`. If there is no room, they change in place. Returns which they are.
    fn renew(
        &mut self,
        moved: &[Pblk],
        (blocks, space): (&mut impl Blocks, &mut impl Space),
        (ino, reach): (Ino, u64),
        homes: &mut Vec<Pblk>,
    ) -> Result<Vec<Pblk>> {
        // One that changes by itself is in the plan as it will be.
        let mut above = std::mem::take(&mut self.above);
        above.retain(|block, _| !self.nodes.contains_key(block) && !self.freed.contains(block));
        if above.is_empty() && self.nodes.range(..Pblk(NEW)).all(|(block, _)| blocks.changes_in_place(*block))
        {
            return Ok(Vec::new());
        }
        let added: Vec<Pblk> = above.keys().copied().collect();
        self.nodes.append(&mut above);
        let mut renewed = self.below_changed();
        renewed.retain(|block| !moved.contains(block) && !blocks.changes_in_place(*block));
        match space.take_spare(blocks, ino, renewed.len(), reach) {
            Ok(taken) => {
                homes.extend(taken);
                Ok(renewed)
            }
            Err(Error::NoSpace) => {
                added.iter().for_each(|block| drop(self.nodes.remove(block)));
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Carries out the edit: allocates the blocks it needs (below number `reach`), changes blocks and inode, frees
    /// blocks that are no longer nodes. Returns the extents that were unmapped.
    ///
    /// # Errors
    /// Those of [`Space`] and of [`Draft::counted`], with nothing changed. Those of the body.
    pub(super) fn publish(
        mut self,
        blocks: &mut impl Blocks,
        space: &mut impl Space,
        draft: &mut Draft,
        reach: u64,
    ) -> Result<Vec<Extent>> {
        let new: Vec<Pblk> = self.nodes.range(Pblk(NEW)..ROOT).map(|(block, _)| *block).collect();
        let clusters = new.len() as i64 - self.freed.len() as i64;
        let counted = draft.counted(blocks.ground(), clusters)?;
        // Also those whose blocks become other nodes of this edit.
        let mut leave = !self.freed.is_empty();
        let (mut moved, mut homes) = match blocks.ground().unlogged {
            // Without a journal several blocks cannot change atomically: nodes on the volume stay until the topmost one
            // changes.
            Some(_) if !new.is_empty() => (self.below_changed(), Vec::new()),
            // Reuse the blocks of freed nodes.
            _ => (Vec::new(), (0..new.len()).map_while(|_| self.freed.pop_first()).collect::<Vec<_>>()),
        };
        // With a journal it either allocates or frees blocks, never both, and either one fails before anything is
        // changed.
        homes.extend(space.take(blocks, draft.ino, new.len() + moved.len() - homes.len(), reach)?);
        moved.extend(self.renew(&moved, (blocks, space), (draft.ino, reach), &mut homes)?);
        self.freed.extend(&moved);
        leave |= !moved.is_empty();
        let left: Vec<(Pblk, u64)> = self.freed.iter().map(|block| (*block, 1)).collect();
        space.give_back(blocks, draft.ino, &left)?;
        let homes: BTreeMap<Pblk, Pblk> = new.into_iter().chain(moved).zip(homes).collect();
        let home = |block: Pblk| homes.get(&block).copied().unwrap_or(block);

        let seed = draft.seed(blocks.ground());
        for (block, mut node) in self.nodes {
            node.resolve(home);
            let stored = match block {
                ROOT => {
                    let mut root = [0; I_BLOCK_SIZE];
                    let stored = node.encode(&mut root, None);
                    draft.disk.i_block = root;
                    stored
                }
                _ if homes.contains_key(&block) => {
                    blocks.describe(home(block), Role::Map(draft.ino));
                    blocks.fresh(home(block), |bytes| node.encode(bytes, seed))?
                }
                _ => {
                    blocks.describe(block, Role::Map(draft.ino));
                    blocks.change(block, |bytes| node.encode(bytes, seed))?
                }
            };
            // Every node of an edit can be encoded, since its input was checked.
            stored?;
        }
        if leave {
            blocks.ground().nodes_left.fetch_add(1, Ordering::Release);
        }
        for block in self.freed {
            blocks.freed(block)?;
        }
        (draft.disk.blocks_raw, draft.disk.flags) = counted;
        Ok(self.unmapped)
    }
}
