//! Named scenarios under power cuts: typical uses of files, each on its own layout, with a log that wraps around. In
//! every state, recovered by us and by e2fsck, the volume is sound, acknowledged data is there, and files contain
//! nothing but their own data.
//!
//! `make crash` runs them and all others for a given time, each round with another seed and other layouts.

use crate::common;
pub mod layouts;
pub mod plays;

use common::crash::{GARBAGE, enumerate};
use common::ledger::{Ledger, Mark};
use common::scene::Scene;
use common::{Image, open_rw, patterned};
use layouts::*;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use uext4_testkit::crash::Options;
use uext4_testkit::device::{CrashDevice, CrashEvent, CrashHandle, CrashOptions};
use uext4_testkit::rng::mix;
use uext4_testkit::{KernelMount, LoopOptions, Need, VolumeBuilder, needs, oracle};

/// States of each scenario, unless the environment sets another number.
pub const STATES: usize = 420;
/// e2fsck checks one in this many states.
const EACH: usize = 16;

/// A scenario: its volume, the initial files, and the operations during which the power may fail.
pub struct Scenario {
    pub name: &'static str,
    pub layout: Layout,
    /// Whether it supports other layouts too.
    pub anywhere: bool,
    pub before: fn(&mut Scene, Layout),
    pub during: fn(&mut Scene, Layout),
}

impl Scenario {
    fn run(self) {
        needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
        let (scene, handle, options) = self.play();
        let report =
            enumerate(&handle, &options, EACH, |state, volume| ledger(&scene, state.marks()).check(volume));
        assert!(options.only.is_some() || report.images > 20, "{report}");
    }

    /// Plays the scenario with the seed of the environment, or 1.
    pub fn play(&self) -> (Scene, CrashHandle, Options) {
        let options = Options::new(self.name, 1).at_most(STATES);
        let salt = self.name.bytes().fold(7, |salt, byte| mix(salt ^ u64::from(byte)));
        let seed = mix(salt ^ options.seed) >> 34;
        let layout = match options.seed {
            1 => self.layout,
            _ if self.anywhere => ANY[(seed % ANY.len() as u64) as usize],
            _ => self.layout,
        };
        let device = layout.image().device();
        let mut scene = Scene::new(open_rw(device.clone()), None, seed);
        (self.before)(&mut scene, layout);
        scene.volume.clone().close().unwrap();
        let fua = match options.seed {
            1 => !self.name.ends_with("_flushed"),
            _ => seed.is_multiple_of(2),
        };
        let how = CrashOptions { fua, ..CrashOptions::default() };
        let crash = CrashDevice::new(Image::of(&*device).device(), how).unwrap();
        let handle = crash.handle();
        let log = handle.clone();
        let mut scene = scene.reopened(open_rw(Arc::new(crash)), Arc::new(move |mark| log.mark(mark)));
        (self.during)(&mut scene, layout);
        scene.check();
        (scene, handle, options)
    }

    /// Cuts the power during the operations, and again during the recovery: the states of the second cut are checked.
    fn run_recovery(self) {
        needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
        let (scene, handle, options) = self.play();
        // Keep everything that was written, as a cut may.
        let dirty = Image::of(&**scene.volume.device());
        let log = handle.log().unwrap();
        let marks = log.events.iter().filter_map(|event| match event {
            CrashEvent::Marked(mark) => mark.downcast_ref::<Mark>(),
            _ => None,
        });
        recover(&dirty, &ledger(&scene, marks), &options);
    }
}

pub fn ledger<'m>(scene: &'m Scene, marks: impl Iterator<Item = &'m Mark>) -> Ledger {
    let clusters = scene.volume.superblock().geometry.cluster_blocks() > 1;
    Ledger::new(scene.base.iter().chain(marks), clusters)
}

/// States of the recovery of a volume.
fn recover(dirty: &Image, ledger: &Ledger, options: &Options) {
    let crash = CrashDevice::new(dirty.device(), CrashOptions::default()).unwrap();
    let handle = crash.handle();
    open_rw(Arc::new(crash)).close().unwrap();
    let report = enumerate(&handle, options, EACH, |_, volume| ledger.check(volume));
    assert!(options.only.is_some() || report.images > 20, "{report}");
}

/// Defines a test for each scenario: name, layout, whether a seed may choose another layout, initial files, operations.
macro_rules! plays {
    ($($name:ident: $layout:ident $anywhere:literal, $before:ident, $during:ident;)*) => {
        mod power_cut_in {
            use super::*;
            $(#[test]
            fn $name() {
                let name = stringify!($name);
                let (layout, anywhere) = ($layout, $anywhere);
                Scenario { name, layout, anywhere, before: plays::$before, during: plays::$during }.run();
            })*
        }
    };
}

plays! {
    append: SMALL true, one_file, append;
    append_durable: SMALL true, one_file, append_durable;
    together: SMALL true, two_files, together;
    together_with_quota: QUOTA false, two_files, together;
    together_inside_inodes: INLINE false, two_files, together;
    together_in_large_blocks: LARGE false, two_files, together;
    append_bytes: LARGE true, one_file, append_bytes;
    first_writes: SMALL true, unwritten, first_writes;
    fill_holes: SUMS_2 true, holes, fill_holes;
    queued: SMALL true, unwritten, queued;
    truncate_down: SMALL true, one_file, truncate_down;
    truncate_both: MIDDLE true, one_file, truncate_both;
    punch: SMALL true, one_file, punch;
    zero: SUMS_1 true, one_file, zero;
    collapse: SMALL true, many_units, collapse;
    insert: CLUSTERS true, many_units, insert;
    prepare: NO_SUMS true, one_file, prepare;
    create: SMALL true, nothing, create;
    create_hashed: SMALL true, nothing, create_hashed;
    unlink: SMALL true, some_files, unlink;
    unlink_open: MIDDLE true, some_files, unlink_open;
    recreate: SMALL true, nothing, recreate;
    orphans: SMALL true, in_pieces, orphans;
    freed_in_steps: SMALL false, in_many_pieces, freed_in_steps;
    revoke_and_reuse: SMALL true, nothing, revoke_and_reuse;
    interleaved: LARGE true, two_files, interleaved;
    wrap_around: SMALL true, two_files, wrap_around;
    log_full: SMALL true, two_files, log_full;
    no_room: SMALL true, nearly_full, no_room;
    threads: SMALL true, nothing, threads;
    emptied: SMALL true, two_files, emptied;
    replaced: SMALL true, two_files, replaced;
    replaced_in_clusters: CLUSTERS false, two_files, replaced;
    replaced_flushed: SMALL true, two_files, replaced;
    pointers: POINTERS false, old_files, pointers;
    everything_without_checksums: NO_SUMS false, two_files, everything;
    everything_with_old_checksums: SUMS_1 false, two_files, everything;
    everything_with_second_checksums: SUMS_2 false, two_files, everything;
    everything_with_third_checksums: SMALL false, two_files, everything;
    everything_in_clusters: CLUSTERS false, two_files, everything;
    everything_in_large_blocks: LARGE false, two_files, everything;
    everything_in_huge_blocks: HUGE false, two_files, everything;
    append_durable_flushed: SMALL true, one_file, append_durable;
    first_writes_flushed: SMALL true, unwritten, first_writes;
    everything_flushed: SMALL true, two_files, everything;
    create_beside_inline_data: INLINE false, nothing, create;
    inside_inodes: INLINE false, small_files, inside;
    inside_huge_inodes: INLINE_1024 false, small_files, inside;
    clusters_are_freed: CLUSTERS false, in_pieces, orphans;
    journaled_append: JOURNALED false, one_file, append_durable;
    journaled_first_writes: JOURNALED false, unwritten, first_writes;
    journaled_holes: JOURNALED_LARGE false, holes, fill_holes;
    journaled_queued: JOURNALED false, unwritten, queued;
    journaled_truncate: JOURNALED false, one_file, truncate_both;
    journaled_punch: JOURNALED false, one_file, punch;
    journaled_zero: JOURNALED false, one_file, zero;
    journaled_collapse: JOURNALED false, many_units, collapse;
    journaled_insert: JOURNALED_CLUSTERS false, many_units, insert;
    journaled_reuse: JOURNALED false, nothing, revoke_and_reuse;
    journaled_orphans: JOURNALED false, in_pieces, orphans;
    journaled_replaced: JOURNALED false, two_files, replaced;
    everything_with_quota: QUOTA false, two_files, everything;
    journaled_with_quota: JOURNALED_QUOTA false, two_files, everything;
}

/// A second power cut while the volume is recovered and unlinked files are freed.
#[test]
fn power_cut_in_recovery() {
    let (name, layout, anywhere) = ("recovery", SMALL, true);
    Scenario { name, layout, anywhere, before: plays::two_files, during: plays::everything }.run_recovery();
}

#[test]
fn power_cut_while_orphans_are_processed() {
    let (name, layout, anywhere) = ("orphans_at_open", SMALL, true);
    Scenario { name, layout, anywhere, before: plays::in_pieces, during: plays::orphans }.run_recovery();
}

/// Left by the kernel: unlinked files in the orphan file, more than fit into one block of slots.
#[test]
fn root_power_cut_while_an_orphan_file_is_processed() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let args = ["-b", "1024", "-J", "size=1", "-O", "orphan_file", "-N", "2000"];
    let made = VolumeBuilder::new(16 << 20).args(args).build();
    let mounted = KernelMount::image(made.path(), LoopOptions::default(), "");
    std::fs::create_dir(mounted.path().join("d")).unwrap();
    let open: Vec<_> = (0..300_u64)
        .map(|number| {
            let path = mounted.path().join(format!("file-{number}"));
            let file = std::fs::File::create(&path).unwrap();
            for part in 0..number % 7 {
                file.write_all_at(&patterned(number, part * 4096, 1000), part * 4096).unwrap();
            }
            if number % 10 > 0 {
                std::fs::remove_file(&path).unwrap();
            }
            file
        })
        .collect();
    oracle::sync(mounted.path());
    let dirty = Image::load(made.path());
    drop(open);
    mounted.unmount();
    let mut ledger = Ledger::default();
    for number in (0..300_u64).step_by(10) {
        let mut bytes = Vec::new();
        for part in 0..number % 7 {
            bytes.resize(part as usize * 4096, 0);
            bytes.extend_from_slice(&patterned(number, part * 4096, 1000));
        }
        let path = format!("/file-{number}");
        ledger.add(&Mark::Begun { path: path.clone(), bytes: Some(Arc::new(bytes)), moves: false });
        ledger.add(&Mark::Durable { path, range: 0..u64::MAX });
    }
    recover(&dirty, &ledger, &Options::new("orphan_file", 1).at_most(STATES));
}

/// Tests the ledger that all scenarios rely on.
#[test]
fn a_ledger_tells_what_may_be_there() {
    let begun = |bytes: Option<&[u8]>| {
        let bytes = bytes.map(|bytes| Arc::new(bytes.to_vec()));
        Mark::Begun { path: "/f".into(), bytes, moves: false }
    };
    let durable = |range| Mark::Durable { path: "/f".into(), range };
    let ok = |ledger: &Ledger, found: Option<&[u8]>| ledger.check_file("/f", found).is_ok();
    let of = |marks: &[Mark]| Ledger::new(marks.iter(), false);
    let first = [begun(Some(b"aaaa"))];
    let maybe = of(&first);
    assert!(ok(&maybe, None) && ok(&maybe, Some(b"aaaa")) && !ok(&maybe, Some(b"aaa")));
    let marks = [&first[..], &[durable(0..u64::MAX), begun(Some(b"abba")), begun(Some(b"abbacc"))]].concat();
    let all = of(&marks);
    for right in [&b"aaaa"[..], b"abaa", b"abbac", b"aaaacc"] {
        assert!(ok(&all, Some(right)), "{right:?}");
    }
    for wrong in [&b"aaa"[..], b"abbaccc", b"a\0aa", b"acaa", b"aaaa\0c", &[GARBAGE; 4]] {
        assert!(!ok(&all, Some(wrong)), "{wrong:?}");
    }
    assert!(!ok(&all, None));
    let part = of(&[&marks[..], &[durable(4..6)]].concat());
    assert!(ok(&part, Some(b"aaaacc")) && !ok(&part, Some(b"aaaac")) && !ok(&part, Some(b"aaaaac")));
    let gone = [&marks[..], &[begun(None)]].concat();
    assert!(ok(&of(&gone), None) && ok(&of(&gone), Some(b"aaaa")));
    let named = [&gone[..], &[Mark::Named { path: "/f".into() }]].concat();
    assert!(ok(&of(&named), None) && !ok(&of(&named), Some(b"aaaa")));
}

/// A name leads to one file or the other, never to a mixture.
#[test]
fn a_ledger_keeps_a_replaced_file_apart() {
    let path = || String::from("/f");
    let begun =
        |bytes: &[u8]| Mark::Begun { path: path(), bytes: Some(Arc::new(bytes.to_vec())), moves: false };
    let replaced = |bytes: &[u8]| Mark::Replaced { path: path(), bytes: Arc::new(bytes.to_vec()) };
    let durable = || Mark::Durable { path: path(), range: 0..u64::MAX };
    let ok = |marks: &[Mark], found: Option<&[u8]>| {
        Ledger::new(marks.iter(), false).check_file("/f", found).is_ok()
    };
    let mut marks = vec![begun(b"aaaa"), durable(), replaced(b"bbbb"), begun(b"bbbbcc")];
    for right in [&b"aaaa"[..], b"bbbb", b"bbbbc", b"bbbbcc"] {
        assert!(ok(&marks, Some(right)), "{right:?}");
    }
    for wrong in [&b""[..], b"aabb", b"bb", b"aaaacc", b"\0\0\0\0", &[GARBAGE; 4]] {
        assert!(!ok(&marks, Some(wrong)), "{wrong:?}");
    }
    assert!(!ok(&marks, None));
    marks.push(Mark::Named { path: path() });
    assert!(ok(&marks, Some(b"bbbb")) && !ok(&marks, Some(b"aaaa")));
    let made = [replaced(b"bb")];
    assert!(ok(&made, None) && ok(&made, Some(b"bb")) && !ok(&made, Some(b"")));
}
