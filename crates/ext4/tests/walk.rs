//! Walking trees: everything once, in order, whatever the volume contains.

use crate::common;

use common::hostile::{BLOCK, Layout, bare, guarded, ino_of};
use common::{Image, open_ro, open_rw, read_write, within};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use uext4::device::CountingDevice;
use uext4::device::Device;
use uext4::{
    Error, FileKind, Ino, Metadata, Visit, Volume, VolumeOptions, WalkError, WalkOptions, WriteFlags,
};
use uext4_testkit::{Need, Scratch, VolumeBuilder, fixture, needs, oracle};

/// Paths and attributes by plain recursion over directories.
fn recursive(volume: &Volume, path: &str, ino: Ino, into: &mut BTreeMap<Vec<u8>, Metadata>) {
    into.insert(path.as_bytes().to_vec(), volume.metadata_of(ino).unwrap());
    if into[path.as_bytes()].kind != FileKind::Directory {
        return;
    }
    for entry in volume.read_dir_of(ino).unwrap() {
        let entry = entry.unwrap();
        let name = String::from_utf8(entry.name).unwrap();
        if name != "." && name != ".." {
            let inner = if path.is_empty() { name } else { format!("{path}/{name}") };
            recursive(volume, &inner, entry.ino, into);
        }
    }
}

/// Path, inode, type from the directory, attributes.
type Found = (Vec<u8>, Ino, Option<FileKind>, Option<Metadata>);

/// Everything that a walk reports.
#[derive(Default)]
struct Told {
    found: Vec<Found>,
    errors: Vec<WalkError>,
}

impl Told {
    fn paths(&self) -> Vec<&[u8]> {
        let mut paths: Vec<&[u8]> = self.found.iter().map(|found| &found.0[..]).collect();
        paths.sort();
        paths
    }

    fn error_at(&self, path: &str) -> &Error {
        let found = self.errors.iter().find(|error| error.path == path.as_bytes());
        &found.unwrap_or_else(|| panic!("no error at {path}: {:?}", self.errors)).error
    }
}

fn walk(volume: &Volume, path: &str, options: WalkOptions) -> Told {
    let mut told = Told::default();
    let mut walk = volume.walk(path, options).unwrap();
    while let Some(next) = walk.advance() {
        match next {
            Ok(entry) => {
                let name = entry.path.rsplit(|&byte| byte == b'/').next().unwrap();
                assert_eq!((entry.visit, entry.name), (Visit::Found, name));
                let depth = entry.path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).count();
                assert_eq!(entry.depth as usize, depth);
                told.found.push((entry.path.to_vec(), entry.ino, entry.kind, entry.metadata.cloned()));
            }
            Err(error) => told.errors.push(error),
        }
    }
    assert!(walk.advance().is_none(), "the end stays the end");
    told
}

/// A tree of a few hundred files in a few directories.
fn plain_tree() -> Image {
    let source = Scratch::new(16 << 20);
    let dir = source.file("tree");
    for n in 0..30 {
        let inner = dir.join(format!("d{}/e{}", n % 3, n % 5));
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join(format!("file-{n}")), "x".repeat(n * 100)).unwrap();
        std::os::unix::fs::symlink("nowhere", inner.join(format!("link-{n}"))).unwrap();
    }
    std::fs::hard_link(dir.join("d0/e0/file-0"), dir.join("d1/again")).unwrap();
    Image::load(VolumeBuilder::new(16 << 20).from_dir(&dir).build().path())
}

#[test]
fn a_walk_is_what_recursion_finds() {
    needs!(Need::Tool("mke2fs"));
    for image in [plain_tree(), guarded(), bare()] {
        let volume = open_ro(image.device());
        let mut expected = BTreeMap::new();
        recursive(&volume, "", Ino::ROOT, &mut expected);
        let told = walk(&volume, "/", WalkOptions::new());
        assert!(told.errors.is_empty());
        assert_eq!(told.found.len(), expected.len());
        for (path, ino, kind, metadata) in told.found {
            let wanted = &expected[&path];
            assert_eq!((ino, kind, metadata.as_ref()), (wanted.ino, Some(wanted.kind), Some(wanted)));
        }
        let names = walk(&volume, "/", WalkOptions::new().stat(false));
        assert_eq!(names.paths(), expected.keys().map(Vec::as_slice).collect::<Vec<_>>());
        for (path, ino, kind, metadata) in names.found {
            assert_eq!((ino, kind, metadata), (expected[&path].ino, Some(expected[&path].kind), None));
        }
    }
}

#[test]
fn directories_come_before_and_are_left_after_what_is_in_them() {
    needs!(Need::Tool("mke2fs"));
    let volume = open_ro(plain_tree().device());
    let mut walk = volume.walk("/", WalkOptions::new().brackets(true)).unwrap();
    let mut inside: Vec<Vec<u8>> = Vec::new();
    let (mut found, mut left) = (HashSet::new(), 0);
    while let Some(entry) = walk.advance() {
        let entry = entry.unwrap();
        let parent = || entry.path[..entry.path.len() - entry.name.len()].strip_suffix(b"/").unwrap_or(b"");
        match entry.visit {
            Visit::Found => {
                assert!(found.insert(entry.path.to_vec()));
                assert_eq!(inside.last().map(Vec::as_slice), (entry.depth > 0).then(parent));
            }
            Visit::Enter => {
                assert!(found.contains(entry.path), "told before it is entered");
                assert_eq!(inside.last().map(Vec::as_slice), (entry.depth > 0).then(parent));
                inside.push(entry.path.to_vec());
            }
            Visit::Leave => {
                assert_eq!(inside.pop().as_deref(), Some(entry.path));
                left += 1;
            }
        }
        assert_eq!(entry.metadata.unwrap().ino, entry.ino);
        assert_eq!(
            entry.depth as usize,
            if entry.visit == Visit::Enter { inside.len() - 1 } else { inside.len() }
        );
    }
    assert!(inside.is_empty());
    assert_eq!(left, 1 + 3 + 15 + 1, "the root, d0 to d2, five in each, lost+found");
}

#[test]
fn depth_and_skipping() {
    needs!(Need::Tool("mke2fs"));
    let volume = open_ro(plain_tree().device());
    let count = |options| walk(&volume, "/", options).found.len();
    assert_eq!(count(WalkOptions::new().max_depth(0)), 1);
    assert_eq!(count(WalkOptions::new().max_depth(1)), 1 + 3 + 1);
    assert_eq!(count(WalkOptions::new().max_depth(2)), 1 + 3 + 1 + 15 + 1);
    assert_eq!(walk(&volume, "/d1/again", WalkOptions::new()).paths(), [b""]);

    for brackets in [false, true] {
        let mut walk = volume.walk("/", WalkOptions::new().brackets(brackets)).unwrap();
        let mut paths = Vec::new();
        while let Some(entry) = walk.advance() {
            let entry = entry.unwrap();
            let wanted = if brackets { Visit::Enter } else { Visit::Found };
            let skip = entry.visit == wanted && entry.depth == 1 && entry.name != b"d1";
            assert!(
                entry.visit != Visit::Leave || entry.depth != 1 || entry.name == b"d1",
                "not left either"
            );
            if entry.visit == Visit::Found {
                paths.push(entry.path.to_vec());
            }
            if skip {
                walk.skip();
                walk.skip();
            }
        }
        assert_eq!(paths.len(), 1 + 4 + 6 + 20, "the root, four in it, d1's six, and ten of each kind below");
        assert!(paths.iter().all(|path| !path.starts_with(b"d0/")), "{brackets}");
    }
    let mut walk = volume.walk("/", WalkOptions::new()).unwrap();
    assert!(walk.advance().is_some());
    walk.skip();
    assert!(walk.advance().is_none(), "a skipped start is all there is");
}

#[test]
fn an_open_file_answers_for_itself() {
    needs!(Need::Tool("mke2fs"));
    let volume = open_rw(guarded().device());
    let file = volume.open_file("/plain", read_write()).unwrap();
    file.write_any_at(b"!", 5, WriteFlags::empty()).unwrap();
    let told = walk(&volume, "/", WalkOptions::new());
    let found = told.found.iter().find(|found| found.0 == b"plain").unwrap();
    assert_eq!(found.3.as_ref().unwrap().modified, file.metadata().modified);
    assert_ne!(
        found.3.as_ref().unwrap().modified,
        open_ro(guarded().device()).metadata("/plain").unwrap().modified
    );
}

#[test]
fn tables_and_directories_are_read_in_large_pieces() {
    needs!(Need::Tool("mke2fs"));
    let source = Scratch::new(64 << 20);
    let dir = source.file("tree");
    std::fs::create_dir(&dir).unwrap();
    for n in 0..4000 {
        std::fs::write(dir.join(format!("a name of some length {n:05}")), "").unwrap();
    }
    let volume = VolumeBuilder::new(32 << 20).args(["-b", "4096", "-N", "8000"]).from_dir(&dir).build();
    let device = Arc::new(CountingDevice::new(Image::load(volume.path()).device()));
    let volume = Volume::open_device(device.clone(), VolumeOptions::read_only()).unwrap();
    let before = device.counts();
    assert_eq!(walk(&volume, "/", WalkOptions::new()).found.len(), 4002);
    let reads = device.counts().reads - before.reads;
    // 250 blocks of inodes and 35 of entries.
    assert!(reads <= 16, "{reads} requests");
    let small =
        Volume::open_device(device.clone(), VolumeOptions::read_only().metadata_budget(64 << 10)).unwrap();
    assert_eq!(walk(&small, "/", WalkOptions::new()).found.len(), 4002, "whatever the budget");
}

#[test]
fn cycles_and_second_names_end() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let made = VolumeBuilder::new(8 << 20).build();
    let requests = "mkdir /a\nmkdir /a/b\nmkdir /a/b/c\nmkdir /z\nlink /a /a/b/c/up\nlink /a/b /a/b/self\n\
                    link / /a/root\nlink /a/b/c /z/c-again\n";
    oracle::debugfs_script(made.path(), requests);
    let image = Image::load(made.path());
    for stat in [true, false] {
        let image = image.clone();
        within(Duration::from_secs(10), move || {
            let volume = open_ro(image.device());
            let told = walk(&volume, "/", WalkOptions::new().stat(stat));
            let wanted: [&[u8]; 6] = [b"", b"a", b"a/b", b"a/b/c", b"lost+found", b"z"];
            // The order of the two names is not specified.
            assert!(told.found.len() == wanted.len() && told.errors.len() == 4, "{:?}", told.errors);
            for path in ["a/b/c/up", "a/b/self", "a/root"] {
                let error = told.error_at(path);
                assert!(
                    matches!(error, Error::CorruptInode { what, .. } if what.contains("second name")),
                    "{error}"
                );
            }
            let again = walk(&volume, "/a/b/c/up/b/self", WalkOptions::new().stat(stat));
            assert!(!again.errors.is_empty() && again.found[0].0.is_empty(), "a start inside a cycle");
        });
    }
}

#[test]
fn errors_have_paths_and_the_rest_goes_on() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let image = guarded();
    let layout = Layout::of(&image);
    let whole = walk(&open_ro(image.device()), "/", WalkOptions::new());

    let mut inode = image.clone();
    inode.bytes[layout.inode(ino_of(&image, "/plain")) + 8] ^= 1;
    let told = walk(&open_ro(inode.device()), "/", WalkOptions::new());
    assert_eq!(told.errors.len(), 1);
    assert!(matches!(told.error_at("plain"), Error::Corrupt(_)));
    assert_eq!(told.found.len() + 1, whole.found.len());
    let names = walk(&open_ro(inode.device()), "/", WalkOptions::new().stat(false));
    assert!(names.errors.is_empty(), "nobody asked for the inode");

    let mut directory = image.clone();
    directory.bytes[layout.inode(ino_of(&image, "/deep/er")) + 8] ^= 1;
    for stat in [true, false] {
        let told = walk(&open_ro(directory.device()), "/", WalkOptions::new().stat(stat));
        assert!(matches!(told.error_at("deep/er"), Error::Corrupt(_)));
        assert_eq!(told.found.len() + if stat { 3 } else { 2 }, whole.found.len());
    }

    let mut block = image.clone();
    let number: usize = oracle_block(&image, "/big", 3);
    block.bytes[number * BLOCK + 20] ^= 1;
    let told = walk(&open_ro(block.device()), "/", WalkOptions::new());
    assert!(matches!(told.error_at("big"), Error::Corrupt(_)));
    assert!(told.found.iter().any(|found| found.0.starts_with(b"big/")), "what came before the bad block");
    assert!(told.found.iter().any(|found| found.0 == b"deep/er/est/file"), "the other directories");
}

/// The device block of a directory's block.
fn oracle_block(image: &Image, path: &str, block: u64) -> usize {
    let scratch = Scratch::new(16 << 20);
    let file = scratch.file("image");
    image.save(&file);
    oracle::debugfs(&file, &format!("bmap {path} {block}")).trim().parse().unwrap()
}

#[test]
fn directories_that_share_blocks_are_not_read_for_ever() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let made = VolumeBuilder::new(4 << 20).args(["-b", "1024", "-O", "^metadata_csum,^has_journal"]).build();
    let directories = 40;
    let mut requests = String::new();
    for n in 0..directories {
        requests += &format!("mkdir /d{n}\n");
    }
    oracle::debugfs_script(made.path(), &requests);
    let mut image = Image::load(made.path());
    let layout = Layout::of(&image);
    // As long as the volume, with the first directory's blocks throughout: one extent cannot map that, but each of the
    // directories can have the same thousand blocks.
    let data: usize = oracle_block(&image, "/d0", 0);
    for n in 0..directories {
        let start = layout.inode(ino_of(&Image::load(made.path()), &format!("/d{n}")));
        let inode = &mut image.bytes[start..start + 128];
        inode[4..8].copy_from_slice(&(1000u32 << 10).to_le_bytes());
        // One extent of 1000 blocks, starting at the first directory's.
        inode[40 + 12 + 4..40 + 12 + 6].copy_from_slice(&1000u16.to_le_bytes());
        inode[40 + 12 + 8..40 + 12 + 12].copy_from_slice(&(data as u32).to_le_bytes());
    }
    let told =
        within(Duration::from_secs(10), move || walk(&open_ro(image.device()), "/", WalkOptions::new()));
    let shared = told.errors.iter().filter(|error| error.error.to_string().contains("share blocks")).count();
    assert!(shared >= directories - 6, "{shared} of {directories}: {:?}", told.errors.first());
}

#[test]
fn two_thousand_levels_of_long_names() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = deep(2000, 200);
    let device = uext4::device::open(
        &uext4::DeviceSpec::parse(volume.path().to_str().unwrap()).unwrap(),
        uext4::device::OpenOptions { write: false, force: false },
    );
    let device: Arc<dyn Device> = device.unwrap().device;
    let volume = Volume::open_device(device, VolumeOptions::read_only()).unwrap();
    let told = walk(&volume, "/", WalkOptions::new().max_depth(100));
    assert!(told.errors.is_empty());
    let mut walk = volume.walk("/", WalkOptions::new().brackets(true)).unwrap();
    let (mut deepest, mut longest, mut left) = (0, 0, 0);
    while let Some(entry) = walk.advance() {
        let entry = entry.unwrap();
        deepest = deepest.max(entry.depth);
        longest = longest.max(entry.path.len());
        left += usize::from(entry.visit == Visit::Leave);
    }
    assert_eq!((deepest, longest, left), (2000, 2000 * 201 - 1, 2002));
}

/// A volume with this many levels of directories.
fn deep(levels: usize, name: usize) -> uext4_testkit::Volume {
    let volume = VolumeBuilder::new(64 << 20).args(["-N", "4096", "-O", "^has_journal"]).build();
    let name = "n".repeat(name);
    oracle::debugfs_script(volume.path(), &format!("mkdir {name}\ncd {name}\n").repeat(levels));
    volume
}

#[test]
fn root_the_space_of_a_volume_is_what_the_kernel_says() {
    needs!(Need::Loop, Need::Tool("mke2fs"));
    for (kind, args) in [
        ("ext4", &[][..]),
        ("ext4", &["-b", "1024"]),
        ("ext4", &["-b", "1024", "-O", "^flex_bg,^resize_inode"]),
        ("ext4", &["-b", "4096", "-m", "17"]),
        ("ext4", &["-O", "^has_journal"]),
        ("ext4", &["-O", "^has_journal", "-b", "1024", "-g", "1024"]),
        ("ext4", &["-O", "meta_bg,^resize_inode", "-b", "1024"]),
        ("ext4", &["-O", "sparse_super2", "-b", "1024"]),
        ("ext4", &["-O", "bigalloc", "-C", "65536"]),
        ("ext4", &["-O", "bigalloc,^has_journal", "-C", "16384", "-b", "1024"]),
        ("ext4", &["-I", "128", "-O", "^64bit"]),
        ("ext4", &["-O", "^extent,^64bit"]),
        ("ext2", &["-b", "1024"]),
        ("ext2", &["-r", "0"]),
        ("ext3", &["-b", "2048"]),
    ] {
        let volume = VolumeBuilder::new(200 << 20).kind(kind).args(args.iter().copied()).build();
        let kernel = volume.with_kernel(|dir| {
            std::fs::write(dir.join("file"), vec![1; 3 << 20]).unwrap();
            std::fs::create_dir(dir.join("directory")).unwrap();
            oracle::sync(dir);
            rustix::fs::statvfs(dir).unwrap()
        });
        let ours = Volume::open(volume.path().to_str().unwrap(), VolumeOptions::read_only()).unwrap();
        let ours = ours.statfs().unwrap();
        let ours =
            (ours.block_size.into(), ours.blocks, ours.free, ours.available, ours.inodes, ours.free_inodes);
        let kernel = (
            kernel.f_frsize,
            kernel.f_blocks,
            kernel.f_bfree,
            kernel.f_bavail,
            kernel.f_files,
            kernel.f_ffree,
        );
        assert_eq!(ours, kernel, "{kind} {args:?}");
    }
}

#[test]
fn root_a_tree_of_the_kernel_is_found_whole() {
    needs!(Need::Loop, Need::Tool("mke2fs"));
    let volume = VolumeBuilder::new(256 << 20).build();
    let manifest = {
        volume.with_kernel(|dir| fixture::standard_tree(dir, 11));
        volume.kernel_manifest()
    };
    let ours = Volume::open(volume.path().to_str().unwrap(), VolumeOptions::read_only()).unwrap();
    let told = walk(&ours, "/", WalkOptions::new());
    assert!(told.errors.is_empty(), "{:?}", told.errors);
    assert_eq!(told.found.len(), manifest.len());
    for (path, _, _, metadata) in told.found {
        let (metadata, entry) = (metadata.unwrap(), &manifest[&[b"/", &path[..]].concat()]);
        assert_eq!(
            (
                metadata.mode,
                metadata.uid,
                metadata.gid,
                metadata.size,
                u64::from(metadata.links),
                metadata.rdev
            ),
            (entry.mode, entry.uid, entry.gid, entry.size, entry.nlink, entry.rdev),
            "{}",
            String::from_utf8_lossy(&path)
        );
        assert_eq!(metadata.modified.nanoseconds_since_epoch(), entry.mtime_ns);
    }
}
