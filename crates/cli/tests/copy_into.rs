//! `cp -r`, `-a` and `-p` into a volume and within one, beside cp(1) on a mounted one.

use crate::common::{at, bad, good, json, uext4, unprivileged};
use rustix::fs::{FileType, Mode};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use uext4_testkit::{KernelMount, LoopOptions, Need, Scratch, Volume, VolumeBuilder, needs, oracle};

/// What is compared: mode, owner, links, size, target, time of modification, device, attributes, contents.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    target: PathBuf,
    modified: (i64, i64),
    device: u64,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    contents: Vec<u8>,
}

fn attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0; 4096];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            (name.to_vec(), value[..length].to_vec())
        })
        .collect()
}

fn collect(root: &Path, below: &Path, rows: &mut BTreeMap<PathBuf, Row>) {
    let path = root.join(below);
    let found = path.symlink_metadata().unwrap();
    let (directory, file) = (found.is_dir(), found.is_file());
    let row = Row {
        mode: found.mode(),
        owner: (found.uid(), found.gid()),
        links: if directory { 0 } else { found.nlink() },
        size: if file { found.len() } else { 0 },
        target: std::fs::read_link(&path).unwrap_or_default(),
        modified: (found.mtime(), found.mtime_nsec()),
        device: found.rdev(),
        attributes: attributes(&path),
        contents: if file { std::fs::read(&path).unwrap() } else { Vec::new() },
    };
    rows.insert(below.to_owned(), row);
    if directory {
        for entry in std::fs::read_dir(&path).unwrap() {
            collect(root, &below.join(entry.unwrap().file_name()), rows);
        }
    }
}

fn rows(root: &Path) -> BTreeMap<PathBuf, Row> {
    let mut rows = BTreeMap::new();
    collect(root, Path::new(""), &mut rows);
    rows
}

/// A tree with every kind of file that this user can make.
fn tree(root: &Path) {
    let odd = OsStr::from_bytes(b"odd\xff\n name");
    for name in ["a/b/c", "empty", "many"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    std::fs::write(root.join("file"), "contents\n").unwrap();
    std::fs::write(root.join(odd), "x").unwrap();
    std::fs::write(root.join("a/large"), vec![7; (2 << 20) + 777]).unwrap();
    for size in [1, 511, 512, 513, 4095, 4096, 4097, 300_000] {
        std::fs::write(root.join("many").join(size.to_string()), vec![size as u8; size]).unwrap();
    }
    for other in ["a/hard", "a/b/hard"] {
        std::fs::hard_link(root.join("file"), root.join(other)).unwrap();
    }
    symlink("../file", root.join("a/link")).unwrap();
    symlink("t".repeat(200), root.join("dangling")).unwrap();
    let mode = Mode::from_raw_mode(0o640);
    for (name, kind) in [("pipe", FileType::Fifo), ("socket", FileType::Socket)] {
        rustix::fs::mknodat(rustix::fs::CWD, root.join(name), kind, mode, 0).unwrap();
    }
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"in the middle", 5_000_000).unwrap();
    sparse.set_len(9_000_001).unwrap();
    std::fs::set_permissions(root.join("a/large"), Permissions::from_mode(0o4751)).unwrap();
    std::fs::set_permissions(root.join("empty"), Permissions::from_mode(0o1700)).unwrap();
    std::fs::set_permissions(root.join("a/b/c"), Permissions::from_mode(0o555)).unwrap();
    for (seconds, name) in
        [(1, "a/b"), (981_173_106, "many/512"), (1 << 31, "sparse"), (5_000_000_000, "empty")]
    {
        let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, 123_456_789);
        let times = FileTimes::new().set_modified(time).set_accessed(time);
        File::open(root.join(name)).unwrap().set_times(times).unwrap();
    }
}

/// The same with what only root can make.
fn root_tree(root: &Path) {
    tree(root);
    let set = |name: &str, attribute: &str, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::lsetxattr(root.join(name), attribute, value, flags).unwrap();
    };
    set("file", "user.note", b"kept");
    set("a/large", "user.long", &[b'v'; 700]);
    set("dangling", "trusted.of-a-link", b"z");
    // Version 2: the owner rwx, user 77 rw-, the group r-x, the mask rwx, others r--.
    let list = |others: u8| {
        let entries =
            [(1, 7, u32::MAX), (2, 6, 77), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, others, u32::MAX)];
        let entries = entries.iter().flat_map(|(tag, bits, id): &(u16, u8, u32)| {
            [&tag.to_le_bytes()[..], &u16::from(*bits).to_le_bytes(), &id.to_le_bytes()].concat()
        });
        [2, 0, 0, 0].into_iter().chain(entries).collect::<Vec<u8>>()
    };
    set("many/513", "system.posix_acl_access", &list(4));
    set("a", "system.posix_acl_default", &list(0));
    let owner =
        |name: &str, uid, gid| std::os::unix::fs::lchown(root.join(name), Some(uid), Some(gid)).unwrap();
    owner("many/1", 1234, 70_000);
    owner("dangling", 5, 6);
    owner("a/b", 0, 42);
    let mode = Mode::from_raw_mode(0o600);
    let device = rustix::fs::makedev(300, 70_000);
    rustix::fs::mknodat(rustix::fs::CWD, root.join("device"), FileType::BlockDevice, mode, device).unwrap();
    std::fs::set_permissions(root.join("a/large"), Permissions::from_mode(0o6755)).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::new(77, 7);
    File::open(root.join("a")).unwrap().set_times(FileTimes::new().set_modified(time)).unwrap();
}

fn empty(args: &[&str]) -> Volume {
    VolumeBuilder::new(96 << 20).args(args.iter().copied()).build()
}

fn cp(flags: &str, paths: &[&OsStr]) -> Vec<OsString> {
    let words = ["cp"].into_iter().chain(flags.split(' ')).filter(|word| !word.is_empty());
    words.map(OsString::from).chain(paths.iter().map(|path| path.to_os_string())).collect()
}

/// As any user: into a volume, within it, and out again, everything is the same.
#[test]
fn a_tree_comes_back_as_it_went() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [&[][..], &["-b", "1024", "-I", "256"], &["-O", "^extent,^64bit,^has_journal"]] {
        let scratch = Scratch::new(64 << 20);
        let source = scratch.file("tree");
        tree(&source);
        let volume = empty(args);
        good(cp("-a", &[source.as_os_str(), &at(&volume, "/")]));
        good(cp("-a", &[&at(&volume, "/tree"), &at(&volume, "/again")]));
        good(cp("-a", &[&at(&volume, "/again/."), &at(&volume, "/tree")]));
        // Over what is there already.
        good(cp("-a", &[source.as_os_str(), &at(&volume, "/")]));
        oracle::e2fsck_clean(volume.path());
        let wanted = rows(&source);
        for name in ["tree", "again"] {
            let out = scratch.file(format!("out-{name}"));
            good(cp("-a", &[&at(&volume, format!("/{name}")), out.as_os_str()]));
            assert_eq!(rows(&out), wanted, "{name} {args:?}");
        }
    }
}

/// As root, beside `cp -a` and `cp -r` on a mounted volume.
#[test]
fn root_a_tree_is_what_cp_makes_of_it() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for flags in ["-a", "-r", "-rp"] {
        let scratch = Scratch::new(64 << 20);
        let source = scratch.file("tree");
        root_tree(&source);
        let [ours, theirs] = [empty(&[]), empty(&[])];
        good(cp(flags, &[source.as_os_str(), &at(&ours, "/")]));
        good(cp(flags, &[&at(&ours, "/tree"), &at(&ours, "/within")]));
        oracle::e2fsck_clean(ours.path());
        let mounted = KernelMount::image(theirs.path(), LoopOptions::default(), "");
        let done = oracle::command("cp").arg(flags).arg(&source).arg(mounted.path()).output().unwrap();
        assert!(done.status.success(), "{}", oracle::text(&done));
        let mut wanted = rows(&mounted.path().join("tree"));
        mounted.unmount();
        let mounted = KernelMount::image(ours.path(), LoopOptions::default(), "");
        for name in ["tree", "within"] {
            let mut found = rows(&mounted.path().join(name));
            if flags == "-r" {
                // Made at different times.
                for row in found.values_mut().chain(wanted.values_mut()) {
                    row.modified = (0, 0);
                }
            }
            for (path, row) in &wanted {
                assert_eq!(found.get(path), Some(row), "{flags} {name} {}", path.display());
            }
            assert_eq!(found.len(), wanted.len());
        }
        let blocks = mounted.path().join("tree/sparse").metadata().unwrap().blocks();
        assert!(blocks <= 32, "{blocks} sectors: holes were filled");
        mounted.unmount();
    }
}

/// The bytes of everything go to the owner that is named.
#[test]
fn owners_can_be_given() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let source = scratch.file("tree");
    tree(&source);
    let volume = empty(&[]);
    for (flags, name) in [("-a", "kept"), ("-r", "new")] {
        let dest = at(&volume, format!("/{name}"));
        good(cp(&format!("{flags} --owner 77:88"), &[source.as_os_str(), &dest]));
        for below in ["", "/file", "/a/b/c", "/dangling", "/pipe"] {
            let found = json(["stat".into(), "--json".into(), at(&volume, format!("/{name}{below}"))]);
            assert_eq!(
                (&found["stx_uid"], &found["stx_gid"]),
                (&77.into(), &88.into()),
                "{name}{below}: {found}"
            );
        }
    }
    let said = bad(2, cp("-r --owner 77", &[source.as_os_str(), &at(&volume, "/x")]));
    assert!(said.contains("UID:GID"), "{said}");
    let said = bad(2, cp("-r --owner 1:1", &[&at(&volume, "/kept"), scratch.file("out").as_os_str()]));
    assert!(said.contains("--owner is for copies into a volume"), "{said}");
    oracle::e2fsck_clean(volume.path());
}

/// What cannot be copied is named, the rest is copied, and nothing is lost.
#[test]
fn copies_that_are_refused() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let source = scratch.file("tree");
    tree(&source);
    let volume = empty(&[]);
    good(cp("-rd", &[source.as_os_str(), &at(&volume, "/")]));
    let inside = |path: &str| at(&volume, path);
    let long = "n".repeat(256);
    std::fs::write(scratch.file("plain"), "plain").unwrap();
    let plain = scratch.file("plain");
    for (flags, from, to, reason) in [
        ("", source.as_os_str().to_owned(), inside("/x"), "is a directory, and -r is not given"),
        ("-p", source.as_os_str().to_owned(), inside("/x"), "is a directory, and -r is not given"),
        ("-r", inside("/tree"), inside("/tree/a"), "into itself"),
        ("-r", inside("/"), inside("/tree"), "into itself"),
        ("-a", inside("/tree/file"), inside("/tree/file"), "are the same file"),
        ("-a", inside("/tree/file"), inside("/tree/a/hard"), "are the same file"),
        ("-r", source.join("a").into(), inside("/tree/file"), "with a directory"),
        ("-r", plain.clone().into(), inside("/no/such"), "no such directory"),
        ("-r", plain.clone().into(), inside("/tree/file/x"), "not a directory"),
        ("-r", plain.clone().into(), inside("/new/"), "not a directory"),
        ("", plain.clone().into(), inside("/new/"), "is a directory"),
        ("-a", inside("/tree/file"), inside("/new/"), "not a directory"),
        ("-r", plain.clone().into(), inside("/tree/file/"), "not a directory"),
        ("-r", scratch.file("none").into(), inside("/x"), "No such file"),
        ("-r", inside("/none"), inside("/x"), "no such file"),
        ("-r", plain.clone().into(), inside(&format!("/{long}")), "longer than 255 bytes"),
    ] {
        let told = bad(1, cp(flags, &[&from, &to]));
        assert!(told.contains(reason), "{flags} {from:?} {to:?}: {told}");
    }
    // A directory with the name of a file below, and the other way round: the rest is copied.
    let other = scratch.file("other/tree");
    std::fs::create_dir_all(other.join("file")).unwrap();
    std::fs::write(other.join("empty"), "").unwrap();
    std::fs::write(other.join("new"), "new").unwrap();
    let done = uext4(cp("-r", &[other.as_os_str(), &inside("/")]));
    assert_eq!(done.status.code(), Some(1));
    let told = oracle::text(&done);
    assert!(told.contains("/tree/file: cannot overwrite something else with a directory"), "{told}");
    assert!(told.contains("/tree/empty: cannot overwrite a directory with something else"), "{told}");
    assert_eq!(good(["cat".into(), inside("/tree/new")]), b"new");
    assert_eq!(good(["cat".into(), inside("/tree/file")]), b"contents\n");
    // What exists stays, if that is asked for.
    std::fs::write(scratch.file("new"), "newer").unwrap();
    let newer = scratch.file("new");
    good(cp("-rn", &[newer.as_os_str(), &inside("/tree/")]));
    assert_eq!(good(["cat".into(), inside("/tree/new")]), b"new");
    // Two sources of one name.
    let told = bad(1, cp("-r", &[newer.as_os_str(), other.join("new").as_os_str(), &inside("/tree/a")]));
    assert!(told.contains("was created from another source"), "{told}");
    assert_eq!(good(["cat".into(), inside("/tree/a/new")]), b"newer");
    oracle::e2fsck_clean(volume.path());
}

/// Of a directory with a damaged block the other names are copied, and the directory keeps its attributes.
#[test]
fn names_before_the_damage_are_copied() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let source = scratch.file("many");
    std::fs::create_dir(&source).unwrap();
    (0..200).for_each(|name| std::fs::write(source.join(format!("{name:04}")), "here").unwrap());
    let damaged = empty(&["-O", "^metadata_csum,^dir_index", "-b", "1024"]);
    good(cp("-r", &[source.as_os_str(), &at(&damaged, "/")]));
    good(["chmod".into(), "2750".into(), at(&damaged, "/many")]);
    oracle::debugfs_write(damaged.path(), "zap_block -f /many -p 0xff 2");
    let volume = empty(&[]);
    let told = bad(1, cp("-a", &[&at(&damaged, "/many"), &at(&volume, "/")]));
    assert!(told.contains("/many"), "{told}");
    let copied = good(["ls".into(), at(&volume, "/many")]);
    let copied = copied.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count();
    assert!((50..200).contains(&copied), "{copied} names");
    let shown = good(["stat".into(), at(&volume, "/many")]);
    assert!(String::from_utf8_lossy(&shown).contains("2750"), "{}", String::from_utf8_lossy(&shown));
    oracle::e2fsck_clean(volume.path());
}

/// A name that is a symbolic link: its target is replaced and gets the attributes, unless it is the source.
#[test]
fn copies_go_through_links() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let volume = empty(&[]);
    let inside = |path: &str| at(&volume, path);
    for (name, contents) in [("one", "first\n"), ("two", "second\n")] {
        std::fs::write(scratch.file(name), contents).unwrap();
        std::fs::set_permissions(scratch.file(name), Permissions::from_mode(0o604)).unwrap();
        good(cp("-p", &[scratch.file(name).as_os_str(), &inside("/")]));
    }
    good(["ln", "-s", "two"].map(OsString::from).into_iter().chain([inside("/link")]));
    good(["ln", "-s", "none"].map(OsString::from).into_iter().chain([inside("/dangling")]));
    let mode =
        |path: &str| json(["stat".into(), "--json".into(), inside(path)])["stx_mode"].as_u64().unwrap();
    std::fs::set_permissions(scratch.file("one"), Permissions::from_mode(0o640)).unwrap();
    good(cp("-a", &[scratch.file("one").as_os_str(), &inside("/link")]));
    assert_eq!(good(["cat".into(), inside("/two")]), b"first\n");
    assert_eq!((mode("/two"), mode("/link")), (0o100_640, 0o120_777));
    for flags in ["-a", "-a --in-place"] {
        let told = bad(1, cp(flags, &[&inside("/two"), &inside("/link")]));
        assert!(told.contains("are the same file"), "{flags}: {told}");
        assert_eq!(good(["cat".into(), inside("/two")]), b"first\n", "{flags}");
    }
    good(cp("-a --in-place", &[&inside("/one"), &inside("/link")]));
    assert_eq!(good(["cat".into(), inside("/two")]), b"first\n");
    // A link to nothing: the target is made.
    good(cp("-p", &[scratch.file("two").as_os_str(), &inside("/dangling")]));
    assert_eq!(good(["cat".into(), inside("/none")]), b"second\n");
    oracle::e2fsck_clean(volume.path());
}

/// The image of the volume is not copied into it, wherever it lies in the tree.
#[test]
fn the_image_itself_is_left_out() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(128 << 20);
    let directory = scratch.file("d");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("beside"), "x").unwrap();
    let volume = empty(&[]);
    std::fs::copy(volume.path(), directory.join("disk.img")).unwrap();
    let dest = [directory.join("disk.img").as_os_str(), OsStr::new(":/")].concat_os();
    let told = bad(1, cp("-a", &[directory.as_os_str(), &dest]));
    assert!(told.contains("disk.img: is the device of the destination"), "{told}");
    let copied = [directory.join("disk.img").as_os_str(), OsStr::new(":/d/beside")].concat_os();
    assert_eq!(good(["cat".into(), copied]), b"x");
    oracle::e2fsck_clean(&directory.join("disk.img"));
}

trait ConcatOs {
    fn concat_os(&self) -> OsString;
}

impl ConcatOs for [&OsStr; 2] {
    fn concat_os(&self) -> OsString {
        let mut whole = self[0].to_owned();
        whole.push(self[1]);
        whole
    }
}

/// Files that this user may not read are named; the others are copied.
#[test]
fn root_unreadable_files_are_named() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let source = scratch.file("tree");
    tree(&source);
    std::fs::set_permissions(source.join("file"), Permissions::from_mode(0o0)).unwrap();
    std::fs::set_permissions(source.join("many"), Permissions::from_mode(0o700)).unwrap();
    let volume = empty(&[]);
    std::os::unix::fs::chown(volume.path(), Some(65534), Some(65534)).unwrap();
    let args = cp("-a", &[source.as_os_str(), &at(&volume, "/")]);
    let done = unprivileged(&volume, &args);
    let told = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{told}");
    for name in ["/tree/file: open: Permission denied", "/tree/many: open: Permission denied"] {
        assert!(told.contains(name), "{told}");
    }
    let found = json(["stat".into(), "--json".into(), at(&volume, "/tree/sparse")]);
    assert_eq!(found["stx_uid"], 0, "owners are kept: {found}");
    oracle::e2fsck_clean(volume.path());
}

/// Files of `/proc` say that they are empty, those of `/sys` that they have a page.
#[test]
fn files_of_the_kernel_are_copied_whole() {
    let volume = VolumeBuilder::new(16 << 20).build();
    let sources = ["/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled"];
    for source in sources.into_iter().filter(|source| Path::new(source).exists()) {
        let wanted = std::fs::read(source).unwrap();
        assert!(!wanted.is_empty());
        for option in ["-v", "-p", "-r", "--sparse=always", "--in-place"] {
            let copy = at(&volume, "/copy");
            uext4(["cp".as_ref(), option.as_ref(), OsStr::new(source), &copy]);
            assert_eq!(good(["cat".as_ref(), copy.as_os_str()]), wanted, "{source} {option}");
        }
    }
    oracle::e2fsck_clean(volume.path());
}

/// What takes the place of an existing file exists before that goes.
#[test]
fn what_cannot_be_made_replaces_nothing() {
    let scratch = Scratch::new(64 << 20);
    let source = scratch.file("source");
    std::fs::create_dir(&source).unwrap();
    symlink("x".repeat(200), source.join("link")).unwrap();
    let from = VolumeBuilder::new(16 << 20).from_dir(&source).build();
    // Its target lies outside the volume.
    oracle::debugfs_write(from.path(), "set_inode_field /link block[5] 0x7fffffff");
    let into = VolumeBuilder::new(16 << 20).build();
    let kept = at(&into, "/link");
    std::fs::write(scratch.file("old"), "old").unwrap();
    good(["cp".as_ref(), scratch.file("old").as_os_str(), &kept]);
    bad(1, ["cp".as_ref(), "-a".as_ref(), at(&from, "/link").as_os_str(), &kept]);
    assert_eq!(good(["cat".as_ref(), kept.as_os_str()]), b"old");
    oracle::e2fsck_clean(into.path());
}

/// The same for a hard link.
#[test]
fn a_name_too_many_replaces_nothing() {
    const NAMES: u32 = 65_001;
    let scratch = Scratch::new(64 << 20);
    let source = scratch.file("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(scratch.file("file"), "new").unwrap();
    for number in 0..NAMES {
        symlink("../file", source.join(number.to_string())).unwrap();
    }
    let into = VolumeBuilder::new(32 << 20).build();
    let last = at(&into, format!("/{}", NAMES - 1));
    std::fs::write(scratch.file("old"), "old").unwrap();
    good(["cp".as_ref(), scratch.file("old").as_os_str(), &last]);
    let options = ["-rLT", "--preserve=links"].map(OsStr::new);
    let root = at(&into, "/");
    let said = bad(1, [OsStr::new("cp"), options[0], options[1], source.as_os_str(), &root]);
    assert!(said.ends_with("too many links"), "{said}");
    let kept = good(["cat".as_ref(), last.as_os_str()]);
    assert!(kept == b"old" || kept == b"new", "{}", String::from_utf8_lossy(&kept));
    let listed = good(["ls".as_ref(), "-1".as_ref(), root.as_os_str()]);
    // Each name, and `lost+found`.
    let names = listed.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(names, 65_002);
    oracle::e2fsck_clean(into.path());
}

/// A file for which there is no room leaves no part of it, and the others are there.
#[test]
fn a_full_volume_gets_no_half_copy() {
    let scratch = Scratch::new(64 << 20);
    let source = scratch.file("source");
    std::fs::create_dir(&source).unwrap();
    // Some of them are copied while the large one still has the blocks that it will give back.
    let small: Vec<String> = (0..40).map(|number| format!("small-{number}")).collect();
    small.iter().for_each(|name| std::fs::write(source.join(name), name.repeat(4000)).unwrap());
    // Longer than one step of the copy.
    std::fs::write(source.join("big"), vec![7; 20 << 20]).unwrap();
    for _ in 0..20 {
        let into = VolumeBuilder::new(16 << 20).build();
        let root = at(&into, "/");
        let said = bad(1, ["cp".as_ref(), "-rT".as_ref(), source.as_os_str(), &root]);
        assert!(said.ends_with("no space left on the volume") && !said.contains("small"), "{said}");
        for name in &small {
            let found = good(["cat".as_ref(), at(&into, format!("/{name}")).as_os_str()]);
            assert!(found == name.repeat(4000).as_bytes(), "{name}");
        }
        let listed = String::from_utf8(good(["ls".as_ref(), "-1".as_ref(), root.as_os_str()])).unwrap();
        assert!(!listed.contains("big"), "{listed}");
        oracle::e2fsck_clean(into.path());
    }
}

/// A copy that keeps its mode does not inherit the access control list of its new directory.
#[test]
fn lists_of_the_directory_grant_nothing_to_kept_modes() {
    let scratch = Scratch::new(64 << 20);
    let source = scratch.file("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), "secret").unwrap();
    let into = VolumeBuilder::new(16 << 20).build();
    let root = at(&into, "/");
    // Owner rwx, user 5 rwx, group and others none.
    let list = "system.posix_acl_default=0x0200000001000700ffffffff020007000500000004000000ffffffff\
                10000700ffffffff20000000ffffffff";
    good(["xattr".as_ref(), "--set".as_ref(), OsStr::new(list), &root]);
    for (options, lists) in [("-r", true), ("-a", false), ("-rp", false), ("-rd", true)] {
        let copy = at(&into, format!("/{options}"));
        good([OsStr::new("cp"), OsStr::new(options), source.as_os_str(), &copy]);
        for below in ["", "/file"] {
            let copy = at(&into, format!("/{options}{below}"));
            let said = String::from_utf8(good(["xattr".as_ref(), copy.as_os_str()])).unwrap();
            assert_eq!(said.contains("posix_acl"), lists, "{options}{below}: {said}");
        }
    }
    oracle::e2fsck_clean(into.path());
}
