//! `info`, `ls`, `stat`.

use crate::common;

use common::{BIG, at, bad, good, json, text, uext4, volume};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn info_agrees_with_dumpe2fs() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("dumpe2fs"));
    let volume = volume();
    let image = volume.path();
    let info = json([OsStr::new("info"), image.as_os_str(), OsStr::new("--json")]);
    let field = |name| oracle::superblock_field(image, name);
    assert_eq!(info["label"], "cli-test");
    assert_eq!(info["uuid"], field("Filesystem UUID").as_str());
    assert_eq!(info["block_size"].to_string(), field("Block size"));
    assert_eq!(info["blocks"].to_string(), field("Block count"));
    assert_eq!(info["free_blocks"].to_string(), field("Free blocks"));
    assert_eq!(info["inodes"].to_string(), field("Inode count"));
    assert_eq!(info["free_inodes"].to_string(), field("Free inodes"));
    assert_eq!(info["inode_size"].to_string(), field("Inode size"));
    assert_eq!(info["journal"]["inode"].to_string(), field("Journal inode"));
    assert_eq!(info["state"][0], field("Filesystem state").as_str());
    let hash = field("Directory Hash Seed").replace('-', "");
    assert_eq!(info["hash_seed"], hash.as_str());
    let mut theirs: Vec<String> =
        field("Filesystem features").split_whitespace().map(str::to_owned).collect();
    let mut ours: Vec<String> =
        info["features"].as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    theirs.sort();
    ours.sort();
    assert_eq!(ours, theirs);

    let device = &info["device"];
    assert_eq!(device["engine"], "file");
    assert_eq!(device["locator"], image.to_str().unwrap());
    assert_eq!(device["size"], 64 << 20);
    assert_eq!(device["read_only"], true);
    assert_eq!(device["dax"], Value::Null);
    assert_eq!(device["tags"], Value::Null, "a file has none");
    for key in [
        "layers",
        "sharing",
        "logical_block",
        "memory_align",
        "volatile_cache",
        "fua",
        "nowait",
        "driving",
        "notes",
    ] {
        assert!(device.get(key).is_some(), "{key}: {device}");
    }
    assert_eq!(info["recovery"]["needed"], false);
    assert_eq!(info["recovery"]["usable"], true);
    assert_eq!(info["errors"]["count"], 0);
    // Which one depends on kernel and sandbox; the two forms of the answer must agree.
    let fence = info["fence"].as_str().unwrap();
    assert!(["membarrier", "swap"].contains(&fence), "{fence}");

    let text = text([OsStr::new("info"), image.as_os_str()]);
    assert!(text.contains("mtime/ctime of overwrites stay in memory until a sync or the close"), "{text}");
    assert!(text.contains("recovery:              not needed"), "{text}");
    assert!(text.contains(&format!("gate fence:            {fence}:")), "{text}");
}

/// Those that cannot be orphans forbid writing.
#[test]
fn info_says_that_there_are_orphans() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for request in ["set_super_value last_orphan 7", "set_super_value last_orphan 999999"] {
        let volume = volume();
        oracle::debugfs_write(volume.path(), request);
        let text = text([OsStr::new("info"), volume.path().as_os_str()]);
        assert!(text.contains("there are inodes to delete or truncate"), "{request}: {text}");
        let place = at(&volume, "/big");
        let said = bad(1, [OsStr::new("io"), &place, OsStr::new("-c"), OsStr::new("pwrite 0 4k")]);
        assert!(said.contains("corrupt volume: inode"), "{request}: {said}");
    }
}

#[test]
fn info_speaks_of_layers_and_masks() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let device = format!("sync:{}?latency=10us&fua=off", volume.path().display());
    let info = json(["info", "--json", &device]);
    assert_eq!(info["device"]["engine"], "sync");
    assert_eq!(info["device"]["fua"], false);
    assert!(!info["device"]["layers"].as_array().unwrap().is_empty());
    let device = format!("dax:{}?ro", volume.path().display());
    let dax = uext4(["info", "--json", &device]);
    if dax.status.success() {
        let info: Value = serde_json::from_slice(&dax.stdout).unwrap();
        assert!(["msync", "map_sync"].map(Value::from).contains(&info["device"]["dax"]), "{info}");
    } else {
        // The image is sparse, and a mapping of a hole could run out of space.
        let reason = String::from_utf8_lossy(&dax.stderr).into_owned();
        assert!(dax.status.code() == Some(1) && reason.contains("\"errno\""), "{reason}");
    }
}

#[test]
fn ls_sorts_and_hides() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let listing = text([OsStr::new("ls"), volume.path().as_os_str()]);
    let expected =
        "badlink\nbig\ndangling\ndir\ndirlink\nempty\nfifo\nhello\nholed\nlink\nlost+found\nsparse\n";
    assert_eq!(listing, expected);
    let all = text([OsStr::new("ls"), OsStr::new("-a"), &at(&volume, "/")]);
    assert!(all.starts_with(".\n..\n.hidden\nbadlink\n"), "{all}");
    assert_eq!(text([OsStr::new("ls"), &at(&volume, "/dir/inner")]), "deep\n");
    assert_eq!(text([OsStr::new("ls"), &at(&volume, "/dirlink/inner/")]), "deep\n");
    let hello = at(&volume, "/hello");
    assert_eq!(text([OsStr::new("ls"), &hello]), format!("{}\n", hello.display()));
}

#[test]
fn ls_follows_as_ls_does() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let short = good([OsStr::new("ls"), &at(&volume, "/dirlink")]);
    assert_eq!(short, good([OsStr::new("ls"), &at(&volume, "/dir")]));
    let long = text([OsStr::new("ls"), OsStr::new("-l"), &at(&volume, "/dirlink")]);
    assert!(long.starts_with("lrwxrwxrwx 1 ") && long.ends_with(":/dirlink -> dir\n"), "{long}");
}

#[test]
fn ls_long_lines() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    oracle::debugfs_write(volume.path(), "set_inode_field /hello mtime @1000000000");
    oracle::debugfs_write(volume.path(), "set_inode_field /hello uid 70000");
    let long = good([OsStr::new("ls"), OsStr::new("-l"), &at(&volume, "/")]);
    let long = String::from_utf8_lossy(&long).into_owned();
    let line = |name: &str| {
        long.lines().find(|line| line.ends_with(name)).unwrap_or_else(|| panic!("{name}: {long}")).to_owned()
    };
    assert!(long.starts_with("total "), "{long}");
    let hello: Vec<String> = line(" hello").split_whitespace().map(str::to_owned).collect();
    assert_eq!(hello[0], "-rw-r-----");
    assert_eq!(hello[1..3], ["1", "70000"]);
    assert_eq!(hello[4..], ["6", "2001-09-09T01:46:40Z", "hello"]);
    assert!(line("link -> hello").starts_with("lrwxrwxrwx"));
    assert!(line(" fifo").starts_with("prw-------"));
    assert!(line(" dir").starts_with('d'));
    let widths: Vec<usize> =
        long.lines().skip(1).map(|line| line.find("Z ").unwrap_or_else(|| panic!("{line}"))).collect();
    assert!(widths.windows(2).all(|pair| pair[0] == pair[1]), "columns: {long}");
}

#[test]
fn ls_json_is_as_promised() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    oracle::debugfs_write(volume.path(), "set_inode_field /hello mtime @1000000000");
    let listing = json([OsStr::new("ls"), OsStr::new("--json"), &at(&volume, "/")]);
    let rows = listing.as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    for row in rows {
        let expected = ["gid", "ino", "mode", "mtime", "mtime_ns", "name", "size", "type", "uid"];
        assert_eq!(keys(row), expected, "{row}");
    }
    assert_eq!(row("hello")["type"], "file");
    assert_eq!(row("hello")["mode"], 0o640);
    assert_eq!(row("hello")["size"], 6);
    let nanoseconds = row("hello")["mtime_ns"].as_i64().unwrap();
    assert_eq!(nanoseconds / 1_000_000_000, 1_000_000_000);
    assert_eq!(row("dir")["type"], "directory");
    assert_eq!(row("link")["type"], "symlink");
    assert_eq!(row("fifo")["type"], "fifo");
    assert_eq!(row("big")["size"], BIG);
    assert_eq!(row("lost+found")["ino"], 11);
    let one = json([OsStr::new("ls"), OsStr::new("--json"), &at(&volume, "/hello")]);
    assert_eq!(one.as_array().unwrap().len(), 1);
    let nothing = VolumeBuilder::new(8 << 20).build();
    oracle::debugfs_write(nothing.path(), "mkdir /nothing");
    let listing = json([OsStr::new("ls"), OsStr::new("--json"), &at(&nothing, "/nothing")]);
    assert_eq!(listing, Value::Array(vec![]));
}

#[test]
fn names_that_are_no_text() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let raw = good([OsStr::new("ls"), &at(&volume, "/dir")]);
    assert_eq!(raw, b"clear\x1b[2J\ninner\n\xff\xfe\x80\n");
    let listing = json([OsStr::new("ls"), OsStr::new("--json"), &at(&volume, "/dir")]);
    let coded = listing.as_array().unwrap().iter().find(|row| row.get("name_b64").is_some()).unwrap();
    assert_eq!(coded["name_b64"], "//6A");
    assert!(coded.get("name").is_none());
    let odd = at(&volume, OsStr::from_bytes(b"/dir/\xff\xfe\x80"));
    assert_eq!(good([OsStr::new("cat"), &odd]), b"\xff\xfe\x80");
    let stat = json([OsStr::new("stat"), OsStr::new("--json"), &at(&volume, "/badlink")]);
    assert_eq!(stat["target_b64"], "dG//");
    let missing = bad(1, [OsStr::new("cat"), &at(&volume, OsStr::from_bytes(b"/no\xff\x1b[2J"))]);
    assert!(missing.ends_with("/no\\xff\\x1b[2J: no such file or directory"), "{missing}");
    let output =
        uext4([OsStr::new("cat"), OsStr::new("--json"), &at(&volume, OsStr::from_bytes(b"/no\xff"))]);
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["path"], Value::Null);
    assert!(error["path_b64"].is_string());
}

#[test]
fn ls_recursive() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let tree = good([OsStr::new("ls"), OsStr::new("-R"), &at(&volume, "/dir")]);
    let dir = at(&volume, "/dir");
    let names = [dir.as_bytes(), b":\nclear\x1b[2J\ninner\n\xff\xfe\x80\n\n"].concat();
    assert_eq!(tree, [&names, dir.as_bytes(), b"/inner:\ndeep\n"].concat());
    let listing = json([OsStr::new("ls"), OsStr::new("-R"), OsStr::new("--json"), &at(&volume, "/")]);
    let rows = listing.as_array().unwrap();
    let deep = rows.iter().find(|row| row["name"] == "deep").unwrap();
    assert_eq!(deep["dir"], "/dir/inner");
    assert_eq!(rows.iter().filter(|row| row["name"] == "big").count(), 1);
}

#[test]
fn a_directory_in_a_circle_is_told_and_left() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    oracle::debugfs_write(volume.path(), "link /dir /dir/inner/again");
    let output = uext4([OsStr::new("ls"), OsStr::new("-R"), &at(&volume, "/dir")]);
    assert_eq!(output.status.code(), Some(1), "{}", oracle::text(&output));
    let reason = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(reason.lines().count() == 1 && reason.contains("more than one name"), "{reason}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("deep\n"));
}

#[test]
fn a_broken_inode_does_not_hide_its_neighbours() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    oracle::debugfs_write(volume.path(), "set_inode_field /hello checksum 0x12345678");
    let output = uext4([OsStr::new("ls"), OsStr::new("-l"), &at(&volume, "/")]);
    assert_eq!(output.status.code(), Some(1), "{}", oracle::text(&output));
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(listing.contains("\n??????????"), "{listing}");
    assert!(listing.contains(" sparse\n"), "{listing}");
    let reason = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(reason.lines().count() == 1 && reason.contains("/hello"), "{reason}");
}

#[test]
fn stat_speaks_statx() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    oracle::debugfs_write(volume.path(), "set_inode_field /hello mtime @1000000000");
    let stat = json([OsStr::new("stat"), OsStr::new("--json"), &at(&volume, "/hello")]);
    assert_eq!(stat["stx_mode"], 0o100640);
    assert_eq!(stat["stx_size"], 6);
    assert_eq!(stat["stx_blocks"], 8);
    assert_eq!(stat["stx_nlink"], 1);
    assert_eq!(stat["stx_blksize"], 4096);
    assert_eq!(stat["stx_mtime"]["tv_sec"], 1_000_000_000);
    assert!(stat["stx_mtime"]["tv_nsec"].is_u64() && stat["stx_btime"]["tv_sec"].is_i64());
    assert!(stat["flags"].as_array().unwrap().iter().any(|flag| flag.as_str().unwrap().contains("extent")));
    let ino = oracle::run(oracle::command("debugfs").args(["-R", "stat /hello"]).arg(volume.path()));
    assert!(ino.contains(&format!("Inode: {} ", stat["stx_ino"])), "{ino}");

    let link = json([OsStr::new("stat"), OsStr::new("--json"), &at(&volume, "/link")]);
    assert_eq!((link["type"].as_str(), link["target"].as_str()), (Some("symlink"), Some("hello")));
    let followed = json([OsStr::new("stat"), OsStr::new("-L"), OsStr::new("--json"), &at(&volume, "/link")]);
    assert_eq!(followed["stx_ino"], stat["stx_ino"]);

    let human = text([OsStr::new("stat"), &at(&volume, "/hello")]);
    let named = format!("  File: {}\n", at(&volume, "/hello").display());
    assert!(human.contains(&named), "{human}");
    assert!(human.contains("Access: (0640/-rw-r-----)"), "{human}");
    assert!(human.contains("Modify: 2001-09-09T01:46:40."), "{human}");
    let root = json([OsStr::new("stat"), OsStr::new("--json"), volume.path().as_os_str()]);
    assert_eq!(root["stx_ino"], 2);
}

#[test]
fn a_large_directory_lists_completely() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let source = Scratch::new(64 << 20);
    let dir = source.file("many");
    std::fs::create_dir(&dir).unwrap();
    let count = 5000;
    for number in 0..count {
        std::fs::write(dir.join(format!("entry-{number:06}")), "").unwrap();
    }
    let volume = VolumeBuilder::new(64 << 20).args(["-N", "8192"]).from_dir(source.path()).build();
    let listing = text([OsStr::new("ls"), &at(&volume, "/many")]);
    assert!(listing.lines().eq((0..count).map(|number| format!("entry-{number:06}"))));
    let rows = json([OsStr::new("ls"), OsStr::new("--json"), &at(&volume, "/many")]);
    assert_eq!(rows.as_array().unwrap().len(), count);
}
