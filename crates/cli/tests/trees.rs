//! `find`, `du`, `df`.

use crate::common;

use common::{at, bad, good, json, text, uext4, volume};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use uext4_testkit::{Need, Scratch, Volume, VolumeBuilder, fixture, guard, needs, oracle};

/// The paths that `find --print0` printed, without the device that each begins with.
fn found(volume: &Volume, start: &str, tests: &[&str]) -> BTreeSet<Vec<u8>> {
    let mut args = vec![OsString::from("find"), at(volume, start), "--print0".into()];
    args.extend(tests.iter().map(OsString::from));
    let device = at(volume, "");
    good(args)
        .split(|&byte| byte == 0)
        .filter(|path| !path.is_empty())
        .map(|path| path.strip_prefix(device.as_bytes()).unwrap().to_vec())
        .collect()
}

/// Lines with paths inside the volume, as they are printed: with the device in front.
fn named(volume: &Volume, lines: &str) -> String {
    let device = at(volume, "").into_string().unwrap();
    lines.split('/').enumerate().fold(String::new(), |all, (number, part)| {
        // The first slash of a line is the root directory.
        let first = number > 0 && !all.rsplit('\n').next().unwrap_or_default().contains(&device);
        let between = if first { format!("{device}/") } else { "/".into() };
        if number == 0 { part.into() } else { all + &between + part }
    })
}

#[test]
fn find_prints_every_path_once() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let all = found(&volume, "/", &[]);
    assert_eq!(all.len(), 18);
    let odd = OsStr::from_bytes(b"/dir/\xff\xfe\x80").as_bytes();
    for path in [&b"/"[..], b"/dir", b"/dir/inner/deep", b"/.hidden", b"/lost+found", odd] {
        assert!(all.contains(path), "{}", String::from_utf8_lossy(path));
    }
    let find = |path: &str| text(["find".into(), at(&volume, path)]);
    assert_eq!(find("/dir/inner"), named(&volume, "/dir/inner\n/dir/inner/deep\n"));
    // As find(1): what was typed stays in front.
    assert_eq!(find("/dir/inner/"), named(&volume, "/dir/inner/\n/dir/inner/deep\n"));
    assert_eq!(find("/dir//inner"), named(&volume, "/dir//inner\n/dir//inner/deep\n"));
    assert_eq!(find("/hello"), named(&volume, "/hello\n"));
    assert_eq!(find("/dirlink"), named(&volume, "/dirlink\n"), "a link is not followed");
    let image = volume.path().as_os_str().to_owned();
    assert!(text(["find".into(), image.clone(), "--maxdepth".into(), "0".into()]) == named(&volume, "/\n"));
    assert_eq!(good(["find".into(), image]).split(|&byte| byte == b'\n').count(), 19, "no path: the root");
}

#[test]
fn find_tests() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    oracle::debugfs_write(volume.path(), "set_inode_field /hello mtime @1000000000");
    for (tests, wanted) in [
        (&["--name", "*l*", "--type", "f", "--maxdepth", "1"][..], &["/hello", "/holed"][..]),
        (&["--iname", "HELLO"], &["/hello"]),
        (&["--path", "/dir/*/*"], &["/dir/inner/deep"]),
        (&["--type", "p,l", "--maxdepth", "1", "--name", "[f-l]*"], &["/fifo", "/link"]),
        (&["--name", "hello", "--name", "empty"], &["/empty", "/hello"]),
        (&["--size", "6c"], &["/hello"]),
        (&["--size", "+3M", "--type", "f"], &["/big", "/sparse"]),
        (&["--perm", "640"], &["/hello"]),
        (&["--mtime", "+3000"], &["/hello"]),
        (&["--mindepth", "3"], &["/dir/inner/deep"]),
        (&["--empty", "--type", "f"], &["/.hidden", "/empty"]),
        (&["--links", "+4"], &[]),
        (&["--inum", "2"], &["/"]),
        (&["--inum", "+1", "--inum", "-3"], &["/"]),
        (&["--size", "+3M", "--size", "-4M"], &[]),
        (&["--newermt", "2446-01-01"], &[]),
        (&["--name", "hello", "--newermt", "2001-09-09T01:46:39"], &["/hello"]),
        (&["--name", "hello", "--newermt", "2001-09-09T01:46:41"], &[]),
    ] {
        let wanted: BTreeSet<Vec<u8>> = wanted.iter().map(|path| path.as_bytes().to_vec()).collect();
        assert_eq!(found(&volume, "/", tests), wanted, "{tests:?}");
    }
    let long = text(["find".into(), at(&volume, "/hello"), "--ls".into()]);
    let words: Vec<&str> = long.split_whitespace().collect();
    assert_eq!((words[1], words[2], words[6]), ("4", "-rw-r-----", "6"));
    assert_eq!(words[7..], ["2001-09-09T01:46:40Z", named(&volume, "/hello").as_str()]);
    let link = named(&volume, " /link -> hello\n");
    assert!(text(["find".into(), at(&volume, "/link"), "--ls".into()]).ends_with(&link));
}

#[test]
fn find_and_du_in_json() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let rows = json(["find".into(), at(&volume, "/dir"), "--json".into()]);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 5);
    let row = |path: &str| rows.iter().find(|row| row["path"] == path).unwrap();
    assert_eq!(row("/dir/inner/deep")["size"], 5);
    assert_eq!(row("/dir")["type"], "directory");
    assert_eq!(row("/dir")["links"], 3);
    assert!(row("/dir")["mtime_ns"].is_i64());
    // "/dir/\xff\xfe\x80"
    assert!(rows.iter().any(|row| row["path_b64"] == "L2Rpci//6A" || row["path_b64"] == "L2Rpci///oA="));
    let none = json(["find".into(), at(&volume, "/"), "--json".into(), "--name".into(), "none".into()]);
    assert_eq!(none, Value::Array(vec![]));
    let sums = json(["du".into(), at(&volume, "/dir"), "--json".into()]);
    assert_eq!(sums[0]["path"], "/dir/inner");
    assert_eq!(sums[0]["bytes"], 8192);
    assert_eq!(sums[1]["path"], "/dir");
    assert_eq!(sums[1]["bytes"], 8192 + 4096 + 2 * 4096);
}

#[test]
fn du_counts_as_asked() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let du = |path: &str, args: &[&str]| {
        let mut all = vec![OsString::from("du"), at(&volume, path)];
        all.extend(args.iter().map(OsString::from));
        text(all)
    };
    assert_eq!(du("/dir", &[]), named(&volume, "8\t/dir/inner\n20\t/dir\n"));
    assert_eq!(du("/dir", &["-s"]), named(&volume, "20\t/dir\n"));
    assert_eq!(du("/dir", &["-d", "0", "-h"]), named(&volume, "20K\t/dir\n"));
    assert_eq!(du("/dir", &["-s", "--bytes"]), named(&volume, "20480\t/dir\n"));
    assert_eq!(du("/dir/inner", &["-a"]), named(&volume, "4\t/dir/inner/deep\n8\t/dir/inner\n"));
    assert_eq!(
        du("/sparse", &["--apparent-size", "--bytes"]),
        named(&volume, &format!("{}\t/sparse\n", common::SPARSE))
    );
    assert!(du("/sparse", &["--bytes"]).starts_with("77824\t"), "{}", du("/sparse", &["--bytes"]));
    assert!(text(["du", "--help"]).contains("--human-readable"));
}

#[test]
fn df_is_a_table() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let df = |args: &[&str]| {
        let mut all = vec![OsString::from("df"), volume.path().into()];
        all.extend(args.iter().map(OsString::from));
        text(all)
    };
    let space = json(["df".into(), volume.path().as_os_str().to_owned(), "--json".into()]);
    assert_eq!(space["free"].to_string(), oracle::superblock_field(volume.path(), "Free blocks"));
    assert_eq!(space["inodes_free"].to_string(), oracle::superblock_field(volume.path(), "Free inodes"));
    let plain = df(&[]);
    let row: Vec<&str> = plain.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[1], (space["blocks"].as_u64().unwrap() * 4).to_string());
    assert_eq!(row[3], (space["available"].as_u64().unwrap() * 4).to_string());
    assert!(df(&["-h"]).contains('M') && df(&["-i"]).contains("IUsed"));
}

#[test]
fn errors_on_the_way_are_told_and_the_rest_is_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(8 << 20).build();
    oracle::debugfs_script(
        volume.path(),
        "mkdir /a\nmkdir /a/b\nmkdir /z\nlink /a /a/b/up\nlink / /z/root\n",
    );
    for (command, rows) in [("find", 5), ("du", 5)] {
        let output = uext4([OsStr::new(command), volume.path().as_os_str()]);
        assert_eq!(output.status.code(), Some(1), "{command}");
        assert_eq!(output.stdout.iter().filter(|&&byte| byte == b'\n').count(), rows, "{command}");
        let told = String::from_utf8(output.stderr).unwrap();
        let start = format!("uext4 {command}: {}:/", volume.path().display());
        assert!(told.lines().count() == 2 && told.lines().all(|line| line.starts_with(&start)), "{told}");
        assert!(told.contains(":/a/b/up: ") && told.contains(":/z/root: "), "{told}");
    }
    let output = uext4([OsStr::new("find"), volume.path().as_os_str(), OsStr::new("--json")]);
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows.as_array().unwrap().len(), 5);
    for line in String::from_utf8(output.stderr).unwrap().lines() {
        let error: Value = serde_json::from_str(line).unwrap();
        assert!(error["errno"] == 117 && error["path"].is_string() && error["inode"].is_number(), "{error}");
    }
    assert!(bad(1, ["find".into(), at(&volume, "/none")]).contains("no such file"));
}

/// What find(1) or du(1) prints in a directory, a set of lines.
fn lines(dir: &Path, program: &str, args: &[&str]) -> BTreeSet<Vec<u8>> {
    let output = oracle::command(program).current_dir(dir).args(args).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", oracle::text(&output));
    let separator = if args.contains(&"-print0") || args.contains(&"-0") { 0 } else { b'\n' };
    output
        .stdout
        .split(|&byte| byte == separator)
        .filter(|line| !line.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// Sums of each entry, against the lines of `du -a -k`.
fn assert_du_agrees(volume: &Volume, du: &BTreeSet<Vec<u8>>) {
    let sums = json(["du".into(), at(volume, "/"), "-a".into(), "--json".into()]);
    let ours: BTreeSet<Vec<u8>> = sums
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|sum| {
            let path = sum["path"].as_str()?;
            let path = if path == "/" { "." } else { path };
            let path = if path == "." { ".".to_owned() } else { format!(".{path}") };
            Some(format!("{}\t{path}", sum["bytes"].as_u64()? / 1024).into_bytes())
        })
        .collect();
    // Of several names of one file either side counts the one it meets first.
    let linked = |line: &&Vec<u8>| !String::from_utf8_lossy(line).contains("/links/");
    let theirs: BTreeSet<&Vec<u8>> =
        du.iter().filter(linked).filter(|line| std::str::from_utf8(line).is_ok()).collect();
    let ours: BTreeSet<&Vec<u8>> = ours.iter().filter(linked).collect();
    assert_eq!(ours, theirs);
}

/// What both finds are asked.
const TESTS: [&[&str]; 16] = [
    &[],
    &["-type", "f"],
    &["-type", "d,l,p,s,b,c"],
    &["-name", "*1*"],
    &["-iname", "*A*"],
    &["-path", "*/s*/*"],
    &["-size", "+1k"],
    &["-size", "-2"],
    &["-size", "8"],
    &["-mtime", "+20000"],
    &["-maxdepth", "2", "-mindepth", "2"],
    &["-uid", "70000"],
    &["-perm", "-4000"],
    &["-perm", "/022"],
    &["-links", "6"],
    &["-empty"],
];

#[test]
fn root_find_du_and_df_agree_with_the_host() {
    needs!(Need::Loop, Need::Tool("mke2fs"));
    let volume = VolumeBuilder::new(256 << 20).build();
    volume.with_kernel(|dir| fixture::standard_tree(dir, 5));
    let kernel = guard::KernelMount::image(
        volume.path(),
        guard::LoopOptions { read_only: true, ..Default::default() },
        "ro",
    );
    let theirs: Vec<_> = TESTS
        .iter()
        .map(|tests| {
            // find(1) wants global options first.
            let (global, others): (Vec<&str>, Vec<&str>) = match tests {
                [first, ..] if first.ends_with("depth") => (tests.to_vec(), vec![]),
                _ => (vec![], tests.to_vec()),
            };
            lines(kernel.path(), "find", &[&["."][..], &global, &others, &["-print0"]].concat())
        })
        .collect();
    let du = lines(kernel.path(), "du", &["-a", "-k", "-0"]);
    let sizes = lines(kernel.path(), "find", &[".", "-type", "f", "-printf", "%i %s %P\\0"]);
    let space = rustix::fs::statvfs(kernel.path()).unwrap();
    kernel.unmount();

    for (tests, theirs) in TESTS.iter().zip(theirs) {
        let ours: Vec<String> = tests
            .iter()
            .map(|word| {
                if word.len() > 3 && word.starts_with('-') && !word.contains("000") {
                    format!("-{word}")
                } else {
                    (*word).to_owned()
                }
            })
            .collect();
        let ours = found(&volume, "/", &ours.iter().map(String::as_str).collect::<Vec<_>>());
        let theirs: BTreeSet<Vec<u8>> = theirs
            .into_iter()
            .map(|path| if path == b"." { b"/".to_vec() } else { path[1..].to_vec() })
            .collect();
        assert_eq!(ours, theirs, "{tests:?}");
    }
    assert!(!sizes.is_empty());
    assert_du_agrees(&volume, &du);
    let df = json(["df".into(), volume.path().as_os_str().to_owned(), "--json".into()]);
    assert_eq!(df["blocks"], space.f_blocks);
    assert_eq!(df["available"], space.f_bavail);
    assert_eq!(df["inodes_free"], space.f_ffree);
}

#[test]
fn a_walk_can_be_traced_and_its_reader_may_leave() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let scratch = Scratch::new(1 << 20);
    let log = scratch.file("log");
    let args = ["trace", "--output", log.to_str().unwrap(), "--", "find"].map(OsString::from);
    good(args.into_iter().chain([at(&volume, "/")]));
    let trace = std::fs::read_to_string(log).unwrap();
    assert!(trace.contains(" R ") && !trace.contains(" W "), "only reads: {trace}");
}

/// Every name that `find` and `du` print is an argument for other commands, odd ones too.
#[test]
fn what_is_found_can_be_given_back() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for start in ["/", "", "/dir", "/dir/"] {
        let start = if start.is_empty() { volume.path().as_os_str().to_owned() } else { at(&volume, start) };
        let names = good(["find".into(), start.clone(), "--print0".into()]);
        let names: Vec<&OsStr> =
            names.split(|&byte| byte == 0).filter(|name| !name.is_empty()).map(OsStr::from_bytes).collect();
        assert!(names.len() > 4);
        let stat = good([&["stat".as_ref(), "-c".as_ref(), "%n".as_ref()], &names[..]].concat());
        let given: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let mut told = stat.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        assert!(told.by_ref().eq(given.iter().copied()));
        let sums = good(["du".into(), "-a".into(), start]);
        let sums = sums.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let mut summed: Vec<&[u8]> =
            sums.map(|line| line.splitn(2, |&byte| byte == b'\t').nth(1).unwrap()).collect();
        let mut given = given;
        summed.sort_unstable();
        given.sort_unstable();
        assert_eq!(summed, given);
    }
}
