//! Contents of files that are written through the log (`chattr +j`, volumes with `data=journal`).
//!
//! Their blocks are journaled like metadata: a write changes the cached block in the handle that maps it and sets the
//! size, and nothing goes to its place before the commit. So reads ask the cache, the blocks are revoked when they are
//! freed, and the published map never has them: no direct request finds one.

use super::{Files, depth};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::journaled::Journaled;
use crate::ground::state::Ground;
use crate::ground::trace::Role;
use crate::inode::Inode;
use crate::inode::edit::Change;
use crate::inode::fields::journals_data;
use crate::inode::metadata::FileKind;
use crate::inode::set_attributes::SetAttributes;
use crate::map::{self, edit};
use std::ops::Range;
use uext4_buffer::BufferRef;
use uext4_iomap::MapKind;
use uext4_iomap::gate::InodeGuard;
use uext4_ondisk::ext4::InodeFlags;
use uext4_ondisk::{Lblk, Pblk};

/// Most blocks of data changed in one handle.
const BLOCKS: u32 = 64;

/// A write in progress.
struct Work<'d> {
    pos: u64,
    data: &'d [&'d [u8]],
    end: u64,
}

impl Work<'_> {
    /// Copies the data that lies in a block which starts at byte `start` of the file.
    fn fill(&self, start: u64, block: &mut [u8]) {
        let mut at = self.pos;
        for piece in self.data {
            let (from, to) = (at.max(start), (at + piece.len() as u64).min(start + block.len() as u64));
            if from < to {
                let source = &piece[(from - at) as usize..(to - at) as usize];
                block[(from - start) as usize..(to - start) as usize].copy_from_slice(source);
            }
            at += piece.len() as u64;
        }
    }

    /// Whether all of such a block is written.
    fn covers(&self, start: u64, block: u64) -> bool {
        self.pos <= start && start + block <= self.end
    }
}

/// A block of data, and whether it is unwritten.
struct Place {
    start: u64,
    physical: Pblk,
    unwritten: bool,
}

impl Files<'_> {
    /// Writes `data`, consecutive buffers, at byte `pos`. Long writes take several handles: a crash leaves the first
    /// parts. The caller holds the gate exclusively, drained.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Limit::Map`], [`Error::Incompatible`] for maps of block pointers. What was written before
    /// the failure stays.
    pub(crate) fn write_journaled(
        &self,
        inode: &Inode,
        held: &InodeGuard<'_>,
        pos: u64,
        data: &[&[u8]],
    ) -> Result<()> {
        let length: u64 = data.iter().map(|piece| piece.len() as u64).sum();
        let end = pos.checked_add(length).ok_or(Error::Limit(Limit::Map))?;
        self.check_allocates(inode)?;
        self.check_size(inode, end)?;
        let block = 1 << inode.state.block_bits();
        let blocks = pos / block..end.div_ceil(block);
        self.allocate(inode, blocks.clone())?;
        let _promise = self.promise(inode, blocks)?;
        let before = inode.state.size();
        if end > before {
            self.zero_journaled(inode, held, before..before.next_multiple_of(block))?;
        }
        let work = Work { pos, data, end };
        let mut at = pos;
        while at < end {
            at = self.write_part(inode, &work, at)?;
        }
        Ok(())
    }

    /// The work of one handle. Returns the byte to continue from.
    fn write_part(&self, inode: &Inode, work: &Work<'_>, at: u64) -> Result<u64> {
        let (levels, block) = (self.depth(inode), 1 << inode.state.block_bits());
        let fixed = self.credits(levels, 1, 0);
        let room = self.state.max_credits().saturating_sub(fixed).clamp(1, BLOCKS);
        let first = at / block;
        let last = work.end.div_ceil(block).min(first + u64::from(room));
        let _kept = self.load_edges(inode, work, first..last)?;
        Journaled::run(self.state, "journaled data", fixed + room, |blocks| {
            let mut edit = inode.edit(blocks)?;
            if depth(&edit.disk) > levels {
                return Ok(at);
            }
            let _map = inode.state.map.lock();
            let limit = |block| u32::try_from(block).map_err(|_| Error::Limit(Limit::Map));
            let leaf = edit::leaf(blocks, &edit, Lblk(limit(first)?))?;
            let part = limit(first)?..limit(last)?.min(leaf.window.end);
            let places = part.clone().map(|number| {
                let extent = leaf.find(Lblk(number));
                let physical = extent.and_then(|extent| extent.physical_of(Lblk(number)));
                let (Some(extent), Some(physical)) = (extent, physical) else {
                    return Err(self.state.corrupt_inode(inode.ino(), format!("block {number} is gone")));
                };
                check_place(self.state, inode, physical)?;
                Ok(Place { start: u64::from(number) * block, physical, unwritten: extent.unwritten })
            });
            let places = places.collect::<Result<Vec<_>>>()?;
            let converts = places.iter().any(|place| place.unwritten);
            if converts {
                edit::convert(blocks, &mut self.space.promised(), &mut edit, part.clone(), false)?;
            }
            for place in &places {
                blocks.describe(place.physical, Role::Data(inode.ino()));
                if place.unwritten || work.covers(place.start, block) {
                    blocks.fresh(place.physical, |bytes| work.fill(place.start, bytes))?;
                } else {
                    blocks.change(place.physical, |bytes| work.fill(place.start, bytes))?;
                }
            }
            let reached = (u64::from(part.end) * block).min(work.end);
            let grown = Some(reached).filter(|size| *size > edit.disk.size);
            if let Some(size) = grown {
                edit.set_size(blocks.ground(), size)?;
            }
            if converts || grown.is_some() {
                edit.store(blocks, Change::Data)?;
            }
            inode.state.set_datasync_tid(blocks.tid().0);
            if let Some(size) = grown {
                inode.state.set_size(size, size);
            }
            Ok(reached)
        })
    }

    /// Reads the blocks of a part that keep some of their bytes: a block that cannot be read must not fail a handle
    /// that has changed others.
    fn load_edges(&self, inode: &Inode, work: &Work<'_>, part: Range<u64>) -> Result<Vec<BufferRef>> {
        let block = 1 << inode.state.block_bits();
        let mut kept = Vec::new();
        for number in [part.start, part.end - 1] {
            if !work.covers(number * block, block)
                && let Ok(number) = u32::try_from(number)
                && let Some(physical) = map::metadata_block(self.state, inode, number)?
            {
                kept.push(self.state.cache.read(physical)?);
            }
        }
        Ok(kept)
    }

    /// Reads from byte `pos` on: all of it lies in written blocks. The caller is inside the gate.
    ///
    /// # Errors
    /// Those of loading the map and of the device.
    pub(crate) fn read_journaled(&self, inode: &Inode, buf: &mut [u8], pos: u64) -> Result<()> {
        let block = 1u64 << inode.state.block_bits();
        let mut done = 0;
        while done < buf.len() {
            let at = pos + done as u64;
            let inside = (at % block) as usize;
            let count = (buf.len() - done).min(block as usize - inside);
            let number = u32::try_from(at / block).map_err(|_| Error::Limit(Limit::Map))?;
            let part = &mut buf[done..done + count];
            match map::metadata_block(self.state, inode, number)? {
                Some(physical) => {
                    part.copy_from_slice(&self.state.cache.read(physical)?[inside..inside + count]);
                }
                None => part.fill(0),
            }
            done += count;
        }
        Ok(())
    }

    /// Zeroes what is written of a range, block by block. The caller holds the gate exclusively.
    ///
    /// # Errors
    /// Those of the device and the journal.
    pub(crate) fn zero_journaled(
        &self,
        inode: &Inode,
        _held: &InodeGuard<'_>,
        range: Range<u64>,
    ) -> Result<()> {
        let block = 1u64 << inode.state.block_bits();
        let mut at = range.start;
        while at < range.end {
            let start = at / block * block;
            let upto = range.end.min(start + block);
            let number = u32::try_from(at / block).map_err(|_| Error::Limit(Limit::Map))?;
            if let Some(physical) = map::metadata_block(self.state, inode, number)? {
                let _kept = self.state.cache.read(physical)?;
                let inside = (at - start) as usize..(upto - start) as usize;
                Journaled::run(self.state, "journaled data", 1, |blocks| {
                    blocks.describe(Pblk(physical), Role::Data(inode.ino()));
                    blocks.change(Pblk(physical), |bytes| bytes[inside].fill(0))?;
                    inode.state.set_datasync_tid(blocks.tid().0);
                    Ok(())
                })?;
            }
            at = upto;
        }
        Ok(())
    }

    /// Whether setting these attributes changes how the contents of the file are written.
    pub(crate) fn switches_log(&self, inode: &Inode, set: &SetAttributes) -> bool {
        let Some(flags) = set.flags.filter(|_| inode.kind() == FileKind::Regular) else { return false };
        let (disk, mut after) = (inode.disk(), (*inode.disk()).clone());
        after.flags.set(InodeFlags::JOURNAL_DATA, flags.contains(InodeFlags::JOURNAL_DATA));
        let journals = |disk| journals_data(&self.state.superblock, disk);
        journals(&disk) != journals(&after)
    }

    /// Sets attributes that change how the contents are written. The caller holds the gate exclusively, drained.
    ///
    /// # Errors
    /// Those of [`Files::set_attributes`]; [`Error::Incompatible`] for maps of block pointers.
    pub(crate) fn switch_log(&self, inode: &Inode, held: &InodeGuard<'_>, set: &SetAttributes) -> Result<()> {
        self.leave_inode(inode, held)?;
        if inode.state.kind() == MapKind::Journaled {
            self.leave_log(inode, held)?;
        } else if inode.disk().uses_extents() {
            self.end(inode, held, &(0..super::remove::END))?;
        } else {
            let feature = format!("journaled data in a map of block pointers (inode {})", inode.ino());
            return Err(Error::Incompatible { action: "set the flag for", feature });
        }
        self.set_attributes(inode, set)?;
        inode.state.set_kind(self.state.map_kind(inode.ino(), &inode.disk()));
        Ok(())
    }

    /// Writes everything in the log home and empties the log, so that no older copy is replayed over a direct write.
    /// Then removes the blocks from the cache. The caller holds the gate exclusively, drained, and no handle.
    ///
    /// # Errors
    /// [`Error::Aborted`]; those of reading the map.
    fn leave_log(&self, inode: &Inode, held: &InodeGuard<'_>) -> Result<()> {
        if let Some(journal) = &self.state.journal {
            journal.empty_log()?;
        }
        self.end(inode, held, &(0..super::remove::END))?;
        let bits = inode.state.block_bits();
        let blocks = inode.disk().size.div_ceil(1 << bits).min(u64::from(u32::MAX)) as u32;
        let mut at = 0;
        while at < blocks {
            let loaded = map::load(self.state, inode, u64::from(at) << bits)?;
            let uext4_iomap::Found::Known { state, physical, blocks: count } = loaded.find(at) else {
                return Err(Error::MapUnstable(u64::from(at) << bits));
            };
            let count = count.min(u64::from(blocks - at));
            // A block that reads as zeros may still be there with what it was.
            if state != uext4_iomap::State::Hole {
                (physical..physical + count).try_for_each(|block| self.state.cache.forget(block))?;
            }
            at += count as u32;
        }
        Ok(())
    }
}

fn check_place(ground: &Ground, inode: &Inode, block: Pblk) -> Result<()> {
    if ground.zones.allows(block.get(), 1) {
        return Ok(());
    }
    let what = format!("block {block} of its contents lies in metadata or outside the volume");
    Err(Error::CorruptInode { ino: inode.ino(), what })
}
