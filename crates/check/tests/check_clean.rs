//! Volumes that e2fsck calls clean have no findings, whoever filled them.

use crate::common;

use common::sample::{sample, sample_with};
use std::path::Path;
use uext4::{Volume, VolumeOptions};
use uext4_check::{CheckOptions, Report, check_device};
use uext4_testkit::fixture::{TreeOptions, standard_tree_with};
use uext4_testkit::requirement::Need;
use uext4_testkit::{Rng, VolumeBuilder, needs, oracle};

fn check(path: &Path) -> Report {
    let volume = Volume::open(path.to_str().unwrap(), VolumeOptions::read_only()).unwrap();
    uext4_check::check(&volume, &CheckOptions::new(), &mut |_| {}).unwrap()
}

/// e2fsck finds nothing, and so do we, warnings included.
#[track_caller]
fn assert_clean(what: &str, path: &Path) -> Report {
    oracle::e2fsck_clean(path);
    let report = check(path);
    let told: Vec<_> = report.findings.iter().map(|finding| finding.to_string()).collect();
    assert_eq!(told, [""; 0], "{what}");
    assert!(report.counts.inodes > 10 && report.is_clean());
    report
}

#[test]
fn what_mke2fs_makes_is_clean() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    for args in [
        &["-b", "1024"][..],
        &["-b", "65536"],
        &["-O", "^metadata_csum,uninit_bg"],
        &["-O", "^metadata_csum,^uninit_bg,^flex_bg,^64bit"],
        &["-O", "^resize_inode,meta_bg", "-b", "1024"],
        &["-O", "^resize_inode,sparse_super2"],
        &["-O", "^sparse_super,^resize_inode", "-b", "1024"],
        &["-O", "bigalloc", "-C", "16384", "-b", "1024"],
        &["-O", "orphan_file,mmp,metadata_csum_seed,large_dir"],
        &["-I", "128", "-O", "^extra_isize"],
        &["-N", "100000", "-b", "1024"],
        &["-O", "^dir_index,^filetype"],
        &["-O", "^extent,^64bit,^flex_bg,^metadata_csum"],
        &["-O", "casefold"],
    ] {
        let volume = VolumeBuilder::new(48 << 20).args(args.iter().copied()).build();
        assert_clean(&args.join(" "), volume.path());
    }
}

#[test]
fn the_samples_of_other_tests_are_clean() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for image in [sample(), sample_with(1024, &[]), common::hostile::bare(), common::hostile::guarded()] {
        let options = CheckOptions::new().threads(3);
        let report = check_device(image.device(), VolumeOptions::read_only(), &options, &mut |_| {}).unwrap();
        let told: Vec<_> = report.findings.iter().map(|finding| finding.to_string()).collect();
        assert_eq!(told, [""; 0]);
    }
}

#[test]
fn progress_goes_up_to_the_end_of_each_pass() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let mut seen: Vec<uext4_check::Progress> = Vec::new();
    let volume = Volume::open_device(sample().device(), VolumeOptions::read_only()).unwrap();
    uext4_check::check(&volume, &CheckOptions::new().threads(1), &mut |progress| seen.push(progress))
        .unwrap();
    let ends = seen.iter().filter(|progress| progress.done == progress.total).count();
    assert_eq!(ends, 3);
    assert!(seen.is_sorted_by_key(|progress| (progress.pass as u8, progress.done)));
}

fn filled(args: &[&str], fill: impl FnOnce(&Path)) -> uext4_testkit::Volume {
    let volume = VolumeBuilder::new(256 << 20).args(args.iter().copied()).build();
    volume.with_kernel(fill);
    volume
}

/// Attributes inside inodes, in blocks that several files share and, if `large`, in inodes of their own.
fn attributes(root: &Path, large: bool) {
    let dir = root.join("more attributes");
    std::fs::create_dir(&dir).unwrap();
    for n in 0..40 {
        let path = dir.join(format!("file {n}"));
        std::fs::write(&path, "x".repeat(n * 10)).unwrap();
        let set = |name: &str, value: &[u8]| {
            rustix::fs::setxattr(&path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
        };
        set("user.small", b"one");
        set("user.shared", &[b'y'; 700]);
        if large {
            set("user.large", &vec![b'a' + (n % 3) as u8; 20_000]);
        }
    }
}

#[test]
fn root_what_the_kernel_fills_is_clean() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [
        &["-b", "1024"][..],
        &["-b", "2048"],
        &["-b", "4096"],
        &["-O", "^metadata_csum"],
        &["-O", "^metadata_csum,uninit_bg", "-b", "1024"],
        &["-O", "^64bit,^metadata_csum,^flex_bg"],
        &["-O", "^dir_index,^filetype", "-b", "2048"],
        &["-O", "^has_journal"],
        &["-I", "128", "-O", "^extra_isize"],
        &["-O", "meta_bg,^resize_inode", "-b", "1024"],
        &["-O", "sparse_super2,^resize_inode"],
        &["-O", "large_dir,ea_inode,metadata_csum_seed"],
        &["-I", "512", "-O", "mmp,orphan_file,fast_commit"],
        &["-O", "bigalloc", "-C", "65536"],
        &["-O", "inline_data"],
        &["-O", "^extent,^64bit,^flex_bg,^metadata_csum", "-b", "1024"],
        &["-O", "^extent,^64bit,^has_journal,^metadata_csum"],
        &["-I", "1024", "-O", "inline_data,ea_inode", "-b", "4096"],
    ] {
        let volume = filled(args, |root| {
            standard_tree_with(root, TreeOptions { big_dir: 1500, extents: 3000, ..TreeOptions::new(11) });
            attributes(root, args.iter().any(|arg| arg.contains("ea_inode")));
        });
        assert_clean(&args.join(" "), volume.path());
    }
}

#[test]
fn root_large_directories_and_much_change_are_clean() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let volume = VolumeBuilder::new(512 << 20).args(["-N", "140000", "-b", "1024"]).build();
    volume.with_kernel(|root| {
        let dir = root.join("dir");
        std::fs::create_dir(&dir).unwrap();
        for n in 0..100_000 {
            let path = dir.join(format!("entry {n:06} {}", "y".repeat(n % 23)));
            match n % 50 {
                0 => std::fs::write(&path, format!("{n}")).unwrap(),
                1 => std::os::unix::fs::symlink("somewhere", &path).unwrap(),
                2 => std::fs::create_dir(&path).unwrap(),
                _ => std::fs::hard_link(
                    dir.join(format!("entry {:06} {}", n - n % 50, "y".repeat((n - n % 50) % 23))),
                    &path,
                )
                .unwrap(),
            }
        }
        let mut rng = Rng::new(4);
        for _ in 0..20_000 {
            let n = rng.below(100_000) as usize;
            let path = dir.join(format!("entry {n:06} {}", "y".repeat(n % 23)));
            // Already gone, or a directory: fine.
            let _gone = std::fs::remove_file(path);
        }
    });
    let report = assert_clean("100 000 entries", volume.path());
    assert!(report.counts.entries > 70_000 && report.counts.directories > 2000);
}

#[test]
fn root_a_volume_with_a_full_journal_is_checked_as_it_will_be() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let volume = VolumeBuilder::new(64 << 20).build();
    let copy = volume.scratch().file("copy.img");
    volume.with_kernel(|root| {
        for n in 0..300 {
            std::fs::write(root.join(format!("file {n}")), "x".repeat(n * 20)).unwrap();
        }
        (0..300).step_by(3).for_each(|n| std::fs::remove_file(root.join(format!("file {n}"))).unwrap());
        let all = std::fs::File::open(root).unwrap();
        rustix::fs::syncfs(&all).unwrap();
        std::fs::copy(volume.path(), &copy).unwrap();
    });
    let before = std::fs::read(&copy).unwrap();
    let report = check(&copy);
    let told: Vec<_> = report.findings.iter().map(|finding| finding.to_string()).collect();
    assert_eq!(told, [""; 0]);
    assert!(report.counts.files >= 200);
    assert!(before == std::fs::read(&copy).unwrap(), "nothing is written");
    oracle::e2fsck(&copy, &["-y"]);
    oracle::e2fsck_clean(&copy);
}

/// A directory with more subdirectories than a link count holds, and a file that counts blocks instead of sectors.
#[test]
fn root_counts_that_do_not_fit_their_fields_are_clean() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let volume = filled(&["-N", "70000", "-b", "1024"], |root| {
        std::fs::write(root.join("huge"), vec![7; 100_000]).unwrap();
        std::fs::create_dir(root.join("many")).unwrap();
        (0..65_100).for_each(|n| std::fs::create_dir(root.join(format!("many/{n}"))).unwrap());
    });
    // The kernel does so from 2 TiB on; 98 blocks of 1 KiB.
    oracle::debugfs_write(volume.path(), "set_inode_field /huge flags 0xC0000");
    oracle::debugfs_write(volume.path(), "set_inode_field /huge blocks 98");
    assert_clean("counts", volume.path());
}
