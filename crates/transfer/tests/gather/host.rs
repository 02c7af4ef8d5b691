//! Directories of the host.

use crate::common::{described, host, run, same};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use uext4::mkfs::{ItemKind, Source};
use uext4_testkit::{Need, Scratch, needs};
use uext4_transfer::{Failures, GatherOptions, Gathered, Gathering};

fn gather(directory: &Path) -> Result<Gathered, Failures> {
    let mut gathering = Gathering::new(GatherOptions::default());
    gathering.host(directory)?;
    gathering.finish()
}

#[test]
fn a_directory_is_what_it_is_on_the_host() {
    needs!(Need::Root);
    let scratch = Scratch::new(64 << 20);
    let tree = scratch.path().join("tree");
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    for at in 0..40 {
        fs::write(tree.join(format!("a/b/{at}")), vec![at as u8; 1000 * at]).unwrap();
    }
    fs::hard_link(tree.join("a/b/7"), tree.join("seven")).unwrap();
    std::os::unix::fs::symlink("a/b", tree.join("link")).unwrap();
    run(&["mkfifo", "pipe"], &tree);
    run(&["mknod", "null", "c", "1", "3"], &tree);
    run(&["ln", "null", "zero"], &tree);
    let _socket = UnixListener::bind(tree.join("socket")).unwrap();
    run(&["chmod", "2751", "a/b/c"], &tree);
    run(&["setfattr", "-n", "trusted.x", "-v", "y", "a/b/7"], &tree);
    let file = File::create(tree.join("sparse")).unwrap();
    file.write_all_at(b"data", 1 << 20).unwrap();
    file.set_len(3 << 20).unwrap();
    let gathered = gather(&tree).unwrap();
    same(&host(&tree), &described(&gathered));
    assert!(gathered.data < 900_000, "the holes are kept: {}", gathered.data);
    let first = gathered.tree.names(uext4::mkfs::Tree::ROOT).map(|(name, _)| name.to_vec());
    assert!(first.is_sorted());
}

#[test]
fn a_file_that_changed_is_an_error_that_names_it() {
    let scratch = Scratch::new(1 << 20);
    for change in ["grow", "shrink", "replace", "touch", "remove", "link"] {
        let tree = scratch.path().join(change);
        fs::create_dir_all(tree.join("deep")).unwrap();
        let path = tree.join("deep/file");
        fs::write(&path, b"0123456789").unwrap();
        let gathered = gather(&tree).unwrap();
        let found = crate::common::item(&gathered.tree, "deep/file");
        let ItemKind::Regular(contents) = &found.kind else { panic!() };
        let mut buffer = [0; 10];
        if change != "link" {
            gathered.read(contents.key, 0, &mut buffer).unwrap();
            assert_eq!(&buffer, b"0123456789");
        }
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        match change {
            "grow" => file.set_len(11).unwrap(),
            "shrink" => file.set_len(9).unwrap(),
            "touch" => file.set_modified(std::time::UNIX_EPOCH).unwrap(),
            "replace" => {
                fs::write(tree.join("new"), b"0123456789").unwrap();
                fs::rename(tree.join("new"), &path).unwrap();
            }
            "remove" => fs::remove_file(&path).unwrap(),
            _ => {
                fs::remove_file(&path).unwrap();
                std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
            }
        }
        let read = gathered.read(contents.key, 0, &mut buffer);
        // One that is open already is still the file that was gathered.
        if !matches!(change, "replace" | "remove") {
            let error = read.unwrap_err().to_string();
            assert!(error.contains("deep/file"), "{change}: {error}");
        }
    }
}

#[test]
fn what_cannot_be_read_is_told_at_the_end() {
    needs!(Need::Root, Need::Runs(&["setpriv", "--version"]));
    let scratch = Scratch::new(1 << 20);
    let options = |scratch: &Scratch| GatherOptions {
        devices: uext4_transfer::Devices::of([]),
        spool: scratch.path().to_owned(),
        ..GatherOptions::default()
    };
    let missing = Gathering::new(options(&scratch)).host(&scratch.file("missing")).unwrap_err();
    assert_eq!(missing.errno(), 2, "{missing}");
    let file = scratch.file("file");
    fs::write(&file, b"x").unwrap();
    let plain = Gathering::new(options(&scratch)).host(&file).unwrap_err();
    assert_eq!(plain.errno(), 20, "{plain}");
}
