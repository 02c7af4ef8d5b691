//! Whole devices: every byte of them, whatever is on it.

use crate::common::*;
use std::sync::Arc;
use uext4::device::{Device, DeviceSpec, MemoryDevice, OpenOptions};
use uext4_serve::{Export, ServerOptions};
use uext4_testkit::{Need, Rng, Scratch, e2fsck_clean, needs};

fn serve_memory(size: u64) -> (Served, Arc<MemoryDevice>) {
    let device = memory(&contents(size as usize));
    (Served::start(Export::device(device.clone(), false).unwrap(), ServerOptions::default()), device)
}

#[test]
fn bytes_that_are_no_blocks_leave_the_others() {
    let (served, device) = serve_memory(1 << 20);
    let mut client = served.client(true);
    let mut model = contents(1 << 20);
    for (at, length) in [(1, 1), (511, 2), (1000, 5000), (512, 512), ((1 << 20) - 3, 3)] {
        let data = vec![0; length];
        assert_eq!(client.write(0, at as u64, &data), 0);
        model[at..at + length].fill(0);
        assert_eq!(client.read(at as u64, length as u32), Ok(data));
    }
    assert_eq!(client.done(WRITE_ZEROES, 0, 100_001, 3_000), 0);
    model[100_001..103_001].fill(0);
    assert_eq!(client.done(WRITE_ZEROES, FAST_ZERO, 0, 4096), ENOTSUP);
    assert_eq!(client.status(0, 0, 1 << 20), Ok(vec![(1 << 20, 0)]));
    served.end();
    let mut bytes = aligned(1 << 20);
    device.read_at(&mut bytes, 0).unwrap();
    assert!(bytes[..] == model);
}

/// Neighbours in one block, written by several connections at once, some as whole blocks before.
#[test]
fn neighbours_in_a_block_do_not_undo_each_other() {
    let (served, _device) = serve_memory(1 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let served = &served;
            scope.spawn(move || {
                let (mut client, mut rng) = (served.client(false), Rng::new(thread));
                for round in 1..300_u64 {
                    // 100 bytes of each block are this thread's.
                    let block = rng.below(8);
                    let at = block * 512 + thread * 100;
                    let data = [(round % 251) as u8; 100];
                    assert_eq!(client.write(0, at, &data), 0);
                    // And a block of its own, as a whole.
                    assert_eq!(client.write(0, 65536 + thread * 512, &[thread as u8; 512]), 0);
                    assert_eq!(client.read(at, 100).unwrap(), data, "round {round}");
                }
            });
        }
    });
    served.end();
}

#[test]
fn an_overlay_keeps_the_device_as_it_is() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let before = std::fs::read(image.path()).unwrap();
    let overlay = image.scratch().file("overlay");
    let mut spec = DeviceSpec::file(image.path());
    spec.options.overlay = Some(overlay);
    let open = || uext4::device::open(&spec, OpenOptions { write: true, force: false }).unwrap().device;
    let size = before.len() as u64;
    let served = Served::start(Export::device(open(), false).unwrap(), ServerOptions::default());
    let mut client = served.client(false);
    assert_eq!(client.write(FUA, size - 8192, &[7; 8192]), 0);
    assert_eq!(client.write(0, 4097, &[8; 100]), 0);
    assert_eq!(client.done(FLUSH, 0, 0, 0), 0);
    served.end();
    assert!(std::fs::read(image.path()).unwrap() == before);
    let served = Served::start(Export::device(open(), false).unwrap(), ServerOptions::default());
    let mut client = served.client(true);
    assert_eq!(client.read(size - 8192, 8192), Ok(vec![7; 8192]));
    let read = client.read(4096, 4096).unwrap();
    assert_eq!(read[1..101], [8; 100]);
    assert_eq!(read[101..], before[4197..8192]);
    served.end();
    e2fsck_clean(image.path());
}

#[test]
fn a_read_only_device_is_told() {
    let scratch = Scratch::new(1 << 20);
    let path = scratch.file("raw");
    std::fs::write(&path, contents(65536)).unwrap();
    let served =
        Served::start(Export::device(device(&path, false), false).unwrap(), ServerOptions::default());
    let mut client = served.greet();
    let replies = client.option(GO, &go(b"", &[]));
    assert_eq!(number(&replies[0].1[10..]) & 2, 2);
    assert_eq!(client.write(0, 0, &[1; 512]), EPERM);
    assert_eq!(client.read(100, 100).unwrap(), contents(200)[100..]);
    served.end();
    assert_eq!(std::fs::read(&path).unwrap(), contents(65536));
}
