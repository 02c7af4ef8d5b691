//! A volume whose tree changes, and a model of the tree.

use crate::common::tree::{How, manifest, without_xattrs};
use crate::common::{Image, patterned, read_write};
use std::collections::BTreeMap;
use uext4::device::MemoryDevice;
use uext4::{Caller, Error, File, Node, NodeKind, Volume, WriteFlags};
use uext4_testkit::{Entry, Kind, Manifest, Rng, Scratch, SparseDigest, oracle};

/// An inode of the model. The size counts for regular files and links.
#[derive(Clone)]
struct Made {
    kind: Kind,
    mode: u32,
    owner: (u32, u32),
    rdev: (u32, u32),
    bytes: Vec<u8>,
}

/// Something without a name that is still in use.
enum Kept {
    Removed(Node),
    Unnamed(Node, u64),
    Open(File, Vec<u8>),
}

/// A volume and its model: paths, and the inodes they lead to. The root is not in it.
pub struct Play {
    pub volume: Volume,
    paths: BTreeMap<String, u64>,
    inodes: BTreeMap<u64, Made>,
    kept: Vec<Kept>,
    rng: Rng,
    next: u64,
    /// Each step is one change of the tree.
    single: bool,
}

fn name_of(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap()
}

impl Play {
    /// On an empty volume.
    pub fn on(volume: Volume, seed: u64) -> Play {
        let (paths, inodes, kept) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
        Play { volume, paths, inodes, kept, rng: Rng::new(seed), next: 1 << 20, single: false }
    }

    /// From now on each step is one change of the tree.
    pub fn crashes(&mut self) {
        self.single = true;
    }

    fn some(&mut self, fits: impl Fn(Kind) -> bool) -> Option<(String, u64)> {
        let of = |(path, id): (&String, &u64)| fits(self.inodes[id].kind).then(|| (path.clone(), *id));
        let all: Vec<_> = self.paths.iter().filter_map(of).collect();
        (!all.is_empty()).then(|| all[self.rng.below(all.len() as u64) as usize].clone())
    }

    /// A directory: the root, as an empty path, or another one.
    fn directory(&mut self) -> String {
        match self.rng.below(4) {
            0 => String::new(),
            _ => self.some(|kind| kind == Kind::Directory).map(|found| found.0).unwrap_or_default(),
        }
    }

    fn node(&self, path: &str) -> Node {
        self.volume.node_at(if path.is_empty() { "/" } else { path }, false).unwrap()
    }

    fn fresh_path(&mut self) -> String {
        self.next += 1;
        let length = *self.rng.pick(&[0_usize, 0, 5, 60, 245]);
        let tail: String = (0..length).map(|_| (b'a' + self.rng.below(26) as u8) as char).collect();
        format!("{}/{}{tail}", self.directory(), self.next - (1 << 20))
    }

    fn caller(&mut self) -> Caller {
        let umask = *self.rng.pick(&[0, 0o022, 0o077]);
        Caller::new(self.rng.below(3) as u32 * 70_000, self.rng.below(3) as u32).umask(umask)
    }

    fn add(&mut self, path: String, made: Made) {
        self.next += 1;
        assert!(self.paths.insert(path, self.next).is_none());
        self.inodes.insert(self.next, made);
    }

    /// A new inode of any kind, by handle or by path.
    fn make(&mut self) {
        let (path, caller) = (self.fresh_path(), self.caller());
        let (mode, by_handle) = (0o644 | self.rng.below(0o1000) as u32, self.rng.below(2) == 0);
        let (above, name) = name_of(&path);
        let above = self.node(above);
        let mut made = Made {
            kind: Kind::File,
            mode: mode & !caller.umask,
            owner: (caller.uid, caller.gid),
            rdev: (0, 0),
            bytes: Vec::new(),
        };
        match self.rng.below(8) {
            0..3 => {
                made.kind = Kind::Directory;
                match by_handle {
                    true => drop(above.make_dir(name, mode, &caller).unwrap()),
                    false => self.volume.create_dir(format!("{path}/"), mode, &caller).unwrap(),
                }
            }
            3 => {
                (made.kind, made.mode) = (Kind::Symlink, 0o777);
                let length = *self.rng.pick(&[1, 30, 59, 60, 61, 500, 1023]);
                made.bytes = (0..length).map(|_| b'a' + self.rng.below(26) as u8).collect();
                let target = String::from_utf8(made.bytes.clone()).unwrap();
                match by_handle {
                    true => drop(above.make_symlink(name, &target, &caller).unwrap()),
                    false => self.volume.symlink(&target, &path, &caller).unwrap(),
                }
            }
            4 => {
                let (major, minor) = *self.rng.pick(&[(1, 3), (0, 0), (300, 5), (4095, 0xf_ffff)]);
                let (kind, node) = *self.rng.pick(&[
                    (Kind::Fifo, NodeKind::Fifo),
                    (Kind::Socket, NodeKind::Socket),
                    (Kind::CharDevice, NodeKind::Char { major, minor }),
                    (Kind::BlockDevice, NodeKind::Block { major, minor }),
                ]);
                made.kind = kind;
                if matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
                    made.rdev = (major, minor);
                }
                match by_handle {
                    true => drop(above.make_node(name, node, mode, &caller).unwrap()),
                    false => self.volume.make_node(&path, node, mode, &caller).unwrap(),
                }
            }
            _ => {
                let file = above.create(name, mode, &caller).unwrap().open(read_write()).unwrap();
                let length = *self.rng.pick(&[0, 0, 100, 3000]);
                made.bytes = patterned(self.next, 0, length).to_vec();
                if length > 0 {
                    file.write_any_at(&made.bytes, 0, WriteFlags::empty()).unwrap();
                }
            }
        }
        let again = above.make_dir(name, mode, &caller);
        assert!(matches!(again, Err(Error::Exists)), "{again:?}");
        self.add(path, made);
    }

    fn remove(&mut self) {
        let Some((path, id)) = self.some(|kind| kind != Kind::Directory) else { return };
        let (above, name) = name_of(&path);
        let node = self.node(&path);
        match self.rng.below(2) {
            0 => self.volume.remove_file(&path).unwrap(),
            _ => self.node(above).unlink(name).unwrap(),
        }
        self.paths.remove(&path);
        if self.paths.values().all(|other| *other != id) {
            let made = self.inodes.remove(&id).unwrap();
            assert_eq!(node.attributes().links, 0);
            let linked = self.volume.root().unwrap().link("again", &node);
            assert!(matches!(linked, Err(Error::NotFound)), "{linked:?}");
            if made.kind == Kind::File && self.rng.below(2) == 0 {
                self.kept.push(Kept::Open(node.open(read_write()).unwrap(), made.bytes));
            }
        }
    }

    fn remove_dir(&mut self) {
        let Some((path, id)) = self.some(|kind| kind == Kind::Directory) else { return };
        let (above, name) = name_of(&path);
        let (above, node) = (self.node(above), self.node(&path));
        let within = format!("{path}/");
        if self.paths.keys().any(|other| other.starts_with(&within)) {
            assert!(matches!(above.remove_dir(name), Err(Error::NotEmpty)));
            if self.single || self.rng.below(12) > 0 {
                return;
            }
            self.volume.remove_dir_all(&path).unwrap();
            self.paths.retain(|other, _| !other.starts_with(&within));
            let used: Vec<u64> = self.paths.values().copied().collect();
            self.inodes.retain(|id, _| used.contains(id));
        } else if self.rng.below(2) == 0 {
            above.remove_dir(name).unwrap();
        } else {
            self.volume.remove_dir(&path).unwrap();
        }
        self.paths.remove(&path);
        self.inodes.remove(&id);
        let gone = self.volume.remove_dir(&path);
        assert!(matches!(gone, Err(Error::NotFound)), "{gone:?}");
        assert_eq!(node.attributes().links, 0);
        self.kept.push(Kept::Removed(node));
    }

    fn link(&mut self) {
        let Some((path, id)) = self.some(|kind| kind != Kind::Directory) else { return };
        let new = self.fresh_path();
        let (above, name) = name_of(&new);
        match self.rng.below(2) {
            0 => self.volume.hard_link(&path, &new).unwrap(),
            _ => self.node(above).link(name, &self.node(&path)).unwrap(),
        }
        assert!(matches!(self.volume.hard_link(&path, &new), Err(Error::Exists)));
        self.paths.insert(new, id);
    }

    fn unnamed(&mut self) {
        let (caller, id) = (self.caller(), self.next);
        let above = self.directory();
        let node = self.node(&above).make_unnamed(0o600, &caller).unwrap();
        let file = node.open(read_write()).unwrap();
        file.write_any_at(&patterned(id, 0, 700), 0, WriteFlags::empty()).unwrap();
        self.next += 1;
        self.kept.push(Kept::Unnamed(node, id));
    }

    /// Uses something without a name, or gives it one.
    fn use_kept(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let at = self.rng.below(self.kept.len() as u64) as usize;
        let root = Caller::root();
        match self.kept.swap_remove(at) {
            Kept::Removed(node) => {
                assert!(matches!(node.make_dir("x", 0o755, &root), Err(Error::NotFound)));
                assert!(matches!(node.create("x", 0o755, &root), Err(Error::NotFound)));
                assert!(matches!(node.make_unnamed(0o755, &root), Err(Error::NotFound)));
                assert!(matches!(node.look_up(".."), Err(Error::NotFound)));
                assert!(matches!(node.unlink("x"), Err(Error::NotFound)));
                let names: Vec<_> = node.read_dir().unwrap().map(|entry| entry.unwrap().name).collect();
                assert!(names.iter().all(|name| name == b"." || name == b".."), "{names:?}");
            }
            Kept::Unnamed(node, id) => {
                assert_eq!(node.attributes().links, 0);
                let path = self.fresh_path();
                let (above, name) = name_of(&path);
                self.node(above).link(name, &node).unwrap();
                let found = node.attributes();
                assert_eq!(found.links, 1);
                let bytes = patterned(id, 0, 700).to_vec();
                let owner = (found.uid, found.gid);
                let mode = found.mode;
                self.add(path, Made { kind: Kind::File, mode, owner, rdev: (0, 0), bytes });
            }
            Kept::Open(file, mut bytes) => {
                assert_eq!(crate::common::read_all(&file), bytes);
                let part = patterned(7, bytes.len() as u64, 900);
                file.write_any_at(&part, bytes.len() as u64, WriteFlags::empty()).unwrap();
                bytes.extend_from_slice(&part);
                if self.rng.below(2) == 0 {
                    self.kept.push(Kept::Open(file, bytes));
                }
            }
        }
    }

    pub fn step(&mut self) {
        match self.rng.below(20) {
            0..9 => self.make(),
            9..12 => self.remove(),
            12..15 => self.remove_dir(),
            15..17 => self.link(),
            17 => self.unnamed(),
            _ => self.use_kept(),
        }
    }

    /// Gives up everything without a name.
    pub fn end_uses(&mut self) {
        self.kept.clear();
    }

    /// The tree as it should be.
    pub fn expected(&self) -> Manifest {
        let entry = |(path, id): (&String, &u64)| {
            let made = &self.inodes[id];
            let within = format!("{path}/");
            let names = match made.kind {
                Kind::Directory => {
                    2 + self
                        .paths
                        .iter()
                        .filter(|(other, id)| {
                            let below = other.strip_prefix(&within).is_some_and(|rest| !rest.contains('/'));
                            below && self.inodes[id].kind == Kind::Directory
                        })
                        .count()
                }
                _ => self.paths.values().filter(|other| *other == id).count(),
            };
            let mut digest = SparseDigest::new();
            digest.update(0, &made.bytes);
            let size = made.bytes.len() as u64;
            let entry = Entry {
                kind: made.kind,
                mode: if made.kind == Kind::Directory { made.mode & 0o1777 } else { made.mode },
                uid: made.owner.0,
                gid: made.owner.1,
                size,
                mtime_ns: 0,
                nlink: names as u64,
                rdev: made.rdev,
                target: (made.kind == Kind::Symlink).then(|| made.bytes.clone()),
                digest: (made.kind == Kind::File).then(|| digest.finish(size)),
                xattrs: BTreeMap::new(),
            };
            (path.clone().into_bytes(), entry)
        };
        self.paths.iter().map(entry).collect()
    }
}

/// A manifest as the model has it: without what was there before, times, and sizes of directories.
pub fn comparable(manifest: Manifest) -> Manifest {
    let mut all = without_xattrs(manifest);
    all.retain(|path, _| path != b"/" && !path.starts_with(b"/lost+found"));
    for entry in all.values_mut() {
        entry.mtime_ns = 0;
        if entry.kind == Kind::Directory {
            entry.size = 0;
        }
    }
    all
}

/// The tree of a volume as we read it.
pub fn found(volume: &Volume) -> Manifest {
    comparable(manifest(volume, How::AnyByte))
}

/// Checks with e2fsck.
#[track_caller]
pub fn clean(device: &MemoryDevice, scratch: &Scratch) -> std::path::PathBuf {
    let path = scratch.file("clean.img");
    Image::of(device).save(&path);
    oracle::e2fsck_clean(&path);
    path
}
