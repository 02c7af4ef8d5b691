//! Every structure of a sound volume with its place.

use std::collections::BTreeSet;

use super::bytes::{le16, le32};
use super::geometry::{Geometry, SUPERBLOCK, feature};
use super::journal::{self, Log};
use super::tree;

/// What stands at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The primary superblock.
    Superblock,
    /// A group descriptor.
    Descriptor,
    /// A block bitmap.
    BlockBitmap,
    /// An inode bitmap.
    InodeBitmap,
    /// An inode record with what stands inside.
    Inode,
    /// An extent tree node outside its inode.
    ExtentNode,
    /// A block of block numbers.
    Indirect,
    /// A directory block of entries.
    DirLeaf,
    /// The first block of an indexed directory.
    HtreeRoot,
    /// Another index block of a directory.
    HtreeNode,
    /// A block of extended attributes.
    Xattrs,
    /// The target of a long symbolic link, or an attribute's value in an inode of its own.
    Data,
    /// The superblock of the journal.
    JournalSuper,
    /// A descriptor block of the log.
    JournalDescriptor,
    /// A revoke block of the log.
    JournalRevoke,
    /// A commit block of the log.
    JournalCommit,
    /// A logged block.
    JournalData,
    /// A block of the fast-commit area.
    FastCommit,
    /// A block of the orphan file.
    Orphans,
    /// The multi-mount block.
    Mmp,
}

/// One structure.
#[derive(Debug, Clone)]
pub struct Site {
    /// What it is.
    pub kind: Kind,
    /// First byte.
    pub at: usize,
    /// Bytes.
    pub length: usize,
    /// Inode it belongs to or is; the group for group structures.
    pub owner: u64,
    /// Its block.
    pub block: u64,
}

/// All structures of a volume.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Sizes.
    pub geometry: Geometry,
    /// Structures, by kind.
    pub sites: Vec<Site>,
    /// What is in the log.
    pub log: Log,
    /// Byte of each inode record by number; index 0 is unused.
    pub inodes: Vec<usize>,
}

const FLAG_INDEX: u64 = 0x1000;
const FLAG_EA_INODE: u64 = 0x20_0000;
const FLAG_INLINE: u64 = 0x1000_0000;

impl Layout {
    /// Finds everything on an undamaged volume.
    pub fn of(image: &[u8]) -> Layout {
        let geometry = Geometry::of(image);
        let mut layout = Layout { geometry, sites: Vec::new(), log: Log::default(), inodes: vec![0] };
        layout.add(Kind::Superblock, SUPERBLOCK, 1024, 0);
        for group in 0..layout.geometry.groups {
            layout.group(image, group);
        }
        let mmp = le32(image, SUPERBLOCK + 0x168);
        if layout.geometry.incompat & feature::INCOMPAT_MMP != 0 {
            layout.add_block(Kind::Mmp, mmp, 0);
        }
        let mut attributes = BTreeSet::new();
        for number in 1..layout.inodes.len() {
            layout.inode(image, number, &mut attributes);
        }
        layout.sites.retain(|site| site.at + site.length <= image.len());
        layout.sites.sort_by_key(|site| (site.kind, site.at));
        layout
    }

    fn add(&mut self, kind: Kind, at: usize, length: usize, owner: u64) {
        let block = (at / self.geometry.block) as u64;
        self.sites.push(Site { kind, at, length, owner, block });
    }

    /// A site of a whole block.
    pub(super) fn add_block(&mut self, kind: Kind, block: u64, owner: u64) {
        self.add(kind, block as usize * self.geometry.block, self.geometry.block, owner);
    }

    fn group(&mut self, image: &[u8], group: u64) {
        let at = self.geometry.descriptor_at(image, group);
        self.add(Kind::Descriptor, at, self.geometry.descriptor, group);
        self.add_block(Kind::BlockBitmap, le32(image, at), group);
        self.add_block(Kind::InodeBitmap, le32(image, at + 4), group);
        let table = le32(image, at + 8) as usize * self.geometry.block;
        for index in 0..self.geometry.inodes_per_group as usize {
            self.inodes.push(table + index * self.geometry.inode);
        }
    }

    fn inode(&mut self, image: &[u8], number: usize, attributes: &mut BTreeSet<u64>) {
        let at = self.inodes[number];
        let Some(record) = image.get(at..at + self.geometry.inode) else { return };
        let (mode, flags, owner) = (le16(record, 0), le32(record, 0x20), number as u64);
        if record.iter().all(|&byte| byte == 0) {
            return;
        }
        self.add(Kind::Inode, at, self.geometry.inode, owner);
        if le16(record, 0x1a) == 0 {
            return;
        }
        let block = le32(record, 0x68);
        if block != 0 && attributes.insert(block) {
            self.add_block(Kind::Xattrs, block, owner);
        }
        let fast_link = mode >> 12 == 0xa && le32(record, 4) < 60;
        let has_blocks = matches!(mode >> 12, 0x4 | 0x8 | 0xa) && !fast_link;
        if !has_blocks || flags & FLAG_INLINE != 0 {
            return;
        }
        let blocks = tree::blocks(image, self, at, owner);
        if number as u64 == le32(image, SUPERBLOCK + 0xe0) {
            self.log = journal::scan(image, self, owner, &blocks);
        } else if number as u64 == le32(image, SUPERBLOCK + 0x280) {
            blocks.iter().for_each(|&(_, block)| self.add_block(Kind::Orphans, block, owner));
        } else if mode >> 12 == 0x4 {
            self.directory(image, owner, flags & FLAG_INDEX != 0, &blocks);
        } else if mode >> 12 == 0xa || flags & FLAG_EA_INODE != 0 {
            blocks.iter().for_each(|&(_, block)| self.add_block(Kind::Data, block, owner));
        }
    }

    fn directory(&mut self, image: &[u8], owner: u64, indexed: bool, blocks: &[(u64, u64)]) {
        for &(logical, block) in blocks {
            let at = block as usize * self.geometry.block;
            let whole = le32(image, at) == 0 && le16(image, at + 4) == self.geometry.block as u64 % 65536;
            let kind = match (indexed, logical) {
                (true, 0) => Kind::HtreeRoot,
                (true, _) if whole && le16(image, at + 8) > 1 => Kind::HtreeNode,
                _ => Kind::DirLeaf,
            };
            self.add_block(kind, block, owner);
        }
    }

    /// The sites of one kind.
    pub fn of_kind(&self, kind: Kind) -> &[Site] {
        let start = self.sites.partition_point(|site| site.kind < kind);
        let end = self.sites.partition_point(|site| site.kind <= kind);
        &self.sites[start..end]
    }

    /// The kinds that this volume has.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<_> = self.sites.iter().map(|site| site.kind).collect();
        kinds.dedup();
        kinds
    }
}
