//! Random changes of the contents of some files, and the expected contents afterwards.

use super::{Image, assert_same_bytes, open_rw, patterned, read_all, read_only, read_write};
use std::sync::Arc;
use uext4::device::Device;
use uext4::device::MemoryDevice;
use uext4::{Error, Fallocate, File, QueueOptions, Volume, WriteFlags};
use uext4_testkit::{Rng, Scratch, oracle};

/// A volume in memory, some of its files, and their expected contents.
pub struct Play {
    pub device: Arc<MemoryDevice>,
    pub volume: Volume,
    pub files: Vec<(File, Vec<u8>)>,
    pub rng: Rng,
    paths: &'static [&'static str],
    /// Largest position used.
    most: u64,
    /// Bytes of a cluster.
    cluster: u64,
    number: u64,
}

impl Play {
    pub fn new(image: &Image, paths: &'static [&'static str], most: u64, seed: u64) -> Play {
        let device = image.device_with(|options| (options.volatile_cache, options.fua) = (true, true));
        let volume = open_rw(device.clone());
        let open = |path: &&str| {
            let file = volume.open_file(*path, read_write()).unwrap();
            let bytes = read_all(&file);
            (file, bytes)
        };
        let files = paths.iter().map(open).collect();
        let cluster = u64::from(volume.superblock().geometry.cluster_blocks() * volume.block_size());
        Play { device, volume, files, rng: Rng::new(seed), paths, most, cluster, number: 1 << 32 }
    }

    /// The index of a random file.
    pub fn any_file(&mut self) -> usize {
        self.rng.below(self.files.len() as u64) as usize
    }

    /// A position in a file, at its end, or past it.
    pub fn place(&mut self, at: usize, unit: u64) -> u64 {
        let size = self.files[at].1.len() as u64;
        let pos = match self.rng.below(5) {
            0 => size,
            1 => size + self.rng.below(300_000),
            2 => self.rng.below(size + size / 8 + 2),
            _ => self.rng.below(size.max(1)),
        };
        pos.min(self.most) / unit * unit
    }

    pub fn write(&mut self, at: usize) {
        let unit = *self.rng.pick(&[1, 512, 4096, 16384]);
        let pos = self.place(at, unit);
        let length = (1 + self.rng.below(24)) * unit;
        self.number += 1;
        let bytes = patterned(self.number, pos, length as usize);
        let flags =
            *self.rng.pick(&[WriteFlags::empty(), WriteFlags::empty(), WriteFlags::DSYNC, WriteFlags::SYNC]);
        let (file, model) = &mut self.files[at];
        let written = match unit {
            1 => file.write_any_at(&bytes, pos, flags),
            _ => file.write_at_with(&bytes, pos, flags),
        };
        assert_eq!(written.unwrap(), bytes.len(), "{} bytes at {pos} of {}", bytes.len(), self.paths[at]);
        put(model, pos, &bytes);
        self.check_size(at);
    }

    /// Several concurrent writes, into holes, over data and past the end.
    pub fn queued(&mut self, at: usize) {
        let mut queue = self.volume.queue(QueueOptions::depth(8)).unwrap();
        let start = self.place(at, 4096);
        let (file, model) = &mut self.files[at];
        let slot = queue.attach(file).unwrap();
        for part in 0..8 {
            let pos = start + part * 8192;
            self.number += 1;
            let mut buffer = queue.buffer(4096).unwrap();
            buffer.copy_from_slice(&patterned(self.number, pos, 4096));
            put(model, pos, &buffer);
            queue.write(slot, pos, buffer, WriteFlags::empty(), part).unwrap();
        }
        let mut left = 8;
        while left > 0 {
            for done in queue.wait(1).unwrap() {
                assert_eq!(done.result.unwrap(), 4096);
                left -= 1;
            }
        }
        self.check_size(at);
    }

    pub fn set_len(&mut self, at: usize, size: u64) {
        let (file, model) = &mut self.files[at];
        file.set_len(size).unwrap();
        model.resize(size as usize, 0);
        self.check_size(at);
    }

    pub fn prepare(&mut self, at: usize, size: u64) {
        let (file, model) = &mut self.files[at];
        file.prepare(size).unwrap();
        model.resize(model.len().max(size as usize), 0);
        self.check_size(at);
    }

    /// One of the modes, with a position and a length that the mode may refuse.
    pub fn fallocate(&mut self, at: usize, modes: &[Fallocate]) {
        use Fallocate::{Allocate, Collapse, Insert, Punch, Zero, ZeroKeepSize};
        let mode = *self.rng.pick(modes);
        let unit = *self.rng.pick(&[1, 512, 4096, 16384]);
        let (mut pos, mut length) = (self.place(at, unit), (1 + self.rng.below(24)) * unit);
        if matches!(mode, Collapse | Insert) {
            pos = pos / self.cluster * self.cluster;
            length = length.next_multiple_of(self.cluster);
        }
        let (file, model) = &mut self.files[at];
        let (start, end, size) = (pos as usize, (pos + length) as usize, model.len());
        let done = file.fallocate(mode, pos, length);
        let refused = match mode {
            Collapse => end >= size,
            Insert => start >= size,
            _ => false,
        };
        if refused {
            assert!(matches!(done, Err(Error::Invalid(_))), "{mode:?} {pos} {length} of {size}: {done:?}");
            return;
        }
        done.unwrap_or_else(|error| panic!("{mode:?} {pos} {length} of {size}: {error}"));
        match mode {
            Allocate | Zero if end > size => model.resize(end, 0),
            Collapse => drop(model.drain(start..end)),
            Insert => drop(model.splice(start..start, std::iter::repeat_n(0, end - start))),
            _ => {}
        }
        if matches!(mode, Zero | ZeroKeepSize | Punch) {
            let end = end.min(model.len());
            model[start.min(end)..end].fill(0);
        }
        self.check_size(at);
    }

    #[track_caller]
    fn check_size(&self, at: usize) {
        let (file, model) = &self.files[at];
        assert_eq!(file.size(), model.len() as u64, "{}", self.paths[at]);
    }

    #[track_caller]
    pub fn check(&self) {
        for (at, (file, model)) in self.files.iter().enumerate() {
            self.check_size(at);
            assert_same_bytes(model, &read_all(file));
        }
    }

    pub fn sync_all(&self) {
        self.files.iter().for_each(|(file, _)| file.sync_all().unwrap());
    }

    pub fn models(&self) -> Vec<Vec<u8>> {
        self.files.iter().map(|(_, model)| model.clone()).collect()
    }

    /// Closes the volume and returns its device.
    pub fn close(self) -> Arc<MemoryDevice> {
        drop(self.files);
        self.volume.close().unwrap();
        self.device
    }

    /// Syncs the files, then checks the volume as a crash leaves it (recovered by e2fsck and by us) and after closing
    /// it.
    pub fn end(self, what: &str, journaled: bool) {
        let (paths, scratch) = (self.paths, Scratch::new(64 << 20));
        let path = scratch.file("end.img");
        self.check();
        self.sync_all();
        let (models, dirty) = (self.models(), Image::of(&*self.device));
        dirty.save(&path);
        let repaired = oracle::e2fsck(&path, &["-fy"]);
        assert!(repaired.status < 2, "{what}: {repaired:?}");
        oracle::e2fsck_clean(&path);
        assert_eq!(contents(paths, Image::load(&path).device()), models, "{what}: recovered by e2fsck");
        let recovered = dirty.device();
        assert_eq!(contents(paths, recovered.clone()), models, "{what}: recovered");
        if journaled {
            Image::of(&*recovered).save(&path);
            oracle::e2fsck_clean(&path);
        }
        let device = self.close();
        Image::of(&*device).save(&path);
        oracle::e2fsck_clean(&path);
        assert_eq!(contents(paths, device), models, "{what}: closed");
    }
}

/// The contents of files on a device, which is opened for writing and closed again.
pub fn contents(paths: &[&str], device: Arc<dyn Device>) -> Vec<Vec<u8>> {
    let volume = open_rw(device);
    let read = |path: &&str| read_all(&volume.open_file(*path, read_only()).unwrap());
    let contents = paths.iter().map(read).collect();
    volume.close().unwrap();
    contents
}

/// Writes into a model.
pub fn put(model: &mut Vec<u8>, pos: u64, bytes: &[u8]) {
    let end = pos as usize + bytes.len();
    model.resize(model.len().max(end), 0);
    model[pos as usize..end].copy_from_slice(bytes);
}
