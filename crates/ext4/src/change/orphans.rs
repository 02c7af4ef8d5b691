//! Orphans: inodes unlinked while open, and files that were being cut when a crash came.
//!
//! They form a chain from the superblock through the records: each record stores the number of the next one in the
//! deletion-time field, which is unused until the inode is freed. Removing one from the middle changes the one before
//! it, which is known only in memory ([`Chain`]), as in the kernel.
//!
//! Volumes with an orphan file (`orphan_file`) use the chain all the same: the kernel falls back on it when that file
//! is full, and processes both. Inodes in the file at open are processed along with the chain. Each slot is cleared in
//! the handle that finishes its inode, and the feature `orphan_present` after the last one.
//!
//! An inode joins in the handle that removes its last name, and leaves in the handle that frees it. In between its
//! blocks are freed in as many handles as needed; after a crash the next open for writing does the rest.

use super::Files;
use super::free::check_frees;
use super::value_inodes::WantedValues;
use crate::alloc::group::inode_used;
use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::primary::{change_superblock, set_last_orphan};
use crate::ground::state::{Ground, is_system_file};
use crate::ground::trace::Role;
use crate::inode::draft::{Draft, set_next_orphan};
use crate::inode::edit::{Change, Edit};
use crate::map::edit::{self, Form};
use crate::xattr::KnownAttributes;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::thread::ThreadId;
use uext4_ondisk::ext4::{OrphanBlock, RoCompat, State, encode_orphan_tail};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk, Pblk};

/// Blocks changed by joining or leaving the chain: the superblock, the record, the one before it, and a block of the
/// orphan file.
pub(crate) const CREDITS: u32 = 4;

/// The orphans of an open volume.
#[derive(Default)]
pub(crate) struct Orphans {
    chain: Mutex<Chain>,
    /// Locked while attribute blocks and inodes of values are changed, shared or freed.
    pub(crate) known: Mutex<KnownAttributes>,
    /// Values that changes wait for, by thread.
    pub(super) wanted_values: Mutex<HashMap<ThreadId, WantedValues>>,
}

/// The chain, including uncommitted changes.
#[derive(Default)]
struct Chain {
    first: Option<Ino>,
    /// For each inode, its predecessor and successor.
    links: HashMap<Ino, (Option<Ino>, Option<Ino>)>,
    /// Inodes in a slot of the orphan file: block on the volume and slot in it.
    slots: HashMap<Ino, (Pblk, usize)>,
}

/// The orphans found when a volume is opened.
#[derive(Default)]
pub(crate) struct Leftovers {
    /// The chain, in order.
    chain: Vec<Ino>,
    /// The used slots of the orphan file.
    slots: Vec<(Ino, Pblk, usize)>,
    /// Whether the superblock has `orphan_present` set.
    present: bool,
}

/// Largest orphan file accepted. The kernel's have at most 512 blocks.
const FILE_MAX: u64 = 64 << 20;
/// Bytes of a slot.
const SLOT: usize = 4;

fn number(ino: Option<Ino>) -> u32 {
    ino.map_or(0, Ino::get)
}

impl Files<'_> {
    /// Adds an inode to the chain. After that, the caller must store a draft of it with [`Draft::store_in_chain`] only.
    ///
    /// # Errors
    /// [`Error::Corrupt`], with nothing changed. Those of the body.
    pub(crate) fn add_orphan(&self, blocks: &mut impl Blocks, ino: Ino) -> Result<()> {
        let mut chain = self.orphans.chain.lock();
        if chain.links.contains_key(&ino) {
            return Ok(());
        }
        set_next_orphan(blocks, ino, number(chain.first))?;
        set_last_orphan(blocks, ino.get())?;
        chain.put_first(ino);
        Ok(())
    }

    /// Stores an edit that took the last name of an inode, and adds the inode to the chain: its record is written once.
    ///
    /// # Errors
    /// Those of [`Edit::store`].
    pub(crate) fn store_orphan(&self, blocks: &mut impl Blocks, edit: &mut Edit<'_>) -> Result<()> {
        {
            let mut chain = self.orphans.chain.lock();
            if !chain.links.contains_key(&edit.ino) {
                let ino = edit.ino;
                edit.store_next_orphan(blocks, number(chain.first))?;
                set_last_orphan(blocks, ino.get())?;
                chain.put_first(ino);
                drop(chain);
                return edit.settle_quota(blocks);
            }
        }
        edit.store(blocks, Change::Attributes)
    }

    /// Removes an inode from the chain.
    ///
    /// # Errors
    /// As of [`Files::add_orphan`].
    pub(crate) fn remove_orphan(&self, blocks: &mut impl Blocks, ino: Ino) -> Result<()> {
        let mut chain = self.orphans.chain.lock();
        match leave(&mut chain, blocks, ino)? {
            true => set_next_orphan(blocks, ino, 0),
            false => Ok(()),
        }
    }

    /// The same for an inode whose record the caller stores next, without links and with the time of its deletion:
    /// the place of its link in the chain.
    ///
    /// # Errors
    /// As of [`Files::add_orphan`].
    pub(super) fn remove_freed_orphan(&self, blocks: &mut impl Blocks, ino: Ino) -> Result<()> {
        leave(&mut self.orphans.chain.lock(), blocks, ino).map(drop)
    }

    /// Finishes what a crash left: frees inodes without a name, and cuts the others at their size. `left` is the result
    /// of [`survey`]. Nobody else uses the volume yet.
    ///
    /// # Errors
    /// Those of the edits. Orphans processed so far stay so; the rest waits for the next open.
    pub(crate) fn process_orphans(&self, left: &Leftovers) -> Result<()> {
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
        // Values of theirs that have lost their last reference.
        self.free_left()?;
        if !left.present {
            return Ok(());
        }
        Journaled::run(self.state, "orphans", 1, |blocks| {
            change_superblock(blocks, |superblock| {
                superblock.features.ro_compat &= !RoCompat::ORPHAN_PRESENT;
            })
        })
    }

    /// Frees the unlinked inodes whose last user has gone. If there are none this takes one load, regardless of how
    /// many unlinked files are open. The caller holds no lock and no handle.
    ///
    /// # Errors
    /// The first failure; the other inodes are freed all the same. One whose freeing fails waits for
    /// [`Files::free_all_left`].
    pub(crate) fn free_left(&self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(ino) = self.state.leavers().take() {
            outcome = outcome.and(self.free_leaver(ino));
        }
        outcome
    }

    /// The same, including those whose freeing failed before.
    ///
    /// # Errors
    /// As of [`Files::free_left`].
    pub(crate) fn free_all_left(&self) -> Result<()> {
        self.state.leavers().retry();
        self.free_left()
    }

    /// Frees this inode if its last user has gone and nobody else is freeing it.
    ///
    /// # Errors
    /// As of [`Files::free_inode`]; the inode waits for another attempt then.
    pub(crate) fn free_if_left(&self, ino: Ino) -> Result<()> {
        if !self.state.leavers().take_one(ino) {
            return Ok(());
        }
        self.free_leaver(ino)?;
        // And values of its attributes.
        if self.has_values() { self.free_left() } else { Ok(()) }
    }

    fn free_leaver(&self, ino: Ino) -> Result<()> {
        // From here on a look-up reads the record, which is free.
        self.state.forget(ino);
        self.free_inode(ino).inspect_err(|_| self.state.leavers().is_stuck(ino))
    }
}

impl Chain {
    /// Puts an inode before the others, as the volume was changed to say.
    fn put_first(&mut self, ino: Ino) {
        let behind = self.first.replace(ino);
        if let Some(link) = behind.and_then(|behind| self.links.get_mut(&behind)) {
            link.0 = Some(ino);
        }
        self.links.insert(ino, (None, behind));
    }
}

/// Takes an inode out of the chain, but for the link in its own record. Returns whether it was there.
fn leave(chain: &mut Chain, blocks: &mut impl Blocks, ino: Ino) -> Result<bool> {
    if let Some((block, slot)) = chain.slots.get(&ino).copied() {
        clear_slot(blocks, block, slot)?;
        chain.slots.remove(&ino);
    }
    let Some((before, behind)) = chain.links.get(&ino).copied() else { return Ok(false) };
    match before {
        None => set_last_orphan(blocks, number(behind))?,
        Some(before) => set_next_orphan(blocks, before, number(behind))?,
    }
    chain.links.remove(&ino);
    match before.and_then(|before| chain.links.get_mut(&before)) {
        Some(link) => link.1 = behind,
        None => chain.first = behind,
    }
    if let Some(link) = behind.and_then(|behind| chain.links.get_mut(&behind)) {
        link.0 = before;
    }
    Ok(true)
}

/// Clears a slot of the orphan file.
fn clear_slot(blocks: &mut impl Blocks, block: Pblk, slot: usize) -> Result<()> {
    let file = Draft::load(blocks, Ino(blocks.ground().superblock.orphan_file_inode))?;
    let seed = file.seed(blocks.ground());
    let mut bytes = blocks.look(block, <[u8]>::to_vec)?;
    OrphanBlock::decode(&bytes, block, seed)?;
    bytes[slot * SLOT..(slot + 1) * SLOT].fill(0);
    encode_orphan_tail(&mut bytes, block, seed)?;
    blocks.describe(block, Role::OrphanFile);
    blocks.change(block, |old| old.copy_from_slice(&bytes))
}

/// The orphans on a volume, after checking from record and map that this version can process each. Changes nothing.
///
/// # Errors
/// [`Error::Corrupt`] and [`Error::CorruptInode`] if the chain or the orphan file leads to an inode that cannot be an
/// orphan, or to one twice; [`Error::Incompatible`] for what this version cannot process.
pub(crate) fn survey(ground: &Ground) -> Result<Leftovers> {
    let superblock = &ground.superblock;
    let present = superblock.features.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
    let mut left = Leftovers { present, ..Leftovers::default() };
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

/// Checks that this version can process orphans of this volume.
fn check_processes(ground: &Ground) -> Result<()> {
    let superblock = &ground.superblock;
    let refuse = |feature: &str| {
        let feature = format!("orphaned inodes {feature} (open it read-only)");
        Err(Error::Incompatible { action: "open for writing", feature })
    };
    if !superblock.has_journal() && !superblock.state.contains(State::CLEAN) {
        return refuse("without a journal, and was not unmounted cleanly: run e2fsck");
    }
    // If metadata may be wrong, blocks of an orphan may belong to another file. A device failure alone leaves none
    // wrong: the interrupted changes were not committed.
    if superblock.state.contains(State::ERRORS) && !ground.recovery.device_failed {
        return refuse("and recorded errors: run e2fsck");
    }
    Ok(())
}

/// The record of an alleged orphan, checked.
fn check_orphan(ground: &Ground, ino: Ino, known: &mut BTreeSet<Ino>) -> Result<Draft> {
    let corrupt = |what: &str| Error::CorruptInode { ino, what: what.into() };
    let geometry = &ground.superblock.geometry;
    if ino < geometry.first_inode() || ino.get() > geometry.inodes_count() {
        return Err(Corrupt::from(CorruptKind::InodeNumber).in_inode(ino).into());
    }
    if is_system_file(&ground.superblock, ino) {
        return Err(corrupt("it is listed as an orphan, but is an internal file"));
    }
    if !known.insert(ino) {
        return Err(corrupt("it is listed twice as an orphan"));
    }
    let free = || corrupt("it is listed as an orphan, but is free");
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

/// The used slots of the orphan file.
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
