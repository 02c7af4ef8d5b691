//! Times as `touch` takes them, in UTC.

use chrono::{DateTime, NaiveDateTime, TimeDelta};
use uext4::{Time, Timestamp};

fn timestamp(time: NaiveDateTime) -> Time {
    let time = time.and_utc();
    Time::At(Timestamp { seconds: time.timestamp(), nanoseconds: time.timestamp_subsec_nanos() })
}

/// `now`, `@SECONDS[.FRACTION]`, `2026-11-21[T05:16[:27[.5]]]` with `Z` or `+02:00`.
pub fn parse_date(text: &str) -> Result<Time, String> {
    let bad = || format!("`{text}` is not a time: now, 2026-11-21, 2026-11-21T05:16:27.5+02:00 or @SECONDS");
    if text == "now" {
        return Ok(Time::Now);
    }
    if let Some(since) = text.strip_prefix('@') {
        return parse_seconds(since).ok_or_else(bad);
    }
    let text = text.replacen(' ', "T", 1);
    if let Ok(time) = DateTime::parse_from_rfc3339(&text) {
        return Ok(timestamp(time.naive_utc()));
    }
    let text = text.strip_suffix('Z').unwrap_or(&text);
    let whole = if text.contains('T') { text.to_owned() } else { format!("{text}T00:00") };
    // The library would accept signs and spaces too.
    if !whole.bytes().all(|byte| byte.is_ascii_digit() || b"-:.T".contains(&byte)) || whole.starts_with('-') {
        return Err(bad());
    }
    let formats = ["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S%.f"];
    let time = formats.iter().find_map(|format| NaiveDateTime::parse_from_str(&whole, format).ok());
    time.map(timestamp).ok_or_else(bad)
}

fn parse_seconds(text: &str) -> Option<Time> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if fraction.len() > 9 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let nanoseconds = format!("{fraction:0<9}").parse().ok()?;
    // The fraction belongs to the number: -1.5 is half a second before -1.
    let time = match (whole.starts_with('-'), nanoseconds) {
        (true, 1..) => {
            Timestamp { seconds: seconds.checked_sub(1)?, nanoseconds: 1_000_000_000 - nanoseconds }
        }
        _ => Timestamp { seconds, nanoseconds },
    };
    Some(Time::At(time))
}

/// The time of a deterministic change: the given one, or that of the environment.
pub fn fixed(given: Option<Time>) -> Result<Timestamp, String> {
    let time = match given {
        Some(Time::At(time)) => time,
        Some(_) => return Err("--time now is another time whenever it is run: name a time".into()),
        None => {
            let seconds = source_date_epoch()?.ok_or(
                "--deterministic needs a time: --time, or SOURCE_DATE_EPOCH in the environment, seconds since 1970",
            )?;
            Timestamp { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanoseconds: 0 }
        }
    };
    match (0..=Timestamp::MAX_SECONDS).contains(&time.seconds) {
        true => Ok(time),
        false => Err("the time of a deterministic change is from 1970 to 2446".into()),
    }
}

/// `SOURCE_DATE_EPOCH` in the environment, in seconds since 1970.
pub fn source_date_epoch() -> Result<Option<u64>, &'static str> {
    let Some(epoch) = std::env::var_os("SOURCE_DATE_EPOCH") else { return Ok(None) };
    let seconds = epoch.to_str().and_then(|seconds| seconds.parse().ok());
    seconds.map(Some).ok_or("SOURCE_DATE_EPOCH is not a number of seconds")
}

/// `[[CC]YY]MMDDhhmm[.ss]`, as after `-t`. Without a year, that of `now`.
pub fn parse_stamp(text: &str, now: Timestamp) -> Result<Time, String> {
    let bad = || format!("`{text}` is not a time of the form [[CC]YY]MMDDhhmm[.ss]");
    let (digits, seconds) = text.split_once('.').unwrap_or((text, "00"));
    if !(digits.bytes().chain(seconds.bytes()).all(|digit| digit.is_ascii_digit()) && seconds.len() == 2) {
        return Err(bad());
    }
    let year = match digits.len() {
        8 => DateTime::from_timestamp(now.seconds, 0).ok_or_else(bad)?.format("%Y").to_string(),
        // POSIX: 69 to 99 are of the 20th century.
        10 if &digits[..2] >= "69" => "19".to_owned(),
        10 => "20".to_owned(),
        12 => String::new(),
        _ => return Err(bad()),
    };
    // A leap second is the next one.
    let leap = seconds == "60";
    let seconds = if leap { "59" } else { seconds };
    let time = NaiveDateTime::parse_from_str(&format!("{year}{digits}{seconds}"), "%Y%m%d%H%M%S");
    let time = time.map_err(|_| bad())?.checked_add_signed(TimeDelta::seconds(leap.into()));
    time.map(timestamp).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanoseconds: u32) -> Result<Time, String> {
        Ok(Time::At(Timestamp { seconds, nanoseconds }))
    }

    #[test]
    fn dates() {
        for (text, seconds, nanoseconds) in [
            ("@0", 0, 0),
            ("@-1.5", -2, 500_000_000),
            ("@5000000000.000000001", 5_000_000_000, 1),
            ("2026-11-21", 1_795_219_200, 0),
            ("2026-11-21 05:16", 1_795_238_160, 0),
            ("2026-11-21T05:16:27.25Z", 1_795_238_187, 250_000_000),
            ("2026-11-21T07:16:27+02:00", 1_795_238_187, 0),
        ] {
            assert_eq!(parse_date(text), at(seconds, nanoseconds), "{text}");
        }
        assert_eq!(parse_date("now"), Ok(Time::Now));
        for bad in ["", "@", "@1.0000000001", "@x", "yesterday", "2026-13-01", "-2026-11-21", "2026-11-21T5"]
        {
            assert!(parse_date(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn stamps() {
        let now = Timestamp { seconds: 1_795_219_200, nanoseconds: 0 };
        for (text, seconds) in [
            ("202611210516.27", 1_795_238_187),
            ("2611210516", 1_795_238_160),
            ("11210516", 1_795_238_160),
            ("6901010000", -31_536_000),
            ("202611210516.60", 1_795_238_220),
        ] {
            assert_eq!(parse_stamp(text, now), at(seconds, 0), "{text}");
        }
        for bad in ["", "1121051", "11210516.5", "13210516", "2026112105167", "11210516.99"] {
            assert!(parse_stamp(bad, now).is_err(), "{bad}");
        }
    }
}
