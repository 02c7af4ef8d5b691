//! Volumes on overlay files under power cuts of the file: what was acknowledged is there, the volume is sound, and the
//! base stays.

use crate::common;
use crate::crash_named::layouts::{LARGE, Layout, SMALL};
use crate::crash_named::plays;

use common::ledger::{Ledger, Mark};
use common::scene::Scene;
use common::{Image, open_rw};
use std::sync::Arc;
use uext4::device::{Device, MemoryDevice, MemoryOptions, OverlayFileDevice};
use uext4_testkit::crash::{Options, assert_states};
use uext4_testkit::device::{CrashDevice, CrashOptions};
use uext4_testkit::{Need, Scratch, needs, oracle};

fn cut(name: &'static str, layout: Layout, fua: bool, during: &[fn(&mut Scene, Layout)]) {
    needs!(Need::Tool("e2fsck"));
    let options = Options::new(name, 1).at_most(160);
    let base: Arc<dyn Device> = layout.image().device();
    let mut scene = Scene::new(open_rw(base.clone()), None, options.seed);
    plays::two_files(&mut scene, layout);
    scene.volume.clone().close().unwrap();
    let before = Image::of(&*base);

    let facts = OverlayFileDevice::facts(&*base, None).unwrap();
    let size = OverlayFileDevice::size(facts.size, 512).unwrap();
    let store = Arc::new(MemoryDevice::new(MemoryOptions::new(size)).unwrap());
    OverlayFileDevice::format(&*store, &facts, 512, b"/base", [9; 16]).unwrap();
    let crash = CrashDevice::new(store, CrashOptions { fua, ..CrashOptions::default() }).unwrap();
    let log = crash.handle();
    let over = |store| OverlayFileDevice::open(base.clone(), &facts, store, "o".into());
    let handle = log.clone();
    let volume = open_rw(Arc::new(over(Arc::new(crash)).unwrap()));
    let mut scene = scene.reopened(volume, Arc::new(move |mark| handle.mark(mark)));
    during.iter().for_each(|play| play(&mut scene, layout));
    scene.check();

    let scratch = Scratch::new(64 << 20);
    let (path, mut shown) = (scratch.file("state.img"), 0);
    let report = assert_states(&log.log().unwrap(), &options, |state| {
        let device = Arc::new(over(state.device()).map_err(|error| error.to_string())?);
        let volume = open_rw(device.clone());
        Ledger::new(scene.base.iter().chain(state.marks::<Mark>()), false).check(&volume)?;
        volume.close().map_err(|error| error.to_string())?;
        shown += 1;
        if shown % 8 == 1 {
            Image::of(&*device).save(&path);
            oracle::e2fsck_clean(&path);
        }
        Ok(())
    });
    println!("{name}: {report}");
    assert!(options.only.is_some() || report.images > 20, "{report}");
    assert!(Image::of(&*base).bytes == before.bytes, "the base");
}

#[test]
fn power_cuts_of_the_file() {
    cut("overlay_file", SMALL, true, &[plays::append, plays::append_durable, plays::append_bytes]);
}

#[test]
fn power_cuts_of_a_file_without_fua() {
    cut("overlay_file_flushed", LARGE, false, &[plays::append, plays::everything]);
}
