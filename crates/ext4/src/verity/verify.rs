//! Compares the contents of a sealed file with its hash tree, and the tree with the root's hash: level after level from
//! the root down, so that each block is compared with a digest that is known to be right.

use super::hash::{DIGEST_MAX, Hasher};
use super::read::{STEP, SealedFile, buffer};
use crate::ground::error::Result;
use uext4_blockdev::Buffer;
use uext4_ondisk::CorruptKind;

/// Bytes read one after the other.
struct Stream<'s, 'v> {
    file: &'s SealedFile<'v>,
    /// What is to be read next, and where reading ends: whole blocks.
    next: u64,
    end: u64,
    held: Buffer,
    at: usize,
    filled: usize,
}

impl<'s, 'v> Stream<'s, 'v> {
    /// From a multiple of the volume's block on.
    fn new(file: &'s SealedFile<'v>, start: u64, length: u64) -> Result<Self> {
        let block = file.block;
        let first = start / block * block;
        let end = (start + length).next_multiple_of(block);
        let step = (end - first).clamp(block, STEP as u64) as usize;
        let mut stream = Stream { file, next: first, end, held: buffer(step)?, at: 0, filled: 0 };
        if start > first {
            stream.fill()?;
            stream.at = (start - first) as usize;
        }
        Ok(stream)
    }

    fn fill(&mut self) -> Result<()> {
        let length = (self.end - self.next).min(self.held.len() as u64) as usize;
        self.file.read(self.next, &mut self.held[..length])?;
        (self.next, self.at, self.filled) = (self.next + length as u64, 0, length);
        Ok(())
    }

    /// The next bytes. Pieces are powers of two, so that none crosses the end of what is read at once.
    fn take(&mut self, length: usize) -> Result<&[u8]> {
        if self.at == self.filled {
            self.fill()?;
        }
        let piece = self.held.get(self.at..self.at + length).unwrap_or_default();
        self.at += length;
        Ok(piece)
    }
}

impl SealedFile<'_> {
    /// Reads all contents and the tree. `advance` is told the bytes of contents that were compared.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) with the first block that does not have its hash; those of the device.
    pub(crate) fn verify(&self, advance: &mut dyn FnMut(u64)) -> Result<()> {
        let descriptor = &self.descriptor;
        let tree = descriptor.tree().ok_or_else(|| self.damage(CorruptKind::Verity("no tree"), 0))?;
        let (block, digest) = (u64::from(descriptor.block_size), descriptor.algorithm.digest_size());
        let hasher = Hasher::of(descriptor.algorithm, descriptor.salt());
        if descriptor.data_size == 0 {
            let known = descriptor.root_hash == [0; DIGEST_MAX];
            let kind = CorruptKind::VerityHash("an empty file");
            return if known { Ok(()) } else { Err(self.damage(kind, 0)) };
        }
        let start = self.tree_start();
        let mut above: Option<Stream<'_, '_>> = None;
        for level in (0..tree.levels()).rev() {
            let (first, count) = (start + tree.first_of(level) * block, tree.blocks_of(level));
            let stream = Stream::new(self, first, count * block)?;
            let kind = CorruptKind::VerityHash("a block of the hash tree");
            self.compare(stream, (first, count), above.as_mut(), (&hasher, digest), kind, &mut |_| {})?;
            // Its digests again, now for the level below.
            above = Some(Stream::new(self, first, count * block)?);
        }
        let (count, length) = (descriptor.data_blocks(), descriptor.data_blocks() * block);
        let kind = CorruptKind::VerityHash("a block of the contents");
        let stream = Stream::new(self, 0, length)?;
        self.compare(stream, (0, count), above.as_mut(), (&hasher, digest), kind, advance)
    }

    /// Compares `count` blocks from byte `first` on with the digests in the level above, or with the root's.
    fn compare(
        &self,
        mut blocks: Stream<'_, '_>,
        (first, count): (u64, u64),
        mut above: Option<&mut Stream<'_, '_>>,
        (hasher, digest): (&Hasher, usize),
        kind: CorruptKind,
        advance: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let block = self.descriptor.block_size as usize;
        let mut found = [0; DIGEST_MAX];
        for number in 0..count {
            hasher.block(blocks.take(block)?, &mut found[..digest]);
            let same = match &mut above {
                Some(above) => above.take(digest)? == &found[..digest],
                None => self.descriptor.root() == &found[..digest],
            };
            if !same {
                return Err(self.damage(kind, first + number * block as u64));
            }
            advance(block as u64);
        }
        Ok(())
    }
}
