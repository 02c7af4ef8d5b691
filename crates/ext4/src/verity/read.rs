//! The bytes of a sealed file as they are mapped, those behind its end too.

use crate::ground::error::{Error, Result};
use crate::inode::{Ext4State, Inode};
use crate::map;
use uext4_blockdev::{Buffer, BufferPool};
use uext4_iomap::{Found, State};
use uext4_ondisk::ext4::{VerityDescriptor, find_verity_descriptor, verity_tree_start};
use uext4_ondisk::{Corrupt, CorruptKind, Lblk};

/// Bytes read at once.
pub(super) const STEP: usize = 1 << 20;

/// A sealed file.
pub(crate) struct SealedFile<'v> {
    pub(super) state: &'v Ext4State,
    pub(super) inode: &'v Inode,
    /// Bytes of a block of the volume.
    pub(super) block: u64,
    pub(crate) descriptor: VerityDescriptor,
}

impl<'v> SealedFile<'v> {
    /// Reads the descriptor of a file that has the flag.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a descriptor that Linux would not take, and a tree that is not all there.
    pub(crate) fn open(state: &'v Ext4State, inode: &'v Inode) -> Result<Self> {
        let refused = |corrupt: Corrupt| Error::from(corrupt.in_inode(inode.ino()));
        let wrong = |text| refused(CorruptKind::Verity(text).into());
        if !inode.disk().uses_extents() {
            return Err(wrong("the file has no extents"));
        }
        let (size, block) = (inode.disk().size, u64::from(state.superblock.geometry.block_size()));
        let end = map::mapped_end(state, inode)? * block;
        if end == 0 {
            return Err(wrong("the file has no blocks"));
        }
        let mut last = buffer(block as usize)?;
        read(state, inode, block, end - block, &mut last)?;
        let field = last.last_chunk().copied().unwrap_or_default();
        let (start, length) = find_verity_descriptor(field, end, size, block as u32).map_err(refused)?;
        let mut bytes = buffer((end - start) as usize)?;
        read(state, inode, block, start, &mut bytes)?;
        let bytes = bytes.get(..length as usize).unwrap_or_default();
        let descriptor = VerityDescriptor::decode(bytes, size, block as u32).map_err(refused)?;
        // What bounds the time of a comparison: files do not share blocks, but a damaged map may.
        let volume = state.superblock.geometry.blocks_count().saturating_mul(block);
        if descriptor.tree_size() > volume {
            return Err(wrong("the hash tree is larger than the volume"));
        }
        let tree_end = verity_tree_start(size).and_then(|tree| tree.checked_add(descriptor.tree_size()));
        if tree_end.is_none_or(|end| end > start) {
            return Err(wrong("the descriptor lies in the hash tree"));
        }
        Ok(SealedFile { state, inode, block, descriptor })
    }

    /// First byte of the tree.
    pub(super) fn tree_start(&self) -> u64 {
        verity_tree_start(self.descriptor.data_size).unwrap_or(u64::MAX)
    }

    /// Fills memory with whole blocks from a multiple of the volume's block on.
    pub(super) fn read(&self, pos: u64, buffer: &mut [u8]) -> Result<()> {
        read(self.state, self.inode, self.block, pos, buffer)
    }

    /// An error about a byte of the file.
    pub(super) fn damage(&self, kind: CorruptKind, pos: u64) -> Error {
        let corrupt = Corrupt::from(kind).in_inode(self.inode.ino());
        u32::try_from(pos / self.block).map_or(corrupt, |lblk| corrupt.at_lblk(Lblk(lblk))).into()
    }
}

/// Memory for direct reads.
pub(super) fn buffer(bytes: usize) -> Result<Buffer> {
    Ok(BufferPool::new(bytes)?.take(bytes)?)
}

/// Fills memory with whole blocks of a file. Holes and unwritten blocks are zeros.
fn read(state: &Ext4State, inode: &Inode, block: u64, pos: u64, buffer: &mut [u8]) -> Result<()> {
    let device = state.cache.device();
    let (mut at, mut rest) = (pos / block, buffer);
    while !rest.is_empty() {
        let logical = u32::try_from(at).map_err(|_| Error::MapUnstable(pos))?;
        let found = match inode.state.map.find(logical) {
            Found::Unknown => map::load(state, inode, at * block)?.find(logical),
            known => known,
        };
        let Found::Known { state: kind, physical, blocks } = found else {
            return Err(Error::MapUnstable(at * block));
        };
        let count = blocks.min(rest.len() as u64 / block).max(1);
        let length = (count * block).min(rest.len() as u64) as usize;
        let (piece, behind) = rest.split_at_mut(length);
        match kind {
            State::Written => device.read_at(piece, physical * block)?,
            _ => piece.fill(0),
        }
        (at, rest) = (at + count, behind);
    }
    Ok(())
}
