//! How fast states are made.

use std::sync::Arc;
use std::time::Duration;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::{BufferPool, Device, WriteDurability};
use uext4_testkit::Rng;
use uext4_testkit::crash::{Options, assert_states};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashOptions};

const SIZE: u64 = 16 << 20;

/// 500 writes of 4 KiB anywhere in 16 MiB, a flush after every `flush` of them.
fn written(flush: usize) -> CrashHandle {
    let inner = Arc::new(MemoryDevice::new(MemoryOptions::new(SIZE)).unwrap());
    let mut data = BufferPool::new(1 << 20).unwrap().take(1 << 20).unwrap();
    let mut rng = Rng::new(1);
    for pos in (0..SIZE).step_by(1 << 20) {
        rng.fill(&mut data);
        inner.write_at(&data, pos, WriteDurability::Cached).unwrap();
    }
    let device = CrashDevice::new(inner, CrashOptions::default()).unwrap();
    for number in 1..=500 {
        rng.fill(&mut data[..4096]);
        device.write_at(&data[..4096], rng.below(SIZE / 4096) * 4096, WriteDurability::Cached).unwrap();
        if number % flush == 0 {
            device.flush().unwrap();
        }
    }
    device.handle()
}

#[test]
fn states_come_by_the_thousand() {
    for (flush, states) in [(5, 20_000), (50, 20_000), (1000, 2_000)] {
        let mut options = Options::new("speed", 1).at_most(states);
        options.time = Duration::from_secs(20);
        let mut sum = 0_u64;
        let log = written(flush).log().unwrap();
        let report = assert_states(&log, &options, |state| {
            // What a check does at least: makes a device and reads a block.
            let mut block = [0; 4096];
            state.read(state.hash() % (SIZE / 4096) * 4096, &mut block);
            sum = sum.wrapping_add(u64::from(block[0]) + state.device().geometry().size);
            Ok(())
        });
        println!("16 MiB, 500 writes of 4 KiB, a flush every {flush}: {report}");
        let rate = report.states as f64 / report.elapsed.as_secs_f64();
        assert!(rate > 200.0 && sum > 0, "{report}");
    }
}
