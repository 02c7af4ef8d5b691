//! Images made by QEMU's tools, and what they say of ours.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use uext4_blockdev::spec::DeviceSpec;
use uext4_blockdev::{BufferPool, Device, DeviceQueue, Error, OpenOptions, QueueOptions};
use uext4_testkit::oracle::{command, text};

use crate::common::{reap_all, request};
use uext4_blockdev::Op;

/// Runs one of QEMU's tools. The kernel tears a ring down some time after it was closed, and the file's lock with it:
/// so what is locked is tried again.
#[track_caller]
fn patient(tool: &mut Command) -> Output {
    for _ in 0..100 {
        let output = tool.output().unwrap_or_else(|error| panic!("{tool:?}: {error}"));
        if output.status.success() || !text(&output).contains("Failed to lock") {
            return output;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{tool:?}: the file stays locked");
}

#[track_caller]
fn run(tool: &mut Command) -> String {
    let output = patient(tool);
    assert!(output.status.success(), "{tool:?}: {}\n{}", output.status, text(&output));
    text(&output)
}

/// Runs `qemu-img`.
#[track_caller]
pub fn img(args: &[&str]) -> String {
    run(command("qemu-img").args(args))
}

/// Runs commands of `qemu-io` on an image.
#[track_caller]
pub fn io(image: &Path, commands: &[&str]) -> String {
    let mut qemu = command("qemu-io");
    for one in commands {
        qemu.args(["-c", one]);
    }
    let said = run(qemu.arg(image));
    assert!(!said.contains("failed"), "{said}");
    said
}

pub fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Makes a qcow2 image.
#[track_caller]
pub fn make(image: &Path, options: &str, size: &str) {
    img(&["create", "-q", "-f", "qcow2", "-o", options, path(image), size]);
}

#[track_caller]
pub fn open_text(text: &str, write: bool) -> Result<Arc<dyn Device>, Error> {
    let options = OpenOptions { write, force: false };
    uext4_images::open(&DeviceSpec::parse(text)?, options).map(|opened| opened.device)
}

#[track_caller]
pub fn open(image: &Path, write: bool) -> Arc<dyn Device> {
    open_text(path(image), write).unwrap_or_else(|error| panic!("{}: {error}", image.display()))
}

/// All bytes of the disk, according to QEMU.
#[track_caller]
pub fn converted(image: &Path, args: &[&str]) -> Vec<u8> {
    let mut raw = image.as_os_str().to_owned();
    raw.push(".raw");
    let raw = PathBuf::from(raw);
    let all = [&["convert", "-O", "raw"], args, &[path(image), path(&raw)]].concat();
    img(&all);
    let bytes = std::fs::read(&raw).unwrap();
    std::fs::remove_file(&raw).unwrap();
    bytes
}

/// All bytes of a device, in requests of `length`.
#[track_caller]
pub fn contents(device: &dyn Device, length: usize) -> Vec<u8> {
    let pool = BufferPool::new(length).unwrap();
    let mut buffer = pool.take(length).unwrap();
    let size = device.geometry().size;
    let mut all = Vec::with_capacity(size as usize);
    while (all.len() as u64) < size {
        let part = (size - all.len() as u64).min(length as u64) as usize;
        device.read_at(&mut buffer[..part], all.len() as u64).unwrap();
        all.extend_from_slice(&buffer[..part]);
    }
    all
}

/// The same through a queue, many requests at once.
#[track_caller]
pub fn queued_contents(device: &dyn Device, length: usize) -> Vec<u8> {
    let pool = BufferPool::new(16 * length).unwrap();
    let mut queue = device.queue(&QueueOptions::depth(16)).unwrap();
    let mut buffers: Vec<_> = (0..16).map(|_| pool.take(length).unwrap()).collect();
    let size = device.geometry().size;
    let mut all = Vec::with_capacity(size as usize);
    while (all.len() as u64) < size {
        let mut pos = all.len() as u64;
        let mut lengths = Vec::new();
        for (tag, buffer) in buffers.iter_mut().enumerate() {
            let part = (size - pos).min(length as u64);
            if part == 0 {
                break;
            }
            let read = request(Op::Read, pos, part as u32, buffer.memory(0), tag as u64);
            // SAFETY: the buffers are not touched until `reap_all` has seen all completions.
            unsafe { queue.push(read) }.unwrap();
            lengths.push(part as usize);
            pos += part;
        }
        queue.submit().unwrap();
        for (done, part) in reap_all(&mut queue).iter().zip(&lengths) {
            assert_eq!(done.result, *part as i32, "{done:?}");
        }
        for (buffer, part) in buffers.iter().zip(lengths) {
            all.extend_from_slice(&buffer[..part]);
        }
    }
    all
}

/// Where two disks differ first.
#[track_caller]
pub fn assert_same(ours: &[u8], theirs: &[u8], what: &str) {
    let length = ours.len();
    // QEMU rounds up to sectors, we down to blocks.
    assert!(theirs.len() >= length && theirs.len() - length < 4096, "{what}: {length} of {}", theirs.len());
    if let Some(at) = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs) {
        panic!("{what}: byte {at:#x} is {:#x}, and {:#x} for QEMU", ours[at], theirs[at]);
    }
}

/// Reads the image in several ways, all like QEMU.
#[track_caller]
pub fn assert_reads_like_qemu(image: &Path, what: &str) {
    let theirs = converted(image, &[]);
    let device = open(image, false);
    assert_same(&contents(&*device, 1 << 20), &theirs, what);
    assert_same(&contents(&*device, 12288), &theirs, what);
    assert_same(&queued_contents(&*device, 4096), &theirs, what);
    assert_same(&queued_contents(&*device, 192 << 10), &theirs, what);
}

/// `qemu-img check`: neither damage nor, unless they are allowed, leaks.
#[track_caller]
pub fn check(image: &Path, leaks: bool) {
    let output = patient(command("qemu-img").args(["check", path(image)]));
    let fine = output.status.success() || (leaks && output.status.code() == Some(3));
    assert!(fine, "{}: {}", output.status, text(&output));
}
