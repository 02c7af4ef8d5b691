//! The quota files: hidden inodes with a tree of IDs in the format of Linux's `vfsv1`.

use super::error::Result;
use super::files::{allocate, regular};
use super::layout::Layout;
use super::map;
use super::options::{Options, QuotaType};
use super::sizes::FIRST_INODE;
use std::collections::BTreeMap;
use uext4_ondisk::Ino;
use uext4_ondisk::ext4::{Inode, InodeFlags, RoCompat};

/// Inodes of the user and group quota files; the project quota file has an ordinary inode.
const USERS: Ino = Ino(3);
const GROUPS: Ino = Ino(4);
/// Block size of the tree in bytes, whatever the volume's block size.
const BLOCK: usize = 1024;
/// The block of the tree's root.
const ROOT: u32 = 1;
/// Levels of the tree, each indexed by one byte of the ID.
const DEPTH: u32 = 4;
/// Bytes of a leaf's header, and of an entry.
const LEAF_HEAD: usize = 16;
const ENTRY: usize = 72;
const ENTRIES: usize = (BLOCK - LEAF_HEAD) / ENTRY;
/// Second version of the format: 64-bit counts.
const VERSION: u32 = 1;
/// Seconds for which a soft limit may be exceeded: a week.
const GRACE: u32 = 7 * 24 * 60 * 60;

impl QuotaType {
    fn magic(self) -> u32 {
        match self {
            QuotaType::Users => 0xD9C0_1F11,
            QuotaType::Groups => 0xD9C0_1927,
            QuotaType::Projects => 0xD9C0_3F14,
        }
    }

    fn identity(self, inode: &Inode) -> u32 {
        match self {
            QuotaType::Users => inode.uid,
            QuotaType::Groups => inode.gid,
            QuotaType::Projects => inode.project.unwrap_or(0),
        }
    }
}

/// Bytes and inodes used by an ID.
#[derive(Default)]
struct Used {
    bytes: u64,
    inodes: u64,
}

/// Places the quota files, with the usage of the files made so far. The volume's own files are not counted, nor are
/// files made later.
pub(super) fn place(layout: &mut Layout, options: &Options) -> Result<()> {
    let mut types = options.quota_types();
    if layout.superblock.features.ro_compat.contains(RoCompat::PROJECT) {
        types.push(QuotaType::Projects);
    }
    types.sort_unstable();
    types.dedup();
    let counted = counted(layout)?;
    for kind in types {
        let mut used = BTreeMap::<u32, Used>::new();
        for inode in &counted {
            let used = used.entry(kind.identity(inode)).or_default();
            used.bytes += inode.sectors(&layout.superblock) * 512;
            used.inodes += 1;
        }
        let ino = match kind {
            QuotaType::Users => USERS,
            QuotaType::Groups => GROUPS,
            QuotaType::Projects => layout.next_inode(),
        };
        file(layout, ino, &Tree::new(&used).bytes(kind))?;
        let place = match kind {
            QuotaType::Users => &mut layout.superblock.user_quota_inode,
            QuotaType::Groups => &mut layout.superblock.group_quota_inode,
            QuotaType::Projects => &mut layout.superblock.project_quota_inode,
        };
        *place = ino.get();
    }
    Ok(())
}

/// The inodes that are counted: the root directory and all that are not reserved, without the orphan file.
fn counted(layout: &Layout) -> Result<Vec<Inode>> {
    let orphans = layout.superblock.orphan_file_inode;
    let counts = |number: &u32| *number == Ino::ROOT.get() || *number >= FIRST_INODE && *number != orphans;
    let records = layout.inodes.iter().filter(|(number, _)| counts(number));
    let inodes = records.map(|(&number, record)| Inode::decode(record, Ino(number), &layout.superblock));
    inodes.collect::<std::result::Result<_, _>>().map_err(|corrupt| super::Error::Option(corrupt.to_string()))
}

fn file(layout: &mut Layout, ino: Ino, bytes: &[u8]) -> Result<()> {
    let size = layout.block_size();
    let count = bytes.len().div_ceil(size) as u64;
    let mapped = allocate(layout, ino, count)?;
    let mut inode = regular(layout, &mapped, count);
    inode.size = bytes.len() as u64;
    inode.flags |= InodeFlags::IMMUTABLE;
    layout.add(ino, &inode)?;
    let blocks: Vec<u64> = mapped.blocks().collect();
    if blocks.len() as u64 != count {
        return Err(map::full());
    }
    for (piece, at) in bytes.chunks(size).zip(blocks) {
        let mut block = piece.to_vec();
        block.resize(size, 0);
        layout.blocks.insert(at, block);
    }
    Ok(())
}

/// A tree under construction.
struct Tree {
    blocks: Vec<[u8; BLOCK]>,
    /// The leaf with free entries (0 for none), and the number of entries in it.
    leaf: u32,
    entries: usize,
}

impl Tree {
    fn new(used: &BTreeMap<u32, Used>) -> Tree {
        // The file header and the root.
        let mut tree = Tree { blocks: vec![[0; BLOCK]; 2], leaf: 0, entries: 0 };
        for (&identity, used) in used {
            tree.insert(identity, used);
        }
        tree
    }

    fn grow(&mut self) -> u32 {
        self.blocks.push([0; BLOCK]);
        self.blocks.len() as u32 - 1
    }

    fn put(&mut self, block: u32, at: usize, bytes: &[u8]) {
        if let Some(place) =
            self.blocks.get_mut(block as usize).and_then(|block| block.get_mut(at..at + bytes.len()))
        {
            place.copy_from_slice(bytes);
        }
    }

    fn child(&self, block: u32, at: usize) -> u32 {
        let word = self.blocks.get(block as usize).and_then(|block| block.get(at..)?.first_chunk());
        word.map_or(0, |word| u32::from_le_bytes(*word))
    }

    /// Adds an entry for an ID that has none yet, creating missing tree blocks.
    fn insert(&mut self, identity: u32, used: &Used) {
        let mut block = ROOT;
        for level in 1..=DEPTH {
            let at = 4 * (identity >> (8 * (DEPTH - level)) & 0xFF) as usize;
            let child = match self.child(block, at) {
                0 if level == DEPTH => self.leaf_with_room(),
                0 => self.grow(),
                child => child,
            };
            self.put(block, at, &child.to_le_bytes());
            block = child;
        }
        let at = LEAF_HEAD + ENTRY * self.entries;
        self.entries += 1;
        self.put(block, at, &identity.to_le_bytes());
        self.put(block, at + 24, &used.inodes.to_le_bytes());
        self.put(block, at + 48, &used.bytes.to_le_bytes());
        self.put(block, 8, &(self.entries as u16).to_le_bytes());
        if self.entries == ENTRIES {
            self.leaf = 0;
        }
    }

    fn leaf_with_room(&mut self) -> u32 {
        if self.leaf == 0 {
            (self.leaf, self.entries) = (self.grow(), 0);
        }
        self.leaf
    }

    /// The contents of the whole file.
    fn bytes(mut self, kind: QuotaType) -> Vec<u8> {
        let blocks = self.blocks.len() as u32;
        let head = [kind.magic(), VERSION, GRACE, GRACE, 0, blocks, 0, self.leaf];
        for (number, word) in head.into_iter().enumerate() {
            self.put(0, 4 * number, &word.to_le_bytes());
        }
        self.blocks.concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    /// The offset of an ID's entry, looked up as a reader does.
    fn find(bytes: &[u8], identity: u32) -> Option<usize> {
        let mut block = 1;
        for level in 0..4 {
            block = word(bytes, 1024 * block + 4 * identity.to_le_bytes()[3 - level] as usize) as usize;
            if block == 0 {
                return None;
            }
        }
        (0..ENTRIES)
            .map(|entry| 1024 * block + 16 + 72 * entry)
            .find(|&at| word(bytes, at) == identity && word(bytes, at + 24) != 0)
    }

    #[test]
    fn every_identity_is_found_with_what_it_uses() {
        let identities = [0, 1, 255, 256, 1000, 65_536, 1 << 24, u32::MAX - 1].into_iter().chain(2000..2040);
        let used: BTreeMap<u32, Used> = identities
            .map(|id| (id, Used { bytes: u64::from(id) * 512, inodes: u64::from(id) + 1 }))
            .collect();
        let bytes = Tree::new(&used).bytes(QuotaType::Users);
        assert_eq!(word(&bytes, 20) as usize * 1024, bytes.len());
        for (&identity, used) in &used {
            let at = find(&bytes, identity).unwrap_or_else(|| panic!("{identity}"));
            assert_eq!(word(&bytes, at + 24), used.inodes as u32);
            assert_eq!(u64::from_le_bytes(bytes[at + 48..at + 56].try_into().unwrap()), used.bytes);
        }
        assert!(find(&bytes, 7).is_none());
    }
}
