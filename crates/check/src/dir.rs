//! Pass 2: every block of every directory, in the order of the device.

use crate::htree::{Leaf, Node};
use crate::kinds;
use crate::read::Reader;
use crate::report::{Counts, Findings};
use crate::scan::{DirBlockRef, Directory, InlineDirectory};
use crate::shared::{
    MARK_BAD_BLOCK, MARK_BROKEN, MARK_RESERVED, MARK_VALUE, RUN_MEMORY, Shared, Slot, UNKNOWN,
};
use std::fmt::Display;
use uext4::Result;
use uext4_ondisk::ext4::{
    DirBlock, DirBlockKind, DirEntry, FileType, HtreeIndex, HtreeRoot, I_BLOCK_SIZE, dir_hash,
    verify_dir_checksum, verify_htree_checksum,
};
use uext4_ondisk::{Ino, Lblk, Pblk, Place};

/// Directory blocks that one unit of work holds.
pub(crate) const UNIT: usize = 64;
/// Blocks between two directory blocks that are read through rather than skipped.
const GAP: u64 = 8;
/// Where the name of a directory entry begins (`struct ext4_dir_entry_2`).
const NAME_AT: usize = 8;

/// A block of a directory, or a part of one that lies inside its inode.
struct Listing<'a> {
    dir: &'a Directory,
    /// How the directory is encrypted, if it is.
    policy: Option<u64>,
    lblk: u32,
    place: Place,
    bytes: &'a [u8],
}

/// A worker's findings.
pub(crate) struct DirScanner<'s, 'd> {
    reader: Reader<'d>,
    pub scan: DirScan<'s, 'd>,
}

/// The same without the memory for blocks.
pub(crate) struct DirScan<'s, 'd> {
    shared: &'s Shared<'d>,
    /// Sorted by inode.
    directories: &'s [Directory],
    /// Names of case-folded directories must be valid.
    strict: bool,
    pub findings: Findings,
    pub counts: Counts,
    /// Directories and what their `..` says.
    pub parents: Vec<(u32, u32)>,
    /// Directories and the directories that name them.
    pub children: Vec<(u32, u32)>,
    pub leaves: Vec<Leaf>,
    pub nodes: Vec<Node>,
    /// Hashes and places of the names of one block.
    names: Vec<(u64, u32, u8)>,
}

impl<'s, 'd> DirScanner<'s, 'd> {
    pub(crate) fn new(shared: &'s Shared<'d>, directories: &'s [Directory]) -> Result<Self> {
        Ok(DirScanner {
            reader: shared.reader_of(RUN_MEMORY)?,
            scan: DirScan {
                shared,
                directories,
                strict: shared.sb.strict_encoding(),
                findings: Findings::new(shared.cap),
                counts: Counts::default(),
                parents: Vec::new(),
                children: Vec::new(),
                leaves: Vec::new(),
                nodes: Vec::new(),
                names: Vec::new(),
            },
        })
    }

    /// Some blocks, sorted by place. Neighbours are read together.
    pub(crate) fn blocks(&mut self, mut refs: &[DirBlockRef]) -> Result<()> {
        let size = self.scan.shared.sb.geometry.block_size() as usize;
        while let Some(first) = refs.first() {
            let mut count = 1;
            while let Some(next) = refs.get(count)
                && next.block - refs[count - 1].block <= GAP
                && next.block - first.block < self.reader.capacity()
            {
                count += 1;
            }
            let (run, rest) = refs.split_at(count);
            let length = run[count - 1].block - first.block + 1;
            let bytes = self.reader.run(first.block, length)?;
            for wanted in run {
                let start = (wanted.block - first.block) as usize * size;
                self.scan.block(*wanted, &bytes[start..start + size]);
            }
            refs = rest;
        }
        Ok(())
    }
}

impl DirScan<'_, '_> {
    fn block(&mut self, wanted: DirBlockRef, bytes: &[u8]) {
        let Ok(index) = self.directories.binary_search_by_key(&wanted.ino, |dir| dir.ino) else { return };
        let directory = self.directories[index];
        let format = &self.shared.format;
        let place = Place {
            inode: Some(Ino(wanted.ino)),
            lblk: Some(Lblk(wanted.lblk)),
            block: Some(Pblk(wanted.block)),
            group: None,
        };
        let kind = DirBlockKind::of(bytes, directory.indexed, Lblk(wanted.lblk), format);
        if format.checksums {
            let checked = match kind {
                DirBlockKind::Linear => verify_dir_checksum(bytes, directory.seed),
                _ => verify_htree_checksum(bytes, kind, directory.seed),
            };
            if let Err(fault) = checked {
                self.findings.corrupt(&kinds::DIR_CHECKSUM, place, &fault);
            }
        }
        match kind {
            DirBlockKind::Linear => {}
            DirBlockKind::HtreeRoot => self.root(&directory, place, bytes),
            DirBlockKind::HtreeNode => return self.node(wanted, bytes),
        }
        let policy = self.shared.policy(wanted.ino);
        self.entries(kind, &Listing { dir: &directory, policy, lblk: wanted.lblk, place, bytes });
    }

    fn root(&mut self, directory: &Directory, place: Place, bytes: &[u8]) {
        match HtreeRoot::decode(bytes, self.shared.sb.hash_unsigned(), &self.shared.format) {
            Ok(root) => self.nodes.push(Node {
                ino: directory.ino,
                lblk: 0,
                levels: root.indirect_levels,
                may_be_leaf: false,
                entries: Ok(children(&root.index)),
            }),
            Err(fault) => self.findings.corrupt(&kinds::HTREE_ROOT, place, &fault),
        }
    }

    /// A block that begins like a node. The check of the whole tree decides whether it is a sound one.
    fn node(&mut self, wanted: DirBlockRef, bytes: &[u8]) {
        let format = &self.shared.format;
        let decoded = HtreeIndex::decode_node(bytes, format);
        self.nodes.push(Node {
            ino: wanted.ino,
            lblk: wanted.lblk,
            levels: 0,
            // With checksums, a block of entries has a tail, and does not begin like a node.
            may_be_leaf: !format.checksums,
            entries: decoded
                .map(|index| children(&index))
                .map_err(|fault| Box::new(fault.at_block(Pblk(wanted.block)))),
        });
    }

    fn entries(&mut self, kind: DirBlockKind, listing: &Listing<'_>) {
        let Listing { dir, lblk, place, bytes, .. } = *listing;
        let mut leaf = Leaf { ino: dir.ino, lblk, least: u32::MAX, most: 0 };
        self.names.clear();
        let mut number = 0;
        match DirBlock::new(bytes, kind, &self.shared.format) {
            Ok(block) => {
                for entry in block.slots() {
                    let slot = match entry {
                        Ok(slot) => slot,
                        Err(fault) => {
                            self.findings.corrupt(&kinds::ENTRY_RECORD, place, &fault);
                            break;
                        }
                    };
                    let position = number;
                    number += 1;
                    let Some(entry) = slot.entry else {
                        if lblk == 0 && position < 2 {
                            self.missing_dots(place, position);
                        }
                        continue;
                    };
                    self.counts.entries += 1;
                    if lblk == 0 && position < 2 {
                        self.dots(listing, position, &entry);
                    } else {
                        self.entry(listing, &entry);
                        self.hash(dir, kind, &entry, &mut leaf);
                    }
                }
            }
            Err(fault) => self.findings.corrupt(&kinds::ENTRY_RECORD, place, &fault),
        }
        if lblk == 0 && number < 2 {
            self.missing_dots(place, number);
        }
        self.duplicates(place, bytes);
        if dir.indexed && kind == DirBlockKind::Linear {
            self.leaves.push(leaf);
        }
    }

    /// The entries of a directory inside its inode: the parent's number, then two chains of entries.
    pub(crate) fn inline(&mut self, directory: &InlineDirectory) {
        let place = Place { inode: Some(Ino(directory.ino)), ..Place::default() };
        let (head, rest) = directory.bytes.split_at(I_BLOCK_SIZE.min(directory.bytes.len()));
        let Some((parent, first)) = head.split_first_chunk::<4>() else { return };
        let parent = u32::from_le_bytes(*parent);
        self.parents.push((directory.ino, parent));
        // `.` and `..` are not stored, but count as links.
        for target in [directory.ino, parent] {
            match self.shared.inodes.in_use(target) {
                Some(slot) => {
                    slot.count_entry();
                    self.in_bad_block(place, b"..", target, slot);
                }
                None => {
                    let text = format_args!("`..` is inode {target}, which is not in use");
                    self.not_in_use(place, target, text);
                }
            }
        }
        self.counts.entries += 2;
        let dir = &Directory::inline(directory);
        let policy = self.shared.policy(directory.ino);
        for area in [first, rest] {
            let listing = Listing { dir, policy, lblk: 0, place, bytes: area };
            self.names.clear();
            for entry in DirBlock::inline(area, &self.shared.format).entries() {
                match entry {
                    Ok(entry) => {
                        self.counts.entries += 1;
                        self.entry(&listing, &entry);
                    }
                    Err(fault) => self.findings.corrupt(&kinds::ENTRY_RECORD, place, &fault),
                }
            }
            self.duplicates(place, area);
        }
    }

    fn missing_dots(&mut self, place: Place, position: u32) {
        let name = if position == 0 { "." } else { ".." };
        self.findings.add(&kinds::DIR_DOTS, place, format_args!("`{name}` is missing"));
    }

    /// The first two entries of a directory.
    fn dots(&mut self, listing: &Listing<'_>, position: u32, entry: &DirEntry<'_>) {
        let (ino, place) = (listing.dir.ino, listing.place);
        let target = entry.inode.get();
        let right_name = if position == 0 { entry.is_dot() } else { entry.is_dot_dot() };
        if !right_name {
            let found = entry.name.escape_ascii().to_string();
            let name = if position == 0 { "." } else { ".." };
            let text = format_args!("`{found}` is in the place of `{name}`");
            self.findings.add(&kinds::DIR_DOTS, place, text);
        } else if position == 0 && target != ino {
            self.findings.add(&kinds::DIR_DOTS, place, format_args!("`.` leads to inode {target}"));
        } else if position == 1 {
            self.parents.push((ino, target));
        }
        // Linux and e2fsprogs end these two names with a zero, and e2fsck asks for it.
        let behind = entry.offset as usize + NAME_AT + entry.name.len();
        if right_name && listing.bytes.get(behind).is_some_and(|&byte| byte != 0) {
            let name = entry.name.escape_ascii();
            self.findings.add(&kinds::DIR_DOTS, place, format_args!("no zero follows `{name}`"));
        }
        match self.shared.inodes.in_use(target) {
            Some(slot) => {
                slot.count_entry();
                let directory = slot.file_type() == Some(FileType::Directory);
                if !directory && slot.kind() != UNKNOWN {
                    let text = format_args!(
                        "`{}` leads to inode {target}, not a directory",
                        entry.name.escape_ascii()
                    );
                    self.findings.add(&kinds::DIR_DOTS, place, text);
                }
                self.check_type(listing, entry, slot);
                self.in_bad_block(place, entry.name, target, slot);
            }
            None => {
                let text =
                    format_args!("`{}` names inode {target}, which is not in use", entry.name.escape_ascii());
                self.not_in_use(place, target, text);
            }
        }
    }

    /// Reports an entry whose inode cannot be read.
    fn in_bad_block(&mut self, place: Place, name: &[u8], target: u32, slot: &Slot) {
        if slot.marks() & MARK_BAD_BLOCK != 0 {
            let text =
                format_args!("`{}` names inode {target}, which is in a bad block", name.escape_ascii());
            self.findings.add(&kinds::ENTRY_BAD_BLOCK, place, text);
        }
    }

    /// Reports an entry whose inode is not in use, unless that is unknown.
    fn not_in_use(&mut self, place: Place, target: u32, text: impl Display) {
        if self.shared.is_out_of_reach(target) {
            self.findings.not_examined("inodes that directories name", "their group's descriptor is damaged");
        } else {
            self.findings.add(&kinds::ENTRY_FREE, place, text);
        }
    }

    fn entry(&mut self, listing: &Listing<'_>, entry: &DirEntry<'_>) {
        let (dir, place) = (listing.dir, listing.place);
        let target = entry.inode.get();
        let named = || entry.name.escape_ascii();
        if entry.is_dot() || entry.is_dot_dot() {
            self.findings.add(&kinds::DIR_DOTS, place, format_args!("a second `{}`", named()));
        } else if !dir.encrypted && !entry.has_valid_name() {
            self.findings.add(&kinds::ENTRY_NAME, place, format_args!("`{}`", named()));
        }
        if dir.folded && !dir.encrypted && self.strict && str::from_utf8(entry.name).is_err() {
            self.findings.add(&kinds::ENTRY_ENCODING, place, format_args!("`{}`", named()));
        }
        if entry.inode == Ino::ROOT || target == dir.ino || self.shared.is_reserved(target) {
            let text = format_args!("`{}` names inode {target}", named());
            self.findings.add(&kinds::ENTRY_RESERVED, place, text);
            return;
        }
        let Some(slot) = self.shared.inodes.in_use(target) else {
            let text = format_args!("`{}` names inode {target}, which is not in use", named());
            self.not_in_use(place, target, text);
            return;
        };
        if slot.marks() & MARK_RESERVED != 0 {
            let text = format_args!("`{}` names inode {target}, which is the file system's own", named());
            self.findings.add(&kinds::ENTRY_RESERVED, place, text);
            return;
        }
        slot.count_entry();
        self.in_bad_block(place, entry.name, target, slot);
        if slot.marks() & MARK_VALUE != 0 {
            let text = format_args!("`{}` names inode {target}, which holds an attribute's value", named());
            self.findings.add(&kinds::ENTRY_VALUE, place, text);
        }
        self.check_type(listing, entry, slot);
        if let Some(policy) = listing.policy {
            self.shared.check_encrypted_entry(policy, place, entry, slot.file_type(), &mut self.findings);
        }
        if slot.file_type() == Some(FileType::Directory) {
            self.children.push((target, dir.ino));
        }
        let offset = entry.offset + 8;
        self.names.push((name_hash(entry.name), offset, entry.name.len() as u8));
    }

    fn check_type(&mut self, listing: &Listing<'_>, entry: &DirEntry<'_>, slot: &Slot) {
        let (place, bytes) = (listing.place, listing.bytes);
        let (kind, marks) = (slot.kind(), slot.marks());
        let said = bytes.get(entry.offset as usize + 7).copied().unwrap_or(0);
        if !self.shared.format.file_types {
            if said != 0 {
                let text = format_args!("`{}` says type {said} without filetype", entry.name.escape_ascii());
                self.findings.add(&kinds::ENTRY_TYPE, place, text);
            }
            return;
        }
        if kind == UNKNOWN || marks & MARK_BROKEN != 0 {
            return;
        }
        if said == 0 {
            // Common on volumes that got the feature later. Readers look into the inode.
            let text = format_args!("`{}`", entry.name.escape_ascii());
            self.findings.add(&kinds::ENTRY_UNTYPED, place, text);
        } else if said != kind {
            let name = entry.name.escape_ascii();
            let text = format_args!("`{name}` says type {said}, inode {} has type {kind}", entry.inode);
            self.findings.add(&kinds::ENTRY_TYPE, place, text);
        }
    }

    fn hash(&self, dir: &Directory, kind: DirBlockKind, entry: &DirEntry<'_>, leaf: &mut Leaf) {
        if kind != DirBlockKind::Linear {
            return;
        }
        let Some(version) = dir.hash else { return };
        if let Ok(hash) = dir_hash(entry.name, version, &self.shared.sb.hash.seed) {
            leaf.least = leaf.least.min(hash.major);
            leaf.most = leaf.most.max(hash.major);
        }
    }

    /// Reports names that occur twice in the block just read.
    fn duplicates(&mut self, place: Place, bytes: &[u8]) {
        self.names.sort_unstable();
        let name = |offset: u32, length: u8| &bytes[offset as usize..offset as usize + usize::from(length)];
        let names = &self.names;
        for pair in names.windows(2) {
            let ((hash, at, length), (other_hash, other_at, other_length)) = (pair[0], pair[1]);
            if hash == other_hash && name(at, length) == name(other_at, other_length) {
                let text = format_args!("`{}`", name(at, length).escape_ascii());
                self.findings.add(&kinds::ENTRY_DUPLICATE, place, text);
            }
        }
    }
}

/// Hashes and children of a root or node.
fn children(index: &HtreeIndex<'_>) -> Vec<(u32, u32)> {
    index.entries().map(|entry| (entry.hash, entry.child.get())).collect()
}

/// A quick hash: equal names have equal ones.
fn name_hash(name: &[u8]) -> u64 {
    let mut hash = 0x9e37_79b9_7f4a_7c15_u64 ^ name.len() as u64;
    for part in name.chunks(8) {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
    }
    hash
}
