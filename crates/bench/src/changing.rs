//! Costs of changing a volume that no ratio of arms shows: a conversion in a file of many extents against one in a
//! file of few, and creating a large volume.

use crate::error::{BenchError, Doing, Result};
use crate::ops::mix;
use crate::statistics::{self, Ratio};
use crate::volume::{self, Scratch, fragment, open_device};
use crate::work::fill;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use uext4::{
    Buffer, BufferPool, DeviceSpec, Fallocate, File, OpenOptions, Volume, VolumeOptions, WriteFlags, mkfs,
};

const BLOCK: u64 = 4096;
/// Pairs of slices; their median counts.
const PAIRS: usize = 60;
/// Extents of the small file, and conversions in a slice.
const FEW: u64 = 10;
/// Number of creations; their median counts.
const MAKINGS: usize = 5;

/// How long converting 4 KiB takes in a file of 10⁶ extents, as a multiple of the time in one of ten.
pub(crate) fn conversion() -> Result<Ratio> {
    conversions(fragment::BLOCKS, PAIRS)
}

/// Every conversion is of an extent of its own, so it neither splits nor merges any: both files are changed alike, one
/// in its inode, the other in a leaf, and no leaf comes twice if there are enough.
fn conversions(blocks: u32, pairs: usize) -> Result<Ratio> {
    let scratch = Scratch::new(256 << 20)?;
    let image = scratch.path().join("image");
    fragment::build(&image, blocks, &fragment::Room { blocks: 1 << 16, journal_mib: 64 })?;
    let ratios = pairs_of_slices(&image, blocks, pairs)?;
    volume::tool(Command::new("e2fsck").arg("-fn").arg(&image))?;
    Ratio::of(ratios).ok_or_else(|| BenchError::failed("no conversion was measured"))
}

fn pairs_of_slices(image: &Path, blocks: u32, pairs: usize) -> Result<Vec<f64>> {
    let volume = Volume::open_spec(&DeviceSpec::file(image), VolumeOptions::read_write());
    let volume = volume.doing(|| format!("open {}", image.display()))?;
    let open = |name: &str, create: bool| {
        let options = OpenOptions::new().read(true).write(true).direct(true).create_new(create);
        volume.open_file(Path::new("/").join(name), options).doing(|| format!("open /{name}"))
    };
    let (many, few) = (open(fragment::SCATTERED, false)?, open("few", true)?);
    let pool = BufferPool::new(BLOCK as usize).doing(|| "reserve memory".into())?;
    let mut buffer = pool.take(BLOCK as usize).doing(|| "reserve memory".into())?;
    fill(&mut buffer, 1);
    let (few_blocks, many_blocks) = (every_second(), distinct(blocks, pairs * FEW as usize));
    for (file, chosen) in [(&few, &few_blocks), (&many, &many_blocks)] {
        // Allocate the device's pages before measuring.
        write(file, chosen, &buffer)?;
    }
    let mut ratios = Vec::with_capacity(pairs);
    for (number, of_many) in many_blocks.chunks(FEW as usize).enumerate() {
        unwritten(&many, of_many)?;
        unwritten(&few, &few_blocks)?;
        volume.sync_files(&[&many, &few]).doing(|| "commit".into())?;
        let timed = |file: &File, blocks: &[u64]| -> Result<Duration> {
            let start = Instant::now();
            write(file, blocks, &buffer)?;
            Ok(start.elapsed())
        };
        // Each goes first equally often.
        let (many, few) = if number.is_multiple_of(2) {
            let many = timed(&many, of_many)?;
            (many, timed(&few, &few_blocks)?)
        } else {
            let few = timed(&few, &few_blocks)?;
            (timed(&many, of_many)?, few)
        };
        ratios.push(many.as_secs_f64() / few.as_secs_f64());
    }
    check_extents(&many, u64::from(blocks))?;
    check_extents(&few, FEW)?;
    drop((many, few));
    volume.close().doing(|| "close the volume".into())?;
    Ok(ratios)
}

/// Blocks of the small file: none beside another, so that it has as many extents.
fn every_second() -> Vec<u64> {
    (0..FEW).map(|number| 2 * number).collect()
}

/// `count` of the `blocks` blocks of a file, in pseudo-random order.
fn distinct(blocks: u32, count: usize) -> Vec<u64> {
    let mut seen = BTreeSet::new();
    let all = (0u64..).map(|number| mix(number) % u64::from(blocks));
    all.filter(|&block| seen.insert(block)).take(count.min(blocks as usize)).collect()
}

fn write(file: &File, blocks: &[u64], buffer: &Buffer) -> Result<()> {
    for block in blocks {
        let written = file.write_at_with(buffer, block * BLOCK, WriteFlags::empty());
        written.doing(|| format!("write block {block} of inode {}", file.ino()))?;
    }
    Ok(())
}

fn unwritten(file: &File, blocks: &[u64]) -> Result<()> {
    for block in blocks {
        let zeroed = file.fallocate(Fallocate::Zero, block * BLOCK, BLOCK);
        zeroed.doing(|| format!("zero block {block} of inode {}", file.ino()))?;
    }
    Ok(())
}

/// Verifies the measurement: all blocks were converted, and no extents merged.
fn check_extents(file: &File, extents: u64) -> Result<()> {
    let mut found = 0;
    for piece in file.map() {
        let piece = piece.doing(|| format!("map inode {}", file.ino()))?;
        match piece.state {
            uext4::State::Written => found += 1,
            uext4::State::Hole => {}
            other => return Err(BenchError::failed(format!("inode {} has {other:?} blocks", file.ino()))),
        }
    }
    match found == extents {
        true => Ok(()),
        false => Err(BenchError::failed(format!("inode {}: {found} extents, not {extents}", file.ino()))),
    }
}

/// Cost of creating a large volume.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Making {
    /// Milliseconds; the median.
    pub(crate) millis: f64,
    /// Bytes of the image afterwards; the maximum.
    pub(crate) allocated_bytes: u64,
}

/// Creates volumes of `bytes` on sparse files with the defaults of e2fsprogs.
pub(crate) fn making(bytes: u64) -> Result<Making> {
    let scratch = Scratch::new(256 << 20)?;
    let mut all = Vec::with_capacity(MAKINGS);
    for number in 0..MAKINGS {
        let image = scratch.path().join(format!("made.{number}"));
        let file = fs::File::create_new(&image).doing(|| format!("create {}", image.display()))?;
        file.set_len(bytes).doing(|| format!("extend {}", image.display()))?;
        let start = Instant::now();
        let device = open_device(&DeviceSpec::file(&image))?;
        let made = mkfs::format(&*device, &mkfs::Options::default());
        made.map_err(|error| BenchError::failed(format!("make a volume: {error}")))?;
        drop(device);
        let millis = start.elapsed().as_secs_f64() * 1e3;
        let facts = file.metadata().doing(|| format!("look at {}", image.display()))?;
        volume::tool(Command::new("dumpe2fs").arg("-h").arg(&image))?;
        fs::remove_file(&image).doing(|| format!("remove {}", image.display()))?;
        all.push((millis, facts.blocks() * 512));
    }
    all.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let times: Vec<f64> = all.iter().map(|one| one.0).collect();
    let allocated_bytes = all.iter().map(|one| one.1).max().unwrap_or(u64::MAX);
    Ok(Making { millis: statistics::median(&times).unwrap_or(f64::NAN), allocated_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_of_a_small_file_are_measured() {
        let ratio = conversions(5000, 8).unwrap();
        assert_eq!(ratio.pairs, 8);
        assert!(ratio.median > 0.0 && ratio.median.is_finite());
    }

    #[test]
    fn blocks_come_once() {
        let blocks = distinct(5000, 3000);
        let sorted: BTreeSet<u64> = blocks.iter().copied().collect();
        assert_eq!((blocks.len(), sorted.len()), (3000, 3000));
        assert_eq!(distinct(7, 100).len(), 7);
    }

    #[test]
    fn a_volume_is_made_and_measured() {
        let made = making(1 << 30).unwrap();
        assert!(made.millis > 0.0);
        assert!((1 << 16..1 << 27).contains(&made.allocated_bytes), "{made:?}");
    }
}
