//! `uext4 quota`.

use crate::common::{bad, good, of};
use serde_json::Value;
use std::ffi::OsStr;
use uext4_testkit::oracle::{self, e2fsck_clean};
use uext4_testkit::{Need, Volume, VolumeBuilder, needs};

fn volume() -> Volume {
    let source = uext4_testkit::Scratch::new(4 << 20);
    let tree = source.file("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), [7; 20_000]).unwrap();
    let args = ["-O", "quota,project"];
    VolumeBuilder::new(24 << 20).args(args).extended("quotatype=usrquota:grpquota:prjquota").build()
}

fn quota(words: &[&str], volume: &Volume) -> String {
    let mut line = of(&["quota"], &[volume.path().as_os_str()]);
    line.extend(words.iter().map(|word| OsStr::new(word).to_owned()));
    String::from_utf8(good(line)).unwrap()
}

#[test]
fn limits_are_set_and_shown() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let before = quota(&[], &volume);
    for word in ["Quotas of users", "Quotas of groups", "Quotas of projects", "7 days for space"] {
        assert!(before.contains(word), "{word}: {before}");
    }
    quota(&["-u", "1000", "2000", "--space", "1000:1m", "--inodes", "5:10"], &volume);
    quota(&["-u", "2000", "--inodes", "0:20"], &volume);
    quota(&["-u", "--grace", "1d:90m"], &volume);
    e2fsck_clean(volume.path());
    let listed = oracle::debugfs(volume.path(), "list_quota user");
    let row = |id: &str| {
        let line = listed.lines().find(|line| line.split_whitespace().next() == Some(id)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    // Number, bytes, soft, hard, inodes, soft, hard: limits of space in KiB.
    assert_eq!(row("1000"), ["1000", "0", "1", "1024", "0", "5", "10"]);
    assert_eq!(row("2000"), ["2000", "0", "1", "1024", "0", "0", "20"]);
    let shown = quota(&["-u", "1000"], &volume);
    assert!(shown.contains("1 days") || shown.contains("24 h"), "{shown}");
    assert!(shown.contains("90 min") || shown.contains("1 h"), "{shown}");
    let last: Vec<_> = shown.lines().last().unwrap().split_whitespace().map(str::to_owned).collect();
    assert_eq!(last, ["1000", "0", "1", "1024", "-", "0", "5", "10", "-"]);
    let json: Value = serde_json::from_str(&quota(&["-u", "--json"], &volume)).unwrap();
    let entries = json[0]["entries"].as_array().unwrap();
    assert_eq!((entries.len(), &json[0]["grace_space"]), (3, &Value::from(86_400)));
    assert_eq!(entries[1]["space_hard"], Value::from(1 << 20));
    let shown = String::from_utf8(good(of(&["df", "-q"], &[volume.path().as_os_str()]))).unwrap();
    assert!(shown.contains("Quotas of users") && shown.contains("2000"), "{shown}");
    let json: Value =
        serde_json::from_slice(&good(of(&["df", "-q", "--json"], &[volume.path().as_os_str()]))).unwrap();
    assert_eq!(json["quotas"][0]["entries"][2]["id"], Value::from(2000));
    let shown = String::from_utf8(good(of(&["info"], &[volume.path().as_os_str()]))).unwrap();
    assert!(
        shown.lines().any(|line| line.starts_with("quota") && line.ends_with("user group project")),
        "{shown}"
    );
    assert_eq!(quota(&["-g", "77"], &volume).lines().last().unwrap().split_whitespace().next(), Some("77"));
}

#[test]
fn what_cannot_be_set_is_refused() {
    needs!(Need::Tool("mke2fs"));
    let volume = volume();
    for words in [
        &["1000", "--space", "1:2"][..],
        &["-u", "-g", "1000", "--space", "1:2"],
        &["-u", "--space", "1:2"],
        &["-u", "1000", "--space", "1"],
        &["-u", "1000", "--inodes", "x:1"],
        &["-u", "--grace", "1w:1"],
        &["-u", "--grace", "5000000000:1"],
    ] {
        let mut line = of(&["quota"], &[volume.path().as_os_str()]);
        line.extend(words.iter().map(|word| OsStr::new(word).to_owned()));
        bad(2, line);
    }
    let plain = VolumeBuilder::new(8 << 20).build();
    assert!(bad(1, of(&["quota"], &[plain.path().as_os_str()])).contains("does not have the feature"));
}
