//! Number types that must not be mixed up: blocks of a file, blocks of the volume, inodes and groups.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number itself.
            pub const fn get(self) -> $inner {
                self.0
            }

            /// This number plus `count`, unless it does not fit.
            pub const fn checked_add(self, count: $inner) -> Option<Self> {
                match self.0.checked_add(count) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// How far this number lies past `earlier`; `None` if it lies before it.
            pub const fn distance_from(self, earlier: Self) -> Option<$inner> {
                self.0.checked_sub(earlier.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// A logical block: number of a file-system block inside one file, counted from 0.
    Lblk(u32)
}

number! {
    /// A physical block: number of a file-system block inside the volume, counted from 0 at the volume's
    /// first byte.
    Pblk(u64)
}

number! {
    /// An inode number. Valid numbers start at 1; 0 means "no inode" on disk and is refused where one is
    /// needed.
    Ino(u32)
}

number! {
    /// A block group, counted from 0.
    Group(u32)
}

impl Lblk {
    /// The byte offset in the file of this block's first byte, for a block size given in bytes.
    pub fn byte_offset(self, block_size: u32) -> u64 {
        // Cannot overflow: both factors are below 2³².
        u64::from(self.0).saturating_mul(u64::from(block_size))
    }
}

impl Pblk {
    /// The byte offset on the volume of this block's first byte, for a block size given in bytes.
    pub fn byte_offset(self, block_size: u32) -> Option<u64> {
        self.0.checked_mul(u64::from(block_size))
    }
}

impl Ino {
    /// Inode holding the list of bad blocks.
    pub const BAD_BLOCKS: Ino = Ino(1);
    /// The root directory.
    pub const ROOT: Ino = Ino(2);
    /// User quota file.
    pub const USER_QUOTA: Ino = Ino(3);
    /// Group quota file.
    pub const GROUP_QUOTA: Ino = Ino(4);
    /// Boot loader.
    pub const BOOT_LOADER: Ino = Ino(5);
    /// Undelete directory, never used.
    pub const UNDELETE: Ino = Ino(6);
    /// Inode owning the blocks reserved for growth of the group descriptors.
    pub const RESIZE: Ino = Ino(7);
    /// The journal, usually.
    pub const JOURNAL: Ino = Ino(8);

    /// `number` as an inode number unless it is 0.
    pub const fn nonzero(number: u32) -> Option<Ino> {
        if number == 0 { None } else { Some(Ino(number)) }
    }
}

/// A range of physical blocks `[first, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRange {
    /// The first block of the range.
    pub first: Pblk,
    /// The block after the last one.
    pub end: Pblk,
}

impl BlockRange {
    /// Whether `count` blocks from `start` on lie inside the range. An empty run is inside if its start is.
    pub fn contains(&self, start: Pblk, count: u64) -> bool {
        start >= self.first && start < self.end && start.checked_add(count).is_some_and(|end| end <= self.end)
    }

    /// Whether `count` blocks from `start` on share a block with the range.
    pub fn overlaps(&self, start: Pblk, count: u64) -> bool {
        let end = Pblk(start.0.saturating_add(count));
        self.first < self.end && start < end && start < self.end && end > self.first
    }
}
