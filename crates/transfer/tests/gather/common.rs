//! Trees as values that can be compared with the host's, and archives of hand-made headers.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use uext4::mkfs::{Item, ItemId, ItemKind, Source, Tree};
use uext4_testkit::manifest::differences;
use uext4_testkit::{Entry, Kind, Manifest, SparseDigest};
use uext4_transfer::{ArchiveInput, Failures, GatherOptions, Gathered, Gathering};

/// Runs a command that must succeed.
#[track_caller]
pub fn run(command: &[&str], directory: &Path) {
    let mut process = Command::new(command[0]);
    let output = process.args(&command[1..]).current_dir(directory).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
}

/// The tree of one archive in a file.
pub fn gather(path: &Path) -> Result<Gathered, Failures> {
    gather_with(GatherOptions::default(), path)
}

pub fn gather_with(options: GatherOptions, path: &Path) -> Result<Gathered, Failures> {
    let mut gathering = Gathering::new(options);
    gathering.archive(path, ArchiveInput::File(File::open(path).unwrap()))?;
    gathering.finish()
}

/// The tree of archives in memory, each a layer.
pub fn gather_bytes(layers: &[&[u8]]) -> Result<Gathered, Failures> {
    let mut gathering = Gathering::new(GatherOptions::default());
    for (at, layer) in layers.iter().enumerate() {
        let stream = std::io::Cursor::new(layer.to_vec());
        gathering.archive(Path::new(&format!("{at}.tar")), ArchiveInput::Stream(Box::new(stream)))?;
    }
    gathering.finish()
}

/// The bytes of a regular file.
#[track_caller]
pub fn contents(gathered: &Gathered, item: &Item) -> Vec<u8> {
    let ItemKind::Regular(contents) = &item.kind else { panic!("no regular file: {item:?}") };
    let mut bytes = vec![0; contents.size as usize];
    for range in &contents.data {
        let part = &mut bytes[range.start as usize..range.end as usize];
        gathered.read(contents.key, range.start, part).unwrap();
    }
    bytes
}

/// The item at a path.
pub fn find(tree: &Tree, path: &str) -> Option<ItemId> {
    let mut names = path.split('/').filter(|name| !name.is_empty());
    names.try_fold(Tree::ROOT, |directory, name| tree.find(directory, name.as_bytes()))
}

#[track_caller]
pub fn item<'t>(tree: &'t Tree, path: &str) -> &'t Item {
    tree.item(find(tree, path).unwrap_or_else(|| panic!("{path} is not there")))
}

/// All paths, in order; directories with a slash at the end.
pub fn paths(tree: &Tree) -> Vec<String> {
    let mut paths: Vec<String> = ids(tree)
        .into_iter()
        .map(|(path, id)| {
            let slash = if matches!(tree.item(id).kind, ItemKind::Directory(_)) { "/" } else { "" };
            format!("{}{slash}", String::from_utf8_lossy(&path))
        })
        .collect();
    paths.sort();
    paths
}

fn ids(tree: &Tree) -> BTreeMap<Vec<u8>, ItemId> {
    let mut ids = BTreeMap::new();
    let mut pending = vec![(Vec::new(), Tree::ROOT)];
    while let Some((path, directory)) = pending.pop() {
        for (name, id) in tree.names(directory) {
            let path = if path.is_empty() { name.to_vec() } else { [&path, name].join(&b'/') };
            if matches!(tree.item(id).kind, ItemKind::Directory(_)) {
                pending.push((path.clone(), id));
            }
            ids.insert(path, id);
        }
    }
    ids
}

/// A tree as the host's are described. Link counts and sizes of directories are left out.
pub fn described(gathered: &Gathered) -> Manifest {
    let ids = ids(&gathered.tree);
    let mut links: HashMap<ItemId, u64> = HashMap::new();
    for &id in ids.values() {
        *links.entry(id).or_default() += 1;
    }
    let mut manifest = Manifest::new();
    manifest.insert(b"/".to_vec(), entry(gathered, Tree::ROOT, 0));
    for (path, id) in ids {
        manifest.insert([&b"/"[..], &path].concat(), entry(gathered, id, links[&id]));
    }
    manifest
}

fn entry(gathered: &Gathered, id: ItemId, links: u64) -> Entry {
    let item = gathered.tree.item(id);
    let (kind, rdev) = match &item.kind {
        ItemKind::Directory(_) => (Kind::Directory, (0, 0)),
        ItemKind::Regular(_) => (Kind::File, (0, 0)),
        ItemKind::Symlink(_) => (Kind::Symlink, (0, 0)),
        ItemKind::Fifo => (Kind::Fifo, (0, 0)),
        ItemKind::Socket => (Kind::Socket, (0, 0)),
        ItemKind::Char(major, minor) => (Kind::CharDevice, (*major, *minor)),
        ItemKind::Block(major, minor) => (Kind::BlockDevice, (*major, *minor)),
    };
    let time = item.modified;
    let (size, target, digest) = match &item.kind {
        ItemKind::Regular(contents) => {
            let mut digest = SparseDigest::new();
            for range in &contents.data {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                gathered.read(contents.key, range.start, &mut bytes).unwrap();
                digest.update(range.start, &bytes);
            }
            (contents.size, None, Some(digest.finish(contents.size)))
        }
        ItemKind::Symlink(target) => (target.len() as u64, Some(target.clone()), None),
        _ => (0, None, None),
    };
    Entry {
        kind,
        mode: item.mode.into(),
        uid: item.uid,
        gid: item.gid,
        size,
        mtime_ns: i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds),
        nlink: if kind == Kind::Directory { 0 } else { links },
        rdev,
        target,
        digest,
        xattrs: item.xattrs.clone(),
    }
}

/// A directory of the host, described in the same way.
pub fn host(directory: &Path) -> Manifest {
    let mut manifest = uext4_testkit::manifest(directory);
    for entry in manifest.values_mut() {
        if entry.kind == Kind::Directory {
            (entry.size, entry.nlink) = (0, 0);
        } else if !matches!(entry.kind, Kind::File | Kind::Symlink) {
            entry.size = 0;
        }
    }
    manifest
}

#[track_caller]
pub fn same(expected: &Manifest, found: &Manifest) {
    let differences = differences(expected, found);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// A header and data of an archive, made by hand.
pub struct Head(pub [u8; 512]);

impl Head {
    pub fn new(name: &str, typeflag: u8, size: u64) -> Head {
        let mut head = Head([0; 512]);
        head.put(0, name.as_bytes()).put(100, b"0000644\0").put(108, b"0000000\0").put(116, b"0000000\0");
        head.put(124, format!("{size:011o}\0").as_bytes()).put(136, b"00000000001\0");
        head.put(156, &[typeflag]).put(257, b"ustar\x0000");
        head
    }

    pub fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Head {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    pub fn link(&mut self, target: &str) -> &mut Head {
        self.put(157, target.as_bytes())
    }

    /// The header with its checksum.
    pub fn done(&self) -> [u8; 512] {
        let mut bytes = self.0;
        bytes[148..156].fill(b' ');
        let sum: u32 = bytes.iter().map(|&byte| u32::from(byte)).sum();
        bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes
    }
}

/// An archive made by hand.
#[derive(Default, Clone)]
pub struct Tar(pub Vec<u8>);

impl Tar {
    pub fn head(mut self, head: &Head) -> Tar {
        self.0.extend(head.done());
        self
    }

    pub fn data(mut self, data: &[u8]) -> Tar {
        self.0.extend(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn file(self, name: &str, data: &str) -> Tar {
        self.head(&Head::new(name, b'0', data.len() as u64)).data(data.as_bytes())
    }

    pub fn directory(self, name: &str) -> Tar {
        let mut head = Head::new(name, b'5', 0);
        head.put(100, b"0000750\0");
        self.head(&head)
    }

    pub fn symlink(self, name: &str, target: &str) -> Tar {
        self.head(Head::new(name, b'2', 0).link(target))
    }

    pub fn hard_link(self, name: &str, target: &str) -> Tar {
        self.head(Head::new(name, b'1', 0).link(target))
    }

    pub fn records(self, typeflag: u8, records: &[(&str, &str)]) -> Tar {
        let text: Vec<u8> = records.iter().flat_map(|(key, value)| record(key, value.as_bytes())).collect();
        self.head(&Head::new("pax", typeflag, text.len() as u64)).data(&text)
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

/// A record of an extended header.
pub fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = [b" ", key.as_bytes(), b"=", value, b"\n"].concat();
    let mut length = rest.len() + 1;
    while length.to_string().len() + rest.len() != length {
        length += 1;
    }
    [length.to_string().as_bytes(), &rest].concat()
}
