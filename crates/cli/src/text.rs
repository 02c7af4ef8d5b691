//! Names, numbers, times and modes as text.

use chrono::DateTime;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use uext4::device;
use uext4::{FileKind, Metadata, Timestamp};

/// `name` for a person: control characters, line and direction marks and bytes that are not UTF-8 are escaped, so that
/// a name can neither move the cursor nor imitate another one. A backslash is doubled.
pub fn visible(name: &[u8]) -> String {
    let mut shown = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => shown.push_str("\\\\"),
                '\n' => shown.push_str("\\n"),
                '\t' => shown.push_str("\\t"),
                letter if letter.is_ascii_control() => push_byte(&mut shown, letter as u8),
                letter if letter.is_control() || changes_direction(letter) => {
                    shown.extend(letter.escape_unicode());
                }
                letter => shown.push(letter),
            }
        }
        for &byte in chunk.invalid() {
            push_byte(&mut shown, byte);
        }
    }
    shown
}

fn push_byte(text: &mut String, byte: u8) {
    text.push_str(&format!("\\x{byte:02x}"));
}

/// Line and paragraph separators, and marks that make a terminal print letters in another order.
fn changes_direction(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `message` on one line.
pub fn one_line(message: &str) -> String {
    let words: Vec<&str> =
        message.split(['\n', '\r']).map(str::trim).filter(|part| !part.is_empty()).collect();
    words.join(" ").chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

/// The two JSON fields of a name: itself, or its bytes in base64 if it is not UTF-8.
pub fn utf8_or_base64(name: &[u8]) -> (Option<&str>, Option<String>) {
    match std::str::from_utf8(name) {
        Ok(name) => (Some(name), None),
        Err(_) => (None, Some(base64(name))),
    }
}

/// A time in JSON with the fields of `struct timespec`: seconds since 1970 (negative before it) and the nanoseconds
/// after them. All times in JSON have this form.
#[derive(Serialize)]
pub struct JsonTime {
    tv_sec: i64,
    tv_nsec: u32,
}

impl From<Timestamp> for JsonTime {
    fn from(time: Timestamp) -> Self {
        JsonTime { tv_sec: time.seconds, tv_nsec: time.nanoseconds }
    }
}

/// Seconds since 1970 as [`JsonTime`].
pub fn seconds<S: Serializer>(seconds: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    let tv_sec = i64::try_from(*seconds).unwrap_or(i64::MAX);
    JsonTime { tv_sec, tv_nsec: 0 }.serialize(serializer)
}

/// Bytes that are mostly text, as a field of this name; if they are not UTF-8, in base64 as the field `NAME_b64`.
/// Flatten it into a struct; without bytes there is no field.
pub struct JsonBytes<'a>(pub &'static str, pub Option<&'a [u8]>);

impl<'a> JsonBytes<'a> {
    /// The argument that a JSON element belongs to; no field if there is only one argument.
    pub fn argument(argument: &'a OsStr, count: usize) -> Self {
        JsonBytes("argument", (count > 1).then(|| argument.as_bytes()))
    }
}

impl Serialize for JsonBytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let JsonBytes(name, bytes) = *self;
        let mut fields = serializer.serialize_map(None)?;
        match bytes.map(utf8_or_base64) {
            None => {}
            Some((Some(text), _)) => fields.serialize_entry(name, text)?,
            Some((None, coded)) => fields.serialize_entry(&format!("{name}_b64"), &coded)?,
        }
        fields.end()
    }
}

/// One value as JSON on a line. Plain numbers and names always serialize; if one does not, the line is the error.
pub fn json_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
}

/// RFC 4648 base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    data_encoding::BASE64.encode(bytes)
}

/// Bytes from `4096`, `4k`, `64M`, `1.5G`, `2TiB`, `0x1000` (powers of 1024), `10MB` (of 1000).
pub fn parse_size(text: &str) -> Result<u64, String> {
    device::parse_size(text).ok_or_else(|| {
        format!(
            "`{text}` is not a size of up to 64 bits: a number, perhaps with k, m, g, t, p or e (1.5g, 10MB)"
        )
    })
}

/// Bytes for a person: `512 bytes`, `26.016 MiB`, whole numbers without decimals.
pub fn human(bytes: f64) -> String {
    const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.3} {}", UNITS[unit])
    }
}

/// Formatted as by `du -h` and `df -h`: rounded up, one decimal below 10, powers of 1024: `0`, `512`, `4.0K`, `12M`.
pub fn short(bytes: u64) -> String {
    const LETTERS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let mut power = 0;
    while power + 1 < LETTERS.len() && bytes.div_ceil(1 << (10 * power)) >= 1024 {
        power += 1;
    }
    let unit = 1u128 << (10 * power);
    let tenths = (u128::from(bytes) * 10).div_ceil(unit);
    if power > 0 && tenths < 100 {
        format!("{}.{}{}", tenths / 10, tenths % 10, LETTERS[power])
    } else {
        format!("{}{}", u128::from(bytes).div_ceil(unit), LETTERS[power])
    }
}

/// A UUID in the usual groups.
pub fn uuid(bytes: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*bytes).to_string()
}

/// The names of a type: for JSON, as coreutils `stat` prints it, and as the first letter of a mode.
fn names(kind: FileKind) -> (&'static str, &'static str, char) {
    match kind {
        FileKind::Regular => ("file", "regular file", '-'),
        FileKind::Directory => ("directory", "directory", 'd'),
        FileKind::Symlink => ("symlink", "symbolic link", 'l'),
        FileKind::CharDevice => ("char_device", "character special file", 'c'),
        FileKind::BlockDevice => ("block_device", "block special file", 'b'),
        FileKind::Fifo => ("fifo", "fifo", 'p'),
        FileKind::Socket => ("socket", "socket", 's'),
    }
}

/// The type for JSON.
pub fn kind(kind: FileKind) -> &'static str {
    names(kind).0
}

/// The type as coreutils `stat` prints it.
pub fn kind_words(kind: FileKind) -> &'static str {
    names(kind).1
}

/// The size, or major and minor of device nodes; with a unit letter for a person.
pub fn size_or_device(metadata: &Metadata, human: bool) -> String {
    match metadata.kind {
        FileKind::CharDevice | FileKind::BlockDevice => format!("{}, {}", metadata.rdev.0, metadata.rdev.1),
        _ if human => short(metadata.size),
        _ => metadata.size.to_string(),
    }
}

/// `drwxr-sr-t` and the like.
pub fn mode_string(kind: FileKind, mode: u32) -> String {
    let mut text = String::with_capacity(10);
    text.push(names(kind).2);
    for (shift, special, set, set_and_x) in
        [(6, 0o4000, 'S', 's'), (3, 0o2000, 'S', 's'), (0, 0o1000, 'T', 't')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (false, false) => '-',
            (true, false) => 'x',
            (false, true) => set,
            (true, true) => set_and_x,
        });
    }
    text
}

/// `2026-11-21T05:16:27Z`, UTC; `@SECONDS` if outside the calendar's range.
pub fn time(seconds: i64) -> String {
    match DateTime::from_timestamp(seconds, 0) {
        Some(time) => time.format("%Y-%m-%dT%H:%M:%SZ").to_string(),
        None => format!("@{seconds}"),
    }
}

/// Same with nanoseconds.
pub fn time_ns(time_of: Timestamp) -> String {
    let whole = time(time_of.seconds);
    format!("{}.{:09}Z", whole.trim_end_matches('Z'), time_of.nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_speak_to_the_terminal() {
        assert_eq!(visible("żółć".as_bytes()), "żółć");
        assert_eq!(visible(b"a\x1b[2Jb\n\t\\"), "a\\x1b[2Jb\\n\\t\\\\");
        assert_eq!(visible(b"\xff\xfe\x7f"), "\\xff\\xfe\\x7f");
        assert_eq!(visible("\u{9b}2J\u{202e}x".as_bytes()), "\\u{9b}2J\\u{202e}x");
    }

    #[test]
    fn base64_of_the_rfc() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(base64(b"\xff\xfe\x80"), "//6A");
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4k", 4096),
            ("4K", 4096),
            ("3m", 3 << 20),
            ("1GiB", 1 << 30),
            ("2t", 2 << 40),
            ("0x1000", 4096),
            ("0x1000k", 4096 << 10),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!((parse_size("1.5m"), parse_size("4kb")), (Ok(3 << 19), Ok(4000)));
        for bad in ["", "k", "-1", "1.5", "4kbb", "1ib", "0x", "99999999999999999999", "16777216t", " 1"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_across_the_format() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (-2_147_483_648, "1901-12-13T20:45:52Z"),
            (2_147_483_648, "2038-01-19T03:14:08Z"),
            (15_032_385_535, "2446-05-10T22:38:55Z"),
            (i64::MAX, "@9223372036854775807"),
        ] {
            assert_eq!(time(seconds), text);
        }
        assert_eq!(time_ns(Timestamp { seconds: -1, nanoseconds: 5 }), "1969-12-31T23:59:59.000000005Z");
    }

    #[test]
    fn modes() {
        assert_eq!(mode_string(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_string(FileKind::Regular, 0o4755), "-rwsr-xr-x");
        assert_eq!(mode_string(FileKind::Regular, 0o6644), "-rwSr-Sr--");
        assert_eq!(mode_string(FileKind::Fifo, 0o1000), "p--------T");
    }

    #[test]
    fn amounts() {
        assert_eq!(human(33_554_432.0), "32 MiB");
        assert_eq!(human(512.0), "512 bytes");
        assert_eq!(human(1536.0), "1.500 KiB");
    }

    #[test]
    fn short_amounts() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((10 << 10) - 1, "10K"),
            (1023 << 10, "1023K"),
            ((1023 << 10) + 1, "1.0M"),
            (3 << 30, "3.0G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(short(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn one_line_is_one_line() {
        assert_eq!(one_line("a\n  b\r\n\u{1b}c"), "a b ?c");
    }
}
