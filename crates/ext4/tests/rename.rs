//! Renames beside the kernel: the same error, or the same tree, for every kind of file, flag and path.

use rustix::fs::{FileType, Mode, RenameFlags as KernelFlags};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uext4::{RenameFlags, Volume, VolumeOptions};
use uext4_testkit::{
    Manifest, Need, Rng, Scratch, VolumeBuilder, kernel_manifest, needs, oracle, with_kernel,
};

/// Cases besides those of [`CHOSEN`].
const CASES: usize = 650;

/// Names that may be renamed or be the new name, in the directory of [`furnish`].
const PATHS: [&str; 41] = [
    "f",
    "g",
    "h",
    "d",
    "d/f",
    "d/s",
    "d/s2",
    "d/s2/x",
    "e",
    "e2",
    "e/new",
    "new",
    "l",
    "ld",
    "imm",
    "app",
    "di",
    "di/f",
    "di/s",
    "di/new",
    "da",
    "da/f",
    "da/new",
    "fifo",
    "dev",
    "ld/f",
    "ld/new",
    "f/",
    "d/",
    "e/",
    "new/",
    "l/",
    "ld/",
    "missing/x",
    "f/x",
    ".",
    "d/.",
    "e/..",
    "..",
    "d/s2/x/",
    // `long` stands for a name that is too long.
    "long",
];

/// Cases that must not be missing, whatever is drawn.
const CHOSEN: [(&str, &str, u32); 36] = [
    ("f", "new", 0),
    ("f", "d/new", 0),
    ("f", "d/f", 0),
    ("f", "h", 0),
    ("f", "g", 0),
    ("f", "g", 1),
    ("f", "g", 2),
    ("f", "g", 4),
    ("f", "f", 0),
    ("f", "f", 1),
    ("d", "d", 0),
    ("d", "new", 0),
    ("d", "e", 0),
    ("d", "e/new", 0),
    ("e", "d/s", 0),
    ("e", "d/s2", 0),
    ("d/s2", "e", 0),
    ("d/s2", "e/new", 0),
    ("d", "d/new", 0),
    ("d", "d/s2/new", 0),
    ("d", "d/s", 0),
    ("d/s2", "d", 0),
    ("d/f", "d", 0),
    ("d/s2/x", "d", 0),
    ("f", "d", 0),
    ("d", "f", 0),
    ("d", "d/s2", 2),
    ("d/s2", "d", 2),
    ("d/s2/x", "d", 2),
    ("f", "d/s2", 2),
    ("d/s2", "f", 2),
    ("d/s2", "e2", 2),
    ("d", "e", 2),
    ("f", "new", 2),
    ("f", "h", 4),
    ("d", "e/new", 4),
];

type Case = (&'static str, &'static str, u32);

fn cases() -> Vec<Case> {
    let mut rng = Rng::new(28);
    let drawn = (0..CASES).map(|_| {
        // More often than not without flags.
        let flags = *rng.pick(&[0, 0, 0, 0, 1, 2, 2, 2, 4, 4, 5, 3, 6]);
        (*rng.pick(&PATHS), *rng.pick(&PATHS), flags)
    });
    CHOSEN.into_iter().chain(drawn).collect()
}

fn real(path: &str) -> String {
    path.replace("long", &"n".repeat(256))
}

/// Fills the directory of a case.
fn furnish(directory: &Path) {
    let at = |name: &str| directory.join(name);
    for name in ["d/s", "d/s2", "e", "e2", "di/s", "da"] {
        std::fs::create_dir_all(at(name)).unwrap();
    }
    for name in ["f", "h", "d/f", "d/s2/x", "imm", "app", "di/f", "da/f"] {
        std::fs::write(at(name), at(name).as_os_str().as_encoded_bytes()).unwrap();
    }
    std::fs::hard_link(at("f"), at("g")).unwrap();
    symlink("f", at("l")).unwrap();
    symlink("d", at("ld")).unwrap();
    for (name, kind) in [("fifo", FileType::Fifo), ("dev", FileType::CharacterDevice)] {
        let mode = Mode::from_bits_retain(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, at(name), kind, mode, rustix::fs::makedev(5, 6)).unwrap();
    }
}

/// A volume with a directory for each case.
fn volume(cases: &[Case], args: &[&str]) -> (uext4_testkit::Volume, SystemTime) {
    let made = VolumeBuilder::new(64 << 20).args(args.iter().copied()).build();
    with_kernel(made.path(), "", |root| {
        let directories: Vec<PathBuf> = (0..cases.len()).map(|case| root.join(case.to_string())).collect();
        directories.iter().for_each(|directory| furnish(directory));
        for (change, names) in [("+i", ["imm", "di"]), ("+a", ["app", "da"])] {
            let all = directories.iter().flat_map(|directory| names.iter().map(|name| directory.join(name)));
            oracle::run(oracle::command("chattr").arg(change).args(all));
        }
    });
    // The kernel's clock ticks every few milliseconds.
    std::thread::sleep(Duration::from_millis(20));
    let now = SystemTime::now();
    std::thread::sleep(Duration::from_millis(20));
    (made, now)
}

/// The tree as the kernel sees it; of each time only whether it is later.
fn tree(path: &Path, since: SystemTime) -> Manifest {
    let since = since.duration_since(UNIX_EPOCH).unwrap().as_nanos() as i128;
    let mut tree = kernel_manifest(path);
    tree.values_mut().for_each(|entry| entry.mtime_ns = i128::from(entry.mtime_ns > since));
    tree
}

fn by_kernel(root: &Path, number: usize, (from, to, flags): Case) -> i32 {
    let directory = std::fs::File::open(root.join(number.to_string())).unwrap();
    let flags = KernelFlags::from_bits_retain(flags);
    match rustix::fs::renameat_with(&directory, real(from), &directory, real(to), flags) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error(),
    }
}

fn by_us(volume: &Volume, number: usize, (from, to, flags): Case) -> i32 {
    let path = |path: &str| format!("/{number}/{}", real(path));
    match volume.rename_with(path(from), path(to), RenameFlags::from_bits_retain(flags)) {
        Ok(()) => 0,
        Err(error) => error.errno(),
    }
}

#[test]
fn root_the_kernel_renames_the_same_and_refuses_the_same() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("chattr"));
    let cases = cases();
    let (ours, since) = volume(&cases, &["-b", "1024", "-N", "20000"]);
    let scratch = Scratch::new(64 << 20);
    let theirs = scratch.file("theirs.img");
    std::fs::copy(ours.path(), &theirs).unwrap();
    let expected: Vec<i32> = with_kernel(&theirs, "", |root| {
        cases.iter().enumerate().map(|(number, case)| by_kernel(root, number, *case)).collect()
    });
    let volume = Volume::open(ours.path(), VolumeOptions::read_write()).unwrap();
    let found: Vec<i32> =
        cases.iter().enumerate().map(|(number, case)| by_us(&volume, number, *case)).collect();
    volume.close().unwrap();
    let name = |errno: &i32| rustix::io::Errno::from_raw_os_error(*errno);
    let mut wrong = Vec::new();
    for ((case, found), expected) in cases.iter().zip(&found).zip(&expected) {
        if found != expected {
            wrong.push(format!("{case:?}: {:?}, but the kernel: {:?}", name(found), name(expected)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for errno in [0, libc::ENOENT, libc::EEXIST, libc::ENOTDIR, libc::EISDIR, libc::ENOTEMPTY, libc::EINVAL] {
        let count = expected.iter().filter(|expected| **expected == errno).count();
        assert!(count >= 5, "{count} cases of {errno}");
    }
    for errno in [libc::EPERM, libc::EBUSY, libc::ENAMETOOLONG] {
        assert!(expected.contains(&errno), "no case of {errno}");
    }
    oracle::e2fsck_clean(ours.path());
    let (found, expected) = (tree(ours.path(), since), tree(&theirs, since));
    let differs = expected.keys().chain(found.keys()).find(|path| expected.get(*path) != found.get(*path));
    if let Some(path) = differs {
        let number: usize =
            String::from_utf8_lossy(path).split('/').find_map(|part| part.parse().ok()).unwrap();
        let path_text = path.escape_ascii();
        let (found, expected) = (found.get(path), expected.get(path));
        panic!("{:?}: {path_text} is {found:#?}, but the kernel's {expected:#?}", cases[number]);
    }
}
