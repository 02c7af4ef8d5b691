//! `ls` and `stat -c` beside those of coreutils, on the same volume.

use crate::common;

use common::{at, bad, good, json, of, text, volume};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4_testkit::{Need, Volume, VolumeBuilder, fixture, guard, needs, oracle};

/// What ls(1) or stat(1) prints sorting bytes, in UTC.
fn theirs(program: &str, args: &[OsString]) -> Vec<u8> {
    let output =
        oracle::command(program).env("TZ", "UTC").env("LC_ALL", "C.UTF-8").args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", oracle::text(&output));
    output.stdout
}

/// With the directory of the mount replaced by the device.
fn of_device(bytes: &[u8], mount: &Path, device: &OsStr) -> Vec<u8> {
    let mount = mount.as_os_str().as_bytes();
    let mut replaced = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(mount.len()).position(|window| window == mount) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(device.as_bytes());
        replaced.push(b':');
        rest = &rest[at + mount.len()..];
    }
    replaced.extend_from_slice(rest);
    replaced
}

/// Columns are as wide as what is in them, which differs where device numbers are.
fn words(bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let lines = bytes.split(|&byte| byte == b'\n');
    lines
        .map(|line| {
            line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect()
        })
        .collect()
}

const FORMATS: [&str; 11] = [
    "%n: %a %A %b %B %f %F %g %h %i %o %s %u %%",
    "%x|%y|%z|%w",
    "%X|%Y|%Z|%W",
    "%.3X|%.9Y|%.0Z|%.W|%.12Y",
    "%t,%T",
    "%#a %#f %#t",
    "[%10s] [%-10s] [%010s] [%05a] [%20F] [%-20A]",
    "%N",
    "no sequence",
    "%-3h%3h%03h",
    "100%",
];

/// Flags of ls that are compared, in words.
const FLAGS: [&str; 16] = [
    "",
    "-t",
    "-S",
    "-r",
    "-t -r",
    "-S -r",
    "-t -S",
    "-S -t",
    "-i",
    "-1",
    "-a -t",
    "-d",
    "-d -r",
    "-R",
    "-R -t",
    "-a -R -S -r -i",
];

/// Something of everything, files of equal times and sizes, a name with a quote.
fn filled() -> Volume {
    let volume = VolumeBuilder::new(256 << 20).build();
    volume.with_kernel(|dir| {
        fixture::standard_tree(dir, 5);
        for (name, size, time) in [("b", 5, 7), ("a", 5, 7), ("c", 9, 5), (".d", 0, 9)] {
            let file = std::fs::File::create(dir.join(name)).unwrap();
            file.set_len(size).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(time * 1_000_000_001);
            file.set_modified(time).unwrap();
        }
        std::os::unix::fs::symlink("it's", dir.join("quoted")).unwrap();
    });
    volume
}

#[test]
fn root_ls_and_stat_print_what_coreutils_print() {
    needs!(Need::Loop, Need::Tool("mke2fs"));
    let volume = filled();
    let kernel = guard::KernelMount::image(
        volume.path(),
        guard::LoopOptions { read_only: true, ..Default::default() },
        "ro",
    );
    let flags: Vec<Vec<&str>> = FLAGS.iter().map(|words| words.split_whitespace().collect()).collect();
    let top: Vec<OsString> = {
        let mut names: Vec<_> =
            std::fs::read_dir(kernel.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    // Not the root alone: outside, `..` of a mount is another directory.
    let places: [Vec<OsString>; 3] = [vec!["nested".into()], top.clone(), top.into_iter().rev().collect()];
    let there = |place: &OsString| kernel.path().join("").join(place).into_os_string();
    let with = |words: &[&str], places: Vec<OsString>| [of(words, &[]), places].concat();
    let mut all: Vec<(Vec<OsString>, Vec<u8>, bool)> = Vec::new();
    for place in &places {
        let inside: Vec<OsString> = place.iter().map(|name| at(&volume, Path::new("/").join(name))).collect();
        let outside: Vec<OsString> = place.iter().map(there).collect();
        for flags in &flags {
            let printed = theirs("ls", &with(flags, outside.clone()));
            all.push((with(&[&["ls"], &flags[..]].concat(), inside.clone()), printed, false));
            let long = [&["-l", "-n", "--time-style=+%Y-%m-%dT%H:%M:%SZ"], &flags[..]].concat();
            let printed = theirs("ls", &with(&long, outside.clone()));
            all.push((with(&[&["ls", "-l"], &flags[..]].concat(), inside.clone()), printed, true));
        }
        for format in FORMATS.iter().filter(|_| place.len() > 1) {
            let printed = theirs("stat", &with(&["-c", format], outside.clone()));
            all.push((with(&["stat", "-c", format], inside.clone()), printed, false));
        }
    }
    let mount = kernel.path().to_owned();
    kernel.unmount();
    for (args, printed, long) in all {
        let printed = of_device(&printed, &mount, volume.path().as_os_str());
        let ours = good(&args);
        let equal = if long { words(&ours) == words(&printed) } else { ours == printed };
        assert!(
            equal,
            "{args:?}:\n{}\ninstead of\n{}",
            String::from_utf8_lossy(&ours),
            String::from_utf8_lossy(&printed)
        );
    }
}

#[test]
fn ls_in_every_order() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for (name, time) in [("hello", 5), ("big", 9), ("sparse", 5)] {
        oracle::debugfs_write(volume.path(), &format!("set_inode_field /{name} mtime @{time}00000000"));
    }
    let (hello, big, sparse) = (at(&volume, "/hello"), at(&volume, "/big"), at(&volume, "/sparse"));
    let listed = |flags: &[&str]| {
        let told = text(of(&[&["ls"], flags].concat(), &[&hello, &sparse, &big]));
        told.lines().map(|line| line.rsplit('/').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), ["big", "hello", "sparse"]);
    assert_eq!(listed(&["-r"]), ["sparse", "hello", "big"]);
    assert_eq!(listed(&["-t"]), ["big", "hello", "sparse"]);
    assert_eq!(listed(&["-tr"]), ["sparse", "hello", "big"]);
    assert_eq!(listed(&["-S"]), ["sparse", "big", "hello"]);
    assert_eq!(listed(&["-S", "-t"]), ["big", "hello", "sparse"], "the last one counts");
    assert_eq!(listed(&["-t", "-S"]), ["sparse", "big", "hello"]);
    let dir = at(&volume, "/dir");
    assert_eq!(text(of(&["ls", "-d"], &[&dir])), format!("{}\n", dir.display()));
    let long = text(of(&["ls", "-ld"], &[&dir]));
    assert!(long.starts_with("drwx") && long.lines().count() == 1, "{long}");
    let numbered = text(of(&["ls", "-i1"], &[&at(&volume, "/dir/inner")]));
    let inode = json(of(&["stat", "--json"], &[&at(&volume, "/dir/inner/deep")]))["stx_ino"].to_string();
    assert_eq!(numbered, format!("{inode} deep\n"));
    let rows = json(of(&["ls", "-S", "--json"], &[&at(&volume, "/")]));
    assert_eq!(rows[0]["name"], "sparse");
    let one = json(of(&["ls", "-d", "--json"], &[&dir]));
    assert_eq!((&one[0]["name"], one.as_array().unwrap().len()), (&"/dir".into(), 1));
    // A link that leads nowhere, and one that leads to a file, are listed as what they are.
    for name in ["dangling", "link"] {
        let rows = json(of(&["ls", "--json"], &[&at(&volume, format!("/{name}"))]));
        assert_eq!(rows[0]["type"], "symlink", "{name}");
    }
    assert!(json(of(&["ls", "--json"], &[&at(&volume, "/dirlink")])).as_array().unwrap().len() > 1);
}

#[test]
fn formats_that_stat_does_not_know_are_refused() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for format in ["%U", "%G", "%m", "%d", "%q", "%+s", "%.3s", "%9999s", "%5"] {
        let said = bad(2, of(&["stat", "-c", format], &[&at(&volume, "/hello")]));
        assert!(said.contains("%n") || said.contains("%Y") || said.contains("width"), "{format}: {said}");
    }
    bad(2, of(&["stat", "-c", "%n", "--json"], &[&at(&volume, "/hello")]));
    let two = text(of(&["stat", "--format=%s %F"], &[&at(&volume, "/hello"), &at(&volume, "/empty")]));
    assert_eq!(two, "6 regular file\n0 regular empty file\n");
}
