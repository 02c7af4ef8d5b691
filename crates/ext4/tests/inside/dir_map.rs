//! Directories that grow using the block map and the allocator, as in operations.

use super::{image, open, save};
use crate::alloc::Space;
use crate::alloc::group::{descriptor, store_counts};
use crate::alloc::inode::{NewInode, make};
use crate::alloc::search::{Allocator, Run, Wish};
use crate::dir::edit::{DirMap, Edit};
use crate::dir::map::BlockMap;
use crate::ground::direct::Direct;
use crate::ground::state::{Ground, ROOT};
use crate::inode::draft::Draft;
use crate::map::edit;
use crate::{Error, Result, Volume};
use uext4_ondisk::ext4::{Extent, FileType, InodeFlags, Timestamp};
use uext4_ondisk::{CorruptKind, Group, Ino, Lblk, Pblk};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs};

const DIRECTORY: NewInode = NewInode {
    mode: 0o040_755,
    uid: 0,
    gid: 0,
    flags: InodeFlags::empty(),
    generation: 3,
    links: 2,
    now: Timestamp { seconds: 1_800_000_000, nanoseconds: 0 },
    limited: false,
};

fn made(features: &str) -> Vec<u8> {
    image(8, &["-b", "1024", "-N", "64", "-O", &format!("^has_journal{features}")])
}

/// A directory under change.
struct Stage {
    volume: Volume,
    space: Allocator,
    draft: Draft,
}

impl Stage {
    /// An empty `/d` on a volume without a journal.
    fn new(features: &str) -> Stage {
        Stage::on(&made(features))
    }

    fn on(image: &[u8]) -> Stage {
        let volume = open(image);
        let ground: &Ground = volume.state();
        let (mut blocks, mut space, ino) = (Direct(ground), Allocator::new(ground), Ino(20));
        make(&mut blocks, ino, &DIRECTORY).unwrap();
        let mut draft = Draft::load(&blocks, ino).unwrap();
        Edit::start(&mut blocks, &mut BlockMap::new(&mut space), &mut draft, ROOT).map(drop).unwrap();
        draft.store(&mut blocks).unwrap();
        let mut root = Draft::load(&blocks, ROOT).unwrap();
        let mut map = BlockMap::new(&mut space);
        let mut names = Edit::open(&mut blocks, &mut map, &mut root).unwrap();
        names.insert(b"d", ino, Some(FileType::Directory)).unwrap();
        root.add_link().unwrap();
        root.store(&mut blocks).unwrap();
        Stage { space, draft, volume }
    }

    fn names<T>(
        &mut self,
        edit: impl FnOnce(&mut Edit<'_, Direct<'_>, BlockMap<'_, Allocator>>) -> Result<T>,
    ) -> Result<T> {
        let mut blocks = Direct(self.volume.state());
        let mut map = BlockMap::new(&mut self.space);
        edit(&mut Edit::open(&mut blocks, &mut map, &mut self.draft)?)
    }

    /// Adds a name for the directory itself, which e2fsck would not accept.
    fn insert(&mut self, n: u32) -> Result<()> {
        let ino = self.draft.ino;
        self.names(|names| names.insert(&name(n), ino, Some(FileType::Directory)))
    }

    fn remove(&mut self, n: u32) {
        let ino = self.draft.ino;
        self.names(|names| names.remove(&name(n), ino)).unwrap();
    }

    /// Takes up to this many blocks out of the free space.
    fn take(&mut self, most: u64) -> Result<Run> {
        let wish = Wish { goal: Pblk(2000), least: 1, most, limit: u64::MAX };
        self.space.allocate(&mut Direct(self.volume.state()), &wish)
    }

    /// Clusters that are free or belong to the directory.
    fn balance(&self) -> u64 {
        let ground: &Ground = self.volume.state();
        let geometry = &ground.superblock.geometry;
        let free = |group| u64::from(descriptor(&Direct(ground), Group(group)).unwrap().free_clusters);
        let own = self.draft.disk.sectors(&ground.superblock) / 2 / u64::from(geometry.cluster_blocks());
        (0..geometry.group_count()).map(free).sum::<u64>() + own
    }

    fn assert_clean(&mut self) {
        let ground: &Ground = self.volume.state();
        self.draft.store(&mut Direct(ground)).unwrap();
        store_counts(&mut Direct(ground)).unwrap();
        let scratch = Scratch::new(8 << 20);
        save(self.volume.state(), &scratch.file("volume.img"));
        e2fsck_clean(&scratch.file("volume.img"));
    }

    /// All blocks as seen by a reader, and the inode.
    fn state(&self) -> (Vec<Vec<u8>>, Draft) {
        let ground: &Ground = self.volume.state();
        let blocks = 0..ground.superblock.geometry.blocks_count();
        let bytes = blocks.map(|block| ground.cache.read(block).unwrap().to_vec());
        let Draft { ino, disk, raw, place, charged, .. } = &self.draft;
        let (disk, raw) = (disk.clone(), raw.clone());
        (
            bytes.collect(),
            Draft { ino: *ino, disk, raw, place: *place, charged: *charged, allowance: None, values: 0 },
        )
    }

    fn assert_unchanged(&self, before: &(Vec<Vec<u8>>, Draft)) {
        let after = self.state();
        assert!(before.0 == after.0, "a block was changed");
        assert_eq!((&before.1.disk, &before.1.raw), (&after.1.disk, &after.1.raw));
    }
}

fn name(n: u32) -> Vec<u8> {
    format!("a name that takes some room, number {n:05}").into_bytes()
}

#[test]
fn directories_grow_on_every_kind_of_map() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let layouts =
        ["", ",^extent,^64bit", ",bigalloc", ",^dir_index", ",bigalloc,^dir_index", ",^metadata_csum"];
    for features in layouts {
        let mut stage = Stage::new(features);
        for first in (0..600).step_by(50) {
            let ino = stage.draft.ino;
            stage
                .names(|names| (first..first + 50).try_for_each(|n| names.insert(&name(n), ino, None)))
                .unwrap();
            // Another file follows the directory, so that its extents stay separate.
            stage.take(1).unwrap();
        }
        assert!(stage.draft.disk.size > 20 << 10, "{features}");
        (0..600).for_each(|n| assert!(stage.names(|names| names.get(&name(n))).unwrap().is_some()));
        (0..600).for_each(|n| stage.remove(n));
    }
}

#[test]
fn grown_directories_are_clean() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for features in ["", ",^extent,^64bit", ",bigalloc", ",^dir_index", ",bigalloc,^dir_index"] {
        let mut stage = Stage::new(features);
        (0..600).for_each(|n| stage.insert(n).unwrap());
        (0..600).for_each(|n| stage.remove(n));
        stage.assert_clean();
    }
}

/// Blocks mapped past the end; with clusters, a last block in the wrong place of its cluster.
#[test]
fn a_directory_with_a_damaged_map_takes_no_block() {
    needs!(Need::Tool("mke2fs"));
    for (features, end) in [("", 1), ("", 2), (",bigalloc", 2)] {
        let mut stage = Stage::new(features);
        let ground = stage.volume.state();
        let extent = Extent { logical: Lblk(end), length: 1, physical: Pblk(5001), unwritten: false };
        edit::insert(&mut Direct(ground), &mut stage.space, &mut stage.draft, extent).unwrap();
        let mut inserted = 0;
        let (before, error) = loop {
            let before = stage.state();
            match stage.insert(inserted) {
                Ok(()) => inserted += 1,
                Err(error) => break (before, error),
            }
        };
        assert!(matches!(&error, Error::CorruptInode { .. }), "{error}");
        assert!(error.to_string().contains("mapped past its end"), "{error}");
        stage.assert_unchanged(&before);
    }
}

/// A directory does not take blocks past the end of the volume, though its last cluster reaches there.
#[test]
fn a_directory_does_not_grow_out_of_the_volume() {
    needs!(Need::Tool("mke2fs"));
    let mut bytes = made(",bigalloc,^metadata_csum");
    bytes[1024 + 4..][..4].copy_from_slice(&8188_u32.to_le_bytes());
    let mut stage = Stage::on(&bytes);
    let mut blocks = Direct(stage.volume.state());
    edit::start(&mut stage.draft).unwrap();
    let extent = Extent { logical: Lblk(0), length: 1, physical: Pblk(8176), unwritten: false };
    edit::insert(&mut blocks, &mut stage.space, &mut stage.draft, extent).unwrap();
    for (count, grows) in [(20, false), (12, false), (11, true)] {
        let before = stage.state();
        let mut map = BlockMap::new(&mut stage.space);
        match map.append(&mut blocks, &mut stage.draft, Lblk(1), count) {
            Ok(places) => assert!(grows && places.last() == Some(&Pblk(8187)), "{count}: {places:?}"),
            Err(error) => {
                assert!(!grows && matches!(error, Error::Corrupt(_)), "{count}: {error}");
                stage.assert_unchanged(&before);
            }
        }
    }
}

/// Its last block has the wrong place in its cluster, so none can follow it.
#[test]
fn a_directory_does_not_grow_behind_a_block_that_lies_wrong() {
    needs!(Need::Tool("mke2fs"));
    let mut stage = Stage::new(",bigalloc,^dir_index");
    let mut blocks = Direct(stage.volume.state());
    edit::start(&mut stage.draft).unwrap();
    let mut extent = Extent { logical: Lblk(0), length: 1, physical: Pblk(5001), unwritten: false };
    edit::insert(&mut blocks, &mut stage.space, &mut stage.draft, extent).unwrap();
    let before = stage.state();
    let grown =
        BlockMap::new(&mut stage.space).append(&mut blocks, &mut stage.draft, Lblk(1), 1).unwrap_err();
    assert!(
        matches!(&grown, Error::Corrupt(corrupt) if corrupt.kind == CorruptKind::ExtentPhysical),
        "{grown}"
    );
    stage.assert_unchanged(&before);

    // Blocks that were never written are not read.
    extent.unwritten = true;
    edit::replace(&mut blocks, &mut stage.space, &mut stage.draft, extent).unwrap();
    let error = stage.names(|names| names.get(b"name")).err().unwrap();
    assert!(error.to_string().contains("not allocated"), "{error}");
}

/// There are no blocks left: for names, or for the map that leads to them.
#[test]
fn a_directory_that_cannot_grow_is_as_before() {
    needs!(Need::Tool("mke2fs"));
    for (features, free) in ["", ",^extent,^64bit", ",bigalloc"].into_iter().zip([3..6, 11..13, 3..6]) {
        for free in free {
            let mut stage = Stage::new(features);
            let first = stage.take(2000).unwrap().first.get();
            while stage.take(4000).is_ok() {}
            let size = u64::from(stage.volume.state().superblock.geometry.cluster_blocks());
            for n in 0..free {
                // No two of them adjacent.
                let (ino, block) = (stage.draft.ino, Pblk(first + 2 * n * size));
                stage.space.give_back(&mut Direct(stage.volume.state()), ino, &[(block, size)]).unwrap();
            }
            let balance = stage.balance();
            let full = (0..).find_map(|n| stage.insert(n).err().map(|error| (n, error)));
            let (n, error) = full.unwrap();
            assert!(matches!(error, Error::NoSpace), "{error}");
            assert_eq!(stage.balance(), balance, "{features}: a block is nobody's");
            let before = stage.state();
            assert!(stage.insert(n).is_err());
            stage.assert_unchanged(&before);
        }
    }
}
