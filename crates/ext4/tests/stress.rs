//! Many threads overwrite concurrently: nothing is lost, torn or misplaced.

use crate::common;

use common::sample::{DATA_SIZE, sample};
use common::{aligned, assert_same_bytes, open_rw, patterned, read_all, read_write, within};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use uext4::{Buffer, File, FileSlot, IoQueue, QueueOptions, Switches, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::fixture::pattern;
use uext4_testkit::{Rng, Scratch};

const THREADS: u64 = 8;
const ROUNDS: u64 = 500;
/// The device's logical block: written whole or not at all.
const UNIT: u64 = 512;
const LIMIT: Duration = Duration::from_secs(60);

/// Fills a unit with a stamp of its writer and generation, which also shows whether the unit is whole.
fn stamp(writer: u64, generation: u64, unit: u64, bytes: &mut [u8]) {
    let id = writer << 32 | generation;
    pattern(id, unit * UNIT, bytes);
    bytes[..8].copy_from_slice(&id.to_le_bytes());
}

/// Writer and generation of a whole unit.
fn read_stamp(unit: u64, bytes: &[u8]) -> (u64, u64) {
    let id = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let mut whole = vec![0; bytes.len()];
    stamp(id >> 32, id & 0xffff_ffff, unit, &mut whole);
    assert_same_bytes(&whole, bytes);
    (id >> 32, id & 0xffff_ffff)
}

/// One writer: a synchronous one or one with a queue, writing runs of units.
struct Writer {
    number: u64,
    file: File,
    queue: Option<(IoQueue, FileSlot)>,
    rng: Rng,
}

impl Writer {
    fn new(volume: &Volume, name: &str, number: u64) -> Self {
        let file = volume.open_file(name, read_write()).unwrap();
        let queue = (number % 2 == 1).then(|| {
            let mut queue = volume.queue(QueueOptions::depth(8)).unwrap();
            let slot = queue.attach(&file).unwrap();
            (queue, slot)
        });
        Writer { number, file, queue, rng: Rng::new(99).fork(number) }
    }

    /// Writes generation `generation` into `units`, in runs of 1 to 16 adjacent ones, and waits for all.
    fn write(&mut self, units: &[u64], generation: u64) {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let most = 1 + self.rng.below(16);
        for &unit in units {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == unit && *count < most => *count += 1,
                _ => runs.push((unit, 1)),
            }
        }
        for (first, count) in runs {
            let mut bytes = match &self.queue {
                Some((queue, _)) => queue.buffer((count * UNIT) as usize).unwrap(),
                None => aligned((count * UNIT) as usize),
            };
            for (n, part) in bytes.chunks_mut(UNIT as usize).enumerate() {
                stamp(self.number, generation, first + n as u64, part);
            }
            self.send(bytes, first * UNIT);
        }
        if let Some((queue, _)) = &mut self.queue {
            while queue.pending() > 0 {
                queue.wait(1).unwrap().for_each(|done| assert!(done.result.unwrap() > 0));
            }
        }
    }

    fn send(&mut self, bytes: Buffer, pos: u64) {
        let flags = if self.rng.chance(10) { WriteFlags::DSYNC } else { WriteFlags::empty() };
        match &mut self.queue {
            None => {
                assert_eq!(self.file.write_at_with(&bytes, pos, flags).unwrap(), bytes.len());
            }
            Some((queue, slot)) => {
                while queue.pending() == 8 {
                    queue.wait(1).unwrap().for_each(|done| assert!(done.result.unwrap() > 0));
                }
                queue.write(*slot, pos, bytes, flags, pos).unwrap();
            }
        }
    }
}

/// Each writer owns every eighth unit, so that eight writers share each block of 4 KiB.
fn neighbours(volume: &Volume, name: &str, size: u64) {
    let last: Vec<AtomicU64> = (0..size / UNIT).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let last = &last;
            scope.spawn(move || {
                let mut writer = Writer::new(volume, name, number);
                let own: Vec<u64> = (0..size / UNIT).filter(|unit| unit % THREADS == number).collect();
                for generation in 1..=ROUNDS {
                    let from = writer.rng.below(own.len() as u64) as usize;
                    let units = &own[from..(from + 6).min(own.len())];
                    writer.write(units, generation);
                    units.iter().for_each(|&unit| last[unit as usize].store(generation, Ordering::Relaxed));
                }
            });
        }
    });
    let bytes = read_all(&volume.open_file(name, read_write()).unwrap());
    for (unit, part) in bytes[..size as usize].chunks(UNIT as usize).enumerate() {
        let generation = last[unit].load(Ordering::Relaxed);
        if generation != 0 {
            assert_eq!(read_stamp(unit as u64, part), (unit as u64 % THREADS, generation), "unit {unit}");
        }
    }
}

/// All writers write anywhere: the last generation of the last writer must remain.
fn overlapping(volume: &Volume, name: &str, size: u64) {
    let units = size / UNIT;
    let last: Vec<Vec<AtomicU64>> =
        (0..THREADS).map(|_| (0..units).map(|_| AtomicU64::new(0)).collect()).collect();
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let last = &last[number as usize];
            scope.spawn(move || {
                let mut writer = Writer::new(volume, name, number);
                for generation in 1..=ROUNDS {
                    let first = writer.rng.below(units - 24);
                    let run: Vec<u64> = (first..first + 1 + writer.rng.below(24)).collect();
                    writer.write(&run, generation);
                    run.iter().for_each(|&unit| last[unit as usize].store(generation, Ordering::Relaxed));
                }
            });
        }
    });
    let bytes = read_all(&volume.open_file(name, read_write()).unwrap());
    for (unit, part) in bytes[..size as usize].chunks(UNIT as usize).enumerate() {
        if last.iter().any(|last| last[unit].load(Ordering::Relaxed) != 0) {
            let (writer, generation) = read_stamp(unit as u64, part);
            let newest = last[writer as usize][unit].load(Ordering::Relaxed);
            assert_eq!(generation, newest, "unit {unit}: an old write of writer {writer} came back");
        }
    }
}

/// The image is sound, and debugfs reads the same contents as we do.
fn judge(path: &Path, name: &str, scratch: &Scratch) {
    let volume = Volume::open(path.to_str().unwrap(), VolumeOptions::read_only()).unwrap();
    let ours = read_all(&volume.open_file(name, common::read_only()).unwrap());
    drop(volume);
    uext4_testkit::e2fsck_clean(path);
    let out = scratch.file("out");
    uext4_testkit::debugfs(path, &format!("dump {name} {}", out.display()));
    assert_same_bytes(&std::fs::read(out).unwrap(), &ours);
}

fn on_image_file(work: impl Fn(&Volume) + Send + 'static) {
    let image = sample();
    let scratch = Scratch::new(2 * image.bytes.len() as u64);
    let path = scratch.file("volume.img");
    image.save(&path);
    let path2 = path.clone();
    within(LIMIT, move || {
        let volume = Volume::open(path2.to_str().unwrap(), VolumeOptions::read_write()).unwrap();
        work(&volume);
    });
    judge(&path, "/data", &scratch);
    judge(&path, "/frag", &scratch);
}

#[test]
fn eight_threads_share_blocks_and_lose_nothing() {
    on_image_file(|volume| neighbours(volume, "/data", DATA_SIZE / 4));
}

#[test]
fn eight_threads_write_the_same_bytes_and_none_comes_back() {
    on_image_file(|volume| overlapping(volume, "/frag", 256 << 10));
}

#[test]
fn the_plain_routes_lose_nothing_either() {
    on_image_file(|volume| {
        let path = volume.info().device.locator;
        assert!(!path.is_empty());
        neighbours(volume, "/frag", 128 << 10);
    });
    let image = sample();
    within(LIMIT, move || {
        let options = VolumeOptions::read_write().switches(Switches::OFF);
        let volume = Volume::open_device(image.device(), options).unwrap();
        neighbours(&volume, "/data", DATA_SIZE / 8);
        let stats = volume.stats();
        assert!(stats.get(uext4::Counter::ExclusiveWrites) > 0);
    });
}

/// Byte stripes of different threads share device blocks: a read-modify-write that does not exclude the others,
/// including direct writers of neighbouring units, loses their bytes.
#[test]
fn bounced_writes_lose_no_neighbour() {
    const STRIPE: usize = 100;
    let device = sample().device();
    within(LIMIT, move || {
        let volume = open_rw(device);
        std::thread::scope(|scope| {
            for number in 0..THREADS {
                let volume = &volume;
                scope.spawn(move || {
                    let file = volume.open_file("/data", read_write()).unwrap();
                    let mut rng = Rng::new(5).fork(number);
                    for round in 0..ROUNDS {
                        // Stripes fill the even units' neighbourhood of 1600 bytes, direct writes the units
                        // behind.
                        let base = rng.below(16) * 4096;
                        if number < 4 {
                            let pos = base + number * STRIPE as u64 + 37;
                            let bytes = patterned(number << 32 | round, pos, STRIPE);
                            file.write_any_at(&bytes, pos, WriteFlags::empty()).unwrap();
                            let mut back = vec![0; STRIPE];
                            file.read_any_at(&mut back, pos).unwrap();
                            assert_same_bytes(&bytes, &back);
                        } else {
                            let pos = base + number * UNIT;
                            let bytes = patterned(number << 32 | round, pos, UNIT as usize);
                            file.write_at(&bytes, pos).unwrap();
                            let mut back = aligned(UNIT as usize);
                            file.read_at(&mut back, pos).unwrap();
                            assert_same_bytes(&bytes, &back);
                        }
                    }
                });
            }
        });
        // Bytes that no thread wrote are unchanged.
        let bytes = read_all(&volume.open_file("/data", read_write()).unwrap());
        let old = common::sample::expected("/data");
        assert_same_bytes(&old[16 * 4096..], &bytes[16 * 4096..]);
        for base in (0..16 * 4096).step_by(4096) {
            assert_same_bytes(&old[base..base + 37], &bytes[base..base + 37]);
            assert_same_bytes(&old[base + 437..base + 2048], &bytes[base + 437..base + 2048]);
        }
    });
}
