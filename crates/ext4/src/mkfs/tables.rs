//! Places bitmaps and inode tables: with `flex_bg` those of several groups (16 by default) together, else each in its
//! own group.

use super::error::{Error, Result};
use super::space::Space;
use uext4_ondisk::Group;
use uext4_ondisk::ext4::Geometry;

/// Locations of one group's metadata.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tables {
    pub(super) block_bitmap: u64,
    pub(super) inode_bitmap: u64,
    pub(super) inode_table: u64,
}

/// How the tables are distributed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Spread {
    /// Each group has its own. Bitmaps are shifted by this many blocks from group to group, to spread them over the
    /// disks of a stripe.
    Own { stride: u64 },
    /// Together for each 2^n groups.
    Flex(u8),
    /// All at the start of the volume.
    Packed,
}

/// Takes superblocks, descriptors and the blocks reserved after them, then places the tables of all groups.
pub(super) fn place(geometry: &Geometry, spread: Spread, space: &mut Space) -> Result<Vec<Tables>> {
    for group in geometry.groups() {
        let first = first_block(geometry, group);
        space.take(first, u64::from(geometry.base_metadata_blocks(group)));
    }
    if geometry.first_data_block() == 0 {
        // With 1 KiB blocks the superblock is in block 1 and block 0 is unused.
        space.take(0, geometry.superblock_position().0.get() + 1);
        let front = u64::from(geometry.base_metadata_blocks(Group(0)));
        space.take(geometry.superblock_position().0.get(), front);
    }
    let placer = Placer { geometry, space, count: u64::from(geometry.inode_table_blocks()) };
    match spread {
        Spread::Packed => placer.packed(),
        Spread::Flex(log) => placer.flex(u32::from(log)),
        Spread::Own { stride } => placer.own(stride),
    }
}

pub(super) fn first_block(geometry: &Geometry, group: Group) -> u64 {
    geometry.group_first_block(group).map_or(0, |block| block.get())
}

pub(super) fn last_block(geometry: &Geometry, group: Group) -> u64 {
    let blocks = u64::from(geometry.group_blocks(group).unwrap_or(1));
    first_block(geometry, group) + blocks.max(1) - 1
}

fn no_room() -> Error {
    Error::TooSmall {
        have: "the volume's blocks".into(),
        reason: "bitmaps and inode tables do not fit".into(),
    }
}

struct Placer<'a> {
    geometry: &'a Geometry,
    space: &'a mut Space,
    /// Blocks of an inode table.
    count: u64,
}

impl Placer<'_> {
    fn packed(self) -> Result<Vec<Tables>> {
        let mut tables = vec![Tables::default(); self.geometry.group_count() as usize];
        let mut goal = 0;
        let end = self.geometry.blocks_count() - 1;
        let mut next = |count: u64| {
            let found = self.space.search(goal, end, count).ok_or_else(no_room)?;
            self.space.place(found, count);
            goal = found;
            Ok::<u64, Error>(found)
        };
        for table in &mut tables {
            table.block_bitmap = next(1)?;
        }
        for table in &mut tables {
            table.inode_bitmap = next(1)?;
        }
        for table in &mut tables {
            table.inode_table = next(self.count)?;
        }
        Ok(tables)
    }

    fn own(self, stride: u64) -> Result<Vec<Tables>> {
        let mut all = Vec::with_capacity(self.geometry.group_count() as usize);
        for group in self.geometry.groups() {
            let (first, last) = (first_block(self.geometry, group), last_block(self.geometry, group));
            let mut start = first;
            if stride > 0 {
                start = self.space.search(first, last, 1).ok_or_else(no_room)? + self.count;
                if start <= last {
                    start += stride * u64::from(group.get()) % (last - start + 1);
                }
                if start > last {
                    start = first;
                }
            }
            let mut bitmap = || {
                let found = self.space.search(start, last, 1).or_else(|| self.space.search(first, last, 1));
                let found = found.ok_or_else(no_room)?;
                self.space.take(found, 1);
                Ok::<u64, Error>(found)
            };
            let (block_bitmap, inode_bitmap) = (bitmap()?, bitmap()?);
            let inode_table = self.space.search(first, last, self.count).ok_or_else(no_room)?;
            self.space.take(inode_table, self.count);
            all.push(Tables { block_bitmap, inode_bitmap, inode_table });
        }
        Ok(all)
    }

    fn flex(mut self, log: u32) -> Result<Vec<Tables>> {
        let mut all: Vec<Tables> = Vec::with_capacity(self.geometry.group_count() as usize);
        for group in self.geometry.groups() {
            let flex = self.flex_group(group, log);
            let before = all.last().copied().filter(|_| group.get() != flex.first.get());
            let block_bitmap =
                self.beside(&flex, group, before.map(|tables| tables.block_bitmap + 1), 1, 0)?;
            let inode_bitmap =
                self.beside(&flex, group, before.map(|tables| tables.inode_bitmap + 1), 1, flex.apart)?;
            let after = before.map(|tables| tables.inode_table + self.count);
            let inode_table = self.beside(&flex, group, after, self.count, 2 * flex.apart)?;
            all.push(Tables { block_bitmap, inode_bitmap, inode_table });
        }
        Ok(all)
    }

    fn flex_group(&self, group: Group, log: u32) -> Flex {
        let size = 1_u32 << log;
        let first = Group(group.get() / size * size);
        let last = Group((group.get() | (size - 1)).min(self.geometry.group_count() - 1));
        let groups = last.get() - first.get() + 1;
        // A single group leaves room for the tables of groups added when the volume grows.
        let apart = u64::from(if groups == 1 { size } else { groups });
        Flex { first, last, apart }
    }

    /// Places `count` blocks right after those of the previous group, or else `offset` blocks after the first place
    /// where those of all following groups fit too.
    fn beside(
        &mut self,
        flex: &Flex,
        group: Group,
        after: Option<u64>,
        count: u64,
        offset: u64,
    ) -> Result<u64> {
        let geometry = self.geometry;
        let last = last_block(geometry, flex.last);
        let start = match after {
            Some(after) if self.space.is_free(after, count) => after,
            _ => {
                let first = first_block(geometry, flex.first);
                let rest = u64::from(flex.last.get() - group.get() + 1) * count;
                let together = rest.min(u64::from(geometry.blocks_per_group()) / 4);
                let free = self.space.search(first, last, 1).ok_or_else(no_room)?;
                let shifted = free + offset.saturating_sub(1);
                let found = self
                    .space
                    .search(shifted, last, together)
                    .or_else(|| self.space.search(first, last, count));
                found.or_else(|| self.space.search(0, last, count)).ok_or_else(no_room)?
            }
        };
        let found = self.space.search(start, last, count).ok_or_else(no_room)?;
        self.space.place(found, count);
        Ok(found)
    }
}

/// Groups whose metadata lies together.
struct Flex {
    first: Group,
    last: Group,
    /// Blocks between the first block bitmap, the first inode bitmap and the first inode table.
    apart: u64,
}
