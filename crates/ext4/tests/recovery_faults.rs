//! Interrupted recovery, and hostile journals.

use crate::common;

use common::log::{Log, LogKind, Written, places};
use common::{Image, assert_same_bytes, assert_unchanged, open_ro, within};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use uext4::device::MemoryDevice;
use uext4::device::{Device, WriteDurability};
use uext4::{Error, RecoveryState, Volume, VolumeOptions};
use uext4_ondisk::jbd2::{LogChecksums, LogFormat};
use uext4_testkit::crash::{Options, assert_states};
use uext4_testkit::device::{CrashDevice, CrashOptions, Fault, FaultDevice, FaultOn};
use uext4_testkit::{Need, Rng, Scratch, VolumeBuilder, needs, oracle};

const BLOCK: usize = 1024;

/// A volume with an empty journal of 1024 blocks of 1 KiB.
fn base() -> Image {
    static BASE: LazyLock<Image> = LazyLock::new(|| {
        let volume = VolumeBuilder::new(6 << 20)
            .args(["-b", "1024", "-J", "size=1", "-O", "metadata_csum,64bit"])
            .build();
        Image::load(volume.path())
    });
    BASE.clone()
}

fn free(image: &Image, n: u64) -> u64 {
    (image.bytes.len() / BLOCK) as u64 - 40 + n
}

/// A few transactions that include a superblock, revokes and an error of the journal.
fn dirty(checksums: LogChecksums) -> Image {
    let mut image = base();
    let superblock = image.bytes[BLOCK..2 * BLOCK].to_vec();
    let mut log = Log::begin(&mut image, LogKind::new(checksums));
    let home = |n| free(log.image, n);
    let fill = |byte: u8| vec![byte; BLOCK];
    let first = [(home(0), fill(1)), (home(7), fill(2)), (1, superblock)];
    let second = [(home(0), fill(3)), (home(3), fill(4)), (home(4), fill(5))];
    let revokes = [home(7), home(11)];
    log.transaction(&first, &[]);
    log.transaction(&second, &revokes);
    log.superblock(|superblock| superblock.errno = -5);
    image
}

fn writable(device: Arc<dyn Device>) -> Result<Volume, Error> {
    Volume::open_device(device, VolumeOptions::read_write())
}

/// Fails every write and flush in turn, and crashes there: the next open gets the same result.
#[test]
fn a_recovery_that_fails_anywhere_is_done_again_with_the_same_result() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let image = dirty(LogChecksums::V3);
    let done = image.device();
    drop(writable(done.clone()).unwrap());
    let done = Image::of(&*done).without_lifetime();
    let mut failures = 0;
    for nth in 1.. {
        let below = image.device();
        let faulty = FaultDevice::new(below.clone());
        let handle = faulty.handle();
        handle.arm(Fault::nth(FaultOn::Changes, nth));
        let opened = writable(Arc::new(faulty));
        if handle.fired() == 0 {
            opened.unwrap();
            break;
        }
        failures += 1;
        let error = opened.map(drop).expect_err("no failure is swallowed");
        assert_eq!(error.errno(), 5, "{error}");
        // A read-only open in between sees the recovered state, without a write.
        let between = Image::of(&*below);
        let seen = open_ro(below.clone());
        for n in [0, 3, 4, 7] {
            let at = free(&image, n) as usize * BLOCK;
            let view = Image::of(&**seen.device());
            assert_eq!(view.bytes[at..at + BLOCK], done.bytes[at..at + BLOCK], "at the {nth}th change");
        }
        assert!(seen.superblock().state.names().contains(&"errors".into()));
        drop(seen);
        assert_unchanged(&between, &*below);
        drop(writable(below.clone()).unwrap());
        assert_same_bytes(&done.bytes, &Image::of(&*below).without_lifetime().bytes);
    }
    // At least home blocks, flush, log, flush, superblock, flush, log, flush.
    assert!(failures >= 8, "only {failures} changes");
}

/// The order of writes and flushes: flag and log are cleared only after their replacement is durable.
#[test]
fn nothing_is_given_up_before_its_replacement_is_durable() {
    needs!(Need::Tool("mke2fs"));
    let image = dirty(LogChecksums::V3);
    let journal = places(&base())[0];
    // The first flush makes earlier writes durable.
    for (nth, flush) in (1..).zip(["image", "home blocks", "log", "superblock", "errno"]) {
        let below = image.device();
        let faulty = FaultDevice::new(below.clone());
        faulty.handle().arm(Fault::nth(FaultOn::Op(uext4::device::Op::Flush), nth));
        writable(Arc::new(faulty)).map(drop).expect_err(flush);
        let left = Image::of(&*below);
        let start = journal as usize * BLOCK;
        let log_in_use = left.bytes[start + 28..start + 32] != [0; 4];
        let errno = left.bytes[start + 32..start + 36] != [0; 4];
        let flag = left.bytes[1024 + 0x60] & 4 != 0;
        let errors = left.bytes[1024 + 0x3a] & 2 != 0;
        let expected = match nth {
            1 | 2 => (true, true, true),
            3 => (false, true, true),
            4 => (false, false, true),
            _ => (false, false, false),
        };
        assert_eq!((log_in_use, flag, errno), expected, "when the flush after the {flush} failed");
        assert!(errors || flag, "the error state is there before the flag goes");
    }
}

/// The journal's recorded error goes into a superblock of two sectors, of which a power cut may write only one.
#[test]
fn a_power_cut_while_an_error_is_taken_over_leaves_a_volume() {
    needs!(Need::Tool("mke2fs"));
    let mut image = dirty(LogChecksums::V3);
    image.patch_superblock(|superblock| superblock[0x60] &= !4);
    let crash = CrashDevice::new(image.device(), CrashOptions::default()).unwrap();
    let handle = crash.handle();
    writable(Arc::new(crash)).unwrap().close().unwrap();
    assert_states(&handle.log().unwrap(), &Options::new("error-taken-over", 1), |state| {
        let volume = writable(state.device()).map_err(|error| error.to_string())?;
        let told = volume.superblock().state.names().contains(&"errors".into());
        if told { Ok(()) } else { Err("the error is lost".into()) }
    });
}

#[test]
fn a_recovered_volume_is_clean_for_e2fsck() {
    needs!(Need::Tool("mke2fs"), Need::Tool("e2fsck"));
    let mut image = base();
    let mut log = Log::begin(&mut image, LogKind::new(LogChecksums::V3));
    let blocks = [(free(log.image, 0), vec![1; BLOCK])];
    log.transaction(&blocks, &[]);
    let device = image.device();
    drop(writable(device.clone()).unwrap());
    let scratch = Scratch::new(16 << 20);
    Image::of(&*device).save(&scratch.file("volume.img"));
    oracle::e2fsck_clean(&scratch.file("volume.img"));
}

/// The image on a device, changed for one case and put back afterwards.
struct Bench {
    device: Arc<MemoryDevice>,
    image: Image,
}

impl Bench {
    fn new(image: Image) -> Bench {
        Bench { device: image.device(), image }
    }

    fn put(&self, from: &Image) {
        let mut buffer = common::aligned(4096);
        let parts = from.bytes.chunks(4096).zip(self.image.bytes.chunks(4096)).enumerate();
        for (index, (part, own)) in parts {
            if part != own {
                buffer.copy_from_slice(part);
                self.device.write_at(&buffer, index as u64 * 4096, WriteDurability::Cached).unwrap();
            }
        }
    }

    /// Opens the changed image read-only, and for writing on a copy.
    fn run(&self, changed: &Image, write: bool) {
        if write {
            typed(writable(changed.device()));
            return;
        }
        self.put(changed);
        typed(Volume::open_device(self.device.clone(), VolumeOptions::read_only()));
        assert_unchanged(changed, &*self.device);
        // Restore it.
        let mut buffer = common::aligned(4096);
        for (index, (part, own)) in changed.bytes.chunks(4096).zip(self.image.bytes.chunks(4096)).enumerate()
        {
            if part != own {
                buffer.copy_from_slice(own);
                self.device.write_at(&buffer, index as u64 * 4096, WriteDurability::Cached).unwrap();
            }
        }
    }
}

fn typed(opened: Result<Volume, Error>) {
    match opened {
        Ok(volume) => assert_ne!(volume.info().recovery.state, RecoveryState::NoJournal),
        Err(
            Error::Corrupt(_)
            | Error::CorruptInode { .. }
            | Error::Journal(_)
            | Error::Incompatible { .. }
            | Error::NeedsRecovery(_)
            | Error::TooSmall { .. }
            | Error::ReadOnly(_),
        ) => {}
        Err(error) => panic!("not an error of a damaged volume: {error:?}"),
    }
}

/// Updates all checksums of the log, so that a change is not just a checksum error.
fn repair(log: &mut Log<'_>, written: &[Written]) {
    let format: LogFormat = log.format;
    for transaction in written {
        for place in transaction.descriptors.iter().chain(&transaction.revokes) {
            format.seal_tail(log.block(*place)).unwrap();
        }
        format.seal_commit(log.block(transaction.commit)).unwrap();
    }
}

/// Seeded changes of every structure of the log, with checksums repaired: a result or a typed error, in bounded time.
#[test]
fn mutated_journals_are_answered_with_values_or_typed_errors() {
    needs!(Need::Tool("mke2fs"));
    within(Duration::from_secs(100), || {
        for checksums in [LogChecksums::None, LogChecksums::Transaction, LogChecksums::V2, LogChecksums::V3] {
            let bench = Bench::new(base());
            let mut rng = Rng::new(0xB10C).fork(checksums as u64);
            for round in 0..700 {
                let mut image = bench.image.clone();
                mutate(&mut image, checksums, &mut rng);
                bench.run(&image, round % 8 == 0);
            }
        }
    });
}

fn mutate(image: &mut Image, checksums: LogChecksums, rng: &mut Rng) {
    let kind = LogKind {
        wide: rng.chance(50),
        async_commit: rng.chance(30),
        fast_commit_blocks: 0,
        start: if rng.chance(50) { 0 } else { 1 },
        sequence: if rng.chance(50) { u32::MAX } else { 7 },
        ..LogKind::new(checksums)
    };
    let mut log = Log::begin(image, kind);
    let mut written = Vec::new();
    for _ in 0..1 + rng.below(4) {
        let blocks: Vec<_> = (0..rng.below(12))
            .map(|_| (free(log.image, rng.below(30)), vec![rng.below(256) as u8; BLOCK]))
            .collect();
        let revokes: Vec<_> = (0..rng.below(5)).map(|_| free(log.image, rng.below(30))).collect();
        written.push(log.transaction(&blocks, &revokes));
    }
    let transaction = &written[rng.below(written.len() as u64) as usize].clone();
    let mut targets = vec![transaction.commit, 0];
    targets.extend(transaction.descriptors.iter().chain(&transaction.revokes));
    for _ in 0..1 + rng.below(3) {
        let place = targets[rng.below(targets.len() as u64) as usize];
        let at = if rng.chance(80) { rng.below(96) } else { rng.below(BLOCK as u64) } as usize;
        let value = match rng.below(4) {
            0 => 0,
            1 => 0xFF,
            2 => 1 << rng.below(8),
            _ => rng.below(256) as u8,
        };
        let length = if rng.chance(50) { 1 } else { 4 };
        let end = (at + length).min(BLOCK);
        log.block(place)[at..end].fill(value);
    }
    if rng.chance(80) {
        repair(&mut log, &written);
        let block = log.block(0);
        let stored = uext4_ondisk::checksum::CSUM_INIT;
        let sum = [&block[..252], &[0_u8; 4][..], &block[256..1024]]
            .iter()
            .fold(stored, |sum, part| uext4_ondisk::checksum::csum(sum, part));
        if matches!(checksums, LogChecksums::V2 | LogChecksums::V3) {
            block[252..256].copy_from_slice(&[24, 16, 8, 0].map(|shift| (sum >> shift) as u8));
        }
    }
}
