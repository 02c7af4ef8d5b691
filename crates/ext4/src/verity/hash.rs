//! Hashes of blocks, and the levels of a hash tree above the lowest one.

use sha2::{Digest, Sha256, Sha512};
use uext4_ondisk::HashTree;
use uext4_ondisk::ext4::{HashAlgorithm, VERITY_DESCRIPTOR_SIZE, VerityDescriptor};

/// Bytes of the longest digest.
pub(crate) const DIGEST_MAX: usize = 64;

/// A hash function that has taken what comes before each block.
#[derive(Clone)]
pub(crate) enum Hasher {
    Sha256(Sha256),
    Sha512(Box<Sha512>),
}

impl Hasher {
    /// One that has taken these bytes.
    pub(crate) fn salted(algorithm: HashAlgorithm, salt: &[u8]) -> Hasher {
        match algorithm {
            HashAlgorithm::Sha256 => Hasher::Sha256(Sha256::new_with_prefix(salt)),
            HashAlgorithm::Sha512 => Hasher::Sha512(Box::new(Sha512::new_with_prefix(salt))),
        }
    }

    /// As fs-verity: zeros fill the salt up to a step of the function, so that it costs nothing for each block.
    pub(crate) fn of(algorithm: HashAlgorithm, salt: &[u8]) -> Hasher {
        let mut filled = salt.to_vec();
        filled.resize(salt.len().next_multiple_of(algorithm.step()), 0);
        Hasher::salted(algorithm, &filled)
    }

    /// The digest of a block, into as many bytes as it has.
    pub(crate) fn block(&self, block: &[u8], digest: &mut [u8]) {
        match self {
            Hasher::Sha256(state) => digest.copy_from_slice(&state.clone().chain_update(block).finalize()),
            Hasher::Sha512(state) => {
                digest.copy_from_slice(&Sha512::clone(state).chain_update(block).finalize());
            }
        }
    }
}

/// Computes the levels above `from` in the bytes of a whole tree, and the digest of its root into `root`.
pub(crate) fn raise(
    tree: &HashTree,
    hasher: &Hasher,
    (block, digest): (usize, usize),
    from: usize,
    bytes: &mut [u8],
    root: &mut [u8],
) {
    for level in from..tree.levels().saturating_sub(1) {
        let start = tree.first_of(level) as usize * block;
        let above = tree.first_of(level + 1) as usize * block;
        let length = tree.blocks_of(level) as usize * block;
        let (upper, lower) = bytes.split_at_mut(start);
        let digests = upper[above..].chunks_exact_mut(digest);
        lower[..length]
            .chunks_exact(block)
            .zip(digests)
            .for_each(|(block, digest)| hasher.block(block, digest));
    }
    if let Some(top) = bytes.get(..block) {
        hasher.block(top, root);
    }
}

/// What `fsverity measure` shows: the digest of the descriptor.
pub(crate) fn measurement(descriptor: &VerityDescriptor) -> Vec<u8> {
    let mut digest = vec![0; descriptor.algorithm.digest_size()];
    let bytes: [u8; VERITY_DESCRIPTOR_SIZE] = descriptor.encode();
    Hasher::salted(descriptor.algorithm, &[]).block(&bytes, &mut digest);
    digest
}
