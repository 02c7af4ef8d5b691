//! Damaged and hostile images: typed errors, no panic, and bounds.

use crate::crash::{loaded, open_on};
use crate::tools::{img, io, make, open_text, path};
use std::path::Path;
use std::sync::Arc;
use uext4_blockdev::{BufferPool, Device, Error, ImageFault, WriteDurability};
use uext4_testkit::{Need, Rng, Scratch, needs};

/// The bytes of a number, as the format has them.
fn bytes64(number: u64) -> [u8; 8] {
    std::array::from_fn(|at| (number >> (56 - 8 * at)) as u8)
}

/// Uses the device a little; errors are fine.
fn use_it(device: &dyn Device, rng: &mut Rng) {
    let size = device.geometry().size.min(64 << 20);
    let mut buffer = BufferPool::new(64 << 10).unwrap().take(64 << 10).unwrap();
    let mut at = 0;
    while at + (buffer.len() as u64) <= size {
        let _either = device.read_at(&mut buffer, at);
        let _known = device.reads_zeros(at, buffer.len() as u64);
        at += if at < 2 << 20 { buffer.len() as u64 } else { 1 << 20 };
    }
    if device.capabilities().read_only || size < 1 << 20 {
        return;
    }
    for _ in 0..12 {
        let pos = rng.below(size / 512 - 16) * 512;
        let length = 512 * (1 + rng.below(16)) as usize;
        let durability = if rng.below(3) == 0 { WriteDurability::Fua } else { WriteDurability::Cached };
        let _either = device.write_at(&buffer[..length], pos, durability);
        let _either = device.discard(pos, length as u64);
    }
    let _either = device.flush();
}

#[test]
fn mutated_images_give_typed_errors() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let (mut opened, mut refused) = (0, 0);
    for (number, kind) in [
        "cluster_size=4096",
        "cluster_size=512",
        "extended_l2=on,cluster_size=16384",
        "compat=0.10,cluster_size=4096",
        "compressed cluster_size=4096",
        "compressed compression_type=zstd,cluster_size=4096",
    ]
    .into_iter()
    .enumerate()
    {
        let scratch = Scratch::new(64 << 20);
        let image = scratch.file("disk.qcow2");
        match kind.split_once(' ') {
            Some((_, options)) => {
                let raw = scratch.file("raw");
                std::fs::write(&raw, b"compressible".repeat(100_000)).unwrap();
                img(&["convert", "-c", "-O", "qcow2", "-o", options, path(&raw), path(&image)]);
            }
            None => {
                make(&image, kind, "3M");
                io(&image, &["write -P 1 0 300k", "write -P 2 2M 70k"]);
            }
        }
        let sound = std::fs::read(&image).unwrap();
        let mut rng = Rng::new(number as u64);
        for _ in 0..250 {
            let mut bytes = sound.clone();
            for _ in 0..1 + rng.below(4) {
                // Headers mostly; tables are among the first clusters.
                let most = if rng.below(2) == 0 { 112 } else { bytes.len().min(64 << 10) };
                let at = rng.below(most as u64) as usize;
                bytes[at] = match rng.below(4) {
                    0 => 0xff,
                    1 => 0,
                    2 => bytes[at] ^ 1 << rng.below(8),
                    _ => rng.below(256) as u8,
                };
            }
            std::fs::write(&image, &bytes).unwrap();
            let memory: Arc<dyn Device> = loaded(&image, 4 << 20);
            for write in [false, true] {
                let begun = std::time::Instant::now();
                match open_on(memory.clone(), &image, write) {
                    Ok(device) => {
                        opened += 1;
                        use_it(&*device, &mut rng);
                    }
                    Err(_) => refused += 1,
                }
                // A request takes no longer than its bytes.
                assert!(begun.elapsed().as_secs() < 30, "{kind}: {:?}", begun.elapsed());
            }
        }
    }
    assert!(opened > 500 && refused > 100, "{opened} {refused}");
}

#[test]
fn mutated_vmdk_images_give_typed_errors() {
    needs!(Need::Tool("qemu-img"));
    let scratch = Scratch::new(64 << 20);
    let raw = scratch.file("raw");
    std::fs::write(&raw, b"compressible".repeat(100_000)).unwrap();
    for kind in ["monolithicSparse", "streamOptimized"] {
        let image = scratch.file("disk.vmdk");
        let options = format!("subformat={kind}");
        img(&["convert", "-O", "vmdk", "-o", &options, path(&raw), path(&image)]);
        let sound = std::fs::read(&image).unwrap();
        let mut rng = Rng::new(7);
        for _ in 0..300 {
            let mut bytes = sound.clone();
            for _ in 0..1 + rng.below(4) {
                let most = if rng.below(2) == 0 { 80 } else { bytes.len().min(64 << 10) };
                bytes[rng.below(most as u64) as usize] = rng.below(256) as u8;
            }
            std::fs::write(&image, &bytes).unwrap();
            if let Ok(device) = open_text(path(&image), false) {
                use_it(&*device, &mut rng);
            }
        }
    }
}

#[track_caller]
fn fault_of(image: &Path, write: bool) -> ImageFault {
    match open_text(path(image), write) {
        Err(Error::Image { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

/// A small image, changed in places.
struct Subject {
    _scratch: Scratch,
    image: std::path::PathBuf,
    sound: Vec<u8>,
}

impl Subject {
    fn new() -> Subject {
        let scratch = Scratch::new(64 << 20);
        let image = scratch.file("disk.qcow2");
        make(&image, "cluster_size=4096", "3M");
        io(&image, &["write -P 1 0 300k"]);
        let sound = std::fs::read(&image).unwrap();
        Subject { _scratch: scratch, image, sound }
    }

    /// Writes it with other numbers: where, which, of how many bytes.
    fn with(&self, changes: &[(usize, u64, usize)]) {
        let mut bytes = self.sound.clone();
        for (at, value, length) in changes {
            bytes[*at..at + length].copy_from_slice(&bytes64(*value)[8 - length..]);
        }
        std::fs::write(&self.image, bytes).unwrap();
    }

    fn number(&self, at: usize) -> u64 {
        self.sound[at..at + 8].iter().fold(0, |all, byte| all << 8 | u64::from(*byte))
    }
}

/// Numbers that would take much memory, or lead out of the file, are refused where they are read.
#[test]
fn impossible_numbers_are_refused_with_their_place() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let subject = Subject::new();
    for changes in [
        // The sizes of clusters and of the disk, the first-level table, the header.
        &[(20, 30, 4)][..],
        &[(20, 8, 4)],
        &[(24, u64::MAX, 8)],
        &[(24, 1 << 60, 8)],
        &[(24, 1 << 40, 8), (36, 1 << 20, 4)],
        &[(36, 0, 4)],
        &[(40, 12345, 8)],
        &[(40, 1 << 40, 8)],
        &[(96, 7, 4)],
        &[(100, 1 << 30, 4)],
        &[(100, 50, 4)],
        // The name of a backing file.
        &[(8, 4000, 8), (16, 1000, 4)],
        &[(8, u64::MAX - 3, 8), (16, 1000, 4)],
        &[(8, 200, 8), (16, u64::MAX, 4)],
    ] {
        subject.with(changes);
        let fault = fault_of(&subject.image, false);
        assert!(matches!(fault, ImageFault::Header(_) | ImageFault::Unsupported(_)), "{changes:?}: {fault}");
    }
    let refcounts = subject.number(48) as usize;
    for changes in [
        &[(48, 12345, 8)][..],
        &[(48, 0, 8)],
        &[(56, 1 << 30, 4)],
        &[(56, 0, 4)],
        &[(48, 1 << 40, 8)],
        // The header, and so on, would be free.
        &[(refcounts, 0, 8)],
        &[(subject.number(refcounts) as usize, 0, 2)],
        &[(subject.number(refcounts) as usize + 2, 0, 2)],
    ] {
        subject.with(changes);
        let fault = fault_of(&subject.image, true);
        assert!(
            matches!(fault, ImageFault::ReadOnly(_) | ImageFault::Header(_) | ImageFault::Structure { .. }),
            "{changes:?}: {fault}"
        );
    }
}

/// The same of what the tables say.
#[test]
fn impossible_entries_are_refused_with_their_place() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let subject = Subject::new();
    // Entries: of the first-level table, then of the second-level table that it points to.
    let l1 = subject.number(40) as usize;
    let l2 = (subject.number(l1) & 0x00ff_ffff_ffff_fe00) as usize;
    let mut buffer = BufferPool::new(4096).unwrap().take(4096).unwrap();
    for (at, value, place, what) in [
        (l1, subject.number(l1) + 512, l1, "first-level table"),
        (l2 + 8, subject.number(l2 + 8) + 512, l2 + 8, "second-level table"),
        (l2 + 8, 1 << 62 | 5 << 50, 5 << 50, "compressed cluster"),
    ] {
        subject.with(&[(at, value, 8)]);
        let device = open_text(path(&subject.image), true).unwrap();
        let error = device.read_at(&mut buffer, 4096).unwrap_err();
        let Error::Image { fault: ImageFault::Structure { what: found, pos, .. }, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!((*found, *pos, error.errno()), (what, place as u64, libc::EUCLEAN));
        if place == l2 + 8 {
            device.read_at(&mut buffer, 8192).unwrap();
        }
    }
    // A cluster behind the end of the file reads as zeros and is not written.
    subject.with(&[(l2 + 8, 1 << 63 | 1 << 50, 8)]);
    let device = open_text(path(&subject.image), true).unwrap();
    device.read_at(&mut buffer, 4096).unwrap();
    assert!(buffer.iter().all(|byte| *byte == 0));
    let error = device.write_at(&buffer, 4096, WriteDurability::Cached).unwrap_err();
    assert!(matches!(error, Error::Image { fault: ImageFault::Structure { .. }, .. }), "{error}");
    drop(device);
    // A snapshot's cluster that is counted as free is not taken for one's own.
    let block = subject.number((subject.number(48)) as usize) as usize;
    let cluster = (subject.number(l2 + 8) & 0x00ff_ffff_ffff_fe00) as usize / 4096;
    subject.with(&[(l2 + 8, subject.number(l2 + 8) & !(1 << 63), 8), (block + 2 * cluster, 0, 2)]);
    let device = open_text(path(&subject.image), true).unwrap();
    let error = device.write_at(&buffer, 4096, WriteDurability::Cached).unwrap_err();
    let Error::Image { fault: ImageFault::Structure { what, .. }, .. } = error else { panic!("{error}") };
    assert_eq!(what, "refcount of a cluster");
}

/// A text can name one file as often as it likes: what is read of it into memory is bounded all the same.
#[test]
fn many_extents_of_vmdk_share_one_memory() {
    let scratch = Scratch::new(256 << 20);
    // Tables of one grain of one sector: the directory is as large as it can be.
    let tables = 16u64 << 20;
    let mut header = [0; 512];
    header[..4].copy_from_slice(b"KDMV");
    let numbers = [(4, 1), (8, 3), (12, tables), (20, 1), (44, 1), (56, 1)];
    for (at, number) in numbers {
        let bytes: [u8; 4] = std::array::from_fn(|byte| (number >> (8 * byte)) as u8);
        header[at..at + 4].copy_from_slice(&bytes);
    }
    let extent = scratch.sparse_file("extent.vmdk", 512 + 4 * tables);
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::OpenOptions::new().write(true).open(&extent).unwrap(),
        &header,
        0,
    )
    .unwrap();
    let image = scratch.file("disk.vmdk");
    let open = |extents: usize| {
        let line = format!("RW {tables} SPARSE \"extent.vmdk\"\n");
        std::fs::write(&image, format!("# Disk DescriptorFile\nversion=1\n{}", line.repeat(extents)))
            .unwrap();
        open_text(path(&image), false)
    };
    assert_eq!(open(1).unwrap().geometry().size, tables * 512);
    for extents in [2, 1500] {
        let refused = open(extents);
        let Err(Error::Image { fault: ImageFault::Unsupported(what), .. }) = refused else {
            panic!("{refused:?}")
        };
        assert!(what.contains("directories"), "{what}");
    }
}
