//! Case-folded directories by the guest's kernel: what it finds under a name is what is found here.

use crate::Test;
use crate::volumes::run;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use uext4::{Volume, VolumeOptions};

/// Tests of this room.
pub const TESTS: &[Test] = &[
    ("vm_casefold_finds_what_the_kernel_finds", || compare("encoding=utf8-12.1")),
    ("vm_strict_casefold_finds_what_the_kernel_finds", || {
        compare("encoding=utf8-12.1,encoding_flags=strict");
        // Not on the volume that is not strict. The kernel hashes a name that is not UTF-8 as it stands; e2fsprogs
        // 1.47.0 fails to (`debugfs -R 'dx_hash -e utf8 -c NAME'`: "Unknown code 220"), so that e2fsck takes the hash
        // of the entry before it, and where such a name comes first in its block, which the random seed of the hash
        // decides, calls a sound directory damaged ("bad min hash").
        run("/sbin/e2fsck", &["-fn", DEVICE]);
    }),
];

const DEVICE: &str = "/dev/nvme0n1";
const ENOENT: i32 = 2;

/// Letters of several scripts in both cases, marks, ignorable and later code points, and what is not UTF-8.
const PARTS: [&[u8]; 30] = [
    b"a",
    b"A",
    b"s",
    b"SS",
    "ß".as_bytes(),
    "ẞ".as_bytes(),
    "ſ".as_bytes(),
    "σ".as_bytes(),
    "ς".as_bytes(),
    "Σ".as_bytes(),
    "é".as_bytes(),
    "E\u{301}".as_bytes(),
    b"e",
    "\u{301}".as_bytes(),
    "\u{323}".as_bytes(),
    "\u{345}".as_bytes(),
    "ι".as_bytes(),
    "한".as_bytes(),
    "\u{1112}\u{1161}".as_bytes(),
    "\u{11AB}".as_bytes(),
    "İ".as_bytes(),
    "ı".as_bytes(),
    "i\u{307}".as_bytes(),
    "\u{200D}".as_bytes(),
    "\u{AD}".as_bytes(),
    "👩".as_bytes(),
    // A pair of letters of Unicode 14.0.
    "\u{A7C0}".as_bytes(),
    "\u{A7C1}".as_bytes(),
    "ﬁ".as_bytes(),
    b"\xFF",
];

/// Seeded names of one to six parts. The last part of all, which makes a name invalid, is rare.
fn names(seed: u64, count: usize) -> Vec<Vec<u8>> {
    let mut state = seed;
    let mut below = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    let mut name = || {
        let kinds = if below(15) == 0 { PARTS.len() } else { PARTS.len() - 1 };
        (0..1 + below(6)).flat_map(|_| PARTS[below(kinds)].to_vec()).collect()
    };
    (0..count).map(|_| name()).collect()
}

fn in_dir(dir: &str, name: &[u8]) -> Vec<u8> {
    [dir.as_bytes(), b"/", name].concat()
}

fn compare(extended: &str) {
    run(
        "/sbin/mke2fs",
        &["-q", "-F", "-t", "ext4", "-O", "casefold", "-E", extended, "-b", "1024", DEVICE, "64M"],
    );
    run("mount", &["-t", "ext4", DEVICE, "/mnt"]);
    let seen = std::panic::catch_unwind(by_the_kernel);
    run("umount", &["/mnt"]);
    let (listed, answers) = seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let volume = Volume::open(DEVICE, VolumeOptions::read_only()).expect("a volume with the feature");
    let entries = volume.read_dir("/dir").expect("the directory").map(|entry| entry.expect("an entry").name);
    let here: BTreeSet<Vec<u8>> = entries.filter(|name| name != b"." && name != b"..").collect();
    assert!(here == listed, "another listing: {} names, {} by the kernel", here.len(), listed.len());
    for (name, there) in &answers {
        let found = volume.resolve(OsStr::from_bytes(&in_dir("/dir", name)), false);
        let here = found.map(|ino| u64::from(ino.get())).map_err(|error| error.errno());
        assert_eq!(&here, there, "{}", name.escape_ascii());
    }
    let found = answers.iter().filter(|(name, there)| there.is_ok() && !listed.contains(name)).count();
    let missing = answers.iter().filter(|(_, there)| *there == Err(ENOENT)).count();
    assert!(found > 200 && missing > 200, "{found} other spellings, {missing} absent names");
}

type Answers = Vec<(Vec<u8>, Result<u64, i32>)>;

/// Fills `/dir`, lists it, and asks for many names: the inode, or the errno.
fn by_the_kernel() -> (BTreeSet<Vec<u8>>, Answers) {
    std::fs::create_dir("/mnt/dir").expect("the directory");
    run("/sbin/chattr", &["+F", "/mnt/dir"]);
    for name in names(1, 1500) {
        // Another spelling of a name that is there opens that one; a strict volume refuses invalid names.
        drop(std::fs::write(Path::new(OsStr::from_bytes(&in_dir("/mnt/dir", &name))), ""));
    }
    let entries = std::fs::read_dir("/mnt/dir").expect("a listing");
    let listed: BTreeSet<Vec<u8>> =
        entries.map(|entry| entry.expect("an entry").file_name().as_bytes().to_vec()).collect();
    assert!(listed.len() > 500, "{} names", listed.len());
    let asked = listed.iter().cloned().chain(names(2, 3000));
    let answers = asked.map(|name| {
        let path = in_dir("/mnt/dir", &name);
        let found = std::fs::symlink_metadata(OsStr::from_bytes(&path));
        let answer = found.map(|meta| meta.ino()).map_err(|error| error.raw_os_error().unwrap_or(0));
        (name, answer)
    });
    (listed.clone(), answers.collect())
}
