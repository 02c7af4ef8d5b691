//! The inode's bytes, in the kernel's field order (`struct ext4_inode`, Linux flavour of the `osd` unions).

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawInode {
    pub mode: U16,
    pub uid_lo: U16,
    pub size_lo: U32,
    pub access: U32,
    pub change: U32,
    pub modify: U32,
    pub delete: U32,
    pub gid_lo: U16,
    pub links: U16,
    pub blocks_lo: U32,
    pub flags: U32,
    pub version_lo: U32,
    pub i_block: [u8; 60],
    pub generation: U32,
    pub xattr_block_lo: U32,
    pub size_hi: U32,
    pub fragment: U32,
    pub blocks_hi: U16,
    pub xattr_block_hi: U16,
    pub uid_hi: U16,
    pub gid_hi: U16,
    pub checksum_lo: U16,
    pub reserved: U16,
}

/// What follows the base part in records above 128 bytes; how much of it counts is in its first field.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawExtra {
    pub extra_isize: U16,
    pub checksum_hi: U16,
    pub change_extra: U32,
    pub modify_extra: U32,
    pub access_extra: U32,
    pub create: U32,
    pub create_extra: U32,
    pub version_hi: U32,
    pub project: U32,
}

const _: () = assert!(size_of::<RawInode>() == 128);
const _: () = assert!(size_of::<RawExtra>() == 32);
const _: () = assert!(std::mem::offset_of!(RawInode, i_block) == 0x28);
const _: () = assert!(std::mem::offset_of!(RawInode, checksum_lo) == 0x7C);
