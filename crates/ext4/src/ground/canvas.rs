//! The canvas of a replay: the volume's blocks, with changes so far kept in memory. Nothing is written to the volume.

use super::blocks::Blocks;
use super::error::{Error, Result};
use super::state::Ground;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::rc::Rc;
use uext4_jbd2::Changes;
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// The volume, and the changed blocks.
pub(crate) struct Canvas<'v> {
    pub(crate) ground: &'v Ground,
    changed: Changes,
    bytes: u64,
    budget: u64,
    /// Bytes of everything else that is kept until the end.
    kept: Cell<u64>,
    /// Limit of `kept`.
    kept_max: u64,
    /// Map nodes and directory blocks read so far, with their inode; for a directory block also its number.
    claimed: RefCell<HashMap<u64, (Ino, Option<Lblk>)>>,
    /// Blocks mapped by the extents of all trees read so far.
    mapped: Cell<u64>,
    work: Work,
}

/// Bytes that replays have read or copied, and the limit.
#[derive(Clone)]
pub(crate) struct Work {
    done: Rc<Cell<u64>>,
    most: u64,
}

/// Most bytes to read or copy: some seconds.
const WORK_MAX: u64 = 4 << 30;
/// For large blocks, a limit in blocks. A name takes two, to read and to write a directory block: so 131072 names can
/// be replayed, which take at least 2 MiB of the log.
const WORK_BLOCKS: u64 = 1 << 18;

impl Work {
    /// No work done yet.
    pub(crate) fn new(ground: &Ground) -> Work {
        let block = u64::from(ground.superblock.geometry.block_size());
        Work { done: Rc::default(), most: WORK_MAX.max(WORK_BLOCKS * block) }
    }

    /// Accounts for more bytes read or copied. Small records on a small volume can cause a lot of work, and nothing
    /// else bounds the time of a replay.
    ///
    /// # Errors
    /// [`Error::Incompatible`] past the limit.
    pub(crate) fn add(&self, bytes: usize) -> Result<()> {
        self.done.set(self.done.get().saturating_add(bytes as u64));
        if self.is_over() {
            let feature = format!("fast commits that take more work than {} MiB of blocks", self.most >> 20);
            return Err(Error::Incompatible { action: "recover", feature });
        }
        Ok(())
    }

    /// Whether the limit is reached.
    pub(crate) fn is_over(&self) -> bool {
        self.done.get() > self.most
    }
}

/// Most bytes of inodes, names, ranges and extents in memory: the size of the volume, clamped to these bounds. The
/// lower one leaves a small volume room for everything else in 64 MiB; the upper one suffices to change a file of 2^20
/// extents, or a directory of as many names of 30 bytes.
const KEPT_MAX: std::ops::RangeInclusive<u64> = 16 << 20..=128 << 20;
/// Memory of an extent: among the released ones, and at the end among those with an owner.
const EXTENT_COST: usize = 64;
/// Bytes that a short look at a block counts as ([`Work`]).
const LOOK_WORK: usize = 256;
/// Memory of a tree node or directory block beside its contents.
const CLAIM_COST: usize = 96;

impl<'v> Canvas<'v> {
    /// Nothing changed yet; changes may take at most `budget` bytes.
    pub(crate) fn new(ground: &'v Ground, budget: u64, work: Work) -> Self {
        let geometry = &ground.superblock.geometry;
        let volume = geometry.blocks_count().saturating_mul(u64::from(geometry.block_size()));
        Canvas {
            ground,
            changed: Changes::new(),
            bytes: 0,
            budget,
            kept: Cell::default(),
            kept_max: volume.clamp(*KEPT_MAX.start(), *KEPT_MAX.end()),
            claimed: RefCell::default(),
            mapped: Cell::default(),
            work,
        }
    }

    /// As of [`Work::add`].
    pub(crate) fn work(&self, bytes: usize) -> Result<()> {
        self.work.add(bytes)
    }

    pub(crate) fn block_size(&self) -> usize {
        self.ground.superblock.geometry.block_size() as usize
    }

    /// Accounts for more memory kept until the end.
    ///
    /// # Errors
    /// [`Error::Incompatible`] past the limit.
    pub(crate) fn charge(&self, bytes: usize) -> Result<()> {
        self.kept.set(self.kept.get().saturating_add(bytes as u64));
        if self.kept.get() > self.kept_max {
            let feature = format!("fast commits that take more than {} MiB of memory", self.kept_max >> 20);
            return Err(Error::Incompatible { action: "recover", feature });
        }
        Ok(())
    }

    /// Records that a node of the map of `ino` is read. A node belongs to one inode only, so all nodes together hold no
    /// more than the volume does.
    ///
    /// # Errors
    /// [`Error::Corrupt`] or [`Error::CorruptInode`] if it was read before; those of [`Canvas::charge`].
    pub(crate) fn claim_node(&self, block: Pblk, ino: Ino) -> Result<()> {
        self.claim_as(block, (ino, None))
    }

    fn claim_as(&self, block: Pblk, owner: (Ino, Option<Lblk>)) -> Result<()> {
        let known = self.claimed.borrow().get(&block.get()).copied();
        match known {
            None => {
                self.charge(CLAIM_COST)?;
                self.claimed.borrow_mut().insert(block.get(), owner);
                Ok(())
            }
            // A directory block is read again for each of its names.
            Some(other) if other == owner && owner.1.is_some() => Ok(()),
            Some((other, _)) if other == owner.0 => {
                let corrupt = Corrupt::from(CorruptKind::Cycle("the map of the file"));
                Err(corrupt.in_inode(other).at_block(block).into())
            }
            Some((other, _)) => {
                let what = format!("block {block} of its map or directory is also inode {other}'s");
                Err(Error::CorruptInode { ino: owner.0, what })
            }
        }
    }

    /// Accounts for extents read, and the blocks they map. All together map no more blocks than the volume has: so
    /// every loop over blocks ends, and a small volume takes little memory.
    ///
    /// # Errors
    /// [`Error::CorruptInode`] past that; those of [`Canvas::charge`].
    pub(crate) fn load_extents(&self, ino: Ino, extents: usize, blocks: u64) -> Result<()> {
        self.mapped.set(self.mapped.get().saturating_add(blocks));
        if self.mapped.get() > self.ground.superblock.geometry.blocks_count() {
            let what = "the files that fast commits change map more blocks than the volume has".into();
            return Err(Error::CorruptInode { ino, what });
        }
        self.charge(extents.saturating_mul(EXTENT_COST))
    }

    /// Calls `look` on the current contents of a block. Counts as a short look.
    pub(crate) fn look<T>(&self, block: u64, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        self.work(LOOK_WORK)?;
        match self.changed.get(&block) {
            Some(bytes) => Ok(look(bytes)),
            None => Ok(look(&self.ground.cache.read(block)?)),
        }
    }

    /// A copy of the current contents of a block.
    pub(crate) fn read(&self, block: u64) -> Result<Vec<u8>> {
        self.work(self.block_size())?;
        match self.changed.get(&block) {
            Some(bytes) => Ok(bytes.to_vec()),
            None => Ok(self.ground.cache.read(block)?.to_vec()),
        }
    }

    /// Replaces the contents of a block.
    ///
    /// # Errors
    /// [`Error::Incompatible`] if the changes exceed the memory limit.
    pub(crate) fn write(&mut self, block: u64, bytes: Vec<u8>) -> Result<()> {
        self.work(bytes.len())?;
        let added = if self.changed.contains_key(&block) { 0 } else { bytes.len() as u64 };
        if self.bytes + added > self.budget {
            let feature = format!("fast commits that change more than {} KiB of metadata", self.budget >> 10);
            return Err(Error::Incompatible { action: "recover", feature });
        }
        self.bytes += added;
        self.changed.insert(block, bytes.into());
        Ok(())
    }

    /// The changed contents of a block; starts as a copy of the volume's.
    fn own(&mut self, block: u64) -> Result<&mut [u8]> {
        if !self.changed.contains_key(&block) {
            let bytes = self.read(block)?;
            self.write(block, bytes)?;
        }
        let outside = || Error::Invalid(format!("block {block} is not under change"));
        self.changed.get_mut(&block).map(|bytes| &mut **bytes).ok_or_else(outside)
    }

    /// [`Blocks::freed`] for a run of blocks, most of which were probably never read.
    pub(crate) fn freed_run(&mut self, first: u64, count: u64) -> Result<()> {
        let run = first..first.saturating_add(count);
        let known = (self.changed.len() + self.claimed.get_mut().len()) as u64;
        self.work(count.min(known) as usize * size_of::<u64>())?;
        if count <= known {
            return run.into_iter().try_for_each(|block| self.freed(Pblk(block)));
        }
        self.claimed.get_mut().retain(|block, owner| owner.1.is_none() || !run.contains(block));
        self.changed.retain(|block, _| !run.contains(block));
        self.bytes = self.changed.len() as u64 * self.block_size() as u64;
        Ok(())
    }

    /// The changes.
    pub(crate) fn into_changes(self) -> Changes {
        self.changed
    }
}

impl Blocks for Canvas<'_> {
    fn ground(&self) -> &Ground {
        self.ground
    }

    fn look<T>(&self, block: Pblk, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        Canvas::look(self, block.get(), look)
    }

    fn change<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        self.work(LOOK_WORK)?;
        self.own(block.get()).map(change)
    }

    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let mut bytes = vec![0; self.block_size()];
        let filled = fill(&mut bytes);
        self.write(block.get(), bytes)?;
        Ok(filled)
    }

    /// Changes of the block are not written home: it may hold a file's data by then.
    fn freed(&mut self, block: Pblk) -> Result<()> {
        if let Some(bytes) = self.changed.remove(&block.get()) {
            self.bytes -= bytes.len() as u64;
        }
        // A new directory may take the block. A map node of the volume stays claimed: no other map may have it.
        if let Entry::Occupied(claim) = self.claimed.get_mut().entry(block.get())
            && claim.get().1.is_some()
        {
            claim.remove();
        }
        Ok(())
    }

    fn claim(&self, block: Pblk, ino: Ino, number: Lblk) -> Result<()> {
        self.claim_as(block, (ino, Some(number)))
    }

    fn work(&self, bytes: usize) -> Result<()> {
        Canvas::work(self, bytes)
    }
}
