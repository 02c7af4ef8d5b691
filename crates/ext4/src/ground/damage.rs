//! Damaged group descriptors that a read-only open tolerates.

use std::fmt;
use uext4_ondisk::Corrupt;

/// Group descriptors that were damaged when the volume was opened. Only a read-only open tolerates them.
///
/// Files in these groups are read from where the descriptors point, so they may be wrong or missing. With
/// `metadata_csum`, inodes have checksums of their own, which expose a wrong place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorDamage {
    /// Groups whose descriptors are damaged.
    pub groups: u32,
    /// Those of them whose descriptors point to impossible places. Their inodes cannot be read.
    pub impossible: u32,
    /// The first damage, with its group and block.
    pub first: Corrupt,
}

impl fmt::Display for DescriptorDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (are, these) = if self.groups == 1 { ("is", "this group") } else { ("are", "these groups") };
        let plural = if self.groups == 1 { "" } else { "s" };
        write!(
            f,
            "{} group descriptor{plural} {are} damaged (first: {}): files in {these} may read wrong or not at all",
            self.groups, self.first
        )
    }
}
