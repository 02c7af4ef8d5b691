//! Parts of the on-disk format that the calls of this crate take or give: numbers of blocks and inodes, the superblock,
//! feature flags.

pub use uext4_ondisk::ext4::{
    Compat, DefaultMountOptions, ENCODING_UTF8_12_1, ErrorLog, ErrorRecord, Features, Geometry,
    GeometryFields, HashSettings, HashVersion, Incompat, JournalLocation, MmpBlock, MmpOwner, MmpSettings,
    OnError, RoCompat, SnapshotFields, State, Superblock, SuperblockFlags, SuperblockTimes,
};
pub use uext4_ondisk::{BlockRange, Corrupt, CorruptKind, EncodeError, Group, Ino, Lblk, Pblk, Place};
