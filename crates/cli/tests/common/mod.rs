//! One small volume with something of everything, and the program to look at it.
#![allow(dead_code, reason = "each test program uses its own part")]

use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use uext4_testkit::{Scratch, Volume, VolumeBuilder, debugfs, fixture, oracle};

/// Size of `/big`: several requests of a mebibyte and a ragged end.
pub const BIG: usize = (3 << 20) + 12_345;
/// Size of `/sparse`, whose data lies at 1 MiB and at its end.
pub const SPARSE: u64 = (8 << 20) + 100;
/// A name that is not UTF-8 and one that would clear a terminal.
pub const ODD_NAMES: [&[u8]; 2] = [b"\xff\xfe\x80", b"clear\x1b[2J"];

/// Bytes that tell where they belong.
pub fn pattern(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fixture::pattern(7, 0, &mut bytes);
    bytes
}

fn fill(dir: &Path) {
    std::fs::write(dir.join("hello"), "world\n").unwrap();
    std::fs::set_permissions(dir.join("hello"), PermissionsExt::from_mode(0o640)).unwrap();
    std::fs::write(dir.join("empty"), "").unwrap();
    std::fs::write(dir.join("big"), pattern(BIG)).unwrap();
    std::fs::write(dir.join(".hidden"), "").unwrap();
    std::fs::create_dir_all(dir.join("dir/inner")).unwrap();
    std::fs::write(dir.join("dir/inner/deep"), "deep\n").unwrap();
    for name in ODD_NAMES {
        std::fs::write(dir.join("dir").join(OsStr::from_bytes(name)), name).unwrap();
    }
    symlink("hello", dir.join("link")).unwrap();
    symlink("dir", dir.join("dirlink")).unwrap();
    symlink("nowhere", dir.join("dangling")).unwrap();
    symlink(OsStr::from_bytes(b"to\xff"), dir.join("badlink")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let sparse = File::create_new(dir.join("sparse")).unwrap();
    sparse.write_all_at(&pattern(70_000), 1 << 20).unwrap();
    sparse.write_all_at(&pattern(100), SPARSE - 100).unwrap();
    std::fs::write(dir.join("holed"), vec![0x55; 64 << 10]).unwrap();
}

/// The volume. `/holed` has four written, four unwritten blocks and a hole behind its 16 written ones.
pub fn volume() -> Volume {
    let source = Scratch::new(64 << 20);
    fill(source.path());
    let volume =
        VolumeBuilder::new(64 << 20).args(["-L", "cli-test", "-b", "4096"]).from_dir(source.path()).build();
    oracle::debugfs_write(volume.path(), "fallocate /holed 20 23");
    oracle::debugfs_write(volume.path(), "set_inode_field /holed size 131072");
    volume
}

/// `IMAGE:/path`.
pub fn at(volume: &Volume, path: impl AsRef<OsStr>) -> OsString {
    let mut argument = volume.path().as_os_str().as_bytes().to_vec();
    argument.push(b':');
    argument.extend_from_slice(path.as_ref().as_bytes());
    OsString::from_vec(argument)
}

/// Runs the program.
pub fn uext4<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    command(args).stdin(Stdio::null()).output().unwrap()
}

/// The program with arguments.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_uext4"));
    command.args(args).env_remove("UEXT4_LOG");
    command
}

/// Runs it with something on standard input.
pub fn uext4_with_input<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, input: &str) -> Output {
    let mut child =
        command(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Runs it, asserts success and silence on standard error, returns standard output.
#[track_caller]
pub fn good<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Vec<u8> {
    let output = uext4(args);
    assert!(output.status.success(), "{}: {}", output.status, oracle::text(&output));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    output.stdout
}

/// As [`good`], as text.
#[track_caller]
pub fn text<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    String::from_utf8(good(args)).unwrap()
}

/// As [`good`], as JSON.
#[track_caller]
pub fn json<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Value {
    let bytes = good(args);
    serde_json::from_slice(&bytes)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&bytes)))
}

/// Runs it and asserts this status, an empty standard output and one line on standard error, which is
/// returned.
#[track_caller]
pub fn bad<S: AsRef<OsStr>>(status: i32, args: impl IntoIterator<Item = S>) -> String {
    let output = uext4(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{}", oracle::text(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    let json = is_json_error(&stderr);
    assert!((json || stderr.starts_with("uext4")) && stderr.ends_with('\n'), "{stderr}");
    stderr.trim_end().to_owned()
}

/// With `--json` the line is an object with at least these two.
fn is_json_error(line: &str) -> bool {
    serde_json::from_str::<Value>(line)
        .is_ok_and(|error| error["error"].is_string() && error["errno"].is_i64())
}

/// The content of a file as debugfs sees it.
pub fn content(volume: &Volume, path: &str) -> Vec<u8> {
    let out = volume.scratch().file("dumped");
    debugfs(volume.path(), &format!("dump {path} {}", out.display()));
    let bytes = std::fs::read(&out).unwrap();
    std::fs::remove_file(out).unwrap();
    bytes
}

/// A directory with a file that must stay as it is.
pub fn outside(volume: &Volume) -> PathBuf {
    let outside = volume.scratch().file("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("victim"), "mine").unwrap();
    outside
}

/// Runs a copy that must fail in places; what it said.
pub fn troubled(volume: &Volume, source: &str, out: &Path) -> String {
    let output = uext4(["cp".into(), "-a".into(), at(volume, source), out.as_os_str().to_owned()]);
    assert_eq!(output.status.code(), Some(1), "{}", oracle::text(&output));
    String::from_utf8(output.stderr).unwrap()
}

/// A command line of words and of what is no UTF-8, maybe.
pub fn of(words: &[&str], arguments: &[&OsStr]) -> Vec<OsString> {
    words.iter().map(OsStr::new).chain(arguments.iter().copied()).map(OsStr::to_owned).collect()
}

/// Commands that read `/hello` and everything else of a volume, each once, but for `df`. Copies go to a directory
/// beside it.
pub fn readers(volume: &Volume) -> Vec<Vec<OsString>> {
    let (hello, root) = (at(volume, "/hello"), at(volume, "/"));
    let copy = volume.scratch().file("copies");
    std::fs::create_dir(&copy).unwrap();
    let copy = copy.into_os_string();
    vec![
        of(&["cat"], &[&hello, &hello]),
        of(&["ls", "-l"], &[&root]),
        of(&["cp"], &[&hello, &hello, &copy]),
        of(&["cp", "-r"], &[&root, &copy]),
        of(&["find"], &[&root]),
        of(&["du"], &[&root]),
        of(&["stat"], &[&hello]),
        of(&["map"], &[&hello]),
        of(&["xattr"], &[&hello]),
        of(&["io", "-c", "pread 0 4", "-r"], &[&hello]),
        of(&["explain"], &[&hello, OsStr::new("--read"), OsStr::new("0"), OsStr::new("4")]),
        of(&["trace", "--", "cat"], &[&hello]),
    ]
}

/// Whoever copies without privilege, if that is not the caller.
pub const NOBODY: u32 = 65534;

/// Runs the program without privilege. What it makes goes to the volume's directory.
pub fn unprivileged(volume: &Volume, args: &[OsString]) -> Output {
    if !rustix::process::geteuid().is_root() {
        return uext4(args);
    }
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(volume.scratch().path(), all).unwrap();
    // The build may lie where only its owner gets, and the scratch directory where nothing may be run: what is open
    // needs no path.
    let program = File::open(env!("CARGO_BIN_EXE_uext4")).unwrap();
    let path = format!("/proc/self/fd/{}", program.as_raw_fd());
    Command::new(path).args(args).uid(NOBODY).gid(NOBODY).output().unwrap()
}
