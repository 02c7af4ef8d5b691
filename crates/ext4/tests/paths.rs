//! Whole files, existence and canonical paths, as in `std::fs`.

use crate::common;

use common::dirs::{CASEFOLD_FLAG, EXTENTS_FLAG, Recipe};
use common::sample::{VOLUME_SIZE, expected, sample};
use common::{Image, assert_same_bytes, open_ro, within};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use uext4::device::CountingDevice;
use uext4::device::Op;
use uext4::{Error, Volume, VolumeOptions};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, needs, oracle};

#[test]
fn whole_files_are_read_whatever_their_mapping() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let volume = open_ro(sample().device());
    for name in ["/data", "/tail", "/frag", "/mixed", "/sparse"] {
        assert_same_bytes(&expected(name), &volume.read(name).unwrap());
    }
    assert_eq!(volume.read("dir/file-03").unwrap(), b"number 3\n");
    assert_same_bytes(&expected("/data"), &volume.read("/up").unwrap());
    let size = expected("/tail").len() as u64;
    assert_eq!(volume.read_up_to("/tail", size).unwrap().len() as u64, size);
    let error = volume.read_up_to("/tail", size - 1).unwrap_err();
    assert!(matches!(error, Error::FileTooLarge { size: found, most } if found == size && most == size - 1));
    for (path, errno) in [("/dir", 21), ("/missing", 2), ("/dangling", 2), ("/loop", 40), ("/data/", 20)] {
        assert_eq!(volume.read(path).unwrap_err().errno(), errno, "{path}");
    }
}

/// The sample volume, changed by debugfs; e2fsck may reject it.
fn changed(requests: &[&str]) -> Image {
    let scratch = Scratch::new(2 * VOLUME_SIZE);
    let path = scratch.file("volume.img");
    sample().save(&path);
    for request in requests {
        oracle::debugfs_write(&path, request);
    }
    Image::load(&path)
}

#[test]
fn a_hostile_size_is_an_error_before_any_memory_is_taken() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    const EFBIG: i32 = 27;
    // 16 TiB less a block: the largest size that extents can map.
    let most = (u64::from(u32::MAX) - 1) * 4096;
    let image = changed(&[
        &format!("sif /sparse size {most}"),
        &format!("sif /tail size {}", 1u64 << 60),
        &format!("sif /mixed size {}", Volume::READ_MAX + 1),
    ]);
    let counting = Arc::new(CountingDevice::new(image.device()));
    let counters = counting.counters();
    let volume = Volume::open_device(counting, VolumeOptions::read_only()).unwrap();
    for path in ["/sparse", "/mixed"] {
        volume.metadata(path).unwrap();
        counters.take();
        let error = volume.read(path).unwrap_err();
        assert!(matches!(error, Error::FileTooLarge { most: Volume::READ_MAX, .. }), "{path}: {error}");
        assert_eq!(error.errno(), EFBIG);
        assert_eq!(counters.take().read_bytes, 0, "{path}: nothing of it is read");
    }
    let error = volume.read("/tail").unwrap_err();
    assert!(error.errno() == 117 && error.to_string().contains("size"), "{error}");
}

#[test]
fn a_file_inside_its_inode_cannot_claim_more_either() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let source = Scratch::new(1 << 20);
    std::fs::write(source.file("small"), "inside").unwrap();
    let args = ["-O", "inline_data,^has_journal"];
    let made = VolumeBuilder::new(8 << 20).args(args).from_dir(source.path()).build();
    assert_eq!(open_ro(Image::load(made.path()).device()).read("/small").unwrap(), b"inside");
    oracle::debugfs_write(made.path(), &format!("sif /small size {}", 1u64 << 60));
    let volume = open_ro(Image::load(made.path()).device());
    let error = volume.read("/small").unwrap_err();
    assert!(matches!(error, Error::FileTooLarge { .. }), "{error}");
    // A limit beyond available memory gives an error, not an abort.
    let error = volume.read_up_to("/small", u64::MAX).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { bytes } if bytes == 1 << 60), "{error}");
    assert_eq!(volume.read_up_to("/small", 6).unwrap_err().errno(), 27);
}

#[test]
fn existing_is_told_apart_from_not_being_able_to_tell() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let volume = open_ro(sample().device());
    for path in ["/", "", "data", "/dir/file-00", "/link", "/up", "/dir/../dir/./", "/slow/.."] {
        let expected = path != "/slow/..";
        assert_eq!(volume.exists(path).unwrap(), expected, "{path}");
    }
    for path in ["/missing", "/dir/missing", "/missing/deeper", "/dangling", "/dir/dangling"] {
        assert!(!volume.exists(path).unwrap(), "{path}");
    }
    let long = "x".repeat(256);
    for (path, errno) in [("/data/x", 20), ("/data/", 20), ("/loop", 40), (long.as_str(), 36)] {
        assert_eq!(volume.exists(path).unwrap_err().errno(), errno, "{path}");
    }
    // A failing device gives no answer, and neither does damage.
    let faulty = Arc::new(FaultDevice::new(sample().device()));
    let faults = faulty.handle();
    let volume = Volume::open_device(faulty, VolumeOptions::read_only()).unwrap();
    let fault = Fault { times: u64::MAX, ..Fault::nth(FaultOn::Op(Op::Read), 1) };
    faults.arm(fault);
    assert_eq!(volume.exists("/dir/missing").unwrap_err().errno(), 5);
    let damaged = open_ro(changed(&["sif /dir links_count 0"]).device());
    assert_eq!(damaged.exists("/dir/missing").unwrap_err().errno(), 117);
}

/// A tree of directories and links of every kind, relative and absolute, made on the host.
fn maze(root: &Path, rng: &mut Rng) -> Vec<PathBuf> {
    let mut dirs = vec![PathBuf::new()];
    let mut all = vec![PathBuf::new()];
    for number in 0..40 {
        let parent = rng.pick(&dirs).clone();
        let path = parent.join(format!("d{number}"));
        std::fs::create_dir(root.join(&path)).unwrap();
        dirs.push(path.clone());
        all.push(path);
    }
    for number in 0..20 {
        let path = rng.pick(&dirs).join(OsStr::from_bytes(&[b'f', 0x80 + number]));
        std::fs::write(root.join(&path), "x").unwrap();
        all.push(path);
    }
    for number in 0..40 {
        let path = rng.pick(&dirs).join(format!("l{number}"));
        let target = rng.pick(&all).clone();
        let up = "../".repeat(path.components().count() - 1);
        let dots = ["", "./", "d0/../"][rng.below(3) as usize];
        symlink(Path::new(&format!("{up}{dots}")).join(target), root.join(&path)).unwrap();
        all.push(path);
    }
    all
}

/// A path to a random place, with detours: down to some place and up again as many levels as its name has, which after
/// a link may end elsewhere.
fn detour(rng: &mut Rng, all: &[PathBuf]) -> PathBuf {
    let mut path = PathBuf::from("/");
    for _ in 0..rng.below(3) {
        let place = rng.pick(all);
        path.push(place);
        path.push(*rng.pick(&[".", ".//", ""]));
        path.push("../".repeat(place.components().count()));
    }
    path.push(if rng.chance(90) { rng.pick(all).clone() } else { PathBuf::from("none") });
    path.push(rng.pick(&["", ".", "..", "./"]));
    path
}

#[test]
fn canonical_paths_are_those_of_the_host() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let mut rng = common::sample::seeded(14);
    let source = Scratch::new(1 << 20);
    let root = source.path().canonicalize().unwrap();
    let all = maze(&root, &mut rng);
    let made = VolumeBuilder::new(16 << 20).from_dir(&root).build();
    made.assert_clean();
    let volume = open_ro(Image::load(made.path()).device());
    let (mut same, mut refused) = (0, 0);
    for _ in 0..2000 {
        let path = detour(&mut rng, &all);
        let inside = path.strip_prefix("/").unwrap();
        // `..` of the root leaves it on the host, so such paths cannot be compared. Use the bytes as they are: joining
        // would drop a trailing slash.
        let there = [root.as_os_str().as_bytes(), path.as_os_str().as_bytes()].concat();
        let theirs = Path::new(OsStr::from_bytes(&there)).canonicalize();
        let ours = volume.canonicalize(&path);
        match (&theirs, &ours) {
            (Ok(theirs), Ok(ours)) => {
                let Ok(theirs) = theirs.strip_prefix(&root) else { continue };
                if !leaves(&root, inside) {
                    assert_eq!(&Path::new("/").join(theirs), ours, "{path:?}");
                    same += 1;
                }
                assert_eq!(volume.resolve(ours, false).unwrap(), volume.resolve(&path, true).unwrap());
                assert_eq!(volume.canonicalize(ours).unwrap(), *ours, "it is its own canonical path");
            }
            (Err(theirs), Err(ours)) if !leaves(&root, inside) => {
                assert_eq!(theirs.raw_os_error(), Some(ours.errno()), "{path:?}: {ours}");
                refused += 1;
            }
            _ => assert!(leaves(&root, inside), "{path:?}: {theirs:?}, {ours:?}"),
        }
    }
    assert!(same > 300 && refused > 300, "{same} paths compared, {refused} refusals");
}

/// Whether following the path on the host may lead above `root`: some prefix of it does.
fn leaves(root: &Path, path: &Path) -> bool {
    let mut prefix = root.to_owned();
    path.components().any(|component| {
        prefix.push(component);
        prefix.canonicalize().is_ok_and(|place| !place.starts_with(root))
    })
}

#[test]
fn canonical_paths_of_roots_links_and_bytes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let source = Scratch::new(1 << 20);
    let odd = OsStr::from_bytes(b"\xff:?%\n");
    std::fs::create_dir_all(source.file("dir/sub")).unwrap();
    std::fs::write(source.file("dir").join(odd), "x").unwrap();
    symlink(Path::new("/dir").join(odd), source.file("dir/sub/absolute")).unwrap();
    symlink("/", source.file("dir/root")).unwrap();
    symlink("sub/nothing", source.file("dir/dangling")).unwrap();
    let made = VolumeBuilder::new(8 << 20).from_dir(source.path()).build();
    let volume = open_ro(Image::load(made.path()).device());
    let target = Path::new("/dir").join(odd);
    let canonical = |path: &str| volume.canonicalize(path);
    for path in
        ["/", "", "//", ".", "/..", "../../..", "dir/..", "/dir/root", "/dir/root/../", "/dir/sub/../.."]
    {
        assert_eq!(canonical(path).unwrap(), Path::new("/"), "{path}");
    }
    for path in ["/dir/sub/absolute", "dir//root/dir/./sub/absolute"] {
        assert_eq!(canonical(path).unwrap(), target, "{path}");
    }
    for (path, errno) in [
        ("/dir/dangling", 2),
        ("/dir/none", 2),
        ("/dir/none/..", 2),
        ("/dir/sub/absolute/", 20),
        ("/dir/sub/absolute/..", 20),
        ("/dir/sub/absolute/.", 20),
    ] {
        assert_eq!(canonical(path).unwrap_err().errno(), errno, "{path}");
    }
}

#[test]
fn a_parent_that_is_none_has_no_canonical_path() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    // The directory has two names; its `..` leads to the parent of only one of them.
    let volume = open_ro(changed(&["mkdir /other", "link /dir /other/second"]).device());
    assert_eq!(volume.canonicalize("/dir/../data").unwrap(), Path::new("/data"));
    assert_eq!(volume.canonicalize("/other/second/file-01").unwrap(), Path::new("/other/second/file-01"));
    let error = volume.canonicalize("/other/second/../data").unwrap_err();
    assert!(error.errno() == 117 && error.to_string().contains("`..` leads to inode 2"), "{error}");
    // Looking it up does not use the names.
    volume.resolve("/other/second/../data", true).unwrap();
}

#[test]
fn case_folded_names_are_spelt_as_stored() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let flags = format!("sif /dir flags {:#x}", CASEFOLD_FLAG | EXTENTS_FLAG);
    let names: Vec<Vec<u8>> = (0..300).map(|n| format!("Straße {n}").into_bytes()).collect();
    for index in [false, true] {
        let args = &["-b", "1024", "-O", "casefold,^has_journal"];
        let image = Recipe { args, debugfs: &[&flags], index, ..Recipe::default() }.make(&names);
        let volume = open_ro(image.device());
        for n in (0..300).step_by(7) {
            for spelling in [format!("STRASSE {n}"), format!("strasse {n}"), format!("Straße {n}")] {
                let found = volume.canonicalize(Path::new("dir/.").join(&spelling)).unwrap();
                assert_eq!(found, Path::new("/dir").join(format!("Straße {n}")), "{spelling}");
            }
        }
        // The names above it are not folded.
        assert_eq!(volume.canonicalize("/DIR/Straße 1").unwrap_err().errno(), 2);
    }
}

#[test]
fn links_that_multiply_end() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let source = Scratch::new(1 << 20);
    std::fs::create_dir(source.file("d")).unwrap();
    symlink("d/../".repeat(150), source.file("l0")).unwrap();
    for number in 1..40 {
        symlink(format!("l{}/", number - 1).repeat(9), source.file(format!("l{number}"))).unwrap();
    }
    let made = VolumeBuilder::new(8 << 20).from_dir(source.path()).build();
    let volume = open_ro(Image::load(made.path()).device());
    assert_eq!(volume.canonicalize("/l0/d").unwrap(), Path::new("/d"));
    let error = within(Duration::from_secs(20), move || volume.canonicalize("/l39").unwrap_err());
    assert_eq!(error.errno(), 40, "{error}");
}
