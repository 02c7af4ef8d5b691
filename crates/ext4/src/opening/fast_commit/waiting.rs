//! Names and ranges that wait for the record of their inode, which is free, or has lost its last name.
//!
//! The kernel writes names first, then ranges, then the inode, unless the file is new. Only the record tells whether
//! the number still belongs to the same file. So no change is applied to that file before the record comes.

use crate::ground::canvas::Canvas;
use crate::ground::error::Result;
use std::collections::BTreeMap;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::Extent;
use uext4_ondisk::jbd2::FastCommitName as Name;

/// Memory of a name beside its text.
pub(super) const NAME_COST: usize = 96;

/// A change of a file's mapping.
pub(super) enum Range {
    /// Map an extent, whose fields were checked.
    Add(Extent),
    /// Unmap the logical blocks from the first up to the second.
    Remove(u32, u32),
}

/// A directory, and the key by which it compares a name.
type NameKey = (Ino, Box<[u8]>);
/// The inode that the name leads to, and how the name is spelt.
type Named = (Ino, Box<[u8]>);

/// Changes that wait within one fast commit.
#[derive(Default)]
pub(super) struct Waiting {
    names: BTreeMap<NameKey, Named>,
    /// By inode, then in order of their records.
    ranges: BTreeMap<(Ino, u32), Range>,
    next: u32,
}

impl Waiting {
    /// Queues a name; its directory compares it by `key`. If the same name already waits for another inode, returns
    /// that inode.
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

    /// Drops a name that waits for `ino`. Returns whether there was one.
    pub(super) fn remove_name(&mut self, parent: Ino, ino: Ino, key: &[u8]) -> bool {
        if self.names.is_empty() {
            return false;
        }
        let key = (parent, key.into());
        let found = self.names.get(&key).is_some_and(|(waiting, _)| *waiting == ino);
        if found {
            self.names.remove(&key);
        }
        found
    }

    /// Queues a range.
    pub(super) fn add_range(&mut self, canvas: &mut Canvas<'_>, ino: Ino, range: Range) -> Result<()> {
        canvas.charge(2 * size_of::<Range>())?;
        self.ranges.insert((ino, self.next), range);
        // Never wraps: each range is charged for, and the memory limit ends the replay before.
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Takes the ranges of an inode, in order, when its record has come.
    pub(super) fn take_ranges(&mut self, ino: Ino) -> Vec<Range> {
        let mut taken = Vec::new();
        while let Some((key, _)) = self.ranges.range((ino, 0)..=(ino, u32::MAX)).next() {
            let key = *key;
            taken.extend(self.ranges.remove(&key));
        }
        taken
    }

    /// Ends a fast commit. Returns the names that still wait. Ranges that still wait belonged to deleted files.
    pub(super) fn end(&mut self) -> BTreeMap<NameKey, Named> {
        self.ranges.clear();
        std::mem::take(&mut self.names)
    }
}
