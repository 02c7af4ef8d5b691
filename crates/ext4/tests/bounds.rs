//! Sizes that are impossible on a sound volume are refused before they cost time or memory.

use uext4::{Error, Volume, VolumeOptions};
use uext4_testkit::needs;
use uext4_testkit::oracle::command;
use uext4_testkit::requirement::Need;

/// A 16 MiB volume whose inode `target` claims `size` bytes.
fn volume_with_size(target: &str, size: &str) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let made = command("mke2fs").args(["-q", "-t", "ext4"]).arg(&image).arg("16M").output().unwrap();
    assert!(made.status.success());
    let order = format!("set_inode_field {target} size {size}");
    let set = command("debugfs").args(["-w", "-R", &order]).arg(&image).output().unwrap();
    assert!(set.status.success());
    let path = image.display().to_string();
    (dir, path)
}

#[test]
fn a_directory_larger_than_its_volume_is_corrupt_at_once() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let (_dir, image) = volume_with_size("<2>", "0x40000000");
    let volume = Volume::open(&image, VolumeOptions::read_only()).unwrap();
    assert!(matches!(volume.read_dir("/"), Err(Error::CorruptInode { .. })));
    assert!(matches!(volume.metadata("/lost+found"), Err(Error::CorruptInode { .. })));
}

#[test]
fn a_journal_larger_than_its_volume_is_corrupt_at_once() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let (_dir, image) = volume_with_size("<8>", "0x40000000");
    // Without the bound the error would be another one, after a walk to the first hole.
    let error = Volume::open(&image, VolumeOptions::read_write()).err().expect("a refusal");
    assert!(error.to_string().contains("more than the volume has"), "{error}");
    // The log is empty, so reading works, with the same note.
    let volume = Volume::open(&image, VolumeOptions::read_only()).unwrap();
    let damage = volume.info().recovery.journal_damage.expect("a note");
    assert!(damage.contains("more than the volume has"), "{damage}");
}
