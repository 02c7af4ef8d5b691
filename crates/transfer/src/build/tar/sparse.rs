//! Maps of sparse files: checked once, whatever the format, and turned into ranges with data.

use crate::build::error::GatherCause;
use std::ops::Range;

/// The ranges with data of a file of `size` bytes, for which the archive has `stored` bytes.
pub fn checked(map: &[(u64, u64)], size: u64, stored: u64) -> Result<Vec<Range<u64>>, GatherCause> {
    let mut data: Vec<Range<u64>> = Vec::new();
    let (mut end, mut sum) = (0, 0_u64);
    for &(start, length) in map {
        if start < end {
            return Err(GatherCause::Sparse("its ranges overlap or go backwards"));
        }
        let next = start.checked_add(length).filter(|end| *end <= size);
        end = next.ok_or(GatherCause::Sparse("a range is beyond the size"))?;
        // No more than the size, since they do not overlap.
        sum += length;
        if length == 0 {
            continue;
        }
        match data.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => data.push(start..end),
        }
    }
    if sum != stored {
        return Err(GatherCause::Sparse("its ranges are not as long as the data"));
    }
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_must_be_in_order_and_complete() {
        let ranges = |map: &[(u64, u64)], size, stored| checked(map, size, stored).ok();
        assert_eq!(ranges(&[(0, 2), (2, 3), (8, 1), (10, 0)], 10, 6), Some(vec![0..5, 8..9]));
        assert_eq!(ranges(&[], 10, 0), Some(vec![]));
        assert_eq!(ranges(&[(0, 5), (4, 2)], 10, 7), None, "overlap");
        assert_eq!(ranges(&[(5, 1), (0, 2)], 10, 3), None, "backwards");
        assert_eq!(ranges(&[(8, 3)], 10, 3), None, "beyond");
        assert_eq!(ranges(&[(u64::MAX, 2)], u64::MAX, 2), None, "overflow");
        assert_eq!(ranges(&[(0, 2)], 10, 3), None, "too little");
        assert_eq!(ranges(&[(0, 4)], 10, 3), None, "too much");
    }
}
