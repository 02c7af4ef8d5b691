//! Random operations against a model in memory: everything that changes files and names, through calls and queues, with
//! volumes closed, opened, recovered, checked by e2fsck and continued by the kernel in between.
//!
//! Each step is a function of its own number, so steps can be left out: a failure is minimized before it is reported.
//! `make model` runs other seeds.

use crate::common;
use crate::crash_named::layouts;

use common::places::{Memory, Nbd, Place, Qcow2, Rbd};
use common::scene::{Made, Scene};
use common::{Image, assert_same_bytes, open_rw, patterned, read_all, read_only};
use layouts::{CLUSTERS, INLINE, INLINE_1024, LARGE, Layout, MIDDLE, NO_SUMS, SMALL};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use uext4::device::Device;
use uext4::{Fallocate, OpenOptions, QueueOptions, WriteFlags};
use uext4_testkit::rng::mix;
use uext4_testkit::{Ceph, KernelMount, LoopOptions, Need, Rng, Scratch, needs, oracle};

/// Steps of each test, unless `UEXT4_MODEL_STEPS` sets another number.
const STEPS: usize = 36_000;
/// Number of files, and largest size.
const FILES: usize = 14;
const MOST: u64 = 250_000;
/// Most runs to minimize a failure.
const TRIES: usize = 300;
const PLAIN: WriteFlags = WriteFlags::empty();

/// Intervals of the checks, in steps.
struct Intervals {
    check: usize,
    reopen: usize,
    recover: usize,
    kernel: usize,
}

const OURS: Intervals = Intervals { check: 500, reopen: 3000, recover: 1500, kernel: usize::MAX };
const WITH_KERNEL: Intervals = Intervals { check: 500, reopen: 3000, recover: usize::MAX, kernel: 1000 };
/// For fewer steps.
const SHORT: Intervals = Intervals { check: 200, reopen: 500, recover: 400, kernel: usize::MAX };

struct Run<'r> {
    layout: Layout,
    seed: u64,
    intervals: &'r Intervals,
    place: &'r mut dyn Place,
    scratch: Scratch,
}

impl Run<'_> {
    /// Plays these steps. Returns the number of operations.
    fn play(&mut self, steps: &[u64], at: &mut usize) -> u64 {
        let mut device = self.place.put(&self.layout.image());
        let mut scene = Scene::new(open_rw(device.clone()), None, self.seed);
        for (number, step) in steps.iter().enumerate() {
            *at = number;
            scene.rng = Rng::new(*step);
            scene.number = *step >> 8;
            one(&mut scene, self.layout);
            let due = |interval: usize| number % interval == interval - 1;
            if due(self.intervals.check) {
                scene.check();
            }
            if due(self.intervals.recover) {
                self.recover(&mut scene, &*device);
            }
            if due(self.intervals.reopen) || due(self.intervals.kernel) {
                (scene, device) = self.reopened(scene, device, due(self.intervals.kernel));
            }
        }
        *at = steps.len();
        scene.check();
        self.recover(&mut scene, &*device);
        let operations = scene.operations;
        scene.files.clear();
        scene.nameless.clear();
        scene.volume.close().unwrap();
        let image = self.place.closed(device);
        self.clean(&image);
        operations
    }

    /// The volume closed, checked, continued by the kernel if it is `by_kernel`, and opened again.
    fn reopened(
        &mut self,
        scene: Scene,
        device: Arc<dyn Device>,
        by_kernel: bool,
    ) -> (Scene, Arc<dyn Device>) {
        let Scene { volume, files, nameless, mut rng, operations, .. } = scene;
        drop(nameless);
        let mut bytes: BTreeMap<_, _> = files.into_iter().map(|(path, made)| (path, made.bytes)).collect();
        volume.close().unwrap();
        let image = self.place.closed(device);
        self.clean(&image);
        let device = if by_kernel {
            let image = self.by_kernel(&image, &mut bytes, &mut rng);
            self.place.put(&image)
        } else {
            self.place.again(&image)
        };
        let mut scene = Scene::new(open_rw(device.clone()), None, self.seed);
        (scene.rng, scene.operations) = (rng, operations);
        for (path, model) in bytes {
            scene.adopt(&path);
            assert_same_bytes(&model, &scene.files[&path].bytes);
        }
        (scene, device)
    }

    fn clean(&self, image: &Image) {
        let path = self.scratch.file("clean.img");
        image.save(&path);
        oracle::e2fsck_clean(&path);
    }

    /// After a sync of everything, a crash leaves what is in the model: recovered by us, and by e2fsck.
    fn recover(&self, scene: &mut Scene, device: &dyn Device) {
        scene.files.values().for_each(|made| made.file.sync_all().unwrap());
        let dirty = Image::of(device);
        let path = self.scratch.file("dirty.img");
        dirty.save(&path);
        let repaired = oracle::e2fsck(&path, &["-fy"]);
        assert!(repaired.status < 2, "{repaired:?}");
        oracle::e2fsck_clean(&path);
        for device in [dirty.device(), Image::load(&path).device()] {
            let volume = open_rw(device.clone());
            for (path, made) in &scene.files {
                let found = read_all(&volume.open_file(path, read_only()).unwrap());
                assert_same_bytes(&made.bytes, &found);
            }
            volume.close().unwrap();
            self.clean(&Image::of(&*device));
        }
    }

    /// The kernel's contents match the model, and the kernel makes changes.
    fn by_kernel(&self, image: &Image, model: &mut BTreeMap<String, Vec<u8>>, rng: &mut Rng) -> Image {
        let path = self.scratch.file("kernel.img");
        image.save(&path);
        let mounted = KernelMount::image(&path, LoopOptions::default(), "");
        let host = |path: &str| mounted.path().join(&path[1..]);
        for (path, bytes) in &*model {
            assert_same_bytes(bytes, &std::fs::read(host(path)).unwrap());
        }
        let names: Vec<String> = model.keys().cloned().collect();
        for (number, path) in names.iter().enumerate() {
            let file = std::fs::OpenOptions::new().write(true).open(host(path)).unwrap();
            let bytes = model.get_mut(path).unwrap();
            match rng.below(4) {
                0 => {
                    std::fs::remove_file(host(path)).unwrap();
                    model.remove(path);
                }
                1 => {
                    let length = rng.below(MOST) as usize;
                    file.set_len(length as u64).unwrap();
                    bytes.resize(length, 0);
                }
                2 => {
                    let pos = rng.below(bytes.len() as u64 + 5000);
                    let part = patterned(number as u64, pos, 7000);
                    file.write_all_at(&part, pos).unwrap();
                    bytes.resize(bytes.len().max(pos as usize + 7000), 0);
                    bytes[pos as usize..pos as usize + 7000].copy_from_slice(&part);
                }
                _ => {}
            }
        }
        mounted.unmount();
        oracle::e2fsck_clean(&path);
        Image::load(&path)
    }

    /// Whether these steps fail, and how.
    fn attempt(&mut self, steps: &[u64]) -> Result<u64, (usize, String)> {
        let mut at = 0;
        catch_unwind(AssertUnwindSafe(|| self.play(steps, &mut at))).map_err(|panic| {
            let text = panic.downcast_ref::<String>().cloned();
            (at, text.or(panic.downcast_ref::<&str>().map(|text| (*text).into())).unwrap_or_default())
        })
    }

    /// Removes steps that a failure does not need.
    fn shorten(&mut self, mut steps: Vec<u64>, mut told: String) -> (Vec<u64>, String) {
        let (mut size, mut tries) = (steps.len() / 2, 0);
        while size > 0 && tries < TRIES {
            let mut start = 0;
            while start < steps.len() && tries < TRIES {
                let end = (start + size).min(steps.len());
                let fewer = [&steps[..start], &steps[end..]].concat();
                tries += 1;
                match self.attempt(&fewer) {
                    Err((at, text)) => {
                        steps = fewer[..(at + 1).min(fewer.len())].to_vec();
                        told = text;
                    }
                    Ok(_) => start = end,
                }
            }
            size /= 2;
        }
        (steps, told)
    }
}

/// One step, determined by its number and the state.
fn one(scene: &mut Scene, layout: Layout) {
    let total: u64 = scene.files.values().map(|made| made.bytes.len() as u64).sum();
    let most = layout.mebibytes << 18;
    let kind = scene.rng.below(40);
    if scene.files.is_empty() || (kind < 2 && scene.files.len() < FILES) {
        let tail = "n".repeat(*scene.rng.pick(&[0, 0, 30, 220]));
        let path = format!("{}/{}-{tail}", scene.rng.pick(&["", "/d"]), scene.rng.below(1 << 30));
        if !scene.files.contains_key(&path) {
            scene.create(&path);
        }
        return;
    }
    let at = scene.rng.below(scene.files.len() as u64) as usize;
    let path = scene.files.keys().nth(at).cloned().unwrap();
    if kind == 2 || total > most {
        let keep = scene.nameless.len() < 3 && scene.rng.below(3) == 0;
        return scene.remove(&path, keep);
    }
    let size = scene.size(&path);
    let unit = *scene.rng.pick(&[1, 512, 4096]);
    let mut pos = (scene.rng.below(size + size / 8 + 3000) / unit * unit).min(MOST);
    let mut length = (1 + scene.rng.below(24)) * unit.max(64);
    if layout.has_inline_data() && scene.rng.below(4) > 0 {
        // Short files stay in their inode; the others make room for new ones.
        if !scene.files[&path].file.is_inline() && scene.rng.below(8) == 0 {
            return scene.remove(&path, false);
        }
        (pos, length) = (scene.rng.below(100), 1 + scene.rng.below(60));
    }
    let flags = *scene.rng.pick(&[PLAIN, PLAIN, WriteFlags::DSYNC, WriteFlags::SYNC]);
    match kind {
        3..13 => scene.write(&path, pos, length, flags),
        13..16 => scene.append(&path, length.min(9000), flags),
        16 => append_open(scene, &path, length),
        17 => append_queued(scene, &path, (pos, length), flags),
        18..20 => {
            let start = pos / 4096 * 4096;
            let writes: Vec<_> = (0..6).map(|part| (start + part * 8192, 512 << (part % 4))).collect();
            scene.queued(&path, &writes, flags);
        }
        20..22 => scene.set_len(&path, pos),
        22 => scene.empty(&path),
        23..31 => change_space(scene, layout, &path, (pos, length)),
        31 => scene.prepare(&path, (size + 3000).min(MOST)),
        32..34 => scene.sync(&path),
        34..38 => look(scene, &path, pos, length),
        _ => use_nameless(scene, pos, length),
    }
    if scene.files.get(&path).is_some_and(|made| made.bytes.len() as u64 > 2 * MOST) {
        scene.set_len(&path, MOST);
    }
}

/// Appends to a file that is open for appending.
fn append_open(scene: &mut Scene, path: &str, length: u64) {
    let file = scene.volume.open_file(path, OpenOptions::new().append(true)).unwrap();
    scene.number += 1;
    let made = scene.files.get_mut(path).unwrap();
    let end = made.bytes.len() as u64;
    let bytes = patterned(scene.number, end, length as usize);
    assert_eq!(file.append(&bytes, PLAIN).unwrap(), end);
    made.bytes.extend_from_slice(&bytes);
    scene.operations += 1;
}

/// Appends through a queue, in flight together, and changes the file meanwhile.
fn append_queued(scene: &mut Scene, path: &str, (pos, length): (u64, u64), flags: WriteFlags) {
    let block = u64::from(scene.volume.block_size());
    // Without pages, and with whole blocks.
    scene.set_len(path, scene.size(path).next_multiple_of(block));
    let mut queue = scene.volume.queue(QueueOptions::depth(8)).unwrap();
    let slot = queue.attach(&scene.files[path].file).unwrap();
    let count = 2 + scene.rng.below(5);
    let change = scene.rng.below(10);
    for number in 0..count {
        let end = scene.size(path);
        let long = block * (1 + scene.rng.below(3));
        scene.number += 1;
        let bytes = patterned(scene.number, end, long as usize);
        scene.files.get_mut(path).unwrap().bytes.extend_from_slice(&bytes);
        queue.write(slot, end, bytes, flags, number).unwrap();
        scene.operations += 1;
        if number + 2 == count {
            queue.submit().unwrap();
            match change {
                0 => scene.set_len(path, pos),
                1 => scene.write(path, pos, length, PLAIN),
                2 => scene.append(path, length, flags),
                3 => append_open(scene, path, length),
                4 => scene.fallocate(path, Fallocate::Punch, pos, length),
                5 => scene.fallocate(path, Fallocate::KeepSize, end, length),
                6 => scene.sync(path),
                _ => {}
            }
            // Behind another change, the rest begins where the file ends, if that is the end of a sector.
            if !scene.size(path).is_multiple_of(512) {
                break;
            }
        }
    }
    while queue.pending() > 0 {
        queue.wait(1).unwrap().for_each(|done| assert!(done.result.is_ok(), "{path}: {done:?}"));
    }
    let made = &scene.files[path];
    assert_eq!(made.file.size(), made.bytes.len() as u64, "{path}");
}

fn change_space(scene: &mut Scene, layout: Layout, path: &str, (pos, length): (u64, u64)) {
    use Fallocate::{Allocate, Collapse, Insert, KeepSize, Punch, Zero, ZeroKeepSize};
    let modes = [Allocate, KeepSize, Punch, Punch, Zero, ZeroKeepSize, Collapse, Insert];
    let mode = *scene.rng.pick(&modes);
    let (mut pos, mut length) = (pos, length);
    if matches!(mode, Collapse | Insert) {
        pos = pos / layout.unit() * layout.unit();
        length = length.next_multiple_of(layout.unit());
        let size = scene.size(path);
        if (mode == Collapse && pos + length >= size) || (mode == Insert && pos >= size) {
            return;
        }
    }
    scene.fallocate(path, mode, pos, length);
}

/// Reads from a random position, and finds data and holes.
fn look(scene: &mut Scene, path: &str, pos: u64, length: u64) {
    let Made { file, bytes } = &scene.files[path];
    let mut found = vec![0; length as usize];
    let count = file.read_any_at(&mut found, pos).unwrap();
    let wanted = &bytes[(pos as usize).min(bytes.len())..((pos + length) as usize).min(bytes.len())];
    assert_same_bytes(wanted, &found[..count]);
    let data = file.seek_data(pos).unwrap().unwrap_or(bytes.len() as u64) as usize;
    let skipped = &bytes[(pos as usize).min(data)..data];
    assert!(skipped.iter().all(|byte| *byte == 0), "{path}: data before {data}");
    if let Some(hole) = file.seek_hole(pos).unwrap() {
        assert!(hole >= pos && hole <= bytes.len() as u64, "{path}: a hole at {hole}");
    }
    scene.operations += 1;
}

/// Uses a file without a name like any other.
fn use_nameless(scene: &mut Scene, pos: u64, length: u64) {
    if scene.nameless.is_empty() {
        return;
    }
    let at = scene.rng.below(scene.nameless.len() as u64) as usize;
    let Made { file, bytes } = &mut scene.nameless[at];
    let part = patterned(pos, pos, length as usize);
    assert_eq!(file.write_any_at(&part, pos, PLAIN).unwrap() as u64, length);
    let end = (pos + length) as usize;
    bytes.resize(bytes.len().max(end), 0);
    bytes[pos as usize..end].copy_from_slice(&part);
    assert_same_bytes(bytes, &read_all(file));
    if scene.rng.below(4) == 0 {
        scene.nameless.swap_remove(at);
    }
    scene.operations += 1;
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}: `{text}` is no number")))
}

/// Plays a part of the test's steps in this place, or those of a failure to reproduce.
fn model(name: &str, layout: Layout, intervals: &Intervals, part: usize, place: &mut dyn Place) {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let seed = number("UEXT4_MODEL_SEED").unwrap_or(1);
    let count = number("UEXT4_MODEL_STEPS").map_or(STEPS, |steps| steps as usize) / part;
    let mut drawn = Rng::new(name.bytes().fold(seed, |salt, byte| mix(salt ^ u64::from(byte))));
    let mut steps: Vec<u64> = (0..count).map(|_| drawn.next_u64()).collect();
    if let Ok(replay) = std::env::var("UEXT4_MODEL_REPLAY") {
        steps = replay.split(',').map(|step| u64::from_str_radix(step, 16).unwrap()).collect();
    }
    let scratch = Scratch::new((3 * layout.mebibytes) << 20);
    let mut run = Run { layout, seed, intervals, place, scratch };
    match run.attempt(&steps) {
        Ok(operations) => {
            println!("{name}: {operations} operations");
            if let Some(path) = std::env::var_os("UEXT4_MODEL_TOTALS") {
                let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
                file.write_all(format!("{name} {operations}\n").as_bytes()).unwrap();
            }
        }
        Err((at, told)) => {
            steps.truncate(at + 1);
            let (steps, told) = run.shorten(steps, told);
            let replay: Vec<String> = steps.iter().map(|step| format!("{step:x}")).collect();
            panic!(
                "{name}, seed {seed}: step {at}, {} steps are enough: {told}\n  replay: UEXT4_MODEL_SEED={seed} \
                 UEXT4_MODEL_REPLAY={} cargo test -p uext4 --test suite -- --exact model::{name}",
                steps.len(),
                replay.join(",")
            );
        }
    }
}

macro_rules! models {
    ($($name:ident: $layout:ident, $intervals:ident, $part:literal $(, $need:expr)?;)*) => {
        $(#[test]
        fn $name() {
            $(needs!($need);)?
            model(stringify!($name), $layout, &$intervals, $part, &mut Memory);
        })*
    };
}

models! {
    small_blocks: SMALL, OURS, 1;
    without_checksums: NO_SUMS, OURS, 1;
    clusters: CLUSTERS, OURS, 1;
    middle_blocks: MIDDLE, OURS, 1;
    large_blocks: LARGE, OURS, 1;
    inline_volume: INLINE, OURS, 2;
    inline_volume_of_large_inodes: INLINE_1024, OURS, 2;
    root_small_blocks_and_the_kernel: SMALL, WITH_KERNEL, 2, Need::Loop;
    root_large_blocks_and_the_kernel: LARGE, WITH_KERNEL, 2, Need::Loop;
    root_clusters_and_the_kernel: CLUSTERS, WITH_KERNEL, 2, Need::Loop;
}

#[test]
fn behind_a_server_with_several_connections() {
    needs!(Need::Tool("nbdkit"));
    let mut place = Nbd::nbdkit(SMALL.mebibytes << 20);
    model("behind_a_server_with_several_connections", SMALL, &SHORT, 2, &mut place);
}

#[test]
fn behind_a_server_with_one_connection() {
    needs!(Need::Tool("qemu-nbd"));
    let mut place = Nbd::qemu(LARGE.mebibytes << 20);
    model("behind_a_server_with_one_connection", LARGE, &SHORT, 2, &mut place);
}

#[test]
fn in_a_qcow2_image() {
    needs!(Need::Tool("qemu-img"));
    let mut place = Qcow2::new(LARGE.mebibytes << 20);
    model("in_a_qcow2_image", LARGE, &SHORT, 2, &mut place);
}

#[test]
fn in_a_ceph_cluster() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let mut place = Rbd::new(&ceph, LARGE.mebibytes << 20);
    model("in_a_ceph_cluster", LARGE, &SHORT, 12, &mut place);
}
