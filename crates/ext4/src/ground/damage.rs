//! Damaged group descriptors that a read-only open goes on with.

use std::fmt;
use uext4_ondisk::Corrupt;

/// Group descriptors that were damaged when the volume was opened. Only a read-only open goes on with them.
///
/// Files in these groups are read from where the descriptors say. They may be wrong or missing. With `metadata_csum`,
/// inodes have checksums of their own, which tell a wrong place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DescriptorDamage {
    /// Groups whose descriptors are damaged.
    pub groups: u32,
    /// Of these, the groups whose descriptors lead to impossible places. Their inodes cannot be read.
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
