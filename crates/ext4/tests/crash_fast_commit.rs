//! Power cuts among fast commits and full ones: the scenarios of `crash_named.rs` on volumes with an area for fast
//! commits. In every state, recovered by us, by e2fsck and (a sample) by the kernel, the volume is sound, acknowledged
//! data is there, and files contain nothing but their own data.

use crate::common;
use crate::crash_named::{STATES, Scenario, layouts, ledger, plays};

use common::log::places;
use common::{Image, open_rw, patterned, read_all, read_only, read_write};
use layouts::{FAST, FAST_LARGE};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use uext4::{Commits, Volume, WriteFlags};
use uext4_ondisk::jbd2::{FastCommitRecord, FastCommitRecords, JournalSuperblock};
use uext4_testkit::crash::{Options, Report, State, assert_states};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashOptions};
use uext4_testkit::{KernelMount, LoopOptions, Need, Rng, Scratch, needs, oracle};

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
    let check = |state: &State<'_>, volume: &Volume| ledger(&scene, state.marks()).check(volume);
    let (report, confusing) = judged(&handle, &options.at_most(states), judge, each, check);
    let commits = scene.volume.commits();
    println!("{}: {report}, {commits:?}, {confusing} that e2fsck cannot read", scenario.name);
    (report, commits, confusing)
}

/// Passes states to `check`: recovered by us, and of one in `each` what the judge makes of it.
fn judged(
    handle: &CrashHandle,
    options: &Options,
    judge: Judge,
    each: usize,
    check: impl Fn(&State<'_>, &Volume) -> Result<(), String>,
) -> (Report, usize) {
    let log = handle.log().unwrap();
    let scratch = Scratch::new(2 * log.base.len() as u64);
    let path = scratch.file("state.img");
    let (mut shown, mut confusing) = (0, 0);
    let report = assert_states(&log, options, |state| {
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
    (report, confusing)
}

/// With some contents a scenario needs full commits only.
fn other_seed() -> bool {
    std::env::var_os("UEXT4_CRASH_SEED").is_some()
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
                assert!(report.images > 20 || other_seed(), "{report}");
                assert!(commits.fast > 0 || other_seed(), "{commits:?}");
                assert!(confusing < STATES / 8, "{confusing}");
            })*
        }
    };
}

plays! {
    create: FAST nothing create;
    create_large: FAST_LARGE nothing create;
    create_flushed: FAST nothing create;
    recreate: FAST nothing recreate;
    recreate_large: FAST_LARGE nothing recreate;
    together: FAST two_files together;
    reuse: FAST nothing revoke_and_reuse;
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
    run_names(Judge::Kernel, 6, 120);
}

/// Files by name.
type Tree = BTreeMap<String, Vec<u8>>;

/// What a test says of its tree.
enum Said {
    /// It is about to be this.
    Next(Arc<Tree>),
    /// The latest one is durable.
    Durable,
}

/// Files in `/d` that get names, lose them and grow.
struct Names {
    volume: Volume,
    handle: CrashHandle,
    rng: Rng,
    /// The names of each file, and its contents.
    files: Vec<(Vec<String>, Vec<u8>)>,
    made: u64,
}

impl Names {
    fn fresh(&mut self) -> String {
        self.made += 1;
        format!("/d/{}{}", "n".repeat(self.rng.below(9) as usize), self.made)
    }

    fn say(&self) {
        let names = self.files.iter().flat_map(|(names, bytes)| names.iter().map(move |name| (name, bytes)));
        let tree = names.map(|(name, bytes)| (name.clone(), bytes.clone())).collect();
        self.handle.mark(Said::Next(Arc::new(tree)));
    }

    fn grow(&mut self, file: usize) {
        let before = self.files[file].1.len();
        let length = 1 + self.rng.below(3000) as usize;
        self.files[file].1.extend_from_slice(&patterned(self.made, before as u64, length)[..length]);
        self.say();
        let (names, bytes) = &self.files[file];
        let opened = self.volume.open_file(&names[0], read_write()).unwrap();
        opened.write_any_at(&bytes[before..], before as u64, WriteFlags::empty()).unwrap();
    }

    /// A step. Nothing loses its last name: that is committed in full.
    fn step(&mut self) {
        let file = self.rng.below(self.files.len() as u64) as usize;
        let which = self.rng.below(self.files[file].0.len() as u64) as usize;
        let old = self.files[file].0[which].clone();
        match self.rng.below(7) {
            0 | 1 => {
                let name = self.fresh();
                self.files.push((vec![name.clone()], Vec::new()));
                self.say();
                drop(self.volume.open_file(&name, read_write().create_new(true)).unwrap());
                self.grow(self.files.len() - 1);
            }
            2 => {
                let name = self.fresh();
                self.files[file].0.push(name.clone());
                self.say();
                self.volume.hard_link(&old, &name).unwrap();
            }
            3 => {
                let name = self.fresh();
                self.files[file].0[which] = name.clone();
                self.say();
                self.volume.rename(&old, &name).unwrap();
            }
            4 if self.files[file].0.len() > 1 => {
                self.files[file].0.remove(which);
                self.say();
                self.volume.remove_file(&old).unwrap();
            }
            5 => self.grow(file),
            _ => {
                self.volume.open_file(&old, read_only()).unwrap().sync_all().unwrap();
                // A file that was not changed since a commit says nothing of the others.
                if self.volume.commits().fast > 0 {
                    self.grow(file);
                    self.volume.open_file(&old, read_only()).unwrap().sync_data().unwrap();
                    self.handle.mark(Said::Durable);
                }
            }
        }
    }
}

/// Checks that a volume holds one of the trees since the last one that is durable.
fn check_names(state: &State<'_>, volume: &Volume) -> Result<(), String> {
    let mut trees: Vec<Arc<Tree>> = vec![Arc::default()];
    for said in state.marks::<Said>() {
        match said {
            Said::Next(tree) => trees.push(tree.clone()),
            Said::Durable => drop(trees.drain(..trees.len() - 1)),
        }
    }
    let mut found = Tree::new();
    for entry in volume.read_dir("/d").map_err(|error| error.to_string())? {
        let name = String::from_utf8(entry.map_err(|error| error.to_string())?.name).unwrap();
        if name != "." && name != ".." {
            let path = format!("/d/{name}");
            let file = volume.open_file(&path, read_only()).map_err(|error| error.to_string())?;
            found.insert(path, read_all(&file));
        }
    }
    match trees.iter().any(|tree| **tree == found) {
        true => Ok(()),
        false => Err(format!("{} files, as in none of {} trees", found.len(), trees.len())),
    }
}

fn run_names(judge: Judge, each: usize, states: usize) {
    for layout in [FAST, FAST_LARGE] {
        let device = layout.image().device();
        let crash = CrashDevice::new(device, CrashOptions::default()).unwrap();
        let handle = crash.handle();
        let volume = open_rw(Arc::new(crash));
        let mut names = Names { volume, handle, rng: Rng::new(7), files: Vec::new(), made: 0 };
        let first = names.fresh();
        names.files.push((vec![first.clone()], Vec::new()));
        names.say();
        drop(names.volume.open_file(&first, read_write().create_new(true)).unwrap());
        names.volume.sync_all().unwrap();
        names.handle.mark(Said::Durable);
        (0..70).for_each(|_| names.step());
        let options = Options::new("fast_names", 1).at_most(states);
        let (report, confusing) = judged(&names.handle, &options, judge, each, check_names);
        let commits = names.volume.commits();
        println!("names: {report}, {commits:?}, {confusing} that e2fsck cannot read");
        assert!(commits.fast > 5 && report.images > 20 || other_seed(), "{commits:?}");
    }
}

#[test]
fn power_cuts_among_names_leave_one_of_the_trees() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    run_names(Judge::E2fsck, EACH, STATES);
}
