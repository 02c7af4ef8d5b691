//! Names removed by several threads at once, names next to a file that cannot be freed, and names of damaged files.

use crate::common;

use common::hostile::Layout;
use common::sample::sample_with;
use common::{Image, aligned, open_rw, read_only, read_write};
use std::sync::Barrier;
use uext4::device::{Device, WriteDurability};
use uext4::{Error, Ino, Volume, VolumeOptions};
use uext4_ondisk::CorruptKind;
use uext4_testkit::{Need, Scratch, needs, oracle};

/// A file that cannot be freed keeps one of its two names, whichever thread comes first.
#[test]
fn two_names_of_what_cannot_be_freed_do_not_go_at_once() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let (path, long) = (scratch.file("volume.img"), scratch.file("long"));
    sample_with(4096, &["-O", "ea_inode"]).save(&path);
    std::fs::write(&long, vec![b'v'; 9000]).unwrap();
    oracle::debugfs_write(&path, &format!("ea_set -f {} /data user.inode", long.display()));
    oracle::debugfs_write(&path, "ln /data /dir/data");
    // debugfs counts neither the link nor the attribute's block.
    assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
    // A value in the form of Lustre: its inode leads back to the file.
    let volume = open_rw(Image::load(&path).device());
    let is_value = |ino: &u32| match volume.metadata_of(Ino(*ino)) {
        Err(Error::Corrupt(corrupt)) => corrupt.kind == CorruptKind::InodeOfValue,
        _ => false,
    };
    let value = (11..1000).find(is_value).unwrap();
    let file = volume.metadata("/data").unwrap();
    oracle::debugfs_script(
        &path,
        &format!("sif <{value}> mtime @{}\nsif <{value}> generation {}\n", file.ino, file.generation),
    );
    let image = Image::load(&path);
    for _ in 0..40 {
        let device = image.device();
        let volume = open_rw(device.clone());
        let ready = Barrier::new(2);
        let remove = |name: &str| {
            ready.wait();
            volume.remove_file(name).is_ok()
        };
        let removed = std::thread::scope(|scope| {
            let other = scope.spawn(|| remove("/dir/data"));
            [remove("/data"), other.join().unwrap()]
        });
        let left = ["/data", "/dir/data"].map(|name| volume.metadata(name).is_ok());
        assert_eq!(left, removed.map(|removed| !removed));
        assert_eq!(left.iter().filter(|left| **left).count(), 1);
        // A file that cannot be freed is not queued for freeing.
        volume.remove_file("/tail").unwrap();
        volume.close().unwrap();
        Image::of(&*device).save(&path);
        oracle::e2fsck_clean(&path);
    }
}

/// An unlinked file's record is damaged while it is open: it stays, and other calls are not affected.
#[test]
fn a_file_that_cannot_be_freed_is_in_nobodys_way() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let image = sample_with(4096, &[]);
    let device = image.device();
    let options = VolumeOptions::read_write().metadata_budget(2 * 4096);
    let volume = Volume::open_device(device.clone(), options).unwrap();
    // Its record is in another block than those near the root's.
    let name = "/dir/file-20";
    let file = volume.open_file(name, read_only()).unwrap();
    let place = Layout::of(&image).inode(file.ino()) as u64;
    volume.remove_file(name).unwrap();
    volume.clone().close().unwrap();
    let mut block = aligned(4096);
    device.read_at(&mut block, place / 4096 * 4096).unwrap();
    block[(place % 4096) as usize + 0x40] ^= 0xff;
    device.write_at(&block, place / 4096 * 4096, WriteDurability::Cached).unwrap();
    // Read enough other blocks to evict it from the cache.
    for name in ["/data", "/frag", "/sparse"] {
        volume.read(name).unwrap();
    }
    drop(file);
    drop(volume.open_file("/new", read_write().create_new(true)).unwrap());
    volume.remove_file("/new").unwrap();
    let closed = volume.close();
    assert!(matches!(closed, Err(Error::Corrupt(_))), "{closed:?}");
}

/// Everything that freeing a file reads is checked before its name is removed.
#[test]
fn the_name_of_a_file_that_is_damaged_stays() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let image = sample_with(4096, &[]);
    let word = |at: usize| u32::from_le_bytes(image.bytes[at..at + 4].try_into().unwrap()) as usize;
    let layout = Layout::of(&image);
    let (leaf, bitmap, inode_bitmap) = {
        let volume = common::open_ro(image.device());
        let root = layout.inode(volume.metadata("/frag").unwrap().ino) + 0x28;
        assert!(word(root + 4) >> 16 > 0 || image.bytes[root + 6] > 0, "a tree with leaves");
        (word(root + 12 + 4) * 4096, word(4096) * 4096, word(4096 + 4) * 4096)
    };
    for (what, place) in
        [("a leaf of the map", leaf + 20), ("blocks", bitmap + 40), ("inodes", inode_bitmap + 2)]
    {
        let mut damaged = image.clone();
        damaged.bytes[place] ^= 0xff;
        let device = damaged.device();
        let volume = open_rw(device.clone());
        for refused in [
            volume.remove_file("/frag").unwrap_err(),
            volume.replace_file("/frag", uext4::OpenOptions::new()).map(drop).unwrap_err(),
        ] {
            assert!(matches!(refused, Error::Corrupt(_)), "{what}: {refused:?}");
        }
        assert_eq!(volume.metadata("/frag").unwrap().links, 1, "{what}");
        drop(volume);
        let path = scratch.file("volume.img");
        let mut after = Image::of(&*device);
        after.bytes[place] ^= 0xff;
        after.save(&path);
        oracle::e2fsck_clean(&path);
    }
}
