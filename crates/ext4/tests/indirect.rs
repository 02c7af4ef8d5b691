//! Files with indirect maps: every switch setting and way of writing, maps scattered by the kernel, journals and
//! directories with such maps, mixed volumes, and damage.

use crate::common;

use common::hostile::{BLOCK, Layout, explore, ino_of};
use common::layout::{OVERWRITTEN, fill, ours, overwrite};
use common::tree::without_xattrs;
use common::{Image, aligned, assert_unchanged, open_ro, open_rw, read_only, read_write, within};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use uext4::explain::Query;
use uext4::plan::{Route, Sync};
use uext4::{Counter, Error, Ino, State, Switches, Volume, VolumeOptions, WriteFlags};
use uext4_ondisk::{Corrupt, CorruptKind};
use uext4_testkit::fixture::pattern;
use uext4_testkit::manifest::{assert_same, file_digest};
use uext4_testkit::oracle::{command, run};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, debugfs, e2fsck_clean, needs, with_kernel};

/// Longest time for one case.
const CASE: Duration = Duration::from_secs(10);
const SIZE: u64 = 12 << 20;

fn make(kind: &'static str, args: &[&str]) -> Image {
    let source = Scratch::new(SIZE);
    let tree = source.file("tree");
    std::fs::create_dir(&tree).unwrap();
    fill(&tree, BLOCK as u64);
    let args = args.iter().copied().chain(["-b", "1024"]);
    let volume = VolumeBuilder::new(SIZE).kind(kind).args(args).from_dir(&tree).build();
    if kind != "ext4" {
        assert!(debugfs(volume.path(), "stat /deep").contains("(TIND)"));
        assert!(
            debugfs(volume.path(), "stat /long").contains("(IND)"),
            "a directory behind the direct blocks"
        );
    }
    Image::load(volume.path())
}

fn ext2() -> Image {
    static MADE: LazyLock<Image> = LazyLock::new(|| make("ext2", &[]));
    MADE.clone()
}

fn ext3() -> Image {
    static MADE: LazyLock<Image> = LazyLock::new(|| make("ext3", &["-J", "size=1"]));
    MADE.clone()
}

/// The contents of the files.
fn files(image: &Image) -> Vec<Vec<u8>> {
    let volume = common::open_ro(image.device());
    let read = |path| common::read_all(&volume.open_file(path, common::read_only()).unwrap());
    common::layout::OVERWRITTEN.into_iter().map(read).collect()
}

#[test]
fn all_switch_settings_leave_equal_volumes() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let bigalloc = make("ext4", &["-O", "bigalloc,^has_journal", "-C", "8192"]);
    for image in [ext2(), ext3(), bigalloc] {
        let mut first: Option<Image> = None;
        for bits in 0..32 {
            let switches = Switches::from_bits(bits);
            let device = image.device_with(|options| options.volatile_cache = true);
            let options = VolumeOptions::read_write().switches(switches);
            let volume = Volume::open_device(device.clone(), options).unwrap();
            overwrite(&volume, 17);
            drop(volume);
            let after = Image::of(&*device);
            assert!(after != image);
            match &first {
                None => first = Some(after),
                // Times differ, and so do the blocks that store them.
                Some(first) => assert_eq!(files(first), files(&after), "with {switches}"),
            }
        }
        let scratch = Scratch::new(SIZE);
        let path = scratch.file("after.img");
        first.unwrap().save(&path);
        e2fsck_clean(&path);
    }
}

#[test]
fn mapped_memory_takes_overwrites_of_every_layout() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let rows: [(&str, &[&str], u64); 4] = [
        ("ext2", &["-b", "1024"], 1024),
        ("ext3", &["-b", "4096"], 4096),
        ("ext4", &["-b", "4096", "-O", "bigalloc"], 4096),
        ("ext4", &["-b", "65536", "-O", "^has_journal"], 65_536),
    ];
    for (kind, args, block) in rows {
        let source = Scratch::new(32 << 20);
        let tree = source.file("tree");
        std::fs::create_dir(&tree).unwrap();
        fill(&tree, block);
        let volume =
            VolumeBuilder::new(48 << 20).kind(kind).args(args.iter().copied()).from_dir(&tree).build();
        // A writable mapping requires a file without holes.
        Image::load(volume.path()).save(volume.path());
        let device = format!("dax:{}", volume.path().display());
        let opened = Volume::open(&device, VolumeOptions::read_write()).unwrap();
        let digests = overwrite(&opened, 5);
        assert!(opened.stats().get(Counter::DaxCopies) > 50, "{}", opened.stats().get(Counter::DaxCopies));
        drop(opened);
        volume.assert_clean();
        let again =
            ours(&Volume::open(volume.path().to_str().unwrap(), VolumeOptions::read_only()).unwrap(), 0);
        for (name, digest) in digests {
            assert!(again[name.as_bytes()].digest == Some(digest), "{name} of {kind} {args:?}");
        }
    }
}

#[test]
fn overwrites_take_the_fast_routes_and_holes_get_blocks() {
    needs!(Need::Tool("mke2fs"));
    let image = ext3();
    let device = image.device_with(|options| options.volatile_cache = true);
    let volume = open_rw(device.clone());
    let file = volume.open_file("/frag", read_write()).unwrap();
    let pieces: Vec<_> = file.map().map(Result::unwrap).collect();
    assert!(pieces.iter().all(|piece| piece.state != State::Unwritten));
    assert_eq!(pieces.iter().filter(|piece| piece.state == State::Written).count(), 350);
    let before = volume.stats();
    let bytes = aligned(1024);
    for piece in pieces.iter().filter(|piece| piece.state == State::Written) {
        file.write_at_with(&bytes, piece.logical, WriteFlags::DSYNC).unwrap();
    }
    let counted = volume.stats().since(&before);
    assert_eq!((counted.get(Counter::FuaWrites), counted.get(Counter::Flushes)), (350, 0));
    assert_eq!((counted.get(Counter::HandlesStarted), counted.get(Counter::ExclusiveWrites)), (0, 0));

    let query = Query { write: true, pos: 0, length: 1024, sync: Sync::Data, queued: true };
    assert_eq!(file.explain(&query).unwrap().plan.route, Route::Overwrite);
    let hole = file.explain(&Query { pos: 1024, ..query }).unwrap();
    assert!(hole.plan.route == Route::Allocate && hole.refused.is_none());
    assert_eq!(file.write_at(&bytes, 1024).unwrap(), 1024);
    assert_eq!(file.explain(&Query { pos: 1024, ..query }).unwrap().plan.route, Route::Overwrite);
    // Past everything that a map can reach there is nothing to load, and no error.
    let far = file.write_at(&bytes, 1 << 40).unwrap_err();
    assert!(matches!(far, Error::Limit(_)), "{far:?}");
}

/// Writes blocks of two files alternately and in random order, so that no two blocks of a map are adjacent.
fn scatter(root: &Path, block: u64, rng: &mut Rng) {
    let p = block / 4;
    let reach = (12 + p + p * p + p * p * p).min(200 + p + 3 * p * p) - 1;
    let files = ["a", "b"].map(|name| std::fs::File::create(root.join(name)).unwrap());
    let mut bytes = vec![0; block as usize];
    for _ in 0..700 {
        for (id, file) in files.iter().enumerate() {
            let number = if rng.chance(50) { rng.below(12 + 3 * p) } else { rng.below(reach) };
            pattern(50 + id as u64, number * block, &mut bytes);
            file.write_all_at(&bytes, number * block).unwrap();
            if rng.chance(5) {
                file.sync_all().unwrap();
            }
        }
    }
}

#[test]
fn root_maps_that_the_kernel_scattered_read_and_take_overwrites() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("debugfs"));
    let rows: [(&str, &[&str], u64); 3] = [
        ("ext2", &["-b", "1024"], 1024),
        ("ext3", &["-b", "4096"], 4096),
        ("ext4", &["-O", "^extents,^64bit", "-b", "2048"], 2048),
    ];
    for (kind, args, block) in rows {
        let volume = VolumeBuilder::new(64 << 20).kind(kind).args(args.iter().copied()).build();
        volume.with_kernel(|root| scatter(root, block, &mut Rng::new(block)));
        // Only after the unmount: SEEK_DATA misses dirty pages without allocated blocks.
        let kernel = volume.kernel_manifest();
        let expected = ["/a", "/b"].map(|name| kernel[name.as_bytes()].digest.unwrap());
        assert!(debugfs(volume.path(), "stat /a").contains("(TIND)"));
        // The smallest budgets: mappings are evicted all the time.
        let options = VolumeOptions::read_write().map_budget(1).metadata_budget(256 << 10);
        let opened = Volume::open(volume.path().to_str().unwrap(), options).unwrap();
        let tree = ours(&opened, 1);
        assert_eq!(["/a", "/b"].map(|name| tree[name.as_bytes()].digest.unwrap()), expected);

        // Rewrites every third piece, and nothing else.
        let mut wanted = BTreeMap::new();
        for name in ["/a", "/b"] {
            let file = opened.open_file(name, read_write()).unwrap();
            let pieces: Vec<_> =
                file.map().map(Result::unwrap).filter(|piece| piece.state == State::Written).collect();
            for piece in pieces.iter().step_by(3) {
                let data = common::patterned(
                    90,
                    piece.logical,
                    (piece.end().min(file.size()) - piece.logical) as usize,
                );
                file.write_any_at(&data, piece.logical, WriteFlags::DSYNC).unwrap();
            }
            wanted.insert(name, ours(&opened, 0)[name.as_bytes()].digest.unwrap());
        }
        drop(opened);
        volume.assert_clean();
        with_kernel(volume.path(), "ro", |root| {
            for (name, digest) in &wanted {
                assert!(file_digest(&root.join(&name[1..])) == *digest, "{name}");
            }
        });
    }
}

#[test]
fn root_inodes_of_both_kinds_live_on_one_volume() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"), Need::Tool("tune2fs"));
    let volume = VolumeBuilder::new(32 << 20).kind("ext3").args(["-b", "1024"]).build();
    volume.with_kernel(|root| fill(root, 1024));
    run(command("tune2fs").args(["-O", "extents"]).arg(volume.path()));
    volume.with_kernel(|root| {
        std::fs::create_dir(root.join("new")).unwrap();
        fill(&root.join("new"), 1024);
    });
    let opened = Volume::open(volume.path().to_str().unwrap(), VolumeOptions::read_only()).unwrap();
    assert_same(&without_xattrs(volume.kernel_manifest()), &ours(&opened, 0));
    let extents = uext4::InodeFlags::EXTENTS;
    assert!(!opened.metadata("/deep").unwrap().flags.contains(extents));
    assert!(opened.metadata("/new/deep").unwrap().flags.contains(extents));
}

/// One way to damage an image.
type Change<'a> = &'a dyn Fn(&mut Image);

const I_SIZE: usize = 4;
const I_BLOCKS: usize = 0x1c;
const I_BLOCK: usize = 0x28;
const I_SIZE_HIGH: usize = 0x6c;
const SINGLE: usize = I_BLOCK + 12 * 4;
const DOUBLE: usize = SINGLE + 4;
const TRIPLE: usize = DOUBLE + 4;

fn put(image: &mut Image, at: usize, value: u32) {
    image.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn word(image: &Image, at: usize) -> u32 {
    u32::from_le_bytes(image.bytes[at..at + 4].try_into().unwrap())
}

/// Returns the kind of corruption, and checks that the error names the inode and the expected block.
#[track_caller]
fn corrupt(error: &Error, ino: Ino, block: Option<u32>) -> CorruptKind {
    let Error::Corrupt(found) = error else { panic!("{error:?}") };
    let Corrupt { kind, place } = **found;
    assert_eq!(error.errno(), 117);
    assert_eq!(place.inode, Some(ino), "{error}");
    if let Some(block) = block {
        assert_eq!(place.block.map(|block| block.get()), Some(u64::from(block)), "{error}");
        assert!(place.lblk.is_some(), "{error}");
    }
    kind
}

#[test]
fn pointers_that_lead_astray_are_corrupt() {
    needs!(Need::Tool("mke2fs"));
    let (image, layout) = (ext2(), Layout::of(&ext2()));
    let ino = ino_of(&image, "/deep");
    let inode = layout.inode(ino);
    let blocks = layout.superblock.geometry.blocks_count() as u32;
    let table = layout.inode_table().0 as u32;
    let at = |word: u32| word as usize * BLOCK;
    let single = word(&image, inode + SINGLE);
    let double = word(&image, inode + DOUBLE);
    let leaf = word(&image, at(double));
    let triple = word(&image, inode + TRIPLE);
    let middle = word(&image, at(triple));
    let (out, zone, cycle) = (
        |what: &'static str| CorruptKind::BlockOutsideVolume(what),
        CorruptKind::SystemZone,
        CorruptKind::Cycle("the indirect map"),
    );
    let (data, node) = (out("the indirect map"), out("a block of the indirect map"));
    // The change, the logical block to read, the block that the error names, and its kind.
    let cases: [(&str, Change<'_>, u64, u32, CorruptKind); 17] = [
        ("direct, outside", &|image| put(image, inode + I_BLOCK, blocks), 0, blocks, data),
        ("direct, far outside", &|image| put(image, inode + I_BLOCK, u32::MAX), 0, u32::MAX, data),
        ("direct, the superblock", &|image| put(image, inode + I_BLOCK, 1), 0, 1, data),
        ("direct, the inode table", &|image| put(image, inode + I_BLOCK, table), 0, table, zone),
        ("direct, the map's own block", &|image| put(image, inode + I_BLOCK, single), 0, single, cycle),
        ("single, outside", &|image| put(image, inode + SINGLE, blocks), 12, blocks, node),
        ("single, the inode table", &|image| put(image, inode + SINGLE, table), 12, table, zone),
        ("data, outside", &|image| put(image, at(single), blocks), 12, blocks, data),
        ("data, the inode table", &|image| put(image, at(single), table), 12, table, zone),
        ("data, the single block itself", &|image| put(image, at(single), single), 12, single, cycle),
        ("data, the double block", &|image| put(image, at(leaf), double), 268, double, cycle),
        ("double leads to itself", &|image| put(image, at(double), double), 268, double, cycle),
        ("double leads to single", &|image| put(image, at(double), single), 268, single, cycle),
        ("triple leads to itself", &|image| put(image, at(triple), triple), 65_804, triple, cycle),
        ("triple's child leads up", &|image| put(image, at(middle), triple), 65_804, triple, cycle),
        ("triple's child, outside", &|image| put(image, at(triple), blocks + 7), 65_804, blocks + 7, node),
        ("triple's leaf, metadata", &|image| put(image, at(middle), table + 1), 65_804, table + 1, zone),
    ];
    for (what, change, block, named, kind) in cases {
        println!("{what}");
        let mut changed = image.clone();
        change(&mut changed);
        let device = changed.device();
        let volume = open_rw(device.clone());
        let file = volume.open_file("/deep", read_write()).unwrap();
        let pos = block * BLOCK as u64;
        let mut memory = aligned(1024);
        let query = Query { write: false, pos, length: 1024, sync: Sync::None, queued: false };
        for error in [
            file.read_at(&mut memory, pos).map(drop).unwrap_err(),
            file.write_at(&memory, pos).map(drop).unwrap_err(),
            file.write_any_at(&[1], pos + 1, WriteFlags::DSYNC).map(drop).unwrap_err(),
            file.explain(&query).map(drop).unwrap_err(),
            file.map().find_map(Result::err).unwrap(),
        ] {
            assert_eq!(corrupt(&error, ino, Some(named)), kind, "{error}");
        }
        assert_unchanged(&changed, &*device);
        // Other files are fine, and a walk over everything ends.
        volume.open_file("/plain", read_only()).unwrap().read_at(&mut memory, 0).unwrap();
        drop(volume);
        within(CASE, move || explore(changed.device(), true));
    }
}

/// Three blocks that point to each other everywhere would stand for 16 GiB.
#[test]
fn a_map_that_shares_its_blocks_is_not_walked_to_the_end() {
    needs!(Need::Tool("mke2fs"));
    let (mut image, layout) = (ext2(), Layout::of(&ext2()));
    let ino = ino_of(&image, "/deep");
    let inode = layout.inode(ino);
    let triple = word(&image, inode + TRIPLE);
    let middle = word(&image, triple as usize * BLOCK);
    let leaf = word(&image, middle as usize * BLOCK);
    let data = word(&image, inode + I_BLOCK);
    for (block, value) in [(triple, middle), (middle, leaf), (leaf, data)] {
        (0..256).for_each(|n| put(&mut image, block as usize * BLOCK + n * 4, value));
    }
    let limit = 17_247_252_480_u64;
    put(&mut image, inode + I_SIZE, limit as u32);
    put(&mut image, inode + I_SIZE_HIGH, (limit >> 32) as u32);
    within(CASE, move || {
        let volume = open_ro(image.device());
        let file = volume.open_file("/deep", read_only()).unwrap();
        let pieces: Vec<_> = file.map().take(10_000).collect();
        assert!(pieces.len() < 1000, "{}", pieces.len());
        let error = pieces.into_iter().find_map(Result::err).unwrap();
        assert_eq!(corrupt(&error, ino, Some(leaf)), CorruptKind::Cycle("the indirect map"));
        // Each block alone, found first, is no fault; finding it at a second place is.
        let mut memory = aligned(1024);
        let volume = open_ro(image.device());
        let file = volume.open_file("/deep", read_only()).unwrap();
        file.read_at(&mut memory, limit - 1024).unwrap();
        let error = file.read_at(&mut memory, limit - (257 << 10)).unwrap_err();
        assert_eq!(corrupt(&error, ino, Some(leaf)), CorruptKind::Cycle("the indirect map"));
        file.read_at(&mut memory, limit - 2048).unwrap();
    });
}

#[test]
fn absurd_sizes_and_block_counts_are_corrupt() {
    needs!(Need::Tool("mke2fs"));
    let extents = common::hostile::bare();
    for (image, path, most) in
        [(ext2(), "/plain", 17_247_252_480_u64), (extents, "/plain", 0xffff_ffff << 10)]
    {
        let layout = Layout::of(&image);
        let ino = ino_of(&image, path);
        let inode = layout.inode(ino);
        for size in [most, most + 1, (1 << 63) - 1] {
            let mut changed = image.clone();
            put(&mut changed, inode + I_SIZE, size as u32);
            put(&mut changed, inode + I_SIZE_HIGH, (size >> 32) as u32);
            let volume = open_rw(changed.device());
            assert_eq!(volume.metadata(path).unwrap().size, size, "attributes stay readable");
            match volume.open_file(path, read_write()) {
                Ok(file) => {
                    assert_eq!(size, most);
                    assert_eq!(file.read_at(&mut aligned(1024), size - 1024).unwrap(), 1024);
                }
                Err(error) => {
                    assert_eq!(corrupt(&error, ino, None), CorruptKind::InodeField("size"));
                    assert!(size > most);
                }
            }
        }
        // In units of 512 bytes: as many as the volume has, and one more.
        let sectors = layout.superblock.geometry.blocks_count() as u32 * 2;
        for (count, fine) in [(sectors, true), (sectors + 1, false), (u32::MAX, false)] {
            let mut changed = image.clone();
            put(&mut changed, inode + I_BLOCKS, count);
            let volume = open_ro(changed.device());
            assert_eq!(volume.metadata(path).unwrap().blocks, u64::from(count));
            match volume.open_file(path, read_only()) {
                Ok(_) => assert!(fine, "{count}"),
                Err(error) => {
                    assert_eq!(corrupt(&error, ino, None), CorruptKind::InodeField("blocks"));
                    assert!(!fine, "{count}: {error}");
                }
            }
        }
    }
}

#[test]
fn directories_links_and_journals_with_damaged_maps_are_corrupt() {
    needs!(Need::Tool("mke2fs"));
    let (image, layout) = (ext3(), Layout::of(&ext3()));
    let table = layout.inode_table().0 as u32;
    let changed = |ino: Ino, field: usize| {
        let mut changed = image.clone();
        put(&mut changed, layout.inode(ino) + field, table);
        changed
    };
    let long = ino_of(&image, "/long");
    let volume = open_ro(changed(long, SINGLE).device());
    let error = volume.read_dir("/long").unwrap().find_map(Result::err).unwrap();
    assert_eq!(corrupt(&error, long, Some(table)), CorruptKind::SystemZone);

    let link = ino_of(&image, "/symlink-300");
    let volume = open_ro(changed(link, I_BLOCK).device());
    let error = volume.read_link("/symlink-300").unwrap_err();
    assert_eq!(corrupt(&error, link, Some(table)), CorruptKind::SystemZone);

    let error = Volume::open_device(changed(Ino(8), SINGLE).device(), VolumeOptions::read_write());
    let error = error.map(drop).unwrap_err();
    assert_eq!(corrupt(&error, Ino(8), Some(table)), CorruptKind::SystemZone);
    // The log is empty, so reading works, with a note.
    let volume = open_ro(changed(Ino(8), SINGLE).device());
    assert_eq!(volume.info().recovery.journal_damage, Some(error.to_string()));
}

/// Random words in inodes and pointer blocks: every outcome but a panic, a hang or an untyped error is fine.
#[test]
fn mutated_maps_are_survived() {
    needs!(Need::Tool("mke2fs"));
    let (image, layout) = (ext2(), Layout::of(&ext2()));
    let mut pointers = Vec::new();
    for name in OVERWRITTEN.iter().chain(&["/long"]) {
        let inode = layout.inode(ino_of(&image, name));
        pointers.extend((0..15).map(|n| inode + I_BLOCK + n * 4));
        for root in [SINGLE, DOUBLE, TRIPLE].map(|field| word(&image, inode + field) as usize) {
            pointers.extend((0..if root == 0 { 0 } else { 256 }).map(|n| root * BLOCK + n * 4));
        }
    }
    let blocks = layout.superblock.geometry.blocks_count();
    let mut rng = Rng::new(44);
    for case in 0..60 {
        let mut changed = image.clone();
        for _ in 0..1 + rng.below(6) {
            let at = *rng.pick(&pointers);
            let value = match rng.below(3) {
                0 => word(&image, *rng.pick(&pointers)),
                1 => rng.below(blocks) as u32,
                _ => rng.next_u64() as u32,
            };
            put(&mut changed, at, value);
        }
        println!("case {case}");
        within(CASE, move || explore(changed.device(), case % 2 == 0));
    }
}
