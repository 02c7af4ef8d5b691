//! `cp -r` and `cp -a`: trees out of a volume, and what a hostile one may not do.

use crate::common;

use common::{SPARSE, at, bad, good, outside, text, troubled, uext4, volume};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};
use uext4_testkit::{Kind, Manifest, Need, Scratch, Volume, VolumeBuilder, fixture, manifest, needs, oracle};

fn copy(volume: &Volume, flags: &str, source: &str, dest: &Path) {
    good(["cp".into(), flags.into(), at(volume, source), dest.as_os_str().to_owned()]);
}

/// Contents inside inodes, beside files with blocks, in each way to copy.
#[test]
fn contents_inside_inodes_come_along() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let source = Scratch::new(16 << 20);
    let tree = source.file("tree");
    std::fs::create_dir_all(tree.join("d")).unwrap();
    for size in [0, 1, 59, 60, 61, 100, 150, 161, 4096, 5000] {
        let bytes: Vec<u8> = (0..size).map(|at| at as u8 | 1).collect();
        std::fs::write(tree.join(format!("d/{size}")), bytes).unwrap();
    }
    std::fs::hard_link(tree.join("d/60"), tree.join("d/again")).unwrap();
    let volume =
        VolumeBuilder::new(16 << 20).args(["-O", "inline_data", "-I", "256"]).from_dir(&tree).build();
    let flags = oracle::debugfs(volume.path(), "stat /d/100");
    assert!(flags.contains("Flags: 0x10000000"), "it is inline: {flags}");
    for (number, flags) in ["-r", "-a", "-rp"].into_iter().enumerate() {
        let out = volume.scratch().file(format!("out{number}"));
        copy(&volume, flags, "/d", &out);
        for entry in std::fs::read_dir(tree.join("d")).unwrap() {
            let name = entry.unwrap().file_name();
            let (ours, theirs) = (out.join(&name), tree.join("d").join(&name));
            assert_eq!(std::fs::read(ours).unwrap(), std::fs::read(theirs).unwrap(), "{flags} {name:?}");
        }
    }
    for name in ["1", "60", "100"] {
        let out = volume.scratch().file(format!("one{name}"));
        copy(&volume, "-r", &format!("/d/{name}"), &out);
        assert_eq!(std::fs::read(out).unwrap(), std::fs::read(tree.join("d").join(name)).unwrap());
    }
}

#[test]
fn one_bad_tree_does_not_stop_the_others() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    let out = volume.scratch().file("several");
    std::fs::create_dir(&out).unwrap();
    let sources = [at(&volume, "/nothing"), at(&volume, "/dir"), at(&volume, "/hello")];
    let args = ["cp".into(), "-r".into()].into_iter().chain(sources).chain([out.clone().into_os_string()]);
    let said = bad(1, args);
    assert!(said.contains("/nothing"), "{said}");
    assert_eq!(std::fs::read(out.join("dir/inner/deep")).unwrap(), b"deep\n");
    assert_eq!(std::fs::read(out.join("hello")).unwrap(), b"world\n");
}

/// Directories of several sources are merged, but nothing else that one of them made is replaced by the next.
#[test]
fn what_another_source_made_just_now_is_kept() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let (one, other) = (volume(), volume());
    let requests = ["rm /hello", "symlink /hello elsewhere", "rm /link", "ln /dir/inner/deep /link"];
    oracle::debugfs_script(
        other.path(),
        &[&requests[..], &["ln /dir/inner/deep /dir/new"]].concat().join("\n"),
    );
    for flags in ["-r", "-a"] {
        let out = one.scratch().file(format!("both{flags}"));
        std::fs::create_dir(&out).unwrap();
        std::fs::write(out.join("hello"), "before").unwrap();
        let sources = ["/hello", "/link", "/dir"].map(|path| [at(&one, path), at(&other, path)]).concat();
        let again = sources[0].clone();
        let output =
            uext4(["cp".into(), flags.into()].into_iter().chain(sources).chain([again, out.clone().into()]));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        for kept in ["/hello", "/link", "/dir/inner/deep"] {
            let told = said.lines().filter(|line| line.contains(&format!("both{flags}{kept}: was created")));
            assert_eq!(told.count(), 1, "{kept}: {said}");
        }
        assert_eq!(std::fs::read(out.join("hello")).unwrap(), b"world\n");
        assert_eq!(std::fs::read_link(out.join("link")).unwrap(), Path::new("hello"));
        assert_eq!(std::fs::read(out.join("dir/new")).unwrap(), b"deep\n", "directories are merged");
    }
}

/// What has no name goes into the directory itself, as with cp(1).
#[test]
fn sources_without_a_name_are_merged() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = volume();
    for (number, (source, made)) in [
        ("/dir/.", "inner/deep"),
        ("/dir/inner/..", "inner/deep"),
        ("/.", "dir/inner/deep"),
        ("/", "dir/inner/deep"),
        ("/dir/inner/../", "inner/deep"),
        ("/dir/", "dir/inner/deep"),
    ]
    .into_iter()
    .enumerate()
    {
        let out = volume.scratch().file(format!("into{number}"));
        std::fs::create_dir(&out).unwrap();
        copy(&volume, "-r", source, &out);
        assert_eq!(std::fs::read(out.join(made)).unwrap(), b"deep\n", "{source}");
    }
}

/// A name in the destination may be one of several of a file: the others, elsewhere or in the copy itself, keep what
/// they have.
#[test]
fn other_names_of_what_is_overwritten_stay_as_they_are() {
    needs!(Need::Tool("mke2fs"));
    let source = Scratch::new(1 << 20);
    let tree = source.file("tree");
    std::fs::create_dir_all(tree.join("d")).unwrap();
    for name in ["f", "g"] {
        std::fs::write(tree.join("d").join(name), format!("the contents of {name}")).unwrap();
    }
    let volume = VolumeBuilder::new(8 << 20).from_dir(&tree).build();
    for flags in ["-a", "-r"] {
        let out = volume.scratch().file(format!("out{flags}"));
        std::fs::create_dir_all(&out).unwrap();
        std::fs::write(out.join("f"), "before").unwrap();
        // Nobody may write to it; its name can be taken away all the same.
        std::fs::set_permissions(out.join("f"), PermissionsExt::from_mode(0o444)).unwrap();
        std::fs::hard_link(out.join("f"), out.join("g")).unwrap();
        let elsewhere = volume.scratch().file(format!("elsewhere{flags}"));
        std::fs::hard_link(out.join("f"), &elsewhere).unwrap();
        copy(&volume, flags, "/d/.", &out);
        for name in ["f", "g"] {
            let copied = std::fs::read_to_string(out.join(name)).unwrap();
            assert_eq!(copied, format!("the contents of {name}"), "{flags}");
            assert_eq!(std::fs::metadata(out.join(name)).unwrap().nlink(), 1, "{flags}");
        }
        assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "before", "{flags}");
    }
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
pub fn assert_same(ours: Manifest, theirs: Manifest) {
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
    if !rustix::process::geteuid().is_root() {
        // As cp(1): what its owner may not write is not overwritten.
        let locked = out.join("attributes/mode-400");
        std::fs::set_permissions(locked, PermissionsExt::from_mode(0o600)).unwrap();
    }
    copy(&volume, "-a", "/", &out);
    std::fs::remove_dir(out.join("lost+found")).unwrap();
    assert_same(seconds(manifest(&out)), seconds(manifest(&tree)));
}

/// `mke2fs -d` takes 32 bits of seconds into the volume, and gives directories its own.
pub fn seconds(mut tree: Manifest) -> Manifest {
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
    let alone = volume.scratch().file("alone");
    bad(1, ["cp".into(), at(&volume, "/big"), alone.clone().into_os_string()]);
    assert!(!alone.exists());
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

/// A volume of `blocks` KiB with `count` files of the same blocks, and the feature for that.
fn shared_blocks(blocks: u64, count: u32, content: &[u8]) -> Volume {
    let volume = VolumeBuilder::new(blocks << 10)
        .args(["-b", "1024", "-N", "512", "-m", "0", "-O", "^metadata_csum,^has_journal,^resize_inode"])
        .build();
    let file = volume.scratch().file("content");
    std::fs::write(&file, content).unwrap();
    let mut requests = "expand_dir /\n".repeat(4);
    requests += &format!("feature shared_blocks\nwrite {} /f0\n", file.display());
    for n in 1..count {
        let ino = 100 + n;
        requests += &format!(
            "copy_inode /f0 <{ino}>\nseti <{ino}>\nlink <{ino}> /f{n}\nset_inode_field <{ino}> links_count 1\n"
        );
    }
    oracle::debugfs_script(volume.path(), &requests);
    // Free counts.
    oracle::e2fsck(volume.path(), &["-y"]);
    volume
}

#[test]
fn volumes_that_share_blocks_are_copied_whole() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let content: Vec<u8> = (0..500 << 10).map(|at: u32| (at / 7) as u8).collect();
    let volume = shared_blocks(1 << 10, 30, &content);
    volume.assert_clean();
    let checked = text(["check".into(), volume.path().as_os_str().to_owned()]);
    assert!(checked.contains("clean"), "{checked}");
    for flags in ["-r", "-a"] {
        let out = volume.scratch().file(format!("out{flags}"));
        copy(&volume, flags, "/", &out);
        for n in 0..30 {
            assert!(std::fs::read(out.join(format!("f{n}"))).unwrap() == content, "{flags}: f{n}");
        }
    }
}

/// 64 times the volume, and no more.
#[test]
fn volumes_that_share_blocks_do_not_fill_the_host() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let volume = shared_blocks(1 << 10, 200, &vec![7; 500 << 10]);
    let out = volume.scratch().file("out");
    let told = troubled(&volume, "/", &out);
    assert!(told.contains("64 times the volume"), "{told}");
    let copied = std::fs::read_dir(&out).unwrap().count();
    assert!((120..=133).contains(&copied), "{copied} of 200");
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
