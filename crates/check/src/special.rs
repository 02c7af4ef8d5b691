//! Reserved inodes: the journal, the resize inode, quota files, the orphan file.

use crate::claims::Claims;
use crate::kinds;
use crate::map::{Sink, pointers};
use crate::report::Severity;
use crate::scan::Scan;
use uext4::Result;
use uext4_ondisk::ext4::{Compat, FileType, Inode, InodeFlags, RoCompat, Superblock};
use uext4_ondisk::jbd2::JournalSuperblock;
use uext4_ondisk::{Ino, Pblk, Place};

/// The purpose of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Files and directories of users.
    Ordinary,
    Root,
    BadBlocks,
    Journal,
    Resize,
    Quota,
    OrphanFile,
    /// A reserved number without a use.
    Reserved,
}

impl Role {
    pub(crate) fn of(sb: &Superblock, ino: Ino) -> Role {
        let quota = sb.features.ro_compat.contains(RoCompat::QUOTA);
        let quotas = [sb.user_quota_inode, sb.group_quota_inode, sb.project_quota_inode];
        let orphan_file = sb.features.compat.contains(Compat::ORPHAN_FILE);
        match ino {
            Ino::ROOT => Role::Root,
            Ino::BAD_BLOCKS => Role::BadBlocks,
            Ino::RESIZE => Role::Resize,
            _ if sb.journal_inode() == Some(ino) => Role::Journal,
            _ if quota && quotas.contains(&ino.get()) => Role::Quota,
            _ if orphan_file && sb.orphan_file_inode == ino.get() => Role::OrphanFile,
            _ if ino < sb.geometry.first_inode() => Role::Reserved,
            _ => Role::Ordinary,
        }
    }

    /// Whether no directory names it.
    pub(crate) fn is_hidden(self) -> bool {
        !matches!(self, Role::Ordinary | Role::Root)
    }
}

/// A reserved inode whose record is all zeros.
pub(crate) fn check_unused(scan: &mut Scan<'_, '_>, ino: Ino, role: Role) {
    let resize = scan.shared.sb.features.compat.contains(Compat::RESIZE_INODE);
    let missing = match role {
        Role::Root => {
            let place = Place { inode: Some(ino), ..Place::default() };
            scan.findings.add(&kinds::DIR_ROOT, place, "its inode is not in use");
            return;
        }
        Role::Journal | Role::Quota | Role::OrphanFile => true,
        Role::Resize => resize,
        _ => false,
    };
    if missing {
        let place = Place { inode: Some(ino), ..Place::default() };
        scan.findings.add(&kinds::INODE_SPECIAL, place, "it is not in use");
    }
}

/// Whether an inode is reserved for a feature that is off, or that uses another inode. Without links its contents do
/// not matter.
pub(crate) fn is_unused(ino: Ino, role: Role, links: u16) -> bool {
    role == Role::Reserved
        && links == 0
        && (ino == Ino::JOURNAL || ino == Ino::USER_QUOTA || ino == Ino::GROUP_QUOTA)
}

/// Type and links of a reserved inode.
pub(crate) fn check_role(scan: &mut Scan<'_, '_>, ino: Ino, role: Role, place: Place, inode: &Inode) {
    let found = inode.file_type();
    let text = match role {
        Role::Root if found != Some(FileType::Directory) => {
            scan.findings.add(&kinds::DIR_ROOT, place, "it is not a directory");
            return;
        }
        Role::BadBlocks
            if inode.mode != 0
                || inode.links != 0
                || inode.xattr_block.get() != 0
                || (inode.uid as u16, inode.gid as u16) != (0, 0)
                || inode.flags.contains(InodeFlags::INLINE_DATA) =>
        {
            "the list of bad blocks has a mode, an owner, links, attributes or inline data"
        }
        Role::Journal | Role::Quota | Role::OrphanFile if found != Some(FileType::Regular) => {
            "it is not a regular file"
        }
        Role::Reserved if ino == Ino::BOOT_LOADER && found != Some(FileType::Directory) => return,
        Role::Reserved if ino == Ino::JOURNAL || ino == Ino::USER_QUOTA || ino == Ino::GROUP_QUOTA => {
            let clear = inode.links == 0 && inode.blocks_raw as u32 == 0 && inode.i_block[..4] == [0; 4];
            if clear {
                return;
            }
            "it should be empty: the feature it serves is off or uses another inode"
        }
        Role::Reserved if inode.mode != 0 => "a reserved inode has a mode",
        _ => return,
    };
    scan.findings.add(&kinds::INODE_SPECIAL, place, text);
}

/// The journal's own superblock.
pub(crate) fn check_journal(
    scan: &mut Scan<'_, '_>,
    place: Place,
    inode: &Inode,
    claims: &Claims<'_, '_>,
) -> Result<()> {
    let Some(block) = claims.first else {
        scan.findings.add(&kinds::JOURNAL, place, "the journal has no first block");
        return Ok(());
    };
    let place = Place { block: Some(Pblk(block)), ..place };
    match JournalSuperblock::decode(scan.nodes.block(block, 0)?) {
        Ok(journal) => {
            let bytes = u64::from(journal.blocks) * u64::from(journal.block_size);
            if journal.block_size != scan.shared.sb.geometry.block_size() || bytes > inode.size {
                let text = format_args!("a log of {} blocks of {} bytes", journal.blocks, journal.block_size);
                scan.findings.add(&kinds::JOURNAL, place, text);
            }
        }
        Err(fault) => scan.findings.corrupt(&kinds::JOURNAL, place, &fault),
    }
    Ok(())
}

/// Distances of the backups from the primary superblock, in blocks; at most `most` of them.
fn backup_distances(sb: &Superblock, most: usize) -> Vec<u64> {
    let geometry = &sb.geometry;
    let backups = geometry.groups().skip(1).filter(|group| geometry.has_superblock(*group));
    let per_group = u64::from(geometry.blocks_per_group());
    backups.map(|group| u64::from(group.get()) * per_group).take(most).collect()
}

/// The resize inode: its double indirect block names, for each reserved descriptor block of the primary copy, a
/// block of the backups' counterparts; that block of numbers *is* the reserved block of the primary copy.
pub(crate) fn check_resize(scan: &mut Scan<'_, '_>, ino: Ino, place: Place, inode: &Inode) -> Result<()> {
    let shared = scan.shared;
    let sb = shared.sb;
    let attributes = u64::from(inode.xattr_block.get() != 0);
    if attributes != 0 {
        scan.xattr_blocks.push((inode.xattr_block.get(), ino.get()));
    }
    if !sb.features.compat.contains(Compat::RESIZE_INODE) {
        if inode.links != 0 || inode.blocks_raw != 0 || inode.i_block.iter().any(|byte| *byte != 0) {
            scan.findings.add(&kinds::INODE_SPECIAL, place, "the feature resize_inode is off");
        }
        return Ok(());
    }
    let words: Vec<u32> = pointers(&inode.i_block).collect();
    let double = Pblk(u64::from(words[13]));
    let others = words.iter().enumerate().any(|(index, word)| index != 13 && *word != 0);
    let volume = sb.geometry.usable_blocks();
    let regular = inode.file_type() == Some(FileType::Regular)
        && !inode.flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA);
    if !regular || inode.links == 0 || others || !volume.contains(double, 1) {
        scan.findings.add(&kinds::RESIZE, place, "mode, flags, links or block numbers are wrong");
        return Ok(());
    }
    let mut claims = Claims::new(shared, ino, false);
    claims.node(double.get());
    claims.report(&mut scan.findings, &mut scan.dir_blocks);
    let listed: Vec<u32> = pointers(scan.nodes.block(double.get(), 0)?).collect();
    let (wrong, odd) = reserved_places(scan, &listed)?;
    let (blocks, illegal) = named_blocks(scan, &listed)?;
    let told = wrong.map(|block| (&kinds::RESIZE, block)).or(odd.map(|block| (&kinds::RESIZE_REST, block)));
    let (kind, block, text) = match (illegal, told) {
        (Some(block), _) => (&kinds::RESIZE, block, "it names a block outside the volume"),
        (None, Some((kind, block))) => (kind, block, "the reserved descriptor block is not mapped right"),
        (None, None) => {
            scan.shared.check_sectors(place, inode.sectors(sb), attributes + 1 + blocks, &mut scan.findings);
            return Ok(());
        }
    };
    scan.findings.add(kind, Place { block: Some(Pblk(block)), ..place }, text);
    if kind.severity == Severity::Warning {
        scan.shared.check_sectors(place, inode.sectors(sb), attributes + 1 + blocks, &mut scan.findings);
    }
    Ok(())
}

/// The first wrongly mapped reserved block among those that e2fsck checks, and among the others: e2fsck checks the
/// first quarter (`check_resize_inode`). The others prevent the kernel from resizing.
fn reserved_places(scan: &mut Scan<'_, '_>, listed: &[u32]) -> Result<(Option<u64>, Option<u64>)> {
    let sb = scan.shared.sb;
    let reserved = u32::from(sb.geometry.fields().reserved_gdt_blocks);
    let (superblock, _) = sb.geometry.superblock_position();
    let descriptors = sb.geometry.descriptor_blocks();
    let primary = superblock.get() + 1 + u64::from(descriptors);
    let backups = backup_distances(sb, listed.len());
    let named = listed.iter().filter(|block| **block != 0).count();
    let (mut wrong, mut odd) = (None, None);
    for number in 0..reserved {
        let block = primary + u64::from(number);
        let slot = (descriptors + number) as usize % listed.len();
        let found = if number < reserved / 4 { &mut wrong } else { &mut odd };
        if u64::from(listed[slot]) != block || !sb.geometry.usable_blocks().contains(Pblk(block), 1) {
            found.get_or_insert(block);
            continue;
        }
        let copies: Vec<u32> = pointers(scan.nodes.block(block, u64::from(reserved))?).collect();
        let right = backups.iter().zip(&copies).all(|(distance, copy)| u64::from(*copy) == block + distance);
        if !right || copies.iter().skip(backups.len()).any(|copy| *copy != 0) {
            found.get_or_insert(block);
        }
    }
    if named != reserved as usize {
        odd.get_or_insert(primary);
    }
    Ok((wrong, odd))
}

/// How many blocks the map names below its first, and the first block of numbers that leads outside the volume.
fn named_blocks(scan: &mut Scan<'_, '_>, listed: &[u32]) -> Result<(u64, Option<u64>)> {
    let geometry = &scan.shared.sb.geometry;
    let inside = u64::from(geometry.first_data_block())..geometry.blocks_count();
    let (mut blocks, mut illegal) = (0, None);
    for block in listed.iter().filter(|block| **block != 0).map(|block| u64::from(*block)) {
        if !inside.contains(&block) {
            illegal.get_or_insert(block);
            continue;
        }
        blocks += 1;
        for copy in pointers(scan.nodes.block(block, 0)?).filter(|copy| *copy != 0) {
            blocks += 1;
            if !inside.contains(&u64::from(copy)) {
                illegal.get_or_insert(block);
            }
        }
    }
    Ok((blocks, illegal))
}
