//! Damaged directories whose checksums are right: what an attacker would write. Every answer is the truth or a
//! typed error that names the directory, and comes soon.

use crate::common;

use common::dirs::{CASEFOLD_FLAG, EXTENTS_FLAG, Recipe, in_dir};
use common::hostile::{BLOCK, Bench, Layout, ino_of};
use common::{Image, open_ro, within};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4::device::Device;
use uext4::{DirCookie, Error, Ino};
use uext4_ondisk::ext4::{Inode, update_dir_checksum, update_htree_checksum};
use uext4_testkit::{Need, Rng, needs};

const LIMIT: Duration = Duration::from_secs(120);
const CASE: Duration = Duration::from_secs(2);

/// 700 names of which four fill a block: the tree needs a level of nodes.
fn names() -> Vec<Vec<u8>> {
    let end = "n".repeat(225);
    (0..700).map(|n| format!("Name {n:04} {end}").into_bytes()).collect()
}

/// A directory on an image, and how its blocks are checked.
struct Target {
    image: Image,
    ino: Ino,
    seed: u32,
    /// First byte of each block of the directory.
    blocks: Vec<usize>,
    truth: HashMap<Vec<u8>, Ino>,
}

impl Target {
    fn make(args: &[&str], flags: u32) -> Target {
        let request = format!("sif /dir flags {:#x}", EXTENTS_FLAG | flags);
        let recipe = Recipe { size: 8 << 20, args, debugfs: &[&request], ..Recipe::default() };
        let image = recipe.make(&names());
        let (layout, ino) = (Layout::of(&image), ino_of(&image, "/dir"));
        let inode = Inode::decode(&image.bytes[layout.inode(ino)..][..256], ino, &layout.superblock).unwrap();
        let volume = open_ro(image.device());
        let entries = volume.read_dir("/dir").unwrap().map(Result::unwrap);
        let truth =
            entries.filter(|entry| entry.name.len() > 2).map(|entry| (entry.name, entry.ino)).collect();
        let seed = inode.checksum_seed(ino, &layout.superblock);
        let blocks = blocks_of(&image, &layout, ino);
        assert!(blocks.len() > 170, "{}", blocks.len());
        let target = Target { image, ino, seed, blocks, truth };
        assert_eq!(target.image.bytes[target.blocks[0] + 30], 1, "one level of nodes");
        target
    }

    /// Makes the checksum of a directory block right again, where it has a place for one.
    fn repair(&self, image: &mut Image, block: usize) {
        let bytes = &mut image.bytes[block..block + BLOCK];
        // A limit that leads out of the block leaves no place for a checksum.
        let node = block == self.blocks[0] || bytes[4..6] == 1024_u16.to_le_bytes();
        let _no_place_for_it = if node {
            update_htree_checksum(bytes, self.seed)
        } else {
            update_dir_checksum(bytes, self.seed)
        };
    }

    /// Lists, and looks names up. Returns the errors met.
    fn examine(&self, device: Arc<dyn Device>, rng: &mut Rng) -> Vec<Error> {
        let volume = open_ro(device);
        let mut errors = Vec::new();
        match volume.read_dir_of(self.ino) {
            Ok(entries) => errors.extend(entries.take(20_000).filter_map(Result::err)),
            Err(error) => errors.push(error),
        }
        // Listings that go on in the middle see nothing of what a tree is like before it.
        for _ in 0..6 {
            let Ok(mut entries) = volume.read_dir_of(self.ino) else { continue };
            entries.seek(DirCookie::from_raw(rng.next_u64() >> (1 + rng.below(40))).unwrap());
            errors.extend(entries.take(20_000).filter_map(Result::err));
        }
        let listing = errors.len();
        let names: Vec<&Vec<u8>> = self.truth.keys().collect();
        for round in 0..60 {
            let mut name = (*rng.pick(&names)).clone();
            if round % 4 == 0 {
                name.push(b'x');
            }
            match volume.resolve(OsStr::from_bytes(&in_dir(&name)), false) {
                Ok(_) | Err(Error::NotFound) => {}
                Err(error) => errors.push(error),
            }
        }
        let of_directory = |error: &Error| error.inode() == Some(self.ino.get());
        assert!(errors.iter().take(listing).all(of_directory), "{errors:?}");
        for error in &errors {
            let typed = matches!(error, Error::Corrupt(_) | Error::CorruptInode { .. });
            // A changed entry may lead to an inode that is none; then the error names that one.
            assert!(typed && error.errno() == 117 && error.inode().is_some(), "{error:?}");
        }
        errors
    }

    /// Lists a damaged directory, in one go and anew from each eleventh entry. Returns whether all names came once.
    fn lists_all(&self, device: Arc<dyn Device>) -> bool {
        let volume = open_ro(device);
        let mut truth: Vec<&[u8]> = self.truth.keys().map(Vec::as_slice).chain([&b"."[..], b".."]).collect();
        truth.sort_unstable();
        let mut found = Vec::new();
        let mut cookie = DirCookie::START;
        loop {
            let mut entries = volume.read_dir_of(self.ino).unwrap();
            entries.seek(cookie);
            let Ok(part) = entries.take(11).collect::<uext4::Result<Vec<_>>>() else { return false };
            let Some(last) = part.last() else { break };
            assert!(last.cookie > cookie);
            cookie = last.cookie;
            found.extend(part.into_iter().map(|entry| entry.name));
        }
        found.sort_unstable();
        let whole: uext4::Result<Vec<_>> = volume.read_dir_of(self.ino).unwrap().collect();
        let mut whole: Vec<Vec<u8>> = whole.unwrap().into_iter().map(|entry| entry.name).collect();
        whole.sort_unstable();
        assert!(found == whole, "{} names piece by piece, {} in one go", found.len(), whole.len());
        found == truth
    }

    fn child(&self, image: &Image, entries: usize, position: usize) -> u32 {
        let at = entries + position * 8 + 4;
        u32::from_le_bytes(image.bytes[at..at + 4].try_into().unwrap())
    }
}

fn blocks_of(image: &Image, layout: &Layout, ino: Ino) -> Vec<usize> {
    // The extents of the undamaged directory, as its own root of the tree or one leaf below it.
    let root = layout.inode(ino) + 0x28;
    let half = |at: usize| u16::from_le_bytes(image.bytes[at..at + 2].try_into().unwrap());
    let word = |at: usize| u32::from_le_bytes(image.bytes[at..at + 4].try_into().unwrap());
    let leaf = if half(root + 6) == 0 { root } else { word(root + 12 + 4) as usize * BLOCK };
    let mut blocks = Vec::new();
    for extent in 0..usize::from(half(leaf + 2)) {
        let at = leaf + 12 + extent * 12;
        let start = word(at + 8);
        blocks.extend((start..start + u32::from(half(at + 4))).map(|block| block as usize * BLOCK));
    }
    blocks
}

fn put(image: &mut Image, at: usize, bytes: &[u8]) {
    image.bytes[at..at + bytes.len()].copy_from_slice(bytes);
}

const GUARDED: &[&str] = &["-b", "1024", "-O", "metadata_csum,^has_journal"];
const BARE: &[&str] = &["-b", "1024", "-O", "^metadata_csum,^has_journal"];
const FOLDED: &[&str] = &["-b", "1024", "-O", "casefold,metadata_csum,^has_journal"];

/// Entries of the root behind limit and count, and of a node.
const ROOT_ENTRIES: usize = 32;
const NODE_ENTRIES: usize = 8;

#[test]
fn trees_that_lead_astray_are_corrupt() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    within(LIMIT, || {
        for (args, flags) in [(GUARDED, 0), (BARE, 0), (FOLDED, CASEFOLD_FLAG)] {
            astray(&Target::make(args, flags), args != BARE);
        }
    });
}

fn astray(target: &Target, guarded: bool) {
    let root = target.blocks[0];
    let first = target.child(&target.image, root + ROOT_ENTRIES, 0);
    let node = target.blocks[first as usize];
    let leaf = target.child(&target.image, node + NODE_ENTRIES, 0);
    let each_child = |image: &mut Image, value: u32| {
        for position in 0..60 {
            put(image, node + NODE_ENTRIES + position * 8 + 4, &value.to_le_bytes());
        }
    };
    type Change<'a> = (&'a str, usize, &'a dyn Fn(&mut Image));
    let cases: [Change<'_>; 14] = [
        ("a node leads to itself", node, &|image| each_child(image, first)),
        ("a node leads to the root", node, &|image| each_child(image, 0)),
        ("a node leads behind the end", node, &|image| each_child(image, 0x0FFF_FFFF)),
        ("the root leads to entries", root, &|image| {
            put(image, root + ROOT_ENTRIES + 4, &leaf.to_le_bytes());
            put(image, root + ROOT_ENTRIES + 12, &leaf.to_le_bytes());
        }),
        ("the root says no levels, and leads to nodes", root, &|image| put(image, root + 30, &[0])),
        ("the root says one level more", root, &|image| put(image, root + 30, &[2])),
        ("the root says 255 levels", root, &|image| put(image, root + 30, &[255])),
        ("a keyed hash without a key", root, &|image| put(image, root + 28, &[6])),
        ("an unknown hash", root, &|image| put(image, root + 28, &[7])),
        ("unknown flags", root, &|image| put(image, root + 31, &[1])),
        ("a count above the limit", node, &|image| put(image, node + 10, &200_u16.to_le_bytes())),
        ("a count of 0", node, &|image| put(image, node + 10, &[0, 0])),
        ("a limit of 65,535", node, &|image| put(image, node + 8, &[255, 255])),
        ("a smaller limit", node, &|image| put(image, node + 8, &120_u16.to_le_bytes())),
    ];
    for (what, block, change) in cases {
        println!("{what}");
        let mut changed = target.image.clone();
        change(&mut changed);
        target.repair(&mut changed, block);
        let started = Instant::now();
        let errors = target.examine(changed.device(), &mut Rng::new(1));
        assert!(started.elapsed() < CASE, "{what}: {:?}", started.elapsed());
        // No leaf is damaged. A node whose checksum has no place in it cannot be read at all.
        let unreadable =
            ["a limit of 65,535", "a smaller limit", "a count above the limit"].contains(&what) && guarded;
        assert!(target.lists_all(changed.device()) || unreadable, "{what}");
        // Without checksums an empty block of entries cannot be told from a node.
        let silent = !guarded && what.ends_with("leads to nodes");
        assert!(!errors.is_empty() || silent, "{what}: nobody noticed");
    }
}

#[test]
fn a_chain_of_one_hash_over_all_blocks_ends() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    within(LIMIT, || {
        let target = Target::make(GUARDED, 0);
        let root = target.blocks[0];
        let node = target.blocks[target.child(&target.image, root + ROOT_ENTRIES, 0) as usize];
        let mut changed = target.image.clone();
        // All children claim to continue the hash before, in the node and in the root, and all are one block.
        for (entries, count) in [(root + ROOT_ENTRIES, 2), (node + NODE_ENTRIES, 60)] {
            for position in 1..count {
                put(&mut changed, entries + position * 8, &1_u32.to_le_bytes());
            }
        }
        for block in [root, node] {
            target.repair(&mut changed, block);
        }
        let started = Instant::now();
        target.examine(changed.device(), &mut Rng::new(2));
        assert!(started.elapsed() < CASE, "{:?}", started.elapsed());
    });
}

/// Changes up to four places of the directory; half of them where the tree says how it goes on.
fn mutate(target: &Target, image: &mut Image, rng: &mut Rng) -> Vec<usize> {
    let inner: Vec<usize> = target.blocks.iter().copied().filter(|&at| is_node(target, at)).collect();
    let mut touched = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let block = if rng.chance(60) { *rng.pick(&inner) } else { *rng.pick(&target.blocks) };
        let most = if rng.chance(50) { 48 } else { BLOCK as u64 - 12 };
        let at = block + rng.below(most) as usize;
        match rng.below(3) {
            0 => image.bytes[at] ^= 1 << rng.below(8),
            1 => image.bytes[at] = rng.next_u64() as u8,
            _ => {
                let value = *rng.pick(&[0, 1, 4, 12, 1012, 1024, 0xFFFF, 0x7FFF_FFFF, u32::MAX]);
                put(image, at & !3, &value.to_le_bytes());
            }
        }
        touched.push(block);
    }
    touched
}

fn is_node(target: &Target, block: usize) -> bool {
    block == target.blocks[0] || target.image.bytes[block + 4..block + 6] == 1024_u16.to_le_bytes()
}

#[test]
fn mutated_directories_with_right_checksums_are_survived() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    within(LIMIT, || {
        for (seed, args, flags) in [(31, GUARDED, 0), (32, FOLDED, CASEFOLD_FLAG), (33, BARE, 0)] {
            let target = Target::make(args, flags);
            let bench = Bench::new(target.image.clone());
            let mut noticed = 0;
            for case in 0..250 {
                let mut rng = Rng::new(seed).fork(case);
                let mut changed = target.image.clone();
                let touched = mutate(&target, &mut changed, &mut rng);
                for &block in &touched {
                    target.repair(&mut changed, block);
                }
                let numbers: Vec<usize> = touched.iter().map(|block| block / BLOCK).collect();
                let started = Instant::now();
                let errors = bench.with(&changed, &numbers, |device| target.examine(device, &mut rng));
                assert!(started.elapsed() < CASE, "seed {seed} case {case}: {:?}", started.elapsed());
                noticed += usize::from(!errors.is_empty());
            }
            println!("seed {seed}: {noticed} of 250 mutations were noticed");
            assert!(noticed > 80, "{noticed}");
        }
    });
}
