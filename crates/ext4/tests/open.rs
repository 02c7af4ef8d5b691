//! The ways to name a volume and a file at open.

use crate::common;

use common::journal::damaged_needed;
use common::sample::{VOLUME_SIZE, expected, sample};
use common::{assert_unchanged, open_ro, read_all, read_only, read_write};
use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use uext4::{DeviceSpec, Error, Ino, OpenOptions, Volume, VolumeOptions, WriteFlags};
use uext4_ondisk::ext4::Superblock;
use uext4_testkit::{Need, Scratch, needs};

#[test]
fn a_file_opened_for_nothing_is_an_error() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let volume = open_ro(sample().device());
    let ino = volume.resolve("/data", true).unwrap();
    let nothing = [OpenOptions::new(), OpenOptions::default(), OpenOptions::new().read(false).write(false)];
    for options in nothing {
        // Checked before anything is looked up, as in std: a missing path or one that is not a file gives the same
        // error.
        for path in ["/data", "/missing", "/dir"] {
            let error = volume.open_file(path, options.clone()).unwrap_err();
            assert!(matches!(&error, Error::Invalid(_)) && error.errno() == 22, "{path}: {error}");
            assert!(error.to_string().contains("open a file for reading, writing or appending"), "{error}");
        }
        for ino in [ino, Ino::ROOT] {
            let error = volume.open_inode(ino, options.clone()).unwrap_err();
            assert_eq!(error.errno(), 22, "{ino}: {error}");
        }
    }
    let read = OpenOptions::new().read(true);
    volume.open_file("/data", read.clone()).unwrap();
    assert_eq!(volume.open_file("/missing", read).unwrap_err().errno(), 2);
}

/// The sample volume at this place below a scratch directory.
fn placed(scratch: &Scratch, name: &[u8]) -> PathBuf {
    let path = scratch.file(OsStr::from_bytes(name));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    sample().save(&path);
    path
}

fn reads_data(volume: uext4::Result<Volume>) -> bool {
    read_all(&volume.unwrap().open_file("/data", read_only()).unwrap()) == expected("/data")
}

#[test]
fn a_path_opens_the_file_of_that_name_whatever_its_bytes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let names: [&[u8]; 12] = [
        b"plain.img",
        b"a?ro",
        b"a&b",
        b"100%.img",
        b"a%20b.img",
        b"host:/disk.img",
        b"dax:x.img",
        b"mem:64M",
        b"nothing:x",
        b"a b\n.img",
        b"\xff\xfe.img",
        b"\xc3:/\xc3?partition=2&%zz",
    ];
    for name in names {
        let scratch = Scratch::new(2 * VOLUME_SIZE);
        let path = placed(&scratch, name);
        let options = VolumeOptions::read_only;
        let shown = name.escape_ascii();
        assert!(reads_data(Volume::open(&path, options())), "&PathBuf {shown}");
        assert!(reads_data(Volume::open(path.as_path(), options())), "&Path {shown}");
        assert!(reads_data(Volume::open(path.as_os_str(), options())), "&OsStr {shown}");
        assert!(reads_data(Volume::open(path.clone().into_os_string(), options())), "OsString {shown}");
        assert!(reads_data(Volume::open(Cow::Borrowed(path.as_path()), options())), "Cow {shown}");
        assert!(reads_data(Volume::open(path.clone().into_boxed_path(), options())), "Box {shown}");
        // The same file in the grammar, as spelt by the library.
        let spelt = DeviceSpec::file(&path).to_string();
        assert!(reads_data(Volume::open(spelt.as_str(), options())), "{spelt}");
        assert!(reads_data(Volume::open(&spelt, options())), "{spelt}");
        assert!(reads_data(Volume::open(spelt, options())), "{shown}");
        // Writing through a path reaches this file.
        let volume = Volume::open(path.clone(), VolumeOptions::read_write()).unwrap();
        let file = volume.open_file("/tail", read_write()).unwrap();
        file.write_any_at(b"here", 9, WriteFlags::SYNC).unwrap();
        drop((file, volume));
        let volume = Volume::open(DeviceSpec::file(&path), options()).unwrap();
        let back = read_all(&volume.open_file("/tail", read_only()).unwrap());
        assert_eq!(back[9..13], *b"here", "{shown}");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1, "{shown}: no other file is there");
        // e2fsck has its own grammar.
        let plain = scratch.file("plain.img");
        std::fs::rename(&path, &plain).unwrap();
        uext4_testkit::e2fsck_clean(&plain);
    }
}

#[test]
fn text_is_read_in_the_grammar() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let scratch = Scratch::new(4 * VOLUME_SIZE);
    let image = placed(&scratch, b"disk.img");
    let text = image.to_str().unwrap();
    let read_only = VolumeOptions::read_only;
    for spelling in
        [text.to_owned(), format!("sync:{text}"), format!("{text}?offset=0"), format!("{text}?ro")]
    {
        assert!(reads_data(Volume::open(spelling.as_str(), read_only())), "{spelling}");
    }
    let spelling = format!("{text}?ro");
    let refused = Volume::open(&spelling, VolumeOptions::read_write()).err().unwrap();
    assert!(matches!(refused, Error::ReadOnly(_)), "{refused}");
    // As a path the same bytes name a file that does not exist, and none is created.
    let missing = Volume::open(Path::new(&spelling), read_only()).err().unwrap();
    assert!(missing.errno() == 2 && missing.to_string().contains("?ro"), "{missing}");
    for wrong in ["nothing:x", "disk.img?nonsense", "a&b", "100%.img", ""] {
        let usage = Volume::open(wrong, read_only()).err().unwrap();
        assert!(usage.is_usage() && usage.errno() == 22, "{wrong}: {usage}");
        let path = Volume::open(scratch.file("absent").join(wrong), read_only()).err().unwrap();
        assert!(!path.is_usage() && path.errno() == 2, "{wrong}: {path}");
    }
    let inner = Volume::open(format!("{text}:/data"), read_only()).err().unwrap();
    assert!(inner.is_usage() && inner.to_string().contains("without `:/path`"), "{inner}");
    let zero = Volume::open(OsStr::from_bytes(b"a\0b"), read_only()).err().unwrap();
    assert_eq!(zero.errno(), 22, "{zero}");
}

/// For tools that examine volumes that cannot be opened: the superblock as it is on the device, checked as at open.
#[test]
fn the_superblock_of_a_volume_that_cannot_be_opened_is_read_and_checked() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let [lost, _] = damaged_needed();
    let device = lost.device();
    assert!(matches!(
        Volume::open_device(device.clone(), VolumeOptions::read_only()),
        Err(Error::Journal(_))
    ));
    let expected = Superblock::decode(&lost.bytes[1024..2048]).unwrap();
    assert_eq!(Volume::read_superblock(&*device).unwrap(), expected);
    assert_unchanged(&lost, &*device);

    let image = sample();
    let (mut small, mut unknown, mut flipped) = (image.clone(), image.clone(), image);
    small.bytes.truncate(2 << 20);
    assert!(matches!(Volume::read_superblock(&*small.device()), Err(Error::TooSmall { .. })));
    unknown.set_bits(0x60, 1 << 31);
    assert!(matches!(Volume::read_superblock(&*unknown.device()), Err(Error::Incompatible { .. })));
    flipped.bytes[1024 + 0x78] ^= 1;
    assert!(matches!(Volume::read_superblock(&*flipped.device()), Err(Error::Corrupt(_))));
}
