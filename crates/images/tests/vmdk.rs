//! VMDK images read as QEMU reads them.

use crate::tools::{assert_reads_like_qemu, contents, img, open, open_text, path};
use uext4_blockdev::spec::Format;
use uext4_blockdev::{Error, ImageFault};
use uext4_testkit::{Need, Rng, Scratch, needs};

/// A raw disk with holes, text and noise.
fn raw(scratch: &Scratch) -> std::path::PathBuf {
    let raw = scratch.sparse_file("disk.raw", 9 << 20);
    let mut bytes = vec![0; 9 << 20];
    for (at, byte) in bytes[1 << 20..3 << 20].iter_mut().enumerate() {
        *byte = b"compressible "[at % 13];
    }
    Rng::new(1).fill(&mut bytes[5 << 20..(5 << 20) + 300_000]);
    bytes[(9 << 20) - 512..].fill(7);
    std::fs::write(&raw, bytes).unwrap();
    raw
}

#[test]
fn vmdk_images_read_as_qemu_reads_them() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(256 << 20);
    let raw = raw(&scratch);
    for kind in [
        "monolithicSparse",
        "monolithicFlat",
        "twoGbMaxExtentSparse",
        "twoGbMaxExtentFlat",
        "streamOptimized",
    ] {
        let image = scratch.file(format!("{kind}.vmdk"));
        let options = format!("subformat={kind}");
        img(&["convert", "-O", "vmdk", "-o", &options, path(&raw), path(&image)]);
        assert_reads_like_qemu(&image, kind);
        let device = open(&image, false);
        let described = device.describe().layers.join(" ");
        assert!(described.contains("vmdk") && device.capabilities().read_only, "{described}");
        // The file of a flat one may have the zeros.
        assert!(kind.contains("Flat") || device.reads_zeros(0, 64 << 10), "{kind}");
        assert!(!device.reads_zeros(1 << 20, 64 << 10), "{kind}");
        drop(device);
        let refused = open_text(path(&image), true);
        let Err(Error::Image { fault: ImageFault::ReadOnly(_), .. }) = refused else { panic!("{refused:?}") };
        let known = open_text(&format!("{}?format=vmdk", path(&image)), false).unwrap();
        assert_eq!(known.geometry().size, 9 << 20);
    }
    // Their extents are files that they name.
    let image = scratch.file("monolithicFlat.vmdk");
    let refused = open_text(&format!("{}?backing=no", path(&image)), false);
    assert!(matches!(refused, Err(Error::Image { fault: ImageFault::Names { .. }, .. })), "{refused:?}");
    let text = std::fs::read_to_string(&image).unwrap();
    std::fs::write(&image, text.replace("monolithicFlat-flat.vmdk", "/etc/passwd")).unwrap();
    let refused = open_text(path(&image), false);
    assert!(matches!(refused, Err(Error::Image { fault: ImageFault::Names { .. }, .. })), "{refused:?}");
    // A VMDK as backing file.
    let top = scratch.file("top.qcow2");
    img(&["create", "-q", "-f", "qcow2", "-F", "vmdk", "-b", "monolithicSparse.vmdk", path(&top)]);
    assert_eq!(Format::of("vmdk"), Some(Format::Vmdk));
    let theirs = std::fs::read(&raw).unwrap();
    assert!(contents(&*open(&top, false), 1 << 20) == theirs);
}
