//! Hostile volumes read by two programs: where both uext4 and the `ext4-view` crate see something, they see the same.
//! Either may refuse what the other reads. `debugfs` is asked who is right when they disagree.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::path::Path;
use std::process::Command;

use ext4_view::{Ext4, PathBuf};
use uext4::{FileKind, LogEnd, OpenOptions, Volume, VolumeOptions};
use uext4_hostile::images::{self, NAMES};
use uext4_hostile::patch;
use uext4_testkit::mutate::script_of;
use uext4_testkit::{Need, Scratch, needs, oracle};

/// Seeds for each base image.
const SEEDS: u64 = 40;
/// Not compared: `ext4-view` 1.0.0 takes a revoke off the copies of its own transaction only, so it replays what
/// an earlier one wrote. (e2fsck and we leave those out; `crates/ext4/tests/recovery_layouts.rs` holds us against it.)
const LEFT_OUT: &str = "dirty-revoke";
/// Compared of one file, bytes, at its start.
const SOME: usize = 100_000;
/// Names looked at on one volume: a damaged directory may name its parent again and again.
const NAMES_MOST: usize = 400;

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    images: u64,
    damaged_logs: u64,
    other_revokes: u64,
    opened_by_both: u64,
    directories: u64,
    files: u64,
    links: u64,
    only_ours: u64,
    only_theirs: u64,
}

struct Comparison<'a> {
    ours: Volume,
    theirs: Ext4,
    tally: &'a mut Tally,
    disagreements: Vec<(std::path::PathBuf, String)>,
}

impl Comparison<'_> {
    /// The values, if both have one.
    fn both<A, B, E, F>(&mut self, ours: Result<A, E>, theirs: Result<B, F>) -> Option<(A, B)> {
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => return Some((ours, theirs)),
            (Ok(_), Err(_)) => self.tally.only_ours += 1,
            (Err(_), Ok(_)) => self.tally.only_theirs += 1,
            (Err(_), Err(_)) => {}
        }
        None
    }

    fn disagree(&mut self, path: &PathBuf, what: String) {
        self.disagreements.push((native(path).to_owned(), what));
    }

    fn run(&mut self) {
        let mut pending = vec![PathBuf::new("/")];
        let mut fuel = NAMES_MOST;
        while let Some(path) = pending.pop() {
            if fuel == 0 {
                return;
            }
            fuel -= 1;
            let ours = self.ours.symlink_metadata(native(&path));
            let theirs = self.theirs.symlink_metadata(&path);
            let Some((ours, theirs)) = self.both(ours, theirs) else { continue };
            // The upper half of a size counts for regular files, and for directories with `large_dir` (the kernel's
            // `ext4_isize`); they always take it.
            let bits = if ours.kind == FileKind::Regular { u64::MAX } else { u64::from(u32::MAX) };
            let seen = (ours.size & bits, ours.mode & 0o7777, ours.uid, ours.gid);
            let other = (theirs.len() & bits, u32::from(theirs.mode()) & 0o7777, theirs.uid(), theirs.gid());
            if seen != other {
                self.disagree(&path, format!("size, mode, owner, group: {seen:?}, they {other:?}"));
            }
            match ours.kind {
                FileKind::Directory => self.list(&path, &mut pending),
                FileKind::Regular => self.read(&path),
                FileKind::Symlink => self.link(&path),
                _ => {}
            }
        }
    }

    fn list(&mut self, path: &PathBuf, pending: &mut Vec<PathBuf>) {
        let limit = 3000;
        let ours = self.ours.read_dir(native(path)).and_then(|entries| {
            entries.take(limit).map(|entry| Ok(entry?.name)).collect::<uext4::Result<BTreeSet<_>>>()
        });
        let theirs = self.theirs.read_dir(path).and_then(|entries| {
            let name = |entry: ext4_view::DirEntry| entry.file_name().as_ref().to_vec();
            entries.take(limit).map(|entry| Ok(name(entry?))).collect::<Result<BTreeSet<_>, _>>()
        });
        let Some((ours, theirs)) = self.both(ours, theirs) else { return };
        self.tally.directories += 1;
        if ours != theirs {
            let difference: Vec<_> = ours.symmetric_difference(&theirs).map(|name| text(name)).collect();
            self.disagree(path, format!("only one of us lists {difference:?}"));
        }
        for name in ours.intersection(&theirs).filter(|name| name[..] != *b"." && name[..] != *b"..") {
            pending.push(path.join(name));
        }
    }

    fn read(&mut self, path: &PathBuf) {
        let ours = self.ours.open_file(native(path), OpenOptions::new().read(true)).and_then(|file| {
            let mut bytes = vec![0; SOME.min(file.size() as usize)];
            let read = file.read_any_at(&mut bytes, 0)?;
            bytes.truncate(read);
            Ok(bytes)
        });
        let theirs = self.theirs.open(path).and_then(|mut file| {
            let mut bytes = Vec::new();
            let mut part = [0; 4096];
            while bytes.len() < SOME {
                let room = part.len().min(SOME - bytes.len());
                match file.read_bytes(&mut part[..room])? {
                    0 => break,
                    read => bytes.extend_from_slice(&part[..read]),
                }
            }
            Ok(bytes)
        });
        let Some((ours, theirs)) = self.both(ours, theirs) else { return };
        self.tally.files += 1;
        if ours != theirs {
            let at = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
            self.disagree(path, format!("{} and {} bytes, differ at {at:?}", ours.len(), theirs.len()));
        }
    }

    fn link(&mut self, path: &PathBuf) {
        let ours = self.ours.read_link(native(path));
        let theirs = self.theirs.read_link(path).map(|target| AsRef::<[u8]>::as_ref(&target).to_vec());
        let Some((ours, theirs)) = self.both(ours, theirs) else { return };
        self.tally.links += 1;
        if ours != theirs {
            self.disagree(path, format!("leads to {}, they {}", text(&ours), text(&theirs)));
        }
    }
}

fn native(path: &PathBuf) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(path.as_ref()))
}

fn text(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

/// Disagreements about one image.
fn compare(image: &[u8], tally: &mut Tally) -> Vec<(std::path::PathBuf, String)> {
    tally.images += 1;
    // First: what we refuse may make them allocate memory for groups by the million, and abort.
    let Ok(ours) = Volume::open_device(images::device(image), VolumeOptions::read_only()) else {
        return Vec::new();
    };
    let theirs = unless_they_panic(|| Ext4::load(Box::new(image.to_vec())).ok());
    let Some(Some(theirs)) = theirs else { return Vec::new() };
    // Where a log stops counting is policy when it is damaged: we leave the whole transaction out, `ext4-view` and
    // e2fsck a block of it, the kernel does not mount at all.
    let report = ours.info().recovery.log;
    if report.is_some_and(|report| matches!(report.ended, LogEnd::Damaged(_))) {
        tally.damaged_logs += 1;
        return Vec::new();
    }
    tally.opened_by_both += 1;
    let mut comparison = Comparison { ours, theirs, tally, disagreements: Vec::new() };
    let _their_panic = unless_they_panic(|| comparison.run());
    comparison.disagreements
}

thread_local! {
    /// The source file of the last panic.
    static PANICKED_IN: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The oracle has bugs of its own; its panics are no concern of ours. All others are.
fn unless_they_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    PANICKED_IN.set(String::new());
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|panic| {
            let theirs = PANICKED_IN.with_borrow(|file| file.contains("/ext4-view-"));
            if !theirs {
                resume_unwind(panic);
            }
        })
        .ok()
}

fn note_where_panics_come_from() {
    let report = take_hook();
    set_hook(Box::new(move |info| {
        let file = info.location().map(|location| location.file().to_owned()).unwrap_or_default();
        if !file.contains("/ext4-view-") {
            report(info);
        }
        PANICKED_IN.set(file);
    }));
}

#[test]
fn only_their_panics_are_passed_over() {
    note_where_panics_come_from();
    let ours = catch_unwind(|| unless_they_panic(|| panic!("on purpose")));
    assert!(ours.is_err());
}

/// What debugfs says about a path, for whoever decides.
fn third_opinion(image: &[u8], path: &Path) -> String {
    let scratch = Scratch::new(image.len() as u64);
    let file = scratch.file("image");
    std::fs::write(&file, image).unwrap();
    let request = format!("stat \"{}\"", path.display());
    let mut command: Command = oracle::command("debugfs");
    let output = command.args(["-c", "-R", &request]).arg(&file).output().unwrap();
    oracle::text(&output).lines().take(30).fold(String::new(), |all, line| all + "\n    " + line)
}

#[test]
fn two_readers_agree_about_hostile_volumes() {
    note_where_panics_come_from();
    needs!(Need::Tool("zstd"), Need::Tool("debugfs"));
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (first, seeds) =
        (number("UEXT4_FUZZ_FIRST").unwrap_or(0), number("UEXT4_FUZZ_SEEDS").unwrap_or(SEEDS));
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    for (index, name) in NAMES.into_iter().enumerate().filter(|&(_, name)| name != LEFT_OUT) {
        let base = images::base(index);
        assert_eq!(compare(&base.image, &mut tally), [], "{name}, sound");
        for seed in first..first + seeds {
            let mutated = base.mutate(&script_of(seed));
            // The same bug of theirs: of the sound volumes it spoils only the one that is left out.
            if mutated.edits.iter().any(|edit| edit.starts_with("JournalRevoke")) {
                tally.other_revokes += 1;
                continue;
            }
            for (path, what) in compare(&mutated.image, &mut tally) {
                let opinion = third_opinion(&mutated.image, &path);
                let patch = patch::describe(index, &mutated.image, &mutated.edits);
                failures.push(format!("{name}, seed {seed}: {}: {what}{opinion}\n{patch}", path.display()));
            }
        }
    }
    println!("compared: {tally:?}");
    assert!(tally.opened_by_both > tally.images / 4, "what is refused is not compared");
    assert!(failures.is_empty(), "{} disagreements\n{}", failures.len(), failures.join("\n"));
}
