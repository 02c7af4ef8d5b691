//! Directories, links and special files that are made and removed, against a model of the tree, e2fsck and the kernel.

use crate::common;
pub mod model;

use common::sample::is_journaled;
use common::{Image, open_ro, open_rw};
use model::{Play, clean, comparable, found};
use uext4::Caller;
use uext4_testkit::manifest::assert_same;
use uext4_testkit::{Need, Scratch, VolumeBuilder, kernel_manifest, needs, oracle};

/// Block sizes, other arguments of mke2fs, and the number of steps.
const VOLUMES: [(&str, &[&str], u32); 8] = [
    ("4096", &[], 600),
    ("1024", &["-N", "6000"], 3000),
    ("1024", &["-O", "^dir_index,^metadata_csum,^64bit,^filetype"], 500),
    ("1024", &["-O", "^extent,^64bit,^flex_bg"], 500),
    ("4096", &["-O", "inline_data"], 800),
    ("2048", &["-O", "^orphan_file,^metadata_csum", "-I", "128"], 500),
    ("4096", &["-O", "bigalloc", "-C", "16384"], 500),
    ("1024", &["-N", "6000", "-O", "^has_journal,inline_data"], 1500),
];

fn empty(block: &str, args: &[&str]) -> Image {
    let made = VolumeBuilder::new(32 << 20).args(["-b", block]).args(args.iter().copied()).build();
    Image::load(made.path())
}

#[test]
fn trees_grow_and_shrink_as_in_the_model() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    for (round, (block, args, steps)) in (0..).zip(VOLUMES) {
        play(round, block, args, steps, &scratch);
    }
}

#[test]
fn root_the_kernel_sees_the_tree_of_the_model() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    for (round, (block, args, steps)) in (100..).zip(VOLUMES) {
        let (path, expected) = play(round, block, args, steps / 2, &scratch);
        assert_same(&expected, &comparable(kernel_manifest(&path)));
    }
}

/// Plays on a new volume, and compares: while it is open, after a crash, and after the close.
fn play(
    seed: u64,
    block: &str,
    args: &[&str],
    steps: u32,
    scratch: &Scratch,
) -> (std::path::PathBuf, uext4_testkit::Manifest) {
    println!("{block} {args:?}");
    let device =
        empty(block, args).device_with(|options| (options.volatile_cache, options.fua) = (true, true));
    let mut play = Play::on(open_rw(device.clone()), seed);
    for _ in 0..steps {
        play.step();
    }
    let expected = play.expected();
    assert_same(&expected, &found(&play.volume));
    // This sync makes everything before it durable.
    let last = play.volume.root().unwrap().make_unnamed(0o600, &Caller::root()).unwrap();
    last.open(common::read_write()).unwrap().sync_all().unwrap();
    let dirty = Image::of(&*device);
    let image = scratch.file("volume.img");
    dirty.save(&image);
    assert!(oracle::e2fsck(&image, &["-fy"]).status < 2, "{block} {args:?}");
    oracle::e2fsck_clean(&image);
    assert_same(
        &without_contents(&expected),
        &without_contents(&found(&open_ro(Image::load(&image).device()))),
    );
    if is_journaled(args) {
        let device = dirty.device();
        let volume = open_rw(device.clone());
        assert_same(&without_contents(&expected), &without_contents(&found(&volume)));
        volume.close().unwrap();
        clean(&device, scratch);
    }
    drop(last);
    play.end_uses();
    play.volume.close().unwrap();
    (clean(&device, scratch), expected)
}

/// Data that was not synced may be lost.
pub fn without_contents(manifest: &uext4_testkit::Manifest) -> uext4_testkit::Manifest {
    let mut all = manifest.clone();
    for entry in all.values_mut().filter(|entry| entry.digest.is_some()) {
        (entry.size, entry.digest) = (0, None);
    }
    all
}
