//! The time of the last access: when reads set it, and when it reaches the volume.

use crate::common;

use common::{Image, aligned, assert_clean, open_ro, read_only, read_write};
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Arc;
use uext4::device::MemoryDevice;
use uext4::{Atime, InodeFlags, QueueOptions, ReadFlags, Timestamp, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, with_kernel};

const PATHS: [&str; 3] = ["/file", "/dir", "/link"];

fn image() -> Image {
    let source = Scratch::new(64 << 20);
    let tree = source.file("tree");
    std::fs::create_dir_all(tree.join("dir")).unwrap();
    std::fs::write(tree.join("file"), [b'o'; 8192]).unwrap();
    symlink("dir", tree.join("link")).unwrap();
    Image::load(VolumeBuilder::new(16 << 20).from_dir(&tree).build().path())
}

fn open(device: &Arc<MemoryDevice>, atime: Atime) -> Volume {
    Volume::open_device(device.clone(), VolumeOptions::read_write().atime(atime)).unwrap()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}

fn accessed(volume: &Volume, path: &str) -> Timestamp {
    volume.symlink_metadata(path).unwrap().accessed
}

fn set(volume: &Volume, path: &str, accessed: i64, modified: i64) {
    volume.set_times(path, Some(at(accessed).into()), Some(at(modified).into()), false).unwrap();
}

type Call<'v> = Box<dyn Fn() + 'v>;

/// Everything that reads `path`.
fn reads<'v>(volume: &'v Volume, path: &'v str) -> Vec<(&'static str, Call<'v>)> {
    match path {
        "/dir" => vec![
            ("list", Box::new(move || assert_eq!(volume.read_dir(path).unwrap().count(), 2))),
            ("list by node", Box::new(move || drop(volume.node_at(path, true).unwrap().read_dir().unwrap()))),
        ],
        "/link" => vec![
            ("read the link", Box::new(move || drop(volume.read_link(path).unwrap()))),
            (
                "follow the link",
                Box::new(move || {
                    volume.metadata(path).unwrap();
                }),
            ),
        ],
        _ => {
            let file = volume.open_file(path, read_only()).unwrap();
            let again = file.clone();
            let (any, nowait, end) = (file.clone(), file.clone(), file.clone());
            vec![
                ("read", Box::new(move || assert_eq!(file.read_at(&mut aligned(4096), 0).unwrap(), 4096))),
                ("read any", Box::new(move || assert_eq!(any.read_any_at(&mut [0; 5], 3).unwrap(), 5))),
                (
                    "read at the end",
                    Box::new(move || assert_eq!(end.read_at(&mut aligned(4096), 8192).unwrap(), 0)),
                ),
                (
                    "do not wait",
                    Box::new(move || drop(nowait.read_at_with(&mut aligned(4096), 0, ReadFlags::NOWAIT))),
                ),
                (
                    "queued",
                    Box::new(move || {
                        let mut queue = volume.queue(QueueOptions::depth(2)).unwrap();
                        let slot = queue.attach(&again).unwrap();
                        let buffer = queue.buffer(4096).unwrap();
                        queue.read(slot, 0, buffer, 1).unwrap();
                        assert!(queue.wait(1).unwrap().all(|done| done.result.is_ok()));
                    }),
                ),
            ]
        }
    }
}

#[test]
fn every_way_to_read_counts_and_the_rest_does_not() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image().device();
    for mode in [Atime::Off, Atime::Relatime, Atime::Strict] {
        let volume = open(&device, mode);
        for path in PATHS {
            for (what, read) in reads(&volume, path) {
                set(&volume, path, 1000, 500);
                volume.symlink_metadata(path).unwrap();
                assert_eq!(accessed(&volume, path), at(1000));
                read();
                let found = accessed(&volume, path);
                assert_eq!(found != at(1000), mode != Atime::Off, "{what} {path}, {mode:?}");
                // By hand, and not by what was read before.
                set(&volume, path, 7, 500);
                assert_eq!(accessed(&volume, path), at(7));
                volume
                    .set_flags(
                        path,
                        volume.symlink_metadata(path).unwrap().flags | InodeFlags::NOATIME,
                        false,
                    )
                    .unwrap();
                read();
                assert_eq!(accessed(&volume, path), at(7), "{what} {path} without atime");
                volume
                    .set_flags(
                        path,
                        volume.symlink_metadata(path).unwrap().flags - InodeFlags::NOATIME,
                        false,
                    )
                    .unwrap();
            }
        }
        volume.close().unwrap();
    }
    let read_only = VolumeOptions::read_only().atime(Atime::Strict);
    let volume = Volume::open_device(device.clone(), read_only).unwrap();
    assert_eq!(accessed(&volume, "/dir"), at(7));
    drop(volume.read_dir("/dir").unwrap());
    assert_eq!(accessed(&volume, "/dir"), at(7));
    assert_clean(&*device);
}

/// The last access in memory reaches the volume by a sync, the next change, or the close, and not before.
#[test]
fn it_is_stored_lazily() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image().device();
    let volume = open(&device, Atime::Strict);
    let stored = |path: &str| accessed(&open_ro(Image::of(&*device).device()), path);
    for path in PATHS {
        set(&volume, path, 1000, 500);
    }
    volume.sync_all().unwrap();
    let file = volume.open_file("/file", read_write()).unwrap();
    file.read_at(&mut aligned(4096), 0).unwrap();
    file.sync_data().unwrap();
    assert_eq!(stored("/file"), at(1000), "fdatasync does not store it");
    file.sync_all().unwrap();
    let known = accessed(&volume, "/file");
    assert_eq!(stored("/file"), known);
    drop(volume.read_dir("/dir").unwrap());
    assert_eq!(stored("/dir"), at(1000));
    volume.set_permissions("/dir", 0o700, true).unwrap();
    volume.read_link("/link").unwrap();
    file.write_at_with(&aligned(4096), 0, WriteFlags::empty()).unwrap();
    drop(file);
    let known = PATHS.map(|path| accessed(&volume, path));
    volume.close().unwrap();
    assert_eq!(PATHS.map(stored), known);
    assert!(known.iter().all(|time| *time > at(1000)));
    assert_clean(&*device);
}

/// Whether a read after these times of access and modification sets the time of access: as the kernel.
#[test]
fn root_relatime_is_that_of_the_kernel() {
    needs!(Need::Loop, Need::Tool("mke2fs"));
    let scratch = Scratch::new(64 << 20);
    let (ours, theirs) = (scratch.file("ours.img"), scratch.file("theirs.img"));
    let image = image();
    image.save(&ours);
    image.save(&theirs);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    // The time of the change of attributes is now, so an access of the past is always replaced.
    let rows = [
        (now - 100_000, 0),
        (now - 100, now - 50),
        (now + 100, 0),
        (now + 100, now + 100),
        (now + 100, now + 200),
    ];
    let expected = with_kernel(&theirs, "relatime", |root| {
        let path = root.join("file");
        rows.map(|(accessed, modified)| {
            let time = |seconds| rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 };
            let times =
                rustix::fs::Timestamps { last_access: time(accessed), last_modification: time(modified) };
            rustix::fs::utimensat(rustix::fs::CWD, &path, &times, rustix::fs::AtFlags::empty()).unwrap();
            std::fs::read(&path).unwrap();
            path.metadata().unwrap().atime() != accessed
        })
    });
    let volume = Volume::open(&ours, VolumeOptions::read_write().atime(Atime::Relatime)).unwrap();
    let file = volume.open_file("/file", read_only()).unwrap();
    let found = rows.map(|(access, modified)| {
        set(&volume, "/file", access, modified);
        file.read_at(&mut aligned(4096), 0).unwrap();
        accessed(&volume, "/file") != at(access)
    });
    assert_eq!(found, expected);
    assert_eq!(found, [true, true, false, true, true]);
}
