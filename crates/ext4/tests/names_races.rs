//! Names that several remove at once.

mod common;

use common::sample::sample_with;
use common::{Image, open_rw};
use std::sync::Barrier;
use uext4_testkit::{Need, Scratch, needs, oracle};

/// A file that cannot be freed keeps one of its two names, whoever comes first.
#[test]
fn two_names_of_what_cannot_be_freed_do_not_go_at_once() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(96 << 20);
    let (path, long) = (scratch.file("volume.img"), scratch.file("long"));
    sample_with(4096, &["-O", "ea_inode"]).save(&path);
    std::fs::write(&long, vec![b'v'; 9000]).unwrap();
    oracle::debugfs_write(&path, &format!("ea_set -f {} /data user.inode", long.display()));
    oracle::debugfs_write(&path, "ln /data /dir/data");
    // debugfs counts neither the link nor what the attribute takes.
    assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
    let image = Image::load(&path);
    for _ in 0..40 {
        let device = image.device();
        let volume = open_rw(device.clone());
        let ready = Barrier::new(2);
        let remove = |name: &str| {
            ready.wait();
            volume.remove_file(name).is_ok()
        };
        let removed = std::thread::scope(|scope| {
            let other = scope.spawn(|| remove("/dir/data"));
            [remove("/data"), other.join().unwrap()]
        });
        let left = ["/data", "/dir/data"].map(|name| volume.metadata(name).is_ok());
        assert_eq!(left, removed.map(|removed| !removed));
        assert_eq!(left.iter().filter(|left| **left).count(), 1);
        // Nothing waits to be freed that cannot be.
        volume.remove_file("/tail").unwrap();
        volume.close().unwrap();
        Image::of(&*device).save(&path);
        oracle::e2fsck_clean(&path);
    }
}
