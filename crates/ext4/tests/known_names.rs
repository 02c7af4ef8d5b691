//! Names that a volume remembers follow every change, and hold for one spelling of a case-folded directory only.

use crate::common;

use common::dirs::{CASEFOLD_FLAG, EXTENTS_FLAG, Recipe, in_dir};
use common::{Image, read_write};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4::{Error, Ino, Volume, VolumeOptions};
use uext4_testkit::{Need, Scratch, needs, oracle};

/// None, room for a few names, and the usual budget.
const BUDGETS: [usize; 3] = [0, 600, 8 << 20];

fn find(volume: &Volume, path: &str) -> Option<Ino> {
    // Twice: the second answer may be a remembered one.
    let found = [(); 2].map(|()| match volume.resolve(path, true) {
        Ok(ino) => Some(ino),
        Err(Error::NotFound) => None,
        Err(error) => panic!("{path}: {error}"),
    });
    assert_eq!(found[0], found[1], "{path}");
    found[0]
}

/// Makes, removes, replaces and makes again, and looks before and after each step.
fn follow_changes(volume: &Volume) {
    for round in 0..3 {
        for number in 0..40 {
            let path = format!("/dir/changing-{number}");
            assert_eq!(find(volume, &path), None, "round {round}");
            drop(volume.open_file(&path, read_write().create_new(true)).unwrap());
            let first = find(volume, &path).expect("it was made");
            let new = volume.replace_file(&path, read_write()).unwrap();
            assert_eq!(find(volume, &path), Some(first), "not replaced yet");
            new.finish().unwrap();
            let second = find(volume, &path).expect("it was replaced");
            assert_ne!(first, second);
            if number % 2 == 0 {
                volume.remove_file(&path).unwrap();
                assert_eq!(find(volume, &path), None);
            }
        }
        for number in (1..40).step_by(2) {
            volume.remove_file(format!("/dir/changing-{number}")).unwrap();
        }
    }
}

#[test]
fn remembered_names_follow_changes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let volumes: [(&[&str], usize); 3] =
        [(&[], 8 << 20), (&["-O", "inline_data"], 8 << 20), (&["-b", "1024", "-O", "^dir_index"], 0)];
    for (args, inodes) in volumes {
        let image = Recipe { args, ..Recipe::default() }.make(&[b"other".to_vec()]);
        for budget in BUDGETS {
            let device = image.device();
            let options = VolumeOptions::read_write().name_budget(budget).inode_budget(inodes);
            let volume = Volume::open_device(device.clone(), options).unwrap();
            follow_changes(&volume);
            volume.close().unwrap();
            let scratch = Scratch::new(1 << 20);
            let path = scratch.file("image");
            Image::of(&*device).save(&path);
            oracle::e2fsck_clean(&path);
        }
    }
}

/// Absent under one spelling, then made under another one.
#[test]
fn case_folded_names_are_not_remembered() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let flags = format!("sif /dir flags {:#x}", CASEFOLD_FLAG | EXTENTS_FLAG);
    let args = &["-b", "1024", "-O", "casefold,^has_journal"];
    let image = Recipe { args, debugfs: &[&flags], ..Recipe::default() }.make(&[b"other".to_vec()]);
    let volume = Volume::open_device(image.device(), VolumeOptions::read_write()).unwrap();
    let path = |name: &str| String::from_utf8(in_dir(name.as_bytes())).unwrap();
    let spellings = ["readme", "ReadMe", "README"];
    for spelling in spellings {
        assert_eq!(find(&volume, &path(spelling)), None);
    }
    drop(volume.open_file(OsStr::from_bytes(&in_dir(b"ReadMe")), read_write().create_new(true)).unwrap());
    let made = find(&volume, &path("ReadMe"));
    assert!(made.is_some());
    for spelling in spellings {
        assert_eq!(find(&volume, &path(spelling)), made);
    }
    volume.remove_file(path("README")).unwrap();
    for spelling in spellings {
        assert_eq!(find(&volume, &path(spelling)), None);
    }
    volume.close().unwrap();
}
