//! The superblock's bytes, in the kernel's field order (`struct ext4_super_block`).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where and on what an error happened, first occurrence. The last one has another field order.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawFirstError {
    pub time: U32,
    pub inode: U32,
    pub block: U64,
    pub function: [u8; 32],
    pub line: U32,
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawLastError {
    pub time: U32,
    pub inode: U32,
    pub line: U32,
    pub block: U64,
    pub function: [u8; 32],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    pub inodes_count: U32,
    pub blocks_count_lo: U32,
    pub reserved_blocks_lo: U32,
    pub free_blocks_lo: U32,
    pub free_inodes: U32,
    pub first_data_block: U32,
    pub log_block_size: U32,
    pub log_cluster_size: U32,
    pub blocks_per_group: U32,
    pub clusters_per_group: U32,
    pub inodes_per_group: U32,
    pub mount_time: U32,
    pub write_time: U32,
    pub mount_count: U16,
    pub max_mount_count: U16,
    pub magic: U16,
    pub state: U16,
    pub on_error_raw: U16,
    pub minor_revision: U16,
    pub check_time: U32,
    pub check_interval: U32,
    pub creator_os: U32,
    pub revision: U32,
    pub reserved_uid: U16,
    pub reserved_gid: U16,
    pub first_inode: U32,
    pub inode_size: U16,
    pub block_group: U16,
    pub compat: U32,
    pub incompat: U32,
    pub ro_compat: U32,
    pub uuid: [u8; 16],
    pub label_raw: [u8; 16],
    pub last_mounted: [u8; 64],
    pub algorithm_usage: U32,
    pub prealloc_blocks: u8,
    pub prealloc_dir_blocks: u8,
    pub reserved_gdt_blocks: U16,
    pub journal_uuid: [u8; 16],
    pub journal_inode: U32,
    pub journal_device: U32,
    pub last_orphan: U32,
    pub hash_seed: [U32; 4],
    pub hash_version: u8,
    pub journal_backup_type: u8,
    pub desc_size: U16,
    pub default_mount_options: U32,
    pub first_meta_bg: U32,
    pub mkfs_time: U32,
    pub journal_backup: [U32; 17],
    pub blocks_count_hi: U32,
    pub reserved_blocks_hi: U32,
    pub free_blocks_hi: U32,
    pub min_extra_isize: U16,
    pub want_extra_isize: U16,
    pub flags: U32,
    pub raid_stride: U16,
    pub mmp_interval: U16,
    pub mmp_block: U64,
    pub raid_stripe_width: U32,
    pub log_groups_per_flex: u8,
    pub checksum_type: u8,
    pub encryption_level: u8,
    pub reserved_pad: u8,
    pub kbytes_written: U64,
    pub snapshot_inode: U32,
    pub snapshot_id: U32,
    pub snapshot_reserved_blocks: U64,
    pub snapshot_list: U32,
    pub error_count: U32,
    pub first_error: RawFirstError,
    pub last_error: RawLastError,
    pub mount_options: [u8; 64],
    pub user_quota_inode: U32,
    pub group_quota_inode: U32,
    pub overhead_clusters: U32,
    pub backup_groups: [U32; 2],
    pub encrypt_algorithms: [u8; 4],
    pub encrypt_salt: [u8; 16],
    pub lost_found_inode: U32,
    pub project_quota_inode: U32,
    pub stored_checksum_seed: U32,
    pub write_time_hi: u8,
    pub mount_time_hi: u8,
    pub mkfs_time_hi: u8,
    pub check_time_hi: u8,
    pub first_error_time_hi: u8,
    pub last_error_time_hi: u8,
    pub first_error_code: u8,
    pub last_error_code: u8,
    pub encoding: U16,
    pub encoding_flags: U16,
    pub orphan_file_inode: U32,
    pub reserved_uid_hi: U16,
    pub reserved_gid_hi: U16,
    pub reserved: [U32; 93],
    pub checksum: U32,
}

const _: () = assert!(size_of::<RawSuperblock>() == 1024);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, magic) == 0x38);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, hash_seed) == 0xEC);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, blocks_count_hi) == 0x150);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, kbytes_written) == 0x178);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, mount_options) == 0x200);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, stored_checksum_seed) == 0x270);
const _: () = assert!(std::mem::offset_of!(RawSuperblock, checksum) == 0x3FC);
