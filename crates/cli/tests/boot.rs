//! A machine boots from a volume that `mkfs -d` made, as the guide says: `scripts/vm-test.sh` names the kernel and the
//! initramfs in `UEXT4_BOOT`.

use crate::common;

use common::good;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs, oracle};

/// What the machine's first process does: it says that it runs, writes a file, and ends.
const INIT: &str = "#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -o remount,rw /
echo \"BOOTED $(cat /etc/hostname) $(stat -c %u:%g:%a /bin/busybox)\"
mkdir /var/log/new
echo written > /var/log/new/file
rm /etc/motd
mount -o remount,ro /
poweroff -f
";
/// Longer than a boot takes in software emulation on a busy machine.
const SECONDS: &str = "120";

#[test]
fn vm_a_machine_boots_from_a_volume_and_leaves_a_layer() {
    let Some(boot) = std::env::var_os("UEXT4_BOOT").map(PathBuf::from) else {
        println!("SKIP vm_a_machine_boots_from_a_volume_and_leaves_a_layer: needs a kernel (UEXT4_BOOT)");
        return;
    };
    needs!(Need::Vm, Need::Tool("tar"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let root = scratch.file("rootfs");
    for directory in ["bin", "sbin", "etc", "proc", "dev", "var/log"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    let busybox = oracle::run(Command::new("sh").args(["-c", "command -v busybox"]));
    fs::copy(busybox.trim(), root.join("bin/busybox")).unwrap();
    for name in ["sh", "mount", "cat", "stat", "mkdir", "rm", "poweroff"] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    fs::write(root.join("sbin/init"), INIT).unwrap();
    fs::set_permissions(root.join("sbin/init"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(root.join("etc/motd"), "hello").unwrap();
    let (tar, image, base) = (scratch.file("rootfs.tar"), scratch.file("root.img"), scratch.file("base.img"));
    oracle::run(oracle::command("tar").args(["--format=pax", "-cf"]).arg(&tar).arg("-C").arg(&root).arg("."));
    let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let mkfs =
        words(&["mkfs", "-q", "--size", "auto", "--free", "16M", "-L", "root", "--owner", "0:0", "-d"]);
    good([&mkfs[..], &[tar.into(), image.clone().into()]].concat());
    fs::write(scratch.file("hostname"), "box\n").unwrap();
    let line = format!("cp 'host:{}' /etc/hostname", scratch.file("hostname").display());
    good([&words(&["shell"])[..], &[image.clone().into()], &words(&["-c", &line])].concat());
    good([&words(&["check"])[..], &[image.clone().into()]].concat());
    fs::copy(&image, &base).unwrap();

    let kernel = fs::read_dir(&boot).unwrap().map(|entry| entry.unwrap().path());
    let [kernel, initrd] = {
        let mut all: Vec<PathBuf> = kernel.collect();
        all.sort();
        <[PathBuf; 2]>::try_from(all).unwrap_or_else(|all| panic!("a kernel and an initramfs, not {all:?}"))
    };
    let drive = format!("file={},if=none,format=raw,cache=unsafe,id=root", image.display());
    let mut qemu = Command::new("timeout");
    qemu.args([SECONDS, "qemu-system-x86_64", "-accel", "tcg,thread=single", "-cpu", "max", "-m", "512"]);
    qemu.args(["-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio", "-monitor", "none"]);
    qemu.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
    qemu.args(["-append", "console=ttyS0 quiet panic=-1 mitigations=off", "-drive", &drive]);
    qemu.args(["-device", "nvme,id=root,serial=uext4", "-device", "nvme-ns,drive=root,bus=root,nsid=1"]);
    let console = oracle::text(&qemu.stdin(Stdio::null()).output().unwrap());
    let mode = fs::metadata(root.join("bin/busybox")).unwrap().permissions().mode() & 0o7777;
    assert!(console.contains(&format!("BOOTED box 0:0:{mode:o}")), "{console}");
    e2fsck_clean(&image);
    let layer = scratch.file("changes.tar");
    let diff = [OsString::from("--diff"), base.into(), layer.clone().into()];
    good([&words(&["export"])[..], &[image.into()], &diff].concat());
    let listed = oracle::run(oracle::command("tar").arg("-tf").arg(&layer));
    for name in ["etc/.wh.motd\n", "var/log/new/\n", "var/log/new/file\n"] {
        assert!(listed.contains(name), "{listed}");
    }
    assert!(!listed.contains("busybox"), "{listed}");
}
