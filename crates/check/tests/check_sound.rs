//! Sound volumes that look damaged at first sight: emptied leaves of hash trees, leftovers of deleted inodes, values as
//! Lustre keeps them, bad blocks among the file system's own, inodes that belong to a server. e2fsck is asked each
//! time.

use crate::common;

use common::Image;
use common::checked::{assert_found, change_inode, check, judged, told, volume};
use common::dirs::Recipe;
use common::hostile::{Layout, ino_of};
use uext4_ondisk::Ino;
use uext4_testkit::requirement::Need;
use uext4_testkit::{Rng, Scratch, VolumeBuilder, needs, oracle};

const BLOCK: usize = 1024;
const PLAIN: [&str; 4] = ["-b", "1024", "-O", "^metadata_csum,^has_journal"];

/// Blocks of entries of `/dir`, and the names in each of them. (`htree_dump` fails on volumes without checksums.)
fn leaves(image: &Image) -> Vec<(usize, Vec<String>)> {
    let volume = VolumeBuilder::new(image.bytes.len() as u64).build();
    image.save(volume.path());
    let blocks = oracle::debugfs(volume.path(), "blocks /dir");
    let blocks = blocks.split_whitespace().map(|block| block.parse::<usize>().unwrap());
    let blocks = blocks.filter(|block| image.bytes[block * BLOCK + 8..].starts_with(b"name "));
    blocks.map(|block| (block, names_in(&image.bytes[block * BLOCK..][..BLOCK]))).collect()
}

fn names_in(block: &[u8]) -> Vec<String> {
    let (mut at, mut names) = (0, Vec::new());
    while at < BLOCK {
        let record = &block[at..];
        if record[..4] != [0; 4] {
            names.push(String::from_utf8(record[8..8 + usize::from(record[6])].to_vec()).unwrap());
        }
        at += usize::from(u16::from_le_bytes([record[4], record[5]]));
    }
    names
}

/// `/dir` with a hash tree, and the names of some of its leaves deleted as debugfs does it, which is the kernel's way.
fn emptied(names: usize, recipe: &Recipe<'_>) -> (Image, Vec<usize>) {
    let names: Vec<_> = (0..names).map(|n| format!("name {n:05}, {}", "of some length".repeat(3))).collect();
    let image = recipe.make(&names);
    let (mut blocks, mut script) = (Vec::new(), String::from("cd /dir\n"));
    for (block, names) in leaves(&image).iter().step_by(5) {
        blocks.push(*block);
        script.extend(names.iter().map(|name| format!("rm \"{name}\"\n")));
    }
    let volume = VolumeBuilder::new(image.bytes.len() as u64).build();
    image.save(volume.path());
    oracle::debugfs_script(volume.path(), &script);
    let image = Image::load(volume.path());
    for block in &blocks {
        let first = &image.bytes[block * BLOCK..][..6];
        assert_eq!(first, [0, 0, 0, 0, 0, 4], "an empty record fills block {block}");
    }
    (image, blocks)
}

#[test]
fn emptied_leaves_are_no_nodes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    // A tree of a root alone, and one with a level of nodes below it.
    for (names, nodes) in [(300, 0), (3500, 1)] {
        let (image, blocks) = emptied(names, &Recipe { args: &PLAIN, ..Recipe::default() });
        assert!(blocks.len() >= 3, "{blocks:?}");
        let report = assert_found(&format!("{names} names"), &image, &[]);
        assert!(report.counts.entries > 200);
        // What was in a block before may look like the head of a node: where the tree leads says what it is.
        let mut image = image.clone();
        for block in &blocks {
            let head = [1, 0, 127, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            image.bytes[block * BLOCK + 6..][..head.len()].copy_from_slice(&head);
        }
        assert_found(&format!("{names} names, heads of nodes in leaves"), &image, &[]);
        let found = nodes_below_the_root(&image);
        assert_eq!(found.is_empty(), nodes == 0, "{found:?}");
        // A node that is none is damage where the tree has nodes.
        if let Some(block) = found.first() {
            image.bytes[block * BLOCK + 8] ^= 1;
            let report = check(&image);
            assert_eq!(report.totals.get("htree.node"), Some(&1), "{:#?}", told(&report));
            assert!(report.totals.contains_key("htree.unreferenced"), "{:#?}", told(&report));
        }
    }
}

/// An emptied leaf is in its tree once, as every other.
#[test]
fn an_emptied_leaf_that_is_named_twice_is_damage() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let (mut image, blocks) = emptied(300, &Recipe { args: &PLAIN, ..Recipe::default() });
    let volume = VolumeBuilder::new(image.bytes.len() as u64).build();
    image.save(volume.path());
    let block = |lblk: u32| -> usize {
        oracle::debugfs(volume.path(), &format!("bmap /dir {lblk}")).trim().parse().unwrap()
    };
    let root = block(0) * BLOCK;
    let child = |n: usize| root + 36 + 8 * n..root + 40 + 8 * n;
    let lblk = |n: usize| u32::from_le_bytes(image.bytes[child(n)].try_into().unwrap());
    let is_empty = |n: &usize| blocks.contains(&block(lblk(*n)));
    let (empty, full) = ((1..6).find(is_empty).unwrap(), (1..6).find(|n| !is_empty(n)).unwrap());
    let empty = lblk(empty);
    image.bytes[child(full)].copy_from_slice(&empty.to_le_bytes());
    let report = check(&image);
    assert_eq!(report.totals.get("htree.twice"), Some(&1), "{:#?}", told(&report));
    assert!(!judged(&image).is_clean());
}

/// Blocks that the root leads to, if those are no leaves.
fn nodes_below_the_root(image: &Image) -> Vec<usize> {
    let volume = VolumeBuilder::new(image.bytes.len() as u64).build();
    image.save(volume.path());
    let block = |lblk: usize| -> usize {
        oracle::debugfs(volume.path(), &format!("bmap /dir {lblk}")).trim().parse().unwrap()
    };
    let root = &image.bytes[block(0) * BLOCK..][..BLOCK];
    if root[30] == 0 {
        return Vec::new();
    }
    let count = u16::from_le_bytes([root[34], root[35]]);
    let child = |n: usize| u32::from_le_bytes(root[36 + 8 * n..40 + 8 * n].try_into().unwrap());
    (0..usize::from(count)).map(|n| block(child(n) as usize)).collect()
}

/// With checksums a leaf has a tail, and does not look like a node.
#[test]
fn a_node_in_the_place_of_a_leaf_is_found_where_leaves_have_tails() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let args = ["-b", "1024", "-O", "metadata_csum,^has_journal"];
    let names: Vec<_> = (0..300).map(|n| format!("name {n:05}, {}", "of some length".repeat(3))).collect();
    let mut image = Recipe { args: &args, ..Recipe::default() }.make(&names);
    let block = leaves(&image)[3].0 * BLOCK;
    image.bytes[block..block + 8].copy_from_slice(&[0, 0, 0, 0, 0, 4, 0, 0]);
    let report = check(&image);
    assert!(report.totals.contains_key("htree.child"), "{:#?}", told(&report));
}

#[test]
fn root_leaves_that_the_kernel_emptied_are_no_nodes() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (kind, args) in [
        ("ext3", &["-b", "1024"][..]),
        ("ext4", &["-b", "1024", "-O", "^metadata_csum"]),
        ("ext4", &["-b", "4096", "-O", "^metadata_csum,uninit_bg"]),
        ("ext4", &["-b", "1024", "-O", "metadata_csum"]),
    ] {
        let volume = VolumeBuilder::new(64 << 20).kind(kind).args(args.iter().copied()).build();
        volume.with_kernel(|root| {
            let dir = root.join("dir");
            std::fs::create_dir(&dir).unwrap();
            let path = |n: usize| dir.join(format!("name {n:05}, {}", "of some length".repeat(3)));
            std::fs::write(path(0), "").unwrap();
            (1..6000).for_each(|n| std::fs::hard_link(path(0), path(n)).unwrap());
            let mut rng = Rng::new(9);
            (1..6000).filter(|_| rng.below(40) != 0).for_each(|n| std::fs::remove_file(path(n)).unwrap());
        });
        let image = Image::load(volume.path());
        let report = check(&image);
        let told = told(&report);
        assert!(told.is_empty(), "{kind} {args:?}: {} findings, {:?} …", told.len(), told.first());
        assert!(report.counts.entries < 300, "{:?}", report.counts);
        let size = if args.contains(&"4096") { 4096 } else { BLOCK };
        let head = [0, 0, 0, 0, 0, (size >> 8) as u8];
        let empty = image.bytes.chunks(size).filter(|block| block.starts_with(&head)).count();
        assert!(empty > 10 || args.contains(&"metadata_csum"), "{kind} {args:?}: {empty} emptied leaves");
    }
}

/// A change of an inode's record.
type Change<'c> = &'c dyn Fn(&mut [u8]);

/// Whoever deletes a file need not clean up behind it.
#[test]
fn inodes_not_in_use_may_keep_anything() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for (features, size) in
        [("^metadata_csum,^has_journal", "256"), ("metadata_csum", "256"), ("^64bit", "128")]
    {
        let args = ["-O", features, "-I", size];
        let ino = ino_of(&volume(&args, &[]), "/plain");
        let image = volume(&args, &["rm /plain".into()]);
        assert_found(features, &image, &[]);
        let with = |change: Change<'_>| {
            let mut image = image.clone();
            change_inode(&mut image, ino, change);
            image
        };
        let leftovers: &[(&str, Change<'_>)] = &[
            ("a size", &|record| record[0x6c..0x70].fill(0xff)),
            ("an attribute block", &|record| record[0x68..0x6c].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f])),
            ("its upper half", &|record| record[0x76..0x78].fill(0xff)),
            ("flags", &|record| record[0x20..0x24].fill(0xff)),
            ("an extra size", &|record| record[0x80..].iter_mut().take(2).for_each(|byte| *byte = 3)),
            ("no type", &|record| record[0..2].copy_from_slice(&[0xff, 0xff])),
            ("a map", &|record| record[0x28..0x64].fill(0xff)),
        ];
        for (what, change) in leftovers {
            assert_found(&format!("{features}: {what}"), &with(*change), &[]);
        }
        // What e2fsck looks at even there.
        let never = |record: &mut [u8]| record[0x14..0x18].fill(0);
        assert_found(&format!("{features}: never deleted"), &with(&never), &["inode.deletion_time"]);
        let linked = |record: &mut [u8]| {
            record[0x14..0x18].copy_from_slice(&[9, 0, 0, 0]);
            record[0x6c..0x70].fill(0xff);
        };
        assert_found(&format!("{features}: an orphan's link"), &with(&linked), &["inode.deletion_time"]);
        if features == "metadata_csum" {
            let mut image = with(&|record| record[0x6c..0x70].fill(0xff));
            let at = Layout::of(&image).inode(ino);
            image.bytes[at + 0x30] ^= 1;
            assert_found("a wrong checksum", &image, &["inode.checksum"]);
        }
    }
}

/// Turns the inode of a value into one of Lustre's old form: no checksum as its time of access, but its owner as that
/// of modification, and the owner's generation.
fn as_lustre(image: &mut Image, value: Ino, owner: Ino) {
    let at = Layout::of(image).inode(owner);
    let generation: [u8; 4] = image.bytes[at + 0x64..][..4].try_into().unwrap();
    change_inode(image, value, |record| {
        record[8..16].fill(1);
        record[16..20].copy_from_slice(&owner.get().to_le_bytes());
        record[0x64..0x68].copy_from_slice(&generation);
    });
}

#[test]
fn values_in_the_form_of_lustre_are_not_counted_to_their_owners() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let source = Scratch::new(1 << 20);
    let file = source.file("value");
    std::fs::write(&file, vec![7; 1024]).unwrap();
    const OWNER: &str = "/d/other file with a name";
    let set = format!("ea_set -f {} \"{OWNER}\" user.beyond", file.display());
    // The attribute lies in the inode or in a block of its own, which counts. debugfs counts no values: one block here.
    for (size, own) in [("256", 0), ("128", 2)] {
        let args = ["-O", "ea_inode,^metadata_csum,^has_journal", "-I", size];
        let none = volume(&args, &[]);
        let owner = ino_of(&none, OWNER);
        let one = volume(&args, std::slice::from_ref(&set));
        let value = Ino(check(&none).counts.inodes as u32 + 1);
        let with = |image: &Image, sectors: u8, lustre: bool| {
            let mut image = image.clone();
            if lustre {
                as_lustre(&mut image, value, owner);
            }
            change_inode(&mut image, owner, |record| record[0x1c] = sectors);
            image
        };
        let blocks = &["inode.blocks"][..];
        for (sectors, lustre, codes) in
            [(own, true, &[][..]), (own + 2, true, blocks), (own, false, blocks), (own + 2, false, &[])]
        {
            let what = format!("{size}: {sectors} sectors, of Lustre: {lustre}");
            assert_found(&what, &with(&one, sectors, lustre), codes);
        }
        if size == "128" {
            // Two inodes have the block: what it counts is the same for both.
            let mut image = with(&one, own, true);
            let at = Layout::of(&image).inode(owner);
            let block: [u8; 4] = image.bytes[at + 0x68..][..4].try_into().unwrap();
            let head = u32::from_le_bytes(block) as usize * BLOCK;
            image.bytes[head + 4] = 2;
            // One behind the owner: e2fsck judges the value by who comes first.
            let other = ino_of(&none, "/plain");
            assert!(other > owner);
            let at = Layout::of(&image).inode(other);
            let had = image.bytes[at + 0x1c];
            change_inode(&mut image, other, |record| {
                record[0x68..0x6c].copy_from_slice(&block);
                record[0x1c] = had + 2;
            });
            assert_found("two owners", &image, &[]);
            change_inode(&mut image, other, |record| record[0x1c] = had + 4);
            assert_found("one of two counts the value", &image, blocks);
        }
    }
}

/// Two groups, each with its own inode table. `/d` and what is in it have the first inodes.
fn two_groups(features: &str) -> Image {
    let features = format!("^flex_bg,^resize_inode,^extents,^64bit,^metadata_csum,^has_journal{features}");
    let source = Scratch::new(1 << 20);
    std::fs::create_dir(source.file("d")).unwrap();
    (0..40).for_each(|n| std::fs::write(source.file(format!("d/file {n}")), "x").unwrap());
    let args = ["-b", "1024", "-N", "256", "-O", features.as_str()];
    let volume = VolumeBuilder::new(16 << 20).args(args).from_dir(source.path()).build();
    Image::load(volume.path())
}

/// Lists blocks as bad, and has e2fsck correct what it finds then.
fn corrected(image: &Image, blocks: &[u64]) -> Image {
    let volume = VolumeBuilder::new(image.bytes.len() as u64).build();
    image.save(volume.path());
    for (index, block) in blocks.iter().enumerate() {
        oracle::debugfs_write(volume.path(), &format!("set_inode_field <1> block[{index}] {block}"));
    }
    oracle::e2fsck(volume.path(), &["-y"]);
    Image::load(volume.path())
}

#[test]
fn bad_blocks_may_lie_in_inode_tables() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for features in ["", ",uninit_bg"] {
        let image = two_groups(features);
        let layout = Layout::of(&image);
        let tables = [layout.descriptors[0].inode_table.get(), layout.descriptors[1].inode_table.get()];
        let last = layout.inode_table().1 - 1;
        // The last inodes of both groups, the first of the second, and those of files in between.
        for blocks in
            [&[tables[0] + last][..], &[tables[1]], &[tables[1] + last, tables[1] + 1], &[tables[0] + 5]]
        {
            let what = format!("{features}: {blocks:?}");
            let report = assert_found(&what, &corrected(&image, blocks), &[]);
            assert!(report.counts.entries > 30, "{what}: {:?}", report.counts);
        }
    }
}

#[test]
fn inodes_in_bad_blocks_are_used_and_nobody_names_them() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = two_groups("");
    let table = Layout::of(&image).descriptors[0].inode_table.get();
    let with = |block: u64| {
        let mut image = image.clone();
        change_inode(&mut image, Ino(1), |record| {
            record[0x28..0x2c].copy_from_slice(&(block as u32).to_le_bytes())
        });
        image
    };
    // Four inodes lie in a block: those of files, and the list's own.
    let report = check(&with(table + 5));
    let told = told(&report);
    let named = told.iter().filter(|text| text.starts_with("entry.bad_block")).count();
    assert_eq!(named, 4, "{told:#?}");
    assert!(!told.iter().any(|text| text.starts_with("block.system")), "{told:#?}");
    assert!(!judged(&with(table + 5)).is_clean());
    let report = check(&with(table));
    assert!(report.totals.contains_key("inode.special"), "{:#?}", report.totals);
    assert!(!judged(&with(table)).is_clean());
    // Not used in the bitmap.
    let layout = Layout::of(&image);
    let last = layout.descriptors[1].inode_table.get() + layout.inode_table().1 - 1;
    let codes = ["group.free_inodes", "inode_bitmap.free", "superblock.free_inodes"];
    assert_found("not in use", &with(last), &codes);
}

/// e2fsck tells of a bad backup and goes on; other metadata must move.
#[test]
fn bad_blocks_in_backups_are_told_and_in_other_metadata_they_are_damage() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = two_groups("");
    let layout = Layout::of(&image);
    for (block, codes) in [
        (8193, &["superblock.backup"][..]),
        (8194, &["group.backup"]),
        (layout.descriptors[1].block_bitmap.get(), &["block.system"]),
        (layout.descriptors[1].inode_bitmap.get(), &["block.system"]),
        (1, &["map.range"]),
        (2, &["block.system"]),
    ] {
        let mut image = image.clone();
        change_inode(&mut image, Ino(1), |record| {
            record[0x28..0x2c].copy_from_slice(&(block as u32).to_le_bytes());
        });
        let (report, judged) = (check(&image), judged(&image));
        let found: Vec<_> = report.findings.iter().map(|finding| finding.kind.code).collect();
        assert_eq!(found, codes, "block {block}: {:#?}", told(&report));
        assert_eq!(judged.status == 0, report.is_clean(), "block {block}: {}", judged.output);
    }
}

/// Those of AFS: its server makes them, and no directory names them.
#[test]
fn magic_inodes_have_no_names() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let args = ["-O", "^metadata_csum,^has_journal"];
    let requests = ["feature imagic_inodes", "unlink /plain", "set_inode_field <LINKED> links_count 7"];
    let plain = ino_of(&volume(&args, &[]), "/plain");
    for (flags, feature, codes) in [
        (0x8_2000, true, &[][..]),
        (0x8_0000, true, &["inode.unattached"]),
        (0x8_2000, false, &["inode.flags", "inode.unattached"]),
    ] {
        let requests = requests.iter().skip(usize::from(!feature));
        let mut requests: Vec<_> =
            requests.map(|request| request.replace("LINKED", &plain.to_string())).collect();
        requests.push(format!("set_inode_field <{plain}> flags {flags:#x}"));
        assert_found(&format!("flags {flags:#x}, feature: {feature}"), &volume(&args, &requests), codes);
    }
}

/// Made for the Hurd, an inode has a block for its translator.
#[test]
fn the_block_of_a_translator_is_in_use() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let hurd = ["-o", "hurd", "-O", "^64bit,^extent,^has_journal,^metadata_csum"];
    // The last block of the volume: nobody else's. The file has three blocks of its own.
    let planted = ["setb 4095", "sif /plain translator 4095", "sif /plain blocks 8"].map(str::to_owned);
    let scratch = Scratch::new(8 << 20);
    let path = scratch.file("volume");
    volume(&hurd, &planted).save(&path);
    // debugfs leaves the counts of free blocks as they are.
    assert_eq!(oracle::e2fsck(&path, &["-y"]).status, 1);
    assert_found("a translator", &Image::load(&path), &[]);
    for (what, request, code) in [
        ("in a free block", "freeb 4095", "block_bitmap.free"),
        ("outside", "sif /plain translator 9999", "inode.field"),
    ] {
        oracle::debugfs_write(&path, request);
        let image = Image::load(&path);
        let found = check(&image);
        assert!(found.findings.iter().any(|finding| finding.kind.code == code), "{what}: {:?}", told(&found));
        assert!(!judged(&image).is_clean(), "{what}");
    }
}
