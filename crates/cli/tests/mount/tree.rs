//! Names and attributes through a mount.

use super::{Mounted, NEEDS, drop_caches, volume};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use uext4_testkit::manifest::{assert_same, manifest};
use uext4_testkit::{Need, fixture, requirement};

#[test]
fn root_a_tree_built_through_a_mount_is_what_the_kernel_sees() {
    if !requirement::require("mount::tree::built", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "dev,suid,allow_other");
    fixture::standard_tree(mounted.path(), 29);
    let built = manifest(mounted.path());
    drop_caches();
    assert_same(&built, &manifest(mounted.path()));
    let file = std::fs::metadata(mounted.path()).unwrap();
    assert!(file.created().is_ok(), "statx tells the time of creation");
    mounted.unmount();
    volume.assert_clean();
    assert_same(&built, &volume.kernel_manifest());
    // And read-only through a mount again.
    let mounted = Mounted::new(volume.path(), "ro");
    assert_same(&built, &manifest(mounted.path()));
    assert_eq!(std::fs::write(mounted.at("new"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
    std::fs::File::open(mounted.path()).unwrap().sync_all().unwrap();
    mounted.unmount();
    volume.assert_clean();
}

/// What there is to rename.
fn cast(directory: &Path) {
    for name in ["file", "other"] {
        std::fs::write(directory.join(name), name).unwrap();
    }
    for name in ["empty", "full/inner", "sticky"] {
        std::fs::create_dir_all(directory.join(name)).unwrap();
    }
    std::os::unix::fs::symlink("file", directory.join("link")).unwrap();
    std::fs::hard_link(directory.join("file"), directory.join("same")).unwrap();
}

/// What a rename gives: the error, and the names afterwards with what they lead to.
type Renamed = (Result<(), Errno>, BTreeMap<String, (u32, u64)>);

fn names(directory: &Path) -> BTreeMap<String, (u32, u64)> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let told = |entry: std::fs::DirEntry| {
        let found = std::fs::symlink_metadata(entry.path()).unwrap();
        let size = if found.is_dir() { 0 } else { found.size() };
        (entry.file_name().into_string().unwrap(), (found.mode(), found.nlink() << 32 | size))
    };
    entries.map(told).collect()
}

fn rename_all(root: &Path) -> Vec<Renamed> {
    let all = ["file", "other", "same", "link", "empty", "full", "missing", "full/inner", "full/new"];
    let flags = [
        RenameFlags::empty(),
        RenameFlags::NOREPLACE,
        RenameFlags::EXCHANGE,
        RenameFlags::WHITEOUT,
        RenameFlags::EXCHANGE | RenameFlags::NOREPLACE,
    ];
    let mut results = Vec::new();
    for (case, flag) in flags.into_iter().enumerate() {
        for from in all {
            for to in all {
                let directory =
                    root.join(format!("{case}-{}-{}", from.replace('/', "_"), to.replace('/', "_")));
                std::fs::create_dir(&directory).unwrap();
                cast(&directory);
                let result = renameat_with(CWD, directory.join(from), CWD, directory.join(to), flag);
                results.push((result, names(&directory)));
            }
        }
    }
    results
}

#[test]
fn root_renames_end_as_the_kernels() {
    if !requirement::require("mount::tree::renames", &NEEDS) {
        return;
    }
    let (ours, theirs) = (volume(), volume());
    let mounted = Mounted::new(ours.path(), "dev");
    let found = rename_all(mounted.path());
    mounted.unmount();
    ours.assert_clean();
    let expected = theirs.with_kernel(rename_all);
    assert_eq!(found.len(), expected.len());
    for (case, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found, expected, "case {case}");
    }
    assert!(expected.iter().filter(|case| case.0.is_ok()).count() > 100);
}

#[test]
fn root_names_are_bytes_and_listings_survive_changes() {
    if !requirement::require("mount::tree::names", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    // Long names, and names that are not UTF-8.
    let long = "n".repeat(255);
    std::fs::write(mounted.at(&long), "long").unwrap();
    for length in [256, 1000] {
        let error = std::fs::write(mounted.at("n".repeat(length)), "").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG), "{length}");
        let error = std::fs::metadata(mounted.at("n".repeat(length))).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG), "{length}");
    }
    let odd: [&[u8]; 3] = [b"\xff\xfe", b"new\nline", b"\x01"];
    for name in odd {
        std::fs::write(mounted.at(OsStr::from_bytes(name)), name).unwrap();
        assert_eq!(std::fs::read(mounted.at(OsStr::from_bytes(name))).unwrap(), name);
    }
    // Names that stay are listed once, while others come and go between the calls.
    let directory = mounted.at("many");
    std::fs::create_dir(&directory).unwrap();
    let stay = |number: usize| format!("stays-{number:04}");
    for number in 0..1500 {
        std::fs::write(directory.join(stay(number)), "").unwrap();
    }
    let (mut seen, mut listed) = (BTreeMap::<Vec<u8>, u32>::new(), 0);
    for entry in std::fs::read_dir(&directory).unwrap() {
        *seen.entry(entry.unwrap().file_name().into_vec()).or_default() += 1;
        listed += 1;
        if listed % 3 == 0 {
            let name = directory.join(format!("goes-{listed}"));
            std::fs::write(&name, "").unwrap();
            if listed % 2 == 0 {
                std::fs::remove_file(name).unwrap();
            }
        }
    }
    for number in 0..1500 {
        assert_eq!(seen.get(stay(number).as_bytes()), Some(&1), "{number}");
    }
    assert!(seen.values().all(|count| *count == 1));
    let all: BTreeSet<_> =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(all.len() > 1500 && seen.keys().filter(|name| name.starts_with(b"stays")).count() == 1500);
    std::fs::remove_dir_all(&directory).unwrap();
    mounted.unmount();
    volume.assert_clean();
}

#[test]
fn root_files_without_a_name_and_handles_that_were_kept_work() {
    if !requirement::require("mount::tree::nameless", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    // Removed while it is open, before and after the caches were dropped.
    let path = mounted.at("removed");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    std::fs::remove_file(&path).unwrap();
    drop_caches();
    file.write_all_at(b"after!", 6).unwrap();
    let mut read = [0; 12];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!((&read, file.metadata().unwrap().nlink()), (b"beforeafter!", 0));
    drop(file);
    // Made without a name, and linked later.
    let made =
        rustix::fs::open(mounted.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o640)).unwrap();
    rustix::io::pwrite(&made, b"linked", 0).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&made);
    let link = format!("/proc/self/fd/{number}");
    rustix::fs::linkat(CWD, &link, CWD, mounted.at("linked"), AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(std::fs::read(mounted.at("linked")).unwrap(), b"linked");
    drop(made);
    drop(rustix::fs::open(mounted.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::empty()).unwrap());
    // The working directory of a process is removed.
    let script = "mkdir gone; cd gone; rmdir ../gone; echo x > y; ls -a . ; stat -c %h .";
    let output =
        std::process::Command::new("sh").args(["-c", script]).current_dir(mounted.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("nonexistent") || said.contains("No such file"), "{said}");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout).lines().last(),
        Some("0"),
        "links of a removed directory"
    );
    // Replaced by a rename while it is open, its other name removed elsewhere.
    std::fs::write(mounted.at("one"), "replaced").unwrap();
    std::fs::create_dir(mounted.at("aside")).unwrap();
    std::fs::hard_link(mounted.at("one"), mounted.at("aside/two")).unwrap();
    let open = std::fs::File::open(mounted.at("one")).unwrap();
    std::fs::write(mounted.at("new"), "new").unwrap();
    std::fs::rename(mounted.at("new"), mounted.at("one")).unwrap();
    std::fs::remove_dir_all(mounted.at("aside")).unwrap();
    drop_caches();
    assert_eq!((open.metadata().unwrap().nlink(), open.metadata().unwrap().len()), (0, 8));
    assert_eq!(std::io::read_to_string(&open).unwrap(), "replaced");
    drop(open);
    std::fs::remove_file(mounted.at("one")).unwrap();
    mounted.unmount();
    volume.assert_clean();
    let names: Vec<_> = volume.kernel_manifest().into_keys().collect();
    assert_eq!(names, [&b"/"[..], b"/linked", b"/lost+found"]);
}

/// A script that keeps a file handle, drops the caches, and opens it again; then the inode's number is used again.
const HANDLES: &str = r#"
import ctypes, ctypes.util, os, sys
libc = ctypes.CDLL(None, use_errno=True)
root = sys.argv[1]
class Handle(ctypes.Structure):
    _fields_ = [('bytes', ctypes.c_uint), ('type', ctypes.c_int), ('data', ctypes.c_ubyte * 128)]
def handle(path):
    kept, mount = Handle(bytes=128), ctypes.c_int()
    done = libc.name_to_handle_at(-100, path.encode(), ctypes.byref(kept), ctypes.byref(mount), 0)
    assert done == 0, ctypes.get_errno()
    return kept
def reopen(kept):
    top = os.open(root, os.O_RDONLY)
    found = libc.open_by_handle_at(top, ctypes.byref(kept), os.O_RDONLY)
    error = ctypes.get_errno()
    os.close(top)
    return found if found >= 0 else -error
def drop():
    open('/proc/sys/vm/drop_caches', 'w').write('3')
os.makedirs(root + '/a/b')
open(root + '/a/b/file', 'w').write('kept')
kept, directory = handle(root + '/a/b/file'), handle(root + '/a/b')
drop()
found = reopen(kept)
assert found >= 0 and os.read(found, 10) == b'kept', found
os.close(found)
found = reopen(directory)
assert found >= 0 and os.listdir(found) == ['file'], found
assert os.stat('..', dir_fd=found).st_ino == os.stat(root + '/a').st_ino
os.close(found)
number = os.stat(root + '/a/b/file').st_ino
os.unlink(root + '/a/b/file')
drop()
assert reopen(kept) == -116, 'a handle of a removed file'
for turn in range(50):
    open(root + '/a/b/new%d' % turn, 'w').write('new')
reused = [n for n in os.listdir(root + '/a/b') if os.stat(root + '/a/b/' + n).st_ino == number]
assert reused, 'the number is used again'
drop()
assert reopen(kept) == -116, 'a handle of another generation'
assert open(root + '/a/b/' + reused[0]).read() == 'new'
"#;

#[test]
fn root_file_handles_outlive_the_caches_and_not_their_file() {
    let needs = [&NEEDS[..], &[Need::Tool("python3")]].concat();
    if !requirement::require("mount::tree::handles", &needs) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    let output =
        std::process::Command::new("python3").args(["-c", HANDLES]).arg(mounted.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    mounted.unmount();
    volume.assert_clean();
}

/// What the kernel knows stays usable without a name, also if nobody has it open for reading.
#[test]
fn root_what_has_lost_its_name_can_still_be_opened() {
    if !requirement::require("mount::tree::nameless", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    let path = |name: &str| mounted.at(name);
    std::fs::write(path("unlinked"), "still here").unwrap();
    std::fs::write(path("replaced"), "here too").unwrap();
    std::fs::create_dir(path("removed")).unwrap();
    let known = |name: &str| rustix::fs::open(path(name), OFlags::PATH, Mode::empty()).unwrap();
    let [unlinked, replaced, removed] = ["unlinked", "replaced", "removed"].map(known);
    std::fs::remove_file(path("unlinked")).unwrap();
    std::fs::write(path("new"), "new").unwrap();
    std::fs::rename(path("new"), path("replaced")).unwrap();
    std::fs::remove_dir(path("removed")).unwrap();
    // Their numbers would be used again.
    for number in 0..20 {
        std::fs::write(path(&format!("other{number}")), "other").unwrap();
    }
    let again = |known: &OwnedFd| format!("/proc/self/fd/{}", known.as_raw_fd());
    assert_eq!(std::fs::read_to_string(again(&unlinked)).unwrap(), "still here");
    assert_eq!(std::fs::read_to_string(again(&replaced)).unwrap(), "here too");
    assert_eq!(std::fs::read_dir(again(&removed)).unwrap().count(), 0);
    drop((unlinked, replaced, removed));
    mounted.unmount();
    volume.assert_clean();
}
