//! Kinds of volumes, usage types, sizes of groups, and the features quota, project, encrypt and fast_commit: held
//! against mke2fs under the same options, and mounted.

use crate::common;

use common::making::{MIB, TIME, alike, equal, open, options};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};
use uext4::device::wrap::{DeviceLayer, What};
use uext4::device::{self, Device, MemoryDevice, MemoryOptions, Op, WriteDurability};
use uext4::mkfs::{Defaults, Error, Image, Options, dry_run, format};
use uext4::{DeviceSpec, Volume, VolumeOptions};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs, oracle, with_kernel};

#[test]
fn kinds_are_those_of_mke2fs() {
    equal(
        &[
            (64 * MIB, "-t ext2", ""),
            (64 * MIB, "-t ext3", ""),
            (600 * MIB, "-t ext2", ""),
            (600 * MIB, "-t ext3", ""),
            (64 * MIB, "-t ext2 -J size=4", ""),
            (64 * MIB, "-t ext2 -O extent,64bit,metadata_csum", ""),
            (64 * MIB, "-t ext3 -O orphan_file", ""),
        ],
        Defaults::Upstream,
    );
}

#[test]
fn usage_types_are_those_of_mke2fs() {
    equal(
        &[
            (64 * MIB, "-T default", ""),
            (64 * MIB, "-T floppy", ""),
            (1024 * MIB, "-T small", ""),
            (64 * MIB, "-T big", ""),
            (64 * MIB, "-T huge", ""),
            (64 * MIB, "-T news", ""),
            (64 * MIB, "-T largefile", ""),
            (256 * MIB, "-T largefile4", ""),
            (64 * MIB, "-T small,news,largefile", ""),
            (64 * MIB, "-T largefile,floppy -b 2048", ""),
            (64 * MIB, "-T hurd", ""),
            (64 * MIB, "-t ext3 -T news -I 512", ""),
        ],
        Defaults::Upstream,
    );
}

#[test]
fn groups_are_those_of_mke2fs() {
    equal(
        &[
            (64 * MIB, "-g 1024", ""),
            (64 * MIB, "-g 8000 -b 1024", ""),
            (600 * MIB, "-g 4096 -b 4096 -G 4", ""),
            (64 * MIB, "-G 1", ""),
            (64 * MIB, "-G 2", ""),
            (64 * MIB, "-G 128", ""),
            (64 * MIB, "-O bigalloc -g 2048", ""),
        ],
        Defaults::Upstream,
    );
    // The journal has more than four runs.
    alike(
        &[
            (64 * MIB, "-g 256", ""),
            (64 * MIB, "-O ^resize_inode,meta_bg -g 512 -G 8", ""),
            (600 * MIB, "-g 1024 -b 4096 -G 32", ""),
        ],
        Defaults::Upstream,
    );
}

#[test]
fn quotas_are_counted_as_by_mke2fs() {
    equal(
        &[
            (64 * MIB, "-O project", ""),
            (64 * MIB, "-O quota -b 4096", ""),
            (64 * MIB, "-O quota -b 65536", ""),
            (64 * MIB, "-b 4096 -O quota,bigalloc", "root_owner=1000:0"),
            (64 * MIB, "-t ext2 -O quota -b 2048", "root_owner=5:6"),
            (64 * MIB, "-b 4096 -O quota,project,inline_data", "root_owner=77777:4000000000"),
        ],
        Defaults::Upstream,
    );
    // With blocks of 1 KiB mke2fs has the root of the tree behind its first leaf.
    alike(
        &[
            (64 * MIB, "-O quota", ""),
            (64 * MIB, "-O quota,project", ""),
            (64 * MIB, "-O quota", "quotatype=usrquota"),
            (64 * MIB, "-O quota", "quotatype=grpquota:usrquota"),
            (64 * MIB, "-O quota", "quotatype=prjquota"),
            (64 * MIB, "-O quota", "quotatype=^grpquota"),
            (64 * MIB, "-O quota", "root_owner=1000:100000"),
            (64 * MIB, "-O quota,^orphan_file", "root_owner=0:70000"),
            (64 * MIB, "-t ext3 -O quota", ""),
        ],
        Defaults::Upstream,
    );
}

#[test]
fn encryption_and_fast_commits_are_those_of_mke2fs() {
    equal(
        &[
            (64 * MIB, "-O encrypt", ""),
            (64 * MIB, "-O fast_commit", ""),
            (64 * MIB, "-O fast_commit -b 4096", ""),
            (600 * MIB, "-O fast_commit", ""),
            (256 * MIB, "-O fast_commit -b 4096 -J size=16", ""),
            (256 * MIB, "-O fast_commit -J fast_commit_size=1024", ""),
            (256 * MIB, "-O fast_commit -J size=8,fast_commit_size=256", ""),
            (64 * MIB, "-b 4096 -O encrypt,casefold,quota,project,fast_commit", ""),
        ],
        Defaults::Upstream,
    );
}

/// The host's kernel may be built without quotas: the virtual machine's mounts those (`vm/guest/src/quota.rs`).
#[test]
fn root_the_kernel_mounts_what_was_made_with_these() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for words in [
        "-t ext2",
        "-t ext3",
        "-O encrypt",
        "-O fast_commit",
        "-O fast_commit -b 4096 -J size=8,fast_commit_size=512",
        "-g 1024 -G 4",
        "-G 1",
        "-T largefile",
    ] {
        let scratch = Scratch::new(1 << 30);
        let path = scratch.sparse_file("image", 64 * MIB);
        println!("{words}");
        format(&*open(&path), &options(words, "", Defaults::Upstream)).unwrap();
        with_kernel(&path, "", |root| {
            // As many as there are inodes for.
            for number in 0..40 {
                let file = root.join(format!("file-{number}"));
                std::fs::write(&file, vec![number as u8; 5000]).unwrap();
                std::fs::File::open(&file).unwrap().sync_all().unwrap();
            }
        });
        let volume = Volume::open(path.as_path(), VolumeOptions::read_only()).unwrap();
        assert_eq!(volume.read("/file-7").unwrap(), vec![7; 5000]);
    }
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let device = MemoryDevice::new(MemoryOptions::new(64 * MIB)).unwrap();
    for (words, extended, said) in [
        ("-g 100", "", "256"),
        ("-g 1001", "", "multiple of 8"),
        ("-b 1024 -g 8200", "", "8192"),
        ("-G 3", "", "power of two"),
        ("-G 0", "", "power of two"),
        ("-O ^flex_bg -G 4", "", "flex_bg"),
        ("-I 128 -O project", "", "project"),
        ("-O ^has_journal,fast_commit -J fast_commit_size=256", "", "fast_commit_size"),
        ("-J fast_commit_size=256", "", "fast_commit_size"),
        ("", "quotatype=usrquota", "quotatype"),
        ("", "offset=4096", "offset"),
        ("-t ext2 -O orphan_file", "", "orphan_file"),
        ("-t ext3 -O metadata_csum_seed", "", "metadata_csum_seed"),
    ] {
        let error = format(&device, &options(words, extended, Defaults::Upstream)).unwrap_err();
        assert!(
            matches!(&error, Error::Option(text) if text.contains(said)),
            "{words} -E {extended}: {error}"
        );
    }
    for refused in [
        Options::default().usage("frobnicate"),
        Options::default().extended("quotatype=everybody"),
        Options::default().extended("root_perms=700"),
        Options::default().extended("discard=1"),
        Options::default().journal("location=5"),
    ] {
        let error = refused.unwrap_err();
        let named = ["frobnicate", "quotatype", "root_perms", "discard", "location"];
        assert!(named.iter().any(|name| error.to_string().contains(name)), "{error}");
    }
    assert!(Volume::read_superblock(&device).is_err(), "nothing was written");
}

/// Discards nothing, and notes what it was asked to.
#[derive(Debug)]
struct Keeps {
    inner: Arc<dyn Device>,
    asked: Mutex<Vec<(u64, u64)>>,
    /// What it answers, `None` for success.
    errno: Option<i32>,
}

impl DeviceLayer for Keeps {
    fn inner(&self) -> &dyn Device {
        &*self.inner
    }

    fn names(&self) -> Vec<String> {
        vec!["keeps".into()]
    }

    fn run(&self, what: What, call: impl FnOnce(&dyn Device) -> device::Result<()>) -> device::Result<()> {
        if what.op != Op::Discard {
            return call(&*self.inner);
        }
        self.asked.lock().unwrap().push((what.pos, what.length));
        let (pos, length) = (what.pos, what.length);
        self.errno.map_or(Ok(()), |errno| Err(device::Error::Io { op: "discard", pos, length, errno }))
    }
}

fn keeps(size: u64, errno: Option<i32>) -> Keeps {
    let inner = Arc::new(MemoryDevice::new(MemoryOptions::new(size)).unwrap());
    let mut old = device::BufferPool::new(1 << 20).unwrap().take(1 << 20).unwrap();
    old.fill(0xA7);
    for pos in (0..size).step_by(1 << 20) {
        inner.write_at(&old, pos, WriteDurability::Cached).unwrap();
    }
    Keeps { inner, asked: Mutex::default(), errno }
}

/// What a device reads after a discard is not known: what must read as zeros is written all the same.
#[test]
fn a_device_that_keeps_what_is_discarded_gets_the_same_volume() {
    for words in ["", "-O ^metadata_csum", "-O quota,fast_commit -b 4096"] {
        let contents = |device: &Keeps, extended: &str| {
            format(device, &options(words, extended, Defaults::Upstream)).unwrap();
            let mut bytes = device::BufferPool::new(32 << 20).unwrap().take(32 << 20).unwrap();
            device.inner.read_at(&mut bytes, 0).unwrap();
            bytes.to_vec()
        };
        let without = keeps(32 * MIB, None);
        let plain = contents(&without, "");
        assert!(without.asked.lock().unwrap().is_empty(), "discarded unasked");
        for errno in [None, Some(libc::EOPNOTSUPP)] {
            let device = keeps(32 * MIB, errno);
            assert!(contents(&device, "discard") == plain, "{words}");
            assert_eq!(*device.asked.lock().unwrap(), [(0, 32 * MIB)], "{words}");
        }
        let not = keeps(32 * MIB, None);
        assert!(contents(&not, "discard,nodiscard") == plain, "the last one counts");
        assert!(not.asked.lock().unwrap().is_empty());
        let scratch = Scratch::new(64 << 20);
        let path = scratch.file("image");
        std::fs::write(&path, &plain).unwrap();
        e2fsck_clean(&path);
    }
    let failing = keeps(32 * MIB, Some(libc::EIO));
    let error = format(&failing, &options("", "discard", Defaults::Upstream)).unwrap_err();
    assert!(matches!(error, Error::Failed(_)), "{error}");
    assert!(Volume::read_superblock(&*failing.inner).is_err());
}

/// A file gives back what was in it.
#[test]
fn discarding_leaves_holes_in_an_image() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(128 << 20);
    let path = scratch.file("image");
    std::fs::write(&path, vec![0xA7; 48 << 20]).unwrap();
    format(&*open(&path), &options("", "discard", Defaults::Upstream)).unwrap();
    e2fsck_clean(&path);
    let allocated = std::fs::metadata(&path).unwrap().blocks() * 512;
    assert!(allocated < 8 * MIB, "{allocated}");
}

/// What would be made is what is made, and the device stays as it is.
#[test]
fn a_dry_run_tells_what_would_be_made() {
    for (words, extended) in [
        ("-b 1024", ""),
        ("-t ext3 -O quota", ""),
        ("-O fast_commit,sparse_super2 -b 4096", "root_owner=1000:1000"),
        ("-N 1", "lazy_itable_init=0"),
    ] {
        let device = MemoryDevice::new(MemoryOptions::new(64 * MIB)).unwrap();
        let wanted = options(words, extended, Defaults::Upstream);
        let told = dry_run(device.geometry(), &wanted).unwrap();
        let mut first = device::BufferPool::new(1 << 20).unwrap().take(1 << 20).unwrap();
        device.read_at(&mut first, 0).unwrap();
        assert!(first.iter().all(|byte| *byte == 0));
        let mut made = format(&device, &wanted).unwrap();
        assert_eq!(told.backups(), made.backups());
        // Counted while it is written.
        made.superblock.kbytes_written = told.superblock.kbytes_written;
        assert_eq!(told, made, "{words}");
        assert_eq!(made.superblock.times.created, TIME);
    }
}

/// The device begins behind the file's start: the volume has the size that was asked for, and the file is longer.
#[test]
fn an_image_with_an_offset_has_room_for_its_volume() {
    needs!(Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    let scratch = Scratch::new(256 << 20);
    for (offset, size) in [(1 << 20, 32 * MIB), (512, 16 * MIB), (4096 * 3 + 512, (16 << 20) + 1024)] {
        let path = scratch.file(format!("image-{offset}"));
        let mut spec = DeviceSpec::file(&path);
        spec.options.offset = Some(offset);
        let planned = Image::would_be(&spec, Some(size)).unwrap().unwrap();
        assert!(!path.exists());
        let image = Image::create(&spec, Some(size)).unwrap();
        assert!(image.is_new());
        image.keep();
        assert_eq!(path.metadata().unwrap().len(), (offset + size).next_multiple_of(4096));
        let how = device::OpenOptions { write: true, force: false };
        let device = device::open(&spec, how).unwrap().device;
        assert_eq!(device.geometry().size, planned.size);
        let mut wanted = options("", "", Defaults::Upstream);
        wanted.size = Some(size);
        let made = format(&*device, &wanted).unwrap();
        let geometry = &made.superblock.geometry;
        assert_eq!(geometry.blocks_count(), size / u64::from(geometry.block_size()));
        drop(device);
        let part = scratch.file("part");
        std::fs::write(&part, &std::fs::read(&path).unwrap()[offset as usize..]).unwrap();
        e2fsck_clean(&part);
        assert!(oracle::dumpe2fs(&part, &["-h"]).contains("Block count"));
    }
    assert!(Image::would_be(&DeviceSpec::file(scratch.file("image-512")), None).unwrap().is_none());
    assert!(Image::would_be(&DeviceSpec::file(scratch.file("none")), None).is_err());
}
