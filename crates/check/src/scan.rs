//! Data that pass 1 collects for later passes.

use crate::read::Reader;
use crate::report::{Counts, Findings};
use crate::shared::Shared;
use uext4::Result;
use uext4_ondisk::ext4::HashVersion;
use uext4_ondisk::{Pblk, Place};

/// A directory block for pass 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DirBlockRef {
    pub block: u64,
    pub ino: u32,
    pub lblk: u32,
}

/// Facts about a directory for pass 2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directory {
    pub ino: u32,
    /// Of its checksums.
    pub seed: u32,
    pub indexed: bool,
    /// How names are hashed; `None` where that cannot be told or computed.
    pub hash: Option<HashVersion>,
    /// Names are stored encrypted.
    pub encrypted: bool,
    /// Names are looked up by their folded forms.
    pub folded: bool,
}

impl Directory {
    /// One that has no blocks.
    pub(crate) fn inline(directory: &InlineDirectory) -> Directory {
        let InlineDirectory { ino, encrypted, folded, .. } = *directory;
        Directory { ino, seed: 0, indexed: false, hash: None, encrypted, folded }
    }
}

/// A directory inside its inode: its entries are checked when all inodes are known.
pub(crate) struct InlineDirectory {
    pub ino: u32,
    /// The 60 bytes in place of the map, then the attribute's value.
    pub bytes: Vec<u8>,
    /// Names are stored encrypted.
    pub encrypted: bool,
    /// Names are looked up by their folded forms.
    pub folded: bool,
}

/// An attribute whose value is in another inode. They are checked in batches, in the order of those inodes.
#[derive(Clone, Copy)]
pub(crate) struct ValueUse {
    pub value: u32,
    /// Inode that has the attribute.
    pub owner: u32,
    /// The attribute's block, 0 if it lies inside its inode.
    pub block: u64,
    /// The checksum of the value for which name and stored hash fit, by unsigned and by signed bytes of the name.
    pub checksums: [u32; 2],
    /// Clusters that owners count for the value, unless it has Lustre's form.
    pub clusters: u32,
}

/// An inode with values in other inodes, and its recorded block count. The right count is known once the values are
/// checked.
pub(crate) struct Counted {
    pub place: Place,
    /// Its attribute block, 0 if it has none.
    pub block: u64,
    pub sectors: u64,
    /// All that is found, values included.
    pub clusters: u64,
}

/// Result of the search for a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    Missing,
    Damaged,
    Policy(u64),
}

/// What a worker knows and collects, and what it reads nodes of maps and attribute blocks with.
pub(crate) struct Scan<'s, 'd> {
    pub shared: &'s Shared<'d>,
    pub nodes: Reader<'d>,
    pub findings: Findings,
    pub counts: Counts,
    pub directories: Vec<Directory>,
    pub dir_blocks: Vec<DirBlockRef>,
    /// Attribute blocks and the inodes that have them.
    pub xattr_blocks: Vec<(u64, u32)>,
    /// Inodes that hold attribute values, and the inodes that name them by themselves: not by their attribute blocks.
    pub value_inodes: Vec<ValueUse>,
    /// Inodes with such values, whose blocks are counted when the values are known.
    pub counted: Vec<Counted>,
    pub inline_directories: Vec<InlineDirectory>,
    /// Encrypted inodes and their policies.
    pub policies: Vec<(u32, u64)>,
    /// Files that fs-verity seals, with a sound layout.
    pub sealed: Vec<u32>,
    /// The attribute block last looked into for a context, and what was found.
    pub last_context: Option<(Pblk, Context)>,
}

impl<'s, 'd> Scan<'s, 'd> {
    pub(crate) fn new(shared: &'s Shared<'d>) -> Result<Self> {
        Ok(Scan {
            shared,
            nodes: shared.reader()?,
            findings: Findings::new(shared.cap),
            counts: Counts::default(),
            directories: Vec::new(),
            dir_blocks: Vec::new(),
            xattr_blocks: Vec::new(),
            value_inodes: Vec::new(),
            counted: Vec::new(),
            inline_directories: Vec::new(),
            policies: Vec::new(),
            sealed: Vec::new(),
            last_context: None,
        })
    }
}
