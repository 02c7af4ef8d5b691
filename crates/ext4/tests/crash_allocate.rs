//! Writes that allocate, convert and extend, under power cuts. In every state, recovered by us and by e2fsck,
//! acknowledged data is there; other data is old, new or zero; and the contents of free blocks are never exposed.

use crate::common;

use common::crash::{GARBAGE, enumerate, garbage_volume};
use common::{Image, open_rw, patterned, read_all, read_only, read_write};
use std::collections::HashMap;
use std::sync::Arc;
use uext4::device::Device;
use uext4::{Fallocate, File, QueueOptions, Volume, WriteFlags};
use uext4_testkit::crash::{Options, Report, State, assert_states};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashOptions, LateDevice, LateHandle};
use uext4_testkit::fixture::pattern;
use uext4_testkit::{Need, Rng, Scratch, needs, oracle};

const UNIT: u64 = 512;
const SIZE: u64 = 12 << 20;
const PATHS: [&str; 3] = ["/a", "/b", "/old"];
/// Bytes of `/old`, with pattern 7; the other files are empty.
const OLD: u64 = 50_000;

/// A volume with garbage in its free blocks, and a log small enough to wrap around.
fn image(args: &[&str]) -> Image {
    let tree = Scratch::new(SIZE);
    for (path, size) in PATHS.into_iter().zip([0, 0, OLD]) {
        std::fs::write(tree.file(&path[1..]), &*patterned(7, 0, size as usize)).unwrap();
    }
    garbage_volume(SIZE, tree.path(), &[&["-b", "1024", "-J", "size=1"], args].concat())
}

/// A write, announced before it begins. Its bytes are those of pattern `number`.
#[derive(Debug, Clone)]
struct Begun {
    number: u64,
    file: usize,
    pos: u64,
    length: u64,
}

/// Writes that have been acknowledged as durable, and the size of their file then.
struct Acknowledged {
    writes: Vec<Begun>,
    file: usize,
    size: u64,
}

struct Scene {
    handle: CrashHandle,
    volume: Volume,
    files: Vec<File>,
    rng: Rng,
    number: u64,
    waiting: Vec<Begun>,
}

impl Scene {
    fn new(image: &Image, seed: u64, fua: bool) -> Scene {
        let options = CrashOptions { fua, ..CrashOptions::default() };
        let device = CrashDevice::new(image.device(), options).unwrap();
        let handle = device.handle();
        Scene::on(Arc::new(device), handle, seed)
    }

    /// The same, with queued requests that land when the test says so.
    fn late(image: &Image, seed: u64) -> (Scene, LateHandle) {
        let device = CrashDevice::new(image.device(), CrashOptions::default()).unwrap();
        let handle = device.handle();
        let device = LateDevice::new(Arc::new(device));
        let late = device.handle();
        (Scene::on(Arc::new(device), handle, seed), late)
    }

    fn on(device: Arc<dyn Device>, handle: CrashHandle, seed: u64) -> Scene {
        let volume = open_rw(device);
        let files = PATHS.map(|path| volume.open_file(path, read_write()).unwrap()).into();
        Scene { handle, volume, files, rng: Rng::new(seed), number: 100, waiting: Vec::new() }
    }

    /// Queues writes into holes of `/a`, which are sent only after a write to `/b` has been committed.
    fn around_a_commit(&mut self, start: u64) {
        let mut queue = self.volume.queue(QueueOptions::depth(4)).unwrap();
        let slot = queue.attach(&self.files[0]).unwrap();
        for part in 0..4 {
            let begun = self.begin(0, start + part * 4096, 2048);
            let mut buffer = queue.buffer(2048).unwrap();
            pattern(begun.number, begun.pos, &mut buffer);
            queue.write(slot, begun.pos, buffer, WriteFlags::empty(), part).unwrap();
        }
        let size = self.files[1].size();
        let begun = self.begin(1, size, 1024);
        let bytes = patterned(begun.number, size, 1024);
        assert_eq!(self.files[1].write_at_with(&bytes, size, WriteFlags::DSYNC).unwrap(), 1024);
        self.acknowledge(1, vec![begun]);
        let mut left = 4;
        while left > 0 {
            left -= queue.wait(1).unwrap().inspect(|done| assert!(done.result.is_ok())).count();
        }
    }

    fn begin(&mut self, file: usize, pos: u64, length: u64) -> Begun {
        self.number += 1;
        let begun = Begun { number: self.number, file, pos, length };
        self.handle.mark(begun.clone());
        begun
    }

    /// At the end, past it, or over existing data.
    fn choose(&mut self) -> (usize, u64, u64) {
        let file = self.rng.below(self.files.len() as u64) as usize;
        let size = self.files[file].size();
        let length = *self.rng.pick(&[512, 1024, 1536, 4096, 20_480]);
        let pos = match self.rng.below(4) {
            0 | 1 => size.next_multiple_of(UNIT),
            2 => (size + self.rng.below(20_000)) / UNIT * UNIT,
            _ => self.rng.below(size + 1) / UNIT * UNIT,
        };
        (file, pos, length)
    }

    fn write(&mut self, flags: WriteFlags) -> Begun {
        let (file, pos, length) = self.choose();
        let begun = self.begin(file, pos, length);
        let bytes = patterned(begun.number, pos, length as usize);
        assert_eq!(self.files[file].write_at_with(&bytes, pos, flags).unwrap() as u64, length);
        begun
    }

    fn acknowledge(&self, file: usize, writes: Vec<Begun>) {
        self.handle.mark(Acknowledged { writes, file, size: self.files[file].size() });
    }

    fn durable(&mut self) {
        let flags = *self.rng.pick(&[WriteFlags::DSYNC, WriteFlags::SYNC]);
        let begun = self.write(flags);
        self.acknowledge(begun.file, vec![begun]);
    }

    fn plain_and_sync(&mut self) {
        for _ in 0..3 {
            let begun = self.write(WriteFlags::empty());
            self.waiting.push(begun);
        }
        let file = self.waiting[0].file;
        self.files[file].sync_data().unwrap();
        let (durable, waiting) = self.waiting.drain(..).partition(|begun| begun.file == file);
        self.waiting = waiting;
        self.acknowledge(file, durable);
    }

    /// Several concurrent writes to one part of a file, each durable on its own.
    fn queued(&mut self) {
        let file = self.rng.below(2) as usize;
        let mut queue = self.volume.queue(QueueOptions::depth(4)).unwrap();
        let slot = queue.attach(&self.files[file]).unwrap();
        let start = self.rng.below(self.files[file].size() / 8192 + 1) * 8192;
        let mut sent = HashMap::new();
        for part in 0..4 {
            let begun = self.begin(file, start + part * 2048, 1024);
            let mut buffer = queue.buffer(1024).unwrap();
            pattern(begun.number, begun.pos, &mut buffer);
            queue.write(slot, begun.pos, buffer, WriteFlags::DSYNC, begun.number).unwrap();
            sent.insert(begun.number, begun);
        }
        while !sent.is_empty() {
            let done: Vec<_> = queue.wait(1).unwrap().collect();
            for done in done {
                assert_eq!(*done.result.as_ref().unwrap(), 1024);
                let begun = sent.remove(&done.tag).unwrap();
                self.acknowledge(file, vec![begun]);
            }
        }
    }
}

impl Scene {
    /// Several appends in flight behind one another, plain ones and durable ones, complete in any order. The file first
    /// gets whole blocks, and sometimes more of them behind its end.
    fn appends(&mut self, late: &LateHandle) {
        let file = self.rng.below(2) as usize;
        let size = self.files[file].size().next_multiple_of(1024);
        if size != self.files[file].size() {
            self.files[file].set_len(size).unwrap();
        }
        if self.rng.below(4) == 0 {
            let length = 1 + self.rng.below(9000);
            self.files[file].fallocate(Fallocate::KeepSize, size, length).unwrap();
        }
        let mut queue = self.volume.queue(QueueOptions::depth(8)).unwrap();
        let slot = queue.attach(&self.files[file]).unwrap();
        let (mut sent, mut at) = (HashMap::new(), size);
        for _ in 0..2 + self.rng.below(6) {
            let flags = *self.rng.pick(&[WriteFlags::empty(), WriteFlags::DSYNC, WriteFlags::SYNC]);
            let length = 1024 * (1 + self.rng.below(4));
            let begun = self.begin(file, at, length);
            let mut buffer = queue.buffer(begun.length as usize).unwrap();
            pattern(begun.number, begun.pos, &mut buffer);
            queue.write(slot, begun.pos, buffer, flags, begun.number).unwrap();
            at += begun.length;
            sent.insert(begun.number, (begun, flags));
        }
        queue.submit().unwrap();
        let held = late.held();
        let mut end = size;
        while !sent.is_empty() {
            // Commits of others come between their data and their conversions.
            if self.rng.below(3) == 0 {
                self.durable_at(1 - file);
            }
            match late.waiting() {
                0 => late.release(),
                waiting => late.land_one(self.rng.below(waiting as u64) as usize),
            }
            let done: Vec<_> = queue.wait(0).unwrap().collect();
            for done in done {
                let (begun, flags) = sent.remove(&done.tag).unwrap();
                assert_eq!((*done.result.as_ref().unwrap() as u64, begun.pos), (begun.length, end));
                end += begun.length;
                if !flags.is_empty() {
                    self.handle.mark(Acknowledged { writes: vec![begun], file, size: end });
                }
            }
        }
        drop(held);
    }

    /// A durable write at the end of a file.
    fn durable_at(&mut self, file: usize) {
        let size = self.files[file].size().next_multiple_of(UNIT);
        let begun = self.begin(file, size, 1024);
        let bytes = patterned(begun.number, size, 1024);
        assert_eq!(self.files[file].write_at_with(&bytes, size, WriteFlags::DSYNC).unwrap(), 1024);
        self.acknowledge(file, vec![begun]);
    }
}

/// The permitted contents of each unit of the files: pattern numbers, 0 for zeros, the newest acknowledged one first.
fn allowed(state: &State<'_>) -> HashMap<(usize, u64), Vec<u64>> {
    let durable: Vec<u64> =
        state.marks::<Acknowledged>().flat_map(|mark| &mark.writes).map(|begun| begun.number).collect();
    let mut allowed: HashMap<_, Vec<u64>> = HashMap::new();
    for begun in state.marks::<Begun>() {
        for unit in begun.pos / UNIT..(begun.pos + begun.length) / UNIT {
            let old = if begun.file == 2 && unit * UNIT < OLD { 7 } else { 0 };
            let numbers = allowed.entry((begun.file, unit)).or_insert_with(|| vec![old]);
            if durable.contains(&begun.number) {
                numbers.clear();
            }
            numbers.push(begun.number);
        }
    }
    allowed
}

/// Whether these bytes at `pos` are pattern `number`; pattern 7 is zero past the size of `/old`.
fn is(bytes: &[u8], number: u64, pos: u64) -> bool {
    let mut expected = vec![0; bytes.len()];
    if number > 0 {
        pattern(number, pos, &mut expected);
    }
    if number == 7 {
        expected[(OLD.saturating_sub(pos) as usize).min(bytes.len())..].fill(0);
    }
    expected == bytes
}

fn check(state: &State<'_>, contents: &[Vec<u8>]) -> Result<(), String> {
    for mark in state.marks::<Acknowledged>() {
        let size = contents[mark.file].len() as u64;
        if size < mark.size {
            return Err(format!("{} has {size} bytes, {} were acknowledged", PATHS[mark.file], mark.size));
        }
    }
    let allowed = allowed(state);
    for (file, bytes) in contents.iter().enumerate() {
        for (unit, found) in (0..).zip(bytes.chunks(UNIT as usize)) {
            let pos = unit * UNIT;
            let old = if file == 2 && pos < OLD { 7 } else { 0 };
            let untouched = vec![old];
            let numbers = allowed.get(&(file, unit)).unwrap_or(&untouched);
            if !numbers.iter().any(|number| is(found, *number, pos)) {
                let what =
                    if found.contains(&GARBAGE) { "what was in free blocks" } else { "something else" };
                return Err(format!("{} holds {what} at byte {pos}, not one of {numbers:?}", PATHS[file]));
            }
        }
    }
    Ok(())
}

fn contents(volume: &Volume) -> Vec<Vec<u8>> {
    PATHS.iter().map(|path| read_all(&volume.open_file(path, read_only()).unwrap())).collect()
}

fn states(scene: &Scene, name: &str, states: usize) -> Report {
    let options = Options::new(name, 1).at_most(states);
    enumerate(&scene.handle, &options, 40, |state, volume| check(state, &contents(volume)))
}

#[test]
fn what_was_acknowledged_survives_every_power_cut() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let layouts: [&[&str]; 4] = [
        &[],
        &["-O", "^metadata_csum,^64bit"],
        &["-O", "bigalloc", "-C", "8192"],
        // Maps of block pointers: new blocks are zeroed before they are mapped.
        &["-O", "^extent,^64bit"],
    ];
    for (seed, args) in (1..).zip(layouts) {
        let image = image(args);
        for fua in [true, false] {
            let mut scene = Scene::new(&image, seed, fua);
            for round in 0..20 {
                match round % 4 {
                    0 | 3 => scene.durable(),
                    1 => scene.plain_and_sync(),
                    _ => scene.queued(),
                }
            }
            scene.volume.clone().close().unwrap();
            let report = states(&scene, &format!("allocate-{seed}-{fua}"), 1500);
            assert!(report.images > 100, "{report}");
        }
    }
}

/// Queued appends in flight together: what was acknowledged is there, the size covers nothing that was not written, and
/// nothing is lost behind it.
#[test]
fn appends_in_flight_together_survive_every_power_cut() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (seed, args) in (51..).zip([&[][..], &["-O", "^metadata_csum,^64bit"], &["-O", "fast_commit"]]) {
        let image = image(args);
        let (mut scene, late) = Scene::late(&image, seed);
        (0..14).for_each(|_| scene.appends(&late));
        let report = states(&scene, &format!("allocate-appends-{seed}"), 1500);
        assert!(report.images > 100, "{report}");
    }
}

/// A commit between a write's allocation and its data must not expose the old contents of the blocks.
#[test]
fn a_commit_in_the_middle_of_a_write_shows_nothing_of_it() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let layouts: [&[&str]; 2] = [&[], &["-O", "^extent,^64bit"]];
    for (seed, args) in (31..).zip(layouts) {
        let mut scene = Scene::new(&image(args), seed, true);
        scene.files[0].set_len(200_000).unwrap();
        (0..10).for_each(|round| scene.around_a_commit(round * 20_480));
        let report = states(&scene, &format!("allocate-around-{seed}"), 1000);
        println!("{args:?}: {report}");
        assert!(report.images > 100, "{report}");
    }
}

/// An extending write finds the volume full, and forces a commit that releases another file's freed blocks, while some
/// of its own blocks already lie past the size.
#[test]
fn a_commit_in_the_middle_of_an_extension_leaves_no_block_behind_the_size() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let layouts: [&[&str]; 2] = [&[], &["-O", "^extent,^64bit"]];
    for (seed, args) in (41..).zip(layouts) {
        let mut scene = Scene::new(&image(args), seed, true);
        let (unit, mut full) = (512 << 10, 0);
        while scene.files[1].write_at(&patterned(3, full, unit), full).is_ok() {
            full += unit as u64;
        }
        scene.files[1].sync_all().unwrap();
        scene.handle.reset().unwrap();
        scene.files[1].set_len(full / 2).unwrap();
        // More than is free, and less than was freed.
        let begun = scene.begin(0, 0, full / 4);
        let bytes = patterned(begun.number, 0, begun.length as usize);
        assert_eq!(scene.files[0].write_at(&bytes, 0).unwrap(), bytes.len());
        scene.files[0].sync_all().unwrap();
        let scratch = Scratch::new(4 * SIZE);
        let path = scratch.file("state.img");
        let options = Options::new(&format!("allocate-full-{seed}"), 1).at_most(120);
        let report = assert_states(&scene.handle.log().unwrap(), &options, |state| {
            let device = state.device();
            let volume = open_rw(device.clone());
            let size = volume.metadata("/a").unwrap().size;
            volume.close().map_err(|error| error.to_string())?;
            Image::of(&*device).save(&path);
            oracle::e2fsck_clean(&path);
            state.save(&path);
            let repaired = oracle::e2fsck(&path, &["-fy"]);
            let complains = repaired.output.contains("i_size");
            if repaired.status > 1 || complains || (size != 0 && size != begun.length) {
                return Err(format!("{size} bytes, {repaired:?}"));
            }
            Ok(())
        });
        println!("{args:?}: {report}");
    }
}

/// Enough commits to wrap the log around, so that blocks are written home.
#[test]
fn a_log_that_comes_round_loses_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let mut scene = Scene::new(&image(&[]), 9, true);
    for _ in 0..250 {
        scene.durable();
    }
    states(&scene, "allocate-round", 2000);
}

/// A second power cut while a volume is recovered and closed: the next open finds all acknowledged data.
#[test]
fn a_power_cut_in_the_middle_of_recovery_loses_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (seed, args) in
        [(21, &[][..]), (22, &["-O", "^metadata_csum"]), (23, &["-O", "bigalloc", "-C", "8192"])]
    {
        let mut scene = Scene::new(&image(args), seed, true);
        (0..30).for_each(|_| scene.durable());
        scene.files.iter().for_each(|file| file.sync_all().unwrap());
        let expected = contents(&scene.volume);
        let dirty = Image::of(&**scene.volume.device());
        let crash = CrashDevice::new(dirty.device(), CrashOptions::default()).unwrap();
        let handle = crash.handle();
        open_rw(Arc::new(crash)).close().unwrap();
        let options = Options::new(&format!("recovery-{seed}"), 1).at_most(600);
        let report = enumerate(&handle, &options, 40, |_, volume| match contents(volume) == expected {
            true => Ok(()),
            false => Err("something acknowledged is lost".into()),
        });
        assert!(report.images > 20, "{report}");
    }
}

/// An extending write over many preallocated pieces is converted in several handles, and the log is so full that a
/// commit comes between them: the size covers exactly what is converted.
#[test]
fn a_commit_in_the_middle_of_a_conversion_shows_no_zeros_behind_it() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let mut parts = 0;
    // How many names fill a transaction depends on the journal.
    for names in (700..1100).step_by(40) {
        let mut scene = Scene::new(&image(&[]), names, true);
        // They fill more leaves than a handle of a new name has credits: room for one name is too little for them.
        let blocks = 4000;
        // Alternating, so that no piece continues another.
        for at in (0..blocks).map(|block| block << 10) {
            for file in &scene.files[..2] {
                file.fallocate(Fallocate::KeepSize, at, 1024).unwrap();
            }
        }
        scene.files[1].sync_all().unwrap();
        scene.handle.reset().unwrap();
        for number in 0..names {
            let made = read_write().create_new(true);
            drop(scene.volume.open_file(format!("/{number}"), made).unwrap());
        }
        let begun = scene.begin(0, 0, blocks << 10);
        let bytes = patterned(begun.number, 0, begun.length as usize);
        assert_eq!(scene.files[0].write_at(&bytes, 0).unwrap(), bytes.len());
        scene.files[0].sync_all().unwrap();
        let options = Options::new(&format!("allocate-parts-{names}"), 1).at_most(60);
        let report = assert_states(&scene.handle.log().unwrap(), &options, |state| {
            let found = read_all(&open_rw(state.device()).open_file("/a", read_only()).unwrap());
            parts += u32::from(!found.is_empty() && found.len() < bytes.len());
            match bytes.starts_with(&found) {
                true => Ok(()),
                false => Err(format!("{} bytes that are not those that were written", found.len())),
            }
        });
        println!("{names}: {report}");
        if parts > 0 {
            return;
        }
    }
    panic!("no commit came in between");
}
