//! Names of one directory: looked at, made, renamed and removed.

use crate::Target;
use crate::shape::{Operation, Shape};
use rustix::fs::{AtFlags, Mode, OFlags};
use std::os::fd::OwnedFd;
use uext4::{Caller, Node, OpenOptions, RenameFlags, Volume};

/// Names in the directory that are looked at.
const STANDING: u64 = 4096;

/// One of the two sides.
pub trait Side {
    fn stat(&mut self, name: &str);
    fn open(&mut self, name: &str);
    fn create(&mut self, name: &str);
    fn unlink(&mut self, name: &str);
    fn rename(&mut self, name: &str, new: &str);
    fn mkdir(&mut self, name: &str);
    fn rmdir(&mut self, name: &str);
    fn sync(&mut self);
}

/// The directory, and what was made in it so far.
pub struct Names<S> {
    side: S,
    operation: Operation,
    /// Of files that are looked at.
    standing: Vec<String>,
    /// Of what is made, and what that is renamed to.
    made: [Vec<String>; 2],
    number: usize,
    /// Requests of the slice so far.
    done: usize,
    /// The same of the slice before.
    before: usize,
}

impl<S: Side> Names<S> {
    /// Makes the names that are looked at.
    pub fn new(mut side: S, shape: &Shape) -> Self {
        let names = |kind: &str, count: u64| (0..count).map(|at| format!("{kind}-{at:06}")).collect();
        let standing: Vec<String> = names("standing", STANDING);
        standing.iter().for_each(|name| side.create(name));
        side.sync();
        let operation = shape.names.expect("a shape of names");
        let made = [names("made", shape.requests() as u64), names("renamed", shape.requests() as u64)];
        Names { side, operation, standing, made, number: 0, done: 0, before: 0 }
    }
}

impl<S: Side> Target for Names<S> {
    fn prepare(&mut self, number: usize) {
        (self.number, self.before, self.done) = (number, self.done, 0);
        let Names { side, made: [made, _], before, .. } = self;
        match self.operation {
            Operation::Stat | Operation::Open => return,
            Operation::Create => made[..*before].iter().for_each(|name| side.unlink(name)),
            Operation::Mkdir => made[..*before].iter().for_each(|name| side.rmdir(name)),
            Operation::Unlink => made.iter().for_each(|name| side.create(name)),
            Operation::Rename if number == 0 => made.iter().for_each(|name| side.create(name)),
            Operation::Rename => {}
        }
        self.side.sync();
    }

    fn one(&mut self, pos: u64) {
        let (at, from) = (self.done, self.number % 2);
        self.done += 1;
        let made = &self.made[0][at];
        let standing = &self.standing[(pos / 4096 % STANDING) as usize];
        match self.operation {
            Operation::Stat => self.side.stat(standing),
            Operation::Open => self.side.open(standing),
            Operation::Create => self.side.create(made),
            Operation::Unlink => self.side.unlink(made),
            Operation::Rename => self.side.rename(&self.made[from][at], &self.made[1 - from][at]),
            Operation::Mkdir => self.side.mkdir(made),
        }
    }

    fn finish(&mut self) {
        if !matches!(self.operation, Operation::Stat | Operation::Open) {
            self.side.sync();
        }
    }
}

/// System calls.
pub struct Kernel(OwnedFd);

impl Kernel {
    /// In a new directory `PATH`.
    pub fn new(path: &str) -> Self {
        rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)).expect("a directory");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Kernel(rustix::fs::open(path, flags, Mode::empty()).expect("the directory"))
    }
}

const MODE: u32 = 0o644;

impl Side for Kernel {
    fn stat(&mut self, name: &str) {
        let found = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW);
        assert_eq!(found.expect("attributes").st_nlink, 1);
    }

    fn open(&mut self, name: &str) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        drop(rustix::fs::openat(&self.0, name, flags, Mode::empty()).expect("opened"));
    }

    fn create(&mut self, name: &str) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        drop(rustix::fs::openat(&self.0, name, flags, Mode::from_raw_mode(MODE)).expect("created"));
    }

    fn unlink(&mut self, name: &str) {
        rustix::fs::unlinkat(&self.0, name, AtFlags::empty()).expect("removed");
    }

    fn rename(&mut self, name: &str, new: &str) {
        rustix::fs::renameat(&self.0, name, &self.0, new).expect("renamed");
    }

    fn mkdir(&mut self, name: &str) {
        rustix::fs::mkdirat(&self.0, name, Mode::from_raw_mode(0o755)).expect("made");
    }

    fn rmdir(&mut self, name: &str) {
        rustix::fs::unlinkat(&self.0, name, AtFlags::REMOVEDIR).expect("removed");
    }

    fn sync(&mut self) {
        rustix::fs::syncfs(&self.0).expect("synced");
    }
}

/// The library, by handle.
pub struct Library {
    directory: Node,
    root: Caller,
    volume: Volume,
}

impl Library {
    /// In a new directory `/names`.
    pub fn new(volume: &Volume) -> Self {
        let root = Caller::root();
        volume.create_dir("/names", 0o755, &root).expect("a directory");
        let directory = volume.node_at("/names", true).expect("the directory");
        Library { directory, root, volume: volume.clone() }
    }
}

impl Side for Library {
    fn stat(&mut self, name: &str) {
        assert_eq!(self.directory.look_up(name).expect("found").attributes().links, 1);
    }

    fn open(&mut self, name: &str) {
        let found = self.directory.look_up(name).expect("found");
        drop(found.open(OpenOptions::new().read(true)).expect("opened"));
    }

    fn create(&mut self, name: &str) {
        drop(self.directory.create(name, MODE, &self.root).expect("created"));
    }

    fn unlink(&mut self, name: &str) {
        self.directory.unlink(name).expect("removed");
    }

    fn rename(&mut self, name: &str, new: &str) {
        self.directory.rename(name, &self.directory, new, RenameFlags::empty()).expect("renamed");
    }

    fn mkdir(&mut self, name: &str) {
        drop(self.directory.make_dir(name, 0o755, &self.root).expect("made"));
    }

    fn rmdir(&mut self, name: &str) {
        self.directory.remove_dir(name).expect("removed");
    }

    fn sync(&mut self) {
        self.volume.sync_all().expect("synced");
    }
}
