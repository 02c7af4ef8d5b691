//! Writers of less than a block, all going through one file from its first byte to its end, so that they meet in the
//! same blocks: none destroys a neighbour's sectors. A device that reads, modifies and writes back whole blocks proves
//! that the tests would notice.

use crate::common;

use common::sample::{DATA_SIZE, sample};
use common::{Image, aligned, open_rw, patterned, read_all, read_write, within};
use std::sync::{Arc, Barrier};
use std::time::Duration;
use uext4::device::{
    Capabilities, Description, Device, Geometry, Queue, QueueOptions as DeviceQueueOptions, Result,
    WriteDurability,
};
use uext4::{Counter, QueueOptions, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::{LoopDevice, LoopOptions, Need, Scratch, e2fsck_clean, needs};

const BLOCK: u64 = 4096;
const LIMIT: Duration = Duration::from_secs(60);
const NAME: &str = "/data";

/// The writers.
#[derive(Clone, Copy)]
struct Plan {
    /// Bytes of a write. Each block has a writer for each of its parts.
    unit: u64,
    /// Bytes of the file to write, from its beginning.
    span: u64,
    /// Number of rounds.
    generations: u64,
    /// Requests in flight; `None`: blocking calls.
    depth: Option<u32>,
}

impl Plan {
    fn writers(&self) -> u64 {
        BLOCK / self.unit
    }

    /// The pattern that writer `number` writes at `pos` in a generation.
    fn id(&self, number: u64, generation: u64) -> u64 {
        number << 32 | generation
    }

    /// All writers at once; all wait for each other before the next round.
    fn run(self, volume: &Volume) {
        let together = Barrier::new(self.writers() as usize);
        std::thread::scope(|scope| {
            for number in 0..self.writers() {
                let together = &together;
                scope.spawn(move || match self.depth {
                    None => self.write_blocking(volume, number, together),
                    Some(depth) => self.write_queued(volume, number, depth, together),
                });
            }
        });
    }

    fn places(&self, number: u64) -> impl Iterator<Item = u64> {
        (number * self.unit..self.span).step_by(BLOCK as usize)
    }

    fn write_blocking(&self, volume: &Volume, number: u64, together: &Barrier) {
        let file = volume.open_file(NAME, read_write()).unwrap();
        for generation in 1..=self.generations {
            together.wait();
            for pos in self.places(number) {
                let bytes = patterned(self.id(number, generation), pos, self.unit as usize);
                assert_eq!(file.write_at(&bytes, pos).unwrap(), bytes.len());
            }
        }
    }

    fn write_queued(&self, volume: &Volume, number: u64, depth: u32, together: &Barrier) {
        let file = volume.open_file(NAME, read_write()).unwrap();
        let mut queue = volume.queue(QueueOptions::depth(depth)).unwrap();
        let slot = queue.attach(&file).unwrap();
        for generation in 1..=self.generations {
            together.wait();
            for pos in self.places(number) {
                while queue.pending() == depth as usize {
                    queue
                        .wait(1)
                        .unwrap()
                        .for_each(|done| assert_eq!(done.result.unwrap() as u64, self.unit));
                }
                let mut buffer = queue.buffer(self.unit as usize).unwrap();
                uext4_testkit::fixture::pattern(self.id(number, generation), pos, &mut buffer);
                queue.write(slot, pos, buffer, WriteFlags::empty(), pos).unwrap();
            }
            while queue.pending() > 0 {
                queue.wait(1).unwrap().for_each(|done| assert_eq!(done.result.unwrap() as u64, self.unit));
            }
        }
    }

    /// Units that do not hold their writer's last data.
    fn lost(&self, volume: &Volume) -> u64 {
        let bytes = read_all(&volume.open_file(NAME, read_write()).unwrap());
        let mut expected = vec![0; self.unit as usize];
        let wrong = |&number: &u64| {
            let pos = number * self.unit;
            let id = self.id(number % self.writers(), self.generations);
            uext4_testkit::fixture::pattern(id, pos, &mut expected);
            bytes[pos as usize..(pos + self.unit) as usize] != expected[..]
        };
        (0..self.span / self.unit).filter(wrong).count() as u64
    }
}

/// Sectors of eight writers in each block, halves of two; blocking and queued, shallow and deep.
fn plans(span: u64) -> Vec<Plan> {
    let plan = |unit, depth| Plan { unit, span, generations: 12, depth };
    [None, Some(4), Some(256)].into_iter().flat_map(|depth| [plan(512, depth), plan(2048, depth)]).collect()
}

fn nothing_is_lost(volume: &Volume, span: u64) {
    for plan in plans(span) {
        let before = volume.stats();
        plan.run(volume);
        let counted = volume.stats().since(&before);
        assert_eq!(plan.lost(volume), 0, "units of {} at depth {:?}", plan.unit, plan.depth);
        let writes = plan.generations * plan.span / plan.unit;
        assert_eq!(counted.get(Counter::SharedSubblockWrites), writes, "they ran at the same time");
        assert_eq!(counted.get(Counter::ExclusiveWrites), 0);
    }
}

#[test]
fn writers_that_meet_in_blocks_leave_their_neighbours_alone() {
    let device = sample().device();
    let image = within(LIMIT, move || {
        let device: Arc<dyn Device> = device;
        nothing_is_lost(&open_rw(Arc::clone(&device)), DATA_SIZE / 4);
        Image::of(&*device)
    });
    let scratch = Scratch::new(2 * image.bytes.len() as u64);
    let path = scratch.file("after.img");
    image.save(&path);
    e2fsck_clean(&path);
}

#[test]
fn root_writers_that_meet_in_blocks_of_a_loop_device_leave_their_neighbours_alone() {
    needs!(Need::Loop);
    let image = sample();
    let scratch = Scratch::new(2 * image.bytes.len() as u64);
    let path = scratch.file("volume.img");
    image.save(&path);
    let device = LoopDevice::attach(&path, LoopOptions { direct_io: true, ..LoopOptions::default() });
    let name = device.path().to_str().unwrap().to_owned();
    within(LIMIT, move || {
        let volume = Volume::open(&name, VolumeOptions::read_write()).unwrap();
        assert_eq!(volume.device().geometry().logical_block, 512);
        nothing_is_lost(&volume, DATA_SIZE / 4);
    });
    e2fsck_clean(device.path());
}

/// Writes whole blocks: smaller writes are done by read-modify-write without a lock.
#[derive(Debug)]
struct WholeBlocks(Arc<dyn Device>);

impl Device for WholeBlocks {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn describe(&self) -> Description {
        self.0.describe()
    }

    fn read_at(&self, buf: &mut [u8], pos: u64) -> Result<()> {
        self.0.read_at(buf, pos)
    }

    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> Result<()> {
        let start = pos / BLOCK * BLOCK;
        if pos + buf.len() as u64 > start + BLOCK {
            return self.0.write_at(buf, pos, durability);
        }
        let mut block = aligned(BLOCK as usize);
        self.0.read_at(&mut block, start)?;
        let at = (pos - start) as usize;
        block[at..at + buf.len()].copy_from_slice(buf);
        // A concurrent write in between is lost.
        std::thread::yield_now();
        self.0.write_at(&block, start, durability)
    }

    fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    fn discard(&self, pos: u64, length: u64) -> Result<()> {
        self.0.discard(pos, length)
    }

    fn queue(&self, options: &DeviceQueueOptions) -> Result<Queue> {
        self.0.queue(options)
    }
}

#[test]
fn a_read_modify_write_of_blocks_would_be_seen() {
    let device = Arc::new(WholeBlocks(sample().device()));
    let lost = within(LIMIT, move || {
        let volume = open_rw(device);
        let plan = Plan { unit: 512, span: DATA_SIZE / 4, generations: 200, depth: None };
        plan.run(&volume);
        plan.lost(&volume)
    });
    assert!(lost > 0, "the device destroyed neighbours and nobody noticed");
}
