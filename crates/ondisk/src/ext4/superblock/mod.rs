//! The superblock: what the volume is, how it is laid out, and what state it was left in.

mod geometry;
mod journal_device;
mod parts;
mod raw;

use std::sync::OnceLock;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

pub use geometry::{Geometry, GeometryFields, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
pub use journal_device::JournalDeviceSuperblock;
pub use parts::{
    DefaultMountOptions, ErrorLog, ErrorRecord, HashSettings, JournalLocation, MmpSettings, OnError,
    SnapshotFields, State, SuperblockFlags, SuperblockTimes,
};
use raw::RawSuperblock;

use super::features::{Compat, Features, Incompat, RoCompat};
use super::quota::QuotaKind;
use crate::bytes::{high16, high32, join16, join32, load, low16, low32, record, record_mut, store};
use crate::checksum::{CSUM_INIT, csum};
use crate::error::{Corrupt, CorruptKind, EncodeError};
use crate::numbers::{Ino, Pblk};

const STRUCTURE: &str = "superblock";
/// The one encoding of case-folded names that is defined: UTF-8, compared by Unicode 12.1
/// (`EXT4_ENC_UTF8_12_1`).
pub const ENCODING_UTF8_12_1: u16 = 1;
const MAGIC: u16 = 0xEF53;
const CHECKSUM_OFFSET: usize = 0x3FC;
const CHECKSUM_CRC32C: u8 = 1;
/// Larger values turn flexible groups off, as in the kernel.
const MAX_LOG_GROUPS_PER_FLEX: u8 = 31;

/// The seed of checksums that follows from a UUID, computed once.
#[derive(Clone, Debug, Default)]
pub struct SeedOfUuid(OnceLock<([u8; 16], u32)>);

impl SeedOfUuid {
    fn of(&self, uuid: &[u8; 16]) -> u32 {
        let seed = || csum(CSUM_INIT, uuid);
        match self.0.get_or_init(|| (*uuid, seed())) {
            (known, found) if known == uuid => *found,
            // The volume got another one.
            _ => seed(),
        }
    }
}

/// It says nothing that the UUID does not.
impl PartialEq for SeedOfUuid {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for SeedOfUuid {}

/// A decoded superblock (`struct ext4_super_block`).
///
/// The layout is in [`Superblock::geometry`], already checked; everything else is as found on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Sizes and layout.
    pub geometry: Geometry,
    /// The three feature words.
    pub features: Features,
    /// Minor revision (`s_minor_rev_level`).
    pub minor_revision: u16,
    /// System that made the volume (`s_creator_os`): 0 Linux, 1 Hurd, 3 FreeBSD.
    pub creator_os: u32,
    /// Blocks only the privileged may use (`s_r_blocks_count`).
    pub reserved_blocks: u64,
    /// Free blocks (`s_free_blocks_count`), up to date only after a clean unmount.
    pub free_blocks: u64,
    /// Free inodes (`s_free_inodes_count`), up to date only after a clean unmount.
    pub free_inodes: u32,
    /// Clean, with errors, orphans being deleted (`s_state`).
    pub state: State,
    /// What to do on an error, raw (`s_errors`); see [`Superblock::on_error`].
    pub on_error_raw: u16,
    /// When the volume was made, mounted, written and checked.
    pub times: SuperblockTimes,
    /// Mounts since the last check (`s_mnt_count`).
    pub mount_count: u16,
    /// Mounts after which a check is due (`s_max_mnt_count`), 0xFFFF = never.
    pub max_mount_count: u16,
    /// Seconds after which a check is due (`s_checkinterval`), 0 = never.
    pub check_interval: u32,
    /// User that may use reserved blocks (`s_def_resuid`).
    pub reserved_uid: u32,
    /// Group that may use reserved blocks (`s_def_resgid`).
    pub reserved_gid: u32,
    /// Group this copy of the superblock lies in (`s_block_group_nr`).
    pub block_group: u16,
    /// Identity of the volume (`s_uuid`).
    pub uuid: [u8; 16],
    /// Label, padded with NUL (`s_volume_name`); see [`Superblock::label`].
    pub label_raw: [u8; 16],
    /// Where the volume was mounted last, padded with NUL (`s_last_mounted`).
    pub last_mounted: [u8; 64],
    /// Compression algorithms (`s_algorithm_usage_bitmap`), unused.
    pub algorithm_usage: u32,
    /// Blocks to preallocate to files (`s_prealloc_blocks`), unused.
    pub prealloc_blocks: u8,
    /// Blocks to preallocate to directories (`s_prealloc_dir_blocks`), unused.
    pub prealloc_dir_blocks: u8,
    /// Where the journal is.
    pub journal: JournalLocation,
    /// Head of the list of inodes to delete or truncate (`s_last_orphan`), 0 = empty.
    pub last_orphan: u32,
    /// Seed and kind of directory hashes.
    pub hash: HashSettings,
    /// Mount options set in the volume (`s_default_mount_opts`).
    pub default_mount_options: DefaultMountOptions,
    /// Mount options as text, padded with NUL (`s_mount_opts`).
    pub mount_options: [u8; 64],
    /// Bytes of extra fields all inodes have (`s_min_extra_isize`).
    pub min_extra_isize: u16,
    /// Bytes of extra fields new inodes should have (`s_want_extra_isize`).
    pub want_extra_isize: u16,
    /// Signedness of hashes and test marks (`s_flags`).
    pub flags: SuperblockFlags,
    /// Blocks of one disk of a RAID stripe (`s_raid_stride`).
    pub raid_stride: u16,
    /// Blocks of all data disks of a RAID stripe (`s_raid_stripe_width`).
    pub raid_stripe_width: u32,
    /// Multi-mount protection.
    pub mmp: MmpSettings,
    /// log2 of the groups whose metadata lies together (`s_log_groups_per_flex`).
    pub log_groups_per_flex: u8,
    /// Algorithm of metadata checksums (`s_checksum_type`): 1 = crc32c.
    pub checksum_type: u8,
    /// Version of encryption in use (`s_encryption_level`).
    pub encryption_level: u8,
    /// KiB written to the volume in its life (`s_kbytes_written`).
    pub kbytes_written: u64,
    /// Fields of an experiment with snapshots, unused.
    pub snapshot: SnapshotFields,
    /// Errors seen since the last check.
    pub errors: ErrorLog,
    /// User quota file (`s_usr_quota_inum`), 0 = none.
    pub user_quota_inode: u32,
    /// Group quota file (`s_grp_quota_inum`), 0 = none.
    pub group_quota_inode: u32,
    /// Project quota file (`s_prj_quota_inum`), 0 = none.
    pub project_quota_inode: u32,
    /// Clusters of metadata (`s_overhead_clusters`), 0 = not computed.
    pub overhead_clusters: u32,
    /// Encryption algorithms in use (`s_encrypt_algos`).
    pub encrypt_algorithms: [u8; 4],
    /// Salt for passwords of encrypted directories (`s_encrypt_pw_salt`).
    pub encrypt_salt: [u8; 16],
    /// The directory `lost+found` (`s_lpf_ino`), 0 = not known.
    pub lost_found_inode: u32,
    /// Stored checksum seed (`s_checksum_seed`); counts with the `metadata_csum_seed` feature.
    pub stored_checksum_seed: u32,
    /// The seed that follows from the UUID without it, once it was asked for. Not on the volume.
    pub seed_of_uuid: SeedOfUuid,
    /// Character encoding of case-folded names (`s_encoding`): [`ENCODING_UTF8_12_1`].
    pub encoding: u16,
    /// Flags of that encoding (`s_encoding_flags`): see [`Superblock::strict_encoding`] and
    /// [`Superblock::no_encoding_fallback`].
    pub encoding_flags: u16,
    /// The file that keeps orphans (`s_orphan_file_inum`), 0 = none.
    pub orphan_file_inode: u32,
}

fn features_of(raw: &RawSuperblock) -> Features {
    // Revision 0 should have none, but the kernel and e2fsprogs honour them there too.
    Features {
        compat: Compat::from_bits_retain(raw.compat.get()),
        incompat: Incompat::from_bits_retain(raw.incompat.get()),
        ro_compat: RoCompat::from_bits_retain(raw.ro_compat.get()),
    }
}

/// Checks magic number and checksum.
fn verify(raw: &RawSuperblock) -> Result<Features, Corrupt> {
    if raw.magic.get() != MAGIC {
        return Err(CorruptKind::SuperblockMagic.into());
    }
    let features = features_of(raw);
    if features.metadata_csum() {
        if raw.checksum_type != CHECKSUM_CRC32C {
            return Err(CorruptKind::SuperblockField("checksum_type").into());
        }
        if checksum_of(raw) != raw.checksum.get() {
            return Err(CorruptKind::SuperblockChecksum.into());
        }
    }
    Ok(features)
}

fn checksum_of(raw: &RawSuperblock) -> u32 {
    let bytes = raw.as_bytes();
    csum(CSUM_INIT, bytes.get(..CHECKSUM_OFFSET).unwrap_or(bytes))
}

fn geometry_of(raw: &RawSuperblock, features: &Features) -> Result<Geometry, Corrupt> {
    let wide = features.incompat.contains(Incompat::BIT64);
    let blocks_hi = if wide { raw.blocks_count_hi.get() } else { 0 };
    let fields = load!(GeometryFields from raw {
        same: inodes_count, first_data_block, log_block_size, log_cluster_size, blocks_per_group, clusters_per_group,
            inodes_per_group, revision, first_inode, inode_size, desc_size, reserved_gdt_blocks, first_meta_bg,
            backup_groups;
        blocks_count: join32(raw.blocks_count_lo.get(), blocks_hi),
    });
    Geometry::new(fields, features)
}

impl Superblock {
    /// The feature words of a superblock, after magic number and checksum were found right.
    ///
    /// A volume with an unknown incompatible feature, or an external journal, may have a layout that
    /// [`Superblock::decode`] would call corrupt. Look here first and refuse it by the feature's name.
    pub fn peek_features(bytes: &[u8]) -> Result<Features, Corrupt> {
        verify(record(bytes, STRUCTURE)?)
    }

    /// Decodes the 1024 bytes of a superblock, primary or backup: magic number, checksum and layout are
    /// checked.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, Corrupt> {
        let raw: &RawSuperblock = record(bytes, STRUCTURE)?;
        let features = verify(raw)?;
        let geometry = geometry_of(raw, &features)?;
        let wide = features.incompat.contains(Incompat::BIT64);
        let high = |half: U32| if wide { half.get() } else { 0 };
        Ok(load!(Superblock from raw {
            same: minor_revision, creator_os, free_inodes, on_error_raw, mount_count, max_mount_count, check_interval,
                block_group, uuid, label_raw, last_mounted, algorithm_usage, prealloc_blocks, prealloc_dir_blocks,
                last_orphan, mount_options, min_extra_isize, want_extra_isize, raid_stride, raid_stripe_width,
                log_groups_per_flex, checksum_type, encryption_level, kbytes_written, user_quota_inode,
                group_quota_inode, project_quota_inode, overhead_clusters, encrypt_algorithms, encrypt_salt,
                lost_found_inode, stored_checksum_seed, encoding, encoding_flags, orphan_file_inode;
            geometry,
            features,
            seed_of_uuid: SeedOfUuid::default(),
            reserved_blocks: join32(raw.reserved_blocks_lo.get(), high(raw.reserved_blocks_hi)),
            free_blocks: join32(raw.free_blocks_lo.get(), high(raw.free_blocks_hi)),
            state: State::from_bits_retain(raw.state.get()),
            times: SuperblockTimes::decode(raw),
            reserved_uid: join16(raw.reserved_uid.get(), raw.reserved_uid_hi.get()),
            reserved_gid: join16(raw.reserved_gid.get(), raw.reserved_gid_hi.get()),
            journal: JournalLocation::decode(raw),
            hash: HashSettings::decode(raw),
            default_mount_options: DefaultMountOptions::from_bits_retain(raw.default_mount_options.get()),
            flags: SuperblockFlags::from_bits_retain(raw.flags.get()),
            mmp: MmpSettings { interval: raw.mmp_interval.get(), block: Pblk(raw.mmp_block.get()) },
            snapshot: SnapshotFields::decode(raw),
            errors: ErrorLog::decode(raw),
        }))
    }

    /// Writes every field into the 1024 bytes at the start of `bytes` and brings the checksum up to date.
    ///
    /// Bytes of no known field, and the high halves of block counts on volumes without `64bit`, stay as
    /// they are.
    pub fn encode(&self, bytes: &mut [u8]) -> Result<(), EncodeError> {
        let raw: &mut RawSuperblock = record_mut(bytes, STRUCTURE)?;
        raw.magic = U16::new(MAGIC);
        self.encode_geometry(raw)?;
        self.encode_split(raw)?;
        store!(self into raw {
            minor_revision, creator_os, free_inodes, on_error_raw, mount_count, max_mount_count, check_interval,
            block_group, uuid, label_raw, last_mounted, algorithm_usage, prealloc_blocks, prealloc_dir_blocks,
            last_orphan, mount_options, min_extra_isize, want_extra_isize, raid_stride, raid_stripe_width,
            log_groups_per_flex, checksum_type, encryption_level, kbytes_written, user_quota_inode,
            group_quota_inode, project_quota_inode, overhead_clusters, encrypt_algorithms, encrypt_salt,
            lost_found_inode, stored_checksum_seed, encoding, encoding_flags, orphan_file_inode,
        });
        raw.state.set(self.state.bits());
        raw.default_mount_options.set(self.default_mount_options.bits());
        raw.flags.set(self.flags.bits());
        self.times.encode(raw)?;
        self.journal.encode(raw);
        self.hash.encode(raw);
        self.snapshot.encode(raw);
        self.errors.encode(raw)?;
        raw.mmp_interval = U16::new(self.mmp.interval);
        raw.mmp_block.set(self.mmp.block.0);
        if self.features.metadata_csum() {
            raw.checksum = U32::new(checksum_of(raw));
        }
        Ok(())
    }

    fn encode_geometry(&self, raw: &mut RawSuperblock) -> Result<(), EncodeError> {
        let fields = self.geometry.fields();
        raw.compat.set(self.features.compat.bits());
        raw.incompat.set(self.features.incompat.bits());
        raw.ro_compat.set(self.features.ro_compat.bits());
        let (low, high) = (&mut raw.blocks_count_lo, &mut raw.blocks_count_hi);
        self.put_wide(fields.blocks_count, low, high, "blocks_count")?;
        store!(fields into raw {
            inodes_count, first_data_block, log_block_size, log_cluster_size, blocks_per_group, clusters_per_group,
            inodes_per_group, revision, first_inode, inode_size, desc_size, reserved_gdt_blocks, first_meta_bg,
            backup_groups,
        });
        Ok(())
    }

    /// Numbers whose halves lie apart.
    fn encode_split(&self, raw: &mut RawSuperblock) -> Result<(), EncodeError> {
        let (low, high) = (&mut raw.reserved_blocks_lo, &mut raw.reserved_blocks_hi);
        self.put_wide(self.reserved_blocks, low, high, "reserved_blocks")?;
        self.put_wide(self.free_blocks, &mut raw.free_blocks_lo, &mut raw.free_blocks_hi, "free_blocks")?;
        raw.reserved_uid.set(low16(self.reserved_uid));
        raw.reserved_uid_hi.set(high16(self.reserved_uid));
        raw.reserved_gid.set(low16(self.reserved_gid));
        raw.reserved_gid_hi.set(high16(self.reserved_gid));
        Ok(())
    }

    fn put_wide(
        &self,
        value: u64,
        low: &mut U32,
        high: &mut U32,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        if self.features.incompat.contains(Incompat::BIT64) {
            high.set(high32(value));
        } else if high32(value) != 0 {
            return Err(EncodeError::new(STRUCTURE, field));
        }
        low.set(low32(value));
        Ok(())
    }

    /// The seed of all metadata checksums: stored, or derived from the UUID.
    pub fn checksum_seed(&self) -> u32 {
        if self.features.incompat.contains(Incompat::CSUM_SEED) {
            self.stored_checksum_seed
        } else {
            self.seed_of_uuid.of(&self.uuid)
        }
    }

    /// The label without its padding.
    pub fn label(&self) -> &[u8] {
        until_nul(&self.label_raw)
    }

    /// The last mount point without its padding.
    pub fn last_mount_point(&self) -> &[u8] {
        until_nul(&self.last_mounted)
    }

    /// What the volume asks for when an error is found, if the value is known.
    pub fn on_error(&self) -> Option<OnError> {
        OnError::from_raw(self.on_error_raw)
    }

    /// Groups whose metadata lies together: a power of two, 1 without the `flex_bg` feature.
    pub fn groups_per_flex(&self) -> u32 {
        let log = self.log_groups_per_flex;
        if !self.geometry.flex_bg() || log > MAX_LOG_GROUPS_PER_FLEX {
            return 1;
        }
        1_u32.checked_shl(u32::from(log)).unwrap_or(1)
    }

    /// The quota files: kind and inode. None without the feature.
    pub fn quota_files(&self) -> impl Iterator<Item = (QuotaKind, Ino)> {
        let kept = self.features.ro_compat.contains(RoCompat::QUOTA);
        let files = [
            (QuotaKind::User, self.user_quota_inode),
            (QuotaKind::Group, self.group_quota_inode),
            (QuotaKind::Project, self.project_quota_inode),
        ];
        let files = files.into_iter().filter(move |_| kept);
        files.filter_map(|(kind, number)| Some((kind, Ino::nonzero(number)?)))
    }

    /// Whether directory hashes treat bytes of names as unsigned. Without either flag they are signed, as the
    /// kernel decides on x86.
    pub fn hash_unsigned(&self) -> bool {
        self.flags.contains(SuperblockFlags::UNSIGNED_HASH)
    }

    /// Whether names in case-folded directories must be valid UTF-8 (`SB_ENC_STRICT_MODE_FL`).
    pub fn strict_encoding(&self) -> bool {
        self.encoding_flags & 1 != 0
    }

    /// Whether all names of case-folded directories lie where their hash says (`SB_ENC_NO_COMPAT_FALLBACK_FL`);
    /// else a look-up that fails goes through the whole directory.
    pub fn no_encoding_fallback(&self) -> bool {
        self.encoding_flags & 2 != 0
    }

    /// The journal's inode, if the journal is inside the volume.
    pub fn journal_inode(&self) -> Option<Ino> {
        if !self.features.compat.contains(Compat::HAS_JOURNAL) {
            return None;
        }
        Ino::nonzero(self.journal.inode)
    }

    /// Whether the journal is on a device of its own.
    pub fn has_external_journal(&self) -> bool {
        self.features.compat.contains(Compat::HAS_JOURNAL)
            && self.journal.inode == 0
            && (self.journal.device != 0 || self.journal.uuid != [0; 16])
    }

    /// Whether the volume has a journal, inside or on a device of its own.
    pub fn has_journal(&self) -> bool {
        self.journal_inode().is_some() || self.has_external_journal()
    }

    /// Whether data is journaled by default (`data=journal`). The two bits of the journal mode are one number: 1
    /// journal, 2 ordered, 3 writeback.
    pub fn journals_data(&self) -> bool {
        let mode = DefaultMountOptions::DATA_JOURNAL | DefaultMountOptions::DATA_ORDERED;
        self.default_mount_options & mode == DefaultMountOptions::DATA_JOURNAL
    }

    /// Whether the journal must be replayed before the volume is used.
    pub fn needs_recovery(&self) -> bool {
        self.features.incompat.contains(Incompat::RECOVER)
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or(bytes)
}
