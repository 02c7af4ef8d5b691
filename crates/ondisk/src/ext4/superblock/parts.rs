//! Groups of superblock fields that belong together.

use super::raw::RawSuperblock;
use crate::bytes::{load, store};
use crate::error::EncodeError;
use crate::flags::named_flags;
use crate::numbers::Pblk;
use zerocopy::little_endian::U32;

use super::STRUCTURE;

named_flags! {
    /// State the volume was left in (`s_state`).
    pub struct State: u16, unknown "STATE_" {
        /// Cleanly unmounted.
        CLEAN = 0x1, "clean";
        /// Errors were seen.
        ERRORS = 0x2, "errors";
        /// Orphans are being deleted.
        ORPHANS = 0x4, "orphans";
        /// Fast-commit records are being replayed.
        FAST_COMMIT_REPLAY = 0x20, "fc_replay";
    }
}

named_flags! {
    /// Odds and ends (`s_flags`).
    pub struct SuperblockFlags: u32, unknown "FLAG_" {
        /// Directory hashes treat bytes as signed.
        SIGNED_HASH = 0x1, "signed_directory_hash";
        /// Directory hashes treat bytes as unsigned.
        UNSIGNED_HASH = 0x2, "unsigned_directory_hash";
        /// To be mounted by development code.
        TEST_FILESYSTEM = 0x4, "test_filesystem";
        /// A snapshot image; an old experiment.
        IS_SNAPSHOT = 0x10, "is_snapshot";
        /// A snapshot to be repaired.
        FIX_SNAPSHOT = 0x20, "fix_snapshot";
        /// An exclude bitmap to be repaired.
        FIX_EXCLUDE = 0x40, "fix_exclude";
    }
}

named_flags! {
    /// Mount options set in the volume (`s_default_mount_opts`). Bits 5 and 6 are one number: the data mode.
    pub struct DefaultMountOptions: u32, unknown "MNTOPT_" {
        /// Print debugging information.
        DEBUG = 0x1, "debug";
        /// New files take the group of their directory.
        BSD_GROUPS = 0x2, "bsdgroups";
        /// Extended attributes of users.
        USER_XATTR = 0x4, "user_xattr";
        /// Access control lists.
        ACL = 0x8, "acl";
        /// Only 16-bit user and group numbers.
        UID16 = 0x10, "uid16";
        /// Data goes through the journal; with the next bit too: write-back.
        DATA_JOURNAL = 0x20, "journal_data";
        /// Data is written before the metadata that refers to it; with the bit before too: write-back.
        DATA_ORDERED = 0x40, "journal_data_ordered";
        /// No write barriers.
        NO_BARRIER = 0x100, "nobarrier";
        /// Check blocks against the system zones.
        BLOCK_VALIDITY = 0x200, "block_validity";
        /// Discard freed blocks.
        DISCARD = 0x400, "discard";
        /// No delayed allocation.
        NO_DELALLOC = 0x800, "nodelalloc";
    }
}

/// What to do when an error is found (`s_errors`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Go on.
    Continue,
    /// Become read-only.
    ReadOnly,
    /// Stop the machine.
    Panic,
}

impl OnError {
    pub(super) fn from_raw(value: u16) -> Option<OnError> {
        match value {
            1 => Some(OnError::Continue),
            2 => Some(OnError::ReadOnly),
            3 => Some(OnError::Panic),
            _ => None,
        }
    }
}

/// Times of the volume, in seconds since 1970 with 40 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuperblockTimes {
    /// Last mount (`s_mtime`).
    pub mounted: u64,
    /// Last write of the superblock (`s_wtime`).
    pub written: u64,
    /// When the volume was made (`s_mkfs_time`).
    pub created: u64,
    /// Last check (`s_lastcheck`).
    pub checked: u64,
}

fn time(low: U32, high: u8) -> u64 {
    (u64::from(high) << 32) | u64::from(low.get())
}

fn put_time(value: u64, low: &mut U32, high: &mut u8, field: &'static str) -> Result<(), EncodeError> {
    let [a, b, c, d, e, 0, 0, 0] = value.to_le_bytes() else {
        return Err(EncodeError::new(STRUCTURE, field));
    };
    low.set(u32::from_le_bytes([a, b, c, d]));
    *high = e;
    Ok(())
}

impl SuperblockTimes {
    pub(super) fn decode(raw: &RawSuperblock) -> SuperblockTimes {
        SuperblockTimes {
            mounted: time(raw.mount_time, raw.mount_time_hi),
            written: time(raw.write_time, raw.write_time_hi),
            created: time(raw.mkfs_time, raw.mkfs_time_hi),
            checked: time(raw.check_time, raw.check_time_hi),
        }
    }

    pub(super) fn encode(&self, raw: &mut RawSuperblock) -> Result<(), EncodeError> {
        put_time(self.mounted, &mut raw.mount_time, &mut raw.mount_time_hi, "mount_time")?;
        put_time(self.written, &mut raw.write_time, &mut raw.write_time_hi, "write_time")?;
        put_time(self.created, &mut raw.mkfs_time, &mut raw.mkfs_time_hi, "mkfs_time")?;
        put_time(self.checked, &mut raw.check_time, &mut raw.check_time_hi, "check_time")
    }
}

/// Where the journal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalLocation {
    /// Identity of an external journal (`s_journal_uuid`).
    pub uuid: [u8; 16],
    /// Inode of an internal journal (`s_journal_inum`), 0 = none.
    pub inode: u32,
    /// Device number of an external journal (`s_journal_dev`), 0 = none.
    pub device: u32,
    /// What the copy below holds (`s_jnl_backup_type`): 1 = mapping and size of the journal's inode.
    pub backup_type: u8,
    /// Copy of the journal inode's 15 mapping words, then its size, high half first (`s_jnl_blocks`).
    pub backup: [u32; 17],
}

impl JournalLocation {
    pub(super) fn decode(raw: &RawSuperblock) -> JournalLocation {
        JournalLocation {
            uuid: raw.journal_uuid,
            inode: raw.journal_inode.get(),
            device: raw.journal_device.get(),
            backup_type: raw.journal_backup_type,
            backup: raw.journal_backup.map(U32::get),
        }
    }

    pub(super) fn encode(&self, raw: &mut RawSuperblock) {
        raw.journal_uuid = self.uuid;
        raw.journal_inode.set(self.inode);
        raw.journal_device.set(self.device);
        raw.journal_backup_type = self.backup_type;
        raw.journal_backup = self.backup.map(U32::new);
    }
}

/// Seed and kind of directory hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashSettings {
    /// Seed (`s_hash_seed`); all zero = the hash's own initial values.
    pub seed: [u32; 4],
    /// Kind for new directories (`s_def_hash_version`); see [`crate::ext4::HashVersion`].
    pub default_version: u8,
}

impl HashSettings {
    pub(super) fn decode(raw: &RawSuperblock) -> HashSettings {
        HashSettings { seed: raw.hash_seed.map(U32::get), default_version: raw.hash_version }
    }

    pub(super) fn encode(&self, raw: &mut RawSuperblock) {
        raw.hash_seed = self.seed.map(U32::new);
        raw.hash_version = self.default_version;
    }
}

/// Multi-mount protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmpSettings {
    /// Seconds between refreshes of the block (`s_mmp_update_interval`).
    pub interval: u16,
    /// The block that the owner keeps fresh (`s_mmp_block`).
    pub block: Pblk,
}

/// Fields of an experiment with snapshots that was never merged. Kept, never interpreted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotFields {
    /// Active snapshot's inode (`s_snapshot_inum`).
    pub inode: u32,
    /// Its number (`s_snapshot_id`).
    pub id: u32,
    /// Blocks reserved for it (`s_snapshot_r_blocks_count`).
    pub reserved_blocks: u64,
    /// Head of the list of snapshots (`s_snapshot_list`).
    pub list: u32,
}

impl SnapshotFields {
    pub(super) fn decode(raw: &RawSuperblock) -> SnapshotFields {
        SnapshotFields {
            inode: raw.snapshot_inode.get(),
            id: raw.snapshot_id.get(),
            reserved_blocks: raw.snapshot_reserved_blocks.get(),
            list: raw.snapshot_list.get(),
        }
    }

    pub(super) fn encode(&self, raw: &mut RawSuperblock) {
        raw.snapshot_inode.set(self.inode);
        raw.snapshot_id.set(self.id);
        raw.snapshot_reserved_blocks.set(self.reserved_blocks);
        raw.snapshot_list.set(self.list);
    }
}

/// One recorded error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorRecord {
    /// When, in seconds since 1970 with 40 bits (`s_*_error_time`); 0 = no error recorded.
    pub time: u64,
    /// Inode involved (`s_*_error_ino`), 0 = none.
    pub inode: u32,
    /// Block involved (`s_*_error_block`), 0 = none.
    pub block: u64,
    /// Function of the program that found it, padded with NUL (`s_*_error_func`).
    pub function: [u8; 32],
    /// Line of the program (`s_*_error_line`).
    pub line: u32,
    /// Kind of error, in ext4's own numbering (`s_*_error_errcode`).
    pub code: u8,
}

/// Errors recorded since the last check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorLog {
    /// How many (`s_error_count`).
    pub count: u32,
    /// The first one.
    pub first: ErrorRecord,
    /// The last one.
    pub last: ErrorRecord,
}

impl ErrorLog {
    pub(super) fn decode(raw: &RawSuperblock) -> ErrorLog {
        let (first, last) = (&raw.first_error, &raw.last_error);
        ErrorLog {
            count: raw.error_count.get(),
            first: load!(ErrorRecord from first {
                same: inode, block, function, line;
                time: time(first.time, raw.first_error_time_hi),
                code: raw.first_error_code,
            }),
            last: load!(ErrorRecord from last {
                same: inode, block, function, line;
                time: time(last.time, raw.last_error_time_hi),
                code: raw.last_error_code,
            }),
        }
    }

    pub(super) fn encode(&self, raw: &mut RawSuperblock) -> Result<(), EncodeError> {
        let (first, last) = (&self.first, &self.last);
        let (raw_first, raw_last) = (&mut raw.first_error, &mut raw.last_error);
        raw.error_count.set(self.count);
        put_time(first.time, &mut raw_first.time, &mut raw.first_error_time_hi, "first_error_time")?;
        put_time(last.time, &mut raw_last.time, &mut raw.last_error_time_hi, "last_error_time")?;
        store!(first into raw_first { inode, block, function, line });
        store!(last into raw_last { inode, block, function, line });
        raw.first_error_code = first.code;
        raw.last_error_code = last.code;
        Ok(())
    }
}
