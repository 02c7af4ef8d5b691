//! Creating entries: blocks of the tree that lead to them, and room in a leaf.

use crate::alloc::shared::FreeSpace;
use crate::change::Files;
use crate::dir::edit::DirMap;
use crate::dir::map::BlockMap;
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::quota::{Ids, Place, Quota, QuotaFile};
use crate::ground::trace::Role;
use crate::inode::draft::Draft;
use std::collections::BTreeMap;
use uext4_ondisk::ext4::{
    ExtentNode, NodeLimits, QUOTA_BLOCK_SIZE, QUOTA_LEAF_ENTRIES, QUOTA_LEVELS, QUOTA_ROOT, QuotaEntry,
    QuotaHeader, QuotaKind, QuotaLeaf, find_unused_quota_entry, quota_child, set_quota_child,
};
use uext4_ondisk::{Corrupt, CorruptKind, Lblk, Pblk};

impl Files<'_> {
    /// Creates the entries that changes wait for, each in a handle of its own. Returns whether there were any.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::Corrupt`].
    pub(crate) fn create_wanted_entries(&self) -> Result<bool> {
        let Some(quota) = &self.state.quota else { return Ok(false) };
        let wanted: Vec<_> = quota.wanted.lock().iter().copied().collect();
        for &(kind, id) in &wanted {
            let made = self.create_entry(quota, kind, id);
            // Whoever still needs one that could not be created asks again.
            quota.wanted.lock().remove(&(kind, id));
            made?;
        }
        Ok(!wanted.is_empty())
    }

    /// Checks, before a change begins, that quota can be charged to these; see [`Quota::want`].
    ///
    /// # Errors
    /// As of [`Quota::want`].
    pub(crate) fn want_entries(&self, blocks: &impl Blocks, ids: Ids) -> Result<()> {
        self.state.quota.as_ref().map_or(Ok(()), |quota| quota.want(blocks, ids))
    }

    /// Checks, before a change begins, that these may have one more inode.
    ///
    /// # Errors
    /// [`Error::QuotaExceeded`]; [`Error::Corrupt`] of the quota files.
    pub(crate) fn check_new_inode(&self, blocks: &impl Blocks, ids: Ids) -> Result<()> {
        self.state.quota.as_ref().map_or(Ok(()), |quota| quota.check_inode(blocks, ids, None, 0))
    }

    /// Checks, before a change begins, that an inode may be charged to these instead of those who have it.
    ///
    /// # Errors
    /// As of [`Files::check_new_inode`].
    pub(crate) fn check_new_owner(&self, blocks: &impl Blocks, draft: &Draft, ids: Ids) -> Result<()> {
        match (&self.state.quota, draft.charged) {
            (Some(quota), Some(charge)) => quota.check_inode(blocks, ids, Some(charge.ids), charge.bytes),
            _ => Ok(()),
        }
    }

    fn create_entry(&self, quota: &Quota, kind: QuotaKind, id: u32) -> Result<()> {
        let Some(file) = quota.file(kind) else { return Ok(()) };
        let depth = {
            let draft = file.draft(&Direct(self.state))?;
            let root = ExtentNode::root(&draft.disk.i_block, NodeLimits::root(&self.state.superblock));
            root.map_or(0, |root| root.depth())
        };
        // Another entry may add a level meanwhile.
        Journaled::run(self.state, "quota entry", credits::quota_entry(self.state, depth + 1), |blocks| {
            let _alone = quota.growing.lock();
            match file.place(blocks, id)? {
                Some(_) => Ok(()),
                None => insert(blocks, self.space, file, id),
            }
        })
    }
}

/// Adds an empty entry. The number has none.
fn insert(blocks: &mut impl Blocks, space: &FreeSpace, file: &QuotaFile, id: u32) -> Result<()> {
    let mut draft = file.draft(blocks)?;
    let (pages, leaf, at) = {
        let header = file.header(blocks, &draft)?;
        let mut growth = Growth { blocks: &*blocks, file, draft: &draft, header, pages: BTreeMap::new() };
        let (leaf, at) = growth.insert(id)?;
        (growth.finish()?, leaf, at)
    };
    let (block, inside) = write(blocks, space, file, &mut draft, pages, leaf)?;
    file.remember(id, (block, inside + at));
    Ok(())
}

type Page = Box<[u8; QUOTA_BLOCK_SIZE]>;

/// A block of the file that is edited. Others may charge its entries meanwhile.
struct Edited {
    /// As it was read; `None` for one that was not used before.
    was: Option<Page>,
    now: Page,
}

impl Edited {
    fn unused() -> Edited {
        Edited { was: None, now: Page::new([0; QUOTA_BLOCK_SIZE]) }
    }

    /// Writes the bytes that were changed; all others stay as they are.
    fn write_to(&self, place: &mut [u8]) {
        let Some(was) = &self.was else { return place.copy_from_slice(&self.now[..]) };
        for ((byte, was), now) in place.iter_mut().zip(&was[..]).zip(&self.now[..]) {
            if was != now {
                *byte = *now;
            }
        }
    }
}

/// An entry being added, in memory: blocks of the file as they will be.
struct Growth<'g, B> {
    blocks: &'g B,
    file: &'g QuotaFile,
    draft: &'g Draft,
    header: QuotaHeader,
    pages: BTreeMap<u32, Edited>,
}

impl<B: Blocks> Growth<'_, B> {
    fn page(&mut self, number: u32) -> Result<&mut Page> {
        if !self.pages.contains_key(&number) {
            let mut page = Page::new([0; QUOTA_BLOCK_SIZE]);
            self.file.read(self.blocks, self.draft, number, |bytes| page.copy_from_slice(bytes))?;
            self.pages.insert(number, Edited { was: Some(page.clone()), now: page });
        }
        Ok(&mut self.pages.entry(number).or_insert_with(Edited::unused).now)
    }

    fn damage(&self, what: &'static str) -> Error {
        self.file.damage(CorruptKind::Quota(what).into())
    }

    fn check_link(&self, number: u32) -> Result<()> {
        self.header.check_link(number).map_err(|corrupt| self.file.damage(corrupt))
    }

    fn leaf(&mut self, number: u32) -> Result<QuotaLeaf> {
        let decoded = QuotaLeaf::decode(&self.page(number)?[..]);
        let leaf = decoded.map_err(|corrupt: Corrupt| self.file.damage(corrupt))?;
        self.check_link(leaf.next)?;
        self.check_link(leaf.previous)?;
        Ok(leaf)
    }

    /// An empty block: an unused one, or a new one at the end.
    fn take(&mut self) -> Result<u32> {
        let number = match self.header.free_block {
            0 => {
                self.header.blocks =
                    self.header.blocks.checked_add(1).ok_or_else(|| self.damage("it is full"))?;
                self.header.blocks - 1
            }
            unused => {
                self.header.free_block = self.leaf(unused)?.next;
                unused
            }
        };
        self.pages.insert(number, Edited::unused());
        Ok(number)
    }

    /// Returns the leaf, and the entry's byte there.
    fn insert(&mut self, id: u32) -> Result<(u32, usize)> {
        let mut number = QUOTA_ROOT;
        for level in 0..QUOTA_LEVELS - 1 {
            let mut child = quota_child(&self.page(number)?[..], level, id);
            self.check_link(child)?;
            if child == 0 {
                child = self.take()?;
                set_quota_child(&mut self.page(number)?[..], level, id, child)?;
            }
            number = child;
        }
        let (leaf, at) = self.room()?;
        set_quota_child(&mut self.page(number)?[..], QUOTA_LEVELS - 1, id, leaf)?;
        let entry = QuotaEntry { id, ..QuotaEntry::default() };
        entry.encode(&mut self.page(leaf)?[at..])?;
        Ok((leaf, at))
    }

    /// Room for an entry in a leaf.
    fn room(&mut self) -> Result<(u32, usize)> {
        let number = match self.header.free_leaf {
            0 => {
                self.header.free_leaf = self.take()?;
                self.header.free_leaf
            }
            known => known,
        };
        let mut leaf = self.leaf(number)?;
        let room = find_unused_quota_entry(&self.page(number)?[..]);
        let at = room.ok_or_else(|| self.damage("a full leaf is listed as one with room"))?;
        leaf.entries += 1;
        if leaf.entries >= QUOTA_LEAF_ENTRIES {
            self.unlist(&leaf)?;
            (leaf.next, leaf.previous) = (0, 0);
        }
        leaf.encode(&mut self.page(number)?[..])?;
        Ok((number, at))
    }

    /// Takes a leaf out of the list of those with room.
    fn unlist(&mut self, leaf: &QuotaLeaf) -> Result<()> {
        if leaf.next != 0 {
            let behind = QuotaLeaf { previous: leaf.previous, ..self.leaf(leaf.next)? };
            behind.encode(&mut self.page(leaf.next)?[..])?;
        }
        if leaf.previous == 0 {
            self.header.free_leaf = leaf.next;
            return Ok(());
        }
        let before = QuotaLeaf { next: leaf.next, ..self.leaf(leaf.previous)? };
        Ok(before.encode(&mut self.page(leaf.previous)?[..])?)
    }

    fn finish(mut self) -> Result<BTreeMap<u32, Edited>> {
        let (header, kind) = (self.header, self.file.kind);
        header.encode(&mut self.page(0)?[..], kind)?;
        Ok(self.pages)
    }
}

/// Writes blocks of the file, after allocating those that are missing. Returns where block `wanted` is.
fn write(
    blocks: &mut impl Blocks,
    space: &FreeSpace,
    file: &QuotaFile,
    draft: &mut Draft,
    pages: BTreeMap<u32, Edited>,
    wanted: u32,
) -> Result<Place> {
    let per = blocks.ground().superblock.geometry.block_size() / QUOTA_BLOCK_SIZE as u32;
    let mut homes: BTreeMap<u32, Option<Pblk>> = BTreeMap::new();
    for number in pages.keys() {
        let home = file.find(blocks, draft, *number)?.map(|(block, _)| block);
        homes.insert(number / per, home);
    }
    let missing: Vec<u32> = homes.iter().filter(|(_, home)| home.is_none()).map(|(at, _)| *at).collect();
    if let Some(&first) = missing.first() {
        let mut nodes = space.open();
        let count = missing.len() as u32;
        let taken = BlockMap::new(&mut nodes).append(blocks, draft, Lblk(first), count)?;
        homes.extend((first..).zip(taken.into_iter().map(Some)));
    }
    let last = pages.keys().next_back().map_or(0, |last| u64::from(*last) + 1);
    for (logical, home) in &homes {
        let Some(home) = *home else { continue };
        let inside = pages.range(logical * per..=logical * per + (per - 1));
        let copy = |bytes: &mut [u8]| {
            for (number, page) in inside {
                let at = (number % per) as usize * QUOTA_BLOCK_SIZE;
                if let Some(place) = bytes.get_mut(at..at + QUOTA_BLOCK_SIZE) {
                    page.write_to(place);
                }
            }
        };
        blocks.describe(home, Role::Quota(file.kind));
        if missing.contains(logical) { blocks.fresh(home, copy)? } else { blocks.change(home, copy)? }
    }
    let size = (last * QUOTA_BLOCK_SIZE as u64).max(draft.disk.size);
    if size != draft.disk.size || !missing.is_empty() {
        draft.disk.size = size;
        draft.store(blocks)?;
    }
    let home = homes.get(&(wanted / per)).copied().flatten().unwrap_or(Pblk(0));
    Ok((home, (wanted % per) as usize * QUOTA_BLOCK_SIZE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_charge_meanwhile_stays() {
        let was = Page::new([7; QUOTA_BLOCK_SIZE]);
        let mut edited = Edited { was: Some(was.clone()), now: was };
        edited.now[10] = 1;
        let mut place = [7; QUOTA_BLOCK_SIZE];
        place[500] = 9;
        edited.write_to(&mut place);
        assert_eq!((place[10], place[500], place[11]), (1, 9, 7));
        Edited::unused().write_to(&mut place);
        assert_eq!(place, [0; QUOTA_BLOCK_SIZE]);
    }
}
