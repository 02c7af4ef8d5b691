//! The superblock before a hash tree of dm-verity, as `veritysetup format` writes it.
//!
//! Source: the description of the format in cryptsetup's wiki ("DMVerity"), and what `veritysetup` writes.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bytes::put;
use crate::error::EncodeError;
use crate::ext4::HashAlgorithm;

const STRUCTURE: &str = "superblock of dm-verity";
const SIGNATURE: [u8; 8] = *b"verity\0\0";
const VERSION: u32 = 1;
/// The salt comes before the block that is hashed.
const SALT_FIRST: u32 = 1;
/// Bytes of a salt, at most.
pub const DM_VERITY_SALT_MAX: usize = 256;
/// Bytes of the superblock.
pub const DM_VERITY_SUPERBLOCK_SIZE: usize = 512;

/// `struct verity_sb`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    signature: [u8; 8],
    version: U32,
    hash_type: U32,
    uuid: [u8; 16],
    algorithm: [u8; 32],
    data_block_size: U32,
    hash_block_size: U32,
    data_blocks: U64,
    salt_size: U16,
    padding_1: [u8; 6],
    salt: [u8; DM_VERITY_SALT_MAX],
    padding_2: [u8; 168],
}

const _: () = assert!(size_of::<RawSuperblock>() == DM_VERITY_SUPERBLOCK_SIZE);

/// How a device is hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmVeritySuperblock {
    /// UUID of the tree.
    pub uuid: [u8; 16],
    /// The hash function.
    pub algorithm: HashAlgorithm,
    /// Bytes of a data block.
    pub data_block_size: u32,
    /// Bytes of a block of the tree.
    pub hash_block_size: u32,
    /// Number of data blocks.
    pub data_blocks: u64,
    /// Comes before each block that is hashed.
    pub salt: Vec<u8>,
}

impl DmVeritySuperblock {
    /// The superblock as it is stored.
    ///
    /// # Errors
    /// A salt that is too long.
    pub fn encode(&self) -> Result<[u8; DM_VERITY_SUPERBLOCK_SIZE], EncodeError> {
        let mut raw = RawSuperblock::new_zeroed();
        raw.signature = SIGNATURE;
        raw.version.set(VERSION);
        raw.hash_type.set(SALT_FIRST);
        raw.uuid = self.uuid;
        put(&mut raw.algorithm, 0, self.algorithm.name().as_bytes(), STRUCTURE)?;
        raw.data_block_size.set(self.data_block_size);
        raw.hash_block_size.set(self.hash_block_size);
        raw.data_blocks.set(self.data_blocks);
        let too_long = |_| EncodeError::new(STRUCTURE, "salt");
        raw.salt_size.set(u16::try_from(self.salt.len()).map_err(too_long)?);
        put(&mut raw.salt, 0, &self.salt, STRUCTURE)?;
        let mut bytes = [0; DM_VERITY_SUPERBLOCK_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_veritysetup_has_them() {
        let mut superblock = DmVeritySuperblock {
            uuid: [9; 16],
            algorithm: HashAlgorithm::Sha256,
            data_block_size: 1024,
            hash_block_size: 4096,
            data_blocks: 77,
            salt: vec![5; 32],
        };
        let bytes = superblock.encode().unwrap();
        assert_eq!(&bytes[..8], b"verity\0\0");
        assert_eq!(bytes[8..16], [1, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(&bytes[32..39], b"sha256\0");
        assert_eq!(bytes[64..82], [0, 4, 0, 0, 0, 16, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 32, 0]);
        assert_eq!(bytes[88..120], [5; 32]);
        superblock.salt = vec![0; 257];
        assert!(superblock.encode().is_err());
    }
}
