//! Power cuts while directories, links and special files are made and removed: in every state the tree is one that it
//! was, and nothing that was durable is missing.

use crate::common;
use crate::crash_named::layouts;
use crate::tree_changes::model::{Play, found};
use crate::tree_changes::without_contents;

use common::crash::enumerate;
use common::{open_rw, read_write};
use layouts::{CLUSTERS, INLINE, LARGE, Layout, NO_SUMS, QUOTA, SMALL};
use std::sync::Arc;
use uext4::WriteFlags;
use uext4_testkit::crash::Options;
use uext4_testkit::device::{CrashDevice, CrashOptions};
use uext4_testkit::{Manifest, Need, manifest, needs};

/// States of each layout, unless the environment sets another number, and steps.
const STATES: usize = 250;
const STEPS: usize = 60;
/// e2fsck checks one in this many states.
const EACH: usize = 16;

/// So many trees have been made, and so many are durable.
struct Mark {
    made: usize,
    durable: usize,
}

fn cut(name: &'static str, layout: Layout) {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let options = Options::new(name, 1).at_most(STATES);
    let crash = CrashDevice::new(layout.image().device(), CrashOptions::default()).unwrap();
    let handle = crash.handle();
    let mut play = Play::on(open_rw(Arc::new(crash)), options.seed);
    let beacon = play.volume.open_file("/beacon", read_write().create_new(true)).unwrap();
    play.crashes();
    let mut trees: Vec<Manifest> = vec![without_contents(&play.expected())];
    let mut durable = 0;
    for step in 0..STEPS {
        handle.mark(Mark { made: trees.len(), durable });
        play.step();
        trees.push(without_contents(&play.expected()));
        if step % 7 == 6 {
            beacon.write_any_at(b"on", step as u64, WriteFlags::DSYNC).unwrap();
            durable = trees.len() - 1;
            handle.mark(Mark { made: trees.len(), durable });
        }
    }
    let report = enumerate(&handle, &options, EACH, |state, volume| {
        let (mut made, mut durable) = (1, 0);
        for mark in state.marks::<Mark>() {
            (made, durable) = (mark.made, mark.durable);
        }
        let mut tree = without_contents(&found(volume));
        tree.retain(|path, _| path != b"/beacon" && path != b"/d");
        // The step that was going on may be there.
        manifest::is_one_of(&trees[durable..=made.min(trees.len() - 1)], &tree)
    });
    assert!(options.only.is_some() || report.images > 20, "{report}");
    drop(beacon);
    play.end_uses();
    play.volume.close().unwrap();
}

#[test]
fn power_cut_while_a_tree_changes() {
    cut("tree", SMALL);
}

#[test]
fn power_cut_while_a_tree_changes_without_checksums() {
    cut("tree_without_checksums", NO_SUMS);
}

#[test]
fn power_cut_while_a_tree_changes_in_large_blocks() {
    cut("tree_in_large_blocks", LARGE);
}

#[test]
fn power_cut_while_a_tree_changes_in_clusters() {
    cut("tree_in_clusters", CLUSTERS);
}

#[test]
fn power_cut_while_a_tree_changes_inside_inodes() {
    cut("tree_inside_inodes", INLINE);
}

/// e2fsck counts the usage again.
#[test]
fn power_cut_while_a_tree_changes_with_quota() {
    cut("tree_with_quota", QUOTA);
}
