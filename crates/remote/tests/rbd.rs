//! `rbd:` on a cluster of one node: requests, properties, refusals. Locks are in `rbd_locks`.

use crate::conformance::{self, buffer, push, reap_all, request, without_data};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{
    BufferPool, Device, DeviceQueue, Error, Op, OpenOptions, QueueOptions, Registry, Result, Sharing, Wait,
    WriteDurability, open_with,
};
use uext4_testkit::{Ceph, Need, RbdImage, needs};

pub(crate) fn open(spec: &str, write: bool, force: bool) -> Result<Arc<dyn Device>> {
    let registry = Registry { engines: uext4_remote::ENGINES, ..Registry::EMPTY };
    let spec: DeviceSpec = spec.parse()?;
    open_with(&spec, OpenOptions { write, force }, &registry).map(|opened| opened.device)
}

pub(crate) fn write(image: &RbdImage<'_>) -> Arc<dyn Device> {
    open(&image.spec(), true, false).unwrap()
}

#[test]
fn an_image_is_a_device() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(64, &[]);
    let device = write(&image);
    conformance::conforms(&*device);
    let (geometry, capabilities) = (device.geometry(), device.capabilities());
    assert_eq!((geometry.size, geometry.logical_block, geometry.memory_align), (64 << 20, 512, 1));
    assert!(!capabilities.volatile_cache && capabilities.fua && capabilities.discard);
    assert!(!capabilities.read_only && capabilities.durable_without_flush());
    let description = device.describe();
    assert_eq!((description.engine, description.locator.as_str()), ("rbd", image.name.as_str()));
    assert_eq!(description.sharing, Sharing::Exclusive);
    let notes = description.notes.join("\n");
    for wanted in ["objects of 4096 KiB", "exclusive-lock", "object-map", "has the exclusive lock"] {
        assert!(notes.contains(wanted), "{wanted}: {notes}");
    }
}

#[test]
fn images_without_features_and_with_small_objects_work_too() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(16, &["--image-feature", "layering", "--object-size", "64K"]);
    let device = write(&image);
    conformance::conforms(&*device);
    let notes = device.describe().notes.join("\n");
    assert!(notes.contains("no exclusive lock") && notes.contains("objects of 64 KiB"), "{notes}");
}

#[test]
fn addresses_of_any_alignment_are_taken() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(16, &[]);
    let device = write(&image);
    let data: Vec<u8> = (0..4097).map(|index| index as u8).collect();
    device.write_at(&data[1..], 512, WriteDurability::Cached).unwrap();
    let mut read = vec![0; 4099];
    device.read_at(&mut read[3..], 512).unwrap();
    assert_eq!(read[3..], data[1..]);
}

/// librbd's cache is off, whatever the configuration says. The pool's and the image's own settings win over that, and
/// then the device says that a flush is needed.
#[test]
fn a_cache_that_the_image_turns_on_needs_flushes() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(16, &[]);
    let none = write(&image).capabilities();
    assert!(!none.volatile_cache && none.fua);
    ceph.run("rbd", &["config", "image", "set", &image.name, "rbd_cache", "true"]);
    let device = write(&image);
    let cached = device.capabilities();
    assert!(cached.volatile_cache && !cached.fua);
    assert!(device.describe().notes.join("\n").contains("writes need flushes"));
    conformance::conforms(&*device);
    drop(device);
    ceph.run("rbd", &["config", "image", "set", &image.name, "rbd_cache_policy", "writethrough"]);
    assert!(!write(&image).capabilities().volatile_cache);
    // The cache on a local disk, which has a switch of its own.
    ceph.run("rbd", &["config", "image", "set", &image.name, "rbd_persistent_cache_mode", "ssd"]);
    assert!(write(&image).capabilities().volatile_cache);
}

/// With a cache that keeps what was written, another client sees it only after the flush: by call and by queue. Nothing
/// is as durable as FUA there.
#[test]
fn a_flush_of_a_cache_reaches_the_cluster() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(16, &[]);
    for (option, value) in
        [("rbd_cache", "true"), ("rbd_cache_policy", "writeback"), ("rbd_cache_max_dirty_age", "600")]
    {
        ceph.run("rbd", &["config", "image", "set", &image.name, option, value]);
    }
    let device = write(&image);
    // Until the first one, the cache writes through.
    device.flush().unwrap();
    let at_cluster = || {
        let mut seen = [0; 4096];
        open(&image.spec(), false, true).unwrap().read_at(&mut seen, 0).unwrap();
        seen[0]
    };
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut queue = device.queue(&QueueOptions::depth(1)).unwrap();
    let one = |queue: &mut _, request| {
        push(queue, request).unwrap();
        reap_all(queue)[0].result
    };
    for by_queue in [false, true] {
        let byte = 1 + u8::from(by_queue);
        let mut data = pool.take(4096).unwrap();
        data.fill(byte);
        let refused = device.write_at(&data, 0, WriteDurability::Fua).unwrap_err();
        assert!(matches!(refused, Error::Unsupported(_)), "{refused}");
        let fua = uext4_blockdev::Request { fua: true, ..request(Op::Write, 0, &mut data, 1) };
        assert_eq!(one(&mut queue, fua), -libc::EOPNOTSUPP);
        device.write_at(&data, 0, WriteDurability::Cached).unwrap();
        assert_ne!(at_cluster(), byte, "the cache has written already, so that the flush proves nothing");
        match by_queue {
            true => assert_eq!(one(&mut queue, without_data(Op::Flush, 0, 0, 2)), 0),
            false => device.flush().unwrap(),
        }
        assert_eq!(at_cluster(), byte);
    }
}

#[test]
fn a_masked_cache_asks_for_flushes() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(16, &[]);
    let device = open(&format!("{}&cache=volatile&fua=off", image.spec()), true, false).unwrap();
    let capabilities = device.capabilities();
    assert!(capabilities.volatile_cache && !capabilities.fua);
    conformance::conforms(&*device);
}

#[test]
fn a_snapshot_is_read_by_many_and_written_by_nobody() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(16, &[]);
    let device = write(&image);
    let (before, after) = (vec![1; 8192], vec![2; 8192]);
    device.write_at(&before, 4096, WriteDurability::Cached).unwrap();
    ceph.run("rbd", &["snap", "create", "--no-progress", &format!("{}@one", image.name)]);
    device.write_at(&after, 4096, WriteDurability::Cached).unwrap();
    // While the writer has the image.
    let (first, second) =
        (open(&image.spec_of("@one"), false, false), open(&image.spec_of("@one"), false, false));
    for snapshot in [first.unwrap(), second.unwrap()] {
        let mut read = vec![0; 8192];
        snapshot.read_at(&mut read, 4096).unwrap();
        assert_eq!(read, before);
        assert!(snapshot.capabilities().read_only && !snapshot.capabilities().discard);
        assert_eq!(snapshot.describe().sharing, Sharing::SharedRead);
        assert_eq!(snapshot.write_at(&after, 0, WriteDurability::Cached).unwrap_err(), Error::ReadOnly);
        assert_eq!(snapshot.discard(0, 4096).unwrap_err(), Error::ReadOnly);
        let pool = BufferPool::new(1 << 20).unwrap();
        let mut data = buffer(&pool, 4096, 1);
        let mut queue = snapshot.queue(&QueueOptions::depth(2)).unwrap();
        push(&mut queue, request(Op::Write, 0, &mut data, 1)).unwrap();
        push(&mut queue, without_data(Op::Discard, 0, 4096, 2)).unwrap();
        assert!(reap_all(&mut queue).iter().all(|done| done.result == -libc::EROFS));
    }
    let refused = open(&image.spec_of("@one"), true, false).unwrap_err();
    assert_eq!(refused.errno(), libc::EROFS);
    assert!(refused.to_string().contains("a snapshot is only read"), "{refused}");
}

#[test]
fn holes_are_known_and_data_of_a_parent_is_data() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    for features in [&[][..], &["--image-feature", "layering"]] {
        let image = ceph.image(160, features);
        let device = write(&image);
        let half = 64 << 20;
        assert!(device.reads_zeros(0, 2 * half));
        assert!(!device.reads_zeros(0, 4096), "nobody is asked about a small range");
        device.write_at(&[7; 4096], half + 12288, WriteDurability::Cached).unwrap();
        assert!(device.reads_zeros(0, half) && !device.reads_zeros(half, half));
        assert!(!device.reads_zeros(half, 2 * half), "outside");
        device.discard(half, half).unwrap();
        assert!(device.reads_zeros(half, half));
        device.write_at(&[7; 4096], 0, WriteDurability::Cached).unwrap();
        drop(device);
        let snapshot = format!("{}@one", image.name);
        ceph.run("rbd", &["snap", "create", "--no-progress", &snapshot]);
        ceph.run("rbd", &["snap", "protect", &snapshot]);
        let clone = format!("{}-clone", image.name);
        ceph.run("rbd", &["clone", &snapshot, &clone]);
        let device = open(&image.spec().replace(&image.name, &clone), true, false).unwrap();
        assert!(!device.reads_zeros(0, half), "the parent has data");
        assert!(device.reads_zeros(half, half));
        drop(device);
        ceph.run("rbd", &["rm", "--no-progress", &clone]);
        ceph.run("rbd", &["snap", "unprotect", &snapshot]);
    }
}

#[test]
fn a_namespace_is_part_of_the_name() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    ceph.run("rbd", &["namespace", "create", "rbd/apart"]);
    ceph.run("rbd", &["create", "--size", "8M", "rbd/apart/image"]);
    let conf = ceph.conf();
    let spec = format!("rbd:rbd/apart/image?conf={}", conf.display());
    let device = open(&spec, true, false).unwrap();
    assert_eq!((device.geometry().size, device.describe().locator.as_str()), (8 << 20, "rbd/apart/image"));
    assert_eq!(device.describe().notes[0], "image `image` in the namespace `apart` of the pool `rbd`");
    drop(device);
    let wrong = open(&format!("rbd:rbd/image?conf={}", conf.display()), false, false).unwrap_err();
    assert!(wrong.to_string().contains("there is no image `image` in the pool `rbd`"), "{wrong}");
    let wrong = open(&format!("rbd:rbd/apart/other?conf={}", conf.display()), false, false).unwrap_err();
    assert!(wrong.to_string().contains("in the namespace `apart` of the pool `rbd`"), "{wrong}");
    ceph.run("rbd", &["rm", "--no-progress", "rbd/apart/image"]);
}

pub(crate) fn refusal(spec: &str) -> (i32, String) {
    match open(spec, true, false) {
        Err(Error::Remote { device, action, reason, errno }) => {
            assert_eq!(device, spec);
            (errno, format!("{action}: {reason}"))
        }
        other => panic!("{spec}: {other:?}"),
    }
}

#[test]
fn what_is_missing_is_named() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(8, &[]);
    let conf = ceph.conf().display().to_string();
    for (spec, wanted) in [
        (format!("rbd:nowhere/image?conf={conf}"), "open the pool: there is no pool `nowhere`"),
        (
            format!("rbd:rbd/nothing?conf={conf}"),
            "open the image: there is no image `nothing` in the pool `rbd`",
        ),
        (
            "rbd:rbd/image?conf=/nowhere/ceph.conf".into(),
            "read the configuration: /nowhere/ceph.conf: No such file",
        ),
    ] {
        let (errno, said) = refusal(&spec);
        assert!(errno == libc::ENOENT && said.contains(wanted), "{errno} {said}");
    }
    let (errno, said) = {
        let spec = image.spec_of("@none");
        let error = open(&spec, false, false).unwrap_err();
        (error.errno(), error.to_string())
    };
    assert!(errno == libc::ENOENT && said.contains("has no snapshot `none`"), "{errno} {said}");
}

#[test]
fn a_configuration_that_is_none_is_refused() {
    needs!(Need::Ceph);
    let directory = tempfile::tempdir().unwrap();
    let conf = directory.path().join("ceph.conf");
    std::fs::write(&conf, "[global\nmon host").unwrap();
    let (errno, said) = refusal(&format!("rbd:rbd/image?conf={}", conf.display()));
    assert!(errno == libc::EINVAL && said.contains("is not a configuration of Ceph"), "{errno} {said}");
}

#[test]
fn a_cluster_that_does_not_answer_is_given_up_in_time() {
    needs!(Need::Ceph);
    let directory = tempfile::tempdir().unwrap();
    let conf = directory.path().join("ceph.conf");
    // Its own limit counts.
    let text = "[global]\nmon host = 127.0.0.1:1\nauth client required = none\nclient mount timeout = 2\n";
    std::fs::write(&conf, text).unwrap();
    let start = Instant::now();
    let (errno, said) = refusal(&format!("rbd:rbd/image?conf={}", conf.display()));
    assert!(errno == libc::ETIMEDOUT && said.contains("no monitor has answered"), "{errno} {said}");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_user_without_a_key_is_named() {
    needs!(Need::Ceph);
    let directory = tempfile::tempdir().unwrap();
    let conf = directory.path().join("ceph.conf");
    let text = "[global]\nmon host = 127.0.0.1:1\nauth client required = cephx\nclient mount timeout = 2\n";
    std::fs::write(&conf, text).unwrap();
    let (errno, said) = refusal(&format!("rbd:rbd/image?conf={}&id=nobody", conf.display()));
    assert!(errno == libc::ENOENT && said.contains("no key of the user client.nobody"), "{errno} {said}");
}

/// Requests wait while the OSD is away, and go on when it is back. Nothing is lost.
#[test]
fn requests_wait_for_an_osd() {
    needs!(Need::Ceph);
    let ceph = Ceph::alone();
    let image = ceph.image(16, &[]);
    let device = write(&image);
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut data: Vec<_> = (0..8).map(|index| buffer(&pool, 4096, index * 3 + 1)).collect();
    device.write_at(&data[0], 0, WriteDurability::Cached).unwrap();
    ceph.kill_osd();
    let mut queue = device.queue(&QueueOptions::depth(8)).unwrap();
    for (index, data) in data.iter_mut().enumerate().skip(1) {
        push(&mut queue, request(Op::Write, index as u64 * 4096, data, index as u64)).unwrap();
    }
    let mut out = Vec::with_capacity(8);
    queue.reap(&mut out, Wait::Timeout(Duration::from_secs(2))).unwrap();
    assert_eq!((out.len(), queue.in_flight()), (0, 7), "there is nobody to answer");
    ceph.start_osd();
    let done = reap_all(&mut queue);
    assert!(done.iter().all(|done| done.result == 4096), "{done:?}");
    drop((queue, device));
    let device = write(&image);
    let mut read = pool.take(4096).unwrap();
    for (index, data) in data.iter().enumerate() {
        device.read_at(&mut read, index as u64 * 4096).unwrap();
        assert_eq!(read[..], data[..], "block {index}");
    }
}
