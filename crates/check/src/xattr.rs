//! Attributes: those inside inodes, those in blocks that inodes share, and contents kept as an attribute.

use crate::inode::will_be_deleted;
use crate::kinds;
use crate::orphans;
use crate::read::Reader;
use crate::report::Findings;
use crate::scan::{Counted, InlineDirectory, Scan, ValueUse};
use crate::shared::{MARK_BROKEN, MARK_RESERVED, MARK_VALUE, Shared};
use std::collections::{HashMap, HashSet};
use uext4::Result;
use uext4_ondisk::ext4::{
    FileType, I_BLOCK_SIZE, Incompat, Inode, InodeFlags, Superblock, XattrArea, XattrBlock, XattrEntry,
    XattrFormat, XattrIndex, XattrValue, xattr_entry_hash, xattr_value_checksum_of,
};
use uext4_ondisk::{CorruptKind, Ino, Pblk, Place};

/// Name, after `system.`, of the attribute that contains inline data.
const CONTENTS: &[u8] = b"data";

/// Uses of values in attribute blocks that are collected before they are checked: 32 MiB.
const VALUES_KEPT: usize = 1 << 20;

/// Clusters of values in Lustre's form, which no inode counts: for attributes inside inodes, and for those in blocks.
#[derive(Default)]
pub(crate) struct Uncounted {
    inodes: HashMap<u32, u64>,
    blocks: HashMap<u64, u64>,
    /// The values, which count no references either.
    values: HashSet<u32>,
}

impl Uncounted {
    fn add(&mut self, one: &ValueUse) {
        let clusters = match one.block {
            0 => self.inodes.entry(one.owner).or_default(),
            block => self.blocks.entry(block).or_default(),
        };
        *clusters += u64::from(one.clusters);
        self.values.insert(one.value);
    }

    fn of(&self, counted: &Counted) -> u64 {
        let own = counted.place.inode.and_then(|ino| self.inodes.get(&ino.get()));
        own.copied().unwrap_or(0) + self.blocks.get(&counted.block).copied().unwrap_or(0)
    }
}

/// The clusters of a value of this many bytes.
fn value_clusters(sb: &Superblock, size: u32) -> u32 {
    let cluster = u64::from(sb.geometry.block_size()) << sb.geometry.cluster_log();
    // No more than bytes.
    u64::from(size).div_ceil(cluster) as u32
}

impl ValueUse {
    fn new(shared: &Shared<'_>, value: (Ino, u32), place: Place, entry: &XattrEntry<'_>) -> ValueUse {
        let (value, size) = value;
        let name = [false, true].map(|signed| xattr_entry_hash(entry.name, &[], signed));
        ValueUse {
            value: value.get(),
            owner: place.inode.map_or(0, Ino::get),
            block: place.block.map_or(0, Pblk::get),
            checksums: name.map(|name| xattr_value_checksum_of(name, entry.hash)),
            clusters: value_clusters(shared.sb, size),
        }
    }

    fn place(&self) -> Place {
        let block = Some(Pblk(self.block)).filter(|block| block.get() != 0);
        Place { inode: Some(Ino(self.owner)), block, ..Place::default() }
    }
}

impl Scan<'_, '_> {
    /// The attributes inside an inode. Returns them, and the clusters that their values in other inodes count.
    pub(crate) fn own_attributes<'r>(
        &mut self,
        place: Place,
        inode: &Inode,
        record: &'r [u8],
    ) -> (Option<XattrArea<'r>>, u64) {
        let sb = self.shared.sb;
        let bytes = record.get(inode.xattr_range(sb)).unwrap_or_default();
        match XattrArea::in_inode(bytes, &XattrFormat::new(sb)) {
            Ok(Some(area)) => {
                let clusters = self.values(place, &area);
                (Some(area), clusters)
            }
            Ok(None) => (None, 0),
            Err(fault) => {
                self.findings.corrupt(&kinds::XATTR_INODE, place, &fault);
                (None, 0)
            }
        }
    }

    /// Checks hashes and notes values in inodes of their own. Returns the clusters those count.
    fn values(&mut self, place: Place, area: &XattrArea<'_>) -> u64 {
        let mut clusters = 0u64;
        for entry in area.entries() {
            match entry.value {
                XattrValue::Inode { inode, size } => {
                    let place = Place { block: None, ..place };
                    let one = ValueUse::new(self.shared, (inode, size), place, &entry);
                    clusters += u64::from(one.clusters);
                    self.value_inodes.push(one);
                }
                // The hash of contents is not maintained.
                XattrValue::Here(_)
                    if entry.index() == Some(XattrIndex::System) && entry.name == CONTENTS => {}
                XattrValue::Here(_) => {
                    if let Err(fault) = entry.verify_hash() {
                        self.findings.corrupt(&kinds::XATTR_HASH, place, &fault);
                    }
                }
            }
        }
        clusters
    }

    /// The clusters counted for values that an inode's attribute block names. Only volumes with such values need it for
    /// each inode; all other checks of the block are made once. Many inodes may share a block, which may name thousands
    /// of values, so the count is computed once and cached.
    pub(crate) fn block_values(&mut self, block: Pblk) -> Result<u64> {
        let sb = self.shared.sb;
        if !sb.features.incompat.contains(Incompat::EA_INODE) {
            return Ok(0);
        }
        if let Some(clusters) = self.shared.block_values.lock().get(&block.get()) {
            return Ok(*clusters);
        }
        // Another thread may work on the same block: both then find the same.
        let bytes = self.nodes.block(block.get(), 0)?;
        let count = |entry: XattrEntry<'_>| match entry.value {
            XattrValue::Inode { size, .. } => u64::from(value_clusters(sb, size)),
            XattrValue::Here(_) => 0,
        };
        let clusters = XattrBlock::decode(bytes, block, &self.shared.lenient)
            .map_or(0, |decoded| decoded.area.entries().map(count).sum());
        self.shared.block_values.lock().insert(block.get(), clusters);
        Ok(clusters)
    }

    /// Contents inside an inode.
    pub(crate) fn inline_contents(
        &mut self,
        ino: Ino,
        place: Place,
        inode: &Inode,
        area: Option<XattrArea<'_>>,
    ) {
        let value = area.and_then(|area| area.find(XattrIndex::System, CONTENTS)).map(|entry| entry.value);
        let Some(XattrValue::Here(rest)) = value else {
            self.findings.add(&kinds::INODE_INLINE, place, "the attribute `system.data` is missing");
            return;
        };
        let length = (I_BLOCK_SIZE + rest.len()) as u64;
        match inode.file_type() {
            Some(FileType::Directory) => {
                if inode.size != length {
                    let text = format_args!("{} bytes, but {length} are there", inode.size);
                    self.findings.add(&kinds::INODE_SIZE, place, text);
                }
                if will_be_deleted(ino, inode) {
                    return;
                }
                let bytes = inode.i_block.iter().chain(rest).copied().collect();
                self.inline_directories.push(InlineDirectory {
                    ino: ino.get(),
                    bytes,
                    encrypted: inode.flags.contains(InodeFlags::ENCRYPT),
                    folded: inode.flags.contains(InodeFlags::CASEFOLD),
                });
            }
            Some(FileType::Symlink) if inode.size == 0 || inode.size > length => {
                let text = format_args!("a target of {} bytes, but {length} are there", inode.size);
                self.findings.add(&kinds::INODE_SYMLINK, place, text);
            }
            _ => {}
        }
    }
}

/// Claims and checks each attribute block once, when all inodes are known. `uses`: blocks and the inodes that have
/// them, sorted. Values in other inodes are added to `values`, which are checked in large batches.
pub(crate) fn check_blocks(
    shared: &Shared<'_>,
    uses: &[(u64, u32)],
    values: &mut Vec<ValueUse>,
    uncounted: &mut Uncounted,
    findings: &mut Findings,
) -> Result<()> {
    let mut reader = shared.reader()?;
    for same in uses.chunk_by(|one, other| one.0 == other.0) {
        let block = Pblk(same[0].0);
        let place = Place { block: Some(block), inode: Some(Ino(same[0].1)), ..Place::default() };
        shared.claim(shared.cluster_of(block.get()), 1);
        let bytes = reader.block(block.get(), 15)?;
        let mut decoded = XattrBlock::decode(bytes, block, shared.sb);
        if let Err(fault) = &decoded
            && fault.kind == CorruptKind::XattrChecksum
        {
            findings.corrupt(&kinds::XATTR_CHECKSUM, place, fault);
            decoded = XattrBlock::decode(bytes, block, &shared.lenient);
        }
        match decoded {
            Ok(decoded) => {
                if u64::from(decoded.reference_count) != same.len() as u64 {
                    let text =
                        format_args!("counts {}, {} inodes have it", decoded.reference_count, same.len());
                    findings.add(&kinds::XATTR_REFERENCES, place, text);
                }
                for entry in decoded.area.entries() {
                    if let XattrValue::Inode { inode, size } = entry.value {
                        values.push(ValueUse::new(shared, (inode, size), place, &entry));
                    }
                    // In a block e2fsck accepts no name without a name space.
                    if entry.name_index == 0 {
                        let text = format_args!("`{}` has no name space", entry.name.escape_ascii());
                        findings.add(&kinds::XATTR_BLOCK, place, text);
                    }
                    // Nor one without a hash, which is common inside inodes.
                    if let Err(fault) = entry.verify_any_hash() {
                        findings.corrupt(&kinds::XATTR_HASH, place, &fault);
                    }
                }
            }
            Err(fault) => findings.corrupt(&kinds::XATTR_BLOCK, place, &fault),
        }
        if values.len() >= VALUES_KEPT {
            check_value_inodes(shared, values, uncounted, findings)?;
        }
    }
    Ok(())
}

/// Checks the inodes that contain attribute values; empties `uses`.
pub(crate) fn check_value_inodes(
    shared: &Shared<'_>,
    uses: &mut Vec<ValueUse>,
    uncounted: &mut Uncounted,
    findings: &mut Findings,
) -> Result<()> {
    let (mut values, mut owners) = (shared.reader()?, shared.reader()?);
    uses.sort_unstable_by_key(|one| (one.value, one.owner, one.block));
    for one in uses.drain(..) {
        if check_value(shared, &mut values, &mut owners, &one, findings)? {
            uncounted.add(&one);
        }
    }
    Ok(())
}

/// Checks the reference counts of all values that attributes have, each attribute block counting once. They are in the
/// time of change and the version.
pub(crate) fn check_value_references(
    shared: &Shared<'_>,
    uncounted: &Uncounted,
    findings: &mut Findings,
) -> Result<()> {
    if !shared.sb.features.incompat.contains(Incompat::EA_INODE) {
        return Ok(());
    }
    let mut values = shared.reader()?;
    for (ino, slot) in shared.inodes.iter() {
        let (marks, found) = (slot.marks(), slot.entries());
        let counts = marks & MARK_VALUE != 0 && marks & (MARK_BROKEN | MARK_RESERVED) == 0;
        if !counts || found == 0 || uncounted.values.contains(&ino) {
            continue;
        }
        let Some(value) = orphans::load(shared, &mut values, Ino(ino))? else { continue };
        let said = u64::from(value.changed.seconds as u32) << 32 | value.version & 0xffff_ffff;
        if said != u64::from(found) {
            let place = Place { inode: Some(Ino(ino)), ..Place::default() };
            let text = format_args!("counts {said}, {found} attributes have it");
            findings.add(&kinds::XATTR_VALUE_REFERENCES, place, text);
        }
    }
    Ok(())
}

/// Checks the block counts of inodes with values in other inodes.
pub(crate) fn check_counted(
    shared: &Shared<'_>,
    counted: &[Counted],
    uncounted: &Uncounted,
    findings: &mut Findings,
) {
    for one in counted {
        let clusters = one.clusters.saturating_sub(uncounted.of(one));
        shared.check_sectors(one.place, one.sectors, clusters, findings);
    }
}

/// Checks that an inode named as a value is a value inode, and marks it as named. The attribute's hash covers the
/// value's checksum, which the value inode stores as its access time. Lustre's old form has no checksum; it stores the
/// owner as the modification time, and the owner's generation. Returns whether it has that form.
fn check_value(
    shared: &Shared<'_>,
    values: &mut Reader<'_>,
    owners: &mut Reader<'_>,
    one: &ValueUse,
    findings: &mut Findings,
) -> Result<bool> {
    let place = one.place();
    match shared.inodes.in_use(one.value) {
        Some(slot) if slot.marks() & MARK_VALUE != 0 && !shared.is_reserved(one.value) => slot.count_entry(),
        _ => {
            findings.add(&kinds::XATTR_VALUE, place, format_args!("inode {} holds no value", one.value));
            return Ok(false);
        }
    }
    let Some(value) = orphans::load(shared, values, Ino(one.value))? else { return Ok(false) };
    let checksum = value.accessed.seconds as u32;
    if one.checksums.contains(&checksum) {
        return Ok(false);
    }
    if value.modified.seconds as u32 == one.owner {
        let owner = orphans::load(shared, owners, Ino(one.owner))?;
        if owner.is_some_and(|owner| owner.generation == value.generation) {
            return Ok(true);
        }
    }
    let (value, expected) = (one.value, one.checksums[0]);
    let text = format_args!(
        "it fits a value of checksum {expected:#010x}, that in inode {value} has {checksum:#010x}"
    );
    findings.add(&kinds::XATTR_HASH, place, text);
    Ok(false)
}
