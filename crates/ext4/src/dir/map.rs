//! Locates and adds blocks of a directory, using the map editor: for operations and for the replay of fast commits.

use super::edit::DirMap;
use crate::alloc::Space;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::inode::draft::Draft;
use crate::map::edit::{self, Form, Leaf};
use std::cell::RefCell;
use std::ops::Range;
use uext4_ondisk::ext4::{Extent, Incompat, InodeFlags};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// The map of a directory, and the source of new blocks.
pub(crate) struct BlockMap<'s, S> {
    space: &'s mut S,
    /// The leaf used last: it maps many blocks of a directory.
    leaf: RefCell<Option<Leaf>>,
}

impl<'s, S: Space> BlockMap<'s, S> {
    pub(crate) fn new(space: &'s mut S) -> Self {
        BlockMap { space, leaf: RefCell::new(None) }
    }

    /// The extent that maps a block.
    fn extent(&self, blocks: &impl Blocks, draft: &Draft, number: Lblk) -> Result<Option<Extent>> {
        let mut known = self.leaf.borrow_mut();
        let leaf = match known.take().filter(|leaf| leaf.window.contains(&number.get())) {
            Some(leaf) => leaf,
            None => edit::leaf(blocks, draft, number)?,
        };
        Ok(known.insert(leaf).find(number))
    }

    /// Block `number - 1`, which lies in the same cluster. Checks that it has the right place in the cluster.
    fn before(&self, blocks: &impl Blocks, draft: &Draft, number: u32, size: u32) -> Result<Pblk> {
        let before = Lblk(number - 1);
        let base = u64::from(blocks.ground().superblock.geometry.first_data_block());
        let block = self.extent(blocks, draft, before)?.and_then(|extent| extent.physical_of(before));
        let inside = u64::from(before.get() % size);
        let sound = block.filter(|block| block.get().wrapping_sub(base) % u64::from(size) == inside);
        sound.ok_or_else(|| {
            Corrupt::from(CorruptKind::ExtentPhysical).in_inode(draft.ino).at_lblk(before).into()
        })
    }
}

/// Blocks allocated in advance for the nodes of a map.
struct MapBlockPool<'r, S> {
    taken: &'r mut Vec<Pblk>,
    space: &'r mut S,
}

impl<S: Space> Space for MapBlockPool<'_, S> {
    fn take(&mut self, _: &mut impl Blocks, _: Ino, count: usize, _: u64) -> Result<Vec<Pblk>> {
        let left = self.taken.len().checked_sub(count).ok_or(Error::NoSpace)?;
        Ok(self.taken.split_off(left))
    }

    fn take_spare(
        &mut self,
        blocks: &mut impl Blocks,
        ino: Ino,
        count: usize,
        limit: u64,
    ) -> Result<Vec<Pblk>> {
        self.space.take_spare(blocks, ino, count, limit)
    }

    fn give_back(&mut self, blocks: &mut impl Blocks, ino: Ino, runs: &[(Pblk, u64)]) -> Result<()> {
        self.space.give_back(blocks, ino, runs)
    }
}

impl<S: Space> DirMap for BlockMap<'_, S> {
    fn find(&self, blocks: &impl Blocks, draft: &Draft, number: Lblk) -> Result<Option<Pblk>> {
        let extent = self.extent(blocks, draft, number)?.filter(|extent| !extent.unwritten);
        let block = extent.and_then(|extent| extent.physical_of(number));
        block.iter().try_for_each(|block| blocks.claim(*block, draft.ino, number))?;
        Ok(block)
    }

    fn append(
        &mut self,
        blocks: &mut impl Blocks,
        draft: &mut Draft,
        first: Lblk,
        count: u32,
    ) -> Result<Vec<Pblk>> {
        let reach = Form::of(&draft.disk).map_or(0, Form::reach);
        let (first, size) = (first.get(), blocks.ground().superblock.geometry.cluster_blocks());
        // With clusters, the directory's last cluster may have unused blocks.
        let inside = first % size;
        let before = if inside > 0 { Some(self.before(blocks, draft, first, size)?) } else { None };
        let (rest, end) = (if inside > 0 { size - inside } else { 0 }.min(count), first + count);
        let starts =
            [first].into_iter().filter(|_| rest > 0).chain((first + rest..end).step_by(size as usize));
        if let Some(next) = before.map(|before| Pblk(before.get() + 1))
            && !blocks.ground().zones.allows(next.get(), rest.into())
        {
            let corrupt = Corrupt::from(CorruptKind::ExtentPhysical).in_inode(draft.ino);
            return Err(corrupt.at_lblk(Lblk(first)).at_block(next).into());
        }
        let runs: Vec<Range<u32>> = starts.map(|at| at..end.min(at - at % size + size)).collect();
        // Blocks for data and nodes are allocated together, since either kind alone would be useless.
        let data = runs.len() - usize::from(rest > 0);
        let nodes = edit::nodes(blocks, draft, &runs).map_err(|error| match error {
            Error::Exists => {
                let what = "blocks of the directory are mapped past its end".into();
                Error::CorruptInode { ino: draft.ino, what }
            }
            error => error,
        })?;
        draft.counted(blocks.ground(), (data + nodes) as i64)?;
        let mut taken = self.space.take(blocks, draft.ino, data + nodes, reach)?;
        let mut reserve = taken.split_off(data);
        let homes = before.map(|before| Pblk(before.get() + 1)).into_iter().filter(|_| rest > 0).chain(taken);
        self.leaf = RefCell::new(None);
        draft.count(blocks.ground(), data as i64)?;
        let mut places = Vec::with_capacity(count as usize);
        for (run, physical) in runs.iter().zip(homes) {
            let (logical, length) = (Lblk(run.start), run.end - run.start);
            let extent = Extent { logical, length, physical, unwritten: false };
            let mut space = MapBlockPool { taken: &mut reserve, space: self.space };
            edit::insert(blocks, &mut space, draft, extent)?;
            places.extend((physical.get()..).take(length as usize).map(Pblk));
        }
        // A run that continues the previous extent needs no new one, so blocks for nodes may be left over.
        let spare: Vec<_> = reserve.into_iter().map(|block| (block, u64::from(size))).collect();
        self.space.give_back(blocks, draft.ino, &spare)?;
        Ok(places)
    }

    fn start(&mut self, blocks: &impl Blocks, draft: &mut Draft) -> Result<()> {
        self.leaf = RefCell::new(None);
        if blocks.ground().superblock.features.incompat.contains(Incompat::EXTENTS) {
            draft.disk.flags |= InodeFlags::EXTENTS;
        }
        edit::start(draft)
    }
}
