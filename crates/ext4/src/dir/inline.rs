//! Inline directories: the parent's number in four bytes, then entries, in two rows. The first fills the rest of the 60
//! bytes, the second is the value of `system.data`. `.` and `..` have no entries and are synthesized here. Source: the
//! kernel's `fs/ext4/inline.c` (`ext4_read_inline_dir`).

use super::Found;
use super::name::{self, Wanted};
use super::row::{self, Gap, Held};
use crate::ground::error::Result;
use crate::inline::{InlineData, edit};
use crate::inode::Ext4State;
use crate::inode::Inode;
use crate::inode::core::InodeValue;
use crate::inode::draft::Draft;
use crate::inode::metadata::FileKind;
use uext4_ondisk::ext4::{DirBlock, DirEntry as DiskEntry, DirFormat, I_BLOCK_SIZE, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind, Ino};

/// Bytes of the parent's number.
const PARENT_SIZE: usize = 4;

/// Whether the directory is inline.
pub(crate) fn is_inline(inode: &Inode) -> bool {
    inode.kind() == FileKind::Directory && inode.disk().has_inline_data()
}

/// An inline directory.
struct InlineDirectory<'a> {
    ino: Ino,
    format: DirFormat,
    parent: Ino,
    areas: [&'a [u8]; 2],
}

impl<'a> InlineDirectory<'a> {
    fn open(state: &Ext4State, core: &'a InodeValue) -> Result<Self> {
        Self::of(&state.superblock, core.ino(), InlineData::of(state, core)?)
    }

    fn of(superblock: &Superblock, ino: Ino, data: InlineData<'a>) -> Result<Self> {
        let format = DirFormat::new(superblock);
        let (parent, first) = data.first.split_at(PARENT_SIZE);
        let parent = parent.first_chunk().and_then(|bytes| Ino::nonzero(u32::from_le_bytes(*bytes)));
        let Some(parent) = parent.filter(|parent| parent.get() <= format.inodes_count) else {
            let what = CorruptKind::InlineData("the number of the parent directory is out of range");
            return Err(Corrupt::from(what).in_inode(ino).into());
        };
        Ok(InlineDirectory { ino, format, parent, areas: [first, data.rest] })
    }

    /// Calls `each` for the stored entries until it returns `Some`.
    fn scan<T>(&self, mut each: impl FnMut(&DiskEntry<'_>) -> Option<T>) -> Result<Option<T>> {
        let place = |corrupt: Corrupt| corrupt.in_inode(self.ino);
        for area in self.areas {
            for entry in DirBlock::inline(area, &self.format).entries() {
                let entry = entry.map_err(place)?;
                if !entry.has_valid_name() || entry.is_dot() || entry.is_dot_dot() {
                    return Err(place(CorruptKind::DirEntryName.into()).into());
                }
                if let Some(answer) = each(&entry) {
                    return Ok(Some(answer));
                }
            }
        }
        Ok(None)
    }
}

/// Finds a name.
pub(super) fn look_up(state: &Ext4State, inode: &Inode, wanted: &[u8]) -> Result<Option<Found>> {
    let core = inode.disk();
    let directory = InlineDirectory::open(state, &core)?;
    let superblock = &state.superblock;
    match wanted {
        b"." => Ok(Some(Found { ino: inode.ino(), spelling: None })),
        b".." => Ok(Some(Found { ino: directory.parent, spelling: None })),
        _ => {
            let mut wanted = Wanted::new(superblock, name::folds(superblock, inode.ino(), &core)?, wanted)?;
            let found = directory.scan(|entry| wanted.is(entry).then_some(entry.inode))?;
            Ok(found.map(|ino| Found { ino, spelling: wanted.spelling }))
        }
    }
}

/// Calls `each` with the name, inode and type of all entries, `.` and `..` first.
pub(crate) fn list(
    state: &Ext4State,
    inode: &Inode,
    mut each: impl FnMut(&[u8], Ino, Option<FileKind>),
) -> Result<()> {
    let core = inode.disk();
    let directory = InlineDirectory::open(state, &core)?;
    let kind = Some(FileKind::Directory);
    each(b".", inode.ino(), kind);
    each(b"..", directory.parent, kind);
    directory.scan(|entry| {
        each(entry.name, entry.inode, entry.file_type);
        None::<()>
    })?;
    Ok(())
}

/// An inline directory being edited, with all of it checked.
fn checked<'d>(superblock: &Superblock, draft: &'d Draft) -> Result<InlineDirectory<'d>> {
    let directory = InlineDirectory::of(superblock, draft.ino, edit::data(superblock, draft)?)?;
    directory.scan(|_| None::<()>)?;
    Ok(directory)
}

/// The entry of a name, the first gap of `needed` bytes, and which of the two rows they are in.
#[allow(clippy::type_complexity, reason = "as of `row::survey`, with the row")]
pub(super) fn survey(
    superblock: &Superblock,
    draft: &Draft,
    wanted: &mut Wanted<'_>,
    needed: u32,
) -> Result<(Option<(u32, Held)>, Option<(u32, Gap)>)> {
    let directory = checked(superblock, draft)?;
    let (mut held, mut gap) = (None, None);
    for (number, area) in (0..).zip(directory.areas) {
        let (found, room) = row::survey(DirBlock::inline(area, &directory.format), wanted, needed)
            .map_err(|corrupt| corrupt.in_inode(draft.ino))?;
        held = held.or(found.map(|found| (number, found)));
        gap = gap.or(room.map(|room| (number, room)));
    }
    Ok((held, gap))
}

/// The parent, and the bytes of all entries.
pub(super) fn entries(superblock: &Superblock, draft: &Draft) -> Result<(Ino, Vec<Vec<u8>>)> {
    let directory = checked(superblock, draft)?;
    let mut all = Vec::new();
    for area in directory.areas {
        let records = row::records(DirBlock::inline(area, &directory.format), area);
        all.extend(records.map_err(|corrupt| corrupt.in_inode(draft.ino))?);
    }
    Ok((directory.parent, all))
}

/// Gives a directory without a second row all the room beside its attributes for one, as Linux does, if an entry of
/// `needed` bytes fits there. Returns whether it did.
pub(super) fn extend(superblock: &Superblock, draft: &mut Draft, needed: u32) -> Result<bool> {
    if !edit::value(superblock, draft)?.is_empty() {
        return Ok(false);
    }
    let room = edit::room(superblock, draft)?;
    if room < needed as usize {
        return Ok(false);
    }
    let mut second = vec![0; room];
    row::fill(&mut second, [], &DirFormat::new(superblock))?;
    edit::set_value(superblock, draft, &second)?;
    draft.disk.size = (I_BLOCK_SIZE + room) as u64;
    Ok(true)
}

/// Changes one of the two rows.
pub(super) fn rewrite(
    superblock: &Superblock,
    draft: &mut Draft,
    number: u32,
    change: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<()> {
    let second = edit::value(superblock, draft)?;
    match number {
        0 => change(&mut draft.disk.i_block[PARENT_SIZE..]),
        _ => change(&mut draft.raw[second]),
    }
}

/// Sets the parent of `..`.
pub(super) fn set_parent(superblock: &Superblock, draft: &mut Draft, parent: Ino) -> Result<()> {
    checked(superblock, draft)?;
    draft.disk.i_block[..PARENT_SIZE].copy_from_slice(&parent.get().to_le_bytes());
    Ok(())
}

/// Makes an inode with the inline data attribute an empty directory.
pub(super) fn start(superblock: &Superblock, draft: &mut Draft, parent: Ino) -> Result<()> {
    let (format, value) = (DirFormat::new(superblock), edit::value(superblock, draft)?);
    // The only row whose length may be wrong.
    row::fill(&mut draft.raw[value], [], &format)?;
    let (to_parent, first) = draft.disk.i_block.split_at_mut(PARENT_SIZE);
    to_parent.copy_from_slice(&parent.get().to_le_bytes());
    row::fill(first, [], &format)
}
