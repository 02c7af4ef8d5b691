//! Inodes that a crash left to be freed or cut: processed when the volume is opened for writing, refused if they cannot
//! be orphans.

use crate::common;

use common::sample::sample_with;
use common::{Image, assert_unchanged, open_ro, open_rw, read_all, read_only};
use std::io::Write;
use std::os::unix::fs::FileExt;
use uext4::device::Device;
use uext4::{Error, Volume, VolumeOptions};
use uext4_testkit::{KernelMount, LoopOptions, Need, Scratch, VolumeBuilder, needs, oracle};

const LAYOUTS: [(u32, &[&str]); 5] = [
    (4096, &[]),
    (1024, &["-O", "^64bit"]),
    (1024, &["-O", "^metadata_csum"]),
    (2048, &["-O", "inline_data"]),
    (4096, &["-O", "bigalloc", "-C", "16384"]),
];

fn ino(volume: &Volume, path: &str) -> u32 {
    volume.symlink_metadata(path).unwrap().ino.get()
}

/// An image after these debugfs requests.
fn changed(image: &Image, scratch: &Scratch, requests: &[String]) -> Image {
    let path = scratch.file("volume.img");
    image.save(&path);
    for request in requests {
        oracle::debugfs_write(&path, request);
    }
    Image::load(&path)
}

fn set(ino: u32, field: &str, value: impl std::fmt::Display) -> String {
    format!("set_inode_field <{ino}> {field} {value}")
}

#[track_caller]
fn clean(device: &dyn Device, scratch: &Scratch) {
    let path = scratch.file("clean.img");
    Image::of(device).save(&path);
    oracle::e2fsck_clean(&path);
}

#[test]
fn a_chain_is_processed_from_its_beginning_to_its_end() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    for (block, args) in LAYOUTS {
        let image = sample_with(block, args);
        let (gone, cut) = {
            let volume = open_ro(image.device());
            (
                ["/data", "/sparse", "/slow", "/frag"].map(|path| (path, ino(&volume, path))),
                ino(&volume, "/tail"),
            )
        };
        // The one with a name is in the middle.
        let order = [gone[0].1, gone[1].1, cut, gone[2].1, gone[3].1];
        let mut requests: Vec<String> = gone.iter().map(|(path, _)| format!("unlink {path}")).collect();
        requests.extend(gone.iter().map(|(_, ino)| set(*ino, "links_count", 0)));
        requests.push(set(cut, "size", 5000));
        for (at, ino) in order.iter().enumerate() {
            requests.push(set(*ino, "dtime", format!("@{}", order.get(at + 1).unwrap_or(&0))));
        }
        requests.push(format!("set_super_value last_orphan {}", order[0]));
        let image = changed(&image, &scratch, &requests);
        let device = image.device();
        let volume = open_rw(device.clone());
        for (path, _) in gone {
            assert!(matches!(volume.symlink_metadata(path), Err(Error::NotFound)), "{path}");
        }
        let tail = volume.open_file("/tail", read_only()).unwrap();
        assert_eq!(read_all(&tail).len(), 5000);
        let size = u64::from(block).max(if args.contains(&"bigalloc") { 16384 } else { 0 });
        assert!(tail.metadata().blocks * 512 <= 5000_u64.next_multiple_of(size) + 1024, "{block} {args:?}");
        drop(tail);
        // A crash here finds the rest of the chain; a close leaves none.
        let dirty = Image::of(&*device);
        volume.close().unwrap();
        clean(&*device, &scratch);
        let again = dirty.device();
        open_rw(again.clone()).close().unwrap();
        clean(&*again, &scratch);
        assert_eq!(open_ro(again).superblock().last_orphan, 0);
    }
}

#[test]
fn chains_that_cannot_be_are_refused() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let image = sample_with(4096, &[]);
    let volume = open_ro(image.device());
    let (data, tail) = (ino(&volume, "/data"), ino(&volume, "/tail"));
    let inodes = volume.superblock().geometry.inodes_count();
    drop(volume);
    let first = |ino: u32| format!("set_super_value last_orphan {ino}");
    let cases = [
        (vec![first(data), set(data, "dtime", format!("@{data}"))], "twice"),
        (
            vec![first(data), set(data, "dtime", format!("@{tail}")), set(tail, "dtime", format!("@{data}"))],
            "twice",
        ),
        (vec![first(inodes + 1)], "inode"),
        (vec![first(u32::MAX)], "inode"),
        (vec![first(8)], "inode 8"),
        (vec![first(inodes)], "free"),
        (vec![first(data), set(data, "dtime", "@4000000000")], "4000000000"),
        (vec![first(data), set(data, "mode", 0)], "free"),
        (vec![first(data), set(data, "file_acl", 1)], "inode"),
        (vec![first(data), "set_super_value state 2".into()], "recorded errors"),
    ];
    for (requests, word) in cases {
        let image = changed(&image, &scratch, &requests);
        let device = image.device();
        let refused = Volume::open_device(device.clone(), VolumeOptions::read_write()).map(drop);
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(word), "{requests:?}: {error}");
        assert_unchanged(&image, &*device);
        open_ro(device);
    }
}

/// Times kept in memory for a file stay there when it is closed while another waits to be freed.
#[test]
fn a_file_with_a_name_is_not_let_go() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let device = sample_with(4096, &[]).device();
    let volume = open_rw(device.clone());
    let waits = volume.open_file("/tail", read_only()).unwrap();
    volume.remove_file("/tail").unwrap();
    let file = volume.open_file("/data", common::read_write()).unwrap();
    let before = file.metadata().modified;
    file.write_at(&common::patterned(5, 0, 4096), 0).unwrap();
    let written = file.metadata().modified;
    assert_ne!(written, before);
    drop(file);
    assert_eq!(volume.metadata("/data").unwrap().modified, written);
    drop(waits);
    volume.close().unwrap();
    clean(&*device, &scratch);
}

/// The kernel has unlinked files open when its device is copied, in the chain and in the orphan file.
#[test]
fn root_what_the_kernel_left_is_processed() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    for feature in ["orphan_file", "^orphan_file"] {
        let volume = VolumeBuilder::new(48 << 20).args(["-O", feature]).build();
        let mounted = KernelMount::image(volume.path(), LoopOptions::default(), "");
        let open: Vec<_> = (0..20)
            .map(|n| {
                let path = mounted.path().join(format!("file-{n}"));
                let mut file = std::fs::File::create(&path).unwrap();
                file.write_all(&vec![n; 50_000]).unwrap();
                if n % 2 == 0 {
                    std::fs::remove_file(&path).unwrap();
                }
                file
            })
            .collect();
        oracle::sync(mounted.path());
        let image = Image::load(volume.path());
        drop(open);
        mounted.unmount();
        let device = image.device();
        let volume = open_rw(device.clone());
        assert_eq!(volume.read_dir("/").unwrap().count(), 3 + 10, "{feature}");
        volume.close().unwrap();
        clean(&*device, &scratch);
        let superblock = open_ro(device).superblock().clone();
        assert_eq!(superblock.last_orphan, 0);
        assert!(!format!("{:?}", superblock.features).to_lowercase().contains("orphan_present"), "{feature}");
    }
}

/// The kernel and this library create and remove files in turn.
#[test]
fn root_the_kernel_goes_on_where_we_stopped() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let made = VolumeBuilder::new(48 << 20).args(["-b", "1024"]).build();
    for round in 0..3 {
        let volume = Volume::open(made.path(), VolumeOptions::read_write()).unwrap();
        for n in 0..200 {
            let options = common::read_write().create_new(true).mode(0o640);
            let file = volume.open_file(format!("/ours-{round}-{n}"), options).unwrap();
            file.write_any_at(format!("ours {n}").as_bytes(), 0, uext4::WriteFlags::empty()).unwrap();
        }
        if round > 0 {
            for n in (0..200).step_by(2) {
                volume.remove_file(format!("/theirs-{}-{n}", round - 1)).unwrap();
            }
        }
        // Open unlinked files are left to the kernel.
        let kept = volume.open_file(format!("/ours-{round}-0"), common::read_write()).unwrap();
        volume.remove_file(format!("/ours-{round}-0")).unwrap();
        kept.sync_all().unwrap();
        let crashed = scratch.file("crashed.img");
        std::fs::copy(made.path(), &crashed).unwrap();
        let mounted = KernelMount::image(&crashed, LoopOptions::default(), "");
        assert_eq!(std::fs::read(mounted.path().join(format!("ours-{round}-7"))).unwrap(), b"ours 7");
        mounted.unmount();
        oracle::e2fsck_clean(&crashed);
        drop(kept);
        volume.close().unwrap();
        oracle::e2fsck_clean(made.path());
        let mounted = KernelMount::image(made.path(), LoopOptions::default(), "");
        for n in 1..200 {
            let ours = mounted.path().join(format!("ours-{round}-{n}"));
            assert_eq!(std::fs::read(&ours).unwrap(), format!("ours {n}").as_bytes());
            if n % 3 == 0 {
                std::fs::remove_file(&ours).unwrap();
            }
        }
        for n in 0..200 {
            let theirs = std::fs::File::create(mounted.path().join(format!("theirs-{round}-{n}"))).unwrap();
            theirs.write_all_at(b"theirs", 0).unwrap();
        }
        mounted.unmount();
        let volume = Volume::open(made.path(), VolumeOptions::read_only()).unwrap();
        assert_eq!(volume.read(format!("/theirs-{round}-9")).unwrap(), b"theirs");
        assert!(matches!(volume.read(format!("/ours-{round}-3")), Err(Error::NotFound)));
    }
}
