//! Power cuts of an image whose data is in another file: what the tables say is true of the other file, too.

use super::device::Qcow2Device;
use super::image::open;
use crate::bytes::Bytes;
use crate::named::Chain;
use std::path::Path;
use std::sync::Arc;
use uext4_blockdev::engine::{MemoryDevice, MemoryOptions};
use uext4_blockdev::spec::{DeviceSpec, Format, Named};
use uext4_blockdev::{Buffer, BufferPool, Device, ImageOptions, OpenOptions, WriteDurability};
use uext4_testkit::crash::{Options, State, assert_states};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashOptions, CrashPart, DeviceFile};
use uext4_testkit::oracle::{command, text};
use uext4_testkit::{Need, Rng, Scratch, needs};

const DISK: u64 = 256 << 10;
const PART: u64 = 1 << 20;
/// What the data file has where the image has nothing.
const STALE: u8 = 0xee;

/// Begun: these blocks, this byte. `Durable`: all begun before this number.
struct Begun(u64, u64, u8);
struct Durable(usize);

fn buffer(length: usize, fill: u8) -> Buffer {
    let mut buffer = BufferPool::new(length.max(4096)).unwrap().take(length).unwrap();
    buffer.fill(fill);
    buffer
}

/// Runs `qemu-img`, which may find leaks.
fn img(args: &[&str]) {
    let output = command("qemu-img").args(args).output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 3)), "{args:?}: {}", text(&output));
}

/// The image at `path` with both files on the device.
fn device(path: &Path, whole: &Arc<CrashDevice>) -> Qcow2Device {
    let (format, named) = (None, Named::Beside);
    let options = ImageOptions { path, write: true, force: false, sync: true, format, named };
    let chain = Chain::begin(&options, Format::Qcow2).unwrap();
    let part = |start, size| Bytes::new(DeviceFile::new(CrashPart::new(whole, start, size).unwrap()));
    let mut image =
        open(path, part(0, PART), &chain, true, &|_, _, _, _| unreachable!("it names no other")).unwrap();
    image.data = part(PART, DISK);
    Qcow2Device::new(Arc::new(image))
}

fn write_some(device: &Qcow2Device, handle: &CrashHandle, seed: u64) {
    let mut rng = Rng::new(seed);
    for number in 1..=24u8 {
        let (block, length) = (rng.below(DISK / 512 - 12), 1 + rng.below(12));
        handle.mark(Begun(block, length, number));
        let bytes = buffer(length as usize * 512, number);
        device.write_at(&bytes, block * 512, WriteDurability::Cached).unwrap();
        if rng.below(3) == 0 {
            device.flush().unwrap();
            handle.mark(Durable(number.into()));
        }
    }
}

fn is_legal(state: &State<'_>, device: &dyn Device) -> std::result::Result<(), String> {
    let begun: Vec<&Begun> = state.marks().collect();
    let durable = state.marks::<Durable>().last().map_or(0, |durable| durable.0);
    let mut bytes = buffer(512, 0);
    for block in 0..DISK / 512 {
        let mut allowed = vec![0];
        for (at, Begun(first, length, number)) in begun.iter().enumerate() {
            if (*first..first + length).contains(&block) {
                if at < durable {
                    allowed.clear();
                }
                allowed.push(*number);
            }
        }
        device.read_at(&mut bytes, block * 512).unwrap();
        if !allowed.contains(&bytes[0]) || bytes.iter().any(|byte| *byte != bytes[0]) {
            return Err(format!("block {block}: {}, not one of {allowed:?}", bytes[0]));
        }
    }
    Ok(())
}

#[test]
fn the_data_file_is_durable_before_the_tables_are() {
    needs!(Need::Tool("qemu-img"));
    for (seed, options) in ["cluster_size=4096", "extended_l2=on,cluster_size=16384"].into_iter().enumerate()
    {
        let scratch = Scratch::new(64 << 20);
        let (path, data) = (scratch.file("disk.qcow2"), scratch.file("disk.data"));
        let options = format!("{options},data_file={}", data.display());
        img(&["create", "-q", "-f", "qcow2", "-o", &options, path.to_str().unwrap(), "256k"]);
        std::fs::write(&data, vec![STALE; DISK as usize]).unwrap();
        let memory = MemoryDevice::new(MemoryOptions::new(2 * PART)).unwrap();
        for (file, start) in [(&path, 0), (&data, PART)] {
            let mut bytes = buffer(PART as usize, 0);
            let found = std::fs::read(file).unwrap();
            bytes[..found.len()].copy_from_slice(&found);
            memory.write_at(&bytes, start, WriteDurability::Cached).unwrap();
        }
        let whole = Arc::new(CrashDevice::new(Arc::new(memory), CrashOptions::default()).unwrap());
        let handle = whole.handle();
        handle.shuffle(Some(seed as u64));
        let device = device(&path, &whole);
        write_some(&device, &handle, seed as u64);
        std::mem::forget(device);
        let wanted = Options::new("qcow2-split", seed as u64).at_most(250);
        let report = assert_states(&handle.log().unwrap(), &wanted, |state| {
            for (file, start, length) in [(&path, 0, PART), (&data, PART, DISK)] {
                let mut bytes = vec![0; length as usize];
                state.read(start, &mut bytes);
                std::fs::write(file, bytes).unwrap();
            }
            img(&["check", "-q", path.to_str().unwrap()]);
            let spec = DeviceSpec::parse(path.to_str().unwrap()).unwrap();
            let options = OpenOptions { write: false, force: false };
            let opened = crate::open(&spec, options).map_err(|error| error.to_string())?;
            is_legal(state, &*opened.device)
        });
        assert!(report.states > 100, "{}", report.states);
    }
}
