//! The hashes that entries and blocks carry. They find equal blocks and values; against damage they are a
//! second line behind the checksums.

use crate::checksum::csum;
use crate::error::{Corrupt, CorruptKind};

const NAME_SHIFT: u32 = 5;
const VALUE_SHIFT: u32 = 16;

/// The hash of an entry (`e_hash`) over its stored name and the words of its value.
///
/// `value` is the value with its padding; of a value in an inode of its own it is the four bytes of
/// [`xattr_value_checksum`]. `signed` takes the bytes of the name as signed, as kernels before 6.2 did on
/// machines where `char` is signed.
pub fn xattr_entry_hash(name: &[u8], value: &[u8], signed: bool) -> u32 {
    let mut hash = 0_u32;
    for &byte in name {
        let letter = if signed { i32::from(i8::from_le_bytes([byte])) } else { i32::from(byte) };
        hash = hash.rotate_left(NAME_SHIFT) ^ u32::from_le_bytes(letter.to_le_bytes());
    }
    for word in value.chunks(4) {
        let mut bytes = [0; 4];
        for (target, byte) in bytes.iter_mut().zip(word) {
            *target = *byte;
        }
        hash = hash.rotate_left(VALUE_SHIFT) ^ u32::from_le_bytes(bytes);
    }
    hash
}

/// The checksum that a value in another inode must have if `stored` is to be the hash of its entry: that goes over the
/// name, whose hash alone is `name` ([`xattr_entry_hash`] without a value), and over the checksum as its one word.
pub fn xattr_value_checksum_of(name: u32, stored: u32) -> u32 {
    name.rotate_left(VALUE_SHIFT) ^ stored
}

/// Whether `stored` is the hash of an entry with this name and these words of value. Names beyond ASCII were
/// hashed with signed bytes on some machines: both forms count.
///
/// # Errors
/// [`CorruptKind::XattrHash`].
pub fn verify_xattr_entry_hash(stored: u32, name: &[u8], value: &[u8]) -> Result<(), Corrupt> {
    let fits = [false, true].iter().any(|&signed| xattr_entry_hash(name, value, signed) == stored);
    if fits { Ok(()) } else { Err(CorruptKind::XattrHash.into()) }
}

/// The checksum of a value that lies in an inode of its own: crc32c from the volume's seed, stored where that
/// inode would have its access time, on volumes with and without metadata checksums.
pub fn xattr_value_checksum(volume_seed: u32, value: &[u8]) -> u32 {
    csum(volume_seed, value)
}
