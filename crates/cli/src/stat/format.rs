//! The formats of `stat -c`: the sequences of stat(1) that apply to a volume.

use crate::error::CliError;
use crate::out::Out;
use crate::text;
use chrono::DateTime;
use std::str::FromStr;
use uext4::{FileKind, Metadata, Timestamp};

/// Letters known after `%`.
const KNOWN: &str = "aAbBfFghinNostTuwWxXyYzZ";
/// Maximum width of one field.
const WIDTH_MAX: usize = 4096;

/// A parsed format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Format(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Field(Field),
}

/// One sequence: flags, width, precision, letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Field {
    left: bool,
    zeros: bool,
    alternate: bool,
    width: usize,
    /// Digits of a fraction of seconds.
    digits: Option<usize>,
    letter: char,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            let (before, behind) = rest.split_at(at);
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            rest = &behind[1..];
            if rest.is_empty() || rest.starts_with('%') {
                // A percent sign at the end is literal.
                parts.push(Part::Text("%".to_owned()));
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let (field, length) = Field::parse(rest)?;
            parts.push(Part::Field(field));
            rest = &rest[length..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Format(parts))
    }
}

impl Field {
    /// Parses the text after `%`; returns its length too.
    fn parse(text: &str) -> Result<(Self, usize), String> {
        let mut field =
            Field { left: false, zeros: false, alternate: false, width: 0, digits: None, letter: ' ' };
        let mut rest = text;
        while let Some(flag) = rest.chars().next().filter(|letter| "-0#".contains(*letter)) {
            match flag {
                '-' => field.left = true,
                '0' => field.zeros = true,
                _ => field.alternate = true,
            }
            rest = &rest[1..];
        }
        let wrong = || format!("`%{text}`: the width or precision is not a number up to {WIDTH_MAX}");
        let (width, behind) = number(rest);
        field.width = width.unwrap_or(Some(0)).filter(|width| *width <= WIDTH_MAX).ok_or_else(wrong)?;
        rest = behind;
        if let Some(behind) = rest.strip_prefix('.') {
            let (digits, behind) = number(behind);
            // Without a number, all digits.
            field.digits = Some(digits.unwrap_or(Some(9)).filter(|d| *d <= WIDTH_MAX).ok_or_else(wrong)?);
            rest = behind;
        }
        field.letter = rest.chars().next().unwrap_or('%');
        if !KNOWN.contains(field.letter) {
            let known: String = KNOWN.chars().map(|letter| format!(" %{letter}")).collect();
            return Err(format!("`%{}` is not known; these are:{known} %%", field.letter));
        }
        if field.digits.is_some() && !"WXYZ".contains(field.letter) {
            return Err(format!("`%{}` takes no precision: only %W %X %Y %Z do", field.letter));
        }
        Ok((field, text.len() - rest.len() + 1))
    }

    /// The value for a file, without padding.
    fn value(&self, name: &[u8], metadata: &Metadata, target: Option<&[u8]>) -> Vec<u8> {
        let mode = u32::from(metadata.kind.mode_bits()) | metadata.mode;
        let hexadecimal = |value: u32| match self.alternate && value != 0 {
            true => format!("{value:#x}"),
            false => format!("{value:x}"),
        };
        let text = match self.letter {
            'n' => return name.to_vec(),
            'N' => return quoted(name, target),
            'a' if self.alternate && metadata.mode != 0 => format!("0{:o}", metadata.mode),
            'a' => format!("{:o}", metadata.mode),
            'A' => text::mode_string(metadata.kind, metadata.mode),
            'b' => metadata.blocks.to_string(),
            'B' => "512".into(),
            'f' => hexadecimal(mode),
            'F' if metadata.kind == FileKind::Regular && metadata.size == 0 => "regular empty file".into(),
            'F' => text::kind_words(metadata.kind).into(),
            'g' => metadata.gid.to_string(),
            'h' => metadata.links.to_string(),
            'i' => metadata.ino.to_string(),
            'o' => metadata.block_size.to_string(),
            's' => metadata.size.to_string(),
            't' => hexadecimal(metadata.rdev.0),
            'T' => hexadecimal(metadata.rdev.1),
            'u' => metadata.uid.to_string(),
            'w' => metadata.created.map_or_else(|| "-".into(), calendar),
            'x' => calendar(metadata.accessed),
            'y' => calendar(metadata.modified),
            'z' => calendar(metadata.changed),
            'W' => metadata.created.map_or_else(|| "0".into(), |time| self.epoch(time)),
            'X' => self.epoch(metadata.accessed),
            'Y' => self.epoch(metadata.modified),
            _ => self.epoch(metadata.changed),
        };
        text.into_bytes()
    }

    /// Seconds since 1970, truncated (towards the past) to the requested digits.
    fn epoch(&self, time: Timestamp) -> String {
        let digits = self.digits.unwrap_or(0);
        if digits == 0 {
            return time.seconds.to_string();
        }
        let unit = 10u128.pow(9 - digits.min(9) as u32);
        let nanoseconds = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
        let cut = nanoseconds.div_euclid(unit as i128);
        let (sign, cut) = (if cut < 0 { "-" } else { "" }, cut.unsigned_abs());
        let whole = 1_000_000_000 / unit;
        let fraction = format!("{:0width$}", cut % whole, width = digits.min(9));
        format!("{sign}{}.{fraction:0<digits$}", cut / whole)
    }

    /// Pads to the width with blanks or zeros. Only numbers are padded with zeros.
    fn filled(&self, value: Vec<u8>) -> Vec<u8> {
        let columns = String::from_utf8_lossy(&value).chars().count();
        let fill = self.width.saturating_sub(columns);
        let number = "abBfghiostTuWXYZ".contains(self.letter);
        match self {
            Field { left: true, .. } => [value, vec![b' '; fill]].concat(),
            Field { zeros: true, .. } if number => {
                let sign = usize::from(value.starts_with(b"-"));
                [&value[..sign], &vec![b'0'; fill], &value[sign..]].concat()
            }
            _ => [vec![b' '; fill], value].concat(),
        }
    }
}

/// The leading number, if there is one (inner `None`: too large), and the rest.
fn number(text: &str) -> (Option<Option<usize>>, &str) {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    ((end > 0).then(|| digits.parse().ok()), rest)
}

/// `2026-11-21 05:16:27.000000005 +0000`, as stat(1) in UTC; `@SECONDS` if outside the calendar's range.
fn calendar(time: Timestamp) -> String {
    match DateTime::from_timestamp(time.seconds, time.nanoseconds) {
        Some(time) => time.format("%Y-%m-%d %H:%M:%S%.9f +0000").to_string(),
        None => format!("@{}", time.seconds),
    }
}

/// Quoted for a shell, as GNU programs do, with the target of a link.
fn quoted(name: &[u8], target: Option<&[u8]>) -> Vec<u8> {
    match target {
        Some(target) => [quote(name), b" -> ".to_vec(), quote(target)].concat(),
        None => quote(name),
    }
}

fn quote(name: &[u8]) -> Vec<u8> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"%+,-./:]_{} '".contains(byte);
    if name.contains(&b'\'') && name.iter().all(plain) {
        return [b"\"", name, b"\""].concat();
    }
    let mut text = b"'".to_vec();
    let mut escaped = false;
    let mut push = |bytes: &[u8], escape: bool| {
        // From '…' to $'…' and back.
        match (escaped, escape) {
            (false, true) => text.extend_from_slice(b"'$'"),
            (true, false) => text.extend_from_slice(b"''"),
            _ => {}
        }
        escaped = escape;
        text.extend_from_slice(bytes);
    };
    for chunk in name.utf8_chunks() {
        for letter in chunk.valid().chars() {
            let mut bytes = [0; 4];
            let bytes = letter.encode_utf8(&mut bytes).as_bytes();
            match letter {
                '\'' => push(b"'\\''", false),
                letter if letter.is_control() => bytes.iter().for_each(|&byte| push(&escape(byte), true)),
                _ => push(bytes, false),
            }
        }
        chunk.invalid().iter().for_each(|&byte| push(&escape(byte), true));
    }
    text.push(b'\'');
    text
}

/// An unprintable byte, escaped for `$'…'`.
fn escape(byte: u8) -> Vec<u8> {
    match b"\x07\x08\t\n\x0b\x0c\r".iter().position(|&known| known == byte) {
        Some(at) => vec![b'\\', b"abtnvfr"[at]],
        None => format!("\\{byte:03o}").into_bytes(),
    }
}

impl Format {
    /// Prints it for a file, and a line end.
    pub fn print(
        &self,
        out: &mut Out,
        name: &[u8],
        metadata: &Metadata,
        target: Option<&[u8]>,
    ) -> Result<(), CliError> {
        for part in &self.0 {
            match part {
                Part::Text(text) => out.bytes(text.as_bytes())?,
                Part::Field(field) => out.name(&field.filled(field.value(name, metadata, target)))?,
            }
        }
        out.bytes(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(text: &str) -> Field {
        match &Format::from_str(text).unwrap().0[..] {
            [Part::Field(field)] => *field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for bad in ["%q", "%U", "%+s", "%5", "%.3s", "%5000s", "%m", "%d", "%99999999999999999999s", "%é"] {
            assert!(Format::from_str(bad).is_err(), "{bad}");
        }
        assert_eq!(Format::from_str("%%").unwrap().0, [Part::Text("%".into())]);
        assert_eq!(Format::from_str("a%").unwrap().0.len(), 2);
        assert_eq!(Format::from_str("%n: %s").unwrap().0.len(), 3);
    }

    #[test]
    fn fractions_and_widths() {
        let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
        // As stat(1) prints them.
        for (text, of, printed) in [
            ("%Y", time(-1, 5), "-1"),
            ("%.3Y", time(1, 1_234_567), "1.001"),
            ("%.9Y", time(1, 5), "1.000000005"),
            ("%.Y", time(1, 5), "1.000000005"),
            ("%.12Y", time(1, 5), "1.000000005000"),
            ("%.1Y", time(-1, 500_000_000), "-0.5"),
        ] {
            assert_eq!(field(text).epoch(of), printed, "{text}");
        }
        for (text, value, printed) in [
            ("%8s", "12", "      12"),
            ("%-4s", "12", "12  "),
            ("%04s", "12", "0012"),
            ("%05Y", "-12", "-0012"),
            ("%04n", "ab", "  ab"),
            ("%1s", "12", "12"),
        ] {
            assert_eq!(field(text).filled(value.into()), printed.as_bytes(), "{text}");
        }
        // As stat(1) prints them.
        for (name, printed) in [
            (&b"a\nb"[..], &b"'a'$'\\n''b'"[..]),
            (b"\nb", b"''$'\\n''b'"),
            (b"a\n\tb", b"'a'$'\\n\\t''b'"),
            (b"it's", b"\"it's\""),
            (b"it's $5", b"'it'\\''s $5'"),
            (b"x\xff\xfey", b"'x'$'\\377\\376''y'"),
            (b"a\"b", b"'a\"b'"),
        ] {
            assert_eq!(quote(name), printed);
        }
        assert_eq!(quoted(b"it", Some(b"x")), b"'it' -> 'x'");
        assert_eq!(calendar(time(0, 7)), "1970-01-01 00:00:00.000000007 +0000");
    }
}
