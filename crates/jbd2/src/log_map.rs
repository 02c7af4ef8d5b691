//! Where the blocks of the log are.

use crate::{Error, Result};
use std::fmt;
use std::sync::Arc;
use uext4_blockdev::Device;
use uext4_buffer::BufferCache;

/// Maps log blocks to blocks of the volume, or of a device of the log's own. The file system builds one from the
/// journal inode; the journal itself knows no inode format. The answers must not change while the journal is open.
pub trait LogMap: Send + Sync + fmt::Debug {
    /// Log blocks that exist: 0 .. `blocks()`.
    fn blocks(&self) -> u32;
    /// Block that holds `log_block`, `None` if there is none.
    fn physical(&self, log_block: u32) -> Option<u64>;
    /// Whether `block` of the volume is part of the log.
    fn holds(&self, block: u64) -> bool;
    /// The device that holds the log, if it is not the volume's. The answers of [`LogMap::physical`] are then blocks of
    /// it, and none of the volume is [held](LogMap::holds).
    fn device(&self) -> Option<&Arc<dyn Device>> {
        None
    }
    /// Block that holds the log's superblock.
    fn superblock(&self) -> Option<u64> {
        self.physical(0)
    }
}

/// The device of a log: its own one, or that of the volume.
pub(crate) fn device_of<'a>(log: &'a dyn LogMap, cache: &'a BufferCache) -> &'a Arc<dyn Device> {
    log.device().unwrap_or(cache.device())
}

/// A log on a device of its own. Its blocks have the same numbers in the log and on the device; the log's superblock
/// comes after the boot block and the superblock that says what the device is.
#[derive(Debug, Clone)]
pub struct DeviceMap {
    device: Arc<dyn Device>,
    superblock: u64,
    blocks: u32,
}

impl DeviceMap {
    /// The log whose superblock is in block `superblock` of `device`, which has `blocks` blocks.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, superblock: u64, blocks: u32) -> DeviceMap {
        DeviceMap { device, superblock, blocks }
    }

    /// The same place on another device, such as a layer over this one.
    #[must_use]
    pub fn on(&self, device: Arc<dyn Device>) -> DeviceMap {
        DeviceMap { device, ..*self }
    }

    /// The device.
    #[must_use]
    pub fn own_device(&self) -> &Arc<dyn Device> {
        &self.device
    }
}

impl LogMap for DeviceMap {
    fn blocks(&self) -> u32 {
        self.blocks
    }

    fn physical(&self, log_block: u32) -> Option<u64> {
        (log_block < self.blocks).then_some(u64::from(log_block))
    }

    fn holds(&self, _: u64) -> bool {
        false
    }

    fn device(&self) -> Option<&Arc<dyn Device>> {
        Some(&self.device)
    }

    fn superblock(&self) -> Option<u64> {
        Some(self.superblock)
    }
}

/// Adjacent log blocks in adjacent blocks of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRun {
    /// First log block.
    pub log_block: u32,
    /// Where it is on the volume.
    pub physical: u64,
    /// Blocks in the run.
    pub length: u32,
}

/// A [`LogMap`] made of runs, e.g. the extents of the journal inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunMap {
    runs: Vec<LogRun>,
    /// First and last block of each run on the volume, in order.
    places: Vec<(u64, u64)>,
    blocks: u32,
}

impl RunMap {
    /// A map of `runs`, in any order, which must cover the log blocks from 0 on exactly once.
    ///
    /// # Errors
    /// [`Error::BadLogMap`] if they overlap in the log or on the volume, leave a hole, are empty, or exceed the number
    /// space.
    pub fn new(mut runs: Vec<LogRun>) -> Result<RunMap> {
        runs.sort_unstable_by_key(|run| run.log_block);
        let mut blocks = 0u32;
        for run in &runs {
            let bad = |reason| Err(Error::BadLogMap { log_block: run.log_block.min(blocks), reason });
            if run.length == 0 {
                return bad("an empty run");
            }
            if run.log_block != blocks {
                return bad(if run.log_block > blocks { "a hole" } else { "two runs overlap" });
            }
            if run.physical.checked_add(u64::from(run.length)).is_none() {
                return bad("a run beyond the last block number");
            }
            let Some(end) = blocks.checked_add(run.length) else { return bad("more than 2^32 log blocks") };
            blocks = end;
        }
        let mut places: Vec<_> =
            runs.iter().map(|run| (run.physical, run.physical + u64::from(run.length) - 1)).collect();
        places.sort_unstable();
        // A volume block used for two log blocks would be written while it is read, and a few blocks could form a log
        // of any length.
        if let Some(pair) = places.windows(2).find(|pair| pair[0].1 >= pair[1].0) {
            let twice = runs.iter().filter(|run| run.physical == pair[1].0).map(|run| run.log_block).max();
            return Err(Error::BadLogMap { log_block: twice.unwrap_or(0), reason: "two runs in one place" });
        }
        Ok(RunMap { runs, places, blocks })
    }

    /// The runs, in the order of the log.
    #[must_use]
    pub fn runs(&self) -> &[LogRun] {
        &self.runs
    }
}

impl LogMap for RunMap {
    fn blocks(&self) -> u32 {
        self.blocks
    }

    fn physical(&self, log_block: u32) -> Option<u64> {
        let after = self.runs.partition_point(|run| run.log_block <= log_block);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let inside = log_block - run.log_block;
        (inside < run.length).then(|| run.physical + u64::from(inside))
    }

    fn holds(&self, block: u64) -> bool {
        let after = self.places.partition_point(|(first, _)| *first <= block);
        after.checked_sub(1).is_some_and(|before| block <= self.places[before].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(log_block: u32, physical: u64, length: u32) -> LogRun {
        LogRun { log_block, physical, length }
    }

    #[test]
    fn one_place_is_one_log_block() {
        for second in [run(10, 100, 1), run(10, 105, 20), run(10, 91, 10), run(10, 90, 30)] {
            let error = RunMap::new(vec![run(0, 100, 10), second]).unwrap_err();
            assert!(error.to_string().contains("two runs in one place"), "{error}");
        }
        RunMap::new(vec![run(0, 100, 10), run(10, 110, 5), run(15, 90, 10)]).unwrap();
    }

    #[test]
    fn maps_every_block_of_every_run() {
        let map = RunMap::new(vec![run(10, 500, 5), run(0, 100, 10)]).unwrap();
        assert_eq!(map.blocks(), 15);
        assert_eq!(map.physical(0), Some(100));
        assert_eq!(map.physical(9), Some(109));
        assert_eq!(map.physical(10), Some(500));
        assert_eq!(map.physical(14), Some(504));
        assert_eq!(map.physical(15), None);
        for (block, held) in
            [(99, false), (100, true), (109, true), (110, false), (499, false), (504, true), (505, false)]
        {
            assert_eq!(map.holds(block), held, "{block}");
        }
        assert_eq!(RunMap::new(Vec::new()).unwrap().physical(0), None);
    }

    #[test]
    fn refuses_runs_that_are_not_a_log() {
        let reason = |runs| match RunMap::new(runs) {
            Err(Error::BadLogMap { log_block, reason }) => (log_block, reason),
            other => panic!("accepted: {other:?}"),
        };
        assert_eq!(reason(vec![run(1, 0, 1)]), (0, "a hole"));
        assert_eq!(reason(vec![run(0, 0, 4), run(5, 9, 1)]), (4, "a hole"));
        assert_eq!(reason(vec![run(0, 0, 4), run(3, 9, 1)]), (3, "two runs overlap"));
        assert_eq!(reason(vec![run(0, 0, 0)]), (0, "an empty run"));
        assert_eq!(reason(vec![run(0, u64::MAX, 1)]), (0, "a run beyond the last block number"));
        let end = u32::MAX;
        assert_eq!(reason(vec![run(0, 0, end), run(end, 0, 1)]), (end, "more than 2^32 log blocks"));
    }
}
