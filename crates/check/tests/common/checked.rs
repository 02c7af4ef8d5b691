//! The check beside e2fsck: small volumes, both verdicts, and changes whose checksums are made right again.

use super::Image;
use super::hostile::Layout;
use uext4::VolumeOptions;
use uext4_check::{CheckOptions, Report, Severity, check_device};
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::update_inode_checksum;
use uext4_testkit::{Scratch, VolumeBuilder, oracle};

pub fn check(image: &Image) -> Report {
    check_device(image.device(), VolumeOptions::read_only(), &CheckOptions::new(), &mut |_| {}).unwrap()
}

pub fn told(report: &Report) -> Vec<String> {
    report.findings.iter().map(|finding| finding.to_string()).collect()
}

/// Files in `/d`, `/one` and beside them, on a volume of these features; debugfs then does what is asked.
pub fn volume(args: &[&str], requests: &[String]) -> Image {
    volume_with(args, &[], requests)
}

/// The same with extended options of mke2fs (`-E`).
pub fn volume_with(args: &[&str], extended: &[&str], requests: &[String]) -> Image {
    let source = Scratch::new(1 << 20);
    let dir = source.file("tree");
    std::fs::create_dir_all(dir.join("d/a subdirectory, long")).unwrap();
    std::fs::write(dir.join("d/some file with a name"), [1; 5000]).unwrap();
    std::fs::write(dir.join("d/other file with a name"), "").unwrap();
    std::fs::write(dir.join("plain"), [2; 3000]).unwrap();
    std::fs::create_dir(dir.join("one")).unwrap();
    std::fs::write(dir.join("one/only file, with a name"), [3; 5000]).unwrap();
    let args = args.iter().copied().chain(["-b", "1024", "-N", "64"]);
    let builder = VolumeBuilder::new(4 << 20).args(args).from_dir(&dir);
    let volume = extended.iter().fold(builder, |builder, option| builder.extended(*option)).build();
    for request in requests {
        oracle::debugfs_write(volume.path(), request);
    }
    Image::load(volume.path())
}

pub fn judged(image: &Image) -> oracle::Fsck {
    let scratch = Scratch::new(8 << 20);
    let path = scratch.file("volume.img");
    image.save(&path);
    oracle::e2fsck(&path, &["-n"])
}

/// The check finds just this, and e2fsck finds something.
#[track_caller]
pub fn assert_found(what: &str, image: &Image, codes: &[&str]) -> Report {
    let report = check(image);
    let found: Vec<_> = report.findings.iter().map(|finding| finding.kind.code).collect();
    assert_eq!(found, codes, "{what}: {:#?}", told(&report));
    let judged = judged(image);
    let damaged = report.findings.iter().any(|finding| finding.kind.severity == Severity::Error);
    assert_eq!(judged.is_clean(), !damaged, "{what}: {:#?}\n{}", told(&report), judged.output);
    report
}

/// Changes an inode's record and makes its checksum right again.
pub fn change_inode(image: &mut Image, ino: Ino, change: impl FnOnce(&mut [u8])) {
    let layout = Layout::of(image);
    let at = layout.inode(ino);
    let size = usize::from(layout.superblock.geometry.inode_size());
    change(&mut image.bytes[at..at + size]);
    update_inode_checksum(&mut image.bytes[at..at + size], ino, &layout.superblock).unwrap();
}

/// Changes the first occurrence of some bytes.
pub fn change_bytes(image: &mut Image, found: &[u8], change: impl FnOnce(&mut [u8])) {
    let at = image.bytes.windows(found.len()).position(|window| window == found).unwrap();
    change(&mut image.bytes[at..at + found.len()]);
}

/// Whether e2fsck 1.47.0 does not report such a finding (its line): inodes for attribute values that have names or are
/// no files (since 1.47.1; the kernel refused them before), and what fs-verity stored, at which no version looks.
pub fn is_newer(line: &str) -> bool {
    line.starts_with("entry.value_inode: ")
        || line.starts_with("verity.")
        || line.starts_with("inode.flags: ") && line.contains("flag ea_inode")
}
