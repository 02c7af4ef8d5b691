//! Changes of the map of a file, and changes that are made durable one by one: on a file `data` and in a directory
//! `made`, both new.

use crate::Target;
use crate::shape::{Change, Shape};
use crate::system::Page;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags};
use std::os::fd::OwnedFd;
use uext4::{Caller, Fallocate, File, Node, OpenOptions, Volume};

/// One of the two sides.
pub trait Side {
    /// Makes the file `size` bytes long.
    fn resize(&mut self, size: u64);
    fn write(&mut self, memory: &[u8], pos: u64);
    fn allocate(&mut self, pos: u64, length: u64);
    fn punch(&mut self, pos: u64, length: u64);
    /// `fsync` of the file.
    fn sync_file(&mut self);
    /// Makes a file in the directory, and syncs it.
    fn create_and_sync(&mut self, name: &str);
    fn unlink(&mut self, name: &str);
    /// Syncs everything.
    fn sync(&mut self);
}

/// Before a slice: the file is new, and has what the requests of `shape` change.
fn reset(side: &mut impl Side, shape: &Shape) {
    side.resize(0);
    side.sync();
    match shape.change {
        Some(Change::Hole | Change::Allocate) => side.resize(shape.span()),
        Some(Change::Punch) => {
            let memory = Page::new();
            side.allocate(0, shape.span());
            (0..shape.span()).step_by(4096).for_each(|pos| side.write(&memory.0, pos));
        }
        _ => {}
    }
    side.sync();
}

/// One request after the other.
pub struct Changes<S> {
    side: S,
    shape: &'static Shape,
    memory: Box<Page>,
    /// Requests of the slice so far.
    done: usize,
    names: Vec<String>,
}

impl<S: Side> Changes<S> {
    pub fn new(side: S, shape: &'static Shape) -> Self {
        let names = (0..shape.requests()).map(|at| format!("made-{at:06}")).collect();
        Changes { side, shape, memory: Page::new(), done: 0, names }
    }
}

impl<S: Side> Target for Changes<S> {
    fn prepare(&mut self, _number: usize) {
        if self.shape.change == Some(Change::Create) {
            self.names[..self.done].iter().for_each(|name| self.side.unlink(name));
        }
        self.done = 0;
        reset(&mut self.side, self.shape);
    }

    fn one(&mut self, pos: u64) {
        let (at, length) = (self.done, self.shape.block as u64);
        self.done += 1;
        match self.shape.change.expect("a shape of changes") {
            Change::Hole => self.side.write(&self.memory.0, pos),
            Change::Allocate => self.side.allocate(pos, length),
            Change::Punch => self.side.punch(pos, length),
            Change::Append => {
                self.side.write(&self.memory.0, at as u64 * length);
                self.side.sync_file();
            }
            Change::Create => self.side.create_and_sync(&self.names[at]),
        }
    }

    fn finish(&mut self) {
        self.side.sync();
    }
}

/// A queue on the file.
pub struct Queued<S> {
    side: S,
    shape: &'static Shape,
    queue: Box<dyn Target>,
}

impl<S: Side> Queued<S> {
    pub fn new(side: S, shape: &'static Shape, queue: Box<dyn Target>) -> Self {
        Queued { side, shape, queue }
    }
}

impl<S: Side> Target for Queued<S> {
    fn push(&mut self, pos: u64) {
        self.queue.push(pos);
    }

    fn submit(&mut self) {
        self.queue.submit();
    }

    fn wait(&mut self, count: usize) -> usize {
        self.queue.wait(count)
    }

    fn prepare(&mut self, _number: usize) {
        reset(&mut self.side, self.shape);
    }

    fn finish(&mut self) {
        self.side.sync();
    }
}

const MODE: u32 = 0o644;

/// Files that are made first. Nothing that is measured is in the block of the journal's inode: e2fsck 1.47.0 does not
/// recover fast commits of such inodes, and so uext4 makes none.
const BESIDE: usize = 8;

/// System calls.
pub struct Kernel {
    file: OwnedFd,
    directory: OwnedFd,
}

impl Kernel {
    /// Below the directory `path`.
    pub fn new(path: &str) -> Self {
        let mode = Mode::from_raw_mode(MODE);
        for number in 0..BESIDE {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
            drop(rustix::fs::open(format!("{path}/beside-{number}"), flags, mode).expect("a file"));
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = rustix::fs::open(format!("{path}/data"), flags, mode).expect("the file");
        let made = format!("{path}/made");
        rustix::fs::mkdir(&made, Mode::from_raw_mode(0o755)).expect("a directory");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Kernel { file, directory: rustix::fs::open(&made, flags, Mode::empty()).expect("the directory") }
    }
}

impl Side for Kernel {
    fn resize(&mut self, size: u64) {
        rustix::fs::ftruncate(&self.file, size).expect("another size");
    }

    fn write(&mut self, memory: &[u8], pos: u64) {
        assert_eq!(rustix::io::pwrite(&self.file, memory, pos), Ok(memory.len()), "at {pos}");
    }

    fn allocate(&mut self, pos: u64, length: u64) {
        rustix::fs::fallocate(&self.file, FallocateFlags::empty(), pos, length).expect("allocated");
    }

    fn punch(&mut self, pos: u64, length: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, pos, length).expect("punched");
    }

    fn sync_file(&mut self) {
        rustix::fs::fsync(&self.file).expect("synced");
    }

    fn create_and_sync(&mut self, name: &str) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.directory, name, flags, Mode::from_raw_mode(MODE));
        rustix::fs::fsync(made.expect("created")).expect("synced");
    }

    fn unlink(&mut self, name: &str) {
        rustix::fs::unlinkat(&self.directory, name, AtFlags::empty()).expect("removed");
    }

    fn sync(&mut self) {
        rustix::fs::syncfs(&self.directory).expect("synced");
    }
}

/// The library.
pub struct Library {
    file: File,
    directory: Node,
    root: Caller,
    volume: Volume,
}

impl Library {
    /// In the root of the volume.
    pub fn new(volume: &Volume) -> Self {
        let root = Caller::root();
        let top = volume.root().expect("the root");
        for number in 0..BESIDE {
            drop(top.create(format!("beside-{number}"), MODE, &root).expect("a file"));
        }
        let file = top.create("data", MODE, &root).expect("a file");
        let file = file.open(OpenOptions::new().read(true).write(true)).expect("opened");
        let directory = top.make_dir("made", 0o755, &root).expect("a directory");
        Library { file, directory, root, volume: volume.clone() }
    }
}

impl Side for Library {
    fn resize(&mut self, size: u64) {
        self.file.set_len(size).expect("another size");
    }

    fn write(&mut self, memory: &[u8], pos: u64) {
        assert_eq!(self.file.write_at(memory, pos).expect("written"), memory.len());
    }

    fn allocate(&mut self, pos: u64, length: u64) {
        self.file.fallocate(Fallocate::Allocate, pos, length).expect("allocated");
    }

    fn punch(&mut self, pos: u64, length: u64) {
        self.file.fallocate(Fallocate::Punch, pos, length).expect("punched");
    }

    fn sync_file(&mut self) {
        self.file.sync_all().expect("synced");
    }

    fn create_and_sync(&mut self, name: &str) {
        let made = self.directory.create(name, MODE, &self.root).expect("created");
        let made = made.open(OpenOptions::new().write(true)).expect("opened");
        made.sync_all().expect("synced");
    }

    fn unlink(&mut self, name: &str) {
        self.directory.unlink(name).expect("removed");
    }

    fn sync(&mut self) {
        self.volume.sync_all().expect("synced");
    }
}

/// A target of the kernel's side, below the directory `path`.
pub fn of_kernel(path: &str, shape: &'static Shape) -> Box<dyn Target> {
    let side = Kernel::new(path);
    if shape.depth == 1 {
        return Box::new(Changes::new(side, shape));
    }
    let ring = crate::ring::Ring::new(&format!("{path}/data"), shape, false);
    Box::new(Queued::new(side, shape, Box::new(ring)))
}
