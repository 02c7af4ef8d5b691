//! Values of attributes in inodes of their own: what is on the volume between two handles.

use super::{device, image, open_device, save, save_device};
use crate::change::attribute_blocks::drop_credits;
use crate::ground::journaled::Journaled;
use crate::{Caller, Volume, XattrFlags};
use uext4_testkit::{Need, Scratch, needs, oracle};

/// The head of the chain of orphans, as a commit would write it now.
fn first_orphan(volume: &Volume, scratch: &Scratch) -> u32 {
    let path = scratch.file("seen.img");
    save(volume.state(), &path);
    Volume::read_superblock(&*device(&std::fs::read(&path).unwrap())).unwrap().last_orphan
}

/// A commit may come between the handle that drops the last reference and the one that frees the value.
#[test]
fn a_value_without_references_is_an_orphan_from_the_same_handle_on() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let device = device(&image(16, &["-b", "1024", "-O", "ea_inode"]));
    let volume = open_device(device.clone()).unwrap();
    let node = volume.root().unwrap().create(b"file", 0o600, &Caller::root()).unwrap();
    node.set_xattr(b"user.large", [7; 20_000], XattrFlags::empty()).unwrap();
    assert_eq!(first_orphan(&volume, &scratch), 0);
    let files = volume.engine().fs().files();
    let dropped = Journaled::run(volume.state(), "test", drop_credits(), |blocks| {
        files.drop_values(blocks, node.ino())
    });
    assert!(dropped.unwrap());
    assert_ne!(first_orphan(&volume, &scratch), 0, "nobody would free it after a crash");
    files.free_left().unwrap();
    assert_eq!(first_orphan(&volume, &scratch), 0);
    drop(node);
    volume.close().unwrap();
    let path = scratch.file("after.img");
    save_device(&device, &path);
    oracle::e2fsck_clean(&path);
}
