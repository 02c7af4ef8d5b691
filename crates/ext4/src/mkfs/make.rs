//! The steps of a format, from the options to the finished volume.

use super::error::{Error, Result};
use super::layout::Layout;
use super::options::Options;
use super::pieces::Pieces;
use super::plan::{Ids, plan};
use super::population::Population;
use super::pour::pour;
use super::tree::{Source, Tree};
use super::write::{self, Manner};
use super::{present, sizes};
use crate::ground::error::Error as VolumeError;
use std::io::Read;
use uext4_blockdev::{Device, Geometry};
use uext4_iomap::coarse_now_ns;
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

/// Makes a volume with the files of a tree, likewise. Without a number of inodes in the options there are enough for
/// the tree. The tree's root is the root directory; the option `root_owner` has no effect.
///
/// The time of change and of creation of all files is that of the options, and the time of access that of the last
/// modification. The same tree, contents and options (with UUID, hash seed and time) make the same bytes.
///
/// # Errors
/// See [`Error`]: all but [`Error::Failed`] and [`Error::Contents`] leave the device unchanged, and so does
/// [`Error::Contents`] if it is not the source that failed.
pub fn format_tree(device: &dyn Device, options: &Options, tree: &Tree, source: &dyn Source) -> Result<Made> {
    writable(device)?;
    let population = Population::of(tree)?;
    let (layout, pieces, made) = lay_out(device.geometry(), options, Some(&population))?;
    present::check(device, options.force)?;
    let manner = Manner::of(device, options);
    let superblock = write::write(device, layout, manner, || pour(device, &population, source, pieces))?;
    Ok(Made { superblock, ..made })
}

/// The volume that [`format_tree()`] would make on a device of this geometry, as [`dry_run()`].
///
/// # Errors
/// Those of [`dry_run()`]; [`Error::Contents`].
pub fn dry_run_tree(device: Geometry, options: &Options, tree: &Tree) -> Result<Made> {
    lay_out(device, options, Some(&Population::of(tree)?)).map(|(.., made)| made)
}

fn writable(device: &dyn Device) -> Result<()> {
    match device.capabilities().read_only {
        true => Err(VolumeError::ReadOnly("the device").into()),
        false => Ok(()),
    }
}

/// The same; `ready` is called when nothing is left to refuse, before anything is written.
pub(super) fn format_on(
    device: &dyn Device,
    options: &Options,
    ready: impl FnOnce(&Superblock) -> std::result::Result<(), VolumeError>,
) -> Result<Made> {
    writable(device)?;
    let (layout, _, made) = lay_out(device.geometry(), options, None)?;
    present::check(device, options.force)?;
    let manner = Manner::of(device, options);
    ready(&made.superblock).map_err(Error::Failed)?;
    Ok(Made { superblock: write::write(device, layout, manner, || Ok(0))?, ..made })
}

/// The volume that [`format()`] would make on a device of this geometry, apart from random numbers. Accesses no device.
///
/// # Errors
/// [`Error::Option`], [`Error::TooSmall`] and [`Error::TooLarge`], as for [`format()`].
pub fn dry_run(device: Geometry, options: &Options) -> Result<Made> {
    lay_out(device, options, None).map(|(.., made)| made)
}

/// The layout of the volume, and where the contents of its files go.
pub(super) fn lay_out(
    device: Geometry,
    options: &Options,
    files: Option<&Population<'_>>,
) -> Result<(Layout, Pieces, Made)> {
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
    let mut sizes = sizes::decide(options, device)?;
    if let Some(files) = files
        && options.inodes.is_none()
        && sizes.geometry.inodes_count() < files.inodes_with_own()
    {
        let inodes = Some(files.inodes_with_own());
        sizes = sizes::decide(&Options { inodes, ..options.clone() }, device)?;
    }
    let journal_blocks = sizes.journal.blocks;
    let wanted = options.feature_words().compat.contains(Compat::HAS_JOURNAL);
    let without_journal = wanted && journal_blocks == 0 && options.extended.journal.is_none();
    let (layout, pieces) = plan(options, sizes, ids(options)?, files)?;
    let made = Made { superblock: layout.superblock.clone(), journal_blocks, without_journal };
    Ok((layout, pieces, made))
}

pub(super) fn ids(options: &Options) -> Result<Ids> {
    // The clock of changes and of `time(2)`: the other may be a tick ahead, and e2fsck finds times of the future.
    let time = options.time.unwrap_or_else(|| coarse_now_ns() / 1_000_000_000);
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
