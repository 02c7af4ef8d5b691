//! Sealed files and hashed volumes that `mkfs` made: this kernel measures them alike, reads them, and refuses a byte
//! that was changed on the device.

use crate::Test;
use crate::volumes::run;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::panic::{catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::Arc;
use uext4::device::Device;
use uext4::mkfs::{
    Contents, Defaults, DmVerity, Item, ItemKind, Made, Options, Seal, Source, SourceError, Tree, format_tree,
};
use uext4::{DeviceSpec, HashAlgorithm, OpenOptions, Timestamp, Volume, VolumeOptions, device};

/// Tests of this room.
pub const TESTS: &[Test] = &[
    ("vm_the_kernel_measures_sealed_files_alike", || sealed(4096, HashAlgorithm::Sha256, b"")),
    ("vm_the_kernel_measures_sealed_files_with_salt_alike", || sealed(4096, HashAlgorithm::Sha512, b"salt")),
    ("vm_sealed_files_in_small_blocks_are_measured_alike_or_not_mounted", small_blocks),
    ("vm_the_kernel_refuses_flipped_bytes_of_sealed_files", flipped),
    ("vm_dm_verity_reads_a_hashed_volume_and_refuses_flipped_bytes", hashed),
];

const DEVICE: &str = "/dev/nvme0n1";
const SIZES: [u64; 7] = [0, 100, 4096, 4097, 65_537, 128 * 4096 + 1, 5_000_000];
const VOLUME: u64 = 64 << 20;

fn byte_of(key: u64, at: u64) -> u8 {
    (at.wrapping_mul(31 + key) >> 3) as u8 ^ key as u8
}

struct Bytes;

impl Source for Bytes {
    fn read(&self, key: u64, pos: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        buffer.iter_mut().zip(pos..).for_each(|(byte, at)| *byte = byte_of(key, at));
        Ok(())
    }
}

fn contents(key: u64) -> Vec<u8> {
    (0..SIZES[key as usize]).map(|at| byte_of(key, at)).collect()
}

/// Makes a volume with files of these sizes, sealed or not.
fn volume(block: u32, seal: Option<Seal>) -> (Arc<dyn Device>, Made) {
    let mut tree = Tree::new(Timestamp::default());
    for (size, key) in SIZES.into_iter().zip(0..) {
        let kind = ItemKind::Regular(Contents::whole(size, key));
        let item = Item {
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified: Timestamp::default(),
            xattrs: BTreeMap::new(),
        };
        let id = tree.add(Tree::ROOT, format!("file-{key}").as_bytes(), item).expect("a name");
        if let Some(seal) = seal {
            tree.seal(id, seal).expect("a regular file");
        }
    }
    let mut options = Options::new(Defaults::Upstream).for_reading();
    (options.size, options.block_size, options.force) = (Some(VOLUME), Some(block), true);
    let how = device::OpenOptions { write: true, force: false };
    let device = device::open(&DeviceSpec::file(DEVICE), how).expect("the device").device;
    let made = format_tree(&*device, &options, &tree, &Bytes).expect("a volume");
    (device, made)
}

/// Runs a test while the device is mounted.
fn mounted(device: &str, test: impl FnOnce() + std::panic::UnwindSafe) {
    run("mount", &["-t", "ext4", "-o", "ro", device, "/mnt"]);
    let done = catch_unwind(test);
    run("umount", &["/mnt"]);
    done.unwrap_or_else(|panic| resume_unwind(panic));
}

fn measure(path: &str) -> String {
    let output = Command::new("/sbin/fsverity").args(["measure", path]).output().expect("fsverity");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Linux mounts volumes with the feature and blocks that are smaller than a page since 6.3.
fn small_blocks() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let numbers: Vec<u32> = release.split('.').take(2).filter_map(|number| number.parse().ok()).collect();
    if numbers >= vec![6, 3] {
        sealed(1024, HashAlgorithm::Sha256, b"");
        return sealed(2048, HashAlgorithm::Sha512, b"salt");
    }
    drop(volume(1024, Some(Seal::default())));
    let mounted = Command::new("mount").args(["-t", "ext4", "-o", "ro", DEVICE, "/mnt"]).status();
    assert!(!mounted.expect("mount").success(), "{release}");
}

fn sealed(block: u32, algorithm: HashAlgorithm, salt: &[u8]) {
    drop(volume(block, Some(Seal::new(algorithm, salt).expect("a salt"))));
    run("/sbin/e2fsck", &["-fn", DEVICE]);
    let volume = Volume::open(DEVICE, VolumeOptions::read_only()).expect("the volume");
    let digests: Vec<String> = (0..SIZES.len())
        .map(|key| {
            let path = format!("/file-{key}");
            let file = volume.open_file(&path, OpenOptions::new().read(true)).expect("the file");
            let verity = file.verify_verity(&mut |_| {}).expect("no damage").expect("a sealed file");
            let digest: String = verity.digest().iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{}:{digest} /mnt{path}", algorithm.name())
        })
        .collect();
    drop(volume);
    mounted(DEVICE, || {
        for (digest, key) in digests.iter().zip(0..) {
            let path = format!("/mnt/file-{key}");
            assert_eq!(&measure(&path), digest);
            assert!(fs::read(&path).expect("the kernel reads it") == contents(key), "{path}");
        }
    });
}

fn flip(at: u64) {
    let device = fs::OpenOptions::new().read(true).write(true).open(DEVICE).expect("the device");
    let mut byte = [0];
    device.read_exact_at(&mut byte, at).expect("read");
    device.write_all_at(&[!byte[0]], at).expect("write");
    device.sync_all().expect("sync");
}

/// Where a block of a file is, behind its end too.
fn place(path: &str, logical: u64) -> u64 {
    let request = format!("bmap {path} {logical}");
    let output = Command::new("/sbin/debugfs").args(["-R", &request, DEVICE]).output().expect("debugfs");
    String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().expect("a block") * 4096
}

/// Reads a byte of a file by the kernel.
fn read(path: &str, at: u64) -> std::io::Result<()> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut [0])
}

fn flipped() {
    drop(volume(4096, Some(Seal::default())));
    let path = "/file-6";
    let tree = SIZES[6].next_multiple_of(65_536) / 4096;
    let blocks = SIZES[6].div_ceil(4096);
    // A byte in the middle, one behind the end, the lowest level (the tenth of its 1221 digests).
    for (logical, within, broken) in
        [(600, 7, 600), (blocks - 1, 4095, blocks - 1), (tree + 1, 32 * 9, 9), (tree, 1, 0)]
    {
        let at = place(path, logical) + within;
        flip(at);
        let ours = Volume::open(DEVICE, VolumeOptions::read_only()).expect("the volume");
        let file = ours.open_file(path, OpenOptions::new().read(true)).expect("the file");
        file.verify_verity(&mut |_| {}).expect_err("a flipped byte");
        drop((file, ours));
        mounted(DEVICE, || {
            let error = read("/mnt/file-6", broken * 4096).expect_err("a flipped byte");
            assert_eq!(error.raw_os_error(), Some(5), "{logical}: {error}");
            if logical < tree {
                read("/mnt/file-6", 4096).expect("another block");
            }
        });
        flip(at);
    }
    mounted(DEVICE, || read("/mnt/file-6", 0).expect("as it was"));
}

fn hashed() {
    let (device, made) = volume(4096, None);
    let offset = DmVerity::offset(&made.superblock.geometry);
    let hashed = DmVerity::default().format(&*device, &made.superblock, None, offset).expect("a hash tree");
    drop(device);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let blocks = hashed.superblock.data_blocks;
    let table = format!(
        "0 {} verity 1 {DEVICE} {DEVICE} 4096 4096 {blocks} {} sha256 {} {}",
        blocks * 8,
        offset / 4096 + 1,
        hex(&hashed.root_hash),
        hex(&hashed.superblock.salt)
    );
    let through = |test: &(dyn Fn() + std::panic::RefUnwindSafe)| {
        run("/sbin/dmsetup", &["create", "hashed", "--readonly", "--table", &table]);
        run("/sbin/dmsetup", &["mknodes"]);
        let done = catch_unwind(test);
        run("/sbin/dmsetup", &["remove", "hashed"]);
        done.unwrap_or_else(|panic| resume_unwind(panic));
    };
    let all = || {
        let mut device = fs::File::open("/dev/mapper/hashed").expect("the mapped device");
        std::io::copy(&mut device, &mut std::io::sink())
    };
    through(&|| {
        assert_eq!(all().expect("every block"), VOLUME);
        mounted("/dev/mapper/hashed", || {
            for key in 0..SIZES.len() as u64 {
                let read = fs::read(format!("/mnt/file-{key}")).expect("the kernel reads it");
                assert!(read == contents(key), "{key}");
            }
        });
    });
    let at = place("/file-6", 600) + 100;
    flip(at);
    through(&|| {
        assert_eq!(all().expect_err("a flipped byte").raw_os_error(), Some(5));
        mounted("/dev/mapper/hashed", || {
            let error = read("/mnt/file-6", 600 * 4096).expect_err("a flipped byte");
            assert_eq!(error.raw_os_error(), Some(5));
        });
    });
    std::io::stdout().flush().expect("the console");
}
