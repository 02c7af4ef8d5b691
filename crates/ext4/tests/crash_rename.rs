//! Renames under power cuts: in every state, recovered by us and by e2fsck, the tree is that before or after each step,
//! and not older than the last sync.

use crate::common;

use common::crash::{enumerate, garbage_volume};
use common::{Image, open_rw, patterned, read_all, read_only, read_write};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4::{File, FileKind, RenameFlags, Volume};
use uext4_testkit::crash::Options;
use uext4_testkit::device::{CrashDevice, CrashOptions};
use uext4_testkit::{Need, Rng, Scratch, needs};

const SIZE: u64 = 8 << 20;
const STATES: usize = 420;
/// e2fsck checks one in this many states.
const EACH: usize = 12;

/// What happens after a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Nothing,
    /// What was replaced stays open from before the step, until the next one of these.
    Keep,
    Sync,
}

const PLAIN: RenameFlags = RenameFlags::empty();
const EXCHANGE: RenameFlags = RenameFlags::EXCHANGE;
const WHITEOUT: RenameFlags = RenameFlags::WHITEOUT;

/// Of the seed 1; others draw theirs.
const STEPS: [(&str, &str, RenameFlags, Then); 25] = [
    // A file replaces another one: within a directory, and from another one.
    ("/a/new", "/a/file", PLAIN, Then::Nothing),
    ("/b/new", "/a/file", PLAIN, Then::Sync),
    ("/a/big", "/b/file", PLAIN, Then::Keep),
    ("/b/file", "/b/other", PLAIN, Then::Nothing),
    ("/b/other", "/many/17", PLAIN, Then::Sync),
    // A directory moves to another parent, and back under another name.
    ("/a/sub", "/b/sub", PLAIN, Then::Nothing),
    ("/b/sub", "/a/c/d/sub", PLAIN, Then::Sync),
    ("/a/c/d/sub", "/moved", PLAIN, Then::Nothing),
    // It replaces an empty one.
    ("/moved", "/b/empty", PLAIN, Then::Nothing),
    ("/a/c", "/b/c", PLAIN, Then::Keep),
    ("/a/empty", "/b/c/d", PLAIN, Then::Sync),
    // Exchanges: files, directories, one and the other.
    ("/a/file", "/b/empty/inside", EXCHANGE, Then::Nothing),
    ("/b/c", "/a", EXCHANGE, Then::Sync),
    ("/a/d", "/b/c/file", EXCHANGE, Then::Nothing),
    ("/b/c/file", "/many/20", EXCHANGE, Then::Sync),
    ("/many/20", "/many/21", EXCHANGE, Then::Nothing),
    // Whiteouts, with names that split blocks.
    ("/many/22", "/many/LONG-1", WHITEOUT, Then::Nothing),
    ("/many/23", "/b/LONG-2", WHITEOUT, Then::Sync),
    ("/many/24", "/many/25", WHITEOUT, Then::Nothing),
    ("/many/26", "/many/LONG-3", PLAIN, Then::Nothing),
    ("/many/27", "/many/LONG-4", PLAIN, Then::Nothing),
    ("/b/c", "/b/LONG-5", PLAIN, Then::Sync),
    ("/b/LONG-5", "/LONG-6", PLAIN, Then::Nothing),
    ("/many/22", "/many/23", PLAIN, Then::Keep),
    ("/many", "/b/many", PLAIN, Then::Nothing),
];

fn real(path: &str) -> String {
    path.replace("LONG", &"long".repeat(50))
}

fn image(args: &[&str]) -> Image {
    let tree = Scratch::new(4 << 20);
    for directory in ["a/sub", "a/c/d", "a/empty", "b/empty", "many"] {
        std::fs::create_dir_all(tree.file(directory)).unwrap();
    }
    let many: Vec<String> = (0..60).map(|number| format!("many/{number}")).collect();
    let files = ["a/file", "a/new", "a/big", "b/file", "b/new", "b/other", "a/sub/inside"];
    for (number, name) in files.into_iter().chain(many.iter().map(String::as_str)).enumerate() {
        let length = if name == "a/big" { 300_000 } else { 700 * (number % 7) };
        std::fs::write(tree.file(name), &*patterned(number as u64, 0, length)).unwrap();
    }
    garbage_volume(SIZE, tree.path(), &[&["-b", "1024", "-J", "size=1"], args].concat())
}

/// Stands for the contents of one.
const DIRECTORY: &[u8] = b"a directory";

/// Paths and what they lead to.
type Tree = BTreeMap<String, Vec<u8>>;

fn tree(volume: &Volume) -> Result<Tree, uext4::Error> {
    let (mut tree, mut pending) = (Tree::new(), vec![String::new()]);
    while let Some(directory) = pending.pop() {
        for entry in volume.read_dir(format!("{directory}/"))? {
            let name = String::from_utf8(entry?.name).unwrap();
            if [".", "..", "lost+found"].contains(&name.as_str()) {
                continue;
            }
            let path = format!("{directory}/{name}");
            let what = match volume.symlink_metadata(&path)?.kind {
                FileKind::Directory => {
                    pending.push(path.clone());
                    DIRECTORY.to_vec()
                }
                FileKind::Regular => read_all(&volume.open_file(&path, read_only())?),
                kind => format!("{kind:?}").into_bytes(),
            };
            tree.insert(path, what);
        }
    }
    Ok(tree)
}

/// A step: from, to.
type Step = (String, String, RenameFlags, Then);

/// As many steps of a seed, each of which changes this volume's tree.
fn drawn(volume: &Volume, seed: u64) -> Vec<Step> {
    let (mut rng, mut steps, mut before) = (Rng::new(seed), Vec::new(), tree(volume).unwrap());
    while steps.len() < STEPS.len() {
        let paths: Vec<&String> = before.keys().collect();
        let (from, other) = ((*rng.pick(&paths)).clone(), (*rng.pick(&paths)).clone());
        let flags = *rng.pick(&[PLAIN, PLAIN, RenameFlags::NOREPLACE, EXCHANGE, WHITEOUT]);
        let to = match rng.below(3) {
            0 => other,
            _ if flags == EXCHANGE => other,
            _ => {
                let directory = if before[&other] == DIRECTORY { &other } else { parent(&other) };
                format!("{directory}/{}{}", steps.len(), rng.pick(&["", &real("LONG")]))
            }
        };
        if volume.rename_with(&from, &to, flags).is_err() {
            continue;
        }
        let after = tree(volume).unwrap();
        if after != before {
            let then = *rng.pick(&[Then::Nothing, Then::Nothing, Then::Keep, Then::Sync]);
            steps.push((from, to, flags, then));
            before = after;
        }
    }
    steps
}

fn parent(path: &str) -> &str {
    &path[..path.rfind('/').unwrap_or(0)]
}

/// A tree that is about to come, or is durable.
enum Mark {
    Begun(Arc<Tree>),
    Durable,
}

/// Plays the steps. `each` is told of a step's number before it, and of the sync after it.
fn play(volume: &Volume, steps: &[Step], mut each: impl FnMut(usize, bool)) {
    let mut kept: Option<File> = None;
    for (number, (from, to, flags, then)) in steps.iter().enumerate() {
        if *then == Then::Keep {
            kept = volume.open_file(to, read_write()).ok();
        }
        each(number, false);
        volume.rename_with(from, to, *flags).unwrap_or_else(|error| panic!("{from} to {to}: {error}"));
        if *then == Then::Sync {
            volume.sync_all().unwrap();
            each(number, true);
        }
    }
    drop(kept);
}

/// `beside`: another thread commits all the time, so that a commit may come between any two handles.
fn run(name: &str, args: &[&str], fua: bool, beside: bool) {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (image, options) = (image(args), Options::new(name, 1).at_most(STATES));
    let steps: Vec<Step> = match options.seed {
        1 => STEPS.map(|(from, to, flags, then)| (real(from), real(to), flags, then)).into(),
        seed => drawn(&open_rw(image.device()), seed),
    };
    // The trees of a rehearsal.
    let rehearsal = open_rw(image.device());
    let mut trees: Vec<Arc<Tree>> = Vec::new();
    play(&rehearsal, &steps, |_, synced| {
        if !synced {
            trees.push(Arc::new(tree(&rehearsal).unwrap()));
        }
    });
    trees.push(Arc::new(tree(&rehearsal).unwrap()));
    assert!(trees.windows(2).all(|two| two[0] != two[1]), "each step changes something");

    let crash = CrashDevice::new(image.device(), CrashOptions { fua, ..CrashOptions::default() }).unwrap();
    let handle = crash.handle();
    let volume = open_rw(Arc::new(crash));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while beside && !done.load(Ordering::Relaxed) {
                volume.sync_all().unwrap();
                std::thread::yield_now();
            }
        });
        play(&volume, &steps, |number, synced| {
            handle.mark(if synced { Mark::Durable } else { Mark::Begun(trees[number + 1].clone()) });
        });
        done.store(true, Ordering::Relaxed);
    });
    volume.close().unwrap();
    let report = enumerate(&handle, &options, EACH, |state, volume| {
        let mut possible = vec![&trees[0]];
        for mark in state.marks::<Mark>() {
            match mark {
                Mark::Begun(tree) => possible.push(tree),
                Mark::Durable => drop(possible.drain(..possible.len() - 1)),
            }
        }
        let found = tree(volume).map_err(|error| error.to_string())?;
        match possible.iter().any(|tree| ***tree == found) {
            true => Ok(()),
            false => Err(format!("the tree is none of {}: {:?}", possible.len(), found.keys())),
        }
    });
    assert!(options.only.is_some() || report.images > 20, "{report}");
}

#[test]
fn power_cut_in_renames() {
    run("renames", &[], true, false);
}

#[test]
fn power_cut_in_renames_with_flushes() {
    run("renames_flushed", &[], false, false);
}

#[test]
fn power_cut_in_renames_without_hash_trees_and_checksums() {
    run("renames_linear", &["-O", "^dir_index,^metadata_csum,^64bit"], true, false);
}

#[test]
fn power_cut_in_renames_of_inline_directories() {
    run("renames_inline", &["-O", "inline_data"], true, false);
}

#[test]
fn power_cut_in_renames_beside_commits() {
    run("renames_beside", &[], true, true);
}
