//! How fs-verity is to seal a file of a new volume, and where its hash tree goes.

use super::error::{Error, Result};
use uext4_ondisk::HashTree;
use uext4_ondisk::ext4::{
    HashAlgorithm, VERITY_SALT_MAX, VerityDescriptor, verity_descriptor_place, verity_tree_start,
};

/// Bytes of a block that is hashed, unless the volume has smaller ones: what every Linux takes.
const BLOCK: u32 = 4096;

/// How fs-verity is to seal a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seal {
    algorithm: HashAlgorithm,
    salt_size: u8,
    salt: [u8; VERITY_SALT_MAX],
}

impl Seal {
    /// With this hash function, and a salt if it is not empty.
    ///
    /// # Errors
    /// [`Error::Option`] for a salt of more than 32 bytes.
    pub fn new(algorithm: HashAlgorithm, salt: &[u8]) -> Result<Seal> {
        let mut seal = Seal { algorithm, salt_size: salt.len() as u8, ..Seal::default() };
        let place = seal.salt.get_mut(..salt.len());
        place
            .ok_or_else(|| Error::Option("a salt of fs-verity has at most 32 bytes".into()))?
            .copy_from_slice(salt);
        Ok(seal)
    }

    /// What is stored behind a file of so many bytes, on a volume with such blocks. `None` if no file is that long.
    pub(super) fn plan(&self, size: u64, volume_block: u32) -> Option<SealPlan> {
        let descriptor = VerityDescriptor {
            algorithm: self.algorithm,
            block_size: volume_block.min(BLOCK),
            data_size: size,
            root_hash: [0; 64],
            salt_size: self.salt_size,
            salt: self.salt,
            signature_size: 0,
        };
        let tree = descriptor.tree()?;
        let start = verity_tree_start(size)?;
        let (descriptor_at, end) = verity_descriptor_place(size, descriptor.tree_size(), volume_block)?;
        Some(SealPlan { descriptor, tree, start, descriptor_at, end })
    }
}

/// What is stored behind the contents of a sealed file: bytes of the file.
#[derive(Debug, Clone)]
pub(super) struct SealPlan {
    /// Without the hash of the root.
    pub(super) descriptor: VerityDescriptor,
    pub(super) tree: HashTree,
    /// Where the tree begins.
    pub(super) start: u64,
    pub(super) descriptor_at: u64,
    /// Where the last block ends.
    pub(super) end: u64,
}
