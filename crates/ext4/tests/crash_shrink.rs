//! Changes of size and blocks under power cuts. In every state, recovered by us and by e2fsck, the volume is sound, and
//! each byte of a file has its value after one of the changes since the last sync, or zero; the contents of free blocks
//! are never exposed.

use crate::common;

use common::crash::{GARBAGE, enumerate, garbage_volume};
use common::{Image, open_rw, patterned, read_all, read_only, read_write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use uext4::{Fallocate, File, Volume};
use uext4_testkit::crash::{Options, Report, State};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashOptions};
use uext4_testkit::{Need, Rng, Scratch, needs};

const SIZE: u64 = 12 << 20;
const PATHS: [&str; 2] = ["/a", "/b"];
const MOST: u64 = 400_000;
/// Bytes of a cluster in every layout here, or of several blocks.
const CLUSTER: u64 = 8192;

/// A volume with garbage in its free blocks, and a log small enough to wrap around.
fn image(args: &[&str]) -> Image {
    let tree = Scratch::new(SIZE);
    for path in PATHS {
        std::fs::write(tree.file(&path[1..]), &*patterned(7, 0, 100_000)).unwrap();
    }
    garbage_volume(SIZE, tree.path(), &[&["-b", "1024", "-J", "size=1"], args].concat())
}

/// The contents of a file after a change, announced before it begins; or its durable contents.
struct Version {
    file: usize,
    bytes: Vec<u8>,
    durable: bool,
}

struct Scene {
    handle: CrashHandle,
    files: Vec<(File, Vec<u8>)>,
    rng: Rng,
    number: u64,
}

impl Scene {
    fn new(image: &Image, seed: u64, fua: bool) -> Scene {
        let options = CrashOptions { fua, ..CrashOptions::default() };
        let device = CrashDevice::new(image.device(), options).unwrap();
        let (handle, volume) = (device.handle(), open_rw(Arc::new(device)));
        let open = |path| {
            let file = volume.open_file(path, read_write()).unwrap();
            let bytes = read_all(&file);
            (file, bytes)
        };
        let files = PATHS.map(open).into();
        let scene = Scene { handle, files, rng: Rng::new(seed), number: 100 };
        (0..PATHS.len()).for_each(|file| scene.say(file, true));
        scene
    }

    fn say(&self, file: usize, durable: bool) {
        self.handle.mark(Version { file, bytes: self.files[file].1.clone(), durable });
    }

    fn sync(&mut self, file: usize) {
        self.files[file].0.sync_data().unwrap();
        self.say(file, true);
    }

    fn step(&mut self) {
        let at = self.rng.below(PATHS.len() as u64) as usize;
        let size = self.files[at].1.len() as u64;
        let (pos, length) = (self.rng.below(size + 2000), 1 + self.rng.below(30_000));
        let end = pos + length;
        match self.rng.below(10) {
            0..3 => self.write(at, pos / 512 * 512, length.next_multiple_of(512)),
            3..5 => {
                let size = self.rng.below(MOST);
                self.files[at].1.resize(size as usize, 0);
                self.say(at, false);
                self.files[at].0.set_len(size).unwrap();
            }
            5 => self.clear(at, Fallocate::Punch, pos, end),
            6 => self.clear(at, Fallocate::ZeroKeepSize, pos, end),
            7 => self.files[at].0.fallocate(Fallocate::KeepSize, pos, length).unwrap(),
            8 if size > 2 * CLUSTER => self.shift(at, size),
            _ => self.sync(at),
        }
        assert_eq!(self.files[at].0.size(), self.files[at].1.len() as u64);
    }

    fn write(&mut self, at: usize, pos: u64, length: u64) {
        self.number += 1;
        let bytes = patterned(self.number, pos, length as usize);
        let model = &mut self.files[at].1;
        model.resize(model.len().max((pos + length) as usize), 0);
        model[pos as usize..(pos + length) as usize].copy_from_slice(&bytes);
        self.say(at, false);
        assert_eq!(self.files[at].0.write_at(&bytes, pos).unwrap() as u64, length);
    }

    fn clear(&mut self, at: usize, mode: Fallocate, pos: u64, end: u64) {
        let model = &mut self.files[at].1;
        let last = model.len().min(end as usize);
        model[(pos as usize).min(last)..last].fill(0);
        self.say(at, false);
        self.files[at].0.fallocate(mode, pos, end - pos).unwrap();
    }

    /// Earlier and later writes have different places in the file, so sync first.
    fn shift(&mut self, at: usize, size: u64) {
        self.sync(at);
        let pos = self.rng.below(size / CLUSTER - 1) * CLUSTER;
        let model = &mut self.files[at].1;
        let (start, end) = (pos as usize, (pos + CLUSTER) as usize);
        let mode = if self.rng.below(2) == 0 {
            model.drain(start..end);
            Fallocate::Collapse
        } else {
            model.splice(start..start, std::iter::repeat_n(0, end - start));
            Fallocate::Insert
        };
        self.say(at, false);
        self.files[at].0.fallocate(mode, pos, CLUSTER).unwrap();
        self.sync(at);
    }
}

fn check(state: &State<'_>, contents: &[Vec<u8>]) -> Result<(), String> {
    for (number, (found, path)) in contents.iter().zip(PATHS).enumerate() {
        let all: Vec<&Version> = state.marks::<Version>().filter(|mark| mark.file == number).collect();
        let durable = all.iter().rposition(|version| version.durable).unwrap_or(0);
        let versions = &all[durable..];
        let sizes = versions.iter().map(|version| version.bytes.len());
        let (least, most) = (sizes.clone().min().unwrap_or(0), sizes.max().unwrap_or(0));
        if !all.is_empty() && !(least..=most).contains(&found.len()) {
            return Err(format!("{path} has {} bytes, not {least} to {most}", found.len()));
        }
        let wrong = found.iter().enumerate().position(|(at, byte)| {
            *byte != 0 && !versions.iter().any(|version| version.bytes.get(at) == Some(byte))
        });
        if let Some(at) = wrong.filter(|_| !all.is_empty()) {
            let what = if found[at] == GARBAGE { "what was in free blocks" } else { "something else" };
            return Err(format!("{path} holds {what} at byte {at}, of {} versions", versions.len()));
        }
        // Durable bytes that have not been changed since are there.
        if let [only] = versions
            && *found != only.bytes
        {
            return Err(format!("{path} is not what was synced"));
        }
    }
    Ok(())
}

fn contents(volume: &Volume) -> Vec<Vec<u8>> {
    PATHS.iter().map(|path| read_all(&volume.open_file(path, read_only()).unwrap())).collect()
}

/// `each`: e2fsck checks one in this many states.
fn states(scene: &Scene, name: &str, states: usize, each: usize) -> Report {
    let options = Options::new(name, 1).at_most(states);
    enumerate(&scene.handle, &options, each, |state, volume| check(state, &contents(volume)))
}

#[test]
fn every_power_cut_leaves_a_sound_volume_and_known_bytes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let layouts: [&[&str]; 3] = [&[], &["-O", "^metadata_csum,^64bit"], &["-O", "bigalloc", "-C", "8192"]];
    for (seed, args) in (1..).zip(layouts) {
        let image = image(args);
        for fua in [true, false] {
            let mut scene = Scene::new(&image, seed + u64::from(fua) * 10, fua);
            (0..80).for_each(|_| scene.step());
            let report = states(&scene, &format!("shrink-{seed}-{fua}"), 700, 10);
            assert!(report.images > 100, "{report}");
        }
    }
}

/// Changes of many steps, while another thread commits: the volume is sound between any two steps.
#[test]
fn every_step_of_a_long_change_is_sound() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&[]).device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/a", read_write()).unwrap();
    file.set_len(0).unwrap();
    for number in 0..1200_u64 {
        let pos = (2 * number + 1) * 1024;
        file.write_at(&patterned(number, pos, 1024), pos).unwrap();
    }
    drop(file);
    volume.close().unwrap();
    let image = Image::of(&*device);
    let modes = [Fallocate::Punch, Fallocate::ZeroKeepSize, Fallocate::Collapse, Fallocate::Insert];
    for (seed, mode) in (0..).zip(modes.into_iter().map(Some).chain([None])) {
        let mut scene = Scene::new(&image, seed, true);
        let (file, model) = &mut scene.files[0];
        let (file, before) = (file.clone(), model.clone());
        let (start, end, long) = (51_200, 102_400, 2 << 20);
        match mode {
            None => model.truncate(start + 5),
            Some(Fallocate::Collapse) => drop(model.drain(start..end)),
            Some(Fallocate::Insert) => drop(model.splice(start..start, vec![0; end - start])),
            Some(_) => model[start..long].fill(0),
        }
        scene.say(0, false);
        let (done, committer) = (AtomicBool::new(false), file.clone());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut seen, mut since) = (0, Instant::now());
                while !done.load(Ordering::Relaxed) {
                    // A sync without changes is only a flush, which would fill the log.
                    let blocks = committer.metadata().blocks;
                    if blocks != seen || since.elapsed() > Duration::from_micros(100) {
                        committer.sync_data().unwrap();
                        (seen, since) = (blocks, Instant::now());
                    }
                }
            });
            match mode {
                None => file.set_len(start as u64 + 5),
                Some(mode @ (Fallocate::Collapse | Fallocate::Insert)) => {
                    file.fallocate(mode, start as u64, (end - start) as u64)
                }
                Some(mode) => file.fallocate(mode, start as u64, (long - start) as u64),
            }
            .unwrap();
            done.store(true, Ordering::Relaxed);
        });
        scene.sync(0);
        let options = Options::new(&format!("steps-{seed}"), 1).at_most(150);
        let report = enumerate(&scene.handle, &options, 5, |state, volume| {
            let found = contents(volume);
            check(state, &found)?;
            // The remaining part of a file being cut is unchanged; its new last block may already be zeroed past the
            // new end.
            let mut same = found[0].iter().zip(&before).enumerate();
            let zeros = start + 5..start + 1024;
            match mode.is_some() || same.all(|(at, (now, then))| now == then || zeros.contains(&at)) {
                true => Ok(()),
                false => Err("/a is not what it was".into()),
            }
        });
        assert!(report.images > 9, "{report}");
    }
}

/// A file frees blocks of a cluster that it keeps, and gets them back before anything is durable: truncated and
/// extended again, and punched and written again. A crash that undoes the first step leaves the old contents.
#[test]
fn what_is_cut_from_a_kept_cluster_carries_nothing_else_before_the_commit() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = image(&["-O", "bigalloc", "-C", "8192"]);
    for (seed, punched) in [(1, false), (2, true)] {
        let mut scene = Scene::new(&image, seed, true);
        for round in 0..4 {
            let old = scene.files[0].1.len() as u64;
            let cluster = (2 + round) * CLUSTER;
            if punched {
                scene.clear(0, Fallocate::Punch, cluster + 2048, cluster + 6144);
            } else {
                let cut = (old / CLUSTER - 1) * CLUSTER + 2048;
                scene.files[0].1.truncate(cut as usize);
                scene.say(0, false);
                scene.files[0].0.set_len(cut).unwrap();
            }
            let at = if punched { cluster + 3072 } else { scene.files[0].1.len() as u64 + 1024 };
            // Half a block: the other half becomes zeros.
            scene.write(0, at, 512);
            scene.write(0, at + 1024, 1024);
            scene.sync(0);
        }
        let options = Options::new(&format!("kept-cluster-{seed}"), 1).at_most(400);
        let report = enumerate(&scene.handle, &options, 10, |state, volume| {
            let found = contents(volume);
            check(state, &found)?;
            let versions: Vec<_> = state.marks::<Version>().filter(|mark| mark.file == 0).collect();
            let durable = versions.iter().rposition(|version| version.durable).unwrap_or(0);
            match versions.is_empty() || versions[durable..].iter().any(|version| version.bytes == found[0]) {
                true => Ok(()),
                false => Err("/a is none of what it was".into()),
            }
        });
        assert!(report.images > 20, "{report}");
    }
}
