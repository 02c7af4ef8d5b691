//! Mounts of volumes on images of a Ceph cluster.

use super::{Mounted, NEEDS, UEXT4, drop_caches, wait_until};
use crate::common::good;
use crate::rbd::{assert_clean, good_when_free};
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use uext4_testkit::{Ceph, Need, RbdImage, Rng, requirement};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 256;

fn can(name: &str) -> bool {
    requirement::require(name, &[&NEEDS[..], &[Need::Ceph]].concat())
}

fn volume(ceph: &Ceph) -> RbdImage<'_> {
    let image = ceph.image(64, &[]);
    good(["mkfs", &image.spec()]);
    image
}

/// Writes blocks of a file in random order, each with its number and the round, and syncs now and then. Returns the
/// round that each block has for certain: what was synced.
fn write_rounds(file: &File, rounds: u64) -> Vec<u64> {
    let mut rng = Rng::new(7);
    let mut latest = vec![0; BLOCKS as usize];
    let mut synced = latest.clone();
    for round in 1..=rounds {
        let block = rng.below(BLOCKS);
        file.write_all_at(&contents(block, round), block * BLOCK).unwrap();
        latest[block as usize] = round;
        if rng.chance(10) {
            file.sync_all().unwrap();
            synced.clone_from(&latest);
        }
    }
    synced
}

fn contents(block: u64, round: u64) -> Vec<u8> {
    let words = [block.to_le_bytes(), round.to_le_bytes()].concat();
    words.repeat(BLOCK as usize / words.len())
}

/// Each block is as it was synced, or of a later round.
fn assert_rounds(bytes: &[u8], synced: &[u64]) {
    for (block, &round) in synced.iter().enumerate() {
        let bytes = &bytes[block * BLOCK as usize..][..BLOCK as usize];
        let found = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        assert!(found >= round, "block {block} has round {found}, and {round} was synced");
        if found > 0 {
            assert!(bytes == contents(block as u64, found), "block {block} is torn");
        }
    }
}

#[test]
fn root_the_server_of_a_mount_is_killed_and_nothing_synced_is_lost() {
    if !can("mount::rbd::killed") {
        return;
    }
    let ceph = Ceph::shared();
    let image = volume(&ceph);
    let mut mounted = Mounted::new(image.spec(), "rw");
    std::fs::write(mounted.at("early"), "kept\n").unwrap();
    let file = File::options().read(true).write(true).create(true).truncate(true).open(mounted.at("file"));
    let file = file.unwrap();
    file.set_len(BLOCKS * BLOCK).unwrap();
    file.sync_all().unwrap();
    let synced = write_rounds(&file, 500);
    assert!(synced.iter().any(|&round| round > 0));
    mounted.signal(Signal::KILL);
    mounted.ended();
    drop((file, mounted));
    let spec = image.spec();
    good_when_free(&["mkdir", &format!("{spec}:/after")]);
    assert_clean(&image);
    assert_rounds(&good(["cat", &format!("{spec}:/file")]), &synced);
    assert_eq!(good(["cat", &format!("{spec}:/early")]), b"kept\n");
}

/// The command returns when the mount stands, by a path of the configuration that is relative. The unmount leaves a
/// clean volume, and gives the lock back.
#[test]
fn root_a_mount_in_the_background_ends_clean() {
    if !can("mount::rbd::background") {
        return;
    }
    let ceph = Ceph::shared();
    let image = volume(&ceph);
    let _lock = uext4_testkit::guard::machine_lock();
    let directory = tempfile::Builder::new().prefix("uext4-testmnt-").tempdir().unwrap();
    let (conf, point) = (ceph.conf(), directory.path());
    let relative = format!("rbd:{}?conf=ceph.conf", image.name);
    let mut mount = Command::new(UEXT4);
    mount.args(["mount", "-o", "rw", &relative]).arg(point).current_dir(conf.parent().unwrap());
    let output = mount.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let bytes = crate::common::pattern(3 << 20);
    std::fs::write(point.join("file"), &bytes).unwrap();
    File::open(point.join("file")).unwrap().sync_all().unwrap();
    drop_caches();
    assert!(std::fs::read(point.join("file")).unwrap() == bytes);
    good([Path::new("umount"), point]);
    assert_clean(&image);
    good(["mkdir", &format!("{}:/after", image.spec())]);
}

/// The lock goes to another client: the mount changes nothing any more, and says so. The other one has a whole volume.
#[test]
fn root_a_mount_that_lost_its_lock_is_aborted() {
    if !can("mount::rbd::lock") {
        return;
    }
    let ceph = Ceph::shared();
    let image = volume(&ceph);
    let spec = image.spec();
    let mounted = Mounted::new(&spec, "rw");
    std::fs::write(mounted.at("before"), "synced\n").unwrap();
    File::open(mounted.at("before")).unwrap().sync_all().unwrap();
    image.break_lock();
    good_when_free(&["mkdir", &format!("{spec}:/by-the-second")]);
    let changed = || {
        std::fs::write(mounted.at("after"), "x")?;
        File::open(mounted.at("after"))?.sync_all()
    };
    wait_until("the abort", || changed().is_err());
    let error = std::fs::create_dir(mounted.at("directory")).unwrap_err();
    assert!([libc::EIO, libc::EROFS].contains(&error.raw_os_error().unwrap()), "{error}");
    drop(mounted);
    assert_clean(&image);
    assert_eq!(good(["cat", &format!("{spec}:/before")]), b"synced\n");
    let names = String::from_utf8(good(["ls", &format!("{spec}:/")])).unwrap();
    assert!(names.contains("by-the-second") && !names.contains("after"), "{names}");
}
