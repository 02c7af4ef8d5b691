//! Shared by the tests of this package: a volume with one of every kind of mapping, images in memory, helpers.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub mod crash;
pub mod debugfs;
pub mod descriptors;
pub mod dirs;
pub mod dirty;
pub mod fast;
pub mod hostile;
pub mod journal;
pub mod layout;
pub mod ledger;
pub mod log;
pub mod making;
pub mod mapped;
pub mod outside;
pub mod places;
pub mod play;
pub mod sample;
pub mod scene;
pub mod tree;

use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use uext4::device::{Device, WriteDurability};
use uext4::device::{MemoryDevice, MemoryOptions};
use uext4::explain::Query;
use uext4::plan::Sync;
use uext4::{Buffer, BufferPool, File, FileSlot, OpenOptions, Volume, VolumeOptions};
use uext4_ondisk::ext4::{GroupDescriptor, Superblock};
use uext4_testkit::fixture::pattern;
use uext4_testkit::{Scratch, e2fsck_clean};

/// Images are transferred in steps of this many bytes.
const STEP: usize = 1 << 20;

static POOL: LazyLock<BufferPool> = LazyLock::new(|| BufferPool::with_limit(16 << 20, 1 << 30).unwrap());

/// Memory aligned to 4096 bytes, zeroed.
pub fn aligned(length: usize) -> Buffer {
    let mut buffer = POOL.take(length).unwrap();
    buffer.fill(0);
    buffer
}

/// Aligned memory with the pattern of file `id` at `pos`.
pub fn patterned(id: u64, pos: u64, length: usize) -> Buffer {
    let mut buffer = aligned(length);
    pattern(id, pos, &mut buffer);
    buffer
}

/// The bytes of a whole device or image file.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    pub bytes: Vec<u8>,
}

impl Image {
    pub fn load(path: &Path) -> Image {
        Image { bytes: std::fs::read(path).unwrap() }
    }

    /// The current contents of `device`.
    pub fn of(device: &dyn Device) -> Image {
        let mut bytes = vec![0; device.geometry().size as usize];
        let mut buffer = aligned(STEP);
        for (index, part) in bytes.chunks_mut(STEP).enumerate() {
            let length = part.len();
            device.read_at(&mut buffer[..length], (index * STEP) as u64).unwrap();
            part.copy_from_slice(&buffer[..length]);
        }
        Image { bytes }
    }

    /// A memory device with these contents: 512-byte blocks, memory alignment 512, FUA, no volatile cache.
    pub fn device(&self) -> Arc<MemoryDevice> {
        self.device_with(|_| {})
    }

    /// The same with other options.
    pub fn device_with(&self, change: impl FnOnce(&mut MemoryOptions)) -> Arc<MemoryDevice> {
        let mut options = MemoryOptions::new(self.bytes.len() as u64);
        change(&mut options);
        let device = Arc::new(MemoryDevice::new(options).unwrap());
        self.write_to(&*device);
        device
    }

    /// Copies everything that is not zero.
    pub fn write_to(&self, device: &dyn Device) {
        let mut buffer = aligned(4096);
        for (index, part) in self.bytes.chunks(4096).enumerate() {
            if part != &[0; 4096][..part.len()] {
                buffer[..part.len()].copy_from_slice(part);
                let part = &buffer[..part.len()];
                device.write_at(part, (index * 4096) as u64, WriteDurability::Cached).unwrap();
            }
        }
    }

    /// Writes the image to a file for e2fsprogs.
    pub fn save(&self, path: &Path) {
        std::fs::write(path, &self.bytes).unwrap();
    }

    /// Changes the primary superblock and repairs its checksum, if it has one.
    pub fn patch_superblock(&mut self, change: impl FnOnce(&mut [u8])) {
        let superblock = &mut self.bytes[1024..2048];
        change(superblock);
        let ro_compat = u32::from_le_bytes(superblock[0x64..0x68].try_into().unwrap());
        if ro_compat & 0x400 != 0 {
            let sum = uext4_ondisk::checksum::csum(!0, &superblock[..0x3fc]);
            superblock[0x3fc..].copy_from_slice(&sum.to_le_bytes());
        }
    }

    /// The image without inodes, and without the superblock's write time and lifetime writes: two volumes are never
    /// written at the same time, nor with the same commits.
    pub fn without_times(mut self) -> Image {
        let superblock = Superblock::decode(&self.bytes[1024..2048]).unwrap();
        let geometry = &superblock.geometry;
        let block = geometry.block_size() as usize;
        for group in geometry.groups() {
            let (place, offset) = geometry.descriptor_position(group).unwrap();
            let raw = &self.bytes[place.get() as usize * block + offset as usize..];
            let descriptor = GroupDescriptor::decode(raw, group, &superblock).unwrap();
            let table = descriptor.inode_table.get() as usize * block;
            let length = geometry.inodes_per_group() as usize * usize::from(geometry.inode_size());
            self.bytes[table..table + length].fill(0);
        }
        self.without_lifetime()
    }

    /// The image without the superblock's write time and lifetime writes, which depend on the clock and on how often
    /// something was tried.
    pub fn without_lifetime(mut self) -> Image {
        // s_wtime, s_kbytes_written, and the field that compensates for both in the checksum.
        for field in [0x30..0x34, 0x274..0x275, 0x178..0x180, 0x184..0x188, 0x3fc..0x400] {
            self.bytes[1024..2048][field].fill(0);
        }
        self
    }

    /// Sets bits of a little-endian word of the superblock.
    pub fn set_bits(&mut self, offset: usize, bits: u32) {
        self.patch_superblock(|superblock| {
            let word = &mut superblock[offset..offset + 4];
            let value = u32::from_le_bytes(word.try_into().unwrap()) | bits;
            word.copy_from_slice(&value.to_le_bytes());
        });
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "image of {} bytes", self.bytes.len())
    }
}

/// Asserts that nothing on `device` changed, and says where if it did.
#[track_caller]
pub fn assert_unchanged(before: &Image, device: &dyn Device) {
    assert_same_bytes(&before.bytes, &Image::of(device).bytes);
}

/// Asserts that `e2fsck` finds nothing on `device`.
#[track_caller]
pub fn assert_clean(device: &dyn Device) {
    let scratch = Scratch::new(64 << 20);
    let path = scratch.file("after.img");
    Image::of(device).save(&path);
    e2fsck_clean(&path);
}

/// Equality of long byte strings with a short report.
#[track_caller]
pub fn assert_same_bytes(expected: &[u8], found: &[u8]) {
    assert_eq!(expected.len(), found.len(), "lengths differ");
    // A comparison at once is much faster than a search for the place.
    if expected != found {
        let at = expected.iter().zip(found).position(|(a, b)| a != b).unwrap();
        let end = (at + 16).min(found.len());
        panic!("bytes differ from {at} on: expected {:x?}, found {:x?}", &expected[at..end], &found[at..end]);
    }
}

pub fn open_rw(device: Arc<dyn Device>) -> Volume {
    Volume::open_device(device, VolumeOptions::read_write()).unwrap()
}

/// Opens for writing with the reserved blocks available, so that it can be filled to the last block.
pub fn open_to_the_last(device: Arc<dyn Device>) -> Volume {
    Volume::open_device(device, VolumeOptions::read_write().reserved(true)).unwrap()
}

pub fn open_ro(device: Arc<dyn Device>) -> Volume {
    Volume::open_device(device, VolumeOptions::read_only()).unwrap()
}

pub fn read_write() -> OpenOptions {
    OpenOptions::new().read(true).write(true).direct(true)
}

pub fn read_only() -> OpenOptions {
    OpenOptions::new().read(true).direct(true)
}

/// For requests over pages.
pub fn buffered() -> OpenOptions {
    read_write().direct(false)
}

/// Why `explain` says that a write to the file is refused.
pub fn explained_refusal(volume: &Volume, name: &str) -> Option<String> {
    let query = Query { write: true, pos: 0, length: 1, sync: Sync::None, queued: false };
    volume.open_file(name, read_only()).unwrap().explain(&query).unwrap().refused
}

/// All bytes of a file through its any-byte calls.
pub fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.size() as usize];
    let read = file.read_any_at(&mut bytes, 0).unwrap();
    assert_eq!(read, bytes.len(), "a read inside the file is not short");
    bytes
}

/// Runs `work` on a thread of its own and fails if it takes longer than `limit`: a hang must be a failure, not a test
/// run that never ends.
#[track_caller]
pub fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (told, heard) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let result = work();
        // The receiver is gone only if the limit has passed.
        let _too_late = told.send(());
        result
    });
    match heard.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("still not done after {limit:?}: a hang"),
        _ => match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        },
    }
}

/// Whether two slots of a queue are the same place, whatever file holds it. The library exposes this only in the first
/// field of `Debug`.
pub fn same_place(one: FileSlot, other: FileSlot) -> bool {
    let place = |slot: FileSlot| format!("{slot:?}").split(',').next().map(str::to_owned);
    place(one) == place(other)
}
