//! Where the volume is, and how its bytes are seen without our library.

use super::SIZE;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use uext4::device::{self, OpenOptions};
use uext4_testkit::oracle::{command, run};
use uext4_testkit::{Ceph, LoopDevice, LoopOptions, NbdServer, RbdImage, Scratch};

/// A place for the volume.
pub trait BackEnd {
    /// The device.
    fn spec(&self) -> String;

    /// Writes the bytes of the volume to a file. Nobody has it open.
    fn dump(&self, raw: &Path);

    /// Whether a process that is killed leaves blocks half written: its own copies are the writes.
    fn tears(&self) -> bool {
        false
    }

    /// Waits until the requests of the killed process have ended.
    fn settle(&mut self) {}

    /// What its own tools say at the end.
    fn judge(&self) {}
}

/// The bytes as a child of the process would see them: the device, read by us.
fn read_all(spec: &str, raw: &Path) {
    let opened = device::open(&spec.parse().unwrap(), OpenOptions::default()).unwrap().device;
    let mut bytes = vec![0; opened.geometry().size as usize + 4096];
    let start = bytes.as_ptr().align_offset(4096);
    let part = &mut bytes[start..start + opened.geometry().size as usize];
    opened.read_at(part, 0).unwrap();
    std::fs::write(raw, part).unwrap();
}

/// A file, by one of the engines.
pub struct File {
    image: PathBuf,
    scheme: &'static str,
    options: &'static str,
}

impl File {
    pub fn new(scratch: &Scratch, scheme: &'static str, options: &'static str) -> Self {
        File { image: scratch.sparse_file("disk.img", SIZE), scheme, options }
    }

    /// With all its blocks.
    pub fn allocated(scratch: &Scratch, scheme: &'static str) -> Self {
        let file = File::new(scratch, scheme, "");
        std::fs::write(&file.image, vec![0; SIZE as usize]).unwrap();
        file
    }
}

impl BackEnd for File {
    fn spec(&self) -> String {
        format!("{}{}{}", self.scheme, self.image.display(), self.options)
    }

    fn tears(&self) -> bool {
        self.scheme == "dax:"
    }

    fn dump(&self, raw: &Path) {
        let bytes = std::fs::read(&self.image).unwrap();
        let start = if self.options.is_empty() { 0 } else { 1 << 20 };
        std::fs::write(raw, &bytes[start..]).unwrap();
    }
}

/// A qcow2 image, made by our `mkfs` or, over another, by QEMU.
pub struct Qcow2 {
    image: PathBuf,
}

impl Qcow2 {
    pub fn new(scratch: &Scratch, over: bool) -> Self {
        let image = scratch.file("disk.qcow2");
        let size = SIZE.to_string();
        let mut qemu = command("qemu-img");
        qemu.args(["create", "-q", "-f", "qcow2"]);
        if over {
            std::fs::write(scratch.file("base.raw"), vec![0xa5; SIZE as usize]).unwrap();
            qemu.args(["-b", "base.raw", "-F", "raw"]);
        }
        run(qemu.arg(&image).arg(size));
        Qcow2 { image }
    }
}

impl BackEnd for Qcow2 {
    fn spec(&self) -> String {
        self.image.display().to_string()
    }

    fn dump(&self, raw: &Path) {
        run(command("qemu-img").args(["convert", "-U", "-O", "raw"]).arg(&self.image).arg(raw));
    }

    /// Clusters may be lost after kills, as QEMU loses them; nothing is shared or damaged.
    fn judge(&self) {
        run(command("qemu-img").args(["check", "-q", "-r", "leaks"]).arg(&self.image));
        run(command("qemu-img").args(["check", "-q"]).arg(&self.image));
    }
}

/// An overlay file over an empty image.
pub struct Overlay {
    base: PathBuf,
    overlay: PathBuf,
}

impl Overlay {
    pub fn new(scratch: &Scratch) -> Self {
        let base = scratch.file("base.img");
        std::fs::write(&base, vec![0x5a; SIZE as usize]).unwrap();
        Overlay { base, overlay: scratch.file("over.ovl") }
    }
}

impl BackEnd for Overlay {
    fn spec(&self) -> String {
        format!("{}?overlay={}", self.base.display(), self.overlay.display())
    }

    fn dump(&self, raw: &Path) {
        read_all(&self.spec(), raw);
    }

    fn judge(&self) {
        assert!(std::fs::read(&self.base).unwrap().iter().all(|byte| *byte == 0x5a), "the base is as it was");
    }
}

/// A block device.
pub struct Block {
    device: LoopDevice,
    image: PathBuf,
}

impl Block {
    pub fn new(scratch: &Scratch) -> Self {
        let image = scratch.sparse_file("disk.img", SIZE);
        Block { device: LoopDevice::attach(&image, LoopOptions::default()), image }
    }
}

impl BackEnd for Block {
    fn spec(&self) -> String {
        self.device.path().display().to_string()
    }

    fn dump(&self, raw: &Path) {
        std::fs::copy(&self.image, raw).unwrap();
    }
}

/// An export of a server, of a raw image.
pub struct Nbd {
    server: NbdServer,
    export: &'static str,
    image: PathBuf,
}

impl Nbd {
    /// nbdkit's, with several connections and FUA.
    pub fn nbdkit(scratch: &Scratch) -> Self {
        let image = scratch.sparse_file("disk.img", SIZE);
        let server = NbdServer::nbdkit(&[OsStr::new("file"), image.as_os_str()]);
        Nbd { server, export: "", image }
    }

    /// QEMU's, with one connection.
    pub fn qemu(scratch: &Scratch) -> Self {
        let image = scratch.sparse_file("disk.img", SIZE);
        let options =
            ["--format=raw", "--cache=writeback", "--export-name=life", "--shared=1"].map(OsStr::new);
        let server = NbdServer::qemu(&[&options[..], &[image.as_os_str()]].concat());
        Nbd { server, export: "life", image }
    }
}

impl BackEnd for Nbd {
    fn spec(&self) -> String {
        self.server.device(self.export)
    }

    fn dump(&self, raw: &Path) {
        std::fs::copy(&self.image, raw).unwrap();
    }

    fn settle(&mut self) {
        self.server.settle();
    }
}

/// An image of a Ceph cluster.
pub struct Rbd<'a> {
    image: RbdImage<'a>,
}

impl<'a> Rbd<'a> {
    pub fn new(ceph: &'a Ceph) -> Self {
        Rbd { image: ceph.image(SIZE >> 20, &[]) }
    }
}

impl BackEnd for Rbd<'_> {
    fn spec(&self) -> String {
        self.image.spec()
    }

    fn dump(&self, raw: &Path) {
        self.image.export(raw);
    }
}
