//! What clients may count on after a loss of power: a device keeps what it was told apart from what is durable.

use crate::common::*;
use std::collections::HashMap;
use std::sync::Arc;
use uext4::device::Op;
use uext4::{Volume, VolumeOptions};
use uext4_serve::{Export, ServerOptions};
use uext4_testkit::device::{
    CrashDevice, CrashEvent, CrashHandle, CrashOptions, CrashOutcome, Fault, FaultDevice, FaultOn,
};
use uext4_testkit::{Need, e2fsck_clean, needs};

/// What is certainly on the medium now: what was written with FUA, and what had completed when a flush began.
fn durable(handle: &CrashHandle) -> Vec<u8> {
    let log = handle.log().unwrap();
    // In the order in which they completed, and how many of them had when each flush began.
    let (mut completed, mut covers): (Vec<(usize, bool)>, _) = (Vec::new(), HashMap::new());
    for event in &log.events {
        match *event {
            CrashEvent::Submitted(number) if log.operations[number].op == Op::Flush => {
                covers.insert(number, completed.len());
            }
            CrashEvent::Completed(number) => {
                let operation = &log.operations[number];
                assert_eq!(operation.outcome, CrashOutcome::Done);
                match operation.op {
                    Op::Flush => completed[..covers[&number]].iter_mut().for_each(|(_, safe)| *safe = true),
                    Op::Write => completed.push((number, operation.fua)),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    let mut image = log.base.to_vec();
    for (number, _) in completed.into_iter().filter(|(_, safe)| *safe) {
        let operation = &log.operations[number];
        let data = operation.data.as_ref().unwrap();
        image[operation.pos as usize..][..data.len()].copy_from_slice(data);
    }
    image
}

/// `/disk` as the next open finds it on these bytes.
fn recovered(bytes: &[u8]) -> Vec<u8> {
    let volume = Volume::open_device(memory(bytes), VolumeOptions::read_write()).unwrap();
    let read = volume.read("/disk").unwrap();
    volume.close().unwrap();
    read
}

fn crash_device(image: &uext4_testkit::Volume, fua: bool) -> Arc<CrashDevice> {
    let bytes = std::fs::read(image.path()).unwrap();
    Arc::new(CrashDevice::new(memory(&bytes), CrashOptions { fua, ..CrashOptions::default() }).unwrap())
}

/// Written blocks, a hole, unaligned bytes: all kinds of writes that a flush has to cover.
const PLACES: [(u64, usize); 4] = [(0, 8192), (3 << 20, 4096), (70_000, 100), ((5 << 20) + 7, 9000)];

fn check(seen: &[u8], data: &[u8], places: &[(u64, usize)]) {
    for &(at, length) in places {
        assert!(seen[at as usize..][..length] == data[..length], "{length} bytes at {at}");
    }
}

#[test]
fn a_flush_of_one_client_covers_what_the_other_completed() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let crash = crash_device(&image, true);
    let (export, _volume) = export(crash.clone(), false);
    let served = Served::start(export, ServerOptions::default());
    let (mut writer, mut other) = (served.client(false), served.client(true));
    let data: Vec<u8> = vec![0xa5; 9000];
    for (at, length) in PLACES {
        assert_eq!(writer.write(0, at, &data[..length]), 0);
    }
    // Not yet: or the flush proves nothing.
    assert!(recovered(&durable(&crash.handle()))[..8192] == contents(8192));
    assert_eq!(other.done(FLUSH, 0, 0, 0), 0);
    check(&recovered(&durable(&crash.handle())), &data, &PLACES);
    served.end();
}

#[test]
fn a_durable_write_needs_no_flush() {
    needs!(Need::Tool("mke2fs"));
    for fua in [true, false] {
        let image = image();
        let crash = crash_device(&image, fua);
        let (export, _volume) = export(crash.clone(), false);
        let served = Served::start(export, ServerOptions::default());
        let mut client = served.client(false);
        let data = vec![0x5a; 9000];
        for (number, (at, length)) in PLACES.into_iter().enumerate() {
            assert_eq!(client.write(FUA, at, &data[..length]), 0);
            check(&recovered(&durable(&crash.handle())), &data, &PLACES[..=number]);
        }
        assert_eq!(client.done(WRITE_ZEROES, FUA, 0, 8192), 0);
        assert!(recovered(&durable(&crash.handle()))[..8192] == [0; 8192]);
        assert_eq!(client.done(TRIM, FUA, 70_000 / 4096 * 4096, 8192), 0);
        check(&recovered(&durable(&crash.handle())), &[0; 100], &[(70_000, 100)]);
        served.end();
    }
}

#[test]
fn the_end_makes_everything_durable() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let crash = crash_device(&image, true);
    let (export, _volume) = export(crash.clone(), false);
    let served = Served::start(export, ServerOptions::default());
    let mut client = served.client(false);
    let data = vec![0x11; 9000];
    PLACES.into_iter().for_each(|(at, length)| assert_eq!(client.write(0, at, &data[..length]), 0));
    served.end();
    check(&recovered(&durable(&crash.handle())), &data, &PLACES);
}

#[test]
fn the_same_on_a_device() {
    for fua in [true, false] {
        let options = CrashOptions { fua, ..CrashOptions::default() };
        let crash = Arc::new(CrashDevice::new(memory(&contents(SIZE as usize)), options).unwrap());
        let served = Served::start(Export::device(crash.clone(), false).unwrap(), ServerOptions::default());
        let (mut writer, mut other) = (served.client(false), served.client(false));
        let data = vec![0; 9000];
        for (at, length) in PLACES {
            assert_eq!(writer.write(0, at, &data[..length]), 0);
        }
        assert!(durable(&crash.handle())[..8192] == contents(8192));
        assert_eq!(other.done(FLUSH, 0, 0, 0), 0);
        check(&durable(&crash.handle()), &data, &PLACES);
        let data = vec![0x33; 9000];
        for (number, (at, length)) in PLACES.into_iter().enumerate() {
            assert_eq!(writer.write(FUA, at, &data[..length]), 0);
            check(&durable(&crash.handle()), &data, &PLACES[..=number]);
        }
        assert_eq!(writer.done(WRITE_ZEROES, FUA, 0, 8192), 0);
        assert!(durable(&crash.handle())[..8192] == [0; 8192]);
        served.end();
    }
}

#[test]
fn failures_of_the_device_are_told_to_the_client_they_concern() {
    needs!(Need::Tool("mke2fs"));
    let image = image();
    let fault = Arc::new(FaultDevice::new(crash_device(&image, true)));
    let handle = fault.handle();
    let (export, volume) = export(fault, false);
    let served = Served::start(export, ServerOptions::default());
    let (mut client, mut other) = (served.client(true), served.client(false));
    assert_eq!(client.read(0, 4096), Ok(contents(4096)));
    assert_eq!(other.read(0, 4096), Ok(contents(4096)));
    for unaligned in [0, 1] {
        let armed = handle.arm(Fault { times: u64::MAX, ..Fault::nth(FaultOn::Op(Op::Read), 1) });
        assert_eq!(client.read(8192 + unaligned, 4096), Err(EIO));
        assert_eq!(other.read(8192 + unaligned, 4096), Err(EIO));
        handle.disarm(armed);
        let armed = handle.arm(Fault { times: u64::MAX, ..Fault::nth(FaultOn::Op(Op::Write), 1) });
        assert_eq!(client.write(0, 16384 + unaligned, &[1; 4096]), EIO);
        handle.disarm(armed);
    }
    assert_eq!(client.read(8192, 4096).unwrap(), contents(16384)[8192..12288]);
    assert_eq!(client.write(0, 0, &[2; 4096]), 0);
    let armed = handle.arm(Fault { times: u64::MAX, ..Fault::nth(FaultOn::Op(Op::Flush), 1) });
    assert_eq!(client.done(FLUSH, 0, 0, 0), EIO);
    handle.disarm(armed);
    served.stop();
    drop((client, other));
    drop(volume);
}

#[test]
fn a_short_read_of_a_device_is_an_error() {
    let fault = Arc::new(FaultDevice::new(memory(&contents(SIZE as usize))));
    let handle = fault.handle();
    let served = Served::start(Export::device(fault, false).unwrap(), ServerOptions::default());
    let mut client = served.client(true);
    let action = uext4_testkit::device::FaultAction::Short(512);
    handle.arm(Fault { action, ..Fault::nth(FaultOn::Op(Op::Read), 1) });
    assert_eq!(client.read(0, 4096), Err(EIO));
    assert_eq!(client.read(0, 4096), Ok(contents(4096)));
    served.end();
}

#[test]
fn a_short_write_of_a_device_is_an_error() {
    let fault = Arc::new(FaultDevice::new(memory(&contents(SIZE as usize))));
    let handle = fault.handle();
    let served = Served::start(Export::device(fault, false).unwrap(), ServerOptions::default());
    let mut client = served.client(true);
    let action = uext4_testkit::device::FaultAction::Short(512);
    handle.arm(Fault { action, ..Fault::nth(FaultOn::Op(Op::Write), 1) });
    assert_eq!(client.write(0, 0, &[1; 4096]), EIO);
    assert_eq!(client.write(0, 0, &[1; 4096]), 0);
    served.end();
}

/// Zeros are written piece by piece, and the first one fails.
#[test]
fn zeros_of_which_a_piece_fails_are_an_error() {
    let fault = Arc::new(FaultDevice::new(memory(&contents(SIZE as usize))));
    let handle = fault.handle();
    let served = Served::start(Export::device(fault, false).unwrap(), ServerOptions::default());
    let mut client = served.client(true);
    for piece in 1..=3 {
        handle.arm(Fault::nth(FaultOn::Op(Op::Write), piece));
        assert_eq!(client.done(WRITE_ZEROES, NO_HOLE, 0, 3 << 20), EIO, "{piece}");
    }
    assert_eq!(client.done(WRITE_ZEROES, NO_HOLE, 0, 3 << 20), 0);
    assert_eq!(client.read(0, 3 << 20), Ok(vec![0; 3 << 20]));
    served.end();
}

#[test]
fn a_failed_sync_at_the_end_is_told() {
    let fault = Arc::new(FaultDevice::new(memory(&contents(SIZE as usize))));
    let handle = fault.handle();
    let mut served = Served::start(Export::device(fault, false).unwrap(), ServerOptions::default());
    assert_eq!(served.client(false).write(0, 0, &[1; 4096]), 0);
    handle.arm(Fault { times: u64::MAX, ..Fault::nth(FaultOn::Op(Op::Flush), 1) });
    served.stop();
    let error = served.join().unwrap_err();
    assert_eq!(error.errno(), libc::EIO);
}

#[test]
fn a_killed_image_is_clean_after_recovery() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = image();
    let crash = crash_device(&image, true);
    let (export, _volume) = export(crash.clone(), false);
    let served = Served::start(export, ServerOptions::default());
    let mut client = served.client(false);
    for at in 0..40 {
        let flags = if at % 3 == 0 { FUA } else { 0 };
        assert_eq!(client.write(flags, (1 << 20) + at * 100_000, &[at as u8; 5000]), 0);
    }
    let bytes = durable(&crash.handle());
    served.end();
    let path = image.scratch().file("cut");
    std::fs::write(&path, bytes).unwrap();
    let volume = Volume::open(&*path, VolumeOptions::read_write()).unwrap();
    volume.close().unwrap();
    e2fsck_clean(&path);
}
