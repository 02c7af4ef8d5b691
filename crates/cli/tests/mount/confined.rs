//! The sandbox of the server. The other modules run with it, as far as the kernel here allows it.

use super::{Mounted, NEEDS, UEXT4, volume, wait_until};
use rustix::process::Signal;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use uext4_testkit::guard::machine_lock;
use uext4_testkit::oracle::e2fsck_clean;
use uext4_testkit::{Need, requirement};

/// What the kernel says of each thread of a process: `NoNewPrivs`, `Seccomp`, `CapPrm`.
fn threads(process: u32) -> Vec<[String; 3]> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let statuses = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap());
    let line = |status: &str, name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.trim_start_matches(':').trim().to_owned()
    };
    statuses.map(|status| ["NoNewPrivs", "Seccomp", "CapPrm"].map(|name| line(&status, name))).collect()
}

/// Processes whose parent is this one.
fn children(process: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    list.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

/// Whether this process has `CAP_SYS_RESOURCE`.
fn may_raise_limits() -> bool {
    let sets = rustix::thread::capabilities(None).unwrap();
    sets.effective.contains(rustix::thread::CapabilitySet::SYS_RESOURCE)
}

#[test]
fn root_every_thread_of_the_server_is_confined() {
    if !requirement::require("mount::confined::threads", &NEEDS) {
        return;
    }
    let volume = volume();
    let mut mounted = Mounted::new(volume.path(), "sandbox=require,commit=1");
    std::fs::write(mounted.at("file"), [1; 100_000]).unwrap();
    std::fs::File::open(mounted.at("file")).unwrap().sync_all().unwrap();
    let server = mounted.server.id();
    let found = threads(server);
    assert!(found.len() > 4, "{found:?}");
    // Locked memory is the one right that is left, and scheduling for threads of rings where the limit for it cannot be
    // raised.
    let rings = std::env::var("UEXT4_TEST_TRANSPORT").is_ok_and(|transport| transport == "uring");
    let scheduling = rings && !may_raise_limits();
    let rights = if scheduling { "0000000000804000" } else { "0000000000004000" };
    for thread in found {
        assert_eq!(thread, ["1", "2", rights]);
    }
    let screen = Command::new(UEXT4).args(["stats", "--once"]).arg(mounted.path()).output().unwrap();
    let screen = String::from_utf8(screen.stdout).unwrap();
    assert!(screen.contains("sandbox: capabilities, landlock, no_new_privs, seccomp\n"), "{screen}");
    // A signal unmounts all the same, also while a file is open and mapped pages are not written yet.
    let keepers = children(server);
    assert_eq!(keepers.len(), 1);
    let kept = std::fs::File::options().write(true).open(mounted.at("file")).unwrap();
    kept.write_all_at(b"last", 0).unwrap();
    mounted.signal(Signal::TERM);
    assert!(mounted.ended().success());
    assert!(!super::is_mounted(mounted.path()));
    wait_until("the keeper's end", || !Path::new(&format!("/proc/{}", keepers[0])).exists());
    volume.assert_clean();
}

#[test]
fn root_without_a_sandbox_the_server_keeps_its_rights() {
    if !requirement::require("mount::confined::off", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "sandbox=off");
    let server = mounted.server.id();
    assert!(threads(server).iter().all(|thread| thread[..2] == ["0", "0"]));
    assert!(children(server).is_empty());
    mounted.unmount();
    volume.assert_clean();
}

#[test]
fn root_a_mount_that_fails_in_the_sandbox_leaves_nothing() {
    if !requirement::require("mount::confined::fails", &[&NEEDS[..], &[Need::Tool("dd")]].concat()) {
        return;
    }
    let _lock = machine_lock();
    let (volume, point) = (volume(), tempfile::Builder::new().prefix("uext4-testmnt-").tempdir().unwrap());
    let mount = || {
        let mut command = Command::new(UEXT4);
        command.arg("mount").arg(volume.path()).arg(point.path()).stdin(Stdio::null());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let whole = std::fs::read(volume.path()).unwrap();
    let mut damaged = whole.clone();
    damaged[1024 + 0x38] ^= 1;
    std::fs::write(volume.path(), &damaged).unwrap();
    let (code, said) = mount();
    assert!(code == Some(1) && said.contains("volume.img"), "{said}");
    assert!(!super::is_mounted(point.path()));
    std::fs::write(volume.path(), &whole).unwrap();
    assert_eq!(mount(), (Some(0), String::new()));
    let ended = Command::new(UEXT4).arg("umount").arg(point.path()).status().unwrap();
    assert!(ended.success());
    e2fsck_clean(volume.path());
}

#[test]
fn root_journals_outside_are_opened_before() {
    let needs = [&NEEDS[..], &[Need::Tool("mke2fs")]].concat();
    if !requirement::require("mount::confined::journal", &needs) {
        return;
    }
    let volume = volume();
    let journal = volume.scratch().file("journal.img");
    let image = volume.scratch().file("outside.img");
    let make = |words: &[&str], path: &Path, size: u64| {
        std::fs::File::create(path).unwrap().set_len(size).unwrap();
        assert!(Command::new(UEXT4).arg("mkfs").args(words).arg(path).status().unwrap().success());
    };
    make(&["-O", "journal_dev", "-b", "4096"], &journal, 16 << 20);
    let device = format!("device={}", journal.display());
    make(&["-b", "4096", "-J", &device], &image, 64 << 20);
    let mounted = Mounted::with(&["--journal", journal.to_str().unwrap()], &image, "sandbox=require");
    std::fs::write(mounted.at("file"), "through the journal outside").unwrap();
    std::fs::File::open(mounted.at("file")).unwrap().sync_all().unwrap();
    mounted.unmount();
    let mut found = Command::new(UEXT4);
    found.args(["cat", "--journal"]).arg(&journal).arg(format!("{}:/file", image.display()));
    assert_eq!(found.output().unwrap().stdout, b"through the journal outside");
}
