//! `--deterministic`: the same volume and the same commands give the same bytes, whenever, wherever and by whomever
//! they are run.

use crate::common;

use common::{NOBODY, bad, good, text};
use std::ffi::OsString;
use std::fs::{self, File, FileTimes};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use uext4_testkit::{Need, Scratch, debugfs, e2fsck_clean, needs, oracle};

/// The time of all changes, and an earlier one for the volumes.
const TIME: &str = "1700000000";
const MADE: &str = "1600000000";
const UUID: &str = "6e7f3c51-2b0a-4d1e-9c57-0f1a2b3c4d5e";
const SIZE: &str = "48M";

/// Features of the volumes, besides the usual ones.
const KINDS: [(&str, &[&str]); 7] = [
    ("usual", &[]),
    ("small blocks", &["-b", "1024", "-O", "^metadata_csum,^64bit,^flex_bg"]),
    ("without a journal", &["-O", "^has_journal"]),
    ("inside inodes", &["-O", "inline_data"]),
    ("quota", &["-O", "quota,project,ea_inode"]),
    ("pointers", &["-t", "ext3", "-b", "1024", "-O", "mmp"]),
    ("fast commits", &["-O", "fast_commit", "-J", "fast_commit_size=256"]),
];

/// What a command of the script does: the words, with `@` for the image, `%` for the directory of the host's files.
const SCRIPT: [&str; 28] = [
    "mkdir -p @:/srv/a/b/c @:/srv/z",
    "cp -a %/tree @:/srv",
    "cp %/tree/large @:/srv/plain",
    "cp - @:/srv/stream",
    "cp -r %/tree/crowd @:/srv/crowd",
    "cp -a --sparse=always %/tree/holes @:/srv/holes",
    "cp -p %/tree/large @:/srv/plain",
    "cp -a @:/srv/tree @:/srv/again",
    "mv @:/srv/crowd @:/srv/a/b",
    "mv @:/srv/plain @:/srv/a/moved",
    "ln @:/srv/stream @:/srv/z/hard",
    "ln -s ../../somewhere/else @:/srv/z/soft",
    "ln -sf other @:/srv/z/soft",
    "ln -f @:/srv/a/moved @:/srv/z/hard",
    "chmod -R g+w,o= @:/srv/a",
    "chown -R 1000:100 @:/srv/tree",
    "touch @:/srv/new @:/srv/a/moved",
    "touch -d 2001-02-03T04:05:06 @:/srv/a/moved",
    "chattr +A @:/srv/new",
    "xattr @:/srv/new --set user.long=LONG",
    "truncate -s 1M @:/srv/new @:/srv/made",
    "prepare @:/srv/made 3M",
    "io -f @:/srv/written -c 'pwrite -S 7 1000 300000' -c 'pwrite -S 9 0 10'",
    "io @:/srv/written -c 'fpunch 8k 64k' -c fsync -c 'pwrite 4k 100'",
    "rm -r @:/srv/a/b/crowd @:/srv/again/crowd",
    "rmdir @:/srv/a/b/c",
    "shell @ -c 'cd /srv' -c 'put %/tree/few .' -c 'mkdir q' -c 'cp -r few q' -c 'mv q r' -c sync -c 'rm -r few'",
    "cp -r %/tree/crowd @:/srv/a/b/late",
];

/// Files of the host, which everybody can read, made one way round or the other: the host lists them in that order.
fn host_files(scratch: &Scratch, backwards: bool) -> PathBuf {
    let files = scratch.file(if backwards { "backwards" } else { "files" });
    let tree = files.join("tree");
    for directory in ["crowd", "few", "deep/er/still"] {
        fs::create_dir_all(tree.join(directory)).unwrap();
    }
    for number in (0..700_u32).map(|number| if backwards { 699 - number } else { number * 331 % 700 }) {
        let bytes = vec![number as u8; (number * 13 % 9000) as usize];
        fs::write(tree.join(format!("crowd/file {number}")), bytes).unwrap();
    }
    for name in if backwards { ["m", "a", "z"] } else { ["z", "a", "m"] } {
        fs::write(tree.join("few").join(name), name).unwrap();
        fs::write(tree.join("deep/er/still").join(name), vec![1; 70_000]).unwrap();
        for attribute in if backwards { ["user.b", "user.a"] } else { ["user.a", "user.b"] } {
            let (path, none) = (tree.join("few").join(name), rustix::fs::XattrFlags::empty());
            rustix::fs::setxattr(path, attribute, attribute.as_bytes(), none).unwrap();
        }
    }
    fs::write(tree.join("large"), (0..2_500_000_u32).map(|at| (at % 251) as u8).collect::<Vec<u8>>())
        .unwrap();
    let holes = File::create(tree.join("holes")).unwrap();
    holes.set_len(4 << 20).unwrap();
    holes.write_all_at(&[9; 5000], 1 << 20).unwrap();
    symlink("few/a", tree.join("link")).unwrap();
    fs::hard_link(tree.join("large"), tree.join("deep/same")).unwrap();
    let old = File::open(tree.join("few/m")).unwrap();
    let at = |seconds| std::time::UNIX_EPOCH + Duration::from_secs(seconds);
    // Whoever reads a file changes when it was last read.
    let read = at(if backwards { 1_560_000_000 } else { 1_550_000_000 });
    old.set_times(FileTimes::new().set_modified(at(1_500_000_000)).set_accessed(read)).unwrap();
    files
}

/// Who runs the commands, and how.
#[derive(Clone, Copy)]
struct Who {
    user: Option<u32>,
    umask: &'static str,
    processors: &'static str,
    by_environment: bool,
}

const FIRST: Who = Who { user: None, umask: "022", processors: "0-1023", by_environment: true };
const OTHER: Who = Who { user: None, umask: "077", processors: "0", by_environment: false };

/// Runs a command line of the script.
fn run(who: Who, program: &File, line: &str, image: &Path, files: &Path) {
    let line = line.replace('@', image.to_str().unwrap()).replace('%', files.to_str().unwrap());
    let line = line.replace("LONG", &"long".repeat(60));
    let (name, rest) = line.split_once(' ').unwrap();
    let time = if who.by_environment { String::new() } else { format!("--time @{TIME}") };
    let program = format!("/proc/self/fd/{}", program.as_raw_fd());
    let (mask, cpus) = (who.umask, who.processors);
    let script =
        format!("umask {mask}; exec taskset -c {cpus} {program} {name} --deterministic {time} {rest}");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(File::open(files.join("tree/large")).unwrap());
    command.env_remove("SOURCE_DATE_EPOCH").env("TZ", if who.by_environment { "UTC" } else { "Asia/Tokyo" });
    if who.by_environment {
        command.env("SOURCE_DATE_EPOCH", TIME);
    }
    if let Some(user) = who.user {
        command.uid(user).gid(user);
    }
    let output = command.stderr(Stdio::piped()).output().unwrap();
    assert!(output.status.success(), "{line}: {}", oracle::text(&output));
}

fn made(path: &Path, words: &[&str]) {
    let head = ["mkfs", "-q", "-U", UUID, "--time", &format!("@{MADE}")].map(OsString::from);
    let words = words.iter().map(OsString::from);
    good(head.into_iter().chain(words).chain([path.into(), SIZE.into()]));
}

/// Runs the script of `SCRIPT` on volumes of a kind, by one and then by the other.
fn compare(kinds: &[(&str, &[&str])], other: Who) {
    let scratch = Scratch::new(1 << 30);
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let [files, others] = [false, true].map(|backwards| host_files(&scratch, backwards));
    let program = File::open(env!("CARGO_BIN_EXE_uext4")).unwrap();
    // Through the shell and taskset; the way to the program may be closed to another user.
    rustix::io::fcntl_setfd(&program, rustix::io::FdFlags::empty()).unwrap();
    let paths = |kind: &str| {
        ["first", "second"].map(|which| scratch.file(format!("{which}-{kind}").replace(' ', "-")))
    };
    for (kind, words) in kinds {
        let [first, second] = paths(kind);
        made(&first, words);
        fs::copy(&first, &second).unwrap();
        fs::set_permissions(&second, fs::Permissions::from_mode(0o666)).unwrap();
        SCRIPT.iter().for_each(|line| run(FIRST, &program, line, &first, &files));
    }
    // Another second, for whoever stores one.
    std::thread::sleep(Duration::from_millis(1100));
    for (kind, words) in kinds {
        let [first, second] = paths(kind);
        SCRIPT.iter().for_each(|line| run(other, &program, line, &second, &others));
        if let Some(place) = difference(&first, &second) {
            // The first command after which they differ.
            made(&first, words);
            fs::copy(&first, &second).unwrap();
            for line in SCRIPT {
                run(FIRST, &program, line, &first, &files);
                run(other, &program, line, &second, &others);
                if let Some(place) = difference(&first, &second) {
                    panic!("{kind}: {line}: block {place}: {}", debugfs(&first, &format!("icheck {place}")));
                }
            }
            panic!("{kind}: block {place}: {}", debugfs(&first, &format!("icheck {place}")));
        }
        e2fsck_clean(&first);
        let listed = text(["ls".into(), OsString::from(format!("{}:/srv", first.display()))]);
        assert_eq!(listed, "a\nagain\nholes\nmade\nnew\nr\nstream\ntree\nwritten\nz\n", "{kind}");
    }
}

/// The first block of 4 KiB that is not the same.
fn difference(first: &Path, second: &Path) -> Option<usize> {
    let (first, second) = (fs::read(first).unwrap(), fs::read(second).unwrap());
    assert_eq!(first.len(), second.len());
    first.chunks(4096).zip(second.chunks(4096)).position(|(first, second)| first != second)
}

#[test]
fn the_same_commands_give_the_same_bytes() {
    needs!(Need::Tool("e2fsck"), Need::Tool("debugfs"), Need::Tool("taskset"));
    compare(&KINDS, OTHER);
}

#[test]
fn root_and_users_give_the_same_bytes() {
    needs!(Need::Root, Need::Tool("e2fsck"), Need::Tool("debugfs"), Need::Tool("taskset"));
    compare(&KINDS[..2], Who { user: Some(NOBODY), ..OTHER });
}

#[test]
fn without_it_two_runs_differ() {
    let scratch = Scratch::new(128 << 20);
    let (first, second) = (scratch.file("first"), scratch.file("second"));
    made(&first, &[]);
    fs::copy(&first, &second).unwrap();
    good(["mkdir".into(), OsString::from(format!("{}:/made", first.display()))]);
    good(["mkdir".into(), OsString::from(format!("{}:/made", second.display()))]);
    assert!(difference(&first, &second).is_some());
}

#[test]
fn what_is_stored_is_what_was_said() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(128 << 20);
    let (image, late) = (scratch.file("image"), scratch.file("late"));
    made(&image, &[]);
    fs::write(&late, "late").unwrap();
    fs::set_permissions(&late, fs::Permissions::from_mode(0o664)).unwrap();
    let owner = fs::metadata(&late).unwrap();
    let at = |path: &str| OsString::from(format!("{}:{path}", image.display()));
    let how = ["--deterministic", "--time", "2020-09-13T12:26:40Z"].map(OsString::from);
    let run = |name: &str, rest: &[OsString]| {
        good([&[OsString::from(name)], &how[..], rest].concat());
    };
    run("cp", &["-a".into(), late.clone().into(), at("/kept")]);
    run("cp", &[late.clone().into(), at("/plain")]);
    run("touch", &[at("/empty")]);
    let stat = |path: &str| text(["stat".into(), "-c".into(), "%u:%g %a %X %Y %Z %W".into(), at(path)]);
    let times = "1600000000 1600000000 1600000000 1600000000\n";
    assert_eq!(stat("/kept"), format!("{}:{} 664 {times}", owner.uid(), owner.gid()));
    assert_eq!(stat("/plain"), format!("0:0 644 {times}"));
    assert_eq!(stat("/empty"), format!("0:0 644 {times}"));
    let superblock = text(["info".into(), OsString::from(&image)]);
    assert!(superblock.contains("2020-09-13"), "{superblock}");
    // What is written to a file that is there has the time too, and each new inode a number of its own.
    good([
        "io".into(),
        "--deterministic".into(),
        "--time=@1600000007".into(),
        at("/plain"),
        "-c".into(),
        "pwrite 0 4".into(),
    ]);
    assert_eq!(text(["stat".into(), "-c".into(), "%Y".into(), at("/plain")]), "1600000007\n");
    let generation = |path: &str| {
        let told = debugfs(&image, &format!("stat {path}"));
        told.split("Generation: ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned()
    };
    assert_ne!(generation("/kept"), generation("/plain"));
    e2fsck_clean(&image);
}

#[test]
fn a_time_is_needed() {
    let scratch = Scratch::new(128 << 20);
    let image = scratch.file("image");
    made(&image, &[]);
    let before = fs::read(&image).unwrap();
    let at = format!("{}:/made", image.display());
    for (words, why) in [
        (&["--deterministic"][..], "--deterministic needs a time: --time, or SOURCE_DATE_EPOCH"),
        (&["--time", "@1"], "--deterministic"),
        (&["--deterministic", "--time", "now"], "name a time"),
        (&["--deterministic", "--time", "@-1"], "from 1970 to 2446"),
        (&["--deterministic", "--time", "yesterday"], "is not a time"),
    ] {
        let told = bad(2, [&["mkdir"], words, &[at.as_str()]].concat());
        assert!(told.contains(why), "{told}");
    }
    let mut command = common::command(["mkdir", "--deterministic", &at]);
    let output = command.env("SOURCE_DATE_EPOCH", "soon").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", oracle::text(&output));
    let lines =
        ["shell", "--deterministic", "--time=@5", image.to_str().unwrap(), "-c", "mkdir --deterministic a"];
    let output = common::uext4(lines);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("holds for a whole shell"), "{told}");
    assert!(fs::read(&image).unwrap() == before);
}
