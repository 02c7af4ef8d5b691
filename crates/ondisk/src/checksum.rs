//! Checksums as the formats use them: the running value is the raw register, without the usual final
//! inversion, so that the result of one call is the seed of the next.

use crc::{CRC_16_MODBUS, CRC_32_MPEG_2, Crc};

/// The register all-ones, with which every crc32c chain of the formats starts.
pub const CSUM_INIT: u32 = u32::MAX;

/// The register all-ones, with which every crc16 chain of the formats starts.
pub const CRC16_INIT: u16 = u16::MAX;

// Reflected polynomial 0x8005 without final inversion: the generator of the kernel's crc16().
static CRC16: Crc<u16> = Crc::<u16>::new(&CRC_16_MODBUS);

// Polynomial 0x04C11DB7, most significant bit first, without final inversion: the kernel's crc32_be().
static CRC32_BE: Crc<u32> = Crc::<u32>::new(&CRC_32_MPEG_2);

/// crc32c of `bytes`, continuing from the register `seed`.
pub fn csum(seed: u32, bytes: &[u8]) -> u32 {
    // The crate inverts the register before and after; undo both.
    !crc32c::crc32c_append(!seed, bytes)
}

/// crc32c of the little-endian bytes of `value`, continuing from `seed`.
pub fn csum_le32(seed: u32, value: u32) -> u32 {
    csum(seed, &value.to_le_bytes())
}

/// crc32c of a copy of `bytes` in which these two-byte fields are zero, continuing from the register `seed`. One call
/// is several times faster than one for each part. `None` if a field lies outside, or there are more bytes than
/// `LENGTH`.
#[inline]
pub(crate) fn csum_without<const LENGTH: usize>(seed: u32, bytes: &[u8], fields: &[usize]) -> Option<u32> {
    let mut copy = [0; LENGTH];
    let copy = copy.get_mut(..bytes.len())?;
    copy.copy_from_slice(bytes);
    for &field in fields {
        copy.get_mut(field..field.checked_add(2)?)?.fill(0);
    }
    Some(csum(seed, copy))
}

/// crc16 of `bytes`, continuing from the register `seed`.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    // The crate takes the register in unreflected bit order and returns it reflected.
    let mut digest = CRC16.digest_with_initial(seed.reverse_bits());
    digest.update(bytes);
    digest.finalize()
}

/// crc32, most significant bit first, of `bytes`, continuing from the register `seed`: the old transaction
/// checksum of the journal.
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    let mut digest = CRC32_BE.digest_with_initial(seed);
    digest.update(bytes);
    digest.finalize()
}
