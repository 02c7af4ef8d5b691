//! The environment of the edits: a volume with changed blocks in memory, and a directory on it whose blocks come from a
//! file.

use crate::dir::edit::{DirMap, Edit};
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::state::Ground;
use crate::inode::draft::Draft;
use crate::{Volume, VolumeOptions, map};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use uext4_ondisk::ext4::{
    Extent, ExtentIndex, ExtentNode, InodeFlags, NodeLimits, encode_extent_index, encode_extent_leaf,
    update_extent_checksum,
};
use uext4_ondisk::{Ino, Lblk, Pblk};
use uext4_testkit::{Scratch, VolumeBuilder, debugfs, oracle};

/// Blocks as seen by an edit.
pub(super) struct Sketch {
    volume: Volume,
    pub(super) changed: BTreeMap<u64, Vec<u8>>,
    /// Blocks that were read.
    pub(super) looks: RefCell<Vec<u64>>,
    pub(super) work: Cell<usize>,
}

impl Blocks for Sketch {
    fn ground(&self) -> &Ground {
        self.volume.state()
    }

    fn look<T>(&self, block: Pblk, look: impl FnOnce(&[u8]) -> T) -> Result<T> {
        self.looks.borrow_mut().push(block.get());
        match self.changed.get(&block.get()) {
            Some(bytes) => Ok(look(bytes)),
            None => Ok(look(&self.ground().cache.read(block.get())?)),
        }
    }

    fn change<T>(&mut self, block: Pblk, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        if !self.changed.contains_key(&block.get()) {
            let bytes = self.ground().cache.read(block.get())?.to_vec();
            self.changed.insert(block.get(), bytes);
        }
        Ok(change(self.changed.get_mut(&block.get()).unwrap()))
    }

    fn fresh<T>(&mut self, block: Pblk, fill: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let mut bytes = vec![0; self.ground().superblock.geometry.block_size() as usize];
        let filled = fill(&mut bytes);
        self.changed.insert(block.get(), bytes);
        Ok(filled)
    }

    fn freed(&mut self, _: Pblk) -> Result<()> {
        panic!("directories do not shrink");
    }

    fn work(&self, bytes: usize) -> Result<()> {
        self.work.set(self.work.get() + bytes);
        Ok(())
    }
}

/// The directory's blocks, and those it may allocate.
pub(super) struct Supply {
    pub(super) places: Vec<u64>,
    pub(super) free: VecDeque<u64>,
    /// How many blocks are available.
    pub(super) left: usize,
}

impl DirMap for Supply {
    fn find(&self, _: &impl Blocks, _: &Draft, number: Lblk) -> Result<Option<Pblk>> {
        Ok(self.places.get(number.get() as usize).copied().map(Pblk))
    }

    fn append(&mut self, _: &mut impl Blocks, _: &mut Draft, first: Lblk, count: u32) -> Result<Vec<Pblk>> {
        assert_eq!(first.get() as usize, self.places.len(), "a directory grows at its end");
        let count = count as usize;
        if self.left < count {
            return Err(Error::NoSpace);
        }
        self.left -= count;
        self.places.extend(self.free.drain(..count));
        Ok(self.places[first.get() as usize..].iter().copied().map(Pblk).collect())
    }

    fn start(&mut self, _: &impl Blocks, draft: &mut Draft) -> Result<()> {
        // Its old blocks are free again.
        for place in self.places.drain(..).rev() {
            self.free.push_front(place);
        }
        draft.disk.flags |= InodeFlags::EXTENTS;
        draft.disk.i_block.fill(0);
        encode_extent_leaf(&mut draft.disk.i_block, 0, &[]).unwrap();
        Ok(())
    }
}

/// How a volume is made.
pub(super) struct Recipe<'a> {
    pub(super) size: u64,
    pub(super) space: usize,
    pub(super) args: Vec<&'a str>,
    pub(super) extended: Vec<&'a str>,
    pub(super) debugfs: Vec<&'a str>,
    pub(super) hash: Option<&'a str>,
    /// Checks that names of case-folded directories lie where their hash says.
    pub(super) no_fallback: bool,
}

impl<'a> Recipe<'a> {
    pub(super) fn new(args: &[&'a str]) -> Recipe<'a> {
        let args = args.to_vec();
        let (size, space) = (8 << 20, 2 << 20);
        Recipe { size, space, args, extended: vec![], debugfs: vec![], hash: None, no_fallback: false }
    }

    pub(super) fn build(&self) -> Stage {
        let source = Scratch::new(self.space as u64 + (1 << 20));
        std::fs::create_dir(source.file("dir")).unwrap();
        for name in ["a", "b", "d"] {
            std::fs::write(source.file(name), name).unwrap();
        }
        std::os::unix::fs::symlink("a", source.file("c")).unwrap();
        std::fs::write(source.file("space"), vec![b'.'; self.space]).unwrap();
        let mut builder = VolumeBuilder::new(self.size).args(self.args.iter().copied());
        for option in &self.extended {
            builder = builder.extended(*option);
        }
        let made = builder.from_dir(source.path()).build();
        if let Some(hash) = self.hash {
            let mut tune2fs = oracle::command("tune2fs");
            oracle::run(tune2fs.args(["-E", &format!("hash_alg={hash}")]).arg(made.path()));
        }
        self.debugfs.iter().for_each(|request| drop(oracle::debugfs_write(made.path(), request)));
        if self.no_fallback {
            set_no_fallback(made.path());
        }
        made.assert_clean();
        Stage::open(made)
    }
}

/// Sets `SB_ENC_NO_COMPAT_FALLBACK_FL`, which this version of e2fsprogs does not know.
fn set_no_fallback(path: &Path) {
    let image = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut superblock = [0; 1024];
    image.read_exact_at(&mut superblock, 1024).unwrap();
    superblock[0x27e] |= 2;
    if superblock[0x65] & 4 != 0 {
        let sum = uext4_ondisk::checksum::csum(!0, &superblock[..0x3fc]);
        superblock[0x3fc..].copy_from_slice(&sum.to_le_bytes());
    }
    image.write_all_at(&superblock, 1024).unwrap();
}

/// A volume with `/dir`, files to link, and free space.
pub(super) struct Stage {
    made: uext4_testkit::Volume,
    pub(super) blocks: Sketch,
    pub(super) supply: Supply,
    pub(super) draft: Draft,
    space: Draft,
    /// The block with the directory's extents, if they do not fit into the inode.
    leaf: Option<Pblk>,
    /// Inodes that names may lead to.
    pub(super) targets: Vec<Draft>,
}

/// All blocks of a file.
fn places(volume: &Volume, draft: &Draft) -> Vec<u64> {
    if draft.disk.has_inline_data() {
        return Vec::new();
    }
    let inode = volume.state().inode(draft.ino).unwrap();
    let count = draft.disk.size.div_ceil(u64::from(volume.block_size()));
    let place = |number| map::metadata_block(volume.state(), &inode, number as u32).unwrap().unwrap();
    (0..count).map(place).collect()
}

impl Stage {
    pub(super) fn open(made: uext4_testkit::Volume) -> Stage {
        let volume = Volume::open(made.path(), VolumeOptions::read_only()).unwrap();
        let ino = |name: &str| volume.resolve(name, false).unwrap();
        let numbers = ["/dir", "/space", "/a", "/b", "/c", "/d"].map(ino);
        let blocks =
            Sketch { volume, changed: BTreeMap::new(), looks: RefCell::default(), work: Cell::default() };
        let [draft, space, a, b, c, d] = numbers.map(|ino| Draft::load(&blocks, ino).unwrap());
        let free = VecDeque::from(places(&blocks.volume, &space));
        let supply = Supply { places: places(&blocks.volume, &draft), left: free.len(), free };
        let leaf = (!draft.disk.has_inline_data()).then(|| {
            let limits = NodeLimits::root(&blocks.ground().superblock);
            let root = ExtentNode::root(&draft.disk.i_block, limits).unwrap();
            assert!(root.depth() == 0 || (root.depth() == 1 && root.len() == 1));
            if root.is_leaf() { None } else { root.index(0).map(|index| index.child) }
        });
        let leaf = leaf.flatten();
        Stage { made, blocks, supply, draft, space, leaf, targets: vec![a, b, c, d] }
    }

    pub(super) fn edit(&mut self) -> Edit<'_, Sketch, Supply> {
        Edit::open(&mut self.blocks, &mut self.supply, &mut self.draft).unwrap()
    }

    pub(super) fn start(&mut self) -> Result<()> {
        Edit::start(&mut self.blocks, &mut self.supply, &mut self.draft, Ino(2)).map(drop)
    }

    /// Adds a name for a target.
    pub(super) fn insert(&mut self, name: &[u8], target: usize) -> Result<()> {
        let (ino, kind) = (self.targets[target].ino, self.targets[target].disk.file_type());
        self.edit().insert(name, ino, kind)?;
        self.targets[target].disk.links += 1;
        Ok(())
    }

    pub(super) fn remove(&mut self, name: &[u8], target: usize) -> Result<()> {
        let ino = self.targets[target].ino;
        self.edit().remove(name, ino)?;
        self.targets[target].disk.links -= 1;
        Ok(())
    }

    /// Everything that an edit may change, for comparison.
    pub(super) fn state(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let Draft { disk, raw, .. } = &self.draft;
        let Supply { places, free, .. } = &self.supply;
        (self.blocks.changed.clone(), disk.clone(), raw.clone(), places.clone(), free.clone())
    }

    /// Writes all changes to the image.
    pub(super) fn bring_home(&mut self) {
        let unit = u64::from(self.blocks.volume.block_size()) / 512;
        if !self.draft.disk.has_inline_data() {
            let runs = runs(&self.supply.places);
            let mut blocks = self.supply.places.len() as u64;
            if runs.len() <= 4 && self.leaf.is_none() {
                encode_extent_leaf(&mut self.draft.disk.i_block, 0, &runs).unwrap();
            } else {
                // One leaf below the root, in one of the free blocks.
                let free = &mut self.supply.free;
                let leaf = *self.leaf.get_or_insert_with(|| Pblk(free.pop_back().unwrap()));
                let seed = self.draft.seed(self.blocks.ground());
                self.blocks
                    .fresh(leaf, |bytes| {
                        encode_extent_leaf(bytes, 0, &runs).unwrap();
                        if let Some(seed) = seed {
                            update_extent_checksum(bytes, seed).unwrap();
                        }
                    })
                    .unwrap();
                let index = ExtentIndex { logical: Lblk(0), child: leaf };
                self.draft.disk.i_block.fill(0);
                encode_extent_index(&mut self.draft.disk.i_block, 1, 0, &[index]).unwrap();
                blocks += 1;
            }
            self.draft.disk.blocks_raw = blocks * unit;
        }
        let left = self.supply.free.make_contiguous();
        encode_extent_leaf(&mut self.space.disk.i_block, 0, &runs(left)).unwrap();
        self.space.disk.size = left.len() as u64 * unit * 512;
        self.space.disk.blocks_raw = left.len() as u64 * unit;
        for draft in [&mut self.draft, &mut self.space].into_iter().chain(&mut self.targets) {
            draft.store(&mut self.blocks).unwrap();
        }
        let image = std::fs::File::options().write(true).open(self.made.path()).unwrap();
        for (block, bytes) in &self.blocks.changed {
            image.write_all_at(bytes, block * unit * 512).unwrap();
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.made.path().to_owned()
    }

    pub(super) fn made(&self) -> &uext4_testkit::Volume {
        &self.made
    }

    /// Reopens the stage with nothing in memory.
    pub(super) fn again(self) -> Stage {
        drop(self.blocks);
        Stage::open(self.made)
    }
}

/// Blocks of a file in order as extents.
fn runs(places: &[u64]) -> Vec<Extent> {
    let mut runs: Vec<Extent> = Vec::new();
    for (number, place) in (0..).map(Lblk).zip(places) {
        match runs.last_mut() {
            Some(last) if last.physical.get() + u64::from(last.length) == *place && last.length < 32768 => {
                last.length += 1;
            }
            _ => runs.push(Extent { logical: number, length: 1, physical: Pblk(*place), unwritten: false }),
        }
    }
    runs
}

/// Names and inodes that `debugfs` lists, in order.
pub(super) fn listed(path: &Path) -> Vec<(String, u32)> {
    let text = debugfs(path, "ls -p /dir");
    let entry = |line: &str| {
        let mut fields = line.splitn(6, '/').skip(1);
        let ino = fields.next().unwrap().parse().unwrap();
        let rest = fields.nth(3).unwrap().strip_suffix('/').unwrap_or_else(|| panic!("{line}"));
        (rest.rsplit_once('/').unwrap().0.to_owned(), ino)
    };
    let lines = text.lines().filter(|line| !line.is_empty()).map(entry);
    // The record with the checksum is listed as inode 0.
    let named = |(name, ino): &(String, u32)| *ino != 0 && !matches!(name.as_str(), "." | "..");
    let mut all: Vec<_> = lines.filter(named).collect();
    all.sort();
    all
}
