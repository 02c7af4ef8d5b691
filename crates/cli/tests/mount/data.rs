//! Contents of files through a mount, against a model: cached and direct, mapped, truncated, allocated and punched.

use super::{Mounted, NEEDS, drop_caches, volume};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use uext4::BufferPool;
use uext4_testkit::{Need, Rng, VolumeBuilder, requirement};

/// Largest size of the file.
const MOST: u64 = 3 << 20;
/// Unit of direct I/O.
const BLOCK: u64 = 4096;

/// The same file, opened in two ways, and what it must hold.
struct Pair {
    cached: File,
    direct: File,
    model: Vec<u8>,
    rng: Rng,
    pool: BufferPool,
}

impl Pair {
    /// A range inside the largest size.
    fn range(&mut self, unit: u64, most: u64) -> (u64, usize) {
        let length = self.rng.range(1..most / unit + 1) * unit;
        (self.rng.below((MOST - length) / unit + 1) * unit, length as usize)
    }

    fn write(&mut self, direct: bool) {
        let (pos, length) = if direct { self.range(BLOCK, 256 << 10) } else { self.range(1, 200_000) };
        let mut data = self.pool.take(length).unwrap();
        self.rng.fill(&mut data);
        let file = if direct { &self.direct } else { &self.cached };
        file.write_all_at(&data, pos).unwrap();
        let end = pos as usize + length;
        if end > self.model.len() {
            self.model.resize(end, 0);
        }
        self.model[pos as usize..end].copy_from_slice(&data);
    }

    fn read(&mut self, direct: bool) {
        let (pos, length) = if direct { self.range(BLOCK, 256 << 10) } else { self.range(1, 200_000) };
        let mut data = self.pool.take(length).unwrap();
        let file = if direct { &self.direct } else { &self.cached };
        let mut read = 0;
        // A direct read may be short at the end only.
        while read < length {
            match file.read_at(&mut data[read..], pos + read as u64).unwrap() {
                0 => break,
                more if direct && !(read + more).is_multiple_of(BLOCK as usize) => {
                    read += more;
                    break;
                }
                more => read += more,
            }
        }
        let expected = self.model.get(pos as usize..).unwrap_or_default();
        let expected = &expected[..length.min(expected.len())];
        assert_eq!(read, expected.len(), "direct {direct}, {length} bytes at {pos} of {}", self.model.len());
        assert!(data[..read] == *expected, "direct {direct}, {length} bytes at {pos}");
    }

    fn truncate(&mut self) {
        let size = self.rng.below(MOST);
        self.cached.set_len(size).unwrap();
        self.model.resize(size as usize, 0);
    }

    fn fallocate(&mut self) {
        let unit = *self.rng.pick(&[1, BLOCK]);
        let (pos, length) = self.range(unit, 200_000);
        let keep = FallocateFlags::KEEP_SIZE;
        let mode = *self.rng.pick(&[
            FallocateFlags::empty(),
            keep,
            FallocateFlags::PUNCH_HOLE | keep,
            FallocateFlags::ZERO_RANGE,
            FallocateFlags::ZERO_RANGE | keep,
        ]);
        rustix::fs::fallocate(&self.cached, mode, pos, length as u64).unwrap();
        let end = pos as usize + length;
        if !mode.contains(keep) && end > self.model.len() {
            self.model.resize(end, 0);
        }
        if mode.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE) {
            let end = end.min(self.model.len());
            self.model.get_mut(pos as usize..end).unwrap_or_default().fill(0);
        }
    }

    fn check(&mut self) {
        assert_eq!(self.cached.metadata().unwrap().len(), self.model.len() as u64);
        let mut all = Vec::new();
        self.cached.rewind().unwrap();
        self.cached.read_to_end(&mut all).unwrap();
        assert!(all == self.model, "the whole file differs");
    }
}

#[test]
fn root_reads_ahead_are_as_large_as_requests() {
    if !requirement::require("mount::data::ahead", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    let device = std::fs::metadata(mounted.path()).unwrap().dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let ahead = std::fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).unwrap();
    assert_eq!(ahead.trim(), "2048");
    mounted.unmount();
}

#[test]
fn root_contents_are_the_models() {
    if !requirement::require("mount::data::model", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    let path = mounted.at("file");
    let cached = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    let direct = rustix::fs::open(&path, OFlags::RDWR | OFlags::DIRECT, Mode::empty()).unwrap();
    let pool = BufferPool::new(1 << 20).unwrap();
    let mut pair = Pair { cached, direct: direct.into(), model: Vec::new(), rng: Rng::new(29), pool };
    for step in 0..1500 {
        match pair.rng.below(100) {
            0..20 => pair.write(false),
            20..40 => pair.write(true),
            40..60 => pair.read(false),
            60..80 => pair.read(true),
            80..86 => pair.truncate(),
            86..96 => pair.fallocate(),
            96..98 => pair.cached.sync_all().unwrap(),
            98 => drop_caches(),
            _ => pair.check(),
        }
        if step % 500 == 499 {
            pair.check();
        }
    }
    let model = std::mem::take(&mut pair.model);
    drop(pair);
    mounted.unmount();
    volume.assert_clean();
    volume.with_kernel(|root| assert!(std::fs::read(root.join("file")).unwrap() == model));
}

#[test]
fn root_holes_are_found_and_writes_durable() {
    if !requirement::require("mount::data::holes", &NEEDS) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    let path = mounted.at("holes");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&[1; 8192], 65536).unwrap();
    let seek = |to: SeekFrom| rustix::fs::seek(&file, to);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(65536));
    assert_eq!(seek(SeekFrom::Hole(65536)), Ok(65536 + 8192));
    assert_eq!(seek(SeekFrom::Data(65536 + 8192)), Err(Errno::NXIO));
    assert_eq!(seek(SeekFrom::Hole(1 << 21)), Err(Errno::NXIO));
    assert_eq!(seek(SeekFrom::End(-1)), Ok((1 << 20) - 1));
    // O_APPEND of several, O_SYNC and O_DSYNC, O_TRUNC.
    let appending = || File::options().append(true).open(&path).unwrap();
    let (mut one, mut two) = (appending(), appending());
    for _ in 0..10 {
        one.write_all(b"one").unwrap();
        two.write_all(b"two!").unwrap();
    }
    assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 70);
    file.seek(std::io::SeekFrom::Start(1 << 20)).unwrap();
    let mut end = String::new();
    file.read_to_string(&mut end).unwrap();
    assert_eq!(end, "onetwo!".repeat(10));
    for flag in [OFlags::SYNC, OFlags::DSYNC] {
        for direct in [OFlags::empty(), OFlags::DIRECT] {
            let open =
                File::from(rustix::fs::open(&path, OFlags::WRONLY | flag | direct, Mode::empty()).unwrap());
            let mut block = BufferPool::new(4096).unwrap().take(4096).unwrap();
            block.fill(9);
            open.write_all_at(&block, 4096).unwrap();
        }
    }
    drop(File::create(&path).unwrap());
    assert_eq!((file.metadata().unwrap().len(), std::fs::read(&path).unwrap().len()), (0, 0));
    // More than there is room for.
    let mut big = File::create(mounted.at("big")).unwrap();
    let error = std::iter::repeat_with(|| big.write_all(&[5; 1 << 20])).find_map(Result::err).unwrap();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    drop((big, file, one, two));
    std::fs::remove_file(mounted.at("big")).unwrap();
    mounted.unmount();
    volume.assert_clean();
}

/// Maps a file, shared and private, of cached and of direct descriptors.
const MAPS: &str = r#"
import mmap, os, sys
root = sys.argv[1]
path = root + '/mapped'
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 300000)
shared = mmap.mmap(fd, 300000)
private = mmap.mmap(fd, 300000, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
shared[123456:123466] = b'0123456789'
assert os.pread(fd, 10, 123456) == b'0123456789'
private[0:4] = b'priv'
assert os.pread(fd, 4, 0) == bytes(4)
direct = os.open(path, os.O_RDWR | os.O_DIRECT)
block = mmap.mmap(-1, 4096)
# A direct read sees what the mapping has changed, and the mapping what a direct write has.
assert os.preadv(direct, [block], 122880) == 4096
assert block[576:586] == b'0123456789'
block[:] = b'd' * 4096
assert os.pwritev(direct, [block], 4096) == 4096
assert shared[4096:8192] == b'd' * 4096
os.pwrite(fd, b'cached', 8192)
assert shared[8192:8198] == b'cached'
dmap = mmap.mmap(direct, 300000)
dmap[20000:20006] = b'direct'
dmap.flush()
assert os.pread(fd, 6, 20000) == b'direct'
shared[299990:300000] = b'x' * 10
shared.flush()
os.fsync(fd)
os.unlink(path)
assert shared[123456:123466] == b'0123456789'
other = os.open(root + '/copy', os.O_RDWR | os.O_CREAT)
assert os.copy_file_range(fd, other, 300000, 0, 0) == 300000
assert os.pread(other, 10, 123456) == b'0123456789'
assert os.copy_file_range(fd, other, 1000, 299990, 5) == 10
"#;

#[test]
fn root_mappings_agree_with_reads_and_writes() {
    let needs = [&NEEDS[..], &[Need::Tool("python3")]].concat();
    if !requirement::require("mount::data::maps", &needs) {
        return;
    }
    let volume = volume();
    let mounted = Mounted::new(volume.path(), "");
    let output =
        std::process::Command::new("python3").args(["-c", MAPS]).arg(mounted.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    mounted.unmount();
    volume.assert_clean();
}

#[test]
fn root_short_files_live_inside_their_inodes() {
    if !requirement::require("mount::data::inline", &NEEDS) {
        return;
    }
    // The kernel must not truncate such files: e2fsck is the judge.
    let volume = VolumeBuilder::new(64 << 20).args(["-b", "4096", "-O", "inline_data"]).build();
    let mounted = Mounted::new(volume.path(), "");
    let path = |size: usize| mounted.at(format!("file{size}"));
    for size in (0..260).step_by(13) {
        std::fs::write(path(size), vec![size as u8; size]).unwrap();
    }
    drop_caches();
    let mut aligned = BufferPool::new(4096).unwrap().take(4096).unwrap();
    for size in (0..260).step_by(13) {
        assert_eq!(std::fs::read(path(size)).unwrap(), vec![size as u8; size]);
        let direct = rustix::fs::open(path(size), OFlags::RDWR | OFlags::DIRECT, Mode::empty()).unwrap();
        let direct = File::from(direct);
        assert_eq!(direct.read_at(&mut aligned, 0).unwrap(), size);
        let cached = File::options().read(true).write(true).open(path(size)).unwrap();
        match size % 4 {
            0 => cached.set_len(6000).unwrap(),
            1 => cached.write_all_at(b"end", 5000).unwrap(),
            2 => direct.write_all_at(&aligned, 4096).unwrap(),
            _ => cached.write_all_at(b"x", size as u64).unwrap(),
        }
        let mut read = vec![1; size];
        cached.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, vec![size as u8; size], "{size}");
        cached.set_len(size as u64 / 2).unwrap();
        assert_eq!(std::fs::read(path(size)).unwrap(), vec![size as u8; size / 2], "{size}");
    }
    mounted.unmount();
    volume.assert_clean();
}
