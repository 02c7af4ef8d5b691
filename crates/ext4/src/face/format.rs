//! The parts of the on-disk format in this crate's API: block and inode numbers, the superblock, feature flags.

pub use uext4_ondisk::ext4::{
    Compat, DefaultMountOptions, ENCODING_UTF8_12_1, ErrorLog, ErrorRecord, Features, Geometry,
    GeometryFields, HashSettings, HashVersion, Incompat, JournalLocation, MmpBlock, MmpOwner, MmpSettings,
    OnError, RoCompat, SeedOfUuid, SnapshotFields, State, Superblock, SuperblockFlags, SuperblockTimes,
};
pub use uext4_ondisk::{
    BlockRange, Corrupt, CorruptKind, DmVeritySuperblock, EncodeError, Group, Ino, Lblk, Pblk, Place,
};
