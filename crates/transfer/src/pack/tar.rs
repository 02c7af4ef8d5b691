//! Writing entries of an archive in the POSIX format (pax), with what GNU tar and libarchive add to it: extended
//! attributes (`SCHILY.xattr.`), access control lists (`SCHILY.acl.`) and sparse files (GNU's format 1.0).

use crate::error::{Error, Result};
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use uext4::{Acl, AclEntry, AclTag, Timestamp};

/// Bytes of a header, and what contents are padded to.
pub const BLOCK: usize = 512;
/// Blocks of zeros at the end, and the unit that archives are padded to (20 blocks, as with tar(1)).
const RECORD: u64 = 20 * BLOCK as u64;
/// Bytes of a name in a header.
const NAME: usize = 100;
/// The largest number in a field of seven octal digits, and of eleven.
const SEVEN: u64 = 0o777_7777;
const ELEVEN: u64 = 0o777_7777_7777;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Link,
    Symlink,
    Char,
    Block,
    Directory,
    Fifo,
}

impl Kind {
    fn flag(self) -> u8 {
        match self {
            Kind::File => b'0',
            Kind::Link => b'1',
            Kind::Symlink => b'2',
            Kind::Char => b'3',
            Kind::Block => b'4',
            Kind::Directory => b'5',
            Kind::Fifo => b'6',
        }
    }
}

/// An entry without its contents.
pub struct Entry<'e> {
    /// Its path; that of a directory ends with a slash.
    pub path: &'e [u8],
    pub kind: Kind,
    pub mode: u32,
    pub owner: (u32, u32),
    pub modified: Timestamp,
    /// Bytes of contents.
    pub size: u64,
    /// The target of a symbolic link, or the path of a hard link's first name.
    pub target: &'e [u8],
    pub device: (u32, u32),
    /// Extended attributes, values as system calls have them.
    pub xattrs: &'e [(Vec<u8>, Vec<u8>)],
    /// The ranges that are not holes, if there are holes.
    pub sparse: Option<&'e [Range<u64>]>,
}

/// Writes an archive.
pub struct Writer<'w> {
    to: &'w mut dyn Write,
    /// Its name in errors.
    name: &'w Path,
    written: u64,
}

impl<'w> Writer<'w> {
    pub fn new(to: &'w mut dyn Write, name: &'w Path) -> Writer<'w> {
        Writer { to, name, written: 0 }
    }

    /// Writes bytes of an entry's contents.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes).map_err(|error| Error::refused(self.name, "write", error))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Fills the last block of an entry.
    pub fn pad(&mut self) -> Result<()> {
        let rest = self.written.next_multiple_of(BLOCK as u64) - self.written;
        self.put(&[0; BLOCK][..rest as usize])
    }

    /// Ends the archive.
    pub fn finish(mut self) -> Result<()> {
        self.put(&[0; 2 * BLOCK])?;
        let rest = self.written.next_multiple_of(RECORD) - self.written;
        self.put(&vec![0; rest as usize])?;
        self.to.flush().map_err(|error| Error::refused(self.name, "write", error))
    }

    /// Begins an entry. Its contents follow, the ranges of a sparse file one after the other, then [`Writer::pad`].
    pub fn begin(&mut self, entry: &Entry<'_>) -> Result<()> {
        let mut records = Records::default();
        let (seconds, nanoseconds) = (entry.modified.seconds, entry.modified.nanoseconds);
        if nanoseconds != 0 || seconds < 0 || seconds as u64 > ELEVEN {
            records.add(b"mtime", &decimal(seconds, nanoseconds));
        }
        if entry.target.len() > NAME {
            records.add(b"linkpath", entry.target);
        }
        for (key, id) in [(b"uid", entry.owner.0), (b"gid", entry.owner.1)] {
            if u64::from(id) > SEVEN {
                records.add(key, id.to_string().as_bytes());
            }
        }
        let (mut map, mut name) = (Vec::new(), entry.path.to_vec());
        let mut size = entry.size;
        if let Some(ranges) = entry.sparse {
            map = sparse_map(ranges, entry.size);
            size = map.len() as u64 + ranges.iter().map(|range| range.end - range.start).sum::<u64>();
            records.add(b"GNU.sparse.major", b"1");
            records.add(b"GNU.sparse.minor", b"0");
            records.add(b"GNU.sparse.name", entry.path);
            records.add(b"GNU.sparse.realsize", entry.size.to_string().as_bytes());
            let base = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
            name.splice(base..base, *b"GNUSparseFile.0/");
        } else if name.len() > NAME {
            records.add(b"path", &name);
        }
        if size > ELEVEN {
            records.add(b"size", size.to_string().as_bytes());
        }
        for (key, value) in entry.xattrs {
            records.attribute(key, value);
        }
        if !records.0.is_empty() {
            let plain =
                Head { name: b"./PaxHeaders/entry", flag: b'x', size: records.0.len() as u64, ..NO_HEAD };
            self.put(&plain.encode())?;
            self.put(&records.0)?;
            self.pad()?;
        }
        let head = Head {
            name: &name,
            flag: entry.kind.flag(),
            mode: entry.mode,
            owner: entry.owner,
            size,
            seconds: u64::try_from(seconds).unwrap_or(0).min(ELEVEN),
            target: entry.target,
            device: entry.device,
        };
        self.put(&head.encode())?;
        self.put(&map)
    }
}

/// The map in front of a sparse file's contents: the number of ranges, then offset and length of each.
fn sparse_map(ranges: &[Range<u64>], size: u64) -> Vec<u8> {
    // As tar(1) does, an empty range says where a file ends that ends with a hole.
    let end = ranges.last().is_none_or(|last| last.end < size).then_some(size..size);
    let all = ranges.iter().cloned().chain(end);
    let mut map = format!("{}\n", all.clone().count()).into_bytes();
    for range in all {
        map.extend(format!("{}\n{}\n", range.start, range.end - range.start).bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

/// Seconds with a fraction.
fn decimal(seconds: i64, nanoseconds: u32) -> Vec<u8> {
    let (sign, whole, part) = match (seconds < 0, nanoseconds) {
        (true, 0) => ("-", seconds.unsigned_abs(), 0),
        (true, part) => ("-", (seconds + 1).unsigned_abs(), 1_000_000_000 - part),
        (false, part) => ("", seconds.unsigned_abs(), part),
    };
    let text = if part == 0 { format!("{sign}{whole}") } else { format!("{sign}{whole}.{part:09}") };
    text.into_bytes()
}

/// The records of an extended header.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    /// A record is its own length, a space, the keyword, `=`, the value, and a newline.
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        self.0.extend(format!("{length} ").bytes());
        self.0.extend([key, b"=", value, b"\n"].concat());
    }

    fn attribute(&mut self, name: &[u8], value: &[u8]) {
        let list = match name {
            b"system.posix_acl_access" => Some(&b"SCHILY.acl.access"[..]),
            b"system.posix_acl_default" => Some(&b"SCHILY.acl.default"[..]),
            _ => None,
        };
        match (list, Acl::decode_xattr(value)) {
            (Some(key), Ok(list)) => self.add(key, &acl_text(&list)),
            _ => self.add(&[b"SCHILY.xattr.", name].concat(), value),
        }
    }
}

/// A list as text, users and groups by their numbers.
fn acl_text(list: &Acl) -> Vec<u8> {
    let line = |entry: &AclEntry| {
        let who = match entry.tag {
            AclTag::Owner => "user:".to_owned(),
            AclTag::User(id) => format!("user:{id}"),
            AclTag::OwningGroup => "group:".to_owned(),
            AclTag::Group(id) => format!("group:{id}"),
            AclTag::Mask => "mask:".to_owned(),
            AclTag::Other => "other:".to_owned(),
        };
        let bit = |bit: u16, letter| if entry.permissions & bit != 0 { letter } else { '-' };
        format!("{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x'))
    };
    list.entries.iter().map(line).collect::<Vec<_>>().join(",").into_bytes()
}

/// The fields of a header.
struct Head<'h> {
    name: &'h [u8],
    flag: u8,
    mode: u32,
    owner: (u32, u32),
    size: u64,
    seconds: u64,
    target: &'h [u8],
    device: (u32, u32),
}

const NO_HEAD: Head<'static> = Head {
    name: b"",
    flag: b'0',
    mode: 0o644,
    owner: (0, 0),
    size: 0,
    seconds: 0,
    target: b"",
    device: (0, 0),
};

impl Head<'_> {
    /// Values that do not fit have records of the extended header; the fields hold the largest ones then.
    fn encode(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        let mut put = |at: usize, most: usize, bytes: &[u8]| {
            let bytes = &bytes[..bytes.len().min(most)];
            block[at..at + bytes.len()].copy_from_slice(bytes);
        };
        let octal = |value: u64, digits: usize| format!("{value:0digits$o}").into_bytes();
        put(0, NAME, self.name);
        put(100, 7, &octal(u64::from(self.mode & 0o7777), 7));
        put(108, 7, &octal(u64::from(self.owner.0).min(SEVEN), 7));
        put(116, 7, &octal(u64::from(self.owner.1).min(SEVEN), 7));
        put(124, 11, &octal(self.size.min(ELEVEN), 11));
        put(136, 11, &octal(self.seconds, 11));
        put(148, 8, b"        ");
        put(156, 1, &[self.flag]);
        put(157, NAME, self.target);
        put(257, 8, b"ustar\x0000");
        put(329, 7, &octal(u64::from(self.device.0), 7));
        put(337, 7, &octal(u64::from(self.device.1), 7));
        let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_record_counts_itself() {
        for length in (0..20).chain(80..110).chain(980..1010) {
            let mut records = Records::default();
            records.add(b"path", &vec![b'x'; length]);
            let text = String::from_utf8(records.0.clone()).unwrap();
            let told: usize = text.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(told, records.0.len());
        }
    }

    #[test]
    fn times_before_1970_have_their_fraction() {
        let text = |seconds, nanoseconds| String::from_utf8(decimal(seconds, nanoseconds)).unwrap();
        assert_eq!(text(5, 20), "5.000000020");
        assert_eq!(text(-5, 0), "-5");
        assert_eq!(text(-5, 250_000_000), "-4.750000000");
        assert_eq!(text(-1, 250_000_000), "-0.750000000");
    }
}
