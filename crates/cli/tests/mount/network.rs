//! Mounts of volumes on servers: in its sandbox the server cannot connect, so it has its connections before.

use super::{Mounted, NEEDS, UEXT4};
use std::io::Read;
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::time::Duration;
use uext4_testkit::oracle::e2fsck_clean;
use uext4_testkit::{NbdServer, Need, Scratch, requirement};

#[test]
fn root_a_volume_on_a_server_is_mounted_by_several_connections() {
    let needs = [&NEEDS[..], &[Need::Tool("nbdkit")]].concat();
    if !requirement::require("mount::network::several_connections", &needs) {
        return;
    }
    let scratch = Scratch::new(256 << 20);
    let disk = scratch.sparse_file("disk", 64 << 20);
    let log = scratch.file("log");
    let (file, logfile) = (disk.display().to_string(), format!("logfile={}", log.display()));
    let mut server = NbdServer::nbdkit(&["--filter=log", "file", &file, &logfile]);
    let made = Command::new(UEXT4).args(["mkfs", &server.device("")]).status().unwrap();
    assert!(made.success());
    std::fs::write(&log, "").unwrap();
    // A path that holds where the command is started, not where its server runs.
    let mut command = Command::new(UEXT4);
    command.current_dir(server.socket().parent().unwrap());
    let mounted = Mounted::by(command, "nbd+unix:///?socket=socket", "sandbox=auto,commit=1");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let at = mounted.at(format!("file{thread}"));
            scope.spawn(move || {
                std::fs::write(&at, vec![thread; 3_000_000]).unwrap();
                std::fs::File::open(&at).unwrap().sync_all().unwrap();
            });
        }
    });
    for thread in 0..4u8 {
        assert!(std::fs::read(mounted.at(format!("file{thread}"))).unwrap() == vec![thread; 3_000_000]);
    }
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let source = format!("nbd+unix:///?socket={}", server.socket().display());
    assert!(table.lines().any(|line| line.split(' ').next() == Some(&source)), "{table}");
    mounted.unmount();
    let log = std::fs::read_to_string(&log).unwrap();
    let connects = log.lines().filter(|line| line.contains(" Connect ")).count();
    assert_eq!(connects, 4, "{log}");
    server.kill();
    e2fsck_clean(&disk);
}

/// Calls fail, nothing hangs, and the volume is sound afterwards.
#[test]
fn root_a_mount_whose_server_dies_fails_and_goes() {
    let needs = [&NEEDS[..], &[Need::Tool("nbdkit")]].concat();
    if !requirement::require("mount::network::server_dies", &needs) {
        return;
    }
    let scratch = Scratch::new(256 << 20);
    let disk = scratch.sparse_file("disk", 64 << 20);
    let mut server = NbdServer::nbdkit(&["file", &disk.display().to_string()]);
    assert!(Command::new(UEXT4).args(["mkfs", &server.device("")]).status().unwrap().success());
    let mut mounted = Mounted::new(server.device(""), "commit=1");
    std::fs::write(mounted.at("kept"), "kept").unwrap();
    std::fs::File::open(mounted.at("kept")).unwrap().sync_all().unwrap();
    server.kill();
    let lost = std::fs::write(mounted.at("lost"), vec![1; 1_000_000])
        .and_then(|()| std::fs::File::open(mounted.at("lost"))?.sync_all());
    assert!(lost.is_err());
    let umount = Command::new("umount").arg(mounted.path()).status().unwrap();
    assert!(umount.success());
    mounted.ended();
    server.restart();
    let kept = Command::new(UEXT4).args(["cat", &format!("{}:/kept", server.device(""))]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&kept.stdout), "kept");
    let made = Command::new(UEXT4).args(["mkdir", &format!("{}:/new", server.device(""))]).status().unwrap();
    assert!(made.success());
    server.kill();
    e2fsck_clean(&disk);
}

/// The background process does not outlive the command while it waits for the device.
#[test]
fn root_a_mount_that_waits_for_a_silent_server_ends_with_its_command() {
    if !requirement::require("mount::network::ends_with_its_command", &NEEDS) {
        return;
    }
    let scratch = Scratch::new(1 << 20);
    let silent = UnixListener::bind(scratch.file("silent")).unwrap();
    let device = format!("nbd+unix:///?socket={}", scratch.file("silent").display());
    let at = scratch.file("at");
    std::fs::create_dir(&at).unwrap();
    let mut command =
        Command::new(UEXT4).arg("mount").arg(device).arg(&at).stdout(Stdio::null()).spawn().unwrap();
    let (mut client, _) = silent.accept().unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    command.kill().unwrap();
    command.wait().unwrap();
    // The connection ends without a byte.
    assert_eq!(client.read(&mut [0; 64]).unwrap(), 0);
}
