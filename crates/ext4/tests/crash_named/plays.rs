//! The operations of the scenarios, and the initial files.

use super::layouts::{HUGE, Layout, OLD_FILES};
use crate::common::patterned;
use crate::common::scene::Scene;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use uext4::{Counter, Fallocate, WriteFlags, XattrFlags};
use uext4_testkit::rng::mix;

const PLAIN: WriteFlags = WriteFlags::empty();
const DSYNC: WriteFlags = WriteFlags::DSYNC;

/// Creates durable files of these sizes.
pub fn files(scene: &mut Scene, sizes: &[(&str, u64)]) {
    for (path, size) in sizes {
        scene.create(path);
        if *size > 0 {
            scene.write(path, 0, *size, PLAIN);
        }
        scene.sync(path);
    }
}

/// A random position and length in a range, in units.
pub fn piece(scene: &mut Scene, within: Range<u64>, unit: u64, most: u64) -> (u64, u64) {
    let units = (within.end - within.start) / unit;
    let first = scene.rng.below(units);
    let count = 1 + scene.rng.below(most.min(units - first));
    (within.start + first * unit, count * unit)
}

pub fn nothing(_: &mut Scene, _: Layout) {}

pub fn one_file(scene: &mut Scene, _: Layout) {
    files(scene, &[("/a", 60_000)]);
}

pub fn two_files(scene: &mut Scene, _: Layout) {
    files(scene, &[("/a", 60_000), ("/b", 30_000)]);
}

pub fn append(scene: &mut Scene, _: Layout) {
    for round in 0..30 {
        let length = *scene.rng.pick(&[512, 1024, 4096, 9000]);
        scene.append("/a", length, PLAIN);
        if round % 4 == 3 {
            scene.sync("/a");
        }
    }
}

pub fn append_durable(scene: &mut Scene, _: Layout) {
    for _ in 0..24 {
        let length = *scene.rng.pick(&[1024, 2048, 4096, 16_384]);
        let flags = *scene.rng.pick(&[DSYNC, DSYNC, WriteFlags::SYNC]);
        scene.append("/a", length, flags);
    }
}

pub fn append_bytes(scene: &mut Scene, _: Layout) {
    for round in 0..30 {
        let length = 1 + scene.rng.below(700);
        scene.append("/a", length, if round % 2 == 0 { DSYNC } else { PLAIN });
        if round % 7 == 6 {
            scene.sync("/a");
        }
    }
}

/// Ends of several files at once, some of which grow again, are removed or synced.
pub fn together(scene: &mut Scene, _: Layout) {
    for round in 0..6 {
        let paths: Vec<String> = (0..7).map(|number| format!("/t{round}{number}")).collect();
        paths.iter().for_each(|path| scene.create(path));
        let mut writes: Vec<_> =
            paths.iter().map(|path| (path.as_str(), 0, 1 + scene.rng.below(5000))).collect();
        // Not at an end, behind a hole, a second one of a file.
        let size = scene.size("/a");
        writes.insert(2, ("/a", scene.rng.below(size - 700), 700));
        writes.insert(4, ("/b", scene.size("/b") + scene.rng.below(9000), 3000));
        writes.push((&paths[1], writes[1].2, 800));
        scene.together(&writes);
        scene.sync(&paths[round]);
        scene.remove(&paths[6], false);
        if round % 3 == 2 {
            scene.commit(&[&paths[6]]);
        }
    }
}

pub fn unwritten(scene: &mut Scene, _: Layout) {
    files(scene, &[("/a", 0)]);
    scene.fallocate("/a", Fallocate::Allocate, 0, 400_000);
    scene.sync("/a");
}

pub fn first_writes(scene: &mut Scene, _: Layout) {
    for round in 0..30 {
        let (pos, length) = piece(scene, 0..400_000, 512, 12);
        scene.write("/a", pos, length, if round % 3 == 0 { PLAIN } else { DSYNC });
        if round % 8 == 7 {
            scene.sync("/a");
        }
    }
}

pub fn holes(scene: &mut Scene, _: Layout) {
    files(scene, &[("/a", 0)]);
    scene.set_len("/a", 600_000);
    scene.sync("/a");
}

pub fn fill_holes(scene: &mut Scene, layout: Layout) {
    for round in 0..30 {
        let unit = *scene.rng.pick(&[512, layout.unit()]);
        let (pos, length) = piece(scene, 0..600_000, unit, 8);
        scene.write("/a", pos, length, if round % 3 == 0 { PLAIN } else { DSYNC });
        if round % 8 == 7 {
            scene.sync("/a");
        }
    }
}

pub fn queued(scene: &mut Scene, _: Layout) {
    for round in 0..12 {
        let start = scene.rng.below(400) * 1024;
        let writes: Vec<_> = (0..6).map(|part| (start + part * 4096, 2048)).collect();
        scene.queued("/a", &writes, if round % 3 == 2 { PLAIN } else { DSYNC });
        if round % 4 == 3 {
            scene.sync("/a");
        }
    }
}

pub fn truncate_down(scene: &mut Scene, _: Layout) {
    while scene.size("/a") > 0 {
        let by = 1 + scene.rng.below(9000);
        scene.set_len("/a", scene.size("/a").saturating_sub(by));
        if scene.rng.below(3) == 0 {
            scene.sync("/a");
        }
    }
}

pub fn truncate_both(scene: &mut Scene, _: Layout) {
    for round in 0..30 {
        let size = scene.rng.below(90_000);
        scene.set_len("/a", size);
        match round % 4 {
            1 => scene.append("/a", 700, DSYNC),
            3 => scene.sync("/a"),
            _ => {}
        }
    }
}

/// The same mode at many places, with overwrites in between.
pub fn ranges(scene: &mut Scene, layout: Layout, mode: Fallocate, unit: u64) {
    for round in 0..24 {
        let size = scene.size("/a");
        let (pos, length) = piece(scene, 0..size - layout.unit(), unit, 10_000_u64.div_ceil(unit));
        scene.fallocate("/a", mode, pos, length);
        let (pos, length) = piece(scene, 0..size / 2, 512, 9);
        scene.write("/a", pos, length, if round % 2 == 0 { DSYNC } else { PLAIN });
        if round % 5 == 4 {
            scene.sync("/a");
        }
    }
}

pub fn punch(scene: &mut Scene, layout: Layout) {
    ranges(scene, layout, Fallocate::Punch, 300);
}

pub fn zero(scene: &mut Scene, layout: Layout) {
    ranges(scene, layout, Fallocate::Zero, 300);
}

pub fn many_units(scene: &mut Scene, layout: Layout) {
    files(scene, &[("/a", 24 * layout.unit() + 700), ("/b", 10_000)]);
}

pub fn collapse(scene: &mut Scene, layout: Layout) {
    while scene.size("/a") > 8 * layout.unit() {
        let end = scene.size("/a") / layout.unit() - 1;
        let (pos, length) = piece(scene, 0..end * layout.unit(), layout.unit(), 2);
        scene.fallocate("/a", Fallocate::Collapse, pos, length);
        scene.append("/b", 900, DSYNC);
    }
}

pub fn insert(scene: &mut Scene, layout: Layout) {
    for _ in 0..14 {
        let (pos, length) = piece(scene, 0..20 * layout.unit(), layout.unit(), 3);
        scene.fallocate("/a", Fallocate::Insert, pos, length);
        scene.write("/a", pos, 512, DSYNC);
    }
}

pub fn prepare(scene: &mut Scene, _: Layout) {
    for round in 1..9 {
        scene.fallocate("/a", Fallocate::Punch, round * 3000, 9000);
        scene.prepare("/a", 40_000 + round * 11_111);
        let (pos, length) = piece(scene, 0..40_000, 512, 9);
        scene.write("/a", pos, length, DSYNC);
    }
}

pub fn create(scene: &mut Scene, _: Layout) {
    for number in 0..24 {
        let path = format!("/d/file-{number}");
        scene.create(&path);
        match number % 4 {
            0 => scene.sync(&path),
            1 => scene.write(&path, 0, 3000, DSYNC),
            2 => scene.write(&path, 0, 3000, PLAIN),
            _ => scene.commit(&[]),
        }
    }
}

/// Names long enough to turn the directory into a hash tree whose leaves split.
pub fn create_hashed(scene: &mut Scene, layout: Layout) {
    for number in 0..(6 * layout.unit().min(4096) / 200) {
        let path = format!("/d/{:05}{number:0195}", mix(number) % 100_000);
        scene.create(&path);
        if number % 3 == 2 {
            scene.commit(&[]);
        }
    }
}

pub fn some_files(scene: &mut Scene, _: Layout) {
    for number in 0..24 {
        files(scene, &[(&format!("/d/file-{number}"), 1000 * number)]);
    }
}

pub fn unlink(scene: &mut Scene, _: Layout) {
    for number in 0..24 {
        let path = format!("/d/file-{number}");
        scene.remove(&path, false);
        if number % 3 == 2 {
            scene.commit(&[&path]);
        }
    }
}

pub fn unlink_open(scene: &mut Scene, _: Layout) {
    for number in 0..24 {
        let path = format!("/d/file-{number}");
        scene.remove(&path, true);
        match number % 4 {
            1 => scene.commit(&[&path]),
            // Not always the newest one.
            2 => drop(scene.nameless.swap_remove(0)),
            _ => {}
        }
    }
    scene.nameless.clear();
    scene.commit(&[]);
}

/// Creates the same names again, perhaps with the same inodes and blocks.
pub fn recreate(scene: &mut Scene, _: Layout) {
    for round in 0..20 {
        let path = format!("/d/file-{}", scene.rng.below(6));
        if scene.files.contains_key(&path) {
            scene.remove(&path, round % 5 == 0);
        }
        scene.create(&path);
        let length = 512 * (1 + scene.rng.below(30));
        scene.write(&path, 0, length, if round % 2 == 0 { DSYNC } else { PLAIN });
        if round % 4 == 3 {
            scene.commit(&[]);
            scene.nameless.clear();
        }
    }
}

/// Many extents each, so that freeing one frees map nodes and takes several handles.
pub fn in_pieces(scene: &mut Scene, layout: Layout) {
    let unit = layout.unit();
    for path in ["/a", "/d/b", "/c"] {
        scene.create(path);
        let most = if layout == HUGE { 12 } else { 120 };
        for piece in 0..most {
            scene.write(path, 2 * piece * unit, 1024, PLAIN);
        }
        scene.sync(path);
    }
}

pub fn orphans(scene: &mut Scene, _: Layout) {
    scene.remove("/a", true);
    scene.remove("/d/b", true);
    scene.commit(&["/a", "/d/b"]);
    scene.set_len("/c", 5000);
    scene.commit(&[]);
}

/// So many extents that cutting or freeing a file takes a while.
pub fn in_many_pieces(scene: &mut Scene, layout: Layout) {
    for number in 0..8 {
        let path = format!("/d/{number}");
        scene.create(&path);
        let file = scene.files[&path].file.clone();
        for piece in 0..500 {
            let pos = 2 * piece * layout.unit();
            file.write_at(&patterned(piece, pos, 512), pos).unwrap();
        }
        scene.adopt(&path);
        scene.sync(&path);
    }
}

/// Files are cut and freed in several steps, while another thread commits, usually between steps.
pub fn freed_in_steps(scene: &mut Scene, _: Layout) {
    let (done, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut other = Scene::new(scene.volume.clone(), scene.teller.clone(), 77);
    other.create("/other");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) && other.size("/other") < 200_000 {
                other.append("/other", 512, DSYNC);
                commits.fetch_add(1, Ordering::Relaxed);
            }
            other.files
        });
        for number in 0..8 {
            let (path, from) = (format!("/d/{number}"), commits.load(Ordering::Relaxed));
            while commits.load(Ordering::Relaxed) == from && !other.is_finished() {
                std::thread::yield_now();
            }
            match number % 4 {
                0 => scene.set_len(&path, 1500),
                _ => scene.remove(&path, false),
            }
        }
        done.store(true, Ordering::Relaxed);
        scene.files.extend(other.join().unwrap());
    });
    scene.commit(&["/d/1", "/d/2", "/d/3", "/d/5", "/d/6", "/d/7"]);
}

/// Map blocks are freed and reused as data, which is overwritten without the journal.
pub fn revoke_and_reuse(scene: &mut Scene, layout: Layout) {
    let unit = layout.unit();
    // Keep its block from following the first file's.
    scene.commit(&[]);
    for round in 0..6 {
        let (old, new) = (format!("/old-{round}"), format!("/new-{round}"));
        scene.create(&old);
        for piece in 0..12 {
            scene.write(&old, 2 * piece * unit, 512, PLAIN);
        }
        scene.sync(&old);
        scene.remove(&old, false);
        scene.commit(&[&old]);
        // As many blocks as were freed, including the map's.
        scene.create(&new);
        scene.write(&new, 0, 13 * unit, DSYNC);
        for part in 0..13 {
            scene.write(&new, part * unit, 512, DSYNC);
        }
    }
}

pub fn interleaved(scene: &mut Scene, _: Layout) {
    for round in 0..30 {
        let (one, other) = if round % 2 == 0 { ("/a", "/b") } else { ("/b", "/a") };
        scene.append(one, 1500, PLAIN);
        let (pos, length) = piece(scene, 0..20_000, 512, 4);
        scene.write(other, pos, length, PLAIN);
        match round % 5 {
            0 => scene.sync(one),
            2 => scene.sync(other),
            4 => scene.append(one, 512, DSYNC),
            _ => {}
        }
    }
}

/// All possible operations on two files.
pub fn everything(scene: &mut Scene, layout: Layout) {
    use Fallocate::{Allocate, KeepSize, Punch, Zero, ZeroKeepSize};
    for _ in 0..50 {
        let path = *scene.rng.pick(&["/a", "/b"]);
        let size = scene.size(path).max(2000);
        let (pos, length) = piece(scene, 0..size + 5000, 512, 20);
        match scene.rng.below(12) {
            0..3 => scene.write(path, pos, length, DSYNC),
            3 => scene.write(path, pos, length, PLAIN),
            4 => scene.append(path, 1 + length % 5000, DSYNC),
            5 => scene.set_len(path, pos),
            6 => {
                let mode = *scene.rng.pick(&[Allocate, KeepSize, Punch, Zero, ZeroKeepSize]);
                scene.fallocate(path, mode, pos, length + 17);
            }
            7 if size > 4 * layout.unit() && scene.size(path) == size => {
                let mode = *scene.rng.pick(&[Fallocate::Collapse, Fallocate::Insert]);
                scene.fallocate(path, mode, layout.unit(), layout.unit());
            }
            8 => {
                scene.remove(path, false);
                scene.create(path);
            }
            9 => scene.queued(path, &[(pos, 512), (pos + 512, 1024), (pos + 8192, 512)], DSYNC),
            10 => scene.commit(&[]),
            _ => scene.sync(path),
        }
    }
}

/// Enough commits to wrap the log around several times.
pub fn wrap_around(scene: &mut Scene, _: Layout) {
    for round in 0..300 {
        let (pos, length) = piece(scene, 0..200_000, 512, 4);
        scene.write(["/a", "/b"][round % 2], pos, length, DSYNC);
    }
}

/// Handles until the log is full, with few syncs.
pub fn log_full(scene: &mut Scene, layout: Layout) {
    for number in 0..150 {
        let path = format!("/d/{number:0120}");
        scene.create(&path);
        scene.write(&path, 0, 512, PLAIN);
        scene.write("/a", (100 + 2 * number) * layout.unit().min(8192), 512, PLAIN);
        if number % 50 == 49 {
            scene.sync("/a");
        }
    }
}

/// A volume with hardly any free space.
pub fn nearly_full(scene: &mut Scene, layout: Layout) {
    files(scene, &[("/a", 20_000), ("/full", 0)]);
    let size = layout.mebibytes << 20;
    for part in [size / 16, size / 64, 16 * layout.unit()] {
        while scene.try_write("/full", scene.size("/full"), part, PLAIN) {}
    }
    scene.sync("/full");
}

/// Freed space is available after a commit, and writes wait for it.
pub fn no_room(scene: &mut Scene, layout: Layout) {
    let unit = layout.unit();
    for round in 0..14 {
        let size = scene.size("/full");
        scene.set_len("/full", size - 12 * unit);
        let before = scene.size("/a");
        while scene.try_write("/a", scene.size("/a").next_multiple_of(512), 2 * unit, DSYNC) {}
        assert!(scene.size("/a") > before, "what was freed is there after a commit");
        if round % 3 == 2 {
            scene.set_len("/a", 20_000);
            scene.sync("/a");
        }
    }
}

/// Threads with files of their own.
pub fn threads(scene: &mut Scene, layout: Layout) {
    let paths = [["/a", "/b"], ["/d/a", "/d/b"], ["/c", "/e"]];
    let work = |thread: u64| {
        let volume = scene.volume.clone();
        let mut own = Scene::new(volume, scene.teller.clone(), scene.rng.clone().next_u64() >> 40 ^ thread);
        own.number += (thread + 1) << 48;
        for path in paths[thread as usize] {
            own.create(path);
            own.append(path, 3000, DSYNC);
        }
        for round in 0..25 {
            let path = paths[thread as usize][round % 2];
            let (pos, length) = piece(&mut own, 0..30_000, 512, 8);
            match own.rng.below(6) {
                0 => own.set_len(path, pos),
                1 => own.fallocate(path, Fallocate::Punch, pos, length),
                2 => own.write(path, pos, length, PLAIN),
                3 => own.sync(path),
                _ => own.append(path, 1024, DSYNC),
            }
        }
        assert!(layout.unit() > 0);
        own.files
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..3).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    scene.files.extend(all.into_iter().flatten());
}

/// Files opened with truncation.
pub fn emptied(scene: &mut Scene, _: Layout) {
    for round in 0..12 {
        let path = *scene.rng.pick(&["/a", "/b"]);
        scene.empty(path);
        scene.append(path, 9000, if round % 2 == 0 { DSYNC } else { PLAIN });
    }
}

/// Files are replaced as a whole: shorter, longer and empty ones, ones that are open, overwritten or synced in between,
/// and missing ones; some replacements are dropped.
pub fn replaced(scene: &mut Scene, _: Layout) {
    for round in 0..24_u64 {
        let path = ["/a", "/b", "/d/c"][(round % 3) as usize];
        let length = *scene.rng.pick(&[0, 300, 4096, 17_000, 40_000]);
        if round % 5 == 4 {
            drop(scene.replacement(path, length));
        }
        scene.replace(path, length, round % 4 == 1);
        match scene.rng.below(5) {
            0 => scene.sync(path),
            1 => scene.commit(&[]),
            2 => scene.append(path, 1500, DSYNC),
            3 => scene.append(path, 700, PLAIN),
            _ => {}
        }
    }
}

pub fn old_files(scene: &mut Scene, _: Layout) {
    (0..OLD_FILES.len()).for_each(|number| scene.adopt(&format!("/d/file-{number}")));
}

/// Maps of block pointers lose data blocks along with the pointer blocks.
pub fn pointers(scene: &mut Scene, _: Layout) {
    for number in (0..OLD_FILES.len()).rev() {
        let path = format!("/d/file-{number}");
        let size = scene.size(&path);
        scene.write(&path, 0, 512, DSYNC);
        scene.fallocate(&path, Fallocate::Punch, 300, size / 2);
        scene.sync(&path);
        scene.set_len(&path, size / 3);
        if number % 2 == 0 {
            scene.remove(&path, false);
            scene.sync("/d/file-1");
        } else {
            scene.sync(&path);
        }
    }
}

/// Files inside their inodes, and an empty one.
pub fn small_files(scene: &mut Scene, _: Layout) {
    files(scene, &[("/a", 40), ("/b", 130), ("/d/c", 0)]);
}

/// Writes and new sizes inside the inode; growth, attributes and punches that move the contents out; new files.
pub fn inside(scene: &mut Scene, _: Layout) {
    for round in 0..60_u64 {
        let path = ["/a", "/b", "/d/c"][(round % 3) as usize];
        let (pos, length) = (scene.rng.below(100), 1 + scene.rng.below(60));
        let flags = *scene.rng.pick(&[PLAIN, DSYNC, WriteFlags::SYNC]);
        match scene.rng.below(12) {
            0..4 => scene.write(path, pos, length, flags),
            4 | 5 => scene.append(path, length, flags),
            6 => scene.set_len(path, pos),
            7 => scene.sync(path),
            8 => scene.write(path, pos, 1100, flags),
            9 => {
                let value = vec![b'v'; length as usize];
                scene.volume.set_xattr(path, "user.a", &value, XattrFlags::empty(), true).unwrap();
                scene.append(path, length, DSYNC);
            }
            10 => scene.fallocate(path, Fallocate::Punch, pos, length),
            _ => {
                scene.remove(path, round % 2 == 0);
                scene.create(path);
                scene.write(path, 0, length, flags);
            }
        }
        if !scene.files[path].file.is_inline() && scene.rng.below(3) == 0 {
            scene.remove(path, false);
            scene.create(path);
        }
    }
    assert!(scene.volume.stats().get(Counter::InlineWrites) > 15);
}
