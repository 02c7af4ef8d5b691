//! Archives of real programs: the tree is what GNU tar extracts.

use crate::common::{
    Head, Tar, contents, described, gather, gather_bytes, gather_with, host, item, paths, run, same,
};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4::mkfs::{ItemKind, Source};
use uext4_testkit::{Need, Scratch, needs};
use uext4_transfer::{ArchiveInput, GatherCause, GatherOptions, Gathering};

const GNU: &[&str] = &["tar", "--xattrs", "--xattrs-include=*", "--acls"];

/// A directory with something of everything that an archive can have.
fn fill(directory: &Path) {
    fs::create_dir_all(directory.join("a/deep/er")).unwrap();
    fs::write(directory.join("a/small"), b"small").unwrap();
    fs::write(directory.join("a/empty"), b"").unwrap();
    let large: Vec<u8> = (0..700_001_u32).map(|at| (at % 251) as u8).collect();
    fs::write(directory.join("a/deep/large"), large).unwrap();
    fs::write(directory.join("a/deep/er/block"), vec![7; 4096]).unwrap();
    symlink("../a/small", directory.join("a/link")).unwrap();
    symlink("/nowhere", directory.join("dangling")).unwrap();
    fs::hard_link(directory.join("a/small"), directory.join("z-other-name")).unwrap();
    let bytes = std::os::unix::ffi::OsStrExt::from_bytes;
    let odd: &std::ffi::OsStr = bytes(b"no utf-8 \xff\xfe");
    fs::write(directory.join(odd), b"odd").unwrap();
    fs::write(directory.join("a/executable"), b"#!/bin/sh\n").unwrap();
    run(&["chmod", "4711", "a/executable"], directory);
    run(&["chmod", "1777", "a/deep"], directory);
    run(&["mkfifo", "pipe"], directory);
    run(&["mknod", "tty", "c", "4", "300"], directory);
    run(&["mknod", "disk", "b", "259", "70000"], directory);
    run(&["chown", "1234:5678", "a/small", "a/deep", "tty"], directory);
    run(&["touch", "-h", "-d", "2001-02-03 04:05:06", "a/link", "dangling"], directory);
    run(&["touch", "-d", "2011-12-13 14:15:16", "a/small", "a/deep/er"], directory);
}

fn fill_more(directory: &Path) {
    let long = "long-name-".repeat(19);
    fs::create_dir_all(directory.join(&long).join(&long)).unwrap();
    fs::write(directory.join(&long).join(&long).join(&long), b"long").unwrap();
    symlink(format!("/{long}/{long}"), directory.join("long-target")).unwrap();
    fs::hard_link(directory.join(&long).join(&long).join(&long), directory.join("long-link")).unwrap();
    run(&["chown", "-h", "3000000:4000000000", "long-target"], directory);
}

fn sparse(directory: &Path) {
    let file = File::create(directory.join("sparse")).unwrap();
    for at in 0..60_u64 {
        file.write_all_at(&[at as u8 + 1; 4096], at * 40_960 + 8192).unwrap();
    }
    file.set_len(60 * 40_960 + 500_001).unwrap();
    File::create(directory.join("hole")).unwrap().set_len(1 << 20).unwrap();
}

/// Extracts, and compares.
fn compare(program: &[&str], archive: &Path, scratch: &Scratch) {
    let extracted = scratch.path().join("extracted");
    fs::create_dir(&extracted).unwrap();
    let file = archive.to_str().unwrap();
    run(&[program, &["-xpf", file]].concat(), &extracted);
    let (mut extracted_tree, mut gathered) = (host(&extracted), described(&gather(archive).unwrap()));
    if program[0] == "bsdtar" {
        // It does not set the time of the directory that it extracts into.
        for tree in [&mut extracted_tree, &mut gathered] {
            tree.remove(&b"/"[..]);
        }
    }
    same(&extracted_tree, &gathered);
    fs::remove_dir_all(&extracted).unwrap();
}

#[test]
fn what_every_format_of_gnu_tar_has_is_what_it_extracts() {
    needs!(Need::Root, Need::Tool("tar"));
    let scratch = Scratch::new(64 << 20);
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fill(&tree);
    for format in ["v7", "ustar", "oldgnu", "gnu", "pax"] {
        let archive = scratch.file(format!("{format}.tar"));
        let file = archive.to_str().unwrap();
        if format == "v7" {
            let format = "--format=v7";
            run(
                &["tar", format, "--exclude=pipe", "--exclude=tty", "--exclude=disk", "-cf", file, "."],
                &tree,
            );
        } else {
            run(&["tar", &format!("--format={format}"), "-cf", file, "."], &tree);
        }
        compare(GNU, &archive, &scratch);
    }
    fill_more(&tree);
    sparse(&tree);
    for format in ["oldgnu", "gnu", "pax"] {
        for sparse in ["--sparse-version=1.0", "--sparse-version=0.1", "--sparse-version=0.0"] {
            let archive = scratch.file("sparse.tar");
            let file = archive.to_str().unwrap();
            run(&["tar", &format!("--format={format}"), "--sparse", sparse, "-cf", file, "."], &tree);
            compare(GNU, &archive, &scratch);
            let gathered = gather(&archive).unwrap();
            assert!(gathered.data < 1_200_000, "{format} {sparse}: holes are kept, {} bytes", gathered.data);
        }
    }
}

#[test]
fn attributes_and_lists_are_kept() {
    needs!(Need::Root, Need::Acl, Need::Tool("tar"), Need::Tool("setfattr"), Need::Tool("setcap"));
    let scratch = Scratch::new(64 << 20);
    let tree = scratch.path().join("tree");
    fs::create_dir_all(tree.join("directory")).unwrap();
    fs::write(tree.join("file"), b"file").unwrap();
    fs::write(tree.join("few"), b"few").unwrap();
    run(&["setfattr", "-n", "trusted.a=b%41", "-v", "0x00ff0a3d", "file"], &tree);
    run(&["setfattr", "-n", "trusted.empty", "directory"], &tree);
    run(&["setfacl", "-m", "u:1234:rw,g:5678:r,u:daemon:x,m:rwx", "file"], &tree);
    run(&["setfacl", "-m", "u:1:rwx", "-m", "d:u:77:rx,d:g:78:-", "directory"], &tree);
    run(&["setcap", "cap_net_raw+ep", "few"], &tree);
    let archive = scratch.file("attributes.tar");
    let file = archive.to_str().unwrap();
    run(&["tar", "--xattrs", "--xattrs-include=*", "--acls", "-cf", file, "."], &tree);
    same(&host(&tree), &described(&gather(&archive).unwrap()));
    if Need::Tool("bsdtar").missing().is_none() {
        for option in ["pax:xattrheader=LIBARCHIVE", "pax:xattrheader=SCHILY", "pax:xattrheader=ALL"] {
            run(
                &["bsdtar", "--xattrs", "--acls", "--format=pax", "--options", option, "-cf", file, "."],
                &tree,
            );
            same(&host(&tree), &described(&gather(&archive).unwrap()));
        }
    }
}

#[test]
fn compressed_archives_and_pipes_are_as_the_plain_one() {
    needs!(Need::Root, Need::Tool("tar"), Need::Tool("gzip"), Need::Tool("zstd"));
    let scratch = Scratch::new(64 << 20);
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fill(&tree);
    sparse(&tree);
    run(&["tar", "--format=pax", "--sparse", "-cf", "../plain", "."], &tree);
    let plain = described(&gather(&scratch.file("plain")).unwrap());
    let shell = |script: &str| run(&["sh", "-ec", script], scratch.path());
    shell("gzip -c plain > whole.tar");
    shell("head -c 70000 plain | gzip -c > parts; tail -c +70001 plain | gzip -1c >> parts");
    shell("zstd -qc plain > frame");
    shell("head -c 70000 plain | zstd -qc > frames; tail -c +70001 plain | zstd -qc19 >> frames");
    shell("printf '\\120\\052\\115\\030\\003\\0\\0\\0abc' | cat - frames > skip");
    shell("zstd -qc --long=27 --no-check plain > long");
    for name in ["whole.tar", "parts", "frame", "frames", "skip", "long", "plain"] {
        let path = scratch.file(name);
        let seekable = described(&gather(&path).unwrap_or_else(|error| panic!("{name}: {error}")));
        same(&plain, &seekable);
        let mut gathering = Gathering::new(GatherOptions::default());
        let stream = Box::new(File::open(&path).unwrap());
        gathering.archive(&path, ArchiveInput::Stream(stream)).unwrap();
        same(&plain, &described(&gathering.finish().unwrap()));
        // Cut short or changed anywhere, it is not the same.
        let mut bytes = fs::read(&path).unwrap();
        if name != "plain" {
            assert!(gather_bytes(&[&bytes[..bytes.len() - 1]]).is_err(), "{name} lacks a byte");
            let half = gather_bytes(&[&bytes[..bytes.len() / 2]]).unwrap_err();
            assert!(matches!(half.errors[0].cause, GatherCause::Truncated(_)), "{name} lacks a half: {half}");
            // Of the checksum.
            let at = bytes.len() - 2;
            bytes[at] ^= 4;
            if name != "long" {
                let changed = gather_bytes(&[&bytes]).map(|gathered| described(&gathered) == plain);
                assert!(changed.is_err(), "{name} has another byte: {changed:?}");
            }
        }
    }
}

/// As gzip(1), and so GNU tar, reads archives from tapes and block devices.
#[test]
fn zeros_may_follow_what_gzip_packed() {
    needs!(Need::Tool("tar"), Need::Tool("gzip"));
    let scratch = Scratch::new(64 << 20);
    let tree = scratch.file("tree");
    fs::create_dir(&tree).unwrap();
    (0..9_u8).for_each(|number| fs::write(tree.join(format!("{number}")), vec![number; 70_000]).unwrap());
    run(&["sh", "-ec", "tar -C tree -cf - . | gzip -c > packed"], scratch.path());
    let packed = fs::read(scratch.file("packed")).unwrap();
    let plain = described(&gather_bytes(&[&packed]).unwrap());
    let followed = |by: &[u8]| {
        let bytes = [&packed[..], by].concat();
        fs::write(scratch.file("followed"), &bytes).unwrap();
        let in_file = gather(&scratch.file("followed")).map(|found| described(&found));
        assert_eq!(in_file.is_ok(), gather_bytes(&[&bytes]).is_ok());
        in_file
    };
    for zeros in [1, 17, 512, 10_240, 300_000] {
        same(&plain, &followed(&vec![0; zeros]).unwrap());
        let failures = followed(&[&vec![0; zeros][..], b"x"].concat()).unwrap_err();
        assert!(failures.to_string().contains("behind the end of gzip's data"), "{failures}");
        // gzip takes no member behind zeros either.
        assert!(followed(&[&vec![0; zeros][..], &packed].concat()).is_err());
    }
    assert!(followed(b"x").is_err());
    let same_again = gather_bytes(&[&[&packed[..], &packed].concat()]).unwrap();
    same(&plain, &described(&same_again));
}

#[test]
fn bytes_are_told_while_contents_are_put_aside() {
    needs!(Need::Tool("tar"), Need::Tool("gzip"));
    let scratch = Scratch::new(64 << 20);
    let tree = scratch.file("tree");
    fs::create_dir(&tree).unwrap();
    (0..5_u8).for_each(|number| fs::write(tree.join(format!("{number}")), vec![number; 700_001]).unwrap());
    run(&["sh", "-ec", "tar -C tree -cf plain .; gzip -c plain > packed"], scratch.path());
    for (name, expected) in [("plain", 0), ("packed", 5 * 700_001)] {
        let told = Arc::new(AtomicU64::new(0));
        let adds = told.clone();
        let add = move |bytes| {
            adds.fetch_add(bytes, Ordering::Relaxed);
        };
        let options = GatherOptions { spooled: Some(Arc::new(add)), ..GatherOptions::default() };
        gather_with(options, &scratch.file(name)).unwrap();
        assert_eq!(told.load(Ordering::Relaxed), expected, "{name}");
    }
}

#[test]
fn archives_of_other_programs_are_read() {
    needs!(Need::Root, Need::Tool("bsdtar"), Need::Tool("tar"));
    let scratch = Scratch::new(64 << 20);
    let tree = scratch.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fill(&tree);
    for format in ["ustar", "pax", "gnutar"] {
        if format != "ustar" && !tree.join("sparse").exists() {
            fill_more(&tree);
            sparse(&tree);
        }
        let archive = scratch.file(format!("{format}.tar"));
        let format = format!("--format={format}");
        run(&["bsdtar", &format, "-cf", archive.to_str().unwrap(), "."], &tree);
        compare(&["bsdtar", "--xattrs"], &archive, &scratch);
    }
}

#[test]
fn an_archive_that_changed_is_an_error_that_names_the_file() {
    let scratch = Scratch::new(1 << 20);
    let path = scratch.file("a.tar");
    fs::write(&path, Tar::default().file("d/f", "0123456789").end()).unwrap();
    let gathered = gather(&path).unwrap();
    assert_eq!(contents(&gathered, item(&gathered.tree, "d/f")), b"0123456789");
    File::options().write(true).open(&path).unwrap().write_all_at(b"x", 1030).unwrap();
    let ItemKind::Regular(known) = &item(&gathered.tree, "d/f").kind else { panic!() };
    let error = gathered.read(known.key, 0, &mut [0; 10]).unwrap_err().to_string();
    assert!(error.contains("a.tar: d/f: changed"), "{error}");
}

#[test]
fn names_of_star_end_before_its_times() {
    let star = |magic: &[u8]| {
        let mut head = Head::new("name", b'0', 0);
        head.put(345, &[b'p'; 131]).put(476, b"00000000001\0").put(508, magic);
        gather_bytes(&[&Tar::default().head(&head).end()]).map(|gathered| paths(&gathered.tree))
    };
    let prefix = "p".repeat(131);
    assert_eq!(star(b"tar\0").unwrap(), [format!("{prefix}/"), format!("{prefix}/name")]);
    assert_eq!(star(b"\0\0\0\0").unwrap()[1], format!("{prefix}00000000001/name"));
    // GNU has times there, too, and no prefix.
    let mut gnu = Head::new("name", b'0', 0);
    gnu.put(257, b"ustar  \0").put(345, b"00000000001\0");
    assert_eq!(paths(&gather_bytes(&[&Tar::default().head(&gnu).end()]).unwrap().tree), ["name"]);
    // v7 has no numbers of devices and no types but three; old sums are of signed bytes.
    let mut old = Head::new("caf\u{e9}/", b'\0', 0);
    old.put(257, &[0; 8]);
    let mut bytes = old.done();
    let signed: i32 = bytes[..148].iter().chain(&bytes[156..]).map(|&byte| i32::from(byte as i8)).sum();
    bytes[148..156].copy_from_slice(format!("{:06o}\0 ", signed + 8 * 32).as_bytes());
    let found = gather_bytes(&[&[&bytes[..], &[0; 1024]].concat()]).unwrap();
    assert_eq!(paths(&found.tree), ["caf\u{e9}/"]);
}

#[test]
fn types_of_entries_are_those_of_all_programs() {
    let name = |name: &str, typeflag| Head::new(name, typeflag, 0);
    let archive = Tar::default()
        // Like compressed data, but with the checksum of a header.
        .file("BZh9", "b")
        .head(&Head::new("contiguous", b'7', 3))
        .data(b"con")
        // What has no contents says a size, and has none.
        .head(&Head::new("directory", b'5', 700))
        .head(Head::new("hard", b'1', 700).link("BZh9"))
        .head(Head::new("soft", b'2', 700).link("BZh9"))
        // Of GNU's incremental archives: with a list.
        .head(&Head::new("listed/", b'D', 4))
        .data(b"Yx\0\0")
        .head(&name("v7/", b'\0'))
        .head(&name("plain", b'\0'))
        .head(&name("pipe", b'6'))
        .end();
    let gathered = gather_bytes(&[&archive]).unwrap();
    let all = ["BZh9", "contiguous", "directory/", "hard", "listed/", "pipe", "plain", "soft", "v7/"];
    assert_eq!(paths(&gathered.tree), all);
    assert_eq!(contents(&gathered, item(&gathered.tree, "contiguous")), b"con");
    assert_eq!(contents(&gathered, item(&gathered.tree, "hard")), b"b");
    assert_eq!(item(&gathered.tree, "pipe").kind, ItemKind::Fifo);
}
