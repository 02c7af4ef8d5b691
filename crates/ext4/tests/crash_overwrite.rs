//! Durable overwrites of written blocks under power cuts: acknowledged data is there in every state, other data is old
//! or new by device block, and the volume stays clean.

use crate::common;

use common::sample::{DATA, DATA_SIZE, FRAG, FRAG_SIZE, sample};
use common::{open_ro, open_rw, patterned, read_all, read_only, read_write};
use std::collections::HashMap;
use std::sync::Arc;
use uext4::device::{
    Capabilities, Description, Device, Geometry, Queue, QueueOptions as DeviceQueueOptions,
    Result as DeviceResult, WriteDurability,
};
use uext4::{File, QueueOptions, Volume, WriteFlags};
use uext4_testkit::crash::{Options, Report, State, assert_states, for_each_state};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashOptions};
use uext4_testkit::fixture::pattern;
use uext4_testkit::{Need, Rng, Scratch, needs, oracle};

const BLOCK: u64 = 512;

/// A write, announced before it begins. Its bytes are those of pattern `number`.
#[derive(Debug, Clone)]
struct Begun {
    number: u64,
    path: &'static str,
    pos: u64,
    length: usize,
}

/// These writes have been acknowledged as durable.
struct Acknowledged(Vec<Begun>);

/// A volume on a crash device, and the writes not yet acknowledged.
struct Scene {
    handle: CrashHandle,
    volume: Volume,
    rng: Rng,
    begun: u64,
    waiting: Vec<Begun>,
}

impl Scene {
    fn on(seed: u64, options: CrashOptions, wrap: impl FnOnce(CrashDevice) -> Arc<dyn Device>) -> Self {
        let device = CrashDevice::new(sample().device(), options).unwrap();
        let (handle, volume) = (device.handle(), open_rw(wrap(device)));
        Scene { handle, volume, rng: Rng::new(seed), begun: 1000, waiting: Vec::new() }
    }

    fn open(&self, path: &str) -> File {
        self.volume.open_file(path, read_write()).unwrap()
    }

    /// Chooses and announces a write.
    fn begin(&mut self) -> Begun {
        let (path, size) = *self.rng.pick(&[("/data", DATA_SIZE), ("/frag", FRAG_SIZE)]);
        let length = *self.rng.pick(&[512, 1536, 4096, 12_288]);
        // In a small part of the file, so that writes overlap.
        let pos = self.rng.below(((size - length) / BLOCK).min(100)) * BLOCK;
        self.begun += 1;
        let begun = Begun { number: self.begun, path, pos, length: length as usize };
        self.handle.mark(begun.clone());
        begun
    }

    fn acknowledge(&mut self, begun: Vec<Begun>) {
        self.handle.mark(Acknowledged(begun));
    }

    /// One call that is durable when it returns.
    fn durable(&mut self) {
        let begun = self.begin();
        let bytes = patterned(begun.number, begun.pos, begun.length);
        let flags = *self.rng.pick(&[WriteFlags::DSYNC, WriteFlags::SYNC]);
        self.open(begun.path).write_at_with(&bytes, begun.pos, flags).unwrap();
        self.acknowledge(vec![begun]);
    }

    /// Plain writes; after the last one a sync of its file acknowledges those to that file.
    fn plain_and_sync(&mut self) {
        for _ in 0..3 {
            let begun = self.begin();
            let bytes = patterned(begun.number, begun.pos, begun.length);
            self.open(begun.path).write_at(&bytes, begun.pos).unwrap();
            self.waiting.push(begun);
        }
        let path = self.waiting.last().unwrap().path;
        self.open(path).sync_data().unwrap();
        let (durable, waiting) = self.waiting.drain(..).partition(|begun| begun.path == path);
        self.waiting = waiting;
        self.acknowledge(durable);
    }

    /// Several writes at once through a queue, each to another part of a file; one has many pieces.
    fn queued(&mut self) {
        let mut queue = self.volume.queue(QueueOptions::depth(4)).unwrap();
        let mut sent = HashMap::new();
        let parts = (0..3).map(|part| ("/data", part * 8192 + 512, 4096)).chain([("/frag", 512, 12_288)]);
        for (path, pos, length) in parts {
            self.begun += 1;
            let begun = Begun { number: self.begun, path, pos, length };
            self.handle.mark(begun.clone());
            let mut buffer = queue.buffer(begun.length).unwrap();
            pattern(begun.number, begun.pos, &mut buffer);
            let slot = queue.attach(&self.open(path)).unwrap();
            queue.write(slot, begun.pos, buffer, WriteFlags::DSYNC, begun.number).unwrap();
            sent.insert(begun.number, begun);
        }
        while !sent.is_empty() {
            let done: Vec<_> = queue.wait(1).unwrap().collect();
            let acknowledged = done.iter().map(|done| {
                let begun = sent.remove(&done.tag).unwrap();
                assert_eq!(*done.result.as_ref().unwrap(), begun.length);
                begun
            });
            let acknowledged = acknowledged.collect();
            self.acknowledge(acknowledged);
        }
    }
}

/// The permitted contents of each block: pattern numbers, from the newest acknowledged one on.
fn allowed(state: &State<'_>) -> HashMap<(&'static str, u64), Vec<u64>> {
    let mut allowed: HashMap<_, Vec<u64>> = HashMap::new();
    let blocks = |begun: &Begun| begun.pos / BLOCK..(begun.pos + begun.length as u64) / BLOCK;
    let durable: Vec<u64> =
        state.marks::<Acknowledged>().flat_map(|mark| &mark.0).map(|begun| begun.number).collect();
    for begun in state.marks::<Begun>() {
        for block in blocks(begun) {
            let old = if begun.path == "/data" { DATA } else { FRAG };
            let numbers = allowed.entry((begun.path, block)).or_insert_with(|| vec![old]);
            if durable.contains(&begun.number) {
                numbers.clear();
            }
            numbers.push(begun.number);
        }
    }
    allowed
}

fn check(state: &State<'_>) -> Result<(), String> {
    let volume = open_ro(state.device());
    let mut files = HashMap::new();
    for ((path, block), numbers) in allowed(state) {
        let bytes =
            files.entry(path).or_insert_with(|| read_all(&volume.open_file(path, read_only()).unwrap()));
        let (pos, mut expected) = (block * BLOCK, [0; BLOCK as usize]);
        let found = &bytes[pos as usize..][..BLOCK as usize];
        let is = |number: &u64| {
            pattern(*number, pos, &mut expected);
            expected == *found
        };
        if !numbers.iter().any(is) {
            return Err(format!("{path} at byte {pos} holds none of {numbers:?}"));
        }
    }
    Ok(())
}

fn enumerate(scene: &Scene, name: &str, states: usize) -> Report {
    let options = Options::new(name, 1).at_most(states);
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("state.img");
    let mut shown = 0;
    assert_states(&scene.handle.log().unwrap(), &options, |state| {
        shown += 1;
        if shown % 100 == 1 {
            // O_SYNC writes the times through the journal, so the log's contents count.
            let recovered = state.device();
            open_rw(recovered.clone()).close().map_err(|error| error.to_string())?;
            common::Image::of(&*recovered).save(&path);
            oracle::e2fsck_clean(&path);
        }
        check(state)
    })
}

#[test]
fn acknowledged_overwrites_survive_every_power_cut() {
    needs!(Need::Tool("e2fsck"));
    for fua in [true, false] {
        let options = CrashOptions { fua, ..CrashOptions::default() };
        let mut scene = Scene::on(5, options, |crash| Arc::new(crash));
        for round in 0..8 {
            match round % 4 {
                0 | 2 => scene.durable(),
                1 => scene.plain_and_sync(),
                _ => scene.queued(),
            }
        }
        let report = enumerate(&scene, if fua { "overwrite-fua" } else { "overwrite-flush" }, 600);
        println!("fua {fua}: {report}");
        assert!(report.images > 100, "{report}");
    }
}

/// A device that falsely claims to need no flush.
#[derive(Debug)]
struct Denying(CrashDevice);

impl Device for Denying {
    fn geometry(&self) -> Geometry {
        Device::geometry(&self.0)
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { volatile_cache: false, fua: false, ..Device::capabilities(&self.0) }
    }
    fn describe(&self) -> Description {
        self.0.describe()
    }
    fn read_at(&self, buf: &mut [u8], pos: u64) -> DeviceResult<()> {
        Device::read_at(&self.0, buf, pos)
    }
    fn write_at(&self, buf: &[u8], pos: u64, durability: WriteDurability) -> DeviceResult<()> {
        Device::write_at(&self.0, buf, pos, durability)
    }
    fn flush(&self) -> DeviceResult<()> {
        Device::flush(&self.0)
    }
    fn discard(&self, pos: u64, length: u64) -> DeviceResult<()> {
        Device::discard(&self.0, pos, length)
    }
    fn queue(&self, options: &DeviceQueueOptions) -> DeviceResult<Queue> {
        Device::queue(&self.0, options)
    }
}

#[test]
fn a_cache_that_is_denied_is_caught() {
    for step in [Scene::durable, Scene::plain_and_sync, Scene::queued] {
        let mut scene = Scene::on(5, CrashOptions::default(), |crash| Arc::new(Denying(crash)));
        (0..3).for_each(|_| step(&mut scene));
        let mut options = Options::new("denied", 1).at_most(200);
        options.only = None;
        let failure = for_each_state(&scene.handle.log().unwrap(), &options, check).unwrap_err();
        assert!(failure.reason.contains("holds none of"), "{failure}");
    }
}
