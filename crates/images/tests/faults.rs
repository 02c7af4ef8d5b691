//! One request fails, whichever: the image has no damage, and all that was made durable.

use crate::crash::{almost_full, image, loaded, open_on, take};
use crate::tools::{check, contents, converted};
use std::path::Path;
use std::sync::Arc;
use uext4_blockdev::{Device, WriteDurability};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};
use uext4_testkit::{Need, Rng, Scratch, needs};

const FILE: u64 = 4 << 20;

/// What each block may have: what was durable last, and all that came later. With whether it was acknowledged.
struct Model(Vec<Vec<(u8, bool)>>);

impl Model {
    fn begin(before: &[u8]) -> Model {
        Model(before.chunks(512).map(|block| vec![(block[0], true)]).collect())
    }

    fn written(&mut self, first: u64, length: u64, byte: u8, done: bool) {
        self.0[first as usize..(first + length) as usize]
            .iter_mut()
            .for_each(|block| block.push((byte, done)));
    }

    fn flushed(&mut self) {
        for block in &mut self.0 {
            let last = block.iter().rposition(|(_, done)| *done).unwrap();
            block.drain(..last);
        }
    }

    /// `now`: what is not durable yet has to be there as well.
    fn compare(&self, device: &dyn Device, now: bool, what: &str) {
        for (at, bytes) in contents(device, 64 << 10).chunks(512).enumerate() {
            let all = &self.0[at];
            let last = if now { all.iter().rposition(|(_, done)| *done).unwrap() } else { 0 };
            let fits = all[last..].iter().any(|(byte, _)| bytes.iter().all(|found| found == byte));
            assert!(fits, "{what}: block {at} begins with {}, not one of {:?}", bytes[0], &all[last..]);
        }
    }
}

/// Random requests. Discards are followed by a write, since what they leave is undefined.
fn change(device: &dyn Device, model: &mut Model, longest: u64) {
    let (mut rng, blocks) = (Rng::new(5), model.0.len() as u64);
    for number in 1..=30u8 {
        let length = if rng.below(3) == 0 { 1 + rng.below(longest) } else { 1 + rng.below(4) };
        let first = rng.below(blocks - longest);
        match rng.below(8) {
            0 => {
                // Whether it takes effect or not.
                let _discarded = device.discard(first * 512, length * 512);
                let written = device.write_at(
                    &take(length as usize * 512, number),
                    first * 512,
                    WriteDurability::Cached,
                );
                model.written(first, length, 0, false);
                model.written(first, length, number, written.is_ok());
            }
            1 | 2 if device.flush().is_ok() => model.flushed(),
            _ => {
                let written = device.write_at(
                    &take(length as usize * 512, number),
                    first * 512,
                    WriteDurability::Cached,
                );
                model.written(first, length, number, written.is_ok());
            }
        }
    }
    if device.flush().is_ok() {
        model.flushed();
    }
}

/// Runs all with the nth request failing (0: none), and returns how many there were.
fn run(path: &Path, before: &[u8], longest: u64, nth: u64, what: &str) -> u64 {
    let memory = loaded(path, FILE);
    let faulty = FaultDevice::new(memory.clone());
    let faults = faulty.handle();
    let device = open_on(Arc::new(faulty), path, true).unwrap();
    if nth > 0 {
        faults.arm(Fault::nth(FaultOn::Any, nth));
    }
    let opened = faults.requests();
    let mut model = Model::begin(before);
    change(&*device, &mut model, longest);
    let requests = faults.requests() - opened;
    model.compare(&*device, true, what);
    drop(device);
    std::fs::write(path, contents(&*memory, 1 << 20)).unwrap();
    check(path, true);
    let reopened = open_on(memory, path, false).unwrap();
    model.compare(&*reopened, false, what);
    requests
}

#[test]
fn a_request_that_fails_leaves_no_damage() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    for (kind, longest) in [
        ("cluster_size=512,refcount_bits=64", 90),
        ("over extended_l2=on,cluster_size=16384", 90),
        ("compressed cluster_size=4096", 90),
        ("snapshot cluster_size=1024", 90),
        // The table of refcounts becomes longer.
        ("almost full", 250),
    ] {
        let scratch = Scratch::new(64 << 20);
        let path = if kind == "almost full" { almost_full(&scratch) } else { image(&scratch, kind) };
        let whole = std::fs::read(&path).unwrap();
        let before = converted(&path, &[]);
        let requests = run(&path, &before, longest, 0, kind);
        for nth in 1..=requests {
            std::fs::write(&path, &whole).unwrap();
            run(&path, &before, longest, nth, &format!("{kind}, request {nth} of {requests}"));
        }
    }
}
