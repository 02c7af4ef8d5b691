//! Several arguments, help, and hints about arguments.

use crate::common;

use common::{at, bad, json, text, uext4, volume};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use uext4_testkit::{Need, Volume, VolumeBuilder, needs, oracle};

fn words(words: &[&str], places: &[&OsStr]) -> Vec<OsString> {
    words.iter().map(OsStr::new).chain(places.iter().copied()).map(OsStr::to_owned).collect()
}

/// What was printed although something failed, and what was said of it.
#[track_caller]
fn partly(args: Vec<OsString>) -> (String, String) {
    let output = uext4(&args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {}", oracle::text(&output));
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn arguments(list: &Value) -> Vec<&str> {
    let mut names: Vec<&str> =
        list.as_array().unwrap().iter().map(|row| row["argument"].as_str().unwrap()).collect();
    names.dedup();
    names
}

#[test]
fn ls_of_several_has_headings() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let (inner, hello, none) = (at(&volume, "/dir/inner"), at(&volume, "/hello"), at(&volume, "/none"));
    let shown = inner.to_str().unwrap();
    let file = hello.to_str().unwrap();
    assert_eq!(text(words(&["ls"], &[&hello, &inner])), format!("{file}\n\n{shown}:\ndeep\n"));
    assert_eq!(text(words(&["ls"], &[&hello])), format!("{file}\n"));
    let twice = text(words(&["ls"], &[&inner, &inner]));
    assert_eq!(twice, format!("{shown}:\ndeep\n\n{shown}:\ndeep\n"));
    let (listed, said) = partly(words(&["ls"], &[&none, &inner, &hello]));
    assert_eq!(listed, format!("{file}\n\n{shown}:\ndeep\n"), "files come first");
    assert!(said.lines().count() == 1 && said.contains("/none: no such file or directory"), "{said}");
    let list = json(words(&["ls", "--json"], &[&inner, &hello]));
    assert_eq!(arguments(&list), [hello.to_str().unwrap(), shown]);
    let one = json(words(&["ls", "--json"], &[&inner]));
    assert_eq!(one[0].get("argument"), None);
    assert_eq!(
        one[0]["mtime"]["tv_sec"].as_i64().unwrap(),
        one[0]["mtime_ns"].as_i64().unwrap() / 1_000_000_000
    );
    // What is missing does not keep the rest from being an array.
    let (listed, _) = partly(words(&["ls", "--json"], &[&none, &hello]));
    assert_eq!(serde_json::from_str::<Value>(&listed).unwrap().as_array().unwrap().len(), 1);
}

/// Two volumes: one with two names of a file of 40 KiB, and one that is empty.
fn two() -> (Volume, Volume) {
    let source = uext4_testkit::Scratch::new(1 << 20);
    for name in ["a", "b"] {
        std::fs::create_dir(source.file(name)).unwrap();
    }
    std::fs::write(source.file("a/one"), vec![1; 40_000]).unwrap();
    std::fs::hard_link(source.file("a/one"), source.file("b/two")).unwrap();
    (VolumeBuilder::new(16 << 20).from_dir(source.path()).build(), VolumeBuilder::new(8 << 20).build())
}

#[test]
fn stat_df_du_and_find_of_several() {
    needs!(Need::Tool("mke2fs"));
    let (first, second) = two();
    let (a, b, none) = (at(&first, "/a"), at(&first, "/b"), at(&first, "/none"));
    let (device, other) = (first.path().as_os_str(), second.path().as_os_str());

    let stat = json(words(&["stat", "--json"], &[&a, other]));
    assert_eq!(arguments(&stat), [a.to_str().unwrap(), other.to_str().unwrap()]);
    assert_eq!((&stat[0]["type"], &stat[1]["stx_ino"]), (&Value::from("directory"), &Value::from(2)));
    let (listed, said) = partly(words(&["stat"], &[&none, &a]));
    assert!(said.contains("/none: no such file"), "{said}");
    let named = format!("  File: {}\n", a.to_str().unwrap());
    assert!(listed.starts_with(&named) && text(words(&["stat"], &[&a])).starts_with(&named), "{listed}");

    let table = text(words(&["df"], &[device, other]));
    let names: Vec<&str> = table.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["Filesystem", device.to_str().unwrap(), other.to_str().unwrap()]);
    assert_eq!(arguments(&json(words(&["df", "--json"], &[device, other]))).len(), 2);
    assert_eq!(json(words(&["df", "--json"], &[device]))["argument"], Value::Null);
    let (table, said) = partly(words(&["df"], &[OsStr::new("/no/such/image"), other]));
    assert!(table.lines().count() == 2 && said.lines().count() == 1, "{table}{said}");

    // A file with two names counts once, as du(1) has it.
    let bytes = |list: &Value, at: usize| list[at]["bytes"].as_u64().unwrap();
    let sums = json(words(&["du", "--json", "-s"], &[&a, &b]));
    let alone = json(words(&["du", "--json", "-s"], &[&b]));
    assert!(bytes(&alone, 0) >= 40_000 && bytes(&sums, 0) >= 40_000 && bytes(&sums, 1) < 40_000, "{sums}");
    let (lines, said) = partly(words(&["du", "-s"], &[&none, &a]));
    assert!(
        lines.ends_with(&format!("\t{}\n", a.to_str().unwrap())) && said.contains("/none"),
        "{lines}{said}"
    );

    let found = text(words(&["find", "--type", "f"], &[&a, &b]));
    let expected = format!("{}/one\n{}/two\n", a.to_str().unwrap(), b.to_str().unwrap());
    assert_eq!(found, expected);
    assert_eq!(text(words(&["find", "--type", "f"], &[&b])), format!("{}/two\n", b.to_str().unwrap()));
    let (lines, said) = partly(words(&["find", "--type", "f"], &[&none, &a]));
    assert!(lines.ends_with("/a/one\n") && said.contains("/none"), "{lines}{said}");
    let list = json(words(&["find", "--json"], &[&a, other]));
    assert_eq!(arguments(&list), [a.to_str().unwrap(), other.to_str().unwrap()]);
    assert!(list[0]["mtime"]["tv_nsec"].is_u64(), "{list}");
}

#[test]
fn times_of_info_have_both_parts() {
    needs!(Need::Tool("mke2fs"));
    let volume = VolumeBuilder::new(8 << 20).build();
    let info = json(words(&["info", "--json"], &[volume.path().as_os_str()]));
    for name in ["created", "mounted", "written", "checked"] {
        let time = &info["times"][name];
        assert!(time["tv_sec"].is_i64() && time["tv_nsec"] == 0, "{name}: {time}");
    }
}

#[test]
fn help_is_asked_for_in_every_way() {
    needs!(Need::Tool("mke2fs"));
    let volume = VolumeBuilder::new(8 << 20).build();
    let device = volume.path().as_os_str();
    for name in ["ls", "stat", "du", "df", "find", "xattr", "cat", "check"] {
        for args in [[name, "-h"], [name, "--help"], ["help", name]] {
            let help = text(args);
            assert!(help.contains(&format!("Usage: uext4 {name}")), "{args:?}: {help}");
            assert!(help.contains(&format!("Examples:\n  uext4 {name} ")), "{args:?}: {help}");
        }
    }
    assert!(text(["help", "-h"]).contains("Usage: uext4") && text(["help", "--help"]).contains("Commands:"));
    assert!(text(["-h"]).contains("Usage: uext4") && text(["help"]).contains("Usage: uext4"));
    assert!(bad(2, ["help", "frobnicate"]).contains("frobnicate"));
    let table = text(words(&["df", "-h"], &[device]));
    assert!(table.contains(" Size ") && table.contains("M "), "{table}");
    assert!(text(words(&["du", "-h"], &[device])).ends_with(&format!("K\t{}:/\n", device.display())));
    let long = text(words(&["ls", "-lh"], &[device]));
    assert!(long.starts_with("total 13K\n") || long.contains("K 20"), "{long}");
    // The manual page of a command has its examples too.
    let dir = volume.scratch().file("man");
    std::fs::create_dir(&dir).unwrap();
    text(words(&["man", "--dir"], &[dir.as_os_str()]));
    let page = std::fs::read_to_string(dir.join("uext4-df.1")).unwrap();
    assert!(page.contains("Examples:") && page.contains("uext4 df"), "{page}");
}

#[test]
fn a_forgotten_slash_is_hinted_at() {
    needs!(Need::Tool("mke2fs"));
    let volume = VolumeBuilder::new(8 << 20).build();
    std::fs::copy(volume.path(), volume.scratch().file("disk.img")).unwrap();
    let said = |argument: &str, status: i32| {
        let mut command = common::command(["ls", argument]);
        let output = command.current_dir(volume.scratch().path()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{}", oracle::text(&output));
        String::from_utf8(output.stderr).unwrap()
    };
    for (argument, status, meant) in [
        ("disk.img:bash", 2, "disk.img:/bash"),
        ("disk.img?ro:bash/x", 2, "disk.img?ro:/bash/x"),
        ("./disk.img:bash", 1, "./disk.img:/bash"),
        ("sync:disk.img:bash", 1, "sync:disk.img:/bash"),
    ] {
        let said = said(argument, status);
        assert!(said.contains(&format!("did you mean {meant}?")), "{argument}: {said}");
    }
    assert!(!said("other.img:bash", 2).contains("did you mean"));
}

#[test]
fn messages_name_a_path_once() {
    for line in
        [&["info", "/no/such/image"][..], &["ls", "sync:/no/such/image:/x"], &["df", "/no/such/image"]]
    {
        let said = bad(1, line.iter().copied());
        assert_eq!(said.matches("/no/such/image").count(), 1, "{said}");
        assert!(said.ends_with("stat: No such file or directory"), "{said}");
    }
    let scratch = uext4_testkit::Scratch::new(1 << 20);
    let folder = scratch.path().to_str().unwrap();
    let said = bad(1, ["ls", folder]);
    assert!(said.matches(folder).count() == 1 && said.contains("a directory is neither an image"), "{said}");
    let said = bad(1, [OsStr::new("ls"), OsStr::from_bytes(b"no\xff\\such")]);
    assert_eq!(said.matches("such").count(), 2, "{said}");
}
