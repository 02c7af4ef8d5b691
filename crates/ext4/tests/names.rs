//! Files created and names removed, against a model: names, contents, e2fsck, and the state after a crash, recovered by
//! us and by e2fsck.

use crate::common;

use common::sample::{is_journaled, sample_with};
use common::{Image, open_ro, open_rw, patterned, read_all, read_only, read_write};
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4::device::Device;
use uext4::device::MemoryDevice;
use uext4::{Error, File, OpenOptions, Volume, WriteFlags};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, needs, oracle};

/// Block sizes, other arguments of mke2fs, and the number of steps.
const VOLUMES: [(u32, &[&str], u32); 8] = [
    (4096, &[], 400),
    (1024, &["-N", "6000"], 5000),
    (1024, &["-O", "^dir_index,^metadata_csum,^64bit"], 400),
    (4096, &["-O", "inline_data"], 120),
    (2048, &["-O", "^orphan_file,^metadata_csum"], 300),
    (4096, &["-O", "bigalloc", "-C", "16384"], 300),
    (1024, &["-N", "6000", "-O", "^has_journal"], 3000),
    (4096, &["-O", "^has_journal,^orphan_file,inline_data"], 200),
];

/// A volume, the names and contents of its directory, and open files without a name.
struct Names {
    device: Arc<MemoryDevice>,
    volume: Volume,
    names: BTreeMap<String, Vec<u8>>,
    unlinked: Vec<(File, Vec<u8>)>,
    rng: Rng,
    number: u64,
}

fn new_file() -> OpenOptions {
    read_write().create_new(true)
}

fn path(name: &str) -> String {
    format!("/dir/{name}")
}

impl Names {
    fn new(image: &Image, seed: u64) -> Names {
        let device = image.device_with(|options| (options.volatile_cache, options.fua) = (true, true));
        let volume = open_rw(device.clone());
        let names = contents(&volume);
        Names { device, volume, names, unlinked: Vec::new(), rng: Rng::new(seed), number: 1 << 40 }
    }

    fn fresh_name(&mut self) -> String {
        self.number += 1;
        let length = *self.rng.pick(&[0_usize, 0, 3, 40, 240]);
        let tail: String = (0..length).map(|_| (b'a' + self.rng.below(26) as u8) as char).collect();
        format!("{}{tail}", self.number - (1 << 40))
    }

    fn make(&mut self) {
        let name = self.fresh_name();
        let file = self.volume.open_file(path(&name), new_file()).unwrap();
        assert_eq!(file.size(), 0);
        // Most files are small, since the volume is.
        let most = if self.names.len() > 200 { 800 } else { 70_000 };
        let length = most.min(*self.rng.pick(&[0, 0, 100, 5000, 70_000]));
        let bytes = patterned(self.number, 0, length).to_vec();
        if length > 0 {
            file.write_any_at(&bytes, 0, WriteFlags::empty()).unwrap();
        }
        let again = self.volume.open_file(path(&name), new_file());
        assert!(matches!(again, Err(Error::Exists)), "{again:?}");
        self.names.insert(name, bytes);
    }

    fn some_name(&mut self) -> Option<String> {
        let at = self.rng.below(self.names.len().max(1) as u64) as usize;
        self.names.keys().nth(at).cloned()
    }

    fn remove(&mut self) {
        let Some(name) = self.some_name() else { return };
        let file = self.volume.open_file(path(&name), read_write()).unwrap();
        self.volume.remove_file(path(&name)).unwrap();
        let bytes = self.names.remove(&name).unwrap();
        let gone = self.volume.open_file(path(&name), read_only());
        assert!(matches!(gone, Err(Error::NotFound)), "{gone:?}");
        assert!(matches!(self.volume.remove_file(path(&name)), Err(Error::NotFound)));
        if self.rng.below(2) == 0 {
            self.unlinked.push((file, bytes));
        }
    }

    /// Uses a file without a name like any other.
    fn use_unlinked(&mut self) {
        if self.unlinked.is_empty() {
            return;
        }
        let at = self.rng.below(self.unlinked.len() as u64) as usize;
        self.number += 1;
        let (file, bytes) = &mut self.unlinked[at];
        if !file.is_inline() {
            let pos = self.rng.below(bytes.len() as u64 + 1);
            let part = patterned(self.number, pos, 3000);
            assert_eq!(file.write_any_at(&part, pos, WriteFlags::empty()).unwrap(), 3000);
            bytes.resize(bytes.len().max(pos as usize + 3000), 0);
            bytes[pos as usize..pos as usize + 3000].copy_from_slice(&part);
        }
        common::assert_same_bytes(bytes, &read_all(file));
        if self.rng.below(3) == 0 {
            self.unlinked.swap_remove(at);
        }
    }

    fn step(&mut self) {
        match self.rng.below(10) {
            0..5 => self.make(),
            5..8 => self.remove(),
            _ => self.use_unlinked(),
        }
    }
}

fn contents(volume: &Volume) -> BTreeMap<String, Vec<u8>> {
    let entries =
        volume.read_dir("/dir").unwrap().map(|entry| String::from_utf8(entry.unwrap().name).unwrap());
    let names: Vec<String> = entries.filter(|name| name != "." && name != "..").collect();
    let read = |name: String| {
        let bytes = read_all(&volume.open_file(path(&name), read_only()).unwrap());
        (name, bytes)
    };
    names.into_iter().map(read).collect()
}

/// The names and contents of a volume opened for writing, which is then closed clean.
#[track_caller]
fn recovered(device: Arc<dyn Device>, scratch: &Scratch) -> BTreeMap<String, Vec<u8>> {
    let volume = open_rw(device.clone());
    let found = contents(&volume);
    volume.close().unwrap();
    clean(&*device, scratch);
    found
}

#[track_caller]
fn clean(device: &dyn Device, scratch: &Scratch) {
    let path = scratch.file("clean.img");
    Image::of(device).save(&path);
    oracle::e2fsck_clean(&path);
}

#[test]
fn names_come_and_go_as_in_the_model() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    for (round, (block, args, steps)) in (0..).zip(VOLUMES) {
        let mut play = Names::new(&sample_with(block, args), round);
        for _ in 0..steps {
            play.step();
        }
        while play.unlinked.len() < 2 {
            play.remove();
        }
        assert!(contents(&play.volume) == play.names, "{block} {args:?}: open");
        // This sync makes everything before it durable.
        let last = play.volume.open_file(path("last"), new_file()).unwrap();
        play.names.insert("last".into(), Vec::new());
        last.sync_all().unwrap();
        // As after a crash: recovered by e2fsck, then by us.
        let dirty = Image::of(&*play.device);
        let image = scratch.file("volume.img");
        dirty.save(&image);
        let repaired = oracle::e2fsck(&image, &["-fy"]);
        assert!(repaired.status < 2, "{block} {args:?}: {repaired:?}");
        oracle::e2fsck_clean(&image);
        let found = contents(&open_ro(Image::load(&image).device()));
        assert!(found.keys().eq(play.names.keys()), "{block} {args:?}: by e2fsck");
        let found = match is_journaled(args) {
            true => recovered(dirty.device(), &scratch),
            false => contents(&open_ro(dirty.device())),
        };
        assert!(found.keys().eq(play.names.keys()), "{block} {args:?}: by us");
        // After a close.
        let Names { device, volume, names, unlinked, .. } = play;
        drop((unlinked, last));
        volume.close().unwrap();
        clean(&*device, &scratch);
        assert!(recovered(device, &scratch) == names, "{block} {args:?}: closed");
    }
}

#[test]
fn a_file_without_a_name_lives_as_long_as_it_is_open() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [&[][..], &["-O", "^has_journal"]] {
        without_a_name(args);
    }
}

fn without_a_name(args: &[&str]) {
    let scratch = Scratch::new(96 << 20);
    let device = sample_with(4096, args).device();
    let volume = open_rw(device.clone());
    let free = |volume: &Volume| volume.statfs().unwrap().free;
    let before = free(&volume);
    let files = [0, 1, 2].map(|n| {
        let file = volume.open_file(format!("/new-{n}"), new_file()).unwrap();
        file.write_any_at(&patterned(n, 0, 100_000), 0, WriteFlags::empty()).unwrap();
        volume.remove_file(format!("/new-{n}")).unwrap();
        assert_eq!(file.metadata().links, 0);
        file
    });
    volume.clone().close().unwrap();
    // Unmounted cleanly with orphans: the next open frees them.
    let left = Image::of(&*device).device();
    recovered(left.clone(), &scratch);
    assert_eq!(free(&open_ro(left)), before);
    // The one in the middle leaves the chain first.
    let [first, middle, last] = files;
    drop(middle);
    first.write_any_at(b"more", 200_000, WriteFlags::empty()).unwrap();
    first.sync_all().unwrap();
    let dirty = Image::of(&*device);
    common::assert_same_bytes(&patterned(2, 0, 100_000), &read_all(&last));
    match is_journaled(args) {
        true => drop(recovered(dirty.device(), &scratch)),
        false => {
            let refused = Volume::open_device(dirty.device(), uext4::VolumeOptions::read_write());
            assert!(matches!(refused.err(), Some(Error::Incompatible { .. })));
            let image = scratch.file("volume.img");
            dirty.save(&image);
            assert!(oracle::e2fsck(&image, &["-fy"]).status < 2);
            assert_eq!(free(&open_ro(Image::load(&image).device())), before);
        }
    }
    drop((first, last));
    volume.close().unwrap();
    clean(&*device, &scratch);
    assert_eq!(free(&open_ro(device)), before);
}

#[test]
fn no_inode_and_no_block_left_changes_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let device = sample_with(4096, &["-N", "400"]).device();
    let volume = open_rw(device.clone());
    let mut made = 0;
    let full = loop {
        match volume.open_file(format!("/file-{made}"), new_file()) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, Error::NoSpace), "{full:?}");
    volume.remove_file("/file-0").unwrap();
    drop(volume.open_file("/file-0", new_file()).unwrap());
    volume.close().unwrap();
    clean(&*device, &scratch);

    let device = sample_with(1024, &["-N", "9000"]).device();
    let volume = open_rw(device.clone());
    let fill = volume.open_file("/fill", new_file()).unwrap();
    let mut end = 0;
    for length in [1 << 20, 1 << 14, 1 << 10] {
        while fill.write_any_at(&patterned(1, end, length), end, WriteFlags::empty()).is_ok() {
            end += length as u64;
        }
    }
    let name = |n: u32| format!("/dir/{n:0200}");
    let first =
        (0..).find(|n| matches!(volume.open_file(name(*n), new_file()), Err(Error::NoSpace))).unwrap();
    let inodes = volume.statfs().unwrap().free_inodes;
    assert!(matches!(volume.open_file(name(first), new_file()), Err(Error::NoSpace)));
    assert_eq!(volume.statfs().unwrap().free_inodes, inodes);
    assert!(matches!(volume.open_file(name(first), read_only()), Err(Error::NotFound)));
    volume.remove_file("/fill").unwrap();
    drop(fill);
    volume.open_file(name(first), new_file()).unwrap().sync_all().unwrap();
    volume.close().unwrap();
    clean(&*device, &scratch);
}

#[test]
fn what_linux_refuses_is_refused() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let device = sample_with(4096, &[]).device();
    let volume = open_rw(device.clone());
    let make = |path: &str| volume.open_file(path, new_file()).map(drop);
    assert!(matches!(make("/data"), Err(Error::Exists)));
    assert!(matches!(make("/dangling"), Err(Error::Exists)));
    assert!(matches!(make("/nowhere/x"), Err(Error::NotFound)));
    assert!(matches!(make("/data/x"), Err(Error::NotDirectory)));
    assert!(matches!(make("/new/"), Err(Error::IsDirectory)));
    assert!(matches!(make("/"), Err(Error::IsDirectory)));
    assert!(matches!(make(&format!("/{}", "n".repeat(256))), Err(Error::NameTooLong)));
    for name in ["/immutable", "/append"] {
        assert!(matches!(volume.remove_file(name), Err(Error::NotPermitted(_))), "{name}");
    }
    assert!(matches!(volume.remove_file("/dir"), Err(Error::IsDirectory)));
    assert!(matches!(volume.remove_file("/data/"), Err(Error::NotDirectory)));
    assert!(matches!(volume.remove_file("/nowhere"), Err(Error::NotFound)));
    let only = OpenOptions::new().read(true).create(true);
    assert!(matches!(volume.open_file("/new", only), Err(Error::Invalid(_))));
    // Opening a dangling link creates its target, as in Linux.
    let options = read_write().create(true).mode(0o4751).owner(70_000, 12);
    let file = volume.open_file("/dangling", options).unwrap();
    let found = volume.metadata("/nowhere").unwrap();
    assert_eq!((found.ino, found.mode, found.uid, found.gid), (file.ino(), 0o4751, 70_000, 12));
    drop(file);
    // Links are removed like files.
    volume.remove_file("/slow").unwrap();
    volume.remove_file("/dangling").unwrap();
    assert!(volume.metadata("/nowhere").is_ok());
    volume.close().unwrap();
    clean(&*device, &scratch);
    let volume = open_ro(device);
    assert!(matches!(volume.remove_file("/data"), Err(Error::ReadOnly(_))));
    assert!(matches!(volume.open_file("/new", new_file()), Err(Error::ReadOnly(_))));
}

#[test]
fn appends_go_to_the_end() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let device = sample_with(4096, &[]).device();
    let volume = open_rw(device.clone());
    let log = volume.open_file("/log", OpenOptions::new().read(true).append(true).create(true)).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let log = log.clone();
            scope.spawn(move || {
                for _ in 0..50 {
                    log.append(&[b'a' + writer; 37], WriteFlags::empty()).unwrap();
                }
            });
        }
    });
    let bytes = read_all(&log);
    assert_eq!(bytes.len(), 4 * 50 * 37);
    assert!(bytes.chunks(37).all(|line| line.iter().all(|byte| *byte == line[0])));
    assert!(log.write_any_at(b"x", 0, WriteFlags::empty()).is_err());
    drop(log);
    volume.close().unwrap();
    clean(&*device, &scratch);
}

#[test]
fn a_file_of_block_pointers_comes_and_goes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    std::fs::write(scratch.file("long"), vec![7; 5 << 20]).unwrap();
    let args = ["-b", "1024", "-O", "^extent,^64bit"];
    let source = scratch.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::rename(scratch.file("long"), source.join("long")).unwrap();
    let made = VolumeBuilder::new(24 << 20).args(args).from_dir(&source).build();
    let device = Image::load(made.path()).device();
    let volume = open_rw(device.clone());
    let free = volume.statfs().unwrap().free;
    volume.remove_file("/long").unwrap();
    assert!(volume.statfs().unwrap().free >= free + (5 << 10));
    drop(volume.open_file("/new", new_file()).unwrap());
    volume.close().unwrap();
    clean(&*device, &scratch);
}

#[test]
fn what_a_directory_gives_is_inherited() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let path = scratch.file("volume.img");
    sample_with(4096, &["-O", "project"]).save(&path);
    // Set-group-id and group 77; noatime, nodump, dirsync and project_hierarchy; project 9.
    let acl = scratch.file("acl");
    let entries: [[u16; 4]; 3] = [[1, 7, !0, !0], [4, 5, !0, !0], [32, 5, !0, !0]];
    let words = [2, 0].into_iter().chain(entries.into_iter().flatten());
    std::fs::write(&acl, words.flat_map(u16::to_le_bytes).collect::<Vec<_>>()).unwrap();
    oracle::debugfs_write(&path, &format!("ea_set -f {} /spacers system.posix_acl_default", acl.display()));
    for request in [
        "set_inode_field /dir mode 042755",
        "set_inode_field /dir gid 77",
        "set_inode_field /dir flags 0x200900c0",
        "set_inode_field /dir projid 9",
    ] {
        oracle::debugfs_write(&path, request);
    }
    let device = Image::load(&path).device();
    let volume = open_rw(device.clone());
    drop(volume.open_file("/dir/new", new_file().owner(5, 6)).unwrap());
    let new = volume.metadata("/dir/new").unwrap();
    assert_eq!((new.uid, new.gid, new.project, new.mode), (5, 77, 9, 0o644));
    assert_eq!(new.flags.bits(), 0x8_00c0);
    drop(volume.open_file("/spacers/new", new_file().mode(0o666)).unwrap());
    assert_eq!(volume.metadata("/spacers/new").unwrap().mode, 0o644, "of the default list");
    drop(volume.open_file("/plain", new_file().owner(5, 6)).unwrap());
    let plain = volume.metadata("/plain").unwrap();
    assert_eq!((plain.gid, plain.project, plain.flags.bits()), (6, 0, 0x8_0000));
    assert_ne!(plain.generation, new.generation);
    volume.close().unwrap();
    oracle::e2fsck_clean(&{
        Image::of(&*device).save(&path);
        path
    });
}

#[test]
fn attributes_go_with_the_file() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let path = scratch.file("volume.img");
    sample_with(4096, &["-O", "ea_inode"]).save(&path);
    let (short, long) = (scratch.file("short"), scratch.file("long"));
    std::fs::write(&short, vec![b'v'; 2000]).unwrap();
    std::fs::write(&long, vec![b'v'; 9000]).unwrap();
    oracle::debugfs_write(&path, &format!("ea_set -f {} /tail user.block", short.display()));
    oracle::debugfs_write(&path, &format!("ea_set -f {} /data user.inode", long.display()));
    // debugfs does not count the blocks it takes for the second.
    assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
    let device = Image::load(&path).device();
    let volume = open_rw(device.clone());
    let free = volume.statfs().unwrap().free;
    volume.remove_file("/tail").unwrap();
    assert_eq!(volume.statfs().unwrap().free, free + 4, "three blocks of data and one of attributes");
    let inodes = volume.statfs().unwrap().free_inodes;
    volume.remove_file("/data").unwrap();
    assert_eq!(volume.statfs().unwrap().free_inodes, inodes + 2, "that of the value too");
    volume.close().unwrap();
    clean(&*device, &scratch);
}

/// Threads create and remove files in two directories, and look up what others remove.
#[test]
fn threads_share_directories() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let device = sample_with(1024, &["-N", "6000"]).device();
    let volume = open_rw(device.clone());
    let work = |thread: u64| {
        let mut rng = Rng::new(thread);
        for round in 0..150 {
            let name = |thread, round| format!("/{}/{thread}-{round:0100}", ["dir", "spacers"][round % 2]);
            let file = volume.open_file(name(thread, round), new_file()).unwrap();
            file.write_any_at(name(thread, round).as_bytes(), 0, WriteFlags::empty()).unwrap();
            let other = name(rng.below(4), rng.below(150) as usize);
            match volume.open_file(&other, read_only()) {
                // Its first write may not have happened yet.
                Ok(file) => assert!([&b""[..], other.as_bytes()].contains(&&read_all(&file)[..])),
                Err(error) => assert!(matches!(error, Error::NotFound), "{error}"),
            }
            if round >= 10 {
                volume.remove_file(name(thread, round - 10)).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    let last = volume.open_file("/last", new_file()).unwrap();
    last.sync_all().unwrap();
    let crashed = Image::of(&*device).device();
    assert_eq!(recovered(crashed, &scratch).keys().filter(|name| name.contains('-')).count(), 20 + 40);
    drop(last);
    volume.close().unwrap();
    clean(&*device, &scratch);
}

/// A transaction's copy of the superblock is written home while the log is in use, and must have the flag set.
#[test]
fn a_superblock_that_came_home_leaves_the_log_in_use() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let device = sample_with(1024, &["-J", "size=1", "-N", "6000"]).device();
    let volume = open_rw(device.clone());
    let held = volume.open_file("/dir/held", new_file()).unwrap();
    volume.remove_file("/dir/held").unwrap();
    held.sync_all().unwrap();
    // The log wraps around several times.
    for n in 0..1500 {
        let file = volume.open_file(format!("/dir/{n:0200}"), new_file()).unwrap();
        if n % 10 == 9 {
            file.sync_all().unwrap();
        }
    }
    let crashed = Image::of(&*device).device();
    assert_eq!(recovered(crashed, &scratch).len(), 40 + 1500);
    drop(held);
    volume.close().unwrap();
    clean(&*device, &scratch);
}

#[test]
fn an_open_file_can_be_emptied_first() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = common::sample::sample().device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/data", OpenOptions::new().write(true).truncate(true)).unwrap();
    assert_eq!(file.size(), 0);
    file.write_any_at(b"anew", 0, WriteFlags::empty()).unwrap();
    let made = OpenOptions::new().write(true).create(true).truncate(true);
    assert_eq!(volume.open_file("/fresh", made).unwrap().size(), 0);
    let unwritten = volume.open_file("/data", OpenOptions::new().read(true).truncate(true));
    assert!(matches!(unwritten, Err(Error::Invalid(_))));
    drop(file);
    assert_eq!(volume.read("/data").unwrap(), b"anew");
    volume.close().unwrap();
    let scratch = Scratch::new(64 << 20);
    Image::of(&*device).save(&scratch.file("emptied.img"));
    oracle::e2fsck_clean(&scratch.file("emptied.img"));
}

/// As in Linux: blocks past the end are freed, and the time changes.
#[test]
fn an_empty_file_that_is_emptied_loses_its_blocks() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = common::sample::sample().device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/empty", new_file()).unwrap();
    file.fallocate(uext4::Fallocate::KeepSize, 0, 1 << 20).unwrap();
    let before = file.metadata();
    assert!(before.size == 0 && before.blocks >= 2048, "{before:?}");
    std::thread::sleep(std::time::Duration::from_millis(20));
    let emptied = volume.open_file("/empty", OpenOptions::new().write(true).truncate(true)).unwrap();
    let after = emptied.metadata();
    assert_eq!((after.size, after.blocks), (0, 0));
    assert_ne!(before.modified, after.modified);
    drop((file, emptied));
    volume.close().unwrap();
    let scratch = Scratch::new(64 << 20);
    Image::of(&*device).save(&scratch.file("emptied.img"));
    oracle::e2fsck_clean(&scratch.file("emptied.img"));
}
