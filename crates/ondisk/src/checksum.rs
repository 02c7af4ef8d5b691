//! Checksums as the formats use them: the running value is the raw register, without the usual final
//! inversion, so that the result of one call is the seed of the next.

use std::sync::LazyLock;

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

/// How the crc32c of a message changes when these bytes of it are flipped (combined by exclusive or), `behind` bytes
/// before its end: with any seed, and in far fewer steps than the sum of a long message takes. A CRC is linear.
pub fn csum_of_flips(flips: &[u8], behind: usize) -> u32 {
    static STEPS: LazyLock<Vec<Advance>> = LazyLock::new(steps);
    let (mut sum, mut left) = (csum(0, flips), behind);
    for step in STEPS.iter() {
        if left & 1 == 1 {
            sum = step.of(sum);
        }
        left >>= 1;
        if left == 0 {
            return sum;
        }
    }
    // Longer than any block.
    csum(csum(0, flips), &vec![0; behind])
}

/// What a number of zero bytes makes of each digit of the register, digits of four bits.
struct Advance([[u32; 16]; 8]);

impl Advance {
    /// `bits`: what they make of each bit.
    fn new(bits: &[u32; 32]) -> Advance {
        let mut digits = [[0; 16]; 8];
        for (digit, bits) in digits.iter_mut().zip(bits.as_chunks::<4>().0) {
            for (value, place) in (0_u32..).zip(digit.iter_mut()) {
                *place =
                    (0..).zip(bits).filter(|(bit, _)| value >> bit & 1 == 1).fold(0, |sum, (_, of)| sum ^ of);
            }
        }
        Advance(digits)
    }

    #[inline]
    fn of(&self, register: u32) -> u32 {
        let digit = |at: u32| usize::try_from(register.unbounded_shr(at.saturating_mul(4)) & 15).unwrap_or(0);
        (0..).zip(&self.0).fold(0, |sum, (at, values)| sum ^ values.get(digit(at)).copied().unwrap_or(0))
    }
}

/// For 1, 2, 4 … zero bytes, up to half of the longest block.
fn steps() -> Vec<Advance> {
    let mut bits: [u32; 32] = std::array::from_fn(|bit| csum(1 << bit, &[0]));
    let mut steps = Vec::new();
    for _ in 0..16 {
        let step = Advance::new(&bits);
        bits = bits.map(|register| step.of(register));
        steps.push(step);
    }
    steps
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flips_change_the_sum_as_a_new_one_does() {
        let message: Vec<u8> = (0..70_000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
        for length in [1, 2, 9, 512, 4092, 65_536, 70_000] {
            for at in [0, 1, length / 3, length - 1] {
                let flips: Vec<u8> = message.iter().rev().take(40).take(length - at).copied().collect();
                let mut changed = message[..length].to_vec();
                changed[at..].iter_mut().zip(&flips).for_each(|(byte, flip)| *byte ^= flip);
                let change = csum_of_flips(&flips, length - at - flips.len());
                assert_eq!(csum(77, &message[..length]) ^ change, csum(77, &changed), "{at} of {length}");
            }
        }
    }
}
