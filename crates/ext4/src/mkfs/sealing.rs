//! Hashes the contents of sealed files while they are written, and writes their hash trees.

use super::error::{Error, Result};
use super::seal::SealPlan;
use super::write::REQUEST;
use crate::ground::error::Error as VolumeError;
use crate::verity::hash::{DIGEST_MAX, Hasher, raise};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use uext4_blockdev::{Device, WriteDurability};

/// A file to be sealed, as it was laid out.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) plan: SealPlan,
    /// Bytes of contents that will be written, in whole blocks.
    pub(super) contents: u64,
    /// Where the bytes from the start of the tree on go, in order: first byte on the device, and length.
    pub(super) places: Vec<(u64, u64)>,
}

/// The sealed files, by position in the population.
pub(super) struct Sealing {
    files: BTreeMap<u32, Hashing>,
}

/// A sealed file whose contents are being written.
struct Hashing {
    sealed: Sealed,
    hasher: Hasher,
    state: Mutex<State>,
}

struct State {
    /// Bytes of contents still to come.
    left: u64,
    /// From the start of the tree to the end of the last block. It exists from the first contents to the last.
    bytes: Vec<u8>,
}

impl Sealing {
    pub(super) fn new(sealed: BTreeMap<u32, Sealed>) -> Sealing {
        let begun = |sealed: Sealed| {
            let descriptor = &sealed.plan.descriptor;
            let hasher = Hasher::of(descriptor.algorithm, descriptor.salt());
            let state = Mutex::new(State { left: sealed.contents, bytes: Vec::new() });
            Hashing { sealed, hasher, state }
        };
        Sealing { files: sealed.into_iter().map(|(position, sealed)| (position, begun(sealed))).collect() }
    }

    /// Bytes of all trees and descriptors, in whole blocks.
    pub(super) fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.sealed.plan.end - file.sealed.plan.start).sum()
    }

    /// Those that have no contents to wait for.
    pub(super) fn without_contents(&self) -> Vec<u32> {
        self.files
            .iter()
            .filter(|(_, file)| file.sealed.contents == 0)
            .map(|(position, _)| *position)
            .collect()
    }

    /// Hashes whole blocks of contents from byte `at` of a file on. Returns whether they were the last ones.
    ///
    /// # Errors
    /// No memory for the tree.
    pub(super) fn hash(&self, position: u32, at: u64, contents: &[u8]) -> Result<bool> {
        let Some(file) = self.files.get(&position) else { return Ok(false) };
        let descriptor = &file.sealed.plan.descriptor;
        let (block, digest) = (descriptor.block_size as usize, descriptor.algorithm.digest_size());
        let first = at / block as u64;
        // What lies behind the last one that is hashed fills a larger block of the volume.
        let count = descriptor.data_blocks().saturating_sub(first).min((contents.len() / block) as u64);
        let mut digests = vec![0; count as usize * digest];
        let blocks = contents.chunks_exact(block);
        blocks
            .zip(digests.chunks_exact_mut(digest))
            .for_each(|(block, digest)| file.hasher.block(block, digest));
        let mut state = file.state.lock();
        file.begin(&mut state)?;
        if count > 0 {
            // Of a tree without levels there is one digest, the root's: it is kept where the descriptor will be.
            let place = file.lowest().start + first as usize * digest;
            state.bytes[place..place + digests.len()].copy_from_slice(&digests);
        }
        state.left = state.left.saturating_sub(contents.len() as u64);
        Ok(state.left == 0)
    }

    /// Writes the tree and the descriptor of a file whose contents are all written, by way of `buffer`.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub(super) fn finish(&self, position: u32, device: &dyn Device, buffer: &mut [u8]) -> Result<()> {
        let Some(file) = self.files.get(&position) else { return Ok(()) };
        let bytes = file.complete()?;
        let mut rest = &bytes[..];
        for &(disk, length) in &file.sealed.places {
            let (piece, behind) = rest.split_at(length as usize);
            for (part, pos) in piece.chunks(REQUEST).zip((disk..).step_by(REQUEST)) {
                let filled = &mut buffer[..part.len()];
                filled.copy_from_slice(part);
                let written = device.write_at(filled, pos, WriteDurability::Cached);
                written.map_err(VolumeError::from).map_err(Error::Failed)?;
            }
            rest = behind;
        }
        Ok(())
    }
}

impl Hashing {
    /// The bytes of the lowest level; of a tree without levels those of the descriptor.
    fn lowest(&self) -> Range<usize> {
        let plan = &self.sealed.plan;
        let block = plan.descriptor.block_size as usize;
        let start = plan.tree.first_of(0) as usize * block;
        match plan.tree.levels() {
            0 => (plan.descriptor_at - plan.start) as usize..(plan.end - plan.start) as usize,
            _ => start..start + plan.tree.blocks_of(0) as usize * block,
        }
    }

    /// Makes the bytes if there are none, with the digests of holes.
    fn begin(&self, state: &mut State) -> Result<()> {
        if !state.bytes.is_empty() {
            return Ok(());
        }
        let plan = &self.sealed.plan;
        let length = plan.end - plan.start;
        let failed = || Error::Failed(VolumeError::OutOfMemory { bytes: length });
        let size = usize::try_from(length).map_err(|_| failed())?;
        state.bytes.try_reserve_exact(size).map_err(|_| failed())?;
        state.bytes.resize(size, 0);
        let descriptor = &plan.descriptor;
        let (block, digest) = (descriptor.block_size as usize, descriptor.algorithm.digest_size());
        let mut hole = [0; DIGEST_MAX];
        self.hasher.block(&vec![0; block], &mut hole[..digest]);
        let lowest = &mut state.bytes[self.lowest()];
        let blocks = lowest.chunks_exact_mut(digest).take(descriptor.data_blocks() as usize);
        blocks.for_each(|place| place.copy_from_slice(&hole[..digest]));
        Ok(())
    }

    /// The levels above the lowest, the descriptor and its size.
    fn complete(&self) -> Result<Vec<u8>> {
        let plan = &self.sealed.plan;
        let mut descriptor = plan.descriptor;
        let (block, digest) = (descriptor.block_size as usize, descriptor.algorithm.digest_size());
        let mut state = self.state.lock();
        self.begin(&mut state)?;
        let mut bytes = std::mem::take(&mut state.bytes);
        drop(state);
        let place = (plan.descriptor_at - plan.start) as usize;
        let root = &mut descriptor.root_hash[..digest];
        match plan.tree.levels() {
            0 => root.copy_from_slice(&bytes[place..place + digest]),
            _ => raise(&plan.tree, &self.hasher, (block, digest), 0, &mut bytes[..place], root),
        }
        let stored = descriptor.encode();
        bytes[place..place + stored.len()].copy_from_slice(&stored);
        let size = (stored.len() as u32).to_le_bytes();
        let end = bytes.len();
        bytes[end - size.len()..].copy_from_slice(&size);
        Ok(bytes)
    }
}
