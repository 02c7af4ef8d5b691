//! What a test needs from the machine, and what happens when it is not there.
//!
//! A test names its needs first: `needs!(Need::Loop, Need::Tool("debugfs"));`. If one is missing the test
//! prints `SKIP name: reason`, appends the same line to the file named by `UEXT4_SKIP_LOG` (so that the whole
//! run can list its skips at the end) and returns. With `UEXT4_REQUIRE=all` a missing need is a failure.

use crate::Scratch;
use std::io::Write;
use std::path::{Path, PathBuf};

/// One thing that a test needs from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Effective user id 0.
    Root,
    /// Root, `/dev/loop-control`, `losetup`, and an ext4 file system in the running kernel.
    Loop,
    /// Root and a zram module that can add a device of our own.
    Zram,
    /// A program on `PATH` or in the system administration directories.
    Tool(&'static str),
    /// Access control lists where [`Scratch`] directories are.
    Acl,
    /// This command succeeds: what it does is allowed here.
    Runs(&'static [&'static str]),
    /// QEMU and a static busybox: the virtual machine can be booted from here.
    Vm,
    /// The daemons and tools of Ceph, and librbd.
    Ceph,
    /// This many bytes of available memory.
    Memory(u64),
}

impl Need {
    /// `None` if the machine has it, else the reason in a few words.
    pub fn missing(self) -> Option<String> {
        match self {
            Need::Root => (!is_root()).then(|| "needs root".into()),
            Need::Loop => missing_loop(),
            Need::Zram => missing_zram(),
            Need::Tool(name) => tool(name).is_none().then(|| format!("needs the program `{name}`")),
            Need::Acl => missing_acl(),
            Need::Runs(command) => missing_right(command),
            Need::Vm => {
                ["qemu-system-x86_64", "busybox"].into_iter().find_map(|name| Need::Tool(name).missing())
            }
            Need::Ceph => ["ceph-mon", "ceph-mgr", "ceph-osd", "ceph", "rbd"]
                .into_iter()
                .find_map(|name| Need::Tool(name).missing()),
            Need::Memory(bytes) => missing_memory(bytes),
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn missing_loop() -> Option<String> {
    if !is_root() {
        return Some("needs root (loop device and mount)".into());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("needs loop devices (/dev/loop-control)".into());
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.lines().any(|line| line.ends_with("\text4")) {
        return Some("needs ext4 in the running kernel".into());
    }
    ["losetup", "mount", "umount"].into_iter().find_map(|name| Need::Tool(name).missing())
}

fn missing_zram() -> Option<String> {
    if !is_root() {
        return Some("needs root (zram)".into());
    }
    (!Path::new("/sys/class/zram-control/hot_add").exists()).then(|| "needs the zram module".into())
}

fn missing_acl() -> Option<String> {
    let scratch = Scratch::new(1 << 20);
    // What the directory gives to its owner, group and others.
    let entry = |tag: u8| [tag, 0, 7, 0, 255, 255, 255, 255];
    let list = [&[2, 0, 0, 0][..], &entry(1), &entry(4), &entry(32)].concat();
    let none = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(scratch.path(), "system.posix_acl_default", &list, none);
    set.err().map(|error| format!("needs access control lists in the scratch directory: {error}"))
}

fn missing_right(command: &[&str]) -> Option<String> {
    let (name, args) = command.split_first()?;
    let Some(program) = tool(name) else { return Some(format!("needs the program `{name}`")) };
    let output = std::process::Command::new(program).args(args).output();
    let runs = output.is_ok_and(|output| output.status.success());
    (!runs).then(|| format!("needs that `{}` succeeds", command.join(" ")))
}

fn missing_memory(bytes: u64) -> Option<String> {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok())
        .map_or(0, |kib| kib << 10);
    (available < bytes)
        .then(|| format!("needs {} MiB of memory, {} MiB available", bytes >> 20, available >> 20))
}

/// Where the program `name` is: `PATH` first, then the directories that an ordinary user's `PATH` leaves out.
pub fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Whether test `name` can run; if not, reports the skip (or fails when `UEXT4_REQUIRE=all`).
#[track_caller]
pub fn require(name: &str, needs: &[Need]) -> bool {
    let Some(reason) = needs.iter().find_map(|need| need.missing()) else {
        return true;
    };
    let strict = std::env::var_os("UEXT4_REQUIRE").is_some_and(|value| value == "all");
    skip(name, &reason, strict, std::env::var_os("UEXT4_SKIP_LOG").as_deref().map(Path::new));
    false
}

#[track_caller]
fn skip(name: &str, reason: &str, strict: bool, log: Option<&Path>) {
    assert!(!strict, "{name}: {reason}, and UEXT4_REQUIRE=all forbids a skip");
    let line = format!("SKIP {name}: {reason}\n");
    print!("{line}");
    if let Some(path) = log {
        // One append of one line: concurrent test binaries cannot tear each other's entries.
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap_or_else(|e| panic!("skip log {}: {e}", path.display()));
        file.write_all(line.as_bytes()).expect("write to the skip log");
    }
}

/// Returns from the test (reporting a skip) unless every [`Need`] is there: `needs!(Need::Root);`
#[macro_export]
macro_rules! needs {
    ($($need:expr),+ $(,)?) => {
        fn __here() {}
        // The name of a function nested in the test is the test's own path plus one segment.
        let name = ::std::any::type_name_of_val(&__here).trim_end_matches("::__here");
        if !$crate::requirement::require(name, &[$($need),+]) {
            return;
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_logged_with_name_and_reason() {
        let log = tempfile::NamedTempFile::new().unwrap();
        skip("some::test", "needs a unicorn", false, Some(log.path()));
        skip("other::test", "needs two", false, Some(log.path()));
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(text, "SKIP some::test: needs a unicorn\nSKIP other::test: needs two\n");
    }

    #[test]
    #[should_panic(expected = "UEXT4_REQUIRE=all forbids a skip")]
    fn a_strict_run_fails_instead_of_skipping() {
        skip("some::test", "needs a unicorn", true, None);
    }
}
