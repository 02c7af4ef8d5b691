//! Volumes on images of a Ceph cluster, by the command line. Mounts are in `mount/rbd.rs`.

use crate::common::{command, good, json, text, uext4};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use uext4_testkit::oracle::e2fsck_clean;
use uext4_testkit::{Ceph, Need, RbdImage, Scratch, needs};

/// The volume on the image is without damage, for uext4 and for e2fsck.
#[track_caller]
pub(crate) fn assert_clean(image: &RbdImage<'_>) {
    good(["check", &image.spec()]);
    let scratch = Scratch::new(96 << 20);
    let file = scratch.file("exported.img");
    image.export(&file);
    e2fsck_clean(&file);
}

/// Runs it again while the image is in use by a client that died.
#[track_caller]
pub(crate) fn good_when_free(args: &[&str]) -> String {
    let start = Instant::now();
    loop {
        let output = uext4(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap();
        }
        assert!(said.contains("in use by client."), "{args:?}: {said}");
        assert!(start.elapsed() < Duration::from_secs(60), "{args:?}: {said}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn tree(directory: &Path) {
    std::fs::create_dir_all(directory.join("a/b")).unwrap();
    for (name, length) in [("one", 10), ("a/two", 70_000), ("a/b/three", 5 << 20)] {
        std::fs::write(directory.join(name), crate::common::pattern(length)).unwrap();
    }
}

#[test]
fn a_volume_lives_on_an_image() {
    needs!(Need::Ceph, Need::Tool("e2fsck"));
    let ceph = Ceph::shared();
    let image = ceph.image(64, &[]);
    let spec = image.spec();
    assert!(text(["mkfs", &spec]).contains("64 MiB"));
    let source = Scratch::new(32 << 20);
    tree(source.path());
    let root = format!("{spec}:/");
    good([&*"cp".to_owned(), "-r", &source.file("a").display().to_string(), &root]);
    assert_clean(&image);

    let device = &json(["info", "--json", &spec])["device"];
    assert_eq!((device["engine"].as_str(), device["locator"].as_str()), (Some("rbd"), Some(&*image.name)));
    let notes = device["notes"].to_string();
    assert!(notes.contains("objects of 4096 KiB") && notes.contains("exclusive-lock"), "{notes}");

    ceph.run("rbd", &["snap", "create", "--no-progress", &format!("{}@before", image.name)]);
    good(["rm", "-r", &format!("{spec}:/a/b")]);
    assert_clean(&image);
    // The snapshot has it.
    let old = format!("{}:/a/b/three", image.spec_of("@before"));
    assert!(good(["cat", &old]) == crate::common::pattern(5 << 20));
    let refused = uext4(["mkdir", &format!("{}:/new", image.spec_of("@before"))]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("a snapshot is only read"), "{said}");
}

/// A shell that has the volume open for writing and has run its first lines.
fn shell(spec: &str, lines: &str) -> Child {
    let mut command = command(["shell", spec]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.as_mut().unwrap();
    writeln!(stdin, "{lines}\nls /").unwrap();
    let mut said = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    while !said.contains("lost+found") {
        assert_ne!(output.read_line(&mut said).unwrap(), 0, "{said}");
    }
    child
}

/// A killed client counts until the cluster has forgotten it. Then its volume is recovered.
#[test]
fn the_volume_of_a_killed_client_is_free_after_a_while() {
    needs!(Need::Ceph, Need::Tool("e2fsck"));
    let ceph = Ceph::shared();
    let image = ceph.image(64, &[]);
    let spec = image.spec();
    good(["mkfs", &spec]);
    let mut child = shell(&spec, "mkdir /kept");
    for args in [["mkdir", &format!("{spec}:/second")], ["ls", &format!("{spec}:/")]] {
        let refused = uext4(args);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("in use by client."), "{args:?}: {said}");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(String::from_utf8_lossy(&uext4(["mkdir", &format!("{spec}:/x")]).stderr).contains("in use"));
    good_when_free(&["mkdir", &format!("{spec}:/second")]);
    assert!(text(["ls", &format!("{spec}:/")]).contains("second"));
    assert_clean(&image);
}

/// What a client meets that was stopped until the cluster had forgotten it, as a suspended machine is.
#[derive(Debug, PartialEq, Eq)]
enum Meanwhile {
    /// Another client has the image. This one is on the blocklist.
    Refused,
    /// The same, but somebody has left the blocklist out.
    NotRefused,
    /// Another client had the image, and the time of the blocklist is over.
    Over,
}

#[test]
fn the_volume_of_a_client_that_slept_is_lost_to_it() {
    needs!(Need::Ceph, Need::Tool("e2fsck"));
    let ceph = Ceph::shared();
    for meanwhile in [Meanwhile::Refused, Meanwhile::NotRefused, Meanwhile::Over] {
        let image = ceph.image(64, &[]);
        let spec = image.spec();
        good(["mkfs", &spec]);
        let mut first = shell(&spec, "mkdir /kept\nsync");
        let address = image.lock("address");
        let signal = |signal| kill_process(Pid::from_child(&first), signal).unwrap();
        signal(Signal::STOP);
        let start = Instant::now();
        while ceph.run("rbd", &["status", &image.name]).contains("watcher=") {
            assert!(start.elapsed() < Duration::from_secs(60), "the cluster does not forget it");
            std::thread::sleep(Duration::from_millis(200));
        }
        if meanwhile == Meanwhile::NotRefused {
            image.break_lock_without_blocklist();
        }
        let mut next = Some(shell(&spec, "mkdir /next\nsync"));
        let end = |next: &mut Option<Child>| {
            // It ends with its input.
            let ended = next.take().map(|next| next.wait_with_output().unwrap());
            assert!(ended.is_none_or(|output| output.status.success()));
        };
        if meanwhile == Meanwhile::Over {
            end(&mut next);
            ceph.run("ceph", &["osd", "blocklist", "rm", &address]);
        }
        signal(Signal::CONT);
        // It has time to get its watch, and the lock if nobody has it.
        std::thread::sleep(Duration::from_secs(15));
        writeln!(first.stdin.take().unwrap(), "mkdir /late\nsync").unwrap();
        let output = first.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let lost = !output.status.success() && said.contains("has lost the exclusive lock");
        assert!(lost, "{meanwhile:?}: {said}");
        end(&mut next);
        let names = text(["ls", &format!("{spec}:/")]);
        assert!(names.contains("kept") && names.contains("next") && !names.contains("late"), "{names}");
        assert_clean(&image);
    }
}

/// A petabyte takes some hundred requests and some megabytes: with clusters there are few groups, and the journal is
/// not written over, since the image has no data where it goes.
#[test]
fn a_volume_of_a_petabyte_is_made_at_once() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(1 << 30, &["--object-size", "32M"]);
    let spec = image.spec();
    let start = Instant::now();
    let options = ["--", "mkfs", "-O", "bigalloc", "-C", "1M", "-G", "1024", &spec];
    let traced = uext4([&["trace"][..], &options].concat());
    let (took, trace) = (start.elapsed(), String::from_utf8_lossy(&traced.stderr).into_owned());
    assert!(traced.status.success(), "{trace}");
    let (writes, bytes) = written(&trace);
    println!("mkfs of 1 PiB: {took:?}, {writes} writes of {bytes} bytes");
    assert!(writes <= 400 && bytes <= 256 << 20, "{writes} writes of {bytes} bytes");
    assert!(took < Duration::from_secs(60), "{took:?}");
    let info = json(["info", "--json", &spec]);
    assert_eq!(info["device"]["size"].as_u64(), Some(1 << 50));
    good(["mkdir", &format!("{spec}:/new")]);
    assert!(text(["ls", &format!("{spec}:/")]).contains("new"));
    image.leave();
}

/// Writes and their bytes, by the last line of a trace.
fn written(trace: &str) -> (u64, u64) {
    let total = trace.lines().rfind(|line| line.starts_with("total:")).expect("totals");
    let words: Vec<_> = total.split([' ', '(']).filter(|word| !word.is_empty()).collect();
    let at = words.iter().position(|word| *word == "writes").expect("writes");
    (words[at - 1].parse().unwrap(), words[at + 1].parse().unwrap())
}

/// The data, the blocks of the journal, the commit record. A flush is no request.
#[test]
fn an_append_with_fsync_is_three_writes() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(256, &[]);
    let spec = image.spec();
    good(["mkfs", "-b", "4096", &spec]);
    let run = |appends: u64| {
        let file = format!("{spec}:/file");
        let mut args = vec!["trace".to_owned(), "--".into(), "io".into(), "-f".into(), "-t".into(), file];
        for at in 0..appends {
            args.extend(["-c".into(), format!("pwrite {}k 4k", 4 * at), "-c".into(), "fsync".into()]);
        }
        let traced = uext4(args);
        assert!(traced.status.success(), "{}", String::from_utf8_lossy(&traced.stderr));
        written(&String::from_utf8_lossy(&traced.stderr)).0
    };
    // The first run makes the file. Opening and closing are in each.
    run(1);
    assert_eq!(run(11) - run(1), 30);
}
