//! What recovery hands to a file system: fast-commit records, and a log that cannot be read.

use crate::common;

use common::{BLOCK, DATA, Disk, LOG, LOG_AT, Superblock, map};
use std::sync::Arc;
use uext4_blockdev::Device;
use uext4_buffer::{BufferCache, CacheOptions};
use uext4_jbd2::{
    Error, FastCommitReplay, FastCommits, JournalInfo, LogEnd, LogRun, Recovery, Result, RunMap, Tid,
};
use uext4_ondisk::jbd2::{CommitBlock, FastCommitRecord};

/// A log with one empty transaction, number 41, and fast commits in the last eight blocks.
fn disk(records: &[Vec<u8>]) -> (Arc<dyn Device>, JournalInfo) {
    let mut superblock = Superblock::empty();
    superblock.set(28, 1).set(40, 32).set(84, 8);
    let disk = Disk::new(DATA + 512);
    disk.put(LOG_AT * u64::from(BLOCK), &superblock.0);
    let mut block = vec![0; BLOCK as usize];
    CommitBlock { sequence: 41, ..CommitBlock::default() }.encode(&mut block).unwrap();
    disk.put((LOG_AT + 1) * u64::from(BLOCK), &block);
    // jbd2 leaves the first block of the area alone.
    for (n, bytes) in (0..).zip(records) {
        disk.put((LOG_AT + u64::from(LOG) - 8 + 1 + n) * u64::from(BLOCK), bytes);
    }
    let device: Arc<dyn Device> = Arc::new(disk);
    let cache = BufferCache::new(device.clone(), &CacheOptions::new(BLOCK)).unwrap();
    let info = JournalInfo::read(&cache, &*map()).unwrap();
    (device, info)
}

fn tlv(tag: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag, 0, value.len() as u8, 0];
    bytes.extend(value);
    bytes
}

fn head(sequence: u8, features: u8) -> Vec<u8> {
    tlv(9, &[features, 0, 0, 0, sequence, 0, 0, 0])
}

fn unlink(name: &[u8]) -> Vec<u8> {
    tlv(5, &[&[2, 0, 0, 0, 12, 0, 0, 0], name].concat())
}

/// The tail of what came before it.
fn tail(before: &[u8], sequence: u8) -> Vec<u8> {
    let mut bytes = [before, &[8, 0, 8, 0, sequence, 0, 0, 0]].concat();
    let sum = uext4_ondisk::checksum::csum(0, &bytes);
    bytes.extend([0, 8, 16, 24].map(|shift| (sum >> shift) as u8));
    bytes
}

/// One block, filled up with padding.
fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    let rest = BLOCK as usize - bytes.len() - 4;
    bytes.extend([7, 0, rest as u8, (rest >> 8) as u8]);
    bytes.resize(BLOCK as usize, 0);
    bytes
}

#[derive(Default)]
struct Names(Vec<String>);

impl FastCommitReplay for Names {
    type Error = Error;

    fn record(&mut self, _: u32, record: &FastCommitRecord<'_>) -> Result<()> {
        let FastCommitRecord::Unlink(name) = record else { panic!("{record:?}") };
        self.0.push(String::from_utf8_lossy(name.name).into_owned());
        Ok(())
    }

    fn committed(&mut self, _: u32) -> Result<()> {
        self.0.push("|".into());
        Ok(())
    }
}

fn found(records: &[Vec<u8>]) -> (FastCommits, Vec<String>) {
    let (device, info) = disk(records);
    let recovery = Recovery::read(&device, &*map(), &info, DATA + 512).unwrap();
    assert_eq!((recovery.report().end, recovery.report().ended), (Tid(42), LogEnd::Complete));
    let mut names = Names::default();
    recovery.replay_fast_commits(&device, &*map(), u32::MAX, &mut names).unwrap();
    (recovery.report().fast_commits.unwrap(), names.0)
}

#[test]
fn complete_fast_commits_are_handed_out_in_order() {
    let first = tail(&[head(42, 0), unlink(b"one"), unlink(b"two")].concat(), 42);
    let pad = 1024 - first.len() - 4;
    // The checksum of the next one begins with the padding of this block.
    let padding =
        [7, 0, pad as u8, (pad >> 8) as u8].iter().copied().chain(vec![0; pad]).collect::<Vec<u8>>();
    let second = tail(&[padding.clone(), unlink(b"three")].concat(), 42)[padding.len()..].to_vec();
    let lost = [second.clone(), unlink(b"lost")].concat();
    let (found, names) = found(&[padded(first), padded(lost)]);
    assert_eq!(found, FastCommits { records: 7, commits: 2, blocks: 2 });
    assert_eq!(names, ["one", "two", "|", "three", "|"]);
}

#[test]
fn what_is_not_a_complete_fast_commit_of_the_next_transaction_is_not() {
    let nothing = (FastCommits::default(), Vec::new());
    let body = |sequence| [head(sequence, 0), unlink(b"x")].concat();
    assert_eq!(found(&[]), nothing);
    assert_eq!(found(&[padded(body(42))]), nothing, "no tail");
    assert_eq!(found(&[padded(tail(&body(41), 41))]), nothing, "an older transaction");
    assert_eq!(found(&[padded(tail(&body(42), 41))]), nothing, "an older tail");
    assert_eq!(found(&[padded(tail(&unlink(b"x"), 42))]), nothing, "no head");
    let mut bad = tail(&body(42), 42);
    *bad.last_mut().unwrap() ^= 1;
    assert_eq!(found(&[padded(bad)]), nothing, "a bad checksum");
    let (device, info) = disk(&[padded(tail(&[head(42, 1), unlink(b"x")].concat(), 42))]);
    let error = Recovery::read(&device, &*map(), &info, DATA + 512).unwrap_err();
    assert!(matches!(&error, Error::Unsupported { feature } if feature.contains("0x1")), "{error}");
}

#[test]
fn a_log_that_cannot_be_read_is_an_error() {
    let (device, info) = disk(&[]);
    let short = RunMap::new(vec![LogRun { log_block: 0, physical: LOG_AT, length: 1 }]).unwrap();
    let error = Recovery::read(&device, &short, &info, DATA + 512).unwrap_err();
    assert_eq!(error, Error::HoleInLog { log_block: 1 });
    let outside = LogRun { log_block: 0, physical: 1 << 50, length: LOG };
    let outside = RunMap::new(vec![outside]).unwrap();
    assert!(matches!(Recovery::read(&device, &outside, &info, DATA + 512), Err(Error::Buffer(_))));
}
