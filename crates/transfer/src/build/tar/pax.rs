//! Records of extended headers (POSIX pax): `LENGTH KEY=VALUE\n`.

use crate::build::draft::Xattrs;
use crate::build::error::GatherCause;
use uext4::Timestamp;

/// What the records of one or several headers say. `None`: nothing, so that the header's field counts.
#[derive(Debug, Clone, Default)]
pub struct Records {
    pub path: Option<Vec<u8>>,
    pub target: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub modified: Option<Timestamp>,
    pub xattrs: Xattrs,
    /// Access control lists as text: of access, and the default of a directory.
    pub acls: [Option<Vec<u8>>; 2],
    pub sparse: Sparse,
}

/// What GNU's records say of a sparse file.
#[derive(Debug, Clone, Default)]
pub struct Sparse {
    /// Format 1.0 and the like; 0.0 and 0.1 do not say so.
    pub version: (Option<u64>, Option<u64>),
    pub name: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub ranges: Vec<(u64, u64)>,
    /// Of format 0.0: where the range begins whose length is next.
    start: Option<u64>,
    pub any: bool,
}

/// Ranges of one sparse file, at most.
pub const RANGES_MAX: usize = 1 << 22;

impl Records {
    /// Adds the records of a header, which count more than those before.
    pub fn add(&mut self, mut bytes: &[u8]) -> Result<(), GatherCause> {
        while !bytes.is_empty() {
            // GNU tar pads the header's last block, and other programs count that as contents.
            if bytes.iter().all(|&byte| byte == 0) {
                break;
            }
            let (key, value, rest) = split(bytes)?;
            self.set(key, value)?;
            bytes = rest;
        }
        Ok(())
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), GatherCause> {
        let some = |value: &[u8]| (!value.is_empty()).then(|| value.to_vec());
        match key {
            b"path" => self.path = some(value),
            b"linkpath" => self.target = some(value),
            b"size" => self.size = number(value, "size")?,
            b"uid" => self.uid = small(value, "owner")?,
            b"gid" => self.gid = small(value, "group")?,
            b"mtime" => self.modified = time(value)?,
            b"SCHILY.acl.access" => self.acls[0] = some(value),
            b"SCHILY.acl.default" => self.acls[1] = some(value),
            b"RHT.security.selinux" => self.set_xattr(b"security.selinux".to_vec(), value),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.set_xattr(unescape(name, |escape| matches!(escape, b'%' | b'=')), value);
                } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                    let value = base64(value).ok_or(GatherCause::Extended("an attribute is not base64"))?;
                    self.set_xattr(unescape(name, |_| true), &value);
                } else if let Some(name) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.set(name, value)?;
                }
            }
        }
        Ok(())
    }

    fn set_xattr(&mut self, name: Vec<u8>, value: &[u8]) {
        self.xattrs.insert(name, value.to_vec());
    }
}

impl Sparse {
    fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), GatherCause> {
        self.any = true;
        match key {
            b"major" => self.version.0 = number(value, "sparse version")?,
            b"minor" => self.version.1 = number(value, "sparse version")?,
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = number(value, "size")?,
            b"offset" => self.start = number(value, "sparse map")?,
            b"numbytes" => {
                let start = self.start.take().ok_or(GatherCause::Sparse("a length without an offset"))?;
                let length = number(value, "sparse map")?.unwrap_or(0);
                self.ranges.push((start, length));
            }
            b"map" => {
                self.ranges.clear();
                let mut numbers = value.split(|&byte| byte == b',');
                while let Some(start) = numbers.next().filter(|start| !start.is_empty()) {
                    let length = numbers.next().ok_or(GatherCause::Sparse("an offset without a length"))?;
                    let read = |digits| number(digits, "sparse map")?.ok_or(GatherCause::Field("sparse map"));
                    self.ranges.push((read(start)?, read(length)?));
                }
            }
            // The number of ranges, which they tell themselves.
            _ => {}
        }
        Ok(())
    }
}

/// Key and value of the first record, and what follows.
type Record<'b> = (&'b [u8], &'b [u8], &'b [u8]);

fn split(bytes: &[u8]) -> Result<Record<'_>, GatherCause> {
    let wrong = |why| GatherCause::Extended(why);
    let blank =
        bytes.iter().take(21).position(|&byte| byte == b' ').ok_or(wrong("a record without a length"))?;
    let length = number(&bytes[..blank], "record length")?.ok_or(wrong("a record without a length"))?;
    let length = usize::try_from(length).map_err(|_| wrong("a record beyond the header"))?;
    let record = bytes.get(..length).ok_or(wrong("a record beyond the header"))?;
    let inner = record.get(blank + 1..).and_then(|inner| inner.strip_suffix(b"\n"));
    let inner = inner.ok_or(wrong("a record without its end"))?;
    let equals = inner.iter().position(|&byte| byte == b'=').ok_or(wrong("a record without a value"))?;
    Ok((&inner[..equals], &inner[equals + 1..], &bytes[length..]))
}

/// Decimal digits; `None` if there are none: the record takes an earlier one back.
pub fn number(digits: &[u8], what: &'static str) -> Result<Option<u64>, GatherCause> {
    if digits.is_empty() {
        return Ok(None);
    }
    let mut value = 0_u64;
    for &digit in digits {
        let add = if digit.is_ascii_digit() { Some(digit - b'0') } else { None };
        let next = value.checked_mul(10).zip(add).and_then(|(tens, add)| tens.checked_add(add.into()));
        value = next.ok_or(GatherCause::Field(what))?;
    }
    Ok(Some(value))
}

fn small(digits: &[u8], what: &'static str) -> Result<Option<u32>, GatherCause> {
    let value = number(digits, what)?;
    value.map(|value| u32::try_from(value).map_err(|_| GatherCause::Field(what))).transpose()
}

/// Seconds since 1970, with a sign and a fraction.
pub fn time(text: &[u8]) -> Result<Option<Timestamp>, GatherCause> {
    let wrong = GatherCause::Field("time");
    if text.is_empty() {
        return Ok(None);
    }
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(text) => (true, text),
        None => (false, text),
    };
    let dot = text.iter().position(|&byte| byte == b'.').unwrap_or(text.len());
    let seconds =
        number(&text[..dot], "time")?.and_then(|seconds| i64::try_from(seconds).ok()).ok_or(wrong)?;
    let mut nanoseconds = 0;
    let fraction = text.get(dot + 1..).unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(GatherCause::Field("time"));
    }
    for at in 0..9 {
        nanoseconds = nanoseconds * 10 + u32::from(fraction.get(at).map_or(0, |digit| digit - b'0'));
    }
    Ok(Some(match (negative, nanoseconds) {
        (false, _) => Timestamp { seconds, nanoseconds },
        (true, 0) => Timestamp { seconds: -seconds, nanoseconds: 0 },
        (true, _) => Timestamp { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    }))
}

/// Replaces `%XX` if it stands for one of these bytes.
fn unescape(name: &[u8], which: impl Fn(u8) -> bool) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(name.len()), name);
    while let [first, after @ ..] = rest {
        let escaped = match rest {
            [b'%', high, low, ..] => hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low),
            _ => None,
        };
        match escaped.filter(|&byte| which(byte)) {
            Some(byte) => (bytes.push(byte), rest = &rest[3..]).1,
            None => (bytes.push(*first), rest = after).1,
        }
    }
    bytes
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Base 64, with or without padding.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::with_capacity(text.len() * 3 / 4), 0_u32, 0);
    for &digit in text {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'=' | b'\n' => continue,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_signs_and_fractions() {
        let read = |text: &str| {
            let time = time(text.as_bytes()).ok().flatten();
            time.map(|time| (time.seconds, time.nanoseconds))
        };
        assert_eq!(read("12"), Some((12, 0)));
        assert_eq!(read("12.5"), Some((12, 500_000_000)));
        assert_eq!(read("0.0000000019"), Some((0, 1)));
        assert_eq!(read("-1.25"), Some((-2, 750_000_000)));
        assert_eq!(read("-3"), Some((-3, 0)));
        for wrong in ["x", "1.x", "--1", "1.-5", ".5", "99999999999999999999"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn names_and_values_of_attributes_are_decoded() {
        assert_eq!(unescape(b"user.a%3Db%25%41%", |byte| matches!(byte, b'%' | b'=')), b"user.a=b%%41%");
        assert_eq!(unescape(b"user.%41%zz", |_| true), b"user.A%zz");
        assert_eq!(base64(b"aGVsbG8"), Some(b"hello".to_vec()));
        assert_eq!(base64(b"aGVsbG8="), Some(b"hello".to_vec()));
        assert_eq!(base64(b"a*"), None);
    }

    #[test]
    fn records_that_lie_are_refused() {
        let add = |bytes: &[u8]| Records::default().add(bytes);
        add(b"12 path=abc\n12 path=abd\n").unwrap();
        for wrong in [
            &b"13 path=abc\n"[..],
            b"11 path=abc\n",
            b"0 path=abc\n",
            b"2 path=abc\n",
            b"path=abc\n",
            b"99999999999999999999999 a=b\n",
            b"18446744073709551615 a=b\n",
            b"7 path\n",
            b"-12 path=abc\n",
            b" ",
        ] {
            assert!(add(wrong).is_err(), "{}", wrong.escape_ascii());
        }
    }
}
