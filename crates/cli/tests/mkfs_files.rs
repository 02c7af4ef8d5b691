//! `uext4 mkfs -d` and `uext4 export`: volumes from directories and archives, and archives of volumes.

use crate::common;

use common::{NOBODY, bad, command, good, text, uext4};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use uext4_testkit::{Need, Scratch, SparseDigest, e2fsck_clean, kernel_manifest, manifest, needs, oracle};

/// The first bytes of the digest of the volume that [`tree`] makes, on any machine.
const VOLUME: [u8; 8] = [135, 214, 247, 106, 30, 24, 67, 0];

const UUID: &str = "6e7f3c51-2b0a-4d1e-9c57-0f1a2b3c4d5e";

/// A tree of an ordinary user: nothing that needs root.
fn tree(scratch: &Scratch) -> PathBuf {
    let tree = scratch.file("tree");
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    fs::create_dir_all(tree.join("empty")).unwrap();
    for number in 0..300 {
        fs::write(tree.join(format!("usr/bin/program {number}")), vec![number as u8; number * 37]).unwrap();
    }
    fs::write(tree.join("large"), (0..3_000_000_u32).map(|at| (at % 253) as u8).collect::<Vec<u8>>())
        .unwrap();
    let holes = File::create(tree.join("holes")).unwrap();
    holes.set_len(20 << 20).unwrap();
    holes.write_all_at(&[9; 5000], 7 << 20).unwrap();
    symlink("usr/bin", tree.join("bin")).unwrap();
    fs::hard_link(tree.join("large"), tree.join("usr/same")).unwrap();
    fs::set_permissions(tree.join("empty"), fs::Permissions::from_mode(0o1777)).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    tree
}

fn tar(tree: &Path, to: &Path, words: &[&str]) {
    let mut tar = oracle::command("tar");
    oracle::run(tar.args(words).arg("-C").arg(tree).arg("-cf").arg(to).arg("."));
}

fn words(words: &[&str], rest: &[&OsStr]) -> Vec<OsString> {
    words.iter().map(OsStr::new).chain(rest.iter().copied()).map(OsStr::to_owned).collect()
}

#[test]
fn root_the_kernel_sees_the_tree_that_was_given() {
    needs!(Need::Root, Need::Loop, Need::Tool("tar"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(512 << 20);
    let tree = tree(&scratch);
    let packed = scratch.file("tree.tar");
    tar(&tree, &packed, &["--format=pax", "-S"]);
    let mut expected = manifest(&tree);
    for (name, source) in [("of a directory", &tree), ("of an archive", &packed)] {
        let image = scratch.file(name);
        good(words(&["mkfs", "-q", "--size", "auto", "-d"], &[source.as_os_str(), image.as_os_str()]));
        e2fsck_clean(&image);
        let mut found = kernel_manifest(&image);
        found.remove(&b"/lost+found"[..]);
        for each in [&mut expected, &mut found] {
            each.values_mut().for_each(|entry| {
                if entry.kind == uext4_testkit::Kind::Directory {
                    (entry.size, entry.nlink) = (0, 0);
                }
            });
        }
        uext4_testkit::manifest::assert_same(&expected, &found);
    }
}

#[test]
fn root_everybody_makes_the_same_volume() {
    needs!(Need::Root, Need::Tool("tar"), Need::Tool("gzip"), Need::Tool("zstd"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(1 << 30);
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let (tree, packed) = (tree(&scratch), scratch.file("tree.tar"));
    tar(&tree, &packed, &["--format=pax", "-S", "--sort=name"]);
    for (program, name) in [("gzip", "tree.tar.gz"), ("zstd", "tree.tar.zst")] {
        let mut packer = Command::new(program);
        let out = File::create(scratch.file(name)).unwrap();
        assert!(packer.arg("-c").arg(&packed).stdout(out).stderr(Stdio::null()).status().unwrap().success());
    }
    let options =
        ["mkfs", "-q", "-U", UUID, "--time", "@1700000000", "--owner", "0:0", "--size", "auto", "-d"];
    let program = File::open(env!("CARGO_BIN_EXE_uext4")).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&program));
    let mut made = Vec::new();
    let sources = ["tree", "tree.tar", "tree.tar.gz", "tree.tar.zst", "-"];
    for (number, source) in sources.iter().flat_map(|source| [(0, source), (1, source)]) {
        let image = scratch.file(format!("image {source} {number}"));
        let source = if *source == "-" { "-".into() } else { scratch.file(source).into_os_string() };
        let mut command = Command::new(&path);
        command.args(words(&options, &[&source, image.as_os_str()]));
        command.stdin(File::open(&packed).unwrap());
        if number == 1 {
            // Another user, on one processor.
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{source:?} {number}: {}", oracle::text(&output));
        made.push(fs::read(&image).unwrap());
        e2fsck_clean(&image);
    }
    for (number, other) in made.iter().enumerate() {
        assert!(*other == made[0], "{number}");
    }
    let mut digest = SparseDigest::new();
    digest.update(0, &made[0]);
    let digest = digest.finish(made[0].len() as u64);
    assert_eq!(digest[..8], VOLUME, "change it if volumes are meant to differ from earlier ones");
}

#[test]
fn archives_are_layers_and_come_out_again() {
    needs!(Need::Tool("tar"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(512 << 20);
    let tree = tree(&scratch);
    let (base, next) = (scratch.file("base.img"), scratch.file("next.img"));
    let make = |image: &Path, sources: &[&Path]| {
        let sources = sources.iter().flat_map(|source| [OsStr::new("-d"), source.as_os_str()]);
        let head = ["mkfs", "-q", "--size", "auto", "--time", "@1700000000"].map(OsStr::new);
        good(head.into_iter().chain(sources).chain([image.as_os_str()]));
        e2fsck_clean(image);
    };
    make(&base, &[&tree]);
    fs::remove_dir_all(tree.join("empty")).unwrap();
    fs::write(tree.join("usr/bin/program 7"), "changed").unwrap();
    fs::write(tree.join("usr/new"), "new").unwrap();
    make(&next, &[&tree]);
    let (whole, layer) = (scratch.file("whole.tar"), scratch.file("layer.tar"));
    good(words(&["export"], &[base.as_os_str(), whole.as_os_str()]));
    good(words(&["export", "--diff"], &[base.as_os_str(), next.as_os_str(), layer.as_os_str()]));
    let listed = oracle::run(oracle::command("tar").arg("-tf").arg(&layer));
    for name in [".wh.empty\n", "usr/bin/program 7\n", "usr/new\n"] {
        assert!(listed.contains(name), "{listed}");
    }
    assert!(!listed.contains("large"), "{listed}");
    let both = scratch.file("both.img");
    make(&both, &[&whole, &layer]);
    let of = |image: &Path| good(words(&["export"], &[image.as_os_str()]));
    assert!(of(&both) == of(&next));
    // Bytes for a pipe, and none for a file that could not be finished.
    let mut child = command(words(&["export"], &[base.as_os_str()])).stdout(Stdio::piped()).spawn().unwrap();
    let mut start = [0; 512];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    assert_eq!((&start[..2], child.wait().unwrap().code()), (&b"./"[..], Some(0)));
    assert!(bad(1, words(&["export"], &[base.as_os_str(), OsStr::new("/dev/full")])).contains("No space"));
    assert!(bad(2, words(&["export"], &[base.as_os_str(), base.as_os_str()])).contains("the device itself"));
}

#[test]
fn sizes_follow_the_files() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(512 << 20);
    let tree = tree(&scratch);
    let made = |more: &[&str]| -> Value {
        let image = scratch.file(format!("image {}", more.len()));
        let all =
            [&["mkfs", "--json", "-d"], &[tree.to_str().unwrap()][..], more, &[image.to_str().unwrap()]];
        let output = uext4(all.concat());
        assert!(output.status.success(), "{}", oracle::text(&output));
        if !more.contains(&"-n") {
            e2fsck_clean(&image);
            assert_eq!(fs::metadata(&image).unwrap().len() % 4096, 0);
        }
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let auto = made(&["--size", "auto"]);
    assert_eq!((&auto["block_size"], &auto["reserved_blocks"]), (&4096.into(), &0.into()));
    assert!(auto["free_blocks"].as_u64().unwrap() < 20, "{auto}");
    let free = made(&["--size", "auto", "--free", "10M"]);
    let blocks = free["free_blocks"].as_u64().unwrap();
    assert!((2560..2700).contains(&blocks), "{free}");
    let half = made(&["--size", "auto", "-m", "0", "--free", "50%"]);
    let share = half["free_blocks"].as_f64().unwrap() / half["blocks"].as_f64().unwrap();
    assert!((0.5..0.51).contains(&share), "{half}");
    let packed = made(&["--read-only"]);
    assert_eq!(packed["journal_blocks"], 0);
    assert!(packed["features"].as_array().unwrap().contains(&"read-only".into()), "{packed}");
    assert!(packed["size"].as_u64().unwrap() <= auto["size"].as_u64().unwrap());
    // An image that exists gets the length of its volume, whatever it had.
    let image = scratch.file("image 2");
    let length = fs::metadata(&image).unwrap().len();
    let before = fs::read(&image).unwrap();
    for other in [length + (5 << 20), 4096, 0] {
        let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
        file.set_len(other).unwrap();
        let refused = other > 0;
        let words = ["mkfs", "-q", "--size", "auto", "-d", tree.to_str().unwrap(), image.to_str().unwrap()];
        let output = uext4(words);
        assert_eq!(output.status.success(), !refused, "{}", oracle::text(&output));
        assert_eq!(file.metadata().unwrap().len(), if refused { other } else { length }, "as before");
        good([&words[..], &["-F"]].concat());
        assert_eq!(file.metadata().unwrap().len(), length);
        e2fsck_clean(&image);
    }
    assert_eq!(before.len() as u64, length);
    let dry = made(&["-n", "--size", "auto", "-O", "^has_journal"]);
    assert_eq!(dry["created"], false);
}

#[test]
fn nothing_is_left_out_in_silence() {
    let scratch = Scratch::new(512 << 20);
    let tree = tree(&scratch);
    let image = scratch.file("image");
    let mkfs = |more: &[&str]| {
        let all = [&["mkfs", "-q"], more, &[image.to_str().unwrap(), "64M"]].concat();
        let output = uext4(all);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!image.exists(), "{told}");
        (output.status.code(), told)
    };
    let (status, told) = mkfs(&["-d", "/no/such/file"]);
    assert_eq!((status, told.lines().count()), (Some(1), 1), "{told}");
    assert!(told.contains("/no/such/file: open: No such file"), "{told}");
    let cut = scratch.file("cut.tar");
    fs::write(&cut, [b'x'; 700]).unwrap();
    assert_eq!(mkfs(&["-d", cut.to_str().unwrap()]).0, Some(1));
    for (words, why) in [
        (&["--size", "auto", "--free", "1M"][..], "cannot be used"),
        (&["--free", "1M", "-d", tree.to_str().unwrap()], "--free is for the size `auto`"),
        (&["--read-only"], "--from"),
        (&["--owner", "x", "-d", tree.to_str().unwrap()], "x"),
        (&["--hash-seed", "x"], "`x` is not a UUID"),
    ] {
        let (status, told) = mkfs(words);
        assert_eq!(status, Some(2), "{told}");
        assert!(told.contains(why), "{told}");
    }
    assert!(bad(2, ["mkfs", image.to_str().unwrap(), "auto"]).contains("name them with -d"));
    // A tree that is too large, told before anything is written.
    let output = uext4(["mkfs", "-d", tree.to_str().unwrap(), image.to_str().unwrap(), "2M"]);
    assert_eq!((output.status.code(), image.exists()), (Some(1), false), "{}", oracle::text(&output));
    assert!(text(["mkfs", "--help"]).contains("--from"));
}

#[test]
fn blocks_of_zeros_become_holes_on_request() {
    needs!(Need::Tool("tar"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(512 << 20);
    let tree = tree(&scratch);
    // Zeros at the start, in the middle and at the end; blocks that are zeros but for a byte.
    let mut zeros = vec![0; (5 << 20) + 77];
    zeros[3 << 20] = 1;
    zeros[(4 << 20) - 1] = 1;
    zeros[(4 << 20) + 4096..(4 << 20) + 9000].fill(2);
    fs::write(tree.join("zeros"), &zeros).unwrap();
    fs::write(tree.join("nothing"), vec![0; 10_000]).unwrap();
    // An archive without holes.
    let packed = scratch.file("tree.tar");
    tar(&tree, &packed, &["--format=pax", "--sort=name"]);
    let usual = ["mkfs", "-q", "-U", UUID, "--time", "@1700000000", "--owner", "0:0", "--size", "auto"];
    let make = |source: &Path, name: &str, more: &[&str]| {
        let image = scratch.file(name);
        good(words(&[&usual[..], more, &["-d"]].concat(), &[source.as_os_str(), image.as_os_str()]));
        e2fsck_clean(&image);
        image
    };
    let blocks = |image: &Path, name: &str| {
        let mut operand = image.as_os_str().to_owned();
        operand.push(format!(":/{name}"));
        common::json([OsStr::new("stat"), OsStr::new("--json"), &operand])["stx_blocks"].as_u64().unwrap()
    };
    let plain = make(&packed, "plain", &[]);
    let auto = make(&packed, "auto", &["--sparse=auto"]);
    assert!(fs::read(&plain).unwrap() == fs::read(auto).unwrap());
    assert_eq!((blocks(&plain, "zeros"), blocks(&plain, "holes")), (1281 * 8, 5120 * 8));
    let sparse = make(&packed, "sparse", &["--sparse", "always"]);
    // Two blocks with a byte, and two of twos; the extents fit into the inode.
    assert_eq!(blocks(&sparse, "zeros"), 4 * 8);
    assert_eq!((blocks(&sparse, "nothing"), blocks(&sparse, "holes")), (0, 2 * 8));
    assert!(fs::metadata(&sparse).unwrap().len() < fs::metadata(&plain).unwrap().len());
    for name in ["zeros", "nothing", "large", "usr/bin/program 299", "holes"] {
        let mut operand = sparse.as_os_str().to_owned();
        operand.push(format!(":/{name}"));
        assert!(good([OsStr::new("cat"), &operand]) == fs::read(tree.join(name)).unwrap(), "{name}");
    }
    // The same again, and from the directory, whose holes are known.
    assert!(fs::read(&sparse).unwrap() == fs::read(make(&packed, "again", &["--sparse=always"])).unwrap());
    assert!(fs::read(&sparse).unwrap() == fs::read(make(&tree, "of tree", &["--sparse=always"])).unwrap());
}
