//! Where the volume of a model is: memory, or a place that users have.

use super::{Image, aligned};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use uext4::device::{Device, OpenOptions, WriteDurability, open};
use uext4_testkit::oracle::{command, run};
use uext4_testkit::{Ceph, NbdServer, RbdImage, Scratch};

/// A place for the volume.
pub trait Place {
    /// A device with these contents instead of those before. Nobody has that of before open.
    fn put(&mut self, image: &Image) -> Arc<dyn Device>;

    /// The contents, which are those of `image`, once more as a device.
    fn again(&mut self, image: &Image) -> Arc<dyn Device>;

    /// Closes the device, and reads it without our library where there is such a way.
    fn closed(&mut self, device: Arc<dyn Device>) -> Image;
}

/// Memory with a volatile cache.
pub struct Memory;

impl Place for Memory {
    fn put(&mut self, image: &Image) -> Arc<dyn Device> {
        image.device_with(|options| (options.volatile_cache, options.fua) = (true, true))
    }

    fn again(&mut self, image: &Image) -> Arc<dyn Device> {
        self.put(image)
    }

    fn closed(&mut self, device: Arc<dyn Device>) -> Image {
        Image::of(&*device)
    }
}

fn opened(spec: &str) -> Arc<dyn Device> {
    open(&spec.parse().unwrap(), OpenOptions { write: true, force: false }).unwrap().device
}

/// A file that a server exports.
pub struct Nbd {
    image: PathBuf,
    server: NbdServer,
    _scratch: Scratch,
}

impl Nbd {
    /// nbdkit's, with several connections and FUA.
    pub fn nbdkit(size: u64) -> Self {
        Self::start(size, |image| NbdServer::nbdkit(&[OsStr::new("file"), image]))
    }

    /// QEMU's, with one connection.
    pub fn qemu(size: u64) -> Self {
        Self::start(size, |image| {
            let options = ["--format=raw", "--cache=writeback", "--shared=1"].map(OsStr::new);
            NbdServer::qemu(&[&options[..], &[image]].concat())
        })
    }

    fn start(size: u64, start: impl FnOnce(&OsStr) -> NbdServer) -> Self {
        let scratch = Scratch::new(size);
        let image = scratch.sparse_file("disk.img", size);
        Nbd { server: start(image.as_os_str()), image, _scratch: scratch }
    }
}

impl Place for Nbd {
    fn put(&mut self, image: &Image) -> Arc<dyn Device> {
        // In place: the server has it open.
        let file = std::fs::File::options().write(true).open(&self.image).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &image.bytes, 0).unwrap();
        self.again(image)
    }

    fn again(&mut self, _: &Image) -> Arc<dyn Device> {
        opened(&self.server.device(""))
    }

    fn closed(&mut self, device: Arc<dyn Device>) -> Image {
        assert_eq!(Arc::strong_count(&device), 1, "the volume is closed");
        drop(device);
        Image::load(&self.image)
    }
}

/// A qcow2 image that QEMU made, with the clusters that are not zero.
pub struct Qcow2 {
    scratch: Scratch,
    size: u64,
}

impl Qcow2 {
    pub fn new(size: u64) -> Self {
        Qcow2 { scratch: Scratch::new(4 * size), size }
    }

    fn convert(&self, from: [&str; 2], to: [&str; 2]) {
        let mut qemu = command("qemu-img");
        qemu.args(["convert", "-f", from[0], "-O", to[0]]);
        run(qemu.args([from[1], to[1]].map(|name| self.scratch.file(name))));
    }
}

impl Place for Qcow2 {
    fn put(&mut self, image: &Image) -> Arc<dyn Device> {
        assert_eq!(image.bytes.len() as u64, self.size, "of the layout");
        image.save(&self.scratch.file("from.raw"));
        self.convert(["raw", "from.raw"], ["qcow2", "disk.qcow2"]);
        self.again(image)
    }

    fn again(&mut self, _: &Image) -> Arc<dyn Device> {
        opened(&self.scratch.file("disk.qcow2").display().to_string())
    }

    fn closed(&mut self, device: Arc<dyn Device>) -> Image {
        assert_eq!(Arc::strong_count(&device), 1, "the volume is closed");
        drop(device);
        run(command("qemu-img").args(["check", "-q"]).arg(self.scratch.file("disk.qcow2")));
        self.convert(["qcow2", "disk.qcow2"], ["raw", "to.raw"]);
        Image::load(&self.scratch.file("to.raw"))
    }
}

/// An image of a Ceph cluster.
pub struct Rbd<'a> {
    ceph: &'a Ceph,
    image: RbdImage<'a>,
    scratch: Scratch,
    size: u64,
}

impl<'a> Rbd<'a> {
    pub fn new(ceph: &'a Ceph, size: u64) -> Self {
        Rbd { ceph, image: ceph.image(size >> 20, &[]), scratch: Scratch::new(size), size }
    }
}

impl Place for Rbd<'_> {
    fn put(&mut self, image: &Image) -> Arc<dyn Device> {
        self.image = self.ceph.image(self.size >> 20, &[]);
        let device = opened(&self.image.spec());
        // In few requests.
        let mut buffer = aligned(1 << 20);
        for (index, part) in image.bytes.chunks(1 << 20).enumerate() {
            buffer[..part.len()].copy_from_slice(part);
            device.write_at(&buffer[..part.len()], (index as u64) << 20, WriteDurability::Cached).unwrap();
        }
        device
    }

    fn again(&mut self, _: &Image) -> Arc<dyn Device> {
        opened(&self.image.spec())
    }

    fn closed(&mut self, device: Arc<dyn Device>) -> Image {
        assert_eq!(Arc::strong_count(&device), 1, "the volume is closed");
        drop(device);
        let raw = self.scratch.file("disk.raw");
        let _ = std::fs::remove_file(&raw);
        self.image.export(&raw);
        Image::load(&raw)
    }
}
