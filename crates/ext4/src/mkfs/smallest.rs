//! The size of the smallest volume that holds a tree.
//!
//! A block more of the volume is at most a block more for files, so the search goes up by what is missing. Each step
//! lays out an empty volume, in memory; only the last ones lay out the tree.

use super::error::{Error, Result};
use super::make::lay_out;
use super::options::Options;
use super::population::Population;
use super::tree::Tree;
use crate::inode::metadata::Timestamp;
use uext4_blockdev::Geometry;

/// Block size unless the options have one, in bytes: also of small volumes, whose default is 1024.
const BLOCK: u32 = 4096;
/// Bytes of free space for each free inode.
const FREE_RATIO: u64 = 16_384;
/// Largest size that is tried, in bytes.
const MOST: u64 = 1 << 60;

/// What a volume that is as small as its files allow has besides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Free {
    /// At least so many free bytes.
    Bytes(u64),
    /// At least so many percent of the volume free, below 100.
    Percent(f64),
}

/// The options with the size of the smallest volume that holds a tree, and with what they leave open set to what is
/// good for it: blocks of 4 KiB, nothing reserved, and as many inodes as are used, and one for each 16 KiB of free
/// space. `device` says which block sizes are possible; its size is not asked.
///
/// # Errors
/// Those of [`dry_run_tree()`](super::dry_run_tree()); [`Error::TooLarge`] if there is no such volume.
pub fn smallest(device: Geometry, options: &Options, tree: &Tree, free: Free) -> Result<Options> {
    if let Free::Percent(percent) = free
        && !(0.0..100.0).contains(&percent)
    {
        return Err(Error::Option(format!("{percent} percent cannot be free: 0 to less than 100 can")));
    }
    let device = Geometry { size: MOST, ..device };
    let block = options.block_size.unwrap_or(BLOCK.max(device.logical_block));
    let mut options = options.clone();
    options.block_size = Some(block);
    options.reserved_percent.get_or_insert(0.0);
    let population = Population::of(tree)?;
    let none = Tree::new(Timestamp::default());
    let search = Search { device, options, population: &population, none: Population::of(&none)?, free };
    search.run()
}

struct Search<'t> {
    device: Geometry,
    options: Options,
    population: &'t Population<'t>,
    none: Population<'t>,
    free: Free,
}

impl Search<'_> {
    fn run(mut self) -> Result<Options> {
        let block = u64::from(self.options.block_size.unwrap_or(BLOCK));
        let needed = self.needed(block)?;
        let (mut low, mut high) = (0, needed.max(1));
        while let Some(missing) = self.missing(high, needed)? {
            (low, high) = (high, high + missing);
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match self.missing(middle, needed)? {
                Some(_) => low = middle,
                None => high = middle,
            }
        }
        // Large files in several pieces need blocks for their maps.
        loop {
            match lay_out(self.device, &self.of_size(high)?, Some(self.population)) {
                Err(Error::TooSmall { .. }) => high += (high / 4096).max(1),
                Err(error) => return Err(error),
                Ok(_) => return self.of_size(high),
            }
        }
    }

    /// The options of a volume of so many blocks.
    fn of_size(&self, blocks: u64) -> Result<Options> {
        let block = u64::from(self.options.block_size.unwrap_or(BLOCK));
        let size = blocks.checked_mul(block).filter(|size| *size <= MOST);
        let size = size.ok_or_else(|| Error::TooLarge("no volume is as large as these files".into()))?;
        Ok(Options { size: Some(size), ..self.options.clone() })
    }

    /// Blocks that the files take, more than the files of an empty volume. Sets the number of inodes.
    fn needed(&mut self, block: u64) -> Result<u64> {
        let asked = self.options.inodes;
        let mut blocks =
            self.population.bytes() / block + u64::from(self.population.inodes_most()) + (1 << 14);
        loop {
            let mut options = self.of_size(blocks)?;
            options.inodes = asked.or(Some(self.population.inodes_most()));
            match lay_out(self.device, &options, Some(self.population)) {
                Err(Error::TooSmall { .. }) if blocks < MOST / block / 2 => blocks *= 2,
                Err(error) => return Err(error),
                Ok((full, ..)) => {
                    let (bare, ..) = lay_out(self.device, &options, Some(&self.none))?;
                    let last = full.next_inode().get() - 1;
                    self.options.inodes = asked.or(Some(last + self.free_inodes(full.space.taken() * block)));
                    return Ok(full.space.taken() - bare.space.taken());
                }
            }
        }
    }

    /// Inodes to be free beside so many bytes in use.
    fn free_inodes(&self, used: u64) -> u32 {
        let bytes = match self.free {
            Free::Bytes(bytes) => bytes,
            Free::Percent(percent) => (used as f64 * percent / (100.0 - percent)) as u64,
        };
        u32::try_from(bytes / FREE_RATIO).unwrap_or(u32::MAX / 2)
    }

    /// How many blocks a volume of so many blocks lacks at least; `None` if it lacks none.
    fn missing(&self, blocks: u64, needed: u64) -> Result<Option<u64>> {
        let options = self.of_size(blocks)?;
        let block = u64::from(self.options.block_size.unwrap_or(BLOCK));
        let bare = match lay_out(self.device, &options, Some(&self.none)) {
            Err(Error::TooSmall { .. }) => return Ok(Some((blocks / 64).max(1))),
            bare => bare?.0,
        };
        let wanted = match self.free {
            Free::Bytes(bytes) => bytes.div_ceil(block),
            Free::Percent(percent) => (blocks as f64 * percent / 100.0).ceil() as u64,
        };
        let short = (needed + wanted).saturating_sub(bare.superblock.free_blocks);
        Ok(Some(short).filter(|short| *short > 0))
    }
}
