//! Devices that hang, are full, or shrink: errors, and never a hang of those who do not need them.

use super::{Mounted, NEEDS, Stacked, volume, wait_until};
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use uext4_testkit::guard::Tmpfs;
use uext4_testkit::oracle::{e2fsck, e2fsck_clean};
use uext4_testkit::{Need, VolumeBuilder, requirement};

/// A stopped server: whoever uses its mount waits. It goes on at the end of the test, also after a failure.
pub(super) struct Stopped<'m>(&'m Mounted);

impl<'m> Stopped<'m> {
    pub(super) fn new(mounted: &'m Mounted) -> Stopped<'m> {
        mounted.signal(Signal::STOP);
        let stopped = Stopped(mounted);
        // Each thread stops by itself.
        let tasks = format!("/proc/{}/task", mounted.server.id());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_some_and(|fields| fields.starts_with('T'))
        };
        wait_until("the server to stop", || std::fs::read_dir(&tasks).unwrap().all(is_stopped));
        stopped
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

/// Requests that hang at a time: several times as many as there are threads, and fewer than a queue may have.
const FILES: usize = 28;

/// Looks at what the upper server has in memory, which needs no device. (Contents may: other tests drop the kernel's
/// caches.) A process of its own, so that one that waits for the syncs fails the test instead of hanging it.
fn look_in_time(upper: &Mounted) {
    let script =
        format!("test ! -e missing && test $(ls -A . | wc -l) = {} && stat -f . > /dev/null", FILES + 1);
    let mut child = Command::new("sh").args(["-c", &script]).current_dir(upper.path()).spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > Duration::from_secs(5) {
            let _killed = child.kill();
            panic!("readers wait for syncs");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success(), "{status}");
}

#[test]
fn root_a_hung_sync_can_be_killed_and_holds_up_nobody() {
    let needs = [&NEEDS[..], &[Need::Tool("sync")]].concat();
    if !requirement::require("mount::faults::hung", &needs) {
        return;
    }
    let stacked = Stacked::new("commit=300");
    // On two processors, more syncs than there are rings.
    for _ in 0..5 {
        hang_and_kill(&stacked);
    }
    stacked.unmount();
}

fn hang_and_kill(stacked: &Stacked) {
    let upper = &stacked.upper;
    for number in 0..FILES {
        std::fs::write(upper.at(format!("file{number}")), "data").unwrap();
    }
    let stopped = Stopped::new(&stacked.lower);
    let sync = |number: usize| Command::new("sync").arg(upper.at(format!("file{number}"))).spawn().unwrap();
    let mut syncs: Vec<Child> = (0..FILES).map(sync).collect();
    std::thread::sleep(Duration::from_millis(300));
    assert!(syncs.iter_mut().all(|child| child.try_wait().unwrap().is_none()), "nothing hung");
    let start = Instant::now();
    look_in_time(upper);
    for child in &mut syncs {
        child.kill().unwrap();
    }
    wait_until("the killed syncs", || syncs.iter_mut().all(|child| child.try_wait().unwrap().is_some()));
    assert!(start.elapsed() < Duration::from_secs(20));
    look_in_time(upper);
    drop(stopped);
    // It goes on as if nothing had been.
    assert_eq!(std::fs::read(upper.at("file5")).unwrap(), b"data");
    File::open(upper.at("file5")).unwrap().sync_all().unwrap();
}

#[test]
fn root_hung_reads_hold_up_nobody() {
    if !requirement::require("mount::faults::reads", &NEEDS) {
        return;
    }
    let stacked = Stacked::new("commit=300");
    let upper = &stacked.upper;
    for number in 0..FILES {
        std::fs::write(upper.at(format!("file{number}")), vec![number as u8; 8192]).unwrap();
        File::open(upper.at(format!("file{number}"))).unwrap().sync_all().unwrap();
    }
    let files: Vec<File> =
        (0..FILES).map(|number| File::open(upper.at(format!("file{number}"))).unwrap()).collect();
    super::drop_caches();
    let stopped = Stopped::new(&stacked.lower);
    // All at once and on one processor.
    let begin = Arc::new(Barrier::new(FILES));
    let read = |file: File| {
        let begin = begin.clone();
        std::thread::spawn(move || {
            let mut first = rustix::thread::CpuSet::new();
            first.set(0);
            let _anywhere = rustix::thread::sched_setaffinity(None, &first);
            begin.wait();
            let mut data = vec![0; 8192];
            file.read_exact_at(&mut data, 0).map(|()| data)
        })
    };
    let reads: Vec<_> = files.into_iter().map(read).collect();
    std::thread::sleep(Duration::from_millis(300));
    assert!(reads.iter().all(|read| !read.is_finished()), "nothing hung");
    look_in_time(upper);
    drop(stopped);
    for (number, read) in reads.into_iter().enumerate() {
        assert!(read.join().unwrap().unwrap() == vec![number as u8; 8192], "file{number}");
    }
    stacked.unmount();
}

#[test]
fn root_a_full_device_below_gives_errors() {
    if !requirement::require("mount::faults::full", &NEEDS) {
        return;
    }
    // An image of 64 MiB where there is room for less.
    let below = Tmpfs::new(20 << 20);
    let image = below.path().join("image");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    VolumeBuilder::new(64 << 20).args(["-b", "4096"]).format(&image);
    let mounted = Mounted::new(&image, "commit=1");
    std::fs::write(mounted.at("early"), vec![7; 1 << 20]).unwrap();
    File::open(mounted.at("early")).unwrap().sync_all().unwrap();
    let file = File::create(mounted.at("late")).unwrap();
    let failed = (0..64).find_map(|piece| file.write_all_at(&[1; 1 << 20], piece << 20).err());
    // Late writes tell it at the sync.
    let error = failed.or_else(|| file.sync_all().err()).expect("64 MiB do not fit");
    assert!(matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EIO)), "{error}");
    // What is there can be read, whatever became of the volume.
    assert!(std::fs::read(mounted.at("early")).unwrap() == vec![7; 1 << 20]);
    drop(file);
    let _may_fail = File::open(mounted.at("early")).unwrap().sync_all();
    drop(mounted);
    // The log has what was durable. Recovery needs room again.
    let roomy = tempfile::tempdir().unwrap();
    let copy = roomy.path().join("image");
    std::fs::copy(&image, &copy).unwrap();
    let mounted = Mounted::new(&copy, "");
    assert!(std::fs::read(mounted.at("early")).unwrap() == vec![7; 1 << 20]);
    mounted.unmount();
    e2fsck_clean(&copy);
}

#[test]
fn root_a_device_that_vanishes_gives_errors() {
    if !requirement::require("mount::faults::vanishes", &NEEDS) {
        return;
    }
    let volume = volume();
    let kept = volume.scratch().file("kept.img");
    let mounted = Mounted::new(volume.path(), "commit=1");
    let file = File::options().read(true).write(true).create_new(true).open(mounted.at("file")).unwrap();
    file.write_all_at(&vec![3; 4 << 20], 0).unwrap();
    file.sync_all().unwrap();
    std::fs::copy(volume.path(), &kept).unwrap();
    super::drop_caches();
    File::options().write(true).open(volume.path()).unwrap().set_len(1 << 20).unwrap();
    let mut block = vec![0; 1 << 20];
    let error = file.read_exact_at(&mut block, 2 << 20).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::EIO | libc::EUCLEAN)), "{error:?}");
    // Changes end in an error sooner or later, and syncs do from then on.
    let changed = (0..200).map(|number| std::fs::write(mounted.at(format!("new{number}")), vec![1; 9000]));
    let _results: Vec<_> = changed.collect();
    drop(file);
    drop(mounted);
    assert!(!e2fsck(&kept, &["-fy"]).findings().is_empty() || e2fsck(&kept, &["-fn"]).is_clean());
}
