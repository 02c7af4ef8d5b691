//! Several users on one mount: the kernel checks permissions, the server gives owners, strips privileges and keeps
//! access control lists.

use super::{Mounted, NEEDS, UEXT4, as_user, mode, volume};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use uext4_testkit::{Need, VolumeBuilder, requirement};

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// What the users do: the same here and on the kernel's ext4.
fn play(root: &Path) -> Vec<String> {
    let mut told = Vec::new();
    let mut does = |uid: u32, gid: u32, groups: &str, script: &str| {
        let (code, said) = as_user(uid, gid, groups, script, root);
        told.push(format!("{uid} {script}: {code} {}", said.replace(root.to_str().unwrap(), "")));
    };
    chmod(root, 0o755);
    for (name, mode) in [("open", 0o777), ("sticky", 0o1777), ("group", 0o2775), ("closed", 0o700)] {
        std::fs::create_dir(root.join(name)).unwrap();
        chmod(&root.join(name), mode);
    }
    chown(root.join("group"), None, Some(500)).unwrap();
    does(1000, 1000, "", "echo a > open/a; echo b > new; echo c > closed/c");
    does(1000, 1000, "", "umask 027; echo u > open/u; mkdir open/du; stat -c '%u %g %a' open/u open/du");
    does(1001, 1001, "", "cat open/u; cat open/a; echo x >> open/a; rm -f open/u; ls open");
    does(1000, 1000, "", "echo s > sticky/s; ln -s s sticky/l");
    does(1001, 1001, "", "rm -f sticky/s; mv sticky/s sticky/t; echo o > sticky/o");
    does(1002, 1002, "500", "echo g > group/g; mkdir group/d; stat -c '%u %g %a' group/g group/d");
    does(1001, 1001, "", "echo g > group/h");
    does(1000, 1000, "500,7", "touch open/t; chgrp 500 open/t; chgrp 8 open/t; stat -c '%u %g' open/t");
    does(1000, 1000, "", "chown 1001 open/a; chmod 4755 open/a; stat -c '%u %a' open/a");
    // Set-id bits go with the first change by somebody else, and stay for root.
    let target = root.join("open/suid");
    for change in [
        "echo x >> open/suid",
        "truncate -s 3 open/suid",
        ": > open/suid",
        "fallocate -l 9000 open/suid",
        "fallocate -p -l 4096 open/suid",
        "dd if=open/a of=open/suid conv=notrunc oflag=direct bs=4096 status=none",
        "python3 -c 'import os; os.copy_file_range(os.open(\"open/a\",0),os.open(\"open/suid\",1),3)'",
    ] {
        for (uid, bits) in [(1000, 0o6777), (1000, 0o2767), (0, 0o6777)] {
            std::fs::write(&target, [7; 5000]).unwrap();
            chmod(&target, bits);
            does(uid, uid, "", change);
            does(uid, uid, "", "stat -c %a open/suid");
        }
    }
    chmod(&target, 0o6777);
    does(0, 0, "", "chown 1000 open/suid; stat -c %a open/suid");
    // Also if it names nobody: that is a change, too.
    for uid in [1000, 0] {
        chmod(&target, 0o6777);
        let nobody = "import os, time; then = os.stat(\"open/suid\").st_ctime_ns; time.sleep(0.02); \
                      os.chown(\"open/suid\", -1, -1); now = os.stat(\"open/suid\"); \
                      print(oct(now.st_mode), now.st_ctime_ns > then)";
        does(uid, uid, "", &format!("python3 -c '{nobody}'"));
    }
    told
}

#[test]
fn root_users_may_what_the_kernels_ext4_lets_them() {
    let needs = [&NEEDS[..], &[Need::Tool("setpriv"), Need::Tool("python3")]].concat();
    if !requirement::require("mount::users::several", &needs) {
        return;
    }
    let (ours, theirs) = (volume(), volume());
    let mounted = Mounted::new(ours.path(), "allow_other,suid,dev");
    let found = play(mounted.path());
    mounted.unmount();
    ours.assert_clean();
    let expected = theirs.with_kernel(play);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

/// Lists and other attributes, the same on both.
fn attributes(root: &Path) -> Vec<String> {
    let mut told = Vec::new();
    let mut does = |uid: u32, script: &str| {
        let (code, said) = as_user(uid, uid, "", script, root);
        told.push(format!("{script}: {code} {}", said.replace(root.to_str().unwrap(), "")));
    };
    chmod(root, 0o777);
    does(1000, "umask 077; echo x > f; mkdir d; setfacl -m u:1001:rw f; getfacl -c f; stat -c %a f");
    does(1001, "cat f; echo more >> f; setfacl -m u:1002:r f");
    does(1002, "cat f");
    does(
        1000,
        "setfacl -d -m u:1001:rwx,g::rx,o::- d; umask 022; echo y > d/g; mkdir d/e; getfacl -c d/g d/e",
    );
    does(1000, "chmod 600 f; getfacl -c f; setfacl -b f; getfacl -c f");
    does(1000, "setfacl -m u::rw,g::rw,o::r f; stat -c %a f");
    // Not in the group: set-group-id goes with a new list.
    does(0, "chgrp 500 f; chmod 2775 f");
    does(1000, "setfacl -m u:1001:rwx f; stat -c %a f");
    let script = "python3 -c '
import os
def tell(call):
    try: print(call())
    except OSError as e: print(e.errno)
tell(lambda: os.setxattr(\"f\", \"user.a\", b\"value\"))
tell(lambda: os.setxattr(\"f\", \"user.a\", b\"value\", os.XATTR_CREATE))
tell(lambda: os.setxattr(\"f\", \"user.b\", b\"value\", os.XATTR_REPLACE))
tell(lambda: os.setxattr(\"f\", \"user.empty\", b\"\"))
tell(lambda: os.setxattr(\"f\", \"user.long\", b\"v\" * 3000))
tell(lambda: os.setxattr(\"f\", \"user.longer\", b\"v\" * 60000))
tell(lambda: os.setxattr(\"f\", \"trusted.t\", b\"t\"))
tell(lambda: os.setxattr(\"f\", \"nonsense\", b\"t\"))
tell(lambda: sorted(os.listxattr(\"f\")))
tell(lambda: os.getxattr(\"f\", \"user.a\"))
tell(lambda: os.getxattr(\"f\", \"user.none\"))
for name in (\"user.\", \"trusted.none\", \"security.none\", \"system.none\", \"nonsense\"):
    tell(lambda: os.getxattr(\"f\", name))
tell(lambda: len(os.getxattr(\"f\", \"user.long\")))
tell(lambda: os.removexattr(\"f\", \"user.a\"))
tell(lambda: os.removexattr(\"f\", \"user.a\"))
os.path.islink(\"l\") or os.symlink(\"f\", \"l\")
tell(lambda: os.setxattr(\"l\", \"user.a\", b\"value\", follow_symlinks=False))
'";
    does(1000, script);
    does(0, script);
    told
}

#[test]
fn root_attributes_and_lists_are_the_kernels() {
    let needs = [&NEEDS[..], &[Need::Tool("setpriv"), Need::Tool("setfacl"), Need::Tool("python3")]].concat();
    if !requirement::require("mount::users::attributes", &needs) {
        return;
    }
    let (ours, theirs) = (volume(), volume());
    let mounted = Mounted::new(ours.path(), "allow_other");
    let found = attributes(mounted.path());
    mounted.unmount();
    ours.assert_clean();
    let expected = theirs.with_kernel(attributes);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

/// No flags at all: that of extents may stay, the others go.
const NO_FLAGS: &str = "echo x > i; chattr +iSd i; \
     python3 -c 'import fcntl; fcntl.ioctl(open(\"i\"), 0x40086602, bytes(4))' 2> /dev/null; \
     lsattr i | cut -c1-14; rm i";

/// Flags and times.
fn flags(root: &Path) -> Vec<String> {
    let mut told = Vec::new();
    for script in [
        "echo x > i; chattr +i i; echo y > i; rm -f i; ln i j; touch i; chmod 600 i; lsattr i | cut -c1-22",
        "chattr -i i; rm i",
        NO_FLAGS,
        "exec 9> o; echo x >&9; chattr +i o; echo y >&9; echo $?; chattr -i o; echo z >&9; exec 9>&-; cat o; rm o",
        "echo x > a; chattr +a a; echo y >> a; echo z > a; truncate -s 0 a; rm -f a; cat a",
        "dd if=a of=a conv=notrunc status=none; fallocate -p -l 1 a; chattr -a a",
        "echo x > d; chattr +dA d; lsattr d | cut -c1-22",
        "mkdir s; chattr +D s; lsattr -d s | cut -c1-22",
        "touch -d '1960-01-02 03:04:05.123456789 UTC' t; TZ=UTC stat -c '%x %y' t",
        "touch -d '2400-01-02 03:04:05.123456789 UTC' t; TZ=UTC stat -c '%x %y' t",
        "touch -a -d '2001-01-01 UTC' t; TZ=UTC stat -c '%x %y' t",
    ] {
        let (code, said) = as_user(0, 0, "", script, root);
        told.push(format!("{script}: {code} {}", said.replace(root.to_str().unwrap(), "")));
    }
    told
}

#[test]
fn root_flags_and_times_are_the_kernels() {
    let needs = [&NEEDS[..], &[Need::Tool("setpriv"), Need::Tool("chattr"), Need::Tool("python3")]].concat();
    if !requirement::require("mount::users::flags", &needs) {
        return;
    }
    let (ours, theirs) = (volume(), volume());
    let mounted = Mounted::new(ours.path(), "allow_other");
    let found = flags(mounted.path());
    assert_eq!(mode(mounted.path()), 0o755);
    assert_eq!(std::fs::metadata(mounted.path()).unwrap().uid(), 0);
    mounted.unmount();
    ours.assert_clean();
    let expected = theirs.with_kernel(flags);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

#[test]
fn root_set_group_id_stays_for_members_of_the_group() {
    let needs = [&NEEDS[..], &[Need::Tool("setpriv"), Need::Tool("python3")]].concat();
    if !requirement::require("mount::users::members", &needs) {
        return;
    }
    // The group is not the caller's first one.
    let make = |groups: &str, name: &str, point: &Path| {
        let script = format!(
            "umask 0; python3 -c \"import os; os.close(os.open('shared/{name}', os.O_CREAT | os.O_WRONLY, 0o2755)); \
             os.mkdir('shared/{name}.d', 0o755)\" && stat -c '%n %a %g' shared/{name} shared/{name}.d"
        );
        as_user(1000, 1000, groups, &script, point)
    };
    let made = |point: &Path| {
        let shared = point.join("shared");
        std::fs::create_dir(&shared).unwrap();
        std::os::unix::fs::chown(&shared, Some(0), Some(2000)).unwrap();
        chmod(&shared, 0o2777);
        chmod(point, 0o755);
        [make("2000", "member", point), make("3000", "other", point)]
    };
    let (ours, theirs) = (volume(), volume());
    let mounted = Mounted::new(ours.path(), "allow_other");
    let found = made(mounted.path());
    mounted.unmount();
    ours.assert_clean();
    assert_eq!(found, theirs.with_kernel(made));
    assert!(found[0].1.contains("member 2755 2000") && found[1].1.contains("other 755 2000"), "{found:?}");
}

#[test]
fn root_programs_read_the_label_and_trim() {
    let needs = [&NEEDS[..], &[Need::Tool("setpriv"), Need::Tool("fstrim"), Need::Tool("python3")]].concat();
    if !requirement::require("mount::users::trim", &needs) {
        return;
    }
    // What `ioctl` gives or fails with: the label, a trim of less than a block, one beyond the end, one by a user.
    let script = "import fcntl, os, struct, sys
def ask(command, *range):
    try:
        given = struct.pack('QQQ', *range) if range else bytes(256)
        return fcntl.ioctl(os.open('.', os.O_RDONLY), command, given).rstrip(b'\\0')
    except OSError as error:
        return error.errno
print(ask(0x81009431), ask(0xc0185879, 0, 4095, 0), ask(0xc0185879, 64 << 20, 4096, 0))
os.setresuid(1000, 1000, 1000)
print(ask(0xc0185879, 0, 1 << 62, 0))";
    let asked = |point: &Path| {
        let output = Command::new("python3").args(["-c", script]).current_dir(point).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let build = || VolumeBuilder::new(64 << 20).args(["-b", "4096", "-L", "a label"]).build();
    let (ours, theirs) = (build(), build());
    let mounted = Mounted::new(ours.path(), "allow_other");
    chmod(mounted.path(), 0o755);
    let found = asked(mounted.path());
    // Space that a file had goes back to the host.
    let held = || std::fs::metadata(ours.path()).unwrap().blocks() * 512;
    std::fs::write(mounted.at("file"), vec![7; 16 << 20]).unwrap();
    std::fs::File::open(mounted.at("file")).unwrap().sync_all().unwrap();
    let full = held();
    std::fs::remove_file(mounted.at("file")).unwrap();
    super::drop_caches();
    std::fs::File::open(mounted.path()).unwrap().sync_all().unwrap();
    let trimmed = Command::new("fstrim").arg("-v").arg(mounted.path()).output().unwrap();
    assert!(trimmed.status.success(), "{}", String::from_utf8_lossy(&trimmed.stderr));
    assert!(held() + (15 << 20) <= full, "{full} {}", held());
    mounted.unmount();
    ours.assert_clean();
    let expected = theirs.with_kernel(|point| {
        chmod(point, 0o755);
        asked(point)
    });
    assert_eq!(found, expected);
}

#[test]
fn root_limits_hold_for_users_and_not_for_root() {
    let needs = [&NEEDS[..], &[Need::Tool("setpriv"), Need::Tool("setfattr")]].concat();
    if !requirement::require("mount::users::limits", &needs) {
        return;
    }
    let volume = VolumeBuilder::new(64 << 20).args(["-b", "4096", "-O", "quota"]).build();
    let quota = ["quota", "--user", "--space", "0:8K", volume.path().to_str().unwrap(), "1000"];
    assert!(Command::new(UEXT4).args(quota).status().unwrap().success());
    let mounted = Mounted::new(volume.path(), "allow_other");
    chmod(mounted.path(), 0o777);
    let as_them = |script: &str| as_user(1000, 1000, "", script, mounted.path());
    // Two blocks are all; an attribute of this size needs a third.
    assert_eq!(as_them("head -c 8192 /dev/zero > file"), (0, String::new()));
    let large = format!("setfattr -n user.large -v {} file", "v".repeat(2000));
    for over in ["head -c 4096 /dev/zero >> file", large.as_str(), "fallocate -l 20000 file"] {
        let (code, said) = as_them(over);
        assert!(code != 0 && said.contains("quota exceeded"), "{over}: {said}");
    }
    let (code, said) = as_user(0, 0, "", &large, mounted.path());
    assert_eq!(code, 0, "{said}");
    mounted.unmount();
    volume.assert_clean();
}

const ACL: &str = "system.posix_acl_access";

/// The bytes of an access control list with these users and a group.
fn list(users: &[u32], group: u32) -> Vec<u8> {
    let entry = |tag: u16, number: u32| [&tag.to_le_bytes()[..], &[6, 0], &number.to_le_bytes()].concat();
    let mut list = vec![2, 0, 0, 0];
    list.extend(entry(1, u32::MAX));
    list.extend(users.iter().flat_map(|&user| entry(2, user)));
    list.extend([entry(4, u32::MAX), entry(8, group), entry(16, u32::MAX), entry(32, u32::MAX)].concat());
    list
}

fn list_of(path: &Path) -> Result<Vec<u8>, rustix::io::Errno> {
    let mut bytes = vec![0; 200];
    let length = rustix::fs::getxattr(path, ACL, &mut bytes[..])?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Users and groups in access control lists: those of the volume are shown, those that are given are stored.
fn mapped_lists(root: &Path) {
    assert_eq!(list_of(&root.join("listed")), Ok(list(&[NOBODY, 9], NOBODY)));
    // Who is named there may read it.
    assert_eq!(as_user(NOBODY, 9, "", "cat listed", root).1, "listed");
    assert_eq!(list_of(&root.join("both")), Err(rustix::io::Errno::OPNOTSUPP));
    let set = |name: &str, list: &[u8]| {
        rustix::fs::setxattr(root.join(name), ACL, list, rustix::fs::XattrFlags::empty())
    };
    assert_eq!(set("kept", &list(&[NOBODY, 11], NOBODY)), Ok(()));
    assert_eq!(set("kept", &list(&[5, NOBODY], 11)), Err(rustix::io::Errno::OPNOTSUPP));
}

/// What `uidmap=owner` shows and stores, seen by a user and by root, with the volume's owners as debugfs has them.
fn mapped(root: &Path) {
    let does = |uid: u32, gid: u32, groups: &str, script: &str| as_user(uid, gid, groups, script, root);
    let shown = |names: &str| does(0, 0, "", &format!("stat -c '%n %u %g' {names}")).1;
    assert_eq!(shown("kept"), "kept 7 8\n");
    assert_eq!(does(NOBODY, NOBODY, "", "mkdir d && echo x > d/f && mkfifo p && ln -s f l").0, 0);
    assert_eq!(shown(". d d/f p"), [".", "d", "d/f", "p"].map(|n| format!("{n} 65534 65534\n")).concat());
    // What another user makes, and what root gives away, is as it is.
    assert_eq!(does(0, 0, "", "echo r > r; echo n > n; chown 65534:65534 n; echo o > o; chown 41:42 o").0, 0);
    assert_eq!(shown("r n o"), "r 0 0\nn 65534 65534\no 41 42\n");
    // A chown to what is shown stores the owner, and the user has no right to give away.
    assert_eq!(does(NOBODY, NOBODY, "", "chown 65534:65534 d/f").0, 0);
    assert_ne!(does(NOBODY, NOBODY, "", "chown 41 d/f").0, 0);
    // Set-group-id: the group of the directory, and whoever is in it may keep the bit.
    assert_eq!(
        does(NOBODY, NOBODY, "", "mkdir s && chmod 2775 s && mkdir s/t && stat -c '%g %a' s/t").1,
        "65534 2755\n"
    );
}

/// The user of every Debian that has no rights.
const NOBODY: u32 = 65534;

#[test]
fn root_the_owner_of_the_volume_appears_as_who_mounts() {
    let needs = [&NEEDS[..], &[Need::Tool("setpriv"), Need::Tool("debugfs")]].concat();
    if !requirement::require("mount::users::mapped", &needs) {
        return;
    }
    let volume = volume();
    let set = |what: &str| uext4_testkit::oracle::debugfs_write(volume.path(), what);
    set("set_inode_field / uid 5");
    set("set_inode_field / gid 6");
    volume.with_kernel(|root| {
        std::fs::write(root.join("kept"), "kept").unwrap();
        chown(root.join("kept"), Some(7), Some(8)).unwrap();
        for (name, list) in [("listed", list(&[5, 9], 6)), ("both", list(&[5, NOBODY], 6))] {
            std::fs::write(root.join(name), name).unwrap();
            std::fs::set_permissions(root.join(name), PermissionsExt::from_mode(0o660)).unwrap();
            rustix::fs::setxattr(root.join(name), ACL, &list, rustix::fs::XattrFlags::empty()).unwrap();
        }
    });
    // Root's server with the identity of an ordinary user.
    let mut command = std::process::Command::new("setpriv");
    command.args(["--ruid", "65534", "--rgid", "65534", "--clear-groups", UEXT4]);
    let mounted = Mounted::by(command, volume.path(), "uidmap=owner,allow_other");
    mapped(mounted.path());
    mapped_lists(mounted.path());
    mounted.unmount();
    volume.assert_clean();
    volume.with_kernel(|root| assert_eq!(list_of(&root.join("kept")), Ok(list(&[5, 11], 6))));
    let stored = |name: &str| {
        let found = volume.with_kernel(|root| std::fs::symlink_metadata(root.join(name)).unwrap());
        (found.uid(), found.gid())
    };
    for name in ["d", "d/f", "p", "l", "n", "s/t"] {
        assert_eq!(stored(name), (5, 6), "{name}");
    }
    assert_eq!((stored("r"), stored("o"), stored("kept")), ((0, 0), (41, 42), (7, 8)));
}
