//! Changes of a map, with all that the journal does for them in memory: first writes, allocations, punched holes. No
//! goals: the figures are there to be compared.

use super::{CALLS, Count, count_by, report_allocating};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use uext4::{
    Buffer, Caller, Fallocate, File, FileSlot, IoQueue, OpenOptions, QueueOptions, Volume, VolumeOptions,
    WriteFlags,
};
use uext4_testkit::needs;
use uext4_testkit::requirement::Need;

/// `rep movsb` would count as an instruction a byte.
const STRINGS: &str =
    "glibc.cpu.x86_rep_movsb_threshold=1073741824:glibc.cpu.x86_rep_stosb_threshold=1073741824";
const BLOCK: u64 = 4096;
/// Blocks of a file with holes.
const BLOCKS: u64 = 16_384;
/// Changes that are made before any is counted: then the tree has leaves.
const BEFORE: u64 = 4000;
/// Changes that are counted.
const COUNTED: u64 = 2000;
/// Allocations that are counted, and their size.
const ALLOCATED: u64 = 400;
const LENGTH: u64 = 1 << 20;
/// Changes that are made durable one by one.
const SYNCED: u64 = 1000;
/// Files beside the journal's inode: the records of others can be in fast commits.
const BESIDE: u64 = 8;
/// Writes that a queue has in flight.
const DEPTH: u64 = 32;

/// Workloads, how many calls each counts, and what they are called.
pub(super) const WORKLOADS: [(&str, u64, &str); 6] = [
    ("hole", COUNTED, "4 KiB write into a hole"),
    ("hole-queued", COUNTED, "queued 4 KiB write into a hole"),
    ("fallocate", ALLOCATED, "fallocate of 1 MiB"),
    ("punch", COUNTED, "punch of 4 KiB"),
    ("fast-append", SYNCED, "4 KiB append and fsync, by fast commits"),
    ("fast-create", SYNCED, "new file and fsync, by fast commits"),
];

#[inline(never)]
fn measured_map_write(file: &File, buf: &[u8], pos: u64) {
    black_box(file.write_at(buf, pos)).expect("write");
}

fn write_before(file: &File, buf: &[u8], pos: u64) {
    file.write_at(buf, pos).expect("write");
}

#[inline(never)]
fn measured_map_batch(queue: &mut IoQueue, slot: FileSlot, buffers: &mut Vec<Buffer>, positions: &[u64]) {
    for pos in positions {
        let buffer = buffers.pop().expect("a buffer");
        queue.write(slot, *pos, buffer, WriteFlags::empty(), *pos).expect("queued");
    }
    while (buffers.len() as u64) < DEPTH {
        let done = queue.wait(1).expect("wait");
        buffers.extend(done.filter_map(|done| {
            done.result.as_ref().expect("written");
            done.into_buffer()
        }));
    }
}

#[inline(never)]
fn measured_map_fallocate(file: &File, mode: Fallocate, pos: u64, length: u64) {
    black_box(file.fallocate(mode, pos, length)).expect("fallocate");
}

#[inline(never)]
fn measured_map_append(file: &File, buf: &[u8], pos: u64) {
    black_box(file.write_at(buf, pos)).expect("write");
    file.sync_all().expect("synced");
}

#[inline(never)]
fn measured_map_create(volume: &Volume, name: &str) {
    let options = OpenOptions::new().write(true).create_new(true);
    volume.open_file(name, options).expect("made").sync_all().expect("synced");
}

/// All blocks of the file in an arbitrary order: each step is one to one.
fn positions() -> impl Iterator<Item = u64> {
    let mixed = |at: u64| {
        let at = at * 7919 % BLOCKS;
        let at = (at ^ at >> 7) * 2477 % BLOCKS;
        at ^ at >> 5
    };
    (0..BLOCKS).map(move |at| mixed(at) * BLOCK)
}

fn image(dir: &Path, features: &str) -> PathBuf {
    let image = dir.join(format!("{features}.img"));
    let made = uext4_testkit::oracle::command("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-J", "size=64", "-O", features])
        .arg(&image)
        .arg("2G")
        .status()
        .expect("mke2fs runs");
    assert!(made.success());
    image
}

#[test]
fn changes_of_maps() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"));
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("temporary folder");
    let [plain, fast] = ["extents", "fast_commit"].map(|features| image(dir.path(), features));
    for (workload, calls, what) in WORKLOADS {
        let image = if workload.starts_with("fast") { &fast } else { &plain };
        let Count { mut functions, mut total } =
            count_by(STRINGS, workload, "measured_map", (image, dir.path()));
        let scale = CALLS as f64 / calls as f64;
        functions.values_mut().for_each(|cost| *cost *= scale);
        total *= scale;
        functions.retain(|_, cost| *cost >= 100.0);
        report_allocating(what, &Count { total, functions }, total, f64::NAN, f64::INFINITY);
    }
}

/// The second process.
pub(super) fn run(workload: &str, image: &str) {
    let volume = Volume::open(&format!("null:{image}"), VolumeOptions::read_write()).expect("open");
    let options = OpenOptions::new().read(true).write(true).create_new(true);
    (0..BESIDE)
        .for_each(|at| drop(volume.open_file(&format!("/beside-{at}"), options.clone()).expect("file")));
    let file = volume.open_file("/changed", options).expect("file");
    let buf = uext4::BufferPool::new(4096).and_then(|pool| pool.take(4096)).expect("a buffer");
    let order: Vec<u64> = positions().collect();
    let (before, counted) = order[..(BEFORE + COUNTED) as usize].split_at(BEFORE as usize);
    match workload {
        "hole" => {
            file.set_len(BLOCKS * BLOCK).expect("size");
            before.iter().for_each(|pos| write_before(&file, &buf, *pos));
            counted.iter().for_each(|pos| measured_map_write(&file, &buf, *pos));
        }
        "hole-queued" => {
            file.set_len(BLOCKS * BLOCK).expect("size");
            before.iter().for_each(|pos| write_before(&file, &buf, *pos));
            let mut queue = volume.queue(QueueOptions::depth(DEPTH as u32)).expect("queue");
            let slot = queue.attach(&file).expect("slot");
            let mut buffers = (0..DEPTH).map(|_| queue.buffer(4096).expect("buffer")).collect();
            let batches = counted.chunks(DEPTH as usize);
            batches.for_each(|batch| measured_map_batch(&mut queue, slot, &mut buffers, batch));
        }
        "fallocate" => (0..ALLOCATED).for_each(|at| {
            let pos = at * 7 % ALLOCATED * 2 * LENGTH;
            measured_map_fallocate(&file, Fallocate::Allocate, pos, LENGTH);
        }),
        "fast-append" | "fast-create" => {
            volume.create_dir("/made", 0o755, &Caller::root()).expect("a directory");
            volume.sync_all().expect("synced");
            let before = volume.commits().fast;
            for at in 0..SYNCED {
                match workload {
                    "fast-append" => measured_map_append(&file, &buf, at * BLOCK),
                    _ => measured_map_create(&volume, &format!("/made/made-{at:06}")),
                }
            }
            let made = volume.commits().fast - before;
            assert!(made * 100 >= SYNCED * 98, "{made} fast commits");
        }
        _ => {
            file.prepare(BLOCKS * BLOCK).expect("prepared");
            let punch = |pos: &u64| file.fallocate(Fallocate::Punch, *pos, BLOCK).expect("punched");
            before.iter().for_each(punch);
            let punch = |pos: &u64| measured_map_fallocate(&file, Fallocate::Punch, *pos, BLOCK);
            counted.iter().for_each(punch);
        }
    }
}
