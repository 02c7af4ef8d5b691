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
fn what_an_ordinary_user_may_not_read_is_told_at_the_end() {
    needs!(Need::Root);
    let scratch = Scratch::new(1 << 20);
    run(&["chmod", "755", "."], scratch.path());
    let tree = scratch.path().join("tree");
    fs::create_dir_all(tree.join("closed")).unwrap();
    for name in ["open", "secret", "closed/x"] {
        fs::write(tree.join(name), b"x").unwrap();
    }
    run(&["chmod", "0600", "secret"], &tree);
    run(&["chmod", "0700", "closed"], &tree);
    // Of one thread.
    let nobody = rustix::process::Uid::from_raw(65534);
    let as_nobody = std::thread::spawn(move || {
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        gather(&tree).unwrap_err()
    });
    let failures = as_nobody.join().unwrap();
    let mut texts: Vec<String> = failures.errors.iter().map(ToString::to_string).collect();
    texts.sort();
    assert!(
        texts.len() == 2 && texts[0].contains("tree/closed") && texts[1].contains("tree/secret"),
        "{failures}"
    );
    assert!(failures.errors.iter().all(|error| error.errno() == 13), "{failures}");
}

#[test]
fn what_is_no_directory_and_the_device_are_refused() {
    let scratch = Scratch::new(1 << 20);
    let options = || GatherOptions::default();
    let missing = Gathering::new(options()).host(&scratch.file("missing")).unwrap_err();
    assert_eq!(missing.errno(), 2, "{missing}");
    let file = scratch.file("file");
    fs::write(&file, b"x").unwrap();
    let plain = Gathering::new(options()).host(&file).unwrap_err();
    assert_eq!(plain.errno(), 20, "{plain}");
    let spec: uext4::DeviceSpec = file.to_str().unwrap().parse().unwrap();
    let devices = uext4_transfer::Devices::of([&spec]);
    let mut gathering = Gathering::new(GatherOptions { devices, ..options() });
    gathering.host(scratch.path()).unwrap();
    let failures = gathering.finish().unwrap_err().to_string();
    assert!(failures.contains("is the device of the destination"), "{failures}");
}

#[test]
fn many_files_are_read_by_several_threads() {
    let scratch = Scratch::new(16 << 20);
    for at in 0..100_u32 {
        fs::write(scratch.file(at.to_string()), at.to_le_bytes().repeat(5000)).unwrap();
    }
    let gathered = gather(scratch.path()).unwrap();
    std::thread::scope(|scope| {
        for start in 0..4 {
            let gathered = &gathered;
            scope.spawn(move || {
                for at in (0..400_u32).map(|at| (at * 7 + start * 31) % 100) {
                    let found = crate::common::item(&gathered.tree, &at.to_string());
                    let ItemKind::Regular(known) = &found.kind else { panic!() };
                    // In parts, so that files stay open for the next one.
                    let mut bytes = vec![0; 20_000];
                    for (part, pos) in bytes.chunks_mut(7000).zip((0..).step_by(7000)) {
                        gathered.read(known.key, pos, part).unwrap();
                    }
                    assert_eq!(bytes, at.to_le_bytes().repeat(5000));
                }
            });
        }
    });
    assert!(fs::read_dir("/proc/self/fd").unwrap().count() < 100, "files stay open");
}

#[test]
fn directories_are_layers_too() {
    let scratch = Scratch::new(1 << 20);
    let (lower, upper) = (scratch.path().join("lower"), scratch.path().join("upper"));
    for (tree, names) in [(&lower, ["d/a", "d/b", "e"]), (&upper, ["d/b", "d/c", "e/x"])] {
        for name in names {
            fs::create_dir_all(tree.join(name).parent().unwrap()).unwrap();
            fs::write(tree.join(name), tree.as_os_str().as_encoded_bytes()).unwrap();
        }
    }
    let mut gathering = Gathering::new(GatherOptions::default());
    gathering.host(&lower).unwrap();
    gathering.host(&upper).unwrap();
    let found = gathering.finish().unwrap();
    assert_eq!(crate::common::paths(&found.tree), ["d/", "d/a", "d/b", "d/c", "e/", "e/x"]);
    for (path, tree) in [("d/a", &lower), ("d/b", &upper), ("e/x", &upper)] {
        let bytes = crate::common::contents(&found, crate::common::item(&found.tree, path));
        assert_eq!(bytes, tree.as_os_str().as_encoded_bytes());
    }
}

#[test]
fn paths_may_be_longer_than_a_call_takes() {
    let scratch = Scratch::new(1 << 20);
    let script =
        "n=$(printf 'n%.0s' $(seq 200)); for i in $(seq 50); do mkdir $n; cd -P $n; done; echo deep > file";
    run(&["bash", "-ec", script], scratch.path());
    let gathered = gather(scratch.path()).unwrap();
    let path = "n".repeat(200) + "/";
    let found = crate::common::item(&gathered.tree, &(path.repeat(50) + "file"));
    assert_eq!(crate::common::contents(&gathered, found), b"deep\n");
}
