//! Power cuts among fast commits and full ones: the scenarios of `crash_named.rs` on volumes with an area for fast
//! commits. In every state, recovered by us, by e2fsck and (a sample) by the kernel, the volume is sound, acknowledged
//! data is there, and files contain nothing but their own data.

use crate::common;
use crate::crash_named::{STATES, Scenario, layouts, ledger, plays};

use common::log::places;
use common::{Image, open_rw};
use layouts::{FAST, FAST_LARGE};
use std::path::Path;
use uext4::{Commits, Volume};
use uext4_ondisk::jbd2::{FastCommitRecord, FastCommitRecords, JournalSuperblock};
use uext4_testkit::crash::{Report, State, assert_states};
use uext4_testkit::{KernelMount, LoopOptions, Need, Scratch, needs, oracle};

/// One in this many states is recovered by e2fsck too.
const EACH: usize = 16;

/// Who recovers the states, beside us.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judge {
    E2fsck,
    Kernel,
}

/// The tag that the first fast commit begins with.
fn head(image: &Image) -> Option<u32> {
    let log = places(image);
    let size = 1024usize << image.bytes[1048];
    let block = |place: u64| &image.bytes[place as usize * size..][..size];
    let superblock = JournalSuperblock::decode(block(log[0])).unwrap();
    let area = block(log[superblock.log_end() as usize + 1]);
    match FastCommitRecords::new(area).next()?.ok()?.record {
        FastCommitRecord::Head { sequence, .. } => Some(sequence),
        _ => None,
    }
}

/// Between the end of a full commit and the erasure of the fast commits before it, which e2fsck 1.47.0 takes for an
/// error: it replays nothing at all then.
fn confuses_e2fsck(image: &Image, volume: &Volume) -> bool {
    let end = volume.info().recovery.log.map(|log| log.end.sequence());
    end.is_some_and(|end| head(image).is_some_and(|head| head != end))
}

/// Recovers a state as somebody else does.
fn recover(judge: Judge, path: &Path) -> Result<(), String> {
    if judge == Judge::Kernel {
        KernelMount::image(path, LoopOptions::default(), "").unmount();
    }
    let repaired = oracle::e2fsck(path, &["-fy"]);
    if repaired.status > 1 {
        return Err(format!("e2fsck: {repaired:?}"));
    }
    oracle::e2fsck_clean(path);
    Ok(())
}

/// Plays a scenario and checks the states. Returns what was shown, the commits, and how many states e2fsck cannot read.
fn run(scenario: &Scenario, judge: Judge, each: usize, states: usize) -> (Report, Commits, usize) {
    let (scene, handle, options) = scenario.play();
    let options = options.at_most(states);
    let commits = scene.volume.commits();
    let log = handle.log().unwrap();
    let scratch = Scratch::new(2 * log.base.len() as u64);
    let path = scratch.file("state.img");
    let (mut shown, mut confusing) = (0, 0);
    let check = |state: &State<'_>, volume: &Volume| ledger(&scene, state.marks()).check(volume);
    let report = assert_states(&log, &options, |state| {
        shown += 1;
        let device = state.device();
        let volume = open_rw(device.clone());
        check(state, &volume)?;
        let image = Image { bytes: state.image().bytes() };
        let confuses = confuses_e2fsck(&image, &volume);
        confusing += usize::from(confuses);
        volume.close().map_err(|error| error.to_string())?;
        if shown % each != 1 {
            return Ok(());
        }
        Image::of(&*device).save(&path);
        oracle::e2fsck_clean(&path);
        if confuses && judge == Judge::E2fsck {
            return Ok(());
        }
        image.save(&path);
        recover(judge, &path)?;
        let volume = open_rw(Image::load(&path).device());
        check(state, &volume).map_err(|wrong| format!("recovered by others: {wrong}"))?;
        volume.close().map_err(|error| error.to_string())
    });
    println!("{}: {report}, {commits:?}, {confusing} that e2fsck cannot read", scenario.name);
    (report, commits, confusing)
}

/// Defines a test for each scenario.
macro_rules! plays {
    ($($name:ident: $layout:ident $before:ident $during:ident;)*) => {
        const PLAYS: &[Scenario] = &[$(Scenario {
            name: concat!("fast_", stringify!($name)),
            layout: $layout,
            anywhere: false,
            before: plays::$before,
            during: plays::$during,
        },)*];

        mod power_cut_in_fast {
            use super::*;
            $(#[test]
            fn $name() {
                needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
                let name = concat!("fast_", stringify!($name));
                let scenario = PLAYS.iter().find(|play| play.name == name).unwrap();
                let (report, commits, confusing) = run(scenario, Judge::E2fsck, EACH, STATES);
                assert!(report.images > 20, "{report}");
                assert!(commits.fast > 0, "{commits:?}");
                assert!(confusing < STATES / 8, "{confusing}");
            })*
        }
    };
}

plays! {
    append: FAST one_file append;
    append_durable: FAST one_file append_durable;
    append_large: FAST_LARGE one_file append_durable;
    append_bytes: FAST_LARGE one_file append_bytes;
    append_flushed: FAST one_file append_durable;
    append_flushed_large: FAST_LARGE one_file append_durable;
    holes: FAST holes fill_holes;
    cut: FAST one_file truncate_down;
    cut_large: FAST_LARGE one_file truncate_down;
    cut_and_grow: FAST one_file truncate_both;
    cut_and_grow_large: FAST_LARGE one_file truncate_both;
    collapse: FAST many_units collapse;
    interleaved: FAST two_files interleaved;
    interleaved_large: FAST_LARGE two_files interleaved;
    interleaved_flushed: FAST two_files interleaved;
    wrap_around: FAST two_files wrap_around;
    no_room: FAST nearly_full no_room;
    threads: FAST nothing threads;
    threads_large: FAST_LARGE nothing threads;
    threads_flushed: FAST nothing threads;
    emptied: FAST two_files emptied;
    emptied_large: FAST_LARGE two_files emptied;
    everything: FAST two_files everything;
    everything_large: FAST_LARGE two_files everything;
    everything_flushed: FAST two_files everything;
}

/// The kernel recovers some states of every scenario.
#[test]
fn root_power_cut_among_fast_commits_is_recovered_by_the_kernel() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for scenario in PLAYS {
        run(scenario, Judge::Kernel, 6, 36);
    }
}
