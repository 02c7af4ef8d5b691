//! Damaged and hostile volumes: thousands of seeded mutations, and the attacks that come to mind first.

use crate::common;

use common::hostile::{BLOCK, Bench, Layout, bare, explore, guarded, ino_of, metadata_blocks};
use common::{Image, aligned, open_ro, open_rw, read_only, read_write, within};
use std::sync::Arc;
use std::time::{Duration, Instant};
use uext4::device::Device;
use uext4::{Error, Ino, Volume, VolumeOptions, WriteFlags};
use uext4_ondisk::ext4::update_inode_checksum;
use uext4_testkit::Rng;

/// Longest time for one case.
const CASE: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(180);

/// Values on the edges of arithmetic.
const NASTY: [u32; 12] =
    [0, 1, 2, 3, 0x7f, 0xff, 0x7fff, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/// Changes up to eight places of the metadata and returns the blocks they are in.
fn mutate(image: &mut Image, metadata: &[usize], layout: &Layout, rng: &mut Rng) -> Vec<usize> {
    let mut blocks = Vec::new();
    let most = if rng.chance(50) { 2 } else { 8 };
    for _ in 0..1 + rng.below(most) {
        let block = match rng.below(8) {
            0 => 1,
            1 => 2,
            // The inodes in use are at the start of the first table.
            2..4 => layout.inode_table().0 as usize + rng.below(82) as usize,
            _ => *rng.pick(metadata),
        };
        let at = block * BLOCK + rng.below(BLOCK as u64 / 4) as usize * 4;
        let word = &mut image.bytes[at..at + 4];
        match rng.below(4) {
            0 => word[rng.below(4) as usize] ^= 1 << rng.below(8),
            1 => word[rng.below(4) as usize] = rng.next_u64() as u8,
            2 => word.copy_from_slice(&rng.pick(&NASTY).to_le_bytes()),
            _ => word[2 * rng.below(2) as usize..][..2]
                .copy_from_slice(&(rng.below(4096) as u16).to_le_bytes()),
        }
        blocks.push(block);
    }
    blocks
}

/// Updates the checksums of superblock and inodes, so that the checks after them are reached.
fn repair(image: &mut Image, layout: &Layout) -> Vec<usize> {
    image.patch_superblock(|_| {});
    let (table, blocks) = layout.inode_table();
    let size = usize::from(layout.superblock.geometry.inode_size());
    for number in 1..=layout.superblock.geometry.inodes_per_group() {
        let start = layout.inode(Ino(number));
        let record = &mut image.bytes[start..start + size];
        if record.iter().any(|&byte| byte != 0) {
            // What cannot be encoded keeps its wrong checksum.
            let _not_encodable = update_inode_checksum(record, Ino(number), &layout.superblock);
        }
    }
    let mut changed: Vec<usize> = (table as usize..(table + blocks) as usize).collect();
    changed.push(1);
    changed
}

/// Runs `count` mutated cases. Returns how many could be opened and walked at least in part.
fn campaign(image: Image, seed: u64, count: u64, repaired: bool) -> u64 {
    let (layout, metadata) = (Layout::of(&image), metadata_blocks(&image));
    assert!(metadata.len() > 60, "{}", metadata.len());
    let bench = Bench::new(image.clone());
    let whole = explore(image.device(), true);
    assert!(whole > 300, "the undamaged volume is walked to the end: {whole}");
    let (mut some, mut all) = (0, 0);
    for case in 0..count {
        let mut rng = Rng::new(seed).fork(case);
        let mut changed = image.clone();
        let mut blocks = mutate(&mut changed, &metadata, &layout, &mut rng);
        if repaired {
            blocks.extend(repair(&mut changed, &layout));
        }
        let started = Instant::now();
        println!("seed {seed} case {case}");
        let readable = bench.with(&changed, &blocks, |device| explore(device, case % 2 == 0));
        assert!(started.elapsed() < CASE, "case {case} took {:?}", started.elapsed());
        some += u64::from(readable > 0);
        all += u64::from(readable >= whole);
    }
    println!("{count} cases: {some} readable in part, {all} as if nothing had happened");
    some
}

#[test]
fn mutated_volumes_without_checksums_are_survived() {
    within(LIMIT, || {
        let some = campaign(bare(), 1, 1500, false);
        assert!(some > 700, "mutations reach behind the superblock: {some}");
    });
}

#[test]
fn mutated_volumes_with_checksums_are_survived() {
    within(LIMIT, || {
        assert!(campaign(guarded(), 2, 800, false) > 300);
        assert!(campaign(guarded(), 3, 400, true) > 150);
    });
}

/// One way to damage an image.
type Change<'a> = &'a dyn Fn(&mut Image);

/// Writes a little-endian word.
fn put(image: &mut Image, at: usize, value: u32) {
    image.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put16(image: &mut Image, at: usize, value: u16) {
    image.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

fn word(image: &Image, at: usize) -> u32 {
    u32::from_le_bytes(image.bytes[at..at + 4].try_into().unwrap())
}

const I_SIZE: usize = 4;
const I_BLOCK: usize = 0x28;
const I_SIZE_HIGH: usize = 0x6c;
/// First entry after an extent header.
const FIRST: usize = 12;

/// The bytes of the first child of the root of `/tree`, and the first leaf below.
fn tree_nodes(image: &Image, layout: &Layout) -> (usize, usize, usize) {
    let root = layout.inode(ino_of(image, "/tree")) + I_BLOCK;
    let node = word(image, root + FIRST + 4) as usize * BLOCK;
    let leaf = word(image, node + FIRST + 4) as usize * BLOCK;
    (root, node, leaf)
}

/// Reads and writes of `/tree` at 0 must fail as corruption; nothing may be written.
#[track_caller]
fn assert_tree_corrupt(image: &Image) {
    let device = image.device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/tree", read_write()).unwrap();
    let mut memory = aligned(4096);
    let mut queue = volume.queue(uext4::QueueOptions::depth(2)).unwrap();
    let slot = queue.attach(&file).unwrap();
    let errors = [
        file.read_at(&mut memory, 0).map(|_| ()).unwrap_err(),
        file.write_at(&memory, 0).map(|_| ()).unwrap_err(),
        file.write_any_at(&[1], 1, WriteFlags::DSYNC).map(|_| ()).unwrap_err(),
        queue.read(slot, 0, queue.buffer(4096).unwrap(), 1).unwrap_err(),
        queue.write(slot, 0, queue.buffer(4096).unwrap(), WriteFlags::empty(), 1).unwrap_err(),
        file.map().find_map(|piece| piece.err()).unwrap(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Corrupt(_) | Error::CorruptInode { .. }), "{error:?}");
        assert_eq!(error.errno(), 117);
        assert_eq!(error.inode(), Some(file.ino().get()), "{error}");
    }
    common::assert_unchanged(image, &*device);
    // Other files are fine.
    volume.open_file("/plain", read_only()).unwrap().read_at(&mut memory, 0).unwrap();
}

#[test]
fn extent_trees_that_lead_astray_are_corrupt() {
    let (image, layout) = (bare(), Layout::of(&bare()));
    let (root, node, leaf) = tree_nodes(&image, &layout);
    let blocks = layout.superblock.geometry.blocks_count() as u32;
    let table = layout.inode_table().0 as u32;
    let block_of = |at: usize| (at / BLOCK) as u32;
    let cases: [(&str, Change<'_>); 14] = [
        ("the root leads to a leaf", &|image| put(image, root + FIRST + 4, block_of(leaf))),
        ("a node leads to itself", &|image| put(image, node + FIRST + 4, block_of(node))),
        ("a child behind the volume", &|image| put(image, node + FIRST + 4, blocks)),
        ("a child in the inode table", &|image| put(image, node + FIRST + 4, table)),
        ("a child of block 0", &|image| put(image, root + FIRST + 4, 0)),
        ("an extent in the inode table", &|image| put(image, leaf + FIRST + 8, table)),
        ("an extent over the superblock", &|image| put(image, leaf + FIRST + 8, 0)),
        ("an extent into the next metadata", &|image| put(image, leaf + FIRST + 8, table - 2)),
        ("an extent behind the volume", &|image| put(image, leaf + FIRST + 8, blocks - 2)),
        ("an extent far behind it", &|image| put16(image, leaf + FIRST + 6, 0xffff)),
        ("an empty extent", &|image| put16(image, leaf + FIRST + 4, 0)),
        ("extents out of order", &|image| put(image, leaf + FIRST, 50)),
        ("more entries than fit", &|image| put16(image, leaf + 2, 400)),
        ("no magic", &|image| put16(image, leaf, 0)),
    ];
    for (what, change) in cases {
        println!("{what}");
        let mut changed = image.clone();
        change(&mut changed);
        assert_tree_corrupt(&changed);
    }
}

#[test]
fn sizes_that_cannot_be_are_corrupt_or_harmless() {
    let (image, layout) = (bare(), Layout::of(&bare()));
    // Directories.
    let big = layout.inode(ino_of(&image, "/big"));
    for (low, high) in [(0, 0), (1, 0), (1025, 0), (0, 1), (0, 0x8000_0000), (0xffff_fc00, 0xffff_ffff)] {
        let mut changed = image.clone();
        put(&mut changed, big + I_SIZE, low);
        put(&mut changed, big + I_SIZE_HIGH, high);
        within(CASE, move || {
            explore(changed.device(), false);
            let volume = open_ro(changed.device());
            let listed: Vec<_> = match volume.read_dir("/big") {
                Ok(entries) => entries.take(3000).collect(),
                Err(error) => vec![Err(error)],
            };
            let error = listed.into_iter().find_map(Result::err).expect("such a directory is damaged");
            assert_eq!(error.errno(), 117, "{error}");
        });
    }
    // Files: a size is accepted as far as possible.
    let plain = layout.inode(ino_of(&image, "/plain"));
    for high in [0x1000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
        let mut changed = image.clone();
        put(&mut changed, plain + I_SIZE_HIGH, high);
        within(CASE, move || {
            explore(changed.device(), true);
        });
    }
    // Symbolic links: longer than a block, empty.
    let slow = layout.inode(ino_of(&image, "/slow"));
    for size in [0, 1025, 1 << 20, u32::MAX] {
        let mut changed = image.clone();
        put(&mut changed, slow + I_SIZE, size);
        assert_eq!(open_ro(changed.device()).read_link("/slow").unwrap_err().errno(), 117, "{size}");
    }
}

/// The blocks of `/big` on the image, as bytes.
fn directory_blocks(image: &Image, layout: &Layout) -> Vec<usize> {
    let inode = layout.inode(ino_of(image, "/big")) + I_BLOCK;
    let extents = usize::from(u16::from_le_bytes(image.bytes[inode + 2..inode + 4].try_into().unwrap()));
    let mut blocks = Vec::new();
    for extent in 0..extents {
        let at = inode + FIRST + extent * 12;
        let length = u16::from_le_bytes(image.bytes[at + 4..at + 6].try_into().unwrap());
        let start = word(image, at + 8);
        blocks.extend((start..start + u32::from(length)).map(|block| block as usize * BLOCK));
    }
    blocks
}

#[test]
fn directories_that_lead_astray_are_corrupt() {
    let (image, layout) = (bare(), Layout::of(&bare()));
    let blocks = directory_blocks(&image, &layout);
    let (root, leaf) = (blocks[0], blocks[1]);
    let hash = root + 24;
    assert_eq!(image.bytes[hash + 5], 8, "an htree root: the length of its info");
    let cases: [(&str, bool, Change<'_>); 12] = [
        ("an entry of length 0", true, &|image| put16(image, leaf + 4, 0)),
        ("an entry of length 2", true, &|image| put16(image, leaf + 4, 2)),
        ("an odd length", true, &|image| put16(image, leaf + 4, 13)),
        ("an entry longer than its block", true, &|image| put16(image, leaf + 4, 2000)),
        ("a name longer than its entry", true, &|image| image.bytes[leaf + 6] = 255),
        ("an inode that does not exist", true, &|image| put(image, leaf, 0xffff_ffff)),
        ("a name with a slash", true, &|image| image.bytes[leaf + 8] = b'/'),
        ("a tree that is too deep", false, &|image| image.bytes[hash + 6] = 9),
        ("an unknown hash", false, &|image| image.bytes[hash + 4] = 77),
        ("more entries than the limit", false, &|image| put16(image, hash + 8 + 2, 0xffff)),
        ("a child behind the directory", false, &|image| put(image, hash + 8 + 4, 0xff_ffff)),
        ("a child that is the root", false, &|image| {
            for entry in 0..20 {
                put(image, hash + 8 + 4 + entry * 8, 0);
            }
        }),
    ];
    for (what, listing, change) in cases {
        println!("{what}");
        let mut changed = image.clone();
        change(&mut changed);
        within(CASE, move || {
            explore(changed.device(), false);
            let volume = open_ro(changed.device());
            let list = || volume.read_dir("/big")?.take(3000).collect::<uext4::Result<Vec<_>>>();
            if listing {
                let error = list().map(|entries| entries.len()).unwrap_err();
                assert_eq!(error.errno(), 117, "{error}");
            }
            // Look-ups that meet the damage report it; none finds a wrong inode.
            let (mut failures, mut missing) = (0, 0);
            for n in 0..300 {
                let path = format!("/big/a rather long name, number {n:03}");
                match volume.metadata(&path) {
                    Ok(meta) => assert_eq!((meta.size, meta.links), (0, 1)),
                    Err(error) => {
                        assert!(error.errno() == 117 || error.errno() == 2, "{error}");
                        failures += u32::from(error.errno() == 117);
                        missing += u32::from(error.errno() == 2);
                    }
                }
            }
            assert!(failures + missing > 0, "no look-up met the damage");
            // A changed name is simply another name.
            assert!(failures > 0 || what == "a name with a slash", "{missing} names are lost without a word");
        });
    }
}

#[test]
fn group_descriptors_that_point_outside_are_corrupt() {
    let (image, layout) = (bare(), Layout::of(&bare()));
    let descriptor = layout.descriptor_bytes[0];
    for (offset, value) in [(8, 0xffff_fff0), (8, 0), (0, u32::MAX), (4, u32::MAX), (0x28, u32::MAX)] {
        let mut changed = image.clone();
        put(&mut changed, descriptor + offset, value);
        let opened = Volume::open_device(changed.device(), VolumeOptions::read_only());
        let error = match opened {
            Err(error) => error,
            Ok(volume) => volume.metadata("/plain").unwrap_err(),
        };
        assert!(matches!(error, Error::Corrupt(_)), "{offset:#x} = {value:#x}: {error:?}");
        explore(changed.device(), true);
    }
}

#[test]
fn damaged_journals_are_refused() {
    let (image, layout) = (guarded(), Layout::of(&guarded()));
    let journal = open_ro(image.device()).info().journal.unwrap().block as usize * BLOCK;
    let inode = layout.inode(Ino(8));
    let cases: [(&str, Change<'_>); 6] = [
        ("no magic", &|image| put(image, journal, 0)),
        ("another block type", &|image| put(image, journal + 4, 0xff00_0000)),
        ("another block size", &|image| put(image, journal + 12, 0x0010_0000)),
        ("longer than its inode", &|image| put(image, journal + 16, 0xffff_ff7f)),
        ("no blocks at all", &|image| put16(image, inode + I_BLOCK + 2, 0)),
        ("blocks in the inode table", &|image| {
            put(image, inode + I_BLOCK + FIRST + 8, layout.inode_table().0 as u32);
        }),
    ];
    for (what, change) in cases {
        let mut changed = image.clone();
        change(&mut changed);
        let size = usize::from(layout.superblock.geometry.inode_size());
        update_inode_checksum(&mut changed.bytes[inode..inode + size], Ino(8), &layout.superblock).unwrap();
        let device = changed.device();
        let error = Volume::open_device(device.clone(), VolumeOptions::read_write()).map(|_| ()).unwrap_err();
        let typed = matches!(error, Error::Corrupt(_) | Error::CorruptInode { .. } | Error::Journal(_));
        assert!(typed, "{what}: {error:?}");
        assert_eq!(error.errno(), 117, "{what}: {error}");
        common::assert_unchanged(&changed, &*device);
    }
}

/// A changed byte anywhere in checksummed metadata is found by its checksum, before anything is used.
#[test]
fn every_flipped_metadata_bit_is_noticed_by_checksums() {
    let (image, layout) = (guarded(), Layout::of(&guarded()));
    let (_, node, leaf) = tree_nodes(&image, &layout);
    let blocks = directory_blocks(&image, &layout);
    let inode = layout.inode(ino_of(&image, "/tree"));
    let mut rng = Rng::new(12);
    // In an index block the checksum covers only the entries in use.
    let places =
        [("superblock", 1024, 1024), ("descriptor", layout.descriptor_bytes[0], 30), ("inode", inode, 128)]
            .into_iter()
            .chain([
                ("node", node, 400),
                ("leaf", leaf, 600),
                ("root", blocks[0], 140),
                ("entries", blocks[1], 900),
            ]);
    for (what, start, length) in places {
        for _ in 0..40 {
            let mut changed = image.clone();
            let at = start + rng.below(length) as usize;
            changed.bytes[at] ^= 1 << rng.below(8);
            let device: Arc<dyn Device> = changed.device();
            let walk = || -> uext4::Result<()> {
                let volume = Volume::open_device(device, VolumeOptions::read_only())?;
                if let Some(damage) = volume.info().descriptors {
                    // Reading continues, but the damage is reported.
                    return Err(damage.first.into());
                }
                for piece in volume.open_file("/tree", read_only())?.map() {
                    piece?;
                }
                volume.read_dir("/big")?.try_for_each(|entry| entry.map(drop))
            };
            let error = walk().expect_err(&format!("{what}: byte {at} was believed"));
            let typed = matches!(error, Error::NotExt4(_) | Error::Corrupt(_) | Error::Incompatible { .. });
            assert!(typed, "{what}: {error:?}");
        }
    }
}
