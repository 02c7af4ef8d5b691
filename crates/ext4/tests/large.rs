//! Large files on sparse volumes: one handle's changes are bounded however large a truncation or removal is.

use crate::common;

use common::read_write;
use uext4::{Fallocate, State, Volume, VolumeOptions};
use uext4_testkit::{Need, VolumeBuilder, needs};

/// Extents of 1 KiB blocks across more groups than one handle can change.
#[test]
fn a_file_in_many_groups_is_freed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let made = VolumeBuilder::new(900 << 20).args(["-b", "1024", "-J", "size=4", "-N", "4096"]).build();
    let volume = Volume::open(made.path(), VolumeOptions::read_write()).unwrap();
    let free = volume.statfs().unwrap().free;
    for way in ["removed", "removed while open", "truncated"] {
        let file = volume.open_file("/large", read_write().create_new(true)).unwrap();
        file.fallocate(Fallocate::Allocate, 0, 800 << 20).unwrap();
        // Blocks that a transaction has already changed cost a handle nothing.
        file.sync_all().unwrap();
        match way {
            "truncated" => file.set_len(0).unwrap(),
            "removed" => drop(file),
            _ => {
                volume.remove_file("/large").unwrap();
                drop(file);
            }
        }
        if way != "removed while open" {
            volume.remove_file("/large").unwrap();
        }
        volume.open_file("/small", read_write().create(true)).unwrap().sync_all().unwrap();
        assert_eq!(volume.statfs().unwrap().free, free, "{way}");
    }
    volume.close().unwrap();
    made.assert_clean();
}

/// Extents of maximal length become unwritten, for which they are too long, and are moved and split.
#[test]
fn the_longest_extents_are_changed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let made = VolumeBuilder::new(320 << 20).args(["-b", "1024", "-J", "size=4", "-N", "1024"]).build();
    let volume = Volume::open(made.path(), VolumeOptions::read_write()).unwrap();
    let free = volume.statfs().unwrap().free;
    let file = volume.open_file("/large", read_write().create_new(true)).unwrap();
    let size: u64 = 240 << 20;
    file.prepare(size).unwrap();
    let states = || file.map().map(|piece| piece.unwrap().state).collect::<Vec<_>>();
    assert!(states().iter().all(|state| *state == State::Written));
    for mode in [Fallocate::Zero, Fallocate::Collapse, Fallocate::Insert, Fallocate::Punch] {
        file.sync_all().unwrap();
        let (pos, length) = match mode {
            Fallocate::Zero => (0, size),
            Fallocate::Punch => (3 << 20, 200 << 20),
            _ => (5 << 20, 1 << 20),
        };
        file.fallocate(mode, pos, length).unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        if mode == Fallocate::Zero {
            assert!(states().iter().all(|state| *state == State::Unwritten));
        }
    }
    assert_eq!(file.size(), size);
    file.sync_all().unwrap();
    drop(file);
    volume.remove_file("/large").unwrap();
    assert_eq!(volume.statfs().unwrap().free, free);
    volume.close().unwrap();
    made.assert_clean();
}
