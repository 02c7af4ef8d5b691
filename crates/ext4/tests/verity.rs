//! Files that fs-verity seals when a volume is made: `fsverity` measures them alike, every byte is covered, and what is
//! stored behind them cannot mislead.

use crate::common;

use common::making::{MIB, TIME, UUID, open, options};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use uext4::device::{Device, MemoryDevice, MemoryOptions, Op};
use uext4::mkfs::{
    Contents, Defaults, DmVerity, Error as MkfsError, Free, Item, ItemKind, Seal, Source, SourceError, Tree,
    dry_run_tree, format_tree, smallest,
};
use uext4::{
    CorruptKind, Error, HashAlgorithm, InodeFlags, OpenOptions, SetAttributes, Timestamp, Volume,
    VolumeOptions, XattrFlags,
};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};
use uext4_testkit::{Need, Rng, Scratch, e2fsck_clean, fixture, needs, oracle};

/// Contents by pattern: the key is the number of the pattern.
struct Patterns;

impl Source for Patterns {
    fn read(&self, key: u64, pos: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        fixture::pattern(key, pos, buffer);
        Ok(())
    }
}

/// The same, each read after another time.
struct Late(AtomicU64);

impl Source for Late {
    fn read(&self, key: u64, pos: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let number = self.0.fetch_add(7919, Ordering::Relaxed);
        std::thread::sleep(std::time::Duration::from_micros(Rng::new(number).below(3000)));
        Patterns.read(key, pos, buffer)
    }
}

fn file(contents: Contents) -> Item {
    Item {
        kind: ItemKind::Regular(contents),
        mode: 0o644,
        uid: 0,
        gid: 0,
        modified: Timestamp { seconds: TIME as i64, nanoseconds: 0 },
        xattrs: BTreeMap::new(),
    }
}

/// Sizes around blocks, levels and the start of the tree; some with holes.
fn shapes() -> Vec<Contents> {
    let sizes = [0, 1, 1023, 1024, 4095, 4096, 4097, 65_535, 65_536, 65_537, 128 * 1024, 128 * 4096];
    let more = [128 * 4096 + 1, 3_000_000, 16 * 16 * 1024 + 1, 32 * 32 * 1024 + 1, 64 * 64 * 4096 + 5];
    let whole = sizes.into_iter().chain(more).enumerate();
    let mut shapes: Vec<Contents> = whole.map(|(key, size)| Contents::whole(size, key as u64)).collect();
    let holes: [(u64, &[(u64, u64)]); 5] = [
        (4000, &[]),
        (100_000, &[]),
        (100_000, &[(50_000, 50_001)]),
        (5_000_000, &[(0, 10), (1_000_000, 1_100_000), (4_999_999, 5_000_000)]),
        (200_000, &[(0, 100_000)]),
    ];
    shapes.extend(holes.into_iter().zip(100..).map(|((size, data), key)| Contents {
        size,
        data: data.iter().map(|&(start, end)| start..end).collect(),
        key,
    }));
    shapes
}

fn name(number: usize) -> String {
    format!("file {number}")
}

fn tree(shapes: &[Contents], seal: Seal) -> Tree {
    let mut tree = Tree::new(Timestamp { seconds: TIME as i64, nanoseconds: 0 });
    for (number, contents) in shapes.iter().enumerate() {
        let id = tree.add(Tree::ROOT, name(number).as_bytes(), file(contents.clone())).unwrap();
        tree.seal(id, seal).unwrap();
    }
    tree.add(Tree::ROOT, b"plain", file(Contents::whole(70_000, 5))).unwrap();
    tree
}

fn bytes_of(contents: &Contents) -> Vec<u8> {
    let mut bytes = vec![0; contents.size as usize];
    for range in &contents.data {
        fixture::pattern(contents.key, range.start, &mut bytes[range.start as usize..range.end as usize]);
    }
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn make(scratch: &Scratch, name: &str, words: &str, tree: &Tree) -> PathBuf {
    let path = scratch.sparse_file(name, 200 * MIB);
    let options = options(words, "", Defaults::Upstream);
    format_tree(&*open(&path), &options, tree, &Patterns).unwrap_or_else(|error| panic!("{words}: {error}"));
    path
}

fn read_only() -> OpenOptions {
    OpenOptions::new().read(true)
}

/// `fsverity digest` of a file of the host.
fn measured(path: &Path, algorithm: HashAlgorithm, block: u32, salt: &[u8]) -> String {
    let mut command = oracle::command("fsverity");
    command.args(["digest", "--compact"]).arg(format!("--hash-alg={}", algorithm.name()));
    command.arg(format!("--block-size={block}"));
    if !salt.is_empty() {
        command.arg(format!("--salt={}", hex(salt)));
    }
    oracle::run(command.arg(path)).trim().to_owned()
}

#[test]
fn fsverity_measures_sealed_files_alike() {
    needs!(Need::Tool("fsverity"), Need::Tool("e2fsck"));
    let rows: [(&str, HashAlgorithm, &[u8]); 6] = [
        ("-b 4096", HashAlgorithm::Sha256, b""),
        ("-b 4096", HashAlgorithm::Sha512, b"salt"),
        ("-b 1024", HashAlgorithm::Sha512, b""),
        ("-b 2048 -O ^has_journal", HashAlgorithm::Sha256, &[7; 32]),
        ("-b 65536", HashAlgorithm::Sha256, b"s"),
        ("-b 4096 -O bigalloc -C 262144", HashAlgorithm::Sha256, b"salt"),
    ];
    let shapes = shapes();
    for (words, algorithm, salt) in rows {
        println!("{words} {} {salt:?}", algorithm.name());
        let scratch = Scratch::new(400 * MIB);
        let tree = tree(&shapes, Seal::new(algorithm, salt).unwrap());
        let path = make(&scratch, "volume", words, &tree);
        e2fsck_clean(&path);
        let volume = Volume::open(&path, VolumeOptions::read_only()).unwrap();
        let block = volume.block_size().min(4096);
        assert!(volume.superblock().features.names().iter().any(|name| name == "verity"));
        for (number, contents) in shapes.iter().enumerate() {
            let bytes = bytes_of(contents);
            let host = scratch.file("contents");
            std::fs::write(&host, &bytes).unwrap();
            let file = volume.open_file(name(number), read_only()).unwrap();
            let verity = file.verity().unwrap().unwrap();
            assert_eq!(hex(&verity.digest()), measured(&host, algorithm, block, salt), "{contents:?}");
            assert_eq!((verity.block_size(), verity.salt()), (block, salt));
            let mut compared = 0;
            assert_eq!(file.verify_verity(&mut |bytes| compared += bytes).unwrap(), Some(verity));
            assert_eq!(compared, contents.size.next_multiple_of(u64::from(block)));
            // Nothing of the tree is part of the contents.
            assert!(volume.read(name(number)).unwrap() == bytes, "{contents:?}");
            let mut behind = vec![1; 65_536];
            assert_eq!(file.read_any_at(&mut behind, contents.size.next_multiple_of(65_536)).unwrap(), 0);
            let mapped = file.map().map(|piece| piece.unwrap().end()).last().unwrap_or(0);
            assert!(mapped <= contents.size.next_multiple_of(volume.block_size().into()), "{mapped}");
            assert!(volume.metadata(name(number)).unwrap().flags.contains(InodeFlags::VERITY));
        }
        let plain = volume.open_file("plain", read_only()).unwrap();
        assert_eq!((plain.verity().unwrap(), plain.verify_verity(&mut |_| {}).unwrap()), (None, None));
    }
}

#[test]
fn the_same_tree_makes_the_same_trees_and_the_smallest_volume_holds_them() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(1800 * MIB);
    let tree = tree(&shapes(), Seal::new(HashAlgorithm::Sha256, b"").unwrap());
    let [one, two] = ["one", "two"].map(|name| make(&scratch, name, "-b 4096", &tree));
    assert!(std::fs::read(&one).unwrap() == std::fs::read(two).unwrap());
    // Contents that come late, and so end in another order.
    for seed in 1..4 {
        let (late, number) = (scratch.sparse_file(format!("late {seed}"), 200 * MIB), AtomicU64::new(seed));
        let options = options("-b 4096", "", Defaults::Upstream);
        format_tree(&*open(&late), &options, &tree, &Late(number)).unwrap();
        assert!(std::fs::read(&one).unwrap() == std::fs::read(&late).unwrap(), "{seed}");
    }
    let geometry = open(&scratch.sparse_file("any", MIB)).geometry();
    let asked = options("-b 4096", "", Defaults::Upstream).for_reading();
    let smallest = smallest(geometry, &asked, &tree, Free::Bytes(0)).unwrap();
    let path = scratch.sparse_file("smallest", smallest.size.unwrap());
    let made = format_tree(&*open(&path), &smallest, &tree, &Patterns).unwrap();
    assert!(made.superblock.free_blocks < 4, "{}", made.superblock.free_blocks);
    e2fsck_clean(&path);
    let volume = Volume::open(&path, VolumeOptions::read_only()).unwrap();
    for number in 0..shapes().len() {
        let file = volume.open_file(name(number), read_only()).unwrap();
        file.verify_verity(&mut |_| {}).unwrap().unwrap();
    }
}

/// Where blocks of a file are, also those behind its end.
fn block_of(path: &Path, name: &str, logical: u64) -> u64 {
    oracle::debugfs(path, &format!("bmap \"/{name}\" {logical}")).trim().parse().unwrap()
}

fn flip(path: &Path, at: u64) {
    let image = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    image.read_exact_at(&mut byte, at).unwrap();
    image.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// What verifying a file says.
fn verified(path: &Path, name: &str) -> Result<(), Error> {
    let volume = Volume::open(path, VolumeOptions::read_only()).unwrap();
    volume
        .open_file(name, read_only())
        .unwrap()
        .verify_verity(&mut |_| {})
        .map(|verity| assert!(verity.is_some()))
}

fn kind_of(error: &Error) -> (CorruptKind, Option<u32>) {
    match error {
        Error::Corrupt(corrupt) => {
            assert!(corrupt.place.inode.is_some(), "{error}");
            (corrupt.kind, corrupt.place.lblk.map(|lblk| lblk.get()))
        }
        other => panic!("{other}"),
    }
}

#[test]
fn every_flipped_byte_is_found_where_it_is() {
    needs!(Need::Tool("debugfs"));
    let scratch = Scratch::new(400 * MIB);
    // Two levels: 129 blocks at 65 536 bytes and more.
    let shapes = [Contents::whole(130 * 4096 - 100, 3), Contents::whole(500, 4)];
    let path = make(&scratch, "volume", "-b 4096", &tree(&shapes, Seal::default()));
    let name = name(0);
    let start = (130_u64 * 4096).next_multiple_of(65_536) / 4096;
    let mut rng = Rng::new(11);
    let contents = "a block of the contents";
    let in_tree = "a block of the hash tree";
    // The top of the tree, both blocks below it (the second one is nearly empty), and the tail behind the end.
    for (logical, within, what) in [
        (0, rng.below(4096), contents),
        (64, rng.below(4096), contents),
        (129, rng.below(3900), contents),
        (129, 4090, contents),
        (start, rng.below(64), in_tree),
        (start, 4000, in_tree),
        (start + 1, rng.below(4096), in_tree),
        (start + 2, rng.below(64), in_tree),
        (start + 2, 4000, in_tree),
    ] {
        let at = block_of(&path, &name, logical) * 4096 + within;
        flip(&path, at);
        let error = verified(&path, &name).unwrap_err();
        let expected = (CorruptKind::VerityHash(what), Some(logical as u32));
        // A digest in the top is that of a block below it.
        let below = (CorruptKind::VerityHash(in_tree), Some(start as u32));
        assert!([expected, below].contains(&kind_of(&error)), "{logical} {within}: {error}");
        assert_eq!(error.errno(), 117);
        flip(&path, at);
        verified(&path, &name).unwrap();
    }
    // Of a file of one block the root hash is in the descriptor.
    for (logical, within) in [(0, 3), (0, 4000), (16, 16), (16, 47)] {
        let at = block_of(&path, "file 1", logical) * 4096 + within;
        flip(&path, at);
        let error = verified(&path, "file 1").unwrap_err();
        assert_eq!(kind_of(&error), (CorruptKind::VerityHash(contents), Some(0)), "{error}");
        flip(&path, at);
    }
}

#[test]
fn descriptors_that_mislead_are_refused() {
    needs!(Need::Tool("debugfs"));
    let scratch = Scratch::new(400 * MIB);
    let shapes = [Contents::whole(5000, 3)];
    let path = make(&scratch, "volume", "-b 4096", &tree(&shapes, Seal::default()));
    let (tree, descriptor) = (16, 17);
    let image = File::options().read(true).write(true).open(&path).unwrap();
    let base = block_of(&path, "file 0", descriptor) * 4096;
    let mut good = vec![0; 4096];
    image.read_exact_at(&mut good, base).unwrap();
    assert_eq!(good[4092..], [0, 1, 0, 0]);
    let edits: [(usize, &[u8], &str); 14] = [
        (0, &[9], "version"),
        (1, &[0], "algorithm"),
        (1, &[77], "algorithm"),
        (2, &[31], "hashed blocks"),
        (2, &[255], "hashed blocks"),
        (2, &[9], "hashed blocks"),
        (3, &[33], "salt"),
        (3, &[255], "salt"),
        (4, &[1], "signature"),
        (8, &[0x89], "another size"),
        (15, &[0xFF], "another size"),
        (200, &[1], "reserved"),
        (4092, &[0xFF; 4], "size is impossible"),
        // Long enough to reach back before the tree.
        (4092, &[0, 0x40, 0, 0], "behind the contents"),
    ];
    for (at, bytes, word) in edits {
        image.write_all_at(bytes, base + at as u64).unwrap();
        let volume = Volume::open(&path, VolumeOptions::read_only()).unwrap();
        let file = volume.open_file("file 0", read_only()).unwrap();
        let error = file.verity().unwrap_err();
        assert!(matches!(kind_of(&error).0, CorruptKind::Verity(_)), "{error}");
        assert!(error.to_string().contains(word), "{word}: {error}");
        assert!(file.verify_verity(&mut |_| {}).is_err());
        // Contents are still read.
        assert!(volume.read("file 0").unwrap() == bytes_of(&shapes[0]));
        image.write_all_at(&good, base).unwrap();
    }
    verified(&path, "file 0").unwrap();
    // In the tree.
    image.write_all_at(&[0xFC, 0x1F, 0, 0], base + 4092).unwrap();
    let error = verified(&path, "file 0").unwrap_err();
    assert!(kind_of(&error).0 != CorruptKind::VerityHash("") && error.errno() == 117, "{error}");
    image.write_all_at(&good, base).unwrap();
    // A tree that is not mapped, then no descriptor, then nothing at all.
    for (first, last, word) in
        [(tree, tree, "does not have its hash"), (tree, 99, "fs-verity"), (0, 99, "no blocks")]
    {
        oracle::debugfs_write(&path, &format!("punch \"/file 0\" {first} {last}"));
        let error = verified(&path, "file 0").unwrap_err();
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
    // A flag alone.
    oracle::debugfs_write(&path, "set_inode_field /plain flags 0x180000");
    assert!(verified(&path, "plain").unwrap_err().to_string().contains("fs-verity"));
}

/// A small volume without checksums in memory, its bytes, and where descriptor and inode of its sealed file are.
struct Planted {
    memory: Arc<dyn Device>,
    good: uext4::Buffer,
    record: usize,
    inode: usize,
    known: uext4::Verity,
}

const PLANTED: usize = 4 << 20;

fn buffer() -> uext4::Buffer {
    uext4::BufferPool::new(PLANTED).unwrap().take(PLANTED).unwrap()
}

fn planted() -> Planted {
    let words = "-b 4096 -O ^has_journal,^metadata_csum,^metadata_csum_seed";
    let mut options = options(words, "", Defaults::Upstream);
    options.size = Some(PLANTED as u64);
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(MemoryOptions::new(PLANTED as u64)).unwrap());
    let tree = tree(&[Contents::whole(600_000, 3)], Seal::default());
    format_tree(&*memory, &options, &tree, &Patterns).unwrap();
    let mut good = buffer();
    memory.read_at(&mut good, 0).unwrap();
    let volume = Volume::open_device(memory.clone(), VolumeOptions::read_only()).unwrap();
    let file = volume.open_file("file 0", read_only()).unwrap();
    let known = file.verify_verity(&mut |_| {}).unwrap().unwrap();
    let root = good.windows(32).position(|bytes| bytes == known.root_hash()).unwrap();
    let inode = inode_of(&good, 600_000);
    drop(file);
    Planted { memory, good, record: root - 16, inode, known }
}

/// What verifying the sealed file says after the image was changed.
fn verified_in(planted: &Planted, image: &[u8]) -> Result<Option<uext4::Verity>, Error> {
    planted.memory.write_at(image, 0, uext4::device::WriteDurability::Cached).unwrap();
    let volume = Volume::open_device(planted.memory.clone(), VolumeOptions::read_only()).unwrap();
    volume.open_file("file 0", read_only())?.verify_verity(&mut |_| {})
}

/// A map may say that a block is in many places. That must not make a comparison endless.
#[test]
fn a_tree_larger_than_the_volume_is_refused() {
    let planted = planted();
    let mut bad = buffer();
    bad.copy_from_slice(&planted.good);
    // A hole of a gibibyte: its tree has 2048 + 16 + 1 blocks, and the volume 1024.
    let size = 1_u64 << 30;
    let last = ((size >> 12) + 2048 + 16 + 1) as u32;
    let to = (planted.record / 4096) as u32;
    let (inode, record) = (planted.inode, planted.record);
    bad[inode + 4..inode + 8].copy_from_slice(&(size as u32).to_le_bytes());
    bad[inode + 42..inode + 44].copy_from_slice(&1_u16.to_le_bytes());
    bad[inode + 52..inode + 56].copy_from_slice(&last.to_le_bytes());
    bad[inode + 56..inode + 58].copy_from_slice(&1_u16.to_le_bytes());
    bad[inode + 58..inode + 60].fill(0);
    bad[inode + 60..inode + 64].copy_from_slice(&to.to_le_bytes());
    bad[record + 8..record + 16].copy_from_slice(&size.to_le_bytes());
    let error = verified_in(&planted, &bad).unwrap_err();
    assert!(error.to_string().contains("larger than the volume"), "{error}");
}

#[test]
fn random_bytes_behind_contents_give_typed_errors() {
    let planted = planted();
    let (record, inode) = (planted.record, planted.inode);
    let mut bad = buffer();
    let mut rng = Rng::new(5);
    let (mut same, mut refused) = (0, 0);
    for round in 0..1000 {
        bad.copy_from_slice(&planted.good);
        for _ in 0..rng.range(1..4) {
            // The descriptor, its size, the map and the size of the inode.
            let at = match rng.below(4) {
                0 => record + rng.below(32) as usize,
                1 => record + 4092 + rng.below(4) as usize,
                2 => inode + 40 + rng.below(60) as usize,
                _ => inode + 4 + rng.below(4) as usize,
            };
            bad[at] = match rng.below(3) {
                0 => 0,
                1 => 0xFF,
                _ => rng.below(256) as u8,
            };
        }
        match verified_in(&planted, &bad) {
            Ok(Some(verity)) => {
                same += 1;
                assert_eq!(verity, planted.known, "{round}");
            }
            Ok(None) => panic!("{round}: the flag was not touched"),
            Err(Error::Corrupt(_) | Error::CorruptInode { .. } | Error::Io(_)) => refused += 1,
            Err(error) => panic!("{round}: {error:?}"),
        }
    }
    assert!(same > 5 && refused > 500, "{same} {refused}");
}

/// Where the record of the regular file of this size is.
fn inode_of(image: &[u8], size: u32) -> usize {
    let records = image.chunks(256).position(|record| {
        record[1] & 0xF0 == 0x80 && record[4..8] == size.to_le_bytes() && record[40..42] == [0x0A, 0xF3]
    });
    records.unwrap() * 256
}

#[test]
fn sealed_files_change_in_all_but_their_contents() {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(400 * MIB);
    let shapes = [Contents::whole(50_000, 3), Contents::whole(0, 4), Contents::whole(700_000, 5)];
    let path = make(&scratch, "volume", "-b 4096", &tree(&shapes, Seal::default()));
    let before = Volume::open(&path, VolumeOptions::read_only()).unwrap().superblock().free_blocks;
    let volume = Volume::open(&path, VolumeOptions::read_write()).unwrap();
    let digest = |volume: &Volume, name: &str| {
        volume.open_file(name, read_only()).unwrap().verify_verity(&mut |_| {}).unwrap().unwrap().digest()
    };
    let sealed = digest(&volume, "file 0");
    for options in [
        OpenOptions::new().write(true),
        OpenOptions::new().read(true).write(true),
        OpenOptions::new().append(true),
        OpenOptions::new().write(true).truncate(true),
    ] {
        for number in 0..3 {
            let error = volume.open_file(name(number), options.clone()).map(drop).unwrap_err();
            assert!(matches!(error, Error::NotPermitted(text) if text.contains("fs-verity")), "{error}");
            assert_eq!(error.errno(), libc::EPERM);
        }
    }
    // A file that is open for reading changes neither size nor blocks.
    let file = volume.open_file("file 0", read_only()).unwrap();
    assert!(file.set_len(0).is_err() && file.set_len(60_000).is_err() && file.prepare(60_000).is_err());
    for mode in [
        uext4::Fallocate::Allocate,
        uext4::Fallocate::KeepSize,
        uext4::Fallocate::Punch,
        uext4::Fallocate::Zero,
        uext4::Fallocate::Collapse,
        uext4::Fallocate::Insert,
    ] {
        let error = file.fallocate(mode, 0, 4096).unwrap_err();
        assert!([libc::EPERM, libc::EBADF].contains(&error.errno()), "{mode:?}: {error}");
    }
    assert!(file.write_any_at(b"x", 0, uext4::WriteFlags::empty()).is_err());
    drop(file);
    volume.rename("file 0", "other").unwrap();
    volume.open_file("other", read_only()).unwrap().link_at("second").unwrap();
    let node = volume.node_at("other", true).unwrap();
    assert_eq!(node.set_attributes(&SetAttributes::new().size(5)).unwrap_err().errno(), libc::EPERM);
    node.set_attributes(&SetAttributes::new().mode(0o600).uid(5)).unwrap();
    drop(node);
    volume.set_xattr("other", "user.note", "kept", XattrFlags::empty(), true).unwrap();
    assert!(digest(&volume, "other") == sealed);
    volume.remove_file("file 2").unwrap();
    volume.remove_file("file 1").unwrap();
    volume.close().unwrap();
    e2fsck_clean(&path);
    let volume = Volume::open(&path, VolumeOptions::read_only()).unwrap();
    assert!(digest(&volume, "second") == sealed);
    // 171 blocks of contents, two levels of three blocks and a descriptor; that of the empty file.
    assert_eq!(volume.superblock().free_blocks, before + 171 + 3 + 1 + 1);
}

#[test]
fn what_cannot_be_sealed_is_refused_before_anything_is_written() {
    let scratch = Scratch::new(400 * MIB);
    let path = scratch.sparse_file("volume", 20 * MIB);
    assert!(matches!(Seal::new(HashAlgorithm::Sha256, &[0; 33]), Err(MkfsError::Option(_))));
    let mut tree = tree(&[Contents::whole(5000, 1)], Seal::default());
    let link = Item { kind: ItemKind::Symlink(b"plain".to_vec()), ..file(Contents::default()) };
    let link = tree.add(Tree::ROOT, b"link", link).unwrap();
    for id in [Tree::ROOT, link] {
        assert!(matches!(tree.seal(id, Seal::default()), Err(MkfsError::Option(_))));
    }
    for words in ["-t ext2 -b 4096", "-b 4096 -O ^extent,^64bit"] {
        let options = options(words, "", Defaults::Upstream);
        let error = format_tree(&*open(&path), &options, &tree, &Patterns).unwrap_err();
        assert!(matches!(&error, MkfsError::Option(text) if text.contains("extent")), "{error}");
    }
    let mut large = Tree::new(Timestamp::default());
    let contents = Contents { size: (1 << 44) - 65_536, data: Vec::new(), key: 0 };
    let id = large.add(Tree::ROOT, b"large", file(contents)).unwrap();
    large.seal(id, Seal::default()).unwrap();
    let options = options("-b 4096", "", Defaults::Upstream);
    let device = open(&path);
    let error = dry_run_tree(device.geometry(), &options, &large).unwrap_err();
    assert!(matches!(error, MkfsError::TooSmall { .. } | MkfsError::Contents { .. }), "{error}");
    drop(device);
    assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn a_volume_whose_trees_cannot_be_written_is_none() {
    let tree = tree(&[Contents::whole(700_000, 1), Contents::default()], Seal::default());
    let options = options("-b 4096", "", Defaults::Upstream);
    for number in 1.. {
        let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(MemoryOptions::new(20 * MIB)).unwrap());
        let device = FaultDevice::new(memory.clone());
        let handle = device.handle();
        handle.arm(Fault::nth(FaultOn::Changes, number));
        let made = format_tree(&device, &options, &tree, &Patterns);
        if handle.fired() == 0 {
            assert!(number > 5 && made.is_ok(), "{number}");
            break;
        }
        assert_eq!(made.unwrap_err().errno(), libc::EIO, "{number}");
        assert!(Volume::open_device(memory, VolumeOptions::read_only()).is_err(), "{number}");
    }
}

fn veritysetup(words: &[&str], paths: &[&Path]) -> String {
    let mut command = oracle::command("veritysetup");
    oracle::run(command.args(words).args(paths))
}

#[test]
fn veritysetup_makes_the_same_hash_tree_of_a_volume() {
    needs!(Need::Tool("veritysetup"));
    let rows: [(&str, u64, HashAlgorithm, Option<&[u8]>); 6] = [
        ("-b 4096", 100 * MIB, HashAlgorithm::Sha256, None),
        ("-b 4096", 3 * MIB, HashAlgorithm::Sha512, Some(b"salt")),
        ("-b 4096 -O ^has_journal", 512 << 10, HashAlgorithm::Sha256, Some(b"")),
        ("-b 1024", 9 * MIB + 1024, HashAlgorithm::Sha256, Some(&[3; 256])),
        ("-b 2048", 70 * MIB, HashAlgorithm::Sha512, None),
        ("-b 65536", 64 * MIB, HashAlgorithm::Sha256, None),
    ];
    for (words, size, algorithm, salt) in rows {
        println!("{words} {size} {} {salt:?}", algorithm.name());
        let scratch = Scratch::new(600 * MIB);
        let (ours, theirs) = (scratch.file("ours"), scratch.file("theirs"));
        let mut asked = options(words, "", Defaults::Upstream);
        asked.size = Some(size);
        let small = tree(&[Contents::whole(5000, 1)], Seal::default());
        let how = DmVerity { algorithm, salt: salt.map(<[u8]>::to_vec) };
        let geometry = open(&scratch.sparse_file("any", size)).geometry();
        let planned = dry_run_tree(geometry, &asked, &small).unwrap().superblock.geometry;
        let offset = DmVerity::offset(&planned);
        File::create(&ours).unwrap().set_len(offset + how.size(&planned)).unwrap();
        let device = open(&ours);
        let made = format_tree(&*device, &asked, &small, &Patterns).unwrap();
        drop(device);
        std::fs::copy(&ours, &theirs).unwrap();
        let device = open(&ours);
        let hashed = how.format(&*device, &made.superblock, None, offset).unwrap();
        // Into a file of its own.
        let apart = scratch.sparse_file("apart", how.size(&planned));
        let again = how.format(&*device, &made.superblock, Some(&*open(&apart)), 0).unwrap();
        assert_eq!(again, hashed);
        drop(device);
        let superblock = &hashed.superblock;
        let salt = if superblock.salt.is_empty() { "-".to_owned() } else { hex(&superblock.salt) };
        let uuid = hex(&superblock.uuid);
        let uuid = [&uuid[..8], &uuid[8..12], &uuid[12..16], &uuid[16..20], &uuid[20..]].join("-");
        let format = [
            "format".to_owned(),
            format!("--hash={}", algorithm.name()),
            format!("--salt={salt}"),
            format!("--uuid={uuid}"),
            format!("--data-block-size={}", superblock.data_block_size),
            format!("--hash-block-size={}", superblock.hash_block_size),
            format!("--data-blocks={}", superblock.data_blocks),
        ];
        let format: Vec<&str> = format.iter().map(String::as_str).collect();
        let at = format!("--hash-offset={offset}");
        let said = veritysetup(&[&format[..], &[&at]].concat(), &[&theirs, &theirs]);
        assert!(said.contains(&hex(&hashed.root_hash)), "{said}");
        assert!(std::fs::read(&ours).unwrap() == std::fs::read(&theirs).unwrap());
        let alone = scratch.file("alone");
        veritysetup(&format, &[&ours, &alone]);
        assert!(std::fs::read(&alone).unwrap() == std::fs::read(&apart).unwrap());
        let root = hex(&hashed.root_hash);
        let verify = |ours: &Path| {
            let mut command = oracle::command("veritysetup");
            command.args(["verify", &at]).args([ours, ours]).arg(&root).output().unwrap().status.success()
        };
        assert!(verify(&ours));
        flip(&ours, size / 2);
        assert!(!verify(&ours));
    }
    assert_eq!(UUID.len(), 36);
}

#[test]
fn a_hash_tree_that_has_no_room_or_cannot_be_written_is_told() {
    let mut asked = options("-b 4096", "", Defaults::Upstream);
    asked.size = Some(8 * MIB);
    let small = tree(&[Contents::whole(5000, 1)], Seal::default());
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(MemoryOptions::new(10 * MIB)).unwrap());
    let made = format_tree(&*memory, &asked, &small, &Patterns).unwrap();
    let how = DmVerity::default();
    let offset = DmVerity::offset(&made.superblock.geometry);
    assert_eq!(offset, 8 * MIB);
    let size = how.size(&made.superblock.geometry);
    let error = how.format(&*memory, &made.superblock, None, 10 * MIB - size + 4096).unwrap_err();
    assert!(matches!(error, MkfsError::TooSmall { .. }), "{error}");
    let long = DmVerity { salt: Some(vec![0; 257]), ..DmVerity::default() };
    let error = long.format(&*memory, &made.superblock, None, offset).unwrap_err();
    assert!(matches!(error, MkfsError::Option(_)), "{error}");
    for on in [FaultOn::Changes, FaultOn::Op(Op::Read)] {
        let device = FaultDevice::new(memory.clone());
        let handle = device.handle();
        handle.arm(Fault::nth(on, 1));
        let error = how.format(&device, &made.superblock, None, offset).unwrap_err();
        assert!(matches!(error, MkfsError::HashTree(_)) && error.errno() == libc::EIO, "{error}");
        assert!(handle.fired() > 0);
    }
    assert!(Volume::open_device(memory, VolumeOptions::read_only()).is_ok());
}
