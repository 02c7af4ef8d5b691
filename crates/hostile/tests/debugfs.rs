//! Hostile volumes read by uext4 and by `debugfs`: where both see something, they see the same. Either may refuse what
//! the other reads. `debugfs` does not replay logs, so volumes whose log holds something are left to `differential.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use uext4::{FileKind, Ino, InodeFlags, OpenOptions, RecoveryState, Volume, VolumeOptions};
use uext4_hostile::images::{self, NAMES};
use uext4_hostile::patch;
use uext4_testkit::mutate::script_of;
use uext4_testkit::requirement::tool;
use uext4_testkit::{Need, Scratch, needs, oracle};

/// Seeds for each base image.
const SEEDS: u64 = 12;
/// Longest file that is compared, bytes: `debugfs` writes out holes too.
const LONGEST: u64 = 200_000;
/// Longest target of a link that may be kept in the inode, where `dump` does not look.
const FAST_LINK: usize = 60;
/// Inodes looked at on one volume.
const INODES_MOST: usize = 120;

/// What was compared.
#[derive(Debug, Default)]
struct Tally {
    images: u64,
    opened: u64,
    directories: u64,
    files: u64,
    refused_by_them: u64,
}

/// What an inode holds: bytes of a file or a link, or the inodes that a directory names.
#[derive(Debug, PartialEq)]
enum Held {
    Bytes(Vec<u8>),
    /// Of what lies inside an inode `dump` writes all the room there is.
    Inline(Vec<u8>),
    Names(BTreeSet<(u32, Vec<u8>)>),
}

impl Held {
    fn agrees(&self, theirs: &Held) -> bool {
        match (self, theirs) {
            (Held::Inline(ours), Held::Bytes(theirs)) => theirs.starts_with(ours),
            _ => self == theirs,
        }
    }
}

/// What we read of a volume, by inode; what we refuse is not in it.
fn ours(volume: &Volume) -> BTreeMap<u32, Held> {
    let (mut found, mut seen) = (BTreeMap::new(), BTreeSet::new());
    let mut pending = vec![(PathBuf::from("/"), Ino::ROOT)];
    while let Some((path, ino)) = pending.pop() {
        if !seen.insert(ino) || seen.len() > INODES_MOST {
            continue;
        }
        let Ok(metadata) = volume.symlink_metadata(&path) else { continue };
        let held = match metadata.kind {
            FileKind::Directory => names(volume, &path, &mut pending).map(Some),
            FileKind::Regular if metadata.size <= LONGEST => {
                let inline = metadata.flags.contains(InodeFlags::INLINE_DATA);
                contents(volume, &path).map(if inline { Held::Inline } else { Held::Bytes }).map(Some)
            }
            FileKind::Symlink => volume.read_link(&path).map(slow),
            _ => Ok(None),
        };
        if let Ok(Some(held)) = held {
            found.insert(ino.get(), held);
        }
    }
    found
}

fn names(volume: &Volume, path: &Path, pending: &mut Vec<(PathBuf, Ino)>) -> uext4::Result<Held> {
    use std::os::unix::ffi::OsStrExt;
    let mut all = BTreeSet::new();
    for entry in volume.read_dir(path)?.take(3000) {
        let entry = entry?;
        if entry.name != b"." && entry.name != b".." {
            pending.push((path.join(std::ffi::OsStr::from_bytes(&entry.name)), entry.ino));
        }
        all.insert((entry.ino.get(), entry.name));
    }
    Ok(Held::Names(all))
}

fn contents(volume: &Volume, path: &Path) -> uext4::Result<Vec<u8>> {
    let file = volume.open_file(path, OpenOptions::new().read(true))?;
    let mut bytes = vec![0; file.size() as usize];
    let read = file.read_any_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

fn slow(target: Vec<u8>) -> Option<Held> {
    (target.len() >= FAST_LINK).then_some(Held::Bytes(target))
}

/// One volume, for `debugfs`.
struct Theirs<'a> {
    image: &'a Path,
    scratch: &'a Scratch,
}

impl Theirs<'_> {
    /// What it says of these inodes, and whether it complained of anything.
    fn ask<'i>(&self, inodes: impl Iterator<Item = (&'i u32, &'i Held)>) -> (BTreeMap<u32, Held>, bool) {
        let (mut requests, mut dumps) = (String::new(), Vec::new());
        for (ino, held) in inodes {
            match held {
                Held::Names(_) => writeln!(requests, "ls -p <{ino}>").unwrap(),
                Held::Bytes(_) | Held::Inline(_) => {
                    let file = self.scratch.file(format!("dump-{ino}"));
                    writeln!(requests, "dump <{ino}> {}", file.display()).unwrap();
                    dumps.push((*ino, file));
                }
            }
        }
        let script = self.scratch.file("requests");
        std::fs::write(&script, requests).unwrap();
        // On a damaged volume it may not end.
        let mut command = oracle::command("timeout");
        command.arg("20").arg(tool("debugfs").unwrap()).args(["-c", "-f"]).arg(&script).arg(self.image);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let complaint = said.lines().any(|line| !line.is_empty() && !line.starts_with("debugfs 1."));
        let mut found = lists(&output.stdout);
        for (ino, file) in dumps {
            if let Ok(bytes) = std::fs::read(&file) {
                found.insert(ino, Held::Bytes(bytes));
                std::fs::remove_file(&file).unwrap();
            }
        }
        (found, complaint || !output.status.success())
    }
}

/// Answers to `ls -p`: `/INODE/MODE/OWNER/GROUP/NAME/SIZE/` in each line, behind an echo of the request.
fn lists(answer: &[u8]) -> BTreeMap<u32, Held> {
    let (mut found, mut current) = (BTreeMap::<u32, BTreeSet<_>>::new(), 0);
    for line in answer.split(|byte| *byte == b'\n') {
        let echo = std::str::from_utf8(line).ok().and_then(|line| line.strip_prefix("debugfs: ls -p <"));
        if let Some(ino) = echo.and_then(|rest| rest.trim_end().strip_suffix('>')) {
            current = ino.parse().unwrap();
            found.insert(current, BTreeSet::new());
            continue;
        }
        let fields: Vec<_> = line.split(|byte| *byte == b'/').collect();
        if let ([b"", ino, _, _, _, name, _, b""], Some(names)) = (&fields[..], found.get_mut(&current)) {
            // It lists unused space of whole blocks too: inode 0.
            let ino = std::str::from_utf8(ino).unwrap().parse().unwrap();
            if ino != 0 {
                names.insert((ino, name.to_vec()));
            }
        }
    }
    found.into_iter().map(|(ino, names)| (ino, Held::Names(names))).collect()
}

/// What we and `debugfs` both read of one image and see differently.
fn compare(image: &[u8], tally: &mut Tally) -> Vec<String> {
    tally.images += 1;
    let Ok(volume) = Volume::open_device(images::device(image), VolumeOptions::read_only()) else {
        return Vec::new();
    };
    let state = volume.info().recovery.state;
    if !matches!(state, RecoveryState::Clean | RecoveryState::EmptyLog | RecoveryState::Ignored) {
        return Vec::new();
    }
    let ours = ours(&volume);
    let scratch = Scratch::new(2 * image.len() as u64);
    let file = scratch.file("image");
    std::fs::write(&file, image).unwrap();
    let theirs = Theirs { image: &file, scratch: &scratch };
    let (all, _) = theirs.ask(ours.iter());
    tally.opened += u64::from(!all.is_empty());
    let mut disagreements = Vec::new();
    for (ino, held) in &ours {
        if all.get(ino).is_some_and(|theirs| held.agrees(theirs)) {
            match held {
                Held::Names(_) => tally.directories += 1,
                Held::Bytes(_) | Held::Inline(_) => tally.files += 1,
            }
            continue;
        }
        // Its complaints name no inode: of this one alone.
        match theirs.ask([(ino, held)].into_iter()) {
            (mut one, false) => disagreements.push(difference(*ino, held, one.remove(ino))),
            _ => tally.refused_by_them += 1,
        }
    }
    disagreements
}

fn difference(ino: u32, ours: &Held, theirs: Option<Held>) -> String {
    match (ours, theirs) {
        (Held::Bytes(ours) | Held::Inline(ours), Some(Held::Bytes(theirs))) => {
            let at = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
            format!("inode {ino}: {} bytes, they {}, differ at {at:?}", ours.len(), theirs.len())
        }
        (Held::Names(ours), Some(Held::Names(theirs))) => {
            let some: Vec<_> = ours.symmetric_difference(&theirs).take(5).collect();
            format!("inode {ino}: {} names, they {}: {some:?}", ours.len(), theirs.len())
        }
        (_, theirs) => format!("inode {ino}: they have {theirs:?}"),
    }
}

#[test]
fn debugfs_sees_what_we_see_of_hostile_volumes() {
    needs!(Need::Tool("zstd"), Need::Tool("debugfs"), Need::Tool("timeout"));
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (first, seeds) =
        (number("UEXT4_FUZZ_FIRST").unwrap_or(0), number("UEXT4_DEBUGFS_SEEDS").unwrap_or(SEEDS));
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    for (index, name) in NAMES.into_iter().enumerate() {
        let base = images::base(index);
        assert_eq!(compare(&base.image, &mut tally), [""; 0], "{name}, sound");
        for seed in first..first + seeds {
            let mutated = base.mutate(&script_of(seed));
            for what in compare(&mutated.image, &mut tally) {
                let patch = patch::describe(index, &mutated.image, &mutated.edits);
                failures.push(format!("{name}, seed {seed}: {what}\n{patch}"));
            }
        }
    }
    println!("compared: {tally:?}");
    assert!(tally.opened > tally.images / 3, "what is refused is not compared");
    assert!(failures.is_empty(), "{} disagreements\n{}", failures.len(), failures.join("\n"));
}
