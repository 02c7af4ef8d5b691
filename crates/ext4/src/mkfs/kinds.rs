//! What a volume is for: kinds (`-t`) and usage types (`-T`), with the values of `mke2fs.conf` in e2fsprogs 1.47.

use super::error::{Error, Result};
use uext4_ondisk::ext4::{Compat, Features, Incompat, RoCompat};

const MIB: u64 = 1 << 20;
/// Bytes of a block where nothing else is said.
const BLOCK: u32 = 4096;
/// Bytes of the volume for each inode where nothing else is said.
const RATIO: u32 = 16_384;
/// Bytes of an inode where nothing else is said.
const INODE: u16 = 256;

/// Whose defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Defaults {
    /// Those of e2fsprogs 1.47 as its authors ship it.
    #[default]
    Upstream,
    /// Those of Debian 12: without `metadata_csum_seed` and `orphan_file`, which its tools and older kernels know less
    /// well.
    Debian12,
}

/// Which features a volume begins with (`-t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// No journal, block pointers.
    Ext2,
    /// A journal, block pointers.
    Ext3,
    /// A journal, extents and all that came with them.
    #[default]
    Ext4,
}

impl Kind {
    /// The features that `-O` edits.
    pub(super) fn features(self, defaults: Defaults) -> Features {
        let mut features = Features {
            compat: Compat::EXT_ATTR | Compat::RESIZE_INODE | Compat::DIR_INDEX,
            incompat: Incompat::FILETYPE,
            ro_compat: RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE,
        };
        if self != Kind::Ext2 {
            features.compat |= Compat::HAS_JOURNAL;
        }
        if self == Kind::Ext4 {
            features.incompat |= Incompat::EXTENTS | Incompat::BIT64 | Incompat::FLEX_BG;
            features.ro_compat |=
                RoCompat::HUGE_FILE | RoCompat::DIR_NLINK | RoCompat::EXTRA_ISIZE | RoCompat::METADATA_CSUM;
            if defaults == Defaults::Upstream {
                features.compat |= Compat::ORPHAN_FILE;
                features.incompat |= Incompat::CSUM_SEED;
            }
        }
        features
    }
}

/// What a usage type says of sizes, where it says something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Usage {
    block: Option<u32>,
    ratio: Option<u32>,
    inode: Option<u16>,
}

/// Sizes where no option says otherwise, in bytes.
pub(super) struct Usual {
    pub(super) block: u32,
    /// Of the volume, for each inode.
    pub(super) ratio: u32,
    pub(super) inode: u16,
}

/// The sizes of a volume of so many bytes, or of these usage types: of two that say something the last one counts.
pub(super) fn usual(usages: &[Usage], bytes: u64) -> Usual {
    let by_size = [by_size(bytes)];
    let usages = if usages.is_empty() { &by_size[..] } else { usages };
    Usual {
        block: usages.iter().rev().find_map(|usage| usage.block).unwrap_or(BLOCK),
        ratio: usages.iter().rev().find_map(|usage| usage.ratio).unwrap_or(RATIO),
        inode: usages.iter().rev().find_map(|usage| usage.inode).unwrap_or(INODE),
    }
}

fn by_size(bytes: u64) -> Usage {
    const MIB_3: u64 = 3 * MIB;
    const MIB_512: u64 = 512 * MIB;
    const TIB_4: u64 = 4 << 40;
    const TIB_16: u64 = 16 << 40;
    let name = match bytes {
        ..MIB_3 => "floppy",
        MIB_3..MIB_512 => "small",
        MIB_512..TIB_4 => "default",
        TIB_4..TIB_16 => "big",
        TIB_16.. => "huge",
    };
    usage(name).unwrap_or_default()
}

/// The usage types of a list, separated by commas.
///
/// # Errors
/// [`Error::Option`] naming one that is unknown.
pub(super) fn usages(list: &str) -> Result<Vec<Usage>> {
    let words = list.split(',').filter(|word| !word.is_empty());
    words
        .map(|word| usage(word).ok_or_else(|| Error::Option(format!("unknown usage type `{word}`"))))
        .collect()
}

fn usage(name: &str) -> Option<Usage> {
    let usage = |block: Option<u32>, ratio: Option<u32>| Some(Usage { block, ratio, inode: None });
    match name {
        "default" => usage(None, None),
        "floppy" => usage(Some(1024), Some(8192)),
        "small" => usage(Some(1024), Some(4096)),
        "big" => usage(None, Some(32_768)),
        "huge" => usage(None, Some(65_536)),
        "news" => usage(None, Some(4096)),
        // The page size of the machine, which is the usual block size on all that this runs on.
        "largefile" => usage(Some(BLOCK), Some(1 << 20)),
        "largefile4" => usage(Some(BLOCK), Some(4 << 20)),
        "hurd" => Some(Usage { block: Some(BLOCK), ratio: None, inode: Some(128) }),
        _ => None,
    }
}
