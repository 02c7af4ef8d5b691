//! Extended attributes: name and value pairs, inside the inode record behind its extra fields and in one block
//! that inodes with equal attributes share.
//!
//! Both areas hold the same thing: a list of entries that grows from the front and ends with four zero bytes,
//! and values that grow from the back. A value too large for either lies in an inode of its own (feature
//! `ea_inode`).
//!
//! Sources: the kernel's `Documentation/filesystems/ext4/attributes.rst`, `fs/ext4/xattr.c`, `fs/ext4/acl.c`.

mod acl;
mod area;
mod block;
mod hash;
mod list;
mod name;

pub use acl::{Acl, AclEntry, AclTag};
pub use area::{XattrArea, XattrEntries, XattrEntry, XattrFormat, XattrValue};
pub use block::{
    XATTR_BLOCK_HEADER_SIZE, XattrBlock, set_xattr_block_references, update_xattr_block_checksum,
};
pub use hash::{verify_xattr_entry_hash, xattr_entry_hash, xattr_value_checksum, xattr_value_checksum_of};
pub use list::{ListedValue, ListedXattr, XattrList};
pub use name::XattrIndex;

/// First word of both areas (`h_magic`).
const MAGIC: u32 = 0xEA02_0000;
/// Bytes of the word before the entries inside an inode.
const INODE_HEADER_SIZE: usize = 4;
/// Bytes of `struct ext4_xattr_entry` before the name.
const ENTRY_SIZE: usize = 16;
/// Names and values start at multiples of this, and an empty word ends the list.
const PAD: usize = 4;
/// Most bytes of a value that the format allows (`EXT4_XATTR_SIZE_MAX`); the system call interface stops at
/// 64 KiB.
const VALUE_MAX: u32 = 1 << 24;
