//! What ordinary tools and single bytes leave behind: names, attributes and orphan files that e2fsck does not take.

use crate::common;

use common::checked::{assert_found, change_bytes, change_inode, check, judged, told, volume};
use common::hostile::{Layout, ino_of};
use common::{Image, open_ro, read_only};
use uext4_ondisk::{CorruptKind, Ino};
use uext4_testkit::oracle::command;
use uext4_testkit::requirement::Need;
use uext4_testkit::{Scratch, VolumeBuilder, needs};

const PLAIN: [&str; 2] = ["-O", "^metadata_csum,^has_journal"];

#[test]
fn dots_end_with_a_zero() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = volume(&PLAIN, &[]);
    let (dot, dot_dot) = ([12, 0, 1, 2, b'.', 0, 0, 0], [2, 2, b'.', b'.', 0, 0]);
    for (name, at) in [(&dot[..], 5), (&dot_dot, 4)] {
        let mut image = image.clone();
        change_bytes(&mut image, name, |bytes| bytes[at] = 2);
        assert_found(&format!("{name:?}"), &image, &["directory.dots"]);
    }
    // Nobody looks at the bytes behind that one.
    let mut image = image.clone();
    change_bytes(&mut image, &dot, |bytes| bytes[6] = 2);
    assert_found("the second byte", &image, &[]);
}

#[test]
fn hashes_of_values_in_inodes_of_their_own_are_checked() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let source = Scratch::new(1 << 20);
    let value = source.file("value");
    std::fs::write(&value, vec![7; 1500]).unwrap();
    // debugfs does not count the value's block.
    for (size, sectors) in [("256", 8), ("128", 10)] {
        let args = ["-O", "ea_inode,^metadata_csum,^has_journal", "-I", size];
        let set = format!("ea_set -f {} /plain user.b\u{e9}yond", value.display());
        let image = volume(&args, &[set, format!("set_inode_field /plain blocks {sectors}")]);
        assert_found(size, &image, &[]);
        // Name and its entry's head; the last four bytes of that are the hash.
        let hash = |bytes: &mut [u8]| {
            let name = bytes.windows(6).position(|window| window == "b\u{e9}yon".as_bytes()).unwrap();
            bytes[name - 2] ^= 4;
        };
        let ino = ino_of(&image, "/plain");
        let mut image = image.clone();
        match size {
            "256" => change_inode(&mut image, ino, hash),
            _ => hash(&mut image.bytes),
        }
        assert_found(&format!("{size}, changed"), &image, &["xattr.hash"]);
    }
}

/// Also one that looks like a value: the inode of the boot loader.
#[test]
fn reserved_inodes_hold_no_values() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let source = Scratch::new(1 << 20);
    let value = source.file("value");
    std::fs::write(&value, vec![7; 1500]).unwrap();
    let args = ["-O", "ea_inode,^metadata_csum,^has_journal", "-I", "256"];
    let set = format!("ea_set -f {} /plain user.beyond", value.display());
    let mut image = volume(&args, &[set, "set_inode_field /plain blocks 8".into()]);
    let (ino, mut found) = (ino_of(&image, "/plain"), 0);
    change_inode(&mut image, ino, |bytes| {
        let name = bytes.windows(6).position(|window| window == b"beyond").unwrap();
        let number = &mut bytes[name - 12..name - 8];
        found = u32::from_le_bytes(number.try_into().unwrap());
        number.copy_from_slice(&5u32.to_le_bytes());
    });
    let at = Layout::of(&image).inode(Ino(found));
    let held = image.bytes[at..at + 256].to_vec();
    change_inode(&mut image, Ino(5), |bytes| bytes.copy_from_slice(&held));
    let codes = ["block.shared", "block.shared", "inode.unattached", "xattr.value_inode"];
    assert_found("inode 5", &image, &codes);
}

#[test]
fn names_without_a_name_space_are_found_in_blocks() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let request = ["ea_set /plain foo value".to_string()];
    for (size, codes) in [("128", &["xattr.block"][..]), ("256", &[])] {
        let args = [&PLAIN[..], &["-I", size]].concat();
        assert_found(size, &volume(&args, &request), codes);
    }
}

/// Inside an inode an attribute without a hash is usual.
#[test]
fn attributes_in_blocks_have_hashes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let request = ["ea_set /plain user.unusual value".to_string()];
    for (size, codes) in [("128", &["xattr.hash"][..]), ("256", &[])] {
        let mut image = volume(&[&PLAIN[..], &["-I", size]].concat(), &request);
        let name = image.bytes.windows(7).position(|window| window == b"unusual").unwrap();
        image.bytes[name - 4..name].fill(0);
        assert_found(size, &image, codes);
    }
}

/// `tune2fs` takes a feature off and leaves what went with it.
fn tuned(change: &str) -> Image {
    let image = volume(&["-O", "has_journal,orphan_file", "-T", "default"], &[]);
    let scratch = Scratch::new(8 << 20);
    let path = scratch.file("volume.img");
    image.save(&path);
    assert!(command("tune2fs").args(["-O", change]).arg(&path).status().unwrap().success());
    Image::load(&path)
}

#[test]
fn orphan_files_need_a_journal_and_the_checksums_of_the_volume() {
    needs!(Need::Tool("mke2fs"), Need::Tool("tune2fs"), Need::Tool("e2fsck"));
    for change in ["^has_journal", "^metadata_csum"] {
        let report = assert_found(change, &tuned(change), &["orphan.file"]);
        println!("{change}: {:?}", told(&report));
    }
    let none = volume(&["-O", "^orphan_file"], &["feature orphan_present".to_string()]);
    assert_found("no orphan file at all", &none, &["orphan.file"]);
}

/// What a broken map leaves out may have the entries: the map is the finding.
#[test]
fn an_orphan_file_with_a_broken_map_is_not_called_empty() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let args = ["-O", "has_journal,orphan_file,^extents,^64bit,^metadata_csum"];
    let empty = volume(&args, &["feature orphan_present".to_string()]);
    let found = assert_found("whole", &empty, &["orphan.file"]);
    let ino = found.findings[0].place.inode.unwrap();
    let layout = Layout::of(&empty);
    let mut image = empty.clone();
    // Of its blocks one lies behind the end, and the size is what remains.
    change_inode(&mut image, ino, |record| {
        let size = u32::from_le_bytes(record[4..8].try_into().unwrap());
        record[4..8].copy_from_slice(&(size - layout.superblock.geometry.block_size()).to_le_bytes());
        record[0x28 + 3 * 4..0x28 + 4 * 4].copy_from_slice(&999_999u32.to_le_bytes());
    });
    let report = check(&image);
    assert!(report.totals.contains_key("map.range"), "{:?}", told(&report));
    assert!(!told(&report).iter().any(|line| line.contains("it is empty")), "{:?}", told(&report));
}

#[test]
fn features_of_other_versions_are_told() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for (feature, name) in [
        ("FEATURE_R20", "FEATURE_R20"),
        ("FEATURE_C25", "FEATURE_C25"),
        ("lazy_bg", "lazy_bg"),
        ("FEATURE_C8", "snapshot_bitmap"),
        ("FEATURE_R11", "replica"),
    ] {
        let report = check(&volume(&[], &[format!("feature {feature}")]));
        assert_eq!(told(&report), [""; 0]);
        assert!(report.notes.iter().any(|note| note.contains(name)), "{feature}: {:?}", report.notes);
    }
}

/// e2fsck looks at the first quarter of the reserved descriptor blocks; the rest is in the way of resizing only.
#[test]
fn reserved_descriptor_blocks_are_damage_where_e2fsck_looks() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = volume(&["-O", "^metadata_csum,^has_journal,resize_inode"], &[]);
    let layout = Layout::of(&image);
    let geometry = &layout.superblock.geometry;
    let reserved = usize::from(geometry.fields().reserved_gdt_blocks);
    assert!(reserved >= 8, "{reserved} reserved blocks");
    let word = |at: usize| u32::from_le_bytes(image.bytes[at..at + 4].try_into().unwrap()) as usize;
    let double = word(layout.inode(Ino(7)) + 0x28 + 13 * 4) * 1024;
    for (number, code) in [
        (0, "resize.map"),
        (reserved / 4 - 1, "resize.map"),
        (reserved / 4, "resize.reserved"),
        (reserved - 1, "resize.reserved"),
    ] {
        let mut image = image.clone();
        image.bytes[double + (geometry.descriptor_blocks() as usize + number) * 4] ^= 1;
        assert_found(&format!("block {number} of {reserved}"), &image, &[code]);
    }
}

/// Without `large_dir` the upper half of a size counts for regular files only, but it must be 0.
#[test]
fn pipes_and_links_have_no_upper_half_of_a_size() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let requests = ["mknod pipe p", "symlink short plain"].map(String::from);
    for large in ["^large_dir", "large_dir"] {
        let features = format!("{large},^metadata_csum,^has_journal");
        let image = volume(&["-O", features.as_str()], &requests);
        let (pipe, short) = (ino_of(&image, "/pipe"), ino_of(&image, "/short"));
        assert_found(large, &image, &[]);
        if large == "^large_dir" {
            let mut image = image.clone();
            change_inode(&mut image, short, |record| record[0x6c] = 1);
            assert_found("a link", &image, &["inode.field"]);
        }
        for field in [4, 0x6c] {
            let mut image = image.clone();
            change_inode(&mut image, pipe, |record| record[field] = 1);
            assert_found(&format!("{large}: a pipe, field {field:#x}"), &image, &["inode.size"]);
        }
    }
}

/// Since 1.47.1 e2fsck does not take them either; the kernel refuses them with EUCLEAN.
#[test]
fn inodes_for_values_are_no_files() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let source = Scratch::new(1 << 20);
    let file = source.file("value");
    std::fs::write(&file, vec![7; 1024]).unwrap();
    let args = ["-O", "ea_inode,^metadata_csum,^has_journal", "-I", "256"];
    let set = format!("ea_set -f {} /plain user.beyond", file.display());
    let whole = volume(&args, &[set.clone(), "set_inode_field /plain blocks 8".into()]);
    let held = Ino(check(&whole).counts.inodes as u32);
    let cases: [(&str, &str, &[&str]); 3] = [
        ("set_inode_field /plain flags 0x280000", "/plain", &["entry.value_inode"]),
        ("set_inode_field /d flags 0x280000", "/d", &["entry.value_inode", "inode.flags"]),
        // What holds a value has a name too.
        ("ln <HELD> /named", "/named", &["entry.value_inode"]),
    ];
    for (request, path, codes) in cases {
        let requests = match request.contains("HELD") {
            true => vec![
                set.clone(),
                "set_inode_field /plain blocks 8".into(),
                request.replace("HELD", &held.to_string()),
            ],
            false => vec![request.into()],
        };
        let image = volume(&args, &requests);
        let report = check(&image);
        let found: Vec<_> = report.findings.iter().map(|finding| finding.kind.code).collect();
        assert_eq!(found, codes, "{request}: {:#?}", told(&report));
        let reader = open_ro(image.device());
        assert_value_inode(request, reader.resolve(path, false).map(drop));
        assert_value_inode(request, reader.metadata(path).map(drop));
        assert_value_inode(request, reader.open_file(path, read_only()).map(drop));
        assert_value_inode(request, reader.read_dir(path).map(drop));
        assert_value_inode(request, reader.list_xattrs(path, false).map(drop));
        let listed: Vec<_> = reader.read_dir("/").unwrap().map(Result::unwrap).collect();
        let entry = listed.iter().find(|entry| entry.name == path.as_bytes()[1..]).unwrap();
        assert_value_inode(request, reader.metadata_of(entry.ino).map(drop));
        assert_value_inode(request, reader.open_inode(entry.ino, read_only()).map(drop));
    }
    // By its attribute a value is read, whoever asked for its inode before.
    let reader = open_ro(whole.device());
    assert_value_inode("before", reader.open_inode(held, read_only()).map(drop));
    assert_eq!(reader.xattr("/plain", "user.beyond", false).unwrap(), vec![7; 1024]);
    assert_value_inode("after", reader.metadata_of(held).map(drop));
    assert_found("whole", &whole, &[]);
}

#[test]
fn reference_counts_of_values_are_checked() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let source = Scratch::new(1 << 20);
    let file = source.file("value");
    std::fs::write(&file, vec![7; 1024]).unwrap();
    for size in ["128", "256"] {
        let args = ["-O", "ea_inode,^metadata_csum,^has_journal", "-I", size];
        let set = format!("ea_set -f {} /plain user.beyond", file.display());
        let counted = format!("set_inode_field /plain blocks {}", if size == "128" { 10 } else { 8 });
        let whole = volume(&args, &[set.clone(), counted.clone()]);
        assert_found(size, &whole, &[]);
        let held = check(&whole).counts.inodes;
        for field in ["version 2", "version 0", "ctime @1"] {
            let image =
                volume(&args, &[set.clone(), counted.clone(), format!("set_inode_field <{held}> {field}")]);
            assert_found(&format!("{size}: {field}"), &image, &["xattr.value_references"]);
        }
    }
}

#[track_caller]
fn assert_value_inode(what: &str, result: uext4::Result<()>) {
    let error = result.unwrap_err();
    let uext4::Error::Corrupt(corrupt) = &error else { panic!("{what}: {error}") };
    assert_eq!((corrupt.kind, error.errno()), (CorruptKind::InodeOfValue, libc::EUCLEAN), "{what}");
}

/// Where e2fsck does not look at single places it still walks the map: every block in it must be one, and be counted.
#[test]
fn the_map_of_the_resize_inode_names_blocks_of_the_volume() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    // Two groups, so that each reserved block has a copy.
    let features = "^metadata_csum,^has_journal,resize_inode,^64bit";
    let volume = VolumeBuilder::new(16 << 20).args(["-b", "1024", "-N", "64", "-O", features]).build();
    let image = Image::load(volume.path());
    let layout = Layout::of(&image);
    let geometry = &layout.superblock.geometry;
    let (descriptors, reserved) =
        (geometry.descriptor_blocks() as usize, usize::from(geometry.fields().reserved_gdt_blocks));
    let word = |at: usize| u32::from_le_bytes(image.bytes[at..at + 4].try_into().unwrap()) as usize;
    let double = word(layout.inode(Ino(7)) + 0x28 + 13 * 4) * 1024;
    let last = double + (descriptors + reserved - 1) * 4;
    let (copies, map, blocks) = (word(last) * 1024, "resize.map", "inode.blocks");
    assert!(word(copies) != 0 && word(copies + 4) == 0, "one copy");
    let cases: [(&str, usize, u32, &[&str]); 8] = [
        ("a reserved block behind the end", last, 20_000, &[map]),
        ("none", last, 0, &[blocks, "resize.reserved"]),
        ("another one", last, word(last) as u32 - 1, &["resize.reserved"]),
        ("a copy behind the end", copies, 20_000, &[map]),
        ("another copy", copies, 300, &["resize.reserved"]),
        ("a copy too many", copies + 4, 300, &[blocks, "resize.reserved"]),
        ("a copy too many, behind the end", copies + 8, 20_000, &[map]),
        ("a reserved block too many, behind the end", double + 1020, 20_000, &[map]),
    ];
    for (what, at, block, codes) in cases {
        let mut image = image.clone();
        image.bytes[at..at + 4].copy_from_slice(&block.to_le_bytes());
        let (report, judged) = (check(&image), judged(&image));
        let found: Vec<_> = report.findings.iter().map(|finding| finding.kind.code).collect();
        assert_eq!(found, codes, "{what}: {:#?}\n{}", told(&report), judged.output);
        assert_eq!(judged.is_clean(), report.is_clean(), "{what}: {}", judged.output);
    }
}
