//! A quota file: its blocks on the volume, and the entries in them.

use crate::ground::blocks::Blocks;
use crate::ground::direct::Direct;
use crate::ground::error::{Error, Result};
use crate::ground::quota::{Place, QuotaFile};
use crate::ground::state::Ground;
use crate::ground::trace::Role;
use crate::inode::draft::Draft;
use crate::map::edit::{self, Form};
use parking_lot::Mutex;
use uext4_ondisk::ext4::{
    QUOTA_BLOCK_SIZE, QUOTA_ENTRY_SIZE, QUOTA_LEVELS, QUOTA_ROOT, QuotaEntry, QuotaHeader, QuotaKind,
    find_quota_entry, quota_child,
};
use uext4_ondisk::{Corrupt, CorruptKind, Ino, Lblk};

/// Places of entries that are remembered; about 128 KiB.
const PLACES: usize = 4096;

impl QuotaFile {
    /// Checks the header.
    pub(super) fn open(ground: &Ground, kind: QuotaKind, ino: Ino) -> Result<QuotaFile> {
        let mut file = QuotaFile { kind, ino, places: Mutex::default(), grace: Default::default() };
        let header = file.header(&Direct(ground), &file.draft(&Direct(ground))?)?;
        file.grace = (header.block_grace.into(), header.inode_grace.into());
        Ok(file)
    }

    pub(super) fn damage(&self, corrupt: Corrupt) -> Error {
        corrupt.in_inode(self.ino).into()
    }

    /// Its inode's record.
    pub(super) fn draft(&self, blocks: &impl Blocks) -> Result<Draft> {
        let draft = Draft::load(blocks, self.ino)?;
        match Form::of(&draft.disk) {
            Some(_) => Ok(draft),
            None => Err(self.damage(CorruptKind::Quota("its contents are not in blocks").into())),
        }
    }

    pub(super) fn header(&self, blocks: &impl Blocks, draft: &Draft) -> Result<QuotaHeader> {
        let header = self.read(blocks, draft, 0, |bytes| QuotaHeader::decode(bytes, self.kind))?;
        let header = header.map_err(|corrupt| self.damage(corrupt))?;
        match draft.disk.size / QUOTA_BLOCK_SIZE as u64 {
            size if size >= u64::from(header.blocks) => Ok(header),
            _ => Err(self.damage(CorruptKind::Quota("it is shorter than its header says").into())),
        }
    }

    /// Where a block of the file is on the volume; `None` if that is not mapped.
    pub(super) fn find(&self, blocks: &impl Blocks, draft: &Draft, number: u32) -> Result<Option<Place>> {
        let ground = blocks.ground();
        let per = ground.superblock.geometry.block_size() / QUOTA_BLOCK_SIZE as u32;
        let logical = Lblk(number / per);
        let Some(extent) = edit::leaf(blocks, draft, logical)?.find(logical) else { return Ok(None) };
        let block = extent.physical_of(logical).filter(|_| !extent.unwritten);
        let block = block.filter(|block| ground.zones.allows(block.get(), 1));
        let block = block.ok_or_else(|| self.damage(CorruptKind::Quota("a block is not data").into()))?;
        Ok(Some((block, (number % per) as usize * QUOTA_BLOCK_SIZE)))
    }

    /// Looks at a block of the file.
    pub(super) fn read<T>(
        &self,
        blocks: &impl Blocks,
        draft: &Draft,
        number: u32,
        look: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let hole = || self.damage(CorruptKind::Quota("it has a hole").into());
        let (block, at) = self.find(blocks, draft, number)?.ok_or_else(hole)?;
        blocks.look(block, |bytes| look(bytes.get(at..at + QUOTA_BLOCK_SIZE).unwrap_or_default()))
    }

    /// Where the entry of a number is; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::Corrupt`] of the tree; those of the body.
    pub(super) fn place(&self, blocks: &impl Blocks, id: u32) -> Result<Option<Place>> {
        if let Some(place) = self.places.lock().get(&id) {
            return Ok(Some(*place));
        }
        let draft = self.draft(blocks)?;
        let header = self.header(blocks, &draft)?;
        let mut number = QUOTA_ROOT;
        for level in 0..QUOTA_LEVELS {
            number = self.read(blocks, &draft, number, |bytes| quota_child(bytes, level, id))?;
            header.check_link(number).map_err(|corrupt| self.damage(corrupt))?;
            if number == 0 {
                return Ok(None);
            }
        }
        let entry = self.read(blocks, &draft, number, |bytes| find_quota_entry(bytes, id))?;
        let missing =
            || self.damage(CorruptKind::Quota("the tree leads to an entry that is not there").into());
        let entry = entry.ok_or_else(missing)?;
        let Some((block, at)) = self.find(blocks, &draft, number)? else { return Ok(None) };
        let place = (block, at + entry);
        self.remember(id, place);
        Ok(Some(place))
    }

    pub(super) fn remember(&self, id: u32, place: Place) {
        let mut places = self.places.lock();
        if places.len() >= PLACES {
            places.clear();
        }
        places.insert(id, place);
    }

    /// Changes an entry.
    pub(super) fn update(
        &self,
        blocks: &mut impl Blocks,
        (block, at): Place,
        change: impl FnOnce(&mut QuotaEntry),
    ) -> Result<()> {
        let gone = || self.damage(CorruptKind::Quota("an entry is gone").into());
        blocks.describe(block, Role::Quota(self.kind));
        blocks.change(block, |bytes| {
            let bytes = bytes.get_mut(at..at + QUOTA_ENTRY_SIZE).ok_or_else(gone)?;
            let mut entry = QuotaEntry::decode(bytes).ok_or_else(gone)?;
            change(&mut entry);
            Ok(entry.encode(bytes)?)
        })?
    }
}
