//! `cp -a` and `-p`: owner, mode, times, extended attributes and access control lists, and what a hostile volume may
//! not make of them.

use crate::common;

use common::{NOBODY, at, good, outside, troubled, uext4, unprivileged};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};
use uext4_testkit::{Need, Volume, VolumeBuilder, needs, oracle};

/// The value of an attribute on the host, of a link itself.
fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 64 << 10];
    let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

/// Changes a byte of the one place of the image where `word` stands.
fn damage(volume: &Volume, word: &[u8]) {
    let mut image = std::fs::read(volume.path()).unwrap();
    let places: Vec<usize> =
        (0..image.len() - word.len()).filter(|at| image[*at..].starts_with(word)).collect();
    assert_eq!(places.len(), 1);
    image[places[0]] ^= 0x20;
    std::fs::write(volume.path(), image).unwrap();
}

/// `/own` and `/other` with attributes in a block, of which `user.b` is damaged; the first belongs to who copies.
fn badly_attributed() -> Volume {
    // Attributes in a block: each has a hash; nothing else has a checksum.
    let args = ["-b", "4096", "-I", "128", "-O", "^metadata_csum,^has_journal"];
    let volume = VolumeBuilder::new(8 << 20).args(args).build();
    let content = volume.scratch().file("content");
    std::fs::write(&content, "content").unwrap();
    let (uid, gid) = match rustix::process::geteuid() {
        uid if uid.is_root() => (NOBODY, NOBODY),
        uid => (uid.as_raw(), rustix::process::getegid().as_raw()),
    };
    oracle::debugfs_script(
        volume.path(),
        &format!(
            "write {} /own\nea_set /own user.a before\nea_set /own user.b damaged!\nea_set /own user.c behind\n\
             set_inode_field /own mode 0104751\nset_inode_field /own mtime @1000000000\n\
             copy_inode /own <100>\nlink <100> /other\n\
             set_inode_field /own uid {uid}\nset_inode_field /own gid {gid}\n\
             set_inode_field /other uid 12345\nset_inode_field /other gid 12345\n",
            content.display()
        ),
    );
    damage(&volume, b"damaged!");
    volume
}

#[test]
fn a_bad_attribute_costs_only_itself() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = badly_attributed();
    let root = rustix::process::geteuid().is_root();
    let probe = volume.scratch().file("probe");
    std::fs::write(&probe, "").unwrap();
    let takes = rustix::fs::setxattr(&probe, "user.a", b"", rustix::fs::XattrFlags::empty()).is_ok();
    for privileged in [root, false] {
        let out = volume.scratch().file("out");
        let args = ["cp".into(), "-a".into(), at(&volume, "/"), out.as_os_str().to_owned()];
        let output = if privileged { uext4(&args) } else { unprivileged(&volume, &args) };
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        for name in ["own", "other"] {
            let path = out.join(name);
            let kept = ["user.a", "user.b", "user.c"].map(|name| xattr(&path, name));
            let expected = [Some(b"before".to_vec()), None, Some(b"behind".to_vec())];
            assert!(!takes || kept == expected, "{name}: {kept:?}");
            let metadata = std::fs::metadata(&path).unwrap();
            // Set-uid goes with the owner.
            let mode = if name == "own" || privileged { 0o4751 } else { 0o751 };
            assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (mode, 1_000_000_000), "{name}");
            assert!(!privileged || metadata.uid() == if name == "own" { NOBODY } else { 12345 });
        }
        assert_eq!(told.lines().count(), 2, "{told}");
        assert!(
            told.lines().all(|line| line.contains(": attribute user.b: ") && line.contains("hash")),
            "{told}"
        );
        std::fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn root_no_set_uid_without_the_owner() {
    const LESS: [&str; 3] = ["setpriv", "--bounding-set=-chown", "--inh-caps=-chown"];
    // Who may not give rights up keeps them without a word: the lowest bit is that of giving files away.
    const NO_CHOWN: [&str; 4] = ["grep", "-q", "^CapEff:.*[02468ace]$", "/proc/self/status"];
    let able = Need::Runs(&[LESS[0], LESS[1], LESS[2], NO_CHOWN[0], NO_CHOWN[1], NO_CHOWN[2], NO_CHOWN[3]]);
    needs!(Need::Root, Need::Tool("mke2fs"), Need::Tool("debugfs"), able);
    let volume = badly_attributed();
    let out = volume.scratch().file("out");
    // A root who may not give files away.
    let mut copy = oracle::command(LESS[0]);
    copy.args(&LESS[1..]).args([env!("CARGO_BIN_EXE_uext4"), "cp", "-a"]);
    let output = copy.arg(at(&volume, "/other")).arg(&out).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    let metadata = std::fs::metadata(&out).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (0o751, 1_000_000_000), "{told}");
    let troubles: Vec<&str> = told.lines().collect();
    assert!(
        matches!(troubles[..], [owner, bad] if owner.contains("/out: set owner: ") && bad.contains("user.b: ")),
        "{told}"
    );
}

#[test]
fn root_attributes_of_links_and_nodes_are_copied() {
    needs!(Need::Root, Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let args = ["-b", "4096", "-I", "128", "-O", "^metadata_csum,^has_journal"];
    let volume = VolumeBuilder::new(8 << 20).args(args).build();
    let outside = outside(&volume);
    let victim = outside.join("victim");
    let mut requests =
        format!("symlink link {}\nmknod pipe p\nmknod null c 1 3\nmkdir dir\n", victim.display());
    for name in ["link", "pipe", "null", "dir"] {
        requests +=
            &format!("ea_set /{name} trusted.a of-{name}\nea_set /{name} trusted.b damaged-{name}!\n");
        // Which only files and directories may have in Linux: as cp(1), without a word.
        requests += &format!("ea_set /{name} user.c none\nset_inode_field /{name} mtime @1000000000\n");
        requests += &format!("set_inode_field /{name} uid 12345\n");
    }
    requests += "set_inode_field /pipe mode 0010622\n";
    oracle::debugfs_script(volume.path(), &requests);
    damage(&volume, b"damaged-pipe!");
    let out = volume.scratch().file("out");
    let told = troubled(&volume, "/", &out);
    for name in ["link", "pipe", "null", "dir"] {
        let path = out.join(name);
        assert_eq!(xattr(&path, "trusted.a"), Some(format!("of-{name}").into_bytes()), "{name}: {told}");
        let other = (name != "pipe").then(|| format!("damaged-{name}!").into_bytes());
        assert_eq!(xattr(&path, "trusted.b"), other, "{name}");
        let metadata = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!((metadata.uid(), metadata.mtime()), (12345, 1_000_000_000), "{name}");
    }
    assert_eq!(std::fs::metadata(out.join("pipe")).unwrap().mode() & 0o7777, 0o622);
    assert!(told.lines().count() == 1 && told.contains(":/pipe: attribute trusted.b: "), "{told}");
    assert_eq!((xattr(&victim, "trusted.a"), std::fs::metadata(&victim).unwrap().uid()), (None, 0));
}

#[test]
fn files_that_share_a_value_do_not_fill_the_host() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    // debugfs takes values of up to a block.
    let options = "ea_inode,^metadata_csum,^has_journal";
    let volume = VolumeBuilder::new(8 << 20).args(["-b", "65536", "-N", "1280", "-O", options]).build();
    let empty = volume.scratch().file("empty");
    let value = volume.scratch().file("value");
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&value, vec![7; 64 << 10]).unwrap();
    let mut requests = format!(
        "write {} /f0\nea_set -f {} /f0 user.large\nmkdir /honest\nmkdir /hostile\n",
        empty.display(),
        value.display()
    );
    // As many inodes as share an attribute block, and one of them under the names that are too many.
    for ino in 100..100 + 1023 {
        requests += &format!("copy_inode /f0 <{ino}>\nlink <{ino}> /honest/f{ino}\n");
    }
    for n in 0..3000 {
        requests += &format!("link <100> /hostile/f{n}\n");
    }
    requests += &format!("write {} /hostile/last\n", empty.display());
    oracle::debugfs_script(volume.path(), &requests);
    let count = |out: &Path| std::fs::read_dir(out).unwrap().count();
    let copied = |source: &str, name: &str| {
        let out = volume.scratch().file(name);
        let output = uext4(["cp".into(), "-a".into(), at(&volume, source), out.as_os_str().to_owned()]);
        (String::from_utf8(output.stderr).unwrap(), out)
    };
    // The host may have no place for such values, or no room, which is told in other words.
    let probe = rustix::fs::setxattr(&empty, "user.large", &[7; 64 << 10], rustix::fs::XattrFlags::empty());
    println!("the host takes such values: {probe:?}");
    let takes = |told: &str| probe.is_ok() && !told.contains(": attribute user.large: ");
    let with = |out: &Path| {
        let entries = std::fs::read_dir(out).unwrap();
        entries.filter(|entry| xattr(&entry.as_ref().unwrap().path(), "user.large").is_some()).count()
    };
    let (told, out) = copied("/honest", "out");
    assert!(!told.contains("they share values"), "{told}");
    assert_eq!(count(&out), 1023);
    assert!(!takes(&told) || with(&out) == 1023, "{}: {told}", with(&out));
    let (told, out) = copied("/", "all");
    // As many as the volume has bytes, and 64 MiB, less 128 bytes for each file and each value.
    let all = with(&out.join("honest")) + with(&out.join("hostile"));
    assert!(all <= 8 * 16 + 1024, "{all}");
    assert!(!takes(&told) || all > 8 * 16 + 1024 - 10, "{all}: {told}");
    let shared: Vec<&str> = told.lines().filter(|line| line.contains("they share values")).collect();
    assert_eq!(shared.len(), 100, "{told}");
    assert!(shared[0].contains(":/hostile/f") && shared[0].contains("inode 100"), "{}", shared[0]);
    let last = told.lines().last().unwrap();
    let more = last.split_once("attributes of ").and_then(|(_, rest)| rest.split(' ').next()).unwrap();
    assert!((2700..2900).contains(&more.parse().unwrap()), "{last}");
    assert_eq!(
        (count(&out.join("honest")), count(&out.join("hostile"))),
        (1023, 3001),
        "the contents are copied"
    );
}

/// A directory full of names, all of the one file `/f`, whose attribute block is full of entries that are bad. The
/// volume has `blocks` blocks of `block` bytes.
fn crammed(block: usize, blocks: usize, names: usize) -> Volume {
    let size = block.to_string();
    let args =
        ["-b", &size, "-I", "128", "-N", "16", "-O", "^metadata_csum,^has_journal,^dir_index,^resize_inode"];
    let volume = VolumeBuilder::new((block * blocks) as u64).args(args).build();
    let scratch = volume.scratch();
    let (empty, full) = (scratch.file("empty"), scratch.file("full"));
    std::fs::write(&empty, "").unwrap();
    // In the one group of the volume `/f` is the first inode.
    let per_block = block / 12;
    let mut directory = Vec::new();
    for n in 0..names {
        let last = n % per_block == per_block - 1 || n == names - 1;
        let rest = block - directory.len() % block;
        let length = if last { rest } else { 12 };
        let (name, kind, ino) = match n {
            0 => (*b".\0\0\0", 1, 12u32),
            1 => (*b"..\0\0", 2, 2),
            n => ([0, 6, 12, 18].map(|shift| b'0' + (n >> shift & 63) as u8), 4, 11),
        };
        directory.extend(ino.to_le_bytes());
        directory.extend((length as u16).to_le_bytes());
        directory.extend([kind, if n < 2 { 2 } else { 1 }]);
        directory.extend(name);
        directory.resize(directory.len() + length - 12, 0);
    }
    std::fs::write(&full, &directory).unwrap();
    let value = "v".repeat(700);
    oracle::debugfs_script(
        volume.path(),
        &format!(
            "rmdir /lost+found\nwrite {} /f\nea_set /f user.marked {value}\nwrite {} /d\nstat /f\n\
             set_inode_field /d mode 040755\nset_inode_field /d links_count 2\n",
            empty.display(),
            full.display()
        ),
    );
    let mut image = std::fs::read(volume.path()).unwrap();
    let is_block = |at: &usize| image[*at..].starts_with(&[0, 0, 2, 0xea]) && image[at + 32] == 6;
    let start = (0..image.len()).step_by(block).find(is_block).unwrap();
    let entries = (0..(block - 36) / 20).flat_map(|n: usize| {
        let name = [0, 6, 12, 18].map(|shift| b'0' + (n >> shift & 63) as u8);
        // Four bytes of name, `user.`, nowhere, no other inode, empty, a wrong hash.
        [&[4, 1, 0, 0][..], &[0; 8], &0xdead_beef_u32.to_le_bytes(), &name].concat()
    });
    let entries: Vec<u8> = entries.collect();
    image[start + 32..start + block].fill(0);
    image[start + 32..start + 32 + entries.len()].copy_from_slice(&entries);
    std::fs::write(volume.path(), &image).unwrap();
    volume
}

#[test]
fn bad_attributes_are_not_multiplied_by_names() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for (block, blocks, names) in [(4096, 256, 78_000), (65536, 64, 30_000)] {
        let volume = crammed(block, blocks, names);
        let out = volume.scratch().file("out");
        let start = Instant::now();
        let told = troubled(&volume, "/d", &out);
        let took = start.elapsed();
        println!("{block}: {took:?}, {} lines", told.lines().count());
        assert!(took < Duration::from_secs(60), "{took:?}");
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), names - 2);
        assert!(told.lines().count() < names, "{}", told.lines().count());
        let first: Vec<&str> = told.lines().take(5).collect();
        assert!(first[..4].iter().all(|line| line.contains(": attribute user.")), "{first:?}");
        let more = format!("{} more attributes", (block - 36) / 20 - 4);
        assert!(first[4].contains(&more), "{first:?}");
        assert!(
            told.lines().last().unwrap().contains("more files are left out"),
            "{:?}",
            told.lines().last()
        );
    }
}

/// An access control list in the form of the system calls: tags with permissions.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let entry = |&(tag, permissions, id): &(u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2u32.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
}

const NO_ID: u32 = u32::MAX;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// What user 1000, the group, all of these at most and everybody else may do; the owner reads and writes.
fn named(user: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    list(&[(1, 6, NO_ID), (2, user, 1000), (4, group, NO_ID), (16, mask, NO_ID), (32, other, NO_ID)])
}

/// User 1000 reads and writes, the group does nothing: the mode's bits for the group are those of the mask.
fn masked() -> Vec<u8> {
    named(6, 0, 6, 0)
}

/// `/dir/file` with a mode and an access control list.
fn listed(mode: u32, list: &[u8]) -> Volume {
    let args = ["-b", "4096", "-I", "128", "-O", "^metadata_csum,^has_journal"];
    let volume = VolumeBuilder::new(8 << 20).args(args).build();
    let (empty, acl) = (volume.scratch().file("empty"), volume.scratch().file("acl"));
    std::fs::write(&empty, "").unwrap();
    std::fs::write(&acl, list).unwrap();
    oracle::debugfs_script(
        volume.path(),
        &format!(
            "mkdir /dir\nwrite {} /dir/file\nea_set -f {} /dir/file {ACCESS}\n\
             set_inode_field /dir/file mode 0100{mode:o}\n",
            empty.display(),
            acl.display()
        ),
    );
    volume
}

/// The file that one of [`WAYS`] makes.
fn made(out: &Path, name: &str) -> PathBuf {
    if name.is_empty() { out.to_owned() } else { out.join(name) }
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Copies of one file: as a tree, with attributes of the mode only, and alone.
const WAYS: [(&str, &str, &str); 3] =
    [("-a", "/dir", "file"), ("-rp", "/dir", "file"), ("-p", "/dir/file", "")];

#[test]
fn without_its_list_a_file_gives_its_group_and_others_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let list = named(6, 0, 6, 4);
    let volume = listed(0o664, &list);
    let out = volume.scratch().file("out");
    let probe = volume.scratch().file("probe");
    std::fs::write(&probe, "").unwrap();
    let takes = rustix::fs::setxattr(&probe, ACCESS, &list, rustix::fs::XattrFlags::empty()).is_ok();
    let copied = |flag: &str, source: &str| {
        // Over what is there, too.
        uext4(["cp".into(), flag.into(), at(&volume, source), out.as_os_str().to_owned()])
    };
    let remove = || if out.is_dir() { std::fs::remove_dir_all(&out) } else { std::fs::remove_file(&out) };
    for (flag, source, name) in WAYS {
        let output = copied(flag, source);
        if takes {
            assert!(output.status.success(), "{flag}: {}", oracle::text(&output));
            assert_eq!(xattr(&made(&out, name), ACCESS).as_ref(), Some(&list), "{flag}");
            assert_eq!(mode(&made(&out, name)), 0o664, "{flag}");
        }
        remove().unwrap();
    }
    // In the form of the disk, where the hash of the attribute goes over it.
    damage(&volume, &[1, 0, 6, 0, 2, 0, 6, 0, 0xe8, 3, 0, 0, 4, 0, 0, 0]);
    for (flag, source, name) in WAYS {
        let output = copied(flag, source);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{flag}: {told}");
        assert!(
            told.lines().count() == 1 && told.contains(&format!("attribute {ACCESS}: ")),
            "{flag}: {told}"
        );
        let path = made(&out, name);
        assert_eq!((mode(&path), xattr(&path, ACCESS)), (0o600, None), "{flag}");
        remove().unwrap();
    }
}

/// A namespace of mounts of its own. (Nothing is done to `/`, which in a chroot is no mount: each script keeps its
/// mounts to itself.)
const UNSHARE: [&str; 5] = ["unshare", "-m", "--propagation", "unchanged", "sh"];

/// Runs a script whose `"$0" "$@"` is the program with its arguments, with another file system at `place`, which
/// nobody else sees.
fn alone(place: &str, kind: &str, script: &str, args: &[OsString]) -> Output {
    let mut command = oracle::command(UNSHARE[0]);
    let script = format!("mount --make-rprivate {place} && mount -t {kind} none {place} && {script}");
    command.args(&UNSHARE[1..]).args(["-c", &script, env!("CARGO_BIN_EXE_uext4")]);
    command.args(args).output().unwrap()
}

const ALONE: Need = Need::Runs(&[
    "unshare",
    "-m",
    "--propagation",
    "unchanged",
    "sh",
    "-c",
    "mount --make-rprivate /proc && mount --make-rprivate /sys",
]);

#[test]
fn root_a_host_without_lists_is_told() {
    needs!(Need::Root, Need::Tool("mke2fs"), Need::Tool("debugfs"), ALONE);
    let denied = |permissions| named(permissions, 4, 4, 4);
    // Who is named may have less than everybody else: a user nothing, a group no right to write, a user as much.
    let group = list(&[(1, 6, NO_ID), (4, 6, NO_ID), (8, 4, 1000), (16, 6, NO_ID), (32, 6, NO_ID)]);
    let cases = [
        (0o660, masked(), "600"),
        (0o644, denied(0), "600"),
        (0o666, group, "664"),
        (0o644, denied(4), "644"),
        (0o664, named(6, 0, 6, 4), "600"),
    ];
    for (mode, list, expected) in cases {
        let volume = listed(mode, &list);
        for (flag, source, name) in WAYS {
            let out = Path::new("/sys/out");
            let script = format!("{{ \"$0\" \"$@\"; echo $? $(stat -c %a {}); }}", made(out, name).display());
            let args = ["cp".into(), flag.into(), at(&volume, source), out.as_os_str().to_owned()];
            let output = alone("/sys", "ramfs", &script, &args);
            let said = oracle::text(&output);
            let found = String::from_utf8_lossy(&output.stdout);
            assert_eq!(found, format!("1 {expected}\n"), "{mode:o} {flag}: {said}");
            let told = String::from_utf8(output.stderr).unwrap();
            let refused = format!("attribute {ACCESS}: set: ");
            assert!(told.lines().count() == 1 && told.contains(&refused), "{flag}: {told}");
        }
    }
}

#[test]
fn the_mode_does_not_widen_a_list() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Acl);
    // Lists that say something else than the mode: that the mask, or everybody else, may do nothing.
    let other = |permissions| named(6, 6, 6, permissions);
    let cases = [
        (0o660, other(0), 0o660, other(0)),
        (0o660, named(6, 6, 0, 0), 0o600, named(6, 6, 0, 0)),
        (0o664, other(0), 0o660, other(0)),
        // Linux looks at no list if the mode gives the group nothing; what everybody else gets, those named would.
        (0o664, named(6, 6, 0, 4), 0o600, named(6, 6, 0, 0)),
        // It does not look at this one in the volume, and must not in the copy.
        (0o604, other(4), 0o604, named(6, 6, 0, 4)),
    ];
    for (from, list, to, kept) in cases {
        let volume = listed(from, &list);
        let out = volume.scratch().file("out");
        for (flag, source, name) in WAYS {
            good(["cp".into(), flag.into(), at(&volume, source), out.as_os_str().to_owned()]);
            let path = made(&out, name);
            assert_eq!(xattr(&path, ACCESS).as_ref(), Some(&kept), "{from:o} {flag}");
            assert_eq!(mode(&path), to, "{from:o} {flag}");
            if out.is_dir() { std::fs::remove_dir_all(&out) } else { std::fs::remove_file(&out) }.unwrap();
        }
    }
}

#[test]
fn lists_of_the_destination_are_not_inherited() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Acl);
    let volume = VolumeBuilder::new(8 << 20).args(["-O", "^has_journal"]).build();
    let empty = volume.scratch().file("empty");
    std::fs::write(&empty, "").unwrap();
    oracle::debugfs_script(
        volume.path(),
        &format!(
            "mkdir /dir\nmkdir /dir/sub\nwrite {} /dir/file\nwrite {} /dir/sub/file\ncd /dir\nmknod pipe p\ncd /\n\
             symlink /dir/link file\n\
             set_inode_field /dir/file mode 0100640\nset_inode_field /dir/pipe mode 010666\n",
            empty.display(),
            empty.display()
        ),
    );
    let base = volume.scratch().file("base");
    std::fs::create_dir(&base).unwrap();
    let given = list(&[(1, 7, NO_ID), (2, 7, 1000), (4, 5, NO_ID), (16, 7, NO_ID), (32, 5, NO_ID)]);
    rustix::fs::setxattr(&base, DEFAULT, &given, rustix::fs::XattrFlags::empty()).unwrap();
    for (flag, to) in [("-a", "archived"), ("-rp", "preserved"), ("-a", "over/dir")] {
        let out = base.join(to);
        let mut dest = out.as_path();
        if to == "over/dir" {
            std::fs::create_dir_all(&out).unwrap();
            assert!(xattr(&out, DEFAULT).is_some());
            dest = out.parent().unwrap();
        }
        good(["cp".into(), flag.into(), at(&volume, "/dir"), dest.as_os_str().to_owned()]);
        for name in ["", "file", "pipe", "sub", "sub/file"] {
            let path = out.join(name);
            assert_eq!((xattr(&path, ACCESS), xattr(&path, DEFAULT)), (None, None), "{flag} {name}");
        }
        assert_eq!((mode(&out.join("file")), mode(&out.join("pipe"))), (0o640, 0o666));
    }
    let single = base.join("single");
    std::fs::write(&single, "there before").unwrap();
    assert!(xattr(&single, ACCESS).is_some());
    good(["cp".into(), "-p".into(), at(&volume, "/dir/file"), single.as_os_str().to_owned()]);
    assert_eq!((mode(&single), xattr(&single, ACCESS)), (0o640, None));
    // Who asks for nothing gets what the directory gives.
    let plain = base.join("plain");
    good(["cp".into(), "-r".into(), at(&volume, "/dir"), plain.as_os_str().to_owned()]);
    assert!(xattr(&plain.join("file"), ACCESS).is_some() && xattr(&plain, DEFAULT).is_some());
}

#[test]
fn deep_trees_that_their_owner_may_not_search() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(8 << 20).args(["-N", "256", "-O", "^has_journal"]).build();
    let empty = volume.scratch().file("empty");
    std::fs::write(&empty, "").unwrap();
    let mut requests = "mkdir /top\ncd /top\n".to_owned() + &"mkdir d\ncd d\n".repeat(70) + "cd /top\n";
    for level in 1..=12 {
        requests += &format!("set_inode_field /top/{} mode 040600\n", ["d"].repeat(level).join("/"));
    }
    requests += &format!("write {} /top/sibling\n", empty.display());
    oracle::debugfs_script(volume.path(), &requests);
    for flag in ["-r", "-a"] {
        let out = volume.scratch().file(flag);
        let args = ["cp".into(), flag.into(), at(&volume, "/top"), out.as_os_str().to_owned()];
        let output = unprivileged(&volume, &args);
        assert!(output.status.success(), "{}", oracle::text(&output));
        assert!(out.join("sibling").is_file());
        assert_eq!(mode(&out.join("d")), 0o600);
        oracle::run(oracle::command("chmod").arg("-R").arg("u+rwx").arg(&out));
        let deepest: PathBuf = std::iter::repeat_n("d", 70).collect();
        assert!(out.join(deepest).is_dir());
    }
}

#[test]
fn root_pipes_are_copied_without_proc() {
    needs!(Need::Root, Need::Tool("mke2fs"), Need::Tool("debugfs"), ALONE);
    let volume = VolumeBuilder::new(8 << 20).args(["-O", "^has_journal"]).build();
    oracle::debugfs_script(
        volume.path(),
        "mknod pipe p\nset_inode_field /pipe mode 010644\nset_inode_field /pipe mtime @1000000000\n\
         symlink /link nowhere\nmkdir /dir\ncd /dir\nmknod open p\nset_inode_field /dir/open mode 010666\n",
    );
    let copied = |source: &str, name: &str| {
        let out = volume.scratch().file(name);
        let args = ["cp".into(), "-a".into(), at(&volume, source), out.as_os_str().to_owned()];
        (alone("/proc", "tmpfs", "umask 022 && exec \"$0\" \"$@\"", &args), out)
    };
    for source in ["/pipe", "/link"] {
        let (output, out) = copied(source, &source[1..]);
        assert!(output.status.success(), "{}", oracle::text(&output));
        let metadata = std::fs::symlink_metadata(&out).unwrap();
        assert!(source != "/pipe" || metadata.mode() & 0o7777 == 0o644 && metadata.mtime() == 1_000_000_000);
    }
    let (output, out) = copied("/dir", "dir");
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.lines().count() == 1 && told.contains("/open: set mode without /proc: "), "{told}");
    assert_eq!((output.status.code(), mode(&out.join("open"))), (Some(1), 0o644));
}

/// Values that fit no block, which files share, into another volume and within it.
#[test]
fn large_values_are_copied_into_volumes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let make = || VolumeBuilder::new(16 << 20).args(["-b", "4096", "-O", "ea_inode"]).build();
    let (from, to) = (make(), make());
    let [content, value] = ["content", "value"].map(|name| from.scratch().file(name));
    std::fs::write(&content, "content").unwrap();
    std::fs::write(&value, vec![b'v'; 4096]).unwrap();
    let value = value.display();
    let requests = ["/a", "/b"]
        .map(|path| format!("write {} {path}\nea_set -f {value} {path} user.large\n", content.display()));
    oracle::debugfs_script(from.path(), &requests.concat());
    good(["cp".into(), "-a".into(), at(&from, "/a"), at(&from, "/b"), at(&to, "/")]);
    good(["cp".into(), "-a".into(), at(&to, "/a"), at(&to, "/within")]);
    for path in ["/a", "/b", "/within"] {
        let told = oracle::debugfs(to.path(), &format!("ea_list {path}"));
        assert!(told.contains("user.large (4096)"), "{path}: {told}");
    }
    to.assert_clean();
    // What one call copies shares an inode.
    let inodes = oracle::debugfs(to.path(), "stats");
    let line = |name: &str| inodes.lines().find(|line| line.starts_with(name)).unwrap().to_string();
    let number = |line: String| line.split_whitespace().last().unwrap().parse::<u32>().unwrap();
    assert_eq!(number(line("Inode count:")) - number(line("Free inodes:")), 11 + 3 + 2);
}
