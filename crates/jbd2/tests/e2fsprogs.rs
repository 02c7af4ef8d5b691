//! Journals made by e2fsprogs open, and what dumpe2fs says about them agrees. Needs `mke2fs`, `debugfs` and
//! `dumpe2fs`, no root.

use crate::common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use uext4_buffer::{BufferCache, CacheOptions};
use uext4_jbd2::{Journal, LogRun, RunMap, Tid};

fn run(directory: &Path, program: &str, arguments: &[&str]) -> String {
    // The tools live where an ordinary user's PATH may not look.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).args(arguments).env("PATH", path).current_dir(directory).output();
    let output = output.unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Opens the contents of the journal inode of `volume` as a device of its own.
fn open(directory: &Path, block_size: u32) -> Journal {
    run(directory, "debugfs", &["-R", "dump <8> journal", "volume"]);
    let bytes = std::fs::read(directory.join("journal")).unwrap();
    let disk = common::Disk::new(bytes.len() as u64 / u64::from(common::BLOCK));
    disk.put(0, &bytes);
    let cache = BufferCache::new(Arc::new(disk), &CacheOptions::new(block_size)).unwrap();
    let length = u32::try_from(cache.blocks()).unwrap();
    let log = RunMap::new(vec![LogRun { log_block: 0, physical: 0, length }]).unwrap();
    Journal::open(cache, Arc::new(log), Arc::default()).unwrap()
}

/// The value of a line of `dumpe2fs -h`.
fn reported(report: &str, name: &str) -> String {
    let line = report.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {report}")).trim().to_string()
}

fn agrees(block_size: u32, debugfs_script: &str) {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let size = block_size.to_string();
    let megabytes = format!("size={}", (block_size * 2048) >> 20);
    run(directory, "mke2fs", &["-q", "-t", "ext4", "-b", &size, "-J", &megabytes, "volume", "64M"]);
    std::fs::write(directory.join("script"), debugfs_script).unwrap();
    run(directory, "debugfs", &["-w", "-f", "script", "volume"]);
    let report = run(directory, "dumpe2fs", &["-h", "volume"]);

    let journal = open(directory, block_size);
    let superblock = &journal.info().superblock;
    let names = superblock.features.names().join(" ");
    let names = if names.is_empty() { "(none)" } else { &names };
    assert_eq!(names, reported(&report, "Journal features:"));
    assert_eq!(superblock.blocks.to_string(), reported(&report, "Total journal blocks:"));
    let sequence = format!("{:#010x}", journal.info().sequence().sequence());
    assert_eq!(sequence, reported(&report, "Journal sequence:"));
    let handle = journal.start(journal.max_handle_credits()).unwrap();
    assert_eq!(handle.tid(), Tid::of_sequence(superblock.sequence).next());
}

#[test]
fn plain_journal() {
    agrees(1024, "");
    agrees(4096, "");
}

#[test]
fn journal_with_checksums() {
    agrees(1024, "jo -c -v 3\njc\n");
    agrees(4096, "jo -c -v 2\njc\n");
}
