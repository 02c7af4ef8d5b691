//! The flag in the superblock that says that the log is in use (`needs_recovery`).
//!
//! It lies in the first sector of 512 bytes of the superblock, the checksum in the second. If both changed, a power cut
//! could leave one of them old, and nobody could open the volume any more: neither we, nor Linux, nor e2fsck, if there
//! is no other superblock. So the checksum is made to stay: with the flag some bits of a field change that nothing uses,
//! the number of a snapshot. A checksum by division is linear, so these bits are the same whatever else the superblock
//! says, and clearing the flag brings the field back.

use uext4_ondisk::ext4::{Incompat, RoCompat};

/// The low byte of the incompatible features, with the flag.
const INCOMPAT: usize = 0x60;
/// The read-only compatible features, with that of checksums.
const RO_COMPAT: usize = 0x64;
/// The number of a snapshot, and what of it changes with the flag.
const SNAPSHOT: usize = 0x184;
const BALANCE: u32 = 0x3775_16a6;

/// Makes a superblock say that the log is in use, or not. What it says otherwise, its checksum included, stays.
pub(crate) fn flag_log(superblock: &mut [u8], in_use: bool) {
    let flag = Incompat::RECOVER.bits() as u8;
    if (superblock[INCOMPAT] & flag != 0) == in_use {
        return;
    }
    superblock[INCOMPAT] ^= flag;
    let ro_compat = u32::from_le_bytes([0, 1, 2, 3].map(|at| superblock[RO_COMPAT + at]));
    if RoCompat::from_bits_retain(ro_compat).contains(RoCompat::METADATA_CSUM) {
        let bytes = BALANCE.to_le_bytes();
        superblock[SNAPSHOT..].iter_mut().zip(bytes).for_each(|(byte, change)| *byte ^= change);
    }
}
