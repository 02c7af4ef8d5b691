//! Damaged group descriptors: the check finds them, and takes nothing for damaged that only cannot be seen.

use crate::common;

use common::Image;
use common::checked::check;
use common::descriptors::{METADATA_CSUM, NO_CSUM, Sample, UNINIT_BG};
use common::log::{Log, LogKind};
use uext4_ondisk::ext4::GroupDescriptor;
use uext4_ondisk::jbd2::LogChecksums;
use uext4_ondisk::{Group, Pblk};
use uext4_testkit::{Need, needs};

fn findings(image: &Image) -> Vec<&'static str> {
    check(image).findings.iter().map(|finding| finding.kind.code).collect()
}

#[test]
fn a_wrong_checksum_is_found_beside_the_count_that_is_wrong() {
    needs!(Need::Tool("mke2fs"));
    for features in [METADATA_CSUM, UNINIT_BG] {
        let sample = Sample::new(features);
        for group in 0..4 {
            let found = findings(&sample.damaged(group, |descriptor| descriptor.used_dirs += 1));
            assert_eq!((found[0], found.len()), ("group.checksum", 2), "{features}: {found:?}");
        }
    }
}

/// The entries of the others do not lead to free inodes only because these cannot be seen.
#[test]
fn impossible_places_are_found_and_entries_are_not_called_wrong() {
    needs!(Need::Tool("mke2fs"));
    type Change<'a> = &'a dyn Fn(&mut GroupDescriptor);
    let changes: [Change<'_>; 4] = [
        &|descriptor| descriptor.inode_table = Pblk(1 << 30),
        &|descriptor| descriptor.inode_table = Pblk(0),
        &|descriptor| descriptor.inode_bitmap = Pblk(32 << 10),
        &|descriptor| descriptor.block_bitmap = Pblk(2),
    ];
    for features in [METADATA_CSUM, UNINIT_BG, NO_CSUM] {
        let sample = Sample::new(features);
        for change in changes {
            let mut image = sample.image.clone();
            let mut descriptor = sample.descriptor(2);
            change(&mut descriptor);
            // With the right checksum: it does not make a place possible.
            descriptor.encode(&mut image.bytes[sample.at(2)..], Group(2), &sample.superblock).unwrap();
            let found = findings(&image);
            assert!(found.contains(&"group.location"), "{found:?}");
            assert!(!found.iter().any(|code| code.starts_with("entry.")), "{found:?}");
        }
    }
}

/// Neither the group whose table another one claims is called wrong, nor the inodes of that other one free.
#[test]
fn a_table_in_that_of_a_sound_group_is_the_fault_of_its_descriptor_alone() {
    needs!(Need::Tool("mke2fs"));
    let sample = Sample::new(UNINIT_BG);
    let other = sample.descriptor(3).inode_table;
    for shift in [0, 1] {
        let table = Pblk(other.get() - shift);
        let found = findings(&sample.damaged(2, |descriptor| descriptor.inode_table = table));
        assert!(found.contains(&"group.checksum") && found.contains(&"group.overlap"), "{found:?}");
        let wrong = ["entry.free_inode", "inode_bitmap.leaked", "inode.links", "inode.checksum"];
        assert!(!found.iter().any(|code| wrong.contains(code)), "{found:?}");
    }
}

/// The check sees the volume as it was written last, and the descriptor's damage alone.
#[test]
fn a_log_is_replayed_over_a_damaged_descriptor_before_the_check() {
    needs!(Need::Tool("mke2fs"));
    let sample = Sample::new(METADATA_CSUM);
    let mut image = sample.damaged(2, |descriptor| descriptor.free_inodes = 3);
    let (name, ..) = sample.files.iter().find(|file| file.1 == Group(2)).unwrap();
    let block = common::descriptors::data_block(&sample.image, name);
    let log = LogKind::new(LogChecksums::V3);
    Log::begin(&mut image, log).transaction(&[(block, vec![7; 1024])], &[]);
    assert_eq!(findings(&image), ["group.checksum", "group.free_inodes"]);
}
