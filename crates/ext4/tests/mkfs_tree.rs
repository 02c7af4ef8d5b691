//! New volumes with files in them: under all kinds of options, e2fsck, this library and the kernel find what the tree
//! says.

use crate::common;

use common::making::{MIB, TIME, open, options};
use common::tree::{How, manifest, without_xattrs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uext4::device::{Device, MemoryDevice, MemoryOptions};
use uext4::mkfs::{
    Contents, Defaults, Free, Item, ItemId, ItemKind, Options, Source, SourceError, Tree, dry_run_tree,
    format_tree, smallest,
};
use uext4::{Timestamp, Volume, VolumeOptions};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};
use uext4_testkit::{
    Entry, Kind, Manifest, Need, Rng, Scratch, SparseDigest, e2fsck_clean, fixture, kernel_manifest,
    manifest::assert_same, needs,
};

/// Contents by pattern: the key is the number of the pattern.
pub struct Patterns;

impl Source for Patterns {
    fn read(&self, key: u64, pos: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        fixture::pattern(key, pos, buffer);
        Ok(())
    }
}

pub fn item(kind: ItemKind, mode: u16) -> Item {
    Item {
        kind,
        mode,
        uid: 0,
        gid: 0,
        modified: Timestamp { seconds: TIME as i64 - 1000, nanoseconds: 0 },
        xattrs: BTreeMap::new(),
    }
}

pub fn directory() -> Item {
    item(ItemKind::Directory(BTreeMap::new()), 0o755)
}

pub fn file(contents: Contents) -> Item {
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
pub fn expected(tree: &Tree) -> Manifest {
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
pub fn comparable(mut found: Manifest) -> Manifest {
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

#[test]
fn the_same_tree_makes_the_same_bytes() {
    let scratch = Scratch::new(512 * MIB);
    let tree = tree(1, &USUAL);
    let options = options("-b 4096", "", Defaults::Upstream);
    let [one, two] = ["one", "two"].map(|name| make(&scratch, name, 100 * MIB, &options, &tree));
    assert!(std::fs::read(one).unwrap() == std::fs::read(two).unwrap());
}

#[test]
fn the_smallest_volume_holds_its_tree_and_a_smaller_one_does_not() {
    needs!(Need::Tool("e2fsck"));
    let geometry = open(&Scratch::new(MIB).sparse_file("any", MIB)).geometry();
    for (words, free, for_reading) in [
        ("-b 4096", Free::Bytes(0), false),
        ("-b 4096", Free::Bytes(0), true),
        ("-b 1024", Free::Bytes(20 * MIB), false),
        ("-b 4096 -O bigalloc", Free::Bytes(0), false),
        ("-t ext2 -b 1024", Free::Percent(30.0), false),
        ("-b 4096 -O ^has_journal", Free::Percent(10.0), false),
    ] {
        println!("{words} {free:?} {for_reading}");
        let scratch = Scratch::new(512 * MIB);
        let limits = Limits { target: 1000, attributes: !words.contains("ext2"), ..USUAL };
        let tree = tree(2, &limits);
        let mut asked = options(words, "", Defaults::Upstream);
        if for_reading {
            asked = asked.for_reading();
        }
        let smallest = smallest(geometry, &asked, &tree, free).unwrap();
        let size = smallest.size.unwrap();
        let path = make(&scratch, "volume", size, &smallest, &tree);
        e2fsck_clean(&path);
        assert_same(&without_xattrs(comparable(expected(&tree))), &read_back(&path));
        let volume = Volume::open(&path, VolumeOptions::read_only()).unwrap();
        let superblock = volume.superblock();
        let (left, block) = (superblock.free_blocks, u64::from(superblock.geometry.block_size()));
        let wanted = match free {
            Free::Bytes(bytes) => bytes,
            Free::Percent(percent) => (size as f64 * percent / 100.0) as u64,
        };
        let grain = block * u64::from(superblock.geometry.cluster_blocks());
        assert!((wanted..wanted + 64 * grain).contains(&(left * block)), "{left} blocks for {wanted} bytes");
        if for_reading {
            assert!(Volume::open(&path, VolumeOptions::read_write()).is_err());
            assert!(left < 4);
        }
        let (mut less, path) = (smallest.clone(), scratch.sparse_file("less", size));
        less.size = Some(size - grain);
        let made = format_tree(&*open(&path), &less, &tree, &Patterns);
        let made = made.map(|made| made.superblock.free_blocks * block);
        assert!(made.as_ref().map_or(true, |&bytes| bytes < wanted), "{made:?} {wanted}");
    }
}

#[test]
fn a_volume_of_failed_contents_is_none() {
    struct Failing;
    impl Source for Failing {
        fn read(&self, key: u64, pos: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
            match key {
                150 => Err(Arc::new(std::io::Error::from_raw_os_error(5))),
                _ => Patterns.read(key, pos, buffer),
            }
        }
    }
    let scratch = Scratch::new(512 * MIB);
    let path = scratch.sparse_file("volume", 100 * MIB);
    let mut tree = tree(3, &USUAL);
    let id = tree.add(Tree::ROOT, b"failing", file(Contents::whole(5000, 150))).unwrap();
    assert_eq!(tree.find(Tree::ROOT, b"failing"), Some(id));
    let options = options("-b 4096", "", Defaults::Upstream);
    let error = format_tree(&*open(&path), &options, &tree, &Failing).unwrap_err();
    assert_eq!((error.to_string().contains("/failing"), error.errno()), (true, 5), "{error}");
    assert!(Volume::open(&path, VolumeOptions::read_only()).is_err());
    // Each write of the device in turn.
    for number in 1.. {
        let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(MemoryOptions::new(100 * MIB)).unwrap());
        let device = FaultDevice::new(memory.clone());
        let handle = device.handle();
        handle.arm(Fault::nth(FaultOn::Changes, number));
        let made = format_tree(&device, &options, &tree, &Patterns);
        if handle.fired() == 0 {
            assert!(number > 10 && made.is_ok(), "{number}");
            break;
        }
        assert_eq!(made.unwrap_err().errno(), libc::EIO, "{number}");
        assert!(Volume::open_device(memory, VolumeOptions::read_only()).is_err(), "{number}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    let scratch = Scratch::new(512 * MIB);
    let path = scratch.sparse_file("volume", 20 * MIB);
    let refused = |words: &str, tree: &Tree, text: &str| {
        let options = options(words, "", Defaults::Upstream);
        let error = format_tree(&*open(&path), &options, tree, &Patterns).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
        let dry = dry_run_tree(open(&path).geometry(), &options, tree).unwrap_err();
        assert_eq!(error.to_string(), dry.to_string());
        assert!(std::fs::read(&path).unwrap().iter().all(|&byte| byte == 0));
    };
    let new = || Tree::new(Timestamp::default());
    let with = |item: Item| {
        let mut tree = new();
        tree.add(Tree::ROOT, b"name", item).unwrap();
        tree
    };
    refused("-b 4096", &with(file(Contents::whole(30 * MIB, 0))), "the files do not fit");
    let last = (1 << 60) - 10..1 << 60;
    let beyond = Contents { size: 1 << 60, data: [last].into(), key: 0 };
    refused("-b 4096", &with(file(beyond)), "/name: the file's map cannot reach");
    for data in [[5..9, 0..3], [0..5, 4..9], [0..3, 5..5], [0..3, 5..11]] {
        refused("-b 4096", &with(file(Contents { size: 10, data: data.into(), key: 0 })), "/name: ");
    }
    let mut named = file(Contents::default());
    named.xattrs.insert(b"system.posix_acl_default".to_vec(), vec![2, 0, 0, 0]);
    refused("-b 4096", &with(named.clone()), "/name: only directories");
    named.xattrs.clear();
    named.xattrs.insert(b"unknown.name".to_vec(), Vec::new());
    refused("-b 4096", &with(named.clone()), "/name: ");
    named.xattrs = BTreeMap::from([(b"user.large".to_vec(), vec![0; 5000])]);
    refused("-b 4096", &with(named.clone()), "/name: ");
    named.xattrs = BTreeMap::from([(b"system.posix_acl_access".to_vec(), vec![9; 12])]);
    refused("-b 4096", &with(named), "/name: not an access control list");
    refused("-b 1024", &with(item(ItemKind::Symlink(vec![b'a'; 1024]), 0o777)), "/name: ");
    refused("-b 4096", &with(item(ItemKind::Char(1 << 20, 0), 0o600)), "/name: ");
    let mut tree = new();
    tree.add(Tree::ROOT, b"lost+found", file(Contents::default())).unwrap();
    refused("-b 4096", &tree, "lost+found: ");
    let mut tree = new();
    let id = tree.add(Tree::ROOT, b"file", file(Contents::default())).unwrap();
    for number in 0..65_000 {
        tree.link(Tree::ROOT, format!("{number}").as_bytes(), id).unwrap();
    }
    refused("-b 4096", &tree, ": too many links");
    let mut tree = new();
    for number in 0..2000 {
        tree.add(Tree::ROOT, format!("{number}").as_bytes(), file(Contents::default())).unwrap();
    }
    refused("-b 4096 -N 1000", &tree, "2001 files are to be stored");
    let mut tree = new();
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
        assert_eq!(tree.add(Tree::ROOT, name, file(Contents::default())).unwrap_err().errno(), libc::EINVAL);
    }
}

#[test]
fn files_in_many_pieces_and_directories_of_two_levels() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(512 * MIB);
    let mut tree = Tree::new(Timestamp { seconds: TIME as i64, nanoseconds: 0 });
    let crowd = tree.add(Tree::ROOT, b"crowd", directory()).unwrap();
    for number in 0..30_000 {
        let name = format!("{number:060}");
        tree.add(crowd, name.as_bytes(), file(Contents::default())).unwrap();
    }
    // Groups of 256 blocks: each piece is shorter than one.
    tree.add(Tree::ROOT, b"large", file(Contents::whole(60 * MIB, 1))).unwrap();
    let holes = (0..3000).map(|number| number * 10_000..number * 10_000 + 100).collect();
    tree.add(Tree::ROOT, b"holes", file(Contents { size: 30 * MIB, data: holes, key: 2 })).unwrap();
    for (number, words) in
        ["-b 1024 -g 512 -N 40000 -O ^flex_bg", "-t ext2 -b 1024 -g 1024 -N 40000"].iter().enumerate()
    {
        let options = options(words, "", Defaults::Upstream);
        let path = make(&scratch, &format!("volume {number}"), 160 * MIB, &options, &tree);
        e2fsck_clean(&path);
        assert_same(&without_xattrs(comparable(expected(&tree))), &read_back(&path));
        let volume = Volume::open(&path, VolumeOptions::read_write()).unwrap();
        let large = volume.open_file("/large", uext4::OpenOptions::new().read(true)).unwrap();
        assert!(large.map().count() > 50);
        // The trees are as good as those that grew.
        for number in 0..300 {
            let new = uext4::OpenOptions::new().write(true).create_new(true);
            volume.open_file(format!("/crowd/more {number}"), new).unwrap();
            volume.remove_file(format!("/crowd/{:060}", number * 97)).unwrap();
        }
        volume.close().unwrap();
        e2fsck_clean(&path);
    }
}

#[test]
fn a_directory_counts_subdirectories_as_far_as_it_can() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(1024 * MIB);
    let mut tree = Tree::new(Timestamp { seconds: TIME as i64, nanoseconds: 0 });
    for number in 0..65_000 {
        tree.add(Tree::ROOT, format!("{number}").as_bytes(), directory()).unwrap();
    }
    let path = make(&scratch, "volume", 700 * MIB, &options("-b 1024", "", Defaults::Upstream), &tree);
    e2fsck_clean(&path);
    let volume = Volume::open(&path, VolumeOptions::read_only()).unwrap();
    assert_eq!(volume.metadata("/").unwrap().links, 1);
    drop(volume);
    let options = options("-b 1024 -O ^dir_nlink", "", Defaults::Upstream);
    let error = dry_run_tree(open(&path).geometry(), &options, &tree).unwrap_err();
    assert!(error.to_string().contains("too many links"), "{error}");
}

#[test]
fn paths_may_be_deep() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(256 * MIB);
    let mut tree = Tree::new(Timestamp { seconds: TIME as i64, nanoseconds: 0 });
    let mut at = Tree::ROOT;
    for _ in 0..20_000 {
        at = tree.add(at, b"d", directory()).unwrap();
    }
    let mut last = file(Contents::default());
    last.xattrs.insert(b"none.such".to_vec(), Vec::new());
    let path = make(&scratch, "volume", 128 * MIB, &options("-b 4096", "", Defaults::Upstream), &tree);
    e2fsck_clean(&path);
    tree.add(at, b"last", last).unwrap();
    let options = options("-b 4096", "", Defaults::Upstream);
    let error = dry_run_tree(open(&path).geometry(), &options, &tree).unwrap_err();
    assert!(error.to_string().contains("/d/d/last: "), "the whole path is named");
}
