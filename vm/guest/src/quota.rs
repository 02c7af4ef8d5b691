//! Volumes that `mkfs` made with quotas: this kernel mounts them, counts on from what `mkfs` counted, and e2fsck finds
//! the counts right.

use crate::Test;
use crate::volumes::run;
use std::fs;
use std::os::unix::fs::chown;
use std::process::Command;
use uext4::mkfs::{Defaults, Kind, Options, format};
use uext4::{DeviceSpec, device};

/// Tests of this room.
pub const TESTS: &[Test] = &[
    ("vm_mkfs_quotas_are_counted_on_by_the_kernel", || counted("quota,project", "", Kind::Ext4)),
    ("vm_mkfs_quotas_of_users_alone_are_counted_on_by_the_kernel", || {
        counted("quota", "quotatype=usrquota,root_owner=1000:70000", Kind::Ext4);
    }),
    ("vm_mkfs_quotas_of_ext3_are_counted_on_by_the_kernel", || counted("quota", "", Kind::Ext3)),
];

const DEVICE: &str = "/dev/nvme0n1";

fn counted(features: &str, extended: &str, kind: Kind) {
    let mut options = Options::new(Defaults::Upstream);
    (options.kind, options.size, options.force) = (kind, Some(64 << 20), true);
    let options = options.features(features).and_then(|options| options.extended(extended)).expect("options");
    {
        let how = device::OpenOptions { write: true, force: false };
        let device = device::open(&DeviceSpec::file(DEVICE), how).expect("the device").device;
        format(&*device, &options).expect("a volume");
    }
    run("/sbin/e2fsck", &["-fn", DEVICE]);
    run("mount", &["-t", "ext4", DEVICE, "/mnt"]);
    let filled = std::panic::catch_unwind(fill);
    run("umount", &["/mnt"]);
    filled.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    run("/sbin/e2fsck", &["-fn", DEVICE]);
    // The counts are the kernel's: a wrong one is found.
    let superblock = Command::new("/sbin/dumpe2fs").args(["-h", DEVICE]).output().expect("dumpe2fs");
    let superblock = String::from_utf8_lossy(&superblock.stdout).into_owned();
    assert!(superblock.contains("User quota inode:         3"), "{superblock}");
    let quota = Command::new("/sbin/debugfs").args(["-R", "lq user", DEVICE]).output().expect("debugfs");
    let quota = String::from_utf8_lossy(&quota.stdout).into_owned();
    let of_a_user = quota.lines().find(|line| line.split_whitespace().next() == Some("4321"));
    assert!(of_a_user.is_some_and(|line| line.contains("20480")), "{quota}");
}

/// Files of several owners, some of them removed.
fn fill() {
    for number in 0..40_u32 {
        let name = format!("/mnt/file-{number}");
        fs::write(&name, vec![7; 4096]).expect("a file");
        chown(&name, Some(4321 + number % 4), Some(100_000 + number % 3)).expect("an owner");
    }
    for number in 20..40 {
        fs::remove_file(format!("/mnt/file-{number}")).expect("the file");
    }
}
