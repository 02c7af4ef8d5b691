//! Extended attributes on the command line, on a volume that debugfs gave them.

mod common;

use common::{at, bad, good, json, text};
use uext4_testkit::{Need, VolumeBuilder, needs, oracle};

/// A file with attributes of all forms, a link to it, and a plain file.
fn volume() -> uext4_testkit::Volume {
    let source = uext4_testkit::Scratch::new(1 << 20);
    std::fs::write(source.file("file"), "hello\n").unwrap();
    std::fs::write(source.file("plain"), "").unwrap();
    std::os::unix::fs::symlink("file", source.file("link")).unwrap();
    let volume = VolumeBuilder::new(16 << 20).from_dir(source.path()).build();
    let value = |name: &str, bytes: &[u8]| {
        let path = volume.scratch().file(name);
        std::fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    // On its command line debugfs would take the backslash for its own.
    let quoted = value("quoted", b"a\\quote");
    let binary = value("binary", &[0, 1, 2, 0xff]);
    // debugfs stores what getxattr would return in the form of the disk by itself.
    let acl: [u8; 44] = [
        2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 232, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
        16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
    ];
    let acl = value("acl", &acl);
    for request in [
        format!("ea_set -f {quoted} /file user.text"),
        format!("ea_set -f {binary} /file user.binary"),
        format!("ea_set -f {acl} /file system.posix_acl_access"),
        "ea_set /file trusted.empty \"\"".to_owned(),
        "ea_set /link trusted.own link".to_owned(),
    ] {
        oracle::debugfs_write(volume.path(), &request);
    }
    volume.assert_clean();
    volume
}

#[test]
fn attributes_are_listed_and_read() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let listed = text([std::ffi::OsString::from("xattr"), at(&volume, "/link")]);
    let mut lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.remove(0), "# file: /link");
    for line in [
        "user.text=\"a\\\\quote\"",
        "user.binary=0sAAEC/w==",
        "trusted.empty=\"\"",
        "# user::rw-,user:1000:r--,group::r--,mask::rw-,other::---",
    ] {
        assert!(lines.contains(&line), "{line}: {listed}");
    }
    assert_eq!(lines.len(), 5, "{listed}");
    assert_eq!(
        text(["xattr".into(), "-h".into(), at(&volume, "/link")]),
        "# file: /link\ntrusted.own=\"link\"\n"
    );
    assert_eq!(text(["xattr".into(), at(&volume, "/plain")]), "");

    let one = |name: &str| text(["xattr".into(), at(&volume, "/file"), name.into()]);
    assert_eq!(one("user.binary"), "user.binary=0sAAEC/w==\n");
    let raw = good(["xattr".into(), "--only-values".into(), at(&volume, "/file"), "user.binary".into()]);
    assert_eq!(raw, [0, 1, 2, 0xff]);
}

#[test]
fn attributes_as_json() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let list = json(["xattr".into(), "--json".into(), at(&volume, "/file")]);
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 4);
    let of = |name: &str| list.iter().find(|xattr| xattr["name"] == name).unwrap();
    assert_eq!(of("user.text")["value"], "a\\quote");
    assert_eq!(of("user.binary")["value_b64"], "AAEC/w==");
    assert_eq!(of("user.binary")["size"], 4);
    assert_eq!(of("system.posix_acl_access")["acl"][1], "user:1000:r--");
    let one = json(["xattr".into(), "--json".into(), at(&volume, "/file"), "user.text".into()]);
    assert_eq!(one["value"], "a\\quote");
    assert_eq!(json(["xattr".into(), "--json".into(), at(&volume, "/plain")]), serde_json::json!([]));
}

#[test]
fn what_is_not_there_is_one_line() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let missing = bad(1, ["xattr".into(), at(&volume, "/file"), "user.none".into()]);
    assert!(missing.contains("no such attribute"), "{missing}");
    let error = bad(1, ["xattr".into(), "--json".into(), at(&volume, "/file"), "nonsense".into()]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&error).unwrap()["errno"], 61);
    bad(2, ["xattr"]);
    bad(2, ["xattr".into(), "--only-values".into(), "--json".into(), at(&volume, "/file")]);
    assert!(text(["xattr", "--help"]).contains("Usage: uext4 xattr"));
}
