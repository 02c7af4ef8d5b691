//! What `mkfs` makes, held against mke2fs under the same options: byte for byte, apart from what is listed in
//! `docs/guide/mkfs.md`.

use crate::common;

use common::making::{MIB, both, dump, equal, open, options, without_freedom};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Instant;
use uext4::device::{self, Device, WriteDurability};
use uext4::device::{MemoryDevice, MemoryOptions};
use uext4::mkfs::{Defaults, Error, Made, Options, format};
use uext4::{Volume, VolumeOptions};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs, oracle, with_kernel};

#[test]
fn sizes_are_those_of_mke2fs() {
    let mib =
        [1, 2, 3, 8, 17, 32, 33, 64, 100, 137, 260, 400, 511, 512, 700, 1024, 2048, 3072, 20_480, 65_536];
    let rows: Vec<_> = mib.into_iter().map(|mib| (mib * MIB, "", "")).collect();
    equal(&rows, Defaults::Upstream);
    equal(
        &[(5000 << 10, "", ""), ((100 << 20) + 512, "", ""), (64 * MIB + 13_312, "-b 4096", "")],
        Defaults::Upstream,
    );
    equal(&[(2 * MIB, "", ""), (64 * MIB, "", ""), (3072 * MIB, "", "")], Defaults::Debian12);
}

#[test]
fn block_sizes_inodes_and_numbers_are_those_of_mke2fs() {
    equal(
        &[
            (64 * MIB, "-b 2048", ""),
            (64 * MIB, "-b 4096", ""),
            (64 * MIB, "-b 65536", ""),
            (2048 * MIB, "-b 65536", ""),
            (1024 * MIB, "-b 1024", ""),
            (64 * MIB, "-I 128", ""),
            (64 * MIB, "-I 1024", ""),
            (64 * MIB, "-N 500", ""),
            (64 * MIB, "-N 100000", ""),
            (64 * MIB, "-N 100000 -m 1.7", ""),
            (64 * MIB, "-i 65536", ""),
            (64 * MIB, "-m 0 -L hello", ""),
            (1024 * MIB, "-J size=400", ""),
        ],
        Defaults::Upstream,
    );
}

#[test]
fn features_are_those_of_mke2fs() {
    equal(
        &[
            (64 * MIB, "-O bigalloc", ""),
            (66 * MIB, "-O bigalloc", ""),
            (66 * MIB + 57_344, "-b 4096 -O bigalloc -m 33.3", ""),
            (1024 * MIB, "-O bigalloc -C 32768", ""),
            (64 * MIB, "-b 4096 -O ^extents,^64bit", ""),
            (100 * MIB, "-O ^extents,^64bit", ""),
            (512 * MIB, "-b 1024 -O ^extents,^64bit -J size=80", ""),
            (64 * MIB, "-O inline_data,casefold,ea_inode,large_dir", ""),
            (64 * MIB, "-b 4096 -O inline_data", ""),
            (64 * MIB, "-O sparse_super2", ""),
            (64 * MIB, "-O meta_bg,^resize_inode", ""),
            (2048 * MIB, "-b 1024 -O meta_bg,^resize_inode", ""),
            (64 * MIB, "-O ^flex_bg", ""),
            (1024 * MIB, "-O ^flex_bg", ""),
            (64 * MIB, "-O ^metadata_csum", ""),
            (64 * MIB, "-O ^metadata_csum,uninit_bg", ""),
            (64 * MIB, "-O ^has_journal", ""),
            (64 * MIB, "-O ^sparse_super,^resize_inode", ""),
            (64 * MIB, "-O ^64bit", ""),
            (64 * MIB, "-O ^orphan_file,^metadata_csum_seed", ""),
            (
                64 * MIB,
                "-O ^extra_isize,^dir_nlink,^large_file,^huge_file,^filetype,^dir_index,^ext_attr",
                "",
            ),
            (64 * MIB, "-b 4096 -O ^large_file", ""),
            (64 * MIB, "-O none", ""),
            (64 * MIB, "-O verity,stable_inodes", ""),
        ],
        Defaults::Upstream,
    );
}

#[test]
fn extended_options_are_those_of_mke2fs() {
    equal(
        &[
            (64 * MIB, "", "stride=4,stripe_width=16"),
            (64 * MIB, "-O ^flex_bg", "stride=4,stripe_width=16"),
            (512 * MIB, "", "packed_meta_blocks=1"),
            (100 * MIB, "-b 1024", "packed_meta_blocks=1"),
            (512 * MIB, "", "resize=100G"),
            (64 * MIB, "", "root_owner=1000:1000,test_fs"),
            (64 * MIB, "-O sparse_super2", "num_backup_sb=0"),
            (64 * MIB, "-O sparse_super2", "num_backup_sb=1"),
            (64 * MIB, "-O casefold", "encoding=utf8,encoding_flags=strict"),
            (64 * MIB, "", "encoding=utf8"),
            (64 * MIB, "", "orphan_file_size=512K"),
            (64 * MIB, "-b 4096", "orphan_file_size=4K"),
            (64 * MIB, "", "lazy_itable_init=0"),
            (64 * MIB, "-b 4096", "orphan_file_size=1M"),
        ],
        Defaults::Upstream,
    );
}

/// Not byte for byte: the block of multi-mount protection names a node and a time, and the unused entries of a map's
/// root keep what was there when the tree grew.
#[test]
fn what_may_differ_differs_there_only() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    for row in [(64 * MIB, "-b 4096 -O mmp,^resize_inode", ""), (1 << 40, "", "")] {
        let scratch = Scratch::new(2 << 30);
        let (theirs, ours) = both(&scratch, &row, Defaults::Upstream);
        assert_eq!(dump(&theirs), dump(&ours));
        e2fsck_clean(&ours);
    }
}

/// Descriptors of 1 KiB blocks would fill their groups: the volume gets `meta_bg`, as from mke2fs.
#[test]
fn descriptors_that_fill_a_group_are_spread() {
    needs!(Need::Tool("mke2fs"), Need::Tool("dumpe2fs"));
    let scratch = Scratch::new(2 << 30);
    let row = (2 << 40, "-b 1024 -i 1048576", "");
    let (theirs, ours) = both(&scratch, &row, Defaults::Upstream);
    let [theirs, ours] = [&theirs, &ours].map(|path| {
        let text = oracle::dumpe2fs(path, &["-h"]);
        let kept = |line: &&str| !line.starts_with("Lifetime writes") && !line.starts_with("Checksum:");
        text.lines().filter(kept).map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(theirs, ours);
    assert!(ours.iter().any(|line| line.contains("meta_bg")));
}

/// Linux refuses to mount a volume with an orphan file of more than 512 blocks.
#[test]
fn root_orphan_files_are_as_large_as_the_kernel_allows() {
    needs!(Need::Loop, Need::Tool("e2fsck"));
    for (words, size, most) in
        [("", "512K", 512 << 10), ("-b 4096", "2M", 2 << 20), ("-b 4096 -O bigalloc -C 4194304", "", 2 << 20)]
    {
        let scratch = Scratch::new(1 << 30);
        let path = scratch.sparse_file("image", 256 * MIB);
        let extended = if size.is_empty() { String::new() } else { format!("orphan_file_size={size}") };
        format(&*open(&path), &options(words, &extended, Defaults::Upstream)).unwrap();
        e2fsck_clean(&path);
        let stat = oracle::debugfs(&path, "stat <12>");
        assert!(stat.contains(&format!("Size: {most}")), "{stat}");
        with_kernel(&path, "", |root| std::fs::write(root.join("file"), "here").unwrap());
        let error = format(
            &*open(&path),
            &options(words, &format!("orphan_file_size={}K", (most >> 10) + 4), Defaults::Upstream),
        );
        assert!(matches!(&error, Err(Error::Option(text)) if text.contains("512")), "{error:?}");
    }
}

#[test]
fn a_terabyte_takes_little() {
    let scratch = Scratch::new(1 << 30);
    let path = scratch.sparse_file("image", 1 << 40);
    let device = open(&path);
    let started = Instant::now();
    format(&*device, &Options::default()).unwrap();
    let taken = started.elapsed();
    let allocated = std::fs::metadata(&path).unwrap().blocks() * 512;
    println!("{taken:?}, {allocated} bytes");
    assert!(allocated < 64 * MIB && taken.as_secs() < 20, "{taken:?}, {allocated} bytes");
}

/// Old contents everywhere: what must read as zeros is written.
#[test]
fn nothing_of_what_was_there_is_left() {
    needs!(Need::Tool("e2fsck"), Need::Tool("mke2fs"));
    for words in ["", "-O ^metadata_csum", "-b 4096 -O bigalloc", "-O ^extents,^64bit"] {
        let scratch = Scratch::new(256 << 20);
        let row = (48 * MIB, words, "lazy_itable_init=0");
        let path = scratch.file("old");
        std::fs::write(&path, vec![0xA7; 48 << 20]).unwrap();
        format(&*open(&path), &options(words, row.2, Defaults::Upstream)).unwrap();
        e2fsck_clean(&path);
        // Like that of mke2fs on zeros, but for data blocks that nobody has.
        let (theirs, _) = both(&scratch, &row, Defaults::Upstream);
        let (theirs, ours) = (std::fs::read(theirs).unwrap(), std::fs::read(&path).unwrap());
        for (number, (left, right)) in theirs.chunks(1024).zip(ours.chunks(1024)).enumerate() {
            let (mut left, mut right) = (left.to_vec(), right.to_vec());
            without_freedom(&mut left);
            without_freedom(&mut right);
            assert!(left == right || right.iter().all(|&byte| byte == 0xA7), "{words}: KiB {number}");
        }
        let volume = Volume::open(path.as_path(), VolumeOptions::read_only()).unwrap();
        assert_eq!(volume.recovery().journal_errno, 0);
    }
}

fn memory(size: u64) -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(MemoryOptions::new(size)).unwrap())
}

fn write(device: &dyn Device, pos: u64, bytes: &[u8]) {
    let mut buffer = device::BufferPool::new(bytes.len()).unwrap().take(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    device.write_at(&buffer, pos, WriteDurability::Cached).unwrap();
}

fn made(device: &dyn Device, words: &str) -> Result<Made, Error> {
    format(device, &options(words, "", Defaults::Upstream))
}

#[test]
fn what_holds_something_is_refused() {
    let device = memory(8 * MIB);
    made(&*device, "-L precious").unwrap();
    let error = made(&*device, "").unwrap_err();
    assert!(matches!(&error, Error::Occupied(what) if what.contains("`precious`")), "{error}");
    assert_eq!(error.errno(), libc::EEXIST);
    assert_eq!(Volume::read_superblock(&*device).unwrap().label(), b"precious");
    let mut forced = options("-L new", "", Defaults::Upstream);
    forced.force = true;
    format(&*device, &forced).unwrap();
    assert_eq!(Volume::read_superblock(&*device).unwrap().label(), b"new");

    let xfs = memory(8 * MIB);
    write(&*xfs, 0, &[&b"XFSB"[..], &[0; 508]].concat());
    let error = made(&*xfs, "").unwrap_err();
    assert!(matches!(&error, Error::Occupied(what) if what.contains("XFS")), "{error}");
}

#[test]
fn what_another_node_uses_is_refused_even_if_forced() {
    let device = memory(8 * MIB);
    made(&*device, "-O mmp").unwrap();
    let superblock = Volume::read_superblock(&*device).unwrap();
    let mut mmp = Volume::read_mmp(&*device, &superblock).unwrap().unwrap();
    mmp.sequence = 77;
    let mut block = vec![0; superblock.geometry.block_size() as usize];
    mmp.encode(&mut block, &superblock).unwrap();
    write(&*device, superblock.mmp.block.get() * block.len() as u64, &block);
    let mut forced = options("", "", Defaults::Upstream);
    forced.force = true;
    let error = format(&*device, &forced).unwrap_err();
    assert!(matches!(error, Error::Device(uext4::Error::InUse(_))), "{error}");
}

#[test]
fn impossible_sizes_are_refused_and_nothing_is_written() {
    for (size, words) in [
        (16 << 10, ""),
        (8 * MIB, "-N 1000000"),
        (8 * MIB, "-J size=7"),
        (8 * MIB, "-O resize_inode,meta_bg"),
        (8 * MIB, "-O bigalloc,^extents,^64bit"),
        (8 * MIB, "-b 512"),
        (8 * MIB, "-I 128 -O inline_data"),
        (8 * MIB, "-C 65536"),
        (8 * MIB, "-L a-label-of-17-byte"),
        (8 * MIB, "-m 60"),
        (8 * MIB, "-O ^casefold -E encoding_flags=strict"),
    ] {
        let fault = FaultDevice::new(memory(size));
        let handle = fault.handle();
        handle.arm(Fault { times: u64::MAX, ..Fault::nth(FaultOn::Changes, 1) });
        let error = made(&fault, words).unwrap_err();
        assert!(!matches!(error, Error::Failed(_) | Error::Device(_)), "{words}: {error}");
        assert_eq!(handle.fired(), 0, "{words}");
    }
    let mut large = options("", "", Defaults::Upstream);
    large.size = Some(16 * MIB);
    assert!(matches!(format(&*memory(8 * MIB), &large), Err(Error::TooSmall { .. })));
}

/// Whichever write or flush fails, the error is typed and nothing on the device is taken for the new volume.
#[test]
fn a_failing_device_holds_no_new_volume() {
    let mut forced = options("-L new", "", Defaults::Upstream);
    forced.force = true;
    let mut failures = 0;
    for n in 1.. {
        let device = memory(2 * MIB);
        made(&*device, "-L old").unwrap();
        let fault = FaultDevice::new(device.clone());
        let handle = fault.handle();
        handle.arm(Fault::nth(FaultOn::Changes, n));
        let done = format(&fault, &forced);
        if handle.fired() == 0 {
            done.unwrap();
            break;
        }
        failures += 1;
        assert!(matches!(done, Err(Error::Failed(_))), "{n}: {done:?}");
        match Volume::read_superblock(&*device) {
            Ok(superblock) => panic!("{n}: {:?}", superblock.label()),
            Err(error) => assert!(matches!(error, uext4::Error::Corrupt(_)), "{n}: {error}"),
        }
    }
    println!("{failures} failures");
    assert!(failures > 10, "{failures}");
}

#[test]
fn root_the_kernel_mounts_what_was_made() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for row in [
        (64 * MIB, "", ""),
        (600 * MIB, "", ""),
        (64 * MIB, "-b 4096 -O bigalloc", ""),
        (64 * MIB, "-O ^extents,^64bit", ""),
        (64 * MIB, "-O inline_data,ea_inode,large_dir", ""),
        (64 * MIB, "-O ^metadata_csum", ""),
        (64 * MIB, "-O meta_bg,^resize_inode", ""),
        (64 * MIB, "-O ^has_journal", ""),
    ] {
        let scratch = Scratch::new(1 << 30);
        let path = scratch.sparse_file("image", row.0);
        println!("{row:?}");
        made(&*open(&path), row.1).unwrap();
        with_kernel(&path, "", |root| {
            for number in 0..200 {
                std::fs::write(root.join(format!("file-{number}")), vec![number as u8; 5000]).unwrap();
            }
        });
        let volume = Volume::open(path.as_path(), VolumeOptions::read_only()).unwrap();
        assert_eq!(volume.read("/file-7").unwrap(), vec![7; 5000]);
    }
}
