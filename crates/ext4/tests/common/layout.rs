//! A small tree for volumes of any layout: files around every boundary of an indirect map, deep sparse maps, long
//! directories, every kind of node.

use super::tree::{How, manifest, without_xattrs};
use super::{patterned, read_write};
use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};
use uext4::{File, QueueOptions, State, Volume, WriteFlags};
use uext4_testkit::{Manifest, Rng, SparseDigest};

/// Paths of files that are overwritten.
pub const OVERWRITTEN: [&str; 3] = ["/plain", "/deep", "/frag"];

/// Fills `dir` for a volume with blocks of `block` bytes. Device nodes and owners need root.
#[track_caller]
pub fn fill(dir: &Path, block: u64) {
    try_fill(dir, block).unwrap_or_else(|e| panic!("fill {}: {e}", dir.display()));
}

fn try_fill(dir: &Path, block: u64) -> std::io::Result<()> {
    std::fs::create_dir(dir.join("sizes"))?;
    for size in [0, 1, 59, 60, 61, 160, block - 1, block, block + 1, 12 * block - 1, 12 * block + 1] {
        let bytes = patterned(size, 0, size as usize);
        std::fs::write(dir.join("sizes").join(size.to_string()), &*bytes)?;
    }
    std::fs::write(dir.join("plain"), &*patterned(1, 0, 300_001))?;
    std::fs::set_permissions(dir.join("plain"), PermissionsExt::from_mode(0o4751))?;
    sparse(&dir.join("deep"), 2, block, &borders(block))?;
    // Each piece is one block, and they reach into the last level of the map.
    let pairs = if block <= 4096 { 350 } else { 40 };
    sparse(&dir.join("frag"), 3, block, &(0..pairs).map(|n| n * 2).collect::<Vec<_>>())?;
    std::fs::File::create_new(dir.join("hole"))?.set_len(100 * block + 5)?;
    links(dir)?;
    names(dir)?;
    special(dir)?;
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    std::fs::File::options().write(true).open(dir.join("plain"))?.set_modified(time)
}

/// Logical blocks next to every boundary between the levels of an indirect map.
fn borders(block: u64) -> Vec<u64> {
    let p = block / 4;
    let (single, double, triple) = (12, 12 + p, 12 + p + p * p);
    vec![
        0,
        10,
        11,
        single,
        single + 1,
        double - 1,
        double,
        double + 3 * p + 5,
        triple - 1,
        triple,
        triple + 2 * p * p + p + 3,
    ]
}

/// Data in these blocks, holes elsewhere.
fn sparse(path: &Path, id: u64, block: u64, blocks: &[u64]) -> std::io::Result<()> {
    let file = std::fs::File::create_new(path)?;
    for &number in blocks {
        file.write_all_at(&patterned(id, number * block, block as usize), number * block)?;
    }
    file.sync_all()
}

fn links(dir: &Path) -> std::io::Result<()> {
    for length in [1, 58, 59, 60, 61, 300, 1000] {
        symlink("s".repeat(length), dir.join(format!("symlink-{length}")))?;
    }
    symlink("long/../plain", dir.join("to-plain"))
}

/// A directory with more blocks than the inode itself points to (with blocks of 1 KiB), with few inodes.
fn names(dir: &Path) -> std::io::Result<()> {
    let long = dir.join("long");
    std::fs::create_dir(&long)?;
    std::fs::write(long.join("one"), "many names\n")?;
    for n in 0..400 {
        std::fs::hard_link(long.join("one"), long.join(format!("name {n:04} {}", "n".repeat(n % 60))))?;
    }
    let mut path = dir.join("nested");
    for depth in 0..6 {
        std::fs::create_dir(&path)?;
        std::fs::write(path.join("file"), depth.to_string())?;
        path.push(format!("d{depth}"));
    }
    Ok(())
}

fn special(dir: &Path) -> std::io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let mode = Mode::from_raw_mode(0o640);
    mknodat(CWD, dir.join("fifo"), FileType::Fifo, mode, 0)?;
    if rustix::process::geteuid().is_root() {
        mknodat(CWD, dir.join("char"), FileType::CharacterDevice, mode, makedev(1, 3))?;
        mknodat(CWD, dir.join("block"), FileType::BlockDevice, mode, makedev(259, 70_000))?;
        std::os::unix::fs::chown(dir.join("plain"), Some(70_000), Some(80_000))?;
    }
    Ok(())
}

/// The tree as read by this library, rotating through all ways of reading.
pub fn ours(volume: &Volume, turn: usize) -> Manifest {
    let hows = [How::Direct, How::Queue, How::AnyByte];
    without_xattrs(manifest(volume, hows[turn % hows.len()]))
}

/// Compares what a manifest leaves out with the kernel's mount at `root`.
#[track_caller]
pub fn assert_same_attributes(volume: &Volume, root: &Path, tree: &Manifest) {
    for path in tree.keys().map(|path| Path::new(std::str::from_utf8(path).unwrap())) {
        let there = std::fs::symlink_metadata(root.join(path.strip_prefix("/").unwrap())).unwrap();
        let here = volume.symlink_metadata(path).unwrap();
        let name = path.display();
        assert_eq!((here.blocks, u64::from(here.ino.get())), (there.blocks(), there.ino()), "{name}");
        for (found, seconds, nanoseconds) in [
            (here.accessed, there.atime(), there.atime_nsec()),
            (here.modified, there.mtime(), there.mtime_nsec()),
            (here.changed, there.ctime(), there.ctime_nsec()),
        ] {
            assert_eq!((found.seconds, i64::from(found.nanoseconds)), (seconds, nanoseconds), "{name}");
        }
    }
}

/// The contents of a file's written pieces.
struct Model {
    size: u64,
    pieces: BTreeMap<u64, Vec<u8>>,
}

impl Model {
    fn read(file: &File) -> Model {
        let mut model = Model { size: file.size(), pieces: BTreeMap::new() };
        for piece in file.map().map(Result::unwrap).filter(|piece| piece.state == State::Written) {
            let length = piece.end().min(model.size) - piece.logical;
            let mut bytes = vec![0; length as usize];
            assert_eq!(file.read_any_at(&mut bytes, piece.logical).unwrap() as u64, length);
            model.pieces.insert(piece.logical, bytes);
        }
        model
    }

    fn digest(&self) -> [u8; 32] {
        let mut digest = SparseDigest::new();
        self.pieces.iter().for_each(|(&pos, bytes)| digest.update(pos, bytes));
        digest.finish(self.size)
    }
}

/// Overwrites parts of [`OVERWRITTEN`] in every way and returns the digests they must have afterwards.
#[track_caller]
pub fn overwrite(volume: &Volume, seed: u64) -> BTreeMap<&'static str, [u8; 32]> {
    let mut rng = Rng::new(seed);
    let unit = u64::from(volume.device().geometry().logical_block);
    let mut queue = volume.queue(QueueOptions::depth(8)).unwrap();
    let mut digests = BTreeMap::new();
    for name in OVERWRITTEN {
        let file = volume.open_file(name, read_write()).unwrap();
        let mut model = Model::read(&file);
        let starts: Vec<u64> = model.pieces.keys().copied().collect();
        let slot = queue.attach(&file).unwrap();
        for round in 0..36u64 {
            let start = *rng.pick(&starts);
            let bytes = model.pieces.get_mut(&start).unwrap();
            let offset = rng.below((bytes.len() as u64).div_ceil(unit)) * unit;
            let most = (bytes.len() as u64 - offset).min(70_000);
            let aligned = most / unit * unit;
            let any = round % 3 == 0 || aligned == 0;
            let length = if any { 1 + rng.below(most) } else { aligned };
            let (pos, at) = (start + offset, offset as usize);
            let data = patterned(round + 700, pos, length as usize);
            let flags = *rng.pick(&[WriteFlags::empty(), WriteFlags::DSYNC, WriteFlags::SYNC]);
            if any {
                assert_eq!(file.write_any_at(&data, pos, flags).unwrap() as u64, length);
            } else if round % 3 == 1 {
                assert_eq!(file.write_at_with(&data, pos, flags).unwrap() as u64, length);
            } else {
                let mut buffer = queue.buffer(length as usize).unwrap();
                buffer.copy_from_slice(&data);
                queue.write(slot, pos, buffer, flags, round).unwrap();
                queue.wait(1).unwrap().for_each(|done| assert_eq!(done.result.unwrap() as u64, length));
            }
            bytes[at..at + length as usize].copy_from_slice(&data);
        }
        file.sync_all().unwrap();
        assert!(Model::read(&file).digest() == model.digest(), "{name} does not hold what was written");
        queue.detach(slot).unwrap();
        digests.insert(name, model.digest());
    }
    digests
}
