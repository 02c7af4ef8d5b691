//! Listing a directory while its names change: what is there all the time comes once, in any listing, from any cookie.

use crate::common;

use common::dirs::{CASEFOLD_FLAG, EXTENTS_FLAG, MANY, Recipe};
use common::{Image, open_ro, open_rw, read_write};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4::device::CountingDevice;
use uext4::device::MemoryDevice;
use uext4::{DirCookie, DirEntry, ReadDir, Volume, VolumeOptions, WalkOptions};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, needs, oracle};

const FOLD: &str = "sif /dir flags 0x40080000";

/// Arguments of mke2fs, requests for debugfs, and whether the directory gets a hash tree.
const VOLUMES: [(&[&str], &[&str], bool); 7] = [
    (&["-b", "1024"], &[], true),
    (&["-b", "1024", "-O", "^metadata_csum,^has_journal"], &[], true),
    (&["-b", "1024", "-O", "inline_data"], &[], true),
    (&["-b", "1024", "-O", "casefold"], &[FOLD], true),
    (&["-b", "1024", "-O", "^dir_index"], &[], false),
    (&["-b", "1024", "-O", "^dir_index,inline_data"], &[], false),
    (&["-b", "1024", "-O", "^extent,^64bit"], &[], true),
];

/// A volume with an empty directory `/dir`, or with these names in it.
fn volume(args: &[&str], requests: &[&str], names: &[Vec<u8>]) -> Arc<MemoryDevice> {
    assert_eq!(FOLD, format!("sif /dir flags {:#x}", CASEFOLD_FLAG | EXTENTS_FLAG));
    let args: Vec<&str> = args.iter().copied().chain(["-N", "8000"]).collect();
    let recipe = Recipe { size: 32 << 20, args: &args, debugfs: requests, index: false, ..Recipe::default() };
    recipe.make(names).device()
}

fn make(volume: &Volume, name: &str) {
    drop(volume.open_file(format!("/dir/{name}"), read_write().create_new(true)).unwrap());
}

fn from(volume: &Volume, cookie: u64) -> ReadDir {
    let mut listing = volume.read_dir("/dir").unwrap();
    listing.seek(DirCookie::from_raw(cookie).unwrap());
    assert_eq!(listing.cookie().raw(), cookie);
    listing
}

fn close_clean(volume: Volume, device: &MemoryDevice) -> Scratch {
    volume.close().unwrap();
    let scratch = Scratch::new(96 << 20);
    Image::of(device).save(&scratch.file("volume.img"));
    oracle::e2fsck_clean(&scratch.file("volume.img"));
    scratch
}

/// Levels of nodes between the root of the hash tree of `/dir` and its leaves. `None`: it has no tree.
fn levels(path: &Path) -> Option<u32> {
    let dump = oracle::command("debugfs").args(["-R", "htree_dump /dir"]).arg(path).output().unwrap();
    let dump = String::from_utf8_lossy(&dump.stdout).into_owned();
    let levels = dump.lines().find_map(|line| line.trim().strip_prefix("Indirect levels: "));
    levels.map(|levels| levels.parse().unwrap())
}

/// A listing that is under way.
struct Reader {
    /// One that goes on by its cookie alone has none.
    live: Option<ReadDir>,
    cookie: u64,
    seen: BTreeMap<Vec<u8>, u32>,
    /// Names that are there since it began.
    stay: BTreeSet<Vec<u8>>,
}

impl Reader {
    fn begin(volume: &Volume, live: bool, there: &BTreeSet<Vec<u8>>) -> Reader {
        let live = live.then(|| volume.read_dir("/dir").unwrap());
        Reader { live, cookie: 0, seen: BTreeMap::new(), stay: there.clone() }
    }

    /// Lists up to so many entries. Returns whether that was the end, where everything came once.
    fn read(&mut self, volume: &Volume, most: usize) -> bool {
        let mut fresh;
        let listing = match &mut self.live {
            Some(live) => live,
            None => {
                fresh = from(volume, self.cookie);
                &mut fresh
            }
        };
        for _ in 0..most {
            let Some(entry) = listing.next() else {
                let missed = self.stay.iter().find(|name| !self.seen.contains_key(*name));
                assert!(
                    missed.is_none(),
                    "{:?} did not come",
                    missed.map(|name| name.escape_ascii().to_string())
                );
                assert_eq!((self.seen[&b"."[..]], self.seen[&b".."[..]]), (1, 1));
                return true;
            };
            let entry = entry.unwrap();
            assert_eq!(entry.cookie, listing.cookie());
            assert!(entry.cookie.raw() > self.cookie && entry.cookie.raw() < 1 << 63);
            self.cookie = entry.cookie.raw();
            let count = self.seen.entry(entry.name).or_default();
            *count += 1;
            assert_eq!(*count, 1);
        }
        false
    }
}

#[test]
fn names_come_once_while_others_are_added_and_removed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    for (case, (args, requests, indexed)) in VOLUMES.into_iter().enumerate() {
        println!("{args:?} {requests:?}");
        let device = volume(args, requests, &[]);
        let volume = open_rw(device.clone());
        let mut rng = Rng::new(400 + case as u64);
        let (mut names, mut number, mut finished) = (BTreeSet::new(), 0, 0);
        let mut readers: Vec<Reader> = (0..6).map(|n| Reader::begin(&volume, n % 2 == 0, &names)).collect();
        // Without a tree each new name is compared with all.
        let most = if indexed { 4000 } else { 1200 };
        while number < most || finished < 60 {
            match rng.below(8) {
                0 if number < most => {
                    for _ in 0..1 + rng.below(60) {
                        number += 1;
                        let tail = "x".repeat(*rng.pick(&[0, 20, 90, 200]));
                        let name = format!("{number}{tail}");
                        make(&volume, &name);
                        names.insert(name.into_bytes());
                    }
                }
                1 => {
                    for _ in 0..rng.below(25).min(names.len() as u64) {
                        let at = rng.below(names.len() as u64) as usize;
                        let name = names.iter().nth(at).unwrap().clone();
                        names.remove(&name);
                        volume.remove_file(format!("/dir/{}", str::from_utf8(&name).unwrap())).unwrap();
                        for reader in &mut readers {
                            reader.stay.remove(&name);
                        }
                    }
                }
                _ => {
                    let at = rng.below(readers.len() as u64) as usize;
                    let step = *rng.pick(&[1, 7, 50, 400]);
                    if readers[at].read(&volume, step) {
                        finished += 1;
                        readers[at] = Reader::begin(&volume, rng.below(2) == 0, &names);
                    }
                }
            }
        }
        let scratch = close_clean(volume, &device);
        assert_eq!(levels(&scratch.file("volume.img")), indexed.then_some(1));
    }
}

/// A directory inside its inode or of one block becomes another one between two pieces.
#[test]
fn a_cookie_stays_valid_when_the_directory_gets_blocks_a_tree_and_levels() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    for (args, requests, indexed) in VOLUMES {
        println!("{args:?} {requests:?}");
        let device = volume(args, requests, &[]);
        let volume = open_rw(device.clone());
        let inline = args.iter().any(|arg| arg.contains("inline_data"));
        let first: BTreeSet<Vec<u8>> =
            (0..if inline { 4 } else { 40 }).map(|n| format!("n{n}").into_bytes()).collect();
        first.iter().for_each(|name| make(&volume, str::from_utf8(name).unwrap()));
        let size = || volume.metadata("/dir").unwrap().size;
        assert!(if inline { size() < 1024 } else { size() == 1024 });
        let before: Vec<DirEntry> = volume.read_dir("/dir").unwrap().map(Result::unwrap).collect();
        assert_eq!(before.len(), first.len() + 2);
        let (tail, mut made) = ("y".repeat(180), 0);
        // More names in its block, the next block, blocks without number.
        for (count, least) in [(3, 1024), (10, 2048), (900, 150 << 10)] {
            for _ in 0..count {
                make(&volume, &format!("m{made}{tail}"));
                made += 1;
            }
            assert!(size() >= least || count == 3, "{}", size());
            for cut in 0..=before.len() {
                let cookie = cut.checked_sub(1).map_or(0, |last| before[last].cookie.raw());
                let rest = from(&volume, cookie).map(|entry| entry.unwrap().name);
                let mut all: Vec<Vec<u8>> =
                    before[..cut].iter().map(|entry| entry.name.clone()).chain(rest).collect();
                all.sort();
                all.retain(|name| name[0] != b'm');
                let expected: Vec<&[u8]> =
                    [&b"."[..], b".."].into_iter().chain(first.iter().map(Vec::as_slice)).collect();
                assert!(all.iter().eq(expected), "cut at {cut} of {}, {made} names later", before.len());
            }
        }
        let scratch = close_clean(volume, &device);
        assert_eq!(levels(&scratch.file("volume.img")), indexed.then_some(1));
    }
}

/// Of each 16 bytes of a name the TEA hash takes four words as its key. It is the same with the highest bits of the
/// first two changed, or of the last two.
fn same_hash(count: usize) -> Vec<Vec<u8>> {
    let name = |number: usize| {
        (0..8).flat_map(move |block| {
            let bits = (number >> (2 * block)) & 3;
            let high = |bit: usize| if bits >> bit & 1 == 1 { 0x80 } else { 0 };
            let mut part = *b"abcdefghijklmnop";
            [(0, 0), (4, 0), (8, 1), (12, 1)].into_iter().for_each(|(byte, bit)| part[byte] |= high(bit));
            part
        })
    };
    (0..count).map(|number| name(number).collect()).collect()
}

#[test]
fn names_of_one_hash_come_once_each_and_again_rather_than_not() {
    needs!(Need::Tool("mke2fs"), Need::Tool("tune2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    // More than a piece that is cut holds.
    let names = same_hash(10_000);
    let recipe = Recipe {
        size: 32 << 20,
        args: &["-b", "4096", "-O", "^has_journal"],
        tune2fs: &["hash_alg=tea"],
        per_inode: MANY,
        ..Recipe::default()
    };
    let volume = open_ro(recipe.make(&names).device());
    let entries: Vec<DirEntry> = volume.read_dir("/dir").unwrap().map(Result::unwrap).collect();
    let places: BTreeSet<u64> = entries[2..].iter().map(|entry| entry.cookie.raw()).collect();
    assert_eq!(places.len(), 2, "one place, and the next: {places:?}");
    let mut listed: Vec<&[u8]> = entries[2..].iter().map(|entry| &entry.name[..]).collect();
    listed.sort_unstable();
    let mut expected: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    expected.sort_unstable();
    assert!(listed == expected, "{} names listed, not {}", listed.len(), expected.len());
    for cut in [2, 3, 4096, 4098, 4099, 9000, 10_001, 10_002] {
        let mut all: BTreeSet<Vec<u8>> = entries[..cut].iter().map(|entry| entry.name.clone()).collect();
        let rest = from(&volume, entries[cut - 1].cookie.raw()).map(|entry| entry.unwrap().name);
        all.extend(rest);
        assert_eq!(all.len(), names.len() + 2, "cut at {cut}");
    }
    // Where a listing stands it goes on without names that came.
    let mut listing = volume.read_dir("/dir").unwrap();
    for entry in &entries {
        assert_eq!(listing.next().unwrap().unwrap(), *entry);
        listing.seek(entry.cookie);
    }
    assert!(listing.next().is_none());
}

#[test]
fn a_listing_goes_anywhere_and_begins_anew() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let device = volume(&["-b", "1024"], &[], &[]);
    let volume = open_rw(device.clone());
    (0..300).for_each(|n| make(&volume, &format!("name-{n}")));
    let all: Vec<DirEntry> = volume.read_dir("/dir").unwrap().map(Result::unwrap).collect();
    assert_eq!((&all[0].name[..], all[0].cookie.raw()), (&b"."[..], 1));
    assert_eq!((&all[1].name[..], all[1].cookie.raw()), (&b".."[..], 2));
    let mut listing = volume.read_dir("/dir").unwrap();
    let mut rng = Rng::new(3);
    for _ in 0..200 {
        let at = rng.below(all.len() as u64 + 1) as usize;
        listing.seek(at.checked_sub(1).map_or(DirCookie::START, |last| all[last].cookie));
        let length = rng.below(80) as usize;
        let found: Vec<DirEntry> = listing.by_ref().take(length).map(Result::unwrap).collect();
        assert_eq!(found, all[at..(at + length).min(all.len())]);
    }
    for far in [u64::MAX >> 1, 0x7FFF_FFFF << 32, (0x7FFF_FFFF << 32) + 500_000] {
        listing.seek(DirCookie::from_raw(far).unwrap());
        assert!(listing.next().is_none(), "{far:#x}");
    }
    listing.seek(DirCookie::START);
    assert_eq!(listing.by_ref().count(), all.len());
    assert!(listing.next().is_none(), "the end stays the end");
    listing.seek(DirCookie::START);
    assert_eq!(listing.count(), all.len());
    close_clean(volume, &device);
}

#[test]
fn walks_and_listings_are_whole_while_another_thread_adds_and_removes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let device = volume(&["-b", "1024"], &[], &[]);
    let volume = open_rw(device.clone());
    (0..300).for_each(|n| make(&volume, &format!("stays-{n}")));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            for n in 0..3000 {
                make(&volume, &format!("{n}-{}", "z".repeat(100)));
                if n % 3 == 0 {
                    volume.remove_file(format!("/dir/{n}-{}", "z".repeat(100))).unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut rounds = 0;
        while !done.load(Ordering::Relaxed) || rounds < 5 {
            rounds += 1;
            let mut seen = BTreeMap::<Vec<u8>, u32>::new();
            if rounds % 2 == 0 {
                volume
                    .read_dir("/dir")
                    .unwrap()
                    .for_each(|entry| *seen.entry(entry.unwrap().name).or_default() += 1);
            } else {
                let mut walk = volume.walk("/dir", WalkOptions::new().stat(false)).unwrap();
                while let Some(found) = walk.advance() {
                    *seen.entry(found.unwrap().name.to_vec()).or_default() += 1;
                }
            }
            assert!(seen.values().all(|count| *count == 1), "round {rounds}");
            assert_eq!(seen.keys().filter(|name| name.starts_with(b"stays-")).count(), 300, "round {rounds}");
        }
        changes.join().unwrap();
    });
    close_clean(volume, &device);
}

#[test]
fn a_listing_costs_a_few_blocks_for_each_block_of_the_directory() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let args = ["-b", "4096", "-O", "^has_journal", "-N", "110000"];
    let device =
        Recipe { size: 96 << 20, args: &args, index: false, ..Recipe::default() }.make::<&str>(&[]).device();
    let mut made = 0;
    for count in [1000, 10_000, 100_000] {
        let volume = open_rw(device.clone());
        (made..count).for_each(|n| make(&volume, &format!("name-{n:06}")));
        volume.close().unwrap();
        made = count;
        let counting = Arc::new(CountingDevice::new(device.clone()));
        let counters = counting.counters();
        // With memory for one block.
        let options = VolumeOptions::read_only().metadata_budget(4096);
        let volume = Volume::open_device(counting, options).unwrap();
        let blocks = volume.metadata("/dir").unwrap().size / 4096;
        counters.take();
        assert_eq!(volume.read_dir("/dir").unwrap().filter(|entry| entry.is_ok()).count(), count + 2);
        let read = counters.get().read_bytes / 4096;
        println!("{count} names in {blocks} blocks: {read} blocks read");
        // The root twice, a node of the tree and the leaf; for each of them perhaps a node of the directory's map.
        assert!(read <= 8 * blocks + 16, "{count} names: {read} blocks read of {blocks}");
    }
    let scratch = Scratch::new(200 << 20);
    Image::of(&*device).save(&scratch.file("volume.img"));
    oracle::e2fsck_clean(&scratch.file("volume.img"));
}

/// The major hash orders names of the legacy hash, which has no minor part.
#[test]
fn root_names_come_in_the_order_of_the_kernel() {
    needs!(
        Need::Loop,
        Need::Tool("mke2fs"),
        Need::Tool("tune2fs"),
        Need::Tool("e2fsck"),
        Need::Tool("debugfs")
    );
    for hash in ["legacy", "half_md4", "tea"] {
        for (at_size, count) in [20, 300, 6000].into_iter().enumerate() {
            let volume = VolumeBuilder::new(32 << 20).args(["-b", "1024", "-N", "8000"]).build();
            let mut tune2fs = oracle::command("tune2fs");
            let tuned =
                tune2fs.args(["-E", &format!("hash_alg={hash}")]).arg(volume.path()).output().unwrap();
            assert!(tuned.status.success());
            let theirs = volume.with_kernel(|root| {
                std::fs::create_dir(root.join("dir")).unwrap();
                for n in 0..count {
                    let tail = "é".repeat(n % 40);
                    std::fs::write(root.join(format!("dir/{n}{tail}")), "").unwrap();
                }
                let entries = std::fs::read_dir(root.join("dir")).unwrap();
                let name = |entry: std::fs::DirEntry| entry.file_name().into_encoded_bytes();
                entries.map(|entry| name(entry.unwrap())).collect::<Vec<_>>()
            });
            assert_eq!(levels(volume.path()), [None, Some(0), Some(1)][at_size]);
            let opened = Volume::open(volume.path(), VolumeOptions::read_only()).unwrap();
            let ours: Vec<DirEntry> = opened.read_dir("/dir").unwrap().skip(2).map(Result::unwrap).collect();
            assert_eq!((ours.len(), theirs.len()), (count, count));
            let mut at = 0;
            // Names of one major hash, whose order the legacy hash does not say.
            for group in
                ours.chunk_by(|a, b| hash == "legacy" && a.cookie.raw() >> 32 == b.cookie.raw() >> 32)
            {
                let ours: BTreeSet<&[u8]> = group.iter().map(|entry| &entry.name[..]).collect();
                let theirs: BTreeSet<&[u8]> =
                    theirs[at..at + group.len()].iter().map(Vec::as_slice).collect();
                assert_eq!(ours, theirs, "{hash}: names {at} and on of {count}");
                at += group.len();
            }
        }
    }
}
