//! Volumes filled by the kernel: everything in them reads the same here, and overwrites made here read the same there.

use crate::common;

use common::tree::{How, manifest, without_xattrs};
use common::{patterned, read_only, read_write};
use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use uext4::{QueueOptions, State, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::fixture::{TreeOptions, standard_tree_with};
use uext4_testkit::guard::{LoopDevice, LoopOptions};
use uext4_testkit::manifest::{assert_same, file_digest};
use uext4_testkit::oracle::{debugfs_write, e2fsck_clean, superblock_field};
use uext4_testkit::{Manifest, Need, Rng, Scratch, VolumeBuilder, Zram, needs, with_kernel};

fn open(device: &Path, options: VolumeOptions) -> Volume {
    Volume::open(device.to_str().unwrap(), options).unwrap()
}

/// Fills a volume made with `args` by the kernel and compares everything.
fn compare(args: &[&str], hows: &[How]) {
    println!("mke2fs {}", args.join(" "));
    let volume = VolumeBuilder::new(256 << 20).args(args.iter().copied()).build();
    let inode_size: u32 = superblock_field(volume.path(), "Inode size").parse().unwrap();
    let expected = volume.with_kernel(|root| {
        let tree = TreeOptions { big_dir: 1500, ..TreeOptions::new(11) };
        standard_tree_with(root, tree);
        uext4_testkit::manifest(root)
    });
    let mut expected = without_xattrs(expected);
    if inode_size == 128 {
        // The kernel still has unrounded times in memory: on disk they have 32-bit seconds.
        expected = without_xattrs(volume.kernel_manifest());
    }
    let opened = open(volume.path(), VolumeOptions::read_only());
    for &how in hows {
        assert_same(&expected, &manifest(&opened, how));
    }
    compare_stat(&volume, &opened, &expected);
}

/// Compares what the manifest leaves out: blocks, access, change and creation times, inode numbers.
fn compare_stat(volume: &uext4_testkit::Volume, opened: &Volume, tree: &Manifest) {
    let options = LoopOptions { read_only: true, ..LoopOptions::default() };
    let mounted = uext4_testkit::KernelMount::image(volume.path(), options, "ro,noatime");
    for path in tree.keys().map(|path| Path::new(std::str::from_utf8(path).unwrap_or("/"))) {
        let there = std::fs::symlink_metadata(mounted.path().join(path.strip_prefix("/").unwrap())).unwrap();
        let here = opened.symlink_metadata(path).unwrap();
        let name = path.display();
        assert_eq!(u64::from(here.ino.get()), there.ino(), "{name}");
        assert_eq!(here.blocks, there.blocks(), "{name}");
        let times = [
            (here.accessed, there.atime(), there.atime_nsec()),
            (here.changed, there.ctime(), there.ctime_nsec()),
        ];
        for (found, seconds, nanoseconds) in times {
            assert_eq!((found.seconds, i64::from(found.nanoseconds)), (seconds, nanoseconds), "{name}");
        }
        if let (Some(born), Ok(time)) = (here.created, there.created()) {
            let there = time.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
            assert_eq!(born.nanoseconds_since_epoch(), there as i128, "{name}");
        }
        // The path walk reaches the inode that the listing names.
        if here.kind == uext4::FileKind::Symlink {
            let target = opened.metadata(path).map(|meta| u64::from(meta.ino.get())).map_err(|e| e.errno());
            let kernel = std::fs::metadata(mounted.path().join(path.strip_prefix("/").unwrap()));
            let kernel = kernel.map(|meta| meta.ino()).map_err(|error| error.raw_os_error().unwrap());
            assert_eq!(target, kernel, "{name}");
        }
    }
    mounted.unmount();
}

#[test]
fn root_block_sizes_read_the_same_in_every_way() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    for block in ["1024", "2048", "4096"] {
        compare(&["-b", block], &[How::Direct, How::AnyByte, How::Queue]);
    }
}

#[test]
fn root_older_formats_read_the_same() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    compare(&["-O", "^metadata_csum"], &[How::Direct]);
    compare(&["-O", "^metadata_csum,uninit_bg", "-b", "1024"], &[How::Direct]);
    compare(&["-O", "^64bit,^metadata_csum,^flex_bg"], &[How::Direct]);
    compare(&["-O", "^64bit"], &[How::Direct]);
    compare(&["-O", "^dir_index,^filetype", "-b", "2048"], &[How::Direct]);
    compare(&["-O", "^has_journal"], &[How::Queue]);
    compare(&["-I", "128", "-O", "^extra_isize"], &[How::Direct]);
}

#[test]
fn root_newer_formats_read_the_same() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    compare(&["-O", "meta_bg,^resize_inode", "-b", "1024"], &[How::Direct]);
    compare(&["-O", "sparse_super2,^resize_inode"], &[How::Direct]);
    compare(&["-O", "large_dir,ea_inode,metadata_csum_seed"], &[How::Direct]);
    compare(&["-I", "512", "-O", "mmp,orphan_file,fast_commit"], &[How::Queue]);
    compare(&["-O", "bigalloc", "-C", "65536"], &[How::AnyByte]);
    compare(
        &["-O", "extra_isize,large_file,huge_file,dir_nlink,^sparse_super,^resize_inode"],
        &[How::Direct],
    );
}

#[test]
fn root_a_deep_extent_tree_reads_the_same() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    for block in ["1024", "4096"] {
        let volume = VolumeBuilder::new(256 << 20).args(["-b", block]).build();
        let expected = volume.with_kernel(|root| {
            let tree = TreeOptions { big_dir: 10, extents: 12_000, ..TreeOptions::new(5) };
            standard_tree_with(root, tree);
            uext4_testkit::manifest(root)
        });
        let dump = uext4_testkit::debugfs(volume.path(), "dump_extents -n /fragmented/holes");
        assert!(dump.contains(" 0/ 2 "), "{}", &dump[..dump.len().min(300)]);
        // The smallest budgets: maps and metadata are evicted and loaded again all the time.
        let options = VolumeOptions::read_only().map_budget(1).metadata_budget(256 << 10);
        let opened = open(volume.path(), options);
        let found = manifest(&opened, How::Direct);
        assert_same(&without_xattrs(expected), &found);
        let file = opened.open_file("/fragmented/holes", read_only()).unwrap();
        let written = file.map().filter(|piece| piece.as_ref().unwrap().state == State::Written).count();
        assert_eq!(written, 12_000);
    }
}

/// A directory with more subdirectories than a link count can hold has one link (`dir_nlink`), and a file may count
/// blocks instead of sectors (`huge_file`).
#[test]
fn root_counts_that_do_not_fit_their_fields_read_the_same() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(192 << 20).args(["-N", "70000", "-b", "1024"]).build();
    volume.with_kernel(|root| {
        std::fs::write(root.join("huge"), vec![7; 100_000]).unwrap();
        std::fs::create_dir(root.join("many")).unwrap();
        (0..65_100).for_each(|n| std::fs::create_dir(root.join(format!("many/{n}"))).unwrap());
    });
    // The kernel does so from 2 TiB on; 98 blocks of 1 KiB.
    debugfs_write(volume.path(), "set_inode_field /huge flags 0xC0000");
    debugfs_write(volume.path(), "set_inode_field /huge blocks 98");
    e2fsck_clean(volume.path());
    let opened = open(volume.path(), VolumeOptions::read_only());
    let options = LoopOptions { read_only: true, ..LoopOptions::default() };
    let mounted = uext4_testkit::KernelMount::image(volume.path(), options, "ro,noatime");
    for (name, links, sectors) in [("huge", 1, Some(196)), ("many", 1, None), ("many/65099", 2, Some(2))] {
        let (here, there) = (opened.metadata(name).unwrap(), mounted.path().join(name).metadata().unwrap());
        assert_eq!((u64::from(here.links), here.blocks), (there.nlink(), there.blocks()), "{name}");
        assert_eq!(here.links, links, "{name}");
        assert!(sectors.is_none_or(|sectors| here.blocks == sectors), "{name}: {}", here.blocks);
    }
}

/// An external journal: the kernel's volume is readable while that journal is empty, and refused otherwise.
#[test]
fn root_a_journal_on_a_device_of_its_own_is_read_past_while_clean() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let journal = LoopDevice::attach(&scratch.sparse_file("journal", 16 << 20), LoopOptions::default());
    let on_it = journal.path().to_str().unwrap();
    let mut mke2fs = uext4_testkit::oracle::command("mke2fs");
    mke2fs.args(["-q", "-F", "-b", "4096", "-O", "journal_dev", on_it]);
    assert!(mke2fs.status().unwrap().success());
    let volume = VolumeBuilder::new(32 << 20).args(["-b", "4096", "-J", &format!("device={on_it}")]).build();
    // The kernel finds the journal by the device number in the superblock.
    let mounted = uext4_testkit::KernelMount::image(volume.path(), LoopOptions::default(), "");
    std::fs::write(mounted.path().join("file"), "kept elsewhere").unwrap();
    std::fs::File::open(mounted.path().join("file")).unwrap().sync_all().unwrap();
    let crashed = scratch.file("crashed");
    std::fs::copy(volume.path(), &crashed).unwrap();
    let refused = |path: &Path, options| {
        let error = Volume::open(path.to_str().unwrap(), options).map(drop).unwrap_err().to_string();
        assert!(error.contains("external journal"), "{error}");
    };
    refused(&crashed, VolumeOptions::read_only());
    let expected = without_xattrs(uext4_testkit::manifest(mounted.path()));
    mounted.unmount();
    let opened = open(volume.path(), VolumeOptions::read_only());
    assert_same(&without_xattrs(expected), &manifest(&opened, How::Direct));
    drop(opened);
    refused(volume.path(), VolumeOptions::read_write());
}

#[test]
fn root_a_hundred_thousand_names_are_found_and_absent_ones_are_not() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(192 << 20).args(["-N", "120000", "-b", "1024"]).build();
    let name = |n: u32| format!("entry {n:06} {}", "y".repeat(n as usize % 23));
    let expected: BTreeMap<Vec<u8>, u64> = volume.with_kernel(|root| {
        let dir = root.join("dir");
        std::fs::create_dir(&dir).unwrap();
        // Hard links: as many names as one inode may have, then the next inode.
        let mut inode = 0;
        for n in 0..100_000 {
            let path = dir.join(name(n));
            if n % 60_000 == 0 {
                std::fs::write(&path, "").unwrap();
                inode = n;
            } else {
                std::fs::hard_link(dir.join(name(inode)), &path).unwrap();
            }
        }
        let entries = std::fs::read_dir(&dir).unwrap().map(|entry| {
            use std::os::unix::ffi::OsStringExt;
            use std::os::unix::fs::DirEntryExt;
            let entry = entry.unwrap();
            (entry.file_name().into_vec(), entry.ino())
        });
        entries.collect()
    });
    let tree = uext4_testkit::debugfs(volume.path(), "htree_dump /dir");
    assert!(
        tree.contains("Indirect levels: 1") || tree.contains("Indirect levels: 2"),
        "more than one level"
    );
    let opened = open(volume.path(), VolumeOptions::read_only());
    let listed: Vec<_> = opened.read_dir("/dir").unwrap().map(Result::unwrap).collect();
    assert_eq!(listed.len(), 100_002);
    let listed: BTreeMap<Vec<u8>, u64> = listed
        .into_iter()
        .filter(|entry| entry.name != b"." && entry.name != b"..")
        .map(|entry| (entry.name, u64::from(entry.ino.get())))
        .collect();
    assert_eq!(listed, expected);
    let mut rng = Rng::new(9);
    for _ in 0..2000 {
        let name = name(rng.below(100_000) as u32);
        let found = opened.resolve(format!("/dir/{name}"), false).unwrap();
        assert_eq!(u64::from(found.get()), expected[name.as_bytes()]);
        let absent = opened.resolve(format!("/dir/{name}z"), false).unwrap_err();
        assert_eq!(absent.errno(), 2);
    }
}

/// Overwrites on `device`, checked by the kernel and e2fsck.
fn overwrite_and_judge(device: &Path, fsck: &Path) {
    let opened = open(device, VolumeOptions::read_write());
    let mut rng = Rng::new(21);
    let mut expected: BTreeMap<&str, Vec<u8>> = BTreeMap::new();
    for name in ["/sizes/3000001", "/sizes/262145", "/fragmented/unwritten"] {
        let file = opened.open_file(name, read_write()).unwrap();
        let mut bytes = common::read_all(&file);
        let unit = u64::from(opened.device().geometry().logical_block);
        let mut queue = opened.queue(QueueOptions::depth(8)).unwrap();
        let slot = queue.attach(&file).unwrap();
        let written: Vec<_> = file.map().map(Result::unwrap).filter(|p| p.state == State::Written).collect();
        for round in 0..60u64 {
            let piece = rng.pick(&written);
            let end = piece.end().min(file.size());
            let pos = piece.logical + rng.below((end - piece.logical).div_ceil(unit)) * unit;
            let most = (end - pos).min(100_000);
            let flags = *rng.pick(&[WriteFlags::empty(), WriteFlags::DSYNC, WriteFlags::SYNC]);
            let aligned = most / unit * unit;
            let length = if round % 3 == 0 || aligned == 0 { 1 + rng.below(most) } else { aligned };
            let data = patterned(round + 500, pos, length as usize);
            match round % 3 {
                1 if aligned > 0 => {
                    let mut buffer = queue.buffer(length as usize).unwrap();
                    buffer.copy_from_slice(&data);
                    queue.write(slot, pos, buffer, flags, round).unwrap();
                    queue.wait(1).unwrap().for_each(|done| assert_eq!(done.result.unwrap() as u64, length));
                }
                2 if aligned > 0 => assert_eq!(file.write_at_with(&data, pos, flags).unwrap() as u64, length),
                _ => assert_eq!(file.write_any_at(&data, pos, flags).unwrap() as u64, length),
            }
            bytes[pos as usize..(pos + length) as usize].copy_from_slice(&data);
        }
        common::assert_same_bytes(&bytes, &common::read_all(&file));
        expected.insert(name, bytes);
    }
    drop(opened);
    e2fsck_clean(fsck);
    with_kernel(fsck, "ro", |root| {
        for (name, bytes) in &expected {
            let file = std::fs::File::open(root.join(&name[1..])).unwrap();
            let mut found = vec![0; bytes.len()];
            file.read_exact_at(&mut found, 0).unwrap();
            common::assert_same_bytes(bytes, &found);
            assert_eq!(file.metadata().unwrap().len(), bytes.len() as u64);
        }
    });
}

#[test]
fn root_the_kernel_reads_what_was_overwritten() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [&["-b", "4096"][..], &["-b", "1024"], &["-O", "^has_journal,^metadata_csum"]] {
        let volume = VolumeBuilder::new(256 << 20).args(args.iter().copied()).build();
        volume.with_kernel(|root| {
            standard_tree_with(root, TreeOptions { big_dir: 50, extents: 300, ..TreeOptions::new(3) });
        });
        let before = without_xattrs(volume.kernel_manifest());
        overwrite_and_judge(volume.path(), volume.path());
        // Only times of the overwritten files changed.
        let after = without_xattrs(volume.kernel_manifest());
        for (path, entry) in &before {
            let changed = entry.digest != after[path].digest;
            assert!(!changed || path.starts_with(b"/sizes/") || path.starts_with(b"/fragmented/"));
            let newer = entry.mtime_ns < after[path].mtime_ns;
            assert_eq!((entry.size, changed), (after[path].size, newer), "{}", path.escape_ascii());
        }
    }
}

#[test]
fn root_block_devices_work_like_images() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let volume = VolumeBuilder::new(256 << 20).args(["-b", "4096"]).build();
    volume.with_kernel(|root| {
        standard_tree_with(root, TreeOptions { big_dir: 50, extents: 300, ..TreeOptions::new(3) });
    });
    for (direct_io, sector_size) in [(true, 512), (false, 4096)] {
        let options = LoopOptions { direct_io, sector_size, ..LoopOptions::default() };
        let device = LoopDevice::attach(volume.path(), options);
        let path = device.path().to_owned();
        overwrite_and_judge(&path, &path);
        drop(device);
        volume.assert_clean();
    }
}

#[test]
fn root_zram_works_like_images() {
    needs!(Need::Loop, Need::Zram, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let zram = Zram::new(256 << 20);
    VolumeBuilder::new(256 << 20).format(zram.path());
    with_kernel(zram.path(), "", |root| {
        standard_tree_with(root, TreeOptions { big_dir: 50, extents: 300, ..TreeOptions::new(3) });
        assert_ne!(file_digest(&root.join("sizes/3000001")), [0; 32]);
    });
    overwrite_and_judge(zram.path(), zram.path());
}
