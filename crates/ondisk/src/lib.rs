//! The on-disk formats of ext4 and of its journal: bytes to structs and back.
//!
//! This crate does no I/O. A caller reads a block or a record from a device, hands the bytes to a decoder
//! here and gets a plain Rust value or a typed [`Corrupt`] error; the encoders patch a value back into the
//! bytes of its record and bring the record's checksum up to date, leaving bytes they do not own untouched.
//!
//! * [`ext4`] — the file system's structures. All integers are little-endian.
//! * [`jbd2`] — the journal's structures. All integers are big-endian.
//! * [`checksum`] — crc32c in the convention both halves use, and the crc16 of old group descriptors.
//!
//! # Rules every decoder keeps
//!
//! * Any byte sequence is answered by a value or by [`Corrupt`]: no panic, no overflow, no loop without a
//!   bound.
//! * A value that was decoded is safe to use: block ranges lie inside the volume, extents are in order, an
//!   entry's name lies inside its block. What cannot be judged from the record alone (cycles between
//!   blocks, overlap of records) is the caller's to check.
//! * Checksums are verified by the decoder whenever the volume's features say that there is one. Directory
//!   blocks are the exception: what kind a block is must be known first, so they have `verify_` functions.
//!
//! # Where the format facts come from
//!
//! The kernel's `Documentation/filesystems/ext4` and the behaviour of the kernel and of e2fsprogs 1.47. Doc
//! comments give the kernel's field name of every member in backquotes; the code itself uses plain names.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![cfg_attr(
    not(test),
    deny(
        clippy::as_conversions,
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]

mod bytes;
pub mod checksum;
mod dm_verity;
mod error;
pub mod ext4;
mod flags;
mod hash_tree;
pub mod jbd2;
mod numbers;

pub use dm_verity::{DM_VERITY_SALT_MAX, DM_VERITY_SUPERBLOCK_SIZE, DmVeritySuperblock};
pub use error::{Corrupt, CorruptKind, EncodeError, Place};
pub use hash_tree::HashTree;
pub use numbers::{BlockRange, Group, Ino, Lblk, Pblk};
