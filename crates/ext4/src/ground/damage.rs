//! Damaged group descriptors that a read-only open goes on with.

use std::fmt;
use uext4_ondisk::Corrupt;

/// Group descriptors that were damaged when the volume was opened, which only a read-only open survives.
///
/// What is read of files in these groups is what is found where the descriptors say, and may be wrong or missing.
/// Inodes of volumes with `metadata_csum` have checksums of their own, so there it is wrong only if those are, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorDamage {
    /// Groups whose descriptors are damaged.
    pub groups: u32,
    /// Those of them whose descriptors lead to impossible places, whatever their checksums: their inodes cannot be
    /// read.
    pub impossible: u32,
    /// The damage of the first one, its group and block.
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
