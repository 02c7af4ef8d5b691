//! The parts of this package by themselves: base images and their repair, patches, the count of heap bytes.

use uext4_hostile::images::{self, NAMES};
use uext4_hostile::{heap, patch};
use uext4_testkit::mutate::{Kind, repair, script_of};
use uext4_testkit::{Need, needs};

/// The strongest statement about the repair: on sound volumes, made by mke2fs and the kernel, it changes nothing.
#[test]
fn repairing_a_sound_volume_changes_nothing() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"));
    for (index, name) in NAMES.into_iter().enumerate() {
        let base = images::base(index);
        let mut repaired = base.image.clone();
        repair(&mut repaired, &base.layout);
        let first = repaired.iter().zip(&base.image).position(|(new, old)| new != old);
        let near = first
            .map(|at| base.layout.sites.iter().rfind(|site| (site.at..site.at + site.length).contains(&at)));
        assert_eq!(first, None, "{name}: {near:?}");
    }
}

#[test]
fn the_images_hold_every_structure() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"));
    let mut kinds: Vec<Kind> =
        (0..NAMES.len()).flat_map(|index| images::base(index).layout.kinds()).collect();
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds.len(), 20, "{kinds:?}");
    assert!(
        kinds.contains(&Kind::Mmp) && kinds.contains(&Kind::FastCommit) && kinds.contains(&Kind::Orphans)
    );
}

#[test]
fn scripts_repeat_themselves_and_change_something() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"));
    for (name, base) in NAMES.iter().zip((0..NAMES.len()).map(images::base)) {
        let changed = (0..40).filter(|&seed| {
            let script = script_of(seed);
            let (one, two) = (base.mutate(&script), base.mutate(&script));
            assert_eq!(one.edits, two.edits);
            assert!(one.image == two.image);
            one.image != base.image
        });
        assert!(changed.count() > 30, "{name:?}");
    }
    // Nothing that bytes can say makes the mutator fail.
    for script in [&[][..], &[0xff; 70], &[0; 70], &[7]] {
        images::base(0).mutate(script);
    }
}

#[test]
fn a_described_image_is_made_again() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("zstd"));
    for seed in 0..60 {
        let index = seed as usize % NAMES.len();
        let mutated = images::base(index).mutate(&script_of(seed));
        let text = patch::describe(index, &mutated.image, &mutated.edits);
        assert!(patch::apply(&text).unwrap() == mutated.image, "seed {seed}");
    }
    assert_eq!(patch::apply("at 0x10: 00").unwrap_err(), "at 0x10: 00", "no image yet");
    assert!(patch::apply("image unheard-of").is_err());
}

#[test]
fn a_passing_allocation_leaves_its_peak() {
    uext4_testkit::own_process!();
    heap::start();
    let before = heap::now();
    drop(std::hint::black_box(vec![1u8; 1 << 20]));
    assert!(heap::peak() - before >= 1 << 20);
    assert!(heap::now() - before < 1 << 16);
}
