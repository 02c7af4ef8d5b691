//! The file system's structures, all little-endian: one structure per module.

mod dir;
mod extent;
mod features;
mod group;
mod indirect;
mod inode;
mod mmp;
mod orphan;
mod quota;
mod superblock;
mod verity;
mod xattr;

pub use dir::*;
pub use extent::*;
pub use features::{Compat, Features, Incompat, RoCompat};
pub use group::{GroupDescriptor, GroupFlags};
pub use indirect::{
    DIRECT_POINTERS, IndirectLayout, IndirectPath, IndirectRun, MAX_INDIRECT_DEPTH, PointerBlock,
};
pub use inode::{
    DeviceNumber, FileType, I_BLOCK_SIZE, Inode, InodeFlags, Timestamp, fragment_address,
    inode_checksum_seed, translator_block, update_inode_checksum, verify_inode_checksum,
};
pub use mmp::{MmpBlock, MmpOwner};
pub use orphan::{OrphanBlock, encode_orphan_tail};
pub use quota::*;
pub use superblock::*;
pub use verity::*;
pub use xattr::*;
