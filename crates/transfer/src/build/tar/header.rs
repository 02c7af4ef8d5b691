//! The 512 bytes before each entry: v7, ustar, GNU and star put the same fields at the same places.

use crate::build::error::GatherCause;

pub const BLOCK: usize = 512;
pub type Bytes = [u8; BLOCK];

/// Where ranges with data begin, and how long they are.
pub type Map = Vec<(u64, u64)>;

/// Which fields a header has beside those of v7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    V7,
    /// Names are continued in a prefix of this length.
    Ustar(usize),
    Gnu,
}

/// A header whose checksum is right.
pub struct Header<'b>(&'b Bytes);

impl<'b> Header<'b> {
    pub fn new(bytes: &'b Bytes) -> Result<Header<'b>, GatherCause> {
        if has_checksum(bytes) { Ok(Header(bytes)) } else { Err(GatherCause::Checksum) }
    }

    fn kind(&self) -> Kind {
        match (&self.0[257..265], &self.0[508..512]) {
            (b"ustar  \0", _) => Kind::Gnu,
            // star: times are where the prefix ends.
            (magic, b"tar\0") if magic.starts_with(b"ustar\0") => Kind::Ustar(131),
            (magic, _) if magic.starts_with(b"ustar\0") => Kind::Ustar(155),
            _ => Kind::V7,
        }
    }

    /// The type of the entry: `0` for a regular file.
    pub fn typeflag(&self) -> u8 {
        match self.0[156] {
            0 | b'7' => b'0',
            other => other,
        }
    }

    fn name(&self) -> &[u8] {
        string(&self.0[..100])
    }

    pub fn path(&self) -> Vec<u8> {
        let prefix = match self.kind() {
            Kind::Ustar(length) => string(&self.0[345..345 + length]),
            Kind::V7 | Kind::Gnu => b"",
        };
        if prefix.is_empty() { self.name().to_vec() } else { [prefix, self.name()].join(&b'/') }
    }

    pub fn target(&self) -> &[u8] {
        string(&self.0[157..257])
    }

    pub fn mode(&self) -> Result<u16, GatherCause> {
        // Some archives have the type of the file there too.
        Ok((number(&self.0[100..108], "mode")? & 0o7777) as u16)
    }

    pub fn uid(&self) -> Result<u32, GatherCause> {
        small(&self.0[108..116], "owner")
    }

    pub fn gid(&self) -> Result<u32, GatherCause> {
        small(&self.0[116..124], "group")
    }

    pub fn size(&self) -> Result<u64, GatherCause> {
        let size = number(&self.0[124..136], "size")?;
        u64::try_from(size).map_err(|_| GatherCause::Field("size"))
    }

    pub fn modified(&self) -> Result<i64, GatherCause> {
        number(&self.0[136..148], "time")
    }

    pub fn device(&self) -> Result<(u32, u32), GatherCause> {
        if self.kind() == Kind::V7 {
            return Ok((0, 0));
        }
        Ok((small(&self.0[329..337], "device number")?, small(&self.0[337..345], "device number")?))
    }

    /// Of GNU's old sparse files: the first ranges, whether more blocks of them follow, and the size with holes.
    pub fn sparse(&self) -> Result<(Map, bool, u64), GatherCause> {
        let mut ranges = Vec::new();
        add_ranges(&self.0[386..482], &mut ranges)?;
        let size = number(&self.0[483..495], "size")?;
        let size = u64::try_from(size).map_err(|_| GatherCause::Field("size"))?;
        Ok((ranges, self.0[482] != 0, size))
    }
}

/// The ranges of a block that continues a header, and whether another follows.
pub fn more_ranges(bytes: &Bytes, ranges: &mut Map) -> Result<bool, GatherCause> {
    add_ranges(&bytes[..504], ranges)?;
    Ok(bytes[504] != 0)
}

fn add_ranges(fields: &[u8], ranges: &mut Map) -> Result<(), GatherCause> {
    for field in fields.chunks_exact(24) {
        let (start, length) = field.split_at(12);
        if start[0] == 0 && length[0] == 0 {
            break;
        }
        let bytes = |field| {
            let bytes = number(field, "sparse map")?;
            u64::try_from(bytes).map_err(|_| GatherCause::Field("sparse map"))
        };
        ranges.push((bytes(start)?, bytes(length)?));
    }
    Ok(())
}

/// Whether it can be a header: what it says of its bytes' sum is right. Some old tars summed up signed bytes.
pub fn has_checksum(bytes: &Bytes) -> bool {
    let Ok(stated) = number(&bytes[148..156], "checksum") else { return false };
    let (mut unsigned, mut signed) = (8 * i64::from(b' '), 8 * i64::from(b' '));
    for &byte in bytes[..148].iter().chain(&bytes[156..]) {
        unsigned += i64::from(byte);
        signed += i64::from(byte as i8);
    }
    stated == unsigned || stated == signed
}

/// Up to the first NUL.
fn string(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn small(field: &[u8], what: &'static str) -> Result<u32, GatherCause> {
    u32::try_from(number(field, what)?).map_err(|_| GatherCause::Field(what))
}

/// A number: octal digits between blanks, or, with the first bit set, big-endian in two's complement.
fn number(field: &[u8], what: &'static str) -> Result<i64, GatherCause> {
    let wrong = GatherCause::Field(what);
    match field {
        [first, rest @ ..] if first & 0x80 != 0 => {
            // The second bit is the sign.
            let start = if first & 0x40 != 0 { -1 } else { 0 };
            let start = start << 6 | i128::from(first & 0x3f);
            let mut value = start;
            for &byte in rest {
                value = value << 8 | i128::from(byte);
            }
            i64::try_from(value).map_err(|_| wrong)
        }
        _ => {
            let digits = string(field).trim_ascii();
            let mut value = 0_i64;
            for &digit in digits {
                if !(b'0'..=b'7').contains(&digit) {
                    return Err(wrong);
                }
                value = value
                    .checked_mul(8)
                    .and_then(|value| value.checked_add(i64::from(digit - b'0')))
                    .ok_or(GatherCause::Field(what))?;
            }
            Ok(value)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        let read = |field: &[u8]| number(field, "x").ok();
        assert_eq!(read(b"0000644\0"), Some(0o644));
        assert_eq!(read(b"   644 \0"), Some(0o644));
        assert_eq!(read(b"77777777777 "), Some(0o77777777777));
        assert_eq!(read(b"\0\0\0\0\0\0\0\0"), Some(0));
        assert_eq!(read(b"        "), Some(0));
        assert_eq!(read(b"0000648\0"), None);
        assert_eq!(read(b"-000644\0"), None);
        assert_eq!(read(b"\x80\0\0\0\0\0\x01\0"), Some(256));
        assert_eq!(read(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe"), Some(-2));
        assert_eq!(read(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"), Some(i64::MAX));
        assert_eq!(read(b"\x80\0\0\0\x80\0\0\0\0\0\0\0"), None);
        assert_eq!(read(b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
    }
}
