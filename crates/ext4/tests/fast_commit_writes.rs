//! Fast commits that we write: what they hold is there after a crash, for us, for e2fsck and for the kernel. And what
//! no fast commit can hold is committed in full.

use crate::common;

use common::fast::{fsck_clean, tree, volume_with, writable};
use common::{Image, patterned, read_write};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use uext4::device::MemoryDevice;
use uext4::{Caller, Commits, Fallocate, File, Volume, WriteFlags, XattrFlags};
use uext4_testkit::{KernelMount, Kind, LoopOptions, Manifest, Need, Scratch, VolumeBuilder, needs, oracle};

/// A volume with some files and an area for fast commits.
fn base() -> Image {
    static BASE: LazyLock<Image> = LazyLock::new(|| volume_with("metadata_csum,64bit,fast_commit"));
    BASE.clone()
}

/// An open volume whose log is in use.
struct World {
    device: Arc<MemoryDevice>,
    volume: Volume,
}

fn world() -> World {
    world_of(&base())
}

fn world_of(image: &Image) -> World {
    let device = image.device();
    let volume = writable(device.clone()).unwrap();
    let file = volume.open_file("/first", read_write().create_new(true)).unwrap();
    file.write_at(&patterned(1, 0, 16_384), 0).unwrap();
    file.sync_all().unwrap();
    World { device, volume }
}

impl World {
    fn open(&self, path: &str) -> File {
        self.volume.open_file(path, read_write()).unwrap()
    }

    /// Runs a change with its sync. Returns how many full and fast commits it made.
    fn counted(&self, change: impl FnOnce()) -> (u64, u64) {
        let before = self.volume.commits();
        change();
        let after = self.volume.commits();
        (after.count - before.count, after.fast - before.fast)
    }

    fn commits(&self) -> Commits {
        self.volume.commits()
    }

    /// What the device holds now: the power fails.
    fn cut(&self) -> Image {
        Image::of(&*self.device)
    }

    /// Checks that recovery finds the present tree: ours and that of e2fsck.
    fn check(&self) {
        let expected = seen(&self.volume);
        check(&self.cut(), &expected);
    }
}

/// The tree, without times of directories, which no fast commit has.
fn seen(volume: &Volume) -> Manifest {
    let mut seen = tree(volume);
    for entry in seen.values_mut().filter(|entry| entry.kind == Kind::Directory) {
        entry.mtime_ns = 0;
    }
    seen
}

fn check(image: &Image, expected: &Manifest) {
    let device = image.device();
    let volume = writable(device.clone()).unwrap();
    uext4_testkit::manifest::assert_same(expected, &seen(&volume));
    volume.close().unwrap();
    fsck_clean(&Image::of(&*device));
    let scratch = Scratch::new(2 * image.bytes.len() as u64);
    let path = scratch.file("volume.img");
    image.save(&path);
    let repaired = oracle::e2fsck(&path, &["-fy"]);
    assert!(repaired.status < 2, "{repaired:?}");
    oracle::e2fsck_clean(&path);
    let theirs = writable(Image::load(&path).device()).unwrap();
    uext4_testkit::manifest::assert_same(expected, &seen(&theirs));
}

fn tools() -> [Need; 2] {
    [Need::Tool("mke2fs"), Need::Tool("e2fsck")]
}

/// What is changed, in which file, and how.
type FileChange = (&'static str, &'static str, fn(&File));

/// Changes of files, each followed by a sync.
const CHANGES: [FileChange; 9] = [
    ("append", "/first", |file| write(file, 16_384, 8192)),
    ("append bytes", "/first", |file| write(file, 24_576, 100)),
    ("punch", "/first", |file| file.fallocate(Fallocate::Punch, 4096, 8192).unwrap()),
    ("cut", "/first", |file| file.set_len(20_000).unwrap()),
    ("write behind a hole", "/first", |file| write(file, 65_536, 4096)),
    ("zero", "/hello", |file| file.fallocate(Fallocate::Zero, 1024, 1024).unwrap()),
    ("preallocate", "/dir/file-05", |file| file.fallocate(Fallocate::Allocate, 10_240, 20_480).unwrap()),
    ("write into that", "/dir/file-05", |file| write(file, 12_288, 2048)),
    ("grow", "/dir/file-03", |file| file.set_len(300_000).unwrap()),
];

fn write(file: &File, pos: u64, length: usize) {
    let bytes = patterned(pos, pos, length);
    assert_eq!(file.write_any_at(&bytes[..length], pos, WriteFlags::empty()).unwrap(), length);
}

#[test]
fn a_change_of_a_file_takes_one_fast_commit() {
    needs!(tools()[0], tools()[1]);
    let world = world();
    for (name, path, change) in CHANGES {
        let file = world.open(path);
        let counted = world.counted(|| {
            change(&file);
            file.sync_all().unwrap();
        });
        assert_eq!(counted, (0, 1), "{name}: {:?}", world.commits());
        world.check();
    }
    let before = world.commits();
    assert_eq!((before.fast, before.fast_blocks), (9, 9));
    let file = world.open("/first");
    let counted = world.counted(|| file.sync_all().unwrap());
    assert_eq!(counted, (0, 0), "nothing was changed");
    world.volume.sync_all().unwrap();
    assert_eq!(world.commits().count, before.count + 1);
    world.check();
}

/// A change of names, and the file that is synced afterwards.
type NameChange = (&'static str, &'static str, fn(&Volume));

fn create(volume: &Volume, path: &str, length: usize) {
    let file = volume.open_file(path, read_write().create_new(true)).unwrap();
    write(&file, 0, length);
}

fn rename(volume: &Volume, from: &str, to: &str) {
    volume.rename(from, to).unwrap();
}

/// Changes of names, each followed by a sync.
const NAMES: [NameChange; 9] = [
    ("create an empty file", "/empty", |volume| create(volume, "/empty", 0)),
    ("create and write", "/dir/new", |volume| create(volume, "/dir/new", 5000)),
    ("append to it", "/dir/new", |volume| {
        write(&volume.open_file("/dir/new", read_write()).unwrap(), 5000, 900)
    }),
    ("link it", "/dir/new", |volume| volume.hard_link("/dir/new", "/link").unwrap()),
    ("remove one of two names", "/link", |volume| volume.remove_file("/dir/new").unwrap()),
    ("rename", "/dir/moved", |volume| rename(volume, "/link", "/dir/moved")),
    ("create, link and rename", "/dir/b", |volume| {
        create(volume, "/dir/a", 1000);
        volume.hard_link("/dir/a", "/dir/c").unwrap();
        rename(volume, "/dir/a", "/dir/b");
    }),
    ("create several", "/n3", |volume| (0..6).for_each(|n| create(volume, &format!("/n{n}"), 300 * n))),
    ("take a name over", "/dir/c", |volume| {
        volume.remove_file("/dir/c").unwrap();
        create(volume, "/dir/c", 700);
    }),
];

#[test]
fn a_change_of_names_takes_one_fast_commit() {
    needs!(tools()[0], tools()[1]);
    let world = world();
    for (name, path, change) in NAMES {
        let counted = world.counted(|| {
            change(&world.volume);
            world.open(path).sync_all().unwrap();
        });
        assert_eq!(counted, (0, 1), "{name}: {:?}", world.commits());
        world.check();
    }
    assert_eq!(world.commits().full_for_undeclared, 0);
    world.volume.sync_all().unwrap();
    world.check();
}

/// The kernel recovers the same tree.
#[test]
fn root_the_kernel_replays_what_we_wrote() {
    needs!(Need::Loop, tools()[0], tools()[1]);
    let world = world();
    let changes = CHANGES.into_iter().map(|(name, path, change)| {
        (name, path, Box::new(move |world: &World| change(&world.open(path))) as Box<dyn Fn(&World)>)
    });
    let names = NAMES.into_iter().map(|(name, path, change)| {
        (name, path, Box::new(move |world: &World| change(&world.volume)) as Box<dyn Fn(&World)>)
    });
    for (name, path, change) in changes.chain(names) {
        change(&world);
        world.open(path).sync_all().unwrap();
        let expected = seen(&world.volume);
        let scratch = Scratch::new(32 << 20);
        let image = scratch.file("volume.img");
        world.cut().save(&image);
        KernelMount::image(&image, LoopOptions::default(), "").unmount();
        oracle::e2fsck_clean(&image);
        let theirs = writable(Image::load(&image).device()).unwrap();
        println!("{name}");
        uext4_testkit::manifest::assert_same(&expected, &seen(&theirs));
    }
    let commits = world.commits();
    assert!(commits.fast > 12 && commits.full_for_file + commits.full_for_undeclared == 0, "{commits:?}");
}

type Other = (&'static str, fn(&Volume, &File));

/// Changes that no fast commit describes.
const OTHERS: [Other; 11] = [
    ("attribute", |volume, _| {
        volume.set_xattr("/first", "user.a", b"value", XattrFlags::empty(), true).unwrap()
    }),
    ("directory", |volume, file| {
        volume.create_dir("/new", 0o755, &Caller::root()).unwrap();
        write(file, 0, 512);
    }),
    ("a name in a directory that grows", |volume, file| {
        (0..30).for_each(|n| create(volume, &format!("/dir/{n:0100}"), 0));
        write(file, 0, 512);
    }),
    ("replaced name", |volume, file| {
        write(file, 0, 512);
        create(volume, "/other", 10);
        rename(volume, "/other", "/hello");
    }),
    ("symbolic link", |volume, file| {
        volume.symlink("target", "/short", &Caller::root()).unwrap();
        write(file, 0, 512);
    }),
    ("removal", |volume, file| {
        volume.remove_file("/hello").unwrap();
        write(file, 20_480, 512);
    }),
    ("collapse", |_, file| file.fallocate(Fallocate::Collapse, 1024, 1024).unwrap()),
    ("insert", |_, file| file.fallocate(Fallocate::Insert, 1024, 1024).unwrap()),
    ("many extents", |_, file| (0..6).for_each(|n| write(file, 40_960 + 2048 * n, 1024))),
    ("a tree", |_, file| write(file, 90_000, 1024)),
    ("less of it", |_, file| file.set_len(40_960).unwrap()),
];

#[test]
fn what_no_fast_commit_describes_is_committed_in_full() {
    needs!(tools()[0], tools()[1]);
    let world = world();
    let file = world.open("/first");
    for (name, change) in OTHERS {
        let before = world.commits();
        let counted = world.counted(|| {
            change(&world.volume, &file);
            file.sync_all().unwrap();
        });
        // The last one leaves a map without nodes again.
        let expected = if name == "less of it" { (0, 1) } else { (1, 0) };
        let after = world.commits();
        assert_eq!(counted, expected, "{name}: {after:?}");
        let reasons = |commits: &Commits| commits.full_for_undeclared + commits.full_for_file;
        assert_eq!(reasons(&after) - reasons(&before), expected.0, "{name}");
        world.check();
    }
}

/// With blocks of 4 KiB, inodes 1 to 16 share a block of the table with that of the journal. e2fsck 1.47.0 would undo
/// what the log changed there, so no record describes one of them.
#[test]
fn what_is_beside_the_inode_of_the_journal_is_committed_in_full() {
    needs!(tools()[0], tools()[1]);
    let features = "metadata_csum,64bit,fast_commit";
    let made = VolumeBuilder::new(12 << 20).args(["-b", "4096", "-J", "size=4", "-O", features]).build();
    let world = world_of(&Image::load(made.path()));
    let volume = &world.volume;
    let beside = |path: &str| volume.metadata(Path::new(path)).unwrap().ino.get() <= 16;
    (0..6).for_each(|n| create(volume, &format!("/{n}"), 100));
    volume.create_dir("/far", 0o755, &Caller::root()).unwrap();
    volume.sync_all().unwrap();
    assert!(beside("/first") && beside("/1") && !beside("/5") && !beside("/far"));
    let cases: [(NameChange, bool); 7] = [
        (
            ("a file beside it", "/first", |volume| {
                write(&volume.open_file("/first", read_write()).unwrap(), 16_384, 512);
            }),
            true,
        ),
        (
            ("another file", "/5", |volume| {
                write(&volume.open_file("/5", read_write()).unwrap(), 100, 512);
            }),
            false,
        ),
        (
            ("a file beside it and another one", "/5", |volume| {
                write(&volume.open_file("/5", read_write()).unwrap(), 612, 512);
                write(&volume.open_file("/first", read_write()).unwrap(), 16_896, 512);
            }),
            true,
        ),
        (("a name in a directory beside it", "/new", |volume| create(volume, "/new", 10)), true),
        (("a name in another directory", "/far/new", |volume| create(volume, "/far/new", 10)), false),
        (
            ("another name of a file beside it", "/first", |volume| {
                volume.hard_link("/first", "/far/link").unwrap();
            }),
            true,
        ),
        (("a new file beside it", "/far/low", |volume| create(volume, "/far/low", 10)), true),
    ];
    for ((name, path, change), full) in cases {
        if path == "/far/low" {
            volume.remove_file("/1").unwrap();
            volume.sync_all().unwrap();
        }
        let before = world.commits();
        let counted = world.counted(|| {
            change(volume);
            world.open(path).sync_all().unwrap();
        });
        let full = u64::from(full);
        assert_eq!(counted, (full, 1 - full), "{name}: {:?}", world.commits());
        assert_eq!(world.commits().full_for_file - before.full_for_file, full, "{name}");
        world.check();
    }
    assert!(beside("/far/low"));
}

/// Fast commits until their area is full, several times, with others between.
#[test]
fn a_full_area_is_used_again_after_a_full_commit() {
    needs!(tools()[0], tools()[1]);
    let world = world();
    let file = world.open("/first");
    for round in 0..150_u64 {
        write(&file, 16_384 + 512 * round, 512);
        file.sync_data().unwrap();
        if round % 31 == 30 {
            world
                .volume
                .set_xattr("/hello", "user.a", &[b'v'; 9][..round as usize % 9], XattrFlags::empty(), true)
                .unwrap();
        }
        if round % 13 == 0 {
            world.check();
        }
    }
    let commits = world.commits();
    assert!(
        commits.full_for_area > 2 && commits.full_for_undeclared > 2 && commits.fast > 100,
        "{commits:?}"
    );
    world.check();
}

/// Several files in one fast commit of several blocks, the first one of its transaction and a later one.
#[test]
fn one_fast_commit_holds_all_files() {
    needs!(tools()[0], tools()[1]);
    let world = world();
    for round in 1..3 {
        let before = world.commits();
        for n in 0..12 {
            write(&world.open(&format!("/dir/file-{n:02}")), 1024 * round, 1024);
        }
        world.open("/dir/file-03").sync_data().unwrap();
        let after = world.commits();
        assert_eq!((after.count, after.fast), (before.count, before.fast + 1), "{after:?}");
        assert!(after.fast_blocks - before.fast_blocks > 2, "{after:?}");
        world.check();
    }
}

#[test]
fn without_the_feature_nothing_changes() {
    needs!(tools()[0], tools()[1]);
    for features in ["metadata_csum,64bit", "metadata_csum,64bit,fast_commit,quota"] {
        let scratch = Scratch::new(32 << 20);
        let path = scratch.file("volume.img");
        volume_with(features).save(&path);
        // mke2fs counts usage before it copies the tree.
        assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
        let world = world_of(&Image::load(&path));
        let file = world.open("/first");
        write(&file, 16_384, 512);
        file.sync_data().unwrap();
        let Commits { count, fast, full_for_undeclared, .. } = world.commits();
        assert_eq!((count, fast, full_for_undeclared), (2, 0, 0), "{features}");
        world.check();
    }
}
