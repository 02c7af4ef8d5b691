//! Links, size and times of an inode, and what an empty record is.

use super::draft::Draft;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::state::Ground;
use uext4_ondisk::ext4::{Inode as DiskInode, RoCompat, Superblock, Timestamp, update_inode_checksum};
use uext4_ondisk::{EncodeError, Ino};

/// Most links of an inode (`EXT4_LINK_MAX`).
pub(crate) const LINKS_MAX: u16 = 65000;

/// A field that the record cannot hold.
pub(crate) fn unencodable(error: EncodeError) -> Error {
    Error::Invalid(error.to_string())
}

/// The record of an inode that nobody uses: zeroes, but for the checksum.
pub(crate) fn empty_record(superblock: &Superblock, ino: Ino) -> Result<(Vec<u8>, DiskInode)> {
    let mut raw = vec![0; usize::from(superblock.geometry.inode_size())];
    update_inode_checksum(&mut raw, ino, superblock)?;
    let disk = DiskInode::decode(&raw, ino, superblock)?;
    Ok((raw, disk))
}

/// The nearest time that a record with so many bytes of extra fields can hold.
pub(crate) fn storable(time: Timestamp, extra_isize: u16) -> Timestamp {
    let most = if extra_isize == 0 { i64::from(i32::MAX) } else { Timestamp::MAX_SECONDS };
    let seconds = time.seconds.clamp(Timestamp::MIN_SECONDS, most);
    let nanoseconds = if extra_isize == 0 { 0 } else { time.nanoseconds };
    Timestamp { seconds, nanoseconds }
}

/// The links of a directory with one directory in it more, or less. One link stands for more than can be counted.
///
/// # Errors
/// [`Limit::Links`].
pub(crate) fn count_subdirectory(ground: &Ground, links: u16, more: bool) -> Result<u16> {
    match (links, more) {
        (1, _) => Ok(1),
        (links, false) => Ok(links.saturating_sub(1).max(2)),
        (links, true) if links < LINKS_MAX - 1 => Ok(links + 1),
        _ if ground.superblock.features.ro_compat.contains(RoCompat::DIR_NLINK) => Ok(1),
        _ => Err(Error::Limit(Limit::Links)),
    }
}

impl Draft {
    /// One name more. Of a directory only its parent's and its own lead to it: see [`count_subdirectory`].
    ///
    /// # Errors
    /// [`Limit::Links`]. Nothing was changed then.
    pub(crate) fn add_link(&mut self) -> Result<()> {
        if self.disk.links >= LINKS_MAX {
            return Err(Error::Limit(Limit::Links));
        }
        self.disk.links += 1;
        Ok(())
    }

    /// One name less.
    ///
    /// # Errors
    /// [`Error::CorruptInode`] if it has none.
    pub(crate) fn remove_link(&mut self) -> Result<()> {
        let none =
            || Error::CorruptInode { ino: self.ino, what: "a name leads to it, but it has no links".into() };
        self.disk.links = self.disk.links.checked_sub(1).ok_or_else(none)?;
        Ok(())
    }

    /// Another size. What it maps is for the caller.
    ///
    /// # Errors
    /// [`Limit::Map`] if a record of this kind cannot hold it. Nothing was changed then.
    pub(crate) fn set_size(&mut self, ground: &Ground, size: u64) -> Result<()> {
        let before = std::mem::replace(&mut self.disk.size, size);
        let mut raw = self.raw.clone();
        if self.disk.encode(&mut raw, self.ino, &ground.superblock).is_err() {
            self.disk.size = before;
            return Err(Error::Limit(Limit::Map));
        }
        Ok(())
    }

    /// Notes the time of a change of the inode, and of its contents if those changed.
    pub(crate) fn stamp(&mut self, now: Timestamp, contents: bool) {
        let now = storable(now, self.disk.extra_isize);
        self.disk.changed = now;
        if contents {
            self.disk.modified = now;
        }
    }
}
