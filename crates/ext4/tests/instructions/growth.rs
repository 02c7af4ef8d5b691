//! Costs that must not grow with the size of a volume or a file: instructions at three sizes, counted by callgrind in a
//! release build.
//!
//! Each test runs this program again under valgrind, with collection toggled by the measured function, mostly on the
//! `null:` engine: writes stay in memory, and the image is unchanged.

use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use uext4::{Caller, File, OpenOptions, Volume, VolumeOptions, WriteFlags};
use uext4_ondisk::ext4::{
    Extent, ExtentIndex, GroupDescriptor, Superblock, encode_extent_index, encode_extent_leaf,
};
use uext4_ondisk::{Lblk, Pblk};
use uext4_testkit::needs;
use uext4_testkit::requirement::Need;

/// The variable that tells the second process what to do: `WORKLOAD SIZE IMAGE`.
const CHILD: &str = "UEXT4_COUNT_GROWTH";

/// Number of files counted.
const COUNTED: u64 = 100;

/// Entries of a node in a block of 4 KiB.
const NODE: usize = 340;

#[inline(never)]
fn measured_file(volume: &Volume, path: &str, data: &[u8]) {
    let options = OpenOptions::new().read(true).write(true).create_new(true);
    let file = volume.open_file(path, options).expect("file");
    black_box(file.write_any_at(data, 0, WriteFlags::empty())).expect("write");
    drop(file);
    volume.remove_file(path).expect("removed");
}

#[inline(never)]
fn measured_first_map(file: &File) -> usize {
    black_box(file.map().map(|piece| piece.expect("piece")).count())
}

#[inline(never)]
fn measured_first_write(file: &File, data: &[u8]) {
    black_box(file.write_any_at(data, 0, WriteFlags::empty())).expect("write");
}

#[inline(never)]
fn measured_create(volume: &Volume, path: &str) {
    let options = OpenOptions::new().write(true).create_new(true);
    drop(black_box(volume.open_file(path, options).expect("file")));
}

/// Instructions inside the measured function.
fn count(workload: &str, size: u64, image: &Path) -> f64 {
    let out = image.with_extension("callgrind");
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=*measured_*"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe().expect("own path"))
        .args(["--exact", "growth::child", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{workload} {size} {}", image.display()))
        // Clearing memory by `rep stosb` would count as an instruction a byte, and whether it is needed is the
        // allocator's luck.
        .env("GLIBC_TUNABLES", "glibc.cpu.x86_rep_stosb_threshold=1073741824")
        .output()
        .expect("valgrind runs");
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{workload}: {text}{}", String::from_utf8_lossy(&run.stdout));
    let text = std::fs::read_to_string(&out).expect("callgrind's file");
    let total = text.lines().find_map(|line| line.strip_prefix("totals: ")).expect("totals");
    total.trim().parse().expect("a number")
}

/// Fails if the highest cost is above the recorded one, or more than `growth` times the lowest.
fn assert_flat(what: &str, costs: &[(u64, f64)], growth: f64, recorded: f64) {
    costs.iter().for_each(|(size, cost)| println!("{what}: {cost:.0} instructions at {size}"));
    let least = costs.iter().map(|(_, cost)| *cost).fold(f64::INFINITY, f64::min);
    let most = costs.iter().map(|(_, cost)| *cost).fold(0.0, f64::max);
    assert!(least > 1000.0, "{what}: nothing was counted");
    assert!(most <= growth * least, "{what}: from {least:.0} to {most:.0} instructions");
    assert!(most <= recorded * 1.1, "{what}: {most:.0} instructions, recorded {recorded:.0}");
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("temporary folder")
}

fn mke2fs(image: &Path, size: &str, args: &[&str]) {
    let mut command = uext4_testkit::oracle::command("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096"]).args(args).arg(image).arg(size);
    assert!(command.status().expect("mke2fs runs").success());
}

/// Files created, written and removed in one transaction: all their blocks wait for its commit.
#[test]
fn a_file_costs_the_same_however_many_freed_blocks_wait() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"));
    let dir = folder();
    let image = dir.path().join("churn.img");
    mke2fs(&image, "512M", &["-J", "size=64"]);
    let cost = |files| (files, count("churn", files, &image) / COUNTED as f64);
    assert_flat("a file made, written and removed", &[500, 2000, 8000].map(cost), 1.05, 146_000.0);
}

/// The map of a file of many extents, loaded leaf by leaf.
#[test]
fn a_leaf_of_a_map_costs_the_same_however_many_there_are() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"));
    let dir = folder();
    let costs = [10_000_u64, 100_000, 1_000_000].map(|extents| {
        let image = dir.path().join("extents.img");
        scattered(dir.path(), &image, extents);
        (extents, count("map", extents, &image) / extents.div_ceil(NODE as u64) as f64)
    });
    assert_flat("a leaf of a map", &costs, 1.4, 680_000.0);
}

/// The first write to a new file of volumes of 0.25, 2 and 16 TiB.
#[test]
fn a_first_allocation_costs_the_same_on_any_volume() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let dir = folder();
    let costs = [256_u64, 2048, 16_384].map(|gibibytes| {
        let image = dir.path().join("large.img");
        let args =
            ["-J", "size=16", "-O", "sparse_super2,^resize_inode", "-E", "num_backup_sb=0", "-N", "65536"];
        mke2fs(&image, &format!("{gibibytes}G"), &args);
        let cost = count("first", gibibytes, &image);
        if gibibytes == 256 {
            uext4_testkit::oracle::e2fsck_clean(&image);
        }
        std::fs::remove_file(&image).expect("removed");
        (gibibytes, cost)
    });
    assert_flat("the first write to a volume", &costs, 1.2, 72_000.0);
}

/// Files created in directories of 10, 10 000 and 1 000 000 names, of which each keeps its size.
#[test]
fn a_create_among_many_names_costs_twice_as_much_as_among_few() {
    needs!(Need::Tool("valgrind"), Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let dir = folder();
    let costs = [10_u64, 10_000, 1_000_000].map(|names| {
        let image = dir.path().join("names.img");
        named(&image, names);
        let cost = count("create", names, &image) / COUNTED as f64;
        std::fs::remove_file(&image).expect("removed");
        (names, cost)
    });
    // The floor is 2, and 1.98 was measured. Other hash seeds make other trees, so that a few percent are left.
    assert_flat("a file created", &costs, 2.2, 78_000.0);
}

/// A volume with a directory of so many names: hard links, so that it is made quickly.
fn named(image: &Path, names: u64) {
    mke2fs(image, "256M", &["-J", "size=32", "-N", "4096"]);
    let volume = Volume::open(image, VolumeOptions::read_write()).expect("open");
    volume.create_dir("/names", 0o755, &Caller::root()).expect("directory");
    let mut target = String::new();
    for number in 0..names {
        let path = format!("/names/name-{number:07}");
        if number % 50_000 == 0 {
            volume.open_file(&path, OpenOptions::new().write(true).create_new(true)).expect("file");
            target = path;
        } else {
            volume.hard_link(&target, &path).expect("link");
        }
    }
    volume.close().expect("closed");
    if names < 100_000 {
        uext4_testkit::oracle::e2fsck_clean(image);
    }
}

/// The second process. Without the variable there is nothing to do.
#[test]
fn child() {
    let Ok(order) = std::env::var(CHILD) else { return };
    let mut words = order.splitn(3, ' ');
    let (workload, size, image) = (words.next(), words.next(), words.next());
    let (size, image) = (size.and_then(|size| size.parse().ok()).expect("a size"), image.expect("an image"));
    // The `null:` engine reads all of the image.
    let engine = if workload == Some("first") { "sync" } else { "null" };
    let volume = Volume::open(&format!("{engine}:{image}"), VolumeOptions::read_write()).expect("open");
    let data = vec![7; 4096];
    match workload {
        Some("churn") => churn(&volume, size, &data),
        Some("map") => {
            let file = volume.open_file("/scattered", OpenOptions::new().read(true)).expect("file");
            // Between two extents there is a hole.
            assert_eq!(measured_first_map(&file) as u64, 2 * size);
        }
        Some("create") => {
            // So that its blocks are in memory.
            assert_eq!(volume.read_dir("/names").expect("directory").count() as u64, size + 2);
            for number in 0..COUNTED {
                let path = format!("/names/new-{number}");
                measured_create(&volume, &path);
                volume.remove_file(&path).expect("removed");
            }
        }
        Some("first") => {
            let options = OpenOptions::new().write(true).create_new(true);
            let file = volume.open_file("/new", options).expect("file");
            measured_first_write(&file, &data);
            assert_eq!(file.size(), 4096);
        }
        other => panic!("unknown workload {other:?}"),
    }
}

fn churn(volume: &Volume, files: u64, data: &[u8]) {
    let commits = |volume: &Volume| volume.stats().get(uext4::Counter::Commits);
    for number in 0..files - COUNTED {
        let path = format!("/file-{}", number % 7);
        let options = OpenOptions::new().read(true).write(true).create_new(true);
        let file = volume.open_file(&path, options).expect("file");
        file.write_any_at(data, 0, WriteFlags::empty()).expect("write");
        drop(file);
        volume.remove_file(&path).expect("removed");
    }
    (0..COUNTED).for_each(|number| measured_file(volume, &format!("/file-{}", number % 7), data));
    assert_eq!(commits(volume), 0, "what was freed still waits");
}

/// A volume with `/scattered`: every other block of it is mapped, and no two extents can merge. Without metadata
/// checksums this suffices; the bitmaps do not show these blocks.
fn scattered(dir: &Path, image: &Path, extents: u64) {
    let tree: PathBuf = dir.join("tree");
    std::fs::create_dir_all(&tree).expect("folder");
    let sparse = std::fs::File::create(tree.join("scattered")).expect("file");
    sparse.set_len(2 * extents * 4096).expect("size");
    let tree = tree.to_str().expect("a path");
    mke2fs(image, "16G", &["-O", "^metadata_csum,^has_journal,^resize_inode", "-N", "1000", "-d", tree]);
    let file = std::fs::File::options().read(true).write(true).open(image).expect("image");
    let entries = (0..extents as u32).map(|number| Extent {
        logical: Lblk(2 * number),
        length: 1,
        // After the metadata of each group of the second half.
        physical: Pblk((64 + u64::from(number) / 30_000) * 32_768 + 2048 + u64::from(number) % 30_000),
        unwritten: false,
    });
    let mut next_node = 600_000;
    let mut put = |node: &[u8]| {
        file.write_all_at(node, next_node * 4096).expect("a node");
        next_node += 1;
        Pblk(next_node - 1)
    };
    let entries: Vec<Extent> = entries.collect();
    let mut level: Vec<ExtentIndex> = Vec::new();
    for part in entries.chunks(NODE) {
        let mut node = vec![0; 4096];
        encode_extent_leaf(&mut node, 0, part).expect("a leaf");
        level.push(ExtentIndex { logical: part[0].logical, child: put(&node) });
    }
    let mut depth = 1;
    while level.len() > 4 {
        let above = level.chunks(NODE).map(|part| {
            let mut node = vec![0; 4096];
            encode_extent_index(&mut node, depth, 0, part).expect("a node");
            ExtentIndex { logical: part[0].logical, child: put(&node) }
        });
        level = above.collect();
        depth += 1;
    }
    let mut root = [0; 60];
    encode_extent_index(&mut root, depth, 0, &level).expect("the root");
    file.write_all_at(&root, inode_place(&file, 12) + 0x28).expect("the root");
}

/// Where an inode of the first group lies. The first file of a new volume is inode 12.
fn inode_place(image: &std::fs::File, ino: u64) -> u64 {
    let mut bytes = vec![0; 8192];
    image.read_exact_at(&mut bytes, 0).expect("superblock and descriptors");
    let superblock = Superblock::decode(&bytes[1024..2048]).expect("superblock");
    let first =
        GroupDescriptor::decode(&bytes[4096..], uext4_ondisk::Group(0), &superblock).expect("descriptor");
    first.inode_table.get() * 4096 + (ino - 1) * u64::from(superblock.geometry.inode_size())
}
