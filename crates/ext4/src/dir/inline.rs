//! Directories inside their inode: the parent's number in four bytes, then entries, in two chains. The first
//! fills the rest of the 60 bytes, the second is the value of `system.data`. There is no entry for `.` and
//! `..`: they are made up here. Source: the kernel's `fs/ext4/inline.c` (`ext4_read_inline_dir`).

use super::name::{self, Wanted};
use super::{DirEntry, Found};
use crate::ground::error::Result;
use crate::inline::InlineData;
use crate::inode::Ext4State;
use crate::inode::Inode;
use crate::inode::metadata::FileKind;
use std::collections::VecDeque;
use uext4_ondisk::ext4::{DirBlock, DirEntry as DiskEntry, DirFormat};
use uext4_ondisk::{Corrupt, CorruptKind, Ino};

/// Bytes of the parent's number.
const PARENT_SIZE: usize = 4;

/// Whether the directory is of this kind.
pub(crate) fn is_inline(inode: &Inode) -> bool {
    inode.kind() == FileKind::Directory && inode.disk().has_inline_data()
}

/// A directory inside its inode.
struct InlineDirectory<'a> {
    inode: &'a Inode,
    format: DirFormat,
    parent: Ino,
    areas: [&'a [u8]; 2],
}

impl<'a> InlineDirectory<'a> {
    fn open(state: &Ext4State, inode: &'a Inode) -> Result<Self> {
        let data = InlineData::of(state, inode)?;
        let format = DirFormat::new(&state.superblock);
        let (parent, first) = data.first.split_at(PARENT_SIZE);
        let parent = parent.first_chunk().and_then(|bytes| Ino::nonzero(u32::from_le_bytes(*bytes)));
        let Some(parent) = parent.filter(|parent| parent.get() <= format.inodes_count) else {
            let what = CorruptKind::InlineData("the number of the parent directory is out of range");
            return Err(Corrupt::from(what).in_inode(inode.ino()).into());
        };
        Ok(InlineDirectory { inode, format, parent, areas: [first, data.rest] })
    }

    /// Calls `each` for the entries that are stored until it answers.
    fn scan<T>(&self, mut each: impl FnMut(&DiskEntry<'_>) -> Option<T>) -> Result<Option<T>> {
        let place = |corrupt: Corrupt| corrupt.in_inode(self.inode.ino());
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
    let directory = InlineDirectory::open(state, inode)?;
    match wanted {
        b"." => Ok(Some(Found { ino: inode.ino(), spelling: None })),
        b".." => Ok(Some(Found { ino: directory.parent, spelling: None })),
        _ => {
            let mut wanted = Wanted::new(state, name::folds(state, inode)?, wanted)?;
            let found = directory.scan(|entry| wanted.is(entry).then_some(entry.inode))?;
            Ok(found.map(|ino| Found { ino, spelling: wanted.spelling }))
        }
    }
}

/// All entries, `.` and `..` first.
pub(crate) fn list(state: &Ext4State, inode: &Inode) -> Result<VecDeque<DirEntry>> {
    let directory = InlineDirectory::open(state, inode)?;
    let kind = Some(FileKind::Directory);
    let mut entries = VecDeque::from([
        DirEntry { name: b".".to_vec(), ino: inode.ino(), kind },
        DirEntry { name: b"..".to_vec(), ino: directory.parent, kind },
    ]);
    directory.scan(|entry| {
        entries.push_back(DirEntry { name: entry.name.to_vec(), ino: entry.inode, kind: entry.file_type });
        None::<()>
    })?;
    Ok(entries)
}
