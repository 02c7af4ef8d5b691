//! Identifies by its first bytes what a device holds instead of an ext2, ext3 or ext4 volume, for the error message
//! only.
//!
//! The signatures come from two crates: `forensicnomicon-core` has those of file systems, swap and volume containers,
//! `file-format` those of compressed files and virtual disks. Partition tables are read as for `?partition=N`.

use crate::ground::error::Error;
use crate::ground::foreign::{Contents, Foreign};
use file_format::{FileFormat, Kind};
use std::sync::Arc;
use uext4_blockdev::partition::{self, Extent, Scheme};
use uext4_blockdev::{self as blockdev, BufferPool, Device};
use uext4_ondisk::CorruptKind;

/// Bytes to examine. The furthest known signature is that of a ZFS label.
const LOOKED_AT: u64 = 256 << 10;

/// Most partitions to examine.
const PARTITIONS_MAX: usize = 32;

/// Turns `error`, found instead of a superblock, into one that says what the device holds.
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
    // The boot sector of a file system has the mark of an MBR too. So try GPT first, then file systems, then MBR.
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
        // Otherwise it would have been opened as the disk in it.
        Kind::Disk if format == FileFormat::QemuCopyOnWrite => {
            Some("the disk in it is read without `format=raw`")
        }
        Kind::Disk if format != FileFormat::Iso9660 => {
            Some("make a raw image of it first, as with `qemu-img convert -O raw`")
        }
        _ => None,
    };
    Contents::File { name: format.name().to_owned(), hint }
}
