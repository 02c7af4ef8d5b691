//! Case-folded directories: each name is found under all its spellings and under no other. e2fsck checks that the names
//! lie where their hash says.

use crate::common;

use common::dirs::{CASEFOLD_FLAG, EXTENTS_FLAG, Recipe, assert_all_found, in_dir, look_up_cold};
use common::{Image, assert_clean, open_ro, open_rw};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4::{Caller, Error, InodeFlags, Volume, VolumeOptions};
use uext4_testkit::{Need, VolumeBuilder, needs};

/// A name as stored, other spellings of it, and similar ones that are other names.
type Family = (&'static str, &'static [&'static str], &'static [&'static str]);

const FAMILIES: [Family; 16] = [
    ("ReadMe.TXT", &["readme.txt", "README.TXT", "rEADmE.tXt"], &["readme.txt "]),
    ("Straße", &["STRASSE", "strasse", "STRA\u{1E9E}E", "ſtraße"], &["strase"]),
    ("ΣΊΣΥΦΟΣ", &["σίσυφος", "σίσυφοσ", "ΣΙ\u{301}ΣΥΦΟΣ"], &["ΣΙΣΥΦΟΣ"]),
    ("İstanbul", &["i\u{307}STANBUL", "I\u{307}stanbul"], &["istanbul", "ıstanbul"]),
    ("ılık", &["ıLıK"], &["ILIK", "ilik"]),
    ("한글 이름", &["\u{1112}\u{1161}\u{11AB}\u{1100}\u{1173}\u{11AF} 이름"], &["한글이름"]),
    ("été", &["ÉTÉ", "e\u{301}te\u{301}", "E\u{301}tÉ"], &["ete"]),
    ("q\u{307}\u{323}", &["Q\u{323}\u{307}"], &["q\u{307}"]),
    ("z\u{301}\u{200D}\u{323}", &["Z\u{301}\u{AD}\u{323}"], &["z\u{301}\u{323}"]),
    ("👩\u{200D}💻 notes", &["👩💻 NOTES", "👩\u{FE0F}💻 Notes"], &["👩 notes"]),
    ("Привет", &["ПРИВЕТ", "привет"], &["привёт"]),
    ("ﬃ ligature", &["FFI LIGATURE", "ﬀI Ligature"], &["fi ligature"]),
    ("ᾼ", &["\u{3B1}\u{3B9}", "ᾳ", "ΑΙ"], &["α"]),
    ("日本語", &["日本\u{FEFF}語"], &["日本"]),
    // Pairs of letters newer than the table: both names may coexist.
    ("\u{A7C7} young", &["\u{A7C7} YOUNG"], &["\u{A7C6} young"]),
    ("\u{A7C8} young", &["\u{A7C8} Young"], &["\u{A7DC}"]),
];
const EACH: usize = 100;

fn numbered(name: &str, n: usize) -> Vec<u8> {
    format!("{name} {n:03}").into_bytes()
}

fn stored() -> Vec<Vec<u8>> {
    FAMILIES.iter().flat_map(|(name, ..)| (0..EACH).map(|n| numbered(name, n))).collect()
}

const MAKE: &[&str] = &["-b", "1024", "-O", "casefold,^has_journal"];
/// `s_encoding` and `s_encoding_flags` in the superblock.
const ENCODING: usize = 0x27C;
const ENCODING_FLAGS: usize = 0x27E;

fn folded(names: &[Vec<u8>], index: bool, extended: &[&str]) -> Image {
    let flags = format!("sif /dir flags {:#x}", CASEFOLD_FLAG | EXTENTS_FLAG);
    Recipe { args: MAKE, extended, debugfs: &[&flags], index, ..Recipe::default() }.make(names)
}

fn find(volume: &Volume, name: &[u8]) -> uext4::Result<uext4::Ino> {
    volume.resolve(OsStr::from_bytes(&in_dir(name)), false)
}

/// Every name leads to its own inode, so finding a wrong one is noticed.
fn assert_spellings(volume: &Volume) {
    for (name, same, other) in FAMILIES {
        for n in (0..EACH).step_by(9) {
            let ino = find(volume, &numbered(name, n)).unwrap();
            for spelling in same {
                let found = find(volume, &numbered(spelling, n));
                assert_eq!(found.ok(), Some(ino), "{spelling} for {name}");
            }
            for spelling in other {
                let missing = find(volume, &numbered(spelling, n));
                assert!(matches!(missing, Err(Error::NotFound)), "{spelling} is not {name}");
            }
        }
    }
}

#[test]
fn every_spelling_is_found_through_the_tree() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let names = stored();
    let mut image = folded(&names, true, &[]);
    let device = image.device();
    assert_spellings(&open_rw(device.clone()));
    // Finding an existing name costs a walk down the tree; a missing one costs the whole directory, since old kernels
    // may have put it anywhere.
    for (name, same, _) in FAMILIES {
        for spelling in same {
            let (found, blocks) = look_up_cold(&device, &in_dir(&numbered(spelling, 50)));
            assert!(found.is_ok() && blocks <= 7, "{spelling} for {name}: {blocks} blocks");
        }
    }
    let (missing, blocks) = look_up_cold(&device, b"/dir/none");
    assert!(missing.is_err() && blocks > 40, "{blocks}");
    // The volume states that no such kernel ever wrote it.
    image.patch_superblock(|superblock| superblock[ENCODING_FLAGS] = 2);
    assert_all_found(&image, &names, &[b"none".to_vec(), b"\xFF".to_vec()], 7);
    assert_spellings(&open_ro(image.device()));
}

#[test]
fn every_spelling_is_found_without_a_tree() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let image = folded(&stored(), false, &[]);
    let volume = open_ro(image.device());
    assert_spellings(&volume);
    // `.` with an ignored character does not lead to the directory itself.
    for name in ["\u{200D}.", ".\u{AD}.", "\u{200D}"] {
        assert!(matches!(find(&volume, name.as_bytes()), Err(Error::NotFound)));
    }
    assert_eq!(volume.resolve("/dir/..", false).unwrap(), uext4::Ino::ROOT);
    // Only the flagged directory folds.
    assert!(matches!(volume.resolve("/DIR", false), Err(Error::NotFound)));
}

#[test]
fn names_that_are_not_utf8_are_opaque_or_invalid() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let names = [b"Bad\xFFname".to_vec(), b"fine".to_vec(), b"\xC0\xAFcut \xE2\x82".to_vec()];
    let image = folded(&names, false, &[]);
    let volume = open_ro(image.device());
    for name in &names {
        find(&volume, name).unwrap();
    }
    assert!(matches!(find(&volume, b"BAD\xFFNAME"), Err(Error::NotFound)));
    find(&volume, b"FINE").unwrap();

    // Strict: names that are not UTF-8 cannot exist, and looking one up is an error.
    let image = folded(&names[1..2], false, &["encoding=utf8-12.1", "encoding_flags=strict"]);
    let volume = open_ro(image.device());
    let error = find(&volume, &names[0]).unwrap_err();
    assert!(error.errno() == 22 && error.to_string().contains("Bad\\xffname"), "{error}");
    find(&volume, b"FiNe").unwrap();
    assert!(matches!(volume.resolve(OsStr::from_bytes(b"/\xFF"), false), Err(Error::NotFound)));
}

#[test]
fn what_does_not_fit_together_is_refused() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let image = folded(&[b"name".to_vec()], false, &[]);
    // An encoding that is not defined yet: its hashes and comparisons are unknown.
    let mut unknown = image.clone();
    unknown.patch_superblock(|superblock| superblock[ENCODING] = 2);
    let error = Volume::open_device(unknown.device(), VolumeOptions::read_only()).err().unwrap();
    assert!(error.errno() == 95 && error.to_string().contains("casefold with encoding 2"), "{error}");
    // The flag of a directory without the feature of the volume.
    let mut bare = image.clone();
    bare.patch_superblock(|superblock| superblock[0x62] &= !2);
    let volume = open_ro(bare.device());
    let error = volume.read_dir("/dir").err().unwrap();
    assert!(
        matches!(error, Error::CorruptInode { .. }) && error.to_string().contains("case-folded"),
        "{error}"
    );
    volume.read_dir("/").unwrap();
    // A volume with the feature and no such directory.
    let plain = VolumeBuilder::new(8 << 20).args(MAKE.iter().copied()).build();
    assert!(open_rw(Image::load(plain.path()).device()).resolve("/LOST+FOUND", false).is_err());
}

/// The entries of a directory lie where the hash of their names says, so the flag does not change alone.
#[test]
fn the_flag_itself_is_not_changed() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let image = folded(&[], false, &[]);
    let device = image.device();
    let volume = open_rw(device.clone());
    volume.create_dir("/plain", 0o755, &Caller::root()).unwrap();
    for path in ["/dir", "/plain"] {
        let before = volume.metadata(path).unwrap().flags;
        let done = volume.set_flags(path, before ^ InodeFlags::CASEFOLD, false);
        let said = done.unwrap_err().to_string();
        assert!(said.contains("folded case (F)"), "{path}: {said}");
        assert_eq!(volume.metadata(path).unwrap().flags, before, "{path}");
    }
    volume.close().unwrap();
    assert_clean(&*device);
}
