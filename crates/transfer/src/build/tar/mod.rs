//! Archives of tar: v7, ustar, GNU, star and pax, one entry after the other. Nothing is unpacked here, and nothing that
//! an archive says is believed: every length is bounded before memory is taken.

mod acl;
mod header;
mod pax;
mod sparse;

use super::draft::Attributes;
use super::error::GatherCause;
use super::input::Input;
pub use acl::{apply as apply_acls, decimal as parse_decimal, look_up, order as acl_order};
use header::{BLOCK, Header};
use pax::Records;
use std::ops::Range;
use uext4::Timestamp;

pub use header::has_checksum;

/// Bytes of the headers that extend one entry's, at most. Go's archive/tar has the same limit, and with it the programs
/// that make container images.
pub const EXTENDED_MAX: u64 = 1 << 20;

/// An entry of an archive. Its data comes next in the input.
#[derive(Debug)]
pub struct Entry {
    pub path: Vec<u8>,
    pub kind: EntryKind,
    /// Of a symbolic or hard link.
    pub target: Vec<u8>,
    pub attributes: Attributes,
    /// Access control lists as text.
    pub acls: [Option<Vec<u8>>; 2],
    /// With holes.
    pub size: u64,
    /// Ranges with data.
    pub data: Vec<Range<u64>>,
    /// Bytes in the archive.
    pub stored: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    Directory,
    Regular,
    Symlink,
    HardLink,
    Fifo,
    Char(u32, u32),
    Block(u32, u32),
    Unknown(u8),
}

/// The entries of an archive.
pub struct Entries<'a> {
    pub input: Input<'a>,
    /// Records for all entries to come, and the bytes of the headers they are from.
    global: (Records, u64),
    /// Where the next header is.
    next: u64,
    /// Where the current entry's first header is, and its path.
    at: u64,
    path: Option<Vec<u8>>,
    /// Whether it is known to be whole, so that it may end without its mark.
    verified: bool,
}

/// What comes before an entry's own header.
#[derive(Default)]
struct Before {
    records: Option<Records>,
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    /// Bytes of all of it.
    bytes: u64,
}

impl<'a> Entries<'a> {
    pub fn new(input: Input<'a>, verified: bool) -> Self {
        Entries { input, global: Default::default(), next: 0, at: 0, path: None, verified }
    }

    /// Where the current entry is, and its path: for messages.
    pub fn place(&self) -> (u64, Option<Vec<u8>>) {
        (self.at, self.path.clone())
    }

    /// The next entry. After an error there is none.
    pub fn next(&mut self) -> Result<Option<Entry>, GatherCause> {
        self.input.skip_to(self.next)?;
        (self.at, self.path) = (self.next, None);
        let mut before = Before::default();
        loop {
            let mut block = [0; BLOCK];
            if !self.block(&mut block)? {
                if self.verified && before.bytes == 0 {
                    return Ok(None);
                }
                return Err(GatherCause::Truncated("it has no end mark (two blocks of zeros)"));
            }
            if block == [0; BLOCK] {
                return match before.bytes {
                    0 => Ok(None),
                    _ => Err(GatherCause::Truncated("nothing follows an extended header")),
                };
            }
            let header = Header::new(&block)?;
            match header.typeflag() {
                b'x' | b'X' => {
                    let bytes = self.extension(header.size()?, &mut before.bytes)?;
                    before.records.get_or_insert_with(|| self.global.0.clone()).add(&bytes)?;
                }
                b'g' => {
                    let mut sum = self.global.1;
                    let bytes = self.extension(header.size()?, &mut sum)?;
                    self.global.1 = sum;
                    self.global.0.add(&bytes)?;
                    // It counts for nothing before it, and is not part of an entry.
                    if before.bytes == 0 {
                        self.at = self.next;
                    }
                }
                b'L' => before.path = Some(self.long_name(header.size()?, &mut before.bytes)?),
                b'K' => before.target = Some(self.long_name(header.size()?, &mut before.bytes)?),
                // The name of the archive.
                b'V' => self.skip(header.size()?)?,
                _ => return self.entry(&header, before).map(Some),
            }
        }
    }

    /// Reads the next block, unless the input ends before it.
    fn block(&mut self, block: &mut [u8; BLOCK]) -> Result<bool, GatherCause> {
        if self.input.is_at_end()? {
            return Ok(false);
        }
        self.input.read_exact(block)?;
        self.next = self.input.pos();
        Ok(true)
    }

    /// The next header is behind this many bytes from here.
    fn expect(&mut self, bytes: u64) -> Result<(), GatherCause> {
        let padded = bytes.checked_next_multiple_of(BLOCK as u64);
        let next = padded.and_then(|padded| self.input.pos().checked_add(padded));
        self.next = next.filter(|next| *next <= i64::MAX as u64).ok_or(GatherCause::Field("size"))?;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), GatherCause> {
        self.expect(bytes)?;
        self.input.skip_to(self.next)
    }

    fn extension(&mut self, size: u64, sum: &mut u64) -> Result<Vec<u8>, GatherCause> {
        *sum = sum.saturating_add(size).saturating_add(BLOCK as u64);
        if *sum > EXTENDED_MAX {
            return Err(GatherCause::TooLarge { what: "extended headers", size: *sum, max: EXTENDED_MAX });
        }
        self.expect(size)?;
        let mut bytes = vec![0; size as usize];
        self.input.read_exact(&mut bytes)?;
        self.input.skip_to(self.next)?;
        Ok(bytes)
    }

    fn long_name(&mut self, size: u64, sum: &mut u64) -> Result<Vec<u8>, GatherCause> {
        let mut bytes = self.extension(size, sum)?;
        bytes.truncate(bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len()));
        Ok(bytes)
    }

    fn entry(&mut self, header: &Header<'_>, before: Before) -> Result<Entry, GatherCause> {
        let mut records = before.records.unwrap_or_else(|| self.global.0.clone());
        let named = records.sparse.name.take().or(records.path.take()).or(before.path);
        let path = named.unwrap_or_else(|| header.path());
        self.path = Some(path.clone());
        let target = records.target.take().or(before.target).unwrap_or_else(|| header.target().to_vec());
        let kind = kind(header, &path)?;
        let attributes = attributes(header, &mut records)?;
        let mut entry = Entry {
            path,
            kind,
            target,
            attributes,
            acls: std::mem::take(&mut records.acls),
            size: 0,
            data: Vec::new(),
            stored: 0,
        };
        // What has no contents may say a size, which counts for nothing, as in Go's archive/tar.
        if matches!(kind, EntryKind::Regular | EntryKind::Unknown(_)) || has_list(header) {
            let stored = records.size.map_or_else(|| header.size(), Ok)?;
            self.measure(&mut entry, header, records, stored)?;
        }
        Ok(entry)
    }

    /// Where the entry's data is: finds its map if it is sparse.
    fn measure(
        &mut self,
        entry: &mut Entry,
        header: &Header<'_>,
        records: Records,
        stored: u64,
    ) -> Result<(), GatherCause> {
        self.expect(stored)?;
        (entry.size, entry.stored) = (stored, stored);
        let map = if header.typeflag() == b'S' {
            let (mut ranges, mut more, size) = header.sparse()?;
            let mut block = [0; BLOCK];
            while more {
                self.input.read_exact(&mut block)?;
                more = header::more_ranges(&block, &mut ranges)?;
                bounded(ranges.len() as u64)?;
            }
            self.expect(stored)?;
            entry.size = size;
            Some(ranges)
        } else if records.sparse.any && entry.kind == EntryKind::Regular {
            entry.size = records.sparse.size.ok_or(GatherCause::Sparse("it does not say the file's size"))?;
            Some(match records.sparse.version {
                (Some(1), Some(0)) => self.map_in_data(entry)?,
                (None | Some(0), _) => records.sparse.ranges,
                _ => return Err(GatherCause::Sparse("its format is newer than 1.0")),
            })
        } else {
            None
        };
        if entry.size > i64::MAX as u64 {
            return Err(GatherCause::Field("size"));
        }
        let whole = [(0, stored)];
        entry.data = sparse::checked(map.as_deref().unwrap_or(&whole), entry.size, entry.stored)?;
        Ok(())
    }

    /// The map that format 1.0 has before the data: decimal numbers, one on a line, in whole blocks.
    fn map_in_data(&mut self, entry: &mut Entry) -> Result<Vec<(u64, u64)>, GatherCause> {
        let (mut ranges, mut count, mut start) = (Vec::new(), None, None);
        let (mut digits, mut block) = (Vec::new(), [0; BLOCK]);
        while count.is_none_or(|count| (ranges.len() as u64) < count) {
            entry.stored = entry
                .stored
                .checked_sub(BLOCK as u64)
                .ok_or(GatherCause::Sparse("it is longer than the data"))?;
            self.input.read_exact(&mut block)?;
            for &byte in &block {
                if byte != b'\n' {
                    digits.push(byte);
                    continue;
                }
                let number = pax::number(&digits, "sparse map")?.ok_or(GatherCause::Field("sparse map"))?;
                digits.clear();
                match (count, start) {
                    (None, _) => count = Some(bounded(number)?),
                    (Some(_), None) => start = Some(number),
                    (Some(_), Some(from)) => {
                        ranges.push((from, number));
                        start = None;
                    }
                }
                if count == Some(ranges.len() as u64) {
                    break;
                }
            }
            if digits.len() > 20 {
                return Err(GatherCause::Field("sparse map"));
            }
        }
        Ok(ranges)
    }
}

/// Fails if a map has too many ranges.
fn bounded(ranges: u64) -> Result<u64, GatherCause> {
    let max = pax::RANGES_MAX as u64;
    if ranges > max {
        Err(GatherCause::TooLarge { what: "sparse map", size: ranges * 16, max: max * 16 })
    } else {
        Ok(ranges)
    }
}

/// A directory of GNU's incremental archives: a list of names comes with it.
fn has_list(header: &Header<'_>) -> bool {
    header.typeflag() == b'D'
}

fn kind(header: &Header<'_>, path: &[u8]) -> Result<EntryKind, GatherCause> {
    let device = || header.device();
    Ok(match header.typeflag() {
        // v7 has no type for directories.
        b'0' if path.ends_with(b"/") => EntryKind::Directory,
        b'0' | b'S' => EntryKind::Regular,
        b'1' => EntryKind::HardLink,
        b'2' => EntryKind::Symlink,
        b'3' => device().map(|(major, minor)| EntryKind::Char(major, minor))?,
        b'4' => device().map(|(major, minor)| EntryKind::Block(major, minor))?,
        b'5' | b'D' => EntryKind::Directory,
        b'6' => EntryKind::Fifo,
        other => EntryKind::Unknown(other),
    })
}

fn attributes(header: &Header<'_>, records: &mut Records) -> Result<Attributes, GatherCause> {
    let modified = match records.modified {
        Some(modified) => modified,
        None => Timestamp { seconds: header.modified()?, nanoseconds: 0 },
    };
    Ok(Attributes {
        mode: header.mode()?,
        uid: records.uid.map_or_else(|| header.uid(), Ok)?,
        gid: records.gid.map_or_else(|| header.gid(), Ok)?,
        modified,
        xattrs: std::mem::take(&mut records.xattrs),
    })
}
