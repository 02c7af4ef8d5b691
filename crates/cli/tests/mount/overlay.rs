//! Mounts with `--overlay`.

use super::{Mounted, NEEDS, UEXT4, volume, wait_until};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use uext4_testkit::oracle::{e2fsck, e2fsck_clean};
use uext4_testkit::{KernelMount, LoopOptions, Scratch, requirement};

fn on(image: &Path, overlay: &Path) -> String {
    format!("{}?overlay={}", image.display(), overlay.display())
}

fn run(args: &[&str]) -> String {
    let output = Command::new(UEXT4).args(args).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{args:?}: {said}");
    said
}

fn refused(args: &[&str]) -> String {
    let output = Command::new(UEXT4).args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// Programs write, the base stays; a server that is killed loses nothing that was synced; the kernel sees what was
/// merged.
#[test]
fn root_mounts_leave_the_base_until_they_are_merged() {
    if !requirement::require("mount::overlay::merged", &NEEDS) {
        return;
    }
    let (volume, scratch) = (volume(), Scratch::new(64 << 20));
    let (image, overlay, apart) = (volume.path(), scratch.file("one.ovl"), scratch.file("two.ovl"));
    let before = fs::read(image).unwrap();
    let mounted = Mounted::new(on(image, &overlay), "commit=300");
    let beside = Mounted::new(on(image, &apart), "");
    fs::write(beside.at("apart"), "another overlay").unwrap();
    fs::create_dir(mounted.at("dir")).unwrap();
    fs::write(mounted.at("dir/file"), vec![7; 1 << 20]).unwrap();
    let file = fs::File::create(mounted.at("synced")).unwrap();
    file.write_all_at(&[8; 100_000], 0).unwrap();
    file.sync_all().unwrap();
    fs::File::open(mounted.path()).unwrap().sync_all().unwrap();
    assert!(!mounted.at("apart").exists());
    let device = image.to_str().unwrap();
    let used = refused(&["ls", &format!("{device}:/"), "--overlay", overlay.to_str().unwrap()]);
    assert!(used.contains("in use"), "{used}");
    let used = refused(&["mkdir", &format!("{device}:/x")]);
    assert!(used.contains("in use"), "{used}");
    mounted.signal(Signal::KILL);
    drop(file);
    drop(mounted);
    beside.unmount();
    assert!(fs::read(image).unwrap() == before, "the base");
    let listed = run(&["ls", &format!("{device}:/"), "--overlay", apart.to_str().unwrap()]);
    assert!(listed.contains("apart") && !listed.contains("synced"), "{listed}");

    let mut again = Mounted::new(on(image, &overlay), "");
    assert_eq!(fs::read(again.at("synced")).unwrap(), vec![8; 100_000]);
    fs::write(again.at("dir/file"), vec![9; 1 << 20]).unwrap();
    again.signal(Signal::TERM);
    assert!(again.ended().success());
    assert!(fs::read(image).unwrap() == before, "the base");

    run(&["overlay", "merge", overlay.to_str().unwrap()]);
    assert!(!overlay.exists());
    e2fsck_clean(image);
    let kernel = KernelMount::image(image, LoopOptions::default(), "ro");
    assert_eq!(fs::read(kernel.path().join("synced")).unwrap(), vec![8; 100_000]);
    assert_eq!(fs::read(kernel.path().join("dir/file")).unwrap(), vec![9; 1 << 20]);
    kernel.unmount();
    let stale = refused(&["ls", &format!("{device}:/"), "--overlay", apart.to_str().unwrap()]);
    assert!(stale.contains("its base"), "{stale}");
    run(&["overlay", "drop", apart.to_str().unwrap()]);
    wait_until("a clean volume", || e2fsck(image, &["-fn"]).is_clean());
}
