//! Volumes made for the Hurd: there the field of the inode's version holds the block of a passive translator, and upper
//! halves of other fields hold a part of the mode and the author. All of them stay unchanged.

use crate::common;

use common::{aligned, patterned};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use uext4::{Error, OpenOptions, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::oracle::{self, debugfs, debugfs_script};
use uext4_testkit::{Need, Scratch, e2fsck_clean, needs};

/// Fields of an inode that mean something else on Linux: translator, upper half of the mode, author.
const FIELDS: [std::ops::Range<usize>; 3] = [0x24..0x28, 0x76..0x78, 0x7C..0x80];

/// A volume with `/translated`, `/plain` and `/dir`; all but `/plain` have a translator.
fn volume(scratch: &Scratch, kind: &str) -> PathBuf {
    let tree = scratch.path().join(format!("tree-{kind}"));
    std::fs::create_dir_all(tree.join("dir")).unwrap();
    for name in ["translated", "plain"] {
        std::fs::write(tree.join(name), vec![7; 20_000]).unwrap();
    }
    let path = scratch.sparse_file(format!("image-{kind}"), 32 << 20);
    oracle::mke2fs_kind(&path, kind, &["-o", "hurd", "-b", "4096", "-d", tree.to_str().unwrap()]);
    for name in ["/translated", "/dir", "/"] {
        let free: u64 = debugfs(&path, "ffb 1").split_whitespace().last().unwrap().parse().unwrap();
        let stat = debugfs(&path, &format!("stat {name}"));
        let count =
            stat.split("Blockcount: ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
        let blocks = count.parse::<u64>().unwrap() + 8;
        let requests = format!("setb {free}\nsif {name} translator {free}\nsif {name} blocks {blocks}\n");
        debugfs_script(&path, &requests);
        let image = File::options().write(true).open(&path).unwrap();
        let at = record(&path, name);
        image.write_all_at(&17_u16.to_le_bytes(), at + FIELDS[1].start as u64).unwrap();
        image.write_all_at(&1_234_567_u32.to_le_bytes(), at + FIELDS[2].start as u64).unwrap();
    }
    // debugfs does not update the counts of free blocks.
    assert_eq!(oracle::e2fsck(&path, &["-y"]).status, 1);
    e2fsck_clean(&path);
    path
}

/// Where an inode's record is, in bytes.
fn record(path: &Path, name: &str) -> u64 {
    let told = debugfs(path, &format!("imap {name}"));
    let words: Vec<&str> = told.split([' ', ',', '\n']).filter(|word| !word.is_empty()).collect();
    let behind = |word: &str| words[words.iter().rposition(|other| *other == word).unwrap() + 1];
    let offset = u64::from_str_radix(behind("offset").trim_start_matches("0x"), 16).unwrap();
    behind("block").parse::<u64>().unwrap() * 4096 + offset
}

/// The fields of an inode that are the Hurd's.
fn fields(path: &Path, name: &str) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    File::open(path).unwrap().read_exact_at(&mut bytes, record(path, name)).unwrap();
    FIELDS.into_iter().flat_map(|field| bytes[field].to_vec()).collect()
}

#[test]
fn changes_keep_translators_modes_and_authors() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for kind in ["ext2", "ext3"] {
        let scratch = Scratch::new(64 << 20);
        let path = volume(&scratch, kind);
        let names = ["/translated", "/dir", "/"];
        let before = names.map(|name| fields(&path, name));
        assert!(before.iter().all(|fields| fields[..4] != [0; 4] && fields[4] == 17), "{before:?}");
        let volume = Volume::open(path.as_path(), VolumeOptions::read_write()).unwrap();
        let file = volume.open_file("/translated", OpenOptions::new().read(true).write(true)).unwrap();
        file.write_at_with(&patterned(1, 0, 8192), 0, WriteFlags::SYNC).unwrap();
        file.write_at_with(&patterned(1, 24_576, 8192), 24_576, WriteFlags::SYNC).unwrap();
        file.set_len(12_288).unwrap();
        file.sync_all().unwrap();
        for name in ["/new", "/dir/new", "/dir/gone"] {
            let file = volume.open_file(name, OpenOptions::new().write(true).create_new(true)).unwrap();
            file.write_at(&aligned(4096), 0).unwrap();
            file.sync_all().unwrap();
        }
        volume.remove_file("/dir/gone").unwrap();
        volume.remove_file("/plain").unwrap();
        drop(file);
        volume.close().unwrap();
        e2fsck_clean(&path);
        assert_eq!(before, names.map(|name| fields(&path, name)), "{kind}");
        assert_eq!(fields(&path, "/dir/new"), [0; 10], "{kind}");
    }
}

/// The translator's block would leak.
#[test]
fn removing_what_has_a_translator_is_refused_by_name() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(64 << 20);
    let path = volume(&scratch, "ext2");
    let volume = Volume::open(path.as_path(), VolumeOptions::read_write()).unwrap();
    let error = volume.remove_file("/translated").unwrap_err();
    assert!(
        matches!(&error, Error::Incompatible { feature, .. } if feature.contains("translator")),
        "{error}"
    );
    assert_eq!(volume.read("/translated").unwrap(), vec![7; 20_000]);
    volume.close().unwrap();
    e2fsck_clean(&path);
}
