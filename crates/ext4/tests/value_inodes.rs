//! Attribute values in inodes of their own (`ea_inode`): set, shared, replaced and removed, against a model and in
//! turns with the kernel.

use crate::common;

use common::sample::few_files;
use common::{
    Image, assert_clean, assert_unchanged, open_rw, open_to_the_last, read_all, read_only, read_write,
};
use rustix::fs::{XattrFlags as Flags, lremovexattr, lsetxattr};
use std::collections::BTreeMap;
use std::path::Path;
use uext4::{
    Acl, AclEntry, AclTag, Caller, Error, Fallocate, Ino, OpenOptions, QuotaKind, QuotaLimit, QuotaLimits,
    StatFs, Volume, VolumeOptions, WriteFlags, XattrFlags,
};
use uext4_ondisk::CorruptKind;
use uext4_testkit::fixture::pattern;
use uext4_testkit::{Need, Rng, Scratch, e2fsck_clean, kernel_manifest, needs, oracle, with_kernel};

const ANY: XattrFlags = XattrFlags::empty();
const PATHS: [&str; 5] = ["/a", "/b", "/c", "/dir", "/dir/inner"];

const LAYOUTS: [&[&str]; 10] = [
    &["-b", "4096", "-O", "ea_inode"],
    &["-b", "1024", "-I", "128", "-O", "ea_inode,^metadata_csum,^64bit"],
    &["-b", "1024", "-O", "ea_inode,quota,project"],
    &["-b", "4096", "-I", "1024", "-O", "ea_inode,inline_data"],
    &["-b", "4096", "-O", "ea_inode,bigalloc,quota", "-C", "16384"],
    &["-b", "1024", "-O", "ea_inode,^extents,^64bit"],
    &["-b", "1024", "-O", "ea_inode,^has_journal,quota"],
    &["-b", "4096", "-O", "ea_inode,metadata_csum_seed,fast_commit"],
    &["-b", "4096", "-O", "ea_inode,bigalloc", "-C", "65536"],
    &["-b", "1024", "-O", "ea_inode,^has_journal"],
];

fn image(args: &[&str]) -> Image {
    few_files(args, |_| ())
}

fn value(seed: u64, length: usize) -> Vec<u8> {
    let mut value = vec![0; length];
    pattern(seed, 0, &mut value);
    value
}

/// What a name gets: a value, or nothing.
type Change = (&'static str, String, Option<Vec<u8>>);
type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Few names and values, so that files often have the same.
fn any_change(rng: &mut Rng) -> Change {
    let path = *rng.pick(&PATHS);
    let name = match rng.below(10) {
        0 => format!("user.{}", "n".repeat(240)),
        1 => "trusted.of-root".into(),
        2 => "user.caf\u{e9}".into(),
        k => format!("user.{}", k % 5),
    };
    if rng.chance(30) {
        return (path, name, None);
    }
    let length = match rng.below(8) {
        0 => 10,
        1 => 300,
        2 | 3 => 1000 + rng.below(4000),
        4 => 65_536,
        _ => *rng.pick(&[960, 4040, 4096, 5000, 40_000]),
    };
    (path, name, Some(value(rng.below(2), length as usize)))
}

fn ours(volume: &Volume, (path, name, value): &Change) -> Result<(), Error> {
    match value {
        Some(value) => volume.set_xattr(path, name, value, ANY, false),
        None => volume.remove_xattr(path, name, false),
    }
}

fn kernels(root: &Path, (path, name, value): &Change) -> i32 {
    let path = root.join(path.trim_start_matches('/'));
    let name = std::ffi::CString::new(name.clone()).unwrap();
    let done = match value {
        Some(value) => lsetxattr(path, name, value, Flags::empty()),
        None => lremovexattr(path, name),
    };
    done.map_or_else(|error| error.raw_os_error(), |()| 0)
}

fn read(volume: &Volume, path: &str) -> Xattrs {
    let node = volume.node_at(path, false).unwrap();
    let read = |name: uext4::Result<uext4::XattrName>| {
        let name = name.unwrap();
        (name.as_bytes().to_vec(), node.xattr(&name).unwrap())
    };
    node.xattrs().map(read).collect()
}

fn apply(model: &mut BTreeMap<&'static str, Xattrs>, (path, name, value): &Change) {
    let xattrs = model.entry(path).or_default();
    match value {
        Some(value) => drop(xattrs.insert(name.clone().into_bytes(), value.clone())),
        None => drop(xattrs.remove(name.as_bytes())),
    }
}

fn free(volume: &Volume) -> (u64, u64) {
    let StatFs { free, free_inodes, .. } = volume.statfs().unwrap();
    (free, free_inodes)
}

#[test]
fn a_walk_ends_as_the_model_says() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (seed, args) in LAYOUTS.into_iter().enumerate() {
        let device = image(args).device();
        let mut volume = open_rw(device.clone());
        let before = free(&volume);
        let mut rng = common::sample::seeded(seed as u64);
        let mut model = BTreeMap::new();
        for step in 0..240 {
            let change = any_change(&mut rng);
            match ours(&volume, &change) {
                Ok(()) => apply(&mut model, &change),
                Err(Error::NoAttribute) => assert!(change.2.is_none()),
                Err(error) => panic!("{args:?} {step}: {} {}: {error}", change.0, change.1),
            }
            if step % 20 == 0 {
                volume.set_owner(change.0, Some(rng.below(3) as u32), None, false).unwrap();
            }
            let expected = model.entry(change.0).or_default();
            assert!(read(&volume, change.0) == *expected, "{args:?} {step}: {} {}", change.0, change.1);
            if step % 80 == 79 {
                volume.close().unwrap();
                assert_clean(&*device);
                volume = open_rw(device.clone());
                PATHS.iter().for_each(|path| assert!(read(&volume, path) == *model.entry(path).or_default()));
            }
        }
        // Half of them go with their names, the others with their files.
        for (path, xattrs) in &model {
            for name in xattrs.keys().filter(|_| path.contains("dir")) {
                volume.remove_xattr(path, name, false).unwrap();
            }
        }
        let files = ["/a", "/b", "/c"];
        files.iter().for_each(|path| volume.remove_file(path).unwrap());
        let (blocks, inodes) = free(&volume);
        assert!(blocks >= before.0 && inodes == before.1 + 3, "{args:?}: {before:?} {blocks} {inodes}");
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

/// Files with the same value share its inode; it goes with the last of them.
#[test]
fn equal_values_share_an_inode() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [LAYOUTS[0], LAYOUTS[1]] {
        let device = image(args).device();
        let volume = open_rw(device.clone());
        let large = value(1, 20_000);
        let before = free(&volume);
        volume.set_xattr("/a", "user.large", &large, ANY, false).unwrap();
        let one = free(&volume);
        assert_eq!(one.1, before.1 - 1);
        // Another name too, and a file with two of them.
        for (path, name) in [("/b", "user.large"), ("/c", "user.other"), ("/c", "user.large")] {
            volume.set_xattr(path, name, &large, ANY, false).unwrap();
        }
        assert_eq!(free(&volume).1, before.1 - 1);
        volume.set_xattr("/a", "user.large", value(2, 20_000), ANY, false).unwrap();
        assert_eq!(free(&volume).1, before.1 - 2);
        volume.set_xattr("/a", "user.large", &large, ANY, false).unwrap();
        assert_eq!(free(&volume).1, before.1 - 1);
        // Found again after a new open, once an edit has seen it.
        volume.close().unwrap();
        assert_clean(&*device);
        let volume = open_rw(device.clone());
        volume.set_xattr("/a", "user.large", &large, ANY, false).unwrap();
        volume.set_xattr("/dir", "user.large", &large, ANY, false).unwrap();
        assert_eq!(free(&volume).1, before.1 - 1);
        ["/a", "/b"].iter().for_each(|path| volume.remove_file(path).unwrap());
        volume.remove_xattr("/dir", "user.large", false).unwrap();
        volume.remove_xattr("/c", "user.other", false).unwrap();
        assert_eq!(free(&volume).1, before.1 + 1);
        assert_eq!(volume.xattr("/c", "user.large", false).unwrap(), large);
        volume.remove_file("/c").unwrap();
        assert_eq!(free(&volume).1, before.1 + 3);
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

/// The kernel and uext4 take turns: each changes what the other wrote, and both see what the model says.
#[test]
fn root_turns_with_the_kernel() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    // In inodes of 128 bytes Linux cuts the checksum of a value to 31 bits, and its values are not ours then. Volumes
    // with quota are not mounted by this kernel.
    let takes = |args: &[&str]| !args.iter().any(|arg| *arg == "128" || arg.contains("quota"));
    for (seed, args) in LAYOUTS.into_iter().enumerate().filter(|(_, args)| takes(args)) {
        let path = scratch.file("volume.img");
        image(args).save(&path);
        let mut rng = common::sample::seeded(70 + seed as u64);
        let mut model: BTreeMap<&str, Xattrs> = BTreeMap::new();
        let open = || Volume::open(&path, VolumeOptions::read_write()).unwrap();
        // No two files ever have equal blocks: Linux 6.18 loses count of values when blocks become shared.
        let volume = open();
        for (number, path) in PATHS.into_iter().enumerate() {
            for name in ["user.own-1", "user.own-2"] {
                let change = (path, name.to_string(), Some(value(90 + number as u64, 800)));
                ours(&volume, &change).unwrap();
                apply(&mut model, &change);
            }
        }
        volume.close().unwrap();
        for turn in 0..6 {
            let changes: Vec<_> = (0..40).map(|_| any_change(&mut rng)).collect();
            let outcomes: Vec<i32> = match turn % 2 {
                0 => with_kernel(&path, "", |root| {
                    changes.iter().map(|change| kernels(root, change)).collect()
                }),
                _ => {
                    let volume = open();
                    let errno = |change| ours(&volume, change).map_or_else(|error| error.errno(), |()| 0);
                    let outcomes = changes.iter().map(errno).collect();
                    volume.close().unwrap();
                    e2fsck_clean(&path);
                    outcomes
                }
            };
            for (change, outcome) in changes.iter().zip(outcomes) {
                // A long name may fit neither record nor block.
                if outcome == libc::ENOSPC && change.1.len() > 200 {
                    continue;
                }
                let missing = change.2.is_none()
                    && !model.get(change.0).is_some_and(|xattrs| xattrs.contains_key(change.1.as_bytes()));
                assert_eq!(outcome, if missing { libc::ENODATA } else { 0 }, "{args:?} {turn}: {}", change.1);
                apply(&mut model, change);
            }
            let volume = Volume::open(&path, VolumeOptions::read_only()).unwrap();
            let tree = kernel_manifest(&path);
            for (path, xattrs) in &model {
                assert!(read(&volume, path) == *xattrs, "{args:?} {turn} {path}");
                assert!(
                    tree[path.as_bytes()].xattrs == *xattrs,
                    "{args:?} {turn} {path}, as the kernel reads it"
                );
            }
        }
        let volume = open();
        ["/a", "/dir/inner"].iter().for_each(|path| volume.remove_file(path).unwrap());
        volume.close().unwrap();
        with_kernel(&path, "", |root| std::fs::remove_file(root.join("b")).unwrap());
    }
}

/// An access control list that fits no block: set, brought in line with the mode, and inherited.
#[test]
fn large_access_control_lists() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let entry = |tag, permissions| AclEntry { tag, permissions };
    let mut entries = vec![entry(AclTag::Owner, 7)];
    entries.extend((1..700).map(|user| entry(AclTag::User(user), 6)));
    let rest = [(AclTag::OwningGroup, 5), (AclTag::Mask, 7), (AclTag::Other, 1)];
    entries.extend(rest.map(|(tag, permissions)| entry(tag, permissions)));
    let acl = Acl { entries };
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    for args in [LAYOUTS[0], LAYOUTS[1], LAYOUTS[2], LAYOUTS[6]] {
        let device = image(args).device();
        let volume = open_rw(device.clone());
        let before = free(&volume).1;
        volume.set_xattr("/a", access, acl.encode_xattr(), ANY, false).unwrap();
        assert_eq!(volume.metadata("/a").unwrap().mode, 0o771);
        volume.set_permissions("/a", 0o640, false).unwrap();
        let mut expected = acl.clone();
        for entry in &mut expected.entries {
            match entry.tag {
                AclTag::Owner => entry.permissions = 6,
                AclTag::Mask => entry.permissions = 4,
                AclTag::Other => entry.permissions = 0,
                _ => {}
            }
        }
        assert_eq!(volume.xattr("/a", access, false).unwrap(), expected.encode_xattr());
        volume.set_xattr("/dir", default, acl.encode_xattr(), ANY, false).unwrap();
        assert_eq!(free(&volume).1, before - 2, "the first one of the file is free");
        let caller = Caller::root();
        volume.create_dir("/dir/below", 0o750, &caller).unwrap();
        drop(volume.open_file("/dir/new", read_write().create_new(true).mode(0o600)).unwrap());
        assert_eq!(volume.xattr("/dir/below", default, false).unwrap(), acl.encode_xattr());
        for path in ["/dir/below", "/dir/new"] {
            let found = Acl::decode_xattr(&volume.xattr(path, access, false).unwrap()).unwrap();
            assert_eq!(found.entries.len(), acl.entries.len(), "{path}");
        }
        assert_eq!(free(&volume).1, before - 2 - 2 - 2, "two inodes, two lists, and one that is shared");
        volume.remove_file("/dir/new").unwrap();
        volume.remove_dir("/dir/below").unwrap();
        volume.remove_xattr("/dir", default, false).unwrap();
        volume.remove_file("/a").unwrap();
        assert_eq!(free(&volume).1, before + 1, "{args:?}");
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

/// A new file that replaces another has its values; the old one, open to the last, keeps them until it is closed. After
/// a crash in between they are freed at the next open.
#[test]
fn replaced_files_and_orphans() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [LAYOUTS[0], LAYOUTS[1], LAYOUTS[2]] {
        let device = image(args).device();
        let volume = open_rw(device.clone());
        let before = free(&volume).1;
        for number in 0..5 {
            volume.set_xattr("/a", format!("user.{number}"), value(number, 9000), ANY, false).unwrap();
        }
        let old = volume.open_file("/a", read_only()).unwrap();
        let new = volume.replace_file("/a", OpenOptions::new().write(true)).unwrap();
        assert_eq!(free(&volume).1, before - 6);
        drop(new.finish().unwrap());
        for number in 0..5 {
            let name = format!("user.{number}");
            assert_eq!(volume.xattr("/a", &name, false).unwrap(), value(number, 9000));
            volume.remove_xattr("/a", &name, false).unwrap();
        }
        assert_eq!(free(&volume).1, before - 6, "the old file has them");
        assert_eq!(old.xattr("user.3").unwrap(), value(3, 9000));
        volume.sync_all().unwrap();
        let cut = Image::of(&*device).device();
        drop(old);
        volume.close().unwrap();
        assert_clean(&*device);
        let recovered = open_rw(cut.clone());
        assert_eq!(free(&recovered).1, before);
        recovered.close().unwrap();
        assert_clean(&*cut);
    }
}

/// A value that finds no room leaves nothing behind.
#[test]
fn without_room_nothing_changes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [LAYOUTS[0], LAYOUTS[2], LAYOUTS[6]] {
        let device = image(args).device();
        let volume = open_to_the_last(device.clone());
        volume.set_xattr("/a", "user.large", value(1, 9000), ANY, false).unwrap();
        let filler = volume.open_file("/c", read_write()).unwrap();
        let (mut size, block) = (32 << 20, u64::from(volume.block_size()));
        while size >= block {
            if free(&volume).0 * block < size + 3 * block
                || filler.fallocate(Fallocate::Allocate, filler.size(), size).is_err()
            {
                size /= 2;
            }
        }
        let left = free(&volume);
        for _ in 0..3 {
            let refused = volume.set_xattr("/b", "user.large", value(2, 60_000), ANY, false);
            assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
            assert_eq!((read(&volume, "/b"), free(&volume)), (Xattrs::new(), left), "{args:?}");
        }
        // What needs no inode of its own succeeds.
        volume.set_xattr("/b", "user.large", value(1, 9000), ANY, false).unwrap();
        drop(filler);
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

/// Limits hold for the size of a value and its inode, shared or not, and for the block of others.
#[test]
fn limits_of_quota_hold_for_values() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [LAYOUTS[2], LAYOUTS[4], LAYOUTS[6]] {
        let device = image(args).device();
        let volume = open_rw(device.clone());
        for path in ["/a", "/b"] {
            volume.set_owner(path, Some(1000), None, false).unwrap();
        }
        let usage = || volume.quota(QuotaKind::User, 1000).unwrap().unwrap();
        let set =
            |path: &str, name: &str, size, flags| volume.set_xattr(path, name, value(1, size), flags, false);
        let before = usage();
        let limits =
            |blocks_hard, inodes_hard| QuotaLimits { blocks_hard, inodes_hard, ..QuotaLimits::default() };
        let refused = |done: uext4::Result<()>, limit| match done {
            Err(Error::QuotaExceeded { kind: QuotaKind::User, id: 1000, limit: found }) => {
                assert_eq!(found, limit)
            }
            other => panic!("{args:?}: {other:?}"),
        };
        volume.set_quota(QuotaKind::User, 1000, &limits(before.bytes / 1024 + 100, 3)).unwrap();
        set("/a", "user.one", 40_000, XattrFlags::LIMITED).unwrap();
        // The inode is shared, and counted again.
        refused(set("/b", "user.one", 40_000, XattrFlags::LIMITED), QuotaLimit::Inodes);
        volume.set_quota(QuotaKind::User, 1000, &limits(before.bytes / 1024 + 70, 9)).unwrap();
        refused(set("/b", "user.one", 40_000, XattrFlags::LIMITED), QuotaLimit::Space);
        let file = volume.open_file("/b", read_write().limited(true)).unwrap();
        refused(file.set_xattr("user.one", value(1, 40_000), ANY), QuotaLimit::Space);
        drop(file);
        assert_eq!(usage().inodes, before.inodes + 1);
        set("/b", "user.one", 40_000, ANY).unwrap();
        assert_eq!((usage().inodes, usage().bytes > before.bytes + 80_000), (before.inodes + 2, true));
        for path in ["/a", "/b"] {
            volume.remove_xattr(path, "user.one", false).unwrap();
        }
        assert_eq!((usage().inodes, usage().bytes), (before.inodes, before.bytes));
        let most = i64::MAX as u64;
        for (blocks, inodes, fits) in
            [(most / 1024, most, true), (most / 1024 + 1, 0, false), (0, most + 1, false)]
        {
            let set = volume.set_quota(QuotaKind::User, 1000, &limits(blocks, inodes));
            assert_eq!(set.map_or_else(|error| error.errno(), |()| 0), if fits { 0 } else { libc::ERANGE });
        }
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

/// Threads set, replace and remove a few equal values on files of their own.
#[test]
fn threads_share_values() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [LAYOUTS[0], LAYOUTS[1]] {
        let device = image(args).device();
        let volume = open_rw(device.clone());
        let work = |thread: u64| {
            let mut rng = Rng::new(300 + thread);
            for step in 0..60 {
                let path = format!("/t{thread}-{}", rng.below(3));
                if rng.chance(20) {
                    let _may_be_missing = volume.remove_file(&path);
                }
                drop(volume.open_file(&path, read_write().create(true)).unwrap());
                let number = rng.below(3);
                let name = format!("user.{}", rng.below(2));
                volume.set_xattr(&path, &name, value(number, 6000), ANY, false).unwrap();
                assert!(volume.xattr(&path, &name, false).unwrap() == value(number, 6000));
                if step % 25 == 0 {
                    volume.sync_all().unwrap();
                }
                if rng.chance(30) {
                    volume.remove_xattr(&path, &name, false).unwrap();
                }
            }
        };
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..6).map(|thread| scope.spawn(move || work(thread))).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

/// The inode of the first value that a volume has.
fn value_inode(volume: &Volume) -> Ino {
    let is_value = |ino: &Ino| match volume.metadata_of(*ino) {
        Err(Error::Corrupt(corrupt)) => corrupt.kind == CorruptKind::InodeOfValue,
        _ => false,
    };
    (11..1000).map(Ino).find(is_value).unwrap()
}

/// Whatever would change the references of a damaged value is refused, and changes nothing.
#[test]
fn damaged_values_are_refused() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let device = image(LAYOUTS[0]).device();
    let volume = open_rw(device.clone());
    volume.set_xattr("/a", "user.large", value(1, 9000), ANY, false).unwrap();
    let (ino, parent) = (value_inode(&volume), volume.metadata("/a").unwrap());
    volume.close().unwrap();
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("volume.img");
    for (fields, told) in [
        ("flags 0x80000".to_string(), "no ea_inode flag"),
        ("mode 040600".into(), "not a plain file"),
        ("version 0".into(), "fewer references"),
        ("links_count 0".into(), "fewer references"),
        (format!("mtime @{}", parent.ino), "Lustre"),
    ] {
        Image::of(&*device).save(&path);
        let lustre = format!("sif <{ino}> generation {}\n", parent.generation);
        let lustre = if told == "Lustre" { lustre.as_str() } else { "" };
        oracle::debugfs_script(&path, &format!("{lustre}sif <{ino}> {fields}\n"));
        let image = Image::load(&path);
        let damaged = image.device();
        let volume = open_rw(damaged.clone());
        let refused = [
            volume.set_xattr("/a", "user.large", "short", ANY, false),
            volume.remove_xattr("/a", "user.large", false),
            volume.remove_file("/a"),
            volume.replace_file("/a", OpenOptions::new().write(true)).map(drop),
        ];
        for (number, refused) in refused.into_iter().enumerate() {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(told), "{fields} {number}: {error}");
        }
        // Other attributes change all the same.
        volume.set_xattr("/b", "user.large", value(1, 9000), ANY, false).unwrap();
        assert_eq!(read_all(&volume.open_file("/a", read_only()).unwrap()), [b'o'; 100]);
        drop(volume);
        let untouched = image.device();
        drop(open_rw(untouched.clone()).remove_file("/a"));
        assert_unchanged(&image, &*untouched);
    }
}

/// The blocks of a value that is in the log are freed and hold data when the power goes: recovery leaves the data.
#[test]
fn recovery_does_not_write_freed_values_over_data() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(LAYOUTS[2]).device();
    let volume = open_to_the_last(device.clone());
    let filler = volume.open_file("/c", read_write()).unwrap();
    let mut size = 32 << 20;
    while size >= 1024 {
        if filler.fallocate(Fallocate::Allocate, filler.size(), size).is_err() {
            size /= 2;
        }
    }
    filler.set_len(filler.size() - (60 << 10)).unwrap();
    volume.sync_all().unwrap();
    // Most of the few free blocks take the value, and then hold data.
    volume.set_xattr("/a", "user.large", value(1, 40_000), ANY, false).unwrap();
    volume.sync_all().unwrap();
    volume.remove_xattr("/a", "user.large", false).unwrap();
    volume.sync_all().unwrap();
    let data = volume.open_file("/data", read_write().create(true)).unwrap();
    let bytes = vec![b'd'; 1024];
    while data.write_any_at(&bytes, data.size(), WriteFlags::empty()).is_ok() {}
    data.sync_all().unwrap();
    assert!(free(&volume).0 < 8);
    let cut = Image::of(&*device).device();
    let recovered = open_rw(cut.clone());
    let file = recovered.open_file("/data", read_only()).unwrap();
    assert!(file.size() >= 50 << 10 && read_all(&file).iter().all(|byte| *byte == b'd'));
    drop(file);
    recovered.close().unwrap();
    assert_clean(&*cut);
}
