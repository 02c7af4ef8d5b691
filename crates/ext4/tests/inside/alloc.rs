//! Allocation against a model: seeded runs of blocks and inodes, on every kind of group, judged by e2fsck at the end.

use super::damage::patch;
use super::{assert_says, image, open, save};
use crate::alloc::Space;
use crate::alloc::group::{descriptor, inode_used, mark_used, store_counts};
use crate::alloc::inode::{NewInode, free, make};
use crate::alloc::search::{Allocator, Run, Wish};
use crate::ground::blocks::Blocks;
use crate::ground::credits;
use crate::ground::direct::Direct;
use crate::ground::journaled::Journaled;
use crate::ground::last_descriptor::LastDescriptor;
use crate::ground::state::Ground;
use crate::inode::draft::Draft;
use crate::{Error, Ino, Result};
use std::collections::BTreeSet;
use uext4_ondisk::ext4::{Extent, FileType, GroupFlags, InodeFlags, Timestamp, encode_extent_leaf};
use uext4_ondisk::{Group, Lblk, Pblk};
use uext4_testkit::{Need, Rng, Scratch, dumpe2fs, e2fsck_clean, needs, oracle};

pub(super) const NOW: Timestamp = Timestamp { seconds: 1_800_000_000, nanoseconds: 5 };
/// Extents that fit into an inode.
const EXTENTS: usize = 4;
/// Files at the end: as many names as the root has room for.
const FILES: usize = 24;

pub(super) const FILE: NewInode = NewInode {
    mode: 0o100_644,
    uid: 70_000,
    gid: 3,
    flags: InodeFlags::empty(),
    generation: 77,
    links: 1,
    now: NOW,
    limited: false,
};

/// The volume with one of the two bodies.
fn run<T>(ground: &Ground, most: u32, edit: impl FnOnce(&mut Body<'_, '_>) -> Result<T>) -> Result<T> {
    if ground.journal.is_none() {
        return edit(&mut Body::Direct(Direct(ground)));
    }
    Journaled::run(ground, "a test", most, |blocks| edit(&mut Body::Journaled(blocks)))
}

enum Body<'b, 'g> {
    Direct(Direct<'g>),
    Journaled(&'b mut Journaled<'g>),
}

impl Blocks for Body<'_, '_> {
    fn ground(&self) -> &Ground {
        match self {
            Body::Direct(body) => body.ground(),
            Body::Journaled(body) => body.ground(),
        }
    }

    fn last_descriptor(&self) -> Option<&LastDescriptor> {
        match self {
            Body::Direct(body) => body.last_descriptor(),
            Body::Journaled(body) => body.last_descriptor(),
        }
    }

    fn look<T>(&self, block: Pblk, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        match self {
            Body::Direct(body) => body.look(block, look),
            Body::Journaled(body) => body.look(block, look),
        }
    }

    fn change<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        match self {
            Body::Direct(body) => body.change(block, change),
            Body::Journaled(body) => body.change(block, change),
        }
    }

    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        match self {
            Body::Direct(body) => body.fresh(block, fill),
            Body::Journaled(body) => body.fresh(block, fill),
        }
    }

    fn freed(&mut self, block: Pblk) -> Result<()> {
        match self {
            Body::Direct(body) => body.freed(block),
            Body::Journaled(body) => body.freed(block),
        }
    }
}

/// Free clusters, according to dumpe2fs and the operations since.
struct Model {
    free: BTreeSet<u64>,
    /// Freed, but not available yet.
    held: BTreeSet<u64>,
    size: u64,
    base: u64,
    per_group: u64,
}

impl Model {
    fn new(image: &[u8], ground: &Ground) -> Model {
        let scratch = Scratch::new(image.len() as u64);
        let path = scratch.file("volume.img");
        std::fs::write(&path, image).unwrap();
        let geometry = &ground.superblock.geometry;
        let (size, base) = (u64::from(geometry.cluster_blocks()), u64::from(geometry.first_data_block()));
        let per_group = u64::from(geometry.clusters_per_group());
        let mut model = Model { free: BTreeSet::new(), held: BTreeSet::new(), size, base, per_group };
        for line in dumpe2fs(&path, &[]).lines() {
            let Some(ranges) = line.trim().strip_prefix("Free blocks: ") else { continue };
            for range in ranges.split(", ").filter(|range| !range.is_empty()) {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let cluster = |text: &str| (text.trim().parse::<u64>().unwrap() - base) / size;
                model.free.extend(cluster(first)..=cluster(last));
            }
        }
        model
    }

    fn clusters(&self, run: Run) -> std::ops::Range<u64> {
        let first = (run.first.get() - self.base) / self.size;
        first..first + run.count / self.size
    }

    /// Whether one group has this many consecutive free clusters below block `limit`.
    fn has(&self, count: u64, limit: u64) -> bool {
        let (mut row, mut next) = (0, u64::MAX);
        for cluster in &self.free {
            if self.base + (cluster + 1) * self.size > limit {
                break;
            }
            row = if *cluster == next && cluster % self.per_group != 0 { row + 1 } else { 1 };
            next = cluster + 1;
            if row >= count {
                return true;
            }
        }
        false
    }
}

/// A volume under random operations.
struct Allocations<'g> {
    ground: &'g Ground,
    allocator: Allocator,
    model: Model,
    runs: Vec<Run>,
    inodes: BTreeSet<Ino>,
    rng: Rng,
}

impl Allocations<'_> {
    fn allocate(&mut self) {
        let (rng, geometry) = (&mut self.rng, &self.ground.superblock.geometry);
        let goal = Pblk(rng.below(geometry.blocks_count()));
        let most = rng.range(1..400);
        let least = rng.range(1..most + 1);
        let limit = if rng.chance(20) { rng.below(geometry.blocks_count()) } else { u64::MAX };
        let wish = Wish { goal, least, most, limit };
        let allocator = &mut self.allocator;
        let found =
            run(self.ground, credits::groups(self.ground, 1), |blocks| allocator.allocate(blocks, &wish));
        let (least, most) = (least.div_ceil(self.model.size), most.div_ceil(self.model.size));
        let run = match found {
            Ok(run) => run,
            Err(Error::NoSpace) => return assert!(!self.model.has(least, limit), "{wish:?}"),
            Err(error) => panic!("{wish:?}: {error}"),
        };
        let clusters = self.model.clusters(run);
        assert!((least..=most).contains(&(clusters.end - clusters.start)), "{wish:?}: {run:?}");
        assert!(run.first.get() + run.count <= limit, "{wish:?}: {run:?}");
        assert_eq!(run.first.get() % self.model.size, self.model.base % self.model.size);
        for cluster in clusters {
            assert!(self.model.free.remove(&cluster), "{wish:?}: cluster {cluster} of {run:?} is not free");
        }
        self.runs.push(run);
    }

    /// Frees a run, or its tail.
    fn give_back(&mut self) {
        let index = self.rng.below(self.runs.len() as u64) as usize;
        let size = self.model.size;
        let whole = self.runs[index].count / size;
        let count = self.rng.range(1..whole + 1) * size;
        self.runs[index].count -= count;
        let Run { first, count: left } = self.runs[index];
        let part = Run { first: Pblk(first.get() + left), count };
        if left == 0 {
            self.runs.swap_remove(index);
        }
        let allocator = &mut self.allocator;
        let of = Ino(11);
        let mut back = |run_of: Run| {
            let most = credits::groups(self.ground, 1);
            run(self.ground, most, |blocks| allocator.give_back(blocks, of, &[(run_of.first, run_of.count)]))
        };
        back(part).unwrap();
        assert_says(back(part), "free already");
        let clusters = self.model.clusters(part);
        self.model.held.extend(clusters);
    }

    fn inode(&mut self) {
        if self.inodes.len() < FILES && (self.inodes.is_empty() || self.rng.chance(60)) {
            let group =
                Group(self.rng.below(u64::from(self.ground.superblock.geometry.group_count())) as u32);
            let allocator = &self.allocator;
            let ino = run(self.ground, credits::inode(self.ground), |blocks| {
                let ino = allocator.find_inode(blocks, group)?;
                make(blocks, ino, &FILE)?;
                Ok(ino)
            })
            .unwrap();
            assert!(self.inodes.insert(ino), "{ino} was in use");
        } else if let Some(ino) = self.inodes.pop_last() {
            let most = credits::inode(self.ground);
            run(self.ground, most, |blocks| {
                let mut draft = Draft::load(blocks, ino)?;
                draft.remove_link()?;
                free(blocks, &mut draft, NOW)
            })
            .unwrap();
            let used = run(self.ground, 0, |blocks| inode_used(blocks, ino)).unwrap();
            assert!(!used);
        }
    }

    /// Turns the allocated runs into files, named by debugfs, and runs e2fsck.
    fn end(mut self) -> BTreeSet<Ino> {
        while self.runs.len() > FILES * EXTENTS {
            self.give_back();
        }
        while self.inodes.len() * EXTENTS < self.runs.len() {
            self.inode();
        }
        let free: u64 = run(self.ground, 0, |blocks| {
            let geometry = &self.ground.superblock.geometry;
            geometry.groups().map(|group| Ok(u64::from(descriptor(blocks, group)?.free_clusters))).sum()
        })
        .unwrap();
        assert_eq!(free, (self.model.free.len() + self.model.held.len()) as u64);
        let mut files = self.runs.chunks(EXTENTS);
        let block = u64::from(self.ground.superblock.geometry.block_size());
        for ino in &self.inodes {
            let mut next = 0;
            let extents = files.next().unwrap_or_default().iter().map(|run| {
                let length = run.count as u32;
                let extent = Extent { logical: Lblk(next), length, physical: run.first, unwritten: false };
                next += length;
                extent
            });
            let extents: Vec<Extent> = extents.collect();
            run(self.ground, 1, |blocks| {
                let mut draft = Draft::load(blocks, *ino)?;
                assert_eq!(draft.disk.file_type(), Some(FileType::Regular));
                let (small, disk) = (draft.disk.extra_isize == 0, &draft.disk);
                let now = if small { Timestamp { nanoseconds: 0, ..NOW } } else { NOW };
                assert_eq!((disk.changed, disk.created), (now, Some(now).filter(|_| !small)));
                encode_extent_leaf(&mut draft.disk.i_block, 0, &extents).unwrap();
                draft.set_size(self.ground, u64::from(next) * block)?;
                draft.disk.blocks_raw = u64::from(next) * block / 512;
                draft.store(blocks)
            })
            .unwrap();
        }
        run(self.ground, 1, |blocks| store_counts(blocks)).unwrap();
        self.inodes
    }
}

/// Random operations on a volume made with these arguments; then e2fsck must find nothing.
fn play(mebibytes: u64, args: &[&str], seed: u64) {
    let image = image(mebibytes, args);
    let volume = open(&image);
    let state = volume.state();
    let mut play = Allocations {
        ground: state,
        allocator: Allocator::new(state),
        model: Model::new(&image, state),
        runs: Vec::new(),
        inodes: BTreeSet::new(),
        rng: Rng::new(seed),
    };
    for _ in 0..1200 {
        match play.rng.below(10) {
            0 => play.inode(),
            1 if play.rng.chance(30) => {
                play.allocator.release(0, u64::MAX);
                let Model { free, held, .. } = &mut play.model;
                free.append(held);
            }
            // More and more, until it is full.
            2..=6 => play.allocate(),
            _ if !play.runs.is_empty() => play.give_back(),
            _ => {}
        }
    }
    let made = play.end();
    let scratch = Scratch::new(image.len() as u64);
    let path = scratch.file("volume.img");
    save(state, &path);
    let names: Vec<String> = made.iter().map(|ino| format!("ln <{ino}> f{ino}")).collect();
    oracle::debugfs_script(&path, &names.join("\n"));
    e2fsck_clean(&path);
}

macro_rules! plays {
    ($($name:ident: $mebibytes:expr, $args:expr;)*) => {$(
        #[test]
        fn $name() {
            needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
            let seeds = std::env::var("UEXT4_SEED").map_or(0..2, |text| {
                let seed = text.parse().unwrap();
                seed..seed + 1
            });
            seeds.for_each(|seed| play($mebibytes, &$args, seed));
        }
    )*};
}

plays! {
    small_blocks_with_checksums: 48, ["-b", "1024", "-N", "512"];
    large_blocks_with_checksums: 64, ["-b", "4096", "-g", "2048", "-N", "512"];
    groups_with_checksums_of_descriptors_only:
        48, ["-b", "1024", "-N", "512", "-O", "^metadata_csum,uninit_bg"];
    no_checksums_at_all: 48, ["-b", "1024", "-N", "512", "-O", "^metadata_csum,^uninit_bg"];
    short_descriptors: 48, ["-b", "4096", "-g", "2048", "-N", "512", "-O", "^64bit"];
    clusters: 100, ["-b", "1024", "-N", "512", "-O", "bigalloc", "-C", "8192"];
    no_journal: 48, ["-b", "1024", "-N", "512", "-O", "^has_journal"];
    small_inodes_without_flex_groups: 48, ["-b", "1024", "-N", "512", "-I", "128", "-O", "^flex_bg"];
}

/// Hundreds of short runs in a group: some are claimed, some were freed and wait, and each is released separately.
struct Crowd<'g> {
    ground: &'g Ground,
    allocator: Allocator,
    model: Model,
    rng: Rng,
    claimed: Vec<Run>,
    used: Vec<Run>,
    waiting: Vec<Run>,
}

impl Crowd<'_> {
    /// Removes and returns a random run.
    fn any(rng: &mut Rng, runs: &mut Vec<Run>) -> Option<Run> {
        (!runs.is_empty()).then(|| runs.swap_remove(rng.below(runs.len() as u64) as usize))
    }

    fn claim(&mut self, goal: u64, clusters: u64) -> bool {
        let size = self.model.size;
        let wish = Wish { goal: Pblk(goal), least: size, most: clusters * size, limit: u64::MAX };
        let run = match self.allocator.claim(&Direct(self.ground), &wish) {
            Ok(run) => run,
            Err(Error::NoSpace) => return false,
            Err(error) => panic!("{wish:?}: {error}"),
        };
        for cluster in self.model.clusters(run) {
            assert!(self.model.free.remove(&cluster), "{wish:?}: cluster {cluster} of {run:?} is not free");
        }
        self.claimed.push(run);
        true
    }

    fn step(&mut self) {
        let ground = self.ground;
        let (geometry, most) = (&ground.superblock.geometry, credits::groups(ground, 1));
        let (allocator, rng) = (&mut self.allocator, &mut self.rng);
        match rng.below(12) {
            0..=5 => {
                let (goal, clusters) = (rng.below(geometry.blocks_count()), rng.range(1..4));
                assert!(self.claim(goal, clusters), "there is room");
            }
            6 => {
                let Some(run) = Self::any(rng, &mut self.claimed) else { return };
                allocator.unclaim(run);
                self.model.free.extend(self.model.clusters(run));
            }
            7..=8 => {
                let Some(claim) = Self::any(rng, &mut self.claimed) else { return };
                let (group, index) = geometry.group_of_block(claim.first).unwrap();
                let first = index >> geometry.cluster_log();
                let clusters = first..first + (claim.count / self.model.size) as u32;
                run(ground, most, |blocks| mark_used(blocks, group, clusters)).unwrap();
                allocator.took_claimed(claim);
                self.used.push(claim);
            }
            9..=10 => {
                let Some(freed) = Self::any(rng, &mut self.used) else { return };
                let runs = [(freed.first, freed.count)];
                run(ground, most, |blocks| allocator.give_back(blocks, Ino(11), &runs)).unwrap();
                self.waiting.push(freed);
            }
            _ => {
                let Some(durable) = Self::any(rng, &mut self.waiting) else { return };
                allocator.release(durable.first.get(), durable.count);
                self.model.free.extend(self.model.clusters(durable));
            }
        }
    }

    /// Releases all runs; the volume is as before.
    fn empty(&mut self) {
        self.claimed.drain(..).for_each(|run| self.allocator.unclaim(run));
        for freed in self.used.drain(..) {
            let (most, runs) = (credits::groups(self.ground, 1), [(freed.first, freed.count)]);
            run(self.ground, most, |blocks| self.allocator.give_back(blocks, Ino(11), &runs)).unwrap();
        }
        self.allocator.release(0, u64::MAX);
    }
}

/// Neither waiting nor claimed blocks are allocated, and none is lost: in the end all free blocks can be claimed.
#[test]
fn many_runs_that_wait_or_are_claimed_stay_whose_they_are() {
    needs!(Need::Tool("mke2fs"), Need::Tool("dumpe2fs"), Need::Tool("e2fsck"));
    let volumes: [(u64, &[&str]); 3] = [
        (20, &["-b", "1024", "-N", "64"]),
        (20, &["-b", "1024", "-g", "4096", "-N", "64", "-O", "^has_journal"]),
        (100, &["-b", "1024", "-N", "64", "-O", "bigalloc", "-C", "8192"]),
    ];
    for ((mebibytes, args), seed) in volumes.into_iter().zip(0..) {
        let image = image(mebibytes, args);
        let volume = open(&image);
        let ground = volume.state();
        let (claimed, used, waiting) = (Vec::new(), Vec::new(), Vec::new());
        let (allocator, model) = (Allocator::new(ground), Model::new(&image, ground));
        let mut crowd = Crowd { ground, allocator, model, rng: Rng::new(seed), claimed, used, waiting };
        (0..3000).for_each(|_| crowd.step());
        assert!(crowd.waiting.len() > 200 && crowd.claimed.len() > 200, "each is many");
        while crowd.claim(0, 64) {}
        assert!(crowd.model.free.is_empty(), "{} free clusters are lost", crowd.model.free.len());
        crowd.empty();
        assert_eq!(crowd.allocator.held_blocks() + crowd.allocator.claimed_blocks(), 0);
        let scratch = Scratch::new(image.len() as u64);
        let path = scratch.file("volume.img");
        save(ground, &path);
        e2fsck_clean(&path);
    }
}

/// A block for metadata.
fn take(allocator: &mut Allocator, blocks: &mut Body<'_, '_>) -> Result<Pblk> {
    Ok(allocator.take(blocks, Ino(12), 1, u64::MAX)?[0])
}

#[test]
fn a_volume_is_filled_to_the_last_block_and_emptied_again() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = image(12, &["-b", "1024", "-N", "64"]);
    let volume = open(&image);
    let state = volume.state();
    let (mut allocator, mut taken) = (Allocator::new(state), Vec::new());
    let most = credits::groups(state, 1);
    loop {
        match run(state, most, |blocks| take(&mut allocator, blocks)) {
            Ok(block) => taken.push(block),
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(taken.len() as u64, state.superblock.free_blocks);
    for block in &taken {
        run(state, most, |blocks| allocator.give_back(blocks, Ino(12), &[(*block, 1)])).unwrap();
    }
    let again = run(state, most, |blocks| take(&mut allocator, blocks));
    assert!(matches!(again, Err(Error::NoSpace)), "what was freed waits for its commit: {again:?}");
    allocator.release(0, u64::MAX);
    let block = run(state, most, |blocks| take(&mut allocator, blocks)).unwrap();
    run(state, most, |blocks| allocator.give_back(blocks, Ino(12), &[(block, 1)])).unwrap();
    let scratch = Scratch::new(image.len() as u64);
    let path = scratch.file("volume.img");
    save(state, &path);
    e2fsck_clean(&path);
}

#[test]
fn inodes_end_and_directories_are_counted() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = image(24, &["-b", "1024", "-N", "96"]);
    let volume = open(&image);
    let state = volume.state();
    let allocator = Allocator::new(state);
    let directory = NewInode { mode: 0o040_755, ..FILE };
    let mut made = Vec::new();
    loop {
        let ino = run(state, credits::inode(state), |blocks| {
            let ino = allocator.find_inode(blocks, Group(1))?;
            make(blocks, ino, if made.len() % 2 == 0 { &directory } else { &FILE })?;
            Ok(ino)
        });
        match ino {
            Ok(ino) => made.push(ino),
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(made.len() as u32, state.superblock.free_inodes);
    let dirs = || -> u32 {
        let groups = state.superblock.geometry.groups();
        groups.map(|group| descriptor(&Direct(state), group).unwrap().used_dirs).sum()
    };
    assert_eq!(dirs() as usize, 2 + made.len().div_ceil(2));
    for ino in made {
        run(state, credits::inode(state), |blocks| {
            let mut draft = Draft::load(blocks, ino)?;
            assert_says(free(blocks, &mut draft, NOW), "has links");
            draft.remove_link()?;
            free(blocks, &mut draft, NOW)
        })
        .unwrap();
    }
    assert_eq!(dirs(), 2);
    let scratch = Scratch::new(image.len() as u64);
    let path = scratch.file("volume.img");
    run(state, 1, |blocks| store_counts(blocks)).unwrap();
    save(state, &path);
    e2fsck_clean(&path);
}

/// A table that was never written has arbitrary contents. All records up to the last one in use are read, so those
/// before a new one are zeroed, and nothing else.
#[test]
fn records_that_were_never_written_are_zeroed_before_they_are_looked_at() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for features in ["^has_journal,metadata_csum", "^has_journal,^metadata_csum,uninit_bg"] {
        let image = image(24, &["-b", "1024", "-N", "96", "-O", features]);
        let volume = open(&image);
        let state = volume.state();
        let (blocks, group, size) = (&mut Direct(state), Group(1), 256);
        patch(state, group, |descriptor| descriptor.flags &= !GroupFlags::INODE_ZEROED);
        let places = descriptor(blocks, group).unwrap();
        assert!(places.inodes_uninitialised(&state.superblock));
        let per_group = state.superblock.geometry.inodes_per_group();
        let table = places.inode_table.get()..places.inode_table.get() + u64::from(per_group) * size / 1024;
        for block in table.clone() {
            blocks.fresh(Pblk(block), |bytes| bytes.fill(0xaa)).unwrap();
        }
        let mut made = Vec::new();
        for index in [9, 21] {
            made.push(make(blocks, Ino(per_group + 1 + index), &FILE).unwrap());
            let look = |block| state.cache.read(block).unwrap().to_vec();
            let bytes: Vec<u8> = table.clone().flat_map(look).collect();
            for (at, record) in (0..per_group).zip(bytes.chunks(size as usize)) {
                let filled = |byte| record.iter().all(|found| *found == byte);
                match made.iter().any(|draft| draft.ino == Ino(per_group + 1 + at)) {
                    true => assert!(!filled(0) && !filled(0xaa), "record {at}"),
                    false => assert!(filled(if at < index { 0 } else { 0xaa }), "record {at}"),
                }
            }
            assert_eq!(descriptor(blocks, group).unwrap().initialised_inodes(&state.superblock), index + 1);
        }
        for mut draft in made {
            draft.remove_link().unwrap();
            free(blocks, &mut draft, NOW).unwrap();
        }
        store_counts(blocks).unwrap();
        let scratch = Scratch::new(image.len() as u64);
        let path = scratch.file("volume.img");
        save(state, &path);
        e2fsck_clean(&path);
    }
}
