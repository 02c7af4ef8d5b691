//! Hand-made fast commits.

use super::Image;
use super::log::{Log, LogKind};
use super::tree::{How, manifest};
use std::sync::Arc;
use uext4::device::Device;
use uext4::{Error, Volume, VolumeOptions};
use uext4_ondisk::checksum::csum;
use uext4_ondisk::jbd2::LogChecksums;
use uext4_testkit::{Manifest, Scratch, VolumeBuilder, oracle};

/// Number of the transaction before the fast commits.
pub const SEQUENCE: u32 = 7;

pub const ROOT: u32 = 2;
pub const EXTENTS: u32 = 0x80000;
pub const FILE: u16 = 0o100_644;
pub const DIRECTORY: u16 = 0o040_755;

/// The records of one fast commit.
#[derive(Clone, Debug, Default)]
pub struct Records {
    pub list: Vec<Vec<u8>>,
}

fn tlv(tag: u16, parts: &[&[u8]]) -> Vec<u8> {
    let value = parts.concat();
    [&tag.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), &value].concat()
}

/// The raw inode of a file with extents, mode, links and size given.
pub fn raw_inode(mode: u16, links: u16, size: u32, flags: u32) -> Vec<u8> {
    let mut raw = vec![0; 160];
    raw[0..2].copy_from_slice(&mode.to_le_bytes());
    raw[4..8].copy_from_slice(&size.to_le_bytes());
    raw[8..20].copy_from_slice(&[0x41; 12]);
    raw[26..28].copy_from_slice(&links.to_le_bytes());
    raw[32..36].copy_from_slice(&flags.to_le_bytes());
    raw[0x64..0x68].copy_from_slice(&77_u32.to_le_bytes());
    raw[128] = 32;
    raw
}

impl Records {
    pub fn push(mut self, tag: u16, parts: &[&[u8]]) -> Records {
        self.list.push(tlv(tag, parts));
        self
    }

    pub fn add(self, ino: u32, logical: u32, length: u16, physical: u64) -> Records {
        let [high, low] = [physical >> 32, physical & 0xffff_ffff];
        let extent = [
            &logical.to_le_bytes()[..],
            &length.to_le_bytes(),
            &(high as u16).to_le_bytes(),
            &(low as u32).to_le_bytes(),
        ];
        self.push(1, &[&ino.to_le_bytes(), &extent.concat()])
    }

    pub fn delete(self, ino: u32, first: u32, length: u32) -> Records {
        self.push(2, &[&ino.to_le_bytes(), &first.to_le_bytes(), &length.to_le_bytes()])
    }

    pub fn name(self, tag: u16, parent: u32, ino: u32, name: &[u8]) -> Records {
        self.push(tag, &[&parent.to_le_bytes(), &ino.to_le_bytes(), name])
    }

    pub fn create(self, parent: u32, ino: u32, name: &[u8]) -> Records {
        self.name(3, parent, ino, name)
    }

    pub fn link(self, parent: u32, ino: u32, name: &[u8]) -> Records {
        self.name(4, parent, ino, name)
    }

    pub fn unlink(self, parent: u32, ino: u32, name: &[u8]) -> Records {
        self.name(5, parent, ino, name)
    }

    pub fn inode(self, ino: u32, raw: &[u8]) -> Records {
        self.push(6, &[&ino.to_le_bytes(), raw])
    }
}

/// The blocks of consecutive fast commits, written as by the kernel: no record crosses the end of a block.
pub fn blocks(commits: &[Records], size: usize) -> Vec<Vec<u8>> {
    let mut blocks = Vec::new();
    for (number, commit) in commits.iter().enumerate() {
        let head = tlv(9, &[&[0; 4], &SEQUENCE.to_le_bytes()]);
        let head = (number == 0).then_some(&head);
        let (mut block, mut sum) = (Vec::new(), 0);
        for record in head.into_iter().chain(&commit.list) {
            // A padding record and a tail must fit after it.
            if block.len() + record.len() + 20 > size {
                let rest = size - block.len() - 4;
                block.extend(tlv(7, &[&vec![0; rest]]));
                sum = csum(sum, &block);
                blocks.push(std::mem::take(&mut block));
            }
            block.extend(record);
        }
        let rest = size - block.len() - 4;
        block.extend(8_u16.to_le_bytes());
        block.extend((rest as u16).to_le_bytes());
        block.extend(SEQUENCE.to_le_bytes());
        sum = csum(sum, &block);
        block.extend(sum.to_le_bytes());
        block.resize(size, 0);
        blocks.push(block);
    }
    blocks
}

/// Puts fast commits into the empty journal of an image, after a transaction that changes nothing.
pub fn plant(image: &mut Image, commits: &[Records]) {
    plant_into(image, 64, commits);
}

/// The same, with this many log blocks for them.
pub fn plant_into(image: &mut Image, fast_commit_blocks: u32, commits: &[Records]) {
    let kind = LogKind { fast_commit_blocks, sequence: SEQUENCE - 1, ..LogKind::new(LogChecksums::V3) };
    let mut log = Log::begin(image, kind);
    let size = log.block(0).len();
    log.transaction(&[], &[]);
    for (place, block) in (log.fast_commit_start()..).zip(blocks(commits, size)) {
        log.block(place).copy_from_slice(&block);
    }
}

/// A volume with some files, blocks of 1 KiB and an empty journal.
pub fn volume_with(features: &str) -> Image {
    let source = Scratch::new(1 << 20);
    std::fs::write(source.file("hello"), "world\n".repeat(1000)).unwrap();
    std::fs::create_dir(source.file("dir")).unwrap();
    for n in 0..20 {
        std::fs::write(source.file(format!("dir/file-{n:02}")), format!("{n}\n")).unwrap();
    }
    let volume = VolumeBuilder::new(8 << 20)
        .args(["-b", "1024", "-J", "size=2", "-O", features])
        .from_dir(source.path())
        .build();
    Image::load(volume.path())
}

pub fn writable(device: Arc<dyn Device>) -> Result<Volume, Error> {
    Volume::open_device(device, VolumeOptions::read_write())
}

/// The tree as a manifest, without times of directories.
pub fn tree(volume: &Volume) -> Manifest {
    manifest(volume, How::Direct)
}

pub fn fsck_clean(image: &Image) {
    let scratch = Scratch::new(2 * image.bytes.len() as u64);
    image.save(&scratch.file("volume.img"));
    oracle::e2fsck_clean(&scratch.file("volume.img"));
}
