//! What a volume's features ask of its inodes and names: fields without their feature, encryption contexts, valid
//! UTF-8, file types in entries. e2fsck is asked each time, and finds what the check finds.

mod common;

use common::Image;
use common::hostile::{Layout, ino_of};
use std::path::Path;
use uext4::VolumeOptions;
use uext4::check::{CheckOptions, Report, Severity, check_volume};
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{Inode, update_inode_checksum};
use uext4_testkit::requirement::Need;
use uext4_testkit::{Scratch, VolumeBuilder, needs, oracle};

fn check(image: &Image) -> Report {
    check_volume(image.device(), VolumeOptions::read_only(), &CheckOptions::new(), &mut |_| {}).unwrap()
}

fn told(report: &Report) -> Vec<String> {
    report.findings.iter().map(|finding| finding.to_string()).collect()
}

/// Files in `/d`, `/d/sub` and beside it, on a volume of these features; debugfs then does what is asked.
fn volume(args: &[&str], requests: &[String]) -> Image {
    volume_with(args, &[], requests)
}

/// The same with extended options of mke2fs (`-E`).
fn volume_with(args: &[&str], extended: &[&str], requests: &[String]) -> Image {
    let source = Scratch::new(1 << 20);
    let dir = source.file("tree");
    std::fs::create_dir_all(dir.join("d/a subdirectory, long")).unwrap();
    std::fs::write(dir.join("d/some file with a name"), [1; 5000]).unwrap();
    std::fs::write(dir.join("d/other file with a name"), "").unwrap();
    std::fs::write(dir.join("plain"), [2; 3000]).unwrap();
    let args = args.iter().copied().chain(["-b", "1024", "-N", "64"]);
    let builder = VolumeBuilder::new(4 << 20).args(args).from_dir(&dir);
    let volume = extended.iter().fold(builder, |builder, option| builder.extended(*option)).build();
    for request in requests {
        oracle::debugfs_write(volume.path(), request);
    }
    Image::load(volume.path())
}

fn judged(image: &Image) -> oracle::Fsck {
    let scratch = Scratch::new(8 << 20);
    let path = scratch.file("volume.img");
    image.save(&path);
    oracle::e2fsck(&path, &["-n"])
}

/// The check finds just this, and e2fsck finds something.
#[track_caller]
fn assert_found(what: &str, image: &Image, codes: &[&str]) -> Report {
    let report = check(image);
    let found: Vec<_> = report.findings.iter().map(|finding| finding.kind.code).collect();
    assert_eq!(found, codes, "{what}: {:#?}", told(&report));
    let judged = judged(image);
    let damaged = report.findings.iter().any(|finding| finding.kind.severity == Severity::Error);
    assert_eq!(judged.is_clean(), !damaged, "{what}: {:#?}\n{}", told(&report), judged.output);
    report
}

/// Changes an inode's record and makes its checksum right again.
fn change_inode(image: &mut Image, ino: Ino, change: impl FnOnce(&mut [u8])) {
    let layout = Layout::of(image);
    let at = layout.inode(ino);
    let size = usize::from(layout.superblock.geometry.inode_size());
    change(&mut image.bytes[at..at + size]);
    update_inode_checksum(&mut image.bytes[at..at + size], ino, &layout.superblock).unwrap();
}

#[test]
fn upper_halves_without_their_features_are_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let without = volume(&["-O", "^64bit,^huge_file,^large_dir"], &[]);
    let with = volume(&["-O", "64bit,huge_file,large_dir"], &[]);
    assert_found("nothing changed", &without, &[]);
    for (field, path) in [(0x6c, "/d"), (0x74, "/plain"), (0x76, "/plain")] {
        let what = format!("field {field:#x} of {path}");
        let mut image = without.clone();
        change_inode(&mut image, ino_of(&without, path), |record| record[field] = 1);
        let report = check(&image);
        let fields = report.findings.iter().filter(|finding| finding.kind.code == "inode.field").count();
        assert_eq!(fields, 1, "{what}: {:#?}", told(&report));
        assert!(!judged(&image).is_clean(), "{what}");
        let mut image = with.clone();
        change_inode(&mut image, ino_of(&without, path), |record| record[field] = 1);
        let report = check(&image);
        let odd = |text: &String| text.contains("without");
        assert!(!told(&report).iter().any(odd), "{what} has a meaning: {:#?}", told(&report));
    }
}

#[test]
fn attribute_blocks_without_their_feature_are_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(1 << 20);
    let value = scratch.file("value");
    std::fs::write(&value, [b'v'; 600]).unwrap();
    let set = format!("ea_set -f {} /plain user.long", value.display());
    let mut image = volume(&["-O", "ext_attr"], &[set]);
    assert_found("with the feature", &image, &[]);
    image.patch_superblock(|superblock| superblock[0x5c] &= !0x8);
    let report = assert_found("without it", &image, &["inode.field"]);
    assert!(told(&report)[0].contains("without ext_attr"), "{:#?}", told(&report));
}

#[test]
fn quota_inodes_that_are_others_are_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for (field, ino, wrong) in
        [(0x240, 2, true), (0x244, 7, true), (0x26c, 5000, true), (0x240, 3, false), (0x244, 4, false)]
    {
        let mut image = volume(&[], &[]);
        image.patch_superblock(|superblock| superblock[field] = ino as u8);
        image.patch_superblock(|superblock| superblock[field + 1] = (ino >> 8) as u8);
        let codes: &[&str] = if wrong { &["superblock.quota_inode"] } else { &[] };
        assert_found(&format!("inode {ino} at {field:#x}"), &image, codes);
    }
}

#[test]
fn entries_without_a_type_are_told_and_leave_a_volume_clean() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    // As `tune2fs -O filetype` leaves a volume.
    let mut image = volume(&["-O", "^filetype,^metadata_csum"], &[]);
    assert_found("without the feature", &image, &[]);
    image.patch_superblock(|superblock| superblock[0x60] |= 0x2);
    let report = check(&image);
    assert!(report.is_clean() && !report.findings.is_empty(), "{:#?}", told(&report));
    assert!(report.findings.iter().all(|finding| finding.kind.code == "entry.untyped"));
    assert!(judged(&image).is_clean());
    // Types that there are not are not the same as none.
    let layout = Layout::of(&image);
    let at = layout.inode(ino_of(&image, "/d"));
    let inode = Inode::decode(&image.bytes[at..], ino_of(&image, "/d"), &layout.superblock).unwrap();
    let block = u32::from_le_bytes(inode.i_block[20..24].try_into().unwrap()) as usize * 1024;
    image.bytes[block + 7] = 9;
    let report = check(&image);
    assert!(told(&report).iter().any(|text| text.contains("`.` says type 9")), "{:#?}", told(&report));
    assert!(!report.is_clean() && !judged(&image).is_clean());
}

#[test]
fn names_that_are_no_utf_8_are_found_where_the_volume_is_strict() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let fold = "set_inode_field /d flags 0x40080000".to_string();
    for (strict, folded, codes) in
        [(true, true, &["entry.encoding"][..]), (true, false, &[]), (false, true, &[])]
    {
        let extended =
            if strict { &["encoding=utf8", "encoding_flags=strict"][..] } else { &["encoding=utf8"] };
        let requests = if folded { std::slice::from_ref(&fold) } else { &[] };
        let mut image = volume_with(&["-O", "casefold,^metadata_csum,^dir_index"], extended, requests);
        let name = b"other file with a name";
        let at = image.bytes.windows(name.len()).position(|window| window == name).unwrap();
        image.bytes[at] = 0xff;
        assert_found(&format!("strict {strict}, folded {folded}"), &image, codes);
    }
}

/// What an inode's attribute holds, if it has one.
type Context = Option<Vec<u8>>;

/// A context: the version, a policy's number and an inode's own bytes.
fn context(version: u8, policy: u8, own: u8) -> Vec<u8> {
    let length = if version == 1 { 28 } else { 40 };
    let mut context = vec![own; length];
    let key = if version == 1 { 4..12 } else { 8..24 };
    context[..4].copy_from_slice(&[version, 1, 4, 2]);
    context[4..8].fill(0);
    context[key].fill(policy);
    context
}

/// Marks inodes as encrypted and gives them contexts, as attributes named `c` in the name space of encryption.
fn encrypted(dir: &Path, contexts: &[(&str, Context)]) -> Image {
    let mut requests = Vec::new();
    for (path, context) in contexts {
        requests.push(format!("set_inode_field \"{path}\" flags 0x80800"));
        if let Some(context) = context {
            let file = dir.join(format!("value {}", requests.len()));
            std::fs::write(&file, context).unwrap();
            requests.push(format!("ea_set -f \"{}\" \"{path}\" user.c", file.display()));
        }
    }
    let args = ["-O", "encrypt,^dir_index", "-I", "256"];
    let (plain, mut image) = (volume(&args, &[]), volume(&args, &requests));
    for (path, context) in contexts {
        if context.is_some() {
            // The entry's index of name spaces: behind the magic number and the length of the name.
            change_inode(&mut image, ino_of(&plain, path), |record| {
                let extra = usize::from(u16::from_le_bytes([record[0x80], record[0x81]]));
                let entry = 0x80 + extra + 4;
                assert_eq!((record[entry], record[entry + 1], record[entry + 16]), (1, 1, b'c'));
                record[entry + 1] = 9;
            });
        }
    }
    image
}

const DIR: &str = "/d";
const FILE: &str = "/d/some file with a name";
const OTHER: &str = "/d/other file with a name";
const SUB: &str = "/d/a subdirectory, long";

#[test]
fn encrypted_trees_of_one_policy_are_clean() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(1 << 20);
    for version in [1, 2, 7] {
        let all = [DIR, FILE, OTHER, SUB].iter().enumerate();
        let all: Vec<_> = all.map(|(own, path)| (*path, Some(context(version, 5, own as u8)))).collect();
        assert_found(&format!("version {version}"), &encrypted(scratch.path(), &all), &[]);
    }
}

#[test]
fn missing_damaged_and_foreign_encryption_contexts_are_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(1 << 20);
    let with = |other: Context| {
        let good = |own| Some(context(2, 5, own));
        encrypted(scratch.path(), &[(DIR, good(1)), (FILE, good(2)), (SUB, good(3)), (OTHER, other)])
    };
    let short = context(2, 5, 9)[..39].to_vec();
    let cases: [(&str, Context, &[&str]); 5] = [
        ("no context", None, &["encrypt.context", "encrypt.policy"]),
        ("a short one", Some(short), &["encrypt.context", "encrypt.policy"]),
        ("version 0", Some(context(0, 5, 9)), &["encrypt.context", "encrypt.policy"]),
        ("another policy", Some(context(2, 6, 9)), &["encrypt.policy"]),
        ("another version", Some(context(1, 5, 9)), &["encrypt.policy"]),
    ];
    for (what, other, codes) in cases {
        assert_found(what, &with(other), codes);
    }
    let good = |own| Some(context(2, 5, own));
    let image = encrypted(scratch.path(), &[(DIR, good(1)), (FILE, good(2)), (SUB, good(3))]);
    assert_found("a file that is not encrypted", &image, &["encrypt.policy"]);
    // The encrypted subdirectory is moved out by a name of its own, and the file that stays has a short name.
    let requests: Vec<String> = vec!["ln \"/d/some file with a name\" /d/short".into()];
    let path = scratch.file("volume.img");
    encrypted(scratch.path(), &[(DIR, good(1)), (FILE, good(2)), (SUB, good(3)), (OTHER, good(4))])
        .save(&path);
    oracle::debugfs_write(&path, &requests[0]);
    oracle::debugfs_write(&path, "set_inode_field \"/d/some file with a name\" links_count 2");
    assert_found("a short name", &Image::load(&path), &["entry.name"]);
}
