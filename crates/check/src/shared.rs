//! State shared by the threads of a check: places of metadata, claimed blocks, facts about each inode.

use crate::bits::Bits;
use crate::kinds;
use crate::read::Reader;
use crate::report::Findings;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use uext4::Result;
use uext4::device::Device;
use uext4_ondisk::ext4::{DirFormat, FileType, GroupDescriptor, RoCompat, Superblock};
use uext4_ondisk::{Group, Ino, Pblk, Place};

/// Bytes of a reader for single blocks: nodes of maps, attribute blocks, link targets.
const NODE_MEMORY: usize = 64 << 10;
/// Bytes of a reader for long runs: inode tables, directories.
pub(crate) const RUN_MEMORY: usize = 1 << 20;

/// How often each cluster may be claimed before further claims are ignored.
const CLAIMS: u64 = 4;
/// The same limit on volumes where files may share blocks. It bounds the time of a check.
const CLAIMS_OF_SHARED: u64 = 256;

/// Name of a zone whose blocks the list of bad blocks may contain.
pub(crate) const INODE_TABLE: &str = "inode table";
/// The same.
pub(crate) const SUPERBLOCK: &str = "superblock and descriptors";

/// Blocks of the file system's own metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Zone {
    pub start: u64,
    pub end: u64,
    pub group: Group,
    pub what: &'static str,
}

/// State shared by all passes.
pub(crate) struct Shared<'d> {
    pub device: &'d dyn Device,
    pub sb: &'d Superblock,
    /// The same without checksums: decodes what has a wrong one.
    pub lenient: Superblock,
    pub format: DirFormat,
    /// Findings kept of each kind.
    pub cap: usize,
    pub threads: u32,
    /// Descriptors; `None` where one leads to impossible places.
    pub groups: Vec<Option<GroupDescriptor>>,
    /// Sorted by place.
    pub zones: Vec<Zone>,
    /// Clusters of the zones.
    pub system: Bits,
    /// Claimed clusters.
    pub used: Bits,
    /// Clusters claimed more than once.
    pub twice: Bits,
    /// Blocks, not clusters, of inode tables that are listed as bad: they contain no inodes.
    pub bad_tables: Bits,
    pub inodes: InodeMap,
    /// Inodes waiting for deletion or truncation.
    pub orphans: HashSet<u32>,
    /// Whether the journal was replayed when the volume was opened.
    pub recovered: bool,
    /// Whether a map could not be followed, so that some claims are missing.
    pub maps_incomplete: AtomicBool,
    pub large_files: AtomicU64,
    /// For each attribute block met so far, the clusters counted for the value inodes it names. Only on volumes that
    /// can have such values.
    pub block_values: Mutex<HashMap<u64, u64>>,
    /// Encrypted inodes and how they are encrypted, sorted; set after pass 1.
    pub policies: OnceLock<Vec<(u32, u64)>>,
    nodes_left: AtomicU64,
    claims_left: AtomicU64,
    dir_blocks_left: AtomicU64,
}

impl<'d> Shared<'d> {
    pub(crate) fn new(device: &'d dyn Device, sb: &'d Superblock, cap: usize, threads: u32) -> Self {
        let blocks = sb.geometry.blocks_count();
        let clusters = (blocks >> sb.geometry.cluster_log()) + 1;
        let shares = sb.features.ro_compat.contains(RoCompat::SHARED_BLOCKS);
        let claims = if shares { CLAIMS_OF_SHARED } else { CLAIMS };
        let mut lenient = sb.clone();
        lenient.features.ro_compat &= !(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM);
        Shared {
            device,
            sb,
            lenient,
            format: DirFormat::new(sb),
            cap,
            threads,
            groups: Vec::new(),
            zones: Vec::new(),
            system: Bits::new(clusters),
            used: Bits::new(clusters),
            twice: Bits::new(clusters),
            bad_tables: Bits::new(blocks),
            inodes: InodeMap::new(sb),
            orphans: HashSet::new(),
            recovered: false,
            maps_incomplete: AtomicBool::new(false),
            large_files: AtomicU64::new(0),
            block_values: Mutex::default(),
            policies: OnceLock::new(),
            // An honest volume needs each block once; what is above is for damaged ones, bounded.
            nodes_left: AtomicU64::new(blocks.saturating_mul(2) + 64),
            claims_left: AtomicU64::new(clusters.saturating_mul(claims) + 64),
            dir_blocks_left: AtomicU64::new(blocks + 64),
        }
    }

    pub(crate) fn reader(&self) -> Result<Reader<'d>> {
        self.reader_of(NODE_MEMORY)
    }

    pub(crate) fn reader_of(&self, bytes: usize) -> Result<Reader<'d>> {
        let geometry = &self.sb.geometry;
        Reader::new(self.device, geometry.block_size(), geometry.blocks_count(), bytes)
    }

    /// Whether an inode belongs to a group whose table cannot be found.
    pub(crate) fn is_out_of_reach(&self, ino: u32) -> bool {
        let group = self.sb.geometry.group_of_inode(Ino(ino)).map(|(group, _)| group.get() as usize);
        group.and_then(|group| self.groups.get(group)).is_some_and(Option::is_none)
    }

    /// The number of a block's cluster in the bitmaps.
    pub(crate) fn cluster_of(&self, block: u64) -> u64 {
        let first = u64::from(self.sb.geometry.first_data_block());
        block.saturating_sub(first) >> self.sb.geometry.cluster_log()
    }

    /// The first block of a cluster.
    pub(crate) fn block_of(&self, cluster: u64) -> u64 {
        (cluster << self.sb.geometry.cluster_log()) + u64::from(self.sb.geometry.first_data_block())
    }

    /// Marks clusters as used; `false` if the volume's claims exceed the bound and this one is ignored.
    pub(crate) fn claim(&self, cluster: u64, count: u64) -> bool {
        if !take(&self.claims_left, count) {
            return false;
        }
        let shared = self.sb.features.ro_compat.contains(RoCompat::SHARED_BLOCKS);
        self.used.set(cluster, count, (!shared).then_some(&self.twice));
        true
    }

    /// Asks to look at blocks that are not claimed.
    pub(crate) fn pass_over(&self, count: u64) -> bool {
        take(&self.claims_left, count)
    }

    /// Whether a block of an inode table is listed as bad.
    pub(crate) fn is_bad_table(&self, block: u64) -> bool {
        self.bad_tables.word(block) & 1 != 0
    }

    /// Lets maps be walked once more.
    pub(crate) fn renew_nodes(&self) {
        self.nodes_left.store(self.sb.geometry.blocks_count().saturating_mul(2) + 64, Ordering::Relaxed);
    }

    /// Asks to read one more node of a map.
    pub(crate) fn take_node(&self) -> bool {
        take(&self.nodes_left, 1)
    }

    /// Asks to look into one more directory block.
    pub(crate) fn take_dir_block(&self) -> bool {
        take(&self.dir_blocks_left, 1)
    }

    /// The zone that shares a block with this run.
    pub(crate) fn zone_at(&self, block: u64, count: u64) -> Option<&Zone> {
        let end = block.saturating_add(count);
        let behind = self.zones.partition_point(|zone| zone.start < end);
        // Zones of a damaged volume may overlap, so one before the last may reach further; the last few do.
        self.zones[..behind].iter().rev().take(4).find(|zone| zone.end > block)
    }

    /// Where an inode's record is: its block and the byte in it. `None` if its group cannot be used.
    pub(crate) fn inode_place(&self, ino: Ino) -> Option<(Pblk, usize)> {
        let (group, index) = self.sb.geometry.group_of_inode(ino)?;
        let descriptor = self.groups.get(group.get() as usize)?.as_ref()?;
        let (block, offset) = self.sb.geometry.inode_table_position(index);
        Some((descriptor.inode_table.checked_add(u64::from(block))?, offset as usize))
    }

    /// Whether a deletion time cannot be a time, but is the next inode of an orphan list. Not on volumes whose clocks
    /// were that early, or wrapped around: deletion times have 32 bits, so the other times are compared in 32 bits too.
    pub(crate) fn is_orphan_link(&self, deleted: u32) -> bool {
        let early = |time: u32| (1..self.sb.geometry.inodes_count()).contains(&time);
        let times = &self.sb.times;
        early(deleted)
            && ![times.mounted, times.written, times.created].iter().any(|time| early(*time as u32))
    }

    /// Whether an inode counts the blocks that it has, in units of 512 bytes.
    pub(crate) fn check_sectors(&self, place: Place, said: u64, clusters: u64, findings: &mut Findings) {
        let geometry = &self.sb.geometry;
        let per_cluster = u64::from(geometry.block_size() / 512) << geometry.cluster_log();
        let expected = clusters.saturating_mul(per_cluster);
        if said != expected {
            let text = format_args!("counts {said} sectors, its map has {expected}");
            findings.add(&kinds::INODE_BLOCKS, place, text);
        }
    }

    /// Whether an inode is not for ordinary files.
    pub(crate) fn is_reserved(&self, ino: u32) -> bool {
        ino < self.sb.geometry.first_inode().get()
    }
}

fn take(left: &AtomicU64, count: u64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(count)).is_ok()
}

/// What an inode is, in a slot's low byte.
pub(crate) const FREE: u8 = 0;
/// In use, but of no known type.
pub(crate) const UNKNOWN: u8 = 15;

/// Facts about one inode.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Kind, marks, links.
    state: AtomicU32,
    /// Entries that name it.
    seen: AtomicU32,
}

/// A reserved inode: no directory names it.
pub(crate) const MARK_RESERVED: u8 = 1;
/// The inode holds an attribute's value: no directory names it.
pub(crate) const MARK_VALUE: u8 = 2;
/// The inode waits for deletion or truncation.
pub(crate) const MARK_ORPHAN: u8 = 4;
/// The inode is damaged beyond use.
pub(crate) const MARK_BROKEN: u8 = 8;
/// The inode is in a bad block.
pub(crate) const MARK_BAD_BLOCK: u8 = 16;
/// An AFS server created the inode: it needs no name, and counts its links differently.
pub(crate) const MARK_MAGIC: u8 = 32;

impl Slot {
    pub(crate) fn set(&self, kind: u8, marks: u8, links: u16) {
        let state = u32::from(kind) | u32::from(marks) << 8 | u32::from(links) << 16;
        self.state.store(state, Ordering::Relaxed);
    }

    pub(crate) fn kind(&self) -> u8 {
        (self.state.load(Ordering::Relaxed) & 0xff) as u8
    }

    pub(crate) fn file_type(&self) -> Option<FileType> {
        FileType::from_dir_entry(self.kind())
    }

    pub(crate) fn marks(&self) -> u8 {
        (self.state.load(Ordering::Relaxed) >> 8 & 0xff) as u8
    }

    pub(crate) fn links(&self) -> u16 {
        (self.state.load(Ordering::Relaxed) >> 16) as u16
    }

    pub(crate) fn count_entry(&self) {
        // Cannot wrap: entries take at least 12 bytes each of at most 2^32 directory blocks looked into; a
        // volume that large has no such entries in memory reach. Saturates anyway.
        let _full = self.seen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seen| seen.checked_add(1));
    }

    pub(crate) fn entries(&self) -> u32 {
        self.seen.load(Ordering::Relaxed)
    }
}

/// Slots of all inodes, in memory group by group once an inode of the group is in use.
pub(crate) struct InodeMap {
    groups: Vec<OnceLock<Box<[Slot]>>>,
    per_group: u32,
    count: u32,
}

impl InodeMap {
    fn new(sb: &Superblock) -> InodeMap {
        let groups = sb.geometry.group_count() as usize;
        InodeMap {
            groups: (0..groups).map(|_| OnceLock::new()).collect(),
            per_group: sb.geometry.inodes_per_group().max(1),
            count: sb.geometry.inodes_count(),
        }
    }

    /// The slot of an inode, made if its group has none yet.
    pub(crate) fn make(&self, ino: Ino) -> Option<&Slot> {
        let (group, index) = self.find(ino.get())?;
        let size = self.per_group as usize;
        self.groups.get(group)?.get_or_init(|| (0..size).map(|_| Slot::default()).collect()).get(index)
    }

    /// The slot of an inode that is in use.
    pub(crate) fn in_use(&self, ino: u32) -> Option<&Slot> {
        let (group, index) = self.find(ino)?;
        self.groups.get(group)?.get()?.get(index).filter(|slot| slot.kind() != FREE)
    }

    /// The slots of a group, if an inode of it is in use.
    pub(crate) fn group(&self, group: u32) -> Option<&[Slot]> {
        self.groups.get(group as usize)?.get().map(|slots| &slots[..])
    }

    fn find(&self, ino: u32) -> Option<(usize, usize)> {
        if ino > self.count {
            return None;
        }
        let offset = ino.checked_sub(1)?;
        Some(((offset / self.per_group) as usize, (offset % self.per_group) as usize))
    }

    /// All inodes in use, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Slot)> {
        self.groups.iter().enumerate().filter_map(|(group, slots)| Some((group, slots.get()?))).flat_map(
            |(group, slots)| {
                let first = group as u32 * self.per_group + 1;
                let numbered =
                    slots.iter().enumerate().map(move |(index, slot)| (first + index as u32, slot));
                numbered.filter(|(_, slot)| slot.kind() != FREE)
            },
        )
    }
}
