//! `uext4 serve`: the program with real clients, and what becomes of it when it is told to end or is killed.

#[path = "../../../serve/tests/common/client.rs"]
mod client;
mod kills;
mod programs;

use crate::common;

use client::Client;
use common::bad;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use uext4_testkit::{NbdServer, Need, Scratch, Volume, VolumeBuilder, e2fsck_clean, needs};

/// Bytes of `/disk`.
const SIZE: u64 = 16 << 20;

/// A volume with a file `/disk`: 2 MiB of bytes that are no zeros, and a hole.
fn image() -> Volume {
    let source = Scratch::new(16 << 20);
    std::fs::write(source.file("disk"), contents()).unwrap();
    std::fs::OpenOptions::new().write(true).open(source.file("disk")).unwrap().set_len(SIZE).unwrap();
    VolumeBuilder::new(64 << 20).args(["-b", "4096"]).from_dir(source.path()).build()
}

fn contents() -> Vec<u8> {
    (0..2 << 20).map(|at| 1 + ((at / 251 + at) % 255) as u8).collect()
}

/// A server of our own. However the test ends, it goes.
struct Serving {
    server: Child,
    socket: PathBuf,
    /// What it said when it was ready.
    said: String,
}

impl Serving {
    /// Serves `what` at a socket in `scratch`, and waits until clients can connect.
    fn new(what: impl Into<OsString>, scratch: &Scratch, more: &[&str]) -> Serving {
        let socket = scratch.file("s");
        let mut command = common::command(["serve"]);
        command.arg(what.into()).arg("--socket").arg(&socket).args(more);
        let mut server =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        let mut serving = Serving { server, socket, said };
        if serving.said.is_empty() {
            let (status, stderr) = serving.end_of();
            panic!("{status}: {stderr}");
        }
        serving
    }

    fn file(image: &Volume, scratch: &Scratch) -> Serving {
        Serving::new(common::at(image, "/disk"), scratch, &[])
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }

    fn client(&self) -> Client {
        Client::new(&self.socket, false)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.server), signal).unwrap();
    }

    /// Waits for the end: status, and standard error.
    fn end_of(&mut self) -> (ExitStatus, String) {
        let mut stderr = String::new();
        self.server.stderr.as_mut().unwrap().read_to_string(&mut stderr).unwrap();
        (self.server.wait().unwrap(), stderr)
    }

    /// Ends it as a user would, and asserts that all is well.
    fn end(mut self) {
        self.signal(Signal::TERM);
        let (status, stderr) = self.end_of();
        assert!(status.success(), "{status}: {stderr}");
        assert_eq!(stderr, "");
        assert!(!self.socket.exists());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ended = self.server.kill();
        let _status = self.server.wait();
    }
}

#[test]
fn the_line_that_says_it_is_ready() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (image, scratch) = (image(), Scratch::new(1 << 20));
    let serving = Serving::file(&image, &scratch);
    let name = format!("{}:/disk", image.path().display());
    assert_eq!(serving.said, format!("serving {name} ({SIZE} bytes) at {}\n", serving.uri()));
    assert_eq!(serving.client().read(0, 100).unwrap(), contents()[..100]);
    serving.end();
    e2fsck_clean(image.path());
    let serving = Serving::new(image.path(), &scratch, &["--read-only", "--export", "a b", "--listen", ":0"]);
    let said = format!("serving {} ({} bytes, read-only) at ", image.path().display(), 64 << 20);
    let uris = serving.said.strip_prefix(&said).unwrap().trim_end().split(" and ").collect::<Vec<_>>();
    assert_eq!(uris[0], format!("nbd+unix:///a%20b?socket={}", serving.socket.display()));
    assert!(uris[1].starts_with("nbd://127.0.0.1:") && uris[1].ends_with("/a%20b"), "{}", uris[1]);
    serving.end();
}

#[test]
fn each_signal_ends_it_with_all_written_home() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (image, scratch) = (image(), Scratch::new(1 << 20));
    for (byte, signal) in [(1, Signal::TERM), (2, Signal::INT), (3, Signal::HUP)] {
        let mut serving = Serving::file(&image, &scratch);
        let mut client = serving.client();
        assert_eq!(client.write(0, 9 << 20, &[byte; 5000]), 0);
        serving.signal(signal);
        let (status, stderr) = serving.end_of();
        assert!(status.success(), "{status}: {stderr}");
        assert!(!serving.socket.exists());
        e2fsck_clean(image.path());
        assert_eq!(common::content(&image, "/disk")[9 << 20..][..5000], [byte; 5000]);
    }
}

/// A device whose server says nothing: the first signal waits for it, the second one does not.
#[test]
fn a_second_signal_ends_it_although_its_device_hangs() {
    needs!(Need::Tool("nbdkit"));
    let scratch = Scratch::new(1 << 20);
    let silent = UnixListener::bind(scratch.file("silent")).unwrap();
    let mut command = common::command(["serve"]);
    command.arg(format!("nbd+unix:///?socket={}", scratch.file("silent").display()));
    command.arg("--socket").arg(scratch.file("s"));
    let mut server = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let _client = silent.accept().unwrap();
    let end = |server: &Child| kill_process(Pid::from_child(server), Signal::TERM).unwrap();
    end(&server);
    end(&server);
    std::thread::sleep(Duration::from_millis(1200));
    let waits = server.try_wait().unwrap();
    end(&server);
    let begun = Instant::now();
    while server.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = server.try_wait().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(waits, None, "two signals in a row are one");
    assert_eq!(ended.and_then(|status| status.signal()), Some(Signal::TERM.as_raw()));
}

/// Hundredths of a second for which a process has used processors.
fn used(process: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// Clients have five seconds to take their last answers. A device may take as long as it needs.
#[test]
fn a_stop_that_waits_for_its_device_sleeps() {
    needs!(Need::Tool("nbdkit"));
    let scratch = Scratch::new(1 << 20);
    let slow = NbdServer::nbdkit(&["--filter=delay", "memory", "1M", "wdelay=9"]);
    let mut serving = Serving::new(slow.device(""), &scratch, &[]);
    let mut client = serving.client();
    client.put(&[&client::header(client::WRITE, 0, 1, 0, 512)[..], &[7; 512]].concat());
    std::thread::sleep(Duration::from_millis(300));
    serving.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(5500));
    let before = used(&serving.server);
    std::thread::sleep(Duration::from_millis(1500));
    let ticks = used(&serving.server) - before;
    assert!(ticks < 8, "{ticks} ticks of 150");
    assert_eq!(client.simple(), (1, 0));
    let (status, stderr) = serving.end_of();
    assert!(status.success() && stderr.is_empty(), "{status}: {stderr}");
}

#[test]
fn once_ends_with_its_client() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (image, scratch) = (image(), Scratch::new(1 << 20));
    let mut serving = Serving::new(common::at(&image, "/disk"), &scratch, &["--once", "--connections", "1"]);
    let mut client = serving.client();
    assert_eq!(client.write(0, 0, &[7; 4096]), 0);
    drop(client);
    let (status, stderr) = serving.end_of();
    assert!(status.success() && stderr.is_empty(), "{status}: {stderr}");
    e2fsck_clean(image.path());
    assert_eq!(common::content(&image, "/disk")[..4096], [7; 4096]);
}

#[test]
fn a_client_that_breaks_the_protocol_is_a_warning() {
    needs!(Need::Tool("mke2fs"));
    let (image, scratch) = (image(), Scratch::new(1 << 20));
    let mut serving = Serving::file(&image, &scratch);
    let mut client = serving.client();
    client.put(&[0; 28]);
    client.closed();
    assert_eq!(serving.client().read(0, 10).unwrap(), contents()[..10]);
    serving.signal(Signal::TERM);
    let (status, stderr) = serving.end_of();
    assert!(status.success());
    let name = format!("{}:/disk", image.path().display());
    assert_eq!(
        stderr,
        format!("uext4 serve: warning: {name}: the client sent no request where one was due\n")
    );
}

#[test]
fn what_cannot_be_served() {
    needs!(Need::Tool("mke2fs"));
    let (image, scratch) = (image(), Scratch::new(1 << 20));
    let socket = scratch.file("s");
    let refused = |status, what: OsString, more: &[&str]| {
        let words =
            [&[OsString::from("serve"), what][..], &more.iter().map(OsString::from).collect::<Vec<_>>()]
                .concat();
        bad(status, words)
    };
    let at = |path: &str| common::at(&image, path);
    let there = ["--socket", socket.to_str().unwrap()];
    for (status, line) in [
        (1, refused(1, at("/none"), &there)),
        (1, refused(1, at("/lost+found"), &there)),
        (1, refused(1, scratch.file("none").into(), &there)),
        (1, refused(1, at("/disk"), &["--socket", "/nowhere/s"])),
        (2, refused(2, at("/disk"), &["--listen", "elsewhere"])),
        (2, refused(2, at("/disk"), &["--connections", "0"])),
        (2, refused(2, at("/disk"), &["--force"])),
        (2, refused(2, at("/disk"), &["--socket", "s", "--export", &"n".repeat(4097)])),
    ] {
        assert!(line.starts_with("uext4 serve: "), "{status}: {line}");
        assert!(!socket.exists());
    }
    let serving = Serving::file(&image, &scratch);
    // Of the volume, and of the socket.
    assert!(refused(1, at("/disk"), &["--socket", "x"]).contains("in use"));
    let other = self::image();
    assert!(refused(1, common::at(&other, "/disk"), &there).contains("a server listens there"));
    serving.end();
    assert_eq!(bad(2, ["trace", "--", "serve", "disk.img"]), "uext4 serve: serve cannot be traced");
}

/// The host's file behind a path.
fn bytes_of(path: &Path) -> Vec<u8> {
    assert!(!path.as_os_str().as_bytes().is_empty());
    std::fs::read(path).unwrap()
}
