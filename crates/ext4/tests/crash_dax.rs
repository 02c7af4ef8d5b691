//! Appends to files in mapped memory under power cuts. The medium may tear a write every 8 bytes. Blocks past the end
//! are not zeroed before the data is copied, so every byte that a crash exposes must be a written one.

use crate::common;

use common::crash::garbage_volume;
use common::mapped::{BeforeWrite, Mapped};
use common::{Image, open_rw, patterned, read_all, read_only, read_write};
use std::sync::Arc;
use uext4::{Error, Fallocate, File, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::crash::{Options, Report, State, assert_states};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashOptions};
use uext4_testkit::{Need, Rng, Scratch, needs, oracle};

const SIZE: u64 = 12 << 20;
const BLOCK: u64 = 1024;
const PATHS: [&str; 2] = ["/a", "/b"];

/// This many bytes of a file are durable.
struct Durable {
    file: usize,
    size: u64,
}

struct Scene {
    handle: CrashHandle,
    before_write: Arc<BeforeWrite>,
    volume: Volume,
    files: Vec<File>,
}

impl Scene {
    /// Two empty files. The volume is already marked as in use, so that the appends do not include that write.
    fn new(args: &[&str]) -> Scene {
        let tree = Scratch::new(SIZE);
        for path in PATHS.iter().chain([&"/first"]) {
            std::fs::write(tree.file(&path[1..]), "").unwrap();
        }
        let image = garbage_volume(SIZE, tree.path(), &[&["-b", "1024", "-J", "size=1"], args].concat());
        let device = CrashDevice::new(image.device(), CrashOptions::default()).unwrap();
        let (handle, before_write) = (device.handle(), Arc::<BeforeWrite>::default());
        let device = Mapped { inner: Arc::new(device), before_write: before_write.clone() };
        let volume = open_rw(Arc::new(device));
        let first = volume.open_file("/first", read_write()).unwrap();
        first.set_len(1).unwrap();
        first.sync_all().unwrap();
        handle.reset().unwrap();
        let files = PATHS.map(|path| volume.open_file(path, read_write()).unwrap()).into();
        Scene { handle, before_write, volume, files }
    }

    /// Writes this many bytes past the end of a file.
    fn append(&self, file: usize, length: u64, flags: WriteFlags) {
        let size = self.files[file].size();
        self.write(file, size, length, flags);
    }

    /// Each byte of a file follows its pattern, however often it is written.
    fn write(&self, file: usize, pos: u64, length: u64, flags: WriteFlags) {
        let bytes = patterned(file as u64 + 1, pos, length as usize);
        assert_eq!(self.files[file].write_any_at(&bytes, pos, flags).unwrap() as u64, length);
        if flags.contains(WriteFlags::DSYNC) {
            self.durable(file);
        }
    }

    /// Changes the other file and commits that change right before the next data write.
    fn commits_before_data(&self, file: usize) {
        let (changed, handle) = (self.files[file].clone(), self.handle.clone());
        *self.before_write.lock().unwrap() = Some(Box::new(move || {
            changed.sync_all().unwrap();
            handle.mark(Arc::new(Durable { file, size: changed.size() }));
        }));
    }

    fn durable(&self, file: usize) {
        self.handle.mark(Arc::new(Durable { file, size: self.files[file].size() }));
    }
}

fn check(state: &State<'_>, volume: &Volume) -> Result<(), String> {
    for (file, path) in PATHS.into_iter().enumerate() {
        let found = read_all(&volume.open_file(path, read_only()).unwrap());
        let durable = state.marks::<Durable>().filter(|mark| mark.file == file).map(|mark| mark.size).max();
        if (found.len() as u64) < durable.unwrap_or(0) {
            return Err(format!("{path} has {} bytes, {durable:?} were acknowledged", found.len()));
        }
        if found[..] != patterned(file as u64 + 1, 0, found.len())[..] {
            return Err(format!("{path} has bytes that were not written"));
        }
    }
    Ok(())
}

/// Passes all states to `check`, recovered by us, and every `each`th one recovered by e2fsck too. A commit block torn
/// in the middle of a sector counts as damage of the log (`docs/internals/journal.md`): e2fsck recovers that one.
fn enumerate(scene: &Scene, options: &Options, each: usize) -> Report {
    let scratch = Scratch::new(2 * SIZE);
    let path = scratch.file("state.img");
    let (mut shown, mut torn) = (0, 0);
    let report = assert_states(&scene.handle.log().unwrap(), options, |state| {
        shown += 1;
        let device = state.device();
        let recovered = match Volume::open_device(device.clone(), VolumeOptions::read_write()) {
            Ok(volume) => {
                check(state, &volume)?;
                volume.close().map_err(|error| error.to_string())?;
                Image::of(&*device).save(&path);
                true
            }
            Err(Error::Journal(damage)) if damage.to_string().contains("commit checksum") => false,
            Err(error) => return Err(error.to_string()),
        };
        torn += usize::from(!recovered);
        if recovered && shown % each != 1 {
            return Ok(());
        }
        if recovered {
            oracle::e2fsck_clean(&path);
        }
        state.save(&path);
        let repaired = oracle::e2fsck(&path, &["-fy"]);
        // A larger size would expose data past the size.
        if repaired.status > 1 || repaired.output.contains("i_size") {
            return Err(format!("e2fsck: {repaired:?}"));
        }
        let volume = open_rw(Image::load(&path).device());
        check(state, &volume).map_err(|wrong| format!("recovered by e2fsck: {wrong}"))?;
        volume.close().map_err(|error| error.to_string())
    });
    println!("{}: {report}, {torn} with a torn commit block", options.name);
    assert!(options.only.is_some() || torn * 4 < shown, "{torn} of {shown} states are damaged logs");
    report
}

#[test]
fn a_crash_in_an_append_to_mapped_memory_shows_written_bytes_only() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let layouts: [&[&str]; 3] = [&[], &["-O", "bigalloc", "-C", "8192"], &["-O", "^extent,^64bit"]];
    for (seed, args) in (1..).zip(layouts) {
        let (scene, mut rng) = (Scene::new(args), Rng::new(seed));
        let pointers = args.contains(&"^extent,^64bit");
        for round in 0..12 {
            let file = rng.below(2) as usize;
            let blocks = (1 + rng.below(8)) * BLOCK;
            match round % 4 {
                0 => scene.append(file, blocks, WriteFlags::DSYNC),
                1 => scene.append(file, blocks, WriteFlags::empty()),
                // Over blocks that are already unwritten, starting before the end.
                2 if !pointers => {
                    let size = scene.files[file].size();
                    let start = size / BLOCK * BLOCK;
                    scene.files[file].fallocate(Fallocate::KeepSize, start, 16 * BLOCK).unwrap();
                    scene.append(file, blocks + 3 * BLOCK, WriteFlags::empty());
                }
                // Unaligned: the rest of the last block is zeroed.
                _ => scene.append(file, rng.below(3000) + 1, WriteFlags::empty()),
            }
            // A commit comes between this append's metadata changes and its data.
            if !pointers {
                // (With block pointers the zeros are written inside a handle, where no commit can come.)
                scene.commits_before_data(file);
            }
            scene.append(1 - file, blocks, WriteFlags::empty());
        }
        scene.volume.sync_all().unwrap();
        (0..2).for_each(|file| scene.durable(file));
        let mut options = Options::new(&format!("dax-append-{seed}"), 1).at_most(700);
        options.unit = Some(8);
        let report = enumerate(&scene, &options, 40);
        assert!(options.only.is_some() || report.images > 100, "{report}");
    }
}
