//! Writes that are acknowledged before they are on the device: who asks sees them, errors are told, times stay.

use super::faults::Stopped;
use super::{Mounted, NEEDS, Stacked, volume, wait_until};
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, RenameFlags};
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant, SystemTime};
use uext4_testkit::guard::Tmpfs;
use uext4_testkit::oracle::e2fsck_clean;
use uext4_testkit::{VolumeBuilder, requirement};

#[test]
fn root_a_late_write_keeps_what_was_set_after_it() {
    if !requirement::require("mount::late::keeps", &NEEDS) {
        return;
    }
    let stacked = Stacked::new("commit=300");
    let upper = &stacked.upper;
    let file = File::options().read(true).write(true).create_new(true).open(upper.at("file")).unwrap();
    // What is not late is in memory from here on.
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.sync_all().unwrap();
    let stopped = Stopped::new(&stacked.lower);
    file.write_all_at(&[2; 8192], 4096).unwrap();
    file.write_all_at(&[3; 100], 12288).unwrap();
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(then).unwrap();
    drop(stopped);
    let found = file.metadata().unwrap();
    assert_eq!((found.len(), found.mtime(), found.mtime_nsec()), (12388, 1_000_000_000, 0));
    assert_eq!(found.blocks(), 32);
    file.sync_all().unwrap();
    super::drop_caches();
    assert_eq!(std::fs::metadata(upper.at("file")).unwrap().mtime(), 1_000_000_000);
    let contents = [vec![1; 4096], vec![2; 8192], vec![3; 100]].concat();
    assert!(std::fs::read(upper.at("file")).unwrap() == contents);
    // A later write counts.
    file.write_all_at(&[4], 0).unwrap();
    assert!(file.metadata().unwrap().mtime() > 1_000_000_000);
    drop(file);
    stacked.unmount();
}

#[test]
fn root_a_failed_late_write_is_told_once_by_the_sync_of_each_file() {
    if !requirement::require("mount::late::failed", &NEEDS) {
        return;
    }
    // A device that has no room for the data of one file any more, and else for everything.
    let below = Tmpfs::new(72 << 20);
    let image = below.path().join("image");
    let device = File::options().read(true).write(true).create_new(true).open(&image).unwrap();
    device.set_len(64 << 20).unwrap();
    VolumeBuilder::new(64 << 20).args(["-b", "4096"]).format(&image);
    rustix::fs::fallocate(&device, FallocateFlags::KEEP_SIZE, 0, 64 << 20).unwrap();
    let mounted = Mounted::new(&image, "commit=300");
    let first = File::options().read(true).write(true).create_new(true).open(mounted.at("file")).unwrap();
    first.write_all_at(&vec![0x5a; 4 << 20], 0).unwrap();
    first.sync_all().unwrap();
    let second = File::open(mounted.at("file")).unwrap();
    let bytes = std::fs::read(&image).unwrap();
    for (number, _) in
        bytes.chunks(4096).enumerate().filter(|(_, page)| page.iter().all(|byte| *byte == 0x5a))
    {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&device, hole, number as u64 * 4096, 4096).unwrap();
    }
    let ballast = File::create(below.path().join("ballast")).unwrap();
    let full = (0..).find_map(|page: u64| ballast.write_all_at(&[1; 4096], page * 4096).err());
    assert_eq!(full.unwrap().raw_os_error(), Some(libc::ENOSPC));
    first.write_all_at(&vec![1; 1 << 20], 0).expect("it is late");
    drop(first);
    // Who opened it before, and, since nobody was told, who opens it now.
    let third = File::open(mounted.at("file")).unwrap();
    for file in [&third, &second] {
        let error = file.sync_all().unwrap_err();
        assert!(matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EIO)), "{error}");
    }
    let fourth = File::options().write(true).open(mounted.at("file")).unwrap();
    let again = [third.sync_data(), second.sync_data(), fourth.sync_data()];
    assert!(again.iter().all(Result::is_ok), "{again:?}: told again");
    // The next ones fail themselves.
    assert!(fourth.write_all_at(&vec![2; 4096], 0).is_err(), "it is late");
    // With room, it goes on.
    ballast.set_len(0).unwrap();
    fourth.write_all_at(&vec![3; 4 << 20], 0).unwrap();
    fourth.sync_all().unwrap();
    drop((second, third, fourth));
    mounted.unmount();
    e2fsck_clean(&image);
}

#[test]
fn root_what_waits_is_seen_by_everybody() {
    if !requirement::require("mount::late::seen", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    for round in 0..200u32 {
        let (data, path) = (round.to_le_bytes().repeat(3000), mounted.at(format!("file{}", round % 7)));
        std::fs::write(&path, &data).unwrap();
        // Each way asks at once, while the write may wait.
        match round % 5 {
            0 => assert_eq!(std::fs::metadata(&path).unwrap().blocks(), 24),
            1 => {
                std::fs::rename(&path, mounted.at("other")).unwrap();
                std::fs::rename(mounted.at("other"), &path).unwrap();
            }
            2 => File::options().write(true).open(&path).unwrap().set_len(8000).unwrap(),
            3 => {
                let direct = rustix::fs::OFlags::DIRECT | rustix::fs::OFlags::RDONLY;
                let file = rustix::fs::open(&path, direct, rustix::fs::Mode::empty()).unwrap();
                let mut read = vec![0; 12288];
                let length = rustix::io::pread(&file, &mut read, 0).unwrap();
                assert!(read[..length] == data, "round {round}");
            }
            _ => {
                std::fs::remove_file(&path).unwrap();
                std::fs::write(&path, &data).unwrap();
            }
        }
        let kept = if round % 5 == 2 { 8000 } else { data.len() };
        assert!(std::fs::read(&path).unwrap() == data[..kept], "round {round}");
        super::drop_caches();
        assert!(std::fs::read(&path).unwrap() == data[..kept], "round {round}, from the device");
    }
    mounted.unmount();
    volume.assert_clean();
}

#[test]
fn root_a_file_that_replaces_another_has_its_contents_after_a_crash() {
    if !requirement::require("mount::late::replaces", &NEEDS) {
        return;
    }
    let volume = volume();
    for round in 0..12u64 {
        let mut mounted = Mounted::new(volume.path(), "commit=1");
        let (path, new) = (mounted.at("settings"), mounted.at("settings.new"));
        let writer = std::thread::spawn(move || {
            // Until the server is gone.
            (1..u64::MAX)
                .take_while(|n| {
                    let data = n.to_le_bytes().repeat(700);
                    std::fs::write(&new, data).and_then(|()| std::fs::rename(&new, &path)).is_ok()
                })
                .count()
        });
        std::thread::sleep(Duration::from_millis(900 + 53 * round));
        mounted.signal(Signal::KILL);
        let _ended = mounted.ended();
        assert!(writer.join().unwrap() > 0);
        drop(mounted);
        let again = Mounted::new(volume.path(), "");
        if let Ok(found) = std::fs::read(again.at("settings")) {
            assert_eq!(found.len(), 5600, "round {round}");
            assert!(found.chunks(8).all(|piece| piece == &found[..8]), "round {round}");
        }
        again.unmount();
        volume.assert_clean();
    }
}

#[test]
fn root_a_full_volume_refuses_the_write_itself() {
    if !requirement::require("mount::late::full", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    for round in 0..3 {
        let file = File::create(mounted.at("all")).unwrap();
        let full = (0..2000).find_map(|piece: u64| file.write_all_at(&[round; 50_000], piece * 50_000).err());
        assert_eq!(full.unwrap().raw_os_error(), Some(libc::ENOSPC), "round {round}");
        file.sync_all().expect("nothing that was acknowledged is lost");
        assert!(file.metadata().unwrap().len() > 40 << 20);
        drop(file);
        super::drop_caches();
        assert!(std::fs::read(mounted.at("all")).unwrap().iter().all(|byte| *byte == round));
        std::fs::remove_file(mounted.at("all")).unwrap();
        // The kernel forgets a file after it is removed: its blocks are free then.
        wait_until("the blocks to be free", || {
            let space = rustix::fs::statvfs(mounted.path()).unwrap();
            space.f_bfree * space.f_frsize > 40 << 20
        });
    }
    mounted.unmount();
    volume.assert_clean();
}

#[test]
fn root_renames_and_truncations_wait_for_what_is_late() {
    if !requirement::require("mount::late::waits", &NEEDS) {
        return;
    }
    let stacked = Stacked::new("commit=300,threads=12");
    let upper = &stacked.upper;
    let names = ["renamed", "linked", "shortened", "emptied", "overwritten", "exchanged"];
    // A directory each: the kernel lets one change of names after the other into a directory.
    let path = |name: &str| upper.at(name).join("file");
    for name in names {
        std::fs::create_dir(upper.at(name)).unwrap();
        std::fs::write(path(name), [1; 4096]).unwrap();
        File::open(path(name)).unwrap().sync_all().unwrap();
    }
    let other = path("exchanged").with_extension("new");
    std::fs::write(&other, "old").unwrap();
    File::open(&other).unwrap().sync_all().unwrap();
    let files = names.map(|name| File::options().write(true).open(path(name)).unwrap());
    let stopped = Stopped::new(&stacked.lower);
    for file in &files {
        // The first piece hangs, the others wait behind it.
        for piece in 1..20 {
            file.write_all_at(&[2; 4096], piece * 8192).expect("it is late");
        }
    }
    let [renamed, linked, shortened, emptied, overwritten, exchanged] = names.map(path);
    let durable = || {
        let flags = OFlags::WRONLY | OFlags::DSYNC;
        let file = File::from(rustix::fs::open(overwritten, flags, Mode::empty())?);
        file.write_all_at(&[3; 4096], 19 * 8192)
    };
    // The late one is the second: it gets the name of the first.
    let exchange = || Ok(rustix::fs::renameat_with(CWD, other, CWD, exchanged, RenameFlags::EXCHANGE)?);
    let waiters = [
        std::thread::spawn(move || std::fs::rename(&renamed, renamed.with_extension("new"))),
        std::thread::spawn(move || std::fs::hard_link(&linked, linked.with_extension("new"))),
        std::thread::spawn(move || File::options().write(true).open(shortened)?.set_len(5000)),
        std::thread::spawn(move || File::create(emptied).map(drop)),
        std::thread::spawn(durable),
        std::thread::spawn(exchange),
    ];
    std::thread::sleep(Duration::from_millis(400));
    let done: Vec<_> = waiters.iter().map(std::thread::JoinHandle::is_finished).collect();
    drop(stopped);
    assert_eq!(done, [false; 6], "{names:?}");
    for waiter in waiters {
        waiter.join().unwrap().unwrap();
    }
    drop(files);
    super::drop_caches();
    let piece = |number| [[if number == 0 { 1 } else { 2 }; 4096], [0; 4096]].concat();
    let mut whole = (0..20).flat_map(piece).collect::<Vec<u8>>();
    // The last piece ends with its data.
    let length = whole.len() - 4096;
    whole.truncate(length);
    for (name, length) in [
        ("renamed/file.new", length),
        ("linked/file.new", length),
        ("shortened/file", 5000),
        ("emptied/file", 0),
        ("exchanged/file.new", length),
    ] {
        assert!(std::fs::read(upper.at(name)).unwrap() == whole[..length], "{name}");
    }
    whole[19 * 8192..].fill(3);
    assert!(std::fs::read(path("overwritten")).unwrap() == whole, "a later write counts");
    stacked.unmount();
}

#[test]
fn root_space_that_is_taken_at_once_costs_no_late_write() {
    if !requirement::require("mount::late::space", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    let (large, until) = (mounted.at("large"), Instant::now() + Duration::from_secs(4));
    let taker = std::thread::spawn(move || {
        let mut taken = 0;
        while Instant::now() < until {
            let file = File::create(&large).unwrap();
            // All that is left, or nothing.
            for length in [48 << 20, 16 << 20, 4 << 20, 1 << 20, 256 << 10, 64 << 10] {
                taken += u32::from(
                    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, taken.into(), length).is_ok(),
                );
            }
        }
        taken
    });
    let (mut written, mut round) = (0, 0);
    while Instant::now() < until {
        round += 1;
        let file = File::create(mounted.at(format!("small{}", round % 8))).unwrap();
        let pieces =
            (0..64).take_while(|piece: &u64| file.write_all_at(&[1; 30_000], piece * 30_000).is_ok());
        written += pieces.count();
        file.sync_all().expect("nothing that was acknowledged is lost");
    }
    assert!(taker.join().unwrap() > 4 && written > 64);
    mounted.unmount();
    volume.assert_clean();
}
