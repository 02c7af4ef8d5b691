//! `cp -r` and `cp -a`: trees out of a volume, and what a hostile one may not do.

mod common;

use common::{SPARSE, at, bad, good, uext4, volume};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::time::{Duration, Instant};
use uext4_testkit::{Kind, Manifest, Need, Scratch, Volume, VolumeBuilder, fixture, manifest, needs, oracle};

fn copy(volume: &Volume, flags: &str, source: &str, dest: &Path) {
    good(["cp".into(), flags.into(), at(volume, source), dest.as_os_str().to_owned()]);
}

/// Without what a copy on another file system cannot have.
fn comparable(mut tree: Manifest) -> Manifest {
    for (path, entry) in &mut tree {
        if entry.kind == Kind::Directory {
            (entry.size, entry.nlink) = (0, 0);
        }
        // The top is the destination's own.
        if path == b"/" {
            entry.mtime_ns = 0;
        }
    }
    tree
}

#[track_caller]
fn assert_same(ours: Manifest, theirs: Manifest) {
    let (ours, theirs) = (comparable(ours), comparable(theirs));
    for (path, entry) in &theirs {
        assert_eq!(ours.get(path), Some(entry), "{}", String::from_utf8_lossy(path));
    }
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn a_tree_comes_back_as_it_went_in() {
    needs!(Need::Tool("mke2fs"));
    let source = Scratch::new(128 << 20);
    let tree = source.file("tree");
    std::fs::create_dir(&tree).unwrap();
    fixture::standard_tree_with(
        &tree,
        fixture::TreeOptions { big_dir: 300, extents: 50, ..fixture::TreeOptions::new(3) },
    );
    let volume = VolumeBuilder::new(128 << 20).from_dir(&tree).build();
    let out = volume.scratch().file("out");
    std::fs::create_dir(&out).unwrap();
    copy(&volume, "-a", "/", &out);
    std::fs::remove_dir(out.join("lost+found")).unwrap();
    assert_same(seconds(manifest(&out)), seconds(manifest(&tree)));
    let far = std::fs::metadata(out.join("sparse/far")).unwrap();
    assert!(far.len() > 5 << 30 && far.blocks() * 512 < 1 << 20, "holes stay holes");
    let links = |name| std::fs::metadata(out.join("links").join(name)).unwrap().ino();
    assert_eq!(links("one"), links("link-4"));
    // Once more over what is there: nothing is left of the old contents, nothing is lost.
    std::fs::write(out.join("sizes/512"), vec![1; 9999]).unwrap();
    copy(&volume, "-a", "/", &out);
    std::fs::remove_dir(out.join("lost+found")).unwrap();
    assert_same(seconds(manifest(&out)), seconds(manifest(&tree)));
}

/// `mke2fs -d` takes 32 bits of seconds into the volume, and gives directories its own.
fn seconds(mut tree: Manifest) -> Manifest {
    for entry in tree.values_mut() {
        let second = entry.mtime_ns.div_euclid(1_000_000_000) & 0xffff_ffff;
        entry.mtime_ns = if entry.kind == Kind::Directory { 0 } else { second };
    }
    tree
}

#[test]
fn root_a_tree_of_the_kernel_is_copied_whole() {
    needs!(Need::Loop, Need::Tool("mke2fs"));
    let volume = VolumeBuilder::new(256 << 20).build();
    volume.with_kernel(|dir| fixture::standard_tree(dir, 9));
    let out = volume.scratch().file("out");
    copy(&volume, "-a", "/", &out);
    assert_same(manifest(&out), volume.kernel_manifest());
}

#[test]
fn where_a_tree_goes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let out = volume.scratch().file("out");
    copy(&volume, "-r", "/dir", &out);
    assert!(out.join("inner/deep").is_file(), "a name that does not exist becomes the copy");
    copy(&volume, "-r", "/dir", &out);
    assert!(out.join("dir/inner/deep").is_file(), "a directory that exists gets the copy");
    let all = volume.scratch().file("all");
    std::fs::create_dir(&all).unwrap();
    copy(&volume, "-R", "/", &all);
    assert!(all.join("hello").is_file(), "the root has no name");
    assert!(all.join("fifo").metadata().unwrap().file_type().is_fifo());
    assert_eq!(std::fs::read_link(all.join("dangling")).unwrap(), Path::new("nowhere"));
    assert_eq!(std::fs::metadata(all.join("sparse")).unwrap().len(), SPARSE);
    let link = volume.scratch().file("link");
    copy(&volume, "-r", "/dirlink", &link);
    assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("dir"), "a link is not followed");
    let file = volume.scratch().file("file");
    copy(&volume, "-r", "/hello", &file);
    assert_eq!(std::fs::read(&file).unwrap(), b"world\n");
    let several = [at(&volume, "/dir"), at(&volume, "/hello"), all.as_os_str().to_owned()];
    good([OsString::from("cp"), "-r".into()].into_iter().chain(several));
    assert!(all.join("dir/inner/deep").is_file());
}

#[test]
fn modes_of_a_tree() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    oracle::debugfs_write(volume.path(), "set_inode_field /dir/inner mode 040555");
    oracle::debugfs_write(volume.path(), "set_inode_field /dir/inner/deep mode 0104444");
    oracle::debugfs_write(volume.path(), "set_inode_field /dir/inner mtime @1000000000");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    let out = volume.scratch().file("out");
    copy(&volume, "-r", "/dir", &out);
    assert_eq!(mode(&out.join("inner")), 0o555, "a directory nobody may write is filled all the same");
    assert_eq!(mode(&out.join("inner/deep")), 0o444, "no set-uid without being asked");
    let kept = volume.scratch().file("kept");
    copy(&volume, "-a", "/dir", &kept);
    assert_eq!((mode(&kept.join("inner")), mode(&kept.join("inner/deep"))), (0o555, 0o4444));
    assert_eq!(std::fs::metadata(kept.join("inner")).unwrap().mtime(), 1_000_000_000);
    for dir in [out, kept] {
        std::fs::set_permissions(dir.join("inner"), PermissionsExt::from_mode(0o755)).unwrap();
    }
}

/// A directory with a file that must stay as it is.
fn outside(volume: &Volume) -> std::path::PathBuf {
    let outside = volume.scratch().file("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("victim"), "mine").unwrap();
    outside
}

/// Runs a copy that must fail in places; what it said.
fn troubled(volume: &Volume, source: &str, out: &Path) -> String {
    let output = uext4(["cp".into(), "-a".into(), at(volume, source), out.as_os_str().to_owned()]);
    assert_eq!(output.status.code(), Some(1), "{}", oracle::text(&output));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn names_of_an_image_do_not_lead_out() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(8 << 20).args(["-O", "^metadata_csum,^has_journal"]).build();
    let outside = outside(&volume);
    let content = volume.scratch().file("content");
    std::fs::write(&content, "theirs").unwrap();
    let (target, content) = (outside.display(), content.display());
    // Links first (lower inode numbers), then a directory and a file that get their names.
    oracle::debugfs_script(
        volume.path(),
        &format!(
            "symlink /evil {target}\nsymlink /evil-file {target}/victim\nmkdir /evi1\n\
             write {content} /evi1/victim\nwrite {content} /evil-fil1\nwrite {content} /XXXX\n\
             write {content} /tail\n"
        ),
    );
    let mut bytes = std::fs::read(volume.path()).unwrap();
    let entry = |bytes: &[u8], name: &[u8]| {
        let is = |window: &[u8]| &window[4..] == name && usize::from(window[2]) == name.len();
        bytes.windows(4 + name.len()).position(is).unwrap() + 4
    };
    let twins: [(&[u8], &[u8]); 2] = [(b"evi1", b"evil"), (b"evil-fil1", b"evil-file")];
    for (old, new) in twins {
        let start = entry(&bytes, old);
        bytes[start..start + new.len()].copy_from_slice(new);
    }
    std::fs::write(volume.path(), &bytes).unwrap();
    let out = volume.scratch().file("out");
    let told = troubled(&volume, "/", &out);
    assert!(told.contains("out/evil: make directory: "), "{told}");
    assert!(told.contains("out/evil-file: create: "), "{told}");
    assert_eq!(told.lines().count(), 2, "{told}");
    assert_eq!(std::fs::read(outside.join("victim")).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(std::fs::read(out.join("tail")).unwrap(), b"theirs", "the rest is copied");

    // A slash in a name, and an entry `..` where there is none: the directory is damaged, the copy goes on.
    let name = entry(&bytes, b"XXXX");
    for (evil, copied) in [(b"../Y", false), (b"/etc", false)] {
        bytes[name..name + 4].copy_from_slice(evil);
        std::fs::write(volume.path(), &bytes).unwrap();
        let out = volume.scratch().file("again");
        let told = troubled(&volume, "/", &out);
        assert!(told.contains("corrupt volume"), "{told}");
        assert_eq!(out.join("tail").exists(), copied);
        std::fs::remove_dir_all(&out).unwrap();
    }
    bytes[name - 2] = 2;
    bytes[name..name + 2].copy_from_slice(b"..");
    std::fs::write(volume.path(), &bytes).unwrap();
    troubled(&volume, "/", &volume.scratch().file("dots"));
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn what_exists_is_replaced_only_by_its_kind() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let outside = outside(&volume);
    let out = volume.scratch().file("out");
    std::fs::create_dir(&out).unwrap();
    symlink(outside.join("victim"), out.join("hello")).unwrap();
    symlink(&outside, out.join("dir")).unwrap();
    std::fs::create_dir(out.join("empty")).unwrap();
    std::fs::write(out.join("link"), "a file").unwrap();
    // The image itself, under the name of a file in it.
    std::fs::hard_link(volume.path(), out.join("big")).unwrap();
    let told = troubled(&volume, "/", &out);
    for name in ["hello", "dir", "empty", "big"] {
        assert!(told.contains(&format!("out/{name}: ")), "{name}: {told}");
    }
    assert_eq!(told.lines().count(), 4, "{told}");
    assert_eq!(std::fs::read(outside.join("victim")).unwrap(), b"mine");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(std::fs::read_link(out.join("link")).unwrap(), Path::new("hello"));
    assert_eq!(std::fs::metadata(out.join("sparse")).unwrap().len(), SPARSE);
    volume.assert_clean();
}

#[test]
fn a_bad_file_leaves_no_half_copy_and_the_rest_is_there() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    // Its first extent behind the end of the volume.
    oracle::debugfs_write(volume.path(), "set_inode_field /big block[5] 0xffffff0");
    let out = volume.scratch().file("out");
    let told = troubled(&volume, "/", &out);
    assert!(told.lines().count() == 1 && told.contains(":/big: "), "{told}");
    assert!(!out.join("big").exists());
    assert_eq!(std::fs::read(out.join("hello")).unwrap(), b"world\n");
}

#[test]
fn huge_holes_cost_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for size in [i64::MAX as u64 - 4096, 1 << 52, (1 << 44) - 1] {
        oracle::debugfs_write(volume.path(), &format!("set_inode_field /sparse size {size}"));
        let out = volume.scratch().file("out");
        let start = Instant::now();
        let output = uext4(["cp".into(), "-r".into(), at(&volume, "/sparse"), out.as_os_str().to_owned()]);
        assert!(start.elapsed() < Duration::from_secs(10), "{size}");
        if output.status.success() {
            assert_eq!(std::fs::metadata(&out).unwrap().len(), size);
            assert!(std::fs::metadata(&out).unwrap().blocks() * 512 < 1 << 20);
            std::fs::remove_file(&out).unwrap();
        } else {
            assert!(output.status.code() == Some(1) && !out.exists(), "{}", oracle::text(&output));
        }
    }
}

#[test]
fn files_that_share_blocks_do_not_fill_the_host() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(8 << 20)
        .args(["-b", "4096", "-N", "256", "-O", "^metadata_csum,^has_journal"])
        .build();
    let content = volume.scratch().file("content");
    std::fs::write(&content, vec![7; 3 << 20]).unwrap();
    let mut requests = format!("write {} /f0\n", content.display());
    for n in 1..100 {
        requests += &format!(
            "copy_inode /f0 <{}>\nlink <{}> /f{n}\nset_inode_field /f{n} links_count 1\n",
            100 + n,
            100 + n
        );
    }
    oracle::debugfs_script(volume.path(), &requests);
    let out = volume.scratch().file("out");
    let told = troubled(&volume, "/", &out);
    assert!(told.lines().count() >= 97 && told.contains("they share blocks"), "{told}");
    assert!(std::fs::read_dir(&out).unwrap().count() <= 4);
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
    // The host may have no room for such values, which is told in other words.
    let (told, out) = copied("/honest", "out");
    assert!(!told.contains("they share values"), "{told}");
    assert_eq!(count(&out), 1023);
    let (told, out) = copied("/", "all");
    let shared: Vec<&str> = told.lines().filter(|line| line.contains("they share values")).collect();
    assert!((200..600).contains(&shared.len()), "{}: {told}", shared.len());
    assert!(shared[0].contains(":/hostile/f") && shared[0].contains("inode 100"), "{}", shared[0]);
    assert_eq!(
        (count(&out.join("honest")), count(&out.join("hostile"))),
        (1023, 3001),
        "the contents are copied"
    );
}

/// Whoever copies without privilege, if that is not the caller.
const NOBODY: u32 = 65534;

/// Runs the program without privilege. What it makes goes to the volume's directory.
fn unprivileged(volume: &Volume, args: &[OsString]) -> std::process::Output {
    if !rustix::process::geteuid().is_root() {
        return uext4(args);
    }
    let all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(volume.scratch().path(), all).unwrap();
    // The build may lie where only its owner gets.
    let program = volume.scratch().file("uext4");
    std::fs::copy(env!("CARGO_BIN_EXE_uext4"), &program).unwrap();
    std::process::Command::new(program).args(args).uid(NOBODY).gid(NOBODY).output().unwrap()
}

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
    needs!(Need::Root, Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("setpriv"));
    let volume = badly_attributed();
    let out = volume.scratch().file("out");
    // A root who may not give files away.
    let mut copy = oracle::command("setpriv");
    copy.args(["--bounding-set=-chown", "--inh-caps=-chown", env!("CARGO_BIN_EXE_uext4"), "cp", "-a"]);
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
fn two_thousand_levels() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(64 << 20).args(["-N", "4096", "-O", "^has_journal"]).build();
    let name = "n".repeat(100);
    let requests = format!("mkdir {name}\ncd {name}\n").repeat(2000) + "symlink end nowhere\n";
    oracle::debugfs_script(volume.path(), &requests);
    let out = volume.scratch().file("out");
    copy(&volume, "-a", "/", &out);
    let counted = oracle::command("find").arg(&out).output().unwrap();
    assert_eq!(counted.stdout.iter().filter(|&&byte| byte == b'\n').count(), 1 + 2000 + 1 + 1);
    // The scratch directory's own removal keeps every level open.
    oracle::run(oracle::command("rm").arg("-rf").arg(&out));
}

#[test]
fn root_device_nodes_need_root() {
    needs!(Need::Root, Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(8 << 20).build();
    oracle::debugfs_script(volume.path(), "mknod null c 1 3\nmknod disk b 259 300\n");
    let out = volume.scratch().file("out");
    copy(&volume, "-r", "/", &out);
    let null = std::fs::metadata(out.join("null")).unwrap();
    assert!(null.file_type().is_char_device());
    assert_eq!((rustix::fs::major(null.rdev()), rustix::fs::minor(null.rdev())), (1, 3));
    assert!(std::fs::metadata(out.join("disk")).unwrap().file_type().is_block_device());
    assert!(
        bad(1, [OsStr::new("cp"), &at(&volume, "/null"), out.as_os_str()]).contains("not a regular file")
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
