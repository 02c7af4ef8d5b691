//! Parts of an inode with a meaning of their own: type, flags, times, device numbers.

use crate::bytes::le32_at;
use crate::error::EncodeError;
use crate::flags::named_flags;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

use super::STRUCTURE;

named_flags! {
    /// Flags of an inode (`i_flags`).
    pub struct InodeFlags: u32, unknown "FLAG_" {
        /// Overwrite on deletion; not honoured.
        SECURE_DELETE = 0x1, "secure_deletion";
        /// Keep for undeletion; not honoured.
        UNDELETE = 0x2, "undelete";
        /// Compressed; never merged.
        COMPRESS = 0x4, "compression_requested";
        /// All writes are synchronous.
        SYNC = 0x8, "synchronous_updates";
        /// Cannot be changed, renamed or linked.
        IMMUTABLE = 0x10, "immutable";
        /// Can only be appended to.
        APPEND = 0x20, "append_only";
        /// Not to be backed up by `dump`.
        NODUMP = 0x40, "no_dump";
        /// Access time is not kept.
        NOATIME = 0x80, "no_atime";
        /// Compression: dirty.
        DIRTY = 0x100, "compressed_dirty_file";
        /// Compression: has compressed clusters.
        COMPRESSED_BLOCKS = 0x200, "compressed_clusters";
        /// Compression: not wanted.
        NO_COMPRESS = 0x400, "dont_compress";
        /// Contents or names are encrypted.
        ENCRYPT = 0x800, "encrypted";
        /// Directory with a hash tree.
        INDEX = 0x1000, "indexed_directory";
        /// AFS directory.
        IMAGIC = 0x2000, "afs_directory";
        /// Data goes through the journal.
        JOURNAL_DATA = 0x4000, "journaled_data";
        /// Tails are not merged.
        NO_TAIL = 0x8000, "no_tailmerging";
        /// Changes of the directory are synchronous.
        DIRSYNC = 0x10000, "synchronous_directory_updates";
        /// Top of a directory hierarchy, for placement.
        TOPDIR = 0x20000, "top_of_directory_hierarchies";
        /// The block count is in file-system blocks.
        HUGE_FILE = 0x40000, "huge_file";
        /// Blocks are mapped by extents.
        EXTENTS = 0x80000, "extents";
        /// Contents are covered by a Merkle tree.
        VERITY = 0x100000, "verity";
        /// Holds the value of an extended attribute.
        EA_INODE = 0x200000, "ea_inode";
        /// Blocks past the end of file; no longer used.
        EOF_BLOCKS = 0x400000, "eof_blocks";
        /// Direct access to persistent memory.
        DAX = 0x2000000, "dax";
        /// Snapshot file of an old experiment.
        SNAPSHOT = 0x1000000, "snapshot";
        /// Contents lie in the inode.
        INLINE_DATA = 0x10000000, "inline_data";
        /// New files inherit the project.
        PROJECT_INHERIT = 0x20000000, "project_hierarchy";
        /// Names are looked up with case folded.
        CASEFOLD = 0x40000000, "casefold";
        /// Reserved for the library's own use.
        RESERVED = 0x80000000, "reserved";
    }
}

/// The type of a file, numbered as directory entries do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
pub enum FileType {
    /// Regular file.
    Regular = 1,
    /// Directory.
    Directory,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Symbolic link.
    Symlink,
}

impl FileType {
    /// The type in the top four bits of a mode.
    pub fn from_mode(mode: u16) -> Option<FileType> {
        match mode & 0o170_000 {
            0o100_000 => Some(FileType::Regular),
            0o040_000 => Some(FileType::Directory),
            0o020_000 => Some(FileType::CharDevice),
            0o060_000 => Some(FileType::BlockDevice),
            0o010_000 => Some(FileType::Fifo),
            0o140_000 => Some(FileType::Socket),
            0o120_000 => Some(FileType::Symlink),
            _ => None,
        }
    }

    /// The type's bits of a mode.
    pub fn mode_bits(self) -> u16 {
        match self {
            FileType::Regular => 0o100_000,
            FileType::Directory => 0o040_000,
            FileType::CharDevice => 0o020_000,
            FileType::BlockDevice => 0o060_000,
            FileType::Fifo => 0o010_000,
            FileType::Socket => 0o140_000,
            FileType::Symlink => 0o120_000,
        }
    }

    /// The type stored in a directory entry; `None` for "unknown" and for values without meaning.
    pub fn from_dir_entry(value: u8) -> Option<FileType> {
        FileType::try_read_from_bytes(&[value]).ok()
    }

    /// The value a directory entry stores for the type.
    pub fn dir_entry_value(self) -> u8 {
        zerocopy::transmute!(self)
    }
}

/// A point in time. On disk: 32 bits of seconds, or 34 with 30 bits of nanoseconds; 1901 to 2446.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds to add. 30 bits on disk, so a damaged record can say up to 1 073 741 823.
    pub nanoseconds: u32,
}

const EPOCH_MASK: u32 = 3;
const MAX_NANOSECONDS: u32 = (1 << 30) - 1;

impl Timestamp {
    /// The earliest time that can be stored: December 1901.
    pub const MIN_SECONDS: i64 = -(1 << 31);
    /// The latest time that can be stored with extra bits: May 2446.
    pub const MAX_SECONDS: i64 = (1 << 34) - (1 << 31) - 1;

    /// Nanoseconds since 1970.
    pub fn nanoseconds_since_epoch(&self) -> i128 {
        i128::from(self.seconds).saturating_mul(1_000_000_000).saturating_add(i128::from(self.nanoseconds))
    }
}

/// The low two bits of the extra word extend the seconds upwards from the signed 32-bit value; the rest are
/// nanoseconds.
pub(super) fn decode_time(seconds: u32, extra: Option<u32>) -> Timestamp {
    let base = i64::from(i32::from_le_bytes(seconds.to_le_bytes()));
    let extra = extra.unwrap_or(0);
    let epoch = i64::from(extra & EPOCH_MASK) << 32;
    Timestamp { seconds: base.saturating_add(epoch), nanoseconds: extra >> 2 }
}

/// The two words of a time. Without an extra word, times beyond 32 bits are an error and nanoseconds are
/// dropped.
pub(super) fn encode_time(
    time: Timestamp,
    has_extra: bool,
    field: &'static str,
) -> Result<(u32, u32), EncodeError> {
    let error = EncodeError::new(STRUCTURE, field);
    let max = if has_extra { Timestamp::MAX_SECONDS } else { i64::from(i32::MAX) };
    if !(Timestamp::MIN_SECONDS..=max).contains(&time.seconds) || time.nanoseconds > MAX_NANOSECONDS {
        return Err(error);
    }
    // Two's complement: the low 32 bits are the signed base; what it lacks is a multiple of 2³² up to three
    // times.
    let [a, b, c, d, ..] = time.seconds.to_le_bytes();
    let low = u32::from_le_bytes([a, b, c, d]);
    let base = i64::from(i32::from_le_bytes([a, b, c, d]));
    let epoch = u32::try_from(time.seconds.saturating_sub(base) >> 32).map_err(|_| error)?;
    Ok((low, (epoch & EPOCH_MASK) | (time.nanoseconds << 2)))
}

/// A device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Major number, 12 bits.
    pub major: u32,
    /// Minor number, 20 bits.
    pub minor: u32,
}

const MAX_MAJOR: u32 = 0xFFF;
const MAX_MINOR: u32 = 0xF_FFFF;

impl DeviceNumber {
    /// Reads the old 16-bit encoding in the first word or, if that is zero, the new one in the second.
    pub(super) fn decode(i_block: &[u8]) -> Option<DeviceNumber> {
        let old = le32_at(i_block, 0)?;
        let new = le32_at(i_block, 4)?;
        if old != 0 {
            return Some(DeviceNumber { major: (old >> 8) & 0xFF, minor: old & 0xFF });
        }
        Some(DeviceNumber { major: (new >> 8) & MAX_MAJOR, minor: (new & 0xFF) | ((new >> 12) & 0xF_FF00) })
    }

    /// The `i_block` of a device node: the old encoding if both numbers are below 256, else the new one.
    pub fn encode(&self) -> Result<[u8; super::I_BLOCK_SIZE], EncodeError> {
        if self.major > MAX_MAJOR || self.minor > MAX_MINOR {
            return Err(EncodeError::new(STRUCTURE, "device"));
        }
        let small = self.major < 256 && self.minor < 256;
        let (old, new) = if small {
            ((self.major << 8) | self.minor, 0)
        } else {
            (0, (self.minor & 0xFF) | (self.major << 8) | ((self.minor & 0xF_FF00) << 12))
        };
        let mut i_block = [0; super::I_BLOCK_SIZE];
        for (target, byte) in i_block.iter_mut().zip(old.to_le_bytes().into_iter().chain(new.to_le_bytes())) {
            *target = byte;
        }
        Ok(i_block)
    }
}
