//! States after a power cut, each recovered by us, and some by e2fsck as well.

use super::{Image, open_rw};
use std::path::Path;
use uext4::Volume;
use uext4_testkit::crash::{Options, Report, State, assert_states};
use uext4_testkit::device::CrashHandle;
use uext4_testkit::{Scratch, VolumeBuilder, oracle};

/// The contents of free blocks.
pub const GARBAGE: u8 = 0xEE;

/// A volume of `size` bytes with the files of a tree, and garbage in all free blocks.
pub fn garbage_volume(size: u64, tree: &Path, args: &[&str]) -> Image {
    let scratch = Scratch::new(2 * size);
    let path = scratch.file("volume.img");
    std::fs::write(&path, vec![GARBAGE; size as usize]).unwrap();
    let builder = VolumeBuilder::new(size).args(args.iter().copied());
    builder.extended("nodiscard").extended("lazy_itable_init=0").from_dir(tree).format(&path);
    if args.contains(&"quota") {
        // mke2fs counts before it copies the tree.
        assert!(oracle::e2fsck(&path, &["-fy"]).status < 2);
    }
    oracle::e2fsck_clean(&path);
    Image::load(&path)
}

/// Passes states of a log to `check`: the volume recovered by us, open. It is then closed, and for every `each`th state
/// e2fsck checks the result; it also recovers the same state itself, and `check` runs on that too.
#[track_caller]
pub fn enumerate(
    handle: &CrashHandle,
    options: &Options,
    each: usize,
    mut check: impl FnMut(&State<'_>, &Volume) -> Result<(), String>,
) -> Report {
    let log = handle.log().unwrap();
    let scratch = Scratch::new(2 * log.base.len() as u64);
    let path = scratch.file("state.img");
    let mut shown = 0;
    let report = assert_states(&log, options, |state| {
        shown += 1;
        let device = state.device();
        let volume = open_rw(device.clone());
        check(state, &volume)?;
        volume.close().map_err(|error| error.to_string())?;
        if shown % each != 1 {
            return Ok(());
        }
        Image::of(&*device).save(&path);
        oracle::e2fsck_clean(&path);
        state.save(&path);
        let repaired = oracle::e2fsck(&path, &["-fy"]);
        if repaired.status > 1 {
            return Err(format!("e2fsck: {repaired:?}"));
        }
        oracle::e2fsck_clean(&path);
        let volume = open_rw(Image::load(&path).device());
        check(state, &volume).map_err(|wrong| format!("recovered by e2fsck: {wrong}"))?;
        volume.close().map_err(|error| error.to_string())
    });
    println!("{}: {report}", options.name);
    report
}
