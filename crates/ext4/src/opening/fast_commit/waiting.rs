//! What waits for the record of its inode: names and ranges of an inode that nobody uses, or that has lost its last
//! name.
//!
//! The kernel writes names first, then ranges, then the inode, unless the file is new. Only the inode tells whether it
//! is the one that had the number before, so nothing is done to that one until then.

use crate::ground::canvas::Canvas;
use crate::ground::error::Result;
use std::collections::BTreeMap;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::Extent;
use uext4_ondisk::jbd2::FastCommitName as Name;

/// Bytes that a name takes in memory beside its text.
pub(super) const NAME_COST: usize = 96;

/// A change of a file's mapping.
pub(super) enum Range {
    /// Map an extent, whose fields were checked.
    Add(Extent),
    /// Unmap the logical blocks from the first up to the second.
    Remove(u32, u32),
}

/// A directory and what a name in it is compared by.
type Place = (Ino, Box<[u8]>);
/// What waits, and how the name is spelt.
type Named = (Ino, Box<[u8]>);

/// What waits within one fast commit.
#[derive(Default)]
pub(super) struct Waiting {
    names: BTreeMap<Place, Named>,
    /// By inode, then in order of their records.
    ranges: BTreeMap<(Ino, u32), Range>,
    next: u32,
}

impl Waiting {
    /// Lets a name wait, which is compared by `key`. Returns the inode that the same name waits for already, if that is
    /// another one.
    pub(super) fn add_name(
        &mut self,
        canvas: &mut Canvas<'_>,
        key: &[u8],
        name: &Name<'_>,
    ) -> Result<Option<Ino>> {
        canvas.charge(key.len() + name.name.len() + NAME_COST)?;
        let named = self.names.entry((name.parent, key.into()));
        let (other, _) = named.or_insert_with(|| (name.ino, name.name.into()));
        Ok(Some(*other).filter(|other| *other != name.ino))
    }

    /// Forgets a name that waits for `ino`. Returns whether it did.
    pub(super) fn remove_name(&mut self, parent: Ino, ino: Ino, key: &[u8]) -> bool {
        if self.names.is_empty() {
            return false;
        }
        let place = (parent, key.into());
        let found = self.names.get(&place).is_some_and(|(waiting, _)| *waiting == ino);
        if found {
            self.names.remove(&place);
        }
        found
    }

    /// Lets a range wait.
    pub(super) fn add_range(&mut self, canvas: &mut Canvas<'_>, ino: Ino, range: Range) -> Result<()> {
        canvas.charge(2 * size_of::<Range>())?;
        self.ranges.insert((ino, self.next), range);
        // What waits is charged for, so there never are as many.
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// The ranges of an inode, in order, once its record is there.
    pub(super) fn take_ranges(&mut self, ino: Ino) -> Vec<Range> {
        let mut taken = Vec::new();
        while let Some((place, _)) = self.ranges.range((ino, 0)..=(ino, u32::MAX)).next() {
            let place = *place;
            taken.extend(self.ranges.remove(&place));
        }
        taken
    }

    /// The end of a fast commit: the names. Ranges are those of files that were deleted.
    pub(super) fn end(&mut self) -> BTreeMap<Place, Named> {
        self.ranges.clear();
        std::mem::take(&mut self.names)
    }
}
