//! Ranges of bits in a bitmap.

use std::ops::Range;

pub(crate) fn bit(bitmap: &[u8], index: u32) -> bool {
    bitmap.get(index as usize / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1)
}

pub(crate) fn put_bit(bitmap: &mut [u8], index: u32, used: bool) {
    if let Some(byte) = bitmap.get_mut(index as usize / 8) {
        let mask = 1 << (index % 8);
        *byte = if used { *byte | mask } else { *byte & !mask };
    }
}

/// The whole bytes of a range of bits, and the bits before and after them.
fn whole_bytes(bits: Range<u32>) -> (Range<usize>, [Range<u32>; 2]) {
    let (first, last) = (bits.start.div_ceil(8), bits.end / 8);
    if first >= last {
        return (0..0, [bits, 0..0]);
    }
    (first as usize..last as usize, [bits.start..first * 8, last * 8..bits.end])
}

pub(crate) fn put_bits(bitmap: &mut [u8], bits: Range<u32>, used: bool) {
    let (bytes, rest) = whole_bytes(bits);
    if let Some(bytes) = bitmap.get_mut(bytes) {
        bytes.fill(if used { 0xff } else { 0 });
    }
    rest.into_iter().flatten().for_each(|index| put_bit(bitmap, index, used));
}

pub(crate) fn used_bits(bitmap: &[u8], bits: Range<u32>) -> u32 {
    let (bytes, rest) = whole_bytes(bits);
    let (words, bytes) = bitmap.get(bytes).unwrap_or_default().as_chunks::<8>();
    let whole: u32 = words.iter().map(|word| u64::from_le_bytes(*word).count_ones()).sum();
    let whole = whole + bytes.iter().map(|byte| byte.count_ones()).sum::<u32>();
    whole + rest.into_iter().flatten().filter(|index| bit(bitmap, *index)).count() as u32
}

pub(crate) fn free_bits(bitmap: &[u8], count: u32) -> u32 {
    count - used_bits(bitmap, 0..count)
}

/// The first used (or free) bit of a range, ignoring bits past the end of the bitmap.
fn find(bitmap: &[u8], bits: Range<u32>, used: bool) -> Option<u32> {
    if bits.is_empty() {
        return None;
    }
    let flip = if used { 0 } else { u64::MAX };
    let first = bits.start / 64 * 8;
    let bytes = bitmap.get(first as usize..)?;
    let (words, rest) = bytes.as_chunks::<8>();
    // Bits before the range do not count.
    let before = u64::MAX << (bits.start % 64);
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes) ^ flip;
    let found = match words.split_first() {
        Some((start, _)) if word(start) & before != 0 => Some((0, word(start) & before)),
        Some((_, words)) => {
            let at = words.iter().position(|bytes| word(bytes) != 0);
            at.map(|at| (at + 1, word(&words[at])))
        }
        None => None,
    };
    let found = found.or_else(|| {
        // Pad the last word with bits of the other value.
        let mut padded = [if used { 0 } else { 0xff }; 8];
        padded[..rest.len()].copy_from_slice(rest);
        let before = if words.is_empty() { before } else { u64::MAX };
        Some((words.len(), word(&padded) & before)).filter(|(_, word)| *word != 0)
    });
    let (at, word) = found?;
    Some(first * 8 + at as u32 * 64 + word.trailing_zeros()).filter(|index| *index < bits.end)
}

/// The first free bit of a range.
pub(crate) fn first_free(bitmap: &[u8], bits: Range<u32>) -> Option<u32> {
    find(bitmap, bits, false)
}

/// The runs of free bits in a range.
pub(crate) fn free_runs(bitmap: &[u8], bits: Range<u32>) -> impl Iterator<Item = Range<u32>> + '_ {
    let mut at = bits.start;
    std::iter::from_fn(move || {
        let start = find(bitmap, at..bits.end, false)?;
        at = find(bitmap, start..bits.end, true).unwrap_or(bits.end);
        Some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_bits_are_those_bits_one_by_one() {
        for start in 0..40 {
            for end in start..40 {
                for used in [false, true] {
                    let mut bitmap = [if used { 0 } else { 0xff }; 5];
                    let mut single = bitmap;
                    put_bits(&mut bitmap, start..end, used);
                    (start..end).for_each(|index| put_bit(&mut single, index, used));
                    assert_eq!(bitmap, single, "{start}..{end}");
                    for (from, to) in [(0, 40), (start, end), (start / 2, end)] {
                        let expected = (from..to).filter(|index| bit(&bitmap, *index)).count() as u32;
                        assert_eq!(used_bits(&bitmap, from..to), expected, "{from}..{to}");
                        let free = free_runs(&bitmap, from..to).flatten();
                        assert!(free.eq((from..to).filter(|index| !bit(&bitmap, *index))), "{from}..{to}");
                    }
                }
            }
        }
    }
}
