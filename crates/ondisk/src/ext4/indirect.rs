//! Indirect block maps: the 15 block numbers in an inode of ext2 and ext3, and the blocks full of block numbers
//! that the last three of them lead to.
//!
//! The first 12 numbers are data blocks, the 13th a block of numbers (single indirect), the 14th a block of such
//! blocks (double), the 15th one more level (triple). All numbers are little-endian and 32 bits wide, whatever
//! the volume's features say; 0 is a hole, and above the last level a hole of all that it would lead to. There
//! is no unwritten state, and pointer blocks carry no checksum.
//!
//! Source: `Documentation/filesystems/ext4/ifork.rst` ("Direct/Indirect Block Addressing") and the behaviour of
//! `fs/ext4/indirect.c`.

use crate::bytes::{array_at, index};
use crate::error::{Corrupt, CorruptKind};
use crate::ext4::inode::I_BLOCK_SIZE;
use crate::numbers::{Lblk, Pblk};

const STRUCTURE: &str = "pointer block";
/// Bytes of a block number.
const POINTER_SIZE: usize = 4;
/// Data blocks that the inode names itself.
pub const DIRECT_POINTERS: u32 = 12;
/// Levels of pointer blocks under the last of the inode's numbers.
pub const MAX_INDIRECT_DEPTH: u32 = 3;
/// Logical blocks that any file can have: the last 32-bit number is none, as in extent trees.
const LOGICAL_BLOCKS: u64 = 0xFFFF_FFFF;

/// How logical blocks are spread over an indirect map: depends on the block size only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectLayout {
    /// log2 of the block numbers in a block: 8 to 14.
    log: u32,
}

/// The way to one logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectPath {
    layout: IndirectLayout,
    depth: u32,
    /// First logical block under the inode's number that the path starts at.
    base: u64,
    /// The looked-up block, counted from there.
    offset: u64,
}

impl IndirectLayout {
    /// The layout for blocks of `block_size` bytes, a power of two from 1024 to 65536.
    pub fn new(block_size: u32) -> IndirectLayout {
        IndirectLayout { log: block_size.clamp(1024, 65_536).ilog2().saturating_sub(2) }
    }

    /// Block numbers in a pointer block.
    pub fn pointers_per_block(self) -> u32 {
        1_u32.checked_shl(self.log).unwrap_or(u32::MAX)
    }

    /// Logical blocks under a pointer block of this level (1: it names data blocks); at level 0, one.
    fn span(self, level: u32) -> u64 {
        // At most 14 × 3 bits.
        1_u64.checked_shl(self.log.saturating_mul(level)).unwrap_or(u64::MAX)
    }

    /// Logical blocks that can be mapped: the first one behind every map. The levels limit it for blocks of 1 to
    /// 4 KiB, the width of logical block numbers above.
    pub fn blocks(self) -> u64 {
        let levels = (1..=MAX_INDIRECT_DEPTH).map(|level| self.span(level));
        levels.fold(u64::from(DIRECT_POINTERS), u64::saturating_add).min(LOGICAL_BLOCKS)
    }

    /// The way to `lblk`, or `None` behind the last block that can be mapped.
    pub fn path(self, lblk: Lblk) -> Option<IndirectPath> {
        let block = u64::from(lblk.get());
        if block >= self.blocks() {
            return None;
        }
        let direct = u64::from(DIRECT_POINTERS);
        if block < direct {
            return Some(IndirectPath { layout: self, depth: 0, base: 0, offset: block });
        }
        let mut base = direct;
        for depth in 1..=MAX_INDIRECT_DEPTH {
            let offset = block.checked_sub(base)?;
            let span = self.span(depth);
            if offset < span {
                return Some(IndirectPath { layout: self, depth, base, offset });
            }
            base = base.checked_add(span)?;
        }
        None
    }
}

impl IndirectPath {
    /// Pointer blocks on the way: 0 to 3.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Which of the inode's 15 numbers the way starts at.
    pub fn root_index(&self) -> u32 {
        match self.depth {
            0 => u32::try_from(self.offset).unwrap_or(u32::MAX),
            depth => DIRECT_POINTERS.saturating_add(depth).saturating_sub(1),
        }
    }

    /// Which number of the way's pointer block at `level` leads on. Level 1 names the data block itself.
    pub fn index(&self, level: u32) -> u32 {
        let under = self.layout.span(level.saturating_sub(1));
        let number = self.offset.checked_div(under).unwrap_or(0);
        let inside = number.checked_rem(self.layout.span(1)).unwrap_or(0);
        u32::try_from(inside).unwrap_or(u32::MAX)
    }

    /// The logical blocks `[first, end)` under the way's pointer block at `level`; for a direct block, those of
    /// all direct blocks.
    pub fn window(&self, level: u32) -> (u64, u64) {
        if self.depth == 0 {
            return (0, u64::from(DIRECT_POINTERS));
        }
        let span = self.layout.span(level);
        let number = self.offset.checked_div(span).unwrap_or(0);
        let first = self.base.saturating_add(number.saturating_mul(span));
        (first, first.saturating_add(span).min(self.layout.blocks()))
    }

    /// The logical blocks under the numbers `pointers` (a range of indexes) of the way's pointer block at
    /// `level`.
    pub fn window_of(&self, level: u32, pointers: std::ops::Range<u32>) -> (u64, u64) {
        let under = self.layout.span(level.saturating_sub(1));
        let (first, end) = self.window(level);
        let at = |pointer: u32| first.saturating_add(u64::from(pointer).saturating_mul(under)).min(end);
        (at(pointers.start), at(pointers.end))
    }
}

/// Logical blocks in a row whose numbers follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectRun {
    /// First logical block.
    pub logical: Lblk,
    /// Blocks, at least 1.
    pub length: u32,
    /// First physical block, not checked against the volume.
    pub physical: Pblk,
}

/// Block numbers in a row: those of an inode, or of a pointer block. Every value is possible; what a number
/// points to is the caller's to check.
#[derive(Clone, Copy, Debug)]
pub struct PointerBlock<'a> {
    bytes: &'a [u8],
}

impl<'a> PointerBlock<'a> {
    /// A whole pointer block. `bytes` may go on after it.
    pub fn new(bytes: &'a [u8], layout: IndirectLayout) -> Result<PointerBlock<'a>, Corrupt> {
        let size = index(layout.pointers_per_block()).saturating_mul(POINTER_SIZE);
        let bytes = bytes.get(..size).ok_or(CorruptKind::Truncated(STRUCTURE))?;
        Ok(PointerBlock { bytes })
    }

    /// The 15 numbers of an inode.
    pub fn root(i_block: &'a [u8; I_BLOCK_SIZE]) -> PointerBlock<'a> {
        PointerBlock { bytes: i_block }
    }

    /// The first 12 numbers of an inode, which are data blocks.
    pub fn direct(i_block: &'a [u8; I_BLOCK_SIZE]) -> PointerBlock<'a> {
        let size = index(DIRECT_POINTERS).saturating_mul(POINTER_SIZE);
        PointerBlock { bytes: i_block.get(..size).unwrap_or_default() }
    }

    /// How many numbers there are.
    pub fn count(&self) -> u32 {
        u32::try_from(self.bytes.len() / POINTER_SIZE).unwrap_or(u32::MAX)
    }

    /// The block that number `position` names; `None` for a hole and behind the last number.
    pub fn get(&self, position: u32) -> Option<Pblk> {
        let bytes = array_at(self.bytes, index(position).checked_mul(POINTER_SIZE)?)?;
        let number = u32::from_le_bytes(*bytes);
        (number != 0).then_some(Pblk(u64::from(number)))
    }

    /// The positions of the holes in a row around `position`; empty if there is none.
    pub fn gap(&self, position: u32) -> std::ops::Range<u32> {
        if self.get(position).is_some() {
            return position..position;
        }
        let before = (0..position).rev().take_while(|&at| self.get(at).is_none()).last();
        let behind = (position..self.count()).find(|&at| self.get(at).is_some());
        before.unwrap_or(position)..behind.unwrap_or_else(|| self.count().max(position.saturating_add(1)))
    }

    /// The runs of data blocks, if the first number stands for logical block `window.0`; nothing from
    /// `window.1` on.
    pub fn runs(&self, window: (u64, u64)) -> impl Iterator<Item = IndirectRun> + use<'a> {
        let numbers = self.bytes.chunks_exact(POINTER_SIZE).filter_map(|bytes| array_at(bytes, 0).copied());
        let placed = (window.0..window.1).zip(numbers.map(u32::from_le_bytes));
        let mut mapped = placed
            .filter(|(_, number)| *number != 0)
            .filter_map(|(logical, number)| Some((u32::try_from(logical).ok()?, number)))
            .peekable();
        std::iter::from_fn(move || {
            let (logical, physical) = mapped.next()?;
            let mut length = 1_u32;
            let continues = |next: &(u32, u32), length: u32| {
                Some(next.0) == logical.checked_add(length) && Some(next.1) == physical.checked_add(length)
            };
            while mapped.next_if(|next| continues(next, length)).is_some() {
                length = length.saturating_add(1);
            }
            Some(IndirectRun { logical: Lblk(logical), length, physical: Pblk(u64::from(physical)) })
        })
    }
}
