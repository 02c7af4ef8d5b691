//! Zeros in what was read, which structured replies leave out. They are found in the data itself, so a reply never
//! disagrees with what was there when it was read.

/// Zeros are looked for in units of this many bytes.
const UNIT: usize = 4096;
/// Most parts of a reply; the last one is data.
const PARTS_MAX: usize = 17;

/// Splits data into parts that are all zeros and parts that may not be, each as its start and whether it is zeros. The
/// first starts at 0. `whole`: in one part.
pub(crate) fn split(data: &[u8], whole: bool) -> Vec<(usize, bool)> {
    if whole || data.len() <= UNIT {
        return vec![(0, is_zero(data))];
    }
    let mut parts: Vec<(usize, bool)> = Vec::new();
    for (number, unit) in data.chunks(UNIT).enumerate() {
        let zero = is_zero(unit);
        if parts.last().is_some_and(|last| last.1 == zero) {
            continue;
        }
        parts.push((number * UNIT, zero));
        if parts.len() == PARTS_MAX {
            if let Some(last) = parts.last_mut() {
                last.1 = false;
            }
            break;
        }
    }
    parts
}

/// Whether all bytes are zeros. Nearly all data is told apart by its first bytes.
fn is_zero(data: &[u8]) -> bool {
    match data.split_first() {
        // Each byte equals the one before it: a comparison of memory, as fast as one.
        Some((0, rest)) => rest == &data[..rest.len()],
        _ => false,
    }
}
