//! A device that fails at any operation, once or permanently, during truncation, every mode of `fallocate`, creating
//! and removing names, orphan processing at open, and closing: errors have types, an aborted volume stays aborted,
//! acknowledged data and nothing else is there afterwards, and the volume recovers clean.

use crate::common;
use crate::crash_named::{layouts, plays};

use common::ledger::{Ledger, Mark};
use common::scene::Scene;
use common::{Image, open_rw, patterned, read_write, within};
use layouts::{CLUSTERS, LARGE, Layout, SMALL};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use uext4::device::MemoryDevice;
use uext4::device::Op;
use uext4::{Error, Fallocate, File, Result, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::device::{Fault, FaultAction, FaultDevice, FaultHandle, FaultOn};
use uext4_testkit::{Need, Scratch, VolumeBuilder, needs, oracle};

/// Device failures: errno, and how often.
const FAULTS: [(i32, u64); 3] = [(libc::EIO, 1), (libc::EIO, u64::MAX), (libc::ENOSPC, 1)];

/// Files under change, and their announced contents.
struct Work<'v> {
    volume: &'v Volume,
    ledger: &'v mut Ledger,
    models: BTreeMap<String, Vec<u8>>,
    number: u64,
}

impl Work<'_> {
    fn open(&self, path: &str) -> Result<File> {
        self.volume.open_file(path, read_write())
    }

    /// Announces the next contents of a file.
    fn begin(&mut self, path: &str, change: impl FnOnce(&mut Vec<u8>), moves: bool) {
        let model = self.models.entry(path.into()).or_default();
        change(model);
        let bytes = Some(Arc::new(model.clone()));
        self.ledger.add(&Mark::Begun { path: path.into(), bytes, moves });
    }

    fn sync(&mut self, path: &str, file: &File) -> Result<()> {
        file.sync_all()?;
        self.ledger.add(&Mark::Durable { path: path.into(), range: 0..u64::MAX });
        Ok(())
    }

    fn write(&mut self, path: &str, file: &File, pos: u64, length: usize) -> Result<()> {
        self.number += 1;
        let bytes = patterned(self.number, pos, length);
        let put = |model: &mut Vec<u8>| {
            model.resize(model.len().max(pos as usize + length), 0);
            model[pos as usize..pos as usize + length].copy_from_slice(&bytes);
        };
        self.begin(path, put, false);
        file.write_any_at(&bytes, pos, WriteFlags::DSYNC)?;
        self.ledger.add(&Mark::Durable { path: path.into(), range: pos..pos + length as u64 });
        Ok(())
    }

    fn set_len(&mut self, path: &str, file: &File, size: usize) -> Result<()> {
        let block = self.volume.block_size() as usize;
        let end = |model: &Vec<u8>| size.next_multiple_of(block).min(model.len()).max(size.min(model.len()));
        self.begin(path, |model| (size.min(model.len())..end(model)).for_each(|at| model[at] = 0), false);
        self.begin(path, |model| model.resize(size, 0), false);
        file.set_len(size as u64)
    }

    fn fallocate(
        &mut self,
        path: &str,
        file: &File,
        mode: Fallocate,
        pos: usize,
        length: usize,
    ) -> Result<()> {
        use Fallocate::{Collapse, Insert, Punch, ZeroKeepSize};
        let moves = matches!(mode, Collapse | Insert);
        let change = |model: &mut Vec<u8>| match mode {
            Punch | ZeroKeepSize => model[pos..pos + length].fill(0),
            Collapse => drop(model.drain(pos..pos + length)),
            Insert => drop(model.splice(pos..pos, std::iter::repeat_n(0, length))),
            _ => {}
        };
        if moves {
            self.sync(path, file)?;
        }
        self.begin(path, change, moves);
        file.fallocate(mode, pos as u64, length as u64)?;
        if moves { self.sync(path, file) } else { Ok(()) }
    }

    fn remove(&mut self, path: &str) -> Result<()> {
        self.models.remove(path);
        self.ledger.add(&Mark::Begun { path: path.into(), bytes: None, moves: false });
        self.volume.remove_file(path)
    }

    /// Makes the names before it durable too.
    fn commit(&mut self, gone: &[&str]) -> Result<()> {
        let path = "/beacon";
        if !self.models.contains_key(path) {
            self.begin(path, |_| {}, false);
        }
        let file = self.volume.open_file(path, read_write().create(true))?;
        let end = file.size();
        self.write(path, &file, end, 512)?;
        gone.iter().for_each(|path| self.ledger.add(&Mark::Named { path: (*path).into() }));
        Ok(())
    }
}

/// All kinds of changes, one after the other.
fn scenario(work: &mut Work<'_>, unit: usize) -> Result<()> {
    let (path, file) = ("/a", work.open("/a")?);
    let size = work.models[path].len();
    work.set_len(path, &file, size - 20 * unit - 77)?;
    work.sync(path, &file)?;
    work.fallocate(path, &file, Fallocate::Punch, 3 * unit + 100, 9 * unit)?;
    work.fallocate(path, &file, Fallocate::ZeroKeepSize, 20 * unit + 100, 9 * unit)?;
    work.fallocate(path, &file, Fallocate::KeepSize, 40 * unit, 8 * unit)?;
    work.sync(path, &file)?;
    work.fallocate(path, &file, Fallocate::Collapse, 4 * unit, 3 * unit)?;
    work.fallocate(path, &file, Fallocate::Insert, 8 * unit, 2 * unit)?;
    let size = work.models[path].len();
    work.begin(path, |model| model.resize(size + 3000, 0), false);
    file.prepare(size as u64 + 3000)?;
    work.write(path, &file, 700, 5000)?;
    work.set_len(path, &file, 1234)?;

    let path = "/d/new";
    work.begin(path, |_| {}, false);
    let file = work.volume.open_file(path, read_write().create_new(true))?;
    work.write(path, &file, 0, 9000)?;
    work.sync(path, &file)?;
    work.remove("/c")?;
    work.commit(&["/c"])?;
    let file = work.open("/d/b")?;
    work.remove("/d/b")?;
    work.commit(&["/d/b"])?;
    file.write_any_at(&patterned(5, 0, 3000), 0, WriteFlags::empty())?;
    drop(file);
    work.commit(&[])
}

fn volume_on(memory: &Arc<MemoryDevice>, fault: Option<Fault>, budget: u64) -> (Result<Volume>, FaultHandle) {
    let device = Arc::new(FaultDevice::new(memory.clone()));
    let handle = device.handle();
    if let Some(fault) = fault {
        handle.arm(fault);
    }
    let options = VolumeOptions::read_write().metadata_budget(budget);
    (Volume::open_device(device, options), handle)
}

fn is_typed(error: &Error) -> bool {
    matches!(
        error,
        Error::Io(_) | Error::MetadataIo { .. } | Error::Aborted(_) | Error::Journal(_) | Error::NoSpace
    )
}

/// Operations that change or sync. Once one of them reports an abort, all must.
fn probe(volume: &Volume, ledger: &mut Ledger) -> bool {
    for bytes in [Vec::new(), patterned(9, 0, 4096).to_vec()] {
        ledger.add(&Mark::Begun { path: "/probe".into(), bytes: Some(Arc::new(bytes)), moves: false });
    }
    let change = || {
        let file = volume.open_file("/probe", read_write().create(true))?;
        file.write_at_with(&patterned(9, 0, 4096), 0, WriteFlags::DSYNC)
    };
    if !matches!(change(), Err(Error::Aborted(_))) {
        return false;
    }
    let aborted = |done: Result<()>| assert!(matches!(done, Err(Error::Aborted(_))), "{done:?}");
    aborted(change().map(drop));
    aborted(volume.remove_file("/a"));
    if let Ok(file) = volume.open_file("/a", read_write()) {
        aborted(file.sync_all());
        aborted(file.sync_data());
        aborted(file.set_len(5));
        aborted(file.fallocate(Fallocate::Allocate, 0, 1 << 20));
    }
    true
}

/// A volume with three files in many pieces, and their contents.
fn prepared(layout: Layout) -> (Image, Scene) {
    let device = layout.image().device();
    let mut scene = Scene::new(open_rw(device.clone()), None, 5);
    plays::in_pieces(&mut scene, layout);
    scene.volume.clone().close().unwrap();
    (Image::of(&*device), scene)
}

struct After<'s> {
    ledger: Ledger,
    scratch: &'s Scratch,
}

impl After<'_> {
    /// As if the process had ended here. Data in the device's cache survives: for power cuts see `crash_named`.
    fn check(&self, memory: &Arc<MemoryDevice>, what: &str, number: u64) {
        let path = self.scratch.file("after.img");
        if number.is_multiple_of(6) {
            Image::of(&**memory).save(&path);
            let repaired = oracle::e2fsck(&path, &["-fy"]);
            assert!(repaired.status < 2, "{what}: {repaired:?}");
            oracle::e2fsck_clean(&path);
            let volume = open_rw(Image::load(&path).device());
            self.ledger.check(&volume).unwrap_or_else(|wrong| panic!("{what}: by e2fsck: {wrong}"));
        }
        let volume = open_rw(memory.clone());
        self.ledger.check(&volume).unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
        volume.close().unwrap();
        if number.is_multiple_of(2) {
            Image::of(&**memory).save(&path);
            oracle::e2fsck_clean(&path);
        }
    }
}

fn a_fault_at_any_operation(layout: Layout, budget: u64, step: u64) {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    within(Duration::from_secs(500), move || {
        let (image, mut scene) = prepared(layout);
        let clusters = layout == CLUSTERS;
        let models: BTreeMap<_, _> =
            std::mem::take(&mut scene.files).into_iter().map(|(path, made)| (path, made.bytes)).collect();
        let base: Vec<Mark> = models
            .iter()
            .flat_map(|(path, bytes)| {
                let begun =
                    Mark::Begun { path: path.clone(), bytes: Some(Arc::new(bytes.clone())), moves: false };
                [begun, Mark::Durable { path: path.clone(), range: 0..u64::MAX }]
            })
            .collect();
        let memory = || image.device_with(|options| (options.volatile_cache, options.fua) = (true, true));
        let run = |volume: &Volume, ledger: &mut Ledger| {
            let mut work = Work { volume, ledger, models: models.clone(), number: 1 << 50 };
            scenario(&mut work, layout.unit() as usize)
        };
        let (volume, handle) = volume_on(&memory(), None, budget);
        let volume = volume.unwrap();
        let before = handle.requests();
        run(&volume, &mut Ledger::default()).unwrap();
        volume.close().unwrap();
        let all = handle.requests() - before;
        assert!(all > 100, "{all} operations");
        let scratch = Scratch::new(64 << 20);
        let (mut failed, mut aborted, mut shown) = (0, 0, 0);
        for (errno, times) in FAULTS {
            for n in (1..=all).step_by(step as usize) {
                let memory = memory();
                let (volume, handle) = volume_on(&memory, None, budget);
                let volume = volume.unwrap();
                let action = FaultAction::Errno(errno);
                handle.arm(Fault { times, action, ..Fault::nth(FaultOn::Any, n) });
                let mut after = After { ledger: Ledger::new(base.iter(), clusters), scratch: &scratch };
                let outcome = run(&volume, &mut after.ledger);
                let what = format!("{layout:?}, operation {n}, {times} times {errno}: {outcome:?}");
                failed += u64::from(outcome.is_err());
                if let Err(error) = &outcome {
                    assert!(is_typed(error), "{what}");
                }
                let is_aborted = probe(&volume, &mut after.ledger);
                let closed = volume.close();
                assert!(!is_aborted || matches!(closed, Err(Error::Aborted(_))), "{what}: {closed:?}");
                aborted += u64::from(closed.is_err());
                if let Err(error) = &closed {
                    assert!(is_typed(error), "{what}: {error}");
                }
                shown += 1;
                after.check(&memory, &what, shown);
            }
        }
        println!("{layout:?}: {all} operations, {failed} failed, {aborted} aborted");
        assert!(failed > all / step && aborted > all / step / 2);
    });
}

#[test]
fn a_fault_under_changes_of_small_blocks_loses_nothing() {
    a_fault_at_any_operation(SMALL, 64 << 20, 1);
}

/// Metadata blocks are read again and again, also in the middle of changes.
#[test]
fn a_fault_under_changes_without_a_cache_loses_nothing() {
    a_fault_at_any_operation(LARGE, 4 * 4096, 3);
}

#[test]
fn a_fault_under_changes_of_clusters_loses_nothing() {
    a_fault_at_any_operation(CLUSTERS, 64 << 20, 3);
}

/// An open for writing that processes orphans fails at any operation; the next one does the rest.
#[test]
fn a_fault_while_orphans_are_processed_loses_nothing() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    within(Duration::from_secs(300), || {
        for layout in [SMALL, CLUSTERS] {
            let (image, scene) = prepared(layout);
            let device = image.device();
            let mut scene = Scene { volume: open_rw(device.clone()), ..scene };
            let files = std::mem::take(&mut scene.files);
            files.keys().for_each(|path| scene.adopt(path));
            plays::orphans(&mut scene, layout);
            let dirty = Image::of(&*device);
            let marks = scene.files.iter().flat_map(|(path, made)| {
                let bytes = Some(Arc::new(made.bytes.clone()));
                let begun = Mark::Begun { path: path.clone(), bytes, moves: false };
                [begun, Mark::Durable { path: path.clone(), range: 0..u64::MAX }]
            });
            let ledger = Ledger::new(marks.collect::<Vec<_>>().iter(), false);
            let scratch = Scratch::new(64 << 20);
            let after = After { ledger, scratch: &scratch };
            let (volume, handle) = volume_on(&dirty.device(), None, 64 << 20);
            volume.unwrap().close().unwrap();
            let (all, mut refused, mut shown) = (handle.requests(), 0, 0);
            for (errno, times) in FAULTS {
                for n in 1..=all {
                    let memory = dirty.device();
                    let fault =
                        Fault { times, action: FaultAction::Errno(errno), ..Fault::nth(FaultOn::Any, n) };
                    let (opened, _) = volume_on(&memory, Some(fault), 64 << 20);
                    let what = format!("{layout:?}, operation {n} of an open, {times} times {errno}");
                    match opened.and_then(Volume::close) {
                        Ok(()) => {}
                        Err(error) => {
                            assert!(is_typed(&error), "{what}: {error}");
                            refused += 1;
                        }
                    }
                    shown += 1;
                    after.check(&memory, &what, shown);
                }
            }
            println!("{layout:?}: {all} operations of an open, {refused} refused");
            assert!(refused > all);
        }
    });
}

/// A failed flush has lost data, and the system reports it only once. So every sync after a failed close must fail too.
#[test]
fn a_flush_of_a_close_that_fails_is_told_to_all_who_sync() {
    needs!(Need::Tool("mke2fs"));
    for features in ["has_journal", "^has_journal"] {
        let image = Image::load(VolumeBuilder::new(16 << 20).args(["-O", features]).build().path());
        let mut failed = 0;
        for nth in 1.. {
            let (volume, handle) =
                volume_on(&image.device_with(|options| options.volatile_cache = true), None, 64 << 20);
            let volume = volume.unwrap();
            let file = volume.open_file("/new", read_write().create(true)).unwrap();
            file.write_at(&patterned(1, 0, 4096), 0).unwrap();
            file.sync_all().unwrap();
            file.write_at(&patterned(2, 0, 4096), 0).unwrap();
            handle.arm(Fault::nth(FaultOn::Op(Op::Flush), nth));
            if volume.clone().close().is_ok() {
                break;
            }
            failed += 1;
            let synced = file.sync_data();
            assert!(matches!(synced, Err(Error::Aborted(_))), "{features}, flush {nth}: {synced:?}");
        }
        assert!(failed > 0, "{features}");
    }
}
