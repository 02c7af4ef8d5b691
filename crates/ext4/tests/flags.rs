//! Flags of inodes, as `chattr` sets them: which can be set, and that they are honoured.

use crate::common;

use common::{Image, aligned, assert_clean, assert_unchanged, open_ro, open_rw, read_all, read_write};
use rustix::fs::{IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags};
use std::path::Path;
use uext4::{
    Counter, Error, Fallocate, InodeFlags, OpenOptions, QueueOptions, SetAttributes, Time, Volume,
    VolumeOptions, WriteFlags,
};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, e2fsck_clean, needs, with_kernel};

fn image(args: &[&str]) -> Image {
    let source = Scratch::new(64 << 20);
    let tree = source.file("tree");
    std::fs::create_dir_all(tree.join("dir")).unwrap();
    for name in ["file", "dir/inner"] {
        std::fs::write(tree.join(name), [b'o'; 8192]).unwrap();
    }
    rustix::fs::mknodat(rustix::fs::CWD, tree.join("pipe"), rustix::fs::FileType::Fifo, 0o644.into(), 0)
        .unwrap();
    let made = VolumeBuilder::new(32 << 20).args(args.iter().copied()).from_dir(&tree).build();
    made.assert_clean();
    Image::load(made.path())
}

fn flags(volume: &Volume, path: &str) -> InodeFlags {
    volume.metadata(path).unwrap().flags
}

fn add(volume: &Volume, path: &str, more: InodeFlags) -> uext4::Result<()> {
    volume.set_flags(path, flags(volume, path) | more, true)
}

fn take(volume: &Volume, path: &str, less: InodeFlags) -> uext4::Result<()> {
    volume.set_flags(path, flags(volume, path) - less, true)
}

/// The flag changes what writes of files and queues do that are open already: a flush or FUA each, until it is taken.
#[test]
fn synchronous_holds_for_what_is_open_already() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for fua in [false, true] {
        let device = image(&[]).device_with(|options| (options.volatile_cache, options.fua) = (true, fua));
        let volume = open_rw(device.clone());
        let file = volume.open_file("/file", read_write()).unwrap();
        let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
        let slot = queue.attach(&file).unwrap();
        let counted = || {
            let stats = volume.stats();
            stats.get(Counter::Flushes) + stats.get(Counter::FuaWrites)
        };
        let mut each = |durable: bool| {
            let mut buffer = aligned(4096);
            buffer.fill(7);
            for how in 0..4 {
                let before = counted();
                match how {
                    0 => assert_eq!(file.write_at(&buffer, 0).unwrap(), 4096),
                    1 => assert_eq!(file.write_any_at(&buffer[..100], 50, WriteFlags::empty()).unwrap(), 100),
                    _ => {
                        queue.write(slot, 4096, queue.buffer(4096).unwrap(), WriteFlags::empty(), 1).unwrap();
                        assert!(queue.wait(1).unwrap().all(|done| done.result.is_ok()));
                    }
                }
                assert_eq!(counted() > before, durable, "{how}, fua {fua}");
            }
        };
        for _ in 0..2 {
            each(false);
            add(&volume, "/file", InodeFlags::SYNC).unwrap();
            file.sync_all().unwrap();
            each(true);
            take(&volume, "/file", InodeFlags::SYNC).unwrap();
            file.sync_all().unwrap();
        }
        drop((queue, file));
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

/// What `FS_IOC_SETFLAGS` shows and takes.
const SHOWN: u32 = 0x725b_dfff;

/// Sets flags through the kernel: how it ended, and the flags afterwards.
fn by_kernel(path: &Path, flip: u32) -> (i32, u32) {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
    let before = ioctl_getflags(&file).unwrap().bits();
    let done = ioctl_setflags(&file, IFlags::from_bits_retain(before ^ flip));
    (done.err().map_or(0, |error| error.raw_os_error()), ioctl_getflags(&file).unwrap().bits())
}

fn by_us(volume: &Volume, path: &str, flip: u32) -> (i32, u32) {
    let done = volume.set_flags(path, flags(volume, path) ^ InodeFlags::from_bits_retain(flip), true);
    (done.err().map_or(0, |error| error.errno()), flags(volume, path).bits() & SHOWN)
}

#[test]
fn root_they_are_set_as_the_kernel_sets_them() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(128 << 20);
    let (ours, theirs) = (scratch.file("ours.img"), scratch.file("theirs.img"));
    let image = image(&[]);
    image.save(&ours);
    image.save(&theirs);
    let mut rng = Rng::new(0xf1a6);
    // Not the journaled data, extents and folded case, which the kernel converts.
    let bits: Vec<u32> = (0..32).map(|bit| 1 << bit).filter(|bit| bit & 0x4008_4000 == 0).collect();
    let changes: Vec<(&str, u32)> = (0..400)
        .map(|_| {
            let mut flip = *rng.pick(&bits);
            if rng.chance(40) {
                flip |= *rng.pick(&bits);
            }
            // Often clear what refuses everything else.
            (*rng.pick(&["/file", "/dir", "/dir/inner"]), if rng.chance(20) { 0x10 } else { flip })
        })
        .collect();
    let expected = with_kernel(&theirs, "noatime", |root| {
        changes.iter().map(|(path, flip)| by_kernel(&root.join(&path[1..]), *flip)).collect::<Vec<_>>()
    });
    let volume = Volume::open(&ours, VolumeOptions::read_write()).unwrap();
    for ((path, flip), expected) in changes.iter().zip(&expected) {
        assert_eq!(by_us(&volume, path, *flip), *expected, "{path} {flip:#x}");
    }
    let done = expected.iter().filter(|(errno, _)| *errno == 0).count();
    assert!((100..350).contains(&done), "{done} of 400 changes were made");
    volume.close().unwrap();
    e2fsck_clean(&ours);
}

/// What an immutable file refuses, also through files and queues that were opened before.
#[test]
fn an_immutable_file_cannot_be_changed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&[]).device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/file", read_write()).unwrap();
    let tail = volume.open_file("/file", OpenOptions::new().append(true)).unwrap();
    let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
    let slot = queue.attach(&file).unwrap();
    let queued = |queue: &mut uext4::IoQueue, pos| {
        let buffer = queue.buffer(4096).unwrap();
        let sent = queue.write(slot, pos, buffer, WriteFlags::empty(), 1);
        sent.and_then(|()| Ok(queue.wait(1)?.try_for_each(|done| done.result.map(drop))?))
    };
    // The queue knows the file from now on.
    queued(&mut queue, 0).unwrap();
    queued(&mut queue, 0).unwrap();
    file.write_at(&aligned(4096), 0).unwrap();
    file.write_any_at(b"written", 100, WriteFlags::empty()).unwrap();
    add(&volume, "/file", InodeFlags::IMMUTABLE).unwrap();
    let before = read_all(&file);
    let node = volume.node_at("/file", true).unwrap();
    let set = |set: SetAttributes| node.set_attributes(&set);
    let mut wrong = Vec::new();
    let mut refused = |what: &str, done: uext4::Result<()>| {
        if !matches!(done, Err(Error::NotPermitted(_))) {
            wrong.push(format!("{what}: {done:?}"));
        }
    };
    refused("write", file.write_at(&aligned(4096), 0).map(drop));
    refused("durable write", file.write_at_with(&aligned(4096), 4096, WriteFlags::DSYNC).map(drop));
    refused("any write", file.write_any_at(b"not written", 1, WriteFlags::empty()).map(drop));
    refused("write past the end", file.write_at(&aligned(4096), 8192).map(drop));
    refused("append", tail.append(b"not written", WriteFlags::empty()).map(drop));
    refused("queued write", queued(&mut queue, 0));
    refused("queued write past the end", queued(&mut queue, 8192));
    refused("truncate", file.set_len(0));
    refused("grow", file.set_len(1 << 20));
    refused("prepare", file.prepare(1 << 20));
    for mode in
        [Fallocate::Allocate, Fallocate::KeepSize, Fallocate::Punch, Fallocate::Zero, Fallocate::Insert]
    {
        refused("fallocate", file.fallocate(mode, 0, 4096));
    }
    refused("open", volume.open_file("/file", read_write()).map(drop));
    refused("open to append", volume.open_file("/file", OpenOptions::new().append(true)).map(drop));
    refused("replace", volume.replace_file("/file", OpenOptions::new()).map(drop));
    refused("remove", volume.remove_file("/file"));
    refused("mode", set(SetAttributes::new().mode(0o600)));
    refused("touch", set(SetAttributes::new().accessed(Time::Now).modified(Time::Now)));
    refused("size", set(SetAttributes::new().size(0)));
    refused("other flags", add(&volume, "/file", InodeFlags::NODUMP));
    refused("more than flags", set(SetAttributes::new().flags(InodeFlags::EXTENTS).mode(0o600)));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(read_all(&file), before);
    take(&volume, "/file", InodeFlags::IMMUTABLE).unwrap();
    queued(&mut queue, 0).unwrap();
    file.write_at(&aligned(4096), 0).unwrap();
    tail.append(b"written", WriteFlags::empty()).unwrap();
    drop((queue, file, tail, node));
    add(&volume, "/dir", InodeFlags::IMMUTABLE).unwrap();
    for done in [
        volume.open_file("/dir/new", read_write().create_new(true)).map(drop),
        volume.remove_file("/dir/inner"),
        volume.replace_file("/dir/inner", OpenOptions::new()).and_then(|new| new.finish().map(drop)),
    ] {
        assert!(matches!(done, Err(Error::NotPermitted(_))), "{done:?}");
    }
    volume.close().unwrap();
    assert_clean(&*device);
}

#[test]
fn an_append_only_file_can_only_grow() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&[]).device();
    let volume = open_rw(device.clone());
    let early = volume.open_file("/file", read_write()).unwrap();
    add(&volume, "/file", InodeFlags::APPEND).unwrap();
    add(&volume, "/dir", InodeFlags::APPEND).unwrap();
    let append = volume.open_file("/file", OpenOptions::new().read(true).append(true)).unwrap();
    assert_eq!(append.append(b"more", WriteFlags::empty()).unwrap(), 8192);
    assert_eq!(read_all(&append)[8190..], *b"oomore");
    assert!(matches!(append.write_at(&aligned(4096), 0), Err(Error::BadMode(_))));
    let open = |options| volume.open_file("/file", options).map(drop);
    for (what, done) in [
        ("write", open(read_write())),
        ("cut", open(read_write().truncate(true))),
        ("shorten", early.set_len(0)),
        ("lengthen", early.set_len(1 << 20)),
        ("punch", early.fallocate(Fallocate::Punch, 0, 4096)),
        ("remove", volume.remove_file("/file")),
        ("replace", volume.replace_file("/file", OpenOptions::new()).map(drop)),
        ("mode", volume.set_permissions("/file", 0o600, true)),
        ("remove from the directory", volume.remove_file("/dir/inner")),
        (
            "replace in the directory",
            volume.replace_file("/dir/inner", OpenOptions::new()).and_then(|new| new.finish().map(drop)),
        ),
    ] {
        assert!(matches!(done, Err(Error::NotPermitted(_))), "{what}: {done:?}");
    }
    // As in Linux, a file that is open for writing stays so.
    early.write_at(&aligned(4096), 0).unwrap();
    drop(volume.open_file("/dir/new", read_write().create_new(true)).unwrap());
    drop((early, append));
    volume.close().unwrap();
    assert_clean(&*device);
}

/// A synchronous file, and a directory whose names are.
#[test]
fn what_is_synchronous_is_durable_at_once() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [&[][..], &["-O", "^has_journal"]] {
        let device = image(args).device();
        let volume = open_rw(device.clone());
        let crashed = || open_ro(Image::of(&*device).device());
        let size = || crashed().metadata("/file").unwrap().size;
        let grow = |at: u64, queued: bool| {
            let file = volume.open_file("/file", read_write()).unwrap();
            if !queued {
                file.write_at(&aligned(4096), at).unwrap();
                return;
            }
            let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
            let slot = queue.attach(&file).unwrap();
            let buffer = queue.buffer(4096).unwrap();
            queue.write(slot, at, buffer, WriteFlags::empty(), 1).unwrap();
            assert!(queue.wait(1).unwrap().all(|done| done.result.is_ok()));
        };
        grow(8192, false);
        assert_eq!(size(), 8192);
        add(&volume, "/file", InodeFlags::SYNC).unwrap();
        grow(12288, false);
        assert_eq!(size(), 16384);
        grow(16384, true);
        assert_eq!(size(), 20480);
        let file = volume.open_file("/file", read_write()).unwrap();
        file.write_any_at(b"end", 20480, WriteFlags::empty()).unwrap();
        assert_eq!(size(), 20483);
        let tail = volume.open_file("/file", OpenOptions::new().append(true)).unwrap();
        tail.append(b"end", WriteFlags::empty()).unwrap();
        drop(tail);
        assert_eq!(size(), 20486);
        file.set_len(100).unwrap();
        assert_eq!(size(), 100);
        file.fallocate(Fallocate::Allocate, 0, 200).unwrap();
        assert_eq!(size(), 200);
        file.prepare(300).unwrap();
        assert_eq!(size(), 300);
        drop(file);
        let make = |path: &str| drop(volume.open_file(path, read_write().create_new(true)).unwrap());
        make("/dir/late");
        assert!(crashed().metadata("/dir/late").is_err());
        for flag in [InodeFlags::DIRSYNC, InodeFlags::SYNC] {
            take(&volume, "/dir", InodeFlags::SYNC | InodeFlags::DIRSYNC).unwrap();
            add(&volume, "/dir", flag).unwrap();
            make("/dir/new");
            assert!(crashed().metadata("/dir/new").is_ok());
            volume.remove_file("/dir/new").unwrap();
            assert!(crashed().metadata("/dir/new").is_err());
        }
        volume.close().unwrap();
        assert_clean(&*device);
    }
}

#[test]
fn projects_and_generations_are_set_where_the_volume_has_them() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (args, project, generation) in [
        (&["-O", "project"][..], true, false),
        (&["-O", "project,^metadata_csum"], true, true),
        (&["-O", "^project,^metadata_csum"], false, true),
        (&["-O", "^project", "-I", "128"], false, false),
    ] {
        let device = image(args).device();
        let volume = open_rw(device.clone());
        let node = volume.node_at("/file", true).unwrap();
        let supported = |done: uext4::Result<()>| match done {
            Ok(()) => true,
            Err(Error::NotSupported(_)) => false,
            other => panic!("{other:?}"),
        };
        assert_eq!(supported(volume.set_project("/file", 1000, true)), project, "{args:?}");
        volume.set_project("/dir", 0, true).unwrap();
        assert!(matches!(volume.set_project("/file", u32::MAX, true), Err(Error::Invalid(_))));
        assert_eq!(
            supported(node.set_attributes(&SetAttributes::new().generation(77))),
            generation,
            "{args:?}"
        );
        let found = node.attributes();
        assert_eq!((found.project == 1000, found.generation == 77), (project, generation));
        if project {
            add(&volume, "/file", InodeFlags::IMMUTABLE).unwrap();
            assert!(matches!(volume.set_project("/file", 5, true), Err(Error::NotPermitted(_))));
            let unlocked =
                SetAttributes::new().flags(flags(&volume, "/file") - InodeFlags::IMMUTABLE).project(6);
            node.set_attributes(&unlocked).unwrap();
        }
        drop(node);
        volume.close().unwrap();
        let found = open_ro(device.clone()).metadata("/file").unwrap();
        assert_eq!((found.project == 6, found.generation == 77), (project, generation));
        assert_clean(&*device);
    }
}

#[test]
fn what_is_refused_changes_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = image(&[]);
    let device = image.device();
    let volume = open_rw(device.clone());
    for (path, wanted, errno) in [
        ("/file", InodeFlags::EXTENTS, 95),
        ("/file", InodeFlags::HUGE_FILE, 95),
        ("/file", InodeFlags::DIRSYNC, 95),
        ("/file", InodeFlags::PROJECT_INHERIT, 95),
        ("/dir", InodeFlags::CASEFOLD, 95),
        ("/pipe", InodeFlags::IMMUTABLE, 95),
    ] {
        let done = volume.set_flags(path, flags(&volume, path) ^ wanted, true);
        assert_eq!(done.map_err(|error| error.errno()), Err(errno), "{path} {wanted:?}");
    }
    volume.sync_all().unwrap();
    assert_unchanged(&image, &*device);
    add(&volume, "/pipe", InodeFlags::NODUMP).unwrap();
    add(&volume, "/file", InodeFlags::ENCRYPT | InodeFlags::INLINE_DATA | InodeFlags::NOATIME).unwrap();
    assert_eq!(flags(&volume, "/file"), InodeFlags::EXTENTS | InodeFlags::NOATIME);
    volume.close().unwrap();
    assert_clean(&*device);
}
