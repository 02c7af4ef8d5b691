//! Which files an image may name.

use crate::tools::{contents, img, io, make, open_text, path};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use uext4_blockdev::{Device, Error, ImageFault};
use uext4_testkit::{Need, Scratch, needs};

/// An image that names a backing file, whether or not there is one.
fn naming(image: &Path, name: &str, format: Option<&str>) {
    make(image, "cluster_size=4096", "1M");
    img(&["rebase", "-u", "-b", name, "-F", format.unwrap_or("raw"), path(image)]);
    if format.is_none() {
        // Another extension, which nobody knows.
        let mut bytes = std::fs::read(image).unwrap();
        let mark = [0xe2, 0x79, 0x2a, 0xca];
        let at = bytes.windows(4).position(|four| four == mark).unwrap();
        bytes[at + 3] = 0;
        std::fs::write(image, bytes).unwrap();
    }
}

#[track_caller]
fn refused(opened: Result<Arc<dyn Device>, Error>) -> String {
    match opened {
        Err(Error::Image { fault: ImageFault::Names { name, reason }, .. }) => format!("{name}: {reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn only_files_beside_an_image_that_is_called_one_are_opened() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    std::fs::create_dir_all(scratch.file("home/below")).unwrap();
    let secret = scratch.file("secret");
    std::fs::write(&secret, vec![0x5e; 1 << 20]).unwrap();
    std::fs::write(scratch.file("home/base"), vec![0xba; 1 << 20]).unwrap();
    std::fs::write(scratch.file("home/below/base"), vec![0xbb; 1 << 20]).unwrap();
    symlink(&secret, scratch.file("home/link")).unwrap();
    symlink("base", scratch.file("home/inside")).unwrap();
    let image = scratch.file("home/disk.qcow2");
    let first = |text: &str| open_text(text, false).map(|device| contents(&*device, 4096)[0]);
    let base = scratch.file("home/base");
    for (name, byte) in [
        ("base", 0xba),
        ("./below/../base", 0xba),
        ("below/base", 0xbb),
        ("inside", 0xba),
        ("file:base", 0xba),
        (path(&base), 0xba),
    ] {
        naming(&image, name, Some("raw"));
        assert_eq!(first(path(&image)).unwrap(), byte, "{name}");
        assert_eq!(first(&format!("{}?backing=any", path(&image))).unwrap(), byte, "{name}");
        assert!(refused(open_text(&format!("{}?backing=no", path(&image)), false)).contains("backing=no"));
    }
    for name in ["../secret", path(&secret), "link", "below/../../secret"] {
        naming(&image, name, Some("raw"));
        let said = refused(open_text(path(&image), false));
        assert!(said.contains("backing=any") && said.starts_with(name), "{said}");
        assert_eq!(first(&format!("{}?backing=any", path(&image))).unwrap(), 0x5e, "{name}");
    }
    for (name, why) in [
        ("missing", "No such file"),
        ("below", "regular file"),
        ("nbd:localhost:1", "not a path"),
        ("json:{\"file\":{}}", "not a path"),
        ("http://host/x", "not a path"),
    ] {
        naming(&image, name, Some("raw"));
        for text in [path(&image).to_owned(), format!("{}?backing=any", path(&image))] {
            let said = refused(open_text(&text, false));
            assert!(said.contains(why), "{said}");
        }
    }
    // A name that says nothing: a guest may have written the header onto its raw disk.
    let disk = scratch.file("home/disk.img");
    naming(&disk, "base", Some("raw"));
    let said = refused(open_text(path(&disk), false));
    assert!(said.contains("format="), "{said}");
    assert_eq!(first(&format!("{}?format=qcow2", path(&disk))).unwrap(), 0xba);
    // The base's format is another question.
    naming(&scratch.file("home/base.qcow2"), "base", Some("raw"));
    std::fs::rename(scratch.file("home/base.qcow2"), scratch.file("home/unclear")).unwrap();
    naming(&image, "unclear", None);
    let said = refused(open_text(path(&image), false));
    assert!(said.contains("not stated"), "{said}");
    naming(&image, "unclear", Some("qcow2"));
    assert_eq!(first(path(&image)).unwrap(), 0xba);
    naming(&image, "unclear", Some("raw"));
    assert_eq!(first(path(&image)).unwrap(), b'Q', "as stated");
}

#[test]
fn chains_have_an_end() {
    needs!(Need::Tool("qemu-img"), Need::Tool("qemu-io"));
    let scratch = Scratch::new(64 << 20);
    let name = |number: usize| format!("{number}.qcow2");
    // A circle.
    naming(&scratch.file(name(0)), &name(1), Some("qcow2"));
    naming(&scratch.file(name(1)), &name(0), Some("qcow2"));
    let error = open_text(path(&scratch.file(name(0))), false).unwrap_err().to_string();
    assert!(error.contains("comes back"), "{error}");
    naming(&scratch.file(name(0)), &name(0), Some("qcow2"));
    let error = open_text(path(&scratch.file(name(0))), false).unwrap_err().to_string();
    assert!(error.contains("comes back"), "{error}");
    // A long one: 32 images are read, 33 are not.
    make(&scratch.file(name(0)), "cluster_size=4096", "1M");
    io(&scratch.file(name(0)), &["write -P 3 0 4k"]);
    for number in 1..33 {
        naming(&scratch.file(name(number)), &name(number - 1), Some("qcow2"));
    }
    let device = open_text(path(&scratch.file(name(31))), false).unwrap();
    assert_eq!(contents(&*device, 4096)[0], 3);
    let error = open_text(path(&scratch.file(name(32))), false).unwrap_err().to_string();
    assert!(error.contains("longer than 32"), "{error}");
}
