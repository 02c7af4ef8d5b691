//! Instructions of the hot path, counted by callgrind: release build, warm caches, mean of many calls.
//!
//! Each test runs this binary again under valgrind, with collection toggled by one measured function, on the
//! `null:` engine (requests move nothing) or on `dax:` (the copy itself is subtracted). Counts, not times: CI
//! can assert them.
#![cfg(not(debug_assertions))]

#[path = "instructions/growth.rs"]
mod growth;
#[path = "instructions/maps.rs"]
mod maps;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uext4::{
    Buffer, FileSlot, IoQueue, OpenOptions, QueueOptions, State, Switches, Volume, VolumeOptions, WriteFlags,
};
use uext4_testkit::needs;
use uext4_testkit::requirement::Need;

const CALLS: u64 = 100_000;
/// Appends cost so much that fewer are as good.
const APPENDS: u64 = 2000;
const DEPTH: u32 = 64;
/// Floors of the project: more instructions than these fail.
const FLOOR_QUEUED: f64 = 250.0;
const FLOOR_DAX: f64 = 200.0;
const FLOOR_EXTENTS: f64 = 200.0;

/// The last recorded count of each measurement. More than a twentieth above it fails, because a distant floor hides the
/// cost of a change. Whoever improves one of them, or worsens it on purpose, records the new figure here.
const RECORDED: [(&str, f64); 18] = [
    ("cached 4 KiB queued read", 179.0),
    ("cached 4 KiB queued write", 164.0),
    ("cached 4 KiB queued dsync", 164.0),
    ("mapped 4 KiB read beside the copy", 122.0),
    ("mapped 4 KiB write beside the copy", 188.0),
    ("sync 4 KiB read among 10^6 extents instead of in 1, more by", 188.0),
    ("queued 4 KiB read among 10^6 extents instead of in 1, more by", 193.0),
    ("queued 4 KiB write among 10^6 extents", 524.0),
    ("4 KiB append", 21_600.0),
    ("4 KiB write into a hole", 24_900.0),
    ("queued 4 KiB write into a hole", 20_300.0),
    ("fallocate of 1 MiB", 17_800.0),
    ("punch of 4 KiB", 16_900.0),
    ("4 KiB append and fsync, by fast commits", 31_400.0),
    ("new file and fsync, by fast commits", 73_000.0),
    ("attributes by a path of 2 names", 1299.0),
    ("an absent name", 1006.0),
    ("open and close by a path of 2 names", 1549.0),
];

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
fn measured_append(file: &uext4::File, buf: &[u8], pos: u64) {
    black_box(file.write_at(buf, pos)).expect("write");
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
fn measured_raw_read(device: &dyn uext4::device::Device, buf: &mut [u8], pos: u64) {
    black_box(device.read_at(buf, pos)).expect("read");
}

#[inline(never)]
fn measured_raw_write(device: &dyn uext4::device::Device, buf: &[u8], pos: u64) {
    black_box(device.write_at(buf, pos, uext4::device::WriteDurability::Cached)).expect("write");
}

/// A volume with one 16 MiB file of non-zero bytes.
fn image(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("temporary folder");
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).expect("folder");
    std::fs::write(tree.join("data"), vec![0xA5u8; 16 << 20]).expect("file");
    let image = dir.path().join(name);
    let made = uext4_testkit::oracle::command("mke2fs")
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
    count_by("", workload, function, (image, dir))
}

/// The same with tunables of the C library.
fn count_by(tunables: &str, workload: &str, function: &str, (image, dir): (&Path, &Path)) -> Count {
    let out = dir.join("callgrind.out");
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--toggle-collect=*{function}*"))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().expect("own path"))
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{workload} {}", image.display()))
        .env("GLIBC_TUNABLES", tunables)
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
    report_allocating(what, count, counted, goal, floor);
    assert!(count.allocations().is_empty(), "{what} allocates: {:?}", count.allocations());
}

/// The same of what may allocate.
fn report_allocating(what: &str, count: &Count, counted: f64, goal: f64, floor: f64) {
    let recorded = RECORDED.iter().find(|(name, _)| *name == what);
    let recorded = recorded.unwrap_or_else(|| panic!("{what}: no figure is recorded")).1;
    println!("{what}: {counted:.1} instructions (recorded {recorded}, goal {goal}, floor {floor})");
    for (name, cost) in &count.functions {
        println!("    {cost:8.1}  {name}");
    }
    assert!(counted > 10.0, "{what}: nothing was counted");
    assert!(counted <= floor, "{what}: {counted:.1} instructions are above the floor of {floor}");
    let most = recorded * 1.05;
    assert!(counted <= most, "{what}: {counted:.1} instructions, recorded {recorded}: above {most:.1}");
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
        let encoding = count.of("InstantQueue");
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
fn reads_among_a_million_extents() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let (dir, image) = extents_image();
    for (kind, function) in [("sync", "measured_sync_read"), ("queued", "measured_read")] {
        let one = count(&format!("extents-{kind}-straight"), function, &image, dir.path());
        let many = count(&format!("extents-{kind}-scattered"), function, &image, dir.path());
        // The whole difference is a look-up in the snapshot: a read of the single extent finds it cached.
        assert!(one.of("search_written") < 1.0, "{kind}: the run of the one extent was not kept");
        assert!(many.of("search_written") > 10.0, "{kind}: the snapshot was not searched");
        println!("{kind} 4 KiB read of a file of one extent: {:.1} instructions", one.total);
        let more = many.total - one.total;
        let what = format!("{kind} 4 KiB read among 10^6 extents instead of in 1, more by");
        report(&what, &many, more, 120.0, FLOOR_EXTENTS);
    }
}

/// Names that were looked up before. No goal: the figures are there to be compared.
#[test]
fn remembered_names() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"));
    let (dir, image) = image("known.img");
    for (workload, what) in KNOWN {
        let count = count(workload, "measured_known", &image, dir.path());
        report_allocating(what, &count, count.total, f64::NAN, f64::INFINITY);
        for function in ["::search", "crc32c"] {
            assert!(count.of(function) < 1.0, "{what}: a block of the directory was searched");
        }
    }
}

/// Workloads that look names up again, and what they count.
const KNOWN: [(&str, &str); 3] = [
    ("known-attributes", "attributes by a path of 2 names"),
    ("known-absent", "an absent name"),
    ("known-open", "open and close by a path of 2 names"),
];

#[inline(never)]
fn measured_known(volume: &Volume, workload: &str) {
    match workload {
        "known-attributes" => drop(black_box(volume.metadata("/lost+found/file")).expect("attributes")),
        "known-absent" => drop(black_box(volume.metadata("/lost+found/absent")).expect_err("absent")),
        _ => {
            let options = OpenOptions::new().read(true);
            drop(black_box(volume.open_file("/lost+found/file", options)).expect("open"));
        }
    }
}

fn known(workload: &str, image: &str) {
    let volume = Volume::open(&format!("null:{image}"), VolumeOptions::read_write()).expect("open");
    let options = OpenOptions::new().write(true).create_new(true);
    let kept = volume.open_file("/lost+found/file", options).expect("made");
    volume.metadata("/lost+found/absent").expect_err("absent");
    (0..CALLS).for_each(|_| measured_known(&volume, workload));
    drop(kept);
}

/// Unlinked open files must cost nothing to operations on other files.
#[test]
fn making_and_removing_files_beside_files_without_a_name() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"));
    let (dir, image) = image("names.img");
    let counted = NAMELESS.map(|(workload, files)| {
        let count = count(workload, "measured_name", &image, dir.path());
        let each = count.total * CALLS as f64 / NAME_CALLS as f64;
        println!("a file made or removed beside {files} without a name: {each:.0} instructions");
        each
    });
    assert!(counted[0] > 1000.0, "nothing was counted");
    for each in &counted[1..] {
        assert!(*each < counted[0] * 1.25, "{counted:.0?}: the cost grows with files open without a name");
    }
}

/// Workloads that create and remove files, and how many unlinked files are open meanwhile.
const NAMELESS: [(&str, u64); 3] = [("names-0", 0), ("names-500", 500), ("names-4000", 4000)];
const NAME_CALLS: u64 = 400;

#[inline(never)]
fn measured_name_made(volume: &Volume, name: &str) {
    let options = OpenOptions::new().write(true).create_new(true);
    drop(black_box(volume.open_file(name, options)).expect("made"));
}

#[inline(never)]
fn measured_name_removed(volume: &Volume, name: &str) {
    black_box(volume.remove_file(name)).expect("removed");
}

fn names(image: &str, nameless: u64) {
    let volume = Volume::open(image, VolumeOptions::read_write()).expect("open");
    let make = |name: &str| volume.open_file(name, OpenOptions::new().write(true).create_new(true));
    let open: Vec<uext4::File> = (0..nameless)
        .map(|_| {
            let file = make("/open").expect("made");
            volume.remove_file("/open").expect("removed");
            file
        })
        .collect();
    // The bitmap is searched from its beginning: next to a file that stays, equally many inodes are used before it.
    let names: Vec<String> = (0..NAME_CALLS / 2).map(|n| format!("/file-{n}")).collect();
    names.iter().for_each(|name| measured_name_made(&volume, name));
    names.iter().for_each(|name| measured_name_removed(&volume, name));
    drop(open);
    volume.close().expect("close");
}

/// Overwrites that no window of the queue covers, each in another extent. No goal: it shows what deciding costs.
#[test]
fn writes_among_a_million_extents() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let (dir, image) = extents_image();
    let count = count("extents-queued-write", "measured_write", &image, dir.path());
    let own = count.total - count.of("InstantQueue");
    assert!(count.of("search_written") > 10.0, "the snapshot was not searched");
    report("queued 4 KiB write among 10^6 extents", &count, own, f64::NAN, f64::INFINITY);
}

/// Appends of a block, with all that the journal does for them in memory. No goal: it is there to be compared.
#[test]
fn appends() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"));
    let (dir, image) = image("null.img");
    let mut count = count("append", "measured_append", &image, dir.path());
    let scale = CALLS as f64 / APPENDS as f64;
    count.functions.values_mut().for_each(|cost| *cost *= scale);
    count.total *= scale;
    count.functions.retain(|_, cost| *cost >= 50.0);
    report_allocating("4 KiB append", &count, count.total, f64::NAN, f64::INFINITY);
}

/// The second process. Without the variable there is nothing to do.
#[test]
fn child() {
    let Ok(order) = std::env::var(CHILD) else { return };
    let (workload, image) = order.split_once(' ').expect("WORKLOAD IMAGE");
    match workload {
        "read" | "write" | "dsync" => queued(workload, image),
        "extents-sync-straight" => sync_reads("/straight", ONE_EXTENT, image),
        "extents-sync-scattered" => sync_reads("/scattered", SCATTERED, image),
        "extents-queued-straight" => queued_reads("/straight", ONE_EXTENT, image),
        "extents-queued-scattered" => queued_reads("/scattered", SCATTERED, image),
        "extents-queued-write" => queued_writes("/scattered", SCATTERED, image),
        "append" => appending(image),
        _ if maps::WORKLOADS.iter().any(|(name, ..)| *name == workload) => maps::run(workload, image),
        "known-attributes" | "known-absent" | "known-open" => known(workload, image),
        _ => match NAMELESS.iter().find(|(name, _)| *name == workload) {
            Some((_, nameless)) => names(image, *nameless),
            None => mapped(workload, image),
        },
    }
}

fn queued(workload: &str, image: &str) {
    let volume = Volume::open(&format!("null:{image}"), VolumeOptions::read_write()).expect("open");
    let file = volume.open_file("/data", OpenOptions::new().read(true).write(true)).expect("file");
    let mut queue = volume.queue(QueueOptions::depth(DEPTH)).expect("queue");
    let slot = queue.attach(&file).expect("slot");
    let mut buffers: Vec<Buffer> = (0..DEPTH).map(|_| queue.buffer(4096).expect("buffer")).collect();
    let flags = if workload == "dsync" { WriteFlags::DSYNC } else { WriteFlags::empty() };
    // Two calls outside the count: the first loads the mapping, the second follows what was published.
    for tag in 0..2 {
        let buffer = buffers.pop().expect("a buffer");
        queue.read(slot, 0, buffer, tag).expect("read");
        buffers.extend(queue.wait(1).expect("wait").filter_map(|done| done.into_buffer()));
    }
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
    // Counted once they are complete: wait for the rest.
    drop(queue);
    let stats = volume.stats();
    let route = match workload {
        "read" => uext4::Counter::SimpleReads,
        "write" => uext4::Counter::OverwritesWithoutHandle,
        _ => uext4::Counter::FuaWrites,
    };
    assert!(stats.get(route) >= CALLS, "the wrong route was counted");
}

fn appending(image: &str) {
    let volume = Volume::open(&format!("null:{image}"), VolumeOptions::read_write()).expect("open");
    let file = volume.open_file("/data", OpenOptions::new().read(true).write(true)).expect("file");
    let buf = uext4::BufferPool::new(4096).and_then(|pool| pool.take(4096)).expect("a buffer");
    // What is loaded and made once is not counted.
    file.write_at(&buf, file.size()).expect("write");
    (0..APPENDS).for_each(|_| measured_append(&file, &buf, file.size()));
    assert_eq!(volume.stats().get(uext4::Counter::Extensions), APPENDS + 1);
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
fn measured_sync_read(file: &uext4::File, buf: &mut [u8], pos: u64) {
    black_box(file.read_at(buf, pos)).expect("read");
}

/// Blocks, and extents, of the scattered file.
const SCATTERED: u64 = 1_000_000;
/// Blocks of the straight file.
const ONE_EXTENT: u64 = 16_384;
/// Blocks before a file's first doubly indirect one: holes in both files.
const BEFORE: u64 = 12 + 1024;
/// In each group of 32768 the files' blocks begin here, after its metadata, ...
const IN_GROUP: u64 = 1024;
/// ... and there are this many.
const OF_GROUP: u64 = 31_000;
/// Where both files' indirect blocks are, in the first group.
const SCATTERED_MAP: u64 = 20_000;
const STRAIGHT_MAP: u64 = 22_000;

/// An ext2 volume with two files: `/scattered`, whose blocks lie in reverse order, and `/straight`, whose blocks are
/// contiguous. Block maps have no checksums, so this suffices; the bitmaps do not show these blocks.
fn extents_image() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("temporary folder");
    let (tree, image) = (dir.path().join("tree"), dir.path().join("null.img"));
    std::fs::create_dir(&tree).expect("folder");
    for (name, blocks) in [("scattered", SCATTERED), ("straight", ONE_EXTENT)] {
        let file = std::fs::File::create(tree.join(name)).expect("file");
        file.set_len((BEFORE + blocks) * 4096).expect("size");
    }
    let mut mke2fs = uext4_testkit::oracle::command("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext2", "-b", "4096", "-N", "1000", "-O", "^resize_inode", "-d"]);
    let made =
        mke2fs.arg(&tree).arg(&image).arg("4480M").stdout(Stdio::null()).status().expect("mke2fs runs");
    assert!(made.success());
    // The first group holds the maps.
    let place = |block: u64| (1 + block / OF_GROUP) * 32_768 + IN_GROUP + block % OF_GROUP;
    write_map(&image, "scattered", SCATTERED_MAP, (0..SCATTERED).rev().map(place));
    let behind = SCATTERED.next_multiple_of(OF_GROUP);
    write_map(&image, "straight", STRAIGHT_MAP, (behind..behind + ONE_EXTENT).map(place));
    (dir, image)
}

/// Maps the file's blocks from [`BEFORE`] on to `blocks`, with a doubly indirect block at `at` and pointer blocks after
/// it.
fn write_map(image: &Path, name: &str, at: u64, blocks: impl Iterator<Item = u64>) {
    use std::os::unix::fs::FileExt;
    let pointers = |blocks: &[u64]| -> Vec<u8> {
        blocks.iter().flat_map(|&block| u32::try_from(block).expect("32 bits").to_le_bytes()).collect()
    };
    let file = std::fs::File::options().write(true).open(image).expect("image");
    let blocks: Vec<u64> = blocks.collect();
    let leaves: Vec<u64> = (at + 1..).zip(blocks.chunks(1024)).map(|(leaf, _)| leaf).collect();
    file.write_all_at(&pointers(&leaves), at * 4096).expect("doubly indirect block");
    for (leaf, blocks) in leaves.iter().zip(blocks.chunks(1024)) {
        file.write_all_at(&pointers(blocks), leaf * 4096).expect("indirect block");
    }
    uext4_testkit::oracle::debugfs_write(image, &format!("set_inode_field /{name} block[DIND] {at}"));
}

fn random_positions(blocks: u64) -> impl Iterator<Item = u64> {
    let next =
        |random: &u64| Some(random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
    std::iter::successors(Some(1u64), next).map(move |random| (BEFORE + (random >> 33) % blocks) * 4096)
}

/// Opens the file, loads all of its mapping and checks it with a few reads, which also fill the thread's cache.
fn mapped_file(volume: &Volume, path: &str, blocks: u64) -> uext4::File {
    let file = volume.open_file(path, OpenOptions::new().read(true).switches(Switches::ON)).expect("file");
    let written = file.map().map(|piece| piece.expect("piece")).filter(|piece| piece.state == State::Written);
    assert_eq!(written.count() as u64, if path == "/straight" { 1 } else { blocks });
    let mut buf = vec![0; 4096];
    (0..blocks).step_by(1024).for_each(|block| {
        file.read_at(&mut buf, (BEFORE + block) * 4096).expect("read");
    });
    file
}

/// Random reads by the calling thread.
fn sync_reads(path: &str, blocks: u64, image: &str) {
    let volume = Volume::open(&format!("null:{image}"), VolumeOptions::read_only()).expect("open");
    let file = mapped_file(&volume, path, blocks);
    let before = volume.stats();
    let mut buf = vec![0; 4096];
    random_positions(blocks).take(CALLS as usize).for_each(|pos| measured_sync_read(&file, &mut buf, pos));
    let done = volume.stats().since(&before);
    assert_eq!(done.get(uext4::Counter::SimpleReads), CALLS, "the wrong route was counted");
    assert_eq!(done.get(uext4::Counter::MapLoads), 0, "the mapping was there");
}

/// Random overwrites through a queue.
fn queued_writes(path: &str, blocks: u64, image: &str) {
    let volume = Volume::open(&format!("null:{image}"), VolumeOptions::read_write()).expect("open");
    drop(mapped_file(&volume, path, blocks));
    let file = volume.open_file(path, OpenOptions::new().read(true).write(true)).expect("file");
    let mut queue = volume.queue(QueueOptions::depth(DEPTH)).expect("queue");
    let slot = queue.attach(&file).expect("slot");
    let before = volume.stats();
    let mut buffers: Vec<Buffer> = (0..DEPTH).map(|_| queue.buffer(4096).expect("buffer")).collect();
    for pos in random_positions(blocks).take(CALLS as usize) {
        let buffer = buffers.pop().expect("a buffer");
        measured_write(&mut queue, slot, pos, buffer, WriteFlags::empty());
        if buffers.is_empty() {
            buffers.extend(queue.wait(DEPTH as usize).expect("wait").filter_map(|done| done.into_buffer()));
        }
    }
    drop(queue);
    let done = volume.stats().since(&before);
    assert_eq!(done.get(uext4::Counter::OverwritesWithoutHandle), CALLS, "the wrong route was counted");
    assert_eq!(done.get(uext4::Counter::MapLoads), 0, "the mapping was there");
}

/// Random reads through a queue.
fn queued_reads(path: &str, blocks: u64, image: &str) {
    let volume = Volume::open(&format!("null:{image}"), VolumeOptions::read_only()).expect("open");
    let file = mapped_file(&volume, path, blocks);
    let mut queue = volume.queue(QueueOptions::depth(DEPTH)).expect("queue");
    let slot = queue.attach(&file).expect("slot");
    let before = volume.stats();
    let mut buffers: Vec<Buffer> = (0..DEPTH).map(|_| queue.buffer(4096).expect("buffer")).collect();
    for (tag, pos) in (0..CALLS).zip(random_positions(blocks)) {
        measured_read(&mut queue, slot, pos, buffers.pop().expect("a buffer"), tag);
        if buffers.is_empty() {
            buffers.extend(queue.wait(DEPTH as usize).expect("wait").filter_map(|done| done.into_buffer()));
        }
    }
    drop(queue);
    let done = volume.stats().since(&before);
    assert_eq!(done.get(uext4::Counter::SimpleReads), CALLS, "the wrong route was counted");
    assert_eq!(done.get(uext4::Counter::MapLoads), 0, "the mapping was there");
}
