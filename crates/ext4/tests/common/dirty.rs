//! Journals that are not empty, compared with e2fsck's recovery.

use super::{Image, assert_same_bytes, assert_unchanged};
use uext4::{RecoveryReport, RecoveryState, Volume, VolumeOptions};
use uext4_ondisk::ext4::{Incompat, Superblock};
use uext4_testkit::{Scratch, oracle};

/// Bytes of a block.
pub fn block_size(image: &Image) -> usize {
    1024 << image.bytes[1048]
}

/// The image after e2fsck's recovery.
pub fn by_e2fsck(image: &Image) -> Image {
    let scratch = Scratch::new(2 * image.bytes.len() as u64);
    let path = scratch.file("volume.img");
    image.save(&path);
    let mut command = oracle::command("e2fsck");
    // With -f it would go on and rewrite its counts, in descriptors too.
    let output = command.args(["-y", "-E", "journal_only"]).arg(&path).output().unwrap();
    assert!(output.status.code().is_some_and(|code| code < 4), "{}", oracle::text(&output));
    Image::load(&path)
}

/// Everything except superblocks, backup descriptors (which e2fsck may rewrite and recovery does not) and the
/// superblock of the log, which e2fsck fills in its own way.
pub fn comparable(image: &Image, journal: u64) -> Image {
    let mut image = image.clone();
    let size = block_size(&image);
    let superblock = Superblock::decode(&image.bytes[1024..2048]).unwrap();
    image.bytes[1024..2048].fill(0);
    let geometry = &superblock.geometry;
    let meta_bg = superblock.features.incompat.contains(Incompat::META_BG);
    for group in geometry.groups().skip(1) {
        // With meta_bg the descriptors themselves are in the first group they describe.
        let first = meta_bg && group.0 % geometry.descriptors_per_block() == 0;
        let start = geometry.group_first_block(group).unwrap().get() as usize * size;
        let blocks = match first {
            true => u32::from(geometry.has_superblock(group)),
            false => geometry.base_metadata_blocks(group),
        };
        image.bytes[start..start + blocks as usize * size].fill(0);
    }
    image.bytes[journal as usize * size..][..size].fill(0);
    image
}

/// Opens the image read-only and for writing. Both times every block equals e2fsck's result; the first time nothing is
/// written, after the second nothing is left to recover and e2fsck finds no fault. Returns the report on the log and
/// the recovered volume.
#[track_caller]
pub fn recovers_as_e2fsck_does(image: &Image) -> (RecoveryReport, Image) {
    let device = image.device();
    let volume = Volume::open_device(device.clone(), VolumeOptions::read_only()).unwrap();
    let info = volume.info();
    assert_eq!(info.recovery.state, RecoveryState::Overlay);
    let (log, journal) = (info.recovery.log.unwrap(), info.journal.unwrap().block);
    assert_eq!(log.ended.damage(), None);
    let seen = Image::of(&**volume.device());
    drop(volume);
    let expected = comparable(&by_e2fsck(image), journal);
    assert_same_bytes(&expected.bytes, &comparable(&seen, journal).bytes);
    assert_unchanged(image, &*device);

    let volume = Volume::open_device(device.clone(), VolumeOptions::read_write()).unwrap();
    assert_eq!(volume.info().recovery.state, RecoveryState::Replayed);
    drop(volume);
    let found = Image::of(&*device);
    assert_same_bytes(&expected.bytes, &comparable(&found, journal).bytes);
    let again = Volume::open_device(device, VolumeOptions::read_write()).unwrap().info().recovery;
    assert_eq!((again.state, again.log), (RecoveryState::Clean, None));
    let scratch = Scratch::new(2 * image.bytes.len() as u64);
    found.save(&scratch.file("recovered.img"));
    oracle::e2fsck_clean(&scratch.file("recovered.img"));
    (log, found)
}
