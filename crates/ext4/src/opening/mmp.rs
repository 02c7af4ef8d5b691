//! Multi-mount protection (feature `mmp`): does another node use the volume?
//!
//! The node that owns a volume refreshes one block of it every few seconds; a sequence number there says that it is
//! in use, that a checker is at work, or that it was left cleanly (`Documentation/filesystems/ext4/mmp.rst`,
//! `fs/ext4/mmp.c`).
//!
//! **What opening does with it.** Whoever is about to *write* must wait: the kernel and e2fsprogs read the block,
//! sleep for twice the check interval (10 s and more), and read it again; only a number that stands still has no
//! living owner. A volume with this feature is not opened for writing at all until there is a heartbeat of our
//! own, so what is left is reading. For a reader the state alone counts, without waiting: anything but "clean" is
//! [`Error::InUse`]. That errs on the safe side (a node that crashed leaves its number behind) and costs nothing,
//! and `force` is the way around it. The kernel's read-only mount does not look at the block; e2fsprogs do.
//!
//! **A damaged block is an error that `force` does not hide.** `force` says "I know that somebody uses it"; it does
//! not say "the metadata may be wrong", and every other checksum error is reported whatever the options.

use crate::ground::error::{Error, Result};
use crate::ground::options::VolumeOptions;
use std::fmt::Write;
use uext4_blockdev::{BufferPool, Device};
use uext4_ondisk::ext4::{Incompat, MmpBlock, MmpOwner, Superblock};
use uext4_ondisk::{Corrupt, CorruptKind};

/// The block as it is on the device now: never from the cache, its owner may be another machine. `None` without
/// the feature.
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
    let length = geometry.block_size() as usize;
    let mut buffer = BufferPool::new(length)?.take(length)?;
    // Inside the volume, which the caller found to fit the device: no overflow.
    device.read_at(&mut buffer, place.get() * u64::from(geometry.block_size()))?;
    Ok(Some(MmpBlock::decode(&buffer, superblock)?))
}

/// Refuses a volume with this feature that is to be written, and one that somebody else uses unless that is forced.
pub(crate) fn refuse_shared(
    device: &dyn Device,
    superblock: &Superblock,
    options: &VolumeOptions,
) -> Result<()> {
    let Some(mmp) = read(device, superblock)? else { return Ok(()) };
    if options.write {
        // Before anything else: nobody may touch even the log of a volume that he cannot keep for himself.
        crate::ground::features::check_writable(superblock)?;
    }
    if options.force { Ok(()) } else { check(&mmp, superblock) }
}

/// Refuses a volume that somebody else uses, naming the node.
fn check(mmp: &MmpBlock, superblock: &Superblock) -> Result<()> {
    let mut by = match mmp.owner() {
        MmpOwner::Nobody => return Ok(()),
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
    Err(Error::InUse(by))
}

/// A name from the block, up to its first NUL, with nothing in it that a terminal would obey.
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
