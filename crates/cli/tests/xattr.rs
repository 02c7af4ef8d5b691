//! Extended attributes on the command line, on a volume that debugfs gave them.

use crate::common;

use common::{at, bad, good, json, text, uext4};
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

/// Changes bytes of the one place of the image where `from` stands.
fn replace(volume: &uext4_testkit::Volume, from: &[u8], to: &[u8]) {
    let mut image = std::fs::read(volume.path()).unwrap();
    let places: Vec<usize> =
        (0..image.len() - from.len()).filter(|at| image[*at..].starts_with(from)).collect();
    assert_eq!(places.len(), 1, "{from:x?}");
    image[places[0]..places[0] + to.len()].copy_from_slice(to);
    std::fs::write(volume.path(), image).unwrap();
}

#[test]
fn a_bad_attribute_hides_no_other_one() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let source = uext4_testkit::Scratch::new(1 << 20);
    std::fs::write(source.file("file"), "hello\n").unwrap();
    // Attributes in a block: each has a hash; nothing else has a checksum.
    let args = ["-b", "4096", "-I", "128", "-O", "^metadata_csum,^has_journal"];
    let volume = VolumeBuilder::new(16 << 20).args(args).from_dir(source.path()).build();
    let acl = volume.scratch().file("acl");
    let entry = |tag: u8, permissions: u8| [tag, 0, permissions, 0, 255, 255, 255, 255];
    let entries = [entry(1, 6), entry(4, 5), entry(32, 3)].concat();
    std::fs::write(&acl, [&[2, 0, 0, 0][..], &entries].concat()).unwrap();
    for request in [
        format!("ea_set -f {} /file system.posix_acl_access", acl.display()),
        "ea_set /file user.a before".to_owned(),
        "ea_set /file user.b damaged!".to_owned(),
        "ea_set /file user.c behind".to_owned(),
    ] {
        oracle::debugfs_write(volume.path(), &request);
    }
    volume.assert_clean();
    let stored = [1, 0, 0, 0, 1, 0, 6, 0, 4, 0, 5, 0, 32, 0, 3, 0];
    replace(&volume, b"damaged!", b"Damaged!");

    let output = uext4(["xattr".into(), at(&volume, "/file")]);
    let (listed, told) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{told}");
    for line in ["user.a=\"before\"", "user.c=\"behind\"", "# user::rw-,group::r-x,other::-wx"] {
        assert!(listed.lines().any(|listed| listed == line), "{line}: {listed}");
    }
    assert!(!listed.contains("amaged"), "{listed}");
    assert!(
        told.lines().count() == 1 && told.contains("attribute user.b: ") && told.contains("hash"),
        "{told}"
    );

    // The list of access is of a version that nobody knows, under a hash of 0, which is none.
    let hash = {
        let image = std::fs::read(volume.path()).unwrap();
        let at = image.windows(stored.len()).position(|bytes| bytes == stored).unwrap();
        // Its entry: no name, the name space 2, the value's offset in the block, no inode, the size.
        let offset = (at % 4096) as u16;
        let head = [&[0, 2][..], &offset.to_le_bytes(), &[0; 4], &16_u32.to_le_bytes()].concat();
        let entry = image.windows(head.len()).position(|bytes| bytes == head).unwrap();
        image[entry..entry + 16].to_vec()
    };
    replace(&volume, &hash, &[&hash[..12], &[0; 4]].concat());
    replace(&volume, &stored, &[9]);
    let output = uext4(["xattr".into(), "--json".into(), at(&volume, "/file")]);
    assert_eq!(output.status.code(), Some(1));
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |name: &str| list.as_array().unwrap().iter().find(|xattr| xattr["name"] == name);
    assert_eq!(of("user.a").unwrap()["value"], "before");
    assert_eq!(of("user.c").unwrap()["value"], "behind");
    assert!(of("user.b").is_none());
    let raw = of("system.posix_acl_access").unwrap();
    assert_eq!((&raw["value_b64"], &raw["size"]), (&"CQAAAAEABgAEAAUAIAADAA==".into(), &16.into()));
    assert!(raw.get("acl").is_none());
    let told = String::from_utf8(output.stderr).unwrap();
    let told: Vec<serde_json::Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told.iter().any(|error| error["error"].as_str().unwrap().contains("posix_acl_access")),
        "{told:?}"
    );
    let one = uext4(["xattr".into(), at(&volume, "/file"), "system.posix_acl_access".into()]);
    assert_eq!(one.status.code(), Some(1));
    assert_eq!(one.stdout, b"system.posix_acl_access=0sCQAAAAEABgAEAAUAIAADAA==\n");
}

/// `/file` with `user.small` in its record and `user.large` in a block that is damaged, or the other way round.
fn half_damaged(block: bool) -> uext4_testkit::Volume {
    let source = uext4_testkit::Scratch::new(1 << 20);
    std::fs::write(source.file("file"), "hello\n").unwrap();
    let args = ["-b", "1024", "-I", "256", "-O", "^metadata_csum,^has_journal"];
    let volume = VolumeBuilder::new(8 << 20).args(args).from_dir(source.path()).build();
    let value = volume.scratch().file("value");
    std::fs::write(&value, [b'v'; 300]).unwrap();
    oracle::debugfs_write(volume.path(), "ea_set /file user.small s");
    oracle::debugfs_write(volume.path(), &format!("ea_set -f {} /file user.large", value.display()));
    let magic = [0, 0, 2, 0xea];
    if block {
        // One user, one block.
        replace(&volume, &[&magic[..], &[1, 0, 0, 0, 1, 0, 0, 0]].concat(), b"none");
    } else {
        // Its one entry: a name of five bytes among those of users, the value.
        replace(&volume, &[&magic[..], &[5, 1]].concat(), &[&magic[..], &[200]].concat());
    }
    volume
}

#[test]
fn damage_of_one_place_hides_nothing_of_the_other() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for (block, left) in
        [(true, "user.small=\"s\"\n".to_owned()), (false, format!("user.large=\"{}\"\n", "v".repeat(300)))]
    {
        let volume = half_damaged(block);
        let output = uext4(["xattr".into(), at(&volume, "/file")]);
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("# file: /file\n{left}"));
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.lines().count() == 1 && told.contains("/file: corrupt volume: "), "{told}");
        let output = uext4(["xattr".into(), "--json".into(), at(&volume, "/file")]);
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((list.as_array().unwrap().len(), output.status.code()), (1, Some(1)));
        let told: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
        assert_eq!((&told["errno"], told["block"].is_null()), (&117.into(), !block), "{told}");

        // Asked for by name: what is there is whole.
        let (name, lost) = if block { ("user.small", "user.large") } else { ("user.large", "user.small") };
        assert_eq!(text(["xattr".into(), at(&volume, "/file"), name.into()]), left);
        let error = bad(1, ["xattr".into(), at(&volume, "/file"), lost.into()]);
        assert!(error.contains("corrupt volume"), "{error}");

        // The copy has what is left, its contents and its time.
        let out = volume.scratch().file("out");
        oracle::debugfs_write(volume.path(), "set_inode_field /file mtime @1000000000");
        let output = uext4(["cp".into(), "-a".into(), at(&volume, "/file"), out.as_os_str().to_owned()]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && told.lines().count() == 1, "{told}");
        let metadata = std::fs::metadata(&out).unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::mtime(&metadata), 1_000_000_000);
        assert_eq!(std::fs::read(&out).unwrap(), b"hello\n");
        // Some hosts take no such attributes.
        let flags = rustix::fs::XattrFlags::empty();
        if rustix::fs::setxattr(volume.path(), "user.probe", b"", flags).is_ok() {
            let mut value = [0; 400];
            let length = rustix::fs::getxattr(&out, name, &mut value[..]).unwrap();
            assert_eq!(length, if block { 1 } else { 300 });
            assert!(rustix::fs::getxattr(&out, lost, &mut value[..]).is_err());
        }
    }
}

/// debugfs and uext4 show an attribute that was set, and do not show one that was removed.
#[test]
fn attributes_are_set_and_removed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let run = |words: &[&str], path: &str| {
        let words = words.iter().map(std::ffi::OsString::from);
        ["xattr".into(), at(&volume, path)].into_iter().chain(words).collect::<Vec<_>>()
    };
    let value = |path: &str, name: &str| good(run(&["--only-values", name], path));
    good(run(&["--set", "user.note=kept", "-s", "user.bytes=0x00ff", "--set", "user.empty"], "/plain"));
    assert_eq!(value("/plain", "user.note"), b"kept");
    assert_eq!(value("/plain", "user.bytes"), b"\x00\xff");
    assert_eq!(value("/plain", "user.empty"), b"");
    assert!(oracle::debugfs(volume.path(), "ea_get /plain user.note").contains("kept"));
    good(run(&["--remove", "user.empty", "-x", "user.bytes", "--set", "user.note=0sbmV3"], "/plain"));
    assert_eq!(value("/plain", "user.note"), b"new");
    assert_eq!(text(run(&[], "/plain")), "# file: /plain\nuser.note=\"new\"\n");
    good(run(&["-h", "--set", "trusted.own=changed"], "/link"));
    assert_eq!(value("/file", "user.text"), b"a\\quote", "the target is as it was");
    for (words, path, status, reason) in [
        (&["--remove", "user.none"][..], "/plain", 1, "no such attribute"),
        (&["--replace", "--set", "user.none=x"], "/plain", 1, "no such attribute"),
        (&["--create", "--set", "user.note=x"], "/plain", 1, "exists"),
        (&["-h", "--set", "user.note=x"], "/link", 1, "not permitted"),
        (&["--set", "other.note=x"], "/plain", 1, "not supported"),
        (&["--set", "user.note=x"], "/none", 1, "no such file"),
        (&["--set", "user.note=0xa"], "/plain", 2, "two hexadecimal digits"),
        (&["--create", "user.note"], "/plain", 2, "for --set"),
        (&["user.note", "--remove", "user.note"], "/plain", 2, "--remove"),
        (&["--json", "--remove", "user.note"], "/plain", 2, "--json"),
    ] {
        let told = bad(status, run(words, path));
        assert!(told.to_lowercase().contains(reason), "{words:?}: {told}");
    }
    assert_eq!(value("/plain", "user.note"), b"new");
    oracle::e2fsck_clean(volume.path());
}

/// What is set: the path, whether a link itself, the name and the value.
type Setting = (&'static str, bool, String, Option<String>);

fn settings() -> Vec<Setting> {
    let long = "x".repeat(3000);
    let too_long = "x".repeat(5000);
    let (most, more) = (format!("user.{}", "n".repeat(250)), format!("user.{}", "n".repeat(251)));
    [
        ("/plain", false, "user.plain", Some("as it is \\ \\101")),
        ("/plain", false, "user.odd", Some("\"\\7x \\18 \\q \\777 a\\\"b \\")),
        ("/plain", false, "user.quoted", Some("\"a \\\"b\\\\\\012\\377\"")),
        ("/plain", false, "user.hex", Some("0x00fF10")),
        ("/plain", false, "user.base64", Some("0sAAEC/w==")),
        ("/plain", false, "user.none", None),
        ("/plain", false, "user.empty", Some("")),
        ("/plain", false, "user.long", Some(&*long)),
        ("/plain", false, "user.second", Some(&long)),
        ("/plain", false, "user.too", Some(&too_long)),
        ("/plain", false, "user.hex", Some("replaced")),
        ("/plain", false, "user.n\u{e4}me", Some("w\u{f6}rt")),
        ("/plain", false, "trusted.t", Some("for root")),
        ("/plain", false, "security.s", Some("for modules")),
        ("/plain", false, "system.s", Some("nobody")),
        ("/plain", false, "nothing", Some("nobody")),
        ("/plain", false, "user.", Some("nobody")),
        ("/link", false, "user.through", Some("the link")),
        ("/none", false, "user.text", Some("x")),
        ("/plain", false, &most, Some("v")),
        ("/plain", false, &more, Some("v")),
        ("/link", true, "user.own", Some("v")),
        ("/link", true, "trusted.more", Some("v")),
    ]
    .map(|(path, own, name, value)| (path, own, name.to_owned(), value.map(str::to_owned)))
    .to_vec()
}

/// What is removed afterwards.
const REMOVED: [(&str, bool, &str); 6] = [
    ("/file", false, "user.binary"),
    ("/file", false, "system.posix_acl_access"),
    ("/file", false, "user.gone"),
    ("/link", true, "trusted.own"),
    ("/link", false, "trusted.empty"),
    ("/plain", false, "user.long"),
];

/// The same words for setfattr(1) on a mounted copy and for us: each succeeds or fails alike, and in the end the kernel
/// reads the same attributes from both volumes.
#[test]
fn root_changes_are_those_of_setfattr() {
    needs!(
        Need::Loop,
        Need::Tool("mke2fs"),
        Need::Tool("debugfs"),
        Need::Tool("e2fsck"),
        Need::Tool("setfattr")
    );
    let volume = volume();
    let copy = volume.scratch().file("copy.img");
    std::fs::copy(volume.path(), &copy).unwrap();
    let settings = settings();
    let run = |path: &str, own: bool, option: &str, argument: String| {
        let words = ["xattr".into(), at(&volume, path), option.into(), argument.into()];
        uext4(words.into_iter().chain(own.then(|| "-h".into()))).status.success()
    };
    let set = |(path, own, name, value): &Setting| {
        let setting = value.as_ref().map_or(name.clone(), |value| format!("{name}={value}"));
        run(path, *own, "--set", setting)
    };
    let mut ours: Vec<bool> = settings.iter().map(set).collect();
    ours.extend(REMOVED.map(|(path, own, name)| run(path, own, "--remove", name.into())));
    let kernels = uext4_testkit::with_kernel(&copy, "", |root| {
        let run = |path: &str, own: bool, words: &[&str]| {
            let mut command = std::process::Command::new("setfattr");
            command.args(own.then_some("-h")).args(words).arg(root.join(&path[1..]));
            command.output().unwrap().status.success()
        };
        let set = |(path, own, name, value): &Setting| match value {
            Some(value) => run(path, *own, &["-n", name, "-v", value]),
            None => run(path, *own, &["-n", name]),
        };
        let mut kernels: Vec<bool> = settings.iter().map(set).collect();
        kernels.extend(REMOVED.map(|(path, own, name)| run(path, own, &["-x", name])));
        kernels
    });
    let asked = settings.iter().map(|(path, _, name, _)| (*path, name.as_str()));
    let asked = asked.chain(REMOVED.iter().map(|(path, _, name)| (*path, *name)));
    for ((asked, ours), kernel) in asked.zip(ours).zip(kernels) {
        assert_eq!(ours, kernel, "{asked:?}");
    }
    oracle::e2fsck_clean(volume.path());
    let (ours, kernels) = (volume.kernel_manifest(), uext4_testkit::kernel_manifest(&copy));
    for (path, entry) in &kernels {
        assert_eq!(ours[path].xattrs, entry.xattrs, "{}", path.escape_ascii());
    }
}
