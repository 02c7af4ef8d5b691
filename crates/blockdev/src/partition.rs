//! `?partition=N`: finds a partition in a GPT or MBR table, and lists the partitions.
//!
//! Tables are untrusted: every field is checked against the device before it is used, chains are bounded, arithmetic is
//! checked, and the parser crates only see sizes already found sane.
//!
//! - A GPT is used if the MBR is a protective one (an entry of type 0xEE; UEFI specification 2.10, section 5), and its
//!   backup at the end of the device if the primary is damaged. Sectors are the device's logical blocks; images of
//!   disks with 4096-byte sectors are recognised too.
//! - MBR partitions 1 to 4 are the primary ones. Logical ones are numbered from 5 along the chain of extended boot
//!   records, skipping empty records, as in Linux.

use crate::scratch::Scratch;
use crate::{Device, Error, Result};
use gptman::{GPTHeader, GPTPartitionEntry};
use mbrman::{MBRHeader, MBRPartitionEntry};
use std::io::{self, Cursor, Read, Seek, SeekFrom};

/// Bytes read of an MBR, an extended boot record or a GPT header.
const RECORD: usize = 512;

/// Size of a GPT entry; the specification allows larger ones, which no tool writes.
const GPT_ENTRY: u64 = 128;

/// Most GPT entries accepted; the usual number is 128.
const GPT_ENTRIES_MAX: u32 = 4096;

/// The other sector size of disks, tried for images of such disks.
const IMAGE_SECTOR: u64 = 4096;

/// Type byte of the MBR entry that protects a GPT.
const PROTECTIVE: u8 = 0xee;

/// Boot byte of the active MBR entry; zero in the others.
const ACTIVE: u8 = 0x80;

/// Most extended boot records followed.
const CHAIN_MAX: u32 = 256;

/// A part of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// Length.
    pub size: u64,
}

/// The form of a partition table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// The master boot record, with logical partitions.
    Mbr,
    /// The GUID partition table.
    Gpt,
}

/// What [`list`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The form of the table.
    pub scheme: Scheme,
    /// Number (as in `?partition=N`) and extent of each usable partition, in the order of numbers.
    pub partitions: Vec<(u32, Extent)>,
}

/// Why there is no such partition, in words.
type Reason = String;

/// Finds partition `number`, counted from 1.
///
/// # Errors
/// [`Error::Partition`], or the error of the device if the table cannot be read.
pub fn find(device: &dyn Device, number: u32) -> Result<Extent> {
    let mut table = Table { device, sector: u64::from(device.geometry().logical_block), failure: None };
    let found = table.find(number);
    if let Some(error) = table.failure {
        return Err(error);
    }
    found.map_err(|reason| Error::Partition { number, reason })
}

/// Lists the partitions of `device` that [`find`] would find. `None` without a table. A GPT may have no usable
/// partition, as in a truncated image. An MBR only counts as a table if its entries look valid and one is usable,
/// because other boot sectors have the same signature.
///
/// # Errors
/// That of the device if the table cannot be read.
pub fn list(device: &dyn Device) -> Result<Option<Listing>> {
    let mut table = Table { device, sector: u64::from(device.geometry().logical_block), failure: None };
    let listing = table.list();
    match table.failure {
        Some(error) => Err(error),
        None => Ok(listing.filter(|listing| listing.scheme == Scheme::Gpt || !listing.partitions.is_empty())),
    }
}

struct Table<'a> {
    device: &'a dyn Device,
    /// Bytes per sector of the table.
    sector: u64,
    /// The first error of the device itself, which says more than the parser's error.
    failure: Option<Error>,
}

impl Table<'_> {
    fn size(&self) -> u64 {
        self.device.geometry().size
    }

    fn find(&mut self, number: u32) -> std::result::Result<Extent, Reason> {
        let mbr = self
            .record(0)
            .and_then(parse_record)
            .map_err(|reason| format!("no partition table: {reason}"))?;
        if entries(&mbr).any(|entry| entry.sys == PROTECTIVE) {
            let (header, entries) = self.gpt()?;
            return self.gpt_extent(&header, &entries, number);
        }
        let (start, sectors) = match number {
            0 => return Err("partitions are numbered from 1".into()),
            1..=4 => primary(&mbr, number)?,
            _ => {
                let (found, end) = self.logical(&mbr, number as usize - 4);
                *found.get(number as usize - 5).ok_or(end)?
            }
        };
        self.extent(start, sectors)
    }

    fn list(&mut self) -> Option<Listing> {
        let mbr = self.record(0).and_then(parse_record).ok()?;
        if entries(&mbr).any(|entry| entry.sys == PROTECTIVE) {
            return Some(Listing { scheme: Scheme::Gpt, partitions: self.gpt_list().unwrap_or_default() });
        }
        if !entries(&mbr).all(|entry| matches!(entry.boot, 0 | ACTIVE)) {
            return None;
        }
        let (logical, _) = self.logical(&mbr, CHAIN_MAX as usize);
        let primary = (1..=4).filter_map(|number| Some((number, primary(&mbr, number).ok()?)));
        let partitions = primary.chain((5..).zip(logical));
        let place = |(number, (start, sectors))| Some((number, self.extent(start, sectors).ok()?));
        Some(Listing { scheme: Scheme::Mbr, partitions: partitions.filter_map(place).collect() })
    }

    /// The usable partitions of the GPT.
    fn gpt_list(&mut self) -> std::result::Result<Vec<(u32, Extent)>, Reason> {
        let (header, entries) = self.gpt()?;
        // The casts are exact: there are at most `GPT_ENTRIES_MAX` entries.
        let place = |number| Some((number as u32, self.gpt_extent(&header, &entries, number as u32).ok()?));
        Ok((1..=entries.len()).filter_map(place).collect())
    }

    /// Converts sectors to bytes and checks that they lie on the device and start on a logical block.
    fn extent(&self, start: u64, sectors: u64) -> std::result::Result<Extent, Reason> {
        let block = u64::from(self.device.geometry().logical_block);
        let bytes = start.checked_mul(self.sector).zip(sectors.checked_mul(self.sector));
        let Some((start, size)) = bytes.filter(|(start, size)| {
            start.checked_add(*size).is_some_and(|end| end <= self.size()) && *start != 0 && *size >= block
        }) else {
            return Err(format!("its {sectors} sectors at sector {start} do not lie on the device"));
        };
        if !start.is_multiple_of(block) {
            return Err(format!("byte {start} is not a multiple of the logical block size, {block} bytes"));
        }
        Ok(Extent { start, size: size - size % block })
    }

    /// Reads the 512 bytes at byte `pos`.
    fn record(&mut self, pos: u64) -> std::result::Result<[u8; RECORD], Reason> {
        let mut bytes = [0; RECORD];
        let mut reader = TableReader { table: self, pos };
        reader
            .read_exact(&mut bytes)
            .map_err(|error| format!("byte {pos} cannot be read: {}", crate::describe(&error)))?;
        Ok(bytes)
    }

    /// The first logical partitions, `enough` of them if there are that many, and why there are no more.
    fn logical(&mut self, mbr: &MBRHeader, enough: usize) -> (Vec<(u64, u64)>, Reason) {
        let mut found = Vec::new();
        let Some(extended) = entries(mbr).find(|entry| entry.is_extended()) else {
            return (found, "there is no extended partition".into());
        };
        let base = u64::from(extended.starting_lba);
        let mut link = 0;
        for _ in 0..CHAIN_MAX {
            let at = base + link;
            let record = match self.record(at * self.sector).map(parse_record) {
                Ok(Ok(record)) => record,
                Ok(Err(reason)) => return (found, format!("boot record at sector {at}: {reason}")),
                Err(reason) => return (found, reason),
            };
            for entry in entries(&record).filter(|entry| entry.sectors != 0 && !entry.is_extended()) {
                // Relative to the record that names it.
                found.push((at + u64::from(entry.starting_lba), u64::from(entry.sectors)));
            }
            if found.len() >= enough {
                return (found, "there are more than requested".into());
            }
            // Relative to the extended partition. The chain may only go forward, so it cannot loop.
            match entries(&record).find(|entry| entry.sectors != 0 && entry.is_extended()) {
                Some(entry) if u64::from(entry.starting_lba) > link => link = u64::from(entry.starting_lba),
                Some(_) => return (found, "the chain of extended boot records goes backwards".into()),
                None => {
                    let count = found.len();
                    return (found, format!("there are only {count} logical partitions"));
                }
            }
        }
        (found, format!("the chain of extended boot records is longer than {CHAIN_MAX}"))
    }

    /// The header and entries of the first valid GPT. Sets `self.sector` to the table's sector size.
    fn gpt(&mut self) -> std::result::Result<(GPTHeader, Vec<GPTPartitionEntry>), Reason> {
        let block = self.sector;
        let mut reasons = Vec::new();
        let sectors = if block == IMAGE_SECTOR { &[block][..] } else { &[block, IMAGE_SECTOR] };
        for &sector in sectors {
            self.sector = sector;
            let last = (self.size() / sector).saturating_sub(1);
            for (name, lba) in [("primary", 1), ("backup", last)] {
                match self.gpt_entries(lba) {
                    Ok(found) => return Ok(found),
                    Err(reason) if sector == block => reasons.push(format!("{name} GPT: {reason}")),
                    // The other sector size is only a guess, so its failure is not reported.
                    Err(_) => {}
                }
            }
        }
        Err(reasons.join("; "))
    }

    /// Reads and checks the GPT whose header is at `lba`.
    fn gpt_entries(&mut self, lba: u64) -> std::result::Result<(GPTHeader, Vec<GPTPartitionEntry>), Reason> {
        let pos = lba.checked_mul(self.sector).ok_or("lies beyond the device")?;
        let bytes = self.record(pos)?;
        let header = GPTHeader::read_from(&mut Cursor::new(bytes)).map_err(|error| error.to_string())?;
        self.check_header(&header, lba)?;
        let sector = self.sector;
        let mut reader = TableReader { table: self, pos: 0 };
        let entries = header.read_partitions(&mut reader, sector).map_err(|error| error.to_string())?;
        Ok((header, entries))
    }

    /// Checks what [`GPTHeader::read_partitions`] assumes, and that the table fits this device.
    fn check_header(&self, header: &GPTHeader, lba: u64) -> std::result::Result<(), Reason> {
        let sectors = self.size() / self.sector;
        if header.primary_lba != lba {
            return Err(format!("the header at sector {lba} says that it is at {}", header.primary_lba));
        }
        if u64::from(header.size_of_partition_entry) != GPT_ENTRY {
            return Err(format!("entries of {} bytes", header.size_of_partition_entry));
        }
        let count = header.number_of_partition_entries;
        if count == 0 || count > GPT_ENTRIES_MAX {
            return Err(format!("{count} entries"));
        }
        let length = (u64::from(count) * GPT_ENTRY).div_ceil(self.sector);
        if header.partition_entry_lba.checked_add(length).is_none_or(|end| end > sectors) {
            return Err(format!("entries at sector {}, beyond the device", header.partition_entry_lba));
        }
        if header.first_usable_lba > header.last_usable_lba || header.last_usable_lba >= sectors {
            return Err("the range of usable sectors does not lie on the device".into());
        }
        Ok(())
    }

    fn gpt_extent(
        &self,
        header: &GPTHeader,
        entries: &[GPTPartitionEntry],
        number: u32,
    ) -> std::result::Result<Extent, Reason> {
        let index = (number as usize).checked_sub(1).ok_or("partitions are numbered from 1")?;
        let entry = entries.get(index).filter(|entry| entry.is_used()).ok_or("there is no such partition")?;
        let (first, last) = (entry.starting_lba, entry.ending_lba);
        if first > last || first < header.first_usable_lba || last > header.last_usable_lba {
            return Err(format!("sectors {first} to {last} are outside the usable range"));
        }
        self.extent(first, last - first + 1)
    }
}

fn parse_record(bytes: [u8; RECORD]) -> std::result::Result<MBRHeader, Reason> {
    MBRHeader::read_from(&mut Cursor::new(bytes)).map_err(|error| error.to_string())
}

fn entries(record: &MBRHeader) -> impl Iterator<Item = &MBRPartitionEntry> {
    record.iter().map(|(_, entry)| entry)
}

fn primary(mbr: &MBRHeader, number: u32) -> std::result::Result<(u64, u64), Reason> {
    let entry = mbr.get(number as usize).filter(|entry| entry.is_used() && entry.sectors != 0);
    let entry = entry.ok_or("there is no such partition")?;
    if entry.is_extended() {
        return Err("it is the extended partition, which only holds others".into());
    }
    Ok((u64::from(entry.starting_lba), u64::from(entry.sectors)))
}

/// Reads the device at any byte, for the parsers.
struct TableReader<'a, 'b> {
    table: &'a mut Table<'b>,
    pos: u64,
}

impl Read for TableReader<'_, '_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let geometry = self.table.device.geometry();
        let block = u64::from(geometry.logical_block);
        let start = self.pos - self.pos % block;
        if start >= geometry.size {
            return Ok(0);
        }
        let mut scratch = Scratch::new(geometry.logical_block as usize);
        if let Err(error) = self.table.device.read_at(&mut scratch, start) {
            let errno = error.errno();
            self.table.failure.get_or_insert(error);
            return Err(io::Error::from_raw_os_error(errno));
        }
        let rest = &scratch[(self.pos - start) as usize..];
        let count = rest.len().min(out.len());
        out[..count].copy_from_slice(&rest[..count]);
        self.pos += count as u64;
        Ok(count)
    }
}

impl Seek for TableReader<'_, '_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(pos) => Some(pos),
            SeekFrom::End(delta) => self.table.size().checked_add_signed(delta),
            SeekFrom::Current(delta) => self.pos.checked_add_signed(delta),
        };
        self.pos = target.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        Ok(self.pos)
    }
}
