//! Writing, resizing and growing files inside their inode, against a model in memory; and what makes them leave it.

use crate::common;

use common::{
    Image, aligned, assert_clean, assert_same_bytes, open_rw, patterned, read_all, read_only, read_write,
};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use uext4::device::{Device, Op};
use uext4::{
    Counter, Error, Fallocate, File, OpenOptions, QueueOptions, QuotaKind, QuotaLimits, ReadFlags, Volume,
    VolumeOptions, WriteFlags, XattrFlags,
};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};
use uext4_testkit::{Need, Rng, VolumeBuilder, needs};

const PLAIN: WriteFlags = WriteFlags::empty();

/// Kinds of volumes.
const VOLUMES: [&[&str]; 8] = [
    &["-b", "4096", "-I", "256"],
    &["-b", "1024", "-I", "512"],
    &["-b", "4096", "-I", "1024"],
    &["-b", "1024", "-I", "256", "-O", "^has_journal"],
    &["-b", "1024", "-I", "512", "-O", "^extent,^64bit"],
    &["-b", "1024", "-I", "256", "-O", "bigalloc", "-C", "8192"],
    &["-b", "1024", "-I", "256", "-O", "quota,project"],
    &["-b", "1024", "-I", "1024", "-O", "^metadata_csum,ea_inode"],
];

fn made(args: &[&str]) -> Image {
    let all = ["-O", "inline_data", "-N", "512"].iter().chain(args).copied();
    Image::load(VolumeBuilder::new(16 << 20).args(all).build().path())
}

fn create(volume: &Volume, path: &str) -> File {
    volume.open_file(path, read_write().create_new(true)).unwrap()
}

/// A file of the model.
struct Made {
    file: File,
    bytes: Vec<u8>,
    attributes: BTreeMap<String, Vec<u8>>,
}

struct Walk {
    volume: Volume,
    files: BTreeMap<String, Made>,
    rng: Rng,
    number: u64,
    /// Changes after which a file was inline.
    inside: u64,
}

impl Walk {
    fn path(&mut self) -> String {
        format!("/file-{}", self.rng.below(24))
    }

    fn step(&mut self) {
        let path = self.path();
        let kind = self.rng.below(40);
        if !self.files.contains_key(&path) {
            let file = create(&self.volume, &path);
            self.files.insert(path, Made { file, bytes: Vec::new(), attributes: BTreeMap::new() });
            return;
        }
        // Those that left their inode make room for others.
        if kind < if self.files[&path].file.is_inline() { 2 } else { 14 } {
            self.files.remove(&path);
            return self.volume.remove_file(&path).unwrap();
        }
        let small = self.rng.below(20) > 0;
        let (pos, length) = match small {
            true => (self.rng.below(70), 1 + self.rng.below(60)),
            false => (self.rng.below(3000), 1 + self.rng.below(3000)),
        };
        let flags = *self.rng.pick(&[PLAIN, PLAIN, PLAIN, WriteFlags::DSYNC, WriteFlags::SYNC]);
        self.number += 1;
        match kind {
            3..16 => self.write(&path, pos, length, flags),
            16..20 => {
                let end = self.files[&path].bytes.len() as u64;
                self.write(&path, end, length, flags);
            }
            20..22 => self.write(&path, pos / 512 * 512, 512, flags),
            22 => self.queued(&path, flags),
            23..27 => self.resize(&path, pos),
            27 => self.empty(&path),
            28 => self.change_space(&path, pos, length),
            29..36 => self.set_attribute(&path),
            36 => {
                let made = self.files.get_mut(&path).unwrap();
                made.file = self.volume.open_file(&path, read_write()).unwrap();
            }
            _ => {}
        }
        self.check(&path);
    }

    fn write(&mut self, path: &str, pos: u64, length: u64, flags: WriteFlags) {
        let data = patterned(self.number, pos, length as usize);
        let made = self.files.get_mut(path).unwrap();
        let written = match (pos | length).is_multiple_of(512) {
            true => made.file.write_at_with(&data, pos, flags),
            false => made.file.write_any_at(&data, pos, flags),
        };
        assert_eq!(written.unwrap() as u64, length, "{path}");
        made.put(pos, &data);
    }

    fn queued(&mut self, path: &str, flags: WriteFlags) {
        let made = self.files.get_mut(path).unwrap();
        let mut queue = self.volume.queue(QueueOptions::depth(4)).unwrap();
        let slot = queue.attach(&made.file).unwrap();
        let length = 512 * (1 + self.number % 3);
        let data = patterned(self.number, 0, length as usize);
        let mut buffer = queue.buffer(length as usize).unwrap();
        buffer.copy_from_slice(&data);
        queue.write(slot, 0, buffer, flags, 1).unwrap();
        let done = queue.wait(1).unwrap().next().unwrap();
        assert_eq!(done.result.unwrap() as u64, length);
        queue.read(slot, 0, queue.buffer(512).unwrap(), 2).unwrap();
        let done = queue.wait(1).unwrap().next().unwrap();
        assert_eq!(*done.result.as_ref().unwrap(), 512);
        assert_same_bytes(&data[..512], &done.into_buffer().unwrap());
        queue.sync_data(slot, 3).unwrap();
        assert!(queue.wait(1).unwrap().next().unwrap().result.is_ok());
        made.put(0, &data);
    }

    fn resize(&mut self, path: &str, size: u64) {
        let made = self.files.get_mut(path).unwrap();
        made.file.set_len(size).unwrap();
        made.bytes.resize(size as usize, 0);
    }

    fn empty(&mut self, path: &str) {
        let made = self.files.get_mut(path).unwrap();
        made.file = self.volume.open_file(path, read_write().truncate(true)).unwrap();
        made.bytes.clear();
    }

    fn change_space(&mut self, path: &str, pos: u64, length: u64) {
        use Fallocate::{Allocate, KeepSize, Punch, Zero, ZeroKeepSize};
        let mode = *self.rng.pick(&[Allocate, KeepSize, Punch, Punch, Zero, ZeroKeepSize]);
        let made = self.files.get_mut(path).unwrap();
        if self.number.is_multiple_of(3) {
            let size = made.bytes.len() as u64 + self.number % 100;
            made.file.prepare(size).unwrap();
            made.bytes.resize(size as usize, 0);
            return;
        }
        match made.file.fallocate(mode, pos, length) {
            Ok(()) => {}
            // Block pointers have no unwritten state. The file may have left its inode.
            Err(Error::Incompatible { .. }) => return,
            Err(error) => panic!("{path}: {mode:?}: {error}"),
        }
        let nothing = mode == Punch && pos >= made.bytes.len() as u64;
        assert!(nothing || !made.file.is_inline(), "as Linux: {mode:?}");
        let end = (pos + length) as usize;
        if matches!(mode, Allocate | Zero) {
            made.bytes.resize(made.bytes.len().max(end), 0);
        }
        if matches!(mode, Punch | Zero | ZeroKeepSize) {
            let size = made.bytes.len();
            made.bytes[(pos as usize).min(size)..end.min(size)].fill(0);
        }
    }

    fn set_attribute(&mut self, path: &str) {
        let name = format!("user.{}", "n".repeat(1 + self.rng.below(3) as usize));
        let made = self.files.get_mut(path).unwrap();
        if self.number.is_multiple_of(3) {
            let removed = self.volume.remove_xattr(path, &name, true);
            assert_eq!(removed.is_ok(), made.attributes.remove(&name).is_some(), "{path}");
            return;
        }
        let value = patterned(self.number, 0, self.rng.below(110) as usize).to_vec();
        self.volume.set_xattr(path, &name, &value, XattrFlags::empty(), true).unwrap();
        made.attributes.insert(name, value);
    }

    fn check(&mut self, path: &str) {
        let made = &self.files[path];
        assert_same_bytes(&made.bytes, &read_all(&made.file));
        for (name, value) in &made.attributes {
            assert_same_bytes(value, &self.volume.xattr(path, name, true).unwrap());
        }
        self.inside += u64::from(made.file.is_inline());
        let data = made.file.seek_data(0).unwrap();
        assert!(!made.file.is_inline() || data == (!made.bytes.is_empty()).then_some(0));
    }

    /// Opens the device anew: what is read there is the model.
    fn reopen(&mut self, device: Arc<dyn Device>) {
        self.files.values().for_each(|made| made.file.sync_all().unwrap());
        let others = std::mem::take(&mut self.files);
        let others = others.into_iter().map(|(path, made)| (path, made.bytes, made.attributes));
        let others: Vec<_> = others.collect();
        self.volume.clone().close().unwrap();
        assert_clean(&*device);
        self.volume = open_rw(device);
        for (path, bytes, attributes) in others {
            let file = self.volume.open_file(&path, read_write()).unwrap();
            self.files.insert(path.clone(), Made { file, bytes, attributes });
            self.check(&path);
        }
    }
}

impl Made {
    fn put(&mut self, pos: u64, data: &[u8]) {
        let end = pos as usize + data.len();
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.bytes[pos as usize..end].copy_from_slice(data);
    }
}

#[test]
fn random_changes_of_inline_files_match_a_model() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (number, args) in VOLUMES.into_iter().enumerate() {
        println!("{args:?}");
        let device = made(args).device();
        let volume = open_rw(device.clone());
        let (files, rng) = (BTreeMap::new(), Rng::new(number as u64));
        let mut walk = Walk { volume, files, rng, number: 0, inside: 0 };
        for _ in 0..6 {
            for _ in 0..400 {
                walk.step();
            }
            walk.reopen(device.clone());
        }
        assert!(walk.inside > 400, "{} of the changes left a file inline", walk.inside);
    }
}

/// As much as fits beside the attributes, for each size of inodes and attribute: the limits are those of Linux.
#[test]
fn root_new_files_are_inline_as_in_linux() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let xattr = rustix::fs::XattrFlags::empty();
    for (size, most) in [("256", 240), ("512", 480), ("1024", 1000)] {
        let args = ["-O", "inline_data", "-I", size, "-b", "4096", "-N", "8192"];
        let (ours, theirs) = (
            VolumeBuilder::new(64 << 20).args(args).build(),
            VolumeBuilder::new(64 << 20).args(args).build(),
        );
        let files: Vec<(usize, usize)> = [0, 1, 9, 40, 100]
            .into_iter()
            .flat_map(|attribute| {
                (0..most).step_by(if attribute == 0 { 1 } else { 3 }).map(move |n| (attribute, n))
            })
            .collect();
        let name = |(attribute, length): (usize, usize)| format!("{attribute}-{length}");
        theirs.with_kernel(|root| {
            for file in &files {
                let path = root.join(name(*file));
                let made = std::fs::File::create_new(&path).unwrap();
                if file.0 > 0 {
                    rustix::fs::setxattr(&path, "user.a", &vec![b'v'; file.0], xattr).unwrap();
                }
                made.write_all_at(&patterned(7, 0, file.1), 0).unwrap();
            }
        });
        let here = Volume::open(ours.path().to_str().unwrap(), VolumeOptions::read_write()).unwrap();
        let there = Volume::open(theirs.path().to_str().unwrap(), VolumeOptions::read_only()).unwrap();
        for file in &files {
            let path = format!("/{}", name(*file));
            let made = create(&here, &path);
            if file.0 > 0 {
                here.set_xattr(&path, "user.a", vec![b'v'; file.0], XattrFlags::empty(), true).unwrap();
            }
            made.write_any_at(&patterned(7, 0, file.1), 0, PLAIN).unwrap();
            let (one, other) = (here.metadata(&path).unwrap(), there.metadata(&path).unwrap());
            assert_eq!(one.flags, other.flags, "{size} {path}");
            assert_eq!((one.size, one.blocks), (other.size, other.blocks), "{size} {path}");
        }
        here.close().unwrap();
        ours.assert_clean();
        // And the kernel goes on with ours: it reads, overwrites and appends to them, and makes new ones.
        ours.with_kernel(|root| {
            for (number, file) in files.iter().enumerate() {
                let path = root.join(name(*file));
                assert_same_bytes(&patterned(7, 0, file.1), &std::fs::read(&path).unwrap());
                let written = std::fs::File::options().write(true).open(&path).unwrap();
                match number % 3 {
                    0 => written.write_all_at(b"kernel", file.1 as u64).unwrap(),
                    1 => written.write_all_at(b"kernel", file.1 as u64 / 2).unwrap(),
                    _ => std::fs::remove_file(&path).unwrap(),
                }
            }
        });
        let here = Volume::open(ours.path().to_str().unwrap(), VolumeOptions::read_only()).unwrap();
        for (number, file) in files.iter().enumerate().filter(|(number, _)| number % 3 < 2) {
            let (mut bytes, at) = (patterned(7, 0, file.1).to_vec(), file.1 / [1, 2][number % 3]);
            bytes.resize(bytes.len().max(at + 6), 0);
            bytes[at..at + 6].copy_from_slice(b"kernel");
            assert_same_bytes(&bytes, &here.read(format!("/{}", name(*file))).unwrap());
        }
    }
}

/// What every open file of the inode sees when the contents move out, by each way out.
#[test]
fn a_file_that_left_its_inode_is_an_ordinary_one_for_everybody() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = made(VOLUMES[0]).device();
    let volume = open_rw(device.clone());
    let ways: [&dyn Fn(&File); 7] = [
        &|file| assert_eq!(file.write_any_at(&[b'x'; 300], 20, PLAIN).unwrap(), 300),
        &|file| assert_eq!(file.write_at(&aligned(8192), 4096).unwrap(), 8192),
        &|file| file.set_len(100_000).unwrap(),
        &|file| file.fallocate(Fallocate::Allocate, 0, 10_000).unwrap(),
        &|file| file.fallocate(Fallocate::Punch, 10, 20).unwrap(),
        &|file| file.fallocate(Fallocate::ZeroKeepSize, 0, 9000).unwrap(),
        &|file| file.prepare(50_000).unwrap(),
    ];
    for (number, way) in ways.into_iter().enumerate() {
        let path = format!("/{number}");
        let file = create(&volume, &path);
        file.write_any_at(b"inside the inode", 0, PLAIN).unwrap();
        let other = volume.open_file(&path, read_write()).unwrap();
        let mut queue = volume.queue(QueueOptions::depth(4)).unwrap();
        let slot = queue.attach(&other).unwrap();
        assert!(file.is_inline() && other.is_inline());
        way(&file);
        assert!(!file.is_inline() && !other.is_inline(), "{number}");
        let bytes = read_all(&file);
        assert_same_bytes(&bytes, &read_all(&other));
        assert!(number == 4 || number == 5 || bytes.starts_with(b"inside the inode"), "{number}");
        // The queue that was attached before finds it on the device.
        queue.read(slot, 0, queue.buffer(4096).unwrap(), 1).unwrap();
        let read = queue.wait(1).unwrap().next().unwrap();
        let length = *read.result.as_ref().unwrap();
        assert_same_bytes(&bytes[..length], &read.into_buffer().unwrap()[..length]);
        let mut buffer = queue.buffer(4096).unwrap();
        buffer.fill(b'q');
        queue.write(slot, 0, buffer, WriteFlags::DSYNC, 2).unwrap();
        assert!(queue.wait(1).unwrap().next().unwrap().result.is_ok());
        assert!(read_all(&file).starts_with(&[b'q'; 4096]));
        drop(queue);
    }
    volume.close().unwrap();
    assert_clean(&*device);
}

/// A full volume has no block for contents that grow: nothing changes. Inside the inode there is room.
#[test]
fn a_full_volume_leaves_inline_files_as_they_are() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in [VOLUMES[0], VOLUMES[4], VOLUMES[5]] {
        let device = made(args).device();
        let volume = common::open_to_the_last(device.clone());
        let file = create(&volume, "/file");
        file.write_any_at(b"as it was", 0, PLAIN).unwrap();
        // The directory has its blocks.
        let small: Vec<File> = (0..60).map(|number| create(&volume, &format!("/{number}"))).collect();
        small.iter().for_each(|file| assert_eq!(file.write_any_at(b"s", 0, PLAIN).unwrap(), 1));
        let filler = create(&volume, "/filler");
        let mut size = 0;
        for step in [1 << 20, 1 << 16, 1 << 13, 1 << 10] {
            let data = vec![b'f'; step];
            while filler.write_any_at(&data, size, PLAIN).is_ok() {
                size += step as u64;
            }
        }
        // The last blocks, which appends to a long file leave for its map.
        let full = small.iter().find_map(|file| file.write_any_at(&[b's'; 500], 0, PLAIN).err());
        assert!(matches!(full, Some(Error::NoSpace)), "{full:?}");
        let grow: [&dyn Fn() -> Result<(), Error>; 4] = [
            &|| file.write_any_at(&[b'x'; 500], 9, PLAIN).map(drop),
            &|| file.write_at(&aligned(4096), 0).map(drop),
            &|| file.set_len(5000),
            &|| file.fallocate(Fallocate::Punch, 0, 3),
        ];
        for (number, grow) in grow.into_iter().enumerate() {
            let failed = grow();
            assert!(matches!(failed, Err(Error::NoSpace)), "{args:?} {number}: {failed:?}");
            assert!(file.is_inline());
            assert_eq!(read_all(&file), b"as it was");
        }
        file.write_any_at(b", and more", 9, WriteFlags::SYNC).unwrap();
        file.set_len(100).unwrap();
        file.set_len(19).unwrap();
        assert_eq!(read_all(&file), b"as it was, and more");
        volume.remove_file("/filler").unwrap();
        drop((filler, small));
        file.write_any_at(&[b'x'; 500], 19, PLAIN).unwrap();
        assert!(!file.is_inline());
        assert!(read_all(&file).starts_with(b"as it was, and morexx"));
        volume.clone().close().unwrap();
        assert_clean(&*device);
    }
}

/// If the block cannot be written, the contents stay where they are, and so does the free space.
#[test]
fn a_failed_move_changes_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let memory = made(VOLUMES[1]).device();
    let device = FaultDevice::new(memory.clone());
    let faults = device.handle();
    let volume = open_rw(Arc::new(device));
    let file = create(&volume, "/file");
    file.write_any_at(b"as it was", 0, WriteFlags::SYNC).unwrap();
    let free = volume.statfs().unwrap().free;
    faults.arm(Fault::nth(FaultOn::Op(Op::Write), 0));
    assert!(file.write_any_at(&[b'x'; 3000], 0, PLAIN).is_err());
    assert_eq!(faults.fired(), 1);
    faults.clear();
    assert!(file.is_inline());
    assert_eq!(read_all(&file), b"as it was");
    file.write_any_at(&[b'x'; 3000], 0, WriteFlags::SYNC).unwrap();
    assert_eq!(read_all(&file), [b'x'; 3000]);
    file.set_len(0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(volume.statfs().unwrap().free, free);
    volume.close().unwrap();
    assert_clean(&*memory);
}

/// What the owner uses grows by a block when the contents move to one, and the limit refuses it.
#[test]
fn quota_counts_the_block_that_contents_move_to() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = made(VOLUMES[6]).device();
    let volume = open_rw(device.clone());
    let new = || read_write().create_new(true).owner(77, 77).limited(true);
    let file = volume.open_file("/file", new()).unwrap();
    let used = || volume.quota(QuotaKind::User, 77).unwrap().unwrap().bytes;
    file.write_any_at(b"inside", 0, PLAIN).unwrap();
    assert_eq!(used(), 0);
    let limits = QuotaLimits { blocks_hard: 1, ..QuotaLimits::default() };
    volume.set_quota(QuotaKind::User, 77, &limits).unwrap();
    file.write_any_at(&[b'x'; 500], 0, PLAIN).unwrap();
    assert_eq!((file.is_inline(), used()), (false, 1024));
    let more = volume.open_file("/more", new()).unwrap();
    more.write_any_at(b"inside", 0, PLAIN).unwrap();
    let failed = more.write_any_at(&[b'x'; 500], 0, PLAIN);
    assert!(matches!(failed, Err(Error::QuotaExceeded { .. })), "{failed:?}");
    assert_eq!((more.is_inline(), read_all(&more)), (true, b"inside".to_vec()));
    file.set_len(0).unwrap();
    more.write_any_at(&[b'x'; 500], 0, PLAIN).unwrap();
    assert_eq!((more.is_inline(), used()), (false, 1024));
    drop((file, more));
    volume.close().unwrap();
    assert_clean(&*device);
}

/// Readers see the contents before or after each write, while files leave their inode, are removed and made anew.
#[test]
fn readers_see_whole_writes_while_files_leave_their_inode() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = made(VOLUMES[1]).device();
    let volume = open_rw(device.clone());
    let done = AtomicBool::new(false);
    for round in 0..60_u64 {
        let path = format!("/file-{}", round % 5);
        let _gone = volume.remove_file(&path);
        let file = create(&volume, &path);
        file.write_any_at(&[1; 100], 0, PLAIN).unwrap();
        done.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for direct in [false, true] {
                let (file, done) = (volume.open_file(&path, read_only()).unwrap(), &done);
                scope.spawn(move || {
                    let (mut buf, mut last) = (aligned(512), 1);
                    while !done.load(Ordering::Relaxed) {
                        let read = match direct {
                            true => file.read_at(&mut buf, 0).unwrap(),
                            false => file.read_any_at(&mut buf[..200], 0).unwrap(),
                        };
                        assert!(read == 100 || read >= 200, "{read} bytes");
                        assert!(buf[..100].iter().all(|byte| *byte == buf[0]), "{:?}", &buf[..100]);
                        assert!(buf[0] >= last, "{} after {last}", buf[0]);
                        last = buf[0];
                    }
                });
            }
            for byte in 2..20 {
                file.write_any_at(&[byte; 100], 0, PLAIN).unwrap();
            }
            let out = [20; 3000];
            match round % 3 {
                0 => assert_eq!(file.write_any_at(&out, 0, PLAIN).unwrap(), 3000),
                1 => file.set_len(3000).unwrap(),
                _ => file.fallocate(Fallocate::Allocate, 0, 3000).unwrap(),
            }
            for byte in 21..30 {
                file.write_any_at(&[byte; 100], 0, PLAIN).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(!file.is_inline());
    }
    volume.close().unwrap();
    assert_clean(&*device);
}

/// Many writers to one file: whichever moves the contents out, no write is lost.
#[test]
fn writers_beside_each_other_lose_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = made(VOLUMES[1]).device();
    let volume = open_rw(device.clone());
    for round in 0..40 {
        let path = format!("/{round}");
        drop(create(&volume, &path));
        std::thread::scope(|scope| {
            for part in 0..4_u64 {
                let file = volume.open_file(&path, read_write()).unwrap();
                let volume = &volume;
                let path = &path;
                scope.spawn(move || {
                    for step in 0..20 {
                        let pos = (step * 4 + part) * 8;
                        file.write_any_at(&[part as u8 + 1; 8], pos, PLAIN).unwrap();
                        if step == 10 {
                            let value = vec![b'v'; 60];
                            let name = format!("user.{part}");
                            volume.set_xattr(path, &name, &value, XattrFlags::empty(), true).unwrap();
                        }
                    }
                });
            }
        });
        let bytes = volume.read(&path).unwrap();
        let expected: Vec<u8> = (0..640).map(|at| (at / 8 % 4 + 1) as u8).collect();
        assert_same_bytes(&expected, &bytes);
    }
    volume.close().unwrap();
    assert_clean(&*device);
}

/// Requests that may not wait, privileges, and the counters.
#[test]
fn inline_requests_keep_the_rules_of_others() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = made(VOLUMES[0]).device();
    let volume = open_rw(device.clone());
    let file = create(&volume, "/file");
    let counted = |counter| volume.stats().get(counter);
    file.write_any_at(b"inside", 0, PLAIN).unwrap();
    assert_eq!((counted(Counter::InlineWrites), counted(Counter::BytesWritten)), (1, 0));
    let refused = file.write_any_at(b"x", 0, WriteFlags::NOWAIT);
    assert!(matches!(refused, Err(Error::WouldBlock(_))), "{refused:?}");
    let mut buf = aligned(512);
    assert_eq!(file.read_at_with(&mut buf, 0, ReadFlags::NOWAIT).unwrap(), 6);
    assert_eq!(file.write_at(&buf[1..513.min(buf.len())], 0).unwrap_err().errno(), 22, "misaligned");
    assert_eq!(file.write_any_at(b"", 3, PLAIN).unwrap(), 0);
    assert!(matches!(
        volume.open_file("/file", read_only()).unwrap().write_any_at(b"x", 0, PLAIN),
        Err(Error::BadMode(_))
    ));
    // A write strips privileges, and so does a new size.
    for change in [0, 1] {
        volume.set_permissions("/file", 0o6755, true).unwrap();
        let file = volume.open_file("/file", read_write()).unwrap();
        match change {
            0 => assert_eq!(file.write_any_at(b"x", 0, PLAIN).unwrap(), 1),
            _ => file.set_len(5).unwrap(),
        }
        assert_eq!((file.metadata().mode, file.is_inline()), (0o755, true));
    }
    let before = file.metadata().modified;
    std::thread::sleep(std::time::Duration::from_millis(20));
    file.write_any_at(b"y", 0, PLAIN).unwrap();
    assert!(file.metadata().modified > before, "the write counts as one");
    // An append-only open, and durable writes: each commits.
    let tail = volume.open_file("/file", OpenOptions::new().append(true)).unwrap();
    let commits = counted(Counter::Commits);
    assert_eq!(tail.append(b"tail", WriteFlags::DSYNC).unwrap(), 5);
    assert_eq!(tail.append(b"end", WriteFlags::SYNC).unwrap(), 9);
    assert_eq!(counted(Counter::Commits), commits + 2);
    assert_eq!(read_all(&file), b"ynsidtailend");
    // Found again after a crash.
    let crashed = open_rw(Image::of(&*device).device());
    assert_eq!(crashed.read("/file").unwrap(), b"ynsidtailend");
    assert!(crashed.open_file("/file", read_only()).unwrap().is_inline());
    drop((tail, file));
    volume.close().unwrap();
    assert_clean(&*device);
}
