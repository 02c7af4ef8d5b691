//! Edits of damaged directories: a typed error, and nothing changed.

use super::stage::{Recipe, Stage};
use super::{CHECKSUMS, Model, TOOLS, random_edits};
use crate::dir::edit::Edit;
use crate::ground::blocks::Blocks;
use crate::ground::error::Error;
use uext4_ondisk::ext4::{DirBlockKind, DirFormat, InodeFlags, update_dir_checksum, update_htree_checksum};
use uext4_ondisk::{CorruptKind, Lblk};
use uext4_testkit::{Rng, needs};

/// One damage of a block: its number, byte, and new value.
struct Damage {
    what: &'static str,
    block: u32,
    at: usize,
    bytes: Vec<u8>,
    /// Whether the block gets a new checksum.
    sealed: bool,
    expected: fn(&Error) -> bool,
}

fn is(error: &Error, kind: CorruptKind) -> bool {
    matches!(error, Error::Corrupt(corrupt) if corrupt.kind == kind)
}

impl Stage {
    fn block(&self, number: u32) -> Vec<u8> {
        self.blocks.changed[&self.supply.places[number as usize]].clone()
    }

    /// Loads the whole directory into memory.
    fn load(&mut self) {
        for place in self.supply.places.clone() {
            self.blocks.change(uext4_ondisk::Pblk(place), |_| ()).unwrap();
        }
    }

    fn damage(&mut self, number: u32, at: usize, bytes: &[u8], sealed: bool) {
        let format = DirFormat::new(&self.blocks.ground().superblock);
        let seed = self.draft.seed(self.blocks.ground());
        let indexed = self.draft.disk.flags.contains(InodeFlags::INDEX);
        let block = self.blocks.changed.get_mut(&self.supply.places[number as usize]).unwrap();
        let kind = DirBlockKind::of(block, indexed, Lblk(number), &format);
        block[at..at + bytes.len()].copy_from_slice(bytes);
        if let Some(seed) = seed.filter(|_| sealed) {
            // If the damage leaves no place for a checksum, ignore it.
            let _ = match kind {
                DirBlockKind::Linear => update_dir_checksum(block, seed),
                _ => update_htree_checksum(block, seed),
            };
        }
    }

    /// Damages a block, sees every edit of `name` fail, and repairs it.
    fn check(&mut self, damage: &Damage, name: &[u8], new: &[u8]) {
        let sound = self.blocks.changed.clone();
        self.damage(damage.block, damage.at, &damage.bytes, damage.sealed);
        let before = self.state();
        let ino = self.targets[0].ino;
        for (edit, error) in [
            ("insert", self.edit().insert(new, ino, None).err()),
            ("remove", self.edit().remove(name, ino).err()),
            ("set", self.edit().set(name, ino, None).err()),
            ("get", self.edit().get(name).err()),
        ] {
            let what = damage.what;
            let error = error.unwrap_or_else(|| panic!("{what}: {edit} was done"));
            assert!((damage.expected)(&error), "{what}: {edit}: {error:?}");
            assert!(self.state() == before, "{what}: {edit} changed something");
        }
        self.blocks.changed = sound;
    }
}

/// A directory of 1 KiB blocks; every name looked up leads through leaf `leaf` (0: no tree).
fn stage(features: &str, names: usize) -> Stage {
    let mut stage = Recipe::new(&["-b", "1024", "-O", &format!("^has_journal,{features}")]).build();
    let mut model = Model::default();
    random_edits(&mut stage, &mut model, &mut Rng::new(41), names, 0);
    stage.insert(b"the name", 0).unwrap();
    stage.load();
    stage
}

/// The block with the name, and the offset of its entry.
fn leaf_of(stage: &Stage, name: &[u8]) -> (u32, usize) {
    let places = stage.supply.places.len() as u32;
    let find = |number| stage.block(number).windows(name.len()).position(|window| window == name);
    let (number, at) = (0..places).find_map(|number| find(number).map(|at| (number, at))).unwrap();
    (number, at - 8)
}

/// Fields of the block's first entry, which is read before the name's.
fn of_entries(block: u32, first: usize) -> Vec<Damage> {
    let damage = |what, at, bytes: &[u8], expected| {
        let (at, bytes) = (first + at, bytes.to_vec());
        Damage { what, block, at, bytes, sealed: true, expected }
    };
    vec![
        damage("an inode beyond the last", 0, &[255; 4], |e| is(e, CorruptKind::DirEntryInode)),
        damage("a record of no bytes", 4, &[0, 0], |e| is(e, CorruptKind::DirEntryLength)),
        damage("a record of odd length", 4, &[21, 0], |e| is(e, CorruptKind::DirEntryLength)),
        damage("a record beyond the block", 4, &[0, 8], |e| is(e, CorruptKind::DirEntryLength)),
        damage("a record too short for its name", 6, &[255], |e| is(e, CorruptKind::DirEntryLength)),
        damage("no name", 6, &[0], |e| is(e, CorruptKind::DirEntryName)),
        damage("a slash in the name", 8, b"/", |e| is(e, CorruptKind::DirEntryName)),
        damage("a zero in the name", 8, b"\0", |e| is(e, CorruptKind::DirEntryName)),
    ]
}

#[test]
fn edits_of_damaged_rows_change_nothing() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for checksums in CHECKSUMS {
        let mut stage = stage(&format!("^dir_index,{checksums}"), 60);
        let (block, _) = leaf_of(&stage, b"the name");
        assert!(block > 0, "not the first block");
        for damage in of_entries(block, 0) {
            stage.check(&damage, b"the name", b"a new one");
        }
        if checksums == "metadata_csum" {
            let unsealed = |what, at, byte: u8, expected| Damage {
                what,
                block,
                at,
                bytes: vec![byte],
                sealed: false,
                expected,
            };
            let wrong: fn(&Error) -> bool = |e| is(e, CorruptKind::DirChecksum);
            let old = stage.block(block);
            stage.check(&unsealed("a byte of a name", 9, old[9] ^ 1, wrong), b"the name", b"a new one");
            stage.check(&unsealed("the sum", 1023, old[1023] ^ 1, wrong), b"the name", b"a new one");
            let tail: fn(&Error) -> bool = |e| is(e, CorruptKind::DirTail);
            stage.check(&unsealed("the mark of the tail", 1019, 0, tail), b"the name", b"a new one");
        }
        // Missing blocks.
        let place = stage.supply.places.pop().unwrap();
        let before = stage.state();
        let error = stage.insert(b"a new one", 0).unwrap_err();
        assert!(error.to_string().contains("not allocated"), "{error}");
        assert!(stage.state() == before, "something changed");
        stage.supply.places.push(place);
        for size in [0, 1000, 1 << 40] {
            let size = std::mem::replace(&mut stage.draft.disk.size, size);
            let opened = Edit::open(&mut stage.blocks, &mut stage.supply, &mut stage.draft);
            assert!(matches!(opened.err(), Some(Error::CorruptInode { .. })));
            stage.draft.disk.size = size;
        }
        stage.insert(b"a new one", 0).unwrap();
    }
}

/// Faults of an index with this many children at `entries`, on the path through child `taken`.
fn of_index(block: u32, entries: usize, count: u16, taken: usize, blocks: u32) -> Vec<Damage> {
    let damage = |what, at, bytes: &[u8], expected| Damage {
        what,
        block,
        at,
        bytes: bytes.to_vec(),
        sealed: true,
        expected,
    };
    let limits: fn(&Error) -> bool = |e| is(e, CorruptKind::HtreeLimits) || is(e, CorruptKind::HtreeChecksum);
    let child = entries + 8 * taken + 4;
    let other = entries + 8 * (if taken == 0 { 1 } else { 0 }) + 4;
    let outside: fn(&Error) -> bool = |e| is(e, CorruptKind::HtreeChild);
    let order: fn(&Error) -> bool = |e| is(e, CorruptKind::HtreeOrder);
    let mut all = vec![
        damage("another limit", entries, &[1, 0], limits),
        damage("no children", entries + 2, &[0, 0], limits),
        damage("more children than fit", entries + 2, &[255, 255], limits),
        damage("the root as child", child, &[0; 4], outside),
        damage("a child behind the end", child, &blocks.to_le_bytes(), outside),
        damage("another child behind the end", other, &blocks.to_le_bytes(), outside),
    ];
    if count > 2 {
        all.push(damage("a hash above the next", entries + 8, &[0xff; 4], order));
    }
    all
}

/// Faults of the root's head: its dots, and its tree parameters.
fn of_root() -> impl IntoIterator<Item = Damage> {
    let damage = |what, block, at, bytes: &[u8], expected| Damage {
        what,
        block,
        at,
        bytes: bytes.to_vec(),
        sealed: true,
        expected,
    };
    let dots: fn(&Error) -> bool = |e| {
        is(e, CorruptKind::DirectoryDots)
            || is(e, CorruptKind::HtreeRoot("dot entries"))
            || { is(e, CorruptKind::DirEntryLength) || is(e, CorruptKind::DirEntryName) }
            || is(e, CorruptKind::HtreeRoot("info_length"))
    };
    let info: fn(&Error) -> bool = |e| {
        is(e, CorruptKind::HtreeRoot("hash_version"))
            || is(e, CorruptKind::HtreeRoot("info_length"))
            || is(e, CorruptKind::HtreeRoot("flags"))
            || is(e, CorruptKind::HtreeDepth)
    };
    [
        damage("`.` is another inode", 0, 0, &[2, 0, 0, 0], dots),
        damage("`.` is longer", 0, 4, &[24, 0], dots),
        damage("`.` has another name", 0, 8, b"x", dots),
        damage("`..` is shorter", 0, 16, &[24, 0], dots),
        damage("`..` has another name", 0, 20, b"xx", dots),
        damage("an unknown hash", 0, 28, &[9], info),
        damage("the hash of encrypted directories", 0, 28, &[6], info),
        damage("a longer root", 0, 29, &[9], info),
        damage("more levels than there may be", 0, 30, &[2], info),
        damage("flags", 0, 31, &[1], info),
    ]
}

fn wrong_level(e: &Error) -> bool {
    is(e, CorruptKind::HtreeDepth) || is(e, CorruptKind::HtreeNode) || is(e, CorruptKind::HtreeChild)
}

#[test]
fn edits_of_damaged_trees_change_nothing() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for checksums in CHECKSUMS {
        let mut stage = stage(checksums, 6000);
        let (leaf, _) = leaf_of(&stage, b"the name");
        let blocks = stage.supply.places.len() as u32;
        // Finds root and node by their contents.
        let word = |block: &[u8], at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
        let children = |block: &[u8], at: usize| -> Vec<u32> {
            let count = word(block, at) >> 16;
            (0..count as usize).map(|child| word(block, at + 8 * child + 4)).collect()
        };
        let root = stage.block(0);
        assert_eq!(root[30], 1, "two levels");
        let nodes = children(&root, 32);
        let of_node: Vec<_> = nodes.iter().map(|node| children(&stage.block(*node), 8)).collect();
        let at_root = of_node.iter().position(|children| children.contains(&leaf)).unwrap();
        let at_node = of_node[at_root].iter().position(|child| *child == leaf).unwrap();
        let node = nodes[at_root];

        let damage = |what, block, at, bytes: &[u8], expected| Damage {
            what,
            block,
            at,
            bytes: bytes.to_vec(),
            sealed: true,
            expected,
        };
        let mut all = of_index(0, 32, nodes.len() as u16, at_root, blocks);
        all.extend(of_index(node, 8, of_node[at_root].len() as u16, at_node, blocks));
        all.extend(of_entries(leaf, 0));
        all.extend(of_root());
        all.push(damage("a level less than there are", 0, 30, &[0], wrong_level));
        let astray: fn(&Error) -> bool =
            |e| matches!(e, Error::CorruptInode { what, .. } if what.contains("leads back to block"));
        let child = 8 + 8 * at_node + 4;
        all.push(damage("the node as its own child", node, child, &node.to_le_bytes(), astray));
        all.push(damage(
            "another node as the child",
            node,
            child,
            &nodes[1 - at_root.min(1)].to_le_bytes(),
            |e| is(e, CorruptKind::HtreeDepth),
        ));
        all.push(damage("a leaf as the node", 0, 32 + 8 * at_root + 4, &leaf.to_le_bytes(), |e| {
            is(e, CorruptKind::HtreeNode)
        }));
        // Hash limits beyond those of the neighbouring nodes.
        let order: fn(&Error) -> bool = |e| is(e, CorruptKind::HtreeOrder);
        if at_root > 0 {
            all.push(damage("a hash below the node's", node, 16, &[0; 4], order));
        }
        if at_root + 1 < nodes.len() {
            let last = 8 + 8 * (of_node[at_root].len() - 1);
            all.push(damage("a hash of the next node", node, last, &[0xfe, 0xff, 0xff, 0xff], order));
        }
        assert!(nodes.len() > 1);
        for damage in &all {
            stage.check(damage, b"the name", b"the name");
        }
        if checksums == "metadata_csum" {
            for (block, at) in [(0, 1020), (0, 33 + 8), (node, 1020), (node, 12), (0, 1016)] {
                let bytes = vec![stage.block(block)[at] ^ 1];
                let expected: fn(&Error) -> bool = |e| is(e, CorruptKind::HtreeChecksum);
                let damage = Damage { what: "a checksum", block, at, bytes, sealed: false, expected };
                stage.check(&damage, b"the name", b"the name");
            }
        }
    }
}

/// Names in a block whose hashes do not include theirs: found when the block would split, which would hide them for
/// good.
#[test]
fn a_block_with_foreign_names_is_not_divided() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for checksums in CHECKSUMS {
        let mut stage = stage(checksums, 200);
        let last = stage.supply.places.len() as u32 - 1;
        // Change a name to another of the same length.
        for number in 1..=last {
            let mut block = stage.block(number);
            block[8] ^= 1;
            let name = block[8];
            if !matches!(name, b'/' | 0 | b'.') {
                stage.damage(number, 8, &[name], true);
            }
        }
        let mut refused = 0;
        for number in 0..200 {
            let before = stage.state();
            match stage.insert(format!("more and more names {number}").as_bytes(), 0) {
                Ok(()) => {}
                Err(error) => {
                    assert!(is(&error, CorruptKind::HtreeHash), "{error:?}");
                    assert!(stage.state() == before, "something changed");
                    refused += 1;
                }
            }
        }
        assert!(refused > 20, "{refused}");
    }
}

#[test]
fn edits_inside_a_damaged_inode_change_nothing() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    let recipe = ["-b", "1024", "-I", "256", "-O", "^has_journal,inline_data"];
    let mut stage = Recipe::new(&recipe).build();
    stage.insert(b"the name", 0).unwrap();
    stage.insert(b"another", 1).unwrap();
    let (disk, raw) = (stage.draft.disk.clone(), stage.draft.raw.clone());
    let data = |e: &Error| matches!(e, Error::Corrupt(c) if matches!(c.kind, CorruptKind::InlineData(_)));
    let range = disk.xattr_range(&stage.blocks.ground().superblock);
    type Change = Box<dyn Fn(&mut Stage)>;
    type Expected = Box<dyn Fn(&Error) -> bool>;
    let first =
        |at: usize, byte: u8| -> Change { Box::new(move |stage| stage.draft.disk.i_block[at] = byte) };
    let behind = |at: usize, byte: u8| -> Change {
        let at = range.start + at;
        Box::new(move |stage| stage.draft.raw[at] = byte)
    };
    let cases: Vec<(&str, Change, Expected)> = vec![
        ("a parent beyond the last", first(3, 255), Box::new(data)),
        ("an inode beyond the last", first(7, 255), Box::new(|e| is(e, CorruptKind::DirEntryInode))),
        ("a record of no bytes", first(8, 0), Box::new(|e| is(e, CorruptKind::DirEntryLength))),
        ("no name", first(10, 0), Box::new(|e| is(e, CorruptKind::DirEntryName))),
        ("a slash", first(12, b'/'), Box::new(|e| is(e, CorruptKind::DirEntryName))),
        ("no attributes", behind(3, 0), Box::new(data)),
        ("another attribute", behind(5, 1), Box::new(data)),
        ("a value outside", behind(13, 255), Box::new(|e| is(e, CorruptKind::XattrValue))),
        ("extents besides", Box::new(|stage| stage.draft.disk.flags |= InodeFlags::EXTENTS), Box::new(data)),
    ];
    for (what, change, expected) in cases {
        change(&mut stage);
        let before = stage.state();
        let ino = stage.targets[0].ino;
        for error in [
            stage.edit().insert(b"a new one", ino, None).err(),
            stage.edit().insert(&[b'l'; 200], ino, None).err(),
            stage.edit().remove(b"the name", ino).err(),
            stage.edit().set(b"the name", ino, None).err(),
            stage.edit().set(b"..", ino, None).err(),
            stage.edit().get(b"..").err(),
            stage.edit().is_empty().err(),
        ] {
            let error = error.unwrap_or_else(|| panic!("{what}: an edit was done"));
            assert!(expected(&error), "{what}: {error:?}");
            assert!(stage.state() == before, "{what}");
        }
        (stage.draft.disk, stage.draft.raw) = (disk.clone(), raw.clone());
    }
    stage.insert(&[b'l'; 200], 0).unwrap();
}

/// For some months of 2024, kernels placed folded names elsewhere: a block with such names splits, none is lost, and
/// the tree stays sorted.
#[test]
fn a_block_with_names_that_were_folded_otherwise_is_divided() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for (checksums, step) in CHECKSUMS.into_iter().zip([1, 3]) {
        let features = format!("^has_journal,casefold,{checksums}");
        let mut recipe = Recipe::new(&["-b", "1024", "-O", &features]);
        recipe.debugfs.push("sif /dir flags 0x40080000");
        let mut stage = recipe.build();
        let mut names: Vec<_> = (0..200).map(|n| format!("name of a file, {n:03}").into_bytes()).collect();
        names.iter().for_each(|name| stage.insert(name, 0).unwrap());
        stage.load();
        // Names of another hash, replacing the original ones.
        for name in names.iter_mut().step_by(step) {
            let (number, at) = leaf_of(&stage, name);
            name[0] = b'o';
            stage.damage(number, at + 8, b"o", true);
        }
        let blocks = stage.supply.places.len();
        for n in 0..400 {
            names.push(format!("name of a file, {n:03} more").into_bytes());
            stage.insert(names.last().unwrap(), 0).unwrap();
        }
        assert!(stage.supply.places.len() > blocks + 10);
        for name in &names {
            assert!(stage.edit().get(name).unwrap().is_some(), "{}", name.escape_ascii());
            assert!(matches!(stage.insert(&name.to_ascii_uppercase(), 0), Err(Error::Exists)));
        }
        names.iter().for_each(|name| stage.remove(name, 0).unwrap());
        assert!(stage.edit().is_empty().unwrap());
    }
}

/// A value too short or too long for records of entries.
#[test]
fn a_directory_does_not_start_in_a_damaged_inode() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    let mut stage = Recipe::new(&["-b", "1024", "-I", "256", "-O", "^has_journal,inline_data"]).build();
    stage.insert(b"the name", 0).unwrap();
    let range = stage.draft.disk.xattr_range(&stage.blocks.ground().superblock);
    // After the magic number: offset and length of the value.
    stage.draft.raw[range.start + 6..][..2].copy_from_slice(&((range.len() - 12) as u16).to_le_bytes());
    stage.draft.raw[range.start + 12] = 8;
    let before = stage.state();
    assert!(stage.start().is_err());
    assert!(stage.state() == before, "something changed");
}

/// The offset of an empty value is arbitrary.
#[test]
fn the_place_of_an_empty_value_is_not_believed() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    let mut stage = Recipe::new(&["-b", "1024", "-I", "256", "-O", "^has_journal,inline_data"]).build();
    let start = stage.draft.disk.xattr_range(&stage.blocks.ground().superblock).start;
    assert_eq!(stage.draft.raw[start + 12..start + 16], [0; 4]);
    stage.draft.raw[start + 6..start + 8].fill(0xff);
    stage.insert(b"the name", 0).unwrap();
    stage.insert(&[b'l'; 200], 0).unwrap();
    assert!(!stage.draft.disk.has_inline_data());
}

#[test]
fn a_directory_without_its_dots_is_not_empty() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for checksums in CHECKSUMS {
        let mut stage = stage(&format!("^dir_index,{checksums}"), 0);
        stage.remove(b"the name", 0).unwrap();
        for (at, byte) in [(0, 2), (8, b'x'), (20, b'x')] {
            let sound = stage.blocks.changed.clone();
            stage.damage(0, at, &[byte], true);
            let error = stage.edit().is_empty().err().unwrap_or_else(|| panic!("byte {at}"));
            assert!(is(&error, CorruptKind::DirectoryDots), "{error:?}");
            stage.blocks.changed = sound;
        }
        assert!(stage.edit().is_empty().unwrap());
    }
}

/// A full linear block becomes a tree, and its dots those of the root.
#[test]
fn a_block_without_its_dots_becomes_no_tree() {
    needs!(TOOLS[0], TOOLS[2], TOOLS[3]);
    for checksums in CHECKSUMS {
        let mut stage = stage(checksums, 0);
        (0..8).for_each(|n| stage.insert(&[b'a' + n; 100], 0).unwrap());
        for (at, byte) in [(0, 2), (8, b'x'), (20, b'x')] {
            let sound = stage.blocks.changed.clone();
            stage.damage(0, at, &[byte], true);
            let before = stage.state();
            let error = stage.insert(&[b'z'; 200], 0).err().unwrap_or_else(|| panic!("byte {at}"));
            assert!(is(&error, CorruptKind::DirectoryDots), "{error:?}");
            assert!(stage.state() == before, "something changed");
            stage.blocks.changed = sound;
        }
        stage.insert(&[b'z'; 200], 0).unwrap();
        assert!(super::is_indexed(&stage));
    }
}
