//! `uext4 mount`: real mounts. The judges are the kernel's ext4 on a loop device, a model, and e2fsck.

mod confined;
mod data;
mod databases;
mod faults;
mod late;
mod life;
mod network;
mod overlay;
mod programs;
mod rbd;
mod sight;
mod stress;
mod transport;
mod tree;
mod users;

use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4_testkit::guard::{MachineLock, machine_lock};
use uext4_testkit::oracle::e2fsck_clean;
use uext4_testkit::{Need, Volume, VolumeBuilder};

/// What every test here needs.
const NEEDS: [Need; 5] = [
    Need::Root,
    Need::Loop,
    Need::Tool("mke2fs"),
    Need::Tool("e2fsck"),
    Need::Runs(&["test", "-c", "/dev/fuse"]),
];

/// The program.
const UEXT4: &str = env!("CARGO_BIN_EXE_uext4");

/// Polls until `done`, for at most twenty seconds.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: not after 20 seconds");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a directory is a mount point: its device is another than its parent's.
fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == directory.to_str())
}

/// A volume that a server in the foreground has mounted. However the test ends, the mount and the server go.
struct Mounted {
    directory: tempfile::TempDir,
    server: Child,
    _lock: Arc<MachineLock>,
}

impl Mounted {
    /// Mounts an image.
    #[track_caller]
    fn new(image: impl AsRef<std::ffi::OsStr>, options: &str) -> Mounted {
        Mounted::by(Command::new(UEXT4), image, options)
    }

    /// The same by a command that runs the program.
    #[track_caller]
    fn by(command: Command, image: impl AsRef<std::ffi::OsStr>, options: &str) -> Mounted {
        Mounted::started(command, &[], image.as_ref(), options)
    }

    /// The same with more arguments of the command.
    #[track_caller]
    fn with(words: &[&str], image: impl AsRef<std::ffi::OsStr>, options: &str) -> Mounted {
        Mounted::started(Command::new(UEXT4), words, image.as_ref(), options)
    }

    #[track_caller]
    fn started(mut command: Command, words: &[&str], image: &std::ffi::OsStr, options: &str) -> Mounted {
        let lock = machine_lock();
        let directory = tempfile::Builder::new().prefix("uext4-testmnt-").tempdir().unwrap();
        // Given by the step `mount-uring`, which has the kernel offer it.
        if let Ok(transport) = std::env::var("UEXT4_TEST_TRANSPORT") {
            command.args(["mount", "--transport", &transport]);
        } else {
            command.arg("mount");
        }
        command.args(words).args(["-f", "-o"]).arg(format!("threads=4,{options}"));
        command.arg(image).arg(directory.path()).stdin(Stdio::null());
        let server = command.process_group(0).spawn().unwrap();
        let mut mounted = Mounted { directory, server, _lock: lock };
        wait_until("the mount", || {
            assert!(mounted.server.try_wait().unwrap().is_none(), "the server ended");
            is_mounted(mounted.directory.path())
        });
        mounted
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.server), signal).unwrap();
    }

    /// Waits for the server's end.
    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the server's end", || {
            status = self.server.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Unmounts, and waits until all is home.
    #[track_caller]
    fn unmount(mut self) {
        let mut said = String::new();
        wait_until("umount", || {
            let output = Command::new("umount").arg(self.directory.path()).output().unwrap();
            said = String::from_utf8_lossy(&output.stderr).into_owned();
            output.status.success()
        });
        let status = self.ended();
        assert!(status.success(), "{status}: {said}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _gone = Command::new("umount").args(["-l", "-q"]).arg(self.directory.path()).status();
        let _killed = self.server.kill();
        let _waited = self.server.wait();
    }
}

/// A mount whose device is a file in another mount: while the server of that one is stopped, the device hangs.
struct Stacked {
    // First, since its device goes with the others.
    upper: Mounted,
    lower: Mounted,
    image: PathBuf,
    below: Volume,
}

impl Stacked {
    fn new(options: &str) -> Stacked {
        let below = volume();
        let lower = Mounted::new(below.path(), "");
        let image = lower.at("inner.img");
        std::fs::File::create(&image).unwrap().set_len(48 << 20).unwrap();
        VolumeBuilder::new(48 << 20).args(["-b", "4096"]).format(&image);
        let upper = Mounted::new(&image, options);
        Stacked { upper, lower, image, below }
    }

    /// Unmounts both. Their volumes are clean.
    #[track_caller]
    fn unmount(self) {
        self.upper.unmount();
        e2fsck_clean(&self.image);
        self.lower.unmount();
        self.below.assert_clean();
    }
}

/// A volume of 64 MiB with blocks of 4 KiB.
fn volume() -> Volume {
    VolumeBuilder::new(64 << 20).args(["-b", "4096"]).build()
}

/// Drops what the kernel has cached: pages, names, inodes.
fn drop_caches() {
    std::fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
}

/// Runs a command as a user with these groups.
fn as_user(uid: u32, gid: u32, groups: &str, script: &str, directory: &Path) -> (i32, String) {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string()]);
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.args(["--groups", groups]),
    };
    let output = command.args(["sh", "-c", script]).current_dir(directory).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned())
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}
