//! Damaged group descriptors: what a read-only open tolerates and reports, and that it writes nothing.

use crate::common;

use common::descriptors::{METADATA_CSUM, NO_CSUM, Sample, UNINIT_BG, damage, data_block};
use common::fast::{Records, SEQUENCE, plant};
use common::log::{Log, LogKind};
use common::{Image, assert_unchanged, explained_refusal, open_ro, open_rw, read_all, read_only};
use std::sync::LazyLock;
use uext4::{Error, RecoveryState, Volume, VolumeOptions};
use uext4_ondisk::ext4::GroupDescriptor;
use uext4_ondisk::jbd2::LogChecksums;
use uext4_ondisk::{CorruptKind, Group, Pblk};
use uext4_testkit::guard::{LoopDevice, LoopOptions, Mount};
use uext4_testkit::{Need, Scratch, needs, oracle};

/// Reads all files; those of `unreadable` must fail with the error of `group`'s descriptor.
#[track_caller]
fn assert_reads(sample: &Sample, volume: &Volume, unreadable: Option<u32>) {
    for (name, group, contents) in &sample.files {
        let opened = volume.open_file(name, read_only());
        if Some(group.get()) == unreadable {
            assert_descriptor_error(&opened.map(drop).unwrap_err(), group.get());
            assert_descriptor_error(&volume.metadata(name).map(drop).unwrap_err(), group.get());
        } else {
            assert!(read_all(&opened.unwrap()) == *contents, "{name}");
        }
    }
    let names: Vec<_> = volume.read_dir("/").unwrap().map(|entry| entry.unwrap().name).collect();
    assert_eq!(names.len(), 3 + sample.files.len());
}

#[track_caller]
fn assert_descriptor_error(error: &Error, group: u32) {
    match error {
        Error::Corrupt(corrupt) => {
            let kind = corrupt.kind;
            let known =
                matches!(kind, CorruptKind::GroupDescriptorChecksum | CorruptKind::GroupDescriptorField(_));
            assert!(known, "{error}");
            assert_eq!((corrupt.place.group, corrupt.place.block), (Some(Group(group)), Some(Pblk(2))));
        }
        other => panic!("{other}"),
    }
}

/// Opens for reading, reporting this damage; refuses writing; writes nothing.
#[track_caller]
fn open_damaged(image: &Image, damage: (u32, u32), first: u32) -> Volume {
    let device = image.device();
    let refused = Volume::open_device(device.clone(), VolumeOptions::read_write()).map(drop).unwrap_err();
    assert_descriptor_error(&refused, first);
    assert_unchanged(image, &*device);
    let volume = open_ro(device.clone());
    let info = volume.info();
    let told = info.descriptors.expect("the damage is told");
    assert_eq!(
        (told.groups, told.impossible, told.first.place.group),
        (damage.0, damage.1, Some(Group(first)))
    );
    assert!(info.notes.contains(&told.to_string()), "{:?}", info.notes);
    let mut names = (0..100).map(|number| format!("/file-{number:02}"));
    if let Some(name) = names.find(|name| volume.open_file(name, read_only()).is_ok()) {
        assert_eq!(explained_refusal(&volume, &name), Some(refused.to_string()));
        assert_unchanged(image, &*device);
    }
    volume
}

static CHECKED: LazyLock<Sample> = LazyLock::new(|| Sample::new(METADATA_CSUM));

#[test]
fn a_wrong_checksum_leaves_reading_and_refuses_writing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    for features in [METADATA_CSUM, UNINIT_BG] {
        let sample = Sample::new(features);
        assert_eq!(open_ro(sample.image.device()).info().descriptors, None);
        for group in 0..4 {
            let image = sample.damaged(group, |descriptor| descriptor.used_dirs += 1);
            let volume = open_damaged(&image, (1, 0), group);
            assert_reads(&sample, &volume, None);
            // Free counts have no other source.
            assert_descriptor_error(&volume.statfs().unwrap_err(), group);
        }
        // debugfs reads the same.
        let image = sample.damaged(2, |descriptor| descriptor.used_dirs += 1);
        let scratch = Scratch::new(64 << 20);
        image.save(&scratch.file("image"));
        let (name, _, contents) = sample.files.iter().find(|file| file.1 == Group(2)).unwrap();
        let mut dump = oracle::command("debugfs");
        let request = format!("dump {name} {}", scratch.file("dumped").display());
        oracle::run(dump.args(["-c", "-R", &request]).arg(scratch.file("image")));
        assert!(std::fs::read(scratch.file("dumped")).unwrap() == *contents);
    }
}

#[test]
fn impossible_places_cost_the_files_of_their_group_only() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
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
            let at = sample.at(2);
            let mut descriptor = sample.descriptor(2);
            change(&mut descriptor);
            // With a correct checksum: that does not make a place possible.
            descriptor.encode(&mut image.bytes[at..], Group(2), &sample.superblock).unwrap();
            let volume = open_damaged(&image, (1, 1), 2);
            assert_reads(&sample, &volume, Some(2));
        }
        // Without the root directory, inodes can still be opened by number.
        let mut image = sample.image.clone();
        let mut descriptor = sample.descriptor(0);
        descriptor.inode_table = Pblk(1 << 30);
        descriptor.encode(&mut image.bytes[sample.at(0)..], Group(0), &sample.superblock).unwrap();
        let volume = open_damaged(&image, (1, 1), 0);
        assert_descriptor_error(&volume.read_dir("/").map(drop).unwrap_err(), 0);
        let sound = open_ro(sample.image.device());
        let (name, _, contents) = &sample.files[99];
        let ino = sound.resolve(name, true).unwrap();
        assert!(read_all(&volume.open_inode(ino, read_only()).unwrap()) == *contents);
    }
}

/// There are no inode checksums here, so inodes of another group would be accepted.
#[test]
fn the_table_of_a_sound_group_is_not_read_as_that_of_a_damaged_one() {
    needs!(Need::Tool("mke2fs"));
    let sample = Sample::new(UNINIT_BG);
    let other = sample.descriptor(3).inode_table;
    for shift in [0, 1] {
        let table = Pblk(other.get() - shift);
        let image = sample.damaged(2, |descriptor| descriptor.inode_table = table);
        assert_reads(&sample, &open_damaged(&image, (1, 0), 2), Some(2));
    }
    // Somewhere among the data. Bytes there may look like inodes, which cannot be detected; but those of other groups,
    // data included, are unchanged.
    let image = sample.damaged(2, |descriptor| descriptor.inode_table = Pblk(9000));
    let volume = open_damaged(&image, (1, 0), 2);
    for (name, group, contents) in &sample.files {
        if *group != Group(2) {
            assert!(read_all(&volume.open_file(name, read_only()).unwrap()) == *contents, "{name}");
        }
    }
}

/// With inode checksums, a table in the wrong place gives errors and no wrong answers.
#[test]
fn a_wrong_place_shows_in_the_checksums_of_inodes() {
    needs!(Need::Tool("mke2fs"));
    let sample = &*CHECKED;
    let right = sample.descriptor(2).inode_table;
    // A file's own blocks, claimed as the table: the file reads as before.
    let volume = open_ro(sample.image.device());
    let file = volume.open_file(&sample.files[0].0, read_only()).unwrap();
    let data = file.map().next().unwrap().unwrap().physical / 1024;
    for table in [Pblk(data), Pblk(right.get() + 1)] {
        let image = sample.damaged(2, |descriptor| descriptor.inode_table = table);
        let volume = open_damaged(&image, (1, 0), 2);
        for (name, group, contents) in &sample.files {
            let opened = volume.open_file(name, read_only());
            if *group == Group(2) {
                let error = opened.map(drop).unwrap_err();
                assert!(matches!(error, Error::Corrupt(_)), "{error}");
            } else {
                assert!(read_all(&opened.unwrap()) == *contents, "{name}");
            }
        }
    }
}

#[test]
fn a_log_is_replayed_in_memory_over_damaged_descriptors_and_not_onto_the_device() {
    needs!(Need::Tool("mke2fs"));
    let sample = &*CHECKED;
    let (name, group, contents) = sample.files.iter().find(|file| file.1 == Group(2)).unwrap();
    let mut changed = contents[..1024].to_vec();
    changed[..5].copy_from_slice(b"later");
    let block = data_block(&sample.image, name);
    let mut image = sample.damaged(group.get(), |descriptor| descriptor.free_inodes = 3);
    Log::begin(&mut image, LogKind::new(LogChecksums::V3)).transaction(&[(block, changed.clone())], &[]);
    let volume = open_damaged(&image, (1, 0), 2);
    assert_eq!(volume.info().recovery.state, RecoveryState::Overlay);
    assert!(read_all(&volume.open_file(name, read_only()).unwrap())[..1024] == changed[..]);

    // A log that includes the descriptors: those on the device do not matter.
    let mut image = sample.damaged(2, |descriptor| descriptor.free_inodes = 3);
    let sound = sample.image.bytes[2048..3072].to_vec();
    Log::begin(&mut image, LogKind::new(LogChecksums::V3)).transaction(&[(2, sound.clone())], &[]);
    assert_eq!(open_ro(image.device()).info().descriptors, None);
    let device = image.device();
    let volume = open_rw(device.clone());
    assert_eq!(volume.info().recovery.state, RecoveryState::Replayed);
    assert!(Image::of(&*device).bytes[2048..3072] == sound);

    // The journal's own inode is in the unreadable group: the log is lost, and so is the volume.
    let mut image = sample.image.clone();
    Log::begin(&mut image, LogKind::new(LogChecksums::V3)).transaction(&[(block, changed.clone())], &[]);
    damage(&mut image, &sample.superblock, sample.at(0), 0, |descriptor| descriptor.inode_table = Pblk(0));
    for options in [VolumeOptions::read_only(), VolumeOptions::read_write()] {
        let device = image.device();
        assert_descriptor_error(&Volume::open_device(device.clone(), options).map(drop).unwrap_err(), 0);
        assert_unchanged(&image, &*device);
    }
}

/// Fast commits change bitmaps and free counts, so they need a sound descriptor.
#[test]
fn fast_commits_in_a_damaged_group_are_refused_and_those_before_are_seen() {
    needs!(Need::Tool("mke2fs"));
    let sample = &*CHECKED;
    let volume = open_ro(sample.image.device());
    let of = |group| {
        let (name, ..) = sample.files.iter().find(|file| file.1 == Group(group)).unwrap();
        (name.trim_start_matches('/').to_owned(), volume.resolve(name, true).unwrap().get())
    };
    let ((sound, sound_ino), (damaged, damaged_ino)) = (of(1), of(2));
    let commits = [
        Records::default().unlink(2, sound_ino, sound.as_bytes()),
        Records::default().unlink(2, damaged_ino, damaged.as_bytes()),
    ];
    let mut image = sample.damaged(2, |descriptor| descriptor.free_inodes = 3);
    plant(&mut image, &commits);
    let volume = open_damaged(&image, (1, 0), 2);
    let recovery = volume.info().recovery;
    let refused = recovery.fast_commits_refused.expect("the second one is refused");
    assert!(refused.contains("descriptor") && refused.contains("group 2"), "{refused}");
    assert_eq!(recovery.fast_commits_before.map(|before| before.commits), Some(1));
    assert!(recovery.log.is_some_and(|log| log.end.sequence() == SEQUENCE));
    assert!(matches!(volume.metadata(format!("/{sound}")), Err(Error::NotFound)));
    volume.metadata(format!("/{damaged}")).unwrap();
    // All of them are replayed if the damage does not concern them.
    let mut image = sample.damaged(3, |descriptor| descriptor.free_inodes = 3);
    plant(&mut image, &commits);
    let volume = open_damaged(&image, (1, 0), 3);
    assert_eq!(volume.info().recovery.fast_commits_refused, None);
    assert!(matches!(volume.metadata(format!("/{damaged}")), Err(Error::NotFound)));
}

#[test]
fn walking_meets_the_unreadable_group_entry_by_entry() {
    needs!(Need::Tool("mke2fs"));
    let sample = &*CHECKED;
    let image = sample.damaged(1, |descriptor| descriptor.inode_table = Pblk(u64::MAX));
    let volume = open_damaged(&image, (1, 1), 1);
    let (mut read, mut failed) = (0, 0);
    for entry in volume.read_dir("/").unwrap() {
        let entry = entry.unwrap();
        match volume.metadata_of(entry.ino) {
            Ok(_) => read += 1,
            Err(error) => {
                assert_descriptor_error(&error, 1);
                failed += 1;
            }
        }
    }
    let lost = sample.files.iter().filter(|file| file.1 == Group(1)).count();
    assert_eq!((read, failed), (3 + sample.files.len() - lost, lost));
}

/// The kernel also reads on and refuses writing. It refuses the whole volume for a place outside it.
#[test]
fn root_the_kernel_reads_on_after_a_wrong_checksum_too() {
    needs!(Need::Loop, Need::Tool("mke2fs"));
    for features in [METADATA_CSUM, UNINIT_BG] {
        let sample = Sample::new(features);
        let scratch = Scratch::new(64 << 20);
        let file = scratch.file("image");
        let image = sample.damaged(2, |descriptor| descriptor.used_dirs += 1);
        image.save(&file);
        {
            let device = LoopDevice::attach(&file, LoopOptions::default());
            assert!(Mount::try_attach(device.path(), "ext4", "rw").is_err());
            let mount = Mount::attach(device.path(), "ext4", "ro");
            for (name, _, contents) in &sample.files {
                assert!(std::fs::read(mount.path().join(&name[1..])).unwrap() == *contents, "{name}");
            }
        }
        assert_reads(&sample, &open_damaged(&image, (1, 0), 2), None);
        sample.damaged(2, |descriptor| descriptor.inode_table = Pblk(1 << 30)).save(&file);
        let device = LoopDevice::attach(&file, LoopOptions::default());
        assert!(Mount::try_attach(device.path(), "ext4", "ro").is_err());
    }
}
