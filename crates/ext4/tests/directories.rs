//! Directories of every kind: all hashes and depths of hash trees, linear ones, case-folded ones, encrypted ones.

use crate::common;

use common::dirs::{ENCRYPT_FLAG, EXTENTS_FLAG, MANY, Recipe, assert_all_found, fill, in_dir, look_up_cold};
use common::{Image, open_ro, open_rw, read_only};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4::{Error, FileKind, VolumeOptions};
use uext4_testkit::{Need, Scratch, VolumeBuilder, debugfs, needs, oracle};

/// Names with bytes above 127, on which signed and unsigned hashes differ.
fn names(count: usize) -> Vec<Vec<u8>> {
    let name = |n: usize| [format!("name {n:05} ").as_bytes(), &[b'\x80' + (n % 100) as u8; 30]].concat();
    (0..count).map(name).collect()
}

/// The same with one more byte each.
fn absent(names: &[Vec<u8>]) -> Vec<Vec<u8>> {
    names.iter().step_by(7).map(|name| [name.as_slice(), b"\xE9"].concat()).collect()
}

#[test]
fn trees_of_every_hash_are_searched() {
    needs!(Need::Tool("mke2fs"), Need::Tool("tune2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let names = names(1000);
    for hash in ["legacy", "half_md4", "tea"] {
        let mut trees = Vec::new();
        for (sign, flags) in [("", "ssv flags 1"), ("_unsigned", "ssv flags 2")] {
            println!("{hash}{sign}");
            let tune = format!("hash_alg={hash}");
            let recipe = Recipe { tune2fs: &[&tune], debugfs: &[flags], ..Recipe::default() };
            let image = recipe.make(&names);
            // Descriptors, inode table, root directory, then root, leaf and inode table: the directory has 60 blocks.
            assert_all_found(&image, &names, &absent(&names), 7);
            trees.push(image);
        }
        // If the sign were ignored, half of these names would be looked up in a wrong leaf.
        trees[0].patch_superblock(|superblock| superblock[0x160] = 2);
        let volume = open_ro(trees[0].device());
        let missing = names
            .iter()
            .filter(|name| volume.resolve(OsStr::from_bytes(&in_dir(name)), false).is_err())
            .count();
        assert!(missing > 300, "{missing} of 1000 names are elsewhere by the other sign");
    }
}

/// Suffixes of names that, after 200 times the letter c, all have the legacy hash 0x268406f8.
const COLLIDING: [&str; 32] = [
    "000000", "24WgDU", "64CvVL", "9Vch4B", "dP7p51", "iP8Ns4", "nejguC", "qDnmex", "ri9Lly", "sPK7xF",
    "tJqxEO", "u04I9l", "yxeFDf", "CDrKMC", "CKqxwT", "DiX8oq", "FuYwfS", "Fviq13", "ImQVne", "JU906W",
    "Lafpep", "MeYcyZ", "MIQVx7", "P1hRKu", "PZSoAU", "QkPlyy", "QQOcbL", "TVHI3H", "V3Z2Ig", "XZ1go1",
    "YhMTVJ", "Yyo7Qm",
];

fn colliding() -> Vec<Vec<u8>> {
    let prefix = "c".repeat(200);
    COLLIDING.iter().map(|end| format!("{prefix}{end}").into_bytes()).chain(names(300)).collect()
}

#[test]
fn names_of_one_hash_go_on_in_the_next_blocks() {
    needs!(Need::Tool("mke2fs"), Need::Tool("tune2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let names = colliding();
    // Four such names fill a block of 1 KiB, so they span eight blocks.
    let recipe = Recipe { tune2fs: &["hash_alg=legacy"], ..Recipe::default() };
    assert_all_found(&recipe.make(&names), &names, &absent(&names), 14);
}

#[test]
fn root_the_kernel_made_trees_of_every_hash() {
    needs!(
        Need::Loop,
        Need::Tool("mke2fs"),
        Need::Tool("tune2fs"),
        Need::Tool("e2fsck"),
        Need::Tool("debugfs")
    );
    for (hash, flags) in [("legacy", 1), ("legacy", 2), ("half_md4", 2), ("tea", 1), ("tea", 2)] {
        println!("{hash} {flags}");
        let volume = VolumeBuilder::new(16 << 20).args(["-b", "1024", "-O", "^has_journal"]).build();
        let mut tune2fs = oracle::command("tune2fs");
        let tuned = tune2fs.args(["-E", &format!("hash_alg={hash}")]).arg(volume.path()).output().unwrap();
        assert!(tuned.status.success());
        oracle::debugfs_write(volume.path(), &format!("ssv flags {flags}"));
        let names = if hash == "legacy" { colliding() } else { names(1000) };
        volume.with_kernel(|root| {
            std::fs::create_dir(root.join("dir")).unwrap();
            fill(&root.join("dir"), 1, names.iter().map(Vec::as_slice));
        });
        assert!(debugfs(volume.path(), "htree_dump /dir").contains("Indirect levels: 0"));
        // The kernel splits blocks in halves, so the names of one hash span more of them.
        assert_all_found(&Image::load(volume.path()), &names, &absent(&names), 24);
    }
}

#[test]
fn root_trees_of_three_levels_are_searched() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(64 << 20).args(["-b", "1024", "-O", "large_dir,^has_journal"]).build();
    let end = "z".repeat(230);
    let names: Vec<Vec<u8>> = (0..45_000).map(|n| format!("{n:05}{end}").into_bytes()).collect();
    volume.with_kernel(|root| {
        std::fs::create_dir(root.join("dir")).unwrap();
        fill(&root.join("dir"), MANY, names.iter().map(Vec::as_slice));
    });
    let absent: Vec<Vec<u8>> = (45_000..46_000).map(|n| format!("{n:05}{end}").into_bytes()).collect();
    assert!(debugfs(volume.path(), "htree_dump /dir").contains("Indirect levels: 2"));
    // The directory's extent tree has several levels too.
    assert_all_found(&Image::load(volume.path()), &names, &absent, 12);
}

#[test]
fn blocks_of_64_kib_and_the_oldest_formats() {
    needs!(Need::Tool("mke2fs"), Need::Tool("tune2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let names = names(4000);
    let wide = Recipe {
        size: 64 << 20,
        args: &["-b", "65536", "-O", "^has_journal"],
        per_inode: MANY,
        ..Recipe::default()
    };
    assert_all_found(&wide.make(&names), &names, &absent(&names), 7);
    let wide = Recipe { args: &["-b", "65536", "-O", "^has_journal,^metadata_csum"], ..wide };
    assert_all_found(&wide.make(&names), &names, &absent(&names), 7);
    let plain = Recipe { index: false, ..wide };
    assert_all_found(&plain.make(&names), &names, &absent(&names), 10);
    let names = &names[..1000];
    let old = Recipe {
        args: &["-b", "1024", "-O", "^has_journal,^filetype,^dir_index"],
        index: false,
        ..Recipe::default()
    };
    let image = old.make(names);
    assert_all_found(&image, names, &absent(names), 100);
    // Without a type in the entry, it comes from the inode.
    let volume = open_ro(image.device());
    for entry in volume.read_dir("/").unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.kind, None);
        assert_eq!(volume.metadata_of(entry.ino).unwrap().kind, FileKind::Directory);
    }
}

/// `/dir`, `/plain`, `/file`, `/link` and a link long enough for a block, of which debugfs encrypts some.
fn partly_encrypted() -> Image {
    let source = Scratch::new(1 << 20);
    for dir in ["dir", "plain"] {
        std::fs::create_dir(source.file(dir)).unwrap();
        std::fs::write(source.file(dir).join("inner"), "inner\n").unwrap();
    }
    std::fs::write(source.file("file"), "secret\n").unwrap();
    std::os::unix::fs::symlink("plain", source.file("link")).unwrap();
    std::os::unix::fs::symlink("p/".repeat(90), source.file("long")).unwrap();
    let args = ["-b", "1024", "-O", "encrypt,^has_journal"];
    let volume = VolumeBuilder::new(8 << 20).args(args).from_dir(source.path()).build();
    for (path, flags) in [("dir", EXTENTS_FLAG), ("file", EXTENTS_FLAG), ("link", 0), ("long", EXTENTS_FLAG)]
    {
        oracle::debugfs_write(volume.path(), &format!("sif /{path} flags {:#x}", flags | ENCRYPT_FLAG));
    }
    Image::load(volume.path())
}

#[test]
fn what_is_encrypted_is_refused_by_name_and_the_rest_works() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let image = partly_encrypted();
    for volume in [open_ro(image.device()), open_rw(image.device())] {
        let refused = |error: Error, what: &str, path: &str| {
            let ino = volume.symlink_metadata(path).unwrap().ino;
            assert!(matches!(error, Error::Incompatible { action: "read", .. }), "{error:?}");
            assert_eq!(error.errno(), 95);
            assert!(error.to_string().ends_with(&format!("{what} (inode {ino})")), "{error}");
        };
        refused(volume.read_dir("/dir").err().unwrap(), "an encrypted directory", "/dir");
        refused(volume.metadata("/dir/inner").unwrap_err(), "an encrypted directory", "/dir");
        refused(volume.resolve("/dir/none", true).unwrap_err(), "an encrypted directory", "/dir");
        refused(volume.open_file("/file", read_only()).err().unwrap(), "an encrypted file", "/file");
        refused(volume.read_link("/link").unwrap_err(), "an encrypted symbolic link", "/link");
        refused(volume.read_link("/long").unwrap_err(), "an encrypted symbolic link", "/long");
        refused(volume.metadata("/link/inner").unwrap_err(), "an encrypted symbolic link", "/link");
        // Attributes in the inode are readable all the same.
        assert_eq!(volume.metadata("/dir").unwrap().kind, FileKind::Directory);
        assert_eq!(volume.metadata("/file").unwrap().size, 7);
        assert_eq!(volume.read_dir("/").unwrap().map(Result::unwrap).count(), 8);
        assert_eq!(volume.read_dir("/plain").unwrap().map(Result::unwrap).count(), 3);
        let file = volume.open_file("/plain/inner", read_only()).unwrap();
        assert_eq!(common::read_all(&file), b"inner\n");
    }
    assert!(uext4::Volume::open_device(image.device(), VolumeOptions::read_write()).is_ok());
}

#[test]
fn a_cold_look_up_in_a_plain_directory_reads_all_of_it() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    // Check the measure itself: without a tree a look-up costs the whole directory.
    let names = names(1000);
    let image = Recipe { index: false, ..Recipe::default() }.make(&names);
    let (found, blocks) = look_up_cold(&image.device(), b"/dir/none");
    assert_eq!(found.unwrap_err().errno(), 2);
    assert!(blocks > 50, "{blocks}");
}
