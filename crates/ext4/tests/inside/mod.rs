//! Tests of crate internals: the editors of metadata, the bodies under them, allocation. They lie here with the other
//! tests, but are compiled into the library's own test binary.
#![allow(clippy::unwrap_used, reason = "tests")]

mod alloc;
mod bodies;
mod damage;
mod dir_map;
mod heartbeat;
mod holes;
mod lock_model;
mod map;
mod space;
mod two_directories;
mod under_way;
mod values;
mod whole;

use crate::device::{Device, WriteDurability};
use crate::device::{MemoryDevice, MemoryOptions};
use crate::inode::Ext4State;
use crate::{BufferPool, Volume, VolumeOptions};
use std::path::Path;
use std::sync::Arc;
use uext4_testkit::VolumeBuilder;

/// Images are transferred in steps of this many bytes.
const STEP: usize = 1 << 20;

/// A volume of these many MiB that mke2fs made.
pub(super) fn image(mebibytes: u64, args: &[&str]) -> Vec<u8> {
    let made = VolumeBuilder::new(mebibytes << 20).args(args.iter().copied()).build();
    std::fs::read(made.path()).unwrap()
}

/// The image in memory, open for writing.
pub(super) fn open(image: &[u8]) -> Volume {
    open_device(device(image)).unwrap()
}

pub(super) fn device(image: &[u8]) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(MemoryOptions::new(image.len() as u64)).unwrap());
    let mut buffer = BufferPool::new(STEP).unwrap().take(STEP).unwrap();
    for (step, part) in image.chunks(STEP).enumerate() {
        buffer[..part.len()].copy_from_slice(part);
        device.write_at(&buffer[..part.len()], (step * STEP) as u64, WriteDurability::Cached).unwrap();
    }
    device
}

pub(super) fn open_device(device: Arc<dyn Device>) -> crate::Result<Volume> {
    Volume::open_device(device, VolumeOptions::read_write())
}

/// Saves the volume as seen through the cache, which is what a commit and a checkpoint would write home.
pub(super) fn save(state: &Ext4State, path: &Path) {
    let blocks = state.superblock.geometry.blocks_count();
    let bytes: Vec<u8> = (0..blocks).flat_map(|block| state.cache.read(block).unwrap().to_vec()).collect();
    std::fs::write(path, bytes).unwrap();
}

/// What lies on the device.
pub(super) fn save_device(device: &MemoryDevice, path: &Path) {
    let length = device.geometry().size;
    let mut buffer = BufferPool::new(STEP).unwrap().take(STEP).unwrap();
    let mut bytes = Vec::with_capacity(length as usize);
    for pos in (0..length).step_by(STEP) {
        let part = STEP.min((length - pos) as usize);
        device.read_at(&mut buffer[..part], pos).unwrap();
        bytes.extend_from_slice(&buffer[..part]);
    }
    std::fs::write(path, bytes).unwrap();
}

/// Checks the text of an error.
#[track_caller]
pub(super) fn assert_says<T: std::fmt::Debug>(result: crate::Result<T>, text: &str) {
    let error = result.unwrap_err().to_string();
    assert!(error.contains(text), "`{error}` does not say `{text}`");
}
