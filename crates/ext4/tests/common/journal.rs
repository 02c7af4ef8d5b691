//! A small volume with an empty journal, and ways to damage it.

use super::Image;
use super::dirty::block_size;
use super::hostile::Layout;
use super::log::{Log, LogKind, Written, places};
use uext4_ondisk::Ino;
use uext4_ondisk::jbd2::LogChecksums;
use uext4_testkit::{Scratch, VolumeBuilder};

/// A volume with a file and an empty journal of this many MiB in blocks of 1 KiB.
pub fn base(journal_mebibytes: u32) -> Image {
    let source = Scratch::new(1 << 20);
    std::fs::write(source.file("hello"), "world\n".repeat(1000)).unwrap();
    let journal = format!("size={journal_mebibytes}");
    let volume = VolumeBuilder::new(24 << 20)
        .args(["-b", "1024", "-J", &journal, "-O", "metadata_csum,64bit"])
        .from_dir(source.path())
        .build();
    Image::load(volume.path())
}

fn put(image: &mut Image, at: usize, value: u32) {
    image.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Clears the superblock's request for recovery.
pub fn clear_recover(image: &mut Image) {
    image.patch_superblock(|superblock| superblock[0x60] &= !4);
}

/// Free blocks at the end of the volume.
fn home(log: &Log<'_>, n: u64) -> u64 {
    (log.image.bytes.len() / block_size(log.image)) as u64 - 40 + n
}

fn block(log: &Log<'_>, byte: u8) -> Vec<u8> {
    vec![byte; block_size(log.image)]
}

/// One transaction of two blocks.
pub fn transaction(log: &mut Log<'_>, byte: u8) -> Written {
    let blocks = [(home(log, u64::from(byte)), block(log, byte)), (home(log, 0), block(log, byte))];
    log.transaction(&blocks, &[])
}

/// Changes one bit of a log block.
pub fn flip(log: &mut Log<'_>, log_block: u32, byte: usize) {
    log.block(log_block)[byte] ^= 0x40;
}

type Change<'a> = &'a dyn Fn(&mut Image);

/// Empty journals, each damaged in one place.
pub fn damaged_unneeded() -> Vec<(&'static str, Image)> {
    let mut image = base(1);
    Log::begin(&mut image, LogKind::new(LogChecksums::V3)).superblock(|superblock| superblock.start = 0);
    clear_recover(&mut image);
    let (start, inode) = (places(&image)[0] as usize * 1024, Layout::of(&image).inode(Ino(8)));
    let cases: [(&str, Change<'_>); 5] = [
        ("no magic number", &|image| put(image, start, 0)),
        ("a bad checksum", &|image| image.bytes[start + 0x58] ^= 1),
        ("an unknown feature", &|image| put(image, start + 0x28, 0x40)),
        ("longer than its inode", &|image| put(image, start + 16, 0xffff_ff7f)),
        ("an inode that is damaged", &|image| image.bytes[inode + 4] ^= 1),
    ];
    let changed = |(what, change): (&'static str, Change<'_>)| {
        let mut changed = image.clone();
        change(&mut changed);
        (what, changed)
    };
    cases.into_iter().map(changed).collect()
}

/// A log with a transaction, whose superblock is damaged.
pub fn damaged_needed() -> [Image; 2] {
    let mut image = base(1);
    transaction(&mut Log::begin(&mut image, LogKind::new(LogChecksums::V3)), 1);
    let start = places(&image)[0] as usize * 1024;
    let mut first_version = image.clone();
    first_version.bytes[start + 7] = 3;
    image.bytes[start + 0x58] ^= 1;
    [image, first_version]
}
