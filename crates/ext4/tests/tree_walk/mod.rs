//! A seeded walk over all changes of names and attributes: after each step the outcome is that of a model, and after
//! some the volume is closed, e2fsck is content, and the tree that is read back is the model's.
//!
//! `UEXT4_WALK=SEED:STEPS` runs one walk with a check after each step, on every kind of volume.

mod kills;
mod lists;
mod model;
mod turns;

use crate::common;

use common::places::{Nbd, Place, Qcow2, Rbd};
use common::{Image, open_ro, open_rw};
use model::{FLAGS, FOLDS, Id, Kind, Model, ROOT, Thing};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use uext4::device::Device;
use uext4::{
    Caller, FileKind, Ino, Node, NodeKind, OpenOptions, RenameFlags, SetAttributes, Timestamp, Volume,
    WriteFlags, XattrFlags,
};
use uext4_testkit::{Ceph, KernelMount, LoopOptions, Need, Rng, Scratch, VolumeBuilder, needs, oracle};

/// Kinds of volumes, and how many steps the walk of each has: 100 000 in all.
const VOLUMES: [(&[&str], u64); 10] = [
    (&["-b", "1024"], 20_000),
    (&["-b", "4096"], 15_000),
    (&["-b", "1024", "-O", "^dir_index,^extent,^64bit,^metadata_csum"], 10_000),
    (&["-b", "1024", "-I", "128", "-O", "^has_journal"], 10_000),
    (&["-b", "1024", "-O", "inline_data,large_dir"], 10_000),
    (&["-b", "1024", "-O", "quota,project,orphan_file", "-I", "256"], 10_000),
    (&["-b", "1024", "-O", "bigalloc", "-C", "8192"], 5_000),
    (&["-b", "2048", "-O", "^filetype,^huge_file,^flex_bg"], 5_000),
    (&["-b", "1024", "-O", "casefold"], 10_000),
    (&["-b", "1024", "-O", "casefold,inline_data"], 5_000),
];
const SIZE: u64 = 24 << 20;

struct Walk {
    rng: Rng,
    model: Model,
    device: Arc<dyn Device>,
    volume: Option<Volume>,
    /// Inodes of the model's things.
    inodes: HashMap<Id, (Ino, u32)>,
    steps: u64,
    what: String,
    /// The volume has inline data.
    inline: bool,
    /// Things from which on more go than come.
    most: usize,
    /// With others at the same tree: its names begin with this, and the root stays as it is.
    letter: Option<u8>,
    /// Names of directories that fold case, which the step drew.
    drawn: Vec<(Id, Vec<u8>)>,
}

/// What a step does, for messages.
type Said = String;

impl Walk {
    fn new(args: &[&str], seed: u64) -> Walk {
        Walk::on(args, seed, |image| image.device())
    }

    /// On the device that `put` makes of the empty volume.
    fn on(args: &[&str], seed: u64, put: impl FnOnce(&Image) -> Arc<dyn Device>) -> Walk {
        let volume = VolumeBuilder::new(SIZE).args(args.iter().copied()).args(["-N", "2048"]);
        let built = volume.build();
        fold_root(built.path(), args);
        let device = put(&Image::load(built.path()));
        let volume = open_rw(device.clone());
        // lost+found is not the model's.
        volume.remove_dir("/lost+found").unwrap();
        let root = volume.root().unwrap();
        root.set_attributes(&SetAttributes::new().mode(0o755).uid(0_u32).gid(0_u32)).unwrap();
        let inodes = HashMap::from([(ROOT, (root.ino(), root.attributes().generation))]);
        let mut model = Model::new();
        model.things.get_mut(&ROOT).unwrap().flags = root.attributes().flags & FOLDS;
        drop(root);
        let what = format!("{args:?}, seed {seed}");
        Walk {
            rng: Rng::new(seed),
            model,
            device,
            volume: Some(volume),
            inodes,
            steps: 0,
            what,
            inline: args.iter().any(|arg| arg.contains("inline_data")),
            most: 350,
            letter: None,
            drawn: Vec::new(),
        }
    }

    fn volume(&self) -> &Volume {
        self.volume.as_ref().unwrap()
    }

    fn node(&self, id: Id) -> Node {
        let (ino, generation) = self.inodes[&id];
        self.volume()
            .node(ino, Some(generation))
            .unwrap_or_else(|error| panic!("{}: {ino}: {error}", self.what))
    }

    fn know(&mut self, id: Id, node: &Node) {
        self.inodes.insert(id, (node.ino(), node.attributes().generation));
    }

    fn pick(&mut self, wanted: impl Fn(&Thing) -> bool) -> Option<Id> {
        let fits = |(id, thing): &(&Id, &Thing)| (self.letter.is_none() || **id != ROOT) && wanted(thing);
        let mut all: Vec<Id> = self.model.things.iter().filter(fits).map(|(id, _)| *id).collect();
        all.sort_unstable();
        if all.is_empty() { None } else { Some(all[self.rng.below(all.len() as u64) as usize]) }
    }

    fn directory(&mut self) -> Id {
        // Half of all steps go to the root: it grows large.
        if self.rng.below(2) == 0 { ROOT } else { self.pick(Thing::is_directory).unwrap_or(ROOT) }
    }

    /// A name: mostly of few, so that it often exists; sometimes a long one, so that directories get blocks.
    fn name(&mut self, directory: Id) -> Vec<u8> {
        let name = self.draw_name(directory);
        if self.model.folds(directory) {
            self.drawn.push((directory, name.clone()));
        }
        name
    }

    fn draw_name(&mut self, directory: Id) -> Vec<u8> {
        let names = self.model.names(directory);
        if !names.is_empty() && self.rng.below(5) < 2 {
            let at = self.rng.below(names.len() as u64) as usize;
            let name = self.model.names(directory).keys().nth(at).unwrap().clone();
            return if self.model.folds(directory) { self.respelled(&name) } else { name };
        }
        let number = self.rng.below(400);
        let name = match self.rng.below(3) {
            0 => format!("n{number}").into_bytes(),
            // e2fsck does not hash what is not UTF-8 as the kernel does.
            1 if self.model.folds(directory) => format!("Straße Né{number}").into_bytes(),
            1 => [&[0xFF, b'\n'][..], format!("{number}").as_bytes()].concat(),
            _ => format!("{number}{}", "long".repeat(self.rng.below(63) as usize)).into_bytes(),
        };
        self.letter.into_iter().chain(name).collect()
    }

    /// Another spelling of a name of a directory that folds case.
    fn respelled(&mut self, name: &[u8]) -> Vec<u8> {
        let Ok(text) = std::str::from_utf8(name) else { return name.to_vec() };
        let mut other = String::new();
        for (at, letter) in text.chars().enumerate() {
            match self.rng.below(4) {
                _ if at == 0 && self.letter.is_some() => other.push(letter),
                0 => other.extend(letter.to_uppercase()),
                1 => other.extend(letter.to_lowercase()),
                2 if letter == 'é' => other.push_str("e\u{301}"),
                _ => other.push(letter),
            }
        }
        other.into_bytes()
    }

    fn owner(&mut self) -> Caller {
        Caller::new(self.rng.below(3) as u32 * 1000, self.rng.below(3) as u32 * 70_000)
    }

    #[track_caller]
    fn same<T, U>(
        &self,
        said: &str,
        ours: Result<T, uext4::Error>,
        theirs: Result<U, i32>,
    ) -> Option<(T, U)> {
        let (ours_error, theirs_error) =
            (ours.as_ref().err().map(uext4::Error::errno), theirs.as_ref().err().copied());
        assert_eq!(
            ours_error,
            theirs_error,
            "{}, step {}: {said}: {:?}",
            self.what,
            self.steps,
            ours.as_ref().err()
        );
        ours.ok().zip(theirs.ok())
    }

    fn step(&mut self) {
        self.steps += 1;
        // A tree of a few hundred things: what is removed and what is made keep the balance.
        let full = self.model.things.len() > self.most;
        match self.rng.below(22) {
            0..=5 if !full => self.make(),
            0..=6 => self.unlink(),
            7 | 8 => self.remove_dir(),
            9..=12 => self.rename(),
            13 => self.link(),
            14 => self.unnamed(),
            15 => self.attributes(),
            16 => self.extended(),
            17 | 18 => self.contents(),
            19 => self.flags(),
            20 => self.lists(),
            _ if self.rng.below(60) == 0 => self.remove_all(),
            _ => self.look_up(),
        }
        self.look_up_spellings();
    }

    /// What the step changed is found, or not, by every spelling.
    fn look_up_spellings(&mut self) {
        for (directory, name) in std::mem::take(&mut self.drawn) {
            let spellings = [self.respelled(&name), self.respelled(&name), name];
            // The step may have removed the directory.
            if self.model.things.contains_key(&directory) {
                let node = self.node(directory);
                for name in spellings {
                    let (ours, theirs) = (node.look_up(&name), self.model.find(directory, &name));
                    self.same("look up a spelling", ours, theirs.ok_or(libc::ENOENT));
                }
            }
        }
    }

    fn make(&mut self) {
        let directory = self.directory();
        let name = self.name(directory);
        let (caller, mode) = (self.owner(), self.rng.below(0o1000) as u32);
        let node = self.node(directory);
        let owner = (caller.uid, caller.gid);
        let (ours, kind, mode) = match self.rng.below(6) {
            0 | 1 => {
                let kind = Kind::Directory { names: BTreeMap::new(), parent: directory };
                (node.make_dir(&name, mode, &caller), kind, mode)
            }
            2 => {
                let length = [1, 59, 60, 61, 200, 900][self.rng.below(6) as usize];
                let target: Vec<u8> = (0..length).map(|at| b'a' + (at % 26) as u8).collect();
                (node.make_symlink(&name, &target, &caller), Kind::Symlink(target), 0o777)
            }
            3 => (node.make_node(&name, NodeKind::Fifo, mode, &caller), Kind::Fifo, mode),
            4 => {
                let (major, minor) = (self.rng.below(4096) as u32, self.rng.below(1 << 20) as u32);
                let made = node.make_node(&name, NodeKind::Char { major, minor }, mode, &caller);
                (made, Kind::Device(major, minor), mode)
            }
            _ => (node.create(&name, mode, &caller), Kind::File(Vec::new()), mode),
        };
        let theirs = self.model.add(directory, &name, Thing::new(kind, mode, owner));
        if let Some((node, id)) = self.same("make", ours, theirs) {
            self.know(id, &node);
        }
    }

    fn unlink(&mut self) {
        let directory = self.directory();
        let name = self.name(directory);
        let (ours, theirs) = (self.node(directory).unlink(&name), self.model.unlink(directory, &name));
        self.same("unlink", ours, theirs);
    }

    fn remove_dir(&mut self) {
        let directory = self.directory();
        let name = self.name(directory);
        let (ours, theirs) =
            (self.node(directory).remove_dir(&name), self.model.remove_dir(directory, &name));
        self.same("remove a directory", ours, theirs);
    }

    fn remove_all(&mut self) {
        let name = self.name(ROOT);
        let path = [b"/", &name[..]].concat();
        let ours = self.volume().remove_dir_all(OsStr::from_bytes(&path));
        let theirs = self.model.remove_all(ROOT, &name);
        self.same("remove a tree", ours, theirs);
    }

    fn rename(&mut self) {
        let (from, to) = (self.directory(), self.directory());
        let (old, new) = (self.name(from), self.name(to));
        let flags = [
            RenameFlags::empty(),
            RenameFlags::empty(),
            RenameFlags::NOREPLACE,
            RenameFlags::EXCHANGE,
            RenameFlags::WHITEOUT,
        ][self.rng.below(5) as usize];
        let ours = self.node(from).rename(&old, &self.node(to), &new, flags);
        let before = self.model.find(from, &old);
        let theirs = self.model.rename((from, &old), (to, &new), flags);
        let said: Said = format!("rename {before:?} in {from} to {to}, {flags:?}");
        self.same(&said, ours, theirs);
        if let Some(id) = self.model.find(from, &old).filter(|id| !self.inodes.contains_key(id)) {
            let node = self.node(from).look_up(&old).unwrap();
            self.know(id, &node);
        }
    }

    fn link(&mut self) {
        let directory = self.directory();
        let name = self.name(directory);
        let Some(id) = self.pick(|_| true) else { return };
        let ours = self.node(directory).link(&name, &self.node(id));
        let theirs = self.model.link(directory, &name, id);
        self.same("link", ours, theirs);
    }

    /// A file is made without a name, written, and gets one, or goes.
    fn unnamed(&mut self) {
        let directory = self.directory();
        let name = self.name(directory);
        let caller = self.owner();
        let node = self.node(directory).make_unnamed(0o640, &caller).unwrap();
        let file = node.open(OpenOptions::new().write(true).direct(true)).unwrap();
        file.write_any_at(b"written before it had a name", 0, WriteFlags::empty()).unwrap();
        if self.rng.below(3) == 0 {
            return;
        }
        let ours = self.node(directory).link(&name, &node);
        let contents = Kind::File(b"written before it had a name".to_vec());
        let theirs = self.model.add(directory, &name, Thing::new(contents, 0o640, (caller.uid, caller.gid)));
        if let Some(((), id)) = self.same("link what has no name", ours, theirs) {
            self.know(id, &node);
        }
    }

    fn attributes(&mut self) {
        let Some(id) = self.pick(|_| true) else { return };
        let node = self.node(id);
        let owner = self.owner();
        let seconds = self.rng.below(1 << 33) as i64;
        let time = Timestamp { seconds, nanoseconds: 0 };
        let thing = self.model.things.get_mut(&id).unwrap();
        let set = SetAttributes::new().keep_privileges(true).uid(owner.uid).gid(owner.gid).modified(time);
        let set = match thing.kind {
            Kind::Symlink(_) => set,
            _ => {
                let high = [0, 0, 0o2000, 0o1000][self.rng.below(4) as usize];
                thing.set_mode(high | self.rng.below(0o1000) as u32);
                set.mode(thing.mode)
            }
        };
        (thing.owner, thing.modified) = ((owner.uid, owner.gid), Some(seconds));
        node.set_attributes(&set).unwrap_or_else(|error| panic!("{}: {error}", self.what));
    }

    fn extended(&mut self) {
        let Some(id) = self.pick(|thing| thing.is_directory() || matches!(thing.kind, Kind::File(_))) else {
            return;
        };
        let name = [b"user.", &b"abcd"[..1 + self.rng.below(3) as usize]].concat();
        let node = self.node(id);
        let there = self.model.things[&id].attributes.contains_key(&name);
        match self.rng.below(5) {
            0 => {
                let theirs = if there { Ok(()) } else { Err(libc::ENODATA) };
                self.same("remove an attribute", node.remove_xattr(&name), theirs);
                self.model.things.get_mut(&id).unwrap().attributes.remove(&name);
            }
            how => {
                // Few values, so that blocks are shared.
                let value = vec![b'v'; [0, 3, 90, 200][self.rng.below(4) as usize]];
                let (flags, theirs) = match how {
                    1 if there => (XattrFlags::CREATE, Err(libc::EEXIST)),
                    1 => (XattrFlags::CREATE, Ok(())),
                    2 if there => (XattrFlags::REPLACE, Ok(())),
                    2 => (XattrFlags::REPLACE, Err(libc::ENODATA)),
                    _ => (XattrFlags::empty(), Ok(())),
                };
                if self.same("set an attribute", node.set_xattr(&name, &value, flags), theirs).is_some() {
                    self.model.things.get_mut(&id).unwrap().attributes.insert(name, value);
                }
            }
        }
    }

    /// Where to write, and how much. Files of volumes with inline data often stay in their inode.
    fn part(&mut self) -> (u64, usize) {
        match self.inline && self.rng.below(3) > 0 {
            true => (self.rng.below(90), 1 + self.rng.below(70) as usize),
            false => (self.rng.below(9000), 1 + self.rng.below(5000) as usize),
        }
    }

    fn contents(&mut self) {
        let Some(id) = self.pick(|thing| matches!(thing.kind, Kind::File(_))) else { return };
        // Direct, so that contents are in order with names after a kill.
        let file = self.node(id).open(OpenOptions::new().write(true).direct(true)).unwrap();
        let (pos, length) = self.part();
        let thing = self.model.things.get_mut(&id).unwrap();
        let Kind::File(bytes) = &mut thing.kind else { return };
        thing.modified = None;
        if self.rng.below(3) == 0 {
            bytes.resize(pos as usize, 0);
            file.set_len(pos).unwrap();
        } else {
            let byte = b'a' + self.rng.below(26) as u8;
            bytes.resize(bytes.len().max(pos as usize + length), 0);
            bytes[pos as usize..][..length].fill(byte);
            file.write_any_at(&vec![byte; length], pos, WriteFlags::empty()).unwrap();
        }
        // A write strips set-group-id of executable files, and so does a truncation.
        if thing.mode & 0o2010 == 0o2010 {
            thing.mode &= !0o2000;
        }
    }

    fn look_up(&mut self) {
        let directory = self.directory();
        let name = self.name(directory);
        let ours = self.node(directory).look_up(&name);
        let theirs = self.model.find(directory, &name).ok_or(libc::ENOENT);
        if let Some((node, id)) = self.same("look up", ours, theirs) {
            assert_eq!(node.ino(), self.inodes[&id].0, "{}, step {}", self.what, self.steps);
        }
    }

    /// Closes the volume, asks e2fsck, and compares the tree of the next open.
    fn check(&mut self, scratch: &Scratch) {
        self.volume.take().unwrap().close().unwrap();
        let path = scratch.file("walk.img");
        Image::of(&*self.device).save(&path);
        let checked = oracle::e2fsck(&path, &["-fn"]);
        assert_eq!(checked.status, 0, "{}, step {}: {}", self.what, self.steps, checked.output);
        self.volume = Some(open_rw(self.device.clone()));
        self.compare();
    }

    /// So many steps, with a check after each `every` of them.
    fn steps(&mut self, steps: u64, every: u64, scratch: &Scratch) {
        for step in 1..=steps {
            self.step();
            if step.is_multiple_of(every) || step == steps {
                self.check(scratch);
            }
        }
    }

    fn compare(&self) {
        let links = self.model.links();
        let mut waiting = vec![ROOT];
        let mut seen = 0;
        while let Some(id) = waiting.pop() {
            seen += 1;
            let node = self.node(id);
            self.compare_one(id, &node, links[&id]);
            let Kind::Directory { names, parent } = &self.model.things[&id].kind else { continue };
            assert_eq!(
                node.look_up(b"..").unwrap().ino(),
                self.inodes[parent].0,
                "{}: `..` of {id}",
                self.what
            );
            let found: BTreeMap<Vec<u8>, Ino> = node
                .read_dir()
                .unwrap()
                .map(|entry| entry.unwrap())
                .filter(|entry| entry.name != b"." && entry.name != b"..")
                .map(|entry| (entry.name, entry.ino))
                .collect();
            let wanted: BTreeMap<Vec<u8>, Ino> =
                names.iter().map(|(name, id)| (name.clone(), self.inodes[id].0)).collect();
            assert_eq!(found, wanted, "{}, step {}: names of {id}", self.what, self.steps);
            waiting.extend(names.values().filter(|id| self.model.things[id].is_directory()));
            for id in names.values().filter(|id| !self.model.things[id].is_directory()) {
                self.compare_one(*id, &self.node(*id), links[id]);
            }
        }
        assert_eq!(seen, self.model.things.values().filter(|thing| thing.is_directory()).count());
    }

    fn compare_one(&self, id: Id, node: &Node, links: u32) {
        let (thing, found) = (&self.model.things[&id], node.attributes());
        let at = || format!("{}, step {}: thing {id}, inode {}", self.what, self.steps, found.ino);
        let wanted = (thing.mode, thing.owner, links);
        assert_eq!((found.mode, (found.uid, found.gid), found.links), wanted, "{}", at());
        assert_eq!(found.flags & (FLAGS | FOLDS), thing.flags, "{}", at());
        if let Some(seconds) = thing.modified.filter(|_| !thing.is_directory()) {
            // 128 bytes hold 32 bits of a time.
            let held = [seconds, i64::from(i32::MAX)].contains(&found.modified.seconds);
            assert!(held, "{}: modified at {}, not {seconds}", at(), found.modified.seconds);
        }
        match &thing.kind {
            Kind::Directory { .. } => assert_eq!(found.kind, FileKind::Directory, "{}", at()),
            Kind::File(bytes) => {
                let file = node.open(OpenOptions::new().read(true)).unwrap();
                let mut read = vec![0; bytes.len() + 1];
                let length = file.read_any_at(&mut read, 0).unwrap();
                let differs = read[..length].iter().zip(bytes).position(|(found, wanted)| found != wanted);
                let sizes = (length, bytes.len());
                assert!(read[..length] == bytes[..], "{}: contents differ at {differs:?}, {sizes:?}", at());
            }
            Kind::Symlink(target) => assert_eq!(&node.read_link().unwrap(), target, "{}", at()),
            Kind::Fifo => assert_eq!(found.kind, FileKind::Fifo, "{}", at()),
            Kind::Device(major, minor) => assert_eq!(found.rdev, (*major, *minor), "{}", at()),
        }
        let names: BTreeMap<Vec<u8>, Vec<u8>> = node
            .xattrs()
            .map(|name| name.unwrap().as_bytes().to_vec())
            .map(|name| (name.clone(), node.xattr(&name).unwrap()))
            .collect();
        assert_eq!(names, thing.attributes, "{}", at());
    }
}

/// What the kernel sees of the tree.
fn compare_mounted(walk: &Walk, top: &Path) {
    let links = walk.model.links();
    let mut waiting = vec![(ROOT, top.to_owned())];
    while let Some((id, path)) = waiting.pop() {
        let (thing, found) = (&walk.model.things[&id], path.symlink_metadata().unwrap());
        let at = || format!("{}: {}", walk.what, path.display());
        let wanted = (thing.mode, thing.owner.0, thing.owner.1, u64::from(links[&id]));
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid(), found.nlink()), wanted, "{}", at());
        match &thing.kind {
            Kind::Directory { names, .. } => {
                let count = std::fs::read_dir(&path).unwrap().count();
                assert_eq!(count, names.len(), "{}", at());
                let below = |name: &Vec<u8>| path.join(OsStr::from_bytes(name));
                waiting.extend(names.iter().map(|(name, id)| (*id, below(name))));
            }
            Kind::File(bytes) => assert!(std::fs::read(&path).unwrap() == *bytes, "{}", at()),
            Kind::Symlink(target) => {
                assert_eq!(std::fs::read_link(&path).unwrap().as_os_str().as_bytes(), target, "{}", at());
            }
            Kind::Fifo => assert!(found.file_type().is_fifo(), "{}", at()),
            Kind::Device(major, minor) => {
                assert_eq!(found.rdev(), rustix::fs::makedev(*major, *minor), "{}", at());
            }
        }
        for (name, value) in &thing.attributes {
            let mut held = [0; 300];
            let length = rustix::fs::lgetxattr(&path, &name[..], &mut held[..]).unwrap();
            assert_eq!(&held[..length], value, "{}", at());
        }
    }
}

/// In volumes with the feature the root folds case, and what is made in it. The library does not set the flag.
fn fold_root(path: &Path, args: &[&str]) {
    if args.iter().any(|arg| arg.contains("casefold")) {
        let flags = open_ro(Image::load(path).device()).metadata("/").unwrap().flags | FOLDS;
        oracle::debugfs_write(path, &format!("sif / flags {:#x}", flags.bits()));
        oracle::e2fsck_clean(path);
    }
}

/// Volumes that this kernel mounts. Kernels may lack the format of quota files, and names in either case.
fn mounted() -> impl Iterator<Item = &'static [&'static str]> {
    let folds = Path::new("/sys/fs/ext4/features/casefold").exists();
    let mounts = move |arg: &&str| !arg.contains("quota") && (folds || !arg.contains("casefold"));
    VOLUMES.iter().map(|(args, _)| *args).filter(move |args| args.iter().all(mounts))
}

fn walk(args: &[&str], seed: u64, steps: u64, every: u64, scratch: &Scratch) -> Walk {
    let mut walk = Walk::new(args, seed);
    walk.steps(steps, every, scratch);
    walk
}

/// 100 000 steps, with a check after each 250 of them.
#[test]
fn a_walk_over_all_changes_is_that_of_the_model() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    std::thread::scope(|scope| {
        for half in [0, 1] {
            scope.spawn(move || {
                let scratch = Scratch::new(2 * SIZE);
                for (number, (args, steps)) in
                    VOLUMES.iter().enumerate().filter(|(number, _)| number % 2 == half)
                {
                    walk(args, 1 + number as u64, *steps, 250, &scratch);
                }
            });
        }
    });
}

/// Fewer, with a check after each.
#[test]
fn after_each_step_the_volume_is_clean() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(2 * SIZE);
    let given = std::env::var("UEXT4_WALK").ok();
    let given = given.as_ref().and_then(|given| given.split_once(':'));
    let (seed, steps) =
        given.map_or((77, 150), |(seed, steps)| (seed.parse().unwrap(), steps.parse().unwrap()));
    for (args, _) in VOLUMES {
        walk(args, seed, steps, 1, &scratch);
    }
}

/// The kernel sees the model's tree, and goes on where the walk ended.
#[test]
fn root_the_kernel_sees_the_tree_of_the_walk() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(2 * SIZE);
    for (number, args) in mounted().enumerate() {
        let mut walk = walk(args, 100 + number as u64, 1500, 1500, &scratch);
        for _turn in 0..4 {
            let path = scratch.file("mounted.img");
            walk.volume.take().unwrap().close().unwrap();
            Image::of(&*walk.device).save(&path);
            let mounted = KernelMount::image(&path, LoopOptions::default(), "");
            compare_mounted(&walk, mounted.path());
            // The kernel makes and removes names among ours.
            let own = mounted.path().join("kernel");
            std::fs::create_dir(&own).unwrap();
            for file in 0..40 {
                std::fs::write(own.join(format!("{file}{}", "k".repeat(100))), vec![b'k'; 100 * file])
                    .unwrap();
            }
            for file in (0..40).step_by(2) {
                std::fs::remove_file(own.join(format!("{file}{}", "k".repeat(100)))).unwrap();
            }
            mounted.unmount();
            oracle::e2fsck_clean(&path);
            walk.device = Image::load(&path).device();
            walk.volume = Some(open_rw(walk.device.clone()));
            walk.volume().remove_dir_all("/kernel").unwrap();
            for _ in 0..200 {
                walk.step();
            }
            walk.check(&scratch);
        }
    }
}

/// The same tree where users have their volumes.
fn walk_in(place: &mut dyn Place, number: usize, steps: u64) {
    let scratch = Scratch::new(2 * SIZE);
    let (args, _) = VOLUMES[number % VOLUMES.len()];
    let mut walk = Walk::on(args, 300 + number as u64, |image| place.put(image));
    walk.steps(steps, 250, &scratch);
    let (volume, device) = (walk.volume.take().unwrap(), walk.device);
    volume.close().unwrap();
    let path = scratch.file("closed.img");
    place.closed(device).save(&path);
    oracle::e2fsck_clean(&path);
}

#[test]
fn a_walk_behind_a_server() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("nbdkit"), Need::Tool("qemu-nbd"));
    walk_in(&mut Nbd::nbdkit(SIZE), 0, 5000);
    walk_in(&mut Nbd::qemu(SIZE), 1, 5000);
}

#[test]
fn a_walk_in_a_qcow2_image() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("qemu-img"));
    walk_in(&mut Qcow2::new(SIZE), 2, 5000);
}

#[test]
fn a_walk_in_a_ceph_cluster() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Ceph);
    walk_in(&mut Rbd::new(&Ceph::shared(), SIZE), 3, 1500);
}
