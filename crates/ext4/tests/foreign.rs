//! A device that is not an ext2, ext3 or ext4 volume is reported as such, naming its contents; a damaged volume is
//! reported as damaged.

use std::path::Path;
use std::sync::Arc;
use uext4::device::partition::Scheme;
use uext4::{Contents, Error, Foreign, Volume, VolumeOptions};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};

const MIB: usize = 1 << 20;

/// The error of opening `image`, the same for reading and writing.
#[track_caller]
fn refusal(image: &Path) -> Error {
    let open = |options| Volume::open(image.to_str().unwrap(), options).map(drop).unwrap_err();
    let error = open(VolumeOptions::read_only());
    assert_eq!(error.to_string(), open(VolumeOptions::read_write()).to_string());
    error
}

#[track_caller]
fn foreign(image: &Path) -> (Arc<Foreign>, String) {
    let error = refusal(image);
    let text = error.to_string();
    assert_eq!(error.errno(), libc::EINVAL, "{text}");
    let rest = text.strip_prefix("not an ext2/3/4 volume: ").unwrap_or_else(|| panic!("{text}")).to_owned();
    match error {
        Error::NotExt4(foreign) => (foreign, rest),
        other => panic!("{other:?}"),
    }
}

fn image(scratch: &Scratch, bytes: &[u8]) -> std::path::PathBuf {
    let path = scratch.file("image");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The signatures of formats, where their specifications place them.
#[test]
fn other_formats_are_named() {
    let scratch = Scratch::new(8 << 20);
    let marks: [(&str, usize, &[u8]); 12] = [
        (
            "Microsoft Virtual Hard Disk 2 (make a raw image of it first, as with `qemu-img convert -O raw`)",
            0,
            b"vhdxfile",
        ),
        ("XFS", 0, b"XFSB"),
        ("Btrfs", 0x1_0040, b"_BHRfS_M"),
        ("FAT32", 0x52, b"FAT32   "),
        ("FAT16", 0x36, b"FAT16   "),
        ("Linux swap", 4086, b"SWAPSPACE2"),
        ("LUKS", 0, b"LUKS\xba\xbe\x00\x02"),
        ("gzip (uncompress it first)", 0, b"\x1f\x8b\x08\x00"),
        ("XZ (uncompress it first)", 0, b"\xfd7zXZ\x00\x00\x04"),
        ("Zstandard (uncompress it first)", 0, b"\x28\xb5\x2f\xfd"),
        ("squashfs", 0, b"hsqs"),
        ("NTFS", 3, b"NTFS    "),
    ];
    for (name, at, mark) in marks {
        let mut bytes = vec![0; MIB];
        bytes[at..at + mark.len()].copy_from_slice(mark);
        // Boot sectors of file systems have the mark of an MBR, and are not partition tables.
        if name.starts_with("FAT") || name == "NTFS" {
            bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        }
        let (_, text) = foreign(&image(&scratch, &bytes));
        assert_eq!(text, format!("it looks like {name}"));
    }
    let mut bytes = vec![0; MIB];
    bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    let raw = format!("{}?format=raw", image(&scratch, &bytes).display());
    let (_, text) = foreign(Path::new(&raw));
    assert_eq!(text, "it looks like QEMU Copy On Write (the disk in it is read without `format=raw`)");
}

#[test]
fn nothing_known_zeros_and_too_few_bytes() {
    let scratch = Scratch::new(8 << 20);
    let (what, text) = foreign(&image(&scratch, &vec![0; MIB]));
    assert_eq!(
        (&*what, &*text),
        (&Foreign::Contents(Contents::Zeros(256 << 10)), "its first 256 KiB are zeros")
    );
    let (what, text) = foreign(&image(&scratch, &vec![0x9d; MIB]));
    assert_eq!(*what, Foreign::Contents(Contents::Unknown));
    assert!(text.contains("no superblock") && text.contains("e2fsck -b 32768"), "{text}");
    let (what, text) = foreign(&image(&scratch, &[0; 1024]));
    assert_eq!(*what, Foreign::TooShort(1024));
    assert_eq!(text, "it has 1024 bytes, too few for a superblock");
}

/// Images made by the formats' own tools.
#[test]
fn tools_agree() {
    needs!(Need::Tool("mkswap"), Need::Tool("gzip"), Need::Tool("zstd"), Need::Tool("mke2fs"));
    let scratch = Scratch::new(64 << 20);
    let swap = scratch.sparse_file("swap", 8 << 20);
    oracle::run(oracle::command("mkswap").arg(&swap));
    assert_eq!(foreign(&swap).1, "it looks like Linux swap");
    let volume = VolumeBuilder::new(16 << 20).build();
    for (tool, name) in [("gzip", "gzip"), ("zstd", "Zstandard")] {
        let output = oracle::command(tool).arg("-c").arg(volume.path()).output().unwrap();
        assert!(output.status.success());
        let (_, text) = foreign(&image(&scratch, &output.stdout));
        assert_eq!(text, format!("it looks like {name} (uncompress it first)"));
    }
}

/// Numbers, sizes and contents of partitions, as in `?partition=N`.
#[test]
fn partitions_are_listed() {
    needs!(Need::Tool("sfdisk"), Need::Tool("mke2fs"), Need::Tool("mkswap"));
    let scratch = Scratch::new(128 << 20);
    for (label, scheme, kind) in [("gpt", Scheme::Gpt, "GPT"), ("dos", Scheme::Mbr, "MBR")] {
        let disk = scratch.file(format!("{label}.img"));
        std::fs::File::create_new(&disk).unwrap().set_len(64 << 20).unwrap();
        let table = format!("label: {label}\n1: start=2048, size=8MiB\n3: start=20480, size=24MiB\n");
        let script = scratch.file("script");
        std::fs::write(&script, table).unwrap();
        let mut sfdisk = oracle::command("sfdisk");
        oracle::run(sfdisk.arg("-q").arg(&disk).stdin(std::fs::File::open(&script).unwrap()));
        oracle::run(
            oracle::command("mke2fs")
                .args(["-q", "-t", "ext4", "-E", "offset=10485760"])
                .arg(&disk)
                .arg("24M"),
        );
        let (what, text) = foreign(&disk);
        assert_eq!(
            *what,
            Foreign::Partitions {
                scheme,
                partitions: vec![
                    (1, 8 << 20, Contents::Zeros(256 << 10)),
                    (3, 24 << 20, Contents::Volume("ext2/3/4"))
                ],
                more: 0
            }
        );
        assert_eq!(
            text,
            format!(
                "it looks like a disk with a partition table ({kind}): 1 (8 MiB, empty), 3 (24 MiB, ext2/3/4), \
                 to be chosen with `?partition=N`"
            )
        );
        let third = format!("{}?partition=3", disk.display());
        assert!(Volume::open(&third, VolumeOptions::read_only()).unwrap().metadata("/lost+found").is_ok());
        let first = format!("{}?partition=1", disk.display());
        assert!(matches!(
            Volume::open(&first, VolumeOptions::read_only()),
            Err(Error::NotExt4(what)) if matches!(*what, Foreign::Contents(Contents::Zeros(_)))
        ));
    }
}

/// The first part of a disk image has the partition table, but not the partitions.
#[test]
fn a_disk_cut_short_is_told_to_be_a_disk() {
    needs!(Need::Tool("sfdisk"));
    let scratch = Scratch::new(64 << 20);
    let disk = scratch.file("disk");
    let file = std::fs::File::create_new(&disk).unwrap();
    file.set_len(64 << 20).unwrap();
    let script = scratch.file("script");
    let parts: String = (0..40).map(|_| "size=1MiB\n").collect();
    std::fs::write(&script, format!("label: gpt\n{parts}")).unwrap();
    let mut sfdisk = oracle::command("sfdisk");
    oracle::run(sfdisk.arg("-q").arg(&disk).stdin(std::fs::File::open(&script).unwrap()));
    let (_, text) = foreign(&disk);
    assert!(text.contains(" 32 (1 MiB, empty), 8 more, to be chosen"), "{text}");
    file.set_len(20 << 20).unwrap();
    let (what, text) = foreign(&disk);
    assert_eq!(*what, Foreign::Partitions { scheme: Scheme::Gpt, partitions: Vec::new(), more: 0 });
    assert!(
        text.ends_with("a partition table (GPT), without a partition that can be used (is the image whole?)"),
        "{text}"
    );
}

/// With a correct magic number it is an ext4 volume, whatever else is wrong.
#[test]
fn a_damaged_superblock_is_damage() {
    needs!(Need::Tool("mke2fs"));
    let volume = VolumeBuilder::new(16 << 20).build();
    let file = std::fs::File::options().write(true).open(volume.path()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xa5], 1024 + 0x78).unwrap();
    let error = refusal(volume.path());
    assert!(matches!(error, Error::Corrupt(_)) && error.errno() == 117, "{error}");
    assert!(error.to_string().contains("superblock checksum"), "{error}");
}
