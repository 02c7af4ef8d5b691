//! Multi-mount protection: who is reported as the owner of a volume, and what a damaged block does.

use crate::common;

use common::{Image, assert_unchanged, open_ro, open_rw, read_only, read_write};
use std::sync::LazyLock;
use uext4::{Error, RecoveryState, Volume, VolumeOptions, WriteFlags};
use uext4_ondisk::ext4::{MmpBlock, MmpOwner, Superblock};
use uext4_ondisk::{CorruptKind, Pblk};
use uext4_testkit::{LoopDevice, LoopOptions, Mount, Need, VolumeBuilder, needs, oracle};

const FSCK: u32 = 0xe24d_4d50;
const CLEAN: u32 = 0xff4d_4d50;

fn made(block: u32, checksums: bool) -> Image {
    let block = block.to_string();
    let features = if checksums { "mmp" } else { "mmp,^metadata_csum" };
    Image::load(VolumeBuilder::new(16 << 20).args(["-b", &block, "-O", features]).build().path())
}

static PLAIN: LazyLock<Image> = LazyLock::new(|| made(4096, true));

fn superblock(image: &Image) -> Superblock {
    Superblock::decode(&image.bytes[1024..2048]).unwrap()
}

/// Where the block begins in the image.
fn place(image: &Image) -> usize {
    let superblock = superblock(image);
    (superblock.mmp.block.get() * u64::from(superblock.geometry.block_size())) as usize
}

/// The image as another node would leave it, with a correct checksum.
fn planted(image: &Image, sequence: u32, node: &str) -> Image {
    let mut image = image.clone();
    let (superblock, at) = (superblock(&image), place(&image));
    let bytes = &mut image.bytes[at..at + 1024];
    let mut mmp = MmpBlock::decode(bytes, &superblock).unwrap();
    mmp.sequence = sequence;
    mmp.node_name = [0; 64];
    mmp.node_name[..node.len()].copy_from_slice(node.as_bytes());
    mmp.device_name = [0; 32];
    mmp.device_name[..4].copy_from_slice(b"sdx7");
    mmp.encode(bytes, &superblock).unwrap();
    image
}

fn refusal(image: &Image, options: VolumeOptions) -> Error {
    let device = image.device();
    let error = Volume::open_device(device.clone(), options).map(|_| ()).unwrap_err();
    assert_unchanged(image, &*device);
    error
}

#[test]
fn a_clean_volume_is_read_and_its_state_told() {
    needs!(Need::Tool("mke2fs"));
    for (block, checksums) in [(1024, true), (4096, true), (4096, false), (65536, true)] {
        let image = made(block, checksums);
        let info = open_ro(image.device()).info();
        let mmp = info.mmp.unwrap();
        assert_eq!((mmp.owner(), mmp.sequence), (MmpOwner::Nobody, CLEAN));
        assert!(!info.notes.iter().any(|note| note.contains("another node")), "{:?}", info.notes);
    }
    let without = Image::load(VolumeBuilder::new(16 << 20).build().path());
    assert!(open_ro(without.device()).info().mmp.is_none());
}

#[test]
fn an_owner_is_named_and_force_reads_all_the_same() {
    needs!(Need::Tool("mke2fs"));
    for (sequence, word) in [
        (1, "another node"),
        (0x1234_5678, "another node"),
        (FSCK - 1, "another node"),
        (FSCK, "check"),
        (0, "unknown owner"),
        (FSCK + 1, "unknown owner"),
        (CLEAN - 1, "unknown owner"),
        (u32::MAX, "unknown owner"),
    ] {
        let image = planted(&PLAIN, sequence, "far-away");
        let error = refusal(&image, VolumeOptions::read_only());
        let text = error.to_string();
        assert!(matches!(error, Error::InUse(_)) && error.errno() == 16, "{sequence:#x}: {error}");
        let block = format!("block {}", superblock(&image).mmp.block);
        for part in [word, "`far-away`", "`sdx7`", &block, "force"] {
            assert!(text.contains(part), "{sequence:#x}: no {part} in {text}");
        }
        let device = image.device();
        let volume = Volume::open_device(device.clone(), VolumeOptions::read_only().force(true)).unwrap();
        assert_eq!(volume.info().mmp.unwrap().sequence, sequence);
        assert!(volume.info().notes.iter().any(|note| note.contains("another node")));
        volume.metadata("/lost+found").unwrap();
        assert_unchanged(&image, &*device);
        // A checker or an unknown owner is not waited for, with or without force.
        if sequence == 0 || sequence >= FSCK {
            for force in [false, true] {
                let error = refusal(&image, VolumeOptions::read_write().force(force));
                assert!(matches!(error, Error::InUse(_)), "{error}");
            }
        }
    }
    let hostile = planted(&PLAIN, 7, "\x1b[2J\n");
    let text = refusal(&hostile, VolumeOptions::read_only()).to_string();
    assert!(!text.chars().any(char::is_control), "{text:?}");
}

#[test]
fn somebody_elses_journal_is_not_ours_to_recover() {
    needs!(Need::Tool("mke2fs"));
    const INCOMPAT: usize = 0x60;
    let mut mounted = planted(&PLAIN, 99, "far-away");
    mounted.set_bits(INCOMPAT, 4);
    let error = refusal(&mounted, VolumeOptions::read_only());
    assert!(matches!(error, Error::InUse(_)), "{error}");
    // It has no owner: we recover it, in memory.
    let mut crashed = PLAIN.clone();
    crashed.set_bits(INCOMPAT, 4);
    let device = crashed.device();
    assert!(Volume::open_device(device.clone(), VolumeOptions::read_only()).unwrap().info().recovery.needed);
    assert_unchanged(&crashed, &*device);
    // For writing it is recovered on the device, after it is claimed.
    let volume = open_rw(device.clone());
    assert!(volume.info().recovery.state != RecoveryState::Overlay);
    volume.open_file("/made", read_write().create(true)).unwrap();
    volume.close().unwrap();
    let scratch = uext4_testkit::Scratch::new(32 << 20);
    let path = scratch.file("volume.img");
    Image::of(&*device).save(&path);
    oracle::e2fsck_clean(&path);
}

/// The kernel waits to see whether the block changes, and sees that. Afterwards it can mount the volume.
#[test]
fn root_the_kernel_does_not_mount_what_we_have_open() {
    needs!(Need::Loop);
    let made = VolumeBuilder::new(16 << 20).args(["-O", "mmp"]).extended("mmp_update_interval=1").build();
    let volume = Volume::open(made.path(), VolumeOptions::read_write()).unwrap();
    let file = volume.open_file("/file", read_write().create(true)).unwrap();
    file.write_any_at(b"ours", 0, WriteFlags::SYNC).unwrap();
    let device = LoopDevice::attach(made.path(), LoopOptions::default());
    let mounted = Mount::try_attach(device.path(), "ext4", "");
    assert!(mounted.is_err(), "the kernel has mounted it");
    drop((mounted, device));
    file.write_any_at(b" still", 4, WriteFlags::SYNC).unwrap();
    drop(file);
    volume.close().unwrap();
    made.assert_clean();
    made.with_kernel(|root| assert_eq!(std::fs::read(root.join("file")).unwrap(), b"ours still"));
}

/// Asserts the kind and block of a refusal, with and without force.
#[track_caller]
fn assert_corrupt(image: &Image, kind: CorruptKind, block: u64) {
    for force in [false, true] {
        match refusal(image, VolumeOptions::read_only().force(force)) {
            Error::Corrupt(corrupt) => {
                assert_eq!((corrupt.kind, corrupt.place.block), (kind, Some(Pblk(block))), "force {force}");
            }
            other => panic!("force {force}: {other}"),
        }
    }
}

#[test]
fn a_damaged_block_is_told_and_force_does_not_hide_it() {
    needs!(Need::Tool("mke2fs"));
    let (at, block) = (place(&PLAIN), superblock(&PLAIN).mmp.block.get());
    for (offset, kind) in [
        (0, CorruptKind::MmpMagic),
        (4, CorruptKind::MmpChecksum),
        (20, CorruptKind::MmpChecksum),
        (1020, CorruptKind::MmpChecksum),
    ] {
        let mut image = PLAIN.clone();
        image.bytes[at + offset] ^= 1;
        assert_corrupt(&image, kind, block);
    }
    let outside = CorruptKind::BlockOutsideVolume("multi-mount protection");
    const MMP_BLOCK: usize = 0x168;
    for place in [0, 4096, u64::MAX, u64::MAX / 4096] {
        let mut image = PLAIN.clone();
        image.patch_superblock(|superblock| {
            superblock[MMP_BLOCK..MMP_BLOCK + 8].copy_from_slice(&place.to_le_bytes());
        });
        assert_corrupt(&image, outside, place);
    }
}

#[test]
fn a_file_mapped_onto_the_block_is_refused() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let volume = VolumeBuilder::new(16 << 20).args(["-b", "4096", "-O", "mmp,^metadata_csum"]).build();
    let block = superblock(&Image::load(volume.path())).mmp.block;
    let source = volume.scratch().file("source");
    std::fs::write(&source, vec![1; 4096]).unwrap();
    // No checksums: the file's single extent can be moved by hand. The state is also in the image, since debugfs would
    // wait for other hosts before it writes.
    // debugfs would wait for other hosts before it writes.
    let plain = VolumeBuilder::new(16 << 20).args(["-b", "4096", "-O", "^metadata_csum"]).build();
    oracle::debugfs_write(plain.path(), &format!("write {} victim", source.display()));
    let mut image = Image::load(plain.path());
    let info = oracle::debugfs(plain.path(), "bmap /victim 0");
    let old: u32 = info.trim().parse().unwrap();
    let leaf: Vec<u8> = [0u32.to_le_bytes(), [1, 0, 0, 0], old.to_le_bytes()].concat();
    let at = image.bytes.windows(12).position(|bytes| bytes == leaf).expect("the extent of the file");
    image.bytes[at + 8..at + 12].copy_from_slice(&(block.get() as u32).to_le_bytes());
    let source = Image::load(volume.path());
    let from = (block.get() * 4096) as usize;
    image.bytes[from..from + 4096].copy_from_slice(&source.bytes[from..from + 4096]);
    image.patch_superblock(|superblock| {
        superblock[0x60 + 1] |= 1;
        superblock[0x168..0x170].copy_from_slice(&block.get().to_le_bytes());
    });
    let volume = open_ro(image.device());
    let file = volume.open_file("/victim", read_only()).unwrap();
    let error = file.read_at(&mut common::aligned(4096), 0).unwrap_err();
    assert!(matches!(error, Error::CorruptInode { .. }) && error.to_string().contains("metadata"), "{error}");
}

/// debugfs prints the same owner as we do.
#[test]
fn debugfs_reads_the_same_block() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let scratch = uext4_testkit::Scratch::new(32 << 20);
    let path = scratch.file("volume.img");
    planted(&PLAIN, 4711, "far-away").save(&path);
    let said = oracle::command("debugfs").args(["-R", "dump_mmp"]).arg(&path).output().unwrap();
    let said = oracle::text(&said);
    assert!(said.contains("far-away") && said.contains("sdx7"), "{said}");
    let volume = Volume::open(path.to_str().unwrap(), VolumeOptions::read_only().force(true)).unwrap();
    let mmp = volume.info().mmp.unwrap();
    assert!(said.contains(&format!("sequence: {:08x}", mmp.sequence)), "{said}");
}
