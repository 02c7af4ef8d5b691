//! Refusals, each naming its reason, and that a refusal changes nothing.

use crate::common;

use common::sample::{
    DATA_SIZE, FLAGGED, FRAG_SIZE, MIXED_ALLOCATED, MIXED_SIZE, MIXED_WRITTEN, TAIL_SIZE, not_left_cleanly,
    sample, sample_with, with_sealed_files,
};
use common::{Image, aligned, assert_unchanged, open_ro, open_rw, read_all, read_only, read_write};
use std::sync::Arc;
use uext4::device::Misaligned;
use uext4::device::{Mask, MaskDevice};
use uext4::{Allocation, Counter, Error, Ino, OpenOptions, QueueOptions, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::guard::{LoopDevice, LoopOptions};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs};

/// Name, position, length, and what the write would need: bytes unwritten, bytes in holes, growth.
const ALLOCATING: [(&str, u64, u64, u64, u64, bool); 11] = [
    ("/mixed", MIXED_WRITTEN, 4096, 4096, 0, false),
    ("/mixed", MIXED_WRITTEN + 512, 512, 512, 0, false),
    ("/mixed", MIXED_ALLOCATED, 8192, 0, 8192, false),
    // Written blocks before it do not help: the request fails as a whole.
    ("/mixed", 0, MIXED_SIZE, MIXED_ALLOCATED - MIXED_WRITTEN, MIXED_SIZE - MIXED_ALLOCATED, false),
    ("/mixed", MIXED_SIZE - 4096, 8192, 0, 8192, true),
    ("/sparse", 0, 409_600, 0, 204_800, false),
    ("/data", DATA_SIZE - 4096, 8192, 0, 4096, true),
    ("/data", DATA_SIZE, 512, 0, 512, true),
    ("/data", 1 << 40, 4096, 0, 4096, true),
    // More written pieces than one plan covers come before the hole.
    ("/holed", 0, FRAG_SIZE, 0, 4096, false),
    // Inside the last block, but past the size.
    ("/tail", 8192, 2048, 0, 0, true),
];

fn allocation(case: &(&str, u64, u64, u64, u64, bool)) -> Allocation {
    let &(_, pos, length, unwritten, hole, extends) = case;
    let why = "the volume uses no journal, and was not unmounted cleanly (run e2fsck)".into();
    Allocation { pos, length, unwritten, hole, extends, why }
}

#[track_caller]
fn assert_allocation(result: Result<usize, Error>, wanted: Allocation) {
    match result {
        Err(Error::NeedsAllocation(found)) => assert_eq!(found, wanted),
        other => panic!("{wanted:?}: {other:?}"),
    }
}

#[test]
fn writes_that_need_allocation_say_what_they_need_and_change_nothing() {
    // A volume without a journal that was not unmounted cleanly allocates nothing.
    let image = not_left_cleanly();
    let device = image.device();
    let volume = open_rw(device.clone());
    const { assert!(TAIL_SIZE < 8192 + 2048) };
    for case in &ALLOCATING {
        let file = volume.open_file(case.0, read_write()).unwrap();
        let bytes = common::patterned(55, 0, case.2 as usize);
        for flags in [WriteFlags::empty(), WriteFlags::DSYNC, WriteFlags::NOWAIT] {
            let refused = file.write_at_with(&bytes, case.1, flags);
            // A write that extends has to wait, whatever it finds afterwards.
            if flags == WriteFlags::NOWAIT && case.5 {
                assert!(matches!(refused, Err(Error::WouldBlock(_))), "{refused:?}");
            } else {
                assert_allocation(refused, allocation(case));
            }
        }
        // From unaligned memory: the bounced route makes the same check.
        let mut odd = vec![0; bytes.len() + 1];
        odd[1..].copy_from_slice(&bytes);
        assert_allocation(file.write_any_at(&odd[1..], case.1, WriteFlags::empty()), allocation(case));
        let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
        let slot = queue.attach(&file).unwrap();
        let buffer = queue.buffer(bytes.len()).unwrap();
        let refused = queue.write(slot, case.1, buffer, WriteFlags::DSYNC, 1).map(|()| 0);
        assert_allocation(refused, allocation(case));
        let halves = [0, 1].map(|_| queue.buffer(bytes.len() / 2)).into_iter().collect::<Result<_, _>>();
        let written = queue.writev(slot, case.1, halves.unwrap(), WriteFlags::empty(), 1).map(|()| 0);
        if case.2 / 2 % 512 == 0 {
            assert_allocation(written, allocation(case));
        } else {
            assert!(matches!(written, Err(Error::Misaligned { .. })));
        }
        assert_eq!(queue.pending(), 0);
    }
    let extending = ALLOCATING.iter().filter(|case| case.5).count();
    let refused = volume.stats().get(Counter::AllocationsRefused);
    assert!(refused >= (6 * ALLOCATING.len() - 3 - extending) as u64, "{refused}");
    // The gate is free again: this one drains.
    let file = volume.open_file("/mixed", read_write()).unwrap();
    file.write_any_at(&[0], 3, WriteFlags::empty()).unwrap();
    file.write_any_at(&common::sample::expected("/mixed")[3..4], 3, WriteFlags::empty()).unwrap();
    assert_unchanged(&image, &*device);
}

#[test]
fn misaligned_requests_name_the_value_and_change_nothing() {
    let image = sample();
    let device = image.device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/data", read_write()).unwrap();
    let mut memory = aligned(8192);
    let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
    let slot = queue.attach(&file).unwrap();
    for (pos, length, offset, what) in [
        (1, 512, 0, Misaligned::Position),
        (256, 4096, 0, Misaligned::Position),
        (0, 511, 0, Misaligned::Length),
        (4096, 4097, 0, Misaligned::Length),
        (0, 512, 1, Misaligned::Memory),
        (512, 512, 256, Misaligned::Memory),
    ] {
        let part = offset..offset + length;
        let check = |error: Error| match error {
            Error::Misaligned { what: found, align, .. } => assert_eq!((found, align), (what, 512)),
            other => panic!("{other}"),
        };
        let errors = [
            file.read_at(&mut memory[part.clone()], pos).unwrap_err(),
            file.write_at(&memory[part.clone()], pos).unwrap_err(),
            file.write_at_with(&memory[part], pos, WriteFlags::DSYNC).unwrap_err(),
        ];
        assert!(errors.iter().all(|error| error.errno() == 22), "EINVAL");
        errors.into_iter().for_each(check);
        if what != Misaligned::Memory {
            // Buffers of a queue are always aligned.
            let buffer = |queue: &uext4::IoQueue| queue.buffer(length).unwrap();
            check(queue.read(slot, pos, buffer(&queue), 1).unwrap_err());
            check(queue.write(slot, pos, buffer(&queue), WriteFlags::empty(), 1).unwrap_err());
        }
    }
    for (pos, length) in [(1 << 63, 512), (u64::MAX - 511, 512), ((1 << 63) - 512, 4096)] {
        assert_eq!(file.read_at(&mut memory[..length], pos).unwrap_err().errno(), 22, "{pos}");
        assert_eq!(file.write_at(&memory[..length], pos).unwrap_err().errno(), 22, "{pos}");
        assert_eq!(file.read_any_at(&mut memory[..length], pos + 1).unwrap_err().errno(), 22, "{pos}");
        let buffer = queue.buffer(length).unwrap();
        assert_eq!(queue.read(slot, pos, buffer, 1).unwrap_err().errno(), 22, "{pos}");
        let buffer = queue.buffer(length).unwrap();
        assert_eq!(queue.write(slot, pos, buffer, WriteFlags::empty(), 1).unwrap_err().errno(), 22, "{pos}");
    }
    assert_eq!(queue.pending(), 0);
    assert_unchanged(&image, &*device);
}

#[test]
fn modes_and_read_only_volumes() {
    let image = sample();
    let device = image.device();
    let volume = open_ro(device.clone());
    let error = volume.open_file("/data", read_write()).unwrap_err();
    assert!(matches!(error, Error::ReadOnly(_)) && error.errno() == 30, "{error}");
    drop(volume);

    let masked = Arc::new(MaskDevice::new(device.clone(), Mask { read_only: true, ..Mask::default() }));
    let refused = Volume::open_device(masked.clone(), VolumeOptions::read_write());
    assert!(matches!(refused.map(|_| ()), Err(Error::ReadOnly("the device"))));
    open_ro(masked).open_file("/data", read_only()).unwrap();

    let volume = open_rw(device.clone());
    let reader = volume.open_file("/data", read_only()).unwrap();
    let writer = volume.open_file("/data", OpenOptions::new().write(true)).unwrap();
    let mut memory = aligned(512);
    assert!(matches!(reader.write_at(&memory, 0), Err(Error::BadMode("writing"))));
    assert!(matches!(reader.write_any_at(&[1], 3, WriteFlags::empty()), Err(Error::BadMode("writing"))));
    assert!(matches!(writer.read_at(&mut memory, 0), Err(Error::BadMode("reading"))));
    assert!(matches!(writer.read_any_at(&mut [0], 3), Err(Error::BadMode("reading"))));
    let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
    let (reader, writer) = (queue.attach(&reader).unwrap(), queue.attach(&writer).unwrap());
    let refused = queue.write(reader, 0, queue.buffer(512).unwrap(), WriteFlags::empty(), 1);
    assert!(matches!(refused, Err(Error::BadMode("writing"))));
    let refused = queue.read(writer, 0, queue.buffer(512).unwrap(), 1);
    assert!(matches!(refused, Err(Error::BadMode("reading"))));
    assert_unchanged(&image, &*device);
}

#[test]
fn paths_are_refused_as_posix_says() {
    let volume = open_rw(sample().device());
    for (path, errno) in [
        ("/nothing", 2),
        ("/data/below", 20),
        ("/data/", 20),
        ("/dir", 21),
        ("/loop", 40),
        ("/dangling", 2),
        ("/dir/../nothing", 2),
    ] {
        assert_eq!(volume.open_file(path, read_write()).unwrap_err().errno(), errno, "{path}");
    }
    assert_eq!(volume.open_file("x".repeat(256), read_only()).unwrap_err().errno(), 36);
    assert_eq!(volume.read_dir("/data").map(|_| ()).unwrap_err().errno(), 20);
    assert_eq!(volume.read_link("/data").unwrap_err().errno(), 22);
    for path in ["/link", "up", "/dir/../data", "//dir//.././data", "/up"] {
        assert_eq!(volume.open_file(path, read_only()).unwrap().size(), DATA_SIZE, "{path}");
    }
    assert_eq!(volume.read_link("slow").unwrap(), "x".repeat(200).as_bytes());
}

#[test]
fn flagged_files_are_refused_by_their_flag() {
    let image = with_sealed_files(&sample());
    let device = image.device();
    let volume = open_rw(device.clone());
    for (name, _) in FLAGGED.into_iter().filter(|(name, _)| *name != "journaled") {
        let error = volume.open_file(name, read_write()).unwrap_err();
        let (errno, word) = match name {
            "immutable" => (1, "immutable"),
            "append" => (1, "append-only"),
            "verity" => (1, "fs-verity"),
            _ => (95, "encrypted"),
        };
        assert!(error.errno() == errno && error.to_string().contains(word), "{name}: {error}");
        let read = volume.open_file(name, read_only());
        assert_eq!(read.is_ok(), name != "encrypted", "{name}");
    }
    assert_unchanged(&image, &*device);
}

#[test]
fn encrypted_files_are_refused_and_the_rest_of_their_volume_works() {
    let mut image = sample_with(4096, &["-O", "encrypt,verity"]);
    let scratch = Scratch::new(image.bytes.len() as u64);
    let path = scratch.file("volume.img");
    image.save(&path);
    for (name, flags) in [("dir", 0x8_0800), ("tail", 0x8_0800), ("slow", 0x8_0800), ("verity", 0x18_0000)] {
        uext4_testkit::oracle::debugfs_write(&path, &format!("sif /{name} flags {flags:#x}"));
    }
    image = Image::load(&path);
    let device = image.device();
    let volume = open_rw(device.clone());
    let refused = |error: Error| {
        let text = error.to_string();
        assert!(matches!(error, Error::Incompatible { action: "read", .. }) && error.errno() == 95, "{text}");
        assert!(text.contains("encrypted") && text.contains("inode "), "{text}");
    };
    refused(volume.open_file("/tail", read_only()).map(drop).unwrap_err());
    refused(volume.open_file("/tail", OpenOptions::new().write(true)).map(drop).unwrap_err());
    refused(volume.read_dir("/dir").map(drop).unwrap_err());
    refused(volume.metadata("/dir/file-01").map(drop).unwrap_err());
    refused(volume.read_link("/slow").map(drop).unwrap_err());
    for name in ["/tail", "/dir", "/slow"] {
        let flags = volume.symlink_metadata(name).unwrap().flags;
        assert!(flags.contains(uext4::InodeFlags::ENCRYPT), "attributes stay readable");
    }
    // Data sealed by fs-verity is still readable.
    let sealed = volume.open_file("/verity", read_only()).unwrap();
    assert_eq!(common::read_all(&sealed), &*common::patterned(9, 0, 4096));
    let error = volume.open_file("/verity", read_write()).map(drop).unwrap_err();
    assert!(matches!(error, Error::NotPermitted(text) if text.contains("fs-verity")));
    assert_unchanged(&image, &*device);
    let file = volume.open_file("/data", read_write()).unwrap();
    file.write_at_with(&common::patterned(9, 0, 8192), 4096, WriteFlags::DSYNC).unwrap();
    assert_eq!(volume.read_dir("/").unwrap().filter(|entry| entry.is_err()).count(), 0);
}

/// With clusters and blocks of 1 KiB, group 0 starts at block 0 and its metadata one block later.
#[test]
fn the_last_block_before_the_bitmap_is_metadata_with_clusters_too() {
    for (args, last) in [(&["-O", "bigalloc,^resize_inode"][..], 2), (&["-O", "bigalloc"], 17)] {
        let source = Scratch::new(1 << 20);
        std::fs::write(source.file("file"), [7; 1000]).unwrap();
        let args = args.iter().copied().chain(["-b", "1024", "-C", "16384"]);
        let volume = VolumeBuilder::new(32 << 20).args(args).from_dir(source.path()).build();
        let bitmap = uext4_testkit::dumpe2fs(volume.path(), &[]);
        assert!(bitmap.contains(&format!("Block bitmap at {} ", last + 1)), "{bitmap}");
        uext4_testkit::oracle::debugfs_write(volume.path(), &format!("sif /file block[5] {last}"));
        let opened = open_rw(Image::load(volume.path()).device());
        let file = opened.open_file("/file", read_write()).unwrap();
        assert_eq!(file.write_any_at(&[0; 9], 0, WriteFlags::empty()).unwrap_err().errno(), 117);
    }
}

#[test]
fn reserved_and_deleted_inodes_are_nobodys_files() {
    let image = sample();
    let device = image.device();
    let volume = open_rw(device.clone());
    for ino in [1, 3, 4, 5, 6, 7, 8, 9, 10] {
        let refused = volume.open_inode(Ino(ino), OpenOptions::new().write(true));
        assert!(refused.is_err(), "inode {ino}");
    }
    assert!(matches!(volume.open_inode(Ino(8), read_write()), Err(Error::NotPermitted("a reserved inode"))));
    // The journal's blocks are not file data, not even for reading.
    if let Ok(journal) = volume.open_inode(Ino(8), read_only()) {
        assert_eq!(journal.read_at(&mut aligned(4096), 0).unwrap_err().errno(), 117);
    }
    let data = volume.open_file("/data", read_only()).unwrap().ino();
    drop(volume);

    let scratch = Scratch::new(image.bytes.len() as u64);
    let path = scratch.file("volume.img");
    image.save(&path);
    // debugfs leaves the extents of a removed file in its inode: its blocks may belong to other files now.
    uext4_testkit::oracle::debugfs_write(&path, "rm /data");
    let volume = open_rw(Image::load(&path).device());
    for options in [read_only(), read_write()] {
        let error = volume.open_inode(data, options).unwrap_err();
        assert!(matches!(error, Error::Corrupt(_)) && error.inode() == Some(data.get()), "{error}");
    }
    assert!(volume.open_inode(Ino(u32::MAX), read_only()).is_err());
    assert!(volume.open_inode(Ino(0), read_only()).is_err());
}

/// Opens `path` for writing, then for reading: the first is refused, the second is not.
#[track_caller]
fn assert_system_file(image: &Image, path: &str) {
    let device = image.device();
    let volume = open_rw(device.clone());
    let ino = volume.resolve(path, true).unwrap();
    assert!(ino >= volume.superblock().geometry.first_inode(), "{ino} is reserved by its number already");
    for options in [read_write(), OpenOptions::new().write(true)] {
        for refused in [volume.open_file(path, options.clone()), volume.open_inode(ino, options)] {
            let error = refused.map(|_| ()).unwrap_err();
            assert!(matches!(error, Error::NotPermitted(_)) && error.errno() == 1, "{path}: {error}");
        }
    }
    volume.open_file(path, read_only()).unwrap();
    assert_unchanged(image, &*device);
}

#[test]
fn files_of_the_volume_itself_are_refused_whatever_their_number() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    // The real ones: a directory entry that leads to them is enough.
    let volume = VolumeBuilder::new(16 << 20).args(["-O", "quota,project,orphan_file"]).build();
    let superblock = open_ro(Image::load(volume.path()).device()).superblock().clone();
    let (project, orphans) = (superblock.project_quota_inode, superblock.orphan_file_inode);
    assert!(project >= 11 && orphans >= 11, "{project} {orphans}");
    for (ino, name) in [(project, "project"), (orphans, "orphans")] {
        uext4_testkit::oracle::debugfs_write(volume.path(), &format!("ln <{ino}> {name}"));
    }
    let image = Image::load(volume.path());
    for path in ["/project", "/orphans"] {
        assert_system_file(&image, path);
    }
    // Planted ones: an odd volume may store any of them under any number.
    let plain = sample_with(4096, &["-O", "^has_journal"]);
    let data = open_ro(plain.device()).resolve("/data", true).unwrap().get();
    open_rw(plain.device()).open_file("/data", read_write()).unwrap();
    for field in [JOURNAL_INODE, USER_QUOTA_INODE, GROUP_QUOTA_INODE, PROJECT_QUOTA_INODE, ORPHAN_FILE_INODE]
    {
        let mut image = plain.clone();
        image.patch_superblock(|superblock| {
            superblock[field..field + 4].copy_from_slice(&data.to_le_bytes());
        });
        assert_system_file(&image, "/data");
    }
}

#[track_caller]
fn assert_refused(image: &Image, options: VolumeOptions, words: &[&str]) {
    let device = image.device();
    let error = Volume::open_device(device.clone(), options).map(|_| ()).unwrap_err();
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{words:?}: {text}");
    assert_unchanged(image, &*device);
}

#[test]
fn unreadable_features_are_refused_by_name() {
    let make = |args: &[&str]| {
        let volume = VolumeBuilder::new(16 << 20).args(args.iter().copied()).build();
        Image::load(volume.path())
    };
    for (args, words) in [(&["-O", "journal_dev"][..], &["journal"][..])] {
        let image = make(args);
        for options in [VolumeOptions::read_only(), VolumeOptions::read_write()] {
            assert_refused(&image, options, words);
        }
    }
}

const REVISION: usize = 0x4c;
const INCOMPAT: usize = 0x60;
const JOURNAL_INODE: usize = 0xe0;
const USER_QUOTA_INODE: usize = 0x240;
const GROUP_QUOTA_INODE: usize = 0x244;
const PROJECT_QUOTA_INODE: usize = 0x26c;
const ORPHAN_FILE_INODE: usize = 0x280;
const RO_COMPAT: usize = 0x64;
const LAST_ORPHAN: usize = 0xe8;
const DEFAULT_MOUNT_OPTIONS: usize = 0x100;

#[test]
fn unknown_bits_are_refused_by_name() {
    for args in [&[][..], &["-O", "^metadata_csum"]] {
        let plain = sample_with(4096, args);
        let mut image = plain.clone();
        image.set_bits(INCOMPAT, 1 << 20);
        assert_refused(&image, VolumeOptions::read_only(), &["FEATURE_I20"]);
        assert_refused(&image, VolumeOptions::read_write(), &["FEATURE_I20"]);
        // If there are several, all are named.
        image.set_bits(INCOMPAT, 1 << 31 | 0x1);
        assert_refused(&image, VolumeOptions::read_only(), &["FEATURE_I20", "FEATURE_I31", "compression"]);

        let mut image = plain.clone();
        image.set_bits(RO_COMPAT, 1 << 25);
        assert_refused(&image, VolumeOptions::read_write(), &["FEATURE_R25"]);
        open_ro(image.device()).open_file("/data", read_only()).unwrap();

        // Marked read-only by tune2fs.
        let mut image = plain.clone();
        image.set_bits(RO_COMPAT, 0x1000);
        assert_refused(&image, VolumeOptions::read_write(), &["read-only"]);
        open_ro(image.device());
    }
}

/// The kernel forces such volumes read-only.
#[test]
fn revisions_to_come_are_not_written() {
    for (revision, refused) in [(1, false), (2, true), (u32::MAX, true)] {
        let mut image = sample();
        image.patch_superblock(|superblock| {
            superblock[REVISION..][..4].copy_from_slice(&revision.to_le_bytes())
        });
        if refused {
            let words = ["open for writing", "revision level", &revision.to_string()];
            assert_refused(&image, VolumeOptions::read_write(), &words);
        } else {
            open_rw(image.device());
        }
        let volume = open_ro(image.device());
        assert!(!read_all(&volume.open_file("/data", read_only()).unwrap()).is_empty());
    }
}

#[test]
fn states_that_forbid_writing_leave_reading() {
    let mut orphans = sample();
    orphans.set_bits(LAST_ORPHAN, 7);
    assert_refused(&orphans, VolumeOptions::read_write(), &["inode 7"]);
    assert!(open_ro(orphans.device()).info().notes.iter().any(|note| note.contains("orphan")));

    let mut journaled = sample_with(4096, &["-O", "inline_data"]);
    journaled.set_bits(DEFAULT_MOUNT_OPTIONS, 0x20);
    assert_refused(&journaled, VolumeOptions::read_write(), &["journal_data", "inline_data"]);
    open_ro(journaled.device());

    let mut external = sample_with(4096, &["-O", "^has_journal"]);
    external.patch_superblock(|superblock| {
        superblock[0x5c] |= 4; // COMPAT_HAS_JOURNAL
        superblock[0xd0..0xe0].fill(7); // s_journal_uuid
        superblock[0xe4] = 1; // s_journal_dev
    });
    assert_refused(&external, VolumeOptions::read_write(), &["external journal"]);
    open_ro(external.device());
}

#[test]
fn devices_that_do_not_fit_are_refused() {
    let mut image = sample();
    image.bytes.truncate(image.bytes.len() - 4096);
    assert_refused(&image, VolumeOptions::read_only(), &["device only"]);
    image.bytes.truncate(1024);
    assert_refused(&image, VolumeOptions::read_only(), &["superblock"]);
    let empty = Image { bytes: vec![0; 1 << 20] };
    assert_refused(&empty, VolumeOptions::read_only(), &["not an ext2/3/4 volume", "zeros"]);

    // 1 KiB blocks cannot be addressed on a device of 4 KiB blocks; larger ones can.
    let small = sample_with(1024, &[]);
    let device = small.device_with(|options| options.logical_block = 4096);
    let error = Volume::open_device(device, VolumeOptions::read_only()).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("blocks of 1024 bytes, smaller than the device's"), "{error}");
    let device = sample().device_with(|options| options.logical_block = 4096);
    let file = open_rw(device).open_file("/data", read_write()).unwrap();
    assert!(matches!(file.write_at(&aligned(512), 0), Err(Error::Misaligned { align: 4096, .. })));
    file.write_at(&aligned(4096), 0).unwrap();
}

#[test]
fn files_stay_with_their_volume() {
    let (mine, other) = (open_rw(sample().device()), open_rw(sample().device()));
    let file = other.open_file("/data", read_write()).unwrap();
    let mut queue = mine.queue(QueueOptions::depth(2)).unwrap();
    assert!(matches!(queue.attach(&file), Err(Error::Invalid(_))));
    assert!(matches!(mine.sync_files(&[&file]), Err(Error::Invalid(_))));
    other.sync_files(&[&file]).unwrap();
    for depth in [0, uext4::DEPTH_MAX + 1] {
        assert!(matches!(mine.queue(QueueOptions::depth(depth)).map(|_| ()), Err(Error::Invalid(_))));
    }
}

#[test]
fn images_in_use_are_refused() {
    let scratch = Scratch::new(48 << 20);
    let path = scratch.file("volume.img");
    sample().save(&path);
    let device = path.to_str().unwrap();
    let open = |options: VolumeOptions| Volume::open(device, options).map_err(|error| error.errno());
    const BUSY: i32 = 16;
    {
        let _writer = open(VolumeOptions::read_write()).unwrap();
        assert_eq!(open(VolumeOptions::read_write()).map(|_| ()), Err(BUSY));
        assert_eq!(open(VolumeOptions::read_only()).map(|_| ()), Err(BUSY));
        assert_eq!(open(VolumeOptions::read_write().force(true)).map(|_| ()), Err(BUSY));
        assert_eq!(open(VolumeOptions::read_only().force(true)).map(|_| ()), Ok(()));
    }
    let first = open(VolumeOptions::read_only()).unwrap();
    let second = open(VolumeOptions::read_only()).unwrap();
    assert_eq!(open(VolumeOptions::read_write()).map(|_| ()), Err(BUSY));
    drop(first);
    // A file keeps its volume open.
    let file = second.open_file("/data", read_only()).unwrap();
    drop(second);
    assert_eq!(open(VolumeOptions::read_write()).map(|_| ()), Err(BUSY));
    drop(file);
    open(VolumeOptions::read_write()).unwrap();
}

#[test]
fn root_an_image_behind_a_loop_device_is_in_use() {
    needs!(Need::Loop);
    let scratch = Scratch::new(48 << 20);
    let path = scratch.file("volume.img");
    sample().save(&path);
    let device = LoopDevice::attach(&path, LoopOptions::default());
    let image = path.to_str().unwrap();
    let error = Volume::open(image, VolumeOptions::read_write()).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::InUse(_)) && error.to_string().contains("loop"), "{error}");
    let through = device.path().to_str().unwrap();
    let volume = Volume::open(through, VolumeOptions::read_write()).unwrap();
    let again = Volume::open(through, VolumeOptions::read_write()).map(|_| ()).unwrap_err();
    assert!(matches!(again, Error::InUse(_)), "{again}");
    drop(volume);
    drop(device);
    Volume::open(image, VolumeOptions::read_write()).unwrap();
}
