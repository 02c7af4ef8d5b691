//! Damaged attributes and inline data: each planted fault is named with its place, and thousands of seeded
//! mutations with repaired checksums end in an answer or a typed error.

use crate::common;

use common::hostile::{BLOCK, Layout, explore, ino_of};
use common::{Image, open_ro, read_only, within};
use std::sync::LazyLock;
use std::time::Duration;
use uext4::device::{Device, WriteDurability};
use uext4::{Error, Ino, Volume};
use uext4_ondisk::ext4::{Inode, update_inode_checksum, update_xattr_block_checksum};
use uext4_ondisk::{CorruptKind, Pblk};
use uext4_testkit::{Rng, Scratch, VolumeBuilder, oracle};

const LIMIT: Duration = Duration::from_secs(120);
/// First byte of an inode's attributes, and their first entry.
const AREA: usize = 160;
const ENTRY: usize = AREA + 4;

/// `/file` has two attributes in its record and two in a block, `/acl` a list, `/big` a value in an inode of
/// its own, `/inline` and `/dir` are inside their inodes, both parts in use.
fn image() -> Image {
    static MADE: LazyLock<Image> = LazyLock::new(make);
    MADE.clone()
}

fn make() -> Image {
    let source = Scratch::new(1 << 20);
    let tree = source.file("tree");
    std::fs::create_dir_all(tree.join("dir")).unwrap();
    for name in ["file", "acl", "big", "block"] {
        std::fs::write(tree.join(name), vec![b'x'; 2000]).unwrap();
    }
    std::fs::write(tree.join("inline"), [b'i'; 110]).unwrap();
    for n in 0..3 {
        std::fs::write(tree.join(format!("dir/n{n}")), "").unwrap();
    }
    std::os::unix::fs::symlink("t".repeat(90), tree.join("link")).unwrap();
    let args =
        ["-b", "1024", "-O", "inline_data,ea_inode,metadata_csum,^has_journal", "-N", "256", "-I", "256"];
    let volume = VolumeBuilder::new(2 << 20).args(args).from_dir(&tree).build();
    let acl: Vec<u8> =
        [[2u16, 0, 1, 6], [0xffff, 0xffff, 4, 4], [0xffff, 0xffff, 0x20, 0], [0xffff, 0xffff, 0, 0]]
            .concat()
            .into_iter()
            .flat_map(u16::to_le_bytes)
            .take(28)
            .collect();
    for (path, name, value) in [
        ("/file", "user.a", vec![b'a'; 12]),
        ("/file", "user.c", vec![b'c'; 8]),
        ("/file", "user.large-one", vec![b'L'; 300]),
        ("/file", "user.large-two", vec![b'M'; 200]),
        ("/acl", "system.posix_acl_access", acl),
        ("/big", "user.large", (0..1024u32).map(|n| n as u8).collect()),
    ] {
        let host = volume.scratch().file("value");
        std::fs::write(&host, value).unwrap();
        oracle::debugfs_write(volume.path(), &format!("ea_set -f {} {path} {name}", host.display()));
    }
    with_second_part(Image::load(volume.path()))
}

/// Gives `/dir` two entries in its second part, which mke2fs does not fill.
fn with_second_part(image: Image) -> Image {
    let record = Layout::of(&image).inode(ino_of(&image, "/dir"));
    let file = ino_of(&image, "/file").get();
    let mut damaged = Damaged { layout: Layout::of(&image), image };
    damaged.put16(record + ENTRY + 2, 64);
    damaged.put(record + ENTRY + 8, 24);
    damaged.put(record + 4, 60 + 24);
    for (n, at) in [record + ENTRY + 64, record + ENTRY + 76].into_iter().enumerate() {
        damaged.put(at, file);
        damaged.image.bytes[at + 4..at + 12].copy_from_slice(&[12, 0, 2, 1, b's', b'0' + n as u8, 0, 0]);
    }
    let bytes = &mut damaged.image.bytes[record..record + 256];
    update_inode_checksum(bytes, ino_of_record(&damaged.layout, record), &damaged.layout.superblock).unwrap();
    let image = damaged.image;
    let mut names: Vec<_> =
        open_ro(image.device()).read_dir("/dir").unwrap().map(|entry| entry.unwrap().name).collect();
    names.sort();
    assert_eq!(names.concat(), b"...n0n1n2s0s1");
    assert_eq!(ino_of(&image, "/dir/s1").get(), file);
    image
}

/// The inode whose record starts there.
fn ino_of_record(layout: &Layout, record: usize) -> Ino {
    (1..=40).map(Ino).find(|ino| layout.inode(*ino) == record).unwrap()
}

/// The image with a way around it.
struct Damaged {
    image: Image,
    layout: Layout,
}

impl Damaged {
    fn new() -> Damaged {
        let image = image();
        Damaged { layout: Layout::of(&image), image }
    }

    fn record(&self, path: &str) -> usize {
        self.layout.inode(ino_of(&image(), path))
    }

    fn inode(&self, ino: Ino) -> Inode {
        let start = self.layout.inode(ino);
        Inode::decode(&image().bytes[start..start + 256], ino, &self.layout.superblock).unwrap()
    }

    /// First byte of the block of attributes.
    fn block(&self, path: &str) -> usize {
        let block = self.inode(ino_of(&image(), path)).xattr_block.get() as usize;
        assert!(block > 0, "{path} has a block of attributes");
        block * BLOCK
    }

    /// First byte of the entry with this stored name, in `length` bytes from `start` on.
    fn entry(&self, start: usize, length: usize, name: &str) -> usize {
        let bytes = &self.image.bytes[start..start + length];
        let at = bytes.windows(name.len()).position(|window| window == name.as_bytes());
        start + at.unwrap_or_else(|| panic!("no entry {name}")) - 16
    }

    /// The inode that holds the value of `/big`.
    fn holder(&self) -> Ino {
        let record = self.record("/big");
        Ino(self.word(self.entry(record, 256, "large") + 4))
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.image.bytes[at..at + 4].try_into().unwrap())
    }

    fn put(&mut self, at: usize, value: u32) {
        self.image.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.image.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Makes all checksums of inodes in use and of attribute blocks right again.
    fn repair(&mut self) {
        for number in 1..=40 {
            let start = self.layout.inode(Ino(number));
            let record = &mut self.image.bytes[start..start + 256];
            if record.iter().any(|&byte| byte != 0) {
                // What cannot be encoded keeps its wrong checksum.
                let _not_encodable = update_inode_checksum(record, Ino(number), &self.layout.superblock);
            }
        }
        let block = self.block("/file");
        let number = Pblk((block / BLOCK) as u64);
        let bytes = &mut self.image.bytes[block..block + BLOCK];
        update_xattr_block_checksum(bytes, number, &self.layout.superblock).unwrap();
    }
}

/// What is asked of the damaged volume.
#[derive(Clone, Copy)]
enum Ask {
    List(&'static str),
    Get(&'static str, &'static str),
    Open(&'static str),
    Dir(&'static str),
    Link(&'static str),
}

impl Ask {
    fn ask(self, volume: &Volume) -> uext4::Result<()> {
        match self {
            Ask::List(path) => volume.list_xattrs(path, false)?.try_for_each(|name| name.map(drop)),
            Ask::Get(path, name) => volume.xattr(path, name, false).map(drop),
            Ask::Open(path) => volume.open_file(path, read_only()).map(drop),
            Ask::Dir(path) => volume.read_dir(path)?.try_for_each(|entry| entry.map(drop)),
            Ask::Link(path) => volume.read_link(path).map(drop),
        }
    }

    fn path(self) -> &'static str {
        match self {
            Ask::List(path) | Ask::Get(path, _) | Ask::Open(path) | Ask::Dir(path) | Ask::Link(path) => path,
        }
    }
}

type Plant<'a> = &'a dyn Fn(&mut Damaged);

/// Plants each fault and collects what was not answered with its kind at its place.
fn check(cases: &[(&str, Plant<'_>, Ask, CorruptKind)]) {
    let mut wrong = Vec::new();
    for (what, plant, ask, kind) in cases {
        let mut damaged = Damaged::new();
        assert!(ask.ask(&open_ro(damaged.image.device())).is_ok(), "{what}: undamaged");
        plant(&mut damaged);
        let volume = open_ro(damaged.image.device());
        match ask.ask(&volume) {
            Err(Error::Corrupt(corrupt)) if corrupt.kind == *kind => {
                let holder = damaged.holder();
                let inode = corrupt.place.inode;
                let own = inode == Some(ino_of(&image(), ask.path()));
                if !own && inode != Some(holder) && inode != Some(Ino(200)) {
                    wrong.push(format!("{what}: place {}", corrupt.place));
                }
            }
            other => wrong.push(format!("{what}: {other:?}")),
        }
        explore(damaged.image.device(), false);
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn damaged_entries_of_the_record_are_named() {
    let list = Ask::List("/file");
    let plant = |change: fn(&mut Damaged, usize)| {
        move |damaged: &mut Damaged| {
            let entry = damaged.record("/file") + ENTRY;
            change(damaged, entry);
            damaged.repair();
        }
    };
    check(&[
        ("a name beyond the record", &plant(|d, at| d.image.bytes[at] = 255), list, CorruptKind::XattrName),
        ("a zero in a name", &plant(|d, at| d.image.bytes[at + 16] = 0), list, CorruptKind::XattrName),
        ("a value among the names", &plant(|d, at| d.put16(at + 2, 4)), list, CorruptKind::XattrValue),
        ("a value behind the end", &plant(|d, at| d.put16(at + 2, 0xfffc)), list, CorruptKind::XattrValue),
        ("a value across the end", &plant(|d, at| d.put16(at + 2, 88)), list, CorruptKind::XattrValue),
        ("an endless value", &plant(|d, at| d.put(at + 8, u32::MAX)), list, CorruptKind::XattrValue),
        (
            "a value of 16 MiB and more",
            &plant(|d, at| d.put(at + 8, (1 << 24) + 1)),
            list,
            CorruptKind::XattrValue,
        ),
        ("the root as a value", &plant(|d, at| d.put(at + 4, 2)), list, CorruptKind::XattrInode),
        ("a value in no inode", &plant(|d, at| d.put(at + 4, 0xffff_ff00)), list, CorruptKind::XattrInode),
        (
            "a wrong hash",
            &plant(|d, at| d.put(at + 12, 77)),
            Ask::Get("/file", "user.a"),
            CorruptKind::XattrHash,
        ),
        (
            "values that overlap",
            &plant(|d, at| {
                let other = d.entry(at, 90, "c");
                let offset = d.word(at) >> 16;
                d.put16(other + 2, offset as u16);
            }),
            list,
            CorruptKind::XattrOverlap,
        ),
    ]);
}

#[test]
fn damaged_blocks_are_named() {
    let list = Ask::List("/file");
    let plant = |change: fn(&mut Damaged, usize)| {
        move |damaged: &mut Damaged| {
            let block = damaged.block("/file");
            change(damaged, block);
            damaged.repair();
        }
    };
    let one = Ask::Get("/file", "user.large-one");
    check(&[
        ("no magic", &plant(|d, at| d.put(at, 0)), list, CorruptKind::XattrMagic),
        ("two blocks", &plant(|d, at| d.put(at + 8, 2)), list, CorruptKind::XattrBlockField("blocks")),
        ("nobody's block", &plant(|d, at| d.put(at + 4, 0)), list, CorruptKind::XattrBlockField("refcount")),
        (
            "a value behind the end",
            &plant(|d, at| d.put16(at + 32 + 2, 0xfffc)),
            one,
            CorruptKind::XattrValue,
        ),
        ("a wrong hash", &plant(|d, at| d.put(at + 32 + 12, 1)), one, CorruptKind::XattrHash),
        ("a value over the names", &plant(|d, at| d.put16(at + 32 + 2, 40)), one, CorruptKind::XattrValue),
        (
            "a flipped bit",
            &|d: &mut Damaged| {
                let block = d.block("/file");
                d.image.bytes[block + 700] ^= 4;
            },
            list,
            CorruptKind::XattrChecksum,
        ),
    ]);
    // The place says which block.
    let mut damaged = Damaged::new();
    let block = damaged.block("/file");
    damaged.put(block, 0);
    let error =
        open_ro(damaged.image.device()).list_xattrs("/file", true).unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.block(), Some((block / BLOCK) as u64), "{error}");
    // A block in the inode table is nobody's attributes.
    let mut damaged = Damaged::new();
    let (record, table) = (damaged.record("/file"), damaged.layout.inode_table().0);
    damaged.put(record + 0x68, table as u32);
    damaged.repair();
    let error =
        open_ro(damaged.image.device()).list_xattrs("/file", true).unwrap().find_map(Result::err).unwrap();
    assert!(matches!(error, Error::CorruptInode { .. }), "{error:?}");
}

#[test]
fn damage_of_one_place_hides_nothing_of_the_other() {
    let stored = |volume: &Volume| -> (Vec<String>, Vec<Error>) {
        let (names, damage): (Vec<_>, Vec<_>) =
            volume.list_xattrs("/file", false).unwrap().partition(Result::is_ok);
        let names = names.into_iter().map(|name| name.unwrap().to_string());
        (names.collect(), damage.into_iter().map(Result::unwrap_err).collect())
    };
    let (record, block) = (["user.a", "user.c"], ["user.large-one", "user.large-two"]);
    let clean = open_ro(image().device());
    let value = |name: &str| clean.xattr("/file", name, false).unwrap();
    assert_eq!(stored(&clean).0, [record, block].concat());
    assert!(stored(&clean).1.is_empty());

    for damaged_block in [true, false] {
        let mut damaged = Damaged::new();
        let (at, lost, left) = match damaged_block {
            true => (damaged.block("/file"), block, record),
            false => (damaged.record("/file") + ENTRY + 8, record, block),
        };
        damaged.put(at, u32::MAX);
        damaged.repair();
        let volume = open_ro(damaged.image.device());
        let (names, damage) = stored(&volume);
        assert_eq!(names, left);
        assert!(matches!(&damage[..], [Error::Corrupt(_)]), "{damage:?}");
        assert_eq!(damage[0].block().is_some(), damaged_block, "{damage:?}");
        for name in left {
            assert_eq!(volume.xattr("/file", name, false).unwrap(), value(name), "{name}");
        }
        // What is not found may lie where nothing can be read.
        for name in lost.into_iter().chain(["user.none"]) {
            let error = volume.xattr("/file", name, false).unwrap_err();
            assert_eq!(error.to_string(), damage[0].to_string(), "{name}");
        }
    }
}

#[test]
fn damaged_values_in_inodes_are_named() {
    let get = Ask::Get("/big", "user.large");
    /// Gets the entry, and the record of the inode that holds the value.
    fn plant(change: fn(&mut Damaged, usize, usize)) -> impl Fn(&mut Damaged) {
        move |damaged| {
            let (entry, holder) = (damaged.record("/big"), damaged.layout.inode(damaged.holder()));
            let entry = damaged.entry(entry, 256, "large");
            change(damaged, entry, holder);
            damaged.repair();
        }
    }
    use CorruptKind::XattrValueInode as Holder;
    check(&[
        ("no flag", &plant(|d, _, at| d.put(at + 0x20, 0x8_0000)), get, Holder("no ea_inode flag")),
        ("another size", &plant(|d, _, at| d.put(at + 4, 1023)), get, Holder("another size")),
        ("another checksum", &plant(|d, _, at| d.put(at + 8, 5)), get, Holder("the checksum is wrong")),
        (
            "its own attributes",
            &plant(|d, _, at| d.put(at + AREA, 0xEA02_0000)),
            get,
            Holder("attributes of its own"),
        ),
        ("another hash", &plant(|d, entry, _| d.put(entry + 12, 5)), get, CorruptKind::XattrHash),
        (
            "the file itself",
            &plant(|d, entry, _| d.put(entry + 4, ino_of(&image(), "/big").get())),
            get,
            Holder("the file itself"),
        ),
        ("a free inode", &plant(|d, entry, _| d.put(entry + 4, 200)), get, CorruptKind::InodeChecksum),
        ("no blocks", &plant(|d, _, at| d.put16(at + 0x28 + 2, 0)), get, Holder("a hole")),
        (
            "other data",
            &plant(|d, _, at| {
                let block = d.word(at + 0x28 + 12 + 8) as usize;
                d.image.bytes[block * BLOCK + 17] ^= 1;
            }),
            get,
            Holder("the checksum is wrong"),
        ),
    ]);
    let mut damaged = Damaged::new();
    plant(|d, entry, at| {
        d.put(entry + 8, 65_537);
        d.put(at + 4, 65_537);
    })(&mut damaged);
    let error = open_ro(damaged.image.device()).xattr("/big", "user.large", true).unwrap_err();
    assert!(matches!(error, Error::TooLarge { size: 65_537, most: 65_536 }), "{error:?}");
    assert_eq!(error.errno(), 7);
}

#[test]
fn damaged_inline_data_and_lists_are_named() {
    let (file, dir, link) = (Ask::Open("/inline"), Ask::Dir("/dir"), Ask::Link("/link"));
    let plant = |path: &'static str, change: fn(&mut Damaged, usize)| {
        move |damaged: &mut Damaged| {
            let record = damaged.record(path);
            change(damaged, record);
            damaged.repair();
        }
    };
    let missing = CorruptKind::InlineData("the attribute `system.data` is missing");
    let both = CorruptKind::InlineData("the inode has extents too");
    let parent = CorruptKind::InlineData("the number of the parent directory is out of range");
    let rename = |d: &mut Damaged, at: usize| d.image.bytes[at + ENTRY + 16] = b'D';
    /// The directory's second part: the value of the only attribute.
    fn second(d: &Damaged, at: usize) -> usize {
        at + ENTRY + (d.word(at + ENTRY) >> 16) as usize
    }
    let acl = Ask::Get("/acl", "system.posix_acl_access");
    /// The list's value.
    fn list(d: &Damaged, at: usize) -> usize {
        at + ENTRY + (d.word(at + ENTRY) >> 16) as usize
    }
    check(&[
        ("no attribute", &plant("/inline", rename), file, missing),
        ("no attributes at all", &plant("/inline", |d, at| d.put(at + AREA, 0)), file, missing),
        ("no attribute of a directory", &plant("/dir", rename), dir, missing),
        ("no attribute of a link", &plant("/link", rename), link, missing),
        ("extents too", &plant("/inline", |d, at| d.put(at + 0x20, 0x1008_0000)), file, both),
        ("no parent", &plant("/dir", |d, at| d.put(at + 0x28, 0)), dir, parent),
        ("a parent that is not", &plant("/dir", |d, at| d.put(at + 0x28, 1 << 20)), dir, parent),
        (
            "an entry of length 0",
            &plant("/dir", |d, at| d.put16(at + 0x30, 0)),
            dir,
            CorruptKind::DirEntryLength,
        ),
        ("a long entry", &plant("/dir", |d, at| d.put16(at + 0x30, 60)), dir, CorruptKind::DirEntryLength),
        ("a slash", &plant("/dir", |d, at| d.image.bytes[at + 0x34] = b'/'), dir, CorruptKind::DirEntryName),
        (
            "an inode that is not, in the second part",
            &plant("/dir", |d, at| d.put(second(d, at), 1 << 20)),
            dir,
            CorruptKind::DirEntryInode,
        ),
        (
            "a short entry in the second part",
            &plant("/dir", |d, at| d.put16(second(d, at) + 4, 8)),
            dir,
            CorruptKind::DirEntryLength,
        ),
        ("another version", &plant("/acl", |d, at| d.put(list(d, at), 9)), acl, CorruptKind::AclVersion),
        ("another tag", &plant("/acl", |d, at| d.put16(list(d, at) + 4, 3)), acl, CorruptKind::AclEntry),
        (
            "other permissions",
            &plant("/acl", |d, at| d.put16(list(d, at) + 6, 8)),
            acl,
            CorruptKind::AclEntry,
        ),
    ]);
    // A link longer than what is there.
    let mut damaged = Damaged::new();
    plant("/link", |d, at| d.put(at + 4, 4000))(&mut damaged);
    let error = open_ro(damaged.image.device()).read_link("/link").unwrap_err();
    assert!(matches!(error, Error::CorruptInode { .. }), "{error:?}");
}

/// Up to six changed places in records with attributes or inline data, or in the block of attributes.
fn mutate(damaged: &mut Damaged, places: &[(usize, usize)], rng: &mut Rng) {
    for _ in 0..1 + rng.below(6) {
        let &(start, length) = rng.pick(places);
        let at = start + rng.below(length as u64 / 2) as usize * 2;
        match rng.below(4) {
            0 => damaged.image.bytes[at] ^= 1 << rng.below(8),
            1 => damaged.image.bytes[at] = rng.next_u64() as u8,
            2 => damaged.put16(at, *rng.pick(&[0, 1, 4, 12, 60, 96, 0x7fff, 0x8000, 0xffff])),
            _ => damaged.put16(at, rng.below(300) as u16),
        }
    }
}

#[test]
fn mutated_attributes_are_survived() {
    within(LIMIT, || {
        let clean = Damaged::new();
        // Of each record: flags, size and what stands in place of the map, then the attributes.
        let mut places = vec![(clean.block("/file"), 160), (clean.block("/file"), BLOCK)];
        for path in ["/file", "/acl", "/big", "/inline", "/dir", "/link"] {
            let record = clean.record(path);
            places.extend([(record + 0x28, 60), (record + AREA, 96), (record + AREA, 40)]);
        }
        let holder = clean.layout.inode(clean.holder());
        places.push((holder, 128));
        let device = clean.image.device();
        let whole = explore(device.clone(), false);
        let (mut most, mut least) = (0, usize::MAX);
        for case in 0..600 {
            let mut damaged = Damaged { image: clean.image.clone(), layout: Layout::of(&clean.image) };
            mutate(&mut damaged, &places, &mut Rng::new(77).fork(case));
            damaged.repair();
            transfer(&damaged.image, &*device, &clean.layout, clean.block("/file"));
            println!("case {case}");
            let readable = explore(device.clone(), false);
            most = most.max(readable);
            least = least.min(readable);
        }
        assert!(most >= whole && least < whole, "{least} to {most} of {whole} are readable");
    });
}

/// Puts what mutations touch onto the device: the first inodes and the block of attributes.
fn transfer(image: &Image, device: &dyn Device, layout: &Layout, block: usize) {
    let table = layout.inode_table().0 as usize;
    let mut buffer = common::aligned(BLOCK);
    for number in (table..table + 10).chain([block / BLOCK]) {
        buffer.copy_from_slice(&image.bytes[number * BLOCK..(number + 1) * BLOCK]);
        device.write_at(&buffer, (number * BLOCK) as u64, WriteDurability::Cached).unwrap();
    }
}
