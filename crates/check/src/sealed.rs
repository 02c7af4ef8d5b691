//! Files that fs-verity seals: the descriptor, and a hash tree that is all there. With
//! [`CheckOptions::contents`](crate::CheckOptions::contents) also their contents, when all inodes are known.

use crate::kinds;
use crate::map::Sink;
use crate::report::Findings;
use crate::scan::Scan;
use std::collections::VecDeque;
use uext4::{Error, OpenOptions, Result, Volume};
use uext4_ondisk::ext4::{
    Extent, Inode, InodeFlags, VERITY_DESCRIPTOR_MAX, VerityDescriptor, find_verity_descriptor,
    verity_tree_start,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Place};

/// Passes a map on, and remembers what it has behind the contents.
pub(crate) struct BehindContents<'s> {
    sink: &'s mut dyn Sink,
    /// The blocks from the first one of the tree on are mapped and written up to this one.
    covered: u64,
    /// The last extents: as many as a descriptor can lie in.
    last: VecDeque<Extent>,
    /// Blocks that a descriptor can have.
    most: u64,
}

impl<'s> BehindContents<'s> {
    /// For an inode on a volume with such blocks.
    pub(crate) fn new(sink: &'s mut dyn Sink, inode: &Inode, block: u32) -> Self {
        let block = u64::from(block);
        let start = verity_tree_start(inode.size).unwrap_or(u64::MAX) / block;
        let most = u64::from(VERITY_DESCRIPTOR_MAX) / block + 2;
        BehindContents { sink, covered: start, last: VecDeque::new(), most }
    }

    /// The block behind the last one.
    fn end(&self) -> u64 {
        self.last.back().map_or(0, |last| u64::from(last.logical_end().get()))
    }

    /// Where a block is.
    fn find(&self, block: u64) -> Option<u64> {
        let block = u32::try_from(block).ok().map(Lblk)?;
        let extent =
            self.last.iter().find(|extent| extent.logical <= block && block < extent.logical_end())?;
        extent.physical_of(block).map(|physical| physical.get()).filter(|_| !extent.unwritten)
    }
}

impl Sink for BehindContents<'_> {
    fn node(&mut self, block: u64) {
        self.sink.node(block);
    }

    fn extent(&mut self, extent: Extent) {
        self.sink.extent(extent);
        let (first, end) = (u64::from(extent.logical.get()), u64::from(extent.logical_end().get()));
        if first <= self.covered && !extent.unwritten {
            self.covered = self.covered.max(end);
        }
        self.last.push_back(extent);
        let needed = end.saturating_sub(self.most);
        while self.last.front().is_some_and(|first| u64::from(first.logical_end().get()) <= needed) {
            self.last.pop_front();
        }
    }
}

/// What was remembered of a sealed file.
pub(crate) struct Behind {
    covered: u64,
    end: u64,
    /// The last blocks and where they are, in order.
    blocks: Vec<(u64, Option<u64>)>,
}

impl BehindContents<'_> {
    pub(crate) fn found(self) -> Behind {
        let end = self.end();
        let blocks = (end.saturating_sub(self.most)..end).map(|block| (block, self.find(block)));
        Behind { covered: self.covered, end, blocks: blocks.collect() }
    }
}

impl Scan<'_, '_> {
    /// Checks what lies behind the contents of a sealed file.
    pub(crate) fn check_sealed(
        &mut self,
        ino: Ino,
        place: Place,
        inode: &Inode,
        behind: &Behind,
    ) -> Result<()> {
        match self.layout_of(inode, behind)? {
            Ok(()) => self.sealed.push(ino.get()),
            Err(fault) => self.findings.corrupt(&kinds::VERITY, place, &fault),
        }
        Ok(())
    }

    /// A sealed file cannot be inside its inode.
    pub(crate) fn check_sealed_inline(&mut self, place: Place, inode: &Inode) {
        if inode.flags.contains(InodeFlags::VERITY) {
            let fault = Corrupt::new(CorruptKind::Verity("the file has no extents"));
            self.findings.corrupt(&kinds::VERITY, place, &fault);
        }
    }

    fn layout_of(&mut self, inode: &Inode, behind: &Behind) -> Result<std::result::Result<(), Corrupt>> {
        let wrong = |text| Ok(Err(Corrupt::new(CorruptKind::Verity(text))));
        let size = self.shared.sb.geometry.block_size();
        let block = u64::from(size);
        if !inode.uses_extents() {
            return wrong("the file has no extents");
        }
        let Some(last) = behind.blocks.last().and_then(|(_, place)| *place) else {
            return wrong("the file has no blocks");
        };
        let field = self.nodes.block(last, 0)?.last_chunk().copied().unwrap_or_default();
        let (start, length) = match find_verity_descriptor(field, behind.end * block, inode.size, size) {
            Ok(found) => found,
            Err(fault) => return Ok(Err(fault)),
        };
        let mut bytes = Vec::new();
        for (number, place) in behind.blocks.iter().filter(|(number, _)| *number >= start / block) {
            let Some(place) = place else { return wrong("a block of the descriptor is not written") };
            debug_assert!(bytes.len() as u64 == (number - start / block) * block);
            bytes.extend_from_slice(self.nodes.block(*place, 0)?);
        }
        let bytes = bytes.get(..length as usize).unwrap_or_default();
        let descriptor = match VerityDescriptor::decode(bytes, inode.size, size) {
            Ok(descriptor) => descriptor,
            Err(fault) => return Ok(Err(fault)),
        };
        if descriptor.tree_size() > self.shared.sb.geometry.blocks_count().saturating_mul(block) {
            return wrong("the hash tree is larger than the volume");
        }
        let tree = verity_tree_start(inode.size).unwrap_or(u64::MAX).saturating_add(descriptor.tree_size());
        if tree > start {
            return wrong("the descriptor lies in the hash tree");
        }
        if behind.covered.saturating_mul(block) < tree {
            return wrong("a block of the hash tree is not written");
        }
        Ok(Ok(()))
    }
}

/// Compares the contents of sealed files with their hashes.
pub(crate) fn check_contents(volume: &Volume, sealed: &[u32], findings: &mut Findings) -> Result<()> {
    for &ino in sealed {
        let place = Place { inode: Some(Ino(ino)), ..Place::default() };
        let file = volume.open_inode(Ino(ino), OpenOptions::new().read(true));
        match file.and_then(|file| file.verify_verity(&mut |_| {})) {
            Ok(_) => {}
            Err(Error::Corrupt(fault)) => findings.corrupt(&kinds::VERITY_HASH, place, &fault),
            // Other passes say what is wrong with such an inode.
            Err(Error::CorruptInode { .. } | Error::NotFound | Error::Stale(_) | Error::NotRegular) => {
                findings.not_examined("contents of sealed files", "their inodes are damaged");
            }
            Err(other) => return Err(other),
        }
    }
    Ok(())
}
