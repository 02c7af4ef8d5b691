//! Files that fs-verity seals: their hash trees lie behind their contents.

use super::super::error::{Error, Result};
use super::super::seal::SealPlan;
use super::super::sealing::Sealed;
use super::Making;
use crate::ground::error::{Error as VolumeError, Limit};
use uext4_ondisk::ext4::{Incompat, RoCompat};

impl Making<'_, '_> {
    /// What is stored behind the contents of a file that is to be sealed.
    pub(super) fn seal(&mut self, position: usize, size: u64) -> Result<Option<SealPlan>> {
        let (tree, id) = (self.population.tree, self.population.order[position]);
        let Some(seal) = tree.seal_of(id) else { return Ok(None) };
        let features = &mut self.layout.superblock.features;
        if !features.incompat.contains(Incompat::EXTENTS) {
            return Err(Error::Option("fs-verity needs a volume with the feature `extent`".into()));
        }
        features.ro_compat |= RoCompat::VERITY;
        let plan = seal.plan(size, self.layout.superblock.geometry.block_size());
        let too_long = || self.population.refused(position, VolumeError::Limit(Limit::Map));
        plan.map(Some).ok_or_else(too_long)
    }

    /// Notes the places of a sealed file's contents and tree: (logical block, physical block, number of blocks).
    pub(super) fn add_sealed(&mut self, position: usize, plan: SealPlan, pieces: Vec<(u64, u64, u64)>) {
        let block = self.layout.block_size() as u64;
        let (mut contents, mut places) = (0, Vec::new());
        for (at, to, length) in pieces {
            // A cluster may have the end of the contents and the start of the tree.
            let before = (plan.start / block).saturating_sub(at).min(length);
            if before > 0 {
                self.pieces.add(position as u32, at * block..(at + before) * block, to * block);
                contents += before * block;
            }
            if before < length {
                places.push(((to + before) * block, (length - before) * block));
            }
        }
        self.pieces.sealed.insert(position as u32, Sealed { plan, contents, places });
    }
}
