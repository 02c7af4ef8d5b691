//! Every kind of image reads as QEMU reads it, takes the conformance set of devices, and stays sound for `qemu-img
//! check`.

use crate::common::conformance;
use crate::tools::{
    assert_reads_like_qemu, assert_same, check, contents, converted, img, io, make, open, open_text, path,
};
use std::sync::Arc;
use uext4_blockdev::spec::Format;
use uext4_blockdev::{Device, Error, ImageFault, ImageOptions, Sharing, open_store};
use uext4_images::{Qcow2Options, create};
use uext4_testkit::{Need, Scratch, needs};

/// Options of `qemu-img create`.
const KINDS: [&str; 11] = [
    "cluster_size=65536",
    "cluster_size=512",
    "cluster_size=4096,refcount_bits=1",
    "cluster_size=2M,refcount_bits=64",
    "cluster_size=8192,refcount_bits=8",
    "compat=0.10",
    "compat=0.10,cluster_size=1024",
    "extended_l2=on,cluster_size=16384",
    "extended_l2=on,cluster_size=128k",
    "lazy_refcounts=on",
    "refcount_bits=32",
];

/// Writes of several sizes at several places, some of zeros.
fn writes(version_two: bool) -> Vec<&'static str> {
    let mut all = vec![
        "write -P 1 0 4k",
        "write -P 2 60k 12k",
        "write -P 3 1M 300k",
        "write -P 4 5000k 512",
        "write -P 5 7M 900k",
        "write -P 6 7500k 2k",
    ];
    if !version_two {
        all.extend(["write -z 1100k 64k", "write -z 7M 6k", "write -z -u 3M 1M", "write -P 7 7170k 1k"]);
    }
    all
}

#[test]
fn qemu_s_images_read_as_qemu_reads_them() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(256 << 20);
    for (number, options) in KINDS.iter().enumerate() {
        let image = scratch.file(format!("{number}.qcow2"));
        make(&image, options, "9M");
        io(&image, &writes(options.contains("0.10")));
        assert_reads_like_qemu(&image, options);
    }
}

#[test]
fn compressed_clusters_read_as_qemu_reads_them() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(256 << 20);
    let raw = scratch.file("disk.raw");
    // Text, which compresses, and noise, which does not.
    let mut bytes: Vec<u8> = (0..3 << 20).map(|at: u32| b"compressible "[at as usize % 13]).collect();
    let mut state = 1u32;
    bytes[1 << 20..(1 << 20) + 500_000].fill_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    std::fs::write(&raw, &bytes).unwrap();
    for options in [
        "compression_type=zlib",
        "compression_type=zstd",
        "compression_type=zlib,cluster_size=4096",
        "compression_type=zstd,cluster_size=2M",
        "compression_type=zlib,extended_l2=on,cluster_size=32k",
    ] {
        let image = scratch.file("compressed.qcow2");
        img(&["convert", "-c", "-O", "qcow2", "-o", options, path(&raw), path(&image)]);
        assert_reads_like_qemu(&image, options);
        // Beside compressed clusters, others.
        io(&image, &["write -P 9 70k 3k", "write -P 8 1500k 100k"]);
        assert_reads_like_qemu(&image, options);
        std::fs::remove_file(&image).unwrap();
    }
}

#[test]
fn backing_chains_read_as_qemu_reads_them() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(256 << 20);
    let (raw, middle, top) =
        (scratch.file("base.raw"), scratch.file("middle.qcow2"), scratch.file("top.qcow2"));
    // The base is shorter than what lies over it, and ends inside of a cluster.
    std::fs::write(&raw, vec![0xb5; (4 << 20) + 512]).unwrap();
    let over = |image: &std::path::Path, base: &str, format: &str, options: &str| {
        let options = format!("{options}backing_file={base},backing_fmt={format}");
        img(&["create", "-q", "-f", "qcow2", "-o", &options, path(image), "9M"]);
    };
    over(&middle, "base.raw", "raw", "cluster_size=4096,");
    io(&middle, &["write -P 1 100k 20k", "write -z 1M 64k", "write -P 2 4M 3k"]);
    for options in ["", "extended_l2=on,", "cluster_size=512,"] {
        over(&top, "middle.qcow2", "qcow2", options);
        io(&top, &["write -P 3 110k 4k", "write -P 4 8M 2k", "write -z 2M 128k"]);
        assert_reads_like_qemu(&top, options);
        let described = open(&top, false).describe();
        let said = described.layers.join("\n");
        for name in ["top.qcow2", "middle.qcow2", "base.raw"] {
            assert!(said.contains(name), "{said}");
        }
        std::fs::remove_file(&top).unwrap();
    }
}

#[test]
fn data_files_and_snapshots_read_as_qemu_reads_them() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(256 << 20);
    for raw in ["on", "off"] {
        let image = scratch.file("split.qcow2");
        let options = format!("data_file=split.data,data_file_raw={raw}");
        // QEMU makes the file where it is run, not beside the image.
        let data = scratch.file("split.data");
        let options = options.replace("split.data,", &format!("{},", path(&data)));
        make(&image, &options, "9M");
        io(&image, &writes(raw == "on"));
        assert_reads_like_qemu(&image, &options);
        let device = open(&image, true);
        assert!(device.describe().layers.join(" ").contains("data file"));
        conformance(&*device);
        drop(device);
        check(&image, false);
        let theirs = converted(&image, &[]);
        if raw == "on" {
            assert_same(&theirs, &std::fs::read(&data).unwrap(), "the data file is a raw image");
        }
        std::fs::remove_file(&data).unwrap();
        std::fs::remove_file(&image).unwrap();
    }
    let image = scratch.file("snapshots.qcow2");
    make(&image, "cluster_size=4096", "9M");
    io(&image, &writes(false));
    img(&["snapshot", "-c", "one", path(&image)]);
    let before = converted(&image, &[]);
    io(&image, &["write -P 17 60k 30k"]);
    assert_reads_like_qemu(&image, "snapshots");
    conformance(&*open(&image, true));
    check(&image, false);
    assert!(converted(&image, &["-l", "snapshot.name=one"]) == before, "the snapshot is as it was");
}

#[test]
fn every_kind_is_a_device_like_any_other() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(256 << 20);
    for options in KINDS {
        let image = scratch.file("disk.qcow2");
        make(&image, options, "5M");
        let device = open(&image, true);
        let capabilities = device.capabilities();
        assert!(capabilities.volatile_cache && !capabilities.read_only, "{options}");
        conformance(&*device);
        device.flush().unwrap();
        let ours = contents(&*device, 1 << 20);
        drop(device);
        check(&image, false);
        assert_same(&ours, &converted(&image, &[]), options);
        std::fs::remove_file(&image).unwrap();
    }
}

#[test]
fn new_images_are_what_qemu_makes() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(256 << 20);
    for (size, cluster_size) in
        [(5 << 20, 65536), (5 << 20, 512), (1 << 50, 65536), (1 << 45, 2 << 20), (0, 4096)]
    {
        let image = scratch.file("new.qcow2");
        std::fs::write(&image, "").unwrap();
        let options = ImageOptions {
            path: &image,
            write: true,
            force: false,
            sync: true,
            format: None,
            named: Default::default(),
        };
        let store = open_store(&options).unwrap();
        create(&store, Qcow2Options { size, cluster_size }).unwrap();
        drop(store);
        check(&image, false);
        let info = img(&["info", path(&image)]);
        assert!(info.contains(&format!("({size} bytes)")), "{info}");
        assert!(std::fs::metadata(&image).unwrap().len() < 20 << 20);
        if size == 5 << 20 {
            conformance(&*open(&image, true));
            check(&image, false);
        }
        std::fs::remove_file(&image).unwrap();
    }
    let store: Arc<dyn uext4_blockdev::Store> = {
        std::fs::write(scratch.file("x"), "").unwrap();
        let path = scratch.file("x");
        let (format, named) = (None, Default::default());
        open_store(&ImageOptions { path: &path, write: true, force: false, sync: true, format, named })
            .unwrap()
    };
    for (size, cluster_size) in
        [(1 << 50, 512), (1 << 20, 1000), (1 << 20, 256), (1 << 20, 4 << 20), (u64::MAX, 65536)]
    {
        let refused = create(&store, Qcow2Options { size, cluster_size });
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{size} {cluster_size}: {refused:?}");
    }
}

#[track_caller]
fn fault(result: Result<Arc<dyn Device>, Error>) -> ImageFault {
    match result {
        Err(Error::Image { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn formats_are_recognised_or_named() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let (image, raw) = (scratch.file("disk.img"), scratch.file("disk.raw"));
    make(&image, "cluster_size=65536", "5M");
    std::fs::write(&raw, vec![7; 1 << 20]).unwrap();
    let text = path(&image);
    for known in ["", "?format=qcow2"] {
        let device = open_text(&format!("{text}{known}"), false).unwrap();
        assert_eq!((device.geometry().size, device.describe().engine), (5 << 20, "file"));
        assert_eq!(device.describe().sharing, Sharing::SharedRead);
        assert!(device.capabilities().read_only);
        assert!(matches!(device.discard(0, 4096), Err(Error::ReadOnly)));
    }
    let sync = open_text(&format!("sync:{text}"), false).unwrap();
    assert_eq!((sync.geometry().size, sync.describe().engine), (5 << 20, "sync"));
    let null = open_text(&format!("null:{text}"), false).unwrap();
    assert_eq!(null.geometry().size, 5 << 20);
    let device = open_text(&format!("{text}?format=raw"), false).unwrap();
    assert_eq!(device.geometry().size, std::fs::metadata(&image).unwrap().len() / 512 * 512);
    assert!(device.describe().layers.is_empty());
    let device = open_text(&format!("{text}?offset=1M"), false).unwrap();
    assert_eq!(device.geometry().size, 4 << 20);
    assert_eq!(fault(open_text(&format!("{}?format=qcow2", path(&raw)), false)), ImageFault::NotOne("qcow2"));
    assert_eq!(fault(open_text(&format!("{text}?format=vmdk"), false)), ImageFault::NotOne("vmdk"));
    for scheme in ["dax", "nvme"] {
        let refused = open_text(&format!("{scheme}:{text}?format=qcow2"), false);
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    }
    // Without this crate the formats are known by name.
    let spec = format!("{text}?format=qcow2").parse().unwrap();
    let refused = uext4_blockdev::open(&spec, uext4_blockdev::OpenOptions::default());
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    assert_eq!(Format::of("qcow2"), Some(Format::Qcow2));
}

#[test]
fn what_cannot_be_used_is_refused_by_name() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let set = |image: &std::path::Path, at: u64, value: u8| {
        use std::os::unix::fs::FileExt;
        std::fs::File::options().write(true).open(image).unwrap().write_all_at(&[value], at).unwrap();
    };
    // QEMU makes the AES one. A LUKS one starts with a timing loop that fails where the kernel counts CPU
    // time in ticks, so its method is written over the other's.
    let image = scratch.file("encrypted.qcow2");
    let options = ["--object", "secret,id=s,data=x", "-o", "encrypt.format=aes,encrypt.key-secret=s"];
    img(&[&["create", "-q", "-f", "qcow2"], &options[..], &[path(&image), "5M"]].concat());
    assert_eq!(fault(open_text(path(&image), false)), ImageFault::Encrypted("AES"));
    set(&image, 35, 2);
    assert_eq!(fault(open_text(path(&image), false)), ImageFault::Encrypted("LUKS"));
    let image = scratch.file("dirty.qcow2");
    make(&image, "lazy_refcounts=on", "5M");
    io(&image, &["write -P 1 0 64k"]);
    for (bit, said) in [(1, "dirty"), (2, "corrupt")] {
        set(&image, 79, bit);
        let ours = contents(&*open(&image, false), 1 << 20);
        assert_eq!((ours[0], ours[65535], ours[65536]), (1, 1, 0), "it can be read");
        let refused = fault(open_text(path(&image), true));
        assert!(matches!(&refused, ImageFault::ReadOnly(why) if why.contains(said)), "{refused}");
        let described = open(&image, false).describe().layers.join(" ");
        assert!(described.contains(said), "{described}");
    }
    set(&image, 79, 0x20);
    assert!(matches!(fault(open_text(path(&image), false)), ImageFault::Unsupported(_)));
    set(&image, 79, 0);
    set(&image, 7, 1);
    assert!(matches!(fault(open_text(path(&image), false)), ImageFault::Unsupported(_)));
}

/// A file may end inside its last cluster. The missing bytes read as zeros.
#[test]
fn a_cluster_behind_the_end_of_the_file_is_zeros() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("disk.qcow2");
    make(&image, "cluster_size=65536", "1M");
    io(&image, &["write -P 1 0 64k"]);
    let length = std::fs::metadata(&image).unwrap().len();
    for cut in [1024, 40 << 10] {
        std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(length - cut).unwrap();
        assert_reads_like_qemu(&image, "cut off");
    }
    let device = open(&image, true);
    let end = contents(&*device, 4096)[..64 << 10].iter().rposition(|byte| *byte == 1);
    assert_eq!(end, Some((24 << 10) - 1));
}

/// A bitmap says what was changed since a backup. Whoever changes more without noting it there says so.
#[test]
fn the_first_write_makes_bitmaps_out_of_date() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let image = scratch.file("disk.qcow2");
    let autoclear = || std::fs::read(&image).unwrap()[88..96].to_vec();
    for allocated in [true, false] {
        make(&image, "cluster_size=65536", "1M");
        io(&image, &["write -P 1 0 64k"]);
        img(&["bitmap", "--add", path(&image), "changes"]);
        assert_ne!(autoclear(), [0; 8]);
        drop(open(&image, false));
        let device = open(&image, true);
        assert_ne!(autoclear(), [0; 8], "nothing was written yet");
        let mut buffer = uext4_blockdev::BufferPool::new(4096).unwrap().take(4096).unwrap();
        buffer.fill(2);
        let pos = if allocated { 4096 } else { 512 << 10 };
        device.write_at(&buffer, pos, uext4_blockdev::WriteDurability::Cached).unwrap();
        assert_eq!(autoclear(), [0; 8]);
        drop(device);
        check(&image, true);
    }
}
