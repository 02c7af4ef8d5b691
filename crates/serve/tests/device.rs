//! Whole devices: every byte of them, whatever is on it.

use crate::common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use uext4::device::{Device, DeviceSpec, LatencyDevice, MemoryDevice, OpenOptions};
use uext4_serve::{Export, ServerOptions};
use uext4_testkit::device::LateDevice;
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
    for (at, length) in [(4096, 8192), (8191, 2), (20_480, 5), (30_001, 511), (40_959, 4098)] {
        assert_eq!(client.done(WRITE_ZEROES, FUA, at as u64, length as u32), 0);
        model[at..at + length].fill(0);
    }
    assert_eq!(client.done(WRITE_ZEROES, FAST_ZERO, 0, 4096), ENOTSUP);
    assert_eq!(client.status(0, 0, 1 << 20), Ok(vec![(1 << 20, 0)]));
    served.end();
    let mut bytes = aligned(1 << 20);
    device.read_at(&mut bytes, 0).unwrap();
    assert!(bytes[..] == model);
}

/// A device that takes its time, so that what is not kept apart meets.
fn serve_slowly() -> Served {
    let latency = Some(Duration::from_micros(200));
    let device = Arc::new(LatencyDevice::new(memory(&contents(1 << 20)), latency, None));
    Served::start(Export::device(device, false).unwrap(), ServerOptions::default())
}

/// Neighbours in one block, written by several connections at once.
#[test]
fn neighbours_in_a_block_do_not_undo_each_other() {
    let served = serve_slowly();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let served = &served;
            scope.spawn(move || {
                let (mut client, mut rng) = (served.client(false), Rng::new(thread));
                for round in 1..100_u64 {
                    // 100 bytes of each block are this thread's.
                    let at = rng.below(2) * 512 + thread * 100;
                    let data = [(round % 251) as u8; 100];
                    assert_eq!(client.write(0, at, &data), 0);
                    assert_eq!(client.read(at, 100).unwrap(), data, "round {round}");
                }
            });
        }
    });
    served.end();
}

/// One connection writes a whole block or makes it zeros, another writes some bytes of it: of the others, none is lost.
#[test]
fn a_write_of_some_bytes_does_not_undo_that_of_a_block() {
    let served = serve_slowly();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = served.client(false);
            while !over.load(Ordering::Relaxed) {
                assert_eq!(client.write(0, 0, &[255; 100]), 0);
            }
        });
        let mut client = served.client(false);
        for round in 1..200_u64 {
            let byte = if round % 3 == 0 { 0 } else { (round % 251) as u8 };
            match byte {
                0 => assert_eq!(client.done(WRITE_ZEROES, 0, 0, 512), 0),
                _ => assert_eq!(client.write(0, 0, &[byte; 512]), 0),
            }
            let read = client.read(0, 512).unwrap();
            if read[100..] != [byte; 412] {
                over.store(true, Ordering::Relaxed);
            }
            assert_eq!(read[100..], [byte; 412], "round {round}");
        }
        over.store(true, Ordering::Relaxed);
    });
    served.end();
}

#[test]
fn a_write_of_some_bytes_waits_for_blocks_under_way() {
    let late = LateDevice::new(memory(&contents(1 << 20)));
    let handle = late.handle();
    let served = Served::start(Export::device(Arc::new(late), false).unwrap(), ServerOptions::default());
    let (mut whole, mut some) = (served.client(false), served.client(false));
    handle.hold();
    whole.put(&[&header(WRITE, 0, 1, 0, 512)[..], &[7; 512]].concat());
    while handle.waiting() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    some.put(&[&header(WRITE, 0, 2, 0, 100)[..], &[8; 100]].concat());
    some.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let early = std::io::Read::read(&mut some.stream, &mut [0]).unwrap_err();
    assert_eq!(early.kind(), std::io::ErrorKind::WouldBlock);
    some.stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    handle.release();
    assert_eq!((whole.simple(), some.simple()), ((1, 0), (2, 0)));
    assert_eq!(whole.read(0, 512).unwrap(), [&[8; 100][..], &[7; 412]].concat());
    served.end();
}

/// A write of whole blocks is under way when its client breaks off: others must not wait for its turn for ever.
#[test]
fn a_client_that_breaks_off_gives_its_turn_back() {
    let late = LateDevice::new(memory(&contents(1 << 20)));
    let handle = late.handle();
    let served = Served::start(Export::device(Arc::new(late), false).unwrap(), ServerOptions::default());
    let (mut whole, mut some) = (served.client(false), served.client(false));
    handle.hold();
    // And half of another request.
    whole.put(&[&header(WRITE, 0, 1, 0, 512)[..], &[7; 512], &header(READ, 0, 2, 0, 512)[..9]].concat());
    while handle.waiting() == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(whole);
    assert_eq!(some.write(0, 0, &[8; 100]), 0);
    handle.release();
    assert_eq!(served.end(), ["the client left in the middle of a message"]);
}

/// The helper of a client that broke off has ended when the server has.
#[test]
fn nothing_goes_on_after_the_end() {
    let device = memory(&contents(1 << 20));
    let slow = LatencyDevice::new(device.clone(), Some(Duration::from_millis(400)), None);
    let served = Served::start(Export::device(Arc::new(slow), false).unwrap(), ServerOptions::default());
    let mut client = served.client(false);
    // Some bytes of a block: a read, and a write.
    client.put(&[&header(WRITE, 0, 1, 0, 100)[..], &[0; 100]].concat());
    std::thread::sleep(Duration::from_millis(150));
    client.put(&[0]);
    drop(client);
    served.end();
    let bytes = || {
        let mut bytes = aligned(512);
        device.read_at(&mut bytes, 0).unwrap();
        bytes.to_vec()
    };
    let at_end = bytes();
    std::thread::sleep(Duration::from_secs(1));
    assert!(bytes() == at_end);
}

/// Zeros that take minutes: for a client that has gone without a word they are not written to their end. One that has
/// taken its leave has a right to them.
#[test]
fn zeros_for_a_client_that_has_gone_hold_up_nobody() {
    let device = memory(&contents(32 << 20));
    let slow = LatencyDevice::new(device.clone(), Some(Duration::from_secs(1)), None);
    let served = Served::start(Export::device(Arc::new(slow), false).unwrap(), ServerOptions::default());
    let mut client = served.client(false);
    (0..100).for_each(|cookie| client.send(WRITE_ZEROES, 0, cookie, 0, 32 << 20));
    std::thread::sleep(Duration::from_millis(100));
    drop(client);
    let mut polite = served.client(false);
    for cookie in 0..4 {
        polite.send(WRITE_ZEROES, 0, cookie, (24 << 20) + cookie * 512, 512);
    }
    polite.send(DISCONNECT, 0, 4, 0, 0);
    drop(polite);
    // What comes after a stop is refused.
    std::thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    served.end();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let mut bytes = aligned(5 * 512);
    device.read_at(&mut bytes, 24 << 20).unwrap();
    assert!(bytes[..4 * 512].iter().all(|byte| *byte == 0));
    assert_eq!(bytes[4 * 512..], contents(32 << 20)[(24 << 20) + 4 * 512..][..512]);
}

#[test]
fn no_transfer_is_longer_than_promised() {
    let longest = 32 << 20;
    let (served, device) = serve_memory(longest + (1 << 20));
    let mut client = served.client(false);
    let data = vec![9; longest as usize + 1];
    for (length, error) in [(longest, 0), (longest + 1, EINVAL)] {
        let read = client.read(0, length as u32);
        assert_eq!(read.map_or_else(|error| error, |_| 0), error, "{length}");
        assert_eq!(client.write(0, 0, &data[..length as usize]), error, "{length}");
    }
    served.end();
    let mut end = aligned(512);
    device.read_at(&mut end, longest).unwrap();
    assert_eq!(end[..], contents(longest as usize + 512)[longest as usize..]);
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
