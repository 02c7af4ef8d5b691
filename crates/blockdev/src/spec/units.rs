//! Sizes (`64M`) and durations (`740us`) of the DEVICE grammar.

use std::time::Duration;

/// Binary multipliers, largest first, so that printing finds the biggest exact one.
const SIZE_UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// Duration units in nanoseconds, longest suffix first (`s` is a suffix of all others).
const TIME_UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Parses a size in bytes: decimal digits and an optional binary suffix `K`, `M`, `G`, `T` (either case, `iB`
/// may follow: `64MiB`). `None` on anything else, including overflow of 64 bits.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    if suffix.is_empty() {
        return Some(number);
    }
    let unit = suffix.strip_suffix("iB").unwrap_or(suffix);
    let mut letters = unit.chars();
    let letter = letters.next()?.to_ascii_uppercase();
    if letters.next().is_some() {
        return None;
    }
    let (_, shift) = SIZE_UNITS.iter().find(|(name, _)| *name == letter)?;
    number.checked_mul(1 << shift)
}

/// Parses a duration: decimal digits and one of `ns`, `us`, `ms`, `s`. A bare number is refused, because
/// nobody could tell its unit.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let (suffix, scale) = TIME_UNITS.iter().find(|(suffix, _)| text.ends_with(suffix))?;
    let digits = &text[..text.len() - suffix.len()];
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(Duration::from_nanos(digits.parse::<u64>().ok()?.checked_mul(*scale)?))
}

/// Prints a size with the largest unit that divides it; [`parse_size`] reads it back.
pub(super) fn format_size(bytes: u64) -> String {
    for (name, shift) in SIZE_UNITS {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{name}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Prints a duration with the largest unit that divides it; [`parse_duration`] reads it back.
pub(super) fn format_duration(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    for (suffix, scale) in TIME_UNITS.iter().rev() {
        if nanos != 0 && nanos.is_multiple_of(*scale) {
            return format!("{}{suffix}", nanos / scale);
        }
    }
    format!("{nanos}ns")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_accept_binary_suffixes_only() {
        let table = [
            ("0", Some(0)),
            ("512", Some(512)),
            ("4k", Some(4096)),
            ("64M", Some(64 << 20)),
            ("64MiB", Some(64 << 20)),
            ("3G", Some(3 << 30)),
            ("2T", Some(2 << 40)),
            ("16777216T", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("", None),
            ("M", None),
            ("-1", None),
            ("+1", None),
            ("1.5G", None),
            ("64MB", None),
            ("64iB", None),
            ("64MM", None),
            (" 64M", None),
        ];
        for (text, want) in table {
            assert_eq!(parse_size(text), want, "{text}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        let table = [
            ("740us", Some(Duration::from_micros(740))),
            ("2ms", Some(Duration::from_millis(2))),
            ("1s", Some(Duration::from_secs(1))),
            ("500ns", Some(Duration::from_nanos(500))),
            ("0s", Some(Duration::ZERO)),
            ("2", None),
            ("ms", None),
            ("1.5ms", None),
            ("-1s", None),
            ("2 ms", None),
            ("20000000000s", None),
        ];
        for (text, want) in table {
            assert_eq!(parse_duration(text), want, "{text}");
        }
    }

    #[test]
    fn printing_round_trips() {
        for bytes in [0, 1, 512, 1000, 4096, 1 << 20, 3 << 30, (1 << 40) + 512, u64::MAX] {
            assert_eq!(parse_size(&format_size(bytes)), Some(bytes));
        }
        for nanos in [0, 1, 740_000, 2_000_000, 1_500_000_000, 3_000_000_000] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(parse_duration(&format_duration(duration)), Some(duration));
        }
        assert_eq!(format_size(64 << 20), "64M");
        assert_eq!(format_duration(Duration::from_micros(740)), "740us");
    }
}
