//! Random requests against a model of the disk, on images of every kind; QEMU judges what is left.

use crate::common::{pattern, reap_all, request};
use crate::tools::{assert_same, check, contents, converted, img, io, make, open, path};
use std::path::{Path, PathBuf};
use uext4_blockdev::{BufferPool, Device, DeviceQueue, Op, QueueOptions, Request, WriteDurability};
use uext4_testkit::{Need, Rng, Scratch, needs};

/// Bytes of the disks.
const SIZE: u64 = 9 << 20;
const LONGEST: u64 = 300 << 10;

/// Makes an image in the directory; its name says of what kind.
fn image(scratch: &Scratch, kind: &str) -> PathBuf {
    let image = scratch.file("disk.qcow2");
    let fill = ["write -P 1 100k 500k", "write -P 2 3M 70k", "write -P 3 8M 1M"];
    let base = scratch.file("base.raw");
    match kind.split_once(' ') {
        Some(("over", options)) => {
            std::fs::write(&base, vec![0xb5; (5 << 20) + 512]).unwrap();
            make(&image, &format!("{options},backing_file=base.raw,backing_fmt=raw"), "9M");
            io(&image, &fill);
        }
        Some(("compressed", options)) => {
            let bytes: Vec<u8> = (0..SIZE as u32).map(|at| b"compressible "[at as usize % 13]).collect();
            std::fs::write(&base, bytes).unwrap();
            img(&["convert", "-c", "-O", "qcow2", "-o", options, path(&base), path(&image)]);
        }
        Some(("snapshot", options)) => {
            make(&image, options, "9M");
            io(&image, &fill);
            img(&["snapshot", "-c", "one", path(&image)]);
            io(&image, &["write -P 4 200k 100k"]);
            img(&["snapshot", "-c", "two", path(&image)]);
        }
        Some(("split", options)) => {
            let data = scratch.file("disk.data");
            make(&image, &format!("{options},data_file={}", path(&data)), "9M");
            io(&image, &fill);
        }
        _ => {
            make(&image, kind, "9M");
            io(&image, &fill);
            if !kind.contains("compat") {
                io(&image, &["write -z 3M 64k", "write -z 5M 300k", "write -z -u 8200k 128k"]);
            }
        }
    }
    image
}

/// One request, on the disk and in the model.
fn step(device: &dyn Device, model: &mut [u8], rng: &mut Rng, pool: &BufferPool) {
    let block = u64::from(device.geometry().logical_block);
    let blocks = SIZE / block;
    let first = rng.below(blocks);
    let most = if rng.below(3) == 0 { LONGEST } else { 8192 } / block;
    let count = 1 + rng.below(most.min(blocks - first));
    let (pos, length) = (first * block, (count * block) as usize);
    let range = pos as usize..pos as usize + length;
    let mut buffer = pool.take(length).unwrap();
    let queued = |op, fua, memory| {
        let mut queue = device.queue(&QueueOptions::depth(2)).unwrap();
        // SAFETY: the buffer outlives the completion, which is reaped here.
        unsafe { queue.push(Request { fua, ..request(op, pos, length as u32, memory, 1) }) }.unwrap();
        reap_all(&mut queue)[0].result
    };
    match rng.below(10) {
        0 => device.flush().unwrap(),
        1 => {
            device.discard(pos, length as u64).unwrap();
            // Whatever it reads now.
            device.read_at(&mut buffer, pos).unwrap();
            model[range].copy_from_slice(&buffer);
        }
        2 | 3 => {
            device.read_at(&mut buffer, pos).unwrap();
            assert!(buffer[..] == model[range], "read of {length} at {pos:#x}");
        }
        4 => {
            assert_eq!(queued(Op::Read, false, buffer.memory(0)), length as i32);
            assert!(buffer[..] == model[range], "queued read of {length} at {pos:#x}");
        }
        way => {
            pattern(rng.below(1 << 40), &mut buffer);
            if rng.below(8) == 0 {
                buffer.fill(0);
            }
            let durability = if way == 5 { WriteDurability::Fua } else { WriteDurability::Cached };
            match way {
                8 | 9 => assert_eq!(queued(Op::Write, way == 9, buffer.memory(0)), length as i32),
                _ => device.write_at(&buffer, pos, durability).unwrap(),
            }
            model[range].copy_from_slice(&buffer);
        }
    }
}

#[test]
fn random_requests_leave_what_the_model_has() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    for (seed, kind) in [
        "cluster_size=65536",
        "cluster_size=512",
        "cluster_size=4096,refcount_bits=1",
        "cluster_size=512,refcount_bits=64",
        "cluster_size=2M",
        "compat=0.10,cluster_size=4096",
        "extended_l2=on,cluster_size=16384",
        "over cluster_size=65536",
        "over cluster_size=1024",
        "over extended_l2=on,cluster_size=65536",
        "compressed compression_type=zlib",
        "compressed compression_type=zstd,cluster_size=4096",
        "compressed extended_l2=on,cluster_size=16384",
        "snapshot cluster_size=65536",
        "snapshot cluster_size=512",
        "snapshot extended_l2=on,cluster_size=16384",
        "split data_file_raw=on",
        "split data_file_raw=off,cluster_size=4096",
    ]
    .into_iter()
    .enumerate()
    {
        let scratch = Scratch::new(128 << 20);
        let image = image(&scratch, kind);
        let snapshots: Vec<_> = match kind.starts_with("snapshot") {
            true => ["one", "two"].map(|name| snapshot(&image, name)).into(),
            false => Vec::new(),
        };
        let mut model = converted(&image, &[]);
        let (mut rng, pool) = (Rng::new(seed as u64), BufferPool::new(LONGEST as usize).unwrap());
        for round in 0..3 {
            let device = open(&image, true);
            for _ in 0..120 {
                step(&*device, &mut model, &mut rng, &pool);
            }
            assert_same(&contents(&*device, 1 << 20), &model, kind);
            if round == 0 {
                device.flush().unwrap();
                // Nothing is left for the end.
                std::mem::forget(device);
                // Its locks stay.
                copy_over(&image);
                let data = scratch.file("disk.data");
                if data.exists() {
                    copy_over(&data);
                }
            } else {
                drop(device);
            }
            // What was freed by the last flush may still be counted.
            check(&image, round == 0);
            if round == 0 {
                img(&["check", "-q", "-r", "leaks", path(&image)]);
            }
            assert_same(&converted(&image, &[]), &model, kind);
        }
        for (name, before) in ["one", "two"].iter().zip(snapshots) {
            assert!(snapshot(&image, name) == before, "{kind}: snapshot {name}");
        }
    }
}

fn snapshot(image: &Path, name: &str) -> Vec<u8> {
    converted(image, &["-l", &format!("snapshot.name={name}")])
}

/// Another file with the same bytes and name.
fn copy_over(image: &Path) {
    let copy = image.with_extension("copy");
    std::fs::copy(image, &copy).unwrap();
    std::fs::rename(copy, image).unwrap();
}

/// Threads write neighbours in the same clusters at once: none takes another's bytes, nor the old ones.
#[test]
fn neighbours_in_a_cluster_are_written_at_once() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    for kind in
        ["over cluster_size=65536", "over extended_l2=on,cluster_size=65536", "compressed cluster_size=65536"]
    {
        let scratch = Scratch::new(128 << 20);
        let image = image(&scratch, kind);
        let before = converted(&image, &[]);
        let device = open(&image, true);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    let pool = BufferPool::new(8192).unwrap();
                    let (mut buffer, mut back) = (pool.take(512).unwrap(), pool.take(512).unwrap());
                    let mut queue = device.queue(&QueueOptions::depth(4)).unwrap();
                    for round in 0..2000u64 {
                        let pos = (round * 8 + thread * 2) * 512;
                        buffer.fill(thread as u8 + 1);
                        match round % 3 {
                            0 => device.write_at(&buffer, pos, WriteDurability::Cached).unwrap(),
                            1 => device.write_at(&buffer, pos, WriteDurability::Fua).unwrap(),
                            _ => {
                                let write = request(Op::Write, pos, 512, buffer.memory(0), 0);
                                // SAFETY: the buffer is not touched until the completion is reaped.
                                unsafe { queue.push(write) }.unwrap();
                                assert_eq!(reap_all(&mut queue)[0].result, 512);
                            }
                        }
                        device.read_at(&mut back, pos).unwrap();
                        assert!(back[..] == buffer[..], "{kind}: {pos}");
                        if round % 100 == 0 {
                            device.flush().unwrap();
                        }
                    }
                });
            }
        });
        let ours = contents(&*device, 1 << 20);
        for (at, byte) in ours.iter().enumerate().take(2000 * 8 * 512) {
            let block = at / 512;
            let wanted = if block % 2 == 0 { (block % 8 / 2) as u8 + 1 } else { before[at] };
            assert_eq!(*byte, wanted, "{kind}: byte {at:#x}");
        }
        drop(device);
        check(&image, false);
        assert_same(&ours, &converted(&image, &[]), kind);
    }
}
