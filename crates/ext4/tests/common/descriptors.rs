//! A volume of a few groups whose descriptors are damaged.

use super::{Image, open_ro, read_only};
use uext4_ondisk::Group;
use uext4_ondisk::ext4::{GroupDescriptor, Superblock};
use uext4_testkit::{Scratch, VolumeBuilder};

pub const METADATA_CSUM: &str = "metadata_csum,64bit,^resize_inode";
pub const UNINIT_BG: &str = "uninit_bg,^metadata_csum,^64bit,^resize_inode";
pub const NO_CSUM: &str = "^uninit_bg,^metadata_csum,^64bit,^resize_inode";

/// Bytes of each file: two blocks and a bit.
const SIZE: usize = 2100;

/// A volume of blocks of 1 KiB and a few groups, with files whose inodes lie in every group.
pub struct Sample {
    pub image: Image,
    pub superblock: Superblock,
    /// Name, group of its inode, contents.
    pub files: Vec<(String, Group, Vec<u8>)>,
}

impl Sample {
    pub fn new(features: &str) -> Sample {
        let source = Scratch::new(8 << 20);
        let contents = |number: usize| -> Vec<u8> {
            (0..SIZE).map(|at| ((at / 256 + 1) * (number + 1) + at % 251) as u8).collect()
        };
        for number in 0..100 {
            std::fs::write(source.file(format!("file-{number:02}")), contents(number)).unwrap();
        }
        let args = ["-b", "1024", "-g", "8192", "-N", "128", "-O", features];
        let built = VolumeBuilder::new(32 << 20).args(args).from_dir(source.path()).build();
        let image = Image::load(built.path());
        let superblock = Superblock::decode(&image.bytes[1024..2048]).unwrap();
        assert_eq!(superblock.geometry.group_count(), 4);
        let volume = open_ro(image.device());
        let files: Vec<_> = (0..100)
            .map(|number| {
                let name = format!("/file-{number:02}");
                let ino = volume.resolve(&name, true).unwrap();
                (name, superblock.geometry.group_of_inode(ino).unwrap().0, contents(number))
            })
            .collect();
        for group in 0..4 {
            let count = files.iter().filter(|file| file.1 == Group(group)).count();
            assert!(count >= 10, "{count} files in group {group}");
        }
        Sample { image, superblock, files }
    }

    /// Byte offset of a descriptor in the image.
    pub fn at(&self, group: u32) -> usize {
        self.superblock.geometry.descriptor_block(0).unwrap().get() as usize * 1024
            + group as usize * usize::from(self.superblock.geometry.desc_size())
    }

    pub fn descriptor(&self, group: u32) -> GroupDescriptor {
        GroupDescriptor::decode(&self.image.bytes[self.at(group)..], Group(group), &self.superblock).unwrap()
    }

    /// The image with a changed descriptor, but its old checksum.
    pub fn damaged(&self, group: u32, change: impl FnOnce(&mut GroupDescriptor)) -> Image {
        let mut image = self.image.clone();
        damage(&mut image, &self.superblock, self.at(group), group, change);
        image
    }
}

/// Changes a descriptor without updating its checksum.
pub fn damage(
    image: &mut Image,
    superblock: &Superblock,
    at: usize,
    group: u32,
    change: impl FnOnce(&mut GroupDescriptor),
) {
    let bytes = &mut image.bytes[at..at + usize::from(superblock.geometry.desc_size())];
    let sum = [bytes[30], bytes[31]];
    let mut descriptor = GroupDescriptor::decode(bytes, Group(group), superblock).unwrap();
    change(&mut descriptor);
    descriptor.encode(bytes, Group(group), superblock).unwrap();
    bytes[30..32].copy_from_slice(&sum);
    assert!(GroupDescriptor::decode(bytes, Group(group), superblock).is_err());
}

/// The first block of a file.
pub fn data_block(image: &Image, name: &str) -> u64 {
    let volume = open_ro(image.device());
    let file = volume.open_file(name, read_only()).unwrap();
    file.map().next().unwrap().unwrap().physical / 1024
}
