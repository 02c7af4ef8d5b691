//! A server in this process.

mod client;

pub use client::*;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use uext4::device::{
    Buffer, BufferPool, Device, DeviceSpec, MemoryDevice, MemoryOptions, OpenOptions as DeviceOptions,
    WriteDurability,
};
use uext4::{OpenOptions, Volume, VolumeOptions};
use uext4_serve::{Error, Export, Server, ServerOptions, Stopper};
use uext4_testkit::{Scratch, VolumeBuilder};

/// Bytes of the file that is served.
pub const SIZE: u64 = 8 << 20;
/// A server that runs until it is ended.
pub struct Served {
    pub socket: PathBuf,
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), Error>>>,
    faults: Arc<Mutex<Vec<String>>>,
    _scratch: Scratch,
}

/// A volume with a file `/disk` of [`SIZE`] bytes: 1 MiB of pattern, and a hole.
pub fn image() -> uext4_testkit::Volume {
    let source = Scratch::new(16 << 20);
    let file = source.sparse_file("disk", SIZE);
    let file = std::fs::OpenOptions::new().write(true).open(file).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &contents(1 << 20), 0).unwrap();
    VolumeBuilder::new(32 << 20).args(["-b", "4096"]).from_dir(source.path()).build()
}

/// Bytes that tell where they belong, without zeros.
pub fn contents(length: usize) -> Vec<u8> {
    (0..length).map(|at| 1 + ((at / 251 + at) % 255) as u8).collect()
}

/// The export of `/disk`.
pub fn export(device: Arc<dyn Device>, read_only: bool) -> (Export, Volume) {
    let options = if read_only { VolumeOptions::read_only() } else { VolumeOptions::read_write() };
    let volume = Volume::open_device(device, options).unwrap();
    let open = OpenOptions::new().read(true).write(!read_only).direct(true);
    let file = volume.open_file("/disk", open).unwrap();
    (Export::file(file, read_only).unwrap(), volume)
}

pub fn device(path: &Path, write: bool) -> Arc<dyn Device> {
    uext4::device::open(&DeviceSpec::file(path), DeviceOptions { write, force: false }).unwrap().device
}

/// A device in memory with these bytes.
pub fn memory(bytes: &[u8]) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(MemoryOptions::new(bytes.len() as u64)).unwrap();
    let mut copy = aligned(bytes.len());
    copy.copy_from_slice(bytes);
    device.write_at(&copy, 0, WriteDurability::Cached).unwrap();
    Arc::new(device)
}

/// Memory that every device takes.
pub fn aligned(length: usize) -> Buffer {
    BufferPool::new(length).unwrap().take(length).unwrap()
}

/// Serves `/disk` of an image.
pub fn serve(image: &uext4_testkit::Volume) -> Served {
    Served::start(export(device(image.path(), true), false).0, ServerOptions::default())
}

impl Served {
    pub fn start(export: Export, options: ServerOptions) -> Served {
        let scratch = Scratch::new(1 << 20);
        let socket = scratch.file("s");
        let mut server = Server::new(export, options).unwrap();
        server.listen_at(&socket).unwrap();
        let stopper = server.stopper();
        let faults = Arc::new(Mutex::new(Vec::new()));
        let heard = faults.clone();
        let thread =
            std::thread::spawn(move || server.run(|fault| heard.lock().unwrap().push(fault.to_string())));
        Served { socket, stopper, thread: Some(thread), faults, _scratch: scratch }
    }

    /// A client that is connected and has said nothing.
    pub fn connect(&self) -> UnixStream {
        client::connect(&self.socket)
    }

    /// A client after the greeting.
    pub fn greet(&self) -> Client {
        Client::greet(self.connect(), 3)
    }

    /// A client after its handshake. `structured`: it has asked for structured replies and block status.
    pub fn client(&self, structured: bool) -> Client {
        Client::new(&self.socket, structured)
    }

    pub fn stop(&self) {
        self.stopper.stop();
    }

    /// Waits for the end of a server that ends by itself or was stopped.
    pub fn join(&mut self) -> Result<(), Error> {
        self.thread.take().unwrap().join().unwrap()
    }

    /// Ends it; what it said of its clients.
    pub fn end(mut self) -> Vec<String> {
        self.stop();
        self.join().unwrap();
        assert!(!self.socket.exists(), "the socket is removed");
        std::mem::take(&mut self.faults.lock().unwrap())
    }
}
