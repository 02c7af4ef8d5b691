//! Links, size and times of an inode, and its empty record.

use super::draft::Draft;
use crate::ground::error::{Error, Limit, Result};
use crate::ground::state::Ground;
use uext4_ondisk::ext4::{
    FileType, Incompat, IndirectLayout, Inode as DiskInode, InodeFlags, RoCompat, Superblock, Timestamp,
    update_inode_checksum,
};
use uext4_ondisk::{EncodeError, Ino};

/// Most links of an inode (`EXT4_LINK_MAX`).
pub(crate) const LINKS_MAX: u16 = 65000;

/// Largest size of files on volumes without the feature `large_file`.
const SMALL_SIZE_MAX: u64 = i32::MAX as u64;
/// Most logical blocks of a file: the last 32-bit number is not usable. Linux's `ext4_max_size`.
const LOGICAL_BLOCKS: u64 = 0xffff_ffff;

/// Whether an inode has a map of extents, or gets one when its contents leave it.
pub(crate) fn maps_extents(superblock: &Superblock, disk: &DiskInode) -> bool {
    let has_extents = superblock.features.incompat.contains(Incompat::EXTENTS);
    disk.uses_extents() || disk.has_inline_data() && has_extents
}

/// Whether contents of an inode are written through the log: those of regular files, by their flag or by the volume's
/// default. (Linux heeds the flag only without delayed allocation.) Encrypted contents never are.
pub(crate) fn journals_data(superblock: &Superblock, disk: &DiskInode) -> bool {
    disk.file_type() == Some(FileType::Regular)
        && superblock.has_journal()
        && !disk.flags.contains(InodeFlags::ENCRYPT)
        && (disk.flags.contains(InodeFlags::JOURNAL_DATA) || superblock.journals_data())
}

/// The largest size of an inode with its kind of map.
pub(crate) fn size_max(superblock: &Superblock, disk: &DiskInode) -> u64 {
    let block = superblock.geometry.block_size();
    let pointers = || IndirectLayout::new(block).blocks();
    let blocks = if maps_extents(superblock, disk) { LOGICAL_BLOCKS } else { pointers() };
    blocks.saturating_mul(u64::from(block))
}

/// Whether an inode can have this size: its map reaches that far, and the volume allows files that large.
pub(crate) fn check_size(superblock: &Superblock, disk: &DiskInode, size: u64) -> bool {
    let is_large = size > SMALL_SIZE_MAX && disk.file_type() == Some(FileType::Regular);
    let allowed = !is_large || superblock.features.ro_compat.contains(RoCompat::LARGE_FILE);
    allowed && size <= size_max(superblock, disk)
}

/// The error for a field that does not fit the record.
pub(crate) fn unencodable(error: EncodeError) -> Error {
    Error::Invalid(error.to_string())
}

/// The record of a free inode: zeros, except the checksum.
pub(crate) fn empty_record(superblock: &Superblock, ino: Ino) -> Result<(Vec<u8>, DiskInode)> {
    let mut raw = vec![0; usize::from(superblock.geometry.inode_size())];
    update_inode_checksum(&mut raw, ino, superblock)?;
    let disk = DiskInode::decode(&raw, ino, superblock)?;
    Ok((raw, disk))
}

/// A record whose extra fields (`extra_isize`) have at least this many bytes has nanoseconds, and years after 2038, for
/// the times of access, of modification and of change.
pub(crate) const TIMES_END: u16 = 16;
/// As [`TIMES_END`], for the time of creation.
pub(crate) const CREATION_END: u16 = 24;
/// With at least this many bytes, the record has the upper 32 bits of the version.
const VERSION_END: u16 = 28;

/// `time` clamped to what the record can store. It has the time's extra field if `extra_isize` is at least `end`. The
/// first and the last second have no nanoseconds, as in Linux.
pub(crate) fn storable(time: Timestamp, extra_isize: u16, end: u16) -> Timestamp {
    let is_short = extra_isize < end;
    let most = if is_short { i64::from(i32::MAX) } else { Timestamp::MAX_SECONDS };
    let seconds = time.seconds.clamp(Timestamp::MIN_SECONDS, most);
    let at_bound = seconds == most || seconds == Timestamp::MIN_SECONDS;
    let nanoseconds = if is_short || at_bound { 0 } else { time.nanoseconds };
    Timestamp { seconds, nanoseconds }
}

/// The link count of a directory after adding or removing a subdirectory. One link means that there are too many to
/// count.
///
/// # Errors
/// [`Limit::Links`].
pub(crate) fn count_subdirectory(ground: &Ground, links: u16, more: bool) -> Result<u16> {
    match (links, more) {
        (1, _) => Ok(1),
        (links, false) => Ok(links.saturating_sub(1).max(2)),
        (links, true) if links < LINKS_MAX => Ok(links + 1),
        _ if ground.superblock.features.ro_compat.contains(RoCompat::DIR_NLINK) => Ok(1),
        _ => Err(Error::Limit(Limit::Links)),
    }
}

impl Draft {
    /// Adds a name. A directory has only the names in its parent and in itself: see [`count_subdirectory`].
    ///
    /// # Errors
    /// [`Limit::Links`], with nothing changed.
    pub(crate) fn add_link(&mut self) -> Result<()> {
        if self.disk.links >= LINKS_MAX {
            return Err(Error::Limit(Limit::Links));
        }
        self.disk.links += 1;
        Ok(())
    }

    /// Removes a name.
    ///
    /// # Errors
    /// [`Error::CorruptInode`] if it has none.
    pub(crate) fn remove_link(&mut self) -> Result<()> {
        let none = || Error::CorruptInode {
            ino: self.ino,
            what: "a name leads to it, but its link count is 0".into(),
        };
        self.disk.links = self.disk.links.checked_sub(1).ok_or_else(none)?;
        Ok(())
    }

    /// Sets the size. The caller frees or maps blocks.
    ///
    /// # Errors
    /// [`Limit::Map`] if its map cannot reach that far, or the volume does not allow files that large; nothing was
    /// changed then.
    pub(crate) fn set_size(&mut self, ground: &Ground, size: u64) -> Result<()> {
        let superblock = &ground.superblock;
        let before = std::mem::replace(&mut self.disk.size, size);
        if !check_size(superblock, &self.disk, size) || !self.disk.has_room_for_size(superblock) {
            self.disk.size = before;
            return Err(Error::Limit(Limit::Map));
        }
        Ok(())
    }

    /// Sets the time of a change of the inode, and of its contents if those changed. The version counts such changes.
    pub(crate) fn stamp(&mut self, now: Timestamp, contents: bool) {
        // Old records have room for 32 bits only.
        let next = self.disk.version.wrapping_add(1);
        self.disk.version = if self.disk.extra_isize < VERSION_END { next & 0xffff_ffff } else { next };
        let now = storable(now, self.disk.extra_isize, TIMES_END);
        self.disk.changed = now;
        if contents {
            self.disk.modified = now;
        }
    }
}
