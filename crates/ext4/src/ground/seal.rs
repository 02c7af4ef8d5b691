//! Keeps every change of the superblock within one sector.
//!
//! All fields that change (the flag that the log is in use, free counts, the head of the orphan list) lie in its first
//! 512 bytes; the checksum lies in the last. If both changed, a power cut could leave one of them old, and nobody could
//! open the volume any more: neither we, nor Linux, nor e2fsck, if there is no backup superblock. So we keep the
//! checksum and change an unused field, the snapshot number, to make the contents match. A CRC is linear, and 32 free
//! bits of the message can give it any value.

use std::sync::OnceLock;
use uext4_ondisk::checksum::csum;
use uext4_ondisk::ext4::{Incompat, RoCompat};

/// The low byte of the incompatible features, with the recovery flag.
const INCOMPAT: usize = 0x60;
/// The read-only compatible features, with `metadata_csum`.
const RO_COMPAT: usize = 0x64;
/// The head of the orphan list.
const LAST_ORPHAN: usize = 0xe8;
/// The snapshot number.
const SNAPSHOT: usize = 0x184;
/// The checksum, over all bytes before it.
const CHECKSUM: usize = 0x3fc;
const SECTOR: usize = 512;

/// Sets or clears the flag that the log is in use.
pub(crate) fn flag_log(superblock: &mut [u8], in_use: bool) {
    let flag = Incompat::RECOVER.bits() as u8;
    superblock[INCOMPAT] = if in_use { superblock[INCOMPAT] | flag } else { superblock[INCOMPAT] & !flag };
}

/// Seals a changed superblock: keeps the checksum it had `before` if only the first sector has changed, computes a new
/// one otherwise.
pub(crate) fn seal(before: &[u8], superblock: &mut [u8]) {
    let ro_compat = u32::from_le_bytes([0, 1, 2, 3].map(|at| superblock[RO_COMPAT + at]));
    if !RoCompat::from_bits_retain(ro_compat).contains(RoCompat::METADATA_CSUM) {
        return;
    }
    let (rest, sum) = (SECTOR..CHECKSUM, CHECKSUM..CHECKSUM + 4);
    let mut now = csum(!0, &superblock[..CHECKSUM]);
    if before[rest.clone()] == superblock[rest] && csum(!0, &before[..CHECKSUM]) == word(before, CHECKSUM) {
        let wanted = word(before, CHECKSUM);
        let field = word(superblock, SNAPSHOT) ^ balance(now ^ wanted);
        superblock[SNAPSHOT..SNAPSHOT + 4].copy_from_slice(&field.to_le_bytes());
        now = wanted;
    }
    superblock[sum].copy_from_slice(&now.to_le_bytes());
}

/// Whether the log is in use.
pub(crate) fn says_in_use(superblock: &[u8]) -> bool {
    superblock[INCOMPAT] & Incompat::RECOVER.bits() as u8 != 0
}

/// Sets the head of the orphan list in a sealed superblock, which stays sealed.
pub(crate) fn set_last_orphan(superblock: &mut [u8], ino: u32) {
    static OF_BITS: OnceLock<[u32; 32]> = OnceLock::new();
    let changed = word(superblock, LAST_ORPHAN) ^ ino;
    superblock[LAST_ORPHAN..LAST_ORPHAN + 4].copy_from_slice(&ino.to_le_bytes());
    let ro_compat = RoCompat::from_bits_retain(word(superblock, RO_COMPAT));
    if ro_compat.contains(RoCompat::METADATA_CSUM) {
        // What each bit of the field changes in the sum.
        let of_bits = OF_BITS.get_or_init(|| {
            std::array::from_fn(|bit| {
                let mut message = [0; CHECKSUM];
                message[LAST_ORPHAN..LAST_ORPHAN + 4].copy_from_slice(&(1_u32 << bit).to_le_bytes());
                csum(0, &message)
            })
        });
        let sum = (0..32).filter(|bit| changed >> bit & 1 == 1).fold(0, |sum, bit| sum ^ of_bits[bit]);
        let field = word(superblock, SNAPSHOT) ^ balance(sum);
        superblock[SNAPSHOT..SNAPSHOT + 4].copy_from_slice(&field.to_le_bytes());
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|offset| bytes[at + offset]))
}

/// How the field must change to change the checksum by `difference`.
fn balance(difference: u32) -> u32 {
    static OF_BITS: OnceLock<[u32; 32]> = OnceLock::new();
    let of_bits = OF_BITS.get_or_init(of_bits);
    (0..32).filter(|bit| difference >> bit & 1 == 1).fold(0, |field, bit| field ^ of_bits[bit])
}

/// For each bit of the checksum, the change of the field that flips it: the inverse of what each bit of the field
/// flips.
fn of_bits() -> [u32; 32] {
    let mut message = [0; CHECKSUM];
    let mut rows: [(u32, u32); 32] = std::array::from_fn(|bit| {
        message[SNAPSHOT..SNAPSHOT + 4].copy_from_slice(&(1_u32 << bit).to_le_bytes());
        (csum(0, &message), 1 << bit)
    });
    for bit in 0..32 {
        // A pivot exists: a CRC of 32 bits detects every change of up to 32 consecutive bits.
        let pivot = (bit..32).find(|row| rows[*row].0 >> bit & 1 == 1).unwrap_or(bit);
        rows.swap(bit, pivot);
        let (sum, field) = rows[bit];
        for (at, row) in rows.iter_mut().enumerate() {
            if at != bit && row.0 >> bit & 1 == 1 {
                *row = (row.0 ^ sum, row.1 ^ field);
            }
        }
    }
    rows.map(|(_, field)| field)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_the_first_sector_keeps_the_checksum() {
        let mut before = [7; 1024];
        before[RO_COMPAT..RO_COMPAT + 4].copy_from_slice(&RoCompat::METADATA_CSUM.bits().to_le_bytes());
        let sum = csum(!0, &before[..CHECKSUM]);
        before[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
        for (at, value) in [(INCOMPAT, 4), (0x0c, 0xff), (0xe8, 0x55), (0, 1), (511, 0x80)] {
            let mut after = before;
            after[at] ^= value;
            seal(&before, &mut after);
            assert_eq!(csum(!0, &after[..CHECKSUM]), sum);
            assert_eq!(after[SECTOR..], before[SECTOR..]);
        }
        for ino in [0, 1, 77, u32::MAX] {
            let (mut after, mut expected) = (before, before);
            after[INCOMPAT] |= 4;
            seal(&before, &mut after);
            set_last_orphan(&mut after, ino);
            assert_eq!((word(&after, LAST_ORPHAN), csum(!0, &after[..CHECKSUM])), (ino, sum));
            expected[LAST_ORPHAN..LAST_ORPHAN + 4].copy_from_slice(&ino.to_le_bytes());
            expected[INCOMPAT] |= 4;
            seal(&before, &mut expected);
            assert_eq!(after, expected);
        }
        let mut after = before;
        after[600] ^= 1;
        seal(&before, &mut after);
        assert_ne!(word(&after, CHECKSUM), sum);
        assert_eq!(csum(!0, &after[..CHECKSUM]), word(&after, CHECKSUM));
    }
}
