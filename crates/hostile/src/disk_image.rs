//! Images of disks, qcow2 and VMDK, whose headers and tables a fuzzer changes: they are opened, read, written, and
//! opened again, or refused with a named error.
//!
//! The first byte of an input names a base image, the second seeds what is done to the disk. The rest are patches: a
//! byte for the kind, two for the place, and the value. The lowest two bits of the kind are the width, 1 to 8 bytes,
//! and places count in widths. With the next bit the value is one byte that chooses among numbers that matter
//! (`NUMBERS`), in the order of bytes that qcow2 has or, with one more bit, VMDK; otherwise it is the bytes themselves.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use uext4::device::{
    Buffer, BufferPool, Device, MemoryDevice, MemoryOptions, Op, QueueOptions, Result, WriteDurability,
};
use uext4_blockdev::spec::{Format, Named};
use uext4_blockdev::{Formats, ImageOptions, Store};
use uext4_images::KNOWN;
use uext4_testkit::device::DeviceFile;
use uext4_testkit::{Flight, Rng, oracle};

use crate::images::{self, fuzz_dir};

/// Names of the base images (`fuzz/images/make-disks.sh`). New ones go to the end.
pub const NAMES: [&str; 10] = [
    "qcow2-plain",
    "qcow2-subclusters",
    "qcow2-zlib",
    "qcow2-zstd",
    "qcow2-snapshot",
    "qcow2-old",
    "qcow2-bits",
    "vmdk-sparse",
    "vmdk-stream",
    "vmdk-text",
];

/// Values of patches, as the format has them: from the first byte on.
const NUMBERS: [u64; 16] = [
    0,
    1,
    u64::MAX,
    1 << 63,
    1 << 62,
    (1 << 63) | 0x1000,
    0x200,
    0x400,
    0x1000,
    0x10000,
    (1 << 63) | 0x10000,
    (1 << 62) | 0x1000,
    i64::MAX as u64 & !511,
    0x00ff_ffff_ffff_fe00,
    (1 << 63) | 0x400,
    511,
];

/// Room behind an image, bytes.
const ROOM: u64 = 256 << 10;
/// Longest request, bytes.
const LONGEST: usize = 48 << 10;

/// A base image, unpacked once.
///
/// # Panics
/// If the program `zstd` or the image is missing.
pub fn base(index: usize) -> &'static [u8] {
    static BASES: [OnceLock<Vec<u8>>; NAMES.len()] = [const { OnceLock::new() }; NAMES.len()];
    BASES[index].get_or_init(|| {
        let packed = fuzz_dir().join("images").join(format!("{}.zst", NAMES[index]));
        let output = oracle::command("zstd").arg("-dqc").arg(&packed).output().expect("zstd starts");
        assert!(output.status.success(), "{}: {}", packed.display(), oracle::text(&output));
        output.stdout
    })
}

/// What became of an image.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// It was opened.
    pub opened: bool,
    /// Requests that were answered, read-only.
    pub read: usize,
    /// Changes that were made.
    pub changed: usize,
}

/// Runs an input.
///
/// # Panics
/// If the library broke a promise.
pub fn run(input: &[u8]) -> Outcome {
    let (&first, rest) = input.split_first().unwrap_or((&0, &[]));
    let (&seed, script) = rest.split_first().unwrap_or((&0, &[]));
    let name = NAMES[usize::from(first) % NAMES.len()];
    let bytes = patched(base(usize::from(first) % NAMES.len()), script);
    let format = if name.starts_with("qcow2") { Format::Qcow2 } else { Format::Vmdk };
    let mut outcome = Outcome::default();
    let device = images::device(&bytes);
    let Some(disk) = typed(open(DeviceFile::new(device.clone()), format, false)) else { return outcome };
    outcome.opened = true;
    outcome.read = look(&*disk, seed);
    drop(disk);
    assert!(
        images::bytes_of(&*device)[..bytes.len()] == bytes[..],
        "an image opened read-only is not written"
    );
    if format == Format::Qcow2 {
        outcome.changed = change(&bytes, seed);
    }
    outcome
}

/// The base with the changes of a script.
fn patched(base: &[u8], script: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (base.to_vec(), script);
    while let [kind, low, high, more @ ..] = rest {
        let width = 1 << (kind & 3);
        let at = usize::from(u16::from_le_bytes([*low, *high])) * width % bytes.len();
        let (value, behind) = match (kind & 4, more) {
            (0, more) => {
                let (value, behind) = more.split_at(width.min(more.len()));
                (value.to_vec(), behind)
            }
            (_, [choice, behind @ ..]) => {
                let number = NUMBERS[usize::from(*choice) % NUMBERS.len()];
                let bytes = (0..width).rev().map(|byte| (number >> (8 * byte)) as u8);
                // The lowest bytes of the number, the highest of them first; VMDK has them the other way round.
                let little = kind & 8 != 0;
                (if little { bytes.rev().collect() } else { bytes.collect() }, behind)
            }
            _ => (Vec::new(), more),
        };
        let count = value.len().min(bytes.len() - at);
        bytes[at..at + count].copy_from_slice(&value[..count]);
        rest = behind;
    }
    bytes
}

fn open(file: Arc<dyn Store>, format: Format, write: bool) -> Result<Arc<dyn Device>> {
    // No file that it names is opened; it has to have a place all the same.
    let path = Path::new("/dev/null");
    let (format_said, named) = (Some(format), Named::No);
    let options = ImageOptions { path, write, force: false, sync: true, format: format_said, named };
    KNOWN.open(KNOWN.recognise(&*file, &options)?, file, &options)
}

/// Its value, or a named error.
fn typed<T>(result: Result<T>) -> Option<T> {
    result.inspect_err(|error| assert!(!error.to_string().is_empty() && error.errno() > 0)).ok()
}

fn buffer(length: usize) -> Buffer {
    static POOL: OnceLock<BufferPool> = OnceLock::new();
    let pool = POOL.get_or_init(|| BufferPool::with_limit(1 << 20, 1 << 20).expect("memory"));
    pool.take(length).expect("memory")
}

/// A place on the disk and a length that fit.
fn place(disk: &dyn Device, rng: &mut Rng) -> Option<(u64, usize)> {
    let blocks = disk.geometry().size / 512;
    if blocks == 0 {
        return None;
    }
    // Mostly near the beginning, where the base has data.
    let first = match rng.below(4) {
        0 => rng.below(blocks),
        1 => blocks - 1 - rng.below(blocks.min(64)),
        _ => rng.below(blocks.min(4096)),
    };
    let longest = if rng.below(4) == 0 { LONGEST as u64 / 512 } else { 8 };
    Some((first * 512, (1 + rng.below(longest.min(blocks - first))) as usize * 512))
}

/// Reads here and there: by calls and through a queue, with the same result.
fn look(disk: &dyn Device, seed: u8) -> usize {
    let Some(queue) = typed(disk.queue(&QueueOptions::depth(4))) else { return 0 };
    let (mut queue, mut rng, mut read) = (Flight::new(queue), Rng::new(seed.into()), 0);
    for _ in 0..24 {
        let Some((pos, length)) = place(disk, &mut rng) else { break };
        let mut called = buffer(length);
        let first = typed(disk.read_at(&mut called, pos)).is_some();
        queue.push(Op::Read, pos, buffer(length), 0);
        for (done, queued) in queue.reap_all() {
            assert_eq!(done.result == length as i32, first, "{pos}+{length}: {done:?}");
            assert!(!first || queued[..] == called[..], "{pos}+{length}");
        }
        if first && disk.reads_zeros(pos, length as u64) {
            assert!(called.iter().all(|byte| *byte == 0), "{pos}+{length} is known to be zeros");
        }
        disk.cost(Op::Read, pos, length as u64);
        disk.cost(Op::Write, pos, length as u64);
        read += usize::from(first);
    }
    read
}

/// Writes, discards and flushes; then it is opened again.
fn change(bytes: &[u8], seed: u8) -> usize {
    let length = bytes.len().next_multiple_of(512) as u64;
    let device = Arc::new(MemoryDevice::new(MemoryOptions::new(length + ROOM)).expect("a device in memory"));
    let mut part = buffer(4096);
    for (number, chunk) in bytes.chunks(4096).enumerate() {
        part.fill(0);
        part[..chunk.len()].copy_from_slice(chunk);
        let length = chunk.len().next_multiple_of(512);
        let pos = number as u64 * 4096;
        device.write_at(&part[..length], pos, WriteDurability::Cached).expect("a write to memory");
    }
    let file = DeviceFile::growing(device, length);
    let Some(disk) = typed(open(file.clone(), Format::Qcow2, true)) else { return 0 };
    let Some(queue) = typed(disk.queue(&QueueOptions::depth(4))) else { return 0 };
    let (mut queue, mut rng, mut changed) = (Flight::new(queue), Rng::new(seed.into()), 0);
    for number in 0..24u8 {
        let Some((pos, length)) = place(&*disk, &mut rng) else { break };
        let mut data = buffer(length);
        data.fill(number);
        changed += usize::from(match rng.below(6) {
            0 => typed(disk.discard(pos, length as u64)).is_some(),
            1 => typed(disk.flush()).is_some(),
            2 => typed(disk.write_at(&data, pos, WriteDurability::Fua)).is_some(),
            3 => typed(disk.read_at(&mut data, pos)).is_some(),
            4 => typed(disk.write_at(&data, pos, WriteDurability::Cached)).is_some(),
            _ => {
                queue.push(Op::Write, pos, data, 0);
                queue.reap_all().iter().all(|(done, _)| done.result == length as i32)
            }
        });
    }
    drop(queue);
    drop(disk);
    if let Some(disk) = typed(open(file, Format::Qcow2, false)) {
        look(&*disk, seed);
    }
    changed
}
