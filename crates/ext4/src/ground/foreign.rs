//! What a device holds that is no ext2, ext3 or ext4 volume, told by its first bytes: for the message, not for use.
//!
//! The signatures are those of two crates: `forensicnomicon-core` knows file systems, swap and containers of them,
//! `file-format` knows compressed files and virtual disks. Partition tables are those of `?partition=N`.

use crate::error::Error;
use file_format::{FileFormat, Kind};
use std::fmt;
use std::sync::Arc;
use uext4_blockdev::partition::{self, Extent, Scheme};
use uext4_blockdev::{self as blockdev, BufferPool, Device};
use uext4_ondisk::CorruptKind;

/// Bytes looked at: the furthest signature known is that of a ZFS label.
const LOOKED_AT: u64 = 256 << 10;

/// Most partitions that are looked into.
const PARTITIONS_MAX: usize = 32;

/// What a device, or a partition of it, looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contents {
    /// A file system, swap space or a container of volumes, by its usual name (`XFS`, `Linux swap`, `LUKS`).
    Volume(&'static str),
    /// A file of this format: a compressed file, an archive, a virtual disk.
    File {
        /// The name of the format.
        name: String,
        /// What makes a raw image of it, if something does.
        hint: Option<&'static str>,
    },
    /// Nothing but zeros in so many bytes at the start.
    Zeros(u64),
    /// Nothing that is known.
    Unknown,
}

/// What is on a device instead of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Foreign {
    /// One thing.
    Contents(Contents),
    /// A disk with partitions.
    Partitions {
        /// The form of its table.
        scheme: Scheme,
        /// Number, bytes and contents of the first ones that can be used.
        partitions: Vec<(u32, u64, Contents)>,
        /// How many follow that were not looked into.
        more: usize,
    },
    /// So few bytes that no superblock has room.
    TooShort(u64),
}

/// The error for a device on which `error` was found instead of a superblock.
pub(crate) fn instead(device: &dyn Device, error: Error) -> Error {
    let Error::Corrupt(corrupt) = &error else { return error };
    let foreign = match corrupt.kind {
        CorruptKind::SuperblockMagic => look(device),
        CorruptKind::Truncated(_) => Ok(Foreign::TooShort(device.geometry().size)),
        _ => return error,
    };
    foreign.map_or_else(Error::from, |foreign| Error::NotExt4(Arc::new(foreign)))
}

fn look(device: &dyn Device) -> blockdev::Result<Foreign> {
    let whole = Extent { start: 0, size: device.geometry().size };
    let bytes = first_bytes(device, whole)?;
    // Boot sectors of file systems bear the mark of an MBR too, so what is surer comes first.
    let listing = partition::list(device)?;
    let volume = volume(&bytes);
    if let Some(listing) = listing
        && (listing.scheme == Scheme::Gpt || volume.is_none())
    {
        let more = listing.partitions.len().saturating_sub(PARTITIONS_MAX);
        let first = listing.partitions.into_iter().take(PARTITIONS_MAX);
        let partitions =
            first.map(|(number, extent)| Ok((number, extent.size, contents(&first_bytes(device, extent)?))));
        let partitions = partitions.collect::<blockdev::Result<_>>()?;
        return Ok(Foreign::Partitions { scheme: listing.scheme, partitions, more });
    }
    Ok(Foreign::Contents(volume.unwrap_or_else(|| contents(&bytes))))
}

/// The first bytes of a part of the device, in whole logical blocks.
fn first_bytes(device: &dyn Device, extent: Extent) -> blockdev::Result<Vec<u8>> {
    let block = u64::from(device.geometry().logical_block);
    let length = extent.size.min(LOOKED_AT) / block * block;
    let length = usize::try_from(length).unwrap_or_default();
    let mut buffer = BufferPool::new(length)?.take(length)?;
    device.read_at(&mut buffer, extent.start)?;
    Ok(buffer.to_vec())
}

fn volume(bytes: &[u8]) -> Option<Contents> {
    forensicnomicon_core::filesystems::detect_name(bytes).map(Contents::Volume)
}

fn contents(bytes: &[u8]) -> Contents {
    if let Some(volume) = volume(bytes) {
        return volume;
    }
    if bytes.iter().all(|&byte| byte == 0) {
        return Contents::Zeros(bytes.len() as u64);
    }
    let format = FileFormat::from_bytes(bytes);
    if matches!(format, FileFormat::ArbitraryBinaryData | FileFormat::Empty) {
        return Contents::Unknown;
    }
    let hint = match format.kind() {
        Kind::Compressed => Some("uncompress it first"),
        Kind::Disk if format != FileFormat::Iso9660 => {
            Some("make a raw image of it first, as with `qemu-img convert -O raw`")
        }
        _ => None,
    };
    Contents::File { name: format.name().to_owned(), hint }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contents::Volume(name) => f.write_str(name),
            Contents::File { name, hint: None } => f.write_str(name),
            Contents::File { name, hint: Some(hint) } => write!(f, "{name} ({hint})"),
            Contents::Zeros(_) => f.write_str("empty"),
            Contents::Unknown => f.write_str("unknown"),
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Foreign::Contents(Contents::Zeros(bytes)) => write!(f, "its first {} are zeros", Bytes(*bytes)),
            Foreign::Contents(Contents::Unknown) => f.write_str(
                "it has no superblock, and nothing else known (if it was one, `e2fsck -b 32768` may find a copy)",
            ),
            Foreign::Contents(contents) => write!(f, "it looks like {contents}"),
            Foreign::TooShort(bytes) => write!(f, "it has {bytes} bytes, too few for a superblock"),
            Foreign::Partitions { scheme, partitions, more } => {
                let scheme = match scheme {
                    Scheme::Mbr => "MBR",
                    Scheme::Gpt => "GPT",
                };
                write!(f, "it looks like a disk with a partition table ({scheme})")?;
                if partitions.is_empty() {
                    return f.write_str(", without a partition that can be used (is the image whole?)");
                }
                f.write_str(": ")?;
                for (number, bytes, contents) in partitions {
                    write!(f, "{number} ({}, {contents}), ", Bytes(*bytes))?;
                }
                if *more > 0 {
                    write!(f, "{more} more, ")?;
                }
                f.write_str("to be chosen with `?partition=N`")
            }
        }
    }
}

/// An amount for people: `512 bytes`, `1.5 MiB`, `3 GiB`.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        let power = (self.0.max(1).ilog2() / 10).min(4);
        let Some(unit) = power.checked_sub(1).and_then(|index| UNITS.get(index as usize)) else {
            return write!(f, "{} bytes", self.0);
        };
        let tenths = (u128::from(self.0) * 10) >> (10 * power);
        match tenths % 10 {
            0 => write!(f, "{} {unit}", tenths / 10),
            tenth => write!(f, "{}.{tenth} {unit}", tenths / 10),
        }
    }
}
