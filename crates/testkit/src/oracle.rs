//! e2fsprogs as an independent judge.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::requirement::tool;

/// A command for the system program `name`, found where an ordinary user's `PATH` may not look, in locale C.
///
/// # Panics
/// If it is not installed: ask [`crate::requirement`] first.
#[track_caller]
pub fn command(name: &str) -> Command {
    let path = tool(name).unwrap_or_else(|| panic!("program `{name}` is not installed"));
    let mut command = Command::new(path);
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// Standard output and standard error of a finished program, as one text.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs `command` and returns its output.
///
/// # Panics
/// With the whole output, if it cannot start or does not exit with status 0.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output));
    text(&output)
}

/// Writes back what the kernel holds of the file system that `path` is on. Of that one alone: a `sync` of all waits for
/// others as well, for ever if one of them hangs.
#[track_caller]
pub fn sync(path: impl AsRef<Path>) {
    run(command("sync").arg("-f").arg(path.as_ref()));
}

/// Makes an ext4 volume on `path` (an existing file or device, whole length) with `mke2fs -t ext4 -F args`.
#[track_caller]
pub fn mke2fs<S: AsRef<std::ffi::OsStr>>(path: &Path, args: &[S]) {
    mke2fs_kind(path, "ext4", args);
}

/// [`mke2fs`] with another `-t`.
#[track_caller]
pub fn mke2fs_kind<S: AsRef<std::ffi::OsStr>>(path: &Path, kind: &str, args: &[S]) {
    run(command("mke2fs").args(["-q", "-F", "-t", kind]).args(args).arg(path));
}

/// What `e2fsck` said.
#[derive(Debug, Clone)]
pub struct Fsck {
    /// Exit status: 0 clean, 1 and 2 corrected, 4 errors left, 8 and more could not check.
    pub status: i32,
    /// Everything it printed.
    pub output: String,
}

impl Fsck {
    /// The printed lines that are neither the version, a pass heading nor the closing summary.
    pub fn findings(&self) -> Vec<&str> {
        self.output.lines().map(str::trim_end).filter(|line| !line.is_empty() && !is_routine(line)).collect()
    }

    /// Exit status 0 and nothing found.
    pub fn is_clean(&self) -> bool {
        self.status == 0 && self.findings().is_empty()
    }
}

fn is_routine(line: &str) -> bool {
    let numbered_pass = line
        .strip_prefix("Pass ")
        .and_then(|rest| rest.split_once(": "))
        .is_some_and(|(number, what)| number.len() == 1 && what.starts_with("Checking "));
    let summary = line.split_once(": ").is_some_and(|(_, rest)| {
        let mut words = rest.split(' ');
        words.next().is_some_and(|word| word.split_once('/').is_some()) && words.next() == Some("files")
    });
    numbered_pass || summary || line.starts_with("e2fsck 1.")
}

/// `e2fsck -f` with `args`. Hints that an extent tree *could be narrower* are switched off: such a tree is
/// legal and the kernel leaves them too.
#[track_caller]
pub fn e2fsck(path: &Path, args: &[&str]) -> Fsck {
    let mut command = command("e2fsck");
    command.args(["-f", "-E", "no_optimize_extents"]).args(args).arg(path);
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let status = output.status.code().unwrap_or_else(|| panic!("{command:?}: {}", output.status));
    Fsck { status, output: text(&output) }
}

/// Asserts that `e2fsck -fn` exits with 0 and finds nothing, an unreplayed journal included.
///
/// # Panics
/// With its whole output otherwise.
#[track_caller]
pub fn e2fsck_clean(path: &Path) {
    let report = e2fsck(path, &["-n"]);
    assert!(report.is_clean(), "e2fsck -fn {}: status {}\n{}", path.display(), report.status, report.output);
}

/// Output of one `debugfs` request on a volume opened read-only.
#[track_caller]
pub fn debugfs(path: &Path, request: &str) -> String {
    run_debugfs(command("debugfs").args(["-R", request]).arg(path))
}

/// Like [`debugfs`] on a volume opened for writing: for planting what a test wants to find.
#[track_caller]
pub fn debugfs_write(path: &Path, request: &str) -> String {
    run_debugfs(command("debugfs").args(["-w", "-R", request]).arg(path))
}

/// Many requests at once, one a line, on a volume opened for writing.
#[track_caller]
pub fn debugfs_script(path: &Path, requests: &str) -> String {
    let script = tempfile::NamedTempFile::new().expect("a file for the requests");
    std::fs::write(script.path(), requests).expect("write the requests");
    run_debugfs(command("debugfs").arg("-w").arg("-f").arg(script.path()).arg(path))
}

#[track_caller]
fn run_debugfs(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    // debugfs exits with 0 after a failed request; its complaints go to standard error, after a version line.
    let complaints: Vec<String> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(|line| !line.starts_with("debugfs 1.") && !line.is_empty())
        .map(str::to_owned)
        .collect();
    assert!(
        output.status.success() && complaints.is_empty(),
        "{command:?}: {}\n{}",
        output.status,
        text(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Output of `dumpe2fs` with `args` (`&["-h"]`: the superblock only).
#[track_caller]
pub fn dumpe2fs(path: &Path, args: &[&str]) -> String {
    run(command("dumpe2fs").args(args).arg(path))
}

/// The value of a superblock line of `dumpe2fs -h`, such as `Block size`.
#[track_caller]
pub fn superblock_field(path: &Path, name: &str) -> String {
    let text = dumpe2fs(path, &["-h"]);
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_else(|| panic!("dumpe2fs -h {} has no `{name}`:\n{text}", path.display()))
        .trim()
        .to_owned()
}
