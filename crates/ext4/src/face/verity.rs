//! Files that fs-verity seals: what they are measured by, and whether they still are what was measured.

use super::file::File;
use crate::ground::error::Result;
use crate::verity::{SealedFile, hash};
use uext4_ondisk::ext4::{HashAlgorithm, InodeFlags, VerityDescriptor};

/// How fs-verity seals a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verity {
    descriptor: VerityDescriptor,
}

impl Verity {
    /// The hash function.
    pub fn algorithm(&self) -> HashAlgorithm {
        self.descriptor.algorithm
    }

    /// Bytes of a block that is hashed.
    pub fn block_size(&self) -> u32 {
        self.descriptor.block_size
    }

    /// The salt; empty if there is none.
    pub fn salt(&self) -> &[u8] {
        self.descriptor.salt()
    }

    /// Hash of the root of the tree; zeros if the file is empty.
    pub fn root_hash(&self) -> &[u8] {
        self.descriptor.root()
    }

    /// Bytes of the tree.
    pub fn tree_size(&self) -> u64 {
        self.descriptor.tree_size()
    }

    /// Bytes of a signature that the file has besides. It is not checked.
    pub fn signature_size(&self) -> u32 {
        self.descriptor.signature_size
    }

    /// The digest of the file, which covers contents, size, and how it is hashed: what `fsverity measure` shows.
    pub fn digest(&self) -> Vec<u8> {
        hash::measurement(&self.descriptor)
    }
}

impl File {
    /// How the file is sealed by fs-verity, by its own word; `None` if it is not. Nothing is compared.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) with
    /// [`CorruptKind::Verity`](crate::CorruptKind::Verity) if what is stored cannot be that of a sealed file.
    pub fn verity(&self) -> Result<Option<Verity>> {
        self.sealed(|sealed| Ok(Verity { descriptor: sealed.descriptor }))
    }

    /// The same, after all contents were read and compared with the hashes stored, as Linux does for what it reads.
    /// `advance` is told the bytes that were compared.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) with
    /// [`CorruptKind::VerityHash`](crate::CorruptKind::VerityHash) and the first block that is not what was hashed;
    /// those of [`File::verity`], and of the device.
    pub fn verify_verity(&self, advance: &mut dyn FnMut(u64)) -> Result<Option<Verity>> {
        self.sealed(|sealed| {
            sealed.verify(advance)?;
            Ok(Verity { descriptor: sealed.descriptor })
        })
    }

    fn sealed<T>(&self, then: impl FnOnce(SealedFile<'_>) -> Result<T>) -> Result<Option<T>> {
        let inode = &self.open_file().inode;
        if !inode.disk().flags.contains(InodeFlags::VERITY) {
            return Ok(None);
        }
        then(SealedFile::open(&self.engine().fs().state, inode)?).map(Some)
    }
}
