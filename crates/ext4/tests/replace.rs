//! A file replaced as a whole: what the new one copies from the old, what stays, and refusals. For power cuts see the
//! copies (`crates/transfer/tests/import.rs`) and the named scenarios.

use crate::common;

use common::sample::{is_journaled, sample_with, with_pointers, with_sealed_files};
use common::{Image, open_rw, patterned, read_all, read_only, read_write};
use uext4::device::Device;
use uext4::{Error, OpenOptions, Volume, WriteFlags};
use uext4_testkit::{Need, Scratch, needs, oracle};

const LAYOUTS: [(u32, &[&str]); 5] = [
    (4096, &[]),
    (1024, &["-O", "^dir_index,^metadata_csum,^64bit"]),
    (4096, &["-O", "inline_data"]),
    (4096, &["-O", "bigalloc", "-C", "16384"]),
    (4096, &["-O", "^has_journal"]),
];

#[track_caller]
fn clean(device: &dyn Device, scratch: &Scratch) {
    let path = scratch.file("clean.img");
    Image::of(device).save(&path);
    oracle::e2fsck_clean(&path);
}

/// An image after these debugfs requests.
fn changed(image: &Image, scratch: &Scratch, requests: &[&str]) -> Image {
    let path = scratch.file("volume.img");
    image.save(&path);
    for request in requests {
        oracle::debugfs_write(&path, request);
    }
    // debugfs does not update counts.
    assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
    Image::load(&path)
}

fn replace(volume: &Volume, path: &str, bytes: &[u8]) -> uext4::Result<uext4::File> {
    let new = volume.replace_file(path, OpenOptions::new().mode(0o600).owner(7, 8))?;
    if !bytes.is_empty() {
        new.file().write_any_at(bytes, 0, WriteFlags::empty())?;
    }
    new.finish()
}

#[test]
fn the_name_leads_to_the_old_file_until_the_new_one_is_finished() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let pointers = (1024, &["-O", "^64bit"][..]);
    for (block, args) in LAYOUTS.into_iter().chain([pointers]) {
        let image = match args == pointers.1 {
            true => with_pointers(block, args),
            false => sample_with(block, args),
        };
        let device = image.device();
        let volume = open_rw(device.clone());
        let free = |volume: &Volume| volume.statfs().unwrap().free;
        let before = free(&volume);
        let old = volume.open_file("/data", read_only()).unwrap();
        let was = read_all(&old);
        let bytes = patterned(77, 0, 50_001);
        // Dropped: nothing changed.
        let new = volume.replace_file("/data", OpenOptions::new()).unwrap();
        new.file().write_any_at(&bytes, 0, WriteFlags::empty()).unwrap();
        assert_eq!(new.file().metadata().links, 0);
        common::assert_same_bytes(&was, &volume.read("/data").unwrap());
        drop(new);
        volume.sync_all().unwrap();
        assert_eq!(free(&volume), before, "{block} {args:?}");
        // Finished: the old file lives as long as it is open.
        let file = replace(&volume, "/data", &bytes).unwrap();
        assert_eq!(file.metadata().links, 1);
        common::assert_same_bytes(&bytes, &volume.read("/data").unwrap());
        common::assert_same_bytes(&was, &read_all(&old));
        assert_eq!((old.metadata().links, volume.metadata("/data").unwrap().ino), (0, file.ino()));
        file.sync_all().unwrap();
        if is_journaled(args) {
            let again = Image::of(&*device).device();
            let recovered = open_rw(again.clone());
            common::assert_same_bytes(&bytes, &recovered.read("/data").unwrap());
            recovered.close().unwrap();
            clean(&*again, &scratch);
        }
        drop((old, file));
        // A missing file is created; an empty one is fine.
        let made = replace(&volume, "/made", &[]).unwrap().metadata();
        assert_eq!((made.mode, made.uid, made.gid, made.size), (0o600, 7, 8, 0));
        volume.remove_file("/made").unwrap();
        volume.close().unwrap();
        clean(&*device, &scratch);
    }
}

/// Nothing of the new file is left to commit when it gets its name.
#[test]
fn sync_data_after_the_end_makes_the_name_durable() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let device = sample_with(4096, &[]).device();
    let volume = open_rw(device.clone());
    let bytes = patterned(78, 0, 9000);
    let new = volume.replace_file("/data", OpenOptions::new()).unwrap();
    new.file().write_any_at(&bytes, 0, WriteFlags::empty()).unwrap();
    new.file().sync_all().unwrap();
    new.finish().unwrap().sync_data().unwrap();
    let crashed = Image::of(&*device).device();
    let recovered = open_rw(crashed.clone());
    common::assert_same_bytes(&bytes, &recovered.read("/data").unwrap());
    recovered.close().unwrap();
    clean(&*crashed, &scratch);
}

#[test]
fn the_new_file_has_owner_mode_and_attributes_of_the_old_but_no_privileges() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let long = scratch.file("long");
    std::fs::write(&long, vec![b'v'; 300]).unwrap();
    let set_long = format!("ea_set -f {} /data user.long", long.display());
    let bytes: String =
        [1, 0, 0, 2, 0, 0o40].iter().chain(&[0; 14]).map(|byte| format!("\\{byte:03o}")).collect();
    let capability = format!("ea_set /data security.capability \"{bytes}\"");
    for (block, args) in [(4096, &[][..]), (1024, &["-I", "128"]), (4096, &["-O", "inline_data"])] {
        let requests = [
            "set_inode_field /data mode 0106751",
            "set_inode_field /data uid 70000",
            "set_inode_field /data gid 80000",
            "ea_set /data user.short hello",
            &set_long,
            &capability,
        ];
        let device = changed(&sample_with(block, args), &scratch, &requests).device();
        let volume = open_rw(device.clone());
        let old = volume.metadata("/data").unwrap();
        assert_eq!((old.mode, old.uid, old.gid), (0o6751, 70000, 80000));
        assert!(volume.xattr("/data", "security.capability", true).is_ok());
        let new = replace(&volume, "/data", b"new").unwrap().metadata();
        assert_ne!(new.ino, old.ino);
        assert_eq!((new.mode, new.uid, new.gid, new.size), (0o751, 70000, 80000, 3));
        assert_eq!(volume.xattr("/data", "user.short", true).unwrap(), b"hello", "{args:?}");
        assert_eq!(volume.xattr("/data", "user.long", true).unwrap(), [b'v'; 300], "{args:?}");
        let capability = volume.xattr("/data", "security.capability", true);
        assert!(matches!(capability, Err(Error::NoAttribute)), "{capability:?}");
        volume.close().unwrap();
        clean(&*device, &scratch);
    }
}

#[test]
fn other_names_keep_the_old_file_and_links_are_followed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let requests =
        ["ln /data /dir/second", "symlink /way /dir/second", "set_inode_field /data links_count 2"];
    let device = changed(&sample_with(4096, &[]), &scratch, &requests).device();
    let volume = open_rw(device.clone());
    let was = volume.read("/data").unwrap();
    drop(replace(&volume, "/way", b"new").unwrap());
    assert_eq!(volume.read("/dir/second").unwrap(), b"new");
    assert_eq!(volume.symlink_metadata("/way").unwrap().kind, uext4::FileKind::Symlink);
    common::assert_same_bytes(&was, &volume.read("/data").unwrap());
    assert_eq!(volume.metadata("/data").unwrap().links, 1);
    // Whatever has the name by then is replaced, or the name is created.
    let new = volume.replace_file("/data", OpenOptions::new()).unwrap();
    volume.remove_file("/data").unwrap();
    new.finish().unwrap();
    assert_eq!(volume.read("/data").unwrap(), b"");
    volume.close().unwrap();
    clean(&*device, &scratch);
}

#[test]
fn what_must_not_change_is_not_replaced() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let sealed = open_rw(with_sealed_files(&sample_with(4096, &[])).device());
    for path in ["/immutable", "/append", "/verity"] {
        let refused = sealed.replace_file(path, OpenOptions::new()).map(drop);
        assert!(matches!(refused, Err(Error::NotPermitted(_))), "{path}: {refused:?}");
    }
    let device = sample_with(4096, &[]).device();
    let volume = open_rw(device.clone());
    let begin = |path: &str| volume.replace_file(path, OpenOptions::new()).map(drop);
    assert!(matches!(begin("/dir"), Err(Error::IsDirectory)));
    assert!(matches!(begin("/nowhere/x"), Err(Error::NotFound)));
    assert!(matches!(begin("/data/x"), Err(Error::NotDirectory)));
    assert!(matches!(begin("/new/"), Err(Error::IsDirectory)));
    let read_only = common::open_ro(sample_with(4096, &[]).device());
    assert!(matches!(read_only.replace_file("/data", OpenOptions::new()), Err(Error::ReadOnly(_))));
    volume.close().unwrap();
    clean(&*device, &scratch);
}

/// A number is reused, and an open by number and generation reports that.
#[test]
fn a_number_with_another_generation_is_stale() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let device = sample_with(4096, &[]).device();
    let volume = open_rw(device.clone());
    let make = || volume.open_file("/new", read_write().create_new(true)).unwrap().metadata();
    let first = make();
    let open = |generation| volume.open_inode(first.ino, read_only().generation(generation));
    drop(open(first.generation).unwrap());
    volume.remove_file("/new").unwrap();
    assert!(matches!(open(first.generation), Err(Error::Stale(ino)) if ino == first.ino));
    assert!(matches!(volume.node(first.ino, None), Err(Error::Corrupt(_))));
    let second = make();
    assert_eq!(second.ino, first.ino, "the first free number is taken");
    assert!(matches!(open(first.generation), Err(Error::Stale(ino)) if ino == first.ino));
    drop(open(second.generation).unwrap());
    volume.close().unwrap();
    clean(&*device, &scratch);
}
