//! File-system types (`-t`) and usage types (`-T`), with the values of `mke2fs.conf` in e2fsprogs 1.47.

use super::error::{Error, Result};
use uext4_ondisk::ext4::{Compat, Features, Incompat, RoCompat};

const MIB: u64 = 1 << 20;
/// Default block size in bytes.
const BLOCK: u32 = 4096;
/// Default bytes of the volume per inode.
const RATIO: u32 = 16_384;
/// Default inode size in bytes.
const INODE: u16 = 256;

/// Which defaults to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Defaults {
    /// Those of e2fsprogs 1.47 as released upstream.
    #[default]
    Upstream,
    /// Those of Debian 12: without `metadata_csum_seed` and `orphan_file`, which its tools and older kernels support
    /// less well.
    Debian12,
}

/// Which features a volume starts with (`-t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// No journal, block pointers.
    Ext2,
    /// A journal, block pointers.
    Ext3,
    /// A journal, extents and the other ext4 features.
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

/// The sizes that a usage type sets; `None` where it sets none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Usage {
    block: Option<u32>,
    ratio: Option<u32>,
    inode: Option<u16>,
}

/// Default sizes in bytes, used unless an option overrides them.
pub(super) struct Usual {
    pub(super) block: u32,
    /// Bytes of the volume per inode.
    pub(super) ratio: u32,
    pub(super) inode: u16,
}

/// The sizes for these usage types or, if none are given, for a volume of `bytes` bytes. If several types set a size,
/// the last one wins.
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
/// [`Error::Option`] naming an unknown type.
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
        // The machine's page size, which equals the default block size on every supported machine.
        "largefile" => usage(Some(BLOCK), Some(1 << 20)),
        "largefile4" => usage(Some(BLOCK), Some(4 << 20)),
        "hurd" => Some(Usage { block: Some(BLOCK), ratio: None, inode: Some(128) }),
        _ => None,
    }
}
