//! Pass 0: superblock, group descriptors, their backups, and the places of file system metadata.

use crate::kinds;
use crate::report::Findings;
use crate::shared::{INODE_TABLE, SUPERBLOCK, Shared, Zone};
use uext4::Result;
use uext4_ondisk::ext4::{
    Compat, GroupDescriptor, GroupFlags, Incompat, MmpBlock, SUPERBLOCK_SIZE, Superblock,
};
use uext4_ondisk::{CorruptKind, Group, Pblk, Place};

/// Maximum groups checked: 32 TiB with the smallest blocks, 512 TiB with the usual ones.
const GROUPS_MAX: u32 = 1 << 22;

/// log2 of the maximum groups per flex group.
const LOG_GROUPS_PER_FLEX_MAX: u8 = 31;

/// Whether the superblock's number and size of groups are possible. Otherwise nothing can be checked, and memory must
/// not be sized by them.
pub(crate) fn fits(sb: &Superblock, findings: &mut Findings) -> bool {
    let geometry = &sb.geometry;
    let own = u64::from(geometry.group_count()) * (2 + u64::from(geometry.inode_table_blocks()));
    if own > geometry.blocks_count() || geometry.group_count() > GROUPS_MAX {
        let text =
            format_args!("{} groups, {own} blocks of bitmaps and inode tables", geometry.group_count());
        findings.add(&kinds::SUPER_GROUPS, Place::default(), text);
        return false;
    }
    true
}

/// Checks the superblock by itself.
pub(crate) fn check_superblock(shared: &Shared<'_>, findings: &mut Findings) {
    let (sb, geometry) = (shared.sb, &shared.sb.geometry);
    if sb.reserved_blocks > geometry.blocks_count() / 2 {
        let text = format_args!("{} of {} blocks", sb.reserved_blocks, geometry.blocks_count());
        findings.add(&kinds::SUPER_RESERVED, Place::default(), text);
    }
    // Inode numbers reserved for other purposes, checked even if the feature is off, as in e2fsck
    // (`e2fsck_validate_quota_inodes`).
    for (kind, ino) in
        [("user", sb.user_quota_inode), ("group", sb.group_quota_inode), ("project", sb.project_quota_inode)]
    {
        if matches!(ino, 1 | 2 | 5..=10) || ino > geometry.inodes_count() {
            let text = format_args!("inode {ino} for quotas by {kind}");
            findings.add(&kinds::SUPER_QUOTA, Place::default(), text);
        }
    }
    check_fields(sb, findings);
    let reserved = geometry.fields().reserved_gdt_blocks;
    if reserved != 0 && !sb.features.compat.contains(Compat::RESIZE_INODE) {
        let text = format_args!("{reserved} blocks");
        findings.add(&kinds::SUPER_RESERVED_GDT, Place::default(), text);
    }
}

/// Checks fields that this crate does not use: e2fsck does not open a volume with impossible values in them, with or
/// without their feature (`ext2fs_open2`, `check_super_value`).
fn check_fields(sb: &Superblock, findings: &mut Findings) {
    let fields = sb.geometry.fields();
    let blocks = u64::from(fields.clusters_per_group) << sb.geometry.cluster_log();
    if blocks != u64::from(fields.blocks_per_group) {
        let (clusters, blocks) = (fields.clusters_per_group, fields.blocks_per_group);
        let text = format_args!("{clusters} clusters, but {blocks} blocks in a group");
        findings.add(&kinds::SUPER_FIELD, Place::default(), text);
    }
    if sb.log_groups_per_flex > LOG_GROUPS_PER_FLEX_MAX {
        let text = format_args!("2^{} groups whose metadata lies together", sb.log_groups_per_flex);
        findings.add(&kinds::SUPER_FIELD, Place::default(), text);
    }
}

/// Decodes all descriptors and marks what they describe as used.
pub(crate) fn load(shared: &mut Shared<'_>, findings: &mut Findings) -> Result<()> {
    let geometry = &shared.sb.geometry;
    let mut reader = shared.reader()?;
    let per_block = geometry.descriptors_per_block();
    let size = usize::from(geometry.desc_size());
    let mut groups = Vec::with_capacity(geometry.group_count() as usize);
    let mut suspects = Vec::new();
    for number in 0..geometry.descriptor_blocks() {
        let Some(block) = geometry.descriptor_block(number) else { break };
        let left = geometry.group_count() - number * per_block;
        // Descriptors past the end of the volume mean a damaged meta_bg layout.
        if block.get() >= geometry.blocks_count() {
            let place =
                Place { block: Some(block), group: Some(Group(number * per_block)), ..Place::default() };
            findings.add(&kinds::GROUP_LOCATION, place, "the descriptors are past the end of the volume");
            groups.resize(groups.len() + left.min(per_block) as usize, None);
            continue;
        }
        let bytes = reader.block(block.get(), 15)?;
        for (index, bytes) in bytes.chunks_exact(size).take(left.min(per_block) as usize).enumerate() {
            let group = Group(number * per_block + index as u32);
            let (descriptor, trusted) = descriptor(shared, findings, block, group, bytes);
            suspects.extend((!trusted && descriptor.is_some()).then_some(group));
            groups.push(descriptor);
        }
    }
    groups.resize(geometry.group_count() as usize, None);
    shared.groups = groups;
    find_zones(shared, &suspects, findings);
    Ok(())
}

/// Decodes a descriptor, if its places are possible, and returns whether its checksum is right.
fn descriptor(
    shared: &Shared<'_>,
    findings: &mut Findings,
    block: Pblk,
    group: Group,
    bytes: &[u8],
) -> (Option<GroupDescriptor>, bool) {
    let mut trusted = true;
    let place = Place { block: Some(block), group: Some(group), ..Place::default() };
    let mut decoded = GroupDescriptor::decode(bytes, group, shared.sb);
    if let Err(fault) = &decoded
        && fault.kind == CorruptKind::GroupDescriptorChecksum
    {
        findings.corrupt(&kinds::GROUP_CHECKSUM, place, fault);
        decoded = GroupDescriptor::decode(bytes, group, &shared.lenient);
        trusted = false;
    }
    let descriptor = match decoded {
        Ok(descriptor) => {
            check_unwritten(shared.sb, findings, place, group, &descriptor);
            Some(descriptor)
        }
        Err(fault) => {
            findings.corrupt(&kinds::GROUP_LOCATION, place, &fault);
            None
        }
    };
    (descriptor, trusted)
}

/// Checks the descriptor's marks for unwritten metadata. They count only with descriptor checksums, and the last group
/// always has a block bitmap.
fn check_unwritten(
    sb: &Superblock,
    findings: &mut Findings,
    place: Place,
    group: Group,
    descriptor: &GroupDescriptor,
) {
    let unwritten = descriptor.flags & (GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
    let (all, unused) = (sb.geometry.inodes_per_group(), descriptor.unused_inodes);
    if !(sb.features.metadata_csum() || sb.features.gdt_csum()) {
        if !unwritten.is_empty() || unused != 0 {
            let text = format_args!("flags {unwritten}, {unused} unused inodes, without checksums");
            findings.add(&kinds::GROUP_UNINIT, place, text);
        }
    } else if unused > all.min(descriptor.free_inodes) {
        let text = format_args!("{unused} of {all} inodes, {} of them free", descriptor.free_inodes);
        findings.add(&kinds::GROUP_UNUSED, place, text);
    }
    let last = sb.geometry.group_count().checked_sub(1).map(Group);
    if last == Some(group) && unwritten.contains(GroupFlags::BLOCK_UNINIT) {
        let text = "the last group has no bitmap of its blocks";
        findings.add(&kinds::GROUP_UNINIT, place, text);
    }
}

/// A piece of metadata, if it is one.
fn zone(start: Pblk, count: u64, group: Group, what: &'static str) -> Option<Zone> {
    let end = start.get().saturating_add(count);
    (count > 0).then_some(Zone { start: start.get(), end, group, what })
}

/// The metadata that a descriptor points to.
fn zones_of(shared: &Shared<'_>, group: Group) -> impl Iterator<Item = Zone> + use<> {
    let descriptor = shared.groups.get(group.get() as usize).copied().flatten();
    let table = u64::from(shared.sb.geometry.inode_table_blocks());
    descriptor.into_iter().flat_map(move |descriptor| {
        [
            zone(descriptor.block_bitmap, 1, group, "block bitmap"),
            zone(descriptor.inode_bitmap, 1, group, "inode bitmap"),
            zone(descriptor.inode_table, table, group, INODE_TABLE),
        ]
        .into_iter()
        .flatten()
    })
}

/// Finds the places of metadata. `suspects` are groups whose descriptors have wrong checksums; one that names metadata
/// of others as its inode table is ignored from then on: its inodes are not there.
fn find_zones(shared: &mut Shared<'_>, suspects: &[Group], findings: &mut Findings) {
    let (sb, geometry) = (shared.sb, &shared.sb.geometry);
    let mut zones = Vec::with_capacity(shared.groups.len() * 3 + 8);
    let mut suspected = suspects.iter().copied().peekable();
    for group in (0..geometry.group_count()).map(Group) {
        if let Some(first) = geometry.group_first_block(group) {
            let mut base = u64::from(geometry.base_metadata_blocks(group));
            // With blocks of 1 KiB in clusters the volume starts at block 0, and its superblock at block 1.
            if group == Group(0) && geometry.superblock_position().0 > first {
                base += 1;
            }
            zones.extend(zone(first, base, group, SUPERBLOCK));
        }
        if suspected.next_if_eq(&group).is_none() {
            zones.extend(zones_of(shared, group));
        }
    }
    let mmp = sb.mmp.block;
    if sb.features.incompat.contains(Incompat::MMP) && geometry.usable_blocks().contains(mmp, 1) {
        zones.extend(zone(mmp, 1, Group(0), "multi-mount protection block"));
    }
    zones.sort_unstable();
    // How far the zones up to each reach: those of a hostile volume may lie in one another.
    let mut reached = 0;
    let reach = |zone: &Zone| {
        reached = reached.max(zone.end);
        (zone.start, reached)
    };
    let others: Vec<(u64, u64)> =
        if suspects.is_empty() { Vec::new() } else { zones.iter().map(reach).collect() };
    for group in suspects {
        let mut own = zones_of(shared, *group);
        // The inode table comes last.
        let Some(table) = own.by_ref().last() else { continue };
        let before = others.partition_point(|(start, _)| *start < table.end);
        if before.checked_sub(1).is_some_and(|last| others[last].1 > table.start) {
            let place = Place { block: Some(Pblk(table.start)), group: Some(*group), ..Place::default() };
            findings.add(&kinds::GROUP_OVERLAP, place, "the inode table overlaps other metadata");
            shared.groups[group.get() as usize] = None;
        } else {
            zones.extend(zones_of(shared, *group));
        }
    }
    zones.sort_unstable();
    let mut reached = 0;
    for zone in &zones {
        if zone.start < reached {
            let place = Place { block: Some(Pblk(zone.start)), group: Some(zone.group), ..Place::default() };
            let text = format_args!("the {} overlaps other metadata", zone.what);
            findings.add(&kinds::GROUP_OVERLAP, place, text);
        }
        reached = reached.max(zone.end);
        let (first, last) = (shared.cluster_of(zone.start), shared.cluster_of(zone.end - 1));
        shared.used.set(first, last - first + 1, None);
        shared.system.set(first, last - first + 1, None);
    }
    shared.zones = zones;
}

/// The block of multi-mount protection.
pub(crate) fn check_mmp(shared: &Shared<'_>, findings: &mut Findings) -> Result<()> {
    let sb = shared.sb;
    if !sb.features.incompat.contains(Incompat::MMP) {
        return Ok(());
    }
    let place = Place { block: Some(sb.mmp.block), ..Place::default() };
    if !sb.geometry.usable_blocks().contains(sb.mmp.block, 1) {
        findings.add(&kinds::MMP_BLOCK, place, "it is outside the volume");
        return Ok(());
    }
    if let Err(fault) = MmpBlock::decode(shared.reader()?.block(sb.mmp.block.get(), 0)?, sb) {
        findings.corrupt(&kinds::MMP_BLOCK, place, &fault);
    }
    Ok(())
}

/// Checks backups of superblock and descriptors. Only the volume's identity and places are kept up to date in them.
pub(crate) fn check_backups(shared: &Shared<'_>, findings: &mut Findings) -> Result<()> {
    let geometry = &shared.sb.geometry;
    let mut reader = shared.reader()?;
    let classic = match shared.sb.features.incompat.contains(Incompat::META_BG) {
        true => geometry.fields().first_meta_bg.min(geometry.descriptor_blocks()),
        false => geometry.descriptor_blocks(),
    };
    for group in geometry.groups().skip(1).filter(|group| geometry.has_superblock(*group)) {
        let Some(first) = geometry.group_first_block(group) else { continue };
        let place = Place { block: Some(first), group: Some(group), ..Place::default() };
        let bytes = reader.block(first.get(), u64::from(classic))?;
        match Superblock::decode(&bytes[..SUPERBLOCK_SIZE as usize]) {
            Ok(backup) if same_volume(shared.sb, &backup) => {}
            Ok(_) => findings.add(&kinds::SUPER_BACKUP, place, "it describes another volume"),
            Err(fault) => findings.corrupt(&kinds::SUPER_BACKUP, place, &fault),
        }
        for number in 0..classic {
            let block = first.get() + 1 + u64::from(number);
            if block < geometry.blocks_count() {
                compare_backup(shared, findings, Pblk(block), number, reader.block(block, 15)?);
            }
        }
    }
    for number in classic..geometry.descriptor_blocks() {
        let per_block = geometry.descriptors_per_block();
        let set = number * per_block;
        for group in [set.saturating_add(1), set.saturating_add(per_block - 1)].map(Group) {
            let Some(first) = geometry.group_first_block(group) else { continue };
            let block = first.get() + u64::from(geometry.has_superblock(group));
            if block < geometry.blocks_count() {
                compare_backup(shared, findings, Pblk(block), number, reader.block(block, 0)?);
            }
        }
    }
    Ok(())
}

fn same_volume(sb: &Superblock, backup: &Superblock) -> bool {
    let (mine, theirs) = (sb.geometry.fields(), backup.geometry.fields());
    sb.uuid == backup.uuid
        && mine.blocks_count == theirs.blocks_count
        && mine.inodes_count == theirs.inodes_count
        && mine.blocks_per_group == theirs.blocks_per_group
        && mine.log_block_size == theirs.log_block_size
}

fn compare_backup(shared: &Shared<'_>, findings: &mut Findings, block: Pblk, number: u32, bytes: &[u8]) {
    let geometry = &shared.sb.geometry;
    let per_block = geometry.descriptors_per_block();
    for (index, bytes) in bytes.chunks_exact(usize::from(geometry.desc_size())).enumerate() {
        let group = Group(number * per_block + index as u32);
        let Some(descriptor) = shared.groups.get(group.get() as usize) else { break };
        let place = Place { block: Some(block), group: Some(group), ..Place::default() };
        match (GroupDescriptor::decode(bytes, group, shared.sb), descriptor) {
            (Err(fault), _) => findings.corrupt(&kinds::GROUP_BACKUP, place, &fault),
            (Ok(backup), Some(descriptor)) => {
                let places = |descriptor: &GroupDescriptor| {
                    (descriptor.block_bitmap, descriptor.inode_bitmap, descriptor.inode_table)
                };
                if places(&backup) != places(descriptor) {
                    findings.add(&kinds::GROUP_BACKUP, place, "it names other places");
                }
            }
            (Ok(_), None) => {}
        }
    }
}
