//! Lays out the whole volume: the superblock, then the other structures in the order in which mke2fs allocates blocks
//! for them.

use super::error::{Error, Result};
use super::layout::{EXTRA_ISIZE, Layout};
use super::options::Options;
use super::population::{Population, populate};
use super::pour::Pieces;
use super::sizes::Sizes;
use super::space::Space;
use super::tables::{Spread, first_block, place};
use super::{files, journal, map, quota};
use std::collections::BTreeMap;
use uext4_ondisk::ext4::{
    Compat, DefaultMountOptions, ENCODING_UTF8_12_1, Features, HashSettings, Incompat, MmpBlock, MmpSettings,
    RoCompat, State, Superblock, SuperblockFlags, SuperblockTimes,
};
use uext4_ondisk::{Group, Pblk, checksum};

/// Default interval between updates of the multi-mount protection block, in seconds.
const MMP_INTERVAL: u16 = 5;

/// Encryption algorithms for contents and names, as numbered in the superblock.
const AES_256_XTS: u8 = 1;
const AES_256_CTS: u8 = 4;

/// Lays out the whole volume, with the files of a tree if there is one. Also returns where their contents go.
pub(super) fn plan(
    options: &Options,
    sizes: Sizes,
    ids: Ids,
    files: Option<&Population<'_>>,
) -> Result<(Layout, Pieces)> {
    let geometry = sizes.geometry;
    let mut space = Space::new(geometry);
    let spread = match sizes.log_flex {
        _ if options.extended.packed_meta_blocks => Spread::Packed,
        0 => Spread::Own { stride: u64::from(options.extended.stride) },
        log => Spread::Flex(log),
    };
    let tables = place(&geometry, spread, &mut space)?;
    space.in_clusters();
    let superblock = superblock(options, &sizes, &ids)?;
    let mut layout = Layout {
        superblock,
        tables,
        space,
        inodes: BTreeMap::new(),
        blocks: BTreeMap::new(),
        zeros: Vec::new(),
        time: ids.time,
    };
    let metadata = layout.space.taken() / u64::from(geometry.cluster_blocks());
    if files.is_none() {
        files::directories(&mut layout, options)?;
    }
    files::bad_blocks(&mut layout)?;
    if layout.has(Compat::RESIZE_INODE) {
        files::resize_inode(&mut layout)?;
    }
    if sizes.journal.blocks > 0 {
        journal::place(&mut layout, options, sizes.journal)?;
    }
    if sizes.features.incompat.contains(Incompat::MMP) {
        multi_mount(&mut layout)?;
    }
    let pieces = match files {
        Some(population) => {
            // Quota counts all files.
            if layout.has(Compat::ORPHAN_FILE) {
                files::orphans(&mut layout, options)?;
            }
            let pieces = populate(&mut layout, population)?;
            if sizes.features.ro_compat.contains(RoCompat::QUOTA) {
                quota::place(&mut layout, options)?;
            }
            pieces
        }
        None => {
            if sizes.features.ro_compat.contains(RoCompat::QUOTA) {
                quota::place(&mut layout, options)?;
            }
            if layout.has(Compat::ORPHAN_FILE) {
                files::orphans(&mut layout, options)?;
            }
            Pieces::default()
        }
    };
    let journal_clusters = u64::from(sizes.journal.blocks).div_ceil(u64::from(geometry.cluster_blocks()));
    let overhead = u64::from(geometry.first_data_block()) + metadata + journal_clusters;
    layout.superblock.overhead_clusters = u32::try_from(overhead).unwrap_or(0);
    layout.count_free();
    Ok((layout, pieces))
}

/// The inputs that differ between runs: identity and time.
pub(super) struct Ids {
    pub(super) uuid: [u8; 16],
    pub(super) hash_seed: [u8; 16],
    pub(super) time: u64,
}

fn words(bytes: [u8; 16]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = u32::from_le_bytes(bytes.try_into().unwrap_or_default());
    }
    words
}

pub(super) fn label(options: &Options) -> Result<[u8; 16]> {
    let mut label = [0; 16];
    let place = label.get_mut(..options.label.len());
    let place = place.ok_or_else(|| Error::Option("a label has at most 16 bytes".into()))?;
    place.copy_from_slice(&options.label);
    Ok(label)
}

fn superblock(options: &Options, sizes: &Sizes, ids: &Ids) -> Result<Superblock> {
    let features: Features = sizes.features;
    let label_raw = label(options)?;
    let checksums = features.metadata_csum();
    let seed = features.incompat.contains(Incompat::CSUM_SEED);
    let large = sizes.geometry.inode_size() > 128;
    let shared = features.incompat.contains(Incompat::MMP);
    let interval = options.extended.mmp_interval.unwrap_or(MMP_INTERVAL);
    let encrypts = features.incompat.contains(Incompat::ENCRYPT);
    let folds = features.incompat.contains(Incompat::CASEFOLD);
    let times = SuperblockTimes { mounted: 0, written: ids.time, created: ids.time, checked: ids.time };
    let mut flags = SuperblockFlags::SIGNED_HASH;
    flags.set(SuperblockFlags::TEST_FILESYSTEM, options.extended.test_fs);
    Ok(Superblock {
        geometry: sizes.geometry,
        features,
        minor_revision: 0,
        creator_os: 0,
        reserved_blocks: sizes.reserved_blocks,
        free_blocks: 0,
        free_inodes: 0,
        state: State::CLEAN,
        on_error_raw: 1,
        times,
        mount_count: 0,
        max_mount_count: u16::MAX,
        check_interval: 0,
        reserved_uid: 0,
        reserved_gid: 0,
        block_group: 0,
        uuid: ids.uuid,
        label_raw,
        last_mounted: [0; 64],
        algorithm_usage: 0,
        prealloc_blocks: 0,
        prealloc_dir_blocks: 0,
        journal: options.extended.journal.unwrap_or_default().location(),
        last_orphan: 0,
        hash: HashSettings { seed: words(ids.hash_seed), default_version: 1 },
        default_mount_options: DefaultMountOptions::USER_XATTR | DefaultMountOptions::ACL,
        mount_options: [0; 64],
        min_extra_isize: if large { EXTRA_ISIZE } else { 0 },
        want_extra_isize: if large { EXTRA_ISIZE } else { 0 },
        flags,
        raid_stride: options.extended.stride,
        raid_stripe_width: options.extended.stripe_width,
        mmp: MmpSettings { interval: if shared { interval } else { 0 }, block: Pblk(0) },
        log_groups_per_flex: sizes.log_flex,
        checksum_type: u8::from(checksums),
        encryption_level: 0,
        kbytes_written: 0,
        snapshot: Default::default(),
        errors: Default::default(),
        user_quota_inode: 0,
        group_quota_inode: 0,
        project_quota_inode: 0,
        overhead_clusters: 0,
        encrypt_algorithms: if encrypts { [AES_256_XTS, AES_256_CTS, 0, 0] } else { [0; 4] },
        encrypt_salt: [0; 16],
        lost_found_inode: 0,
        stored_checksum_seed: if seed { checksum::csum(checksum::CSUM_INIT, &ids.uuid) } else { 0 },
        encoding: if folds { ENCODING_UTF8_12_1 } else { 0 },
        encoding_flags: u16::from(folds && options.extended.strict_encoding == Some(true)),
        orphan_file_inode: 0,
    })
}

/// The multi-mount protection block, without an owner.
fn multi_mount(layout: &mut Layout) -> Result<()> {
    let goal = first_block(&layout.superblock.geometry, Group(0));
    let (block, _) = layout.space.run(goal, 1).ok_or_else(map::full)?;
    layout.space.place(block, 1);
    layout.superblock.mmp.block = Pblk(block);
    let mut bytes = vec![0; layout.block_size()];
    let interval = layout.superblock.mmp.interval;
    let clean = MmpBlock { check_interval: interval, ..MmpBlock::clean(layout.time) };
    clean.encode(&mut bytes, &layout.superblock)?;
    layout.blocks.insert(block, bytes);
    Ok(())
}
