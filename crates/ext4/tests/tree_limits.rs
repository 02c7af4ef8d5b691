//! What Linux refuses, inherits and counts when inodes are made, linked and removed; full volumes; many threads.

use crate::common;

use common::sample::sample_with;
use common::{Image, open_rw, open_to_the_last, patterned, read_write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use uext4::device::Device;
use uext4::device::MemoryDevice;
use uext4::{Caller, Error, InodeFlags, Limit, Node, NodeKind, Result, Volume, WriteFlags};
use uext4_testkit::{KernelMount, LoopOptions, Need, Rng, Scratch, VolumeBuilder, needs, oracle};

#[track_caller]
fn clean(device: &dyn Device, scratch: &Scratch) {
    let path = scratch.file("clean.img");
    Image::of(device).save(&path);
    oracle::e2fsck_clean(&path);
}

fn root() -> Caller {
    Caller::root()
}

/// An image after these debugfs requests.
fn changed(image: &Image, scratch: &Scratch, requests: &[&str]) -> Image {
    let path = scratch.file("changed.img");
    image.save(&path);
    requests.iter().for_each(|request| drop(oracle::debugfs_write(&path, request)));
    Image::load(&path)
}

const OPERATIONS: [&str; 8] =
    ["mkdir", "rmdir", "unlink", "symlink", "mknod", "link to", "link from", "mkdir below"];

fn ours(volume: &Volume, operation: &str, path: &str) -> Result<()> {
    match operation {
        "mkdir" => volume.create_dir(path, 0o755, &root()),
        "rmdir" => volume.remove_dir(path),
        "unlink" => volume.remove_file(path),
        "symlink" => volume.symlink("to", path, &root()),
        "mknod" => volume.make_node(path, NodeKind::Fifo, 0o644, &root()),
        "link to" => volume.hard_link("/tail", path),
        "link from" => volume.hard_link(path, "/dir/linked"),
        _ => volume.create_dir(format!("{path}/below"), 0o755, &root()),
    }
}

fn kernels(top: &Path, operation: &str, path: &str) -> std::io::Result<()> {
    // A path of the volume, with its slashes at the end.
    let at = |path: &str| format!("{}{path}", top.display());
    match operation {
        "mkdir" => std::fs::create_dir(at(path)),
        "rmdir" => std::fs::remove_dir(at(path)),
        "unlink" => std::fs::remove_file(at(path)),
        "symlink" => symlink("to", at(path)),
        "mknod" => {
            let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o644));
            Ok(rustix::fs::mknodat(rustix::fs::CWD, at(path), kind, mode, 0)?)
        }
        "link to" => std::fs::hard_link(at("/tail"), at(path)),
        "link from" => std::fs::hard_link(at(path), at("/dir/linked")),
        _ => std::fs::create_dir(at(&format!("{path}/below"))),
    }
}

/// Files, directories, links, absent and protected names, with all endings.
const PATHS: [&str; 28] = [
    "/.",
    "/..",
    "/dir",
    "/dir/",
    "/dir/.",
    "/dir/..",
    "/data",
    "/data/",
    "/data/x",
    "/nowhere/x",
    "/link",
    "/link/",
    "/dangling",
    "/dangling/",
    "/loop",
    "/loop/",
    "/loop/x",
    "/new",
    "/new/",
    "/new/.",
    "/dir/file-00",
    "/immutable",
    "/append",
    "/locked",
    "/locked/x",
    "/log",
    "/log/x",
    "/spacers",
];

/// Every operation on every kind of path: the same errno as the kernel's, or the same success.
#[test]
fn root_paths_are_refused_as_the_kernel_does() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let image = sample_with(4096, &[]);
    let image = changed(
        &image,
        &scratch,
        &["mkdir /locked", "sif /locked flags 0x80010", "mkdir /log", "sif /log flags 0x80020"],
    );
    let long = format!("/{}", "n".repeat(256));
    let paths = PATHS.iter().copied().chain([&*long]);
    for operation in OPERATIONS {
        let path = scratch.file("kernel.img");
        image.save(&path);
        let device = image.device();
        let volume = open_rw(device.clone());
        let mounted = KernelMount::image(&path, LoopOptions::default(), "");
        for path in paths.clone() {
            if (operation, path) == ("link from", "/..") {
                // The kernel leaves the volume there.
                continue;
            }
            let ours = ours(&volume, operation, path).err().map(|error| error.errno());
            let theirs =
                kernels(mounted.path(), operation, path).err().map(|error| error.raw_os_error().unwrap());
            assert_eq!(ours, theirs, "{operation} {path}");
            // An operation that succeeds is undone, so that the next one finds the same tree.
            if ours.is_none() {
                let undo = |path: &str| {
                    for undo in ["unlink", "rmdir"] {
                        let ours = self::ours(&volume, undo, path).err().map(|error| error.errno());
                        let theirs = kernels(mounted.path(), undo, path).err();
                        assert_eq!(
                            ours,
                            theirs.map(|error| error.raw_os_error().unwrap()),
                            "{operation} {path}"
                        );
                    }
                };
                match operation {
                    "link from" => undo("/dir/linked"),
                    "mkdir below" => undo(&format!("{path}/below")),
                    "rmdir" | "unlink" => {}
                    _ => undo(path.trim_end_matches('/')),
                }
            }
        }
        mounted.unmount();
        oracle::e2fsck_clean(&path);
        volume.close().unwrap();
        clean(&*device, &scratch);
    }
    // The root of a mounted volume is refused by the kernel for other reasons.
    let volume = open_rw(image.device());
    assert!(matches!(volume.remove_dir("/"), Err(Error::InUse(_))));
    assert!(matches!(volume.remove_dir_all("/"), Err(Error::InUse(_))));
    assert!(matches!(volume.create_dir("/", 0o755, &root()), Err(Error::Exists)));
}

#[test]
fn handles_refuse_what_paths_refuse() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let device = sample_with(4096, &[]).device();
    let volume = open_rw(device.clone());
    let (top, data) = (volume.root().unwrap(), volume.node_at("/data", true).unwrap());
    for name in [&b"."[..], b".."] {
        assert!(matches!(top.make_dir(name, 0o755, &root()), Err(Error::Exists)));
        assert!(matches!(top.link(name, &data), Err(Error::Exists)));
        assert!(matches!(top.unlink(name), Err(Error::IsDirectory)));
    }
    assert!(matches!(top.remove_dir("."), Err(Error::Invalid(_))));
    assert!(matches!(top.remove_dir(".."), Err(Error::NotEmpty)));
    for name in ["", "a/b", "a\0b"] {
        assert!(matches!(top.make_dir(name, 0o755, &root()), Err(Error::Invalid(_))));
        assert!(matches!(top.link(name, &data), Err(Error::Invalid(_))));
        assert!(matches!(top.remove_dir(name), Err(Error::NotFound)));
    }
    let long = "n".repeat(256);
    assert!(matches!(top.make_dir(&long, 0o755, &root()), Err(Error::NameTooLong)));
    assert!(matches!(top.remove_dir(&long), Err(Error::NameTooLong)));
    assert!(matches!(top.unlink(&long), Err(Error::NameTooLong)));
    assert!(matches!(data.make_dir("x", 0o755, &root()), Err(Error::NotDirectory)));
    assert!(matches!(data.make_unnamed(0o755, &root()), Err(Error::NotDirectory)));
    assert!(matches!(data.remove_dir("x"), Err(Error::NotDirectory)));
    assert!(matches!(data.unlink("x"), Err(Error::NotDirectory)));
    assert!(matches!(top.link("dir-2", &top.look_up("dir").unwrap()), Err(Error::NotPermitted(_))));
    assert!(matches!(top.make_symlink("s", "", &root()), Err(Error::NotFound)));
    assert!(matches!(top.make_symlink("s", "a\0b", &root()), Err(Error::Invalid(_))));
    assert!(matches!(top.make_symlink("s", "t".repeat(4096), &root()), Err(Error::NameTooLong)));
    assert_eq!(top.make_symlink("s", "t".repeat(4095), &root()).unwrap().read_link().unwrap().len(), 4095);
    for (major, minor) in [(4096, 0), (0, 1 << 20)] {
        let device = NodeKind::Block { major, minor };
        assert!(matches!(top.make_node("b", device, 0o644, &root()), Err(Error::Invalid(_))));
    }
    let other = open_rw(sample_with(4096, &[]).device());
    let theirs = other.node_at("/data", true).unwrap();
    assert!(matches!(top.link("theirs", &theirs), Err(Error::OtherVolume)));
    drop((top, data, theirs, other));
    volume.clone().close().unwrap();
    clean(&*device, &scratch);
    let volume = common::open_ro(device);
    let top = volume.root().unwrap();
    let refused: [Result<()>; 5] = [
        top.make_dir("x", 0o755, &root()).map(drop),
        top.make_unnamed(0o755, &root()).map(drop),
        top.link("x", &volume.node_at("/data", true).unwrap()),
        top.unlink("data"),
        top.remove_dir("dir"),
    ];
    assert!(refused.iter().all(|refused| matches!(refused, Err(Error::ReadOnly(_)))), "{refused:?}");
    assert!(matches!(volume.remove_dir_all("/dir"), Err(Error::ReadOnly(_))));
    assert!(matches!(volume.create_dir_all("/a/b", 0o755, &root()), Err(Error::ReadOnly(_))));
}

#[test]
fn all_missing_parents_are_made() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let device = sample_with(4096, &[]).device();
    let volume = open_rw(device.clone());
    let caller = Caller::new(5, 6).umask(0o027);
    for path in ["/a/b/c", "/a/b/c/", "a/b/d", "/dir", "/", "/a/./b/../b/e"] {
        volume.create_dir_all(path, 0o777, &caller).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    for path in ["/a", "/a/b", "/a/b/c", "/a/b/d", "/a/b/e"] {
        let found = volume.metadata(path).unwrap();
        assert_eq!((found.mode, found.uid, found.gid), (0o750, 5, 6), "{path}");
    }
    assert!(matches!(volume.create_dir_all("/data", 0o755, &caller), Err(Error::Exists)));
    assert!(matches!(volume.create_dir_all("/data/x/y", 0o755, &caller), Err(Error::NotDirectory)));
    assert!(matches!(volume.remove_dir_all("/data"), Err(Error::NotDirectory)));
    assert!(matches!(volume.remove_dir_all("/link"), Err(Error::NotDirectory)));
    assert!(matches!(volume.remove_dir_all("/nowhere"), Err(Error::NotFound)));
    // What cannot be removed stays, and so does the way to it.
    volume.hard_link("/data", "/a/b/data").unwrap();
    volume.remove_dir_all("/a").unwrap();
    assert_eq!(volume.metadata("/data").unwrap().links, 1);
    volume.remove_dir_all("/dir").unwrap();
    volume.close().unwrap();
    clean(&*device, &scratch);
}

/// Flags, group and permissions of what is made in a directory, compared with what the kernel makes.
#[test]
fn root_new_inodes_inherit_what_the_kernels_inherit() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    // Flags that are inherited by some types, and one that is not.
    let flags = "sif /dir flags 0xb00c8";
    let requests = [flags, "sif /dir mode 042777", "sif /dir gid 9"];
    let image = changed(&sample_with(4096, &[]), &scratch, &requests);
    let device = image.device();
    let volume = open_rw(device.clone());
    let path = scratch.file("kernel.img");
    image.save(&path);
    let mounted = KernelMount::image(&path, LoopOptions::default(), "");
    let dir = volume.node_at("/dir", true).unwrap();
    let caller = root().umask(0o022);
    dir.make_dir("d", 0o7777, &caller).unwrap();
    dir.create("f", 0o6777, &caller).unwrap();
    dir.make_symlink("s", "t", &caller).unwrap();
    dir.make_node("p", NodeKind::Fifo, 0o666, &caller).unwrap();
    dir.look_up("d").unwrap().make_dir("e", 0o755, &caller).unwrap();
    let (top, mode) = (mounted.path().join("dir"), rustix::fs::Mode::from_raw_mode);
    rustix::process::umask(mode(0o022));
    rustix::fs::mkdir(top.join("d"), mode(0o7777)).unwrap();
    let node = |name: &str, kind, bits| {
        rustix::fs::mknodat(rustix::fs::CWD, top.join(name), kind, mode(bits), 0).unwrap();
    };
    node("f", rustix::fs::FileType::RegularFile, 0o6777);
    symlink("t", top.join("s")).unwrap();
    node("p", rustix::fs::FileType::Fifo, 0o666);
    rustix::fs::mkdir(top.join("d/e"), mode(0o755)).unwrap();
    mounted.unmount();
    let kernels = common::open_ro(Image::load(&path).device());
    for name in ["d", "f", "s", "p", "d/e"] {
        let of = |volume: &Volume| {
            let found = volume.symlink_metadata(format!("/dir/{name}")).unwrap();
            (
                found.flags & !InodeFlags::INDEX,
                found.project,
                found.mode,
                found.gid,
                found.links,
                found.size,
                found.blocks,
            )
        };
        assert_eq!(of(&volume), of(&kernels), "{name}");
    }
    // The group of the directory, unless the caller may not give it.
    let caller = Caller::new(1000, 1000);
    let mode = |name: &str, caller: &Caller| {
        let found = dir.create(name, 0o2755, caller).unwrap().attributes();
        assert_eq!((found.uid, found.gid), (caller.uid, 9));
        found.mode
    };
    assert_eq!(mode("g1", &caller), 0o755);
    assert_eq!(mode("g2", &caller.clone().groups([9])), 0o2755);
    assert_eq!(dir.create("g3", 0o2745, &caller).unwrap().attributes().mode, 0o2745);
    // Linux drops the bit before it applies the mask.
    assert_eq!(dir.create("g4", 0o2755, &caller.clone().umask(0o010)).unwrap().attributes().mode, 0o745);
    let plain = volume.root().unwrap().make_dir("plain", 0o7777, &caller).unwrap().attributes();
    assert_eq!((plain.mode, plain.gid), (0o1777, 1000));
    drop(dir);
    volume.close().unwrap();
    clean(&*device, &scratch);
}

/// A directory that passes its project on. No kernel here mounts such a volume.
#[test]
fn a_project_is_inherited_and_kept_apart() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let requests = ["sif /dir flags 0x20080000", "sif /dir projid 7"];
    let device = changed(&sample_with(4096, &["-O", "project"]), &scratch, &requests).device();
    let volume = open_rw(device.clone());
    let dir = volume.node_at("/dir", true).unwrap();
    let below = dir.make_dir("d", 0o755, &root()).unwrap();
    assert!(below.attributes().flags.contains(InodeFlags::PROJECT_INHERIT));
    let file = below.create("f", 0o644, &root()).unwrap();
    assert!(!file.attributes().flags.contains(InodeFlags::PROJECT_INHERIT));
    let unnamed = below.make_unnamed(0o644, &root()).unwrap();
    let link = below.make_symlink("s", "t", &root()).unwrap();
    for node in [&below, &file, &unnamed, &link] {
        assert_eq!(node.attributes().project, 7);
    }
    // A file of another project gets no name there; one of this project gets names everywhere.
    let refused = volume.hard_link("/data", "/dir/l").unwrap_err();
    assert!(matches!(refused, Error::OtherProject) && refused.errno() == libc::EXDEV);
    below.link("u", &unnamed).unwrap();
    dir.link("f", &file).unwrap();
    volume.hard_link("/dir/f", "/f").unwrap();
    drop((dir, below, file, unnamed, link));
    volume.close().unwrap();
    clean(&*device, &scratch);
}

/// A directory with 65 000 links: with an index it stops counting, otherwise it takes no more.
#[test]
fn root_subdirectories_are_counted_as_the_kernel_counts_them() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    for (args, names) in [(&[][..], 60), (&["-O", "^dir_nlink"], 60), (&[], 2)] {
        let made = VolumeBuilder::new(16 << 20).args(["-b", "1024"]).args(args.iter().copied()).build();
        oracle::debugfs_write(made.path(), "mkdir /d");
        let device = Image::load(made.path()).device();
        let volume = open_rw(device.clone());
        for n in 0..names {
            volume.open_file(format!("/d/{n:0>60}"), read_write().create_new(true)).unwrap();
        }
        volume.close().unwrap();
        let image = changed(&Image::of(&*device), &scratch, &["sif /d links_count 64999"]);
        let device = image.device();
        let volume = open_rw(device.clone());
        let path = scratch.file("kernel.img");
        image.save(&path);
        let mounted = KernelMount::image(&path, LoopOptions::default(), "");
        for round in 0..6 {
            let name = format!("/d/sub-{}", round % 4);
            let (ours, theirs) = match round {
                0..4 => (ours(&volume, "mkdir", &name), kernels(mounted.path(), "mkdir", &name)),
                _ => (ours(&volume, "rmdir", &name), kernels(mounted.path(), "rmdir", &name)),
            };
            let (ours, theirs) = (
                ours.err().map(|error| error.errno()),
                theirs.err().map(|error| error.raw_os_error().unwrap()),
            );
            let links =
                std::os::unix::fs::MetadataExt::nlink(&std::fs::metadata(mounted.path().join("d")).unwrap());
            assert_eq!(
                (ours, u64::from(volume.metadata("/d").unwrap().links)),
                (theirs, links),
                "{args:?} {names} {round}"
            );
        }
        mounted.unmount();
        volume.close().unwrap();
        let image = Image::of(&*device);
        image.save(&path);
        // Only the planted count is wrong.
        let found = oracle::e2fsck(&path, &["-fy"]);
        assert!(found.status < 2, "{found:?}");
    }
}

/// A file with the most names it can have.
#[test]
fn a_file_has_at_most_65000_names() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let image = changed(&sample_with(4096, &[]), &scratch, &["sif /tail links_count 64999"]);
    let device = image.device();
    let volume = open_rw(device.clone());
    volume.hard_link("/tail", "/tail-2").unwrap();
    let refused = volume.hard_link("/tail", "/tail-3").unwrap_err();
    assert!(matches!(refused, Error::Limit(Limit::Links)) && refused.errno() == libc::EMLINK);
    assert!(matches!(volume.metadata("/tail-3"), Err(Error::NotFound)));
    volume.close().unwrap();
    let image = changed(&Image::of(&*device), &scratch, &["sif /tail links_count 2"]);
    clean(&*image.device(), &scratch);
}

/// A volume filled up to a few blocks: what does not fit leaves nothing behind.
#[test]
fn what_does_not_fit_leaves_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    for args in [&["-O", "^has_journal"][..], &["-J", "size=1"]] {
        let made =
            VolumeBuilder::new(6 << 20).args(["-b", "1024", "-N", "2000"]).args(args.iter().copied()).build();
        let device = Image::load(made.path()).device();
        let volume = open_to_the_last(device.clone());
        let top = volume.root().unwrap();
        let dir = top.make_dir("dir", 0o755, &root()).unwrap();
        let fill = volume.open_file("/fill", read_write().create_new(true)).unwrap();
        let mut end = 0;
        for length in [1 << 20, 1 << 16, 1 << 12, 1 << 10] {
            while fill.write_any_at(&patterned(1, end, length), end, WriteFlags::empty()).is_ok() {
                end += length as u64;
            }
        }
        let mut number = 0;
        for leave in 1..9 {
            fill.set_len(end - leave * 1024).unwrap();
            end -= leave * 1024;
            fill.sync_all().unwrap();
            fill_up(&volume, &dir, &mut number);
        }
        assert!(number > 20);
        drop((top, dir, fill));
        volume.remove_dir_all("/dir").unwrap();
        volume.close().unwrap();
        clean(&*device, &scratch);
    }
}

/// Makes directories and links with long names until there is no room.
fn fill_up(volume: &Volume, dir: &Node, number: &mut u32) {
    for links in [false, true] {
        loop {
            *number += 1;
            let name = format!("{number:0>200}");
            let before = volume.statfs().unwrap();
            let attributes = dir.attributes();
            let made = match links {
                false => dir.make_dir(&name, 0o755, &root()),
                true => dir.make_symlink(&name, "t".repeat(300), &root()),
            };
            let Err(error) = made else { continue };
            assert!(matches!(error, Error::NoSpace), "{error}");
            let after = volume.statfs().unwrap();
            assert_eq!((before.free, before.free_inodes), (after.free, after.free_inodes));
            assert_eq!(attributes, dir.attributes());
            assert!(matches!(dir.look_up(&name), Err(Error::NotFound)));
            break;
        }
    }
}

/// Many threads in a few directories, which come and go meanwhile.
#[test]
fn threads_make_and_remove_the_same_names() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    for args in [&["-J", "size=4"][..], &["-O", "^has_journal,inline_data"]] {
        let made = VolumeBuilder::new(32 << 20).args(["-b", "1024"]).args(args.iter().copied()).build();
        let device: Arc<MemoryDevice> = Image::load(made.path()).device();
        let volume = open_rw(device.clone());
        let free = volume.statfs().unwrap();
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let volume = volume.clone();
                scope.spawn(move || (0..500).fold(Rng::new(seed), |rng, _| act(&volume, rng)));
            }
        });
        for path in ["/a", "/b"] {
            match volume.remove_dir_all(path) {
                Ok(()) | Err(Error::NotFound) => {}
                Err(Error::NotDirectory) => volume.remove_file(path).unwrap(),
                Err(error) => panic!("{error}"),
            }
        }
        volume.clone().close().unwrap();
        let after = volume.statfs().unwrap();
        assert_eq!((free.free, free.free_inodes), (after.free, after.free_inodes));
        drop(volume);
        clean(&*device, &scratch);
    }
}

fn act(volume: &Volume, mut rng: Rng) -> Rng {
    let path = *rng.pick(&["/a", "/b", "/a/b", "/a/a", "/a/b/a", "/a/b/b", "/b/a", "/b/b/b"]);
    let other = *rng.pick(&["/a", "/a/b", "/b/a", "/a/b/b"]);
    let node = volume.node_at(other, false).ok();
    let done = match (rng.below(9), node) {
        (0..3, _) => volume.create_dir(path, 0o755, &root()),
        (3, _) => volume.create_dir_all(path, 0o755, &root()),
        (4, _) => volume.remove_dir(path),
        (5, _) => volume.remove_file(path),
        (6, _) => volume.remove_dir_all(path),
        (7, Some(node)) => {
            volume.root().and_then(|root| root.link("x", &node)).and_then(|()| volume.remove_file("/x"))
        }
        (_, Some(node)) => node.create("b", 0o644, &root()).map(drop),
        (_, None) => volume.make_node(path, NodeKind::Fifo, 0o644, &root()),
    };
    match done {
        Ok(())
        | Err(Error::NotFound | Error::Exists | Error::NotDirectory | Error::IsDirectory | Error::NotEmpty) => {
            rng
        }
        // A directory has one name.
        Err(Error::NotPermitted(_)) => rng,
        Err(error) => panic!("{path}: {error}"),
    }
}

/// A name that leads to a directory whose `..` says otherwise is not removed, nor is anything in it.
#[test]
fn a_directory_in_the_wrong_place_stays() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let requests = ["mkdir /a", "mkdir /a/b", "mkdir /c", "ln /c /a/c", "ln /a /a/b/a"];
    let circle = ["mkdir /d", "mkdir /d/e", "ln /d /d/e/d", "unlink /d/..", "ln /d/e /d/.."];
    let requests: Vec<&str> = requests.into_iter().chain(circle).collect();
    let device = changed(&sample_with(4096, &[]), &scratch, &requests).device();
    let before = Image::of(&*device);
    let volume = open_rw(device.clone());
    for path in ["/a/c", "/a/b/a"] {
        let refused = volume.remove_dir(path).unwrap_err();
        assert!(matches!(refused, Error::CorruptInode { .. }), "{path}: {refused:?}");
        let refused = volume.remove_dir_all(path).unwrap_err();
        assert!(matches!(refused, Error::CorruptInode { .. }), "{path}: {refused:?}");
    }
    // The name in it leads back to it, and its `..` agrees.
    let refused = volume.remove_dir_all("/d/e").unwrap_err();
    assert!(matches!(&refused, Error::CorruptInode { what, .. } if what.contains("inside")), "{refused:?}");
    volume.close().unwrap();
    common::assert_unchanged(&before, &*device);
}
