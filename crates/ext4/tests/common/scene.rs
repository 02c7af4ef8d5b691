//! A volume under change and a model of it in memory. Each change is announced before it is made, and each
//! acknowledgement is recorded after it.

use super::ledger::Mark;
use super::{assert_same_bytes, buffered, patterned, read_all};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use uext4::{Error, Fallocate, File, OpenOptions, QueueOptions, Replacement, Volume, WriteFlags};
use uext4_testkit::Rng;
use uext4_testkit::fixture::pattern;

/// Receives the marks.
pub type Teller = Arc<dyn Fn(Mark) + Send + Sync>;

/// A created file, which may have lost its name.
pub struct Made {
    pub file: File,
    pub bytes: Vec<u8>,
}

/// A volume and its model: see the module.
pub struct Scene {
    pub volume: Volume,
    /// Set if a test collects marks.
    pub teller: Option<Teller>,
    /// Files with a name.
    pub files: BTreeMap<String, Made>,
    /// Open files that lost their name.
    pub nameless: Vec<Made>,
    pub rng: Rng,
    /// Number of the latest pattern written.
    pub number: u64,
    /// The operations so far.
    pub operations: u64,
    /// Files that existed at the beginning.
    pub base: Vec<Mark>,
}

impl Scene {
    pub fn new(volume: Volume, teller: Option<Teller>, seed: u64) -> Scene {
        let (files, nameless, rng) = (BTreeMap::new(), Vec::new(), Rng::new(seed));
        let (number, base) = ((seed << 32) + 1000, Vec::new());
        Scene { volume, teller, files, nameless, rng, number, operations: 0, base }
    }

    /// Continues with the same files, which are durable, on this volume, with marks from now on.
    pub fn reopened(self, volume: Volume, teller: Teller) -> Scene {
        let Scene { files, rng, number, operations, .. } = self;
        let (teller, nameless) = (Some(teller), Vec::new());
        let open = |(path, made): (String, Made)| {
            let file = volume.open_file(&path, buffered()).unwrap();
            (path, Made { file, bytes: made.bytes })
        };
        let files: BTreeMap<String, Made> = files.into_iter().map(open).collect();
        let begun = |(path, made): (&String, &Made)| {
            let bytes = Some(Arc::new(made.bytes.clone()));
            let begun = Mark::Begun { path: path.clone(), bytes, moves: false };
            [begun, Mark::Durable { path: path.clone(), range: 0..u64::MAX }]
        };
        let base = files.iter().flat_map(begun).collect();
        Scene { volume, teller, files, nameless, rng, number, operations, base }
    }

    fn mark(&self, mark: Mark) {
        if let Some(teller) = &self.teller {
            teller(mark);
        }
    }

    /// Announces that a file is about to have the contents in the model.
    fn say(&self, path: &str, moves: bool) {
        if self.teller.is_some() {
            let bytes = self.files.get(path).map(|made| Arc::new(made.bytes.clone()));
            self.mark(Mark::Begun { path: path.into(), bytes, moves });
        }
    }

    fn durable(&self, path: &str, range: Range<u64>) {
        self.mark(Mark::Durable { path: path.into(), range });
    }

    pub fn size(&self, path: &str) -> u64 {
        self.files[path].bytes.len() as u64
    }

    fn made(&mut self, path: &str) -> &mut Made {
        self.operations += 1;
        self.files.get_mut(path).unwrap()
    }

    /// Adds an existing file to the model.
    pub fn adopt(&mut self, path: &str) {
        let file = self.volume.open_file(path, buffered()).unwrap();
        let bytes = read_all(&file);
        self.files.insert(path.into(), Made { file, bytes });
    }

    /// Creates an empty file.
    pub fn create(&mut self, path: &str) {
        self.operations += 1;
        if self.teller.is_some() {
            let bytes = Some(Arc::new(Vec::new()));
            self.mark(Mark::Begun { path: path.into(), bytes, moves: false });
        }
        let file = self.volume.open_file(path, buffered().create_new(true)).unwrap();
        assert!(self.files.insert(path.into(), Made { file, bytes: Vec::new() }).is_none());
    }

    /// Removes a name; `keep` decides whether an open file stays open.
    pub fn remove(&mut self, path: &str, keep: bool) {
        self.operations += 1;
        let made = self.files.remove(path).unwrap();
        self.say(path, false);
        if keep {
            self.nameless.push(made);
        } else {
            drop(made);
        }
        self.volume.remove_file(path).unwrap();
    }

    /// Replaces a file, or creates it: fills a file without a name in several writes, then gives it the name. Nothing
    /// is synced. `keep` decides whether the old file stays open.
    pub fn replace(&mut self, path: &str, length: u64, keep: bool) {
        let (new, bytes) = self.replacement(path, length);
        self.mark(Mark::Replaced { path: path.into(), bytes: Arc::new(bytes.clone()) });
        let file = new.finish().unwrap_or_else(|error| panic!("{path}: {error}"));
        let old = self.files.insert(path.into(), Made { file, bytes });
        if keep {
            self.nameless.extend(old);
        }
    }

    /// A filled replacement, and its contents. Dropped, it changes nothing. Between some writes everything so far is
    /// committed, the unfinished file too.
    pub fn replacement(&mut self, path: &str, length: u64) -> (Replacement, Vec<u8>) {
        self.operations += 1;
        let new = self.volume.replace_file(path, OpenOptions::new()).unwrap();
        let mut whole = vec![0; length as usize];
        for pos in (0..length).step_by(6144) {
            self.number += 1;
            let bytes = patterned(self.number, pos, (length - pos).min(6144) as usize);
            new.file().write_any_at(&bytes, pos, WriteFlags::empty()).unwrap();
            whole[pos as usize..][..bytes.len()].copy_from_slice(&bytes);
            if self.rng.below(3) == 0 {
                self.commit(&[]);
            }
        }
        (new, whole)
    }

    /// Updates the model for the next write.
    fn next_bytes(&mut self, path: &str, pos: u64, length: u64) -> uext4::Buffer {
        self.number += 1;
        let bytes = patterned(self.number, pos, length as usize);
        let model = &mut self.made(path).bytes;
        let end = (pos + length) as usize;
        model.resize(model.len().max(end), 0);
        model[pos as usize..end].copy_from_slice(&bytes);
        self.say(path, false);
        bytes
    }

    /// Writes a pattern; directly if position and length are aligned.
    pub fn write(&mut self, path: &str, pos: u64, length: u64, flags: WriteFlags) {
        assert!(self.try_write(path, pos, length, flags), "{path}: no room");
    }

    /// The same on a volume that may be full. Returns false if it is, and then the file is unchanged.
    pub fn try_write(&mut self, path: &str, pos: u64, length: u64, flags: WriteFlags) -> bool {
        let before = self.files[path].bytes.clone();
        let bytes = self.next_bytes(path, pos, length);
        let file = &self.files[path].file;
        let written = match (pos | length) % 512 {
            0 => file.write_at_with(&bytes, pos, flags),
            _ => file.write_any_at(&bytes, pos, flags),
        };
        match written {
            Ok(count) => assert_eq!(count as u64, length),
            Err(Error::NoSpace) => {
                self.made(path).bytes = before;
                self.say(path, false);
                return false;
            }
            Err(error) => panic!("{path}: {length} bytes at {pos}: {error}"),
        }
        if !flags.is_empty() {
            self.durable(path, pos..pos + length);
        }
        true
    }

    pub fn append(&mut self, path: &str, length: u64, flags: WriteFlags) {
        self.write(path, self.size(path), length, flags);
    }

    /// Writes of several files, noted before, with few requests of the device.
    pub fn together(&mut self, writes: &[(&str, u64, u64)]) {
        let bytes: Vec<_> =
            writes.iter().map(|&(path, pos, length)| self.next_bytes(path, pos, length)).collect();
        let writes: Vec<_> = writes
            .iter()
            .zip(&bytes)
            .map(|(&(path, pos, length), bytes)| (&self.files[path].file, &bytes[..length as usize], pos))
            .collect();
        for (write, result) in writes.iter().zip(self.volume.write_noted_together(&writes)) {
            result.unwrap_or_else(|error| panic!("{} bytes at {}: {error}", write.1.len(), write.2));
        }
    }

    /// Several writes at once through a queue, in order of completion.
    pub fn queued(&mut self, path: &str, writes: &[(u64, u64)], flags: WriteFlags) {
        let mut queue = self.volume.queue(QueueOptions::depth(8)).unwrap();
        let slot = queue.attach(&self.files[path].file).unwrap();
        let mut sent: BTreeMap<u64, Range<u64>> = BTreeMap::new();
        for &(pos, length) in writes {
            let mut buffer = queue.buffer(length as usize).unwrap();
            self.next_bytes(path, pos, length);
            pattern(self.number, pos, &mut buffer);
            queue.write(slot, pos, buffer, flags, self.number).unwrap();
            sent.insert(self.number, pos..pos + length);
        }
        while !sent.is_empty() {
            let done: Vec<_> = queue.wait(1).unwrap().collect();
            for done in done {
                let range = sent.remove(&done.tag).unwrap();
                assert_eq!(done.result.unwrap() as u64, range.end - range.start, "{path}");
                if !flags.is_empty() {
                    self.durable(path, range);
                }
            }
        }
    }

    /// Before a file gets shorter, its last block may already have zeros past the new end, as in Linux.
    pub fn set_len(&mut self, path: &str, size: u64) {
        let block = u64::from(self.volume.block_size());
        let model = &mut self.made(path).bytes;
        let whole = (size.next_multiple_of(block) as usize).min(model.len());
        if (size as usize) < whole {
            model[size as usize..whole].fill(0);
            self.say(path, false);
        }
        self.made(path).bytes.resize(size as usize, 0);
        self.say(path, false);
        self.files[path].file.set_len(size).unwrap();
    }

    /// Opens a file with truncation.
    pub fn empty(&mut self, path: &str) {
        self.made(path).bytes.clear();
        self.say(path, false);
        let open = OpenOptions::new().write(true).truncate(true);
        drop(self.volume.open_file(path, open).unwrap());
    }

    /// Any mode. Modes that move blocks run between two syncs, since earlier and later writes have different places.
    pub fn fallocate(&mut self, path: &str, mode: Fallocate, pos: u64, length: u64) {
        use Fallocate::{Allocate, Collapse, Insert, Punch, Zero, ZeroKeepSize};
        let moves = self.teller.is_some() && matches!(mode, Collapse | Insert);
        if moves {
            self.sync(path);
        }
        let model = &mut self.made(path).bytes;
        let (start, end) = (pos as usize, (pos + length) as usize);
        match mode {
            Collapse => drop(model.drain(start..end)),
            Insert => drop(model.splice(start..start, std::iter::repeat_n(0, end - start))),
            Allocate | Zero if end > model.len() => model.resize(end, 0),
            _ => {}
        }
        if matches!(mode, Zero | ZeroKeepSize | Punch) {
            let end = end.min(model.len());
            model[start.min(end)..end].fill(0);
        }
        self.say(path, moves);
        let done = self.files[path].file.fallocate(mode, pos, length);
        done.unwrap_or_else(|error| panic!("{path}: {mode:?} {pos} {length}: {error}"));
        if moves {
            self.sync(path);
        }
    }

    pub fn prepare(&mut self, path: &str, size: u64) {
        let model = &mut self.made(path).bytes;
        model.resize(model.len().max(size as usize), 0);
        self.say(path, false);
        self.files[path].file.prepare(size).unwrap();
    }

    /// `fdatasync`, or `fsync` every third time.
    pub fn sync(&mut self, path: &str) {
        let all = self.rng.below(3) == 0;
        let file = &self.made(path).file;
        if all { file.sync_all() } else { file.sync_data() }.unwrap();
        self.durable(path, 0..u64::MAX);
    }

    /// Makes all names created and removed so far durable: a commit includes everything before it.
    pub fn commit(&mut self, gone: &[&str]) {
        if !self.files.contains_key("/beacon") {
            self.create("/beacon");
        }
        let there: Vec<String> = self.files.keys().cloned().collect();
        self.append("/beacon", 512, WriteFlags::DSYNC);
        for path in there.iter().map(String::as_str).chain(gone.iter().copied()) {
            self.mark(Mark::Named { path: path.into() });
        }
    }

    /// Checks that the files match the model.
    pub fn check(&self) {
        for (path, made) in &self.files {
            assert_eq!(made.file.size(), made.bytes.len() as u64, "{path}");
            assert_same_bytes(&made.bytes, &read_all(&made.file));
        }
        for made in &self.nameless {
            assert_same_bytes(&made.bytes, &read_all(&made.file));
        }
    }
}
