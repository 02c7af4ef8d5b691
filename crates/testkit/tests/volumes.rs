//! Volumes and trees: made as asked for, and seen whole.

use std::fs::File;
use std::os::unix::fs::FileExt;
use uext4_testkit::fixture::{TreeOptions, pattern, standard_tree, standard_tree_with};
use uext4_testkit::manifest::{assert_same, differences, file_digest};
use uext4_testkit::requirement::require;
use uext4_testkit::{Need, Scratch, SparseDigest, VolumeBuilder, debugfs, manifest, needs, oracle};

#[test]
fn builds_what_was_asked_for() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    let volume =
        VolumeBuilder::new(16 << 20).args(["-b", "1024", "-O", "^has_journal"]).extended("stride=4").build();
    assert_eq!(oracle::superblock_field(volume.path(), "Block size"), "1024");
    assert_eq!(oracle::superblock_field(volume.path(), "RAID stride"), "4");
    let seed = oracle::superblock_field(volume.path(), "Directory Hash Seed");
    assert_eq!(seed, "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0");
    volume.assert_clean();
}

#[test]
fn takes_a_directory_without_root() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let source = Scratch::new(1 << 20);
    std::fs::write(source.file("hello"), "world\n").unwrap();
    let volume = VolumeBuilder::new(16 << 20).from_dir(source.path()).build();
    assert_eq!(debugfs(volume.path(), "cat /hello"), "world\n");
    volume.assert_clean();
}

#[test]
#[should_panic(expected = "e2fsck -fn")]
fn a_planted_error_is_found() {
    if !require("a_planted_error_is_found", &[Need::Tool("mke2fs"), Need::Tool("debugfs")]) {
        panic!("e2fsck -fn: skipped");
    }
    let volume = VolumeBuilder::new(16 << 20).build();
    oracle::debugfs_write(volume.path(), "freeb 1 4");
    volume.assert_clean();
}

#[test]
#[should_panic(expected = "File not found")]
fn a_failed_debugfs_request_is_an_error() {
    if !require("debugfs", &[Need::Tool("mke2fs"), Need::Tool("debugfs")]) {
        panic!("File not found: skipped");
    }
    let volume = VolumeBuilder::new(16 << 20).build();
    debugfs(volume.path(), "cat /nothing-here");
}

fn patterned(file: u64, length: usize) -> Vec<u8> {
    let mut buf = vec![0; length];
    pattern(file, 0, &mut buf);
    buf
}

#[test]
fn the_pattern_does_not_depend_on_piece_borders() {
    let whole = patterned(9, 1000);
    for (start, end) in [(0, 1000), (3, 997), (8, 16), (13, 14)] {
        let mut part = vec![0; end - start];
        pattern(9, start as u64, &mut part);
        assert_eq!(part, whole[start..end]);
    }
    assert_ne!(whole, patterned(10, 1000));
}

#[test]
fn equal_seeds_give_equal_trees() {
    let scratch = Scratch::new(256 << 20);
    let trees = ["a", "b"].map(|name| {
        let root = scratch.file(name);
        std::fs::create_dir(&root).unwrap();
        standard_tree_with(&root, TreeOptions { big_dir: 100, extents: 20, ..TreeOptions::new(1) });
        manifest(&root)
    });
    assert_eq!(trees[0].len(), trees[1].len());
    for (path, entry) in &trees[0] {
        let other = &trees[1][path];
        assert_eq!((entry.digest, &entry.target, entry.mode), (other.digest, &other.target, other.mode));
    }
}

#[test]
fn goes_into_a_volume_without_root() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let source = Scratch::new(256 << 20);
    let options = TreeOptions { privileged: false, big_dir: 500, extents: 400, ..TreeOptions::new(3) };
    standard_tree_with(source.path(), options);
    let volume = VolumeBuilder::new(256 << 20).from_dir(source.path()).build();
    volume.assert_clean();
    assert!(debugfs(volume.path(), "stat /links/symlink-59").contains("Fast link dest"));
}

#[test]
fn root_the_kernel_writes_what_the_tree_promises() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(256 << 20).build();
    let written = volume.with_kernel(|root| {
        standard_tree(root, 42);
        manifest(root)
    });
    assert_same(&written, &volume.kernel_manifest());

    let header = debugfs(volume.path(), "dump_extents -n /fragmented/holes");
    assert!(header.contains(" 0/ 2 "), "a tree of depth 2:\n{}", &header[..header.len().min(400)]);
    let unwritten = debugfs(volume.path(), "dump_extents -l /fragmented/unwritten");
    assert!(unwritten.matches("Uninit").count() >= 700, "{}", unwritten.matches("Uninit").count());
    assert!(debugfs(volume.path(), "htree_dump /big").contains("Number of entries"));
    let far = debugfs(volume.path(), "stat /sparse/far");
    assert!(far.contains(&format!("Size: {}", (5u64 << 30) + 10_000)), "{far}");
    assert!(oracle::superblock_field(volume.path(), "Filesystem features").contains("extent"));
}

#[test]
fn sees_every_kind_of_change() {
    let scratch = Scratch::new(1 << 20);
    let root = scratch.file("tree");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("a"), "one").unwrap();
    std::os::unix::fs::symlink("a", root.join("l")).unwrap();
    let before = manifest(&root);
    assert_eq!(before.keys().map(Vec::as_slice).collect::<Vec<_>>(), [b"/".as_slice(), b"/a", b"/l"]);
    assert_same(&before, &manifest(&root));

    let file = File::options().write(true).open(root.join("a")).unwrap();
    let time = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"two", 0).unwrap();
    file.set_modified(time).unwrap();
    let after = manifest(&root);
    assert_eq!(differences(&before, &after).len(), 1, "same size and time, other bytes");

    std::fs::remove_file(root.join("l")).unwrap();
    let lines = differences(&before, &manifest(&root));
    assert!(lines.iter().any(|line| line == "/l: missing"), "{lines:?}");
}

#[test]
fn a_huge_sparse_file_is_quick_and_right() {
    let scratch = Scratch::new(1 << 20);
    let path = scratch.sparse_file("big", 5 << 40);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"far out", 4 << 40).unwrap();
    let mut digest = SparseDigest::new();
    digest.update(4 << 40, b"far out");
    assert_eq!(file_digest(&path), digest.finish(5 << 40));
}
