//! Small images that promise a lot: a chain of directories as deep as the image allows, a log of the longest kind on a
//! volume of terabytes that is all hole, a crashed volume of very many groups, and fast commits about files with extent
//! trees that are not theirs alone.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use uext4::device::CountingDevice;
use uext4::device::Device;
use uext4::{DeviceSpec, LogEnd, Volume, VolumeOptions, WalkOptions};
use uext4_hostile::{budget, heap, images};
use uext4_ondisk::checksum::csum;
use uext4_ondisk::ext4::{Extent, ExtentIndex, block_capacity, encode_extent_index, encode_extent_leaf};
use uext4_ondisk::jbd2::{
    BlockHeader, CommitBlock, JournalIncompat, JournalSuperblock, LogFormat, Tag, TagFlags,
};
use uext4_ondisk::{Lblk, Pblk};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};

/// Directories in the chain: what fits into 1 MiB.
const LEVELS: usize = 780;
/// Entries of each that lead to inodes that are not in use.
const BROKEN: usize = 60;

/// A volume of 1 MiB: one directory in another, with names of 200 bytes, and entries that lead nowhere in each.
fn chain() -> Vec<u8> {
    let args = ["-b", "1024", "-N", "900", "-I", "128", "-m", "0"];
    let features = ["-O", "^has_journal,^metadata_csum,^resize_inode,^dir_index,^64bit"];
    let volume = VolumeBuilder::new(1 << 20).args(args).args(features).build();
    let name = "n".repeat(200);
    oracle::debugfs_script(volume.path(), &format!("mkdir {name}\ncd {name}\n").repeat(LEVELS));
    let mut image = std::fs::read(volume.path()).unwrap();
    for block in image.chunks_exact_mut(1024) {
        let is_link = block[4..9] == [12, 0, 1, 2, b'.'] && block[28..32] == [0xE8, 3, 200, 2];
        if is_link && block[32..232] == *name.as_bytes() {
            add_entries(block);
        }
    }
    image
}

/// Puts entries behind the only one of a directory block.
fn add_entries(block: &mut [u8]) {
    let first = 24 + 208;
    block[28..30].copy_from_slice(&208u16.to_le_bytes());
    for n in 0..BROKEN {
        let start = first + n * 12;
        let length = if n + 1 == BROKEN { 1024 - start } else { 12 };
        // The last inode of all, which nobody made.
        block[start..start + 4].copy_from_slice(&880u32.to_le_bytes());
        block[start + 4..start + 6].copy_from_slice(&(length as u16).to_le_bytes());
        block[start + 6..start + 8].copy_from_slice(&[2, 1]);
        block[start + 8..start + 10].copy_from_slice(&[b'a' + (n / 26) as u8, b'a' + (n % 26) as u8]);
    }
}

#[test]
fn errors_in_a_deep_chain_do_not_carry_the_square_of_its_depth() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let image = chain();
    let (mut errors, mut carried, mut deepest) = (0, 0, 0);
    let cost = budget::within(|| {
        let volume = Volume::open_device(images::device(&image), VolumeOptions::read_only()).unwrap();
        let mut walk = volume.walk("/", WalkOptions::new()).unwrap();
        while let Some(told) = walk.advance() {
            match told {
                Ok(entry) => deepest = deepest.max(entry.path.len()),
                Err(error) => {
                    errors += 1;
                    carried += error.path.len() + error.to_string().len();
                    let whole = error.path.len() + error.omitted;
                    assert!(
                        error.omitted == 0 || error.to_string().contains("bytes more, inode 880"),
                        "{whole}"
                    );
                }
            }
        }
        errors
    });
    println!("{errors} errors, {carried} bytes, {deepest} bytes of path: {cost:?}");
    cost.unwrap();
    assert!(errors >= (LEVELS - 2) * BROKEN, "{errors}");
    assert!(deepest > 150_000, "{deepest}");
    assert!(carried <= errors * 3 * 4096, "{carried} bytes in {errors} errors");
}

/// A log as long as mke2fs makes one, on a sparse file.
struct Giant {
    scratch: Scratch,
    block: u64,
    /// Where the blocks of the log are: log block, block of the volume, count.
    runs: Vec<(u64, u64, u64)>,
}

/// Most blocks of a journal that mke2fs makes.
const LOG_BLOCKS: u64 = 10_240_000;
const VOLUME_BLOCKS: u64 = 3 * LOG_BLOCKS;
/// Bytes of descriptor blocks in the log.
const DESCRIPTORS: u64 = 1 << 20;

impl Giant {
    fn new(block: u64) -> Giant {
        let scratch = Scratch::new(1 << 30);
        // The log may take less than half of the volume.
        let path = scratch.sparse_file("giant.img", VOLUME_BLOCKS * block);
        let size = format!("size={}", (LOG_BLOCKS * block) >> 20);
        let block_text = block.to_string();
        let args = ["-b", &block_text, "-J", &size, "-N", "16384", "-m", "0"];
        let builder = VolumeBuilder::new(0).args(args).args(["-O", "^resize_inode,64bit,metadata_csum"]);
        builder
            .extended("lazy_itable_init=1")
            .extended("lazy_journal_init=1")
            .extended("nodiscard")
            .format(&path);
        let listed = oracle::debugfs(&path, "dump_extents -l <8>");
        let runs = listed.lines().filter_map(run).collect();
        Giant { scratch, block, runs }
    }

    fn path(&self) -> std::path::PathBuf {
        self.scratch.file("giant.img")
    }

    fn place(&self, log_block: u64) -> u64 {
        let run = self.runs.iter().find(|run| (run.0..run.0 + run.2).contains(&log_block)).unwrap();
        (run.1 + log_block - run.0) * self.block
    }

    /// Fills the log with one transaction: descriptors full of tags for blocks that nobody uses, whose copies are
    /// holes. Returns how many copies there are.
    fn fill(&self, checksums: bool) -> u64 {
        let file = File::options().read(true).write(true).open(self.path()).unwrap();
        let size = self.block as usize;
        let mut bytes = vec![0; 1024];
        file.read_exact_at(&mut bytes, self.place(0)).unwrap();
        let mut superblock = JournalSuperblock::decode(&bytes).unwrap();
        assert_eq!(u64::from(superblock.blocks), LOG_BLOCKS);
        superblock.features.incompat = JournalIncompat::REVOKE;
        if checksums {
            superblock.features.incompat |= JournalIncompat::CSUM_V3;
            superblock.checksum_type = 4;
        }
        (superblock.start, superblock.sequence) = (1, 7);
        superblock.encode(&mut bytes).unwrap();
        file.write_all_at(&bytes, self.place(0)).unwrap();
        let format = LogFormat::of(&superblock);
        let (zeros, mut log_block, mut copies) = (vec![0; size], 1, 0);
        // The log lies in the middle of the volume.
        let mut home = VOLUME_BLOCKS - 1;
        let checksum = format.tag_checksum(7, &zeros);
        for _ in 0..DESCRIPTORS / self.block {
            let mut descriptor = vec![0; size];
            let mut offset = format.start_descriptor(&mut descriptor, 7).unwrap();
            let place = self.place(log_block);
            log_block += 1;
            let mut flags = TagFlags::empty();
            let tag = |home, flags| Tag { block: home, flags, checksum };
            while let Some(next) =
                format.put_tag(&mut descriptor, offset, &tag(home, flags), &superblock.uuid).unwrap()
            {
                (offset, home, flags) = (next, home - 1, TagFlags::SAME_UUID);
                (log_block, copies) = (log_block + 1, copies + 1);
            }
            format.seal_tail(&mut descriptor).unwrap();
            file.write_all_at(&descriptor, place).unwrap();
        }
        let mut commit = vec![0; size];
        CommitBlock { sequence: 7, seconds: 1, ..CommitBlock::default() }.encode(&mut commit).unwrap();
        format.seal_commit(&mut commit).unwrap();
        assert!(BlockHeader::find(&commit).is_some());
        file.write_all_at(&commit, self.place(log_block)).unwrap();
        set_recover(&file);
        copies
    }
}

/// A line of `dump_extents`: `0/ 1   1/ 40     0 - 32767  1081344 - 1114111  32768`.
fn run(line: &str) -> Option<(u64, u64, u64)> {
    let words: Vec<&str> = line.split([' ', '/', '-']).filter(|word| !word.is_empty()).collect();
    let numbers: Vec<u64> = words.iter().filter_map(|word| word.parse().ok()).collect();
    match numbers[..] {
        [_, _, _, _, logical, _, physical, _, length] => Some((logical, physical, length)),
        _ => None,
    }
}

/// Sets `needs_recovery`.
fn set_recover(file: &File) {
    let mut bytes = vec![0; 1024];
    file.read_exact_at(&mut bytes, 1024).unwrap();
    bytes[0x60] |= 4;
    let sum = csum(!0, &bytes[..0x3fc]);
    bytes[0x3fc..].copy_from_slice(&sum.to_le_bytes());
    file.write_all_at(&bytes, 1024).unwrap();
}

fn open(path: &Path, write: bool) -> Arc<dyn Device> {
    let how = uext4::device::OpenOptions { write, force: false };
    uext4::device::open(&DeviceSpec::parse(&format!("sync:{}", path.display())).unwrap(), how).unwrap().device
}

#[test]
fn the_longest_log_with_a_mebibyte_of_descriptors_stays_in_the_budget() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for (block, checksums) in [(4096, false), (4096, true), (65_536, false), (65_536, true)] {
        let giant = Giant::new(block);
        let copies = giant.fill(checksums);
        let path = giant.path();
        let cost = budget::within(|| {
            let volume = Volume::open_device(open(&path, false), VolumeOptions::read_only()).unwrap();
            let log = volume.info().recovery.log.unwrap();
            assert_eq!((log.transactions, log.ended), (1, LogEnd::Complete));
            log.blocks as usize
        });
        let taken = std::fs::metadata(&path).unwrap().blocks() * 512;
        println!("blocks of {block}, checksums {checksums}: {copies} copies, {taken} bytes in use: {cost:?}");
        let cost = cost.unwrap_or_else(|what| panic!("blocks of {block}, checksums {checksums}: {what}"));
        assert_eq!(cost.found as u64, copies);
    }
}

/// A volume of 16 TiB after a crash: its free counts are made anew from all descriptors, which are read in large steps.
#[test]
fn a_crashed_volume_of_sixteen_tebibytes_is_recovered_quickly() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let scratch = Scratch::new(2 << 30);
    let path = scratch.sparse_file("huge.img", 15 << 40);
    let args = ["-b", "4096", "-N", "2000000", "-m", "0", "-J", "size=16"];
    let builder = VolumeBuilder::new(0).args(args).args(["-O", "^resize_inode,64bit,metadata_csum"]);
    builder
        .extended("lazy_itable_init=1")
        .extended("lazy_journal_init=1")
        .extended("nodiscard")
        .format(&path);
    let data = scratch.file("data");
    std::fs::write(&data, [0x77; 4096]).unwrap();
    let mut script = String::new();
    writeln!(script, "jo -c -v 3\njw -b {} {}\njc", (15u64 << 28) - 5, data.display()).unwrap();
    let requests = scratch.file("script");
    std::fs::write(&requests, script).unwrap();
    oracle::run(oracle::command("debugfs").args(["-w", "-f"]).arg(&requests).arg(&path));
    let counting = Arc::new(CountingDevice::new(open(&path, true)));
    let start = Instant::now();
    let volume = Volume::open_device(counting.clone(), VolumeOptions::read_write()).unwrap();
    let (took, counted) = (start.elapsed(), counting.counts());
    let groups = u64::from(volume.info().groups);
    println!("{groups} groups: {took:?}, {counted:?}");
    assert_eq!(volume.info().recovery.log.unwrap().blocks, 1);
    // Three times over all descriptors: the view that decides, the counts, the volume itself.
    assert!(counted.reads <= 3 * (groups * 64 / (256 << 10) + 1) + 40, "{counted:?}");
}

/// A volume without checksums, with one extent tree that all of its files have, and a fast commit about each file.
struct SharedTree {
    bytes: u64,
    block: u64,
    files: u32,
    leaves: u64,
    /// Where the extents begin: the number of the leaf and the entry in it, counted through.
    place: fn(u64) -> u64,
    length: u32,
    /// The logical blocks that the records unmap: the first, and how many.
    unmap: [u32; 2],
}

/// The first inode that mke2fs gives a file.
const FIRST_FILE: u64 = 12;

impl SharedTree {
    fn build(&self, path: &Path) {
        let source = Scratch::new(1 << 20);
        for n in 0..self.files {
            std::fs::write(source.file(format!("{n}")), []).unwrap();
        }
        let (block, journal) = (self.block.to_string(), format!("size={}", 2 * self.block / 1024));
        let features = "^metadata_csum,^resize_inode,^orphan_file";
        let inodes = (self.bytes / self.block).div_ceil(8 * self.block) * 256;
        let inodes = inodes.min(1 << 20).to_string();
        VolumeBuilder::new(0)
            .args(["-b", &block, "-J", &journal, "-N", &inodes, "-m", "0", "-O", features])
            .extended("lazy_itable_init=1")
            .extended("lazy_journal_init=1")
            .extended("nodiscard")
            .from_dir(source.path())
            .format(path);
        let file = File::options().read(true).write(true).open(path).unwrap();
        let root = self.put_tree(&file);
        let mut head = vec![0; 1024];
        file.read_exact_at(&mut head, 1024).unwrap();
        let size = u64::from(u16::from_le_bytes([head[0x58], head[0x59]]));
        let mut descriptor = [0; 32];
        file.read_exact_at(&mut descriptor, if self.block == 1024 { 2048 } else { self.block }).unwrap();
        let table = u64::from(u32::from_le_bytes(descriptor[8..12].try_into().unwrap()));
        for ino in FIRST_FILE..FIRST_FILE + u64::from(self.files) {
            let place = table * self.block + (ino - 1) * size;
            let mut mode = [0; 2];
            file.read_exact_at(&mut mode, place).unwrap();
            assert_eq!(mode[1] >> 4, 8, "inode {ino} is a file");
            file.write_all_at(&root, place + 0x28).unwrap();
        }
        self.put_records(&file, path);
        set_recover(&file);
    }

    /// Writes the nodes behind everything else, and returns the root.
    fn put_tree(&self, file: &File) -> [u8; 60] {
        let capacity = u64::from(block_capacity(self.block as u32));
        let mut next = self.bytes / self.block - self.leaves - 32;
        let mut put = |bytes: &[u8]| {
            file.write_all_at(bytes, next * self.block).unwrap();
            next += 1;
            Pblk(next - 1)
        };
        let mut level = Vec::new();
        for leaf in 0..self.leaves {
            let numbers = leaf * capacity..(leaf + 1) * capacity;
            let extents: Vec<_> = numbers
                .map(|n| Extent {
                    logical: Lblk(n as u32 * self.length),
                    length: self.length,
                    physical: Pblk((self.place)(n)),
                    unwritten: false,
                })
                .collect();
            let mut bytes = vec![0; self.block as usize];
            encode_extent_leaf(&mut bytes, 0, &extents).unwrap();
            level.push(ExtentIndex { logical: extents[0].logical, child: put(&bytes) });
        }
        let mut depth = 1;
        while level.len() > 4 {
            let above = level.chunks((capacity as usize).min(level.len().div_ceil(4))).map(|part| {
                let mut bytes = vec![0; self.block as usize];
                encode_extent_index(&mut bytes, depth, 0, part).unwrap();
                ExtentIndex { logical: part[0].logical, child: put(&bytes) }
            });
            level = above.collect();
            depth += 1;
        }
        let mut root = [0; 60];
        encode_extent_index(&mut root, depth, 0, &level).unwrap();
        root
    }

    /// Writes fast commits of one block each into a journal that is otherwise empty.
    fn put_records(&self, file: &File, path: &Path) {
        let listed = oracle::debugfs(path, "dump_extents -l <8>");
        let runs: Vec<_> = listed.lines().filter_map(run).collect();
        let place = |log_block: u64| {
            let run = runs.iter().find(|run| (run.0..run.0 + run.2).contains(&log_block)).unwrap();
            (run.1 + log_block - run.0) * self.block
        };
        let mut bytes = vec![0; 1024];
        file.read_exact_at(&mut bytes, place(0)).unwrap();
        let mut superblock = JournalSuperblock::decode(&bytes).unwrap();
        superblock.features.incompat = JournalIncompat::REVOKE | JournalIncompat::FAST_COMMIT;
        (superblock.start, superblock.sequence, superblock.fast_commit_blocks_raw) = (1, 7, 64);
        superblock.encode(&mut bytes).unwrap();
        file.write_all_at(&bytes, place(0)).unwrap();
        let first = u64::from(superblock.log_end()) + 1;
        let words = |tag: u16, words: &[u32]| {
            let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            [&tag.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), &value].concat()
        };
        let files: Vec<u32> = (FIRST_FILE as u32..).take(self.files as usize).collect();
        for (log_block, part) in (first..).zip(files.chunks(40)) {
            let mut bytes = if log_block == first { words(9, &[0, 7]) } else { Vec::new() };
            for ino in part {
                bytes.extend(words(2, &[*ino, self.unmap[0], self.unmap[1]]));
            }
            // The tail takes the rest of the block.
            let rest = self.block as usize - bytes.len() - 4;
            bytes.extend([8, 0, rest as u8, (rest >> 8) as u8, 7, 0, 0, 0]);
            bytes.extend(csum(0, &bytes).to_le_bytes());
            file.write_all_at(&bytes, place(log_block)).unwrap();
        }
    }
}

/// Fast commits whose replay would take hundreds of megabytes, most of them for the same nodes again and again.
#[test]
fn fast_commits_of_files_that_share_an_extent_tree_stay_in_the_budget() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let all = [0, u32::MAX];
    let cases = [
        // More extents than the volume has blocks.
        (
            "map more blocks than the volume has",
            SharedTree {
                bytes: 8 << 20,
                block: 1024,
                files: 128,
                leaves: 4 * 84,
                place: |_| 7000,
                length: 1,
                unmap: all,
            },
        ),
        // Not so here: a mebibyte of nodes on a larger volume.
        (
            "of its map or directory is also inode 12's",
            SharedTree {
                bytes: 1 << 30,
                block: 4096,
                files: 128,
                leaves: 256,
                place: |_| 200_000,
                length: 1,
                unmap: all,
            },
        ),
        // The second half of nearly every group, none of it marked used: a bitmap of each would change.
        (
            "KiB of metadata",
            SharedTree {
                bytes: 4 << 40,
                block: 4096,
                files: 1,
                leaves: 40,
                place: |n| n * 32768 + 16384,
                length: 16384,
                unmap: [u32::MAX - 2, 1],
            },
        ),
    ];
    for (text, case) in cases {
        let scratch = Scratch::new(2 << 30);
        let path = scratch.sparse_file("shared.img", case.bytes);
        case.build(&path);
        let mut refused = None;
        let cost = budget::within(|| {
            let volume = Volume::open_device(open(&path, false), VolumeOptions::read_only()).unwrap();
            refused = volume.info().recovery.fast_commits_refused;
            1
        });
        println!("{text}: {cost:?}, {refused:?}");
        cost.unwrap_or_else(|what| panic!("{text}: {what}"));
        assert!(refused.as_ref().is_some_and(|why| why.contains(text)), "{refused:?} instead of {text}");
    }
}

/// A sound file of a million extents takes more than that, but no more than is reckoned with.
#[test]
fn fast_commits_of_a_file_of_a_million_extents_are_replayed() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    // Every other block of the second halves of groups, which hold no metadata.
    let place = |n: u64| ((17 + (n >> 13)) << 15) + 16384 + 2 * (n & 8191);
    let (bytes, block, unmap) = (1 << 40, 4096, [77, 1]);
    let case = SharedTree { bytes, block, files: 1, leaves: 3000, place, length: 1, unmap };
    let scratch = Scratch::new(2 << 30);
    let path = scratch.sparse_file("large.img", case.bytes);
    case.build(&path);
    heap::start();
    let before = heap::now();
    let volume = Volume::open_device(open(&path, false), VolumeOptions::read_only()).unwrap();
    let taken = heap::peak() - before;
    let recovery = volume.info().recovery;
    println!("{taken} bytes of heap");
    assert_eq!(recovery.fast_commits_refused, None);
    assert_eq!(recovery.fast_commits().unwrap().commits, 1);
    assert!(taken < 128 << 20, "{taken}");
}
