//! Every structure damaged once: the check names it and its place, and e2fsck complains too.

use crate::common;

use common::hostile::{BLOCK, Layout, bare, guarded, ino_of};
use common::{Image, within};
use std::sync::Arc;
use std::time::Duration;
use uext4::device::Device;
use uext4::{Caller, Volume, VolumeOptions};
use uext4_check::{CheckOptions, Report, Severity, check_device};
use uext4_ondisk::ext4::{
    DirBlockKind, GroupDescriptor, GroupFlags, Inode, update_dir_checksum, update_extent_checksum,
    update_htree_checksum, update_inode_checksum, update_xattr_block_checksum,
};
use uext4_ondisk::{Group, Ino};
use uext4_testkit::requirement::Need;
use uext4_testkit::{Scratch, needs, oracle};

fn check(device: Arc<dyn Device>) -> Report {
    within(Duration::from_secs(30), move || {
        check_device(device, VolumeOptions::read_only(), &CheckOptions::new(), &mut |_| {}).unwrap()
    })
}

fn told(report: &Report) -> Vec<String> {
    report.findings.iter().map(|finding| finding.to_string()).collect()
}

/// A place that a finding must have: `i` inode, `g` group, `b` block, `-` nothing.
type Where = (char, u64);
const ANYWHERE: Where = ('-', 0);

#[track_caller]
fn assert_found(what: &str, report: &Report, code: &str, place: Where) {
    let at = |finding: &&uext4_check::Finding| match place.0 {
        'i' => finding.place.inode.map(|ino| u64::from(ino.get())) == Some(place.1),
        'g' => finding.place.group.map(|group| u64::from(group.get())) == Some(place.1),
        'b' => finding.place.block.map(|block| block.get()) == Some(place.1),
        _ => true,
    };
    let found = report.findings.iter().filter(|finding| finding.kind.code == code).find(at);
    assert!(found.is_some(), "{what}: no {code} at {place:?}, but {:#?}", told(report));
    assert!(report.totals[code] > 0);
}

/// Damage that debugfs can do, what must be found, and where.
type Planted<'a> = (&'a [&'a str], &'a str, Where);

/// Does each kind of damage to a fresh copy, and asks both judges.
#[track_caller]
fn assert_planted(image: &Image, cases: &[Planted<'_>]) {
    assert_eq!(told(&check(image.device())), [""; 0], "the undamaged volume");
    for (requests, code, place) in cases {
        let scratch = Scratch::new(16 << 20);
        let path = scratch.file("volume.img");
        image.save(&path);
        for request in *requests {
            oracle::debugfs_write(&path, request);
        }
        let report = check(Image::load(&path).device());
        let judged = oracle::e2fsck(&path, &["-n"]);
        let what = requests.join("; ");
        assert_found(&what, &report, code, *place);
        assert!(!report.is_clean(), "{what}");
        assert!(!judged.is_clean(), "{what}: e2fsck finds nothing, we {:#?}", told(&report));
    }
}

#[test]
fn damage_done_by_debugfs_is_found_where_it_is() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = guarded();
    let number = |path: &str| u64::from(ino_of(&image, path).get());
    let (plain, er, big) = (number("/plain"), number("/deep/er"), number("/big"));
    let freed = format!("set_inode_field <{plain}> dtime @5");
    let cases: &[Planted<'_>] = &[
        (&["set_inode_field /plain links_count 3"], "inode.links", ('i', plain)),
        (&["set_inode_field /plain size 1"], "inode.size", ('i', plain)),
        (&["set_inode_field /big size 1025"], "inode.size", ('i', big)),
        (&["set_inode_field /plain blocks 7"], "inode.blocks", ('i', plain)),
        (&["set_inode_field /plain mode 0"], "inode.mode", ('i', plain)),
        (&["set_inode_field /plain dtime @5"], "inode.deletion_time", ('i', plain)),
        (&["set_inode_field /plain links_count 0"], "inode.deletion_time", ('i', plain)),
        (&["set_inode_field /plain flags 0x81000"], "inode.flags", ('i', plain)),
        (&["set_inode_field /plain flags 0x0"], "map.range", ('i', plain)),
        (&["set_inode_field /slow size 0"], "inode.symlink", ('i', number("/slow"))),
        (&["set_inode_field /slow size 200"], "inode.symlink", ('i', number("/slow"))),
        (&["set_inode_field /fast size 40"], "inode.symlink", ('i', number("/fast"))),
        (&["set_inode_field /plain mode 0020644"], "inode.flags", ('i', plain)),
        (&["set_inode_field /plain mode 0120644"], "entry.type", ('i', 2)),
        (&["set_inode_field <8> mode 0"], "inode.special", ('i', 8)),
        (&["set_inode_field <7> dtime @11"], "inode.deletion_time", ('i', 7)),
        (&["rm /plain", &freed], "inode.deletion_time", ('i', plain)),
        (&["set_inode_field <1> mode 0100644"], "inode.special", ('i', 1)),
        (&["set_inode_field <9> mode 0100644"], "inode.special", ('i', 9)),
        (&["set_inode_field <7> block[IND] 77"], "resize.map", ('i', 7)),
        (&["set_inode_field <7> blocks 2"], "inode.blocks", ('i', 7)),
        (&["set_inode_field <2> mode 0100755"], "directory.root", ANYWHERE),
        (&["clri <2>"], "directory.root", ANYWHERE),
        (&["clri <8>"], "inode.special", ('i', 8)),
        (&["clri /plain"], "entry.free_inode", ('i', 2)),
        (&["clri /plain"], "inode_bitmap.leaked", ('g', 0)),
        (&["clri /plain"], "block_bitmap.leaked", ('g', 0)),
        (&["clri /deep"], "directory.unconnected", ('i', er)),
    ];
    assert_planted(&image, cases);
}

#[test]
fn damage_of_bitmaps_counts_and_names_by_debugfs_is_found_where_it_is() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = guarded();
    let number = |path: &str| u64::from(ino_of(&image, path).get());
    let layout = Layout::of(&image);
    let (plain, er, deep) = (number("/plain"), number("/deep/er"), number("/deep"));
    let cases: &[Planted<'_>] = &[
        (&["freeb 1 4"], "block_bitmap.free", ('b', layout.descriptors[0].block_bitmap.get())),
        (&["setb 8000 2"], "block_bitmap.leaked", ('g', 0)),
        (&["freei /plain"], "inode_bitmap.free", ('b', layout.descriptors[0].inode_bitmap.get())),
        (&["seti <500>"], "inode_bitmap.leaked", ('g', 0)),
        (&["set_super_value r_blocks_count 7000"], "superblock.reserved_blocks", ANYWHERE),
        (&["set_bg 0 free_blocks_count 5", "set_bg 0 checksum calc"], "group.free_blocks", ('g', 0)),
        (&["set_bg 0 free_inodes_count 5", "set_bg 0 checksum calc"], "group.free_inodes", ('g', 0)),
        (&["set_bg 0 used_dirs_count 5", "set_bg 0 checksum calc"], "group.directories", ('g', 0)),
        (&["set_bg 0 itable_unused 600", "set_bg 0 checksum calc"], "group.unused_inodes", ('g', 0)),
        (&["set_bg 0 itable_unused 250", "set_bg 0 checksum calc"], "group.unused_inodes", ('g', 0)),
        (&["set_bg 0 flags 6", "set_bg 0 checksum calc"], "group.uninit", ('g', 0)),
        (&["set_bg 0 checksum 1"], "group.checksum", ('g', 0)),
        (&["unlink /plain"], "inode.unattached", ('i', plain)),
        (&["unlink /deep/er"], "directory.unconnected", ('i', er)),
        (&["ln /plain /again"], "inode.links", ('i', plain)),
        (&["ln /deep /again"], "directory.linked", ('i', deep)),
        (&["ln <2> /again"], "entry.reserved_inode", ('i', 2)),
        (&["ln <8> /again"], "entry.reserved_inode", ('i', 2)),
        (&["ln <450> /again"], "entry.free_inode", ('i', 2)),
    ];
    assert_planted(&image, cases);
}

#[test]
fn what_needs_another_feature_is_found() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let cases: &[Planted<'_>] = &[
        (&["set_bg 0 flags 1"], "group.uninit", ('g', 0)),
        (&["set_bg 0 flags 2"], "group.uninit", ('g', 0)),
        (&["set_bg 0 itable_unused 3"], "group.uninit", ('g', 0)),
        (&["feature needs_recovery"], "superblock.needs_recovery", ANYWHERE),
    ];
    assert_planted(&bare(), cases);
}

/// A change of bytes, with what it takes to make their checksums right again.
struct Bytes {
    image: Image,
    layout: Layout,
}

impl Bytes {
    fn of(image: &Image) -> Bytes {
        Bytes { image: image.clone(), layout: Layout::of(image) }
    }

    fn inode(&self, path: &str) -> (Ino, usize, Inode) {
        let ino = ino_of(&guarded(), path);
        let at = self.layout.inode(ino);
        (ino, at, Inode::decode(&self.image.bytes[at..], ino, &self.layout.superblock).unwrap())
    }

    fn repair_inode(&mut self, ino: Ino) {
        let at = self.layout.inode(ino);
        update_inode_checksum(&mut self.image.bytes[at..], ino, &self.layout.superblock).unwrap();
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.image.bytes[at..at + 4].try_into().unwrap())
    }

    fn put(&mut self, at: usize, value: u32) {
        self.image.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// First bytes of the blocks of a directory whose map is in its inode.
    fn directory(&self, path: &str) -> Vec<usize> {
        let (_, at, _) = self.inode(path);
        let root = at + 0x28;
        let extents =
            usize::from(u16::from_le_bytes([self.image.bytes[root + 2], self.image.bytes[root + 3]]));
        (0..extents)
            .flat_map(|extent| {
                let entry = root + 12 + extent * 12;
                let (length, start) = (self.word(entry + 4) & 0xffff, self.word(entry + 8));
                (start..start + length).map(|block| block as usize * BLOCK)
            })
            .collect()
    }

    fn repair_dir(&mut self, path: &str, at: usize, kind: DirBlockKind) {
        let (ino, _, inode) = self.inode(path);
        let seed = inode.checksum_seed(ino, &self.layout.superblock);
        let block = &mut self.image.bytes[at..at + BLOCK];
        match kind {
            DirBlockKind::Linear => update_dir_checksum(block, seed).unwrap(),
            _ => update_htree_checksum(block, seed).unwrap(),
        }
    }

    /// Changes a block of a directory and makes its checksum right again.
    fn on(&mut self, path: &str, at: usize, kind: DirBlockKind, change: impl FnOnce(&mut [u8])) {
        change(&mut self.image.bytes[at..at + BLOCK]);
        self.repair_dir(path, at, kind);
    }

    /// First byte of the first extent node of `/tree`, below the root.
    fn node(&self) -> usize {
        let (_, at, _) = self.inode("/tree");
        self.word(at + 0x28 + 16) as usize * BLOCK
    }

    fn repair_node(&mut self, at: usize) {
        let (ino, _, inode) = self.inode("/tree");
        let seed = inode.checksum_seed(ino, &self.layout.superblock);
        update_extent_checksum(&mut self.image.bytes[at..at + BLOCK], seed).unwrap();
    }

    fn descriptor(&mut self, change: impl FnOnce(&mut GroupDescriptor)) {
        let at = self.layout.descriptor_bytes[0];
        let mut descriptor = self.layout.descriptors[0];
        change(&mut descriptor);
        descriptor.encode(&mut self.image.bytes[at..], Group(0), &self.layout.superblock).unwrap();
    }
}

/// One way to damage bytes.
type Change<'a> = &'a dyn Fn(&mut Bytes);

fn assert_bytes(what: &str, image: &Image, change: Change<'_>, code: &str, place: Where) {
    let mut bytes = Bytes::of(image);
    change(&mut bytes);
    let report = check(bytes.image.device());
    assert_found(what, &report, code, place);
    let warning = report.findings.iter().all(|finding| finding.kind.severity == Severity::Warning);
    let scratch = Scratch::new(16 << 20);
    let path = scratch.file("volume.img");
    bytes.image.save(&path);
    let judged = oracle::e2fsck(&path, &["-n"]);
    assert_eq!(judged.is_clean(), warning, "{what}: {:#?}\n{}", told(&report), judged.output);
}

#[test]
fn damaged_inodes_and_claims_are_found_where_they_are() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = guarded();
    let start = Bytes::of(&image);
    let in_plain = ('i', u64::from(start.inode("/plain").0.get()));
    let table = start.layout.descriptors[0].inode_table.get() as u32;
    let data = start.word(start.inode("/plain").1 + 0x28 + 20);
    let extent = |bytes: &mut Bytes, block: u32| {
        let (ino, at, _) = bytes.inode("/plain");
        bytes.put(at + 0x28 + 20, block);
        bytes.repair_inode(ino);
    };
    let field = |bytes: &mut Bytes, offset: usize, value: u32| {
        let (ino, at, _) = bytes.inode("/plain");
        bytes.put(at + offset, value);
        bytes.repair_inode(ino);
    };
    let cases: [(&str, Change<'_>, &str, Where); 7] = [
        (
            "an inode's byte",
            &|bytes| {
                let at = bytes.inode("/plain").1;
                bytes.image.bytes[at + 0x64] ^= 1;
            },
            "inode.checksum",
            in_plain,
        ),
        ("an extra size", &|bytes| field(bytes, 0x80, 3), "inode.field", in_plain),
        ("too many nanoseconds", &|bytes| field(bytes, 0x88, 1_000_000_000 << 2), "inode.time", in_plain),
        ("a root without magic", &|bytes| field(bytes, 0x28, 0), "extent.node", in_plain),
        ("an extent over an inode table", &|bytes| extent(bytes, table), "block.system", in_plain),
        ("an extent behind the volume", &|bytes| extent(bytes, 8190), "extent.node", in_plain),
        (
            "an extent over another's",
            &|bytes| {
                let (ino, at, _) = bytes.inode("/deep/er/est/file");
                bytes.put(at + 0x28 + 20, data);
                bytes.repair_inode(ino);
            },
            "block.shared",
            in_plain,
        ),
    ];
    for (what, change, code, place) in cases {
        assert_bytes(what, &image, change, code, place);
    }
}

#[test]
fn damaged_extent_trees_and_journals_are_found_where_they_are() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = guarded();
    let start = Bytes::of(&image);
    let (node, in_tree) = (start.node(), ('i', u64::from(start.inode("/tree").0.get())));
    let at_node = ('b', (node / BLOCK) as u64);
    let table = start.layout.descriptors[0].inode_table.get() as u32;
    let node_word = |bytes: &mut Bytes, offset: usize, value: u32| {
        bytes.put(node + offset, value);
        bytes.repair_node(node);
    };
    let cases: [(&str, Change<'_>, &str, Where); 5] = [
        ("a node's byte", &|bytes| bytes.image.bytes[node + 8] ^= 1, "extent.checksum", at_node),
        ("a node without magic", &|bytes| node_word(bytes, 0, 0), "extent.node", at_node),
        (
            "an index that starts elsewhere",
            &|bytes| {
                let second = bytes.word(node + 12 + 12);
                node_word(bytes, 12 + 12, second - 1);
            },
            "extent.index",
            in_tree,
        ),
        (
            "a node over the journal's place",
            &|bytes| {
                let (ino, at, _) = bytes.inode("/tree");
                bytes.put(at + 0x28 + 16, table);
                bytes.repair_inode(ino);
            },
            "block.system",
            in_tree,
        ),
        (
            "a journal without magic",
            &|bytes| {
                let at = bytes.layout.inode(Ino(8));
                let block = bytes.word(at + 0x28 + 20) as usize * BLOCK;
                bytes.put(block, 0);
            },
            "journal.superblock",
            ('i', 8),
        ),
    ];
    for (what, change, code, place) in cases {
        assert_bytes(what, &image, change, code, place);
    }
}

#[test]
fn damaged_entries_are_found_where_they_are() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = guarded();
    let start = Bytes::of(&image);
    let big = start.directory("/big");
    let in_big = ('i', u64::from(start.inode("/big").0.get()));
    let leaf = big[1];
    let second = |block: &[u8]| usize::from(u16::from_le_bytes([block[4], block[5]]));
    use DirBlockKind::Linear;
    let cases: &[(&str, Change<'_>, &str, Where)] = &[
        (
            "a byte",
            &|bytes| bytes.image.bytes[leaf + 9] ^= 1,
            "directory.checksum",
            ('b', (leaf / BLOCK) as u64),
        ),
        (
            "a record length",
            &|bytes| bytes.on("/big", leaf, Linear, |block| block[4] = 13),
            "entry.record",
            in_big,
        ),
        ("a slash", &|bytes| bytes.on("/big", leaf, Linear, |block| block[8] = b'/'), "entry.name", in_big),
        (
            "a changed name",
            &|bytes| bytes.on("/big", leaf, Linear, |block| block[20] ^= 1),
            "htree.hash",
            in_big,
        ),
        ("a type", &|bytes| bytes.on("/big", leaf, Linear, |block| block[7] = 2), "entry.type", in_big),
        (
            "a name twice",
            &|bytes| {
                bytes.on("/big", leaf, Linear, |block| {
                    let (at, length) = (second(block), usize::from(block[6]));
                    let name = block[8..8 + length].to_vec();
                    block[at + 8..at + 8 + length].copy_from_slice(&name);
                })
            },
            "entry.duplicate",
            in_big,
        ),
    ];
    for (what, change, code, place) in cases {
        assert_bytes(what, &image, *change, code, *place);
    }
}

#[test]
fn damaged_directories_are_found_where_they_are() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = guarded();
    let start = Bytes::of(&image);
    let deep = start.directory("/deep")[0];
    let (big_ino, deep_ino) = (start.inode("/big").0, start.inode("/deep").0);
    let in_deep = ('i', u64::from(deep_ino.get()));
    use DirBlockKind::Linear;
    let cases: &[(&str, Change<'_>, &str, Where)] = &[
        (
            "`.` elsewhere",
            &|bytes| bytes.on("/deep", deep, Linear, |block| block[0] = 2),
            "directory.dots",
            in_deep,
        ),
        (
            "no `..`",
            &|bytes| bytes.on("/deep", deep, Linear, |block| block[12 + 9] = b'x'),
            "directory.dots",
            in_deep,
        ),
        (
            "another parent",
            &|bytes| bytes.on("/deep", deep, Linear, |block| block[12] = big_ino.get() as u8),
            "directory.parent",
            in_deep,
        ),
        (
            "a hole",
            &|bytes| {
                let (_, at, _) = bytes.inode("/deep");
                bytes.put(at + 0x28 + 12, 1);
                bytes.put(at + 4, 2048);
                bytes.repair_inode(deep_ino);
            },
            "directory.hole",
            in_deep,
        ),
        (
            "an unwritten block",
            &|bytes| {
                let (_, at, _) = bytes.inode("/deep");
                let length = bytes.word(at + 0x28 + 16);
                bytes.put(at + 0x28 + 16, length + 0x8000);
                bytes.repair_inode(deep_ino);
            },
            "directory.unwritten",
            in_deep,
        ),
    ];
    for (what, change, code, place) in cases {
        assert_bytes(what, &image, *change, code, *place);
    }
}

#[test]
fn damaged_hash_trees_are_found_where_they_are() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = guarded();
    let start = Bytes::of(&image);
    let big = start.directory("/big");
    let in_big = ('i', u64::from(start.inode("/big").0.get()));
    let root = big[0];
    use DirBlockKind::HtreeRoot;
    let cases: &[(&str, Change<'_>, &str, Where)] = &[
        // A wrong limit says where the checksum is: it cannot be made right.
        ("a hash tree's limit", &|bytes| bytes.image.bytes[root + 32] ^= 1, "htree.root", in_big),
        (
            "a child behind the end",
            &|bytes| bytes.on("/big", root, HtreeRoot, |block| block[44] = 200),
            "htree.child",
            in_big,
        ),
        (
            "a child twice",
            &|bytes| {
                bytes.on("/big", root, HtreeRoot, |block| {
                    let child: [u8; 4] = block[44..48].try_into().unwrap();
                    block[52..56].copy_from_slice(&child);
                })
            },
            "htree.twice",
            in_big,
        ),
        (
            "a child lost",
            &|bytes| {
                bytes.on("/big", root, HtreeRoot, |block| {
                    let child: [u8; 4] = block[44..48].try_into().unwrap();
                    block[52..56].copy_from_slice(&child);
                })
            },
            "htree.unreferenced",
            in_big,
        ),
        (
            "hashes out of order",
            &|bytes| bytes.on("/big", root, HtreeRoot, |block| block[48..52].copy_from_slice(&[0; 4])),
            "htree.order",
            in_big,
        ),
    ];
    for (what, change, code, place) in cases {
        assert_bytes(what, &image, *change, code, *place);
    }
}

#[test]
fn damaged_bitmaps_descriptors_and_backups_are_found_where_they_are() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let image = guarded();
    let block = |block: uext4_ondisk::Pblk| block.get() as usize * BLOCK;
    let first = Layout::of(&image).descriptors[0];
    let (blocks, inodes) = (block(first.block_bitmap), block(first.inode_bitmap));
    let cases: &[(&str, Change<'_>, &str, Where)] = &[
        ("a block bitmap", &|bytes| bytes.image.bytes[blocks + 1000] ^= 1, "block_bitmap.checksum", ('g', 0)),
        ("an inode bitmap", &|bytes| bytes.image.bytes[inodes + 60] ^= 1, "inode_bitmap.checksum", ('g', 0)),
        (
            "a bitmap's place",
            &|bytes| bytes.descriptor(|group| group.block_bitmap.0 = 1),
            "group.location",
            ('g', 0),
        ),
        (
            "a table's place",
            &|bytes| bytes.descriptor(|group| group.inode_table = group.block_bitmap),
            "group.overlap",
            ('g', 0),
        ),
        (
            "flags",
            &|bytes| bytes.descriptor(|group| group.flags |= GroupFlags::BLOCK_UNINIT),
            "group.uninit",
            ('g', 0),
        ),
        ("padding", &|bytes| bytes.image.bytes[inodes + 512] = 0, "inode_bitmap.padding", ('g', 0)),
        (
            "the last bit",
            &|bytes| {
                bytes.image.bytes[blocks + 1023] &= 0x7f;
                let bitmap = bytes.image.bytes[blocks..blocks + BLOCK].to_vec();
                let sb = bytes.layout.superblock.clone();
                bytes.descriptor(|descriptor| descriptor.set_block_bitmap_csum(&bitmap, &sb).unwrap());
            },
            "block_bitmap.padding",
            ('g', 0),
        ),
    ];
    for (what, change, code, place) in cases {
        assert_bytes(what, &image, *change, code, *place);
    }
}

#[test]
fn damaged_attributes_are_found_where_they_are() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(16 << 20);
    let path = scratch.file("volume.img");
    guarded().save(&path);
    oracle::debugfs_write(&path, "ea_set /plain user.small abc");
    oracle::debugfs_write(&path, &format!("ea_set /plain user.large {}", "z".repeat(500)));
    let image = Image::load(&path);
    assert_eq!(told(&check(image.device())), [""; 0], "the undamaged volume");
    let start = Bytes::of(&image);
    let (ino, record, inode) = start.inode("/plain");
    let (block, in_plain) = (inode.xattr_block, ('i', u64::from(ino.get())));
    let (at, in_block) = (block.get() as usize * BLOCK, ('b', block.get()));
    let inside = record + 128 + usize::from(inode.extra_isize) + 4;
    let on_block = |bytes: &mut Bytes, offset: usize, value: u32| {
        bytes.put(at + offset, value);
        let sb = bytes.layout.superblock.clone();
        update_xattr_block_checksum(&mut bytes.image.bytes[at..at + BLOCK], block, &sb).unwrap();
    };
    let cases: [(&str, Change<'_>, &str, Where); 6] = [
        ("a byte", &|bytes| bytes.image.bytes[at + 900] ^= 1, "xattr.checksum", in_block),
        ("no magic", &|bytes| on_block(bytes, 0, 0), "xattr.block", in_block),
        ("a reference count", &|bytes| on_block(bytes, 4, 5), "xattr.references", in_block),
        ("a value", &|bytes| on_block(bytes, BLOCK - 4, 5), "xattr.hash", in_block),
        (
            "an offset inside the inode",
            &|bytes| {
                bytes.image.bytes[inside + 2..inside + 4].fill(0xff);
                bytes.repair_inode(ino);
            },
            "xattr.inode",
            in_plain,
        ),
        (
            "a block of data",
            &|bytes| {
                let data = bytes.word(bytes.inode("/plain").1 + 0x28 + 20);
                bytes.put(record + 0x68, data);
                bytes.repair_inode(ino);
            },
            "block.shared",
            in_plain,
        ),
    ];
    for (what, change, code, place) in cases {
        assert_bytes(what, &image, change, code, place);
    }
}

#[test]
fn orphans_are_notes_and_a_broken_list_is_a_warning() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let plain = ino_of(&guarded(), "/plain").get();
    for (head, warning) in [(9999, true), (7, true), (plain, false)] {
        let mut image = guarded();
        image.patch_superblock(|superblock| superblock[0xe8..0xec].copy_from_slice(&head.to_le_bytes()));
        let report = check(image.device());
        assert!(report.is_clean(), "{:#?}", told(&report));
        assert_eq!(report.totals.contains_key("orphan.list"), warning, "{:#?}", told(&report));
        assert_eq!(
            report.notes.iter().any(|note| note.contains("1 orphans")),
            !warning,
            "{:?}",
            report.notes
        );
    }
}

/// Directories that were removed while they were in use still have their `.` and `..`, each inside the other.
#[test]
fn removed_directories_that_are_in_use_are_no_damage() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let device = guarded().device();
    let volume = Volume::open_device(device.clone(), VolumeOptions::read_write()).unwrap();
    volume.create_dir_all("/outer/inner", 0o755, &Caller::root()).unwrap();
    let held = ["/outer/inner", "/outer"].map(|path| volume.node_at(path, true).unwrap());
    volume.remove_dir("/outer/inner").unwrap();
    volume.remove_dir("/outer").unwrap();
    volume.sync_all().unwrap();
    // As a crash leaves it.
    let report = check(Image::of(&*device).device());
    assert_eq!(told(&report), [""; 0]);
    assert!(report.notes.iter().any(|note| note.contains("2 orphans")), "{:?}", report.notes);
    drop(held);
}

/// The next mount deletes an orphan without links, whatever names it.
#[test]
fn an_orphan_that_will_be_deleted_has_no_name() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let mut image = guarded();
    let plain = ino_of(&image, "/plain");
    let scratch = Scratch::new(2 * image.bytes.len() as u64);
    let path = scratch.file("orphan.img");
    image.patch_superblock(|superblock| superblock[0xe8..0xec].copy_from_slice(&plain.get().to_le_bytes()));
    image.save(&path);
    oracle::debugfs_write(&path, "sif /plain links_count 0");
    let report = check(Image::load(&path).device());
    assert_found("an orphan", &report, "inode.links", ('i', plain.get().into()));
    assert_eq!(oracle::e2fsck(&path, &["-fn"]).status & 4, 4);
}

#[test]
fn a_damaged_superblock_is_a_finding_and_other_refusals_are_errors() {
    let mut image = guarded();
    image.bytes[1024 + 0x78] ^= 1;
    let report = check(image.device());
    assert_found("the label", &report, "superblock.invalid", ANYWHERE);
    assert!(!report.is_clean() && report.not_examined.len() == 1);
    let mut unknown = guarded();
    unknown.set_bits(0x60, 0x80_0000);
    let refused =
        check_device(unknown.device(), VolumeOptions::read_only(), &CheckOptions::new(), &mut |_| {});
    assert!(matches!(refused, Err(uext4::Error::Incompatible { .. })));
}

#[test]
fn findings_are_the_same_with_any_number_of_threads_and_capped() {
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"));
    let mut image = guarded();
    let layout = Layout::of(&image);
    // All leaves of /big lose a bit: checksums, and what follows from wrong names.
    for at in Bytes::of(&image).directory("/big") {
        image.bytes[at + 40] ^= 0x20;
    }
    let table = layout.inode_table().0 as usize * BLOCK;
    (0..200).for_each(|number| image.bytes[table + number * 256 + 0x64] ^= 1);
    let run = |threads, cap| {
        let options = CheckOptions::new().threads(threads).per_kind(cap);
        check_device(image.device(), VolumeOptions::read_only(), &options, &mut |_| {}).unwrap()
    };
    let one = run(1, 5);
    for threads in [2, 5] {
        let several = run(threads, 5);
        assert_eq!(told(&one), told(&several));
        assert_eq!((&one.totals, one.counts), (&several.totals, several.counts));
    }
    assert!(one.totals["inode.checksum"] > 100);
    let kept = one.findings.iter().filter(|finding| finding.kind.code == "inode.checksum").count();
    assert_eq!(kept, 5);
    assert_eq!(
        one.more(one.findings.iter().find(|f| f.kind.code == "inode.checksum").unwrap().kind),
        one.totals["inode.checksum"] - 5
    );
}
