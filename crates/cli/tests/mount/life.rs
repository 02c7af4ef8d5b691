//! How a mount begins and ends.

use super::{Mounted, NEEDS, UEXT4, is_mounted, volume, wait_until};
use rustix::process::Signal;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use uext4_testkit::guard::machine_lock;
use uext4_testkit::oracle::{debugfs_write, e2fsck};
use uext4_testkit::{Need, requirement};

/// Runs `uext4 mount` without `-f`.
fn mount(image: &Path, directory: &Path, options: &str) -> (Option<i32>, String) {
    let mut command = Command::new(UEXT4);
    command.arg("mount").arg(image).arg(directory).args(["-o", options]).stdin(Stdio::null());
    let output = command.output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn root_a_mount_in_the_background_stands_when_the_command_returns() {
    if !requirement::require("mount::life::background", &NEEDS) {
        return;
    }
    let _lock = machine_lock();
    let (volume, directory) =
        (volume(), tempfile::Builder::new().prefix("uext4-testmnt-").tempdir().unwrap());
    let point = directory.path();
    let missing = point.join("missing");
    // What cannot stand is told by the status, and leaves nothing behind.
    for (image, directory, options, status, said) in [
        (volume.path(), &*missing, "", 1, "No such file"),
        (Path::new("/dev/null"), point, "", 1, "null"),
        (volume.path(), point, "nonsense", 2, "unknown mount option `nonsense`"),
        (volume.path(), point, "threads=0", 2, "threads=0"),
        (volume.path(), Path::new("/dev/null"), "", 1, "ot a directory"),
    ] {
        let (code, words) = mount(image, directory, options);
        assert_eq!(code, Some(status), "{words}");
        assert!(words.contains(said) && words.lines().count() == 1, "{words}");
        assert!(!is_mounted(point));
    }
    assert_eq!(mount(volume.path(), point, "fsname=a b"), (Some(0), String::new()));
    std::fs::write(point.join("file"), "here").unwrap();
    // Nobody else has it meanwhile.
    let (code, words) = mount(volume.path(), &missing, "");
    assert_eq!(code, Some(1), "{words}");
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(table.contains("a\\040b") && table.contains("fuse.uext4"), "{table}");
    assert!(Command::new("umount").arg(point).status().unwrap().success());
    wait_until("a clean volume", || e2fsck(volume.path(), &["-fn"]).is_clean());
    let again = volume.path();
    wait_until("its server's end", || mount(again, point, "ro").0 == Some(0));
    assert_eq!(std::fs::read(point.join("file")).unwrap(), b"here");
    assert!(Command::new("umount").arg(point).status().unwrap().success());
}

#[test]
fn root_signals_unmount_and_write_everything_home() {
    if !requirement::require("mount::life::signals", &NEEDS) {
        return;
    }
    for (signal, busy) in [(Signal::TERM, false), (Signal::INT, true)] {
        let volume = volume();
        let mut mounted = Mounted::new(volume.path(), "commit=300");
        let file = std::fs::File::create(mounted.at("file")).unwrap();
        file.write_all_at(b"not synced", 0).unwrap();
        let kept = busy.then_some(file);
        mounted.signal(signal);
        let status = mounted.ended();
        assert!(status.success(), "{status}");
        assert!(!is_mounted(mounted.path()));
        // What was open is of no use any more.
        assert!(kept.is_none_or(|file| file.write_all_at(b"later", 0).is_err()));
        volume.assert_clean();
        assert!(volume.kernel_manifest().contains_key(&b"/file"[..]));
    }
}

#[test]
fn root_a_killed_server_leaves_a_volume_that_recovers() {
    if !requirement::require("mount::life::killed", &NEEDS) {
        return;
    }
    let volume = volume();
    for round in 0..3 {
        let mut mounted = Mounted::new(volume.path(), "commit=300");
        let name = |number: usize| format!("synced-{round}-{number}");
        for number in 0..20 {
            let file = std::fs::File::create(mounted.at(name(number))).unwrap();
            file.write_all_at(&[number as u8; 5000], 0).unwrap();
            if number == 19 {
                file.sync_all().unwrap();
            }
            std::fs::write(mounted.at(format!("lost-{number}")), "may be lost").unwrap();
        }
        mounted.signal(Signal::KILL);
        assert!(!mounted.ended().success());
        drop(mounted);
        // Read-only: recovered in memory, with nothing written.
        let before = std::fs::read(volume.path()).unwrap();
        let mounted = Mounted::new(volume.path(), "ro");
        for number in 0..20 {
            assert_eq!(std::fs::read(mounted.at(name(number))).unwrap(), [number as u8; 5000], "{number}");
        }
        mounted.unmount();
        assert!(before == std::fs::read(volume.path()).unwrap(), "a read-only mount wrote");
        // For writing: recovered onto the device.
        let mounted = Mounted::new(volume.path(), "");
        assert_eq!(std::fs::read(mounted.at(name(7))).unwrap(), [7; 5000]);
        mounted.unmount();
        volume.assert_clean();
    }
}

/// Makes `/dev/fuse` usable for everybody, and puts its mode back.
struct OpenFuse(std::fs::Permissions);

impl OpenFuse {
    fn new() -> OpenFuse {
        use std::os::unix::fs::PermissionsExt;
        let before = std::fs::metadata("/dev/fuse").unwrap().permissions();
        std::fs::set_permissions("/dev/fuse", PermissionsExt::from_mode(0o666)).unwrap();
        OpenFuse(before)
    }
}

impl Drop for OpenFuse {
    fn drop(&mut self) {
        let _put_back = std::fs::set_permissions("/dev/fuse", self.0.clone());
    }
}

/// A user that every Debian knows: fusermount3 asks for the name.
const NOBODY: u32 = 65534;

#[test]
fn root_an_ordinary_user_mounts_by_fusermount3() {
    let needs = [&NEEDS[..], &[Need::Tool("fusermount3"), Need::Tool("setpriv")]].concat();
    if !requirement::require("mount::life::user", &needs) {
        return;
    }
    let _lock = machine_lock();
    let _open = OpenFuse::new();
    let directory = tempfile::Builder::new().prefix("uext4-testmnt-").tempdir().unwrap();
    let volume = volume();
    let (point, image) = (directory.path().join("point"), directory.path().join("image"));
    std::fs::create_dir(&point).unwrap();
    std::fs::copy(volume.path(), &image).unwrap();
    let program = directory.path().join("uext4");
    std::fs::copy(UEXT4, &program).unwrap();
    for path in [directory.path(), &point, &image] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // The root directory of the volume is root's: only a file of the user can be changed.
    let own = "set_inode_field / mode 040777";
    debugfs_write(&image, own);
    let script = "./uext4 mount image point && echo mine > point/file && stat -c '%u %a' point/file && \
        ! ./uext4 mount -o suid image point 2>&1; fusermount3 -u point; echo $?";
    let (code, said) = super::as_user(NOBODY, NOBODY, "", script, directory.path());
    assert_eq!(code, 0, "{said}");
    assert!(said.starts_with("65534 644\n") && said.ends_with("0\n"), "{said}");
    wait_until("a clean volume", || e2fsck(&image, &["-fn"]).is_clean());
    assert!(!is_mounted(&point));
}
