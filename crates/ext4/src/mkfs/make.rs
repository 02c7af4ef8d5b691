//! The course of a format, from the options to what was made.

use super::error::{Error, Result};
use super::options::Options;
use super::plan::{Ids, plan};
use super::{present, sizes, write};
use crate::ground::error::Error as VolumeError;
use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};
use uext4_blockdev::Device;
use uext4_ondisk::ext4::{Compat, Superblock};

/// A volume that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Made {
    /// Its superblock.
    pub superblock: Superblock,
    /// Blocks of its journal; 0 without one.
    pub journal_blocks: u32,
    /// Whether a journal was wanted, but the volume is too small for one.
    pub without_journal: bool,
}

/// Makes a volume on a device, which must be open for writing and for nobody else.
///
/// # Errors
/// See [`Error`]: all but [`Error::Failed`] leave the device as it was.
pub fn format(device: &dyn Device, options: &Options) -> Result<Made> {
    let geometry = device.geometry();
    if device.capabilities().read_only {
        return Err(VolumeError::ReadOnly("the device").into());
    }
    if let Some(size) = options.size.filter(|&size| size > geometry.size) {
        return Err(Error::TooSmall {
            have: format!("the device's {} bytes", geometry.size),
            reason: format!("the volume is to have {size}"),
        });
    }
    let sizes = sizes::decide(options, geometry)?;
    let journal_blocks = sizes.journal_blocks;
    let without_journal = journal_blocks == 0 && options.feature_words().compat.contains(Compat::HAS_JOURNAL);
    let layout = plan(options, sizes, ids(options)?)?;
    present::check(device, options.force)?;
    let superblock = write::write(device, layout, options.extended.lazy_itable_init.unwrap_or(true))?;
    Ok(Made { superblock, journal_blocks, without_journal })
}

fn ids(options: &Options) -> Result<Ids> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let time = options.time.unwrap_or(now);
    let uuid = options.uuid.map_or_else(random_uuid, Ok)?;
    let hash_seed = options.extended.hash_seed.map_or_else(random_uuid, Ok)?;
    Ok(Ids { uuid, hash_seed, time })
}

/// 122 random bits and the marks of a random UUID.
fn random_uuid() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| VolumeError::Invalid(format!("/dev/urandom: {error}")))?;
    bytes[6] = (bytes[6] & 0x0F) | 0x40;
    bytes[8] = (bytes[8] & 0x3F) | 0x80;
    Ok(bytes)
}
