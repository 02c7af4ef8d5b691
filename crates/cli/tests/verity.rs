//! `uext4 mkfs --verity` and `--dm-verity`, `uext4 verity` and `uext4 check --contents`.

use crate::common;

use common::{bad, good, json, text, uext4};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs, oracle};

const UUID: &str = "6e7f3c51-2b0a-4d1e-9c57-0f1a2b3c4d5e";

fn tree(scratch: &Scratch) -> PathBuf {
    let tree = scratch.file("tree");
    fs::create_dir_all(tree.join("bin/more")).unwrap();
    for (name, size) in
        [("bin/one", 1_000_000_u32), ("bin/two", 10), ("bin/more/three", 0), ("plain", 70_000)]
    {
        fs::write(tree.join(name), (0..size).map(|at| (at % 251) as u8).collect::<Vec<u8>>()).unwrap();
    }
    fs::hard_link(tree.join("bin/two"), tree.join("bin/same")).unwrap();
    symlink("one", tree.join("bin/link")).unwrap();
    tree
}

fn words(words: &[&str], rest: &[&Path]) -> Vec<OsString> {
    words
        .iter()
        .map(OsStr::new)
        .chain(rest.iter().map(|path| path.as_os_str()))
        .map(OsStr::to_owned)
        .collect()
}

fn at(image: &Path, path: &str) -> OsString {
    let mut name = image.as_os_str().to_owned();
    name.push(format!(":{path}"));
    name
}

/// Asserts that it fails, and that its line says this.
#[track_caller]
fn told<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, status: i32, part: &str) {
    let line = bad(status, args);
    assert!(line.contains(part), "{line}");
}

/// A volume of the tree with these options besides.
fn made(scratch: &Scratch, name: &str, options: &[&str]) -> PathBuf {
    let (image, tree) = (scratch.file(name), scratch.file("tree"));
    let usual = ["mkfs", "-q", "-U", UUID, "--time", "@1700000000", "--size", "auto"];
    good(words(&[&usual[..], options, &["-d"]].concat(), &[&tree, &image]));
    image
}

#[test]
fn sealed_files_are_measured_as_by_fsverity() {
    needs!(Need::Tool("fsverity"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let tree = tree(&scratch);
    for (options, of_tool) in [
        (&["--verity", "bin"][..], &["--hash-alg=sha256"][..]),
        (
            &["--verity", "/bin/one", "--verity", "./bin/two", "--verity", "bin/more/three"],
            &["--hash-alg=sha256"],
        ),
        (
            &["--verity", "/", "--verity-algorithm", "sha512", "--verity-salt", "00ff"],
            &["--hash-alg=sha512", "--salt=00ff"],
        ),
    ] {
        let image = made(&scratch, "image", options);
        e2fsck_clean(&image);
        for name in ["bin/one", "bin/two", "bin/same", "bin/more/three"] {
            let mut tool = oracle::command("fsverity");
            let expected = oracle::run(tool.arg("digest").args(of_tool).arg(tree.join(name)));
            let digest = expected.split(' ').next().unwrap();
            let operand = at(&image, &format!("/{name}"));
            for more in [&["verity"][..], &["verity", "--verify"]] {
                let ours = text(words(more, &[Path::new(&operand)]));
                assert_eq!(ours, format!("{digest} {}\n", operand.display()));
            }
        }
        assert_eq!(
            good([OsStr::new("cat"), &at(&image, "/bin/one")]),
            fs::read(tree.join("bin/one")).unwrap()
        );
        fs::remove_file(&image).unwrap();
    }
    // A volume so small that its blocks would be smaller, and one that has such blocks.
    for (more, block) in [(&[][..], 4096), (&["-b", "1024"], 1024)] {
        let image = scratch.file("small");
        let first = ["mkfs", "-q", "-F", "--size", "20M", "--verity", "bin/one"];
        good(words(&[&first[..], more, &["-d"]].concat(), &[&tree, &image]));
        let told = json([OsStr::new("verity"), OsStr::new("--json"), &at(&image, "/bin/one")]);
        assert_eq!(told["block_size"], block, "{told}");
        e2fsck_clean(&image);
    }
}

#[test]
fn sealed_files_look_and_copy_like_others() {
    needs!(Need::Tool("tar"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    let tree = tree(&scratch);
    let image = made(&scratch, "image", &["--verity", "bin"]);
    let info = json([OsStr::new("info"), image.as_os_str(), OsStr::new("--json")]);
    assert!(info["features"].to_string().contains("\"verity\""), "{info}");
    let stat = json([OsStr::new("stat"), OsStr::new("--json"), &at(&image, "/bin/one")]);
    assert!(stat["flags"].to_string().contains("verity"), "{stat}");
    assert_eq!(stat["stx_size"], 1_000_000);
    // Contents, two levels of three blocks, and the descriptor.
    assert_eq!(stat["stx_blocks"], (245 + 3 + 1) * 8);
    let map = json([OsStr::new("map"), OsStr::new("--json"), &at(&image, "/bin/one")]);
    let lengths = map.as_array().unwrap().iter().map(|piece| piece["length"].as_u64().unwrap());
    assert_eq!(lengths.sum::<u64>(), 245 * 4096, "{map}");
    // Out, by all ways, and into another volume, where it is sealed no more.
    let (out, archive) = (scratch.file("out"), scratch.file("out.tar"));
    good([OsStr::new("cp"), OsStr::new("-a"), &at(&image, "/bin"), out.as_os_str()]);
    good([OsStr::new("export"), &at(&image, "/"), archive.as_os_str()]);
    let unpacked = scratch.file("unpacked");
    fs::create_dir(&unpacked).unwrap();
    oracle::run(oracle::command("tar").arg("-C").arg(&unpacked).arg("-xf").arg(&archive));
    good([OsStr::new("cp"), OsStr::new("-a"), &at(&image, "/bin"), &at(&image_of(&scratch), "/bin")]);
    for name in ["one", "two", "more/three"] {
        let expected = fs::read(tree.join("bin").join(name)).unwrap();
        assert!(fs::read(out.join(name)).unwrap() == expected, "{name}");
        assert!(fs::read(unpacked.join("bin").join(name)).unwrap() == expected, "{name}");
        let copied = at(&scratch.file("other"), &format!("/bin/{name}"));
        assert!(good([OsStr::new("cat"), &copied]) == expected, "{name}");
        told([OsStr::new("verity"), &copied], 1, "not sealed by fs-verity");
    }
    e2fsck_clean(&scratch.file("other"));
    let (one, missing) = (at(&image, "/bin/one"), at(&image, "/plain"));
    let both = uext4([OsStr::new("verity"), OsStr::new("--json"), &one, &missing]);
    assert_eq!(both.status.code(), Some(1));
    let list: serde_json::Value = serde_json::from_slice(&both.stdout).unwrap();
    assert_eq!(
        (&list[0]["algorithm"], &list[0]["tree_size"]),
        (&"sha256".into(), &(3 * 4096).into()),
        "{list}"
    );
    assert!(String::from_utf8_lossy(&both.stderr).contains("\"errno\":61"), "{both:?}");
    for words in [
        [OsStr::new("truncate"), OsStr::new("-s0"), &one],
        [OsStr::new("fallocate"), OsStr::new("-pl4096"), &one],
    ] {
        told(words, 1, "sealed by fs-verity");
    }
}

fn image_of(scratch: &Scratch) -> PathBuf {
    let other = scratch.file("other");
    good([OsStr::new("mkfs"), OsStr::new("-q"), other.as_os_str(), OsStr::new("32M")]);
    other
}

#[test]
fn what_cannot_be_sealed_is_named_and_nothing_is_written() {
    let scratch = Scratch::new(64 << 20);
    let tree = tree(&scratch);
    let image = scratch.file("image");
    let refused = |options: &[&str], status: i32, parts: &[&str]| {
        let all = words(&[&["mkfs", "--size", "auto"], options, &["-d"]].concat(), &[&tree, &image]);
        let output = uext4(all);
        assert_eq!(output.status.code(), Some(status), "{options:?}: {}", oracle::text(&output));
        parts.iter().for_each(|part| assert!(oracle::text(&output).contains(part), "{part}: {output:?}"));
        assert!(!image.exists(), "{options:?}");
    };
    refused(
        &["--verity", "nothing", "--verity", "bin/../bin"],
        1,
        &["nothing: --verity: no such", "bin/../bin: "],
    );
    refused(&["--verity", "bin/link"], 1, &["bin/link: --verity: neither a regular file"]);
    refused(&["--verity", "bin/one/more"], 1, &["no such file"]);
    refused(&["--verity", "bin", "--verity-algorithm", "md5"], 2, &["md5"]);
    refused(&["--verity", "bin", "--verity-salt", "0"], 2, &["hexadecimal"]);
    refused(&["--verity", "bin", "--verity-salt", &"00".repeat(33)], 2, &["32 bytes"]);
    refused(&["--verity-salt", "00"], 2, &["--verity"]);
    refused(&["--verity", "bin", "-t", "ext2"], 2, &["extent"]);
    refused(&["--dm-verity", "--dm-verity-salt", &"00".repeat(257)], 2, &["256 bytes"]);
    told([OsStr::new("mkfs"), OsStr::new("--dm-verity"), image.as_os_str()], 2, "size");
    // Without a file: of an empty volume.
    good([OsStr::new("mkfs"), OsStr::new("-q"), OsStr::new("-Overity"), image.as_os_str(), OsStr::new("8M")]);
}

/// Where a block of a file is, behind its end too.
fn byte_of(image: &Path, name: &str, logical: u64) -> u64 {
    oracle::debugfs(image, &format!("bmap {name} {logical}")).trim().parse::<u64>().unwrap() * 4096
}

fn flip(image: &Path, at: u64) {
    let image = File::options().read(true).write(true).open(image).unwrap();
    let mut byte = [0];
    image.read_exact_at(&mut byte, at).unwrap();
    image.write_all_at(&[!byte[0]], at).unwrap();
}

#[test]
fn check_looks_at_sealed_files_and_on_request_at_their_contents() {
    needs!(Need::Tool("debugfs"));
    let scratch = Scratch::new(64 << 20);
    tree(&scratch);
    let image = made(&scratch, "image", &["--verity", "bin"]);
    let check = |contents: bool| {
        let mut words = vec![OsStr::new("check"), OsStr::new("--json"), image.as_os_str()];
        words.extend(contents.then_some(OsStr::new("--contents")));
        let report: serde_json::Value = serde_json::from_slice(&uext4(words).stdout).unwrap();
        let codes = report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .map(|finding| format!("{} {}", finding["code"].as_str().unwrap(), finding["logical_block"]));
        (codes.collect::<Vec<_>>(), report["not_examined"].to_string())
    };
    let (found, missed) = check(false);
    assert!(found.is_empty() && missed.contains("\"count\":3"), "{missed}");
    assert_eq!(check(true), (vec![], "[]".to_owned()));
    // The tree of a file of 1 000 000 bytes begins at block 256: the top, two blocks, the descriptor.
    let places = [(100, 5, "verity.hash 100"), (257, 9, "verity.hash 257"), (256, 40, "verity.hash 258")];
    for (logical, within, code) in places {
        let at = byte_of(&image, "/bin/one", logical) + within;
        flip(&image, at);
        let error = uext4([OsStr::new("verity"), OsStr::new("--verify"), &at_of(&image)]);
        assert_eq!(error.status.code(), Some(1), "{logical}");
        assert_eq!(check(false).0, Vec::<String>::new());
        let found = check(true).0;
        assert!(found == [code] || logical == 256 && found == ["verity.hash 256"], "{found:?}");
        flip(&image, at);
    }
    let descriptor = byte_of(&image, "/bin/one", 259);
    for within in [0, 1, 2, 3, 8, 150, 4093, 4095] {
        flip(&image, descriptor + within);
        assert_eq!(check(false).0, ["verity.layout null"], "{within}");
        assert_eq!(check(true).0, ["verity.layout null"], "{within}");
        flip(&image, descriptor + within);
    }
    for (first, last) in [(257, 257), (259, 259)] {
        oracle::debugfs_write(&image, &format!("punch /bin/one {first} {last}"));
        assert!(check(false).0.contains(&"verity.layout null".to_owned()), "{first}");
    }
}

fn at_of(image: &Path) -> OsString {
    at(image, "/bin/one")
}

#[test]
fn dm_verity_is_what_veritysetup_makes() {
    needs!(Need::Tool("veritysetup"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 << 20);
    tree(&scratch);
    let image = scratch.file("image");
    let usual = ["mkfs", "-U", UUID, "--time", "@1700000000", "--read-only", "--dm-verity", "-d"];
    let said = text(words(&usual, &[&scratch.file("tree"), &image]));
    let line = said.lines().find(|line| line.starts_with("veritysetup open ")).unwrap();
    let root = said.lines().find_map(|line| line.strip_prefix("dm-verity root hash ")).unwrap();
    let words_of: Vec<&str> = line.split(' ').collect();
    assert_eq!((words_of[3], words_of[5]), ("NAME", root));
    let offset: u64 = words_of[6].strip_prefix("--hash-offset=").unwrap().parse().unwrap();
    // As printed, but for what needs device-mapper.
    oracle::run(oracle::command("veritysetup").arg("verify").arg(&image).arg(&image).args(&words_of[5..]));
    e2fsck_clean(&image);
    let ours = fs::read(&image).unwrap();
    assert!(ours.len() as u64 > offset + 4096);
    // Over an older and longer image: the same again, and no longer.
    fs::write(&image, vec![0; 64 << 20]).unwrap();
    good(words(&[&["mkfs", "-q"], &usual[1..]].concat(), &[&scratch.file("tree"), &image]));
    assert!(fs::read(&image).unwrap() == ours);
    // Shorter.
    fs::write(&image, vec![0; 1 << 16]).unwrap();
    good(words(&[&["mkfs", "-q"], &usual[1..]].concat(), &[&scratch.file("tree"), &image]));
    assert!(fs::read(&image).unwrap() == ours);
    // By the other program, with what ours says of itself.
    let other = scratch.file("other");
    let told = json(words(&[&["mkfs", "--json"], &usual[1..]].concat(), &[&scratch.file("tree"), &other]));
    let told = &told["dm_verity"];
    assert_eq!((&told["root_hash"], &told["hash_offset"]), (&root.into(), &offset.into()), "{told}");
    File::options().write(true).open(&other).unwrap().set_len(offset).unwrap();
    let mut format = oracle::command("veritysetup");
    format.args([
        "format",
        &format!("--hash-offset={offset}"),
        &format!("--data-blocks={}", told["data_blocks"]),
    ]);
    format.arg(format!("--salt={}", told["salt"].as_str().unwrap()));
    format.arg(format!("--uuid={}", told["uuid"].as_str().unwrap()));
    oracle::run(format.arg(&other).arg(&other));
    assert!(fs::read(&other).unwrap() == ours);
    flip(&image, offset / 2);
    let mut verify = oracle::command("veritysetup");
    let output = verify.arg("verify").arg(&image).arg(&image).args(&words_of[5..]).output().unwrap();
    assert!(!output.status.success());
}

#[test]
fn a_hash_tree_may_have_its_own_file_and_needs_room() {
    needs!(Need::Tool("veritysetup"));
    let scratch = Scratch::new(256 << 20);
    let (image, hashes) = (scratch.file("image"), scratch.file("hashes"));
    let run = |more: &[&str], size: &str| {
        let first = words(&[&["mkfs", "--dm-verity"], more].concat(), &[&image]);
        uext4(first.into_iter().chain([size.into()]))
    };
    let file = format!("--dm-verity-file={}", hashes.display());
    let done = run(&[&file, "-b", "1024", "--dm-verity-algorithm", "sha512", "--dm-verity-salt", "-"], "9M");
    let said = oracle::text(&done);
    let line =
        said.lines().find(|line| line.starts_with("veritysetup open ")).unwrap_or_else(|| panic!("{said}"));
    let root = line.rsplit(' ').next().unwrap();
    assert_eq!(root.len(), 128);
    oracle::run(oracle::command("veritysetup").arg("verify").arg(&image).arg(&hashes).arg(root));
    // Neither is written over.
    fs::remove_file(&image).unwrap();
    let refused = run(&[&file], "9M");
    assert_eq!(
        refused.status.code(),
        Some(0),
        "nothing is recognized in a hash tree: {}",
        oracle::text(&refused)
    );
    let volume = scratch.file("volume");
    good([OsStr::new("mkfs"), OsStr::new("-q"), volume.as_os_str(), OsStr::new("8M")]);
    fs::remove_file(&image).unwrap();
    let refused = run(&[&format!("--dm-verity-file={}", volume.display())], "9M");
    assert_eq!(refused.status.code(), Some(1), "{}", oracle::text(&refused));
    assert!(!image.exists());
    let itself = run(&[&format!("--dm-verity-file={}", image.display())], "9M");
    assert_eq!(itself.status.code(), Some(1), "{}", oracle::text(&itself));
    assert!(!image.exists());
    // A device that the volume fills.
    File::create(&image).unwrap().set_len(9 << 20).unwrap();
    let full = run(&[], "9M");
    assert!(
        full.status.code() == Some(1) && oracle::text(&full).contains("hash tree"),
        "{}",
        oracle::text(&full)
    );
    assert!(fs::read(&image).unwrap().iter().all(|byte| *byte == 0));
    assert!(image.as_os_str().as_bytes().starts_with(b"/"));
}
