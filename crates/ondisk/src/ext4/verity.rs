//! What fs-verity stores behind the contents of a file: a hash tree, and a descriptor that says how to read it.
//!
//! The tree begins at the next multiple of 64 KiB behind the contents. The descriptor begins at the next file-system
//! block behind the tree, and the last four bytes of the last mapped block are its size.
//!
//! Source: `Documentation/filesystems/fsverity.rst`, `Documentation/filesystems/ext4/verity.rst` and the behaviour of
//! `fs/verity` and `fs/ext4/verity.c`.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::record;
use crate::error::{Corrupt, CorruptKind};
use crate::hash_tree::HashTree;

const STRUCTURE: &str = "fs-verity descriptor";
const VERSION: u8 = 1;
/// Bytes of a descriptor without a signature.
pub const VERITY_DESCRIPTOR_SIZE: usize = 256;
/// Bytes of a descriptor with its signature, at most (`FS_VERITY_MAX_DESCRIPTOR_SIZE`).
pub const VERITY_DESCRIPTOR_MAX: u32 = 16_384;
/// Bytes of a salt, at most.
pub const VERITY_SALT_MAX: usize = 32;
/// Bytes of the longest digest.
const DIGEST_MAX: usize = 64;
/// The tree begins at a multiple of this.
const TREE_ALIGN: u64 = 65_536;
/// Levels of a tree, at most (`FS_VERITY_MAX_LEVELS`).
const LEVELS_MAX: usize = 8;
/// Smallest and largest size of a block that is hashed, as powers of two. Linux takes no block larger than a page.
const BLOCK_LOGS: std::ops::RangeInclusive<u8> = 10..=12;
/// Bytes of the field behind the descriptor.
const SIZE_FIELD: u64 = 4;

/// `struct fsverity_descriptor`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawDescriptor {
    version: u8,
    hash_algorithm: u8,
    log_blocksize: u8,
    salt_size: u8,
    sig_size: U32,
    data_size: U64,
    root_hash: [u8; DIGEST_MAX],
    salt: [u8; VERITY_SALT_MAX],
    reserved: [u8; 144],
}

const _: () = assert!(size_of::<RawDescriptor>() == VERITY_DESCRIPTOR_SIZE);

/// A hash function of fs-verity and dm-verity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-512.
    Sha512,
}

impl HashAlgorithm {
    /// All of them.
    pub const ALL: [HashAlgorithm; 2] = [HashAlgorithm::Sha256, HashAlgorithm::Sha512];

    /// Its name in the kernel: `sha256`, `sha512`.
    pub fn name(self) -> &'static str {
        match self {
            HashAlgorithm::Sha256 => "sha256",
            HashAlgorithm::Sha512 => "sha512",
        }
    }

    /// Bytes of a digest.
    pub fn digest_size(self) -> usize {
        match self {
            HashAlgorithm::Sha256 => 32,
            HashAlgorithm::Sha512 => 64,
        }
    }

    /// Bytes that the function takes in one step.
    pub fn step(self) -> usize {
        match self {
            HashAlgorithm::Sha256 => 64,
            HashAlgorithm::Sha512 => 128,
        }
    }

    /// Digests in a block.
    pub fn per_block(self, block_size: u32) -> u32 {
        match self {
            HashAlgorithm::Sha256 => block_size >> 5,
            HashAlgorithm::Sha512 => block_size >> 6,
        }
    }

    /// `FS_VERITY_HASH_ALG_…`
    fn number(self) -> u8 {
        match self {
            HashAlgorithm::Sha256 => 1,
            HashAlgorithm::Sha512 => 2,
        }
    }
}

/// How a file is hashed, and the hash of its tree's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerityDescriptor {
    /// The hash function.
    pub algorithm: HashAlgorithm,
    /// Bytes of a block that is hashed, of contents and of the tree.
    pub block_size: u32,
    /// Bytes of the contents.
    pub data_size: u64,
    /// Hash of the root, followed by zeros; all zeros if the file is empty.
    pub root_hash: [u8; DIGEST_MAX],
    /// Bytes of the salt.
    pub salt_size: u8,
    /// The salt, followed by zeros. Its block is hashed before each block.
    pub salt: [u8; VERITY_SALT_MAX],
    /// Bytes of the signature behind the descriptor. It is not looked at here.
    pub signature_size: u32,
}

fn wrong(text: &'static str) -> Corrupt {
    CorruptKind::Verity(text).into()
}

impl VerityDescriptor {
    /// Decodes the whole descriptor (a signature included) of a file of so many bytes on a volume with such blocks.
    ///
    /// # Errors
    /// What Linux refuses.
    pub fn decode(bytes: &[u8], data_size: u64, volume_block: u32) -> Result<VerityDescriptor, Corrupt> {
        let raw: &RawDescriptor = record(bytes, STRUCTURE)?;
        if raw.version != VERSION {
            return Err(wrong("the descriptor's version is unknown"));
        }
        let algorithm = HashAlgorithm::ALL.into_iter().find(|known| known.number() == raw.hash_algorithm);
        let algorithm = algorithm.ok_or_else(|| wrong("the hash algorithm is unknown"))?;
        if !BLOCK_LOGS.contains(&raw.log_blocksize) || 1 << raw.log_blocksize > volume_block {
            return Err(wrong("the size of hashed blocks is not supported"));
        }
        if usize::from(raw.salt_size) > VERITY_SALT_MAX {
            return Err(wrong("the salt is too long"));
        }
        if raw.data_size.get() != data_size {
            return Err(wrong("the descriptor is for another size of the file"));
        }
        if raw.reserved.iter().any(|byte| *byte != 0) {
            return Err(wrong("reserved bytes of the descriptor are not 0"));
        }
        let room = bytes.len().saturating_sub(VERITY_DESCRIPTOR_SIZE);
        if usize::try_from(raw.sig_size.get()).map_or(true, |size| size > room) {
            return Err(wrong("the signature is longer than the descriptor"));
        }
        let descriptor = VerityDescriptor {
            algorithm,
            block_size: 1 << raw.log_blocksize,
            data_size,
            root_hash: raw.root_hash,
            salt_size: raw.salt_size,
            salt: raw.salt,
            signature_size: raw.sig_size.get(),
        };
        match descriptor.tree() {
            Some(_) => Ok(descriptor),
            None => Err(wrong("the file is too large for a hash tree")),
        }
    }

    /// The descriptor as it is stored and measured: without the signature.
    pub fn encode(&self) -> [u8; VERITY_DESCRIPTOR_SIZE] {
        let mut raw = RawDescriptor::new_zeroed();
        raw.version = VERSION;
        raw.hash_algorithm = self.algorithm.number();
        raw.log_blocksize = u8::try_from(self.block_size.trailing_zeros()).unwrap_or(u8::MAX);
        raw.salt_size = self.salt_size;
        raw.data_size.set(self.data_size);
        raw.root_hash = self.root_hash;
        raw.salt = self.salt;
        let mut bytes = [0; VERITY_DESCRIPTOR_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The root hash without the zeros behind it.
    pub fn root(&self) -> &[u8] {
        self.root_hash.get(..self.algorithm.digest_size()).unwrap_or(&self.root_hash)
    }

    /// The salt without the zeros behind it.
    pub fn salt(&self) -> &[u8] {
        self.salt.get(..usize::from(self.salt_size)).unwrap_or(&self.salt)
    }

    /// Blocks of the contents that are hashed.
    pub fn data_blocks(&self) -> u64 {
        self.data_size.div_ceil(u64::from(self.block_size.max(1)))
    }

    /// The shape of the tree; `None` if it has more levels than Linux takes.
    pub fn tree(&self) -> Option<HashTree> {
        let per_block = self.algorithm.per_block(self.block_size);
        HashTree::new(self.data_blocks(), per_block).filter(|tree| tree.levels() <= LEVELS_MAX)
    }

    /// Bytes of the tree.
    pub fn tree_size(&self) -> u64 {
        let blocks = self.tree().map_or(0, |tree| tree.blocks());
        blocks.saturating_mul(u64::from(self.block_size))
    }
}

/// Where a file of so many bytes has its tree: a byte of the file. `None` beyond the largest file.
pub fn verity_tree_start(data_size: u64) -> Option<u64> {
    data_size.checked_next_multiple_of(TREE_ALIGN)
}

/// Where a descriptor of the least size lies behind a tree: its first byte, and the byte behind the block with its
/// size. `None` beyond the largest file.
pub fn verity_descriptor_place(data_size: u64, tree_size: u64, volume_block: u32) -> Option<(u64, u64)> {
    let block = u64::from(volume_block);
    let start = verity_tree_start(data_size)?.checked_add(tree_size)?.checked_next_multiple_of(block)?;
    // A descriptor and its size fit into the smallest block.
    Some((start, start.checked_add(block)?))
}

/// Finds a descriptor by the four bytes at the end of the last mapped block, which ends at byte `end` of the file.
/// Returns its first byte and its size.
///
/// # Errors
/// What Linux refuses.
pub fn find_verity_descriptor(
    size: [u8; 4],
    end: u64,
    data_size: u64,
    volume_block: u32,
) -> Result<(u64, u32), Corrupt> {
    let size = u32::from_le_bytes(size);
    if !(VERITY_DESCRIPTOR_SIZE..).contains(&usize::try_from(size).unwrap_or(0))
        || size > VERITY_DESCRIPTOR_MAX
    {
        return Err(wrong("the descriptor's size is impossible"));
    }
    let behind = end.checked_sub(SIZE_FIELD).and_then(|at| at.checked_sub(u64::from(size)));
    let block = u64::from(volume_block);
    let start = behind
        .and_then(|last| last.checked_div(block))
        .and_then(|block_number| block_number.checked_mul(block));
    let start = start.zip(verity_tree_start(data_size)).filter(|(start, tree)| start >= tree);
    match start {
        Some((start, _)) => Ok((start, size)),
        None => Err(wrong("the descriptor does not lie behind the contents")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> VerityDescriptor {
        let mut salt = [0; VERITY_SALT_MAX];
        salt[..3].copy_from_slice(b"abc");
        VerityDescriptor {
            algorithm: HashAlgorithm::Sha512,
            block_size: 4096,
            data_size: 5000,
            root_hash: [7; 64],
            salt_size: 3,
            salt,
            signature_size: 0,
        }
    }

    #[test]
    fn a_descriptor_comes_back() {
        let bytes = descriptor().encode();
        assert_eq!(bytes[..8], [1, 2, 12, 3, 0, 0, 0, 0]);
        assert_eq!(VerityDescriptor::decode(&bytes, 5000, 4096).unwrap(), descriptor());
        assert_eq!(descriptor().salt(), b"abc");
        assert_eq!(descriptor().tree_size(), 4096);
    }

    #[test]
    fn impossible_descriptors_are_refused_by_their_fault() {
        let edits: [(usize, u8, &str); 8] = [
            (0, 2, "version"),
            (1, 3, "algorithm"),
            (1, 0, "algorithm"),
            (2, 13, "hashed blocks"),
            (2, 9, "hashed blocks"),
            (3, 33, "salt"),
            (5, 1, "signature"),
            (255, 1, "reserved"),
        ];
        for (at, value, word) in edits {
            let mut bytes = descriptor().encode();
            bytes[at] = value;
            let error = VerityDescriptor::decode(&bytes, 5000, 4096).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        let bytes = descriptor().encode();
        assert!(VerityDescriptor::decode(&bytes, 5001, 4096).is_err());
        assert!(VerityDescriptor::decode(&bytes, 5000, 2048).is_err());
        assert!(VerityDescriptor::decode(&bytes[..255], 5000, 4096).is_err());
        let large = VerityDescriptor { data_size: u64::MAX, block_size: 1024, ..descriptor() };
        assert!(VerityDescriptor::decode(&large.encode(), u64::MAX, 4096).is_err());
    }

    #[test]
    fn a_descriptor_is_found_from_the_end() {
        let find = |size: u32, end| find_verity_descriptor(size.to_le_bytes(), end, 5000, 4096);
        assert_eq!(verity_descriptor_place(5000, 4096, 4096), Some((69_632, 73_728)));
        assert_eq!(find(256, 73_728), Ok((69_632, 256)));
        // With a signature.
        assert_eq!(find(4093, 77_824), Ok((69_632, 4093)));
        for (size, end) in
            [(255, 73_728), (16_385, 1 << 20), (256, 65_536), (256, 4), (256, 0), (u32::MAX, 1 << 40)]
        {
            assert!(find(size, end).is_err(), "{size} {end}");
        }
        assert_eq!(verity_tree_start(0), Some(0));
        assert_eq!(verity_tree_start(u64::MAX), None);
    }
}
