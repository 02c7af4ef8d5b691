//! Sizes (`64M`) and durations (`740us`) of the DEVICE grammar.

use std::time::Duration;

/// Unit letters and their power of 1024 (or 1000), largest first, so that printing finds the largest exact one.
const SIZE_UNITS: [(char, u32); 6] = [('E', 6), ('P', 5), ('T', 4), ('G', 3), ('M', 2), ('K', 1)];

/// Duration units in nanoseconds, longest suffix first (`s` is a suffix of all others).
const TIME_UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];

/// Parses a size in bytes, as fallocate(1) does: `4096`, `64M`, `1.5G`, `0x1000`. `K`, `M`, `G`, `T`, `P`, `E`, in
/// either case and with or without `iB`, are powers of 1024; with `B`, powers of 1000. Fractions of a byte are cut off.
/// `None` for anything else, including overflow of 64 bits.
pub fn parse_size(text: &str) -> Option<u64> {
    parse_scaled(text, |unit| {
        let mut letters = unit.chars();
        let Some(letter) = letters.next() else { return Some(1) };
        let (_, power) = SIZE_UNITS.iter().find(|(name, _)| *name == letter.to_ascii_uppercase())?;
        let behind = letters.as_str();
        match behind {
            "B" | "b" => Some(1000u64.pow(*power)),
            _ if behind.is_empty() || behind.eq_ignore_ascii_case("ib") => Some(1 << (10 * power)),
            _ => None,
        }
    })
}

/// Parses a number with a unit: decimal, optionally with a fraction, or hexadecimal after `0x` (where b and e are
/// digits, as in strtoll(3)). `unit` maps the suffix to its multiplier. A fraction requires a suffix.
pub fn parse_scaled(text: &str, unit: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    let (number, rest) = split_digits(digits, radix);
    let number = u64::from_str_radix(number, radix).ok()?;
    let Some(fraction) = rest.strip_prefix('.').filter(|_| radix == 10) else {
        return number.checked_mul(unit(rest)?);
    };
    let (fraction, word) = split_digits(fraction, 10);
    if fraction.is_empty() || fraction.len() > FRACTION_MAX || word.is_empty() {
        return None;
    }
    let unit = unit(word)?;
    // Cannot overflow: less than 10^18 times less than 2^64.
    let part =
        u128::from(fraction.parse::<u64>().ok()?) * u128::from(unit) / 10u128.pow(fraction.len() as u32);
    number.checked_mul(unit)?.checked_add(u64::try_from(part).ok()?)
}

/// Most digits after the decimal point.
const FRACTION_MAX: usize = 18;

fn split_digits(text: &str, radix: u32) -> (&str, &str) {
    text.split_at(text.find(|letter: char| !letter.is_digit(radix)).unwrap_or(text.len()))
}

/// Parses a duration: decimal digits and one of `ns`, `us`, `ms`, `s`. A bare number is refused, because its unit would
/// be a guess.
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
    for (name, power) in SIZE_UNITS {
        if bytes != 0 && bytes.trailing_zeros() >= 10 * power {
            return format!("{}{name}", bytes >> (10 * power));
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
    fn sizes_take_units_and_fractions() {
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
            ("1.5G", Some(1610612736)),
            ("1.5", None),
            ("1.G", None),
            (".5G", None),
            ("1.5.5G", None),
            ("0x1.8k", None),
            ("0.3k", Some(307)),
            ("1.999999999999999999E", Some((2 << 60) - 2)),
            ("1.9999999999999999999E", None),
            ("15.999E", Some(18445591152204944769)),
            ("16E", None),
            ("64MB", Some(64_000_000)),
            ("1.5kB", Some(1500)),
            ("0x1000", Some(4096)),
            ("0x1e", Some(30)),
            ("0x", None),
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
