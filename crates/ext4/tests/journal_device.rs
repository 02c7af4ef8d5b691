//! Volumes whose journal is on a device of its own: opened with it, without it, with another one; recovered; under
//! power cuts that meet both devices at once; and when either device fails.

use crate::common;
use crate::crash_named::layouts::{LARGE, Layout, SMALL};
use crate::crash_named::plays;
use crate::tree_changes::model::{Play, found};
use crate::tree_changes::without_contents;

use common::ledger::{Ledger, Mark};
use common::outside::{Pair, assert_clean, e2fsck, open, open_rw, pair};
use common::scene::Scene;
use common::{Image, patterned, read_all, read_only, read_write};
use std::sync::Arc;
use uext4::device::Device;
use uext4::{Caller, DeviceSpec, Error, RecoveryState, Volume, VolumeOptions, WriteFlags};
use uext4_testkit::crash::{Image as StateImage, Options, Report, State, assert_states};
use uext4_testkit::device::{CrashDevice, CrashHandle, CrashOptions, CrashPart};
use uext4_testkit::device::{Fault, FaultDevice, FaultOn};
use uext4_testkit::{KernelMount, LoopDevice, LoopOptions, Manifest, Need, Scratch, manifest, needs, oracle};

/// Offsets in the superblock of a log.
const USERS: usize = 0x40;
const USER: usize = 0x100;

fn small() -> Pair {
    pair(8 << 20, 1100 << 10, 1024, "")
}

/// A file, durable, and the devices as they are then.
fn dirty(pair: &Pair) -> Pair {
    let (volume, journal) = (pair.volume.device(), pair.journal.device());
    let opened = open_rw(volume.clone(), journal.clone());
    let file = opened.open_file("/kept", read_write().create_new(true)).unwrap();
    file.write_any_at(&patterned(3, 0, 10_000), 0, WriteFlags::SYNC).unwrap();
    let crashed = Pair::of(&*volume, &*journal);
    opened.close().unwrap();
    crashed
}

fn assert_kept(volume: &Volume) {
    assert_eq!(read_all(&volume.open_file("/kept", read_only()).unwrap()), &*patterned(3, 0, 10_000));
}

fn refused(opened: uext4::Result<Volume>, words: &[&str]) {
    let error = opened.map(drop).unwrap_err();
    assert!(matches!(error, Error::ExternalJournal(_)), "{error:?}");
    assert_eq!(error.errno(), libc::ENXIO);
    for word in words {
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

#[test]
fn a_volume_with_its_journal_outside_is_made_changed_and_sound() {
    needs!(Need::Tool("e2fsck"), Need::Tool("dumpe2fs"));
    for (block, features) in
        [(1024, ""), (2048, "^metadata_csum,^64bit"), (4096, "orphan_file"), (65_536, "fast_commit")]
    {
        let log = 1100 * u64::from(block);
        let pair = pair(u64::from(block) << 13, log, block, features);
        let (volume, journal) = (pair.volume.device(), pair.journal.device());
        let opened = open_rw(volume.clone(), journal.clone());
        opened.create_dir("/d", 0o755, &Caller::root()).unwrap();
        for number in 0..40 {
            let path = format!("/d/{number}");
            let file = opened.open_file(&path, read_write().create_new(true)).unwrap();
            file.write_any_at(&patterned(number, 0, 3000), 0, WriteFlags::DSYNC).unwrap();
        }
        opened.close().unwrap();
        let scratch = Scratch::new(pair.volume.bytes.len() as u64 + log);
        let (at, log_at) = Pair::of(&*volume, &*journal).save(&scratch);
        assert_clean(&at, &log_at);
        let log = oracle::dumpe2fs(&log_at, &["-h"]);
        assert!(log.contains("Journal users:") && log.contains("Journal start:            0"), "{log}");
        // It needs no journal to be read.
        let opened = common::open_ro(volume);
        for number in 0..40 {
            let file = opened.open_file(format!("/d/{number}"), read_only()).unwrap();
            assert_eq!(read_all(&file), &*patterned(number, 0, 3000));
        }
        assert!(opened.info().journal.is_none());
    }
}

#[test]
fn a_log_outside_is_replayed_in_memory_and_onto_the_volume() {
    needs!(Need::Tool("e2fsck"));
    for block in [1024, 4096] {
        let dirty = dirty(&pair(u64::from(block) << 13, 1100 * u64::from(block), block, ""));
        refused(
            Volume::open_device(dirty.volume.device(), VolumeOptions::read_only()),
            &["external journal (UUID", "--journal"],
        );
        let (volume, journal) = (dirty.volume.device(), dirty.journal.device());
        let opened = open(volume.clone(), journal.clone(), VolumeOptions::read_only()).unwrap();
        assert_eq!(opened.recovery().state, RecoveryState::Overlay);
        assert_kept(&opened);
        // What an open for writing would do is tried in memory.
        assert_eq!(common::explained_refusal(&opened, "/kept"), None);
        drop(opened);
        let unchanged = Pair::of(&*volume, &*journal);
        assert!(unchanged.volume == dirty.volume && unchanged.journal == dirty.journal);
        let opened = open_rw(volume.clone(), journal.clone());
        assert_eq!(opened.recovery().state, RecoveryState::Replayed);
        assert_kept(&opened);
        opened.close().unwrap();
        let scratch = Scratch::new(2 * dirty.volume.bytes.len() as u64);
        let (at, log_at) = Pair::of(&*volume, &*journal).save(&scratch);
        assert_clean(&at, &log_at);
        // e2fsck replays it as well.
        let (at, log_at) = dirty.save(&scratch);
        assert!(e2fsck(&at, &log_at, "-y").status <= 1);
        assert_clean(&at, &log_at);
        assert_kept(&common::open_ro(Image::load(&at).device()));
    }
}

#[test]
fn other_devices_are_refused_by_name() {
    let (ours, other) = (small(), small());
    let write = VolumeOptions::read_write;
    let at = |journal: &Image, options: VolumeOptions| open(ours.volume.device(), journal.device(), options);
    refused(at(&other.journal, write()), &["none of those named", "another journal (UUID"]);
    refused(at(&ours.volume, write()), &["a volume, no journal device"]);
    refused(at(&Image { bytes: vec![0; 1 << 20] }, write()), &["no journal device: "]);
    refused(at(&Image { bytes: vec![0; 1024] }, write()), &["too short"]);
    let short = Image { bytes: ours.journal.bytes[..1 << 19].to_vec() };
    refused(at(&short, write()), &["on a device of only"]);
    let log = 2 * 1024;
    let changed = |change: &dyn Fn(&mut [u8])| {
        let mut journal = ours.journal.clone();
        change(&mut journal.bytes[log..log + 1024]);
        journal
    };
    refused(at(&changed(&|log| log[USER] ^= 1), write()), &["is used by another volume (UUID"]);
    refused(at(&changed(&|log| log[USERS + 3] = 0), write()), &["is used by no volume"]);
    refused(at(&changed(&|log| log[0x30] ^= 1), write()), &["the log on", "has another UUID"]);
    let several = at(&changed(&|log| log[USERS + 3] = 2), write()).map(drop).unwrap_err();
    assert!(several.to_string().contains("several users"), "{several}");
    let early = at(&changed(&|log| log[0x17] = 2), write()).map(drop).unwrap_err();
    assert!(early.to_string().contains("s_first"), "{early}");
    let damaged = at(&changed(&|log| log[0] = 0), write()).map(drop).unwrap_err();
    assert!(damaged.to_string().contains("journal"), "{damaged}");
    // Each volume takes its own journal, whatever the order of the options.
    for (first, second) in [(&ours, &other), (&other, &ours)] {
        let options = write().journal_device(first.journal.device()).journal_device(second.journal.device());
        for pair in [&ours, &other] {
            Volume::open_device(pair.volume.device(), options.clone()).unwrap().close().unwrap();
        }
    }
    // A journal is no volume.
    let error = Volume::open_device(ours.journal.device(), VolumeOptions::read_only()).map(drop).unwrap_err();
    assert!(error.to_string().contains("journal_dev"), "{error}");
    // Volumes with their journal inside do not care.
    let inside = SMALL.image();
    let options = write().journal_device(other.journal.device());
    Volume::open_device(inside.device(), options).unwrap().close().unwrap();
}

#[test]
fn a_journal_is_claimed_with_its_volume() {
    let pair = small();
    let scratch = Scratch::new(64 << 20);
    let (at, log_at) = pair.save(&scratch);
    let copy = scratch.file("copy.img");
    pair.volume.save(&copy);
    let options = || VolumeOptions::read_write().journal(DeviceSpec::file(&log_at));
    let first = Volume::open(&*at, options()).unwrap();
    let error = Volume::open(&*copy, options()).map(drop).unwrap_err();
    assert!(matches!(&error, Error::InUse(by) if by.contains("journal.img")), "{error}");
    let reading = VolumeOptions::read_only().journal(DeviceSpec::file(&log_at));
    let error = Volume::open(&*copy, reading).map(drop).unwrap_err();
    assert!(matches!(&error, Error::InUse(_)), "{error}");
    first.close().unwrap();
    Volume::open(&*copy, options()).unwrap().close().unwrap();
    let missing = VolumeOptions::read_write().journal(DeviceSpec::file(scratch.file("missing")));
    let error = Volume::open(&*copy, missing).map(drop).unwrap_err();
    assert_eq!(error.errno(), libc::ENOENT, "{error}");
}

#[test]
fn a_used_journal_is_not_given_to_a_new_volume() {
    use uext4::mkfs::{self, Defaults, Options};
    let (pair, volume) = (small(), small().volume);
    let options = |block_size| {
        let mut options = Options::new(Defaults::Upstream);
        (options.force, options.block_size) = (true, block_size);
        options
    };
    let device = volume.device();
    let give = |options: &Options| mkfs::format_with_journal(&*device, &*pair.journal.device(), 0, options);
    let error = give(&options(None)).unwrap_err();
    assert!(matches!(error, mkfs::Error::Occupied(_)), "{error}");
    let error = give(&options(Some(4096))).unwrap_err();
    assert!(error.is_usage(), "{error}");
    let error = mkfs::format(&*device, &options(None).features("journal_dev").unwrap()).unwrap_err();
    assert!(error.to_string().contains("journal_dev"), "{error}");
    let tiny = Image { bytes: vec![0; 1 << 20] }.device();
    let error = mkfs::format_journal(&*tiny, &options(Some(1024))).unwrap_err();
    assert!(matches!(error, mkfs::Error::TooSmall { .. }), "{error}");
    assert!(Image::of(&*device) == volume);
    let error = mkfs::format_journal(&*pair.journal.device(), &Options::new(Defaults::Upstream)).unwrap_err();
    assert!(error.to_string().contains("journal of a volume"), "{error}");
}

/// A volume and its journal on one recording device, in two parts with a cache each.
struct Recorded {
    whole: Arc<CrashDevice>,
    split: u64,
}

impl Recorded {
    fn new(pair: &Pair, fua: bool) -> Recorded {
        let bytes = [&pair.volume.bytes[..], &pair.journal.bytes].concat();
        let options = CrashOptions { fua, ..CrashOptions::default() };
        let whole = Arc::new(CrashDevice::new(Image { bytes }.device(), options).unwrap());
        Recorded { whole, split: pair.volume.bytes.len() as u64 }
    }

    fn open(&self) -> Volume {
        let end = self.whole.geometry().size;
        let volume = CrashPart::new(&self.whole, 0, self.split).unwrap();
        open_rw(volume, CrashPart::new(&self.whole, self.split, end - self.split).unwrap())
    }

    fn handle(&self) -> CrashHandle {
        self.whole.handle()
    }

    fn states(
        &self,
        options: &Options,
        mut check: impl FnMut(&State<'_>, &Volume) -> Result<(), String>,
    ) -> Report {
        let log = self.handle().log().unwrap();
        let scratch = Scratch::new(4 * log.base.len() as u64);
        let mut shown = 0;
        let report = assert_states(&log, options, |state| {
            shown += 1;
            let both = split(state.image(), self.split);
            let (volume, journal) = (both.volume.device(), both.journal.device());
            let opened = open_rw(volume.clone(), journal.clone());
            check(state, &opened)?;
            opened.close().map_err(|error| error.to_string())?;
            if shown % 16 != 1 {
                return Ok(());
            }
            let (at, log_at) = Pair::of(&*volume, &*journal).save(&scratch);
            assert_clean(&at, &log_at);
            let (at, log_at) = both.save(&scratch);
            let repaired = e2fsck(&at, &log_at, "-y");
            if repaired.status > 1 {
                return Err(format!("e2fsck: {repaired:?}"));
            }
            assert_clean(&at, &log_at);
            let opened = Pair { volume: Image::load(&at), journal: Image::load(&log_at) }.open_rw();
            check(state, &opened).map_err(|wrong| format!("recovered by e2fsck: {wrong}"))?;
            opened.close().map_err(|error| error.to_string())
        });
        println!("{}: {report}", options.name);
        report
    }
}

fn split(whole: &StateImage, at: u64) -> Pair {
    let mut volume = whole.bytes();
    let journal = volume.split_off(at as usize);
    Pair { volume: Image { bytes: volume }, journal: Image { bytes: journal } }
}

/// Files are written, cut and removed; the data of each is looked at, so that a commit that overtakes its data shows.
fn cut_files(name: &'static str, layout: Layout, fua: bool, during: &[fn(&mut Scene, Layout)]) {
    let block = if layout == SMALL { 1024 } else { 4096 };
    let pair = pair(u64::from(block) << 13, 1100 * u64::from(block), block, "");
    cut_files_of(name, layout, &pair, fua, during);
}

fn cut_files_of(
    name: &'static str,
    layout: Layout,
    pair: &Pair,
    fua: bool,
    during: &[fn(&mut Scene, Layout)],
) {
    needs!(Need::Tool("e2fsck"));
    let options = Options::new(name, 1).at_most(160);
    let (volume, journal) = (pair.volume.device(), pair.journal.device());
    let mut scene = Scene::new(open_rw(volume.clone(), journal.clone()), None, options.seed);
    scene.volume.create_dir("/d", 0o755, &Caller::root()).unwrap();
    plays::two_files(&mut scene, layout);
    scene.volume.clone().close().unwrap();
    let recorded = Recorded::new(&Pair::of(&*volume, &*journal), fua);
    let log = recorded.handle();
    let mut scene = scene.reopened(recorded.open(), Arc::new(move |mark| log.mark(mark)));
    during.iter().for_each(|play| play(&mut scene, layout));
    scene.check();
    let ledger = |state: &State<'_>| Ledger::new(scene.base.iter().chain(state.marks::<Mark>()), false);
    let report = recorded.states(&options, |state, volume| ledger(state).check(volume));
    assert!(options.only.is_some() || report.images > 20, "{report}");
}

#[test]
fn power_cut_of_both_devices_while_files_change() {
    cut_files("journal_outside", SMALL, true, &[plays::append, plays::append_durable, plays::append_bytes]);
}

#[test]
fn power_cut_of_both_devices_without_fua() {
    cut_files("journal_outside_flushed", LARGE, false, &[plays::append, plays::append_durable]);
}

/// Data goes through the log on the other device, and usage is counted.
#[test]
fn power_cut_of_both_devices_with_journaled_data_and_quota() {
    let mut pair = pair(8 << 20, 1100 << 10, 1024, "quota");
    // s_default_mount_opts: data=journal
    pair.volume.set_bits(0x100, 0x20);
    cut_files_of("journal_outside_quota", SMALL, &pair, true, &[plays::append_durable, plays::everything]);
}

#[test]
fn power_cut_of_both_devices_while_a_tree_changes() {
    needs!(Need::Tool("e2fsck"));
    let options = Options::new("tree_journal_outside", 1).at_most(160);
    let recorded = Recorded::new(&small(), true);
    let handle = recorded.handle();
    let mut play = Play::on(recorded.open(), options.seed);
    let beacon = play.volume.open_file("/beacon", read_write().create_new(true)).unwrap();
    play.crashes();
    let mut trees: Vec<Manifest> = vec![without_contents(&play.expected())];
    let mut durable = 0;
    for step in 0..60 {
        handle.mark((trees.len(), durable));
        play.step();
        trees.push(without_contents(&play.expected()));
        if step % 7 == 6 {
            beacon.write_any_at(b"on", step as u64, WriteFlags::DSYNC).unwrap();
            durable = trees.len() - 1;
            handle.mark((trees.len(), durable));
        }
    }
    let report = recorded.states(&options, |state, volume| {
        let (made, durable) = state.marks::<(usize, usize)>().last().copied().unwrap_or((1, 0));
        let mut tree = without_contents(&found(volume));
        tree.retain(|path, _| path != b"/beacon");
        manifest::is_one_of(&trees[durable..=made.min(trees.len() - 1)], &tree)
    });
    assert!(options.only.is_some() || report.images > 20, "{report}");
    drop(beacon);
    play.end_uses();
    play.volume.close().unwrap();
}

/// The power goes while a log is replayed onto the volume.
#[test]
fn power_cut_of_both_devices_during_recovery() {
    needs!(Need::Tool("e2fsck"));
    let options = Options::new("recovery_journal_outside", 1).at_most(200);
    let recorded = Recorded::new(&dirty(&small()), true);
    recorded.open().close().unwrap();
    let report = recorded.states(&options, |_, volume| {
        let file = volume.open_file("/kept", read_only()).map_err(|error| error.to_string())?;
        let same = read_all(&file) == *patterned(3, 0, 10_000);
        if same { Ok(()) } else { Err("another file".into()) }
    });
    assert!(options.only.is_some() || report.images > 20, "{report}");
}

/// Writes and flushes of either device fail, one after another.
#[test]
fn a_failure_of_either_device_aborts_and_loses_nothing() {
    needs!(Need::Tool("e2fsck"));
    let base = small();
    let mut aborted = 0;
    for on_journal in [false, true] {
        for nth in 1.. {
            let devices = [base.volume.device(), base.journal.device()];
            let faulty = Arc::new(FaultDevice::new(devices[usize::from(on_journal)].clone()));
            let handle = faulty.handle();
            let volume = match on_journal {
                false => open_rw(faulty, devices[1].clone()),
                true => open_rw(devices[0].clone(), faulty),
            };
            handle.arm(Fault::nth(FaultOn::Changes, nth));
            let mut durable = 0;
            let outcome = (0..6u64).try_for_each(|number| {
                let file = volume.open_file(format!("/{number}"), read_write().create_new(true))?;
                file.write_any_at(&patterned(number, 0, 5000), 0, WriteFlags::SYNC)?;
                durable = number + 1;
                Ok::<_, Error>(())
            });
            let closed = volume.close();
            let fired = handle.fired() > 0;
            aborted += u64::from(outcome.is_err() || closed.is_err());
            handle.clear();
            let [volume, journal] = &devices;
            let opened = open_rw(volume.clone(), journal.clone());
            for number in 0..durable {
                let file = opened.open_file(format!("/{number}"), read_only()).unwrap();
                assert_eq!(read_all(&file), &*patterned(number, 0, 5000), "{nth}");
            }
            opened.close().unwrap();
            if nth % 8 == 1 {
                let scratch = Scratch::new(64 << 20);
                let (at, log_at) = Pair::of(&**volume, &**journal).save(&scratch);
                assert_clean(&at, &log_at);
            }
            if !fired {
                break;
            }
        }
    }
    assert!(aborted > 20, "{aborted}");
}

/// mke2fs makes both, the kernel and uext4 take turns, and each finds what the other left, dirty or clean.
#[test]
fn root_the_kernel_and_uext4_share_a_journal_device() {
    needs!(Need::Loop, Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    for (block, features) in [("1024", "^64bit"), ("4096", "metadata_csum,64bit"), ("4096", "^metadata_csum")]
    {
        let scratch = Scratch::new(192 << 20);
        let (at, log_at) = (scratch.sparse_file("v", 32 << 20), scratch.sparse_file("j", 8 << 20));
        oracle::mke2fs(&log_at, &["-b", block, "-O", "journal_dev"]);
        let attach = || LoopDevice::attach(&log_at, LoopOptions::default());
        let attached = attach();
        let device = format!("device={}", attached.path().display());
        oracle::mke2fs(&at, &["-b", block, "-J", &device, "-O", features]);
        let mount = |journal: &LoopDevice| {
            let options = format!("journal_path={}", journal.path().display());
            KernelMount::image(&at, LoopOptions::default(), &options)
        };
        let mounted = mount(&attached);
        std::fs::create_dir(mounted.path().join("kernel")).unwrap();
        std::fs::write(mounted.path().join("kernel/file"), &*patterned(1, 0, 70_000)).unwrap();
        oracle::sync(mounted.path());
        // As after a crash: its log is not empty.
        std::fs::remove_dir_all(mounted.path().join("lost+found")).unwrap();
        std::fs::File::open(mounted.path()).unwrap().sync_all().unwrap();
        let crashed = Pair { volume: Image::load(&at), journal: Image::load(&log_at) };
        mounted.unmount();
        drop(attached);
        let ours = crashed.open_rw();
        assert_eq!(ours.recovery().state, RecoveryState::Replayed);
        assert_eq!(
            read_all(&ours.open_file("/kernel/file", read_only()).unwrap()),
            &*patterned(1, 0, 70_000)
        );
        assert!(ours.metadata("/lost+found").is_err());
        ours.close().unwrap();
        // The kernel recovers what we leave behind.
        let options = VolumeOptions::read_write().journal(DeviceSpec::file(&log_at));
        let ours = Volume::open(&*at, options).unwrap();
        ours.create_dir("/ours", 0o755, &Caller::root()).unwrap();
        let file = ours.open_file("/ours/file", read_write().create_new(true)).unwrap();
        file.write_any_at(&patterned(2, 0, 30_000), 0, WriteFlags::SYNC).unwrap();
        let (volume, log) = (std::fs::read(&at).unwrap(), std::fs::read(&log_at).unwrap());
        drop(file);
        ours.close().unwrap();
        std::fs::write(&at, volume).unwrap();
        std::fs::write(&log_at, log).unwrap();
        let attached = attach();
        let mounted = mount(&attached);
        assert_eq!(std::fs::read(mounted.path().join("ours/file")).unwrap(), &*patterned(2, 0, 30_000));
        std::fs::remove_dir_all(mounted.path().join("kernel")).unwrap();
        mounted.unmount();
        drop(attached);
        assert_clean(&at, &log_at);
        let ours = common::open_ro(Image::load(&at).device());
        assert!(ours.metadata("/kernel").is_err());
        assert_eq!(read_all(&ours.open_file("/ours/file", read_only()).unwrap()), &*patterned(2, 0, 30_000));
    }
}
