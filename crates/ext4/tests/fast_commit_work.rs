//! Bounds on the work of a fast-commit replay: enough for every sound log, and no more.

use crate::common;

use common::dirs::{CASEFOLD_FLAG, EXTENTS_FLAG, Recipe};
use common::fast::{Records, fsck_clean, plant_into, writable};
use common::{Image, open_ro};
use std::path::Path;
use std::sync::Arc;
use uext4::device::CountingDevice;
use uext4::{Volume, VolumeOptions};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs};

const FOLDED: &str = "casefold,^metadata_csum,64bit,^orphan_file,fast_commit";

/// A fault in the first of many fast commits that is found only at the end: the good ones before it are searched for,
/// but within bounds. Each replay reads the fast commits twice.
#[test]
fn what_all_replays_may_do_is_bounded() {
    needs!(Need::Tool("mke2fs"));
    let source = Scratch::new(1 << 20);
    std::fs::create_dir(source.file("dir")).unwrap();
    for n in 0..90 {
        std::fs::write(source.file(format!("dir/a name that fills the block, {n:04}")), "").unwrap();
    }
    let volume = VolumeBuilder::new(64 << 20)
        .args(["-b", "4096", "-J", "size=10", "-O", "^metadata_csum,64bit,^orphan_file,fast_commit"])
        .from_dir(source.path())
        .build();
    let mut image = Image::load(volume.path());
    let opened = open_ro(image.device());
    let dir = opened.metadata("/dir").unwrap().ino.get();
    let [one, two] = [1, 2].map(|n| format!("/dir/a name that fills the block, {n:04}"));
    let [one, two] = [one, two].map(|path| opened.metadata(path).unwrap().ino.get());
    drop(opened);
    let last = 4000;
    let mut bad = Records::default().add(one, 0, 2, last).add(two, 0, 1, last + 1).link(dir, one, b"z");
    for _ in 0..80_000 {
        bad = bad.unlink(dir, one, b"z").link(dir, one, b"z");
    }
    let mut commits = vec![bad];
    commits.resize(250, Records::default().link(dir, one, b"z"));
    plant_into(&mut image, 1200, &commits);
    let counting = CountingDevice::new(image.device());
    let counters = counting.counters();
    let volume = Volume::open_device(Arc::new(counting), VolumeOptions::read_only()).unwrap();
    let info = volume.info().recovery;
    assert_eq!(info.fast_commits().map_or(0, |found| found.commits), 0);
    let why = info.fast_commits_refused.unwrap();
    assert!(why.contains(&format!("fast commits give block {}", last + 1)), "{why}");
    // Without a bound there would be nine or ten replays of at least the first fast commit, which takes 850 blocks.
    let replays = counters.get().read_bytes / (2 * 850 * 4096);
    assert!((2..7).contains(&replays), "{replays} replays, {:?}", counters.get());
}

/// A volume with this many files in `/dir`; the numbers of the directory and of the files.
fn files(count: u32, block: u32, name: fn(u32) -> String) -> (Image, u32, Vec<u32>) {
    let source = Scratch::new(1 << 20);
    std::fs::create_dir(source.file("dir")).unwrap();
    for n in 0..count {
        std::fs::write(source.file(format!("dir/{}", name(n))), "").unwrap();
    }
    // Room for 1024 blocks of transactions and 256 of fast commits.
    let journal = format!("size={}", (block / 1024 * 5 / 4).max(12));
    let volume = VolumeBuilder::new((u64::from(block) * 4096).max(64 << 20))
        .args(["-b", &block.to_string(), "-N", &(count + 100).to_string(), "-J", &journal])
        .args(["-O", "^metadata_csum,64bit,^orphan_file,fast_commit"])
        .from_dir(source.path())
        .build();
    let image = Image::load(volume.path());
    let opened = open_ro(image.device());
    let find = |path: &str| opened.metadata(Path::new(path)).unwrap().ino.get();
    let numbers = (0..count).map(|n| find(&format!("/dir/{}", name(n)))).collect();
    let dir = find("/dir");
    drop(opened);
    (image, dir, numbers)
}

/// As after `rm -r` and an `fsync` of another file: a fast commit may be long, and blocks large.
#[test]
fn as_many_names_as_a_fast_commit_of_the_kernel_has_are_not_too_much_work() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (mut image, dir, files) = files(23_100, 32_768, |n| n.to_string());
    let unlink = |records: Records, n: usize| records.unlink(dir, files[n], n.to_string().as_bytes());
    plant_into(&mut image, 200, &[(0..23_000).fold(Records::default(), unlink)]);
    let device = image.device();
    let volume = open_ro(device.clone());
    assert_eq!(volume.info().recovery.fast_commits_refused, None);
    assert_eq!(volume.read_dir("/dir").unwrap().count(), 2 + 100);
    drop(volume);
    drop(writable(device.clone()).unwrap());
    fsck_clean(&Image::of(&*device));
}

/// mke2fs makes directories without an index. `rm -r` removes their names in on-disk order.
#[test]
fn names_go_from_a_large_directory_without_an_index() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let name = |n| format!("a name that fills the block, {n:05}");
    let (mut image, dir, files) = files(20_000, 4096, name);
    let opened = open_ro(image.device());
    assert!(opened.metadata("/dir").unwrap().size > 200 * 4096);
    let names = opened.read_dir("/dir").unwrap().map(|entry| entry.unwrap());
    let mut records = Records::default();
    for entry in names.filter(|entry| !entry.name.starts_with(b".")) {
        records = records.unlink(dir, entry.ino.get(), &entry.name);
    }
    assert_eq!(records.list.len(), files.len());
    drop(opened);
    plant_into(&mut image, 250, &[records]);
    let device = image.device();
    let volume = open_ro(device.clone());
    assert_eq!(volume.info().recovery.fast_commits_refused, None);
    assert_eq!(volume.read_dir("/dir").unwrap().count(), 2);
    drop(volume);
    drop(writable(device.clone()).unwrap());
    fsck_clean(&Image::of(&*device));
}

/// Earlier fast commits are replayed, since each was a separate `fsync`.
#[test]
fn too_much_work_takes_only_the_fast_commit_that_makes_it() {
    needs!(Need::Tool("mke2fs"));
    let (mut image, dir, files) = files(10, 16_384, |n| n.to_string());
    let first = Records::default().unlink(dir, files[3], b"3").link(dir, files[5], b"six");
    let mut endless = Records::default();
    for _ in 0..70_000 {
        endless = endless.unlink(dir, files[5], b"5").link(dir, files[5], b"5");
    }
    plant_into(&mut image, 250, &[first, endless]);
    let volume = open_ro(image.device());
    let info = volume.info().recovery;
    let why = info.fast_commits_refused.as_ref().unwrap();
    assert!(why.contains("more work than 4096 MiB"), "{why}");
    assert_eq!(info.fast_commits().unwrap().commits, 1);
    assert_eq!(volume.read_dir("/dir").unwrap().count(), 2 + 10);
}

/// Folding is much more work than comparing: after some seconds of it the replay stops.
#[test]
fn folded_names_are_not_compared_for_ever() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let marks = "\u{301}\u{345}\u{316}\u{334}".repeat(30);
    let names: Vec<_> = (0..600).map(|n| format!("{n:06}{marks}")).collect();
    let args = ["-b", "4096", "-N", "1000", "-J", "size=12", "-O", FOLDED];
    let flags = format!("sif /dir flags {:#x}", CASEFOLD_FLAG | EXTENTS_FLAG);
    let recipe =
        Recipe { size: 64 << 20, args: &args, debugfs: &[&flags], index: false, ..Recipe::default() };
    let mut image = recipe.make(&names);
    let dir = open_ro(image.device()).resolve("/dir", false).unwrap().get();
    // A block holds 15 names; if folding did not count, 25000 would fit the bound.
    let unlink = |records: Records, n: usize| records.unlink(dir, 20, format!("é{n}").as_bytes());
    plant_into(&mut image, 250, &[(0..4000).fold(Records::default(), unlink)]);
    let why = open_ro(image.device()).info().recovery.fast_commits_refused.unwrap();
    assert!(why.contains("more work than 4096 MiB"), "{why}");
}
