//! Owners, modes and times that are said beside the inputs.

use crate::common::{Tar, described, find, gather_with, host, item, run, same};
use std::fs::{self, File};
use std::path::Path;
use uext4::Timestamp;
use uext4::mkfs::ItemKind;
use uext4_testkit::{Need, Scratch, needs};
use uext4_transfer::{ArchiveInput, Failures, Fakeroot, GatherOptions, Gathered, Gathering};

fn archive(scratch: &Scratch) -> std::path::PathBuf {
    let path = scratch.file("a.tar");
    let tar = Tar::default().records(b'x', &[("uid", "1000"), ("gid", "1001"), ("mtime", "900.5")]);
    fs::write(&path, tar.file("d/a", "a").end()).unwrap();
    path
}

#[test]
fn owners_and_times_of_options_count() {
    let scratch = Scratch::new(1 << 20);
    let path = archive(&scratch);
    let time = Timestamp { seconds: 5000, nanoseconds: 7 };
    let found =
        gather_with(GatherOptions { time, latest: Some(800), ..GatherOptions::default() }, &path).unwrap();
    assert_eq!(item(&found.tree, "d/a").modified, Timestamp { seconds: 800, nanoseconds: 0 });
    assert_eq!(item(&found.tree, "d").modified.seconds, 800, "made later than the bound");
    assert_eq!(item(&found.tree, "/").modified.seconds, 800);
    let found =
        gather_with(GatherOptions { time, latest: Some(901), ..GatherOptions::default() }, &path).unwrap();
    assert_eq!(item(&found.tree, "d/a").modified.nanoseconds, 500_000_000);
    let found = gather_with(GatherOptions { time, ..GatherOptions::default() }, &path).unwrap();
    assert_eq!(item(&found.tree, "d").modified, time);
    let found =
        gather_with(GatherOptions { owner: Some((3, 4)), ..GatherOptions::default() }, &path).unwrap();
    for name in ["d/a", "d", "/"] {
        let item = item(&found.tree, name);
        assert_eq!((item.uid, item.gid), (3, 4), "{name}");
    }
    let (users, groups) =
        (vec!["1000:0".parse().unwrap(), "0:70:10".parse().unwrap()], vec!["1:2:2000".parse().unwrap()]);
    let found = gather_with(GatherOptions { users, groups, ..GatherOptions::default() }, &path).unwrap();
    let owner = |name| (item(&found.tree, name).uid, item(&found.tree, name).gid);
    assert_eq!((owner("d/a"), owner("d")), ((0, 1002), (70, 0)));
}

fn with_manifest(archive: &Path, manifest: &Path) -> Result<Gathered, Failures> {
    let mut gathering = Gathering::new(GatherOptions { owner: Some((9, 9)), ..GatherOptions::default() });
    gathering.archive(archive, ArchiveInput::File(File::open(archive).unwrap()))?;
    gathering.mtree(manifest)?;
    gathering.finish()
}

#[test]
fn a_manifest_changes_and_adds() {
    let scratch = Scratch::new(1 << 20);
    let path = archive(&scratch);
    let manifest = scratch.file("manifest");
    let text = "#mtree
/set uid=1 gid=2
. type=dir mode=0711
    d type=dir mode=2750
    a type=file mode=4755 \\
 time=5.6
	null type=char device=native,1,3 mode=666
..
dev type=dir uname=root uid=7
  b\\040c type=link link=d/a
  pipe type=fifo
..
/unset uid
./deep/er/x type=block device=0x801 gname=root
nothing type=file optional
";
    fs::write(&manifest, text).unwrap();
    let found = with_manifest(&path, &manifest).unwrap();
    let shown = |name: &str| {
        let item = item(&found.tree, name);
        (item.mode, item.uid, item.gid)
    };
    assert_eq!(shown("/"), (0o711, 1, 2));
    assert_eq!((shown("d"), shown("d/a")), ((0o2750, 1, 2), (0o4755, 1, 2)));
    assert_eq!(item(&found.tree, "d/a").modified, Timestamp { seconds: 5, nanoseconds: 6 });
    assert_eq!(item(&found.tree, "d/null").kind, ItemKind::Char(1, 3));
    assert_eq!(item(&found.tree, "dev/b c").kind, ItemKind::Symlink(b"d/a".to_vec()));
    assert_eq!((shown("dev"), shown("dev/pipe")), ((0o755, 7, 2), (0o644, 1, 2)));
    assert_eq!(item(&found.tree, "deep/er/x").kind, ItemKind::Block(8, 1));
    assert_eq!((shown("deep/er/x"), shown("deep")), ((0o644, 9, 0), (0o755, 9, 9)));
    assert!(find(&found.tree, "nothing").is_none());
    let wrong = [
        "nothing type=file",
        "d type=file",
        "x type=char",
        "x type=link",
        "..",
        "./../x type=dir",
        "d mode=u+x",
        "d uid=-1",
        "d uname=nobody-has-this-name",
        "d time=x",
        "d\\q type=dir",
        "d/a/b type=dir",
        "x type=door",
    ];
    fs::write(&manifest, wrong.join("\n")).unwrap();
    let failures = with_manifest(&path, &manifest).unwrap_err();
    assert_eq!(failures.errors.len(), wrong.len(), "{failures}");
    assert!(with_manifest(&path, &scratch.file("missing")).is_err());
}

#[test]
fn a_manifest_of_bsdtar_gives_back_what_an_archive_lost() {
    needs!(Need::Root, Need::Tool("bsdtar"), Need::Tool("tar"));
    let scratch = Scratch::new(16 << 20);
    let tree = scratch.path().join("tree");
    fs::create_dir_all(tree.join("a b/c#d")).unwrap();
    fs::write(tree.join("a b/file\nname"), b"x").unwrap();
    std::os::unix::fs::symlink("to where", tree.join("a b/link")).unwrap();
    run(&["chmod", "4750", "a b/file\nname"], &tree);
    run(&["chown", "-h", "77:88", "a b/link", "a b/c#d", "a b/file\nname"], &tree);
    run(&["mknod", "node", "b", "7", "300"], &tree);
    run(&["bsdtar", "-cf", "../manifest", "--format=mtree", "--options=mtree:all", "."], &tree);
    run(
        &[
            "tar",
            "-cf",
            "../a.tar",
            "--owner=1",
            "--group=1",
            "--mode=000",
            "--mtime=@5",
            "--exclude=node",
            ".",
        ],
        &tree,
    );
    let found = with_manifest(&scratch.file("a.tar"), &scratch.file("manifest")).unwrap();
    same(&host(&tree), &described(&found));
}

#[test]
fn what_an_ordinary_user_made_under_fakeroot_is_what_it_saw() {
    needs!(Need::Root, Need::Tool("fakeroot"), Need::Tool("setpriv"));
    let scratch = Scratch::new(16 << 20);
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).unwrap();
    run(&["chmod", "755", "."], scratch.path());
    run(&["touch", "state"], scratch.path());
    run(&["chown", "65534:65534", "tree", "state"], scratch.path());
    let script =
        "touch f g; chown 7:8 f; mknod n c 5 300; mkdir d; chmod 2750 d; ln f h; ln -s x y; chown -h 5:6 y";
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    run(&[&user[..], &["fakeroot", "-s", "../state", "sh", "-ec", script]].concat(), &tree);
    let fakeroot = Some(Fakeroot::read(&scratch.file("state")).unwrap());
    let mut gathering = Gathering::new(GatherOptions { fakeroot, ..GatherOptions::default() });
    gathering.host(&tree).unwrap();
    let found = gathering.finish().unwrap();
    let owner = |name: &str| (item(&found.tree, name).uid, item(&found.tree, name).gid);
    assert_eq!(
        (owner("f"), owner("h"), owner("y"), owner("g"), owner("/")),
        ((7, 8), (7, 8), (5, 6), (0, 0), (0, 0))
    );
    assert_eq!(item(&found.tree, "n").kind, ItemKind::Char(5, 300));
    assert_eq!(item(&found.tree, "d").mode, 0o2750);
    fs::write(scratch.file("state"), "dev=1,ino=2\n").unwrap();
    assert!(Fakeroot::read(&scratch.file("state")).is_err());
}
