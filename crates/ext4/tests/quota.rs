//! Usage in the quota files is what e2fsck counts, after every kind of change, replay and orphan.

use crate::common;

use common::{Image, aligned, assert_clean, open_rw, read_write};
use std::sync::Arc;
use uext4::device::Device;
use uext4::{
    Buffer, Caller, Error, Fallocate, InodeFlags, NodeKind, OpenOptions, QueueOptions, QuotaGrace, QuotaKind,
    QuotaLimit, QuotaLimits, SetAttributes, Volume, WriteFlags,
};
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

/// Limits of user 1000 in a new volume.
fn limited(layout: (&[&str], &str), limits: QuotaLimits) -> (Arc<dyn Device>, Volume) {
    let device: Arc<dyn Device> = image(layout).device();
    let volume = open_rw(device.clone());
    volume.set_quota(QuotaKind::User, 1000, &limits).unwrap();
    (device, volume)
}

fn is_exceeded<T: std::fmt::Debug>(done: uext4::Result<T>, limit: QuotaLimit) {
    match done {
        Err(error @ Error::QuotaExceeded { kind: QuotaKind::User, id: 1000, .. }) => {
            assert_eq!(error.errno(), libc::EDQUOT);
            assert!(
                error.to_string().contains(&format!("user 1000 has reached the limit of {limit}")),
                "{error}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_more_inodes_than_the_limit() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for layout in &LAYOUTS[..4] {
        let (device, volume) = limited(*layout, QuotaLimits { inodes_hard: 3, ..QuotaLimits::default() });
        let (user, root) = (Caller::new(1000, 100), volume.node_at("/", true).unwrap());
        let dir = root.make_dir("dir", 0o755, &user).unwrap();
        root.create("file", 0o644, &user).unwrap();
        dir.make_symlink("link", "target", &user).unwrap();
        let before = volume.statfs().unwrap();
        is_exceeded(root.create("more", 0o644, &user).map(drop), QuotaLimit::Inodes);
        is_exceeded(dir.make_dir("more", 0o755, &user).map(drop), QuotaLimit::Inodes);
        is_exceeded(dir.make_symlink("more", "x".repeat(500), &user).map(drop), QuotaLimit::Inodes);
        is_exceeded(dir.make_node("more", NodeKind::Fifo, 0o644, &user).map(drop), QuotaLimit::Inodes);
        is_exceeded(root.make_unnamed(0o600, &user).map(drop), QuotaLimit::Inodes);
        is_exceeded(volume.open_file("/more", new_file(1000, 1).limited(true)).map(drop), QuotaLimit::Inodes);
        let after = volume.statfs().unwrap();
        assert_eq!((before.free_inodes, before.free), (after.free_inodes, after.free));
        assert_eq!(volume.metadata("/").unwrap().links, 4);
        // Others, and root on the user's behalf, are free; a chown asks only if it has to.
        root.create("other", 0o644, &Caller::new(1001, 100)).unwrap();
        let other = volume.node_at("/other", true).unwrap();
        is_exceeded(other.set_attributes(&SetAttributes::new().uid(1000).limited(true)), QuotaLimit::Inodes);
        other.set_attributes(&SetAttributes::new().uid(1000)).unwrap();
        assert_eq!(volume.quota(QuotaKind::User, 1000).unwrap().unwrap().inodes, 4);
        // What is removed makes room.
        root.unlink("other").unwrap();
        root.unlink("file").unwrap();
        drop(other);
        root.create("again", 0o644, &user).unwrap();
        drop((dir, root));
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

#[test]
fn no_more_space_than_the_limit() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for layout in LAYOUTS.iter().take(4) {
        let (device, volume) = limited(*layout, QuotaLimits { blocks_hard: 256, ..QuotaLimits::default() });
        let used = || volume.quota(QuotaKind::User, 1000).unwrap().map_or(0, |entry| entry.bytes);
        let file = volume.open_file("/file", new_file(1000, 1).limited(true)).unwrap();
        file.write_at(&filled(128 << 10), 0).unwrap();
        // At the end, over a hole, by reservation, and from a queue.
        is_exceeded(file.write_at(&filled(256 << 10), 128 << 10), QuotaLimit::Space);
        if !layout.0.contains(&"quota,^extents,^64bit") {
            is_exceeded(file.fallocate(Fallocate::Allocate, 1 << 20, 512 << 10), QuotaLimit::Space);
            is_exceeded(file.fallocate(Fallocate::KeepSize, 1 << 20, 512 << 10), QuotaLimit::Space);
        }
        let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
        let slot = queue.attach(&file).unwrap();
        drop(file);
        let mut data = queue.buffer(512 << 10).unwrap();
        data.fill(1);
        queue.write(slot, 2 << 20, data, WriteFlags::empty(), 1).unwrap();
        let done = queue.wait(1).unwrap().next().unwrap().result;
        is_exceeded(done.map(drop).map_err(|error| *error), QuotaLimit::Space);
        drop(queue);
        assert!(used() <= 256 << 10, "{}", used());
        // Root is not limited, and the limit holds again for others.
        let open = volume.open_file("/file", read_write()).unwrap();
        open.write_at(&filled(512 << 10), 0).unwrap();
        drop(open);
        assert!(used() >= 512 << 10);
        let file = volume.open_file("/file", read_write().limited(true)).unwrap();
        file.write_at(&filled(512 << 10), 0).unwrap();
        is_exceeded(file.write_at(&filled(4096), 512 << 10), QuotaLimit::Space);
        file.set_len(0).unwrap();
        file.write_at(&filled(64 << 10), 0).unwrap();
        // A directory and a symbolic link that need a block.
        let user = Caller::new(1000, 1);
        let block = volume.superblock().geometry.block_size();
        let free = (256 << 10) - used();
        let fill = free / u64::from(block) * u64::from(block);
        let _all = file.write_at(&filled(fill as usize), 64 << 10);
        while file.write_at(&filled(block as usize), file.size().next_multiple_of(block.into())).is_ok() {}
        let root = volume.node_at("/", true).unwrap();
        is_exceeded(root.make_dir("dir", 0o755, &user).map(drop), QuotaLimit::Space);
        is_exceeded(root.make_symlink("link", "x".repeat(900), &user).map(drop), QuotaLimit::Space);
        root.make_symlink("short", "x", &user).unwrap();
        drop((file, root));
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

#[test]
fn a_soft_limit_holds_after_its_time_of_grace() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let soft = QuotaLimits { blocks_soft: 64, inodes_soft: 1, ..QuotaLimits::default() };
    let (device, volume) = limited(LAYOUTS[0], soft);
    assert_eq!(volume.quota_grace(QuotaKind::User).unwrap(), QuotaGrace { blocks: 604_800, inodes: 604_800 });
    volume.set_quota_grace(QuotaKind::User, QuotaGrace { blocks: 1, inodes: 1000 }).unwrap();
    let file = volume.open_file("/file", new_file(1000, 1).limited(true)).unwrap();
    file.write_at(&filled(64 << 10), 0).unwrap();
    let entry = || volume.quota(QuotaKind::User, 1000).unwrap().unwrap();
    assert_eq!((entry().block_time, entry().inode_time), (0, 0));
    file.write_at(&filled(64 << 10), 64 << 10).unwrap();
    let until = entry().block_time;
    assert!(until > 0);
    std::thread::sleep(std::time::Duration::from_millis(2100));
    is_exceeded(file.write_at(&filled(64 << 10), 128 << 10), QuotaLimit::Space);
    // Limits that are set again give the time of grace again.
    volume.set_quota(QuotaKind::User, 1000, &soft).unwrap();
    assert!(entry().block_time > until);
    file.write_at(&filled(1024), 128 << 10).unwrap();
    volume.open_file("/two", new_file(1000, 1).limited(true)).unwrap();
    assert!(entry().inode_time > until);
    file.set_len(1024).unwrap();
    assert_eq!(entry().block_time, 0);
    file.write_at(&filled(64 << 10), 64 << 10).unwrap();
    drop(file);
    volume.close().unwrap();
    assert_clean(&*device);
    // Limits and times are on the volume.
    let volume = open_rw(device.clone());
    let entry = volume.quota(QuotaKind::User, 1000).unwrap().unwrap();
    assert_eq!((entry.blocks_soft, entry.inodes_soft, entry.inodes), (64, 1, 2));
    assert_eq!(volume.quota_grace(QuotaKind::User).unwrap(), QuotaGrace { blocks: 1, inodes: 1000 });
    let all = volume.quotas(QuotaKind::User).unwrap();
    assert_eq!(all.iter().map(|entry| entry.id).collect::<Vec<_>>(), [0, 1000]);
    assert!(matches!(volume.quota(QuotaKind::User, 5), Ok(None)));
    volume.close().unwrap();
}

/// All entries that debugfs lists, for readers too; a tree that leads in circles is an error.
#[test]
fn quotas_are_listed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let device = image(LAYOUTS[0]).device();
    let volume = open_rw(device.clone());
    assert_eq!(volume.quota_kinds().unwrap(), QuotaKind::ALL);
    for number in 0..60_u32 {
        let id = number.wrapping_mul(0x0123_4567);
        drop(volume.open_file(format!("/{number}"), new_file(id, number / 7)).unwrap());
    }
    let users = volume.quotas(QuotaKind::User).unwrap();
    volume.close().unwrap();
    let reader = common::open_ro(device.clone());
    assert_eq!(reader.quotas(QuotaKind::User).unwrap(), users);
    assert_eq!(users.len(), 60);
    assert!(users.is_sorted_by_key(|entry| entry.id));
    for entry in users.iter().step_by(7) {
        assert_eq!(usage(&*device, "user", entry.id), Some((entry.bytes, entry.inodes)));
    }
    assert_eq!(reader.quotas(QuotaKind::Group).unwrap().len(), 9);
    let plain = image((&["-b", "1024"], "stride=1")).device();
    let plain = open_rw(plain);
    assert!(plain.quota_kinds().unwrap().is_empty());
    assert!(matches!(plain.quota(QuotaKind::User, 0), Err(Error::NotSupported(_))));
    let set = plain.set_quota(QuotaKind::User, 0, &QuotaLimits::default());
    assert!(matches!(set, Err(Error::NotSupported(_))));
    // The root leads to itself by way of its child.
    let mut bad = Image::of(&*device);
    let magic = 0xD9C0_1F11_u32.to_le_bytes();
    let found =
        bad.bytes.windows(8).position(|bytes| bytes[..4] == magic && bytes[4..] == [1, 0, 0, 0]).unwrap();
    let child = u32::from_le_bytes(bad.bytes[found + 1024..found + 1028].try_into().unwrap());
    for slot in 0..256 {
        let at = found + 1024 + slot * 4;
        bad.bytes[at..at + 4].copy_from_slice(&(child + slot as u32 % 3).to_le_bytes());
    }
    assert!(common::open_ro(bad.device()).quotas(QuotaKind::User).is_err());
}

/// A directory that has to grow for the name of a new directory of the same owner: both count.
#[test]
fn a_creation_that_needs_two_blocks_does_not_exceed_the_limit() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (device, volume) = limited(LAYOUTS[0], QuotaLimits::default());
    let user = Caller::new(1000, 100);
    let dir = volume.node_at("/", true).unwrap().make_dir("dir", 0o755, &user).unwrap();
    let used = || volume.quota(QuotaKind::User, 1000).unwrap().unwrap().bytes / 1024;
    let mut refused = 0;
    for number in 0..12 {
        let blocks_hard = used() + 1;
        let limits = QuotaLimits { blocks_hard, ..QuotaLimits::default() };
        volume.set_quota(QuotaKind::User, 1000, &limits).unwrap();
        let name = format!("{number:02}{}", "n".repeat(190));
        if let Err(error) = dir.make_dir(&name, 0o755, &user) {
            assert!(matches!(error, Error::QuotaExceeded { .. }), "{error}");
            refused += 1;
            volume.set_quota(QuotaKind::User, 1000, &QuotaLimits::default()).unwrap();
            dir.make_dir(&name, 0o755, &user).unwrap();
        } else {
            assert!(used() <= blocks_hard, "{number}: {} KiB", used());
        }
    }
    assert!(refused > 0);
    drop(dir);
    volume.close().unwrap();
    assert_clean(&*device);
}
