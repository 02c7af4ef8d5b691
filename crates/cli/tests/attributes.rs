//! `chmod`, `chown`, `touch` and `chattr`, as coreutils and e2fsprogs have them.

use crate::common::{at, bad, good, json, of, text, uext4, volume};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use uext4_testkit::{Need, Volume, needs, oracle};

fn stat(volume: &Volume, path: &str) -> Value {
    json([OsStr::new("stat"), "--json".as_ref(), &at(volume, path)])
}

fn mode(volume: &Volume, path: &str) -> u32 {
    stat(volume, path)["stx_mode"].as_u64().unwrap() as u32 & 0o7777
}

fn owner(volume: &Volume, path: &str) -> (u64, u64) {
    let found = stat(volume, path);
    (found["stx_uid"].as_u64().unwrap(), found["stx_gid"].as_u64().unwrap())
}

/// Seconds and nanoseconds of a time.
fn time(volume: &Volume, path: &str, field: &str) -> (i64, i64) {
    let found = &stat(volume, path)[field];
    (found["tv_sec"].as_i64().unwrap(), found["tv_nsec"].as_i64().unwrap())
}

#[test]
fn modes_come_out_as_with_chmod() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"), Need::Tool("chmod"));
    let volume = volume();
    let (file, dir) = (volume.scratch().file("file"), volume.scratch().file("dir"));
    std::fs::write(&file, "").unwrap();
    std::fs::create_dir(&dir).unwrap();
    for path in [&file, &dir] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o640)).unwrap();
    }
    good(of(&["chmod", "640"], &[&at(&volume, "/hello"), &at(&volume, "/dir")]));
    let modes = [
        "+x", "u+s,g+s", "644", "a=rX", "4711", "go-rwx", "o=u", "-x", "=rw", "2755", "755", "00755", "+t",
        "g=o", "u=",
    ];
    for change in modes {
        good(of(&["chmod", change], &[&at(&volume, "/hello"), &at(&volume, "/dir")]));
        oracle::run(oracle::command("chmod").args(["--", change]).args([&file, &dir]));
        for (path, host) in [("/hello", &file), ("/dir", &dir)] {
            assert_eq!(mode(&volume, path), host.metadata().unwrap().mode() & 0o7777, "{change} of {path}");
        }
    }
    let told = text(of(&["chmod", "-v", "600"], &[&at(&volume, "/hello")]));
    assert!(told.ends_with("changed from 1055 (---r-xr-t) to 0600 (rw-------)\n"), "{told}");
    let told = text(of(&["chmod", "-v", "600"], &[&at(&volume, "/hello")]));
    assert!(told.ends_with("retained as 0600 (rw-------)\n"), "{told}");
    assert_eq!(text(of(&["chmod", "-c", "600"], &[&at(&volume, "/hello")])), "");
    // The target of the link, which is the file.
    good(of(&["chmod", "604"], &[&at(&volume, "/link")]));
    assert_eq!(mode(&volume, "/hello"), 0o604);
    good(of(&["chmod", "--reference"], &[&at(&volume, "/hello"), &at(&volume, "/big")]));
    assert_eq!(mode(&volume, "/big"), 0o604);
    for words in [&["chmod", "q"][..], &["chmod", "u+q"], &["chmod"]] {
        bad(2, of(words, &[&at(&volume, "/hello")]));
    }
    bad(1, of(&["chmod", "600"], &[&at(&volume, "/none")]));
    let output = uext4(of(&["chmod", "-f", "600"], &[&at(&volume, "/none")]));
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0));
    volume.assert_clean();
}

#[test]
fn trees_are_changed_with_everything_in_them() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let root = at(&volume, "/");
    good(of(&["chmod", "-R", "u=rwX,go=rX"], &[&root]));
    assert_eq!((mode(&volume, "/dir/inner"), mode(&volume, "/dir/inner/deep")), (0o755, 0o644));
    good(of(&["chown", "-R", "7:8"], &[&root]));
    for path in ["/dir/inner/deep", "/fifo", "/dangling", "/"] {
        assert_eq!(owner(&volume, path), (7, 8), "{path}");
    }
    let rows = json(of(&["chattr", "-R", "+A", "--json"], &[&at(&volume, "/dir")]));
    let paths: Vec<_> = rows.as_array().unwrap().iter().filter_map(|row| row["path"].as_str()).collect();
    assert!(paths.contains(&"inner/deep") && paths.contains(&""), "{paths:?}");
    assert!(stat(&volume, "/dir/inner/deep")["flags"].as_array().unwrap().contains(&"no_atime".into()));
    volume.assert_clean();
}

#[test]
fn owners_are_given_by_number_by_name_and_where_they_were() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let (hello, link) = (at(&volume, "/hello"), at(&volume, "/link"));
    good(of(&["chmod", "6755"], &[&hello]));
    good(of(&["chown", "70000:5"], &[&hello]));
    assert_eq!((owner(&volume, "/hello"), mode(&volume, "/hello")), ((70_000, 5), 0o755));
    good(of(&["chown", "root"], &[&hello]));
    assert_eq!(owner(&volume, "/hello"), (0, 5));
    good(of(&["chown", ":6"], &[&link]));
    good(of(&["chown", "-h", "9:9"], &[&link]));
    assert_eq!((owner(&volume, "/hello"), owner(&volume, "/link")), ((0, 6), (9, 9)));
    good(of(&["chown", "--from=1", "2"], &[&hello]));
    assert_eq!(owner(&volume, "/hello"), (0, 6));
    let told = text(of(&["chown", "--from=0:6", "-c", "2:3"], &[&hello]));
    assert!(told.starts_with("changed ownership of '") && told.ends_with("' from 0:6 to 2:3\n"), "{told}");
    good(of(&["chown", "--reference"], &[&hello, &at(&volume, "/big")]));
    assert_eq!(owner(&volume, "/big"), (2, 3));
    bad(2, of(&["chown", "no-such-user"], &[&hello]));
    bad(2, of(&["chown"], &[&hello]));
    volume.assert_clean();
}

#[test]
fn times_come_out_as_with_touch() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"), Need::Tool("touch"));
    let volume = volume();
    let host = volume.scratch().file("host");
    std::fs::write(&host, "").unwrap();
    let hello = at(&volume, "/hello");
    for words in [
        &["-d", "@1000.25"][..],
        &["-a", "-d", "2026-11-21T05:16:27.5Z"],
        &["-m", "-d", "2026-11-21 05:16:27"],
        &["-t", "202611210516.27"],
        &["-am", "-t", "7001010000"],
        &["-d", "@-1.5"],
    ] {
        good(of(&[&["touch"], words].concat(), &[&hello]));
        oracle::run(oracle::command("touch").env("TZ", "UTC0").args(words).arg(&host));
        let found = host.metadata().unwrap();
        let times = ["stx_atime", "stx_mtime"].map(|field| time(&volume, "/hello", field));
        assert_eq!(
            times,
            [(found.atime(), found.atime_nsec()), (found.mtime(), found.mtime_nsec())],
            "{words:?}"
        );
    }
    good(of(&["touch", "-r"], &[host.as_os_str(), &at(&volume, "/new")]));
    assert_eq!(time(&volume, "/new", "stx_mtime").0, -2);
    good(of(&["touch", "-c"], &[&at(&volume, "/none")]));
    bad(1, of(&["stat"], &[&at(&volume, "/none")]));
    good(of(&["touch", "-h", "-d", "@5"], &[&at(&volume, "/dangling")]));
    assert_eq!(time(&volume, "/dangling", "stx_mtime"), (5, 0));
    let row = json(of(&["touch", "--json"], &[&at(&volume, "/fresh")]));
    assert!(row["stx_mtime"]["tv_sec"].as_i64().unwrap() > 1_600_000_000, "{row}");
    for words in
        [&["touch", "-d", "soon"][..], &["touch", "-t", "99"], &["touch", "-t", "01010000", "-d", "now"]]
    {
        bad(2, of(words, &[&hello]));
    }
    bad(1, of(&["touch"], &[&at(&volume, "/no/such")]));
    volume.assert_clean();
}

#[test]
fn flags_keep_files_as_with_chattr() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let hello = at(&volume, "/hello");
    let told = text(of(&["chattr", "-V", "+iA"], &[&hello]));
    assert!(told.ends_with("set as ----i--A----e----\n"), "{told}");
    bad(1, of(&["rm"], &[&hello]));
    bad(1, of(&["chmod", "600"], &[&hello]));
    bad(1, of(&["truncate", "-s", "0"], &[&hello]));
    good(of(&["chattr", "-i", "+a"], &[&hello]));
    bad(1, of(&["rm"], &[&hello]));
    good(of(&["chattr", "=d"], &[&hello]));
    let flags = stat(&volume, "/hello")["flags"].clone();
    assert_eq!(flags, serde_json::json!(["no_dump", "extents"]));
    good(of(&["chattr", "+j"], &[&hello]));
    assert_eq!(stat(&volume, "/hello")["flags"], serde_json::json!(["no_dump", "journaled_data", "extents"]));
    good(of(&["chattr", "-j"], &[&hello]));
    assert_eq!(stat(&volume, "/hello")["flags"], flags);
    for words in [&["chattr", "+q"][..], &["chattr", "+i", "-i"], &["chattr"]] {
        bad(2, of(words, &[&hello]));
    }
    // The volume has neither projects nor generation numbers that can be set.
    bad(1, of(&["chattr", "-p", "5"], &[&hello]));
    bad(1, of(&["chattr", "-v", "5"], &[&hello]));
    volume.assert_clean();
}
