//! `--overlay` and `uext4 overlay`.

use crate::common;
use common::{bad, good, json, text, volume};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use uext4_testkit::oracle::e2fsck_clean;
use uext4_testkit::{Need, Scratch, needs};

fn words<'a>(args: &[&'a str], overlay: &'a str) -> Vec<&'a str> {
    [args, &["--overlay", overlay]].concat()
}

#[test]
fn changes_are_kept_looked_at_merged_and_dropped() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (volume, scratch) = (volume(), Scratch::new(256 << 20));
    let base = scratch.file("base.img");
    fs::copy(volume.path(), &base).unwrap();
    fs::set_permissions(&base, fs::Permissions::from_mode(0o444)).unwrap();
    let before = fs::read(&base).unwrap();
    let (one, two) = (scratch.file("one.ovl"), scratch.file("two%.ovl"));
    let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
    let device = base.to_str().unwrap();
    let inside = |path: &str| format!("{device}:{path}");
    let (root, directory, file) = (inside("/"), inside("/new"), inside("/new/file"));

    let missing = bad(1, words(&["ls", &root], one));
    assert!(missing.contains("No such file") && !Path::new(one).exists(), "{missing}");
    good(words(&["mkdir", &directory], one));
    good(words(&["io", "-f", &file, "-c", "pwrite -S 0x5a 0 300k", "-c", "fsync"], one));
    good(words(&["mkdir", &inside("/other")], two));
    assert!(text(words(&["ls", &root], one)).contains("new"));
    assert!(text(["ls", &format!("{device}?overlay={one}:/")]).contains("new"));
    let listed = text(words(&["ls", &root], two));
    assert!(listed.contains("other") && !listed.contains("new"), "{listed}");
    assert!(!text(["ls", &root]).contains("new"));
    assert!(text(words(&["check", device], one)).contains(": clean:"));
    let told = text(words(&["info", device], one));
    assert!(told.contains("overlay ") && told.contains("one.ovl"), "{told}");
    // What is rehearsed over an overlay is in neither.
    text(["explain", "--", "rm", "-r", &directory, "--overlay", one]);
    assert!(text(words(&["ls", &root], one)).contains("new"));
    assert!(fs::read(&base).unwrap() == before);

    let diff = json(["overlay", "diff", one, "--json"]);
    assert_eq!(diff["base"], fs::canonicalize(&base).unwrap().to_str().unwrap());
    assert_eq!((&diff["base_size"], &diff["merging"]), (&before.len().into(), &false.into()));
    let ranges = diff["ranges"].as_array().unwrap();
    let sum: u64 = ranges.iter().map(|range| range["length"].as_u64().unwrap()).sum();
    assert_eq!(sum, diff["changed"].as_u64().unwrap());
    assert!(sum >= 300 << 10, "{sum}");
    let said = text(["overlay", "diff", one]);
    assert_eq!(said.lines().take_while(|line| !line.is_empty()).count(), ranges.len() + 2);
    assert!(said.contains("\nadded    /new\nadded    /new/file (300K)\n"), "{said}");

    fs::set_permissions(&base, fs::Permissions::from_mode(0o644)).unwrap();
    let merged = json(["overlay", "merge", one, "--json"]);
    assert_eq!(merged["merged"].as_u64(), Some(sum));
    assert!(!Path::new(one).exists());
    e2fsck_clean(&base);
    assert_eq!(good(["cat", &file]), vec![0x5a; 300 << 10]);
    let changed = bad(1, words(&["ls", &root], two));
    assert!(changed.contains("its base") && changed.contains("uext4 overlay drop"), "{changed}");
    let changed = bad(1, ["overlay", "merge", two]);
    assert!(changed.contains("its base"), "{changed}");
    good(["overlay", "drop", two]);
    assert!(!Path::new(two).exists());
    e2fsck_clean(&base);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (volume, scratch) = (volume(), Scratch::new(256 << 20));
    let device = volume.path().to_str().unwrap().to_owned();
    let before = fs::read(&device).unwrap();
    let overlay = scratch.file("o").to_str().unwrap().to_owned();
    let inside = format!("{device}:/x");
    let other = format!("{}:/y", scratch.file("other.img").display());
    for (arguments, said) in [
        (vec!["cp", &inside, &other], "one device"),
        (vec!["mkdir", &format!("{device}?overlay=o:/x")], "one of them"),
        (vec!["explain", "--", "mkdir", &inside], "behind its name"),
    ] {
        let mut with = vec![arguments[0], "--overlay", &overlay];
        with.extend(&arguments[1..]);
        let refused = bad(2, with);
        assert!(refused.contains(said), "{refused}");
    }
    // Half of the changes would be in a journal that is not kept apart.
    let log = scratch.file("log").to_str().unwrap().to_owned();
    let refused = bad(1, ["mkdir", &inside, "--overlay", &overlay, "--journal", &log]);
    assert!(refused.contains("its journal must be, too"), "{refused}");
    // Never over what is no overlay, and never over the overlay.
    fs::write(&overlay, "precious").unwrap();
    for arguments in [
        vec!["mkdir", &inside, "--overlay", &overlay],
        vec!["overlay", "drop", &overlay],
        vec!["overlay", "diff", &overlay],
        vec!["overlay", "merge", &overlay],
    ] {
        let refused = bad(1, arguments);
        assert!(refused.contains("not an overlay file"), "{refused}");
    }
    let results = format!("--json={overlay}");
    let refused = bad(2, ["ls", &format!("{device}:/"), &results, "--overlay", &overlay]);
    assert!(refused.contains("overwritten"), "{refused}");
    let refused = bad(1, ["cp", &format!("{inside}?"), "/dev/null"]);
    assert!(!refused.is_empty());
    assert_eq!(fs::read(&overlay).unwrap(), b"precious");
    let refused = bad(2, ["overlay", "drop", &overlay, &device]);
    assert!(refused.contains("BASE"), "{refused}");
    let refused = bad(1, ["overlay", "drop", &format!("{overlay}.missing")]);
    assert!(refused.contains("No such file"), "{refused}");
    assert!(fs::read(&device).unwrap() == before);
    e2fsck_clean(volume.path());
}

/// What `overlay diff` tells of the names, as `PATH FATE CHANGES BYTES`, and how much is in no area.
fn names(overlay: &str) -> (Vec<String>, serde_json::Value) {
    let diff = json(["overlay", "diff", overlay, "--json"]);
    let names = diff["names"].as_array().unwrap_or_else(|| panic!("{diff}")).iter();
    let one = |name: &serde_json::Value| {
        let changes = name["changes"].as_array().cloned().unwrap_or_default();
        let changes: Vec<_> = changes.iter().map(|change| change.as_str().unwrap()).collect();
        let (path, fate) = (name["path"].as_str().unwrap(), name["fate"].as_str().unwrap());
        format!("{path} {fate} {} {}", changes.join("+"), name["bytes"])
    };
    let mut names: Vec<String> = names.map(one).collect();
    names.sort();
    (names, diff)
}

#[test]
fn a_diff_names_what_is_different_and_how() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (volume, scratch) = (volume(), Scratch::new(256 << 20));
    let base = scratch.file("base.img");
    fs::copy(volume.path(), &base).unwrap();
    let overlay = scratch.file("o.ovl").to_str().unwrap().to_owned();
    let inside = |path: &str| format!("{}:{path}", base.display());
    let run = |args: &[&str]| good(words(args, &overlay));
    // Nothing but the superblock and the journal is written, which no name has.
    run(&["io", "-f", &inside("/hello"), "-c", "fsync"]);
    assert_eq!(names(&overlay).0, [""; 0]);

    run(&["io", "-f", &inside("/big"), "-c", "pwrite -S 0x77 8k 4k", "-c", "pwrite -S 0x77 1m 512"]);
    run(&["chmod", "600", &inside("/empty")]);
    run(&["rm", &inside("/hello")]);
    run(&["mkdir", &inside("/new")]);
    run(&["io", "-f", &inside("/new/file"), "-c", "pwrite -S 0x5a 0 300k", "-c", "fsync"]);
    run(&["rm", "-r", &inside("/dir/inner")]);
    run(&["truncate", "-s", "20", &inside("/.hidden")]);
    run(&["xattr", "--set", "user.new=value", &inside("/sparse")]);
    let (found, diff) = names(&overlay);
    let expected = [
        "/ changed names+attributes+times 0",
        "/.hidden changed contents+times 20",
        "/big changed contents+times 4608",
        "/dir changed names+attributes+times 0",
        "/dir/inner removed  0",
        "/dir/inner/deep removed  5",
        "/empty changed attributes+times 0",
        "/hello removed  6",
        "/new added  0",
        "/new/file added  307200",
        "/sparse changed xattrs+times 0",
    ];
    assert_eq!(found, expected, "{diff}");
    let areas = &diff["areas"];
    let sum: u64 = areas.as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
    assert_eq!(Some(sum), diff["changed"].as_u64());
    for area in ["superblocks", "block_bitmaps", "inode_bitmaps", "inode_tables", "journal"] {
        assert!(areas[area].as_u64().unwrap() > 0, "{area}: {diff}");
    }
    assert!(areas["rest"].as_u64().unwrap() >= 305 << 10, "{diff}");
    // The same bytes again are no difference, and a name that leads to another inode is two.
    run(&["io", "-f", &inside("/big"), "-c", "fsync"]);
    run(&["rm", &inside("/empty")]);
    run(&["mkdir", &inside("/empty")]);
    let (found, _) = names(&overlay);
    assert!(
        found.contains(&"/empty added  0".into()) && found.contains(&"/empty removed  0".into()),
        "{found:?}"
    );
    // Of a base that is another one there are only ranges, and the reason.
    fs::File::options().write(true).open(&base).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    let diff = json(["overlay", "diff", &overlay, "--json"]);
    assert!(diff["names"].is_null() && diff["not_compared"].as_str().is_some(), "{diff}");
    assert!(!diff["ranges"].as_array().unwrap().is_empty());
    e2fsck_clean(volume.path());
}
