//! fs-verity: a file that is sealed has a hash tree behind its contents, and a descriptor with the root's hash.
//!
//! Reading path: `read` (where the descriptor is, and bytes behind the end of a file) → `verify` (contents and tree
//! against the hashes above them) → `hash`.

pub(crate) mod hash;
mod read;
mod verify;

pub(crate) use read::SealedFile;
