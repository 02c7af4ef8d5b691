//! New volumes with files in them: under all kinds of options, e2fsck, this library and the kernel find what the tree
//! says.

use crate::common;

use common::making::{MIB, TIME, open, options};
use common::tree::{How, manifest, without_xattrs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use uext4::mkfs::{
    Contents, Defaults, Item, ItemId, ItemKind, Options, Source, SourceError, Tree, format_tree,
};
use uext4::{Timestamp, Volume, VolumeOptions};
use uext4_testkit::{
    Entry, Kind, Manifest, Need, Rng, Scratch, SparseDigest, e2fsck_clean, fixture,
    kernel_manifest, manifest::assert_same, needs,
};

/// Contents by pattern: the key is the number of the pattern.
struct Patterns;

impl Source for Patterns {
    fn read(&self, key: u64, pos: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        fixture::pattern(key, pos, buffer);
        Ok(())
    }
}

fn item(kind: ItemKind, mode: u16) -> Item {
    Item {
        kind,
        mode,
        uid: 0,
        gid: 0,
        modified: Timestamp { seconds: TIME as i64 - 1000, nanoseconds: 0 },
        xattrs: BTreeMap::new(),
    }
}

fn directory() -> Item {
    item(ItemKind::Directory(BTreeMap::new()), 0o755)
}

fn file(contents: Contents) -> Item {
    item(ItemKind::Regular(contents), 0o644)
}

/// What the volume is to be under: `wide` inodes have nanoseconds and large identifiers.
struct Limits {
    wide: bool,
    target: usize,
    attributes: bool,
}

const USUAL: Limits = Limits { wide: true, target: 4000, attributes: true };

/// A tree of everything that a volume can hold.
fn tree(seed: u64, limits: &Limits) -> Tree {
    let rng = &mut Rng::new(seed);
    let mut tree = Tree::new(Timestamp { seconds: TIME as i64, nanoseconds: 0 });
    let mut directories = vec![Tree::ROOT];
    for number in 0..40 {
        let parent = *rng.pick(&directories);
        let name = format!("directory {number}");
        directories.push(tree.add(parent, name.as_bytes(), directory()).unwrap());
    }
    let crowd = tree.add(directories[3], b"crowd", directory()).unwrap();
    for number in 0..3000 {
        let name = format!("{number:0width$}", width = rng.range(4..40) as usize);
        tree.add(crowd, name.as_bytes(), file(Contents::default())).unwrap();
    }
    for number in 0..20 {
        tree.add(crowd, format!("below {number}").as_bytes(), directory()).unwrap();
    }
    let mut files = Vec::new();
    for number in 0..300 {
        let mut name = vec![0xFF; rng.range(1..30) as usize];
        name.extend(number.to_string().bytes());
        let contents = contents(rng, number);
        files.push(tree.add(*rng.pick(&directories), &name, file(contents)).unwrap());
    }
    for (number, &id) in files.iter().enumerate().filter(|(number, _)| number % 7 == 0) {
        let name = format!("link {number}");
        tree.link(*rng.pick(&directories), name.as_bytes(), id).unwrap();
    }
    for length in [1, 58, 59, 60, 61, 1000, limits.target] {
        let kind = ItemKind::Symlink(vec![b't'; length]);
        tree.add(*rng.pick(&directories), format!("symlink {length}").as_bytes(), item(kind, 0o777)).unwrap();
    }
    let special = [
        ItemKind::Fifo,
        ItemKind::Socket,
        ItemKind::Char(1, 3),
        ItemKind::Block(259, 300),
        ItemKind::Char(4095, 0xF_FFFF),
    ];
    for (number, kind) in special.into_iter().enumerate() {
        tree.add(directories[5], format!("special {number}").as_bytes(), item(kind, 0o600)).unwrap();
    }
    dress(&mut tree, rng, limits);
    tree
}

/// Sizes around blocks and extents, with holes.
fn contents(rng: &mut Rng, key: u64) -> Contents {
    let size = match rng.below(6) {
        0 => 0,
        1 => rng.range(1..100),
        2 => rng.range(4000..4200),
        3 => rng.range(60_000..70_000),
        4 => rng.range(100..9000),
        _ => rng.range(1..400_000),
    };
    if rng.chance(70) {
        return Contents::whole(size, key);
    }
    let (mut data, mut at) = (Vec::new(), 0);
    while at < size {
        let start = at + rng.below(9000);
        let end = start + 1 + rng.below(20_000);
        if end > size {
            break;
        }
        data.push(start..end);
        at = end + 1;
    }
    Contents { size, data, key }
}

/// Gives the items owners, modes, times and attributes.
fn dress(tree: &mut Tree, rng: &mut Rng, limits: &Limits) {
    let ids: Vec<ItemId> = all(tree);
    let large: Vec<u8> = (0..700).map(|byte| byte as u8).collect();
    for id in ids {
        let item = tree.item_mut(id);
        (item.uid, item.gid) = (rng.below(100_000) as u32, rng.below(70_000) as u32);
        if limits.wide {
            item.modified.nanoseconds = rng.below(1_000_000_000) as u32;
            item.modified.seconds = *rng.pick(&[0, -1_000_000_000, TIME as i64, 9_000_000_000]);
        }
        if !matches!(item.kind, ItemKind::Symlink(_)) {
            item.mode = rng.below(0o10000) as u16;
        }
        if !limits.attributes || rng.chance(60) || matches!(item.kind, ItemKind::Symlink(_)) {
            continue;
        }
        item.xattrs.insert(b"trusted.small".to_vec(), b"value".to_vec());
        if rng.chance(30) {
            item.xattrs.insert(b"trusted.large".to_vec(), large[..rng.below(3) as usize * 350].to_vec());
        }
    }
}

/// All items that names lead to.
fn all(tree: &Tree) -> Vec<ItemId> {
    let (mut found, mut open) = (vec![Tree::ROOT], vec![Tree::ROOT]);
    while let Some(directory) = open.pop() {
        for (_, id) in tree.names(directory) {
            if !found.contains(&id) || found.len() > 1000 && id.number() > 40 {
                found.push(id);
                open.push(id);
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// What readers have to find.
fn expected(tree: &Tree) -> Manifest {
    let mut links = BTreeMap::<ItemId, u64>::new();
    let (mut out, mut open) = (Manifest::new(), vec![(Vec::new(), Tree::ROOT)]);
    let mut paths = Vec::new();
    while let Some((path, id)) = open.pop() {
        if let ItemKind::Directory(names) = &tree.item(id).kind {
            let below = |&&child: &&ItemId| matches!(tree.item(child).kind, ItemKind::Directory(_));
            links.insert(id, 2 + names.values().filter(below).count() as u64);
        } else {
            *links.entry(id).or_default() += 1;
        }
        open.extend(tree.names(id).map(|(name, child)| ([&path, &b"/"[..], name].concat(), child)));
        paths.push((path, id));
    }
    for (path, id) in paths {
        let path = if path.is_empty() { b"/".to_vec() } else { path };
        out.insert(path, entry(tree.item(id), links[&id]));
    }
    if tree.find(Tree::ROOT, b"lost+found").is_none() {
        out.get_mut(&b"/"[..]).unwrap().nlink += 1;
    }
    out
}

fn entry(item: &Item, nlink: u64) -> Entry {
    let mut rdev = (0, 0);
    let (mut size, mut target, mut digest) = (0, None, None);
    let kind = match &item.kind {
        ItemKind::Directory(_) => Kind::Directory,
        ItemKind::Regular(contents) => {
            size = contents.size;
            digest = Some(digest_of(contents));
            Kind::File
        }
        ItemKind::Symlink(to) => {
            (size, target) = (to.len() as u64, Some(to.clone()));
            Kind::Symlink
        }
        ItemKind::Fifo => Kind::Fifo,
        ItemKind::Socket => Kind::Socket,
        ItemKind::Char(major, minor) => {
            rdev = (*major, *minor);
            Kind::CharDevice
        }
        ItemKind::Block(major, minor) => {
            rdev = (*major, *minor);
            Kind::BlockDevice
        }
    };
    Entry {
        kind,
        mode: item.mode.into(),
        uid: item.uid,
        gid: item.gid,
        size,
        mtime_ns: i128::from(item.modified.seconds) * 1_000_000_000 + i128::from(item.modified.nanoseconds),
        nlink,
        rdev,
        target,
        digest,
        xattrs: item.xattrs.clone(),
    }
}

fn digest_of(contents: &Contents) -> [u8; 32] {
    let mut digest = SparseDigest::new();
    for range in &contents.data {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        fixture::pattern(contents.key, range.start, &mut bytes);
        digest.update(range.start, &bytes);
    }
    digest.finish(contents.size)
}

/// Without what the volume adds, and without the sizes of directories.
fn comparable(mut found: Manifest) -> Manifest {
    if found.get(&b"/lost+found"[..]).is_some_and(|lost| lost.uid == 0 && lost.mode == 0o700) {
        found.remove(&b"/lost+found"[..]);
    }
    for entry in found.values_mut().filter(|entry| entry.kind == Kind::Directory) {
        entry.size = 0;
    }
    found
}

fn make(scratch: &Scratch, name: &str, size: u64, options: &Options, tree: &Tree) -> PathBuf {
    let path = scratch.sparse_file(name, size);
    format_tree(&*open(&path), options, tree, &Patterns).unwrap_or_else(|error| panic!("{name}: {error}"));
    path
}

fn read_back(path: &Path) -> Manifest {
    let volume = Volume::open(path, VolumeOptions::read_only()).unwrap();
    comparable(manifest(&volume, How::Direct))
}

/// Options as words, extended options, and what the volume can hold then.
const ROWS: [(&str, &str, Limits); 20] = [
    ("-b 4096", "", USUAL),
    ("-b 1024", "", Limits { target: 1000, ..USUAL }),
    ("-b 2048 -I 512", "", Limits { target: 2000, ..USUAL }),
    ("-b 65536", "", USUAL),
    ("-b 4096 -t ext2 -I 128", "", Limits { wide: false, ..USUAL }),
    ("-t ext3 -b 1024", "", Limits { target: 1000, ..USUAL }),
    ("-b 4096 -O bigalloc -C 65536", "", USUAL),
    ("-b 4096 -O ^dir_index", "", USUAL),
    ("-b 4096 -O inline_data", "", USUAL),
    ("-b 4096 -O quota,project", "", USUAL),
    ("-b 4096 -O ^metadata_csum,uninit_bg,^metadata_csum_seed", "", USUAL),
    ("-b 4096 -O ^64bit,^flex_bg", "", USUAL),
    ("-b 4096 -O fast_commit", "", USUAL),
    ("-b 4096 -O casefold", "encoding=utf8", USUAL),
    ("-b 4096 -O meta_bg,^resize_inode", "", USUAL),
    ("-b 4096 -O ea_inode", "", USUAL),
    ("-b 4096 -O sparse_super2,large_dir", "", USUAL),
    ("-b 4096 -O ^has_journal", "packed_meta_blocks=1", USUAL),
    ("-b 4096 -O encrypt,verity,stable_inodes,mmp", "", USUAL),
    ("-b 1024 -g 4096", "", Limits { target: 1000, ..USUAL }),
];

#[test]
fn trees_are_found_as_they_were_given() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (number, (words, extended, limits)) in ROWS.iter().enumerate() {
        println!("{words} -E {extended}");
        let scratch = Scratch::new(512 * MIB);
        let tree = tree(number as u64, limits);
        let path = make(&scratch, "volume", 300 * MIB, &options(words, extended, Defaults::Upstream), &tree);
        e2fsck_clean(&path);
        assert_same(&without_xattrs(comparable(expected(&tree))), &read_back(&path));
    }
}

#[test]
fn root_the_kernel_finds_trees_as_they_were_given() {
    needs!(Need::Root, Need::Tool("e2fsck"));
    let unmountable = ["-b 65536", "-O casefold", "-O encrypt", "-O quota"];
    for (number, (words, extended, limits)) in ROWS.iter().enumerate() {
        if unmountable.iter().any(|start| words.contains(start)) {
            continue;
        }
        println!("{words} -E {extended}");
        let scratch = Scratch::new(512 * MIB);
        let tree = tree(number as u64, limits);
        let path = make(&scratch, "volume", 300 * MIB, &options(words, extended, Defaults::Upstream), &tree);
        assert_same(&comparable(expected(&tree)), &comparable(kernel_manifest(&path)));
    }
}
