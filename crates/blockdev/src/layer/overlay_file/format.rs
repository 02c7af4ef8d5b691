//! The bytes of an overlay file. `docs/reference/overlay.md` describes them.
//!
//! Every structure that is written again after the file was made is 512 bytes long, has its own checksum and its own
//! sector, so that a power cut leaves it old or new. The header is written once, before the file gets its name.

use crate::error::OverlayFault;

/// First bytes of every overlay file.
const MAGIC: [u8; 8] = *b"uext4ovl";
/// The only version so far.
const VERSION: u32 = 1;
/// Unit of transfers of header and map, bytes. Stores with larger logical blocks are refused.
pub(super) const BLOCK: u64 = 4096;
/// Bytes of the header, at the file's start.
pub(super) const HEADER: usize = 4096;
/// Where the state is.
pub(super) const STATE_AT: u64 = BLOCK;
/// Where the map begins.
pub(super) const MAP_AT: u64 = 2 * BLOCK;
/// Bytes of a unit of the map, and of the state.
pub(super) const UNIT: usize = 512;
/// Words of bits in a unit.
pub(super) const WORDS: usize = 63;
/// Granules that a unit tells about.
pub(super) const UNIT_BITS: u64 = WORDS as u64 * 64;
/// Units in a block of the map.
pub(super) const BLOCK_UNITS: u64 = BLOCK / UNIT as u64;
/// The data begins at a multiple of this, bytes.
const DATA_ALIGN: u64 = 1 << 20;
/// Largest base, bytes: the index of the map takes 34 MB of memory then.
const BASE_MAX: u64 = 1 << 50;
/// Largest granule, bytes.
const GRANULE_MAX: u32 = 65536;
/// Bytes at the base's start that its sample is about.
pub(super) const SAMPLE: u64 = 64 << 10;
/// Longest spelling of the base, bytes.
const SPELLING_MAX: usize = HEADER - SPELLING_AT - 4;
const SPELLING_AT: usize = 76;
/// In place of nanoseconds: the base has no time of change.
const NO_TIME: u32 = u32::MAX;
const UNIT_MAGIC: [u8; 4] = *b"map1";
const STATE_MAGIC: [u8; 8] = *b"uext4mrg";

/// What is known of a base, to notice that it is another one or has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseFacts {
    /// Bytes.
    pub size: u64,
    /// When the file was last changed: seconds since 1970 and nanoseconds. `None` for devices, which do not say.
    pub changed: Option<(i64, u32)>,
    /// crc32c of the first 64 KiB.
    pub sample: u32,
}

/// Where things are in an overlay file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes that a bit of the map is about.
    pub(super) granule: u32,
    pub(super) granules: u64,
    pub(super) units: u64,
    /// Where the byte that is the base's first would be.
    pub(super) data_at: u64,
    /// Bytes of the whole file.
    pub(super) size: u64,
}

impl Layout {
    pub(super) fn of(base_size: u64, granule: u32) -> Result<Self, OverlayFault> {
        if !granule.is_power_of_two() || !(512..=GRANULE_MAX).contains(&granule) {
            return Err(OverlayFault::Header("its granule is impossible"));
        }
        let granules = base_size / u64::from(granule);
        if base_size > BASE_MAX || granules == 0 {
            return Err(OverlayFault::Header("the size of its base is impossible"));
        }
        let units = granules.div_ceil(UNIT_BITS);
        let map_end = MAP_AT + units.div_ceil(BLOCK_UNITS) * BLOCK;
        let data_at = map_end.next_multiple_of(DATA_ALIGN);
        let size = data_at + base_size.next_multiple_of(u64::from(GRANULE_MAX));
        Ok(Layout { granule, granules, units, data_at, size })
    }
}

/// The header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: [u8; 16],
    pub(super) granule: u32,
    pub(super) base: BaseFacts,
    /// How the base was named, as the device grammar spells it.
    pub(super) spelling: Vec<u8>,
}

impl Header {
    /// # Errors
    /// [`OverlayFault::Header`] if the spelling of the base is too long.
    pub(super) fn encode(&self) -> Result<Vec<u8>, OverlayFault> {
        if self.spelling.len() > SPELLING_MAX {
            return Err(OverlayFault::Header("the name of its base is longer than 4000 bytes"));
        }
        let layout = Layout::of(self.base.size, self.granule)?;
        let (seconds, nanoseconds) = self.base.changed.unwrap_or((0, NO_TIME));
        let mut bytes = vec![0; HEADER];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(8, &VERSION.to_le_bytes());
        put(12, &self.granule.to_le_bytes());
        put(16, &self.id);
        put(32, &self.base.size.to_le_bytes());
        put(40, &MAP_AT.to_le_bytes());
        put(48, &layout.data_at.to_le_bytes());
        put(56, &seconds.to_le_bytes());
        put(64, &nanoseconds.to_le_bytes());
        put(68, &self.base.sample.to_le_bytes());
        put(72, &(self.spelling.len() as u32).to_le_bytes());
        put(SPELLING_AT, &self.spelling);
        let sum = crc32c::crc32c(&bytes[..HEADER - 4]);
        bytes[HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
        Ok(bytes)
    }

    /// Whether these bytes begin an overlay file, sound or not.
    pub(super) fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, Layout), OverlayFault> {
        if bytes.len() < HEADER || !Self::begins(bytes) {
            return Err(OverlayFault::NotOne);
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(OverlayFault::Version(version));
        }
        if u32_at(bytes, HEADER - 4) != crc32c::crc32c(&bytes[..HEADER - 4]) {
            return Err(OverlayFault::Header("its checksum is wrong"));
        }
        let (granule, size) = (u32_at(bytes, 12), u64_at(bytes, 32));
        let layout = Layout::of(size, granule)?;
        if u64_at(bytes, 40) != MAP_AT || u64_at(bytes, 48) != layout.data_at {
            return Err(OverlayFault::Header("its parts are not where they belong"));
        }
        let length = u32_at(bytes, 72) as usize;
        if length > SPELLING_MAX {
            return Err(OverlayFault::Header("the name of its base is too long"));
        }
        let nanoseconds = u32_at(bytes, 64);
        let changed = (nanoseconds != NO_TIME).then(|| (u64_at(bytes, 56) as i64, nanoseconds));
        let mut id = [0; 16];
        id.copy_from_slice(&bytes[16..32]);
        let base = BaseFacts { size, changed, sample: u32_at(bytes, 68) };
        let spelling = bytes[SPELLING_AT..SPELLING_AT + length].to_vec();
        Ok((Header { id, granule, base, spelling }, layout))
    }
}

/// Stored by a merge before it writes to the base.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Merge {
    /// crc32c of the base's first 64 KiB with zeros for what the overlay holds: the merge does not change it.
    pub(super) rest: u32,
}

impl Merge {
    pub(super) fn encode(self, id: &[u8; 16]) -> [u8; UNIT] {
        let mut bytes = [0; UNIT];
        bytes[4..12].copy_from_slice(&STATE_MAGIC);
        bytes[12..16].copy_from_slice(&self.rest.to_le_bytes());
        seal(&mut bytes, id, u64::MAX);
        bytes
    }

    /// `None`: no merge has begun.
    pub(super) fn decode(bytes: &[u8; UNIT], id: &[u8; 16]) -> Result<Option<Self>, OverlayFault> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if !is_sealed(bytes, id, u64::MAX) || bytes[4..12] != STATE_MAGIC {
            return Err(OverlayFault::State);
        }
        Ok(Some(Merge { rest: u32_at(bytes, 12) }))
    }
}

/// Encodes unit number `unit` of the map.
pub(super) fn encode_unit(words: &[u64; WORDS], id: &[u8; 16], unit: u64, bytes: &mut [u8; UNIT]) {
    bytes[4..8].copy_from_slice(&UNIT_MAGIC);
    for (word, place) in words.iter().zip(bytes[8..].as_chunks_mut::<8>().0) {
        *place = word.to_le_bytes();
    }
    seal(bytes, id, unit);
}

/// The bits of unit number `unit`; `None` if it was never written.
pub(super) fn decode_unit(
    bytes: &[u8; UNIT],
    id: &[u8; 16],
    unit: u64,
    layout: &Layout,
) -> Result<Option<[u64; WORDS]>, OverlayFault> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let mut words = [0; WORDS];
    for (word, place) in words.iter_mut().zip(bytes[8..].as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*place);
    }
    let last = words.iter().rposition(|word| *word != 0);
    let end = last.map_or(0, |at| at as u64 * 64 + 64 - u64::from(words[at].leading_zeros()));
    let fits = unit < layout.units && unit * UNIT_BITS + end <= layout.granules;
    if !is_sealed(bytes, id, unit) || bytes[4..8] != UNIT_MAGIC || !fits {
        return Err(OverlayFault::Map(unit));
    }
    Ok(Some(words))
}

/// The checksum knows file and place, so that a unit of another file or place is no unit.
fn sum(bytes: &[u8; UNIT], id: &[u8; 16], place: u64) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(id), &place.to_le_bytes());
    crc32c::crc32c_append(sum, &bytes[4..])
}

fn seal(bytes: &mut [u8; UNIT], id: &[u8; 16], place: u64) {
    let sum = sum(bytes, id, place);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
}

fn is_sealed(bytes: &[u8; UNIT], id: &[u8; 16], place: u64) -> bool {
    u32_at(bytes, 0) == sum(bytes, id, place)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(value)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let base = BaseFacts { size: 10 << 20, changed: Some((-5, 7)), sample: 9 };
        Header { id: [3; 16], granule: 512, base, spelling: b"/a/disk.img?partition=2".to_vec() }
    }

    #[test]
    fn what_is_encoded_is_decoded_and_every_damaged_byte_is_noticed() {
        let bytes = header().encode().unwrap();
        let (decoded, layout) = Header::decode(&bytes).unwrap();
        assert_eq!((decoded, layout.granules, layout.units), (header(), 20480, 6));
        for at in 0..HEADER {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            Header::decode(&damaged).unwrap_err();
        }
        assert_eq!(Header::decode(&bytes[..100]).unwrap_err(), OverlayFault::NotOne);
        let no_time = Header { base: BaseFacts { changed: None, ..header().base }, ..header() };
        assert_eq!(Header::decode(&no_time.encode().unwrap()).unwrap().0, no_time);
        assert!(Header { spelling: vec![b'x'; 5000], ..header() }.encode().is_err());
    }

    #[test]
    fn units_know_their_file_and_place() {
        let layout = Layout::of(10 << 20, 512).unwrap();
        let (mut words, mut bytes) = ([0; WORDS], [0; UNIT]);
        assert_eq!(decode_unit(&bytes, &[1; 16], 0, &layout), Ok(None));
        (words[0], words[2]) = (5, 1 << 63);
        encode_unit(&words, &[1; 16], 4, &mut bytes);
        assert_eq!(decode_unit(&bytes, &[1; 16], 4, &layout), Ok(Some(words)));
        assert_eq!(decode_unit(&bytes, &[1; 16], 3, &layout), Err(OverlayFault::Map(3)));
        assert_eq!(decode_unit(&bytes, &[2; 16], 4, &layout), Err(OverlayFault::Map(4)));
        for at in 0..UNIT {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(decode_unit(&damaged, &[1; 16], 4, &layout), Err(OverlayFault::Map(4)), "{at}");
        }
        // 20 480 granules: unit 5 has 320, five words.
        let mut last = [0; WORDS];
        last[4] = u64::MAX;
        encode_unit(&last, &[1; 16], 5, &mut bytes);
        assert_eq!(decode_unit(&bytes, &[1; 16], 5, &layout), Ok(Some(last)));
        last[5] = 1;
        encode_unit(&last, &[1; 16], 5, &mut bytes);
        assert_eq!(decode_unit(&bytes, &[1; 16], 5, &layout), Err(OverlayFault::Map(5)), "past the base");
    }

    #[test]
    fn a_merge_is_encoded_and_a_damaged_one_noticed() {
        let bytes = Merge { rest: 77 }.encode(&[1; 16]);
        assert_eq!(Merge::decode(&bytes, &[1; 16]), Ok(Some(Merge { rest: 77 })));
        assert_eq!(Merge::decode(&[0; UNIT], &[1; 16]), Ok(None));
        for at in 0..UNIT {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(Merge::decode(&damaged, &[1; 16]), Err(OverlayFault::State));
        }
    }
}
