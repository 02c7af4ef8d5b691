//! Measurements in a separate process: peak memory is meaningful only if the process did nothing else.

use crate::error::{BenchError, Doing, Result};
use crate::metadata;
use crate::ops::mix;
use crate::volume::{self, Zram};
use crate::work::fill;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use uext4::{
    Buffer, DeviceSpec, Fallocate, File, FileSlot, IoQueue, OpenOptions, QueueOptions, Volume, VolumeOptions,
    WriteFlags,
};

/// The task of such a process, which prints the result of [`Probe::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// A volume is opened.
    Open,
    /// Files without contents are written for the first time.
    FirstWrites,
    /// A million files are made.
    MakeFiles,
}

/// Its result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Of the opening, or of the writes.
    pub(crate) ns: u64,
    /// Peak since the process started.
    pub(crate) resident_bytes: u64,
}

impl Probe {
    /// Runs it on the volume of an image or a device, and returns as JSON the time and the peak memory since this
    /// process started.
    pub fn run(self, device: &Path) -> Result<String> {
        let ns = match self {
            Probe::Open => open(device),
            Probe::FirstWrites => first_writes(device, FIRST_WRITES),
            Probe::MakeFiles => {
                let start = Instant::now();
                metadata::make_files(device).map(|()| since(start))
            }
        }?;
        let found = Found { ns, resident_bytes: resident_at_most()? };
        serde_json::to_string(&found).map_err(|error| BenchError::failed(error.to_string()))
    }
}

/// Runs it in a separate process.
pub(crate) fn ask(mut process: Command) -> Result<Found> {
    let text = volume::tool(&mut process)?;
    serde_json::from_str(&text).map_err(|error| BenchError::failed(format!("{text}: {error}")))
}

fn resident_at_most() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").doing(|| "read /proc/self/status".into())?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let kib: Option<u64> = peak.and_then(|peak| peak.trim().parse().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| BenchError::failed("/proc/self/status has no VmHWM"))
}

fn since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn opened(device: &Path) -> Result<Volume> {
    let volume = Volume::open_spec(&DeviceSpec::file(device), VolumeOptions::read_write());
    volume.doing(|| format!("open {}", device.display()))
}

fn open(image: &Path) -> Result<u64> {
    let start = Instant::now();
    let volume = opened(image)?;
    let ns = since(start);
    drop(volume);
    Ok(ns)
}

/// Amount to write.
#[derive(Debug, Clone, Copy)]
struct Size {
    files: u64,
    /// 4 KiB each, a power of four in all files together at most.
    blocks_of_file: u64,
    /// Writes between two commits.
    between_commits: u64,
}

const BLOCK: u64 = 4096;
const DEPTH: u32 = 32;
/// 10 GiB.
const FIRST_WRITES: Size = Size { files: 4, blocks_of_file: 640 << 10, between_commits: 64 << 10 };

/// The device for [`Probe::FirstWrites`], with an empty volume: zram, whose pages of one repeated word take no memory.
pub(crate) fn first_writes_device() -> Result<Option<Zram>> {
    if !Zram::available() {
        return Ok(None);
    }
    let bytes = FIRST_WRITES.files * FIRST_WRITES.blocks_of_file * BLOCK;
    let zram = Zram::new(bytes + bytes / 8)?;
    volume::tool(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-b", "4096"]).arg(zram.path()))?;
    Ok(Some(zram))
}

/// Writes every block of files that have only unwritten ones, once, in random order over all of them.
fn first_writes(device: &Path, size: Size) -> Result<u64> {
    let volume = opened(device)?;
    let options = OpenOptions::new().read(true).write(true).direct(true).create_new(true);
    let make = |number| -> uext4::Result<File> {
        let file = volume.open_file(format!("/first-writes.{number}"), options.clone())?;
        file.fallocate(Fallocate::Allocate, 0, size.blocks_of_file * BLOCK)?;
        Ok(file)
    };
    let files = (0..size.files).map(make).collect::<uext4::Result<Vec<File>>>();
    let files = files.doing(|| "make the files".into())?;
    let mut queue = volume.queue(QueueOptions::depth(DEPTH)).doing(|| "make a queue".into())?;
    let slots = files.iter().map(|file| queue.attach(file)).collect::<uext4::Result<Vec<FileSlot>>>();
    let slots = slots.doing(|| "attach the files".into())?;
    let buffers = (0..DEPTH).map(|number| {
        let mut buffer = queue.buffer(BLOCK as usize)?;
        fill(&mut buffer, u64::from(number));
        Ok(buffer)
    });
    let mut idle = buffers.collect::<uext4::Result<Vec<Buffer>>>().doing(|| "reserve memory".into())?;
    let start = Instant::now();
    for (number, block) in shuffled(size.files * size.blocks_of_file).enumerate() {
        if idle.is_empty() {
            reap(&mut queue, DEPTH as usize / 2, &mut idle)?;
        }
        let Some(buffer) = idle.pop() else { return Err(BenchError::failed("no write came back")) };
        let (file, pos) = ((block % size.files) as usize, block / size.files * BLOCK);
        let queued = queue.write(slots[file], pos, buffer, WriteFlags::empty(), 0);
        queued.doing(|| format!("write at {pos}"))?;
        if (number as u64 + 1).is_multiple_of(size.between_commits) {
            let missing = DEPTH as usize - idle.len();
            reap(&mut queue, missing, &mut idle)?;
            volume.sync_files(&files.iter().collect::<Vec<_>>()).doing(|| "commit".into())?;
        }
    }
    let missing = DEPTH as usize - idle.len();
    reap(&mut queue, missing, &mut idle)?;
    drop(queue);
    drop(files);
    volume.close().doing(|| "close the volume".into())?;
    Ok(since(start))
}

/// Waits for `count` writes at least.
fn reap(queue: &mut IoQueue, count: usize, idle: &mut Vec<Buffer>) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    for done in queue.wait(count).doing(|| "wait for writes".into())? {
        match (done.result, done.payload.into_buffer()) {
            (Ok(_), Some(buffer)) => idle.push(buffer),
            (Err(error), _) => return Err(*error).doing(|| "a queued write".into()),
            (Ok(_), None) => return Err(BenchError::failed("a write came back without its buffer")),
        }
    }
    Ok(())
}

/// The numbers below `count` in an order that looks random, each once: a Feistel network over twice `half` bits, of
/// which too large numbers are left out.
fn shuffled(count: u64) -> impl Iterator<Item = u64> {
    let half = (64 - count.saturating_sub(1).leading_zeros()).div_ceil(2);
    let mask = (1 << half) - 1;
    let place = move |number: u64| {
        let round = |(left, right), round: u64| (right, left ^ (mix(right | round << 32) & mask));
        let (left, right) = (0..4).fold((number >> half, number & mask), round);
        left << half | right
    };
    (0..1 << (2 * half)).map(place).filter(move |&place| place < count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::Scratch;

    #[test]
    fn every_number_comes_once_and_neighbours_are_apart() {
        for count in [1, 2, 3, 100, 4096, 5000] {
            let order: Vec<u64> = shuffled(count).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..count), "{count}");
            if count > 1000 {
                let near = order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < count / 50).count();
                assert!((near as u64) < count / 10, "{near} of {count} are near the one before");
            }
        }
    }

    #[test]
    fn every_block_is_written_and_the_volume_is_in_order() {
        let scratch = Scratch::new(64 << 20).unwrap();
        let image = scratch.path().join("image");
        std::fs::File::create_new(&image).unwrap().set_len(64 << 20).unwrap();
        volume::tool(Command::new("mke2fs").args(["-q", "-t", "ext4", "-b", "4096"]).arg(&image)).unwrap();
        let size = Size { files: 3, blocks_of_file: 500, between_commits: 400 };
        assert!(first_writes(&image, size).unwrap() > 0);
        assert!(resident_at_most().unwrap() > 1 << 20);
        volume::tool(Command::new("e2fsck").arg("-fn").arg(&image)).unwrap();
        let volume = Volume::open_spec(&DeviceSpec::file(&image), VolumeOptions::read_only()).unwrap();
        for number in 0..3 {
            let file = volume.open_file(format!("/first-writes.{number}"), OpenOptions::new().read(true));
            let mut pieces = file.as_ref().unwrap().map().map(|piece| piece.unwrap());
            assert!(pieces.all(|piece| piece.state == uext4::State::Written), "file {number}");
            assert_eq!(file.unwrap().size(), 500 * BLOCK);
        }
    }
}
