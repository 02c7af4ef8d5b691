//! `cp` with options, in all directions, beside cp(1): both get the same words and must leave the same trees.

use crate::common;

use common::{at, bad, good, uext4};
use rustix::fs::{AtFlags, CWD, FileType, Mode, SeekFrom, Timespec, Timestamps, XattrFlags};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uext4_testkit::{KernelMount, LoopOptions, Need, Scratch, VolumeBuilder, needs, oracle};

/// What is compared of one name.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    mode: u32,
    owner: (u32, u32),
    /// The first name of the same inode.
    same: PathBuf,
    size: u64,
    target: PathBuf,
    device: u64,
    /// Of the last access and change of the contents; `None` if that was during the test.
    times: [Option<(i64, i64)>; 2],
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    contents: Vec<u8>,
    /// Where it has data.
    data: Vec<(u64, u64)>,
}

type Rows = BTreeMap<PathBuf, Row>;

fn attributes(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 4096];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

fn data(path: &Path) -> Vec<(u64, u64)> {
    let file = File::open(path).unwrap();
    let (mut pos, mut found) = (0, Vec::new());
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(pos)) {
        pos = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap();
        found.push((start, pos));
    }
    found
}

/// Everything below `root`; times after `begun` are not looked at.
fn rows(root: &Path, begun: i64) -> Rows {
    let (mut rows, mut names) = (Rows::new(), vec![PathBuf::new()]);
    let mut first: BTreeMap<u64, PathBuf> = BTreeMap::new();
    while let Some(below) = names.pop() {
        let path = root.join(&below);
        let found = path.symlink_metadata().unwrap();
        let (directory, file) = (found.is_dir(), found.is_file());
        if directory {
            let mut inside: Vec<_> = std::fs::read_dir(&path)
                .unwrap()
                .map(|entry| below.join(entry.unwrap().file_name()))
                .collect();
            inside.sort_by(|one, other| other.cmp(one));
            names.extend(inside);
        }
        let time = |seconds, nanoseconds| (seconds < begun).then_some((seconds, nanoseconds));
        let row = Row {
            mode: found.mode(),
            owner: (found.uid(), found.gid()),
            same: first.entry(found.ino()).or_insert(below.clone()).clone(),
            size: if file { found.len() } else { 0 },
            target: std::fs::read_link(&path).unwrap_or_default(),
            device: found.rdev(),
            times: [time(found.atime(), found.atime_nsec()), time(found.mtime(), found.mtime_nsec())],
            attributes: attributes(&path),
            contents: if file { std::fs::read(&path).unwrap() } else { Vec::new() },
            data: if file { data(&path) } else { Vec::new() },
        };
        rows.insert(below, row);
    }
    // A file of a volume is replaced: it is another one, and its directory changes.
    for name in ["", "old-file"] {
        if let Some(row) = rows.get_mut(Path::new(name)) {
            row.times[0] = None;
            row.times[1] = row.times[1].filter(|_| !name.is_empty());
        }
    }
    rows
}

/// Gives every name below `root` times of its own, long ago.
fn old(root: &Path) {
    for (number, path) in rows(root, 0).into_keys().enumerate() {
        let time = |seconds| Timespec { tv_sec: seconds + number as i64, tv_nsec: number as i64 + 1 };
        let times = Timestamps { last_access: time(1_000_000_000), last_modification: time(1_100_000_000) };
        rustix::fs::utimensat(CWD, root.join(path), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// Version 2: the owner rwx, user 77 rw-, the group r-x, the mask rwx, others r--.
fn list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 6, 77), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 4, u32::MAX)];
    let entries = entries.iter().flat_map(|(tag, bits, id)| {
        [&tag.to_le_bytes()[..], &bits.to_le_bytes(), &id.to_le_bytes()].concat()
    });
    [2, 0, 0, 0].into_iter().chain(entries).collect()
}

/// What is copied: every kind of file, and links that lead to everything.
fn source(root: &Path) {
    for name in ["dir/deep", "sticky", "shared", "other"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    let write = |name: &str, bytes: &[u8]| std::fs::write(root.join(name), bytes).unwrap();
    write("file", b"contents\n");
    write("dir/one", b"1");
    write("dir/deep/down", &[3; 5000]);
    write("other/suid", b"#!/bin/sh\n");
    write("secret", b"for the group only\n");
    write("zeros", &[0; 40_000]);
    write("mixed", &[&[1; 4096][..], &[0; 8192], &[2; 5000], &[0; 9000]].concat());
    for other in ["hard", "dir/hard"] {
        std::fs::hard_link(root.join("file"), root.join(other)).unwrap();
    }
    for (target, name) in [
        ("file", "to-file"),
        ("dir", "to-dir"),
        ("../dir/deep", "other/to-deep"),
        ("to-file", "to-link"),
        ("nowhere", "dangling"),
        ("..", "dir/deep/up"),
        ("self", "self"),
        ("pipe", "to-pipe"),
    ] {
        symlink(target, root.join(name)).unwrap();
    }
    let holes = File::create(root.join("holes")).unwrap();
    holes.write_all_at(&[5; 4096], 8192).unwrap();
    holes.write_all_at(b"end", 65536).unwrap();
    holes.set_len(100_001).unwrap();
    let node = |name: &str, kind, device| {
        rustix::fs::mknodat(CWD, root.join(name), kind, Mode::from_raw_mode(0o666), device).unwrap();
    };
    node("pipe", FileType::Fifo, 0);
    node("socket", FileType::Socket, 0);
    node("device", FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    let set = |name: &str, attribute: &str, value: &[u8]| {
        rustix::fs::lsetxattr(root.join(name), attribute, value, XattrFlags::empty()).unwrap();
    };
    set("dir/one", "user.note", b"kept");
    // Not on what links lead to: cp(1) takes those of the link then.
    set("shared", "user.of-a-directory", b"too");
    set("dangling", "trusted.of-a-link", b"z");
    set("dir/deep/down", "system.posix_acl_access", &list());
    set("other", "system.posix_acl_default", &list());
    for (name, uid, gid) in
        [("dir/one", 12, 34), ("secret", 0, 42), ("dangling", 5, 6), ("dir/deep", 7, 8), ("pipe", 9, 9)]
    {
        lchown(root.join(name), Some(uid), Some(gid)).unwrap();
    }
    for (name, mode) in [
        ("other/suid", 0o6755),
        ("sticky", 0o1777),
        ("secret", 0o640),
        ("dir/deep", 0o550),
        ("shared", 0o2770),
        ("dir/one", 0o400),
    ] {
        std::fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    }
    old(root);
}

/// What is there before each copy.
fn blank(root: &Path) {
    std::fs::create_dir_all(root.join("there")).unwrap();
    std::fs::write(root.join("there/old"), "old").unwrap();
    std::fs::write(root.join("old-file"), "old").unwrap();
    std::fs::set_permissions(root.join("old-file"), Permissions::from_mode(0o604)).unwrap();
    std::fs::set_permissions(root.join("there"), Permissions::from_mode(0o711)).unwrap();
    old(root);
}

/// The words of both programs: `S` is the source, `D` the destination.
const WORDS: &[&str] = &[
    // Trees.
    "-r S D/new",
    "-r S D/there",
    "-a S D/new",
    "-rp S D/new",
    "-rd S D/new",
    "-dR --preserve=all S D/new",
    "-r S/to-dir D/new",
    "-rH S/to-dir D/new",
    "-rH S D/new",
    "-rP S/to-dir D/new",
    "-rL S D/new",
    "-rL S/other D/new",
    "-aL S/other S/dir D/there",
    "-rL --preserve=links S D/new",
    "-rH --preserve=links S/to-file S/file S/dir D/there",
    "-rL -P S D/new",
    "-P -rL S/other D/new",
    "-H -a S/to-dir D/new",
    "-a -H S/to-dir D/new",
    // What is kept.
    "-r --preserve S D/new",
    "-r --preserve=mode S D/new",
    "-r --preserve=ownership S D/new",
    "-r --preserve=timestamps S D/new",
    "-r --preserve=links S D/new",
    "-r --preserve=xattr S D/new",
    "-r --preserve=links,xattr,mode S D/new",
    "-a --no-preserve=mode S D/new",
    "-a --no-preserve=ownership,timestamps S D/new",
    "-a --no-preserve=links S D/new",
    "-a --no-preserve=xattr S D/new",
    "-a --no-preserve=all S D/new",
    "-r --no-preserve=mode S D/new",
    "-r --no-preserve=mode --preserve=mode S D/new",
    "--preserve=mode -r --no-preserve=mode --preserve=timestamps S D/new",
    "-rp S/. D/there",
    // Holes.
    "-r --sparse=auto S D/new",
    "-r --sparse=always S D/new",
    "-r --sparse=never S D/new",
    "--sparse=always S/zeros S/mixed S/holes D/there",
    "--sparse=never S/zeros S/mixed S/holes D/there",
    "S/zeros S/mixed S/holes D",
    "--sparse=always S/mixed D/old-file",
    // Single files.
    "S/to-file D/new",
    "-P S/to-file D/new",
    "-P S/to-file D/old-file",
    "-d S/file S/hard S/to-file S/dangling D/there",
    "-d S/secret D/old-file",
    "-L S/to-file S/to-link D/there",
    "-H S/to-file D/new",
    "-P -L S/to-link D/new",
    "-L -P S/to-link D/new",
    "--preserve=links S/file S/hard S/to-file D/there",
    "-p S/file S/hard D/there",
    "-p S/secret S/dir/one S/other/suid D",
    "-p S/secret D/old-file",
    "--preserve=ownership S/secret S/dir/one D",
    "--preserve=timestamps S/file D/old-file",
    "--no-preserve=mode S/dir/one S/other/suid S/file D",
    "--preserve=xattr S/dir/one D/new",
    "-P S/dangling S/self D/there",
    "S/dangling D/new",
    "S/self S/file D/there",
    "S/dir S/file D/there",
    // Where it goes.
    "-t D/there S/file S/secret",
    "-r -t D/there S/dir",
    "-t D/old-file S/file",
    "-t D/none S/file",
    "-T S/file D/new",
    "-T S/file D/old-file",
    "-T S/file D/there",
    "-rT S/dir D/there",
    "-rT S/dir D/new",
    "-rT S/dir D/old-file",
    "-rT S/to-dir D/there",
    "-aT S/dir D/there",
    "-r S/file S/dir D/old-file",
];

/// Words for a program: places beside `S` and `D`.
fn words(words: &str, source: &OsStr, dest: &OsStr) -> Vec<OsString> {
    let place = |word: &str| {
        let (root, rest) = match word.as_bytes() {
            [b'S'] | [b'S', b'/', ..] => (source, &word[1..]),
            [b'D'] | [b'D', b'/', ..] => (dest, &word[1..]),
            _ => return OsString::from(word),
        };
        [root, OsStr::new(rest)].into_iter().collect()
    };
    words.split(' ').map(place).collect()
}

/// The status, and what was said.
fn run(program: &str, words: Vec<OsString>) -> (Option<i32>, String) {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 027; exec \"$0\" \"$@\""]).arg(program).args(words).stdin(Stdio::null());
    let done = command.env("LC_ALL", "C").output().unwrap();
    (done.status.code(), oracle::text(&done))
}

/// The differences of two trees, in words.
fn differences(ours: &Rows, theirs: &Rows) -> Vec<String> {
    let names: std::collections::BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let shown = |row: Option<&Row>| {
        row.map_or("none".to_owned(), |row| {
            let Row { mode, owner, same, size, target, times, data, attributes, .. } = row;
            let names: Vec<_> = attributes.keys().map(|name| String::from_utf8_lossy(name)).collect();
            format!("{mode:o} {owner:?} {same:?} {size} {target:?} {times:?} {data:?} {names:?}")
        })
    };
    names
        .into_iter()
        .filter(|name| ours.get(*name) != theirs.get(*name))
        .map(|name| format!("{name:?}:\n   {}\n   cp {}", shown(ours.get(name)), shown(theirs.get(name))))
        .collect()
}

#[test]
fn root_every_option_does_what_cp_does() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let begun = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64 - 60;
    let large = || VolumeBuilder::new(256 << 20).args(["-b", "4096", "-N", "60000"]).build();
    let (host, volume) = (large(), large());
    let mount = |path: &Path| KernelMount::image(path, LoopOptions::default(), "noatime");
    let mounted = mount(host.path());
    let top = mounted.path().to_owned();
    source(&top.join("src"));
    blank(&top.join("blank"));
    let inner = mount(volume.path());
    let as_it_is = |from: PathBuf, to: PathBuf| {
        assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
    };
    as_it_is(top.join("src"), inner.path().to_owned());
    for number in 0..WORDS.len() {
        for name in ["theirs", "out"] {
            as_it_is(top.join("blank"), top.join(format!("{name}.{number}")));
        }
        for name in ["into", "within", "between"] {
            as_it_is(top.join("blank"), inner.path().join(format!("{name}.{number}")));
        }
    }
    inner.unmount();
    let scratch = Scratch::new(512 << 20);
    let other = scratch.file("other.img");
    let copied = Command::new("cp").arg("--sparse=always").arg(volume.path()).arg(&other).status().unwrap();
    assert!(copied.success());
    let program = env!("CARGO_BIN_EXE_uext4");
    let inside = |path: String| at(&volume, path);
    let mut between = other.clone().into_os_string();
    between.push(":/src");
    let (here, mut told) = (top.join("src").into_os_string(), Vec::new());
    for (number, line) in WORDS.iter().enumerate() {
        let theirs = top.join(format!("theirs.{number}")).into_os_string();
        let (status, said) = run("cp", words(line, &here, &theirs));
        let out = top.join(format!("out.{number}")).into_os_string();
        for (direction, from, to) in [
            ("out", at(&volume, "/src"), out),
            ("into", here.clone(), inside(format!("/into.{number}"))),
            ("within", at(&volume, "/src"), inside(format!("/within.{number}"))),
            ("between", between.clone(), inside(format!("/between.{number}"))),
        ] {
            let done = run(program, [vec!["cp".into()], words(line, &from, &to)].concat());
            if done.0 != status {
                told.push(format!("{line} ({direction}): {done:?}, cp: {status:?} {said}"));
            }
        }
    }
    oracle::e2fsck_clean(volume.path());
    let inner = mount(volume.path());
    for (number, line) in WORDS.iter().enumerate() {
        let theirs = rows(&top.join(format!("theirs.{number}")), begun);
        for direction in ["out", "into", "within", "between"] {
            let root = if direction == "out" { &top } else { inner.path() };
            let ours = rows(&root.join(format!("{direction}.{number}")), begun);
            let found = differences(&ours, &theirs);
            if !found.is_empty() {
                told.push(format!("{line} ({direction}):\n  {}", found.join("\n  ")));
            }
        }
    }
    inner.unmount();
    mounted.unmount();
    volume.assert_clean();
    host.assert_clean();
    assert!(told.is_empty(), "{}", told.join("\n"));
}

/// An ordinary user, who cannot give files away, out of a volume.
#[test]
fn root_ordinary_users_get_what_cp_gives_them() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let begun = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64 - 60;
    let host = VolumeBuilder::new(64 << 20).build();
    let volume = VolumeBuilder::new(64 << 20).build();
    let mounted = KernelMount::image(host.path(), LoopOptions::default(), "noatime");
    let top = mounted.path();
    source(&top.join("src"));
    good([OsStr::new("cp"), "-a".as_ref(), top.join("src").as_ref(), &at(&volume, "/")]);
    for (number, line) in [
        "-r S/other D/new",
        "-a S/other D/new",
        "-p S/other/suid D/new",
        "-r --no-preserve=mode S/other D/new",
        "-a --no-preserve=mode S/other D/new",
        "-a --no-preserve=ownership,mode S/other D/new",
        "--preserve=ownership S/file D/new",
        "-d S/file S/hard S/to-file D",
        "-dp S/dangling S/to-dir D",
        "-rH --preserve=timestamps S/to-link S/pipe S/socket D",
        "--preserve=all --sparse=always S/zeros S/holes D",
    ]
    .into_iter()
    .enumerate()
    {
        let [ours, theirs] = ["ours", "theirs"].map(|name| {
            let directory = top.join(format!("{name}.{number}"));
            std::fs::create_dir(&directory).unwrap();
            std::fs::set_permissions(&directory, Permissions::from_mode(0o777)).unwrap();
            directory
        });
        let args = words(line, top.join("src").as_ref(), theirs.as_ref());
        let cp = Command::new("cp").args(args).uid(common::NOBODY).gid(common::NOBODY).output().unwrap();
        let args = words(line, &at(&volume, "/src"), ours.as_ref());
        let done = common::unprivileged(&volume, &[vec!["cp".into()], args].concat());
        let said = (oracle::text(&done), oracle::text(&cp));
        assert_eq!(done.status.code(), cp.status.code(), "{line}: {said:?}");
        let found = differences(&rows(&ours, begun), &rows(&theirs, begun));
        assert!(found.is_empty(), "{line}: {said:?}\n  {}", found.join("\n  "));
    }
    mounted.unmount();
    volume.assert_clean();
    host.assert_clean();
}

/// Names of one file come to more than the volume if each becomes a file; as hard links they do not.
#[test]
fn names_that_become_files_are_bounded() {
    needs!(Need::Tool("mke2fs"));
    let scratch = Scratch::new(256 << 20);
    let tree = scratch.file("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("000"), vec![7; 1 << 20]).unwrap();
    (1..150).for_each(|name| std::fs::hard_link(tree.join("000"), tree.join(format!("{name:03}"))).unwrap());
    let volume =
        VolumeBuilder::new(2 << 20).args(["-b", "1024", "-O", "^has_journal"]).from_dir(&tree).build();
    let (files, links) = (scratch.file("files"), scratch.file("links"));
    let done = uext4([OsStr::new("cp"), "-r".as_ref(), &at(&volume, "/"), files.as_ref()]);
    assert_eq!(done.status.code(), Some(1));
    let told = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(told.lines().all(|line| line.contains("more data than 64 times the volume")), "{told}");
    let copied = std::fs::read_dir(&files).unwrap().filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.metadata().is_ok_and(|found| found.len() == 1 << 20))
    });
    // One for its blocks, 128 MiB for the others.
    assert_eq!((copied.count(), told.lines().count()), (129, 21));
    good([OsStr::new("cp"), "-rd".as_ref(), &at(&volume, "/"), links.as_ref()]);
    assert_eq!(std::fs::metadata(links.join("149")).unwrap().nlink(), 150);
    volume.assert_clean();
}

/// Ten directories with sixteen links to the next: 16¹⁰ names. And without those, one that leads to itself.
#[test]
fn what_links_lead_to_is_bounded() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let tree = scratch.file("tree");
    for level in 0..10 {
        let directory = tree.join(level.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        (0..16)
            .for_each(|name| symlink(format!("../{}", level + 1), directory.join(name.to_string())).unwrap());
    }
    std::fs::create_dir(tree.join("10")).unwrap();
    symlink("../10", tree.join("10/again")).unwrap();
    let volume = VolumeBuilder::new(1 << 20)
        .args(["-b", "1024", "-N", "256", "-O", "^has_journal"])
        .from_dir(&tree)
        .build();
    let other = VolumeBuilder::new(64 << 20).args(["-N", "30000"]).build();
    let out = scratch.file("out");
    let from = at(&volume, "/0");
    for to in [out.into_os_string(), at(&other, "/out"), at(&volume, "/out")] {
        let done = uext4([OsStr::new("cp"), "-rL".as_ref(), &from, &to]);
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1), "{told}");
        let last = told.lines().last().unwrap();
        let full = to == at(&volume, "/out") && told.contains("no space");
        assert!(full || last.contains("more than 64 times the volume: copy it in parts"), "{last}");
        assert!(told.contains("/again: leads back to a directory above it"), "{told}");
    }
    // What is not a tree of links is not their matter.
    let only = scratch.file("only");
    let told = bad(1, [OsStr::new("cp"), "-rL".as_ref(), &at(&volume, "/10"), only.as_ref()]);
    assert!(told.contains("/10/again: leads back to a directory above it"), "{told}");
    assert_eq!(std::fs::read_dir(only).unwrap().count(), 0);
    volume.assert_clean();
    other.assert_clean();
}

/// A copy within a volume does not follow a link into what it makes.
#[test]
fn links_into_the_copy_are_refused() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(16 << 20);
    let tree = scratch.file("tree");
    std::fs::create_dir_all(tree.join("src")).unwrap();
    std::fs::write(tree.join("src/file"), "here").unwrap();
    symlink("../new", tree.join("src/to-new")).unwrap();
    symlink("../there", tree.join("src/to-there")).unwrap();
    std::fs::create_dir_all(tree.join("there")).unwrap();
    let volume = VolumeBuilder::new(16 << 20).from_dir(&tree).build();
    for (to, name) in [("/new", "to-new"), ("/there", "to-there")] {
        let done = uext4([OsStr::new("cp"), "-rL".as_ref(), &at(&volume, "/src"), &at(&volume, to)]);
        let told = oracle::text(&done);
        assert_eq!(done.status.code(), Some(1), "{told}");
        assert!(told.contains(&format!("{name}: cannot copy a directory into itself")), "{told}");
    }
    for copied in ["/new/file", "/there/src/file"] {
        assert_eq!(good([OsStr::new("cat"), &at(&volume, copied)]), b"here");
    }
    volume.assert_clean();
}

/// Words that mean nothing together.
#[test]
fn options_that_are_refused() {
    needs!(Need::Tool("mke2fs"));
    let scratch = Scratch::new(16 << 20);
    let tree = scratch.file("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), "here").unwrap();
    let volume = VolumeBuilder::new(16 << 20).from_dir(&tree).build();
    let (inside, outside) = (at(&volume, ""), tree.into_os_string());
    for (line, told) in [
        ("-T -t D S/file", "-t and -T exclude each other"),
        ("-T S/file S/lost+found D", "one source and one destination"),
        ("S/file", "a source and a destination"),
        ("--preserve=modes S/file D", "the words are mode, ownership"),
        ("--preserve= S/file D", "the words are mode, ownership"),
        ("--no-preserve=mode,x, S/file D", "the words are mode, ownership"),
        ("--sparse=often S/file D", "always"),
        ("-t D/file S/file", "not a directory"),
        ("-t D/none S/file", "not a directory"),
    ] {
        for (from, to) in [(&inside, &outside), (&inside, &inside)] {
            let done = uext4([vec!["cp".into()], words(line, from, to)].concat());
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            assert!(matches!(done.status.code(), Some(1 | 2)), "{line}: {said}");
            assert!(said.contains(told), "{line}: {said}");
        }
    }
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/file")]), b"here");
    assert_eq!(std::fs::read_dir(outside).unwrap().count(), 1);
}

/// Standard input has no holes, but zeros.
#[test]
fn zeros_of_standard_input_become_holes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let volume = VolumeBuilder::new(16 << 20).args(["-b", "1024"]).build();
    let zeros = "\0".repeat(200_000);
    for (when, blocks) in [("auto", 400), ("always", 0), ("never", 400)] {
        let to = at(&volume, format!("/{when}"));
        let words = [OsStr::new("cp"), "--sparse".as_ref(), when.as_ref(), "-".as_ref(), &to];
        assert!(common::uext4_with_input(words, &zeros).status.success());
        let found = common::json([OsStr::new("stat"), "--json".as_ref(), &to]);
        assert!(found["stx_size"] == 200_000, "{found}");
        let used = found["stx_blocks"].as_u64().unwrap();
        assert!(if blocks == 0 { used == 0 } else { used > 350 }, "{when}: {used}");
    }
    volume.assert_clean();
}
