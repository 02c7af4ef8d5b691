//! The file-system stressors of stress-ng in a mount, all at once, which check what they get.

use super::{Mounted, NEEDS};
use std::process::Command;
use uext4_testkit::{Need, VolumeBuilder, requirement};

/// Stressors of the class that are left out, and why.
const WITHOUT: [(&str, &str); 10] = [
    ("bind-mount", "mounts the root again and again, and asks this file system nothing"),
    ("binderfs", "mounts another file system"),
    ("chattr", "skips FUSE by its magic number; `users.rs` and `tree.rs` change flags"),
    ("eventfd", "has no files"),
    ("fiemap", "FUSE has no FIEMAP"),
    ("inotify", "waits for each event for a bounded time, which may pass when all run at once"),
    ("io", "syncs the whole machine"),
    ("ioprio", "has no files"),
    ("procfs", "reads another file system"),
    ("verity", "FUSE does not let it through"),
];
/// How much those that fill files write.
const BYTES: [&str; 9] = [
    "--fallocate-bytes=16m",
    "--hdd-bytes=16m",
    "--iomix-bytes=16m",
    "--sync-file-bytes=16m",
    "--dirmany-bytes=4k",
    "--dentries=200",
    "--symlink-ops=1",
    "--link-ops=1",
    "--dirdeep-inodes=500",
];

#[test]
fn root_stressors_find_nothing_wrong() {
    let needs = [&NEEDS[..], &[Need::Tool("stress-ng")]].concat();
    if !requirement::require("mount::stress", &needs) {
        return;
    }
    let volume = VolumeBuilder::new(1 << 30).args(["-b", "4096"]).build();
    let mounted = Mounted::new(volume.path(), "dev,suid,allow_other");
    std::fs::create_dir(mounted.at("stress")).unwrap();
    let without: Vec<&str> = WITHOUT.iter().map(|(name, _)| *name).collect();
    let mut command = Command::new("stress-ng");
    command.args([
        "--class",
        "filesystem",
        "--all",
        "1",
        "--timeout",
        "8",
        "--verify",
        "-x",
        &without.join(","),
    ]);
    command.args(BYTES).arg("--temp-path").arg(mounted.at("stress")).current_dir(mounted.path());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let wrong = |line: &str| line.contains(" fail:") || line.contains(" error:");
    assert!(output.status.success() && !said.lines().any(wrong), "{}: {said}", output.status);
    // They take their files away again.
    let left: Vec<_> = std::fs::read_dir(mounted.at("stress")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    mounted.unmount();
    volume.assert_clean();
}
