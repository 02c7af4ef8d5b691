//! The targets: each takes an image and must come back, with whatever it found.

use uext4::device::CountingDevice;
use uext4::{File, OpenOptions, Piece, State, Volume, VolumeOptions, WriteFlags};
use uext4_check::{CheckOptions, check_device};
use uext4_ondisk::ext4::GroupDescriptor;
use uext4_testkit::mutate::Mutated;

use crate::images;
use crate::operate::operate;
use crate::typed::typed;
use crate::walk::walk;

/// One target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Opens read-only, walks and reads everything.
    OpenWalkRead,
    /// Opens a volume whose log is not empty, read-only and for writing.
    Recovery,
    /// Overwrites files: metadata must stay as it was.
    Overwrite,
    /// Checks the volume: findings instead of failure.
    Check,
    /// Changes the volume: a sound one stays sound.
    Operate,
}

/// All targets.
pub const TARGETS: [Target; 5] =
    [Target::OpenWalkRead, Target::Recovery, Target::Overwrite, Target::Check, Target::Operate];

impl Target {
    /// The name of its fuzz target.
    pub fn name(self) -> &'static str {
        match self {
            Target::OpenWalkRead => "open_walk_read",
            Target::Recovery => "recovery",
            Target::Overwrite => "overwrite",
            Target::Check => "check",
            Target::Operate => "operate",
        }
    }

    /// The base images that are worth its time.
    pub fn images(self) -> Vec<usize> {
        let named = |prefix: &str| {
            let index = |(index, name): (usize, &&str)| name.starts_with(prefix).then_some(index);
            images::NAMES.iter().enumerate().filter_map(index).collect::<Vec<_>>()
        };
        match self {
            // Those with a journal: nothing is allocated on others.
            Target::Recovery | Target::Operate => [named("dirty"), named("ext3"), named("journal")].concat(),
            _ => (0..images::NAMES.len()).collect(),
        }
    }

    /// Runs it on what a fuzzer made: the first byte names a base image, the rest is the script.
    ///
    /// # Panics
    /// If the library broke a promise or a budget.
    pub fn fuzz(self, input: &[u8]) {
        let (_, mutated) = self.image_of(input);
        if let Err(what) = crate::budget::run(self, &mutated.image) {
            panic!("{what}\n{}", mutated.edits.join("\n"));
        }
    }

    /// The base image and the changed image that a fuzzer's input stands for.
    pub fn image_of(self, input: &[u8]) -> (usize, Mutated) {
        let (&first, script) = input.split_first().unwrap_or((&0, &[]));
        let images = self.images();
        let index = images[usize::from(first) % images.len()];
        (index, images::base(index).mutate(script))
    }

    /// Runs it. Returns how many inodes could be read or files overwritten.
    ///
    /// # Panics
    /// If the library broke a promise.
    pub fn run(self, image: &[u8]) -> usize {
        match self {
            Target::OpenWalkRead => open_walk_read(image),
            Target::Recovery => recovery(image),
            Target::Overwrite => overwrite(image),
            Target::Check => check(image),
            Target::Operate => operate(image),
        }
    }
}

/// Read-only, whoever is said to have the volume: more of it is reached.
fn looking() -> VolumeOptions {
    VolumeOptions::read_only().force(true)
}

/// Opens read-only, walks and reads everything. Nothing is written.
pub fn open_walk_read(image: &[u8]) -> usize {
    let device = images::device(image);
    let counting = CountingDevice::new(device);
    let counters = counting.counters();
    let opened = Volume::open_device(std::sync::Arc::new(counting), looking());
    let readable = typed(opened).map_or(0, |volume| walk(&volume));
    let counts = counters.get();
    assert_eq!(counts.writes + counts.discards, 0, "a volume opened read-only is not written");
    readable
}

/// Opens a volume whose log may hold transactions: read-only, where nothing may be written, then for writing and once
/// more, when a recovery that succeeded must have left nothing to recover.
pub fn recovery(image: &[u8]) -> usize {
    let readable = open_walk_read(image);
    let device = images::device(image);
    let Some(volume) = typed(Volume::open_device(device.clone(), VolumeOptions::read_write())) else {
        return readable;
    };
    let recovered = walk(&volume);
    drop(volume);
    let again = typed(Volume::open_device(device, looking()));
    let again = again.expect("what could be opened for writing can be opened again");
    assert_eq!(walk(&again), recovered, "a recovered volume reads the same when it is opened again");
    recovered
}

/// Checks the volume. The same volume has the same findings every time, and nothing is written.
pub fn check(image: &[u8]) -> usize {
    let counting = CountingDevice::new(images::device(image));
    let counters = counting.counters();
    let device = std::sync::Arc::new(counting);
    let options = CheckOptions::new().threads(1).contents(true);
    let run = || check_device(device.clone(), looking(), &options, &mut |_| ());
    let found = match (typed(run()), typed(run())) {
        (Some(one), Some(two)) => {
            assert_eq!(format!("{one:?}"), format!("{two:?}"), "a check repeats itself");
            one.findings.len()
        }
        (None, None) => 0,
        _ => panic!("a check fails now and then"),
    };
    let counts = counters.get();
    assert_eq!(counts.writes + counts.discards, 0, "a check writes nothing");
    found
}

/// What overwrites write.
const INK: u8 = 0xa5;

/// Overwrites a little of every file. The structures that the superblock and the descriptors name stay as they were,
/// whatever the maps of files say.
pub fn overwrite(image: &[u8]) -> usize {
    let device = images::device(image);
    let Some(volume) = typed(Volume::open_device(device.clone(), VolumeOptions::read_write())) else {
        return 0;
    };
    // Orphans are processed by the open: brought home, it is no part of what follows.
    if volume.clone().close().is_err() {
        return 0;
    }
    let fixed = fixed_metadata(&volume);
    let before = images::bytes_of(&*device);
    let mut written = 0;
    let inodes = volume.superblock().geometry.inodes_count().min(256);
    for ino in (1..=inodes).map(uext4::Ino) {
        let options = OpenOptions::new().read(true).write(true);
        let Some(file) = typed(volume.open_inode(ino, options)) else { continue };
        let size = file.size();
        for pos in [0, size / 2, size.saturating_sub(700)] {
            let length = size.saturating_sub(pos).min(700) as usize;
            if length > 0 && is_written(&file, pos, length as u64) {
                let flags = if pos == 0 { WriteFlags::DSYNC } else { WriteFlags::empty() };
                written += usize::from(typed(file.write_any_at(&[INK; 700][..length], pos, flags)).is_some());
            }
        }
        typed(file.sync_all());
    }
    drop(volume);
    let after = images::bytes_of(&*device);
    for (start, end) in fixed {
        let (start, end) = (start.min(after.len()), end.min(after.len()));
        // Times of what was overwritten are metadata, and so is the log: only data must not be there.
        let data = [INK; 16];
        let inked = |bytes: &[u8], at: usize| bytes[at..end].starts_with(&data);
        let changed = (start..end).find(|&at| inked(&after, at) && !inked(&before, at));
        assert_eq!(changed, None, "metadata at bytes {start}..{end} was overwritten");
    }
    written
}

/// Whether writing there changes no map.
fn is_written(file: &File, pos: u64, length: u64) -> bool {
    let meets = |piece: &Piece| piece.logical < pos + length && pos < piece.end();
    let pieces =
        file.map().take_while(|piece| piece.as_ref().is_ok_and(|piece| piece.logical < pos + length));
    let states = pieces.flatten().filter(meets).map(|piece| piece.state);
    states.fold(None, |all, state| Some(all.unwrap_or(true) && state == State::Written)) == Some(true)
}

/// Byte ranges of superblock, descriptors, bitmaps and inode tables, as the library itself understands them: the
/// statement is that it keeps to that, and its understanding is judged by other tests.
fn fixed_metadata(volume: &Volume) -> Vec<(usize, usize)> {
    let superblock = volume.superblock();
    let geometry = &superblock.geometry;
    let block = geometry.block_size() as usize;
    let mut ranges = vec![(1024, 2048)];
    let mut add = |first: u64, blocks: u64| {
        let start = (first as usize).saturating_mul(block);
        ranges.push((start, start.saturating_add((blocks as usize).saturating_mul(block))));
    };
    for group in geometry.groups() {
        if let Some((first, _)) = geometry.descriptor_position(group) {
            add(first.get(), 1);
        }
    }
    let bytes = images::bytes_of(&**volume.device());
    for group in geometry.groups() {
        let Some((first, offset)) = geometry.descriptor_position(group) else { continue };
        let at = first.get() as usize * block + offset as usize;
        let size = usize::from(geometry.desc_size());
        let Some(raw) = bytes.get(at..at + size) else { continue };
        let descriptor =
            GroupDescriptor::decode(raw, group, superblock).expect("the volume was opened with it");
        add(descriptor.block_bitmap.get(), 1);
        add(descriptor.inode_bitmap.get(), 1);
        add(descriptor.inode_table.get(), u64::from(geometry.inode_table_blocks()));
    }
    ranges
}
