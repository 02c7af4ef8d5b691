//! The blocks of a directory with all its names at once: one block, a hash tree with full leaves, or a row of blocks
//! on volumes without `dir_index`.

use super::super::error::{Error, Result};
use crate::ground::error::Error as VolumeError;
use uext4_ondisk::ext4::{
    Compat, DirBlockKind, DirFormat, FileType, HashVersion, HtreeEntry, Superblock, dir_hash,
    encode_dir_entry, encode_dir_tail, encode_htree_entries, encode_htree_root_info, entry_length,
    htree_capacity, set_htree_levels, update_htree_checksum,
};
use uext4_ondisk::{Ino, Lblk};

/// A name, what it leads to, and of which kind that is.
pub(super) type Name<'t> = (&'t [u8], Ino, FileType);

/// The blocks of a directory, in order.
pub(super) struct Blocks {
    pub(super) blocks: Vec<Vec<u8>>,
    /// Whether they are a hash tree.
    pub(super) indexed: bool,
}

/// Lays out directories of one volume.
pub(super) struct Directories<'l> {
    superblock: &'l Superblock,
    format: DirFormat,
}

impl<'l> Directories<'l> {
    pub(super) fn new(superblock: &'l Superblock) -> Directories<'l> {
        Directories { superblock, format: DirFormat::new(superblock) }
    }

    /// The blocks of a directory with these names. `seed`: its checksum seed, on volumes with checksums. A directory
    /// that needs fewer blocks than `least` gets empty ones.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the tree would be too deep.
    pub(super) fn lay_out(
        &self,
        (ino, parent): (Ino, Ino),
        names: &[Name<'_>],
        least: usize,
        seed: Option<u32>,
    ) -> Result<Blocks> {
        let dots = [(&b"."[..], ino, FileType::Directory), (&b".."[..], parent, FileType::Directory)];
        let all: usize = dots.iter().chain(names).map(|(name, ..)| length(name)).sum();
        let row = self.format.row_length(DirBlockKind::Linear) as usize;
        let may_index = self.superblock.features.compat.contains(Compat::DIR_INDEX);
        let mut done = if all <= row || !may_index {
            let all: Vec<Name<'_>> = dots.iter().chain(names).copied().collect();
            let blocks = self.rows(&all)?;
            Blocks { blocks, indexed: false }
        } else {
            self.tree(&dots, names)?
        };
        if !done.indexed {
            while done.blocks.len() < least {
                done.blocks.push(self.row(&[])?);
            }
        }
        if let Some(seed) = seed {
            self.seal(&mut done, seed)?;
        }
        Ok(done)
    }

    /// Checksums of all blocks.
    fn seal(&self, done: &mut Blocks, seed: u32) -> Result<()> {
        for (number, bytes) in (0..).zip(&mut done.blocks) {
            match DirBlockKind::of(bytes, done.indexed, Lblk(number), &self.format) {
                DirBlockKind::Linear => encode_dir_tail(bytes, seed)?,
                DirBlockKind::HtreeRoot | DirBlockKind::HtreeNode => update_htree_checksum(bytes, seed)?,
            }
        }
        Ok(())
    }

    /// Names in as few blocks as this order needs.
    fn rows(&self, names: &[Name<'_>]) -> Result<Vec<Vec<u8>>> {
        let cuts = self.cut(names.iter().map(|(name, ..)| length(name)));
        let ends = cuts.iter().skip(1).copied().chain([names.len()]);
        cuts.iter()
            .zip(ends)
            .map(|(&start, end)| self.row(names.get(start..end).unwrap_or_default()))
            .collect()
    }

    /// Where the names of each block begin.
    fn cut(&self, lengths: impl Iterator<Item = usize>) -> Vec<usize> {
        let row = self.format.row_length(DirBlockKind::Linear) as usize;
        let (mut cuts, mut filled) = (vec![0], 0);
        for (number, length) in lengths.enumerate() {
            if filled + length > row {
                cuts.push(number);
                filled = 0;
            }
            filled += length;
        }
        cuts
    }

    /// A block of names; the last one's record reaches to the end.
    fn row(&self, names: &[Name<'_>]) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.format.block_size as usize];
        self.fill(&mut bytes, names, self.format.row_length(DirBlockKind::Linear))?;
        Ok(bytes)
    }

    fn fill(&self, bytes: &mut [u8], names: &[Name<'_>], end: u32) -> Result<()> {
        let mut at = 0;
        for (number, &(name, ino, kind)) in names.iter().enumerate() {
            let length = if number + 1 == names.len() { end - at } else { length(name) as u32 };
            encode_dir_entry(bytes, at, length, Some(ino), name, Some(kind), &self.format)?;
            at += length;
        }
        if names.is_empty() {
            encode_dir_entry(bytes, 0, end, None, b"", None, &self.format)?;
        }
        Ok(())
    }

    fn version(&self) -> Result<HashVersion> {
        let hash = &self.superblock.hash;
        let version = HashVersion::from_disk(hash.default_version, self.superblock.hash_unsigned());
        version.ok_or_else(|| Error::Option("the volume's hash of names is unknown".into()))
    }

    /// The root in block 0, then the leaves, then the nodes between them.
    fn tree(&self, dots: &[Name<'_>], names: &[Name<'_>]) -> Result<Blocks> {
        let version = self.version()?;
        let mut hashed = names
            .iter()
            .map(|&name| match dir_hash(name.0, version, &self.superblock.hash.seed) {
                Ok(hash) => Ok((hash.major, hash.minor, name)),
                Err(error) => Err(Error::Device(VolumeError::Invalid(error.to_string()))),
            })
            .collect::<Result<Vec<_>>>()?;
        hashed.sort_unstable_by_key(|&(major, minor, (name, ..))| (major, minor, name));
        let cuts = self.cut(hashed.iter().map(|(.., (name, ..))| length(name)));
        let sorted: Vec<Name<'_>> = hashed.iter().map(|&(.., name)| name).collect();
        let mut blocks = vec![Vec::new()];
        let mut children = Vec::with_capacity(cuts.len());
        let ends = cuts.iter().skip(1).copied().chain([sorted.len()]);
        for (&start, end) in cuts.iter().zip(ends) {
            let hash = hashed.get(start).map_or(0, |(hash, ..)| *hash);
            let goes_on = start > 0 && hashed.get(start - 1).is_some_and(|(before, ..)| *before == hash);
            let child = Lblk(blocks.len() as u32);
            children.push(HtreeEntry { hash: hash | u32::from(goes_on), child });
            blocks.push(self.row(sorted.get(start..end).unwrap_or_default())?);
        }
        let levels = self.nodes(&mut blocks, &mut children)?;
        let mut root = vec![0; self.format.block_size as usize];
        self.fill(&mut root, dots, self.format.block_size)?;
        encode_htree_root_info(&mut root, version, 0)?;
        set_htree_levels(&mut root, levels)?;
        encode_htree_entries(&mut root, DirBlockKind::HtreeRoot, &children, &self.format)?;
        if let Some(first) = blocks.first_mut() {
            *first = root;
        }
        Ok(Blocks { blocks, indexed: true })
    }

    /// Nodes between the root and the leaves, until the root can hold the children. Returns their levels.
    fn nodes(&self, blocks: &mut Vec<Vec<u8>>, children: &mut Vec<HtreeEntry>) -> Result<u8> {
        let most = |kind| htree_capacity(kind, &self.format) as usize;
        let mut levels = 0;
        while children.len() > most(DirBlockKind::HtreeRoot) {
            levels += 1;
            if levels > self.format.htree_levels_max() {
                return Err(Error::TooLarge("a directory with so many names needs feature large_dir".into()));
            }
            let mut above = Vec::new();
            for part in children.chunks(most(DirBlockKind::HtreeNode)) {
                let mut node = vec![0; self.format.block_size as usize];
                encode_htree_entries(&mut node, DirBlockKind::HtreeNode, part, &self.format)?;
                let hash = part.first().map_or(0, |first| first.hash);
                above.push(HtreeEntry { hash, child: Lblk(blocks.len() as u32) });
                blocks.push(node);
            }
            *children = above;
        }
        Ok(levels)
    }
}

/// Bytes that a name takes in a block.
fn length(name: &[u8]) -> usize {
    entry_length(u8::try_from(name.len()).unwrap_or(u8::MAX)) as usize
}
