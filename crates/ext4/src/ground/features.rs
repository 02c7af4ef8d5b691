//! Which volumes can be opened, and for what. Everything else is refused, naming the feature.

use crate::ground::error::{Error, Result};
use uext4_ondisk::ext4::{ENCODING_UTF8_12_1, Features, Incompat, RoCompat, State, Superblock};

/// Incompatible features that reads support.
const READABLE: Incompat = Incompat::from_bits_retain(
    Incompat::FILETYPE.bits()
        | Incompat::RECOVER.bits()
        | Incompat::META_BG.bits()
        | Incompat::EXTENTS.bits()
        | Incompat::BIT64.bits()
        | Incompat::MMP.bits()
        | Incompat::FLEX_BG.bits()
        | Incompat::EA_INODE.bits()
        | Incompat::CSUM_SEED.bits()
        | Incompat::LARGEDIR.bits()
        // Encrypted files and directories are refused one by one when used.
        | Incompat::ENCRYPT.bits()
        | Incompat::INLINE_DATA.bits()
        | Incompat::CASEFOLD.bits(),
);

/// Read-only-compatible features that are safe for overwrites of file data, which change no count, bitmap, quota or
/// checksum.
const OVERWRITABLE: RoCompat = RoCompat::from_bits_retain(
    RoCompat::SPARSE_SUPER.bits()
        | RoCompat::LARGE_FILE.bits()
        | RoCompat::HUGE_FILE.bits()
        | RoCompat::GDT_CSUM.bits()
        | RoCompat::DIR_NLINK.bits()
        | RoCompat::EXTRA_ISIZE.bits()
        | RoCompat::QUOTA.bits()
        | RoCompat::BIGALLOC.bits()
        | RoCompat::METADATA_CSUM.bits()
        | RoCompat::PROJECT.bits()
        | RoCompat::VERITY.bits()
        // The open processes the orphan file first.
        | RoCompat::ORPHAN_PRESENT.bits(),
);

/// The highest known revision level (`EXT4_MAX_SUPP_REV`).
const REVISION_MAX: u32 = 1;

fn refuse(action: &'static str, feature: impl Into<String>) -> Error {
    Error::Incompatible { action, feature: feature.into() }
}

/// Refuses volumes that cannot be read, naming the reason. Runs before any other field of the superblock is used: an
/// unknown feature may change what they mean.
pub(crate) fn check_readable(features: &Features) -> Result<()> {
    let incompat = features.incompat;
    if incompat.contains(Incompat::JOURNAL_DEV) {
        return Err(refuse("open", "an external journal device (journal_dev), not a file system"));
    }
    let unreadable = incompat & !READABLE;
    if !unreadable.is_empty() {
        return Err(refuse("open", unreadable.names().join(", ")));
    }
    Ok(())
}

/// Refuses volumes that fold case with an unknown encoding: their names cannot be compared.
pub(crate) fn check_encoding(superblock: &Superblock) -> Result<()> {
    let folds = superblock.features.incompat.contains(Incompat::CASEFOLD);
    if folds && superblock.encoding != ENCODING_UTF8_12_1 {
        return Err(refuse("open", format!("casefold with encoding {}", superblock.encoding)));
    }
    Ok(())
}

/// Refuses to change blocks, sizes or names where this version does not support it.
pub(crate) fn check_changes(superblock: &Superblock) -> Result<()> {
    // Blocks marked free in its bitmaps may be in use: allocating one would destroy a file.
    if !superblock.has_journal() && !superblock.state.contains(State::CLEAN) {
        let feature = "no journal, and was not unmounted cleanly (run e2fsck)";
        return Err(refuse("allocate", feature));
    }
    Ok(())
}

/// Refuses to write a volume with a feature that this version does not keep up to date.
pub(crate) fn check_writable(superblock: &Superblock) -> Result<()> {
    const ACTION: &str = "open for writing";
    let revision = superblock.geometry.fields().revision;
    if revision > REVISION_MAX {
        // A higher level may change the format without a feature flag. The kernel mounts such a volume read-only.
        return Err(refuse(
            ACTION,
            format!("revision level {revision}, above the last one known (open it read-only)"),
        ));
    }
    let ro_compat = superblock.features.ro_compat;
    if ro_compat.contains(RoCompat::READONLY) {
        return Err(Error::ReadOnly("the volume is marked read-only (feature read-only)"));
    }
    let unwritable = ro_compat & !OVERWRITABLE;
    if !unwritable.is_empty() {
        return Err(refuse(ACTION, unwritable.names().join(", ")));
    }
    let inline = superblock.features.incompat.contains(Incompat::INLINE_DATA);
    if superblock.has_journal() && superblock.journals_data() && inline {
        return Err(refuse(ACTION, "journaled data by default (journal_data) together with inline_data"));
    }
    Ok(())
}
