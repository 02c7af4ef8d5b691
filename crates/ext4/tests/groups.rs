//! Volumes of very many groups: what an open reads, and that a sparse file cannot pose as one.

use crate::common;

use common::open_ro;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use uext4::device::CountingDevice;
use uext4::{DeviceSpec, Error, Volume, VolumeOptions};
use uext4_ondisk::checksum::csum;
use uext4_ondisk::ext4::{GroupDescriptor, Superblock};
use uext4_ondisk::{CorruptKind, Group, Pblk};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs};

const BLOCKS_PER_GROUP: u64 = 8192;

/// Words of the superblock, little-endian.
fn put(bytes: &mut [u8], offset: usize, value: u32) {
    bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
}

/// A volume of `groups` groups of 8 MiB that takes only the space of its descriptors. Bitmaps and tables of a group lie
/// at its start, or with `scattered` at places that are never contiguous.
fn huge(scratch: &Scratch, groups: u32, scattered: bool) -> PathBuf {
    let args = ["-b", "1024", "-I", "128", "-O", "^has_journal,^resize_inode,64bit,metadata_csum,flex_bg"];
    let small = VolumeBuilder::new(16 << 20).args(args).build();
    let mut bytes = std::fs::read(small.path()).unwrap()[1024..2048].to_vec();
    let blocks = u64::from(groups) * BLOCKS_PER_GROUP + 1;
    put(&mut bytes, 0x00, groups * 8);
    put(&mut bytes, 0x04, blocks as u32);
    put(&mut bytes, 0x150, (blocks >> 32) as u32);
    put(&mut bytes, 0x28, 8);
    let sum = csum(!0, &bytes[..0x3fc]);
    put(&mut bytes, 0x3fc, sum);
    let superblock = Superblock::decode(&bytes).unwrap();
    assert_eq!(superblock.geometry.group_count(), groups);
    let template = {
        let image = std::fs::read(small.path()).unwrap();
        let small = Superblock::decode(&image[1024..2048]).unwrap();
        GroupDescriptor::decode(&image[2048..], Group(0), &small).unwrap()
    };
    let path = scratch.sparse_file("volume.img", blocks * 1024);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&bytes, 1024).unwrap();
    // After the descriptors of group 0.
    let base = 2 + u64::from(superblock.geometry.descriptor_blocks()) + 300;
    let mut table = vec![0; groups as usize * 64];
    for (group, bytes) in (0..groups).zip(table.chunks_exact_mut(64)) {
        let start = match scattered {
            true => (base + u64::from(group) * (BLOCKS_PER_GROUP - 1)) % (blocks - 8),
            false => base + u64::from(group) * 3,
        };
        let place = |offset: u64| Pblk(start.max(base) + offset);
        let descriptor = GroupDescriptor {
            block_bitmap: place(0),
            inode_bitmap: place(if scattered { 2 } else { 1 }),
            inode_table: place(if scattered { 4 } else { 2 }),
            ..template
        };
        descriptor.encode(bytes, Group(group), &superblock).unwrap();
    }
    file.write_all_at(&table, 2048).unwrap();
    path
}

fn device(path: &Path) -> Arc<dyn uext4::device::Device> {
    let how = uext4::device::OpenOptions::default();
    uext4::device::open(&DeviceSpec::file(path), how).unwrap().device
}

#[test]
fn every_descriptor_is_read_once_in_large_steps() {
    needs!(Need::Tool("mke2fs"));
    let groups = std::env::var("UEXT4_GROUPS").map_or(1 << 17, |text| text.parse().unwrap());
    for scattered in [false, true] {
        let scratch = Scratch::new(u64::from(groups) * 64 + (1 << 20));
        let path = huge(&scratch, groups, scattered);
        let counting = Arc::new(CountingDevice::new(device(&path)));
        let start = Instant::now();
        let volume = open_ro(counting.clone());
        let took = start.elapsed();
        let counted = counting.counts();
        // The superblock, and each block of descriptors once.
        let table = u64::from(groups) * 64;
        println!("{groups} groups, scattered {scattered}: {took:?}, {counted:?}");
        assert!(counted.read_bytes <= table + 8192, "{counted:?}");
        assert!(counted.reads <= table / (256 << 10) + 3, "{counted:?}");
        assert_eq!(volume.info().groups, groups);
    }
}

/// Damage is counted in the same pass. (For its memory see `crates/hostile/tests/descriptors.rs`.)
#[test]
fn many_damaged_descriptors_are_counted_and_a_volume_of_impossible_ones_is_refused() {
    needs!(Need::Tool("mke2fs"));
    let groups = 1 << 17;
    let scratch = Scratch::new(u64::from(groups) * 64 + (1 << 20));
    let path = huge(&scratch, groups, true);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut sound = vec![0; groups as usize * 64];
    file.read_exact_at(&mut sound, 2048).unwrap();
    let mut table = sound.clone();
    table.chunks_exact_mut(64).for_each(|bytes| bytes[30] ^= 1);
    file.write_all_at(&table, 2048).unwrap();
    let counting = Arc::new(CountingDevice::new(device(&path)));
    let volume = open_ro(counting.clone());
    let damage = volume.info().descriptors.unwrap();
    assert_eq!((damage.groups, damage.impossible), (groups, 0));
    assert_eq!(damage.first.kind, CorruptKind::GroupDescriptorChecksum);
    assert_eq!(damage.first.place.group, Some(Group(0)));
    assert!(counting.counts().reads <= u64::from(groups) * 64 / (256 << 10) + 3);
    // Descriptors of zeros point to impossible places. Many of them are tolerated wherever they are, while most are
    // sound; a volume with nothing else is refused.
    for (lost, opens) in [(0..4096, true), (0..70_000, false), (1 << 16..(1 << 17) - 100, true)] {
        let mut table = sound.clone();
        table[lost.start * 64..lost.end * 64].fill(0);
        file.write_all_at(&table, 2048).unwrap();
        match Volume::open_device(device(&path), VolumeOptions::read_only()) {
            Ok(volume) => {
                let damage = volume.info().descriptors.unwrap();
                let lost_groups = lost.len() as u32;
                assert_eq!((damage.groups, damage.impossible), (lost_groups, lost_groups));
                assert_eq!(damage.first.place.group, Some(Group(lost.start as u32)));
                assert!(opens);
            }
            Err(error) => assert!(!opens && matches!(error, Error::Corrupt(_)), "{lost:?}: {error}"),
        }
    }
}

/// A file that is a single hole except for a superblock that claims `groups` groups of 2 KiB: no checksums, 1 KiB
/// blocks, clusters of two, so that block 0 belongs to the volume and a descriptor of zeros points there.
#[test]
fn a_file_that_holds_nothing_is_no_volume_of_many_groups() {
    needs!(Need::Tool("mke2fs"));
    let args = ["-b", "1024", "-I", "128", "-C", "2048", "-O"];
    let features = "^has_journal,^resize_inode,^64bit,^metadata_csum,^uninit_bg,bigalloc,flex_bg,extent";
    let small = VolumeBuilder::new(16 << 20).args(args).args([features]).build();
    let mut bytes = std::fs::read(small.path()).unwrap()[1024..2048].to_vec();
    let groups: u32 = 1 << 28;
    put(&mut bytes, 0x00, groups * 8);
    put(&mut bytes, 0x04, groups * 2);
    put(&mut bytes, 0x14, 0);
    put(&mut bytes, 0x20, 2);
    put(&mut bytes, 0x24, 1);
    put(&mut bytes, 0x28, 8);
    Superblock::decode(&bytes).unwrap();
    let scratch = Scratch::new(1 << 20);
    let path = scratch.sparse_file("volume.img", u64::from(groups) * 2048);
    File::options().write(true).open(&path).unwrap().write_all_at(&bytes, 1024).unwrap();
    let counting = Arc::new(CountingDevice::new(device(&path)));
    let error = Volume::open_device(counting.clone(), VolumeOptions::read_only()).map(|_| ()).unwrap_err();
    match &error {
        Error::Corrupt(corrupt) => assert_eq!(
            (corrupt.kind, corrupt.place.group),
            (CorruptKind::GroupDescriptorField("block_bitmap"), Some(Group(0)))
        ),
        other => panic!("{other}"),
    }
    assert!(counting.counts().reads <= 2, "{:?}", counting.counts());
}
