//! Fast commits left by the kernel: everything it acknowledged is there, for us, for the kernel and for e2fsck.

use crate::common;

use common::tree::{How, manifest, without_xattrs};
use common::{Image, assert_unchanged, open_ro};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use uext4::{RecoveryState, Volume, VolumeOptions};
use uext4_testkit::{
    KernelMount, Kind, LoopOptions, Manifest, Need, Rng, Scratch, VolumeBuilder, needs, oracle,
};

/// Random work that the kernel can record in fast commits.
struct Work {
    root: PathBuf,
    rng: Rng,
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    /// Open files without a name.
    open: Vec<File>,
    /// Whether to use directories and unnamed files too.
    all: bool,
    next: u32,
    /// Most bytes per write.
    most: u64,
    /// Whether files are inline. Contents that move to a block wait in the transaction until it is written: no fast
    /// commit has them, and the kernel itself loses them.
    inline: bool,
    /// Whether files use block pointers, which have no unwritten state. Some changes of these take a whole transaction,
    /// after which an unnamed file is an orphan, and then the volume is not opened for writing.
    pointers: bool,
}

impl Work {
    fn new(root: &Path, seed: u64, most: u64) -> Work {
        let (root, rng) = (root.to_owned(), Rng::new(seed));
        let directories = vec![root.clone()];
        Work {
            root,
            rng,
            files: Vec::new(),
            directories,
            open: Vec::new(),
            all: true,
            next: 0,
            most,
            inline: most < 1000,
            pointers: false,
        }
    }

    fn fresh(&mut self) -> PathBuf {
        self.next += 1;
        let directory = self.rng.below(self.directories.len() as u64) as usize;
        let pad = "n".repeat(self.rng.below(40) as usize);
        self.directories[directory].join(format!("{pad}{}", self.next))
    }

    fn file(&mut self) -> Option<PathBuf> {
        let count = self.files.len() as u64;
        (count > 0).then(|| self.files[self.rng.below(count) as usize].clone())
    }

    fn data(&mut self) -> Vec<u8> {
        let mut data = vec![0; 1 + self.rng.below(self.most) as usize];
        self.rng.fill(&mut data);
        data
    }

    /// A change of an existing file.
    fn change(&mut self, path: &Path) {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let size = file.metadata().unwrap().len();
        let anywhere = self.rng.below(size * 2 + 30_000);
        let operation = if self.inline { 10 + self.rng.below(2) } else { self.rng.below(10) };
        match operation {
            0 | 1 => file.write_all_at(&self.data(), size).unwrap(),
            2 | 3 => file.write_all_at(&self.data(), anywhere).unwrap(),
            4 => file.write_all_at(&self.data(), self.rng.below(size + 1)).unwrap(),
            5 => file.set_len(anywhere).unwrap(),
            7 if self.pointers => {}
            6 => file.set_len(self.rng.below(size + 1)).unwrap(),
            7 => fallocate(&file, FallocateFlags::KEEP_SIZE, anywhere, 1 + self.rng.below(50_000)).unwrap(),
            8 => {
                let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
                fallocate(&file, flags, self.rng.below(size + 1), 1 + self.rng.below(40_000)).unwrap();
            }
            10 => {
                let (mut data, at) = (self.data(), self.rng.below(size + 1));
                data.truncate((size - at) as usize);
                file.write_all_at(&data, at).unwrap();
            }
            11 => file.set_len(self.rng.below(size + 1)).unwrap(),
            _ => file.set_permissions(PermissionsExt::from_mode(self.rng.below(0o1000) as u32)).unwrap(),
        }
        if self.rng.chance(40) {
            file.sync_all().unwrap();
        }
    }

    fn step(&mut self) {
        let path = self.file();
        match (self.rng.below(20), path) {
            (0..5, _) | (_, None) => {
                let path = self.fresh();
                let file = File::create(&path).unwrap();
                let at = if self.inline { 0 } else { self.rng.below(3) * 5000 };
                file.write_all_at(&self.data(), at).unwrap();
                if self.rng.chance(50) {
                    file.sync_all().unwrap();
                }
                self.files.push(path);
            }
            (5, Some(path)) => {
                std::fs::remove_file(&path).unwrap();
                self.files.retain(|other| *other != path);
            }
            (6, Some(path)) => {
                let to = self.fresh();
                std::fs::rename(&path, &to).unwrap();
                self.files.retain(|other| *other != path);
                self.files.push(to);
            }
            (7, Some(path)) => {
                let over = self.file().unwrap();
                let same = std::fs::metadata(&over).unwrap();
                use std::os::unix::fs::MetadataExt;
                if same.ino() != std::fs::metadata(&path).unwrap().ino() {
                    std::fs::rename(&path, &over).unwrap();
                    self.files.retain(|other| *other != path);
                }
            }
            (8, Some(path)) => {
                let to = self.fresh();
                std::fs::hard_link(&path, &to).unwrap();
                self.files.push(to);
            }
            (9, _) if self.all => {
                let path = self.fresh();
                std::fs::create_dir(&path).unwrap();
                self.directories.push(path);
            }
            (10, _) if self.all => {
                let at = self.rng.below(self.directories.len() as u64) as usize;
                if at > 0 && std::fs::remove_dir(&self.directories[at]).is_ok() {
                    self.directories.remove(at);
                }
            }
            (11, Some(_)) if self.all && !self.inline && !self.pointers => {
                // Open and without a name at the crash. (A sync of it would take a whole transaction.)
                let path = self.fresh();
                let file = File::create(&path).unwrap();
                file.write_all_at(b"gone", 0).unwrap();
                std::fs::remove_file(&path).unwrap();
                self.open.push(file);
            }
            (12, _) if self.all && !self.inline && !self.pointers => self.name_late(),
            (_, Some(path)) => self.change(&path),
        }
    }

    /// A file that gets its name after its contents, with either made durable first.
    fn name_late(&mut self) {
        let file = unnamed(&self.root);
        file.write_all_at(&self.data(), self.rng.below(3) * 5000).unwrap();
        if self.rng.chance(50) {
            file.sync_all().unwrap();
        }
        let path = self.fresh();
        name(&file, &path);
        if self.rng.chance(50) {
            file.sync_all().unwrap();
        }
        self.files.push(path);
    }

    /// Makes everything so far durable. (A sync of a directory would take a whole transaction.)
    fn sync(&self) {
        let last = File::create(self.root.join("last")).unwrap();
        for path in &self.files {
            File::open(path).unwrap().sync_all().unwrap();
        }
        last.sync_all().unwrap();
    }
}

/// A layout, and the volume's contents before the fast commits.
struct Layout {
    args: &'static [&'static str],
    /// Files in one directory beforehand; enough of them make a hash tree.
    files: u32,
    /// Length of names beforehand, and most bytes of a write.
    most: u64,
    steps: u32,
    /// Use only what the kernel's own replay handles: no new directories (it does not count their links, and an inode
    /// that was one keeps its block), no unnamed files (it refuses them), no inline data (it loses it).
    kernel: bool,
    /// Whether the volume got extents later: then some files have them, and some have block pointers.
    converted: bool,
}

const CLUSTERS: &[&str] = &[
    "-b",
    "4096",
    "-C",
    "16384",
    "-J",
    "size=8,fast_commit_size=1024",
    "-O",
    "^orphan_file,fast_commit,bigalloc",
];

const POINTERS: &[&str] =
    &["-b", "4096", "-J", "size=8,fast_commit_size=1024", "-O", "^orphan_file,fast_commit,^extents,^64bit"];

const SMALL_POINTERS: &[&str] =
    &["-b", "1024", "-J", "size=4,fast_commit_size=1024", "-O", "^orphan_file,fast_commit,^extents,^64bit"];

fn long_name(n: u32) -> String {
    format!("a-rather-long-name-for-a-file-{n:05}")
}

/// The volume after a crash, and the tree before it.
fn crash(layout: &Layout, seed: u64) -> (Image, Manifest) {
    let mut volume = VolumeBuilder::new(40 << 20).args(layout.args);
    let source = Scratch::new(1 << 20);
    if layout.converted {
        std::fs::create_dir(source.file("many")).unwrap();
        for n in 0..layout.files {
            std::fs::write(source.file(format!("many/{}", long_name(n))), [b'o'; 3000]).unwrap();
        }
        volume = volume.from_dir(source.path());
    }
    let volume = volume.build();
    if layout.converted {
        oracle::run(oracle::command("tune2fs").args(["-O", "extent"]).arg(volume.path()));
    }
    let mounted = KernelMount::image(volume.path(), LoopOptions::default(), "noatime,commit=300");
    let mut work = Work::new(mounted.path(), seed, layout.most);
    work.pointers = layout.args == POINTERS || layout.args == SMALL_POINTERS;
    if layout.files > 0 {
        let directory = work.root.join("many");
        std::fs::create_dir_all(&directory).unwrap();
        for n in 0..layout.files {
            let path = directory.join(long_name(n));
            OpenOptions::new().create(true).append(true).open(&path).unwrap();
            work.files.push(path);
        }
        work.directories.extend([directory.clone(), directory.clone(), directory]);
    }
    for _ in 0..30 {
        work.step();
    }
    if layout.files > 300 {
        // A file of many extents.
        let path = work.root.join("holes");
        let file = File::create(&path).unwrap();
        for n in 0..400 {
            file.write_all_at(&[n as u8; 100], n * 9000).unwrap();
        }
        work.files.extend([path.clone(), path.clone(), path]);
    }
    // Keep the ordinary log free of orphans, with which the volume is not opened for writing.
    work.open.clear();
    oracle::sync(&work.root);
    work.all = !layout.kernel;
    for _ in 0..layout.steps {
        work.step();
    }
    work.sync();
    let tree = comparable(without_xattrs(uext4_testkit::manifest::manifest(mounted.path())));
    let image = Image::load(volume.path());
    drop(work);
    mounted.unmount();
    (image, tree)
}

/// Leaves out what no fast commit records: times and sizes of directories.
fn comparable(mut tree: Manifest) -> Manifest {
    for entry in tree.values_mut().filter(|entry| entry.kind == Kind::Directory) {
        (entry.mtime_ns, entry.size) = (0, 0);
    }
    tree
}

#[test]
fn root_fast_commits_of_the_kernel_are_replayed() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let few: &[&str] =
        &["-b", "4096", "-J", "size=8,fast_commit_size=1024", "-O", "^orphan_file,fast_commit"];
    let layouts = [
        Layout { args: few, files: 0, most: 20_000, steps: 60, kernel: true, converted: false },
        Layout { args: few, files: 50, most: 20_000, steps: 150, kernel: false, converted: false },
        Layout {
            args: &["-b", "1024", "-J", "size=4,fast_commit_size=1024", "-O", "^orphan_file,fast_commit"],
            files: 400,
            most: 30_000,
            steps: 150,
            kernel: true,
            converted: false,
        },
        Layout {
            args: &[
                "-b",
                "1024",
                "-J",
                "size=4,fast_commit_size=1024",
                "-O",
                "^orphan_file,fast_commit,^metadata_csum,^64bit",
            ],
            files: 400,
            most: 30_000,
            steps: 150,
            kernel: true,
            converted: false,
        },
        Layout {
            args: &[
                "-b",
                "4096",
                "-I",
                "512",
                "-J",
                "size=8,fast_commit_size=1024",
                "-O",
                "^orphan_file,fast_commit,inline_data",
            ],
            files: 30,
            most: 300,
            steps: 100,
            kernel: false,
            converted: false,
        },
        Layout { args: CLUSTERS, files: 50, most: 20_000, steps: 150, kernel: false, converted: false },
        // The kernel writes the ranges of such files into fast commits, but does not replay them.
        Layout { args: POINTERS, files: 50, most: 20_000, steps: 150, kernel: false, converted: false },
        Layout {
            args: SMALL_POINTERS,
            files: 400,
            most: 30_000,
            steps: 200,
            kernel: false,
            converted: false,
        },
        Layout { args: SMALL_POINTERS, files: 400, most: 30_000, steps: 200, kernel: false, converted: true },
    ];
    // More of them, made by hand.
    let seeds = std::env::var("UEXT4_FC_SEEDS").map_or(2, |seeds| seeds.parse().unwrap());
    let mut by_e2fsck = 0;
    for (number, layout) in layouts.iter().enumerate() {
        for seed in 1..=seeds {
            by_e2fsck += u32::from(replay(layout, number, seed));
        }
    }
    eprintln!("e2fsck came to the same names in {by_e2fsck} cases");
    assert!(by_e2fsck > 0, "e2fsck never got to the end");
}

#[track_caller]
fn same(what: &str, expected: &Manifest, found: &Manifest) {
    let lines = uext4_testkit::manifest::differences(expected, found);
    assert!(lines.is_empty(), "{what}: {} differences:\n{}", lines.len(), lines.join("\n"));
}

/// Returns whether e2fsck could be compared too.
fn replay(layout: &Layout, number: usize, seed: u64) -> bool {
    let case = format!("layout {number}, seed {seed}");
    // The kernel may be processing an orphan when its device is copied: then writing is rightly refused.
    let orphans = |image: &Image| {
        let opened = Volume::open_device(image.device(), VolumeOptions::read_write());
        opened.err().is_some_and(|error| error.to_string().contains("orphaned inodes"))
    };
    let crashed = (0..5).map(|_| crash(layout, seed)).find(|(image, _)| !orphans(image));
    let (image, live) = crashed.unwrap_or_else(|| panic!("{case}: orphans every time"));
    if layout.args == POINTERS || layout.args == SMALL_POINTERS {
        // The kernel did not use whole transactions for them.
        let scratch = Scratch::new(128 << 20);
        image.save(&scratch.file("crashed.img"));
        let log = oracle::debugfs(&scratch.file("crashed.img"), "logdump -a");
        assert!(log.contains("tag ADD_RANGE"), "{case}: {log}");
    }
    let device = image.device();
    let volume = open_ro(device.clone());
    let info = volume.info().recovery;
    assert!(info.fast_commits().is_some_and(|found| found.commits > 0), "{case}: {info:?}");
    assert_eq!((info.fast_commits_refused, info.state), (None, RecoveryState::Overlay), "{case}");
    same(&case, &live, &comparable(manifest(&volume, How::Direct)));
    drop(volume);
    assert_unchanged(&image, &*device);

    let volume = Volume::open_device(device.clone(), VolumeOptions::read_write()).unwrap();
    assert_eq!(volume.info().recovery.state, RecoveryState::Replayed);
    same(&case, &live, &comparable(manifest(&volume, How::Direct)));
    drop(volume);
    let scratch = Scratch::new(256 << 20);
    let (ours, kernels) = (scratch.file("ours.img"), scratch.file("kernel.img"));
    Image::of(&*device).save(&ours);
    oracle::e2fsck_clean(&ours);
    let seen = comparable(without_xattrs(uext4_testkit::kernel_manifest(&ours)));
    same(&format!("{case}: the kernel on ours"), &live, &seen);
    if layout.kernel {
        image.save(&kernels);
        let theirs = KernelMount::image(&kernels, LoopOptions::default(), "noatime");
        let seen = comparable(without_xattrs(uext4_testkit::manifest::manifest(theirs.path())));
        theirs.unmount();
        same(&format!("{case}: the kernel's own replay"), &live, &seen);
        return same_names_as_e2fsck(&case, &image, &live, &scratch.file("e2fsck.img"));
    }
    false
}

/// e2fsck gets the same names and links. (The same contents only most of the time: where 1.47.0 does not, the kernel's
/// replay, ours and the volume before the crash agree.) Returns whether it finished: it stops at directories that must
/// grow.
fn same_names_as_e2fsck(case: &str, image: &Image, live: &Manifest, path: &Path) -> bool {
    image.save(path);
    let fsck = oracle::e2fsck(path, &["-y"]);
    if fsck.output.contains("encountered in function ext4_fc") {
        return false;
    }
    assert!(fsck.status < 4, "{case}: {}", fsck.output);
    let names = |tree: &Manifest| -> Vec<_> {
        tree.iter().map(|(name, entry)| (name.escape_ascii().to_string(), entry.nlink)).collect()
    };
    let seen = without_xattrs(uext4_testkit::kernel_manifest(path));
    assert_eq!(names(live), names(&seen), "{case}: e2fsck");
    true
}

const FEW: &[&str] = &["-b", "4096", "-J", "size=8,fast_commit_size=1024", "-O", "^orphan_file,fast_commit"];

/// A file without a name, which [`name`] gives one.
fn unnamed(root: &Path) -> File {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(root).unwrap()
}

fn name(file: &File, path: &Path) {
    use std::os::fd::AsRawFd;
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(rustix::fs::CWD, source, rustix::fs::CWD, path, rustix::fs::AtFlags::SYMLINK_FOLLOW)
        .unwrap();
}

fn number(file: &File) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.metadata().unwrap().ino()
}

/// Changes of `work` in fast commits, after a transaction with everything from `before`, are seen by readers and after
/// our recovery.
fn work_is_replayed(case: &str, before: impl Fn(&Path), work: impl Fn(&Path) -> Vec<File>) {
    let (image, live) = work_is_read(case, before, work);
    let device = image.device();
    drop(Volume::open_device(device.clone(), VolumeOptions::read_write()).unwrap());
    let scratch = Scratch::new(128 << 20);
    let ours = scratch.file("ours.img");
    Image::of(&*device).save(&ours);
    oracle::e2fsck_clean(&ours);
    let seen = comparable(without_xattrs(uext4_testkit::kernel_manifest(&ours)));
    same(&format!("{case}: the kernel on ours"), &live, &seen);
}

/// The read-only part of that.
fn work_is_read(case: &str, before: impl Fn(&Path), work: impl Fn(&Path) -> Vec<File>) -> (Image, Manifest) {
    let volume = VolumeBuilder::new(40 << 20).args(FEW).build();
    let mounted = KernelMount::image(volume.path(), LoopOptions::default(), "noatime,commit=300");
    before(mounted.path());
    for text in ["first", "second"] {
        std::fs::write(mounted.path().join("first"), text).unwrap();
        oracle::sync(mounted.path());
    }
    let open = work(mounted.path());
    let live = comparable(without_xattrs(uext4_testkit::manifest::manifest(mounted.path())));
    let image = Image::load(volume.path());
    drop(open);
    mounted.unmount();

    let device = image.device();
    let seen = open_ro(device.clone());
    let info = seen.info().recovery;
    assert_eq!(info.fast_commits_refused, None, "{case}");
    assert!(info.fast_commits().is_some_and(|found| found.commits > 0), "{case}: {info:?}");
    same(case, &live, &comparable(manifest(&seen, How::Direct)));
    drop(seen);
    assert_unchanged(&image, &*device);
    (image, live)
}

/// The ordinary log lists it as an orphan, but it has a name by then, and is kept.
#[test]
fn root_files_whose_contents_are_in_the_ordinary_log_get_a_name() {
    needs!(Need::Loop, Need::Tool("mke2fs"));
    let held = std::cell::RefCell::new(None);
    let (image, _) = work_is_read(
        "named after a transaction",
        |root| {
            let file = unnamed(root);
            file.write_all_at(&[b'A'; 20_000], 0).unwrap();
            *held.borrow_mut() = Some(file);
        },
        |root| {
            let file = held.borrow_mut().take().unwrap();
            name(&file, &root.join("atomic"));
            file.sync_all().unwrap();
            vec![file]
        },
    );
    let device = image.device();
    let volume = Volume::open_device(device.clone(), VolumeOptions::read_write()).unwrap();
    assert_eq!(volume.read("/atomic").unwrap(), [b'A'; 20_000]);
    volume.close().unwrap();
    let scratch = Scratch::new(128 << 20);
    let path = scratch.file("processed.img");
    Image::of(&*device).save(&path);
    uext4_testkit::oracle::e2fsck_clean(&path);
}

fn acknowledged(root: &Path) -> File {
    let file = File::create(root.join("acknowledged")).unwrap();
    file.write_all_at(&[b'd'; 4000], 0).unwrap();
    file.sync_all().unwrap();
    file
}

/// Their ranges come before their inodes.
#[test]
fn root_files_that_got_a_name_late_keep_their_contents() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    work_is_replayed(
        "named before the first fsync",
        |_| {},
        |root| {
            let file = unnamed(root);
            file.write_all_at(&[b'A'; 20_000], 0).unwrap();
            name(&file, &root.join("atomic"));
            file.sync_all().unwrap();
            vec![file]
        },
    );
}

#[test]
fn root_files_that_get_a_name_in_another_fast_commit_keep_their_contents() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    work_is_replayed(
        "named after the first fsync",
        |_| {},
        |root| {
            let file = unnamed(root);
            file.write_all_at(&[b'A'; 20_000], 0).unwrap();
            file.sync_all().unwrap();
            name(&file, &root.join("atomic"));
            file.sync_all().unwrap();
            vec![file]
        },
    );
}

#[test]
fn root_contents_of_deleted_files_are_not_seen_under_other_names() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    work_is_replayed(
        "a number used again",
        |root| std::fs::write(root.join("secret"), [b'S'; 40_000]).unwrap(),
        |root| {
            let old = number(&File::open(root.join("secret")).unwrap());
            std::fs::remove_file(root.join("secret")).unwrap();
            let file = unnamed(root);
            assert_eq!(number(&file), old, "the kernel uses the number again");
            file.write_all_at(&[b'N'; 4096], 36_864).unwrap();
            name(&file, &root.join("public"));
            file.sync_all().unwrap();
            vec![file]
        },
    );
}

#[test]
fn root_numbers_of_deleted_directories_are_used_again() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    work_is_replayed(
        "a directory's number",
        |root| std::fs::create_dir(root.join("directory")).unwrap(),
        |root| {
            std::fs::remove_dir(root.join("directory")).unwrap();
            std::fs::write(root.join("new"), "hello").unwrap();
            std::fs::rename(root.join("new"), root.join("moved")).unwrap();
            std::fs::remove_file(root.join("moved")).unwrap();
            vec![acknowledged(root)]
        },
    );
}

#[test]
fn root_open_files_without_a_name_may_have_a_block_of_attributes() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    work_is_replayed(
        "attributes of a file without a name",
        |root| {
            std::fs::write(root.join("file"), [b'x'; 5000]).unwrap();
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(root.join("file"), "user.big", &[b'v'; 1500], flags).unwrap();
        },
        |root| {
            let open = OpenOptions::new().read(true).write(true).open(root.join("file")).unwrap();
            std::fs::remove_file(root.join("file")).unwrap();
            open.write_all_at(&[b'y'; 9000], 0).unwrap();
            open.sync_all().unwrap();
            let first = acknowledged(root);
            open.write_all_at(&[b'z'; 9000], 20_000).unwrap();
            open.sync_all().unwrap();
            vec![open, first]
        },
    );
}
