//! Multi-mount protection (feature `mmp`): does another node use the volume?
//!
//! The node that owns a volume writes one block of it every few seconds. A sequence number there says that the volume
//! is in use, being checked, or cleanly released (sources: `Documentation/filesystems/ext4/mmp.rst`, `fs/ext4/mmp.c`).
//!
//! **At open**, a *writer* claims the volume first (`heartbeat.rs`): at once if the block is marked "clean", after a
//! wait of ten seconds or more otherwise. A *reader* does not wait, and judges by the number it reads: anything but
//! "clean" is [`Error::InUse`]. That errs on the safe side, since a crashed node leaves its number behind. `force`
//! reads all the same. The kernel's read-only mount does not look at the block; e2fsprogs do.
//!
//! **`force` does not hide a damaged block.** It means "I know that somebody uses the volume", not "the metadata may be
//! wrong": no option hides any other checksum error either.

use crate::ground::error::{Error, Result};
use crate::ground::options::VolumeOptions;
use crate::opening::on_device::read_bytes;
use std::fmt::Write;
use uext4_blockdev::Device;
use uext4_ondisk::ext4::{Incompat, MmpBlock, MmpOwner, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind};

/// Reads the block from the device, never from the cache: another machine may have written it. `None` without the
/// feature.
pub(crate) fn read(device: &dyn Device, superblock: &Superblock) -> Result<Option<MmpBlock>> {
    if !superblock.features.incompat.contains(Incompat::MMP) {
        return Ok(None);
    }
    let (geometry, place) = (&superblock.geometry, superblock.mmp.block);
    let volume = geometry.usable_blocks();
    if place <= volume.first || place >= volume.end {
        return Err(Corrupt::from(CorruptKind::BlockOutsideVolume("multi-mount protection"))
            .at_block(place)
            .into());
    }
    let size = geometry.block_size();
    // No overflow: the block is inside the volume, and the caller has checked that the volume fits the device.
    let bytes = read_bytes(device, place.get() * u64::from(size), size as usize)?;
    Ok(Some(MmpBlock::decode(&bytes, superblock)?))
}

/// Refuses to read a volume in use, unless `force` is set. A writer claims it instead ([`super::heartbeat::claim`]).
pub(crate) fn refuse_shared(
    device: &dyn Device,
    superblock: &Superblock,
    options: &VolumeOptions,
) -> Result<()> {
    let Some(mmp) = read(device, superblock)? else { return Ok(()) };
    if options.write || options.force || mmp.owner() == MmpOwner::Nobody {
        return Ok(());
    }
    Err(in_use(&mmp, superblock))
}

/// The error for a volume in use by somebody else, with the name of the node.
pub(super) fn in_use(mmp: &MmpBlock, superblock: &Superblock) -> Error {
    let mut by = match mmp.owner() {
        MmpOwner::Nobody => "an owner that has just released it".to_owned(),
        MmpOwner::Checker => "a file system check".to_owned(),
        MmpOwner::Mounted(_) => "another node".to_owned(),
        MmpOwner::Unknown(sequence) => format!("an unknown owner (sequence number {sequence:#x})"),
    };
    let (node, device) = (text(&mmp.node_name), text(&mmp.device_name));
    // Writing to a string cannot fail.
    let _infallible = write!(
        by,
        ": node `{node}`, device `{device}`, as its multi-mount protection says (block {}, refreshed at second {} \
         since 1970); if that node is gone, read with force",
        superblock.mmp.block, mmp.time
    );
    Error::InUse(by)
}

/// A name from the block, up to its first NUL, escaped so that it cannot control a terminal.
fn text(name: &[u8]) -> String {
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    name[..end].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_end_at_their_nul_and_are_harmless() {
        assert_eq!(super::text(b"host\0rest"), "host");
        assert_eq!(super::text(b"\x1b[2J\xff"), "\\x1b[2J\\xff");
        assert_eq!(super::text(b""), "");
    }
}
