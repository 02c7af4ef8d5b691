//! What e2fsck makes of logs that were written here: it replays them to the same blocks, on real volumes, after a crash
//! at any point. Needs `mke2fs`, `debugfs` and `e2fsck`, no root.

use crate::common;

use common::recorder::Caching;
use common::world::{BLOCKS, Start, compare, crash, run};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use uext4_jbd2::{JournalOptions, LogRun, RunMap};
use uext4_testkit::oracle::{debugfs_script, debugfs_write, e2fsck};
use uext4_testkit::{Need, Rng, Scratch, debugfs, e2fsck_clean, mke2fs, needs, with_kernel};

const SIZE: u64 = 8 << 20;
/// Blocks of 1 KiB at the end that nobody uses.
const DATA: u64 = (SIZE >> 10) - BLOCKS;

/// A volume with a log of 1024 blocks.
fn volume(path: &Path, options: &[&str], script: &str) -> Start {
    mke2fs(path, &[&["-b", "1024", "-J", "size=1", "-N", "64"], options].concat());
    if !script.is_empty() {
        debugfs_script(path, script);
    }
    let used = debugfs(path, &format!("testb {DATA} {BLOCKS}"));
    assert!(used.lines().filter(|line| line.contains("marked in use")).count() == 0, "{used}");
    let blocks = debugfs(path, "blocks <8>");
    let runs = (0..).zip(blocks.split_whitespace().map(|block| block.parse::<u64>().unwrap()));
    // One run each: the writer has to find the neighbours itself.
    let runs = runs.map(|(log_block, physical)| LogRun { log_block, physical, length: 1 });
    let log = RunMap::new(runs.collect()).unwrap();
    Start::new(std::fs::read(path).unwrap(), Arc::new(log), DATA)
}

fn agrees(name: &str, options: &[&str], script: &str, journal: &JournalOptions, caching: Caching) {
    agrees_with(name, options, script, journal, caching, &|path| {
        let fsck = e2fsck(path, &["-y"]);
        assert!(fsck.status <= 1, "{name}: {fsck:?}");
    });
}

fn agrees_with(
    name: &str,
    options: &[&str],
    script: &str,
    journal: &JournalOptions,
    caching: Caching,
    replay: &dyn Fn(&Path),
) {
    let scratch = Scratch::new(4 * SIZE);
    let path = scratch.sparse_file(name, SIZE);
    let mut start = volume(&path, options, script);
    let mut random = Rng::new(name.len() as u64);
    let mut images = 0;
    for _ in 0..2 {
        let run = run(start, caching, journal, 300, &mut random);
        start = crash(&run, 8, &mut random, &mut HashSet::new(), &mut |image, found| {
            std::fs::write(&path, image).unwrap();
            debugfs_write(&path, "feature needs_recovery");
            replay(&path);
            e2fsck_clean(&path);
            compare(&run, &std::fs::read(&path).unwrap(), found);
            images += 1;
        });
    }
    assert!(images > 8, "{name}: {images}");
}

#[test]
fn e2fsck_replays_a_log_without_checksums() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    agrees("plain", &["-O", "^metadata_csum,^64bit"], "", &JournalOptions::default(), Caching::Fua);
}

#[test]
fn e2fsck_replays_a_log_as_the_kernel_has_it() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let options = JournalOptions { wide: true, checksums: true, ..JournalOptions::default() };
    agrees("usual", &[], "", &options, Caching::Fua);
    agrees("no-fua", &[], "", &options, Caching::Flush);
}

#[test]
fn the_kernel_replays_the_same() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let options = JournalOptions { wide: true, checksums: true, ..JournalOptions::default() };
    let mount = |path: &Path| with_kernel(path, "", |_| ());
    agrees_with("kernel", &[], "", &options, Caching::Fua, &mount);
    agrees_with(
        "kernel-plain",
        &["-O", "^metadata_csum,^64bit"],
        "",
        &JournalOptions::default(),
        Caching::Fua,
        &mount,
    );
}

#[test]
fn e2fsck_replays_checksums_of_version_2() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    agrees("version-2", &[], "jo -c -v 2\njc\n", &JournalOptions::default(), Caching::Flush);
}

#[test]
fn e2fsck_replays_a_log_with_room_for_fast_commits() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let options = JournalOptions { wide: true, checksums: true, ..JournalOptions::default() };
    agrees("fast", &["-O", "fast_commit", "-J", "size=2,fast_commit_size=64"], "", &options, Caching::Fua);
}
