//! Processes with several threads that change names and attributes in all ways, each thread among names of its own in
//! directories that all share, and are killed. What a sync acknowledged is there afterwards, recovered by us and by
//! e2fsck, the tree of each thread is one that it was since then, and the next process goes on with it. What the
//! threads did is repeated by their seeds, with the model. `make kill` runs other seeds.

use super::lists::set_flags;
use super::model::{FLAGS, FOLDS, Id, Kind, Model, ROOT, Thing};
use super::{SIZE, Walk, fold_root};
use crate::common::crash::garbage_volume;
use crate::common::{Image, open_rw, read_all, read_only, within};
use crate::kill::{DRAWN, IMAGE, killed, note, number, or_end, recovered_by_both};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use uext4::{Caller, File, FileKind, Ino, InodeFlags, Node, OpenOptions, Volume, VolumeOptions};
use uext4_testkit::{Need, Rng, Scratch, needs};

/// The first letters of the names of each thread.
const LETTERS: [u8; 3] = *b"ABC";
/// Things of a thread.
const MOST: usize = 70;
/// Kills of each layout, unless `UEXT4_KILL_ROUNDS` says how many.
const ROUNDS: u64 = 6;
const LOCKED: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

/// A thread is about to take a step, or all steps up to this one are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    thread: u8,
    durable: bool,
    step: u64,
}

impl Told {
    const LENGTH: usize = 10;

    fn encode(self) -> Vec<u8> {
        [&[self.thread, self.durable.into()][..], &self.step.to_le_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Told {
        let step = u64::from_le_bytes(bytes[2..].try_into().unwrap());
        Told { thread: bytes[0], durable: bytes[1] == 1, step }
    }
}

impl Walk {
    /// The walk of one of several threads, from what is there.
    fn among_others(volume: Volume, letter: u8, seed: u64, args: &[&str]) -> Walk {
        let (model, inodes) = learn(&volume, letter);
        let (device, what) = (volume.device().clone(), format!("{args:?}, thread {letter}, seed {seed}"));
        let inline = args.iter().any(|arg| arg.contains("inline_data"));
        let (volume, rng) = (Some(volume), Rng::new(seed));
        let (letter, drawn) = (Some(letter), Vec::new());
        Walk { rng, model, device, volume, inodes, steps: 0, what, inline, most: MOST, letter, drawn }
    }

    /// A step, or now and then a sync: `true` if it was one. `kept` are open files, which may lose their names.
    fn step_or_sync(&mut self, kept: &mut Vec<File>) -> bool {
        match self.rng.below(30) {
            0 | 1 => {
                self.volume().sync_all().unwrap();
                return true;
            }
            2 => {
                // A sync of a new file commits all before it.
                let node = self.volume().root().unwrap().make_unnamed(0o600, &Caller::root()).unwrap();
                node.open(OpenOptions::new().write(true)).unwrap().sync_all().unwrap();
                return true;
            }
            3 => kept.clear(),
            4 | 5 => {
                if let Some(id) = self.pick(|thing| matches!(thing.kind, Kind::File(_))) {
                    kept.push(self.node(id).open(read_only()).unwrap());
                }
            }
            _ => {}
        }
        self.steps += 1;
        let full = self.model.things.len() > self.most;
        match self.rng.below(24) {
            0..=6 if !full => self.make(),
            0..=7 => self.unlink(),
            8 => self.remove_dir(),
            9..=13 => self.rename(),
            14 => self.link(),
            15 | 16 => self.unnamed(),
            17 => self.attributes(),
            18 | 19 => self.extended(),
            20 | 21 => self.contents(),
            22 => self.flags(),
            _ => self.lists(),
        }
        self.look_up_spellings();
        false
    }
}

/// Everything whose name in the root begins with a letter.
fn learn(volume: &Volume, letter: u8) -> (Model, HashMap<Id, (Ino, u32)>) {
    let root = volume.root().unwrap();
    let (mut things, mut inodes, mut ids) = (HashMap::new(), HashMap::new(), HashMap::new());
    let mut waiting = vec![(ROOT, root)];
    let mut top = Model::new().things.remove(&ROOT).unwrap();
    top.flags = waiting[0].1.attributes().flags & FOLDS;
    things.insert(ROOT, top);
    inodes.insert(ROOT, (waiting[0].1.ino(), waiting[0].1.attributes().generation));
    while let Some((id, node)) = waiting.pop() {
        let all = node.read_dir().unwrap().map(|entry| entry.unwrap().name);
        let wanted = |name: &Vec<u8>| match id {
            ROOT => name[0] == letter,
            _ => name != b"." && name != b"..",
        };
        let mut found = BTreeMap::new();
        for name in all.filter(wanted).collect::<std::collections::BTreeSet<_>>() {
            let below = node.look_up(&name).unwrap();
            let next = things.len() as Id;
            let child = *ids.entry(below.ino()).or_insert(next);
            found.insert(name, child);
            if child == next {
                things.insert(child, thing(&below, id));
                inodes.insert(child, (below.ino(), below.attributes().generation));
                if below.kind() == FileKind::Directory {
                    waiting.push((child, below));
                }
            }
        }
        if let Kind::Directory { names, .. } = &mut things.get_mut(&id).unwrap().kind {
            *names = found;
        }
    }
    (Model::of(things), inodes)
}

fn thing(node: &Node, parent: Id) -> Thing {
    let found = node.attributes();
    let kind = match found.kind {
        FileKind::Directory => Kind::Directory { names: BTreeMap::new(), parent },
        FileKind::Regular => Kind::File(read_all(&node.open(read_only()).unwrap())),
        FileKind::Symlink => Kind::Symlink(node.read_link().unwrap()),
        FileKind::Fifo => Kind::Fifo,
        _ => Kind::Device(found.rdev.0, found.rdev.1),
    };
    let attribute = |name: uext4::Result<uext4::XattrName>| {
        let name = name.unwrap();
        (name.as_bytes().to_vec(), node.xattr(&name).unwrap())
    };
    Thing {
        kind,
        mode: found.mode,
        owner: (found.uid, found.gid),
        modified: Some(found.modified.seconds),
        flags: found.flags & (FLAGS | FOLDS),
        attributes: node.xattrs().map(attribute).collect(),
    }
}

/// The paths of a tree, without its root.
fn paths(model: &Model) -> BTreeMap<Vec<u8>, Id> {
    let (mut paths, mut waiting) = (BTreeMap::new(), vec![(Vec::new(), ROOT)]);
    while let Some((path, id)) = waiting.pop() {
        for (name, child) in model.names(id) {
            let path = [&path[..], b"/", name].concat();
            if model.things[child].is_directory() {
                waiting.push((path.clone(), *child));
            }
            paths.insert(path, *child);
        }
    }
    paths
}

/// Whether they are the same but for contents.
fn are_alike(wanted: &Thing, found: &Thing) -> bool {
    let kinds = match (&wanted.kind, &found.kind) {
        (Kind::Directory { .. }, Kind::Directory { .. }) | (Kind::File(_), Kind::File(_)) => true,
        (wanted, found) => wanted == found,
    };
    // Small inodes hold 32 bits of a time. What the model does not know counts as the same.
    let known = wanted.modified.filter(|_| !wanted.is_directory());
    let times = known.is_none_or(|time| [Some(time), Some(i64::from(i32::MAX))].contains(&found.modified));
    let rest = |thing: &Thing| (thing.mode, thing.owner, thing.flags, thing.attributes.clone());
    kinds && times && rest(wanted) == rest(found)
}

/// Which things of the trees are the same; the trees differ at most in contents.
fn compare(wanted: &Model, found: &Model) -> Result<HashMap<Id, Id>, String> {
    let (wanted_paths, found_paths) = (paths(wanted), paths(found));
    let mut same = HashMap::new();
    for (path, id) in &wanted_paths {
        let Some(other) = found_paths.get(path) else {
            return Err(format!("{} is gone", path.escape_ascii()));
        };
        let (wanted, found) = (&wanted.things[id], &found.things[other]);
        if !are_alike(wanted, found) || same.insert(*id, *other).is_some_and(|before| before != *other) {
            return Err(format!("{} is {found:?}, not {wanted:?}", path.escape_ascii()));
        }
    }
    if let Some(path) = found_paths.keys().find(|path| !wanted_paths.contains_key(*path)) {
        return Err(format!("{} is there", path.escape_ascii()));
    }
    match same.values().collect::<HashSet<_>>().len() == same.len() {
        true => Ok(same),
        false => Err("names lead to one thing, not to several".into()),
    }
}

/// Whether a file may hold this. Overwrites are not part of a commit, so any state counts for each byte.
fn check_contents(states: &[Model], id: Id, found: &[u8]) -> Result<(), String> {
    let contents = |model: &'_ Model| match model.things.get(&id).map(|thing| thing.kind.clone()) {
        Some(Kind::File(bytes)) => Some(bytes),
        _ => None,
    };
    let versions: Vec<Vec<u8>> = states.iter().filter_map(contents).collect();
    if !versions.iter().any(|bytes| bytes.len() == found.len()) {
        return Err(format!("thing {id} has {} bytes, in none of {} versions", found.len(), versions.len()));
    }
    let was = |at: usize, byte: u8| versions.iter().any(|bytes| *bytes.get(at).unwrap_or(&0) == byte);
    match found.iter().enumerate().find(|(at, byte)| !was(*at, **byte)) {
        None => Ok(()),
        Some((at, byte)) => Err(format!("thing {id} holds {byte:#x} at byte {at}")),
    }
}

/// Whether a tree is that of one of the states since the last sync.
fn judge(states: &[Model], found: &Model) -> Result<(), String> {
    let mut wrong = Vec::new();
    for state in states {
        let same = compare(state, found).and_then(|same| {
            same.into_iter().try_for_each(|(id, other)| match &found.things[&other].kind {
                Kind::File(bytes) => check_contents(states, id, bytes),
                _ => Ok(()),
            })
        });
        match same {
            Ok(()) => return Ok(()),
            Err(what) => wrong.push(what),
        }
    }
    Err(format!("the tree is none of those since the last sync: {wrong:#?}"))
}

/// The work of a child until it is killed.
fn child(image: &Path, args: &[&str]) {
    let drawn: u64 = number(DRAWN).unwrap();
    // Its standard input is the end of a pipe.
    let pipe = Mutex::new(std::fs::OpenOptions::new().write(true).open("/proc/self/fd/0").unwrap());
    let tell = &|told: Told| pipe.lock().unwrap().write_all(&told.encode()).unwrap();
    let volume = Volume::open(image, VolumeOptions::read_write()).unwrap();
    // All learn before one changes anything.
    let walk = |(seed, letter)| Walk::among_others(volume.clone(), letter, seed, args);
    let walks: Vec<Walk> = (drawn..).zip(LETTERS).map(walk).collect();
    std::thread::scope(|scope| {
        for (thread, mut walk) in (0..).zip(walks) {
            scope.spawn(move || {
                or_end(move || {
                    let mut kept = Vec::new();
                    loop {
                        tell(Told { thread, durable: false, step: walk.steps + 1 });
                        if walk.step_or_sync(&mut kept) {
                            tell(Told { thread, durable: true, step: walk.steps });
                        }
                    }
                });
            });
        }
    });
}

/// The trees that a thread made from the last that is durable on, by repeating its steps.
fn states(before: &Image, letter: u8, seed: u64, args: &[&str], last: &[Told]) -> Vec<Model> {
    let durable = last.iter().filter(|told| told.durable).map(|told| told.step).max().unwrap_or(0);
    let begun = last.iter().map(|told| told.step).max().unwrap_or(0);
    let mut walk = Walk::among_others(open_rw(before.device()), letter, seed, args);
    let (mut states, mut kept) = (Vec::new(), Vec::new());
    loop {
        if walk.steps >= durable && states.len() as u64 == walk.steps - durable {
            states.push(walk.model.clone());
        }
        if walk.steps >= begun {
            return states;
        }
        walk.step_or_sync(&mut kept);
    }
}

/// A test, and the work of the processes that it starts.
fn kills(name: &'static str, args: &'static [&'static str]) {
    if let Some(image) = std::env::var_os(IMAGE) {
        return child(Path::new(&image), args);
    }
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let seed = number("UEXT4_KILL_SEED").unwrap_or(1);
    let rounds = number("UEXT4_KILL_ROUNDS").unwrap_or(ROUNDS);
    within(Duration::from_secs(120 + 10 * rounds), move || {
        let scratch = Scratch::new(4 * SIZE);
        let (image, copy) = (scratch.file("volume.img"), scratch.file("copy.img"));
        let empty = Scratch::new(1 << 20);
        garbage_volume(SIZE, empty.path(), &[args, &["-N", "2048"]].concat()).save(&image);
        fold_root(&image, args);
        let mut rng = Rng::new(seed);
        let (mut steps, mut syncs, mut again) = (0, 0, 0);
        for round in 0..rounds {
            let what = format!("{name}, UEXT4_KILL_SEED={seed}, kill {round}");
            let before = Image::load(&image);
            let (drawn, bytes) = killed(&format!("tree_walk::kills::{name}"), &image, &mut rng);
            let told: Vec<Told> = bytes.chunks_exact(Told::LENGTH).map(Told::decode).collect();
            syncs += told.iter().filter(|told| told.durable).count();
            steps += told.len();
            let states = [0, 1, 2].map(|thread| {
                let own: Vec<Told> = told.iter().filter(|told| told.thread == thread).copied().collect();
                states(&before, LETTERS[usize::from(thread)], drawn + u64::from(thread), args, &own)
            });
            let check = |volume: &Volume, by: &str| {
                for (states, letter) in states.iter().zip(LETTERS) {
                    let (found, inodes) = learn(volume, letter);
                    judge(states, &found).unwrap_or_else(|wrong| {
                        panic!("{what}, thread {letter}, recovered by {by}: {wrong}")
                    });
                    // A file may have been locked for a while.
                    for (ino, _) in inodes.into_values() {
                        set_flags(&volume.node(ino, None).unwrap(), LOCKED, InodeFlags::empty()).unwrap();
                    }
                }
            };
            again += u64::from(recovered_by_both(&image, &copy, &what, check));
        }
        println!("{name}: {rounds} kills, {again} logs in use, {steps} steps, {syncs} syncs");
        // If there are few kills, all may come before the work.
        assert!(rounds < 6 || (again > rounds / 4 && syncs as u64 > rounds), "{again} {syncs}");
        note(name, rounds, syncs);
    });
}

#[test]
fn killed_on_small_blocks() {
    kills("killed_on_small_blocks", &["-b", "1024", "-J", "size=1"]);
}

#[test]
fn killed_on_large_blocks() {
    kills("killed_on_large_blocks", &["-b", "4096", "-J", "size=4"]);
}

#[test]
fn killed_without_trees_of_names_and_extents() {
    let args = &["-b", "1024", "-J", "size=1", "-I", "128", "-O", "^dir_index,^extent,^64bit,^metadata_csum"];
    kills("killed_without_trees_of_names_and_extents", args);
}

#[test]
fn killed_inside_inodes() {
    kills("killed_inside_inodes", &["-b", "1024", "-J", "size=1", "-O", "inline_data,large_dir,ea_inode"]);
}

/// e2fsck counts the usage again.
#[test]
fn killed_with_quota() {
    kills(
        "killed_with_quota",
        &["-b", "1024", "-J", "size=1", "-O", "quota,project,orphan_file", "-I", "256"],
    );
}

#[test]
fn killed_on_clusters() {
    kills("killed_on_clusters", &["-b", "1024", "-J", "size=1", "-O", "bigalloc", "-C", "8192"]);
}

#[test]
fn killed_in_either_case() {
    kills("killed_in_either_case", &["-b", "1024", "-J", "size=1", "-O", "casefold"]);
}

#[test]
fn what_is_told_comes_through_the_pipe() {
    let told = Told { thread: 2, durable: true, step: 1 << 40 };
    assert_eq!((Told::decode(&told.encode()), told.encode().len()), (told, Told::LENGTH));
}
