//! The block of multi-mount protection, by which the owner of a volume shows others that it is alive.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::superblock::Superblock;
use crate::bytes::{load, record, record_mut, store};
use crate::checksum::csum;
use crate::error::{Corrupt, CorruptKind, EncodeError};

const STRUCTURE: &str = "multi-mount protection block";
const MAGIC: u32 = 0x004D_4D50;
const SEQUENCE_CLEAN: u32 = 0xFF4D_4D50;
const SEQUENCE_FSCK: u32 = 0xE24D_4D50;
const SEQUENCE_MAX: u32 = 0xE24D_4D4F;
const CHECKSUM_OFFSET: usize = 1020;

/// `struct mmp_struct`
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawMmp {
    magic: U32,
    sequence: U32,
    time: U64,
    node_name: [u8; 64],
    device_name: [u8; 32],
    check_interval: U16,
    padding_0: U16,
    padding_1: [U32; 226],
    checksum: U32,
}

const _: () = assert!(size_of::<RawMmp>() == 1024);
const _: () = assert!(std::mem::offset_of!(RawMmp, checksum) == CHECKSUM_OFFSET);

/// The contents of the block ([`Superblock::mmp`] says where it is).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmpBlock {
    /// Changes with every refresh, or says that nobody or a checker owns the volume (`mmp_seq`).
    pub sequence: u32,
    /// Time of the last refresh, in seconds since 1970, for people to read (`mmp_time`).
    pub time: u64,
    /// Host of the owner, padded with NUL (`mmp_nodename`).
    pub node_name: [u8; 64],
    /// Device name there, padded with NUL (`mmp_bdevname`).
    pub device_name: [u8; 32],
    /// Seconds within which the owner promises a refresh (`mmp_check_interval`).
    pub check_interval: u16,
}

/// Who owns a volume, by its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MmpOwner {
    /// Cleanly unmounted.
    Nobody,
    /// A checker is at work.
    Checker,
    /// Mounted when this number was written; alive if the number changes within the check interval.
    Mounted(u32),
    /// A number outside the valid range: owned by something unknown.
    Unknown(u32),
}

fn checksum_of(raw: &RawMmp, sb: &Superblock) -> u32 {
    let bytes = raw.as_bytes();
    csum(sb.checksum_seed(), bytes.get(..CHECKSUM_OFFSET).unwrap_or(bytes))
}

impl MmpBlock {
    /// The block of a volume that nobody owns.
    pub fn clean(time: u64) -> MmpBlock {
        let (node_name, device_name) = ([0; 64], [0; 32]);
        MmpBlock { sequence: SEQUENCE_CLEAN, time, node_name, device_name, check_interval: 0 }
    }

    /// Decodes the block; magic number and checksum are checked.
    pub fn decode(bytes: &[u8], sb: &Superblock) -> Result<MmpBlock, Corrupt> {
        let raw: &RawMmp = record(bytes, STRUCTURE)?;
        if raw.magic.get() != MAGIC {
            return Err(Corrupt::new(CorruptKind::MmpMagic).at_block(sb.mmp.block));
        }
        if sb.features.metadata_csum() && checksum_of(raw, sb) != raw.checksum.get() {
            return Err(Corrupt::new(CorruptKind::MmpChecksum).at_block(sb.mmp.block));
        }
        Ok(load!(MmpBlock from raw { same: sequence, time, node_name, device_name, check_interval; }))
    }

    /// Writes every field into the block and brings the checksum up to date.
    pub fn encode(&self, bytes: &mut [u8], sb: &Superblock) -> Result<(), EncodeError> {
        let raw: &mut RawMmp = record_mut(bytes, STRUCTURE)?;
        raw.magic.set(MAGIC);
        store!(self into raw { sequence, time, node_name, device_name, check_interval });
        if sb.features.metadata_csum() {
            raw.checksum = U32::new(checksum_of(raw, sb));
        }
        Ok(())
    }

    /// Who owns the volume.
    pub fn owner(&self) -> MmpOwner {
        match self.sequence {
            SEQUENCE_CLEAN => MmpOwner::Nobody,
            SEQUENCE_FSCK => MmpOwner::Checker,
            1..=SEQUENCE_MAX => MmpOwner::Mounted(self.sequence),
            other => MmpOwner::Unknown(other),
        }
    }
}
