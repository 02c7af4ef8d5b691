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

/// crc32c of the little-endian bytes of `value`, continuing from `seed`. Four bytes are too few for [`csum`], which
/// takes three times as long.
pub fn csum_le32(seed: u32, value: u32) -> u32 {
    let [a, b, c, d] = (seed ^ value).to_le_bytes();
    let [table, one_behind, two_behind, three_behind] = &BYTES;
    let of = |table: &[u32; 256], byte: u8| table.get(usize::from(byte)).copied().unwrap_or(0);
    of(three_behind, a) ^ of(two_behind, b) ^ of(one_behind, c) ^ of(table, d)
}

/// What a byte makes of the register, with none to three zero bytes behind it.
static BYTES: [[u32; 256]; 4] = bytes();

#[expect(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "evaluated by the compiler")]
const fn bytes() -> [[u32; 256]; 4] {
    /// The polynomial, reflected.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut tables = [[0; 256]; 4];
    let (mut value, mut byte) = (0, 0_u32);
    while value < 256 {
        let (mut register, mut bit, mut behind) = (byte, 0, 0);
        while behind < 4 {
            while bit < 8 {
                register = register >> 1 ^ if register & 1 == 1 { POLYNOMIAL } else { 0 };
                bit += 1;
            }
            tables[behind][value] = register;
            (bit, behind) = (0, behind + 1);
        }
        (value, byte) = (value + 1, byte + 1);
    }
    tables
}

/// How the crc32c of a message changes when these bytes of it are flipped (combined by exclusive or), `behind` bytes
/// before its end: with any seed, and in far fewer steps than the sum of a long message takes. A CRC is linear.
pub fn csum_of_flips(flips: &[u8], behind: usize) -> u32 {
    static STEPS: LazyLock<Vec<[Advance; 16]>> = LazyLock::new(steps);
    let (mut sum, mut left) = (csum(0, flips), behind);
    for step in STEPS.iter() {
        if left == 0 {
            return sum;
        }
        // None for the digit 0.
        if let Some(step) = step.get(left & 15).filter(|_| left & 15 > 0) {
            sum = step.of(sum);
        }
        left >>= 4;
    }
    if left == 0 {
        return sum;
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

/// For 0 to 15 zero bytes, for 0, 16, 32 … zero bytes, and so on: for each digit of the length of the longest block.
fn steps() -> Vec<[Advance; 16]> {
    // What one more of a digit makes of each bit.
    let mut one: [u32; 32] = std::array::from_fn(|bit| csum(1 << bit, &[0]));
    let mut steps = Vec::new();
    for _ in 0..4 {
        let more = Advance::new(&one);
        let mut bits: [u32; 32] = std::array::from_fn(|bit| 1 << bit);
        steps.push(std::array::from_fn(|_| {
            let step = Advance::new(&bits);
            bits = bits.map(|register| more.of(register));
            step
        }));
        one = bits;
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
    fn four_bytes_have_the_sum_of_the_general_way() {
        let mut value = 1_u32;
        for at in 0..1000 {
            value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let seed = if at % 3 == 0 { CSUM_INIT } else { value.rotate_left(at) };
            assert_eq!(csum_le32(seed, value), csum(seed, &value.to_le_bytes()));
        }
    }

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
