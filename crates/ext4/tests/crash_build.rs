//! Power cuts while a volume is made with files: the device holds the old volume, whole, or none, which is refused by
//! name, or the new one, whole.

use crate::common;
use crate::mkfs_tree::{Patterns, comparable, directory, expected, file, item};

use common::making::{MIB, TIME, options};
use common::tree::{How, manifest, without_xattrs};
use common::{Image, open_ro, open_rw, read_write};
use std::sync::Arc;
use uext4::device::{Device, MemoryDevice, MemoryOptions};
use uext4::mkfs::{Contents, Defaults, ItemKind, Options, Tree, format_tree};
use uext4::{Error, Timestamp, Volume, VolumeOptions};
use uext4_testkit::crash::{Options as States, assert_states};
use uext4_testkit::device::{CrashDevice, CrashOptions};
use uext4_testkit::{Manifest, Need, Scratch, e2fsck_clean, needs, oracle};

/// States of each scenario, unless the environment sets another number.
const STATES: usize = 500;
/// e2fsck checks one in this many new volumes.
const EACH: usize = 12;

/// What was on the device before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    /// A volume with files, made with these options.
    Volume(&'static str),
    /// The same volume after a crash: its log has changes that are not checkpointed.
    InUse(&'static str),
}

/// A tree with something of everything, the names beginning with `letter`.
fn tree(letter: char, files: u64) -> Tree {
    let mut tree = Tree::new(Timestamp { seconds: TIME as i64, nanoseconds: 0 });
    let mut below = Tree::ROOT;
    for number in 0..files {
        let name = format!("{letter} file {number}");
        let contents = Contents::whole(number * 2900 % 70_000, number);
        let id = tree.add(below, name.as_bytes(), file(contents)).unwrap();
        if number % 9 == 0 {
            let name = format!("{letter} directory {number}");
            tree.link(below, format!("{letter} link {number}").as_bytes(), id).unwrap();
            below = tree.add(below, name.as_bytes(), directory()).unwrap();
        }
    }
    let target = vec![b't'; 300];
    tree.add(Tree::ROOT, b"symlink", item(ItemKind::Symlink(target), 0o777)).unwrap();
    let holes = Contents { size: MIB, data: vec![5..6000, 500_000..500_001], key: 7 };
    tree.add(below, b"holes", file(holes)).unwrap();
    tree
}

fn chosen(words: &str) -> Options {
    let (words, reading) = match words.strip_prefix("read-only ") {
        Some(words) => (words, true),
        None => (words, false),
    };
    let mut options = options(words, "", Defaults::Upstream);
    options.force = true;
    if reading { options.for_reading() } else { options }
}

fn seen(volume: &Volume) -> Manifest {
    comparable(without_xattrs(manifest(volume, How::Direct)))
}

/// The device, and what it holds.
fn device(before: Before) -> (Arc<dyn Device>, Option<Manifest>) {
    let memory: Arc<dyn Device> = Arc::new(MemoryDevice::new(MemoryOptions::new(12 * MIB)).unwrap());
    let (Before::Volume(words) | Before::InUse(words)) = before else { return (memory, None) };
    format_tree(&*memory, &chosen(words), &tree('o', 60), &Patterns).unwrap();
    if before == Before::Volume(words) {
        let held = seen(&open_ro(memory.clone()));
        return (memory, Some(held));
    }
    let volume = open_rw(memory.clone());
    for number in 0..5 {
        let added = volume.open_file(format!("/added {number}"), read_write().create_new(true)).unwrap();
        added.write_any_at(&[number; 5000], 0, uext4::WriteFlags::empty()).unwrap();
    }
    volume.sync_all().unwrap();
    // As it is now, and not as a close leaves it.
    let copy = Image::of(&*memory).device();
    volume.close().unwrap();
    let held = seen(&open_ro(copy.clone()));
    assert!(Volume::read_superblock(&*copy).unwrap().needs_recovery());
    (copy, Some(held))
}

#[track_caller]
fn cut(name: &'static str, words: &str, before: Before) {
    needs!(Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 * MIB);
    let new = tree('n', 45);
    let whole = without_xattrs(comparable(expected(&new)));
    let (device, old) = device(before);
    let crash = CrashDevice::new(device, CrashOptions::default()).unwrap();
    let handle = crash.handle();
    format_tree(&crash, &chosen(words), &new, &Patterns).unwrap();
    let (mut none, mut kept, mut made) = (0, 0, 0);
    let states = States::new(name, 1).at_most(STATES);
    let report = assert_states(&handle.log().unwrap(), &states, |state| {
        let volume = match Volume::open_device(state.device(), VolumeOptions::read_only()) {
            Ok(volume) => volume,
            // Half of a superblock is refused by its checksum.
            Err(Error::NotExt4(_) | Error::Corrupt(_)) => {
                none += 1;
                return Ok(());
            }
            Err(error) => return Err(format!("{error:?}")),
        };
        let found = seen(&volume);
        drop(volume);
        if old.as_ref() == Some(&found) {
            kept += 1;
            return Ok(());
        }
        made += 1;
        if found != whole {
            return Err(format!("a part: {} of {} names", found.len(), whole.len()));
        }
        if made % EACH == 1 {
            let path = scratch.file("state");
            state.save(&path);
            let judged = oracle::e2fsck(&path, &["-fn"]);
            if judged.status != 0 {
                return Err(format!("e2fsck: {judged:?}"));
            }
        }
        Ok(())
    });
    println!("{name}: {report}: {none} none, {kept} old, {made} new");
    let path = scratch.file("made");
    Image::of(&crash).save(&path);
    e2fsck_clean(&path);
    if report.states > 100 {
        assert!(none > 10 && made > 0 && (kept > 0) == old.is_some(), "{none} none, {kept} old, {made} new");
    }
}

#[test]
fn power_cut_while_an_empty_device_is_filled() {
    cut("build", "-b 4096", Before::Nothing);
}

#[test]
fn power_cut_while_a_volume_takes_the_place_of_another() {
    cut("build_over_old", "-b 4096", Before::Volume("-b 4096"));
}

#[test]
fn power_cut_while_a_volume_takes_the_place_of_one_in_use() {
    cut("build_over_used", "-b 4096 -O quota", Before::InUse("-b 4096 -J size=4"));
}

/// The halves of a superblock have no checksum to tell.
#[test]
fn power_cut_while_a_volume_without_checksums_takes_a_place() {
    let words = "-b 1024 -O ^metadata_csum,quota,project,sparse_super2";
    cut("build_without_checksums", words, Before::Volume("-t ext2 -b 1024"));
}

#[test]
fn power_cut_while_a_volume_for_reading_takes_a_place() {
    cut("build_for_reading", "read-only -b 4096", Before::Volume("-t ext3 -b 1024"));
}
