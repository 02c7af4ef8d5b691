//! Every layout that mke2fs makes: both sides read the same contents, and overwrites made here read the same there. The
//! other side is the host's kernel if it can mount the volume, else debugfs.
//!
//! The rows are listed in `docs/reference/coverage.md`.

use crate::common;

use common::debugfs::{Seen, digest, our_blocks, stat_all};
use common::layout::{OVERWRITTEN, assert_same_attributes, fill, ours, overwrite};
use common::read_only;
use common::tree::without_xattrs;
use std::path::Path;
use uext4::{FileKind, Volume, VolumeOptions};
use uext4_testkit::manifest::{assert_same, file_digest};
use uext4_testkit::oracle::{e2fsck, superblock_field};
use uext4_testkit::{
    KernelMount, LoopOptions, Need, Scratch, VolumeBuilder, e2fsck_clean, manifest, needs, with_kernel,
};

/// One way to make a volume: what `-t` names, further arguments, extended options, MiB.
type Row = (&'static str, &'static [&'static str], &'static str, u64);

fn builder(row: &Row) -> VolumeBuilder {
    let &(kind, args, extended, mib) = row;
    println!("mke2fs -t {kind} {} -E {extended}", args.join(" "));
    let builder = VolumeBuilder::new(mib << 20).kind(kind).args(args.iter().copied());
    if extended.is_empty() { builder } else { builder.extended(extended) }
}

fn open(path: &Path, options: VolumeOptions) -> Volume {
    Volume::open(path.to_str().unwrap(), options).unwrap_or_else(|e| panic!("{e}"))
}

/// Volumes filled, read and judged by the kernel.
fn by_kernel(rows: &[Row]) {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    for (turn, row) in rows.iter().enumerate() {
        let volume = builder(row).build();
        let block: u64 = superblock_field(volume.path(), "Block size").parse().unwrap();
        volume.with_kernel(|root| fill(root, block));
        let opened = open(volume.path(), VolumeOptions::read_only());
        let options = LoopOptions { read_only: true, ..LoopOptions::default() };
        let mounted = KernelMount::image(volume.path(), options, "ro,noatime");
        let expected = without_xattrs(manifest(mounted.path()));
        assert_same(&expected, &ours(&opened, turn));
        assert_same_attributes(&opened, mounted.path(), &expected);
        mounted.unmount();
        drop(opened);
        let opened = open(volume.path(), VolumeOptions::read_write());
        let digests = overwrite(&opened, turn as u64);
        drop(opened);
        e2fsck_clean(volume.path());
        with_kernel(volume.path(), "ro", |root| {
            for (name, digest) in digests {
                assert!(file_digest(&root.join(&name[1..])) == digest, "{name} in the kernel's eyes");
            }
        });
    }
}

/// Volumes filled by mke2fs from a directory and judged by debugfs.
fn by_debugfs(rows: &[Row]) {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"), Need::Tool("dumpe2fs"));
    for (turn, row) in rows.iter().enumerate() {
        let block = match row.1.iter().position(|&arg| arg == "-b") {
            Some(at) => row.1[at + 1].parse().unwrap(),
            None => 1024,
        };
        let source = Scratch::new(32 << 20);
        let tree = source.file("tree");
        std::fs::create_dir(&tree).unwrap();
        fill(&tree, block);
        let volume = builder(row).from_dir(&tree).build();
        if row.1.iter().any(|arg| arg.contains("quota")) {
            // mke2fs 1.47.0 writes the quota files before it copies the tree; e2fsck brings them up to date.
            e2fsck(volume.path(), &["-y"]);
        }
        assert_eq!(superblock_field(volume.path(), "Block size"), block.to_string());
        volume.assert_clean();
        compare_with_debugfs(volume.path(), &tree, block, turn);
        let opened = open(volume.path(), VolumeOptions::read_write());
        let digests = overwrite(&opened, turn as u64);
        drop(opened);
        volume.assert_clean();
        let image = std::fs::File::open(volume.path()).unwrap();
        for ((seen, blocks), name) in
            stat_all(volume.path(), &OVERWRITTEN.map(String::from)).iter().zip(OVERWRITTEN)
        {
            assert!(digest(&image, blocks, block, seen.size) == digests[name], "{name} in debugfs's eyes");
        }
    }
}

fn compare_with_debugfs(path: &Path, source: &Path, block: u64, turn: usize) {
    let opened = open(path, VolumeOptions::read_only());
    let found = ours(&opened, turn);
    // Contents are the source's; owners, times and link counts of mke2fs's copies come from debugfs.
    let given = manifest(source);
    let names: Vec<_> = found.keys().filter(|name| *name != b"/lost+found").collect();
    assert_eq!(names, given.keys().collect::<Vec<_>>());
    for name in names {
        let (here, there) = (&found[name], &given[name]);
        let alike = (here.kind, &here.digest, &here.target) == (there.kind, &there.digest, &there.target);
        assert!(alike, "{}: {here:?} is not {there:?}", name.escape_ascii());
    }
    let paths: Vec<String> = found.keys().map(|name| String::from_utf8(name.clone()).unwrap()).collect();
    let image = std::fs::File::open(path).unwrap();
    for (name, (seen, mut blocks)) in paths.iter().zip(stat_all(path, &paths)) {
        let meta = opened.symlink_metadata(name).unwrap();
        assert_eq!(Seen::ours(&meta), seen, "{name}");
        if meta.kind != FileKind::Regular {
            continue;
        }
        let file = opened.open_file(name, read_only()).unwrap();
        blocks.retain(|&logical, _| logical * block < seen.size);
        assert_eq!(our_blocks(&file, block), blocks, "{name}");
        let digest = digest(&image, &blocks, block, seen.size);
        assert!(found[name.as_bytes()].digest == Some(digest), "{name}");
    }
}

#[test]
fn root_ext2_reads_and_takes_overwrites_as_the_kernel_does() {
    by_kernel(&[
        ("ext2", &["-b", "1024"], "", 32),
        ("ext2", &["-b", "2048", "-I", "128"], "", 32),
        ("ext2", &["-b", "4096"], "", 32),
        ("ext2", &["-b", "1024", "-r", "0"], "", 32),
        ("ext2", &["-b", "4096", "-O", "none"], "", 32),
        ("ext2", &["-b", "1024", "-O", "^dir_index,^filetype,^resize_inode,^sparse_super"], "", 32),
        ("ext2", &["-b", "1024", "-o", "hurd"], "", 32),
        ("ext4", &["-b", "1024", "-o", "freebsd", "-O", "^metadata_csum"], "", 32),
    ]);
}

#[test]
fn root_ext3_reads_and_takes_overwrites_as_the_kernel_does() {
    by_kernel(&[
        ("ext3", &["-b", "1024"], "", 32),
        ("ext3", &["-b", "2048", "-I", "128"], "", 32),
        ("ext3", &["-b", "4096"], "", 64),
        ("ext4", &["-b", "1024", "-O", "^extents,^64bit"], "", 32),
        ("ext4", &["-b", "4096", "-O", "^extents,^64bit,^flex_bg,uninit_bg,^metadata_csum"], "", 64),
    ]);
}

#[test]
fn root_allocation_layouts_read_and_take_overwrites_as_the_kernel_does() {
    by_kernel(&[
        ("ext4", &["-b", "4096", "-O", "bigalloc", "-C", "65536"], "", 64),
        ("ext4", &["-b", "1024", "-O", "bigalloc", "-C", "16384"], "", 64),
        ("ext4", &["-b", "1024", "-O", "meta_bg,^resize_inode", "-g", "1024"], "", 32),
        ("ext4", &["-b", "1024", "-O", "sparse_super2,^resize_inode", "-g", "2048"], "", 32),
        ("ext4", &["-b", "1024", "-O", "^sparse_super,^resize_inode", "-g", "2048"], "", 32),
        ("ext4", &["-b", "2048", "-O", "^flex_bg", "-g", "4096"], "", 32),
        ("ext4", &["-b", "1024", "-G", "4", "-g", "1024"], "", 32),
        ("ext4", &["-b", "4096"], "packed_meta_blocks=1", 64),
        ("ext4", &["-b", "4096", "-O", "bigalloc", "-C", "1048576"], "", 256),
        ("ext4", &["-b", "1024"], "resize=1048576,lazy_itable_init=1", 32),
        ("ext4", &["-b", "1024", "-O", "sparse_super2,^resize_inode", "-g", "2048"], "num_backup_sb=1", 32),
    ]);
}

#[test]
fn root_checksums_and_inode_sizes_read_and_take_overwrites_as_the_kernel_does() {
    by_kernel(&[
        ("ext4", &["-b", "1024", "-O", "metadata_csum,metadata_csum_seed"], "", 32),
        ("ext4", &["-b", "4096", "-O", "^metadata_csum,uninit_bg"], "", 64),
        ("ext4", &["-b", "4096", "-O", "^metadata_csum,^uninit_bg"], "", 64),
        ("ext4", &["-b", "1024", "-I", "128", "-O", "^extra_isize"], "", 32),
        ("ext4", &["-b", "1024", "-I", "1024"], "", 32),
        ("ext4", &["-b", "4096", "-I", "4096", "-N", "512"], "", 64),
        ("ext4", &["-b", "2048", "-I", "512", "-O", "^64bit"], "", 32),
        ("ext4", &["-b", "1024", "-O", "^huge_file,^dir_nlink,^large_file,^extra_isize"], "", 32),
    ]);
}

#[test]
fn root_other_features_read_and_take_overwrites_as_the_kernel_does() {
    by_kernel(&[
        ("ext4", &["-b", "4096", "-O", "^has_journal"], "", 32),
        ("ext4", &["-b", "1024", "-O", "fast_commit"], "", 32),
        ("ext4", &["-b", "1024", "-O", "orphan_file"], "", 32),
        ("ext4", &["-b", "1024", "-O", "mmp"], "", 32),
        ("ext4", &["-b", "1024", "-O", "stable_inodes,verity,encrypt"], "", 32),
        ("ext4", &["-b", "1024", "-O", "large_dir,ea_inode"], "", 32),
        ("ext4", &["-b", "1024", "-O", "^dir_index,^filetype,^resize_inode"], "", 32),
    ]);
}

#[test]
fn large_blocks_read_and_take_overwrites_as_debugfs_does() {
    by_debugfs(&[
        ("ext4", &["-b", "8192"], "", 64),
        ("ext4", &["-b", "16384", "-O", "^has_journal"], "", 64),
        ("ext4", &["-b", "32768", "-O", "^has_journal,^metadata_csum"], "", 64),
        ("ext4", &["-b", "65536", "-O", "^has_journal"], "", 64),
        ("ext4", &["-b", "65536", "-I", "1024", "-J", "size=64"], "", 192),
    ]);
}

#[test]
fn large_blocks_with_indirect_maps_read_and_take_overwrites_as_debugfs_does() {
    by_debugfs(&[
        ("ext2", &["-b", "8192"], "", 64),
        ("ext2", &["-b", "16384"], "", 64),
        ("ext2", &["-b", "32768"], "", 64),
        ("ext2", &["-b", "65536"], "", 64),
        ("ext4", &["-b", "65536", "-O", "bigalloc,^has_journal", "-C", "262144"], "", 64),
    ]);
}

#[test]
fn small_blocks_read_and_take_overwrites_as_debugfs_does() {
    by_debugfs(&[
        ("ext2", &["-b", "1024"], "", 32),
        ("ext2", &["-b", "1024", "-r", "0"], "", 32),
        ("ext3", &["-b", "4096"], "", 64),
        ("ext4", &["-b", "1024", "-O", "bigalloc", "-C", "16384"], "", 64),
        ("ext4", &["-b", "2048", "-O", "meta_bg,^resize_inode", "-g", "1024"], "", 32),
        ("ext4", &["-b", "4096", "-O", "sparse_super2,^resize_inode"], "", 64),
        ("ext4", &["-b", "1024", "-O", "^metadata_csum,uninit_bg", "-I", "128"], "", 32),
        // The kernel here may lack quota, and then mounts such a volume read-only.
        ("ext4", &["-b", "1024", "-O", "quota,project"], "quotatype=usrquota:grpquota:prjquota", 32),
        ("ext4", &["-b", "1024", "-O", "verity,encrypt,stable_inodes,orphan_file,fast_commit"], "", 32),
    ]);
}
