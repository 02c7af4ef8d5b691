//! What the server tells of itself, and `uext4 umount`, which waits for its end.

use super::{Mounted, NEEDS, UEXT4, as_user, is_mounted, volume};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use uext4_testkit::guard::machine_lock;
use uext4_testkit::oracle::e2fsck_clean;
use uext4_testkit::{Need, requirement};

/// Runs `uext4` with these arguments and a mount point: exit status, output, errors.
fn uext4(words: &[&str], point: &Path) -> (Option<i32>, String, String) {
    let output = Command::new(UEXT4).args(words).arg(point).stdin(Stdio::null()).output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    (output.status.code(), out, err)
}

/// A number in JSON, by its path.
fn number(json: &str, path: &str) -> f64 {
    let all: serde_json::Value = serde_json::from_str(json).unwrap();
    all.pointer(path).and_then(serde_json::Value::as_f64).unwrap_or_else(|| panic!("{path}: {json}"))
}

#[test]
fn root_stats_count_requests_errors_and_latencies() {
    if !requirement::require("mount::sight::stats", &[&NEEDS[..], &[Need::Tool("setpriv")]].concat()) {
        return;
    }
    let volume = volume();
    let socket = volume.scratch().file("stats.socket");
    let mounted = Mounted::new(volume.path(), &format!("allow_other,stats={}", socket.display()));
    let before = uext4(&["stats", "--json"], mounted.path()).1;
    for number in 0..20 {
        std::fs::write(mounted.at(format!("file-{number}")), [7; 3000]).unwrap();
    }
    let file = std::fs::File::open(mounted.at("file-3")).unwrap();
    file.sync_all().unwrap();
    // SETXATTR is not kept by the kernel: each call is a request.
    for _ in 0..3 {
        let none = rustix::fs::removexattr(mounted.at("file-3"), "user.none");
        assert_eq!(none, Err(rustix::io::Errno::NODATA));
    }
    let (code, after, said) = uext4(&["stats", "--json"], mounted.path());
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(!before.contains("WRITE"), "{before}");
    for (path, expected) in [
        ("/requests/CREATE/count", 20.0),
        ("/requests/WRITE/count", 20.0),
        ("/requests/WRITE/errors", 0.0),
        ("/requests/FSYNC/count", 1.0),
        ("/requests/REMOVEXATTR/count", 3.0),
        ("/requests/REMOVEXATTR/errors", 3.0),
        ("/values/uext4_open_files", 1.0),
        ("/values/uext4_process_id", f64::from(mounted.server.id())),
    ] {
        assert_eq!(number(&after, path), expected, "{path}: {after}");
    }
    let (p50, p99) =
        (number(&after, "/requests/FSYNC/p50_seconds"), number(&after, "/requests/FSYNC/p99_seconds"));
    assert!(p50 > 0.0 && p50 <= p99 && p99 < 20.0, "{p50} {p99}");
    assert!(number(&after, "/volume/commits") >= 1.0, "{after}");
    assert!(number(&after, "/values/process_resident_memory_bytes") > 1e6, "{after}");
    told_of_the_volume(&after, &mounted);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", mounted.server.id())).unwrap().count();
    // One is the connection of who asks.
    assert_eq!(number(&after, "/values/process_open_fds"), descriptors as f64 + 1.0);
    let (code, screen, _) = uext4(&["stats", "--once"], mounted.path());
    assert!(code == Some(0) && screen.contains("CREATE") && screen.contains("p99"), "{screen}");
    for line in ["free: ", "commits: ", "cache  ", "metadata  ", "names  ", "inodes  "] {
        assert!(screen.lines().any(|found| found.starts_with(line)), "{line}: {screen}");
    }
    // The socket at a path: plain, and by HTTP. Only its owner may open it.
    let ask = |question: &str| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(question.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let line = "uext4_request_seconds_count{kind=\"CREATE\"} 20\n";
    assert!(ask("metrics\n").contains(line));
    let http = ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(http.starts_with("HTTP/1.0 200 OK\r\n") && http.contains(line), "{http}");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    // Other users see the mount, and not this.
    let program = volume.scratch().file("uext4");
    std::fs::copy(UEXT4, &program).unwrap();
    let script = format!("stat . >/dev/null && {} stats --once .", program.display());
    std::fs::set_permissions(program.parent().unwrap(), PermissionsExt::from_mode(0o755)).unwrap();
    let (code, said) = as_user(65534, 65534, "", &script, mounted.path());
    assert!(code == 1 && said.contains("ermission denied"), "{code} {said}");
    drop(file);
    mounted.unmount();
    volume.assert_clean();
}

/// Caches, commits and space are those of the volume with its 20 new files.
fn told_of_the_volume(told: &str, mounted: &Mounted) {
    let space = rustix::fs::statvfs(mounted.path()).unwrap();
    for (path, expected) in [
        ("/values/uext4_size_bytes", space.f_blocks * space.f_frsize),
        ("/values/uext4_free_bytes", space.f_bfree * space.f_frsize),
        ("/values/uext4_available_bytes", space.f_bavail * space.f_frsize),
        ("/values/uext4_free_inodes", space.f_ffree),
        // The file was synced, and others are not late for long.
        ("/caches/metadata/evictions", 0),
    ] {
        assert_eq!(number(told, path), expected as f64, "{path}: {told}");
    }
    for cache in ["metadata", "names", "inodes"] {
        let value = |name: &str| number(told, &format!("/caches/{cache}/{name}"));
        assert!(value("bytes") <= value("budget_bytes") && value("budget_bytes") > 0.0, "{cache}: {told}");
        assert!(value("hits") > 0.0 && value("misses") > 0.0, "{cache}: {told}");
    }
    // The root directory and the files; the names were looked up before they were made.
    assert!(number(told, "/caches/inodes/entries") >= 21.0, "{told}");
    assert!(number(told, "/caches/names/entries") >= 20.0, "{told}");
    let commits = number(told, "/values/uext4_commits_total");
    assert_eq!(commits, number(told, "/volume/commits"));
    let [last, all] =
        ["last_seconds", "seconds_total"].map(|name| number(told, &format!("/values/uext4_commit_{name}")));
    assert!(last > 0.0 && last <= all && all < 20.0 * commits, "{told}");
    assert!(number(told, "/values/uext4_commit_blocks_total") > 2.0, "{told}");
    assert!(number(told, "/values/uext4_late_write_bytes") >= 0.0, "{told}");
}

/// Whether the superblock says that the journal is not empty.
fn needs_recovery(image: &Path) -> bool {
    let mut features = [0; 4];
    std::fs::File::open(image).unwrap().read_exact_at(&mut features, 1024 + 0x60).unwrap();
    u32::from_le_bytes(features) & 4 != 0
}

#[test]
fn root_umount_returns_when_the_volume_is_clean() {
    if !requirement::require("mount::sight::umount", &NEEDS) {
        return;
    }
    let _lock = machine_lock();
    let (volume, point) = (volume(), tempfile::Builder::new().prefix("uext4-testmnt-").tempdir().unwrap());
    let point = point.path();
    // Requests are slow, so that the end takes long.
    let device = format!("{}?latency=10ms", volume.path().display());
    for round in 0..2 {
        let mount = Command::new(UEXT4)
            .args(["mount", "-o", "commit=300"])
            .arg(&device)
            .arg(point)
            .stdin(Stdio::null())
            .status();
        assert!(mount.unwrap().success());
        for number in 0..50 {
            std::fs::write(point.join(format!("{round}-{number}")), [round; 9000]).unwrap();
        }
        let used = std::fs::File::open(point.join("0-7")).unwrap();
        used.sync_all().unwrap();
        assert!(needs_recovery(volume.path()));
        std::fs::write(point.join("not synced"), [round; 9000]).unwrap();
        let (code, _, said) = uext4(&["umount"], point);
        assert!(code == Some(1) && said.contains("usy"), "{said}");
        assert!(is_mounted(point));
        drop(used);
        assert_eq!(uext4(&["umount"], point), (Some(0), String::new(), String::new()));
        // At once, without waiting: clean, and nobody holds it.
        assert!(!needs_recovery(volume.path()));
        e2fsck_clean(volume.path());
        assert!(!is_mounted(point));
        std::fs::OpenOptions::new().write(true).open(volume.path()).unwrap();
    }
    let (code, _, said) = uext4(&["umount"], point);
    assert!(code == Some(1) && said.contains("not a mount point"), "{said}");
    let (code, _, said) = uext4(&["umount"], Path::new("/proc"));
    assert!(code == Some(1) && said.contains("a mount of type proc"), "{said}");
}

#[test]
fn root_umount_says_what_did_not_end_well() {
    if !requirement::require("mount::sight::late", &NEEDS) {
        return;
    }
    let volume = volume();
    // Files are open: it goes on for those who have them.
    let mut mounted = Mounted::new(volume.path(), "");
    let mut used = std::fs::File::create(mounted.at("used")).unwrap();
    let start = Instant::now();
    let (code, _, said) = uext4(&["umount", "--lazy", "--timeout", "1"], mounted.path());
    let process = format!("(process {}) is still writing", mounted.server.id());
    assert!(code == Some(1) && said.contains(&process) && start.elapsed().as_secs() >= 1, "{said}");
    assert!(!is_mounted(mounted.path()));
    used.write_all(b"kept").unwrap();
    drop(used);
    assert!(mounted.ended().success());
    e2fsck_clean(volume.path());
    // Killed: what is left is taken away.
    let mut mounted = Mounted::new(volume.path(), "");
    assert_eq!(std::fs::metadata(mounted.at("used")).unwrap().size(), 4);
    mounted.signal(Signal::KILL);
    mounted.ended();
    assert!(is_mounted(mounted.path()));
    let (code, _, said) = uext4(&["umount"], mounted.path());
    assert!(code == Some(1) && said.contains("the server was killed"), "{said}");
    assert!(!is_mounted(mounted.path()));
    let (code, _, said) = uext4(&["stats"], mounted.path());
    assert!(code == Some(1) && said.contains("not a mount point"), "{said}");
}
