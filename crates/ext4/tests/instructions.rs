//! Instructions of the hot path, counted by callgrind: release build, warm caches, mean of many calls.
//!
//! Each test runs this binary again under valgrind, with collection toggled by one measured function, on the
//! `null:` engine (requests move nothing) or on `dax:` (the copy itself is subtracted). Counts, not times: CI
//! can assert them.
#![cfg(not(debug_assertions))]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use uext4::{
    Buffer, FileSlot, IoQueue, OpenOptions, QueueOptions, State, Switches, Volume, VolumeOptions, WriteFlags,
};
use uext4_testkit::needs;
use uext4_testkit::requirement::Need;

const CALLS: u64 = 100_000;
const DEPTH: u32 = 64;
/// Floors of the project: more instructions than these fail.
const FLOOR_QUEUED: f64 = 250.0;
const FLOOR_DAX: f64 = 200.0;
const FLOOR_EXTENTS: f64 = 200.0;

/// The variable that tells the second process what to do: `WORKLOAD IMAGE`.
const CHILD: &str = "UEXT4_COUNT_INSTRUCTIONS";

#[inline(never)]
fn measured_read(queue: &mut IoQueue, slot: FileSlot, pos: u64, buffer: Buffer, tag: u64) {
    black_box(queue.read(slot, pos, buffer, tag)).expect("read");
}

#[inline(never)]
fn measured_write(queue: &mut IoQueue, slot: FileSlot, pos: u64, buffer: Buffer, flags: WriteFlags) {
    black_box(queue.write(slot, pos, buffer, flags, 7)).expect("write");
}

#[inline(never)]
fn measured_dax_read(file: &uext4::File, buf: &mut [u8], pos: u64) {
    black_box(file.read_at(buf, pos)).expect("read");
}

#[inline(never)]
fn measured_dax_write(file: &uext4::File, buf: &[u8], pos: u64) {
    black_box(file.write_at(buf, pos)).expect("write");
}

#[inline(never)]
fn measured_raw_read(device: &dyn uext4::blockdev::Device, buf: &mut [u8], pos: u64) {
    black_box(device.read_at(buf, pos)).expect("read");
}

#[inline(never)]
fn measured_raw_write(device: &dyn uext4::blockdev::Device, buf: &[u8], pos: u64) {
    black_box(device.write_at(buf, pos, uext4::blockdev::WriteDurability::Cached)).expect("write");
}

/// A volume with one 16 MiB file of non-zero bytes.
fn image(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("temporary folder");
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).expect("folder");
    std::fs::write(tree.join("data"), vec![0xA5u8; 16 << 20]).expect("file");
    let image = dir.path().join(name);
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"])
        .arg(&tree)
        .arg(&image)
        .arg("64M")
        .status()
        .expect("mke2fs runs");
    assert!(made.success());
    std::fs::remove_dir_all(&tree).expect("folder is removed");
    if name.starts_with("dax") {
        // A mapped image must be fully allocated.
        let bytes = std::fs::read(&image).expect("image");
        std::fs::write(&image, bytes).expect("image");
    }
    (dir, image)
}

/// What callgrind counted: all instructions inside `function`, and those of single functions by name.
struct Count {
    total: f64,
    functions: BTreeMap<String, f64>,
}

fn count(workload: &str, function: &str, image: &Path, dir: &Path) -> Count {
    let out = dir.join("callgrind.out");
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--toggle-collect=*{function}*"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().expect("own path"))
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{workload} {}", image.display()))
        .output()
        .expect("valgrind runs");
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{workload}: {text}{}", String::from_utf8_lossy(&run.stdout));
    parse(&std::fs::read_to_string(&out).expect("callgrind's file"))
}

/// Sums the self cost of each function; lines after `calls=` are inclusive cost of a call and are skipped.
fn parse(text: &str) -> Count {
    let mut functions = BTreeMap::new();
    let mut current = String::new();
    let mut skip = false;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("fn=") {
            current = name.to_owned();
        } else if line.starts_with("calls=") {
            skip = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let cost =
                line.split_whitespace().nth(1).and_then(|cost| cost.parse::<f64>().ok()).unwrap_or(0.0);
            if !std::mem::take(&mut skip) {
                *functions.entry(current.clone()).or_insert(0.0) += cost / CALLS as f64;
            }
        }
    }
    Count { total: functions.values().sum(), functions }
}

impl Count {
    /// Instructions in functions with `part` in their names.
    fn of(&self, part: &str) -> f64 {
        self.functions.iter().filter(|(name, _)| name.contains(part)).map(|(_, cost)| cost).sum()
    }

    fn allocations(&self) -> Vec<&String> {
        let allocates = |name: &str| {
            ["malloc", "calloc", "realloc", "free", "mmap"].iter().any(|word| name.contains(word))
        };
        self.functions.keys().filter(|name| allocates(name)).collect()
    }
}

fn report(what: &str, count: &Count, counted: f64, goal: f64, floor: f64) {
    println!("{what}: {counted:.1} instructions (goal {goal}, floor {floor})");
    for (name, cost) in &count.functions {
        println!("    {cost:8.1}  {name}");
    }
    assert!(counted > 10.0, "{what}: nothing was counted");
    assert!(counted <= floor, "{what}: {counted:.1} instructions are above the floor of {floor}");
    assert!(count.allocations().is_empty(), "{what} allocates: {:?}", count.allocations());
}

#[test]
fn queued_requests() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"));
    let (dir, image) = image("null.img");
    for (workload, function) in
        [("read", "measured_read"), ("write", "measured_write"), ("dsync", "measured_write")]
    {
        let count = count(workload, function, &image, dir.path());
        // The engine's stand-in for encoding a ring entry is counted apart.
        let encoding = count.of("NullQueue");
        println!("encoding the ring entry: {encoding:.1} instructions");
        assert!(encoding > 0.0, "the engine was not reached");
        let own = count.total - encoding;
        report(&format!("cached 4 KiB queued {workload}"), &count, own, 150.0, FLOOR_QUEUED);
    }
}

#[test]
fn mapped_copies_beside_the_copy() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"));
    let (dir, image) = image("dax.img");
    for direction in ["read", "write"] {
        let whole =
            count(&format!("dax-{direction}"), &format!("measured_dax_{direction}"), &image, dir.path());
        let raw =
            count(&format!("dax-raw-{direction}"), &format!("measured_raw_{direction}"), &image, dir.path());
        println!("raw copy of 4 KiB: {:.1} instructions as callgrind counts it", raw.total);
        let beside = whole.total - raw.total;
        report(&format!("mapped 4 KiB {direction} beside the copy"), &whole, beside, 120.0, FLOOR_DAX);
    }
}

#[test]
fn a_snapshot_of_a_million_extents() {
    // The snapshot alone: what a whole read takes more is not counted here (docs/performance.md).
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"));
    let (dir, image) = image("unused.img");
    let one = count("extents-1", "measured_find", &image, dir.path());
    let many = count("extents-1000000", "measured_find", &image, dir.path());
    let more = many.total - one.total;
    report(
        "look-up in the snapshot of 10^6 extents instead of 1, more by",
        &many,
        more,
        120.0,
        FLOOR_EXTENTS,
    );
}

/// The second process. Without the variable there is nothing to do.
#[test]
fn child() {
    let Ok(order) = std::env::var(CHILD) else { return };
    let (workload, image) = order.split_once(' ').expect("WORKLOAD IMAGE");
    match workload {
        "read" | "write" | "dsync" => queued(workload, image),
        "extents-1" => look_up(1),
        "extents-1000000" => look_up(1_000_000),
        _ => mapped(workload, image),
    }
}

fn queued(workload: &str, image: &str) {
    let volume = Volume::open(&format!("null:{image}"), VolumeOptions::read_write()).expect("open");
    let file = volume.open_file("/data", OpenOptions::new().read(true).write(true)).expect("file");
    let mut queue = volume.queue(QueueOptions::depth(DEPTH)).expect("queue");
    let slot = queue.attach(&file).expect("slot");
    let mut buffers: Vec<Buffer> = (0..DEPTH).map(|_| queue.buffer(4096).expect("buffer")).collect();
    let flags = if workload == "dsync" { WriteFlags::DSYNC } else { WriteFlags::empty() };
    // One call outside the count loads the mapping.
    let first = buffers.pop().expect("a buffer");
    queue.read(slot, 0, first, 0).expect("read");
    buffers.extend(queue.wait(1).expect("wait").filter_map(|done| done.into_buffer()));
    let mut pos = 0;
    for tag in 0..CALLS {
        let buffer = buffers.pop().expect("a buffer");
        match workload {
            "read" => measured_read(&mut queue, slot, pos, buffer, tag),
            _ => measured_write(&mut queue, slot, pos, buffer, flags),
        }
        pos = (pos + 4096 * 17) % (16 << 20);
        if buffers.is_empty() {
            buffers.extend(queue.wait(DEPTH as usize).expect("wait").filter_map(|done| done.into_buffer()));
        }
    }
    let stats = volume.stats();
    let route = match workload {
        "read" => uext4::Counter::SimpleReads,
        "write" => uext4::Counter::OverwritesWithoutHandle,
        _ => uext4::Counter::FuaWrites,
    };
    assert!(stats.get(route) >= CALLS, "the wrong route was counted");
}

fn mapped(workload: &str, image: &str) {
    let volume = Volume::open(&format!("dax:{image}"), VolumeOptions::read_write()).expect("open");
    let options = OpenOptions::new().read(true).write(true).switches(Switches::ON);
    let file = volume.open_file("/data", options).expect("file");
    let device = volume.device().clone();
    let place = file.map().next().expect("an extent").expect("an extent");
    assert!(place.state == State::Written && place.length == 16 << 20, "one extent");
    let mut buf = vec![0u8; 4096];
    file.read_at(&mut buf, 0).expect("read");
    let mut pos = 0;
    for _ in 0..CALLS {
        match workload {
            "dax-read" => measured_dax_read(&file, &mut buf, pos),
            "dax-write" => measured_dax_write(&file, &buf, pos),
            "dax-raw-read" => measured_raw_read(&*device, &mut buf, place.physical + pos),
            "dax-raw-write" => measured_raw_write(&*device, &buf, place.physical + pos),
            other => panic!("unknown workload {other}"),
        }
        pos = (pos + 4096 * 17) % (16 << 20);
    }
}

#[inline(never)]
fn measured_find(map: &uext4_iomap::MapSnapshot, pos: u64) -> u64 {
    black_box(map.find_written(uext4_iomap::Range { pos, length: 4096 }, 12)).unwrap_or(0)
}

/// Random look-ups in a snapshot of that many extents, as a file's reads do them.
fn look_up(extents: u64) {
    use uext4_iomap::{MapSnapshot, Run, State as RunState};
    const BLOCKS: u64 = 1_000_000;
    let length = BLOCKS / extents;
    let runs: Vec<Run> = (0..extents)
        .map(|extent| Run {
            first: (extent * length) as u32,
            length,
            state: RunState::Written,
            physical: 10 + (extents - extent) * length,
        })
        .collect();
    let map = MapSnapshot::unknown().replaced(0, BLOCKS, Some(&runs));
    let mut random = 1u64;
    for _ in 0..CALLS {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        assert!(measured_find(&map, ((random >> 33) % BLOCKS) * 4096) > 0);
    }
}
