//! How requests come from the kernel: `/dev/fuse`, or io_uring where it is offered. The step `mount-uring` of the test
//! script runs all modules here through io_uring.

use super::{Mounted, NEEDS, Stacked, UEXT4, volume};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use uext4_testkit::guard::machine_lock;
use uext4_testkit::{Need, requirement};

/// Whether the kernel offers FUSE over io_uring to new mounts.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Only one test at a time sets it.
static SET: Mutex<()> = Mutex::new(());

/// Offers it, or not, until dropped.
struct Offer(String, #[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Offer {
    fn new(offered: bool) -> Offer {
        let held = SET.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::fs::read_to_string(SWITCH).unwrap();
        std::fs::write(SWITCH, if offered { "Y" } else { "N" }).unwrap();
        Offer(before, held)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let _as_before = std::fs::write(SWITCH, &self.0);
    }
}

/// How a mount's requests come, by its screen.
fn transport(point: &Path) -> String {
    let screen = Command::new(UEXT4).args(["stats", "--once"]).arg(point).output().unwrap();
    let screen = String::from_utf8(screen.stdout).unwrap();
    let line = screen.lines().find_map(|line| line.strip_prefix("transport: ")).unwrap_or(&screen);
    line.split(';').next().unwrap().to_owned()
}

#[test]
fn root_requests_come_through_io_uring_where_it_is_offered() {
    let needs = [&NEEDS[..], &[Need::Runs(&["test", "-w", SWITCH])]].concat();
    if !requirement::require("mount::transport::offered", &needs) {
        return;
    }
    // The step that runs all mounts through io_uring has it offered all the time.
    if std::env::var_os("UEXT4_TEST_TRANSPORT").is_some() {
        return;
    }
    let _lock = machine_lock();
    let volume = volume();
    for (offered, asked, expected) in [
        (false, "auto", "/dev/fuse"),
        (true, "auto", "io_uring"),
        (true, "uring", "io_uring"),
        (true, "dev", "/dev/fuse"),
    ] {
        let _offer = Offer::new(offered);
        let mounted = Mounted::new(volume.path(), &format!("transport={asked}"));
        assert_eq!(transport(mounted.path()), expected, "{offered} {asked}");
        let name = mounted.at(format!("{offered}-{asked}"));
        std::fs::write(&name, [7; 300_000]).unwrap();
        super::drop_caches();
        assert_eq!(std::fs::read(&name).unwrap(), [7; 300_000]);
        mounted.unmount();
        volume.assert_clean();
    }
    let _offer = Offer::new(false);
    let point = tempfile::tempdir().unwrap();
    let refused = Command::new(UEXT4)
        .args(["mount", "--transport", "uring"])
        .args([volume.path(), point.path()])
        .output()
        .unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && said.contains("does not offer FUSE over io_uring"), "{said}");
    assert!(!super::is_mounted(point.path()));
    volume.assert_clean();
}

/// One program that makes small requests all the time is answered beside it, by threads that step aside.
#[test]
fn root_a_lone_caller_is_answered_aside() {
    let needs = [&NEEDS[..], &[Need::Runs(&["test", "-w", SWITCH])]].concat();
    if !requirement::require("mount::transport::aside", &needs) {
        return;
    }
    let _lock = machine_lock();
    let _offer = std::env::var_os("UEXT4_TEST_TRANSPORT").is_none().then(|| Offer::new(true));
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "transport=uring");
    let metric = |name: &str| {
        let told = Command::new(UEXT4).args(["stats", "--prometheus"]).arg(mounted.path()).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        let value =
            told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
        value.unwrap_or_else(|| panic!("{name}: {told}"))
    };
    let before = metric("uext4_aside_total");
    for number in 0..3000 {
        std::fs::File::create_new(mounted.at(format!("file-{number}"))).unwrap();
    }
    let aside = metric("uext4_aside_total") - before;
    assert!(aside > 10, "{aside} of 3000 files");
    // On a busy machine a thread may be aside until it is called back.
    let tasks = format!("/proc/{}/task", mounted.server.id());
    let is_usual = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|fields| fields.split(' ').nth(38)) == Some("0")
    };
    super::wait_until("the usual policy", || {
        std::fs::read_dir(&tasks).unwrap().all(|task| task.is_ok_and(is_usual))
    });
    mounted.unmount();
    volume.assert_clean();
}

/// There are more large requests than a queue may have threads, so some are waiting when an answer is sent.
#[test]
fn root_large_requests_at_a_time_keep_their_data() {
    if !requirement::require("mount::transport::large", &NEEDS) {
        return;
    }
    const LENGTH: usize = 300 << 10;
    // Of a device that takes its time.
    let stacked = Stacked::new("");
    let pattern =
        |thread: u8| -> Vec<u8> { (0..LENGTH).map(|at| (at >> 9) as u8 ^ thread.wrapping_mul(31)).collect() };
    let begin = Barrier::new(100);
    std::thread::scope(|scope| {
        for thread in 0..100 {
            let begin = &begin;
            let name = stacked.upper.at(format!("file-{thread}"));
            scope.spawn(move || {
                let mut options = std::fs::File::options();
                options.read(true).write(true).create_new(true).custom_flags(libc::O_DIRECT);
                let file = options.open(name).unwrap();
                begin.wait();
                file.write_all_at(&pattern(thread), 0).unwrap();
                let mut found = vec![0; LENGTH];
                file.read_exact_at(&mut found, 0).unwrap();
                assert!(found == pattern(thread), "file {thread}");
            });
        }
    });
    stacked.unmount();
}

/// More requests at a time than a queue has threads in the beginning.
#[test]
fn root_many_requests_at_a_time_are_all_answered() {
    if !requirement::require("mount::transport::many", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    std::thread::scope(|scope| {
        for thread in 0..150u8 {
            let directory = mounted.at(format!("directory-{thread}"));
            scope.spawn(move || {
                std::fs::create_dir(&directory).unwrap();
                for number in 0..4u8 {
                    let name = directory.join(number.to_string());
                    let bytes = vec![thread ^ number; 9000];
                    std::fs::write(&name, &bytes).unwrap();
                    std::fs::File::open(&name).unwrap().sync_all().unwrap();
                    assert_eq!(std::fs::read(&name).unwrap(), bytes);
                }
                std::fs::remove_file(directory.join("2")).unwrap();
            });
        }
    });
    super::drop_caches();
    for thread in 0..150u8 {
        let directory = mounted.at(format!("directory-{thread}"));
        assert_eq!(std::fs::read(directory.join("3")).unwrap(), vec![thread ^ 3; 9000]);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 3);
    }
    mounted.unmount();
    volume.assert_clean();
}
