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
    assert_eq!(said.lines().count(), ranges.len() + 2);

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
