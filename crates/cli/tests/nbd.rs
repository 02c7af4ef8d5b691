//! Volumes on servers of NBD.

use crate::common;
use common::{bad, command, good, json, text, uext4};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use uext4_testkit::oracle::{self, e2fsck_clean};
use uext4_testkit::{NbdServer, Need, Scratch, needs};

/// A file of 64 MiB, and a server that has it.
fn served(scratch: &Scratch, filters: &[&str], options: &[&str]) -> (PathBuf, NbdServer) {
    let disk = scratch.sparse_file("disk", 64 << 20);
    let file = disk.display().to_string();
    let server = NbdServer::nbdkit(&[filters, &["file", &file], options].concat());
    (disk, server)
}

/// A tree of `files` files.
fn tree(scratch: &Scratch, files: usize) -> PathBuf {
    let source = scratch.file("source");
    fs::create_dir(&source).unwrap();
    for number in 0..files {
        fs::write(source.join(number.to_string()), common::pattern(number % 90 * 700)).unwrap();
    }
    source
}

/// What was written is in the file after a kill: the server's own writes are complete once it has ended.
fn judge(disk: &Path, mut server: NbdServer) {
    server.kill();
    e2fsck_clean(disk);
}

#[test]
fn a_volume_lives_on_a_server() {
    needs!(Need::Tool("nbdkit"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let (disk, server) = served(&scratch, &[], &[]);
    let device = server.device("");
    let inside = |path: &str| format!("{device}:{path}");
    let empty = bad(1, ["info", &device]);
    assert_eq!(empty.matches("nbd+unix:///?socket=").count(), 1, "{empty}");
    good(["mkfs", &device]);
    assert!(bad(1, ["mkfs", &device]).contains("--force"), "a volume is there");
    let source = tree(&scratch, 120);
    good(["cp", "-r", source.to_str().unwrap(), &inside("/tree")]);
    let said = json(["info", "--json", &device]);
    let facts = &said["device"];
    assert_eq!((facts["engine"].as_str(), facts["sharing"].as_str()), (Some("nbd+unix"), Some("unlocked")));
    assert_eq!(facts["size"], 64 << 20);
    let notes = facts["notes"].to_string();
    assert!(notes.contains("block sizes") && notes.contains("no lock"), "{notes}");
    assert!(text(["info", &device]).contains("no lock keeps other clients"));
    let language = ["-c", "pwrite -S 0x5a 3000 300k", "-c", "fsync", "-c", "fpunch 8k 64k"];
    good([&["io", "-f", &inside("/file")][..], &language].concat());
    assert_eq!(good(["cat", &inside("/tree/89")]), common::pattern(89 * 700));
    assert_eq!(text(["ls", &inside("/tree")]).lines().count(), 120);
    let back = scratch.file("back");
    good(["cp", "-r", &inside("/tree"), back.to_str().unwrap()]);
    for number in 0..120 {
        let name = number.to_string();
        assert_eq!(fs::read(source.join(&name)).unwrap(), fs::read(back.join(&name)).unwrap());
    }
    good(["trim", &device]);
    assert!(text(["check", &device]).contains(": clean:"));
    judge(&disk, server);
    let file = good(["cat", &format!("{}:/file", disk.display())]);
    assert!(file[3000..8192].iter().chain(&file[73728..310_200]).all(|byte| *byte == 0x5a));
}

/// A new volume over old bytes, and a file with zeros in all its blocks: the zeros are no data on the wire.
#[test]
fn zeros_are_not_sent() {
    needs!(Need::Tool("nbdkit"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(512 << 20);
    let disk = scratch.file("disk");
    fs::write(&disk, vec![0xa5; 192 << 20]).unwrap();
    let log = scratch.file("log");
    let logfile = format!("logfile={}", log.display());
    let server = NbdServer::nbdkit(&["--filter=log", "file", disk.to_str().unwrap(), &logfile]);
    let device = server.device("");
    good(["mkfs", "-E", "nodiscard", "-J", "size=32", &device]);
    good(["prepare", &format!("{device}:/file"), "64M"]);
    let count = |kind: &str| NbdServer::logged(&log, kind).iter().sum::<u64>();
    let (zeros, writes) = (count("Zero"), count("Write"));
    assert!(zeros >= 95 << 20 && writes < 4 << 20, "{zeros} bytes of zeros, {writes} bytes written");
    assert!(good(["cat", &format!("{device}:/file")]).iter().all(|byte| *byte == 0));
    judge(&disk, server);
}

#[test]
fn a_partition_on_a_server_and_qemus_server() {
    needs!(Need::Tool("qemu-nbd"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let disk = scratch.sparse_file("disk", 64 << 20);
    let server = NbdServer::qemu(&["--format=raw", "--export-name=disk one", disk.to_str().unwrap()]);
    let device = server.device("disk%20one");
    assert!(bad(1, ["info", &server.device("other")]).contains("connect"));
    good(["mkfs", &device]);
    let source = tree(&scratch, 20);
    good(["cp", "-r", source.to_str().unwrap(), &format!("{device}:/tree")]);
    assert!(text(["info", &device]).contains("one connection"));
    judge(&disk, server);
}

/// Delayed writes, so that the server dies in their middle. What the command before had acknowledged stays.
#[test]
fn a_killed_server_aborts_the_volume() {
    needs!(Need::Tool("nbdkit"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let (disk, mut server) = served(&scratch, &["--filter=delay"], &["wdelay=5ms"]);
    let device = server.device("");
    good(["mkfs", &device]);
    let source = tree(&scratch, 300);
    good(["cp", source.join("77").to_str().unwrap(), &format!("{device}:/kept")]);
    let child = command(["cp", "-r", source.to_str().unwrap(), &format!("{device}:/torn")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let begin = Instant::now();
    server.kill();
    let output = child.wait_with_output().unwrap();
    assert!(begin.elapsed() < Duration::from_secs(30), "it noticed");
    let said = oracle::text(&output);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("connection is lost") && !said.contains("invalid state"), "{said}");
    server.restart();
    assert_eq!(good(["cat", &format!("{device}:/kept")]), common::pattern(77 * 700));
    good(["mkdir", &format!("{device}:/last")]);
    judge(&disk, server);
}

#[test]
fn a_read_only_export_is_read() {
    needs!(Need::Tool("nbdkit"), Need::Tool("mke2fs"));
    let volume = common::volume();
    let server = NbdServer::nbdkit(&["--readonly", "file", volume.path().to_str().unwrap()]);
    let device = server.device("");
    assert_eq!(good(["cat", &format!("{device}:/hello")]), b"world\n");
    let refused = bad(1, ["mkdir", &format!("{device}:/new")]);
    assert!(refused.contains("the export is read-only"), "{refused}");
    // Changes go beside it.
    let scratch = Scratch::new(16 << 20);
    let overlay = scratch.file("overlay").display().to_string();
    let refused = uext4(["--overlay", &overlay, "ls", &format!("{device}:/")]);
    assert!(refused.status.success() || !refused.stderr.is_empty());
}

/// Hidden by an empty file in its place, in a mount table of our own.
#[test]
fn root_without_the_library_the_command_names_its_package() {
    needs!(Need::Root, Need::Runs(&["unshare", "--mount", "true"]));
    let libraries = std::process::Command::new("sh")
        .args(["-c", "ldconfig -p | sed -n 's/.*libnbd\\.so\\.0 .*=> //p'"])
        .output()
        .unwrap();
    let libraries = String::from_utf8(libraries.stdout).unwrap();
    let hide: String = libraries
        .lines()
        .map(|library| format!("mount --bind /dev/null \"$(realpath {library})\" && "))
        .collect();
    let program = env!("CARGO_BIN_EXE_uext4");
    let run = |arguments: &str| {
        let script = format!("{hide} exec {program} {arguments}");
        std::process::Command::new("unshare").args(["--mount", "sh", "-c", &script]).output().unwrap()
    };
    let output = run("info nbd://127.0.0.1:1/");
    let said = oracle::text(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("libnbd.so.0") && said.contains("libnbd0 on Debian"), "{said}");
    assert!(run("--version").status.success());
}
