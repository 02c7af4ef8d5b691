//! The header of a qcow2 image (`docs/interop/qcow2.txt` of QEMU describes the format).

use crate::bytes::Bytes;
use std::fmt::Display;
use uext4_blockdev::{ImageFault, Result};

/// Sizes of clusters, as powers of two: 512 bytes to 2 MiB, as in QEMU.
pub(super) const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 9..=21;
/// Most bytes of the first-level table, and of the table of refcounts, as in QEMU.
pub(super) const L1_MAX: u64 = 32 << 20;
pub(super) const REFCOUNTS_MAX: u64 = 8 << 20;
/// Bytes of the header: of version 2, and the least of version 3.
const V2_BYTES: u64 = 72;
const V3_BYTES: u64 = 104;
/// Bytes that are looked at: the first cluster holds all, but nobody writes more than this.
const HEAD: u64 = 64 << 10;
/// Most bytes of the name of a backing file.
const NAME_MAX: u64 = 1023;

/// Incompatible features.
pub(super) mod incompatible {
    pub(in super::super) const DIRTY: u64 = 1;
    pub(in super::super) const CORRUPT: u64 = 1 << 1;
    pub(in super::super) const DATA_FILE: u64 = 1 << 2;
    pub(in super::super) const COMPRESSION: u64 = 1 << 3;
    pub(in super::super) const EXTENDED_L2: u64 = 1 << 4;
    pub(in super::super) const KNOWN: u64 = DIRTY | CORRUPT | DATA_FILE | COMPRESSION | EXTENDED_L2;
}

/// Features that a writer clears unless it keeps what they say.
pub(super) mod autoclear {
    /// The external data file is a raw image by itself.
    pub(in super::super) const RAW_DATA: u64 = 1 << 1;
}

/// Where the features that a writer clears are in the header.
pub(super) const AUTOCLEAR_AT: u64 = 88;
/// The header's field for the place of the refcount table, 8 bytes; behind it its size in clusters, 4 bytes.
pub(super) const REFCOUNTS_AT: u64 = 48;

/// How clusters are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compression {
    Deflate,
    Zstd,
}

/// What the header says.
#[derive(Debug, Clone)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) cluster_bits: u32,
    /// Bytes of the disk.
    pub(super) size: u64,
    pub(super) l1_at: u64,
    pub(super) l1_entries: u32,
    pub(super) refcounts_at: u64,
    pub(super) refcount_clusters: u32,
    pub(super) refcount_order: u32,
    pub(super) snapshots: u32,
    pub(super) incompatible: u64,
    pub(super) lazy_refcounts: bool,
    pub(super) autoclear: u64,
    pub(super) compression: Compression,
    /// Name of the backing file, and its format.
    pub(super) backing: Option<String>,
    pub(super) backing_format: Option<String>,
    pub(super) data_file: Option<String>,
}

fn wrong(what: impl Display) -> ImageFault {
    ImageFault::Header(what.to_string())
}

/// The bytes that were read, with numbers in the order of the network.
struct Head(Vec<u8>);

impl Head {
    fn bytes(&self, at: u64, length: u64) -> std::result::Result<&[u8], ImageFault> {
        let end = at.checked_add(length).filter(|end| *end <= self.0.len() as u64);
        let end =
            end.ok_or_else(|| wrong(format_args!("it reaches to byte {}", at.saturating_add(length))))?;
        Ok(&self.0[at as usize..end as usize])
    }

    fn number<const N: usize>(&self, at: u64) -> std::result::Result<u64, ImageFault> {
        Ok(self.bytes(at, N as u64)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn u32(&self, at: u64) -> std::result::Result<u32, ImageFault> {
        // Four bytes.
        self.number::<4>(at).map(|number| number as u32)
    }

    fn u64(&self, at: u64) -> std::result::Result<u64, ImageFault> {
        self.number::<8>(at)
    }

    fn text(&self, at: u64, length: u64) -> std::result::Result<String, ImageFault> {
        let text = String::from_utf8(self.bytes(at, length)?.to_vec());
        text.map_err(|_| ImageFault::Unsupported("a name that is not UTF-8".into()))
    }
}

/// Reads the header. The inner error is what is wrong with it.
pub(super) fn read(bytes: &Bytes) -> Result<std::result::Result<Header, ImageFault>> {
    let mut head = vec![0; HEAD as usize];
    bytes.read(&mut head, 0)?;
    Ok(parse(Head(head)))
}

fn parse(head: Head) -> std::result::Result<Header, ImageFault> {
    let version = head.u32(4)?;
    if !(2..=3).contains(&version) {
        return Err(ImageFault::Unsupported(format!("version {version} of the format")));
    }
    let cluster_bits = head.u32(20)?;
    if !CLUSTER_BITS.contains(&cluster_bits) {
        return Err(wrong(format_args!("clusters of 2^{cluster_bits} bytes")));
    }
    match head.u32(32)? {
        0 => {}
        1 => return Err(ImageFault::Encrypted("AES")),
        2 => return Err(ImageFault::Encrypted("LUKS")),
        other => return Err(wrong(format_args!("encryption method {other}"))),
    }
    let three = version == 3;
    let length = if three { u64::from(head.u32(100)?) } else { V2_BYTES };
    if three && (length < V3_BYTES || !length.is_multiple_of(8) || length > 1 << cluster_bits) {
        return Err(wrong(format_args!("a header of {length} bytes")));
    }
    let incompatible = if three { head.u64(72)? } else { 0 };
    let unknown = incompatible & !incompatible::KNOWN;
    if unknown != 0 {
        let bit = unknown.trailing_zeros();
        return Err(ImageFault::Unsupported(format!("incompatible feature {bit}")));
    }
    let mut header = Header {
        version,
        cluster_bits,
        size: head.u64(24)?,
        l1_at: head.u64(40)?,
        l1_entries: head.u32(36)?,
        refcounts_at: head.u64(48)?,
        refcount_clusters: head.u32(56)?,
        refcount_order: if three { head.u32(96)? } else { 4 },
        snapshots: head.u32(60)?,
        incompatible,
        lazy_refcounts: three && head.u64(80)? & 1 != 0,
        autoclear: if three { head.u64(AUTOCLEAR_AT)? } else { 0 },
        compression: compression(&head, length, incompatible)?,
        backing: None,
        backing_format: None,
        data_file: None,
    };
    header.names(&head, length)?;
    header.check()?;
    Ok(header)
}

fn compression(head: &Head, length: u64, incompatible: u64) -> std::result::Result<Compression, ImageFault> {
    let stated = if length > V3_BYTES { head.bytes(V3_BYTES, 1)?[0] } else { 0 };
    match (stated, incompatible & incompatible::COMPRESSION != 0) {
        (0, false) => Ok(Compression::Deflate),
        (1, true) => Ok(Compression::Zstd),
        (0 | 1, _) => Err(wrong("its compression and the feature for it contradict each other")),
        (other, _) => Err(ImageFault::Unsupported(format!("compression {other}"))),
    }
}

impl Header {
    /// The backing file, and the extensions of the header.
    fn names(&mut self, head: &Head, length: u64) -> std::result::Result<(), ImageFault> {
        let (at, bytes) = (head.u64(8)?, u64::from(head.u32(16)?));
        let mut end = self.cluster_size().min(HEAD);
        if at != 0 {
            if bytes > NAME_MAX || at < length || at.saturating_add(bytes) > end {
                return Err(wrong(format_args!("the name of a backing file of {bytes} bytes at byte {at}")));
            }
            self.backing = Some(head.text(at, bytes)?).filter(|name| !name.is_empty());
            end = at;
        }
        let mut pos = length;
        while pos + 8 <= end {
            let (kind, bytes) = (head.u32(pos)?, u64::from(head.u32(pos + 4)?));
            pos += 8;
            if kind != 0 && pos + bytes > end {
                return Err(wrong(format_args!("extension {kind:#x} of {bytes} bytes")));
            }
            match kind {
                0 => break,
                0xe279_2aca => self.backing_format = Some(head.text(pos, bytes)?),
                0x4441_5441 => self.data_file = Some(head.text(pos, bytes)?),
                _ => {}
            }
            pos += bytes.next_multiple_of(8);
        }
        Ok(())
    }

    fn check(&self) -> std::result::Result<(), ImageFault> {
        let cluster = self.cluster_size();
        if self.size > i64::MAX as u64 {
            return Err(wrong(format_args!("a disk of {} bytes", self.size)));
        }
        if self.is_extended() && self.cluster_bits < 14 {
            return Err(wrong("subclusters in clusters below 16 KiB"));
        }
        let needed = self.size.div_ceil(1 << (self.l2_bits() + self.cluster_bits));
        if needed * 8 > L1_MAX {
            return Err(ImageFault::Unsupported(format!("a first-level table of {} bytes", needed * 8)));
        }
        let fits = |at: u64| at.is_multiple_of(cluster) && at <= i64::MAX as u64 - L1_MAX;
        if u64::from(self.l1_entries) < needed || (needed > 0 && self.l1_at == 0) || !fits(self.l1_at) {
            let (entries, at) = (self.l1_entries, self.l1_at);
            return Err(wrong(format_args!("a first-level table of {entries} entries at byte {at}")));
        }
        if self.refcount_order > 6 {
            return Err(wrong(format_args!("refcounts of 2^{} bits", self.refcount_order)));
        }
        if self.incompatible & incompatible::DATA_FILE == 0 {
            return Ok(());
        }
        match (&self.data_file, &self.backing) {
            (None, _) => Err(ImageFault::Unsupported("a data file that the image does not name".into())),
            (Some(_), Some(_)) if self.autoclear & autoclear::RAW_DATA != 0 => {
                Err(wrong("a raw data file and a backing file"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn cluster_size(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Whether clusters have subclusters.
    pub(super) fn is_extended(&self) -> bool {
        self.incompatible & incompatible::EXTENDED_L2 != 0
    }

    pub(super) fn has_data_file(&self) -> bool {
        self.incompatible & incompatible::DATA_FILE != 0
    }

    /// Entries of a second-level table, as a power of two.
    pub(super) fn l2_bits(&self) -> u32 {
        self.cluster_bits - if self.is_extended() { 4 } else { 3 }
    }

    /// Entries of the first-level table that the disk needs.
    pub(super) fn l1_needed(&self) -> usize {
        // Bounded by `check`.
        self.size.div_ceil(1 << (self.l2_bits() + self.cluster_bits)) as usize
    }

    /// Why an image with this header is not written.
    pub(super) fn refuses_writes(&self) -> Option<&'static str> {
        if self.incompatible & incompatible::DIRTY != 0 {
            return Some("its refcounts may be wrong (dirty bit): `qemu-img check -r all` makes them right");
        }
        if self.incompatible & incompatible::CORRUPT != 0 {
            return Some("it is marked corrupt: `qemu-img check -r all` repairs it");
        }
        let bytes = u64::from(self.refcount_clusters) << self.cluster_bits;
        let fits = self.refcounts_at != 0
            && self.refcounts_at.is_multiple_of(self.cluster_size())
            && self.refcounts_at <= i64::MAX as u64 - REFCOUNTS_MAX
            && bytes <= REFCOUNTS_MAX
            && bytes != 0;
        (!fits).then_some("its table of refcounts lies at an impossible place")
    }

    /// For `info`.
    pub(super) fn features(&self) -> Vec<&'static str> {
        let marks = [
            (self.is_extended(), "subclusters"),
            (self.compression == Compression::Zstd, "zstd"),
            (self.lazy_refcounts, "lazy refcounts"),
            (self.incompatible & incompatible::DIRTY != 0, "dirty"),
            (self.incompatible & incompatible::CORRUPT != 0, "marked corrupt"),
            (self.snapshots != 0, "with snapshots"),
        ];
        marks.into_iter().filter(|(set, _)| *set).map(|(_, name)| name).collect()
    }
}
