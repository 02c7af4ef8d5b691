//! The check of damaged and hostile volumes: no panic, bounded time, bounded memory. This binary counts its
//! allocations.

use crate::common;

use common::Image;
use common::checked::is_newer;
use common::hostile::{BLOCK, Layout, bare, guarded, ino_of, metadata_blocks};
use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use uext4::VolumeOptions;
use uext4::device::Device;
use uext4_check::{CheckOptions, Report, check_device};
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{GroupDescriptor, update_inode_checksum};
use uext4_testkit::requirement::Need;
use uext4_testkit::{Rng, Scratch, VolumeBuilder, needs, oracle};

/// Longest time of one check. Tests are hardly optimised and the machine may be busy.
const CASE: Duration = Duration::from_secs(10);
/// Most memory of one check, its transfer buffers (2 MiB a thread and pass, mapped) not counted.
const MEMORY: usize = 60 << 20;

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged; the counters are only told of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Memory) -> *mut u8 {
        let held = HELD.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(held, Ordering::Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Memory) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the pointer came from the system allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Checks within the bounds. `None` if the volume is refused by its features or size.
#[track_caller]
fn bounded(what: &str, device: Arc<dyn Device>, memory: usize) -> Option<Report> {
    let before = HELD.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let options = CheckOptions::new().threads(2);
    let report = match check_device(device, VolumeOptions::read_only(), &options, &mut |_| {}) {
        Ok(report) => Some(report),
        Err(
            uext4::Error::Incompatible { .. }
            | uext4::Error::NeedsRecovery(_)
            | uext4::Error::NotExt4(_)
            | uext4::Error::TooSmall { .. },
        ) => None,
        Err(error) => panic!("{what}: {error:?}"),
    };
    let (took, used) = (start.elapsed(), PEAK.load(Ordering::Relaxed).saturating_sub(before));
    assert!(took < CASE, "{what}: {took:?}");
    assert!(used < memory, "{what}: {} KiB", used >> 10);
    report
}

/// Values that arithmetic does not like.
const NASTY: [u32; 12] =
    [0, 1, 2, 3, 0x7f, 0xff, 0x7fff, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

fn mutate(image: &mut Image, metadata: &[usize], layout: &Layout, rng: &mut Rng) {
    let most = if rng.chance(50) { 2 } else { 10 };
    for _ in 0..1 + rng.below(most) {
        let block = match rng.below(8) {
            0 => 1,
            1 => 2,
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
    }
}

/// Makes checksums of superblock, descriptors and inodes right again.
fn repair(image: &mut Image, layout: &Layout) {
    image.patch_superblock(|_| {});
    let mut lenient = layout.superblock.clone();
    lenient.features.ro_compat &= !uext4_ondisk::ext4::RoCompat::METADATA_CSUM;
    for (group, at) in layout.superblock.geometry.groups().zip(&layout.descriptor_bytes) {
        if let Ok(descriptor) = GroupDescriptor::decode(&image.bytes[*at..], group, &lenient) {
            // What does not fit keeps its wrong checksum.
            let _narrow = descriptor.encode(&mut image.bytes[*at..], group, &layout.superblock);
        }
    }
    for number in 1..=layout.superblock.geometry.inodes_per_group() {
        let start = layout.inode(Ino(number));
        let record = &mut image.bytes[start..start + usize::from(layout.superblock.geometry.inode_size())];
        if record.iter().any(|byte| *byte != 0) {
            let _not_encodable = update_inode_checksum(record, Ino(number), &layout.superblock);
        }
    }
}

/// Returns how many cases had findings, and how many e2fsck found something in.
fn campaign(image: &Image, seed: u64, cases: u64, repaired: bool) -> (u64, u64) {
    let (layout, metadata) = (Layout::of(image), metadata_blocks(image));
    let scratch = Scratch::new(16 << 20);
    let path = scratch.file("volume.img");
    let (mut found, mut judged) = (0, 0);
    let mut contradictions = Vec::new();
    for case in 0..cases {
        let mut rng = Rng::new(seed).fork(case);
        let mut changed = image.clone();
        mutate(&mut changed, &metadata, &layout, &mut rng);
        if repaired {
            repair(&mut changed, &layout);
        }
        let what = format!("seed {seed} case {case}");
        let report = bounded(&what, changed.device(), MEMORY);
        let Some(report) = report else { continue };
        changed.save(&path);
        let fsck = oracle::e2fsck(&path, &["-n"]);
        let told: Vec<_> = report.findings.iter().map(|finding| finding.to_string()).collect();
        if fsck.is_clean() && !report.is_clean() && !told.iter().all(|line| is_newer(line)) {
            contradictions.push(format!("{what}: e2fsck says clean, we {told:#?}"));
        }
        if !fsck.is_clean() && report.is_clean() {
            println!("{what}: only e2fsck: {}", fsck.findings().join(" | "));
        }
        found += u64::from(!report.is_clean());
        judged += u64::from(!fsck.is_clean());
    }
    assert!(contradictions.is_empty(), "{}", contradictions.join("\n"));
    (found, judged)
}

#[test]
fn mutated_volumes_are_survived_and_most_are_noticed() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let (bare, guarded) = (bare(), guarded());
    let found = [
        campaign(&bare, 11, 250, false),
        campaign(&guarded, 12, 150, false),
        campaign(&guarded, 13, 150, true),
    ];
    println!("findings of the check and of e2fsck: {found:?}");
    for (found, judged) in found {
        assert!(judged > 50 && found * 10 >= judged * 9, "{found} of {judged}");
    }
}

fn put(image: &mut Image, at: usize, value: u32) {
    image.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn word(image: &Image, at: usize) -> u32 {
    u32::from_le_bytes(image.bytes[at..at + 4].try_into().unwrap())
}

/// Every free inode of the table becomes a copy of `/tree`, whose leaves claim the whole volume again and again.
fn amplified(mode: u32, indirect: bool) -> Image {
    let mut image = bare();
    let layout = Layout::of(&image);
    let tree = layout.inode(ino_of(&image, "/tree"));
    let size = usize::from(layout.superblock.geometry.inode_size());
    let node = word(&image, tree + 0x28 + 16) as usize * BLOCK;
    let leaf = word(&image, node + 16) as usize * BLOCK;
    let (entries, length) = (84, 5000);
    put(&mut image, tree + 0x28, 0x1_f30a);
    put(&mut image, node, 0x1_f30a);
    put(&mut image, leaf, 0xf30a | entries << 16);
    for entry in 0..entries as usize {
        put(&mut image, leaf + 12 + entry * 12, entry as u32 * length);
        put(&mut image, leaf + 16 + entry * 12, length);
        put(&mut image, leaf + 20 + entry * 12, 3000);
    }
    if indirect {
        // Three levels of blocks that are all the same block, full of its own number.
        let own = (node / BLOCK) as u32;
        (0..BLOCK / 4).for_each(|index| put(&mut image, node + index * 4, own));
        put(&mut image, tree + 0x20, 0);
        (0..15).for_each(|index| put(&mut image, tree + 0x28 + index * 4, own));
    }
    image.bytes[tree..tree + 2].copy_from_slice(&(mode as u16).to_le_bytes());
    let record = image.bytes[tree..tree + size].to_vec();
    for number in 12..=layout.superblock.geometry.inodes_per_group() {
        let at = layout.inode(Ino(number));
        image.bytes[at..at + size].copy_from_slice(&record);
    }
    image
}

#[test]
fn volumes_that_claim_themselves_many_times_cost_little() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    for (what, mode, indirect) in [
        ("files", 0o100_644, false),
        ("directories", 0o040_755, false),
        ("indirect files", 0o100_644, true),
        ("indirect directories", 0o040_755, true),
    ] {
        let report = bounded(what, amplified(mode, indirect).device(), MEMORY).unwrap();
        let excess = ["block.excess", "map.excess"].iter().any(|code| report.totals.contains_key(code));
        assert!(excess, "{what}: {:?}", report.totals);
        assert!(report.findings.len() < 100 * 30);
    }
}

#[test]
fn directories_full_of_names_of_one_file_cost_little() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("mke2fs"), Need::Tool("debugfs"), Need::Tool("e2fsck"));
    let mut image = bare();
    // Every block that is no metadata becomes one of short names, all alike; the root directory has them all.
    let layout = Layout::of(&image);
    let root = layout.inode(Ino::ROOT);
    let start = 4000;
    for block in start..8192 {
        for slot in 0..(BLOCK / 12) {
            let at = block * BLOCK + slot * 12;
            let length: u32 = if slot == BLOCK / 12 - 1 { 12 + (BLOCK % 12) as u32 } else { 12 };
            put(&mut image, at, 12);
            put(&mut image, at + 4, length | 1 << 16 | 1 << 24);
            put(&mut image, at + 8, u32::from(b'a'));
        }
    }
    put(&mut image, root + 0x20, 0x8_0000);
    put(&mut image, root + 4, 4192 * BLOCK as u32);
    put(&mut image, root + 0x28, 0x1_f30a);
    put(&mut image, root + 0x28 + 12, 0);
    put(&mut image, root + 0x28 + 16, 4192);
    put(&mut image, root + 0x28 + 20, start as u32);
    let report = bounded("one name", image.device(), MEMORY).unwrap();
    assert!(report.totals["entry.duplicate"] > 300_000, "{:?}", report.totals);
}

/// All inodes share one block of attributes, which has as many as possible; each value lies in another inode.
#[test]
fn attribute_blocks_that_all_inodes_share_cost_little() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("mke2fs"));
    const SIZE: usize = 65_536;
    let args = ["-b", "65536", "-N", "5120", "-I", "128", "-O", "^has_journal,^metadata_csum,ea_inode"];
    let volume = VolumeBuilder::new(4 << 20).args(args).build();
    let mut image = Image::load(volume.path());
    let layout = Layout::of(&image);
    let inodes = layout.superblock.geometry.inodes_per_group();
    assert!((inodes, layout.superblock.geometry.inode_size()) >= (5120, 128));
    let block = image.bytes.len() / SIZE - 1;
    let start = block * SIZE;
    for (at, value) in [(0, 0xea02_0000), (4, inodes - 10), (8, 1)] {
        put(&mut image, start + at, value);
    }
    let entries = (SIZE - 32 - 4) / 16;
    for entry in 0..entries {
        let at = start + 32 + entry * 16;
        // No name, in the name space of users; a value of one byte in an inode that holds none.
        put(&mut image, at, 1 << 8);
        put(&mut image, at + 4, 11 + entry as u32);
        put(&mut image, at + 8, 1);
    }
    for number in 11..=inodes {
        let at = layout.inode(Ino(number));
        image.bytes[at..at + 128].fill(0);
        put(&mut image, at, 0o100_644);
        put(&mut image, at + 0x1a, 1);
        put(&mut image, at + 0x68, block as u32);
    }
    // None of the inodes is unused.
    for descriptor in &layout.descriptor_bytes {
        image.bytes[descriptor + 0x12] = 0;
        put(&mut image, descriptor + 0x1c, 0);
    }
    let report = bounded("shared attributes", image.device(), MEMORY).unwrap();
    // The block is looked into once; every inode lacks the blocks that its values take.
    assert_eq!(report.totals["xattr.value_inode"], entries as u64, "{:?}", report.totals);
    assert!(report.totals["inode.blocks"] >= 5110, "{:?}", report.totals);
}

#[test]
fn a_sparse_volume_of_a_tebibyte_takes_memory_for_what_it_uses() {
    uext4_testkit::own_process!();
    needs!(Need::Tool("mke2fs"));
    let scratch = Scratch::new(256 << 20);
    let path = scratch.sparse_file("volume.img", 1 << 40);
    VolumeBuilder::new(1 << 40).args(["-N", "131072", "-m", "0", "-J", "size=4"]).format(&path);
    let open = |path: &Path| {
        let spec = uext4::DeviceSpec::parse(path.to_str().unwrap()).unwrap();
        uext4::device::open(&spec, uext4::device::OpenOptions { write: false, force: false }).unwrap().device
    };
    // A bit for each of its blocks would be 32 MiB.
    let report = bounded("sparse", open(&path), 16 << 20).unwrap();
    assert!(report.is_clean() && report.findings.is_empty(), "{:?}", report.findings);
}
