//! `uext4 check` as users and scripts meet it.

use crate::common;

use common::{bad, good, json, text, uext4, volume};
use std::ffi::OsStr;
use uext4_testkit::{Need, debugfs, needs, oracle};

#[test]
fn a_clean_volume_is_said_to_be_clean() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let said = text([OsStr::new("check"), volume.path().as_os_str()]);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(": clean: ") && said.contains(" directories"), "{said}");
    let report = json([OsStr::new("check"), OsStr::new("--json"), volume.path().as_os_str()]);
    assert_eq!(report["clean"], true);
    assert_eq!(report["findings"].as_array().unwrap().len(), 0);
    assert!(report["counts"]["inodes"].as_u64().unwrap() > 20);
    let one = json([
        OsStr::new("check"),
        OsStr::new("--json"),
        OsStr::new("--threads=1"),
        volume.path().as_os_str(),
    ]);
    assert_eq!(report, one);
}

#[test]
fn damage_is_named_by_structure_and_place_with_status_1() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let before = std::fs::read(volume.path()).unwrap();
    good([OsStr::new("check"), volume.path().as_os_str()]);
    assert!(before == std::fs::read(volume.path()).unwrap(), "a check writes nothing");
    oracle::debugfs_write(volume.path(), "set_inode_field /hello links_count 5");
    let inode = debugfs(volume.path(), "stat /hello");
    let inode = inode.split_whitespace().nth(1).unwrap().to_owned();
    let output = uext4([OsStr::new("check"), volume.path().as_os_str()]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains(&format!("error inode.links: inode {inode}: 5 links, but 1 names\n")), "{said}");
    assert!(said.contains(": damaged: "), "{said}");
    let output = uext4([OsStr::new("check"), OsStr::new("--json"), volume.path().as_os_str()]);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let finding = &report["findings"][0];
    assert_eq!((&finding["code"], &finding["structure"]), (&"inode.links".into(), &"inode".into()));
    assert_eq!(finding["inode"].to_string(), inode);
    assert_eq!(report["totals"]["inode.links"], 1);
}

#[test]
fn what_cannot_be_checked_and_bad_usage_are_told_apart() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let path = volume.path().to_str().unwrap().to_owned();
    bad(2, ["check"]);
    bad(2, ["check", "--threads", "0", &path]);
    bad(2, ["check", &format!("{path}:/hello")]);
    oracle::debugfs_write(volume.path(), "feature FEATURE_I30");
    let said = bad(1, ["check", &path]);
    assert!(said.contains("FEATURE_I30"), "{said}");
    bad(1, ["check", "/nonexistent/image"]);
}
