//! Mappings: where a range of a file lives, as plain values in bytes.

use arrayvec::ArrayVec;

/// State of a mapped range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Allocated, holds file data.
    Written,
    /// Allocated, but reads as zeros until converted.
    Unwritten,
    /// Not allocated; reads as zeros.
    Hole,
    /// Data inside the inode, which the file system reads itself. Never in a snapshot.
    Inline,
}

impl State {
    /// Name for JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            State::Written => "written",
            State::Unwritten => "unwritten",
            State::Hole => "hole",
            State::Inline => "inline",
        }
    }
}

/// How an inode maps its blocks, as far as plans depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MapKind {
    /// Extents, which can be unwritten.
    #[default]
    Extents,
    /// Pointers without an unwritten state: a new block is zeroed on the device before it becomes reachable.
    Indirect,
    /// No map: the contents lie inside the inode, or the first write may put them there.
    Inline,
    /// A map, but the file system itself writes and reads the contents, through its journal: no written block is
    /// published, so that no request to the device finds one.
    Journaled,
}

impl MapKind {
    /// Whether the file system reads and writes the contents itself.
    #[inline]
    pub fn is_held(self) -> bool {
        matches!(self, MapKind::Inline | MapKind::Journaled)
    }

    /// The kind whose discriminant this is.
    #[inline]
    pub(crate) fn of(number: u8) -> MapKind {
        match number {
            number if number == MapKind::Indirect as u8 => MapKind::Indirect,
            number if number == MapKind::Inline as u8 => MapKind::Inline,
            number if number == MapKind::Journaled as u8 => MapKind::Journaled,
            _ => MapKind::Extents,
        }
    }
}

/// A range of a file with one state and, unless it is a hole, one contiguous place on the device. All in
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First byte in the file.
    pub logical: u64,
    /// First byte on the device; 0 for a hole.
    pub physical: u64,
    /// Length in bytes, never 0.
    pub length: u64,
    /// What is there.
    pub state: State,
}

impl Piece {
    /// First byte after the piece in the file.
    pub fn end(&self) -> u64 {
        self.logical + self.length
    }
}

/// Maximum number of pieces in one plan; the general route splits a request with more.
pub const PIECES_MAX: usize = 32;

/// The pieces of one request, in file order, without gaps.
pub type Pieces = ArrayVec<Piece, PIECES_MAX>;

/// A range of a file in bytes, never empty and never beyond 2⁶³.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub pos: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Range {
    /// First byte after the range.
    #[inline]
    pub fn end(self) -> u64 {
        self.pos + self.length
    }
}

/// One run of blocks as a file system publishes it into a snapshot. Units: file-system blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First logical block.
    pub first: u32,
    /// Blocks; the run ends at or before block 2³².
    pub length: u64,
    /// State.
    pub state: State,
    /// First physical block; ignored for holes.
    pub physical: u64,
}

impl Run {
    /// The part of it that lies in `blocks`.
    pub fn within(&self, blocks: std::ops::Range<u64>) -> Option<Run> {
        let start = u64::from(self.first);
        let (first, end) = (start.max(blocks.start), (start + self.length).min(blocks.end));
        let cut = Run {
            first: u32::try_from(first).ok()?,
            length: end.checked_sub(first).filter(|&length| length > 0)?,
            physical: self.physical.wrapping_add(first - start),
            ..*self
        };
        Some(cut)
    }
}
