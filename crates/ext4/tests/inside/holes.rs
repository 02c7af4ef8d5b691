//! Claims for holes: who keeps them, who sees them, and what a conversion makes of them.

use crate::face::file::File;
use crate::ground::direct::Direct;
use crate::inode::Inode;
use crate::inode::claims::Claims;
use crate::inode::draft::Draft;
use crate::map::{self, edit};
use crate::seam::Ext4;
use crate::{OpenOptions, Volume, VolumeOptions};
use std::sync::Arc;
use uext4_iomap::pending::PendingRange;
use uext4_iomap::{Blocks, FileSystem, Found, State};
use uext4_ondisk::Lblk;
use uext4_testkit::{Volume as Image, VolumeBuilder};

/// Blocks of the file.
const BLOCKS: u64 = 256;

/// A volume with a file that is one hole.
struct Bed {
    image: Image,
    volume: Volume,
    file: File,
    inode: Arc<Inode>,
}

/// A write that was sent.
struct Write {
    ticket: PendingRange,
    blocks: Blocks,
}

impl Bed {
    fn new() -> Bed {
        let tree = tempfile::tempdir().unwrap();
        std::fs::write(tree.path().join("file"), []).unwrap();
        let image = VolumeBuilder::new(64 << 20).args(["-b", "4096"]).from_dir(tree.path()).build();
        let volume = Volume::open(image.path(), VolumeOptions::read_write()).unwrap();
        let file = volume.open_file("/file", OpenOptions::new().read(true).write(true)).unwrap();
        file.set_len(BLOCKS * 4096).unwrap();
        let inode = volume.state().inode(file.ino()).unwrap();
        Bed { image, volume, file, inode }
    }

    fn fs(&self) -> &Ext4 {
        self.volume.engine().fs()
    }

    fn claims(&self) -> &Claims {
        &self.inode.claims
    }

    fn begin(&self, blocks: Blocks) -> Write {
        let ticket = self.inode.state.map.lock().pending().add(blocks.clone());
        assert!(self.fs().claim(&self.inode, &blocks).unwrap());
        Write { ticket, blocks }
    }

    fn fail(&self, write: Write) {
        let mut map = self.inode.state.map.lock();
        map.pending().withdraw(write.ticket);
        Ext4::unclaim(&self.inode, &mut map, &write.blocks);
    }

    fn complete(&self, writes: Vec<Write>) {
        let mut map = self.inode.state.map.lock();
        writes.into_iter().for_each(|write| map.pending().complete(write.ticket));
        let batch = map.pending().take_batch().unwrap();
        drop(map);
        self.fs().convert(&self.inode, batch.ranges(), Vec::new()).unwrap();
        let mut map = self.inode.state.map.lock();
        let ended = map.pending().finish(batch);
        ended.iter().for_each(|blocks| Ext4::unclaim(&self.inode, &mut map, blocks));
    }

    /// What everybody sees of a block, and its place.
    fn seen(&self, block: u32) -> (State, u64) {
        if self.inode.state.map.find(block) == Found::Unknown {
            map::load(self.volume.state(), &self.inode, u64::from(block) * 4096).unwrap();
        }
        match self.inode.state.map.find(block) {
            Found::Known { state, physical, .. } => (state, physical),
            Found::Unknown => panic!("{block} is unknown"),
        }
    }

    /// The same of the tree on the volume.
    fn mapped(&self, block: u32) -> (State, u64) {
        let body = Direct(self.volume.state());
        let draft = Draft::load(&body, self.inode.ino()).unwrap();
        let extent = edit::leaf(&body, &draft, Lblk(block)).unwrap().find(Lblk(block));
        extent.map_or((State::Hole, 0), |extent| {
            let state = if extent.unwritten { State::Unwritten } else { State::Written };
            (state, extent.physical.get() + u64::from(block - extent.logical.get()))
        })
    }

    fn assert_all(&self, blocks: std::ops::Range<u32>, state: State) {
        for block in blocks {
            assert_eq!(self.mapped(block).0, state, "{block} on the volume");
            assert_eq!(self.seen(block), self.mapped(block), "{block}");
        }
    }

    /// All that is seen is what the volume has, and that is sound.
    fn finish(self) {
        assert_eq!(self.claims().count(), 0);
        (0..BLOCKS as u32).for_each(|block| assert_eq!(self.seen(block), self.mapped(block), "{block}"));
        let Bed { image, volume, file, inode } = self;
        drop((inode, file));
        volume.close().unwrap();
        image.assert_clean();
    }
}

#[test]
fn a_claim_becomes_written_blocks_at_once() {
    let bed = Bed::new();
    let write = bed.begin(10..14);
    assert_eq!((bed.seen(10).0, bed.mapped(10).0), (State::Unwritten, State::Hole));
    let place = bed.seen(10).1;
    bed.complete(vec![write]);
    assert_eq!(bed.seen(10), (State::Written, place));
    bed.assert_all(10..14, State::Written);
    bed.assert_all(14..15, State::Hole);
    bed.finish();
}

#[test]
fn a_failed_write_leaves_the_hole_and_gives_the_blocks_back() {
    let bed = Bed::new();
    let write = bed.begin(10..14);
    let place = bed.seen(10).1;
    bed.fail(write);
    bed.assert_all(10..14, State::Hole);
    // The next one gets them.
    let again = bed.begin(10..14);
    assert_eq!(bed.seen(10).1, place);
    bed.fail(again);
    bed.finish();
}

/// Another write found the blocks unwritten and writes into them too: they stay when the first one fails.
#[test]
fn a_claim_stays_as_long_as_a_pending_write_meets_it() {
    let bed = Bed::new();
    let (first, second) = (bed.begin(10..14), bed.begin(11..12));
    assert_eq!(bed.claims().count(), 1);
    let place = bed.seen(11).1;
    bed.fail(first);
    assert_eq!(bed.seen(11), (State::Unwritten, place));
    bed.complete(vec![second]);
    bed.assert_all(10..11, State::Unwritten);
    bed.assert_all(11..12, State::Written);
    bed.assert_all(12..14, State::Unwritten);
    let (first, second) = (bed.begin(30..34), bed.begin(28..32));
    bed.fail(second);
    bed.assert_all(28..30, State::Hole);
    assert_eq!(bed.seen(31).0, State::Unwritten);
    bed.fail(first);
    bed.assert_all(28..34, State::Hole);
    bed.finish();
}

/// The map in memory may be dropped at any time. Who loads it again must not take a claim for a hole.
#[test]
fn a_claim_outlives_the_map_in_memory() {
    let bed = Bed::new();
    let write = bed.begin(10..14);
    let place = bed.seen(10);
    bed.inode.state.map.lock().forget();
    assert_eq!(bed.seen(10), place);
    assert_eq!((bed.seen(9).0, bed.seen(14).0), (State::Hole, State::Hole));
    bed.inode.state.map.lock().forget();
    let second = bed.begin(8..16);
    assert_eq!((bed.seen(10), bed.claims().count()), (place, 3));
    bed.complete(vec![write, second]);
    bed.assert_all(8..16, State::Written);
    bed.finish();
}

/// A write that finds no room for a claim allocates the other holes, and those only.
#[test]
fn allocation_passes_claims_by() {
    let bed = Bed::new();
    let (write, failed) = (bed.begin(10..14), bed.begin(20..22));
    let place = bed.seen(10).1;
    bed.fs().allocate(&bed.inode, 8..24).unwrap();
    for block in [8, 9, 14, 19, 22, 23] {
        assert_eq!(bed.mapped(block).0, State::Unwritten, "{block}");
    }
    for block in [10, 13, 20, 21] {
        assert_eq!(bed.mapped(block).0, State::Hole, "{block}");
    }
    bed.complete(vec![write]);
    bed.fail(failed);
    assert_eq!(bed.seen(10), (State::Written, place));
    bed.assert_all(20..22, State::Hole);
    bed.finish();
}

/// More claims than a handle maps, some adjacent, beside ranges without any, and beside claims that are in flight.
#[test]
fn a_batch_of_all_kinds_is_converted() {
    let bed = Bed::new();
    bed.fs().allocate(&bed.inode, 0..3).unwrap();
    bed.fs().allocate(&bed.inode, 100..104).unwrap();
    let in_flight = bed.begin(50..51);
    let mut writes = vec![bed.begin(0..2), bed.begin(2..6), bed.begin(101..102), bed.begin(103..106)];
    writes.extend((10..50).map(|block| bed.begin(block..block + 1)));
    writes.extend((110..190).step_by(2).map(|block| bed.begin(block..block + 1)));
    bed.complete(writes);
    for blocks in [0..6, 10..50, 101..102, 103..106] {
        bed.assert_all(blocks, State::Written);
    }
    bed.assert_all(100..101, State::Unwritten);
    bed.assert_all(102..103, State::Unwritten);
    (110..190).for_each(|block| {
        bed.assert_all(block..block + 1, if block % 2 == 0 { State::Written } else { State::Hole });
    });
    assert_eq!((bed.seen(50).0, bed.mapped(50).0), (State::Unwritten, State::Hole));
    bed.fail(in_flight);
    bed.finish();
}
