//! The steps of a format, from the options to the finished volume.

use super::error::{Error, Result};
use super::layout::Layout;
use super::options::Options;
use super::plan::{Ids, plan};
use super::write::{self, Manner};
use super::{present, sizes};
use crate::ground::error::Error as VolumeError;
use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};
use uext4_blockdev::{Device, Geometry};
use uext4_ondisk::ext4::{Compat, Superblock};

/// A volume that was made, or that a dry run would make.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Made {
    /// Its superblock.
    pub superblock: Superblock,
    /// Blocks of its journal, including those for fast commits; 0 without a journal inside.
    pub journal_blocks: u32,
    /// Whether a journal was wanted, but the volume is too small for one.
    pub without_journal: bool,
}

impl Made {
    /// The blocks that hold copies of the superblock, in order.
    pub fn backups(&self) -> Vec<u64> {
        let geometry = &self.superblock.geometry;
        let copies = geometry.groups().skip(1).filter(|&group| geometry.has_superblock(group));
        copies.filter_map(|group| geometry.group_first_block(group)).map(|block| block.get()).collect()
    }
}

/// Makes a volume on a device, which must be open for writing, exclusively.
///
/// # Errors
/// See [`Error`]: all but [`Error::Failed`] leave the device unchanged.
pub fn format(device: &dyn Device, options: &Options) -> Result<Made> {
    format_on(device, options, |_| Ok(()))
}

/// The same; `ready` is called when nothing is left to refuse, before anything is written.
pub(super) fn format_on(
    device: &dyn Device,
    options: &Options,
    ready: impl FnOnce(&Superblock) -> std::result::Result<(), VolumeError>,
) -> Result<Made> {
    if device.capabilities().read_only {
        return Err(VolumeError::ReadOnly("the device").into());
    }
    let (layout, made) = lay_out(device.geometry(), options)?;
    present::check(device, options.force)?;
    let extended = &options.extended;
    let manner = Manner {
        lazy: extended.lazy_itable_init.unwrap_or(true),
        discard: extended.discard && device.capabilities().discard,
    };
    ready(&made.superblock).map_err(Error::Failed)?;
    Ok(Made { superblock: write::write(device, layout, manner)?, ..made })
}

/// The volume that [`format()`] would make on a device of this geometry, apart from random numbers. Accesses no device.
///
/// # Errors
/// [`Error::Option`], [`Error::TooSmall`] and [`Error::TooLarge`], as for [`format()`].
pub fn dry_run(device: Geometry, options: &Options) -> Result<Made> {
    lay_out(device, options).map(|(_, made)| made)
}

fn lay_out(device: Geometry, options: &Options) -> Result<(Layout, Made)> {
    if options.extended.offset.is_some() {
        let text = "option `offset`: the device itself must begin there (see `Options::take_offset`)";
        return Err(Error::Option(text.into()));
    }
    if let Some(size) = options.size.filter(|&size| size > device.size) {
        return Err(Error::TooSmall {
            have: format!("the device's {} bytes", device.size),
            reason: format!("the volume is to have {size}"),
        });
    }
    let sizes = sizes::decide(options, device)?;
    let journal_blocks = sizes.journal.blocks;
    let wanted = options.feature_words().compat.contains(Compat::HAS_JOURNAL);
    let without_journal = wanted && journal_blocks == 0 && options.extended.journal.is_none();
    let layout = plan(options, sizes, ids(options)?)?;
    let made = Made { superblock: layout.superblock.clone(), journal_blocks, without_journal };
    Ok((layout, made))
}

pub(super) fn ids(options: &Options) -> Result<Ids> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let time = options.time.unwrap_or(now);
    let uuid = options.uuid.map_or_else(random_uuid, Ok)?;
    let hash_seed = options.extended.hash_seed.map_or_else(random_uuid, Ok)?;
    Ok(Ids { uuid, hash_seed, time })
}

/// A random UUID: 122 random bits, plus version and variant.
fn random_uuid() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| {
        VolumeError::Invalid(format!("/dev/urandom: {}", uext4_blockdev::describe(&error)))
    })?;
    bytes[6] = (bytes[6] & 0x0F) | 0x40;
    bytes[8] = (bytes[8] & 0x3F) | 0x80;
    Ok(bytes)
}
