//! The inode cache, and inodes under change, on volumes of mke2fs. These tests commit no transaction, so the images
//! stay unchanged.

use super::Inode;
use super::edit::Change;
use crate::Volume;
use crate::ground::blocks::Blocks;
use crate::ground::error::{Error, Result};
use crate::ground::journaled::Journaled;
use crate::ground::options::{OpenOptions, VolumeOptions};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use uext4_ondisk::ext4::Timestamp;
use uext4_ondisk::{Corrupt, CorruptKind, Ino};
use uext4_testkit::{Volume as Image, VolumeBuilder};

/// A volume with files `0`, `1`, …, each of one block.
struct Bed {
    image: Image,
    volume: Volume,
}

impl Bed {
    fn new(files: u32, budget: usize) -> Bed {
        let tree = tempfile::tempdir().unwrap();
        for file in 0..files {
            std::fs::write(tree.path().join(file.to_string()), [1; 4096]).unwrap();
        }
        let image = VolumeBuilder::new(64 << 20).args(["-b", "4096"]).from_dir(tree.path()).build();
        let volume = Volume::open(image.path(), VolumeOptions::read_write().inode_budget(budget)).unwrap();
        Bed { image, volume }
    }

    fn ino(&self, file: u32) -> Ino {
        self.volume.metadata(format!("/{file}")).unwrap().ino
    }

    fn inode(&self, ino: Ino) -> Arc<Inode> {
        self.volume.state().inode(ino).unwrap()
    }

    /// Changes an inode in its own handle.
    fn change(&self, inode: &Inode, change: Change, edit: impl FnOnce(&mut super::draft::Draft)) -> u64 {
        let edited = Journaled::run(self.volume.state(), "a test", 1, |blocks| {
            let mut draft = inode.edit(blocks)?;
            edit(&mut draft);
            draft.store(blocks, change)?;
            Ok(blocks.tid())
        });
        edited.unwrap().0
    }

    fn committed(&self, tid: u64) {
        self.volume.state().journal.as_ref().unwrap().committed(uext4_jbd2::Tid(tid)).unwrap();
    }

    /// Looks all files up, so that unused ones can be evicted.
    fn look_at_all(&self, inos: &[Ino]) {
        inos.iter().for_each(|&ino| drop(self.inode(ino)));
    }

    fn finish(self) {
        drop(self.volume);
        self.image.assert_clean();
    }
}

/// The address of an inode in memory, without a reference that would keep it alive.
fn place(inode: &Arc<Inode>) -> usize {
    Arc::as_ptr(inode).addr()
}

#[test]
fn what_is_loaded_while_a_transaction_is_open_is_not_taken_for_durable() {
    let bed = Bed::new(256, 0);
    let inos: Vec<Ino> = (0..256).map(|file| bed.ino(file)).collect();
    let held = bed.inode(inos[0]);
    let changed = bed.inode(inos[1]);
    let kept = place(&changed);
    let tid = bed.change(&changed, Change::Data, |draft| draft.disk.size += 4096);
    assert_eq!((changed.state.datasync_tid(), changed.disk().size), (Some(tid), 8192));
    drop(changed);
    bed.look_at_all(&inos[2..64]);
    assert_eq!(place(&bed.inode(inos[1])), kept, "an inode with a change that is not durable was given up");
    assert_eq!(held.state.datasync_tid(), None, "it was in memory all the time, and was not changed");
    // It is unknown what the transaction changed of an inode that was not in memory.
    let loaded = bed.inode(inos[5]);
    assert_eq!((loaded.state.datasync_tid(), loaded.state.sync_tid()), (Some(tid), Some(tid)));
    bed.committed(tid);
    assert_eq!(loaded.state.datasync_tid(), None);
    assert!(!bed.inode(inos[1]).state.view().datasync_dirty);
    bed.look_at_all(&inos[64..]);
    let numbers = bed.volume.state().inodes.numbers().len();
    assert!(numbers < 32, "nothing pins them any more: {numbers}");
    let again = bed.inode(inos[9]);
    assert_eq!(again.state.datasync_tid(), None, "what was committed is durable");
    drop((held, loaded, again));
    bed.finish();
}

#[test]
fn an_attribute_is_no_data() {
    let bed = Bed::new(1, 0);
    let inode = bed.inode(bed.ino(0));
    let tid = bed.change(&inode, Change::Attributes, |draft| draft.disk.uid = 7);
    assert_eq!((inode.state.datasync_tid(), inode.state.sync_tid()), (None, Some(tid)));
    assert!(inode.is_pinned() && bed.volume.metadata("/0").unwrap().uid == 7);
    drop(inode);
    bed.finish();
}

#[test]
fn attributes_of_an_inode_that_is_not_in_memory_do_not_load_it() {
    let bed = Bed::new(2, 1 << 20);
    let state = bed.volume.state();
    let seen = bed.volume.symlink_metadata("/0").unwrap();
    assert!(!state.knows_inode(seen.ino), "it was loaded");
    let inode = bed.inode(seen.ino);
    assert_eq!(inode.metadata(state), seen);
    // What is in memory only is seen, too.
    bed.change(&inode, Change::Attributes, |draft| draft.disk.uid = 7);
    assert_eq!(bed.volume.symlink_metadata("/0").unwrap().uid, 7);
    assert!(matches!(bed.volume.symlink_metadata("/0/"), Err(Error::NotDirectory)));
    assert!(matches!(bed.volume.symlink_metadata("/2"), Err(Error::NotFound)));
    assert_eq!(bed.volume.symlink_metadata("/").unwrap(), bed.volume.metadata("").unwrap());
    drop(inode);
    bed.finish();
}

/// All must share one gate and one mapping, so one thread loads and the others wait. After a load that fails or panics
/// the next one tries.
#[test]
fn an_inode_is_loaded_once() {
    let bed = Bed::new(4, 1 << 20);
    let (state, inos) = (bed.volume.state(), [0, 1, 2].map(|file| bed.ino(file)));
    let load = |ino| state.load_inode(ino);
    let cache = super::cache::InodeCache::new(1 << 20);
    let (begun, loads) = (Barrier::new(8), AtomicU32::new(0));
    let all = || {
        std::thread::scope(|scope| {
            let get = |ino, fails: u32| {
                begun.wait();
                let inode = cache.get(ino, || {
                    std::thread::sleep(Duration::from_millis(20));
                    match loads.fetch_add(1, Ordering::SeqCst) {
                        nth if nth >= fails => load(ino),
                        0 => Err(Corrupt::from(CorruptKind::InodeFree).into()),
                        _ => panic!("planned"),
                    }
                });
                inode.map(|inode| place(&inode))
            };
            let take = |fails, ino| {
                loads.store(0, Ordering::SeqCst);
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(move || get(ino, fails))).collect();
                threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
            };
            [take(0, inos[0]), take(1, inos[1]), take(2, inos[2])]
        })
    };
    for (fails, got) in all().into_iter().enumerate() {
        let places: Vec<usize> =
            got.iter().filter_map(|got| got.as_ref().ok()?.as_ref().ok().copied()).collect();
        let errors = got.iter().filter(|got| matches!(got, Ok(Err(_)))).count();
        let panics = got.iter().filter(|got| got.is_err()).count();
        assert_eq!((errors, panics), (fails.min(1), fails.saturating_sub(1)));
        assert!(places.iter().all(|&place| place == places[0]), "two inodes of one number");
        assert_eq!(places.len(), 8 - fails);
    }
    assert_eq!(loads.load(Ordering::SeqCst), 3, "each number was loaded once after its failures");
    bed.finish();
}

#[test]
fn unused_inodes_take_no_more_than_their_budget() {
    const FILES: u32 = 2000;
    const BUDGET: usize = 256 << 10;
    let bed = Bed::new(FILES, BUDGET);
    let cache = &bed.volume.state().inodes;
    let mut held = HashMap::new();
    for file in 0..FILES {
        let options = OpenOptions::new().read(true);
        let open = bed.volume.open_file(format!("/{file}"), options).unwrap();
        let mut byte = [0];
        open.read_any_at(&mut byte, 0).unwrap();
        let taken = cache.check_unused_bytes();
        assert!(taken <= BUDGET, "{taken} bytes after {file} files");
        if file.is_multiple_of(10) {
            held.insert(open.ino(), (place(&bed.inode(open.ino())), open));
        }
    }
    let (numbers, taken) = (cache.numbers(), cache.check_unused_bytes());
    assert!(numbers.len() < FILES as usize / 2, "{} of {FILES} are kept", numbers.len());
    assert!(taken > BUDGET / 2, "the budget is made use of: {taken} bytes");
    for (ino, (first, _)) in &held {
        assert_eq!(place(&bed.inode(*ino)), *first, "a file in use was loaded twice");
    }
    // Dropped together, and noticed as others are opened.
    drop(held);
    for file in 0..FILES / 5 {
        drop(bed.inode(bed.ino(file)));
    }
    assert!(cache.check_unused_bytes() <= BUDGET);
    // Each takes more than its own size, so this bounds their number too.
    assert!(cache.numbers().len() <= BUDGET / size_of::<Inode>() + 16 * super::cache::LOOKS);
    bed.finish();
}

#[test]
fn readers_never_see_half_of_a_change() {
    let bed = Bed::new(1, 1 << 20);
    let inode = bed.inode(bed.ino(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = 0;
                    while !over.load(Ordering::Relaxed) {
                        let metadata = inode.metadata(bed.volume.state());
                        assert_eq!(metadata.size, metadata.blocks * 512, "size and blocks of two moments");
                        seen += 1;
                    }
                    seen
                })
            })
            .collect();
        let begun = Instant::now();
        for blocks in (1..1000).cycle().take_while(|_| begun.elapsed() < Duration::from_millis(500)) {
            bed.change(&inode, Change::Data, |draft| {
                (draft.disk.size, draft.disk.blocks_raw) = (blocks * 4096, blocks * 8);
            });
        }
        over.store(true, Ordering::Relaxed);
        for reader in readers {
            assert!(reader.join().unwrap() > 0);
        }
    });
    // The true record.
    bed.change(&inode, Change::Data, |draft| (draft.disk.size, draft.disk.blocks_raw) = (4096, 8));
    drop(inode);
    bed.finish();
}

/// Two editors of one inode take turns: neither overwrites the other's changes.
#[test]
fn no_change_is_lost() {
    let bed = Bed::new(1, 1 << 20);
    let inode = bed.inode(bed.ino(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..100 {
                    bed.change(&inode, Change::Attributes, |draft| {
                        draft.disk.uid += 1;
                        std::thread::sleep(Duration::from_micros(100));
                    });
                }
            });
        }
    });
    assert_eq!((inode.disk().uid, inode.metadata(bed.volume.state()).uid), (200, 200));
    drop(inode);
    bed.finish();
}

#[test]
fn a_change_that_cannot_be_stored_is_not_seen() {
    let bed = Bed::new(1, 1 << 20);
    let inode = bed.inode(bed.ino(0));
    let edited: Result<()> = Journaled::run(bed.volume.state(), "a test", 0, |blocks| {
        let mut draft = inode.edit(blocks)?;
        draft.disk.uid = 7;
        draft.store(blocks, Change::Attributes)
    });
    assert!(matches!(edited, Err(Error::Journal(_))), "{edited:?}");
    assert_eq!(inode.disk().uid, bed.volume.metadata("/0").unwrap().uid);
    assert_ne!(inode.disk().uid, 7);
    bed.change(&inode, Change::Attributes, |draft| draft.disk.uid = 8);
    assert_eq!(inode.disk().uid, 8, "the turn was given back");
    drop(inode);
    bed.finish();
}

/// A record is verified again whenever somebody else has changed its block, but not after its own changes.
#[test]
fn a_record_is_verified_after_changes_of_others() {
    let bed = Bed::new(2, 1 << 20);
    let [one, other] = [0, 1].map(|file| bed.inode(bed.ino(file)));
    let ground = bed.volume.state();
    let (block, offset) = one.place(ground);
    assert_eq!(other.place(ground).0, block, "both are in one block");
    let verified = || ground.cache.stats().verifications;
    bed.change(&one, Change::Data, |draft| draft.disk.uid = 1);
    let before = verified();
    bed.change(&one, Change::Data, |draft| draft.disk.uid = 2);
    assert_eq!(verified(), before, "nobody else was there");
    bed.change(&other, Change::Data, |draft| draft.disk.uid = 3);
    assert_eq!(verified(), before + 1, "the other record is another one");
    // The block changes, and the last one who knew it is this inode.
    bed.change(&one, Change::Data, |draft| draft.disk.uid = 4);
    let damaged = Journaled::run(ground, "a test", 1, |blocks| {
        blocks.change(block, |bytes| bytes[offset + 2] ^= 1)?;
        match one.edit(blocks) {
            Err(Error::Corrupt(fault)) => Ok(fault.kind),
            _ => panic!("the record is damaged"),
        }
    });
    assert_eq!(damaged.unwrap(), CorruptKind::InodeChecksum);
}

/// The time of a write is kept in memory, reported at once, and stored with the next change; a time set later wins.
#[test]
fn the_time_of_a_write_is_stored_with_the_next_change() {
    let bed = Bed::new(1, 1 << 20);
    let inode = bed.inode(bed.ino(0));
    let modified = || bed.volume.metadata("/0").unwrap().modified;
    let before = modified();
    let cell = inode.state.gate.register(&mut || ());
    inode.state.gate.note_write(&cell, 5_000_000_007_000_000_009);
    let noted = Timestamp { seconds: 5_000_000_007, nanoseconds: 9 };
    assert_eq!((modified(), inode.disk().modified), (noted, before));
    bed.change(&inode, Change::Attributes, |draft| draft.disk.uid = 7);
    assert_eq!((modified(), inode.disk().modified, inode.disk().changed), (noted, noted, noted));
    bed.change(&inode, Change::Attributes, |draft| draft.disk.modified = before);
    assert_eq!(modified(), before, "what was stored already does not come back");
    inode.state.gate.unregister(&cell);
    drop(inode);
    bed.finish();
}

#[test]
fn a_number_is_let_go_by_its_last_user_and_comes_back_as_another_inode() {
    let bed = Bed::new(40, 0);
    let inos: Vec<Ino> = (0..40).map(|file| bed.ino(file)).collect();
    let (state, ino) = (bed.volume.state(), inos[0]);
    let inode = bed.inode(ino);
    let (first, generation) = (place(&inode), inode.disk().generation);
    let tid = bed.change(&inode, Change::Attributes, |draft| draft.disk.links = 0);
    bed.committed(tid);
    state.unlinked(&inode);
    bed.look_at_all(&inos[1..]);
    let other = bed.inode(ino);
    assert_eq!(place(&other), first, "it is in use");
    drop(inode);
    assert!(!state.leavers().any(), "somebody uses it");
    drop(other);
    assert!(state.leavers().any(), "the last user");
    let refused = state.inode(ino).map(drop).unwrap_err();
    assert!(refused.to_string().ends_with("inode is referenced but not in use"), "{refused}");
    assert_eq!(state.leavers().take(), Some(ino));
    state.forget(ino);
    // The number is reused.
    Journaled::run(state, "a test", 1, |blocks| {
        let mut draft = super::draft::Draft::load(blocks, ino)?;
        (draft.disk.links, draft.disk.generation) = (1, generation + 1);
        draft.store(blocks)
    })
    .unwrap();
    let inode = bed.inode(ino);
    assert_eq!(inode.disk().generation, generation + 1);
    drop(inode);
    bed.finish();
}

/// However its users race to drop it, its number is reported once, after the last of them.
#[test]
fn an_inode_without_a_name_is_told_of_once_after_its_last_user() {
    let bed = Bed::new(1, 0);
    let (state, ino) = (bed.volume.state(), bed.ino(0));
    let tid = bed.change(&bed.inode(ino), Change::Attributes, |draft| draft.disk.uid = 7);
    bed.committed(tid);
    for _ in 0..300 {
        let begun = Barrier::new(4);
        let users: Vec<Arc<Inode>> = (0..4).map(|_| bed.inode(ino)).collect();
        state.unlinked(&users[0]);
        let (begun, told) = (&begun, &AtomicU32::new(0));
        std::thread::scope(|scope| {
            for user in users {
                scope.spawn(move || {
                    begun.wait();
                    drop(user);
                    told.fetch_add(u32::from(state.leavers().take().is_some()), Ordering::SeqCst);
                });
            }
        });
        assert_eq!(told.load(Ordering::SeqCst), 1, "users that were told to free it");
        assert!(state.live_inode(ino).is_none());
        state.forget(ino);
        state.inodes.check_unused_bytes();
    }
    bed.finish();
}

/// An inode that is linked while open is a normal inode: its last user frees nothing.
#[test]
fn an_inode_that_gets_a_name_again_stays() {
    let bed = Bed::new(1, 1 << 20);
    let (state, ino) = (bed.volume.state(), bed.ino(0));
    let inode = bed.inode(ino);
    let first = place(&inode);
    state.unlinked(&inode);
    state.named(&inode);
    drop(inode);
    assert!(!state.leavers().any());
    assert_eq!(place(&bed.inode(ino)), first);
    state.inodes.check_unused_bytes();
    bed.finish();
}

/// A record without extra fields cannot hold such a time: the nearest one is stored, and nothing fails.
#[test]
fn the_time_of_a_write_fits_any_record() {
    let tree = tempfile::tempdir().unwrap();
    std::fs::write(tree.path().join("0"), [1; 4096]).unwrap();
    let image = VolumeBuilder::new(16 << 20).args(["-b", "4096", "-I", "128"]).from_dir(tree.path()).build();
    let volume = Volume::open(image.path(), VolumeOptions::read_write()).unwrap();
    let bed = Bed { image, volume };
    let inode = bed.inode(bed.ino(0));
    let cell = inode.state.gate.register(&mut || ());
    inode.state.gate.note_write(&cell, 5_000_000_007_000_000_009);
    bed.change(&inode, Change::Attributes, |draft| draft.disk.uid = 7);
    let last = Timestamp { seconds: i64::from(i32::MAX), nanoseconds: 0 };
    assert_eq!((inode.disk().modified, inode.disk().changed), (last, last));
    assert_eq!(bed.volume.metadata("/0").unwrap().modified, last);
    inode.state.gate.unregister(&cell);
    drop(inode);
    bed.finish();
}

/// No size is stored that the library's reader, or e2fsck, would refuse.
#[test]
fn a_size_is_one_that_the_map_can_reach() {
    use super::draft::Draft;
    use crate::ground::direct::Direct;
    use crate::ground::error::Limit;
    let pointers = 4096 * (12 + 1024 + 1024 * 1024 + 1024 * 1024 * 1024);
    for (features, most) in [
        ("extent,large_file,^has_journal", 0xffff_ffff * 4096),
        ("^extent,^64bit,large_file,^has_journal", pointers),
        ("extent,^large_file,^resize_inode,^has_journal", (1 << 31) - 1),
    ] {
        let tree = tempfile::tempdir().unwrap();
        std::fs::write(tree.path().join("0"), []).unwrap();
        let args = ["-b", "4096", "-O", features];
        let image = VolumeBuilder::new(16 << 20).args(args).from_dir(tree.path()).build();
        let volume = Volume::open(image.path(), VolumeOptions::read_write()).unwrap();
        let ino = volume.metadata("/0").unwrap().ino;
        let mut blocks = Direct(volume.state());
        let mut draft = Draft::load(&blocks, ino).unwrap();
        for size in [most + 1, i64::MAX as u64, u64::MAX] {
            let refused = draft.set_size(volume.state(), size);
            assert!(matches!(refused, Err(Error::Limit(Limit::Map))), "{features}, {size}: {refused:?}");
            assert_eq!(draft.disk.size, 0);
        }
        draft.set_size(volume.state(), most).unwrap();
        draft.store(&mut blocks).unwrap();
        volume.state().cache.sync().unwrap();
        drop(volume);
        let volume = Volume::open(image.path(), VolumeOptions::read_only()).unwrap();
        let file = volume.open_file("/0", OpenOptions::new().read(true)).unwrap();
        assert_eq!(file.read_any_at(&mut [1], most - 1).unwrap(), 1);
        drop((file, volume));
        image.assert_clean();
    }
}

/// e2fsck itself counts up to 65000, and accepts one link for more than that.
#[test]
fn a_directory_counts_as_many_directories_as_e2fsck_does() {
    use super::fields::count_subdirectory;
    let bed = Bed::new(1, 0);
    let ground = bed.volume.state();
    let more = |links| count_subdirectory(ground, links, true).unwrap();
    let less = |links| count_subdirectory(ground, links, false).unwrap();
    assert_eq!([2, 64_998, 64_999, 65_000, 1].map(more), [3, 64_999, 65_000, 1, 1]);
    assert_eq!([1, 2, 3, 65_000].map(less), [1, 2, 2, 64_999]);
    let mut draft = super::draft::Draft::load(&crate::ground::direct::Direct(ground), bed.ino(0)).unwrap();
    for (links, more, less) in
        [(0, Some(1), None), (64_999, Some(65_000), Some(64_998)), (65_000, None, Some(64_999))]
    {
        let mut after = |edit: fn(&mut super::draft::Draft) -> Result<()>| {
            draft.disk.links = links;
            let done = edit(&mut draft);
            assert!(done.is_ok() || draft.disk.links == links, "{done:?} changed it");
            done.ok().map(|()| draft.disk.links)
        };
        let (added, removed) = (after(|draft| draft.add_link()), after(|draft| draft.remove_link()));
        assert_eq!((added, removed), (more, less));
    }
    bed.finish();
}
