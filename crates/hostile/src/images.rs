//! The base images under `fuzz/images`; `make.sh` there says what is in them.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use uext4::device::{BufferPool, Device, WriteDurability};
use uext4::device::{MemoryDevice, MemoryOptions};
use uext4_testkit::mutate::Base;
use uext4_testkit::oracle;

/// Names of the base images. The order is part of what scripts of the fuzzer mean: new ones go to the end.
pub const NAMES: [&str; 24] = [
    "deep",
    "bare",
    "ext2-rev0",
    "ext2",
    "ext3",
    "groups",
    "meta-bg",
    "journal",
    "blocks-2k",
    "blocks-64k",
    "bigalloc",
    "mmp",
    "quota",
    "inline",
    "casefold",
    "encrypt",
    "dirty-v3",
    "dirty-list",
    "dirty-old",
    "dirty-fast",
    "index",
    "dirty-revoke",
    "dirty-fast-pointers",
    "dirty-fast-folded",
];

/// The directory `fuzz` of the repository.
pub fn fuzz_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// A base image, unpacked once.
///
/// # Panics
/// If there is none of that number, or the program `zstd` is missing.
pub fn base(index: usize) -> &'static Base {
    static BASES: [OnceLock<Base>; NAMES.len()] = [const { OnceLock::new() }; NAMES.len()];
    BASES[index].get_or_init(|| {
        let packed = fuzz_dir().join("images").join(NAMES[index]).with_extension("img.zst");
        let mut command = oracle::command("zstd");
        let output = command.args(["-dqc", "--long=24"]).arg(&packed).output().expect("zstd starts");
        assert!(output.status.success(), "{}: {}", packed.display(), oracle::text(&output));
        Base::new(output.stdout)
    })
}

/// The number of a name.
pub fn index_of(name: &str) -> Option<usize> {
    NAMES.iter().position(|&known| known == name)
}

/// Bytes that are copied at a time.
const STEP: usize = 4096;

/// A device in memory with these bytes, the last logical block filled up with zeros.
pub fn device(image: &[u8]) -> Arc<MemoryDevice> {
    let size = image.len().max(1).next_multiple_of(512);
    let device = MemoryDevice::new(MemoryOptions::new(size as u64)).expect("a device in memory");
    let pool = BufferPool::with_limit(STEP, STEP).expect("a page");
    let mut buffer = pool.take(STEP).expect("a page");
    for (index, part) in image.chunks(STEP).enumerate() {
        if part.iter().any(|&byte| byte != 0) {
            buffer.fill(0);
            buffer[..part.len()].copy_from_slice(part);
            let length = part.len().next_multiple_of(512);
            let pos = (index * STEP) as u64;
            device.write_at(&buffer[..length], pos, WriteDurability::Cached).expect("a write to memory");
        }
    }
    Arc::new(device)
}

/// All bytes of a device.
pub fn bytes_of(device: &dyn Device) -> Vec<u8> {
    let size = device.geometry().size as usize;
    let pool = BufferPool::with_limit(1 << 16, 1 << 16).expect("memory");
    let mut buffer = pool.take(1 << 16).expect("memory");
    let mut bytes = vec![0; size];
    for (index, part) in bytes.chunks_mut(1 << 16).enumerate() {
        let length = part.len();
        device.read_at(&mut buffer[..length], (index << 16) as u64).expect("a read from memory");
        part.copy_from_slice(&buffer[..length]);
    }
    bytes
}
