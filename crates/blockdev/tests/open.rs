//! `open`: which engine serves which spelling, how layers stack, and what options may claim.

use crate::common;

use common::{conformance, pattern, pool, reap_all, request};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4_blockdev::spec::{DeviceSpec, Locator, Scheme, SpecOptions};
use uext4_blockdev::{
    Ask, Device, DeviceQueue, Error, Op, OpenOptions, Queue, QueueOptions, Sharing, WriteDurability, open,
};

fn open_text(text: &str, write: bool) -> Result<Arc<dyn Device>, Error> {
    open(&DeviceSpec::parse(text)?, OpenOptions { write, force: false }).map(|opened| opened.device)
}

/// An image whose blocks all have room, as `dax:` needs.
fn full_image(directory: &Path, size: u64) -> PathBuf {
    let path = directory.join("disk.img");
    std::fs::write(&path, vec![0x11; size as usize]).unwrap();
    path
}

fn image() -> (tempfile::TempDir, String) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let text = full_image(place.path(), common::SIZE).to_str().unwrap().to_string();
    (place, text)
}

#[test]
fn every_engine_and_every_stack_conforms() {
    let (_place, path) = image();
    let stacks = [
        format!("file:{path}"),
        format!("sync:{path}"),
        format!("dax:{path}"),
        "mem:4M".into(),
        "mem:4M?cache=volatile&fua=on".into(),
        "mem:4M?cache=volatile".into(),
        "mem:5M?offset=1M".into(),
        "mem:4M?cache=volatile&fua=on&latency=50us&flush_latency=80us".into(),
        format!("{path}?cache=volatile"),
        format!("{path}?fua=off"),
        format!("{path}?cache=volatile&fua=off"),
        format!("sync:{path}?cache=volatile&fua=off"),
        "mem:4M?cache=volatile&fua=on&latency=50us&fua_latency=70us&flush_rate=1G".into(),
        format!("{path}?latency=50us&flush_latency=80us"),
        format!("{path}?cache=volatile&fua_latency=70us"),
        format!("sync:{path}?latency=50us"),
    ];
    for text in stacks {
        let device = open_text(&text, true).unwrap_or_else(|error| panic!("{text}: {error}"));
        conformance(&*device);
    }
}

#[test]
fn engines_by_scheme() {
    let (_place, path) = image();
    for (scheme, engine, sharing) in [
        ("file:", "file", Sharing::Exclusive),
        ("", "file", Sharing::Exclusive),
        ("sync:", "sync", Sharing::Exclusive),
        ("dax:", "dax", Sharing::Exclusive),
    ] {
        let description = open_text(&format!("{scheme}{path}"), true).unwrap().describe();
        assert_eq!((description.engine, description.sharing), (engine, sharing));
        assert_eq!(description.locator, path);
        assert!(description.layers.is_empty());
    }
    assert_eq!(open_text("mem:1M", true).unwrap().describe().engine, "mem");
    assert_eq!(open_text(&format!("null:{path}"), true).unwrap().describe().engine, "null");
}

#[test]
fn partitions_stay_on_the_ring() {
    let (_place, path) = image();
    let queue_with = |text: &str, options| open_text(text, true).unwrap().queue(&options).unwrap();
    let queue = |text: &str| queue_with(text, QueueOptions::depth(1));
    // Files on tmpfs have a ring if something of one is required.
    let ring = || QueueOptions { register_file: Ask::Require, ..QueueOptions::depth(1) };
    assert!(matches!(queue_with(&path, ring()), Queue::Uring(_)));
    assert!(matches!(queue_with(&format!("{path}?offset=1M"), ring()), Queue::Uring(_)));
    assert!(matches!(queue(&format!("{path}?offset=1M")), Queue::Other(_)));
    assert!(matches!(queue(&format!("null:{path}?offset=1M")), Queue::Null(_)));
    assert!(matches!(queue(&format!("sync:{path}?offset=1M")), Queue::Other(_)));
}

#[test]
fn options_only_hide_what_a_real_device_does() {
    let (_place, path) = image();
    // tmpfs: no volatile cache, FUA.
    let capabilities = |text: &str| open_text(text, true).unwrap().capabilities();
    let plain = capabilities(&path);
    assert!(!plain.volatile_cache && plain.fua);
    assert_eq!(capabilities(&format!("{path}?cache=none&fua=on")), plain);
    assert!(capabilities(&format!("{path}?cache=volatile")).volatile_cache);
    assert!(!capabilities(&format!("{path}?fua=off")).fua);
    let unsupported = |text: &str| match open_text(text, true) {
        Err(Error::Unsupported(reason)) => reason,
        other => panic!("{text}: {other:?}"),
    };
    // `null:` has a volatile cache: denying it would be a lie, and so it is on any real device.
    assert!(unsupported(&format!("null:{path}?cache=none")).contains("volatile write cache"));
    let place = tempfile::tempdir().unwrap();
    let disk = full_image(place.path(), 1 << 20);
    if capabilities(disk.to_str().unwrap()).volatile_cache {
        assert!(unsupported(&format!("{}?cache=none", disk.display())).contains("volatile write cache"));
    }
}

#[test]
fn memory_models_what_it_is_told() {
    let capabilities = |text: &str| {
        let told = open_text(text, true).unwrap().capabilities();
        (told.volatile_cache, told.fua)
    };
    assert_eq!(capabilities("mem:1M"), (false, true));
    assert_eq!(capabilities("mem:1M?cache=volatile"), (true, false));
    assert_eq!(capabilities("mem:1M?cache=volatile&fua=on"), (true, true));
    assert_eq!(capabilities("mem:1M?cache=none&fua=off"), (false, false));
}

#[test]
fn fua_has_a_delay_of_its_own_and_only_memory_a_modelled_cache() {
    let (_place, path) = image();
    let pool = pool();
    let buf = pool.take(4096).unwrap();
    for text in [format!("{path}?fua_latency=20ms"), "mem:1M?fua_latency=20ms".into()] {
        let device = open_text(&text, true).unwrap();
        let begin = Instant::now();
        device.write_at(&buf, 0, WriteDurability::Fua).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(20), "{text}");
        let told = device.describe();
        assert!(told.layers.iter().chain(&told.notes).any(|line| line.contains("FUA")), "{told:?}");
    }
    let refused = open_text(&format!("{path}?cache=volatile&flush_rate=64M"), true).unwrap_err();
    assert!(matches!(&refused, Error::Unsupported(why) if why.contains("flush_rate")), "{refused}");
}

#[test]
fn delays_are_delays_on_every_engine() {
    let (_place, path) = image();
    for text in [format!("{path}?latency=20ms"), "mem:1M?latency=20ms".into()] {
        let device = open_text(&text, true).unwrap();
        let pool = pool();
        let mut buf = pool.take(4096).unwrap();
        let begin = Instant::now();
        device.read_at(&mut buf, 0).unwrap();
        assert!(begin.elapsed() >= Duration::from_millis(20), "{text}");
        let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
        let mut buffers: Vec<_> = (0..8).map(|_| pool.take(4096).unwrap()).collect();
        let begin = Instant::now();
        for (index, buf) in buffers.iter_mut().enumerate() {
            // SAFETY: the buffers are not touched before the completions are reaped.
            unsafe { queue.push(request(Op::Read, 0, 4096, buf.memory(0), index as u64)) }.unwrap();
        }
        assert_eq!(reap_all(&mut queue).len(), 8);
        let elapsed = begin.elapsed();
        assert!(elapsed >= Duration::from_millis(20), "{text}: {elapsed:?}");
        assert!(elapsed < Duration::from_millis(8 * 20), "in parallel: {text}: {elapsed:?}");
    }
}

#[test]
fn read_only_holds_on_every_engine() {
    let (_place, path) = image();
    for (text, write) in [
        (format!("{path}?ro"), true),
        (format!("sync:{path}?ro"), true),
        (format!("dax:{path}?ro"), true),
        (format!("null:{path}?ro"), true),
        ("mem:1M?ro".into(), true),
        (path.clone(), false),
        (format!("dax:{path}"), false),
        ("mem:1M".into(), false),
    ] {
        let device = open_text(&text, write).unwrap();
        assert!(device.capabilities().read_only, "{text}");
        let mut buf = pool().take(4096).unwrap();
        assert_eq!(device.write_at(&buf, 0, WriteDurability::Cached), Err(Error::ReadOnly), "{text}");
        assert!(device.discard(0, 4096).is_err(), "{text}");
        device.read_at(&mut buf, 0).unwrap();
        let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
        // SAFETY: the buffer is not touched before the completion is reaped.
        unsafe { queue.push(request(Op::Write, 0, 4096, buf.memory(0), 1)) }.unwrap();
        assert!(reap_all(&mut queue)[0].result < 0, "{text}");
    }
    assert!(std::fs::read(&path).unwrap().iter().all(|&byte| byte == 0x11));
}

#[test]
fn the_null_engine_never_touches_its_image() {
    let (_place, path) = image();
    let device = open_text(&format!("null:{path}"), true).unwrap();
    let mut buf = pool().take(4096).unwrap();
    device.read_at(&mut buf, 4096).unwrap();
    assert!(buf.iter().all(|&byte| byte == 0x11));
    pattern(1, &mut buf);
    device.write_at(&buf, 4096, WriteDurability::Cached).unwrap();
    assert!(std::fs::read(&path).unwrap().iter().all(|&byte| byte == 0x11));
    // The image was let go of: it can be opened for writing beside it.
    open_text(&path, true).unwrap();
}

#[test]
fn dax_and_file_keep_each_other_out() {
    let (_place, path) = image();
    let mapped = open_text(&format!("dax:{path}"), true).unwrap();
    assert!(matches!(open_text(&path, true), Err(Error::InUse(_))));
    drop(mapped);
    let file = open_text(&path, true).unwrap();
    assert!(matches!(open_text(&format!("dax:{path}"), false), Err(Error::InUse(_))));
    drop(file);
    open_text(&format!("dax:{path}"), true).unwrap();
}

#[test]
fn a_specification_made_by_hand_is_checked() {
    let options = SpecOptions::default;
    let size = DeviceSpec { scheme: Scheme::File, locator: Locator::Size(4096), options: options() };
    let path = DeviceSpec { scheme: Scheme::Memory, locator: Locator::Path("x".into()), options: options() };
    let odd = DeviceSpec { scheme: Scheme::Memory, locator: Locator::Size(1000), options: options() };
    for spec in [size, path, odd] {
        assert!(matches!(open(&spec, OpenOptions::default()), Err(Error::BadSpec { .. })), "{spec:?}");
    }
}
