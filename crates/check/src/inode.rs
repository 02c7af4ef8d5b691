//! Pass 1: every inode in use, its fields and its map; claims its blocks.

use crate::claims::Claims;
use crate::kinds;
use crate::map::{MapWalk, Sink};
use crate::read::Reader;
use crate::report::Findings;
use crate::scan::{Counted, Directory, Scan};
use crate::sealed::{Behind, BehindContents};
use crate::shared::{
    MARK_BAD_BLOCK, MARK_BROKEN, MARK_MAGIC, MARK_ORPHAN, MARK_RESERVED, MARK_VALUE, RUN_MEMORY, Shared,
    UNKNOWN,
};
use crate::special::{self, Role};
use std::ops::Range;
use std::sync::atomic::Ordering;
use uext4::Result;
use uext4_ondisk::ext4::{
    Compat, FileType, HtreeRoot, I_BLOCK_SIZE, Incompat, Inode, InodeFlags, RoCompat, fragment_address,
    translator_block, verify_inode_checksum,
};
use uext4_ondisk::{Corrupt, CorruptKind, Group, Ino, Lblk, Pblk, Place};

/// Fields that say whether an inode is in use (`i_mode`, `i_dtime`, `i_links_count`).
const MODE: usize = 0;
const DELETED: usize = 0x14;
const LINKS: usize = 0x1a;
/// Fields of an inode's record whose meaning hangs on features (`i_size_high`, `l_i_blocks_high`, `l_i_file_acl_high`).
const SIZE_HIGH: Range<usize> = 0x6c..0x70;
const BLOCKS_HIGH: Range<usize> = 0x74..0x76;
const XATTR_BLOCK_HIGH: Range<usize> = 0x76..0x78;
/// Bytes of every inode's record, also of long ones.
const INODE_BASE: usize = 128;
/// `s_creator_os` of Linux; others use some of the fields differently.
const CREATOR_LINUX: u32 = 0;

/// A worker's findings.
pub(crate) struct Scanner<'s, 'd> {
    table: Reader<'d>,
    pub scan: Scan<'s, 'd>,
}

impl<'s, 'd> Scanner<'s, 'd> {
    pub(crate) fn new(shared: &'s Shared<'d>) -> Result<Self> {
        Ok(Scanner { table: shared.reader_of(RUN_MEMORY)?, scan: Scan::new(shared)? })
    }

    /// Checks all inodes of a group that may be in use.
    pub(crate) fn group(&mut self, group: Group) -> Result<()> {
        let shared = self.scan.shared;
        each_record(shared, &mut self.table, group, |ino, block, record| self.scan.record(ino, block, record))
    }
}

/// Reads the part of a group's inode table that may be in use, and calls `each` with every record.
pub(crate) fn each_record<'d>(
    shared: &Shared<'d>,
    table: &mut Reader<'d>,
    group: Group,
    mut each: impl FnMut(Ino, Pblk, &[u8]) -> Result<()>,
) -> Result<()> {
    let geometry = &shared.sb.geometry;
    let Some(descriptor) = &shared.groups[group.get() as usize] else { return Ok(()) };
    let count = descriptor.initialised_inodes(shared.sb);
    let (per_block, size) = (geometry.inodes_per_block(), usize::from(geometry.inode_size()));
    let blocks = u64::from(count.div_ceil(per_block));
    let first = group.get() * geometry.inodes_per_group() + 1;
    let mut done = 0u64;
    while done < blocks {
        let length = table.capacity().min(blocks - done);
        let start = descriptor.inode_table.get() + done;
        let bytes = table.run(start, length)?;
        for (block, bytes) in bytes.chunks_exact(geometry.block_size() as usize).enumerate() {
            let index = (done as u32 + block as u32) * per_block;
            let records = bytes.chunks_exact(size).take((count - index).min(per_block) as usize);
            for (offset, record) in records.enumerate() {
                each(Ino(first + index + offset as u32), Pblk(start + block as u64), record)?;
            }
        }
        done += length;
    }
    Ok(())
}

/// Two bytes of a record.
fn half(record: &[u8], at: usize) -> u16 {
    record.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u16::from_le_bytes)
}

/// Whether a field of a record is not 0.
fn is_set(record: &[u8], field: Range<usize>) -> bool {
    record.get(field).is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0))
}

fn is_zero(record: &[u8]) -> bool {
    let (words, rest) = record.as_chunks::<16>();
    words.iter().all(|word| *word == [0; 16]) && rest.iter().all(|byte| *byte == 0)
}

impl<'s, 'd> Scan<'s, 'd> {
    fn record(&mut self, ino: Ino, block: Pblk, record: &[u8]) -> Result<()> {
        let shared = self.shared;
        let role = Role::of(shared.sb, ino);
        if shared.is_bad_table(block.get()) {
            self.unreadable(ino, role, block);
            return Ok(());
        }
        if is_zero(record.get(..INODE_BASE).unwrap_or(record)) {
            // Never used, whatever the rest contains: its checksum does not count either; reserved ones count as used.
            if role != Role::Ordinary {
                self.enter(ino, UNKNOWN, MARK_RESERVED, 0);
                special::check_unused(self, ino, role);
            }
            return Ok(());
        }
        let place = Place { inode: Some(ino), block: Some(block), ..Place::default() };
        if role == Role::Ordinary && half(record, LINKS) == 0 && !shared.orphans.contains(&ino.get()) {
            self.left_behind(ino, place, record);
            return Ok(());
        }
        let decoded = Inode::decode(record, ino, shared.sb).or_else(|fault| {
            if fault.kind != CorruptKind::InodeChecksum {
                return Err(fault);
            }
            self.findings.corrupt(&kinds::INODE_CHECKSUM, place, &fault);
            Inode::decode(record, ino, &shared.lenient)
        });
        match decoded {
            Ok(inode) => self.decoded(ino, role, place, &inode, record),
            Err(fault) => {
                self.undecodable(ino, role, place, record, &fault);
                Ok(())
            }
        }
    }

    /// An inode in a bad block counts as used, and is otherwise unknown.
    fn unreadable(&mut self, ino: Ino, role: Role, block: Pblk) {
        if role == Role::BadBlocks {
            let place = Place { inode: Some(ino), block: Some(block), ..Place::default() };
            self.findings.add(&kinds::INODE_SPECIAL, place, "the list of bad blocks lies in one of them");
        }
        let reserved = if role.is_hidden() { MARK_RESERVED } else { 0 };
        self.enter(ino, UNKNOWN, MARK_BROKEN | MARK_BAD_BLOCK | reserved, 0);
    }

    /// An inode not in use keeps its old contents. It only needs a deletion time and a correct checksum.
    fn left_behind(&mut self, ino: Ino, place: Place, record: &[u8]) {
        if let Err(fault) = verify_inode_checksum(record, ino, self.shared.sb) {
            self.findings.corrupt(&kinds::INODE_CHECKSUM, place, &fault);
        }
        let deleted = u32::from(half(record, DELETED + 2)) << 16 | u32::from(half(record, DELETED));
        if half(record, MODE) != 0 && deleted == 0 {
            self.findings.add(&kinds::INODE_DELETED, place, "no links, but no deletion time");
        } else if self.shared.is_orphan_link(deleted) {
            let text = format_args!("deleted at {deleted}, as if on a list of orphans");
            self.findings.add(&kinds::INODE_DELETED, place, text);
        }
    }

    /// Records type and links, all that is known of an undecodable inode.
    fn undecodable(&mut self, ino: Ino, role: Role, place: Place, record: &[u8], fault: &Corrupt) {
        let (mode, links) = (half(record, MODE), half(record, LINKS));
        let holds_blocks = [0x1c, 0x1e, 0x28, 0x2a].into_iter().any(|at| half(record, at) != 0);
        if special::is_unused(ino, role, links) && !holds_blocks {
            self.enter(ino, UNKNOWN, MARK_RESERVED, 0);
            return;
        }
        self.findings.corrupt(&kinds::INODE_FIELD, place, fault);
        if links == 0 && role == Role::Ordinary {
            return;
        }
        self.shared.maps_incomplete.store(true, Ordering::Relaxed);
        let kind = FileType::from_mode(mode).map_or(UNKNOWN, FileType::dir_entry_value);
        let reserved = if role.is_hidden() { MARK_RESERVED } else { 0 };
        self.enter(ino, kind, MARK_BROKEN | reserved, links);
    }

    fn enter(&mut self, ino: Ino, kind: u8, marks: u8, links: u16) {
        self.counts.inodes += 1;
        if let Some(slot) = self.shared.inodes.make(ino) {
            slot.set(kind, marks, links);
        }
    }

    fn decoded(&mut self, ino: Ino, role: Role, place: Place, inode: &Inode, record: &[u8]) -> Result<()> {
        let shared = self.shared;
        let orphan = shared.orphans.contains(&ino.get());
        let file_type = inode.file_type();
        let mut marks = if role.is_hidden() { MARK_RESERVED } else { 0 };
        if orphan {
            marks |= MARK_ORPHAN;
        } else if inode.deleted != 0 && (!role.is_hidden() || self.shared.is_orphan_link(inode.deleted)) {
            let text = format_args!("in use with {} links, but deleted at {}", inode.links, inode.deleted);
            self.findings.add(&kinds::INODE_DELETED, place, text);
        }
        if inode.flags.contains(InodeFlags::EA_INODE) {
            marks |= MARK_VALUE;
        }
        let magic = shared.sb.features.compat.contains(Compat::IMAGIC_INODES);
        if magic && inode.flags.contains(InodeFlags::IMAGIC) {
            marks |= MARK_MAGIC;
        }
        let kind = file_type.map_or(UNKNOWN, FileType::dir_entry_value);
        self.enter(ino, kind, marks, inode.links);
        match file_type {
            Some(FileType::Directory) => self.counts.directories += 1,
            Some(FileType::Regular) => self.counts.files += u64::from(!role.is_hidden()),
            Some(FileType::Symlink) => self.counts.symlinks += 1,
            Some(_) => self.counts.special += 1,
            None if role.is_hidden() => {}
            None => {
                let text = format_args!("mode {:#o} names no file type", inode.mode);
                self.findings.add(&kinds::INODE_MODE, place, text);
            }
        }
        special::check_role(self, ino, role, place, inode);
        self.check_flags(ino, role, place, inode);
        if special::is_unused(ino, role, inode.links) {
            return Ok(());
        }
        if role != Role::BadBlocks && file_type == Some(FileType::Regular) && inode.size >= 1 << 31 {
            self.shared.large_files.fetch_add(1, Ordering::Relaxed);
        }
        if role == Role::Resize {
            return special::check_resize(self, ino, place, inode);
        }
        // Reserved inodes are checked only for their purpose.
        if !role.is_hidden() {
            self.check_fields(place, inode, record);
            self.check_unused(place, inode, record);
        }
        self.contents(ino, role, place, inode, record)
    }

    /// Checks the flags that determine how an inode is read, reserved inodes included.
    fn check_flags(&mut self, ino: Ino, role: Role, place: Place, inode: &Inode) {
        let (features, flags) = (&self.shared.sb.features, inode.flags);
        let directory = inode.file_type() == Some(FileType::Directory);
        // As in e2fsck: among inodes without links only these must have extents.
        let in_use = inode.links != 0 || [Ino::BAD_BLOCKS, Ino::ROOT, Ino::JOURNAL].contains(&ino);
        let wrong = [
            (
                InodeFlags::INDEX,
                directory && features.compat.contains(Compat::DIR_INDEX)
                    || role == Role::BadBlocks
                    || special::is_unused(ino, role, inode.links),
            ),
            (InodeFlags::CASEFOLD, directory && features.incompat.contains(Incompat::CASEFOLD)),
            (
                InodeFlags::INLINE_DATA,
                features.incompat.contains(Incompat::INLINE_DATA) || !self.may_be_inline(ino, role),
            ),
            (InodeFlags::IMAGIC, features.compat.contains(Compat::IMAGIC_INODES) || role.is_hidden()),
            // e2fsck requires this since 1.47.1.
            (InodeFlags::EA_INODE, inode.file_type() == Some(FileType::Regular) || role.is_hidden()),
            (InodeFlags::EXTENTS, features.incompat.contains(Incompat::EXTENTS) || !in_use),
        ];
        for (flag, allowed) in wrong {
            if flags.contains(flag) && !allowed {
                self.findings.add(&kinds::INODE_FLAGS, place, format_args!("flag {flag} cannot be here"));
            }
        }
        if flags.contains(InodeFlags::INLINE_DATA | InodeFlags::EXTENTS) {
            self.findings.add(&kinds::INODE_FLAGS, place, "both inline data and extents");
        }
    }

    /// Whether to expect inline data. A reserved inode with that flag has no blocks, and its contents do not matter.
    fn may_be_inline(&self, ino: Ino, role: Role) -> bool {
        role == Role::Root || ino >= self.shared.sb.geometry.first_inode()
    }

    fn check_fields(&mut self, place: Place, inode: &Inode, record: &[u8]) {
        let times = [Some(inode.accessed), Some(inode.changed), Some(inode.modified), inode.created];
        if times.iter().flatten().any(|time| time.nanoseconds > 999_999_999) {
            self.findings.add(&kinds::INODE_TIME, place, "a time has too many nanoseconds");
        }
        let device = !matches!(
            inode.file_type(),
            None | Some(FileType::Regular | FileType::Directory | FileType::Symlink)
        );
        let barred =
            InodeFlags::IMMUTABLE | InodeFlags::APPEND | InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
        if device && inode.flags.intersects(barred) {
            let text = format_args!("a device node, pipe or socket has the flags {}", inode.flags & barred);
            self.findings.add(&kinds::INODE_FLAGS, place, text);
        }
        // The upper half must be 0 too, even if it does not count.
        if device && (inode.size != 0 || is_set(record, SIZE_HIGH)) {
            let text = format_args!("a device node, pipe or socket of {} bytes", inode.size);
            self.findings.add(&kinds::INODE_SIZE, place, text);
        }
    }

    /// Fields that must be 0 because nothing uses them on this volume.
    fn check_unused(&mut self, place: Place, inode: &Inode, record: &[u8]) {
        let features = &self.shared.sb.features;
        let set = |field| is_set(record, field);
        let directory = inode.file_type() == Some(FileType::Directory);
        let link = inode.file_type() == Some(FileType::Symlink);
        let linux = self.shared.sb.creator_os == CREATOR_LINUX;
        let wrong = [
            (
                "the address of a fragment is not 0",
                fragment_address(record).is_some_and(|address| address != 0),
            ),
            (
                "the upper half of a directory's or link's size is not 0 without large_dir",
                (directory || link) && !features.incompat.contains(Incompat::LARGEDIR) && set(SIZE_HIGH),
            ),
            (
                "the upper half of the block count is not 0 without huge_file",
                linux && !features.ro_compat.contains(RoCompat::HUGE_FILE) && set(BLOCKS_HIGH),
            ),
            (
                "the upper half of the attribute block's number is not 0 without 64bit",
                linux && !features.incompat.contains(Incompat::BIT64) && set(XATTR_BLOCK_HIGH),
            ),
            (
                "it has an attribute block without ext_attr",
                inode.xattr_block.get() != 0 && !features.compat.contains(Compat::EXT_ATTR),
            ),
        ];
        for (text, _) in wrong.iter().filter(|(_, wrong)| *wrong) {
            self.findings.add(&kinds::INODE_FIELD, place, text);
        }
    }

    /// The map and what follows from it.
    fn contents(&mut self, ino: Ino, role: Role, place: Place, inode: &Inode, record: &[u8]) -> Result<()> {
        let (area, mut values) = self.own_attributes(place, inode, record);
        if !role.is_hidden() {
            self.check_context(place, inode, area.as_ref())?;
        }
        let inline = inode.has_inline_data();
        let mapped = match inode.file_type() {
            _ if inline => false,
            Some(FileType::Symlink) => inode.short_link_target().is_none(),
            Some(FileType::Regular | FileType::Directory) => true,
            Some(_) => false,
            // Anything else without a type has no map, whatever its block words contain.
            None => role == Role::BadBlocks && inode.i_block != [0; I_BLOCK_SIZE],
        };
        let mut claims = Claims::new(self.shared, ino, inode.file_type() == Some(FileType::Directory));
        claims.bad_list = role == Role::BadBlocks;
        let (broken, behind) = if mapped { self.walk(ino, inode, &mut claims)? } else { (false, None) };
        if mapped {
            self.translator(place, inode, record, &mut claims);
        }
        if inode.xattr_block.get() != 0 {
            self.xattr_blocks.push((inode.xattr_block.get(), ino.get()));
            claims.clusters += 1;
            values += self.block_values(inode.xattr_block)?;
        }
        if inline {
            if self.may_be_inline(ino, role) {
                self.inline_contents(ino, place, inode, area);
                if inode.file_type() == Some(FileType::Regular) {
                    self.check_longest(place, inode);
                    self.check_sealed_inline(place, inode);
                }
            } else if inode.sectors(self.shared.sb) != 0 {
                // The flag hides a map; e2fsck does not follow it either.
                self.shared.maps_incomplete.store(true, Ordering::Relaxed);
            }
            self.check_block_count(place, inode, &claims, values);
            return Ok(());
        }
        claims.report(&mut self.findings, &mut self.dir_blocks);
        if role == Role::BadBlocks {
            // Its size and count are not maintained.
            return Ok(());
        }
        if !broken {
            self.check_block_count(place, inode, &claims, values);
        }
        let by_blocks = mapped && claims.first.is_some() && !inode.uses_extents();
        if by_blocks
            && inode.file_type() != Some(FileType::Symlink)
            && !role.is_hidden()
            && self.shared.sb.features.ro_compat.contains(RoCompat::BIGALLOC)
        {
            self.findings.add(&kinds::INODE_FLAGS, place, "mapped by blocks on a volume of clusters");
        }
        match inode.file_type() {
            Some(FileType::Symlink) => return self.check_symlink(place, inode, &claims, broken),
            Some(FileType::Directory) => self.check_directory(ino, place, inode, &claims, broken)?,
            _ if !broken => {
                self.check_size(place, inode, &claims);
                if let Some(behind) = behind.filter(|_| !role.is_hidden()) {
                    self.check_sealed(ino, place, inode, &behind)?;
                }
            }
            _ => {}
        }
        if role == Role::Journal {
            special::check_journal(self, place, inode, &claims)?;
        }
        Ok(())
    }

    /// The block of a passive translator of the Hurd. e2fsck looks for it where it looks for block pointers.
    fn translator(&mut self, place: Place, inode: &Inode, record: &[u8], claims: &mut Claims<'_, 'd>) {
        let Some(block) = translator_block(record, self.shared.sb).filter(|_| !inode.uses_extents()) else {
            return;
        };
        if self.shared.sb.geometry.usable_blocks().contains(block, 1) {
            claims.node(block.get());
        } else {
            let place = Place { block: Some(block), ..place };
            let text = "the block of its translator is outside the volume";
            self.findings.add(&kinds::INODE_FIELD, place, text);
        }
    }

    /// Walks the map. Returns whether it is broken, and what a sealed file has behind its contents.
    fn walk(
        &mut self,
        ino: Ino,
        inode: &Inode,
        claims: &mut Claims<'_, 'd>,
    ) -> Result<(bool, Option<Behind>)> {
        let checksums = self.shared.sb.features.metadata_csum();
        let mut walk = MapWalk::new(self.shared, &mut self.nodes, &mut self.findings, ino);
        walk.seed = checksums.then(|| inode.checksum_seed(ino, self.shared.sb));
        if !inode.flags.contains(InodeFlags::VERITY) {
            walk.all(inode, claims)?;
            return Ok((walk.broken, None));
        }
        let mut behind = BehindContents::new(claims, inode, self.shared.sb.geometry.block_size());
        walk.all(inode, &mut behind)?;
        Ok((walk.broken, Some(behind.found())))
    }

    /// `values`: how many of the clusters are those of values in other inodes.
    fn check_block_count(&mut self, place: Place, inode: &Inode, claims: &Claims<'_, '_>, values: u64) {
        let (sectors, clusters) = (inode.sectors(self.shared.sb), claims.clusters + values);
        if values == 0 {
            self.shared.check_sectors(place, sectors, clusters, &mut self.findings);
        } else {
            let block = inode.xattr_block.get();
            self.counted.push(Counted { place, block, sectors, clusters });
        }
    }

    /// Regular files: no written block past the end, and a size that the map can have.
    fn check_size(&mut self, place: Place, inode: &Inode, claims: &Claims<'_, '_>) {
        let block_size = u64::from(self.shared.sb.geometry.block_size());
        let sealed = inode.flags.contains(InodeFlags::VERITY);
        if let Some(last) = claims.last_written
            && inode.size < u64::from(last) * block_size
            && !sealed
        {
            let place = Place { lblk: Some(Lblk(last)), ..place };
            let text = format_args!("{} bytes, but logical block {last} is written", inode.size);
            self.findings.add(&kinds::INODE_SIZE, place, text);
        }
        self.check_longest(place, inode);
    }

    /// Data inside the inode must not exceed the reach of a block map, as in e2fsck.
    fn check_longest(&mut self, place: Place, inode: &Inode) {
        let block_size = u64::from(self.shared.sb.geometry.block_size());
        let most = if inode.uses_extents() {
            (block_size << 32) - 1
        } else {
            let per = block_size / 4;
            (12 + per + per * per + per * per * per) * block_size
        };
        if inode.size > most {
            let text = format_args!("{} bytes, but the map ends at {most}", inode.size);
            self.findings.add(&kinds::INODE_SIZE, place, text);
        }
    }

    fn check_directory(
        &mut self,
        ino: Ino,
        place: Place,
        inode: &Inode,
        claims: &Claims<'_, '_>,
        broken: bool,
    ) -> Result<()> {
        let sb = self.shared.sb;
        let block_size = u64::from(sb.geometry.block_size());
        let (blocks, mapped) = (inode.size / block_size, claims.end);
        if !broken {
            let more = u64::from(sb.prealloc_dir_blocks);
            if !inode.size.is_multiple_of(block_size)
                || blocks > mapped
                || mapped.saturating_sub(blocks) > more
            {
                let text = format_args!("{} bytes, but its map has {mapped} blocks", inode.size);
                self.findings.add(&kinds::INODE_SIZE, place, text);
            }
        }
        let indexed =
            inode.flags.contains(InodeFlags::INDEX) && sb.features.compat.contains(Compat::DIR_INDEX);
        let folded = inode.flags.intersects(InodeFlags::CASEFOLD | InodeFlags::ENCRYPT);
        let mut hash = None;
        if indexed && folded {
            self.findings
                .not_examined("hashes of names", "names of the directory are case-folded or encrypted");
        } else if indexed && let Some(block) = claims.first {
            // Pass 2 reports damage of the root.
            let root =
                HtreeRoot::decode(self.nodes.block(block, 0)?, sb.hash_unsigned(), &self.shared.format);
            hash = root.ok().map(|root| root.hash_version);
        }
        // `.` and `..` of a directory that will be deleted are no links any more.
        if will_be_deleted(ino, inode) {
            return Ok(());
        }
        self.directories.push(Directory {
            ino: ino.get(),
            seed: inode.checksum_seed(ino, sb),
            indexed,
            hash,
            encrypted: inode.flags.contains(InodeFlags::ENCRYPT),
            folded: inode.flags.contains(InodeFlags::CASEFOLD),
        });
        Ok(())
    }

    fn check_symlink(
        &mut self,
        place: Place,
        inode: &Inode,
        claims: &Claims<'_, '_>,
        broken: bool,
    ) -> Result<()> {
        if inode.flags.contains(InodeFlags::ENCRYPT) {
            return Ok(());
        }
        // The target ends with a zero that the size does not count.
        let size = usize::try_from(inode.size).unwrap_or(usize::MAX);
        let holds = |bytes: &[u8]| bytes.iter().position(|byte| *byte == 0) == Some(size) && size > 0;
        let wrong = match (inode.short_link_target(), claims.first) {
            (Some(_), _) => !holds(&inode.i_block),
            (None, _) if broken => false,
            (None, Some(block)) if claims.end == 1 => !holds(self.nodes.block(block, 0)?),
            (None, _) => true,
        };
        if wrong {
            let text = format_args!("no target of {} bytes is there", inode.size);
            self.findings.add(&kinds::INODE_SYMLINK, place, text);
        }
        Ok(())
    }
}

/// Whether files above 2 GiB need a feature that is off.
pub(crate) fn check_large_files(shared: &Shared<'_>, findings: &mut Findings) {
    let count = shared.large_files.load(Ordering::Relaxed);
    if count > 0 && !shared.sb.features.ro_compat.contains(RoCompat::LARGE_FILE) {
        findings.add(&kinds::SUPER_LARGE_FILE, Place::default(), format_args!("{count} such files"));
    }
}

/// Whether the next mount deletes an inode that was entered: its last name is gone.
pub(crate) fn will_be_deleted(ino: Ino, inode: &Inode) -> bool {
    inode.links == 0 && ino != Ino::ROOT
}
