//! The product itself, on files of ext4 volumes that the guest's own kernel made.

use crate::Test;
use crate::trace::traced;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use uext4::device::DaxKind;
use uext4::{
    Ask, Buffer, Counter, File, OpenOptions, QueueOptions, State, Volume, VolumeOptions, WriteFlags,
};

/// Tests of this room.
pub const TESTS: &[Test] = &[
    ("vm_file_on_nvme_polled_with_registered_buffers", || polled_file("/dev/nvme0n1")),
    ("vm_volume_by_nvme_commands", by_nvme_commands),
    ("vm_file_on_null_blk_polled_with_registered_buffers", || polled_file("/dev/nullb0")),
    ("vm_dsync_overwrite_is_one_fua_write_and_no_flush", dsync_overwrite_is_fua),
    ("vm_dsync_overwrite_by_the_plain_route_flushes", dsync_overwrite_flushes),
    ("vm_subblock_overwrites_on_nvme", subblock_overwrites),
    ("vm_file_on_pmem_by_map_sync", mapped_file),
];

const FILE_BYTES: usize = 4 << 20;

/// Runs a program of the guest, which must succeed.
pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

fn byte_of(index: usize) -> u8 {
    (index.wrapping_mul(31) >> 3) as u8 ^ 0x5A
}

/// Formats `device`, lets the guest's kernel write one file to it, unmounts.
fn volume_by_the_kernel(device: &str) {
    run("/sbin/mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", device, "256M"]);
    run("mount", &["-t", "ext4", device, "/mnt"]);
    let data: Vec<u8> = (0..FILE_BYTES).map(byte_of).collect();
    let written = fs::write("/mnt/data", &data);
    run("umount", &["/mnt"]);
    written.expect("the kernel writes the file");
}

/// What the kernel reads from the file after us; the volume must be clean.
fn file_by_the_kernel(device: &str) -> Vec<u8> {
    run("/sbin/e2fsck", &["-fn", device]);
    run("mount", &["-t", "ext4", "-o", "ro", device, "/mnt"]);
    let data = fs::read("/mnt/data");
    run("umount", &["/mnt"]);
    data.expect("the kernel reads the file")
}

fn open(spec: &str, switches: &str) -> (Volume, File) {
    let options = VolumeOptions::read_write().switches(switches.parse().expect("switches"));
    let volume = Volume::open(spec, options).unwrap_or_else(|e| panic!("{spec}: {e}"));
    let file = volume.open_file("/data", OpenOptions::new().read(true).write(true)).expect("the file");
    assert!(file.map().all(|piece| piece.expect("mapping").state == State::Written));
    (volume, file)
}

/// Everything by NVMe commands, nothing by the block layer: what the kernel made is read, overwritten and added to, and
/// the kernel reads it afterwards.
fn by_nvme_commands() {
    let device = "/dev/nvme0n1";
    volume_by_the_kernel(device);
    let mut expected: Vec<u8> = (0..FILE_BYTES).map(byte_of).collect();
    let added: Vec<u8> = (0..1 << 20).map(|index| byte_of(index + 7)).collect();
    {
        let (volume, file) = open(&format!("nvme:{device}"), "");
        let mut queue = volume.queue(QueueOptions::depth(64)).expect("a queue");
        let slot = queue.attach(&file).expect("slot");
        for index in 0..64usize {
            let mut buffer: Buffer = queue.buffer(8192).expect("buffer");
            buffer.fill(index as u8);
            let flags = if index % 2 == 0 { WriteFlags::DSYNC } else { WriteFlags::empty() };
            queue.write(slot, index as u64 * 32768, buffer, flags, index as u64).expect("write");
            expected[index * 32768..index * 32768 + 8192].fill(index as u8);
        }
        let done: Vec<_> = queue.wait(64).expect("wait").collect();
        assert!(done.len() == 64 && done.iter().all(|done| matches!(done.result, Ok(8192))));
        for index in 0..64u64 {
            let buffer = queue.buffer(4096).expect("buffer");
            queue.read(slot, index * 65536 + 4096, buffer, index).expect("read");
        }
        for done in queue.wait(64).expect("wait") {
            assert_eq!(done.result.expect("read"), 4096);
            let (pos, buffer) =
                (done.tag as usize * 65536 + 4096, done.payload.into_buffer().expect("buffer"));
            assert!(buffer[..] == expected[pos..pos + 4096], "read {pos}");
        }
        queue.sync_data(slot, 999).expect("sync");
        assert!(queue.wait(1).expect("wait").all(|done| done.result.is_ok()));
        let new = OpenOptions::new().write(true).create(true);
        let file = volume.open_file("/added", new).expect("a new file");
        file.write_any_at(&added, 0, WriteFlags::empty()).expect("write");
        file.sync_all().expect("sync");
        assert!(volume.stats().get(Counter::FuaWrites) >= 32);
    }
    assert!(file_by_the_kernel(device) == expected, "the kernel reads something else");
    run("mount", &["-t", "ext4", "-o", "ro", device, "/mnt"]);
    let data = fs::read("/mnt/added");
    run("umount", &["/mnt"]);
    assert!(data.expect("the kernel reads the new file") == added);
}

/// Reads and overwrites through a busy-polled, owner-driven queue with registered memory; polled FUA writes too.
fn polled_file(device: &str) {
    volume_by_the_kernel(device);
    let mut expected: Vec<u8> = (0..FILE_BYTES).map(byte_of).collect();
    {
        let (volume, file) = open(device, "");
        let options = QueueOptions::depth(32)
            .iopoll(Ask::Require)
            .register_buffers(Ask::Require)
            .register_file(Ask::Require);
        let mut queue = volume.queue(options).expect("a polled queue");
        let facts = queue.facts();
        assert!(facts.polled && facts.registered_buffers && facts.owner_driven, "{facts:?}");
        let slot = queue.attach(&file).expect("slot");
        for round in 0..8u64 {
            for index in 0..32u64 {
                let buffer = queue.buffer(4096).expect("buffer");
                queue.read(slot, (round * 32 + index) * 16384, buffer, round * 32 + index).expect("read");
            }
            let done: Vec<_> = queue.wait(32).expect("wait").collect();
            assert_eq!(done.len(), 32);
            for done in done {
                assert_eq!(done.result.expect("read"), 4096);
                let (tag, buffer) = (done.tag as usize * 16384, done.payload.into_buffer().expect("buffer"));
                assert!(buffer[..] == expected[tag..tag + 4096], "read {tag}");
            }
        }
        for index in 0..64usize {
            let mut buffer: Buffer = queue.buffer(4096).expect("buffer");
            buffer.fill(index as u8);
            let flags = if index % 2 == 0 { WriteFlags::DSYNC } else { WriteFlags::empty() };
            queue.write(slot, index as u64 * 8192, buffer, flags, index as u64).expect("write");
            expected[index * 8192..index * 8192 + 4096].fill(index as u8);
            for done in queue.wait(1).expect("wait") {
                assert_eq!(done.result.expect("write"), 4096);
            }
        }
        queue.sync_data(slot, 999).expect("sync");
        let synced: Vec<_> = queue.wait(1).expect("wait").collect();
        assert!(synced.iter().all(|done| done.result.is_ok()));
        let stats = volume.stats();
        assert_eq!(stats.get(Counter::SimpleReads), 256);
        assert_eq!(stats.get(Counter::OverwritesWithoutHandle), 64);
    }
    assert!(file_by_the_kernel(device) == expected, "the kernel reads something else");
}

const WRITES: u64 = 16;

/// Queued O_DSYNC overwrites of the file, and what the block layer was sent meanwhile.
fn dsync_overwrites(switches: &str) -> (Vec<crate::trace::Issued>, Volume) {
    volume_by_the_kernel("/dev/nvme0n1");
    let (volume, file) = open("/dev/nvme0n1", switches);
    let mut queue = volume.queue(QueueOptions::depth(8)).expect("queue");
    let slot = queue.attach(&file).expect("slot");
    // The mapping is loaded outside the trace.
    let buffer = queue.buffer(4096).expect("buffer");
    queue.read(slot, 0, buffer, 0).expect("read");
    queue.wait(1).expect("wait").for_each(drop);
    let issued = traced(|| {
        for index in 0..WRITES {
            let mut buffer = queue.buffer(4096).expect("buffer");
            buffer.fill(0xD5);
            queue.write(slot, index * 4096, buffer, WriteFlags::DSYNC, index).expect("write");
            for done in queue.wait(1).expect("wait") {
                assert_eq!(done.result.expect("write"), 4096);
            }
        }
    });
    (issued, volume)
}

fn dsync_overwrite_is_fua() {
    let (issued, volume) = dsync_overwrites("");
    let writes = issued.iter().filter(|request| request.sectors > 0).count();
    let fua = issued.iter().filter(|request| request.is_fua() && request.sectors == 8).count();
    let flushes = issued.iter().filter(|request| request.is_flush()).count();
    assert_eq!((writes, fua, flushes), (WRITES as usize, WRITES as usize, 0), "{issued:?}");
    let stats = volume.stats();
    assert_eq!((stats.get(Counter::FuaWrites), stats.get(Counter::Flushes)), (WRITES, 0));
    assert_eq!(stats.get(Counter::Commits), 0);
    drop(volume);
    assert!(file_by_the_kernel("/dev/nvme0n1")[..WRITES as usize * 4096].iter().all(|&byte| byte == 0xD5));
}

fn dsync_overwrite_flushes() {
    let (issued, volume) = dsync_overwrites("fua-dsync-overwrite=off");
    let fua = issued.iter().filter(|request| request.is_fua()).count();
    let flushes = issued.iter().filter(|request| request.is_flush()).count();
    assert_eq!(fua, 0, "{issued:?}");
    assert!(flushes >= WRITES as usize, "{issued:?}");
    assert_eq!(volume.stats().get(Counter::Flushes), WRITES);
}

/// 512-byte overwrites of a 4 KiB-block file, many in flight.
fn subblock_overwrites() {
    volume_by_the_kernel("/dev/nvme0n1");
    let mut expected: Vec<u8> = (0..FILE_BYTES).map(byte_of).collect();
    {
        let (volume, file) = open("/dev/nvme0n1", "");
        let mut queue = volume.queue(QueueOptions::depth(64)).expect("queue");
        let slot = queue.attach(&file).expect("slot");
        for index in 0..64usize {
            let mut buffer = queue.buffer(512).expect("buffer");
            buffer.fill(index as u8);
            queue.write(slot, index as u64 * 1024, buffer, WriteFlags::empty(), 0).expect("write");
            expected[index * 1024..index * 1024 + 512].fill(index as u8);
        }
        for done in queue.wait(64).expect("wait") {
            assert_eq!(done.result.expect("write"), 512);
        }
        file.sync_data().expect("sync");
        assert_eq!(volume.stats().get(Counter::SharedSubblockWrites), 64);
    }
    assert!(file_by_the_kernel("/dev/nvme0n1") == expected, "the kernel reads something else");
}

/// Copies from and to a file on persistent memory, durable without a system call.
fn mapped_file() {
    volume_by_the_kernel("/dev/pmem0");
    let mut expected: Vec<u8> = (0..FILE_BYTES).map(byte_of).collect();
    // fsdax: the image is a file on a DAX mount, the only place where MAP_SYNC exists.
    run("mount", &["-t", "ext4", "-o", "dax=always", "/dev/pmem0", "/mnt"]);
    let inner = "/mnt/inner.img";
    let prepared = prepare_inner(inner, &expected);
    let checked = std::panic::catch_unwind(|| overwrite_inner(inner));
    let clean = Command::new("/sbin/e2fsck").args(["-fn", inner]).output();
    let dumped = Command::new("/sbin/debugfs").args(["-R", "cat /data", inner]).output();
    run("umount", &["/mnt"]);
    prepared.expect("the inner volume");
    checked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert!(clean.expect("e2fsck").status.success(), "the inner volume is not clean");
    expected[8192..12288].fill(0xDA);
    assert!(dumped.expect("debugfs").stdout == expected, "debugfs reads something else");
}

/// A fully allocated image with one file on it, written by the guest's kernel through a loop device.
fn prepare_inner(inner: &str, data: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    const INNER_MOUNT: &str = "/tmp/inner";
    let mut image = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(inner)?;
    for _ in 0..32 {
        image.write_all(&[0u8; 1 << 20])?;
    }
    image.sync_all()?;
    drop(image);
    // `nodiscard`: a discarded image would have holes, and a mapped one must not.
    run("/sbin/mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-E", "nodiscard", inner]);
    fs::create_dir_all(INNER_MOUNT)?;
    run("mount", &["-t", "ext4", "-o", "loop", inner, INNER_MOUNT]);
    let written = fs::write(format!("{INNER_MOUNT}/data"), data);
    run("umount", &[INNER_MOUNT]);
    written
}

fn overwrite_inner(inner: &str) {
    let (volume, file) = open(&format!("dax:{inner}"), "");
    assert_eq!(volume.device().capabilities().dax, Some(DaxKind::MapSync));
    let mut buffer = vec![0u8; 4096];
    file.read_at(&mut buffer, 8192).expect("read");
    assert!((0..4096).all(|index| buffer[index] == byte_of(8192 + index)));
    buffer.fill(0xDA);
    file.write_at_with(&buffer, 8192, WriteFlags::DSYNC).expect("write");
    let stats = volume.stats();
    assert_eq!(stats.get(Counter::DaxCopies), 2);
    assert_eq!((stats.get(Counter::DioCounted), stats.get(Counter::FuaWrites)), (0, 1));
}
