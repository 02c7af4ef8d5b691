//! What an edit makes of the nodes of a map, in memory until all of it is known to be possible.

use crate::alloc::Space;
use crate::ground::blocks::Blocks;
use crate::ground::error::Result;
use crate::inode::draft::Draft;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use uext4_ondisk::ext4::{Extent, I_BLOCK_SIZE};
use uext4_ondisk::{EncodeError, Pblk};

/// The root, which lies in the inode.
pub(super) const ROOT: Pblk = Pblk(u64::MAX);
/// Numbers from here on stand for nodes that have no block yet.
const NEW: u64 = 1 << 63;

pub(super) type Encoded = std::result::Result<(), EncodeError>;

/// A node of a map.
pub(super) trait Node {
    /// Puts the blocks of its children in place of the numbers that stood for them.
    fn resolve(&mut self, home: impl Fn(Pblk) -> Pblk);

    /// Stores it in its block or the inode's root. `seed` is that of the inode's checksums on volumes that have them.
    fn encode(&self, bytes: &mut [u8], seed: Option<u32>) -> Encoded;
}

/// An edit that nothing was stored of.
pub(super) struct Plan<N> {
    nodes: BTreeMap<Pblk, N>,
    made: u64,
    freed: BTreeSet<Pblk>,
    unmapped: Vec<Extent>,
}

impl<N: Node> Plan<N> {
    pub(super) fn new() -> Plan<N> {
        Plan { nodes: BTreeMap::new(), made: 0, freed: BTreeSet::new(), unmapped: Vec::new() }
    }

    /// A node, if it is another one than on the volume.
    pub(super) fn get(&self, block: Pblk) -> Option<&N> {
        self.nodes.get(&block)
    }

    /// Changes a node.
    pub(super) fn put(&mut self, block: Pblk, node: N) {
        self.nodes.insert(block, node);
    }

    /// Adds a node. Returns a number that stands for its block.
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

    /// Notes what is mapped no more.
    pub(super) fn unmap(&mut self, extent: Extent) {
        super::add(&mut self.unmapped, extent);
    }

    /// Blocks that it takes: new nodes, but for those that lie where another was.
    pub(super) fn taken(&self) -> usize {
        self.nodes.range(Pblk(NEW)..ROOT).count().saturating_sub(self.freed.len())
    }

    /// Nodes that are on the volume, and under a node that changes too.
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

    /// Carries it out: takes the blocks it needs, below number `reach`, changes blocks and inode, returns blocks that
    /// are no nodes any more. Returns what was unmapped.
    ///
    /// # Errors
    /// Those of [`Space`] and of [`Draft::counted`]: nothing was changed then. Those of the body.
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
        let (moved, mut homes) = match blocks.ground().unlogged {
            // Nothing makes several blocks one change: what is on the volume stays until the topmost one changes.
            Some(_) if !new.is_empty() => (self.below_changed(), Vec::new()),
            // What was a node may be one again.
            _ => (Vec::new(), (0..new.len()).map_while(|_| self.freed.pop_first()).collect::<Vec<_>>()),
        };
        // With a journal it takes blocks or gives some back, never both: whichever it is fails before anything was
        // changed.
        homes.extend(space.take(blocks, draft.ino, new.len() + moved.len() - homes.len(), reach)?);
        self.freed.extend(&moved);
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
                    blocks.fresh(home(block), |bytes| node.encode(bytes, seed))?
                }
                _ => blocks.change(block, |bytes| node.encode(bytes, seed))?,
            };
            // Whatever an edit makes can be encoded: its input was checked.
            stored?;
        }
        for block in self.freed {
            blocks.freed(block)?;
        }
        (draft.disk.blocks_raw, draft.disk.flags) = counted;
        Ok(self.unmapped)
    }
}
