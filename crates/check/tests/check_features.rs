//! What a volume's features ask of its inodes and names: fields without their feature, encryption contexts, valid
//! UTF-8, file types in entries. e2fsck is asked each time, and finds what the check finds.

use crate::common;

use common::Image;
use common::checked::{assert_found, change_bytes, change_inode, check, judged, told, volume, volume_with};
use common::hostile::{Layout, ino_of};
use std::path::Path;
use uext4_check::Severity;
use uext4_ondisk::ext4::Inode;
use uext4_testkit::requirement::Need;
use uext4_testkit::{Scratch, VolumeBuilder, needs, oracle};

#[test]
fn upper_halves_without_their_features_are_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let without = volume(&["-O", "^64bit,^huge_file,^large_dir"], &[]);
    let with = volume(&["-O", "64bit,huge_file,large_dir"], &[]);
    assert_found("nothing changed", &without, &[]);
    for (field, path, feature) in [
        (0x6c, "/d", "without large_dir"),
        (0x74, "/plain", "without huge_file"),
        (0x76, "/plain", "without 64bit"),
    ] {
        let what = format!("field {field:#x} of {path}");
        let mut image = without.clone();
        change_inode(&mut image, ino_of(&without, path), |record| record[field] = 1);
        let texts = told(&check(&image));
        let fields: Vec<_> = texts.iter().filter(|text| text.starts_with("inode.field")).collect();
        assert!(fields.len() == 1 && fields[0].contains(feature), "{what}: {texts:#?}");
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
    let reserved = [1, 2, 5, 6, 7, 8, 9, 10].map(|ino| (0x240, ino, true));
    let others =
        [(0x244, 64, false), (0x244, 65, true), (0x26c, 5000, true), (0x240, 3, false), (0x244, 4, false)];
    for (field, ino, wrong) in reserved.into_iter().chain(others) {
        let mut image = volume(&[], &[]);
        image.patch_superblock(|superblock| superblock[field] = ino as u8);
        image.patch_superblock(|superblock| superblock[field + 1] = (ino >> 8) as u8);
        let (what, report, judged) = (format!("inode {ino} at {field:#x}"), check(&image), judged(&image));
        let found = told(&report).iter().any(|text| text.starts_with("superblock.quota_inode"));
        assert_eq!(found, wrong, "{what}: {:#?}", told(&report));
        assert_eq!(judged.output.contains("quota inode"), wrong, "{what}: {}", judged.output);
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
    // The other way round: types on a volume without them.
    let mut typed = volume(&["-O", "^metadata_csum"], &[]);
    typed.patch_superblock(|superblock| superblock[0x60] &= !0x2);
    let report = check(&typed);
    assert!(!report.is_clean() && !judged(&typed).is_clean());
    assert!(report.findings.iter().all(|finding| finding.kind.code == "entry.type"), "{:#?}", told(&report));
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
    // In a block and inside the inode.
    for (features, size, flags) in [("casefold", "256", 0x80000), ("casefold,inline_data", "512", 1 << 28)] {
        let list = format!("{features},^metadata_csum,^dir_index");
        let args = ["-O", list.as_str(), "-I", size];
        for (strict, folded, codes) in
            [(true, true, &["entry.encoding"][..]), (true, false, &[]), (false, true, &[])]
        {
            let extended: &[&str] =
                if strict { &["encoding=utf8", "encoding_flags=strict"] } else { &["encoding=utf8"] };
            let fold = [format!("set_inode_field /one flags {:#x}", 0x4000_0000 | flags)];
            let mut image = volume_with(&args, extended, if folded { &fold } else { &[] });
            change_bytes(&mut image, b"only file, with a name", |name| name[0] = 0xff);
            assert_found(&format!("{features}, strict {strict}, folded {folded}"), &image, codes);
        }
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
    encrypted_with(dir, &["-O", "encrypt,^dir_index", "-I", "256"], &[], contexts)
}

/// The same with these features; the first one is case-folded too if the volume has an encoding.
fn encrypted_with(dir: &Path, args: &[&str], extended: &[&str], contexts: &[(&str, Context)]) -> Image {
    let plain = volume_with(args, extended, &[]);
    let layout = Layout::of(&plain);
    let mut requests = Vec::new();
    for (index, (path, context)) in contexts.iter().enumerate() {
        let ino = ino_of(&plain, path);
        let inode = Inode::decode(&plain.bytes[layout.inode(ino)..], ino, &layout.superblock).unwrap();
        let folded = if index == 0 && !extended.is_empty() { 0x4000_0000 } else { 0 };
        requests.push(format!("set_inode_field \"{path}\" flags {:#x}", inode.flags.bits() | 0x800 | folded));
        if let Some(context) = context {
            let file = dir.join(format!("value {}", requests.len()));
            std::fs::write(&file, context).unwrap();
            requests.push(format!("ea_set -f \"{}\" \"{path}\" user.c", file.display()));
        }
    }
    let mut image = volume_with(args, extended, &requests);
    for (path, _) in contexts.iter().filter(|(_, context)| context.is_some()) {
        change_inode(&mut image, ino_of(&plain, path), encrypt_name);
    }
    image
}

/// Moves the attribute `user.c` of an inode into the name space of encryption.
fn encrypt_name(record: &mut [u8]) {
    let first = 0x80 + usize::from(u16::from_le_bytes([record[0x80], record[0x81]])) + 4;
    let named = |entry: &usize| (record[*entry], record[entry + 1], record[entry + 16]) == (1, 1, b'c');
    let entry = (first..record.len() - 16).step_by(4).find(named).expect("the attribute is in the inode");
    record[entry + 1] = 9;
}

const DIR: &str = "/d";
const FILE: &str = "/d/some file with a name";
const OTHER: &str = "/d/other file with a name";
const SUB: &str = "/d/a subdirectory, long";

/// `/d` and what it names, all of one policy.
fn good_contexts() -> [(&'static str, Context); 4] {
    [(DIR, 1), (FILE, 2), (SUB, 3), (OTHER, 4)].map(|(path, own)| (path, Some(context(2, 5, own))))
}

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
        let mut contexts = good_contexts();
        contexts[3].1 = other;
        encrypted(scratch.path(), &contexts)
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
    let image = encrypted(scratch.path(), &good_contexts()[..3]);
    assert_found("a file that is not encrypted", &image, &["encrypt.policy"]);
    let path = scratch.file("volume.img");
    encrypted(scratch.path(), &good_contexts()).save(&path);
    oracle::debugfs_write(&path, "ln \"/d/some file with a name\" /d/short");
    oracle::debugfs_write(&path, "set_inode_field \"/d/some file with a name\" links_count 2");
    assert_found("a short name", &Image::load(&path), &["entry.name"]);
}

#[test]
fn what_cannot_be_encrypted_may_lie_in_encrypted_directories() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(8 << 20);
    let path = scratch.file("volume.img");
    encrypted(scratch.path(), &good_contexts()).save(&path);
    // debugfs makes nodes where it stands.
    for node in ["mknod \"a pipe with a long name\" p", "mknod \"a device with a long name\" c 1 3"] {
        oracle::debugfs_script(&path, &format!("cd /d\n{node}\n"));
    }
    let report = assert_found("a pipe and a device", &Image::load(&path), &[]);
    assert_eq!(report.counts.special, 2);
    // A symbolic link can be, and must be.
    oracle::debugfs_script(&path, "symlink \"/d/a link with a long name\" target\n");
    assert_found("a link", &Image::load(&path), &["encrypt.policy"]);
}

#[test]
fn contexts_in_attribute_blocks_are_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(1 << 20);
    for (own, other, codes) in
        [(5, 5, &[][..]), (5, 6, &["encrypt.policy"]), (0, 5, &["encrypt.context", "encrypt.policy"])]
    {
        let mut requests = Vec::new();
        for (path, context) in [
            (DIR, context(2, 5, 1)),
            (FILE, context(2, 5, 2)),
            (SUB, context(2, 5, 3)),
            (OTHER, context(if own == 0 { 0 } else { 2 }, other, 4)),
        ] {
            let file = scratch.file(format!("value {}", requests.len()));
            std::fs::write(&file, context).unwrap();
            requests.push(format!("set_inode_field \"{path}\" flags 0x80800"));
            requests.push(format!("ea_set -f \"{}\" \"{path}\" user.c", file.display()));
        }
        let mut image = volume(&["-O", "encrypt,^dir_index,^metadata_csum", "-I", "128"], &requests);
        let mut blocks = 0;
        for block in image.bytes.chunks_exact_mut(1024).filter(|block| block.starts_with(&[0, 0, 2, 0xea])) {
            assert_eq!((block[32], block[33], block[48]), (1, 1, b'c'));
            block[33] = 9;
            blocks += 1;
        }
        assert_eq!(blocks, 4);
        assert_found(&format!("versions and policies {own} {other}"), &image, codes);
    }
}

/// The kernel keeps a context in an inode of its own where there is no room elsewhere.
#[test]
fn contexts_in_inodes_of_their_own_are_taken_for_any() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(1 << 20);
    let (long, short) = (scratch.file("long"), scratch.file("short"));
    std::fs::write(&long, context(2, 5, 1).repeat(50)).unwrap();
    std::fs::write(&short, context(2, 5, 2)).unwrap();
    let set = |path: &str, file: &Path| {
        let flags = format!("set_inode_field \"{path}\" flags 0x80800");
        [flags, format!("ea_set -f \"{}\" \"{path}\" user.c", file.display())]
    };
    let mut requests = set(DIR, &long).to_vec();
    requests.extend([FILE, OTHER, SUB].iter().flat_map(|path| set(path, &short)));
    let args = ["-O", "encrypt,ea_inode,^dir_index,^metadata_csum", "-I", "256"];
    let (plain, mut image) = (volume(&args, &[]), volume(&args, &requests));
    for path in [DIR, FILE, OTHER, SUB] {
        change_inode(&mut image, ino_of(&plain, path), encrypt_name);
    }
    let report = check(&image);
    let encrypt = told(&report).into_iter().filter(|text| text.starts_with("encrypt.")).collect::<Vec<_>>();
    assert_eq!(encrypt, [""; 0]);
    let not_examined: Vec<_> = report.not_examined.iter().map(|missed| (missed.what, missed.count)).collect();
    assert_eq!(not_examined, [("encryption contexts", 1)]);
    assert!(report.counts.inodes > 15, "the value has an inode: {:?}", report.counts);
}

#[test]
fn names_in_encrypted_directories_need_not_be_valid() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(1 << 20);
    let strict: &[&str] = &["encoding=utf8", "encoding_flags=strict"];
    let paths = ["/one", "/one/only file, with a name"];
    // The directory lies in a block or inside its inode.
    for (features, size, extended) in [
        ("encrypt", "256", &[][..]),
        ("encrypt,casefold", "256", strict),
        ("encrypt,inline_data", "512", &[]),
        ("encrypt,casefold,inline_data", "512", strict),
    ] {
        let list = format!("{features},^dir_index,^metadata_csum");
        let args = ["-O", list.as_str(), "-I", size];
        let with = |policy| {
            let contexts = [(paths[0], Some(context(2, 5, 1))), (paths[1], Some(context(2, policy, 2)))];
            encrypted_with(scratch.path(), &args, extended, &contexts)
        };
        let mut image = with(5);
        let directory = ino_of(&volume_with(&args, extended, &[]), paths[0]);
        let at = Layout::of(&image).inode(directory);
        let inode = Inode::decode(&image.bytes[at..], directory, &Layout::of(&image).superblock).unwrap();
        assert_eq!(inode.has_inline_data(), features.contains("inline"));
        change_bytes(&mut image, b"only file, with a name", |name| (name[0], name[1]) = (0xff, b'/'));
        assert_found(features, &image, &[]);
        assert_found(&format!("{features}: another policy"), &with(6), &["encrypt.policy"]);
    }
}

/// e2fsck looks at what they are for, and at nothing else.
#[test]
fn the_file_system_s_own_inodes_have_no_contexts_and_may_have_times() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for (features, requests) in [
        (
            "encrypt,orphan_file",
            &["set_inode_field <12> flags 0x80800", "set_inode_field <12> dtime @1700000000"][..],
        ),
        ("encrypt", &["set_inode_field <9> flags 0x82800", "set_inode_field <9> links_count 1"]),
        ("encrypt", &["set_inode_field <7> dtime @1700000000"]),
    ] {
        let args = ["-O", &format!("{features},^metadata_csum")];
        let requests: Vec<_> = requests.iter().map(|request| (*request).to_string()).collect();
        assert_found(&requests.join("; "), &volume(&args, &requests), &[]);
    }
    let requests = ["set_inode_field <2> dtime @1700000000".to_string()];
    assert_found("the root", &volume(&["-O", "^metadata_csum"], &requests), &["inode.deletion_time"]);
}

/// Flags that say how an inode is read, on an inode of the file system's own.
#[test]
fn the_file_system_s_own_inodes_have_no_flags_that_mislead() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    const INDEX: u32 = 0x1000;
    const IMAGIC: u32 = 0x2000;
    const EXTENTS: u32 = 0x8_0000;
    const INLINE: u32 = 0x1000_0000;
    const CASEFOLD: u32 = 0x4000_0000;
    let flags = &["inode.flags"][..];
    let (ext4, inline) = ("^metadata_csum", "inline_data,^metadata_csum");
    let (mapped, orphans) = ("^extents,^64bit,^metadata_csum", "orphan_file,^metadata_csum");
    // Where codes are none, the map is gone with the flag, and more is found than can be listed here.
    for (features, ino, value, links, codes) in [
        (ext4, 8, EXTENTS | INDEX, 1, Some(flags)),
        (ext4, 8, EXTENTS | CASEFOLD, 1, Some(flags)),
        (ext4, 8, EXTENTS | INLINE, 1, None),
        (ext4, 8, EXTENTS | IMAGIC, 1, Some(&[])),
        (ext4, 9, INDEX, 1, Some(flags)),
        (ext4, 9, INDEX, 0, Some(flags)),
        (ext4, 9, CASEFOLD, 1, Some(flags)),
        (ext4, 9, EXTENTS | INLINE, 1, Some(flags)),
        (ext4, 9, INLINE, 1, Some(&[])),
        (inline, 9, INLINE, 1, Some(&[])),
        (inline, 9, EXTENTS | INLINE, 1, Some(flags)),
        (mapped, 9, EXTENTS, 1, Some(flags)),
        (mapped, 9, EXTENTS, 0, Some(&[])),
        (ext4, 7, INDEX, 1, Some(flags)),
        (ext4, 7, CASEFOLD, 1, Some(flags)),
        (ext4, 7, EXTENTS, 1, None),
        (ext4, 7, INLINE, 1, None),
        (mapped, 7, EXTENTS, 1, None),
        (ext4, 1, INDEX, 0, Some(&[])),
        (ext4, 1, CASEFOLD, 0, Some(flags)),
        (ext4, 1, INLINE, 0, Some(&["inode.special"])),
        (inline, 1, INLINE, 0, Some(&["inode.special"])),
        (orphans, 12, EXTENTS | INDEX, 1, Some(flags)),
        (orphans, 12, EXTENTS | CASEFOLD, 1, Some(flags)),
        (orphans, 12, EXTENTS | INLINE, 1, None),
        (orphans, 12, EXTENTS | IMAGIC, 1, Some(&[])),
        ("quota,^metadata_csum", 3, EXTENTS | INDEX, 1, Some(flags)),
    ] {
        let what = format!("{features}: <{ino}> flags {value:#x}, {links} links");
        let requests = [
            format!("set_inode_field <{ino}> flags {value:#x}"),
            format!("set_inode_field <{ino}> links_count {links}"),
        ];
        let image = volume(&["-O", features], &requests);
        match codes {
            Some(codes) => drop(assert_found(&what, &image, codes)),
            None => {
                let (report, judged) = (check(&image), judged(&image));
                assert!(!report.is_clean() && !judged.is_clean(), "{what}: {:#?}", told(&report));
                let contents = told(&report).iter().any(|text| text.starts_with("inode.inline_data"));
                assert_eq!(contents, ino == 12, "{what}: {:#?}", told(&report));
            }
        }
    }
}

/// Of the numbers kept for features that are off, and of records whose first 128 bytes are zero, e2fsck looks at
/// little.
#[test]
fn what_nobody_uses_may_hold_anything() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for (request, codes) in [
        ("<3> file_acl 2000", &[][..]),
        ("<4> file_acl 0x21a4", &[]),
        ("<3> blocks_hi 0xa1ff", &[]),
        ("<3> blocks 1", &["inode.special"]),
        ("<4> flags 0x1000", &[]),
        ("<1> flags 0x80000", &[]),
        ("<1> uid 8", &["inode.special"]),
        ("<1> gid 8", &["inode.special"]),
        ("<4> flags 0x40000000", &["inode.flags"]),
        ("<9> checksum 0x40000000", &[]),
        ("<60> checksum 0x40000000", &[]),
        ("<60> crtime_extra 7", &[]),
    ] {
        let image = volume(&[], &[format!("set_inode_field {request}")]);
        assert_found(request, &image, codes);
    }
}

#[test]
fn block_maps_on_volumes_of_clusters_are_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = volume(&["-O", "^extents,^64bit,^metadata_csum,^resize_inode"], &["feature bigalloc".into()]);
    let (report, judged) = (check(&image), judged(&image));
    assert!(judged.output.contains("cannot be block mapped"), "{}", judged.output);
    let found: Vec<_> = report.findings.iter().filter(|finding| finding.kind.code == "inode.flags").collect();
    // `/`, `/lost+found`, `/d`, its two entries that have blocks, `/plain`, `/one` and its entry.
    assert_eq!(found.len(), 8, "{:#?}\n{}", told(&report), judged.output);
    assert_eq!(judged.output.matches("cannot be block mapped").count(), 8, "{}", judged.output);
}

#[test]
fn nodes_with_less_room_than_they_have_are_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for (room, codes) in [(1, &["extent.node"][..]), (2, &[]), (4, &[])] {
        let image = volume(&["-O", "extents"], &[format!("set_inode_field /plain block[1] {room}")]);
        let report = check(&image);
        let found: Vec<_> = report.findings.iter().map(|finding| finding.kind.code).collect();
        assert_eq!((found.as_slice(), judged(&image).is_clean()), (codes, codes.is_empty()), "{room}");
    }
}

#[test]
fn journals_that_are_nowhere_are_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = volume(&["-O", "^has_journal"], &["feature has_journal".into()]);
    assert_found("no journal", &image, &["journal.superblock"]);
}

/// The kernel gives up counting the links of directories with a hash tree only.
#[test]
fn one_link_is_enough_for_indexed_directories() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let one = "set_inode_field /d links_count 1".to_string();
    assert_found("one block", &volume(&[], std::slice::from_ref(&one)), &["inode.links"]);
    let many = Scratch::new(8 << 20);
    let dir = many.file("tree/d");
    std::fs::create_dir_all(dir.join("sub")).unwrap();
    for number in 0..60 {
        std::fs::write(dir.join(format!("a name that fills some of a block, {number}")), "").unwrap();
    }
    let args = ["-b", "1024", "-N", "128"];
    let volume = VolumeBuilder::new(4 << 20).args(args).from_dir(&many.file("tree")).build();
    oracle::e2fsck(volume.path(), &["-y", "-D"]);
    oracle::debugfs_write(volume.path(), &one);
    let image = Image::load(volume.path());
    assert!(oracle::debugfs(volume.path(), "stat /d").contains("Flags: 0x81000"));
    assert_found("a hash tree", &image, &[]);
}

#[test]
fn attributes_of_the_resize_inode_are_checked() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = volume(&["-O", "^metadata_csum"], &["set_inode_field <7> file_acl 3".into()]);
    let codes: Vec<_> = told(&check(&image));
    assert!(codes.iter().any(|text| text.starts_with("xattr.block")), "{codes:#?}");
    assert!(judged(&image).output.contains("bad extended attribute block 3"));
}

/// e2fsck counts them among files that need `large_file`.
#[test]
fn a_large_journal_needs_large_file() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let large = ["set_inode_field <8> size 0x90000000".to_string()];
    for (features, needed) in [("^resize_inode,large_file", false), ("^resize_inode,^large_file", true)] {
        let image = volume(&["-O", features], &large);
        let (report, judged) = (check(&image), judged(&image));
        let found = told(&report).iter().any(|text| text.starts_with("superblock.large_file"));
        assert_eq!(found, needed, "{features}: {:#?}", told(&report));
        assert_eq!(judged.output.contains("LARGE_FILE"), needed, "{features}: {}", judged.output);
    }
}

/// Times in the superblock have 40 bits, deletion times have 32.
#[test]
fn deletion_times_of_early_clocks_are_times() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let requests = ["rm /plain".to_string(), "set_inode_field <PLAIN> dtime @13".to_string()];
    let plain = ino_of(&volume(&["-O", "^metadata_csum"], &[]), "/plain");
    let requests = requests.map(|request| request.replace("PLAIN", &plain.to_string()));
    let image = volume(&["-O", "^metadata_csum"], &requests);
    assert_found("a clock of today", &image, &["inode.deletion_time"]);
    // The lower halves of mount, write and creation, and the upper ones.
    for (low, high) in [(0x2c, 0x275), (0x30, 0x274), (0x108, 0x276)] {
        for wrapped in [0, 1] {
            let mut image = image.clone();
            image.patch_superblock(|superblock| {
                superblock[low..low + 4].copy_from_slice(&20_u32.to_le_bytes());
                superblock[high] = wrapped;
            });
            assert_found(&format!("{low:#x} early, {wrapped}"), &image, &[]);
        }
    }
}

/// e2fsck does not open such a volume, whatever its features.
#[test]
fn superblock_fields_that_e2fsck_does_not_accept_are_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for features in ["flex_bg", "^flex_bg"] {
        for (value, codes) in [
            ("log_groups_per_flex 31", &[][..]),
            ("log_groups_per_flex 32", &["superblock.field"]),
            ("clusters_per_group 100", &["superblock.field"]),
        ] {
            let image = volume(&["-O", features], &[format!("set_super_value {value}")]);
            assert_found(&format!("{features}, {value}"), &image, codes);
        }
    }
}

/// They lag behind after a journal was replayed, which e2fsck tells and lets pass.
#[test]
fn free_counts_of_the_whole_volume_are_told_and_leave_it_clean() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for count in ["free_blocks", "free_inodes"] {
        let image = volume(&[], &[format!("set_super_value {count}_count 5")]);
        let report = check(&image);
        let told: Vec<_> =
            report.findings.iter().map(|finding| (finding.kind.code, finding.kind.severity)).collect();
        assert_eq!(told, [(format!("superblock.{count}").as_str(), Severity::Warning)]);
        let judged = judged(&image);
        assert_eq!(judged.status, 0, "{}", judged.output);
        assert!(judged.output.contains("count wrong"), "{}", judged.output);
    }
}

/// A file whose contents lie inside its inode may say that it is longer than they are, but not than any file.
#[test]
fn inline_files_are_no_longer_than_a_map_of_blocks_reaches() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    const MOST: u64 = (12 + 256 + 256 * 256 + 256 * 256 * 256) * 1024;
    for (size, codes) in
        [(MOST, &[][..]), (MOST + 1, &["inode.size"]), (1 << 44, &["inode.size"]), (1 << 56, &["inode.size"])]
    {
        let name = "/d/other file with a name";
        let mut image = volume(&["-O", "inline_data"], &[]);
        let ino = ino_of(&image, name);
        change_inode(&mut image, ino, |record| {
            record[4..8].copy_from_slice(&(size as u32).to_le_bytes());
            record[0x6c..0x70].copy_from_slice(&((size >> 32) as u32).to_le_bytes());
        });
        assert_found(&format!("{size} bytes"), &image, codes);
    }
}

#[test]
fn an_orphan_file_is_empty_if_and_only_if_the_superblock_says_so() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let features = ["-O", "has_journal,orphan_file"];
    let args = ["-T", "default"].into_iter().chain(features).collect::<Vec<_>>();
    assert_found("empty", &volume(&args, &[]), &[]);
    let said = volume(&args, &["feature orphan_present".to_string()]);
    assert_found("empty, said to have entries", &said, &["orphan.file"]);
}
