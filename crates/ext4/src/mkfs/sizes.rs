//! Computes all sizes, from the options to the geometry fields. The rules are those of mke2fs, derived from the volumes
//! it makes.

use super::error::{Error, Result};
use super::kinds;
use super::options::{Options, QuotaType};
use uext4_blockdev::Geometry as DeviceGeometry;
use uext4_ondisk::ext4::{Compat, Features, Geometry, GeometryFields, Incompat, RoCompat};

const MIB: u64 = 1 << 20;
/// Default percentage of blocks reserved for privileged users.
const RESERVED_PERCENT: f64 = 5.0;
/// First inode that is not reserved.
pub(super) const FIRST_INODE: u32 = 11;
/// Without a given size, the device's size is rounded down to whole pages.
const PAGE: u64 = 4096;
/// Default number of groups whose metadata lies together, with `flex_bg`.
const FLEX_GROUPS: u32 = 16;
/// Minimum and maximum blocks of a journal of a given size.
const JOURNAL_MIN: u32 = 1024;
const JOURNAL_MAX: u32 = 10_240_000;
/// The fast-commit area gets one block for this many blocks of the log.
const FAST_COMMIT_RATIO: u32 = 64;
/// A last group with fewer blocks than this in addition to its metadata is left out.
const WORTH_A_GROUP: u64 = 50;
/// Descriptor size in bytes with the feature `64bit`.
const WIDE_DESCRIPTOR: u16 = 64;
const NARROW_DESCRIPTOR: u16 = 32;
/// Old descriptors count the clusters (or blocks) of a group in 16 bits.
const GROUP_BITS_MAX: u64 = (1 << 16) - 8;

/// The sizes and features of a volume.
pub(super) struct Sizes {
    pub(super) geometry: Geometry,
    pub(super) features: Features,
    pub(super) reserved_blocks: u64,
    /// log2 of the number of groups whose metadata lies together; 0 if each group has its own.
    pub(super) log_flex: u8,
    pub(super) journal: JournalSize,
}

/// Blocks of a journal; both are 0 without a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct JournalSize {
    /// Total blocks.
    pub(super) blocks: u32,
    /// Blocks for fast commits, at the end of the log.
    pub(super) fast_commit: u32,
}

fn option_error<T>(text: impl Into<String>) -> Result<T> {
    Err(Error::Option(text.into()))
}

/// The requested sizes as numbers.
struct Asked {
    block: u32,
    cluster: u32,
    inode_size: u16,
    /// `None` if the volume is smaller than the bytes per inode; then one inode per 4 KiB, as in mke2fs.
    inodes: Option<u32>,
    blocks: u64,
    /// Blocks including those of a last partial cluster: as in mke2fs, the reserved percentage refers to these.
    all_blocks: u64,
    features: Features,
}

impl Asked {
    fn of(options: &Options, device: DeviceGeometry) -> Result<Asked> {
        let mut features = features(options)?;
        let bytes = match options.size {
            Some(bytes) => bytes,
            None => device.size / PAGE * PAGE,
        };
        let usual = kinds::usual(&options.usages, bytes);
        let block = options.block_size.unwrap_or(usual.block.max(device.logical_block));
        if !block.is_power_of_two() || !(1024..=65_536).contains(&block) {
            return option_error(format!(
                "{block} bytes are no block size: it is a power of two from 1024 to 65536"
            ));
        }
        if block < device.logical_block {
            let unit = device.logical_block;
            return option_error(format!("blocks of {block} bytes are smaller than the device's of {unit}"));
        }
        if let Some(blocks) = options.group_blocks
            && (!blocks.is_multiple_of(8) || !(256..=8 * block).contains(&blocks))
        {
            return option_error(format!(
                "groups of {blocks} blocks: 256 to {} and a multiple of 8 are possible",
                8 * block
            ));
        }
        let cluster = cluster(options, &features, block)?;
        let inode_size = options.inode_size.unwrap_or(usual.inode);
        check_inode_size(inode_size, block, &features)?;
        let all_blocks = bytes / u64::from(block);
        let blocks = all_blocks & !(u64::from(cluster / block) - 1);
        if blocks >> 32 != 0 && !features.incompat.contains(Incompat::BIT64) {
            return Err(Error::TooLarge(format!(
                "{blocks} blocks are 2^32 or more, and the feature 64bit is off (or use larger blocks with -b)"
            )));
        }
        if blocks >> 32 != 0 {
            // The resize inode's block map has 32-bit numbers.
            features.compat -= Compat::RESIZE_INODE;
        }
        let mut ratio = options.inode_ratio.unwrap_or(usual.ratio.max(block).max(cluster));
        if options.inode_ratio.is_some_and(|ratio| ratio < 1024 || u64::from(ratio) > 64 * MIB) {
            return option_error(format!("{ratio} bytes for each inode: from 1024 to 67108864 make sense"));
        }
        ratio = ratio.max(1);
        let bytes = u64::from(block).saturating_mul(all_blocks);
        let by_ratio = bytes / u64::from(ratio);
        let asked = options.inodes.filter(|&inodes| inodes > 0);
        let inodes = match (asked, u32::try_from(by_ratio)) {
            (Some(inodes), _) => Some(inodes),
            (None, Ok(inodes)) => Some(inodes).filter(|&inodes| inodes > 0),
            (None, Err(_)) if features.incompat.contains(Incompat::BIT64) => Some(u32::MAX),
            (None, Err(_)) => return Err(Error::TooLarge(format!("{by_ratio} inodes (raise -i)"))),
        };
        if u64::from(inodes.unwrap_or(0)).saturating_mul(u64::from(inode_size)) >= bytes {
            return Err(Error::TooSmall {
                have: format!("{all_blocks} blocks of {block} bytes"),
                reason: format!("{} inodes of {inode_size} bytes would fill them", inodes.unwrap_or(0)),
            });
        }
        Ok(Asked { block, cluster, inode_size, inodes, blocks, all_blocks, features })
    }

    fn reserved_blocks(&self, options: &Options) -> u64 {
        let percent = options.reserved_percent.unwrap_or(RESERVED_PERCENT);
        (percent * self.all_blocks as f64 / 100.0) as u64
    }
}

/// The features, checked for consistency.
fn features(options: &Options) -> Result<Features> {
    let mut features = options.feature_words();
    let usual = options.kind.features(options.defaults);
    if options.is_journal() {
        return option_error("feature journal_dev makes a journal, not a volume");
    }
    if options.extended.journal_name.is_some() {
        return option_error("option `device`: the device itself must be given (see `format_with_journal`)");
    }
    if features.metadata_csum() {
        features.ro_compat -= RoCompat::GDT_CSUM;
    } else if features.incompat.contains(Incompat::CSUM_SEED) {
        if !usual.incompat.contains(Incompat::CSUM_SEED) {
            return option_error("feature metadata_csum_seed needs feature metadata_csum");
        }
        // A default feature is dropped with the feature that it depends on.
        features.incompat -= Incompat::CSUM_SEED;
    }
    if features.compat.contains(Compat::ORPHAN_FILE) && !features.compat.contains(Compat::HAS_JOURNAL) {
        if !usual.compat.contains(Compat::ORPHAN_FILE) {
            return option_error("feature orphan_file needs feature has_journal");
        }
        features.compat -= Compat::ORPHAN_FILE;
    }
    let has = |compat: Compat| features.compat.contains(compat);
    let needs = |incompat: Incompat| features.incompat.contains(incompat);
    let writes = |ro_compat: RoCompat| features.ro_compat.contains(ro_compat);
    if needs(Incompat::BIT64) && !needs(Incompat::EXTENTS) {
        return option_error("feature 64bit needs feature extent");
    }
    if writes(RoCompat::BIGALLOC) && !needs(Incompat::EXTENTS) {
        return option_error("feature bigalloc needs feature extent");
    }
    if has(Compat::RESIZE_INODE) && needs(Incompat::META_BG) {
        return option_error("features resize_inode and meta_bg exclude each other");
    }
    if has(Compat::RESIZE_INODE) && !writes(RoCompat::SPARSE_SUPER) && !has(Compat::SPARSE_SUPER2) {
        return option_error("feature resize_inode needs feature sparse_super");
    }
    if options.extended.resize.is_some() && !has(Compat::RESIZE_INODE) {
        return option_error("option `resize` needs feature resize_inode");
    }
    if options.extended.packed_meta_blocks && !needs(Incompat::FLEX_BG) {
        return option_error("option `packed_meta_blocks` needs feature flex_bg");
    }
    if options.extended.packed_meta_blocks && writes(RoCompat::BIGALLOC) {
        return option_error("option `packed_meta_blocks` is not supported with feature bigalloc");
    }
    if options.extended.strict_encoding.is_some() && !needs(Incompat::CASEFOLD) {
        return option_error("option `encoding_flags` needs option `encoding` or feature casefold");
    }
    if options.extended.fast_commit_size.is_some() && !(has(Compat::HAS_JOURNAL) && has(Compat::FAST_COMMIT))
    {
        return option_error("option `fast_commit_size` needs features has_journal and fast_commit");
    }
    let only_projects = options.quota_types() == [QuotaType::Projects];
    if options.extended.quota_types.is_some() && !writes(RoCompat::QUOTA) && !only_projects {
        return option_error("option `quotatype` needs feature quota");
    }
    Ok(features)
}

fn cluster(options: &Options, features: &Features, block: u32) -> Result<u32> {
    let clusters = features.ro_compat.contains(RoCompat::BIGALLOC);
    match options.cluster_size {
        Some(_) if !clusters => option_error("-C needs feature bigalloc"),
        Some(cluster) if !cluster.is_power_of_two() || cluster <= block || cluster > 512 << 20 => {
            option_error(format!(
                "{cluster} bytes are no cluster size: it is a power of two above the block size"
            ))
        }
        Some(cluster) => Ok(cluster),
        None if clusters => Ok(16 * block),
        None => Ok(block),
    }
}

fn check_inode_size(size: u16, block: u32, features: &Features) -> Result<()> {
    if !size.is_power_of_two() || size < 128 || u32::from(size) > block {
        return option_error(format!(
            "{size} bytes are no inode size: it is a power of two from 128 to a block"
        ));
    }
    if size == 128 && features.incompat.contains(Incompat::INLINE_DATA) {
        return option_error("feature inline_data needs inodes of 256 bytes or more");
    }
    if size == 128 && features.ro_compat.contains(RoCompat::PROJECT) {
        return option_error("feature project needs inodes of 256 bytes or more");
    }
    Ok(())
}

/// Decides all sizes.
pub(super) fn decide(options: &Options, device: DeviceGeometry) -> Result<Sizes> {
    let asked = Asked::of(options, device)?;
    let percent = options.reserved_percent.unwrap_or(RESERVED_PERCENT);
    if !(0.0..=50.0).contains(&percent) {
        return option_error(format!("{percent} percent cannot be reserved: 0 to 50 can"));
    }
    let reserved_blocks = asked.reserved_blocks(options);
    let Fitted { geometry, mut features, reserved_blocks } =
        Fitting::new(options, &asked, reserved_blocks).fit()?;
    let journal = journal_size(options, &mut features, &geometry)?;
    let log_flex = log_flex(options, &features)?;
    Ok(Sizes { geometry, features, reserved_blocks, log_flex, journal })
}

fn log_flex(options: &Options, features: &Features) -> Result<u8> {
    let flex = features.incompat.contains(Incompat::FLEX_BG);
    match options.flex_groups {
        Some(_) if !flex => option_error("-G needs feature flex_bg"),
        Some(groups) if !groups.is_power_of_two() => {
            option_error(format!("-G {groups}: a power of two is needed"))
        }
        groups => Ok(if flex { groups.unwrap_or(FLEX_GROUPS).ilog2() as u8 } else { 0 }),
    }
}

/// Blocks of the journal. A volume too small for a journal gets none, unless a journal size was given.
fn journal_size(options: &Options, features: &mut Features, geometry: &Geometry) -> Result<JournalSize> {
    if !features.compat.contains(Compat::HAS_JOURNAL) || options.extended.journal.is_some() {
        return Ok(JournalSize::default());
    }
    let unit = u64::from(geometry.block_size());
    let usual = usual_journal(geometry.blocks_count());
    let (size, fast_size) = (options.extended.journal_size, options.extended.fast_commit_size);
    let fast = features.compat.contains(Compat::FAST_COMMIT);
    let Some(usual) = usual else {
        if size.is_some() || fast_size.is_some() {
            return Err(Error::TooSmall {
                have: format!("{} blocks", geometry.blocks_count()),
                reason: "a journal needs a volume of 2048".into(),
            });
        }
        features.compat -= Compat::HAS_JOURNAL | Compat::ORPHAN_FILE;
        return Ok(JournalSize::default());
    };
    let log = size.map_or(u64::from(usual), |bytes| bytes / unit);
    let fast_commit = match fast_size {
        _ if !fast => 0,
        Some(bytes) => bytes / unit,
        None => u64::from(usual / FAST_COMMIT_RATIO),
    };
    let all = log.saturating_add(fast_commit);
    let asked = size.is_some() || fast_size.is_some();
    match u32::try_from(all) {
        Ok(blocks) if !asked || (JOURNAL_MIN..=JOURNAL_MAX).contains(&blocks) => {
            Ok(JournalSize { blocks, fast_commit: fast_commit as u32 })
        }
        _ => option_error(format!("a journal of {all} blocks: it has from {JOURNAL_MIN} to {JOURNAL_MAX}")),
    }
}

/// Default log blocks for a volume of `blocks` blocks; `None` if that is too small for a journal.
fn usual_journal(blocks: u64) -> Option<u32> {
    const KIB: u64 = 1024;
    let blocks = match blocks {
        0..2048 => return None,
        2048..32_768 => 1024,
        blocks if blocks < 256 * KIB => 4096,
        blocks if blocks < 512 * KIB => 8192,
        blocks if blocks < 4096 * KIB => 16_384,
        blocks if blocks < 8192 * KIB => 32_768,
        blocks if blocks < 16_384 * KIB => 65_536,
        blocks if blocks < 32_768 * KIB => 131_072,
        _ => 262_144,
    };
    Some(blocks)
}

/// The sizes that fit.
struct Fitted {
    geometry: Geometry,
    features: Features,
    reserved_blocks: u64,
}

/// Finds a geometry by iteration: groups, inodes and reserved blocks depend on each other.
struct Fitting<'a> {
    options: &'a Options,
    asked: &'a Asked,
    /// `meta_bg` takes the place of `resize_inode` if descriptors would fill most of a group.
    features: Features,
    first_block: u64,
    blocks: u64,
    /// Blocks reserved for privileged users. As in mke2fs, it is not raised again if smaller groups bring back a last
    /// group.
    reserved_blocks: u64,
    per_group: u64,
    cluster_blocks: u64,
    desc_size: u16,
}

/// The result of one iteration.
struct Trial {
    groups: u64,
    descriptor_blocks: u64,
    inodes_per_group: u64,
    table_blocks: u64,
    reserved: u64,
    backups: [u32; 2],
}

impl<'a> Fitting<'a> {
    fn new(options: &'a Options, asked: &'a Asked, reserved_blocks: u64) -> Fitting<'a> {
        let clusters = asked.features.ro_compat.contains(RoCompat::BIGALLOC);
        let wide = asked.features.incompat.contains(Incompat::BIT64);
        let cluster_blocks = u64::from(asked.cluster / asked.block);
        let most = (u64::from(asked.block) * 8).min(GROUP_BITS_MAX);
        let bits = options.group_blocks.map_or(most, |blocks| most.min(u64::from(blocks)));
        let first_block = u64::from(asked.block == 1024 && !clusters);
        Fitting {
            options,
            asked,
            features: asked.features,
            first_block,
            blocks: asked.blocks,
            reserved_blocks,
            per_group: bits * cluster_blocks,
            cluster_blocks,
            desc_size: if wide { WIDE_DESCRIPTOR } else { NARROW_DESCRIPTOR },
        }
    }

    fn too_small(&self) -> Error {
        Error::TooSmall {
            have: format!("{} blocks of {} bytes", self.blocks, self.asked.block),
            reason: "a volume's own structures need more".into(),
        }
    }

    fn has(&self, feature: Incompat) -> bool {
        self.features.incompat.contains(feature)
    }

    fn fit(mut self) -> Result<Fitted> {
        loop {
            let Some(trial) = self.trial()? else {
                // More inodes than an inode bitmap can hold: use smaller groups, hence more bitmaps.
                self.per_group -= 8;
                self.blocks = self.asked.blocks;
                continue;
            };
            let front = trial.reserved + trial.descriptor_blocks;
            if !self.has(Incompat::META_BG) && front > self.per_group * 3 / 4 {
                self.features.incompat |= Incompat::META_BG;
                self.features.compat -= Compat::RESIZE_INODE;
                continue;
            }
            let descriptors = if self.has(Incompat::META_BG) { 1 } else { trial.descriptor_blocks };
            if trial.table_blocks + 3 + descriptors + trial.reserved > self.per_group {
                let inodes = trial.inodes_per_group;
                return Err(Error::TooLarge(format!(
                    "{inodes} inodes do not fit a group (raise -i or lower -N)"
                )));
            }
            // As in mke2fs, all descriptors count here, even if `meta_bg` distributes them.
            let mut own = 2 + trial.table_blocks;
            if self.has_superblock(trial.groups - 1, &trial) {
                own += 1 + trial.descriptor_blocks + trial.reserved;
            }
            let rest = (self.blocks - self.first_block) % self.per_group;
            if trial.groups == 1 && rest != 0 && rest < own {
                return Err(self.too_small());
            }
            if rest != 0 && rest < own + WORTH_A_GROUP {
                self.leave_out(rest);
                continue;
            }
            let geometry = self.geometry(&trial)?;
            let (features, reserved_blocks) = (self.features, self.reserved_blocks);
            return Ok(Fitted { geometry, features, reserved_blocks });
        }
    }

    /// Leaves out a last group of `rest` blocks.
    fn leave_out(&mut self, rest: u64) {
        self.blocks -= rest;
        let wanted = self.asked.reserved_blocks(self.options);
        let percent = 100.0 * wanted as f64 / self.asked.all_blocks as f64;
        self.reserved_blocks = (percent * self.blocks as f64 / 100.0) as u64;
    }

    /// `None`: the groups are too large for the inodes.
    fn trial(&self) -> Result<Option<Trial>> {
        let block = u64::from(self.asked.block);
        let groups = self.blocks.saturating_sub(self.first_block).div_ceil(self.per_group);
        if groups == 0 {
            return Err(self.too_small());
        }
        if u32::try_from(groups).is_err() {
            return Err(Error::TooLarge(format!("{groups} groups")));
        }
        let by_size = (self.blocks / (4096 / block).max(1)).min(u64::from(u32::MAX));
        let inodes = self.asked.inodes.map_or(by_size, u64::from);
        let wanted = inodes.div_ceil(groups);
        if wanted > block * 8 {
            if self.cluster_blocks > 1 || self.per_group < 256 {
                return Err(Error::TooLarge(format!("{inodes} inodes for {groups} groups")));
            }
            return Ok(None);
        }
        let (inodes_per_group, table_blocks) = self.inodes_per_group(wanted, groups);
        let mut trial = Trial {
            groups,
            descriptor_blocks: groups.div_ceil(block / u64::from(self.desc_size)),
            inodes_per_group,
            table_blocks,
            reserved: 0,
            backups: self.backups(groups),
        };
        trial.reserved = self.reserved_descriptors(&trial)?;
        Ok(Some(trial))
    }

    /// Inodes per group and blocks of a group's inode table. At least `wanted` inodes, rounded up to fill the table's
    /// blocks if possible: a multiple of 8, at most 2^32 in all, and enough for the reserved inodes and `lost+found`.
    fn inodes_per_group(&self, wanted: u64, groups: u64) -> (u64, u64) {
        let (block, size) = (u64::from(self.asked.block), u64::from(self.asked.inode_size));
        let mut wanted = wanted.min((1 << 16) - block / size);
        loop {
            let filled = (wanted * size).div_ceil(block) * block / size;
            let inodes = filled.max(8) & !7;
            if u32::try_from(inodes * groups).is_err() {
                wanted -= 1;
            } else if inodes * groups <= u64::from(FIRST_INODE) {
                wanted += 8;
            } else {
                return (inodes, (inodes * size).div_ceil(block));
            }
        }
    }

    /// The two backup groups of `sparse_super2`.
    fn backups(&self, groups: u64) -> [u32; 2] {
        if !self.asked.features.compat.contains(Compat::SPARSE_SUPER2) {
            return [0; 2];
        }
        let last = (groups - 1) as u32;
        match self.options.extended.backups.unwrap_or(2) {
            0 => [0, 0],
            _ if last == 0 => [0, 0],
            1 => [0, 1],
            _ if last == 1 => [1, 0],
            _ => [1, last],
        }
    }

    fn has_superblock(&self, group: u64, trial: &Trial) -> bool {
        if self.asked.features.compat.contains(Compat::SPARSE_SUPER2) {
            return group == 0 || trial.backups.iter().any(|&backup| u64::from(backup) == group);
        }
        let power = |base: u64| std::iter::successors(Some(base), move |power| power.checked_mul(base));
        !self.asked.features.ro_compat.contains(RoCompat::SPARSE_SUPER)
            || group <= 1
            || [3, 5, 7]
                .iter()
                .any(|&base| power(base).take_while(|&power| power <= group).any(|p| p == group))
    }

    /// Blocks reserved after the descriptors so that the volume can grow to 1024 times its size.
    fn reserved_descriptors(&self, trial: &Trial) -> Result<u64> {
        if !self.features.compat.contains(Compat::RESIZE_INODE) {
            return Ok(0);
        }
        let block = u64::from(self.asked.block);
        let per_block = block / u64::from(self.desc_size);
        let (limit, now) = match self.options.extended.resize {
            Some(bytes) if bytes / block <= self.asked.blocks => {
                return option_error("option `resize`: the volume is larger than that already");
            }
            Some(bytes) => {
                let groups = self.asked.blocks.div_ceil(self.per_group);
                (bytes / block, groups.div_ceil(per_block))
            }
            None => {
                let most = self.blocks.saturating_mul(1024).min(u64::from(u32::MAX));
                (most - self.first_block, trial.descriptor_blocks)
            }
        };
        let groups = limit.div_ceil(self.per_group);
        Ok(groups.div_ceil(per_block).saturating_sub(now).min(block / 4))
    }

    fn geometry(&self, trial: &Trial) -> Result<Geometry> {
        let asked = self.asked;
        let wide = asked.features.incompat.contains(Incompat::BIT64);
        let fields = GeometryFields {
            inodes_count: (trial.inodes_per_group * trial.groups) as u32,
            blocks_count: self.blocks,
            first_data_block: self.first_block as u32,
            log_block_size: asked.block.ilog2() - 10,
            log_cluster_size: asked.cluster.ilog2() - 10,
            blocks_per_group: self.per_group as u32,
            clusters_per_group: (self.per_group / self.cluster_blocks) as u32,
            inodes_per_group: trial.inodes_per_group as u32,
            revision: 1,
            first_inode: FIRST_INODE,
            inode_size: asked.inode_size,
            desc_size: if wide { self.desc_size } else { 0 },
            reserved_gdt_blocks: trial.reserved as u16,
            first_meta_bg: 0,
            backup_groups: trial.backups,
        };
        Geometry::new(fields, &self.features)
            .map_err(|corrupt| Error::Option(format!("these sizes make no volume: {corrupt}")))
    }
}
