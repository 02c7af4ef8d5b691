//! Usage in the quota files is what e2fsck counts, after every kind of change, replay and orphan.

use crate::common;

use common::{Image, aligned, assert_clean, open_rw, read_write};
use std::sync::Arc;
use uext4::device::Device;
use uext4::{Buffer, Error, Fallocate, InodeFlags, OpenOptions, SetAttributes, Volume};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, needs, oracle};

const ALL: &str = "quotatype=usrquota:grpquota:prjquota";

/// Layouts: arguments of mke2fs, and its extended options.
const LAYOUTS: [(&[&str], &str); 5] = [
    (&["-b", "1024", "-O", "quota,project"], ALL),
    (&["-b", "4096", "-O", "quota,project,bigalloc", "-C", "16384"], ALL),
    (&["-b", "1024", "-I", "128", "-O", "quota,^extents,^64bit"], "quotatype=usrquota:grpquota"),
    (&["-b", "2048", "-O", "quota,^has_journal"], "quotatype=usrquota"),
    (&["-b", "4096", "-O", "quota,project,orphan_file"], "quotatype=prjquota"),
];

fn image((args, extended): (&[&str], &str)) -> Image {
    Image::load(VolumeBuilder::new(24 << 20).args(args.iter().copied()).extended(extended).build().path())
}

/// Whole device blocks.
fn filled(length: usize) -> Buffer {
    let mut bytes = aligned(length.next_multiple_of(1024));
    bytes.fill(7);
    bytes
}

fn new_file(uid: u32, gid: u32) -> OpenOptions {
    read_write().create(true).owner(uid, gid)
}

/// Does one random change of the files `/0` to `/11`. What does not exist or fit is left.
fn change(volume: &Volume, rng: &mut Rng, projects: bool) {
    let path = format!("/{}", rng.below(12));
    let id = |rng: &mut Rng| *rng.pick(&[0, 1, 255, 256, 1000, 65_536, 1 << 24, u32::MAX - 1]);
    let size = rng.below(300_000);
    let done = match rng.below(9) {
        0 | 1 => volume
            .open_file(&path, new_file(id(rng), id(rng)))
            .and_then(|file| file.write_at(&filled(1 + rng.below(200_000) as usize), size & !4095).map(drop)),
        2 => volume.open_file(&path, read_write()).and_then(|file| file.set_len(size)),
        3 => volume.open_file(&path, read_write()).and_then(|file| {
            file.fallocate(*rng.pick(&[Fallocate::Allocate, Fallocate::KeepSize]), size, 70_000)
        }),
        4 => volume
            .open_file(&path, read_write())
            .and_then(|file| file.fallocate(Fallocate::Punch, size / 2, 100_000)),
        5 => volume.set_owner(&path, Some(id(rng)), Some(id(rng)), true),
        6 if projects => volume.set_project(&path, id(rng), true),
        7 => volume.replace_file(&path, new_file(id(rng), id(rng))).and_then(|new| {
            new.file().write_at(&filled(30_000), 0)?;
            if rng.chance(50) { new.finish().map(drop) } else { Ok(()) }
        }),
        _ => volume.remove_file(&path),
    };
    match done {
        Ok(())
        | Err(
            Error::NotFound | Error::NotSupported(_) | Error::Incompatible { .. } | Error::Misaligned { .. },
        ) => {}
        Err(error) => panic!("{path}: {error}"),
    }
}

#[test]
fn every_change_is_counted() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (seed, layout) in (1..).zip(LAYOUTS) {
        let image = image(layout);
        let device = image.device();
        let mut rng = Rng::new(seed);
        let projects = layout.0.iter().any(|arg| arg.contains("project"));
        for _ in 0..3 {
            let volume = open_rw(device.clone());
            for _ in 0..60 {
                change(&volume, &mut rng, projects);
            }
            volume.close().unwrap();
            assert_clean(&*device);
        }
    }
}

/// What `device` is after a power cut that loses nothing.
fn cut(device: &dyn Device) -> Arc<dyn Device> {
    Image::of(device).device()
}

#[test]
fn a_replay_counts_nothing_twice_and_an_orphan_not_at_all() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(LAYOUTS[0]).device();
    let volume = open_rw(device.clone());
    let mut rng = Rng::new(77);
    for round in 0..6 {
        (0..12).for_each(|_| change(&volume, &mut rng, true));
        let open = volume.open_file("/unnamed", new_file(70_000 + round, 5)).unwrap();
        open.write_at(&filled(50_000), 0).unwrap();
        volume.remove_file("/unnamed").unwrap();
        volume.sync_all().unwrap();
        let after = cut(&*device);
        open_rw(after.clone()).close().unwrap();
        assert_clean(&*after);
        assert_eq!(usage(&*after, "user", 70_000 + round), Some((0, 0)));
        drop(open);
    }
    volume.close().unwrap();
    assert_clean(&*device);
}

/// Bytes and inodes of an entry as debugfs tells them.
fn usage(device: &dyn Device, kind: &str, id: u32) -> Option<(u64, u64)> {
    let scratch = Scratch::new(32 << 20);
    let path = scratch.file("volume.img");
    Image::of(device).save(&path);
    let list = oracle::debugfs(&path, &format!("list_quota {kind}"));
    let line = list.lines().find(|line| line.split_whitespace().next() == Some(&id.to_string()))?.to_owned();
    let mut words = line.split_whitespace().skip(1);
    let bytes = words.next()?.parse().ok()?;
    Some((bytes, words.nth(2)?.parse().ok()?))
}

#[test]
fn usage_follows_the_owner_and_the_project() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let device = image(LAYOUTS[0]).device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/file", new_file(1000, 2000)).unwrap();
    file.write_at(&filled(65_536), 0).unwrap();
    drop(file);
    let flags = volume.metadata("/").unwrap().flags | InodeFlags::PROJECT_INHERIT;
    volume.node_at("/", true).unwrap().set_attributes(&SetAttributes::new().project(9).flags(flags)).unwrap();
    let file = volume.open_file("/inherits", new_file(1000, 3000)).unwrap();
    file.write_at(&filled(1024), 0).unwrap();
    drop(file);
    volume.set_project("/file", 8, true).unwrap();
    volume.set_owner("/file", Some(1001), None, true).unwrap();
    volume.close().unwrap();
    assert_clean(&*device);
    for (kind, id, expected) in [
        ("user", 1000, (1024, 1)),
        ("user", 1001, (65_536, 1)),
        ("group", 2000, (65_536, 1)),
        ("group", 3000, (1024, 1)),
        ("project", 8, (65_536, 1)),
    ] {
        assert_eq!(usage(&*device, kind, id), Some(expected), "{kind} {id}");
    }
}

/// Enough entries that leaves and tree blocks are added, by many threads at once.
#[test]
fn many_owners_get_entries() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for layout in [LAYOUTS[0], LAYOUTS[1]] {
        let device = image(layout).device();
        let volume = open_rw(device.clone());
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let volume = &volume;
                scope.spawn(move || {
                    for number in 0..40 {
                        let id = (thread % 2 * 40 + number).wrapping_mul(0x0111_0101);
                        drop(volume.open_file(format!("/{thread}-{number}"), new_file(id, id)).unwrap());
                    }
                });
            }
        });
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

#[test]
fn damaged_quota_files_are_refused_before_anything_changes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let good = image(LAYOUTS[0]);
    let magic = 0xD9C0_1F11_u32.to_le_bytes();
    let header =
        good.bytes.windows(8).position(|bytes| bytes[..4] == magic && bytes[4..] == [1, 0, 0, 0]).unwrap();
    for (at, value) in [(0, 7), (4, 0), (20, 1), (20, 1 << 20), (24, 1), (28, 1 << 30)] {
        let mut bad = good.clone();
        bad.bytes[header + at..header + at + 4].copy_from_slice(&u32::to_le_bytes(value));
        let device = bad.device();
        let opened = Volume::open_device(device.clone(), uext4::VolumeOptions::read_write()).map(drop);
        assert!(matches!(opened, Err(Error::Corrupt(_))), "{at}: {opened:?}");
        common::assert_unchanged(&bad, &*device);
        drop(common::open_ro(device));
    }
    // The tree leads out of the file: whoever is counted there is not changed.
    let mut bad = good.clone();
    let root = header + 1024;
    bad.bytes[root..root + 4].copy_from_slice(&u32::to_le_bytes(1 << 20));
    let device = bad.device();
    let volume = open_rw(device.clone());
    let made = volume.open_file("/file", new_file(1, 1)).map(drop);
    assert!(matches!(made, Err(Error::Corrupt(_))), "{made:?}");
    volume.sync_all().unwrap();
}
