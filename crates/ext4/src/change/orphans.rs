//! Orphans: inodes that lost their last name while they were open, and files that were being cut when a crash came.
//!
//! They are a chain from the superblock through the records: each names the next in the field that tells the time of
//! deletion once it is free. Whoever takes one out of the middle changes the one before it, which is known in memory
//! only ([`Chain`]), as in the kernel. On volumes with an orphan file the chain is used as well: the kernel falls back
//! on it when that file is full, and processes both.
//!
//! An inode joins in the handle that takes its last name, and leaves in the handle that frees it. In between its blocks
//! are given back in as many handles as it takes; after a crash the next open for writing does the rest.

use super::Files;
use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::ground::primary::change_superblock;
use crate::ground::state::{Ground, is_system_file};
use crate::inode::Inode;
use crate::inode::draft::{Draft, set_next_orphan};
use crate::map::edit::{self, Form};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use uext4_ondisk::ext4::{RoCompat, State};
use uext4_ondisk::{Corrupt, CorruptKind, Ino};

/// Blocks that joining or leaving the chain changes: the superblock, the record, the one before it.
pub(super) const CREDITS: u32 = 3;

/// The orphans of an open volume.
#[derive(Default)]
pub(crate) struct Orphans {
    chain: Mutex<Chain>,
    /// Those without a name that wait for their last user.
    waiting: Mutex<BTreeSet<Ino>>,
    /// How many wait: most often none, and nobody takes a lock.
    count: AtomicUsize,
    /// Whoever counts the users of a block of attributes.
    pub(super) shared_blocks: Mutex<()>,
}

/// The chain as it is on the volume, or will be.
#[derive(Default)]
struct Chain {
    first: Option<Ino>,
    /// Of each one, those before and behind it.
    links: HashMap<Ino, (Option<Ino>, Option<Ino>)>,
}

impl Orphans {
    /// An inode without a name waits for its last user.
    pub(crate) fn wait_for(&self, ino: Ino) {
        let mut waiting = self.waiting.lock();
        waiting.insert(ino);
        self.count.store(waiting.len(), Ordering::Release);
    }

    /// Whether any wait.
    pub(crate) fn any_wait(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// All that wait.
    pub(crate) fn waiting(&self) -> Vec<Ino> {
        self.waiting.lock().iter().copied().collect()
    }

    /// Takes one out of those that wait: for the caller alone.
    fn take(&self, ino: Ino) -> bool {
        let mut waiting = self.waiting.lock();
        let taken = waiting.remove(&ino);
        self.count.store(waiting.len(), Ordering::Release);
        taken
    }
}

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

    /// Finishes what a crash left: inodes without a name are freed, the others cut at their size. `orphans` is what
    /// [`survey`] found. Nobody else uses the volume yet.
    ///
    /// # Errors
    /// Those of the edits. What is done by then stays; the rest is left for the next time.
    pub(crate) fn process_orphans(&self, orphans: &[Ino]) -> Result<()> {
        {
            let mut chain = self.orphans.chain.lock();
            chain.first = orphans.first().copied();
            for (at, ino) in orphans.iter().enumerate() {
                let before = at.checked_sub(1).map(|at| orphans[at]);
                chain.links.insert(*ino, (before, orphans.get(at + 1).copied()));
            }
        }
        for ino in orphans {
            let draft = Draft::load(&Direct(self.state), *ino)?;
            if draft.disk.links == 0 {
                self.free_inode(*ino)?;
            } else {
                self.cut_at_size(&draft)?;
            }
        }
        Ok(())
    }

    /// Frees an inode without a name if nobody uses it any more. `inode` is the caller's use of it, which ends.
    ///
    /// # Errors
    /// As of [`Files::free_inode`]: it waits on then.
    pub(crate) fn release(&self, ino: Ino, inode: Option<Arc<Inode>>) -> Result<()> {
        if let Some(inode) = inode.or_else(|| self.state.live_inode(ino))
            && !self.state.let_go(inode)
        {
            return Ok(());
        }
        if !self.orphans.take(ino) {
            return Ok(());
        }
        self.free_inode(ino).inspect_err(|_| self.orphans.wait_for(ino))
    }

    /// Frees all inodes without a name that nobody uses any more.
    ///
    /// # Errors
    /// The first one; the others are freed all the same.
    pub(crate) fn release_all(&self) -> Result<()> {
        let mut outcome = Ok(());
        for ino in self.orphans.waiting() {
            outcome = outcome.and(self.release(ino, None));
        }
        outcome
    }
}

/// The chain of orphans on a volume, the first one first. Each can be processed by this version, as far as its record
/// and its map say. Changes nothing.
///
/// # Errors
/// [`Error::Corrupt`] and [`Error::CorruptInode`] if the chain leads to what cannot be an orphan, or in a circle;
/// [`Error::Incompatible`] for what this version does not process.
pub(crate) fn survey(ground: &Ground) -> Result<Vec<Ino>> {
    let superblock = &ground.superblock;
    let mut next = superblock.last_orphan;
    if next == 0 {
        return Ok(Vec::new());
    }
    let refuse = |feature: &str| {
        let feature = format!("a list of orphaned inodes {feature} (open it read-only)");
        Err(Error::Incompatible { action: "open for writing", feature })
    };
    if superblock.journal_inode().is_none() {
        return refuse("without a journal: run e2fsck");
    }
    if superblock.features.ro_compat.contains(RoCompat::QUOTA) {
        return refuse("whose blocks quota files count");
    }
    if superblock.state.contains(State::ERRORS) {
        return refuse("and recorded errors: run e2fsck");
    }
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    while next != 0 {
        let corrupt = |what: String| Error::CorruptInode { ino: Ino(next), what };
        let ino = Ino(next);
        let geometry = &superblock.geometry;
        if ino < geometry.first_inode() || ino.get() > geometry.inodes_count() {
            return Err(Corrupt::from(CorruptKind::InodeNumber).in_inode(ino).into());
        }
        if is_system_file(superblock, ino) {
            return Err(corrupt("the chain of orphans leads to a file of the volume's own".into()));
        }
        if !known.insert(ino) {
            return Err(corrupt("the chain of orphans leads here twice".into()));
        }
        let draft = Draft::load(&Direct(ground), ino)?;
        if draft.disk.file_type().is_none() || !crate::alloc::group::inode_used(&Direct(ground), ino)? {
            return Err(corrupt("the chain of orphans leads to a free inode".into()));
        }
        super::free::check_frees(&Direct(ground), &draft)?;
        if Form::of(&draft.disk).is_some() {
            edit::walk(&Direct(ground), &draft, &mut |_| Ok(()))?;
        }
        found.push(ino);
        next = draft.disk.deleted;
    }
    Ok(found)
}
