//! Hashes of directory names. The functions are the kernel's `ext4fs_dirhash`, by its documented behaviour.
//!
//! In a case-folded directory it is the folded form of a name that is hashed
//! ([`CaseFolder`](super::CaseFolder)), or the name itself if it has none.

use siphasher::sip::SipHasher24;
use std::fmt;
use std::hash::Hasher;

use crate::bytes::{high32, low32};

/// How a directory's names are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashVersion {
    /// The first hash, bytes signed.
    Legacy,
    /// Half of MD4, bytes signed. The usual one.
    HalfMd4,
    /// Tiny encryption algorithm, bytes signed.
    Tea,
    /// The first hash, bytes unsigned.
    LegacyUnsigned,
    /// Half of MD4, bytes unsigned.
    HalfMd4Unsigned,
    /// Tiny encryption algorithm, bytes unsigned.
    TeaUnsigned,
    /// SipHash with a key of the directory: encrypted and case-folded directories only.
    SipHash,
}

/// A hash that cannot be computed from the name and the volume's seed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("directory hash `{0}` is not supported")]
pub struct UnsupportedHash(pub HashVersion);

/// The hash of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirHash {
    /// Orders names in the tree; bit 0 is always clear.
    pub major: u32,
    /// Orders names of equal major hash for directory reading; 0 with the first hash.
    pub minor: u32,
}

impl HashVersion {
    /// The version stored in a tree's root. Versions 0 to 2 become unsigned on volumes that say so.
    pub fn from_disk(value: u8, unsigned: bool) -> Option<HashVersion> {
        match (value, unsigned) {
            (0, false) => Some(HashVersion::Legacy),
            (1, false) => Some(HashVersion::HalfMd4),
            (2, false) => Some(HashVersion::Tea),
            (0, true) | (3, _) => Some(HashVersion::LegacyUnsigned),
            (1, true) | (4, _) => Some(HashVersion::HalfMd4Unsigned),
            (2, true) | (5, _) => Some(HashVersion::TeaUnsigned),
            (6, _) => Some(HashVersion::SipHash),
            _ => None,
        }
    }

    /// The value stored in a tree's root. Signedness is a property of the volume, not of the tree.
    pub fn to_disk(self) -> u8 {
        match self {
            HashVersion::Legacy | HashVersion::LegacyUnsigned => 0,
            HashVersion::HalfMd4 | HashVersion::HalfMd4Unsigned => 1,
            HashVersion::Tea | HashVersion::TeaUnsigned => 2,
            HashVersion::SipHash => 6,
        }
    }
}

impl fmt::Display for HashVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HashVersion::Legacy => "legacy",
            HashVersion::HalfMd4 => "half_md4",
            HashVersion::Tea => "tea",
            HashVersion::LegacyUnsigned => "legacy_unsigned",
            HashVersion::HalfMd4Unsigned => "half_md4_unsigned",
            HashVersion::TeaUnsigned => "tea_unsigned",
            HashVersion::SipHash => "siphash",
        })
    }
}

/// Marks the end of a directory to readers, so no name may have it.
const END_OF_DIRECTORY: u32 = 0x7FFF_FFFF << 1;

const INITIAL: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// The hash of `name`. `seed` is the volume's; all zero means none.
pub fn dir_hash(name: &[u8], version: HashVersion, seed: &[u32; 4]) -> Result<DirHash, UnsupportedHash> {
    let state = if *seed == [0; 4] { INITIAL } else { *seed };
    let (major, minor) = match version {
        HashVersion::Legacy => (legacy(name, signed), 0),
        HashVersion::LegacyUnsigned => (legacy(name, unsigned), 0),
        HashVersion::HalfMd4 => half_md4(name, state, signed),
        HashVersion::HalfMd4Unsigned => half_md4(name, state, unsigned),
        HashVersion::Tea => tea(name, state, signed),
        HashVersion::TeaUnsigned => tea(name, state, unsigned),
        HashVersion::SipHash => return Err(UnsupportedHash(version)),
    };
    Ok(ordered(major, minor))
}

/// The hash of a name by [`HashVersion::SipHash`]: SipHash-2-4 under the key that a directory both encrypted
/// and case-folded derives from its encryption key (`fscrypt_fname_siphash`). `name` is the folded form of the
/// plain name.
pub fn keyed_dir_hash(name: &[u8], key: &[u8; 16]) -> DirHash {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(name);
    let sum = hasher.finish();
    ordered(high32(sum), low32(sum))
}

/// Leaves out the bit and the value that mean something else in a tree.
fn ordered(major: u32, minor: u32) -> DirHash {
    let even = major & !1;
    let major = if even == END_OF_DIRECTORY { END_OF_DIRECTORY.wrapping_sub(2) } else { even };
    DirHash { major, minor }
}

/// A byte widened the way the volume's char type was: with sign or without.
type Widen = fn(u8) -> u32;

fn signed(byte: u8) -> u32 {
    let wide = i32::from(i8::from_le_bytes([byte]));
    u32::from_le_bytes(wide.to_le_bytes())
}

fn unsigned(byte: u8) -> u32 {
    u32::from(byte)
}

fn legacy(name: &[u8], widen: Widen) -> u32 {
    let mut before = 0x37AB_E8F9_u32;
    let mut current = 0x12A3_FE2D_u32;
    for byte in name {
        let mut next = before.wrapping_add(current ^ widen(*byte).wrapping_mul(7_152_373));
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7FFF_FFFF);
        }
        before = current;
        current = next;
    }
    current << 1
}

/// Packs the start of `rest` into `N` words, four bytes each, padded with its length.
fn pack<const N: usize>(rest: &[u8], widen: Widen) -> [u32; N] {
    let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
    let pad = length | (length << 8);
    let pad = pad | (pad << 16);
    let mut words = [pad; N];
    for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
        *word = bytes.iter().fold(pad, |word, byte| widen(*byte).wrapping_add(word << 8));
    }
    words
}

fn half_md4(name: &[u8], mut state: [u32; 4], widen: Widen) -> (u32, u32) {
    let mut rest = name;
    while !rest.is_empty() {
        half_md4_transform(&mut state, &pack::<8>(rest, widen));
        rest = rest.get(32..).unwrap_or_default();
    }
    let [_, major, minor, _] = state;
    (major, minor)
}

fn half_md4_transform(state: &mut [u32; 4], input: &[u32; 8]) {
    const ROUND_2: u32 = 0x5A82_7999;
    const ROUND_3: u32 = 0x6ED9_EBA1;
    let choose = |x: u32, y: u32, z: u32| z ^ (x & (y ^ z));
    let majority = |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z);
    let parity = |x: u32, y: u32, z: u32| x ^ y ^ z;
    let [i0, i1, i2, i3, i4, i5, i6, i7] = *input;
    let mut mixed = *state;
    // Each step changes the first word and rotates the four, so that the roles come round.
    let mut round = |mix: &dyn Fn(u32, u32, u32) -> u32, constant: u32, order: [u32; 8], shifts: [u32; 4]| {
        for (word, shift) in order.into_iter().zip(shifts.into_iter().cycle()) {
            let [a, b, c, d] = mixed;
            let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(word).wrapping_add(constant);
            mixed = [d, sum.rotate_left(shift), b, c];
        }
    };
    round(&choose, 0, [i0, i1, i2, i3, i4, i5, i6, i7], [3, 7, 11, 19]);
    round(&majority, ROUND_2, [i1, i3, i5, i7, i0, i2, i4, i6], [3, 5, 9, 13]);
    round(&parity, ROUND_3, [i3, i7, i2, i6, i1, i5, i0, i4], [3, 9, 11, 15]);
    for (word, mixed) in state.iter_mut().zip(mixed) {
        *word = word.wrapping_add(mixed);
    }
}

fn tea(name: &[u8], mut state: [u32; 4], widen: Widen) -> (u32, u32) {
    let mut rest = name;
    while !rest.is_empty() {
        tea_transform(&mut state, &pack::<4>(rest, widen));
        rest = rest.get(16..).unwrap_or_default();
    }
    let [major, minor, _, _] = state;
    (major, minor)
}

fn tea_transform(state: &mut [u32; 4], input: &[u32; 4]) {
    const DELTA: u32 = 0x9E37_79B9;
    let [a, b, c, d] = *input;
    let [mut left, mut right, _, _] = *state;
    let mut sum = 0_u32;
    let mix = |half: u32, sum: u32, first: u32, second: u32| {
        (half << 4).wrapping_add(first) ^ half.wrapping_add(sum) ^ (half >> 5).wrapping_add(second)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        left = left.wrapping_add(mix(right, sum, a, b));
        right = right.wrapping_add(mix(left, sum, c, d));
    }
    let [first, second, ..] = state;
    *first = first.wrapping_add(left);
    *second = second.wrapping_add(right);
}
