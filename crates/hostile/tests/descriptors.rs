//! Very many damaged group descriptors. In a program of its own: what it allocates itself would count against others.

use std::fs::File;
use std::os::unix::fs::FileExt;

use uext4::{DeviceSpec, Volume, VolumeOptions};
use uext4_hostile::budget;
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs};

/// A damaged descriptor is counted and not kept, however many there are.
#[test]
fn descriptors_that_are_all_damaged_cost_no_more_than_sound_ones() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("mke2fs"));
    let scratch = Scratch::new(1 << 30);
    let path = scratch.sparse_file("huge.img", 15 << 40);
    let args = ["-b", "4096", "-N", "2000000", "-m", "0"];
    let features = ["-O", "^has_journal,^resize_inode,64bit,metadata_csum"];
    let builder = VolumeBuilder::new(0).args(args).args(features);
    builder.extended("lazy_itable_init=1").extended("nodiscard").format(&path);
    let cost = || {
        budget::within(|| {
            let volume = Volume::open_spec(&DeviceSpec::file(&path), VolumeOptions::read_only()).unwrap();
            volume.info().descriptors.map_or(0, |damage| damage.groups as usize)
        })
        .unwrap_or_else(|what| panic!("{what}"))
    };
    let sound = cost();
    let groups = (15 << 40) / (128 << 20);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut table = vec![0; groups * 64];
    file.read_exact_at(&mut table, 4096).unwrap();
    table.chunks_exact_mut(64).for_each(|bytes| bytes[30] ^= 1);
    file.write_all_at(&table, 4096).unwrap();
    let damaged = cost();
    println!("{groups} groups: sound {sound:?}, damaged {damaged:?}");
    assert_eq!((sound.found, damaged.found), (0, groups));
    assert!(damaged.heap <= sound.heap + (64 << 10));
}
