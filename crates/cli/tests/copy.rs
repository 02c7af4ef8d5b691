//! `cat` and `cp`.

use crate::common;

use common::{
    BIG, SPARSE, at, bad, command, content, good, json, pattern, text, uext4, unprivileged, volume,
};
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Stdio;
use std::time::{Duration, UNIX_EPOCH};
use uext4_testkit::{Need, needs, oracle};

#[test]
fn cat_gives_every_byte() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/hello")]), b"world\n");
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/link")]), b"world\n");
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/empty")]), b"");
    assert!(good([OsStr::new("cat"), &at(&volume, "/big")]) == pattern(BIG));
    assert!(good([OsStr::new("cat"), &at(&volume, "/sparse")]) == content(&volume, "/sparse"));
    let holed = good([OsStr::new("cat"), &at(&volume, "/holed")]);
    assert_eq!(holed.len(), 131_072);
    assert!(
        holed[..64 << 10].iter().all(|&byte| byte == 0x55) && holed[64 << 10..].iter().all(|&byte| byte == 0)
    );
    let two = good([OsStr::new("cat"), &at(&volume, "/hello"), &at(&volume, "/dir/inner/deep")]);
    assert_eq!(two, b"world\ndeep\n");
}

#[test]
fn cat_through_every_engine_and_switch() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let expected = content(&volume, "/sparse");
    assert!(expected.iter().any(|&byte| byte != 0));
    // A mapped image must be fully allocated: zeros are written too.
    let full = volume.scratch().file("full.img");
    std::fs::write(&full, std::fs::read(volume.path()).unwrap()).unwrap();
    for engine in ["file", "sync", "dax", "null"] {
        let device = format!("{engine}:{}", full.display());
        assert_eq!(json(["info", "--json", &device])["device"]["engine"], engine);
        let place = format!("{device}:/sparse");
        for switches in ["all=on", "all=off"] {
            let got = good(["cat", "--switches", switches, &place]);
            assert_eq!(got.len(), expected.len(), "{engine}, {switches}");
            // The null engine reads metadata, and moves no data.
            let same = got == expected;
            assert_eq!(same, engine != "null", "{engine}, {switches}");
        }
    }
}

#[test]
fn a_copy_is_equal_and_sparse() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for name in ["sparse", "holed", "big", "empty"] {
        let dest = volume.scratch().file(name);
        good([OsStr::new("cp"), &at(&volume, format!("/{name}")), dest.as_os_str()]);
        assert!(std::fs::read(&dest).unwrap() == content(&volume, &format!("/{name}")), "{name}");
    }
    let sparse = std::fs::metadata(volume.scratch().file("sparse")).unwrap();
    assert_eq!(sparse.len(), SPARSE);
    assert!(sparse.blocks() * 512 < 1 << 20, "holes stay holes: {} blocks", sparse.blocks());
    let holed = std::fs::metadata(volume.scratch().file("holed")).unwrap();
    assert!(holed.blocks() * 512 <= 64 << 10, "unwritten ranges become holes: {}", holed.blocks());
}

#[test]
fn where_a_copy_goes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let dir = volume.scratch().file("out");
    std::fs::create_dir(&dir).unwrap();
    good([OsStr::new("cp"), &at(&volume, "/hello"), &at(&volume, "/dir/inner/deep"), dir.as_os_str()]);
    assert_eq!(std::fs::read(dir.join("hello")).unwrap(), b"world\n");
    assert_eq!(std::fs::read(dir.join("deep")).unwrap(), b"deep\n");
    // What was there is replaced, longer or not, and keeps its mode.
    std::fs::write(dir.join("hello"), "something much longer\n").unwrap();
    std::fs::set_permissions(dir.join("hello"), PermissionsExt::from_mode(0o604)).unwrap();
    good([OsStr::new("cp"), &at(&volume, "/hello"), dir.as_os_str()]);
    assert_eq!(std::fs::read(dir.join("hello")).unwrap(), b"world\n");
    assert_eq!(std::fs::metadata(dir.join("hello")).unwrap().mode() & 0o777, 0o604);
    let file = volume.scratch().file("file");
    std::fs::write(&file, "").unwrap();
    let reason = bad(1, [OsStr::new("cp"), &at(&volume, "/hello"), &at(&volume, "/big"), file.as_os_str()]);
    assert!(reason.contains("not a directory"), "{reason}");
    let stream = uext4([OsStr::new("cp"), &at(&volume, "/sparse"), OsStr::new("/dev/stdout")]);
    assert!(stream.status.success() && stream.stdout == content(&volume, "/sparse"));
}

#[test]
fn attributes_of_a_copy() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for request in ["atime @900000000", "mtime @1000000000", "mtime_extra 493827156", "mode 0104751"] {
        oracle::debugfs_write(volume.path(), &format!("set_inode_field /hello {request}"));
    }
    let plain = volume.scratch().file("plain");
    good([OsStr::new("cp"), &at(&volume, "/hello"), plain.as_os_str()]);
    let mode = std::fs::metadata(&plain).unwrap().mode() & 0o7777;
    assert_eq!(mode & !0o751, 0, "no more than the source's permissions: {mode:o}");
    assert_eq!(mode & 0o700, 0o700);
    let kept = volume.scratch().file("kept");
    good([OsStr::new("cp"), OsStr::new("-p"), &at(&volume, "/hello"), kept.as_os_str()]);
    let metadata = std::fs::metadata(&kept).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o4751);
    let modified = UNIX_EPOCH + Duration::new(1_000_000_000, 493_827_156 >> 2);
    assert_eq!(metadata.modified().unwrap(), modified);
    assert_eq!(metadata.atime(), 900_000_000);
    // A source nobody may write gives a copy nobody may write.
    oracle::debugfs_write(volume.path(), "set_inode_field /empty mode 0100444");
    let locked = volume.scratch().file("locked");
    good([OsStr::new("cp"), &at(&volume, "/empty"), locked.as_os_str()]);
    assert_eq!(std::fs::metadata(&locked).unwrap().mode() & 0o222, 0);
}

#[test]
fn the_image_itself_is_no_destination() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let alias = volume.scratch().file("alias");
    std::os::unix::fs::symlink(volume.path(), &alias).unwrap();
    for dest in [volume.path(), &alias] {
        let reason = bad(1, [OsStr::new("cp"), &at(&volume, "/hello"), dest.as_os_str()]);
        assert!(reason.contains("is the device of a source"), "{reason}");
    }
    volume.assert_clean();
}

#[test]
fn a_failed_copy_leaves_nothing_behind() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for (path, reason) in [
        ("/dir", "is a directory"),
        ("/fifo", "not a regular file"),
        ("/dangling", "no such file"),
        ("/", "is a directory"),
    ] {
        let dest = volume.scratch().file("never");
        let told = bad(1, [OsStr::new("cp"), &at(&volume, path), dest.as_os_str()]);
        assert!(told.contains(reason), "{told}");
        assert!(!dest.exists(), "{path}");
    }
    let dest = volume.scratch().file("out");
    std::fs::write(&dest, "new").unwrap();
    good([OsStr::new("cp"), dest.as_os_str(), &at(&volume, "/hello")]);
    assert_eq!(good([OsStr::new("cat"), &at(&volume, "/hello")]), b"new");
}

#[test]
fn one_bad_source_does_not_stop_the_others() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let (hello, dir, nothing, deep) = ("/hello", "/dir", "/nothing", "/dir/inner/deep");
    let [hello, dir, nothing, deep] = [hello, dir, nothing, deep].map(|path| at(&volume, path));
    let shown = uext4([OsStr::new("cat"), &hello, &nothing, &deep]);
    assert_eq!((shown.status.code(), &shown.stdout[..]), (Some(1), &b"world\ndeep\n"[..]));
    let said = String::from_utf8(shown.stderr).unwrap();
    assert!(said.contains("/nothing"), "{said}");
    let out = volume.scratch().file("several");
    std::fs::create_dir(&out).unwrap();
    let output = uext4([OsStr::new("cp"), &dir, &nothing, &hello, &deep, out.as_os_str()]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/dir") && said.contains("/nothing"), "{said}");
    assert_eq!(std::fs::read(out.join("hello")).unwrap(), b"world\n");
    assert_eq!(std::fs::read(out.join("deep")).unwrap(), b"deep\n");
}

#[test]
fn a_copy_made_just_now_is_kept() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let (one, other) = (volume(), volume());
    oracle::debugfs_script(other.path(), "rm /hello\nsymlink /hello dir/inner/deep");
    let out = one.scratch().file("twice");
    std::fs::create_dir(&out).unwrap();
    let (first, second) = (at(&one, "/hello"), at(&other, "/hello"));
    let said = bad(1, [OsStr::new("cp"), &first, &second, out.as_os_str()]);
    assert!(said.contains("twice/hello"), "{said}");
    assert_eq!(std::fs::read(out.join("hello")).unwrap(), b"world\n");
    // What was there before is replaced.
    good([OsStr::new("cp"), &second, out.as_os_str()]);
    assert_eq!(std::fs::read(out.join("hello")).unwrap(), b"deep\n");
}

#[test]
fn nothing_is_made_behind_a_link_that_leads_nowhere() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let (link, behind) = (volume.scratch().file("link"), volume.scratch().file("behind"));
    std::os::unix::fs::symlink(&behind, &link).unwrap();
    for flags in [&[][..], &["-p"]] {
        let args = [&["cp"], flags].concat().into_iter().map(Into::into);
        let said = bad(1, args.chain([at(&volume, "/hello"), link.clone().into_os_string()]));
        assert!(said.contains("link") && !behind.exists(), "{said}");
    }
    // A link to a file is followed, as by cp(1).
    std::fs::write(&behind, "before").unwrap();
    good([OsStr::new("cp"), &at(&volume, "/hello"), link.as_os_str()]);
    assert_eq!(std::fs::read(&behind).unwrap(), b"world\n");
}

/// Runs `cp` with `bytes` coming through a pipe in pieces of its own.
fn piped(args: &[&OsStr], bytes: &[u8]) -> std::process::Output {
    let mut cp = command(args);
    let mut child = cp.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for piece in bytes.chunks(10_007) {
        if std::io::Write::write_all(&mut stdin, piece).is_err() {
            break;
        }
    }
    drop(stdin);
    child.wait_with_output().unwrap()
}

#[test]
fn standard_input_goes_into_a_volume() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let bytes = pattern(BIG);
    let sources: [(&str, &[u8]); 4] =
        [("-", &bytes), ("/dev/stdin", &bytes), ("-", b""), ("-", &bytes[..1 << 20])];
    for (source, bytes) in sources {
        let copied = piped(&["cp".as_ref(), source.as_ref(), &at(&volume, "/piped")], bytes);
        assert!(copied.status.success(), "{source}: {}", oracle::text(&copied));
        assert!(content(&volume, "/piped") == bytes, "{source}, {} bytes", bytes.len());
    }
    // What a redirection left of a file comes, from where it stands.
    let file = volume.scratch().file("host");
    std::fs::write(&file, "head\ntail\n").unwrap();
    let mut shell = oracle::command("sh");
    shell.arg("-c").arg("read -r line; exec \"$0\" cp - \"$1\"").arg(env!("CARGO_BIN_EXE_uext4"));
    let shell = shell.arg(at(&volume, "/tail")).stdin(std::fs::File::open(&file).unwrap());
    assert!(shell.status().unwrap().success());
    assert_eq!(content(&volume, "/tail"), b"tail\n");
    let mode =
        json([OsStr::new("stat"), "--json".as_ref(), &at(&volume, "/tail")])["stx_mode"].as_u64().unwrap();
    assert_eq!(mode & 0o7777 & !0o666, 0, "the mode of a new file of a shell: {mode:o}");
    assert_eq!(mode & 0o600, 0o600);
    volume.assert_clean();
}

#[test]
fn pipes_and_devices_of_the_host_are_read_to_their_end() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let pipe = volume.scratch().file("pipe");
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, rustix::fs::Mode::from_raw_mode(0o640), 0).unwrap();
    let bytes = pattern(300_000);
    std::thread::scope(|scope| {
        scope.spawn(|| std::fs::write(&pipe, &bytes).unwrap());
        good([OsStr::new("cp"), pipe.as_os_str(), &at(&volume, "/dir")]);
    });
    assert!(content(&volume, "/dir/pipe") == bytes);
    good([OsStr::new("cp"), OsStr::new("/dev/null"), &at(&volume, "/nothing")]);
    assert_eq!(content(&volume, "/nothing"), b"");
    let reason = bad(1, [OsStr::new("cp"), volume.scratch().path().as_os_str(), &at(&volume, "/new")]);
    assert!(reason.to_lowercase().contains("is a directory"), "{reason}");
    for (source, dest, status, what) in [
        ("-", "/dir", 2, "no name"),
        ("-", "/no/such", 1, "no such file"),
        ("-", "/link/x", 1, "not a directory"),
    ] {
        let failed = piped(&["cp".as_ref(), source.as_ref(), &at(&volume, dest)], b"bytes");
        let said = String::from_utf8(failed.stderr).unwrap();
        assert_eq!(failed.status.code(), Some(status), "{dest}: {said}");
        assert!(said.contains(what), "{said}");
    }
    volume.assert_clean();
}

#[test]
fn a_volume_is_not_copied_into_itself_through_standard_input() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let mut cp = command([OsStr::new("cp"), OsStr::new("-"), &at(&volume, "/self")]);
    let failed = cp.stdin(std::fs::File::open(volume.path()).unwrap()).output().unwrap();
    assert_eq!(failed.status.code(), Some(2), "{}", oracle::text(&failed));
    volume.assert_clean();
}

#[test]
fn a_pipe_that_does_not_fit_leaves_no_file() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let failed = piped(&["cp".as_ref(), "-".as_ref(), &at(&volume, "/endless")], &vec![7; 80 << 20]);
    assert_eq!(failed.status.code(), Some(1), "{}", oracle::text(&failed));
    bad(1, [OsStr::new("stat"), &at(&volume, "/endless")]);
    volume.assert_clean();
}

#[test]
fn verbose_copies_say_what_goes_where_as_cp_does() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = volume();
    let out = volume.scratch().file("out");
    let (hello, out) = (at(&volume, "/hello"), out.as_os_str());
    let said = text([OsStr::new("cp"), "-v".as_ref(), &hello, out]);
    assert_eq!(said, format!("'{}' -> '{}'\n", hello.display(), out.display()));
    let said = text([OsStr::new("cp"), "--verbose".as_ref(), out, &at(&volume, "/dir/inner")]);
    let dest = at(&volume, "/dir/inner/out");
    assert_eq!(said, format!("'{}' -> '{}'\n", out.display(), dest.display()));
    let tree = volume.scratch().file("tree");
    let inner = at(&volume, "/dir/inner");
    let said = text([OsStr::new("cp"), "-rv".as_ref(), &inner, tree.as_os_str()]);
    let line = |below: &str| format!("'{}{below}' -> '{}{below}'", inner.display(), tree.display());
    let mut lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], line(""), "a directory that is made comes before what is in it");
    lines.sort_unstable();
    let mut wanted = [line(""), line("/deep"), line("/out")];
    wanted.sort_unstable();
    assert_eq!(lines, wanted);
    let rows = json([OsStr::new("cp"), "-v".as_ref(), "--json".as_ref(), &hello, out]);
    assert_eq!(rows[0]["source"], hello.to_str().unwrap());
    assert_eq!(rows[0]["dest"], out.to_str().unwrap());
    volume.assert_clean();
}

#[test]
fn force_replaces_files_of_the_host_that_cannot_be_opened() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let out = volume.scratch().file("out");
    std::fs::create_dir(&out).unwrap();
    let all = PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&out, all).unwrap();
    // For root every file opens.
    std::fs::set_permissions(volume.path(), PermissionsExt::from_mode(0o644)).unwrap();
    for (flags, source) in [("", "/hello"), ("-r", "/dir/inner/deep")] {
        let name = source.rsplit('/').next().unwrap();
        let kept = out.join(name);
        std::fs::write(&kept, "locked").unwrap();
        std::fs::set_permissions(&kept, PermissionsExt::from_mode(0o444)).unwrap();
        let flags = |more: &str| format!("-p{}{more}", flags.trim_start_matches('-'));
        let args =
            |more: &str| ["cp".into(), flags(more).into(), at(&volume, source), out.clone().into_os_string()];
        let failed = unprivileged(&volume, &args(""));
        assert_eq!(failed.status.code(), Some(1), "{source}: {}", oracle::text(&failed));
        assert_eq!(std::fs::read(&kept).unwrap(), b"locked");
        let forced = unprivileged(&volume, &args("f"));
        assert!(forced.status.success(), "{source}: {}", oracle::text(&forced));
        assert!(std::fs::read(&kept).unwrap() == content(&volume, source));
    }
    // A directory stays.
    std::fs::remove_file(out.join("hello")).unwrap();
    std::fs::create_dir(out.join("hello")).unwrap();
    let said = bad(1, [OsStr::new("cp"), "-f".as_ref(), &at(&volume, "/hello"), out.as_os_str()]);
    assert!(said.contains("irectory") && out.join("hello").is_dir(), "{said}");
}
