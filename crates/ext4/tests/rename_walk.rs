//! Renames drawn at random: by one thread against a model, and by several across each other's directories.

use crate::common;

use common::{Image, open_rw, read_all, read_only, read_write, within};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uext4::device::MemoryDevice;
use uext4::{FileKind, Ino, Node, RenameFlags, Volume};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, needs, oracle};

/// Arguments of mke2fs, and steps of the walk.
const VOLUMES: [(&[&str], u32); 6] = [
    (&["-b", "1024"], 2500),
    (&["-b", "1024", "-O", "^dir_index,^metadata_csum,^64bit"], 1500),
    (&["-b", "4096", "-O", "inline_data"], 1500),
    (&["-b", "1024", "-O", "bigalloc", "-C", "8192"], 800),
    (&["-b", "1024", "-O", "^has_journal"], 1500),
    (&["-b", "4096", "-O", "^has_journal,inline_data", "-I", "1024"], 800),
];
const DIRECTORIES: usize = 36;
const FILES: usize = 150;
const NAMES: u64 = 45;

/// Long names make hash trees, short ones stay inline.
fn name(number: u64) -> String {
    match number % 3 {
        0 => format!("{number}"),
        1 => format!("{number:030}"),
        _ => format!("{number:0230}"),
    }
}

/// What names lead to, by number of the directory.
struct Model {
    names: BTreeMap<Ino, BTreeMap<String, Ino>>,
    /// Parents of directories.
    parents: BTreeMap<Ino, Ino>,
}

impl Model {
    /// The tree of a volume, as it is read.
    fn of(volume: &Volume) -> Model {
        let mut model = Model { names: BTreeMap::new(), parents: BTreeMap::new() };
        let mut pending = vec![(Ino::ROOT, Ino::ROOT)];
        while let Some((directory, parent)) = pending.pop() {
            let mut names = BTreeMap::new();
            for entry in volume.read_dir_of(directory).unwrap() {
                let entry = entry.unwrap();
                let name = String::from_utf8(entry.name).unwrap();
                match name.as_str() {
                    "." => assert_eq!(entry.ino, directory),
                    ".." => assert_eq!(entry.ino, parent, "`..` of {directory}"),
                    _ => {
                        let kind = volume.metadata_of(entry.ino).unwrap().kind;
                        assert!(entry.kind.is_none_or(|stored| stored == kind), "{name}");
                        if kind == FileKind::Directory {
                            pending.push((entry.ino, directory));
                        }
                        names.insert(name, entry.ino);
                    }
                }
            }
            assert!(model.names.insert(directory, names).is_none(), "{directory} has two names");
            model.parents.insert(directory, parent);
        }
        model
    }

    /// How many names each inode has.
    fn links(&self) -> BTreeMap<Ino, u32> {
        let mut links = BTreeMap::new();
        self.names.values().flat_map(BTreeMap::values).for_each(|ino| *links.entry(*ino).or_insert(0) += 1);
        for (directory, names) in &self.names {
            let inside = names.values().filter(|ino| self.is_directory(**ino)).count() as u32;
            links.insert(*directory, 2 + inside);
        }
        links
    }

    fn is_directory(&self, ino: Ino) -> bool {
        self.names.contains_key(&ino)
    }

    fn is_inside(&self, mut inner: Ino, outer: Ino) -> bool {
        while inner != outer && inner != Ino::ROOT {
            inner = self.parents[&inner];
        }
        inner == outer
    }

    fn path(&self, directory: Ino) -> String {
        if directory == Ino::ROOT {
            return String::new();
        }
        let parent = self.parents[&directory];
        let (name, _) = self.names[&parent].iter().find(|(_, ino)| **ino == directory).unwrap();
        format!("{}/{name}", self.path(parent))
    }

    /// Returns the errno, or 0. A whiteout is not known before it is made: the old name is free after that.
    fn rename(&mut self, (from, old): (Ino, &str), (to, new): (Ino, &str), flags: RenameFlags) -> i32 {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let Some(moved) = self.names[&from].get(old).copied() else { return libc::ENOENT };
        let there = self.names[&to].get(new).copied();
        match there {
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return libc::EEXIST,
            None if exchange => return libc::ENOENT,
            _ => {}
        }
        if from != to && self.is_directory(moved) && self.is_inside(to, moved) {
            return libc::EINVAL;
        }
        if from != to && there.is_some_and(|there| self.is_directory(there) && self.is_inside(from, there)) {
            return if exchange { libc::EINVAL } else { libc::ENOTEMPTY };
        }
        match there {
            Some(there) if there == moved => return 0,
            Some(there) if !exchange => match (self.is_directory(moved), self.is_directory(there)) {
                (true, false) => return libc::ENOTDIR,
                (false, true) => return libc::EISDIR,
                (true, true) if !self.names[&there].is_empty() => return libc::ENOTEMPTY,
                _ => {
                    self.names.remove(&there);
                    self.parents.remove(&there);
                }
            },
            _ => {}
        }
        self.names.get_mut(&from).unwrap().remove(old);
        self.put(to, new, moved);
        if exchange {
            self.put(from, old, there.unwrap());
        }
        0
    }

    fn put(&mut self, directory: Ino, name: &str, ino: Ino) {
        self.names.get_mut(&directory).unwrap().insert(name.into(), ino);
        if let Some(parent) = self.parents.get_mut(&ino) {
            *parent = directory;
        }
    }
}

/// A tree of directories and files, some with two names.
fn image(args: &[&str]) -> Image {
    let (tree, mut rng) = (Scratch::new(16 << 20), Rng::new(5));
    let mut directories = vec![tree.path().to_path_buf()];
    let mut number = 0..;
    let mut fresh = |rng: &mut Rng, directories: &[std::path::PathBuf]| {
        let number = number.next().unwrap();
        // Names of the walk, so that most of what it draws is there.
        let path = rng.pick(directories).join(name(rng.below(NAMES)));
        if path.exists() { path.with_file_name(format!("other-{number}")) } else { path }
    };
    for _ in 0..DIRECTORIES {
        let path = fresh(&mut rng, &directories);
        std::fs::create_dir(&path).unwrap();
        directories.push(path);
    }
    for number in 0..FILES {
        let path = fresh(&mut rng, &directories);
        std::fs::write(&path, vec![number as u8; 40 * number]).unwrap();
        if number % 5 == 0 {
            std::fs::hard_link(&path, fresh(&mut rng, &directories)).unwrap();
        }
    }
    let made = VolumeBuilder::new(24 << 20).args(args.iter().copied()).from_dir(tree.path()).build();
    Image::load(made.path())
}

/// What files hold.
fn contents(volume: &Volume, model: &Model) -> BTreeMap<Ino, Vec<u8>> {
    let all = model.names.values().flat_map(BTreeMap::values);
    let files = all.filter(|ino| volume.metadata_of(**ino).unwrap().kind == FileKind::Regular);
    files.map(|ino| (*ino, read_all(&volume.open_inode(*ino, read_only()).unwrap()))).collect()
}

#[track_caller]
fn check(volume: &Volume, model: &Model) {
    let found = Model::of(volume);
    assert!(found.names == model.names && found.parents == model.parents);
    for (ino, links) in model.links() {
        assert_eq!(volume.metadata_of(ino).unwrap().links, links, "links of {ino}");
    }
}

#[track_caller]
fn close(volume: Volume, device: &MemoryDevice) {
    volume.close().unwrap();
    let scratch = Scratch::new(32 << 20);
    let path = scratch.file("volume.img");
    Image::of(device).save(&path);
    oracle::e2fsck_clean(&path);
}

struct Walk {
    volume: Volume,
    model: Model,
    rng: Rng,
    /// How often each errno came.
    outcomes: BTreeMap<i32, u32>,
}

impl Walk {
    fn any(&mut self) -> (Ino, String) {
        let all: Vec<Ino> = self.model.names.keys().copied().collect();
        let directory = *self.rng.pick(&all);
        let names: Vec<&String> = self.model.names[&directory].keys().collect();
        match self.rng.below(3) {
            0 => (directory, name(self.rng.below(NAMES))),
            _ if names.is_empty() => (directory, name(self.rng.below(NAMES))),
            _ => (directory, (*self.rng.pick(&names)).clone()),
        }
    }

    fn rename(&mut self) {
        let (from, mut to) = (self.any(), self.any());
        if self.rng.below(4) == 0 {
            to.0 = from.0;
        }
        let [no, exchange, whiteout] = [RenameFlags::NOREPLACE, RenameFlags::EXCHANGE, RenameFlags::WHITEOUT];
        let plain = RenameFlags::empty();
        let all = [plain, plain, plain, no, no, exchange, exchange, whiteout, whiteout | no];
        let flags = *self.rng.pick(&all);
        let path = |(directory, name): &(Ino, String)| format!("{}/{name}", self.model.path(*directory));
        let [old_path, new_path] = [&from, &to].map(path);
        let done = if self.rng.below(2) == 0 {
            self.volume.rename_with(&old_path, &new_path, flags)
        } else {
            let [old, new] = [from.0, to.0].map(|ino| self.volume.node(ino, None).unwrap());
            old.rename(&from.1, &new, &to.1, flags)
        };
        let moves = self.model.names[&from.0].get(&from.1) != self.model.names[&to.0].get(&to.1);
        let expected = self.model.rename((from.0, &from.1), (to.0, &to.1), flags);
        let found = done.as_ref().map_or_else(uext4::Error::errno, |()| 0);
        assert_eq!(found, expected, "{old_path} to {new_path} with {flags:?}: {done:?}");
        *self.outcomes.entry(found).or_insert(0) += 1;
        if found == 0 && moves && flags.contains(RenameFlags::WHITEOUT) {
            let there = self.volume.symlink_metadata(&old_path).unwrap();
            assert_eq!((there.kind, there.rdev, there.mode), (FileKind::CharDevice, (0, 0), 0));
            self.model.put(from.0, &from.1, there.ino);
        }
    }

    fn step(&mut self) {
        let (directory, name) = self.any();
        let path = format!("{}/{name}", self.model.path(directory));
        match self.rng.below(12) {
            0 if !self.model.names[&directory].contains_key(&name) => {
                let file = self.volume.open_file(&path, read_write().create_new(true)).unwrap();
                self.model.put(directory, &name, file.ino());
            }
            1 => {
                let Some(ino) = self.model.names[&directory].get(&name) else { return };
                if !self.model.is_directory(*ino) {
                    self.volume.remove_file(&path).unwrap();
                    self.model.names.get_mut(&directory).unwrap().remove(&name);
                }
            }
            _ => self.rename(),
        }
    }
}

#[test]
fn renames_are_those_of_a_model() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let mut outcomes = BTreeMap::new();
    for (seed, (args, steps)) in (1..).zip(VOLUMES) {
        let device = image(args).device();
        let volume = open_rw(device.clone());
        let model = Model::of(&volume);
        let before = contents(&volume, &model);
        let mut walk = Walk { volume, model, rng: Rng::new(seed), outcomes };
        for number in 0..steps {
            walk.step();
            if number % 500 == 0 {
                check(&walk.volume, &walk.model);
            }
        }
        check(&walk.volume, &walk.model);
        for (ino, bytes) in contents(&walk.volume, &walk.model) {
            // Files of the walk are empty, and may have the number of one that is gone.
            assert!(bytes.is_empty() || before.get(&ino) == Some(&bytes), "{args:?}: {ino}");
        }
        outcomes = walk.outcomes;
        close(walk.volume, &device);
        let volume = open_rw(device);
        check(&volume, &walk.model);
    }
    println!("{outcomes:?}");
    for errno in [0, libc::ENOENT, libc::EEXIST, libc::EINVAL, libc::ENOTDIR, libc::EISDIR, libc::ENOTEMPTY] {
        assert!(outcomes.get(&errno).is_some_and(|count| *count > 20), "{errno}: {outcomes:?}");
    }
}

const THREADS: u64 = 4;

/// Renames between directories that move themselves. `keep`: nothing is replaced.
fn crossing(directories: &[Node], keep: bool, steps: u32, thread: u64) -> u32 {
    let mut rng = Rng::new(91).fork(thread);
    let mut done = 0;
    for _ in 0..steps {
        let (from, to) = (rng.pick(directories), rng.pick(directories));
        let [old, new] = [(); 2].map(|()| name(rng.below(NAMES)));
        let flags = match rng.below(6) {
            0..3 => RenameFlags::NOREPLACE,
            3 => RenameFlags::EXCHANGE,
            4 if !keep => RenameFlags::empty(),
            4 => RenameFlags::EXCHANGE,
            _ if keep => RenameFlags::NOREPLACE,
            _ => RenameFlags::WHITEOUT,
        };
        match from.rename(&old, to, &new, flags) {
            Ok(()) => done += 1,
            Err(error) => {
                let usual =
                    [libc::ENOENT, libc::EEXIST, libc::EINVAL, libc::ENOTDIR, libc::EISDIR, libc::ENOTEMPTY];
                assert!(usual.contains(&error.errno()), "{error:?}");
            }
        }
    }
    done
}

/// Many threads in few directories, which they also move into each other. The volume stays sound, and where nothing is
/// replaced, nothing is lost.
#[test]
fn threads_rename_across_each_others_directories() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for keep in [true, false] {
        let device = image(&["-b", "1024"]).device();
        let volume = open_rw(device.clone());
        let before = Model::of(&volume);
        let node = |ino: &Ino| volume.node(*ino, None).unwrap();
        let directories: Arc<Vec<Node>> = Arc::new(before.names.keys().map(node).collect());
        let all = directories.clone();
        let done: Vec<u32> = within(Duration::from_secs(100), move || {
            let work = |thread| crossing(&all, keep, 6000, thread);
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            })
        });
        println!("{done:?}");
        assert!(done.iter().all(|done| *done > 150), "{done:?}");
        drop(directories);
        let after = Model::of(&volume);
        check(&volume, &after);
        if keep {
            assert_eq!(after.links().keys().collect::<Vec<_>>(), before.links().keys().collect::<Vec<_>>());
            let all = |model: &Model| model.names.values().map(BTreeMap::len).sum::<usize>();
            assert_eq!(all(&after), all(&before));
        }
        close(volume, &device);
    }
}
