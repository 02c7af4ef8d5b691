//! Volumes without a journal, under power cuts, kills and device failures. Only e2fsck repairs them: it must make a
//! clean volume of every state, with everything durable in it, and no contents of free blocks.
//!
//! Metadata blocks are assumed to reach the device as a whole or not at all: the device's blocks are as large here. If
//! a directory block is torn, names are lost, whatever wrote it without a journal.

use crate::common;

use common::sample::sample_with;
use common::{Image, open_ro, open_rw, patterned, read_all, read_only, read_write};
use std::collections::BTreeMap;
use std::sync::Arc;
use uext4::device::Op;
use uext4::{Error, Fallocate, OpenOptions, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::crash::{Options, assert_states};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashOptions, Fault, FaultDevice, FaultOn};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, needs, oracle};

/// The contents of free blocks.
const GARBAGE: u8 = 0xEE;
const SIZE: u64 = 12 << 20;
const LAYOUTS: [&[&str]; 4] = [
    &["-b", "1024", "-O", "^has_journal"],
    &["-b", "1024", "-O", "^has_journal,^metadata_csum,^64bit,^flex_bg"],
    &["-b", "1024", "-O", "^has_journal,^extent,^64bit"],
    &["-b", "4096", "-O", "^has_journal,bigalloc", "-C", "16384"],
];

/// A volume with garbage in its free blocks.
fn image(args: &[&str]) -> Image {
    let scratch = Scratch::new(2 * SIZE);
    let (tree, path) = (scratch.file("tree"), scratch.file("volume.img"));
    std::fs::create_dir_all(tree.join("dir")).unwrap();
    std::fs::write(&path, vec![GARBAGE; SIZE as usize]).unwrap();
    let builder = VolumeBuilder::new(SIZE).args(args.iter().copied());
    builder.extended("nodiscard").extended("lazy_itable_init=0").from_dir(&tree).format(&path);
    oracle::e2fsck_clean(&path);
    Image::load(&path)
}

/// The contents of all files that are durable from here on. Others may have any of their versions.
#[derive(Debug, Clone)]
struct Durable(BTreeMap<String, Vec<u8>>);

/// Files, some of them durable, while others keep changing.
struct Scene {
    handle: CrashHandle,
    volume: Volume,
    /// Durable, and no longer changed.
    kept: BTreeMap<String, Vec<u8>>,
    /// Changed again and again.
    others: BTreeMap<String, Vec<u8>>,
    rng: Rng,
    number: u64,
}

impl Scene {
    fn new(image: &Image, block: u32, seed: u64) -> Scene {
        let memory = image.device_with(|options| options.logical_block = block);
        let device = CrashDevice::new(memory, CrashOptions::default()).unwrap();
        let (handle, volume) = (device.handle(), open_rw(Arc::new(device)));
        let (kept, others) = (BTreeMap::new(), BTreeMap::new());
        Scene { handle, volume, kept, others, rng: Rng::new(seed), number: 0 }
    }

    /// Writes some pieces of a file, so that its map is not trivial.
    fn fill(&mut self, path: &str) -> Vec<u8> {
        let file = self.volume.open_file(path, read_write().create(true)).unwrap();
        let mut model = read_all(&file);
        for _ in 0..self.rng.below(6) {
            self.number += 1;
            let pos = self.rng.below(40) * 4096;
            let bytes = patterned(self.number, pos, (1 + self.rng.below(4)) as usize * 1024);
            file.write_any_at(&bytes, pos, WriteFlags::empty()).unwrap();
            let end = pos as usize + bytes.len();
            model.resize(model.len().max(end), 0);
            model[pos as usize..end].copy_from_slice(&bytes);
        }
        model
    }

    /// Creates a file that is durable when this returns.
    fn keep(&mut self) {
        let path = format!("/dir/kept-{}", self.number);
        let model = self.fill(&path);
        self.volume.open_file(&path, read_write()).unwrap().sync_all().unwrap();
        self.kept.insert(path, model);
        self.handle.mark(Durable(self.kept.clone()));
    }

    /// Creates a file with one durable write; and another write over it.
    fn keep_by_one_write(&mut self) {
        self.number += 1;
        let path = format!("/dir/at-once-{}", self.number);
        let file = self.volume.open_file(&path, read_write().create(true)).unwrap();
        for round in 0..2 {
            let bytes = patterned(self.number + round, 0, 8192);
            // During an overwrite it has neither version.
            self.kept.remove(&path);
            self.handle.mark(Durable(self.kept.clone()));
            file.write_at_with(&bytes, 0, WriteFlags::DSYNC).unwrap();
            self.kept.insert(path.clone(), bytes.to_vec());
            self.handle.mark(Durable(self.kept.clone()));
        }
    }

    fn change(&mut self) {
        let path = format!("/dir/{}{}", self.rng.below(12), "x".repeat(100));
        match self.rng.below(6) {
            0 if self.others.remove(&path).is_some() => self.volume.remove_file(&path).unwrap(),
            1 if self.others.contains_key(&path) => {
                let file = self.volume.open_file(&path, read_write()).unwrap();
                let size = self.rng.below(200_000);
                file.set_len(size).unwrap();
                self.others.insert(path, read_all(&file));
            }
            2 if self.others.contains_key(&path) => {
                let file = self.volume.open_file(&path, read_write()).unwrap();
                file.fallocate(Fallocate::Punch, self.rng.below(50_000), 1 + self.rng.below(50_000)).unwrap();
                self.others.insert(path, read_all(&file));
            }
            _ => {
                let model = self.fill(&path);
                self.others.insert(path, model);
            }
        }
    }
}

/// Repairs a state with e2fsck, and returns what is wrong with the result.
fn judge(path: &std::path::Path, durable: Option<&Durable>) -> Result<(), String> {
    let repaired = oracle::e2fsck(path, &["-fy"]);
    if repaired.status > 1 {
        return Err(format!("e2fsck: {repaired:?}"));
    }
    oracle::e2fsck_clean(path);
    let volume = open_ro(Image::load(path).device());
    let read = |path: &str| volume.open_file(path, read_only()).map(|file| read_all(&file));
    for (path, model) in durable.into_iter().flat_map(|durable| &durable.0) {
        match read(path) {
            Ok(found) if found == *model => {}
            Ok(found) => {
                return Err(format!("{path} has {} bytes, and others than {}", found.len(), model.len()));
            }
            Err(error) => return Err(format!("{path}: {error}; {}", repaired.output)),
        }
    }
    for entry in volume.read_dir("/dir").unwrap() {
        let name = String::from_utf8_lossy(&entry.unwrap().name).into_owned();
        let path = format!("/dir/{name}");
        // Whole blocks of 512 bytes of garbage, since patterns contain such bytes too.
        if !name.starts_with('.')
            && read(&path).unwrap().chunks(512).any(|part| part.iter().all(|b| *b == GARBAGE))
        {
            return Err(format!("{path} holds what was in free blocks"));
        }
    }
    Ok(())
}

#[test]
fn what_is_durable_survives_every_power_cut_and_e2fsck() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (seed, args) in (1..).zip(LAYOUTS) {
        let mut scene = Scene::new(&image(args), args[1].parse().unwrap(), seed);
        for round in 0..24 {
            (0..8).for_each(|_| scene.change());
            match round % 3 {
                0 => scene.keep(),
                1 => scene.keep_by_one_write(),
                _ => scene.volume.clone().close().unwrap(),
            }
        }
        let scratch = Scratch::new(4 * SIZE);
        let path = scratch.file("state.img");
        let options = Options::new(&format!("unlogged-{seed}"), 1).at_most(120);
        let report = assert_states(&scene.handle.log().unwrap(), &options, |state| {
            state.save(&path);
            judge(&path, state.marks::<Durable>().last())
        });
        println!("{args:?}: {report}");
        assert!(report.images > 80, "{report}");
    }
}

/// Leaves of a large map split while other parts of the file are durable.
#[test]
fn a_map_that_grows_keeps_what_is_durable() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let mut scene = Scene::new(&image(LAYOUTS[0]), 1024, 9);
    let file = scene.volume.open_file("/dir/deep", read_write().create(true)).unwrap();
    // Every fourth block: more extents than a tree of one level holds.
    let (mut model, count) = (vec![0; 4 * 500 * 1024], 500);
    for number in 0..count {
        let pos = number * 4096;
        let bytes = patterned(number, pos, 1024);
        file.write_at(&bytes, pos).unwrap();
        model[pos as usize..pos as usize + 1024].copy_from_slice(&bytes);
    }
    file.sync_all().unwrap();
    scene.handle.reset().unwrap();
    for round in 0..5 {
        // Two blocks further on: between the durable ones, and adjacent to none.
        let start = scene.rng.below(count - 90);
        for number in start..start + 90 {
            let pos = number * 4096 + 2048;
            file.write_at(&patterned(round, pos, 1024), pos).unwrap();
        }
        file.sync_all().unwrap();
    }
    let scratch = Scratch::new(4 * SIZE);
    let path = scratch.file("state.img");
    let options = Options::new("unlogged-deep", 1).at_most(100);
    let report = assert_states(&scene.handle.log().unwrap(), &options, |state| {
        state.save(&path);
        judge(&path, None)?;
        let found =
            read_all(&open_ro(Image::load(&path).device()).open_file("/dir/deep", read_only()).unwrap());
        let lost = (0..count).find(|number| {
            let at = *number as usize * 4096..*number as usize * 4096 + 1024;
            found.get(at.clone()) != model.get(at)
        });
        lost.map_or(Ok(()), |number| Err(format!("block {} is lost", number * 4)))
    });
    println!("{report}");
}

/// Changes of a file whose map has blocks of its own. In every state the file is as it was before one of them or behind
/// it: the record of the inode is the one change of size and map.
#[test]
fn size_and_map_change_together() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (seed, args) in (20..).zip(LAYOUTS) {
        let block = args[1].parse::<u32>().unwrap();
        let mut scene = Scene::new(&image(args), block, seed);
        let file = scene.volume.open_file("/dir/log", read_write().create(true)).unwrap();
        // Pieces apart: neither the extents of the root nor the direct pointers are enough.
        for number in 0..14 {
            let pos = number * 8 * u64::from(block);
            file.write_at(&patterned(number, pos, block as usize), pos).unwrap();
        }
        file.sync_all().unwrap();
        scene.handle.reset().unwrap();
        let mut versions = vec![read_all(&file)];
        for number in 100..124 {
            let mut model = versions.last().unwrap().clone();
            if number % 6 == 5 {
                // Not a part of a block, which would be zeroed before.
                model.truncate(model.len() / 2 / block as usize * block as usize);
                file.set_len(model.len() as u64).unwrap();
            } else {
                let bytes = patterned(number, model.len() as u64, 1 + scene.rng.below(20_000) as usize);
                file.write_any_at(&bytes, model.len() as u64, WriteFlags::empty()).unwrap();
                model.extend_from_slice(&bytes);
            }
            versions.push(model);
            file.sync_all().unwrap();
            scene.handle.mark(versions.len() - 1);
        }
        let scratch = Scratch::new(4 * SIZE);
        let path = scratch.file("state.img");
        let options = Options::new(&format!("unlogged-sizes-{seed}"), 1).at_most(100);
        let report = assert_states(&scene.handle.log().unwrap(), &options, |state| {
            state.save(&path);
            judge(&path, None)?;
            let volume = open_ro(Image::load(&path).device());
            let found = read_all(&volume.open_file("/dir/log", read_only()).unwrap());
            let durable = state.marks::<usize>().last().copied().unwrap_or(0);
            let lengths = || versions.iter().map(Vec::len).skip(durable).take(2).collect::<Vec<_>>();
            match versions[durable..].iter().take(2).any(|version| *version == found) {
                true => Ok(()),
                false => Err(format!("{} bytes, and others than those of {:?}", found.len(), lengths())),
            }
        });
        println!("{args:?}: {report}");
        assert!(report.images > 40, "{report}");
    }
}

/// A volume without a free block still gives up blocks of a file whose map has blocks of its own.
#[test]
fn a_full_volume_gives_blocks_back() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for args in LAYOUTS {
        let block = args[1].parse::<u64>().unwrap();
        let device = image(&[args, &["-m", "0"]].concat()).device();
        let volume = open_rw(device.clone());
        let file = volume.open_file("/dir/apart", read_write().create(true)).unwrap();
        let mut model = vec![0; (13 * 8 + 1) * block as usize];
        for number in 0..14 {
            let pos = number * 8 * block;
            let bytes = patterned(number, pos, block as usize);
            file.write_at(&bytes, pos).unwrap();
            model[pos as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        file.sync_all().unwrap();
        let rest = volume.open_file("/dir/rest", OpenOptions::new().append(true).create(true)).unwrap();
        for part in [1 << 20, 16 * block, block] {
            let bytes = patterned(99, 0, part as usize);
            let refused =
                std::iter::from_fn(|| Some(rest.append(&bytes, WriteFlags::empty()))).find_map(Result::err);
            assert!(matches!(refused, Some(Error::NoSpace)), "{args:?}: {refused:?}");
        }
        // Files of one block need no map block, so they get the last ones.
        for number in 0.. {
            let one = volume
                .open_file(format!("/dir/{number}"), OpenOptions::new().append(true).create(true))
                .unwrap();
            match one.append(&patterned(98, 0, block as usize), WriteFlags::empty()) {
                Ok(_) => {}
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{args:?}: {error}"),
            }
        }
        volume.sync_all().unwrap();
        // What is left is set aside: a map gets it only if it was promised.
        assert_eq!(volume.statfs().unwrap().available, 0, "{args:?}");
        file.fallocate(Fallocate::Punch, 16 * block, block).unwrap();
        model[16 * block as usize..][..block as usize].fill(0);
        file.set_len(80 * block).unwrap();
        model.truncate(80 * block as usize);
        common::assert_same_bytes(&model, &read_all(&file));
        file.sync_all().unwrap();
        drop((file, rest));
        volume.close().unwrap();
        let scratch = Scratch::new(2 * SIZE);
        let path = scratch.file("full.img");
        Image::of(&*device).save(&path);
        oracle::e2fsck_clean(&path);
        let volume = open_ro(device);
        let there = read_all(&volume.open_file("/dir/apart", read_only()).unwrap());
        common::assert_same_bytes(&model, &there);
    }
}

/// Until somebody needs durability, only the superblock's state changes: then the volume is marked as not clean, until
/// it is closed.
#[test]
fn a_volume_in_use_says_so_and_changes_in_one_step() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = image(LAYOUTS[0]);
    let device = image.device();
    let volume = open_rw(device.clone());
    let state = || Image::of(&*device).bytes[1024 + 0x3a] & 1;
    let file = volume.open_file("/dir/new", read_write().create_new(true)).unwrap();
    assert_eq!(file.size(), 0);
    common::assert_unchanged(&image, &*device);
    file.sync_all().unwrap();
    assert_eq!(state(), 0, "in use");
    // A kill now leaves the volume to e2fsck: until it has run, nothing is allocated.
    let killed = open_rw(Image::of(&*device).device());
    let refused = killed.open_file("/dir/other", read_write().create_new(true)).unwrap_err();
    assert!(matches!(&refused, Error::Incompatible { .. }), "{refused:?}");
    assert!(refused.to_string().contains("e2fsck"), "{refused}");
    let old = killed.open_file("/dir/new", read_write()).unwrap();
    assert!(matches!(old.set_len(5), Err(Error::Incompatible { .. })));
    assert!(matches!(killed.remove_file("/dir/new"), Err(Error::Incompatible { .. })));
    volume.clone().close().unwrap();
    assert_eq!(state(), 1, "left cleanly");
    file.write_any_at(b"more", 0, WriteFlags::DSYNC).unwrap();
    assert_eq!(state(), 0, "in use again");
    drop(file);
    volume.close().unwrap();
    assert_eq!(state(), 1);
    // We do not mark a volume clean that was not clean before.
    let mut dirty = Image::of(&*device);
    dirty.patch_superblock(|superblock| superblock[0x3a] &= !1);
    let device = dirty.device();
    open_rw(device.clone()).close().unwrap();
    common::assert_unchanged(&dirty, &*device);
}

/// Any write or flush of a run fails: the volume takes no changes from then on, and durable data is there after e2fsck.
#[test]
fn a_device_that_fails_loses_nothing_durable() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let (scratch, image) = (Scratch::new(4 * SIZE), image(LAYOUTS[0]));
    let path = scratch.file("failed.img");
    for (op, step) in [(Op::Write, 3), (Op::Flush, 1)] {
        let mut nth = 1;
        loop {
            let memory = image.device();
            let faulty = Arc::new(FaultDevice::new(memory.clone()));
            let handle = faulty.handle();
            let volume = open_rw(faulty);
            handle.arm(Fault::nth(FaultOn::Op(op), nth));
            let (durable, failed) = run(&volume);
            if !failed {
                break;
            }
            handle.clear();
            // Either one write's data failed, and the volume goes on, or it is aborted for good.
            let after =
                volume.open_file("/dir/after", read_write().create(true)).and_then(|file| file.sync_all());
            let closed = volume.close();
            assert!(
                matches!(
                    (&after, &closed),
                    (Ok(()), Ok(())) | (Err(Error::Aborted(_)), Err(Error::Aborted(_)))
                ),
                "{op:?} {nth}: {after:?} {closed:?}"
            );
            Image::of(&*memory).save(&path);
            judge(&path, Some(&durable)).unwrap_or_else(|what| panic!("{op:?} {nth}: {what}"));
            nth += step;
        }
        assert!(nth > 10, "{op:?} {nth}");
    }
}

/// Creates files, writes them and makes them durable one by one, until something fails.
fn run(volume: &Volume) -> (Durable, bool) {
    let mut durable = Durable(BTreeMap::new());
    for number in 0..12 {
        let path = format!("/dir/file-{number}");
        let bytes = patterned(number, 0, 3000 * (1 + number as usize));
        let step = || {
            let file = volume.open_file(&path, read_write().create(true))?;
            file.write_any_at(&bytes, 0, WriteFlags::empty())?;
            if number % 3 == 2 {
                volume.remove_file(format!("/dir/file-{}", number - 2))?;
            }
            file.sync_all()
        };
        if step().is_err() {
            durable.0.remove(&format!("/dir/file-{}", number - number % 3));
            return (durable, true);
        }
        if number % 3 == 2 {
            durable.0.remove(&format!("/dir/file-{}", number - 2));
        }
        durable.0.insert(path, bytes.to_vec());
    }
    (durable, false)
}

/// The inode number of a removed file is reused only after a commit: no name ever leads to a later file.
#[test]
fn numbers_and_blocks_are_used_again_after_a_commit() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(LAYOUTS[0]).device();
    let volume = open_rw(device.clone());
    let old = volume.open_file("/dir/old", read_write().create(true)).unwrap();
    old.write_at(&patterned(1, 0, 65_536), 0).unwrap();
    old.sync_all().unwrap();
    let (ino, place) = (old.ino(), old.map().next().unwrap().unwrap().physical);
    volume.remove_file("/dir/old").unwrap();
    drop(old);
    let new = volume.open_file("/dir/new", read_write().create(true)).unwrap();
    new.write_at(&patterned(2, 0, 65_536), 0).unwrap();
    if new.ino() == ino {
        let there = Volume::open_device(Image::of(&*device).device(), VolumeOptions::read_only()).unwrap();
        assert!(!there.exists("/dir/old").unwrap(), "the old name leads to the new file");
    }
    let found = Image::of(&*device).bytes[place as usize..][..65_536].to_vec();
    let there = open_ro(Image::of(&*device).device());
    if there.exists("/dir/old").unwrap() {
        common::assert_same_bytes(&patterned(1, 0, 65_536), &found);
    }
    drop(new);
    volume.close().unwrap();
    let scratch = Scratch::new(2 * SIZE);
    let path = scratch.file("closed.img");
    Image::of(&*device).save(&path);
    oracle::e2fsck_clean(&path);
}

/// Blocks freed from a cluster that a file keeps are not reused before the batch with that change is written home.
#[test]
fn parts_of_a_kept_cluster_are_used_again_after_a_commit() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let device = image(&["-b", "1024", "-O", "^has_journal,bigalloc", "-C", "8192"]).device();
    let volume = open_rw(device.clone());
    let file = volume.open_file("/dir/old", read_write().create(true)).unwrap();
    let before = patterned(1, 0, 20_480);
    file.write_at(&before, 0).unwrap();
    file.sync_all().unwrap();
    file.set_len(10_240).unwrap();
    file.write_at(&patterned(2, 12_288, 512), 12_288).unwrap();
    let there = Volume::open_device(Image::of(&*device).device(), VolumeOptions::read_only()).unwrap();
    let found = read_all(&there.open_file("/dir/old", read_only()).unwrap());
    common::assert_same_bytes(&before[..found.len()], &found);
    assert!([10_240, 20_480].contains(&found.len()), "{} bytes", found.len());
    drop(file);
    volume.close().unwrap();
    let scratch = Scratch::new(2 * SIZE);
    let path = scratch.file("closed.img");
    Image::of(&*device).save(&path);
    oracle::e2fsck_clean(&path);
}

/// The kernel continues on our volume, and we on the kernel's.
#[test]
fn root_the_kernel_takes_turns_with_us() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let scratch = Scratch::new(96 << 20);
    let path = scratch.file("turns.img");
    sample_with(4096, &["-O", "^has_journal"]).save(&path);
    for round in 0..3_u64 {
        let volume = Volume::open(&path, VolumeOptions::read_write()).unwrap();
        let file = volume.open_file(format!("/ours-{round}"), read_write().create_new(true)).unwrap();
        file.write_any_at(&patterned(round, 0, 70_000), 0, WriteFlags::empty()).unwrap();
        if round > 0 {
            let theirs = volume.open_file(format!("/theirs-{}", round - 1), read_write()).unwrap();
            common::assert_same_bytes(&[7; 50_000], &read_all(&theirs));
            theirs.set_len(10).unwrap();
            drop(theirs);
            volume.remove_file(format!("/ours-{}", round - 1)).unwrap();
        }
        drop(file);
        volume.close().unwrap();
        oracle::e2fsck_clean(&path);
        uext4_testkit::with_kernel(&path, "rw", |root| {
            let ours = std::fs::read(root.join(format!("ours-{round}"))).unwrap();
            common::assert_same_bytes(&patterned(round, 0, 70_000), &ours);
            std::fs::write(root.join(format!("theirs-{round}")), [7; 50_000]).unwrap();
            if round > 0 {
                assert_eq!(std::fs::read(root.join(format!("theirs-{}", round - 1))).unwrap(), [7; 10]);
                assert!(!root.join(format!("ours-{}", round - 1)).exists());
            }
        });
        oracle::e2fsck_clean(&path);
    }
}
