//! The journal's superblock: the log's size, where its contents start, and its features.

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::header::{BlockHeader, BlockType, MAGIC};
use crate::bytes::{load, record, record_mut, store};
use crate::checksum::{CSUM_INIT, csum};
use crate::error::{Corrupt, CorruptKind, EncodeError};
use crate::flags::named_flags;

const STRUCTURE: &str = "journal superblock";
const CHECKSUM_OFFSET: usize = 0xFC;
const CHECKSUM_CRC32C: u8 = 4;
/// Used when the superblock says 0.
const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;

named_flags! {
    /// Features a reader may ignore (`s_feature_compat`).
    pub struct JournalCompat: u32, unknown "FEATURE_C" {
        /// Commit blocks carry a crc32 of their transaction; the first kind of checksum.
        CHECKSUM = 0x1, "journal_checksum";
    }
}

named_flags! {
    /// Features a reader must know (`s_feature_incompat`).
    pub struct JournalIncompat: u32, unknown "FEATURE_I" {
        /// Revoke blocks may exist.
        REVOKE = 0x1, "journal_incompat_revoke";
        /// Block numbers have 64 bits.
        BIT64 = 0x2, "journal_64bit";
        /// Commit blocks may be written before the blocks they commit.
        ASYNC_COMMIT = 0x4, "journal_async_commit";
        /// Metadata blocks and tags have crc32c checksums, 16 bits in tags.
        CSUM_V2 = 0x8, "journal_checksum_v2";
        /// Metadata blocks and tags have crc32c checksums, 32 bits in tags.
        CSUM_V3 = 0x10, "journal_checksum_v3";
        /// The end of the log holds fast-commit records. e2fsprogs 1.47 has no name for it and prints
        /// FEATURE_I5.
        FAST_COMMIT = 0x20, "fast_commit";
    }
}

named_flags! {
    /// Features a writer must know (`s_feature_ro_compat`); none exist.
    pub struct JournalRoCompat: u32, unknown "FEATURE_R" {}
}

/// The journal's feature words; all empty in a version 1 superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct JournalFeatures {
    /// Features anybody may ignore.
    pub compat: JournalCompat,
    /// Features nobody may ignore.
    pub incompat: JournalIncompat,
    /// Features a writer may not ignore.
    pub ro_compat: JournalRoCompat,
}

impl JournalFeatures {
    /// Whether metadata blocks of the log have crc32c checksums.
    pub fn metadata_checksums(&self) -> bool {
        self.incompat.intersects(JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3)
    }

    /// The names of all features in the order dumpe2fs prints them.
    pub fn names(&self) -> Vec<std::borrow::Cow<'static, str>> {
        [self.compat.names(), self.incompat.names(), self.ro_compat.names()].concat()
    }
}

/// `struct journal_superblock_s`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSuperblock {
    header: [U32; 3],
    block_size: U32,
    blocks: U32,
    first: U32,
    sequence: U32,
    start: U32,
    errno: U32,
    compat: U32,
    incompat: U32,
    ro_compat: U32,
    uuid: [u8; 16],
    users: U32,
    dynamic_superblock: U32,
    max_transaction: U32,
    max_transaction_data: U32,
    checksum_type: u8,
    padding_0: [u8; 3],
    fast_commit_blocks_raw: U32,
    head: U32,
    padding_1: [U32; 40],
    checksum: U32,
    user_ids: [[u8; 16]; 48],
}

const _: () = assert!(size_of::<RawSuperblock>() == 1024);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, checksum) == CHECKSUM_OFFSET);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, head) == 0x58);

/// Version of the superblock's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuperblockVersion {
    /// Without features; fields from the feature words on are not meaningful.
    V1,
    /// With features.
    V2,
}

/// A decoded journal superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalSuperblock {
    /// Layout version.
    pub version: SuperblockVersion,
    /// Bytes in a block of the log (`s_blocksize`): a power of two from 1024 to 65536.
    pub block_size: u32,
    /// Blocks of the log, this superblock included (`s_maxlen`).
    pub blocks: u32,
    /// First block of the log that holds log records (`s_first`), at least 1.
    pub first: u32,
    /// Sequence number of the first transaction in the log (`s_sequence`).
    pub sequence: u32,
    /// Block of the log that recovery starts at (`s_start`); 0 = nothing to recover.
    pub start: u32,
    /// Error that stopped the journal, as a positive or negative errno (`s_errno`); 0 = none.
    pub errno: i32,
    /// Features.
    pub features: JournalFeatures,
    /// What stands in version 1 where version 2 has its incompatible features: of no meaning, and mostly nothing.
    pub ignored: JournalIncompat,
    /// Identity of the journal (`s_uuid`).
    pub uuid: [u8; 16],
    /// File systems sharing an external journal (`s_nr_users`).
    pub users: u32,
    /// The first of them (`s_users`), by UUID.
    pub user: [u8; 16],
    /// Most blocks in a transaction (`s_max_transaction`); 0 = no limit given.
    pub max_transaction: u32,
    /// Most data blocks in a transaction (`s_max_trans_data`); 0 = no limit given.
    pub max_transaction_data: u32,
    /// Algorithm of checksums (`s_checksum_type`): 1 crc32, 4 crc32c.
    pub checksum_type: u8,
    /// Blocks for fast-commit records as stored (`s_num_fc_blks`); see
    /// [`JournalSuperblock::fast_commit_blocks`].
    pub fast_commit_blocks_raw: u32,
    /// Where the next transaction goes, valid while the log is empty (`s_head`); 0 = not known.
    pub head: u32,
}

fn field(name: &'static str) -> Corrupt {
    CorruptKind::JournalField(name).into()
}

fn checksum_of(raw: &RawSuperblock) -> u32 {
    let bytes = raw.as_bytes();
    let before = bytes.get(..CHECKSUM_OFFSET).unwrap_or_default();
    let after = bytes.get(CHECKSUM_OFFSET.saturating_add(4)..).unwrap_or_default();
    csum(csum(csum(CSUM_INIT, before), &[0; 4]), after)
}

fn features_of(raw: &RawSuperblock) -> JournalFeatures {
    JournalFeatures {
        compat: JournalCompat::from_bits_retain(raw.compat.get()),
        incompat: JournalIncompat::from_bits_retain(raw.incompat.get()),
        ro_compat: JournalRoCompat::from_bits_retain(raw.ro_compat.get()),
    }
}

/// Checks that at most one kind of checksum is in use and that, if it covers the superblock, it matches.
fn verify_checksum(raw: &RawSuperblock, features: &JournalFeatures) -> Result<(), Corrupt> {
    let both = JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3;
    let old_and_new = features.compat.contains(JournalCompat::CHECKSUM) && features.metadata_checksums();
    if features.incompat.contains(both) || old_and_new {
        return Err(field("features"));
    }
    if !features.metadata_checksums() {
        return Ok(());
    }
    if raw.checksum_type != CHECKSUM_CRC32C {
        return Err(field("checksum_type"));
    }
    if checksum_of(raw) != raw.checksum.get() {
        return Err(CorruptKind::JournalChecksum.into());
    }
    Ok(())
}

impl JournalSuperblock {
    /// Decodes the 1024 bytes at the start of the log; magic number, type, checksum and layout are checked.
    ///
    /// Unknown features are not an error here: look at [`JournalIncompat::unknown`].
    pub fn decode(bytes: &[u8]) -> Result<JournalSuperblock, Corrupt> {
        let raw: &RawSuperblock = record(bytes, STRUCTURE)?;
        let version = match BlockHeader::decode(bytes)?.block_type {
            BlockType::SuperblockV1 => SuperblockVersion::V1,
            BlockType::SuperblockV2 => SuperblockVersion::V2,
            _ => return Err(CorruptKind::JournalBlockType.into()),
        };
        // Version 1 ends before the feature words: what stands from there on counts as zeros.
        let (zeros, first) = (RawSuperblock::new_zeroed(), version == SuperblockVersion::V1);
        let second = if first { &zeros } else { raw };
        let features = features_of(second);
        verify_checksum(raw, &features)?;
        let superblock = load!(JournalSuperblock from second {
            same: uuid, users, max_transaction, max_transaction_data, checksum_type, fast_commit_blocks_raw, head;
            version,
            user: second.user_ids[0],
            block_size: raw.block_size.get(),
            blocks: raw.blocks.get(),
            first: raw.first.get(),
            sequence: raw.sequence.get(),
            start: raw.start.get(),
            errno: i32::from_le_bytes(raw.errno.get().to_le_bytes()),
            features,
            ignored: if first { features_of(raw).incompat } else { JournalIncompat::empty() },
        });
        superblock.check_layout()?;
        Ok(superblock)
    }

    /// Whether a version 1 has features of version 2 whose logs look otherwise: one of the two is damaged, and blocks
    /// of a log in use would be taken for what they are not. (Kernel and e2fsck read on without them.)
    /// Features that change no layout count for nothing, as there: asynchronous commits, checksums of transactions.
    #[must_use]
    pub fn contradicts_version(&self) -> bool {
        let other = JournalIncompat::BIT64
            | JournalIncompat::CSUM_V2
            | JournalIncompat::CSUM_V3
            | JournalIncompat::FAST_COMMIT;
        self.ignored.intersects(other) || !self.ignored.unknown().is_empty()
    }

    fn check_layout(&self) -> Result<(), Corrupt> {
        if !self.block_size.is_power_of_two() || !(1024..=65536).contains(&self.block_size) {
            return Err(field("block_size"));
        }
        if self.first == 0 || self.first >= self.blocks {
            return Err(field("first"));
        }
        // A log without room for a record before the fast-commit area cannot be used.
        let end = self.blocks.checked_sub(self.fast_commit_blocks()).filter(|end| *end > self.first);
        let end = end.ok_or(field("fast_commit_blocks"))?;
        if self.start != 0 && !(self.first..end).contains(&self.start) {
            return Err(field("start"));
        }
        Ok(())
    }

    /// Writes every field into the 1024 bytes at the start of `bytes` and brings the checksum up to date.
    ///
    /// Fields of no meaning here stay as they are, in version 1 everything from the feature words on.
    pub fn encode(&self, bytes: &mut [u8]) -> Result<(), EncodeError> {
        if self.check_layout().is_err() {
            return Err(EncodeError::new(STRUCTURE, "layout"));
        }
        let raw: &mut RawSuperblock = record_mut(bytes, STRUCTURE)?;
        store!(self into raw { block_size, blocks, first, sequence, start });
        raw.errno.set(u32::from_le_bytes(self.errno.to_le_bytes()));
        let block_type = match self.version {
            SuperblockVersion::V1 => BlockType::SuperblockV1,
            SuperblockVersion::V2 => {
                raw.compat.set(self.features.compat.bits());
                raw.incompat.set(self.features.incompat.bits());
                raw.ro_compat.set(self.features.ro_compat.bits());
                store!(self into raw { uuid, users, max_transaction, max_transaction_data });
                raw.user_ids[0] = self.user;
                store!(self into raw { checksum_type, fast_commit_blocks_raw, head });
                BlockType::SuperblockV2
            }
        };
        // The header's third word, a sequence number, has no meaning in a superblock.
        raw.header[0].set(MAGIC);
        raw.header[1].set(block_type.to_disk());
        if self.features.metadata_checksums() {
            raw.checksum = U32::new(checksum_of(raw));
        }
        Ok(())
    }

    /// Blocks at the end of the log that hold fast-commit records; 0 without the feature.
    pub fn fast_commit_blocks(&self) -> u32 {
        if !self.features.incompat.contains(JournalIncompat::FAST_COMMIT) {
            return 0;
        }
        match self.fast_commit_blocks_raw {
            0 => DEFAULT_FAST_COMMIT_BLOCKS,
            blocks => blocks,
        }
    }

    /// The block after the last one of the ordinary log: it wraps to [`JournalSuperblock::first`] there.
    pub fn log_end(&self) -> u32 {
        self.blocks.saturating_sub(self.fast_commit_blocks())
    }

    /// The seed of the log's crc32c checksums: crc32c of the journal's UUID.
    pub fn checksum_seed(&self) -> u32 {
        csum(CSUM_INIT, &self.uuid)
    }
}
