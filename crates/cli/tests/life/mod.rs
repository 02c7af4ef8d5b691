//! The life of a volume, the same on every back end: made, filled with a tree, written at random with syncs by a
//! process that is killed, recovered and checked, again and again. What was acknowledged is there, and e2fsck finds
//! nothing.

mod back_ends;
mod child;

use crate::common::{good, text};
use crate::copy_trees::{assert_same, seconds};
use back_ends::{BackEnd, Block, File, Nbd, Overlay, Qcow2, Rbd};
use std::path::Path;
use uext4_testkit::fixture::{TreeOptions, standard_tree_with};
use uext4_testkit::manifest::manifest;
use uext4_testkit::{Ceph, Need, Rng, Scratch, needs, oracle};

/// Bytes of the volume.
const SIZE: u64 = 96 << 20;
/// Kills of each life.
const KILLS: u64 = 6;

fn live(name: &str, back_end: &mut dyn BackEnd) {
    let host = Scratch::new(1 << 30);
    let tree = host.file("tree");
    std::fs::create_dir(&tree).unwrap();
    standard_tree_with(&tree, TreeOptions { big_dir: 200, extents: 40, ..TreeOptions::new(17) });
    let spec = back_end.spec();
    let inside = |path: &str| format!("{spec}:{path}");

    // A write of a block is one request then, and whole or not there.
    good(["mkfs", "-q", "-b", "4096", &spec]);
    good(["mkdir", &inside("/tree")]);
    good(["cp", "-a", &format!("{}/.", tree.display()), &inside("/tree")]);
    child::prepare(&spec);
    let mut known = child::Known::default();
    let mut rng = Rng::new(0x11fe);
    for kill in 0..KILLS {
        let what = format!("{name}, kill {kill}");
        child::killed(&format!("life::{name}"), &spec, &mut known, &mut rng);
        back_end.settle();
        known.assert_there(&spec, back_end.tears(), &what);
        assert!(text(["check", &spec]).contains(": clean:"), "{what}");
        let raw = host.file("raw");
        back_end.dump(&raw);
        oracle::e2fsck_clean(&raw);
        std::fs::remove_file(&raw).unwrap();
    }
    assert!(known.acknowledged() > 20, "{name}: {known:?}");
    back(&inside("/tree"), &tree, &host);
    back_end.judge();
}

/// The tree comes back as it went in.
fn back(inside: &str, tree: &Path, host: &Scratch) {
    let out = host.file("out");
    std::fs::create_dir(&out).unwrap();
    good(["cp", "-a", &format!("{inside}/."), out.to_str().unwrap()]);
    assert_same(seconds(manifest(&out)), seconds(manifest(tree)));
}

/// The life of this test, or the work of its child.
fn life(name: &str, make: impl FnOnce(&Scratch) -> Box<dyn BackEnd>) {
    if child::is_one() {
        return child::work();
    }
    let scratch = Scratch::new(2 << 30);
    live(name, &mut *make(&scratch));
}

#[test]
fn in_an_image() {
    needs!(Need::Tool("e2fsck"));
    life("in_an_image", |scratch| Box::new(File::new(scratch, "", "")));
}

#[test]
fn without_a_ring() {
    needs!(Need::Tool("e2fsck"));
    life("without_a_ring", |scratch| Box::new(File::new(scratch, "sync:", "")));
}

#[test]
fn in_mapped_memory() {
    needs!(Need::Tool("e2fsck"));
    life("in_mapped_memory", |scratch| Box::new(File::allocated(scratch, "dax:")));
}

#[test]
fn behind_an_offset() {
    needs!(Need::Tool("e2fsck"));
    life("behind_an_offset", |scratch| Box::new(File::new(scratch, "", "?offset=1M")));
}

#[test]
fn in_a_qcow2_image() {
    needs!(Need::Tool("e2fsck"), Need::Tool("qemu-img"));
    life("in_a_qcow2_image", |scratch| Box::new(Qcow2::new(scratch, false)));
}

#[test]
fn in_a_qcow2_image_over_another() {
    needs!(Need::Tool("e2fsck"), Need::Tool("qemu-img"));
    life("in_a_qcow2_image_over_another", |scratch| Box::new(Qcow2::new(scratch, true)));
}

#[test]
fn in_an_overlay() {
    needs!(Need::Tool("e2fsck"));
    life("in_an_overlay", |scratch| Box::new(Overlay::new(scratch)));
}

#[test]
fn root_on_a_block_device() {
    needs!(Need::Loop, Need::Tool("e2fsck"));
    life("root_on_a_block_device", |scratch| Box::new(Block::new(scratch)));
}

#[test]
fn on_an_nbd_server_with_several_connections() {
    needs!(Need::Tool("e2fsck"), Need::Tool("nbdkit"));
    life("on_an_nbd_server_with_several_connections", |scratch| Box::new(Nbd::nbdkit(scratch)));
}

#[test]
fn on_an_nbd_server_with_one_connection() {
    needs!(Need::Tool("e2fsck"), Need::Tool("qemu-nbd"));
    life("on_an_nbd_server_with_one_connection", |scratch| Box::new(Nbd::qemu(scratch)));
}

#[test]
fn on_ceph() {
    needs!(Need::Tool("e2fsck"), Need::Ceph);
    if child::is_one() {
        return child::work();
    }
    let ceph = Ceph::shared();
    live("on_ceph", &mut Rbd::new(&ceph));
}
