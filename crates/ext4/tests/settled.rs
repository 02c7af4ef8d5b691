//! The flush before the first promise: an image may have been made without a sync, and a durable write is lost with the
//! file system around it.

use crate::common;

use common::sample::sample;
use common::{Image, aligned, assert_unchanged, open_ro, open_rw, read_write};
use std::sync::Arc;
use uext4::device::{CountingDevice, Mask, MaskDevice};
use uext4::device::{Device, Op};
use uext4::{Error, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};

/// (volatile cache, FUA): none of them guarantees that earlier writes by others are durable.
const DEVICES: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

fn device(volatile_cache: bool, fua: bool) -> Arc<dyn Device> {
    sample().device_with(|options| (options.volatile_cache, options.fua) = (volatile_cache, fua))
}

#[test]
fn what_others_wrote_is_durable_before_anything_is_promised() {
    for (volatile_cache, fua) in DEVICES {
        let counting = Arc::new(CountingDevice::new(device(volatile_cache, fua)));
        let counters = counting.counters();
        // Masks hide capabilities; they do not make writes by others durable.
        let mask = Mask { no_nowait: true, ..Mask::default() };
        let volume = open_rw(Arc::new(MaskDevice::new(counting, mask)));
        let opened = counters.take();
        assert!(opened.flushes >= 1 && opened.writes == 0, "cache {volatile_cache}, FUA {fua}: {opened:?}");
        let file = volume.open_file("/data", read_write()).unwrap();
        file.write_at_with(&aligned(4096), 0, WriteFlags::DSYNC).unwrap();
        let written = counters.take();
        let flushes = u64::from(volatile_cache && !fua);
        assert_eq!((written.writes, written.flushes), (1, flushes), "cache {volatile_cache}, FUA {fua}");
    }
}

#[test]
fn nothing_is_promised_if_that_fails() {
    for (volatile_cache, fua) in DEVICES {
        let below = device(volatile_cache, fua);
        let image = Image::of(&*below);
        let counting = Arc::new(CountingDevice::new(below.clone()));
        let counters = counting.counters();
        let faulty = FaultDevice::new(counting);
        faulty.handle().arm(Fault::nth(FaultOn::Op(Op::Flush), 1));
        let opened = Volume::open_device(Arc::new(faulty), VolumeOptions::read_write()).map(drop);
        assert!(matches!(opened, Err(Error::Io(_))), "cache {volatile_cache}, FUA {fua}: {opened:?}");
        assert_eq!(counters.take().writes, 0);
        assert_unchanged(&image, &*below);
    }
}

#[test]
fn who_only_reads_flushes_nothing() {
    let counting = Arc::new(CountingDevice::new(device(true, true)));
    let counters = counting.counters();
    open_ro(counting).metadata("/data").unwrap();
    assert_eq!(counters.take().flushes, 0);
}
