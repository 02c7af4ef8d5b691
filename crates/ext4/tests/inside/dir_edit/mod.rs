//! Names added to directories, removed and redirected: against a model, e2fsck, debugfs and the kernel.

mod damage;
mod large;
mod stage;

use super::edit::Edit;
use crate::ground::blocks::Blocks;
use crate::ground::error::Error;
use crate::{Volume, VolumeOptions};
use stage::{Recipe, Stage, listed};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4_ondisk::ext4::{CaseFolder, FileType, HashVersion, InodeFlags, dir_hash};
use uext4_ondisk::{Ino, Pblk};
use uext4_testkit::{Need, Rng, needs, oracle};

/// The expected names: by comparison key, with spelling and target.
#[derive(Default)]
struct Model {
    names: BTreeMap<Vec<u8>, (Vec<u8>, usize)>,
    folder: Option<CaseFolder>,
}

impl Model {
    fn key(&mut self, name: &[u8]) -> Vec<u8> {
        let form = self.folder.as_mut().and_then(|folder| folder.fold(name));
        form.unwrap_or(name).to_vec()
    }

    /// A random existing name, in any of its spellings.
    fn pick(&self, rng: &mut Rng) -> Option<(Vec<u8>, usize)> {
        let at = (rng.next_u64() & 0xff) as usize;
        let mut found = self.names.values().skip(at % self.names.len().max(1));
        let (name, target) = found.next()?.clone();
        let other = self.folder.is_some() && str::from_utf8(&name).is_ok() && rng.chance(50);
        Some((if other { name.to_ascii_uppercase() } else { name }, target))
    }
}

/// Typical lengths, bytes above 127, spellings that fold.
fn random_name(rng: &mut Rng) -> Vec<u8> {
    let length = if rng.chance(10) { rng.range(100..256) } else { rng.range(1..40) };
    let mut name: Vec<u8> = (0..length).map(|_| *rng.pick(b"abcdefghijKLMNOP0123456789-. ")).collect();
    if rng.chance(20) {
        *name.first_mut().unwrap() = b'\x80' + rng.below(128) as u8;
    } else if rng.chance(20) {
        name = [rng.pick(&["Éa", "straße", "ΣΊΣ", "日本"]).as_bytes(), &name].concat();
        name.truncate(255);
    }
    if matches!(name.as_slice(), b"." | b"..") { b"dots".to_vec() } else { name }
}

/// Random edits, some of which must fail.
fn random_edits(stage: &mut Stage, model: &mut Model, rng: &mut Rng, count: usize, removes: u64) {
    for _ in 0..count {
        if rng.chance(removes) && !model.names.is_empty() {
            let (name, target) = model.pick(rng).unwrap();
            // A full comparison takes long in a large directory.
            if stage.supply.places.len() < 200 || rng.chance(1) {
                let before = stage.state();
                assert!(matches!(stage.remove(&name, (target + 1) % 4), Err(Error::NotFound)));
                assert!(stage.state() == before, "something changed");
            }
            stage.remove(&name, target).unwrap();
            let key = model.key(&name);
            model.names.remove(&key);
            continue;
        }
        let (mut name, target) = (random_name(rng), rng.below(4) as usize);
        if model.folder.is_some() && str::from_utf8(&name).is_err() {
            // e2fsck 1.47 cannot hash other names that are not UTF-8 in case-folded directories.
            name[0] &= 0xbf;
        }
        let key = model.key(&name);
        if let Some((_, old)) = model.names.get_mut(&key) {
            assert!(matches!(stage.insert(&name, target), Err(Error::Exists)));
            let (ino, kind) = (stage.targets[target].ino, stage.targets[target].disk.file_type());
            stage.edit().set(&name, ino, kind).unwrap();
            stage.targets[target].disk.links += 1;
            stage.targets[*old].disk.links -= 1;
            *old = target;
        } else {
            stage.insert(&name, target).unwrap();
            model.names.insert(key, (name, target));
        }
    }
}

/// Compares the image with the model: our look-up and listing, `debugfs ls`, e2fsck.
fn compare(stage: &mut Stage, model: &Model) {
    let empty = stage.edit().is_empty().unwrap();
    assert_eq!(empty, model.names.is_empty());
    stage.bring_home();
    stage.made().assert_clean();
    let volume = Volume::open(stage.path().as_path(), VolumeOptions::read_only()).unwrap();
    let targets: Vec<_> = stage.targets.iter().map(|target| (target.ino, target.disk.file_type())).collect();
    let ino_of = |target: usize| targets[target].0;
    let kind_of = |target: usize| targets[target].1;
    let mut found: Vec<_> = volume.read_dir("/dir").unwrap().map(Result::unwrap).collect();
    found.retain(|entry| !matches!(entry.name.as_slice(), b"." | b".."));
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let mut expected: Vec<_> = model.names.values().collect();
    expected.sort();
    assert_eq!(found.len(), expected.len(), "as many names");
    for (entry, (name, target)) in found.iter().zip(&expected) {
        assert_eq!((&entry.name, entry.ino), (name, ino_of(*target)));
        if entry.kind.is_some() {
            assert_eq!(entry.kind, kind_of(*target));
        }
    }
    for (name, target) in &expected {
        let path = [b"/dir/", name.as_slice()].concat();
        assert_eq!(volume.resolve(OsStr::from_bytes(&path), false).unwrap(), ino_of(*target));
        let seen = stage.edit().get(name).unwrap().unwrap();
        assert_eq!((seen.ino, seen.spelling), (ino_of(*target), None));
    }
    let mut texts: Vec<_> = expected
        .iter()
        .map(|(name, target)| (String::from_utf8_lossy(name).into_owned(), ino_of(*target).get()))
        .collect();
    texts.sort();
    let listed = listed(&stage.path());
    let differs = listed.iter().zip(&texts).find(|(found, expected)| found != expected);
    assert!(listed == texts, "debugfs: {} names, not {}: {differs:?}", listed.len(), texts.len());
}

fn is_indexed(stage: &Stage) -> bool {
    stage.draft.disk.flags.contains(InodeFlags::INDEX)
}

/// Levels of nodes between the root of a hash tree and the blocks of entries.
fn levels(stage: &Stage) -> u8 {
    stage.blocks.look(Pblk(stage.supply.places[0]), |root| root[30]).unwrap()
}

/// Grows and shrinks a directory three times.
fn run(what: &str, recipe: &Recipe<'_>, edits: usize, folds: bool) -> Stage {
    println!("{what}: {:?} {:?} {:?}", recipe.args, recipe.hash, recipe.debugfs);
    let mut stage = recipe.build();
    let mut model = Model { folder: folds.then(CaseFolder::new), ..Model::default() };
    let mut rng = Rng::new(uext4_testkit::rng::mix(what.len() as u64 + edits as u64));
    compare(&mut stage, &model);
    for removes in [5, 70, 30] {
        random_edits(&mut stage, &mut model, &mut rng, edits, removes);
        compare(&mut stage, &model);
    }
    while let Some((name, target)) = model.pick(&mut rng) {
        stage.remove(&name, target).unwrap();
        let key = model.key(&name);
        model.names.remove(&key);
    }
    compare(&mut stage, &model);
    random_edits(&mut stage, &mut model, &mut rng, edits / 2, 5);
    compare(&mut stage, &model);
    stage
}

const TOOLS: [Need; 4] =
    [Need::Tool("mke2fs"), Need::Tool("tune2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs")];
const SIZES: [&str; 3] = ["1024", "2048", "4096"];
const CHECKSUMS: [&str; 2] = ["metadata_csum", "^metadata_csum"];

/// Calls `each` with `-b` and `-O` arguments: each block size, with and without checksums, and further features.
fn with_each(features: &str, mut each: impl FnMut(usize, &[&str])) {
    for (size, scale) in SIZES.into_iter().zip([1, 2, 4]) {
        for checksums in CHECKSUMS {
            let features = format!("^has_journal,{checksums}{features}");
            each(scale, &["-b", size, "-O", &features]);
        }
    }
}

#[test]
fn rows_of_blocks_equal_the_model() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    with_each(",^dir_index", |scale, args| {
        let stage = run("rows", &Recipe::new(args), 150 * scale, false);
        assert!(!is_indexed(&stage) && stage.supply.places.len() > 2);
    });
    with_each(",^dir_index,^filetype", |scale, args| {
        run("rows without types", &Recipe::new(args), 50 * scale, false);
    });
}

#[test]
fn trees_of_every_hash_equal_the_model() {
    needs!(TOOLS[0], TOOLS[1], TOOLS[2], TOOLS[3]);
    for hash in ["legacy", "half_md4", "tea"] {
        for flags in ["ssv flags 1", "ssv flags 2"] {
            with_each("", |scale, args| {
                let mut recipe = Recipe::new(args);
                (recipe.hash, recipe.debugfs) = (Some(hash), vec![flags]);
                let stage = run("trees", &recipe, 120 * scale, false);
                assert!(is_indexed(&stage) && stage.supply.places.len() > 4);
            });
        }
    }
}

/// A tree of two levels whose nodes split, with names removed too.
#[test]
fn trees_with_nodes_equal_the_model() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for checksums in CHECKSUMS {
        let features = format!("^has_journal,{checksums}");
        let stage = run("nodes", &Recipe::new(&["-b", "1024", "-O", &features]), 6000, false);
        assert_eq!(levels(&stage), 1);
    }
}

#[test]
fn folded_directories_equal_the_model() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for (no_fallback, rest) in [(false, ""), (true, ""), (false, ",^dir_index")] {
        with_each(&format!(",casefold{rest}"), |scale, args| {
            let mut recipe = Recipe::new(args);
            recipe.debugfs.push("sif /dir flags 0x40080000");
            recipe.no_fallback = no_fallback;
            let stage = run("folded", &recipe, 100 * scale, true);
            assert_eq!(is_indexed(&stage), rest.is_empty());
        });
    }
}

#[test]
fn directories_inside_their_inodes_equal_the_model_and_grow_out() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for inode_size in ["256", "512", "1024"] {
        for (rest, folds) in [("", false), (",^dir_index", false), (",casefold", true)] {
            with_each(&format!(",inline_data{rest}"), |scale, args| {
                let mut recipe = Recipe::new(&[args, &["-I", inode_size]].concat());
                if folds {
                    recipe.debugfs.push("sif /dir flags 0x50000000");
                }
                // mke2fs makes the directory inline.
                let mut stage = recipe.build();
                assert!(stage.draft.disk.has_inline_data());
                let mut model = Model { folder: folds.then(CaseFolder::new), ..Model::default() };
                let mut rng = Rng::new(scale as u64);
                compare(&mut stage, &model);
                let mut inside = 0;
                while stage.draft.disk.has_inline_data() {
                    compare(&mut stage, &model);
                    random_edits(&mut stage, &mut model, &mut rng, 1, 20);
                    inside += 1;
                }
                assert!(inside > 1);
                compare(&mut stage, &model);
                random_edits(&mut stage, &mut model, &mut rng, 30 * scale, 20);
                compare(&mut stage, &model);
            });
        }
    }
}

/// The record of a new inode that is inline, and of one that is not.
#[test]
fn new_directories_start_with_their_dots() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for features in ["", ",inline_data"] {
        with_each(features, |_, args| {
            let mut stage = Recipe::new(args).build();
            stage.insert(b"old", 0).unwrap();
            stage.targets[0].disk.links -= 1;
            stage.draft.disk.flags |= InodeFlags::INDEX;
            stage.start().unwrap();
            assert_eq!(stage.draft.disk.has_inline_data(), !features.is_empty());
            assert_eq!(stage.edit().get(b".").unwrap().unwrap().ino, stage.draft.ino);
            assert_eq!(stage.edit().get(b"..").unwrap().unwrap().ino, Ino(2));
            assert!(stage.edit().get(b"old").unwrap().is_none());
            let mut model = Model::default();
            compare(&mut stage, &model);
            random_edits(&mut stage, &mut model, &mut Rng::new(3), 40, 10);
            compare(&mut stage, &model);
        });
    }
}

#[test]
fn the_parent_changes_and_only_dots_leave_a_directory_empty() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for (features, names) in [("", 0), ("", 9), ("", 200), (",inline_data", 0), (",inline_data", 200)] {
        with_each(features, |_, args| {
            let mut stage = Recipe::new(args).build();
            let mut model = Model::default();
            random_edits(&mut stage, &mut model, &mut Rng::new(7), names, 0);
            let other = stage.targets[1].ino;
            stage.edit().set(b"..", other, Some(FileType::Directory)).unwrap();
            assert_eq!(stage.edit().get(b"..").unwrap().unwrap().ino, other);
            stage.edit().set(b"..", Ino(2), Some(FileType::Directory)).unwrap();
            compare(&mut stage, &model);
        });
    }
}

/// A block may have just two names: only those of the first block are dots.
#[test]
fn a_name_in_a_later_block_is_a_name() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for (features, last) in [("^dir_index", 1), ("^dir_index", 2), ("dir_index", 1)] {
        let args = ["-b", "1024", "-O", &format!("^has_journal,{features}")];
        let mut stage = Recipe::new(&args).build();
        let name = |n: usize| format!("{n:0>100}").into_bytes();
        (0..18).for_each(|n| stage.insert(&name(n), 0).unwrap());
        assert!(stage.supply.places.len() > 1);
        (0..18 - last).for_each(|n| stage.remove(&name(n), 0).unwrap());
        assert!(!stage.edit().is_empty().unwrap());
        (18 - last..18).for_each(|n| stage.remove(&name(n), 0).unwrap());
        assert!(stage.edit().is_empty().unwrap());
    }
}

#[test]
fn names_that_cannot_be_are_refused() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    let mut stage = Recipe::new(&["-b", "1024", "-O", "^has_journal"]).build();
    let before = stage.state();
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        assert!(matches!(stage.insert(name, 0), Err(Error::Invalid(_))), "{name:?}");
        assert!(matches!(stage.remove(name, 0), Err(Error::Invalid(_))), "{name:?}");
    }
    assert!(matches!(stage.insert(&[b'a'; 256], 0), Err(Error::NameTooLong)));
    assert!(matches!(stage.remove(b"none", 0), Err(Error::NotFound)));
    assert!(matches!(stage.edit().set(b"none", Ino(2), None), Err(Error::NotFound)));
    assert!(stage.state() == before, "something changed");
    stage.insert(&[b'a'; 255], 0).unwrap();

    let Stage { blocks, supply, targets, .. } = &mut stage;
    assert!(matches!(Edit::open(blocks, supply, &mut targets[0]).err(), Some(Error::NotDirectory)));
}

#[test]
fn encrypted_directories_are_refused_by_name() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    let mut recipe = Recipe::new(&["-b", "1024", "-O", "^has_journal,encrypt"]);
    recipe.debugfs.push("sif /a flags 0x80000");
    let mut stage = recipe.build();
    stage.draft.disk.flags |= InodeFlags::ENCRYPT;
    let error = Edit::open(&mut stage.blocks, &mut stage.supply, &mut stage.draft).err().unwrap();
    assert!(matches!(error, Error::Incompatible { .. }), "{error:?}");
    assert!(error.to_string().contains("an encrypted directory (inode "), "{error}");
}

/// A strict volume refuses names that are not UTF-8.
#[test]
fn strict_folded_directories_take_utf8_only() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    let mut recipe = Recipe::new(&["-b", "1024", "-O", "^has_journal,casefold"]);
    recipe.extended = vec!["encoding=utf8-12.1", "encoding_flags=strict"];
    recipe.debugfs.push("sif /dir flags 0x40080000");
    let mut stage = recipe.build();
    let before = stage.state();
    assert!(matches!(stage.insert(b"a\xff", 0), Err(Error::Invalid(_))));
    assert!(stage.state() == before, "something changed");
    stage.insert("É".as_bytes(), 0).unwrap();
    assert!(matches!(stage.insert("e\u{301}".as_bytes(), 0), Err(Error::Exists)));
    let found = stage.edit().get("é".as_bytes()).unwrap().unwrap();
    assert_eq!(found.spelling.as_deref(), Some("É".as_bytes()));
}

#[test]
fn without_space_nothing_changes() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for args in [
        &["-b", "1024", "-O", "^has_journal"][..],
        &["-b", "1024", "-O", "^has_journal,^dir_index"],
        &["-b", "1024", "-I", "512", "-O", "^has_journal,inline_data"],
    ] {
        let mut stage = Recipe::new(args).build();
        let mut rng = Rng::new(11);
        let mut refused = 0;
        for number in 0..3000 {
            let name = [format!("{number} ").as_bytes(), &random_name(&mut rng)].concat();
            let name = &name[..name.len().min(255)];
            stage.supply.left = 0;
            while {
                let before = stage.state();
                match stage.insert(name, 0) {
                    Ok(()) => false,
                    Err(Error::NoSpace) => {
                        assert!(stage.state() == before, "something changed");
                        (refused, stage.supply.left) = (refused + 1, stage.supply.left + 1);
                        true
                    }
                    Err(error) => panic!("{error}"),
                }
            } {}
            assert_eq!(stage.supply.left, 0, "no more blocks than needed");
        }
        assert!(refused > 50, "{refused}");
        stage.bring_home();
        stage.made().assert_clean();
    }
}

/// Suffixes of names that, after 200 times the letter c, all have the legacy hash 0x268406f8.
const COLLIDING: [&str; 32] = [
    "000000", "24WgDU", "64CvVL", "9Vch4B", "dP7p51", "iP8Ns4", "nejguC", "qDnmex", "ri9Lly", "sPK7xF",
    "tJqxEO", "u04I9l", "yxeFDf", "CDrKMC", "CKqxwT", "DiX8oq", "FuYwfS", "Fviq13", "ImQVne", "JU906W",
    "Lafpep", "MeYcyZ", "MIQVx7", "P1hRKu", "PZSoAU", "QkPlyy", "QQOcbL", "TVHI3H", "V3Z2Ig", "XZ1go1",
    "YhMTVJ", "Yyo7Qm",
];

/// Names of one hash over several blocks: four fill one.
#[test]
fn names_of_one_hash_go_on_in_the_next_blocks() {
    needs!(TOOLS[0], TOOLS[1], TOOLS[2], TOOLS[3]);
    for checksums in CHECKSUMS {
        let features = format!("^has_journal,{checksums}");
        let mut recipe = Recipe::new(&["-b", "1024", "-O", &features]);
        recipe.hash = Some("legacy");
        let mut stage = recipe.build();
        let (mut model, mut rng) = (Model::default(), Rng::new(5));
        for (number, end) in COLLIDING.iter().enumerate() {
            random_edits(&mut stage, &mut model, &mut rng, 12, 10);
            let name = ["c".repeat(200).as_bytes(), end.as_bytes()].concat();
            stage.insert(&name, number % 4).unwrap();
            assert!(matches!(stage.insert(&name, 0), Err(Error::Exists)));
            model.names.insert(name.clone(), (name, number % 4));
        }
        compare(&mut stage, &model);
        for end in &COLLIDING[8..] {
            let name = ["c".repeat(200).as_bytes(), end.as_bytes()].concat();
            if let Some((_, target)) = model.names.remove(&name) {
                stage.remove(&name, target).unwrap();
            }
            assert!(stage.edit().get(&name).unwrap().is_none());
        }
        compare(&mut stage, &model);
    }
}

/// Equally many names on both sides: a node that splits does so among those of one hash.
#[test]
fn names_of_one_hash_go_on_in_the_next_node() {
    needs!(TOOLS[0], TOOLS[1], TOOLS[2], TOOLS[3]);
    const HASH: u32 = 0x2684_06f8;
    let hash = |name: &[u8]| dir_hash(name, HashVersion::Legacy, &[0; 4]).unwrap().major;
    let colliding = |end: &&str| ["c".repeat(200).as_bytes(), end.as_bytes()].concat();
    for checksums in CHECKSUMS {
        let features = format!("^has_journal,{checksums}");
        let mut recipe = Recipe::new(&["-b", "1024", "-O", &features]);
        recipe.hash = Some("legacy");
        let mut stage = recipe.build();
        let mut names: Vec<_> = COLLIDING.iter().map(colliding).collect();
        assert!(names.iter().all(|name| hash(name) == HASH));
        names.iter().for_each(|name| stage.insert(name, 0).unwrap());
        let mut others = (0..).map(|n| format!("{n:06}{}", "n".repeat(220)).into_bytes());
        let borders = |stage: &Stage| -> Vec<u32> {
            let look = |root: &[u8]| {
                let count = usize::from(u16::from_le_bytes([root[34], root[35]]));
                let border = |n: usize| u32::from_le_bytes(root[32 + 8 * n..][..4].try_into().unwrap());
                (1..count).map(border).collect()
            };
            stage.blocks.look(Pblk(stage.supply.places[0]), look).unwrap()
        };
        let mut below = true;
        while !is_indexed(&stage) || levels(&stage) == 0 || borders(&stage).is_empty() {
            let name = others.find(|name| (hash(name) < HASH) == below).unwrap();
            below = !below;
            stage.insert(&name, 0).unwrap();
            names.push(name);
        }
        assert_eq!(borders(&stage), [HASH | 1]);
        let all = names.iter().map(|name| (name.clone(), (name.clone(), 0))).collect();
        compare(&mut stage, &Model { names: all, folder: None });
        for name in &names {
            assert!(matches!(stage.insert(name, 0), Err(Error::Exists)));
        }
        // More of them, on both sides of the split.
        for name in &names[4..COLLIDING.len() - 4] {
            stage.remove(name, 0).unwrap();
            assert!(stage.edit().get(name).unwrap().is_none());
        }
    }
}

/// Two removed adjacent names leave room for one as long as both. (With hash trees the block would be repacked.)
#[test]
fn room_of_removed_names_is_one_piece() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    let mut stage = Recipe::new(&["-b", "1024", "-O", "^has_journal,^dir_index"]).build();
    let name = |number: u8| [b'a' + number; 100];
    // Together with `.` and `..` they fill the block.
    (0..9).for_each(|number| stage.insert(&name(number), 0).unwrap());
    [3, 4].iter().for_each(|number| stage.remove(&name(*number), 0).unwrap());
    stage.insert(&[b'z'; 200], 0).unwrap();
    // One is removed completely, and another fits exactly.
    stage.remove(&name(6), 0).unwrap();
    let place = Pblk(stage.supply.places[0]);
    let is_there = |block: &[u8]| block.windows(100).any(|bytes| bytes == name(6));
    assert!(!stage.blocks.look(place, is_there).unwrap());
    stage.insert(&name(10), 0).unwrap();
    assert_eq!(stage.supply.places.len(), 1);
    stage.bring_home();
    stage.made().assert_clean();
}

#[test]
fn blocks_of_64_kib_equal_the_model() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for features in ["metadata_csum", "^metadata_csum", "^dir_index"] {
        let features = format!("^has_journal,{features}");
        let mut recipe = Recipe::new(&["-b", "65536", "-O", &features]);
        (recipe.size, recipe.space) = (64 << 20, 8 << 20);
        let stage = run("wide", &recipe, 6000, false);
        assert!(stage.supply.places.len() > 3);
    }
}

/// An index that is no longer maintained is invalid: the first edit clears the flag.
#[test]
fn without_the_feature_an_index_is_given_up() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    let mut stage = Recipe::new(&["-b", "1024", "-O", "^has_journal,^metadata_csum"]).build();
    let (mut model, mut rng) = (Model::default(), Rng::new(17));
    random_edits(&mut stage, &mut model, &mut rng, 150, 0);
    stage.bring_home();
    assert!(is_indexed(&stage));
    oracle::debugfs_write(&stage.path(), "feature -dir_index");
    let mut stage = stage.again();
    random_edits(&mut stage, &mut model, &mut rng, 150, 20);
    assert!(!is_indexed(&stage));
    compare(&mut stage, &model);
}

#[test]
fn root_the_kernel_goes_on_with_our_directories_and_we_with_its() {
    needs!(Need::Loop, TOOLS[0], TOOLS[2], TOOLS[3]);
    for (features, inode) in [
        ("metadata_csum", "256"),
        ("^metadata_csum", "256"),
        ("^dir_index", "256"),
        ("metadata_csum,large_dir", "256"),
        ("metadata_csum,inline_data", "512"),
    ] {
        let features = format!("^has_journal,{features}");
        let mut recipe = Recipe::new(&["-b", "1024", "-I", inode, "-O", &features]);
        recipe.size = 16 << 20;
        let mut stage = recipe.build();
        let (mut model, mut rng) = (Model::default(), Rng::new(23));
        for (round, edits) in [12, 40, 300, 3000, 1000].into_iter().enumerate() {
            println!("{features} {edits}");
            random_edits(&mut stage, &mut model, &mut rng, edits, 10);
            compare(&mut stage, &model);
            let path = stage.path();
            uext4_testkit::with_kernel(&path, "", |root| {
                let list = |dir: &std::path::Path| {
                    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
                    let mut names: Vec<_> = names.map(|name| name.as_bytes().to_vec()).collect();
                    names.sort();
                    names
                };
                let dir = root.join("dir");
                let mut expected: Vec<_> = model.names.values().map(|(name, _)| name.clone()).collect();
                expected.sort();
                assert_eq!(list(&dir), expected);
                let file = |name: &[u8]| dir.join(OsStr::from_bytes(name));
                for _ in 0..edits / 4 {
                    let (name, _) = model.pick(&mut rng).unwrap();
                    std::fs::remove_file(file(&name)).unwrap();
                    model.names.remove(&name);
                }
                for number in 0..edits / 2 {
                    let name = format!("kernel {round} {number}").into_bytes();
                    let target = number % 4;
                    std::fs::hard_link(root.join(["a", "b", "c", "d"][target]), file(&name)).unwrap();
                    model.names.insert(name.clone(), (name, target));
                }
            });
            stage = stage.again();
        }
        random_edits(&mut stage, &mut model, &mut rng, 500, 50);
        compare(&mut stage, &model);
    }
}
