//! Atomic writes under power cuts: in every state, recovered by us and by e2fsck, each unit holds one whole write, and
//! none that is older than the newest acknowledged one.

use crate::common;

use common::crash::{GARBAGE, enumerate, garbage_volume};
use common::{open_rw, patterned, read_all, read_only, read_write};
use std::sync::Arc;
use uext4::{File, Volume, WriteFlags};
use uext4_testkit::crash::{Options, State};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashOptions};
use uext4_testkit::fixture::pattern;
use uext4_testkit::{Need, Rng, Scratch, needs};

const SIZE: u64 = 12 << 20;
/// Bytes of an atomic write, and how many of them the file has.
const UNIT: u64 = 8192;
const UNITS: u64 = 12;

/// A write, announced before it begins; its bytes are those of pattern `number`.
#[derive(Debug, Clone, Copy)]
struct Begun {
    number: u64,
    unit: u64,
}

/// Writes up to this number are durable.
#[derive(Debug, Clone, Copy)]
struct Durable(u64);

struct Scene {
    handle: CrashHandle,
    volume: Volume,
    file: File,
    other: File,
    rng: Rng,
    number: u64,
}

impl Scene {
    fn new(args: &[&str], seed: u64, fua: bool) -> Scene {
        let tree = Scratch::new(SIZE);
        std::fs::write(tree.file("units"), &*patterned(7, 0, (UNIT * UNITS) as usize)).unwrap();
        std::fs::write(tree.file("other"), "").unwrap();
        let args = [&["-b", "1024", "-J", "size=1"], args].concat();
        let image = garbage_volume(SIZE, tree.path(), &args);
        let options = CrashOptions { fua, ..CrashOptions::default() };
        let device = CrashDevice::new(image.device(), options).unwrap();
        let (handle, volume) = (device.handle(), open_rw(Arc::new(device)));
        let file = volume.open_file("/units", read_write()).unwrap();
        let other = volume.open_file("/other", read_write()).unwrap();
        Scene { handle, volume, file, other, rng: Rng::new(seed), number: 100 }
    }

    fn write(&mut self, flags: WriteFlags) {
        self.number += 1;
        let begun = Begun { number: self.number, unit: self.rng.below(UNITS) };
        self.handle.mark(begun);
        let pos = begun.unit * UNIT;
        let bytes = patterned(begun.number, pos, UNIT as usize);
        self.file.write_at_with(&bytes, pos, WriteFlags::ATOMIC | flags).unwrap();
        if !flags.is_empty() {
            self.handle.mark(Durable(begun.number));
        }
    }

    fn step(&mut self) {
        match self.rng.below(8) {
            0 | 1 => self.write(WriteFlags::DSYNC),
            2 => {
                self.file.sync_data().unwrap();
                self.handle.mark(Durable(self.number));
            }
            // Others use blocks that were freed.
            3 => {
                let size = self.other.size();
                let bytes = patterned(3, size, 4096);
                self.other.write_at_with(&bytes, size, WriteFlags::DSYNC).unwrap();
            }
            4 => self.other.set_len(0).unwrap(),
            _ => self.write(WriteFlags::empty()),
        }
    }
}

fn check(state: &State<'_>, volume: &Volume) -> Result<(), String> {
    let contents = read_all(&volume.open_file("/units", read_only()).unwrap());
    if contents.len() as u64 != UNIT * UNITS {
        return Err(format!("{} bytes", contents.len()));
    }
    let durable = state.marks::<Durable>().map(|durable| durable.0).max().unwrap_or(0);
    for (unit, bytes) in (0..).zip(contents.chunks(UNIT as usize)) {
        let mut allowed = vec![7];
        for begun in state.marks::<Begun>().filter(|begun| begun.unit == unit) {
            if begun.number <= durable {
                allowed.clear();
            }
            allowed.push(begun.number);
        }
        let is = |number: &u64| {
            let mut expected = vec![0; bytes.len()];
            pattern(*number, unit * UNIT, &mut expected);
            expected == bytes
        };
        if !allowed.iter().any(is) {
            let what = if bytes.contains(&GARBAGE) { "garbage" } else { "something else" };
            return Err(format!("unit {unit} holds {what}, not one of {allowed:?}"));
        }
    }
    Ok(())
}

#[test]
fn atomic_writes_are_whole_after_every_power_cut() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let layouts: [&[&str]; 3] = [&[], &["-O", "^metadata_csum,^64bit"], &["-O", "fast_commit"]];
    for (seed, args) in (1..).zip(layouts) {
        for fua in [true, false] {
            let mut scene = Scene::new(args, seed, fua);
            (0..60).for_each(|_| scene.step());
            scene.volume.clone().close().unwrap();
            let options = Options::new(&format!("atomic-{seed}-{fua}"), 1).at_most(1800);
            let report = enumerate(&scene.handle, &options, 40, check);
            assert!(report.images > 100, "{report}");
        }
    }
}

/// Enough commits to wrap the log around.
#[test]
fn a_log_that_comes_round_tears_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let mut scene = Scene::new(&[], 9, true);
    (0..300).for_each(|_| scene.write(WriteFlags::DSYNC));
    enumerate(&scene.handle, &Options::new("atomic-round", 1).at_most(2000), 40, check);
}
