//! Orphans: inodes that lost their last name while they were open, and files that were being cut when a crash came.
//!
//! They are a chain from the superblock through the records: each names the next in the field that tells the time of
//! deletion once it is free. Whoever takes one out of the middle changes the one before it, which is known in memory
//! only ([`Chain`]), as in the kernel.
//!
//! On volumes with an orphan file (`orphan_file`) the chain is used all the same: the kernel falls back on it when that
//! file is full, and processes both. What the file holds when the volume is opened is processed with the chain; each
//! slot is cleared in the handle that finishes its inode, and the feature that says that the file is in use after the
//! last one.
//!
//! An inode joins in the handle that takes its last name, and leaves in the handle that frees it. In between its blocks
//! are given back in as many handles as it takes; after a crash the next open for writing does the rest.

use super::Files;
use super::free::check_frees;
use crate::alloc::group::inode_used;
use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::primary::change_superblock;
use crate::ground::state::{Ground, is_system_file};
use crate::inode::draft::{Draft, set_next_orphan};
use crate::map::edit::{self, Form};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use uext4_ondisk::ext4::{OrphanBlock, RoCompat, State, encode_orphan_tail};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// Blocks that joining or leaving the chain changes: the superblock, the record, the one before it, and
/// a block of the orphan file.
pub(crate) const CREDITS: u32 = 4;

/// The orphans of an open volume.
#[derive(Default)]
pub(crate) struct Orphans {
    chain: Mutex<Chain>,
    /// Whoever counts the users of a block of attributes.
    pub(super) shared_blocks: Mutex<()>,
}

/// The chain as it is on the volume, or will be.
#[derive(Default)]
struct Chain {
    first: Option<Ino>,
    /// Of each one, those before and behind it.
    links: HashMap<Ino, (Option<Ino>, Option<Ino>)>,
    /// Those that a slot of the orphan file names: block on the volume and slot in it.
    slots: HashMap<Ino, (Pblk, usize)>,
}

/// What a volume has of orphans when it is opened.
#[derive(Default)]
pub(crate) struct Left {
    /// The chain, the first one first.
    chain: Vec<Ino>,
    /// The slots of the orphan file.
    slots: Vec<(Ino, Pblk, usize)>,
    /// Whether the superblock says that the orphan file is in use.
    present: bool,
}

/// Largest orphan file. The kernel's have at most 512 blocks.
const FILE_MAX: u64 = 64 << 20;
/// Bytes of a slot.
const SLOT: usize = 4;

fn number(ino: Option<Ino>) -> u32 {
    ino.map_or(0, Ino::get)
}

impl Files<'_> {
    /// Adds an inode to the chain. The caller stores no draft of it afterwards but by [`Draft::store_in_chain`].
    ///
    /// # Errors
    /// [`Error::Corrupt`]: nothing was changed then. Those of the body.
    pub(crate) fn add_orphan(&self, blocks: &mut impl Blocks, ino: Ino) -> Result<()> {
        let mut chain = self.orphans.chain.lock();
        if chain.links.contains_key(&ino) {
            return Ok(());
        }
        let behind = chain.first;
        set_next_orphan(blocks, ino, number(behind))?;
        change_superblock(blocks, |superblock| superblock.last_orphan = ino.get())?;
        if let Some(link) = behind.and_then(|behind| chain.links.get_mut(&behind)) {
            link.0 = Some(ino);
        }
        chain.links.insert(ino, (None, behind));
        chain.first = Some(ino);
        Ok(())
    }

    /// Takes an inode out of the chain.
    ///
    /// # Errors
    /// As of [`Files::add_orphan`].
    pub(crate) fn remove_orphan(&self, blocks: &mut impl Blocks, ino: Ino) -> Result<()> {
        let mut chain = self.orphans.chain.lock();
        if let Some((block, slot)) = chain.slots.get(&ino).copied() {
            clear_slot(blocks, block, slot)?;
            chain.slots.remove(&ino);
        }
        let Some((before, behind)) = chain.links.get(&ino).copied() else { return Ok(()) };
        match before {
            None => change_superblock(blocks, |superblock| superblock.last_orphan = number(behind))?,
            Some(before) => set_next_orphan(blocks, before, number(behind))?,
        }
        set_next_orphan(blocks, ino, 0)?;
        chain.links.remove(&ino);
        match before.and_then(|before| chain.links.get_mut(&before)) {
            Some(link) => link.1 = behind,
            None => chain.first = behind,
        }
        if let Some(link) = behind.and_then(|behind| chain.links.get_mut(&behind)) {
            link.0 = before;
        }
        Ok(())
    }

    /// Finishes what a crash left: inodes without a name are freed, the others cut at their size. `left` is what
    /// [`survey`] found. Nobody else uses the volume yet.
    ///
    /// # Errors
    /// Those of the edits. What is done by then stays; the rest is left for the next time.
    pub(crate) fn process_orphans(&self, left: &Left) -> Result<()> {
        {
            let mut chain = self.orphans.chain.lock();
            chain.first = left.chain.first().copied();
            for (at, ino) in left.chain.iter().enumerate() {
                let before = at.checked_sub(1).map(|at| left.chain[at]);
                chain.links.insert(*ino, (before, left.chain.get(at + 1).copied()));
            }
            chain.slots.extend(left.slots.iter().map(|(ino, block, slot)| (*ino, (*block, *slot))));
        }
        for ino in left.chain.iter().chain(left.slots.iter().map(|(ino, ..)| ino)) {
            let draft = Draft::load(&Direct(self.state), *ino)?;
            if draft.disk.links == 0 {
                self.free_inode(*ino)?;
            } else {
                self.cut_at_size(&draft)?;
            }
        }
        if !left.present {
            return Ok(());
        }
        Journaled::run(self.state, 1, |blocks| {
            change_superblock(blocks, |superblock| {
                superblock.features.ro_compat &= !RoCompat::ORPHAN_PRESENT;
            })
        })
    }

    /// Frees the inodes without a name whose last user is gone. Takes one load if there are none, however many are open
    /// without a name. The caller holds no lock and no handle.
    ///
    /// # Errors
    /// The first one; the others are freed all the same. What could not be freed waits for [`Files::free_all_left`].
    pub(crate) fn free_left(&self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(ino) = self.state.leavers().take() {
            outcome = outcome.and(self.free_leaver(ino));
        }
        outcome
    }

    /// The same with those that could not be freed before.
    ///
    /// # Errors
    /// As of [`Files::free_left`].
    pub(crate) fn free_all_left(&self) -> Result<()> {
        self.state.leavers().retry();
        self.free_left()
    }

    /// Frees this one, if its last user is gone and nobody else has come to free it.
    ///
    /// # Errors
    /// As of [`Files::free_inode`]: it waits then.
    pub(crate) fn free_if_left(&self, ino: Ino) -> Result<()> {
        if self.state.leavers().take_one(ino) { self.free_leaver(ino) } else { Ok(()) }
    }

    fn free_leaver(&self, ino: Ino) -> Result<()> {
        // A look-up finds its record from here on, which is free.
        self.state.forget(ino);
        self.free_inode(ino).inspect_err(|_| self.state.leavers().is_stuck(ino))
    }
}

/// Empties a slot of the orphan file.
fn clear_slot(blocks: &mut impl Blocks, block: Pblk, slot: usize) -> Result<()> {
    let file = Draft::load(blocks, Ino(blocks.ground().superblock.orphan_file_inode))?;
    let seed = file.seed(blocks.ground());
    let mut bytes = blocks.look(block, <[u8]>::to_vec)?;
    OrphanBlock::decode(&bytes, block, seed)?;
    bytes[slot * SLOT..(slot + 1) * SLOT].fill(0);
    encode_orphan_tail(&mut bytes, block, seed)?;
    blocks.change(block, |old| old.copy_from_slice(&bytes))
}

/// The orphans on a volume. Each can be processed by this version, as far as its record and its map say. Changes
/// nothing.
///
/// # Errors
/// [`Error::Corrupt`] and [`Error::CorruptInode`] if the chain or the orphan file leads to what cannot be an orphan, or
/// twice to the same; [`Error::Incompatible`] for what this version does not process.
pub(crate) fn survey(ground: &Ground) -> Result<Left> {
    let superblock = &ground.superblock;
    let present = superblock.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
    let mut left = Left { present, ..Left::default() };
    if superblock.last_orphan == 0 && !present {
        return Ok(left);
    }
    check_processes(ground)?;
    let mut known = BTreeSet::new();
    let mut next = superblock.last_orphan;
    while next != 0 {
        let ino = Ino(next);
        next = check_orphan(ground, ino, &mut known)?.disk.deleted;
        left.chain.push(ino);
    }
    if present {
        left.slots = file_slots(ground)?;
        for (ino, ..) in &left.slots {
            check_orphan(ground, *ino, &mut known)?;
        }
    }
    Ok(left)
}

/// Whether this version processes orphans of this volume.
fn check_processes(ground: &Ground) -> Result<()> {
    let superblock = &ground.superblock;
    let refuse = |feature: &str| {
        let feature = format!("orphaned inodes {feature} (open it read-only)");
        Err(Error::Incompatible { action: "open for writing", feature })
    };
    if superblock.journal_inode().is_none() && !superblock.state.contains(State::CLEAN) {
        return refuse("without a journal, and was not left cleanly: run e2fsck");
    }
    if superblock.features.ro_compat.contains(RoCompat::QUOTA) {
        return refuse("whose blocks quota files count");
    }
    // Where metadata may be wrong, blocks of an orphan may be somebody else's. A device that failed leaves none wrong:
    // what was half done was not committed.
    if superblock.state.contains(State::ERRORS) && !ground.recovery.device_failed {
        return refuse("and recorded errors: run e2fsck");
    }
    Ok(())
}

/// The record of an inode that is said to be an orphan, checked.
fn check_orphan(ground: &Ground, ino: Ino, known: &mut BTreeSet<Ino>) -> Result<Draft> {
    let corrupt = |what: &str| Error::CorruptInode { ino, what: what.into() };
    let geometry = &ground.superblock.geometry;
    if ino < geometry.first_inode() || ino.get() > geometry.inodes_count() {
        return Err(Corrupt::from(CorruptKind::InodeNumber).in_inode(ino).into());
    }
    if is_system_file(&ground.superblock, ino) {
        return Err(corrupt("it counts as an orphan, but is a file of the volume's own"));
    }
    if !known.insert(ino) {
        return Err(corrupt("it is twice among the orphans"));
    }
    let free = || corrupt("it counts as an orphan, but is free");
    let blocks = Direct(ground);
    if !inode_used(&blocks, ino)? {
        return Err(free());
    }
    let draft = Draft::load(&blocks, ino)?;
    if draft.disk.file_type().is_none() {
        return Err(free());
    }
    check_frees(&blocks, &draft)?;
    if Form::of(&draft.disk).is_some() {
        edit::walk(&blocks, &draft, &mut |_| Ok(()))?;
    }
    Ok(draft)
}

/// What the orphan file holds.
fn file_slots(ground: &Ground) -> Result<Vec<(Ino, Pblk, usize)>> {
    let (superblock, blocks) = (&ground.superblock, Direct(ground));
    let none = || Error::from(Corrupt::from(CorruptKind::SuperblockField("orphan_file_inum")));
    let file = Draft::load(&blocks, Ino::nonzero(superblock.orphan_file_inode).ok_or_else(none)?)?;
    let wrong = |kind: CorruptKind| Error::from(Corrupt::from(kind).in_inode(file.ino));
    let count = file.disk.size / u64::from(superblock.geometry.block_size());
    if file.disk.size > FILE_MAX || Form::of(&file.disk).is_none() {
        return Err(wrong(CorruptKind::InodeField("size")));
    }
    let (seed, mut slots) = (file.seed(ground), Vec::new());
    for number in (0..count as u32).map(Lblk) {
        let extent = edit::leaf(&blocks, &file, number)?.find(number).filter(|extent| !extent.unwritten);
        let block = extent.and_then(|extent| extent.physical_of(number));
        let block = block.ok_or_else(|| wrong(CorruptKind::ExtentPhysical))?;
        if !ground.zones.allows(block.get(), 1) {
            return Err(wrong(CorruptKind::SystemZone));
        }
        let found = blocks.look(block, |bytes| {
            let decoded = OrphanBlock::decode(bytes, block, seed)?;
            Ok::<Vec<_>, Error>(decoded.slots().map(|(slot, ino)| (ino, block, slot)).collect())
        })??;
        slots.extend(found);
    }
    Ok(slots)
}
