//! Copies onto files of a volume: the old file or the new one, whole, whatever fails and whenever the power goes.

use std::path::Path;
use std::sync::Arc;
use uext4::device::Device;
use uext4::device::WriteDurability;
use uext4::device::{MemoryDevice, MemoryOptions};
use uext4::{OpenOptions, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::crash::{Options, assert_states};
use uext4_testkit::device::{CrashDevice, CrashOptions};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};
use uext4_transfer::{Dest, Holes, Onto, import};

const OLD: &[u8; 60_000] = &[b'o'; 60_000];

fn new_bytes() -> Vec<u8> {
    (0..90_001_u32).map(|at| (at % 251) as u8).collect()
}

/// A volume with `/data` in memory.
fn device(args: &[&str], scratch: &Scratch) -> Arc<MemoryDevice> {
    let tree = scratch.path().join("tree");
    std::fs::create_dir_all(&tree).unwrap();
    std::fs::write(tree.join("data"), OLD).unwrap();
    let image = VolumeBuilder::new(8 << 20).args(args.iter().copied()).from_dir(&tree).build();
    loaded(&std::fs::read(image.path()).unwrap())
}

fn loaded(bytes: &[u8]) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(MemoryOptions::new(bytes.len() as u64)).unwrap());
    let mut part = uext4::BufferPool::new(1 << 16).unwrap().take(1 << 16).unwrap();
    for (at, chunk) in bytes.chunks(1 << 16).enumerate() {
        part[..chunk.len()].copy_from_slice(chunk);
        device.write_at(&part[..chunk.len()], (at << 16) as u64, WriteDurability::Cached).unwrap();
    }
    device
}

fn copy(source: &Path, volume: &Volume, onto: Onto) -> uext4_transfer::Result<u64> {
    let dest = Dest { volume, path: Path::new("/data"), owner: (0, 0), umask: 0, onto, holes: Holes::Source };
    // Each part is committed, as by somebody else's sync: a crash sees what is between.
    import(source, &dest, &mut |_| volume.sync_all().unwrap())
}

fn open(device: Arc<dyn Device>) -> Volume {
    Volume::open_device(device, VolumeOptions::read_write()).unwrap()
}

/// The volume as a file, without fault.
#[track_caller]
fn clean(device: &dyn Device, scratch: &Scratch) {
    let mut bytes = vec![0; device.geometry().size as usize];
    let mut part = uext4::BufferPool::new(1 << 16).unwrap().take(1 << 16).unwrap();
    for (at, chunk) in bytes.chunks_mut(1 << 16).enumerate() {
        let length = chunk.len();
        device.read_at(&mut part[..length], (at << 16) as u64).unwrap();
        chunk.copy_from_slice(&part[..length]);
    }
    let path = scratch.file("clean.img");
    std::fs::write(&path, bytes).unwrap();
    oracle::e2fsck_clean(&path);
}

#[test]
fn a_power_cut_in_a_copy_leaves_the_old_file_or_the_new_one() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let source = scratch.path().join("source");
    std::fs::write(&source, new_bytes()).unwrap();
    for (name, args) in
        [("copy", &[][..]), ("copy_pointers", &["-O", "^extent,^64bit"]), ("copy_small", &["-b", "1024"])]
    {
        let crash = CrashDevice::new(device(args, &scratch), CrashOptions::default()).unwrap();
        let handle = crash.handle();
        let volume = open(Arc::new(crash));
        copy(&source, &volume, Onto::Replaced).unwrap();
        volume.close().unwrap();
        let (mut old, mut new, mut shown) = (0, 0, 0);
        let log = handle.log().unwrap();
        let report = assert_states(&log, &Options::new(name, 1).at_most(400), |state| {
            shown += 1;
            let device = state.device();
            let volume = open(device.clone());
            let found = volume.read("/data").map_err(|error| format!("/data: {error}"))?;
            match found {
                found if found == OLD => old += 1,
                found if found == new_bytes() => new += 1,
                found => return Err(format!("neither: {} bytes", found.len())),
            }
            volume.close().map_err(|error| error.to_string())?;
            if shown % 16 == 1 {
                clean(&*device, &scratch);
            }
            Ok(())
        });
        assert!(report.images > 20 && old > 0 && new > 0, "{report}: {old} old, {new} new");
    }
}

#[test]
fn a_copy_that_fails_in_the_middle_leaves_the_old_file_and_its_space() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let device = device(&[], &scratch);
    let source = scratch.path().join("source");
    std::fs::write(&source, vec![1_u8; 7 << 20]).unwrap();
    let volume = open(device.clone());
    let free = volume.statfs().unwrap().free;
    for onto in [Onto::Replaced, Onto::InPlace] {
        let error = copy(&source, &volume, onto).unwrap_err();
        assert_eq!(error.errno(), 28, "{error}");
        assert!(volume.read("/data").unwrap() == OLD, "{onto:?}");
        assert_eq!(volume.statfs().unwrap().free, free, "{onto:?}");
    }
    volume.close().unwrap();
    clean(&*device, &scratch);
}

/// What fits in place of the old file, but not beside it.
#[test]
fn a_copy_in_place_needs_room_for_the_difference_and_keeps_inode_and_names() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let device = device(&[], &scratch);
    let volume = open(device.clone());
    let room = volume.statfs().unwrap().available * u64::from(volume.block_size());
    let fill = volume.open_file("/fill", OpenOptions::new().write(true).create_new(true)).unwrap();
    fill.write_any_at(&vec![2; (room - (40 << 10)) as usize], 0, WriteFlags::empty()).unwrap();
    drop(fill);
    let source = scratch.path().join("source");
    std::fs::write(&source, new_bytes()).unwrap();
    let before = volume.metadata("/data").unwrap();
    let copy = |onto| copy(&source, &volume, onto);
    assert_eq!(copy(Onto::Replaced).unwrap_err().errno(), 28);
    assert_eq!(volume.read("/data").unwrap(), OLD);
    copy(Onto::InPlace).unwrap();
    let after = volume.metadata("/data").unwrap();
    assert_eq!((after.ino, after.generation), (before.ino, before.generation));
    assert_eq!(volume.read("/data").unwrap(), new_bytes());
    volume.close().unwrap();
    clean(&*device, &scratch);
}
