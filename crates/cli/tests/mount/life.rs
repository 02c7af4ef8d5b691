//! How a mount begins and ends.

use super::{Mounted, NEEDS, UEXT4, is_mounted, volume, wait_until};
use rustix::process::Signal;
use std::os::unix::fs::{FileExt, MetadataExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use uext4_testkit::guard::machine_lock;
use uext4_testkit::oracle::{debugfs_write, e2fsck, e2fsck_clean};
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
    assert_eq!(mount(volume.path(), point, ""), (Some(0), String::new()));
    std::fs::write(point.join("file"), "here").unwrap();
    // Nobody else has it meanwhile.
    let other = tempfile::tempdir().unwrap();
    let (code, words) = mount(volume.path(), other.path(), "");
    assert_eq!(code, Some(1), "{words}");
    assert!(
        words.contains("in use by") && words.contains(&format!("it is mounted at {}", point.display())),
        "{words}"
    );
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        table.contains(&format!("{} {} fuse.uext4 ", volume.path().display(), point.display())),
        "{table}"
    );
    assert!(Command::new("umount").arg(point).status().unwrap().success());
    wait_until("a clean volume", || e2fsck(volume.path(), &["-fn"]).is_clean());
    let again = volume.path();
    wait_until("its server's end", || mount(again, point, "ro,fsname=a b").0 == Some(0));
    assert_eq!(std::fs::read(point.join("file")).unwrap(), b"here");
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        table.lines().any(|line| line.starts_with("a\\040b ") && line.contains(" ro,nosuid,nodev,")),
        "{table}"
    );
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
            file.sync_all().unwrap();
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
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // The root directory of the volume is root's: only a file of the user can be changed.
    let own = "set_inode_field / mode 040777";
    debugfs_write(&image, own);
    let script = "./uext4 mount image point && echo mine > point/file && stat -c '%u %a' point/file && \
        ! ./uext4 mount -o suid image point 2>&1; fusermount3 -u point; echo $?; \
        until ./uext4 mount -o uidmap=owner image point 2>/dev/null; do sleep 0.1; done; \
        chmod 755 point && mkdir point/d && stat -c '%u %g %a' point point/d; ./uext4 umount point; echo $?; \
        ./uext4 mount -o sandbox=require image point && ./uext4 stats --prometheus point > told && \
        kill $(awk '/^uext4_process_id/ { print $2 }' told); \
        for _ in $(seq 100); do grep -q $PWD/point /proc/self/mounts || break; sleep 0.05; done; \
        grep $PWD/point /proc/self/mounts; grep uext4_sandbox_[cln].*1 told | wc -l";
    let (code, said) = super::as_user(NOBODY, NOBODY, "", script, directory.path());
    assert_eq!(code, 0, "{said}");
    let mapped = "0\n65534 65534 755\n65534 65534 755\n0\n3\n";
    assert!(said.starts_with("65534 644\n") && said.ends_with(mapped), "{said}");
    wait_until("a clean volume", || e2fsck(&image, &["-fn"]).is_clean());
    assert!(!is_mounted(&point));
}

#[test]
fn root_owners_parts_and_synchronous_mounts() {
    if !requirement::require("mount::life::options", &NEEDS) {
        return;
    }
    // The volume begins one mebibyte into the image.
    let volume = volume();
    let image = volume.scratch().file("disk.img");
    let bytes = std::fs::read(volume.path()).unwrap();
    std::fs::write(&image, [&vec![0; 1 << 20], &bytes[..]].concat()).unwrap();
    let mounted =
        Mounted::new(&image, "offset=1M,uid=1000,gid=1001,allow_other,sync,dirsync,errors=remount-ro");
    let file = mounted.at("file");
    std::fs::write(&file, "durable").unwrap();
    let owner = |path: &Path| {
        let found = std::fs::metadata(path).unwrap();
        (found.uid(), found.gid())
    };
    assert_eq!((owner(&file), owner(mounted.path())), ((1000, 1001), (1000, 1001)));
    assert!(super::as_user(1000, 1, "", "echo more >> file && echo new > new", mounted.path()).0 == 0);
    assert!(super::as_user(1002, 1, "", "echo more >> file", mounted.path()).0 != 0);
    assert_eq!(chown(&file, Some(5), None).unwrap_err().raw_os_error(), Some(libc::EPERM));
    chown(&file, Some(1000), Some(1001)).unwrap();
    std::fs::create_dir_all(mounted.at("a/b")).unwrap();
    std::fs::rename(mounted.at("a/b"), mounted.at("c")).unwrap();
    // Nothing was synced by hand.
    let mut mounted = mounted;
    mounted.signal(Signal::KILL);
    assert!(!mounted.ended().success());
    drop(mounted);
    let mounted = Mounted::new(format!("{}?offset=1M", image.display()), "");
    assert_eq!(std::fs::read(mounted.at("file")).unwrap(), b"durablemore\n");
    assert_eq!((owner(&mounted.at("file")), owner(&mounted.at("new"))), ((0, 0), (1000, 1)));
    assert!(mounted.at("c").is_dir() && !mounted.at("a/b").exists());
    mounted.unmount();
    std::fs::write(&image, &std::fs::read(&image).unwrap()[1 << 20..]).unwrap();
    e2fsck_clean(&image);
}

/// What mount(8) does with the program: through its own helper, through `mount.fuse3`, and from a table.
const BY_MOUNT: &str = r#"
set -eu
mount -t tmpfs none /usr/local/bin
ln -s "$3/uext4" /usr/local/bin/uext4
cp "$(command -v e2fsck)" /usr/local/bin
clean() { for _ in $(seq 200); do e2fsck -fn "$1" >/dev/null 2>&1 && return; sleep 0.05; done; }
shown() { grep " $2 " /proc/self/mounts; }
mount -t fuse.uext4 -o strictatime,commit=7 "$1" "$2"
shown "$@" | grep -q "^$1 $2 fuse.uext4 rw,relatime,user_id=0" || shown "$@"
echo one > "$2/one"
umount "$2"
clean "$1"
mount -t tmpfs none /usr/sbin
rm /usr/local/bin/uext4
ln -s "$3/uext4" /usr/sbin/mount.fuse.uext4
ln -s "$3/uext4" /usr/sbin/mount.uext4
echo "$1 $2 uext4 defaults,noauto,nosuid,nofail,_netdev,x-systemd.automount,uid=5 0 0" > "$3/fstab"
mount --fstab "$3/fstab" "$2"
shown "$@" | grep -q " fuse.uext4 rw,nosuid,relatime,user_id" || shown "$@"
stat -c %u "$2/one"
umount "$2"
clean "$1"
mount -t fuse.uext4 -r "$1" "$2"
! touch "$2/two" 2>/dev/null
cat "$2/one"
umount "$2"
ln -s "$3/uext4" /usr/sbin/umount.fuse.uext4
mount --fstab "$3/fstab" "$2"
echo three > "$2/three"
umount "$2"
e2fsck -fn "$1" >/dev/null 2>&1
! mount -t fuse.uext4 -o wrong "$1" "$2" 2>&1
"#;

#[test]
fn root_mount_8_and_fstab_call_the_program() {
    let fuse = Need::Runs(&["test", "-x", "/usr/sbin/mount.fuse"]);
    let needs = [&NEEDS[..], &[fuse, Need::Tool("unshare"), Need::Tool("mount")]].concat();
    if !requirement::require("mount::life::mount8", &needs) {
        return;
    }
    let _lock = machine_lock();
    let (volume, point) = (volume(), tempfile::Builder::new().prefix("uext4-testmnt-").tempdir().unwrap());
    let programs = Path::new(UEXT4).parent().unwrap();
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", BY_MOUNT, "-"]).arg(volume.path()).args([point.path(), programs]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{said}");
    assert_eq!(said, "5\none\nuext4 mount: unknown mount option `wrong`\n");
    volume.assert_clean();
}
