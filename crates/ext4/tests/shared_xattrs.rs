//! Attribute blocks that many inodes share: the limit of references, threads that share and leave them, a full volume,
//! and a freed one that holds data when the volume is recovered.

use crate::common;

use common::{Image, assert_clean, open_rw, open_to_the_last, read_all, read_only, read_write};
use std::sync::Arc;
use uext4::device::MemoryDevice;
use uext4::{Caller, Error, Fallocate, NodeKind, Volume, WriteFlags, XattrFlags};
use uext4_testkit::{Need, Rng, VolumeBuilder, needs};

const ANY: XattrFlags = XattrFlags::empty();
const NAME: &str = "user.long";

fn volume(args: &[&str]) -> Arc<MemoryDevice> {
    let made = VolumeBuilder::new(32 << 20).args(args.iter().copied()).build();
    Image::load(made.path()).device()
}

fn make(volume: &Volume, path: &str) {
    volume.make_node(path, NodeKind::Regular, 0o644, &Caller::root()).unwrap();
}

/// A value that fits no record. Those of different numbers differ.
fn long(number: u64) -> Vec<u8> {
    format!("{number:0700}").into_bytes()
}

fn free(volume: &Volume) -> u64 {
    volume.statfs().unwrap().free
}

/// The inode 1025 gets a block of its own, and a place that another one leaves is taken again.
#[test]
fn at_most_1024_inodes_share_a_block() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = volume(&["-b", "1024", "-N", "4000"]);
    let volume = open_rw(device.clone());
    let path = |n: usize| format!("/file-{n}");
    (0..1100).for_each(|n| make(&volume, &path(n)));
    let before = free(&volume);
    for n in 0..1100 {
        volume.set_xattr(path(n), NAME, long(1), ANY, true).unwrap();
        let expected = if n < 1024 { 1 } else { 2 };
        assert_eq!(before - free(&volume), expected, "after {} files", n + 1);
    }
    // The second block goes with its last inode.
    (1024..1100).for_each(|n| volume.remove_xattr(path(n), NAME, true).unwrap());
    assert_eq!(before - free(&volume), 1);
    // The first one is full; when an inode leaves it, the next one takes its place.
    volume.remove_file(path(3)).unwrap();
    volume.set_xattr(path(1099), NAME, long(1), ANY, true).unwrap();
    assert_eq!(before - free(&volume), 1, "the place was taken");
    volume.set_xattr(path(1098), NAME, long(1), ANY, true).unwrap();
    assert_eq!(before - free(&volume), 2, "it is full again");
    volume.close().unwrap();
    assert_clean(&*device);
    let volume = open_rw(device.clone());
    for n in (0..1100).filter(|n| *n != 3) {
        let found = volume.xattr(path(n), NAME, true);
        let has = !(1024..1098).contains(&n);
        assert!(if has { found.unwrap() == long(1) } else { found.is_err() }, "{n}");
        volume.remove_file(path(n)).unwrap();
    }
    assert_eq!(before, free(&volume), "both blocks are free");
    volume.close().unwrap();
    assert_clean(&*device);
}

/// Threads set, replace and remove a few equal values on files of their own, and remove and make the files. Each file
/// ends with its thread's last value.
#[test]
fn threads_share_and_leave_blocks() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [&["-b", "1024"][..], &["-b", "4096", "-I", "128"]] {
        let device = volume(args);
        let volume = open_rw(device.clone());
        let change = |thread: u64| {
            let mut rng = Rng::new(100 + thread);
            let mut values = [None; 16];
            let path = |n: usize| format!("/t{thread}-{n}");
            (0..values.len()).for_each(|n| make(&volume, &path(n)));
            for step in 0..600 {
                let n = rng.below(values.len() as u64) as usize;
                match rng.below(10) {
                    0 => {
                        volume.remove_file(path(n)).unwrap();
                        make(&volume, &path(n));
                        values[n] = None;
                    }
                    1 | 2 if values[n].is_some() => {
                        volume.remove_xattr(path(n), NAME, true).unwrap();
                        values[n] = None;
                    }
                    _ => {
                        let number = rng.below(3);
                        volume.set_xattr(path(n), NAME, long(number), ANY, true).unwrap();
                        values[n] = Some(number);
                    }
                }
                if step % 150 == 0 {
                    volume.sync_all().unwrap();
                }
            }
            values
        };
        let ends: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|thread| scope.spawn(move || change(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let check = |volume: &Volume| {
            for (thread, values) in ends.iter().enumerate() {
                for (n, value) in values.iter().enumerate() {
                    let found = volume.xattr(format!("/t{thread}-{n}"), NAME, true);
                    match (value, found) {
                        (Some(number), Ok(found)) => assert_eq!(found, long(*number)),
                        (None, Err(Error::NoAttribute)) => {}
                        (value, found) => panic!("{thread} {n}: {value:?}, found {found:?}"),
                    }
                }
            }
        };
        check(&volume);
        volume.close().unwrap();
        assert_clean(&*device);
        check(&open_rw(device));
    }
}

/// Fills the volume with one file; its handle.
fn fill(volume: &Volume, path: &str) -> uext4::File {
    let filler = volume.open_file(path, read_write()).unwrap();
    let mut size = 32 << 20;
    while size >= 1024 {
        if filler.fallocate(Fallocate::Allocate, filler.size(), size).is_err() {
            size /= 2;
        }
    }
    filler
}

/// A file that cannot leave a shared block keeps its value, and so do the others.
#[test]
fn without_a_free_block_the_old_values_stay() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = volume(&["-b", "1024"]);
    let volume = open_to_the_last(device.clone());
    ["/a", "/b", "/filler"].iter().for_each(|path| make(&volume, path));
    ["/a", "/b"].iter().for_each(|path| volume.set_xattr(path, NAME, long(1), ANY, true).unwrap());
    let filler = fill(&volume, "/filler");
    for attempt in 0..3 {
        let refused = volume.set_xattr("/a", NAME, long(2), ANY, true);
        assert!(matches!(refused, Err(Error::NoSpace)), "{attempt}: {refused:?}");
        ["/a", "/b"].iter().for_each(|path| assert_eq!(volume.xattr(path, NAME, true).unwrap(), long(1)));
    }
    // Alone with the block, a file changes it in place.
    volume.remove_xattr("/b", NAME, true).unwrap();
    volume.set_xattr("/a", NAME, long(2), ANY, true).unwrap();
    assert_eq!(volume.xattr("/a", NAME, true).unwrap(), long(2));
    drop(filler);
    volume.close().unwrap();
    assert_clean(&*device);
}

/// An attribute block that is in the log is freed and holds data when the power goes: recovery leaves the data.
#[test]
fn recovery_does_not_write_a_freed_block_over_data() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = volume(&["-b", "1024"]);
    let volume = open_to_the_last(device.clone());
    ["/a", "/data", "/filler"].iter().for_each(|path| make(&volume, path));
    let filler = fill(&volume, "/filler");
    filler.set_len(filler.size() - (32 << 10)).unwrap();
    volume.sync_all().unwrap();
    // One of the few free blocks takes the attributes, and then most of them hold data.
    volume.set_xattr("/a", NAME, long(1), ANY, true).unwrap();
    volume.sync_all().unwrap();
    volume.remove_xattr("/a", NAME, true).unwrap();
    volume.sync_all().unwrap();
    let data = volume.open_file("/data", read_write()).unwrap();
    let bytes = vec![b'd'; 1024];
    while data.write_any_at(&bytes, data.size(), WriteFlags::empty()).is_ok() {}
    data.sync_all().unwrap();
    assert!(free(&volume) < 8);
    let cut = Image::of(&*device).device();
    let recovered = open_rw(cut.clone());
    let file = recovered.open_file("/data", read_only()).unwrap();
    assert!(file.size() >= 24 << 10 && read_all(&file).iter().all(|byte| *byte == b'd'));
    assert!(matches!(recovered.xattr("/a", NAME, true), Err(Error::NoAttribute)));
    drop(file);
    recovered.close().unwrap();
    assert_clean(&*cut);
}
