//! QEMU's locks and ours keep each other's writers out, and let readers read.

use crate::tools::{io, make, open, open_text, path};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{Error, OpenOptions, Sharing};
use uext4_testkit::oracle::{command, text};
use uext4_testkit::{Need, Scratch, needs};

/// A `qemu-io` that has the image open until it is dropped.
struct Holder(Child);

impl Holder {
    fn of(image: &Path, format: &str, args: &[&str]) -> Holder {
        let mut qemu = command("qemu-io");
        qemu.args(["-f", format]).args(args).arg(image).stdin(Stdio::piped()).stdout(Stdio::null());
        let child = qemu.spawn().unwrap();
        // It has locks on the file when it has opened it.
        let locked = format!(":{} ", std::fs::metadata(image).unwrap().ino());
        let begun = Instant::now();
        while !std::fs::read_to_string("/proc/locks").unwrap().contains(&locked) {
            assert!(begun.elapsed() < Duration::from_secs(20), "qemu-io takes no lock");
            std::thread::sleep(Duration::from_millis(20));
        }
        // All of them.
        std::thread::sleep(Duration::from_millis(100));
        Holder(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ended = self.0.stdin.take().map(|mut input| input.write_all(b"quit\n"));
        self.0.wait().unwrap();
    }
}

/// What `qemu-io` says that opens the image.
fn opened_by_qemu(image: &Path, format: &str, args: &[&str]) -> Result<(), String> {
    let mut qemu = command("qemu-io");
    let output = qemu.args(["-f", format]).args(args).args(["-c", "length"]).arg(image).output().unwrap();
    let said = text(&output);
    if said.contains("lock") { Err(said) } else { Ok(()) }
}

#[track_caller]
fn in_use(image: &str, write: bool) -> String {
    match open_text(image, write) {
        Err(Error::InUse(user)) => user,
        other => panic!("{other:?}"),
    }
}

#[test]
fn writers_keep_everybody_out_and_readers_let_readers_in() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let (image, raw) = (scratch.file("disk.qcow2"), scratch.file("disk.img"));
    make(&image, "cluster_size=65536", "5M");
    io(&image, &["write -P 1 0 64k"]);
    std::fs::write(&raw, vec![0; 5 << 20]).unwrap();
    for (file, format) in [(&image, "qcow2"), (&raw, "raw")] {
        let text = path(file);
        let writer = open(file, true);
        let refused = opened_by_qemu(file, format, &[]).unwrap_err();
        assert!(refused.contains("lock"), "{refused}");
        opened_by_qemu(file, format, &["-r"]).unwrap_err();
        in_use(text, false);
        drop(writer);

        let reader = open(file, false);
        opened_by_qemu(file, format, &[]).unwrap_err();
        opened_by_qemu(file, format, &["-r"]).unwrap();
        let second = open(file, false);
        assert_eq!(second.describe().sharing, Sharing::SharedRead);
        in_use(text, true);
        drop((reader, second));

        let holder = Holder::of(file, format, &[]);
        for write in [true, false] {
            let user = in_use(text, write);
            assert!(user.contains("QEMU"), "{user}");
        }
        let forced = OpenOptions { write: false, force: true };
        let forced = uext4_images::open(&DeviceSpec::parse(text).unwrap(), forced).unwrap();
        assert_eq!(forced.device.describe().sharing, Sharing::Forced);
        drop((holder, forced));

        let holder = Holder::of(file, format, &["-r"]);
        in_use(text, true);
        assert_eq!(open(file, false).describe().sharing, Sharing::SharedRead);
        drop(holder);
        drop(open(file, true));
        opened_by_qemu(file, format, &[]).unwrap();
    }
}

#[test]
fn backing_files_are_locked_too() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let (base, top) = (scratch.file("base.qcow2"), scratch.file("top.qcow2"));
    make(&base, "cluster_size=65536", "5M");
    make(&top, "backing_file=base.qcow2,backing_fmt=qcow2", "5M");
    let device = open(&top, true);
    opened_by_qemu(&base, "qcow2", &[]).unwrap_err();
    opened_by_qemu(&base, "qcow2", &["-r"]).unwrap();
    drop(device);
    let holder = Holder::of(&base, "qcow2", &[]);
    let user = in_use(path(&top), false);
    assert!(user.contains("base.qcow2"), "{user}");
    drop(holder);
}
