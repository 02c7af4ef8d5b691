//! Files that are created, mapped, converted, unmapped and freed on the volume itself until it is full, against a
//! model; then e2fsck must find no fault.

use super::alloc::{FILE, NOW};
use super::{image, open, save};
use crate::alloc::Space;
use crate::alloc::group::store_counts;
use crate::alloc::inode::{free, make};
use crate::alloc::search::{Allocator, Wish};
use crate::ground::direct::Direct;
use crate::inode::draft::Draft;
use crate::map::edit::{self, Part};
use crate::{Error, Ino, Result};
use std::collections::BTreeMap;
use std::ops::Range;
use uext4_ondisk::ext4::Extent;
use uext4_ondisk::{Group, Lblk, Pblk};
use uext4_testkit::{Need, Rng, Scratch, e2fsck_clean, needs, oracle};

/// Where each block of a file is, and whether it is unwritten.
type Model = BTreeMap<u32, (u64, bool)>;

const FILES: usize = 20;
/// Logical blocks used by files.
const REACH: u32 = 6000;

struct Files<'g> {
    blocks: Direct<'g>,
    allocator: Allocator,
    files: BTreeMap<Ino, Model>,
    rng: Rng,
    /// Blocks of a cluster.
    size: u32,
    full: u32,
}

impl Files<'_> {
    fn draft(&self, ino: Ino) -> Draft {
        Draft::load(&self.blocks, ino).unwrap()
    }

    /// Runs an edit and stores the inode. An edit that fails changes nothing, so the inode is not stored.
    fn edit<T>(
        &mut self,
        ino: Ino,
        edit: impl FnOnce(&mut Direct<'_>, &mut Allocator, &mut Draft) -> Result<T>,
    ) -> Result<T> {
        let mut draft = self.draft(ino);
        let before = draft.disk.clone();
        match edit(&mut self.blocks, &mut self.allocator, &mut draft) {
            Ok(done) => draft.store(&mut self.blocks).map(|()| done),
            Err(error) => {
                assert_eq!(before, draft.disk, "{error}");
                self.full += u32::from(matches!(error, Error::NoSpace));
                Err(error)
            }
        }
    }

    fn count(&mut self, ino: Ino, clusters: i64) {
        let ground = self.blocks.0;
        self.edit(ino, |_, _, draft| draft.count(ground, clusters)).unwrap();
    }

    fn new_file(&mut self) {
        let groups = u64::from(self.blocks.0.superblock.geometry.group_count());
        let near = Group(self.rng.below(groups) as u32);
        let Ok(ino) = self.allocator.find_inode(&self.blocks, near) else { return };
        make(&mut self.blocks, ino, &FILE).unwrap();
        assert!(self.files.insert(ino, Model::new()).is_none(), "{ino} was in use");
    }

    /// Maps a part of a hole: within a cluster of the file, or in new ones.
    fn map(&mut self, ino: Ino) {
        let (logical, wanted) = (self.rng.below(REACH.into()) as u32, 1 + self.rng.below(90) as u32);
        let (model, size) = (&self.files[&ino], self.size);
        let hole = model.range(logical..).next().map_or(REACH + 90, |next| *next.0) - logical;
        let (length, inside) = (wanted.min(hole), logical % size);
        let around = logical - inside..logical - inside + size;
        let own =
            model.range(around.clone()).next().map(|(at, found)| found.0 - u64::from(at - around.start));
        let (first, length, run) = match own {
            _ if length == 0 => return,
            Some(first) => (first + u64::from(inside), length.min(size - inside), None),
            None => {
                let goal = Pblk(self.rng.below(self.blocks.0.superblock.geometry.blocks_count()));
                let wish = Wish { goal, least: 1, most: length.into(), limit: u64::MAX };
                let Ok(run) = self.allocator.allocate(&mut self.blocks, &wish) else {
                    self.full += 1;
                    return;
                };
                // The cluster in which the hole ends may already belong to the file.
                let end = (logical + hole) / size * size;
                let most = (run.count as u32 - inside).min(end - logical);
                (run.first.get() + u64::from(inside), length.min(most), Some(run))
            }
        };
        let uses_extents = self.draft(ino).disk.uses_extents();
        let unwritten = uses_extents && self.rng.chance(50);
        let extent = Extent { logical: Lblk(logical), length, physical: Pblk(first), unwritten };
        let done = self.edit(ino, |blocks, space, draft| edit::insert(blocks, space, draft, extent));
        let used = if done.is_ok() { u64::from((inside + length).next_multiple_of(size)) } else { 0 };
        if let Some(run) = run {
            if used < run.count {
                let left = (Pblk(run.first.get() + used), run.count - used);
                self.allocator.give_back(&mut self.blocks, ino, &[left]).unwrap();
            }
            self.count(ino, (used / u64::from(size)) as i64);
        }
        match done {
            Ok(()) => {
                let new = (0..length).map(|at| (logical + at, (first + u64::from(at), unwritten)));
                self.files.get_mut(&ino).unwrap().extend(new);
            }
            Err(Error::NoSpace) => {}
            Err(error) => panic!("{extent:?}: {error}"),
        }
    }

    fn unmap(&mut self, ino: Ino, range: Range<u32>) {
        let gone =
            match self.edit(ino, |blocks, space, draft| edit::remove(blocks, space, draft, range.clone())) {
                Ok(gone) => gone,
                Err(Error::NoSpace) => return,
                Err(error) => panic!("{range:?}: {error}"),
            };
        let idle = edit::idle_clusters(&self.blocks, &self.draft(ino), &gone).unwrap();
        self.allocator.give_back(&mut self.blocks, ino, &idle).unwrap();
        let clusters: u64 = idle.iter().map(|run| run.1.div_ceil(self.size.into())).sum();
        self.count(ino, -(clusters as i64));
        self.files.get_mut(&ino).unwrap().retain(|block, _| !range.contains(block));
    }

    fn convert(&mut self, ino: Ino) {
        let from = self.rng.below(REACH.into()) as u32;
        let Some((&first, _)) = self.files[&ino].range(from..).next() else { return };
        let most = first + 1 + self.rng.below(60) as u32;
        let end = (first..most).take_while(|at| self.files[&ino].contains_key(at)).last().unwrap() + 1;
        let unwritten = self.rng.chance(50);
        match self
            .edit(ino, |blocks, space, draft| edit::convert(blocks, space, draft, first..end, unwritten))
        {
            Ok(()) => {
                let range = self.files.get_mut(&ino).unwrap().range_mut(first..end);
                range.for_each(|(_, found)| found.1 = unwritten);
            }
            Err(Error::NoSpace) => {}
            Err(Error::Incompatible { .. }) => assert!(unwritten && !self.draft(ino).disk.uses_extents()),
            Err(error) => panic!("{first}..{end}: {error}"),
        }
    }

    fn step(&mut self) {
        let known: Vec<Ino> = self.files.keys().copied().collect();
        if known.is_empty() || (known.len() < FILES && self.rng.chance(3)) {
            return self.new_file();
        }
        let ino = *self.rng.pick(&known);
        match self.rng.below(100) {
            0 => {
                self.unmap(ino, 0..u32::MAX);
                let mut draft = self.draft(ino);
                assert_eq!(draft.disk.blocks_raw, 0, "something is still counted");
                draft.remove_link().unwrap();
                free(&mut self.blocks, &mut draft, NOW).unwrap();
                assert!(self.files.remove(&ino).unwrap().is_empty());
            }
            1..60 => self.map(ino),
            60..80 => self.convert(ino),
            _ => {
                let first = self.rng.below(REACH.into()) as u32;
                let length = if self.rng.chance(5) { 2000 } else { 30 };
                let end = first + 1 + self.rng.below(length) as u32;
                self.unmap(ino, first..end);
            }
        }
    }

    fn check(&self) {
        for (ino, model) in &self.files {
            let mut all = Model::new();
            edit::walk(&self.blocks, &self.draft(*ino), &mut |part| {
                if let Part::Data(extent) = part {
                    let block = |at| extent.physical.get() + u64::from(at);
                    let at = extent.logical.get();
                    all.extend((0..extent.length).map(|n| (at + n, (block(n), extent.unwritten))));
                }
                Ok(())
            })
            .unwrap();
            assert!(all == *model, "the map of {ino}");
        }
    }
}

fn play(mebibytes: u64, args: &[&str], seed: u64) {
    let image = image(mebibytes, args);
    let volume = open(&image);
    let state = volume.state();
    let mut play = Files {
        blocks: Direct(state),
        allocator: Allocator::new(state),
        files: BTreeMap::new(),
        rng: Rng::new(seed),
        size: state.superblock.geometry.cluster_blocks(),
        full: 0,
    };
    for step in 0..4000 {
        play.step();
        if step % 500 == 0 {
            play.check();
        }
    }
    play.check();
    assert!(play.full > 0, "{args:?}: the volume was never full");
    let inos: Vec<Ino> = play.files.keys().copied().collect();
    for ino in &inos {
        let end = play.files[ino].last_key_value().map_or(0, |(last, _)| u64::from(*last) + 1);
        let size = end * u64::from(state.superblock.geometry.block_size());
        play.edit(*ino, |_, _, draft| draft.set_size(state, size)).unwrap();
    }
    store_counts(&mut play.blocks).unwrap();
    let scratch = Scratch::new(image.len() as u64);
    let path = scratch.file("volume.img");
    save(state, &path);
    let names: Vec<String> = inos.iter().map(|ino| format!("ln <{ino}> f{ino}")).collect();
    oracle::debugfs_script(&path, &names.join("\n"));
    e2fsck_clean(&path);
}

#[test]
fn every_layout_holds_what_was_mapped_and_e2fsck_agrees() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let layouts: [(u64, &str); 8] = [
        (6, "-b 1024 -N 256 -O ^has_journal -g 1024"),
        (6, "-b 1024 -N 256 -O ^has_journal,^metadata_csum,uninit_bg,^64bit -g 2048"),
        (6, "-b 1024 -N 256 -O ^has_journal,^metadata_csum,^uninit_bg,^flex_bg -I 128"),
        (7, "-b 1024 -N 256 -O ^has_journal,^extent,^64bit -g 4096"),
        (24, "-b 4096 -N 256 -O ^has_journal,64bit -g 1024"),
        (20, "-b 4096 -N 256 -O ^has_journal,^extent,^64bit -I 128"),
        (4, "-b 1024 -N 256 -O ^has_journal,bigalloc -C 4096"),
        (6, "-b 1024 -N 256 -O ^has_journal,^huge_file,meta_bg,^resize_inode -g 1024"),
    ];
    for (seed, (mebibytes, args)) in layouts.into_iter().enumerate() {
        let args: Vec<&str> = args.split(' ').collect();
        play(mebibytes, &args, seed as u64);
    }
}
