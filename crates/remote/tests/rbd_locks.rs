//! Who has an image: the lock of a writer, readers beside it, and what happens when the lock is lost.

use crate::conformance::{buffer, push, reap_all, request, without_data};
use crate::rbd::{open, write};
use std::time::{Duration, Instant};
use uext4_blockdev::{BufferPool, Device, Error, Op, QueueOptions, Sharing, WriteDurability};
use uext4_testkit::{Ceph, Need, needs};

const FEATURES: [&[&str]; 2] = [&[], &["--image-feature", "layering"]];

#[test]
fn a_second_writer_is_refused_and_told_who_is_first() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    for features in FEATURES {
        let image = ceph.image(8, features);
        let first = write(&image);
        for force in [false, true] {
            let Err(Error::InUse(owner)) = open(&image.spec(), true, force) else { panic!("two writers") };
            assert!(owner.starts_with("client."), "{owner}");
            assert_eq!(owner.contains("exclusive lock"), features.is_empty(), "{owner}");
        }
        first.write_at(&[1; 512], 0, WriteDurability::Cached).unwrap();
        drop(first);
        drop(write(&image));
    }
}

/// Programs of librbd that take the lock when they write, as QEMU does.
#[test]
fn programs_of_ceph_and_we_keep_each_other_out() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(64, &[]);
    let device = write(&image);
    let bench = ["bench", "--io-type", "write", "--io-total", "4M", &image.name];
    let said = ceph.try_run("rbd", &bench).expect_err("a second writer");
    assert!(said.contains("Read-only file system"), "{said}");
    device.write_at(&[1; 512], 0, WriteDurability::Cached).unwrap();
    drop(device);
    let mut other = std::process::Command::new("rbd");
    other.args(["bench", "--io-type", "write", "--io-total", "100G", &image.name]);
    other.env("CEPH_CONF", ceph.conf()).stdout(std::process::Stdio::null());
    let mut other = other.spawn().unwrap();
    let start = Instant::now();
    let owner = loop {
        match open(&image.spec(), true, false) {
            Err(Error::InUse(owner)) => break owner,
            Ok(device) => drop(device),
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < Duration::from_secs(20), "the other client does not show");
    };
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(owner.starts_with("client."), "{owner}");
    drop(until_free(|| open(&image.spec(), true, false)));
}

/// Of writers that open at the same time, never two get the image.
#[test]
fn of_writers_that_race_at_most_one_wins() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    for features in FEATURES {
        let image = ceph.image(8, features);
        for _ in 0..5 {
            let results: Vec<_> = std::thread::scope(|scope| {
                let spec = image.spec();
                let open = |_| {
                    scope.spawn({
                        let spec = spec.clone();
                        move || open(&spec, true, false)
                    })
                };
                let threads: Vec<_> = (0..3).map(open).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let won = results.iter().filter(|result| result.is_ok()).count();
            assert!(won <= 1, "{won} writers");
            let refused = results.iter().filter_map(|result| result.as_ref().err());
            for error in refused {
                assert!(matches!(error, Error::InUse(_)), "{error}");
            }
        }
        drop(write(&image));
    }
}

#[test]
fn a_reader_of_an_image_in_use_needs_force() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    for features in FEATURES {
        let image = ceph.image(8, features);
        let free = open(&image.spec(), false, false).unwrap();
        assert_eq!(free.describe().sharing, Sharing::SharedRead);
        let beside = open(&image.spec(), false, false).unwrap();
        drop((free, beside));
        let writer = write(&image);
        assert!(matches!(open(&image.spec(), false, false), Err(Error::InUse(_))));
        let forced = open(&image.spec(), false, true).unwrap();
        assert_eq!(forced.describe().sharing, Sharing::Forced);
        assert!(forced.capabilities().read_only);
        writer.write_at(&[9; 512], 0, WriteDurability::Cached).unwrap();
        let mut read = [0; 512];
        forced.read_at(&mut read, 0).unwrap();
        assert_eq!(read, [9; 512]);
    }
}

/// The administrator takes the lock away: the cluster refuses this client from then on, and every request fails with
/// `EIO`, reads too.
#[test]
fn a_lost_lock_fails_every_later_request() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(8, &[]);
    let device = write(&image);
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut data = buffer(&pool, 4096, 1);
    device.write_at(&data, 0, WriteDurability::Cached).unwrap();
    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
    image.break_lock();
    // The next owner is at work.
    let next = until_free(|| open(&image.spec(), true, false));
    next.write_at(&[2; 4096], 0, WriteDurability::Cached).unwrap();

    let start = Instant::now();
    push(&mut queue, request(Op::Write, 0, &mut data, 1)).unwrap();
    assert_eq!(reap_all(&mut queue)[0].result, -libc::EIO);
    push(&mut queue, request(Op::Read, 0, &mut data, 2)).unwrap();
    push(&mut queue, without_data(Op::Discard, 0, 4096, 3)).unwrap();
    push(&mut queue, without_data(Op::Flush, 0, 0, 4)).unwrap();
    assert!(reap_all(&mut queue).iter().all(|done| done.result == -libc::EIO));
    let mut read = [0; 4096];
    for error in [
        device.write_at(&[1; 512], 0, WriteDurability::Fua).unwrap_err(),
        device.read_at(&mut read, 0).unwrap_err(),
        device.flush().unwrap_err(),
        device.discard(0, 4096).unwrap_err(),
    ] {
        assert_eq!(error.errno(), libc::EIO);
        assert!(error.to_string().contains("has lost the exclusive lock"), "{error}");
    }
    assert!(device.describe().notes.join("\n").contains("every request fails"));
    drop((queue, device));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    next.read_at(&mut read, 0).unwrap();
    assert!(read == [2; 4096], "the old owner has written");
}

/// A read is the first request after the loss.
#[test]
fn a_read_finds_out_too() {
    needs!(Need::Ceph);
    let ceph = Ceph::shared();
    let image = ceph.image(8, &[]);
    let device = write(&image);
    image.break_lock();
    let mut read = [0; 4096];
    // An OSD hears of the blocklist a moment later, at the latest from the next owner.
    let start = Instant::now();
    let error = loop {
        match device.read_at(&mut read, 0) {
            Ok(()) => assert!(start.elapsed() < Duration::from_secs(30), "it still reads"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("has lost the exclusive lock"), "{error}");
    assert_eq!(device.write_at(&read, 0, WriteDurability::Cached).unwrap_err().errno(), libc::EIO);
}

fn until_free(
    open: impl Fn() -> uext4_blockdev::Result<std::sync::Arc<dyn Device>>,
) -> std::sync::Arc<dyn Device> {
    let start = Instant::now();
    loop {
        match open() {
            Err(Error::InUse(_)) if start.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(200));
            }
            other => return other.unwrap(),
        }
    }
}
