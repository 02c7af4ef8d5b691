//! `uext4 shell`: all commands on one open volume.

use crate::common;

use common::{bad, good, text, uext4_with_input};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs};

/// An image with a few files.
fn image(scratch: &Scratch) -> PathBuf {
    let tree = scratch.file("tree");
    fs::create_dir_all(tree.join("etc/below")).unwrap();
    for (name, text) in [("etc/fstab", "fstab"), ("etc/hosts", "hosts"), ("etc/a b", "space"), ("top", "top")]
    {
        fs::write(tree.join(name), text).unwrap();
    }
    let image = scratch.file("image");
    good([
        OsStr::new("mkfs"),
        OsStr::new("-q"),
        OsStr::new("-d"),
        tree.as_os_str(),
        image.as_os_str(),
        OsStr::new("32M"),
    ]);
    image
}

fn shell(image: &Path, lines: &[&str]) -> Vec<OsString> {
    let lines = lines.iter().flat_map(|line| ["-c".into(), OsString::from(line)]);
    [OsString::from("shell"), image.into()].into_iter().chain(lines).collect()
}

#[test]
fn lines_change_one_volume() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(128 << 20);
    let image = image(&scratch);
    let host = scratch.file("host file");
    fs::write(&host, "from the host").unwrap();
    let put = format!("put '{}' .", host.display());
    let copied = format!("cp 'host:{}' copied", host.display());
    let got = scratch.file("got");
    let get = format!("get 'host file' '{}'", got.display());
    let told = text(shell(
        &image,
        &[
            "cd /etc/below/../../etc",
            "pwd",
            "mkdir -m 700 new",
            "cd new",
            &put,
            &copied,
            "cat copied",
            &get,
            "ln copied linked",
            "ln -s ../fstab link",
            "chmod 600 copied",
            "mv ../hosts .",
            "rm '/etc/a b'",
            "truncate -s 3 hosts",
            "cd ..",
            "ls new",
            "find --type d",
            "sync",
            "cat new/l*k new/hosts",
        ],
    ));
    let expected = "/etc\nfrom the hostcopied\nhost file\nhosts\nlink\nlinked\n";
    assert!(told.starts_with(expected), "{told}");
    assert!(told.contains("/etc/below\n") && told.ends_with("fstabhos"), "{told}");
    assert_eq!(fs::read_to_string(&got).unwrap(), "from the host");
    e2fsck_clean(&image);
    let at = |path: &str| OsString::from(format!("{}:{path}", image.display()));
    assert_eq!(text(["cat".into(), at("/etc/new/copied")]), "from the host");
    assert!(bad(1, ["cat".into(), at("/etc/a b")]).contains("no such file"));
}

#[test]
fn a_script_ends_at_the_line_that_fails() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(128 << 20);
    let image = image(&scratch);
    let script = "mkdir one # a comment\n\n-rmdir nothing\nmkdir two\nrmdir nothing\nmkdir three\n";
    let output = uext4_with_input([OsStr::new("shell"), image.as_os_str()], script);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("standard input: line 5: the script ends here"), "{told}");
    let file = scratch.file("script");
    fs::write(&file, "mkdir four\nexit\nmkdir five\n").unwrap();
    good([OsStr::new("shell"), OsStr::new("-f"), file.as_os_str(), image.as_os_str()]);
    let names = text(["ls".into(), OsString::from(format!("{}:/", image.display()))]);
    assert_eq!(names, "etc\nfour\nlost+found\none\ntop\ntwo\n");
    assert!(common::uext4(shell(&image, &["-rmdir nothing", "rmdir four"])).status.success());
    e2fsck_clean(&image);
}

#[test]
fn what_means_nothing_is_refused_by_line() {
    let scratch = Scratch::new(128 << 20);
    let image = image(&scratch);
    for (line, why) in [
        ("nothing", "`nothing` is no command"),
        ("check", "leave the shell first"),
        ("ls 'open", "a quote is not closed"),
        ("rm *.none", "nothing matches `*.none`"),
        ("cd top", "not a directory"),
        ("cd nowhere", "no such file"),
        ("pwd more", "pwd takes nothing"),
        ("ls --unknown", "--unknown"),
    ] {
        let output = common::uext4(shell(&image, &[line]));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{line}: {told}");
        assert!(told.contains(why), "{line}: {told}");
    }
    // Nothing is changed in a volume that is open for reading, and nobody else writes meanwhile.
    let lines = [shell(&image, &["rm top"]), vec!["-r".into()]].concat();
    let output = common::uext4(lines);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("/top: read-only"), "{told}");
    let before = fs::read(&image).unwrap();
    let lines = [shell(&image, &["ls", "cat top"]), vec!["-r".into()]].concat();
    good(lines);
    assert!(fs::read(&image).unwrap() == before);
}

#[test]
fn one_transaction_holds_a_script_however_the_volume_is_named() {
    let scratch = Scratch::new(128 << 20);
    let image = image(&scratch);
    let lines: Vec<String> = (0..20).map(|number| format!("mkdir d{number}")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let sequence = || -> u32 {
        let told = uext4_testkit::debugfs(&image, "logdump -S");
        let line = told.lines().find(|line| line.starts_with("Journal sequence:")).unwrap();
        u32::from_str_radix(line.split("0x").nth(1).unwrap().trim(), 16).unwrap()
    };
    for name in [image.as_os_str(), OsStr::new("image")] {
        let before = sequence();
        let mut command = common::command(shell(Path::new(name), &lines));
        let output = command.current_dir(scratch.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The commit, and what a close and an open for writing add.
        let commits = sequence() - before;
        assert!((1..6).contains(&commits), "{name:?}: {commits}");
        good(shell(&image, &["rmdir d*"]));
    }
    // A command with an overlay of its own is not carried out on the volume beneath.
    let line = format!("rm --overlay '{}' top", scratch.file("overlay").display());
    let output = common::uext4(shell(&image, &[&line]));
    assert!(!output.status.success());
    assert_eq!(text(shell(&image, &["cat top"])), "top");
}

#[test]
fn an_editor_changes_a_file() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(128 << 20);
    let image = image(&scratch);
    let mut command =
        common::command(shell(&image, &["edit top", "edit etc/created", "cat top etc/created"]));
    let editor = scratch.file("editor");
    fs::write(&editor, "#!/bin/sh\nprintf edited >> \"$2\"\n").unwrap();
    fs::set_permissions(&editor, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let output = command.env("VISUAL", format!("{} argument", editor.display())).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(told, "topeditededited", "{}", String::from_utf8_lossy(&output.stderr));
    e2fsck_clean(&image);
}
